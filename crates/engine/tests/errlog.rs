//! What cannot be read goes into the pool's error logs: it is named in all datasets that share it, survives an export, and
//! leaves the logs when it is cleared, found right or gone. OpenZFS's `zdb` shows the logs, and finds nothing wrong with
//! the pool; where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::Engine;
use cenote_engine::change::{NewClone, NewSnapshot};
use cenote_engine::errlog::rotate;
use cenote_pool::Pool;
use cenote_pool::errlog::DataError;
use cenote_pool::props::PropChange;
use cenote_store::ScrubStage;
use cenote_zpl::FileSystem;
use rig::{Rig, account, bytes, changes, fill, open};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const LEN: usize = 100_000;
/// Where blocks begin on a device.
const START: u64 = 4 << 20;

fn made(by_head: bool) -> (Rig, Arc<Engine>) {
    let rig = Rig::new(96 << 20);
    let named: &[(String, bool)] = match by_head {
        true => &[("head_errlog".into(), true)],
        false => &[],
    };
    let engine = rig.create_choosing("a", 12, named);
    assert_eq!(engine.pool().features().is_enabled("head_errlog"), by_head);
    fill(&open(&engine), 0..3, LEN);
    engine.sync().unwrap();
    (rig, engine)
}

fn number(fs: &FileSystem, file: u64) -> u64 {
    fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap()
}

/// All is well with the pool. OpenZFS 2.1 does not open one with `head_errlog`.
fn finish(rig: &Rig, engine: Arc<Engine>, by_head: bool) {
    engine.export(false).unwrap();
    drop(engine);
    if by_head {
        let engine = rig.import();
        account(&engine.pool());
        engine.export(false).unwrap();
    } else {
        rig.judge_blocks();
    }
}

/// Turns the first block of a file around, or back.
fn turn(rig: &Rig, engine: &Engine, file: u64) {
    let pool = engine.pool();
    let object = number(&open(engine), file);
    let root = pool.dsl().root().unwrap();
    let contents = pool.dsl().open_objset(&root).unwrap();
    let bp = contents.object(object).unwrap().block_pointer(0, 0).unwrap();
    let disk = std::fs::OpenOptions::new().read(true).write(true).open(rig.file("a")).unwrap();
    for dva in bp.dvas() {
        let mut block = [0; 512];
        disk.read_exact_at(&mut block, START + dva.offset).unwrap();
        block.iter_mut().for_each(|b| *b = !*b);
        disk.write_all_at(&block, START + dva.offset).unwrap();
    }
}

/// Whether a file can be read from the devices.
fn reads(engine: &Engine, file: u64) -> bool {
    engine.pool().store().drop_caches();
    let fs = open(engine);
    let mut data = vec![0; LEN];
    let read = fs.read(number(&fs, file), 0, &mut data).is_ok();
    assert!(!read || data == bytes(file, LEN));
    read
}

fn dataset(pool: &Pool, name: &str) -> u64 {
    pool.dsl().find(name).unwrap().unwrap().ds_obj
}

/// What is listed, nothing of which is in memory only.
fn logged(engine: &Engine) -> Vec<DataError> {
    engine.sync().unwrap();
    let pool = engine.pool();
    assert_eq!(pool.store().pending_errors(), []);
    pool.data_errors().unwrap()
}

fn logs(pool: &Pool) -> [u64; 2] {
    ["errlog_last", "errlog_scrub"].map(|name| pool.directory().u64(name).unwrap().unwrap_or(0))
}

/// The logs that are there, as OpenZFS shows them.
fn zdb(rig: &Rig, pool: &Pool) -> String {
    let show = |log: u64| {
        let mut zdb = cenote_testpools::zdb_command(&["-e", "-p"]);
        zdb.arg(rig.path()).args(["-dddd", "tank", &log.to_string()]);
        cenote_testpools::zdb_output(zdb).1
    };
    let mut text = String::new();
    for log in logs(pool).into_iter().filter(|log| *log != 0) {
        text += &show(log);
    }
    text
}

#[test]
fn errors_survive_an_export_and_are_cleared() {
    for by_head in [false, true] {
        let (rig, engine) = made(by_head);
        let root = dataset(&engine.pool(), "tank");
        let objects = [0, 2].map(|file| number(&open(&engine), file));
        turn(&rig, &engine, 0);
        turn(&rig, &engine, 2);
        assert!(!reads(&engine, 0) && reads(&engine, 1) && !reads(&engine, 2));
        let listed = objects.map(|object| (root, object));
        assert_eq!(logged(&engine), listed);
        assert_eq!(engine.pool().error_count().unwrap(), 2);
        // The same again writes nothing.
        let txg = engine.pool().uberblock().txg;
        assert!(!reads(&engine, 0));
        engine.sync().unwrap();
        assert_eq!(engine.pool().uberblock().txg, txg);
        engine.export(false).unwrap();
        let pool = engine.pool();
        drop(engine);
        if !by_head {
            let text = zdb(&rig, &pool);
            let key = format!("{root:x}:{:x}:0:0", objects[0]);
            assert!(text.contains("persistent error log") && text.contains(&key), "{text}");
        }
        drop(pool);
        let engine = rig.import();
        assert_eq!(engine.pool().data_errors().unwrap(), listed);
        turn(&rig, &engine, 0);
        turn(&rig, &engine, 2);
        engine.clear_errors().unwrap();
        assert_eq!((logged(&engine), logs(&engine.pool())), (vec![], [0, 0]));
        assert_eq!(engine.pool().error_count().unwrap(), 0);
        finish(&rig, engine, by_head);
    }
}

