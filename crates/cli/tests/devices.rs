//! What is said of devices that are not as they should be: deleted and replaced files, write-protected and
//! full ones, pools of others, disk images with partitions; by the real binary. OpenZFS's `zdb` judges what
//! was written; where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use common::loops::Loop;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SIZE: u64 = 128 << 20;

fn file(s: &Session, name: &str) -> String {
    File::create(s.path(name)).unwrap().set_len(SIZE).unwrap();
    s.path(name).display().to_string()
}

/// A pool `tank` on files in a directory `d`: `shape` names them behind the kinds of vdevs.
fn pool(shape: &str) -> Session {
    let s = Session::new();
    fs::create_dir(s.path("d")).unwrap();
    let word = |word: &str| match word.len() {
        1 => file(&s, &format!("d/{word}")),
        _ => word.to_string(),
    };
    let words: Vec<String> = shape.split(' ').map(word).collect();
    s.run(&format!("zpool create -m none tank {}", words.join(" "))).ok();
    s
}

fn judge(s: &Session) {
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path("d"), "tank");
}

/// The words of the line of `zpool status` about a device.
fn line(s: &Session, name: &str) -> String {
    let text = s.run("zpool status tank").ok();
    let found = text.lines().find(|l| l.contains(name)).unwrap_or_default();
    found.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_deleted_file_is_noticed() {
    let s = pool("mirror a b");
    s.run("zfs create tank/one").ok();
    fs::remove_file(s.path("d/a")).unwrap();
    s.run("zpool reopen tank").ok();
    let shown = s.run("zpool status tank").ok();
    assert!(shown.contains("UNAVAIL") && shown.contains("DEGRADED"), "{shown}");
    s.run("zfs create tank/two").ok();
    judge(&s);
}

#[test]
fn a_replaced_file_is_noticed() {
    let s = pool("mirror a b");
    s.run("zfs create tank/one").ok();
    fs::remove_file(s.path("d/a")).unwrap();
    file(&s, "d/a");
    s.run("zpool reopen tank").ok();
    let shown = s.run("zpool status tank").ok();
    assert!(shown.contains("state: DEGRADED") && !shown.contains("d/a ONLINE"), "{shown}");
    s.run("zfs create tank/two").ok();
    // Nothing was written to what is there now.
    let now = fs::read(s.path("d/a")).unwrap();
    assert!(now.iter().all(|b| *b == 0));
    judge(&s);
}

#[test]
fn a_file_that_nothing_can_replace_stays_in_use() {
    let s = pool("a");
    fs::create_dir(s.path("kept")).unwrap();
    fs::rename(s.path("d/a"), s.path("kept/a")).unwrap();
    s.run("zpool reopen tank").ok();
    let said = line(&s, "d/a");
    assert!(said.starts_with("DEGRADED") && said.ends_with("was deleted or replaced"), "{said}");
    s.run("zfs create tank/one").ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path("kept"), "tank");
    s.run(&format!("zpool import -N -d {} tank", s.path("kept").display())).ok();
    assert!(s.run("zfs list -H -o name").ok().contains("tank/one"));
    s.run("zpool export tank").ok();
}

/// A deleted file is noticed by commands that look, and by writes: without a `zpool reopen`.
#[test]
fn a_deleted_file_is_not_written_to() {
    for (shape, state) in [("mirror a b", "FAULTED"), ("raidz a b c", "FAULTED")] {
        let s = pool(shape);
        fs::remove_file(s.path("d/a")).unwrap();
        let said = s.run("zpool status -x").ok();
        assert!(said.contains("status: One or more devices was deleted"), "{shape}: {said}");
        assert_eq!(line(&s, "d/a"), "ONLINE 0 0 0 was deleted or replaced", "{shape}");
        s.run("zfs create tank/one").ok();
        s.run("zpool sync tank").ok();
        let said = line(&s, "d/a");
        assert_eq!(said, format!("{state} 0 0 0 was deleted or replaced"), "{shape}");
        let shown = s.run("zpool status tank").ok();
        assert!(shown.contains("state: DEGRADED"), "{shape}: {shown}");
        judge(&s);
        s.run(&format!("zpool import -N -d {} tank", s.path("d").display())).ok();
        assert!(s.run("zfs list -H -o name").ok().contains("tank/one"));
        s.run("zpool export tank").ok();
    }
    let s = pool("a");
    fs::create_dir(s.path("kept")).unwrap();
    fs::rename(s.path("d/a"), s.path("kept/a")).unwrap();
    for command in ["zfs create tank/one", "zpool reopen tank"] {
        let said = s.run("zpool status -x").ok();
        assert!(said.contains("status: One or more devices was deleted"), "{said}");
        s.run(command).ok();
    }
    let said = s.run("zpool status -x").ok();
    assert!(said.contains("status: One or more devices was deleted"), "{said}");
    s.run("zpool export tank").ok();
    cenote_testpools::judge(&s.path("kept"), "tank");
}

