//! Pools and file systems that are filled until nothing fits any more, emptied and filled again:
//! changes are refused, but never in the middle of a transaction group. OpenZFS's `zdb` judges the
//! pools. Where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::live::Cost;
use cenote_dmu::write::WriteError;
use cenote_dsl::write::space::{set_quota, set_refquota};
use cenote_engine::change::{Kind, NewDataset, NewSnapshot};
use cenote_engine::{Engine, SpaceCheck, SyncContext};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_zpl::{Error, FileSystem, Settings};
use rig::{NODE, Rig, bytes, changes, open};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Files by number, with their sizes.
type Files = BTreeMap<u64, usize>;

/// Writes files of the sizes that `size` says until there is no space.
fn fill(fs: &FileSystem, files: &mut Files, size: &dyn Fn(u64) -> usize) -> Error {
    let first = files.keys().next_back().map_or(0, |n| n + 1);
    for n in first.. {
        let name = format!("file {n}");
        let file = match fs.create(fs.root(), name.as_bytes(), &NODE) {
            Ok(file) => file,
            Err(e) => return e,
        };
        let data = bytes(n, size(n));
        let mut done = 0;
        while done < data.len() {
            let end = data.len().min(done + (1 << 20));
            if let Err(e) = fs.write(file.ino, done as u64, &data[done..end], false) {
                files.insert(n, done);
                return e;
            }
            done = end;
        }
        files.insert(n, done);
    }
    unreachable!()
}

fn empty(fs: &FileSystem, files: &mut Files, gone: &dyn Fn(u64) -> bool) {
    let numbers: Vec<u64> = files.keys().copied().filter(|n| gone(*n)).collect();
    for n in numbers {
        fs.unlink(fs.root(), format!("file {n}").as_bytes(), &|_| false).unwrap();
        files.remove(&n);
    }
}

fn check(fs: &FileSystem, files: &Files) {
    for (n, len) in files {
        let ino = fs.lookup(fs.root(), format!("file {n}").as_bytes()).unwrap();
        let mut data = vec![0; len + 1];
        assert_eq!(fs.read(ino, 0, &mut data).unwrap(), *len, "file {n}");
        data.truncate(*len);
        assert!(data == bytes(*n, *len), "file {n}");
    }
}

fn no_space(e: &Error) {
    assert!(e.to_string().contains("space"), "{e}");
}

fn rounds(engine: &Engine) -> Files {
    let fs = open(engine);
    let mut files = Files::new();
    let sizes: [&dyn Fn(u64) -> usize; 4] = [
        &|_| 3 << 20,
        &|n| 2600 + (n as usize * 37) % 9000,
        &|n| if n % 50 == 0 { 1 << 20 } else { (n as usize * 511) % 20_000 },
        &|_| 130_000,
    ];
    for (round, size) in sizes.into_iter().enumerate() {
        no_space(&fill(&fs, &mut files, size));
        assert!(files.len() > 4, "round {round}: {}", files.len());
        assert_eq!(engine.suspended(), None, "round {round}");
        // It stays full.
        engine.sync().unwrap();
        no_space(&fill(&fs, &mut files, &|_| 8 << 20));
        check(&fs, &files);
        empty(&fs, &mut files, &|n| round == 1 || n % 3 != round as u64 % 3);
    }
    engine.sync().unwrap();
    check(&fs, &files);
    files
}

