//! Extended attributes that are set (`zpl_xattr_set_sa`, `zpl_xattr_set_dir`).
//!
//! With `xattr=sa` they go into the system attribute, as long as there is room: a value of at most
//! 32 KiB, all together 64 KiB. All others are files in the hidden directory, which is made when it
//! is needed first and then stays. A name is in one of the two places only.
//!
//! Each place where something is changed says so to the intent log (`zfs_log_setsaxattr`; for a file of the
//! hidden directory what is said of every file). So the caller of one of these functions says the rest of
//! the change, if there is more.
//!
//! An access list (POSIX ACL) that says no more than the permission bits is not stored; in any case
//! the permission bits follow it.

use super::acl::PosixAcl;
use super::books::Leads;
use super::context::Cx;
use super::cost::CREATE;
use super::flags::{APPEND_ONLY, IMMUTABLE};
use super::mode::set_with_list;
use super::new_node::{Fresh, create_node};
use super::node::NodeMut;
use super::{SetXattr, data, names};
use crate::acl::NAMES;
use crate::bits::{FLAG_XATTR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::error::show;
use crate::fs::FileSystem;
use crate::nfs4;
use crate::sa::ZplAttr;
use crate::xattr::{RESERVED, USER};
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dsl::tunables::XATTR_COMPAT;
use cenote_format::blkptr::BlockPointer;
use cenote_format::encode::sa::encode_xattrs;
use cenote_format::sa::decode_xattrs;
use cenote_format::zil::{Body, Creates, Write};

/// `DXATTR_MAX_ENTRY_SIZE`: largest value among the system attributes.
const MAX_PACKED_VALUE: usize = 32 << 10;
/// `DXATTR_MAX_SA_SIZE`: when all are larger nothing is added.
const MAX_PACKED: usize = 64 << 10;
/// Largest value (`XATTR_SIZE_MAX` of Linux).
const MAX_VALUE: usize = 64 << 10;
/// Longest name (`XATTR_NAME_MAX`).
const MAX_NAME: usize = 255;
const S_ISGID: u64 = 0o2000;

/// Names and values.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn packed(cx: &Cx<'_>, node: &NodeMut) -> Result<Pairs> {
    let Some(value) = node.bytes(cx, ZplAttr::Dxattr) else { return Ok(Vec::new()) };
    let pairs = decode_xattrs(value).map_err(Error::decode(node.ino))?;
    Ok(pairs.into_iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect())
}

fn hidden_dir(cx: &Cx<'_>, node: &NodeMut) -> Option<u64> {
    node.word(cx, ZplAttr::Xattr).filter(|dir| *dir != 0)
}

/// Where an attribute is.
#[derive(Clone, Copy, Default)]
struct Where {
    packed: bool,
    /// The file in the hidden directory.
    file: Option<u64>,
}

fn locate(cx: &mut Cx<'_>, node: &NodeMut, name: &[u8]) -> Result<Where> {
    let packed = packed(cx, node)?.iter().any(|(n, _)| n == name);
    let file = match hidden_dir(cx, node) {
        Some(dir) => names::find(cx, dir, name, false)?.map(|e| e.ino),
        None => None,
    };
    Ok(Where { packed, file })
}

/// The value of an attribute.
fn value(cx: &mut Cx<'_>, node: &NodeMut, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if let Some((_, value)) = packed(cx, node)?.into_iter().find(|(n, _)| n == name) {
        return Ok(Some(value));
    }
    let Some(file) = locate(cx, node, name)?.file else { return Ok(None) };
    let file = NodeMut::load(cx, file)?;
    let size = file.required(cx, ZplAttr::Size)?;
    if size > MAX_VALUE as u64 {
        return Err(Error::Unsupported(format!("an extended attribute of {size} bytes")));
    }
    let mut value = vec![0; size as usize];
    cx.os.read(file.ino, 0, &mut value)?;
    Ok(Some(value))
}

/// The default list that a directory hands down, if POSIX lists are on.
pub(super) fn default_acl(cx: &mut Cx<'_>, dir: &NodeMut) -> Result<Option<PosixAcl>> {
    if !cx.settings.visibility.posix_acl || dir.flags(cx)? & FLAG_XATTR != 0 {
        return Ok(None);
    }
    let value = value(cx, dir, NAMES[1])?;
    value.map_or(Ok(None), |v| PosixAcl::decode(&v))
}

/// The access list of a node that says more than its mode, if POSIX lists are on.
pub(super) fn access_acl(cx: &mut Cx<'_>, node: &NodeMut) -> Result<Option<PosixAcl>> {
    if !cx.settings.visibility.posix_acl || node.mode(cx)? & S_IFMT == S_IFLNK {
        return Ok(None);
    }
    let value = value(cx, node, NAMES[0])?;
    value.map_or(Ok(None), |v| PosixAcl::decode(&v))
}

