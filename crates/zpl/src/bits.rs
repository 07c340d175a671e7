//! Bits of a node: the type of a file in its mode (`zp_mode`), and flags (`zp_flags`).

/// `zp_flags`: the node is an extended attribute (or the hidden directory of them).
pub(crate) const FLAG_XATTR: u64 = 0x1;
/// `zp_flags`: the node has a project id.
pub(crate) const FLAG_PROJID: u64 = 0x0000_8000_0000_0000;

/// File type bits of a mode.
pub(crate) const S_IFMT: u64 = 0o170_000;
/// A directory.
pub(crate) const S_IFDIR: u64 = 0o040_000;
/// A symbolic link.
pub(crate) const S_IFLNK: u64 = 0o120_000;
/// A regular file.
pub(crate) const S_IFREG: u64 = 0o100_000;
/// A block device.
pub(crate) const S_IFBLK: u64 = 0o060_000;
/// A character device.
pub(crate) const S_IFCHR: u64 = 0o020_000;
