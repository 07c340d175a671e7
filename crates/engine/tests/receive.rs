//! Streams are received: those that OpenZFS made, and damaged ones. OpenZFS's `zdb` judges the pools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod receiver;
mod rig;

use cenote_dsl::send::SendOptions;
use cenote_engine::Engine;
use cenote_engine::change::receive::{NewReceive, ReceiveError, Source};
use cenote_format::stream::token::Token;
use cenote_format::stream::{FLAG_CLONE, Record};
use cenote_manifest_check::{Checks, ZplTree, check_tree, check_volume};
use cenote_testpools::records;
use cenote_zpl::{FileSystem, Settings, Volume};
use receiver::{changes, find, receive, resumed};
use rig::Rig;
use serde_json::Value;
use std::sync::Arc;

fn to(name: &str) -> NewReceive {
    NewReceive { to: name.into(), ..NewReceive::default() }
}

/// The dataset `sample` of the manifest.
fn entry<'m>(manifest: &'m Value, sample: &str) -> &'m Value {
    let all = manifest["datasets"].as_array().unwrap();
    all.iter().find(|d| d["name"] == sample).unwrap_or_else(|| panic!("{sample}"))
}

/// Whether `name` is what `sample` of the manifest is.
fn check(engine: &Engine, name: &str, manifest: &Value, sample: &str) {
    let (ours, theirs) = (find(engine, name), entry(manifest, sample));
    let set = engine.pool().dsl().open_objset(&ours).unwrap();
    if name.contains('@') {
        let guid = theirs["guid"].as_u64();
        let guid = guid.or_else(|| theirs["guid"].as_str().and_then(|g| g.parse().ok()));
        assert_eq!(Some(ours.ds.guid), guid, "{name}");
        let creation = theirs["props"]["creation"][0].as_str().unwrap();
        assert_eq!(ours.ds.creation_time.to_string(), creation, "{name}");
    }
    if theirs["volume"].is_object() {
        let volume = Volume::open(set).unwrap();
        let read = |at, buf: &mut [u8]| volume.read(at, buf).map_err(|e| e.to_string());
        check_volume(theirs, volume.size(), read).unwrap();
        return;
    }
    let fs = FileSystem::open(set).unwrap();
    check_tree(theirs, &ZplTree::new(fs), &Checks::EXACT).unwrap();
}

