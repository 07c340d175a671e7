//! Devices that come to the places of those that are away, with and without `autoreplace=on`, and spares that step in, by the real binary.
//! OpenZFS's `zdb` judges. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use cenote_engine::{Engine, EngineOptions};
use cenote_format::nvlist::NvValue;
use cenote_pool::cachefile::CacheFile;
use cenote_pool::{ImportOptions, config, discover};
use common::loops::Loop;
use common::{Session, can_mount};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
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
    // It has joined, and its resilver has not begun yet: that is waited for all the same.
    until(&s, || status(&s).contains("replacing") || !came(&s).is_empty());
    s.run("zpool wait -t resilver tank").ok();
    assert!(status(&s).contains("resilvered "), "{}", status(&s));
    s.run("zpool wait -t replace tank").ok();
    until(&s, || !came(&s).is_empty());
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
fn a_device_that_was_taken_out_by_order_stays_so() {
    for (how, out) in [("", "OFFLINE"), ("-f", "FAULTED")] {
        let s = pool("mirror", &["a", "b"]);
        s.run(&format!("zpool offline {how} tank {}", at(&s, "b"))).ok();
        blank(&s, "b", SIZE);
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!((state(&s, "b"), came(&s)), (out.into(), Vec::new()));
        s.run(&format!("zpool replace -w tank {}", at(&s, "b"))).ok();
        is_whole(&s);
    }
}

/// What was faulted for its errors is replaced by another device, and comes back neither where it is nor under another identity.
#[test]
fn a_device_with_too_many_errors_is_replaced() {
    let s = pool("mirror", &["a", "b"]);
    s.run(&format!("zinject -d {} -A fault tank", at(&s, "b"))).ok();
    until(&s, || state(&s, "b") == "FAULTED");
    fill(&s, "tank/two");
    // All of it is as empty as that of a new one would be; it is the old one.
    let old = File::options().write(true).open(s.path("b")).unwrap();
    fs::copy(s.path("b"), s.path("copy")).unwrap();
    old.set_len(0).unwrap();
    old.set_len(SIZE).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!((state(&s, "b"), came(&s)), ("FAULTED".into(), Vec::new()));
    fs::rename(s.path("copy"), s.path("b")).unwrap();
    until(&s, || came(&s).len() == 1);
    let why = "autoreplace_refused = \"it is the device that had too many errors\"";
    assert!(came(&s)[0].contains(why), "{:?}", came(&s));
    assert_eq!(state(&s, "b"), "FAULTED");
    blank(&s, "b", SIZE);
    until(&s, || state(&s, "b") == "ONLINE" && state(&s, "b/old").is_empty());
    assert_eq!(came(&s).len(), 2);
    is_whole(&s);
}

/// A device that is being written to, and has nothing at its ends yet, is not taken meanwhile.
#[test]
fn a_device_that_changes_is_not_taken() {
    let s = pool("mirror", &["a", "b"]);
    lose(&s, "b");
    blank(&s, "b", SIZE);
    let copied = File::options().write(true).open(s.path("b")).unwrap();
    let end = Instant::now() + Duration::from_secs(8);
    let mut place = 16 << 20;
    while Instant::now() < end {
        copied.write_all_at(&[7; 4096], place).unwrap();
        place += 4096;
        std::thread::sleep(Duration::from_millis(20));
        assert!(came(&s).is_empty() && !status(&s).contains("replacing"), "{}", status(&s));
    }
    until(&s, || state(&s, "b") == "ONLINE" && state(&s, "b/old").is_empty());
    is_whole(&s);
}

/// What an administrator puts in its place meanwhile is not replaced in turn.
#[test]
fn a_device_that_is_replaced_by_hand_is_left_alone() {
    let s = pool("mirror", &["a", "b"]);
    lose(&s, "b");
    blank(&s, "x", SIZE);
    s.run("tunables set zfs_scan_suspend_progress=1").ok();
    let (b, x) = (at(&s, "b"), at(&s, "x"));
    s.run(&format!("zpool replace tank {b} {x}")).ok();
    blank(&s, "b", SIZE);
    std::thread::sleep(Duration::from_secs(6));
    assert!(came(&s).is_empty() && status(&s).contains("replacing"), "{}", status(&s));
    s.run("tunables set zfs_scan_suspend_progress=0").ok();
    s.run("zpool wait -t replace tank").ok();
    assert_eq!(
        (state(&s, "x"), state(&s, "b"), came(&s)),
        ("ONLINE".into(), String::new(), vec![])
    );
    is_whole(&s);
}

