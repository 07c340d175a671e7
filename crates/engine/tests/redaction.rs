//! Redaction bookmarks and redacted streams: streams that are made here are OpenZFS's, byte for byte, lists have what OpenZFS's
//! have, and each engine receives the other's. OpenZFS's `zdb` judges the pool. Where the headers of its library are not installed these tests
//! fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod receiver;
mod rig;

use cenote_dsl::redaction::RedactError;
use cenote_dsl::send::{Resume, SendOptions};
use cenote_dsl::traverse::Mark;
use cenote_dsl::write::{DslWriteError, bookmarks, redaction};
use cenote_engine::Engine;
use cenote_engine::Holder;
use cenote_engine::change::receive::NewReceive;
use cenote_engine::change::{ChangeError, NewClone, NewRedaction, NewSnapshot, RedactRefused};
use cenote_format::dmu::DmuType;
use cenote_format::redaction::RedactBlocks;
use cenote_format::stream::{Record, TO_END, feature};
use cenote_testpools::{Random, records};
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use receiver::trees::{scribble, seen};
use receiver::{changes, find, receive};
use rig::Rig;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Records of a stream, with what follows each.
type Records = [(Record, Vec<u8>)];

fn snapshot(engine: &Arc<Engine>, name: &str) {
    let new = NewSnapshot { names: vec![name.into()], props: Vec::new() };
    changes(engine).snapshot(&new).unwrap();
}

fn change(engine: &Engine, name: &str, random: &mut Random, count: u64) {
    let live = engine.live(find(engine, name).ds_obj).unwrap();
    let fs = FileSystem::open_live(live.clone(), Settings::default()).unwrap();
    scribble(&fs, random, count);
    drop((fs, live));
    engine.close(find(engine, name).ds_obj).unwrap();
}

/// A pool with `tank@one`, the later `tank@two`, and two clones of the first, which were changed and have snapshots `x`.
fn source(rig: &Rig, seed: u64) -> Arc<Engine> {
    let engine = rig.create("a", 12);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    change(&engine, "tank", &mut random, 150);
    snapshot(&engine, "tank@one");
    for name in ["tank/c1", "tank/c2"] {
        let (origin, name) = ("tank@one".into(), name.into());
        changes(&engine).clone_snapshot(&NewClone { origin, name, props: Vec::new() }).unwrap();
    }
    for name in ["tank/c1", "tank/c2", "tank"] {
        change(&engine, name, &mut random, 60);
    }
    for name in ["tank/c1@x", "tank/c2@x", "tank@two"] {
        snapshot(&engine, name);
    }
    engine
}

fn redact(engine: &Arc<Engine>, of: &str, mark: &str, by: &[&str]) -> Result<(), RedactRefused> {
    let by = by.iter().map(|name| (*name).to_string()).collect();
    let new = NewRedaction { snapshot: of.into(), bookmark: mark.into(), by };
    changes(engine).redact(&new, &Holder::Reader("test".into()), &|| false)
}

fn list_of(engine: &Engine, mark: &str) -> u64 {
    find(engine, mark).bookmark.unwrap().redaction
}

fn entries(engine: &Engine, mark: &str) -> Vec<RedactBlocks> {
    let pool = engine.pool();
    let list = pool.dsl().redaction_list(list_of(engine, mark)).unwrap();
    assert!(list.is_complete(), "{mark}: {list:?}");
    let mut entries = pool.dsl().redaction_entries(list_of(engine, mark), None).unwrap();
    let mut all = Vec::new();
    while let Some(entry) = entries.read_next().unwrap() {
        all.push(entry);
    }
    assert_eq!(all.len() as u64, list.entries);
    all
}

/// The blocks that a list has, with their size.
fn listed(engine: &Engine, mark: &str) -> BTreeSet<(u64, u64, u64)> {
    let all = entries(engine, mark);
    all.iter().flat_map(|e| (e.first..e.end()).map(|blkid| (e.object, blkid, e.size))).collect()
}

/// A list has what OpenZFS's has. It has more where the number of an object was used again: OpenZFS looks at the blocks
/// that the later object has a place for only, so that the rest of the earlier one would be sent.
fn contains(engine: &Engine, (ours, theirs): (&str, &str), by: &[&str]) {
    let (ours, theirs) = (listed(engine, ours), listed(engine, theirs));
    assert!(theirs.is_subset(&ours), "{:?}", theirs.difference(&ours).collect::<Vec<_>>());
    for by in by {
        let set = engine.pool().dsl().open_objset(&find(engine, by)).unwrap();
        for (object, blkid, _) in ours.difference(&theirs) {
            let is_there = set.object(*object).is_ok_and(|o| o.dnode().max_block >= *blkid);
            assert!(!is_there, "{by}: block {blkid} of object {object}");
        }
    }
}

