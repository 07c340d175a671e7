//! The tunables that importing a pool reads. `cenote-engine` lists the tunables of all floors.

use cenote_store::declare_tunables;
pub use cenote_store::tunable::{ANY, Tunable};

declare_tunables! {
    EREPORTS "zfs_checksum_events_per_second" Now Count 20 (0, 1_000_000),
        "Most events of wrong bytes, and of failed requests, that are listed in a second (zpool events)";
    MAX_MISSING_TVDS "zfs_max_missing_tvds" Now Count 0 (0, 1 << 16),
        "Most top-level vdevs that may be missing where a pool is imported read-only: what is there can be saved then";
    MULTIHOST_IMPORT_INTERVALS "zfs_multihost_import_intervals" Now Count 20 (1, 10_000),
        "Intervals for which a pool that another host may have in use is watched before import";
    MULTIHOST_INTERVAL "zfs_multihost_interval" Now Milliseconds 1000 (100, 1_000_000),
        "Interval between heartbeats of multihost=on on a device; of another host, too, that does not say its own";
    SLOW_IO_EVENTS "zfs_slow_io_events_per_second" Now Count 20 (0, 1_000_000),
        "Most events of slow requests (zio_slow_io_ms) of a vdev that are listed in a second (zpool events)";
    ZEVENT_LEN_MAX "zfs_zevent_len_max" Now Count 512 (1, 1 << 20),
        "Most events that are kept (zpool events)";
}
