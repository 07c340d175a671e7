//! Devices that come to the places of those that are away, with and without `autoreplace=on`, by the real binary. OpenZFS's `zdb`
//! judges. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::loops::Loop;
use common::{Session, can_mount};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: u64 = 128 << 20;

/// A session with a pool of this layout of the files `a`, `b` and `c`, and something in it.
fn pool(layout: &str, names: &[&str]) -> Session {
    let s = Session::new();
    names.iter().for_each(|name| blank(&s, name, SIZE));
    let paths: Vec<String> = names.iter().map(|name| at(&s, name)).collect();
    // The daemon looks for devices once in this time.
    s.run("tunables set zfs_txg_timeout=1").ok();
    s.run(&format!(
        "zpool create -o autoreplace=on {} tank {layout} {}",
        mounted(&s),
        paths.join(" ")
    ))
    .ok();
    fill(&s, "tank/one");
    s
}

/// Options of a pool that is mounted where that can be.
fn mounted(s: &Session) -> String {
    if can_mount() { format!("-R {}", s.root()) } else { "-m none".into() }
}

/// Makes a file system with something in it.
fn fill(s: &Session, name: &str) {
    if can_mount() {
        s.run(&format!("zfs create {name}")).ok();
        let bytes: Vec<u8> = (0..8u32 << 20).map(|i| (i ^ (i >> 9)) as u8).collect();
        fs::write(Path::new(&s.root()).join(name).join("file"), bytes).unwrap();
    } else {
        s.run(&format!("zfs create -o canmount=off {name}")).ok();
    }
    s.run("zpool sync tank").ok();
}

/// A new empty device where that of this name was.
fn blank(s: &Session, name: &str, size: u64) {
    // In one step, so that it is never seen half made.
    File::create(s.path("new")).unwrap().set_len(size).unwrap();
    fs::rename(s.path("new"), s.path(name)).unwrap();
}

fn at(s: &Session, name: &str) -> String {
    s.path(name).display().to_string()
}

fn status(s: &Session) -> String {
    s.run("zpool status tank").ok()
}

/// What `zpool status` says of a device.
fn state(s: &Session, name: &str) -> String {
    let (text, path) = (status(s), at(s, name));
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = words.rev().find(|words| words.first() == Some(&path.as_str()));
    found.and_then(|words| words.get(1).map(ToString::to_string)).unwrap_or_default()
}