fn sent(engine: &Engine, to: &str, from: Option<&str>, mark: Option<&str>) -> Vec<u8> {
    let redact = mark.map(|mark| list_of(engine, mark));
    let options = SendOptions { pool_has_lz4: true, redact, ..SendOptions::default() };
    let from = from.map(|from| find(engine, from));
    let mut stream = Vec::new();
    engine.pool().dsl().send(&find(engine, to), from.as_ref(), options, &mut stream).unwrap();
    stream
}

/// The records of a stream, but for what the library of OpenZFS cannot say: it knows no versions of file systems.
fn comparable(stream: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let mut all = records(stream);
    if let Some((Record::Begin(begin), _)) = all.first_mut() {
        begin.features &= !feature::SA_SPILL;
    }
    assert!(matches!(all.pop(), Some((Record::End { .. }, _))));
    all
}

/// The records of a stream of `to`, block by block: object, block, and what is said of it. `last` says whether a block is the last
/// one of its object.
fn blocks(engine: &Engine, to: &str, all: &[(Record, Vec<u8>)]) -> Vec<(u64, u64, bool, String)> {
    let set = engine.pool().dsl().open_objset(&find(engine, to)).unwrap();
    let mut out = Vec::new();
    for (record, payload) in all {
        let (name, object, offset, length) = match record {
            Record::Free { length: TO_END, .. } => {
                out.push((0, 0, false, format!("{record:?}")));
                continue;
            }
            Record::Free { object, offset, length } => ("free", *object, *offset, *length),
            Record::Redact { object, offset, length } => ("redact", *object, *offset, *length),
            Record::Write(write) => ("write", write.object, write.offset, write.logical_size),
            _ => {
                out.push((0, 0, false, format!("{record:?} {payload:?}")));
                continue;
            }
        };
        // A list of another snapshot may name what is not there.
        let Ok(known) = set.object(object) else {
            out.push((0, 0, false, format!("{record:?}")));
            continue;
        };
        let (size, last) = (known.dnode().block_size, known.dnode().max_block);
        for blkid in offset / size..(offset + length) / size {
            let said = format!("{name} {size} {payload:?}");
            out.push((object, blkid, blkid == last, said));
        }
    }
    out
}

/// From a redaction bookmark OpenZFS before 2.4.4 does not send the last block of an object, if that was left out.
fn same_but_for_last_blocks(engine: &Engine, to: &str, (ours, theirs): (&Records, &Records)) {
    let (mut ours, theirs) = (blocks(engine, to, ours), blocks(engine, to, theirs));
    let known: BTreeSet<_> = theirs.iter().map(|(object, blkid, ..)| (*object, *blkid)).collect();
    ours.retain(|(object, blkid, last, _)| !*last || known.contains(&(*object, *blkid)));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(ours == theirs, "{to}: {:?} {:?}", (ours.0, ours.1), (theirs.0, theirs.1));
    }
    assert_eq!(ours.len(), theirs.len(), "{to}");
}

/// Streams: what is sent, from what, redacted by what.
const STREAMS: [(&str, Option<&str>, Option<&str>); 9] = [
    ("tank@one", None, Some("both")),
    ("tank@one", None, Some("first")),
    ("tank@one", None, Some("later")),
    ("tank/c1@x", Some("tank#both"), None),
    ("tank@two", Some("tank#both"), None),
    ("tank@two", Some("tank#both"), Some("first")),
    ("tank@two", Some("tank@one"), Some("later")),
    ("tank@one", Some("tank#both"), None),
    ("tank@one", Some("tank#both"), Some("later")),
];
const MARKS: [(&str, &[&str]); 3] = [
    ("both", &["tank/c1@x", "tank/c2@x"]),
    ("first", &["tank/c1@x"]),
    ("later", &["tank/c1@x", "tank/c2@x", "tank@two"]),
];

