//! Two replicas take turns as the source, each with a record size of its own: the other one has what was written, whatever
//! blocks it lies in. OpenZFS's `zdb` judges the pool. `CENOTE_TORTURE=long` makes many rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod receiver;
mod rig;

use cenote_dsl::send::SendOptions;
use cenote_engine::Engine;
use cenote_engine::change::NewSnapshot;
use cenote_engine::change::receive::NewReceive;
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, SetAttr, Settings};
use receiver::trees::{scribble, seen};
use receiver::{changes, find, receive, resumed};
use rig::Rig;
use std::sync::Arc;

/// Two file systems with the same contents.
struct Replicas {
    rig: Rig,
    engine: Arc<Engine>,
    /// Snapshots of them so far.
    snapshots: u64,
    options: SendOptions,
}

impl Replicas {
    /// `first` fills a file system with records of `record_size` bytes; both replicas are received from it.
    fn new(options: SendOptions, record_size: u64, first: impl FnOnce(&FileSystem)) -> Replicas {
        let rig = Rig::new(512 << 20);
        let engine = rig.create("a", 12);
        let mut replicas = Replicas { rig, engine, snapshots: 0, options };
        replicas.write("tank", record_size, first);
        let stream = replicas.sent("tank", None);
        for name in ["tank/a", "tank/b"] {
            replicas.receive(name, &stream);
        }
        replicas.snapshots += 1;
        replicas
    }

    /// Changes a file system, and takes a snapshot of it.
    fn write(&self, name: &str, record_size: u64, change: impl FnOnce(&FileSystem)) {
        let live = self.engine.live(find(&self.engine, name).ds_obj).unwrap();
        let fs =
            FileSystem::open_live(live, Settings { record_size, ..Settings::default() }).unwrap();
        change(&fs);
        drop(fs);
        let names = vec![format!("{name}@{}", self.snapshots)];
        changes(&self.engine).snapshot(&NewSnapshot { names, props: Vec::new() }).unwrap();
    }

    /// The stream of the newest snapshot.
    fn sent(&self, name: &str, from: Option<u64>) -> Vec<u8> {
        let snapshot = |number: u64| find(&self.engine, &format!("{name}@{number}"));
        let (to, from) = (snapshot(self.snapshots), from.map(snapshot));
        let mut stream = Vec::new();
        self.engine.pool().dsl().send(&to, from.as_ref(), self.options, &mut stream).unwrap();
        stream
    }

    fn to(&self, name: &str) -> NewReceive {
        let to = format!("{name}@{}", self.snapshots);
        NewReceive { to, resumable: true, ..NewReceive::default() }
    }

    fn receive(&self, name: &str, stream: &[u8]) {
        receive(&self.engine, &self.to(name), stream).unwrap_or_else(|e| panic!("{name}: {e}"));
    }

    /// One replica is changed, and sent to the other. `cut` says where the stream breaks off first.
    fn turn(
        &mut self,
        (source, target): (&str, &str),
        record_size: u64,
        change: impl FnOnce(&FileSystem),
        cut: impl FnOnce(usize) -> Option<usize>,
    ) {
        self.write(source, record_size, change);
        let stream = self.sent(source, Some(self.snapshots - 1));
        let mut rest = stream.clone();
        if let Some(at) = cut(stream.len()) {
            assert!(receive(&self.engine, &self.to(target), &stream[..at]).is_err());
            let head = find(&self.engine, target);
            if let Some(token) = self.engine.pool().dsl().resume_token(&head).unwrap() {
                rest = resumed(&stream, token.object, token.offset);
            }
        }
        self.receive(target, &rest);
        let last = |name: &str| seen(&self.engine, &format!("{name}@{}", self.snapshots));
        assert_eq!(last(source), last(target), "turn {}", self.snapshots);
        self.snapshots += 1;
    }

    fn end(self) {
        self.engine.export(false).unwrap();
        drop(self.engine);
        self.rig.judge_blocks();
    }
}

/// Writes a file from its beginning, as `open(O_TRUNC)` and write do.
fn put(fs: &FileSystem, name: &str, seed: u64, len: usize) {
    let ino = match fs.lookup(fs.root(), name.as_bytes()) {
        Ok(ino) => ino,
        Err(_) => fs.create(fs.root(), name.as_bytes(), &rig::NODE).unwrap().ino,
    };
    fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    fs.write(ino, 0, &rig::bytes(seed, len), false).unwrap();
}

