//! Sequential rebuilds: devices that join mirrors and dRAID are given what is allocated in the order of offsets, beside work, across
//! imports and crashes, and with devices that fail; OpenZFS's engine goes on with those that were begun here, and we with its.
//! Where OpenZFS is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "rebuild/beside.rs"]
mod beside;
#[path = "rebuild/leaving.rs"]
mod leaving;
#[path = "rebuild/proof.rs"]
mod proof;
mod rig;

use cenote_engine::create::SystemDevices;
use cenote_engine::tunables::{
    REBUILD_MAX_SEGMENT, REBUILD_SCRUB_ENABLED, REBUILD_VDEV_LIMIT, SCAN_CHECKPOINT_INTVAL,
    SCAN_SUSPEND_PROGRESS,
};
use cenote_engine::{Attach, Engine, EngineError, EngineOptions, TakeOut};
use cenote_pool::config;
use cenote_pool::rebuild::{JOINED, RebuildPhys};
use cenote_pool::reopen::Restore;
use cenote_pool::scan::ScanPhys;
use parking_lot::{Mutex, MutexGuard};
use rig::joining::{device, leaf};
use rig::{Faulty, Rig, check, check_devices, errors, fill, open};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
const LEN: usize = 300_000;
const FILES: u64 = 60;
/// Where blocks begin on a device.
const START: u64 = 4 << 20;

/// Tunables are of the process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Rebuilds note each step, and stay where they are if they are held, for as long as this lives.
struct Turn(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Turn {
    fn take(held: bool) -> Turn {
        let turn = TURN.lock();
        SCAN_CHECKPOINT_INTVAL.set(0).unwrap();
        REBUILD_VDEV_LIMIT.set(1 << 20).unwrap();
        hold(held);
        Turn(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        SCAN_CHECKPOINT_INTVAL.set(60).unwrap();
        REBUILD_VDEV_LIMIT.set(16 << 20).unwrap();
        REBUILD_MAX_SEGMENT.set(1 << 20).unwrap();
        REBUILD_SCRUB_ENABLED.set(1).unwrap();
        hold(false);
    }
}

fn hold(hold: bool) {
    SCAN_SUSPEND_PROGRESS.set(u64::from(hold)).unwrap();
}

fn join(
    rig: &Rig,
    engine: &Engine,
    beside: &str,
    new: &str,
    replaces: bool,
) -> Result<(), EngineError> {
    let (beside, new) = (leaf(rig, engine, beside), device(rig, engine, new, &SystemDevices));
    engine.attach_sequentially(Attach { beside, new, replaces })
}

/// The last rebuild of the only top-level vdev, as it is on disk.
fn phys(engine: &Engine) -> RebuildPhys {
    let all = RebuildPhys::all(&engine.pool());
    assert!(all.len() <= 1, "{all:?}");
    all.first().map(|(_, phys)| *phys).unwrap_or_default()
}

fn scan(engine: &Engine) -> ScanPhys {
    ScanPhys::load(engine.pool().directory()).unwrap().unwrap_or_default()
}

fn active(engine: &Engine) -> bool {
    engine.pool().features().is_active("device_rebuild")
}

/// Waits until programs that wait for resilvers may go on.
fn not_awaited(engine: &Engine) {
    let begun = Instant::now();
    while engine.awaits_resilver() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?} {:?}", phys(engine), scan(engine));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until nothing is rebuilt or scanned, and no leaf lacks anything.
fn whole(engine: &Engine) {
    let begun = Instant::now();
    let behind = || engine.pool().store().vdevs().leaves().iter().any(|leaf| leaf.is_behind());
    while engine.is_rebuilding() || behind() || engine.is_scanning() {
        // Who waits for resilvers does not take it for over.
        assert!(engine.awaits_resilver() || !behind());
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{:?} {:?}",
            phys(engine),
            scan(engine)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.sync_task(|_| Ok(())).unwrap();
    not_awaited(engine);
    assert!(!active(engine));
    let pool = engine.pool();
    config::for_each_leaf(pool.config().list("vdev_tree").unwrap(), &mut |leaf| {
        assert!(!leaf.contains(JOINED), "{leaf:?}");
    });
}

/// The same, and until a scrub has proven what was copied.
fn proven(engine: &Engine) {
    whole(engine);
    let begun = Instant::now();
    while !(scan(engine).is_scrub() && scan(engine).is_finished()) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", scan(engine));
        std::thread::sleep(Duration::from_millis(5));
    }
    let (now, scan) = (engine.pool().status().unwrap(), scan(engine));
    assert!(now.rebuilds.iter().all(|rebuild| !rebuild.phys.is_unproven(&scan, 0)), "{scan:?}");
    assert_eq!(scan.errors, 0, "{scan:?}");
}

/// Waits until no rebuild is under way.
fn ended(engine: &Engine) {
    let begun = Instant::now();
    while engine.is_rebuilding() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", phys(engine));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets the rebuild under way do a part of its work.
fn half_way(engine: &Engine) -> RebuildPhys {
    let begun = Instant::now();
    hold(false);
    while phys(engine).scanned < 5 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", phys(engine));
        std::thread::sleep(Duration::from_micros(200));
    }
    hold(true);
    std::thread::sleep(Duration::from_millis(200));
    let now = phys(engine);
    assert!(now.is_running() && now.scanned < now.estimate, "{now:?}");
    now
}

/// All is read from what is left without some devices, and nothing is wrong there.
fn readable_without(rig: &Rig, gone: &[&str], files: u64) {
    gone.iter().for_each(|name| std::fs::remove_file(rig.file(name)).unwrap());
    let engine = rig.import();
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..files, LEN);
    assert_eq!(errors(&engine), (0, 0, 0));
    engine.export(false).unwrap();
}

/// Ends the work beside.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `change` while files are written, overwritten, removed and read, and logs are written to; returns how many there are then.
fn beside_work(engine: &Engine, from: u64, change: impl FnOnce()) -> u64 {
    let (stop, next) = (AtomicBool::new(false), AtomicU64::new(from));
    let fs = open(engine);
    let head = engine.pool().dsl().root().unwrap().ds_obj;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let name = b"overwritten";
            let file = fs.create(fs.root(), name, &rig::NODE).unwrap();
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let at = round * 7919 * 4096 % (8 << 20);
                fs.write(file.ino, at, &rig::bytes(round, 12288), false).unwrap();
                if round.is_multiple_of(3) {
                    engine.commit(head).unwrap();
                }
                round += 1;
            }
            fs.unlink(fs.root(), name, &|_| false).unwrap();
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) && next.load(Ordering::Relaxed) < from + 40 {
                let file = next.load(Ordering::Relaxed);
                fill(&fs, file..file + 1, LEN);
                next.store(file + 1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                engine.pool().store().drop_caches();
                check(&fs, 0..next.load(Ordering::Relaxed), LEN);
            }
        });
        // Also if the change panics.
        let _ends = Ends(&stop);
        change();
    });
    next.into_inner()
}

