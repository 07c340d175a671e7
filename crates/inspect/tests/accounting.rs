//! Space and block accounting of every sample pool against what OpenZFS's `zdb` printed about it.
//!
//! | figure | compared with |
//! |---|---|
//! | size, fragmentation | `zpool` properties in the manifest, taken shortly before the export: the fragmentation may have moved by a few points since |
//! | allocated by class, without unflushed changes | `Normal class:` and so on of `zdb -bcc` |
//! | free, unflushed txg, fragmentation and histogram per metaslab | `zdb -m`, `-mm`, `-mmm` |
//! | log space maps, valid entries | `Log Space Map Obsolete Entry Statistics` of `zdb -m` |
//! | blocks, bytes, sharing | `zdb -bcc` |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_inspect::traverse::{self, Event, Options, Subject, Verify};
use cenote_manifest_check::{import, try_import};
use cenote_pool::Pool;
use cenote_pool::metaslab::{AllocClass, PoolSpace};
use parking_lot::Mutex;

fn names() -> Vec<String> {
    cenote_testpools::names()
}

fn subject(pool: &Pool) -> Subject<'_> {
    Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() }
}

/// The number after `label` in a line of `zdb -bcc`.
fn figure(text: &str, label: &str) -> Option<i128> {
    let line = text.lines().find(|l| l.trim_start().starts_with(label))?;
    line.trim_start()[label.len()..].split_whitespace().next()?.parse().ok()
}

fn flushed_alloc(space: &PoolSpace, class: AllocClass) -> i128 {
    let of_class = space.vdevs.iter().filter(|v| v.class == class);
    of_class.flat_map(|v| &v.metaslabs).map(|m| i128::from(m.flushed_alloc())).sum()
}

#[test]
fn sizes_and_fragmentation() {
    for name in names() {
        let files = cenote_testpools::pool(&name);
        let pool = import(&name);
        let space = pool.space().unwrap();
        let props = &files.manifest()["pool_props"];
        let number = |key: &str| props[key].as_str().unwrap().parse::<u64>().ok();
        let stats = space.pool();
        assert_eq!(Some(stats.size), number("size"), "{name}");
        match (stats.fragmentation, number("fragmentation")) {
            (Some(a), Some(b)) => assert!(a.abs_diff(b) <= 3, "{name}: {a}% and {b}%"),
            (a, b) => assert_eq!(a, b, "{name}"),
        }
        // Exporting a pool writes a little.
        let alloc = number("allocated").unwrap();
        assert!(stats.alloc.abs_diff(alloc) <= 256 << 10, "{name}: {} and {alloc}", stats.alloc);
        let text = files.zdb_section(" -bcc ");
        assert_eq!(Some(flushed_alloc(space, AllocClass::Normal)), figure(&text, "Normal class:"));
        let special = figure(&text, "Special class").unwrap_or(0);
        assert_eq!(flushed_alloc(space, AllocClass::Special), special, "{name}");
    }
}

/// What `zdb -mm` (or `-mmm`) says of one metaslab.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lines {
    metaslab: String,
    segments: Option<u64>,
    fragmentation: Option<u64>,
    in_memory: Vec<(u32, u64)>,
    on_disk: Vec<(u32, u64)>,
    length: Option<u64>,
    alloc: Option<u64>,
    unflushed: Option<u64>,
}

