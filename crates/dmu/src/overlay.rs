//! Changes of an object that are not on disk yet, above what is (`dbuf_dirty_record_t`).
//!
//! There are up to two layers: what the open transaction group changed, and below it what a quiesced
//! one changed that is just being written. A layer has *dirty* blocks, *cloned* ones and *freed* ranges; a
//! dirty or cloned block takes precedence over a freed range of its layer, and a layer over what is below
//! it. A cloned block has no bytes in memory: it is going to have the pointer of a block that is on disk.
//!
//! An overlay is a snapshot: a change of an object copies what others still hold. Blocks and
//! tables are shared until then.
//!
//! Invariant: a block that can be seen has the size that the pending dnode says. If the one on disk
//! says another, nothing that is on disk can be seen.
//!
//! Invariant: a block of a layer is dirty or cloned, never both.
//!
//! Invariant: a dirty block is the whole block: `bytes` is the size of as many blocks as are dirty.

use crate::blocks::Blocks;
use crate::clones::Clones;
use crate::dnode::Dnode;
use crate::ranges::Ranges;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::micro::MicroIndex;
use cenote_format::{ByteOrder, Result as DecodeResult, invariant, less};
use cenote_store::Block;
use cenote_store::write::Payload;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Bytes that a cloned block counts for: its entry in a table of references makes about so much dirty.
const CLONE_BYTES: u64 = 4096;

/// What one transaction group changed (`dbuf_dirty_record_t`).
#[derive(Debug, Clone, Default)]
pub(crate) struct Layer {
    dirty: Blocks,
    cloned: Clones,
    freed: Ranges,
    /// Dirty blocks that get a new place even if they are what they were.
    forced: Ranges,
    /// Those of them that are what they were, and keep their logical birth (`dr_rewrite`).
    physical: Ranges,
    /// The spill block as it will be.
    pub(crate) spill: Option<Option<Payload>>,
    /// Bytes of dirty blocks.
    bytes: u64,
    /// Bytes that pointers took up to now in the indirect blocks that lead to them.
    indirect: u64,
}

impl Layer {
    pub(crate) fn dirty(&self, blkid: u64) -> Option<&Payload> {
        self.dirty.get(blkid)
    }

    /// Bytes to be written, indirect blocks included, where a block counts for `least` bytes
    /// at least.
    pub(crate) fn bytes(&self, least: u64) -> u64 {
        let count = self.dirty.len() as u64;
        // All blocks of an object have one size, which takes whole sectors.
        let each = self.bytes.checked_div(count).unwrap_or(0);
        let each = each.checked_next_multiple_of(least).unwrap_or(each);
        let pointers = self.indirect + count * BLKPTR_SIZE as u64;
        let clones = self.cloned.len() as u64 * CLONE_BYTES;
        let spill: u64 =
            self.spill.iter().flatten().map(|data| (data.len() as u64).max(least)).sum();
        count * each + pointers + clones + spill
    }

    /// Whether a block is dirty or cloned.
    pub(crate) fn is_dirty(&self, blkid: u64) -> bool {
        self.dirty.get(blkid).is_some() || self.cloned.get(blkid).is_some()
    }

    /// Whether one of the blocks from `first` to before `end` is dirty or cloned.
    pub(crate) fn has_dirty(&self, first: u64, end: u64) -> bool {
        self.dirty.range(first..end).next().is_some() || self.cloned.any_in(first..end)
    }

    /// The pointer that a cloned block is going to have.
    pub(crate) fn cloned(&self, blkid: u64) -> Option<&BlockPointer> {
        self.cloned.get(blkid)
    }

    /// Has a block become one with another that is on disk.
    pub(crate) fn put_clone(&mut self, blkid: u64, bp: BlockPointer) {
        invariant!(!bp.is_hole(), "block {blkid} is a clone of a hole");
        self.remove(blkid);
        self.cloned.insert(blkid, bp);
    }

    /// Notes an indirect block that has to be written for the sake of blocks, with so many bytes.
    pub(crate) fn note_indirect(&mut self, bytes: u64) {
        self.indirect += bytes;
    }

    /// What [`Layer::note_indirect`] noted up to now.
    pub(crate) fn indirect(&self) -> u64 {
        self.indirect
    }

    /// Takes back what was noted since [`Layer::indirect`] told `bytes`.
    pub(crate) fn set_indirect(&mut self, bytes: u64) {
        self.indirect = bytes;
    }

    /// Replaces a block. Returns whether it was dirty or cloned before.
    pub(crate) fn put(&mut self, blkid: u64, data: Payload) -> bool {
        let was_cloned = self.cloned.remove(blkid);
        self.bytes += data.len() as u64;
        self.physical.remove(blkid);
        let old = self.dirty.insert(blkid, data);
        let was_dirty = old.is_some();
        invariant!(!(was_cloned && was_dirty), "block {blkid} is dirty and a clone");
        self.lose(blkid, old);
        was_cloned || was_dirty
    }

