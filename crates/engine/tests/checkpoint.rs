//! The pool's checkpoint: taken, kept, gone back to, discarded. OpenZFS's `zdb` finds nothing wrong with the pool
//! nor with the checkpoint in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::outside::Chance;
use cenote_dmu::write::ZapMut;
use cenote_engine::change::{NewDataset, NewSnapshot};
use cenote_engine::create::{CreateSpec, FIRST_TXG, SystemDevices, parse, prepare};
use cenote_engine::{Engine, EngineOptions, RemoveError, SyncContext, tunables};
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::nvlist::NvValue;
use cenote_pool::scan::ScanState;
use cenote_pool::{ImportOptions, Pool, config, discover};
use cenote_zpl::{FileSystem, Settings};
use rig::{NODE, Rig, account, bytes, changes, check, fill, open};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 128 << 20;
const LEN: usize = 200_000;
/// Files that the checkpoint has.
const FILES: std::ops::Range<u64> = 0..40;

fn import(rig: &Rig, options: ImportOptions) -> Result<Arc<Engine>, String> {
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { force: true, ..options };
    Engine::import(&found[0], &options, EngineOptions::default()).map_err(|e| e.to_string())
}

fn rewind(rig: &Rig) -> Arc<Engine> {
    import(rig, ImportOptions { checkpoint: true, ..ImportOptions::default() }).unwrap()
}

/// The pool is as it should be, and so is its checkpoint if it has one; it goes on.
fn stage(rig: &Rig, engine: Arc<Engine>) -> Arc<Engine> {
    engine.sync().unwrap();
    account(&engine.pool());
    engine.export(false).unwrap();
    let has = engine.pool().checkpoint().unwrap().is_some();
    drop(engine);
    judge(rig, has);
    rig.import()
}

fn judge(rig: &Rig, has_checkpoint: bool) {
    rig.judge();
    if has_checkpoint {
        // What zdb says of the state in the checkpoint, and of the checkpoint's space maps beside it.
        cenote_testpools::zdb(rig.path(), "tank", &["-kd"]);
        let said = cenote_testpools::zdb(rig.path(), "tank", &["-d"]);
        assert!(said.contains("Checkpointed uberblock found"), "{said}");
    }
}

