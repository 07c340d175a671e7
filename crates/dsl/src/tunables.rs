//! The tunables of this floor; see [`cenote_store::tunable`].

use cenote_store::declare_tunables;
use cenote_store::tunable::{ANY, SWITCH};

declare_tunables! {
    SLOP_SHIFT "spa_slop_shift" Now Log2 5 (1, 31),
        "One part in two to the power of this is kept back: 128 MiB to 128 GiB of a pool";
    FREE_LEAK_ON_EIO "zfs_free_leak_on_eio" Now Switch 0 SWITCH,
        "Whether what is below unreadable metadata of destroyed datasets is leaked, rather than kept to be freed";
    FREE_MIN_TIME_MS "zfs_free_min_time_ms" Now Milliseconds 1000 (1, 1_000_000),
        "Time that a transaction group spends on freeing what was destroyed";
    LIVELIST_CONDENSE_NEW_ALLOC "zfs_livelist_condense_new_alloc" Now Count 0 (0, u64::MAX),
        "Entries that livelists got while they were condensed, so far: counted by the engine";
    LIVELIST_CONDENSE_SYNC_CANCEL "zfs_livelist_condense_sync_cancel" Now Count 0 (0, u64::MAX),
        "Condensed parts of livelists that were given up in syncing context, so far: counted by the engine";
    LIVELIST_CONDENSE_SYNC_PAUSE "zfs_livelist_condense_sync_pause" Now Switch 0 SWITCH,
        "Whether condensing of a livelist pauses before what was read is handed to syncing context";
    LIVELIST_CONDENSE_ZTHR_CANCEL "zfs_livelist_condense_zthr_cancel" Now Count 0 (0, u64::MAX),
        "Condensings of livelists that were cancelled before syncing context, so far: counted by the engine";
    LIVELIST_CONDENSE_ZTHR_PAUSE "zfs_livelist_condense_zthr_pause" Now Switch 0 SWITCH,
        "Whether condensing of a livelist pauses before anything is read";
    LIVELIST_MAX_ENTRIES "zfs_livelist_max_entries" Now Count 500_000 (1, u64::MAX),
        "Blocks in a part of a livelist after which the next transaction group starts a new one";
    LIVELIST_MIN_PERCENT_SHARED "zfs_livelist_min_percent_shared" Now Percent 75 (0, 100),
        "Share of a clone that it has in common with its origin, at or below which its livelist is given up";
    MAX_DATASET_NESTING "zfs_max_dataset_nesting" Now Count 50 (1, 255),
        "Levels that names of new datasets may have";
    MAX_RECORDSIZE "zfs_max_recordsize" Now Bytes 16_777_216 (512, 16_777_216),
        "Largest value that the property recordsize can be given";
    OVERRIDE_ESTIMATE_RECORDSIZE "zfs_override_estimate_recordsize" Now Bytes 0 ANY,
        "Record size that estimates of streams go by, in place of the property; 0: the property";
    XATTR_COMPAT "zfs_xattr_compat" Now Switch 0 SWITCH,
        "Whether extended attributes of users are stored without `user.` in front, as other systems do";
    REPLAY_GATHER "zil_replay_gather" Now Count 256 (1, 65_536),
        "Most writes of an intent log that are replayed as one change";
    REPLAY_KEEP "zil_replay_keep_max_bytes" Now Bytes 268_435_456 ANY,
        "Most bytes of intent logs that are kept in memory from the check at import until they are replayed";
    PRIME_REPLAY "zil_replay_prime" Now Switch 1 SWITCH,
        "Whether what the replay of an intent log is going to read is read ahead of it, in parallel";
    PRIME_MEMORY "zil_replay_prime_max_bytes" Now Bytes 268_435_456 (1_048_576, 1 << 40),
        "Most bytes of blocks that are read ahead of the replay of an intent log";
    PRIME_THREADS "zil_replay_prime_threads" Now Count 128 (1, 1024),
        "Most reads at once ahead of the replay of an intent log";
    REPLAY_THREADS "zil_replay_threads" Now Count 8 (1, 1024),
        "Most intent logs that are read, claimed and replayed at once";
}
