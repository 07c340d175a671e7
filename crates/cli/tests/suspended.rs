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
        s.run("zpool sync tank").ok();
        Some(World { s, disk: Some(disk), root })
    }

    /// The device loses all that it has. What it had is kept aside.
    fn vanish(&self) {
        fs::copy(self.s.path("a"), self.s.path("own")).unwrap();
        File::options().write(true).open(self.s.path("a")).unwrap().set_len(0).unwrap();
        self.disk.as_ref().unwrap().resize();
        fs::write(self.root.join("held"), [2; 200_000]).unwrap();
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
    let mut stuck = world.start("exec sync old");
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
    s.run("daemon stop").ok();
    assert!(!ends(&mut waiting));
    world.come_back();
    world.import();
    assert_eq!(fs::read(root.join("old")).unwrap(), [1; 10_000]);
    world.finish();
}

#[test]
fn spares_and_cache_devices_are_removed() {
    let s = Session::new();
    for name in ["a", "cache", "spare"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let path = |name: &str| s.path(name).display().to_string();
    let (a, cache, spare) = (path("a"), path("cache"), path("spare"));
    s.run(&format!("zpool create -m none tank {a} cache {cache} spare {spare}")).ok();
    for (line, code, message) in [
        ("zpool remove".to_string(), 2, "missing pool name argument".to_string()),
        ("zpool remove tank".into(), 2, "missing device".into()),
        ("zpool remove -s tank x".into(), 2, "too many arguments".into()),
        (
            "zpool remove -s tank".into(),
            1,
            "cannot cancel removal: operation is not in progress".into(),
        ),
        ("zpool remove tank x".into(), 1, "cannot remove x: no such device in pool".into()),
        (
            format!("zpool remove tank {a}"),
            1,
            format!("cannot remove {a}: removing a device that holds data is not supported"),
        ),
    ] {
        assert_eq!(s.run(&line).fails(code).lines().next(), Some(message.as_str()), "{line}");
    }
    let said = s.run(&format!("zpool remove -np tank {cache}")).ok();
    assert_eq!(said, format!("{cache} 0\n"));
    s.run(&format!("zpool remove tank {cache} {spare}")).ok();
    let status = s.run("zpool status tank").ok();
    assert!(!status.contains("cache") && !status.contains("spare"), "{status}");
    assert!(s.run("zpool history -i tank").ok().contains("vdev remove tank vdev (cache)"));
    // They are free for another pool.
    s.run(&format!("zpool create -m none other {cache}")).ok();
    s.run("zpool export -a").ok();
    cenote_testpools::judge(&s.path(""), "tank");
    s.run(&format!("zpool import -d {} tank", s.path("").display())).ok();
    assert!(!s.run("zpool status tank").ok().contains("spares"));
    s.run("zpool export tank").ok();
}

/// Turns bytes of a file around where `piece` stands; how often it does.
fn spoil(disk: &Path, piece: &[u8]) -> usize {
    let mut bytes = fs::read(disk).unwrap();
    let mut found = 0;
    for at in (4 << 20..bytes.len() - piece.len()).step_by(512) {
        if &bytes[at..at + piece.len()] == piece {
            bytes[at..at + piece.len()].iter_mut().for_each(|b| *b = !*b);
            found += 1;
        }
    }
    fs::write(disk, bytes).unwrap();
    found
}

#[test]
fn a_device_with_too_many_errors_is_degraded() {
    let s = Session::new();
    for name in ["a", "b"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let (a, b) = (s.path("a"), s.path("b"));
    let (root, names) = (s.root(), format!("{} {}", a.display(), b.display()));
    if !can_mount() {
        return;
    }
    let options = format!("-O compression=off -O recordsize=4K -R {root}");
    s.run(&format!("zpool create {options} tank mirror {names}")).ok();
    s.run(&format!("zpool set checksum_n=3 tank {}", a.display())).ok();
    let sector: Vec<u8> = (0..512u32).map(|i| (i * 11 + 5) as u8).collect();
    fs::write(Path::new(&root).join("tank/f"), sector.repeat(8 * 40)).unwrap();
    s.run("zpool export tank").ok();
    assert_eq!(spoil(&a, &sector), 320);
    let import = format!("zpool import -N -d {} tank", s.path("").display());
    s.run(&import).ok();
    let state = || s.run("zpool status tank").ok();
    assert!(!state().contains("too many errors"));
    s.run("cat tank:/f").ok();
    let end = Instant::now() + LONG;
    while !state().contains("too many errors") {
        std::thread::sleep(Duration::from_millis(50));
        assert!(Instant::now() < end, "{}", state());
    }
    let text = state();
    let line = text.lines().find(|l| l.contains(&a.display().to_string())).unwrap();
    assert!(line.contains("DEGRADED") && line.ends_with("too many errors"), "{text}");
    s.run("zpool clear tank").ok();
    assert!(!state().contains("too many errors"), "{}", state());
    s.run("zpool export tank").ok();
}
