//! User holds on snapshots.
//!
//! A held snapshot cannot be destroyed. Its holds are the entries of the ZAP `ds_userrefs_obj`: the tag, and
//! when it was set, in seconds. The ZAP is created with the first hold and stays until the snapshot goes.
//! The last release of a snapshot that is marked for deferred destruction destroys it.

use super::destroy::{check_snapshot, destroy_snapshot};
use super::{DslWriteError, Result, Tx};
use cenote_format::dmu::DmuType;
use cenote_format::dsl::DS_FLAG_DEFER_DESTROY;

/// Type of the ZAP of holds (`DMU_OT_USERREFS`).
const USERREFS: DmuType = DmuType(41);
/// Bytes of the longest tag (`MAXNAMELEN` without its final zero).
pub const MAX_TAG: usize = 255;

/// Holds a snapshot under `tag` (`dsl_dataset_user_hold_sync_one`); the number of its holds.
///
/// Errors: `Exists` if there is a hold of this tag, `TooLong`.
pub fn hold(tx: &mut Tx<'_>, snap_obj: u64, tag: &str) -> Result<usize> {
    if tag.len() > MAX_TAG {
        return Err(DslWriteError::TooLong);
    }
    let mut snap = tx.snapshot(snap_obj)?;
    if snap.userrefs == 0 {
        snap.userrefs = tx.plain_zap(USERREFS)?;
        tx.set_dataset(snap_obj, &snap)?;
    }
    let now = tx.now;
    tx.zap_add(snap.userrefs, tag, now)?;
    Ok(tx.zap_entries(snap.userrefs)?.len())
}

/// What came of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// So many holds are left.
    Left(usize),
    /// It was the last thing that kept the snapshot, which is destroyed.
    Destroyed,
}

/// Releases the hold `tag` (`dsl_dataset_user_release_sync_one`).
///
/// Errors: `NotFound` without such a hold; `Unsupported` for a snapshot that goes with it and cannot be
/// destroyed.
pub fn release(tx: &mut Tx<'_>, snap_obj: u64, tag: &str) -> Result<Released> {
    let snap = tx.snapshot(snap_obj)?;
    if snap.userrefs == 0 || !tx.zap_remove(snap.userrefs, tag)? {
        return Err(DslWriteError::NotFound);
    }
    let left = tx.zap_entries(snap.userrefs)?.len();
    if left == 0 && snap.num_children == 1 && snap.flags & DS_FLAG_DEFER_DESTROY != 0 {
        check_snapshot(tx, snap_obj)?;
        destroy_snapshot(tx, snap_obj, false)?;
        return Ok(Released::Destroyed);
    }
    Ok(Released::Left(left))
}
