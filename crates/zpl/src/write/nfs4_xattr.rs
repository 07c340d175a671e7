//! NFSv4 lists that programs set and take away (`zfs_setacl`, `zfs_stripacl`).
//!
//! The mode follows a list that is set. Without a list of its own a file has that of its mode. Both are logged as OpenZFS logs
//! lists (`zfs_log_acl`), with the entries as they were set.

use super::context::Cx;
use super::cost::ATTRIBUTES;
use super::flags::IMMUTABLE;
use super::nfs4::{List, of_mode};
use super::node::NodeMut;
use crate::fs::FileSystem;
use crate::nfs4;
use crate::znode::{S_IFLNK, S_IFMT};
use crate::{Error, Result};
use cenote_format::ByteOrder;
use cenote_format::zil::{Acl, Body};

/// Gives a node a list; `None`: that of its mode.
fn set(cx: &mut Cx<'_>, ino: u64, list: Option<List>) -> Result<()> {
    let mut node = NodeMut::load(cx, ino)?;
    if node.flags(cx)? & IMMUTABLE != 0 {
        return Err(Error::NotPermitted(format!("flags of object {ino}")));
    }
    let mode = node.mode(cx)?;
    if mode & S_IFMT == S_IFLNK || cx.has_old_nodes() {
        return Err(Error::Unsupported("NFSv4 ACLs of symbolic links and before version 5".into()));
    }
    let list = list.unwrap_or_else(|| List { entries: of_mode(mode), flags: Some(0) });
    list.give(cx, &mut node)?;
    let mut aces = Vec::new();
    list.entries.iter().for_each(|ace| ace.append_logged(&mut aces));
    let (count, flags) = (list.entries.len() as u64, list.flags.unwrap_or(0));
    let (fuids, domains) = (Vec::new(), Vec::new());
    let acl = Acl { count, flags, aces: &aces, order: ByteOrder::Little, fuids, domains };
    cx.os.log(Body::Acl { object: ino, acl })?;
    node.touched(cx)?;
    node.store(cx)
}

impl FileSystem {
    /// Sets the list of a file to the value of the extended attribute; `None` takes it away.
    ///
    /// Errors: [`Error::Invalid`] and [`Error::TooLarge`] for what is no list, [`Error::NotPermitted`] for an immutable file,
    /// [`Error::Unsupported`] for a symbolic link, and for file systems before version 5.
    pub(super) fn set_nfs4_xattr(&self, ino: u64, value: Option<&[u8]>) -> Result<()> {
        let list = match value {
            None => None,
            Some(value) => {
                let (entries, flags) = nfs4::decode(value)?;
                let list = List { entries, flags: Some(flags) };
                list.check()?;
                Some(list)
            }
        };
        self.change(ATTRIBUTES, |cx| {
            let list = list.as_ref().map(|l| List { entries: l.entries.clone(), flags: l.flags });
            set(cx, ino, list)
        })
    }
}
