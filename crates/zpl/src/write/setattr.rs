//! Attributes that are set (`zfs_setattr`).
//!
//! The kind of the node, its flags and the quotas of new owners are checked first. Then come, in this order, the
//! size, the mode with what becomes of the ACL (`zfs_acl_chmod_setattr`), owner, group and project, the flags,
//! and the times. The directory of extended attributes and its files get the owner and the project too
//! (`zfs_setattr_dir`). The change is logged last (`zfs_log_setattr`).
//!
//! A long file that gets short is cut in changes of a chunk each before that; the last chunk goes with the other
//! attributes.
//!
//! A replay applies what was allowed when it was logged, without checks. Reading notes an access time here as well
//! (`zfs_relatime_need_update`); that is not logged, since it need not survive a crash.

use super::context::Cx;
use super::flags::{APPEND_ONLY, IMMUTABLE, PROJECT_INHERIT, SETTABLE};
use super::handed_down::refuses_mode;
use super::mode::{CONTENTS, OWNER, set_ids, set_mode, without_ids};
use super::nfs4::follow_owner;
use super::nfs4_xattr::log_kept;
use super::node::NodeMut;
use super::{Atime, SetAttr, SetTime, data};
use crate::attr::Attr;
use crate::bits::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::fs::{FUIDS, FileSystem};
use crate::sa::ZplAttr;
use crate::znode::Znode;
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::outside::Time;
use cenote_dmu::zap::Zap;

const DAY: i64 = 24 * 60 * 60;

/// What the flags of the node forbid.
fn check_flags(cx: &Cx<'_>, node: &NodeMut, set: &SetAttr) -> Result<()> {
    let flags = node.flags(cx)?;
    let now = [set.atime, set.mtime].into_iter().flatten().any(|t| t == SetTime::Now);
    let to = [set.atime, set.mtime].into_iter().flatten().any(|t| t != SetTime::Now);
    let owner = set.mode.is_some() || set.uid.is_some() || set.gid.is_some();
    let strict = owner || set.size.is_some() || set.projid.is_some() || to;
    let forbidden = match flags & (IMMUTABLE | APPEND_ONLY) {
        0 => false,
        APPEND_ONLY => strict,
        _ => strict || now,
    };
    if forbidden {
        return Err(Error::NotPermitted(format!("flags of object {}", node.ino)));
    }
    Ok(())
}

/// What the kind of the node forbids.
fn check_kind(cx: &Cx<'_>, node: &NodeMut, set: &SetAttr) -> Result<()> {
    let kind = node.mode(cx)? & S_IFMT;
    let is_file_or_dir = matches!(kind, S_IFREG | S_IFDIR);
    match kind {
        S_IFDIR if set.size.is_some() => {
            return Err(Error::IsDir(format!("object {}", node.ino)));
        }
        S_IFREG => {}
        _ if set.size.is_some() => {
            return Err(Error::Invalid(format!("length of object {}", node.ino)));
        }
        S_IFLNK if set.mode.is_some() => {
            return Err(Error::Unsupported("permissions of a symbolic link".into()));
        }
        _ => {}
    }
    if set.flags.is_some() && cx.version < FUIDS {
        return Err(Error::Invalid(format!("flags in a file system of version {}", cx.version)));
    }
    let project = set.projid.is_some() || set.flags.is_some_and(|f| f & PROJECT_INHERIT != 0);
    if project && (!cx.settings.project_quota || !is_file_or_dir) {
        return Err(Error::Unsupported("projects".into()));
    }
    if set.projid == Some(u32::MAX) || set.flags.is_some_and(|f| f & !SETTABLE != 0) {
        return Err(Error::Invalid("project or flags".into()));
    }
    if set.size.is_some_and(|size| size > i64::MAX as u64) {
        return Err(Error::TooLarge(format!("object {}", node.ino)));
    }
    Ok(())
}

/// What the list of the node forbids (`aclmode=restricted`).
fn check_list(cx: &Cx<'_>, node: &NodeMut, set: &SetAttr) -> Result<()> {
    match set.mode.is_some() && refuses_mode(cx, node)? {
        true => Err(Error::NotPermitted(format!("the mode of object {}, by its ACL", node.ino))),
        false => Ok(()),
    }
}

/// Owner and group that are set, as they are stored.
#[derive(Clone, Copy)]
pub(super) struct Owners {
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
}

impl Owners {
    fn of(set: &SetAttr) -> Owners {
        Owners { uid: set.uid.map(u64::from), gid: set.gid.map(u64::from) }
    }
}

/// Sets owner, group and project of a hidden directory and its files.
fn set_owner_of_xattrs(
    cx: &mut Cx<'_>,
    dir: u64,
    owners: Owners,
    projid: Option<u32>,
) -> Result<()> {
    let entries = Zap::open(&cx.os.view(dir)?)?.entries()?;
    let files = entries.iter().filter_map(|e| e.value.first());
    let files: Vec<u64> = files.map(|v| crate::dir::entry_object(*v)).collect();
    for ino in files.into_iter().chain([dir]) {
        let mut node = NodeMut::load(cx, ino)?;
        set_owner(cx, &mut node, owners, projid)?;
        node.store(cx)?;
    }
    Ok(())
}

