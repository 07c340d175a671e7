//! The sync of an object set: the trees of blocks below all changed objects, level by level.
//!
//! Each changed object becomes a [`Work`]. For all of them at once:
//!
//! 1. *Grow*: if the last block's number needs more levels, the dnode's pointers move into a new
//!    indirect block, above which there may be further new ones.
//! 2. *Load*, from the top down: the indirect blocks above dirty blocks and above the ends of freed
//!    ranges, one batch of reads for each level. A pointer below which all is freed, and nothing is
//!    dirty, becomes a hole at once.
//! 3. *Kill* what is below those pointers, reading their indirect blocks in batches.
//! 4. *Write*, from the bottom up: one batch of all dirty data and spill blocks, then one for each
//!    level. An indirect block of holes is written as zeros, so that it becomes a hole.
//!
//! Then the dnodes are put into their blocks, which are the dirty blocks of the meta dnode: the
//! same again for this one object. Last comes the root block.
//!
//! Invariants: every loaded indirect block's ancestors are loaded, too; what takes a block's place
//! is in `born`, and the block in `killed`, exactly if they are not the same block on disk.

use super::indirect::Indirect;
use super::object::OpenObject;
use super::sink::{BlockSink, NewBlock};
use super::slots::{PER_BLOCK, starts};
use super::{ObjectChange, Objects, OpenObjectSet, Result, Synced, WriteError};
use crate::Error;
use crate::blocks::Blocks;
use crate::object::{Dnode, SPILL_BLKID};
use crate::objset::{GROUP_USED, META_DNODE, PROJECT_USED, USER_USED};
use crate::overlay::Parts;
use crate::ranges::Ranges;
use crate::tree::{Node, Tree};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::dmu::{
    DNODE_BLOCK, DNODE_FLAG_SPILL, DNODE_FLAG_USED_BYTES, DNODE_SLOT, DmuType, DnodePhys,
    ObjsetPhys,
};
use cenote_format::{ByteOrder, Bytes};
use cenote_store::{Block, Bookmark, Store};
use rayon::prelude::*;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// Bytes of a root block (`OBJSET_PHYS_SIZE_V3`).
const ROOT_SIZE: usize = 4096;
/// Indirect blocks that are worth another thread.
const PARALLEL: usize = 16;
/// Indirect blocks that are read at once for what is below them.
const KILL_BATCH: usize = 64;

/// Levels that a tree of `pointers` pointers needs for block number `last`, if an indirect block
/// holds 2^`fan` pointers.
pub(super) fn levels(last: u64, pointers: u64, fan: u32) -> u8 {
    let (mut levels, mut blocks) = (1u8, u128::from(pointers));
    while blocks <= u128::from(last) {
        blocks <<= fan.max(1);
        levels += 1;
    }
    levels
}

/// Levels that the tree below a dnode has when it is written: enough for its last block, which may be
/// a hole, and never fewer than before.
pub(super) fn grown_levels(phys: &DnodePhys) -> u8 {
    let fan = u32::from(phys.indirect_shift).saturating_sub(7);
    levels(phys.max_block, phys.pointers.len() as u64, fan).max(phys.levels)
}

/// An object in the sync.
struct Work {
    number: u64,
    phys: DnodePhys,
    dirty: Blocks,
    freed: Ranges,
    /// Blocks that get a new place whatever they hold.
    forced: Ranges,
    spill: Option<Option<Abd>>,
    /// By level and number.
    nodes: BTreeMap<(u8, u64), Indirect>,
}

/// Which block of which object: index of the work, level, number.
#[derive(Clone, Copy)]
struct At {
    work: usize,
    level: u8,
    blkid: u64,
}

/// A pointer below which everything is freed.
struct Doomed {
    at: At,
    bp: BlockPointer,
}

/// Whether two pointers mean the same block on disk.
fn same_block(a: &BlockPointer, b: &BlockPointer) -> bool {
    if a.is_embedded() || b.is_embedded() {
        return a == b;
    }
    a.0[..6] == b.0[..6] && a.logical_birth() == b.logical_birth()
}

impl Work {
    fn new(number: u64, object: &OpenObject) -> Work {
        let phys = object.phys().clone();
        let Parts { dirty, freed, forced, spill } = object.pending.top.clone().into_parts();
        Work { number, phys, dirty, freed, forced, spill, nodes: BTreeMap::new() }
    }

    fn tree<'t>(&'t self, store: &'t Arc<Store>, objset: u64) -> Tree<'t> {
        Tree { store, objset, object: self.number, dnode: &self.phys }
    }

