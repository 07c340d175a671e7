//! A snapshot that is read for longer than a transaction group is not destroyed meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod rig;

use cenote_dsl::Dataset;
use cenote_dsl::write::DslWriteError;
use cenote_engine::change::{ChangeError, Kind, NewClone, NewDataset, NewSnapshot};
use cenote_engine::{Engine, EngineError, Holder};
use rig::{Rig, changes, fill, open};

fn find(engine: &Engine, name: &str) -> Dataset {
    engine.pool().dsl().find(name).unwrap().unwrap()
}

fn busy<T>(result: Result<T, EngineError>) -> bool {
    matches!(result, Err(EngineError::Dsl(DslWriteError::Busy)))
}

#[test]
fn a_snapshot_that_is_held_stays() {
    let rig = Rig::new(128 << 20);
    let engine = rig.create("a", 12);
    let changes = changes(&engine);
    let fs = open(&engine);
    fill(&fs, 0..3, 5000);
    let take = |name: &str| {
        changes.snapshot(&NewSnapshot { names: vec![name.into()], props: vec![] }).unwrap();
        find(&engine, name)
    };
    let (one, two) = (take("tank@one"), take("tank@two"));
    let (first, _) = engine.hold(&one, Holder::Reader("a test".into())).unwrap();
    let at = Holder::Mount("/mnt/s".into());
    let (second, seen) = engine.hold(&one, at).unwrap();
    assert!(
        seen.ds.guid == one.ds.guid && engine.is_held(one.ds_obj) && !engine.is_held(two.ds_obj)
    );
    let destroy = |names: &[&str], defer| {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        changes.destroy_snapshots(&names, defer)
    };
    // All or none of the snapshots, deferred or not; a hold of a user's makes no difference.
    for defer in [false, true] {
        let refused = destroy(&["tank@one", "tank@two"], defer).unwrap_err();
        assert!(matches!(refused.as_slice(), [(name, ChangeError::Busy)] if name == "tank@one"));
    }
    // What reads is told before what is mounted, which does not keep the pool from being exported.
    assert_eq!(engine.use_of(one.ds_obj).as_deref(), Some("a test uses it"));
    assert_eq!(engine.reader().as_deref(), Some("a test uses it"));
    drop(first);
    assert_eq!(engine.use_of(one.ds_obj).as_deref(), Some("it is mounted at '/mnt/s'"));
    assert_eq!(engine.reader(), None);
    assert!(destroy(&["tank@one"], false).is_err());
    changes.hold(&["tank@one".into()], "tag").unwrap();
    drop(second);
    assert_eq!(engine.use_of(one.ds_obj), None);
    destroy(&["tank@one"], true).unwrap();
    // The last hold of a user's would take it along.
    let (held, _) = engine.hold(&one, Holder::Reader("a test".into())).unwrap();
    assert!(matches!(changes.release(&["tank@one".into()], "tag"), Err((_, ChangeError::Busy))));
    drop(held);
    changes.release(&["tank@one".into()], "tag").unwrap();
    // As would the last clone.
    let clone = NewClone { name: "tank/c".into(), origin: "tank@two".into(), props: vec![] };
    changes.clone_snapshot(&clone).unwrap();
    destroy(&["tank@two"], true).unwrap();
    let (held, _) = engine.hold(&two, Holder::Reader("a test".into())).unwrap();
    assert!(matches!(changes.destroy("tank/c"), Err(ChangeError::Busy)));
    drop(held);
    changes.destroy("tank/c").unwrap();
    assert!(matches!(
        engine.hold(&two, Holder::Reader("a test".into())),
        Err(EngineError::Dsl(DslWriteError::NotFound))
    ));
    assert!(matches!(
        engine.hold(&one, Holder::Reader("a test".into())),
        Err(EngineError::Dsl(DslWriteError::NotFound))
    ));
    drop((fs, changes));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn a_head_that_is_held_is_not_opened() {
    let rig = Rig::new(128 << 20);
    let engine = rig.create("a", 12);
    let changes = changes(&engine);
    let new = NewDataset { name: "tank/a".into(), kind: Kind::Filesystem, props: vec![] };
    changes.create(&new).unwrap();
    let head = find(&engine, "tank/a");
    let live = engine.live(head.ds_obj).unwrap();
    assert!(busy(engine.hold(&head, Holder::Reader("a test".into()))));
    drop(live);
    let (held, seen) = engine.hold(&head, Holder::Reader("a test".into())).unwrap();
    // What was changed before is on disk.
    assert_eq!(seen.ds.guid, head.ds.guid);
    assert!(busy(engine.live(head.ds_obj)));
    assert!(matches!(changes.destroy("tank/a"), Err(ChangeError::Busy)));
    drop(held);
    drop(engine.live(head.ds_obj).unwrap());
    changes.destroy("tank/a").unwrap();
    drop(changes);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn holds_and_destroying_exclude_each_other() {
    let rig = Rig::new(128 << 20);
    let engine = rig.create("a", 12);
    let changes = changes(&engine);
    for round in 0..4 {
        let name = format!("tank@{round}");
        changes.snapshot(&NewSnapshot { names: vec![name.clone()], props: vec![] }).unwrap();
        let snapshot = find(&engine, &name);
        let held = std::thread::scope(|scope| {
            let tries = || {
                (0..2000).find_map(|_| {
                    match engine.hold(&snapshot, Holder::Reader("a test".into())) {
                        Ok(held) => Some(held.0),
                        Err(_) => None,
                    }
                })
            };
            let taken = scope.spawn(tries);
            let destroyed = changes.destroy_snapshots(std::slice::from_ref(&name), false).is_ok();
            (destroyed, taken.join().unwrap())
        });
        // Its holder finds it; a hold that was given up in between is no hold.
        let there = engine.pool().dsl().find(&name).unwrap().is_some();
        assert_eq!(there, !held.0, "round {round}");
        assert!(held.1.is_none() || there, "round {round}");
        drop(held.1);
        changes.destroy_snapshots(std::slice::from_ref(&name), false).unwrap();
    }
    drop(changes);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}
