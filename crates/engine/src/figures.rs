//! What each transaction group did, and each pass of its sync (`spa_txg_history`).
//!
//! # Idea
//!
//! The write pipeline counts blocks and the devices count operations, for ever upwards
//! ([`cenote_vdev::traffic`]). The sync thread is the only one that writes blocks, so what was
//! counted between two moments of it is what it wrote between them. A `Recorder` notes the counters
//! when a group was quiesced, after each pass, and when the group is on disk:
//!
//! ```text
//!  birth                                   pass 1    pass 2 ...     commit      on disk
//!    ├── open ──┼─ quiescing ─┼─ waiting ─┼────┼─────────┼───── ... ┼────────┼──────┤
//!                                         ├ datasets ┤
//!                                         ├──────────────── total ──────────────────┤
//! ```
//!
//! - Pass 1 has in it what OpenZFS's has: the datasets, sync tasks, and the first pass over the MOS.
//! - *Data* are blocks of level 0 of plain files and volumes; everything else is metadata, space maps
//!   included (`DMU_OT_IS_METADATA`).
//! - Blocks are what the write pipeline hands to the devices; bytes count all copies. Writes are
//!   what devices are asked for after aggregation, with mirroring, parity and padding. They count in the pass in which
//!   they are done: what passes leave to be written, all of a small group, is written at the end of the last one.
//! - Labels and uberblocks are apart: the commit writes them, no pass does.
//! - Reads are everyone's while the group was being written.
//! - A group hardly *waits* to be written: the thread that quiesces it also writes it.
//! - The first group of a new pool was open while everything in it was thought out.
//!
//! # Invariant
//!
//! What the passes of a group wrote adds up to what the group wrote, labels excepted.

mod table;

pub use table::{Figure, Kind, LATENCIES, LatencyFigure};

use super::txg::QuiescedTxg;
use super::{Disk, Engine};
use crate::space_write::{SpaceMaps, Stats};
use crate::tunables;
use cenote_vdev::stats::LatencyFigures;
use cenote_vdev::traffic::{Amount, Traffic};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime};

/// One pass of a sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassFigures {
    /// How long it took.
    pub time: Duration,
    /// Blocks that were written, and their bytes in all copies.
    pub blocks: Traffic,
    /// Writes of devices.
    pub writes: Traffic,
}

/// One transaction group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxgFigures {
    /// Its number.
    pub txg: u64,
    /// When it was opened.
    pub birth: SystemTime,
    /// The same, as time since the system started.
    pub birth_uptime: Duration,
    /// Dirty bytes when it was quiesced.
    pub dirty: u64,
    /// How long changes were assigned to it.
    pub open: Duration,
    /// How long it took until no change held it, and open datasets had handed over.
    pub quiescing: Duration,
    /// How long it then waited to be written.
    pub waiting: Duration,
    /// How long the datasets took to write.
    pub datasets: Duration,
    /// How long its thread compared figures that are known from two sides ([`crate::verify`]).
    pub compared: Duration,
    /// How long labels and the new view took.
    pub commit: Duration,
    /// How long it took from when it began to be written until it was on disk.
    pub total: Duration,
    /// The passes.
    pub passes: Vec<PassFigures>,
    /// Blocks that were written, and their bytes in all copies.
    pub blocks: Traffic,
    /// Writes of devices.
    pub writes: Traffic,
    /// Flushes of devices.
    pub flushes: u64,
    /// Reads of devices while it was written, by all callers.
    pub reads: Amount,
    /// Metaslabs whose unflushed changes were brought from logs to their own maps.
    pub flushed: u64,
    /// Space maps that were written anew.
    pub condensed: u64,
    /// Log space maps that there are after it.
    pub logs: u64,
    /// Blocks of all of these.
    pub log_blocks: u64,
    /// Bytes of memory that unflushed changes take after it.
    pub unflushed: u64,
    /// Metaslabs that are loaded after it.
    pub loaded: u64,
    /// Loads of metaslabs since the group before.
    pub loads: u64,
    /// What these took.
    pub load_time: Duration,
}

impl Default for TxgFigures {
    fn default() -> TxgFigures {
        TxgFigures {
            txg: 0,
            birth: SystemTime::UNIX_EPOCH,
            birth_uptime: Duration::ZERO,
            dirty: 0,
            open: Duration::ZERO,
            quiescing: Duration::ZERO,
            waiting: Duration::ZERO,
            datasets: Duration::ZERO,
            compared: Duration::ZERO,
            commit: Duration::ZERO,
            total: Duration::ZERO,
            passes: Vec::new(),
            blocks: Traffic::default(),
            writes: Traffic::default(),
            flushes: 0,
            reads: Amount::default(),
            flushed: 0,
            condensed: 0,
            logs: 0,
            log_blocks: 0,
            unflushed: 0,
            loaded: 0,
            loads: 0,
            load_time: Duration::ZERO,
        }
    }
}

