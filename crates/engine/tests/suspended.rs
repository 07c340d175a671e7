//! Devices take nothing any more, and come back: the pool is suspended meanwhile, and goes on with all that was changed.
//! OpenZFS's `zdb` finds nothing wrong; where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::tunables::SCAN_SUSPEND_PROGRESS;
use cenote_engine::{Attach, Engine, EngineError, EngineOptions, TakeOut};
use cenote_pool::error::ImportError;
use cenote_pool::props::PropChange;
use cenote_pool::reopen::Restore;
use cenote_pool::{ImportOptions, discover};
use cenote_store::alloc::Class;
use cenote_vdev::VdevState;
use cenote_vdev::inject::FaultyDevice;
use parking_lot::Mutex;
use rig::joining::{device, leaf};
use rig::{Faulty, NODE, Rig, check, fill, open, replaying};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LEN: usize = 200_000;
const LONG: Duration = Duration::from_secs(60);

/// How devices fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Missing,
    Writes,
    Flushes,
    OneFlush,
}

const ALL: [Fault; 3] = [Fault::Missing, Fault::Writes, Fault::Flushes];

fn break_it(device: &FaultyDevice, fault: Fault) {
    match fault {
        Fault::Missing => device.set_missing(true),
        Fault::Writes => device.fail_writes(0..u64::MAX),
        Fault::Flushes => device.set_flush_errors(true),
        Fault::OneFlush => device.fail_flushes(1),
    }
}

/// Lets waiting threads of a test go that has failed.
struct Fails<'a>(&'a Engine);

impl Drop for Fails<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.hold_no_more();
        }
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct World {
    rig: Rig,
    faulty: Faulty,
    engine: Arc<Engine>,
}

/// The root file system's number.
fn head(engine: &Engine) -> u64 {
    engine.pool().dsl().root().unwrap().ds_obj
}

fn world(line: &str, ashift: u64) -> World {
    let (rig, faulty) = (Rig::new(96 << 20), Faulty::default());
    let engine = rig.create_on(line, ashift, EngineOptions::default(), &faulty);
    fill(&open(&engine), 0..3, LEN);
    engine.sync().unwrap();
    World { rig, faulty, engine }
}

impl World {
    fn each(&self, names: &[&str], what: impl Fn(&FaultyDevice)) {
        names.iter().for_each(|name| what(&self.faulty.device(&self.rig, name)));
    }

    fn break_it(&self, names: &[&str], fault: Fault) {
        for name in names {
            if fault == Fault::Missing {
                std::fs::rename(self.rig.file(name), self.rig.file(name).with_extension("away"))
                    .unwrap();
            }
            break_it(&self.faulty.device(&self.rig, name), fault);
        }
    }

    fn repair(&self, names: &[&str]) {
        for name in names {
            let away = self.rig.file(name).with_extension("away");
            if away.exists() {
                std::fs::rename(away, self.rig.file(name)).unwrap();
            }
        }
        self.each(names, FaultyDevice::repair);
    }

    fn is_suspended(&self) -> bool {
        self.engine.suspended().is_some() && self.engine.waits_for_devices()
    }

    fn finish(self, files: u64) {
        let World { rig, faulty, engine } = self;
        check(&open(&engine), 0..files, LEN);
        engine.export(false).unwrap();
        drop((engine, faulty));
        rig.judge_blocks();
        let engine = rig.import();
        check(&open(&engine), 0..files, LEN);
        engine.export(false).unwrap();
    }
}

