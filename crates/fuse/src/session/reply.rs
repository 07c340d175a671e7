//! Answers.
//!
//! Each kind of request has a kind of answer, so that it cannot be given another one. An answer may
//! be given by any thread at any time, and once: giving it uses it up. One that is dropped says `EIO`,
//! so that no program waits for ever. The kernel takes each in one call: a `fuse_out_header` and what
//! belongs to it.

use super::request::{FileHandle, INodeNo};
use cenote_format::abd::Abd;
use cenote_zpl::Time;
use fuse_abi::linux::{
    fuse_attr, fuse_attr_out, fuse_dirent, fuse_direntplus, fuse_entry_out, fuse_getxattr_out,
    fuse_init_out, fuse_ioctl_out, fuse_kstatfs, fuse_lseek_out, fuse_open_out, fuse_out_header,
    fuse_statfs_out, fuse_write_out,
};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::io::{IoSlice, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Most bytes for which a listing sets memory aside before it has entries.
const LISTING: usize = 64 << 10;
/// Largest message that is copied together before it is written, in bytes. The kernel looks up the
/// pages of each part of a message anew, which takes longer than to copy so little.
const SMALL: usize = 512;
/// Most pieces of a message beside its header: the kernel takes 1,024 in all (`UIO_MAXIOV`).
const PIECES: usize = 1000;
/// Last nanosecond of a second: what is on disk may say more, the kernel takes no more.
const LAST_NANOSECOND: u32 = 999_999_999;

/// A file as the kernel sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileAttr {
    pub(crate) ino: INodeNo,
    /// Bytes.
    pub(crate) size: u64,
    /// Space it takes, in units of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) kind: FileType,
    /// The mode without the type.
    pub(crate) perm: u16,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) blksize: u32,
    /// The space may become another one without a request.
    pub(crate) pending: bool,
}

impl From<&FileAttr> for fuse_attr {
    fn from(a: &FileAttr) -> fuse_attr {
        let nanoseconds = |time: Time| time.1.min(LAST_NANOSECOND);
        fuse_attr {
            ino: a.ino.0,
            size: a.size,
            blocks: a.blocks,
            atime: a.atime.0 as u64,
            mtime: a.mtime.0 as u64,
            ctime: a.ctime.0 as u64,
            atimensec: nanoseconds(a.atime),
            mtimensec: nanoseconds(a.mtime),
            ctimensec: nanoseconds(a.ctime),
            mode: a.kind.as_raw_mode() | u32::from(a.perm),
            nlink: a.nlink,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            blksize: a.blksize,
            flags: 0,
        }
    }
}

/// A file that a name leads to, and how long the kernel may keep that and its attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) attr: FileAttr,
    /// Tells files apart that have the number one after the other.
    pub(crate) generation: u64,
    pub(crate) name_kept: Duration,
    pub(crate) attr_kept: Duration,
}

impl From<&Found> for fuse_entry_out {
    fn from(found: &Found) -> fuse_entry_out {
        fuse_entry_out {
            nodeid: found.attr.ino.0,
            generation: found.generation,
            entry_valid: found.name_kept.as_secs(),
            attr_valid: found.attr_kept.as_secs(),
            entry_valid_nsec: found.name_kept.subsec_nanos(),
            attr_valid_nsec: found.attr_kept.subsec_nanos(),
            attr: (&found.attr).into(),
        }
    }
}

fn header((unique, error): (u64, i32), len: usize) -> Result<fuse_out_header, Errno> {
    let len = u32::try_from(size_of::<fuse_out_header>() + len).map_err(|_| Errno::MSGSIZE)?;
    Ok(fuse_out_header { len, error, unique })
}

/// Writes a message of the server's in one piece.
pub(super) fn write(device: &OwnedFd, about: (u64, i32), parts: [&[u8]; 2]) -> Result<(), Errno> {
    let [first, second] = parts;
    let header = header(about, first.len() + second.len())?;
    let len = header.len as usize;
    let parts = [header.as_bytes(), first, second];
    if let Some(room) = [0; SMALL].get_mut(..len) {
        let mut rest = &mut *room;
        parts.iter().try_for_each(|part| rest.write_all(part)).map_err(|_| Errno::MSGSIZE)?;
        return rustix::io::retry_on_intr(|| rustix::io::write(device, &*room)).map(drop);
    }
    let slices = parts.map(IoSlice::new);
    let slices = if second.is_empty() { slices.get(..2).unwrap_or_default() } else { &slices };
    rustix::io::retry_on_intr(|| rustix::io::writev(device, slices)).map(drop)
}