fn parse_metaslabs(text: &str) -> Vec<Lines> {
    let mut out: Vec<Lines> = Vec::new();
    let mut vdev = 0;
    let mut in_memory = false;
    for line in text.lines().take_while(|l| !l.starts_with("Log Space Maps")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hex = |w: &str| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok();
        match words[..] {
            ["vdev", id, ..] => vdev = id.parse().unwrap(),
            ["metaslab", id, "offset", offset, "spacemap", map, "free", _] => {
                let metaslab = format!("{vdev}/{id} {offset} {map}");
                out.push(Lines { metaslab, ..Lines::default() });
            }
            _ => {}
        }
        let Some(ms) = out.last_mut() else { continue };
        match words[..] {
            ["segments", n, "maxsize", ..] => ms.segments = n.parse().ok(),
            ["In-memory", "histogram:"] => in_memory = true,
            ["On-disk", "histogram:", "fragmentation", n] => {
                ms.fragmentation = n.parse().ok();
                in_memory = false;
            }
            ["smp_length", "=", n] => ms.length = hex(n),
            ["smp_alloc", "=", n] => ms.alloc = hex(n),
            ["unflushed", txg] => ms.unflushed = txg.strip_prefix("txg=").unwrap().parse().ok(),
            [bucket, count, ..] if line.starts_with("\t\t\t") => {
                let entry = (bucket.trim_end_matches(':').parse().unwrap(), count.parse().unwrap());
                if in_memory { ms.in_memory.push(entry) } else { ms.on_disk.push(entry) }
            }
            _ => {}
        }
    }
    out
}

/// The buckets that `zdb` prints: from the first to the last that is not 0.
fn shown(counts: &[u64; 64]) -> Vec<(u32, u64)> {
    let Some(first) = counts.iter().position(|c| *c != 0) else { return Vec::new() };
    let last = counts.iter().rposition(|c| *c != 0).unwrap();
    (first..=last).map(|i| (i as u32, counts[i])).collect()
}

#[test]
fn metaslabs() {
    let mut compared = 0;
    for name in names() {
        let files = cenote_testpools::pool(&name);
        let pool = import(&name);
        let space = pool.space().unwrap();
        let text = files.zdb_text();
        for level in [" -m ", " -mm ", " -mmm "] {
            if !text.lines().any(|l| l.starts_with("##### ") && l.contains(level)) {
                continue;
            }
            let expected = parse_metaslabs(&files.zdb_section(level));
            let mut got = Vec::new();
            for v in &space.vdevs {
                for ms in &v.metaslabs {
                    let mut lines = Lines {
                        metaslab: format!("{}/{} {:x} {}", v.id, ms.id, ms.start, ms.space_map),
                        length: ms.header.as_ref().map(|h| h.length),
                        alloc: ms.header.as_ref().map(|h| h.alloc as u64),
                        unflushed: space.log_feature.filter(|n| *n > 0).map(|_| ms.unflushed_txg),
                        ..Lines::default()
                    };
                    if level != " -m "
                        && let Some(counts) = ms.header.as_ref().and_then(|h| h.histogram)
                        && space.histogram_feature.is_some_and(|n| n > 0)
                    {
                        use cenote_store::histogram::Histogram;
                        lines.on_disk = shown(Histogram::from_shifted(&counts, v.ashift).counts());
                        lines.fragmentation = ms.fragmentation;
                    }
                    if level == " -mmm " {
                        let free = PoolSpace::load_flushed(pool.mos(), v, ms).unwrap();
                        lines.in_memory = shown(free.histogram().counts());
                        // zdb counts the segments of its size-ordered tree: 16 KiB and more.
                        let large = free.iter().filter(|(s, e)| e - s >= 16 << 10).count();
                        lines.segments = Some(large as u64);
                    }
                    got.push(lines);
                }
            }
            compared += got.len();
            assert_eq!(got, expected, "{name}{level}");
        }
    }
    assert!(compared > 300, "{compared} metaslabs");
}

#[test]
fn log_space_maps() {
    for name in names() {
        let files = cenote_testpools::pool(&name);
        let pool = import(&name);
        let logs = &pool.space().unwrap().logs;
        let text = files.zdb_section(" -m ");
        let expected: Vec<String> =
            text.lines().filter(|l| l.contains("valid entries out of")).map(String::from).collect();
        let mut got: Vec<String> = logs
            .iter()
            .map(|l| {
                format!("{:<8} valid entries out of {:<8} - txg {}", l.valid, l.entries, l.txg)
            })
            .collect();
        if !logs.is_empty() {
            let (valid, all): (u64, u64) =
                logs.iter().fold((0, 0), |(v, e), l| (v + l.valid, e + l.entries));
            got.push(format!("{valid:<8} valid entries out of {all:<8} - total"));
        }
        assert_eq!(got, expected, "{name}");
    }
}

