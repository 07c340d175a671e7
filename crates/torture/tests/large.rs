//! Large files that are removed, truncated and punched: in many transaction groups, none of which frees
//! more than it may. A loss of power in between leaves a file that is shorter, or one without a name
//! that is freed when the file system is opened again; snapshots keep what they have. OpenZFS's `zdb`
//! judges what is left.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::Engine;
use cenote_engine::change::{Changes, NewSnapshot};
use cenote_engine::create::Redundancy;
use cenote_engine::tunables;
use cenote_torture::live::disk::{Image, Journal, Replay};
use cenote_torture::live::lab::{POOL, Plain, Shape, disks, judge, keep, lab};
use cenote_torture::live::{model, side_by_side};
use cenote_torture::long;
use cenote_zpl::{Allocate, FileSystem, NewNode, NodeKind, SetAttr, Settings};
use std::sync::Arc;

/// Blocks of the file, of 512 bytes: more than 80 indirect blocks.
const BLOCKS: usize = 12_000;
const SIZE: u64 = BLOCKS as u64 * 512;
/// Pointers that a transaction frees, and those after which its group is closed.
const PIECE: u64 = 300;
const GROUP: u64 = 2000;
/// What a pointer takes.
const POINTER: u64 = 128;
/// Where the file is truncated, and the hole that is punched.
const SHORT: u64 = 100_000;
const HOLE: std::ops::Range<u64> = 70_001..SIZE - 33_333;

const DISK: Shape = Shape { redundancy: Redundancy::Single, disks: 1, ashift: 9, size: 96 << 20 };

fn bytes() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(SIZE as usize);
    while out.len() < SIZE as usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out
}

fn open(engine: &Engine) -> Arc<FileSystem> {
    let root = engine.pool().dsl().root().unwrap();
    let settings = Settings { record_size: 512, ..Settings::default() };
    FileSystem::open_live(engine.live(root.ds_obj).unwrap(), settings).unwrap()
}

/// What a file holds.
fn contents(fs: &FileSystem, ino: u64) -> Vec<u8> {
    let mut data = vec![0; SIZE as usize + 1];
    let n = fs.read(ino, 0, &mut data).unwrap();
    assert_eq!(n as u64, fs.attr(ino).unwrap().size);
    data.truncate(n);
    data
}

/// What was done to the file, from the moment in which it was on disk.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    begin: usize,
}

fn tell(snapshot: bool, change: impl Fn(&FileSystem, u64)) -> Story {
    tunables::DIRTY_DATA_SYNC.set(GROUP * POINTER).unwrap();
    cenote_dmu::tunables::DELETE_BLOCKS.set(PIECE).unwrap();
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(DISK.size)];
    let engine = lab(&disks(&first, Some(&journal))).create(&DISK).unwrap();
    let fs = open(&engine);
    let new =
        NewNode { kind: NodeKind::File, mode: 0o644, umask: 0, uid: 0, gid: 0, keep_setgid: true };
    let ino = fs.create(fs.root(), b"large", &new).unwrap().ino;
    fs.write(ino, 0, &bytes(), false).unwrap();
    engine.sync().unwrap();
    if snapshot {
        let name = format!("{POOL}@before");
        let new = NewSnapshot { names: vec![name], props: Vec::new() };
        Changes::new(engine.clone(), Arc::new(Plain), None).snapshot(&new).unwrap();
    }
    let (begin, before) = (journal.len(), engine.pool().uberblock().txg);
    change(&fs, ino);
    fs.finish_freeing();
    engine.sync().unwrap();
    let groups: Vec<u64> = {
        let figures = engine.figures();
        figures.iter().filter(|f| f.txg > before).map(|f| f.dirty).collect()
    };
    // As many groups as it takes, none with much more than it may have.
    assert!(groups.len() as u64 >= BLOCKS as u64 / GROUP, "{groups:?}");
    assert!(groups.iter().sum::<u64>() > (BLOCKS as u64 - 300) * POINTER, "{groups:?}");
    let most = (GROUP + 2 * PIECE) * POINTER + (64 << 10);
    assert!(groups.iter().all(|dirty| *dirty <= most), "{groups:?}");
    drop(fs);
    engine.export(false).unwrap();
    Story { first, journal, begin }
}

