//! Devices join vdevs of a pool that is written to, and leave them; what is left reads, and OpenZFS's `zdb` finds nothing
//! wrong. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::create::{OpenDevices, SystemDevices};
use cenote_engine::tunables::{FILE_LOGICAL_ASHIFT, FILE_PHYSICAL_ASHIFT, SCAN_SUSPEND_PROGRESS};
use cenote_engine::{Attach, Engine, EngineError, EngineOptions, TakeOut};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_vdev::VdevState;
use parking_lot::{Mutex, MutexGuard};
use rig::joining::{attach, device, leaf, replace};
use rig::{Faulty, Rig, check, check_devices, errors, fill, open};
use std::os::unix::fs::FileExt;
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

/// A device may be smaller than the one that it replaces, as long as it has room for all metaslabs of the vdev.
#[test]
fn a_smaller_device_replaces_another_if_it_suffices() {
    let _turn = Turn::take(false);
    let rig = Rig::new(96 << 20);
    for (name, size) in [("s", 68 << 20), ("x", 92 << 20)] {
        std::fs::File::create(rig.file(name)).unwrap().set_len(size).unwrap();
    }
    let engine = rig.create("mirror a b", 12);
    fill(&open(&engine), 0..4, LEN);
    assert!(replace(&rig, &engine, "a", "s").is_err());
    replace(&rig, &engine, "a", "x").unwrap();
    until(&engine, "mirror(x b)");
    check_devices(&engine, 4, LEN);
    engine.export(false).unwrap();
    drop(engine);
    ["a", "s"].iter().for_each(|name| std::fs::remove_file(rig.file(name)).unwrap());
    rig.judge();
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

/// A block that leads to others is wrong on all devices: what is below it can be given to no device, and the replacement ends.
#[test]
fn a_replacement_ends_though_blocks_are_lost() {
    let _turn = Turn::take(false);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("mirror a b", 12);
    let fs = open(&engine);
    fill(&fs, 0..4, LEN);
    engine.sync().unwrap();
    let ino = fs.lookup(fs.root(), b"file 0").unwrap();
    let root = engine.pool().dsl().root().unwrap().ds_obj;
    let set = engine.live(root).unwrap();
    let leads = set.base().object(ino).unwrap().block_pointer(1, 0).unwrap();
    for (name, dva) in ["a", "b"].iter().flat_map(|name| leads.dvas().map(move |dva| (name, dva))) {
        let file = std::fs::OpenOptions::new().write(true).open(rig.file(name)).unwrap();
        file.write_all_at(&[0x5a; 4096], (4 << 20) + dva.offset).unwrap();
    }
    drop((fs, set));
    engine.pool().store().drop_caches();
    replace(&rig, &engine, "a", "x").unwrap();
    until(&engine, "mirror(x b)");
    check(&open(&engine), 1..4, LEN);
    engine.export(false).unwrap();
    drop(engine);
    std::fs::remove_file(rig.file("b")).unwrap();
    let engine = rig.import();
    check(&open(&engine), 1..4, LEN);
    engine.export(false).unwrap();
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
        let states = || engine.pool().store().vdevs().root().children().to_vec();
        assert!(Instant::now() < end, "{}, not {wanted}: {:?}", vdevs(engine), states());
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

/// Neither a spare nor a replacement goes on beside a checkpoint; both do when it is gone.
#[test]
fn what_waits_for_a_checkpoint_goes_on_after_it() {
    let turn = Turn::take(true);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("raidz1 a b c mirror d e spare s", 12);
    fill(&open(&engine), 0..6, LEN);
    engine.sync().unwrap();
    replace(&rig, &engine, "e", "x").unwrap();
    engine.checkpoint().unwrap();
    turn.go_on();
    let end = Instant::now() + Duration::from_secs(120);
    while engine.is_scanning() || engine.awaits_resilver() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    engine.take_out(leaf(&rig, &engine, "b"), TakeOut::Fault).unwrap();
    engine.write_config().unwrap();
    assert_eq!(shape(&engine), "raidz(a b c) mirror(d replacing(e x))");
    engine.discard_checkpoint().unwrap();
    until_given(&rig, &engine, "raidz(a spare(b s) c) mirror(d x)", "s");
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..6, LEN);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
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
    assert!(why(refused).contains("raidz_expansion feature must be enabled"));
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

/// Only logical sectors count of a device that joins: large ones that it would rather have do not keep it out.
#[test]
fn disks_with_larger_physical_sectors_replace_others() {
    let _turn = Turn::take(false);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("mirror a b", 9);
    fill(&open(&engine), 0..4, LEN);
    FILE_PHYSICAL_ASHIFT.set(12).unwrap();
    let with_sectors =
        |name: &str| device(&rig, &engine, name, &SystemDevices).for_sectors(&SystemDevices, 0);
    let (beside, new) = (leaf(&rig, &engine, "a"), with_sectors("x"));
    let replaced = engine.attach(Attach { beside, new, replaces: true });
    FILE_LOGICAL_ASHIFT.set(12).unwrap();
    let refused = engine.attach(Attach { beside, new: with_sectors("y"), replaces: true });
    FILE_LOGICAL_ASHIFT.set(9).unwrap();
    FILE_PHYSICAL_ASHIFT.set(9).unwrap();
    replaced.unwrap();
    assert!(refused.unwrap_err().to_string().contains("higher alignment requirement"));
    until(&engine, "mirror(x b)");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// Nothing is written to a pool in which a device fails: a spare steps in all the same.
#[test]
fn a_spare_steps_in_where_nothing_is_written() {
    let _turn = Turn::take(false);
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let options =
        EngineOptions { txg_timeout: Some(Duration::from_millis(200)), ..EngineOptions::default() };
    let engine = rig.create_on("raidz1 a b c spare s", 12, options, &devices);
    fill(&open(&engine), 0..6, LEN);
    engine.sync().unwrap();
    devices.close(&rig, "s");
    devices.device(&rig, "b").set_missing(true);
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..6, LEN);
    until_given(&rig, &engine, "raidz(a spare(b s) c)", "s");
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
}

/// The state that the label of a device says.
fn label_state(rig: &Rig, name: &str) -> u64 {
    let device = cenote_vdev::open_device(&rig.file(name)).unwrap();
    config::number(&cenote_vdev::read_labels(device.as_ref()).unwrap().unwrap().config, "state")
}

/// A spare that the pool was about to take when it stopped is free for others after an import.
#[test]
fn spares_are_returned_after_a_crash() {
    let _turn = Turn::take(true);
    let rig = Rig::new(64 << 20);
    let engine = rig.create("mirror a b spare s", 12);
    fill(&open(&engine), 0..2, LEN);
    engine.sync().unwrap();
    let guid = config::number(&engine.pool().spares()[0], "guid");
    engine.export(false).unwrap();
    drop(engine);
    // What the label says between its writing and the commit: that of a device of the pool, of no group.
    let [beside, spare] = ["a", "s"].map(|name| rig.file(name));
    let beside = cenote_vdev::open_device(&beside).unwrap();
    let mut label = cenote_vdev::read_labels(beside.as_ref()).unwrap().unwrap().config;
    label.set("guid", NvValue::Uint64(guid));
    label.set("txg", NvValue::Uint64(0));
    let spare = SystemDevices.open_rw(&spare).unwrap();
    cenote_vdev::init_labels(spare.as_ref(), &label).unwrap();
    drop((beside, spare));
    assert_ne!(label_state(&rig, "s"), config::STATE_SPARE);
    let engine = rig.import();
    assert_eq!(shape(&engine), "mirror(a b)");
    engine.export(false).unwrap();
    drop(engine);
    assert_eq!(label_state(&rig, "s"), config::STATE_SPARE);
    rig.judge_blocks();
}

/// A pool whose spare another pool has in use, and the label that the spare had before.
fn with_spare_of_others() -> (Rig, NvList) {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("mirror a b spare s", 12);
    fill(&open(&engine), 0..2, LEN);
    engine.sync().unwrap();
    let guid = config::number(&engine.pool().spares()[0], "guid");
    engine.export(false).unwrap();
    drop(engine);
    let [mut label, before] = ["a", "s"].map(|name| {
        let device = cenote_vdev::open_device(&rig.file(name)).unwrap();
        cenote_vdev::read_labels(device.as_ref()).unwrap().unwrap().config
    });
    label.set("guid", NvValue::Uint64(guid));
    label.set("pool_guid", NvValue::Uint64(4711));
    label.set("name", NvValue::String("theirs".into()));
    let device = SystemDevices.open_rw(&rig.file("s")).unwrap();
    cenote_vdev::init_labels(device.as_ref(), &label).unwrap();
    (rig, before)
}

/// Another pool has a spare in use, and gives it back: it steps in for what has failed meanwhile.
#[test]
fn a_spare_steps_in_once_another_pool_has_given_it_back() {
    let _turn = Turn::take(false);
    let (rig, label) = with_spare_of_others();
    let engine = rig.import();
    engine.take_out(leaf(&rig, &engine, "b"), TakeOut::Fault).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    engine.sync_task(|_| Ok(())).unwrap();
    assert_eq!(shape(&engine), "mirror(a b)");
    let device = SystemDevices.open_rw(&rig.file("s")).unwrap();
    cenote_vdev::init_labels(device.as_ref(), &label).unwrap();
    drop(device);
    let end = Instant::now() + Duration::from_secs(60);
    while vdevs(&engine) != "mirror(a spare(b s))" {
        assert!(Instant::now() < end, "{}", vdevs(&engine));
        engine.sync_task(|_| Ok(())).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    until_given(&rig, &engine, "mirror(a spare(b s))", "s");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// Another pool has a spare in use that both list. This one looks at it, and does not take it for itself.
#[test]
fn a_spare_that_another_pool_has_is_not_taken() {
    let _turn = Turn::take(true);
    let (rig, _) = with_spare_of_others();
    let engine = rig.import();
    assert_eq!((engine.pool().name(), shape(&engine).as_str()), ("tank", "mirror(a b)"));
    // As `zpool status` and `zpool list -v` do.
    let pool = engine.pool();
    let (tree, _) = (pool.tree(), pool.status().unwrap());
    let spare = &tree.spares[0];
    assert_eq!((spare.state, spare.note.as_deref()), ("INUSE", Some("in use by pool 'theirs'")));
    assert!(pool.device_size(&pool.spares()[0]).is_some());
    drop(pool);
    // The other pool can be imported.
    drop(SystemDevices.open_rw(&rig.file("s")).unwrap());
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A device that is needed did not answer once, and works again. A sector of another one cannot be read: that block is lost, and
/// the replacement ends all the same.
#[test]
fn a_replacement_ends_though_a_device_did_not_answer_once() {
    let _turn = Turn::take(false);
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine = rig.create_on("raidz1 a b c", 12, EngineOptions::default(), &devices);
    let fs = open(&engine);
    fill(&fs, 0..4, LEN);
    engine.sync().unwrap();
    let ino = fs.lookup(fs.root(), b"file 0").unwrap();
    let root = engine.pool().dsl().root().unwrap().ds_obj;
    let block = engine.live(root).unwrap().base().object(ino).unwrap().block_pointer(0, 0).unwrap();
    let dva = block.dva(0).unwrap();
    let tree = engine.pool().store().vdevs();
    let columns = tree
        .top(0)
        .unwrap()
        .raidz_columns(dva.offset, block.psize(), block.physical_birth())
        .unwrap()
        .remove(0);
    let lost = *columns.iter().skip(1).find(|column| column.child == 2).unwrap();
    drop((fs, tree));

    engine.take_out(leaf(&rig, &engine, "a"), TakeOut::Fault).unwrap();
    let b = leaf(&rig, &engine, "b");
    let state = || engine.pool().store().vdevs().find(b).unwrap().state();
    devices.device(&rig, "b").set_missing(true);
    engine.pool().store().drop_caches();
    let fs = open(&engine);
    assert!(fs.read(fs.lookup(fs.root(), b"file 1").unwrap(), 0, &mut [0; 100]).is_err());
    drop(fs);
    assert_eq!(state(), VdevState::Degraded);
    devices.device(&rig, "b").set_missing(false);
    let at = (4 << 20) + lost.offset;
    devices.device(&rig, "c").fail(at..at + lost.len as u64);
    engine.pool().store().drop_caches();
    replace(&rig, &engine, "a", "x").unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    while engine.is_scanning() || engine.awaits_resilver() {
        assert!(Instant::now() < end, "{:?}", engine.scan_waits());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(state(), VdevState::Healthy);
    // It was given all but the group of that block.
    let x = engine.pool().store().vdevs().find(leaf(&rig, &engine, "x")).unwrap().missing();
    assert!(x.iter().map(|lost| lost.end - lost.start).sum::<u64>() <= 1, "{x:?}");
    devices.device(&rig, "c").repair();
    engine.start_resilver().unwrap();
    until_given(&rig, &engine, "raidz(x b c)", "x");
    devices.device(&rig, "b").set_missing(true);
    engine.pool().store().drop_caches();
    check(&open(&engine), 1..4, LEN);
    devices.device(&rig, "b").repair();
    engine.export(false).unwrap();
}

/// A device that joined loses writes while it is resilvered: it is given those as well.
#[test]
fn what_is_lost_during_a_resilver_is_given_too() {
    let turn = Turn::take(true);
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine = rig.create_on("a", 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..4, LEN);
    let (beside, new) = (leaf(&rig, &engine, "a"), device(&rig, &engine, "x", &devices));
    engine.attach(Attach { beside, new, replaces: true }).unwrap();
    // Not its labels.
    devices.device(&rig, "x").fail_writes(4 << 20..60 << 20);
    fill(&open(&engine), 4..6, LEN);
    engine.sync().unwrap();
    devices.device(&rig, "x").repair();
    turn.go_on();
    until(&engine, "x");
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..6, LEN);
    // All that failed are writes.
    assert!(matches!(errors(&engine), (0, 1.., 0)));
    assert!(engine.pool().store().errors().is_empty());
    engine.export(false).unwrap();
    drop((engine, devices));
    rig.judge_blocks();
}
