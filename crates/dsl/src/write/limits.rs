//! Counts of file systems and snapshots below a directory, for the properties `filesystem_limit`
//! and `snapshot_limit`.
//!
//! A directory has the two counts, as further fields, if it or one above it has or had a limit:
//! from such a directory all below have them. The limits themselves hold for users to whom the
//! administrator gave the right to create datasets, never for the administrator, and so not here.

use super::mos::{MAX_DEPTH, corrupt};
use super::{Result, Tx, features};

const FEATURE: &str = "com.joyent:filesystem_limits";
/// Field: file systems and volumes below a directory.
pub(super) const FILESYSTEMS: &str = "com.joyent:filesystem_count";
/// Field: snapshots of a directory and all below.
pub(super) const SNAPSHOTS: &str = "com.joyent:snapshot_count";

/// Adds to a count of a directory and those above it that have it.
pub(super) fn adjust(tx: &mut Tx<'_>, dir_obj: u64, field: &str, delta: i64) -> Result<()> {
    let mut at = dir_obj;
    for _ in 0..MAX_DEPTH {
        if at == 0 || delta == 0 {
            return Ok(());
        }
        let Some(count) = tx.field_number(at, field)? else { return Ok(()) };
        tx.zap_set(at, field, count.saturating_add_signed(delta))?;
        at = tx.dir(at)?.parent;
    }
    Err(corrupt(dir_obj, "directory is not below the root"))
}

/// How much a directory of this name counts for: those that a receive works in do not count.
pub(super) fn counts(name: &str) -> i64 {
    i64::from(!name.starts_with('%'))
}

/// Gives a new directory its counts, if there are limits in the pool.
pub(super) fn start(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    if features::is_active(tx, FEATURE)? {
        tx.zapify(dir_obj)?;
        tx.zap_set(dir_obj, FILESYSTEMS, 0)?;
        tx.zap_set(dir_obj, SNAPSHOTS, 0)?;
    }
    Ok(())
}

/// Makes the counts of a directory and all below it right, before it is given a limit.
pub(super) fn activate(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    if !features::is_active(tx, FEATURE)? {
        features::increment(tx, FEATURE)?;
    }
    count(tx, dir_obj, 0).map(drop)
}

/// The counts of a directory that is to be moved, itself included among the file systems.
pub(super) fn moved(tx: &mut Tx<'_>, dir_obj: u64) -> Result<(i64, i64)> {
    if !features::is_active(tx, FEATURE)? {
        return Ok((0, 0));
    }
    let (filesystems, snapshots) = count(tx, dir_obj, 0)?;
    Ok((filesystems.saturating_add(1) as i64, snapshots as i64))
}

/// Counts what is not counted yet (`dsl_dir_init_fs_ss_count`).
fn count(tx: &mut Tx<'_>, dir_obj: u64, depth: usize) -> Result<(u64, u64)> {
    if depth > MAX_DEPTH {
        return Err(corrupt(dir_obj, "directories within each other"));
    }
    let known = (tx.field_number(dir_obj, FILESYSTEMS)?, tx.field_number(dir_obj, SNAPSHOTS)?);
    if let (Some(filesystems), Some(snapshots)) = known {
        return Ok((filesystems, snapshots));
    }
    let (mut filesystems, mut snapshots) = (0u64, 0u64);
    let dir = tx.dir(dir_obj)?;
    for child in tx.zap_entries(dir.children)? {
        if let Some(object) = child.u64().filter(|_| !child.name.starts_with(b"$")) {
            let below = count(tx, object, depth + 1)?;
            filesystems = filesystems.saturating_add(1).saturating_add(below.0);
            snapshots = snapshots.saturating_add(below.1);
        }
    }
    if dir.head_dataset != 0 {
        let names = tx.dataset(dir.head_dataset)?.snap_names;
        let all = tx.zap_entries(names)?;
        let own = all.iter().filter(|e| !e.name.starts_with(b"%")).count();
        snapshots = snapshots.saturating_add(own as u64);
    }
    tx.zapify(dir_obj)?;
    tx.zap_set(dir_obj, FILESYSTEMS, filesystems)?;
    tx.zap_set(dir_obj, SNAPSHOTS, snapshots)?;
    Ok((filesystems, snapshots))
}
