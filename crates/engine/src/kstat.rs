//! Figures in the text of OpenZFS's kstat files (`/proc/spl/kstat/zfs`), for tools that read those: `arcstat`,
//! `arc_summary`, exporters.
//!
//! A file of named figures begins with a line of numbers about itself and a line of headings. Then comes a line
//! for each figure: its name, its type (4: 64 bits without sign, 7: text) and its value
//! (`kstat_seq_show_headers`, `kstat_seq_show_named`). A file of operations (`KSTAT_TYPE_IO`) has one line of
//! values under its headings.
//!
//! What is counted is counted since the process started, or since the pool was imported where it is the pool's.
//! Of what cenote does not do at all the figure is 0. Figures of OpenZFS
//! that mean nothing here are left out.

use crate::dedup::TABLES;
use crate::{Disk, Engine};
use cenote_dmu::readahead;
use cenote_format::abd::{self, AbdCounts};
use cenote_pool::Pool;
use cenote_store::arc::{ArcCache, ArcStats, Lookups, Taken};
use cenote_store::l2arc::{self, L2Figures};
use cenote_store::memory::Memory;
use cenote_vdev::{BlockWrite, GROWING_FIGURES};
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// A figure that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Relaxed)
    }

    const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }
}

/// Changes that entered a transaction group (`dmu_tx_assigned`).
pub(crate) static TX_ASSIGNED: Counter = Counter::new();
/// Those that the throttle made wait (`dmu_tx_dirty_delay`).
pub(crate) static TX_DIRTY_DELAY: Counter = Counter::new();
/// Those that waited until less was dirty (`dmu_tx_dirty_over_max`).
pub(crate) static TX_DIRTY_OVER_MAX: Counter = Counter::new();
/// Commits of intent logs (`zil_commit_count`).
pub(crate) static ZIL_COMMITS: Counter = Counter::new();
/// Those that wrote (`zil_commit_writer_count`).
pub(crate) static ZIL_WRITERS: Counter = Counter::new();
/// Records that they wrote or that their group wrote for them (`zil_itx_count`).
pub(crate) static ZIL_ITXS: Counter = Counter::new();
/// Writes whose data lies in the record, and their bytes (`zil_itx_copied_*`).
pub(crate) static ZIL_COPIED: [Counter; 2] = [Counter::new(), Counter::new()];
/// Writes whose record points to a block of their own, and their bytes (`zil_itx_indirect_*`).
pub(crate) static ZIL_INDIRECT: [Counter; 2] = [Counter::new(), Counter::new()];

/// Log blocks on vdevs for data, and their bytes (`zil_itx_metaslab_normal_*`).
static ZIL_NORMAL: [Counter; 2] = [Counter::new(), Counter::new()];
/// Log blocks on log vdevs, and their bytes (`zil_itx_metaslab_slog_*`).
static ZIL_SLOG: [Counter; 2] = [Counter::new(), Counter::new()];

/// Counts log blocks that are written.
pub(crate) fn log_blocks<'w>(disk: &Disk, writes: impl Iterator<Item = &'w BlockWrite>) {
    for write in writes {
        let on_log = disk.tree().top(write.vdev).is_some_and(|top| top.is_log());
        let [blocks, bytes] = if on_log { &ZIL_SLOG } else { &ZIL_NORMAL };
        blocks.add(1);
        bytes.add(write.data.len() as u64);
    }
}

/// Nanoseconds since the process asked first.
fn uptime() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// A file of named figures.
struct Named {
    rows: Vec<(&'static str, u8, String)>,
}

/// `KSTAT_DATA_UINT64`.
const NUMBER: u8 = 4;
/// `KSTAT_DATA_STRING`.
const TEXT: u8 = 7;

impl Named {
    fn new() -> Named {
        Named { rows: Vec::new() }
    }

    fn number(mut self, name: &'static str, value: u64) -> Named {
        self.rows.push((name, NUMBER, value.to_string()));
        self
    }

