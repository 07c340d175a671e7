//! Requests as the kernel writes them.
//!
//! A request is a `fuse_in_header`, the structure that belongs to its opcode, and what comes after:
//! names, each ended by a NUL, or data. Nothing is taken on trust, neither lengths nor alignment:
//! structures are copied out of the bytes, names and data are parts of them. What a request has
//! beyond what is looked for is passed over, so that a newer kernel may say more.

use cenote_zpl::{SetTime, Time};
use fuse_abi::linux::{
    FATTR_ATIME, FATTR_ATIME_NOW, FATTR_CTIME, FATTR_GID, FATTR_MODE, FATTR_MTIME, FATTR_MTIME_NOW,
    FATTR_SIZE, FATTR_UID, FUSE_COMPAT_SETXATTR_IN_SIZE, FUSE_WRITE_CACHE, FUSE_WRITE_KILL_SUIDGID,
    fuse_batch_forget_in, fuse_copy_file_range_in, fuse_create_in, fuse_fallocate_in,
    fuse_forget_in, fuse_forget_one, fuse_getxattr_in, fuse_in_header, fuse_init_in,
    fuse_interrupt_in, fuse_ioctl_in, fuse_link_in, fuse_lseek_in, fuse_mkdir_in, fuse_mknod_in,
    fuse_opcode, fuse_open_in, fuse_read_in, fuse_release_in, fuse_rename_in, fuse_rename2_in,
    fuse_setattr_in, fuse_setxattr_in, fuse_write_in,
};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// The mode of something new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    /// What was asked for, with the type.
    pub(crate) mode: u32,
    /// What the caller wants to be taken away, if no ACL decides.
    pub(crate) umask: u32,
}

/// The kernel's number of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct INodeNo(pub(crate) u64);

/// The server's number of what is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileHandle(pub(crate) u64);

/// How something is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Writing {
    /// The writer may not keep set-user-id and set-group-id bits.
    pub(crate) kill_ids: bool,
    /// The writer has asked for it to be on disk then (`O_DSYNC` and more). The kernel sees to that
    /// itself unless the file is open past its pages.
    pub(crate) durable: bool,
    /// It comes from the kernel's pages.
    pub(crate) cached: bool,
    /// It goes past the kernel's pages (`O_DIRECT`).
    pub(crate) direct: bool,
}

/// What `setattr` is asked to change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
    pub(crate) ctime: Option<Time>,
}

impl Asked {
    fn new(set: &fuse_setattr_in) -> Asked {
        let has = |flag| set.valid & flag != 0;
        let time = |flag, now, sec: u64, nsec| {
            let at = if has(now) { SetTime::Now } else { SetTime::To((sec as i64, nsec)) };
            has(flag).then_some(at)
        };
        Asked {
            mode: has(FATTR_MODE).then_some(set.mode),
            uid: has(FATTR_UID).then_some(set.uid),
            gid: has(FATTR_GID).then_some(set.gid),
            size: has(FATTR_SIZE).then_some(set.size),
            atime: time(FATTR_ATIME, FATTR_ATIME_NOW, set.atime, set.atimensec),
            mtime: time(FATTR_MTIME, FATTR_MTIME_NOW, set.mtime, set.mtimensec),
            ctime: has(FATTR_CTIME).then_some((set.ctime as i64, set.ctimensec)),
        }
    }
}

