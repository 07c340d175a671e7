//! The tables that `cenote-bench` prints.
//!
//! There is one for reads, one for cached reads, one for writes and one for mounts. A row has the rate (MB/s, or
//! operations a second where no bytes are counted), the same of the peers where they have the row, ratios, and
//! processor time per GiB or operation. Below a table stand figures that are known from elsewhere, and what makes
//! the peer here slower than it could be.
//!
//! A row during which the host took more than 5% of a processor away is named, since it looks slower than it is.

use crate::cached::Cached;
use crate::measure::Run;
use crate::mounted::Rows;

/// OpenZFS 2.4.4's libzpool without assertions, jemalloc preloaded, tmpfs, 2 cores: what is known
/// of the engine at its best, beside the packaged build that runs here.
const KNOWN: &str = "Known of OpenZFS 2.4.4's libzpool without assertions (tmpfs, 2 cores): \
sequential 128 KiB cold 1600 MB/s.\nThe packaged libzpool that runs here is older and checks its assertions: \
it is slower than that.";

fn rate(run: &Run) -> f64 {
    if run.bytes > 0 { run.bytes as f64 / 1e6 / run.seconds } else { run.ops as f64 / run.seconds }
}

/// Seconds for each GiB that a row delivered.
fn per_gib(run: &Run, seconds: f64) -> String {
    let gib = run.bytes as f64 / (1u64 << 30) as f64;
    if run.bytes > 0 { format!("{:.3}", seconds / gib) } else { "-".into() }
}

/// Stolen time, as a share of the wall time, from which on a row is said to have suffered.
const MUCH_STOLEN: f64 = 0.05;

/// Names the rows that a busy host made look slower than they are.
fn print_stolen(system: &str, runs: &[Run]) {
    let much = |run: &&Run| run.stolen() >= MUCH_STOLEN;
    for run in runs.iter().filter(much) {
        let percent = run.stolen() * 100.0;
        println!("The host took away {percent:.0}% of a processor from {system}: {}", run.row);
    }
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
        let cpu = |r: &Run| per_gib(r, r.cpu_seconds);
        println!(
            "{:<26} {:>6} {:>11.0} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9}",
            run.row,
            if run.bytes > 0 { "MB/s" } else { "ops/s" },
            rate(run),
            number(&raw),
            number(&peer),
            ratio(&raw),
            ratio(&peer),
            cpu(run),
            peer.as_ref().map_or("-".into(), cpu),
        );
    }
    println!("\n{KNOWN}");
}

/// What is known of the same engine at reads that are cached.
const KNOWN_CACHED: &str = "Known of OpenZFS 2.4.4's libzpool without assertions on such a machine: 160,000 random \
reads/s at\n8.5 us of CPU time each with one thread, 190,000 with two. The packaged libzpool that runs here is older and \
checks\nits assertions: it is slower than that.";

/// Prints one line per row of reads that are cached.
pub fn print_cached(ours: &[Cached], peer: &[Run]) {
    println!(
        "\n{:<26} {:>10} {:>10} {:>8} {:>12} {:>12} {:>12}",
        "cached 8K records in 3K",
        "reads/s",
        "libzpool",
        "ratio",
        "CPU us/read",
        "libzpool",
        "copied/read"
    );
    for Cached { run, copied } in ours {
        let peer = peer.iter().find(|r| r.row == run.row);
        let rate = |r: &Run| r.ops as f64 / r.seconds;
        let micros = |r: &Run| format!("{:.2}", r.cpu_seconds * 1e6 / r.ops as f64);
        println!(
            "{:<26} {:>10.0} {:>10} {:>8} {:>12} {:>12} {:>12.0}",
            run.row,
            rate(run),
            peer.map_or("-".into(), |r| format!("{:.0}", rate(r))),
            peer.map_or("-".into(), |r| format!("{:.2}", rate(run) / rate(r))),
            micros(run),
            peer.map_or("-".into(), micros),
            *copied as f64 / run.ops as f64,
        );
    }
    println!("\n{KNOWN_CACHED}");
    let ours: Vec<Run> = ours.iter().map(|c| c.run.clone()).collect();
    print_stolen("cenote", &ours);
    print_stolen("libzpool", peer);
}

/// What is known of the same engine at writing.
const KNOWN_WRITE: &str = "Known of OpenZFS 2.4.4's libzpool without assertions (tmpfs, 2 cores): \
sequential 128 KiB 1200 MB/s at 0.35 to 0.45 s of user CPU time per GiB.\nThe packaged libzpool that runs here is older \
and checks its assertions: it is slower than that.";