    fn top(&self) -> u8 {
        self.phys.levels.saturating_sub(1)
    }

    fn fan(&self) -> u32 {
        u32::from(self.phys.indirect_shift).saturating_sub(7)
    }

    /// Blocks that are below block `blkid` of `level`.
    fn below(&self, level: u8, blkid: u64) -> std::ops::Range<u64> {
        let shift = self.fan().saturating_mul(level.into());
        let scale = |n: u64| match shift {
            0..64 => u64::try_from(u128::from(n) << shift).unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        let start = if blkid == 0 { 0 } else { scale(blkid) };
        start..scale(blkid.saturating_add(1))
    }

    /// Takes what is in the dnode's pointers one or more levels down.
    fn grow(&mut self) {
        let old = self.phys.levels;
        let needed = grown_levels(&self.phys);
        if needed <= old {
            return;
        }
        self.phys.levels = needed;
        if self.phys.pointers.iter().all(|bp| *bp == BlockPointer::HOLE) {
            return;
        }
        for level in old..needed {
            let mut node = Indirect::of(&BlockPointer::HOLE, 1 << self.fan());
            if level == old {
                self.phys.pointers.iter().enumerate().for_each(|(i, bp)| node.set(i, bp));
            }
            node.changed = true;
            self.nodes.insert((level, 0), node);
        }
        self.phys.pointers.fill(BlockPointer::HOLE);
    }

    /// The pointer to block `blkid` of `level`; a hole if what it would be in is not loaded.
    fn pointer(&self, level: u8, blkid: u64) -> BlockPointer {
        let found = if level == self.top() {
            self.phys.pointers.get(blkid as usize).copied()
        } else {
            let (parent, index) = self.parent(level, blkid);
            self.nodes.get(&parent).map(|node| node.get(index))
        };
        found.unwrap_or(BlockPointer::HOLE)
    }

    /// The indirect block that holds the pointer, and where.
    fn parent(&self, level: u8, blkid: u64) -> ((u8, u64), usize) {
        let fan = self.fan();
        ((level + 1, blkid >> fan), (blkid & ((1 << fan) - 1)) as usize)
    }

    fn set_pointer(&mut self, level: u8, blkid: u64, bp: BlockPointer) {
        if level == self.top() {
            if let Some(slot) = self.phys.pointers.get_mut(blkid as usize) {
                *slot = bp;
            }
            return;
        }
        let (parent, index) = self.parent(level, blkid);
        if let Some(node) = self.nodes.get_mut(&parent) {
            node.set(index, &bp);
        }
    }

    /// The loaded pointers of `level` that are no holes.
    fn stored(&self, level: u8) -> Vec<(u64, BlockPointer)> {
        let stored = |(_, bp): &(u64, BlockPointer)| !bp.is_hole();
        if level == self.top() {
            return (0..).zip(self.phys.pointers.iter().copied()).filter(stored).collect();
        }
        let fan = self.fan();
        let parents = self.nodes.range((level + 1, 0)..=(level + 1, u64::MAX));
        let all = parents.flat_map(|((_, id), node)| (id << fan..).zip(node.pointers()));
        all.filter(stored).collect()
    }

    /// Frees what the freed ranges cover among the pointers of `level`; the numbers of the blocks
    /// that must be loaded because part of what is below is freed or dirty.
    fn look(&mut self, index: usize, run: &mut Run<'_>, level: u8) -> Result<BTreeSet<u64>> {
        let shift = self.fan() * u32::from(level);
        let mut wanted = BTreeSet::new();
        if level > 0 {
            let above = |b: u64| b.checked_shr(shift).unwrap_or(0);
            wanted.extend(self.dirty.iter().map(|(blkid, _)| above(blkid)));
        }
        if self.freed.is_empty() {
            return Ok(wanted);
        }
        for (blkid, bp) in self.stored(level) {
            let below = self.below(level, blkid);
            let dirty = level > 0 && self.dirty.range(below.clone()).next().is_some();
            if self.freed.covers(&below) && !dirty {
                run.doomed.push(Doomed { at: At { work: index, level, blkid }, bp });
                let hole = run.hole(self.phys.kind, level, &bp)?;
                self.set_pointer(level, blkid, hole);
            } else if level > 0 && self.freed.touches(&below) {
                wanted.insert(blkid);
            }
        }
        Ok(wanted)
    }

    fn count(&mut self, run: &Run<'_>, born: u64, killed: &BlockPointer) {
        let used = self.phys.used.saturating_add(born);
        self.phys.used = used.saturating_sub(run.sink.space(killed));
    }
}

/// A sync under way.
struct Run<'a> {
    store: Arc<Store>,
    objset: u64,
    txg: u64,
    sink: &'a dyn BlockSink,
    doomed: Vec<Doomed>,
    born: Vec<BlockPointer>,
    killed: Vec<BlockPointer>,
}