#[track_caller]
fn until(s: &Session, what: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !what() {
        assert!(Instant::now() < end, "{}\n{}", status(s), s.run("zpool events -v").ok());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The events of devices that came, as `zpool events -v` has them.
fn came(s: &Session) -> Vec<String> {
    let text = s.run("zpool events -v").ok();
    let events = text.split("\n\n").filter(|event| event.contains("resource.fs.zfs.autoreplace"));
    events.map(String::from).collect()
}

/// Takes a device away, and waits until the pool knows.
#[track_caller]
fn lose(s: &Session, name: &str) {
    fs::remove_file(s.path(name)).unwrap();
    // It is missed when something is written.
    s.run("zpool set comment=lost tank").ok();
    until(s, || state(s, name) != "ONLINE");
}

/// All is whole and in order.
#[track_caller]
fn is_whole(s: &Session) {
    s.run("zpool wait tank").ok();
    s.run("zpool scrub -w tank").ok();
    let status = status(s);
    assert!(status.contains(" state: ONLINE") && status.contains("scrub repaired 0B"), "{status}");
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

fn is_replaced(layout: &str, names: &[&str]) {
    let s = pool(layout, names);
    assert_eq!(s.run("zpool get -Ho value,source autoreplace tank").ok(), "on\tlocal\n");
    lose(&s, "b");
    fill(&s, "tank/two");
    blank(&s, "b", SIZE);
    until(&s, || !came(&s).is_empty());
    // The one waits for the other, whatever has begun by now.
    s.run("zpool wait -t resilver tank").ok();
    assert!(status(&s).contains("resilvered "), "{}", status(&s));
    s.run("zpool wait -t replace tank").ok();
    assert_eq!((state(&s, "b"), state(&s, "b/old")), ("ONLINE".into(), String::new()));
    let (events, b) = (came(&s), at(&s, "b"));
    assert!(events.len() == 1 && !events[0].contains("refused"), "{events:?}");
    let history = s.run("zpool history -i tank").ok();
    assert!(
        history.contains(&format!("vdev attach replace vdev={b} for vdev={b}/old")),
        "{history}"
    );
    assert!(!history.contains("zpool replace"), "{history}");
    // The others are not needed for what it has.
    for name in names.iter().filter(|name| **name != "b").take(1) {
        lose(&s, name);
        assert_eq!(s.run("zpool wait -t replace tank").code, 0);
        blank(&s, name, SIZE);
        until(&s, || came(&s).len() == 2 && state(&s, name) == "ONLINE");
    }
    is_whole(&s);
}

#[test]
fn a_blank_device_takes_the_place_of_one_of_a_mirror() {
    is_replaced("mirror", &["a", "b"]);
}

#[test]
fn a_blank_device_takes_the_place_of_one_of_raidz() {
    is_replaced("raidz1", &["a", "b", "c"]);
}

#[test]
fn a_device_with_something_on_it_is_not_taken() {
    let s = pool("mirror", &["a", "b"]);
    let refused = |n: usize, why: &str| {
        until(&s, || came(&s).len() == n);
        assert!(
            came(&s)[n - 1].contains(&format!("autoreplace_refused = \"{why}\"")),
            "{:?}",
            came(&s)
        );
        assert_ne!(state(&s, "b"), "ONLINE");
    };
    lose(&s, "b");
    blank(&s, "x", SIZE);
    s.run(&format!("zpool create -m none other {}", at(&s, "x"))).ok();
    s.run("zpool export other").ok();
    let before = fs::read(s.path("x")).unwrap();
    fs::copy(s.path("x"), s.path("kept")).unwrap();
    fs::rename(s.path("x"), s.path("b")).unwrap();
    refused(1, "it has a label of pool 'other'");
    assert!(fs::read(s.path("b")).unwrap() == before);
    // One label is enough, and one of a pool that was destroyed.
    let last = File::open(s.path("kept")).unwrap();
    let mut label = vec![0; 256 << 10];
    last.read_exact_at(&mut label, SIZE - (256 << 10)).unwrap();
    blank(&s, "x", SIZE);
    File::options()
        .write(true)
        .open(s.path("x"))
        .unwrap()
        .write_all_at(&label, SIZE - (256 << 10))
        .unwrap();
    fs::rename(s.path("x"), s.path("b")).unwrap();
    refused(2, "it has a label of pool 'other'");
    blank(&s, "x", SIZE);
    File::options()
        .write(true)
        .open(s.path("x"))
        .unwrap()
        .write_all_at(&[0x53, 0xef], 0x438)
        .unwrap();
    fs::rename(s.path("x"), s.path("b")).unwrap();
    refused(3, "it contains a filesystem of type 'ext2'");
    blank(&s, "x", SIZE);
    let kept = File::options().write(true).open(s.path("x")).unwrap();
    kept.write_all_at(b"a letter", 0).unwrap();
    fs::rename(s.path("x"), s.path("b")).unwrap();
    refused(4, "it is not empty");
    blank(&s, "b", SIZE - (16 << 20));
    refused(5, "device is too small");
    blank(&s, "b", 1 << 20);
    refused(6, "device is less than the minimum size (64M)");
    // None of this is in the way of the right one.
    blank(&s, "b", SIZE);
    until(&s, || state(&s, "b") == "ONLINE" && state(&s, "b/old").is_empty());
    assert_eq!(came(&s).len(), 7);
    is_whole(&s);
}

#[test]
fn what_is_off_takes_nothing() {
    let s = pool("mirror", &["a", "b"]);
    s.run("zpool set autoreplace=off tank").ok();
    lose(&s, "b");
    blank(&s, "b", SIZE);
    std::thread::sleep(Duration::from_secs(5));
    assert!(came(&s).is_empty() && state(&s, "b") != "ONLINE", "{}", status(&s));
    assert_eq!(state(&s, "b/old"), "");
    // It is seen at once when it may be.
    s.run("zpool set autoreplace=on tank").ok();
    until(&s, || state(&s, "b") == "ONLINE" && state(&s, "b/old").is_empty());
    is_whole(&s);
}

#[test]
fn a_device_that_was_taken_offline_stays_so() {
    let s = pool("mirror", &["a", "b"]);
    s.run(&format!("zpool offline tank {}", at(&s, "b"))).ok();
    blank(&s, "b", SIZE);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!((state(&s, "b"), came(&s)), ("OFFLINE".into(), Vec::new()));
    s.run(&format!("zpool replace -w tank {}", at(&s, "b"))).ok();
    is_whole(&s);
}

#[test]
fn the_same_device_comes_back() {
    let s = pool("mirror", &["a", "b"]);
    fs::rename(s.path("b"), s.path("away")).unwrap();
    fill(&s, "tank/two");
    s.run("zpool reopen tank").ok();
    until(&s, || state(&s, "b") != "ONLINE");
    fill(&s, "tank/three");
    fs::rename(s.path("away"), s.path("b")).unwrap();
    until(&s, || state(&s, "b") == "ONLINE");
    assert!(came(&s).is_empty(), "{:?}", came(&s));
    is_whole(&s);
}

/// Disks come back whatever `autoreplace` says, as ZED has it.
#[test]
fn a_disk_comes_back() {
    let s = Session::new();
    let names = ["a", "b"];
    names.iter().for_each(|name| blank(&s, name, SIZE));
    let disks: Option<Vec<Loop>> = names.iter().map(|name| Loop::over(&s.path(name))).collect();
    let Some(disks) = disks else { return };
    let (link, other) = (s.path("disk"), disks[0].name());
    symlink(&disks[1].path, &link).unwrap();
    s.run("tunables set zfs_txg_timeout=1").ok();
    let link_name = link.display();
    s.run(&format!("zpool create {} tank mirror {other} {link_name}", mounted(&s))).ok();
    fs::remove_file(&link).unwrap();
    s.run("zpool reopen tank").ok();
    until(&s, || state(&s, "disk") != "ONLINE");
    fill(&s, "tank/one");
    symlink(&disks[1].path, &link).unwrap();
    until(&s, || state(&s, "disk") == "ONLINE");
    s.run("zpool wait tank").ok();
    let events = s.run("zpool events").ok();
    assert!(events.contains("vdev_online") && came(&s).is_empty(), "{events}");
    s.run("zpool scrub -w tank").ok();
    assert!(status(&s).contains("scrub repaired 0B"), "{}", status(&s));
    s.run("zpool export tank").ok();
    drop(disks);
    cenote_testpools::judge(s.dir.path(), "tank");
}
