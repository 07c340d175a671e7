//! Devices that leave a pool by command, and those that count as degraded for their errors; OpenZFS's `zdb` judges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Session, can_mount};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

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
            format!(
                "cannot remove {a}: invalid config; all top-level vdevs must have the same sector size \
                 and not be raidz."
            ),
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

#[test]
fn log_vdevs_are_removed() {
    let s = Session::new();
    for name in ["a", "b", "c", "d", "e"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let path = |name: &str| s.path(name).display().to_string();
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(path);
    let create = format!("zpool create -R {} tank {a} log {b} {c} mirror {d} {e}", s.root());
    s.run(&if can_mount() { create } else { format!("{create} -m none") }).ok();
    assert_eq!(
        s.run(&format!("zpool remove -np tank {b} mirror-3")).ok(),
        format!("{b} 0\nmirror-3 0\n")
    );
    let said = s.run(&format!("zpool remove tank {d}")).fails(1);
    assert_eq!(
        said.trim_end(),
        format!("cannot remove {d}: operation not supported on this type of pool")
    );
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        if can_mount() {
            scope.spawn(|| {
                use std::io::Write;
                let mut file = File::create(Path::new(&s.root()).join("tank/f")).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    file.write_all(&[7; 5000]).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
        s.run(&format!("zpool remove -w tank {b} mirror-3")).ok();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let status = s.run("zpool status tank").ok();
    assert!(status.contains(&c) && !status.contains(&b) && !status.contains("mirror"), "{status}");
    let events = s.run("zpool events -H").ok();
    assert_eq!(events.matches("sysevent.fs.zfs.vdev_remove_dev").count(), 2, "{events}");
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains(&format!("vdev remove tank vdev (log) {b}")), "{history}");
    assert!(history.contains("vdev remove tank vdev (log) -"), "{history}");
    // What was removed can be taken anew, and joins behind what is there.
    s.run(&format!("zpool add tank log {d}")).ok();
    s.run(&format!("zpool remove tank {c} {d}")).ok();
    let list = s.run("zpool list -v tank").ok();
    assert!(!list.contains("logs") && !list.contains(&d), "{list}");
    // A daemon that is killed leaves a pool without them.
    let pid = rustix::process::Pid::from_raw(s.daemon().unwrap()).unwrap();
    s.run(&format!("zpool add tank log {e}")).ok();
    s.run(&format!("zpool remove tank {e}")).ok();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let end = Instant::now() + LONG;
    while s.run(&format!("zpool import -f -N -d {} tank", s.path("").display())).code != 0 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!s.run("zpool status tank").ok().contains("logs"));
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path(""), "tank");
}

#[test]
fn a_vdev_that_holds_data_is_removed() {
    let s = Session::new();
    for name in ["a", "b", "c"] {
        File::create(s.path(name)).unwrap().set_len(512 << 20).unwrap();
    }
    let path = |name: &str| s.path(name).display().to_string();
    let [a, b, c] = ["a", "b", "c"].map(path);
    if !can_mount() {
        return;
    }
    s.run(&format!("zpool create -R {} tank {a} {b} {c}", s.root())).ok();
    let dir = Path::new(&s.root()).join("tank");
    let content = |n: u32| -> Vec<u8> {
        let mut state = u64::from(n) + 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..2_000_000).map(|_| next()).collect()
    };
    (0..50).for_each(|n| fs::write(dir.join(n.to_string()), content(n)).unwrap());
    s.run("zpool sync tank").ok();
    let said = s.run(&format!("zpool remove -np tank {b}")).ok();
    let size: u64 = said.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(size > 0, "{said}");
    // It stands still after what one group has copied.
    s.run("tunables set zfs_removal_suspend_progress=1").ok();
    s.run(&format!("zpool remove tank {b}")).ok();
    let status = s.run("zpool status tank").ok();
    assert!(status.contains(&format!("remove: Evacuation of {b} in progress since")), "{status}");
    let again = s.run(&format!("zpool remove tank {b}")).fails(1);
    assert_eq!(again, format!("cannot remove {b}: removal for this vdev is already in progress."));
    let other = s.run(&format!("zpool remove tank {c}")).fails(1);
    assert_eq!(other, format!("cannot remove {c}: Pool busy; removal may already be in progress"));
    File::create(s.path("d")).unwrap().set_len(512 << 20).unwrap();
    let attach = s.run(&format!("zpool attach tank {a} {}", path("d"))).fails(1);
    assert!(attach.contains("is busy, or device removal is in progress"), "{attach}");
    s.run("zpool remove -s tank").ok();
    let none = s.run("zpool remove -s tank").fails(1);
    assert_eq!(none, "cannot cancel removal: operation is not in progress");
    let status = s.run("zpool status tank").ok();
    assert!(status.contains(&format!("remove: Removal of {b} canceled on")), "{status}");
    // The daemon is killed while it copies; the next import goes on.
    s.run(&format!("zpool remove tank {b}")).ok();
    (0..50).step_by(5).for_each(|n| fs::remove_file(dir.join(n.to_string())).unwrap());
    let pid = rustix::process::Pid::from_raw(s.daemon().unwrap()).unwrap();
    s.run("tunables set zfs_removal_suspend_progress=0").ok();
    std::thread::sleep(Duration::from_millis(100));
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let import = format!("zpool import -f -R {} -d {} tank", s.root(), s.path("").display());
    let end = Instant::now() + LONG;
    while s.run(&import).code != 0 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    s.run("zpool wait -t remove tank").ok();
    let status = s.run("zpool status tank").ok();
    assert!(status.contains("remove: Removal of vdev 1 copied"), "{status}");
    assert!(status.contains("memory used for removed device mappings"), "{status}");
    assert!(status.contains(&a) && !status.contains(&b), "{status}");
    let rest = (0..50).filter(|n| dir.join(n.to_string()).exists());
    let rest: Vec<u32> = rest.collect();
    assert!(rest.len() >= 40);
    rest.iter().for_each(|n| assert!(fs::read(dir.join(n.to_string())).unwrap() == content(*n)));
    let history = s.run("zpool history -i tank").ok();
    for text in [
        "vdev remove started tank vdev 1",
        "vdev remove canceled tank vdev 1",
        "vdev remove completed tank vdev 1",
    ] {
        assert!(history.contains(text), "{text}: {history}");
    }
    s.run(&format!("zpool remove -w tank {c}")).ok();
    assert!(s.run("zpool status tank").ok().contains("remove: Removal of vdev 2 copied"));
    rest.iter().for_each(|n| assert!(fs::read(dir.join(n.to_string())).unwrap() == content(*n)));
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path(""), "tank");
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
    for name in ["a", "b", "c"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let (a, b, c) = (s.path("a"), s.path("b"), s.path("c"));
    let (root, names) = (s.root(), format!("{} {}", a.display(), b.display()));
    if !can_mount() {
        return;
    }
    let options = format!("-O compression=off -O recordsize=4K -R {root}");
    s.run(&format!("zpool create {options} tank mirror {names} spare {}", c.display())).ok();
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
    while !(state().contains("INUSE") && state().contains("resilvered")) {
        std::thread::sleep(Duration::from_millis(50));
        assert!(Instant::now() < end, "{}", state());
    }
    s.run("zpool clear tank").ok();
    assert!(!state().contains("too many errors"), "{}", state());
    s.run(&format!("zpool detach tank {}", c.display())).ok();
    let spare = s.run("zpool status tank").ok();
    assert!(spare.contains("AVAIL") && !spare.contains("spare-"), "{spare}");
    s.run("zpool export tank").ok();
}
