//! Datasets that are open for writing while they are closed or destroyed, or the pool is exported:
//! what is not going to be written is refused. Devices that another system has.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::WriteError;
use cenote_dsl::write::{DslWriteError, dataset, destroy};
use cenote_engine::{Engine, EngineError, EngineOptions};
use cenote_format::dmu::ObjsetType;
use cenote_pool::{ImportError, ImportOptions, discover};
use cenote_vdev::{Device, open_device_rw};
use cenote_zpl::{CreateProps, FileSystem, Settings};
use rig::Rig;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Creates a file system and returns its object.
fn create(engine: &Engine, name: &'static str) -> u64 {
    let root = engine.pool().dsl().root().unwrap().dir_obj;
    let make = move |ctx: &mut cenote_engine::SyncContext<'_>| {
        let made = dataset::create(&mut ctx.tx, root, name, &[], None)?;
        let txg = ctx.tx.txg;
        ctx.create_objset(made.ds_obj, ObjsetType::Zfs, 1, None, |os| {
            let done = cenote_zpl::format(os, &CreateProps::default(), txg);
            done.map_err(|e| WriteError::Sink(Box::new(e)))
        })?;
        Ok(made.ds_obj)
    };
    engine.sync_task(make).unwrap()
}

fn destroy(engine: &Engine, head: u64) -> Result<(), EngineError> {
    engine.sync_task(move |ctx| {
        ctx.retire(head)?;
        destroy::destroy_head(&mut ctx.tx, head)
    })
}

fn open(engine: &Engine, head: u64) -> Arc<FileSystem> {
    FileSystem::open_live(engine.live(head).unwrap(), Settings::default()).unwrap()
}

fn change(live: &LiveObjectSet) -> Result<(), WriteError> {
    let cost = Cost { write: 1, ..Cost::default() };
    live.transact(cost, |_, _| Ok(()))
}

#[test]
fn a_change_that_panics_suspends_the_pool() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let head = create(&engine, "one");
    let fs = open(&engine, head);
    rig::fill(&fs, 0..3, 10_000);
    engine.sync().unwrap();
    let live = engine.live(head).unwrap();
    let cost = Cost { write: 1, ..Cost::default() };
    let done: Result<(), WriteError> = live.transact(cost, |os, _| {
        os.free(fs.root())?;
        panic!("half of it is made")
    });
    assert!(matches!(done, Err(WriteError::Suspended(_))), "{done:?}");
    let why = engine.suspended().unwrap();
    assert!(
        why.contains(&format!("dataset {head}")) && why.contains("half of it is made"),
        "{why}"
    );
    assert!(engine.sync().is_err() && change(&live).is_err());
    assert!(matches!(engine.export(false), Err(EngineError::Suspended(_))));
    drop((fs, live, engine));
    // It goes on from the last group.
    let engine = rig.import();
    let fs = open(&engine, head);
    rig::check(&fs, 0..3, 10_000);
    drop(fs);
    engine.export(false).unwrap();
    rig.judge();
}

#[test]
fn a_pool_that_failed_says_of_nothing_that_it_is_stable() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let [head, other] = ["one", "two"].map(|name| create(&engine, name));
    let fs = open(&engine, head);
    rig::fill(&fs, 0..3, 10_000);
    engine.commit(head).unwrap();
    rig::fill(&fs, 3..5, 10_000);
    engine.commit(head).unwrap();
    rig::fill(&fs, 5..6, 10_000);
    let live = engine.live(other).unwrap();
    let cost = Cost { write: 1, ..Cost::default() };
    let done: Result<(), WriteError> = live.transact(cost, |_, _| panic!("nothing is made"));
    assert!(done.is_err());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2 {
                    assert!(engine.commit(head).is_err(), "what is nowhere is stable");
                }
            });
        }
    });
    drop((fs, live, engine));
    // Its log waits to be replayed.
    rig.import().export(false).unwrap();
    rig.judge();
}

#[test]
fn what_is_open_is_not_destroyed() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let head = create(&engine, "one");
    let fs = open(&engine, head);
    rig::fill(&fs, 0..3, 10_000);
    assert!(matches!(destroy(&engine, head), Err(EngineError::Dsl(DslWriteError::Busy))));
    rig::fill(&fs, 3..6, 10_000);
    rig::check(&fs, 0..6, 10_000);
    drop(fs);
    // It was changed in the group that destroys it.
    destroy(&engine, head).unwrap();
    assert!(engine.live(head).is_err());
    // Whatever its number, another one starts with what is its own.
    for name in ["two", "three", "four"] {
        let fs = open(&engine, create(&engine, name));
        assert!(fs.lookup(fs.root(), b"file 1").is_err());
        rig::fill(&fs, 0..2, 10_000);
    }
    engine.sync().unwrap();
    assert_eq!(engine.suspended(), None);
    engine.export(false).unwrap();
    rig.judge();
}

