//! What an import reads, and writes, before its first transaction group. OpenZFS's `zdb` finds nothing wrong afterwards; where
//! it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::tunables::SCAN_SUSPEND_PROGRESS;
use cenote_engine::{Engine, EngineOptions};
use cenote_pool::config;
use cenote_pool::devices::Opener;
use cenote_pool::discover;
use cenote_pool::status::ReplayStage;
use cenote_vdev::inject::FaultyDevice;
use cenote_vdev::{Device, open_device, open_device_rw};
use rig::joining::leaf;
use rig::{Faulty, Rig, TIMEOUT, check, fill, open, replaying};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The transaction group of the newest uberblock on the devices.
fn newest(rig: &Rig) -> u64 {
    let found = discover(&[rig.path().to_path_buf()]);
    cenote_pool::import::uberblocks(&found[0]).iter().map(|ub| ub.txg).max().unwrap()
}

/// Devices that take long to answer.
fn slow(delay: Duration) -> Opener {
    Opener::new(move |path, writable| {
        let device = (if writable { open_device_rw } else { open_device })(path)?;
        let slow = FaultyDevice::new(device);
        slow.set_delay(delay);
        Ok(slow as Arc<dyn Device>)
    })
}

/// A pool that a crash leaves with a long intent log, of which the files from 1 on are. A spare is listed.
fn crashed(line: &str, files: u64) -> Rig {
    let rig = Rig::new(64 << 20);
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_with(line, 12, options);
    let fs = open(&engine);
    fill(&fs, 0..1, 100_000);
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    engine.commit(head).unwrap();
    engine.sync().unwrap();
    for file in 1..files {
        fill(&fs, file..file + 1, 4000);
        engine.commit(head).unwrap();
    }
    let copy = rig.copy();
    drop((fs, engine));
    copy
}

/// A device is gone and a spare could step in while intent logs are read for long: what they have is in no space map, so
/// no group is written before they are claimed.
#[test]
fn no_group_comes_before_intent_logs_are_claimed() {
    const FILES: u64 = 200;
    let rig = crashed("mirror a b spare s", FILES);
    std::fs::remove_file(rig.file("b")).unwrap();
    let before = newest(&rig);
    let engine = EngineOptions {
        txg_timeout: Some(Duration::from_millis(50)),
        opener: slow(Duration::from_millis(10)),
        ..replaying()
    };
    let progress = engine.logs.clone();
    let engine = std::thread::scope(|scope| {
        let importing = scope.spawn(|| rig.import_with(engine));
        let mut seen = 0;
        while !importing.is_finished() {
            let reading = || progress.figures().stage == ReplayStage::Reading;
            let was = reading();
            let now = newest(&rig);
            if was && reading() {
                seen += 1;
                assert_eq!(now, before);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(seen > 0);
        importing.join().unwrap()
    });
    let fs = open(&engine);
    check(&fs, 0..1, 100_000);
    check(&fs, 1..FILES, 4000);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[track_caller]
fn until(done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A mirror of which one side fails a flush of the last group, which `txg_timeout` is before.
fn lost_by_a_side(rig: &Rig, faulty: &Faulty, txg_timeout: Duration) -> Arc<Engine> {
    let options = EngineOptions { txg_timeout: Some(txg_timeout), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b", 12, options, faulty);
    fill(&open(&engine), 0..3, 100_000);
    engine.sync().unwrap();
    fill(&open(&engine), 3..5, 100_000);
    faulty.device(rig, "b").fail_flushes(1);
    engine.sync().unwrap();
    engine
}

/// A device loses what a commit flushes, and all power fails before that is noted: the import finds out by its labels.
#[test]
fn what_the_last_commit_lost_is_given_again() {
    let (rig, faulty) = (Rig::new(64 << 20), Faulty::default());
    let engine = lost_by_a_side(&rig, &faulty, TIMEOUT);
    let txg = engine.pool().uberblock().txg;
    let crashed = rig.copy();
    drop((engine, faulty, rig));
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    let engine = crashed.import();
    let (a, b) = (leaf(&crashed, &engine, "a"), leaf(&crashed, &engine, "b"));
    let lacks = |guid| engine.pool().store().vdevs().find(guid).unwrap().missing();
    assert!(lacks(a).is_empty());
    assert!(lacks(b).iter().any(|lost| lost.contains(&txg)), "{:?} {txg}", lacks(b));
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    until(|| lacks(b).is_empty() && !engine.is_scanning());
    engine.detach(a, None).unwrap();
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..5, 100_000);
    engine.export(false).unwrap();
    drop(engine);
    crashed.judge_blocks();
}

/// The same without a failure of power: it is noted although nothing else is written.
#[test]
fn what_a_commit_lost_is_noted() {
    let (rig, faulty) = (Rig::new(64 << 20), Faulty::default());
    let engine = lost_by_a_side(&rig, &faulty, Duration::from_millis(100));
    let b = leaf(&rig, &engine, "b");
    let is_noted = || {
        let pool = engine.pool();
        let root = pool.config().list("vdev_tree").unwrap();
        config::find(root, b).is_some_and(|leaf| config::number(leaf, "DTL") != 0)
    };
    until(is_noted);
    engine.assess_resilver().unwrap();
    until(|| !engine.pool().store().vdevs().find(b).unwrap().is_behind());
    engine.export(false).unwrap();
    drop((engine, faulty));
    rig.judge_blocks();
}
