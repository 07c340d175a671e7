//! The intent log: blocks of a chain, and the records in them.
//!
//! An object set's log starts at the pointer in its header ([`ZilHeader`](crate::dmu::ZilHeader)). Each
//! block has a `zil_chain_t` with the pointer to the next one; [`chain`] takes blocks apart. Between lie
//! records, each a multiple of 8 bytes long:
//!
//! ```text
//! lr_t, 32 bytes:   type (8, the top bit: TX_CI)   length (8)   txg (8)   sequence number (8)
//! body              words of 64 bits, then what has no fixed length: names, data, pointers, ACLs
//! ```
//!
//! [`RawRecord`] is a record whose header is decoded, [`Record`] one whose body is decoded too. What has no
//! fixed length is borrowed from the block.
//!
//! An object number in a record that creates an object has the number of dnode slots, less one, in its top
//! byte (`LR_FOID_GET_SLOTS`).
//!
//! Invariants: every part of a decoded record lies within the record; `decode(encode(x)) == x`; encoding
//! what was decoded from bytes of OpenZFS's gives these bytes, but for the padding, which is zeros.

pub mod attr;
pub mod chain;
mod decode;
#[cfg(test)]
mod tests;

pub use attr::{Acl, Xvattr};
pub use chain::{ChainBlock, RawRecord, raw_records};

use crate::ByteOrder;
use crate::blkptr::BlockPointer;

/// Bytes of `lr_t`.
pub const RECORD_HEADER: usize = 32;
/// Bytes of an `lr_write_t` without data. A `TX_WRITE` of this length has its data behind its block pointer.
pub const WRITE_SIZE: usize = 192;
/// Bit of the type: names are looked up without regard to case (`TX_CI`).
pub const TX_CI: u64 = 1 << 63;
/// Bit of `lr_mask`: the record has an [`Xvattr`] (`ATTR_XVATTR`).
pub const ATTR_XVATTR: u64 = 1 << 31;
/// Most dnode slots of an object.
pub const MAX_SLOTS: u64 = 256;
/// Bits of an object number (`DN_MAX_OBJECT_SHIFT`).
pub const OBJECT_BITS: u32 = 48;

