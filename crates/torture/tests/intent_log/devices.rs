//! Log vdevs that fail, and that are lost.

use cenote_dsl::zil::ZIL_LEVEL;
use cenote_engine::create::{Class, Layout, Redundancy, VdevSpec};
use cenote_engine::{Engine, OfflineError, TakeOut};
use cenote_format::nvlist::NvValue;
use cenote_pool::config::{self, BY_HAND};
use cenote_pool::reopen::Restore;
use cenote_pool::{ImportError, ImportOptions};
use cenote_store::alloc::Class as AllocClass;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::lab::{Lab, Logs, disks, judge};
use cenote_torture::live::world::{look, root};
use cenote_vdev::Device;
use cenote_vdev::inject::FaultyDevice;
use cenote_zpl::{NewNode, NodeKind};
use std::sync::Arc;

const SIZE: u64 = 96 << 20;

/// A pool of a disk and a log vdev, whose devices can be made to fail.
struct Rig {
    disks: Vec<Arc<Disk>>,
    faulty: Vec<Arc<FaultyDevice>>,
    engine: Arc<Engine>,
}

fn lab(devices: &[Arc<FaultyDevice>]) -> Lab {
    Lab::new(devices.iter().map(|d| d.clone() as Arc<dyn Device>).collect())
}

impl Rig {
    fn new() -> Rig {
        Rig::with_sides(1)
    }

    /// With a log vdev of so many sides.
    fn with_sides(sides: usize) -> Rig {
        let disks = disks(&vec![Image::new(SIZE); 1 + sides], None);
        let faulty: Vec<_> = disks.iter().map(|d| FaultyDevice::new(d.clone())).collect();
        let lab = lab(&faulty);
        let paths: Vec<_> = lab.paths().collect();
        let top = |path: &std::path::PathBuf| VdevSpec::new(Redundancy::Single, vec![path.clone()]);
        let redundancy = if sides > 1 { Redundancy::Mirror } else { Redundancy::Single };
        let log = VdevSpec { class: Class::Log, ..VdevSpec::new(redundancy, paths[1..].to_vec()) };
        let layout = Layout { tops: vec![top(&paths[0]), log], ..Layout::default() };
        let engine = lab.create_layout(&layout, 12, Logs::On).unwrap();
        engine.sync().unwrap();
        Rig { disks, faulty, engine }
    }

    /// Creates a file and commits it; whether that took a transaction group.
    fn create(&self, name: &str) -> bool {
        let fs = root(&self.engine, true);
        let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
        let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
        let ino = fs.create(fs.root(), name.as_bytes(), &node).unwrap().ino;
        fs.write(ino, 0, name.as_bytes(), false).unwrap();
        let before = self.engine.pool().uberblock().txg;
        self.engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
        self.engine.pool().uberblock().txg > before
    }

    fn images(&self) -> Vec<Image> {
        images(&self.disks)
    }

    /// The guid of a device.
    fn guid(&self, at: usize) -> u64 {
        self.engine.pool().store().vdevs().leaves()[at].guid()
    }

    /// Begins a log, which is on disk with that; the top-level vdev that it is on.
    fn begin_log(&self, name: &str) -> u32 {
        self.create(name);
        self.engine.sync().unwrap();
        place_of_log(&self.engine)
    }
}

/// The top-level vdev that the log of the root file system begins on.
fn place_of_log(engine: &Engine) -> u32 {
    let dsl = engine.pool().dsl().clone();
    let header = dsl.open_objset(&dsl.root().unwrap()).unwrap().phys().zil;
    header.log.dva(0).unwrap().vdev
}

fn names(engine: &Engine) -> Vec<String> {
    look(&root(engine, true)).keys().map(|n| String::from_utf8_lossy(n).into_owned()).collect()
}

/// Imports a copy of the pool from these of its devices; all of them are returned as well.
fn import(
    images: &[Image],
    devices: &[usize],
    without_log: bool,
) -> Result<(Arc<Engine>, Vec<Arc<Disk>>), ImportError> {
    let all = disks(images, None);
    let devices: Vec<_> = devices.iter().map(|i| all[*i].clone() as Arc<dyn Device>).collect();
    let lab = Lab::new(devices);
    let options = ImportOptions { allow_missing_log: without_log, ..ImportOptions::default() };
    Ok((lab.import_with(&lab.find().unwrap(), options)?, all))
}

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

/// Bytes that are allocated on log vdevs.
fn on_log_vdevs(engine: &Engine) -> u64 {
    engine.allocator().groups_of(AllocClass::Log).iter().map(|group| group.allocated()).sum()
}

