//! Names that come, go and move (`zpl_create`, `zpl_mknod`, `zpl_mkdir`, `zpl_link`, `zpl_unlink`, `zpl_rmdir`,
//! `zpl_rename`, `zpl_tmpfile`).
//!
//! A request is checked against the tree, then it is one change of the file system. `changeable` refuses control
//! directories, snapshots, and file systems that are read-only or gone. A new name must not be one that the tree
//! adds (`.zfs`, a submount); a name that goes must not lead to a directory that something is mounted on or below.
//! Names in `.zfs/snapshot` are snapshots: `mkdir`, `rmdir` and `rename` take, destroy and rename them.
//!
//! A file that loses its last name stays until the kernel has forgotten its inode number. A file without a name is
//! remembered in the same way from the start.
//!
//! The answer waits for the disk where the mount's `sync` says so.

use super::direct;
use super::handles::{Handle, Opening};
use super::reply::Entry;
use super::{Server, errno};
use crate::branch::Branch;
use crate::caller::Caller;
use crate::inodes;
use crate::node::{CONTROL, Node};
use crate::session::{Found, INodeNo, Modes, ReplyCreate, ReplyEmpty, ReplyEntry, waits_for_disk};
use cenote_zpl::{Error, FileSystem, NewNode, NodeKind, Owner, Removed, RenameFlags};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Set-group-id bit of a file that its group may run.
const SETGID_RUN: u32 = 0o2010;

/// A file or directory that can be changed.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) branch: &'a Arc<Branch>,
    pub(super) fs: &'a Arc<FileSystem>,
    pub(super) object: u64,
}

impl Target<'_> {
    /// A file of the same file system.
    fn other(&self, object: u64) -> Node {
        let slot = self.branch.slot;
        Node::File { branch: self.branch.clone(), fs: self.fs.clone(), slot, object }
    }
}

/// A node that someone wants to create.
pub(super) struct Wanted {
    pub(super) kind: NodeKind,
    pub(super) modes: Modes,
}

/// Major and minor number in the form in which device numbers cross the border to the kernel.
fn device(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

/// What `mknod` is to make.
pub(super) fn node_kind(mode: u32, rdev: u32) -> Result<NodeKind, Errno> {
    let (major, minor) = device(rdev);
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(NodeKind::File),
        FileType::Fifo => Ok(NodeKind::Fifo),
        FileType::Socket => Ok(NodeKind::Socket),
        FileType::CharacterDevice => Ok(NodeKind::CharDevice(major, minor)),
        FileType::BlockDevice => Ok(NodeKind::BlockDevice(major, minor)),
        _ => Err(Errno::INVAL),
    }
}

