//! Pointers of blocks to be cloned (`dmu_read_l0_bps`).
//!
//! # Idea
//!
//! A clone is a further pointer to a block that is on disk. Its source is looked at within the transaction
//! group in which the clone is made: a block that the source has on disk then, with nothing pending above
//! it, is freed in that group at the earliest. References are added in each group before anything is freed in
//! it, so the block stays.
//!
//! A clone that is pending can be cloned again: its block is on disk, and the group that writes the first
//! clone adds a reference too.
//!
//! # Invariants
//!
//! - No pointer that is returned is one of a block of a group that is not on disk. The intent log may name
//!   it: after a crash it is allocated.
//! - Every pointer but a hole is of data, not divided, and in no deduplication table. An encrypted one means something to
//!   data sets with the same key only (`dmu_objset_crypto_key_equal`), which the caller sees to.

use crate::overlay::Pending;
use crate::{Object, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use std::collections::BTreeMap;

/// Why blocks cannot be cloned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotClonable {
    /// One was changed, and that is not on disk yet (`EAGAIN` of `dmu_read_l0_bps`).
    Dirty,
    /// One is of a kind that is not cloned.
    Kind,
}

/// The pointers of some blocks; holes where there is nothing.
pub type ClonePointers = std::result::Result<Vec<BlockPointer>, NotClonable>;

/// Whether a data block is of a kind that is cloned (`dmu_read_l0_bps`).
pub fn is_clonable(bp: &BlockPointer) -> bool {
    if bp.is_hole() {
        return true;
    }
    let data = bp.level() == 0 && !DmuType(bp.object_type()).is_metadata();
    let whole = match bp.is_embedded() {
        // Reading redacted data fails, so a copy of it would have to fail as well.
        true => !bp.uses_crypt() && !bp.is_redacted(),
        false => !bp.is_dedup() && !bp.is_gang(),
    };
    // An embedded pointer may stand for something else than data.
    data && whole && (!bp.is_embedded() || bp.embedded_payload().is_ok())
}

impl Object {
    /// Pointers of `count` blocks from block `first` on, for a clone that is made in the group that is
    /// open while this is asked (`dmu_read_l0_bps`).
    ///
    /// Errors: an indirect block cannot be read.
    pub fn clone_pointers(&self, first: u64, count: u64) -> Result<ClonePointers> {
        let end = first.saturating_add(count);
        let on_disk = match self.visible_tree() {
            Some(tree) => tree.data_pointers(first, count)?,
            None => Vec::new(),
        };
        let on_disk: BTreeMap<u64, BlockPointer> =
            on_disk.into_iter().map(|node| (node.blkid, node.bp)).collect();
        let mut pointers = Vec::new();
        for blkid in first..end {
            let bp = match self.overlay().and_then(|overlay| overlay.block(blkid)) {
                Some(Pending::Data(_)) => return Ok(Err(NotClonable::Dirty)),
                Some(Pending::Clone(bp)) => *bp,
                Some(Pending::Hole) => BlockPointer::HOLE,
                None => on_disk.get(&blkid).copied().unwrap_or(BlockPointer::HOLE),
            };
            if !is_clonable(&bp) {
                return Ok(Err(NotClonable::Kind));
            }
            pointers.push(bp);
        }
        Ok(Ok(pointers))
    }
}
