//! Answers the kernel's requests.
//!
//! Each request is handled by the thread that received it; there are several, so that one that waits
//! for a disk does not keep the others waiting. No lock is held while a request is handled but those
//! inside the file system. Requests that have to wait until something is on disk leave their answer
//! to the `syncer`, which has their own threads wait once these hold nothing.
//!
//! | module | requests |
//! |---|---|
//! | `list` | names: lookup, listing |
//! | `change` | names that come, go and move |
//! | `attr` | `stat`, extended attributes, flags |
//! | `data` | open files and their contents |
//! | `rewrite` | files written anew as they are |
//! | `snapshots` | snapshots taken, destroyed and renamed in `.zfs/snapshot` |
//! | `space` | `statfs` |
//! | `direct` | new files that are only written to, past the kernel's pages |
//! | `handles` | what is open |
//! | `reply` | what the kernel may keep of an answer, and for how long |
//!
//! The kernel checks permissions. What is checked here is that a node can be changed: it is in no
//! snapshot or control directory (but for snapshots themselves), its file system is not `readonly`, nothing is mounted
//! there.

mod attr;
mod change;
mod data;
mod direct;
pub(crate) mod handles;
mod list;
mod reply;
mod rewrite;
mod snapshots;
mod space;

use crate::MountSpec;
use crate::RewriteRange;
use crate::caller::Caller;
use crate::inodes;
use crate::session::{
    Asked, FileHandle, Filesystem, INodeNo, Modes, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Writing,
};
use crate::syncer::{SyncHook, Syncer};
use crate::tree::Tree;
use cenote_zpl::{Error, NodeKind};
use change::{Wanted, node_kind};
use direct::Direct;
use fuse_abi::linux::{
    FUSE_ASYNC_DIO, FUSE_CACHE_SYMLINKS, FUSE_DIRECT_IO_ALLOW_MMAP, FUSE_DO_READDIRPLUS,
    FUSE_DONT_MASK, FUSE_HANDLE_KILLPRIV_V2, FUSE_HAS_IOCTL_DIR, FUSE_PARALLEL_DIROPS,
    FUSE_POSIX_ACL, FUSE_READDIRPLUS_AUTO, fuse_kstatfs,
};
use handles::Handles;
use parking_lot::RwLockReadGuard;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the kernel may keep what does not change without a request.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

/// The server of one mount.
pub(crate) struct Server {
    tree: Arc<Tree>,
    handles: Arc<Handles>,
    syncer: Arc<Syncer>,
    /// Waits for all file systems of the mount; made for the first `syncfs`.
    sync_all: OnceLock<SyncHook>,
    direct: Direct,
    /// Whether the kernel checks permissions by ACLs. It does so in the whole mount or nowhere, as it is
    /// told at the beginning; file systems may lose theirs later.
    kernel_asks_for_acls: bool,
}

fn errno(e: &Error) -> Errno {
    Errno::from_raw_os_error(e.errno())
}

/// The error of a request by number. A number that there is no file for any more makes the kernel
/// follow the path again.
fn missing(e: &Error) -> Errno {
    match errno(e) {
        Errno::NOENT => Errno::STALE,
        e => e,
    }
}

impl Server {
    pub(crate) fn new(spec: &MountSpec) -> Server {
        // Where there may be submounts, some of them may have ACLs.
        let kernel_asks_for_acls = spec.fs.visibility().posix_acl || !crate::can_nest();
        let tree = Arc::new(Tree::new(spec));
        Server {
            kernel_asks_for_acls,
            handles: tree.handles.clone(),
            tree,
            syncer: Arc::default(),
            sync_all: OnceLock::new(),
            direct: Direct::default(),
        }
    }

    /// What is served.
    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    fn forget_inode(&self, ino: u64, count: u64) {
        if let Some(orphan) = self.tree.inodes.forget(ino, count) {
            inodes::release(orphan);
        }
    }
}

impl Filesystem for Server {
    fn broken(&self, why: &str) {
        self.tree.root.fs().sound_alarm(why);
    }

