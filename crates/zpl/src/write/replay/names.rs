//! Records that change names, and those that create nodes (`zfs_replay_create`, `zfs_replay_create_acl`,
//! `zfs_replay_remove`, `zfs_replay_link`, `zfs_replay_rename`, `zfs_replay_rename_exchange`,
//! `zfs_replay_rename_whiteout`).
//!
//! A record says what became of the operation. So a node gets the number, the size of its dnode, the generation,
//! mode, owners and time of creation that the record has; only its project and flags, and its NFSv4 list if the record has
//! none, come from the directory, with the mode as what was asked for. The
//! entries of an ACL come before the owners, as their domains do in the record. The directory of extended
//! attributes has no name, but is noted in the node that it belongs to.
//!
//! A removed or replaced node is freed at once: no process uses a file while its log is replayed.

use super::acl::{cost_with, entries};
use crate::attr::local_id;
use crate::bits::{FLAG_XATTR, S_IFBLK, S_IFCHR, S_IFDIR, S_IFMT, S_IFREG};
use crate::error::show;
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::write::allowed::check_empty;
use crate::write::books::Leads;
use crate::write::context::Cx;
use crate::write::cost::CREATE;
use crate::write::flags::PROJECT_INHERIT;
use crate::write::fuid::Domains;
use crate::write::handed_down::first_list;
use crate::write::new_node::{Fresh, Place, create_node_at};
use crate::write::nfs4::List;
use crate::write::node::NodeMut;
use crate::write::remove::one_more;
use crate::write::rmnode::forget;
use crate::write::{RenameFlags, names, xvattr};
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::outside::Time;
use cenote_format::dmu::DNODE_SLOT;
use cenote_format::zil::{Create, Creates, NewObject, Rename, Renames};

/// No process uses a file while a log is replayed.
const NOBODY: super::super::InUse<'static> = &|_| false;

/// When a node was made first.
fn time(new: &NewObject) -> Time {
    let [seconds, nanoseconds] = new.crtime;
    (seconds as i64, nanoseconds as u32)
}

/// Creates the node of a record as it was made; it has no name yet.
fn make(
    cx: &mut Cx<'_>,
    parent: &NodeMut,
    new: &NewObject,
    (uid, gid): (u64, u64),
    (target, has_list): (Option<&[u8]>, bool),
) -> Result<NodeMut> {
    let kind = new.mode & S_IFMT;
    let dir_flags = parent.flags(cx)?;
    let inherits = dir_flags & PROJECT_INHERIT != 0 && matches!(kind, S_IFREG | S_IFDIR);
    let projid = match dir_flags & PROJECT_INHERIT {
        0 => 0,
        _ => parent.word(cx, ZplAttr::ProjId).unwrap_or(0),
    };
    // Another list that is in the record takes its place.
    let list = if has_list { None } else { first_list(cx, parent, new.mode)? };
    let fresh = Fresh {
        list,
        mode: new.mode,
        uid,
        gid,
        parent: parent.ino,
        links: if kind == S_IFDIR { 2 } else { 1 },
        flags: dir_flags & FLAG_XATTR | if inherits { PROJECT_INHERIT } else { 0 },
        projid,
        rdev: Some(new.rdev).filter(|_| matches!(kind, S_IFCHR | S_IFBLK)),
        target,
    };
    create_node_at(cx, &fresh, &place(new))
}

/// Whether the mode of what a record makes is that of a directory just if the record makes one.
fn check_kind(new: &NewObject, is_dir: bool) -> Result<()> {
    if (new.mode & S_IFMT == S_IFDIR) != is_dir {
        let what = if is_dir { "a directory" } else { "no directory" };
        return Err(Error::Invalid(format!("{what} of mode {:o} in an intent log", new.mode)));
    }
    Ok(())
}

/// Where the node of a record belongs.
fn place(new: &NewObject) -> Place {
    let slots = usize::try_from(new.slots).unwrap_or(1);
    let dnode_size = slots.saturating_mul(DNODE_SLOT);
    Place { object: new.object, dnode_size, generation: new.generation }
}

impl FileSystem {
    /// `table_at`: where a table of domains goes if it is missing.
    pub(super) fn replay_create(&self, seq: u64, create: &Create<'_>, table_at: u64) -> Result<()> {
        // Newer systems note how many entries a list has, and leave it out: the mode says what it came to.
        let acl = create.acl.as_ref().filter(|acl| !acl.aces.is_empty());
        let names = create.acl.as_ref().map_or(&create.domains, |acl| &acl.domains);
        let domains = Domains { names, table_at };
        let write = CREATE + create.target.len() as u64;
        let cost = cost_with(Cost { write, objects: 1, frees: false }, acl, names);
        self.replay_change(seq, cost, |cx| {
            cx.now = time(&create.new);
            let mut parent = NodeMut::load(cx, create.dir)?;
            if create.what == Creates::XattrDirectory {
                let owners = owners(cx, create, &domains)?;
                let made = make_hidden(cx, &parent, &create.new, owners)?;
                parent.set(cx, ZplAttr::Xattr, &[made.ino])?;
                cx.books.noted(made.ino);
                return parent.store(cx);
            }
            let (name, is_dir) = (create.name, create.what == Creates::Directory);
            check_kind(&create.new, is_dir)?;
            if names::find(cx, create.dir, name, false)?.is_some() {
                return Err(Error::Exists(show(name)));
            }
            let target = Some(create.target).filter(|_| create.what == Creates::Symlink);
            // The list first: its domains come before the owners'.
            let list = match acl {
                None => None,
                Some(acl) => {
                    let entries = entries(cx, acl, &domains)?;
                    Some(List { entries, flags: Some(acl.flags) })
                }
            };
            let owners = owners(cx, create, &domains)?;
            let mut made = make(cx, &parent, &create.new, owners, (target, list.is_some()))?;
            if let Some(list) = list {
                list.give(cx, &mut made)?;
                made.store(cx)?;
                made = NodeMut::load(cx, create.new.object)?;
            }
            if let Some(attrs) = &create.attrs {
                if let Some(project) = xvattr::apply(cx, &mut made, attrs)? {
                    made.set_project(cx, project.into())?;
                }
                made.store(cx)?;
                made = NodeMut::load(cx, create.new.object)?;
            }
            names::add_known(cx, create.dir, name, made.ino, create.new.mode)?;
            names::count_in(cx, parent, 1, i64::from(is_dir))
        })
    }

