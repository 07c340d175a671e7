//! Owner, mode, times and extended attributes of a copy.
//!
//! Order matters: giving a file away clears its set-user-id bit, so the owner is set before the
//! mode; an ACL contains the group's mode, so extended attributes follow the mode; all of these
//! touch the file, so the times come last.

use cenote_zpl::{Attr, FileSystem};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Sets everything that is known about `ino` on its copy at `path`, never following a link.
/// Returns what could not be kept.
pub fn restore(fs: &FileSystem, ino: u64, attr: &Attr, path: &Path) -> Vec<String> {
    let mut lost = Vec::new();
    let mut note = |what: &str, e: &dyn std::fmt::Display| lost.push(format!("{what}: {e}"));
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
        let set = rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        if let Err(e) = set {
            note("owner", &e);
        }
    }
    if !attr.is_symlink() {
        // Anything but a link is not followed anyhow.
        let mode = Mode::from_raw_mode(attr.mode & 0o7777);
        if let Err(e) = rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()) {
            note("mode", &e);
        }
    }
    match fs.listxattr(ino) {
        Err(e) => note("extended attributes", &e),
        Ok(names) => {
            for name in names {
                let shown = String::from_utf8_lossy(&name).into_owned();
                match fs.getxattr(ino, &name) {
                    Ok(Some(value)) => {
                        let name = OsStr::from_bytes(&name);
                        if let Err(e) =
                            rustix::fs::lsetxattr(path, name, &value, XattrFlags::empty())
                        {
                            note(&format!("extended attribute {shown}"), &e);
                        }
                    }
                    Ok(None) => {}
                    Err(e) => note(&format!("extended attribute {shown}"), &e),
                }
            }
        }
    }
    let time = |(seconds, nanoseconds): (i64, u32)| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.min(999_999_999).into(),
    };
    let times = Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) };
    if let Err(e) = rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW) {
        note("times", &e);
    }
    lost
}
