//! What changes of data sets move while a scrub is under way, to where it has been already: it is scanned all the same. Between two
//! rounds, and while one has looked at what it found and this is not on disk. OpenZFS's `zdb` judges the pools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod receiver;
mod rig;

use cenote_dmu::write::{NewObject, ZapMut};
use cenote_dsl::send::SendOptions;
use cenote_engine::change::receive::{NewReceive, Source};
use cenote_engine::change::{Kind, NewClone, NewDataset, NewSnapshot};
use cenote_engine::planted::Moment;
use cenote_engine::tunables::{SCAN_CHECKPOINT_INTVAL, SCAN_SUSPEND_PROGRESS};
use cenote_engine::{Engine, SyncContext};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_pool::scan::{NO_DATASET, ScanPhys, ScanState};
use cenote_zpl::{FileSystem, Settings};
use receiver::find;
use rig::{NODE, Rig, bytes, changes};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
const RECORD: u64 = 4 << 10;
const LEN: usize = 100_000;
/// Where blocks begin on a device.
const START: u64 = 4 << 20;
/// The object directory.
const DIRECTORY: u64 = 1;

/// Rounds are short, and wait for their turn, by tunables: one test at a time.
static ALONE: parking_lot::Mutex<()> = parking_lot::Mutex::new(());

fn create(engine: &Arc<Engine>, name: &str) {
    let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props: vec![] };
    changes(engine).create(&new).unwrap();
}

fn snapshot(engine: &Arc<Engine>, name: &str) {
    let new = NewSnapshot { names: vec![name.into()], props: vec![] };
    changes(engine).snapshot(&new).unwrap();
}

fn clone(engine: &Arc<Engine>, origin: &str, name: &str) {
    let new = NewClone { origin: origin.into(), name: name.into(), props: vec![] };
    changes(engine).clone_snapshot(&new).unwrap();
}

fn open(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let live = engine.live(find(engine, name).ds_obj).unwrap();
    FileSystem::open_live(live, Settings { record_size: RECORD, ..Settings::default() }).unwrap()
}

/// Writes a file; returns its number.
fn write(engine: &Engine, name: &str, file: u64, len: usize) -> u64 {
    let fs = open(engine, name);
    let ino = fs.create(fs.root(), format!("file {file}").as_bytes(), &NODE).unwrap().ino;
    fs.write(ino, 0, &bytes(file, len), false).unwrap();
    drop(fs);
    engine.sync().unwrap();
    ino
}

fn unlink(engine: &Engine, name: &str, file: u64) {
    let fs = open(engine, name);
    fs.unlink(fs.root(), format!("file {file}").as_bytes(), &|_| false).unwrap();
    drop(fs);
    engine.sync().unwrap();
}

/// The blocks of a file.
fn blocks(engine: &Engine, name: &str, file: u64) -> Vec<BlockPointer> {
    let fs =
        FileSystem::open(engine.pool().dsl().open_objset(&find(engine, name)).unwrap()).unwrap();
    let ino = fs.lookup(fs.root(), format!("file {file}").as_bytes()).unwrap();
    let object = fs.object(ino).unwrap();
    (0..=object.dnode().max_block).map(|blkid| object.block_pointer(0, blkid).unwrap()).collect()
}

/// What a side has of blocks.
fn held(rig: &Rig, side: &str, blocks: &[BlockPointer]) -> Vec<Vec<u8>> {
    let file = std::fs::File::open(rig.file(side)).unwrap();
    let read = |bp: &BlockPointer| {
        let mut data = vec![0; bp.psize() as usize];
        file.read_exact_at(&mut data, START + bp.dva(0).unwrap().offset).unwrap();
        data
    };
    blocks.iter().map(read).collect()
}