impl Run<'_> {
    /// The hole that takes the place of `bp`.
    fn hole(&self, kind: DmuType, level: u8, bp: &BlockPointer) -> Result<BlockPointer> {
        if !self.sink.hole_birth() {
            return Ok(BlockPointer::HOLE);
        }
        Ok(BlockPointer::hole(kind, level, bp.lsize(), self.txg)?)
    }

    /// Syncs the blocks of `works`; their dnodes are up to date then.
    fn run(&mut self, works: &mut [Work]) -> Result<()> {
        works.iter_mut().for_each(Work::grow);
        let top = works.iter().map(Work::top).max().unwrap_or(0);
        for level in (0..=top).rev() {
            self.load(works, level)?;
        }
        self.kill(works)?;
        self.write_data(works)?;
        for level in 1..=top {
            self.write_indirect(works, level)?;
        }
        works.iter_mut().for_each(|w| w.phys.flags |= DNODE_FLAG_USED_BYTES);
        Ok(())
    }

    fn load(&mut self, works: &mut [Work], level: u8) -> Result<()> {
        let mut reads = Vec::new();
        for (index, work) in works.iter_mut().enumerate() {
            if work.top() < level {
                continue;
            }
            for blkid in work.look(index, self, level)? {
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
        let blocks = self.read(works, &reads)?;
        let (store, objset, all) = (&self.store, self.objset, &*works);
        let copy = |((At { work, .. }, _), block): (&(At, BlockPointer), &Block)| {
            Some(Indirect::read(&all.get(*work)?.tree(store, objset), block))
        };
        let pairs = reads.par_iter().zip(&blocks).with_min_len(PARALLEL);
        let copies: Vec<Option<Result<Indirect>>> = pairs.map(copy).collect();
        for ((at, _), node) in reads.into_iter().zip(copies) {
            if let (Some(work), Some(node)) = (works.get_mut(at.work), node) {
                work.nodes.insert((level, at.blkid), node?);
            }
        }
        Ok(())
    }

    /// Reads indirect blocks.
    fn read(&self, works: &[Work], reads: &[(At, BlockPointer)]) -> Result<Vec<Block>> {
        let mut wanted = Vec::with_capacity(reads.len());
        for (At { work, level, blkid }, bp) in reads {
            let Some(work) = works.get(*work) else { continue };
            let tree = work.tree(&self.store, self.objset);
            tree.check_node(&Node { level: *level, blkid: *blkid, bp: *bp })?;
            wanted.push((*bp, tree.bookmark(*level, *blkid)));
        }
        let blocks = self.store.read_many(&wanted).into_iter();
        Ok(blocks.collect::<std::result::Result<Vec<_>, _>>()?)
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
                let Some(work) = works.get_mut(at.work) else { continue };
                work.count(self, 0, &bp);
                self.killed.push(bp);
                if at.level == 0 {
                    continue;
                }
                if bp.dva(0).is_some_and(|dva| !seen.insert(dva)) {
                    let why = format!("block {} of level {} is linked twice", at.blkid, at.level);
                    return Err(work.tree(&self.store, self.objset).corrupt(why).into());
                }
                reads.push((at, bp));
            }
            let blocks = self.read(works, &reads)?;
            for ((at, bp), block) in reads.into_iter().zip(blocks) {
                let Some(work) = works.get(at.work) else { continue };
                let tree = work.tree(&self.store, self.objset);
                let node = Node { level: at.level, blkid: at.blkid, bp };
                stack.extend(
                    tree.children(&node, &block)?.into_iter().map(|n| Doomed {
                        at: At { level: n.level, blkid: n.blkid, ..at },
                        bp: n.bp,
                    }),
                );
            }
        }
        Ok(())
    }

    /// Writes a batch and takes note of what was born and what it replaced.
    fn write(&mut self, blocks: Vec<NewBlock>) -> Result<Vec<(BlockPointer, BlockPointer)>> {
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
                self.born.extend(Some(new).filter(|bp| !bp.is_hole()));
                self.killed.extend(Some(old).filter(|bp| !bp.is_hole()));
            }
            out.push((new, old));
        }
        Ok(out)
    }

    fn new_block(&self, work: &Work, at: At, data: Abd, fill: u64) -> NewBlock {
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
        }
    }

    fn write_data(&mut self, works: &mut [Work]) -> Result<()> {
        let (mut blocks, mut places) = (Vec::new(), Vec::new());
        for (index, work) in works.iter_mut().enumerate() {
            for (blkid, data) in std::mem::take(&mut work.dirty) {
                let at = At { work: index, level: 0, blkid };
                let fill = match work.phys.kind {
                    DmuType::DNODE => starts(&data.bytes()).len() as u64,
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
                    work.count(self, 0, &old);
                    work.phys.spill = None;
                    work.phys.flags &= !DNODE_FLAG_SPILL;
                }
                None => {}
            }
        }
        self.place(works, blocks, &places)
    }

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
            let work = works.get(at.work)?;
            Some(self.new_block(work, *at, Abd::from_vec(data), fill))
        };
        let blocks = filled.into_iter().zip(&places).filter_map(block).collect();
        self.place(works, blocks, &places)
    }

    /// Writes blocks and puts the new pointers where they belong.
    fn place(&mut self, works: &mut [Work], blocks: Vec<NewBlock>, places: &[At]) -> Result<()> {
        for ((new, old), at) in self.write(blocks)?.into_iter().zip(places) {
            let Some(work) = works.get_mut(at.work) else { continue };
            work.count(self, self.sink.space(&new), &old);
            if at.level == 0 && at.blkid == SPILL_BLKID {
                work.phys.spill = Some(new);
                work.phys.flags |= DNODE_FLAG_SPILL;
            } else {
                work.set_pointer(at.level, at.blkid, new);
            }
        }
        Ok(())
    }

    /// Kills everything below dnodes that are gone.
    fn destroy(&mut self, gone: &BTreeMap<u64, Arc<Dnode>>) -> Result<()> {
        let work = |(number, dnode): (&u64, &Arc<Dnode>)| Work {
            number: *number,
            phys: dnode.phys.clone(),
            dirty: Blocks::None,
            freed: Ranges::default(),
            forced: Ranges::default(),
            spill: None,
            nodes: BTreeMap::new(),
        };
        let mut works: Vec<Work> = gone.iter().map(work).collect();
        for (index, work) in works.iter().enumerate() {
            let spill = work.phys.spill.filter(|bp| !bp.is_hole());
            self.killed.extend(spill);
            for (blkid, bp) in work.stored(work.top()) {
                self.doomed.push(Doomed { at: At { work: index, level: work.top(), blkid }, bp });
            }
        }
        self.kill(&mut works)
    }
}

