//! Snapshots taken, destroyed and renamed in `.zfs/snapshot` (`zfsctl_snapdir_mkdir`, `zfsctl_snapdir_remove`,
//! `zfsctl_snapdir_rename`).
//!
//! The kernel lets every user try: the directory's mode says so, as OpenZFS's does. Root may, and users that the
//! daemon belongs to, as with commands; at root's daemon others may what is delegated to them. While a request is answered the kernel holds the directory, so nothing
//! is announced to it by the thread that answers: what it learns from the answer is enough.

use super::reply::Entry;
use super::{Server, errno};
use crate::branch::Branch;
use crate::caller::Caller;
use crate::control::SnapshotChange;
use crate::node::Node;
use cenote_vdev::waiting;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::sync::Arc;

/// The name of a snapshot, which is ASCII.
fn text(name: &OsStr) -> Result<&str, Errno> {
    name.to_str().ok_or(Errno::ILSEQ)
}

impl Server {
    fn change_snapshots(
        &self,
        who: Caller,
        branch: &Arc<Branch>,
        change: SnapshotChange<'_>,
    ) -> Result<(), Errno> {
        let Some(snapshots) = &branch.snapshots else { return Err(Errno::ROFS) };
        if branch.is_gone() {
            return Err(Errno::IO);
        }
        if !snapshots.are_administered() {
            return Err(Errno::ACCESS);
        }
        let daemon = rustix::process::geteuid();
        let user = match who.uid {
            0 => None,
            user if user == daemon.as_raw() => None,
            _ if daemon.is_root() => Some(who.user()),
            _ => return Err(Errno::PERM),
        };
        waiting::begins();
        snapshots
            .change(user.as_ref(), change)
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// `mkdir`: takes a snapshot.
    pub(super) fn take_snapshot(
        &self,
        who: Caller,
        dir: &Node,
        branch: &Arc<Branch>,
        name: &OsStr,
    ) -> Result<(Node, Entry), Errno> {
        let short = text(name)?;
        self.change_snapshots(who, branch, SnapshotChange::Take(short))?;
        self.tree.open_snapshot(branch, short);
        let node = self.tree.lookup(dir, short.as_bytes()).map_err(|e| errno(&e))?;
        let attr = self.tree.attr(&node).map_err(|e| errno(&e))?;
        let entry = self.entry(dir, &node, attr);
        Ok((node, entry))
    }

    /// `rmdir`: destroys an unused snapshot.
    pub(super) fn destroy_snapshot(
        &self,
        who: Caller,
        branch: &Arc<Branch>,
        name: &OsStr,
    ) -> Result<(), Errno> {
        let short = text(name)?;
        if !self.tree.close_snapshot(branch, short) {
            return Err(Errno::BUSY);
        }
        let done = self.change_snapshots(who, branch, SnapshotChange::Destroy(short));
        match done {
            Ok(()) => self.tree.forget_snapshot(branch, short),
            Err(_) => self.tree.open_snapshot(branch, short),
        }
        done
    }

    /// `rename`: gives a snapshot another name in the same directory.
    pub(super) fn rename_snapshot(
        &self,
        who: Caller,
        (dir, name): (&Node, &OsStr),
        (new_dir, new_name): (&Node, &OsStr),
        flags: rustix::fs::RenameFlags,
    ) -> Result<(), Errno> {
        let (Node::Snapshots(branch), Node::Snapshots(to)) = (dir, new_dir) else {
            return Err(Errno::XDEV);
        };
        if !Arc::ptr_eq(branch, to) || flags.contains(rustix::fs::RenameFlags::EXCHANGE) {
            return Err(Errno::INVAL);
        }
        let (from, to) = (text(name)?, text(new_name)?);
        if from == to {
            return Ok(());
        }
        self.change_snapshots(who, branch, SnapshotChange::Rename(from, to))?;
        self.tree.renamed_snapshot(branch, from, to);
        Ok(())
    }
}