/// What is asked for. Fields that no server here looks at are left out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Operation<'a> {
    Init(fuse_init_in),
    Destroy,
    Forget(u64),
    /// The program that waits for the answer to the request with this number was interrupted.
    Interrupt(u64),
    BatchForget(Forgets<'a>),
    Lookup(&'a OsStr),
    GetAttr,
    SetAttr(Asked),
    ReadLink,
    Symlink {
        name: &'a OsStr,
        target: &'a OsStr,
    },
    MkNod {
        name: &'a OsStr,
        modes: Modes,
        rdev: u32,
    },
    MkDir {
        name: &'a OsStr,
        modes: Modes,
    },
    Unlink(&'a OsStr),
    RmDir(&'a OsStr),
    Rename {
        name: &'a OsStr,
        to: (INodeNo, &'a OsStr),
        flags: RenameFlags,
    },
    Link {
        ino: INodeNo,
        name: &'a OsStr,
    },
    Open(OFlags),
    Create {
        name: &'a OsStr,
        modes: Modes,
        flags: OFlags,
    },
    TmpFile {
        modes: Modes,
        flags: OFlags,
    },
    Read {
        fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OFlags,
    },
    Write {
        fh: FileHandle,
        offset: u64,
        data: &'a [u8],
        how: Writing,
    },
    Flush,
    Release(FileHandle),
    FSync,
    SyncFs,
    OpenDir,
    ReadDir {
        offset: u64,
        size: u32,
    },
    ReadDirPlus {
        offset: u64,
        size: u32,
    },
    ReleaseDir(FileHandle),
    StatFs,
    SetXattr {
        name: &'a OsStr,
        value: &'a [u8],
        flags: u32,
    },
    GetXattr {
        name: &'a OsStr,
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr(&'a OsStr),
    Ioctl {
        fh: FileHandle,
        command: u32,
        data: &'a [u8],
    },
    Fallocate {
        fh: FileHandle,
        range: (u64, u64),
        mode: FallocateFlags,
    },
    Lseek {
        fh: FileHandle,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        from: (FileHandle, u64),
        to: (FileHandle, u64),
        len: u64,
    },
}

/// `FUSE_COPY_FILE_RANGE_64`, of Linux 6.18: the answer may be larger than 4 GiB.
const FUSE_COPY_FILE_RANGE_64: u32 = 53;

/// The opcodes, as numbers to compare with.
macro_rules! opcodes {
    ($($name:ident)*) => { $(const $name: u32 = fuse_opcode::$name as u32;)* };
}

opcodes! {
    FUSE_INIT FUSE_DESTROY FUSE_INTERRUPT FUSE_FORGET FUSE_BATCH_FORGET FUSE_LOOKUP FUSE_GETATTR
    FUSE_SETATTR FUSE_READLINK FUSE_SYMLINK FUSE_MKNOD FUSE_MKDIR FUSE_UNLINK FUSE_RMDIR FUSE_RENAME
    FUSE_RENAME2 FUSE_LINK FUSE_OPEN FUSE_CREATE FUSE_TMPFILE FUSE_READ FUSE_WRITE FUSE_FLUSH
    FUSE_RELEASE FUSE_FSYNC FUSE_OPENDIR FUSE_READDIR FUSE_READDIRPLUS FUSE_RELEASEDIR FUSE_FSYNCDIR
    FUSE_STATFS FUSE_SETXATTR FUSE_GETXATTR FUSE_LISTXATTR FUSE_REMOVEXATTR FUSE_IOCTL
    FUSE_FALLOCATE FUSE_LSEEK FUSE_COPY_FILE_RANGE FUSE_SYNCFS
}

/// Splits a request into its header and the rest; `None` if it is too short to have one.
pub(crate) fn split(bytes: &[u8]) -> Option<(fuse_in_header, &[u8])> {
    fuse_in_header::read_from_prefix(bytes).ok()
}

/// How many bytes a request is about: those that it has, or those that it reads, of a file or a directory.
pub(crate) fn bytes_of(bytes: &[u8]) -> usize {
    let read = |(header, body): (fuse_in_header, &[u8])| {
        let reads = [FUSE_READ, FUSE_READDIR, FUSE_READDIRPLUS].contains(&header.opcode);
        let read = reads.then(|| fuse_read_in::read_from_prefix(body).ok());
        read.flatten().map(|(read, _)| read.size as usize)
    };
    split(bytes).and_then(read).unwrap_or(bytes.len())
}

/// Whether the kernel waits for an answer to requests of this opcode.
pub(crate) fn is_answered(opcode: u32) -> bool {
    !matches!(opcode, FUSE_FORGET | FUSE_BATCH_FORGET | FUSE_INTERRUPT)
}

/// Whether the kernel may send such a request by itself, so that its user id says nothing.
pub(crate) fn is_anyones(opcode: u32) -> bool {
    let of_files = [FUSE_READ, FUSE_WRITE, FUSE_FSYNC, FUSE_RELEASE];
    let of_directories = [FUSE_READDIR, FUSE_READDIRPLUS, FUSE_FSYNCDIR, FUSE_RELEASEDIR];
    !is_answered(opcode)
        || [FUSE_INIT, FUSE_DESTROY, FUSE_SYNCFS].contains(&opcode)
        || of_files.contains(&opcode)
        || of_directories.contains(&opcode)
}

impl<'a> Operation<'a> {
    /// What a request asks for.
    ///
    /// # Errors
    /// `ENOSYS` if that is nothing known here, `EIO` if the request's length is not what its header
    /// says, `EINVAL` if it ends too early.
    pub(crate) fn decode(header: &fuse_in_header, body: &'a [u8]) -> Result<Self, Errno> {
        if header.len as usize != size_of::<fuse_in_header>() + body.len() {
            return Err(Errno::IO);
        }
        let r = &mut Reader(body);
        Ok(match header.opcode {
            // Older kernels end it after the first flags.
            FUSE_INIT => Operation::Init(r.take_up_to(std::mem::offset_of!(fuse_init_in, flags2))?),
            FUSE_DESTROY => Operation::Destroy,
            FUSE_FORGET => Operation::Forget(r.take::<fuse_forget_in>()?.nlookup),
            FUSE_BATCH_FORGET => Operation::batch_forget(r)?,
            FUSE_INTERRUPT => Operation::Interrupt(r.take::<fuse_interrupt_in>()?.unique),
            FUSE_LOOKUP => Operation::Lookup(r.name()?),
            FUSE_GETATTR => Operation::GetAttr,
            FUSE_SETATTR => Operation::SetAttr(Asked::new(&r.take()?)),
            FUSE_READLINK => Operation::ReadLink,
            FUSE_SYMLINK => Operation::Symlink { name: r.name()?, target: r.name()? },
            FUSE_MKNOD => Operation::mknod(r)?,
            FUSE_MKDIR => Operation::mkdir(r)?,
            FUSE_UNLINK => Operation::Unlink(r.name()?),
            FUSE_RMDIR => Operation::RmDir(r.name()?),
            FUSE_RENAME => Operation::rename(r.take::<fuse_rename_in>()?.newdir, 0, r)?,
            FUSE_RENAME2 => {
                let fuse_rename2_in { newdir, flags, .. } = r.take()?;
                Operation::rename(newdir, flags, r)?
            }
            FUSE_LINK => {
                let ino = INodeNo(r.take::<fuse_link_in>()?.oldnodeid);
                Operation::Link { ino, name: r.name()? }
            }
            FUSE_OPEN => Operation::Open(open_flags(r.take::<fuse_open_in>()?.flags)),
            FUSE_CREATE => Operation::create(r)?,
            FUSE_TMPFILE => Operation::tmpfile(r)?,
            FUSE_READ => Operation::read(&r.take()?),
            FUSE_WRITE => Operation::write(r)?,
            FUSE_FLUSH => Operation::Flush,
            FUSE_RELEASE => Operation::Release(FileHandle(r.take::<fuse_release_in>()?.fh)),
            FUSE_FSYNC | FUSE_FSYNCDIR => Operation::FSync,
            FUSE_SYNCFS => Operation::SyncFs,
            FUSE_OPENDIR => Operation::OpenDir,
            FUSE_READDIR => {
                let fuse_read_in { offset, size, .. } = r.take()?;
                Operation::ReadDir { offset, size }
            }
            FUSE_READDIRPLUS => {
                let fuse_read_in { offset, size, .. } = r.take()?;
                Operation::ReadDirPlus { offset, size }
            }
            FUSE_RELEASEDIR => Operation::ReleaseDir(FileHandle(r.take::<fuse_release_in>()?.fh)),
            FUSE_STATFS => Operation::StatFs,
            FUSE_SETXATTR => Operation::setxattr(r)?,
            FUSE_GETXATTR => {
                let size = r.take::<fuse_getxattr_in>()?.size;
                Operation::GetXattr { name: r.name()?, size }
            }
            FUSE_LISTXATTR => Operation::ListXattr { size: r.take::<fuse_getxattr_in>()?.size },
            FUSE_REMOVEXATTR => Operation::RemoveXattr(r.name()?),
            FUSE_IOCTL => Operation::ioctl(r)?,
            FUSE_FALLOCATE => Operation::fallocate(&r.take()?),
            FUSE_LSEEK => Operation::lseek(&r.take()?),
            // The answer is a number of 64 bits then, and 32 of them are used: on little-endian machines the
            // same bytes. Elsewhere the kernel asks again, for the other one.
            FUSE_COPY_FILE_RANGE | FUSE_COPY_FILE_RANGE_64 if answers_copy(header.opcode) => {
                Operation::copy_file_range(&r.take()?)
            }
            _ => return Err(Errno::NOSYS),
        })
    }
}

/// The requests that take more than a line.
impl<'a> Operation<'a> {
    fn batch_forget(r: &mut Reader<'a>) -> Result<Self, Errno> {
        let count = r.take::<fuse_batch_forget_in>()?.count as usize;
        let size = count.checked_mul(size_of::<fuse_forget_one>()).ok_or(Errno::INVAL)?;
        Ok(Operation::BatchForget(Forgets(r.bytes(size)?)))
    }

    fn mknod(r: &mut Reader<'a>) -> Result<Self, Errno> {
        let fuse_mknod_in { mode, rdev, umask, .. } = r.take()?;
        Ok(Operation::MkNod { name: r.name()?, modes: Modes { mode, umask }, rdev })
    }

    fn mkdir(r: &mut Reader<'a>) -> Result<Self, Errno> {
        let fuse_mkdir_in { mode, umask } = r.take()?;
        Ok(Operation::MkDir { name: r.name()?, modes: Modes { mode, umask } })
    }

    fn rename(newdir: u64, flags: u32, r: &mut Reader<'a>) -> Result<Self, Errno> {
        let (name, to) = (r.name()?, (INodeNo(newdir), r.name()?));
        Ok(Operation::Rename { name, to, flags: RenameFlags::from_bits_retain(flags) })
    }

    fn create(r: &mut Reader<'a>) -> Result<Self, Errno> {
        let fuse_create_in { flags, mode, umask, .. } = r.take()?;
        let (modes, flags) = (Modes { mode, umask }, open_flags(flags));
        Ok(Operation::Create { name: r.name()?, modes, flags })
    }

    /// A name follows that means nothing.
    fn tmpfile(r: &mut Reader<'a>) -> Result<Self, Errno> {
        let fuse_create_in { flags, mode, umask, .. } = r.take()?;
        Ok(Operation::TmpFile { modes: Modes { mode, umask }, flags: open_flags(flags) })
    }

    fn read(read: &fuse_read_in) -> Self {
        let fuse_read_in { fh, offset, size, flags, .. } = *read;
        Operation::Read { fh: FileHandle(fh), offset, size, flags: open_flags(flags) }
    }

    fn write(r: &mut Reader<'a>) -> Result<Self, Errno> {
        let fuse_write_in { fh, offset, size, write_flags, flags, .. } = r.take()?;
        let how = Writing {
            kill_ids: write_flags & FUSE_WRITE_KILL_SUIDGID != 0,
            durable: waits_for_disk(open_flags(flags)),
            cached: write_flags & FUSE_WRITE_CACHE != 0,
            direct: open_flags(flags).contains(OFlags::DIRECT),
        };
        let data = r.bytes(size as usize)?;
        Ok(Operation::Write { fh: FileHandle(fh), offset, data, how })
    }

    fn setxattr(r: &mut Reader<'a>) -> Result<Self, Errno> {
        // The rest of the structure comes only to servers that ask for it (`FUSE_SETXATTR_EXT`).
        let set = r.bytes(FUSE_COMPAT_SETXATTR_IN_SIZE as usize)?;
        let fuse_setxattr_in { size, flags, .. } = Reader(set).take_up_to(set.len())?;
        let name = r.name()?;
        Ok(Operation::SetXattr { name, value: r.bytes(size as usize)?, flags })
    }

    fn ioctl(r: &mut Reader<'a>) -> Result<Self, Errno> {
        let fuse_ioctl_in { fh, cmd: command, in_size, .. } = r.take()?;
        let data = r.bytes(in_size as usize)?;
        Ok(Operation::Ioctl { fh: FileHandle(fh), command, data })
    }

    fn fallocate(range: &fuse_fallocate_in) -> Self {
        let fuse_fallocate_in { fh, offset, length, mode, .. } = *range;
        let mode = FallocateFlags::from_bits_retain(mode);
        Operation::Fallocate { fh: FileHandle(fh), range: (offset, length), mode }
    }

    fn lseek(seek: &fuse_lseek_in) -> Self {
        let fuse_lseek_in { fh, offset, whence, .. } = *seek;
        Operation::Lseek { fh: FileHandle(fh), offset, whence }
    }

    fn copy_file_range(copy: &fuse_copy_file_range_in) -> Self {
        let from = (FileHandle(copy.fh_in), copy.off_in);
        let to = (FileHandle(copy.fh_out), copy.off_out);
        Operation::CopyFileRange { from, to, len: copy.len }
    }
}

fn answers_copy(opcode: u32) -> bool {
    opcode == FUSE_COPY_FILE_RANGE || cfg!(target_endian = "little")
}

fn open_flags(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags)
}

/// Whether a program that writes to a file opened so waits until it is on disk: `O_DSYNC`, which is part of
/// `O_SYNC`. What `rustix` calls `DSYNC` is all of `O_SYNC`.
pub(crate) fn waits_for_disk(flags: OFlags) -> bool {
    flags.bits() & libc::O_DSYNC.cast_unsigned() != 0
}

/// Numbers that the kernel has forgotten.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Each number, and how often it was forgotten.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (INodeNo, u64)> {
        let each = self.0.chunks_exact(size_of::<fuse_forget_one>());
        let each = each.filter_map(|bytes| fuse_forget_one::read_from_bytes(bytes).ok());
        each.map(|one| (INodeNo(one.nodeid), one.nlookup))
    }
}

/// What is left of a request.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The next structure.
    fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::INVAL)?;
        self.0 = rest;
        Ok(value)
    }

    /// A structure that is all that is left, of which `least` bytes have to be there; what is not
    /// there is zero.
    fn take_up_to<T>(&mut self, least: usize) -> Result<T, Errno>
    where
        T: FromBytes + FromZeros + IntoBytes + Immutable,
    {
        if self.0.len() < least {
            return Err(Errno::INVAL);
        }
        let mut value = T::new_zeroed();
        value.as_mut_bytes().iter_mut().zip(self.0).for_each(|(to, from)| *to = *from);
        self.0 = &[];
        Ok(value)
    }

    /// The next `len` bytes.
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// The bytes up to the next NUL.
    fn name(&mut self) -> Result<&'a OsStr, Errno> {
        let len = self.0.iter().position(|b| *b == 0).ok_or(Errno::INVAL)?;
        let name = self.bytes(len)?;
        self.bytes(1)?;
        Ok(OsStr::from_bytes(name))
    }
}

#[cfg(test)]
mod tests;
