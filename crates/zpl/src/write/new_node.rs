//! Nodes that are made (`zfs_mknode`): the object with its first attributes, and its record in the intent log. Names,
//! lists and owners are up to the caller ([`create`](super::create)).

use super::context::Cx;
use super::handed_down::First;
use super::node::{MODIFIED, NodeMut};
use super::{acl, legacy};
use crate::Result;
use crate::bits::{FLAG_PROJID, S_IFDIR};
use crate::sa::ZplAttr;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, ZapMut};
use cenote_format::SECTOR;
use cenote_format::dmu::DmuType;
use cenote_format::zil;

/// The attributes that a new node is given.
pub(super) struct Fresh<'a> {
    /// `st_mode`; a list that the node takes over may change the permissions.
    pub(super) mode: u64,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// The directory it is in; 0 for itself.
    pub(super) parent: u64,
    pub(super) links: u64,
    /// More flags than those that all nodes have.
    pub(super) flags: u64,
    pub(super) projid: u64,
    pub(super) rdev: Option<u64>,
    pub(super) target: Option<&'a [u8]>,
    /// The list that it takes over; `None`: that of its mode.
    pub(super) list: Option<First>,
}

/// What a node gets that is made again from a log.
pub(super) struct Place {
    /// Its number.
    pub(super) object: u64,
    /// Bytes of its dnode.
    pub(super) dnode_size: usize,
    /// The transaction group in which it was made first.
    pub(super) generation: u64,
}

/// Creates a node; it is in no directory yet.
pub(super) fn create_node(cx: &mut Cx<'_>, fresh: &Fresh<'_>) -> Result<NodeMut> {
    create(cx, fresh, None)
}

/// As [`create_node`], with a number and a generation that it had before.
pub(super) fn create_node_at(cx: &mut Cx<'_>, fresh: &Fresh<'_>, at: &Place) -> Result<NodeMut> {
    create(cx, fresh, Some(at))
}

fn create(cx: &mut Cx<'_>, fresh: &Fresh<'_>, at: Option<&Place>) -> Result<NodeMut> {
    let mut node = describe(cx, fresh, at.map_or(cx.txg, |at| at.generation))?;
    let dnode_size = at.map_or(cx.settings.dnode_size, |at| at.dnode_size);
    let old = cx.has_old_nodes();
    let (bonus_kind, bonus, spill) = match old {
        true => (DmuType::ZNODE, legacy::new_bonus(cx, &node, fresh.target)?, None),
        false => {
            let (bonus, spill) = node.buffers(cx, dnode_size)?;
            (DmuType::SA, bonus, spill)
        }
    };
    node.old = old.then(|| bonus.clone());
    // Where a target has no room in an old node it is its data, in one block.
    let outside = fresh.target.filter(|target| old && !legacy::has_room(target));
    let block = outside.map_or(SECTOR, |target| (target.len() as u64).next_multiple_of(SECTOR));
    let is_dir = fresh.mode & crate::bits::S_IFMT == S_IFDIR;
    let new = NewObject {
        bonus_kind,
        bonus,
        dnode_size,
        ..NewObject::new(
            if is_dir { DmuType::DIRECTORY_CONTENTS } else { DmuType::PLAIN_FILE_CONTENTS },
            block,
        )
    };
    let ino = match at {
        None => cx.os.allocate(&new)?,
        Some(at) => {
            cx.os.claim(at.object, &new)?;
            at.object
        }
    };
    match fresh.links {
        0 => cx.books.nameless(ino),
        _ => cx.books.linked(ino, 1),
    }
    if spill.is_some() {
        cx.os.set_spill(ino, spill)?;
    }
    if let Some(target) = outside {
        cx.os.write(ino, 0, target)?;
    }
    if is_dir {
        let (salt, norm_flags) = (cx.salt(ino), cx.names.flags);
        ZapMut::format(cx.os, ino, ZapFormat { salt, norm_flags, ..ZapFormat::default() })?;
    }
    if fresh.parent == 0 {
        let mut node = NodeMut::load(cx, ino)?;
        node.set(cx, ZplAttr::Parent, &[ino])?;
        node.store(cx)?;
    }
    node.ino = ino;
    Ok(node)
}