    /// Block `blkid` is not dirty any more with these contents.
    fn lose(&mut self, blkid: u64, gone: Option<Payload>) {
        let bytes = gone.map_or(0, |data| data.len() as u64);
        self.bytes = less!(self.bytes, bytes, "dirty bytes, without block {blkid}");
    }

    /// How many blocks are dirty, and their bytes.
    pub(crate) fn dirty_blocks(&self) -> (u64, u64) {
        (self.dirty.len() as u64, self.bytes)
    }

    /// Has a dirty block written to a new place whatever it holds.
    pub(crate) fn force(&mut self, blkid: u64) {
        self.forced.insert(blkid..blkid.saturating_add(1));
    }

    /// Has a dirty block, which is what it was, keep its logical birth when it is written to its new place.
    pub(crate) fn keep_birth(&mut self, blkid: u64) {
        self.force(blkid);
        self.physical.insert(blkid..blkid.saturating_add(1));
    }

    /// A dirty block, to be changed, if it is not compressed.
    pub(crate) fn dirty_mut(&mut self, blkid: u64) -> Option<&mut [u8]> {
        self.physical.remove(blkid);
        self.dirty.get_mut(blkid).and_then(Payload::plain_mut).map(Abd::make_mut)
    }

    /// Gives a dirty block another size, if there is one that is not compressed (`dbuf_new_size`).
    pub(crate) fn resize(&mut self, blkid: u64, len: usize) {
        self.physical.remove(blkid);
        if let Some(data) = self.dirty.get_mut(blkid).and_then(Payload::plain_mut) {
            let others = less!(self.bytes, data.len() as u64, "dirty bytes, without block {blkid}");
            self.bytes = others + len as u64;
            data.resize(len);
        }
    }

    /// Has a block be neither dirty nor cloned (`dbuf_undirty`).
    pub(crate) fn remove(&mut self, blkid: u64) {
        self.cloned.remove(blkid);
        self.physical.remove(blkid);
        let gone = self.dirty.remove(blkid);
        self.lose(blkid, gone);
    }

    /// The dirty and cloned blocks from `first` to before `end`; with `rest` also all after.
    pub(crate) fn dirty_in(&self, first: u64, end: u64, rest: bool) -> Vec<u64> {
        let end = if rest { u64::MAX } else { end };
        let dirty = self.dirty.range(first..end).map(|(blkid, _)| blkid);
        dirty.chain(self.cloned.range(first..end).map(|(blkid, _)| blkid)).collect()
    }

    /// Frees the blocks from `first` to before `end`; with `rest` also all after.
    pub(crate) fn free(&mut self, first: u64, end: u64, rest: bool) {
        for blkid in self.dirty_in(first, end, rest) {
            self.remove(blkid);
        }
        self.freed.insert(first..if rest { u64::MAX } else { end });
    }

    /// The ranges that are freed, forced, and forced with their births kept.
    pub(crate) fn ranges(&self) -> [Ranges; 3] {
        [self.freed.clone(), self.forced.clone(), self.physical.clone()]
    }

    /// Makes the ranges what [`Layer::ranges`] told.
    pub(crate) fn set_ranges(&mut self, [freed, forced, physical]: [Ranges; 3]) {
        (self.freed, self.forced, self.physical) = (freed, forced, physical);
    }

    /// What will be written.
    pub(crate) fn into_parts(self) -> Parts {
        let Layer { dirty, cloned, freed, forced, physical, spill, .. } = self;
        Parts { dirty, cloned, freed, forced, physical, spill }
    }

    /// The layer as far as it concerns some blocks.
    fn within(&self, blocks: &RangeInclusive<u64>) -> Layer {
        let dirty = self.dirty.range(blocks.clone());
        let dirty = dirty.map(|(blkid, data)| (blkid, data.clone())).collect();
        let (freed, spill) = (self.freed.clone(), self.spill.clone());
        let end = blocks.end().saturating_add(1);
        let cloned = self.cloned.within(*blocks.start()..end);
        Layer { dirty, cloned, freed, spill, ..Layer::default() }
    }

    fn next_dirty(&self, from: u64) -> Option<u64> {
        let dirty = self.dirty.range(from..).next().map(|(blkid, _)| blkid);
        let cloned = self.cloned.range(from..u64::MAX).next().map(|(blkid, _)| blkid);
        dirty.into_iter().chain(cloned).min()
    }
}

/// What a layer has to be written.
pub(crate) struct Parts {
    pub(crate) dirty: Blocks,
    pub(crate) cloned: Clones,
    pub(crate) freed: Ranges,
    pub(crate) forced: Ranges,
    pub(crate) physical: Ranges,
    pub(crate) spill: Option<Option<Payload>>,
}

