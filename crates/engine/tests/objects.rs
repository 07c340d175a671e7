//! Pools whose data is in an object store. OpenZFS does not know them: every block is accounted for by our own traversal, and
//! every object by a listing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions};
use cenote_objects::{Space, Tunables};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_vdev::{Growing, object};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use rig::{Rig, TIMEOUT, account, check, fill, open};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const LEN: usize = 300_000;

/// Garbage is deleted at once.
fn tunables() -> Tunables {
    Tunables { grace: Duration::ZERO, object_bytes: 1 << 20, ..Tunables::default() }
}

/// A store in memory that hosts know by these names.
fn store(names: &[&str]) -> Arc<dyn ObjectStore> {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    object::open_objects();
    for name in names {
        object::provide(Path::new(name), store.clone(), tunables());
    }
    store
}

fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() }
}

fn import(name: &str) -> Arc<Engine> {
    let found = discover(&[PathBuf::from(name)]);
    let how = ImportOptions { force: true, ..ImportOptions::default() };
    Engine::import(&found[0], &how, options()).unwrap()
}

fn view(name: &str) -> Arc<Pool> {
    let found = discover(&[PathBuf::from(name)]);
    Pool::import(&found[0], &ImportOptions { readonly: true, ..Default::default() }).unwrap()
}

fn growing(engine: &Engine) -> Arc<dyn Growing> {
    engine.pool().store().vdevs().top(0).unwrap().growing().unwrap()
}

/// What is listed is what the last root names.
fn audit(store: &Arc<dyn ObjectStore>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let found = Space::look(store.clone(), Default::default(), tunables()).await.unwrap();
        let space = found.open("the test").await.unwrap();
        space.sweep().await.unwrap();
        space.tidy().await;
        let audit = space.audit().await.unwrap();
        assert!(audit.missing.is_empty() && audit.left.is_empty(), "{audit:?}");
    });
}

/// The bytes that are live in the index are those that the space maps have.
fn agree(engine: &Engine) {
    let pool = engine.pool();
    let space = pool.space().unwrap();
    let allocated: u64 = space.vdev(0).unwrap().alloc;
    assert_eq!(growing(engine).figures().live, allocated);
}

#[test]
fn a_pool_in_a_directory() {
    object::open_objects();
    let rig = Rig::new(64 << 20);
    let dir = rig.file("objects");
    std::fs::create_dir(&dir).unwrap();
    let name = format!("file://{}", dir.display());
    let engine = rig.create_with(&name, 0, options());
    let fs = open(&engine);
    fill(&fs, 0..20, LEN);
    engine.sync().unwrap();
    check(&fs, 0..20, LEN);
    agree(&engine);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view(&name));
    let engine = import(&name);
    let fs = open(&engine);
    check(&fs, 0..20, LEN);
    for i in 0..10 {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    fill(&fs, 20..30, LEN);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view(&name));
    let engine = import(&name);
    check(&open(&engine), 10..30, LEN);
    agree(&engine);
}

/// The host loses power: nothing more of it arrives.
fn crash(engine: Arc<Engine>) {
    // The engine is never told; its threads wait for a group that does not come.
    std::mem::forget(engine);
}

/// What was synced is there after a crash, what was not is not, and nothing is left over.
#[test]
fn a_host_dies_in_the_midst_of_a_group() {
    let store = store(&["test://dies", "test://lives"]);
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://dies", 0, options());
    let fs = open(&engine);
    fill(&fs, 0..10, LEN);
    engine.sync().unwrap();
    fill(&fs, 10..15, LEN);
    drop(fs);
    crash(engine);
    let engine = import("test://lives");
    let fs = open(&engine);
    check(&fs, 0..10, LEN);
    assert!(fs.lookup(fs.root(), b"file 10").is_err());
    fill(&fs, 20..25, LEN);
    engine.sync().unwrap();
    agree(&engine);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view("test://lives"));
    audit(&store);
}

/// Another host imports the pool: the group that this one writes next fails and says why, and what the other one writes stays.
#[test]
fn a_second_host_takes_over() {
    let store = store(&["test://first", "test://second"]);
    let rig = Rig::new(64 << 20);
    let first = rig.create_with("test://first", 0, options());
    fill(&open(&first), 0..5, LEN);
    first.sync().unwrap();
    // To look takes nothing away.
    account(&view("test://second"));
    fill(&open(&first), 5..6, LEN);
    first.sync().unwrap();
    let second = import("test://second");
    let theirs = open(&second);
    check(&theirs, 0..6, LEN);
    fill(&theirs, 6..10, LEN);
    second.sync().unwrap();
    fill(&open(&first), 100..105, LEN);
    let writing = first.clone();
    std::thread::spawn(move || writing.sync());
    let end = std::time::Instant::now() + Duration::from_secs(60);
    let why = loop {
        let suspension = first.pool().store().vdevs().suspension().clone();
        if let Some(why) = suspension.why() {
            break why;
        }
        assert!(std::time::Instant::now() < end, "the first host goes on");
        std::thread::sleep(Duration::from_millis(20));
    };
    println!("{why}");
    check(&theirs, 0..10, LEN);
    fill(&theirs, 10..12, LEN);
    drop(theirs);
    second.export(false).unwrap();
    drop(second);
    account(&view("test://second"));
    std::mem::forget(first);
    audit(&store);
}

/// Objects of which most is dead are written anew while the pool is in use.
#[test]
fn what_is_dead_is_given_back() {
    let store = store(&["test://reclaim"]);
    let rig = Rig::new(64 << 20);
    let engine = rig.create_with("test://reclaim", 0, options());
    let fs = open(&engine);
    // Files of one block each share objects.
    fill(&fs, 0..400, 16 << 10);
    engine.sync().unwrap();
    let full = growing(&engine).figures();
    for i in (0..400).filter(|i| i % 4 != 0) {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    let end = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        engine.sync().unwrap();
        fs.write(fs.lookup(fs.root(), b"file 0").unwrap(), 0, &rig::bytes(0, 16 << 10), false)
            .unwrap();
        let now = growing(&engine).figures();
        agree(&engine);
        if now.stored < full.stored * 2 / 3 && now.stored < now.live * 2 {
            break;
        }
        assert!(std::time::Instant::now() < end, "{now:?} of {full:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    engine.pool().store().drop_caches();
    for i in (0..400).step_by(4) {
        check(&fs, i..i + 1, 16 << 10);
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    account(&view("test://reclaim"));
    audit(&store);
}
