//! `zpool events`: what happened to pools, in the classes and with the pairs that OpenZFS has.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::loops::Loop;
use common::tank::Tank;
use common::{Session, can_mount};
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn disk(s: &Session, name: &str) -> String {
    fs::File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    s.path(name).display().to_string()
}

/// A mirror of which nothing is mounted.
fn mirror(s: &Session, pool: &str) {
    let disks = [disk(s, &format!("{pool}-a")), disk(s, &format!("{pool}-b"))].join(" ");
    let root = "-O canmount=off -O mountpoint=none";
    s.run(&format!("zpool create {root} {pool} mirror {disks}")).ok();
}

/// The classes of the events, oldest first.
fn classes(s: &Session, options: &str) -> Vec<String> {
    let text = s.run(&format!("zpool events -H {options}")).ok();
    text.lines().map(|line| line.split('\t').nth(1).unwrap().to_string()).collect()
}

#[test]
fn events_are_listed_shown_and_cleared() {
    let s = Session::new();
    mirror(&s, "tank");
    s.run("zfs create tank/a").ok();
    mirror(&s, "other");
    let all = classes(&s, "");
    assert_eq!(all[0], "sysevent.fs.zfs.pool_create", "{all:?}");
    for class in ["config_sync", "history_event"] {
        assert!(all.contains(&format!("sysevent.fs.zfs.{class}")), "{all:?}");
    }
    assert_eq!(classes(&s, "other")[0], "sysevent.fs.zfs.pool_create");
    assert!(classes(&s, "tank").len() < all.len());
    let text = s.run("zpool events").ok();
    assert_eq!(text.lines().next(), Some("TIME                           CLASS"));
    assert_eq!(text.lines().nth(1).unwrap().find("sysevent"), Some(31), "{text}");

    // A device that is taken out of use comes back.
    let device = s.path("tank-b").display().to_string();
    s.run(&format!("zpool offline tank {device}")).ok();
    s.run(&format!("zpool online tank {device}")).ok();
    let text = s.run("zpool events -v tank").ok();
    let changes: Vec<&str> =
        text.split("\n\n").filter(|e| e.contains("fs.zfs.statechange\n")).collect();
    assert_eq!(changes.len(), 2, "{text}");
    s.run(&format!("zpool offline -f tank {device}")).ok();
    s.run(&format!("zpool clear tank {device}")).ok();
    for class in ["vdev_online", "vdev_clear"] {
        let (class, path) =
            (format!("\"sysevent.fs.zfs.{class}\"\n"), format!("vdev_path = \"{device}\"\n"));
        let text = s.run("zpool events -v tank").ok();
        let event =
            text.split("\n\n").find(|e| e.contains(&class)).unwrap_or_else(|| panic!("{text}"));
        assert!(
            event.contains(&path) && event.contains("vdev_state = \"ONLINE\" (0x7)\n"),
            "{event}"
        );
    }
    assert!(changes[0].contains("\n        vdev_state = \"OFFLINE\" (0x2)\n"), "{changes:?}");
    assert!(changes[0].contains("\n        vdev_laststate = \"ONLINE\" (0x7)\n"), "{changes:?}");
    assert!(changes[0].contains(&format!("        vdev_path = \"{device}\"\n")), "{changes:?}");
    let created = text.split("\n\n").find(|e| e.contains("\"tank/a\"")).unwrap();
    for line in ["version = 0x0", "pool = \"tank\"", "history_internal_name = \"create\""] {
        assert!(created.contains(&format!("        {line}\n")), "{line}: {created}");
    }

    fs::create_dir(s.path("gone")).unwrap();
    s.run(&format!("zpool set cachefile={} tank", s.path("gone/file").display())).ok();
    fs::remove_dir_all(s.path("gone")).unwrap();
    assert!(reports(&s, "ereport.fs.zfs.config_cache_write").is_empty());
    s.run("zpool reguid tank").ok();
    let failed = reports(&s, "ereport.fs.zfs.config_cache_write");
    assert!(failed.len() == 1 && failed[0].contains("pool = \"tank\"\n"), "{failed:?}");
    s.run("zpool set cachefile=none tank").ok();
    s.run("zpool export tank").ok();
    s.run("zpool destroy other").ok();
    let all = classes(&s, "");
    for class in ["pool_reguid", "pool_export", "pool_destroy"] {
        assert!(all.contains(&format!("sysevent.fs.zfs.{class}")), "{class}: {all:?}");
    }
    let cleared = format!("cleared {} events\n", all.len());
    assert_eq!(s.run("zpool events -c").ok(), cleared);
    assert_eq!(s.run("zpool events").ok().lines().count(), 1);
    for (line, why) in
        [("-c tank", "invalid options combined with -c"), ("a b", "too many arguments")]
    {
        assert!(s.run(&format!("zpool events {line}")).fails(2).starts_with(why));
    }
    // An import that fails.
    let stripe = [disk(&s, "s-a"), disk(&s, "s-b")].join(" ");
    s.run(&format!("zpool create -m none stripe {stripe}")).ok();
    s.run("zpool export stripe").ok();
    fs::remove_file(s.path("s-b")).unwrap();
    let from = s.path("s-a").display().to_string();
    assert_ne!(s.run(&format!("zpool import -d {from} stripe")).code, 0);
    let failed = reports(&s, "ereport.fs.zfs.zpool");
    assert!(failed.len() == 1 && failed[0].contains("pool_context = 0x2\n"), "{failed:?}");
    // No more events are kept than that; a follower is told how many are gone.
    s.run("tunables set zfs_zevent_len_max=3").ok();
    let dir = s.path("").display().to_string();
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    assert_eq!(classes(&s, "").len(), 3);
    cenote_testpools::judge(&s.path(""), "tank");
}

