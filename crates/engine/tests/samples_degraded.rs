//! Pools that OpenZFS left degraded: devices that were away there come back here and get what they missed, others are replaced, and all
//! is there with any tolerable set of devices gone. OpenZFS's `zdb` judges them where one is at hand that knows their features
//! (`CENOTE_NEWER_ZDB`); the engine's own traversal accounts for every block always.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::outside::Chance;
use cenote_engine::create::{CreateSpec, FIRST_TXG, Force, SystemDevices, parse, prepare};
use cenote_engine::{Attach, Engine, EngineOptions};
use cenote_manifest_check::{Checks, ZplTree, check_tree, datasets_with_files};
use cenote_pool::reopen::Restore;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_testpools::TempPool;
use cenote_zpl::{FileSystem, Visibility};
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn import(temp: &TempPool) -> Arc<Engine> {
    let found = discover(std::slice::from_ref(&temp.pool.dir));
    let options = ImportOptions { force: true, ..Default::default() };
    Engine::import(&found[0], &options, EngineOptions::default()).unwrap()
}

/// All files of the manifest are as they were, with what is there of the pool's devices.
fn compare(temp: &TempPool, what: &str) -> Arc<Pool> {
    let found = discover(std::slice::from_ref(&temp.pool.dir));
    let options = ImportOptions { readonly: true, force: true, ..Default::default() };
    let pool = Pool::import(&found[0], &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    for dataset in datasets_with_files(&temp.pool.manifest()) {
        let found = pool.dsl().find(dataset["name"].as_str().unwrap()).unwrap().unwrap();
        let set = pool.dsl().open_objset(&found).unwrap();
        let fs = FileSystem::open_with(set, Visibility::default()).unwrap();
        check_tree(dataset, &ZplTree::new(fs), &Checks::EXACT)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    pool
}

#[track_caller]
fn until(engine: &Engine, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() || engine.is_scanning() || engine.awaits_resilver() {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{:?}",
            engine.pool().status().unwrap()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A new device in the place of the one with this number.
fn replace(temp: &TempPool, engine: &Engine, old: usize) {
    let path = temp.pool.dir.join("new");
    let size = fs::metadata(&temp.pool.files[old]).unwrap().len();
    File::create(&path).unwrap().set_len(size).unwrap();
    let pool = engine.pool();
    let new = prepare(&CreateSpec {
        name: pool.name(),
        layout: &parse(&[path.display().to_string()]).unwrap(),
        ashift: 0,
        force: Force { in_use: true, replication: true },
        pool: Some(pool.config()),
        txg: FIRST_TXG,
        imported: &[],
        devices: &SystemDevices,
        chance: &Chance::default(),
    });
    let leaves = pool.store().vdevs().leaves();
    let beside =
        leaves.iter().find(|leaf| leaf.path() == Some(&temp.pool.files[old])).unwrap().guid();
    let new = new.unwrap().into_single().unwrap();
    engine.attach(Attach { beside, new, replaces: true }).unwrap();
    until(engine, || engine.pool().store().vdevs().find(beside).is_none());
}

/// `stale`: devices that were away; `old`: one that is replaced; `gone`: sets of devices that the pool does without then.
fn made_whole(name: &str, stale: usize, old: usize, gone: &[&[usize]]) {
    let temp = cenote_testpools::copy(name);
    let engine = import(&temp);
    let leaves = || engine.pool().store().vdevs().leaves();
    let behind = || leaves().iter().filter(|leaf| leaf.is_behind()).count();
    assert_eq!(behind(), stale, "{name}");
    let all: Vec<u64> = leaves().iter().map(|leaf| leaf.guid()).collect();
    engine.restore(&all, Restore::Offline).unwrap();
    until(&engine, || behind() == 0);
    replace(&temp, &engine, old);
    assert_eq!(behind(), 0);
    assert!(leaves().iter().all(|leaf| leaf.errors() == (0, 0, 0) && leaf.writable()), "{name}");
    engine.export(false).unwrap();
    drop(engine);
    rig::account(&compare(&temp, name));
    cenote_testpools::try_judge_newer(&temp.pool.dir, name).unwrap();
    for set in gone {
        let away = tempfile::tempdir_in(temp.pool.dir.parent().unwrap()).unwrap();
        let move_all = |to_away: bool| {
            for (at, i) in set.iter().enumerate() {
                let (here, there) = (temp.pool.files[*i].clone(), away.path().join(at.to_string()));
                let (from, to): (&Path, &Path) =
                    if to_away { (&here, &there) } else { (&there, &here) };
                fs::rename(from, to).unwrap();
            }
        };
        move_all(true);
        drop(compare(&temp, &format!("{name} without {set:?}")));
        move_all(false);
    }
}

#[test]
fn a_mirror() {
    made_whole("degr", 1, 3, &[&[1], &[1, 2], &[0, 2]]);
}

#[test]
fn raidz2() {
    made_whole("degrz", 2, 0, &[&[2, 4], &[1, 2], &[3, 4]]);
}
