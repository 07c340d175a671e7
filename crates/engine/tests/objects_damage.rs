//! Pools in an object store of which an object is damaged: what it held is named, and everything else goes on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::EngineOptions;
use cenote_objects::Tunables;
use cenote_teststore::faults::{FaultStore, Faults, Shared};
use cenote_vdev::object;
use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt};
use rig::{Rig, TIMEOUT, bytes, fill, open};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 100_000;

/// The first object of the group that wrote the files.
async fn object_of_files(store: &dyn ObjectStore, before: &[Name]) -> Name {
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let mut new: Vec<Name> = listed.into_iter().map(|meta| meta.location).collect();
    new.retain(|at| !before.contains(at) && at.as_ref().contains('/'));
    new.sort();
    new.remove(0)
}

/// A scrub ends, names the files of which a block is lost with an object's second half, and the pool is online.
#[test]
fn an_object_that_was_cut_costs_its_files_alone() {
    let name = "test://cut";
    let store = Arc::new(InMemory::new());
    let tunables = Tunables { object_bytes: 1 << 20, ..Tunables::default() };
    object::provide(Path::new(name), store.clone(), tunables);
    let rig = Rig::new(64 << 20);
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_with(name, 0, options);
    let fs = open(&engine);
    engine.sync().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let listed: Vec<_> = runtime.block_on(store.list(None).try_collect()).unwrap();
    let before: Vec<Name> = listed.into_iter().map(|meta| meta.location).collect();
    fill(&fs, 0..20, LEN);
    engine.sync().unwrap();
    runtime.block_on(async {
        let cut = object_of_files(&store, &before).await;
        let whole = store.head(&cut).await.unwrap().size;
        let half = store.get_range(&cut, 0..whole / 2).await.unwrap();
        store.put(&cut, half.into()).await.unwrap();
    });
    engine.pool().store().drop_caches();
    let begun = Instant::now();
    engine.scrub().unwrap();
    while engine.is_scanning() {
        assert!(engine.suspended().is_none(), "{:?}", engine.suspended());
        assert!(begun.elapsed() < Duration::from_secs(60), "the scrub does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(engine.suspended().is_none());
    let root = engine.pool().dsl().root().unwrap().ds_obj;
    let named = engine.pool().data_errors().unwrap();
    let (mut lost, mut read) = (0, 0);
    for file in 0..20 {
        let ino = fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap();
        let mut found = vec![0; LEN];
        let is_right = fs.read(ino, 0, &mut found).is_ok() && found == bytes(file, LEN);
        let is_named = named.contains(&(root, ino));
        assert_eq!(is_right, !is_named, "file {file}: {named:?}");
        if is_right { read += 1 } else { lost += 1 }
    }
    assert!(lost > 0 && read > 5, "{lost} lost, {read} read");
    // The pool takes writes.
    fill(&fs, 20..25, LEN);
    engine.sync().unwrap();
    assert!(engine.suspended().is_none());
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A pool rests after many files were deleted: thin objects are written anew all the same, and garbage is deleted in time.
#[test]
fn a_pool_that_rests_is_reclaimed() {
    let name = "test://rests";
    let store = Arc::new(InMemory::new());
    let grace = Duration::from_secs(3);
    let tunables = Tunables { object_bytes: 1 << 20, grace, ..Tunables::default() };
    object::provide(Path::new(name), store.clone(), tunables);
    let rig = Rig::new(64 << 20);
    // No group comes by itself.
    let timeout = Some(Duration::from_secs(3600));
    let options = EngineOptions { txg_timeout: timeout, ..EngineOptions::default() };
    let engine = rig.create_with(name, 0, options);
    let fs = open(&engine);
    fill(&fs, 0..200, LEN);
    engine.sync().unwrap();
    for i in (0..200).filter(|i| i % 3 > 0) {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    engine.sync().unwrap();
    let growing = engine.pool().store().vdevs().top(0).unwrap().growing().unwrap();
    until("what is dead stays", || {
        let figures = growing.figures();
        figures.stored < figures.live + (4 << 20)
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stored = || {
        let listed: Vec<_> = runtime.block_on(store.list(None).try_collect()).unwrap();
        listed.iter().map(|meta: &object_store::ObjectMeta| meta.size).sum::<u64>()
    };
    until("garbage stays", || growing.figures().garbage == 0);
    assert!(stored() < growing.figures().live + (5 << 20), "{} {:?}", stored(), growing.figures());
    let txg = engine.pool().uberblock().txg;
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(engine.pool().uberblock().txg, txg, "groups go on and on");
}

/// A reclaim whose store takes requests and answers none is not waited for.
#[test]
fn a_reclaim_that_hangs_is_ended() {
    let name = "test://hangs";
    let shared = Shared::new(Arc::new(InMemory::new()));
    let store = FaultStore::new(&shared, Faults::NONE, 1);
    let tunables = Tunables { object_bytes: 1 << 20, ..Tunables::default() };
    object::provide(Path::new(name), store.clone(), tunables);
    let rig = Rig::new(64 << 20);
    let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
    let engine = rig.create_with(name, 0, options);
    let fs = open(&engine);
    fill(&fs, 0..200, LEN);
    engine.sync().unwrap();
    // Each request takes a tenth of a second or so: the reclaim is not done when the group is.
    store.set(Faults { slow: 100, late: Duration::from_secs(2), ..Faults::NONE });
    for i in (0..200).filter(|i| i % 3 > 0) {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    engine.sync().unwrap();
    store.set(Faults { hung: 100, late: Duration::from_secs(1), ..Faults::NONE });
    std::thread::sleep(Duration::from_millis(300));
    drop(fs);
    let begun = Instant::now();
    drop(engine);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
