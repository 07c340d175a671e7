//! Pools with log space maps, judged by OpenZFS's zdb: as they are in use, as a crash leaves them,
//! exported, and with the feature enabled midway.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions, tunables};
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::props::{self, PropContext, When};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_testpools::{SpaceSaid, zdb};
use cenote_zpl::FileSystem;
use parking_lot::{Mutex, MutexGuard};
use rig::Rig;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Tunables are of the process: tests that set them, or rely on them, take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock()
}

/// OpenZFS finds nothing wrong, and what it says of the logs is what we say.
fn judge(dir: &Path) -> PoolSpace {
    let text = zdb(dir, "tank", &["-bccdm"]);
    assert!(text.contains("No leaks (block sum matches space maps exactly)"), "{text}");
    let found = discover(&[dir.to_path_buf()]);
    let options = ImportOptions { readonly: true, force: true, ..Default::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let said = SpaceSaid::of(&text);
    let logs: Vec<_> = said.logs.iter().map(|l| (l.txg, l.object, l.valid, l.entries)).collect();
    let ours = space.logs.iter().map(|l| (l.txg, l.object, l.valid, l.entries));
    assert_eq!(ours.collect::<Vec<_>>(), logs, "{text}");
    let sum = logs.iter().fold((0, 0), |s, l| (s.0 + l.2, s.1 + l.3));
    assert_eq!(said.total, sum, "{text}");
    let metaslabs: Vec<_> = said.metaslabs.iter().map(|m| (m.alloc, m.unflushed_txg)).collect();
    let ours = space.vdevs.iter().flat_map(|v| &v.metaslabs);
    let ours: Vec<_> = ours.map(|m| (m.flushed_alloc(), m.unflushed_txg)).collect();
    assert_eq!(ours, metaslabs, "{text}");
    check_promises(&pool, &space);
    space
}

/// No header of a space map promises more than is free, once the logs are counted in.
fn check_promises(pool: &Pool, space: &PoolSpace) {
    for vdev in &space.vdevs {
        for ms in &vdev.metaslabs {
            let free = PoolSpace::load_free(pool.mos(), vdev, ms).unwrap();
            let (log, header) = (vdev.overpromised(ms, &free), &ms.header);
            assert_eq!(log, None, "vdev {}, metaslab {}: {header:?}", vdev.id, ms.id);
        }
    }
}

/// The pool as a crash of now leaves it.
fn crashed(rig: &Rig, engine: &Engine) -> tempfile::TempDir {
    engine.sync().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(rig.path()).unwrap() {
        let from = entry.unwrap().path();
        let copy = Command::new("cp").arg("--sparse=always").arg(&from).arg(dir.path()).status();
        assert!(copy.unwrap().success());
    }
    dir
}

fn import(dir: &Path) -> Arc<Engine> {
    let found = discover(&[dir.to_path_buf()]);
    let options = ImportOptions { force: true, ..ImportOptions::default() };
    Engine::import(&found[0], &options, EngineOptions::default()).unwrap()
}

/// Files that are written anew all the time, txg by txg.
fn overwrite(engine: &Engine, fs: &FileSystem, rounds: u64) {
    for round in 0..rounds {
        for i in [round % 7, round * 5 % 11, round * 3 % 13] {
            let name = format!("file {i}");
            let _ = fs.unlink(fs.root(), name.as_bytes(), &|_| false);
            rig::fill(fs, i..i + 1, 150_000);
        }
        engine.sync().unwrap();
    }
}

fn logs(engine: &Engine) -> usize {
    let pool = engine.pool();
    PoolSpace::load(pool.mos(), pool.config()).unwrap().logs.len()
}

fn life(line: &str, ashift: u64) {
    let _turn = turn();
    let rig = Rig::new(256 << 20);
    let engine = rig.create(line, ashift);
    let fs = rig::open(&engine);
    overwrite(&engine, &fs, 3);
    let early = crashed(&rig, &engine);
    judge(early.path());
    overwrite(&engine, &fs, 10);
    assert!(logs(&engine) > 1);
    let late = crashed(&rig, &engine);
    assert!(judge(late.path()).logs.len() > 1);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    assert_eq!(judge(rig.path()).logs.len(), 1);
    // The crashed one goes on.
    for again in 0..2 {
        let engine = import(late.path());
        let before = logs(&engine);
        assert!(before > 1 || again > 0);
        let fs = rig::open(&engine);
        overwrite(&engine, &fs, 3);
        rig::check(&fs, 0..1, 150_000);
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        assert_eq!(judge(late.path()).logs.len(), 1);
    }
}

#[test]
fn a_single_device() {
    life("A", 12);
}

#[test]
fn small_sectors_and_several_vdevs() {
    life("A mirror B C", 9);
}

#[test]
fn raidz() {
    life("raidz1 A B C", 12);
}

#[test]
fn classes() {
    life("A special B log C", 12);
}

#[test]
fn logs_are_kept_at_export_if_asked_for() {
    let _turn = turn();
    let rig = Rig::new(256 << 20);
    let engine = rig.create("A", 12);
    overwrite(&engine, &rig::open(&engine), 6);
    tunables::KEEP_LOGS_AT_EXPORT.set(1).unwrap();
    engine.export(false).unwrap();
    tunables::KEEP_LOGS_AT_EXPORT.set(0).unwrap();
    drop(engine);
    assert!(judge(rig.path()).logs.len() > 1);
    let engine = rig.import();
    overwrite(&engine, &rig::open(&engine), 3);
    engine.export(false).unwrap();
    drop(engine);
    assert_eq!(judge(rig.path()).logs.len(), 1);
}

#[test]
fn limits_are_kept_and_may_be_changed() {
    let _turn = turn();
    let rig = Rig::new(256 << 20);
    let engine = rig.create("A", 12);
    let fs = rig::open(&engine);
    tunables::MIN_METASLABS_TO_FLUSH.set(0).unwrap();
    overwrite(&engine, &fs, 10);
    assert!(logs(&engine) >= 10);
    tunables::UNFLUSHED_LOG_TXG_MAX.set(5).unwrap();
    for _ in 0..4 {
        overwrite(&engine, &fs, 1);
        assert!(logs(&engine) <= 5);
    }
    judge(crashed(&rig, &engine).path());
    let set = [&tunables::UNFLUSHED_LOG_TXG_MAX, &tunables::MIN_METASLABS_TO_FLUSH];
    set.iter().for_each(|t| t.set(t.default).unwrap());
    drop(fs);
    engine.export(false).unwrap();
    judge(rig.path());
}

#[test]
fn the_feature_is_enabled_midway() {
    let _turn = turn();
    let rig = Rig::new(256 << 20);
    let named = [("log_spacemap".to_string(), false)];
    let engine = rig.create_choosing("A B", 12, &named);
    let fs = rig::open(&engine);
    overwrite(&engine, &fs, 5);
    assert_eq!((logs(&engine), judge(crashed(&rig, &engine).path()).log_feature), (0, None));
    let context = PropContext {
        when: When::Set,
        version: cenote_pool::version::FEATURES,
        pool: "tank",
        hostid: 1,
        dataset: &|_| None,
    };
    let change = props::parse("feature@log_spacemap", "enabled", &context).unwrap();
    engine.set_properties(vec![change]).unwrap();
    for i in 0..3 {
        let space = judge(crashed(&rig, &engine).path());
        assert_eq!(space.log_feature, Some(1), "{i}");
        overwrite(&engine, &fs, 2);
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    judge(rig.path());
}

#[test]
fn logs_of_openzfs_are_gone_on_with() {
    let _turn = turn();
    for name in ["fraglogsm", "fragcrash"] {
        let temp = cenote_testpools::copy(name);
        let before = {
            let options = ImportOptions { readonly: true, force: true, ..Default::default() };
            let found = discover(std::slice::from_ref(&temp.pool.dir));
            let pool = Pool::import(&found[0], &options).unwrap();
            PoolSpace::load(pool.mos(), pool.config()).unwrap().logs.len()
        };
        assert!(before > 1, "{name}");
        for round in 0..2 {
            let engine = import(&temp.pool.dir);
            let now = logs(&engine);
            assert!(round > 0 || now > 1 && now <= before + 1, "{name}: {before} {now}");
            let fs = rig::open(&engine);
            for i in 0..8 {
                rig::fill(&fs, 9000 + i..9001 + i, 100_000);
                engine.sync().unwrap();
            }
            rig::check(&fs, 9000..9008, 100_000);
            for i in 9000..9008 {
                fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
                engine.sync().unwrap();
            }
            drop(fs);
            traverse(&engine.pool());
            engine.export(false).unwrap();
            traverse(&engine.pool());
            assert_eq!(logs(&engine), 1, "{name}");
        }
    }
}

/// The space maps have exactly the blocks that a walk finds.
fn traverse(pool: &Pool) {
    use cenote_inspect::traverse::{Options, Subject, Verify, run};
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::Metadata, leaks: true, workers: 2 };
    let report = run(&subject, &space, &options, &|_| {}, &|| false).unwrap();
    assert!(report.is_clean(), "{}: {:?}", pool.name(), report.leaks);
    assert_eq!(report.found(), report.allocated, "{}", pool.name());
}

/// OpenZFS's engine, with assertions on, imports a pool for writing as a crash left it, and as it was
/// exported: headers of space maps are weighed before the logs are read, and promise no more than there
/// is however many groups were written, and though later passes allocate after a flush.
#[test]
fn openzfs_finds_as_much_room_as_it_was_promised() {
    let _turn = turn();
    let rig = Rig::new(128 << 20);
    let engine = rig.create("a", 12);
    let fs = rig::open(&engine);
    for i in 0..22 {
        rig::fill(&fs, i..i + 1, 300_000);
        engine.sync().unwrap();
        let pool = engine.pool();
        check_promises(&pool, &PoolSpace::load(pool.mos(), pool.config()).unwrap());
    }
    let left = crashed(&rig, &engine);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    let theirs = "import\ndataset tank/theirs\nwrite tank/theirs 10 131072 30000000 7\nexport\n";
    for dir in [left.path(), rig.path()] {
        judge(dir);
        cenote_testpools::openzfs(dir, "tank", theirs);
        judge(dir);
    }
}