impl Server {
    /// What a change of `node` is made on. Control directories and snapshots cannot be changed, nor
    /// can file systems that are `readonly`.
    pub(super) fn changeable<'a>(&self, node: &'a Node) -> Result<Target<'a>, Errno> {
        match node {
            Node::File { branch, .. } if branch.is_gone() => Err(Errno::IO),
            Node::File { branch, fs, object, .. }
                if node.may_change() && self.tree.changes && fs.is_writable() =>
            {
                Ok(Target { branch, fs, object: *object })
            }
            _ => Err(Errno::ROFS),
        }
    }

    /// A name that is to lead to something new must not be one that the tree adds.
    fn free_name(&self, dir: &Node, name: &OsStr) -> Result<(), Errno> {
        let name = name.as_bytes();
        let control = dir.is_branch_root() && dir.branch().has_control() && name == CONTROL;
        if control || self.tree.added(dir, name).is_some() {
            return Err(Errno::EXIST);
        }
        Ok(())
    }

    /// A name that is to lead to nothing or something else must not lead to a control directory, and
    /// nothing may be mounted there.
    fn removable(&self, dir: &Node, target: &Target<'_>, name: &OsStr) -> Result<(), Errno> {
        let bytes = name.as_bytes();
        if dir.is_branch_root() && dir.branch().has_control() && bytes == CONTROL {
            return Err(Errno::PERM);
        }
        if !self.tree.leads_elsewhere() {
            return Ok(());
        }
        let node = match target.fs.lookup(target.object, bytes) {
            Ok(object) => target.other(object),
            Err(Error::NotFound(_)) if self.tree.added(dir, bytes).is_some() => {
                return Err(Errno::BUSY);
            }
            Err(_) => return Ok(()),
        };
        if self.tree.is_covered(&node) {
            return Err(Errno::BUSY);
        }
        if !self.tree.additions(&node).is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        Ok(())
    }

    /// As [`Server::removable`], for what stays.
    fn movable(&self, dir: &Node, target: &Target<'_>, name: &OsStr) -> Result<(), Errno> {
        self.removable(dir, target, name).or_else(|e| match e {
            Errno::NOTEMPTY => Ok(()),
            e => Err(e),
        })
    }

    /// Creates a node: in a directory, or a file without a name that inherits from it.
    fn create_node(
        &self,
        who: Caller,
        parent: INodeNo,
        name: Option<&OsStr>,
        wanted: Wanted,
    ) -> Result<(Node, Entry), Errno> {
        let dir = self.tree.node(parent).map_err(|e| errno(&e))?;
        if let (Node::Snapshots(branch), Some(name), NodeKind::Dir) = (&dir, name, &wanted.kind) {
            return self.take_snapshot(who, &dir, branch, name);
        }
        let target = self.changeable(&dir)?;
        let Wanted { kind, modes: Modes { mode, umask } } = wanted;
        let keep_setgid = kind == NodeKind::Dir
            || mode & SETGID_RUN != SETGID_RUN
            || target.fs.attr(target.object).is_ok_and(|dir| {
                let inherits = dir.mode & 0o2000 != 0;
                who.keeps_setgid(if inherits { dir.gid } else { who.gid })
            });
        let (uid, gid) = (who.uid, who.gid);
        let new = NewNode { kind, mode: mode & 0o7777, umask, uid, gid, keep_setgid };
        let made = match name {
            Some(name) => {
                self.free_name(&dir, name)?;
                target.fs.create(target.object, name.as_bytes(), &new)
            }
            None => target.fs.tmpfile(target.object, &new),
        };
        name.into_iter().for_each(|name| self.tree.changed_name(&dir, name.as_bytes()));
        let attr = made.map_err(|e| errno(&e))?;
        let ino = attr.ino;
        let node = target.other(ino);
        let entry = self.new_entry(&dir, &node, attr)?;
        if name.is_none() {
            // If it is given a name, letting go of it changes nothing.
            self.lost_a_name(&target, Removed { ino, nlink: 0, orphan: true });
        }
        Ok((node, entry))
    }

    /// `mknod`, `mkdir`, `symlink`.
    pub(super) fn reply_make(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &OsStr,
        wanted: Result<Wanted, Errno>,
        reply: ReplyEntry,
    ) {
        match wanted.and_then(|wanted| self.create_node(who, parent, Some(name), wanted)) {
            Ok((node, entry)) => {
                self.changed(node.branch(), reply, move |reply| reply.entry(&entry.found));
            }
            Err(e) => reply.error(e),
        }
    }

    /// `open` of a file that is not there, or of one without a name (`O_TMPFILE`).
    pub(super) fn reply_create(
        &self,
        who: Caller,
        parent: INodeNo,
        name: Option<&OsStr>,
        modes: Modes,
        flags: OFlags,
        reply: ReplyCreate,
    ) {
        let wanted = Wanted { kind: NodeKind::File, modes };
        let made = self.create_node(who, parent, name, wanted).and_then(|(node, entry)| {
            let Node::File { branch, fs, object, .. } = &node else { return Err(Errno::IO) };
            let used = self.tree.enter(branch).map_err(|e| errno(&e))?;
            let direct = self.opens_new_directly(node.ino(), flags);
            let how = Opening {
                writes: flags & OFlags::RWMODE != OFlags::RDONLY,
                direct,
                appends: flags.contains(OFlags::APPEND),
                maps: self.opens_mappable(node.ino(), flags),
                durable: waits_for_disk(flags),
                notes_access: true,
            };
            let fh = self.handles.open(Handle::new(node.clone(), fs.clone(), *object, used, how));
            Ok((node, entry, fh, direct::opened(direct, true)))
        });
        match made {
            Ok((node, entry, fh, how)) => {
                // What is written to it makes the kernel ask for its attributes anyway.
                let found = Found { attr_kept: entry.found.name_kept, ..entry.found };
                self.changed(node.branch(), reply, move |reply| reply.created(&found, fh, how));
            }
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn reply_link(
        &self,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let linked = self.tree.node(parent).map_err(|e| errno(&e)).and_then(|dir| {
            let node = self.tree.node(ino).map_err(|e| errno(&e))?;
            let (target, file) = (self.changeable(&dir)?, self.changeable(&node)?);
            if !Arc::ptr_eq(target.fs, file.fs) {
                return Err(Errno::XDEV);
            }
            self.free_name(&dir, name)?;
            let linked = target.fs.link(file.object, target.object, name.as_bytes());
            self.tree.changed_name(&dir, name.as_bytes());
            let entry = self.new_entry(&dir, &node, linked.map_err(|e| errno(&e))?)?;
            Ok((node, entry))
        });
        match linked {
            Ok((node, entry)) => {
                self.changed(node.branch(), reply, move |reply| reply.entry(&entry.found));
            }
            Err(e) => reply.error(e),
        }
    }

    /// `unlink`, `rmdir`.
    pub(super) fn reply_remove(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &OsStr,
        directory: bool,
        reply: ReplyEmpty,
    ) {
        let removed = self.tree.node(parent).map_err(|e| errno(&e)).and_then(|dir| {
            if let (Node::Snapshots(branch), true) = (&dir, directory) {
                self.destroy_snapshot(who, branch, name)?;
                return Ok(dir);
            }
            let target = self.changeable(&dir)?;
            self.removable(&dir, &target, name)?;
            let in_use = |object| self.tree.inodes.knows(target.other(object).ino());
            let removed = if directory {
                target.fs.rmdir(target.object, name.as_bytes(), &in_use)
            } else {
                target.fs.unlink(target.object, name.as_bytes(), &in_use)
            };
            self.tree.changed_name(&dir, name.as_bytes());
            self.lost_a_name(&target, removed.map_err(|e| errno(&e))?);
            Ok(dir)
        });
        match removed {
            Ok(dir) => self.changed(dir.branch(), reply, ReplyEmpty::ok),
            Err(e) => reply.error(e),
        }
    }

    /// Remembers a file that lost its last name until the kernel has forgotten it.
    fn lost_a_name(&self, target: &Target<'_>, removed: Removed) {
        if removed.orphan {
            let orphan = (target.fs.clone(), removed.ino);
            let unknown = self.tree.inodes.orphan(target.other(removed.ino).ino(), orphan);
            unknown.into_iter().for_each(inodes::release);
        }
    }

    pub(super) fn reply_rename(
        &self,
        who: Caller,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: rustix::fs::RenameFlags,
        reply: ReplyEmpty,
    ) {
        let node = |ino| self.tree.node(ino).map_err(|e| errno(&e));
        let renamed = node(parent).and_then(|dir| {
            let new_dir = node(new_parent)?;
            if matches!(&dir, Node::Snapshots(_)) {
                self.rename_snapshot(who, (&dir, name), (&new_dir, new_name), flags)?;
                return Ok(dir);
            }
            self.rename(who, (&dir, name), (&new_dir, new_name), flags)?;
            Ok(dir)
        });
        match renamed {
            Ok(dir) => self.changed(dir.branch(), reply, ReplyEmpty::ok),
            Err(e) => reply.error(e),
        }
    }

    fn rename(
        &self,
        who: Caller,
        (dir, name): (&Node, &OsStr),
        (new_dir, new_name): (&Node, &OsStr),
        flags: rustix::fs::RenameFlags,
    ) -> Result<(), Errno> {
        use rustix::fs::RenameFlags as Flags;
        if !(Flags::NOREPLACE | Flags::EXCHANGE | Flags::WHITEOUT).contains(flags) {
            return Err(Errno::INVAL);
        }
        let (from, to) = (self.changeable(dir)?, self.changeable(new_dir)?);
        if !Arc::ptr_eq(from.fs, to.fs) {
            return Err(Errno::XDEV);
        }
        let no_replace = flags.contains(Flags::NOREPLACE);
        if no_replace {
            self.free_name(new_dir, new_name)?;
        }
        let exchange = flags.contains(Flags::EXCHANGE);
        // A directory that submounts are in can move; one that is covered cannot.
        self.movable(dir, &from, name)?;
        if exchange {
            self.movable(new_dir, &to, new_name)?;
        } else {
            self.removable(new_dir, &to, new_name)?;
        }
        let whiteout = Some(Owner { uid: who.uid, gid: who.gid });
        let whiteout = whiteout.filter(|_| flags.contains(Flags::WHITEOUT));
        let how = RenameFlags { no_replace, exchange, whiteout };
        let in_use = |object| self.tree.inodes.knows(from.other(object).ino());
        let (old, new) = (name.as_bytes(), new_name.as_bytes());
        let lost = from.fs.rename(from.object, old, to.object, new, how, &in_use);
        self.tree.changed_name(dir, old);
        self.tree.changed_name(new_dir, new);
        if let Some(removed) = lost.map_err(|e| errno(&e))? {
            self.lost_a_name(&to, removed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_as_the_kernel_writes_them() {
        // /dev/null is 1:3; 259:70000 needs the upper bits of the minor number.
        assert_eq!(device(0x103), (1, 3));
        let (major, minor) = (0xfff & 259, 70000);
        assert_eq!(device((minor & 0xff) | major << 8 | (minor & !0xff) << 12), (259, 70000));
        assert_eq!(node_kind(0o020_666, 0x103).ok(), Some(NodeKind::CharDevice(1, 3)));
        assert!(node_kind(0o040_755, 0).is_err());
    }
}
