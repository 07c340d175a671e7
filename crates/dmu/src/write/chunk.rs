//! Bytes to be written, made ready before a lock is taken (`dmu_assign_arcbuf_by_dnode`, `arc_loan_buf`,
//! `dmu_request_arcbuf`).
//!
//! A write copies what it is given once, into the blocks that become dirty. A [`Chunk`] does that before the
//! change that writes them has the object set's lock: the change only puts the blocks in their places.
//!
//! - A block that is written as a whole is cut from what is given.
//! - A block that is written in part, an *edge*, is read and [merged](Chunk::merge), together with what it [was](Was)
//!   when it was read. The change takes it if the block is still that. One that is dirty in the open group is
//!   not merged: copying the bytes that are written into it costs less than copying all of it.
//!
//! Nothing of this is certain before the lock is taken. Where blocks turn out to be of another size than the
//! chunk was cut for, or another change was first to write an edge, the change copies as if there were no chunk.
//!
//! Invariant: while an edge holds what the block was, that does not change in place. So a block that is
//! the same, by its pointer or its memory, has the same bytes.

use super::object::{OpenObject, Place};
use super::{OpenObjectSet, Result};
use crate::Object;
use crate::overlay::Pending;
use crate::tree::Node;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_store::write::Payload;

/// What a block is that is not dirty in the open group.
#[derive(Debug)]
pub(crate) enum Was {
    /// The block does not exist.
    Hole,
    /// What is on disk.
    Stored(BlockPointer),
    /// What a quiesced group is about to write.
    Quiesced(Abd),
}

/// A block that is written in part.
struct Edge {
    blkid: u64,
    was: Was,
    /// What it is going to be.
    block: Abd,
}

/// See the [module](self).
pub struct Chunk<'d> {
    offset: u64,
    data: &'d [u8],
    block_size: u64,
    /// The first block that is written as a whole, and all that are.
    first: u64,
    whole: Vec<Abd>,
    edges: Vec<Edge>,
}

