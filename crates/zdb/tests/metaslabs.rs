//! What `zdb` says of metaslabs and log space maps, line by line against OpenZFS's `zdb` on the same
//! devices: pools of ours that have aged, exported with their logs and without, and sample pools.
//!
//! The installed `zdb` is OpenZFS 2.1's and ours speaks as 2.3's does, which is what
//! `sections.rs` compares with. So our text is put into the older words first ([`older`]). Only
//! where these differ for a reason is something else compared than the line:
//!
//! | line | 2.1 | 2.3 |
//! |---|---|---|
//! | `vdev` | | says the metaslab shift as well |
//! | an entry | end is exclusive; always a vdev, and the number of words | end is inclusive; a vdev in entries of two words |
//! | `On-disk histogram: fragmentation` | a table that ends at 16 MiB | a table that ends at 512 MiB: the number is computed anew here, from our histogram |
//! | fragmentation with `-M` | mean of metaslabs | mean of their free bytes: not compared |
//!
//! The samples with live logs have features that the installed one refuses; what OpenZFS 2.3 says of
//! those is in `sections.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../engine/tests/rig/mod.rs"]
mod rig;
mod support;

use cenote_engine::Engine;
use cenote_engine::tunables;
use cenote_pool::metaslab::PoolSpace;
use cenote_zpl::{FileSystem, Settings};
use parking_lot::{Mutex, MutexGuard};
use rig::Rig;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a record.
const RECORD: u64 = 8 << 10;
/// Records of the file that is overwritten.
const RECORDS: u64 = 1200;

/// Tunables are of the process: tests that make pools take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Pools have as many metaslabs as possible, and keep their logs at export if asked to.
struct Tuned(#[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Tuned {
    fn new(keep_logs: bool) -> Tuned {
        let turn = TURN.lock();
        let shift = &tunables::VDEV_DEFAULT_MS_SHIFT;
        shift.set(shift.range.0).unwrap();
        tunables::KEEP_LOGS_AT_EXPORT.set(u64::from(keep_logs)).unwrap();
        Tuned(turn)
    }
}

impl Drop for Tuned {
    fn drop(&mut self) {
        for tunable in [&tunables::VDEV_DEFAULT_MS_SHIFT, &tunables::KEEP_LOGS_AT_EXPORT] {
            tunable.set(tunable.default).unwrap();
        }
    }
}

/// Numbers in no order.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Overwrites records at random, many transaction groups of them.
fn age(engine: &Arc<Engine>, txgs: u64) {
    let root = engine.pool().dsl().root().unwrap();
    let settings = Settings { record_size: RECORD, ..Settings::default() };
    let fs = FileSystem::open_live(engine.live(root.ds_obj).unwrap(), settings).unwrap();
    let name = b"database";
    let file = fs.lookup(fs.root(), name).unwrap_or_else(|_| {
        let file = fs.create(fs.root(), name, &rig::NODE).unwrap().ino;
        let data = rig::bytes(1, (RECORD * RECORDS) as usize);
        for (i, part) in (0..).zip(data.chunks(128 << 10)) {
            fs.write(file, i * (128 << 10), part, false).unwrap();
        }
        file
    });
    let mut random = Random(engine.pool().uberblock().txg);
    for _ in 0..txgs {
        for _ in 0..60 {
            let record = random.below(RECORDS);
            let data = rig::bytes(random.below(1 << 30), RECORD as usize);
            fs.write(file, record * RECORD, &data, false).unwrap();
        }
        engine.sync().unwrap();
    }
}

/// Weight of free segments of `512 << i` bytes and more in OpenZFS 2.1 (`zfs_frag_table`).
const OLD_WEIGHTS: [u64; 16] = [100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0];
/// What 2.1 shows for no vdev (`SM_NO_VDEVID`).
const NO_VDEV: u64 = 1 << 24;

/// A line of a histogram: log2 of the bytes, how many.
fn bucket(line: &str) -> Option<(u32, u64)> {
    let (shift, rest) = line.strip_prefix("\t\t\t ")?.trim_start().split_once(':')?;
    Some((shift.parse().ok()?, rest.split_whitespace().next()?.parse().ok()?))
}

/// The fragmentation of a histogram, whose lines come first, as 2.1 has it.
fn old_fragmentation(lines: &[&str]) -> u64 {
    let (mut total, mut weighted) = (0, 0);
    for (shift, count) in lines.iter().map_while(|line| bucket(line)) {
        let index = (shift as usize - 9).min(OLD_WEIGHTS.len() - 1);
        total += count << shift;
        weighted += (count << shift) * OLD_WEIGHTS[index];
    }
    u64::checked_div(weighted, total).unwrap_or(0)
}

