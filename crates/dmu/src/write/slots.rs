//! Which slots of the meta dnode's blocks are in use (`dmu_object_alloc_dnsize`).
//!
//! A bitmap is kept for each block that was looked at, and for each size of dnodes the first block
//! that may have room. Blocks whose fill count says that they are full are not read.

use super::{Result, WriteError};
use crate::tree::{Node, Tree};
use ahash::HashMap;
use cenote_format::dmu::{DNODE_BLOCK, DNODE_SLOT, DmuType};

/// Slots in a block of dnodes.
pub(super) const PER_BLOCK: u64 = DNODE_BLOCK / DNODE_SLOT as u64;
/// Object numbers are below (`DN_MAX_OBJECT`).
const MAX_OBJECT: u64 = 1 << 48;
/// Offset in a dnode of `dn_extra_slots`.
const EXTRA_SLOTS_AT: usize = 12;

#[derive(Debug, Default)]
pub(super) struct Slots {
    used: HashMap<u64, u32>,
    /// By slots less one: blocks before have no room for so many.
    first: [u64; PER_BLOCK as usize],
}

/// The bits of `count` slots from `slot`; they are all in one block.
fn mask(slot: u64, count: u64) -> u32 {
    ((((1u64 << count) - 1) << slot) & u64::from(u32::MAX)) as u32
}

impl Slots {
    /// Takes `count` slots in a row, in the first block that has them. Returns the first's number.
    pub(super) fn take_any(&mut self, count: u64, meta: &Tree<'_>) -> Result<u64> {
        let index = count.saturating_sub(1) as usize;
        let mut block = self.first.get(index).copied().unwrap_or(0);
        while block < MAX_OBJECT / PER_BLOCK {
            let used = self.block(block, meta)?;
            let fits = |slot: &u64| used & mask(*slot, count) == 0;
            if let Some(slot) = (0..=PER_BLOCK.saturating_sub(count)).find(fits) {
                self.used.insert(block, used | mask(slot, count));
                self.first[index] = block;
                return Ok(block * PER_BLOCK + slot);
            }
            block += 1;
        }
        Err(WriteError::NoSlots)
    }

    /// Takes `count` slots from `number`. Whether they were free and are in one block.
    pub(super) fn take(&mut self, number: u64, count: u64, meta: &Tree<'_>) -> Result<bool> {
        let (block, slot) = (number / PER_BLOCK, number % PER_BLOCK);
        if number >= MAX_OBJECT || slot + count > PER_BLOCK {
            return Ok(false);
        }
        let used = self.block(block, meta)?;
        if used & mask(slot, count) != 0 {
            return Ok(false);
        }
        self.used.insert(block, used | mask(slot, count));
        Ok(true)
    }

    /// Gives back `count` slots from `number`.
    pub(super) fn give(&mut self, number: u64, count: u64) {
        let block = number / PER_BLOCK;
        if let Some(used) = self.used.get_mut(&block) {
            *used &= !mask(number % PER_BLOCK, count);
        }
        self.first.iter_mut().for_each(|first| *first = (*first).min(block));
    }

    /// Takes again what was given back and is still free: `count` slots from `number`.
    pub(super) fn retake(&mut self, number: u64, count: u64) {
        if let Some(used) = self.used.get_mut(&(number / PER_BLOCK)) {
            *used |= mask(number % PER_BLOCK, count);
        }
    }

    fn block(&mut self, block: u64, meta: &Tree<'_>) -> Result<u32> {
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