/// Writes contents, from where they lie.
fn write_pieces(device: &OwnedFd, unique: u64, data: &Abd) -> Result<(), Errno> {
    if data.len() < SMALL || data.chunks().nth(PIECES).is_some() {
        return write(device, (unique, 0), [&data.bytes(), &[]]);
    }
    let header = header((unique, 0), data.len())?;
    let mut slices = vec![IoSlice::new(header.as_bytes())];
    slices.extend(data.chunks().map(IoSlice::new));
    rustix::io::retry_on_intr(|| rustix::io::writev(device, &slices)).map(drop)
}

/// An answer of any kind. Says `EIO` when it is dropped.
pub(crate) struct Reply {
    device: Arc<OwnedFd>,
    /// The request's number; `None` once it is answered.
    unique: Option<u64>,
}

impl Reply {
    pub(super) fn new(device: &Arc<OwnedFd>, unique: u64) -> Reply {
        Reply { device: device.clone(), unique: Some(unique) }
    }

    fn send(&mut self, error: i32, parts: [&[u8]; 2]) {
        self.give(|device, unique| write(device, (unique, error), parts));
    }

    fn give(&mut self, write: impl FnOnce(&OwnedFd, u64) -> Result<(), Errno>) {
        let Some(unique) = self.unique.take() else { return };
        match write(&self.device, unique) {
            // No program waits for it any more.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(e) => tracing::warn!(unique, "the kernel did not take an answer: {e}"),
        }
    }

    fn ok(mut self, parts: [&[u8]; 2]) {
        self.send(0, parts);
    }

    fn structure(self, value: &(impl IntoBytes + zerocopy::Immutable)) {
        self.ok([value.as_bytes(), &[]]);
    }

    pub(crate) fn error(mut self, e: Errno) {
        self.send(-e.raw_os_error(), [&[], &[]]);
    }

    /// For requests that the kernel takes no answer to.
    pub(super) fn none(mut self) {
        self.unique = None;
    }

    pub(super) fn init(self, init: &fuse_init_out) {
        self.structure(init);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), [&[], &[]]);
    }
}

/// Kinds of answers, all of which can be an error.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        pub(crate) struct $name(pub(super) Reply);

        impl From<Reply> for $name {
            fn from(reply: Reply) -> $name {
                $name(reply)
            }
        }

        impl $name {
            pub(crate) fn error(self, e: Errno) {
                self.0.error(e);
            }

            /// The number of the request.
            #[allow(dead_code, reason = "not every kind is asked for it")]
            pub(crate) fn number(&self) -> u64 {
                self.0.unique.unwrap_or(0)
            }
        }
    )* };
}

kinds! {
    /// That it was done.
    ReplyEmpty;
    /// A file that a name leads to.
    ReplyEntry;
    /// Attributes.
    ReplyAttr;
    /// What was opened.
    ReplyOpen;
    /// What was made and opened.
    ReplyCreate;
    /// Contents.
    ReplyData;
    /// How much was written.
    ReplyWrite;
    /// Figures of the file system.
    ReplyStatfs;
    /// An extended attribute, or its size.
    ReplyXattr;
    /// What an `ioctl` brings back.
    ReplyIoctl;
    /// A place in a file.
    ReplyLseek;
}

impl ReplyEmpty {
    pub(crate) fn ok(self) {
        self.0.ok([&[], &[]]);
    }
}

impl ReplyEntry {
    pub(crate) fn entry(self, found: &Found) {
        self.0.structure(&fuse_entry_out::from(found));
    }

    /// There is no such name, which the kernel may remember for so long.
    pub(crate) fn absent(self, kept: Duration) {
        let (entry_valid, entry_valid_nsec) = (kept.as_secs(), kept.subsec_nanos());
        self.0.structure(&fuse_entry_out {
            entry_valid,
            entry_valid_nsec,
            ..fuse_entry_out::default()
        });
    }
}

impl ReplyAttr {
    pub(crate) fn attr(self, kept: Duration, attr: &FileAttr) {
        let (attr_valid, attr_valid_nsec) = (kept.as_secs(), kept.subsec_nanos());
        self.0.structure(&fuse_attr_out {
            attr_valid,
            attr_valid_nsec,
            dummy: 0,
            attr: attr.into(),
        });
    }
}

fn opened(fh: FileHandle, flags: u32) -> fuse_open_out {
    fuse_open_out { fh: fh.0, open_flags: flags, backing_id: 0 }
}

impl ReplyOpen {
    /// `flags`: `FOPEN_*`.
    pub(crate) fn opened(self, fh: FileHandle, flags: u32) {
        self.0.structure(&opened(fh, flags));
    }
}

impl ReplyCreate {
    /// `flags`: `FOPEN_*`.
    pub(crate) fn created(self, found: &Found, fh: FileHandle, flags: u32) {
        self.0.ok([fuse_entry_out::from(found).as_bytes(), opened(fh, flags).as_bytes()]);
    }
}

