//! Files without names (`O_TMPFILE`).

use crate::world::{World, settings};
use cenote_zpl::{CreateProps, FileSystem};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;
use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

/// An unnamed file in a directory; `None` if the kernel is too old to tell of it (before 6.1).
fn unnamed(dir: &Path, flags: OFlags, mode: u32) -> Option<File> {
    match open(dir, OFlags::TMPFILE | OFlags::RDWR | flags, Mode::from_raw_mode(mode)) {
        Ok(file) => Some(file.into()),
        Err(Errno::OPNOTSUPP) => {
            let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
            let mut numbers = release.split(['.', '-']).map(|n| n.parse::<u32>().unwrap_or(0));
            let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            assert!(version < (6, 1), "not supported by Linux {release}");
            None
        }
        Err(e) => panic!("{}: {e}", dir.display()),
    }
}

/// Gives a file its first name, through `/proc` as programs without privileges do.
fn name(file: &File, path: &Path) -> Result<(), Errno> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Files without names that a crash would leave behind.
fn unlinked(fs: &FileSystem) -> usize {
    let set = fs.object(fs.unlinked_set().unwrap()).unwrap();
    cenote_dmu::zap::Zap::open(&set).unwrap().iter().count()
}

#[track_caller]
fn soon(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_file_without_a_name_can_be_used_and_be_given_one() {
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    let Some(mut file) = unnamed(&w.path("d"), OFlags::empty(), 0o640) else { return };
    let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    file.write_all(&data).unwrap();
    let mut back = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut back).unwrap();
    assert!(back == data);
    let meta = file.metadata().unwrap();
    assert_eq!((meta.nlink(), meta.len(), meta.mode() & 0o7777), (0, 300_000, 0o640));
    assert_eq!(fs::read_dir(w.path("d")).unwrap().count(), 0);
    // What changes files changes this one.
    file.set_len(200_000).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    file.sync_all().unwrap();
    // A crash would leave it to the next mount.
    assert_eq!(unlinked(&w.on_disk()), 1);
    name(&file, &w.path("d/named")).unwrap();
    assert_eq!(name(&file, &w.path("d/named")), Err(Errno::EXIST));
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(fs::metadata(w.path("d/named")).unwrap().ino(), meta.ino());
    assert_eq!(unlinked(&w.on_disk()), 0);
    // A second name, by the descriptor itself.
    linkat(file.as_fd(), "", CWD, w.path("second"), AtFlags::EMPTY_PATH).unwrap();
    drop(file);
    fs::remove_file(w.path("d/named")).unwrap();
    let meta = fs::metadata(w.path("second")).unwrap();
    assert_eq!((meta.nlink(), meta.len(), meta.mode() & 0o7777), (1, 200_000, 0o600));
    assert!(fs::read(w.path("second")).unwrap() == data[..200_000]);
    let fs = w.unmount();
    assert_eq!(fs.attr(fs.resolve(b"second").unwrap()).unwrap().nlink, 1);
    assert_eq!(unlinked(&fs), 0);
}

#[test]
fn one_that_is_named_and_loses_the_name_while_it_is_open_goes_when_it_is_closed() {
    let w = World::new();
    let Some(file) = unnamed(w.dir.path(), OFlags::empty(), 0o600) else { return };
    file.write_all_at(b"text", 0).unwrap();
    name(&file, &w.path("x")).unwrap();
    fs::remove_file(w.path("x")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(name(&file, &w.path("y")), Err(Errno::NOENT));
    let mut back = [0; 4];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"text");
    let object = file.metadata().unwrap().ino();
    drop(file);
    soon("the file goes", || w.fs.attr(object).is_err());
    assert_eq!(unlinked(&w.unmount()), 0);
}