/// One side of a mirror, a log, a cache device: each is called write-protected, not missing.
#[test]
fn a_write_protected_part_is_called_that() {
    for (shape, part) in [("mirror a b", "b"), ("a log l", "l"), ("a cache c", "c")] {
        let s = pool(shape);
        judge(&s);
        let Some(device) = Loop::read_only(&s.path(&format!("d/{part}"))) else { return };
        let (a, name) = (s.path("d/a").display().to_string(), device.name());
        let import = format!("zpool import -N -d {a} -d {name}");
        if part == "l" {
            let refused = s.run(&format!("{import} tank"));
            assert!(
                refused.out.contains("read-only") && refused.out.contains(&name),
                "{refused:?}"
            );
            let said = refused.fails(1);
            assert_eq!(said, "cannot import 'tank': one or more devices is read only");
        }
        s.run(&format!("{import} -m tank")).ok();
        assert!(line(&s, &name).ends_with("read-only device"), "{shape}");
        s.run("zpool export tank").ok();
        drop(device);
        cenote_testpools::judge(&s.path("d"), "tank");
    }
}

#[test]
fn a_write_protected_device_is_called_that() {
    let s = pool("a");
    judge(&s);
    let Some(device) = Loop::read_only(&s.path("d/a")) else { return };
    let refused = s.run(&format!("zpool import -N -d {} tank", device.name()));
    assert!(
        refused.out.contains(&device.name()) && refused.out.contains("read-only"),
        "{refused:?}"
    );
    let said = refused.fails(1);
    assert_eq!(said, "cannot import 'tank': one or more devices is read only");
    s.run(&format!("zpool import -N -o readonly=on -d {} tank", device.name())).ok();
    s.run("zpool export tank").ok();
}

