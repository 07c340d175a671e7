//! The tunables of this floor; see [`crate::tunable`].

use crate::tunable::{ANY, SOME, SWITCH};
use cenote_vdev::declare_tunables;

declare_tunables! {
    L2ARC_EXCLUDE_SPECIAL "l2arc_exclude_special" Now Switch 0 SWITCH,
        "Whether blocks on special and dedup vdevs are left out of cache devices";
    L2ARC_FEED_AGAIN "l2arc_feed_again" Now Switch 1 SWITCH,
        "Whether a cache device that had much to write is written to again after l2arc_feed_min_ms";
    L2ARC_FEED_MIN_MS "l2arc_feed_min_ms" Now Milliseconds 200 (1, 3_600_000),
        "Least time between writes to a cache device";
    L2ARC_FEED_SECS "l2arc_feed_secs" Now Seconds 1 (1, 86_400),
        "Time between writes to a cache device";
    L2ARC_HEADROOM "l2arc_headroom" Now Count 8 (0, 1 << 20),
        "How far from the ends of the ARC's lists is looked for what to write, in writes; 0: everywhere";
    L2ARC_HEADROOM_BOOST "l2arc_headroom_boost" Now Percent 200 (100, 10_000),
        "By how much l2arc_headroom is more, as blocks in the ARC are compressed";
    L2ARC_META_PERCENT "l2arc_meta_percent" Now Percent 33 (0, 75),
        "Share of the ARC that may be taken to know what is on cache devices";
    L2ARC_MFUONLY "l2arc_mfuonly" Now Count 0 (0, 2),
        "1: only what was used again comes to cache devices; 2: of data only that, and all metadata";
    L2ARC_NOPREFETCH "l2arc_noprefetch" Now Switch 1 SWITCH,
        "Whether what is read ahead is neither written to cache devices nor read from them";
    L2ARC_NORW "l2arc_norw" Now Switch 0 SWITCH,
        "Whether a cache device is not read while it is written to";
    L2ARC_REBUILD_LEAST "l2arc_rebuild_blocks_min_l2size" NextOpen Bytes 1_073_741_824 ANY,
        "Least size of a cache device whose blocks are found again when its pool is imported";
    L2ARC_REBUILD "l2arc_rebuild_enabled" NextOpen Switch 1 SWITCH,
        "Whether the blocks of cache devices are found again when their pool is imported";
    L2ARC_TRIM_AHEAD "l2arc_trim_ahead" Now Percent 0 (0, 10_000),
        "How much a cache device is trimmed ahead of writes, as a share of these; 0: not";
    L2ARC_WRITE_BOOST "l2arc_write_boost" Now Bytes 33_554_432 ANY,
        "Bytes that are written to a cache device besides, until the ARC has evicted something";
    L2ARC_WRITE_MAX "l2arc_write_max" Now Bytes 33_554_432 SOME,
        "Most bytes that are written to a cache device at once";
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
