//! The tree of one mount: the file system, its control directory, its snapshots; inode numbers and
//! attributes.
//!
//! ```text
//! inode number      upper 16 bits          lower 48 bits
//!   1               0                      the root directory (the kernel's name for it)
//!   a file          0: the file system     object number
//!   in a snapshot   1 to 65535: the        object number; 0: the snapshot's root directory
//!                   snapshot's slot
//!   .zfs etc.       0                      all ones (and one and two less)
//! ```
//!
//! A snapshot gets its slot when its name is first seen and is opened when something in it is first
//! asked for. Slots are never given to another snapshot while the mount lasts.

use cenote_zpl::{Attr, Error, FileSystem};
use fuser::{FileAttr, FileType, INodeNo};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The kernel's number of the root directory.
const FUSE_ROOT: u64 = 1;
const OBJECT_BITS: u32 = 48;
const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;
/// `.zfs` (`ZFSCTL_INO_ROOT`).
const INO_CONTROL: u64 = OBJECT_MASK;
/// `.zfs/shares`, where the file system has no such directory.
const INO_SHARES: u64 = OBJECT_MASK - 1;
/// `.zfs/snapshot`.
const INO_SNAPSHOTS: u64 = OBJECT_MASK - 2;
/// Slots for snapshots.
const MAX_SNAPSHOTS: usize = u16::MAX as usize;

/// The `snapdir` property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapDir {
    /// There is no `.zfs`.
    Disabled,
    /// `.zfs` is there, but not listed.
    Hidden,
    /// `.zfs` is listed.
    Visible,
}

/// A snapshot as `.zfs/snapshot` lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Name after the `@`.
    pub name: String,
    /// Time of creation, seconds since 1970.
    pub created: i64,
}

/// The snapshots of a file system.
pub trait Snapshots: Send + Sync {
    /// All snapshots, in order of creation.
    fn list(&self) -> Vec<SnapshotEntry>;
    /// Opens a snapshot by its name (after the `@`).
    fn open(&self, name: &str) -> Result<Arc<FileSystem>, Error>;
}

/// What an inode number stands for.
#[derive(Clone)]
pub(crate) enum Node {
    /// A file of the file system or of a snapshot.
    File { fs: Arc<FileSystem>, slot: u16, object: u64 },
    /// `.zfs`.
    Control,
    /// `.zfs/shares`.
    Shares,
    /// `.zfs/snapshot`.
    Snapshots,
}

struct Slot {
    name: String,
    fs: OnceLock<Arc<FileSystem>>,
}

/// The tree of a mount.
pub(crate) struct Tree {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) snapshots: Option<Arc<dyn Snapshots>>,
    pub(crate) snapdir: SnapDir,
    slots: RwLock<Vec<Arc<Slot>>>,
    mounted: SystemTime,
}

fn not_found(what: impl Into<String>) -> Error {
    Error::NotFound(what.into())
}

impl Tree {
    pub(crate) fn new(
        fs: Arc<FileSystem>,
        snapshots: Option<Arc<dyn Snapshots>>,
        snapdir: SnapDir,
    ) -> Tree {
        Tree { fs, snapshots, snapdir, slots: RwLock::default(), mounted: SystemTime::now() }
    }

    /// Whether there is a `.zfs`.
    pub(crate) fn has_control(&self) -> bool {
        self.snapshots.is_some() && self.snapdir != SnapDir::Disabled
    }

    /// Whether `.zfs` is listed in the root directory.
    pub(crate) fn shows_control(&self) -> bool {
        self.snapshots.is_some() && self.snapdir == SnapDir::Visible
    }

    /// What an inode number stands for.
    pub(crate) fn node(&self, ino: INodeNo) -> Result<Node, Error> {
        let live = |object| Node::File { fs: self.fs.clone(), slot: 0, object };
        Ok(match ino.0 {
            FUSE_ROOT => live(self.fs.root()),
            INO_CONTROL => Node::Control,
            INO_SHARES => Node::Shares,
            INO_SNAPSHOTS => Node::Snapshots,
            n if n <= OBJECT_MASK => live(n),
            n => self.snapshot_node((n >> OBJECT_BITS) as u16, n & OBJECT_MASK)?,
        })
    }

    /// A node in the snapshot in `slot`, opening it if need be; object 0 is its root directory.
    fn snapshot_node(&self, slot: u16, object: u64) -> Result<Node, Error> {
        let entry = {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            usize::from(slot).checked_sub(1).and_then(|i| slots.get(i).cloned())
        };
        let (Some(entry), Some(snapshots)) = (entry, &self.snapshots) else {
            return Err(not_found(format!("snapshot {slot}")));
        };
        let fs = match entry.fs.get() {
            Some(fs) => fs.clone(),
            None => {
                let opened = snapshots.open(&entry.name)?;
                entry.fs.get_or_init(|| opened).clone()
            }
        };
        let object = if object == 0 { fs.root() } else { object };
        Ok(Node::File { fs, slot, object })
    }

    /// The root directory of a snapshot by its name.
    pub(crate) fn snapshot_root(&self, name: &str) -> Result<Node, Error> {
        self.snapshot_node(self.slot(name)?, 0)
    }

    /// Inode number of the root directory of a snapshot.
    pub(crate) fn snapshot_ino(&self, name: &str) -> Result<u64, Error> {
        Ok(u64::from(self.slot(name)?) << OBJECT_BITS)
    }

