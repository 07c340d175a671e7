//! Attributes as `stat` shows them (`zfs_getattr`).
//!
//! They are the same whether a node is only read or is being changed. Each of the two notes in one go what
//! it has ([`Words`]); how that is shown is said here.

use crate::bits::{FLAG_PROJID, S_IFBLK, S_IFCHR, S_IFMT};
use crate::sa::{KNOWN, ZplAttr};
use crate::{Error, Result};
use cenote_format::ByteOrder;
use cenote_format::dmu::DnodePhys;

/// The user that stands for owners without a number here (`nobody`).
const NOBODY: u32 = 65534;

/// Exact attributes of a file, as `stat` shows them under OpenZFS on Linux (`sa_object_size`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Object number.
    pub ino: u64,
    /// Transaction group of creation: tells apart files that had the same number.
    pub gen_: u64,
    /// File type and permissions: `st_mode`.
    pub mode: u32,
    /// Owner. An owner from another system's domain (a FUID) is 65534.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// Link count. A directory's is 2 plus its directories.
    pub nlink: u64,
    /// Bytes; of a directory, its entries plus 2.
    pub size: u64,
    /// Space taken, in units of 512 bytes: data, metadata and the dnode.
    pub blocks: u64,
    /// Bytes of a data block.
    pub blksize: u32,
    /// Last access: seconds since 1970, nanoseconds.
    pub atime: (i64, u32),
    /// Last modification.
    pub mtime: (i64, u32),
    /// Last change of attributes.
    pub ctime: (i64, u32),
    /// Creation.
    pub crtime: (i64, u32),
    /// Of a device: Linux's major and minor number.
    pub rdev: (u32, u32),
    /// The directory the file was created in or last renamed to.
    pub parent: u64,
    /// `zp_flags` (`ZFS_READONLY`, `ZFS_IMMUTABLE`, …).
    pub flags: u64,
    /// Project id; 0 without a project.
    pub projid: u64,
    /// The hidden directory of extended attributes; 0 without one.
    pub xattr: u64,
    /// Some of it is not on disk yet: the space that it takes may change without another change of the file.
    pub pending: bool,
}

impl Attr {
    /// Whether the file is a directory.
    pub fn is_dir(&self) -> bool {
        u64::from(self.mode) & S_IFMT == crate::bits::S_IFDIR
    }

    /// Whether the file is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        u64::from(self.mode) & S_IFMT == crate::bits::S_IFLNK
    }

    /// Whether the file is a regular file.
    pub fn is_file(&self) -> bool {
        u64::from(self.mode) & S_IFMT == crate::bits::S_IFREG
    }
}

/// What an object takes.
#[derive(Clone, Copy)]
pub(crate) struct Space {
    /// Bytes of blocks.
    used: u64,
    /// Slots of the dnode.
    slots: u64,
    /// Bytes of a data block.
    block_size: u64,
    /// It may be another one once all of the object is on disk.
    pending: bool,
}

impl Space {
    /// Of an object with this dnode; `pending`: some of it is not on disk yet.
    pub(crate) fn of(dnode: &DnodePhys, pending: bool) -> Space {
        let (used, slots, block_size) = (dnode.used, dnode.slots(), dnode.block_size);
        Space { used, slots, block_size, pending }
    }
}

/// The attributes of a node that are one or two integers.
pub(crate) struct Words {
    /// The object's number.
    number: u64,
    words: [Option<[u64; 2]>; KNOWN],
}

impl Words {
    /// A node of which nothing is known.
    pub(crate) fn new(number: u64) -> Words {
        Words { number, words: [None; KNOWN] }
    }

    /// Takes note of an attribute; what is known of it already stays.
    pub(crate) fn note(&mut self, attr: ZplAttr, value: &[u8], order: ByteOrder) {
        let word = |bytes: &[u8; 8]| match order {
            ByteOrder::Little => u64::from_le_bytes(*bytes),
            ByteOrder::Big => u64::from_be_bytes(*bytes),
        };
        if let [first, rest @ ..] = value.as_chunks().0 {
            let words = [word(first), rest.first().map_or(0, word)];
            self.words[attr as usize].get_or_insert(words);
        }
    }