fn life(line: &str, ashift: u64) {
    let rig = Rig::new(64 << 20);
    let engine = rig.create(line, ashift);
    let files = rounds(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let engine = rig.import();
    check(&open(&engine), &files);
    engine.export(false).unwrap();
    rig.judge_blocks();
}

#[test]
fn single_devices() {
    life("a", 9);
}

#[test]
fn mirrors() {
    life("mirror a b", 12);
}

#[test]
fn raidz() {
    life("raidz1 a b c", 12);
}

#[test]
fn raidz_of_three_parities() {
    life("raidz3 a b c d e", 12);
}

/// Each group takes a good part of what is left, so that there are not many, though the last ones are
/// small: at the very end each has one change, as long as anything is left.
#[test]
fn the_last_bytes_go_in_few_groups() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let fs = open(&engine);
    let mut files = Files::new();
    let before = engine.pool().uberblock().txg;
    no_space(&fill(&fs, &mut files, &|_| 4000));
    let groups = engine.pool().uberblock().txg - before;
    println!("{groups} groups, {} files", files.len());
    assert!(groups < 350, "{groups} groups");
    empty(&fs, &mut files, &|_| true);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// What adds something is refused before the space that is kept back is touched, what alters
/// something while half of that is left.
#[test]
fn a_full_pool_takes_few_changes() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let rooms = || {
        let checks = [SpaceCheck::Normal, SpaceCheck::Reserved, SpaceCheck::Nothing];
        let room = move |c: &mut SyncContext<'_>| {
            checks.into_iter().map(|check| c.has_room(check, 5)).collect::<Result<Vec<_>, _>>()
        };
        engine.sync_task(room).unwrap()
    };
    assert_eq!(rooms(), [true; 3]);
    let fs = open(&engine);
    let mut files = Files::new();
    no_space(&fill(&fs, &mut files, &|_| 3 << 20));
    no_space(&fill(&fs, &mut files, &|_| 4000));
    engine.sync().unwrap();
    assert_eq!(rooms(), [false, true, true]);
    empty(&fs, &mut files, &|_| true);
    drop(fs);
    for _ in 0..4 {
        engine.sync_task(|_| Ok(())).unwrap();
    }
    assert_eq!(rooms(), [true; 3]);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn special_vdevs() {
    life("a special b", 12);
}

