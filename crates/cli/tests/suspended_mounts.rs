//! A mounted pool whose device vanishes, and comes back: programs wait and can be killed, what is looked at answers, and
//! `zpool clear` has all go on. OpenZFS's `zdb` judges. Where loop devices or mounts are not to be had these tests do nothing,
//! which fails in CI.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::loops::Loop;
use common::{Session, can_mount};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

struct World {
    s: Session,
    disk: Option<Loop>,
    root: PathBuf,
}

impl World {
    fn new(options: &str) -> Option<World> {
        if !can_mount() {
            return None;
        }
        let s = Session::new();
        File::create(s.path("a")).unwrap().set_len(128 << 20).unwrap();
        let disk = Loop::over(&s.path("a"))?;
        let root = s.root();
        s.run(&format!("zpool create {options} -R {root} tank {}", disk.name())).ok();
        let root = Path::new(&root).join("tank");
        fs::write(root.join("old"), [1; 10_000]).unwrap();
        // Who makes a file keeps others from its directory.
        for n in 0..20 {
            fs::write(root.join(format!("k{n}")), "").unwrap();
            fs::write(root.join(format!("w{n}")), "").unwrap();
        }
        fs::write(root.join("held"), "").unwrap();
        fs::write(root.join("changed"), "").unwrap();
        s.run("zpool sync tank").ok();
        Some(World { s, disk: Some(disk), root })
    }

    /// The device loses all that it has. What it had is kept aside.
    fn vanish(&self) {
        // What leads to these files has been read.
        for name in ["held", "changed"] {
            fs::write(self.root.join(name), "").unwrap();
        }
        self.s.run("zpool sync tank").ok();
        fs::copy(self.s.path("a"), self.s.path("own")).unwrap();
        File::options().write(true).open(self.s.path("a")).unwrap().set_len(0).unwrap();
        self.disk.as_ref().unwrap().resize();
        fs::write(self.root.join("held"), [2; 200_000]).unwrap();
        fs::write(self.root.join("changed"), [3; 100]).unwrap();
        let said = self.s.run("zpool sync tank").fails(1);
        assert_eq!(said, "sync 'tank' failed: pool I/O is currently suspended");
    }

    fn come_back(&self) {
        let mut to = File::options().write(true).truncate(true).open(self.s.path("a")).unwrap();
        std::io::copy(&mut File::open(self.s.path("own")).unwrap(), &mut to).unwrap();
        self.disk.as_ref().unwrap().resize();
        fs::remove_file(self.s.path("own")).unwrap();
    }

    fn import(&self) {
        let disk = self.disk.as_ref().unwrap().name();
        self.s.run(&format!("zpool import -R {} -d {disk} tank", self.s.root())).ok();
    }

    /// A program of its own that runs a line of a shell in the file system.
    fn start(&self, line: &str) -> Child {
        Command::new("sh").args(["-c", line]).current_dir(&self.root).spawn().unwrap()
    }

    fn finish(mut self) {
        self.s.run("zpool export tank").ok();
        drop(self.disk.take());
        cenote_testpools::judge(&self.s.path(""), "tank");
    }
}

