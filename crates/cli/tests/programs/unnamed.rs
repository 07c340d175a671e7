//! Files without names (`O_TMPFILE`): they get a name, or they go, also when the daemon is killed.

use crate::common::can_mount;
use crate::rig::{Rig, wait_until};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// Bytes of a file, which no compression makes smaller.
const SIZE: usize = 8 << 20;
/// Bytes that the file system's own changes may take.
const SLACK: u64 = 1 << 20;

fn unnamed(dir: &Path) -> Result<File, Errno> {
    open(dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o660)).map(File::from)
}

fn name(file: &File, path: &Path) {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW).unwrap();
}

fn data() -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..SIZE).map(|_| next()).collect()
}

/// The kernel's version.
fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Bytes that the file system takes on disk.
fn referenced(rig: &Rig) -> u64 {
    rig.cenote("zpool sync tank");
    rig.cenote("zfs get -Hp -o value referenced tank").trim().parse().unwrap()
}

#[test]
fn files_without_names_get_one_or_go() {
    if !can_mount() {
        return;
    }
    let rig = Rig::new("-O acltype=posix");
    let dir = rig.dir("shared");
    chown(&dir, None, Some(4321)).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o2775)).unwrap();
    let data = data();
    let stays = match unnamed(&dir) {
        Ok(file) => file,
        Err(e) => {
            assert_eq!(e, Errno::OPNOTSUPP);
            assert!(kernel() < (6, 1), "the kernel tells of such files");
            return eprintln!("skipped: the kernel does not tell of such files");
        }
    };
    stays.write_all_at(&data, 0).unwrap();
    name(&stays, &dir.join("stays"));
    drop(stays);
    let before = referenced(&rig);
    // One that gets no name gives its space back.
    let goes = unnamed(&dir).unwrap();
    goes.write_all_at(&data, 0).unwrap();
    let meta = goes.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.gid()), (0, 4321));
    assert!(referenced(&rig) >= before + SIZE as u64);
    drop(goes);
    wait_until("the space is free", || referenced(&rig) < before + SLACK);
    // So does one that the daemon had when it was killed; one that was named in time stays.
    let lost = unnamed(&dir).unwrap();
    lost.write_all_at(&data, 0).unwrap();
    let named = unnamed(&dir).unwrap();
    named.write_all_at(&data, 0).unwrap();
    name(&named, &dir.join("named"));
    named.sync_all().unwrap();
    assert!(referenced(&rig) >= before + 2 * SIZE as u64);
    rig.kill();
    drop((lost, named));
    rig.judge();
    rig.import();
    wait_until("the space is free", || referenced(&rig) < before + SIZE as u64 + SLACK);
    for file in ["stays", "named"] {
        assert!(fs::read(dir.join(file)).unwrap() == data, "{file}");
        let meta = fs::metadata(dir.join(file)).unwrap();
        assert_eq!((meta.nlink(), meta.gid()), (1, 4321), "{file}");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    rig.finish();
}