/// Blocks that came compressed in `stream` are on disk as they came. Returns how many came so.
fn as_they_came(engine: &Engine, name: &str, stream: &[u8]) -> usize {
    const SECTOR: u64 = 4096;
    let set = engine.pool().dsl().open_objset(&find(engine, name)).unwrap();
    let pointer = |object: u64, offset: u64| {
        let object = set.object(object).unwrap();
        object.block_pointer(0, offset / object.dnode().block_size).unwrap()
    };
    let mut found = 0;
    for (record, _) in records(stream) {
        match record {
            Record::Write(w) if w.compression != 0 => {
                let bp = pointer(w.object, w.offset);
                let psize = w.compressed_size.next_multiple_of(SECTOR).min(w.logical_size);
                let said = (bp.compression(), bp.psize(), bp.lsize());
                assert_eq!(said, (w.compression, psize, w.logical_size), "{name}: {w:?}");
                found += 1;
            }
            Record::WriteEmbedded(e) if e.offset < 1 << 60 => {
                let bp = pointer(e.object, e.offset);
                assert!(bp.is_embedded() && bp.compression() == e.compression, "{name}: {e:?}");
                found += 1;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn streams_of_openzfs_are_received() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let (streams, manifest) =
        (cenote_testpools::streams(), cenote_testpools::pool("streams").manifest());
    let take = |new: &NewReceive, stream: &str| {
        receive(&engine, new, &streams[stream]).unwrap_or_else(|e| panic!("{stream}: {e}"));
    };
    let check = |name: &str, sample: &str| check(&engine, name, &manifest, sample);
    for (ours, full, inc) in [
        ("tank/plain", "full-s1", "inc-s1-s2"),
        ("tank/packed", "full-s1-c", "inc-s1-s2"),
        ("tank/Lec", "full-s1-Lec", "inc-s1-s2-Lec"),
    ] {
        take(&to(&format!("{ours}@s1")), full);
        check(&format!("{ours}@s1"), "streams/origin@s1");
        take(&to(&format!("{ours}@s2")), inc);
        check(&format!("{ours}@s2"), "streams/origin@s2");
        check(ours, "streams/origin@s2");
    }
    take(&to("tank/plain@s3"), "inc-s2-s3");
    take(&to("tank/packed@s3"), "inc-mark-s3");
    for ours in ["tank/plain", "tank/packed"] {
        check(&format!("{ours}@s3"), "streams/origin@s3");
        check(&format!("{ours}@s1"), "streams/origin@s1");
    }
    take(&to("tank/tip@s1"), "tip-e-s1");
    check("tank/tip@s1", "streams/origin/leaf/tip@s1");
    take(&to("tank/disk@s1"), "disk-s1");
    take(&to("tank/disk@s2"), "disk-inc-s1-s2-c");
    check("tank/disk@s1", "streams/origin/disk@s1");
    check("tank/disk@s2", "streams/origin/disk@s2");
    take(&to("tank/quirk@q"), "quirk");
    take(&to("tank/quirke@q"), "quirk-e");
    check("tank/quirk@q", "streams/quirk@q");
    // What OpenZFS loses of this stream is received here.
    check("tank/quirke@q", "streams/quirk@q");
    for (ours, stream) in [("packed@s1", "full-s1-c"), ("Lec@s1", "full-s1-Lec")] {
        assert!(as_they_came(&engine, &format!("tank/{ours}"), &streams[stream]) > 0, "{stream}");
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Receives the streams of a package into datasets at and below `top`.
fn take_package(engine: &Arc<Engine>, top: &str, mut stream: &[u8]) {
    let changes = changes(engine);
    let mut source = Source::new(&mut stream);
    let begin = source.begin().unwrap().unwrap();
    source.package(&begin).unwrap();
    source.skip().unwrap();
    while let Some(begin) = source.begin().unwrap() {
        let list = source.list(&begin).unwrap();
        let name = String::from_utf8(begin.to_name.clone()).unwrap();
        let to = name.replacen("streams/origin", top, 1);
        let origin = (begin.flags & FLAG_CLONE != 0).then(|| format!("{top}/leaf@s2"));
        let new = NewReceive { to, origin, ..NewReceive::default() };
        let receiving = changes.receive(&new, &begin, &list).unwrap();
        receiving.stream(&mut source, &mut |_| {}).unwrap();
        changes.finish_receive(receiving, false).unwrap();
    }
}

#[test]
fn compressed_packages_have_all_contents() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let (streams, manifest) =
        (cenote_testpools::streams(), cenote_testpools::pool("streams").manifest());
    take_package(&engine, "tank/all", &streams["R-s3-Lec"]);
    for name in ["@s1", "@s2", "@s3", "/disk@s3", "/leaf@s2", "/leaf/tip@s2", "/branch@s3"] {
        let (ours, sample) = (format!("tank/all{name}"), format!("streams/origin{name}"));
        check(&engine, &ours, &manifest, &sample);
    }
    let on = |origin: &str| NewReceive { origin: Some(origin.into()), ..to("tank/twig@s3") };
    // That stream cuts large blocks, and they are whole here.
    let cut = receive(&engine, &on("tank/all/leaf@s2"), &streams["branch-from-leaf"]);
    assert!(matches!(cut, Err(ReceiveError::LargeBlocks)));
    take_package(&engine, "tank/plain", &streams["R-s3"]);
    receive(&engine, &on("tank/plain/leaf@s2"), &streams["branch-from-leaf"]).unwrap();
    check(&engine, "tank/twig@s3", &manifest, "streams/origin/branch@s3");
    receive(&engine, &to("tank/inc@s1"), &streams["full-s1-Lec"]).unwrap();
    take_package(&engine, "tank/inc", &streams["Inc-s1-s3-Lec"]);
    for snap in ["s2", "s3"] {
        let (ours, sample) = (format!("tank/inc@{snap}"), format!("streams/origin@{snap}"));
        check(&engine, &ours, &manifest, &sample);
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn interrupted_receives_go_on() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let (streams, manifest) =
        (cenote_testpools::streams(), cenote_testpools::pool("streams").manifest());
    let new = |to: &str| NewReceive { to: to.into(), resumable: true, ..NewReceive::default() };
    let token = |name: &str| {
        let dataset = find(&engine, name);
        engine.pool().dsl().resume_token(&dataset).unwrap()
    };
    for (stream, to, sample) in [
        ("full-s1", "tank/a@s1", "streams/origin@s1"),
        ("inc-s1-s2", "tank/a@s2", "streams/origin@s2"),
        ("full-s1-Lec", "tank/b@s1", "streams/origin@s1"),
    ] {
        let (whole, head) = (&streams[stream], to.split('@').next().unwrap());
        let mut rest = whole.clone();
        for part in 1..4 {
            // A part of the stream that is left.
            let cut = rest.len() * part / 5;
            let error = receive(&engine, &new(to), &rest[..cut]).unwrap_err();
            assert!(matches!(error, ReceiveError::Truncated), "{to}: {error}");
            let token = token(head).unwrap();
            assert_eq!(Token::decode(&token.encode().unwrap()).unwrap(), token);
            assert!(token.object > 0 && token.bytes > 0, "{token:?}");
            assert!(receive(&engine, &new(to), whole).is_err(), "another stream is let in");
            rest = resumed(whole, token.object, token.offset);
            // One that does not go on where this one ended.
            let wrong = resumed(whole, token.object + 1, 0);
            assert!(matches!(receive(&engine, &new(to), &wrong), Err(ReceiveError::Stream(_))));
        }
        receive(&engine, &new(to), &rest).unwrap_or_else(|e| panic!("{to}: {e}"));
        assert!(token(head).is_none());
        check(&engine, to, &manifest, sample);
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn what_came_of_a_stream_is_sent_on() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let (streams, manifest) =
        (cenote_testpools::streams(), cenote_testpools::pool("streams").manifest());
    let new = |to: &str| NewReceive { to: to.into(), resumable: true, ..NewReceive::default() };
    let saved = |name: &str| engine.pool().dsl().saved(&find(&engine, name)).unwrap();
    for (round, part) in [1, 4, 7].into_iter().enumerate() {
        let places = [format!("tank/first{round}"), format!("tank/second{round}")];
        for (stream, snapshot, from) in [("full-s1", "s1", None), ("inc-s1-s2", "s2", Some("s1"))] {
            let whole = &streams[stream];
            let names = places.each_ref().map(|place| format!("{place}@{snapshot}"));
            let cut = receive(&engine, &new(&names[0]), &whole[..whole.len() * part / 8]);
            assert!(matches!(cut, Err(ReceiveError::Truncated)));
            let (dataset, token) = saved(&places[0]).unwrap();
            let from = from.map(|from| find(&engine, &format!("{}@{from}", places[0])));
            let options = SendOptions { saved: true, ..SendOptions::default() };
            let (pool, mut sent) = (engine.pool(), Vec::new());
            pool.dsl().send(&dataset, from.as_ref(), options, &mut sent).unwrap();
            let estimate = pool.dsl().send_estimate(&dataset, from.as_ref(), options).unwrap();
            assert_eq!(estimate, sent.len() as u64);
            let head = |mut stream: &[u8]| {
                let begin = Source::new(&mut stream).begin().unwrap().unwrap();
                (begin.to_guid, begin.from_guid, begin.to_name, begin.flags & FLAG_CLONE)
            };
            assert_eq!(head(&sent), head(whole));
            // It has no end, and comes no further than what was received.
            let cut = receive(&engine, &new(&names[1]), &sent);
            assert!(matches!(cut, Err(ReceiveError::Truncated)));
            let (_, second) = saved(&places[1]).unwrap();
            assert!((second.object, second.offset) <= (token.object, token.offset));
            // What comes last is never known to be right.
            assert!(part == 1 || second.bytes > sent.len() as u64 / 2, "{second:?} {token:?}");
            for (name, token) in names.iter().zip([token, second]) {
                let rest = resumed(whole, token.object, token.offset);
                receive(&engine, &new(name), &rest).unwrap_or_else(|e| panic!("{name}: {e}"));
                check(&engine, name, &manifest, &format!("streams/origin@{snapshot}"));
            }
        }
    }
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn a_crash_leaves_nothing_that_was_received_in_part() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let streams = cenote_testpools::streams();
    receive(&engine, &to("tank/a@s1"), &streams["full-s1"]).unwrap();
    let begun = |to: &str, stream: &str, resumable: bool| {
        let new = NewReceive { to: to.into(), resumable, ..NewReceive::default() };
        let mut part = &streams[stream][..streams[stream].len() / 2];
        let mut source = Source::new(&mut part);
        let begin = source.begin().unwrap().unwrap();
        let list = source.list(&begin).unwrap();
        let receiving = changes(&engine).receive(&new, &begin, &list).unwrap();
        let ended = receiving.stream(&mut source, &mut |_| {});
        assert!(matches!(ended, Err(ReceiveError::Truncated)));
        receiving
    };
    let open = [
        begun("tank/a@s2", "inc-s1-s2", false),
        begun("tank/new@s1", "full-s1", false),
        begun("tank/kept@s1", "full-s1", true),
    ];
    // While a stream comes, another one is kept out, and no thread writes to the part that has come.
    let again = receive(&engine, &to("tank/a@s2"), &streams["inc-s1-s2"]);
    assert!(matches!(again, Err(ReceiveError::Busy)));
    assert!(engine.live(find(&engine, "tank/new").ds_obj).is_err());
    assert!(changes(&engine).destroy("tank/new").is_err());
    engine.sync().unwrap();
    drop(open);
    drop(engine);

    let engine = rig.import();
    let pool = engine.pool();
    let there = |name: &str| pool.dsl().find(name).unwrap().is_some();
    assert!(there("tank/a@s1") && there("tank/kept"));
    assert!(!there("tank/a/%recv") && !there("tank/new"));
    assert!(pool.dsl().resume_token(&find(&engine, "tank/kept")).unwrap().is_some());
    drop(pool);
    receive(&engine, &to("tank/a@s2"), &streams["inc-s1-s2"]).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn clones_and_forced_receives() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let (streams, manifest) =
        (cenote_testpools::streams(), cenote_testpools::pool("streams").manifest());
    let take = |new: &NewReceive, stream: &str| receive(&engine, new, &streams[stream]);
    let check = |name: &str, sample: &str| check(&engine, name, &manifest, sample);
    let forced = |to: &str| NewReceive { to: to.into(), force: true, ..NewReceive::default() };
    take(&to("tank/a@s1"), "full-s1").unwrap();
    take(&to("tank/a@s2"), "inc-s1-s2").unwrap();
    let on = |to: &str, origin: &str| NewReceive {
        to: to.into(),
        origin: Some(origin.into()),
        ..NewReceive::default()
    };
    // An incremental stream on an origin is a clone, and so is a full one.
    take(&on("tank/clone@s3", "tank/a@s2"), "inc-s2-s3").unwrap();
    check("tank/clone@s3", "streams/origin@s3");
    take(&on("tank/full@s1", "tank/a@s2"), "full-s1").unwrap();
    check("tank/full@s1", "streams/origin@s1");
    assert!(matches!(
        take(&on("tank/no@s2", "tank/a@s2"), "inc-s1-s2"),
        Err(ReceiveError::NoMatch)
    ));
    // What was changed since is lost with force, later snapshots with it.
    let live = engine.live(find(&engine, "tank/a").ds_obj).unwrap();
    let fs = FileSystem::open_live(live, Settings::default()).unwrap();
    rig::fill(&fs, 0..20, 10_000);
    drop(fs);
    assert!(matches!(take(&to("tank/a@s3"), "inc-s2-s3"), Err(ReceiveError::Modified)));
    take(&forced("tank/a@s3"), "inc-s2-s3").unwrap();
    check("tank/a", "streams/origin@s3");
    assert!(matches!(take(&to("tank/a@again"), "inc-s1-s2"), Err(ReceiveError::Modified)));
    // The snapshot @s2 has clones.
    assert!(take(&forced("tank/a@again"), "inc-s1-s2").is_err());
    take(&to("tank/b@s1"), "full-s1").unwrap();
    take(&to("tank/b@s2"), "inc-s1-s2").unwrap();
    take(&to("tank/b@s3"), "inc-s2-s3").unwrap();
    take(&forced("tank/b@again"), "inc-s1-s2").unwrap();
    check("tank/b@again", "streams/origin@s2");
    let all = engine.pool();
    let names: Vec<String> = all
        .dsl()
        .snapshots(&find(&engine, "tank/b"))
        .unwrap()
        .into_iter()
        .map(|d| d.name)
        .collect();
    assert_eq!(names, ["tank/b@s1", "tank/b@again"]);
    drop(all);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Receives a stream into `tank/a`, whose head is changed once the receive has begun.
fn changed_meanwhile(engine: &Arc<Engine>, stream: &str, force: bool) -> Result<(), ReceiveError> {
    let streams = cenote_testpools::streams();
    let (all, mut input) = (changes(engine), &streams[stream][..]);
    let mut source = Source::new(&mut input);
    let begin = source.begin()?.unwrap();
    let list = source.list(&begin)?;
    let new = NewReceive { force, ..to("tank/a@s2") };
    let receiving = all.receive(&new, &begin, &list)?;
    let live = engine.live(find(engine, "tank/a").ds_obj).unwrap();
    let fs = FileSystem::open_live(live, Settings::default()).unwrap();
    rig::fill(&fs, 0..3, 10_000);
    drop(fs);
    receiving.stream(&mut source, &mut |_| {})?;
    all.finish_receive(receiving, force)
}

#[test]
fn a_head_that_was_changed_meanwhile_is_lost_by_force_only() {
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 12);
    let streams = cenote_testpools::streams();
    receive(&engine, &to("tank/a@s1"), &streams["full-s1"]).unwrap();
    let done = changed_meanwhile(&engine, "inc-s1-s2", false);
    assert!(matches!(done, Err(ReceiveError::Modified)), "{done:?}");
    let there = |name: &str| engine.pool().dsl().find(name).unwrap().is_some();
    assert!(!there("tank/a@s2") && !there("tank/a/%recv"));
    let live = engine.live(find(&engine, "tank/a").ds_obj).unwrap();
    rig::check(&FileSystem::open_live(live, Settings::default()).unwrap(), 0..3, 10_000);
    changes(&engine).rollback("tank/a@s1").unwrap();
    changed_meanwhile(&engine, "inc-s1-s2", true).unwrap();
    let manifest = cenote_testpools::pool("streams").manifest();
    check(&engine, "tank/a", &manifest, "streams/origin@s2");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}