    fn wanted(&self) -> u64 {
        let mut wanted = FUSE_ASYNC_DIO
            | FUSE_PARALLEL_DIROPS
            | FUSE_DO_READDIRPLUS
            | FUSE_READDIRPLUS_AUTO
            | FUSE_CACHE_SYMLINKS
            | FUSE_HAS_IOCTL_DIR;
        // Flags of the upper half.
        let mut more = 0;
        if self.tree.changes {
            // Whether the umask counts depends on the directory's default ACL; whether a write takes
            // set-user-id bits away is known here without asking for every write. FUSE_ATOMIC_O_TRUNC is
            // not among them: a program that runs would be truncated by an open for reading with O_TRUNC
            // before the kernel refuses that.
            wanted |= FUSE_DONT_MASK | FUSE_HANDLE_KILLPRIV_V2;
            more |= FUSE_DIRECT_IO_ALLOW_MMAP;
        }
        // Makes the kernel check permissions by ACLs too.
        if self.kernel_asks_for_acls {
            wanted |= FUSE_POSIX_ACL;
        }
        u64::from(wanted) | more
    }

    fn agreed(&self, minor: u32, flags: u64) {
        self.direct.agreed(minor, flags);
    }

    fn interrupted(&self, number: u64) {
        let tree = Arc::downgrade(&self.tree);
        self.syncer.interrupt(number, move || {
            let branches = tree.upgrade().map(|tree| tree.branches()).unwrap_or_default();
            branches.iter().any(|branch| branch.fs().is_suspended())
        });
    }