/// Numbers of the record types (`TX_*`).
pub mod kind {
    #![allow(missing_docs)]
    pub const TX_CREATE: u64 = 1;
    pub const TX_MKDIR: u64 = 2;
    pub const TX_MKXATTR: u64 = 3;
    pub const TX_SYMLINK: u64 = 4;
    pub const TX_REMOVE: u64 = 5;
    pub const TX_RMDIR: u64 = 6;
    pub const TX_LINK: u64 = 7;
    pub const TX_RENAME: u64 = 8;
    pub const TX_WRITE: u64 = 9;
    pub const TX_TRUNCATE: u64 = 10;
    pub const TX_SETATTR: u64 = 11;
    pub const TX_ACL_V0: u64 = 12;
    pub const TX_ACL: u64 = 13;
    pub const TX_CREATE_ACL: u64 = 14;
    pub const TX_CREATE_ATTR: u64 = 15;
    pub const TX_CREATE_ACL_ATTR: u64 = 16;
    pub const TX_MKDIR_ACL: u64 = 17;
    pub const TX_MKDIR_ATTR: u64 = 18;
    pub const TX_MKDIR_ACL_ATTR: u64 = 19;
    pub const TX_WRITE2: u64 = 20;
    pub const TX_SETSAXATTR: u64 = 21;
    pub const TX_RENAME_EXCHANGE: u64 = 22;
    pub const TX_RENAME_WHITEOUT: u64 = 23;
    pub const TX_CLONE_RANGE: u64 = 24;
}

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// Transaction group in which the change was made.
    pub txg: u64,
    /// Sequence number.
    pub seq: u64,
    /// Names are looked up without regard to case (`TX_CI`).
    pub ignore_case: bool,
    /// The change.
    pub body: Body<'a>,
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body<'a> {
    /// `TX_CREATE`, `TX_MKDIR`, `TX_MKXATTR`, `TX_SYMLINK` and their forms with ACLs and attributes.
    Create(Create<'a>),
    /// `TX_REMOVE` (`lr_remove_t`): a name that is not a directory's.
    Remove {
        /// The directory.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// `TX_RMDIR` (`lr_remove_t`): a directory's name.
    Rmdir {
        /// The directory that has the name.
        dir: u64,
        /// The name.
        name: &'a [u8],
    },
    /// `TX_LINK` (`lr_link_t`): a further name.
    Link {
        /// The directory.
        dir: u64,
        /// The object that gets the name.
        object: u64,
        /// The name.
        name: &'a [u8],
    },
    /// `TX_RENAME`, `TX_RENAME_EXCHANGE`, `TX_RENAME_WHITEOUT`.
    Rename(Rename<'a>),
    /// `TX_WRITE` (`lr_write_t`).
    Write(Write<'a>),
    /// `TX_WRITE2` (`lr_write_t`): a write whose block was on its way to disk already. Its length may be more
    /// than the file's size is.
    Write2(Write<'a>),
    /// `TX_TRUNCATE` (`lr_truncate_t`): a range becomes a hole; with length 0, the end of the file.
    Truncate {
        /// The file.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes; 0: to the end, which `offset` becomes.
        length: u64,
    },
    /// `TX_SETATTR` (`lr_setattr_t`).
    SetAttr(SetAttr<'a>),
    /// `TX_ACL_V0` (`lr_acl_v0_t`): an ACL of a file system before ZPL version 3.
    AclV0 {
        /// The object.
        object: u64,
        /// Byte order of the record, and so of the entries.
        order: ByteOrder,
        /// Number of entries.
        count: u64,
        /// The entries, and padding.
        aces: &'a [u8],
    },
    /// `TX_ACL` (`lr_acl_t`).
    Acl {
        /// The object.
        object: u64,
        /// Its new ACL.
        acl: Acl<'a>,
    },
    /// `TX_SETSAXATTR` (`lr_setsaxattr_t`): an extended attribute among the system attributes.
    SetSaXattr {
        /// The object.
        object: u64,
        /// The attribute's name.
        name: &'a [u8],
        /// Its new value; empty: it is removed.
        value: &'a [u8],
    },
    /// `TX_CLONE_RANGE` (`lr_clone_range_t`): blocks of another file become this one's too.
    CloneRange {
        /// The file.
        object: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Block size of the file.
        block_size: u64,
        /// The blocks.
        blocks: Vec<BlockPointer>,
    },
}

/// What a [`Create`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creates {
    /// A file, or a special file (`TX_CREATE`).
    File,
    /// A directory (`TX_MKDIR`).
    Directory,
    /// The directory of an object's extended attributes (`TX_MKXATTR`).
    XattrDirectory,
    /// A symbolic link (`TX_SYMLINK`).
    Symlink,
}

/// A new object and the fields that all of `_lr_create_t` and `lr_rename_whiteout_t` have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewObject {
    /// Its number.
    pub object: u64,
    /// Dnode slots that it takes.
    pub slots: u64,
    /// Type and permissions.
    pub mode: u64,
    /// Owner, a FUID of the log's own if there are domains.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Generation: the transaction group in which it was made.
    pub generation: u64,
    /// Time of creation: seconds, nanoseconds.
    pub crtime: [u64; 2],
    /// Device number.
    pub rdev: u64,
}

/// `lr_create_t`, `lr_acl_create_t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Create<'a> {
    /// What is made.
    pub what: Creates,
    /// The directory that gets the name; of a directory of extended attributes, the object that has them.
    pub dir: u64,
    /// The object.
    pub new: NewObject,
    /// Attributes beyond the usual ones.
    pub attrs: Option<Xvattr>,
    /// An ACL; its domains serve the owner and group too.
    pub acl: Option<Acl<'a>>,
    /// Domains of owner and group, where there is no ACL.
    pub domains: Vec<&'a [u8]>,
    /// The name.
    pub name: &'a [u8],
    /// What a symbolic link leads to; empty for the others.
    pub target: &'a [u8],
}

/// `lr_rename_t`, `lr_rename_whiteout_t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename<'a> {
    /// How.
    pub how: Renames,
    /// The directory of the old name.
    pub from_dir: u64,
    /// The directory of the new name.
    pub to_dir: u64,
    /// The old name.
    pub from: &'a [u8],
    /// The new name.
    pub to: &'a [u8],
}

/// Kinds of renaming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renames {
    /// The new name is taken over (`TX_RENAME`).
    Plain,
    /// The two names change places (`TX_RENAME_EXCHANGE`).
    Exchange,
    /// A whiteout, this object, gets the old name (`TX_RENAME_WHITEOUT`).
    Whiteout(NewObject),
}

