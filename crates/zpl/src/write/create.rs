//! New nodes (`zfs_create`, `zfs_mkdir`, `zfs_symlink`, `zfs_tmpfile`, `zfs_znode_alloc`, `zfs_mknode`).
//!
//! A node is an object whose bonus buffer, and spill block if need be, holds its attributes. They are added in
//! OpenZFS's order, so that both use the same layouts. A directory has a ZAP as its contents.
//!
//! What a node inherits comes from its directory (`zfs_acl_ids_create`): the group with the set-group-id bit, the
//! default ACL, the entries of its NFSv4 list that are handed down, the project, the mark of extended attributes. A create checks the name and the quotas, makes the
//! node, logs it (`zfs_log_create`), gives it its lists, and adds the entry last. A file without a name
//! (`O_TMPFILE`) goes into the unlinked set instead, and nothing of it survives a crash before it gets a name.
//!
//! A replay makes nodes with the number, the size of the dnode and the generation that they had ([`Place`]).

use super::context::Cx;
use super::cost::CREATE;
use super::handed_down::first_list;
use super::names::{self, check_new_name};
use super::new_node::{Fresh, create_node, log};
use super::node::NodeMut;
use super::{NewNode, NodeKind, acl};
use crate::attr::Attr;
use crate::bits::{FLAG_XATTR, S_IFBLK, S_IFCHR, S_IFDIR, S_IFLNK, S_IFREG};
use crate::fs::FileSystem;
use crate::sa::ZplAttr;
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_format::zil;
use cenote_format::{invariant, less};

const S_IFIFO: u64 = 0o010_000;
const S_IFSOCK: u64 = 0o140_000;
const S_ISGID: u64 = 0o2000;
/// `zp_flags`: new nodes in the directory get its project, and directories the flag.
const FLAG_PROJECT_INHERIT: u64 = super::flags::PROJECT_INHERIT;
/// Longest target of a symbolic link.
const MAX_TARGET: usize = 4095;

/// Objects of the lists of a new directory: a hidden directory with two files.
const HIDDEN: u64 = 3;

/// What can be said of a request before the transaction.
fn check(node: &NewNode) -> Result<()> {
    match &node.kind {
        NodeKind::Symlink(target) if target.len() > MAX_TARGET => {
            Err(Error::NameTooLong(format!("target of {} bytes", target.len())))
        }
        NodeKind::Symlink(target) if target.is_empty() || target.contains(&0) => {
            Err(Error::Invalid("target of a symbolic link".into()))
        }
        NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor)
            if *major >= 1 << 12 || *minor >= 1 << 20 =>
        {
            Err(Error::Invalid(format!("device {major}:{minor}")))
        }
        _ => Ok(()),
    }
}

/// The type of a node of this kind.
fn file_type(kind: &NodeKind) -> u64 {
    match kind {
        NodeKind::File => S_IFREG,
        NodeKind::Dir => S_IFDIR,
        NodeKind::Symlink(_) => S_IFLNK,
        NodeKind::Fifo => S_IFIFO,
        NodeKind::Socket => S_IFSOCK,
        NodeKind::CharDevice(..) => S_IFCHR,
        NodeKind::BlockDevice(..) => S_IFBLK,
    }
}

/// Lists that a node inherits: for new nodes below it, and its own.
pub(super) type Lists = [Option<acl::PosixAcl>; 2];

/// Creates a node that inherits from `dir` (`zfs_inherit_projid`). `links`: 0 for a file without a name. The lists are
/// not put to it yet ([`give`]).
pub(super) fn inherit(
    cx: &mut Cx<'_>,
    dir: &NodeMut,
    new: &NewNode,
    links: u64,
) -> Result<(NodeMut, Lists)> {
    let kind = file_type(&new.kind);
    let (rdev, target) = match &new.kind {
        NodeKind::Symlink(target) => (None, Some(target.as_slice())),
        NodeKind::CharDevice(major, minor) | NodeKind::BlockDevice(major, minor) => {
            (Some((*major, *minor)), None)
        }
        _ => (None, None),
    };
    let (dir_mode, dir_flags) = (dir.mode(cx)?, dir.flags(cx)?);
    let mut gid = u64::from(new.gid);
    let mut mode = u64::from(new.mode) & 0o7777;
    if dir_mode & S_ISGID != 0 {
        gid = dir.required(cx, ZplAttr::Gid)?;
    }
    if kind == S_IFDIR && dir_mode & S_ISGID != 0 {
        mode |= S_ISGID;
    } else if !new.keep_setgid {
        mode &= !S_ISGID;
    }
    let default = match kind {
        S_IFLNK => None,
        _ => super::xattr::default_acl(cx, dir)?,
    };
    let mut access = None;
    if kind == S_IFLNK {
        mode = 0o777;
    } else if let Some(default) = &default {
        let mut list = default.clone();
        mode = mode & !0o777 | list.inherit(mode & 0o777);
        access = Some(list).filter(acl::PosixAcl::says_more);
    } else {
        mode &= !u64::from(new.umask & 0o777);
    }
    let inherits = dir_flags & FLAG_PROJECT_INHERIT != 0;
    let projid = if inherits { dir.word(cx, ZplAttr::ProjId).unwrap_or(0) } else { 0 };
    let mut flags = 0;
    if inherits && matches!(kind, S_IFREG | S_IFDIR) {
        flags |= FLAG_PROJECT_INHERIT;
    }
    let list = first_list(cx, dir, kind | mode)?;
    let fresh = Fresh {
        list,
        mode: kind | mode,
        uid: new.uid.into(),
        gid,
        parent: dir.ino,
        links: match kind {
            S_IFDIR => less!(links, 1, "links of a directory that has a name") + 2,
            _ => links,
        },
        flags: flags | dir_flags & FLAG_XATTR,
        projid,
        rdev: rdev.map(|(major, minor)| u64::from(major) << 20 | u64::from(minor)),
        target,
    };
    super::quota::check(cx, fresh.uid, gid, projid, true)?;
    let node = create_node(cx, &fresh)?;
    Ok((node, [default.filter(|_| kind == S_IFDIR), access]))
}