#[test]
fn one_that_is_closed_without_a_name_gives_its_space_back() {
    let mut w = World::new();
    // The first file of all brings objects with it that describe files.
    fs::write(w.path("first"), "").unwrap();
    w.store.sync();
    let used = w.fs.used_objects();
    let Some(file) = unnamed(w.dir.path(), OFlags::empty(), 0o600) else { return };
    file.write_all_at(&[7; 1 << 20], 0).unwrap();
    let object = file.metadata().unwrap().ino();
    assert_eq!(unlinked(&w.on_disk()), 1);
    drop(file);
    soon("the file goes", || w.fs.attr(object).is_err());
    assert_eq!(unlinked(&w.on_disk()), 0);
    assert_eq!(w.fs.used_objects(), used);
    // One that is still open when the mount is taken away goes with it.
    let file = unnamed(w.dir.path(), OFlags::empty(), 0o600).unwrap();
    let object = file.metadata().unwrap().ino();
    w.handle.unmount(cenote_fuse::Force::Yes).unwrap();
    soon("the file goes with the mount", || w.fs.attr(object).is_err());
    drop(file);
    assert_eq!(unlinked(&w.on_disk()), 0);
}

#[test]
fn exclusive_ones_never_get_a_name() {
    let w = World::new();
    let Some(file) = unnamed(w.dir.path(), OFlags::EXCL, 0o600) else { return };
    assert_eq!(name(&file, &w.path("x")), Err(Errno::NOENT));
    drop(file);
    let fs = w.unmount();
    assert!(fs.readdir(fs.root(), 0, 10).unwrap().is_empty());
    assert_eq!(unlinked(&fs), 0);
}

/// A default ACL: `user::rwx user:1234:rwx group::r-x mask::rwx other::---`.
fn default_acl() -> Vec<u8> {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [(1, 7, none), (2, 7, 1234), (4, 5, none), (16, 7, none), (32, 0, none)]
        .map(|e| entry(e.0, e.1, e.2));
    [&2u32.to_le_bytes()[..], &entries.concat()].concat()
}

#[test]
fn they_inherit_from_their_directory() {
    let w = World::with(settings(), &CreateProps::default(), |_| {});
    let dir = w.path("d");
    fs::create_dir(&dir).unwrap();
    let make = |what: &str| {
        let file = unnamed(&dir, OFlags::empty(), 0o666)?;
        name(&file, &dir.join(what)).unwrap();
        Some(file.metadata().unwrap())
    };
    // The group of a set-group-id directory, and the umask.
    chown(&dir, None, Some(4321)).unwrap();
    let Some(meta) = make("own") else { return };
    let umask = 0o666 & !meta.mode();
    assert_eq!(meta.gid(), 0);
    fs::set_permissions(&dir, Permissions::from_mode(0o2777)).unwrap();
    assert_eq!(make("group").unwrap().gid(), 4321);
    fs::write(dir.join("created"), "").unwrap();
    let created = fs::metadata(dir.join("created")).unwrap();
    assert_eq!((created.gid(), 0o666 & !created.mode()), (4321, umask));
    // A default ACL takes the place of the umask.
    if let Err(e) = xattr::set(&dir, "system.posix_acl_default", &default_acl()) {
        panic!("default ACL: {e}");
    }
    let meta = make("listed").unwrap();
    fs::write(dir.join("created-listed"), "").unwrap();
    let created = fs::metadata(dir.join("created-listed")).unwrap();
    assert_eq!((meta.mode(), meta.gid()), (created.mode(), created.gid()));
    assert_eq!(meta.mode() & 0o777, 0o660);
    let acl = |what: &str| xattr::get(dir.join(what), "system.posix_acl_access").unwrap();
    assert_eq!(acl("listed"), acl("created-listed"));
    assert!(acl("listed").is_some());
}

#[test]
fn where_nothing_can_be_changed_there_are_none() {
    let w = World::new();
    fs::create_dir(w.path("d")).unwrap();
    if unnamed(w.dir.path(), OFlags::empty(), 0o600).is_none() {
        return;
    }
    let refused = |dir: &Path| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        open(dir, flags, Mode::from_raw_mode(0o600)).unwrap_err()
    };
    assert_eq!(refused(&w.path(".zfs/snapshot/then")), Errno::ROFS);
    w.fs.set_settings(cenote_zpl::Settings { read_only: true, ..settings() });
    assert_eq!(refused(&w.path("d")), Errno::ROFS);
}