impl<'d> Chunk<'d> {
    /// `data`, to be written at byte `offset` of an object with blocks of `block_size` bytes.
    pub fn new(offset: u64, data: &'d [u8], block_size: u64) -> Chunk<'d> {
        let size = usize::try_from(block_size).unwrap_or(usize::MAX).max(1);
        let first = offset.div_ceil(size as u64);
        let skip = first.saturating_mul(size as u64).saturating_sub(offset);
        let inside = usize::try_from(skip).ok().and_then(|skip| data.get(skip..));
        let whole = inside.unwrap_or_default().chunks_exact(size).map(Abd::copy_of).collect();
        Chunk { offset, data, block_size, first, whole, edges: Vec::new() }
    }

    /// `data`, to be written wherever the change finds: all of it is copied there.
    pub fn uncut(data: &'d [u8]) -> Chunk<'d> {
        Chunk { offset: 0, data, block_size: 0, first: 0, whole: Vec::new(), edges: Vec::new() }
    }

    /// The bytes.
    pub fn data(&self) -> &'d [u8] {
        self.data
    }

    fn is_cut_for(&self, offset: u64, block_size: u64) -> bool {
        (offset, block_size) == (self.offset, self.block_size)
    }

    /// Block `blkid`, if the chunk is written at `offset` in blocks of `block_size` bytes and was cut
    /// for that.
    fn block(&self, offset: u64, block_size: u64, blkid: u64) -> Option<Abd> {
        if !self.is_cut_for(offset, block_size) {
            return None;
        }
        let index = usize::try_from(blkid.checked_sub(self.first)?).ok()?;
        self.whole.get(index).cloned()
    }

    /// As [`Chunk::block`], of a block that is written in part.
    fn edge(&self, offset: u64, block_size: u64, blkid: u64) -> Option<&Edge> {
        let cut = self.is_cut_for(offset, block_size);
        self.edges.iter().find(|edge| cut && edge.blkid == blkid)
    }

    /// The blocks that are written in part.
    pub(crate) fn partly(&self) -> impl Iterator<Item = u64> + use<> {
        edges(self.offset, self.data.len(), self.block_size)
    }

    /// Makes block `blkid`, which is `old` before, or a hole, what it is going to be.
    pub(crate) fn merge(&mut self, blkid: u64, was: Was, old: Option<&Abd>) {
        let (Ok(size), start) =
            (usize::try_from(self.block_size), blkid.saturating_mul(self.block_size))
        else {
            return;
        };
        let mut block = old.map_or_else(|| vec![0; size], Abd::to_vec);
        let (skip, from) = (self.offset.saturating_sub(start), start.saturating_sub(self.offset));
        let new = usize::try_from(from).ok().and_then(|from| self.data.get(from..));
        let room = usize::try_from(skip).ok().and_then(|skip| block.get_mut(skip..));
        let (Some(new), Some(room)) = (new, room) else { return };
        let len = new.len().min(room.len());
        if let (Some(room), Some(new)) = (room.get_mut(..len), new.get(..len)) {
            room.copy_from_slice(new);
        }
        if block.len() == size {
            self.edges.push(Edge { blkid, was, block: Abd::from_vec(block) });
        }
    }
}

/// The first and the last of the blocks of `size` bytes, where `len` bytes from byte `offset` are a part of them.
fn edges(offset: u64, len: usize, size: u64) -> impl Iterator<Item = u64> + use<> {
    let end = offset.saturating_add(len as u64);
    let partly = |at: u64| (len > 0 && size > 0 && !at.is_multiple_of(size)).then(|| at / size);
    let first = partly(offset);
    first.into_iter().chain(partly(end).filter(|last| Some(*last) != first))
}

impl Object {
    /// What block `blkid` is, with its bytes, if a write can be merged into it: if blocks have `size` bytes,
    /// and it is no clone.
    pub(crate) fn beneath(
        &self,
        blkid: u64,
        size: u64,
    ) -> crate::Result<Option<(Was, Option<Abd>)>> {
        // Bytes of other kinds may have to be turned.
        let contents = matches!(self.dnode().kind, DmuType::PLAIN_FILE_CONTENTS | DmuType::ZVOL);
        if !contents || self.dnode().block_size != size {
            return Ok(None);
        }
        match self.overlay().and_then(|overlay| overlay.block(blkid)) {
            Some(Pending::Data(Payload::Plain(data))) => {
                return Ok(Some((Was::Quiesced(data.clone()), Some(data.clone()))));
            }
            Some(Pending::Data(Payload::Packed(_)) | Pending::Clone(_)) => return Ok(None),
            Some(Pending::Hole) => return Ok(Some((Was::Hole, None))),
            None => {}
        }
        let Some(tree) = self.visible_tree() else { return Ok(Some((Was::Hole, None))) };
        let bp = tree.pointer(0, blkid)?;
        if bp.is_hole() {
            return Ok(Some((Was::Hole, None)));
        }
        let block = tree.read_node(&Node { level: 0, blkid, bp })?;
        Ok(Some((Was::Stored(bp), Some(block.data))))
    }
}

impl OpenObject {
    /// Whether block `blkid`, which is not dirty in the open group, is still what it was.
    fn is_still(&self, place: &Place<'_>, blkid: u64, was: &Was) -> Result<bool> {
        Ok(match (self.pending.block(blkid), was) {
            (Some(Pending::Data(Payload::Plain(now))), Was::Quiesced(then)) => now.is_same(then),
            (Some(Pending::Hole), Was::Hole) => true,
            (Some(_), _) | (None, Was::Quiesced(_)) => false,
            (None, Was::Hole) => self.on_disk(place, blkid)?.is_hole(),
            (None, Was::Stored(then)) => self.on_disk(place, blkid)? == *then,
        })
    }

    /// Gets what a write needs of what is on disk: the blocks that it changes in part, and the indirect
    /// blocks, which the sync reads.
    pub(super) fn prepare_write(
        &mut self,
        place: &Place<'_>,
        offset: u64,
        chunk: &Chunk<'_>,
    ) -> Result<()> {
        let len = chunk.data().len();
        self.check_write(place, offset, len)?;
        let Some(last_byte) = (offset + len as u64).checked_sub(1).filter(|_| len > 0) else {
            return Ok(());
        };
        let size = self.phys().block_size;
        let (first, last) = (offset / size, last_byte / size);
        for blkid in edges(offset, len, size) {
            match chunk.edge(offset, size, blkid).filter(|_| !self.is_dirty_block(blkid)) {
                Some(edge) if self.is_still(place, blkid, &edge.was)? => {
                    self.check_end(place, blkid)?;
                    self.put(blkid, edge.block.clone().into());
                }
                _ => self.make_dirty(place, blkid)?,
            }
        }
        self.check_end(place, last)?;
        self.read_above(place, first, last)
    }