/// Overwrites, removes and adds files, takes snapshots and destroys them.
fn work(engine: &Arc<Engine>) {
    let fs = open(engine);
    for i in FILES.step_by(3) {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    for i in FILES.skip(1).step_by(3) {
        let ino = fs.lookup(fs.root(), format!("file {i}").as_bytes()).unwrap();
        fs.write(ino, 0, &vec![7; LEN / 2], false).unwrap();
    }
    engine.sync().unwrap();
    fill(&fs, 100..120, LEN);
    let changes = changes(engine);
    let names = vec!["tank@later".to_string()];
    changes.snapshot(&NewSnapshot { names, props: vec![] }).unwrap();
    fill(&fs, 120..130, LEN);
    engine.sync().unwrap();
    changes.destroy_snapshots(&["tank@later".to_string()], false).unwrap();
    let kind = cenote_engine::change::Kind::Filesystem;
    changes.create(&NewDataset { name: "tank/new".into(), kind, props: vec![] }).unwrap();
    for _ in 0..6 {
        engine.write_config().unwrap();
    }
}

fn used(pool: &Pool) -> u64 {
    pool.dsl().root().unwrap().dir.used
}

/// Waits until nothing is left of the checkpoint.
fn discard(engine: &Engine) {
    engine.discard_checkpoint().unwrap();
    while engine.pool().status().unwrap().checkpoint.is_some() {
        engine.write_config().unwrap();
    }
    for _ in 0..4 {
        engine.write_config().unwrap();
    }
}

#[test]
fn the_pool_goes_back_to_it() {
    for (line, named) in [
        ("a b", vec![]),
        ("raidz a b c", vec![]),
        ("mirror a b", vec![("log_spacemap".to_string(), false)]),
    ] {
        let rig = Rig::new(SIZE);
        let engine = rig.create_choosing(line, 12, &named);
        fill(&open(&engine), FILES, LEN);
        engine.checkpoint().unwrap();
        let before = used(&engine.pool());
        let taken = engine.pool().status().unwrap().checkpoint.unwrap();
        assert!(taken.created.is_some());
        work(&engine);
        let status = engine.pool().status().unwrap().checkpoint.unwrap();
        assert!(status.space > 20 * LEN as u64, "{status:?}");
        let engine = stage(&rig, engine);
        assert_eq!(engine.pool().status().unwrap().checkpoint, Some(status), "{line}");
        work_more(&engine);
        let engine = stage(&rig, engine);
        engine.export(false).unwrap();
        drop(engine);
        look(&rig);
        let engine = rewind(&rig);
        check(&open(&engine), FILES, LEN);
        assert_eq!(engine.pool().status().unwrap().checkpoint, None);
        assert!(engine.pool().dsl().find("tank/new").unwrap().is_none());
        assert!(used(&engine.pool()).abs_diff(before) < 1 << 20);
        fill(&open(&engine), 200..220, LEN);
        let engine = stage(&rig, engine);
        check(&open(&engine), FILES, LEN);
        check(&open(&engine), 200..220, LEN);
        // There can be another one.
        engine.checkpoint().unwrap();
        stage(&rig, engine).export(false).unwrap();
    }
}

fn work_more(engine: &Arc<Engine>) {
    let fs = open(engine);
    fill(&fs, 130..160, LEN);
    for i in FILES.skip(2).step_by(3) {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    engine.sync().unwrap();
}

/// The state in the checkpoint, read-only; nothing comes of that.
fn look(rig: &Rig) {
    let found = discover(&[rig.path().to_path_buf()]);
    let options = ImportOptions { checkpoint: true, readonly: true, ..ImportOptions::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    let root = pool.dsl().root().unwrap();
    let fs = cenote_zpl::FileSystem::open(pool.dsl().open_objset(&root).unwrap()).unwrap();
    check(&fs, FILES, LEN);
    drop((fs, pool));
    let engine = rig.import();
    check(&open(&engine), 130..160, LEN);
    engine.export(false).unwrap();
}

/// Marks the first vdev of the config as one that takes no allocations, which is not written to, or as a usual one.
fn mark_first(engine: &Engine, marked: bool) {
    let mark = move |context: &mut SyncContext<'_>| {
        let tree = &mut context.config.vdev_tree;
        let mut tops = config::children(tree).to_vec();
        tops[0].pairs.retain(|(name, _)| name != "non_allocating");
        if marked {
            config::set(&mut tops[0], "non_allocating", NvValue::Uint64(1));
        }
        config::set(tree, "children", NvValue::NvListArray(tops));
        context.config_changed = true;
        Ok(())
    };
    engine.sync_task(mark).unwrap();
}

#[test]
fn going_back_that_is_refused_leaves_the_newest_state() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a b", 12);
    fill(&open(&engine), FILES, LEN);
    mark_first(&engine, true);
    engine.checkpoint().unwrap();
    mark_first(&engine, false);
    fill(&open(&engine), 50..60, LEN);
    let engine = stage(&rig, engine);
    engine.export(false).unwrap();
    drop(engine);
    let back = || ImportOptions { checkpoint: true, ..ImportOptions::default() };
    let deep = ImportOptions { txg: Some(u64::MAX), ..back() };
    let said = import(&rig, deep).err().unwrap();
    assert!(said.contains("going back to the checkpoint of an earlier state"), "{said}");
    let said = import(&rig, back()).err().unwrap();
    assert!(said.contains("vdev 0 is non-allocating"), "{said}");
    let engine = rig.import();
    check(&open(&engine), 50..60, LEN);
    stage(&rig, engine).export(false).unwrap();
}

#[test]
fn it_is_discarded_in_pieces() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a b", 9);
    fill(&open(&engine), FILES, LEN);
    engine.sync().unwrap();
    let fresh = engine.allocator().figures(cenote_store::alloc::Class::Normal).allocated;
    engine.checkpoint().unwrap();
    work(&engine);
    work_more(&engine);
    let kept = engine.allocator().kept();
    assert!(kept > 30 * LEN as u64, "{kept}");
    assert_eq!(kept, engine.pool().checkpoint_space().unwrap());
    discard(&engine);
    assert_eq!(engine.allocator().kept(), 0);
    let after = engine.allocator().figures(cenote_store::alloc::Class::Normal).allocated;
    assert!(after < fresh + 61 * LEN as u64 && after > LEN as u64, "{fresh} {after}");
    let engine = stage(&rig, engine);
    check(&open(&engine), 130..160, LEN);
    engine.export(false).unwrap();
    drop(engine);
    let refused = import(&rig, ImportOptions { checkpoint: true, ..ImportOptions::default() });
    assert_eq!(refused.err().unwrap(), "cannot import 'tank': checkpoint does not exist");
}

