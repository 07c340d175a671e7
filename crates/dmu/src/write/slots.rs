//! Which slots of the meta dnode's blocks are in use (`dmu_object_alloc_dnsize`).
//!
//! A bitmap is kept for each block that was looked at. For each size of dnodes there is a *frontier*: all
//! blocks before it had no room for one when they were looked at. It only moves on. Blocks before it that
//! got room again, because objects in them were freed, are in a list of their own and are tried first;
//! one that turns out to have no room leaves the list. So an allocation looks at few blocks however many
//! there are, and whatever was freed.
//!
//! Slots that are freed in a transaction group are not given out in it. An object that is known by its
//! number and the group that it was made in (`zp_gen`) must not become another one.
//!
//! Blocks whose fill count says that they are full are not read. A damaged block has no room. A block whose devices cannot be
//! read has no room for now: in each group some of these blocks are tried again. A block that is not in memory is left as it is:
//! the change reads it and runs again ([`cenote_store::held`]).

use super::{Result, WriteError};
use crate::Error;
use crate::tree::{Node, Tree};
use ahash::HashMap;
use cenote_format::dmu::{DNODE_BLOCK, DNODE_SLOT, DmuType};
use cenote_format::{invariant, less};
use cenote_store::BlockError;
use std::collections::{BTreeMap, BTreeSet};

/// Slots in a block of dnodes.
pub(super) const PER_BLOCK: u64 = DNODE_BLOCK / DNODE_SLOT as u64;
/// Object numbers are below (`DN_MAX_OBJECT`).
const MAX_OBJECT: u64 = 1 << 48;
/// Offset in a dnode of `dn_extra_slots`.
const EXTRA_SLOTS_AT: usize = 12;

/// Blocks that could not be read, and that are tried again in one transaction group at most.
const AGAIN: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Slots {
    used: HashMap<u64, u32>,
    /// By slots of a dnode, for sizes that were asked for.
    rooms: BTreeMap<u64, Room>,
    /// What was freed in this transaction group, by block.
    freed: BTreeMap<u64, u32>,
    /// Blocks that devices did not give.
    unread: BTreeSet<u64>,
    /// Where in `unread` the next group begins.
    next_unread: u64,
    /// Blocks that were looked at.
    #[cfg(test)]
    looks: u64,
}

/// Where there may be room for dnodes of one size.
#[derive(Debug, Default)]
struct Room {
    /// Blocks before have no free slots, but for the blocks in `again`.
    frontier: u64,
    again: BTreeSet<u64>,
}

/// The bits of `count` slots from `slot`; they are all in one block.
fn mask(slot: u64, count: u64) -> u32 {
    ((((1u64 << count) - 1) << slot) & u64::from(u32::MAX)) as u32
}

impl Slots {
    /// Takes `count` slots in a row, in the first block that has them. Returns the first's number.
    pub(super) fn take_any(&mut self, count: u64, meta: &Tree<'_>) -> Result<u64> {
        let mut room = self.rooms.remove(&count).unwrap_or_default();
        let taken = self.take_in(&mut room, count, meta);
        self.rooms.insert(count, room);
        taken
    }

    fn take_in(&mut self, room: &mut Room, count: u64, meta: &Tree<'_>) -> Result<u64> {
        while let Some(block) = room.again.first().copied() {
            if let Some(number) = self.take_within(block, count, meta)? {
                return Ok(number);
            }
            room.again.remove(&block);
        }
        while room.frontier < MAX_OBJECT / PER_BLOCK {
            if let Some(number) = self.take_within(room.frontier, count, meta)? {
                return Ok(number);
            }
            room.frontier += 1;
        }
        Err(WriteError::NoSlots)
    }

    /// Takes `count` slots in a row in a block, if it has them and can be read.
    ///
    /// Errors: the change has to read the block first.
    fn take_within(&mut self, block: u64, count: u64, meta: &Tree<'_>) -> Result<Option<u64>> {
        let used = match self.block(block, meta) {
            Ok(used) => used,
            Err(e @ WriteError::Read(Error::Block(BlockError::NotHeld { .. }))) => return Err(e),
            Err(e @ WriteError::Read(Error::Block(BlockError::Vdev { .. }))) => {
                if self.unread.insert(block) {
                    let objset = meta.objset;
                    tracing::warn!(
                        "objset {objset}: no object is made beside those of a block that cannot be read now: {e}"
                    );
                }
                return Ok(None);
            }
            Err(e) => {
                let objset = meta.objset;
                tracing::warn!("objset {objset}: no object is made beside damaged ones: {e}");
                self.used.insert(block, u32::MAX);
                u32::MAX
            }
        };
        let fits = |slot: &u64| used & mask(*slot, count) == 0;
        let last = less!(PER_BLOCK, count, "objset {}: slots of one block", meta.objset);
        let slot = (0..=last).find(fits);
        let Some(slot) = slot else { return Ok(None) };
        self.used.insert(block, used | mask(slot, count));
        Ok(Some(block * PER_BLOCK + slot))
    }

