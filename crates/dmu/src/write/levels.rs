//! How many levels a tree of blocks has (`dnode_increase_indirection`).
//!
//! Invariant: a tree never gets fewer levels.

use cenote_format::dmu::DnodePhys;

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