/// Prints one line per row of `ours`, with the peer's figures where it has the row.
pub fn print_write(ours: &[Run], peer: &[Run]) {
    println!(
        "{:<24} {:>6} {:>10} {:>10} {:>8} {:>12} {:>12} {:>10} {:>10}",
        "row",
        "unit",
        "cenote",
        "libzpool",
        "ratio",
        "CPU us/op",
        "libzpool CPU",
        "user s/GiB",
        "libzpool"
    );
    for run in ours {
        let peer = peer.iter().find(|r| r.row == run.row);
        let micros = |r: &Run| format!("{:.1}", r.cpu_seconds * 1e6 / r.ops as f64);
        let user = |r: &Run| per_gib(r, r.user_seconds);
        println!(
            "{:<24} {:>6} {:>10.0} {:>10} {:>8} {:>12} {:>12} {:>10} {:>10}",
            run.row,
            if run.bytes > 0 { "MB/s" } else { "ops/s" },
            rate(run),
            peer.map_or("-".into(), |r| format!("{:.0}", rate(r))),
            peer.map_or("-".into(), |r| format!("{:.2}", rate(run) / rate(r))),
            micros(run),
            peer.map_or("-".into(), micros),
            user(run),
            peer.map_or("-".into(), user),
        );
    }
    println!("\n{KNOWN_WRITE}");
    print_stolen("cenote", ours);
    print_stolen("libzpool", peer);
}

/// What is known of zfs-fuse beside btrfs, by the rows' names.
const KNOWN_ZFS_FUSE: [(&str, f64); 6] = [
    ("sequential write", 0.94),
    ("sequential read, cold", 0.65),
    ("random 8K writes", 0.94),
    ("create 20000 files", 0.34),
    ("untar", 0.23),
    ("stat all, cold", 0.06),
];

/// Prints one line per row that any of the mounted file systems has.
pub fn print_mounted(all: &[Rows]) {
    println!(
        "\n{:<24} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "through a mount",
        "unit",
        "cenote",
        "btrfs",
        "zfs-fuse",
        "/ btrfs",
        "/ zfs-f",
        "zfs-f/btr",
        "known",
        "CPU us",
        "btrfs",
        "zfs-fuse",
        "daemon s",
        "zfs-fuse"
    );
    let of = |system: &str| all.iter().find(|r| r.system == system).map_or(&[][..], |r| &r.rows);
    let mut rows: Vec<&str> = Vec::new();
    for run in all.iter().flat_map(|r| &r.rows) {
        if !rows.contains(&run.row.as_str()) {
            rows.push(&run.row);
        }
    }
    for row in rows {
        let [cenote, btrfs, zfs_fuse] =
            ["cenote", "btrfs", "zfs-fuse"].map(|s| of(s).iter().find(|r| r.row == row));
        let bytes = [cenote, btrfs, zfs_fuse].into_iter().flatten().any(|r| r.bytes > 0);
        let number = |r: Option<&Run>| r.map_or("-".into(), |r| format!("{:.0}", rate(r)));
        let micros = |r: Option<&Run>| {
            r.map_or("-".into(), |r| format!("{:.1}", r.cpu_seconds * 1e6 / r.ops as f64))
        };
        let server = |r: Option<&Run>| r.map_or("-".into(), |r| format!("{:.2}", r.server_seconds));
        let ratio = |a: Option<&Run>, b: Option<&Run>| match (a, b) {
            (Some(a), Some(b)) => format!("{:.2}", rate(a) / rate(b)),
            _ => "-".into(),
        };
        let known = KNOWN_ZFS_FUSE.iter().find(|(name, _)| *name == row);
        println!(
            "{:<24} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6} {:>8} {:>8} {:>8} {:>8} {:>8}",
            row,
            if bytes { "MB/s" } else { "ops/s" },
            number(cenote),
            number(btrfs),
            number(zfs_fuse),
            ratio(cenote, btrfs),
            ratio(cenote, zfs_fuse),
            ratio(zfs_fuse, btrfs),
            known.map_or("-".into(), |(_, known)| format!("{known:.2}")),
            micros(cenote),
            micros(btrfs),
            micros(zfs_fuse),
            server(cenote),
            server(zfs_fuse),
        );
    }
    println!("\n{MOUNTED}");
    all.iter().for_each(|system| print_stolen(&system.system, &system.rows));
}

/// Prints the rows beside the rows of an earlier program, named `before`, if that was measured.
pub fn print_before(all: &[Rows], before: &str) {
    let of = |system: &str| all.iter().find(|r| r.system == system);
    let (Some(earlier), Some(now)) = (of(before), of("cenote")) else { return };
    println!(
        "\n{:<24} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "cenote, by turns", "before", "now", "ratio", "daemon s", "now", "CPU us", "now"
    );
    for now in &now.rows {
        let Some(earlier) = earlier.rows.iter().find(|r| r.row == now.row) else { continue };
        let micros = |r: &Run| r.cpu_seconds * 1e6 / r.ops as f64;
        println!(
            "{:<24} {:>9.0} {:>9.0} {:>7.2} {:>9.2} {:>9.2} {:>9.1} {:>9.1}",
            now.row,
            rate(earlier),
            rate(now),
            rate(now) / rate(earlier),
            earlier.server_seconds,
            now.server_seconds,
            micros(earlier),
            micros(now),
        );
    }
}

/// How to read the table.
const MOUNTED: &str = "Known: zfs-fuse beside btrfs, as others measured it. CPU us/op: the program and \
the daemon;\ndaemon s: CPU seconds of the daemon in the row;\nwhat btrfs does in the kernel's own threads is not counted. Compressed rows: cenote lz4, \
btrfs lzo,\nzfs-fuse lzjb. Calls of 1 MiB; all but reads and stat end when everything is on disk.";