    /// Takes `count` slots from `number`, where a caller asks for this number: also if they were freed in this
    /// group. Which of them were; `None` if they are not free, or not in one block.
    pub(super) fn take(&mut self, number: u64, count: u64, meta: &Tree<'_>) -> Result<Option<u32>> {
        let (block, slot) = (number / PER_BLOCK, number % PER_BLOCK);
        if number >= MAX_OBJECT || slot + count > PER_BLOCK {
            return Ok(None);
        }
        let (wanted, freed) = (mask(slot, count), self.freed.get(&block).copied().unwrap_or(0));
        let used = self.block(block, meta)?;
        if used & !freed & wanted != 0 {
            return Ok(None);
        }
        self.used.insert(block, used | wanted);
        self.freed.insert(block, freed & !wanted);
        Ok(Some(freed & wanted))
    }

    /// Gives back `count` slots from `number`, for the next transaction group.
    pub(super) fn give(&mut self, number: u64, count: u64) {
        let (block, slot) = (number / PER_BLOCK, number % PER_BLOCK);
        let used = self.used.get(&block).copied();
        let (freed, slots) = (self.freed.entry(block).or_default(), mask(slot, count));
        invariant!(
            used.is_some_and(|used| used & slots == slots) && *freed & slots == 0,
            "object {number}: slots {slots:#x} are freed, of {used:x?} that are used, {freed:#x} freed"
        );
        *freed |= slots;
    }

    /// Undoes that slots were given back.
    pub(super) fn take_back(&mut self, number: u64, count: u64) {
        let (block, slot) = (number / PER_BLOCK, number % PER_BLOCK);
        let (freed, slots) = (self.freed.entry(block).or_default(), mask(slot, count));
        invariant!(
            *freed & slots == slots,
            "object {number}: slots {slots:#x} are taken back, of {freed:#x} that are freed"
        );
        *freed &= !slots;
    }

    /// Undoes that slots were taken. `freed`: the ones among them that this group had freed before, whose object may come back.
    pub(super) fn put_back(&mut self, number: u64, count: u64, freed: u32) {
        let (block, slot) = (number / PER_BLOCK, number % PER_BLOCK);
        let (used, slots) = (self.used.entry(block).or_default(), mask(slot, count));
        invariant!(*used & slots == slots, "object {number}: slots are put back that are free");
        *used &= !slots | freed;
        *self.freed.entry(block).or_default() |= freed;
        self.look_again(block);
    }

    fn look_again(&mut self, block: u64) {
        for room in self.rooms.values_mut().filter(|room| block < room.frontier) {
            room.again.insert(block);
        }
    }

    /// Another transaction group begins: what was freed can be taken.
    pub(super) fn next_group(&mut self) {
        for (block, freed) in std::mem::take(&mut self.freed) {
            let used = self.used.entry(block).or_default();
            invariant!(
                *used & freed == freed,
                "block of dnodes {block}: slots {freed:#x} were freed, of {used:#x} that are used"
            );
            *used &= !freed;
            self.look_again(block);
        }
        let next = self.next_unread;
        let in_turn = self.unread.range(next..).chain(self.unread.range(..next));
        for block in in_turn.copied().take(AGAIN).collect::<Vec<_>>() {
            self.look_again(block);
            self.next_unread = block + 1;
        }
    }

    fn block(&mut self, block: u64, meta: &Tree<'_>) -> Result<u32> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        if let Some(used) = self.used.get(&block) {
            return Ok(*used);
        }
        let bp = meta.pointer(0, block)?;
        let mut used = if bp.is_hole() {
            0
        } else if bp.fill() >= PER_BLOCK {
            u32::MAX
        } else {
            let read = meta.read_node(&Node { level: 0, blkid: block, bp })?;
            let starts = starts(&read.data.bytes());
            starts.into_iter().fold(0, |used, (slot, count)| used | mask(slot, count))
        };
        if block == 0 {
            // The meta dnode goes by number 0.
            used |= 1;
        }
        self.used.insert(block, used);
        self.unread.remove(&block);
        Ok(used)
    }
}

