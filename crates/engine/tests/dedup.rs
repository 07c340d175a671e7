//! Deduplicated blocks: equal blocks are on disk once, the tables count every reference, as a walk of everything finds,
//! and a block without references is free. Tables of version 0 are judged by OpenZFS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dsl::Dataset;
use cenote_engine::change::{Kind, NewClone, NewDataset, NewSnapshot};
use cenote_engine::{Engine, EngineOptions, Prune, TakeOut};
use cenote_format::blkptr::Dva;
use cenote_format::checksum::Checksum;
use cenote_pool::Pool;
use cenote_pool::ddt::{self, Entry, Key};
use cenote_pool::ddt_stats::{self, Histogram};
use cenote_pool::reopen::Restore;
use cenote_pool::scan::ScanStatus;
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, Settings};
use rig::{Faulty, Rig, account, changes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u64 = 96 << 20;
const K: u64 = 1 << 10;
const RECORD: usize = 4 << 10;
/// Where blocks begin on a device.
const START: u64 = 4 << 20;

fn find(pool: &Pool, name: &str) -> Dataset {
    pool.dsl().find(name).unwrap().unwrap()
}

fn open(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let live = engine.live(find(&engine.pool(), name).ds_obj).unwrap();
    let settings = Settings { record_size: RECORD as u64, ..Settings::default() };
    FileSystem::open_live(live, settings).unwrap()
}

fn create(engine: &Arc<Engine>, name: &str) {
    let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props: vec![] };
    changes(engine).create(&new).unwrap();
}

fn set(engine: &Arc<Engine>, dataset: &str, property: &str, value: &str) {
    let list = [(property.to_string(), value.to_string())];
    let failed = changes(engine).set(dataset, &list).unwrap();
    assert!(failed.is_empty(), "{property}={value}");
}

fn snapshot(engine: &Arc<Engine>, name: &str) {
    let new = NewSnapshot { names: vec![name.into()], props: vec![] };
    changes(engine).snapshot(&new).unwrap();
}

/// A pool whose tables have logs, or not.
fn pool(rig: &Rig, line: &str, fast: bool) -> Arc<Engine> {
    let engine = rig.create_choosing(line, 12, &[("fast_dedup".to_string(), fast)]);
    set(&engine, "tank", "dedup", "on");
    set(&engine, "tank", "compression", "off");
    engine
}

/// Every dataset and snapshot.
fn all(pool: &Pool) -> Vec<Dataset> {
    let dsl = pool.dsl();
    let (mut found, mut todo) = (Vec::new(), vec![dsl.root().unwrap()]);
    while let Some(dataset) = todo.pop() {
        todo.extend(dsl.children(&dataset).unwrap());
        found.extend(dsl.snapshots(&dataset).unwrap());
        found.push(dataset);
    }
    found
}

/// The directory whose blocks those are that a dataset has and that were born in `birth`.
fn owner(pool: &Pool, dataset: &Dataset, birth: u64) -> u64 {
    let mut dir = (dataset.dir_obj, dataset.dir.origin);
    while let Some(origin) = pool.dsl().by_object(dir.1).unwrap().filter(|_| dir.1 != 0) {
        if birth > origin.ds.creation_txg {
            break;
        }
        dir = (origin.dir_obj, origin.dir.origin);
    }
    dir.0
}

/// Whose a block is: directory, object, number and birth.
type Place = (u64, u64, u64, u64);
/// A block: its table, its key, its first copy and when it was written.
type Block = (u8, Key, u64, u64);

/// The references of all blocks with the dedup bit, as a walk finds them.
fn references(pool: &Pool) -> BTreeMap<Block, u64> {
    let mut found: BTreeMap<Block, BTreeSet<Place>> = BTreeMap::new();
    for dataset in all(pool) {
        let os = pool.dsl().open_objset(&dataset).unwrap();
        let fs = FileSystem::open(os).unwrap();
        for entry in fs.readdir(fs.root(), 0, 1000).unwrap() {
            let object = fs.object(entry.ino).unwrap();
            for blkid in 0..=object.dnode().max_block {
                let bp = object.block_pointer(0, blkid).unwrap();
                if bp.is_hole() || bp.is_embedded() || !bp.is_dedup() {
                    continue;
                }
                let birth = bp.logical_birth();
                let whose = (owner(pool, &dataset, birth), entry.ino, blkid, birth);
                let block = (bp.checksum_type(), Key::of(&bp), bp.0[1], bp.physical_birth());
                found.entry(block).or_default().insert(whose);
            }
        }
    }
    found.into_iter().map(|(block, whose)| (block, whose.len() as u64)).collect()
}

