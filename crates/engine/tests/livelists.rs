//! Livelists of clones are kept while the clones are written to, condensed beside that, and free what the
//! clones wrote when they are destroyed; OpenZFS keeps and frees the same lists. OpenZFS's `zdb` judges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dsl::deadlist::{Deadlist, live_blocks};
use cenote_dsl::tunables::{
    LIVELIST_CONDENSE_ZTHR_CANCEL, LIVELIST_CONDENSE_ZTHR_PAUSE, LIVELIST_MAX_ENTRIES,
};
use cenote_dsl::write::destroy::destroy_head;
use cenote_engine::change::{NewClone, NewSnapshot};
use cenote_engine::{Engine, EngineOptions};
use cenote_pool::{ImportOptions, discover};
use cenote_zpl::{FileSystem, Settings};
use rig::{Rig, changes};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 256 << 20;
const FILES: u64 = 32;
const LEN: usize = 2 << 20;
/// The tunables are the process's: one test at a time.
static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

/// A pool with a snapshot of files that compress to nothing smaller.
fn begin(rig: &Rig) -> Arc<Engine> {
    let engine = rig.create("a", 9);
    rig::fill(&rig::open(&engine), 0..FILES, LEN);
    take(&engine, "tank@one");
    engine
}

fn take(engine: &Arc<Engine>, name: &str) {
    let new = NewSnapshot { names: vec![name.into()], props: vec![] };
    changes(engine).snapshot(&new).unwrap();
}

fn clone(engine: &Arc<Engine>, origin: &str, name: &str) -> Arc<FileSystem> {
    let new = NewClone { origin: origin.into(), name: name.into(), props: vec![] };
    changes(engine).clone_snapshot(&new).unwrap();
    open(engine, name)
}

fn open(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let found = engine.pool().dsl().find(name).unwrap().unwrap();
    FileSystem::open_live(engine.live(found.ds_obj).unwrap(), Settings::default()).unwrap()
}

fn destroy(engine: &Arc<Engine>, name: &str) {
    let found = engine.pool().dsl().find(name).unwrap().unwrap();
    engine.close(found.ds_obj).unwrap();
    changes(engine).destroy(name).unwrap();
}

/// Overwrites some blocks of some files, in a transaction group of their own.
fn overwrite(engine: &Engine, fs: &FileSystem, files: impl Iterator<Item = u64>, seed: u64) {
    for file in files {
        let ino = fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap();
        fs.write(ino, (seed % 2) * 131_072, &rig::bytes(seed, 4096), false).unwrap();
    }
    engine.sync().unwrap();
}

fn livelist(engine: &Engine, name: &str) -> Option<Deadlist> {
    let pool = engine.pool();
    let found = pool.dsl().find(name).unwrap().unwrap();
    pool.dsl().livelist(&found).unwrap()
}

/// Blocks of a list that are live.
fn live(engine: &Engine, list: &Deadlist) -> usize {
    let (pool, mut count) = (engine.pool(), 0);
    for (_, bpobj) in &list.lists {
        live_blocks(pool.mos(), *bpobj, &mut |_| count += 1).unwrap();
    }
    count
}

fn freeing(engine: &Engine) -> u64 {
    engine.pool().get("freeing").unwrap().exact.parse().unwrap()
}

/// Waits until something is so, a minute at most.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// OpenZFS finds nothing wrong with the pool, and with what its livelists say of destroyed clones.
fn judge(dir: &Path) {
    cenote_testpools::judge(dir, "tank");
    cenote_testpools::zdb(dir, "tank", &["-y", "-dddd"]);
}

#[test]
fn a_livelist_is_condensed_while_its_clone_is_written() {
    let _alone = ALONE.lock();
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    LIVELIST_MAX_ENTRIES.set(20).unwrap();
    LIVELIST_CONDENSE_ZTHR_PAUSE.set(1).unwrap();
    let fs = clone(&engine, "tank@one", "tank/clone");
    for round in 0..12 {
        overwrite(&engine, &fs, (0..FILES).filter(|file| file % 4 == round % 4), round);
    }
    let long = livelist(&engine, "tank/clone").unwrap();
    assert!(long.lists.len() > 6, "{long:?}");
    LIVELIST_CONDENSE_ZTHR_PAUSE.reset();
    until("condensed", || {
        overwrite(&engine, &fs, 0..1, 5);
        livelist(&engine, "tank/clone").unwrap().lists.len() * 2 < long.lists.len()
    });
    // A snapshot of the clone has what is overwritten then; the list goes on.
    take(&engine, "tank/clone@two");
    for round in 12..16 {
        overwrite(&engine, &fs, 0..FILES, round);
    }
    engine.export(false).unwrap();
    drop((fs, engine));
    judge(rig.path());

    let engine = rig.import();
    let changes = changes(&engine);
    changes.destroy_snapshots(&["tank/clone@two".into()], false).unwrap();
    overwrite(&engine, &open(&engine, "tank/clone"), 0..9, 17);
    until("freed", || freeing(&engine) == 0);
    let list = livelist(&engine, "tank/clone").unwrap();
    assert_eq!(engine.pool().dsl().find("tank/clone").unwrap().unwrap().dir.used, list.total.used);
    // An export ends what is being condensed.
    let cancelled = LIVELIST_CONDENSE_ZTHR_CANCEL.get();
    LIVELIST_CONDENSE_ZTHR_PAUSE.set(1).unwrap();
    let fs = open(&engine, "tank/clone");
    for round in 18..24 {
        overwrite(&engine, &fs, 0..FILES, round);
    }
    drop(fs);
    engine.export(false).unwrap();
    assert!(LIVELIST_CONDENSE_ZTHR_CANCEL.get() > cancelled);
    LIVELIST_CONDENSE_ZTHR_PAUSE.reset();
    drop((changes, engine));
    judge(rig.path());

    let engine = rig.import();
    destroy(&engine, "tank/clone");
    until("freed", || freeing(&engine) == 0);
    rig::check(&rig::open(&engine), 0..FILES, LEN);
    let history = engine.pool().history().unwrap();
    let by = history.iter().map(|e| format!("{e:?}"));
    assert!(by.filter(|e| e.contains("destroy") && e.contains("(livelist, mintxg=")).count() == 1);
    engine.export(false).unwrap();
    LIVELIST_MAX_ENTRIES.reset();
    judge(rig.path());
}

