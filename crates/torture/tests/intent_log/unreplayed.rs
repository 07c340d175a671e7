//! Logs that an import claimed and that wait for their datasets to be opened: further imports and crashes leave them,
//! snapshots and clones do not have them, and a dataset that is opened has all that was committed.

use cenote_dsl::write::DslWriteError;
use cenote_engine::change::{Changes, Kind, NewClone, NewDataset, NewSnapshot};
use cenote_engine::{Engine, EngineError};
use cenote_format::dmu::ZilHeader;
use cenote_pool::Pool;
use cenote_testpools::zdb;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::lab::{Lab, Logs, POOL, Plain, disks, judge, lab};
use cenote_torture::live::world::{self, look};
use cenote_zpl::{FileSystem, NewNode, NodeKind};
use std::sync::Arc;

const SHAPE: crate::Shape = crate::SHAPES[0];
const ALL: [&str; 2] = ["tank", "tank/second"];
/// What was on disk, and what is in the log.
const SYNCED: &str = "synced";
const LOGGED: &str = "logged";

fn create(engine: &Engine, name: &str, file: &str) {
    let fs = world::open(engine, name, true);
    let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
    let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
    let ino = fs.create(fs.root(), file.as_bytes(), &node).unwrap().ino;
    fs.write(ino, 0, &file.as_bytes().repeat(9000), false).unwrap();
    engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
}

/// What a crash left of two file systems with a synced and a logged file each.
fn crashed() -> Vec<Arc<Disk>> {
    let disks = disks(&vec![Image::new(SHAPE.size); SHAPE.disks], None);
    let lab = lab(&disks).without(crate::SA_XATTRS).without(crate::CLONING);
    let engine = lab.create_with(&SHAPE, Logs::On).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    let (name, kind) = (ALL[1].into(), Kind::Filesystem);
    changes.create(&NewDataset { name, kind, props: Vec::new() }).unwrap();
    for file in [SYNCED, LOGGED] {
        let before = engine.pool().uberblock().txg;
        ALL.iter().for_each(|name| create(&engine, name, file));
        assert_eq!(engine.pool().uberblock().txg > before, file == SYNCED);
    }
    cenote_torture::live::lab::disks(&images(&disks), None)
}

fn images(disks: &[Arc<Disk>]) -> Vec<Image> {
    disks.iter().map(|disk| disk.image()).collect()
}

fn import(disks: &[Arc<Disk>]) -> Arc<Engine> {
    let lab: Lab = lab(disks);
    lab.import(&lab.find().unwrap()).unwrap()
}

fn changes(engine: &Arc<Engine>) -> Changes {
    Changes::new(engine.clone(), Arc::new(Plain), None)
}

fn header(pool: &Pool, name: &str) -> ZilHeader {
    let dataset = pool.dsl().find(name).unwrap().unwrap();
    pool.dsl().open_objset(&dataset).unwrap().phys().zil
}

/// The files of a dataset as it is on disk, or of one that is opened for writing, which replays its log.
fn on_disk(pool: &Pool, name: &str) -> Vec<String> {
    let dataset = pool.dsl().find(name).unwrap().unwrap();
    let set = pool.dsl().open_objset(&dataset).unwrap();
    names(&FileSystem::open_as(set, world::settings(true)).unwrap())
}

fn opened(engine: &Engine, name: &str) -> Vec<String> {
    names(&world::open(engine, name, true))
}

