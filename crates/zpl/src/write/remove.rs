//! Names that are taken away, and nodes that go with their last one (`zfs_remove`, `zfs_rmdir`,
//! `zfs_link_destroy`, `zfs_unlinked_add`, `zfs_rmnode`).
//!
//! A node that is in use when it loses its last name becomes an *orphan*: it is noted in the unlinked
//! set (a ZAP: name the object's number in hexadecimal, value the number), and freed when its use
//! ends, or, after a crash, when the file system is mounted again. So does one that is
//! [too large](super::unlinked) to be freed in one transaction; it is freed in the background. All
//! other nodes are freed in the same transaction.

use super::allowed::{check_empty, check_removable};
use super::books::Leads;
use super::context::Cx;
use super::cost::REMOVE;
use super::flags::{APPEND_ONLY, IMMUTABLE};
use super::node::NodeMut;
use super::rmnode::{forget, remember};
use super::{InUse, Removed, names, unlinked};
use crate::attr::Attr;
use crate::error::show;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::write::WriteError;
use cenote_dmu::zap::Zap;
use cenote_format::zil::Body;

/// Orphans that are looked up at once.
const BATCH: usize = 256;

/// Frees a file that has no names; false if that is too much for one transaction.
fn free_orphan(cx: &mut Cx<'_>, ino: u64) -> Result<bool> {
    let node = NodeMut::load(cx, ino)?;
    if node.required(cx, ZplAttr::Links)? != 0 {
        return Ok(true);
    }
    unlinked::destroy_small(cx, &node)
}

/// As [`free_orphan`], for what was found in the unlinked set.
fn drain(cx: &mut Cx<'_>, ino: u64) -> Result<bool> {
    let named = match NodeMut::load(cx, ino) {
        Ok(node) => node.required(cx, ZplAttr::Links)? != 0,
        Err(e) if e.is_absence() => true,
        Err(e) => return Err(e),
    };
    if named {
        // Something else has the number, or nothing.
        forget(cx, ino)?;
        return Ok(true);
    }
    free_orphan(cx, ino)
}

/// The links of a node of `links` that gets a name.
///
/// Errors: there cannot be more.
pub(super) fn one_more(ino: u64, links: u64) -> Result<u64> {
    let more = links.checked_add(1);
    more.ok_or_else(|| Error::Corrupt(ino, format!("{links} links, and one more")))
}

