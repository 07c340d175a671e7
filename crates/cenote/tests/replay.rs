//! Intent logs that crashes left are replayed: what OpenZFS acknowledged is there.

#![allow(clippy::unwrap_used, clippy::panic)]

use cenote::contents::{replay_logs, settings};
use cenote_dsl::zil::{Item, Kept, Locked, walk, walk_kept};
use cenote_engine::{Engine, EngineOptions, tunables};
use cenote_inspect::traverse::{Options, Subject, Verify, run};
use cenote_manifest_check::{
    Checks, ZplTree, check_tree, check_volume, datasets_with_files, datasets_with_volume,
};
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_testpools::TempPool;
use cenote_zpl::{FileSystem, Volume};
use std::sync::Arc;

fn options() -> ImportOptions {
    ImportOptions { force: true, ..ImportOptions::default() }
}

fn import(temp: &TempPool) -> Arc<Engine> {
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    Engine::import(&candidate, &options(), EngineOptions::default()).unwrap()
}

fn read_only(temp: &TempPool) -> Arc<Pool> {
    let candidate = discover(std::slice::from_ref(&temp.pool.dir)).remove(0);
    Pool::import(&candidate, &ImportOptions { readonly: true, ..options() }).unwrap()
}

/// Every block is readable, and the space maps have exactly what there is.
fn traverse(pool: &Pool) {
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::All, leaks: true, workers: 2 };
    let report = run(&subject, &space, &options, &|_| {}, &|| false).unwrap();
    assert!(report.is_clean(), "{}: {:?}", pool.name(), report.leaks);
    assert_eq!(report.found(), report.allocated, "{}", pool.name());
}