#[test]
fn wrong_bytes_are_reported() {
    let s = Session::new();
    mirror(&s, "tank");
    s.run("zfs create -V 32M -o compression=off tank/v").ok();
    s.run("zpool export tank").ok();
    // All of one side beyond the labels is wrong.
    let mut side = OpenOptions::new().write(true).open(s.path("tank-a")).unwrap();
    side.seek(SeekFrom::Start(4 << 20)).unwrap();
    side.write_all(&vec![0x5a; 120 << 20]).unwrap();
    drop(side);
    let dir = s.path("").display().to_string();
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    let text = s.run("zpool events -v").ok();
    let report = text.split("\n\n").find(|e| e.contains("ereport.fs.zfs.checksum\n"));
    let report = report.unwrap_or_else(|| panic!("{text}"));
    for line in [
        "detector = (embedded nvlist)",
        "        scheme = \"zfs\"",
        "(end detector)",
        "vdev_type = \"file\"",
        &format!("vdev_path = \"{}\"", s.path("tank-a").display()),
        "parent_type = \"mirror\"",
        "zio_err = 0x34",
    ] {
        assert!(report.contains(&format!("        {line}\n")), "{line}: {report}");
    }
    s.run("zpool export tank").ok();
}

#[test]
fn events_are_followed() {
    let s = Session::new();
    mirror(&s, "tank");
    let mut command = s.interruptible();
    let mut follows =
        command.args(["zpool", "events", "-fH"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = follows.stdout.take().unwrap();
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.contains("pool_create") {
        let read = output.read(&mut bytes).unwrap();
        assert_ne!(read, 0, "{text}");
        text += &String::from_utf8_lossy(&bytes[..read]);
    }
    s.run("zpool export tank").ok();
    while !text.contains("pool_export") {
        let read = output.read(&mut bytes).unwrap();
        assert_ne!(read, 0, "{text}");
        text += &String::from_utf8_lossy(&bytes[..read]);
    }
    let process = rustix::process::Pid::from_raw(follows.id() as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    follows.wait().unwrap();
}

/// The events of a class, with all that they say.
fn reports(s: &Session, class: &str) -> Vec<String> {
    let text = s.run("zpool events -vH").ok();
    let class = format!("class = \"{class}\"\n");
    text.split("\n\n").filter(|event| event.contains(&class)).map(String::from).collect()
}

/// Every slow request is counted and reported, and none of a vdev to be left out.
#[test]
fn slow_requests_are_reported() {
    let s = Session::new();
    mirror(&s, "tank");
    s.run("tunables set zfs_zevent_len_max=1000000 vdev_simulated_latency=2000000").ok();
    s.run("zpool export tank").ok();
    let dir = s.path("").display().to_string();
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    let (a, b) = (s.path("tank-a").display().to_string(), s.path("tank-b").display().to_string());
    s.run(&format!("zpool set slow_io_events=off tank {b}")).ok();
    let counted = |device: &str| {
        let count = s.run(&format!("zpool get -Hpo value slow_ios tank {device}")).ok();
        count.trim().parse::<usize>().unwrap()
    };
    // What is done with this many events a second listed.
    let slow = |events: u64, name: &str| {
        s.run(&format!("tunables set zfs_slow_io_events_per_second={events}")).ok();
        s.run("zpool clear tank").ok();
        s.run("zpool events -c").ok();
        s.run("tunables set zio_slow_io_ms=1").ok();
        s.run(&format!("zfs create tank/{name}")).ok();
        s.run("tunables set zio_slow_io_ms=30000").ok();
        // What was under way has come back.
        s.run("zpool sync tank").ok();
        reports(&s, "ereport.fs.zfs.delay")
    };
    let all = slow(1_000_000, "all");
    let is_of =
        |event: &&String, device: &str| event.contains(&format!("vdev_path = \"{device}\"\n"));
    assert!(counted(&a) > 0 && counted(&b) > 0);
    assert_eq!(all.iter().filter(|e| is_of(e, &a)).count(), counted(&a));
    assert_eq!(all.iter().filter(|e| is_of(e, &b)).count(), 0);
    let delays = format!("vdev_delays = {:#x}\n", counted(&a));
    assert!(all.iter().any(|e| e.contains(&delays)), "{delays}");
    for line in
        ["zio_err = 0x0\n", "zio_delay = 0x", "zio_type = 0x2\n", "pool_failmode = \"wait\"\n"]
    {
        assert!(all.iter().any(|e| e.contains(line)), "{line}: {all:?}");
    }
    assert!(slow(0, "none").is_empty());
    assert!(counted(&a) > 0);
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path(""), "tank");
}

/// Turns over the bits of every place in the file that begins with `with`.
fn spoil(path: &Path, with: &[u8]) -> usize {
    let mut bytes = fs::read(path).unwrap();
    let mut places = 0;
    for chunk in bytes.chunks_mut(512).filter(|chunk| chunk.starts_with(with)) {
        chunk.iter_mut().for_each(|b| *b = !*b);
        places += 1;
    }
    fs::write(path, bytes).unwrap();
    places
}

#[test]
fn data_that_nobody_can_read_is_reported() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("-O compression=off -O recordsize=4K");
    let (s, disk) = (&tank.session, tank.session.path("disk"));
    s.run("zpool set failmode=continue tank").ok();
    let sector: Vec<u8> = (0..512u32).map(|i| (i * 7 + 3) as u8).collect();
    fs::write(tank.path("tank/f"), sector.repeat(24)).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(tank.path("tank/f")).unwrap());
    s.run("zpool export tank").ok();
    assert_eq!(spoil(&disk, &sector), 24);
    let dir = s.path("").display().to_string();
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    for _ in 0..2 {
        assert_ne!(s.run("cat tank:/f").code, 0);
    }
    let reports = reports(s, "ereport.fs.zfs.data");
    // Each block once, however often it is asked for.
    assert!((1..=3).contains(&reports.len()), "{reports:?}");
    for line in [
        &format!("zio_object = {inode:#x}"),
        "zio_level = 0x0",
        "zio_err = 0x34",
        "pool_failmode = \"continue\"",
    ] {
        assert!(reports[0].contains(&format!("        {line}\n")), "{line}: {reports:?}");
    }
    let status = s.run("zpool status -v tank").ok();
    assert!(status.contains("Permanent errors"), "{status}");
    s.run("zpool export tank").ok();
    let turned: Vec<u8> = sector.iter().map(|b| !b).collect();
    assert_eq!(spoil(&disk, &turned), 24);
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    tank.finish();
}