/// A small file system in memory, until this is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn on(dir: &Path) -> Option<Tmpfs> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(dir);
        if !mount.status().is_ok_and(|status| status.success()) {
            common::skip("no tmpfs can be mounted");
            return None;
        }
        Some(Tmpfs(dir.into()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_file_system_below_is_named() {
    let s = pool("mirror a b");
    let small = s.path("small");
    fs::create_dir(&small).unwrap();
    let Some(mounted) = Tmpfs::on(&small) else { return };
    s.run("zpool destroy tank").ok();
    fs::remove_file(s.path("d/b")).unwrap();
    let (a, b) = (s.path("d/a").display().to_string(), file(&s, "small/b"));
    s.run(&format!("zpool create -f -m none tank mirror {a} {b}")).ok();
    let mut junk = File::create(small.join("junk")).unwrap();
    while junk.write_all(&[1; 4096]).is_ok() {}
    for i in 0..40 {
        s.run(&format!("zfs create tank/fs{i}")).ok();
    }
    let shown = s.run("zpool status tank").ok();
    let exported = s.run("zpool export tank");
    drop((junk, mounted));
    assert!(shown.contains("no space left"), "{shown}");
    exported.ok();
    cenote_testpools::judge(&s.path("d"), "tank");
}

#[test]
fn a_device_that_lacks_data_is_explained() {
    let s = pool("mirror a b");
    let b = s.path("d/b").display().to_string();
    s.run(&format!("zpool offline tank {b}")).ok();
    s.run("zfs create tank/one").ok();
    // The resilver waits.
    s.run("tunables set zfs_scan_suspend_progress=1").ok();
    s.run(&format!("zpool online tank {b}")).ok();
    let shown = s.run("zpool status tank").ok();
    assert!(shown.contains("resilver in progress"), "{shown}");
    s.run("tunables set zfs_scan_suspend_progress=0").ok();
    s.run("zpool wait -t resilver tank").ok();
    assert!(!s.run("zpool status -x").ok().contains("resilver"));
    judge(&s);
}

#[test]
fn a_pool_of_another_daemon_is_listed_as_in_use() {
    let (s, other) = (pool("a"), Session::new());
    let list = format!("zpool import -d {}", s.path("d").display());
    let shown = other.run(&list).ok();
    assert!(shown.contains("state: UNAVAIL") && shown.contains("another process"), "{shown}");
    assert!(shown.contains("currently in use"), "{shown}");
    judge(&s);
    let shown = other.run(&list).ok();
    assert!(shown.contains("state: ONLINE"), "{shown}");
}

/// What `dd` of a whole disk gives: a table, and the pool in partition 1.
#[test]
fn an_image_with_partitions() {
    const START: u64 = 1 << 20;
    let s = pool("a");
    s.run("zfs create tank/one").ok();
    judge(&s);
    fs::create_dir(s.path("disks")).unwrap();
    let disk = s.path("disks/disk.img");
    let image = File::options().read(true).write(true).create(true).truncate(true).open(&disk);
    let image = image.unwrap();
    image.set_len(SIZE + 2 * START).unwrap();
    let mut entry = [7; 128];
    entry[32..40].copy_from_slice(&(START / 512).to_le_bytes());
    entry[40..48].copy_from_slice(&((START + SIZE) / 512 - 1).to_le_bytes());
    let mut header = [0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[72..80].copy_from_slice(&2u64.to_le_bytes());
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    image.write_all_at(&header, 512).unwrap();
    image.write_all_at(&entry, 1024).unwrap();
    image.write_all_at(&[0x55, 0xaa], 510).unwrap();
    image.write_all_at(&fs::read(s.path("d/a")).unwrap(), START).unwrap();
    let label = s.run(&format!("zdb -l {}", disk.display())).ok();
    assert!(label.contains("name: 'tank'"), "{label}");
    let dir = s.path("disks").display().to_string();
    assert!(s.run(&format!("zpool import -d {dir}")).ok().contains("disk.img-part1"));
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    s.run("zfs create tank/two").ok();
    s.run("zpool export tank").ok();
    // What is in the partition now, by itself.
    let mut bytes = vec![0; SIZE as usize];
    image.read_exact_at(&mut bytes, START).unwrap();
    fs::write(s.path("d/a"), &bytes).unwrap();
    cenote_testpools::judge(&s.path("d"), "tank");
    s.run(&format!("zpool import -N -d {} tank", s.path("d").display())).ok();
    let names = s.run("zfs list -H -o name").ok();
    assert!(names.contains("tank/one") && names.contains("tank/two"), "{names}");
    judge(&s);
}

/// Object stores are refused by whatever takes a device and cannot take them, and say so; nothing is made there.
#[test]
fn object_stores_are_refused_beside_devices() {
    let s = pool("mirror a b");
    let (a, new) = (s.path("d/a").display().to_string(), file(&s, "new"));
    fs::create_dir(s.path("objects")).unwrap();
    let name = format!("file://{}", s.path("objects").display());
    for (command, part) in [
        (format!("zpool create -f -m none other {new} log {name}"), "be nothing else"),
        (format!("zpool create -f -m none other mirror {new} {name}"), "be nothing else"),
        (format!("zpool create -f -m none other {new} {name}"), "has its data there alone"),
        (format!("zpool add -f tank {name}"), "can be given to new pools only"),
        (format!("zpool add -f tank spare {name}"), "can be given to new pools only"),
        (format!("zpool attach -f tank {a} {name}"), "object store"),
        (format!("zpool replace -f tank {a} {name}"), "object store"),
    ] {
        let said = s.run(&command).fails(1);
        assert!(said.contains(part), "{command}: {said}");
    }
    let said = s.run(&format!("zpool split -n tank other {name}")).fails(1);
    assert!(said.contains("cannot be split off into an object store"), "{said}");
    assert!(s.run(&format!("zpool labelclear -f {name}")).code != 0);
    assert_eq!(fs::read_dir(s.path("objects")).unwrap().count(), 0);
    // The feature is one that no pool may have.
    assert!(!s.run("zpool upgrade -v").ok().contains("object_vdev"));
    assert!(!s.run("zpool get all tank").ok().contains("object_vdev"));
    let why = "feature 'object_vdev' unsupported by kernel";
    let create = format!("zpool create -m none -o feature@object_vdev=enabled other {new}");
    assert_eq!(s.run(&create).fails(1), format!("cannot create 'other': {why}"));
    let said = s.run("zpool set feature@object_vdev=enabled tank").fails(1);
    assert_eq!(said, format!("cannot set property for 'tank': {why}"));
    judge(&s);
}
