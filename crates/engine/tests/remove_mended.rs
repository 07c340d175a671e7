//! A vdev is removed of which something is wrong, and repaired meanwhile: what it was copied to is right as well. In a program of its
//! own, since removals are held back by a tunable.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::planted::Moment;
use cenote_engine::{Engine, EngineOptions};
use cenote_pool::scan::{ScanState, ScanStatus};
use rig::removing::{alone, ended, guid, removal, stand_still, until};
use rig::{Faulty, Rig, TIMEOUT, check, fill, open};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

const SIZE: u64 = 128 << 20;
const LEN: usize = 200_000;
const FILES: u64 = 60;

/// Flips bits all over a device.
fn spoil(rig: &Rig, name: &str) {
    let path = rig.file(name);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (start, end) = (4 << 20, SIZE - (1 << 20));
    let mut bytes = vec![0; (end - start) as usize];
    file.read_exact_at(&mut bytes, start).unwrap();
    bytes.iter_mut().step_by(997).for_each(|byte| *byte ^= 0x5a);
    file.write_all_at(&bytes, start).unwrap();
}

/// A pool of two mirrors; the second side of the first is wrong all over.
fn spoiled(rig: &Rig) -> Arc<Engine> {
    let engine = rig.create("mirror a b mirror c d", 12);
    fill(&open(&engine), 0..FILES, LEN);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    spoil(rig, "b");
    rig.import()
}

fn scrubbed(engine: &Engine) -> ScanStatus {
    engine.scrub().unwrap();
    let scan = || engine.pool().status().unwrap().scan.unwrap();
    until("a scrub does not end", || !scan().is_running());
    scan()
}

fn remove_first(engine: &Engine) {
    engine.remove(guid(engine, 0)).unwrap();
}

fn copied(engine: &Engine) -> u64 {
    removal(engine).copied
}

/// The removal ends. What was repaired is right on every device then.
fn is_right(rig: &Rig, engine: Arc<Engine>) {
    ended(&engine);
    let again = scrubbed(&engine);
    assert_eq!((again.processed, again.errors), (0, 0), "something is wrong still");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    for gone in ["c", "d"] {
        let copy = rig.copy();
        std::fs::remove_file(copy.file(gone)).unwrap();
        let engine = copy.import();
        check(&open(&engine), 0..FILES, LEN);
        engine.export(false).unwrap();
    }
}

/// Has the thread that copies do something once a group has copied, before the vdev can leave.
fn when_some_is_copied(engine: &Arc<Engine>, then: impl FnOnce() + Send + 'static) {
    let theirs = engine.clone();
    engine.stop_at(Moment::ReadToBeMoved, move || {
        let again = theirs.clone();
        theirs.stop_at(Moment::ReadToBeMoved, move || {
            let removal = removal(&again);
            assert!(removal.copied > 0 && removal.state == ScanState::Scanning);
            then();
        });
    });
}

/// Some was copied as it was, wrong, when a scrub repairs the vdev, and the rest is copied afterwards.
#[test]
fn what_was_copied_is_repaired() {
    let _alone = alone(64 << 10);
    let rig = Rig::new(SIZE);
    let engine = spoiled(&rig);
    let (theirs, repaired) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    let count = repaired.clone();
    when_some_is_copied(&engine, move || {
        let done = scrubbed(&theirs);
        assert_eq!(done.errors, 0);
        count.store(done.processed, SeqCst);
    });
    remove_first(&engine);
    until("nothing is repaired", || repaired.load(SeqCst) > 0);
    is_right(&rig, engine);
}

/// A scrub repairs what was read, and is not copied yet.
#[test]
fn what_was_read_is_read_again() {
    let _alone = alone(1 << 20);
    let rig = Rig::new(SIZE);
    let engine = spoiled(&rig);
    let (theirs, repaired) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    let count = repaired.clone();
    engine.stop_at(Moment::ReadToBeMoved, move || {
        count.store(scrubbed(&theirs).processed, SeqCst);
    });
    remove_first(&engine);
    until("the removal does not begin", || repaired.load(SeqCst) > 0);
    is_right(&rig, engine);
}

/// A side of the vdev that takes what is copied fails a flush, and may have lost it: it is copied once more.
#[test]
fn what_a_side_may_have_lost_is_copied_again() {
    let _alone = alone(1 << 20);
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_on("mirror a b mirror c d", 12, options, &devices);
    fill(&open(&engine), 0..FILES, LEN);
    engine.sync().unwrap();
    let (d, theirs, seen) = (devices.device(&rig, "d"), engine.clone(), Arc::new(OnceLock::new()));
    let told = seen.clone();
    engine.stop_at(Moment::ReadToBeMoved, move || {
        // No group is written but that which copies.
        theirs.sync().unwrap();
        d.fail_flushes(1);
        let again = theirs.clone();
        theirs.stop_at(Moment::ReadToBeMoved, move || told.set(copied(&again)).unwrap());
    });
    remove_first(&engine);
    until("nothing is read again", || seen.get().is_some());
    // What was freed meanwhile counts as copied; the files are not.
    let done = *seen.get().unwrap();
    assert!(done < 1 << 20, "{done} bytes are mapped already");
    until("the device stays behind", || {
        let leaves = engine.pool().store().vdevs().leaves();
        leaves.iter().all(|leaf| !leaf.is_behind()) || engine.assess_resilver().is_err()
    });
    drop(devices);
    is_right(&rig, engine);
}

/// What is wrong is found by programs that read it, while it is copied.
#[test]
fn what_is_read_meanwhile_is_healed_everywhere() {
    let _alone = alone(64 << 10);
    let rig = Rig::new(SIZE);
    let engine = spoiled(&rig);
    let fs = open(&engine);
    engine.pool().store().drop_caches();
    remove_first(&engine);
    check(&fs, 0..FILES, LEN);
    drop(fs);
    let healed = || {
        let leaves = engine.pool().store().vdevs().leaves();
        leaves.iter().map(|leaf| leaf.self_healed()).sum::<u64>()
    };
    assert!(healed() > 0);
    ended(&engine);
    // Whatever was not read before it was copied a scrub finds, and then nothing more.
    scrubbed(&engine);
    is_right(&rig, engine);
}

/// Half a removal goes on after an import: what is repaired then is repaired where it was copied to.
#[test]
fn what_was_copied_before_an_import_is_repaired() {
    let _alone = alone(64 << 10);
    let rig = Arc::new(Rig::new(SIZE));
    let engine = spoiled(&rig);
    let (files, crashed) = (rig.clone(), Arc::new(OnceLock::new()));
    let theirs = crashed.clone();
    when_some_is_copied(&engine, move || assert!(theirs.set(files.copy()).is_ok()));
    remove_first(&engine);
    until("nothing is copied", || crashed.get().is_some());
    ended(&engine);
    engine.export(false).unwrap();
    drop(engine);
    let copy = crashed.get().unwrap();
    stand_still(true);
    let engine = copy.import();
    assert!(copied(&engine) > 0);
    let done = scrubbed(&engine);
    assert!(done.processed > 0 && done.errors == 0, "{done:?}");
    stand_still(false);
    is_right(copy, engine);
}