#[test]
fn a_device_that_does_not_answer_and_a_suspended_pool_are_reported() {
    let s = Session::new();
    let (a, b) = (disk(&s, "a"), disk(&s, "b"));
    let (Some(first), Some(second)) = (Loop::over(Path::new(&a)), Loop::over(Path::new(&b))) else {
        return;
    };
    let root = "-O canmount=off -O mountpoint=none";
    s.run(&format!("zpool create {root} tank mirror {} {}", first.name(), second.name())).ok();
    let shrink = |path: &str, bytes| {
        OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
    };
    let kept = fs::read(&a).unwrap();
    shrink(&b, 0);
    second.resize();
    s.run("zfs create tank/one").ok();
    let failed = reports(&s, "ereport.fs.zfs.probe_failure");
    assert!(failed.len() == 1 && failed[0].contains("prev_state = "), "{failed:?}");
    assert!(!reports(&s, "ereport.fs.zfs.io").is_empty());
    // It cannot be opened either.
    s.run("zpool clear tank").ok();
    s.run("zfs create tank/two").ok();
    let classes = classes(&s, "");
    assert!(classes.iter().any(|class| class.starts_with("ereport.fs.zfs.vdev.")), "{classes:?}");
    assert!(reports(&s, "ereport.fs.zfs.io_failure").is_empty());

    shrink(&a, 0);
    first.resize();
    // Its change is in the group that no device takes: it waits for that, or until the pool is given up.
    let mut create = s.command();
    let create = create.args(["zfs", "create", "tank/three"]).stderr(Stdio::null());
    let mut waiting = create.spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while reports(&s, "ereport.fs.zfs.io_failure").is_empty() {
        assert!(Instant::now() < end, "the pool is not suspended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let suspended = reports(&s, "ereport.fs.zfs.io_failure");
    assert_eq!(suspended.len(), 1, "{suspended:?}");
    assert!(suspended[0].contains("pool = \"tank\"\n") && !suspended[0].contains("vdev_guid"));
    s.run("zpool export -f tank");
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
    drop((first, second));
    fs::write(&a, kept).unwrap();
    fs::remove_file(&b).unwrap();
    s.run(&format!("zpool import -N -d {} tank", s.path("").display())).ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path(""), "tank");
}
