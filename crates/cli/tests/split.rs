//! `zpool split` by the real binary; OpenZFS's `zdb` judges both pools. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Session, can_mount};
use std::fs::File;

/// A session with a pool `tank` of these devices; words of one letter are files.
fn pool(line: &str) -> Session {
    let s = Session::new();
    let word = |word: &str| match word.len() {
        1 => at(&s, word),
        _ => word.to_string(),
    };
    let words: Vec<String> = line.split_whitespace().map(word).collect();
    s.run(&format!("zpool create -m none tank {}", words.join(" "))).ok();
    s
}

/// The path of a file with this name, which is made if it is not there.
fn at(s: &Session, name: &str) -> String {
    if !s.path(name).exists() {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    s.path(name).display().to_string()
}

#[test]
fn a_pool_is_split_in_two() {
    let s = pool("mirror a b mirror c d log e special mirror f g");
    let dir = s.path("").display().to_string();
    s.run("zfs create tank/data").ok();
    let said = s.run(&format!("zpool split -nP tank half {}", at(&s, "c"))).ok();
    let expected = format!(
        "would create 'half' with the following layout:\n\n\thalf\n\t  {}\n\t  {}\n\tspecial\n\t  {}\n",
        at(&s, "b"),
        at(&s, "c"),
        at(&s, "g"),
    );
    assert_eq!(said.replace(&dir, ""), expected.replace(&dir, ""));
    assert!(s.run("zpool list -H -o name").ok().lines().eq(["tank"]));
    s.run(&format!("zpool split -o comment=half tank half {}", at(&s, "c"))).ok();
    let status = s.run("zpool status -P tank").ok();
    assert!(status.contains("logs") && !status.contains("mirror"), "{status}");
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains(&format!("detach vdev={}", at(&s, "b"))), "{history}");
    assert!(history.contains("zpool split -o comment=half tank half"), "{history}");
    // It is exported.
    let listed = s.run(&format!("zpool import -d {dir}")).ok();
    assert!(listed.contains("pool: half") && listed.contains("state: ONLINE"), "{listed}");
    s.run(&format!("zpool import -N -d {dir} half")).ok();
    assert_eq!(s.run("zpool get -H -o value comment half").ok(), "half\n");
    assert!(s.run("zpool history -i half").ok().contains("split from pool tank"));
    assert_eq!(s.run("zfs list -H -o name -r half").ok(), "half\nhalf/data\n");
    assert!(s.run("zpool status -x half").ok().contains("pool 'half' is healthy"));
    s.run("zpool export -a").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
    cenote_testpools::judge(s.dir.path(), "half");
}

#[test]
fn the_new_pool_is_mounted_below_its_root() {
    let s = pool("mirror a b");
    s.run("zfs set mountpoint=/data tank").ok();
    let root = s.path("root").display().to_string();
    let mountable = can_mount();
    let said = s.run(&format!("zpool split -R {root} -o ro tank half")).ok();
    assert!(mountable || said.is_empty());
    assert_eq!(s.run("zpool get -H -o value altroot half").ok(), format!("{root}\n"));
    if mountable {
        assert_eq!(s.run("zfs get -H -o value mounted half").ok(), "yes\n");
    }
    assert_eq!(s.run("zpool list -H -o name").ok(), "half\ntank\n");
    s.run("zpool export -a").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
    cenote_testpools::judge(s.dir.path(), "half");
}

#[test]
fn what_openzfs_refuses_is_refused_in_its_words() {
    let s = pool("mirror a b c");
    let usage = |line: &str, why: &str| {
        assert_eq!(s.run(line).fails(2).lines().next(), Some(why), "{line}");
    };
    usage("zpool split", "Missing pool name");
    usage("zpool split tank", "Missing new pool name");
    usage("zpool split -o ro tank half", "setting mntopts is only valid when importing the pool");
    usage("zpool split -l tank half", "loading keys is only valid when importing the pool");
    usage("zpool split -x tank half", "invalid option 'x'");
    let fails = |line: &str, why: &str| assert_eq!(s.run(line).fails(1), why, "{line}");
    fails("zpool split none half", "cannot open 'none': no such pool");
    fails("zpool split tank mirror", "Unable to split tank: name is reserved");
    fails("zpool split tank tank", "Unable to split tank: pool already exists");
    fails(
        &format!("zpool split tank half {} {}", at(&s, "a"), at(&s, "b")),
        "Unable to split tank: Device list must include at most one disk from each mirror",
    );
    fails(
        &format!("zpool split tank half {}", at(&s, "x")),
        "Unable to split tank: Device list must include at most one disk from each mirror",
    );
    fails("zpool split tank half mirror", "Cannot use 'mirror' as a device for splitting");
    fails(
        "zpool split -o readonly=on tank half",
        "Unable to split tank: property readonly can only be set at import time",
    );
    fails("zpool split -R dir tank half", "Unable to split tank: bad alternate root 'dir'");
    s.run("zpool checkpoint tank").ok();
    fails("zpool split tank half", "Unable to split tank: checkpoint exists");
    s.run("zpool export tank").ok();
    let s = pool("raidz a b c");
    assert_eq!(
        s.run("zpool split tank half").fails(1),
        "Unable to split tank: Source pool must be composed only of mirrors"
    );
    s.run("zpool export tank").ok();
}
