//! SKELETON: what changes a file system: signatures.

use crate::fs::{Attr, FileSystem};
use crate::{CaseSensitivity, Result, Visibility};
use cenote_dmu::write::OpenObjectSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time: seconds since 1970, nanoseconds.
pub type Time = (i64, u32);

/// Where times come from.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Time + Send + Sync>);

impl Clock {
    /// A clock that asks `now`.
    pub fn new(now: impl Fn() -> Time + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        (self.0)()
    }
}

impl Default for Clock {
    /// The system's clock.
    fn default() -> Clock {
        Clock::new(|| match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(t) => (i64::try_from(t.as_secs()).unwrap_or(i64::MAX), t.subsec_nanos()),
            Err(_) => (0, 0),
        })
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// When reading a file changes its access time: the properties `atime` and `relatime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    Off,
    /// If it is older than the last change, or than a day.
    Relative,
    /// Always.
    On,
}

/// Properties of the dataset that can change while the file system is open.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which extended attributes are shown and may be changed (`xattr`, `acltype`).
    pub visibility: Visibility,
    /// `xattr=sa`: new extended attributes go among the system attributes.
    pub xattr_sa: bool,
    /// `atime`, `relatime`.
    pub atime: Atime,
    /// Bytes of the dnode of a new file (`dnodesize`; `legacy` is 512, `auto` 1024).
    pub dnode_size: usize,
    /// Largest block of a new file in bytes (`recordsize`).
    pub record_size: u64,
    /// Whether the pool has the feature `project_quota` enabled: new files have a project id.
    pub project_quota: bool,
    /// Nothing may be changed (`readonly`).
    pub read_only: bool,
    /// Where times come from.
    pub clock: Clock,
}

impl Default for Settings {
    /// The defaults of the properties, everything visible.
    fn default() -> Settings {
        Settings {
            visibility: Visibility::default(),
            xattr_sa: true,
            atime: Atime::On,
            dnode_size: 512,
            record_size: 128 << 10,
            project_quota: true,
            read_only: false,
            clock: Clock::default(),
        }
    }
}

/// What kind of node is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link with its target: 1 to 4095 bytes.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device: major, minor.
    CharDevice(u32, u32),
    /// A block device: major, minor.
    BlockDevice(u32, u32),
}

/// A node that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// What it is.
    pub kind: NodeKind,
    /// Permission bits as the caller asked for them; of a symbolic link always 0777.
    pub mode: u32,
    /// The caller's umask. It counts unless the directory has a default ACL.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory has the set-group-id bit and hands on its own.
    pub gid: u32,
    /// Whether the caller may make set-group-id files that others may run (it has `CAP_FSETID`, or
    /// is in the group that the file gets). Else the bit is dropped.
    pub keep_setgid: bool,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current one.
    Now,
    /// This one.
    To(Time),
}

/// Attributes to be changed: those that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits (07777).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last modification.
    pub mtime: Option<SetTime>,
    /// Last change; it is now if not given.
    pub ctime: Option<Time>,
    /// `zp_flags`, of those that users set (see [`flags`]).
    pub flags: Option<u64>,
    /// Project.
    pub projid: Option<u32>,
    /// A change of owner or length takes away the set-user-id and set-group-id bits.
    pub clear_ids: bool,
}

/// `zp_flags` that users set and see.
pub mod flags {
    /// `ZFS_IMMUTABLE`: nothing about the file may be changed (`chattr +i`).
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    /// `ZFS_NOUNLINK`: the file may not be unlinked or renamed.
    pub const NO_UNLINK: u64 = 0x20_0000_0000;
    /// `ZFS_APPENDONLY` (`chattr +a`).
    pub const APPEND_ONLY: u64 = 0x40_0000_0000;
    /// `ZFS_NODUMP` (`chattr +d`).
    pub const NO_DUMP: u64 = 0x80_0000_0000;
    /// `ZFS_PROJINHERIT`: new files in the directory get its project (`chattr +P`).
    pub const PROJECT_INHERIT: u64 = 0x0000_4000_0000_0000;
}

/// How a rename treats what is at the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// There must be nothing (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// There must be something; the two change places (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// A whiteout takes the old place (`RENAME_WHITEOUT`).
    pub whiteout: bool,
}

/// What became of a file that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The object.
    pub ino: u64,
    /// Names that are left; of a directory 0.
    pub nlink: u64,
    /// It is in use: it goes when [`FileSystem::release`] is called.
    pub orphan: bool,
}

/// What [`FileSystem::allocate`] does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Nothing but to make the file at least as long (plain `fallocate`).
    Extend,
    /// Nothing at all, space cannot be reserved (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// Makes a hole; the length stays (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Makes zeros, and the file at least as long (`FALLOC_FL_ZERO_RANGE`).
    Zero,
    /// Makes zeros; the length stays (`FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE`).
    ZeroKeepSize,
}

/// How an extended attribute is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetXattr {
    /// There must be none (`XATTR_CREATE`).
    pub create: bool,
    /// There must be one (`XATTR_REPLACE`).
    pub replace: bool,
    /// Setting an access ACL takes away the set-group-id bit (the caller is not in the group).
    pub clear_setgid: bool,
}