fn set_owner(
    cx: &mut Cx<'_>,
    node: &mut NodeMut,
    owners: Owners,
    projid: Option<u32>,
) -> Result<()> {
    if let Some(uid) = owners.uid {
        node.set(cx, ZplAttr::Uid, &[uid])?;
    }
    if let Some(gid) = owners.gid {
        node.set(cx, ZplAttr::Gid, &[gid])?;
    }
    match projid {
        Some(projid) => node.set_project(cx, projid.into()),
        None => Ok(()),
    }
}

impl Cx<'_> {
    fn time(&self, set: SetTime) -> Time {
        match set {
            SetTime::Now => self.now,
            SetTime::To(time) => time,
        }
    }
}

/// Fails if a new owner has no room for one more object.
fn check_quota(cx: &mut Cx<'_>, node: &NodeMut, set: &SetAttr) -> Result<()> {
    let changed = |attr, new: Option<u32>| {
        let new = new.map(u64::from);
        new.filter(|_| node.word(cx, attr) != new)
    };
    let uid = changed(ZplAttr::Uid, set.uid);
    let gid = changed(ZplAttr::Gid, set.gid);
    let projid = changed(ZplAttr::ProjId, set.projid);
    super::quota::check_new(cx, uid, gid, projid)
}

/// Applies all of `set`. Also the mode of before.
fn apply(cx: &mut Cx<'_>, ino: u64, set: &SetAttr) -> Result<(u64, Attr)> {
    let node = NodeMut::load(cx, ino)?;
    check_kind(cx, &node, set)?;
    check_flags(cx, &node, set)?;
    check_list(cx, &node, set)?;
    check_quota(cx, &node, set)?;
    let old = node.mode(cx)?;
    Ok((old, apply_to(cx, node, set, Owners::of(set))?))
}

/// As [`apply`], what was allowed when it was logged; owner and group are those beside `set`.
pub(super) fn apply_unchecked(
    cx: &mut Cx<'_>,
    ino: u64,
    set: &SetAttr,
    owners: Owners,
) -> Result<Attr> {
    let node = NodeMut::load(cx, ino)?;
    apply_to(cx, node, set, owners)
}

fn apply_to(cx: &mut Cx<'_>, mut node: NodeMut, set: &SetAttr, owners: Owners) -> Result<Attr> {
    let ino = node.ino;
    let hidden = node.word(cx, ZplAttr::Xattr).filter(|dir| *dir != 0);
    if let Some(size) = set.size {
        data::resize(cx, &mut node, size)?;
    }
    let old = node.mode(cx)?;
    let mut mode = set.mode.map_or(old, |m| old & S_IFMT | u64::from(m) & 0o7777);
    if set.clear_ids && set.mode.is_none() {
        let run = match (set.clear_setgid, set.size) {
            (true, _) => u64::MAX,
            (false, Some(_)) => CONTENTS,
            (false, None) => OWNER,
        };
        mode = without_ids(mode, run);
    }
    let mut access = None;
    if set.mode.is_some() {
        mode = set_mode(cx, &mut node, mode)?;
        access = super::xattr::access_acl(cx, &node)?;
    } else if mode != old {
        set_ids(cx, &mut node, mode)?;
    }
    set_owner(cx, &mut node, owners, set.projid)?;
    if owners.uid.is_some() || owners.gid.is_some() {
        follow_owner(cx, &mut node)?;
    }
    if let Some(flags) = set.flags {
        let flags = node.flags(cx)? & !SETTABLE | flags;
        node.set(cx, ZplAttr::Flags, &[flags])?;
    }
    if set.size.is_some() {
        node.set_time(cx, ZplAttr::Mtime, cx.now)?;
    }
    for (attr, time) in [(ZplAttr::Atime, set.atime), (ZplAttr::Mtime, set.mtime)] {
        if let Some(time) = time {
            let time = cx.time(time);
            node.set_time(cx, attr, time)?;
        }
    }
    let ctime = set.ctime.unwrap_or(cx.now);
    node.set_time(cx, ZplAttr::Ctime, ctime)?;
    let mut attr = node.attr(cx)?;
    node.store(cx)?;
    if let Some(mut list) = access {
        list.set_mode(mode);
        super::xattr::store(cx, ino, crate::acl::NAMES[0], Some(&list.encode()))?;
        attr = NodeMut::load(cx, ino)?.attr(cx)?;
    }
    if let Some(dir) = hidden
        && (owners.uid.is_some() || owners.gid.is_some() || set.projid.is_some())
    {
        set_owner_of_xattrs(cx, dir, owners, set.projid)?;
    }
    Ok(attr)
}