/// Changes a part of a file.
fn change(fs: &FileSystem, name: &str, at: u64, len: usize) {
    let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    fs.write(ino, at, &rig::bytes(at + 7, len), false).unwrap();
}

const A_TO_B: (&str, &str) = ("tank/a", "tank/b");
const B_TO_A: (&str, &str) = ("tank/b", "tank/a");
const K: usize = 1 << 10;

#[test]
fn blocks_of_either_replica_keep_what_is_not_sent() {
    let whole = |_| None;
    for compressed in [false, true] {
        let options = SendOptions { compressed, pool_has_lz4: true, ..SendOptions::default() };
        let mut r = Replicas::new(options, 64 << 10, |fs| {
            for (name, len) in [("two", 128 * K), ("many", 1024 * K), ("small", 7000)] {
                put(fs, name, 1, len);
            }
        });
        // One block, eight, and one of an odd size, in place of several smaller ones.
        let larger = |fs: &FileSystem| {
            for (name, len) in [("two", 128 * K), ("many", 1024 * K), ("small", 7000)] {
                put(fs, name, 2, len);
            }
        };
        r.turn(B_TO_A, 128 << 10, larger, whole);
        let parts = |fs: &FileSystem| {
            change(fs, "two", 64 << 10, 64 * K);
            change(fs, "many", 192 << 10, 64 * K);
            // It grows behind its only block.
            change(fs, "small", 6000, 30_000);
        };
        r.turn(A_TO_B, 4 << 10, parts, whole);
        // Holes, and ends, that are no ends of blocks at the other one.
        let cut = |fs: &FileSystem| {
            for (name, size) in [("two", 70_000), ("many", 300_000), ("small", 9000)] {
                let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap();
                let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
                fs.setattr(ino, &set(size)).unwrap();
                fs.setattr(ino, &set(500_000)).unwrap();
            }
        };
        r.turn(A_TO_B, 4 << 10, cut, whole);
        r.turn(B_TO_A, 128 << 10, |fs| change(fs, "many", 250_000, 100_000), whole);
        r.end();
    }
}

#[test]
fn a_file_whose_block_grows_grows_at_the_receiver() {
    let mut r = Replicas::new(SendOptions::default(), 128 << 10, |fs| put(fs, "log", 1, 100));
    for (turn, len) in [(1, 3000), (2, 50_000), (3, 400_000)] {
        r.turn(A_TO_B, 128 << 10, |fs| change(fs, "log", turn * 90, len), |_| None);
    }
    let block_size = |name: &str| {
        let set = r.engine.pool().dsl().open_objset(&find(&r.engine, name)).unwrap();
        let ino = FileSystem::open(set.clone()).unwrap();
        let ino = ino.lookup(ino.root(), b"log").unwrap();
        set.object(ino).unwrap().dnode().block_size
    };
    assert_eq!((block_size("tank/a"), block_size("tank/b")), (128 << 10, 128 << 10));
    r.end();
}

#[test]
fn replicas_that_take_turns_stay_equal() {
    let long = std::env::var_os("CENOTE_TORTURE").is_some_and(|v| v == "long");
    for seed in 1..=if long { 60u64 } else { 3 } {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let large = random.below(2) == 0;
        let options = SendOptions {
            large_blocks: large,
            embedded: random.below(2) == 0,
            compressed: random.below(2) == 0,
            pool_embeds: true,
            pool_has_lz4: true,
            ..SendOptions::default()
        };
        let sizes = [512, 4 << 10, 64 << 10, 128 << 10, if large { 1 << 20 } else { 16 << 10 }];
        let pick = |random: &mut Random| *random.pick(&sizes).unwrap();
        let size = pick(&mut random);
        let mut r = Replicas::new(options, size, |fs| scribble(fs, &mut random, 30));
        for _ in 0..8 {
            let (way, size) = (random.below(2), pick(&mut random));
            let way = if way == 0 { A_TO_B } else { B_TO_A };
            let at = random.next();
            let cut = |len: usize| at.is_multiple_of(2).then_some((at % len as u64) as usize);
            let mut changes = Random(random.next());
            r.turn(way, size, |fs| scribble(fs, &mut changes, 15), cut);
        }
        r.end();
    }
}