/// The attributes in the order in which OpenZFS has them (`sa_replace_all_by_template`).
fn describe(cx: &mut Cx<'_>, fresh: &Fresh<'_>, generation: u64) -> Result<NodeMut> {
    let is_dir = fresh.mode & crate::bits::S_IFMT == S_IFDIR;
    let project = cx.settings.project_quota;
    let (mode, mut flags) = match &fresh.list {
        Some(First { list, flags }) => {
            let flags = MODIFIED | fresh.flags | flags;
            list.comes_to(fresh.mode, flags, (fresh.uid, fresh.gid))
        }
        None => {
            let auto = if is_dir { acl::FLAG_AUTO_INHERIT } else { 0 };
            (fresh.mode, acl::flags_for(MODIFIED | fresh.flags, fresh.mode) | auto)
        }
    };
    if project {
        flags |= FLAG_PROJID;
    }
    let size = if is_dir { 2 } else { fresh.target.map_or(0, <[u8]>::len) as u64 };
    let time = [cx.now.0 as u64, u64::from(cx.now.1)];
    let mut node = NodeMut::with_room(0);
    for (attr, value) in [
        (ZplAttr::Mode, mode),
        (ZplAttr::Size, size),
        (ZplAttr::Gen, generation),
        (ZplAttr::Uid, fresh.uid),
        (ZplAttr::Gid, fresh.gid),
        (ZplAttr::Parent, fresh.parent),
        (ZplAttr::Flags, flags),
    ] {
        node.add(cx, attr, [value])?;
    }
    for attr in [ZplAttr::Atime, ZplAttr::Mtime, ZplAttr::Ctime, ZplAttr::Crtime] {
        node.add(cx, attr, time)?;
    }
    node.add(cx, ZplAttr::Links, [fresh.links])?;
    if project {
        node.add(cx, ZplAttr::ProjId, [fresh.projid])?;
    }
    if let Some(rdev) = fresh.rdev {
        node.add(cx, ZplAttr::Rdev, [rdev])?;
    }
    let (count, aces) = match &fresh.list {
        Some(First { list, .. }) => (list.entries.len() as u64, list.stored()),
        None => acl::trivial(mode),
    };
    node.add(cx, ZplAttr::DaclCount, [count])?;
    node.add_bytes(cx, ZplAttr::DaclAces, &aces)?;
    if let Some(target) = fresh.target {
        node.add_bytes(cx, ZplAttr::Symlink, target)?;
    }
    Ok(node)
}

/// What a record says of a node that was just made.
pub(super) fn logged(cx: &mut Cx<'_>, made: &NodeMut) -> Result<zil::NewObject> {
    let slots = cx.os.dnode(made.ino)?.slots();
    Ok(zil::NewObject {
        object: made.ino,
        slots,
        mode: made.mode(cx)?,
        uid: made.required(cx, ZplAttr::Uid)?,
        gid: made.required(cx, ZplAttr::Gid)?,
        generation: made.required(cx, ZplAttr::Gen)?,
        crtime: [cx.now.0 as u64, u64::from(cx.now.1)],
        rdev: made.word(cx, ZplAttr::Rdev).unwrap_or(0),
    })
}

/// Logs that `made` was created (`zfs_log_create`). The record of a symbolic link has no domains.
pub(super) fn log(
    cx: &mut Cx<'_>,
    dir: u64,
    name: &[u8],
    (what, target): (zil::Creates, &[u8]),
    made: &NodeMut,
) -> Result<()> {
    let mut new = logged(cx, made)?;
    let names = cx.logged_domains(&mut new)?;
    let may_have = |names: &Vec<String>| what != zil::Creates::Symlink || names.is_empty();
    let Some(names) = names.filter(may_have) else {
        cx.os.log_cannot();
        return Ok(());
    };
    let domains = names.iter().map(String::as_bytes).collect();
    let (attrs, acl) = (None, None);
    let record = zil::Create { what, dir, new, attrs, acl, domains, name, target };
    Ok(cx.os.log(zil::Body::Create(record))?)
}
