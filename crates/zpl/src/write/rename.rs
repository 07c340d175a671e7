//! Renaming (`zfs_rename`).
//!
//! All checks come before the first change. Both entries are found; the flags of nodes and directories, projects
//! and types are checked; and a directory must not come to be inside of itself, for which its new parents are
//! followed up to the root (`zfs_rename_lock`). Then the node moves, or two nodes change places
//! (`RENAME_EXCHANGE`). Two names of one file stay as they are. A whiteout may take the old name
//! (`RENAME_WHITEOUT`). A file that loses its last name is removed, or kept in the unlinked set while it is in use.
//!
//! The log record has the old name as it was stored, since it may have been asked for in another form.
//!
//! Invariant: sizes of directories count entries, and their links count directories, whichever way a rename goes.

use super::allowed::{check_empty, check_project, check_removable};
use super::books::Leads;
use super::context::Cx;
use super::cost::CREATE;
use super::names::{self, Entry};
use super::node::NodeMut;
use super::{InUse, NewNode, NodeKind, Owner, Removed, RenameFlags, create};
use crate::error::show;
use crate::fs::{CaseSensitivity, FileSystem};
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_format::zap::norm::{TO_UPPER, normalize};
use cenote_format::zil::{Body, NewObject, Rename, Renames};
use std::collections::HashSet;

/// `zp_flags`: `ZFS_AV_MODIFIED`.
const FLAG_AV_MODIFIED: u64 = 0x0000_0400_0000_0000;
const FLAG_PROJECT_INHERIT: u64 = super::flags::PROJECT_INHERIT;

/// Fails if `dir` is `below` or somewhere below it.
fn check_not_inside(cx: &mut Cx<'_>, root: u64, dir: u64, below: u64) -> Result<()> {
    let (mut at, mut seen) = (dir, HashSet::new());
    loop {
        if at == below {
            return Err(Error::Invalid(format!("directory {dir} is inside of {below}")));
        }
        if at == root {
            return Ok(());
        }
        if !seen.insert(at) {
            return Err(Error::Corrupt(dir, "parent directories form a cycle".into()));
        }
        at = NodeMut::load(cx, at)?.required(cx, ZplAttr::Parent)?;
    }
}

/// One end of a renaming.
struct End<'a> {
    dir: NodeMut,
    name: &'a [u8],
}

/// How a rename is made.
#[derive(Clone, Copy)]
struct How<'a> {
    flags: RenameFlags,
    /// A node that loses its last name is freed at once unless it is in use.
    free: bool,
    in_use: InUse<'a>,
}

/// A node with its entry.
struct Found<'n> {
    entry: Entry<'n>,
    node: NodeMut,
    is_dir: bool,
}

impl Found<'_> {
    fn leads(&self) -> Leads {
        Leads { ino: self.entry.ino, is_dir: self.is_dir }
    }
}

fn found<'n>(cx: &mut Cx<'_>, end: &End<'n>, exact: bool) -> Result<Option<Found<'n>>> {
    let Some(entry) = names::find(cx, end.dir.ino, end.name, exact)? else { return Ok(None) };
    let node = NodeMut::load(cx, entry.ino)?;
    let is_dir = node.is_dir(cx)?;
    Ok(Some(Found { entry, node, is_dir }))
}

/// Moves a node: it has its new entry already.
fn settle(cx: &mut Cx<'_>, mut node: NodeMut, dir: &NodeMut) -> Result<()> {
    let mut flags = node.flags(cx)? | FLAG_AV_MODIFIED;
    flags |= dir.flags(cx)? & FLAG_PROJECT_INHERIT;
    node.set(cx, ZplAttr::Flags, &[flags])?;
    node.set(cx, ZplAttr::Parent, &[dir.ino])?;
    node.touched(cx)?;
    node.store(cx)
}

