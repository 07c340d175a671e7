//! Every figure of the engine, declared once: its name, what it counts, and a line about it.
//!
//! All that shows figures to programs (JSON, Prometheus) goes through these tables, so a figure that
//! is added here is shown everywhere. Names stay as they are once they are released.

use super::{PassFigures, TxgFigures};
use crate::Engine;
use crate::tunables::Unit;
use cenote_vdev::stats::LatencyFigures;
use cenote_vdev::traffic::{Content, Traffic};
use std::time::{Duration, UNIX_EPOCH};

/// How figures of several transaction groups become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They add up.
    Counter,
    /// The newest one counts.
    Gauge,
}

/// What is known of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name, without the unit.
    pub name: &'static str,
    /// How several become one.
    pub kind: Kind,
    /// What it counts: bytes, nanoseconds or things.
    pub unit: Unit,
    /// What it is: one line.
    pub description: &'static str,
}

/// A figure, and where it is found.
struct Row<T> {
    figure: Figure,
    of: fn(&T) -> u64,
}

/// What a group or a pass wrote.
struct Written {
    blocks: Traffic,
    writes: Traffic,
}

macro_rules! table {
    ($($name:literal $kind:ident $unit:ident $of:expr, $description:literal;)*) => {
        &[$(Row {
            figure: Figure {
                name: $name,
                kind: Kind::$kind,
                unit: Unit::$unit,
                description: $description,
            },
            of: $of,
        }),*]
    };
}

/// Nanoseconds of a time.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

static GROUP: &[Row<TxgFigures>] = table! {
    "txg" Gauge Count |g| g.txg, "Number of the transaction group";
    "birth" Gauge Nanoseconds |g| g.birth.duration_since(UNIX_EPOCH).map_or(0, ns),
        "When it was opened, since 1970";
    "groups" Counter Count |_| 1, "Transaction groups written";
    "dirty" Counter Bytes |g| g.dirty, "Dirty data that it was closed with";
    "open_time" Counter Nanoseconds |g| ns(g.open), "Time that changes could enter it";
    "quiescing_time" Counter Nanoseconds |g| ns(g.quiescing),
        "Time until all changes had left it and were handed over";
    "waiting_time" Counter Nanoseconds |g| ns(g.waiting), "Time until it began to be written";
    "datasets_time" Counter Nanoseconds |g| ns(g.datasets), "Time to write datasets";
    "compared_time" Counter Nanoseconds |g| ns(g.compared), "Time to compare figures that are known from two sides";
    "first_pass_time" Counter Nanoseconds |g| ns(g.first_pass()),
        "Time of the first pass, with datasets and sync tasks";
    "passes_time" Counter Nanoseconds |g| ns(g.all_passes()), "Time of all passes";
    "commit_time" Counter Nanoseconds |g| ns(g.commit),
        "Time of the commit: flushes, labels, uberblock, the new view";
    "total_time" Counter Nanoseconds |g| ns(g.total), "Time to write it, until it was on disk";
    "passes" Counter Count |g| g.passes.len() as u64, "Passes of the sync";
    "label_writes" Counter Count |g| g.writes.of(Content::Label).count,
        "Device writes of labels and uberblocks";
    "label_written" Counter Bytes |g| g.writes.of(Content::Label).bytes,
        "Written to devices for labels and uberblocks";
    "repair_writes" Counter Count |g| g.writes.of(Content::Repair).count,
        "Device writes of right bytes in the place of wrong ones";
    "repaired" Counter Bytes |g| g.writes.of(Content::Repair).bytes,
        "Written to devices in the place of wrong bytes";
    "flushes" Counter Count |g| g.flushes, "Device flushes";
    "reads" Counter Count |g| g.reads.count, "Device reads meanwhile, by all callers";
    "read" Counter Bytes |g| g.reads.bytes, "Read from devices meanwhile";
    "metaslabs_flushed" Counter Count |g| g.flushed,
        "Metaslabs whose unflushed changes went from logs to their own space maps";
    "maps_condensed" Counter Count |g| g.condensed, "Space maps written anew";
    "logs" Gauge Count |g| g.logs, "Log space maps that there are";
    "log_blocks" Gauge Count |g| g.log_blocks, "Blocks of all log space maps";
    "unflushed" Gauge Bytes |g| g.unflushed, "Memory of unflushed changes";
    "metaslabs_loaded" Gauge Count |g| g.loaded, "Metaslabs that are loaded";
    "metaslab_loads" Counter Count |g| g.loads, "Metaslabs loaded since the group before";
    "metaslab_load_time" Counter Nanoseconds |g| ns(g.load_time), "Time to load these";
};

static PASS: &[Row<PassFigures>] = table! {
    "time" Counter Nanoseconds |p| ns(p.time), "Time of the pass";
};