/// A pool of these vdevs with files in it.
fn filled(line: &str) -> (Rig, Arc<Engine>) {
    let rig = Rig::new(SIZE);
    let engine = rig.create(line, 12);
    fill(&open(&engine), 0..FILES, LEN);
    engine.sync().unwrap();
    (rig, engine)
}

/// The same, on devices that can be made to fail.
fn filled_on_faulty(line: &str) -> (Rig, Faulty, Arc<Engine>) {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on(line, 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..FILES, LEN);
    engine.sync().unwrap();
    (rig, devices, engine)
}

/// A device that can be made to fail joins another one, and is rebuilt.
fn join_faulty(
    rig: &Rig,
    engine: &Engine,
    devices: &Faulty,
    (beside, new): (&str, &str),
    replaces: bool,
) {
    let (beside, new) = (leaf(rig, engine, beside), device(rig, engine, new, devices));
    engine.attach_sequentially(Attach { beside, new, replaces }).unwrap();
}

#[test]
fn a_side_is_rebuilt_beside_work_and_a_scrub_proves_it() {
    let turn = Turn::take(true);
    let (rig, engine) = filled("a");
    join(&rig, &engine, "a", "b", false).unwrap();
    let begun = phys(&engine);
    assert!(begun.is_running() && active(&engine), "{begun:?}");
    assert_eq!((begun.last_offset, begun.errors, begun.min_txg), (0, 0, 3));
    assert!(engine.pool().store().vdevs().leaves()[1].is_behind());
    let files = beside_work(&engine, FILES, || {
        hold(false);
        whole(&engine);
    });
    let done = phys(&engine);
    assert_eq!((done.state, done.errors, done.max_txg), (RebuildPhys::COMPLETE, 0, begun.max_txg));
    assert!(done.rebuilt > FILES * LEN as u64 && done.end != 0, "{done:?}");
    let scrub = scan(&engine);
    assert!(scrub.is_scrub() && scrub.state == 2 && scrub.errors == 0, "{scrub:?}");
    assert_eq!(scrub.processed, 0, "the scrub found something wrong: {scrub:?}");
    check_devices(&engine, files, LEN);
    let history = format!("{:?}", engine.pool().history().unwrap());
    assert!(history.contains("vdev_id=0 vdev_guid=") && history.contains(" complete"));
    engine.export(false).unwrap();
    drop((engine, turn));
    rig.judge();
    readable_without(&rig, &["a"], files);
}