impl FileSystem {
    /// Renames `name` in `dir` to `new_name` in `new_dir` (`zfs_log_rename`); returns what was there and lost its name. Two
    /// names of the same file: nothing is done.
    ///
    /// Errors: [`Error::Invalid`] for a directory that would be inside of itself, and for an exchange
    /// with other flags; [`Error::NotDir`], [`Error::IsDir`], [`Error::NotEmpty`] by what is there;
    /// [`Error::Exists`] with `no_replace`; [`Error::NotFound`] with `exchange`;
    /// [`Error::CrossesProject`]; and errors of creating and removing.
    pub fn rename(
        &self,
        dir: u64,
        name: &[u8],
        new_dir: u64,
        new_name: &[u8],
        flags: RenameFlags,
        in_use: InUse<'_>,
    ) -> Result<Option<Removed>> {
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(Error::Invalid("flags of rename".into()));
        }
        let whiteouts = u64::from(flags.whiteout.is_some());
        let cost = Cost { write: (2 + whiteouts) * CREATE, objects: whiteouts, frees: false };
        let lost = self.change_names(cost, |cx, free| {
            names::check_new_name(cx, new_name)?;
            let source = End { dir: names::shrinkable_dir(cx, dir)?, name };
            let target = End { dir: names::writable_dir(cx, new_dir)?, name: new_name };
            let how = How { flags, free, in_use };
            let moved = names::find(cx, dir, name, false)?;
            let back = match flags.exchange {
                true => names::find(cx, new_dir, new_name, false)?.map(|entry| entry.ino),
                false => None,
            };
            let lost = self.rename_in(cx, &source, &target, how)?;
            let whiteout = match flags.whiteout {
                Some(owner) => whiteout(cx, dir, name, owner)?,
                None => None,
            };
            whiteout.iter().for_each(|new| self.check_new(new.object));
            let how = match (flags.exchange, whiteout) {
                (true, _) => Renames::Exchange,
                (false, Some(new)) => Renames::Whiteout(new),
                (false, None) => Renames::Plain,
            };
            // The name as it was stored: it may have been asked for in another form.
            let (from, moved) = moved.map_or((name.into(), 0), |entry| (entry.name, entry.ino));
            let (from_dir, to_dir, to) = (dir, new_dir, new_name);
            let record = Body::Rename(Rename { how, from_dir, to_dir, from: &from, to });
            back.into_iter().for_each(|ino| cx.os.log_with_names(ino));
            cx.os.log_rename(record, moved)?;
            Ok(lost)
        })?;
        Ok(lost.map(|removed| self.let_go(removed, in_use)))
    }

    /// Renames as a record of a log says: neither names nor flags are checked.
    pub(super) fn rename_entry(
        &self,
        cx: &mut Cx<'_>,
        (dir, name): (u64, &[u8]),
        (new_dir, new_name): (u64, &[u8]),
        flags: RenameFlags,
        in_use: InUse<'_>,
    ) -> Result<Option<Removed>> {
        let source = End { dir: NodeMut::load(cx, dir)?, name };
        let target = End { dir: NodeMut::load(cx, new_dir)?, name: new_name };
        self.rename_in(cx, &source, &target, How { flags, free: true, in_use })
    }

    fn rename_in(
        &self,
        cx: &mut Cx<'_>,
        source: &End<'_>,
        target: &End<'_>,
        how: How<'_>,
    ) -> Result<Option<Removed>> {
        let flags = how.flags;
        let not_found = |name: &[u8]| Error::NotFound(show(name));
        let same_dir = source.dir.ino == target.dir.ino;
        let same = |norm| normalize(source.name, norm) == normalize(target.name, norm);
        // A name may be given another case.
        let folds = cx.names.case == CaseSensitivity::Insensitive;
        let exact = same_dir && folds && same(cx.names.flags);
        let moved = found(cx, source, exact)?.ok_or_else(|| not_found(source.name))?;
        if same_dir && same(cx.names.flags & !TO_UPPER) {
            return Ok(None);
        }
        let there = found(cx, target, exact)?;
        self.check_rename(cx, source, target, &moved, there.as_ref(), flags)?;
        match there {
            Some(there) if there.entry.ino == moved.entry.ino => Ok(None),
            Some(there) if flags.exchange => {
                exchange(cx, source, target, moved, there)?;
                Ok(None)
            }
            there => self.move_entry(cx, source, target, moved, there, how),
        }
    }

    /// All that can be said before anything is changed.
    fn check_rename(
        &self,
        cx: &mut Cx<'_>,
        source: &End<'_>,
        target: &End<'_>,
        moved: &Found<'_>,
        there: Option<&Found<'_>>,
        flags: RenameFlags,
    ) -> Result<()> {
        check_removable(cx, &moved.node)?;
        let same_dir = source.dir.ino == target.dir.ino;
        if !same_dir {
            check_project(cx, &target.dir, &moved.node)?;
        }
        if moved.is_dir && !same_dir {
            check_not_inside(cx, self.root(), target.dir.ino, moved.entry.ino)?;
        }
        let Some(there) = there else {
            return if flags.exchange { Err(Error::NotFound(show(target.name))) } else { Ok(()) };
        };
        if flags.no_replace {
            return Err(Error::Exists(show(target.name)));
        }
        if there.entry.ino == moved.entry.ino {
            return Ok(());
        }
        // What was there loses this name.
        names::shrinkable_dir(cx, target.dir.ino)?;
        check_removable(cx, &there.node)?;
        if flags.exchange {
            if !same_dir {
                check_project(cx, &source.dir, &there.node)?;
            }
            if there.is_dir && !same_dir {
                check_not_inside(cx, self.root(), source.dir.ino, there.entry.ino)?;
            }
            return Ok(());
        }
        match (moved.is_dir, there.is_dir) {
            (true, false) => Err(Error::NotDir(show(target.name))),
            (false, true) => Err(Error::IsDir(show(target.name))),
            (true, true) => check_empty(cx, &there.node),
            (false, false) => Ok(()),
        }
    }

    fn move_entry(
        &self,
        cx: &mut Cx<'_>,
        source: &End<'_>,
        target: &End<'_>,
        moved: Found<'_>,
        there: Option<Found<'_>>,
        how: How<'_>,
    ) -> Result<Option<Removed>> {
        let (from, to) = (source.dir.ino, target.dir.ino);
        match &there {
            Some(old) if old.entry.name == target.name => {
                names::replace(cx, to, target.name, old.leads(), moved.entry.ino)?;
            }
            Some(old) => {
                names::add(cx, to, target.name, moved.entry.ino)?;
                names::remove(cx, to, &old.entry.name, old.leads())?;
            }
            None => names::add(cx, to, target.name, moved.entry.ino)?,
        }
        names::remove(cx, from, &moved.entry.name, moved.leads())?;
        let dirs = i64::from(moved.is_dir);
        let entries_gone = i64::from(there.is_some());
        let dirs_gone = i64::from(there.as_ref().is_some_and(|t| t.is_dir));
        if from == to {
            names::count(cx, from, -entries_gone, -dirs_gone)?;
        } else {
            names::count(cx, from, -1, -dirs)?;
            names::count(cx, to, 1 - entries_gone, dirs - dirs_gone)?;
        }
        settle(cx, moved.node, &target.dir)?;
        there.map(|old| self.drop_link(cx, old.node, how.free, how.in_use)).transpose()
    }
}