#[test]
fn a_clone_that_shares_little_is_destroyed_by_walking() {
    let _alone = ALONE.lock();
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    let (a, b) = (clone(&engine, "tank@one", "tank/a"), clone(&engine, "tank@one", "tank/b"));
    overwrite(&engine, &a, 0..FILES, 1);
    overwrite(&engine, &b, 0..FILES, 1);
    assert!(livelist(&engine, "tank/a").is_some() && livelist(&engine, "tank/b").is_some());
    rig::fill(&a, FILES..FILES + FILES / 2, LEN);
    engine.sync().unwrap();
    assert!(livelist(&engine, "tank/a").is_none() && livelist(&engine, "tank/b").is_some());
    changes(&engine).promote("tank/b").unwrap();
    assert!(livelist(&engine, "tank/b").is_none());
    overwrite(&engine, &b, 0..FILES, 2);
    drop((a, b));
    destroy(&engine, "tank/a");
    until("freed", || freeing(&engine) == 0);
    engine.export(false).unwrap();
    drop(engine);
    judge(rig.path());
}

#[test]
fn deleting_goes_on_after_a_crash() {
    let _alone = ALONE.lock();
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    LIVELIST_MAX_ENTRIES.set(60).unwrap();
    LIVELIST_CONDENSE_ZTHR_PAUSE.set(1).unwrap();
    let fs = clone(&engine, "tank@one", "tank/clone");
    for round in 0..8 {
        overwrite(&engine, &fs, 0..FILES, round);
    }
    let blocks = live(&engine, &livelist(&engine, "tank/clone").unwrap());
    drop(fs);
    engine.export(false).unwrap();
    LIVELIST_CONDENSE_ZTHR_PAUSE.reset();
    drop(engine);

    // One block in a group: sub-lists are freed in parts, and there is something left when the devices are looked at.
    let found = discover(&[rig.path().to_path_buf()]);
    let import = ImportOptions { force: true, ..ImportOptions::default() };
    let options = EngineOptions { free_budget: Some(1), ..EngineOptions::default() };
    let engine = Engine::import(&found[0], &import, options).unwrap();
    changes(&engine).destroy("tank/clone").unwrap();
    // As the devices are when a group is on disk, and the next is not.
    let crashed = tempfile::tempdir().unwrap();
    let left = engine.at_rest(|pool, _| {
        std::fs::copy(rig.file("a"), crashed.path().join("a")).unwrap();
        pool.get("freeing").unwrap().exact.parse::<u64>().unwrap()
    });
    let left = left.unwrap();
    assert!(left > 0 && blocks > 100, "{left} bytes left of {blocks} blocks");
    until("freed", || freeing(&engine) == 0);
    engine.export(false).unwrap();
    drop(engine);
    judge(rig.path());

    judge(crashed.path());
    let found = discover(&[crashed.path().to_path_buf()]);
    let engine = Engine::import(&found[0], &import, EngineOptions::default()).unwrap();
    until("freed", || freeing(&engine) == 0);
    rig::check(&rig::open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    LIVELIST_MAX_ENTRIES.reset();
    judge(crashed.path());
}

fn reads(engine: &Engine) -> u64 {
    let pool = engine.pool();
    pool.store().vdevs().leaves().iter().map(|leaf| leaf.io_stats().0).sum()
}

#[test]
fn destroying_a_clone_reads_its_livelist_and_nothing_else() {
    let _alone = ALONE.lock();
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    let fs = clone(&engine, "tank@one", "tank/clone");
    overwrite(&engine, &fs, 0..FILES, 0);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);

    let found = discover(&[rig.path().to_path_buf()]);
    let import = ImportOptions { force: true, ..ImportOptions::default() };
    let options = EngineOptions { deterministic: true, ..EngineOptions::default() };
    let engine = Engine::import(&found[0], &import, options).unwrap();
    // Metaslabs are loaded once something is written.
    overwrite(&engine, &open(&engine, "tank"), 0..1, 1);
    let clone = engine.pool().dsl().find("tank/clone").unwrap().unwrap().ds_obj;
    let before = reads(&engine);
    engine.sync_task(move |c| destroy_head(&mut c.tx, clone)).unwrap();
    while freeing(&engine) > 0 {
        engine.sync().unwrap();
    }
    // A walk reads the lowest indirect block of each file.
    let took = reads(&engine) - before;
    assert!(took <= 1, "{took} reads");
    engine.export(false).unwrap();
    drop(engine);
    judge(rig.path());
}

