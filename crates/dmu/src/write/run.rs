//! The blocks of all changed objects, written level by level (`dbuf_sync_list`, `dbuf_write`).
//!
//! For all objects at once:
//!
//! 1. *Grow*: if the last block's number needs more levels, the dnode's pointers move into a new
//!    indirect block, above which there may be further new ones (`dnode_increase_indirection`).
//! 2. *Load*, from the top down: the indirect blocks above dirty blocks and above the ends of freed
//!    ranges, one batch of reads for each level. A pointer below which all is freed, and nothing is
//!    dirty, becomes a hole at once.
//! 3. *Kill* what is below those pointers, reading their indirect blocks in batches
//!    (`dnode_sync_free_range`, `free_children`). What is below one that cannot be read is not found: it
//!    stays allocated, and is leaked.
//! 4. *Write*, from the bottom up: one batch of all dirty data and spill blocks, then one for each
//!    level. Cloned blocks are not written: they get their pointers. An
//!    indirect block of holes is written as zeros, so that it becomes a hole.
//!
//! Invariants: what takes a block's place is in `born`, and the block in `killed`, exactly if they are
//! not the same block on disk. What is born is born in the group that is written. A dirty block is the whole block.

use super::indirect::Indirect;
use super::sink::{BlockSink, NewBlock};
use super::slots::starts;
use super::work::{At, Work};
use super::{Result, WriteError};
use crate::Error;
use crate::dnode::Dnode;
use crate::object::SPILL_BLKID;
use crate::objset::META_DNODE;
use crate::tree::Node;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::compress::{Compression, is_zero};
use cenote_format::crypt::Seal;
use cenote_format::dmu::{DNODE_FLAG_SPILL, DNODE_FLAG_USED_BYTES, DmuType, DnodePhys};
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_store::keys::LoadedKey;
use cenote_store::write::{Packed, Payload};
use cenote_store::{Block, Bookmark, Store};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Indirect blocks that are worth another thread.
const PARALLEL: usize = 16;
/// Indirect blocks that are read at once for what is below them.
const KILL_BATCH: usize = 64;

/// A pointer below which everything is freed.
pub(super) struct Doomed {
    at: At,
    bp: BlockPointer,
}

/// Whether two pointers mean the same block on disk.
fn same_block(a: &BlockPointer, b: &BlockPointer) -> bool {
    if a.is_embedded() || b.is_embedded() {
        return a == b;
    }
    // What is written again in its place is encrypted in another way.
    let words = if a.is_encrypted() && b.is_encrypted() { 4 } else { 6 };
    a.0[..words] == b.0[..words] && a.birth() == b.birth()
}

/// A sync under way.
pub(super) struct Run<'a> {
    pub(super) store: Arc<Store>,
    pub(super) objset: u64,
    pub(super) txg: u64,
    pub(super) sink: &'a dyn BlockSink,
    /// The key that protects the blocks.
    pub(super) key: Option<Arc<LoadedKey>>,
    /// Blocks come protected, in a raw stream.
    pub(super) raw: bool,
    /// How blocks of dnodes are protected that it changed.
    pub(super) seals: BTreeMap<u64, Seal>,
    pub(super) doomed: Vec<Doomed>,
    pub(super) born: Vec<BlockPointer>,
    pub(super) killed: Vec<BlockPointer>,
    /// See [`super::Synced::cloned`].
    pub(super) cloned: Vec<BlockPointer>,
    /// Objects with an indirect block that could not be read when what is below it was freed.
    pub(super) damaged: BTreeSet<u64>,
    /// See [`super::Synced::leaked`].
    pub(super) leaked: u64,
}