    fn word(&self, attr: ZplAttr) -> Option<u64> {
        self.words[attr as usize].map(|[word, _]| word)
    }

    fn required(&self, attr: ZplAttr) -> Result<[u64; 2]> {
        let missing = || Error::Corrupt(self.number, format!("no attribute {attr:?}"));
        self.words[attr as usize].ok_or_else(missing)
    }

    fn required_word(&self, attr: ZplAttr) -> Result<u64> {
        self.required(attr).map(|[word, _]| word)
    }

    /// A time that every node has: seconds since 1970, nanoseconds.
    pub(crate) fn time(&self, attr: ZplAttr) -> Result<(i64, u32)> {
        let [seconds, nanoseconds] = self.required(attr)?;
        Ok((seconds as i64, nanoseconds.min(999_999_999) as u32))
    }
}

/// The attributes of a node as they are shown.
pub(crate) fn attr_of(node: &Words, space: Space) -> Result<Attr> {
    let mode = node.required_word(ZplAttr::Mode)?;
    let flags = node.required_word(ZplAttr::Flags)?;
    let is_device = matches!(mode & S_IFMT, S_IFBLK | S_IFCHR);
    let rdev = node.word(ZplAttr::Rdev).filter(|_| is_device);
    let projid = node.word(ZplAttr::ProjId).filter(|_| flags & FLAG_PROJID != 0);
    Ok(Attr {
        ino: node.number,
        gen_: node.required_word(ZplAttr::Gen)?,
        mode: mode as u32 & 0o177_777,
        uid: local_id(node.required_word(ZplAttr::Uid)?),
        gid: local_id(node.required_word(ZplAttr::Gid)?),
        nlink: node.required_word(ZplAttr::Links)? & u64::from(u32::MAX),
        size: node.required_word(ZplAttr::Size)?,
        // OpenZFS rounds to the nearest sector and counts the slots of the dnode itself.
        blocks: (space.used.saturating_add(256) >> 9).saturating_add(space.slots),
        blksize: u32::try_from(space.block_size).unwrap_or(u32::MAX),
        atime: node.time(ZplAttr::Atime)?,
        mtime: node.time(ZplAttr::Mtime)?,
        ctime: node.time(ZplAttr::Ctime)?,
        crtime: node.time(ZplAttr::Crtime)?,
        rdev: split_rdev(rdev.unwrap_or(0)),
        parent: node.required_word(ZplAttr::Parent)?,
        flags,
        projid: projid.unwrap_or(0),
        xattr: node.word(ZplAttr::Xattr).unwrap_or(0),
        pending: space.pending,
    })
}

/// The user or group behind a stored id. The upper 32 bits of a FUID are the index of a domain
/// (a Windows SID's authority), the lower the id in it; index 0 is the POSIX ids.
pub(crate) fn local_id(fuid: u64) -> u32 {
    u32::try_from(fuid).unwrap_or(NOBODY)
}

/// Major and minor number in a stored device number: the Linux kernel's own form, 12 and 20 bits.
fn split_rdev(rdev: u64) -> (u32, u32) {
    let dev = rdev as u32;
    (dev >> 20, dev & 0xf_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_split_like_the_kernel_does() {
        assert_eq!(split_rdev(1 << 20 | 3), (1, 3));
        assert_eq!(split_rdev(259 << 20 | 70000), (259, 70000));
    }

    #[test]
    fn ids_of_foreign_domains_are_nobody() {
        assert_eq!(local_id(1000), 1000);
        assert_eq!(local_id(u64::from(u32::MAX)), u32::MAX);
        assert_eq!(local_id(1 << 32 | 1000), NOBODY);
    }
}