fn remove(engine: &Arc<Engine>, files: std::ops::Range<u64>) {
    let fs = open(engine);
    for i in files {
        fs.unlink(fs.root(), format!("file {i}").as_bytes(), &|_| false).unwrap();
    }
    engine.sync().unwrap();
}

/// The length of a record of the file in [`many_pieces`].
const RECORD: u64 = 512;

/// A file of small records, every second of which is overwritten, so that the checkpoint's space map has
/// more than one group discards of it. Returns the file's number.
fn many_pieces(engine: &Arc<Engine>) -> u64 {
    let root = engine.pool().dsl().root().unwrap();
    let settings = Settings { record_size: RECORD, ..Settings::default() };
    let fs = FileSystem::open_live(engine.live(root.ds_obj).unwrap(), settings).unwrap();
    let file = fs.create(fs.root(), b"pieces", &NODE).unwrap().ino;
    let records = 36_000;
    fs.write(file, 0, &bytes(0, (records * RECORD) as usize), false).unwrap();
    engine.checkpoint().unwrap();
    for record in (0..records).step_by(2) {
        let new = bytes(record + 1, RECORD as usize);
        fs.write(file, record * RECORD, &new, false).unwrap();
    }
    engine.sync().unwrap();
    file
}

/// The file's records are those that were written last.
fn check_pieces(engine: &Engine, file: u64) {
    let fs = open(engine);
    let size = fs.attr(file).unwrap().size as usize;
    let (mut found, first) = (vec![0; size], bytes(0, size));
    assert_eq!(fs.read(file, 0, &mut found).unwrap(), size);
    let length = RECORD as usize;
    for (n, (found, first)) in found.chunks(length).zip(first.chunks(length)).enumerate() {
        let last = if n % 2 == 0 { bytes(n as u64 + 1, length) } else { first.to_vec() };
        assert!(found == last, "record {n}");
    }
}

fn no_checkpoint(engine: &Engine) -> bool {
    engine.pool().status().unwrap().checkpoint.is_none()
}

/// One piece in each group.
fn slowly() {
    cenote_engine::tunables::find("zfs_spa_discard_memory_limit").unwrap().set(1).unwrap();
}

#[test]
fn what_is_left_of_a_discard_is_carried_on_after_an_import() {
    slowly();
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 9);
    let file = many_pieces(&engine);
    engine.discard_checkpoint().unwrap();
    // After some groups, in which there were as many pieces.
    let at_rest = engine.at_rest(|pool, allocator| {
        assert_eq!(pool.checkpoint_space().unwrap(), allocator.kept());
        (rig.copy(), pool.status().unwrap().checkpoint.unwrap())
    });
    let (rig, left) = at_rest.unwrap();
    assert!(left.created.is_none() && left.space > 0, "{left:?}");
    drop(engine);
    rig.judge();
    let said = cenote_testpools::zdb(rig.path(), "tank", &["-d"]);
    assert!(said.contains("Partially discarded checkpoint"), "{said}");
    let copy = rig.copy();
    let engine = rig.import();
    while !no_checkpoint(&engine) {
        engine.write_config().unwrap();
    }
    let engine = stage(&rig, engine);
    check_pieces(&engine, file);
    engine.export(false).unwrap();
    // OpenZFS carries it on as well.
    cenote_testpools::openzfs(copy.path(), "tank", "import\ndiscard\nexport\n");
    copy.judge();
    let engine = copy.import();
    assert!(no_checkpoint(&engine));
    check_pieces(&engine, file);
    engine.export(false).unwrap();
}

