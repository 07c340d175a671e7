//! Operations on datasets, on a pool in a file. The pool is judged by OpenZFS's own `zdb` in the end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod rig;

use cenote_admin::clone::Ancestors;
use cenote_admin::destroy::Destroy;
use cenote_admin::diff::States;
use cenote_admin::rename::Rename;
use cenote_admin::rollback::Rollback;
use cenote_admin::userspace::{Figure, OwnerKind};
use cenote_admin::{ErrorKind, Kinds, Rights, Session};
use cenote_dsl::permissions::Who;
use rig::{Noting, Rig};

/// `tank/a` with a child, snapshots, a clone elsewhere, and a clone of that.
fn tree() -> Rig {
    let rig = Rig::new("tank");
    rig.pool().create_filesystem("tank/a", &[]).unwrap();
    rig.pool().create_filesystem("tank/a/b", &[]).unwrap();
    rig.write("tank/a", "file", "one");
    rig.pool().snapshot(["tank/a@one", "tank/a/b@one"]).unwrap();
    let mut host = Noting::default();
    let mut session = rig.session(&mut host);
    let one = session.dataset("tank/a@one", Kinds::SNAPSHOT).unwrap();
    session.clone_snapshot(&one, "tank/c", vec![], Ancestors::Refused).unwrap();
    session.snapshot(vec!["tank/c@s".into()], vec![]).unwrap();
    let s = session.dataset("tank/c@s", Kinds::SNAPSHOT).unwrap();
    session.clone_snapshot(&s, "tank/d", vec![], Ancestors::Refused).unwrap();
    rig
}

#[test]
fn what_depends_on_a_dataset_goes_before_it() {
    let rig = tree();
    let mut host = Noting::default();
    let refused = rig.session(&mut host).destroy("tank/a", Destroy::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Dependents);
    assert_eq!(refused.names(), ["tank/a/b@one", "tank/a/b", "tank/a@one"]);
    let recurse = Destroy { recurse: true, ..Destroy::default() };
    let refused = rig.session(&mut host).destroy("tank/a", recurse).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "cannot destroy 'tank/a': filesystem has dependent clones\n\
         use '-R' to destroy the following datasets:\ntank/d\ntank/c@s\ntank/c"
    );
    let all = rig.all();
    let dry = Destroy { clones: true, dry_run: true, ..recurse };
    rig.session(&mut host).destroy("tank/a", dry).unwrap();
    let (told, asked) = host.take();
    let order: Vec<&str> = told.iter().filter_map(|t| t.split('"').nth(1)).collect();
    let before = |a: &str, b: &str| {
        let at = |name| order.iter().position(|o| *o == name).unwrap();
        assert!(at(a) < at(b), "{order:?}");
    };
    for (first, second) in [
        ("tank/d", "tank/c@s"),
        ("tank/c@s", "tank/c"),
        ("tank/c", "tank/a@one"),
        ("tank/a@one", "tank/a"),
    ] {
        before(first, second);
    }
    assert_eq!(
        (rig.all(), asked),
        (all, vec![]),
        "a dry run changes nothing, and unmounts nothing"
    );

    // One that stays mounted keeps what it depends on.
    host.asked.busy.insert("tank/d".into());
    let clones = Destroy { clones: true, ..recurse };
    let told = rig.session(&mut host).destroy("tank/a", clones).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Told);
    let (told, _) = host.take();
    assert!(told.contains(&"failed: cannot unmount 'tank/d': pool or dataset is busy".into()));
    assert!(rig.all().contains(&"tank/d".into()) && rig.all().contains(&"tank/a@one".into()));

    host.asked.busy.clear();
    rig.session(&mut host).destroy("tank/a", clones).unwrap();
    assert_eq!(rig.all(), ["tank"]);
    rig.end();
}

