//! The table of `cenote-bench alloc`, with the aims beside.

use serde::Serialize;

use super::latency::{PeerRow, Row};
use super::load::Load;

/// Aims: seconds to load, bits of memory per sector, microseconds of the slowest but one of ten
/// thousand allocations.
const LOAD_SECONDS: f64 = 0.1;
const BITS_PER_SECTOR: f64 = 1.25;
const P9999_MICROS: f64 = 1000.0;

/// Everything that was measured.
#[derive(Serialize)]
pub struct Report {
    /// Records of each spoiled metaslab's space map.
    pub records: u64,
    /// Its free segments.
    pub segments: u64,
    /// Loads of single metaslabs.
    pub loads: Vec<Load>,
    /// The peer's loads.
    pub peer: Vec<Load>,
    /// Threads that allocated.
    pub threads: usize,
    /// Processors that there were for them and for loading.
    pub processors: usize,
    /// Latencies of allocations.
    pub allocations: Vec<Row>,
    /// The peer's.
    pub peer_allocations: Vec<PeerRow>,
}

/// Median and maximum of a figure of some loads; `None` without loads.
fn of(loads: &[Load], cold: bool, figure: impl Fn(&Load) -> f64) -> Option<(f64, f64)> {
    let mut all: Vec<f64> = loads.iter().filter(|l| l.cold == cold).map(figure).collect();
    all.sort_by(f64::total_cmp);
    Some((*all.get(all.len() / 2)?, *all.last()?))
}

/// Prints the report.
pub fn print(report: &Report, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    println!(
        "A metaslab of 16 GiB, {} records, {} free segments, none above 168 KiB",
        report.records, report.segments
    );
    println!("{:<36} {:>12} {:>12} {:>12} {:>10}", "", "median", "worst", "aim", "libzpool");
    for (name, cold, figure, unit, aim) in [
        (
            "load, cold",
            true,
            (|l| l.seconds * 1e3) as fn(&Load) -> f64,
            "ms",
            Some(LOAD_SECONDS * 1e3),
        ),
        ("load, cached", false, |l| l.seconds * 1e3, "ms", Some(LOAD_SECONDS * 1e3)),
        ("CPU time of a load, cold", true, |l| l.cpu_seconds * 1e3, "ms", None),
        ("memory", true, |l| l.memory as f64 / 1024.0, "KiB", None),
        ("memory per sector", true, |l| l.bits_per_sector, "bits", Some(BITS_PER_SECTOR)),
    ] {
        let number = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.2} {unit}"));
        let ours = of(&report.loads, cold, figure);
        println!(
            "{name:<36} {:>12} {:>12} {:>12} {:>10}",
            number(ours.map(|o| o.0)),
            number(ours.map(|o| o.1)),
            number(aim),
            number(of(&report.peer, cold, figure).map(|p| p.0)),
        );
    }
    println!(
        "\nAllocating threads: {}, beside one that loads; processors: {}",
        report.threads, report.processors
    );
    print_rows(&report.allocations, &report.peer_allocations);
    Ok(())
}

fn print_rows(rows: &[Row], peer: &[PeerRow]) {
    println!(
        "{:<40} {:>8} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9} {:>6} {:>8} {:>5} {:>6} {:>7}",
        "allocations, microseconds",
        "count",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "slowest",
        "CPU",
        "locked",
        "longest",
        "loads",
        "waited",
        "in vain"
    );
    for row in rows {
        let [p50, p99, p999, p9999, slowest] = row.micros;
        println!(
            "{:<40} {:>8} {p50:>7.1} {p99:>7.1} {p999:>8.1} {p9999:>9.1} {slowest:>9.1} {:>9.1} {:>6} {:>8.1} {:>5} {:>6} {:>7}",
            row.name,
            row.count,
            row.cpu_micros[3],
            row.lock_waits.0,
            row.lock_waits.2,
            row.loads,
            row.waits.0,
            row.waits.1,
        );
        for row in peer.iter().filter(|peer| peer.name == row.key) {
            let [p50, p99, p999, p9999, slowest] = row.micros;
            println!(
                "{:>40} {:>8} {p50:>7.1} {p99:>7.1} {p999:>8.1} {p9999:>9.1} {slowest:>9.1}",
                "libzpool", row.count
            );
        }
    }
    println!(
        "aim: p99.99 at most {P9999_MICROS:.0} while metaslabs are loaded, none in vain. CPU: p99.99 of \
the thread's own CPU time.\nLocked: times that a lock was not free, and the longest wait for one. \
libzpool loads nothing ahead here: who\nneeds a metaslab loads it."
    );
}
