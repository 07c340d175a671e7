//! Devices that are files underneath are one daemon's, whether it has them by themselves or through loop
//! devices. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::loops::Loop;
use common::{Done, Session};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;

/// A session, with a second daemon.
struct Two {
    s: Session,
}

impl Two {
    /// In a place with files of these names.
    fn new(files: &[&str]) -> Two {
        let s = Session::new();
        for name in files {
            File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
        }
        Two { s }
    }

    /// A command for the second daemon.
    fn other(&self, line: &str) -> Done {
        let mut command = self.s.command();
        command.env("CENOTE_SOCKET", self.s.path("other"));
        let output = command.args(line.split_whitespace()).output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn name(&self, file: &str) -> String {
        self.s.path(file).display().to_string()
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        let _ = self.other("daemon stop");
    }
}

const IN_USE: &str = "cannot import 'tank': one or more devices are already in use";

#[test]
fn a_pool_is_imported_once() {
    let two = Two::new(&["a", "b"]);
    let (a, b) = (two.name("a"), two.name("b"));
    let create = format!("zpool create -m none tank mirror {a} {b}");
    two.s.run(&create).ok();
    let Some(disk) = Loop::over(&two.s.path("a")) else { return };
    let again = Loop::over(&two.s.path("a")).unwrap();
    let refused = |loops: &Loop| {
        let done = two.other(&format!("zpool import -N -d {} tank", loops.name()));
        assert!(done.out.contains(&format!("in use:\n\t{}", loops.name())), "{done:?}");
        assert_eq!(done.fails(1), IN_USE);
        let said = two.other(&format!("zpool create -f -m none foo {}", loops.name())).fails(1);
        let part = format!("{} is part of active pool 'tank'", loops.name());
        assert!(said.ends_with(&part), "{said}");
        let said = two.other(&format!("zpool labelclear -f {}", loops.name())).fails(1);
        assert!(!said.is_empty());
    };
    refused(&disk);
    two.s.run("zfs create tank/one").ok();
    two.s.run("zpool export tank").ok();
    let label = two.s.run(&format!("zdb -l {}", disk.name())).ok();
    let short = disk.name().replace("/dev/", "");
    assert_eq!(two.s.run(&format!("zdb -l {short}")).ok(), label);
    // The other way around, and through another loop device.
    two.s.run(&format!("zpool import -N -d {} tank", disk.name())).ok();
    let said = two.other(&format!("zpool import -N -d {a} -d {b} tank")).fails(1);
    assert_eq!(said, IN_USE);
    two.other(&format!("zpool create -f -m none foo {a}")).fails(1);
    refused(&again);
    two.s.run("zfs create tank/two").ok();
    two.s.run("zpool export tank").ok();
    // When it is free it can be had.
    two.other(&format!("zpool import -N -d {} tank", again.name())).ok();
    two.other("zpool export tank").ok();
    drop((disk, again));
    cenote_testpools::judge(two.s.dir.path(), "tank");
}

/// A device that is in use is not said to be in use by the pool that was exported.
#[test]
fn a_device_that_others_have() {
    let two = Two::new(&["a"]);
    let Some(disk) = Loop::over(&two.s.path("a")) else { return };
    two.s.run(&format!("zpool create -m none tank {}", disk.name())).ok();
    two.s.run("zpool export tank").ok();
    let exclusive = i32::try_from(rustix::fs::OFlags::EXCL.bits()).unwrap();
    let held = File::options().read(true).custom_flags(exclusive).open(&disk.path).unwrap();
    let said = two.s.run(&format!("zpool create -f -m none foo {}", disk.name())).fails(1);
    assert_eq!(
        said,
        "cannot create 'foo': one or more vdevs refer to the same device, or one of\n\
         the devices is part of an active md or lvm device"
    );
    drop(held);
    two.s.run(&format!("zpool import -N -d {} tank", disk.name())).ok();
    two.s.run("zpool export tank").ok();
    drop(disk);
    cenote_testpools::judge(two.s.dir.path(), "tank");
}

const OVERRIDE: &str = "invalid vdev specification\nuse '-f' to override the following errors:\n";
const REPAIR: &str =
    "invalid vdev specification\nthe following errors must be manually repaired:\n";

/// Files that hold something else, or that others use through a loop device, are taken with `-f` only,
/// and not at all while the loop device is in use.
#[test]
fn a_file_with_something_else_in_it_is_spared() {
    let two = Two::new(&["a", "b", "c"]);
    let (a, b, c) = (two.name("a"), two.name("b"), two.name("c"));
    let run = |program: &str, args: &[&str]| {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let done = std::process::Command::new(program).args(args).env("PATH", path).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{program}: {done:?}");
    };
    run("mke2fs", &["-q", "-F", "-t", "ext4", &a]);
    run("mkswap", &["-q", &b]);
    let before = std::fs::read(&a).unwrap();
    let said = two.s.run(&format!("zpool create -m none tank {a}")).fails(1);
    assert_eq!(said, format!("{OVERRIDE}{a} contains a filesystem of type 'ext4'"));
    let said = two.s.run(&format!("zpool create -m none tank {c} log {a} cache {b}")).fails(1);
    assert_eq!(
        said,
        format!(
            "{OVERRIDE}{a} contains a filesystem of type 'ext4'\n\
             {b} contains a filesystem of type 'swap'"
        )
    );
    let Some(disk) = Loop::over(&two.s.path("a")) else { return };
    let behind = format!("{a} is behind the loop device {}", disk.name());
    let idle = Loop::over(&two.s.path("c")).unwrap();
    let said = two.s.run(&format!("zpool create -m none tank {c}")).fails(1);
    assert_eq!(said, format!("{OVERRIDE}{c} is behind the loop device {}", idle.name()));
    two.s.run(&format!("zpool create -f -n -m none tank {c}")).ok();
    drop(idle);
    // Mounted: not even with -f.
    let mounted = two.name("mnt");
    std::fs::create_dir(&mounted).unwrap();
    run("mount", &["-o", "ro,noload", &disk.name(), &mounted]);
    let refused = two.s.run(&format!("zpool create -f -m none tank {a}"));
    two.s.run(&format!("zpool create -m none tank {c}")).ok();
    let added = two.s.run(&format!("zpool add -f tank {a}"));
    run("umount", &[&mounted]);
    for done in [refused, added] {
        assert_eq!(done.fails(1), format!("{REPAIR}{behind}, which is mounted or in use"));
    }
    assert!(std::fs::read(&a).unwrap() == before);
    drop(disk);
    let said = two.s.run(&format!("zpool add tank {a}")).fails(1);
    assert_eq!(said, format!("{OVERRIDE}{a} contains a filesystem of type 'ext4'"));
    two.s.run(&format!("zpool add -f tank {a} {b}")).ok();
    two.s.run("zpool export tank").ok();
    // Nothing else is seen in what belongs to the pool now.
    let shown = std::process::Command::new("blkid").args(["-p", &a, &b]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(!shown.contains("ext4") && !shown.contains("\"swap\""), "{shown}");
    cenote_testpools::judge(two.s.dir.path(), "tank");
}

/// Parts of one file are different devices.
#[test]
fn a_file_in_parts() {
    let two = Two::new(&["a"]);
    let file = two.s.path("a");
    File::options().write(true).open(&file).unwrap().set_len(256 << 20).unwrap();
    let part = |at: u64| Loop::over_part(&file, at << 20, 128 << 20);
    let (Some(first), Some(second)) = (part(0), part(128)) else { return };
    let line = format!("zpool create -m none tank mirror {} {}", first.name(), second.name());
    two.s.run(&line).ok();
    two.s.run("zfs create tank/one").ok();
    let whole = Loop::over(&file).unwrap();
    for name in [two.name("a"), whole.name()] {
        let said = two.other(&format!("zpool create -f -m none foo {name}")).fails(1);
        assert!(said.ends_with(&format!("{name} is part of active pool 'tank'")), "{said}");
    }
    drop(whole);
    two.s.run("zpool export tank").ok();
    for (disk, name) in [(&first, "first"), (&second, "second")] {
        let mut copy = File::create(two.s.path(name)).unwrap();
        std::io::copy(&mut File::open(&disk.path).unwrap(), &mut copy).unwrap();
    }
    drop((first, second));
    std::fs::remove_file(file).unwrap();
    cenote_testpools::judge(two.s.dir.path(), "tank");
}

/// Two pools get one spare at once, which they are told by its two names: it has one label, and both know it.
#[test]
fn a_spare_with_two_names_is_one_for_two_pools() {
    let two = Two::new(&["a", "b", "spare"]);
    let s = &two.s;
    for name in ["a", "b"] {
        s.run(&format!("zpool create -m none {name} {}", two.name(name))).ok();
    }
    let Some(disk) = Loop::over(&s.path("spare")) else { return };
    let (file, device) = (two.name("spare"), disk.name());
    let spares = |pool: &str| {
        let status = s.run(&format!("zpool status -g {pool}")).ok();
        let lines = status.lines().skip_while(|line| line.trim() != "spares").skip(1);
        lines.map(|l| l.split_whitespace().next().unwrap_or("").to_string()).next().unwrap()
    };
    for _ in 0..8 {
        let add = |pool: &str, name: &str| s.run(&format!("zpool add -f {pool} spare {name}")).ok();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| add("a", &file));
            add("b", &device);
            first.join().unwrap();
        });
        assert_eq!(spares("a"), spares("b"));
        s.run(&format!("zpool remove a {file}")).ok();
        s.run(&format!("zpool remove b {device}")).ok();
        s.run(&format!("zpool labelclear -f {file}"));
    }
    for name in ["a", "b"] {
        s.run(&format!("zpool export {name}")).ok();
        cenote_testpools::judge(s.dir.path(), name);
    }
}