static WRITTEN: &[Row<Written>] = table! {
    "data_blocks" Counter Count |w| w.blocks.data().count, "Blocks of data written";
    "data" Counter Bytes |w| w.blocks.data().bytes, "Blocks of data, in all copies";
    "metadata_blocks" Counter Count |w| w.blocks.metadata().count,
        "Blocks of metadata written, space maps among them";
    "metadata" Counter Bytes |w| w.blocks.metadata().bytes, "Blocks of metadata, in all copies";
    "space_map_blocks" Counter Count |w| w.blocks.of(Content::SpaceMap).count,
        "Blocks of the metaslabs' own space maps written";
    "space_map" Counter Bytes |w| w.blocks.of(Content::SpaceMap).bytes,
        "Blocks of the metaslabs' own space maps, in all copies";
    "log_space_map_blocks" Counter Count |w| w.blocks.of(Content::LogSpaceMap).count,
        "Blocks of log space maps written";
    "log_space_map" Counter Bytes |w| w.blocks.of(Content::LogSpaceMap).bytes,
        "Blocks of log space maps, in all copies";
    "data_writes" Counter Count |w| w.writes.data().count,
        "Device writes with data in them, after aggregation";
    "data_written" Counter Bytes |w| w.writes.data().bytes,
        "Data written to devices, with parity and padding";
    "metadata_writes" Counter Count |w| w.writes.metadata().count,
        "Device writes with nothing but metadata in them, after aggregation";
    "metadata_written" Counter Bytes |w| w.writes.metadata().bytes,
        "Metadata written to devices, with parity and padding";
};

/// A histogram of what something took.
pub struct LatencyFigure {
    /// Its name, without the unit.
    pub name: &'static str,
    /// What it is: one line.
    pub description: &'static str,
    of: fn(&Engine) -> LatencyFigures,
}

impl LatencyFigure {
    /// What was counted since the pool was opened.
    pub fn of(&self, engine: &Engine) -> LatencyFigures {
        (self.of)(engine)
    }
}

/// All histograms.
pub static LATENCIES: &[LatencyFigure] = &[
    LatencyFigure {
        name: "write_latency",
        description: "Time of a write to a file or volume from call to return, throttle included",
        of: |engine| engine.shared.write_calls.now(),
    },
    LatencyFigure {
        name: "allocation_latency",
        description: "Time to allocate a block in all its copies",
        of: |engine| engine.shared.disk.allocator.allocation_latency(),
    },
    LatencyFigure {
        name: "metaslab_load_latency",
        description: "Time to load a metaslab",
        of: |engine| engine.shared.disk.allocator.load_latency(),
    },
];

fn rows<T>(table: &'static [Row<T>], of: &T) -> impl Iterator<Item = (&'static Figure, u64)> {
    table.iter().map(move |row| (&row.figure, (row.of)(of)))
}

impl TxgFigures {
    /// All figures of the group, in an order that stays.
    pub fn figures(&self) -> Vec<(&'static Figure, u64)> {
        let written = Written { blocks: self.blocks, writes: self.writes };
        rows(GROUP, self).chain(rows(WRITTEN, &written)).collect()
    }
}

impl PassFigures {
    /// All figures of the pass, in an order that stays.
    pub fn figures(&self) -> Vec<(&'static Figure, u64)> {
        let written = Written { blocks: self.blocks, writes: self.writes };
        rows(PASS, self).chain(rows(WRITTEN, &written)).collect()
    }
}

/// Adds a group to what was before it.
pub(super) fn add(totals: &mut Vec<(&'static Figure, u64)>, group: &TxgFigures) {
    let new = group.figures();
    if totals.is_empty() {
        *totals = new;
        return;
    }
    for (total, (figure, value)) in totals.iter_mut().zip(new) {
        total.1 = match figure.kind {
            Kind::Counter => total.1.saturating_add(value),
            Kind::Gauge => value,
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_figure_is_declared_once() {
        for all in [TxgFigures::default().figures(), PassFigures::default().figures()] {
            let names: BTreeSet<&str> = all.iter().map(|(figure, _)| figure.name).collect();
            assert_eq!(names.len(), all.len());
            for (figure, _) in all {
                assert!(!figure.description.is_empty() && !figure.description.contains('\n'));
                assert!(matches!(figure.unit, Unit::Count | Unit::Bytes | Unit::Nanoseconds));
            }
        }
    }

    #[test]
    fn counters_add_up_and_gauges_do_not() {
        let mut totals = Vec::new();
        for (txg, dirty, logs) in [(5, 100, 3), (6, 20, 2)] {
            add(&mut totals, &TxgFigures { txg, dirty, logs, ..TxgFigures::default() });
        }
        let of = |name: &str| totals.iter().find(|(f, _)| f.name == name).map(|(_, n)| *n);
        assert_eq!([of("txg"), of("logs")], [Some(6), Some(2)]);
        assert_eq!([of("groups"), of("dirty")], [Some(2), Some(120)]);
    }
}
