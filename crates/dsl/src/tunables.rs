//! The tunables of this floor; see [`cenote_store::tunable`].

use cenote_store::declare_tunables;

declare_tunables! {
    SLOP_SHIFT "spa_slop_shift" Now Log2 5 (1, 31),
        "One part in two to the power of this is kept back: 128 MiB to 128 GiB of a pool";
    MAX_RECORDSIZE "zfs_max_recordsize" Now Bytes 16_777_216 (512, 16_777_216),
        "Largest value that the property recordsize can be given";
}