impl Run<'_> {
    /// The hole that takes the place of `bp`.
    pub(super) fn hole(&self, kind: DmuType, level: u8, bp: &BlockPointer) -> Result<BlockPointer> {
        if !self.sink.hole_birth() {
            return Ok(BlockPointer::HOLE);
        }
        Ok(BlockPointer::hole(kind, level, bp.lsize(), self.txg)?)
    }

    /// Syncs the blocks of `works`; their dnodes are up to date then.
    pub(super) fn run(&mut self, works: &mut [Work]) -> Result<()> {
        works.iter_mut().for_each(Work::grow);
        let top = works.iter().map(Work::top).max().unwrap_or(0);
        for level in (0..=top).rev() {
            self.load(works, level)?;
        }
        self.kill(works)?;
        self.write_data(works)?;
        self.place_clones(works);
        for level in 1..=top {
            self.write_indirect(works, level)?;
        }
        works.iter().for_each(|work| work.check_written(self.objset));
        works.iter_mut().for_each(|w| w.phys.flags |= DNODE_FLAG_USED_BYTES);
        Ok(())
    }

    /// Frees what the freed ranges cover among the pointers of `level`; the numbers of the blocks
    /// that must be loaded because part of what is below is freed or dirty.
    fn look(&mut self, work: &mut Work, index: usize, level: u8) -> Result<BTreeSet<u64>> {
        let shift = work.fan() * u32::from(level);
        let mut wanted = BTreeSet::new();
        if level > 0 {
            let above = |b: u64| b.checked_shr(shift).unwrap_or(0);
            wanted.extend(work.dirty.iter().map(|(blkid, _)| above(blkid)));
            wanted.extend(work.cloned.range(0..u64::MAX).map(|(blkid, _)| above(blkid)));
        }
        if work.freed.is_empty() {
            return Ok(wanted);
        }
        for (blkid, bp) in work.stored(level) {
            let below = work.below(level, blkid);
            let written = work.dirty.range(below.clone()).next().is_some();
            let dirty = level > 0 && (written || work.cloned.any_in(below.clone()));
            if work.freed.covers(&below) && !dirty {
                self.doomed.push(Doomed { at: At { work: index, level, blkid }, bp });
                let hole = self.hole(work.phys.kind, level, &bp)?;
                work.set_pointer(level, blkid, hole);
            } else if level > 0 && work.freed.touches(&below) {
                wanted.insert(blkid);
            }
        }
        Ok(wanted)
    }

    fn load(&mut self, works: &mut [Work], level: u8) -> Result<()> {
        let mut reads = Vec::new();
        for (index, work) in works.iter_mut().enumerate() {
            if work.top() < level {
                continue;
            }
            for blkid in self.look(work, index, level)? {
                if work.nodes.contains_key(&(level, blkid)) {
                    continue;
                }
                let bp = work.pointer(level, blkid);
                if !bp.is_hole() {
                    reads.push((At { work: index, level, blkid }, bp));
                    continue;
                }
                // What is below a hole is as old as the hole.
                let child = match bp.logical_birth() {
                    0 => BlockPointer::HOLE,
                    birth => {
                        let size = match level {
                            1 => work.phys.block_size,
                            _ => 1 << work.phys.indirect_shift,
                        };
                        BlockPointer::hole(work.phys.kind, level - 1, size, birth)?
                    }
                };
                work.nodes.insert((level, blkid), Indirect::of(&child, 1 << work.fan()));
            }
        }
        let blocks = self.read(works, &reads).into_iter().collect::<Result<Vec<_>>>()?;
        let (store, objset, all) = (&self.store, self.objset, &*works);
        let copy = |((At { work, .. }, _), block): (&(At, BlockPointer), &Block)| {
            Indirect::read(&all[*work].tree(store, objset), block)
        };
        let pairs = reads.par_iter().zip(&blocks).with_min_len(PARALLEL);
        let copies: Vec<Result<Indirect>> = pairs.map(copy).collect();
        for ((at, _), node) in reads.into_iter().zip(copies) {
            works[at.work].nodes.insert((level, at.blkid), node?);
        }
        Ok(())
    }

    /// Reads indirect blocks.
    fn read(&self, works: &[Work], reads: &[(At, BlockPointer)]) -> Vec<Result<Block>> {
        let mut wanted = Vec::with_capacity(reads.len());
        let mut checked = Vec::with_capacity(reads.len());
        for (At { work, level, blkid }, bp) in reads {
            let tree = works[*work].tree(&self.store, self.objset);
            let sound = tree.check_node(&Node { level: *level, blkid: *blkid, bp: *bp });
            if sound.is_ok() {
                wanted.push((*bp, tree.bookmark(*level, *blkid)));
            }
            checked.push(sound);
        }
        let mut blocks = self.store.read_many(&wanted).into_iter();
        let block = |sound: std::result::Result<(), Error>| {
            sound?;
            match blocks.next() {
                Some(block) => Ok(block?),
                None => broken(format_args!("objset {}: a block was not read", self.objset)),
            }
        };
        checked.into_iter().map(block).collect()
    }

    /// Kills the doomed pointers and all below them: depth first, so that memory is bounded.
    fn kill(&mut self, works: &mut [Work]) -> Result<()> {
        let mut seen: HashSet<Dva> = HashSet::new();
        let mut stack = std::mem::take(&mut self.doomed);
        while !stack.is_empty() {
            let mut reads = Vec::new();
            while reads.len() < KILL_BATCH
                && let Some(Doomed { at, bp }) = stack.pop()
            {
                let work = &mut works[at.work];
                if at.level > 0 && bp.dva(0).is_some_and(|dva| !seen.insert(dva)) {
                    let why = format!("block {} of level {} is linked twice", at.blkid, at.level);
                    let twice = work.tree(&self.store, self.objset).corrupt(why);
                    self.lose(work.number, &twice);
                    continue;
                }
                work.count(0, self.sink.space(&bp));
                self.killed.push(bp);
                if at.level > 0 {
                    reads.push((at, bp));
                }
            }
            let blocks = self.read(works, &reads);
            for ((at, bp), block) in reads.into_iter().zip(blocks) {
                let work = &works[at.work];
                let tree = work.tree(&self.store, self.objset);
                let node = Node { level: at.level, blkid: at.blkid, bp };
                match block.and_then(|block| Ok(tree.children(&node, &block)?)) {
                    Ok(children) => stack.extend(children.into_iter().map(|n| Doomed {
                        at: At { level: n.level, blkid: n.blkid, ..at },
                        bp: n.bp,
                    })),
                    Err(e) => self.lose(work.number, &e),
                }
            }
        }
        Ok(())
    }

    /// What is below an indirect block of `object` cannot be found, and stays allocated.
    fn lose(&mut self, object: u64, why: &dyn std::fmt::Display) {
        tracing::warn!("objset {} object {object}: blocks are leaked: {why}", self.objset);
        self.damaged.insert(object);
    }

    /// Writes a batch and takes note of what was born and what it replaced (`dbuf_write_done`).
    pub(super) fn write(
        &mut self,
        blocks: Vec<NewBlock>,
    ) -> Result<Vec<(BlockPointer, BlockPointer)>> {
        let previous: Vec<_> = blocks.iter().map(|b| b.previous).collect();
        let written = match blocks.is_empty() {
            true => Vec::new(),
            false => self.sink.write_blocks(self.txg, blocks),
        };
        if written.len() != previous.len() {
            let why = format!("{} of {} blocks were written", written.len(), previous.len());
            return Err(WriteError::Sink(why.into()));
        }
        let mut out = Vec::with_capacity(written.len());
        for (new, old) in written.into_iter().zip(previous) {
            let new = new?;
            if !same_block(&new, &old) {
                let (objset, txg, birth) = (self.objset, self.txg, new.birth());
                invariant!(
                    new.is_hole() || birth == txg,
                    "objset {objset}: group {txg} is given a block that was born in {birth}: {new:?}"
                );
                self.born.extend(Some(new).filter(|bp| !bp.is_hole()));
                self.killed.extend(Some(old).filter(|bp| !bp.is_hole()));
            }
            out.push((new, old));
        }
        Ok(out)
    }

    /// A block of dnodes of a raw stream with its seal (`dbuf_prepare_encrypted_dnode_leaf`): the one that came, or that it
    /// has on disk.
    fn sealed(&self, work: &Work, at: At, data: Payload) -> Payload {
        let is_dnodes = self.raw && at.level == 0 && work.number == META_DNODE;
        let Some(plain) = data.plain().filter(|_| is_dnodes) else { return data };
        if plain.chunks().all(is_zero) {
            return data;
        }
        let there = || Some(work.pointer(0, at.blkid)).filter(BlockPointer::uses_crypt);
        let came = self.seals.get(&at.blkid).copied();
        match came.or_else(|| there().map(|bp| Seal::of(&bp))) {
            // Without one it is not written.
            None => data,
            seal => Payload::Packed(Packed {
                data: plain.clone(),
                compression: Compression::Off,
                lsize: plain.len(),
                seal,
            }),
        }
    }

    fn new_block(&self, work: &Work, at: At, data: Payload, fill: u64) -> NewBlock {
        let data = self.sealed(work, at, data);
        let (objset, object) = (self.objset, work.number);
        NewBlock {
            data,
            at: Bookmark { objset, object, level: at.level.into(), blkid: at.blkid },
            kind: work.phys.kind,
            level: at.level,
            checksum: work.phys.checksum,
            compress: work.phys.compress,
            fill,
            previous: work.pointer(at.level, at.blkid),
            forced: at.level == 0 && work.forced.contains(at.blkid),
            keeps_birth: at.level == 0 && work.physical.contains(at.blkid),
            key: self.key.clone(),
            raw: self.raw,
        }
    }

    /// Writes the dirty data blocks of all objects (`dbuf_sync_leaf`).
    fn write_data(&mut self, works: &mut [Work]) -> Result<()> {
        let (mut blocks, mut places) = (Vec::new(), Vec::new());
        for (index, work) in works.iter_mut().enumerate() {
            for (blkid, data) in std::mem::take(&mut work.dirty) {
                let (objset, number) = (self.objset, work.number);
                let (len, DnodePhys { block_size: size, max_block: last, .. }) =
                    (data.len(), &work.phys);
                invariant!(
                    len as u64 == *size && blkid <= *last,
                    "objset {objset} object {number}: block {blkid} of {last} has {len} bytes of {size}"
                );
                let at = At { work: index, level: 0, blkid };
                let fill = match data.plain() {
                    Some(data) if work.phys.kind == DmuType::DNODE => {
                        starts(&data.bytes()).len() as u64
                    }
                    _ => 1,
                };
                blocks.push(self.new_block(work, at, data, fill));
                places.push(at);
            }
            let old = work.phys.spill.unwrap_or(BlockPointer::HOLE);
            match work.spill.take() {
                Some(Some(data)) => {
                    let at = At { work: index, level: 0, blkid: SPILL_BLKID };
                    let block = self.new_block(work, at, data, 1);
                    // It goes by the type of what it continues.
                    let kind = work.phys.bonus_kind;
                    blocks.push(NewBlock { kind, previous: old, ..block });
                    places.push(at);
                }
                Some(None) => {
                    self.killed.extend(Some(old).filter(|bp| !bp.is_hole()));
                    work.count(0, self.sink.space(&old));
                    work.phys.spill = None;
                    work.phys.flags &= !DNODE_FLAG_SPILL;
                }
                None => {}
            }
        }
        self.place(works, blocks, &places)
    }

    /// Gives cloned blocks the pointers of what they are clones of, with the births that these have here.
    fn place_clones(&mut self, works: &mut [Work]) {
        for work in works {
            for (blkid, bp) in std::mem::take(&mut work.cloned).range(0..u64::MAX) {
                let (objset, number) = (self.objset, work.number);
                invariant!(
                    bp.is_hole() || bp.uses_crypt() == self.key.is_some(),
                    "objset {objset} object {number}: block {blkid} is a clone of one that is protected otherwise"
                );
                let (old, new) = (work.pointer(0, blkid), bp.cloned(self.txg));
                self.born.push(new);
                self.killed.extend(Some(old).filter(|bp| !bp.is_hole()));
                self.cloned.extend(Some(new).filter(|bp| !bp.is_embedded()));
                work.count(self.sink.space(&new), self.sink.space(&old));
                work.set_pointer(0, blkid, new);
            }
        }
    }

    /// Writes the indirect blocks of a level that lead to what was written or freed (`dbuf_sync_indirect`).
    fn write_indirect(&mut self, works: &mut [Work], level: u8) -> Result<()> {
        let (mut nodes, mut places) = (Vec::new(), Vec::new());
        for (index, work) in works.iter_mut().enumerate() {
            // What is above refers to these by the pointers that they get now.
            let above = work.nodes.split_off(&(level + 1, 0));
            for ((_, blkid), node) in std::mem::replace(&mut work.nodes, above) {
                if node.changed {
                    nodes.push(node);
                    places.push(At { work: index, level, blkid });
                }
            }
        }
        let nodes = nodes.into_par_iter().with_min_len(PARALLEL);
        let filled: Vec<(Vec<u8>, u64)> = nodes.map(Indirect::into_block).collect();
        let block = |((data, fill), at): ((Vec<u8>, u64), &At)| {
            self.new_block(&works[at.work], *at, Abd::from_vec(data).into(), fill)
        };
        let blocks = filled.into_iter().zip(&places).map(block).collect();
        self.place(works, blocks, &places)
    }

    /// Writes blocks and puts the new pointers where they belong (`dbuf_write_ready`).
    fn place(&mut self, works: &mut [Work], blocks: Vec<NewBlock>, places: &[At]) -> Result<()> {
        let (objset, asked, places_of) = (self.objset, blocks.len(), places.len());
        invariant!(asked == places_of, "objset {objset}: {asked} blocks for {places_of} places");
        for ((new, old), at) in self.write(blocks)?.into_iter().zip(places) {
            let work = &mut works[at.work];
            work.count(self.sink.space(&new), self.sink.space(&old));
            if at.level == 0 && at.blkid == SPILL_BLKID {
                work.phys.spill = Some(new);
                work.phys.flags |= DNODE_FLAG_SPILL;
            } else {
                work.set_pointer(at.level, at.blkid, new);
            }
        }
        Ok(())
    }

    /// Kills everything below dnodes that are gone (`dnode_sync_free`).
    pub(super) fn destroy(&mut self, gone: &BTreeMap<u64, Arc<Dnode>>) -> Result<()> {
        let work = |(number, dnode): (&u64, &Arc<Dnode>)| Work::of(*number, dnode.phys.clone());
        let mut works: Vec<Work> = gone.iter().map(work).collect();
        for (index, work) in works.iter_mut().enumerate() {
            if let Some(spill) = work.phys.spill.filter(|bp| !bp.is_hole()) {
                work.count(0, self.sink.space(&spill));
                self.killed.push(spill);
            }
            for (blkid, bp) in work.stored(work.top()) {
                self.doomed.push(Doomed { at: At { work: index, level: work.top(), blkid }, bp });
            }
        }
        self.kill(&mut works)?;
        // What an object still uses when all of it that was found is gone.
        let left = works.iter().filter(|work| self.damaged.contains(&work.number));
        self.leaked = left.fold(0, |sum, work| sum.saturating_add(work.phys.used));
        Ok(())
    }
}