/// The devices `bad` fail, so that the pool is suspended, and come back.
fn goes_on(line: &str, ashift: u64, bad: &[&str], fault: Fault) {
    let why = format!("{line}: {bad:?} {fault:?}");
    let world = world(line, ashift);
    let engine = &world.engine;
    let fs = open(engine);
    fill(&fs, 3..5, LEN);
    world.break_it(bad, fault);
    let done = engine.sync();
    assert!(matches!(done, Err(EngineError::Suspended(_))), "{why}: {done:?}");
    assert!(world.is_suspended(), "{why}");
    // What is looked at is there, changes are refused or wait.
    assert!(engine.pool().status().is_ok() && engine.pool().dsl().root().is_ok());
    check(&fs, 0..5, LEN);
    assert!(matches!(engine.write_config(), Err(EngineError::Suspended(_))), "{why}");
    assert!(matches!(engine.close(head(&world.engine)), Err(EngineError::Suspended(_))), "{why}");
    assert!(matches!(engine.export(false), Err(EngineError::Suspended(_))), "{why}");
    assert!(engine.at_rest(|_, _| ()).is_err(), "{why}");
    std::thread::scope(|scope| {
        let _fails = Fails(engine);
        let writer = scope.spawn(|| fill(&fs, 5..6, LEN));
        let syncer = scope.spawn(|| engine.commit(head(&world.engine)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!writer.is_finished(), "{why}");
        // The devices are not back.
        assert!(matches!(engine.resume(), Err(EngineError::Suspended(_))), "{why}");
        assert!(world.is_suspended() && !writer.is_finished() && !syncer.is_finished(), "{why}");
        world.repair(bad);
        let resumed = engine.resume();
        assert!(resumed.is_ok(), "{why}: {resumed:?}");
        writer.join().unwrap();
        assert!(syncer.join().unwrap().is_ok(), "{why}");
    });
    engine.sync().unwrap();
    assert_eq!(engine.suspended(), None, "{why}");
    engine.write_config().unwrap();
    drop(fs);
    world.finish(6);
}

#[test]
fn a_single_device_comes_back() {
    ALL.into_iter().for_each(|fault| goes_on("a", 12, &["a"], fault));
}

#[test]
fn a_mirror_comes_back() {
    ALL.into_iter().for_each(|fault| goes_on("mirror a b", 12, &["a", "b"], fault));
}

#[test]
fn raidz_comes_back() {
    ALL.into_iter().for_each(|fault| goes_on("raidz1 a b c", 9, &["a", "c"], fault));
}

/// The devices `bad` leave while a group is committed, after each of its flushes, and come back: as they are, or as a
/// copy of that. Whether the uberblock is on them already or not, they are taken back.
fn goes_on_after_flushes(line: &str, bad: &[&str], copied: bool) {
    for flushes in 0..5 {
        let why = format!("{line}: {bad:?} {flushes} {copied}");
        let world = world(line, 12);
        let engine = &world.engine;
        fill(&open(engine), 3..5, LEN);
        world.each(bad, |device| device.leave_after_flushes(flushes));
        std::thread::scope(|scope| {
            let _fails = Fails(engine);
            // The labels are written as well. It may be that some flushes are left when that is done.
            scope.spawn(|| {
                for file in 5..10 {
                    let written = engine.write_config();
                    let refused = matches!(written, Err(EngineError::Suspended(_)));
                    assert!(written.is_ok() || refused, "{written:?}");
                    fill(&open(engine), file..file + 1, 1000);
                }
            });
            until(&why, || world.is_suspended());
            assert!(matches!(engine.resume(), Err(EngineError::Suspended(_))), "{why}");
            for name in bad.iter().filter(|_| copied) {
                let (path, copy) = (world.rig.file(name), world.rig.file("copy"));
                std::fs::copy(&path, &copy).unwrap();
                std::fs::rename(copy, path).unwrap();
            }
            world.repair(bad);
            let resumed = engine.resume();
            assert!(resumed.is_ok(), "{why}: {resumed:?}");
        });
        engine.sync().unwrap();
        engine.write_config().unwrap();
        assert_eq!(engine.suspended(), None, "{why}");
        world.finish(5);
    }
}

#[test]
fn a_device_comes_back_that_left_while_a_group_was_committed() {
    goes_on_after_flushes("a", &["a"], false);
    goes_on_after_flushes("a", &["a"], true);
    goes_on_after_flushes("a b", &["b"], false);
}

#[test]
fn mirrors_and_raidz_come_back_that_left_while_a_group_was_committed() {
    goes_on_after_flushes("mirror a b", &["a", "b"], true);
    goes_on_after_flushes("raidz1 a b c", &["b", "c"], false);
}

/// An older state of a device that the pool cannot do without is not taken for the device, whenever it is looked for.
#[test]
fn an_older_state_of_the_device_is_refused() {
    for line in ["a", "a b", "mirror a b"] {
        let world = world(line, 12);
        let engine = &world.engine;
        let names: &[&str] = if line.starts_with("mirror") { &["a", "b"] } else { &["a"] };
        let old = world.rig.file("older");
        std::fs::copy(world.rig.file("a"), &old).unwrap();
        fill(&open(engine), 3..4, LEN);
        engine.sync().unwrap();
        world.break_it(names, Fault::Missing);
        fill(&open(engine), 4..5, LEN);
        assert!(engine.sync().is_err() && world.is_suspended(), "{line}");
        // Nothing is there yet; then the wrong one is, twice.
        assert!(engine.resume().is_err(), "{line}");
        std::fs::rename(&old, world.rig.file("a")).unwrap();
        for _ in 0..2 {
            assert!(engine.resume().is_err() && world.is_suspended(), "{line}");
        }
        world.repair(names);
        let resumed = engine.resume();
        assert!(resumed.is_ok(), "{line}: {resumed:?}");
        world.finish(5);
    }
}

/// Devices whose labels are read and that take no writes do not keep an import waiting.
#[test]
fn an_import_fails_where_nothing_can_be_written() {
    let world = world("a", 12);
    let World { rig, faulty, engine } = world;
    engine.export(false).unwrap();
    drop((engine, faulty));
    // A file in memory that is sealed is opened for writing, and takes none.
    let sealed = rustix::fs::memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut sealed = std::fs::File::from(sealed);
    std::io::copy(&mut std::fs::File::open(rig.file("a")).unwrap(), &mut sealed).unwrap();
    rustix::fs::fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    let place = tempfile::tempdir().unwrap();
    let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
    std::os::unix::fs::symlink(path, place.path().join("a")).unwrap();
    let found = discover(&[place.path().to_path_buf()]);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let import = || Engine::import(&found[0], &options, EngineOptions::default()).map(drop);
    std::thread::scope(|scope| {
        let importing = scope.spawn(import);
        until("the import ends", || importing.is_finished());
        let done = importing.join().unwrap();
        assert!(matches!(done, Err(ImportError::Damaged { .. })), "{done:?}");
    });
    rig.judge_blocks();
    check(&open(&rig.import()), 0..3, LEN);
}

/// A process that ends while its pool is suspended loses nothing that it was told is stable, and the last group neither.
#[test]
fn a_crash_while_suspended_loses_nothing_stable() {
    for (line, bad) in [("a", ["a"].as_slice()), ("mirror a b", &["a", "b"]), ("a log b", &["a"])] {
        for fault in [Fault::Missing, Fault::Writes, Fault::Flushes] {
            let world = world(line, 12);
            let engine = &world.engine;
            let fs = open(engine);
            engine.commit(head(engine)).unwrap();
            fill(&fs, 3..4, LEN);
            engine.sync().unwrap();
            fill(&fs, 4..5, 10_000);
            engine.commit(head(engine)).unwrap();
            world.break_it(bad, fault);
            fill(&fs, 5..6, LEN);
            assert!(engine.sync().is_err() && world.is_suspended(), "{line} {fault:?}");
            // What the devices have at this moment is what another process finds.
            let place = tempfile::tempdir().unwrap();
            for name in ["a", "b"] {
                let away = world.rig.file(name).with_extension("away");
                let from = if away.exists() { away } else { world.rig.file(name) };
                if from.exists() {
                    std::fs::copy(from, place.path().join(name)).unwrap();
                }
            }
            engine.abandon();
            drop(fs);
            let World { rig, faulty, engine } = world;
            drop((engine, faulty));
            for name in ["a", "b"].into_iter().filter(|name| place.path().join(name).exists()) {
                let _ = std::fs::remove_file(rig.file(name).with_extension("away"));
                std::fs::copy(place.path().join(name), rig.file(name)).unwrap();
            }
            rig.judge_blocks();
            let engine = rig.import_with(replaying());
            let fs = open(&engine);
            check(&fs, 0..4, LEN);
            check(&fs, 4..5, 10_000);
            drop(fs);
            engine.export(false).unwrap();
            drop(engine);
            rig.judge_blocks();
        }
    }
}

/// A change of a pool that is suspended meanwhile is waited for, or was not made, as is said; never is it made later.
#[test]
fn a_change_is_made_or_refused() {
    for (round, fault) in ALL.into_iter().cycle().take(6).enumerate() {
        let why = format!("{round} {fault:?}");
        let world = world("mirror a b", 12);
        let (ran, stop) = (Arc::new(AtomicU64::new(0)), AtomicBool::new(false));
        let (engine, made, refused) = (&world.engine, AtomicU64::new(0), AtomicU64::new(0));
        let change = || {
            let ran = ran.clone();
            let done = engine.sync_task(move |context| {
                ran.fetch_add(1, SeqCst);
                context.config_changed = true;
                Ok(())
            });
            match done {
                Ok(()) => made.fetch_add(1, SeqCst),
                Err(_) => refused.fetch_add(1, SeqCst),
            };
        };
        std::thread::scope(|scope| {
            let _fails = Fails(engine);
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        change();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20 * round as u64));
            world.break_it(&["a", "b"], fault);
            until(&why, || world.is_suspended());
            change();
            // Longer than a change waits for its turn.
            std::thread::sleep(Duration::from_millis(700));
            world.repair(&["a", "b"]);
            let resumed = engine.resume();
            stop.store(true, SeqCst);
            assert!(resumed.is_ok(), "{why}: {resumed:?}");
        });
        assert_eq!(ran.load(SeqCst), made.load(SeqCst), "{why}");
        assert!(refused.load(SeqCst) > 0, "{why}");
        world.finish(3);
    }
}

