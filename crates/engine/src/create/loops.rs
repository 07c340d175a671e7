//! Loop devices over the files that a pool will be made of.
//!
//! The kernel lets a file be written to while a loop device over it is in use, by a mounted file system
//! for example, so files are looked for behind all loop devices (`/sys/block/loop*/loop/backing_file`).
//! A device that can be opened with `O_EXCL` is idle.

use super::Opened;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A loop device over a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopUser {
    /// The loop device.
    pub device: PathBuf,
    /// A file system on it is mounted, or something else has it for itself.
    pub busy: bool,
}

/// The loop devices of this system over the file `found`.
pub(super) fn users(found: &Opened) -> Vec<LoopUser> {
    let Ok(blocks) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = blocks.filter_map(|entry| Some(entry.ok()?.file_name()));
    let over = names.filter(|name| name.as_bytes().starts_with(b"loop")).filter(|name| {
        let about = Path::new("/sys/block").join(name).join("loop/backing_file");
        let Ok(path) = std::fs::read(about) else { return false };
        let path =
            Path::new(std::ffi::OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
        path.metadata().is_ok_and(|m| (m.dev(), m.ino()) == found.identity)
    });
    let mut users: Vec<LoopUser> = over
        .map(|name| Path::new("/dev").join(name))
        .map(|device| LoopUser { busy: busy(&device), device })
        .collect();
    users.sort_by(|a, b| a.device.cmp(&b.device));
    users
}

fn busy(device: &Path) -> bool {
    let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    opened.is_err_and(|e| e.kind() == ErrorKind::ResourceBusy)
}
