//! Open files and their contents (`zpl_open`, `zpl_iter_read`, `zpl_iter_write`, `zpl_fsync`, `zpl_fallocate`,
//! `zpl_llseek`, `zpl_copy_file_range`).
//!
//! An open file is a handle, which says how it was opened: for writing, past the kernel's pages, through mappings,
//! with `O_SYNC`. A read is answered with pieces of cached blocks, which are not copied; what sequential reads need
//! next is asked for ahead. A write that the kernel held back in its pages (`reply_write_back`) is taken even if
//! the file system has become read-only, since no program would learn of the refusal.
//!
//! The kernel keeps pages, so what it does not see must be said or avoided. A file whose next read would change its
//! access time is opened without the pages that the kernel has. The pages that a direct write passed by are dropped
//! before the answer. Before a search for data or holes, changes in mappings are written.
//!
//! Invariant: a request that must be on disk (`fsync`, `O_SYNC`, `sync=always`) is answered through the syncer once it
//! is there.

use super::direct;
use super::handles::{Handle, Opening};
use super::{Server, errno, missing};
use crate::SyncPolicy;
use crate::caller::Caller;
use crate::node::Node;
use crate::session::Work;
use crate::session::{
    FileHandle, INodeNo, ReplyData, ReplyEmpty, ReplyLseek, ReplyOpen, ReplyWrite, Writing,
    waits_for_disk,
};
use crate::tree::Tree;
use cenote_zpl::{Allocate, Atime, Attr, Error, FileSystem, SetAttr, flags};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest read that is answered; the kernel asks for 1 MiB at most.
const MAX_READ: u32 = 16 << 20;
/// Most bytes cloned for one request, in whole blocks of every size; the caller asks again for the rest.
const MAX_COPY: u64 = 1 << 30;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// Flag of an `open` that is part of running a program.
const FMODE_EXEC: u32 = 0x20;
/// The set-group-id bit.
const SETGID: u32 = 0o2000;
/// A day in seconds: an access time older than this is always brought up to date.
const DAY: i64 = 24 * 3600;
/// Percent of space that `fallocate` wants to be there for what it promises
/// (`zfs_fallocate_reserve_percent`).
const RESERVE_PERCENT: u64 = 110;

/// Seconds since 1970.
pub(super) fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// Whether a read is worth an access time: as `relatime` has it.
fn is_stale(attr: &Attr, now: i64) -> bool {
    attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.saturating_sub(attr.atime.0) > DAY
}

/// Whether a read would change a file's access time. What the kernel has in memory is read without a
/// request: so a file is then opened without what the kernel has, and the first read is seen.
fn wants_access(fs: &FileSystem, attr: &Attr) -> bool {
    let settings = fs.settings();
    let wanted = match settings.atime {
        Atime::Off => false,
        Atime::Relative => is_stale(attr, settings.clock.now().0),
        Atime::On => true,
    };
    wanted && fs.is_writable()
}

/// Whether a read or a write passes by the ARC.
fn goes_directly(handle: &Handle, asked: bool, offset: u64, len: usize) -> Result<bool, Error> {
    handle.fs.settings().direct.takes(asked, offset, len as u64)
}

impl Server {
    pub(super) fn reply_open(&self, ino: INodeNo, flags: OFlags, reply: ReplyOpen) {
        match self.open_file(ino, flags) {
            Ok((fh, how)) => reply.opened(fh, how),
            Err(e) => reply.error(e),
        }
    }