impl ReplyData {
    pub(crate) fn data(self, data: &[u8]) {
        self.0.ok([data, &[]]);
    }

    /// What lies in pieces, which are not copied.
    pub(crate) fn pieces(mut self, data: &Abd) {
        self.0.give(|device, unique| write_pieces(device, unique, data));
    }
}

impl ReplyWrite {
    pub(crate) fn written(self, size: u32) {
        self.0.structure(&fuse_write_out { size, padding: 0 });
    }
}

impl ReplyStatfs {
    pub(crate) fn statfs(self, st: fuse_kstatfs) {
        self.0.structure(&fuse_statfs_out { st });
    }
}

impl ReplyXattr {
    pub(crate) fn size(self, size: u32) {
        self.0.structure(&fuse_getxattr_out { size, padding: 0 });
    }

    pub(crate) fn data(self, data: &[u8]) {
        self.0.ok([data, &[]]);
    }
}

impl ReplyIoctl {
    /// `result`: what the system call returns.
    pub(crate) fn ioctl(self, result: i32, data: &[u8]) {
        let out = fuse_ioctl_out { result, ..fuse_ioctl_out::default() };
        self.0.ok([out.as_bytes(), data]);
    }
}

impl ReplyLseek {
    pub(crate) fn offset(self, offset: u64) {
        self.0.structure(&fuse_lseek_out { offset });
    }
}

/// Entries of a directory, as many as the kernel has room for.
struct Listing {
    reply: Reply,
    entries: Vec<u8>,
    /// Bytes that the kernel has room for.
    room: usize,
}

impl Listing {
    fn new(reply: Reply, size: u32) -> Listing {
        let room = size as usize;
        Listing { reply, entries: Vec::with_capacity(room.min(LISTING)), room }
    }

    /// Adds an entry, each of which starts at a multiple of 8; says whether there was no room for it.
    fn add(&mut self, entry: &[u8], name: &[u8]) -> bool {
        let end = (self.entries.len() + entry.len() + name.len()).next_multiple_of(8);
        if end > self.room {
            return true;
        }
        self.entries.extend_from_slice(entry);
        self.entries.extend_from_slice(name);
        self.entries.resize(end, 0);
        false
    }

    fn ok(self) {
        self.reply.ok([&self.entries, &[]]);
    }
}

fn dirent(ino: INodeNo, next: u64, kind: FileType, name: &[u8]) -> fuse_dirent {
    fuse_dirent {
        ino: ino.0,
        off: next,
        namelen: u32::try_from(name.len()).unwrap_or(u32::MAX),
        // The upper bits of a mode.
        type_: kind.as_raw_mode() >> 12,
        ..fuse_dirent::default()
    }
}

/// A listing.
pub(crate) struct ReplyDirectory(Listing);

impl ReplyDirectory {
    pub(super) fn new(reply: Reply, size: u32) -> ReplyDirectory {
        ReplyDirectory(Listing::new(reply, size))
    }

    /// Adds an entry; `next` is the offset of the one after it. Says whether there was no room for it.
    pub(crate) fn add(&mut self, ino: INodeNo, next: u64, kind: FileType, name: &[u8]) -> bool {
        self.0.add(dirent(ino, next, kind, name).as_bytes(), name)
    }

    pub(crate) fn ok(self) {
        self.0.ok();
    }

    pub(crate) fn error(self, e: Errno) {
        self.0.reply.error(e);
    }
}

/// A listing with attributes.
pub(crate) struct ReplyDirectoryPlus(Listing);

impl ReplyDirectoryPlus {
    pub(super) fn new(reply: Reply, size: u32) -> ReplyDirectoryPlus {
        ReplyDirectoryPlus(Listing::new(reply, size))
    }

    /// As [`ReplyDirectory::add`].
    pub(crate) fn add(&mut self, found: &Found, next: u64, name: &[u8]) -> bool {
        let dirent = dirent(found.attr.ino, next, found.attr.kind, name);
        let entry = fuse_direntplus { entry_out: found.into(), dirent };
        self.0.add(entry.as_bytes(), name)
    }

    /// As [`ReplyDirectory::add`], without attributes: node 0 tells the kernel to ask for them itself.
    pub(crate) fn add_name(
        &mut self,
        ino: INodeNo,
        next: u64,
        kind: FileType,
        name: &[u8],
    ) -> bool {
        let (entry_out, dirent) = (fuse_entry_out::default(), dirent(ino, next, kind, name));
        self.0.add(fuse_direntplus { entry_out, dirent }.as_bytes(), name)
    }

    pub(crate) fn ok(self) {
        self.0.ok();
    }

    pub(crate) fn error(self, e: Errno) {
        self.0.reply.error(e);
    }
}

#[cfg(test)]
mod tests;
