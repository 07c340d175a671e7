//! Resilvers that wait for the end of another one, and leaves that one does not bring up to date: OpenZFS's engine, which goes on with a
//! resilver that was begun here, does not take them for whole. Where OpenZFS is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::tunables::{SCAN_CHECKPOINT_INTVAL, SCAN_SUSPEND_PROGRESS};
use cenote_engine::{Engine, EngineOptions, TakeOut};
use cenote_pool::config::{self, DEFERRED};
use cenote_pool::reopen::Restore;
use cenote_pool::scan::ScanPhys;
use parking_lot::{Mutex, MutexGuard};
use rig::joining::{attach, leaf};
use rig::{Faulty, Rig, check, fill, open};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
const LEN: usize = 300_000;
const FILES: u64 = 60;
/// Where blocks begin on a device.
const START: u64 = 4 << 20;

/// Tunables are of the process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Rounds are as short as can be, and resilvers stay where they are, for as long as this lives.
struct Turn(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Turn {
    fn take() -> Turn {
        let turn = TURN.lock();
        SCAN_CHECKPOINT_INTVAL.set(0).unwrap();
        hold(true);
        Turn(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        SCAN_CHECKPOINT_INTVAL.set(60).unwrap();
        hold(false);
    }
}

fn hold(hold: bool) {
    SCAN_SUSPEND_PROGRESS.set(u64::from(hold)).unwrap();
}

fn phys(engine: &Engine) -> ScanPhys {
    ScanPhys::load(engine.pool().directory()).unwrap().unwrap()
}

/// Lets the resilver under way do a part of its work.
fn half_way(engine: &Engine) {
    assert!(phys(engine).is_running() && phys(engine).is_resilver());
    hold(false);
    let begun = Instant::now();
    while phys(engine).examined.saturating_sub(phys(engine).skipped) < phys(engine).to_examine / 4 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", phys(engine));
        std::thread::sleep(Duration::from_micros(200));
    }
    hold(true);
    // A round that was under way ends.
    std::thread::sleep(Duration::from_millis(200));
    let now = phys(engine);
    assert!(now.is_running() && now.bookmark[0] != 0, "{now:?}");
}

/// The guids of the leaves that are deferred, as the config has it.
fn deferred(engine: &Engine) -> Vec<u64> {
    let (pool, mut found) = (engine.pool(), Vec::new());
    config::for_each_leaf(pool.config().list("vdev_tree").unwrap(), &mut |leaf| {
        found.extend(leaf.contains(DEFERRED).then(|| config::number(leaf, "guid")));
    });
    assert_eq!(pool.features().is_active("resilver_defer"), !found.is_empty());
    found
}

/// Waits until no leaf lacks anything.
fn whole(engine: &Engine) {
    let begun = Instant::now();
    let behind = || engine.pool().store().vdevs().leaves().iter().any(|leaf| leaf.is_behind());
    while behind() || engine.is_scanning() {
        // Who waits for resilvers does not take it for over.
        assert!(engine.awaits_resilver() || !behind());
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", phys(engine));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// All is read from what is left without some devices.
fn readable_without(rig: &Rig, gone: &[&str], files: u64) {
    gone.iter().for_each(|name| std::fs::remove_file(rig.file(name)).unwrap());
    let engine = rig.import();
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..files, LEN);
    assert_eq!(rig::errors(&engine), (0, 0, 0));
    engine.export(false).unwrap();
}

/// A pool of slow devices, of which those in `away` have missed nearly all.
fn lacking(rig: &Rig, line: &str, away: &[&str]) -> (Arc<Engine>, Faulty) {
    let devices = Faulty::default();
    let engine = rig.create_on(line, 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..2, LEN);
    engine.sync().unwrap();
    for name in away {
        engine.take_out(leaf(rig, &engine, name), TakeOut::Offline).unwrap();
        devices.close(rig, name);
    }
    fill(&open(&engine), 2..FILES, LEN);
    engine.sync().unwrap();
    devices.device(rig, "a").set_delay(Duration::from_millis(2));
    (engine, devices)
}

fn come_back(rig: &Rig, engine: &Engine, name: &str) -> u64 {
    let guid = leaf(rig, engine, name);
    engine.restore(&[guid], Restore::Offline).unwrap();
    guid
}

#[test]
fn a_device_that_joins_late_waits_for_another_resilver() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let (engine, _devices) = lacking(&rig, "a", &[]);
    attach(&rig, &engine, "a", "b").unwrap();
    let first = phys(&engine);
    // Hardly anything is done: it begins anew.
    attach(&rig, &engine, "a", "c").unwrap();
    let second = phys(&engine);
    assert!(second.max_txg > first.max_txg && deferred(&engine).is_empty());
    half_way(&engine);
    attach(&rig, &engine, "a", "d").unwrap();
    let third = phys(&engine);
    assert_eq!((third.max_txg, third.bookmark[0] != 0), (second.max_txg, true));
    assert_eq!(deferred(&engine), [leaf(&rig, &engine, "d")]);
    let status = engine.pool().status().unwrap();
    let waits = |line: &cenote_pool::status::VdevLine| {
        line.deferred && line.note.as_deref() == Some("(awaiting resilver)")
    };
    let mirror = &status.tree.root.children[0];
    assert_eq!(mirror.children.iter().map(waits).collect::<Vec<_>>(), [false, false, false, true]);
    hold(false);
    whole(&engine);
    assert!(deferred(&engine).is_empty() && phys(&engine).max_txg > second.max_txg);
    let records = engine.pool().history().unwrap();
    assert!(format!("{records:?}").contains("starting deferred resilver"));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    readable_without(&rig, &["a", "b", "c"], FILES);
}

/// OpenZFS's engine goes on with the resilver of a device, while another one came back too late for it.
#[test]
fn openzfs_resilvers_what_came_back_late() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let (engine, devices) = lacking(&rig, "mirror a b c", &["b", "c"]);
    come_back(&rig, &engine, "b");
    half_way(&engine);
    // One that is away is not given anything, either.
    let late = come_back(&rig, &engine, "c");
    assert_eq!(deferred(&engine), [late]);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge();
    cenote_testpools::openzfs(rig.path(), "tank", "import\nresilver\nexport\n");
    rig.judge();
    readable_without(&rig, &["a", "b"], FILES);
}

