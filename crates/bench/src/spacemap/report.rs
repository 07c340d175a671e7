//! The table of `cenote-bench spacemap`.

use super::{Blocks, Io, Measured, Side};

/// What is known of OpenZFS 2.4.4's libzpool without assertions.
const KNOWN: &str = "\
Known of OpenZFS 2.4.4's libzpool without assertions (8 GiB pool on tmpfs, 255 metaslabs of 32 MiB, 67 to 71%
full, ashift 12, 2 cores), log space maps on/off:
   4 MiB a group:  8,540/5,550 overwrites/s, pass 1 93%/68%, 9/1,168 space map I/Os and 1,257/2,140 device
                   writes a group, CPU 117/188 us an overwrite
  32 MiB a group: 17,700/17,400 overwrites/s, pass 1 96%/85%, 19/1,598 space map I/Os and 3,980/4,782 device
                   writes a group, CPU 60/57 us an overwrite
The packaged libzpool that runs here is older and checks its assertions: it is slower than that.
Device writes are counted after aggregation, I/Os before: libzpool's once for each copy of a block, cenote's
once for all copies; bytes are of all copies. \"of data\" are the device writes that carry data.
Pass 1 is the first pass's share of the whole sync, labels and uberblocks included, as in what is known of
2.4.4; \"of passes\" is its share of all passes, which end where labels and uberblocks begin. \"compared\" is the
share of the sync in which figures that are known from two sides are compared before the uberblock.";

/// Prints the measurements, and how they compare.
pub fn print(sides: &[Side], runs: usize) {
    if let Some(row) = sides.iter().flat_map(|side| &side.rows).next() {
        let Measured { metaslabs, .. } = row;
        println!(
            "{metaslabs} metaslabs, random 8 KiB overwrites; per transaction group unless said; {}",
            if runs > 1 { format!("the median of {runs} runs") } else { "one run".into() }
        );
    }
    println!(
        "{:<9} {:>5} {:>4} {:>9} {:>8} {:>7} {:>9} {:>6} {:>7} {:>8} {:>8} {:>7} {:>7} {:>7} {:>6} {:>7} {:>7} {:>6} {:>5} {:>7} {:>8}",
        "engine",
        "dirty",
        "logs",
        "overwr/s",
        "sync ms",
        "pass 1",
        "of passes",
        "passes",
        "sm I/Os",
        "indirect",
        "meta I/O",
        "meta MB",
        "dev wr.",
        "of data",
        "dev MB",
        "wr./ovw",
        "CPU us",
        "RSS MB",
        "full",
        "touched",
        "compared"
    );
    let mut dirty: Vec<u64> = sides.iter().flat_map(|s| &s.rows).map(|r| r.dirty).collect();
    dirty.sort_unstable();
    dirty.dedup();
    for dirty in &dirty {
        for side in sides {
            side.rows.iter().filter(|row| row.dirty == *dirty).for_each(|row| line(side.name, row));
        }
    }
    println!();
    for dirty in dirty {
        compare(sides, dirty);
    }
    println!("\n{KNOWN}");
}

fn line(engine: &str, row: &Measured) {
    let per = |n: u64| n as f64 / row.txgs.max(1) as f64;
    let Blocks { indirect, space_map, other, .. } = row.blocks;
    let meta = |get: fn(&Io) -> u64| {
        per([indirect.unwrap_or_default(), space_map, other].iter().map(get).sum())
    };
    println!(
        "{:<9} {:>5} {:>4} {:>9.0} {:>8.2} {:>6.1}% {:>8.1}% {:>6.1} {:>7.0} {:>8} {:>8.0} {:>7.1} {:>7.0} {:>7} {:>6.1} {:>7.2} {:>7.1} {:>6} {:>4.0}% {:>7} {:>8}",
        engine,
        format!("{}M", row.dirty >> 20),
        if row.logs { "on" } else { "off" },
        row.overwrites as f64 / row.seconds,
        row.sync_seconds * 1e3 / row.txgs.max(1) as f64,
        row.first_pass_seconds * 100.0 / row.sync_seconds,
        row.first_pass_seconds * 100.0 / row.passes_seconds,
        per(row.passes),
        per(space_map.ios),
        indirect.map_or("-".into(), |io| format!("{:.0}", per(io.ios))),
        meta(|io| io.ios),
        meta(|io| io.bytes) / 1e6,
        per(row.device_writes),
        row.data_writes.map_or("-".into(), |n| format!("{:.0}", per(n))),
        per(row.device_bytes) / 1e6,
        row.device_writes as f64 / row.overwrites as f64,
        row.cpu_seconds * 1e6 / row.overwrites as f64,
        row.memory >> 20,
        row.full * 100.0,
        row.touched,
        row.compared_seconds
            .map_or("-".into(), |s| format!("{:.2}%", s * 100.0 / row.sync_seconds)),
    );
}

fn compare(sides: &[Side], dirty: u64) {
    let find = |name: &str, logs: bool| {
        let side = sides.iter().find(|side| side.name == name)?;
        side.rows.iter().find(|row| row.dirty == dirty && row.logs == logs)
    };
    let rate = |row: &Measured| row.overwrites as f64 / row.seconds;
    let writes = |row: &Measured| row.device_writes as f64 / row.overwrites as f64;
    let mut said = Vec::new();
    for name in ["cenote", "libzpool"] {
        if let (Some(on), Some(off)) = (find(name, true), find(name, false)) {
            said.push(format!("{name} on/off {:.2}", rate(on) / rate(off)));
        }
    }
    if let (Some(our), Some(their)) = (find("cenote", true), find("libzpool", true)) {
        said.push(format!(
            "cenote/libzpool, logs on: overwrites/s {:.2}, device writes {:.2}, CPU {:.2}",
            rate(our) / rate(their),
            writes(our) / writes(their),
            our.cpu_seconds / their.cpu_seconds,
        ));
    }
    println!("{:>2} MiB: {}", dirty >> 20, said.join("; "));
}