    /// Opens a file; tells what the kernel is told it as.
    fn open_file(&self, ino: INodeNo, flags: OFlags) -> Result<(FileHandle, u32), Errno> {
        let node = self.tree.node(ino).map_err(|e| errno(&e))?;
        let Node::File { branch, fs, object, .. } = &node else { return Err(Errno::ISDIR) };
        // The kernel knows what may be run from the mount as a whole, but nothing of submounts.
        if flags.bits() & FMODE_EXEC != 0 && branch.slot != 0 && !branch.exec {
            return Err(Errno::ACCESS);
        }
        let write = flags & OFlags::RWMODE != OFlags::RDONLY;
        if write {
            self.changeable(&node)?;
        }
        let used = self.tree.enter(branch).map_err(|e| errno(&e))?;
        let may_change = self.tree.changes && node.may_change();
        let notes_access = may_change && !flags.contains(OFlags::NOATIME);
        let mut asks = false;
        if may_change {
            let attr = fs.attr(*object).map_err(|e| missing(&e))?;
            if write {
                may_write(&attr, flags)?;
            }
            asks = !write && notes_access && wants_access(fs, &attr);
        } else {
            // Fails for what is no regular file.
            fs.open_file(*object).map_err(|e| errno(&e))?;
        }
        let direct = may_change && self.tree.inodes.join_direct(node.ino());
        let how = Opening {
            writes: write,
            direct,
            appends: flags.contains(OFlags::APPEND),
            maps: may_change && self.opens_mappable(node.ino(), flags),
            durable: waits_for_disk(flags),
            notes_access,
        };
        let fh = self.handles.open(Handle::new(node.clone(), fs.clone(), *object, used, how));
        Ok((fh, direct::opened(direct, !asks)))
    }

    /// Whether reading a directory would change its access time. The kernel then has to ask for the
    /// listing, which it does if it drops what it has.
    pub(super) fn listing_is_noted(&self, node: &Node) -> bool {
        matches!(node, Node::File { fs, object, .. }
            if self.tree.changes
                && node.may_change()
                && fs.settings().atime != Atime::Off
                && fs.attr(*object).is_ok_and(|attr| wants_access(fs, &attr)))
    }

    /// Notes that something was read from a file or directory.
    pub(super) fn note_access(&self, node: &Node) {
        if let Node::File { fs, object, .. } = node
            && self.tree.changes
            && node.may_change()
            && fs.is_writable()
            && let Err(e) = fs.touch_atime(*object)
        {
            tracing::debug!(object, "access time: {e}");
        }
    }

    /// A change took away the set-user-id and set-group-id bits: the kernel has to ask again.
    fn ids_cleared(&self, ino: u64) {
        self.tree.inodes.clear_setid(ino);
        self.tree.attr_changed(ino);
    }

    /// Takes away the set-user-id and set-group-id bits, for a change by someone without privilege
    /// that does not do it itself. The latter is taken as the kernel does: also from what the group may
    /// not run, unless a member of the group changes it.
    fn clear_ids(&self, who: Caller, handle: &Handle) -> Result<(), Errno> {
        let ino = handle.node.ino();
        if !self.tree.inodes.is_setid(ino) || who.keeps_ids() {
            return Ok(());
        }
        let attr = handle.fs.attr(handle.object).map_err(|e| missing(&e))?;
        let clear_setgid = attr.mode & SETGID != 0 && !who.keeps_setgid(attr.gid);
        let set = SetAttr { clear_ids: true, clear_setgid, ..SetAttr::default() };
        handle.fs.setattr(handle.object, &set).map_err(|e| missing(&e))?;
        self.ids_cleared(ino);
        Ok(())
    }

    pub(super) fn reply_read(
        &self,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OFlags,
        reply: ReplyData,
    ) {
        let handle = match self.handles.get(fh) {
            Ok(handle) => handle,
            Err(e) => return reply.error(e),
        };
        let size = size.min(MAX_READ) as usize;
        let file = match handle.file() {
            Ok(file) => file,
            Err(e) => return reply.error(errno(&e)),
        };
        let asked = flags.contains(OFlags::DIRECT);
        let mut result = match goes_directly(&handle, asked, offset, size) {
            Err(e) => return reply.error(errno(&e)),
            Ok(true) => file.read_directly(offset, size),
            Ok(false) => {
                let (kernel_keeps, all) = (!handle.how.direct && !asked, size as u64);
                let part = |from, len| file.part(from, len).ok();
                handle.ahead.before_read(offset, all, kernel_keeps, part);
                file.read_abd(offset, size)
            }
        };
        // A direct read may end before a bad block. For the page cache a short answer would be the
        // end of the file; the kernel asks again for smaller pieces when a large one fails.
        if result.is_err() && asked {
            result = file.read_up_to_error(offset, size);
        }
        match result {
            Ok(data) => {
                handle.fs.io().count_read(data.len() as u64);
                if handle.notes_access(seconds()) {
                    self.note_access(&handle.node);
                }
                reply.pieces(&data);
            }
            Err(e) => {
                tracing::debug!(offset, size, "read: {e}");
                reply.error(errno(&e));
            }
        }
    }