/// Our line in the words of OpenZFS 2.1; `next` are the lines after it.
fn older(line: &str, next: &[&str]) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["vdev", id, ..] if line.contains("  metaslab shift ") => {
            let (start, end) = line.split_once("  metaslab shift ").unwrap();
            let bias = start.rsplit('\t').next().unwrap();
            format!("\tvdev {id:>10}   {bias}{}", &end[4..])
        }
        ["On-disk", "histogram:", "fragmentation", _] => {
            format!("\tOn-disk histogram:\t\tfragmentation {}", old_fragmentation(next))
        }
        ["[", id, kind, "range:", range, "size:", size, ref vdev @ ..] => {
            let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
            let (start, last) = range.split_once('-').map(|(s, e)| (hex(s), hex(e))).unwrap();
            let (vdev, words) = match vdev {
                ["vdev:", vdev] => (vdev.parse().unwrap(), 2),
                _ => (NO_VDEV, 1),
            };
            let (id, size, end) = (id.trim_end_matches(']'), hex(size), last + 1);
            format!(
                "\t    [{id:>6}]    {kind}  range: {start:010x}-{end:010x}  size: {size:06x} \
                 vdev: {vdev:06} words: {words}"
            )
        }
        _ => line.to_string(),
    }
}

/// The line without a vdev's or a pool's fragmentation.
fn without_mean(line: &str) -> &str {
    match line.split_once("fragmentation") {
        Some((start, mean)) if mean.ends_with('%') => start,
        _ => line,
    }
}

/// How the second line of a failed assertion starts.
const WORSE: &str = "ASSERT at ";

/// Both print the same with `option`, of the pool or some of it.
fn alike(dir: &Path, pool: &str, option: &str, some: &[&str]) {
    let mut args = vec!["-e", "-p", dir.to_str().unwrap(), option, pool];
    args.extend(some);
    // OpenZFS expects that a metaslab is no worse once it is loaded. Where allocations are not flushed
    // yet its space map's histogram may promise more, and a build with assertions would stop there.
    let theirs = [&["-A"], &args[..]].concat();
    let (theirs, said) = cenote_testpools::zdb_output(cenote_testpools::zdb_command(&theirs));
    assert!(theirs.status.success(), "{args:?}: {said}");
    let complaints = String::from_utf8_lossy(&theirs.stderr).into_owned();
    let other =
        |line: &&str| !(line.starts_with("weight <= msp->ms_weight") || line.starts_with(WORSE));
    assert_eq!(complaints.lines().find(other), None, "{args:?}");
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    let (ours, errors, code) = support::zdb(&args);
    assert_eq!((code, errors.as_str()), (0, ""), "{args:?}");
    let ours: Vec<&str> = ours.lines().collect();
    let theirs: Vec<&str> = theirs.lines().collect();
    for (i, (our, their)) in ours.iter().zip(&theirs).enumerate() {
        let our = older(our, &ours[i + 1..]);
        assert_eq!(without_mean(&our), without_mean(their), "{args:?}: line {}", i + 1);
    }
    let (our, their) = (ours.len(), theirs.len());
    assert_eq!(our, their, "{args:?}: {:?}", ours.get(their).or(theirs.get(our)));
    assert!(our > 1, "{args:?}: {ours:?}");
}

/// Everything that there is about metaslabs.
fn all_alike(dir: &Path, pool: &str) {
    for option in ["-m", "-mm", "-mmm", "-mmmmM", "-mmmPL"] {
        alike(dir, pool, option, &[]);
    }
    alike(dir, pool, "-m", &["0"]);
    alike(dir, pool, "-mmmmM", &["0", "3", "1"]);
}

/// A pool that has aged; returns how many log space maps it was exported with.
fn aged(line: &str, size: u64, ashift: u64, keep_logs: bool, feature: bool) -> usize {
    let tuned = Tuned::new(keep_logs);
    let rig = Rig::new(size);
    let engine = rig.create_choosing(line, ashift, &[("log_spacemap".into(), feature)]);
    age(&engine, 8);
    engine.export(false).unwrap();
    drop(engine);
    // What was in use before is in use again, and ages on.
    let engine = rig.import();
    age(&engine, 5);
    engine.export(false).unwrap();
    let pool = engine.pool();
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    drop((engine, tuned));
    assert!(space.vdevs.iter().map(|v| v.metaslabs.len()).sum::<usize>() > 40);
    all_alike(rig.path(), "tank");
    rig.judge_blocks();
    space.logs.len()
}

#[test]
fn many_metaslabs_and_many_logs() {
    let logs = aged("A", 1200 << 20, 12, true, true);
    assert!(logs > 4, "{logs}");
}

#[test]
fn logs_that_were_flushed_at_export() {
    assert_eq!(aged("A B", 512 << 20, 9, false, true), 1);
}

#[test]
fn without_logs() {
    assert_eq!(aged("mirror A B", 768 << 20, 12, false, false), 0);
}

#[test]
fn several_classes() {
    let logs = aged("raidz1 A B C special D log E", 512 << 20, 12, true, true);
    assert!(logs > 4, "{logs}");
}

/// Pools that OpenZFS wrote and the installed one reads, with a log space map and without.
#[test]
fn samples() {
    for name in ["compat21", "legacyd"] {
        all_alike(&cenote_testpools::pool(name).dir, name);
    }
}
