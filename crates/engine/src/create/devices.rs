//! The devices that a pool will be made of: what they are, their sizes and sectors.
//!
//! [`OpenDevices`] is where devices come from: the files, block devices and object stores of the system ([`SystemDevices`]), or disks in
//! memory for tests. `find` says what a name stands for without opening it for writing: its kind, what tells it from other devices, and its
//! logical and physical sectors. A name that is not a path is looked for in the directories where OpenZFS looks.
//!
//! Two names are the same device if their identities are equal, and have the same bytes if [`Opened::bytes`] is: a loop device counts as the
//! file below it.
//!
//! [`check_answers`] asks all devices of a layout at once, before a command locks a pool: a device that does not answer in time is
//! refused then, and keeps no other command waiting.

use super::loops::{self, LoopUser};
use super::{CreateError, Layout};
use crate::tunables;
use cenote_pool::DEFAULT_DIRS;
use cenote_pool::devices::patiently;
use cenote_vdev::deadline::{self, ask_each, is_silent};
use cenote_vdev::object::{is_object, name_of, spelled};
use cenote_vdev::{Device, label_owner, open_device, open_device_rw};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafKind {
    /// A file.
    File,
    /// A block device.
    Disk,
    /// A place in an object store.
    Object,
}

impl LeafKind {
    /// The `type` of a config.
    pub fn name(self) -> &'static str {
        match self {
            LeafKind::File => "file",
            LeafKind::Disk => "disk",
            LeafKind::Object => "object",
        }
    }
}

/// Facts about a device that was not opened yet.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// File or disk.
    pub kind: LeafKind,
    /// Equal for names of the same device.
    pub identity: (u64, u64),
    /// log2 of the bytes that it reads and writes at least.
    pub logical_shift: u64,
    /// log2 of the bytes that it would rather read and write.
    pub physical_shift: u64,
}

impl Opened {
    /// Equal for names of what has the same bytes: a loop device over a whole file counts as the file.
    pub fn bytes(&self) -> (u64, u64) {
        match self.kind {
            LeafKind::Disk => loops::whole_file(self.identity.1).unwrap_or(self.identity),
            _ => self.identity,
        }
    }
}

/// Where devices come from.
pub trait OpenDevices {
    /// The full path of what an argument names, and what is there.
    ///
    /// # Errors
    /// There is no such thing, or it is neither file nor block device (`InvalidInput`).
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)>;

    /// Opens it to read labels.
    ///
    /// # Errors
    /// Errors of opening it.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>>;

    /// Opens it for reading and writing, for this process alone.
    ///
    /// # Errors
    /// Errors of opening it; `ResourceBusy` if another process has it.
    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>>;

    /// The loop devices over a file.
    fn loop_users(&self, _: &Opened) -> Vec<LoopUser> {
        Vec::new()
    }
}

/// Why an argument names no device, in the words of `zpool`.
pub(super) fn not_found(name: &Path, error: &io::Error) -> CreateError {
    let shown = name.display();
    CreateError::Spec(match error.kind() {
        // A name that cannot be one may have credentials: it is not repeated.
        io::ErrorKind::InvalidInput if is_object(name) => {
            format!("cannot use an object store: {error}")
        }
        _ if is_object(name) => format!("cannot open '{shown}': {}", words(error)),
        io::ErrorKind::NotFound if name.is_absolute() => format!("cannot resolve path '{shown}'"),
        io::ErrorKind::NotFound => format!(
            "cannot open '{shown}': no such device in /dev\n\
             must be a full path or shorthand device name"
        ),
        io::ErrorKind::InvalidInput => {
            format!("cannot use '{shown}': must be a block device or regular file")
        }
        _ => format!("cannot open '{shown}': {}", words(error)),
    })
}

/// What the system says of an error, without its number.
pub(super) fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(n) => nix::errno::Errno::from_raw(n).desc().to_string(),
        None => error.to_string(),
    }
}

/// The files and block devices of this system.
pub struct SystemDevices;