/// Crashes at many points; `check` is given the file system, and brings what was begun to its end.
fn crash(story: &Story, snapshot: bool, check: impl Fn(&FileSystem) + Sync) {
    let count = if long() { 200 } else { 24 };
    let (begin, end) = (story.begin, story.journal.len());
    let mut replay = Replay::new(story.first.clone(), &story.journal);
    let points = (0..=count).map(|i| {
        let at = begin + (end - begin) * i / count;
        replay.advance(at);
        (i, replay.crash(at as u64))
    });
    side_by_side(points, |(i, images)| {
        let devices = disks(&images, None);
        let lab = lab(&devices);
        let engine = lab.import(&lab.find().expect("the pool is gone")).unwrap();
        let fs = open(&engine);
        fs.drain_unlinked().unwrap();
        fs.finish_freeing();
        check(&fs);
        drop(fs);
        engine.sync().unwrap();
        let pool = engine.pool();
        let root = pool.dsl().root().unwrap();
        assert!(root.ds.referenced < SIZE / 8, "point {i}: {}", root.ds.referenced);
        if snapshot {
            let before = pool.dsl().find(&format!("{POOL}@before")).unwrap().unwrap();
            let fs = model::open(&pool, &before).unwrap();
            let ino = fs.lookup(fs.root(), b"large").unwrap();
            assert!(contents(&fs, ino) == bytes(), "the snapshot lost bytes");
        }
        drop(pool);
        engine.export(false).unwrap();
        if i % 4 == 0 {
            let left: Vec<Image> = devices.iter().map(|d| d.image()).collect();
            let verdict = judge(&left);
            assert!(verdict.is_ok(), "{verdict:?}; images of the crash in {}", keep(&images));
        }
    });
}

fn remove(snapshot: bool) {
    let story = tell(snapshot, |fs, _| {
        fs.unlink(fs.root(), b"large", &|_| false).unwrap();
    });
    crash(&story, snapshot, |fs| {
        if let Ok(ino) = fs.lookup(fs.root(), b"large") {
            assert!(contents(fs, ino) == bytes(), "a file that has its name has lost bytes");
            fs.unlink(fs.root(), b"large", &|_| false).unwrap();
            fs.finish_freeing();
        }
        assert_eq!(fs.drain_unlinked().unwrap(), 0);
    });
}

#[test]
fn a_large_file_is_removed() {
    remove(false);
}

#[test]
fn a_large_file_is_removed_that_a_snapshot_has() {
    remove(true);
}

#[test]
fn a_large_file_is_truncated() {
    let truncate = |fs: &FileSystem, ino| {
        fs.setattr(ino, &SetAttr { size: Some(SHORT), ..SetAttr::default() }).unwrap();
    };
    let story = tell(true, truncate);
    crash(&story, true, |fs| {
        let ino = fs.lookup(fs.root(), b"large").unwrap();
        let now = contents(fs, ino);
        assert!(now.len() as u64 >= SHORT && bytes().starts_with(&now), "{} bytes", now.len());
        truncate(fs, ino);
        assert!(contents(fs, ino) == bytes()[..SHORT as usize]);
        // What was beyond does not come back.
        fs.setattr(ino, &SetAttr { size: Some(SIZE), ..SetAttr::default() }).unwrap();
        assert!(contents(fs, ino)[SHORT as usize..].iter().all(|b| *b == 0));
    });
}

#[test]
fn a_large_hole_is_punched() {
    let punch = |fs: &FileSystem, ino| {
        let (offset, len) = (HOLE.start, HOLE.end - HOLE.start);
        fs.allocate(ino, offset, len, Allocate::PunchHole).unwrap();
    };
    let story = tell(true, punch);
    crash(&story, true, |fs| {
        let ino = fs.lookup(fs.root(), b"large").unwrap();
        let (now, all) = (contents(fs, ino), bytes());
        let (start, end) = (HOLE.start as usize, HOLE.end as usize);
        assert!(now[..start] == all[..start] && now[end..] == all[end..]);
        let zeros = now[..end].iter().rev().take_while(|b| **b == 0).count().min(end - start);
        assert!(now[..end - zeros] == all[..end - zeros], "{zeros} zeros");
        punch(fs, ino);
        assert!(contents(fs, ino)[start..end].iter().all(|b| *b == 0));
    });
}