fn openzfs(rig: &Rig, script: &str) {
    cenote_testpools::openzfs(rig.path(), "tank", script);
}

#[test]
fn openzfs_goes_on_from_ours() {
    for line in ["a b", "raidz a b c"] {
        let rig = Rig::new(SIZE);
        let engine = rig.create(line, 12);
        fill(&open(&engine), FILES, LEN);
        engine.checkpoint().unwrap();
        work(&engine);
        engine.export(false).unwrap();
        drop(engine);
        let other = rig.copy();
        let write =
            "import\ndataset tank/theirs\nwrite tank/theirs 3 8192 3000000 5\nsync\nexport\n";
        openzfs(&rig, write);
        judge(&rig, true);
        let engine = rig.import();
        work_more(&engine);
        stage(&rig, engine).export(false).unwrap();
        // They go back to ours, and so do we.
        openzfs(&other, "rewind\nsync\nexport\n");
        judge(&other, false);
        let engine = other.import();
        check(&open(&engine), FILES, LEN);
        engine.export(false).unwrap();
        drop(engine);
        let engine = rewind(&rig);
        check(&open(&engine), FILES, LEN);
        assert!(engine.pool().dsl().find("tank/theirs").unwrap().is_none());
        stage(&rig, engine).export(false).unwrap();
        // They discard ours.
        let engine = rig.import();
        engine.checkpoint().unwrap();
        remove(&engine, 0..20);
        engine.export(false).unwrap();
        drop(engine);
        openzfs(&rig, "import\ndiscard\nsync\nexport\n");
        judge(&rig, false);
        let engine = rig.import();
        assert!(no_checkpoint(&engine));
        engine.export(false).unwrap();
    }
}

#[test]
fn we_go_on_from_theirs() {
    for kind in ["stripe", "raidz1"] {
        let rig = Rig::new(SIZE);
        ["a", "b", "c"].iter().for_each(|name| drop(rig.word(name)));
        let begin = format!(
            "create {kind}\nfeatures\ndataset tank/theirs\nwrite tank/theirs 3 8192 3000000 5\n\
             write tank/theirs 4 8192 3000000 6\nsync\ncheckpoint\nwrite tank/theirs 3 8192 2000000 7\n\
             free tank/theirs 4\nsync\nexport\n"
        );
        openzfs(&rig, &begin);
        judge(&rig, true);
        let engine = rig.import();
        let kept = engine.allocator().kept();
        assert!(kept > 3_000_000, "{kept}");
        let changes = changes(&engine);
        changes.destroy("tank/theirs").unwrap();
        for _ in 0..4 {
            engine.write_config().unwrap();
        }
        assert!(engine.allocator().kept() > kept);
        drop(changes);
        let engine = stage(&rig, engine);
        engine.export(false).unwrap();
        drop(engine);
        let (theirs, discarded) = (rig.copy(), rig.copy());
        let check = "check tank/theirs 3 3000000 5\ncheck tank/theirs 4 3000000 6\nexport\n";
        openzfs(&theirs, &format!("rewind\n{check}"));
        let engine = rewind(&rig);
        engine.export(false).unwrap();
        drop(engine);
        judge(&rig, false);
        openzfs(&rig, &format!("import\n{check}"));
        let engine = discarded.import();
        discard(&engine);
        stage(&discarded, engine).export(false).unwrap();
        openzfs(&discarded, "import\nsync\nexport\n");
    }
}

/// `zpool add tank FILE`.
fn add(rig: &Rig, engine: &Engine, file: &str) {
    let pool = engine.pool();
    let prepared = prepare(&CreateSpec {
        name: "tank",
        layout: &parse(&[rig.word(file)]).unwrap(),
        ashift: 0,
        force: true.into(),
        pool: Some(pool.config()),
        txg: FIRST_TXG,
        imported: &[],
        devices: &SystemDevices,
        chance: &Chance::default(),
    });
    engine.add(prepared.unwrap()).unwrap();
}