#[test]
fn a_log_vdev_that_fails_has_commits_wait_for_their_group() {
    for flushes in [false, true] {
        let rig = Rig::new();
        // The first commit starts the log.
        assert!(rig.create("first"));
        assert!(!rig.create("logged"));
        match flushes {
            true => rig.faulty[1].set_flush_errors(true),
            false => rig.faulty[1].fail_writes(0..u64::MAX),
        }
        assert!(rig.create("waited"), "a commit was acknowledged that is not in the log");
        // Logs are elsewhere from then on, and no commit waits for a group.
        assert_eq!(rig.begin_log("begun"), 0);
        assert!(!rig.create("beside"), "a group was waited for");
        rig.faulty[1].repair();
        rig.engine.restore(&[rig.guid(1)], Restore::Failure).unwrap();
        // It is used again.
        rig.create("back");
        rig.engine.sync_task(|_| Ok(())).unwrap();
        assert_eq!(rig.begin_log("again"), 1);
        assert!(!rig.create("on it"), "a group was waited for");
        // What is acknowledged now is there, in a log or not.
        for n in 0..4 {
            rig.create(&format!("later{n}"));
        }
        let images = rig.images();
        let (engine, _) = import(&images, &[0, 1], false).unwrap();
        assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
        let want = [
            "again", "back", "begun", "beside", "first", "later0", "later1", "later2", "later3",
            "logged", "on it", "waited",
        ];
        assert_eq!(names(&engine), want);
        engine.export(false).unwrap();
    }
}

#[test]
fn a_pool_without_its_log_vdev_is_imported_when_that_is_asked_for() {
    let rig = Rig::new();
    assert!(rig.create("before"));
    assert!(!rig.create("logged"));
    let images = rig.images();
    let refused = import(&images, &[0], false).err().unwrap();
    let notes = refused.notes().unwrap_or_default();
    assert!(notes.contains("use '-m' to import the pool anyway"), "{refused}: {notes}");
    // With all devices nothing is lost.
    let (engine, _) = import(&images, &[0, 1], false).unwrap();
    assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
    assert_eq!(names(&engine), ["before", "logged"]);
    engine.export(false).unwrap();
    judge(&images).unwrap();
    // Without, what was in the log only.
    let (engine, _) = import(&images, &[0], true).unwrap();
    assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
    assert_eq!(names(&engine), ["before"]);
    engine.export(false).unwrap();
}

/// What a lost log had on the vdev that is missing is free again, though the chain cannot be followed.
#[test]
fn what_a_lost_log_had_on_its_vdev_is_free() {
    let rig = Rig::new();
    assert!(rig.create("before"));
    (0..5).for_each(|n| assert!(!rig.create(&format!("logged{n}"))));
    // An import claims the log; nothing is replayed.
    let (engine, disks) = import(&rig.images(), &[0, 1], false).unwrap();
    assert!(on_log_vdevs(&engine) > 6 * (8 << 10));
    engine.export(false).unwrap();
    let claimed = images(&disks);
    judge(&claimed).unwrap();
    let (engine, disks) = import(&claimed, &[0], true).unwrap();
    assert_eq!(names(&engine), ["before"]);
    engine.export(false).unwrap();
    let given_up = images(&disks);
    judge(&given_up).unwrap();
    let (engine, disks) = import(&given_up, &[0, 1], false).unwrap();
    assert_eq!(on_log_vdevs(&engine), 0);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
}

/// A claimed log that cannot be read keeps its dataset from being written to until it is cleared; then nothing is said of
/// it any more, and the next import frees what it had.
#[test]
fn a_log_that_is_cleared_is_no_damage_and_leaks_nothing() {
    let rig = Rig::new();
    assert!(rig.create("before"));
    (0..5).for_each(|n| assert!(!rig.create(&format!("logged{n}"))));
    let (engine, disks) = import(&rig.images(), &[0, 1], false).unwrap();
    engine.export(false).unwrap();
    // Of the log vdev nothing is left but the labels.
    let mut spoiled = images(&disks);
    spoiled[1].clear_within(4 << 20);
    let (engine, disks) = import(&spoiled, &[0, 1], false).unwrap();
    assert!(engine.waiting_logs().is_empty());
    let store = engine.pool().store().clone();
    let of_logs = || store.errors().iter().filter(|at| at.level == ZIL_LEVEL).count();
    let ds_obj = engine.pool().dsl().root().unwrap().ds_obj;
    assert!(engine.live(ds_obj).is_err());
    assert!(of_logs() > 0);
    engine.clear_intent_log(ds_obj).unwrap();
    assert_eq!(of_logs(), 0);
    assert_eq!(names(&engine), ["before"]);
    engine.export(false).unwrap();
    let (engine, disks) = import(&images(&disks), &[0, 1], false).unwrap();
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
}

