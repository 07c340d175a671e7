//! What is where: snapshots and read-only file systems in a mount that can be written to, submounts,
//! invalidation.

use crate::world::{World, file_system, settings, spec};
use cenote_fuse::{Force, MountFlags, SnapDir};
use cenote_zpl::{CreateProps, NewNode, NodeKind, Settings};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

const EXDEV: i32 = 18;
const EROFS: i32 = 30;
const EBUSY: i32 = 16;
const EACCES: i32 = 13;

fn errno<T: std::fmt::Debug>(r: std::io::Result<T>) -> i32 {
    r.unwrap_err().raw_os_error().unwrap()
}

fn nothing_changes(dir: &Path, file: &str) {
    assert_eq!(errno(File::create(dir.join("new"))), EROFS);
    assert_eq!(errno(fs::create_dir(dir.join("new"))), EROFS);
    assert_eq!(errno(std::os::unix::fs::symlink("x", dir.join("new"))), EROFS);
    assert_eq!(errno(fs::remove_file(dir.join(file))), EROFS);
    assert_eq!(errno(fs::rename(dir.join(file), dir.join("new"))), EROFS);
    assert_eq!(errno(fs::hard_link(dir.join(file), dir.join("new"))), EROFS);
    assert_eq!(errno(OpenOptions::new().write(true).open(dir.join(file))), EROFS);
    assert_eq!(errno(File::create(dir.join(file))), EROFS);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    assert_eq!(errno(fs::set_permissions(dir.join(file), mode)), EROFS);
    assert_eq!(errno(xattr::set(dir.join(file), "user.x", b"x")), EROFS);
    assert_eq!(fs::read(dir.join(file)).unwrap(), b"text");
    File::open(dir.join(file)).unwrap().sync_all().unwrap();
}

/// A file system with one file.
fn with_file() -> (Arc<crate::world::Store>, Arc<cenote_zpl::FileSystem>) {
    let (store, fs) = file_system(settings(), &CreateProps::default());
    let (uid, gid) = (0, 0);
    let kind = NodeKind::File;
    let node = NewNode { kind, mode: 0o644, umask: 0, uid, gid, keep_setgid: true };
    let ino = fs.create(fs.root(), b"file", &node).unwrap().ino;
    fs.write(ino, 0, b"text", false).unwrap();
    (store, fs)
}

#[test]
fn snapshots_cannot_be_changed() {
    let w = World::with(settings(), &CreateProps::default(), |s| {
        let (store, fs) = with_file();
        *s = spec(&store, &fs, s.mountpoint.clone());
        s.snapdir = SnapDir::Visible;
    });
    nothing_changes(&w.path(".zfs/snapshot/then"), "file");
    // Snapshots are not taken that way here (`zfs_admin_snapshot`).
    for (dir, why) in [(".zfs", EROFS), (".zfs/snapshot", EACCES)] {
        assert_eq!(errno(fs::create_dir(w.path(dir).join("x"))), why, "{dir}");
    }
    assert_eq!(errno(fs::remove_dir(w.path(".zfs"))), 1);
    assert!(fs::create_dir(w.path(".zfs")).is_err());
    let then = w.path(".zfs/snapshot/then/file");
    assert_eq!(errno(fs::hard_link(&then, w.path("link"))), EROFS);
    assert_eq!(errno(fs::rename(w.path("file"), then.with_file_name("x"))), EROFS);
    // What is in the mount goes its own way.
    fs::write(w.path("file"), "changed").unwrap();
    assert_eq!(fs::read(&then).unwrap(), b"text");
    // Copies out of a snapshot.
    fs::copy(&then, w.path("copy")).unwrap();
    assert_eq!(fs::read(w.path("copy")).unwrap(), b"text");
}

#[test]
fn programs_can_be_run_as_soon_as_the_property_says_so() {
    let w = World::with(settings(), &CreateProps::default(), |s| s.exec = false);
    fs::copy("/bin/true", w.path("true")).unwrap();
    let run = || std::process::Command::new(w.path("true")).status();
    assert_eq!(errno(run()), EACCES);
    for (exec, runs) in [(true, true), (false, false), (true, true)] {
        // Other users than root have to mount anew.
        if w.handle.remount(true, true, exec, MountFlags::empty()).unwrap() {
            assert_eq!(run().is_ok_and(|status| status.success()), runs);
        }
    }
}

#[test]
fn who_is_in_a_snapshot_stays_there_when_all_are_listed() {
    let w = World::with(settings(), &CreateProps::default(), |s| {
        let (store, fs) = with_file();
        *s = spec(&store, &fs, s.mountpoint.clone());
    });
    let then = fs::File::open(w.path(".zfs/snapshot/then")).unwrap();
    let all = fs::read_dir(w.path(".zfs/snapshot")).unwrap();
    assert_eq!(all.map(|e| e.unwrap().file_name()).collect::<Vec<_>>(), ["then"]);
    assert!(then.metadata().unwrap().is_dir());
    let inside = std::path::PathBuf::from(format!("/proc/self/fd/{}", then.as_raw_fd()));
    assert_eq!(fs::read(inside.join("file")).unwrap(), b"text");
}