#[test]
fn every_block_is_accounted_for() {
    for name in names() {
        let files = cenote_testpools::pool(&name);
        let pool = import(&name);
        let text = files.zdb_section(" -bcc ");
        let complaints = Mutex::new(Vec::new());
        let options = Options { verify: Verify::All, leaks: true, workers: 2 };
        let event = |e: Event<'_>| {
            let complaint = match e {
                Event::Unreadable { at, errors, .. } => format!("{at:?}: {errors:?}"),
                Event::NotClaimed { at, bp, why } => format!("{at:?} {bp:?}: {why:?}"),
                Event::Damaged(e) => e.to_string(),
                _ => return,
            };
            complaints.lock().push(complaint);
        };
        let space = pool.space().unwrap();
        let report = traverse::run(&subject(&pool), space, &options, &event, &|| false).unwrap();
        assert_eq!(*complaints.lock(), [""; 0], "{name}");
        assert!(report.is_clean(), "{name}: {:?} {:?}", report.leaks, report.obsolete);
        assert_eq!(report.found(), report.allocated, "{name}");
        let total = report.blocks.total();
        for (label, value) in [
            ("bp count:", total.count),
            ("ganged count:", total.gangs),
            ("bp logical:", total.lsize),
            ("bp physical:", total.psize),
            ("bp allocated:", total.asize),
            ("bp deduped:", report.deduped.0),
            ("bp cloned:", report.cloned.0),
        ] {
            assert_eq!(figure(&text, label), Some(i128::from(value)), "{name}: {label}");
        }
        let optional = |label: &str| figure(&text, label).unwrap_or(0);
        assert_eq!(
            optional("additional, non-pointer bps of type 0:"),
            i128::from(report.blocks.embedded[0])
        );
        assert_eq!(optional("Dittoed blocks on same vdev:"), i128::from(total.ditto_same_vdev));
        assert_eq!(
            optional("Dittoed blocks in same metaslab:"),
            i128::from(total.ditto_same_metaslab)
        );
    }
}

/// A damaged byte in a data block is found, and only there; the space still adds up.
#[test]
fn damage_is_found() {
    let copy = cenote_testpools::copy("basic");
    let pool = try_import(&copy.pool).unwrap();
    let space = pool.space().unwrap();
    let victim = Mutex::new(None);
    let options = Options { verify: Verify::Nothing, leaks: false, workers: 2 };
    let pick = |e: Event<'_>| {
        if let Event::Block(found) = e
            && found.kind == 19
            && found.bp.level() == 0
            && let Some(dva) = found.bp.dva(0)
        {
            victim.lock().get_or_insert((found.at, dva));
        }
    };
    traverse::run(&subject(&pool), space, &options, &pick, &|| false).unwrap();
    let (at, dva) = victim.lock().unwrap();
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&copy.pool.files[0]).unwrap();
        file.write_all_at(b"damaged!", dva.offset + cenote_format::LABEL_START).unwrap();
    }
    let damaged = Mutex::new(Vec::new());
    let options = Options { verify: Verify::All, leaks: true, workers: 2 };
    let event = |e: Event<'_>| {
        if let Event::Unreadable { at, .. } = e {
            damaged.lock().push(at);
        }
    };
    let report = traverse::run(&subject(&pool), space, &options, &event, &|| false).unwrap();
    assert_eq!(*damaged.lock(), [at]);
    assert_eq!((report.unreadable, report.leaks.len()), (1, 0));
    assert!(!report.is_clean());
}

/// A traversal that is told to stop does.
#[test]
fn cancelled() {
    let pool = import("basic");
    let space = pool.space().unwrap();
    let options = Options { verify: Verify::All, leaks: false, workers: 2 };
    let report = traverse::run(&subject(&pool), space, &options, &|_| {}, &|| true).unwrap();
    assert_eq!(report.blocks.total().count, 0);
}
