//! The report as a table, and a sentence at its end.

use crate::table::{Column, Table};
use cenote_age::report::MOST;
use cenote_age::{Report, Row, Verdict};
use cenote_dsl::human::{nicebytes, nicenum, nicetime};
use std::io::{self, Write};

/// The columns, and what is in them.
#[rustfmt::skip] // A table: one row per line.
const COLUMNS: [(&str, &str); 12] = [
    ("TIME", "time that was simulated"),
    ("FULL", "how much of the pool is allocated"),
    ("FRAG", "fragmentation of the free space, as in zpool list"),
    ("SPOILED", "how many of the metaslabs with free space are spoiled"),
    ("LARGEST", "the largest free segment, rounded down to a power of two"),
    ("P50", "half of the allocations took no longer, on this machine"),
    ("P99", "99% of them took no longer"),
    ("P99.9", "99.9% of them took no longer"),
    ("RECORDS", "records of space maps per metaslab"),
    ("WRITTEN", "per transaction group, writes of space maps and other metadata that were made, and their bytes"),
    ("MODELLED", "the same of indirect blocks and dnodes, which are counted and allocated but not stored: most of what a real pool writes"),
    ("MS/TXG", "milliseconds that a transaction group took here"),
];
const DAY: f64 = 86_400.0;

fn cells(row: &Row) -> Vec<String> {
    let timing = &row.timing;
    let frag = row.fragmentation.map_or_else(|| "-".into(), |f| format!("{f}%"));
    let amount = |count: f64, bytes: f64| format!("{count:.0}/{}", nicebytes(bytes as u64));
    vec![
        moment(row.time),
        format!("{:.1}%", row.full),
        frag,
        format!("{:.1}%", row.spoiled),
        nicebytes(row.largest),
        nicetime(timing.p50),
        nicetime(timing.p99),
        nicetime(timing.p999),
        nicenum(row.records as u64),
        amount(row.written.count, row.written.bytes),
        amount(row.modelled.count, row.modelled.bytes),
        format!("{:.1}", timing.group_ms),
    ]
}

/// What is in the columns of the table, a line each.
pub(super) fn columns() -> String {
    let lines: String = COLUMNS.iter().map(|(name, about)| format!("{name}: {about}.\n")).collect();
    format!("The columns:\n{lines}")
}

/// A time as short as it can be said.
fn moment(seconds: f64) -> String {
    match seconds {
        s if s >= DAY => format!("{:.1}d", s / DAY),
        s if s >= 3_600.0 => format!("{:.1}h", s / 3_600.0),
        s => format!("{s:.0}s"),
    }
}

/// The table, the free segments at the end, and what became of the pool.
pub(super) fn text(report: &Report) -> io::Result<String> {
    let rows: Vec<Vec<String>> = report.rows.iter().map(cells).collect();
    let mut columns: Vec<Column> =
        COLUMNS.iter().map(|(header, _)| Column::text(*header)).collect();
    for (i, column) in columns.iter_mut().enumerate() {
        column.right = true;
        rows.iter().filter_map(|row| row.get(i)).for_each(|value| column.fit(value, true));
    }
    let table = Table { columns, scripted: false };
    let mut out = Vec::new();
    table.header(&mut out)?;
    for row in &rows {
        table.row(&mut out, row)?;
    }
    if report.rows.is_empty() {
        writeln!(out, "Interrupted while the pool was filled.")?;
        return Ok(String::from_utf8_lossy(&out).into_owned());
    }
    segments(&mut out, report)?;
    writeln!(out, "\n{}", sentence(report))?;
    let cost = &report.simulation;
    writeln!(
        out,
        "Simulated {:.0} times as fast as time, after {:.1} s to fill the pool, with {} of memory.",
        cost.factor,
        cost.fill_seconds,
        nicebytes(cost.memory)
    )?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Free segments by size, at first and at the end.
fn segments(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let (Some(first), Some(last)) = (report.rows.first(), report.rows.last()) else {
        return Ok(());
    };
    writeln!(out, "\nFREE SEGMENTS  AT FIRST  AT THE END")?;
    let count = |row: &Row, i: usize| row.segments.get(i).copied().unwrap_or(0);
    for i in 0..first.segments.len().max(last.segments.len()) {
        let (before, after) = (count(first, i), count(last, i));
        if before + after > 0 {
            let size = nicebytes(1 << i);
            writeln!(out, "{size:>13}  {:>8}  {:>10}", nicenum(before), nicenum(after))?;
        }
    }
    Ok(())
}

/// What became of the pool.
fn sentence(report: &Report) -> String {
    let last = report.rows.last().map_or(0.0, |row| row.time);
    match report.verdict {
        Verdict::Spoiled { after } => format!(
            "Spoiled after {}: more than {MOST}% of the metaslabs with free space cannot hold 128K.",
            moment(after)
        ),
        Verdict::Full { after } => format!("Full after {}, before it was spoiled.", moment(after)),
        Verdict::Well => format!(
            "Not spoiled within {}: no more than {MOST}% of the metaslabs with free space cannot \
             hold 128K.",
            moment(last)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each column is explained in the help, and so in the man page.
    #[test]
    fn columns_are_explained() {
        let own = crate::dispatch::definition();
        let mut age = own.find_subcommand("age").cloned().expect("cenote age");
        let help = age.render_long_help().to_string();
        for (name, _) in COLUMNS {
            assert!(help.contains(&format!("{name}: ")), "{name}: {help}");
        }
    }
}