impl OpenObjectSet {
    /// Writes all changes as transaction group `txg` and goes on from there. Nothing is written if
    /// there are no changes.
    ///
    /// Errors: blocks that cannot be read or written. The object set is of no use then, and what
    /// was written is not referred to by anything. While part of it is frozen, it cannot be synced.
    pub fn sync(&mut self, txg: u64, sink: &dyn BlockSink) -> Result<Synced> {
        self.usable()?;
        if self.frozen.is_some() {
            let why = "part of the object set is frozen".into();
            return Err(WriteError::Invalid { object: META_DNODE, why });
        }
        self.settle();
        let dirty = self.is_dirty();
        self.failed = true;
        let objects = std::mem::take(&mut self.objects);
        let gone: BTreeMap<u64, Arc<Dnode>> = std::mem::take(&mut self.doomed)
            .into_iter()
            .filter_map(|(number, dnode)| Some((number, dnode?)))
            .collect();
        let mut changed = changes(&objects, &gone);
        let mut works = Vec::with_capacity(objects.values().filter(|o| o.changed).count());
        for (number, object) in objects.into_iter().filter(|(_, object)| object.changed) {
            works.push(Work::new(number, &object));
        }
        let (store, objset) = (self.base.store().clone(), self.base.id());
        let (doomed, born, killed) = Default::default();
        let mut run = Run { store, objset, txg, sink, doomed, born, killed };
        if dirty {
            run.destroy(&gone)?;
            run.run(&mut works)?;
            self.set_dnodes(&mut works, &mut changed);
            let mut meta = [self.meta_work(&gone, &works)?];
            run.run(&mut meta)?;
            let [meta] = meta;
            self.phys.meta_dnode = meta.phys;
            self.write_root(&mut run)?;
        }
        self.failed = false;
        let (root, phys) = (*self.base.root_bp(), self.phys.clone());
        Ok(Synced { root, phys, born: run.born, killed: run.killed, changed })
    }