/// The same with a device that joins to replace the only one.
#[test]
fn openzfs_resilvers_what_joined_late() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let (engine, devices) = lacking(&rig, "a", &[]);
    attach(&rig, &engine, "a", "b").unwrap();
    half_way(&engine);
    rig::joining::replace(&rig, &engine, "b", "x").unwrap();
    assert_eq!(deferred(&engine).len(), 1);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge();
    cenote_testpools::openzfs(rig.path(), "tank", "import\nresilver\nsync\nsync\nexport\n");
    rig.judge_blocks();
    readable_without(&rig, &["a", "b"], FILES);
}

/// The same with a device to which something could not be written.
#[test]
fn openzfs_resilvers_what_could_not_be_written() {
    let _turn = Turn::take();
    let rig = Rig::new(SIZE);
    let devices = Faulty::default();
    let engine = rig.create_on("mirror a b", 12, EngineOptions::default(), &devices);
    let [a, lacks] = ["a", "b"].map(|name| devices.device(&rig, name));
    lacks.fail_writes(START..SIZE - (1 << 20));
    fill(&open(&engine), 0..FILES, LEN);
    engine.sync().unwrap();
    lacks.repair();
    lacks.fail_writes(START + (8 << 20)..START + (12 << 20));
    let b = leaf(&rig, &engine, "b");
    engine.restore(&[b], Restore::Failure).unwrap();
    a.set_delay(Duration::from_millis(2));
    assert!(engine.start_resilver().unwrap());
    half_way(&engine);
    assert_eq!(deferred(&engine), [b]);
    engine.export(false).unwrap();
    drop((engine, devices, a, lacks));
    rig.judge();
    cenote_testpools::openzfs(rig.path(), "tank", "import\nresilver\nexport\n");
    rig.judge();
    readable_without(&rig, &["a"], FILES);
}
