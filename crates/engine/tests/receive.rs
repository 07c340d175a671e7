//! Streams are received: those that OpenZFS made, and damaged ones. OpenZFS's `zdb` judges the pools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod rig;

use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::Dataset;
use cenote_engine::Engine;
use cenote_engine::change::receive::{NewReceive, ReceiveError, Source};
use cenote_engine::change::{Changes, Contents, Format};
use cenote_manifest_check::{Checks, ZplTree, check_tree, check_volume};
use cenote_zpl::{FileSystem, Volume};
use rig::Rig;
use serde_json::Value;
use std::sync::Arc;

/// Nothing new is filled here.
struct Nothing;

impl Contents for Nothing {
    fn fill(&self, _: &mut OpenObjectSet, _: &Format, _: u64) -> Result<(), WriteError> {
        panic!("nothing is to be filled")
    }

    fn resize(&self, _: Arc<LiveObjectSet>, _: u64) -> Result<(), WriteError> {
        panic!("nothing is to be resized")
    }
}

fn changes(engine: &Arc<Engine>) -> Changes {
    Changes::new(engine.clone(), Arc::new(Nothing), None)
}

fn to(name: &str) -> NewReceive {
    NewReceive { to: name.into(), ..NewReceive::default() }
}

/// Receives one stream.
fn receive(engine: &Arc<Engine>, new: &NewReceive, mut stream: &[u8]) -> Result<(), ReceiveError> {
    let changes = changes(engine);
    let mut source = Source::new(&mut stream);
    let begin = source.begin()?.expect("a stream");
    let list = source.list(&begin)?;
    let receiving = changes.receive(new, &begin, &list)?;
    match receiving.stream(&mut source, &mut |_| {}) {
        Ok(()) => changes.finish_receive(receiving, new.force),
        Err(e) => {
            changes.give_up_receive(receiving);
            Err(e)
        }
    }
}

fn find(engine: &Engine, name: &str) -> Dataset {
    engine.pool().dsl().find(name).unwrap().unwrap_or_else(|| panic!("{name}"))
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
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}
