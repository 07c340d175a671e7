//! What a server of requests looks like: [`Filesystem`], and how requests come to it.
//!
//! A method answers one kind of request through its reply, at once or later from another thread. A method that a server
//! leaves out answers `ENOSYS`, which the kernel takes to mean that it need not ask again. `serve` calls the method
//! that a request is for.

use super::reply::{
    Reply, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use super::request::{Asked, FileHandle, INodeNo, Modes, Operation, Writing};
use crate::caller::Caller;
use crate::kernel::Needed;
use fuse_abi::linux::{fuse_in_header, fuse_kstatfs};
use parking_lot::RwLockReadGuard;
use rustix::fs::{FallocateFlags, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;

/// Default of requests that a server need not know: `ENOSYS`, after which the kernel does without
/// where it can.
macro_rules! unknown {
    ($(fn $name:ident($($arg:ident: $kind:ty),*; $reply:ty);)*) => {
        $(fn $name(&self, $($arg: $kind,)* reply: $reply) {
            reply.error(Errno::NOSYS);
        })*
    };
}

/// Serves requests, several at a time. Of names nothing is known but that they have no NUL.
pub(crate) trait Filesystem: Send + Sync + 'static {
    /// What is asked of the kernel: `FUSE_*` flags of `fuse_init_out`, with the flags of `flags2` above the
    /// others. Those that it does not offer are left out.
    fn wanted(&self) -> u64 {
        0
    }

    /// The kernel, which speaks this minor version, has agreed to these of the flags.
    fn agreed(&self, _minor: u32, _flags: u64) {}

    /// A request found the state of the pool wrong.
    fn broken(&self, _why: &str) {}

    /// Waits until a request may be served; it is served before what is returned is dropped.
    fn admit(&self) -> Option<RwLockReadGuard<'_, ()>> {
        None
    }

    /// There will be no more requests.
    fn destroy(&self) {}

    /// The kernel has forgotten as many times as `_count` that it was told a number.
    fn forget(&self, _ino: INodeNo, _count: u64) {}

    /// The program that waits for the answer to the request with this number was interrupted.
    fn interrupted(&self, _number: u64) {}

    fn lookup(&self, parent: INodeNo, name: &OsStr, reply: ReplyEntry);
    fn getattr(&self, ino: INodeNo, reply: ReplyAttr);
    fn setattr(&self, who: Caller, ino: INodeNo, asked: Asked, reply: ReplyAttr);
    fn open(&self, who: Caller, ino: INodeNo, flags: OFlags, reply: ReplyOpen);
    fn read(&self, fh: FileHandle, offset: u64, size: u32, flags: OFlags, reply: ReplyData);
    fn write(
        &self,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        how: Writing,
        reply: ReplyWrite,
    );
    fn release(&self, fh: FileHandle, reply: ReplyEmpty);
    fn readdir(&self, ino: INodeNo, offset: u64, reply: ReplyDirectory);

    fn opendir(&self, _ino: INodeNo, reply: ReplyOpen) {
        reply.opened(FileHandle(0), 0);
    }

    fn releasedir(&self, _fh: FileHandle, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(fuse_kstatfs { bsize: 512, namelen: 255, ..fuse_kstatfs::default() });
    }

    unknown! {
        fn readlink(_ino: INodeNo; ReplyData);
        fn symlink(_who: Caller, _parent: INodeNo, _name: &OsStr, _target: &OsStr; ReplyEntry);
        fn mknod(
            _who: Caller, _parent: INodeNo, _name: &OsStr, _modes: Modes, _rdev: u32; ReplyEntry
        );
        fn mkdir(_who: Caller, _parent: INodeNo, _name: &OsStr, _modes: Modes; ReplyEntry);
        fn unlink(_who: Caller, _parent: INodeNo, _name: &OsStr; ReplyEmpty);
        fn rmdir(_who: Caller, _parent: INodeNo, _name: &OsStr; ReplyEmpty);
        fn rename(
            _who: Caller, _from: (INodeNo, &OsStr), _to: (INodeNo, &OsStr), _flags: RenameFlags;
            ReplyEmpty
        );
        fn link(_ino: INodeNo, _parent: INodeNo, _name: &OsStr; ReplyEntry);
        fn create(
            _who: Caller, _parent: INodeNo, _name: &OsStr, _modes: Modes, _flags: OFlags; ReplyCreate
        );
        fn tmpfile(_who: Caller, _parent: INodeNo, _modes: Modes, _flags: OFlags; ReplyCreate);
        fn flush(_ino: INodeNo; ReplyEmpty);
        fn fsync(_ino: INodeNo; ReplyEmpty);
        fn syncfs(; ReplyEmpty);
        fn readdirplus(_ino: INodeNo, _offset: u64; ReplyDirectoryPlus);
        fn setxattr(
            _who: Caller, _ino: INodeNo, _attr: (&OsStr, &[u8]), _flags: u32; ReplyEmpty
        );
        fn getxattr(_ino: INodeNo, _name: &OsStr, _size: u32; ReplyXattr);
        fn listxattr(_who: Caller, _ino: INodeNo, _size: u32; ReplyXattr);
        fn removexattr(_who: Caller, _ino: INodeNo, _name: &OsStr; ReplyEmpty);
        fn ioctl(_ino: INodeNo, _fh: FileHandle, _command: u32, _data: &[u8]; ReplyIoctl);
        fn fallocate(
            _who: Caller, _fh: FileHandle, _range: (u64, u64), _mode: FallocateFlags; ReplyEmpty
        );
        fn lseek(_fh: FileHandle, _offset: u64, _whence: u32; ReplyLseek);
        fn copy_file_range(
            _who: Caller, _from: (FileHandle, u64), _to: (FileHandle, u64), _len: u64; ReplyWrite
        );
    }
}

