//! Figures of transaction groups for people (`spa_txg_history_show`).
//!
//! There are three tables: a line for each group, a line for each pass of a group, and a histogram of latencies.
//! The figures are the engine's ([`TxgFigures`], [`PassFigures`]); here they get titles and columns. Numbers are
//! rounded, or exact with `-p`: then bytes are bytes, and times nanoseconds.
//!
//! A histogram shows what was counted since the last report of this command, or since the import in the first one.
//! Buckets without counts are left out at both ends.

use super::{Report, Shown, TxgsArgs};
use crate::table::{Column, Table};
use cenote_dsl::human::{nicebytes, nicenum, nicetime};
use cenote_engine::figures::{LATENCIES, LatencyFigure, PassFigures, TxgFigures};
use cenote_vdev::stats::{LATENCY_BUCKETS, LatencyHistogram};
use cenote_vdev::traffic::{Amount, Content};
use std::io::{self, Write};
use std::time::Duration;

/// How values are shown.
#[derive(Clone, Copy)]
struct Style {
    literal: bool,
}

impl Style {
    fn count(self, n: u64) -> String {
        if self.literal { n.to_string() } else { nicenum(n) }
    }

    fn bytes(self, n: u64) -> String {
        if self.literal { n.to_string() } else { nicebytes(n) }
    }

    fn time(self, time: Duration) -> String {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if self.literal { ns.to_string() } else { nicetime(ns) }
    }

    /// Things and their bytes.
    fn amount(self, amount: Amount) -> [String; 2] {
        [self.count(amount.count), self.bytes(amount.bytes)]
    }

    /// Per cent.
    fn share(self, share: Option<f64>) -> String {
        match share {
            None => "-".into(),
            Some(share) if self.literal => format!("{:.2}", share * 100.0),
            Some(share) => format!("{:.0}%", share * 100.0),
        }
    }
}

/// Writes rows; the first column is the pool's name, the others are numbers.
fn write(
    titles: &[&str],
    rows: &[Vec<String>],
    args: &TxgsArgs,
    header: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let column = |(at, title): (usize, &&str)| {
        // Reports that follow keep to the columns of the first one as far as they can.
        let width = title.len().max(if at > 0 { 5 } else { 4 });
        Column { header: (*title).into(), width, right: at > 0, flexible: true }
    };
    let mut columns: Vec<Column> = titles.iter().enumerate().map(column).collect();
    for row in rows {
        columns.iter_mut().zip(row).for_each(|(column, value)| column.fit(value, args.literal));
    }
    let table = Table { columns, scripted: args.scripted };
    if header {
        table.header(out)?;
    }
    rows.iter().try_for_each(|row| table.row(out, row))
}

fn group(pool: &str, g: &TxgFigures, style: Style) -> Vec<String> {
    let mut row = vec![
        pool.to_string(),
        g.txg.to_string(),
        style.bytes(g.dirty),
        style.time(g.total),
        style.share(g.first_pass_share()),
        style.count(g.passes.len() as u64),
    ];
    row.extend(style.amount(g.writes.data()));
    row.extend(style.amount(g.writes.metadata()));
    row.extend([
        style.bytes(g.writes.space_maps().bytes),
        style.count(g.flushed),
        style.count(g.log_blocks),
        style.bytes(g.unflushed),
        style.count(g.loaded),
        style.count(g.loads),
    ]);
    row
}

/// A line for each group.
pub fn groups(
    args: &TxgsArgs,
    reports: &[Report],
    header: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let titles = [
        "POOL",
        "TXG",
        "DIRTY",
        "TIME",
        "PASS1",
        "PASSES",
        "DATAIO",
        "DATA",
        "METAIO",
        "META",
        "MAPS",
        "FLUSHED",
        "LOG",
        "UNFLUSHED",
        "LOADED",
        "LOADS",
    ];
    let style = Style { literal: args.literal };
    let of = |r: &Report| r.groups.iter().map(|g| group(&r.pool, g, style)).collect::<Vec<_>>();
    let rows: Vec<_> = reports.iter().flat_map(of).collect();
    write(&titles, &rows, args, header, out)
}

fn pass(pool: &str, txg: u64, number: usize, pass: &PassFigures, style: Style) -> Vec<String> {
    let mut row =
        vec![pool.to_string(), txg.to_string(), number.to_string(), style.time(pass.time)];
    row.extend(style.amount(pass.blocks.data()));
    row.extend(style.amount(pass.blocks.metadata()));
    row.extend(style.amount(pass.blocks.of(Content::SpaceMap)));
    row.extend(style.amount(pass.blocks.of(Content::LogSpaceMap)));
    row.extend([style.count(pass.writes.data().count), style.count(pass.writes.metadata().count)]);
    row
}

/// A line for each pass.
pub fn passes(
    args: &TxgsArgs,
    reports: &[Report],
    header: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let titles = [
        "POOL", "TXG", "PASS", "TIME", "DATABLK", "DATA", "METABLK", "META", "MAPBLK", "MAP",
        "LOGBLK", "LOG", "DATAIO", "METAIO",
    ];
    let style = Style { literal: args.literal };
    let mut rows = Vec::new();
    for (r, g) in reports.iter().flat_map(|r| r.groups.iter().map(move |g| (r, g))) {
        let of = |(i, figures)| pass(&r.pool, g.txg, i + 1, figures, style);
        rows.extend(g.passes.iter().enumerate().map(of));
    }
    write(&titles, &rows, args, header, out)
}

/// A histogram for each pool: what was counted since the last report, or the import.
pub fn latency(
    args: &TxgsArgs,
    reports: &[Report],
    shown: &mut Shown,
    out: &mut dyn Write,
) -> io::Result<()> {
    let style = Style { literal: args.literal };
    let mut rows = Vec::new();
    for r in reports {
        let mut new = |figure: &LatencyFigure| {
            let now = figure.of(&r.engine);
            let before = shown.latencies.insert((r.pool.clone(), figure.name), now);
            since(&now.histogram, before.map(|before| before.histogram))
        };
        let columns: Vec<LatencyHistogram> = LATENCIES.iter().map(&mut new).collect();
        let counts = |bucket: usize| columns.iter().map(move |c| c.get(bucket).map_or(0, |n| *n));
        let filled = |bucket: &usize| counts(*bucket).any(|n| n > 0);
        let last = (0..LATENCY_BUCKETS).rfind(filled).map_or(0, |last| last + 1);
        let first = (0..last).find(filled).unwrap_or(last);
        for bucket in first..last {
            let below = Duration::from_nanos((2u64 << bucket) - 1);
            let mut row = vec![r.pool.clone(), style.time(below)];
            row.extend(counts(bucket).map(|n| style.count(n)));
            rows.push(row);
        }
    }
    write(&["POOL", "UPTO", "WRITE", "ALLOCATION", "LOAD"], &rows, args, true, out)
}

fn since(now: &LatencyHistogram, before: Option<LatencyHistogram>) -> LatencyHistogram {
    let mut new = *now;
    for (new, before) in new.iter_mut().zip(before.iter().flatten()) {
        *new = new.saturating_sub(*before);
    }
    new
}
