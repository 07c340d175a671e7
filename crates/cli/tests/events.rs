//! `zpool events`: what happened to pools, in the classes and with the pairs that OpenZFS has.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Stdio;

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
    assert!(changes[0].contains("\n        vdev_state = \"OFFLINE\" (0x2)\n"), "{changes:?}");
    assert!(changes[0].contains("\n        vdev_laststate = \"ONLINE\" (0x7)\n"), "{changes:?}");
    assert!(changes[0].contains(&format!("        vdev_path = \"{device}\"\n")), "{changes:?}");
    let created = text.split("\n\n").find(|e| e.contains("\"tank/a\"")).unwrap();
    for line in ["version = 0x0", "pool = \"tank\"", "history_internal_name = \"create\""] {
        assert!(created.contains(&format!("        {line}\n")), "{line}: {created}");
    }

    s.run("zpool reguid tank").ok();
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
    // No more are kept than that; who follows is told of those that are gone.
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