#[test]
fn a_vdev_that_was_added_is_lost_by_going_back() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a b", 12);
    fill(&open(&engine), FILES, LEN);
    engine.checkpoint().unwrap();
    add(&rig, &engine, "c");
    fill(&open(&engine), 50..90, LEN);
    engine.sync().unwrap();
    let engine = stage(&rig, engine);
    engine.export(false).unwrap();
    drop(engine);
    let engine = rewind(&rig);
    check(&open(&engine), FILES, LEN);
    assert_eq!(engine.pool().store().vdevs().leaves().len(), 2);
    fill(&open(&engine), 200..220, LEN);
    engine.sync().unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    check(&open(&engine), FILES, LEN);
    check(&open(&engine), 200..220, LEN);
    account(&engine.pool());
    engine.export(false).unwrap();
}

#[test]
fn logs_that_were_in_use_are_dropped_by_going_back() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a b", 12);
    let root = engine.pool().dsl().root().unwrap();
    let fs = open(&engine);
    let commit = |files: std::ops::Range<u64>| {
        for i in files {
            fill(&fs, i..i + 1, LEN / 10);
            engine.commit(root.ds_obj).unwrap();
        }
    };
    commit(0..20);
    engine.checkpoint().unwrap();
    commit(20..40);
    engine.sync().unwrap();
    commit(40..60);
    let copy = engine.at_rest(|_, _| rig.copy()).unwrap();
    drop(fs);
    engine.export(false).unwrap();
    judge(&copy, true);
    let engine = rewind(&copy);
    check(&open(&engine), 0..20, LEN / 10);
    let fs = open(&engine);
    assert!(fs.lookup(fs.root(), b"file 20").is_err());
    drop(fs);
    stage(&copy, engine).export(false).unwrap();
}

#[test]
fn what_is_refused_beside_it() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("mirror a b", 12);
    let said = |done: Result<(), cenote_engine::EngineError>| done.unwrap_err().to_string();
    assert_eq!(said(engine.discard_checkpoint()), "checkpoint does not exist");
    engine.checkpoint().unwrap();
    assert_eq!(said(engine.checkpoint()), "checkpoint exists");
    assert_eq!(said(engine.reguid(None)), "checkpoint exists");
    let leaf = engine.pool().store().vdevs().leaves()[0].guid();
    assert_eq!(said(engine.detach(leaf, None)), "checkpoint exists");
    let engine = stage(&rig, engine);
    discard(&engine);
    engine.reguid(None).unwrap();
    engine.export(false).unwrap();
    let rig = Rig::new(SIZE);
    let without = [("zpool_checkpoint".to_string(), false)];
    let engine = rig.create_choosing("a", 12, &without);
    assert_eq!(said(engine.checkpoint()), "operation not supported on this type of pool");
}