/// The tunable that holds scans is of the process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

impl World {
    /// The devices `bad` fail in a group that has data.
    fn suspend(&self, bad: &[&str], fault: Fault) {
        self.break_it(bad, fault);
        fill(&open(&self.engine), 3..4, LEN);
        assert!(self.engine.sync().is_err() && self.is_suspended(), "{bad:?} {fault:?}");
    }

    fn resume(&self, bad: &[&str]) {
        self.repair(bad);
        let resumed = self.engine.resume();
        assert!(resumed.is_ok(), "{bad:?}: {resumed:?}");
    }

    fn attach(&self, beside: &str, name: &str, replaces: bool) {
        let new = device(&self.rig, &self.engine, name, &self.faulty);
        let beside = leaf(&self.rig, &self.engine, beside);
        self.engine.attach(Attach { beside, new, replaces }).unwrap();
    }

    /// Waits until nothing is scanned, and so many leaves have everything.
    fn is_whole(&self, leaves: usize) {
        let all = || self.engine.pool().store().vdevs().leaves();
        let behind = || all().iter().any(|leaf| leaf.is_behind());
        let why = format!("{leaves} leaves are whole");
        until(&why, || !self.engine.is_scanning() && !behind() && all().len() == leaves);
    }
}

/// A device leaves in a group that is held: what follows that is done as well.
#[test]
fn a_device_leaves_over_a_suspension() {
    let _turn = TURN.lock();
    let world = world("a", 12);
    let over = |bad: &[&str], change: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let _fails = Fails(&world.engine);
            world.break_it(bad, Fault::Writes);
            let changing = scope.spawn(change);
            until("suspended", || world.is_suspended() || changing.is_finished());
            std::thread::sleep(Duration::from_millis(700));
            assert!(!changing.is_finished());
            world.resume(bad);
            changing.join().unwrap();
        });
    };
    world.attach("a", "b", false);
    world.is_whole(2);
    let b = leaf(&world.rig, &world.engine, "b");
    over(&["a", "b"], &|| world.engine.detach(b, None).unwrap());
    // Its labels say that it is of no pool any more.
    let left = cenote_vdev::open_device(&world.rig.file("b")).unwrap();
    assert!(cenote_vdev::label_owner(&*left).unwrap().is_none());
    world.attach("a", "c", false);
    world.is_whole(2);
    world.engine.detach(leaf(&world.rig, &world.engine, "a"), None).unwrap();
    world.finish(3);
}

