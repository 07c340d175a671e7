//! Random trees are sent and received: whole, interrupted and resumed, damaged. The trees are equal, or nothing is there.
//! OpenZFS's `zdb` judges the pool. `CENOTE_TORTURE=long` makes many rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod receiver;
mod rig;

use cenote_dsl::send::SendOptions;
use cenote_engine::Engine;
use cenote_engine::change::NewSnapshot;
use cenote_engine::change::receive::{NewReceive, ReceiveError};
use cenote_manifest_check::{TreeReader, ZplTree};
use cenote_zpl::{FileSystem, SetAttr, SetXattr, Settings};
use receiver::{changes, find, receive, resumed};
use rig::{NODE, Rig, bytes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// Changes files of the root directory at random.
fn scribble(fs: &FileSystem, random: &mut Random, changes: u64) {
    for _ in 0..changes {
        let name = format!("f{}", random.below(24));
        let there = fs.lookup(fs.root(), name.as_bytes());
        let ino = match there {
            Ok(ino) => ino,
            Err(_) => fs.create(fs.root(), name.as_bytes(), &NODE).unwrap().ino,
        };
        let offset = [0, random.below(300_000), random.below(8 << 20)][random.below(3) as usize];
        match random.below(8) {
            0 => drop(fs.unlink(fs.root(), name.as_bytes(), &|_| false).unwrap()),
            1 => {
                let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                fs.setattr(ino, &set).unwrap();
            }
            2 => {
                let value = bytes(random.next(), random.below(3000) as usize);
                fs.set_xattr(ino, b"user.note", &value, SetXattr::default()).unwrap();
            }
            3 => {
                let zeros = vec![0; 1 + random.below(200_000) as usize];
                fs.write(ino, offset, &zeros, false).map(drop).unwrap();
            }
            _ => {
                let data = bytes(random.next(), 1 + random.below(150_000) as usize);
                fs.write(ino, offset, &data, false).map(drop).unwrap();
            }
        }
    }
}

/// What is seen of a snapshot: attributes, contents and extended attributes by name.
fn seen(engine: &Engine, name: &str) -> BTreeMap<Vec<u8>, String> {
    let dataset = find(engine, name);
    let set = engine.pool().dsl().open_objset(&dataset).unwrap();
    let tree = ZplTree::new(FileSystem::open(set).unwrap());
    let mut all = BTreeMap::new();
    for name in tree.list(b".").unwrap() {
        let (stat, xattrs) = (tree.stat(&name).unwrap(), tree.xattrs(&name).unwrap());
        let (mut file, mut at, mut sum) = (tree.open(&name).unwrap(), 0, 0u64);
        let mut buf = vec![0; 1 << 20];
        loop {
            let n = file.read_at(at, &mut buf).unwrap();
            if n == 0 {
                break;
            }
            for byte in &buf[..n] {
                sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte) + 1);
            }
            at += n as u64;
        }
        all.insert(name, format!("{stat:?} {xattrs:?} {at} {sum}"));
    }
    all
}

struct Round<'a> {
    engine: &'a Arc<Engine>,
    random: Random,
}

impl Round<'_> {
    fn sent(&mut self, to: &str, from: Option<&str>, large: bool) -> Vec<u8> {
        let pool = self.engine.pool();
        let options = SendOptions {
            large_blocks: large,
            embedded: self.random.below(2) == 0,
            compressed: self.random.below(2) == 0,
            pool_embeds: true,
            pool_has_lz4: true,
            resume: None,
        };
        let from = from.map(|from| find(self.engine, from));
        let mut stream = Vec::new();
        pool.dsl().send(&find(self.engine, to), from.as_ref(), options, &mut stream).unwrap();
        stream
    }

    fn datasets(&self) -> Vec<String> {
        let pool = self.engine.pool();
        let root = pool.dsl().root().unwrap();
        let heads = pool.dsl().children(&root).unwrap();
        let snapshots = heads.iter().flat_map(|head| pool.dsl().snapshots(head).unwrap());
        snapshots.map(|s| s.name).chain(heads.iter().map(|h| h.name.clone())).collect()
    }

    /// A stream that is damaged or cut is refused, and leaves nothing.
    fn refused(&mut self, to: &str, stream: &[u8]) {
        let before = self.datasets();
        let new = NewReceive { to: to.into(), ..NewReceive::default() };
        let at = self.random.below(stream.len() as u64) as usize;
        let error = receive(self.engine, &new, &stream[..at]).unwrap_err();
        assert!(matches!(error, ReceiveError::Truncated), "{error}");
        let mut damaged = stream.to_vec();
        damaged[at] ^= 1 << self.random.below(8);
        assert!(receive(self.engine, &new, &damaged).is_err(), "damage at {at}");
        assert_eq!(self.datasets(), before);
    }

    /// Receives a stream in parts.
    fn in_parts(&mut self, to: &str, stream: &[u8]) {
        let new = NewReceive { to: to.into(), resumable: true, ..NewReceive::default() };
        let mut rest = stream.to_vec();
        for _ in 0..self.random.below(4) {
            let at = self.random.below(rest.len() as u64) as usize;
            if receive(self.engine, &new, &rest[..at]).is_ok() {
                return;
            }
            let pool = self.engine.pool();
            let Some(head) = pool.dsl().find(to.split('@').next().unwrap()).unwrap() else {
                continue;
            };
            let Some(token) = pool.dsl().resume_token(&head).unwrap() else { continue };
            rest = resumed(stream, token.object, token.offset);
        }
        receive(self.engine, &new, &rest).unwrap_or_else(|e| panic!("{to}: {e}"));
    }
}

#[test]
fn trees_are_equal_or_nothing_is_there() {
    let long = std::env::var_os("CENOTE_TORTURE").is_some_and(|v| v == "long");
    for seed in 1..=if long { 60u64 } else { 2 } {
        let rig = Rig::new(512 << 20);
        let engine = rig.create("a", 12);
        let mut round =
            Round { engine: &engine, random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
        let root = engine.pool().dsl().root().unwrap();
        let large = round.random.below(2) == 0;
        let fs =
            FileSystem::open_live(engine.live(root.ds_obj).unwrap(), Settings::default()).unwrap();
        let mut from: Option<String> = None;
        for step in 0..4 {
            let (changed, name) = (20 + round.random.below(60), format!("tank@s{step}"));
            scribble(&fs, &mut round.random, changed);
            let new = NewSnapshot { names: vec![name.clone()], props: Vec::new() };
            changes(&engine).snapshot(&new).unwrap();
            let stream = round.sent(&name, from.as_deref(), large);
            let to = format!("tank/to@s{step}");
            round.refused(&to, &stream);
            round.in_parts(&to, &stream);
            assert_eq!(seen(&engine, &name), seen(&engine, &to), "seed {seed}, step {step}");
            assert_eq!(find(&engine, &name).ds.guid, find(&engine, &to).ds.guid);
            // What was received is sent on.
            let on = format!("tank/on@s{step}");
            let start = from.as_ref().map(|_| format!("tank/to@s{}", step - 1));
            let stream = round.sent(&to, start.as_deref(), large);
            round.in_parts(&on, &stream);
            assert_eq!(seen(&engine, &name), seen(&engine, &on), "seed {seed}, step {step}");
            from = Some(name);
        }
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
    }
}