/// Waits until the vdev has left that is being removed.
fn wait_for_removal(engine: &Engine) {
    let end = Instant::now() + Duration::from_secs(120);
    while engine.pool().status().unwrap().removal.unwrap().state == ScanState::Scanning {
        assert!(Instant::now() < end, "the removal does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn vdevs_do_not_leave_beside_it_and_what_is_on_removed_ones_is_kept() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a b log c spare d", 12);
    fill(&open(&engine), FILES, LEN);
    engine.sync().unwrap();
    engine.checkpoint().unwrap();
    let top =
        |engine: &Engine, id: u64| engine.pool().store().vdevs().top(id).map(|v| v.guid()).unwrap();
    let said = |done: Result<(), RemoveError>| done.unwrap_err().to_string();
    for id in [1, 2] {
        assert_eq!(said(engine.remove(top(&engine, id))), "checkpoint exists");
    }
    let spare = config::number(&engine.pool().spares()[0], "guid");
    engine.remove(spare).unwrap();
    let engine = stage(&rig, engine);
    discard(&engine);
    let still = tunables::find("zfs_removal_suspend_progress").unwrap();
    still.set(1).unwrap();
    engine.remove(top(&engine, 1)).unwrap();
    assert_eq!(engine.checkpoint().unwrap_err().to_string(), "device removal in progress");
    still.set(0).unwrap();
    wait_for_removal(&engine);
    engine.remove(top(&engine, 2)).unwrap();
    let kinds = |engine: &Engine| {
        let tree = engine.pool().store().vdevs();
        tree.root().children().iter().map(|top| top.kind().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&engine)[..2], ["file", "indirect"]);
    // Blocks are freed by way of the vdev that was removed, and its mapping shrinks.
    engine.checkpoint().unwrap();
    work(&engine);
    let engine = stage(&rig, engine);
    assert!(engine.allocator().kept() > 0);
    work_more(&engine);
    stage(&rig, engine).export(false).unwrap();
    look(&rig);
    let engine = rewind(&rig);
    check(&open(&engine), FILES, LEN);
    assert_eq!(kinds(&engine)[..2], ["file", "indirect"]);
    stage(&rig, engine).export(false).unwrap();
}

#[test]
fn a_pool_that_it_makes_full_is_emptied_by_discarding_it() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    let fs = open(&engine);
    fill(&fs, 0..200, LEN);
    engine.checkpoint().unwrap();
    for round in 1..40 {
        for i in 0..200 {
            let done = fs
                .lookup(fs.root(), format!("file {i}").as_bytes())
                .and_then(|ino| fs.write(ino, 0, &bytes(i + 1000 * round, LEN), false).map(drop));
            if done.is_err() {
                // The pool still works.
                engine.sync().unwrap();
                assert!(engine.suspended().is_none());
                discard(&engine);
                let ino = fs.lookup(fs.root(), b"file 3").unwrap();
                fs.write(ino, 0, &bytes(3, LEN), false).unwrap();
                drop(fs);
                let engine = stage(&rig, engine);
                check(&open(&engine), 3..4, LEN);
                engine.export(false).unwrap();
                return;
            }
        }
        engine.sync().unwrap();
    }
    panic!("the pool never gets full");
}

/// A space map of the checkpoint that makes no sense is found by the import; one of a pool without checkpoint counts for nothing.
#[test]
fn space_maps_of_it_that_cannot_be_suspend_no_pool() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    fill(&open(&engine), FILES, LEN);
    engine.checkpoint().unwrap();
    work(&engine);
    // Nothing of before the checkpoint is freed any more by what follows.
    (0..4).for_each(|_| engine.write_config().unwrap());
    let map = engine.pool().space().unwrap().vdevs[0].checkpoint_map;
    engine
        .sync_task(move |context| {
            let mut bonus = context.tx.mos.dnode(map)?.bonus.clone();
            // More than nothing is allocated.
            bonus[16..24].copy_from_slice(&4096i64.to_le_bytes());
            context.tx.mos.set_bonus(map, DmuType::SPACE_MAP_HEADER, &bonus)?;
            Ok(())
        })
        .unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let why = import(&rig, ImportOptions::default()).err().unwrap();
    assert!(!why.is_empty());
    let readonly = ImportOptions { readonly: true, ..ImportOptions::default() };
    let found = discover(&[rig.path().to_path_buf()]);
    assert!(Pool::import(&found[0], &readonly).is_ok(), "{why}");

    let rig = Rig::new(SIZE);
    let engine = rig.create("a b", 12);
    fill(&open(&engine), FILES, LEN);
    engine.sync().unwrap();
    let of = engine.pool().space().unwrap().vdevs.clone();
    let map = of[0].metaslabs.iter().map(|ms| ms.space_map).max().unwrap();
    let (top_zap, key) = (of[1].top_zap, Key::Name(b"com.delphix:pool_checkpoint_sm"));
    engine
        .sync_task(move |context| {
            Ok(ZapMut::open(context.tx.mos, top_zap).add(&key, &Value::U64(&[map]))?)
        })
        .unwrap();
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    assert_eq!(engine.pool().checkpoint_space().unwrap(), 0);
    let second = engine.pool().store().vdevs().root().children()[1].guid();
    engine.remove(second).unwrap();
    wait_for_removal(&engine);
    assert!(engine.suspended().is_none());
    engine
        .sync_task(move |context| Ok(ZapMut::open(context.tx.mos, top_zap).remove(&key)?))
        .unwrap();
    engine.export(false).unwrap();
    rig.judge();
}