    pub(super) fn reply_readlink(&self, ino: INodeNo, reply: ReplyData) {
        let (node, target) = match self.tree.node(ino) {
            Ok(node) => match &node {
                Node::File { fs, object, .. } => (Some(node.clone()), fs.readlink(*object)),
                _ => (None, Err(Error::Invalid("not a symbolic link".into()))),
            },
            Err(e) => (None, Err(e)),
        };
        match target {
            Ok(target) => {
                node.iter().for_each(|node| self.note_access(node));
                reply.data(&target);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    pub(super) fn reply_write(
        &self,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        how: Writing,
        reply: ReplyWrite,
    ) {
        if how.cached {
            return self.reply_write_back(fh, offset, data, reply);
        }
        let handle = self.handle_to_change(fh).and_then(|handle| {
            self.drop_capability(&handle)?;
            Ok(handle)
        });
        let handle = match handle {
            Ok(handle) => handle,
            Err(e) => return reply.error(e),
        };
        let ino = handle.node.ino();
        // The kernel says so of everyone without privilege.
        let clear_ids = how.kill_ids && self.tree.inodes.is_setid(ino);
        let offset = match self.place_of_write(&handle, offset) {
            Ok(offset) => offset,
            Err(e) => return reply.error(errno(&e)),
        };
        let directly = match goes_directly(&handle, how.direct, offset, data.len()) {
            Ok(directly) => directly,
            Err(e) => return reply.error(errno(&e)),
        };
        let write = |data: &[u8]| match directly {
            true => handle.fs.write_directly(handle.object, offset, data, clear_ids),
            false => handle.fs.write(handle.object, offset, data, clear_ids),
        };
        let written = write(data).and_then(|n| {
            let data = data.get(..n).unwrap_or(data);
            let first = self.written(&handle, (offset, data), || write(data))?;
            Ok((n, first.map(|first| Box::new(first) as Box<dyn FnOnce(Work) + Send>)))
        });
        let (n, first) = match written {
            Ok(written) => written,
            Err(e) => return reply.error(errno(&e)),
        };
        if clear_ids {
            self.ids_cleared(ino);
        }
        // The kernel forgets the pages of a direct write before it sends it, and again when it is done,
        // but not if the writer does not wait for it (`io_submit`). A program that reads the pages meanwhile would
        // go on reading what was there before.
        let first = match first {
            None if how.direct && !handle.how.direct => {
                let (tree, range) = (self.tree.clone(), (ino, offset, n as u64));
                let pages = move |then| tree.after_contents(range, then);
                Some(Box::new(pages) as Box<dyn FnOnce(Work) + Send>)
            }
            first => first,
        };
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        let answer = move |reply: ReplyWrite| match first {
            Some(first) => first(Box::new(move || reply.written(n))),
            None => reply.written(n),
        };
        // Where pages are kept the kernel asks for this by `fsync`.
        let wait = handle.how.direct && how.durable;
        let waits = wait.then_some(handle.object);
        self.changed_for(waits, handle.node.branch(), reply, answer);
    }

    /// Where a write goes: where the kernel says, also if the file was opened to be appended to, as the kernel knows
    /// the end. After an exchange it has programs append at the end of before, until it asks for the attributes.
    fn place_of_write(&self, handle: &Handle, offset: u64) -> Result<u64, Error> {
        if !handle.doubts_end() {
            return Ok(offset);
        }
        let end = handle.fs.attr(handle.object)?.size;
        if end == offset {
            handle.trusts_end();
        } else {
            // It takes what is written for what is at its own offset. It forgets that once it has the answer.
            drop(self.tree.forget(vec![self.tree.contents(handle.node.ino(), 0, 0)]));
        }
        Ok(end)
    }

    /// What was changed in a mapping comes when the kernel wants. It was changed in memory, and no program is
    /// told if it is refused now: so it is not even if the file system has become `readonly`.
    fn reply_write_back(&self, fh: FileHandle, offset: u64, data: &[u8], reply: ReplyWrite) {
        let written = self.handles.get(fh).and_then(|handle| {
            if !handle.how.writes || !handle.node.may_change() {
                return Err(Errno::ROFS);
            }
            let write = |data: &[u8]| handle.fs.write_back(handle.object, offset, data);
            self.write_back(&handle, (offset, data), write).map_err(|e| errno(&e))?;
            Ok(handle)
        });
        match written {
            Ok(handle) => {
                let n = u32::try_from(data.len()).unwrap_or(u32::MAX);
                let answer = move |reply: ReplyWrite| reply.written(n);
                self.changed(handle.node.branch(), reply, answer);
            }
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn handle_to_change(&self, fh: FileHandle) -> Result<Arc<Handle>, Errno> {
        let handle = self.handles.get(fh)?;
        self.changeable(&handle.node)?;
        Ok(handle)
    }

    /// `fsync` of a file or directory.
    pub(super) fn reply_fsync(&self, ino: INodeNo, reply: ReplyEmpty) {
        let node = match self.tree.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(errno(&e)),
        };
        // Also if it has become read-only meanwhile.
        let may_be_dirty = self.tree.changes && node.may_change();
        if may_be_dirty && node.branch().is_gone() {
            reply.error(Errno::IO);
        } else if may_be_dirty && node.branch().sync_policy() != SyncPolicy::Disabled {
            let object = match &node {
                Node::File { object, .. } => Some(*object),
                _ => None,
            };
            self.when_on_disk(object, node.branch(), reply, ReplyEmpty::ok);
        } else {
            reply.ok();
        }
    }

    /// `sync` and `syncfs` (`zfs_sync`): of all file systems in the mount. Linux sends this to `virtiofs`,
    /// and since 6.18 to `fuseblk`; other mounts do not get it.
    pub(super) fn reply_syncfs(&self, reply: ReplyEmpty) {
        if !self.tree.changes {
            return reply.ok();
        }
        // One hook for all such requests: they share threads, as those of one file system do.
        let all = self.sync_all.get_or_init(|| {
            let tree = Arc::downgrade(&self.tree);
            Arc::new(move |_| tree.upgrade().map_or(Ok(()), |tree| sync_branches(&tree)))
        });
        self.syncer.wait(reply.number(), all, None, move |result| match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(e)),
        });
    }

    pub(super) fn reply_fallocate(
        &self,
        who: Caller,
        fh: FileHandle,
        (offset, len): (u64, u64),
        mode: FallocateFlags,
        reply: ReplyEmpty,
    ) {
        let done = self.handle_to_change(fh).and_then(|handle| {
            self.fallocate(who, &handle, (offset, len), mode)?;
            Ok(handle)
        });
        match done {
            Ok(handle) => {
                let waits = handle.how.durable.then_some(handle.object);
                self.changed_for(waits, handle.node.branch(), reply, ReplyEmpty::ok);
            }
            Err(e) => reply.error(e),
        }
    }

    fn fallocate(
        &self,
        who: Caller,
        handle: &Handle,
        (offset, len): (u64, u64),
        mode: FallocateFlags,
    ) -> Result<(), Errno> {
        let keep = FallocateFlags::KEEP_SIZE;
        let what = match mode {
            m if m.is_empty() => Allocate::Extend,
            m if m == keep => Allocate::KeepSize,
            m if m == keep | FallocateFlags::PUNCH_HOLE => Allocate::PunchHole,
            m if m == FallocateFlags::ZERO_RANGE => Allocate::Zero,
            m if m == keep | FallocateFlags::ZERO_RANGE => Allocate::ZeroKeepSize,
            _ => return Err(Errno::OPNOTSUPP),
        };
        if matches!(what, Allocate::Extend | Allocate::KeepSize) {
            // Space cannot be set aside, but there has to be enough now.
            let s = self.figures(&handle.node);
            let most = s.free.saturating_mul(s.unit.saturating_mul(100) / RESERVE_PERCENT);
            if len > most {
                return Err(Errno::NOSPC);
            }
        }
        self.clear_ids(who, handle)?;
        handle.fs.allocate(handle.object, offset, len, what).map_err(|e| missing(&e))
    }

    pub(super) fn reply_copy(
        &self,
        who: Caller,
        (from, from_offset): (FileHandle, u64),
        (to, to_offset): (FileHandle, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        let copied = self.handles.get(from).and_then(|from| {
            let to = self.handle_to_change(to)?;
            if !to.fs.is_in_pool_of(&from.fs) {
                // The kernel copies by itself then.
                return Err(Errno::XDEV);
            }
            self.clear_ids(who, &to)?;
            let len = len.min(MAX_COPY);
            let n = to
                .fs
                .copy_range_from(&from.fs, (from.object, from_offset), (to.object, to_offset), len)
                .map_err(|e| missing(&e))?;
            Ok((to, u32::try_from(n).unwrap_or(u32::MAX)))
        });
        match copied {
            Ok((to, n)) => {
                let answer = move |reply: ReplyWrite| reply.written(n);
                let waits = to.how.durable.then_some(to.object);
                self.changed_for(waits, to.node.branch(), reply, answer);
            }
            Err(e) => reply.error(e),
        }
    }

    pub(super) fn reply_lseek(&self, fh: FileHandle, offset: u64, whence: u32, reply: ReplyLseek) {
        let handle = match self.handles.get(fh) {
            Ok(handle) => handle,
            Err(e) => return reply.error(e),
        };
        if !matches!(whence, SEEK_DATA | SEEK_HOLE) {
            return reply.error(Errno::INVAL);
        }
        // A negative one is as far past the end as any.
        if offset > i64::MAX as u64 {
            return reply.error(Errno::NXIO);
        }
        let ino = handle.node.ino();
        let seek = move || match handle.file().and_then(|f| f.seek(offset, whence == SEEK_HOLE)) {
            Ok(Some(at)) => reply.offset(at.min(i64::MAX as u64)),
            Ok(None) => reply.error(Errno::NXIO),
            Err(e) => reply.error(errno(&e)),
        };
        // The kernel does not write what was changed in mappings before it asks.
        match self.tree.inodes.may_be_mapped(ino) {
            true => self.tree.after_contents((ino, offset, 0), Box::new(seek)),
            false => seek(),
        }
    }
}

/// Whether a file's flags let it be opened to be written to.
fn may_write(attr: &Attr, open: OFlags) -> Result<(), Errno> {
    let appends = open.contains(OFlags::APPEND);
    if attr.flags & flags::IMMUTABLE != 0 || attr.flags & flags::APPEND_ONLY != 0 && !appends {
        return Err(Errno::PERM);
    }
    Ok(())
}

/// Waits until all file systems of a mount are on disk, but for those that need not be.
fn sync_branches(tree: &Tree) -> Result<(), Error> {
    let branches = tree.branches();
    let mut hooks = branches.iter().filter(|b| b.sync_policy() != SyncPolicy::Disabled);
    hooks.try_for_each(|branch| (branch.sync_hook())(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(atime: i64, mtime: i64, ctime: i64) -> Attr {
        Attr {
            ino: 7,
            gen_: 1,
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            blocks: 1,
            blksize: 512,
            atime: (atime, 0),
            mtime: (mtime, 0),
            ctime: (ctime, 0),
            crtime: (0, 0),
            rdev: (0, 0),
            parent: 34,
            flags: 0,
            projid: 0,
            xattr: 0,
            pending: false,
        }
    }

    #[test]
    fn access_times_are_stale_after_a_change_and_after_a_day() {
        let now = 10 * DAY;
        assert!(is_stale(&attr(5, 5, 1), now));
        assert!(is_stale(&attr(now, now - 5, now + 1), now));
        assert!(!is_stale(&attr(now - 1, now - 5, now - 5), now));
        assert!(is_stale(&attr(now - DAY - 1, 0, 0), now));
    }

    #[test]
    fn flags_keep_files_from_being_opened() {
        let flags = |f| Attr { flags: f, ..attr(0, 0, 0) };
        let append = OFlags::WRONLY | OFlags::APPEND;
        assert!(may_write(&flags(0), OFlags::WRONLY).is_ok());
        assert!(may_write(&flags(flags::IMMUTABLE), append).is_err());
        assert!(may_write(&flags(flags::APPEND_ONLY), append).is_ok());
        assert!(may_write(&flags(flags::APPEND_ONLY), OFlags::WRONLY).is_err());
    }
}
