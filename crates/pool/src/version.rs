//! Versions of pools (`SPA_VERSION_*`).
//!
//! Before feature flags a pool had a number, in its config and its uberblocks, that says what it may have: 1 to 28.
//! A pool with feature flags has 5000. Every pool is read. A pool from [`OLDEST_WRITABLE`] on is written as it is: what its
//! version lacks is not written.
//!
//! | what a version brought | since |
//! |---|---|
//! | space of RAID-Z counted without parity, dnodes that count bytes, sums in lists of block pointers | 3 |
//! | history | 4 |
//! | `$ORIGIN`, lists of the clones of a snapshot, scrubs in the MOS | 11 |
//! | object sets that count by owners, and have room for that | 15 |
//! | log blocks that begin with their header | 23 |
//! | system attributes | 24 |
//! | deadlists by birth, `$FREE`, lists of the clones of a directory | 26 |
//! | snapshots that leave intent logs alone | 27 |
//! | devices that are replaced while they are being replaced | 28 |

/// The version that means "see the feature flags" (`SPA_VERSION_FEATURES`).
pub const FEATURES: u64 = 5000;
/// The last version before feature flags (`SPA_VERSION_BEFORE_FEATURES`).
pub const BEFORE_FEATURES: u64 = 28;
/// Scans that are kept in the MOS as they are today (`SPA_VERSION_SCAN`).
pub const SCANS: u64 = 25;
/// Deadlists by birth, `$FREE` and lists of the clones of a directory (`SPA_VERSION_DEADLISTS`, `SPA_VERSION_DIR_CLONES`).
pub const DEADLISTS: u64 = 26;
/// Log blocks that begin with their header (`SPA_VERSION_SLIM_ZIL`).
pub const SLIM_LOGS: u64 = 23;
/// Object sets that count what owners use (`SPA_VERSION_USERSPACE`).
pub const OWNERS: u64 = 15;
/// `$ORIGIN`, and lists of the clones of a snapshot (`SPA_VERSION_ORIGIN`, `SPA_VERSION_NEXT_CLONES`).
pub const ORIGIN: u64 = 11;
/// Hot spares and double parity.
pub const SPARES: u64 = 3;
/// Devices for intent logs.
pub const LOG_DEVICES: u64 = 7;
/// Permissions of users (`SPA_VERSION_DELEGATED_PERMS`).
pub const PERMISSIONS: u64 = 8;
/// Cache devices (`SPA_VERSION_L2CACHE`).
pub const CACHE_DEVICES: u64 = 10;
/// Properties of snapshots (`SPA_VERSION_SNAP_PROPS`).
pub const SNAPSHOT_PROPERTIES: u64 = 12;
/// Triple parity (`SPA_VERSION_RAIDZ3`).
pub const TRIPLE_PARITY: u64 = 17;
/// Holds, and snapshots that are destroyed later (`SPA_VERSION_USERREFS`).
pub const HOLDS: u64 = 18;
/// Log devices that leave (`SPA_VERSION_HOLES`).
pub const HOLES: u64 = 19;
/// Values that came with a stream apart from those that are set (`SPA_VERSION_RECVD_PROPS`).
pub const RECEIVED_PROPERTIES: u64 = 22;
/// The oldest version that is written: in those before lists of block pointers have no sums, dnodes count sectors, and space of
/// RAID-Z counts its parity.
pub const OLDEST_WRITABLE: u64 = 3;

/// What each version brought, from version 1 on, as `zpool upgrade -v` says it.
pub const LEGACY: [&str; BEFORE_FEATURES as usize] = [
    "Initial ZFS version",
    "Ditto blocks (replicated metadata)",
    "Hot spares and double parity RAID-Z",
    "zpool history",
    "Compression using the gzip algorithm",
    "bootfs pool property",
    "Separate intent log devices",
    "Delegated administration",
    "refquota and refreservation properties",
    "Cache devices",
    "Improved scrub performance",
    "Snapshot properties",
    "snapused property",
    "passthrough-x aclinherit",
    "user/group space accounting",
    "stmf property support",
    "Triple-parity RAID-Z",
    "Snapshot user holds",
    "Log device removal",
    "Compression using zle (zero-length encoding)",
    "Deduplication",
    "Received properties",
    "Slim ZIL",
    "System attributes",
    "Improved scrub stats",
    "Improved snapshot deletion performance",
    "Improved snapshot creation performance",
    "Multiple vdev replacements",
];

/// The newest version of file systems that a pool of this version can have (`zfs_zpl_version_map`).
pub fn newest_of_files(version: u64) -> u64 {
    match version {
        24.. => 5,
        15..24 => 4,
        9..15 => 3,
        _ => 2,
    }
}

/// The version that a pool needs for file systems of this version (`zfs_spa_version_map`).
pub fn needed_for_files(version: u64) -> u64 {
    (1..=BEFORE_FEATURES).find(|pool| newest_of_files(*pool) >= version).unwrap_or(FEATURES)
}

/// Whether there is such a version (`SPA_VERSION_IS_SUPPORTED`).
pub fn is_supported(version: u64) -> bool {
    version == FEATURES || (1..=BEFORE_FEATURES).contains(&version)
}
