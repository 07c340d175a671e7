//! The tree of one mount: file systems, their control directories, their snapshots; inode numbers,
//! attributes and names.
//!
//! ```text
//! inode number      upper 16 bits            lower 48 bits
//!   1               0                        the mounted file system's root directory (the
//!                                            kernel's name for it)
//!   a file          0: the file system that  object number; 0: the root directory of what has
//!                   is mounted; else a slot  the slot
//!   .zfs etc.       slot of the file system  all ones (and one and two less)
//! ```
//!
//! A slot holds a snapshot, a submount (see `submount`), or a directory
//! that a submount needs and the file system around it lacks. A snapshot gets its slot when its name is
//! first seen and is opened when something in it is first asked for. Its slot follows from its name, so
//! that its files have the same numbers each time, unless two names lead to the same slot. Slots are
//! never given to anything else while the mount lasts.

use crate::MountSpec;
use crate::branch::Branch;
use crate::exchange::Changing;
use crate::inodes::{Inodes, Standing};
use crate::kernel::Held;
use crate::server::handles::Handles;
use crate::session::{FileAttr, INodeNo, Notifier};
use crate::slots::{Made, Slot, Table};
use crate::snapshot::Snapshot;
use cenote_zpl::{Attr, CaseSensitivity, Error, FileSystem, Spare, Time};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::fs::FileType;
use std::io;
use std::sync::{Arc, OnceLock};

/// The kernel's number of the root directory.
pub(crate) const FUSE_ROOT: u64 = 1;
const OBJECT_BITS: u32 = 48;
const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;
/// `.zfs` (`ZFSCTL_INO_ROOT`).
const INO_CONTROL: u64 = OBJECT_MASK;
/// `.zfs/shares`, where the file system has no such directory.
const INO_SHARES: u64 = OBJECT_MASK - 1;
/// `.zfs/snapshot`.
const INO_SNAPSHOTS: u64 = OBJECT_MASK - 2;
/// Name of the control directory.
pub(crate) const CONTROL: &[u8] = b".zfs";

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

/// A change of the snapshots of a file system, by names after the `@`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotChange<'a> {
    /// One is taken.
    Take(&'a str),
    /// One goes, to which nothing leads any more in this mount.
    Destroy(&'a str),
    /// The first gets the second name.
    Rename(&'a str, &'a str),
}

/// A user that sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    /// Its number.
    pub user: u32,
    /// The numbers of its groups.
    pub groups: Vec<u32>,
}