fn spoil(rig: &Rig, blocks: &[BlockPointer]) {
    let file = std::fs::OpenOptions::new().write(true).open(rig.file("a")).unwrap();
    for (bp, mut data) in blocks.iter().zip(held(rig, "a", blocks)) {
        data.iter_mut().for_each(|byte| *byte ^= 0x5a);
        file.write_all_at(&data, START + bp.dva(0).unwrap().offset).unwrap();
    }
}

/// How far a scrub is, and what happens then.
struct Plan {
    /// The data set that is walked, and the object that comes next.
    current: Option<(u64, u64)>,
    /// Data sets that come next.
    queue: Vec<u64>,
    /// What is wrong on one side.
    wrong: Vec<BlockPointer>,
    then: Box<dyn FnOnce() + Send>,
}

/// The group up to which the blocks of a data set belong to others.
fn after(engine: &Engine, ds: u64) -> u64 {
    engine.pool().dsl().by_object(ds).unwrap().unwrap().ds.prev_snap_txg
}

/// Has the scrub under way be there.
fn place(engine: &Engine, plan: &Plan) {
    let mins = plan.queue.iter().map(|ds| (*ds, after(engine, *ds)));
    let (queue, current): (Vec<_>, _) = (mins.collect(), plan.current);
    let min = current.map_or(0, |(ds, _)| after(engine, ds));
    let change = move |context: &mut SyncContext<'_>| {
        let format = context.tx.zap_format()?;
        let mos = &mut *context.tx.mos;
        let key = Key::Name(b"scan");
        let (_, words) = ZapMut::open(mos, DIRECTORY).lookup(&key)?.unwrap();
        let mut phys = ScanPhys::decode(&words).unwrap();
        mos.free(phys.queue)?;
        phys.queue = ZapMut::create(mos, &NewObject::new(DmuType::SCAN_QUEUE, 512), format)?;
        for (ds, min) in queue {
            let name = format!("{ds:x}");
            ZapMut::open(mos, phys.queue).add(&Key::Name(name.as_bytes()), &Value::U64(&[min]))?;
        }
        let (ds, object) = current.unwrap_or((NO_DATASET, 0));
        (phys.bookmark, phys.cur_min_txg) = ([ds, object, 0, 0], min);
        Ok(ZapMut::open(mos, DIRECTORY).update(&key, &Value::U64(&phys.encode()))?)
    };
    engine.sync_task(change).unwrap();
}

fn finished(engine: &Engine) {
    let begun = Instant::now();
    loop {
        match engine.pool().status().unwrap().scan.unwrap().state {
            ScanState::Scanning => std::thread::sleep(Duration::from_millis(5)),
            ended => return assert_eq!(ended, ScanState::Finished),
        }
        assert!(begun.elapsed() < Duration::from_secs(120));
    }
}