/// Both sides of a mirror come back, one of them after it missed something: it is given that.
#[test]
fn a_side_that_missed_something_is_resilvered() {
    let _turn = TURN.lock();
    for fault in [Fault::Missing, Fault::Writes] {
        let world = world("mirror a b", 12);
        world.break_it(&["b"], fault);
        world.engine.write_config().unwrap();
        fill(&open(&world.engine), 4..5, LEN);
        world.engine.sync().unwrap();
        world.suspend(&["a"], fault);
        world.resume(&["a", "b"]);
        world.is_whole(2);
        world.engine.detach(leaf(&world.rig, &world.engine, "a"), None).unwrap();
        check(&open(&world.engine), 4..5, LEN);
        world.finish(4);
    }
}

/// What cannot be read as devices are away is not listed as damaged, whether the pool is suspended yet or not.
#[test]
fn an_outage_damages_no_files() {
    let _turn = TURN.lock();
    let world = world("mirror a b", 12);
    let fs = open(&world.engine);
    let ino = |file| fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap();
    let inos: Vec<u64> = (0..3).map(ino).collect();
    world.break_it(&["a", "b"], Fault::Missing);
    let fails = || {
        world.engine.pool().store().drop_caches();
        assert!(inos.iter().all(|ino| fs.read(*ino, 0, &mut [0; 100]).is_err()));
        assert_eq!(world.engine.pool().store().errors(), []);
    };
    fails();
    assert!(world.engine.suspended().is_none());
    std::thread::scope(|scope| {
        let _fails = Fails(&world.engine);
        let scrubbing = scope.spawn(|| world.engine.scrub());
        until("suspended", || world.is_suspended());
        fails();
        world.resume(&["a", "b"]);
        scrubbing.join().unwrap().unwrap();
    });
    world.is_whole(2);
    assert_eq!(world.engine.pool().store().errors(), []);
    drop(fs);
    world.finish(3);
}