fn names(fs: &FileSystem) -> Vec<String> {
    look(fs).keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn ds_obj(engine: &Engine, name: &str) -> u64 {
    engine.pool().dsl().find(name).unwrap().unwrap().ds_obj
}

fn snapshot(engine: &Arc<Engine>, name: &str) {
    let names = vec![name.to_string()];
    changes(engine).snapshot(&NewSnapshot { names, props: Vec::new() }).unwrap();
}

/// What OpenZFS says of the headers of logs.
fn headers_by_openzfs(images: &[Image]) -> usize {
    let dir = tempfile::tempdir().unwrap();
    for (i, image) in images.iter().enumerate() {
        image.save(&dir.path().join(format!("d{i}")));
    }
    let claimed = |l: &&str| l.contains("ZIL header: claim_txg ") && !l.contains("claim_txg 0,");
    zdb(dir.path(), POOL, &["-ivv"]).lines().filter(claimed).count()
}

#[test]
fn logs_wait_through_imports_and_crashes_until_their_datasets_are_opened() {
    let disks = crashed();
    let engine = import(&disks);
    let claims = |engine: &Engine| {
        ALL.map(|name| {
            let h = header(&engine.pool(), name);
            assert!(h.claim_txg > 0 && !h.log.is_hole(), "{name}: {h:?}");
            (h.claim_txg, h.claim_blk_seq, h.claim_lr_seq, h.replay_seq, h.log)
        })
    };
    let claimed = claims(&engine);
    assert_eq!(ALL.map(|name| on_disk(&engine.pool(), name)), [[SYNCED]; 2]);
    assert_eq!(engine.waiting_logs().len(), 2);
    // What does not open them leaves them.
    snapshot(&engine, "tank/second@before");
    engine.sync().unwrap();
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
    assert_eq!(headers_by_openzfs(&images(&disks)), 2);
    // An import that ends with a crash, and one that replays one of the logs.
    drop(import(&disks));
    let engine = import(&disks);
    assert_eq!(claims(&engine), claimed);
    assert_eq!(opened(&engine, ALL[1]), [LOGGED, SYNCED]);
    assert_eq!(on_disk(&engine.pool(), ALL[0]), [SYNCED]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
    assert_eq!(headers_by_openzfs(&images(&disks)), 1);
    let engine = import(&disks);
    assert_eq!(ALL.map(|name| opened(&engine, name)), [[LOGGED, SYNCED]; 2]);
    assert_eq!(engine.waiting_logs(), [0; 0]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
    assert_eq!(headers_by_openzfs(&images(&disks)), 0);
    assert_eq!(on_disk(&lab(&disks).look().unwrap(), "tank/second@before"), [SYNCED]);
}

#[test]
fn what_is_made_of_a_snapshot_has_no_log() {
    let disks = crashed();
    let engine = import(&disks);
    snapshot(&engine, "tank/second@before");
    let (origin, name) = ("tank/second@before".into(), "tank/clone".into());
    changes(&engine).clone_snapshot(&NewClone { origin, name, props: Vec::new() }).unwrap();
    assert!(header(&engine.pool(), "tank/clone").log.is_hole());
    assert_eq!(opened(&engine, "tank/clone"), [SYNCED]);
    create(&engine, "tank/clone", "own");
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
    // The log is the head's still; the snapshot's root block names it when it is long gone.
    let engine = import(&disks);
    assert_eq!(opened(&engine, "tank/second"), [LOGGED, SYNCED]);
    engine.close(engine.pool().dsl().find("tank/second").unwrap().unwrap().ds_obj).unwrap();
    changes(&engine).rollback("tank/second@before").unwrap();
    assert!(header(&engine.pool(), "tank/second").log.is_hole());
    assert_eq!(opened(&engine, "tank/second"), [SYNCED]);
    assert_eq!(opened(&engine, "tank/clone"), ["own", SYNCED]);
    create(&engine, "tank/second", "again");
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
}

#[test]
fn a_rollback_and_a_destroy_free_a_log_that_was_not_replayed() {
    let disks = crashed();
    let engine = import(&disks);
    snapshot(&engine, "tank/second@before");
    changes(&engine).rollback("tank/second@before").unwrap();
    assert!(header(&engine.pool(), "tank/second").log.is_hole());
    assert_eq!(engine.waiting_logs(), [ds_obj(&engine, ALL[0])]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
    let engine = import(&disks);
    assert_eq!(ALL.map(|name| opened(&engine, name).len()), [2, 1]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();

    let disks = crashed();
    let engine = import(&disks);
    changes(&engine).destroy("tank/second").unwrap();
    assert_eq!(engine.waiting_logs(), [ds_obj(&engine, ALL[0])], "one has nothing to wait for");
    assert_eq!(cenote::contents::replay_logs(&engine, &|_, _| true).unwrap(), []);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
    assert_eq!(headers_by_openzfs(&images(&disks)), 0);
    let engine = import(&disks);
    assert_eq!(opened(&engine, ALL[0]), [LOGGED, SYNCED]);
    engine.export(false).unwrap();
}

/// Of many who open a dataset at once one replays the log, and all find the same.
#[test]
fn a_log_is_replayed_once_for_all_who_open_its_dataset() {
    let disks = crashed();
    let engine = import(&disks);
    let ds_obj = ds_obj(&engine, ALL[1]);
    let sets: Vec<_> = std::thread::scope(|scope| {
        let open = |_| scope.spawn(|| engine.live(ds_obj).unwrap());
        let opening: Vec<_> = (0..8).map(open).collect();
        opening.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(sets.iter().all(|set| Arc::ptr_eq(set, &sets[0])));
    assert_eq!(opened(&engine, ALL[1]), [LOGGED, SYNCED]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
}

/// A replay that panics keeps its dataset busy: nobody gets it without its log. Once the dataset is closed, the next one
/// who opens it replays the whole log.
#[test]
fn a_replay_that_panics_closes_its_dataset() {
    let disks = crashed();
    let engine = import(&disks);
    let dataset = ds_obj(&engine, ALL[1]);
    let replayed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        engine.replay_these_logs(&[dataset], &|_, _| panic!("for this test"))
    }));
    assert!(replayed.is_err());
    assert_eq!(engine.suspended(), None);
    for _ in 0..2 {
        let busy = engine.live(dataset).err();
        assert!(matches!(busy, Some(EngineError::Dsl(DslWriteError::Busy))), "{busy:?}");
        engine.sync().unwrap();
    }
    engine.close(dataset).unwrap();
    assert_eq!(opened(&engine, ALL[1]), [LOGGED, SYNCED]);
    assert_eq!(opened(&engine, ALL[0]), [LOGGED, SYNCED]);
    engine.export(false).unwrap();
    judge(&images(&disks)).unwrap();
}
