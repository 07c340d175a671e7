//! Pools in an object store that is away for longer than requests are repeated: nothing is lost, nothing leaks, and the pool goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions};
use cenote_objects::{Space, Tunables};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_teststore::faults::{FaultStore, Faults, Shared};
use cenote_vdev::object;
use object_store::memory::InMemory;
use rig::{Rig, TIMEOUT, account, check, errors, fill, open};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 200_000;
const AWAY: Faults = Faults { refused: 100, ..Faults::NONE };

fn tunables(budget: Duration) -> Tunables {
    Tunables {
        object_bytes: 64 << 10,
        pause: Duration::from_millis(2),
        pause_max: Duration::from_millis(20),
        budget,
        grace: Duration::ZERO,
        seed: 1,
        ..Tunables::default()
    }
}

struct World {
    name: &'static str,
    shared: Shared,
    store: Arc<FaultStore>,
    engine: Arc<Engine>,
    _rig: Rig,
}

fn world(name: &'static str, others: &str, budget: Duration) -> World {
    let shared = Shared::new(Arc::new(InMemory::new()));
    let store = FaultStore::new(&shared, Faults::NONE, 1);
    object::provide(Path::new(name), store.clone(), tunables(budget));
    let rig = Rig::new(96 << 20);
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_with(&format!("{name}{others}"), 0, options);
    fill(&open(&engine), 0..10, LEN);
    engine.sync().unwrap();
    World { name, shared, store, engine, _rig: rig }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl World {
    fn syncing(&self) -> std::thread::JoinHandle<bool> {
        let theirs = self.engine.clone();
        std::thread::spawn(move || theirs.sync().is_ok())
    }

    fn is_suspended(&self) -> bool {
        self.engine.suspended().is_some() && self.engine.waits_for_devices()
    }

    /// The store is back, and the user says so.
    fn comes_back(&self) {
        self.store.set(Faults::NONE);
        until("the pool does not go on", || {
            let resumed = self.engine.resume();
            resumed.is_ok() && !self.is_suspended()
        });
    }

    /// The pool is whole, and the store has its objects and no others.
    fn finish(self, others: &[PathBuf]) {
        assert_eq!(errors(&self.engine).2, 0);
        assert!(self.engine.pool().store().errors().is_empty());
        self.engine.export(false).unwrap();
        drop(self.engine);
        let mut places = vec![PathBuf::from(self.name)];
        places.extend_from_slice(others);
        let found = discover(&places);
        let how = ImportOptions { readonly: true, ..ImportOptions::default() };
        account(&Pool::import(&found[0], &how).unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let tunables = tunables(Duration::from_secs(5));
            let store = self.shared.inner.clone();
            let found = Space::look(store, Default::default(), tunables).await.unwrap();
            let space = found.open("the test").await.unwrap();
            space.sweep().await.unwrap();
            space.tidy().await;
            let audit = space.audit().await.unwrap();
            assert!(audit.missing.is_empty() && audit.left.is_empty(), "{audit:?}");
        });
    }
}

/// An upload that was given up within a group is sent again.
#[test]
fn a_group_that_could_not_be_uploaded_goes_on() {
    let world = world("test://uploads", "", Duration::from_millis(300));
    world.store.set(AWAY);
    fill(&open(&world.engine), 10..60, LEN);
    let syncing = world.syncing();
    until("the pool is not suspended", || world.is_suspended());
    // And once more in vain.
    std::thread::sleep(Duration::from_millis(100));
    let _ = world.engine.resume();
    until("the pool is not suspended again", || world.is_suspended());
    // Who waits for a group is told.
    assert!(!syncing.join().unwrap());
    world.comes_back();
    world.engine.sync().unwrap();
    world.engine.pool().store().drop_caches();
    check(&open(&world.engine), 0..60, LEN);
    world.finish(&[]);
}

/// What the group has to read is not taken for damaged: nothing of what it frees leaks, and no error is noted.
#[test]
fn a_group_that_could_not_read_leaks_nothing() {
    let world = world("test://reads", "", Duration::from_millis(300));
    let fs = open(&world.engine);
    fill(&fs, 10..40, LEN);
    world.engine.sync().unwrap();
    for i in 0..30 {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    world.engine.sync().unwrap();
    // The group leaves to the next one what it frees; all is read from the store.
    for i in 30..35 {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    drop(fs);
    world.engine.pool().store().drop_caches();
    world.store.set(AWAY);
    let syncing = world.syncing();
    until("the pool is not suspended", || world.is_suspended());
    assert!(!syncing.join().unwrap());
    world.comes_back();
    world.engine.sync().unwrap();
    world.engine.pool().store().drop_caches();
    check(&open(&world.engine), 35..40, LEN);
    world.finish(&[]);
}

/// What is read by a program fails while the store is away; the pool notes no permanent error for it.
#[test]
fn what_is_read_in_vain_is_no_permanent_error() {
    let world = world("test://user", "", Duration::from_millis(200));
    let fs = open(&world.engine);
    world.engine.pool().store().drop_caches();
    world.store.set(AWAY);
    let ino = fs.lookup(fs.root(), b"file 0");
    let read = ino.and_then(|ino| fs.read(ino, 0, &mut [0; 1000]));
    assert!(read.is_err());
    world.store.set(Faults::NONE);
    until("the device does not come back", || {
        let leaf = world.engine.pool().store().vdevs().leaves().remove(0);
        leaf.device().unwrap().is_there()
    });
    fill(&fs, 10..11, LEN);
    world.engine.sync().unwrap();
    world.engine.pool().store().drop_caches();
    check(&fs, 0..11, LEN);
    drop(fs);
    world.finish(&[]);
}

/// A log device takes what is synchronous while a group cannot be stored.
#[test]
fn a_log_does_not_wait_for_the_store() {
    let world = world("test://logs", " log a", Duration::from_secs(8));
    let log = world._rig.file("a");
    let head = world.engine.pool().dsl().root().unwrap().ds_obj;
    let fs = open(&world.engine);
    // A group says where the log begins.
    fill(&fs, 10..11, LEN);
    world.engine.commit(head).unwrap();
    world.engine.sync().unwrap();
    world.store.set(AWAY);
    fill(&fs, 11..12, LEN);
    let syncing = world.syncing();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!syncing.is_finished());
    for i in 20..25 {
        fill(&fs, i..i + 1, 1000);
        let begun = Instant::now();
        world.engine.commit(head).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
    assert!(!syncing.is_finished(), "the group was stored, or the pool gave up");
    world.store.set(Faults::NONE);
    drop(fs);
    if !syncing.join().unwrap() {
        world.comes_back();
    }
    world.engine.sync().unwrap();
    world.finish(&[log]);
}
