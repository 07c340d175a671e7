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
use crate::branch::{Branch, InUse};
use crate::changing::Changing;
use crate::fate::stands;
use crate::inodes::{Inodes, Standing};
use crate::kernel::Held;
use crate::node::{
    CONTROL, FUSE_ROOT, Node, OBJECT_MASK, generation, in_branch, in_slot, not_found, slot_of,
};
use crate::server::handles::Handles;
use crate::session::{FileAttr, INodeNo, Notifier};
use crate::slots::{Slot, Table};
use crate::snapshot::Snapshot;
use cenote_zpl::{Attr, Error, Time};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::FileType;
use std::sync::{Arc, OnceLock};

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

    pub(crate) fn table_mut(&self) -> Held<RwLockWriteGuard<'_, Table>> {
        Held::new(|| self.table.write())
    }

    /// Registers an open file or directory of a branch.
    pub(crate) fn enter(&self, branch: &Arc<Branch>) -> Result<InUse, Error> {
        let _table = self.table();
        if branch.is_gone() {
            return Err(not_found("the file system was unmounted"));
        }
        Ok(branch.in_use())
    }

    /// What is shown in place of `node`: the root directory of the submount that covers it, or itself.
    pub(crate) fn top(&self, mut node: Node) -> Node {
        let table = self.table();
        if table.covers.is_empty() {
            return node;
        }
        while let Some(branch) = table.covers.get(&node.ino()) {
            node = branch.root();
        }
        node
    }

    /// What an added entry leads to.
    pub(crate) fn added(&self, dir: &Node, name: &[u8]) -> Option<Node> {
        self.additions(dir).into_iter().find(|(_, n, _)| n == name).map(|(_, _, node)| node)
    }

    /// The entries that are added to a directory: slot, name and what they lead to.
    pub(crate) fn additions(&self, dir: &Node) -> Vec<(u16, Vec<u8>, Node)> {
        let found: Vec<_> = {
            let table = self.table();
            let entries = table.added.get(&dir.ino());
            let entry = |(slot, name): (&u16, &Vec<u8>)| match table.slot(*slot)? {
                Slot::Submount(branch) => Some((*slot, name.clone(), branch.root())),
                Slot::Made(made) => Some((*slot, name.clone(), Node::Made(made.clone()))),
                _ => None,
            };
            entries.into_iter().flatten().filter_map(entry).collect()
        };
        found.into_iter().map(|(slot, name, node)| (slot, name, self.top(node))).collect()
    }

    /// Finds out whether a number in doubt stands for the file that the kernel was told it for.
    ///
    /// # Errors
    /// It does not; it cannot be read.
    pub(crate) fn settle(&self, ino: u64, told: u64, node: &Node) -> Result<(), Error> {
        let Node::File { fs, object, .. } = node else { return Ok(()) };
        let stands = stands(fs, *object, told)?;
        self.inodes.settle(ino, told, stands);
        if stands { Ok(()) } else { Err(Error::Stale(ino)) }
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