    fn admit(&self) -> Option<RwLockReadGuard<'_, ()>> {
        Some(self.tree.admit())
    }

    fn destroy(&self) {
        // The kernel does not say that it has forgotten everything.
        self.tree.release_orphans(|_| true);
    }

    fn forget(&self, ino: INodeNo, count: u64) {
        self.forget_inode(ino.0, count);
    }

    fn lookup(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_lookup(parent, name, reply);
    }

    fn getattr(&self, ino: INodeNo, reply: ReplyAttr) {
        self.reply_getattr(ino, reply);
    }

    fn setattr(&self, who: Caller, ino: INodeNo, asked: Asked, reply: ReplyAttr) {
        self.reply_setattr(who, ino, asked, reply);
    }

    fn readlink(&self, ino: INodeNo, reply: ReplyData) {
        self.reply_readlink(ino, reply);
    }

    fn mknod(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &OsStr,
        modes: Modes,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let wanted = node_kind(modes.mode, rdev).map(|kind| Wanted { kind, modes });
        self.reply_make(who, parent, name, wanted, reply);
    }

    fn mkdir(&self, who: Caller, parent: INodeNo, name: &OsStr, modes: Modes, reply: ReplyEntry) {
        let wanted = Wanted { kind: NodeKind::Dir, modes };
        self.reply_make(who, parent, name, Ok(wanted), reply);
    }

    fn symlink(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &OsStr,
        target: &OsStr,
        reply: ReplyEntry,
    ) {
        let kind = NodeKind::Symlink(target.as_bytes().to_vec());
        let wanted = Wanted { kind, modes: Modes { mode: 0o777, umask: 0 } };
        self.reply_make(who, parent, name, Ok(wanted), reply);
    }

    fn create(
        &self,
        who: Caller,
        parent: INodeNo,
        name: &OsStr,
        modes: Modes,
        flags: OFlags,
        reply: ReplyCreate,
    ) {
        self.reply_create(who, parent, Some(name), modes, flags, reply);
    }

    fn tmpfile(
        &self,
        who: Caller,
        parent: INodeNo,
        modes: Modes,
        flags: OFlags,
        reply: ReplyCreate,
    ) {
        self.reply_create(who, parent, None, modes, flags, reply);
    }

    fn link(&self, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_link(ino, parent, name, reply);
    }

    fn unlink(&self, who: Caller, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_remove(who, parent, name, false, reply);
    }

    fn rmdir(&self, who: Caller, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_remove(who, parent, name, true, reply);
    }

    fn rename(
        &self,
        who: Caller,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.reply_rename(who, from, to, flags, reply);
    }

    fn open(&self, _who: Caller, ino: INodeNo, flags: OFlags, reply: ReplyOpen) {
        self.reply_open(ino, flags, reply);
    }

    fn read(&self, fh: FileHandle, offset: u64, size: u32, flags: OFlags, reply: ReplyData) {
        self.reply_read(fh, offset, size, flags, reply);
    }

    fn write(
        &self,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        how: Writing,
        reply: ReplyWrite,
    ) {
        self.reply_write(fh, offset, data, how, reply);
    }

    fn flush(&self, _ino: INodeNo, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(&self, fh: FileHandle, reply: ReplyEmpty) {
        if let Some(handle) = self.handles.close(fh) {
            self.closed(&handle);
        }
        reply.ok();
    }

    fn fsync(&self, ino: INodeNo, reply: ReplyEmpty) {
        self.reply_fsync(ino, reply);
    }

    fn syncfs(&self, reply: ReplyEmpty) {
        self.reply_syncfs(reply);
    }

    fn opendir(&self, ino: INodeNo, reply: ReplyOpen) {
        self.reply_opendir(ino, reply);
    }

    fn releasedir(&self, fh: FileHandle, reply: ReplyEmpty) {
        self.handles.close_directory(fh);
        reply.ok();
    }

    fn readdir(&self, ino: INodeNo, offset: u64, reply: ReplyDirectory) {
        self.reply_readdir(ino, offset, reply);
    }

    fn readdirplus(&self, ino: INodeNo, offset: u64, reply: ReplyDirectoryPlus) {
        self.reply_readdirplus(ino, offset, reply);
    }

    fn statfs(&self, ino: INodeNo, reply: ReplyStatfs) {
        let s = match self.tree.node(ino) {
            Ok(node) => self.figures(&node),
            Err(e) => return reply.error(errno(&e)),
        };
        let unit = u32::try_from(s.unit).unwrap_or(u32::MAX);
        reply.statfs(fuse_kstatfs {
            blocks: s.blocks,
            bfree: s.free,
            bavail: s.free,
            files: s.files,
            ffree: s.free_files,
            bsize: unit,
            namelen: s.longest_name,
            frsize: unit,
            ..fuse_kstatfs::default()
        });
    }

    fn setxattr(
        &self,
        who: Caller,
        ino: INodeNo,
        attr: (&OsStr, &[u8]),
        flags: u32,
        reply: ReplyEmpty,
    ) {
        self.reply_setxattr(who, ino, attr, flags, reply);
    }

    fn getxattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.reply_getxattr(ino, name, size, reply);
    }

    fn listxattr(&self, who: Caller, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.reply_listxattr(who, ino, size, reply);
    }

    fn removexattr(&self, who: Caller, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_removexattr(who, ino, name, reply);
    }

    fn ioctl(&self, ino: INodeNo, fh: FileHandle, command: u32, data: &[u8], reply: ReplyIoctl) {
        match RewriteRange::asked(command, data) {
            Some(range) => self.reply_rewrite(fh, range, reply),
            None => self.reply_ioctl(ino, command, data, reply),
        }
    }

    fn fallocate(
        &self,
        who: Caller,
        fh: FileHandle,
        range: (u64, u64),
        mode: FallocateFlags,
        reply: ReplyEmpty,
    ) {
        self.reply_fallocate(who, fh, range, mode, reply);
    }

    fn lseek(&self, fh: FileHandle, offset: u64, whence: u32, reply: ReplyLseek) {
        self.reply_lseek(fh, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        who: Caller,
        from: (FileHandle, u64),
        to: (FileHandle, u64),
        len: u64,
        reply: ReplyWrite,
    ) {
        self.reply_copy(who, from, to, len, reply);
    }
}