    fn numbers(mut self, list: &[(&'static str, u64)]) -> Named {
        for (name, value) in list {
            self = self.number(name, *value);
        }
        self
    }

    /// Figures of what is never done here.
    fn nothing_of(mut self, names: &[&'static str]) -> Named {
        for name in names {
            self = self.number(name, 0);
        }
        self
    }

    fn text(mut self, name: &'static str, value: &str) -> Named {
        self.rows.push((name, TEXT, value.to_string()));
        self
    }

    fn file(&self) -> String {
        let (rows, bytes) = (self.rows.len(), self.rows.len() * 48);
        let mut file = format!("0 1 0x01 {rows} {bytes} 0 {}\n", uptime());
        let mut line = |name: &str, kind: &dyn Display, value: &str| {
            // A string takes everything.
            let _ = writeln!(file, "{name:<31} {kind:<4} {value}");
        };
        line("name", &"type", "data");
        for (name, kind, value) in &self.rows {
            line(name, kind, value);
        }
        file
    }
}

/// The caches: that of the process, and those that pools have of their own.
fn caches(pools: &[Arc<Pool>]) -> ArcStats {
    let mut all = vec![ArcCache::of_process()];
    for pool in pools {
        let arc = pool.store().arc();
        if !all.iter().any(|known| Arc::ptr_eq(known, arc)) {
            all.push(arc.clone());
        }
    }
    sum(&all.iter().map(|arc| arc.stats()).collect::<Vec<_>>())
}

/// What caches have, put together. How memory is followed is of the first one.
fn sum(all: &[ArcStats]) -> ArcStats {
    let add_lookups = |a: Lookups, b: &Lookups| Lookups {
        demand_hits: a.demand_hits + b.demand_hits,
        demand_misses: a.demand_misses + b.demand_misses,
        prefetch_hits: a.prefetch_hits + b.prefetch_hits,
        prefetch_misses: a.prefetch_misses + b.prefetch_misses,
    };
    let add = |a: Taken, b: Taken| Taken { count: a.count + b.count, bytes: a.bytes + b.bytes };
    let Some((first, others)) = all.split_first() else { return ArcStats::default() };
    others.iter().fold(*first, |a, b| ArcStats {
        unpacked: add(a.unpacked, b.unpacked),
        objects: add(a.objects, b.objects),
        hdr_size: a.hdr_size + b.hdr_size,
        l2_hdr_size: a.l2_hdr_size + b.l2_hdr_size,
        c_min: a.c_min + b.c_min,
        c_max: a.c_max + b.c_max,
        ghost_metadata_sizes: [0, 1].map(|i| a.ghost_metadata_sizes[i] + b.ghost_metadata_sizes[i]),
        memory: a.memory,
        hits: a.hits + b.hits,
        misses: a.misses + b.misses,
        size: a.size + b.size,
        c: a.c + b.c,
        p: a.p + b.p,
        mru_size: a.mru_size + b.mru_size,
        mfu_size: a.mfu_size + b.mfu_size,
        mru_ghost_hits: a.mru_ghost_hits + b.mru_ghost_hits,
        mfu_ghost_hits: a.mfu_ghost_hits + b.mfu_ghost_hits,
        data: add_lookups(a.data, &b.data),
        metadata: add_lookups(a.metadata, &b.metadata),
        mru_hits: a.mru_hits + b.mru_hits,
        mfu_hits: a.mfu_hits + b.mfu_hits,
        uncached_hits: a.uncached_hits + b.uncached_hits,
        deleted: a.deleted + b.deleted,
        elements: a.elements + b.elements,
        elements_max: a.elements_max + b.elements_max,
        uncached_size: a.uncached_size + b.uncached_size,
        metadata_sizes: [0, 1, 2].map(|i| a.metadata_sizes[i] + b.metadata_sizes[i]),
        mru_ghost_size: a.mru_ghost_size + b.mru_ghost_size,
        mfu_ghost_size: a.mfu_ghost_size + b.mfu_ghost_size,
    })
}

/// A part of a whole as OpenZFS counts parts, in 2^32.
fn part(of: u64, whole: u64) -> u64 {
    u64::try_from((u128::from(of) << 32) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

/// `arcstats`: the cache of the process, and those that these pools have of their own.
pub fn arcstats(pools: &[Arc<Pool>]) -> String {
    let a = caches(pools);
    let prefetched = |l: &Lookups| (l.prefetch_hits, l.prefetch_misses);
    let ((data_hits, data_misses), (metadata_hits, metadata_misses)) =
        (prefetched(&a.data), prefetched(&a.metadata));
    let [mru_metadata, mfu_metadata, uncached_metadata] = a.metadata_sizes;
    let metadata = mru_metadata + mfu_metadata + uncached_metadata;
    let values = a.mru_size + a.mfu_size + a.uncached_size;
    let [mru_ghost_metadata, mfu_ghost_metadata] = a.ghost_metadata_sizes;
    let (memory, followed) = (Memory::now(), a.memory);
    Named::new()
        .numbers(&[
            ("hits", a.hits + data_hits + metadata_hits),
            ("misses", a.misses + data_misses + metadata_misses),
            ("demand_data_hits", a.data.demand_hits),
            ("demand_data_misses", a.data.demand_misses),
            ("demand_metadata_hits", a.metadata.demand_hits),
            ("demand_metadata_misses", a.metadata.demand_misses),
            ("prefetch_data_hits", data_hits),
            ("prefetch_data_misses", data_misses),
            ("prefetch_metadata_hits", metadata_hits),
            ("prefetch_metadata_misses", metadata_misses),
            ("mru_hits", a.mru_hits),
            ("mru_ghost_hits", a.mru_ghost_hits),
            ("mfu_hits", a.mfu_hits),
            ("mfu_ghost_hits", a.mfu_ghost_hits),
            ("uncached_hits", a.uncached_hits),
            ("deleted", a.deleted),
            ("hash_elements", a.elements),
            ("hash_elements_max", a.elements_max),
            ("p", a.p),
            // Data and metadata share one target; metadata has no target of its own, and this is what it takes.
            ("meta", part(metadata, values)),
            ("pd", part(a.p, a.c)),
            ("pm", part(a.p, a.c)),
            ("c", a.c),
            ("c_min", a.c_min),
            ("c_max", a.c_max),
            ("size", a.taken()),
            ("compressed_size", a.size),
            ("overhead_size", a.unpacked.bytes),
            ("hdr_size", a.hdr_size),
            ("data_size", values - metadata),
            ("metadata_size", metadata - a.objects.bytes),
            ("dnode_size", a.objects.bytes),
            ("mru_size", a.mru_size),
            ("mru_data", a.mru_size - mru_metadata),
            ("mru_metadata", mru_metadata),
            ("mru_evictable_data", a.mru_size - mru_metadata),
            ("mru_evictable_metadata", mru_metadata),
            ("mru_ghost_size", a.mru_ghost_size),
            ("mru_ghost_data", a.mru_ghost_size - mru_ghost_metadata),
            ("mru_ghost_metadata", mru_ghost_metadata),
            ("mfu_size", a.mfu_size),
            ("mfu_data", a.mfu_size - mfu_metadata),
            ("mfu_metadata", mfu_metadata),
            ("mfu_evictable_data", a.mfu_size - mfu_metadata),
            ("mfu_evictable_metadata", mfu_metadata),
            ("mfu_ghost_size", a.mfu_ghost_size),
            ("mfu_ghost_data", a.mfu_ghost_size - mfu_ghost_metadata),
            ("mfu_ghost_metadata", mfu_ghost_metadata),
            ("uncached_size", a.uncached_size),
            ("uncached_data", a.uncached_size - uncached_metadata),
            ("uncached_metadata", uncached_metadata),
            ("arc_meta_used", metadata + a.hdr_size),
            // Metadata may take all of it.
            ("arc_meta_limit", a.c),
            ("arc_dnode_limit", a.c),
            ("memory_direct_count", followed.direct),
            ("memory_indirect_count", followed.indirect),
            ("memory_all_bytes", memory.all.unwrap_or(0)),
            ("memory_free_bytes", memory.free.unwrap_or(0)),
            ("memory_available_bytes", memory.available.unwrap_or(0)),
            ("arc_no_grow", followed.no_grow.into()),
            ("arc_need_free", followed.need_free),
            ("arc_sys_free", followed.sys_free),
        ])
        .numbers(&second_level(pools))
        .nothing_of(&NEVER)
        .file()
}

/// What `arcstats` says of cache devices (`l2_*`).
pub fn second_level(pools: &[Arc<Pool>]) -> Vec<(&'static str, u64)> {
    let all: Vec<L2Figures> = pools.iter().map(|pool| pool.store().l2arc().figures()).collect();
    let sum = |of: &dyn Fn(&L2Figures) -> u64| all.iter().map(of).sum::<u64>();
    let counts = all.iter().fold(l2arc::gone(), |sum, figures| sum.plus(&figures.counts));
    let metadata = sum(&|l2| l2.sums.metadata);
    let asize = sum(&|l2| l2.sums.asize);
    let devices = |of: &dyn Fn(&L2Figures) -> u64| all.iter().map(of).max().unwrap_or(0);
    let mut rows = counts.named();
    rows.extend([
        ("l2_size", sum(&|l2| l2.sums.lsize)),
        ("l2_asize", asize),
        ("l2_hdr_size", sum(&|l2| l2.hdr_size)),
        ("l2_prefetch_asize", sum(&|l2| l2.sums.ahead)),
        ("l2_mru_asize", sum(&|l2| l2.sums.mru)),
        ("l2_mfu_asize", sum(&|l2| l2.sums.mfu)),
        ("l2_bufc_data_asize", asize - metadata.min(asize)),
        ("l2_bufc_metadata_asize", metadata),
        ("l2_log_blk_count", sum(&|l2| l2.log_count)),
        ("l2_log_blk_asize", sum(&|l2| l2.log_bytes)),
        ("l2_log_blk_avg_asize", devices(&|l2| l2.log_average)),
        ("l2_data_to_meta_ratio", devices(&|l2| l2.ratio)),
    ]);
    rows
}

/// `dbufstats`: blocks that are kept unpacked, which are those of metadata; blocks of data are unpacked for each reader.
/// How often one was looked for is not counted. Blocks are known by their places on devices, so that there is no list of
/// them by objects (`dbufs`).
pub fn dbufstats(pools: &[Arc<Pool>]) -> String {
    let arc = caches(pools);
    // They may take all of the cache.
    let (blocks, bytes, most) = (arc.unpacked.count, arc.unpacked.bytes, arc.c);
    Named::new()
        .numbers(&[
            ("cache_count", blocks),
            ("cache_size_bytes", bytes),
            ("cache_target_bytes", most),
            ("cache_lowater_bytes", most),
            ("cache_hiwater_bytes", most),
            ("hash_elements", blocks),
            ("metadata_cache_count", blocks),
            ("metadata_cache_size_bytes", bytes),
        ])
        .file()
}

/// Figures of `arcstats` about what is never done: eviction that has to skip or to wait.
const NEVER: [&str; 25] = [
    "mutex_miss",
    "access_skip",
    "evict_skip",
    "evict_not_enough",
    "evict_l2_cached",
    "evict_l2_eligible",
    "evict_l2_eligible_mfu",
    "evict_l2_eligible_mru",
    "evict_l2_ineligible",
    "evict_l2_skip",
    "hash_collisions",
    "hash_chains",
    "hash_chain_max",
    "dbuf_size",
    "bonus_size",
    "other_size",
    "anon_size",
    "l2_writes_lock_retry",
    "l2_evict_lock_retry",
    "l2_evict_l1cached",
    "l2_free_on_write",
    "memory_throttle_count",
    "arc_prune",
    "arc_raw_size",
    "abd_chunk_waste_size",
];

/// `dmu_tx`: changes on their way into transaction groups.
pub fn dmu_tx() -> String {
    Named::new()
        .numbers(&[
            ("dmu_tx_assigned", TX_ASSIGNED.now()),
            ("dmu_tx_dirty_delay", TX_DIRTY_DELAY.now()),
            ("dmu_tx_dirty_over_max", TX_DIRTY_OVER_MAX.now()),
        ])
        .nothing_of(&["dmu_tx_memory_reserve", "dmu_tx_memory_reclaim", "dmu_tx_wrlog_delay"])
        .file()
}

/// `zil`: commits of intent logs.
pub fn zil() -> String {
    Named::new()
        .numbers(&[
            ("zil_commit_count", ZIL_COMMITS.now()),
            ("zil_commit_writer_count", ZIL_WRITERS.now()),
            ("zil_itx_count", ZIL_ITXS.now()),
            ("zil_itx_indirect_count", ZIL_INDIRECT[0].now()),
            ("zil_itx_indirect_bytes", ZIL_INDIRECT[1].now()),
            ("zil_itx_copied_count", ZIL_COPIED[0].now()),
            ("zil_itx_copied_bytes", ZIL_COPIED[1].now()),
        ])
        .nothing_of(&["zil_itx_needcopy_count", "zil_itx_needcopy_bytes"])
        .numbers(&[
            ("zil_itx_metaslab_normal_count", ZIL_NORMAL[0].now()),
            ("zil_itx_metaslab_normal_bytes", ZIL_NORMAL[1].now()),
            ("zil_itx_metaslab_slog_count", ZIL_SLOG[0].now()),
            ("zil_itx_metaslab_slog_bytes", ZIL_SLOG[1].now()),
        ])
        .file()
}

/// `vdev_cache_stats`, which OpenZFS had up to 2.1: there is no such cache.
pub fn vdev_cache_stats() -> String {
    Named::new().nothing_of(&["delegations", "hits", "misses"]).file()
}

/// `abdstats`: the buffers that own their bytes. Of what OpenZFS's buffers are in beside that, such as pages of
/// several sizes, nothing is said.
pub fn abdstats() -> String {
    let AbdCounts { linear, scatter } = abd::counts();
    Named::new()
        .numbers(&[
            ("linear_cnt", linear.buffers),
            ("linear_data_size", linear.bytes),
            ("scatter_cnt", scatter.buffers),
            ("scatter_data_size", scatter.bytes),
            ("scatter_chunk_waste", scatter.waste),
        ])
        .file()
}

/// `dnodestats`: looking for objects and making them. No thread waits for a dnode here, and no dnode is moved.
pub fn dnodestats() -> String {
    let counts = cenote_dmu::dnode_counts();
    Named::new()
        .numbers(&[
            ("dnode_hold_dbuf_read", counts.unreadable),
            ("dnode_hold_alloc_hits", counts.found),
            ("dnode_hold_alloc_misses", counts.absent),
            ("dnode_hold_free_hits", counts.allocated),
            ("dnode_hold_free_misses", counts.taken),
            ("dnode_allocate", counts.allocated),
        ])
        .nothing_of(&[
            "dnode_hold_alloc_lock_retry",
            "dnode_hold_free_lock_retry",
            "dnode_free_interior_lock_retry",
            "dnode_alloc_race",
            "dnode_move_invalid",
            "dnode_move_recheck1",
            "dnode_move_recheck2",
            "dnode_move_special",
            "dnode_move_handle",
            "dnode_move_rwlock",
            "dnode_move_active",
        ])
        .file()
}

/// `vdev_mirror_stats`: which side of a mirror is read from. The distance to the read before does not count.
pub fn vdev_mirror_stats() -> String {
    let (preferred, equal) = cenote_vdev::mirror_choices();
    Named::new().numbers(&[("preferred_found", preferred), ("preferred_not_found", equal)]).file()
}

/// `zfetchstats`: reading ahead of sequential readers.
pub fn zfetchstats() -> String {
    let (hits, misses, issued) = readahead::counts();
    Named::new()
        .numbers(&[("hits", hits), ("misses", misses)])
        .nothing_of(&["future", "stride", "past", "max_streams"])
        .numbers(&[("io_issued", issued)])
        .file()
}

/// `POOL/io`: what the devices of a pool did. Of times there is `rlentime`, the sum over all requests that came back;
/// when a device had something to do, and how long requests waited, is not kept.
pub fn io(pool: &Pool) -> String {
    let vdevs = pool.store().vdevs();
    let root = vdevs.root();
    let (reads, writes, read, written) = root.io_stats();
    let queues = root.queues();
    let (waiting, active) = (queues.pending.iter().sum::<u64>(), queues.active.iter().sum::<u64>());
    let heads = [
        "nread", "nwritten", "reads", "writes", "wtime", "wlentime", "wupdate", "rtime",
        "rlentime", "rupdate", "wcnt", "rcnt",
    ];
    let busy = u64::try_from(root.io_time().as_nanos()).unwrap_or(u64::MAX);
    let values = [read, written, reads, writes, 0, 0, 0, 0, busy, 0, waiting, active];
    let line = |cells: Vec<String>| {
        cells.iter().map(|cell| format!("{cell:<8}")).collect::<Vec<_>>().join(" ")
    };
    format!(
        "0 3 0x00 1 80 0 {}\n{}\n{}\n",
        uptime(),
        line(heads.iter().map(|h| h.to_string()).collect()),
        line(values.iter().map(|v| v.to_string()).collect())
    )
}

/// `POOL/objects`: what a pool has in its object store, and what was asked of that since the import; OpenZFS has no such file.
pub fn objects(pool: &Pool) -> Option<String> {
    let figures = pool.store().vdevs().growing_figures()?;
    let rows: Vec<(&'static str, u64)> =
        GROWING_FIGURES.iter().map(|figure| figure.name).zip(figures.values()).collect();
    Some(Named::new().numbers(&rows).file())
}

/// `POOL/iostats`: blocks read past the cache, and blocks written; direct ones apart.
pub fn iostats(engine: &Engine) -> String {
    let disk = &engine.shared.disk;
    let stats = disk.store.stats();
    let direct = stats.direct;
    let total = disk.writer.written().total();
    Named::new()
        .nothing_of(&TRIMS)
        .numbers(&[
            ("arc_read_count", stats.misses),
            ("arc_write_count", total.count),
            ("arc_write_bytes", total.bytes),
        ])
        .numbers(&[
            ("direct_read_count", direct.reads),
            ("direct_read_bytes", direct.read_bytes),
            ("direct_write_count", direct.writes),
            ("direct_write_bytes", direct.written_bytes),
        ])
        .file()
}

/// The names of the files [`ddt_stats`].
pub fn ddt_files() -> impl Iterator<Item = String> {
    TABLES.iter().map(|table| format!("{DDT_STATS}{}", table.name()))
}

/// `POOL/ddt_stats_CHECKSUM`: lookups in the deduplication table of a checksum function, and the pace of its logs. `None`: there are no
/// such tables.
pub fn ddt_stats(engine: &Engine, file: &str) -> Option<String> {
    let name = file.strip_prefix(DDT_STATS)?;
    let table = TABLES.into_iter().find(|table| table.name() == name)?;
    Some(Named::new().numbers(&engine.shared.disk.dedup.figures(table).rows()).file())
}

const DDT_STATS: &str = "ddt_stats_";

/// Devices are told nothing of what is free.
const TRIMS: [&str; 18] = [
    "trim_extents_written",
    "trim_bytes_written",
    "trim_extents_skipped",
    "trim_bytes_skipped",
    "trim_extents_failed",
    "trim_bytes_failed",
    "autotrim_extents_written",
    "autotrim_bytes_written",
    "autotrim_extents_skipped",
    "autotrim_bytes_skipped",
    "autotrim_extents_failed",
    "autotrim_bytes_failed",
    "simple_trim_extents_written",
    "simple_trim_bytes_written",
    "simple_trim_extents_skipped",
    "simple_trim_bytes_skipped",
    "simple_trim_extents_failed",
    "simple_trim_bytes_failed",
];

/// `POOL/reads`: the last reads, which are not kept (`zfs_read_history` is 0 in OpenZFS, too, unless it is
/// set).
pub fn reads() -> String {
    format!(
        "0 0 0x01 0 0 0 {}\n{:<8} {:<16} {:<8} {:<8} {:<8} {:<8} {:<8} {:<24} {:<16} {:<16}\n",
        uptime(),
        "UID",
        "start",
        "objset",
        "object",
        "level",
        "blkid",
        "aflags",
        "origin",
        "pid",
        "process"
    )
}

/// What was read from and written to the files of a mounted dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetFigures {
    /// Name of the dataset.
    pub name: String,
    /// Reads, and their bytes.
    pub reads: (u64, u64),
    /// Writes, and their bytes.
    pub writes: (u64, u64),
}

/// `POOL/objset-0x…`: what was done to a dataset since it was mounted.
pub fn objset(d: &DatasetFigures) -> String {
    Named::new()
        .text("dataset_name", &d.name)
        .numbers(&[
            ("writes", d.writes.0),
            ("nwritten", d.writes.1),
            ("reads", d.reads.0),
            ("nread", d.reads.1),
        ])
        .file()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_have_the_form_of_kstats() {
        let text = Named::new().number("hits", 12).text("dataset_name", "tank/a b").file();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let head: Vec<&str> = lines[0].split(' ').collect();
        assert_eq!((head.len(), head[1], head[2], head[3]), (7, "1", "0x01", "2"));
        assert_eq!(lines[1], "name                            type data");
        assert_eq!(lines[2], "hits                            4    12");
        assert_eq!(lines[3], "dataset_name                    7    tank/a b");
    }

    #[test]
    fn no_figure_is_there_twice() {
        for file in [arcstats(&[]), dmu_tx(), zil(), zfetchstats(), abdstats(), dnodestats()] {
            let mut names: Vec<&str> =
                file.lines().skip(2).map(|l| l.split(' ').next().unwrap()).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{file}");
        }
    }
}
