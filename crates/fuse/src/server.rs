//! Answers the kernel's requests.
//!
//! Each request is handled by the thread that received it; there are several, so that one that waits
//! for a disk does not keep the others waiting. Requests that would change something are refused
//! (the mount is read-only, so the kernel refuses most of them itself).

use crate::flags;
use crate::graft::InUse;
use crate::tree::{CONTROL, Node, Tree, entry_attr, file_type, ino};
use crate::{MountSpec, Space, can_nest};
use cenote_dmu::readahead::ReadAhead;
use cenote_zpl::{Error, File, ProjectSpace};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

/// How long the kernel may keep what it was told: nothing changes.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Entries read from a directory at a time.
const BATCH: usize = 128;
/// Offsets of `.`, `..` and `.zfs` in a directory; those of entries follow.
const FIRST_COOKIE: u64 = 3;
/// Offset after the file system's own entries; those that lead to grafts follow, at their slots.
const ADDED: u64 = i64::MAX as u64 - (1 << 16);
/// Requests of read-ahead that the kernel may have under way.
const MAX_BACKGROUND: u16 = 64;
/// Largest read that is answered; the kernel asks for 1 MiB at most.
const MAX_READ: u32 = 16 << 20;
/// Objects that an object set can hold.
const MAX_OBJECTS: u64 = 1 << 48;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// ZFS names have at most 255 bytes unless the feature for longer ones is used.
const NAME_MAX: u32 = 255;
/// How names of attributes that hold ACLs start.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";
/// Flag of an `open` that is part of running a program.
const FMODE_EXEC: i32 = 0x20;

thread_local! {
    /// The buffer that files are read into: each thread answers one request at a time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An open file.
struct Handle {
    file: File,
    ahead: ReadAhead,
    used: InUse,
}

/// The server of one mount.
pub(crate) struct Server {
    tree: Arc<Tree>,
    handles: RwLock<HashMap<u64, Arc<Handle>>>,
    /// Open directories of grafts.
    directories: RwLock<HashMap<u64, InUse>>,
    /// Number of the next open file or directory.
    next_handle: AtomicU64,
}

/// A directory entry on its way to the kernel.
struct Item<'a> {
    name: &'a [u8],
    ino: u64,
    kind: FileType,
    /// Offset of the entry after it.
    next: u64,
    node: Option<Node>,
}

fn errno(e: &Error) -> Errno {
    Errno::from_i32(e.errno())
}

impl Server {
    pub(crate) fn new(spec: &MountSpec) -> Server {
        Server {
            tree: Arc::new(Tree::new(spec)),
            handles: RwLock::default(),
            directories: RwLock::default(),
            next_handle: AtomicU64::new(1),
        }
    }