/// What was acknowledged is on disk, and logs go on elsewhere; without the devices the pool is imported after a crash.
#[test]
fn a_log_vdev_that_is_taken_out_is_empty_and_not_missed() {
    for (sides, how) in
        [(1, TakeOut::Offline), (1, TakeOut::Fault), (2, TakeOut::Offline), (2, TakeOut::Fault)]
    {
        let rig = Rig::with_sides(sides);
        assert!(rig.create("first"));
        assert!(!rig.create("logged"));
        assert_eq!(place_of_log(&rig.engine), 1, "{sides} {how:?}");
        for at in 1..=sides {
            rig.engine.take_out(rig.guid(at), how).unwrap();
        }
        let at_once = rig.images();
        assert_eq!(rig.begin_log("begun"), 0, "{sides} {how:?}");
        assert!(!rig.create("beside"), "a group was waited for: {sides} {how:?}");
        let later = rig.images();
        let files: [&[&str]; 2] = [&["first", "logged"], &["begun", "beside", "first", "logged"]];
        for (images, files) in [at_once, later].iter().zip(files) {
            let (engine, disks) = import(images, &[0], false).unwrap();
            assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
            assert_eq!(names(&engine), files, "{sides} {how:?}");
            engine.export(false).unwrap();
            judge(&self::images(&disks)).unwrap();
        }
        // It comes back, and is used again.
        let restore = match how {
            TakeOut::Offline => Restore::Offline,
            _ => Restore::Failure,
        };
        rig.engine.restore(&[rig.guid(1)], restore).unwrap();
        rig.engine.sync_task(|_| Ok(())).unwrap();
        assert_eq!(rig.begin_log("back"), 1, "{sides} {how:?}");
        rig.engine.export(false).unwrap();
        judge(&rig.images()).unwrap();
    }
}

/// What was acknowledged before is elsewhere when the command is done, and so is what is acknowledged later: an import that gives
/// up what a missing log vdev has gives up nothing else.
#[test]
fn what_was_acknowledged_outlives_a_log_vdev_that_is_away_for_now() {
    for how in [TakeOut::OfflineForNow, TakeOut::FaultForNow] {
        let rig = Rig::new();
        assert!(rig.create("first"));
        assert!(!rig.create("logged"));
        rig.engine.take_out(rig.guid(1), how).unwrap();
        let at_once = rig.images();
        assert_eq!(rig.begin_log("begun"), 0);
        assert!(!rig.create("beside"));
        let later = rig.images();
        let files: [&[&str]; 2] = [&["first", "logged"], &["begun", "beside", "first", "logged"]];
        for (images, files) in [at_once, later].iter().zip(files) {
            assert!(import(images, &[0], false).is_err());
            let (engine, disks) = import(images, &[0], true).unwrap();
            assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
            assert_eq!(names(&engine), files, "{how:?}");
            engine.export(false).unwrap();
            judge(&self::images(&disks)).unwrap();
        }
        rig.engine.export(false).unwrap();
    }
}

/// Other software, or an older version, may have left a header that leads to a log vdev which the config says is out of use.
#[test]
fn a_log_ends_before_a_vdev_that_was_taken_out() {
    for fault in [false, true] {
        let rig = Rig::new();
        assert!(rig.create("first"));
        assert!(!rig.create("logged"));
        let guid = rig.guid(1);
        let note = move |context: &mut cenote_engine::SyncContext<'_>| {
            config::for_each_leaf_mut(&mut context.config.vdev_tree, &mut |leaf| {
                if config::number(leaf, "guid") == guid {
                    let pair = if fault { "faulted" } else { "offline" };
                    config::set(leaf, pair, NvValue::Uint64(1));
                    config::set(leaf, "aux_state", NvValue::String(BY_HAND.into()));
                }
            });
            context.config_changed = true;
            Ok(())
        };
        rig.engine.sync_task_beside_logs(note, |()| true).unwrap();
        assert_eq!(place_of_log(&rig.engine), 1);
        let (engine, disks) = import(&rig.images(), &[0], false).unwrap();
        assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
        assert_eq!(names(&engine), ["first", "logged"]);
        engine.export(false).unwrap();
        judge(&images(&disks)).unwrap();
    }
}

/// A log that waits for its replay keeps its device, unless that is to be faulted.
#[test]
fn a_log_that_waits_for_its_replay_keeps_its_device_in_use() {
    let rig = Rig::new();
    assert!(rig.create("first"));
    assert!(!rig.create("logged"));
    let (engine, disks) = import(&rig.images(), &[0, 1], false).unwrap();
    let guid = engine.pool().store().vdevs().leaves()[1].guid();
    let refused = engine.take_out(guid, TakeOut::Offline);
    assert!(matches!(refused, Err(OfflineError::LogsWait)), "{refused:?}");
    assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
    engine.take_out(guid, TakeOut::Offline).unwrap();
    assert_eq!(names(&engine), ["first", "logged"]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
}