/// The snapshots of a file system, and what else shares its blocks.
pub trait Snapshots: Send + Sync {
    /// All snapshots, in order of creation.
    fn list(&self) -> Vec<SnapshotEntry>;
    /// Opens a snapshot by its name (after the `@`).
    fn open(&self, name: &str) -> Result<Arc<FileSystem>, Error>;
    /// The txg of the newest snapshot, which shares what was born in it or before; 0 without snapshots.
    fn newest(&self) -> u64;
    /// Tells which blocks clones share, by their pointers.
    fn cloned(&self) -> Box<Spare<'static>> {
        Box::new(|_| false)
    }
    /// Whether blocks can be rewritten with their births kept: the pool has the feature `physical_rewrite`.
    fn may_keep_births(&self) -> bool {
        false
    }
    /// When snapshots were last taken, destroyed or renamed (property `snapshots_changed`): seconds since 1970
    /// and nanoseconds; zeros if never. `None`: that is not known.
    fn changed(&self) -> Option<(i64, u32)> {
        None
    }
    /// Whether snapshots are taken, destroyed and renamed in `.zfs/snapshot` (`zfs_admin_snapshot`).
    fn are_administered(&self) -> bool {
        false
    }
    /// Makes a change for a user, and waits for it; `None`: for the one whom the pool belongs to. No other mount needs to
    /// be told.
    ///
    /// # Errors
    /// Errors of the system calls `mkdir`, `rmdir` and `rename`, by number.
    fn change(&self, _user: Option<&Requester>, _change: SnapshotChange<'_>) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

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

fn in_slot(slot: u16, object: u64) -> u64 {
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
fn in_branch(branch: &Arc<Branch>, object: u64) -> Node {
    match object {
        0 => branch.root(),
        INO_CONTROL => Node::Control(branch.clone()),
        INO_SHARES => Node::Shares(branch.clone()),
        INO_SNAPSHOTS => Node::Snapshots(branch.clone()),
        _ => branch.file(object),
    }
}

/// The tree of a mount.
pub(crate) struct Tree {
    /// The file system that is mounted.
    pub(crate) root: Arc<Branch>,
    pub(crate) table: RwLock<Table>,
    /// Held while a submount is added or taken away.
    pub(crate) change: Mutex<()>,
    /// Tells the kernel of changes, once the mount is served.
    pub(crate) notifier: OnceLock<Notifier>,
    /// Whether the kernel may let changes through, now or later.
    pub(crate) changes: bool,
    /// The numbers that the kernel knows of what can change.
    pub(crate) inodes: Inodes,
    /// What is open.
    pub(crate) handles: Arc<Handles>,
    /// Each request holds it while it is served; an exchange of a file system holds it alone (`z_teardown_lock`).
    pub(crate) teardown: RwLock<()>,
    /// Names that change while an exchange lists them.
    pub(crate) changing: Changing,
}

pub(crate) fn not_found(what: impl Into<String>) -> Error {
    Error::NotFound(what.into())
}

impl Tree {
    pub(crate) fn new(spec: &MountSpec) -> Tree {
        Tree {
            root: Arc::new(Branch::new(spec, 0, None)),
            table: RwLock::default(),
            change: Mutex::default(),
            notifier: OnceLock::new(),
            changes: spec.fs.may_become_writable(),
            inodes: Inodes::default(),
            handles: Arc::new(Handles::new()),
            teardown: RwLock::default(),
            changing: Changing::default(),
        }
    }

    pub(crate) fn table(&self) -> Held<RwLockReadGuard<'_, Table>> {
        Held::new(|| self.table.read())
    }

    /// What an inode number stands for.
    pub(crate) fn node(&self, ino: INodeNo) -> Result<Node, Error> {
        match self.inodes.standing(ino.0) {
            (Standing::Sure, _) => self.node_called(ino),
            (Standing::Stale, _) => Err(Error::Stale(ino.0)),
            (Standing::Doubtful, told) => {
                let node = self.node_called(ino)?;
                self.settle(ino.0, told, &node)?;
                Ok(node)
            }
        }
    }

    /// As [`Tree::node`], of a number that is good.
    fn node_called(&self, ino: INodeNo) -> Result<Node, Error> {
        let (slot, object) = (slot_of(ino.0), ino.0 & OBJECT_MASK);
        if ino.0 == FUSE_ROOT {
            return Ok(self.root.root());
        }
        if slot == 0 {
            return Ok(in_branch(&self.root, object));
        }
        let found = self.table().open(slot);
        match found {
            Some(Slot::Submount(branch)) => Ok(in_branch(&branch, object)),
            Some(Slot::Made(made)) if object == 0 => Ok(Node::Made(made)),
            Some(Slot::Snapshot(snapshot)) => snapshot.node(slot, object),
            _ => Err(not_found(format!("inode {:#x}", ino.0))),
        }
    }

    /// The node called `name` in a directory (`zfsctl_root_lookup`, `zfsctl_snapdir_lookup`).
    pub(crate) fn lookup(&self, parent: &Node, name: &[u8]) -> Result<Node, Error> {
        let text = || String::from_utf8_lossy(name).into_owned();
        match parent {
            Node::File { branch, .. }
                if name == CONTROL && parent.is_branch_root() && branch.has_control() =>
            {
                Ok(Node::Control(branch.clone()))
            }
            Node::File { branch, fs, slot, object } => match fs.lookup(*object, name) {
                Ok(object) => Ok(self.top(Node::File {
                    branch: branch.clone(),
                    fs: fs.clone(),
                    slot: *slot,
                    object,
                })),
                Err(e @ Error::NotFound(_)) => self.added(parent, name).ok_or(e),
                Err(e) => Err(e),
            },
            Node::Control(branch) => match name {
                b"snapshot" => Ok(Node::Snapshots(branch.clone())),
                b"shares" => Ok(branch.shares()),
                _ => Err(not_found(text())),
            },
            Node::Shares(_) => Err(not_found(text())),
            Node::Snapshots(branch) => self.node(INodeNo(self.snapshot_ino(branch, &text())?)),
            Node::Made(_) => self.added(parent, name).ok_or_else(|| not_found(text())),
        }
    }

    /// The directory that `..` of a directory leads to.
    pub(crate) fn parent(&self, node: &Node) -> Node {
        match node {
            Node::File { branch, .. } if node.is_branch_root() => match &branch.place {
                Some(place) => self.node(INodeNo(place.dir)).unwrap_or_else(|_| node.clone()),
                None => node.clone(),
            },
            Node::File { branch, fs, object, .. } if *object == fs.root() => {
                Node::Snapshots(branch.clone())
            }
            Node::File { branch, fs, slot, object } => {
                let object = fs.attr(*object).map_or(*object, |a| a.parent);
                Node::File { branch: branch.clone(), fs: fs.clone(), slot: *slot, object }
            }
            Node::Control(branch) => branch.root(),
            Node::Shares(branch) | Node::Snapshots(branch) => Node::Control(branch.clone()),
            Node::Made(made) => self.node(INodeNo(made.place.dir)).unwrap_or_else(|_| node.clone()),
        }
    }

    /// Inode number of the root directory of a snapshot.
    pub(crate) fn snapshot_ino(&self, branch: &Arc<Branch>, name: &str) -> Result<u64, Error> {
        let key = (branch.slot, name.to_owned());
        let known = {
            let table = self.table();
            if table.is_closed(&key) {
                return Err(not_found(name));
            }
            table.snapshots.get(&key).copied()
        };
        if let Some(slot) = known {
            return Ok(in_slot(slot, 0));
        }
        if !branch.list_snapshots().iter().any(|e| e.name == name) {
            return Err(not_found(name));
        }
        let mut table = self.table_mut();
        if let Some(slot) = table.snapshots.get(&key) {
            return Ok(in_slot(*slot, 0));
        }
        if branch.is_gone() || table.is_closed(&key) {
            return Err(not_found(name));
        }
        let snapshot = Snapshot::new(branch.clone(), name.to_owned());
        let slot = table.push_snapshot(snapshot).ok_or_else(|| not_found(name))?;
        table.snapshots.insert(key, slot);
        Ok(in_slot(slot, 0))
    }

    /// Attributes of a file as the kernel is told them, and the generation of its inode number.
    pub(crate) fn attr_of(&self, node: &Node, mut attr: Attr) -> Result<(FileAttr, u64), Error> {
        // The listed control directory counts as a link of the root directory.
        let control = node.is_branch_root() && node.branch().shows_control();
        let added = if attr.is_dir() { self.table().added_to(node) } else { 0 };
        attr.nlink = attr.nlink.saturating_add(u64::from(control)).saturating_add(added);
        Ok((file_attr(&attr, node.ino())?, generation(&attr)))
    }

    /// Attributes of a node, and the generation of its inode number.
    pub(crate) fn attr(&self, node: &Node) -> Result<(FileAttr, u64), Error> {
        let fixed = |links, changed| Ok((fixed_attr(node, links, changed), 0));
        match node {
            Node::File { fs, object, .. } => self.attr_of(node, fs.attr(*object)?),
            Node::Control(branch) | Node::Shares(branch) => fixed(2, branch.since),
            Node::Snapshots(branch) => {
                let all = branch.list_snapshots();
                let newest = all.iter().map(|s| s.created).max();
                let changed = branch.snapshots_changed();
                let changed = changed.unwrap_or(newest.map_or(branch.since, |sec| (sec, 0)));
                fixed((all.len() as u64).saturating_add(2), changed)
            }
            Node::Made(made) => fixed(self.table().added_to(node).saturating_add(2), made.since),
        }
    }
}

/// Attributes of a directory that is in no file system.
fn fixed_attr(node: &Node, links: u64, changed: Time) -> FileAttr {
    // Control directories show what OpenZFS shows (`zfsctl_inode_alloc`); nothing can be changed in them.
    let perm = if matches!(node, Node::Made(_)) { 0o555 } else { 0o777 };
    FileAttr {
        ino: INodeNo(node.ino()),
        size: 2,
        blocks: 0,
        atime: node.branch().since,
        mtime: changed,
        ctime: changed,
        kind: FileType::Directory,
        perm,
        nlink: u32::try_from(links).unwrap_or(u32::MAX),
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 512,
        pending: false,
    }
}

/// A file's type by the upper bits of a mode; `None` for an unknown number.
pub(crate) fn file_type(kind: u32) -> Option<FileType> {
    let known = |kind: &FileType| *kind != FileType::Unknown;
    Some(FileType::from_raw_mode((kind & 0xf) << 12)).filter(|k| kind <= 0xf && known(k))
}

/// What tells a file from others that had its number, in the 32 bits that the kernel keeps of it. The
/// transaction group of its creation alone does not: in one group a number can be given several times.
pub(crate) fn generation(a: &Attr) -> u64 {
    let (seconds, nanoseconds) = (a.crtime.0 as u32, a.crtime.1);
    let group = (a.gen_ as u32).wrapping_mul(0x9e37_79b1);
    u64::from(group ^ seconds.rotate_left(16) ^ nanoseconds)
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
        atime: a.atime,
        mtime: a.mtime,
        ctime: a.ctime,
        kind,
        perm: (a.mode & 0o7777) as u16,
        nlink: u32::try_from(a.nlink).unwrap_or(u32::MAX),
        uid: a.uid,
        gid: a.gid,
        // The form in which device numbers cross the border to the kernel.
        rdev: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
        blksize: a.blksize,
        pending: a.pending,
    })
}
