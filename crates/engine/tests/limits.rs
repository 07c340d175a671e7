//! `filesystem_limit` and `snapshot_limit`: what is counted, after every change of the tree, and whom the limits
//! bind. OpenZFS's `zdb` judges the pools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dsl::{Dataset, Dsl};
use cenote_engine::Engine;
use cenote_engine::change::{ChangeError, Changes, Kind, NewClone, NewDataset, NewSnapshot};
use rig::{Rig, changes_of};
use std::sync::Arc;

const SIZE: u64 = 128 << 20;
/// Users: one who may change limits, and one who may not.
const ROOT: u64 = 0;
const USER: u64 = 1000;

fn create(changes: &Changes, name: &str) -> Result<(), ChangeError> {
    changes.create(&NewDataset { name: name.into(), kind: Kind::Filesystem, props: vec![] })
}

fn snapshot(changes: &Changes, names: &[&str]) -> Result<(), (Option<String>, ChangeError)> {
    let names = names.iter().map(|name| (*name).into()).collect();
    changes.snapshot(&NewSnapshot { names, props: vec![] })
}

fn clone(changes: &Changes, origin: &str, name: &str) -> Result<(), ChangeError> {
    changes.clone_snapshot(&NewClone { origin: origin.into(), name: name.into(), props: vec![] })
}

