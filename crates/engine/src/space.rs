//! What blocks take, as datasets are charged for them (`bp_get_dsize_sync`).

use cenote_dsl::deadlist::Sizes;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_vdev::VdevTree;

/// Bytes that a block counts for (`bp_get_dsize_sync`): what its copies take, on RAID-Z less the
/// share of parity that a block of 128 KiB has.
pub(crate) fn deflated(tree: &VdevTree, bp: &BlockPointer) -> u64 {
    let copies = bp.dvas().map(|dva| match tree.top(u64::from(dva.vdev)) {
        Some(top) => top.deflate(dva.asize),
        None => 0,
    });
    copies.fold(0, u64::saturating_add)
}

/// The sizes that space accounting charges a dataset for a block.
pub(crate) fn sizes(tree: &VdevTree, bp: &BlockPointer) -> Sizes {
    let physical = if bp.is_embedded() { 0 } else { bp.psize() };
    let metadata = bp.level() > 0 || DmuType(bp.object_type()).is_metadata();
    Sizes {
        used: deflated(tree, bp),
        compressed: physical,
        // Metadata is charged by its physical size throughout.
        uncompressed: if metadata { physical } else { bp.lsize() },
    }
}