#[test]
fn what_is_closed_is_not_changed() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let head = create(&engine, "one");
    let old = engine.live(head).unwrap();
    change(&old).unwrap();
    engine.close(head).unwrap();
    assert!(change(&old).is_err());
    let new = engine.live(head).unwrap();
    change(&new).unwrap();
    assert!(change(&old).is_err());
    engine.export(false).unwrap();
    assert!(change(&new).is_err());
    assert!(engine.sync_task(|_| Ok(())).is_err());
    assert_eq!(engine.suspended(), None);
    drop((old, new, engine));
    rig.judge();
}

#[test]
fn a_fault_in_a_group_suspends_the_pool_and_keeps_nobody_waiting() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let head = create(&engine, "one");
    let fs = open(&engine, head);
    rig::fill(&fs, 0..3, 10_000);
    engine.sync().unwrap();
    let live = engine.live(head).unwrap();
    assert!(engine.sync_task(|_| -> cenote_dsl::write::Result<()> { panic!("a fault") }).is_err());
    assert!(matches!(engine.sync(), Err(EngineError::Suspended(_))));
    assert!(change(&live).is_err());
    assert!(engine.suspended().is_some());
    drop((fs, live, engine));
    let engine = rig.import();
    rig::check(&open(&engine, head), 0..3, 10_000);
    engine.export(false).unwrap();
    rig.judge();
}

/// Has a device for itself, once others have let go of it.
fn have(path: &Path) -> Arc<dyn Device> {
    let tries = std::iter::repeat_with(|| open_device_rw(path)).take(1000);
    let wait = |_: &_| std::thread::sleep(Duration::from_millis(1));
    tries.inspect(wait).find_map(Result::ok).unwrap()
}

/// Has a device for itself for a moment.
fn borrow_for(path: &Path, moment: Duration) -> std::thread::JoinHandle<()> {
    let device = have(path);
    std::thread::spawn(move || {
        std::thread::sleep(moment);
        drop(device);
    })
}

#[test]
fn a_device_that_is_let_go_of_is_waited_for_but_not_for_long() {
    let moment = Duration::from_millis(30);
    let rig = Rig::new(64 << 20);
    rig.create("mirror a b", 12).export(false).unwrap();
    let b = rig.path().join("b");
    let thread = borrow_for(&b, moment);
    rig.import().export(false).unwrap();
    thread.join().unwrap();

    let thread = borrow_for(&b, moment);
    rig.create("mirror a b", 12).export(false).unwrap();
    thread.join().unwrap();

    let device = have(&b);
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    let refused = Engine::import(&found[0], &options, EngineOptions::default());
    assert!(matches!(refused, Err(ImportError::InUse { paths, .. }) if paths == [b]));
    drop(device);
    rig.import().export(false).unwrap();
    rig.judge();
}

/// A file system with so many files of 200 KB each that is not open.
fn filled(engine: &Engine, name: &'static str, files: u64) -> u64 {
    let head = create(engine, name);
    rig::fill(&open(engine, head), 0..files, 200_000);
    engine.sync().unwrap();
    head
}

fn freeing(engine: &Engine) -> u64 {
    engine.pool().get("freeing").unwrap().exact.parse().unwrap()
}

#[test]
fn what_is_left_to_be_freed_waits_for_the_next_import() {
    let rig = Rig::new(64 << 20);
    // One block in each group.
    let slow = EngineOptions { free_budget: Some(1), ..EngineOptions::default() };
    let engine = rig.create_with("a", 12, slow);
    let head = filled(&engine, "one", 100);
    destroy(&engine, head).unwrap();
    engine.export(false).unwrap();
    let left = freeing(&engine);
    assert!(left > 0);
    drop(engine);
    rig.judge();
    let engine = rig.import();
    while freeing(&engine) > 0 {
        engine.sync().unwrap();
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn without_async_destroy_all_is_freed_at_once() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create_choosing("a", 12, &[("async_destroy".to_string(), false)]);
    let allocated = |engine: &Engine| engine.pool().space().unwrap().pool().alloc;
    let (empty, head) = (allocated(&engine), filled(&engine, "one", 100));
    let kept = filled(&engine, "two", 3);
    assert!(allocated(&engine) > empty + (20 << 20));
    destroy(&engine, head).unwrap();
    assert_eq!(freeing(&engine), 0);
    for _ in 0..4 {
        engine.sync_task(|_| Ok(())).unwrap();
    }
    assert!(allocated(&engine) < empty + (2 << 20));
    rig::check(&open(&engine, kept), 0..3, 200_000);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}
