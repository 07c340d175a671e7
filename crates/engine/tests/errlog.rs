//! What cannot be read goes into the pool's error logs: it is named in all datasets that share it, survives an export, and
//! leaves the logs when it is found right or gone. OpenZFS's `zdb` shows the logs, and finds nothing wrong with
//! the pool; where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "errlog/dnodes.rs"]
mod dnodes;
mod rig;
#[path = "errlog/waiting.rs"]
mod waiting;

use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::objset::USER_USED;
use cenote_dmu::write::ZapMut;
use cenote_engine::change::{Kind, NewClone, NewDataset, NewSnapshot};
use cenote_engine::tunables::SCAN_SUSPEND_PROGRESS;
use cenote_engine::{Engine, SyncContext};
use cenote_format::blkptr::BlockPointer;
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::Pool;
use cenote_pool::config_write::DIRECTORY;
use cenote_pool::errlog::DataError;
use cenote_pool::props::PropChange;
use cenote_pool::scan::{LAST_SCRUBBED, ScanPhys};
use cenote_store::Bookmark;

use cenote_zpl::{FileSystem, NewNode, SetXattr, Settings};
use parking_lot::Mutex;
use rig::joining::leaf;
use rig::{Rig, account, bytes, changes, fill, open};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 100_000;
/// Tunables are of the process: tests that hold scans take turns.
static TURN: Mutex<()> = Mutex::new(());
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

/// The same, of a pool that has damage: the log outlives an import.
fn finish_damaged(rig: &Rig, engine: Arc<Engine>) {
    let listed = logged(&engine);
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    assert_eq!(logged(&engine), listed);
    engine.export(false).unwrap();
}

/// Turns the first block of a file around, or back.
fn turn(rig: &Rig, engine: &Engine, file: u64) {
    turn_in(rig, engine, "tank", (number(&open(engine), file), 0));
}

/// The same, of this level of an object of a dataset.
fn turn_in(rig: &Rig, engine: &Engine, dataset: &str, (object, level): (u64, u8)) {
    let pool = engine.pool();
    let dataset = pool.dsl().find(dataset).unwrap().unwrap();
    let contents = pool.dsl().open_objset(&dataset).unwrap();
    turn_block(rig, &contents.object(object).unwrap().block_pointer(level, 0).unwrap());
}

fn turn_block(rig: &Rig, bp: &BlockPointer) {
    assert!(!bp.is_hole() && !bp.is_embedded());
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
fn errors_survive_an_export() {
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
        scrub(&engine);
        assert_eq!((logged(&engine), logs(&engine.pool())), (vec![], [0, 0]));
        assert_eq!(engine.pool().error_count().unwrap(), 0);
        finish(&rig, engine, by_head);
    }
}

