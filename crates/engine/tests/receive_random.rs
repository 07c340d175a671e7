//! Random trees are sent and received: whole, interrupted and resumed, damaged. The trees are equal, or nothing is there.
//! OpenZFS's `zdb` judges the pool. `CENOTE_TORTURE=long` makes many rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod receiver;
mod rig;

use cenote_dsl::send::SendOptions;
use cenote_engine::Engine;
use cenote_engine::change::NewSnapshot;
use cenote_engine::change::receive::{NewReceive, ReceiveError};
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, Settings};
use receiver::trees::{scribble, seen};
use receiver::{changes, find, receive, resumed};
use rig::Rig;
use std::sync::Arc;

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
            raw: false,
            resume: None,
            saved: false,
            redact: None,
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

    /// Receives a stream in parts, each of which ends early or is damaged somewhere. `origin`: that of a clone.
    fn in_parts(&mut self, to: &str, origin: Option<&str>, stream: &[u8]) {
        let mut new = NewReceive { to: to.into(), resumable: true, ..NewReceive::default() };
        new.origin = origin.map(str::to_string);
        let mut rest = stream.to_vec();
        for _ in 0..self.random.below(4) {
            let at = self.random.below(rest.len() as u64) as usize;
            match self.random.below(2) {
                0 => rest.truncate(at),
                _ => rest[at] ^= 1 << self.random.below(8),
            }
            assert!(receive(self.engine, &new, &rest).is_err(), "{to}: broken at {at}");
            rest = stream.to_vec();
            let pool = self.engine.pool();
            let Some(head) = pool.dsl().find(to.split('@').next().unwrap()).unwrap() else {
                continue;
            };
            let Some(token) = pool.dsl().resume_token(&head).unwrap() else { continue };
            rest = resumed(stream, token.object, token.offset);
            new.origin = None;
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
            round.in_parts(&to, None, &stream);
            assert_eq!(seen(&engine, &name), seen(&engine, &to), "seed {seed}, step {step}");
            assert_eq!(find(&engine, &name).ds.guid, find(&engine, &to).ds.guid);
            // What was received is sent on.
            let on = format!("tank/on@s{step}");
            let start = from.as_ref().map(|_| format!("tank/to@s{}", step - 1));
            let stream = round.sent(&to, start.as_deref(), large);
            round.in_parts(&on, None, &stream);
            assert_eq!(seen(&engine, &name), seen(&engine, &on), "seed {seed}, step {step}");
            if let Some(start) = start {
                // On an origin, from what it is and from nothing.
                let clone = format!("tank/clone{step}@s");
                round.in_parts(&clone, Some(&start), &stream);
                assert_eq!(seen(&engine, &name), seen(&engine, &clone), "seed {seed}, step {step}");
                let (full, stream) = (format!("tank/full{step}@s"), round.sent(&to, None, large));
                round.in_parts(&full, Some(&start), &stream);
                assert_eq!(seen(&engine, &name), seen(&engine, &full), "seed {seed}, step {step}");
            }
            from = Some(name);
        }
        drop(fs);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
    }
}
