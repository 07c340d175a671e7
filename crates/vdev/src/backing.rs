//! What is behind loop devices: a file, which may be used by itself at the same time, or through
//! another loop device.
//!
//! The kernel lets both be written to. So a pool that opens a loop device for itself locks the file behind
//! it as well: with an exclusive lock (`flock`), or with `O_EXCL` where it is a block device, and so on if
//! that is a loop device itself. A pool on a part of the file (a partition of the loop device, or a loop
//! device over a part) takes a shared lock. Other parts of the file can be opened then, all of it cannot.
//!
//! The kernel tells the path of the file. Where that leads to no file (the file was deleted, or is out of
//! sight) other users are not kept off.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, major, minor};

use crate::holes;
use crate::mapfile::Unread;
use crate::object;
use crate::partition::image_of;

/// Most loop devices on top of each other that are followed.
const MOST: usize = 8;

/// What the kernel counts in where a partition begins.
const SECTOR: u64 = 512;

/// A file behind a loop device.
struct Backing {
    path: PathBuf,
    /// The device is all of the file.
    whole: bool,
    /// The byte of the file that the device begins with.
    start: u64,
}

impl Backing {
    /// Of a block device; `None`: it is no loop device, nor part of one.
    fn of(rdev: u64) -> Option<Backing> {
        let device = PathBuf::from(format!("/sys/dev/block/{}:{}", major(rdev), minor(rdev)));
        let partition = device.join("partition").exists();
        let about = device.join(if partition { "../loop" } else { "loop" });
        let said = |name: &str| std::fs::read(about.join(name)).ok();
        let zero = |name: &str| said(name).is_none_or(|text| text.trim_ascii() == b"0");
        let path = said("backing_file")?;
        let path = path.strip_suffix(b"\n").unwrap_or(&path);
        let whole = !partition && zero("offset") && zero("sizelimit");
        let number = |text: Vec<u8>| std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok();
        let offset = said("offset").and_then(number).unwrap_or(0u64);
        let first = std::fs::read(device.join("start")).ok().filter(|_| partition);
        let first = first.and_then(number).unwrap_or(0u64).checked_mul(SECTOR)?;
        let start = offset.checked_add(first)?;
        Some(Backing { path: Path::new(os_str(path)).into(), whole, start })
    }

    /// The file, held; `None`: there is nothing to hold.
    fn hold(&self) -> io::Result<Option<File>> {
        let Ok(kind) = self.path.metadata().map(|m| m.file_type()) else { return Ok(None) };
        let mut options = OpenOptions::new();
        options.read(true);
        if kind.is_block_device() && self.whole {
            options.custom_flags(OFlags::EXCL.bits().cast_signed());
        }
        let file = match options.open(&self.path) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => return Err(e),
            opened => opened.ok(),
        };
        if let Some(file) = file.as_ref().filter(|_| kind.is_file()) {
            lock(file, self.whole)?;
        }
        Ok(file)
    }
}

fn os_str(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// Locks a file, for this descriptor alone or shared.
///
/// Errors: `ResourceBusy` if others have it. That locks do not work there is not an error.
pub(crate) fn lock(file: &File, alone: bool) -> io::Result<()> {
    let operation = match alone {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    match rustix::fs::flock(file, operation) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(busy()),
        _ => Ok(()),
    }
}

/// Whether a process has the device at a path for itself, as [`crate::open_device_rw`] asks for it. One that
/// cannot be opened counts as free.
pub fn is_held(path: &Path) -> bool {
    if object::is_object(path) {
        return object::is_held(path);
    }
    let path = image_of(path).map_or_else(|| path.to_path_buf(), |(image, _)| image);
    let Ok(kind) = path.metadata().map(|m| m.file_type()) else { return false };
    let mut options = OpenOptions::new();
    options.read(true);
    if kind.is_block_device() {
        options.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    match options.open(&path) {
        Ok(file) if kind.is_file() => lock(&file, false).is_err(),
        Ok(file) if kind.is_block_device() => {
            file.metadata().is_ok_and(|m| hold(m.rdev()).is_err())
        }
        Ok(_) => false,
        Err(e) => e.kind() == ErrorKind::ResourceBusy,
    }
}

pub(crate) fn busy() -> io::Error {
    io::Error::new(ErrorKind::ResourceBusy, "in use by another process")
}

/// Holds what is behind a block device for as long as what is returned is kept.
///
/// Errors: `ResourceBusy` if others have it.
pub(crate) fn hold(rdev: u64) -> io::Result<Vec<File>> {
    let mut held = Vec::new();
    let mut next = Some(rdev);
    while let Some(backing) = next.take().and_then(Backing::of)
        && held.len() < MOST
        && let Some(file) = backing.hold()?
    {
        let meta = file.metadata()?;
        next = meta.file_type().is_block_device().then(|| meta.rdev());
        held.push(file);
    }
    Ok(held)
}

/// What was not read of the image behind a block device of `size` bytes, by where it is on the device: see [`holes::unread`].
///
/// # Errors
/// As those of that.
pub(crate) fn unread(rdev: u64, size: u64) -> io::Result<Option<Unread>> {
    let (mut next, mut start) = (Some(rdev), 0u64);
    for _ in 0..MOST {
        let Some(backing) = next.take().and_then(Backing::of) else { break };
        start = start.checked_add(backing.start).ok_or(io::ErrorKind::InvalidData)?;
        let Ok(facts) = backing.path.metadata() else { break };
        if facts.is_file() {
            // A user that may use the device need not be allowed to read the file: then its map is looked for by its name.
            let file = File::open(&backing.path).ok();
            let unread = holes::unread(file.as_ref(), &backing.path, facts.len())?;
            let here = unread.map(|unread| unread.from(start));
            return Ok(here.filter(|unread| unread.bytes_below(size) > 0));
        }
        next = facts.file_type().is_block_device().then(|| facts.rdev());
    }
    Ok(None)
}