/// `lr_write_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    /// The file or volume.
    pub object: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Not used by anyone.
    pub block_offset: u64,
    /// Where the whole block with the data is; a hole if the data is in the record.
    pub block: BlockPointer,
    /// The data, if it is in the record; else empty.
    pub data: Option<&'a [u8]>,
}

/// `lr_setattr_t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAttr<'a> {
    /// The object.
    pub object: u64,
    /// Which attributes are set: bits as the system had them that wrote the record ([`SetAttr::sets`]).
    pub mask: u64,
    /// Mode.
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of last access: seconds, nanoseconds.
    pub atime: [u64; 2],
    /// Time of last modification.
    pub mtime: [u64; 2],
    /// Attributes beyond the usual ones; there if `mask` has [`ATTR_XVATTR`].
    pub attrs: Option<Xvattr>,
    /// Domains of owner and group.
    pub domains: Vec<&'a [u8]>,
}

impl SetAttr<'_> {
    /// Bit of the mask on Linux: the mode (`ATTR_MODE`).
    pub const MODE: u64 = 1;
    /// Owner (`ATTR_UID`).
    pub const UID: u64 = 2;
    /// Group (`ATTR_GID`).
    pub const GID: u64 = 4;
    /// Size (`ATTR_SIZE`).
    pub const SIZE: u64 = 8;
    /// Time of last access (`ATTR_ATIME`).
    pub const ATIME: u64 = 16;
    /// Time of last modification (`ATTR_MTIME`).
    pub const MTIME: u64 = 32;
    /// Time of last change (`ATTR_CTIME`); the record does not have it.
    pub const CTIME: u64 = 64;

    /// Which attributes are set, in the bits of Linux.
    pub fn sets(&self) -> u64 {
        set_attrs(self.mask, [self.uid, self.gid], self.size)
    }
}