impl TxgFigures {
    /// How long the first pass took.
    pub fn first_pass(&self) -> Duration {
        self.passes.first().map_or(Duration::ZERO, |pass| pass.time)
    }

    /// How long all passes took.
    pub fn all_passes(&self) -> Duration {
        self.passes.iter().map(|pass| pass.time).sum()
    }

    /// The first pass's part of all passes, from 0 to 1; `None` without passes.
    pub fn first_pass_share(&self) -> Option<f64> {
        let all = self.all_passes().as_secs_f64();
        (all > 0.0).then(|| self.first_pass().as_secs_f64() / all)
    }
}

/// What the counters say at a moment.
#[derive(Clone, Copy)]
struct Counters {
    at: Instant,
    blocks: Traffic,
    writes: Traffic,
    flushes: u64,
    reads: Amount,
}

impl Counters {
    fn of(disk: &Disk) -> Counters {
        let tree = disk.tree();
        let (count, _, bytes, _) = tree.root().io_stats();
        Counters {
            at: Instant::now(),
            blocks: disk.writer.written(),
            writes: tree.written(),
            flushes: tree.flushes(),
            reads: Amount { count, bytes },
        }
    }
}

/// What was read since `begun`. If a vdev has left since then, `begun` has its reads and `now` has not: the figure is too low, or 0.
fn read_since(now: Amount, begun: Amount) -> Amount {
    Amount {
        count: now.count.saturating_sub(begun.count),
        bytes: now.bytes.saturating_sub(begun.bytes),
    }
}

/// Collects the figures of a group that is being written.
pub(super) struct Recorder {
    figures: TxgFigures,
    begun: Counters,
    /// At the end of the last pass.
    last: Counters,
}

impl Recorder {
    /// Group `txg` begins to be written.
    pub fn begin(disk: &Disk, txg: u64) -> Recorder {
        let begun = Counters::of(disk);
        let figures = TxgFigures { txg, ..TxgFigures::default() };
        Recorder { figures, begun, last: begun }
    }

    /// How the group was quiesced.
    pub fn quiesced(&mut self, group: &QuiescedTxg) {
        self.figures.birth = group.birth.time;
        self.figures.birth_uptime = group.birth.uptime;
        self.figures.dirty = group.dirty;
        (self.figures.open, self.figures.quiescing) = (group.open, group.quiescing);
        self.figures.waiting = self.begun.at.saturating_duration_since(group.at);
    }

    /// What is known so far.
    pub fn so_far(&self) -> &TxgFigures {
        &self.figures
    }

    /// The datasets are written; they took so long.
    pub fn datasets(&mut self, time: Duration) {
        self.figures.datasets = time;
    }

    /// Figures were compared; it took so long.
    pub fn compared(&mut self, time: Duration) {
        self.figures.compared = time;
    }

    /// Space maps were written.
    pub fn space(&mut self, stats: Stats) {
        self.figures.flushed += stats.flushed;
        self.figures.condensed += stats.condensed;
    }

    /// A pass ends.
    pub fn pass(&mut self, disk: &Disk) {
        let now = Counters::of(disk);
        self.figures.passes.push(PassFigures {
            time: now.at.duration_since(self.last.at),
            blocks: now.blocks.since(&self.last.blocks),
            writes: now.writes.since(&self.last.writes),
        });
        self.last = now;
    }

    /// All that the passes left to be written is written: the last of them waited for it.
    pub fn drained(&mut self, disk: &Disk) {
        let now = Counters::of(disk);
        if let Some(pass) = self.figures.passes.last_mut() {
            pass.time += now.at.duration_since(self.last.at);
            pass.blocks += now.blocks.since(&self.last.blocks);
            pass.writes += now.writes.since(&self.last.writes);
            self.last = now;
        }
    }