#[test]
fn a_quota() {
    const QUOTA: u64 = 10 << 20;
    let rig = Rig::new(128 << 20);
    let engine = rig.create("raidz1 a b c", 12);
    let dir = engine.pool().dsl().root().unwrap().dir_obj;
    engine.sync_task(move |ctx| set_quota(&mut ctx.tx, dir, QUOTA)).unwrap();
    let fs = open(&engine);
    let mut files = Files::new();
    for round in 0..3 {
        let size = |n: u64| if round == 1 { 5000 + n as usize % 5000 } else { 700_000 };
        let refused = fill(&fs, &mut files, &size);
        assert!(refused.to_string().contains("uota"), "{refused}");
        engine.sync().unwrap();
        let used = engine.pool().dsl().root().unwrap().dir.used;
        assert!((QUOTA * 3 / 4..QUOTA * 5 / 4).contains(&used), "round {round}: {used}");
        check(&fs, &files);
        empty(&fs, &mut files, &|n| n % 4 != round);
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// What a file system refers to has a limit, not what its snapshots hold besides; at the limit files
/// can be deleted.
#[test]
fn a_refquota() {
    const QUOTA: u64 = 10 << 20;
    const EDQUOT: i32 = 122;
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let root = || engine.pool().dsl().root().unwrap();
    let head = root().ds_obj;
    engine.sync_task(move |ctx| set_refquota(&mut ctx.tx, head, QUOTA)).unwrap();
    let changes = changes(&engine);
    let fs = open(&engine);
    let mut files = Files::new();
    for round in 1..=3 {
        let refused = fill(&fs, &mut files, &|n| if n % 3 == 0 { 5000 } else { 700_000 });
        assert_eq!(refused.errno(), EDQUOT, "{refused}");
        engine.sync().unwrap();
        let referenced = root().ds.referenced;
        assert!((QUOTA * 3 / 4..=QUOTA * 5 / 4).contains(&referenced), "{round}: {referenced}");
        check(&fs, &files);
        let names = vec![format!("tank@{round}")];
        changes.snapshot(&NewSnapshot { names, props: Vec::new() }).unwrap();
        // All of it stays in the snapshot, and makes room all the same.
        empty(&fs, &mut files, &|_| true);
        engine.sync().unwrap();
        assert!(root().dir.used > round * QUOTA * 3 / 4, "{round}: {}", root().dir.used);
    }
    drop((fs, changes));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// What OpenZFS leaves for files of so many bytes of metaslabs, `log` of which are for the log
/// (`spa_get_slop_space`): all but a 32nd of the rest, at most 128 GiB, less the log up to half of it;
/// but 128 MiB, or half of a pool that is smaller than twice that.
fn usable(metaslabs: u64, log: u64) -> u64 {
    let space = metaslabs - log;
    let share = (space >> 5).min(128 << 30);
    space - (share - log.min(share / 2)).max((space / 2).min(128 << 20))
}

/// As much is kept back as OpenZFS keeps, and set aside for logs.
#[test]
fn what_is_kept_back_is_what_openzfs_keeps() {
    for size in [64 << 20, 200 << 20, 1 << 30, 20 << 30, 1 << 40, 6 << 40] {
        let rig = Rig::new(size);
        let engine = rig.create("a", 12);
        // What is freed meanwhile comes back.
        (0..4).for_each(|_| engine.sync_task(|_| Ok(())).unwrap());
        let told = |pool: &Pool| {
            let root = pool.dsl().root().unwrap();
            pool.dsl().available(&root).unwrap().unwrap() + root.dir.used
        };
        let writing = told(&engine.pool());
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
        let found = discover(&[rig.path().to_path_buf()]);
        let options = ImportOptions { readonly: true, ..ImportOptions::default() };
        let reading = told(&Pool::import(&found[0], &options).unwrap());
        let config = cenote_testpools::zdb(rig.path(), "tank", &["-C"]);
        let number = |name: &str| {
            let value = config.lines().find_map(|l| l.trim().strip_prefix(name)).unwrap();
            value.parse::<u64>().unwrap()
        };
        let shift = number("metaslab_shift: ");
        let count = number("asize: ") >> shift;
        let log = if count > 64 { 1 << shift } else { 0 };
        for told in [writing, reading] {
            let off = usable(count << shift, log).checked_sub(told);
            assert!(
                off.is_some_and(|off| off < 128 << 10),
                "{size}, log of {log}: {told}, {off:?}"
            );
        }
    }
}

/// Each has room for its change, but not all of them together.
#[test]
fn many_who_write_at_once_do_not_overfill_a_pool() {
    let rig = Rig::new(96 << 20);
    let engine = rig.create("raidz1 a b c", 12);
    let fs = open(&engine);
    std::thread::scope(|scope| {
        for n in 0..48u64 {
            let fs = &fs;
            scope.spawn(move || {
                let name = format!("file {n}");
                let Ok(file) = fs.create(fs.root(), name.as_bytes(), &NODE) else { return };
                let data = bytes(n, 4 << 20);
                let writes =
                    (0u64..).map(|i| fs.write(file.ino, i * data.len() as u64, &data, false));
                no_space(&writes.filter_map(Result::err).next().unwrap());
            });
        }
    });
    engine.sync().unwrap();
    assert_eq!(engine.suspended(), None);
    for n in 0..48 {
        fs.unlink(fs.root(), format!("file {n}").as_bytes(), &|_| false).unwrap();
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// Changes that are refused, and such as change nothing, take no room, also where their group has nothing else and so is never written.
#[test]
fn what_changes_nothing_takes_no_room() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let fs = open(&engine);
    let live = engine.live(engine.pool().dsl().root().unwrap().ds_obj).unwrap();
    let cost = Cost { write: 1 << 20, objects: 64, frees: false };
    for n in 0..2000 {
        let refused: Result<(), WriteError> = live.transact(cost, |os, _| {
            os.free(fs.root())?;
            Err(WriteError::NoSpace)
        });
        assert!(matches!(refused, Err(WriteError::NoSpace)), "change {n}: {refused:?}");
    }
    // What is made, and changes nothing, counts up to the end of its group, though that has nothing to be written.
    for _ in 0..2000 {
        live.transact(cost, |_, _| Ok::<_, WriteError>(())).unwrap();
    }
    let data = bytes(1, 1 << 20);
    let file = fs.create(fs.root(), b"file", &NODE).unwrap();
    for n in 0..20 {
        fs.write(file.ino, n << 20, &data, false).unwrap();
    }
    drop((fs, live));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// What is reserved for a file system can be written to it when the rest of the pool is full: all of
/// it, and without taking what is reserved for others.
#[test]
fn what_is_reserved_is_there_when_the_rest_is_full() {
    const RESERVED: u64 = 40 << 20;
    let rig = Rig::new(512 << 20);
    let engine = rig.create("a", 12);
    let changes = changes(&engine);
    let kept = RESERVED.to_string();
    for (name, props) in [
        ("tank/own", vec![("refreservation", &kept)]),
        ("tank/above", vec![("reservation", &kept)]),
        ("tank/above/below", vec![]),
        ("tank/other", vec![("refreservation", &kept)]),
    ] {
        let props = props.into_iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
        let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props };
        changes.create(&new).unwrap();
    }
    let at = |name: &str| {
        let found = engine.pool().dsl().find(name).unwrap().unwrap();
        FileSystem::open_live(engine.live(found.ds_obj).unwrap(), Settings::default()).unwrap()
    };
    let rest = open(&engine);
    let mut files = Files::new();
    no_space(&fill(&rest, &mut files, &|_| 3 << 20));
    no_space(&fill(&rest, &mut files, &|_| 4000));
    engine.sync().unwrap();
    for name in ["tank/own", "tank/above/below"] {
        let fs = at(name);
        let mut own = Files::new();
        no_space(&fill(&fs, &mut own, &|n| if n < 20 { 1 << 20 } else { 100_000 }));
        let written: usize = own.values().sum();
        assert!(written as u64 > RESERVED * 9 / 10, "{name}: {written} bytes");
        engine.sync().unwrap();
        check(&fs, &own);
    }
    // No other dataset took the third one's reservation, and no other dataset got space.
    no_space(&fill(&rest, &mut files, &|_| 1 << 20));
    let other = engine.pool().dsl().find("tank/other").unwrap().unwrap();
    let available = engine.pool().dsl().available(&other).unwrap().unwrap();
    assert!(available > RESERVED * 9 / 10, "{available} bytes");
    let mut own = Files::new();
    no_space(&fill(&at("tank/other"), &mut own, &|_| 300_000));
    assert!(own.values().sum::<usize>() as u64 > RESERVED * 8 / 10);
    check(&rest, &files);
    drop((rest, changes));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A file of many blocks is freed in the background, by many transactions. A thread that writes to the full pool
/// meanwhile waits for the space instead of being refused.
#[test]
fn room_that_a_large_file_leaves_is_waited_for() {
    let rig = Rig::new(96 << 20);
    let engine = rig.create("a", 9);
    let root = engine.pool().dsl().root().unwrap();
    let settings = Settings { record_size: 512, ..Settings::default() };
    let fs = FileSystem::open_live(engine.live(root.ds_obj).unwrap(), settings).unwrap();
    let large = fs.create(fs.root(), b"large", &NODE).unwrap().ino;
    let data = bytes(1, 1 << 20);
    let mut size = 0;
    let full = loop {
        match fs.write(large, size, &data, false) {
            Ok(n) => size += n as u64,
            Err(e) => break e,
        }
    };
    no_space(&full);
    assert!(size / 512 > cenote_dmu::tunables::DELETE_BLOCKS.default, "{size} bytes");
    fs.unlink(fs.root(), b"large", &|_| false).unwrap();
    // At once, whether or not the thread that frees it has begun.
    assert!(engine.live(root.ds_obj).unwrap().is_freeing());
    let mut files = Files::new();
    no_space(&fill(&fs, &mut files, &|_| 1 << 20));
    assert!(files.values().sum::<usize>() as u64 > size / 2, "{} of {size} bytes", files.len());
    check(&fs, &files);
    fs.finish_freeing();
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// The root file system with small records and properties.
fn small_records(
    engine: &Arc<Engine>,
    record_size: u64,
    props: &[(&str, &str)],
) -> Arc<FileSystem> {
    let changes = changes(engine);
    let props: Vec<_> = props.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    assert!(changes.set("tank", &props).unwrap().is_empty());
    let root = engine.pool().dsl().root().unwrap();
    let settings = Settings { record_size, ..Settings::default() };
    FileSystem::open_live(engine.live(root.ds_obj).unwrap(), settings).unwrap()
}

/// Writes pieces to the end of a file until there is no space; how many bytes it has then.
fn fill_one(fs: &FileSystem, ino: u64, piece: usize) -> u64 {
    let mut size = fs.attr(ino).unwrap().size;
    let data = bytes(ino, piece);
    loop {
        match fs.write(ino, size, &data, false) {
            Ok(n) => size += n as u64,
            Err(e) => {
                no_space(&e);
                return size;
            }
        }
    }
}

/// Blocks that take many times their size: small records with copies, or on wide RAID-Z. The pool gets
/// full by pieces of `piece` bytes, is never suspended, and holds `least` percent of what it has.
fn small_blocks(
    (line, ashift, size): (&str, u64, u64),
    (record_size, copies): (u64, &str),
    piece: usize,
    least: u64,
) {
    let rig = Rig::new(size);
    let engine = rig.create(line, ashift);
    let fs = small_records(&engine, record_size, &[("compression", "off"), ("copies", copies)]);
    let first = fs.create(fs.root(), b"first", &NODE).unwrap().ino;
    fs.write(first, 0, &bytes(1, 5000), false).unwrap();
    engine.sync().unwrap();
    let full = fs.create(fs.root(), b"full", &NODE).unwrap().ino;
    let written = fill_one(&fs, full, piece);
    engine.sync().unwrap();
    assert_eq!(engine.suspended(), None);
    let root = engine.pool().dsl().root().unwrap();
    let left = engine.pool().dsl().available(&root).unwrap().unwrap();
    let has = root.dir.used + left;
    let share = root.dir.used * 100 / has;
    println!("{line}: {written} bytes, {} of {has} used, {left} left", root.dir.used);
    assert!(share >= least, "{share}%");
    fs.unlink(fs.root(), b"full", &|_| false).unwrap();
    fs.finish_freeing();
    let again = fs.create(fs.root(), b"again", &NODE).unwrap().ino;
    fs.write(again, 0, &bytes(2, 5000), false).unwrap();
    engine.sync().unwrap();
    let mut data = vec![0; 5000];
    for (ino, seed) in [(first, 1), (again, 2)] {
        assert_eq!(fs.read(ino, 0, &mut data).unwrap(), 5000);
        assert!(data == bytes(seed, 5000));
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn small_blocks_with_three_copies() {
    small_blocks(("a", 12, 300 << 20), (512, "3"), 8 << 10, 95);
}

#[test]
fn small_blocks_with_three_copies_in_large_writes() {
    small_blocks(("a", 12, 300 << 20), (512, "3"), 1 << 20, 80);
}

#[test]
fn small_blocks_on_wide_raidz() {
    small_blocks(("raidz2 a b c d e f", 12, 96 << 20), (512, "1"), 64 << 10, 95);
}

#[test]
fn small_blocks_on_small_sectors() {
    small_blocks(("a", 9, 96 << 20), (512, "2"), 64 << 10, 95);
}

/// Single small writes all over a large file make an indirect block dirty each, which is much larger: in
/// a full pool they are refused before these find no space.
#[test]
fn small_writes_far_apart_in_a_full_pool() {
    let rig = Rig::new(512 << 20);
    let engine = rig.create("a", 9);
    let fs = small_records(&engine, 512, &[("compression", "off")]);
    let ino = fs.create(fs.root(), b"file", &NODE).unwrap().ino;
    let size = fill_one(&fs, ino, 1 << 20);
    engine.sync().unwrap();
    let root = engine.pool().dsl().root().unwrap();
    println!("{size} bytes, {} used", root.dir.used);
    let (mut done, mut at) = (0, 0u64);
    for n in 0..3000u64 {
        at = (at + 7_368_787) % (size - 512);
        match fs.write(ino, at, &bytes(n, 300), false) {
            Ok(_) => done += 1,
            Err(e) => no_space(&e),
        }
    }
    println!("{done} writes of 3000");
    engine.sync().unwrap();
    assert_eq!(engine.suspended(), None);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A file that fits is written over in place, in large pieces, though what is left of a quota, or of the
/// pool beside what is reserved for others, is less than a piece.
#[test]
fn overwriting_in_place_needs_no_more_space() {
    const PIECE: usize = 1 << 20;
    let rig = Rig::new(512 << 20);
    let engine = rig.create("a", 12);
    let changes = changes(&engine);
    let limits = [("quota", 20 << 20), ("refquota", 20 << 20), ("above", 0), ("pool", 0)];
    for (name, limit) in limits {
        let props = vec![("compression".to_string(), "off".to_string())];
        let name = format!("tank/{name}");
        let new = NewDataset { name: name.clone(), kind: Kind::Filesystem, props };
        changes.create(&new).unwrap();
        let set = |name: &str, prop: &str, value: u64| {
            let list = [(prop.to_string(), value.to_string())];
            assert!(changes.set(name, &list).unwrap().is_empty(), "{name} {prop}");
        };
        let mut within = name.clone();
        match name.rsplit('/').next().unwrap() {
            "above" => {
                within = format!("{name}/below");
                let new =
                    NewDataset { name: within.clone(), kind: Kind::Filesystem, props: vec![] };
                changes.create(&new).unwrap();
                set(&name, "quota", 20 << 20);
            }
            "pool" => {
                // All but 20 MiB are reserved for another file system.
                engine.sync().unwrap();
                let root = engine.pool().dsl().root().unwrap();
                let left = engine.pool().dsl().available(&root).unwrap().unwrap();
                set("tank/quota", "quota", left);
                set("tank/quota", "reservation", left - (20 << 20));
            }
            prop => set(&name, prop, limit),
        }
        let found = engine.pool().dsl().find(&within).unwrap().unwrap();
        let live = engine.live(found.ds_obj).unwrap();
        let fs = FileSystem::open_live(live, Settings::default()).unwrap();
        let ino = fs.create(fs.root(), b"file", &NODE).unwrap().ino;
        for at in 0..19u64 {
            fs.write(ino, at << 20, &bytes(at, PIECE), false).unwrap();
        }
        engine.sync().unwrap();
        for at in 0..19u64 {
            let done = fs.write(ino, at << 20, &bytes(at + 100, PIECE), false);
            done.unwrap_or_else(|e| panic!("{within}, piece {at}: {e}"));
        }
        // More does not fit, and not much more was let in.
        let size = fill_one_or_quota(&fs, ino);
        assert!((19 << 20..22 << 20).contains(&size), "{within}: {size}");
        engine.sync().unwrap();
        let mut data = vec![0; PIECE];
        for at in 0..19u64 {
            fs.read(ino, at << 20, &mut data).unwrap();
            assert!(data == bytes(at + 100, PIECE), "{within}, piece {at}");
        }
        fs.unlink(fs.root(), b"file", &|_| false).unwrap();
        fs.finish_freeing();
        engine.sync().unwrap();
    }
    assert_eq!(engine.suspended(), None);
    drop(changes);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// Appends until a quota or the pool is full; how long the file is then.
fn fill_one_or_quota(fs: &FileSystem, ino: u64) -> u64 {
    const EDQUOT: i32 = 122;
    const ENOSPC: i32 = 28;
    let mut size = fs.attr(ino).unwrap().size;
    loop {
        match fs.write(ino, size, &bytes(size, 128 << 10), false) {
            Ok(n) => size += n as u64,
            Err(e) => {
                assert!([EDQUOT, ENOSPC].contains(&e.errno()), "{e}");
                return size;
            }
        }
    }
}

/// All of a quota can be used: it ends with what is on disk, not with what changes may take.
#[test]
fn a_quota_does_not_end_early() {
    const QUOTA: u64 = 15 << 20;
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let root = engine.pool().dsl().root().unwrap();
    let (dir, head) = (root.dir_obj, root.ds_obj);
    let fs = open(&engine);
    for refquota in [false, true] {
        engine
            .sync_task(move |ctx| match refquota {
                true => set_refquota(&mut ctx.tx, head, QUOTA),
                false => set_quota(&mut ctx.tx, dir, QUOTA),
            })
            .unwrap();
        let ino = fs.create(fs.root(), b"file", &NODE).unwrap().ino;
        fill_one_or_quota(&fs, ino);
        engine.sync().unwrap();
        let root = engine.pool().dsl().root().unwrap();
        let used = if refquota { root.ds.referenced } else { root.dir.used };
        assert!((QUOTA..QUOTA + (2 << 20)).contains(&used), "{refquota}: {used}");
        fs.unlink(fs.root(), b"file", &|_| false).unwrap();
        fs.finish_freeing();
        engine.sync().unwrap();
        engine.sync_task(move |ctx| set_quota(&mut ctx.tx, dir, 0)).unwrap();
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
