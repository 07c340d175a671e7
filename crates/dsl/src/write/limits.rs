//! Counts of file systems and snapshots below a directory, and their limits: the properties
//! `filesystem_limit` and `snapshot_limit`.
//!
//! # Idea
//!
//! A directory has the two counts, as further fields, if it or one above it has or had a limit:
//! from such a directory all below have them. Each change of the tree adds to the counts of a
//! directory and of those above it, up to the first one without ([`adjust`]). A limit counts as many
//! levels: each directory on the way up must have room ([`check`]). The clone `%recv` that a receive works
//! in counts as any other file system.
//!
//! # Whom limits bind
//!
//! A limit binds users that may not change it. Root may, so root exceeds limits, and recursive snapshots of an
//! administrator never fail because of a user's limit. Every other user is bound, in a pool of their
//! own, too, but by those that they have the permission to change ([`permissions::has`]) only if the file system
//! is zoned (`dsl_enforce_ds_ss_limits`). Work of the pool itself is never bound ([`Tx::who`]).

use super::mos::{MAX_DEPTH, corrupt};
use super::{DslWriteError, Result, Tx, features, permissions, stored};

const FEATURE: &str = "com.joyent:filesystem_limits";
/// Field: file systems and volumes below a directory.
pub const FILESYSTEMS: &str = "com.joyent:filesystem_count";
/// Field: snapshots of a directory and all below.
pub const SNAPSHOTS: &str = "com.joyent:snapshot_count";

/// Whether a directory and those above it have room for so many more (`dsl_fs_ss_limit_check`). `field` is
/// [`FILESYSTEMS`] or [`SNAPSHOTS`]; directories from `until` on, which is above `dir_obj`, are not asked.
///
/// # Errors
/// `Quota`: a limit would be exceeded, and it binds. The MOS cannot be read.
pub fn check(
    tx: &mut Tx<'_>,
    dir_obj: u64,
    field: &str,
    delta: u64,
    until: Option<u64>,
) -> Result<()> {
    let Some(who) = tx.who.clone().filter(|who| !who.is_root() && delta > 0) else {
        return Ok(());
    };
    let property = if field == SNAPSHOTS { "snapshot_limit" } else { "filesystem_limit" };
    for (object, _) in tx.ancestry(dir_obj)? {
        if Some(object) == until {
            break;
        }
        let Some(count) = tx.field_number(object, field)? else { break };
        let limit = stored::local_number(tx, object, property)?.unwrap_or(u64::MAX);
        let is_over = count.saturating_add(delta) > limit;
        if is_over && (is_zoned(tx, object)? || !permissions::has(tx, object, &who, property)?) {
            return Err(DslWriteError::Quota);
        }
    }
    Ok(())
}

/// Whether a directory is for a zone, by itself or by one above it.
fn is_zoned(tx: &mut Tx<'_>, dir_obj: u64) -> Result<bool> {
    for (object, _) in tx.ancestry(dir_obj)? {
        if let Some(zoned) = stored::local_number(tx, object, "zoned")? {
            return Ok(zoned != 0);
        }
    }
    Ok(false)
}

/// Whether what is at `from`, so much of each kind, may move to `to`: what both are in is not asked.
///
/// # Errors
/// As [`check`].
pub(super) fn check_move(
    tx: &mut Tx<'_>,
    (from, to): (u64, u64),
    filesystems: u64,
    snapshots: u64,
) -> Result<()> {
    let (old, new) = (tx.ancestry(from)?, tx.ancestry(to)?);
    let common = new.iter().map(|(at, _)| *at).find(|at| old.iter().any(|(other, _)| other == at));
    check(tx, to, FILESYSTEMS, filesystems, common)?;
    check(tx, to, SNAPSHOTS, snapshots, common)
}

/// Adds to a count of a directory and those above it that have it (`dsl_fs_ss_count_adjust`).
pub(super) fn adjust(tx: &mut Tx<'_>, dir_obj: u64, field: &str, delta: i64) -> Result<()> {
    // Without limits there are no counts, and the fields of directories need not be read.
    if !features::is_active(tx, FEATURE)? {
        return Ok(());
    }
    let mut at = dir_obj;
    for _ in 0..MAX_DEPTH {
        if at == 0 || delta == 0 {
            return Ok(());
        }
        let Some(count) = tx.field_number(at, field)? else { return Ok(()) };
        let now = count.checked_add_signed(delta).unwrap_or_else(|| {
            // Another system may have counted less.
            tracing::warn!(
                "directory {at}: {field} is {count}, and changes by {delta}: it was wrong"
            );
            if delta < 0 { 0 } else { u64::MAX }
        });
        tx.zap_set(at, field, now)?;
        at = tx.dir(at)?.parent;
    }
    Err(corrupt(dir_obj, "directory is not below the root"))
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

/// Makes the counts of a directory and all below it right, before it is given a limit
/// (`dsl_dir_activate_fs_ss_limit`).
pub(super) fn activate(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    if !features::is_active(tx, FEATURE)? {
        features::increment(tx, FEATURE)?;
    }
    count(tx, dir_obj, 0).map(drop)
}

/// The counts of a directory to be moved, itself included among the file systems.
pub(super) fn moved(tx: &mut Tx<'_>, dir_obj: u64) -> Result<(u64, u64)> {
    if !features::is_active(tx, FEATURE)? {
        return Ok((0, 0));
    }
    let (filesystems, snapshots) = count(tx, dir_obj, 0)?;
    Ok((filesystems.saturating_add(1), snapshots))
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
        // The counts of below may be another system's.
        snapshots = snapshots.saturating_add(own as u64);
    }
    tx.zapify(dir_obj)?;
    tx.zap_set(dir_obj, FILESYSTEMS, filesystems)?;
    tx.zap_set(dir_obj, SNAPSHOTS, snapshots)?;
    Ok((filesystems, snapshots))
}