/// A scrub is where a plan says when that happens: between two rounds, or `within` one, which then walks another data set.
fn moves(within: bool, dedup: bool, plan: impl FnOnce(&Arc<Engine>) -> Plan) {
    let _alone = ALONE.lock();
    let rig = Arc::new(Rig::new(SIZE));
    let engine = rig.create("mirror a b", 12);
    let list = [("compression".to_string(), "off".to_string())];
    assert!(changes(&engine).set("tank", &list).unwrap().is_empty());
    create(&engine, "tank/first");
    write(&engine, "tank/first", 1000, 200 * RECORD as usize);
    if dedup {
        let list = [("dedup".to_string(), "on".to_string())];
        assert!(changes(&engine).set("tank", &list).unwrap().is_empty());
    }
    let mut plan = plan(&engine);
    engine.sync().unwrap();
    spoil(&rig, &plan.wrong);
    SCAN_SUSPEND_PROGRESS.set(1).unwrap();
    SCAN_CHECKPOINT_INTVAL.set(0).unwrap();
    engine.scrub().unwrap();
    if within {
        let first = find(&engine, "tank/first").ds_obj;
        assert!(plan.queue.iter().all(|ds| *ds > first));
        plan.queue.push(first);
    }
    place(&engine, &plan);
    let Plan { wrong, then, .. } = plan;
    let done = Arc::new(AtomicBool::new(false));
    if within {
        let (rig, wrong, done) = (rig.clone(), wrong.clone(), done.clone());
        engine.stop_at(Moment::RoundWalked, move || {
            assert!(held(&rig, "a", &wrong) != held(&rig, "b", &wrong), "it was not its turn yet");
            then();
            done.store(true, SeqCst);
        });
    } else {
        then();
        done.store(true, SeqCst);
    }
    SCAN_SUSPEND_PROGRESS.set(0).unwrap();
    finished(&engine);
    SCAN_CHECKPOINT_INTVAL.set(60).unwrap();
    assert!(done.load(SeqCst));
    assert!(held(&rig, "a", &wrong) == held(&rig, "b", &wrong), "within a round: {within}");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A receive into `tank/d`, of which all has come and nothing is completed: the head, the clone, and what is in the clone alone.
fn receiving(engine: &Arc<Engine>) -> (u64, u64, Vec<BlockPointer>, Box<dyn FnOnce() + Send>) {
    let sent = |to: &str, from: Option<&str>| {
        let options = SendOptions {
            large_blocks: false,
            embedded: false,
            compressed: false,
            pool_embeds: true,
            pool_has_lz4: true,
            raw: false,
            resume: None,
            saved: false,
            redact: None,
        };
        let (to, from) = (find(engine, to), from.map(|from| find(engine, from)));
        let mut stream = Vec::new();
        engine.pool().dsl().send(&to, from.as_ref(), options, &mut stream).unwrap();
        stream
    };
    create(engine, "tank/source");
    write(engine, "tank/source", 0, LEN);
    snapshot(engine, "tank/source@s");
    let new = |to: &str| NewReceive { to: to.into(), ..NewReceive::default() };
    receiver::receive(engine, &new("tank/d@s"), &sent("tank/source@s", None)).unwrap();
    write(engine, "tank/source", 1, LEN);
    snapshot(engine, "tank/source@t");
    let stream = sent("tank/source@t", Some("tank/source@s"));
    let (changes, mut stream) = (receiver::changes(engine), &stream[..]);
    let mut source = Source::new(&mut stream);
    let begin = source.begin().unwrap().unwrap();
    let list = source.list(&begin).unwrap();
    let receiving = changes.receive(&new("tank/d@t"), &begin, &list).unwrap();
    receiving.stream(&mut source, &mut |_| {}).unwrap();
    engine.sync().unwrap();
    let (head, clone) = (find(engine, "tank/d").ds_obj, find(engine, "tank/d/%recv").ds_obj);
    let wrong = blocks(engine, "tank/d/%recv", 1);
    let then = Box::new(move || changes.finish_receive(receiving, false).unwrap());
    (head, clone, wrong, then)
}

#[test]
fn what_is_received_into_a_head_that_is_done() {
    for within in [false, true] {
        moves(within, false, |engine| {
            let (_, clone, wrong, then) = receiving(engine);
            Plan { current: None, queue: vec![clone], wrong, then }
        });
    }
}

#[test]
fn what_is_received_into_a_head_that_is_walked() {
    moves(false, false, |engine| {
        let (head, clone, wrong, then) = receiving(engine);
        Plan { current: Some((head, 1 << 20)), queue: vec![clone], wrong, then }
    });
}

#[test]
fn what_is_received_into_a_clone_that_is_walked() {
    moves(false, false, |engine| {
        let (_, clone, wrong, then) = receiving(engine);
        Plan { current: Some((clone, 1)), queue: vec![], wrong, then }
    });
}

#[test]
fn the_snapshot_of_a_head_that_goes() {
    for within in [false, true] {
        moves(within, false, |engine| {
            create(engine, "tank/d");
            write(engine, "tank/d", 0, LEN);
            let (queue, wrong) = (vec![find(engine, "tank/d").ds_obj], blocks(engine, "tank/d", 0));
            let engine = engine.clone();
            let then = Box::new(move || {
                snapshot(&engine, "tank/d@x");
                clone(&engine, "tank/d@x", "tank/c");
                changes(&engine).promote("tank/c").unwrap();
                changes(&engine).destroy("tank/d").unwrap();
            });
            Plan { current: None, queue, wrong, then }
        });
    }
}

#[test]
fn a_snapshot_that_goes_after_its_head() {
    for within in [false, true] {
        moves(within, false, |engine| {
            create(engine, "tank/d");
            write(engine, "tank/d", 0, LEN);
            snapshot(engine, "tank/d@s");
            clone(engine, "tank/d@s", "tank/c");
            let queue = vec![find(engine, "tank/d@s").ds_obj];
            let (wrong, engine) = (blocks(engine, "tank/c", 0), engine.clone());
            let then = Box::new(move || {
                changes(&engine).promote("tank/c").unwrap();
                changes(&engine).destroy("tank/d").unwrap();
                changes(&engine).destroy_snapshots(&["tank/c@s".to_string()], false).unwrap();
            });
            Plan { current: None, queue, wrong, then }
        });
    }
}

#[test]
fn blocks_that_are_cloned_into_a_data_set_that_is_done() {
    for within in [false, true] {
        moves(within, false, |engine| {
            create(engine, "tank/done");
            create(engine, "tank/later");
            let from = write(engine, "tank/later", 0, LEN);
            let to = write(engine, "tank/done", 1, 1);
            let queue = vec![find(engine, "tank/later").ds_obj];
            let (wrong, engine) = (blocks(engine, "tank/later", 0), engine.clone());
            let then = Box::new(move || {
                let (source, target) = (open(&engine, "tank/later"), open(&engine, "tank/done"));
                target.copy_range_from(&source, (from, 0), (to, 0), u64::MAX).unwrap();
                drop((source, target));
                engine.sync().unwrap();
                let dva = |bp: &BlockPointer| bp.dva(0).unwrap();
                let now = blocks(&engine, "tank/done", 1);
                assert_eq!(dva(&now[0]), dva(&blocks(&engine, "tank/later", 0)[0]));
                unlink(&engine, "tank/later", 0);
            });
            // The last block is copied.
            let wrong = wrong[..wrong.len() - 1].to_vec();
            Plan { current: None, queue, wrong, then }
        });
    }
}

#[test]
fn blocks_that_are_cloned_to_before_the_bookmark() {
    moves(false, false, |engine| {
        create(engine, "tank/d");
        let (to, from) = (write(engine, "tank/d", 1, 1), write(engine, "tank/d", 0, LEN));
        assert!(to < from);
        let head = find(engine, "tank/d").ds_obj;
        let (mut wrong, engine) = (blocks(engine, "tank/d", 0), engine.clone());
        wrong.pop();
        let then = Box::new(move || {
            let fs = open(&engine, "tank/d");
            fs.copy_range(from, 0, to, 0, u64::MAX).unwrap();
            drop(fs);
            engine.sync().unwrap();
            unlink(&engine, "tank/d", 0);
        });
        Plan { current: Some((head, from)), queue: vec![], wrong, then }
    });
}

#[test]
fn blocks_that_are_deduplicated() {
    for within in [false, true] {
        moves(within, true, |engine| {
            create(engine, "tank/done");
            create(engine, "tank/later");
            write(engine, "tank/later", 0, LEN);
            let queue = vec![find(engine, "tank/later").ds_obj];
            let (mut wrong, engine) = (blocks(engine, "tank/later", 0), engine.clone());
            wrong.pop();
            let then = Box::new(move || {
                write(&engine, "tank/done", 0, LEN);
                unlink(&engine, "tank/later", 0);
            });
            Plan { current: None, queue, wrong, then }
        });
    }
}