/// The entries of all tables: those of logs are newer.
fn entries(pool: &Pool) -> Vec<(Checksum, Entry)> {
    let mut all = Vec::new();
    for table in ddt::load(pool.mos()).unwrap() {
        let mut of_table: BTreeMap<Key, Entry> = BTreeMap::new();
        for stored in &table.stored {
            let mut add = |entry: &Entry| {
                assert!(of_table.insert(entry.key, entry.clone()).is_none(), "in two ZAPs");
                let several = entry.phys.references() > 1;
                assert_eq!(several, stored.class == 1, "{entry:?} is in the wrong ZAP");
                Ok(())
            };
            table.for_each_stored(pool.mos(), stored, &mut add).unwrap();
        }
        for log in &table.logs {
            of_table.extend(log.entries.iter().map(|(key, entry)| (*key, entry.clone())));
        }
        all.extend(of_table.into_values().map(|entry| (table.checksum, entry)));
    }
    all
}

/// The tables count what a walk finds, histograms count the tables, and every block is accounted for.
fn check(engine: &Engine) -> BTreeMap<Block, u64> {
    for _ in 0..3 {
        engine.sync().unwrap();
    }
    let pool = engine.pool();
    let (mut counted, mut histogram) = (BTreeMap::new(), Histogram::default());
    for (checksum, entry) in entries(&pool) {
        assert!(histogram.count(&pool, &entry));
        for phys in entry.phys.iter().filter(|phys| phys.birth != 0) {
            assert!(phys.refcount > 0, "{entry:?} is not freed");
            let block = (checksum as u8, entry.key, phys.dvas[1], phys.birth);
            assert!(counted.insert(block, phys.refcount).is_none());
        }
    }
    let found = references(&pool);
    assert_eq!(counted, found);
    assert_eq!(ddt_stats::all(&pool).unwrap().1, histogram);
    account(&pool);
    found
}

/// Writes a file of these blocks.
fn write(fs: &FileSystem, name: &str, blocks: &[u64]) -> u64 {
    let ino = match fs.lookup(fs.root(), name.as_bytes()) {
        Ok(ino) => ino,
        Err(_) => fs.create(fs.root(), name.as_bytes(), &rig::NODE).unwrap().ino,
    };
    for (at, block) in blocks.iter().enumerate() {
        fs.write(ino, (at * RECORD) as u64, &rig::bytes(*block + 1, RECORD), false).unwrap();
    }
    ino
}

fn unlink(fs: &FileSystem, name: &str) {
    fs.unlink(fs.root(), name.as_bytes(), &|_| false).unwrap();
}

fn expect(fs: &FileSystem, name: &str, blocks: &[u64]) {
    let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    let mut data = vec![0; blocks.len() * RECORD + 1];
    assert_eq!(fs.read(ino, 0, &mut data).unwrap(), blocks.len() * RECORD, "{name}");
    for (at, block) in blocks.iter().enumerate() {
        let is = &data[at * RECORD..(at + 1) * RECORD];
        assert!(is == rig::bytes(*block + 1, RECORD), "{name}, block {at}");
    }
}

/// No group has to be written by a test, so that logs are flushed.
fn groups(engine: &Engine, n: usize) {
    for _ in 0..n {
        engine.write_config().unwrap();
    }
}

