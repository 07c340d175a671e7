//! `zpool iostat -w` and `-r`: histograms of latencies and of sizes of requests, one table for each vdev.
//!
//! Latencies are measured at the devices alone, and are not told apart by class: reads are in the columns of
//! `total_wait` and `disk_wait` for reads, writes in those for writes, and the other columns stay empty.

use super::{CLASSES, Group, Report, WIDTH};
use crate::context::Context;
use cenote_dsl::human::{nicenum, nicetime};
use cenote_vdev::stats::LatencyHistogram;
use cenote_vdev::{SizeFigures, Vdev};
use std::io;

/// Bucket of the smallest requests that are shown, of 512 bytes.
const SMALLEST: usize = 9;
/// Columns that reads fill: waiting is all at the device.
const READ_COLUMNS: [usize; 2] = [0, 2];
/// Columns that writes fill.
const WRITE_COLUMNS: [usize; 2] = [1, 3];

const LATENCIES: Group = Group {
    top: &[("total_wait", 2), ("disk_wait", 2), ("syncq_wait", 2), ("asyncq_wait", 2)],
    bottom: &[
        "read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim",
        "rebuild",
    ],
    exact_width: 10,
};
const SIZES: Group = Group {
    top: &[
        ("sync_read", 2),
        ("sync_write", 2),
        ("async_read", 2),
        ("async_write", 2),
        ("scrub", 2),
        ("trim", 2),
        ("rebuild", 2),
    ],
    bottom: &[
        "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind",
        "agg",
    ],
    exact_width: 10,
};

/// What a histogram is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Histogram {
    /// `-w`.
    Latencies,
    /// `-r`.
    Sizes,
}

impl Histogram {
    pub(super) fn group(self) -> &'static Group {
        match self {
            Histogram::Latencies => &LATENCIES,
            Histogram::Sizes => &SIZES,
        }
    }

    /// Title of the column of buckets.
    pub(super) fn title(self) -> &'static str {
        match self {
            Histogram::Latencies => "latency",
            Histogram::Sizes => "req_size",
        }
    }

    /// A bucket by number, as a number and as it is shown: where latencies end, where sizes begin.
    fn label(self, bucket: usize) -> (u64, String) {
        match self {
            Histogram::Latencies => {
                let end = (1u64 << bucket).saturating_mul(2).saturating_sub(1);
                (end, nicetime(end))
            }
            Histogram::Sizes => (1 << bucket, nicenum(1 << bucket)),
        }
    }
}

/// What a vdev counted: how long reads and writes took, how large requests were.
#[derive(Clone)]
pub(super) struct Counted {
    read: LatencyHistogram,
    write: LatencyHistogram,
    sizes: SizeFigures,
}

impl Counted {
    pub(super) fn of(vdev: &Vdev) -> Counted {
        Counted {
            read: vdev.read_latency(),
            write: vdev.write_latency(),
            sizes: vdev.request_sizes(),
        }
    }

    /// What was counted since.
    pub(super) fn since(&self, old: Option<&Counted>) -> Counted {
        let mut new = self.clone();
        if let Some(old) = old {
            subtract(&mut new.read, &old.read);
            subtract(&mut new.write, &old.write);
            let kinds = [
                (&mut new.sizes.individual, &old.sizes.individual),
                (&mut new.sizes.aggregated, &old.sizes.aggregated),
            ];
            for (new, old) in kinds {
                new.iter_mut().zip(old).for_each(|(new, old)| subtract(new, old));
            }
        }
        new
    }

    /// The latencies that belong in column `at` of a table of latencies.
    pub(super) fn latency(&self, at: usize) -> Option<&LatencyHistogram> {
        match at {
            at if READ_COLUMNS.contains(&at) => Some(&self.read),
            at if WRITE_COLUMNS.contains(&at) => Some(&self.write),
            _ => None,
        }
    }

    /// The columns of a table.
    fn columns(&self, of: Histogram) -> Vec<&[u64]> {
        match of {
            Histogram::Latencies => (0..LATENCIES.bottom.len())
                .map(|at| self.latency(at).map_or(&[][..], |column| &column[..]))
                .collect(),
            Histogram::Sizes => CLASSES
                .iter()
                .map(|class| *class as usize)
                .flat_map(|at| [&self.sizes.individual[at][..], &self.sizes.aggregated[at][..]])
                .collect(),
        }
    }
}

fn subtract(new: &mut [u64], old: &[u64]) {
    new.iter_mut().zip(old).for_each(|(n, o)| *n = n.saturating_sub(*o));
}

impl Report<'_> {
    /// The table of a vdev (`print_iostat_histos`).
    pub(super) fn histogram(
        &self,
        of: Histogram,
        name: &str,
        counted: &Counted,
        scale: f64,
        ctx: &mut Context,
    ) -> io::Result<()> {
        let scaled = |n: &u64| (*n as f64 * scale) as u64;
        let columns = counted.columns(of);
        let most = columns.iter().flat_map(|column| column.iter()).map(scaled).max();
        let digits = most.map_or(1, |n| n.to_string().len());
        let width = if self.show.literal { digits.max(WIDTH) } else { WIDTH };
        writeln!(ctx.out)?;
        match self.show.scripted {
            true => writeln!(ctx.out, "{name}")?,
            false => self.header(Some(name), width, ctx)?,
        }
        let names = self.names_width.max(of.title().len());
        let buckets = columns.iter().map(|column| column.len()).max().unwrap_or(0);
        let first = if of == Histogram::Sizes { SMALLEST } else { 0 };
        for bucket in first..buckets {
            let (number, label) = of.label(bucket);
            let count = |column: &&[u64]| column.get(bucket).map_or(0, scaled);
            let cells = columns.iter().map(|column| self.number(count(column)));
            if self.show.scripted {
                let cells: Vec<String> = cells.collect();
                writeln!(ctx.out, "{number}\t{}", cells.join("\t"))?;
                continue;
            }
            write!(ctx.out, "{label:<names$}")?;
            self.cells(cells.map(|cell| (cell, width)), ctx)?;
            writeln!(ctx.out)?;
        }
        if !self.show.scripted {
            let all = names + (width + 2) * columns.len();
            writeln!(ctx.out, "{:-<all$}", "")?;
        }
        Ok(())
    }
}
