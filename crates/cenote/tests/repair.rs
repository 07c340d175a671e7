//! Devices that go bad, leave and join, through the library. OpenZFS's own `zdb` judges the pools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote::{CreatePool, Error, ErrorKind, Pool, ScanKind, ScanState, Vdev};
use cenote_testpools::judge;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SIZE: u64 = 256 << 20;

fn disk(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    path.to_str().unwrap().to_string()
}

/// A pool of a mirror of the disks `a` and `b`, with a file of data that does not compress.
fn mirrored(dir: &Path) -> (Pool, [String; 2], Vec<u8>) {
    let disks = [disk(dir, "a"), disk(dir, "b")];
    let vdevs = ["mirror".into(), disks[0].clone(), disks[1].clone()];
    let pool = CreatePool::new("tank", vdevs).create().unwrap();
    let mut x = 88_172_645_463_325_252_u64;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    let data: Vec<u8> = std::iter::repeat_with(next).take(8 << 20).collect();
    pool.root().unwrap().filesystem().unwrap().write("file", &data).unwrap();
    pool.sync().unwrap();
    (pool, disks, data)
}

/// Overwrites what a disk holds behind its labels in front, up to the middle.
fn spoil(disk: &str) {
    let file = OpenOptions::new().write(true).open(disk).unwrap();
    let junk = vec![0xa5; 1 << 20];
    for at in (4 << 20..SIZE / 2).step_by(junk.len()) {
        file.write_all_at(&junk, at).unwrap();
    }
}

fn leaf(pool: &Pool, path: &str) -> Vdev {
    let vdevs = pool.vdevs().unwrap();
    let leaf = vdevs[0].children.iter().find(|leaf| leaf.path.as_deref() == Some(Path::new(path)));
    leaf.unwrap_or_else(|| panic!("no {path} in {vdevs:?}")).clone()
}

fn holds(dir: &Path, data: &[u8]) {
    let pool = Pool::open([dir], "tank").unwrap();
    let files = pool.root().unwrap().filesystem().unwrap();
    assert_eq!(files.read("file").unwrap(), data);
}

#[test]
fn a_scrub_mends_what_is_wrong_on_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, [a, b], data) = mirrored(dir.path());
    assert!(pool.scan().unwrap().is_none());
    assert!(matches!(pool.stop_scrub(), Err(Error::Scan(_))));
    spoil(&b);
    pool.scrub().unwrap();
    let scan = pool.wait_for_scan(|scan| assert_eq!(scan.kind, ScanKind::Scrub)).unwrap().unwrap();
    assert_eq!((scan.state, scan.errors), (ScanState::Finished, 0));
    assert!(scan.repaired >= 8 << 20, "{scan:?}");
    assert_eq!(leaf(&pool, &a).checksum_errors, 0);
    assert!(leaf(&pool, &b).checksum_errors > 0);
    pool.clear().unwrap();
    assert_eq!(leaf(&pool, &b).checksum_errors, 0);
    assert!(pool.damaged().unwrap().is_empty());
    pool.export().unwrap();
    drop(pool);
    judge(dir.path(), "tank");
    // What was written anew is right: the other disk is not needed.
    fs::remove_file(a).unwrap();
    holds(dir.path(), &data);
}

#[test]
fn what_no_disk_has_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let only = disk(dir.path(), "only");
    let pool = CreatePool::new("tank", [only.clone()]).create().unwrap();
    let mark = b"a line that is looked for".repeat(2000);
    let root = pool.root().unwrap();
    root.set(&[("compression", "off")]).unwrap();
    root.filesystem().unwrap().write("file", &mark).unwrap();
    pool.sync().unwrap();
    // The file's data is where this line is; of metadata there are copies.
    let bytes = fs::read(&only).unwrap();
    let at = bytes.windows(64).position(|window| window == &mark[..64]).unwrap() as u64;
    OpenOptions::new().write(true).open(&only).unwrap().write_all_at(b"X", at + 100).unwrap();
    pool.scrub().unwrap();
    let scan = pool.wait_for_scan(|_| ()).unwrap().unwrap();
    assert_eq!((scan.state, scan.errors), (ScanState::Finished, 1));
    assert_eq!(pool.damaged().unwrap(), ["tank:/file"]);
    root.filesystem().unwrap().write("file", "whole again").unwrap();
    pool.sync().unwrap();
    pool.scrub().unwrap();
    pool.wait_for_scan(|_| ()).unwrap();
    assert!(pool.damaged().unwrap().is_empty());
    drop(root);
    pool.export().unwrap();
    drop(pool);
    judge(dir.path(), "tank");
}

#[test]
fn a_disk_is_replaced_and_another_one_joins() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, [a, b], data) = mirrored(dir.path());
    let missing = pool.replace("no such", &b).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Invalid);
    assert_eq!(missing.to_string(), "no such: no such device in pool");
    pool.replace(&a, &b).expect_err("a disk that is in use");
    let (c, d) = (disk(dir.path(), "c"), disk(dir.path(), "d"));
    pool.replace(&a, &c).unwrap();
    let scan = pool.wait_for_scan(|_| ()).unwrap().unwrap();
    assert_eq!((scan.kind, scan.state, scan.errors), (ScanKind::Resilver, ScanState::Finished, 0));
    pool.attach(&c, &d).unwrap();
    pool.wait_for_scan(|_| ()).unwrap();
    pool.detach(&b).unwrap();
    let paths: Vec<_> = pool.vdevs().unwrap()[0].children.iter().map(|v| v.path.clone()).collect();
    assert_eq!(paths, [Some(c.clone().into()), Some(d.clone().into())]);
    pool.export().unwrap();
    drop(pool);
    for gone in [a, b] {
        fs::remove_file(gone).unwrap();
    }
    judge(dir.path(), "tank");
    holds(dir.path(), &data);
    fs::remove_file(c).unwrap();
    holds(dir.path(), &data);
}

#[test]
fn a_disk_that_was_away_is_given_what_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let (pool, [a, b], data) = mirrored(dir.path());
    pool.offline(&b).unwrap();
    assert_eq!((pool.health(), leaf(&pool, &b).state), ("DEGRADED", "OFFLINE"));
    let last = pool.offline(&a).unwrap_err();
    assert_eq!(last.to_string(), format!("{a}: no valid replicas"));
    pool.root().unwrap().filesystem().unwrap().write("more", &data[..1 << 20]).unwrap();
    pool.sync().unwrap();
    pool.online(&b).unwrap();
    let scan = pool.wait_for_scan(|_| ()).unwrap().unwrap();
    assert_eq!((scan.kind, scan.state), (ScanKind::Resilver, ScanState::Finished));
    assert!(scan.repaired < 4 << 20, "{scan:?}");
    assert_eq!((pool.health(), leaf(&pool, &b).awaits_resilver), ("ONLINE", false));
    pool.export().unwrap();
    drop(pool);
    judge(dir.path(), "tank");
    fs::remove_file(a).unwrap();
    holds(dir.path(), &data);
}