fn equal_blocks_are_stored_once(fast: bool) {
    let rig = Rig::new(SIZE);
    let engine = pool(&rig, "a", fast);
    let fs = open(&engine, "tank");
    let blocks: Vec<u64> = (0..64).collect();
    write(&fs, "one", &blocks);
    // Within one batch, and against what is on disk.
    write(&fs, "two", &[7; 20]);
    let found = check(&engine);
    assert_eq!((found.len(), found.values().max()), (64, Some(&21)));
    write(&fs, "three", &blocks);
    let found = check(&engine);
    assert_eq!((found.len(), found.values().min()), (64, Some(&2)));
    assert_eq!(engine.pool().features().is_active("fast_dedup"), fast);
    // What is overwritten, cut off and removed loses references; the others stay.
    write(&fs, "one", &[100, 101]);
    unlink(&fs, "three");
    check(&engine);
    groups(&engine, 30);
    check(&engine);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    if !fast {
        rig.judge();
    }
    let engine = rig.import();
    let fs = open(&engine, "tank");
    expect(&fs, "one", &[&[100, 101], &blocks[2..]].concat());
    expect(&fs, "two", &[7; 20]);
    write(&fs, "four", &blocks);
    check(&engine);
    for name in ["one", "two", "four"] {
        unlink(&fs, name);
    }
    assert!(check(&engine).is_empty());
    groups(&engine, 30);
    assert!(check(&engine).is_empty());
    let pool = engine.pool();
    assert!(ddt::load(pool.mos()).unwrap().is_empty(), "a table is left");
    assert!(!pool.features().is_active("fast_dedup"));
    // Entries that come back make a new table.
    write(&fs, "five", &[1, 1, 2]);
    assert_eq!(check(&engine).len(), 2);
    drop((fs, pool));
    engine.export(false).unwrap();
    drop(engine);
    if !fast {
        rig.judge();
    }
}

#[test]
fn equal_blocks_are_stored_once_in_tables_without_logs() {
    equal_blocks_are_stored_once(false);
}

#[test]
fn equal_blocks_are_stored_once_in_tables_with_logs() {
    equal_blocks_are_stored_once(true);
}

/// Every function, compared or not; copies that are added; zeros are holes.
fn every_kind(fast: bool) {
    let rig = Rig::new(SIZE);
    let engine = pool(&rig, "a b", fast);
    let blocks: Vec<u64> = (0..10).collect();
    let kinds = [
        "verify",
        "sha256",
        "sha256,verify",
        "sha512",
        "sha512,verify",
        "skein",
        "skein,verify",
        "edonr,verify",
        "blake3",
        "blake3,verify",
    ];
    for (n, kind) in kinds.into_iter().enumerate() {
        let name = format!("tank/f{n}");
        create(&engine, &name);
        set(&engine, &name, "dedup", kind);
        let fs = open(&engine, &name);
        write(&fs, "one", &blocks);
        write(&fs, "two", &blocks);
        let found = check(&engine);
        write(&fs, "three", &blocks);
        assert_eq!(check(&engine).len(), found.len(), "{kind}");
        for copies in ["2", "3", "1"] {
            set(&engine, &name, "copies", copies);
            write(&fs, &format!("copies {copies}"), &blocks[..4]);
            check(&engine);
        }
        expect(&fs, "copies 3", &blocks[..4]);
        set(&engine, &name, "compression", "lz4");
        let ino = write(&fs, "zeros", &[]);
        fs.write(ino, 0, &vec![0; 4 * RECORD], false).unwrap();
        fs.write(ino, 4 * K * 4, &b"text ".repeat(1000), false).unwrap();
        fs.write(ino, 8 * K * 4, &b"text ".repeat(1000), false).unwrap();
    }
    check(&engine);
    engine.export(false).unwrap();
    drop(engine);
    if !fast {
        // OpenZFS 2.1 does not know BLAKE3.
        let engine = rig.import();
        for n in [8, 9] {
            changes(&engine).destroy(&format!("tank/f{n}")).unwrap();
        }
        check(&engine);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge();
    }
}

#[test]
fn every_kind_of_table_without_logs() {
    every_kind(false);
}

#[test]
fn every_kind_of_table_with_logs() {
    every_kind(true);
}