impl FileSystem {
    /// Makes a change that takes a name away. `f` is told whether to free a node without names
    /// at once. If that cannot be done, because something of the node is damaged, the node loses its
    /// name all the same and stays in the unlinked set.
    pub(super) fn change_names<T>(
        &self,
        cost: Cost,
        mut f: impl FnMut(&mut Cx<'_>, bool) -> Result<T>,
    ) -> Result<T> {
        match self.change(cost, |cx| f(cx, true)) {
            Err(Error::Dmu(_) | Error::Corrupt(..)) => self.change(cost, |cx| f(cx, false)),
            Err(Error::Write(e)) if matches!(*e, WriteError::Encode(_)) => {
                self.change(cost, |cx| f(cx, false))
            }
            done => done,
        }
    }

    /// Takes one name's worth of links from a node whose entry is gone. `free`: a small node that has
    /// no names and is not in use is freed.
    pub(super) fn drop_link(
        &self,
        cx: &mut Cx<'_>,
        mut node: NodeMut,
        free: bool,
        in_use: InUse<'_>,
    ) -> Result<Removed> {
        let ino = node.ino;
        let links = node.required(cx, ZplAttr::Links)?;
        let nlink = match (node.is_dir(cx)?, links.checked_sub(1)) {
            (true, _) => 0,
            (false, Some(left)) => left,
            (false, None) => {
                tracing::warn!(
                    object = ino,
                    "a file without links lost a name: the count was wrong"
                );
                0
            }
        };
        node.set(cx, ZplAttr::Links, &[nlink])?;
        cx.books.linked(ino, -1);
        if nlink > 0 {
            node.touched(cx)?;
            node.store(cx)?;
            return Ok(Removed { ino, nlink, orphan: false });
        }
        cx.books.nameless(ino);
        if free && !in_use(ino) && unlinked::destroy_small(cx, &node)? {
            return Ok(Removed { ino, nlink, orphan: false });
        }
        node.set_time(cx, ZplAttr::Ctime, cx.now)?;
        node.store(cx)?;
        remember(cx, ino)?;
        cx.after.orphans.push((ino, Some(false)));
        Ok(Removed { ino, nlink, orphan: true })
    }

    /// After [`FileSystem::drop_link`]: a large file that is not in use goes, too. It has lost its name
    /// in any case.
    pub(super) fn let_go(&self, removed: Removed, in_use: InUse<'_>) -> Removed {
        if !removed.orphan || in_use(removed.ino) {
            return removed;
        }
        if let Err(e) = self.release(removed.ino) {
            tracing::warn!(object = removed.ino, "a file without names could not be freed: {e}");
        }
        Removed { orphan: false, ..removed }
    }

    fn remove(&self, dir: u64, name: &[u8], is_dir: bool, in_use: InUse<'_>) -> Result<Removed> {
        let removed = self.change_names(REMOVE, |cx, free| {
            let parent = names::shrinkable_dir(cx, dir)?;
            let entry = names::find(cx, dir, name, false)?;
            let entry = entry.ok_or_else(|| Error::NotFound(show(name)))?;
            let node = NodeMut::load(cx, entry.ino)?;
            match (node.is_dir(cx)?, is_dir) {
                (true, false) => return Err(Error::IsDir(show(name))),
                (false, true) => return Err(Error::NotDir(show(name))),
                (true, true) => check_empty(cx, &node)?,
                (false, false) => {}
            }
            check_removable(cx, &node)?;
            names::remove(cx, dir, &entry.name, Leads { ino: entry.ino, is_dir })?;
            names::count_in(cx, parent, -1, -i64::from(is_dir))?;
            let name = &*entry.name;
            cx.os.log(match is_dir {
                true => Body::Rmdir { dir, name },
                false => Body::Remove { dir, name },
            })?;
            self.drop_link(cx, node, free, in_use)
        })?;
        Ok(self.let_go(removed, in_use))
    }

    /// Takes a name away from what is no directory (`zfs_remove`, `zfs_log_remove`). With the last name the node goes, or, if
    /// `in_use` says so, becomes an orphan.
    pub fn unlink(&self, dir: u64, name: &[u8], in_use: InUse<'_>) -> Result<Removed> {
        self.remove(dir, name, false, in_use)
    }

    /// Removes an empty directory (`zfs_rmdir`).
    pub fn rmdir(&self, dir: u64, name: &[u8], in_use: InUse<'_>) -> Result<Removed> {
        self.remove(dir, name, true, in_use)
    }

    /// The last use of a file ended (`zfs_inactive`, `zfs_zinactive`): frees it if it is an orphan, a large one in the
    /// background. Cheap if it is not. What `in_use` asks must know of the end before this is called.
    pub fn release(&self, ino: u64) -> Result<()> {
        if self.orphans().remove(&ino).is_none() {
            return Ok(());
        }
        let free = |cx: &mut Cx<'_>| {
            // The record of its removal says enough.
            cx.os.log_nothing();
            free_orphan(cx, ino)
        };
        match self.change(REMOVE, free) {
            Ok(true) => {}
            Ok(false) => self.free_later(ino),
            Err(e) if e.is_absence() => {}
            // It stays in the unlinked set, for the next mount.
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Frees the orphans that a crash left behind, large ones in the background (`zfs_unlinked_drain`): call it when
    /// the file system is mounted, before files are in use. Returns how many there were. Those that cannot be freed
    /// stay.
    pub fn drain_unlinked(&self) -> Result<u64> {
        let Some(set) = self.unlinked_set() else { return Ok(0) };
        let (mut cursor, mut freed) = (0, 0);
        loop {
            let batch = Zap::open(&self.object(set)?)?.entries_from(cursor, BATCH)?;
            let Some(last) = batch.last() else { return Ok(freed) };
            cursor = last.cursor;
            for ino in batch.iter().filter_map(|e| e.u64()) {
                if self.orphans().contains_key(&ino) {
                    continue;
                }
                match self.change(REMOVE, |cx| drain(cx, ino)) {
                    Ok(done) => {
                        freed += 1;
                        if !done {
                            self.free_later(ino);
                        }
                    }
                    Err(Error::Corrupt(..) | Error::Dmu(_) | Error::Unsupported(_)) => {}
                    Err(e) => return Err(e),
                }
            }
        }
    }

    /// Gives a file, no directory, one more name; a file of [`FileSystem::tmpfile`] its first (`zfs_link`, `zfs_log_link`).
    pub fn link(&self, ino: u64, dir: u64, name: &[u8]) -> Result<Attr> {
        let cost = Cost { write: super::cost::CREATE, objects: 0, frees: false };
        self.change(cost, |cx| {
            names::check_new_name(cx, name)?;
            let parent = names::writable_dir(cx, dir)?;
            let mut node = NodeMut::load(cx, ino)?;
            if node.is_dir(cx)? {
                return Err(Error::NotPermitted(format!("object {ino} is a directory")));
            }
            if node.flags(cx)? & (IMMUTABLE | APPEND_ONLY) != 0 {
                return Err(Error::NotPermitted(format!("flags of object {ino}")));
            }
            super::allowed::check_project(cx, &parent, &node)?;
            let links = node.required(cx, ZplAttr::Links)?;
            if links == 0 && self.orphans().get(&ino) != Some(&true) {
                return Err(Error::NotFound(format!("object {ino} was unlinked")));
            }
            if names::find(cx, dir, name, false)?.is_some() {
                return Err(Error::Exists(show(name)));
            }
            names::add_known(cx, dir, name, ino, node.mode(cx)?)?;
            names::count_in(cx, parent, 1, 0)?;
            if links == 0 {
                // What made it is in no log.
                forget(cx, ino)?;
                cx.after.orphans.push((ino, None));
            } else {
                cx.os.log(Body::Link { dir, object: ino, name })?;
            }
            node.set(cx, ZplAttr::Links, &[one_more(ino, links)?])?;
            cx.books.linked(ino, 1);
            node.set(cx, ZplAttr::Parent, &[dir])?;
            node.touched(cx)?;
            let attr = node.attr(cx)?;
            node.store(cx)?;
            Ok(attr)
        })
    }
}
