//! Pools in an object store whose requests fail, are lost after they were done, are late, are done twice, and whose hosts die. What
//! was synced is there, what was not is not there in part, and nothing is left over.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions};
use cenote_objects::{Space, Tunables};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_teststore::Random;
use cenote_teststore::faults::{FaultStore, Faults, Shared};
use cenote_vdev::object;
use object_store::memory::InMemory;
use rig::{Rig, TIMEOUT, account, check, open};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LATE: Duration = Duration::from_millis(300);

fn tunables(seed: u64) -> Tunables {
    Tunables {
        object_bytes: 64 << 10,
        inline_bytes: 300,
        log_bytes: 20_000,
        log_objects: 8,
        page_entries: 16,
        deadline: Duration::from_millis(200),
        hedge: Duration::from_millis(50),
        pause: Duration::from_millis(2),
        pause_max: Duration::from_millis(20),
        budget: Duration::from_secs(5),
        grace: LATE * 3,
        seed,
        ..Tunables::default()
    }
}

fn many() -> Faults {
    Faults { late: LATE, ..Faults::MANY }
}

/// A host, and how its store fails.
struct Host {
    name: String,
    store: Arc<FaultStore>,
}

fn host(shared: &Shared, seed: u64, n: u64) -> Host {
    let (name, store) =
        (format!("test://{seed}-{n}"), FaultStore::new(shared, Faults::NONE, seed * 100 + n));
    object::provide(Path::new(&name), store.clone(), tunables(seed));
    Host { name, store }
}

fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() }
}

fn import(host: &Host) -> Arc<Engine> {
    let found = discover(&[PathBuf::from(&host.name)]);
    let how = ImportOptions { force: true, ..ImportOptions::default() };
    Engine::import(&found[0], &how, options()).unwrap()
}

/// Lengths of files by number.
type Files = BTreeMap<u64, usize>;

/// Changes some files.
fn work(engine: &Engine, random: &mut Random, files: &mut Files) {
    let fs = open(engine);
    for _ in 0..random.below(12) + 1 {
        let n = random.below(40);
        let name = format!("file {n}");
        if files.remove(&n).is_some() {
            fs.unlink(fs.root(), name.as_bytes(), &|_| false).unwrap();
        } else {
            let len = random.below(200_000) as usize + 1;
            rig::fill(&fs, n..n + 1, len);
            files.insert(n, len);
        }
    }
}

fn has(engine: &Engine, files: &Files) -> bool {
    let fs = open(engine);
    (0..40).all(|n| {
        fs.lookup(fs.root(), format!("file {n}").as_bytes()).is_ok() == files.contains_key(&n)
    })
}

fn verify(engine: &Engine, files: &Files) {
    engine.pool().store().drop_caches();
    let fs = open(engine);
    files.iter().for_each(|(n, len)| check(&fs, *n..n + 1, *len));
}

/// Whether the group is written before the host is found to be dead.
fn syncs(engine: &Arc<Engine>, host: &Host) -> bool {
    let theirs = engine.clone();
    let syncing = std::thread::spawn(move || theirs.sync().is_ok());
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        if syncing.is_finished() {
            return syncing.join().unwrap();
        }
        if host.store.dead() && engine.pool().store().vdevs().suspension().why().is_some() {
            return false;
        }
        assert!(Instant::now() < end, "the group does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn audit(shared: &Shared, seed: u64) {
    std::thread::sleep(LATE * 4);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = shared.inner.clone();
        let tunables = Tunables { grace: Duration::ZERO, ..tunables(seed) };
        let found = Space::look(store, Default::default(), tunables).await.unwrap();
        let space = found.open("the test").await.unwrap();
        space.sweep().await.unwrap();
        space.tidy().await;
        let audit = space.audit().await.unwrap();
        assert!(audit.missing.is_empty() && audit.left.is_empty(), "seed {seed}: {audit:?}");
    });
}

#[test]
fn nothing_synced_is_lost() {
    for seed in 1..=2 {
        let mut random = Random(seed);
        let shared = Shared::new(Arc::new(InMemory::new()));
        let mut now = host(&shared, seed, 0);
        let rig = Rig::new(64 << 20);
        let mut engine = rig.create_with(&now.name, 0, options());
        let mut files = Files::new();
        for life in 1..=3 {
            now.store.set(many());
            for _ in 0..random.below(6) + 1 {
                work(&engine, &mut random, &mut files);
                assert!(syncs(&engine, &now));
            }
            let synced = files.clone();
            work(&engine, &mut random, &mut files);
            now.store.die_in(random.below(12));
            let done = syncs(&engine, &now);
            now.store.die();
            // The dead host is not told; its threads wait for ever.
            std::mem::forget(engine);
            now = host(&shared, seed, life);
            engine = import(&now);
            if done || has(&engine, &files) {
                assert!(has(&engine, &files), "seed {seed}: what was synced is lost");
            } else {
                assert!(has(&engine, &synced), "seed {seed}: a group is there in part");
                files = synced;
            }
            verify(&engine, &files);
        }
        engine.export(false).unwrap();
        drop(engine);
        let found = discover(&[PathBuf::from(&now.name)]);
        let how = ImportOptions { readonly: true, ..ImportOptions::default() };
        account(&Pool::import(&found[0], &how).unwrap());
        audit(&shared, seed);
    }
}