/// Puts a whiteout, a character device 0:0, where a name was that was moved away (`zfs_log_rename_whiteout`); `None` if it is
/// still there: nothing was moved then. It has no lists of its own.
fn whiteout(
    cx: &mut Cx<'_>,
    dir: u64,
    name: &[u8],
    Owner { uid, gid }: Owner,
) -> Result<Option<NewObject>> {
    if names::find(cx, dir, name, false)?.is_some() {
        return Ok(None);
    }
    let kind = NodeKind::CharDevice(0, 0);
    let node = NewNode { kind, mode: 0, umask: 0, uid, gid, keep_setgid: true };
    let parent = NodeMut::load(cx, dir)?;
    let made = create::inherit(cx, &parent, &node, 1)?.0;
    names::add(cx, dir, name, made.ino)?;
    names::count_in(cx, parent, 1, 0)?;
    let new = super::new_node::logged(cx, &made)?;
    if (new.uid | new.gid) >> 32 != 0 {
        // The record of a whiteout has no domains.
        cx.os.log_cannot();
    }
    Ok(Some(new))
}

/// Lets two nodes change places (`zfs_log_rename_exchange`).
fn exchange(
    cx: &mut Cx<'_>,
    source: &End<'_>,
    target: &End<'_>,
    moved: Found<'_>,
    there: Found<'_>,
) -> Result<()> {
    let (from, to) = (source.dir.ino, target.dir.ino);
    names::replace(cx, to, &there.entry.name, there.leads(), moved.entry.ino)?;
    names::replace(cx, from, &moved.entry.name, moved.leads(), there.entry.ino)?;
    let dirs = i64::from(moved.is_dir) - i64::from(there.is_dir);
    if from == to {
        names::count(cx, from, 0, 0)?;
    } else {
        names::count(cx, from, 0, -dirs)?;
        names::count(cx, to, 0, dirs)?;
    }
    settle(cx, moved.node, &target.dir)?;
    settle(cx, there.node, &source.dir)
}