#[test]
fn a_scrub_exchanges_the_logs() {
    for by_head in [false, true] {
        let (rig, engine) = made(by_head);
        let store = engine.pool().store().clone();
        let root = dataset(&engine.pool(), "tank");
        let objects = [0, 1].map(|file| (root, number(&open(&engine), file)));
        turn(&rig, &engine, 0);
        turn(&rig, &engine, 1);
        assert!(!reads(&engine, 0) && !reads(&engine, 1));
        assert_eq!(logged(&engine), objects);
        rotate(&store, ScrubStage::Begins);
        turn(&rig, &engine, 1);
        assert!(!reads(&engine, 0) && reads(&engine, 1));
        assert_eq!(logged(&engine), objects);
        assert!(!logs(&engine.pool()).contains(&0));
        rotate(&store, ScrubStage::Ends);
        engine.write_config().unwrap();
        assert_eq!(logged(&engine), objects[..1]);
        // A scrub that finds all right.
        turn(&rig, &engine, 0);
        rotate(&store, ScrubStage::Begins);
        assert!(reads(&engine, 0));
        rotate(&store, ScrubStage::Ends);
        engine.write_config().unwrap();
        assert_eq!((logged(&engine), logs(&engine.pool())), (vec![], [0, 0]));
        turn(&rig, &engine, 0);
        assert!(!reads(&engine, 0));
        assert_eq!(logged(&engine), objects[..1]);
        turn(&rig, &engine, 0);
        // What was found right leaves the log.
        let block = engine.pool().store().errors();
        let birth = |object| {
            let pool = engine.pool();
            let contents = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
            contents.object(object).unwrap().block_pointer(0, 0).unwrap().physical_birth()
        };
        store.errors_healed(&[(block[0], birth(objects[0].1))]);
        engine.write_config().unwrap();
        assert_eq!(logged(&engine), []);
        drop(store);
        finish(&rig, engine, by_head);
    }
}

#[test]
fn snapshots_and_clones_share_damage() {
    let (rig, engine) = made(true);
    let changes = changes(&engine);
    let names = vec!["tank@s".to_string()];
    changes.snapshot(&NewSnapshot { names: names.clone(), props: vec![] }).unwrap();
    let new = NewClone { origin: "tank@s".into(), name: "tank/clone".into(), props: vec![] };
    changes.clone_snapshot(&new).unwrap();
    let object = number(&open(&engine), 0);
    let of = |names: &[&str]| {
        let pool = engine.pool();
        names.iter().map(|name| (dataset(&pool, name), object)).collect::<BTreeSet<_>>()
    };
    let listed = || logged(&engine).into_iter().collect::<BTreeSet<_>>();
    turn(&rig, &engine, 0);
    assert!(!reads(&engine, 0));
    assert_eq!(listed(), of(&["tank", "tank@s", "tank/clone"]));
    // Whose the block is changes with a promotion.
    changes.promote("tank/clone").unwrap();
    assert_eq!(listed(), of(&["tank", "tank/clone@s", "tank/clone"]));
    // The file system gets another block.
    let fs = open(&engine);
    fs.unlink(fs.root(), b"file 0", &|_| false).unwrap();
    engine.sync().unwrap();
    assert_eq!(listed(), of(&["tank/clone@s", "tank/clone"]));
    drop(fs);
    // Nothing has it any more.
    engine.close(dataset(&engine.pool(), "tank")).unwrap();
    engine.export(false).unwrap();
    drop(changes);
    drop(engine);
    let engine = rig.import();
    assert_eq!(engine.pool().error_count().unwrap(), 1);
    let clone = engine.live(dataset(&engine.pool(), "tank/clone")).unwrap();
    let clone = FileSystem::open_live(clone, cenote_zpl::Settings::default()).unwrap();
    clone.unlink(clone.root(), b"file 0", &|_| false).unwrap();
    drop(clone);
    let changes = rig::changes(&engine);
    assert!(changes.promote("tank").is_ok());
    engine.close(dataset(&engine.pool(), "tank/clone")).unwrap();
    changes.destroy("tank/clone").unwrap();
    changes.destroy_snapshots(&names, false).unwrap();
    engine.sync().unwrap();
    assert_eq!(engine.pool().data_errors().unwrap(), []);
    engine.sync().unwrap();
    assert_eq!(engine.pool().error_count().unwrap(), 0);
    drop(changes);
    finish(&rig, engine, true);
}

#[test]
fn a_log_gets_the_other_form_with_the_feature() {
    let (rig, engine) = made(false);
    let root = dataset(&engine.pool(), "tank");
    let objects = [0, 1].map(|file| (root, number(&open(&engine), file)));
    turn(&rig, &engine, 0);
    turn(&rig, &engine, 1);
    assert!(!reads(&engine, 0) && !reads(&engine, 1));
    let fs = open(&engine);
    fs.unlink(fs.root(), b"file 1", &|_| false).unwrap();
    drop(fs);
    assert_eq!(logged(&engine), objects);
    let feature = cenote_format::features::by_name("head_errlog").unwrap();
    engine.set_properties(vec![PropChange::Feature(feature)]).unwrap();
    // What is not there any more is forgotten.
    assert_eq!(logged(&engine), objects[..1]);
    assert!(engine.pool().features().is_active("head_errlog"));
    turn(&rig, &engine, 0);
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    assert_eq!(engine.pool().data_errors().unwrap(), objects[..1]);
    finish(&rig, engine, true);
}
