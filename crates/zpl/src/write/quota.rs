//! Quotas of users, groups and projects, kept (`zfs_id_overquota`).
//!
//! As under OpenZFS a quota is full when the last txg that was written used as much as it allows: what
//! is pending does not count, so a quota can be exceeded by what is written in one txg.

use super::context::Cx;
use crate::Result;
use cenote_dmu::objset::{GROUP_USED, PROJECT_USED, USER_USED};
use cenote_dmu::write::{WriteError, ZapMut};
use cenote_dmu::zap::Zap;
use cenote_format::encode::zap::Key;

/// The quota in a table under `name`, or else the default; 0: no quota.
fn quota(cx: &mut Cx<'_>, table: Option<u64>, name: &str, default: u64) -> Result<u64> {
    let own = match table.filter(|table| *table != 0) {
        Some(table) => ZapMut::open(cx.os, table).word(&Key::Name(name.as_bytes()))?,
        None => None,
    };
    Ok(own.unwrap_or(default))
}

/// What is counted under `name` in an accounting object.
fn used(cx: &mut Cx<'_>, object: u64, name: &str) -> Result<u64> {
    match cx.os.view(object) {
        Ok(object) => Ok(Zap::open(&object)?.u64(name.as_bytes())?.unwrap_or(0)),
        // Nothing is counted yet.
        Err(cenote_dmu::Error::NoObject { .. }) => Ok(0),
        Err(e) => Err(e.into()),
    }
}

/// Fails with [`WriteError::Quota`] if one of the quotas of bytes, or, if `object`, of objects, is
/// full for a node of these ids (`zfs_id_overblockquota`, `zfs_id_overobjquota`).
pub(super) fn check(cx: &mut Cx<'_>, uid: u64, gid: u64, projid: u64, object: bool) -> Result<()> {
    check_some(cx, [Some(uid), Some(gid), Some(projid)], object)
}

/// As [`check`], for a node that gets the ids that are given.
pub(super) fn check_new(
    cx: &mut Cx<'_>,
    uid: Option<u64>,
    gid: Option<u64>,
    projid: Option<u64>,
) -> Result<()> {
    check_some(cx, [uid, gid, projid], true)
}

/// Checks the quotas of a user, a group and a project.
fn check_some(cx: &mut Cx<'_>, ids: [Option<u64>; 3], object: bool) -> Result<()> {
    let quotas = cx.quotas;
    let kinds =
        [(quotas.user, USER_USED), (quotas.group, GROUP_USED), (quotas.project, PROJECT_USED)];
    for (((tables, accounting), id), default) in kinds.into_iter().zip(ids).zip(quotas.defaults) {
        // Project 0 is that of all files without one.
        let Some(id) = id.filter(|id| *id != 0 || accounting != PROJECT_USED) else { continue };
        if tables == (None, None) && default == (0, 0) {
            continue;
        }
        let name = format!("{id:x}");
        let bytes = (tables.0, default.0, name.clone());
        let objects = object.then(|| (tables.1, default.1, format!("obj-{name}")));
        for (table, default, entry) in std::iter::once(bytes).chain(objects) {
            let quota = quota(cx, table, &name, default)?;
            if quota != 0 && used(cx, accounting, &entry)? >= quota {
                return Err(WriteError::Quota.into());
            }
        }
    }
    Ok(())
}