#[test]
fn openzfs_frees_by_our_livelist_and_we_by_its() {
    let _alone = ALONE.lock();
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    // Several sub-lists, which differ in their blocks.
    LIVELIST_MAX_ENTRIES.set(20).unwrap();
    LIVELIST_CONDENSE_ZTHR_PAUSE.set(1).unwrap();
    let ours = clone(&engine, "tank@one", "tank/ours");
    for round in 0..3 {
        overwrite(&engine, &ours, 0..FILES, round);
    }
    let ino = ours.lookup(ours.root(), b"file 3").unwrap();
    assert!(livelist(&engine, "tank/ours").unwrap().lists.len() > 2);
    drop(ours);
    engine.export(false).unwrap();
    drop(engine);
    judge(rig.path());
    let theirs = format!(
        "import
         write tank/ours {ino} 131072 5000 7
         clone tank@one tank/theirs
         write tank/theirs {ino} 131072 300000 8
         destroy tank/ours
         export
        "
    );
    cenote_testpools::openzfs(rig.path(), "tank", &theirs);
    judge(rig.path());

    let engine = rig.import();
    until("freed", || freeing(&engine) == 0);
    assert!(livelist(&engine, "tank/theirs").is_some());
    let fs = open(&engine, "tank/theirs");
    for round in 0..3 {
        overwrite(&engine, &fs, 0..FILES, round);
    }
    let list = livelist(&engine, "tank/theirs").unwrap();
    assert_eq!(engine.pool().dsl().find("tank/theirs").unwrap().unwrap().dir.used, list.total.used);
    drop(fs);
    destroy(&engine, "tank/theirs");
    until("freed", || freeing(&engine) == 0);
    rig::check(&rig::open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    LIVELIST_MAX_ENTRIES.reset();
    LIVELIST_CONDENSE_ZTHR_PAUSE.reset();
    judge(rig.path());
}

#[test]
fn what_a_group_writes_is_in_one_sub_list() {
    let _alone = ALONE.lock();
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    LIVELIST_MAX_ENTRIES.set(20).unwrap();
    LIVELIST_CONDENSE_ZTHR_PAUSE.set(1).unwrap();
    let fs = clone(&engine, "tank@one", "tank/clone");
    // New files change what their owner uses: the head is synced once more for that in each group.
    for round in 0..4 {
        rig::fill(&fs, FILES + round * 2..FILES + round * 2 + 2, LEN);
        engine.sync().unwrap();
    }
    for file in FILES..FILES + 6 {
        fs.unlink(fs.root(), format!("file {file}").as_bytes(), &|_| false).unwrap();
    }
    engine.sync().unwrap();
    let list = livelist(&engine, "tank/clone").unwrap();
    assert!(list.lists.len() > 3, "{list:?}");
    let pool = engine.pool();
    for (key, bpobj) in &list.lists {
        let (mut first, mut last) = (u64::MAX, 0);
        live_blocks(pool.mos(), *bpobj, &mut |bp| {
            (first, last) = (first.min(bp.logical_birth()), last.max(bp.logical_birth()));
        })
        .unwrap();
        let end = list.lists.iter().map(|(k, _)| *k).find(|k| k > key).unwrap_or(u64::MAX);
        assert!(first > *key && last <= end, "{key}: {first} to {last}, the next one is {end}");
    }
    drop((pool, fs));
    destroy(&engine, "tank/clone");
    until("freed", || freeing(&engine) == 0);
    rig::check(&rig::open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    LIVELIST_MAX_ENTRIES.reset();
    LIVELIST_CONDENSE_ZTHR_PAUSE.reset();
    judge(rig.path());
}

#[test]
fn a_snapshot_goes_from_under_a_long_line_of_clones() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 9);
    let changes = changes(&engine);
    take(&engine, "tank@first");
    take(&engine, "tank@s");
    let mut last = "tank".to_string();
    for i in 0..260 {
        let origin = format!("{last}@s");
        last = format!("tank/{i}");
        let new = NewClone { origin, name: last.clone(), props: vec![] };
        changes.clone_snapshot(&new).unwrap();
        take(&engine, &format!("{last}@s"));
    }
    changes.destroy_snapshots(&["tank@first".into()], false).unwrap();
    drop(changes);
    engine.export(false).unwrap();
    judge(rig.path());
}
