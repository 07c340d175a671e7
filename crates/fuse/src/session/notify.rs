//! Telling the kernel what it does not know: that something is not as it was told.
//!
//! A notification is written as an answer is, with number 0 and its code in place of an error.

use super::reply;
use super::request::INodeNo;
use fuse_abi::linux::{fuse_notify_code, fuse_notify_inval_entry_out, fuse_notify_inval_inode_out};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Tells the kernel to forget. It is no error if the kernel did not know.
#[derive(Debug, Clone)]
pub(crate) struct Notifier(pub(super) Arc<OwnedFd>);

impl Notifier {
    /// Makes the kernel forget attributes, and contents from `offset` on (none if it is negative):
    /// `len` bytes, 0: to the end.
    pub(crate) fn inval_inode(&self, ino: INodeNo, offset: i64, len: i64) -> Result<(), Errno> {
        let out = fuse_notify_inval_inode_out { ino: ino.0, off: offset, len };
        self.send(fuse_notify_code::FUSE_NOTIFY_INVAL_INODE, [out.as_bytes(), &[]])
    }

    /// Makes the kernel forget what a name in a directory leads to.
    pub(crate) fn inval_entry(&self, parent: INodeNo, name: &[u8]) -> Result<(), Errno> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        let out = fuse_notify_inval_entry_out { parent: parent.0, namelen, flags: 0 };
        let name = [name, b"\0"].concat();
        self.send(fuse_notify_code::FUSE_NOTIFY_INVAL_ENTRY, [out.as_bytes(), &name])
    }

    fn send(&self, code: fuse_notify_code, parts: [&[u8]; 2]) -> Result<(), Errno> {
        match reply::write(&self.0, (0, code as i32), parts) {
            Err(Errno::NOENT) => Ok(()),
            sent => sent,
        }
    }
}