/// Logs what [`apply`] did (`zfs_log_setattr`) to a node whose mode was `old`. Where the mode changed otherwise than by a `chmod`
/// the list follows: a replay takes what is logged of a mode for a `chmod`.
fn log(cx: &mut Cx<'_>, ino: u64, set: &SetAttr, (old, attr): (u64, &Attr)) -> Result<()> {
    use cenote_format::zil::SetAttr as Mask;
    let node = NodeMut::load(cx, ino)?;
    let mode = set.mode.is_some() || set.clear_ids && node.mode(cx)? != old;
    let attrs = super::xvattr::logged(set.flags, set.projid);
    let words = |set: Option<SetTime>, cx: &Cx<'_>| {
        let (seconds, nanoseconds) = set.map_or((0, 0), |time| cx.time(time));
        [seconds as u64, u64::from(nanoseconds)]
    };
    let bits = [
        (mode, Mask::MODE),
        (set.uid.is_some(), Mask::UID),
        (set.gid.is_some(), Mask::GID),
        (set.size.is_some(), Mask::SIZE),
        (set.atime.is_some(), Mask::ATIME),
        (set.mtime.is_some(), Mask::MTIME),
        (attrs.is_some(), cenote_format::zil::ATTR_XVATTR),
        // As on Linux always: other systems' bits mean other attributes.
        (true, Mask::CTIME),
    ];
    let record = Mask {
        object: ino,
        mask: bits.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, bit)| all | bit),
        mode: node.mode(cx)?,
        uid: attr.uid.into(),
        gid: attr.gid.into(),
        size: set.size.unwrap_or(0),
        atime: words(set.atime, cx),
        // A change of size sets this time, whether it is asked for or not.
        mtime: words(set.mtime.or(set.size.map(|_| SetTime::Now)), cx),
        attrs,
        domains: Vec::new(),
    };
    cx.os.log(cenote_format::zil::Body::SetAttr(record))?;
    match mode && set.mode.is_none() {
        true => log_kept(cx, ino),
        false => Ok(()),
    }
}

impl FileSystem {
    /// Changes attributes.
    ///
    /// Errors: [`Error::NotPermitted`] if the file is immutable or append-only; [`Error::IsDir`] or
    /// [`Error::Invalid`] for the length of what is no file; [`Error::Unsupported`] for projects of
    /// what has no project.
    pub fn setattr(&self, ino: u64, set: &SetAttr) -> Result<Attr> {
        let freed = match set.size {
            Some(size) => self.shorten(ino, size, set)?,
            None => 0,
        };
        let cost = Cost { write: 64 << 10, objects: 0, frees: set.size.is_some() };
        self.change(cost, |cx| {
            cx.os.note_freed(freed);
            let (old, attr) = apply(cx, ino, set)?;
            log(cx, ino, set, (old, &attr))?;
            Ok(attr)
        })
    }

    /// Frees what a long file has past `size`, but for what fits into the transaction that makes the
    /// rest of the change. Returns how many pointers that are.
    fn shorten(&self, ino: u64, size: u64, set: &SetAttr) -> Result<u64> {
        let (_, left) = self.free_chunks(ino, size..u64::MAX, |cx, piece| {
            let mut node = NodeMut::load(cx, ino)?;
            check_kind(cx, &node, set)?;
            check_flags(cx, &node, set)?;
            check_list(cx, &node, set)?;
            if node.required(cx, ZplAttr::Size)? <= piece.start {
                return Ok(cx.os.truncate(ino, piece.start)?);
            }
            data::resize(cx, &mut node, piece.start)?;
            node.modified(cx)?;
            node.store(cx)
        })?;
        Ok(left)
    }

    /// Notes that a file was read, if `atime` and `relatime` want it noted.
    pub fn touch_atime(&self, ino: u64) -> Result<()> {
        let settings = self.settings();
        // What is read from a suspended pool is read without that: programs that only look do not wait for devices.
        if settings.atime == Atime::Off || !self.is_writable() || self.is_suspended() {
            return Ok(());
        }
        let now = settings.clock.now();
        let stale = |z: &Znode| -> Result<bool> {
            let times = z.words()?;
            let atime = times.time(ZplAttr::Atime)?;
            let (mtime, ctime) = (times.time(ZplAttr::Mtime)?, times.time(ZplAttr::Ctime)?);
            let old = now.0.saturating_sub(atime.0) >= DAY;
            Ok(settings.atime == Atime::On && now != atime
                || old
                || mtime >= atime
                || ctime >= atime)
        };
        let znode = self.attributes(ino)?;
        if !settings.directory_atime && znode.is_dir()? || !stale(&znode)? {
            return Ok(());
        }
        self.change(Cost { write: 4 << 10, objects: 0, frees: false }, |cx| {
            let mut node = NodeMut::load(cx, ino)?;
            // Reading is no change that has to survive a crash.
            cx.os.log_nothing();
            node.set_time(cx, ZplAttr::Atime, now)?;
            node.store(cx)
        })
    }
}
