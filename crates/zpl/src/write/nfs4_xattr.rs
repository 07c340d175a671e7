//! NFSv4 lists that programs set and take away (`zfs_setacl`, `zfs_stripacl`, `zfs_setsecattr`).
//!
//! The mode follows a list that is set. Without a list of its own a file has that of its mode. Both are logged as OpenZFS logs
//! lists (`zfs_log_acl`), with the entries as they were set.

use super::context::Cx;
use super::cost::ATTRIBUTES;
use super::flags::IMMUTABLE;
use super::nfs4::{FLAG_TRIVIAL, IN_RECORDS, List, known_of_node, of_mode};
use super::node::NodeMut;
use crate::bits::{S_IFLNK, S_IFMT};
use crate::fs::FileSystem;
use crate::nfs4;
use crate::{Error, Result};
use cenote_format::ByteOrder;
use cenote_format::acl::{Ace, MAX_ENTRIES};
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
    log_list(cx, ino, &list.entries, list.flags.unwrap_or(0))?;
    node.touched(cx)?;
    node.store(cx)
}

/// Logs that an object has a list; `flags` as records have them.
fn log_list(cx: &mut Cx<'_>, ino: u64, entries: &[Ace], flags: u64) -> Result<()> {
    let mut aces = Vec::new();
    entries.iter().for_each(|ace| ace.append_logged(&mut aces));
    let (count, fuids, domains) = (entries.len() as u64, Vec::new(), Vec::new());
    let acl = Acl { count, flags, aces: &aces, order: ByteOrder::Little, fuids, domains };
    Ok(cx.os.log(Body::Acl { object: ino, acl })?)
}

/// Logs the list that an object kept although its mode was logged, which a replay takes for a `chmod`.
pub(super) fn log_kept(cx: &mut Cx<'_>, ino: u64) -> Result<()> {
    let node = NodeMut::load(cx, ino)?;
    let flags = node.flags(cx)?;
    if flags & FLAG_TRIVIAL != 0 || cx.has_old_nodes() {
        return Ok(());
    }
    let entries = known_of_node(cx, &node)?;
    if entries.is_empty() || entries.len() as u64 > MAX_ENTRIES {
        return Ok(());
    }
    let whole = IN_RECORDS.into_iter().filter(|(_, flag)| flags & flag != 0);
    let whole = whole.fold(0, |all, (bit, _)| all | bit);
    log_list(cx, ino, &entries, whole)
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