    /// The group is on disk; its commit took so long.
    pub fn end(self, disk: &Disk, maps: &SpaceMaps, commit: Duration) -> TxgFigures {
        let (now, begun) = (Counters::of(disk), self.begun);
        let blocks = now.blocks.since(&begun.blocks);
        let of_passes = |sum: u64, pass: &PassFigures| sum + pass.blocks.total().count;
        let (passes, all) = (self.figures.passes.iter().fold(0, of_passes), blocks.total().count);
        // The group is on disk, and these are only shown.
        if passes > all {
            tracing::warn!("passes wrote {passes} blocks, and their group {all}: counted wrongly");
        }
        let (logs, log_blocks) = maps.logs();
        TxgFigures {
            commit,
            total: now.at.duration_since(begun.at),
            blocks,
            writes: now.writes.since(&begun.writes),
            flushes: now.flushes.saturating_sub(begun.flushes),
            reads: read_since(now.reads, begun.reads),
            logs,
            log_blocks,
            unflushed: maps.unflushed_bytes(),
            loaded: disk.allocator.loaded(),
            ..self.figures
        }
    }
}

/// The last transaction groups.
#[derive(Debug, Default)]
pub(crate) struct History {
    past: Mutex<Past>,
}

#[derive(Debug, Default)]
struct Past {
    groups: VecDeque<TxgFigures>,
    /// The group that is being written.
    writing: Option<TxgFigures>,
    /// Loads of metaslabs until the last group, and what they took.
    loads: (u64, Duration),
    /// Of all groups since the pool was opened.
    totals: Vec<(&'static Figure, u64)>,
}

impl History {
    /// A group is being written, and this is known of it.
    pub fn writing(&self, group: &TxgFigures) {
        self.past.lock().writing = Some(group.clone());
    }

    /// Remembers a group. `loads` are all loads of metaslabs so far.
    pub fn add(&self, mut group: TxgFigures, loads: &LatencyFigures) {
        let mut past = self.past.lock();
        past.writing = None;
        let loads = (loads.count(), loads.total);
        group.loads = loads.0.saturating_sub(past.loads.0);
        group.load_time = loads.1.saturating_sub(past.loads.1);
        past.loads = loads;
        table::add(&mut past.totals, &group);
        past.groups.push_back(group);
        while past.groups.len() as u64 > tunables::TXG_HISTORY.get() {
            past.groups.pop_front();
        }
    }

    /// The figures of all groups together.
    pub fn totals(&self) -> Vec<(&'static Figure, u64)> {
        let past = self.past.lock();
        if past.totals.is_empty() {
            let nothing = TxgFigures::default().figures();
            return nothing.into_iter().map(|(figure, _)| (figure, 0)).collect();
        }
        past.totals.clone()
    }

    /// All that are remembered, oldest first.
    pub fn all(&self) -> Vec<TxgFigures> {
        self.past.lock().groups.iter().cloned().collect()
    }
}

/// The remembered groups as the file `txgs` of OpenZFS's kstats shows them: a line of titles, then
/// a line for each group, oldest first; times in nanoseconds, `birth` since the system started.
/// The state is `C`, on disk, but for the last lines: a group that is being written is `S`, and the
/// last one `O`, open.
pub fn kstat_txgs(engine: &Engine) -> String {
    let mut text = String::new();
    let mut line = |cells: [&dyn std::fmt::Display; 12]| {
        const WIDTHS: [usize; 12] = [8, 16, 5, 12, 12, 12, 8, 8, 12, 12, 12, 12];
        let cells: Vec<String> = cells
            .iter()
            .zip(WIDTHS)
            .map(|(cell, width)| format!("{:<width$}", cell.to_string()))
            .collect();
        // A string takes everything.
        let _ = writeln!(text, "{}", cells.join(" "));
    };
    line([
        &"txg",
        &"birth",
        &"state",
        &"ndirty",
        &"nread",
        &"nwritten",
        &"reads",
        &"writes",
        &"otime",
        &"qtime",
        &"wtime",
        &"stime",
    ]);
    let history = &engine.shared.history;
    // In this order, so that a group that is done meanwhile is not missed.
    let writing = history.past.lock().writing.clone();
    let done: Vec<_> = history.all().into_iter().map(|group| ('C', group)).collect();
    let newest = done.last().map_or(0, |(_, group)| group.txg);
    let writing = writing.filter(|group| group.txg > newest).map(|group| ('S', group));
    for (state, group) in done.into_iter().chain(writing) {
        let (written, time) = (group.writes.total(), group.total);
        line([
            &group.txg,
            &group.birth_uptime.as_nanos(),
            &state,
            &group.dirty,
            &group.reads.bytes,
            &written.bytes,
            &group.reads.count,
            &written.count,
            &group.open.as_nanos(),
            &group.quiescing.as_nanos(),
            &group.waiting.as_nanos(),
            &time.as_nanos(),
        ]);
    }
    let (txg, birth) = engine.shared.tx_state.open_group();
    line([&txg, &birth.uptime.as_nanos(), &'O', &0, &0, &0, &0, &0, &0, &0, &0, &0]);
    text
}
