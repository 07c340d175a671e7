//! The engine's tunables: this floor's, and the union of all floors'.
//!
//! Under OpenZFS's names and of the process as OpenZFS's are of the module; see [`Tunable`]. Each floor
//! declares those that it reads; [`all`] lists them, [`find`] finds one by its name, and [`near`] says
//! which tunable an unknown name may have meant.

use cenote_store::declare_tunables;
use std::sync::OnceLock;

pub(crate) use cenote_store::memory::usable_memory;
pub use cenote_store::tunable::{ANY, Counts, Refused, SOME, SWITCH, Tunable, Unit};

declare_tunables! {
    RAIDZ_EXPAND_MAX_COPY_BYTES "raidz_expand_max_copy_bytes" Now Bytes 33_554_432 (65_536, 167_772_160),
        "Most bytes that a transaction group moves while RAID-Z is expanded";
    RAIDZ_EXPAND_MAX_REFLOW_BYTES "raidz_expand_max_reflow_bytes" Now Bytes 0 ANY,
        "Bytes after which an expansion of RAID-Z stays where it is; 0: never";
    SPA_NOTE_TXG_TIME "spa_note_txg_time" Now Seconds 600 ANY,
        "How often it is noted when a transaction group was written, for scrubs of what dates tell";
    FILE_LOGICAL_ASHIFT "vdev_file_logical_ashift" Now Log2 9 (9, 16),
        "Logical sector size that files have when they become devices of a pool";
    FILE_PHYSICAL_ASHIFT "vdev_file_physical_ashift" Now Log2 9 (9, 16),
        "Physical sector size that files have when they become devices of a pool";
    ADMIN_SNAPSHOT "zfs_admin_snapshot" Now Switch 0 SWITCH,
        "Whether directories that are made, removed or renamed in .zfs/snapshot are snapshots that are";
    ASYNC_BLOCK_MAX_BLOCKS "zfs_async_block_max_blocks" Now Count 100_000 SOME,
        "Most blocks of destroyed datasets that are freed in one transaction group";
    COMMIT_TIMEOUT_PCT "zfs_commit_timeout_pct" Now Percent 10 (0, 100),
        "Share of what a commit takes for which it waits at most for threads that were served with the last one";
    CONDENSE_INDIRECT_OBSOLETE_PCT "zfs_condense_indirect_obsolete_pct" Now Percent 25 (0, 100),
        "Share of a removed vdev's mapping from which on, when it is obsolete, the mapping is made shorter";
    CONDENSE_INDIRECT_VDEVS_ENABLE "zfs_condense_indirect_vdevs_enable" Now Switch 1 SWITCH,
        "Whether mappings of removed vdevs are made shorter";
    CONDENSE_MAX_OBSOLETE_BYTES "zfs_condense_max_obsolete_bytes" Now Bytes 1_073_741_824 SOME,
        "Bytes of an obsolete space map from which on the mapping of its removed vdev is made shorter";
    CONDENSE_MIN_MAPPING_BYTES "zfs_condense_min_mapping_bytes" Now Bytes 131_072 ANY,
        "Bytes of a mapping of a removed vdev up to which a share that is obsolete does not count";
    DDT_DATA_IS_SPECIAL "zfs_ddt_data_is_special" Now Switch 1 SWITCH,
        "Whether deduplication tables go to special vdevs, where there are no vdevs for them alone";
    DDT_PRUNES_PER_TXG "zfs_ddt_prunes_per_txg" Now Count 50_000 SOME,
        "Entries of deduplication tables that zpool ddtprune takes out in a transaction group";
    DEDUP_LOG_CAP "zfs_dedup_log_cap" Now Count 4_294_967_295 SOME,
        "Entries in the logs of a deduplication table beyond which more is flushed";
    DEDUP_LOG_FLUSH_ENTRIES_MAX "zfs_dedup_log_flush_entries_max" Now Count 4_294_967_295 SOME,
        "Most entries of a deduplication table's log that a transaction group flushes";
    DEDUP_LOG_FLUSH_ENTRIES_MIN "zfs_dedup_log_flush_entries_min" Now Count 200 ANY,
        "Least entries of a deduplication table's log that a transaction group flushes";
    DEDUP_LOG_FLUSH_FLOW_RATE_TXGS "zfs_dedup_log_flush_flow_rate_txgs" Now Count 10 SOME,
        "Transaction groups over which the rates of a deduplication table's log are averaged";
    DEDUP_LOG_FLUSH_MIN_TIME_MS "zfs_dedup_log_flush_min_time_ms" Now Milliseconds 1000 ANY,
        "How long a transaction group flushes a deduplication table's log at least, if there is so much";
    DEDUP_LOG_FLUSH_TXGS "zfs_dedup_log_flush_txgs" Now Count 100 SOME,
        "Transaction groups in which all of a deduplication table's log is flushed";
    DEDUP_LOG_HARD_CAP "zfs_dedup_log_hard_cap" Now Switch 0 SWITCH,
        "Whether what is beyond zfs_dedup_log_cap is flushed however long it takes";
    DEDUP_LOG_MEM_MAX "zfs_dedup_log_mem_max" Now Bytes 0 ANY,
        "Memory for the logs of a deduplication table; 0: zfs_dedup_log_mem_max_percent says how much";
    DEDUP_LOG_MEM_MAX_PERCENT "zfs_dedup_log_mem_max_percent" Now Percent 1 (0, 100),
        "Share of the memory for the logs of a deduplication table";
    DEDUP_LOG_TXG_MAX "zfs_dedup_log_txg_max" Now Count 8 SOME,
        "Transaction groups after which the log of a deduplication table begins to be flushed";
    DELAY_MIN_DIRTY_PERCENT "zfs_delay_min_dirty_percent" Now Percent 60 (0, 100),
        "Share of the most dirty data from which on changes are delayed";
    DELAY_SCALE "zfs_delay_scale" Now Nanoseconds 500_000 SOME,
        "Delay of a change half way between the first delays and the most dirty data";
    DIRTY_DATA_MAX "zfs_dirty_data_max" Now Bytes 0 ANY,
        "Most dirty data of a pool; 0: zfs_dirty_data_max_percent says how much";
    DIRTY_DATA_MAX_MAX "zfs_dirty_data_max_max" Now Bytes 4_294_967_296 SOME,
        "Most dirty data of a pool that zfs_dirty_data_max_percent can give";
    DIRTY_DATA_MAX_PERCENT "zfs_dirty_data_max_percent" Now Percent 10 (1, 100),
        "Share of the memory for dirty data of a pool if zfs_dirty_data_max does not say";
    DIRTY_DATA_SYNC "zfs_dirty_data_sync" Now Bytes 67_108_864 ANY,
        "Dirty data at which a transaction group is closed, if the share is not less; 0: only the share counts";
    DIRTY_DATA_SYNC_PERCENT "zfs_dirty_data_sync_percent" Now Percent 20 (1, 100),
        "Share of the most dirty data at which a transaction group is closed";
    IMMEDIATE_WRITE_SZ "zfs_immediate_write_sz" Now Bytes 32_768 ANY,
        "Least bytes of a write whose block is written for good when it is committed, without log vdevs";
    INITIALIZE_CHUNK_SIZE "zfs_initialize_chunk_size" Now Bytes 1_048_576 (512, 16_777_216),
        "Bytes that zpool initialize writes at once";
    INITIALIZE_VALUE "zfs_initialize_value" Now Count 0xdead_beef_dead_beee ANY,
        "Number that zpool initialize fills free space with, 64 bits at a time";
    KEEP_LOGS_AT_EXPORT "zfs_keep_log_spacemaps_at_export" Now Switch 0 SWITCH,
        "Whether log space maps are kept at export rather than flushed";
    MAX_LOG_WALKING "zfs_max_log_walking" Now Count 5 SOME,
        "Newest log space maps that tell how fast the log grows";
    MAX_LOGSM_SUMMARY_LENGTH "zfs_max_logsm_summary_length" Now Count 1000 SOME,
        "Most rows in which log space maps are summed up to decide what to flush";
    METASLAB_CONDENSE_PCT "zfs_metaslab_condense_pct" Now Percent 200 (100, 100_000),
        "A space map is condensed if it is so long compared with the shortest that says the same";
    MIN_METASLABS_TO_FLUSH "zfs_min_metaslabs_to_flush" Now Count 1 ANY,
        "Least metaslabs with unflushed changes that a transaction group flushes";
    MULTIHOST_FAIL_INTERVALS "zfs_multihost_fail_intervals" Now Count 10 (0, 65_535),
        "Intervals without a heartbeat of multihost=on after which the pool is suspended; 0: never";
    REBUILD_MAX_SEGMENT "zfs_rebuild_max_segment" Now Bytes 1_048_576 (512, 16_777_216),
        "Most bytes of a device that a sequential rebuild copies as one piece";
    REBUILD_SCRUB_ENABLED "zfs_rebuild_scrub_enabled" Now Switch 1 SWITCH,
        "Whether a scrub begins when the last sequential rebuild has ended";
    REBUILD_VDEV_LIMIT "zfs_rebuild_vdev_limit" Now Bytes 16_777_216 (1, 268_435_456),
        "Bytes of a top-level vdev that a sequential rebuild copies at once";
    RECV_BEST_EFFORT_CORRECTIVE "zfs_recv_best_effort_corrective" Now Switch 0 SWITCH,
        "Whether a corrective receive (zfs receive -c) that leaves damaged blocks is taken for done";
    REMOVAL_SUSPEND_PROGRESS "zfs_removal_suspend_progress" Now Switch 0 SWITCH,
        "Whether the removal of a vdev stays where it is";
    REMOVE_MAX_SEGMENT "zfs_remove_max_segment" Now Bytes 16_777_216 (512, 16_777_216),
        "Most bytes of a piece of the mapping of a vdev that is removed";
    RESILVER_DEFER_PERCENT "zfs_resilver_defer_percent" Now Percent 10 (0, 100),
        "Share of a resilver that is done from which on another one waits for its end";
    RESILVER_DISABLE_DEFER "zfs_resilver_disable_defer" Now Switch 0 SWITCH,
        "Whether another resilver never waits for the end of one that is under way";
    SCAN_CHECKPOINT_INTVAL "zfs_scan_checkpoint_intval" Now Seconds 60 ANY,
        "How often a scrub or resilver notes on disk how far it is; what is freed meanwhile is not given out again";
    SCAN_MEM_LIM_FACT "zfs_scan_mem_lim_fact" Now Count 20 SOME,
        "Share of the memory, as a divisor, for blocks that a scrub or resilver has found and not read yet";
    SCAN_SUSPEND_PROGRESS "zfs_scan_suspend_progress" Now Switch 0 SWITCH,
        "Whether scrubs and resilvers stay where they are";
    SCAN_VDEV_LIMIT "zfs_scan_vdev_limit" Now Bytes 16_777_216 SOME,
        "Bytes that a scrub or resilver reads of a top-level vdev at once";
    SCRUB_AFTER_EXPAND "zfs_scrub_after_expand" Now Switch 1 SWITCH,
        "Whether a scrub begins when RAID-Z has been expanded";
    SPA_DISCARD_MEMORY_LIMIT "zfs_spa_discard_memory_limit" Now Bytes 16_777_216 SOME,
        "Bytes of a checkpoint's space maps that a transaction group takes when the checkpoint is discarded";
    SYNC_PASS_DEFERRED_FREE "zfs_sync_pass_deferred_free" Now Count 2 (1, 32),
        "Pass of a sync from which on frees are left to the next group, if they are not logged";
    TRIM_EXTENT_BYTES_MAX "zfs_trim_extent_bytes_max" Now Bytes 134_217_728 SOME,
        "Most bytes that a device is told to be free in one request";
    TRIM_EXTENT_BYTES_MIN "zfs_trim_extent_bytes_min" Now Bytes 32_768 ANY,
        "Least bytes in a row that a device is told to be free";
    TRIM_TXG_BATCH "zfs_trim_txg_batch" Now Count 32 SOME,
        "Transaction groups in which autotrim collects what is freed in a metaslab, unless that is much";
    TXG_HISTORY "zfs_txg_history" Now Count 100 (0, 1_000_000),
        "Transaction groups of which figures are remembered";
    TXG_TIMEOUT "zfs_txg_timeout" Now Seconds 5 (1, 1_000_000),
        "Longest time that changes wait in the open transaction group";
    UNFLUSHED_LOG_BLOCK_MAX "zfs_unflushed_log_block_max" Now Count 131_072 SOME,
        "Most blocks of all log space maps, however many metaslabs there are";
    UNFLUSHED_LOG_BLOCK_MIN "zfs_unflushed_log_block_min" Now Count 1000 SOME,
        "Blocks that log space maps may always have";
    UNFLUSHED_LOG_BLOCK_PCT "zfs_unflushed_log_block_pct" Now Percent 400 ANY,
        "Most blocks of all log space maps for each metaslab with unflushed changes";
    UNFLUSHED_LOG_TXG_MAX "zfs_unflushed_log_txg_max" Now Count 1000 SOME,
        "Most log space maps";
    UNFLUSHED_MAX_MEM_AMT "zfs_unflushed_max_mem_amt" Now Bytes 1_073_741_824 ANY,
        "Most memory for unflushed changes";
    UNFLUSHED_MAX_MEM_PPM "zfs_unflushed_max_mem_ppm" Now PerMillion 1000 (0, 1_000_000),
        "Most memory for unflushed changes, as a share of all memory";
    VDEV_DEFAULT_MS_COUNT "zfs_vdev_default_ms_count" Now Count 200 (1, 131_072),
        "Metaslabs of a new top-level vdev that is large";
    VDEV_DEFAULT_MS_SHIFT "zfs_vdev_default_ms_shift" Now Log2 29 (24, 40),
        "Bytes of a metaslab of a new top-level vdev of middling size";
    VDEV_MAX_AUTO_ASHIFT "zfs_vdev_max_auto_ashift" Now Log2 14 (9, 16),
        "Largest sector that new vdevs are given because a device prefers it";
    VDEV_MAX_MS_SHIFT "zfs_vdev_max_ms_shift" Now Log2 34 (24, 50),
        "Bytes of the largest metaslabs of new top-level vdevs";
    VDEV_MIN_AUTO_ASHIFT "zfs_vdev_min_auto_ashift" Now Log2 9 (9, 16),
        "Smallest sector of new vdevs for which none is asked for";
    VDEV_MIN_MS_COUNT "zfs_vdev_min_ms_count" Now Count 16 (1, 131_072),
        "Metaslabs of a new top-level vdev that is small";
    VDEV_MS_COUNT_LIMIT "zfs_vdev_ms_count_limit" Now Count 131_072 (16, 131_072),
        "Most metaslabs of a new top-level vdev";
    ZIL_MAXBLOCKSIZE "zil_maxblocksize" Now Bytes 131_072 (8192, 131_072),
        "Largest block of an intent log; one record may need a larger one";
    ZIL_NOCACHEFLUSH "zil_nocacheflush" Now Switch 0 SWITCH,
        "Whether devices are not flushed after a write to an intent log: a loss of power may take it";
    ZIL_SLOG_BULK "zil_slog_bulk" Now Bytes 67_108_864 ANY,
        "Most that one commit writes to an intent log as urgent; the rest is written like a transaction group";
    ZVOL_IMMEDIATE_WRITE_SZ "zvol_immediate_write_sz" Now Bytes 32_768 ANY,
        "The same as zfs_immediate_write_sz, for volumes";
}

