//! The one cache of a daemon: what it says that it takes, and what the process takes; pools that come and go.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::{Session, can_mount};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A daemon, and the directory of its figures.
fn daemon() -> (Session, PathBuf) {
    let session = Session::new();
    session.run("daemon").ok();
    let dir = session.path("figures");
    fs::create_dir(&dir).unwrap();
    session.run(&format!("tunables mount {}", dir.display())).ok();
    (session, dir.join("kstat/zfs/arcstats"))
}

fn finish(session: &Session) {
    session.run(&format!("tunables unmount {}", session.path("figures").display())).ok();
}

fn create(session: &Session, name: &str, mib: u64, options: &str) {
    let disk = session.path(name);
    fs::File::create(&disk).unwrap().set_len(mib * MIB).unwrap();
    let (root, disk) = (session.root(), disk.display().to_string());
    session.run(&format!("zpool create -R {root} {options} {name} {disk}")).ok();
}

fn figure(arcstats: &PathBuf, name: &str) -> u64 {
    let text = fs::read_to_string(arcstats).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Bytes of memory that a process has.
fn resident(process: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Waits for what holds at last, and says what it was like to the end where it does not.
#[track_caller]
fn within<T: std::fmt::Debug>(seconds: u64, look: impl Fn() -> (bool, T)) {
    let begun = Instant::now();
    loop {
        let (holds, what) = look();
        if holds {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(seconds), "{what:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Half of each record is random.
fn write_compressible(path: &PathBuf, bytes: u64, seed: &mut u64) {
    let mut file = fs::File::create(path).unwrap();
    let mut record = vec![0; 128 << 10];
    for _ in 0..bytes / record.len() as u64 {
        for word in record[..64 << 10].chunks_mut(8) {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            word.copy_from_slice(&seed.to_le_bytes());
        }
        file.write_all(&record).unwrap();
    }
}

/// The process takes what the cache says that it takes, and little else; and gives it back when the cache is to be smaller.
#[test]
fn what_the_cache_says_is_what_the_daemon_takes() {
    if !can_mount() {
        return;
    }
    let (session, arcstats) = daemon();
    // So much it takes whatever else the machine does.
    session.run("tunables set zfs_arc_max=1G zfs_arc_min=600M").ok();
    create(&session, "tank", 1024, "-O compression=lz4");
    let process = session.daemon().unwrap();
    let (idle, counted) = (resident(process), figure(&arcstats, "size"));
    let mut seed = 1;
    for n in 0..8 {
        write_compressible(&session.path("root/tank").join(n.to_string()), 50 * MIB, &mut seed);
    }
    session.run("zpool sync tank").ok();
    let size = || figure(&arcstats, "size") - counted;
    // Each record has 64 KiB and a sector, for which the allocator takes 80 KiB.
    let all = || fs::read_to_string(&arcstats).unwrap();
    assert!(size() >= 200 * MIB && size() <= 270 * MIB, "{}\n{}", size(), all());
    // Beside it there are buffers to come back (64 MiB of chunks), and what is free is given back in ten seconds.
    const BESIDE: u64 = 64 * MIB;
    let fits = || {
        let (process, cache) = (resident(process) - idle, size());
        (
            process >= cache / 2 && process <= cache + cache * 15 / 100 + BESIDE,
            (process / MIB, cache / MIB),
        )
    };
    within(30, fits);
    session.run("tunables set zfs_arc_max=32M zfs_arc_min=16M").ok();
    let (max, taken) = (32 * MIB, || (resident(process) - idle) / MIB);
    within(3, || (figure(&arcstats, "size") <= max && taken() <= 32 + 64, (taken(), size() / MIB)));
    assert_eq!(figure(&arcstats, "c_max"), max);
    session.run("tunables reset zfs_arc_max zfs_arc_min").ok();
    session.run("zpool export tank").ok();
    finish(&session);
    cenote_testpools::judge(session.dir.path(), "tank");
}

/// Pools share the cache; one that is exported leaves nothing there, and the other keeps what it has.
#[test]
fn what_a_pool_has_goes_with_it() {
    if !can_mount() {
        return;
    }
    let (session, arcstats) = daemon();
    let (mut seed, of) = (7, |name: &str| figure(&arcstats, name));
    let values = || of("compressed_size") + of("overhead_size") + of("dnode_size");
    for name in ["one", "two"] {
        create(&session, name, 128, "-O compression=off");
        write_compressible(&session.path("root").join(name).join("f"), 16 * MIB, &mut seed);
        session.run(&format!("zpool sync {name}")).ok();
    }
    let both = (of("compressed_size"), of("hash_elements"));
    assert!(both.0 >= 32 * MIB, "{both:?}");
    session.run("zpool export one").ok();
    let left = of("compressed_size");
    assert!(left >= 16 * MIB && left <= both.0 - 16 * MIB, "{left} of {both:?}");
    // It is still found by readers of the other pool.
    let misses = of("demand_data_misses");
    let read = fs::read(session.path("root/two/f")).unwrap();
    assert_eq!((read.len() as u64, of("demand_data_misses")), (16 * MIB, misses));
    session.run("zpool export two").ok();
    assert_eq!((values(), of("hdr_size"), of("hash_elements"), of("size")), (0, 0, 0, 0));
    // A pool may have one of its own, which the figures have as well.
    let (max, dir) = (of("c_max"), session.dir.path().display().to_string());
    let mut import = session.command();
    import.env("CENOTE_ARC_MAX", "24M").args(["zpool", "import", "-N", "-d", &dir, "one"]);
    assert!(cenote_testpools::output(&mut import).status.success());
    assert_eq!(of("c_max"), max + 24 * MIB);
    session.run("zpool export one").ok();
    assert_eq!((of("c_max"), of("size")), (max, 0));
    finish(&session);
    for pool in ["one", "two"] {
        cenote_testpools::judge(session.dir.path(), pool);
    }
}
