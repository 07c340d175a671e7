//! Directories: names and what they lead to (`zpl_lookup`, `zpl_iterate`).
//!
//! Offsets of entries: 1 and 2 follow `.` and `..`, 3 follows `.zfs`; offsets of the file system's own
//! entries are its cookies and a bit more; at the end are entries that lead to submounts, by their slots.

use super::handles::Directory;
use super::{FOREVER, Server, errno};
use crate::branch::Branch;
use crate::inodes;
use crate::node::{CONTROL, Node, ino};
use crate::session::{
    FileHandle, INodeNo, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry, ReplyOpen,
};
use crate::tree::file_type;
use cenote_zpl::Error;
use fuse_abi::linux::{FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE};
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Longest name in a listing that every kernel takes (`FUSE_NAME_MAX`).
const NAME_MAX: usize = 1024;
/// Entries read from a directory at a time.
const BATCH: usize = 128;
/// Offsets of `.`, `..` and `.zfs` in a directory; offsets of entries follow.
const FIRST_COOKIE: u64 = 3;
/// Offset after the file system's own entries; those that lead to submounts follow, at their slots.
const ADDED: u64 = i64::MAX as u64 - (1 << 16);

/// A directory entry on its way to the kernel.
struct Item<'a> {
    name: &'a [u8],
    ino: u64,
    kind: FileType,
    /// Offset of the entry after it.
    next: u64,
    node: Option<Node>,
}

/// Whether the kernel takes an entry of this name. One that it does not take would make it refuse the
/// whole listing (`EIO`).
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&b'/') && !name.contains(&0)
}