/// Memory for the logs of a deduplication table: at least 1 MiB.
pub(crate) fn dedup_log_mem_max() -> u64 {
    let bytes = match DEDUP_LOG_MEM_MAX.get() {
        0 => usable_memory().unwrap_or(0) / 100 * DEDUP_LOG_MEM_MAX_PERCENT.get(),
        bytes => bytes,
    };
    bytes.max(1 << 20)
}

/// All tunables of all floors, by name.
pub fn all() -> &'static [&'static Tunable] {
    static EVERY: OnceLock<Vec<&'static Tunable>> = OnceLock::new();
    EVERY.get_or_init(|| {
        let floors = [
            cenote_vdev::tunables::ALL,
            cenote_store::tunables::ALL,
            cenote_dmu::tunables::ALL,
            cenote_dsl::tunables::ALL,
            cenote_pool::tunables::ALL,
            ALL,
        ];
        let mut every: Vec<_> = floors.into_iter().flatten().copied().collect();
        every.sort_by_key(|t| t.name);
        every
    })
}

/// The tunable of that name.
pub fn find(name: &str) -> Option<&'static Tunable> {
    let at = all().binary_search_by_key(&name, |t| t.name).ok()?;
    all().get(at).copied()
}

/// Names of tunables that `name` may have been meant for, the most likely first: at most five, in which
/// it is contained, or which it is not far from.
pub fn near(name: &str) -> Vec<&'static str> {
    const MOST: usize = 5;
    let distance = |t: &&'static Tunable| {
        let inside = !name.is_empty() && t.name.contains(name);
        let steps = edits(name.as_bytes(), t.name.as_bytes());
        (inside || steps <= 2 + name.len() / 8).then_some((steps, t.name))
    };
    let mut found: Vec<_> = all().iter().filter_map(distance).collect();
    found.sort_unstable();
    found.into_iter().take(MOST).map(|(_, name)| name).collect()
}