/// Gives a node that was just made the lists that it inherits.
fn give(cx: &mut Cx<'_>, node: NodeMut, lists: Lists) -> Result<NodeMut> {
    if lists.iter().all(Option::is_none) {
        return Ok(node);
    }
    let lists = lists.into_iter().zip([crate::acl::NAMES[1], crate::acl::NAMES[0]]);
    super::xattr::endow(cx, node.ino, lists.filter_map(|(list, name)| Some((name, list?.encode()))))
}

impl FileSystem {
    /// A new node has the number of none that is freed once its use ends: it would go with that.
    pub(super) fn check_new(&self, ino: u64) {
        let orphan = self.orphans().get(&ino).copied();
        invariant!(orphan.is_none(), "object {ino} is made, and an orphan has that number");
    }

    /// What a new node costs, at most.
    fn new_node(&self) -> Cost {
        let settings = self.settings();
        // Lists that are handed down are files of their own, where they are not system attributes.
        let listed = settings.visibility.posix_acl && !settings.xattr_sa;
        Cost { write: CREATE, objects: if listed { 1 + HIDDEN } else { 1 }, frees: false }
    }

    /// Creates a node called `name` in directory `dir`.
    ///
    /// Errors: [`Error::Exists`], [`Error::NameTooLong`], [`Error::IllegalName`],
    /// [`Error::NotPermitted`] by the directory's flags, and errors of every change: no space, quota,
    /// read-only.
    pub fn create(&self, dir: u64, name: &[u8], node: &NewNode) -> Result<Attr> {
        check(node)?;
        let long = match &node.kind {
            NodeKind::Symlink(target) => target.len() as u64,
            _ => 0,
        };
        let cost = Cost { write: CREATE + long, ..self.new_node() };
        self.change(cost, |cx| {
            check_new_name(cx, name)?;
            let parent = names::writable_dir(cx, dir)?;
            if names::find(cx, dir, name, false)?.is_some() {
                return Err(Error::Exists(crate::error::show(name)));
            }
            let (made, lists) = inherit(cx, &parent, node, 1)?;
            self.check_new(made.ino);
            let what: (_, &[u8]) = match &node.kind {
                NodeKind::Dir => (zil::Creates::Directory, &[]),
                NodeKind::Symlink(target) => (zil::Creates::Symlink, target),
                _ => (zil::Creates::File, &[]),
            };
            log(cx, dir, name, what, &made)?;
            let made = give(cx, made, lists)?;
            let is_dir = node.kind == NodeKind::Dir;
            names::add_known(cx, dir, name, made.ino, file_type(&node.kind))?;
            names::count_in(cx, parent, 1, i64::from(is_dir))?;
            made.attr(cx)
        })
    }

    /// Creates a regular file without a name (`O_TMPFILE`) that inherits from `dir`. It is in the
    /// unlinked set until [`FileSystem::link`] gives it a name.
    pub fn tmpfile(&self, dir: u64, node: &NewNode) -> Result<Attr> {
        if node.kind != NodeKind::File {
            return Err(Error::Invalid("only regular files can be without a name".into()));
        }
        self.change(self.new_node(), |cx| {
            let parent = names::writable_dir(cx, dir)?;
            let (made, lists) = inherit(cx, &parent, node, 0)?;
            self.check_new(made.ino);
            // As long as it has no name nothing of it survives a crash.
            cx.os.log_created(made.ino);
            let made = give(cx, made, lists)?;
            super::rmnode::remember(cx, made.ino)?;
            cx.after.orphans.push((made.ino, Some(true)));
            made.attr(cx)
        })
    }
}
