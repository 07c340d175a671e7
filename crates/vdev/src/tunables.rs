//! The tunables of this floor; see [`crate::tunable`].

use crate::declare_tunables;
use crate::tunable::SOME;

declare_tunables! {
    RECONSTRUCT_COMBINATIONS "zfs_reconstruct_indirect_combinations_max" Now Count 4096 SOME,
        "Most combinations of copies that are tried to put together a block of a removed vdev";
    AGGREGATION_LIMIT "zfs_vdev_aggregation_limit" Now Bytes 1_048_576 (0, 16_777_216),
        "Most bytes of neighbouring reads or writes that are done as one; 0: none are";
    READ_GAP_LIMIT "zfs_vdev_read_gap_limit" Now Bytes 32_768 (0, 16_777_216),
        "Most bytes between two reads that are read for nothing so that they are done as one";
}
