//! Answers the kernel's requests.
//!
//! Each request is handled by the thread that received it; there are several, so that one that waits
//! for a disk does not keep the others waiting. No lock is held while a request is handled but those
//! inside the file system. Requests that have to wait until something is on disk leave their answer
//! to the `syncer`.
//!
//! | module | requests |
//! |---|---|
//! | `list` | names: lookup, listing |
//! | `change` | names that come, go and move |
//! | `attr` | `stat`, extended attributes, flags |
//! | `data` | open files and their contents |
//! | `rewrite` | files written anew as they are |
//! | `space` | `statfs` |
//! | `handles` | what is open |
//! | `reply` | what the kernel may keep of an answer, and for how long |
//!
//! The kernel checks permissions. What is checked here is that what is to be changed can be: it is no
//! snapshot or control directory, its file system is not `readonly`, nothing is mounted there.

mod attr;
mod change;
mod data;
mod handles;
mod list;
mod reply;
mod rewrite;
mod space;

use crate::MountSpec;
use crate::RewriteRange;
use crate::caller::Caller;
use crate::inodes;
use crate::syncer::Syncer;
use crate::tree::Tree;
use attr::Asked;
use cenote_zpl::{Error, NodeKind};
use change::{Wanted, node_kind};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use handles::Handles;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long the kernel may keep what does not change without a request.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Requests of read-ahead that the kernel may have under way.
const MAX_BACKGROUND: u16 = 64;
/// Largest write that the kernel is to send.
const MAX_WRITE: u32 = 1 << 20;
/// ZFS names have at most 255 bytes unless the feature for longer ones is used.
const NAME_MAX: u32 = 255;

/// The server of one mount.
pub(crate) struct Server {
    tree: Arc<Tree>,
    handles: Handles,
    syncer: Syncer,
}

fn errno(e: &Error) -> Errno {
    Errno::from_i32(e.errno())
}

/// The error of a request by number. A number that there is no file for any more makes the kernel
/// follow the path again.
fn missing(e: &Error) -> Errno {
    match errno(e) {
        Errno::ENOENT => Errno::ESTALE,
        e => e,
    }
}

impl Server {
    pub(crate) fn new(spec: &MountSpec) -> Server {
        let (handles, syncer) = (Handles::new(), Syncer::default());
        Server { tree: Arc::new(Tree::new(spec)), handles, syncer }
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
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_HAS_IOCTL_DIR;
        if self.tree.changes {
            // Whether the umask counts depends on the directory's default ACL; whether a write takes
            // set-user-id bits away is known here without asking for every write.
            wanted |= InitFlags::FUSE_ATOMIC_O_TRUNC
                | InitFlags::FUSE_DONT_MASK
                | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        }
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
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        if let Err(most) = config.set_max_readahead(1 << 20) {
            let _ = config.set_max_readahead(most);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        // The kernel does not say that it has forgotten everything.
        self.tree.release_orphans(|_| true);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, count: u64) {
        self.forget_inode(ino.0, count);
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_lookup(parent, name, reply);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_getattr(ino, reply);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let asked = Asked { mode, uid, gid, size, atime, mtime, ctime };
        self.reply_setattr(req.into(), ino, asked, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.reply_readlink(ino, reply);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let wanted = node_kind(mode, rdev).map(|kind| Wanted { kind, mode, umask });
        self.reply_make(req.into(), parent, name, wanted, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let wanted = Wanted { kind: NodeKind::Dir, mode, umask };
        self.reply_make(req.into(), parent, name, Ok(wanted), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let kind = NodeKind::Symlink(target.as_os_str().as_bytes().to_vec());
        let wanted = Wanted { kind, mode: 0o777, umask: 0 };
        self.reply_make(req.into(), parent, name, Ok(wanted), reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let wanted = Wanted { kind: NodeKind::File, mode, umask };
        self.reply_create(Caller::from(req), parent, name, wanted, OpenFlags(flags), reply);
    }

    fn link(&self, _req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_link(ino, parent, name, reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_remove(parent, name, false, reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_remove(parent, name, true, reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.reply_rename((parent, name), (new_parent, new_name), flags, reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.reply_open(req.into(), ino, flags, reply);
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
        self.reply_read(fh, offset, size, flags, reply);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.reply_write(fh, offset, data, write_flags, reply);
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
        self.handles.close(fh);
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.reply_fsync(ino, reply);
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.reply_fsync(ino, reply);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.reply_opendir(ino, reply);
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles.close_directory(fh);
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.reply_readdir(ino, offset, reply);
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.reply_readdirplus(ino, offset, reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let s = match self.tree.node(ino) {
            Ok(node) => self.figures(&node),
            Err(e) => return reply.error(errno(&e)),
        };
        let unit = u32::try_from(s.unit).unwrap_or(u32::MAX);
        reply.statfs(s.blocks, s.free, s.free, s.files, s.free_files, unit, NAME_MAX, unit);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.reply_setxattr(req.into(), ino, (name, value), flags, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.reply_getxattr(ino, name, size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.reply_listxattr(req, ino, size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.reply_removexattr(ino, name, reply);
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        match RewriteRange::asked(command, data) {
            Some(range) => self.reply_rewrite(fh, range, reply),
            None => self.reply_ioctl(ino, command, data, reply),
        }
    }

    fn fallocate(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.reply_fallocate(req.into(), fh, (offset, len), mode, reply);
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
        self.reply_lseek(fh, offset, whence, reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.reply_copy(req.into(), (fh_in, offset_in), (fh_out, offset_out), len, reply);
    }
}