    /// Takes note of the dnodes that were written; those of accounting objects are in the root
    /// block, and not in `works` any more.
    fn set_dnodes(&mut self, works: &mut Vec<Work>, changed: &mut [ObjectChange]) {
        for change in changed.iter() {
            self.written.insert(change.object, None);
        }
        for work in works.iter_mut() {
            if work.number < PROJECT_USED {
                work.phys.flags |= self.accounted;
            }
            let (number, phys, order) = (work.number, work.phys.clone(), ByteOrder::Little);
            self.written.insert(number, Some(Arc::new(Dnode { number, phys, order })));
        }
        for change in changed {
            let written = self.written.get(&change.object).and_then(Option::as_ref);
            change.after = written.map(|dnode| dnode.phys.clone());
        }
        let special = works.split_off(works.partition_point(|w| w.number < PROJECT_USED));
        for Work { number, phys, .. } in special {
            match number {
                USER_USED => self.phys.user_used = Some(phys),
                GROUP_USED => self.phys.group_used = Some(phys),
                _ => self.phys.project_used = Some(phys),
            }
        }
    }

    /// The meta dnode with the blocks that hold dnodes that changed or are gone.
    fn meta_work(&self, gone: &BTreeMap<u64, Arc<Dnode>>, works: &[Work]) -> Result<Work> {
        let mut dirty: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let zeros = gone.iter().map(|(n, d)| (*n, vec![0; d.phys.slots() as usize * DNODE_SLOT]));
        for (number, bytes) in zeros {
            self.put_dnode(&mut dirty, number, &bytes)?;
        }
        for work in works {
            self.put_dnode(&mut dirty, work.number, &work.phys.encode()?)?;
        }
        let mut phys = self.phys.meta_dnode.clone();
        let last = dirty.last_key_value().map_or(0, |(blkid, _)| *blkid);
        phys.max_block = phys.max_block.max(last);
        let dirty = dirty.into_iter().map(|(n, block)| (n, Abd::from_vec(block))).collect();
        let (freed, forced, spill, nodes) = Default::default();
        Ok(Work { number: META_DNODE, phys, dirty, freed, forced, spill, nodes })
    }

    fn put_dnode(
        &self,
        dirty: &mut BTreeMap<u64, Vec<u8>>,
        number: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let (blkid, at) = (number / PER_BLOCK, (number % PER_BLOCK) as usize * DNODE_SLOT);
        let block = match dirty.entry(blkid) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(match self.meta_tree().block(blkid)? {
                Some(block) if block.order != ByteOrder::Little => {
                    return Err(WriteError::ByteOrder(number));
                }
                Some(block) => block.data.to_vec(),
                None => vec![0; DNODE_BLOCK as usize],
            }),
        };
        let Some(slot) = block.get_mut(at..at + bytes.len()) else {
            let why = "dnode beyond its block".into();
            return Err(Error::Corrupt { objset: self.base.id(), object: number, why }.into());
        };
        slot.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes the root block and goes on from it.
    fn write_root(&mut self, run: &mut Run<'_>) -> Result<()> {
        let pointers = &self.phys.meta_dnode.pointers;
        let stored = pointers.iter().filter(|bp| !bp.is_hole());
        let data = self.phys.encode(ROOT_SIZE)?;
        // As who reads it will see it.
        let phys = ObjsetPhys::decode(&Bytes::new(&data, ByteOrder::Little, "object set"))?;
        let block = NewBlock {
            data: Abd::from_vec(data),
            at: Bookmark::root(self.base.id()),
            kind: DmuType::OBJSET,
            level: 0,
            checksum: 0,
            compress: 0,
            fill: stored.map(BlockPointer::fill).fold(0, u64::saturating_add),
            previous: *self.base.root_bp(),
            forced: false,
        };
        let written = run.write(vec![block])?;
        let root = written.first().map(|(new, _)| *new).filter(|bp| !bp.is_hole());
        let root = root.ok_or_else(|| WriteError::Sink("the root block became a hole".into()))?;
        self.go_on_from(root, phys);
        Ok(())
    }
}

/// What is going to change, with the dnodes that there were.
fn changes(objects: &Objects, gone: &BTreeMap<u64, Arc<Dnode>>) -> Vec<ObjectChange> {
    let mut before: BTreeMap<u64, Option<&Arc<Dnode>>> =
        gone.iter().map(|(number, dnode)| (*number, Some(dnode))).collect();
    for (number, object) in objects.range(..PROJECT_USED).filter(|(_, object)| object.changed) {
        before.entry(*number).or_insert_with(|| object.disk());
    }
    let phys = |dnode: &Arc<Dnode>| dnode.phys.clone();
    let change = |(object, before): (u64, Option<&Arc<Dnode>>)| ObjectChange {
        object,
        before: before.map(phys),
        after: None,
    };
    before.into_iter().map(change).collect()
}