fn set(engine: &Arc<Engine>, name: &str, property: &str, value: &str) {
    let failed = changes_of(engine, ROOT).set(name, &[(property.into(), value.into())]).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

fn get(dsl: &Dsl, dataset: &Dataset, property: &str) -> String {
    dsl.get(dataset, property).unwrap().unwrap().exact
}

fn is_full(done: Result<(), ChangeError>) -> bool {
    matches!(done, Err(ChangeError::NoSpace))
}

/// Compares the counts of a dataset and all below with what is there. From where one is counted all below are.
/// Returns file systems and snapshots, the dataset itself included.
fn compare(dsl: &Dsl, dataset: &Dataset, above_counted: bool) -> (u64, u64) {
    let told = ["filesystem_count", "snapshot_count"].map(|name| get(dsl, dataset, name));
    let counted = told[0] != "none";
    assert!(counted || !above_counted, "{}", dataset.name);
    let (mut filesystems, mut snapshots) = (0, dsl.snapshots(dataset).unwrap().len() as u64);
    for child in dsl.children(dataset).unwrap() {
        let below = compare(dsl, &child, counted);
        filesystems += below.0;
        snapshots += below.1;
    }
    if counted {
        let found = [filesystems, snapshots].map(|n| n.to_string());
        assert_eq!(told, found, "file systems and snapshots of {}", dataset.name);
    }
    (filesystems + 1, snapshots)
}

fn compare_all(engine: &Engine) {
    let pool = engine.pool();
    compare(pool.dsl(), &pool.dsl().root().unwrap(), false);
}

/// `tank/a` with limits, in it `b` and `c`, and `tank/other` without.
fn begin(rig: &Rig) -> Arc<Engine> {
    let engine = rig.create("a", 9);
    let root = changes_of(&engine, ROOT);
    for name in ["tank/a", "tank/a/b", "tank/a/c", "tank/other", "tank/other/d"] {
        create(&root, name).unwrap();
    }
    snapshot(&root, &["tank/a@1", "tank/a/b@1", "tank/other@1", "tank/other/d@1"]).unwrap();
    engine
}

#[test]
fn limits_bind_who_may_not_change_them() {
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    set(&engine, "tank/a", "filesystem_limit", "3");
    set(&engine, "tank/a", "snapshot_limit", "4");
    compare_all(&engine);
    let user = || changes_of(&engine, USER);

    create(&user(), "tank/a/b/e").unwrap();
    assert!(is_full(create(&user(), "tank/a/f")), "a fourth file system");
    assert!(is_full(clone(&user(), "tank/other@1", "tank/a/f")), "a clone is one as well");
    assert!(is_full(user().rename("tank/other/d", "tank/a/d")), "moved in");
    user().rename("tank/a/b/e", "tank/a/e").unwrap();
    create(&user(), "tank/other/f").unwrap();

    snapshot(&user(), &["tank/a@2"]).unwrap();
    let names = ["tank/other@2", "tank/a/b@2", "tank/a/c@2"];
    match snapshot(&user(), &names) {
        Err((Some(at), ChangeError::NoSpace)) => assert_eq!(at, "tank/a"),
        other => panic!("{other:?}"),
    }
    assert!(engine.pool().dsl().find("tank/other@2").unwrap().is_none(), "all or none");
    snapshot(&user(), &["tank/a/b@2"]).unwrap();
    assert!(snapshot(&user(), &["tank/a/c@2"]).is_err());

    // Two snapshots would come with the promoted clone, into a file system without room for a snapshot.
    snapshot(&user(), &["tank/other/d@2"]).unwrap();
    changes_of(&engine, ROOT).rename("tank/a/e", "tank/e").unwrap();
    clone(&user(), "tank/other/d@2", "tank/a/f").unwrap();
    assert!(matches!(user().promote("tank/a/f"), Err((None, ChangeError::NoSpace))));
    compare_all(&engine);

    // Root is not bound. Over a limit one can still take away.
    changes_of(&engine, ROOT).promote("tank/a/f").unwrap();
    create(&changes_of(&engine, ROOT), "tank/a/g").unwrap();
    snapshot(&changes_of(&engine, ROOT), &["tank/a@3", "tank/a/g@3"]).unwrap();
    assert!(is_full(create(&user(), "tank/a/h")));
    user().destroy("tank/a/c").unwrap();
    user().destroy_snapshots(&["tank/a@3".into(), "tank/a/g@3".into()], false).unwrap();
    assert!(is_full(create(&user(), "tank/a/h")));
    set(&engine, "tank/a", "filesystem_limit", "none");
    create(&user(), "tank/a/h").unwrap();
    compare_all(&engine);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

#[test]
fn who_may_change_a_limit_is_bound_by_those_above_only() {
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    let (root, user) = (|| changes_of(&engine, ROOT), || changes_of(&engine, USER));
    set(&engine, "tank/a", "filesystem_limit", "3");
    set(&engine, "tank/a/b", "filesystem_limit", "0");
    assert!(is_full(create(&user(), "tank/a/b/e")));
    let grant = |key: &str, permission: &str| (key.into(), Some(vec![permission.into()]));
    // By a set that is in a set, which is defined further up.
    root().allow("tank", &[grant("S-$@all", "@limits")]).unwrap();
    root().allow("tank", &[grant("s-$@limits", "filesystem_limit")]).unwrap();
    root().allow("tank/a/b", &[grant(&format!("Ul${USER}"), "@all")]).unwrap();
    assert!(is_full(create(&changes_of(&engine, USER + 1), "tank/a/b/e")), "another user");
    create(&user(), "tank/a/b/e").unwrap();
    assert!(is_full(create(&user(), "tank/a/b/f")), "the limit of tank/a binds");
    root().allow("tank/a", &[grant("el$", "filesystem_limit")]).unwrap();
    create(&user(), "tank/a/b/f").unwrap();
    set(&engine, "tank/a/b", "zoned", "on");
    assert!(is_full(create(&user(), "tank/a/b/g")), "what is zoned binds everybody");
    set(&engine, "tank/a/b", "zoned", "off");
    root().unallow(&["tank/a".into()], &[("el$".into(), None)]).unwrap();
    assert!(is_full(create(&user(), "tank/a/b/g")));
    compare_all(&engine);
    engine.export(false).unwrap();
    drop(engine);
    // `zdb -d` does not follow the lists of permissions.
    rig.judge_blocks();
}

/// Where the random tree's datasets are, and what is in them.
const HEADS: [&str; 6] = ["tank/a", "tank/a/b", "tank/a/c", "tank/other", "tank/other/d", "tank/e"];

/// Tries one change of the tree. The engine may refuse it: counts do not change then.
fn change(engine: &Arc<Engine>, chance: &mut impl FnMut(usize) -> usize) {
    let changes = changes_of(engine, if chance(3) == 0 { USER } else { ROOT });
    let head = HEADS[chance(HEADS.len())];
    let other = HEADS[chance(HEADS.len())];
    let (short, leaf) = (chance(3), chance(3));
    let named = format!("{head}@{short}");
    match chance(9) {
        0 => drop(create(&changes, &format!("{head}/n{leaf}"))),
        1 => drop(snapshot(&changes, &[&named])),
        2 => drop(snapshot(&changes, &[&named, &format!("{other}@{short}")])),
        3 => drop(clone(&changes, &named, &format!("{other}/n{leaf}"))),
        4 => drop(changes.promote(&format!("{head}/n{leaf}"))),
        5 => drop(changes.rename(&format!("{head}/n{leaf}"), &format!("{other}/n{short}"))),
        6 => drop(changes.destroy_snapshots(&[named], false)),
        7 => drop(changes.destroy(&format!("{head}/n{leaf}"))),
        _ => {
            let limit = ["none", "1", "4", "9"][chance(4)];
            let property = ["filesystem_limit", "snapshot_limit"][chance(2)];
            set(engine, head, property, limit);
        }
    }
}

#[test]
fn counts_follow_every_change_of_the_tree() {
    let rounds = if std::env::var("CENOTE_TORTURE").is_ok() { 4000 } else { 250 };
    let rig = Rig::new(SIZE);
    let engine = begin(&rig);
    create(&changes_of(&engine, ROOT), "tank/e").unwrap();
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut chance = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    for _ in 0..rounds {
        change(&engine, &mut chance);
        compare_all(&engine);
    }
    let pool = engine.pool();
    let a = pool.dsl().find("tank/a").unwrap().unwrap();
    assert_ne!(get(pool.dsl(), &a, "snapshot_count"), "none");
    drop(pool);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}