/// Errors of an outage fault no device that is back; later ones do.
#[test]
fn errors_of_an_outage_fault_no_device() {
    let _turn = TURN.lock();
    let world = world("mirror a b", 12);
    world.engine.act_on_errors();
    let fs = open(&world.engine);
    world.suspend(&["a", "b"], Fault::Writes);
    (0..12).for_each(|_| assert!(world.engine.resume().is_err()));
    world.resume(&["a", "b"]);
    let states = || {
        let leaves = world.engine.pool().store().vdevs().leaves();
        leaves.iter().map(|leaf| leaf.state()).collect::<Vec<_>>()
    };
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(states(), [VdevState::Healthy; 2]);
    world.is_whole(2);
    // Not its labels.
    world.each(&["a"], |device| device.fail(4 << 20..90 << 20));
    until("the device is faulted", || {
        world.engine.pool().store().drop_caches();
        check(&fs, 0..4, LEN);
        states()[0] == VdevState::Faulted
    });
    world.repair(&["a"]);
    drop(fs);
    world.finish(4);
}

/// Scrubs go on, and replacements end, when the pool goes on.
#[test]
fn scans_go_on_with_the_pool() {
    let _turn = TURN.lock();
    for (late, fault) in [(false, Fault::Writes), (true, Fault::Writes), (true, Fault::Missing)] {
        let world = world("mirror a b", 12);
        SCAN_SUSPEND_PROGRESS.set(1).unwrap();
        world.engine.scrub().unwrap();
        if !late {
            SCAN_SUSPEND_PROGRESS.set(0).unwrap();
        }
        world.suspend(&["a", "b"], fault);
        SCAN_SUSPEND_PROGRESS.set(0).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        world.resume(&["a", "b"]);
        world.is_whole(2);
        assert!(world.engine.pool().store().errors().is_empty());
        world.finish(4);
    }
    let world = world("a", 12);
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    world.attach("a", "b", true);
    world.suspend(&["a", "b"], Fault::Writes);
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(world.is_suspended());
    world.resume(&["a", "b"]);
    world.is_whole(1);
    assert_eq!(
        leaf(&world.rig, &world.engine, "b"),
        world.engine.pool().store().vdevs().leaves()[0].guid()
    );
    world.finish(4);
}

