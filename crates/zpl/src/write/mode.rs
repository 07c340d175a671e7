//! The mode of a node: permission bits, with the trivial list that says the same (`zfs_acl_chmod_setattr`).

use super::acl;
use super::context::Cx;
use super::handed_down::change_mode;
use super::node::NodeMut;
use crate::Result;
use crate::sa::ZplAttr;
use crate::znode::{S_IFDIR, S_IFMT};
use cenote_format::invariant;
use cenote_format::zil::{Body, SetAttr};

const S_ISUID: u64 = 0o4000;
const S_ISGID: u64 = 0o2000;

/// Which users must be able to run a file for its set-group-id bit to be more than a mark for mandatory
/// locking, which stays: anyone where its contents change, the group where its owner does.
pub(super) const CONTENTS: u64 = 0o111;
pub(super) const OWNER: u64 = 0o010;

/// The mode without what a change by someone without privilege takes away.
pub(super) fn without_ids(mode: u64, run: u64) -> u64 {
    let group = if mode & run != 0 { S_ISGID } else { 0 };
    if mode & S_IFMT == S_IFDIR { mode } else { mode & !(S_ISUID | group) }
}

/// Sets the mode with the list that says the same, or what `aclmode` makes of a list that says more (`zfs_acl_chmod`). The
/// mode that this comes to.
pub(super) fn set_mode(cx: &mut Cx<'_>, node: &mut NodeMut, mode: u64) -> Result<u64> {
    let (ino, old) = (node.ino, node.mode(cx)?);
    invariant!(
        (old ^ mode) & S_IFMT == 0,
        "object {ino} of mode {old:o} becomes another kind of node: {mode:o}"
    );
    let flags = node.flags(cx)?;
    if flags & acl::FLAG_TRIVIAL == 0 && !cx.has_old_nodes() {
        return change_mode(cx, node, mode);
    }
    let flags = acl::flags_for(flags, mode);
    let (count, aces) = acl::trivial(mode);
    node.set(cx, ZplAttr::Mode, &[mode])?;
    node.set(cx, ZplAttr::Flags, &[flags])?;
    node.set(cx, ZplAttr::DaclCount, &[count])?;
    node.set_bytes(cx, ZplAttr::DaclAces, &aces)?;
    Ok(mode)
}

/// Sets bits of the mode that lists say nothing of.
pub(super) fn set_ids(cx: &mut Cx<'_>, node: &mut NodeMut, mode: u64) -> Result<()> {
    let (ino, old) = (node.ino, node.mode(cx)?);
    invariant!((old ^ mode) & !0o7000 == 0, "object {ino} of mode {old:o} becomes one of {mode:o}");
    node.set(cx, ZplAttr::Mode, &[mode])
}

/// Logs that an object has another mode.
pub(super) fn log_mode(cx: &mut Cx<'_>, ino: u64, mode: u64) -> Result<()> {
    let (mask, domains) = (SetAttr::MODE, Vec::new());
    let (uid, gid, size, atime, mtime, attrs) = (0, 0, 0, [0; 2], [0; 2], None);
    let record = SetAttr { object: ino, mask, mode, uid, gid, size, atime, mtime, attrs, domains };
    Ok(cx.os.log(Body::SetAttr(record))?)
}