/// What is pending for a block.
pub(crate) enum Pending<'a> {
    /// These bytes, little-endian.
    Data(&'a Payload),
    /// What is behind this pointer, which is of a block on disk, and no hole.
    Clone(&'a BlockPointer),
    /// A hole.
    Hole,
}

/// The changes of an object.
#[derive(Debug, Clone)]
pub(crate) struct Overlay {
    /// The open transaction group's.
    pub(crate) top: Layer,
    /// The quiesced one's, if it changed the object.
    pub(crate) under: Option<Box<Layer>>,
    /// The dnode on disk; of a new object, one without blocks.
    pub(crate) disk: Arc<Dnode>,
    /// Whether there is one on disk.
    pub(crate) on_disk: bool,
    /// The index of a micro ZAP, if it is known.
    pub(crate) micro: Option<Arc<MicroIndex>>,
}

impl Overlay {
    fn layers(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&self.top).chain(self.under.as_deref())
    }

    /// What is pending for block `blkid` (`dnode_block_freed`); `None` if it is as on disk.
    pub(crate) fn block(&self, blkid: u64) -> Option<Pending<'_>> {
        for layer in self.layers() {
            if let Some(data) = layer.dirty.get(blkid) {
                return Some(Pending::Data(data));
            }
            if let Some(bp) = layer.cloned.get(blkid) {
                return Some(Pending::Clone(bp));
            }
            if layer.freed.contains(blkid) {
                return Some(Pending::Hole);
            }
        }
        None
    }

    /// Whether block `blkid` is as on disk.
    pub(crate) fn is_clean(&self, blkid: u64) -> bool {
        self.block(blkid).is_none()
    }

    /// The pending spill block: `Some(None)` if it will be removed.
    pub(crate) fn spill(&self) -> Option<&Option<Payload>> {
        self.layers().find_map(|layer| layer.spill.as_ref())
    }

    /// The pending data among some blocks.
    ///
    /// # Errors
    /// A block that came compressed cannot be unpacked.
    pub(crate) fn data(&self, blocks: RangeInclusive<u64>) -> DecodeResult<Vec<(u64, Block)>> {
        let shown = |blkid: u64| match self.block(blkid) {
            Some(Pending::Data(data)) => {
                Some(data.unpacked().map(|data| (blkid, Block { data, order: ByteOrder::Little })))
            }
            _ => None,
        };
        let numbers = |layer: &Layer| {
            let numbers = layer.dirty.range(blocks.clone()).map(|(blkid, _)| blkid);
            numbers.collect::<Vec<_>>()
        };
        let mut all: Vec<u64> = self.layers().flat_map(numbers).collect();
        if self.under.is_some() {
            all.sort_unstable();
            all.dedup();
        }
        all.into_iter().filter_map(shown).collect()
    }

    /// The pending clones among some blocks, with their pointers.
    pub(crate) fn clones(&self, blocks: RangeInclusive<u64>) -> Vec<(u64, BlockPointer)> {
        let end = blocks.end().saturating_add(1);
        let range = |layer: &Layer| {
            layer.cloned.range(*blocks.start()..end).map(|(blkid, _)| blkid).collect::<Vec<_>>()
        };
        let mut all: Vec<u64> = self.layers().flat_map(range).collect();
        all.sort_unstable();
        all.dedup();
        let shown = |blkid: u64| match self.block(blkid) {
            Some(Pending::Clone(bp)) => Some((blkid, *bp)),
            _ => None,
        };
        all.into_iter().filter_map(shown).collect()
    }

    /// The first block after `blkid`, whose state is known, that may be in another state.
    pub(crate) fn next_change(&self, blkid: u64) -> u64 {
        if let Some(Pending::Data(_) | Pending::Clone(_)) = self.block(blkid) {
            return blkid.saturating_add(1);
        }
        let next = |layer: &Layer| {
            let dirty = layer.next_dirty(blkid.saturating_add(1));
            let freed = layer.freed.next_start(blkid).into_iter().chain(layer.freed.end_of(blkid));
            freed.chain(dirty).min()
        };
        self.layers().filter_map(next).min().unwrap_or(u64::MAX)
    }

    /// The overlay as far as it concerns some blocks.
    pub(crate) fn within(&self, blocks: &RangeInclusive<u64>) -> Overlay {
        Overlay {
            top: self.top.within(blocks),
            under: self.under.as_ref().map(|layer| Box::new(layer.within(blocks))),
            disk: self.disk.clone(),
            on_disk: self.on_disk,
            micro: None,
        }
    }
}

/// What stands for the pointer to a block that is not on disk yet. It is no hole, has the right
/// type and size, and nothing can be read through it: it is embedded, of a type that there is not.
pub(crate) fn pending_pointer(kind: DmuType, size: usize) -> BlockPointer {
    const LITTLE_ENDIAN: u64 = 1 << 63;
    const EMBEDDED: u64 = 1 << 39;
    const NO_TYPE: u64 = 0xff << 40;
    let length = (size as u64).saturating_sub(1) & 0x1ff_ffff;
    let mut bp = BlockPointer::HOLE;
    bp.0[6] = LITTLE_ENDIAN | EMBEDDED | NO_TYPE | u64::from(kind.0) << 48 | length;
    bp
}
