//! One object in the sync of an object set (`dnode_sync`): its dnode as it becomes, its dirty blocks
//! (`dbuf_dirty_record_t`), and the indirect blocks above them.
//!
//! Invariants: every loaded indirect block's ancestors are loaded, too. A dirty block is the whole block. A pointer
//! that is set has its place in the dnode or in a loaded indirect block: else what it leads to would be lost.

use super::indirect::Indirect;
use super::levels::grown_levels;
use super::object::OpenObject;
use crate::blocks::Blocks;
use crate::clones::Clones;
use crate::overlay::Parts;
use crate::ranges::Ranges;
use crate::tree::Tree;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DnodePhys;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_store::Store;
use cenote_store::write::Payload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An object in the sync.
pub(super) struct Work {
    pub(super) number: u64,
    pub(super) phys: DnodePhys,
    pub(super) dirty: Blocks,
    /// Blocks that get pointers of blocks that are on disk.
    pub(super) cloned: Clones,
    pub(super) freed: Ranges,
    /// Blocks that get a new place whatever they hold.
    pub(super) forced: Ranges,
    pub(super) physical: Ranges,
    pub(super) spill: Option<Option<Payload>>,
    /// Levels that its tree has at least.
    pub(super) least_levels: u8,
    /// By level and number.
    pub(super) nodes: BTreeMap<(u8, u64), Indirect>,
}

/// Which block of which object: index of the work, level, number.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) work: usize,
    pub(super) level: u8,
    pub(super) blkid: u64,
}

impl Work {
    /// An object of which nothing will be written.
    pub(super) fn of(number: u64, phys: DnodePhys) -> Work {
        Work {
            number,
            phys,
            dirty: Blocks::None,
            cloned: Clones::default(),
            freed: Ranges::default(),
            forced: Ranges::default(),
            physical: Ranges::default(),
            spill: None,
            least_levels: 0,
            nodes: BTreeMap::new(),
        }
    }

    pub(super) fn new(objset: u64, number: u64, object: &OpenObject) -> Work {
        let phys = object.phys().clone();
        let ((blocks, bytes), size) = (object.pending.top.dirty_blocks(), phys.block_size);
        invariant!(
            blocks * size == bytes,
            "objset {objset} object {number}: {blocks} dirty blocks of {size} have {bytes} bytes"
        );
        let Parts { dirty, cloned, freed, forced, physical, spill } =
            object.pending.top.clone().into_parts();
        let (least_levels, nodes) = (object.least_levels(), BTreeMap::new());
        Work { number, phys, dirty, cloned, freed, forced, physical, spill, least_levels, nodes }
    }

    /// All of it is written, and its pointers are in the dnode.
    pub(super) fn check_written(&self, objset: u64) {
        let (number, nodes) = (self.number, self.nodes.len());
        let left = (self.dirty.len(), self.cloned.len(), self.spill.is_some());
        invariant!(
            nodes == 0 && left == (0, 0, false),
            "objset {objset} object {number}: {nodes} indirect blocks are left, and {left:?} others"
        );
    }

    pub(super) fn tree<'t>(&'t self, store: &'t Arc<Store>, objset: u64) -> Tree<'t> {
        Tree { store, objset, object: self.number, dnode: &self.phys, as_of: None }
    }

    pub(super) fn top(&self) -> u8 {
        self.phys.levels - 1
    }

    pub(super) fn fan(&self) -> u32 {
        u32::from(self.phys.indirect_shift).saturating_sub(7)
    }

    /// Blocks that are below block `blkid` of `level`.
    pub(super) fn below(&self, level: u8, blkid: u64) -> std::ops::Range<u64> {
        let shift = self.fan().saturating_mul(level.into());
        let scale = |n: u64| match shift {
            0..64 => u64::try_from(u128::from(n) << shift).unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        let start = if blkid == 0 { 0 } else { scale(blkid) };
        start..scale(blkid.saturating_add(1))
    }

    /// Takes what is in the dnode's pointers one or more levels down (`dnode_increase_indirection`).
    pub(super) fn grow(&mut self) {
        let old = self.phys.levels;
        let needed = grown_levels(&self.phys).max(self.least_levels);
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
    pub(super) fn pointer(&self, level: u8, blkid: u64) -> BlockPointer {
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

    pub(super) fn set_pointer(&mut self, level: u8, blkid: u64, bp: BlockPointer) {
        let number = self.number;
        if level == self.top() {
            let slot = self.phys.pointers.get_mut(blkid as usize);
            match slot {
                Some(slot) => *slot = bp,
                None => broken(format_args!("object {number}: no pointer {blkid} in the dnode")),
            }
            return;
        }
        let (parent, index) = self.parent(level, blkid);
        match self.nodes.get_mut(&parent) {
            Some(node) => node.set(index, &bp),
            None => broken(format_args!(
                "object {number}: nothing leads to block {blkid} of level {level}"
            )),
        }
    }

    /// The loaded pointers of `level` that are no holes.
    pub(super) fn stored(&self, level: u8) -> Vec<(u64, BlockPointer)> {
        let stored = |(_, bp): &(u64, BlockPointer)| !bp.is_hole();
        if level == self.top() {
            return (0..).zip(self.phys.pointers.iter().copied()).filter(stored).collect();
        }
        let fan = self.fan();
        let parents = self.nodes.range((level + 1, 0)..=(level + 1, u64::MAX));
        let all = parents.flat_map(|((_, id), node)| (id << fan..).zip(node.pointers()));
        all.filter(stored).collect()
    }

    /// Counts bytes that were born and killed. What is on disk may say that an object uses less than it does.
    pub(super) fn count(&mut self, born: u64, killed: u64) {
        let used = self.phys.used.saturating_add(born);
        self.phys.used = used.saturating_sub(killed);
    }
}