#[test]
fn a_device_is_replaced_and_leaves() {
    let _turn = Turn::take(true);
    let (rig, engine) = filled("mirror a b");
    join(&rig, &engine, "a", "x", true).unwrap();
    hold(false);
    whole(&engine);
    let tree = engine.pool().store().vdevs();
    let names: Vec<_> = tree.leaves().iter().map(|l| l.path().unwrap().to_path_buf()).collect();
    assert_eq!(names, [rig.file("x"), rig.file("b")]);
    drop(tree);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    std::fs::remove_file(rig.file("a")).unwrap();
    readable_without(&rig, &["b"], FILES);
}

/// What the replaced device has is what the new one gets, though the other side differs: no copy of a block is lost.
#[test]
fn the_new_device_has_what_the_replaced_one_had() {
    let _turn = Turn::take(true);
    REBUILD_SCRUB_ENABLED.set(0).unwrap();
    let (rig, devices, engine) = filled_on_faulty("mirror a b");
    // All that b has is wrong.
    devices.device(&rig, "b").corrupt(START + (1 << 20)..SIZE - (1 << 20), 0x5a);
    join(&rig, &engine, "a", "x", true).unwrap();
    hold(false);
    let begun = Instant::now();
    while engine.is_rebuilding() {
        assert!(begun.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    devices.device(&rig, "b").repair();
    assert_eq!(scan(&engine).state, 0);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
    readable_without(&rig, &["b"], FILES);
}

#[test]
fn draid_is_rebuilt() {
    let turn = Turn::take(true);
    let (rig, engine) = filled("draid2:3d:7c:0s a b c d e f g");
    // One that works, and one that is gone.
    engine.take_out(leaf(&rig, &engine, "f"), TakeOut::Offline).unwrap();
    join(&rig, &engine, "b", "x", true).unwrap();
    join(&rig, &engine, "f", "y", true).unwrap();
    let files = beside_work(&engine, FILES, || {
        hold(false);
        whole(&engine);
    });
    let done = phys(&engine);
    assert_eq!((done.state, done.errors), (RebuildPhys::COMPLETE, 0));
    assert_eq!((scan(&engine).is_scrub(), scan(&engine).processed), (true, 0));
    check_devices(&engine, files, LEN);
    engine.export(false).unwrap();
    drop((engine, turn));
    rig.judge();
    ["b", "f"].iter().for_each(|name| std::fs::remove_file(rig.file(name)).unwrap());
    readable_without(&rig, &["a", "c"], files);
}

#[test]
fn it_goes_on_after_an_export_and_a_crash() {
    let _turn = Turn::take(true);
    let (rig, engine) = filled("mirror a b");
    join(&rig, &engine, "a", "c", false).unwrap();
    let half = half_way(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    let engine = rig.import();
    let again = phys(&engine);
    assert!(again.is_same(&half) && again.last_offset >= half.last_offset, "{again:?} {half:?}");
    assert!(!scan(&engine).is_running() && engine.awaits_resilver());
    hold(false);
    while phys(&engine).last_offset <= again.last_offset {
        assert!(phys(&engine).is_running());
        std::thread::sleep(Duration::from_micros(200));
    }
    hold(true);
    std::thread::sleep(Duration::from_millis(100));
    // The power goes.
    let crashed = rig.copy();
    let at = phys(&engine);
    assert!(at.is_running());
    drop(engine);
    let engine = crashed.import();
    assert!(phys(&engine).is_same(&half));
    hold(false);
    whole(&engine);
    assert_eq!((phys(&engine).state, phys(&engine).errors), (RebuildPhys::COMPLETE, 0));
    assert_eq!((scan(&engine).is_scrub(), scan(&engine).processed), (true, 0));
    check_devices(&engine, FILES, LEN);
    engine.export(false).unwrap();
    drop(engine);
    crashed.judge();
    readable_without(&crashed, &["a", "b"], FILES);
}

#[test]
fn another_device_has_it_begin_anew_and_detaching_ends_it() {
    let _turn = Turn::take(true);
    let (rig, engine) = filled("a");
    join(&rig, &engine, "a", "b", false).unwrap();
    let half = half_way(&engine);
    join(&rig, &engine, "a", "c", false).unwrap();
    let again = phys(&engine);
    assert!(again.max_txg > half.max_txg && again.last_offset == 0, "{again:?}");
    assert!(active(&engine));
    engine.detach(leaf(&rig, &engine, "b"), None).unwrap();
    let half = half_way(&engine);
    engine.detach(leaf(&rig, &engine, "c"), None).unwrap();
    hold(false);
    whole(&engine);
    let ended = phys(&engine);
    assert_eq!((ended.state, ended.is_same(&half)), (RebuildPhys::CANCELED, true));
    let status = engine.pool().status().unwrap();
    assert!(status.rebuilds[0].text(&|_| "T".into()).starts_with("  scan: resilver ("));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn what_openzfs_refuses_is_refused() {
    let _turn = Turn::take(true);
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..4, LEN);
    join(&rig, &engine, "a", "c", false).unwrap();
    let said = |done: Result<(), EngineError>| done.unwrap_err().to_string();
    let busy = rig::joining::attach(&rig, &engine, "a", "d");
    assert!(said(busy).contains("currently sequentially resilvering"));
    assert_eq!(engine.scrub().unwrap_err().to_string(), "currently resilvering");
    // It waits for the end of the rebuild.
    assert!(!engine.start_resilver().unwrap());
    engine.detach(leaf(&rig, &engine, "c"), None).unwrap();
    hold(false);
    whole(&engine);
    hold(true);
    rig::joining::attach(&rig, &engine, "a", "d").unwrap();
    assert!(said(join(&rig, &engine, "a", "e", false)).contains("currently resilvering"));
    // A resilver has nothing told any more of what was before.
    assert_eq!(phys(&engine), RebuildPhys::default());
    hold(false);
    whole(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let raidz = Rig::new(SIZE);
    let engine = raidz.create("raidz1 a b c", 12);
    assert!(said(join(&raidz, &engine, "a", "x", true)).contains("only mirror and dRAID vdevs"));
    engine.export(false).unwrap();
    drop(engine);
    let old = Rig::new(SIZE);
    let engine = old.create_choosing("mirror a b", 12, &[("device_rebuild".into(), false)]);
    let why = said(join(&old, &engine, "a", "x", false));
    assert!(why.contains("device_rebuild feature must be enabled"), "{why}");
    engine.export(false).unwrap();
}

/// A scrub that is under way ends for a rebuild, as for a resilver.
#[test]
fn a_scrub_ends_for_it() {
    let _turn = Turn::take(true);
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..FILES, LEN);
    engine.scrub().unwrap();
    assert!(scan(&engine).is_running());
    join(&rig, &engine, "a", "c", false).unwrap();
    assert_eq!(scan(&engine).state, 3);
    hold(false);
    whole(&engine);
    assert_eq!(scan(&engine).state, 2);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// What cannot be read, or written, leaves the device as one that lacks all: a resilver gives it what it can.
#[test]
fn a_resilver_follows_what_failed() {
    let _turn = Turn::take(true);
    for writes in [false, true] {
        let (rig, devices, engine) = filled_on_faulty("mirror a b");
        join_faulty(&rig, &engine, &devices, ("a", "c"), false);
        match writes {
            true => {
                devices.device(&rig, "c").fail_writes(START + (9 << 20)..START + (9 << 20) + 8192)
            }
            false => {
                // Each side has another bad place, and one is bad on both.
                for (name, at) in [("a", 6 << 20), ("b", 8 << 20)] {
                    devices.device(&rig, name).fail(START + at..START + at + 8192);
                }
                for name in ["a", "b"] {
                    devices.device(&rig, name).fail(START + (10 << 20)..START + (10 << 20) + 4096);
                }
            }
        }
        let _ = half_way(&engine);
        hold(false);
        ended(&engine);
        assert!(phys(&engine).errors > 0, "{:?}", phys(&engine));
        ["a", "b", "c"].iter().for_each(|name| devices.device(&rig, name).repair());
        engine.restore(&[leaf(&rig, &engine, "c")], Restore::Failure).unwrap();
        proven(&engine);
        engine.export(false).unwrap();
        drop((engine, devices));
        rig.judge_blocks();
        readable_without(&rig, &["a", "b"], FILES);
    }
}

/// A device that is away for a while has the rebuild end: it holds nothing up, and a resilver gives the device all when it is back.
#[test]
fn a_device_that_goes_away_comes_back() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("mirror a b");
    join_faulty(&rig, &engine, &devices, ("a", "c"), false);
    let half = half_way(&engine);
    let c = leaf(&rig, &engine, "c");
    engine.take_out(c, TakeOut::Offline).unwrap();
    devices.close(&rig, "c");
    hold(false);
    ended(&engine);
    let done = phys(&engine);
    assert!(done.is_same(&half) && done.state == RebuildPhys::COMPLETE && done.errors > 0);
    fill(&open(&engine), FILES..FILES + 10, LEN);
    engine.sync().unwrap();
    engine.restore(&[c], Restore::Offline).unwrap();
    proven(&engine);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
    readable_without(&rig, &["a", "b"], FILES + 10);
}

/// A device that dies for good while it is rebuilt keeps neither resilvers nor scrubs of other vdevs waiting.
#[test]
fn a_device_that_dies_holds_nothing_up() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("mirror a b mirror d e");
    join_faulty(&rig, &engine, &devices, ("a", "x"), true);
    let _ = half_way(&engine);
    devices.device(&rig, "x").set_missing(true);
    hold(false);
    ended(&engine);
    assert!(phys(&engine).errors > 0);
    not_awaited(&engine);
    let e = leaf(&rig, &engine, "e");
    engine.take_out(e, TakeOut::Offline).unwrap();
    devices.close(&rig, "e");
    fill(&open(&engine), FILES..FILES + 10, LEN);
    engine.sync().unwrap();
    engine.restore(&[e], Restore::Offline).unwrap();
    let begun = Instant::now();
    let behind = || {
        let leaves = engine.pool().store().vdevs().leaves();
        leaves.iter().any(|leaf| leaf.guid() == e && leaf.is_behind())
    };
    while behind() || engine.is_scanning() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", scan(&engine));
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.detach(leaf(&rig, &engine, "x"), None).unwrap();
    proven(&engine);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
    readable_without(&rig, &["b", "d"], FILES + 10);
}

/// While the only source does not answer the rebuild waits, and then goes on where it was; not for ever.
#[test]
fn a_source_that_is_silent_is_waited_for() {
    for (patience, comes_back) in [(3600, true), (0, false)] {
        let _turn = Turn::take(true);
        let (rig, devices, engine) = filled_on_faulty("a");
        join_faulty(&rig, &engine, &devices, ("a", "c"), false);
        let _ = half_way(&engine);
        SCAN_CHECKPOINT_INTVAL.set(patience).unwrap();
        devices.device(&rig, "a").set_missing(true);
        let reads = devices.device(&rig, "a").reads();
        hold(false);
        match comes_back {
            true => {
                std::thread::sleep(Duration::from_millis(500));
                assert!(engine.is_rebuilding());
            }
            false => ended(&engine),
        }
        let asked = devices.device(&rig, "a").reads() - reads;
        assert!(asked < 2000, "{asked} reads of a device that does not answer");
        devices.device(&rig, "a").set_missing(false);
        let both = [leaf(&rig, &engine, "a"), leaf(&rig, &engine, "c")];
        if !comes_back {
            assert!(phys(&engine).errors > 0);
        }
        engine.resume().unwrap();
        engine.restore(&both, Restore::Failure).unwrap();
        proven(&engine);
        engine.export(false).unwrap();
        drop((engine, devices));
        rig.judge_blocks();
        readable_without(&rig, &["a"], FILES);
    }
}

/// A source that fails writes and flushes beside work: what it lacks is not copied over what the new device was given.
#[test]
fn a_source_that_fails_beside_work_costs_nothing() {
    let turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("mirror a b");
    join_faulty(&rig, &engine, &devices, ("a", "c"), false);
    let a = devices.device(&rig, "a");
    let files = beside_work(&engine, FILES, || {
        hold(false);
        for round in 0..20u64 {
            a.fail_writes(START + (round << 21)..START + (round << 21) + (1 << 20));
            a.fail_flushes(round % 2);
            std::thread::sleep(Duration::from_millis(20));
            a.repair();
        }
        ended(&engine);
    });
    engine.restore(&[leaf(&rig, &engine, "a")], Restore::Failure).unwrap();
    proven(&engine);
    // Writes that fail are counted, in the midst of the work or after it; nothing that is read is wrong.
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..files, LEN);
    let (read, _, checksum) = errors(&engine);
    assert_eq!((read, checksum), (0, 0));
    engine.export(false).unwrap();
    drop((engine, devices, a, turn));
    rig.judge();
    readable_without(&rig, &["a", "b"], files);
}

/// A device that leaves is another pool's at once: nothing is written to it any more.
#[test]
fn a_device_that_leaves_is_left_alone() {
    let _turn = Turn::take(true);
    let (rig, devices, engine) = filled_on_faulty("mirror a b");
    join_faulty(&rig, &engine, &devices, ("a", "c"), false);
    let _ = half_way(&engine);
    let c = devices.device(&rig, "c");
    c.set_delay(Duration::from_millis(20));
    hold(false);
    std::thread::sleep(Duration::from_millis(50));
    engine.detach(leaf(&rig, &engine, "c"), None).unwrap();
    let writes = c.writes();
    assert_eq!(c.waiting(), 0);
    whole(&engine);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(c.writes(), writes);
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
}

/// OpenZFS's engine goes on with a rebuild that was begun here.
#[test]
fn openzfs_goes_on_with_ours() {
    let _turn = Turn::take(true);
    let (rig, engine) = filled("mirror a b");
    join(&rig, &engine, "a", "c", false).unwrap();
    let half = half_way(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    cenote_testpools::openzfs(rig.path(), "tank", "import\nrebuilt\nend-scan\nexport\n");
    rig.judge();
    let engine = rig.import();
    let done = phys(&engine);
    assert_eq!((done.state, done.errors, done.is_same(&half)), (RebuildPhys::COMPLETE, 0, true));
    assert!(!active(&engine) && !engine.is_rebuilding());
    assert!(scan(&engine).is_scrub() && scan(&engine).processed == 0);
    engine.export(false).unwrap();
    drop(engine);
    readable_without(&rig, &["a", "b"], FILES);
}

/// A pool with half a rebuild by OpenZFS's engine. Where processors are busy it may be done before it is held: then again.
fn half_by_openzfs() -> Rig {
    let script = "import\nhold 1\njoin attach-s 0 2\nhalf-rebuilt\nexport\n";
    for _ in 0..5 {
        let rig = Rig::new(SIZE);
        let engine = rig.create("mirror a b", 12);
        fill(&open(&engine), 0..FILES, LEN);
        engine.export(false).unwrap();
        drop(engine);
        rig.word("c");
        match cenote_testpools::try_openzfs(rig.path(), "tank", script) {
            Ok(()) => return rig,
            Err(e) => assert!(e.contains("half-rebuilt: Operation already in progress"), "{e}"),
        }
    }
    panic!("OpenZFS's rebuild is done before it is held each time");
}

/// We go on with a rebuild that OpenZFS's engine has begun.
#[test]
fn we_go_on_with_openzfs() {
    let _turn = Turn::take(true);
    let rig = half_by_openzfs();
    rig.judge_blocks();
    let engine = rig.import();
    let half = phys(&engine);
    assert!(half.is_running() && half.last_offset > 0 && active(&engine), "{half:?}");
    hold(false);
    whole(&engine);
    let done = phys(&engine);
    assert_eq!((done.state, done.errors, done.is_same(&half)), (RebuildPhys::COMPLETE, 0, true));
    assert_eq!((scan(&engine).is_scrub(), scan(&engine).processed), (true, 0));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    readable_without(&rig, &["a", "b"], FILES);
}

/// Everything in the calling threads, as in simulations.
#[test]
fn it_is_done_in_the_calling_thread() {
    let _turn = Turn::take(false);
    let rig = Rig::new(SIZE);
    let options = EngineOptions { deterministic: true, ..EngineOptions::default() };
    let engine: Arc<Engine> = rig.create_with("a", 12, options);
    fill(&open(&engine), 0..10, LEN);
    engine.sync().unwrap();
    join(&rig, &engine, "a", "b", false).unwrap();
    assert_eq!(phys(&engine).state, RebuildPhys::COMPLETE);
    assert!(!engine.pool().store().vdevs().leaves()[1].is_behind());
    assert!(scan(&engine).is_scrub() && scan(&engine).state == 2);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    readable_without(&rig, &["a"], 10);
}
