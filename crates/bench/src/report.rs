//! The table that `cenote-bench` prints.

use crate::measure::Run;

/// OpenZFS 2.4.4's libzpool without assertions, jemalloc preloaded, tmpfs, 2 cores: what is known
/// of the engine at its best, beside the packaged build that runs here.
const KNOWN: &str = "Known of OpenZFS 2.4.4's libzpool without assertions (tmpfs, 2 cores): \
sequential 128 KiB cold 1600 MB/s.\nThe packaged libzpool that runs here is older and checks its assertions: \
it is slower than that.";

fn rate(run: &Run) -> f64 {
    if run.bytes > 0 { run.bytes as f64 / 1e6 / run.seconds } else { run.ops as f64 / run.seconds }
}

/// Prints one line per row of `ours`, with the raw file's and the peer's figures where they have
/// the row.
pub fn print(ours: &[Run], raw: &[Run], peer: &[Run]) {
    println!(
        "{:<26} {:>6} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9}",
        "row",
        "unit",
        "cenote",
        "raw file",
        "libzpool",
        "/ raw",
        "/ libzp",
        "CPU s/GiB",
        "libzp CPU"
    );
    for run in ours {
        let find = |runs: &[Run]| runs.iter().find(|r| r.row == run.row).cloned();
        let (raw, peer) = (find(raw), find(peer));
        let number = |r: &Option<Run>| r.as_ref().map_or("-".into(), |r| format!("{:.0}", rate(r)));
        let ratio = |r: &Option<Run>| {
            r.as_ref().map_or("-".into(), |r| format!("{:.2}", rate(run) / rate(r)))
        };
        let per_gib = |r: &Run| {
            let gib = r.bytes as f64 / (1u64 << 30) as f64;
            if r.bytes > 0 { format!("{:.3}", r.cpu_seconds / gib) } else { "-".into() }
        };
        println!(
            "{:<26} {:>6} {:>11.0} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9}",
            run.row,
            if run.bytes > 0 { "MB/s" } else { "ops/s" },
            rate(run),
            number(&raw),
            number(&peer),
            ratio(&raw),
            ratio(&peer),
            per_gib(run),
            peer.as_ref().map_or("-".into(), per_gib),
        );
    }
    println!("\n{KNOWN}");
}

/// What is known of the same engine at writing.
const KNOWN_WRITE: &str = "Known of OpenZFS 2.4.4's libzpool without assertions (tmpfs, 2 cores): \
sequential 128 KiB 1200 MB/s at 0.35 to 0.45 CPU s/GiB.\nThe packaged libzpool that runs here is older \
and checks its assertions: it is slower than that.";

/// Prints one line per row of `ours`, with the peer's figures where it has the row.
pub fn print_write(ours: &[Run], peer: &[Run]) {
    println!(
        "{:<24} {:>6} {:>10} {:>10} {:>8} {:>12} {:>12}",
        "row", "unit", "cenote", "libzpool", "ratio", "CPU us/op", "libzpool CPU"
    );
    for run in ours {
        let peer = peer.iter().find(|r| r.row == run.row);
        let micros = |r: &Run| format!("{:.1}", r.cpu_seconds * 1e6 / r.ops as f64);
        println!(
            "{:<24} {:>6} {:>10.0} {:>10} {:>8} {:>12} {:>12}",
            run.row,
            if run.bytes > 0 { "MB/s" } else { "ops/s" },
            rate(run),
            peer.map_or("-".into(), |r| format!("{:.0}", rate(r))),
            peer.map_or("-".into(), |r| format!("{:.2}", rate(run) / rate(r))),
            micros(run),
            peer.map_or("-".into(), micros),
        );
    }
    println!("\n{KNOWN_WRITE}");
}