#[test]
fn ranges_of_snapshots_go_all_or_none() {
    let rig = Rig::new("tank");
    rig.pool().create_filesystem("tank/a", &[]).unwrap();
    for name in ["1", "2", "3", "4", "5"] {
        rig.write("tank/a", "file", name);
        rig.pool().snapshot([format!("tank/a@{name}").as_str()]).unwrap();
    }
    let mut host = Noting::default();
    let mut session = rig.session(&mut host);
    session.hold("tank/a@3", "kept", false).unwrap();
    let told = session.destroy("tank/a@2%4", Destroy::default()).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Told);
    assert_eq!(rig.all().len(), 7);
    let (told, asked) = host.take();
    assert_eq!(
        told,
        [
            "failed: cannot destroy snapshot tank/a@3: it's being held. Run 'zfs holds -r tank/a@3' to see holders."
        ]
    );
    assert_eq!(asked, ["close tank/a@2 tank/a@3 tank/a@4", "stay tank/a@2 tank/a@3 tank/a@4"]);

    // What is reckoned is told, in order of creation.
    let reckon = Destroy { dry_run: true, reckon: true, ..Destroy::default() };
    rig.session(&mut host).destroy("tank/a@4,1%2", reckon).unwrap();
    let (told, _) = host.take();
    assert_eq!(
        told[..3],
        [r#"Destroying("tank/a@1")"#, r#"Destroying("tank/a@2")"#, r#"Destroying("tank/a@4")"#]
    );
    assert!(told[3].starts_with("Reclaims("));

    // One that is held goes with its last hold, if that is asked for, unless it is in use.
    let defer = Destroy { defer: true, ..Destroy::default() };
    rig.session(&mut host).destroy("tank/a@2%4", defer).unwrap();
    assert_eq!(rig.all(), ["tank", "tank/a", "tank/a@1", "tank/a@3", "tank/a@5"]);
    host.asked.used.insert("tank/a@3".into());
    let busy = rig.session(&mut host).release("tank/a@3", "kept", false).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    host.asked.used.clear();
    rig.session(&mut host).release("tank/a@3", "kept", false).unwrap();
    assert_eq!(rig.all(), ["tank", "tank/a", "tank/a@1", "tank/a@5"]);
    let none = rig.session(&mut host).destroy("tank/a@7", Destroy::default()).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    rig.end();
}