/// Waits for a program to end, and whether it did well.
fn ends(child: &mut Child) -> bool {
    let end = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        assert!(Instant::now() < end, "a program waits");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What waits for a scrub waits over a suspension, in which the scrub does not go on, until it is over.
#[test]
fn a_scrub_is_waited_for_until_the_pool_is_cleared() {
    let Some(world) = World::new("-O compression=off") else { return };
    let s = &world.s;
    s.run("tunables set zfs_scan_suspend_progress=1").ok();
    s.run("zpool scrub tank").ok();
    std::thread::scope(|scope| {
        let waits = ["zpool wait tank", "zpool wait -t scrub tank"];
        let waits = waits.map(|line| scope.spawn(move || s.run(line).ok()));
        world.vanish();
        std::thread::sleep(Duration::from_secs(2));
        assert!(waits.iter().all(|one| !one.is_finished()));
        world.come_back();
        s.run("zpool clear tank").ok();
        std::thread::sleep(Duration::from_secs(1));
        assert!(waits.iter().all(|one| !one.is_finished()));
        s.run("tunables reset zfs_scan_suspend_progress").ok();
        waits.into_iter().for_each(|one| drop(one.join().unwrap()));
    });
    assert!(s.run("zpool status tank").ok().contains("scan: scrub repaired "));
    world.finish();
}

#[test]
fn programs_wait_until_the_pool_is_cleared() {
    let Some(world) = World::new("-O compression=off") else { return };
    let (s, root) = (&world.s, world.root.clone());
    world.vanish();
    let status = s.run("zpool status tank").ok();
    for part in [
        " state: SUSPENDED\n",
        "status: One or more devices are faulted in response to IO failures.\n",
        "action: Make sure the affected devices are connected, then run 'zpool clear'.\n",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    assert_eq!(s.run("zpool clear tank").fails(1), "cannot clear errors for tank: I/O error");
    // More than there are threads for a mount.
    let mut killed: Vec<Child> =
        (0..20).map(|n| world.start(&format!("echo {n} >> k{n}"))).collect();
    let mut waiting: Vec<Child> =
        (0..4).map(|n| world.start(&format!("echo {n} >> w{n}"))).collect();
    let mut syncs = world.start("exec sync held");
    let mut stuck = world.start("exec sync changed");
    std::thread::sleep(Duration::from_millis(500));
    // What is there can be looked at.
    assert_eq!(fs::read(root.join("old")).unwrap(), [1; 10_000]);
    assert_eq!(fs::read(root.join("held")).unwrap(), [2; 200_000]);
    assert!(fs::read_dir(&root).unwrap().count() >= 2);
    assert_eq!(s.run("zfs list -Ho name").ok(), "tank\n");
    for child in killed.iter_mut().chain([&mut stuck]) {
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        assert!(!ends(child));
    }
    assert!(waiting.iter_mut().all(|child| child.try_wait().unwrap().is_none()));
    assert!(syncs.try_wait().unwrap().is_none());
    world.come_back();
    s.run("zpool clear tank").ok();
    assert!(waiting.iter_mut().all(ends) && ends(&mut syncs));
    assert_eq!(s.run("zpool list -Ho health tank").ok(), "ONLINE\n");
    for n in 0..4 {
        assert_eq!(fs::read_to_string(root.join(format!("w{n}"))).unwrap(), format!("{n}\n"));
    }
    s.run("zpool export tank").ok();
    world.import();
    assert_eq!(fs::read(root.join("held")).unwrap(), [2; 200_000]);
    assert_eq!(fs::read(root.join("changed")).unwrap(), [3; 100]);
    world.finish();
}

/// A rollback of a file system that is mounted needs its pool: it is refused, and the mount goes on.
#[test]
fn a_rollback_is_refused_and_the_mount_goes_on() {
    let Some(world) = World::new("-O compression=off") else { return };
    let (s, root) = (&world.s, world.root.clone());
    s.run("zfs snapshot tank@before").ok();
    let open = File::open(root.join("old")).unwrap();
    world.vanish();
    let mut waiting = world.start("echo x >> w0");
    let refused = s.run("zfs rollback tank@before").fails(1);
    assert_eq!(refused, "cannot rollback 'tank': pool I/O is currently suspended");
    assert!(fs::read_dir(&root).unwrap().count() >= 2);
    world.come_back();
    s.run("zpool clear tank").ok();
    assert!(ends(&mut waiting));
    assert_eq!(fs::read(root.join("held")).unwrap(), [2; 200_000]);
    assert_eq!(fs::read_to_string(root.join("w0")).unwrap(), "x\n");
    s.run("zfs rollback tank@before").ok();
    assert_eq!(fs::read(root.join("held")).unwrap(), b"");
    assert_eq!(fs::read_to_string(root.join("w0")).unwrap(), "");
    assert_eq!(open.metadata().unwrap().len(), 10_000);
    drop(open);
    world.finish();
}

/// The group of a rollback is the one that finds the device gone: the rollback ends with `zpool clear`, and the mount is well.
#[test]
fn a_rollback_that_suspends_its_pool_ends_with_it() {
    let Some(world) = World::new("-O compression=off") else { return };
    let (s, root) = (&world.s, world.root.clone());
    s.run("zfs snapshot tank@before").ok();
    let back = "zfs rollback tank@before";
    // What it needs is in memory then.
    s.run(back).ok();
    fs::write(root.join("w0"), "x").unwrap();
    s.run("zpool sync tank").ok();
    fs::copy(s.path("a"), s.path("own")).unwrap();
    File::options().write(true).open(s.path("a")).unwrap().set_len(0).unwrap();
    world.disk.as_ref().unwrap().resize();
    std::thread::scope(|scope| {
        let rolling = scope.spawn(|| s.run(back).ok());
        let end = Instant::now() + LONG;
        while s.run("zpool list -Ho health tank").ok() != "SUSPENDED\n" {
            assert!(Instant::now() < end && !rolling.is_finished());
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(700));
        assert!(!rolling.is_finished());
        world.come_back();
        s.run("zpool clear tank").ok();
        rolling.join().unwrap();
    });
    assert_eq!(fs::read_to_string(root.join("w0")).unwrap(), "");
    fs::write(root.join("w0"), "y").unwrap();
    assert_eq!(fs::read(root.join("old")).unwrap(), [1; 10_000]);
    world.finish();
}

#[test]
fn a_suspended_pool_can_be_unmounted_and_exported() {
    let Some(world) = World::new("-O compression=off") else { return };
    let (s, root) = (&world.s, world.root.clone());
    world.vanish();
    let mut waiting = world.start("echo x > waits");
    std::thread::sleep(Duration::from_millis(200));
    assert!(waiting.try_wait().unwrap().is_none());
    let refused = "cannot create 'tank/a': pool I/O is currently suspended";
    assert_eq!(s.run("zfs create tank/a").fails(1), refused);
    let began = Instant::now();
    s.run("zpool export -f tank").ok();
    assert!(!ends(&mut waiting) && began.elapsed() < LONG);
    world.come_back();
    world.import();
    assert_eq!(fs::read(root.join("old")).unwrap(), [1; 10_000]);
    // Unmounted while it is suspended, and mounted again.
    world.vanish();
    s.run("zfs unmount -f tank").ok();
    world.come_back();
    s.run("zpool clear tank").ok();
    s.run("zfs mount tank").ok();
    assert_eq!(fs::read(root.join("held")).unwrap(), [2; 200_000]);
    // The daemon ends while a program waits.
    world.vanish();
    let mut waiting = world.start("echo x > waits");
    std::thread::sleep(Duration::from_millis(200));
    let stopped = s.run("daemon stop");
    let said = "cannot export 'tank': pool I/O is currently suspended\n";
    assert_eq!((stopped.code, stopped.err.as_str()), (0, said));
    assert!(!ends(&mut waiting));
    world.come_back();
    world.import();
    assert_eq!(fs::read(root.join("old")).unwrap(), [1; 10_000]);
    world.finish();
}
