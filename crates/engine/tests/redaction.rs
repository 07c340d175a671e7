//! Redaction bookmarks and redacted streams: those that are made here are OpenZFS's, byte for byte, and each engine
//! receives the other's. OpenZFS's `zdb` judges the pool. Where the headers of its library are not installed these tests
//! fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod receiver;
mod rig;

use cenote_dsl::send::{Resume, SendOptions};
use cenote_dsl::write::{bookmarks, redaction};
use cenote_engine::Engine;
use cenote_engine::Holder;
use cenote_engine::change::receive::NewReceive;
use cenote_engine::change::{ChangeError, NewClone, NewRedaction, NewSnapshot, RedactRefused};
use cenote_format::dmu::DmuType;
use cenote_format::redaction::RedactBlocks;
use cenote_format::stream::{Record, TO_END, feature};
use cenote_testpools::{Random, records};
use cenote_zpl::{FileSystem, Settings};
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
        assert_eq!(entries(&engine, &format!("tank#our-{mark}")), theirs, "{mark}");
        most = most.max(theirs.len());
        let list = |name: &str| engine.pool().dsl().redaction_list(list_of(&engine, name)).unwrap();
        assert_eq!(list(&format!("tank#our-{mark}")), list(&format!("tank#{mark}")));
        assert_eq!(list(&format!("tank#{mark}")).snaps.len(), by.len());
    }
    assert!(most > 5, "{most}");
    let ours = |name: &str| name.replace('#', "#our-");
    for (n, (to, from, mark)) in STREAMS.iter().enumerate() {
        let (from, mark) = (from.map(ours), mark.map(|mark| format!("tank#our-{mark}")));
        let stream = sent(&engine, to, from.as_deref(), mark.as_deref());
        let theirs = fs::read(path(n)).unwrap();
        let (ours, theirs) = (comparable(&stream), comparable(&theirs));
        if from.as_deref() == Some("tank#our-both") {
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
        let (some, next) = (whole[..kept].to_vec(), (whole[kept].object, whole[kept].first));
        let name = mark.clone();
        engine
            .sync_task(move |context| {
                let tx = &mut context.tx;
                let made = bookmarks::create_redacted(tx, head, &name, (snap, &guids))?;
                redaction::append(tx, made.list, &some, next)
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
    let shown = engine.pool().dsl().get(&find(&engine, "tank#many"), "redact_snaps").unwrap();
    assert_eq!(shown.unwrap().exact.split(',').count(), 40);
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
