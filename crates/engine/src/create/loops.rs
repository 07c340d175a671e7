//! Loop devices over the files that a pool will be made of.
//!
//! The kernel lets a file be written to while a loop device over it is in use, by a mounted file system
//! for example, so files are looked for behind all loop devices (`/sys/block/loop*/loop/backing_file`).
//! A device that can be opened with `O_EXCL` is idle.

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

/// The loop devices of this system over the file of this identity (its device and number).
pub(super) fn users(file: (u64, u64)) -> Vec<LoopUser> {
    let Ok(blocks) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = blocks.filter_map(|entry| Some(entry.ok()?.file_name()));
    let over = names.filter(|name| name.as_bytes().starts_with(b"loop")).filter(|name| {
        let about = Path::new("/sys/block").join(name).join("loop/backing_file");
        let Ok(path) = std::fs::read(about) else { return false };
        let path =
            Path::new(std::ffi::OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
        path.metadata().is_ok_and(|m| (m.dev(), m.ino()) == file)
    });
    let mut users: Vec<LoopUser> = over
        .map(|name| Path::new("/dev").join(name))
        .map(|device| LoopUser { busy: busy(&device), device })
        .collect();
    users.sort_by(|a, b| a.device.cmp(&b.device));
    users
}

/// The file (its device and number) that all of a loop device is over, from the first to the last byte.
pub(super) fn whole_file(device: u64) -> Option<(u64, u64)> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let about = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).join("loop");
    let says = |name: &str, what: &str| {
        std::fs::read_to_string(about.join(name)).is_ok_and(|text| text.trim_end() == what)
    };
    let path = std::fs::read(about.join("backing_file")).ok()?;
    let path = Path::new(std::ffi::OsStr::from_bytes(path.strip_suffix(b"\n").unwrap_or(&path)));
    let file = path.metadata().ok()?;
    (says("offset", "0") && says("sizelimit", "0")).then(|| (file.dev(), file.ino()))
}

fn busy(device: &Path) -> bool {
    let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(exclusive).open(device);
    opened.is_err_and(|e| e.kind() == ErrorKind::ResourceBusy)
}