/// Bytes to be changed, put in or left out to get from `a` to `b` (Levenshtein's distance). Names that
/// are too long to be of a tunable are as far away as they are long.
fn edits(a: &[u8], b: &[u8]) -> usize {
    if a.len() > 100 {
        return a.len();
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = change.min(before + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// Dirty bytes, of at most `limit`, at which a transaction group is closed.
pub(crate) fn dirty_data_sync(limit: u64) -> u64 {
    let share = limit / 100 * DIRTY_DATA_SYNC_PERCENT.get();
    match DIRTY_DATA_SYNC.get() {
        0 => share,
        bytes => bytes.min(share),
    }
}

/// Most dirty bytes of a pool.
pub(crate) fn dirty_data_max() -> u64 {
    const UNKNOWN: u64 = 256 << 20;
    const LEAST: u64 = 64 << 20;
    let share =
        |memory: u64| (memory / 100).saturating_mul(DIRTY_DATA_MAX_PERCENT.get()).max(LEAST);
    match DIRTY_DATA_MAX.get() {
        0 => usable_memory().map_or(UNKNOWN, share).min(DIRTY_DATA_MAX_MAX.get()),
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    #[test]
    fn defaults_are_in_range_and_names_are_in_order() {
        for t in all() {
            assert!(t.check(t.default).is_ok(), "{}", t.name);
            assert!(!t.description.is_empty() && !t.description.contains('\n'));
            assert!(t.unit != Unit::Switch || t.range == SWITCH, "{}", t.name);
            assert_eq!(find(t.name).unwrap().name, t.name);
        }
        assert!(all().is_sorted_by(|a, b| a.name < b.name));
        let floors = [cenote_vdev::tunables::ALL, cenote_store::tunables::ALL];
        let floors =
            floors.into_iter().chain([cenote_dmu::tunables::ALL, cenote_dsl::tunables::ALL]);
        for table in floors.chain([cenote_pool::tunables::ALL, ALL]) {
            assert!(table.is_sorted_by(|a, b| a.name < b.name));
        }
    }

    #[test]
    fn values_are_checked() {
        let t = find("zfs_txg_history").unwrap();
        assert_eq!((t.get(), t.unit.to_string().as_str()), (100, "count"));
        t.set(90).unwrap();
        assert_eq!(TXG_HISTORY.get(), 90);
        let refused = t.set(u64::MAX).unwrap_err().to_string();
        assert_eq!(refused, "zfs_txg_history is from 0 to 1000000, not 18446744073709551615");
        t.reset();
        assert_eq!(t.get(), 100);
        assert!(find("zfs_no_such").is_none());
    }

    #[test]
    fn who_mistypes_a_name_is_told_what_there_is() {
        assert_eq!(near("zfs_txg_timeuot"), ["zfs_txg_timeout"]);
        assert_eq!(near("txg_timeout"), ["zfs_txg_timeout"]);
        assert_eq!(near("zfs_delay"), ["zfs_delay_scale", "zfs_delay_min_dirty_percent"]);
        assert_eq!(near("kernel.panic"), [""; 0]);
        assert_eq!(near(&"x".repeat(1 << 20)), [""; 0]);
        assert_eq!(near("zfs_").len(), 5);
        assert_eq!((edits(b"abc", b"abc"), edits(b"", b"xyz"), edits(b"abcd", b"acxd")), (0, 3, 2));
    }

    /// A tunable that nothing reads is a lie: each is read by code that is no test.
    #[test]
    fn every_tunable_is_read_somewhere() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut code = String::new();
        for floor in
            ["vdev", "store", "dmu", "dsl", "pool", "engine", "zpl", "fuse", "daemon", "cli"]
        {
            collect(&crates.join(floor).join("src"), &mut code);
        }
        let (mut rows, mut dead) = (0, Vec::new());
        for floor in ["vdev", "store", "dmu", "dsl", "pool", "engine"] {
            let table = crates.join(floor).join("src/tunables.rs");
            let table = std::fs::read_to_string(table).unwrap();
            let names = table.lines().filter_map(|l| l.strip_prefix("    ")?.split_once(" \""));
            let is_id = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            for (id, _) in names.filter(|(id, _)| id.chars().all(is_id)) {
                rows += 1;
                let read = |how: &&str| code.contains(&format!("{id}.{how}()"));
                if !["get", "count", "small", "is_on", "happened"].iter().any(read) {
                    dead.push(id.to_string());
                }
            }
        }
        assert_eq!((rows, dead), (all().len(), Vec::<String>::new()));
    }

    /// The code below `dir` without its tests.
    fn collect(dir: &Path, code: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("tests") {
                    collect(&path, code);
                }
            } else if !path.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let mut parts = text.split("\n#[cfg(test)]\nmod ");
                code.push_str(parts.next().unwrap());
                // Behind `mod tests;` the code goes on, behind `mod tests {` it does not.
                let goes_on = |part: &&str| part.lines().next().unwrap().ends_with(';');
                parts.take_while(goes_on).for_each(|part| code.push_str(part));
            }
        }
    }
}