/// Has a request served.
pub(super) fn serve<F: Filesystem>(
    fs: &F,
    header: &fuse_in_header,
    operation: Operation<'_>,
    reply: Reply,
) {
    use Operation as Op;
    let _needed = Needed::new();
    let _admitted = fs.admit();
    let ino = INodeNo(header.nodeid);
    let who = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
    match operation {
        Op::Init(_) => reply.error(Errno::IO),
        // The kernel waits for no answer to these. An interruption was seen to before.
        Op::Interrupt(_) => reply.none(),
        Op::Forget(count) => {
            reply.none();
            fs.forget(ino, count);
        }
        Op::BatchForget(all) => {
            reply.none();
            all.iter().for_each(|(ino, count)| fs.forget(ino, count));
        }
        // The end of requests is seen without it.
        Op::Destroy => ReplyEmpty(reply).ok(),
        Op::Lookup(name) => fs.lookup(ino, name, reply.into()),
        Op::GetAttr => fs.getattr(ino, reply.into()),
        Op::SetAttr(asked) => fs.setattr(who, ino, asked, reply.into()),
        Op::ReadLink => fs.readlink(ino, reply.into()),
        Op::Symlink { name, target } => fs.symlink(who, ino, name, target, reply.into()),
        Op::MkNod { name, modes, rdev } => fs.mknod(who, ino, name, modes, rdev, reply.into()),
        Op::MkDir { name, modes } => fs.mkdir(who, ino, name, modes, reply.into()),
        Op::Unlink(name) => fs.unlink(who, ino, name, reply.into()),
        Op::RmDir(name) => fs.rmdir(who, ino, name, reply.into()),
        Op::Rename { name, to, flags } => fs.rename(who, (ino, name), to, flags, reply.into()),
        Op::Link { ino: old, name } => fs.link(old, ino, name, reply.into()),
        Op::Open(flags) => fs.open(who, ino, flags, reply.into()),
        Op::Create { name, modes, flags } => fs.create(who, ino, name, modes, flags, reply.into()),
        Op::TmpFile { modes, flags } => fs.tmpfile(who, ino, modes, flags, reply.into()),
        Op::Read { fh, offset, size, flags } => fs.read(fh, offset, size, flags, reply.into()),
        Op::Write { fh, offset, data, how } => fs.write(ino, fh, offset, data, how, reply.into()),
        Op::Flush => fs.flush(ino, reply.into()),
        Op::Release(fh) => fs.release(fh, reply.into()),
        Op::FSync => fs.fsync(ino, reply.into()),
        Op::SyncFs => fs.syncfs(reply.into()),
        Op::OpenDir => fs.opendir(ino, reply.into()),
        Op::ReadDir { offset, size } => fs.readdir(ino, offset, ReplyDirectory::new(reply, size)),
        Op::ReadDirPlus { offset, size } => {
            fs.readdirplus(ino, offset, ReplyDirectoryPlus::new(reply, size));
        }
        Op::ReleaseDir(fh) => fs.releasedir(fh, reply.into()),
        Op::StatFs => fs.statfs(ino, reply.into()),
        Op::SetXattr { name, value, flags } => {
            fs.setxattr(who, ino, (name, value), flags, reply.into());
        }
        Op::GetXattr { name, size } => fs.getxattr(ino, name, size, reply.into()),
        Op::ListXattr { size } => fs.listxattr(who, ino, size, reply.into()),
        Op::RemoveXattr(name) => fs.removexattr(who, ino, name, reply.into()),
        Op::Ioctl { fh, command, data } => fs.ioctl(ino, fh, command, data, reply.into()),
        Op::Fallocate { fh, range, mode } => fs.fallocate(who, fh, range, mode, reply.into()),
        Op::Lseek { fh, offset, whence } => fs.lseek(fh, offset, whence, reply.into()),
        Op::CopyFileRange { from, to, len } => fs.copy_file_range(who, from, to, len, reply.into()),
    }
}
