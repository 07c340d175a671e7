//! dRAID by the real binary: made, written to, read without devices, scrubbed; OpenZFS's `zdb` judges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Session, can_mount};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;

fn at(s: &Session, name: &str) -> String {
    s.path(name).display().to_string()
}

/// A session with so many empty devices `d0`, `d1`, …; their paths.
fn devices(count: usize) -> (Session, Vec<String>) {
    let s = Session::new();
    let blank = |i| {
        let path = at(&s, &format!("d{i}"));
        File::create(&path).unwrap().set_len(160 * MIB).unwrap();
        path
    };
    let paths = (0..count).map(blank).collect();
    (s, paths)
}

/// Lines of `zpool status` about vdevs: names and states.
fn shown(s: &Session) -> Vec<String> {
    let text = s.run("zpool status tank").ok();
    let lines = text.lines().skip_while(|l| !l.starts_with("\tNAME")).skip(1);
    let dir = format!("{}/", s.dir.path().display());
    let line = |l: &str| {
        let words: Vec<&str> = l.split_whitespace().collect();
        words[..words.len().min(2)].join(" ").replace(&dir, "")
    };
    lines.take_while(|l| !l.is_empty()).map(line).collect()
}

fn judge(s: &Session) {
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

fn import(s: &Session) {
    let (dir, root) = (s.dir.path().display().to_string(), s.root());
    s.run(&format!("zpool import -R {root} -d {dir} tank")).ok();
}

/// The bytes of file number `n`.
fn contents(n: u64) -> Vec<u8> {
    let len = [100, 5000, 200_000, 3 << 20][n as usize % 4] + n as usize;
    (0..len as u64).map(|i| (i * 31 + i / 251 + n * 7) as u8).collect()
}

fn write(s: &Session, numbers: std::ops::Range<u64>) {
    numbers.for_each(|n| fs::write(s.path(&format!("root/tank/f{n}")), contents(n)).unwrap());
    s.run("zpool sync tank").ok();
}

fn check(s: &Session, numbers: std::ops::Range<u64>) {
    for n in numbers {
        let read = fs::read(s.path(&format!("root/tank/f{n}"))).unwrap();
        assert!(read == contents(n), "file {n}");
    }
}

/// Spoils all that the device has but its labels.
fn spoil(s: &Session, name: &str) {
    let file = File::options().write(true).open(s.path(name)).unwrap();
    for at in (4..150).map(|mib| mib * MIB) {
        file.write_all_at(&vec![0xa5; MIB as usize], at).unwrap();
    }
}

#[test]
fn a_pool_is_made_written_to_and_read_without_devices() {
    if !can_mount() {
        return;
    }
    for (word, count, parity) in [("draid1:2d:5c", 5, 1), ("draid2:3d", 8, 2)] {
        let (s, paths) = devices(count);
        let root = s.root();
        s.run(&format!("zpool create -R {root} tank {word} {}", paths.join(" "))).ok();
        write(&s, 0..24);
        let lines = shown(&s);
        assert!(
            lines[1].starts_with(&format!("draid{parity}:")) && lines[1].ends_with("-0 ONLINE")
        );
        judge(&s);
        // As many devices as there is parity are missing, then others hold something else.
        for lost in 0..count - parity {
            for i in 0..parity {
                fs::rename(s.path(&format!("d{}", lost + i)), s.path(&format!("away{i}"))).unwrap();
            }
            s.run(&format!(
                "zpool import -o readonly=on -R {root} -d {} tank",
                s.dir.path().display()
            ))
            .ok();
            check(&s, 0..24);
            s.run("zpool export tank").ok();
            for i in 0..parity {
                fs::rename(s.path(&format!("away{i}")), s.path(&format!("d{}", lost + i))).unwrap();
            }
        }
        (1..=parity).for_each(|i| spoil(&s, &format!("d{i}")));
        import(&s);
        check(&s, 0..24);
        s.run("zpool scrub -w tank").ok();
        s.run("zpool clear tank").ok();
        s.run("zpool scrub -w tank").ok();
        let status = s.run("zpool status tank").ok();
        assert!(status.contains("repaired 0B") && status.contains("with 0 errors"), "{status}");
        write(&s, 24..36);
        judge(&s);
    }
}

#[test]
fn what_openzfs_refuses_is_refused_in_its_words() {
    let (s, paths) = devices(7);
    let five = paths[..5].join(" ");
    for (words, why) in [
        (
            format!("draid1:2d:6c {five}"),
            "invalid number of dRAID disks; multiple of 6 required but 5 provided",
        ),
        (
            format!("draid1:x {five}"),
            "invalid dRAID syntax; expected [:<number><c|d|s>] not 'draid1:x'",
        ),
        (
            format!("draid2:4d {five}"),
            "requested number of dRAID data disks 4 per group is too high,\nat most 3 disks are available for data",
        ),
        (
            format!("draid3 {} {}", paths[0], paths[1]),
            "invalid vdev specification: draid3 requires at least 4 devices",
        ),
        (
            format!("draid1:2d:3s {five}"),
            "requested number of dRAID data disks 2 per group is too high,\nat most 1 disks are available for data",
        ),
        (
            format!("{} log draid {five}", paths[5]),
            "invalid vdev specification: unsupported 'log' device: draid",
        ),
    ] {
        assert_eq!(s.run(&format!("zpool create -m none tank {words}")).fails(1), why);
    }
    let dry = s.run(&format!("zpool create -n -m none tank draid1:2d {five}")).ok();
    assert!(dry.contains("draid1:2d:5c:0s\n"), "{dry}");
    s.run(&format!("zpool create -m none tank draid1:2d {five}")).ok();
    s.run(&format!("zpool add -f tank draid1:1d:2c {} {}", paths[5], paths[6])).ok();
    assert!(shown(&s).contains(&"draid1:1d:2c:0s-1 ONLINE".into()));
    judge(&s);
}
