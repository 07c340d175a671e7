//! Log vdevs that fail, and that are lost.

use cenote_dsl::zil::ZIL_LEVEL;
use cenote_engine::Engine;
use cenote_engine::create::{Class, Layout, Redundancy, VdevSpec};
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
        let disks = disks(&vec![Image::new(SIZE); 2], None);
        let faulty: Vec<_> = disks.iter().map(|d| FaultyDevice::new(d.clone())).collect();
        let lab = lab(&faulty);
        let paths: Vec<_> = lab.paths().collect();
        let top = |path: &std::path::PathBuf| VdevSpec::new(Redundancy::Single, vec![path.clone()]);
        let log = VdevSpec { class: Class::Log, ..top(&paths[1]) };
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
        rig.faulty[1].repair();
        // What is acknowledged now is there, in a log or not.
        for n in 0..4 {
            rig.create(&format!("later{n}"));
        }
        let images = rig.images();
        let (engine, _) = import(&images, &[0, 1], false).unwrap();
        assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
        let want = ["first", "later0", "later1", "later2", "later3", "logged", "waited"];
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