/// Waits for the scrub under way.
fn finished(engine: &Engine) {
    let begun = Instant::now();
    while engine.is_scanning() {
        assert!(begun.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn scrub(engine: &Engine) {
    engine.scrub().unwrap();
    finished(engine);
}

/// Only what the log has is looked at; what is right by now leaves it, also in snapshots and clones.
#[test]
fn a_scrub_of_the_log_looks_at_what_it_has() {
    let _turn = TURN.lock();
    let (rig, engine) = made(true);
    let root = dataset(&engine.pool(), "tank");
    let files = [0, 1, 2].map(|file| (root, number(&open(&engine), file)));
    engine.scrub_errors().unwrap();
    assert!(!engine.is_scanning());
    turn(&rig, &engine, 0);
    turn(&rig, &engine, 1);
    assert!(!reads(&engine, 0) && !reads(&engine, 1));
    let names = vec!["tank@s".to_string()];
    changes(&engine).snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
    assert_eq!(logged(&engine).len(), 4);
    // What is wrong now is not in the log, and is not looked at.
    turn(&rig, &engine, 2);
    turn(&rig, &engine, 0);
    engine.pool().store().drop_caches();
    engine.scrub_errors().unwrap();
    finished(&engine);
    let snap = dataset(&engine.pool(), "tank@s");
    let mut still = vec![files[1], (snap, files[1].1)];
    still.sort_unstable();
    assert_eq!(logged(&engine), still);
    let words = engine.pool().directory().words("error_scrub").unwrap().unwrap();
    // Done; two blocks in two data sets each; two of them cannot be read.
    assert_eq!((words[0], words[1], words[6], words[8]), (3, 2, 4, 0));
    turn(&rig, &engine, 1);
    turn(&rig, &engine, 2);
    engine.pool().store().drop_caches();
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    engine.scrub_errors().unwrap();
    assert!(engine.scrub_errors().is_err() && engine.scrub().is_err());
    engine.pause_scrub().unwrap();
    assert!(engine.pause_scrub().is_err());
    engine.export(false).unwrap();
    drop(engine);
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    let engine = rig.import();
    assert_eq!(logged(&engine), still);
    engine.scrub_errors().unwrap();
    finished(&engine);
    assert_eq!((logged(&engine), logs(&engine.pool())), (vec![], [0, 0]));
    // Another scan makes it forgotten.
    scrub(&engine);
    let words = engine.pool().directory().words("error_scrub").unwrap().unwrap();
    assert!(words.iter().all(|word| *word == 0));
    finish(&rig, engine, true);
}

/// What an error scrub cannot look at, or not everywhere, stays in the log; what is not there any more leaves it.
#[test]
fn a_scrub_of_the_log_keeps_what_it_does_not_look_at() {
    let (rig, engine) = made(true);
    let root = dataset(&engine.pool(), "tank");
    let file = number(&open(&engine), 1);
    let at = |objset, object, level| Bookmark { objset, object, level, blkid: 0 };
    let gone = (at(0, 1 << 30, 0), 5);
    // The block of an object set, and one of which it is not known which snapshots have it.
    let kept = [(at(root, 0, -1), 5), (at(root, file, 0), 0)];
    assert!(engine.pool().store().keep_errors(&[gone, kept[0], kept[1]]));
    scrub(&engine);
    turn(&rig, &engine, 0);
    assert!(!reads(&engine, 0));
    turn(&rig, &engine, 0);
    assert_eq!(logged(&engine).len(), 4);
    engine.pool().store().drop_caches();
    engine.scrub_errors().unwrap();
    finished(&engine);
    assert_eq!(logged(&engine), [(root, 0), (root, file)]);
    engine.pool().store().errors_healed(&kept);
    engine.write_config().unwrap();
    assert_eq!(logged(&engine), []);
    finish(&rig, engine, true);
}

/// When groups were written is noted, and a scrub of some of them looks at their blocks alone.
#[test]
fn dates_choose_what_is_scrubbed() {
    let _turn = TURN.lock();
    let (rig, engine) = made(false);
    let note = cenote_engine::tunables::find("spa_note_txg_time").unwrap();
    note.set(0).unwrap();
    let now =
        || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    // What was noted before is older than what comes now.
    std::thread::sleep(Duration::from_millis(1100));
    let begin = now();
    fill(&open(&engine), 3..4, LEN);
    engine.sync().unwrap();
    std::thread::sleep(Duration::from_millis(2100));
    let middle = now();
    fill(&open(&engine), 4..5, LEN);
    engine.sync().unwrap();
    note.set(600).unwrap();
    turn(&rig, &engine, 3);
    turn(&rig, &engine, 4);
    engine.pool().store().drop_caches();
    let root = dataset(&engine.pool(), "tank");
    let files = [3, 4].map(|file| (root, number(&open(&engine), file)));
    engine.scrub_between(None, Some(begin)).unwrap();
    finished(&engine);
    assert_eq!(logged(&engine), files[..1]);
    // What a scrub of a part finds right says nothing of the rest.
    turn(&rig, &engine, 3);
    engine.scrub_between(Some(middle - 1), None).unwrap();
    finished(&engine);
    assert_eq!(logged(&engine), files);
    // Nor does one that goes on after an import.
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    engine.scrub_between(None, Some(begin)).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    let engine = rig.import();
    finished(&engine);
    assert_eq!(logged(&engine), files);
    turn(&rig, &engine, 4);
    engine.pool().store().drop_caches();
    engine.scrub_between(None, None).unwrap();
    finished(&engine);
    assert_eq!(logged(&engine), []);
    finish(&rig, engine, false);
}

/// What a scrub finds is named and survives an export; once it finds all right, nothing is named.
#[test]
fn a_scrub_exchanges_the_logs() {
    for by_head in [false, true] {
        let (rig, engine) = made(by_head);
        let root = dataset(&engine.pool(), "tank");
        let objects = [0, 1].map(|file| (root, number(&open(&engine), file)));
        turn(&rig, &engine, 0);
        turn(&rig, &engine, 1);
        engine.pool().store().drop_caches();
        scrub(&engine);
        assert_eq!(logged(&engine), objects);
        assert_eq!(logs(&engine.pool())[1], 0);
        engine.export(false).unwrap();
        drop(engine);
        let engine = rig.import();
        assert_eq!(logged(&engine), objects);
        turn(&rig, &engine, 1);
        scrub(&engine);
        assert_eq!(logged(&engine), objects[..1]);
        turn(&rig, &engine, 0);
        scrub(&engine);
        assert_eq!((logged(&engine), logs(&engine.pool())), (vec![], [0, 0]));
        // It may be found wrong again.
        turn(&rig, &engine, 0);
        assert!(!reads(&engine, 0));
        assert_eq!(logged(&engine), objects[..1]);
        turn(&rig, &engine, 0);
        // What was found right leaves the log.
        let block = engine.pool().store().errors();
        let birth = {
            let pool = engine.pool();
            let contents = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
            contents.object(objects[0].1).unwrap().block_pointer(0, 0).unwrap().physical_birth()
        };
        engine.pool().store().errors_healed(&[(block[0], birth)]);
        engine.write_config().unwrap();
        assert_eq!(logged(&engine), []);
        finish(&rig, engine, by_head);
    }
}

/// A scrub that is cancelled says nothing of what it has not looked at; one that goes on after an import has its log still.
#[test]
fn a_scrub_that_is_cancelled_forgets_nothing() {
    let _turn = TURN.lock();
    for by_head in [false, true] {
        let (rig, engine) = made(by_head);
        let root = dataset(&engine.pool(), "tank");
        let objects = [0, 1, 2].map(|file| (root, number(&open(&engine), file)));
        turn(&rig, &engine, 0);
        assert!(!reads(&engine, 0));
        assert_eq!(logged(&engine), objects[..1]);
        SCAN_SUSPEND_PROGRESS.set(1).unwrap();
        engine.scrub().unwrap();
        turn(&rig, &engine, 1);
        assert!(!reads(&engine, 1));
        assert_eq!(logged(&engine), objects[..2]);
        assert!(!logs(&engine.pool()).contains(&0));
        engine.export(false).unwrap();
        drop(engine);
        let engine = rig.import();
        assert_eq!(logged(&engine), objects[..2]);
        turn(&rig, &engine, 2);
        assert!(!reads(&engine, 2));
        let pool = engine.pool();
        assert_eq!(logged(&engine), objects);
        let last = logs(&pool)[0];
        engine.stop_scrub().unwrap();
        assert_eq!((logged(&engine), logs(&engine.pool())), (objects.to_vec(), [last, 0]));
        assert_eq!(engine.pool().error_count().unwrap(), 3);
        // One that goes on after an import is to be the whole one.
        engine.scrub().unwrap();
        drop(pool);
        engine.export(false).unwrap();
        drop(engine);
        SCAN_SUSPEND_PROGRESS.set(0).unwrap();
        let engine = rig.import();
        finished(&engine);
        assert_eq!(logged(&engine), objects);
        [0, 1, 2].into_iter().for_each(|file| turn(&rig, &engine, file));
        scrub(&engine);
        assert_eq!((logged(&engine), logs(&engine.pool())), (vec![], [0, 0]));
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
    let clone = FileSystem::open_live(clone, Settings::default()).unwrap();
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

fn file_system(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let live = engine.live(dataset(&engine.pool(), name)).unwrap();
    FileSystem::open_live(live, Settings::default()).unwrap()
}

/// Two file systems may have different blocks in the same place that were born in the same group.
#[test]
fn what_is_gone_from_one_file_system_stays_with_the_other() {
    let (rig, engine) = made(true);
    let changes = changes(&engine);
    for name in ["tank/a", "tank/b"] {
        let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props: vec![] };
        changes.create(&new).unwrap();
    }
    let both = ["tank/a", "tank/b"].map(|name| file_system(&engine, name));
    both.iter().for_each(|fs| fill(fs, 0..1, LEN));
    engine.sync().unwrap();
    let object = number(&both[0], 0);
    assert_eq!(number(&both[1], 0), object);
    engine.pool().store().drop_caches();
    for (fs, name) in both.iter().zip(["tank/a", "tank/b"]) {
        turn_in(&rig, &engine, name, (object, 0));
        assert!(fs.read(object, 0, &mut [0; 100]).is_err());
    }
    let listed = ["tank/a", "tank/b"].map(|name| (dataset(&engine.pool(), name), object));
    assert_eq!(logged(&engine), listed);
    both[0].unlink(both[0].root(), b"file 0", &|_| false).unwrap();
    engine.sync().unwrap();
    assert_eq!(logged(&engine), listed[1..]);
    assert_eq!(logged(&engine), listed[1..]);
    assert_eq!(engine.pool().error_count().unwrap(), 1);
    drop(both);
    listed.iter().for_each(|(id, _)| engine.close(*id).unwrap());
    drop(changes);
    finish_damaged(&rig, engine);
}

/// A snapshot has what was written in its own group: that is damaged still when the file is gone.
#[test]
fn a_snapshot_has_what_its_own_group_wrote() {
    let (rig, engine) = made(true);
    let changes = changes(&engine);
    let fs = open(&engine);
    fill(&fs, 3..4, LEN);
    let names = vec!["tank@s".to_string()];
    changes.snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
    let object = number(&fs, 3);
    let snapshot = engine.pool().dsl().find("tank@s").unwrap().unwrap();
    let contents = engine.pool().dsl().open_objset(&snapshot).unwrap();
    let bp = contents.object(object).unwrap().block_pointer(0, 0).unwrap();
    assert_eq!(bp.physical_birth(), snapshot.ds.creation_txg);
    drop(contents);
    turn(&rig, &engine, 3);
    assert!(!reads(&engine, 3));
    fs.unlink(fs.root(), b"file 3", &|_| false).unwrap();
    engine.sync().unwrap();
    for _ in 0..2 {
        assert_eq!(logged(&engine), [(snapshot.ds_obj, object)]);
    }
    drop((fs, changes));
    finish_damaged(&rig, engine);
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

/// Blocks of the MOS and of object sets, and those to which nothing leads at the moment, stay in the log.
#[test]
fn a_log_of_the_other_form_keeps_what_cannot_be_looked_up() {
    let (rig, engine) = made(false);
    let fs = open(&engine);
    let ino = fs.create(fs.root(), b"file 3", &rig::NODE).unwrap().ino;
    fs.write(ino, 0, &bytes(3, 5 * LEN), false).unwrap();
    drop(fs);
    engine.sync().unwrap();
    let root = dataset(&engine.pool(), "tank");
    turn(&rig, &engine, 3);
    assert!(!reads(&engine, 3));
    assert_eq!(logged(&engine), [(root, ino)]);
    let log = logs(&engine.pool())[0];
    engine
        .sync_task(move |context| {
            let mut zap = ZapMut::open(context.tx.mos, log);
            for key in ["0:1:0:0".into(), format!("{root:x}:0:{:x}:0", -1i64)] {
                zap.update(&Key::Name(key.as_bytes()), &Value::U8(&[0]))?;
            }
            Ok(())
        })
        .unwrap();
    let all = [(0, 1), (root, 0), (root, ino)];
    assert_eq!(logged(&engine), all);
    turn_in(&rig, &engine, "tank", (ino, 1));
    engine.pool().store().drop_caches();
    let feature = cenote_format::features::by_name("head_errlog").unwrap();
    engine.set_properties(vec![PropChange::Feature(feature)]).unwrap();
    engine.sync().unwrap();
    assert_eq!(logged(&engine), all);
    turn_in(&rig, &engine, "tank", (ino, 1));
    turn(&rig, &engine, 3);
    scrub(&engine);
    assert_eq!(logged(&engine), []);
    finish(&rig, engine, true);
}

/// Blocks of dnodes, of accounting objects and of attributes are in the log until they are right again.
#[test]
fn blocks_of_all_kinds_are_looked_up() {
    let feature = cenote_format::features::by_name("head_errlog").unwrap();
    for by_head in [false, true] {
        let (rig, engine) = made(by_head);
        let root = dataset(&engine.pool(), "tank");
        let sa = Settings { xattr_sa: true, ..Settings::default() };
        let fs = FileSystem::open_live(engine.live(root).unwrap(), sa).unwrap();
        for owner in 0..100u32 {
            let name = format!("of {owner}");
            let node = NewNode { uid: owner * 7919, ..rig::NODE };
            fs.create(fs.root(), name.as_bytes(), &node).unwrap();
        }
        let ino = number(&fs, 0);
        fs.set_xattr(ino, b"user.x", &bytes(9, 3000), SetXattr::default()).unwrap();
        drop(fs);
        engine.sync().unwrap();
        let at = |object, blkid| Bookmark { objset: root, object, level: 0, blkid };
        let places = [at(0, 1), at(ino, SPILL_BLKID), at(USER_USED, 0)];
        let damaged = places.map(|at| engine.pool().pointer_of(&at).unwrap().unwrap());
        let turn = || damaged.iter().for_each(|bp| turn_block(&rig, bp));
        turn();
        engine.pool().store().drop_caches();
        scrub(&engine);
        let mut listed = places.map(|at| (at.objset, at.object)).to_vec();
        assert_eq!(logged(&engine), listed);
        if !by_head {
            // A block of dnodes of the MOS besides.
            let log = logs(&engine.pool())[0];
            let task = move |context: &mut SyncContext<'_>| {
                let mut zap = ZapMut::open(context.tx.mos, log);
                Ok(zap.update(&Key::Name(b"0:0:0:0"), &Value::U8(&[0]))?)
            };
            engine.sync_task(task).unwrap();
            listed.insert(0, (0, 0));
            assert_eq!(logged(&engine), listed);
            engine.set_properties(vec![PropChange::Feature(feature)]).unwrap();
        }
        let count = listed.len() as u64;
        let still = |listed: &[DataError]| {
            for _ in 0..2 {
                // Asking takes off the log what it finds gone.
                assert_eq!(logged(&engine), listed);
            }
            assert_eq!(engine.pool().error_count().unwrap(), listed.len() as u64);
        };
        still(&listed);
        engine.scrub_errors().unwrap();
        finished(&engine);
        // Nothing is wrong with that of the MOS.
        listed.retain(|(objset, _)| *objset != 0);
        still(&listed);
        let words = engine.pool().directory().words("error_scrub").unwrap().unwrap();
        // What was looked at, and could not be read.
        assert_eq!((words[6], words[7], words[8]), (count, 3, 0), "{words:?}");
        turn();
        engine.pool().store().drop_caches();
        engine.scrub_errors().unwrap();
        finished(&engine);
        still(&[]);
        finish(&rig, engine, true);
    }
}

/// A scrub that goes on after an import and had an error before may have left something out: what it has not looked at stays in
/// the log, and counts as not scrubbed.
#[test]
fn a_scrub_with_errors_before_an_import_replaces_no_log() {
    let _turn = TURN.lock();
    let (rig, engine) = made(true);
    let object = (dataset(&engine.pool(), "tank"), number(&open(&engine), 0));
    let last = |engine: &Engine| engine.pool().directory().u64(LAST_SCRUBBED).unwrap().unwrap_or(0);
    turn(&rig, &engine, 0);
    assert!(!reads(&engine, 0));
    assert_eq!(logged(&engine), [object]);
    turn(&rig, &engine, 0);
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    engine.scrub().unwrap();
    let phys = ScanPhys::load(engine.pool().directory()).unwrap().unwrap();
    let words = ScanPhys { errors: 1, ..phys }.encode();
    engine
        .sync_task(move |context| {
            let mut directory = ZapMut::open(context.tx.mos, DIRECTORY);
            Ok(directory.update(&Key::Name(b"scan"), &Value::U64(&words))?)
        })
        .unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    finished(&engine);
    assert_eq!((logged(&engine), last(&engine)), (vec![object], 0));
    scrub(&engine);
    assert_eq!(logged(&engine), []);
    assert!(last(&engine) > 0);
    finish(&rig, engine, true);
}

/// A resilver looks at the vdevs of leaves that lack something alone: what the log has of others stays, however far it goes back.
#[test]
fn a_resilver_replaces_no_log() {
    let rig = Rig::new(96 << 20);
    let engine = rig.create("c mirror a b", 12);
    fill(&open(&engine), 0..12, LEN);
    engine.sync().unwrap();
    let root = dataset(&engine.pool(), "tank");
    let (object, at) = {
        let (pool, fs) = (engine.pool(), open(&engine));
        let contents = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
        let place = |file| {
            let object = number(&fs, file);
            let bp = contents.object(object).unwrap().block_pointer(0, 0).unwrap();
            let dva = bp.dvas().next().unwrap();
            (dva.vdev == 0).then_some((object, START + dva.offset))
        };
        (0..12).find_map(place).unwrap()
    };
    let disk = std::fs::OpenOptions::new().read(true).write(true).open(rig.file("c")).unwrap();
    let mut block = [0; 512];
    disk.read_exact_at(&mut block, at).unwrap();
    disk.write_all_at(&block.map(|b| !b), at).unwrap();
    engine.pool().store().drop_caches();
    scrub(&engine);
    assert_eq!(logged(&engine), [(root, object)]);
    let lost = 1..engine.pool().uberblock().txg;
    engine.pool().store().vdevs().miss(leaf(&rig, &engine, "b"), lost).unwrap();
    assert!(engine.start_resilver().unwrap());
    finished(&engine);
    let scan = ScanPhys::load(engine.pool().directory()).unwrap().unwrap();
    assert!(scan.is_resilver() && scan.is_finished() && scan.min_txg == 0, "{scan:?}");
    assert_eq!(logged(&engine), [(root, object)]);
    disk.write_all_at(&block, at).unwrap();
    finish(&rig, engine, false);
}

/// A block that was cloned, or is deduplicated, is older on disk than in its place: its damage is named where it is.
#[test]
fn older_blocks_are_found_in_their_places() {
    for dedup in [false, true] {
        let (rig, engine) = made(true);
        if dedup {
            let on = [("dedup".to_string(), "on".to_string())];
            assert!(changes(&engine).set("tank", &on).unwrap().is_empty());
        }
        let fs = open(&engine);
        let write = |fs: &FileSystem, name: &[u8], contents: u64| {
            let ino = fs.create(fs.root(), name, &rig::NODE).unwrap().ino;
            fs.write(ino, 0, &bytes(contents, LEN), false).unwrap();
            engine.sync().unwrap();
            ino
        };
        let first = write(&fs, b"first", 10);
        let second = write(&fs, b"second", 11);
        let names = vec!["tank@s".to_string()];
        changes(&engine).snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
        let new = NewClone { origin: "tank@s".into(), name: "tank/clone".into(), props: vec![] };
        changes(&engine).clone_snapshot(&new).unwrap();
        let clone = file_system(&engine, "tank/clone");
        // Another place of an old block, in the clone alone; and another old block in a place of the file system.
        let third = match dedup {
            true => write(&clone, b"third", 10),
            false => {
                let ino = clone.create(clone.root(), b"third", &rig::NODE).unwrap().ino;
                clone.copy_range(first, 0, ino, 0, u64::MAX).unwrap();
                ino
            }
        };
        match dedup {
            true => drop(fs.write(second, 0, &bytes(10, LEN), false).unwrap()),
            false => drop(fs.copy_range(first, 0, second, 0, u64::MAX).unwrap()),
        }
        engine.sync().unwrap();
        let pointer = |name: &str, object: u64| {
            let dataset = engine.pool().dsl().find(name).unwrap().unwrap();
            let contents = engine.pool().dsl().open_objset(&dataset).unwrap();
            contents.object(object).unwrap().block_pointer(0, 0).unwrap()
        };
        let old = pointer("tank", first);
        for bp in [pointer("tank/clone", third), pointer("tank", second)] {
            assert!(bp.dva(0) == old.dva(0) && bp.birth() > bp.physical_birth(), "{bp:?}");
        }
        turn_block(&rig, &old);
        turn_block(&rig, &pointer("tank@s", second));
        let mut data = vec![0; LEN];
        engine.pool().store().drop_caches();
        assert!(clone.read(third, 0, &mut data).is_err());
        let snapshot = engine.pool().dsl().find("tank@s").unwrap().unwrap();
        let contents = engine.pool().dsl().open_objset(&snapshot).unwrap();
        assert!(FileSystem::open(contents).unwrap().read(second, 0, &mut data).is_err());
        let id = |name: &str| dataset(&engine.pool(), name);
        let wanted = BTreeSet::from([
            (id("tank/clone"), third),
            (id("tank@s"), second),
            (id("tank/clone"), second),
        ]);
        for _ in 0..2 {
            // To look at the log takes nothing out of it.
            let listed = logged(&engine).into_iter().collect::<BTreeSet<_>>();
            assert_eq!(listed, wanted, "dedup: {dedup}");
        }
        drop((fs, clone));
        finish_damaged(&rig, engine);
    }
}
