//! OpenZFS's own engine (libzpool of the system's packages) receives what is sent from here, and leaves receives half-made
//! that go on here. OpenZFS's `zdb` judges the pool. Where the headers of the library are not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod receiver;
mod rig;

use cenote_dsl::send::SendOptions;
use cenote_engine::Engine;
use cenote_engine::change::NewSnapshot;
use cenote_engine::change::receive::NewReceive;
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, Settings};
use receiver::trees::{scribble, seen};
use receiver::{changes, find, receive, resumed};
use rig::Rig;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options of a stream: large blocks, embedded, compressed.
type Asked = (bool, bool, bool);

fn sent(
    engine: &Engine,
    to: &str,
    from: Option<&str>,
    (large, embedded, compressed): Asked,
) -> Vec<u8> {
    let options = SendOptions {
        large_blocks: large,
        embedded,
        compressed,
        pool_embeds: true,
        pool_has_lz4: true,
        raw: false,
        resume: None,
        saved: false,
        redact: None,
    };
    let from = from.map(|from| find(engine, from));
    let mut stream = Vec::new();
    engine.pool().dsl().send(&find(engine, to), from.as_ref(), options, &mut stream).unwrap();
    stream
}

/// A pool whose root file system was changed at random before each of its snapshots `one`, `two` and `three`.
fn source(rig: &Rig, seed: u64) -> Arc<Engine> {
    let engine = rig.create("a", 12);
    let root = engine.pool().dsl().root().unwrap();
    let fs = FileSystem::open_live(engine.live(root.ds_obj).unwrap(), Settings::default()).unwrap();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for name in ["one", "two", "three"] {
        scribble(&fs, &mut random, 60);
        let new = NewSnapshot { names: vec![format!("tank@{name}")], props: Vec::new() };
        changes(&engine).snapshot(&new).unwrap();
    }
    drop(fs);
    engine
}

/// Puts a stream into a file beside the pool.
fn keep(dir: &Path, name: &str, stream: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, stream).unwrap();
    path
}

fn same(engine: &Engine, ours: &str, theirs: &str) {
    assert_eq!(seen(engine, ours), seen(engine, theirs), "{theirs}");
    assert_eq!(find(engine, ours).ds.guid, find(engine, theirs).ds.guid, "{theirs}");
}

const ALL: [(&str, Asked); 4] = [
    ("plain", (false, false, false)),
    ("packed", (false, false, true)),
    ("embedded", (false, true, false)),
    ("all", (true, true, true)),
];

#[test]
fn openzfs_receives_what_is_sent() {
    let (rig, dir) = (Rig::new(512 << 20), tempfile::tempdir().unwrap());
    let engine = source(&rig, 7);
    let mut script = String::from("import\n");
    for (name, asked) in ALL {
        for (to, from) in [("one", None), ("two", Some("tank@one")), ("three", Some("tank@two"))] {
            let stream = sent(&engine, &format!("tank@{to}"), from, asked);
            let path = keep(dir.path(), &format!("{name}-{to}"), &stream);
            script += &format!("receive tank/{name}@{to} {}\n", path.display());
        }
    }
    let stream = sent(&engine, "tank@three", Some("tank@one"), ALL[3].1);
    let path = keep(dir.path(), "clone", &stream);
    script += &format!("receive-on tank/clone@three {} tank/plain@one\nexport\n", path.display());
    engine.export(false).unwrap();
    drop(engine);
    cenote_testpools::openzfs(rig.path(), "tank", &script);
    rig.judge_blocks();

    let engine = rig.import();
    for (name, _) in ALL {
        for snap in ["one", "two", "three"] {
            same(&engine, &format!("tank@{snap}"), &format!("tank/{name}@{snap}"));
        }
    }
    same(&engine, "tank@three", "tank/clone@three");
    // What OpenZFS received is sent on.
    for (name, asked) in ALL {
        for (snap, from) in [("one", None), ("two", Some(format!("tank/{name}@one")))] {
            let stream = sent(&engine, &format!("tank/{name}@{snap}"), from.as_deref(), asked);
            let new =
                NewReceive { to: format!("tank/{name}-back@{snap}"), ..NewReceive::default() };
            receive(&engine, &new, &stream).unwrap();
            same(&engine, &format!("tank@{snap}"), &new.to);
        }
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn what_openzfs_received_in_part_goes_on() {
    let (rig, dir) = (Rig::new(512 << 20), tempfile::tempdir().unwrap());
    let engine = source(&rig, 11);
    let mut script = String::from("import\n");
    let mut streams = Vec::new();
    for (name, asked) in ALL {
        let full = sent(&engine, "tank@one", None, asked);
        let inc = sent(&engine, "tank@two", Some("tank@one"), asked);
        // One dataset that is new, and one that gets a further snapshot.
        let whole = keep(dir.path(), &format!("{name}-whole"), &full);
        let (a, b) = (full.len() * 2 / 3, inc.len() / 2);
        let a = keep(dir.path(), &format!("{name}-a"), &full[..a]);
        let b = keep(dir.path(), &format!("{name}-b"), &inc[..b]);
        script += &format!(
            "receive-some tank/{name}-new@one {}\nreceive tank/{name}@one {}\n\
             receive-some tank/{name}@two {}\n",
            a.display(),
            whole.display(),
            b.display()
        );
        streams.push((format!("tank/{name}-new@one"), full, "tank@one"));
        streams.push((format!("tank/{name}@two"), inc, "tank@two"));
    }
    engine.export(false).unwrap();
    drop(engine);
    cenote_testpools::openzfs(rig.path(), "tank", &(script + "export\n"));

    let engine = rig.import();
    for (to, stream, ours) in &streams {
        let head = find(&engine, to.split('@').next().unwrap());
        let token =
            engine.pool().dsl().resume_token(&head).unwrap().unwrap_or_else(|| panic!("{to}"));
        assert!(token.object > 0 && token.bytes > 0, "{to}: {token:?}");
        let rest = resumed(stream, token.object, token.offset);
        let new = NewReceive { to: to.clone(), resumable: true, ..NewReceive::default() };
        receive(&engine, &new, &rest).unwrap_or_else(|e| panic!("{to}: {e}"));
        same(&engine, ours, to);
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
