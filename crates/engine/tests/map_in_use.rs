//! The map of a pool that is written all the time is that of one transaction group, whole and exact.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::Engine;
use cenote_inspect::map::{InUse, SpaceMapReport, UnflushedMap};
use cenote_zpl::FileSystem;
use rig::Rig;
use std::sync::atomic::{AtomicBool, Ordering};

const FILES: u64 = 24;
const LEN: usize = 150_000;

fn overwrite(engine: &Engine, fs: &FileSystem, round: u64) {
    for i in [round % FILES, round * 7 % FILES, round * 11 % FILES] {
        let _ = fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false);
        rig::fill(fs, i..i + 1, LEN);
    }
    engine.sync().unwrap();
}

/// The report says what is on disk, and all of it has owners.
fn check(in_use: &InUse) -> SpaceMapReport {
    let mut report = in_use.report().unwrap();
    assert_eq!(report.check(), Ok(()));
    // Replayed from disk it is the same, but for what only memory knows.
    let mut replayed = SpaceMapReport::of(in_use.pool()).unwrap();
    let ours = report.vdevs.iter().flat_map(|v| &v.metaslabs);
    let theirs = replayed.vdevs.iter_mut().flat_map(|v| &mut v.metaslabs);
    ours.zip(theirs).for_each(|(our, their)| their.loaded = our.loaded);
    assert_eq!(report, replayed);
    report.add_owners(in_use.pool(), 2, &|_, _| {}, &|| false).unwrap();
    assert_eq!(report.owners.as_ref().unwrap().missed, 0);
    for m in report.metaslabs() {
        assert_eq!(m.owners.iter().map(|s| s.bytes).sum::<u64>(), m.allocated, "{m:?}");
    }
    report
}

#[test]
fn nothing_is_missed_while_a_pool_is_overwritten() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("A B", 12);
    let fs = rig::open(&engine);
    rig::fill(&fs, 0..FILES, LEN);
    engine.sync().unwrap();
    let stop = AtomicBool::new(false);
    let mut unflushed = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(|round| {
                overwrite(&engine, &fs, round);
            });
        });
        for _ in 0..6 {
            let in_use = InUse::of(&engine).unwrap();
            let txg = in_use.pool().uberblock().txg;
            // Long enough for freed space to be used again, if it were not held.
            while engine.pool().uberblock().txg < txg + 8 {
                engine.sync().unwrap();
            }
            let report = check(&in_use);
            assert_eq!(report.txg, txg);
            assert!(!in_use.is_gone());
            assert!(report.metaslabs().any(|m| m.loaded));
            unflushed +=
                report.metaslabs().filter(|m| m.unflushed != UnflushedMap::default()).count();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(unflushed > 0);
    // When nothing is held any more, what was kept back comes into circulation.
    let in_use = InUse::of(&engine).unwrap();
    (0..12).for_each(|round| overwrite(&engine, &fs, round));
    let kept = engine.allocator().deferred();
    drop(in_use);
    (0..3).for_each(|round| overwrite(&engine, &fs, round));
    let now = engine.allocator().deferred();
    assert!(now < kept / 2, "{kept} bytes kept back, then {now}");
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn a_pool_that_gets_full_goes_on() {
    let rig = Rig::new(128 << 20);
    let engine = rig.create("A", 12);
    let fs = rig::open(&engine);
    rig::fill(&fs, 0..FILES, LEN);
    engine.sync().unwrap();
    let in_use = InUse::of(&engine).unwrap();
    // Each round frees what the last one wrote; all of it is kept back until it is too much.
    for round in 0..600 {
        overwrite(&engine, &fs, round);
        if in_use.is_gone() {
            break;
        }
    }
    assert!(in_use.is_gone());
    for round in 0..20 {
        overwrite(&engine, &fs, round);
    }
    check(&InUse::of(&engine).unwrap());
    drop(in_use);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