#[test]
fn one_of_several_vdevs_comes_back() {
    ALL.into_iter().for_each(|fault| goes_on("a b log c", 12, &["b"], fault));
}

#[test]
fn a_flush_that_fails_once_is_made_up_for() {
    let world = world("a", 12);
    fill(&open(&world.engine), 3..5, LEN);
    world.break_it(&["a"], Fault::OneFlush);
    world.engine.sync().unwrap();
    assert_eq!(world.engine.suspended(), None);
    world.finish(5);
}

#[test]
fn a_log_device_that_fails_suspends_nothing() {
    for fault in ALL {
        let world = world("a log b", 12);
        let fs = open(&world.engine);
        world.engine.commit(head(&world.engine)).unwrap();
        fill(&fs, 3..5, LEN);
        world.break_it(&["b"], fault);
        world.engine.commit(head(&world.engine)).unwrap();
        assert_eq!(world.engine.suspended(), None, "{fault:?}");
        fill(&fs, 5..6, LEN);
        world.engine.commit(head(&world.engine)).unwrap();
        world.repair(&["b"]);
        drop(fs);
        world.finish(6);
    }
}

fn set_failmode(world: &World, index: u64) {
    world.engine.set_properties(vec![PropChange::Number("failmode", index)]).unwrap();
}

#[test]
fn changes_fail_with_failmode_continue() {
    let world = world("a", 12);
    set_failmode(&world, 1);
    let fs = open(&world.engine);
    fill(&fs, 3..4, LEN);
    world.break_it(&["a"], Fault::Missing);
    assert!(world.engine.sync().is_err() && world.is_suspended());
    let refused = fs.create(fs.root(), b"refused", &NODE).unwrap_err();
    assert_eq!(refused.errno(), 5);
    check(&fs, 0..4, LEN);
    world.repair(&["a"]);
    world.engine.resume().unwrap();
    fill(&fs, 4..5, LEN);
    drop(fs);
    world.finish(5);
}

#[test]
fn nothing_is_held_with_failmode_panic() {
    let world = world("a", 12);
    set_failmode(&world, 2);
    fill(&open(&world.engine), 3..4, LEN);
    world.break_it(&["a"], Fault::Missing);
    assert!(world.engine.sync().is_err());
    until("the group fails", || !world.engine.waits_for_devices());
    assert!(world.engine.suspended().is_some() && world.engine.resume().is_err());
    world.repair(&["a"]);
    let World { rig, faulty, engine } = world;
    drop((engine, faulty));
    rig.judge_blocks();
    check(&open(&rig.import()), 0..3, LEN);
}