/// The cache file knows a device that came by itself.
#[test]
fn a_spare_that_steps_in_is_in_the_cache_file() {
    let s = pool("mirror", &["a", "b"]);
    blank(&s, "spare", SIZE);
    s.run(&format!("zpool set cachefile={} tank", at(&s, "cache"))).ok();
    s.run("zpool set autoreplace=off tank").ok();
    s.run(&format!("zpool add tank spare {}", at(&s, "spare"))).ok();
    let in_use = || {
        let file = CacheFile::read(&s.path("cache")).unwrap();
        let entry = file.entries().next().unwrap();
        let mut found = Vec::new();
        config::for_each_leaf(entry.config.list("vdev_tree").unwrap(), &mut |leaf| {
            found.push(config::path(leaf).unwrap());
        });
        found.contains(&s.path("spare"))
    };
    assert!(!in_use());
    fs::remove_file(s.path("b")).unwrap();
    fill(&s, "tank/two");
    until(&s, in_use);
    s.run("zpool wait tank").ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
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

/// A link below `/dev/disk/by-path`, as udev makes it.
struct Slot(PathBuf);

impl Slot {
    fn new(to: &Path) -> Slot {
        let dir = Path::new("/dev/disk/by-path");
        fs::create_dir_all(dir).unwrap();
        let slot = Slot(dir.join(format!("cenote-{}", std::process::id())));
        symlink(to, &slot.0).unwrap();
        slot
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        // Those that are not empty stay.
        let _ = self.0.parent().map(fs::remove_dir);
        let _ = fs::remove_dir("/dev/disk");
    }
}

/// A disk that comes to the physical place that OpenZFS noted takes the place of the old one, and has that place noted, too.
#[test]
fn a_disk_in_the_same_slot_is_taken() {
    let s = Session::new();
    ["a", "b", "c"].iter().for_each(|name| blank(&s, name, SIZE));
    let Some(disk) = Loop::over(&s.path("c")) else { return };
    s.run("tunables set zfs_txg_timeout=1").ok();
    s.run(&format!(
        "zpool create -o autoreplace=on -m none tank mirror {} {}",
        at(&s, "a"),
        at(&s, "b")
    ))
    .ok();
    s.run("zpool export tank").ok();
    let slot = Slot::new(&disk.path);
    let noted = slot.0.file_name().unwrap().to_str().unwrap().to_string();
    let (dir, b, gone) = (s.dir.path().to_path_buf(), s.path("b"), at(&s, "gone"));
    let found = discover(std::slice::from_ref(&dir));
    let engine = Engine::import(&found[0], &ImportOptions::default(), EngineOptions::default());
    let engine = engine.unwrap();
    let place = noted.clone();
    let note = move |context: &mut cenote_engine::SyncContext<'_>| {
        config::for_each_leaf_mut(&mut context.config.vdev_tree, &mut |leaf| {
            if config::path(leaf).as_ref() == Some(&b) {
                leaf.set("type", NvValue::String("disk".into()));
                leaf.set("path", NvValue::String(gone.clone()));
                leaf.set("phys_path", NvValue::String(place.clone()));
                leaf.set("vdev_enc_sysfs_path", NvValue::String("/sys/slot3".into()));
            }
        });
        context.config_changed = true;
        Ok(())
    };
    engine.sync_task(note).unwrap();
    engine.export(false).unwrap();
    drop(engine);
    fs::remove_file(s.path("b")).unwrap();
    s.run(&format!("zpool import -d {} tank", at(&s, "a"))).ok();
    until(&s, || status(&s).contains(&noted) && !status(&s).contains("replacing"));
    s.run("zpool wait tank").ok();
    let config = s.run("zdb -C tank").ok();
    assert!(
        config.contains(&format!("phys_path: '{noted}'")) && config.contains("'/sys/slot3'"),
        "{config}"
    );
    s.run("zpool scrub -w tank").ok();
    assert!(status(&s).contains("scrub repaired 0B"), "{}", status(&s));
    s.run("zpool export tank").ok();
    drop(disk);
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// Errors of a device that came by itself count from then on.
#[test]
fn a_device_that_came_is_diagnosed() {
    let s = pool("mirror", &["a", "b"]);
    lose(&s, "b");
    blank(&s, "b", SIZE);
    until(&s, || state(&s, "b") == "ONLINE" && state(&s, "b/old").is_empty());
    s.run("zpool wait tank").ok();
    s.run(&format!("zinject -d {} -e io -T read tank", at(&s, "b"))).ok();
    s.run("zpool scrub -w tank").ok();
    until(&s, || state(&s, "b") == "FAULTED");
    s.run("zinject -c all").ok();
    s.run("zpool clear tank").ok();
    s.run("zpool wait tank").ok();
    is_whole(&s);
}

/// Beside a removal no device joins a vdev: a spare waits for its end.
#[test]
fn a_spare_steps_in_after_a_removal() {
    let s = Session::new();
    ["a", "b", "c", "d", "spare"].iter().for_each(|name| blank(&s, name, SIZE));
    let of = |name| at(&s, name);
    s.run("tunables set zfs_txg_timeout=1 zfs_removal_suspend_progress=1").ok();
    let (a, b, c, d, spare) = (of("a"), of("b"), of("c"), of("d"), of("spare"));
    let options = mounted(&s);
    s.run(&format!("zpool create {options} tank mirror {a} {b} mirror {c} {d} spare {spare}")).ok();
    fill(&s, "tank/one");
    s.run("zpool remove tank mirror-1").ok();
    s.run(&format!("zinject -d {a} -A fault tank")).ok();
    until(&s, || state(&s, "a") == "FAULTED");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(state(&s, "spare"), "AVAIL");
    s.run("zpool remove -s tank").ok();
    until(&s, || state(&s, "spare") == "INUSE");
    s.run("zpool wait tank").ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}