    /// Writes what was [prepared](OpenObject::prepare_write).
    pub(super) fn write(
        &mut self,
        place: &Place<'_>,
        offset: u64,
        chunk: &Chunk<'_>,
    ) -> Result<()> {
        let data = chunk.data();
        self.check_write(place, offset, data.len())?;
        let (size, mut at, mut rest) = (self.phys().block_size, offset, data);
        while !rest.is_empty() {
            let (blkid, skip) = (at / size, (at % size) as usize);
            let (now, later) = rest.split_at(rest.len().min(size as usize - skip));
            if now.len() as u64 == size {
                let block = chunk.block(offset, size, blkid);
                self.put(blkid, block.unwrap_or_else(|| Abd::copy_of(now)).into());
            } else if !self.has_merged(chunk.edge(offset, size, blkid)) {
                let range = skip..skip + now.len();
                self.part_mut(place, blkid, range)?.copy_from_slice(now);
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Whether a block is dirty as it was merged.
    fn has_merged(&self, edge: Option<&Edge>) -> bool {
        let same = |edge: &Edge| {
            let dirty = self.pending.top.dirty(edge.blkid).and_then(Payload::plain);
            dirty.is_some_and(|dirty| dirty.is_same(&edge.block))
        };
        edge.is_some_and(same)
    }

    /// Whether block `blkid` is dirty in the open group.
    fn is_dirty_block(&self, blkid: u64) -> bool {
        self.pending.top.is_dirty(blkid)
    }
}

impl OpenObjectSet {
    /// Whether block `blkid` of object `number` is dirty in the open group.
    pub(crate) fn is_dirty_block(&self, number: u64, blkid: u64) -> bool {
        self.unwritten.objects.get(&number).is_some_and(|object| object.is_dirty_block(blkid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whole_blocks_are_cut(offset in 0u64..5000, len in 0usize..5000, size in 1u64..900) {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let chunk = Chunk::new(offset, &data, size);
            for blkid in 0..12_000 / size {
                let start = blkid * size;
                let inside = start >= offset && start + size <= offset + len as u64;
                let wanted = inside.then(|| {
                    let at = (start - offset) as usize;
                    data[at..at + size as usize].to_vec()
                });
                let found = chunk.block(offset, size, blkid).map(|block| block.to_vec());
                prop_assert_eq!(found, wanted);
                prop_assert!(chunk.block(offset + 1, size, blkid).is_none());
                prop_assert!(chunk.block(offset, size + 1, blkid).is_none());
            }
            prop_assert!(Chunk::uncut(&data).block(0, size, 0).is_none());
            prop_assert!(Chunk::uncut(&data).partly().next().is_none());
        }

        #[test]
        fn edges_are_merged(offset in 0u64..5000, len in 0usize..5000, size in 1u64..900) {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut chunk = Chunk::new(offset, &data, size);
            let mut left: Vec<u64> = chunk.partly().collect();
            let old = Abd::from_vec(vec![0xaa; size as usize]);
            left.iter().for_each(|blkid| chunk.merge(*blkid, Was::Hole, Some(&old)));
            for blkid in 0..12_000 / size {
                let bytes = blkid * size..(blkid + 1) * size;
                let written = |at: &u64| (offset..offset + len as u64).contains(at);
                let some = bytes.clone().any(|at| written(&at));
                let edge = some && !bytes.clone().all(|at| written(&at));
                prop_assert_eq!(left.contains(&blkid), edge);
                left.retain(|left| *left != blkid);
                let wanted: Vec<u8> = bytes
                    .map(|at| if written(&at) { (at - offset) as u8 } else { 0xaa })
                    .collect();
                let found = chunk.edge(offset, size, blkid).map(|edge| edge.block.to_vec());
                prop_assert_eq!(found, edge.then_some(wanted));
                prop_assert!(chunk.edge(offset + 1, size, blkid).is_none());
            }
            prop_assert!(left.is_empty());
        }
    }
}
