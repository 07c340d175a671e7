//! Devices join vdevs of a pool that is written to, and leave them; what is left reads, and OpenZFS's `zdb` finds nothing
//! wrong. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::create::SystemDevices;
use cenote_engine::tunables::SCAN_SUSPEND_PROGRESS;
use cenote_engine::{Attach, Engine, EngineError, TakeOut};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use parking_lot::{Mutex, MutexGuard};
use rig::{Rig, check, check_devices, device, errors, fill, leaf, open};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 300_000;

/// The tunable that holds resilvers is of the process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// Resilvers stay where they are, or go on, for as long as this lives.
struct Turn(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Turn {
    fn take(hold: bool) -> Turn {
        let turn = TURN.lock();
        SCAN_SUSPEND_PROGRESS.set(u64::from(hold)).unwrap();
        Turn(turn)
    }

    fn go_on(&self) {
        SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// Waits until the pool's vdevs are these, and all have everything.
fn until(engine: &Engine, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(120);
    let behind = || engine.pool().store().vdevs().leaves().iter().any(|leaf| leaf.is_behind());
    while vdevs(engine) != wanted || behind() || engine.is_scanning() {
        assert!(Instant::now() < end, "{}, not {wanted}", vdevs(engine));
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.sync_task(|_| Ok(())).unwrap();
    assert_eq!(shape(engine), wanted);
}

fn put(
    rig: &Rig,
    engine: &Engine,
    beside: &str,
    new: &str,
    replaces: bool,
) -> Result<(), EngineError> {
    let (beside, new) = (leaf(rig, engine, beside), device(rig, engine, new, &SystemDevices));
    engine.attach(Attach { beside, new, replaces })
}

fn attach(rig: &Rig, engine: &Engine, beside: &str, new: &str) -> Result<(), EngineError> {
    put(rig, engine, beside, new, false)
}

fn replace(rig: &Rig, engine: &Engine, old: &str, new: &str) -> Result<(), EngineError> {
    put(rig, engine, old, new, true)
}

fn detach(rig: &Rig, engine: &Engine, name: &str) -> Result<(), EngineError> {
    engine.detach(leaf(rig, engine, name), None)
}

/// The vdevs that the config has, such as `mirror(a b) c`.
fn vdevs(engine: &Engine) -> String {
    fn show(vdev: &NvList) -> String {
        let below: Vec<String> = config::children(vdev).iter().map(show).collect();
        match below.is_empty() {
            true => config::path(vdev).map_or_else(
                || "?".into(),
                |path| path.file_name().unwrap().to_string_lossy().to_string(),
            ),
            false => format!("{}({})", vdev.str("type").unwrap(), below.join(" ")),
        }
    }
    let pool = engine.pool();
    let root = pool.config().list("vdev_tree").unwrap();
    config::children(root).iter().map(show).collect::<Vec<_>>().join(" ")
}

/// The same, of a pool whose vdevs do not change at the moment: the tree has those of the config.
fn shape(engine: &Engine) -> String {
    let pool = engine.pool();
    let root = pool.config().list("vdev_tree").unwrap();
    let tree = pool.store().vdevs();
    let mut guids = Vec::new();
    config::for_each_leaf(root, &mut |leaf| guids.push(config::number(leaf, "guid")));
    assert_eq!(tree.leaves().iter().map(|leaf| leaf.guid()).collect::<Vec<_>>(), guids);
    let tops = tree.root().children().iter().map(|top| top.guid());
    let of_config = config::children(root).iter().map(|top| config::number(top, "guid"));
    assert!(tops.eq(of_config));
    vdevs(engine)
}

/// Runs `change` while files are written and read; returns how many files there are then.
fn beside_work(engine: &Engine, from: u64, change: impl FnOnce()) -> u64 {
    let (stop, next) = (AtomicBool::new(false), AtomicU64::new(from));
    let fs = open(engine);
    std::thread::scope(|scope| {
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
        change();
        stop.store(true, Ordering::Relaxed);
    });
    next.into_inner()
}

#[test]
fn sides_join_and_leave_mirrors_in_use() {
    let turn = Turn::take(true);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a log l special s", 12);
    fill(&open(&engine), 0..4, LEN);
    let files = beside_work(&engine, 4, || {
        attach(&rig, &engine, "a", "b").unwrap();
        attach(&rig, &engine, "l", "m").unwrap();
        attach(&rig, &engine, "s", "t").unwrap();
        attach(&rig, &engine, "b", "c").unwrap();
    });
    assert_eq!(shape(&engine), "mirror(a b c) mirror(l m) mirror(s t)");
    check_devices(&engine, files, LEN);
    // The new sides lack what was written before: nothing can do without the old ones.
    assert!(detach(&rig, &engine, "a").is_err());
    let again = beside_work(&engine, files, || detach(&rig, &engine, "c").unwrap());
    assert_eq!(shape(&engine), "mirror(a b) mirror(l m) mirror(s t)");
    check_devices(&engine, again, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();

    let engine = rig.import();
    turn.go_on();
    until(&engine, "mirror(a b) mirror(l m) mirror(s t)");
    check_devices(&engine, again, LEN);
    for name in ["b", "m", "t"] {
        detach(&rig, &engine, name).unwrap();
    }
    assert_eq!(shape(&engine), "a l s");
    let files = beside_work(&engine, again, || attach(&rig, &engine, "a", "b").unwrap());
    check_devices(&engine, files, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    // The detached devices are not needed, and free.
    for name in ["c", "m", "t"] {
        let device = cenote_vdev::open_device(&rig.file(name)).unwrap();
        assert!(cenote_vdev::label_owner(device.as_ref()).unwrap().is_none());
        std::fs::remove_file(rig.file(name)).unwrap();
    }
    let engine = rig.import();
    assert_eq!(shape(&engine), "mirror(a b) l s");
    check_devices(&engine, files, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn devices_of_raidz_are_being_replaced() {
    let _turn = Turn::take(true);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("raidz1 a b c mirror d e", 9);
    fill(&open(&engine), 0..4, LEN);
    let files = beside_work(&engine, 4, || {
        replace(&rig, &engine, "b", "x").unwrap();
        replace(&rig, &engine, "x", "y").unwrap();
        replace(&rig, &engine, "e", "z").unwrap();
    });
    assert_eq!(shape(&engine), "raidz(a replacing(b x y) c) mirror(d replacing(e z))");
    check_devices(&engine, files, LEN);
    assert!(detach(&rig, &engine, "a").is_err());
    // One that lacks what others have may go: the new one, and while a mirror has another side, the old one.
    let again = beside_work(&engine, files, || {
        detach(&rig, &engine, "x").unwrap();
        detach(&rig, &engine, "z").unwrap();
    });
    assert_eq!(shape(&engine), "raidz(a replacing(b y) c) mirror(d e)");
    check_devices(&engine, again, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    let engine = rig.import();
    check_devices(&engine, again, LEN);
    detach(&rig, &engine, "y").unwrap();
    assert_eq!(shape(&engine), "raidz(a b c) mirror(d e)");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Devices are replaced while files are written. Then the old ones are gone, and of the others as many as the rest can do
/// without: all that the new ones have is read from them.
fn replaced(line: &str, devices: &[(&str, &str)], then: &str, away: &[&str]) {
    let rig = Rig::new(64 << 20);
    let engine = rig.create(line, 12);
    fill(&open(&engine), 0..4, LEN);
    let files = beside_work(&engine, 4, || {
        for (old, new) in devices {
            replace(&rig, &engine, old, new).unwrap();
        }
    });
    until(&engine, then);
    check_devices(&engine, files, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    let gone = devices.iter().map(|(old, _)| old).chain(away);
    gone.for_each(|name| std::fs::remove_file(rig.file(name)).unwrap());
    let engine = rig.import();
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..files, LEN);
    assert_eq!(errors(&engine), (0, 0, 0));
    assert!(engine.pool().store().errors().is_empty());
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn replaced_devices_are_not_needed() {
    let _turn = Turn::take(false);
    replaced("a", &[("a", "x")], "x", &[]);
    replaced("mirror a b", &[("a", "x")], "mirror(x b)", &["b"]);
    replaced("raidz1 a b c", &[("b", "x")], "raidz(a x c)", &["a"]);
    replaced("raidz2 a b c d", &[("a", "x"), ("d", "y")], "raidz(x b c y)", &["b", "c"]);
    let three = [("a", "x"), ("c", "y"), ("e", "z")];
    replaced("raidz3 a b c d e", &three, "raidz(x b y d z)", &["b", "d"]);
    // One after another at the same place.
    replaced("mirror a b", &[("a", "x"), ("b", "y")], "mirror(x y)", &["y"]);
}

/// Whatever was going on is finished after an import.
#[test]
fn a_replacement_goes_on_after_an_import() {
    let turn = Turn::take(true);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..8, LEN);
    replace(&rig, &engine, "a", "x").unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    turn.go_on();
    let engine = rig.import();
    until(&engine, "mirror(x b)");
    check_devices(&engine, 8, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Waits until the pool's vdevs are these, and the device `new` has everything.
fn until_given(rig: &Rig, engine: &Engine, wanted: &str, new: &str) {
    let end = Instant::now() + Duration::from_secs(120);
    let path = rig.file(new);
    let lacks = || {
        let leaves = engine.pool().store().vdevs().leaves();
        leaves.iter().any(|leaf| leaf.path() == Some(&path) && leaf.is_behind())
    };
    while vdevs(engine) != wanted || lacks() {
        assert!(Instant::now() < end, "{}, not {wanted}", vdevs(engine));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A device fails while files are written: a spare steps in, and has everything when another one fails.
#[test]
fn a_spare_steps_in_for_a_device_that_fails() {
    let _turn = Turn::take(false);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("raidz1 a b c spare s t", 12);
    fill(&open(&engine), 0..6, LEN);
    engine.sync().unwrap();
    engine.take_out(leaf(&rig, &engine, "b"), TakeOut::Fault).unwrap();
    until_given(&rig, &engine, "raidz(a spare(b s) c)", "s");
    fill(&open(&engine), 6..10, LEN);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    for name in ["a", "b"] {
        std::fs::remove_file(rig.file(name)).unwrap();
    }
    // The other spare steps in for the device that is gone now; one that stands in already does not.
    let engine = rig.import();
    until_given(&rig, &engine, "raidz(spare(a t) spare(b s) c)", "t");
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..10, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn what_does_not_fit_is_refused() {
    let _turn = Turn::take(true);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("raidz1 a b c", 12);
    let why = |done: Result<(), EngineError>| done.unwrap_err().to_string();
    assert!(why(attach(&rig, &engine, "a", "x")).contains("can only attach to mirrors"));
    assert!(why(detach(&rig, &engine, "a")).contains("only applicable to mirror and replacing"));
    let raidz = engine.pool().store().vdevs().root().children()[0].guid();
    let new = device(&rig, &engine, "x", &SystemDevices);
    let refused = engine.attach(Attach { beside: raidz, new, replaces: false });
    assert!(why(refused).contains("RAID-Z"));
    replace(&rig, &engine, "a", "x").unwrap();
    assert!(why(attach(&rig, &engine, "x", "y")).contains("can only attach to mirrors"));
    let large = Rig::new(128 << 20);
    let other = large.create("a", 9);
    let small = device(&rig, &other, "y", &SystemDevices);
    let beside = leaf(&large, &other, "a");
    let refused = other.attach(Attach { beside, new: small, replaces: true });
    assert!(why(refused).contains("device is too small"));
    let mut coarse = device(&large, &other, "z", &SystemDevices);
    coarse.ashift = 12;
    let refused = other.attach(Attach { beside, new: coarse, replaces: true });
    assert!(why(refused).contains("higher alignment requirement"));
    other.export(false).unwrap();
    engine.export(false).unwrap();
    drop((engine, other));
    rig.judge();
    large.judge_blocks();
}