/// Writes, overwrites, removals, snapshots, clones and destroying at random, with exports between.
fn random_work(seed: u64, fast: bool) {
    let rig = Rig::new(SIZE);
    let mut engine = pool(&rig, "a", fast);
    create(&engine, "tank/x");
    let mut random = Random(seed);
    let mut files: BTreeMap<(usize, u64), Vec<u64>> = BTreeMap::new();
    let sets = ["tank", "tank/x"];
    for round in 0..6 {
        let open: Vec<_> = sets.iter().map(|name| open(&engine, name)).collect();
        for _ in 0..25 {
            let (at, file) = (random.below(2) as usize, random.below(6));
            let name = format!("file {file}");
            if random.below(4) == 0 && files.contains_key(&(at, file)) {
                unlink(&open[at], &name);
                files.remove(&(at, file));
                continue;
            }
            let blocks: Vec<u64> = (0..random.below(30)).map(|_| random.below(40)).collect();
            write(&open[at], &name, &blocks);
            let known = files.entry((at, file)).or_default();
            let rest = known.split_off(blocks.len().min(known.len()));
            *known = [blocks, rest].concat();
            if random.below(3) == 0 {
                engine.sync().unwrap();
            }
        }
        match round {
            0 | 2 => snapshot(&engine, &format!("tank/x@s{round}")),
            1 => {
                let new = NewClone {
                    origin: "tank/x@s0".into(),
                    name: "tank/clone".into(),
                    props: vec![],
                };
                changes(&engine).clone_snapshot(&new).unwrap();
                let clone = crate::open(&engine, "tank/clone");
                write(&clone, "file 0", &[1, 2, 3, 39, 39]);
                drop(clone);
                engine.close(find(&engine.pool(), "tank/clone").ds_obj).unwrap();
            }
            3 => changes(&engine).destroy("tank/clone").unwrap(),
            4 => drop(changes(&engine).destroy_snapshots(&["tank/x@s0".into()], false)),
            _ => {}
        }
        check(&engine);
        for ((at, file), blocks) in &files {
            expect(&open[*at], &format!("file {file}"), blocks);
        }
        if round == 3 {
            // A crash: logs are read as they are on disk.
            let crashed = rig.copy();
            let engine = crashed.import();
            check(&engine);
            engine.export(false).unwrap();
        }
        drop(open);
        engine.export(false).unwrap();
        drop(engine);
        if !fast {
            rig.judge_blocks();
        }
        engine = rig.import();
    }
}

#[test]
fn random_work_without_logs() {
    random_work(1, false);
}

#[test]
fn random_work_with_logs() {
    random_work(2, true);
}

/// Entries of blocks with one reference are taken out, and their blocks are freed all the same.
#[test]
fn pruned_entries_are_not_found_and_not_leaked() {
    let rig = Rig::new(SIZE);
    let engine = pool(&rig, "a", true);
    let fs = open(&engine, "tank");
    write(&fs, "one", &[1, 2, 3, 4]);
    write(&fs, "two", &[1, 2]);
    check(&engine);
    // What is in a log is not pruned: it was changed just now.
    assert_eq!(engine.prune_dedup(Prune::Percent(100)).unwrap(), 0);
    groups(&engine, 30);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(engine.prune_dedup(Prune::Percent(100)).unwrap(), 2);
    engine.sync().unwrap();
    account(&engine.pool());
    let entries = |engine: &Engine| ddt_stats::all(&engine.pool()).unwrap().1.total().0[0];
    assert_eq!(entries(&engine), 2);
    // An equal block is a new one.
    write(&fs, "three", &[3]);
    engine.sync().unwrap();
    assert_eq!(entries(&engine), 3);
    unlink(&fs, "one");
    groups(&engine, 30);
    account(&engine.pool());
    expect(&fs, "two", &[1, 2]);
    expect(&fs, "three", &[3]);
    for name in ["two", "three"] {
        unlink(&fs, name);
    }
    assert!(check(&engine).is_empty());
}

/// Datasets that want more copies of the same blocks in one group add to those that are there.
#[test]
fn copies_that_are_added_in_the_same_group_leave_those_that_are_there() {
    let rig = Rig::new(SIZE);
    let engine = pool(&rig, "a", true);
    for (name, copies) in [("tank/one", "1"), ("tank/two", "2"), ("tank/three", "3")] {
        create(&engine, name);
        set(&engine, name, "copies", copies);
    }
    for round in 0..3 {
        let blocks: Vec<u64> = (round * 40..round * 40 + 20).collect();
        for name in ["tank/one", "tank/two", "tank/three"] {
            write(&open(&engine, name), &format!("f{round}"), &blocks);
        }
        engine.sync().unwrap();
    }
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    for round in 0..3 {
        let blocks: Vec<u64> = (round * 40..round * 40 + 20).collect();
        for name in ["tank/one", "tank/two", "tank/three"] {
            expect(&open(&engine, name), &format!("f{round}"), &blocks);
        }
    }
    account(&engine.pool());
    engine.export(false).unwrap();
}

