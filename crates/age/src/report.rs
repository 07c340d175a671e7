//! What a simulation found: a row for each step, and a verdict.
//!
//! | column | from |
//! |---|---|
//! | full | the allocator: what is not free, without what waits to become free |
//! | fragmentation | space map headers, as `zpool list` has it |
//! | spoiled | the allocator: of the metaslabs with free space, those without a free segment of [`WHOLE`] bytes |
//! | segments | the allocator: free segments by size |
//! | records | space map headers and logs: entries, in units of 8 bytes |
//! | metadata, written | devices: every write of the step, divided by its transaction groups |
//! | metadata, modelled; data | what the workload would have written |
//! | timing | measured on this machine; of the rest nothing depends on it |
//!
//! The allocator knows a metaslab's free segments exactly while it is loaded. Of one that is not, it
//! knows what they were when it was unloaded, and counts each that was freed since by itself, though
//! it may have joined with a neighbour. So it decides, and so it is shown here.

use crate::device::Traffic;
use crate::space::{Books, Tally};
use crate::spec::{AgeError, Spec};
use cenote_engine::Engine;
use cenote_store::alloc::{Class, Metaslab};
use cenote_store::histogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Bytes of the segment that a metaslab has to have free, not to be spoiled: the bytes of the largest
/// block of a file with the default `recordsize`.
pub const WHOLE: u64 = 128 << 10;
/// A pool is spoiled when this percentage of its metaslabs with free space is.
pub const MOST: f64 = 50.0;
/// Bytes of an entry of a space map.
const ENTRY: f64 = 8.0;

/// Per transaction group, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Amount {
    /// Writes, or blocks.
    pub count: f64,
    /// Bytes.
    pub bytes: f64,
}

impl Amount {
    fn per(groups: u64, count: u64, bytes: u64) -> Amount {
        let groups = groups.max(1) as f64;
        Amount { count: count as f64 / groups, bytes: bytes as f64 / groups }
    }
}

/// What this machine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Nanoseconds that half of the allocations needed at most.
    pub p50: u64,
    /// And 99%.
    pub p99: u64,
    /// And 99.9%.
    pub p999: u64,
    /// Milliseconds that a transaction group took.
    pub group_ms: f64,
}

/// A pool at one moment, and what happened in the step before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Simulated seconds since the pool was filled.
    pub time: f64,
    /// Transaction groups of the step.
    pub groups: u64,
    /// Percentage of the space that is allocated.
    pub full: f64,
    /// Fragmentation in percent.
    pub fragmentation: Option<u64>,
    /// Percentage of the metaslabs with free space that cannot hold [`WHOLE`] bytes in a row.
    pub spoiled: f64,
    /// Free segments of `1 << i` bytes up to twice that.
    pub segments: Vec<u64>,
    /// Bytes of the largest free segment are at least this.
    pub largest: u64,
    /// Entries of space maps for each metaslab.
    pub records: f64,
    /// Entries of all log space maps.
    pub log_records: f64,
    /// Real reads of devices in each group.
    pub read: Amount,
    /// Real writes to devices in each group.
    pub written: Amount,
    /// Modelled metadata in each group.
    pub modelled: Amount,
    /// Data in each group.
    pub data: Amount,
    /// Blocks of the step that became gangs.
    pub gangs: u64,
    /// Timings.
    pub timing: Timing,
}

/// What became of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Verdict {
    /// It was spoiled at this row's time, in seconds.
    Spoiled {
        /// Seconds.
        after: f64,
    },
    /// It was full before it was spoiled.
    Full {
        /// Seconds.
        after: f64,
    },
    /// It is still well.
    Well,
}

impl Verdict {
    pub(crate) fn of(rows: &[Row], full: bool) -> Verdict {
        let spoiled = rows.iter().find(|row| row.spoiled > MOST);
        let last = rows.last().map_or(0.0, |row| row.time);
        match spoiled {
            Some(row) => Verdict::Spoiled { after: row.time },
            None if full => Verdict::Full { after: last },
            None => Verdict::Well,
        }
    }
}

/// A simulation's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was simulated.
    pub spec: Spec,
    /// The first row is of the filled pool.
    pub rows: Vec<Row>,
    /// What became of it.
    pub verdict: Verdict,
    /// Whether it became full, which ended the simulation.
    pub full: bool,
    /// Whether the simulation was stopped before its time.
    pub interrupted: bool,
    /// How the simulation itself went.
    pub simulation: Cost,
}

/// What a simulation needed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Seconds to fill the pool.
    pub fill_seconds: f64,
    /// Seconds for the simulated time.
    pub seconds: f64,
    /// How much faster than real time that is.
    pub factor: f64,
    /// Bytes of memory of devices, tables and free space at the end.
    pub memory: u64,
}