/// The dnodes in a block of dnodes: first slot and number of slots.
pub(super) fn starts(block: &[u8]) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    let mut slot = 0u64;
    while let Some(dnode) = block.get(slot as usize * DNODE_SLOT..)
        && dnode.len() >= DNODE_SLOT
    {
        let mut count = 1;
        if dnode.first() != Some(&DmuType::NONE.0) {
            count += u64::from(dnode.get(EXTRA_SLOTS_AT).copied().unwrap_or(0));
            out.push((slot, count.min(PER_BLOCK - slot.min(PER_BLOCK))));
        }
        slot += count;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::blkptr::BlockPointer;
    use cenote_format::dmu::DnodePhys;
    use cenote_format::nvlist::{NvList, NvValue};
    use cenote_store::Store;
    use cenote_vdev::VdevTree;

    /// A meta dnode without blocks.
    fn empty() -> DnodePhys {
        DnodePhys {
            kind: DmuType::DNODE,
            indirect_shift: 17,
            levels: 1,
            bonus_kind: DmuType::NONE,
            checksum: 0,
            compress: 0,
            flags: 0,
            block_size: DNODE_BLOCK,
            extra_slots: 0,
            max_block: 0,
            used: 0,
            pointers: vec![BlockPointer::HOLE],
            bonus: Vec::new(),
            rest: Vec::new(),
            spill: None,
        }
    }

    fn with_meta(f: impl FnOnce(&Tree<'_>)) {
        let mut root = NvList::default();
        root.set("type", NvValue::String("root".into()));
        root.set("id", NvValue::Uint64(0));
        root.set("guid", NvValue::Uint64(1));
        root.set("children", NvValue::NvListArray(Vec::new()));
        let tree = VdevTree::build(&root, &mut |_, _| None).unwrap();
        let (store, dnode) = (Store::new(tree, 1 << 20), empty());
        f(&Tree { store: &store, objset: 5, object: 0, dnode: &dnode, as_of: None });
    }

    #[test]
    fn an_allocation_looks_at_few_blocks_whatever_was_freed() {
        with_meta(|meta| {
            let mut slots = Slots::default();
            let taken: Vec<u64> = (0..100_000).map(|_| slots.take_any(1, meta).unwrap()).collect();
            slots.looks = 0;
            // One low number is freed in each group, and two are taken: one of them is beyond all.
            for number in taken.iter().take(1000) {
                slots.give(*number, 1);
                slots.next_group();
                assert_eq!(slots.take_any(1, meta).unwrap(), *number);
                assert!(slots.take_any(1, meta).unwrap() > 100_000);
            }
            assert!(slots.looks < 5000, "{}", slots.looks);
        });
    }

    #[test]
    fn what_was_freed_is_given_out_in_the_next_group() {
        with_meta(|meta| {
            let mut slots = Slots::default();
            let taken: Vec<u64> = (0..40).map(|_| slots.take_any(2, meta).unwrap()).collect();
            slots.give(taken[7], 2);
            let fresh: Vec<u64> = (0..40).map(|_| slots.take_any(2, meta).unwrap()).collect();
            assert!(!fresh.contains(&taken[7]));
            slots.next_group();
            assert_eq!(slots.take_any(2, meta).unwrap(), taken[7]);
            slots.give(taken[3], 2);
            assert_eq!(slots.take(taken[4], 2, meta).unwrap(), None);
            assert_eq!(slots.take(taken[3], 2, meta).unwrap(), Some(0b11 << 7), "asked for");
            slots.next_group();
            assert_eq!(slots.take(taken[3], 2, meta).unwrap(), None);
            // Too small for two.
            assert_eq!(slots.take_any(1, meta).unwrap(), 31);
        });
    }

    #[test]
    fn what_is_freed_and_taken_in_one_change_that_is_undone_is_not_given_out() {
        with_meta(|meta| {
            let mut slots = Slots::default();
            let object = slots.take_any(1, meta).unwrap();
            slots.next_group();
            slots.give(object, 1);
            let freed = slots.take(object, 2, meta).unwrap().unwrap();
            slots.put_back(object, 2, freed);
            // The object is gone in this group: only a caller that asks for its number gets it.
            assert_eq!(slots.take_any(1, meta).unwrap(), object + 1);
            slots.take_back(object, 1);
            // It is there again.
            assert_eq!(slots.take(object, 1, meta).unwrap(), None);
            slots.next_group();
            assert_eq!(slots.take_any(1, meta).unwrap(), object + 2);
        });
    }
}