/// The mask of a record in the bits of Linux, whichever system wrote it: FreeBSD and illumos have others (`AT_*`).
///
/// A record is read as one of Linux unless something in it is of another system's. Some bits are not set elsewhere:
/// bits of mode and times, of the time of change, which Linux notes with most changes, of [`ATTR_XVATTR`] and of a file
/// that is open. Without any of them these are of others:
///
/// - a bit that Linux does not log (`ATTR_IATTR_MASK`), but for `ATTR_FORCE` beside a size;
/// - a size of `u64::MAX`, which FreeBSD notes where no size is set;
/// - an owner or group of a domain;
/// - `AT_MODE` alone with zeros for all else, as where FreeBSD takes away set-id bits. Read as Linux's, that would give
///   the file to root.
pub(crate) fn set_attrs(mask: u64, [uid, gid]: [u64; 2], size: u64) -> u64 {
    /// `ATTR_FILE`.
    const FILE: u64 = 0x2000;
    const LINUX: u64 =
        SetAttr::MODE | SetAttr::ATIME | SetAttr::MTIME | SetAttr::CTIME | ATTR_XVATTR | FILE;
    /// `AT_MODE`, `AT_UID`, `AT_GID`, `AT_SIZE`, `AT_ATIME`, `AT_MTIME`, `AT_XVATTR`.
    const OTHERS: [(u64, u64); 7] = [
        (0x2, SetAttr::MODE),
        (0x4, SetAttr::UID),
        (0x8, SetAttr::GID),
        (0x80, SetAttr::SIZE),
        (0x100, SetAttr::ATIME),
        (0x200, SetAttr::MTIME),
        (0x1_0000, ATTR_XVATTR),
    ];
    const FORCE: u64 = 0x200;
    let forced_size = mask == SetAttr::SIZE | FORCE;
    let linux_logs = SetAttr::UID | SetAttr::GID | SetAttr::SIZE;
    let set_ids_go = mask == 0x2 && (uid, gid, size) == (0, 0, 0);
    let is_others = (mask & !linux_logs != 0 && !forced_size)
        || size == u64::MAX
        || (uid | gid) >> 32 != 0
        || set_ids_go;
    if mask & LINUX != 0 || !is_others {
        return mask;
    }
    OTHERS.iter().filter(|(bit, _)| mask & bit != 0).fold(0, |all, (_, linux)| all | linux)
}

impl Body<'_> {
    /// Number of the type (`TX_*`), without [`TX_CI`].
    pub fn kind(&self) -> u64 {
        match self {
            Body::Create(c) => match (c.what, &c.acl, &c.attrs) {
                (Creates::Symlink, ..) => kind::TX_SYMLINK,
                (Creates::XattrDirectory, ..) => kind::TX_MKXATTR,
                (Creates::File, None, None) => kind::TX_CREATE,
                (Creates::File, Some(_), None) => kind::TX_CREATE_ACL,
                (Creates::File, None, Some(_)) => kind::TX_CREATE_ATTR,
                (Creates::File, Some(_), Some(_)) => kind::TX_CREATE_ACL_ATTR,
                (Creates::Directory, None, None) => kind::TX_MKDIR,
                (Creates::Directory, Some(_), None) => kind::TX_MKDIR_ACL,
                (Creates::Directory, None, Some(_)) => kind::TX_MKDIR_ATTR,
                (Creates::Directory, Some(_), Some(_)) => kind::TX_MKDIR_ACL_ATTR,
            },
            Body::Remove { .. } => kind::TX_REMOVE,
            Body::Rmdir { .. } => kind::TX_RMDIR,
            Body::Link { .. } => kind::TX_LINK,
            Body::Rename(r) => match r.how {
                Renames::Plain => kind::TX_RENAME,
                Renames::Exchange => kind::TX_RENAME_EXCHANGE,
                Renames::Whiteout(_) => kind::TX_RENAME_WHITEOUT,
            },
            Body::Write(_) => kind::TX_WRITE,
            Body::Write2(_) => kind::TX_WRITE2,
            Body::Truncate { .. } => kind::TX_TRUNCATE,
            Body::SetAttr(_) => kind::TX_SETATTR,
            Body::AclV0 { .. } => kind::TX_ACL_V0,
            Body::Acl { .. } => kind::TX_ACL,
            Body::SetSaXattr { .. } => kind::TX_SETSAXATTR,
            Body::CloneRange { .. } => kind::TX_CLONE_RANGE,
        }
    }
}

/// How many domains owner and group refer to (`zfs_replay_domain_cnt`): the upper half of a FUID is the
/// number of its domain in the record.
pub(crate) fn domains_of(uid: u64, gid: u64) -> u64 {
    let (uid, gid) = (uid >> 32, gid >> 32);
    u64::from(uid != 0) + u64::from(gid != 0 && gid != uid)
}
