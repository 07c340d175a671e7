//! What an inode number stands for: a file, a control directory, or a directory that leads to submounts.
//! [`tree`](crate::tree) tells how the numbers are made.

use crate::branch::{Branch, Made};
use cenote_zpl::{Attr, CaseSensitivity, Error, FileSystem};
use std::sync::Arc;

/// The kernel's number of the root directory.
pub(crate) const FUSE_ROOT: u64 = 1;
const OBJECT_BITS: u32 = 48;
/// The bits of an inode number that have the object.
pub(crate) const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;
/// `.zfs` (`ZFSCTL_INO_ROOT`).
const INO_CONTROL: u64 = OBJECT_MASK;
/// `.zfs/shares`, where the file system has no such directory.
const INO_SHARES: u64 = OBJECT_MASK - 1;
/// `.zfs/snapshot`.
const INO_SNAPSHOTS: u64 = OBJECT_MASK - 2;
/// Name of the control directory.
pub(crate) const CONTROL: &[u8] = b".zfs";

/// What an inode number stands for.
#[derive(Clone)]
pub(crate) enum Node {
    /// A file of a file system or of one of its snapshots.
    File {
        /// The file system, also if the file is in a snapshot of it.
        branch: Arc<Branch>,
        /// What the file is in: the file system or the snapshot.
        fs: Arc<FileSystem>,
        slot: u16,
        object: u64,
    },
    /// `.zfs`.
    Control(Arc<Branch>),
    /// `.zfs/shares`.
    Shares(Arc<Branch>),
    /// `.zfs/snapshot`.
    Snapshots(Arc<Branch>),
    /// A directory that only leads to submounts.
    Made(Arc<Made>),
}

impl Node {
    /// The file system that this is in.
    pub(crate) fn branch(&self) -> &Arc<Branch> {
        match self {
            Node::File { branch, .. } => branch,
            Node::Control(branch) | Node::Shares(branch) | Node::Snapshots(branch) => branch,
            Node::Made(made) => &made.place.branch,
        }
    }

    /// Whether this is the root directory of a file system, not of a snapshot.
    pub(crate) fn is_branch_root(&self) -> bool {
        matches!(self, Node::File { branch, fs, slot, object }
            if *slot == branch.slot && *object == fs.root())
    }

    /// Whether this may be different when it is looked at again: it is not in a snapshot.
    pub(crate) fn may_change(&self) -> bool {
        matches!(self, Node::File { branch, slot, .. } if *slot == branch.slot)
    }

    /// Whether a name in this directory may be written in several ways.
    pub(crate) fn folds_names(&self) -> bool {
        matches!(self, Node::File { fs, .. }
            if fs.normalizes() || fs.case_sensitivity() != CaseSensitivity::Sensitive)
    }

    /// Inode number.
    pub(crate) fn ino(&self) -> u64 {
        match self {
            Node::File { fs, slot, object, .. } => ino(fs, *slot, *object),
            Node::Control(branch) => in_slot(branch.slot, INO_CONTROL),
            Node::Shares(branch) => in_slot(branch.slot, INO_SHARES),
            Node::Snapshots(branch) => in_slot(branch.slot, INO_SNAPSHOTS),
            Node::Made(made) => in_slot(made.slot, 0),
        }
    }
}

/// The slot in an inode number.
pub(crate) fn slot_of(ino: u64) -> u16 {
    (ino >> OBJECT_BITS) as u16
}

/// Whether an inode number is that of `.zfs`.
pub(crate) fn is_control(ino: u64) -> bool {
    ino & OBJECT_MASK == INO_CONTROL
}

/// Inode number of an object in a slot, as the kernel has it; 0 is the root directory.
pub(crate) fn in_slot(slot: u16, object: u64) -> u64 {
    u64::from(slot) << OBJECT_BITS | object
}

/// Inode number of an object.
pub(crate) fn ino(fs: &FileSystem, slot: u16, object: u64) -> u64 {
    let object = if slot != 0 && object == fs.root() { 0 } else { object & OBJECT_MASK };
    in_slot(slot, object)
}

/// The object of an inode number, as [`ino`] makes it.
pub(crate) fn object_of(fs: &FileSystem, ino: u64) -> u64 {
    match ino & OBJECT_MASK {
        0 => fs.root(),
        object => object,
    }
}

/// A node of a file system; object 0 is its root directory.
pub(crate) fn in_branch(branch: &Arc<Branch>, object: u64) -> Node {
    match object {
        0 => branch.root(),
        INO_CONTROL => Node::Control(branch.clone()),
        INO_SHARES => Node::Shares(branch.clone()),
        INO_SNAPSHOTS => Node::Snapshots(branch.clone()),
        _ => branch.file(object),
    }
}

impl Branch {
    /// An object of it.
    pub(crate) fn file(self: &Arc<Self>, object: u64) -> Node {
        Node::File { branch: self.clone(), fs: self.fs(), slot: self.slot, object }
    }

    /// The root directory.
    pub(crate) fn root(self: &Arc<Self>) -> Node {
        let fs = self.fs();
        let object = fs.root();
        Node::File { branch: self.clone(), fs, slot: self.slot, object }
    }

    /// The control directory `.zfs/shares`: the file system's own directory if it has one.
    pub(crate) fn shares(self: &Arc<Self>) -> Node {
        match self.fs().shares() {
            Some(object) if object != 0 => self.file(object),
            _ => Node::Shares(self.clone()),
        }
    }
}

/// Nothing has this name, or number.
pub(crate) fn not_found(what: impl Into<String>) -> Error {
    Error::NotFound(what.into())
}

/// What tells a file from others that had its number, in the 32 bits that the kernel keeps of it. The
/// transaction group of its creation alone does not: in one group a number can be given several times.
pub(crate) fn generation(a: &Attr) -> u64 {
    let (seconds, nanoseconds) = (a.crtime.0 as u32, a.crtime.1);
    let group = (a.gen_ as u32).wrapping_mul(0x9e37_79b1);
    u64::from(group ^ seconds.rotate_left(16) ^ nanoseconds)
}