impl OpenDevices for SystemDevices {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        if is_object(name) {
            let name = spelled(name)?;
            open_device(&name)?;
            let mut hasher = DefaultHasher::new();
            name_of(&name).hash(&mut hasher);
            let identity = (u64::MAX - 1, hasher.finish());
            let (kind, logical_shift, physical_shift) = (LeafKind::Object, 9, 9);
            let facts = Opened { kind, identity, logical_shift, physical_shift };
            return Ok((name, facts));
        }
        let path = if name.is_absolute() {
            name.to_path_buf()
        } else {
            let places = DEFAULT_DIRS.iter().map(|d| Path::new(d).join(name));
            places.into_iter().find(|p| p.exists()).ok_or(io::ErrorKind::NotFound)?
        };
        let meta = path.metadata()?;
        if meta.file_type().is_block_device() {
            let (logical_shift, physical_shift) = sector_shifts(meta.rdev());
            let identity = (u64::MAX, meta.rdev());
            Ok((path, Opened { kind: LeafKind::Disk, identity, logical_shift, physical_shift }))
        } else if meta.is_file() {
            let identity = (meta.dev(), meta.ino());
            let logical_shift = tunables::FILE_LOGICAL_ASHIFT.get();
            let physical_shift = tunables::FILE_PHYSICAL_ASHIFT.get();
            Ok((path, Opened { kind: LeafKind::File, identity, logical_shift, physical_shift }))
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        open_device(path)
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        let busy = |e: &io::Error| e.kind() == io::ErrorKind::ResourceBusy;
        patiently(|| open_device_rw(path), |opened| opened.as_ref().is_err_and(busy))
    }

    fn loop_users(&self, found: &Opened) -> Vec<LoopUser> {
        loops::users(found.identity)
    }
}

/// Refuses a layout with a device that does not answer in time. What else may be wrong with a device is not said here.
///
/// A command does this before it keeps others waiting. Returns the identities ([`Opened::bytes`]) of those that are there.
///
/// # Errors
/// [`CreateError::Spec`].
pub fn check_answers(layout: &Layout) -> Result<Vec<(u64, u64)>, CreateError> {
    let tops = layout.tops.iter().flat_map(|top| &top.devices);
    let names: Vec<&PathBuf> = tops.chain(&layout.spares).chain(&layout.caches).collect();
    let devices = names.iter().map(|name| vec![(*name).clone()]).collect();
    let looked = ask_each(devices, deadline::answer(), |name| {
        let name = name.first().ok_or(io::ErrorKind::NotFound)?;
        let (path, facts) = SystemDevices.find(name)?;
        match open_device(&path).and_then(|device| label_owner(&*device)) {
            Err(e) if is_silent(&e) => Err(e),
            _ => Ok(facts.bytes()),
        }
    });
    // A store that fails is not asked again, for as long once more.
    let of_store = |(looked, name): (&io::Result<_>, &&PathBuf)| match looked {
        Err(e) if is_object(name) && !is_silent(e) => Some(not_found(name, e)),
        _ => None,
    };
    if let Some(error) = looked.iter().zip(&names).find_map(of_store) {
        return Err(error);
    }
    match looked.iter().zip(names).find(|(looked, _)| looked.as_ref().is_err_and(is_silent)) {
        None => Ok(looked.into_iter().filter_map(Result::ok).collect()),
        Some((_, name)) => Err(CreateError::Spec(format!(
            "cannot open '{}': the device does not answer",
            name.display()
        ))),
    }
}

/// log2 of the logical and the physical sector size of a block device, as the kernel says.
fn sector_shifts(rdev: u64) -> (u64, u64) {
    let major = (rdev >> 8 & 0xfff) | (rdev >> 32 & !0xfff);
    let minor = (rdev & 0xff) | (rdev >> 12 & !0xff);
    let dir = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition's queue is that of its disk.
    let queues = [dir.join("queue"), dir.join("../queue")];
    let size = |name: &str| {
        let text = queues.iter().find_map(|q| std::fs::read_to_string(q.join(name)).ok())?;
        text.trim().parse::<u64>().ok().filter(|n| n.is_power_of_two() && *n >= 512)
    };
    let shift = |name| size(name).map_or(9, |n| u64::from(n.trailing_zeros()));
    let logical = shift("logical_block_size");
    (logical, shift("physical_block_size").max(logical))
}
