//! The tunables of this floor; see [`crate::tunable`].

use crate::tunable::{ANY, SOME, SWITCH};
use cenote_vdev::declare_tunables;

declare_tunables! {
    ALIQUOT "metaslab_aliquot" Now Bytes 2_097_152 SOME,
        "Data for each disk of a top-level vdev before the next one has its turn";
    BIAS_ENABLED "metaslab_bias_enabled" Now Switch 1 SWITCH,
        "Whether top-level vdevs with more free space have longer turns";
    DEBUG_LOAD "metaslab_debug_load" Now Switch 0 SWITCH,
        "Whether all metaslabs are loaded when a pool is imported";
    DF_ALLOC_THRESHOLD "metaslab_df_alloc_threshold" Now Bytes 0 ANY,
        "In a metaslab whose largest free segment is smaller, segments are taken that just fit";
    DF_FREE_PCT "metaslab_df_free_pct" Now Percent 4 (0, 100),
        "In a metaslab with less free space, segments are taken that just fit, not the largest";
    DF_MAX_SEARCH "metaslab_df_max_search" Now Bytes 0 ANY,
        "How far from the last allocation a segment is searched before the largest is taken";
    FORCE_GANGING "metaslab_force_ganging" Now Bytes 16_777_217 SOME,
        "Blocks of so many bytes on disk are written as gang blocks now and then, for tests";
    FORCE_GANGING_PCT "metaslab_force_ganging_pct" Now Percent 3 (0, 100),
        "Share of the blocks that metaslab_force_ganging is about";
    PRELOAD_ENABLED "metaslab_preload_enabled" Now Switch 1 SWITCH,
        "Whether the best metaslabs are loaded before they are needed";
    PRELOAD_LIMIT "metaslab_preload_limit" Now Count 10 ANY,
        "Best metaslabs of each top-level vdev that are loaded ahead and kept";
    UNLOAD_DELAY "metaslab_unload_delay" Now Count 32 ANY,
        "Transaction groups without an allocation after which a metaslab is unloaded";
    UNLOAD_DELAY_MS "metaslab_unload_delay_ms" Now Milliseconds 600_000 ANY,
        "How long a metaslab is kept loaded at least without an allocation";
    NUM_ALLOCATORS "spa_num_allocators" NextOpen Count 2 (1, 2),
        "Metaslabs of each top-level vdev that are allocated from at once: one for data and one for metadata, or one for both";
    ARC_MAX "zfs_arc_max" Now Bytes 0 ANY,
        "Most that the cache of all pools takes; 0: half of the memory in a daemon, 256 MiB elsewhere";
    ARC_MIN "zfs_arc_min" Now Bytes 0 ANY,
        "What the cache may always take, however short memory gets; 0: 1/32 of the memory, 32 MiB at least";
    ARC_SYS_FREE "zfs_arc_sys_free" Now Bytes 0 ANY,
        "Memory that the cache leaves available to others; 0: 1/32 of the memory";
    EMBEDDED_SLOG_MIN_MS "zfs_embedded_slog_min_ms" NextOpen Count 64 ANY,
        "Metaslabs beyond which a top-level vdev of the normal class keeps one for intent logs";
    FIND_MAX_TRIES "zfs_metaslab_find_max_tries" Now Count 100 SOME,
        "Metaslabs that are looked at for one allocation before it is made less choosy";
    MEM_LIMIT "zfs_metaslab_mem_limit" Now Percent 25 (0, 100),
        "Share of memory beyond which a pool unloads the metaslabs that were used longest ago";
    SWITCH_THRESHOLD "zfs_metaslab_switch_threshold" Now Log2 2 (1, 64),
        "Powers of two by which largest segments shrink before another metaslab is taken";
    NOPWRITE_ENABLED "zfs_nopwrite_enabled" Now Switch 1 SWITCH,
        "Whether data with the strong checksum of what is there already is not written";
    SPECIAL_RESERVE_PCT "zfs_special_class_metadata_reserve_pct" Now Percent 25 (0, 100),
        "Share of the special class that small blocks of data leave to metadata";
    SYNC_PASS_DONT_COMPRESS "zfs_sync_pass_dont_compress" Now Count 8 (1, 32),
        "Pass of a sync from which on rewritten blocks are not compressed";
    SYNC_PASS_REWRITE "zfs_sync_pass_rewrite" Now Count 2 (1, 32),
        "Pass of a sync from which on blocks are rewritten in place";
}