fn compared(seed: u64) {
    let (rig, dir) = (Rig::new(512 << 20), tempfile::tempdir().unwrap());
    let engine = source(&rig, seed);
    for (mark, by) in MARKS {
        redact(&engine, "tank@one", &format!("our-{mark}"), by).unwrap();
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let mut script = String::from("import\n");
    for (mark, by) in MARKS {
        script += &format!("redact tank@one {mark} {}\n", by.join(" "));
    }
    let path = |n: usize| -> PathBuf { dir.path().join(format!("theirs-{n}")) };
    for (n, (to, from, mark)) in STREAMS.iter().enumerate() {
        let (from, mark) = (from.unwrap_or("-"), mark.unwrap_or("-"));
        script += &format!("send {to} {} {from} {mark}\n", path(n).display());
    }
    cenote_testpools::openzfs(rig.path(), "tank", &(script + "export\n"));

    let engine = rig.import();
    let mut most = 0;
    for (mark, by) in MARKS {
        let theirs = entries(&engine, &format!("tank#{mark}"));
        let ours = format!("tank#our-{mark}");
        contains(&engine, (&ours, &format!("tank#{mark}")), by);
        most = most.max(theirs.len());
        let list = |name: &str| engine.pool().dsl().redaction_list(list_of(&engine, name)).unwrap();
        let known = list(&format!("tank#{mark}"));
        assert_eq!((list(&ours).last, &list(&ours).snaps), (known.last, &known.snaps));
        assert_eq!(known.snaps.len(), by.len());
    }
    assert!(most > 5, "{most}");
    for (n, (to, from, mark)) in STREAMS.iter().enumerate() {
        // By OpenZFS's lists, as ours may have more.
        let mark = mark.map(|mark| format!("tank#{mark}"));
        let stream = sent(&engine, to, *from, mark.as_deref());
        let theirs = fs::read(path(n)).unwrap();
        let (ours, theirs) = (comparable(&stream), comparable(&theirs));
        if *from == Some("tank#both") {
            assert_eq!(ours[0], theirs[0]);
            same_but_for_last_blocks(&engine, to, (&ours, &theirs));
        } else {
            for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                assert!(ours == theirs, "{to}, {at}: {:?}\n{:?}", ours.0, theirs.0);
            }
            assert_eq!(ours.len(), theirs.len(), "{to} {from:?} {mark:?}");
        }
        let left_out = ours.iter().filter(|(record, _)| matches!(record, Record::Redact { .. }));
        assert_eq!(left_out.count() > 0, mark.is_some() && n != 8, "{to} {from:?} {mark:?}");
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

#[test]
fn lists_and_streams_are_those_of_openzfs() {
    for seed in 1..4 {
        compared(seed);
    }
}

/// An object number that is used again: nothing of the object that had it in the snapshot is sent, whatever is there now.
#[test]
fn nothing_of_an_object_whose_number_was_used_again_is_sent() {
    const BLOCK: u64 = 128 << 10;
    let rig = Rig::new(1 << 30);
    let engine = rig.create("a", 12);
    let with = |name: &str, settings: Settings, work: &dyn Fn(&FileSystem)| {
        let live = engine.live(find(&engine, name).ds_obj).unwrap();
        let fs = FileSystem::open_live(live.clone(), settings).unwrap();
        work(&fs);
        drop((fs, live));
        engine.close(find(&engine, name).ds_obj).unwrap();
    };
    // Of one level and of two, and small ones side by side.
    let secrets = [("few", 3), ("many", 2000), ("a", 2), ("b", 2), ("c", 2), ("d", 2), ("e", 2)];
    with("tank", Settings::default(), &|fs| {
        for (name, blocks) in secrets {
            let file = fs.create(fs.root(), name.as_bytes(), &rig::NODE).unwrap();
            for n in 0..blocks {
                let data = vec![b's'; BLOCK as usize];
                fs.write(file.ino, n * BLOCK, &data, false).map(drop).unwrap();
            }
        }
    });
    snapshot(&engine, "tank@one");
    let (origin, name) = ("tank@one".into(), "tank/clean".into());
    changes(&engine).clone_snapshot(&NewClone { origin, name, props: Vec::new() }).unwrap();
    let numbers = |name: &str| {
        let live = engine.pool().dsl().open_objset(&find(&engine, name)).unwrap();
        let fs = FileSystem::open(live).unwrap();
        secrets.map(|(name, _)| fs.lookup(fs.root(), name.as_bytes()).unwrap())
    };
    let old = numbers("tank@one");
    with("tank/clean", Settings::default(), &|fs| {
        for (name, _) in secrets {
            fs.unlink(fs.root(), name.as_bytes(), &|_| false).unwrap();
        }
    });
    engine.sync().unwrap();
    // The numbers of the large ones are used again by a file of one block and a directory; those of the others by dnodes of two
    // slots, or not at all.
    let made = std::cell::RefCell::new(Vec::new());
    with("tank/clean", Settings::default(), &|fs| {
        let file = fs.create(fs.root(), b"new", &rig::NODE).unwrap();
        fs.write(file.ino, 0, b"ok", false).map(drop).unwrap();
        let dir = NewNode { kind: NodeKind::Dir, ..rig::NODE };
        let dir = fs.create(fs.root(), b"dir", &dir).unwrap();
        made.borrow_mut().extend([file.ino, dir.ino]);
    });
    let large = Settings { dnode_size: 1024, ..Settings::default() };
    with("tank/clean", large, &|fs| {
        for name in ["x", "y"] {
            let file = fs.create(fs.root(), name.as_bytes(), &rig::NODE).unwrap();
            made.borrow_mut().push(file.ino);
        }
    });
    let made = made.into_inner();
    assert_eq!(made[..2], old[..2]);
    assert!(made[2..].iter().all(|ino| old.contains(ino) && old.contains(&(ino + 1))), "{made:?}");
    snapshot(&engine, "tank/clean@x");
    let spare: Vec<_> = made[2..].iter().map(|ino| ino + 1).collect();
    let set = engine.pool().dsl().open_objset(&find(&engine, "tank/clean@x")).unwrap();
    assert!(spare.iter().all(|ino| set.object(*ino).is_err()), "{spare:?}");

    redact(&engine, "tank@one", "mark", &["tank/clean@x"]).unwrap();
    let of = |number: u64, blocks: u64| (0..blocks).map(move |blkid| (number, blkid, BLOCK));
    let all = old.iter().zip(secrets).flat_map(|(number, (_, blocks))| of(*number, blocks));
    assert_eq!(listed(&engine, "tank#mark"), all.collect());
    let stream = sent(&engine, "tank@one", None, Some("tank#mark"));
    assert!(!stream.windows(64).any(|bytes| bytes == [b's'; 64]), "a secret is in the stream");
    // It is the same list if it goes on within the objects.
    let whole = entries(&engine, "tank#mark");
    let (snap, by) = (find(&engine, "tank@one"), [find(&engine, "tank/clean@x")]);
    for entry in &whole {
        let (from, mut rest) = (Mark { object: entry.object, blkid: entry.first }, Vec::new());
        let pool = engine.pool();
        let found = pool.dsl().find_redaction((&snap, &by), Some(from), &|| false, |found| {
            rest.extend(found.entry);
            Ok::<(), RedactError>(())
        });
        found.unwrap();
        let known = whole.iter().filter(|e| (e.object, e.first) >= (entry.object, entry.first));
        assert_eq!(rest, known.copied().collect::<Vec<_>>());
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// What is received of a stream of `tank`, and whether it is redacted.
fn received(engine: &Arc<Engine>, to: &str, origin: Option<&str>, stream: &[u8]) {
    let origin = origin.map(String::from);
    receive(engine, &NewReceive { to: to.into(), origin, ..NewReceive::default() }, stream)
        .unwrap();
}

fn redacted_by(engine: &Engine, name: &str) -> Option<Vec<u64>> {
    engine.pool().dsl().redacted_by(&find(engine, name)).unwrap()
}

/// Where data is left out there is a hole; all else is as it was.
fn holes(engine: &Engine, whole: &str, redacted: &str, mark: &str) {
    let open = |name: &str| engine.pool().dsl().open_objset(&find(engine, name)).unwrap();
    let (whole, redacted) = (open(whole), open(redacted));
    let entries = entries(engine, mark);
    let (mut number, mut holes) = (0, 0);
    while let Some(next) = whole.next_object(number + 1).unwrap() {
        number = next;
        let (a, b) = (whole.object(number).unwrap(), redacted.object(number).unwrap());
        let kind = a.dnode().kind;
        if kind != DmuType::PLAIN_FILE_CONTENTS {
            continue;
        }
        for blkid in 0..=a.dnode().max_block {
            let left_out =
                entries.iter().any(|e| e.object == number && (e.first..e.end()).contains(&blkid));
            let (a, b) = (a.block(blkid).unwrap(), b.block(blkid).unwrap());
            if left_out {
                assert!(b.is_none(), "block {blkid} of object {number}");
                holes += 1;
            } else {
                let bytes = |block: Option<cenote_store::Block>| {
                    block.map(|block| block.data.to_vec()).filter(|d| d.iter().any(|b| *b != 0))
                };
                assert_eq!(bytes(a), bytes(b), "block {blkid} of object {number}");
            }
        }
    }
    assert!(holes > 0);
}

/// Ours are received by OpenZFS, and OpenZFS's here.
#[test]
fn redacted_streams_go_both_ways() {
    let (rig, dir) = (Rig::new(512 << 20), tempfile::tempdir().unwrap());
    let engine = source(&rig, 9);
    redact(&engine, "tank@one", "both", MARKS[0].1).unwrap();
    let streams = [
        ("one", sent(&engine, "tank@one", None, Some("tank#both"))),
        ("x", sent(&engine, "tank/c1@x", Some("tank#both"), None)),
        ("two", sent(&engine, "tank@two", Some("tank#both"), None)),
        ("later", sent(&engine, "tank@two", Some("tank@one"), None)),
    ];
    let path = |name: &str| dir.path().join(name);
    for (name, stream) in &streams {
        fs::write(path(name), stream).unwrap();
    }
    let stream = |name: &str| &streams.iter().find(|(known, _)| *known == name).unwrap().1[..];
    received(&engine, "tank/ours@one", None, stream("one"));
    received(&engine, "tank/ours-x@x", Some("tank/ours@one"), stream("x"));
    // What is not redacted, and none of the redaction snapshots, does not go on what is.
    let new = NewReceive { to: "tank/ours@two".into(), ..NewReceive::default() };
    let refused = receive(&engine, &new, stream("later")).unwrap_err().to_string();
    assert!(refused.contains("redacted by other snapshots"), "{refused}");
    received(&engine, "tank/ours@two", None, stream("two"));
    let both = redacted_by(&engine, "tank/ours@one").unwrap();
    assert_eq!(both, MARKS[0].1.iter().map(|name| find(&engine, name).ds.guid).collect::<Vec<_>>());
    // The incremental streams brought what was left out.
    for whole in ["tank/ours", "tank/ours@two", "tank/ours-x", "tank/ours-x@x"] {
        assert_eq!(redacted_by(&engine, whole), None, "{whole}");
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();

    let script = [
        format!("receive tank/theirs@one {}", path("one").display()),
        format!("receive-on tank/theirs-x@x {} tank/theirs@one", path("x").display()),
        "bookmark tank/theirs@one tank/theirs#mark".into(),
        "bookmark tank/ours@one tank/ours#mark".into(),
        format!("receive tank/theirs@two {}", path("two").display()),
        format!("send tank/theirs@one {} - -", path("redacted").display()),
        format!("send tank/theirs@two {} tank/theirs@one -", path("from-redacted").display()),
        "destroy tank/ours-x@x".into(),
    ];
    let script = format!("import\n{}\nexport\n", script.join("\n"));
    cenote_testpools::openzfs(rig.path(), "tank", &script);
    rig.judge_blocks();

    let engine = rig.import();
    assert_eq!(redacted_by(&engine, "tank/theirs@one"), Some(both));
    assert_eq!(redacted_by(&engine, "tank/theirs@two"), None);
    for (ours, theirs) in [("ours@one", "theirs@one"), ("ours@two", "theirs@two")] {
        let both = [ours, theirs].map(|name| seen(&engine, &format!("tank/{name}")));
        assert_eq!(both[0], both[1], "{theirs}");
    }
    assert_eq!(seen(&engine, "tank/theirs-x@x"), seen(&engine, "tank/c1@x"));
    assert_eq!(seen(&engine, "tank/theirs@two"), seen(&engine, "tank@two"));
    holes(&engine, "tank@one", "tank/ours@one", "tank#both");
    // A bookmark of what is redacted has a list of no blocks; so has one that is made here.
    changes(&engine).bookmark("tank/ours@one", "tank/ours#here").unwrap();
    for mark in ["tank/theirs#mark", "tank/ours#mark", "tank/ours#here"] {
        assert_eq!(entries(&engine, mark), []);
    }
    // One of a redaction bookmark has none.
    changes(&engine).bookmark("tank#both", "tank#plain").unwrap();
    assert_eq!(list_of(&engine, "tank#plain"), 0);
    // What is redacted is sent on as OpenZFS does.
    for (to, from, theirs) in
        [("one", None, "redacted"), ("two", Some("tank/theirs@one"), "from-redacted")]
    {
        let ours = sent(&engine, &format!("tank/theirs@{to}"), from, None);
        assert!(comparable(&ours) == comparable(&fs::read(path(theirs)).unwrap()), "{theirs}");
    }
    let again = sent(&engine, "tank/ours@one", None, None);
    received(&engine, "tank/again@one", None, &again);
    assert_eq!(redacted_by(&engine, "tank/again@one"), redacted_by(&engine, "tank/ours@one"));
    assert_eq!(seen(&engine, "tank/again@one"), seen(&engine, "tank/ours@one"));
    // A clone of what is redacted is redacted as well.
    let (origin, name) = ("tank/again@one".into(), "tank/clone".into());
    changes(&engine).clone_snapshot(&NewClone { origin, name, props: Vec::new() }).unwrap();
    assert_eq!(redacted_by(&engine, "tank/clone"), redacted_by(&engine, "tank/again@one"));
    // What is redacted is no ground for a redaction.
    snapshot(&engine, "tank/clone@x");
    let refused = redact(&engine, "tank/again@one", "no", &["tank/clone@x"]).unwrap_err();
    assert!(refused.to_string().starts_with("attempted to redact redacted dataset"), "{refused}");
    let marks = ["tank/theirs#mark", "tank/ours#here", "tank#both"].map(String::from);
    changes(&engine).destroy_bookmarks(&marks).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A list that was interrupted is gone on with by the same snapshots, and is the same in the end.
#[test]
fn a_list_goes_on_where_it_was_interrupted() {
    let rig = Rig::new(512 << 20);
    let engine = source(&rig, 5);
    redact(&engine, "tank@one", "whole", MARKS[0].1).unwrap();
    let whole = entries(&engine, "tank#whole");
    // A list that is being read is not destroyed.
    let holder = Holder::Reader("test".into());
    let hold = engine.hold_list(list_of(&engine, "tank#whole"), holder).unwrap();
    let destroy = || changes(&engine).destroy_bookmarks(&["tank#whole".into()]);
    assert!(matches!(destroy(), Err(ChangeError::Busy)));
    drop(hold);
    destroy().unwrap();
    assert!(engine.pool().dsl().find("tank#whole").unwrap().is_none());
    for (n, kept) in [0, 1, whole.len() / 2, whole.len() - 1].into_iter().enumerate() {
        let mark = format!("part{n}");
        let guids = MARKS[0].1.iter().map(|name| find(&engine, name).ds.guid).collect::<Vec<_>>();
        let (head, snap) = (find(&engine, "tank").ds_obj, find(&engine, "tank@one").ds_obj);
        // Ours say where the entry begins that is not in the list; OpenZFS's lie within it.
        let within = if n % 2 == 0 { whole[kept].count - 1 } else { 0 };
        let some = whole[..kept].to_vec();
        let next = (whole[kept].object, whole[kept].first + within);
        let name = mark.clone();
        engine
            .sync_task(move |context| {
                let tx = &mut context.tx;
                let made = bookmarks::create_redacted(tx, head, &name, (snap, &guids))?;
                let known = redaction::read(tx, made.list)?;
                redaction::append(tx, made.list, &known, &some, next)?;
                // Who knows nothing of that does not go on with it.
                let other = redaction::append(tx, made.list, &known, &some, next);
                assert!(kept == 0 || matches!(other, Err(DslWriteError::Busy)), "{other:?}");
                Ok(())
            })
            .unwrap();
        // No stream is made of it, and it is not taken for one of other snapshots.
        let redact_by = Some(list_of(&engine, &format!("tank#{mark}")));
        let options = SendOptions { redact: redact_by, ..SendOptions::default() };
        let dsl_send =
            engine.pool().dsl().send(&find(&engine, "tank@one"), None, options, &mut Vec::new());
        assert!(dsl_send.unwrap_err().to_string().contains("incomplete"));
        let other = redact(&engine, "tank@one", &mark, MARKS[1].1).unwrap_err();
        assert!(matches!(other, RedactRefused::Mismatch), "{other}");
        redact(&engine, "tank@one", &mark, MARKS[0].1).unwrap();
        assert_eq!(entries(&engine, &format!("tank#{mark}")), whole, "{kept}");
        let again = redact(&engine, "tank@one", &mark, MARKS[0].1).unwrap_err();
        assert!(matches!(again, RedactRefused::Exists(_)), "{again}");
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A list that was begun for one snapshot is not gone on with for another one.
#[test]
fn a_list_is_of_one_snapshot() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let mut random = Random(11);
    for name in ["tank@one", "tank@two"] {
        change(&engine, "tank", &mut random, 40);
        snapshot(&engine, name);
    }
    let (origin, name) = ("tank@two".into(), "tank/c".into());
    changes(&engine).clone_snapshot(&NewClone { origin, name, props: Vec::new() }).unwrap();
    change(&engine, "tank/c", &mut random, 40);
    snapshot(&engine, "tank/c@x");
    let by = [find(&engine, "tank/c@x").ds.guid];
    let (head, snap) = (find(&engine, "tank").ds_obj, find(&engine, "tank@one").ds_obj);
    let begun = engine.sync_task(move |context| {
        bookmarks::create_redacted(&mut context.tx, head, "mark", (snap, &by)).map(drop)
    });
    begun.unwrap();
    let other = redact(&engine, "tank@two", "mark", &["tank/c@x"]).unwrap_err();
    assert!(matches!(other, RedactRefused::Mismatch), "{other}");
    redact(&engine, "tank@one", "mark", &["tank/c@x"]).unwrap();
    let other = redact(&engine, "tank@two", "mark", &["tank/c@x"]).unwrap_err();
    assert!(matches!(other, RedactRefused::Mismatch), "{other}");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// It ends soon also where nothing is found, and so does a walk that has no end for the others.
#[test]
fn a_redaction_is_interrupted() {
    let rig = Rig::new(256 << 20);
    let engine = source(&rig, 8);
    let by = MARKS[0].1.iter().map(|name| (*name).to_string()).collect();
    let new = NewRedaction { snapshot: "tank@one".into(), bookmark: "mark".into(), by };
    redact(&engine, "tank@one", "alone", MARKS[0].1).unwrap();
    // One call later each time.
    let mut rounds = 0;
    for most in 0.. {
        let asked = std::cell::Cell::new(0);
        let stops = || asked.replace(asked.get() + 1) >= most;
        match changes(&engine).redact(&new, &Holder::Reader("test".into()), &stops) {
            Ok(()) => break,
            Err(RedactRefused::Interrupted) => rounds += 1,
            Err(e) => panic!("{e}"),
        }
        assert_eq!(asked.get(), most + 1, "it is asked once more after it said so");
        let list = engine.pool().dsl().redaction_list(list_of(&engine, "tank#mark")).unwrap();
        assert!(!list.is_complete() && !engine.is_held(find(&engine, "tank@one").ds_obj));
    }
    assert!(rounds > 1, "{rounds}");
    assert_eq!(entries(&engine, "tank#mark"), entries(&engine, "tank#alone"));
    // Nothing is in both: the place does not matter.
    for (name, file) in [("tank/d1", "left"), ("tank/d2", "right")] {
        let (origin, name) = ("tank@two".into(), name.to_string());
        let new = NewClone { origin, name: name.clone(), props: Vec::new() };
        changes(&engine).clone_snapshot(&new).unwrap();
        let live = engine.live(find(&engine, &name).ds_obj).unwrap();
        let fs = FileSystem::open_live(live.clone(), Settings::default()).unwrap();
        fs.create(fs.root(), file.as_bytes(), &rig::NODE).unwrap();
        drop((fs, live));
        engine.close(find(&engine, &name).ds_obj).unwrap();
        snapshot(&engine, &format!("{name}@x"));
    }
    let by = ["tank/d1@x", "tank/d2@x"].map(String::from).to_vec();
    let new = NewRedaction { snapshot: "tank@two".into(), bookmark: "none".into(), by };
    let refused = changes(&engine).redact(&new, &Holder::Reader("test".into()), &|| true);
    assert!(matches!(refused, Err(RedactRefused::Interrupted)));
    redact(&engine, "tank@two", "none", &["tank/d1@x", "tank/d2@x"]).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A list has one maker: a second one is refused, and the list is that of the first.
#[test]
fn a_list_has_one_maker() {
    let rig = Rig::new(512 << 20);
    let engine = source(&rig, 7);
    redact(&engine, "tank@one", "alone", MARKS[0].1).unwrap();
    let by = MARKS[0].1.iter().map(|name| (*name).to_string()).collect();
    let new = NewRedaction { snapshot: "tank@one".into(), bookmark: "mark".into(), by };
    // The first one finds something, and the second comes.
    let tried = std::cell::Cell::new(false);
    let meanwhile = || {
        let there = engine.pool().dsl().find("tank#mark").unwrap().is_some();
        if there && !tried.replace(true) {
            let second = redact(&engine, "tank@one", "mark", MARKS[0].1).unwrap_err();
            assert!(matches!(second, RedactRefused::Change(ChangeError::Busy)), "{second}");
            let marks = ["tank#mark".into()];
            let destroyed = changes(&engine).destroy_bookmarks(&marks).unwrap_err();
            assert!(matches!(destroyed, ChangeError::Busy), "{destroyed}");
        }
        false
    };
    changes(&engine).redact(&new, &Holder::Reader("test".into()), &meanwhile).unwrap();
    assert!(tried.get());
    assert_eq!(entries(&engine, "tank#mark"), entries(&engine, "tank#alone"));
    changes(&engine).destroy_bookmarks(&["tank#mark".into()]).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A stream that was interrupted goes on from any of its blocks as OpenZFS's does: what comes is the rest.
#[test]
fn a_redacted_stream_goes_on() {
    let rig = Rig::new(512 << 20);
    let engine = source(&rig, 6);
    redact(&engine, "tank@one", "both", MARKS[0].1).unwrap();
    let redact_by = Some(list_of(&engine, "tank#both"));
    for (to, from) in [("tank@one", None), ("tank@two", Some("tank#both"))] {
        let from = from.map(|from| find(&engine, from));
        let send = |resume| {
            let redact = if from.is_none() { redact_by } else { None };
            let options = SendOptions { redact, resume, ..SendOptions::default() };
            let mut stream = Vec::new();
            let to = find(&engine, to);
            engine.pool().dsl().send(&to, from.as_ref(), options, &mut stream).unwrap();
            records(&stream)
        };
        let whole = send(None);
        let places = whole.iter().enumerate().filter_map(|(at, (record, _))| match record {
            Record::Write(write) => Some((at, write.object, write.offset)),
            _ => None,
        });
        for (at, object, offset) in places.step_by(37) {
            let rest = send(Some(Resume { object, offset }));
            // The object comes again, then all from the block on.
            let begins = rest.iter().position(|(record, _)| matches!(record, Record::Write(_)));
            let (rest, wanted) = (&rest[begins.unwrap()..], &whole[at..]);
            let data = |all: &[(Record, Vec<u8>)]| -> Vec<(Record, Vec<u8>)> {
                let end = |record: &Record| !matches!(record, Record::End { .. });
                all.iter().filter(|(record, _)| end(record)).cloned().collect()
            };
            assert!(data(rest) == data(wanted), "{to} at {offset} of object {object}");
        }
    }
    engine.export(false).unwrap();
}

/// Lists by more snapshots than a bonus buffer has room for have a spill block.
#[test]
fn many_snapshots_lie_in_a_spill_block() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let mut random = Random(3);
    change(&engine, "tank", &mut random, 40);
    snapshot(&engine, "tank@one");
    let mut by = Vec::new();
    for n in 0..40 {
        change(&engine, "tank", &mut random, 2);
        let name = format!("tank@later{n}");
        snapshot(&engine, &name);
        by.push(name);
    }
    let by: Vec<&str> = by.iter().map(String::as_str).collect();
    redact(&engine, "tank@one", "few", &by[..36]).unwrap();
    redact(&engine, "tank@one", "many", &by).unwrap();
    let list = |name: &str| engine.pool().dsl().redaction_list(list_of(&engine, name)).unwrap();
    assert_eq!((list("tank#few").snaps.len(), list("tank#many").snaps.len()), (36, 40));
    let names = list("tank#many").snaps;
    assert_eq!(names, by.iter().map(|name| find(&engine, name).ds.guid).collect::<Vec<_>>());
    for (mark, count) in [("tank#few", 36), ("tank#many", 40)] {
        let value = engine.pool().dsl().get(&find(&engine, mark), "redact_snaps").unwrap();
        let said: Vec<_> = names[..count].iter().map(u64::to_string).collect();
        assert_eq!(value.unwrap().exact, said.join(","), "{mark}");
    }
    let active = |engine: &Engine, name: &str| engine.pool().features().is_active(name);
    assert!(active(&engine, "redaction_list_spill") && active(&engine, "redaction_bookmarks"));
    engine.export(false).unwrap();
    drop(engine);
    // OpenZFS 2.1 does not know the feature.
    cenote_testpools::try_judge_newer(rig.path(), "tank").unwrap();
    let engine = rig.import();
    changes(&engine).destroy_bookmarks(&["tank#many".into()]).unwrap();
    assert!(!active(&engine, "redaction_list_spill") && active(&engine, "redaction_bookmarks"));
    changes(&engine).destroy_bookmarks(&["tank#few".into()]).unwrap();
    assert!(!active(&engine, "redaction_bookmarks"));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}

/// A pointer that says that its data was left out: no data, an error, and nothing that a count of blocks misses.
#[test]
fn pointers_that_say_so_are_errors() {
    let (rig, dir) = (Rig::new(512 << 20), tempfile::tempdir().unwrap());
    let engine = source(&rig, 4);
    redact(&engine, "tank@one", "both", MARKS[0].1).unwrap();
    received(&engine, "tank/r@one", None, &sent(&engine, "tank@one", None, Some("tank#both")));
    // A file of some blocks.
    let set = engine.pool().dsl().open_objset(&find(&engine, "tank/r@one")).unwrap();
    let (mut number, mut chosen) = (0, None);
    while let Some(next) = set.next_object(number + 1).unwrap() {
        number = next;
        let object = set.object(number).unwrap();
        if object.dnode().kind == DmuType::PLAIN_FILE_CONTENTS && object.dnode().max_block > 8 {
            chosen = Some((number, object.dnode().block_size));
        }
    }
    let (number, size) = chosen.unwrap();
    drop(set);
    engine.export(false).unwrap();
    drop(engine);
    let path = dir.path().join("stream");
    let script = format!(
        "import\nredact-blocks tank/r {number} {} {}\nsync\nsnapshot tank/r@s\nsend tank/r@s {} tank/r@one -\nexport\n",
        2 * size,
        2 * size,
        path.display()
    );
    cenote_testpools::openzfs(rig.path(), "tank", &script);
    rig.judge_blocks();
    let engine = rig.import();
    let redacted = |engine: &Engine, name: &str| {
        let set = engine.pool().dsl().open_objset(&find(engine, name)).unwrap();
        let object = set.object(number).unwrap();
        for blkid in 0..8 {
            let read = object.block(blkid);
            let is_redacted = object.block_pointer(0, blkid).unwrap().is_redacted();
            assert_eq!(is_redacted, matches!(blkid, 2 | 3), "block {blkid}");
            assert_eq!(read.is_err(), is_redacted, "block {blkid}");
        }
        assert!(object.block(2).unwrap_err().to_string().contains("redacted"));
    };
    redacted(&engine, "tank/r@s");
    // The stream says so, and what receives it has holes.
    let (ours, theirs) =
        (sent(&engine, "tank/r@s", Some("tank/r@one"), None), fs::read(&path).unwrap());
    assert!(comparable(&ours) == comparable(&theirs));
    let says = |(record, _): &(Record, Vec<u8>)| matches!(record, Record::Redact { .. });
    assert!(records(&ours).iter().any(says));
    let one = sent(&engine, "tank/r@one", None, None);
    received(&engine, "tank/q@one", None, &one);
    received(&engine, "tank/q@s", None, &ours);
    let set = engine.pool().dsl().open_objset(&find(&engine, "tank/q@s")).unwrap();
    assert!(set.object(number).unwrap().block(2).unwrap().is_none());
    drop(set);
    // A change of a file that has such blocks writes them anew, or fails and leaves all as it was.
    let live = engine.live(find(&engine, "tank/r").ds_obj).unwrap();
    let fs = FileSystem::open_live(live.clone(), Settings::default()).unwrap();
    assert!(fs.write(number, 2 * size + 10, b"part of a block", false).is_err());
    fs.write(number, 3 * size, &vec![7; size as usize], false).map(drop).unwrap();
    drop((fs, live));
    engine.close(find(&engine, "tank/r").ds_obj).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let engine = rig.import();
    redacted(&engine, "tank/r@s");
    changes(&engine).destroy_snapshots(&["tank/r@s".into()], false).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
