//! What blocks take, as datasets are charged for them (`bp_get_dsize_sync`).

use super::Disk;
use cenote_dsl::PoolSpace;
use cenote_dsl::deadlist::Sizes;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_store::alloc::{Class, Group};
use cenote_vdev::VdevTree;

/// Bytes that a block counts for (`bp_get_dsize_sync`): what its copies take, on RAID-Z less the
/// share of parity that a block of 128 KiB has.
pub(crate) fn deflated(tree: &VdevTree, bp: &BlockPointer) -> u64 {
    let copies = bp.dvas().map(|dva| match tree.top(u64::from(dva.vdev)) {
        Some(top) => top.deflate(dva.asize),
        None => 0,
    });
    copies.sum()
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

/// The pool's size, as datasets are told.
pub(crate) fn pool_space(disk: &Disk) -> PoolSpace {
    let sum = |class: Class, of: &dyn Fn(&Group) -> u64| {
        let groups = disk.allocator.groups_of(class);
        let deflated =
            groups.iter().map(|g| disk.tree().top(g.vdev()).map_or(0, |top| top.deflate(of(g))));
        deflated.sum()
    };
    PoolSpace {
        normal: sum(Class::Normal, &|g| g.space()),
        nonallocating: sum(Class::Normal, &|g| if g.is_passive() { g.space() } else { g.dead() }),
        embedded_log: sum(Class::EmbeddedLog, &|g| g.space()),
        special_allocated: sum(Class::Special, &|g| g.allocated())
            + sum(Class::Dedup, &|g| g.allocated()),
        dedup_saved: disk.dedup.saved(),
        checkpoint: disk.allocator.kept(),
        ..PoolSpace::default()
    }
}