impl Server {
    /// Lists a directory from `offset` on, until `emit` says that there is no more room.
    fn list(
        &self,
        dir: INodeNo,
        offset: u64,
        emit: &mut dyn FnMut(Item<'_>) -> bool,
    ) -> Result<(), Error> {
        let node = self.tree.node(dir)?;
        if offset == 0 {
            self.note_access(&node);
        }
        let mut dot = |name: &[u8], next: u64, node: Node| {
            emit(Item { name, ino: node.ino(), kind: FileType::Directory, next, node: Some(node) })
        };
        if offset < 1 && dot(b".", 1, node.clone()) {
            return Ok(());
        }
        if offset < 2 && dot(b"..", 2, self.tree.parent(&node)) {
            return Ok(());
        }
        let control = node.is_branch_root() && node.branch().shows_control();
        if offset < FIRST_COOKIE
            && control
            && dot(CONTROL, FIRST_COOKIE, Node::Control(node.branch().clone()))
        {
            return Ok(());
        }
        match &node {
            Node::File { .. } | Node::Made(_) => {
                if !self.list_entries(&node, offset, emit)? {
                    self.list_additions(&node, offset, emit);
                }
            }
            Node::Control(branch) => {
                let snapshots = Node::Snapshots(branch.clone());
                let entries = [(&b"snapshot"[..], snapshots), (b"shares", branch.shares())];
                for ((name, node), at) in entries.into_iter().zip(FIRST_COOKIE..) {
                    if offset <= at && dot(name, at + 1, node) {
                        break;
                    }
                }
            }
            Node::Shares(_) => {}
            Node::Snapshots(branch) => self.list_snapshots(branch, offset, emit)?,
        }
        Ok(())
    }

    /// Lists the entries that were added to a directory: they lead to submounts.
    fn list_additions(&self, node: &Node, offset: u64, emit: &mut dyn FnMut(Item<'_>) -> bool) {
        for (slot, name, node) in self.tree.additions(node) {
            let next = ADDED.saturating_add(slot.into());
            let (ino, kind) = (node.ino(), FileType::Directory);
            if offset < next && emit(Item { name: &name, ino, kind, next, node: Some(node) }) {
                break;
            }
        }
    }

    /// Lists `.zfs/snapshot` (`zpl_snapdir_iterate`). That opens no snapshot: there is no node, and there are no
    /// attributes.
    fn list_snapshots(
        &self,
        branch: &Arc<Branch>,
        offset: u64,
        emit: &mut dyn FnMut(Item<'_>) -> bool,
    ) -> Result<(), Error> {
        let all = branch.list_snapshots();
        for (entry, at) in all.iter().zip(FIRST_COOKIE..).filter(|(_, at)| *at >= offset) {
            let (name, ino) = (entry.name.as_bytes(), self.tree.snapshot_ino(branch, &entry.name)?);
            if emit(Item { name, ino, kind: FileType::Directory, next: at + 1, node: None }) {
                break;
            }
        }
        Ok(())
    }

    /// Lists the entries that a directory has in its file system. Returns whether there was no more
    /// room.
    fn list_entries(
        &self,
        node: &Node,
        offset: u64,
        emit: &mut dyn FnMut(Item<'_>) -> bool,
    ) -> Result<bool, Error> {
        let Node::File { branch, fs, slot, object } = node else { return Ok(false) };
        if offset >= ADDED {
            return Ok(false);
        }
        let mut cookie = offset.saturating_sub(FIRST_COOKIE);
        loop {
            let batch = fs.readdir(*object, cookie, BATCH)?;
            let Some(last) = batch.last() else { return Ok(false) };
            cookie = last.cookie;
            for e in &batch {
                if !is_name(&e.name) {
                    tracing::warn!(
                        "{}: directory {object} has an entry '{}', which is no file name: left out",
                        branch.dataset,
                        e.name.escape_ascii()
                    );
                    continue;
                }
                let own = ino(fs, *slot, e.ino);
                let (branch, fs) = (branch.clone(), fs.clone());
                let file = Node::File { branch, fs, slot: *slot, object: e.ino };
                let node = self.tree.top(file);
                let ino = node.ino();
                // What covers a directory is a directory.
                let kind =
                    if ino == own { self.entry_kind(e.kind, &node) } else { FileType::Directory };
                let next = e.cookie.saturating_add(FIRST_COOKIE).min(ADDED);
                if emit(Item { name: &e.name, ino, kind, next, node: Some(node) }) {
                    return Ok(true);
                }
            }
        }
    }

    /// A file's type by its directory entry, or by its mode in old file systems, whose entries do not
    /// tell.
    fn entry_kind(&self, kind: u8, node: &Node) -> FileType {
        let by_mode = || self.tree.attr(node).map_or(FileType::RegularFile, |(a, _)| a.kind);
        file_type(kind.into()).unwrap_or_else(by_mode)
    }

    /// The number of an open directory, and what the kernel is told it as. The number is 0 in the mounted
    /// file system, where the kernel keeps count of what is open.
    fn open_directory(&self, ino: INodeNo) -> Result<(FileHandle, u32), Error> {
        let node = self.tree.node(ino)?;
        let keep = if self.listing_is_noted(&node) { 0 } else { FOPEN_KEEP_CACHE };
        let how = FOPEN_CACHE_DIR | keep;
        let snapshot = match &node {
            Node::File { branch, fs, slot, .. } if *slot != branch.slot => Some(fs.clone()),
            _ => None,
        };
        let is_submount = node.branch().slot != 0;
        if !is_submount && snapshot.is_none() {
            return Ok((FileHandle(0), how));
        }
        let used = is_submount.then(|| self.tree.enter(node.branch())).transpose()?;
        Ok((self.handles.open_directory(Directory { _used: used, _snapshot: snapshot }), how))
    }

    /// Looks a name up (`zpl_lookup`).
    pub(super) fn reply_lookup(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = match self.tree.node(parent) {
            Ok(parent) => parent,
            Err(e) => return reply.error(errno(&e)),
        };
        let found = self
            .tree
            .lookup(&parent, name.as_bytes())
            .and_then(|node| self.tree.attr(&node).map(|attr| (node, attr)));
        match found {
            Ok((node, attr)) => reply.entry(&self.entry(&parent, &node, attr).found),
            Err(Error::NotFound(_)) if self.keeps_names(&parent) || !self.tree.changes => {
                reply.absent(self.tree.name_kept(FOREVER));
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn reply_opendir(&self, ino: INodeNo, reply: ReplyOpen) {
        match self.open_directory(ino) {
            Ok((fh, how)) => reply.opened(fh, how),
            Err(e) => reply.error(errno(&e)),
        }
    }

    /// Lists a directory (`zpl_iterate`).
    pub(super) fn reply_readdir(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        let mut some = false;
        let result = self.list(ino, offset, &mut |item| {
            let full = reply.add(INodeNo(item.ino), item.next, item.kind, item.name);
            some |= !full;
            full
        });
        match result {
            // What was read is given out; the rest fails when it is asked for.
            Err(e) if !some => reply.error(errno(&e)),
            _ => reply.ok(),
        }
    }

    pub(super) fn reply_readdirplus(
        &self,
        ino: INodeNo,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut some = false;
        let parent = self.tree.node(ino);
        let keeps = parent.is_ok_and(|p| self.keeps_names(&p));
        let result = self.list(ino, offset, &mut |item| {
            let known = item.node.as_ref().and_then(|n| Some((n, self.tree.attr(n).ok()?)));
            let Some((node, attr)) = known else {
                let full = reply.add_name(INodeNo(item.ino), item.next, item.kind, item.name);
                some |= !full;
                return full;
            };
            let entry = self.entry_in(keeps, node, attr);
            // The kernel counts no lookups for the two.
            let counted = entry.counted.filter(|_| !matches!(item.name, b"." | b".."));
            // Before the kernel can know it.
            let before = counted.and_then(|ino| {
                let before = self.tree.inodes.learn(ino, entry.found.generation);
                self.told(&entry.found.attr);
                Some((ino, before?))
            });
            let full = reply.add(&entry.found, item.next, item.name);
            if full
                && let Some((ino, before)) = before
                && let Some(orphan) = self.tree.inodes.untold(ino, before)
            {
                inodes::release(orphan);
            }
            some |= !full;
            full
        });
        match result {
            Err(e) if !some => reply.error(errno(&e)),
            _ => reply.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_refuses_are_known() {
        assert!(is_name(b"a\xff\n b") && is_name(&[b'a'; NAME_MAX]));
        let long = [b'a'; NAME_MAX + 1];
        for name in [&b""[..], b"a/b", b"/", b"a\0b", &long] {
            assert!(!is_name(name), "{}", name.escape_ascii());
        }
    }
}