#[test]
fn read_only_file_systems_cannot_be_changed() {
    let (store, fs) = with_file();
    fs.set_settings(Settings { read_only: true, ..settings() });
    let dir = tempfile::tempdir().unwrap();
    let mut handle = cenote_fuse::mount(spec(&store, &fs, dir.path().to_owned())).unwrap();
    nothing_changes(dir.path(), "file");
    handle.unmount(Force::No).unwrap();
    // Made read-only while it is mounted.
    let w = World::new();
    fs::write(w.path("file"), "text").unwrap();
    let open = OpenOptions::new().write(true).open(w.path("file")).unwrap();
    open.set_len(4).unwrap();
    w.fs.set_settings(Settings { read_only: true, ..settings() });
    nothing_changes(w.dir.path(), "file");
    assert_eq!(errno(open.set_len(0)), EROFS);
    let before = w.store.syncs.load(std::sync::atomic::Ordering::SeqCst);
    open.sync_all().unwrap();
    assert!(w.store.syncs.load(std::sync::atomic::Ordering::SeqCst) > before);
}

#[test]
fn submounts_are_other_file_systems() {
    let w = World::new();
    fs::create_dir_all(w.path("home/sub")).unwrap();
    fs::write(w.path("file"), "outer").unwrap();
    let (store, inner) = with_file();
    let submount = |name: &str, fs| {
        w.handle.add_submount(&spec(&store, fs, w.dir.path().canonicalize().unwrap().join(name)))
    };
    let mut live = submount("home", &inner).unwrap();
    // Written to through the mount of the other.
    fs::write(w.path("home/new"), "inner").unwrap();
    let mut got = [0; 5];
    inner.read(inner.resolve(b"new").unwrap(), 0, &mut got).unwrap();
    assert_eq!(&got, b"inner");
    assert_eq!(errno(fs::rename(w.path("home/new"), w.path("new"))), EXDEV);
    assert_eq!(errno(fs::hard_link(w.path("file"), w.path("home/link"))), EXDEV);
    assert_eq!(fs::copy(w.path("file"), w.path("home/copy")).unwrap(), 5);
    fs::remove_file(w.path("home/new")).unwrap();
    // The mountpoint stays where it is.
    assert_eq!(errno(fs::remove_dir(w.path("home"))), EBUSY);
    assert_eq!(errno(fs::rename(w.path("home"), w.path("other"))), EBUSY);
    // An open file without a name goes with its submount.
    let open = File::create(w.path("home/gone")).unwrap();
    fs::remove_file(w.path("home/gone")).unwrap();
    assert!(live.unmount(Force::No).is_err());
    live.unmount(Force::Yes).unwrap();
    let set = inner.object(inner.unlinked_set().unwrap()).unwrap();
    assert_eq!(cenote_dmu::zap::Zap::open(&set).unwrap().iter().count(), 0);
    assert_eq!(errno((&open).write_all(b"x")), 5);
    assert!(open.set_len(1).is_err());
    drop(open);
    assert!(w.path("home/sub").exists());
    inner.set_settings(Settings { read_only: true, ..settings() });
    let _fixed = submount("home", &inner).unwrap();
    nothing_changes(&w.path("home"), "file");
    fs::write(w.path("file"), "still").unwrap();
}

/// A user without privileges.
const USER: u32 = 65534;

/// Not a test: what this program does for [`ordinary_users_can_write`], as an ordinary user.
#[test]
fn child() {
    if std::env::var("CENOTE_TEST_ROLE").is_err() {
        return;
    }
    let props = CreateProps { uid: USER, gid: USER, ..CreateProps::default() };
    let w = World::with(settings(), &props, |_| {});
    fs::create_dir(w.path("d")).unwrap();
    fs::write(w.path("d/f"), "text").unwrap();
    fs::rename(w.path("d/f"), w.path("g")).unwrap();
    assert_eq!(fs::read(w.path("g")).unwrap(), b"text");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(w.path("g")).unwrap()), USER);
    assert_eq!(errno(std::os::unix::fs::chown(w.path("g"), Some(0), None)), 1);
    // A submount in it is changed just as well.
    let (store, inner) = file_system(settings(), &props);
    let at = w.dir.path().canonicalize().unwrap().join("d");
    let submount = w.handle.add_submount(&spec(&store, &inner, at)).unwrap();
    fs::write(w.path("d/inner"), "text").unwrap();
    assert!(inner.resolve(b"inner").is_ok());
    drop(submount);
    let disk = w.unmount();
    assert!(disk.resolve(b"g").is_ok());
}

#[test]
fn ordinary_users_can_write() {
    use std::os::unix::process::CommandExt;
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata("/dev/fuse").unwrap());
    if !rustix::process::geteuid().is_root() || mode & 0o6 != 0o6 {
        eprintln!("not tested: needs root, and a /dev/fuse that is open to everyone");
        return;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "places::child", "--nocapture"]).env("CENOTE_TEST_ROLE", "user");
    let output = command.uid(USER).gid(USER).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