/// Compares all datasets with the manifest.
fn compare(pool: &Pool, name: &str) {
    let manifest = cenote_testpools::pool(name).manifest();
    let (mut files, mut failures) = (0, Vec::new());
    let find = |name: &serde_json::Value| pool.dsl().find(name.as_str().unwrap()).unwrap().unwrap();
    for dataset in datasets_with_files(&manifest) {
        let found = find(&dataset["name"]);
        let os = pool.dsl().open_objset(&found).unwrap();
        let fs = FileSystem::open_as(os, settings(pool, &found).unwrap()).unwrap();
        match check_tree(dataset, &ZplTree::new(fs), &Checks::EXACT) {
            Ok(done) => files += done.files,
            Err(e) => failures.push(e),
        }
    }
    for dataset in datasets_with_volume(&manifest) {
        let os = pool.dsl().open_objset(&find(&dataset["name"])).unwrap();
        let volume = Volume::open(os).unwrap();
        let read = |at, buf: &mut [u8]| volume.read(at, buf).map_err(|e| e.to_string());
        failures.extend(check_volume(dataset, volume.size(), read).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(files > 0);
}

fn replays(name: &str) {
    let temp = cenote_testpools::copy(name);
    let engine = import(&temp);
    // Between claim and replay everything is accounted for.
    traverse(&engine.pool());
    assert_eq!(replay_logs(&engine, &|_, _| true).unwrap(), []);
    engine.export(false).unwrap();
    drop(engine);
    let pool = read_only(&temp);
    traverse(&pool);
    compare(&pool, name);
    for dataset in datasets_with_files(&cenote_testpools::pool(name).manifest()) {
        let found = pool.dsl().find(dataset["name"].as_str().unwrap()).unwrap().unwrap();
        assert!(pool.dsl().open_objset(&found).unwrap().phys().zil.log.is_hole());
    }
}

#[test]
fn zilmain() {
    replays("zilmain");
}

#[test]
fn zilslog() {
    replays("zilslog");
}

#[test]
fn fragcrash() {
    replays("fragcrash");
}

/// The library replays the log of what it opens, and leaves the others.
#[test]
fn what_is_opened_is_replayed() {
    let temp = cenote_testpools::copy("zilslog");
    let open = || cenote::Pool::find([&temp.pool.dir]).remove(0).open_with(&options()).unwrap();
    let logs = |pool: &cenote::Pool| pool.engine().unwrap().waiting_logs().len();
    let pool = open();
    let all = logs(&pool);
    assert!(all > 0);
    pool.export().unwrap();
    drop(pool);
    let pool = open();
    assert_eq!(logs(&pool), all);
    for dataset in pool.datasets() {
        let (dataset, before) = (dataset.unwrap(), logs(&pool));
        match dataset.property("volsize").unwrap() {
            Some(_) => drop(dataset.volume().unwrap()),
            None => drop(dataset.filesystem().unwrap()),
        }
        assert!(logs(&pool) + 1 >= before);
    }
    assert_eq!(logs(&pool), 0);
    pool.export().unwrap();
    drop(pool);
    let pool = read_only(&temp);
    traverse(&pool);
    compare(&pool, "zilslog");
}

/// A chain whose blocks lie side by side takes far fewer reads than it has blocks.
#[test]
fn log_blocks_are_read_together() {
    let temp = cenote_testpools::copy("zilmain");
    let pool = read_only(&temp);
    let store = pool.store();
    let reads = || store.vdevs().root().io_stats().0;
    let (mut blocks, mut asked) = (0_u64, 0);
    for dataset in datasets_with_files(&cenote_testpools::pool("zilmain").manifest()) {
        let found = pool.dsl().find(dataset["name"].as_str().unwrap()).unwrap().unwrap();
        let header = pool.dsl().open_objset(&found).unwrap().phys().zil;
        let before = reads();
        walk(store, &header, &mut |item| {
            blocks += u64::from(matches!(item, Item::Block(_)));
            true
        });
        asked += reads() - before;
    }
    println!("{blocks} blocks, {asked} reads");
    assert!(blocks > 1000 && asked < blocks / 5, "{blocks} blocks, {asked} reads");
}

/// What was read of a log for its check is not read again for its claim, replay and end.
#[test]
fn a_log_is_read_once() {
    let temp = cenote_testpools::copy("zilmain");
    let pool = read_only(&temp);
    let store = pool.store();
    let reads = || store.vdevs().root().io_stats().0;
    let mut logs = Vec::new();
    for dataset in datasets_with_files(&cenote_testpools::pool("zilmain").manifest()) {
        let found = pool.dsl().find(dataset["name"].as_str().unwrap()).unwrap().unwrap();
        logs.push(pool.dsl().open_objset(&found).unwrap().phys().zil);
    }
    let records = |kept: &Kept| {
        let mut records = 0;
        for header in &logs {
            walk_kept(store, header, (kept, Locked::Follow), &mut |item| {
                records += u64::from(matches!(item, Item::Record(_)));
                true
            });
        }
        records
    };
    for (bound, again) in [(u64::MAX, false), (1 << 20, true), (0, true)] {
        let kept = Kept::up_to(bound);
        let all = records(&kept);
        let before = reads();
        assert_eq!(records(&kept), all);
        // The end of a log, which was not written, is looked for each time.
        assert_eq!(reads() - before > 2 * logs.len() as u64, again, "{bound}");
        assert!(all > 1000);
    }
}

/// What is read ahead, and what is gathered, changes nothing in what a replay gives.
#[test]
fn zilslog_without_reading_ahead() {
    let all = ["zil_replay_prime", "zil_replay_gather"].map(|name| tunables::find(name).unwrap());
    for (tunable, value) in all.iter().zip([0, 1]) {
        tunable.set(value).unwrap();
    }
    replays("zilslog");
    all.iter().for_each(|tunable| tunable.reset());
}

/// Replays a few records, crashes, and goes on after the next import, again and again.
fn resumes(name: &str, records: u64) {
    let temp = cenote_testpools::copy(name);
    let mut imports = 0;
    loop {
        let engine = import(&temp);
        let failed = replay_logs(&engine, &|_, done| done.records < records).unwrap();
        imports += 1;
        assert!(imports < 10_000, "{failed:?}");
        if failed.is_empty() {
            engine.export(false).unwrap();
            break;
        }
        for log in &failed {
            assert!(log.why.contains("interrupted"), "{log:?}");
        }
        // What was replayed so far is on disk, and the engine ends without an export.
        drop(engine);
        if imports % 8 == 1 {
            traverse(&read_only(&temp));
        }
    }
    assert!(imports > 3, "{imports}");
    let pool = read_only(&temp);
    traverse(&pool);
    compare(&pool, name);
}

#[test]
fn a_replay_that_is_interrupted_goes_on() {
    let records = if std::env::var("CENOTE_TORTURE").is_ok_and(|v| v == "long") { 1 } else { 29 };
    resumes("zilmain", records);
}