    /// What is served.
    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Lists a directory from `offset` on, until `emit` says that there is no more room.
    fn list(
        &self,
        dir: INodeNo,
        offset: u64,
        emit: &mut dyn FnMut(Item<'_>) -> bool,
    ) -> Result<(), Error> {
        let node = self.tree.node(dir)?;
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
                if self.list_entries(&node, offset, emit)? {
                    return Ok(());
                }
                for (slot, name, node) in self.tree.additions(&node) {
                    let next = ADDED.saturating_add(slot.into());
                    let (ino, kind) = (node.ino(), FileType::Directory);
                    if offset < next
                        && emit(Item { name: &name, ino, kind, next, node: Some(node) })
                    {
                        break;
                    }
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
            Node::Snapshots(branch) => {
                let all = branch.list_snapshots();
                for (entry, at) in all.iter().zip(FIRST_COOKIE..).filter(|(_, at)| *at >= offset) {
                    let ino = self.tree.snapshot_ino(branch, &entry.name)?;
                    // Listing does not open every snapshot: no node, no attributes.
                    let item = Item {
                        name: entry.name.as_bytes(),
                        ino,
                        kind: FileType::Directory,
                        next: at + 1,
                        node: None,
                    };
                    if emit(item) {
                        break;
                    }
                }
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

    /// Whether the kernel checks permissions by ACLs. It does so in the whole mount or nowhere; where
    /// there may be grafts, some of them may have ACLs.
    fn kernel_asks_for_acls(&self) -> bool {
        self.tree.root.fs.visibility().posix_acl || !can_nest()
    }

    /// A file's type by its directory entry, or by its mode in old file systems, whose entries do not
    /// tell.
    fn entry_kind(&self, kind: u8, node: &Node) -> FileType {
        let by_mode = || self.tree.attr(node).map_or(FileType::RegularFile, |(a, _)| a.kind);
        file_type(kind.into()).unwrap_or_else(by_mode)
    }

    fn open_file(&self, ino: INodeNo, run: bool) -> Result<u64, Errno> {
        let node = self.tree.node(ino).map_err(|e| errno(&e))?;
        let Node::File { branch, fs, object, .. } = &node else { return Err(Errno::EISDIR) };
        // The kernel knows what may be run from the mount as a whole.
        if run && !branch.exec {
            return Err(Errno::EACCES);
        }
        let used = self.tree.enter(branch).map_err(|e| errno(&e))?;
        let file = fs.open_file(*object).map_err(|e| errno(&e))?;
        let handle = Handle { file, ahead: ReadAhead::new(), used };
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, Arc::new(handle));
        Ok(number)
    }

    /// The number of an open directory: 0 in the mounted file system, where the kernel keeps count
    /// of what is open.
    fn open_directory(&self, ino: INodeNo) -> Result<u64, Error> {
        let node = self.tree.node(ino)?;
        if node.branch().slot == 0 {
            return Ok(0);
        }
        let used = self.tree.enter(node.branch())?;
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.directories.write().unwrap_or_else(PoisonError::into_inner).insert(number, used);
        Ok(number)
    }

    /// An open file; an error after its file system was taken away by force.
    fn handle(&self, fh: FileHandle) -> Result<Arc<Handle>, Errno> {
        let handles = self.handles.read().unwrap_or_else(PoisonError::into_inner);
        match handles.get(&fh.0) {
            Some(handle) if handle.used.is_gone() => Err(Errno::EIO),
            Some(handle) => Ok(handle.clone()),
            None => Err(Errno::EBADF),
        }
    }

    /// Names of extended attributes, each ended by a NUL. Those for the superuser are shown to no
    /// one else.
    fn xattr_names(&self, req: &Request, ino: INodeNo) -> Result<Vec<u8>, Error> {
        let Node::File { fs, object, .. } = self.tree.node(ino)? else { return Ok(Vec::new()) };
        let mut list = Vec::new();
        for name in fs.listxattr(object)? {
            if req.uid() == 0 || !name.starts_with(b"trusted.") {
                list.extend_from_slice(&name);
                list.push(0);
            }
        }
        Ok(list)
    }
}

/// Figures of `statfs`; blocks are of `unit` bytes.
struct StatFs {
    unit: u64,
    blocks: u64,
    free: u64,
    files: u64,
    free_files: u64,
}

/// Space as OpenZFS shows it: what is used is rounded up to whole records, and a file takes at least
/// 512 bytes. A project with a quota looks like a file system of that size.
fn statfs(space: &Space, used_objects: u64, project: Option<ProjectSpace>) -> StatFs {
    let unit = space.record_size.clamp(512, 16 << 20);
    let referenced = space.referenced.checked_next_multiple_of(unit).unwrap_or(space.referenced);
    let free_files = MAX_OBJECTS.saturating_sub(used_objects).min(space.available >> 9);
    let mut s = StatFs {
        unit,
        blocks: referenced.saturating_add(space.available) / unit,
        free: space.available / unit,
        files: free_files.saturating_add(used_objects),
        free_files,
    };
    if let Some((quota, p)) = project.and_then(|p| Some((p.quota?, p))) {
        (s.blocks, s.free) = (quota / unit, quota.saturating_sub(p.used) / unit);
    }
    if let Some((quota, p)) = project.and_then(|p| Some((p.object_quota?, p))) {
        (s.files, s.free_files) = (quota, quota.saturating_sub(p.objects));
    }
    s
}

/// Answers a request for an extended attribute or a list of them.
fn reply_xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

/// Requests that would change something.
macro_rules! refuse {
    ($(fn $name:ident($($arg:ty),*) -> $reply:ty;)*) => { $(refuse!(@one $name [] [$($arg),*] $reply);)* };
    (@one $name:ident [$($done:tt)*] [] $reply:ty) => {
        fn $name(&self, _req: &Request, $($done)* reply: $reply) {
            reply.error(Errno::EROFS);
        }
    };
    (@one $name:ident [$($done:tt)*] [$arg:ty $(, $rest:ty)*] $reply:ty) => {
        refuse!(@one $name [$($done)* _: $arg,] [$($rest),*] $reply);
    };
}

impl Filesystem for Server {
    refuse! {
        fn setattr(
            INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>, Option<TimeOrNow>,
            Option<SystemTime>, Option<FileHandle>, Option<SystemTime>, Option<SystemTime>, Option<SystemTime>,
            Option<BsdFileFlags>
        ) -> ReplyAttr;
        fn mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        fn mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        fn unlink(INodeNo, &OsStr) -> ReplyEmpty;
        fn rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        fn symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        fn rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        fn link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        fn write(INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>) -> ReplyWrite;
        fn setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        fn removexattr(INodeNo, &OsStr) -> ReplyEmpty;
        fn create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        fn fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
    }

    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_HAS_IOCTL_DIR;
        // Makes the kernel check permissions by ACLs too.
        if self.kernel_asks_for_acls() {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        // Each is an improvement that an older kernel may lack.
        for flag in wanted.iter() {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "not supported by the kernel");
            }
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        if let Err(most) = config.set_max_readahead(1 << 20) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = self.tree.node(parent);
        // A graft makes the kernel forget the name of the directory that it covers. It cannot make
        // it forget all ways to write that name, so the kernel is to keep none.
        let folds = parent.as_ref().is_ok_and(Node::folds_names);
        let found = parent
            .and_then(|p| self.tree.lookup(&p, name.as_bytes()))
            .and_then(|node| self.tree.attr(&node));
        match found {
            Ok((attr, generation)) => {
                let keep = !folds || attr.kind != FileType::Directory;
                let entry = if keep { FOREVER } else { Duration::ZERO };
                reply.entry_with_ttls(&FOREVER, &entry, &attr, Generation(generation));
            }
            // Inode 0: the kernel may remember that there is no such name.
            Err(Error::NotFound(_)) => {
                reply.entry(&FOREVER, &entry_attr(0, FileType::RegularFile), Generation(0));
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.tree.node(ino).and_then(|n| self.tree.attr(&n)) {
            Ok((attr, _)) => reply.attr(&FOREVER, &attr),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let target = match self.tree.node(ino) {
            Ok(Node::File { fs, object, .. }) => fs.readlink(object),
            Ok(_) => Err(Error::Invalid("not a symbolic link".into())),
            Err(e) => Err(e),
        };
        match target {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        match self.open_file(ino, flags.0 & FMODE_EXEC != 0) {
            Ok(number) => reply.opened(
                FileHandle(number),
                FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
            ),
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let handle = match self.handle(fh) {
            Ok(handle) => handle,
            Err(e) => return reply.error(e),
        };
        let size = size.min(MAX_READ) as usize;
        let direct = OFlags::DIRECT.bits() as i32;
        if let Ok(object) = handle.file.object() {
            handle.ahead.before_read(&object, offset, size as u64);
        }
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let buf = buffer.get_mut(..size).unwrap_or_default();
            let mut result = handle.file.read(offset, buf);
            // A direct read may end before a bad block. For the page cache a short answer would be
            // the end of the file; the kernel asks again for smaller pieces when a large one fails.
            if result.is_err() && flags.0 & direct != 0 {
                result = handle.file.read_up_to_error(offset, buf);
            }
            match result {
                Ok(n) => reply.data(buf.get(..n).unwrap_or_default()),
                Err(e) => {
                    tracing::debug!(offset, size, "read: {e}");
                    reply.error(errno(&e));
                }
            }
        });
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.write().unwrap_or_else(PoisonError::into_inner).remove(&fh.0);
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_directory(ino) {
            Ok(number) => reply.opened(
                FileHandle(number),
                FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        if fh.0 != 0 {
            self.directories.write().unwrap_or_else(PoisonError::into_inner).remove(&fh.0);
        }
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut some = false;
        let result = self.list(ino, offset, &mut |item| {
            let full =
                reply.add(INodeNo(item.ino), item.next, item.kind, OsStr::from_bytes(item.name));
            some |= !full;
            full
        });
        match result {
            // What was read is given out; the rest fails when it is asked for.
            Err(e) if !some => reply.error(errno(&e)),
            _ => reply.ok(),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut some = false;
        let result = self.list(ino, offset, &mut |item| {
            let known: Option<(FileAttr, u64)> =
                item.node.as_ref().and_then(|n| self.tree.attr(n).ok());
            let (ttl, (attr, generation)) = match known {
                Some(known) => (FOREVER, known),
                None => (Duration::ZERO, (entry_attr(item.ino, item.kind), 0)),
            };
            let name = OsStr::from_bytes(item.name);
            let full =
                reply.add(INodeNo(item.ino), item.next, name, &ttl, &attr, Generation(generation));
            some |= !full;
            full
        });
        match result {
            Err(e) if !some => reply.error(errno(&e)),
            _ => reply.ok(),
        }
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let node = match self.tree.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(errno(&e)),
        };
        let project = match &node {
            Node::File { fs, object, .. } => fs.bounding_project(*object).unwrap_or_default(),
            _ => None,
        };
        let branch = node.branch();
        let s = statfs(&branch.space, branch.fs.used_objects(), project);
        let unit = u32::try_from(s.unit).unwrap_or(u32::MAX);
        reply.statfs(s.blocks, s.free, s.free, s.files, s.free_files, unit, NAME_MAX, unit);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = match self.tree.node(ino) {
            Ok(Node::File { fs, object, .. }) => fs.getxattr(object, name.as_bytes()),
            Ok(_) => Ok(None),
            Err(e) => Err(e),
        };
        match value {
            Ok(Some(value)) => reply_xattr(&value, size, reply),
            Ok(None) => reply.error(Errno::NO_XATTR),
            // For the kernel any other error would be one of the permission check.
            Err(Error::Unsupported(_))
                if name.as_bytes().starts_with(ACL_PREFIX) && self.kernel_asks_for_acls() =>
            {
                reply.error(Errno::NO_XATTR);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.xattr_names(req, ino) {
            Ok(names) => reply_xattr(&names, size, reply),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let attr = match self.tree.node(ino) {
            Ok(Node::File { fs, object, .. }) => fs.attr(object),
            Ok(_) => return reply.error(Errno::ENOTTY),
            Err(e) => Err(e),
        };
        match attr.map(|a| flags::answer(cmd, &a)) {
            Ok(Some(answer)) => reply.ioctl(0, &answer),
            Ok(None) => reply.error(Errno::ENOTTY),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let handle = match self.handle(fh) {
            Ok(handle) => handle,
            Err(e) => return reply.error(e),
        };
        let (Ok(offset), SEEK_DATA | SEEK_HOLE) = (u64::try_from(offset), whence) else {
            return reply.error(Errno::EINVAL);
        };
        match handle.file.seek(offset, whence == SEEK_HOLE) {
            Ok(Some(at)) => reply.offset(i64::try_from(at).unwrap_or(i64::MAX)),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(e) => reply.error(errno(&e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_projects_bound_what_statfs_shows() {
        let space = Space { referenced: 100_000, available: 10 << 20, record_size: 128 << 10 };
        let s = statfs(&space, 50, None);
        assert_eq!((s.blocks, s.free, s.files, s.free_files), (81, 80, 20480 + 50, 20480));
        let p =
            ProjectSpace { used: 1 << 20, objects: 7, quota: Some(4 << 20), object_quota: None };
        let s = statfs(&space, 50, Some(p));
        assert_eq!((s.blocks, s.free, s.free_files), (32, 24, 20480));
        let s =
            statfs(&space, 50, Some(ProjectSpace { quota: Some(1), object_quota: Some(10), ..p }));
        assert_eq!((s.blocks, s.free, s.files, s.free_files), (0, 0, 10, 3));
    }
}