/// Changes the packed attributes; false if there is no room.
pub(super) fn pack(
    cx: &mut Cx<'_>,
    node: &mut NodeMut,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<bool> {
    let mut pairs = packed(cx, node)?;
    let before = node.bytes(cx, ZplAttr::Dxattr).map_or(0, <[u8]>::len);
    if value.is_some_and(|v| v.len() > MAX_PACKED_VALUE || before > MAX_PACKED) {
        return Ok(false);
    }
    let old = node.bytes(cx, ZplAttr::Dxattr).map(<[u8]>::to_vec);
    pairs.retain(|(n, _)| n != name);
    pairs.extend(value.map(|v| (name.to_vec(), v.to_vec())));
    let refs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(n, v)| (&n[..], &v[..])).collect();
    let Ok(bytes) = encode_xattrs(&refs) else { return Ok(false) };
    node.set_bytes(cx, ZplAttr::Dxattr, &bytes)?;
    match node.fits(cx) {
        Ok(()) => {
            match value {
                // The record says by an empty value that the attribute is gone.
                Some([]) => cx.os.log_cannot(),
                _ => {
                    let value = value.unwrap_or_default();
                    cx.os.log(Body::SetSaXattr { object: node.ino, name, value })?;
                }
            }
            Ok(true)
        }
        Err(Error::TooLarge(_)) if value.is_some() => {
            match old {
                Some(old) => node.set_bytes(cx, ZplAttr::Dxattr, &old)?,
                None => node.remove(cx, ZplAttr::Dxattr),
            }
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// Whether the node has no name (`zfs_xattr_owner_unlinked`). It does not survive a crash, so nothing is logged of
/// its hidden directory: replay frees the node at the record that takes its last name.
fn is_nameless(cx: &Cx<'_>, node: &NodeMut) -> Result<bool> {
    Ok(node.required(cx, ZplAttr::Links)? == 0)
}

/// Logs that `made` was created in the hidden directory of `of`, or is that directory.
fn log_made(
    cx: &mut Cx<'_>,
    of: &NodeMut,
    (dir, name): (u64, &[u8]),
    what: Creates,
    made: &NodeMut,
) -> Result<()> {
    if is_nameless(cx, of)? {
        cx.os.log_created(made.ino);
        return Ok(());
    }
    super::new_node::log(cx, dir, name, (what, &[]), made)
}

/// The hidden directory, which is made if it is missing (`zfs_make_xattrdir`, `zfs_get_xattrdir`).
fn make_hidden_dir(cx: &mut Cx<'_>, node: &mut NodeMut) -> Result<u64> {
    if let Some(dir) = hidden_dir(cx, node) {
        return Ok(dir);
    }
    let made = create_hidden(cx, node, node.ino, S_IFDIR | 0o1777, 2)?;
    log_made(cx, node, (node.ino, b""), Creates::XattrDirectory, &made)?;
    let dir = made.ino;
    node.set(cx, ZplAttr::Xattr, &[dir])?;
    cx.books.noted(dir);
    Ok(dir)
}

fn create_hidden(
    cx: &mut Cx<'_>,
    of: &NodeMut,
    parent: u64,
    mode: u64,
    links: u64,
) -> Result<NodeMut> {
    let fresh = Fresh {
        list: None,
        mode,
        uid: of.required(cx, ZplAttr::Uid)?,
        gid: of.required(cx, ZplAttr::Gid)?,
        parent,
        links,
        flags: FLAG_XATTR,
        projid: of.word(cx, ZplAttr::ProjId).unwrap_or(0),
        rdev: None,
        target: None,
    };
    create_node(cx, &fresh)
}

/// Writes an attribute as a file of the hidden directory.
fn put_file(cx: &mut Cx<'_>, node: &mut NodeMut, name: &[u8], value: &[u8]) -> Result<()> {
    let dir = make_hidden_dir(cx, node)?;
    let ino = match names::find(cx, dir, name, false)? {
        Some(entry) => entry.ino,
        None => {
            let made = create_hidden(cx, node, dir, S_IFREG | 0o644, 1)?;
            log_made(cx, node, (dir, name), Creates::File, &made)?;
            names::add(cx, dir, name, made.ino)?;
            names::count(cx, dir, 1, 0)?;
            made.ino
        }
    };
    let mut file = NodeMut::load(cx, ino)?;
    data::resize(cx, &mut file, 0)?;
    data::put(cx, ino, 0, 0, value)?;
    if is_nameless(cx, node)? {
        cx.os.log_nothing();
    } else {
        cx.os.log(Body::Truncate { object: ino, offset: 0, length: 0 })?;
        if !value.is_empty() {
            // The value as it is now: a part of the next one would be neither.
            let (object, offset, length) = (ino, 0, value.len() as u64);
            let (block_offset, block, data) = (0, BlockPointer::HOLE, Some(value));
            let write = Write { object, offset, length, block_offset, block, data };
            cx.os.log(Body::Write(write))?;
        }
        cx.os.log_with_names(ino);
    }
    file.set(cx, ZplAttr::Size, &[value.len() as u64])?;
    file.modified(cx)?;
    file.store(cx)
}

fn remove_file(cx: &mut Cx<'_>, node: &NodeMut, name: &[u8]) -> Result<()> {
    let Some(dir) = hidden_dir(cx, node) else { return Ok(()) };
    let Some(entry) = names::find(cx, dir, name, false)? else { return Ok(()) };
    names::remove(cx, dir, &entry.name, Leads { ino: entry.ino, is_dir: false })?;
    names::count(cx, dir, -1, 0)?;
    if is_nameless(cx, node)? {
        cx.os.log_nothing();
    } else {
        cx.os.log(Body::Remove { dir, name: &entry.name })?;
    }
    cx.os.free(entry.ino)?;
    cx.books.freed(entry.ino);
    Ok(())
}

/// Puts an attribute (of its stored name) where it belongs, or takes it away.
fn put(cx: &mut Cx<'_>, node: &mut NodeMut, name: &[u8], value: Option<&[u8]>) -> Result<()> {
    let at = locate(cx, node, name)?;
    let Some(value) = value else {
        if at.packed {
            pack(cx, node, name, None)?;
        }
        return if at.file.is_some() { remove_file(cx, node, name) } else { Ok(()) };
    };
    if cx.settings.xattr_sa && pack(cx, node, name, Some(value))? {
        return if at.file.is_some() { remove_file(cx, node, name) } else { Ok(()) };
    }
    put_file(cx, node, name, value)?;
    if at.packed {
        pack(cx, node, name, None)?;
    }
    Ok(())
}

/// As [`put`], for a node that is not being changed otherwise.
pub(super) fn store(cx: &mut Cx<'_>, ino: u64, name: &[u8], value: Option<&[u8]>) -> Result<()> {
    let mut node = NodeMut::load(cx, ino)?;
    put(cx, &mut node, name, value)?;
    node.store(cx)
}

/// Gives a node that was just made attributes. If that fails, there is no such node any more.
pub(super) fn endow(
    cx: &mut Cx<'_>,
    ino: u64,
    attributes: impl Iterator<Item = (&'static [u8], Vec<u8>)>,
) -> Result<NodeMut> {
    let mut node = NodeMut::load(cx, ino)?;
    for (name, value) in attributes {
        put(cx, &mut node, name, Some(&value))?;
    }
    node.store(cx)?;
    NodeMut::load(cx, ino)
}

/// The node whose attributes may be changed.
fn writable(cx: &mut Cx<'_>, ino: u64) -> Result<NodeMut> {
    let node = NodeMut::load(cx, ino)?;
    if node.flags(cx)? & (IMMUTABLE | APPEND_ONLY) != 0 {
        return Err(Error::NotPermitted(format!("flags of object {ino}")));
    }
    Ok(node)
}

/// Sets or removes a POSIX list; the mode follows (`zpl_set_acl`).
fn set_acl(
    cx: &mut Cx<'_>,
    node: &mut NodeMut,
    name: &[u8],
    value: Option<&[u8]>,
    how: SetXattr,
) -> Result<()> {
    let mode = node.mode(cx)?;
    let list = value.map_or(Ok(None), PosixAcl::decode)?;
    if mode & S_IFMT == S_IFLNK {
        return Err(Error::Unsupported("lists of symbolic links".into()));
    }
    if name == NAMES[1] {
        if mode & S_IFMT != S_IFDIR {
            return match list {
                Some(_) => Err(Error::Denied("a default list of what is no directory".into())),
                None => Ok(()),
            };
        }
        return put(cx, node, name, list.map(|l| l.encode()).as_deref());
    }
    if let Some(list) = &list {
        let mut new = mode & !0o777 | list.mode();
        if how.clear_setgid {
            new &= !S_ISGID;
        }
        if new != mode {
            // No `chmod`: what another system left of an NFSv4 list goes, whatever `aclmode` says.
            set_with_list(cx, node, new)?;
            super::mode::log_mode(cx, node.ino, new)?;
        }
    }
    put(cx, node, name, list.filter(PosixAcl::says_more).map(|l| l.encode()).as_deref())
}

/// Sets or removes an attribute of one of the namespaces.
fn change(
    cx: &mut Cx<'_>,
    ino: u64,
    name: &[u8],
    value: Option<&[u8]>,
    how: SetXattr,
) -> Result<()> {
    let mut node = writable(cx, ino)?;
    // Other systems store the names of users without the namespace. Under the other one of the two it goes.
    let (name, other) = match name.strip_prefix(USER) {
        Some(bare) if XATTR_COMPAT.is_on() => (bare, Some(name)),
        Some(bare) => (name, Some(bare)),
        None => (name, None),
    };
    let there = |cx: &mut Cx<'_>, name| -> Result<bool> {
        let at = locate(cx, &node, name)?;
        Ok(at.packed || at.file.is_some())
    };
    let other_exists = other.map_or(Ok(false), |other| there(cx, other))?;
    let exists = there(cx, name)? || other_exists;
    let is_acl = NAMES.contains(&name);
    if how.create && exists {
        return Err(Error::Exists(show(name)));
    }
    // Removing a list that is not there is fine.
    if !exists && (how.replace || value.is_none() && !is_acl) {
        return Err(Error::NoAttribute(show(name)));
    }
    if let Some(other) = other.filter(|_| other_exists) {
        put(cx, &mut node, other, None)?;
    }
    if is_acl {
        set_acl(cx, &mut node, name, value, how)?;
    } else {
        put(cx, &mut node, name, value)?;
    }
    // Removing a list that is not there changes nothing that would have to survive.
    cx.os.log_nothing();
    node.touched(cx)?;
    node.store(cx)
}

impl FileSystem {
    fn check_xattr_name(&self, name: &[u8]) -> Result<()> {
        let visible = self.visibility();
        if name.len() > MAX_NAME {
            return Err(Error::Invalid(show(name)));
        }
        if let Some(bare) = name.strip_prefix(USER) {
            if !visible.xattr {
                return Err(Error::Unsupported("extended attributes are off".into()));
            }
            if bare.is_empty() || RESERVED.iter().any(|p| bare.starts_with(p)) {
                return Err(Error::Invalid(show(name)));
            }
            return Ok(());
        }
        if NAMES.contains(&name) {
            return match visible.posix_acl {
                true => Ok(()),
                false => Err(Error::Unsupported("POSIX ACLs are off".into())),
            };
        }
        if name == nfs4::NAME {
            return match visible.nfs4_acl {
                true => Ok(()),
                false => Err(Error::Unsupported("NFSv4 ACLs are off".into())),
            };
        }
        let prefixes: [&[u8]; 2] = [b"trusted.", b"security."];
        match prefixes.iter().find_map(|p| name.strip_prefix(*p)) {
            Some(b"") => Err(Error::Invalid(show(name))),
            Some(_) => Ok(()),
            None => Err(Error::Unsupported(show(name))),
        }
    }

    /// Sets an extended attribute; POSIX ACLs change the permission bits (`zpl_xattr_set`).
    ///
    /// Errors: [`Error::Exists`] and [`Error::NoAttribute`] by `how`; [`Error::Unsupported`] for a
    /// namespace that is off; [`Error::Invalid`] for a name or list that makes no sense;
    /// [`Error::TooLarge`] for more than 64 KiB; [`Error::NotPermitted`] by the file's flags.
    pub fn set_xattr(&self, ino: u64, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.check_xattr_name(name)?;
        if value.len() > MAX_VALUE {
            return Err(Error::TooLarge(show(name)));
        }
        if name == nfs4::NAME {
            // Every file has a list.
            return match how.create {
                true => Err(Error::Exists(show(name))),
                false => self.set_nfs4_xattr(ino, Some(value)),
            };
        }
        let write = CREATE + 2 * value.len() as u64;
        let cost = Cost { write, objects: 2, frees: false };
        self.change(cost, |cx| change(cx, ino, name, Some(value), how))
    }

    /// Removes an extended attribute. Errors: [`Error::NoAttribute`] if it does not exist; errors of
    /// [`FileSystem::set_xattr`].
    pub fn remove_xattr(&self, ino: u64, name: &[u8]) -> Result<()> {
        self.check_xattr_name(name)?;
        if name == nfs4::NAME {
            return self.set_nfs4_xattr(ino, None);
        }
        let cost = Cost { write: CREATE, objects: 0, frees: true };
        self.change(cost, |cx| change(cx, ino, name, None, SetXattr::default()))
    }
}
