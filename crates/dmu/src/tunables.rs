//! The tunables of this floor; see [`cenote_store::tunable`].

use cenote_store::declare_tunables;
use cenote_store::tunable::{ANY, SWITCH};

declare_tunables! {
    DMU_PREFETCH_MAX "dmu_prefetch_max" Now Bytes 67_108_864 ANY,
        "Most data that is read ahead at one request";
    ZAP_ITERATE_PREFETCH "zap_iterate_prefetch" Now Switch 1 SWITCH,
        "Whether a large directory is read ahead when a listing of it starts";
    ZAP_MICRO_MAX_SIZE "zap_micro_max_size" Now Bytes 131_072 (512, 1_048_576),
        "Largest block of a micro ZAP; one that needs more becomes a fat ZAP";
    MAX_DISTANCE "zfetch_max_distance" Now Bytes 16_777_216 ANY,
        "Most data that is read ahead of a sequential reader";
    MIN_DISTANCE "zfetch_min_distance" Now Bytes 524_288 ANY,
        "Data that is read ahead at first of a reader that seems to be sequential";
    BCLONE_ENABLED "zfs_bclone_enabled" Now Switch 1 SWITCH,
        "Whether copies that the kernel asks for clone blocks instead of writing them again";
    BCLONE_WAIT_DIRTY "zfs_bclone_wait_dirty" Now Switch 1 SWITCH,
        "Whether cloning waits for blocks that were changed and are not on disk; else they are copied";
    DELETE_BLOCKS "zfs_delete_blocks" Now Count 20_480 (1, 1 << 20),
        "Blocks of a file that one transaction frees; a file that has more is deleted in the background";
    DIO_ENABLED "zfs_dio_enabled" Now Switch 1 SWITCH,
        "Whether the property direct has an effect; else all reads and writes go through the ARC";
    DIO_STRICT "zfs_dio_strict" Now Switch 0 SWITCH,
        "Whether requests with O_DIRECT that are not aligned fail; else they go through the ARC";
    PREFETCH_DISABLE "zfs_prefetch_disable" Now Switch 0 SWITCH,
        "Whether nothing is read ahead of sequential readers";
    UNLINK_SUSPEND_PROGRESS "zfs_unlink_suspend_progress" Now Switch 0 SWITCH,
        "Whether files that lost their last name are kept in the unlinked set instead of being freed";
}