impl Report {
    /// Nothing simulated yet.
    pub(crate) fn new(spec: Spec) -> Report {
        let simulation = Cost { fill_seconds: 0.0, seconds: 0.0, factor: 0.0, memory: 0 };
        let (rows, verdict) = (Vec::new(), Verdict::Well);
        Report { spec, rows, verdict, full: false, interrupted: false, simulation }
    }

    /// Adds a row, after so much time of ageing, with so much memory in use.
    pub(crate) fn add(&mut self, row: Row, aging: Duration, memory: u64) {
        let seconds = aging.as_secs_f64();
        let factor = row.time / seconds.max(1e-9);
        self.simulation = Cost { seconds, factor, memory, ..self.simulation };
        self.rows.push(row);
        self.verdict = Verdict::of(&self.rows, self.full);
    }

    /// The report without anything that depends on the machine: equal for equal specifications.
    pub fn timeless(&self) -> Report {
        let mut report = self.clone();
        report.rows.iter_mut().for_each(|row| row.timing = Timing::default());
        report.simulation = Cost { fill_seconds: 0.0, seconds: 0.0, factor: 0.0, memory: 0 };
        report
    }
}

/// Counts that only grow.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub data: Tally,
    pub metadata: Tally,
    pub gangs: u64,
}

impl Counts {
    pub fn of(books: &Books) -> Counts {
        Counts { data: books.data, metadata: books.metadata, gangs: books.gangs }
    }
}

/// A step that is over.
pub(crate) struct Step {
    /// Simulated seconds since the pool was filled.
    pub time: f64,
    pub groups: u64,
    pub traffic: Traffic,
    /// The counts when it began.
    pub before: Counts,
    pub spent: Duration,
}

impl Step {
    /// Its row.
    pub fn row(&self, engine: &Engine, books: &Books) -> Result<Row, AgeError> {
        let figures = engine.allocator().figures(Class::Normal);
        let allocated = figures.allocated - figures.deferred;
        let groups: Vec<_> = engine.allocator().groups().collect();
        let metaslabs: Vec<&Metaslab> = groups.iter().flat_map(|g| g.members()).collect();
        let (mut segments, mut spoiled, mut with_space) = (Histogram::default(), 0u64, 0u64);
        for metaslab in &metaslabs {
            let histogram = metaslab.histogram();
            if histogram.counts().iter().any(|n| *n > 0) {
                with_space += 1;
                spoiled += u64::from(!holds_whole(&histogram));
            }
            segments.merge(&histogram);
        }
        let pool = engine.pool();
        let space = pool.space().ok_or_else(|| AgeError::Broken("space maps".into()))?;
        let headers = space.vdevs.iter().flat_map(|v| &v.metaslabs).flat_map(|m| &m.header);
        let length: u64 = headers.map(|h| h.length).sum();
        let count = metaslabs.len().max(1) as f64;
        let (traffic, since) = (self.traffic, self.before);
        let per = |count, bytes| Amount::per(self.groups, count, bytes);
        let tally = |now: Tally, then: Tally| per(now.blocks - then.blocks, now.bytes - then.bytes);
        let used = segments.counts().iter().rposition(|n| *n > 0);
        Ok(Row {
            time: self.time,
            groups: self.groups,
            full: allocated as f64 * 100.0 / figures.space.max(1) as f64,
            fragmentation: space.pool().fragmentation,
            spoiled: spoiled as f64 * 100.0 / with_space.max(1) as f64,
            largest: used.map_or(0, |log| 1 << log),
            segments: segments
                .counts()
                .iter()
                .take(used.map_or(0, |log| log + 1))
                .copied()
                .collect(),
            records: length as f64 / ENTRY / count,
            log_records: space.logs.iter().map(|log| log.phys.length as f64 / ENTRY).sum(),
            read: per(traffic.reads, traffic.read),
            written: per(traffic.writes, traffic.written),
            modelled: tally(books.metadata, since.metadata),
            data: tally(books.data, since.data),
            gangs: books.gangs - since.gangs,
            timing: Timing {
                p50: books.latency.value_at_quantile(0.5),
                p99: books.latency.value_at_quantile(0.99),
                p999: books.latency.value_at_quantile(0.999),
                group_ms: self.spent.as_secs_f64() * 1000.0 / self.groups.max(1) as f64,
            },
        })
    }
}

/// Whether a segment of [`WHOLE`] bytes is among these.
fn holds_whole(histogram: &Histogram) -> bool {
    histogram.counts().iter().skip(WHOLE.ilog2() as usize).any(|n| *n > 0)
}