    pub(super) fn replay_remove(
        &self,
        seq: u64,
        dir: u64,
        name: &[u8],
        is_dir: bool,
    ) -> Result<()> {
        let removed = self.replay_change(seq, crate::write::cost::REMOVE, |cx| {
            let parent = NodeMut::load(cx, dir)?;
            let entry = names::find(cx, dir, name, false)?;
            let entry = entry.ok_or_else(|| Error::NotFound(show(name)))?;
            let node = NodeMut::load(cx, entry.ino)?;
            match (node.is_dir(cx)?, is_dir) {
                (true, false) => return Err(Error::IsDir(show(name))),
                (false, true) => return Err(Error::NotDir(show(name))),
                (true, true) => check_empty(cx, &node)?,
                (false, false) => {}
            }
            names::remove(cx, dir, &entry.name, Leads { ino: entry.ino, is_dir })?;
            names::count_in(cx, parent, -1, -i64::from(is_dir))?;
            self.drop_link(cx, node, true, NOBODY)
        })?;
        self.let_go(removed, NOBODY);
        Ok(())
    }

    pub(super) fn replay_link(&self, seq: u64, dir: u64, ino: u64, name: &[u8]) -> Result<()> {
        self.replay_change(seq, Cost { write: CREATE, objects: 0, frees: false }, |cx| {
            let parent = NodeMut::load(cx, dir)?;
            let mut node = NodeMut::load(cx, ino)?;
            if node.is_dir(cx)? {
                return Err(Error::IsDir(format!("object {ino}")));
            }
            if names::find(cx, dir, name, false)?.is_some() {
                return Err(Error::Exists(show(name)));
            }
            let links = node.required(cx, ZplAttr::Links)?;
            names::add_known(cx, dir, name, ino, node.mode(cx)?)?;
            names::count_in(cx, parent, 1, 0)?;
            if links == 0 {
                forget(cx, ino)?;
            }
            node.set(cx, ZplAttr::Links, &[one_more(ino, links)?])?;
            cx.books.linked(ino, 1);
            node.set(cx, ZplAttr::Parent, &[dir])?;
            node.touched(cx)?;
            node.store(cx)
        })
    }

    pub(super) fn replay_rename(&self, seq: u64, rename: &Rename<'_>) -> Result<()> {
        let Rename { how, from_dir, to_dir, from, to } = rename;
        let exchange = *how == Renames::Exchange;
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        let cost = Cost { write: 3 * CREATE, objects: 1, frees: false };
        let lost = self.replay_change(seq, cost, |cx| {
            let lost = self.rename_entry(cx, (*from_dir, from), (*to_dir, to), flags, NOBODY)?;
            let Renames::Whiteout(new) = how else { return Ok(lost) };
            check_kind(new, false)?;
            let parent = NodeMut::load(cx, *from_dir)?;
            let now = std::mem::replace(&mut cx.now, time(new));
            let none = Domains { names: &[], table_at: 0 };
            let owners = (cx.fuid(new.uid, &none)?, cx.fuid(new.gid, &none)?);
            let made = make(cx, &parent, new, owners, (None, false))?;
            cx.now = now;
            names::add_known(cx, *from_dir, from, made.ino, new.mode)?;
            names::count_in(cx, parent, 1, 0)?;
            Ok(lost)
        })?;
        if let Some(removed) = lost {
            self.let_go(removed, NOBODY);
        }
        Ok(())
    }
}

/// Owner and group of what a record creates. For a symbolic link they are `nobody` if they are of a domain, which
/// its record does not have.
fn owners(cx: &mut Cx<'_>, create: &Create<'_>, domains: &Domains<'_>) -> Result<(u64, u64)> {
    let NewObject { uid, gid, .. } = create.new;
    if create.what == Creates::Symlink {
        return Ok((local_id(uid).into(), local_id(gid).into()));
    }
    Ok((cx.fuid(uid, domains)?, cx.fuid(gid, domains)?))
}

/// Creates the directory of `of`'s extended attributes.
fn make_hidden(
    cx: &mut Cx<'_>,
    of: &NodeMut,
    new: &NewObject,
    (uid, gid): (u64, u64),
) -> Result<NodeMut> {
    let fresh = Fresh {
        list: None,
        mode: new.mode,
        uid,
        gid,
        parent: of.ino,
        links: 2,
        flags: FLAG_XATTR,
        projid: of.word(cx, ZplAttr::ProjId).unwrap_or(0),
        rdev: None,
        target: None,
    };
    create_node_at(cx, &fresh, &place(new))
}
