//! The tunables of this floor; see [`crate::tunable`].

use crate::declare_tunables;
use crate::tunable::SOME;

/// Requests of a device.
const REQUESTS: (u64, u64) = (1, 1 << 20);

// The rows `fuse_*` are read by the crate `fuse`, which lies above the one that lists all tables.
declare_tunables! {
    FUSE_POLL "fuse_poll_ns" Now Nanoseconds 50_000 (0, 50_000),
        "Longest look for the next request of a mount before the thread that waits for it sleeps; 0: none";
    FUSE_WATCHDOG "fuse_watchdog_ns" Now Nanoseconds 1_000_000 (100_000, 1_000_000_000),
        "Time after which another thread waits for requests if the one that does is still serving one";
    OBJECT_AHEAD "object_ahead_bytes" NextOpen Bytes 134_217_728 (0, 1 << 40),
        "Most data that is read ahead of a sequential reader from an object store, where latency and bandwidth take more than zfetch_max_distance; 0: no more than of devices";
    OBJECT_BUDGET "object_budget_ms" NextOpen Milliseconds 120_000 (100, 86_400_000),
        "How long a request to an object store is tried again before the pool is suspended";
    OBJECT_BYTES "object_bytes" NextOpen Bytes 4_194_304 (65_536, 67_108_864),
        "Bytes of blocks in an object of an object store, at most";
    OBJECT_DEADLINE "object_deadline_ms" NextOpen Milliseconds 30_000 (100, 3_600_000),
        "How long one try of a request to an object store may take; uploads have a second more for each MiB";
    OBJECT_GRACE "object_grace" NextOpen Seconds 1200 (0, 31_536_000),
        "How long an object is kept that nothing needs any more: longer than a request may be under way";
    OBJECT_LIVE_PERCENT "object_live_percent" NextOpen Percent 50 (1, 100),
        "An object of which less is allocated is written anew without the rest";
    ANSWER "vdev_answer_ms" Now Milliseconds 180_000 (100, 3_600_000),
        "How long a device may take to be opened and to show its labels; then commands go on without it";
    SIMULATED_BANDWIDTH "vdev_simulated_bandwidth" NextOpen Bytes 0 (0, 1 << 40),
        "Bytes a second that pass to and from each device, to see what a slower one would do; 0: all";
    SIMULATED_LATENCY "vdev_simulated_latency" NextOpen Nanoseconds 0 (0, 10_000_000_000),
        "What each operation of a device takes besides, to see what a slower one would do";
    SIMULATED_SPREAD "vdev_simulated_latency_spread" NextOpen Nanoseconds 0 (0, 10_000_000_000),
        "What it takes at most beyond vdev_simulated_latency; how much is drawn for each operation";
    SIMULATED_PARALLEL "vdev_simulated_parallel" NextOpen Count 0 (0, 1 << 16),
        "Most operations that a device does at once, to see what a slower one would do; 0: all";
    RECONSTRUCT_COMBINATIONS "zfs_reconstruct_indirect_combinations_max" Now Count 4096 SOME,
        "Most combinations of copies that are tried to put together a block of a removed vdev";
    AGGREGATION_LIMIT "zfs_vdev_aggregation_limit" Now Bytes 1_048_576 (0, 16_777_216),
        "Most bytes of neighbouring reads or writes that are done as one; 0: none are";
    ASYNC_READ_MAX_ACTIVE "zfs_vdev_async_read_max_active" Now Count 3 REQUESTS,
        "Most reads ahead that a device has at once";
    ASYNC_READ_MIN_ACTIVE "zfs_vdev_async_read_min_active" Now Count 1 REQUESTS,
        "Least reads ahead that a device has at once, where it has the most that it may have";
    ASYNC_WRITE_ACTIVE_MAX_DIRTY_PERCENT "zfs_vdev_async_write_active_max_dirty_percent" Now Percent 60 (0, 100),
        "Where more than this part of what may be dirty is, a device has the most writes of a transaction group";
    ASYNC_WRITE_ACTIVE_MIN_DIRTY_PERCENT "zfs_vdev_async_write_active_min_dirty_percent" Now Percent 30 (0, 100),
        "Where less than this part of what may be dirty is, a device has the least writes of a transaction group";
    ASYNC_WRITE_MAX_ACTIVE "zfs_vdev_async_write_max_active" Now Count 10 REQUESTS,
        "Most writes of a transaction group that a device has at once";
    ASYNC_WRITE_MIN_ACTIVE "zfs_vdev_async_write_min_active" Now Count 2 REQUESTS,
        "Least writes of a transaction group that a device has at once, where it has the most that it may have";
    INITIALIZING_MAX_ACTIVE "zfs_vdev_initializing_max_active" Now Count 1 REQUESTS,
        "Most writes of zpool initialize that a device has at once";
    INITIALIZING_MIN_ACTIVE "zfs_vdev_initializing_min_active" Now Count 1 REQUESTS,
        "Least writes of zpool initialize that a device has at once, where it has the most that it may have";
    MAX_ACTIVE "zfs_vdev_max_active" Now Count 1000 REQUESTS,
        "Most requests of all classes that a device has at once";
    READ_GAP_LIMIT "zfs_vdev_read_gap_limit" Now Bytes 32_768 (0, 16_777_216),
        "Most bytes between two reads that are read for nothing so that they are done as one";
    REBUILD_MAX_ACTIVE "zfs_vdev_rebuild_max_active" Now Count 3 REQUESTS,
        "Most reads and writes of a sequential rebuild that a device has at once";
    REBUILD_MIN_ACTIVE "zfs_vdev_rebuild_min_active" Now Count 1 REQUESTS,
        "Least reads and writes of a sequential rebuild that a device has at once, where it has the most that it may have";
    REMOVAL_MAX_ACTIVE "zfs_vdev_removal_max_active" Now Count 2 REQUESTS,
        "Most reads and writes of a removal that a device has at once";
    REMOVAL_MIN_ACTIVE "zfs_vdev_removal_min_active" Now Count 1 REQUESTS,
        "Least reads and writes of a removal that a device has at once, where it has the most that it may have";
    REPLAY_MAX_ACTIVE "zfs_vdev_replay_read_max_active" Now Count 128 REQUESTS,
        "Most reads ahead of the replay of intent logs that a device has at once";
    REPLAY_MIN_ACTIVE "zfs_vdev_replay_read_min_active" Now Count 1 REQUESTS,
        "Least reads ahead of the replay of intent logs that a device has at once, where it has the most that it may have";
    SCRUB_MAX_ACTIVE "zfs_vdev_scrub_max_active" Now Count 3 REQUESTS,
        "Most reads and writes of a scrub or resilver that a device has at once";
    SCRUB_MIN_ACTIVE "zfs_vdev_scrub_min_active" Now Count 1 REQUESTS,
        "Least reads and writes of a scrub or resilver that a device has at once, where it has the most that it may have";
    SYNC_READ_MAX_ACTIVE "zfs_vdev_sync_read_max_active" Now Count 10 REQUESTS,
        "Most reads that somebody waits for that a device has at once";
    SYNC_READ_MIN_ACTIVE "zfs_vdev_sync_read_min_active" Now Count 10 REQUESTS,
        "Least reads that somebody waits for that a device has at once, where it has the most that it may have";
    SYNC_WRITE_MAX_ACTIVE "zfs_vdev_sync_write_max_active" Now Count 10 REQUESTS,
        "Most writes that somebody waits for that a device has at once";
    SYNC_WRITE_MIN_ACTIVE "zfs_vdev_sync_write_min_active" Now Count 10 REQUESTS,
        "Least writes that somebody waits for that a device has at once, where it has the most that it may have";
    TRIM_MAX_ACTIVE "zfs_vdev_trim_max_active" Now Count 2 REQUESTS,
        "Most requests to trim that a device has at once";
    TRIM_MIN_ACTIVE "zfs_vdev_trim_min_active" Now Count 1 REQUESTS,
        "Least requests to trim that a device has at once, where it has the most that it may have";
    SLOW_IO_MS "zio_slow_io_ms" Now Milliseconds 30_000 (0, 86_400_000),
        "What an operation of a device takes at least to be counted as slow (zpool status -s); 0: none is counted";
}