/// Properties that a file system is created with.
#[derive(Clone, Debug)]
pub struct CreateProps {
    /// ZPL version; only 5.
    pub version: u64,
    /// `casesensitivity`.
    pub case: CaseSensitivity,
    /// `normalization`: flags of [`cenote_format::zap::norm`], 0 for none.
    pub normalization: u64,
    /// `utf8only`.
    pub utf8_only: bool,
    /// Owner of the root directory.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits.
    pub mode: u32,
    /// Its times.
    pub time: Time,
    /// Bytes of its dnode (`dnodesize`).
    pub dnode_size: usize,
    /// Whether the pool has the feature `project_quota` enabled.
    pub project_quota: bool,
}

impl Default for CreateProps {
    fn default() -> CreateProps {
        CreateProps {
            version: 5,
            case: CaseSensitivity::Sensitive,
            normalization: 0,
            utf8_only: false,
            uid: 0,
            gid: 0,
            mode: 0o755,
            time: (0, 0),
            dnode_size: 512,
            project_quota: true,
        }
    }
}

/// Makes an empty object set (of type [`Zfs`](cenote_format::dmu::ObjsetType::Zfs)) a file system.
pub fn format(os: &mut OpenObjectSet, props: &CreateProps, txg: u64) -> Result<()> {
    let _ = (os, props, txg);
    todo!()
}

/// Makes an empty object set (of type [`Zvol`](cenote_format::dmu::ObjsetType::Zvol)) a volume of
/// `size` bytes in blocks of `block_size` bytes.
pub fn format_volume(os: &mut OpenObjectSet, size: u64, block_size: u64) -> Result<()> {
    let _ = (os, size, block_size);
    todo!()
}

/// Tells whether a file is in use: has handles, or the kernel knows its number.
pub type InUse<'a> = &'a dyn Fn(u64) -> bool;

#[allow(unused_variables)]
impl FileSystem {
    /// Largest length of a file in bytes.
    pub fn max_size(&self) -> u64 {
        i64::MAX as u64
    }

    /// Creates a node called `name` in directory `dir`.
    /// Errors: `EEXIST`, `ENAMETOOLONG`, `EILSEQ`, `ENOSPC`, `EDQUOT`, `EROFS`, `EPERM` (flags).
    pub fn create(&self, dir: u64, name: &[u8], node: &NewNode) -> Result<Attr> {
        todo!()
    }

    /// Creates a regular file without a name (`O_TMPFILE`) that inherits from `dir`. It is in the
    /// unlinked set until [`FileSystem::link`] gives it a name.
    pub fn tmpfile(&self, dir: u64, node: &NewNode) -> Result<Attr> {
        todo!()
    }

    /// Gives a file, no directory, one more name.
    pub fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        todo!()
    }

    /// Takes a name away from what is no directory. With the last name the file goes, or, if
    /// `in_use`, becomes an orphan.
    pub fn unlink(&self, dir: u64, name: &[u8], in_use: InUse<'_>) -> Result<Removed> {
        todo!()
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: u64, name: &[u8], in_use: InUse<'_>) -> Result<Removed> {
        todo!()
    }

    /// Renames; returns what was at the new name and lost it.
    pub fn rename(
        &self,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        flags: RenameFlags,
        in_use: InUse<'_>,
    ) -> Result<Option<Removed>> {
        todo!()
    }

    /// The last use of a file ended: frees an orphan.
    pub fn release(&self, ino: u64) -> Result<()> {
        todo!()
    }

    /// Frees the orphans that a crash left behind: call it when the file system is mounted.
    /// Returns how many there were.
    pub fn drain_unlinked(&self) -> Result<u64> {
        todo!()
    }

    /// Changes attributes.
    pub fn setattr(&self, ino: u64, set: &SetAttr) -> Result<Attr> {
        todo!()
    }

    /// Notes that a file was read, if `atime` and `relatime` want it noted.
    pub fn touch_atime(&self, ino: u64) -> Result<()> {
        todo!()
    }

    /// Writes at byte `offset`; the file gets longer if need be. All is written or nothing, in one
    /// transaction for each block or so. `clear_ids`: takes away the set-user-id and set-group-id
    /// bits, as a write by someone without privilege does.
    pub fn write(&self, ino: u64, offset: u64, data: &[u8], clear_ids: bool) -> Result<usize> {
        todo!()
    }

    /// As [`FileSystem::write`] at the end of the file; returns the offset.
    pub fn append(&self, ino: u64, data: &[u8], clear_ids: bool) -> Result<u64> {
        todo!()
    }

    /// `fallocate`.
    pub fn allocate(&self, ino: u64, offset: u64, len: u64, what: Allocate) -> Result<()> {
        todo!()
    }

    /// Copies within the file system; returns the bytes copied, fewer only at the end of `from`.
    pub fn copy_range(
        &self,
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        todo!()
    }

    /// Sets an extended attribute; POSIX ACLs change the permission bits.
    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        todo!()
    }

    /// Removes an extended attribute; `ENODATA` if there is none.
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        todo!()
    }
}

#[allow(unused_variables)]
impl crate::Volume {
    /// Writes at byte `offset`. Errors: past the end.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        todo!()
    }

    /// Makes zeros of a range; whole blocks are freed (discard, write zeroes).
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        todo!()
    }

    /// Changes the size; a multiple of the block size. What is past a smaller size is freed.
    pub fn resize(&self, size: u64) -> Result<()> {
        todo!()
    }
}