    fn slot(&self, name: &str) -> Result<u16, Error> {
        let position = |slots: &[Arc<Slot>]| slots.iter().position(|s| s.name == name);
        let number = |i: usize| u16::try_from(i.saturating_add(1)).map_err(|_| not_found(name));
        if let Some(i) = position(&self.slots.read().unwrap_or_else(PoisonError::into_inner)) {
            return number(i);
        }
        let known =
            self.snapshots.as_ref().is_some_and(|s| s.list().iter().any(|e| e.name == name));
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = position(&slots) {
            return number(i);
        }
        if !known || slots.len() >= MAX_SNAPSHOTS {
            return Err(not_found(name));
        }
        slots.push(Arc::new(Slot { name: name.to_owned(), fs: OnceLock::new() }));
        number(slots.len() - 1)
    }

    /// Inode number of an object.
    pub(crate) fn ino(&self, fs: &FileSystem, slot: u16, object: u64) -> u64 {
        let object = if slot != 0 && object == fs.root() { 0 } else { object & OBJECT_MASK };
        u64::from(slot) << OBJECT_BITS | object
    }

    /// Attributes of a node, and the generation of its inode number.
    pub(crate) fn attr(&self, node: &Node) -> Result<(FileAttr, u64), Error> {
        let snapshots = || self.snapshots.as_ref().map(|s| s.list()).unwrap_or_default();
        match node {
            Node::File { fs, slot, object } => {
                let mut a = fs.attr(*object)?;
                // The listed control directory counts as a link of the root directory.
                if *slot == 0 && *object == fs.root() && self.shows_control() {
                    a.nlink = a.nlink.saturating_add(1);
                }
                let generation = a.gen_;
                Ok((file_attr(&a, self.ino(fs, *slot, *object))?, generation))
            }
            Node::Control => Ok((self.control_attr(INO_CONTROL, 2, self.mounted), 0)),
            Node::Shares => Ok((self.control_attr(INO_SHARES, 2, self.mounted), 0)),
            Node::Snapshots => {
                let all = snapshots();
                let newest = all.iter().map(|s| s.created).max();
                let changed = newest.map_or(self.mounted, |sec| system_time((sec, 0)));
                let links = u32::try_from(all.len()).unwrap_or(u32::MAX).saturating_add(2);
                Ok((self.control_attr(INO_SNAPSHOTS, links, changed), 0))
            }
        }
    }

    /// Attributes of a control directory, or of a snapshot's root directory that was not opened yet.
    pub(crate) fn control_attr(&self, ino: u64, nlink: u32, changed: SystemTime) -> FileAttr {
        FileAttr {
            ino: INodeNo(ino),
            size: 2,
            blocks: 0,
            atime: self.mounted,
            mtime: changed,
            ctime: changed,
            crtime: changed,
            kind: FileType::Directory,
            perm: 0o555,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 512,
            flags: 0,
        }
    }

    /// Attributes that tell no more than a directory entry does, for a file whose own cannot be
    /// read. To be used with a time to live of zero.
    pub(crate) fn entry_attr(&self, ino: u64, kind: FileType) -> FileAttr {
        FileAttr { kind, perm: 0, ..self.control_attr(ino, 1, UNIX_EPOCH) }
    }

    /// The control directory `.zfs/shares`: the file system's own directory if it has one.
    pub(crate) fn shares(&self) -> Node {
        match self.fs.shares() {
            Some(object) if object != 0 => Node::File { fs: self.fs.clone(), slot: 0, object },
            _ => Node::Shares,
        }
    }

    /// Inode number of a node.
    pub(crate) fn node_ino(&self, node: &Node) -> u64 {
        match node {
            Node::File { fs, slot, object } => self.ino(fs, *slot, *object),
            Node::Control => INO_CONTROL,
            Node::Shares => INO_SHARES,
            Node::Snapshots => INO_SNAPSHOTS,
        }
    }
}

/// A file's type; `None` for a number that is none.
pub(crate) fn file_type(kind: u32) -> Option<FileType> {
    Some(match kind {
        1 => FileType::NamedPipe,
        2 => FileType::CharDevice,
        4 => FileType::Directory,
        6 => FileType::BlockDevice,
        8 => FileType::RegularFile,
        10 => FileType::Symlink,
        12 => FileType::Socket,
        _ => return None,
    })
}

fn file_attr(a: &Attr, ino: u64) -> Result<FileAttr, Error> {
    let kind = file_type(a.mode >> 12)
        .ok_or_else(|| Error::Corrupt(a.ino, format!("mode {:o}", a.mode)))?;
    let (major, minor) = a.rdev;
    Ok(FileAttr {
        ino: INodeNo(ino),
        // The kernel's sizes are signed.
        size: a.size.min(i64::MAX as u64),
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: system_time(a.crtime),
        kind,
        perm: (a.mode & 0o7777) as u16,
        nlink: u32::try_from(a.nlink).unwrap_or(u32::MAX),
        uid: a.uid,
        gid: a.gid,
        // The form in which device numbers cross the border to the kernel.
        rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
        blksize: a.blksize,
        flags: 0,
    })
}

/// A time in the form that `fuser` takes; one that cannot be expressed becomes 1970.
fn system_time((sec, nsec): (i64, u32)) -> SystemTime {
    let whole = Duration::from_secs(sec.unsigned_abs());
    let base = if sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|t| t.checked_add(Duration::from_nanos(nsec.into()))).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_absurd_ones() {
        let since = |t: SystemTime| t.duration_since(UNIX_EPOCH).map_err(|e| e.duration());
        assert_eq!(since(system_time((5, 7))), Ok(Duration::new(5, 7)));
        assert_eq!(since(system_time((-5, 7))), Err(Duration::new(4, 999_999_993)));
        for sec in [i64::MIN, i64::MIN + 1, i64::MAX] {
            system_time((sec, 999_999_999));
        }
    }
}