#[test]
fn a_suspended_pool_is_given_up() {
    for commits in [false, true] {
        let world = world("mirror a b", 12);
        let fs = open(&world.engine);
        world.engine.commit(head(&world.engine)).unwrap();
        world.engine.sync().unwrap();
        fill(&fs, 3..4, 10_000);
        world.engine.commit(head(&world.engine)).unwrap();
        world.break_it(&["a", "b"], Fault::Missing);
        fill(&fs, 4..5, LEN);
        let done = world.engine.sync();
        assert!(world.is_suspended(), "{commits}: {done:?}, {:?}", world.engine.suspended());
        let World { rig, faulty, engine } = world;
        std::thread::scope(|scope| {
            let _fails = Fails(&engine);
            let writer = scope.spawn(|| fs.create(fs.root(), b"late", &NODE).map(drop));
            let syncer = scope.spawn(|| match commits {
                true => engine.commit(head(&engine)),
                false => Ok(()),
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!writer.is_finished());
            engine.abandon();
            assert!(writer.join().unwrap().is_err());
            // All that was there before is in the log.
            let _ = syncer.join().unwrap();
        });
        assert!(!engine.waits_for_devices() && engine.suspended().is_some());
        let world = World { rig, faulty, engine };
        world.repair(&["a", "b"]);
        let World { rig, faulty, engine } = world;
        drop((fs, engine, faulty));
        // The log has what was committed.
        rig.judge_blocks();
        let engine = rig.import();
        let root = open(&engine);
        check(&root, 0..3, LEN);
        drop(root);
        engine.export(false).unwrap();
    }
}

#[test]
fn many_writers_wait_for_a_pool_that_comes_and_goes() {
    let world = world("raidz1 a b c", 12);
    let fs = open(&world.engine);
    let next = AtomicU64::new(3);
    std::thread::scope(|scope| {
        let _fails = Fails(&world.engine);
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let file = next.fetch_add(1, SeqCst);
                    fill(&fs, file..file + 1, LEN);
                    world.engine.commit(head(&world.engine)).unwrap();
                }
            });
        }
        for (round, fault) in ALL.into_iter().cycle().take(9).enumerate() {
            std::thread::sleep(Duration::from_millis(30));
            world.break_it(&["a", "b"], fault);
            let end = Instant::now() + Duration::from_millis(500);
            while !world.is_suspended() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
                let _ = world.engine.sync();
            }
            world.repair(&["a", "b"]);
            let resumed = world.engine.resume();
            assert!(resumed.is_ok(), "{round} {fault:?}: {resumed:?}");
        }
    });
    drop(fs);
    world.finish(43);
}

/// What is out of use by order stays so when others are opened anew: no log begins on it before that is taken off the config.
#[test]
fn a_log_device_that_was_faulted_by_order_stays_so_when_the_pool_goes_on() {
    let world = world("a log b", 12);
    let engine = &world.engine;
    let b = leaf(&world.rig, engine, "b");
    engine.take_out(b, TakeOut::Fault).unwrap();
    world.faulty.close(&world.rig, "b");
    fill(&open(engine), 3..5, LEN);
    world.break_it(&["a"], Fault::Writes);
    assert!(matches!(engine.sync(), Err(EngineError::Suspended(_))) && world.is_suspended());
    world.repair(&["a"]);
    engine.resume().unwrap();
    let state = || engine.pool().store().vdevs().find(b).unwrap().state();
    assert_eq!(state(), VdevState::Faulted);
    fill(&open(engine), 5..6, LEN);
    engine.commit(head(engine)).unwrap();
    let groups = engine.allocator().groups_of(Class::Log);
    assert_eq!(groups.iter().find(|group| group.vdev() == 1).unwrap().allocated(), 0);
    engine.restore(&[b], Restore::Failure).unwrap();
    assert_eq!(state(), VdevState::Healthy);
    world.finish(6);
}