/// Tables that are as large as they may be get no entries, and count the references of those that they have.
#[test]
fn a_quota_ends_deduplication_of_new_blocks() {
    let rig = Rig::new(SIZE);
    let engine = pool(&rig, "a", true);
    let fs = open(&engine, "tank");
    write(&fs, "one", &[1, 2, 3]);
    check(&engine);
    let quota = cenote_pool::props::PropChange::Number("dedup_table_quota", 1);
    engine.set_properties(vec![quota]).unwrap();
    write(&fs, "two", &[1, 4, 4]);
    let found = check(&engine);
    assert_eq!(found.values().copied().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2]));
    assert_eq!(found.len(), 3);
    expect(&fs, "two", &[1, 4, 4]);
}

/// A device that was away when a copy was added to an older block is given that copy.
#[test]
fn copies_that_are_added_while_a_device_is_away_are_resilvered() {
    let rig = Rig::new(SIZE);
    let engine = pool(&rig, "mirror a b", true);
    for (name, copies) in [("tank/one", "1"), ("tank/two", "2")] {
        create(&engine, name);
        set(&engine, name, "copies", copies);
    }
    let blocks: Vec<u64> = (0..40).collect();
    write(&open(&engine, "tank/one"), "f", &blocks);
    groups(&engine, 3);
    let b = engine.pool().store().vdevs().leaves()[1].guid();
    engine.take_out(b, TakeOut::OfflineForNow).unwrap();
    write(&open(&engine, "tank/two"), "f", &blocks);
    groups(&engine, 3);
    engine.restore(&[b], Restore::Offline).unwrap();
    finished(&engine);
    engine.scrub().unwrap();
    let scrub = finished(&engine);
    assert_eq!((scrub.errors, scrub.processed), (0, 0));
    account(&engine.pool());
    engine.export(false).unwrap();
}

/// Waits for the scan that is under way.
fn finished(engine: &Engine) -> ScanStatus {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let scan = engine.pool().status().unwrap().scan.unwrap();
        if !scan.is_running() {
            return scan;
        }
        assert!(Instant::now() < end, "{scan:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Entries whose ZAP cannot be read stay in the logs, and are stored once it can.
#[test]
fn entries_that_cannot_be_stored_wait_in_the_logs() {
    let (rig, devices) = (Rig::new(SIZE), Faulty::default());
    let engine = rig.create_on("a", 12, EngineOptions::default(), &devices);
    set(&engine, "tank", "dedup", "on");
    set(&engine, "tank", "compression", "off");
    let fs = open(&engine, "tank");
    write(&fs, "one", &(0..20).collect::<Vec<_>>());
    check(&engine);
    groups(&engine, 30);
    write(&fs, "two", &(10..40).collect::<Vec<_>>());
    engine.sync().unwrap();
    let pool = engine.pool();
    let tables = ddt::load(pool.mos()).unwrap();
    let zaps: Vec<u64> = tables.iter().flat_map(|t| t.stored.iter().map(|s| s.object)).collect();
    assert!(!zaps.is_empty());
    for zap in zaps {
        let zap = pool.mos().object(zap).unwrap();
        for blkid in 0..=zap.dnode().max_block {
            let bp = zap.block_pointer(0, blkid).unwrap();
            let at = |dva: Dva| dva.offset + START..dva.offset + START + dva.asize;
            bp.dvas().map(at).for_each(|range| devices.device(&rig, "a").fail(range));
        }
    }
    pool.store().drop_caches();
    groups(&engine, 60);
    assert_eq!(engine.suspended(), None);
    let logs = ddt::load(engine.pool().mos()).unwrap();
    assert_eq!(logs.iter().flat_map(|t| &t.logs).map(|log| log.entries.len()).sum::<usize>(), 30);
    devices.device(&rig, "a").repair();
    groups(&engine, 60);
    let logs = ddt::load(engine.pool().mos()).unwrap();
    assert!(logs.iter().flat_map(|t| &t.logs).all(|log| log.entries.is_empty()));
    check(&engine);
    for (name, blocks) in [("one", 0..20), ("two", 10..40)] {
        expect(&fs, name, &blocks.collect::<Vec<_>>());
        unlink(&fs, name);
    }
    assert!(check(&engine).is_empty());
    drop(fs);
    engine.export(false).unwrap();
}