#[test]
fn bookmarks_go_alone() {
    let rig = Rig::new("tank");
    rig.pool().create_filesystem("tank/a", &[]).unwrap();
    rig.pool().snapshot(["tank@s", "tank/a@s"]).unwrap();
    let mut host = Noting::default();
    let mut session = rig.session(&mut host);
    for name in ["tank", "tank/a"] {
        session.bookmark(&format!("{name}@s"), &format!("{name}#b")).unwrap();
    }
    let plain = Destroy::default();
    for (how, why) in [
        (Destroy { dry_run: true, ..plain }, "dryrun is not supported with bookmark"),
        (Destroy { defer: true, ..plain }, "defer destroy is not supported with bookmark"),
        (Destroy { recurse: true, ..plain }, "recursive is not supported with bookmark"),
        (Destroy { clones: true, ..plain }, "recursive is not supported with bookmark"),
    ] {
        let bookmark = session.dataset("tank/a#b", Kinds::BOOKMARK).unwrap();
        for refused in [session.destroy("tank/a#b", how), session.destroy_dataset(&bookmark, how)] {
            let refused = refused.unwrap_err();
            assert_eq!((refused.kind(), refused.to_string().as_str()), (ErrorKind::Invalid, why));
        }
    }
    // One of the root file system is not the root file system.
    for name in ["tank#b", "tank/a#b"] {
        let bookmark = session.dataset(name, Kinds::BOOKMARK).unwrap();
        session.destroy_dataset(&bookmark, plain).unwrap();
        let gone = session.destroy(name, plain).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        assert_eq!(gone.to_string(), format!("bookmark '{name}' does not exist."));
        assert_eq!(
            session.destroy_dataset(&bookmark, plain).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
    assert_eq!(rig.all(), ["tank", "tank@s", "tank/a", "tank/a@s"]);

    // What has got the name of another one meanwhile is not destroyed in its place.
    let recurse = Destroy { recurse: true, ..plain };
    let snapshot = session.dataset("tank/a@s", Kinds::SNAPSHOT).unwrap();
    let head = session.dataset("tank/a", Kinds::HEAD).unwrap();
    session.destroy_dataset(&head, recurse).unwrap();
    rig.pool().create_filesystem("tank/a", &[]).unwrap();
    for gone in [snapshot, head] {
        let gone = session.destroy_dataset(&gone, recurse).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }
    assert_eq!(rig.all(), ["tank", "tank@s", "tank/a"]);
    rig.end();
}

#[test]
fn a_rollback_that_the_host_does_not_make_is_none() {
    let rig = tree();
    rig.write("tank/a", "file", "two");
    let mut host = Noting::default();
    host.asked.forgets = true;
    let refused = rig.session(&mut host).rollback("tank/a@one", Rollback::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert_eq!(rig.read("tank/a", "file"), "two");
    rig.end();
}

#[test]
fn a_rollback_takes_what_is_newer() {
    let rig = tree();
    let mut host = Noting::default();
    rig.write("tank/c", "file", "two");
    rig.session(&mut host).snapshot(vec!["tank/c@t".into()], vec![]).unwrap();
    rig.session(&mut host).bookmark("tank/c@t", "#t").unwrap();
    host.take();
    let refused = rig.session(&mut host).rollback("tank/c@s", Rollback::default()).unwrap_err();
    assert_eq!(refused.names(), ["tank/c@t", "tank/c#t"]);
    let recurse = Rollback { recurse: true, ..Rollback::default() };
    let refused = rig.session(&mut host).rollback("tank/a@one", recurse);
    assert!(refused.is_ok(), "it is the newest");

    host.take();
    rig.session(&mut host).rollback("tank/c@s", recurse).unwrap();
    assert_eq!(
        host.take().1,
        ["close tank/c@t", "changed tank/c@t", "exchange", "exchanged", "restore"]
    );
    assert_eq!(rig.read("tank/c", "file"), "one");

    // Where contents cannot be exchanged it is unmounted, if it can be.
    rig.write("tank/c", "file", "three");
    (host.asked.has_submounts, host.asked.stays) = (true, true);
    let told = rig.session(&mut host).rollback("tank/c@s", recurse).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Told);
    assert_eq!(rig.read("tank/c", "file"), "three");
    host.asked.stays = false;
    host.take();
    rig.session(&mut host).rollback("tank/c@s", recurse).unwrap();
    assert_eq!(host.take().1, ["take away 1", "bring back"]);
    assert_eq!(rig.read("tank/c", "file"), "one");

    // Clones of what is newer go with what depends on them.
    rig.session(&mut host).snapshot(vec!["tank/c@u".into()], vec![]).unwrap();
    let u = rig.session(&mut host).dataset("tank/c@u", Kinds::SNAPSHOT).unwrap();
    rig.session(&mut host).clone_snapshot(&u, "tank/e", vec![], Ancestors::Refused).unwrap();
    let refused = rig.session(&mut host).rollback("tank/c@s", recurse).unwrap_err();
    assert_eq!(refused.names(), ["tank/e"]);
    let clones = Rollback { clones: true, ..Rollback::default() };
    rig.session(&mut host).rollback("tank/c@s", clones).unwrap();
    assert!(!rig.all().iter().any(|name| name == "tank/e" || name == "tank/c@u"));
    rig.end();
}

#[test]
fn clones_are_promoted_and_datasets_renamed() {
    let rig = tree();
    let mut host = Noting::default();
    host.asked.used.insert("tank/a@one".into());
    let busy = rig.session(&mut host).promote("tank/c").unwrap_err();
    assert_eq!(busy.to_string(), "cannot promote 'tank/c': dataset is busy");
    host.asked.used.clear();
    host.take();
    rig.session(&mut host).promote("tank/c").unwrap();
    assert_eq!(host.take().1, ["close tank/a@one", "changed tank/a@one tank/c@one"]);
    let none = rig.session(&mut host).promote("tank/c").unwrap_err();
    assert_eq!(none.to_string(), "cannot promote 'tank/c': not a cloned filesystem");

    let a = rig.session(&mut host).dataset("tank/a", Kinds::HEAD).unwrap();
    rig.session(&mut host).create_ancestors("tank/x/y/z", false).unwrap();
    rig.session(&mut host).rename(&a, "tank/x/y/z", Rename::default()).unwrap();
    assert_eq!(
        host.take().1,
        ["take away 2 for good", "renamed tank/a tank/x/y/z", "bring back moved"]
    );
    assert!(rig.all().contains(&"tank/x/y/z/b@one".into()));
    let c = rig.session(&mut host).dataset("tank/c", Kinds::HEAD).unwrap();
    let refused = rig.session(&mut host).rename(&c, "tank/d", Rename::default()).unwrap_err();
    assert_eq!(refused.to_string(), "cannot rename 'tank/c': dataset already exists");
    rig.end();
}

#[test]
fn two_states_are_compared_and_nothing_is_left() {
    let rig = tree();
    let mut host = Noting::default();
    rig.write("tank/a", "new", "");
    let states = States::parse("tank/a@one", None).unwrap();
    rig.session(&mut host).diff(&states).unwrap();
    let (told, asked) = host.take();
    assert!(told.contains(&"Added /new".into()), "{told:?}");
    // The snapshot that is closed for its destruction is settled.
    let (close, changed) = (asked[0].strip_prefix("close "), asked[1].strip_prefix("changed "));
    assert!(close.is_some() && close == changed && asked.len() == 2, "{asked:?}");
    assert!(!rig.all().iter().any(|name| name.contains("zfs-diff")));
    let states = States::parse("tank/a/b@one", Some("tank/a@one"));
    let refused = rig.session(&mut host).diff(&states.unwrap()).unwrap_err();
    assert!(refused.to_string().contains("Not an earlier snapshot from the same fs"));

    let a = rig.session(&mut host).dataset("tank/a", Kinds::FILESYSTEM).unwrap();
    let usage = rig.session(&mut host).userspace(&a, cenote_dsl::props::Who::User, &Figure::ALL);
    let usage = usage.unwrap().unwrap();
    assert_eq!(usage[0].kind, OwnerKind::PosixUser);
    // The root directory and two files.
    assert_eq!(usage[0].account.objects.unwrap().0, 3);
    rig.end();
}

#[test]
fn who_may_nothing_is_refused_before_anything_is_unmounted() {
    let rig = tree();
    let mut host = Noting::default();
    let delegate = Some(Who { user: 1234, groups: vec![1234] });
    let rights = Rights { delegate, ..Rights::default() };
    let mut session = Session::new(rig.opened(), rights, &mut host);
    let recurse = Destroy { recurse: true, clones: true, ..Destroy::default() };
    assert_eq!(session.destroy("tank/a", recurse).unwrap_err().kind(), ErrorKind::Told);
    let rollback = session.rollback("tank/a@one", Rollback::default());
    assert_eq!(rollback.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(session.promote("tank/c").unwrap_err().kind(), ErrorKind::Denied);
    let states = States::parse("tank/a@one", None).unwrap();
    assert_eq!(session.diff(&states).unwrap_err().kind(), ErrorKind::Denied);
    let send = session.send("tank/a@one", None, &Default::default(), &mut Vec::new());
    assert_eq!(send.unwrap_err().kind(), ErrorKind::Denied);
    let (_, asked) = host.take();
    assert!(asked.is_empty(), "{asked:?}");
    rig.end();
}

#[test]
fn mounts_follow_a_mountpoint() {
    let rig = tree();
    let mut host = Noting::default();
    rig.pool().dataset("tank/a/b").unwrap().set(&[("mountpoint", "/elsewhere")]).unwrap();
    rig.pool().create_filesystem("tank/a/c", &[]).unwrap();
    let a = rig.session(&mut host).dataset("tank/a", Kinds::HEAD).unwrap();
    let list = |name: &str, value: &str| vec![(name.to_string(), value.to_string())];
    // Those that inherit it; what was not mounted before is mounted now.
    let here = list("mountpoint", "/here");
    rig.session(&mut host).set(&a, &here, false).unwrap();
    assert_eq!(host.take().1, ["take away 2 for good", "bring back moved", "mount ", "follow"]);
    host.asked.nothing_mounted = true;
    rig.session(&mut host).inherit(&a, "mountpoint", false).unwrap();
    assert_eq!(
        host.take().1,
        ["take away 2 for good", "bring back moved", "mount tank/a tank/a/c", "follow"]
    );
    // Others are followed where things are mounted.
    rig.session(&mut host).set(&a, &list("readonly", "on"), false).unwrap();
    rig.session(&mut host).set(&a, &here, true).unwrap();
    assert_eq!(host.take().1, ["follow", "follow"]);

    // What is refused unmounts nothing, or brings it back.
    let told = rig.session(&mut host).set(&a, &list("mountpoint", "nowhere"), false).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Told);
    let (told, asked) = host.take();
    assert!(told[0].starts_with("failed: cannot set property for 'tank/a': "), "{told:?}");
    assert!(asked.is_empty(), "{asked:?}");
    (host.asked.nothing_mounted, host.asked.stays) = (false, true);
    rig.session(&mut host).set(&a, &list("canmount", "off"), false).unwrap_err();
    assert_eq!(rig.pool().dataset("tank/a").unwrap().property("canmount").unwrap().unwrap(), "on");
    rig.end();
}
