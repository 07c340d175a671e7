//! Accounting of space up the tree, quotas and reservations (`dsl_dir_diduse_space`, `dsl_dir_set_reservation`).
//!
//! A directory's *used* is what it and all below it use, and what reservations below it keep from
//! others. It is the sum of five parts: its head, its snapshots, its children, what its children
//! have reserved and do not use, and what the refreservation of its head keeps beyond what is
//! used. A change of *used* by some bytes changes the parent's by as much as the greater of used and
//! reserved changes: within a reservation nothing.
//!
//! Sums telescope: a batch of changes has the same effect as its parts one by one, so callers add up
//! first.
//!
//! Sizes of damaged pools may be anything, so they wrap.
//!
//! Invariant: what a directory uses and the sum of its parts change by the same.

use super::mos::{MAX_DEPTH, corrupt};
use super::stored::{self, NewValue, Target};
use super::{DslWriteError, Result, Sizes, Tx};
use cenote_format::dsl::{DD_FLAG_USED_BREAKDOWN, DslDatasetPhys, DslDirPhys};
use cenote_format::invariant;

/// A part of a directory's used space (`dd_used_t`): index of the breakdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Head = 0,
    Snapshots = 1,
    Children = 2,
    ChildReservations = 3,
    RefReservation = 4,
}

/// A change of sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Delta {
    pub(super) used: i64,
    pub(super) compressed: i64,
    pub(super) uncompressed: i64,
}

impl Delta {
    /// So many bytes more, that are not of blocks.
    pub(super) fn used(used: i64) -> Delta {
        Delta { used, ..Delta::default() }
    }

    pub(super) fn more(s: Sizes) -> Delta {
        Delta {
            used: s.used as i64,
            compressed: s.compressed as i64,
            uncompressed: s.uncompressed as i64,
        }
    }

    pub(super) fn less(s: Sizes) -> Delta {
        let more = Delta::more(s);
        Delta {
            used: more.used.wrapping_neg(),
            compressed: more.compressed.wrapping_neg(),
            uncompressed: more.uncompressed.wrapping_neg(),
        }
    }
}

/// How much more the owner is charged for when `used` changes by `delta`, with a reservation.
pub(super) fn charged(used: u64, delta: i64, reserved: u64) -> i64 {
    let new = used.wrapping_add_signed(delta).max(reserved);
    new.wrapping_sub(used.max(reserved)) as i64
}

fn apply(dir: &mut DslDirPhys, delta: Delta) {
    dir.used = dir.used.wrapping_add_signed(delta.used);
    dir.compressed = dir.compressed.wrapping_add_signed(delta.compressed);
    dir.uncompressed = dir.uncompressed.wrapping_add_signed(delta.uncompressed);
}

/// How many bytes more the parts of a directory are than what it uses.
fn beyond(dir: &DslDirPhys) -> u64 {
    let parts = dir.used_breakdown.iter().fold(0u64, |sum, part| sum.wrapping_add(*part));
    parts.wrapping_sub(dir.used)
}

/// Checks that `dir` was changed in its parts as it was in all.
fn check_parts(dir_obj: u64, before: u64, dir: &DslDirPhys) {
    let (used, parts) = (dir.used, dir.used_breakdown);
    invariant!(
        dir.flags & DD_FLAG_USED_BREAKDOWN == 0 || beyond(dir) == before,
        "directory {dir_obj}: {used} bytes used, and parts of {parts:?}"
    );
}

fn add_part(dir: &mut DslDirPhys, part: Part, delta: i64) {
    if dir.flags & DD_FLAG_USED_BREAKDOWN != 0 {
        let slot = &mut dir.used_breakdown[part as usize];
        *slot = slot.wrapping_add_signed(delta);
    }
}

/// Charges a directory, and those above it, for a change of one part (`dsl_dir_diduse_space`).
pub(super) fn charge(tx: &mut Tx<'_>, dir_obj: u64, part: Part, delta: Delta) -> Result<()> {
    if delta == Delta::default() {
        return Ok(());
    }
    let mut dir = tx.dir(dir_obj)?;
    let before = beyond(&dir);
    let above = charged(dir.used, delta.used, dir.reserved);
    apply(&mut dir, delta);
    let back = charged(dir.used, delta.used.wrapping_neg(), dir.reserved);
    invariant!(
        back == above.wrapping_neg(),
        "directory {dir_obj}: what is above is charged {above} for {}, and {back} for the reverse",
        delta.used
    );
    add_part(&mut dir, part, delta.used);
    check_parts(dir_obj, before, &dir);
    tx.set_dir(dir_obj, &dir)?;
    charge_parent(tx, &dir, above, delta)
}

/// Charges a directory, and those above it: `delta` in all, and `to_new` more for the part `new`.
/// What that is more than the change in all comes from the part `old`.
/// (`dsl_dir_diduse_transfer_space`)
pub(super) fn charge_from(
    tx: &mut Tx<'_>,
    dir_obj: u64,
    delta: Delta,
    to_new: i64,
    (old, new): (Part, Part),
) -> Result<()> {
    let mut dir = tx.dir(dir_obj)?;
    let before = beyond(&dir);
    let above = charged(dir.used, delta.used, dir.reserved);
    apply(&mut dir, delta);
    add_part(&mut dir, old, delta.used.wrapping_sub(to_new));
    add_part(&mut dir, new, to_new);
    check_parts(dir_obj, before, &dir);
    tx.set_dir(dir_obj, &dir)?;
    charge_parent(tx, &dir, above, delta)
}

/// Charges the directories above `dir`, whose own used space changed by `below`.
fn charge_parent(tx: &mut Tx<'_>, dir: &DslDirPhys, above: i64, below: Delta) -> Result<()> {
    let (mut parent, mut above, mut below) = (dir.parent, above, below);
    for _ in 0..MAX_DEPTH {
        if parent == 0 {
            return Ok(());
        }
        let mut dir = tx.dir(parent)?;
        let before = beyond(&dir);
        let further = charged(dir.used, above, dir.reserved);
        let delta = Delta { used: above, ..below };
        apply(&mut dir, delta);
        add_part(&mut dir, Part::ChildReservations, above.wrapping_sub(below.used));
        add_part(&mut dir, Part::Children, below.used);
        check_parts(parent, before, &dir);
        tx.set_dir(parent, &dir)?;
        (parent, above, below) = (dir.parent, further, delta);
    }
    Err(corrupt(parent, "directory is not below the root"))
}

/// Moves bytes from one part of a directory to another (`dsl_dir_transfer_space`).
pub(super) fn shift(tx: &mut Tx<'_>, dir_obj: u64, bytes: u64, from: Part, to: Part) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    tx.edit_dir(dir_obj, |dir| {
        let before = beyond(dir);
        add_part(dir, from, (bytes as i64).wrapping_neg());
        add_part(dir, to, bytes as i64);
        check_parts(dir_obj, before, dir);
    })
}

/// Bytes that a directory may use more than it does (`dsl_dir_space_available`). With `as_if`, as if
/// that directory, which is it or one above it, used so many bytes less.
pub(super) fn available_to_dir(
    tx: &mut Tx<'_>,
    dir_obj: u64,
    as_if: Option<(u64, u64)>,
) -> Result<u64> {
    let mut available = u64::MAX;
    for (object, dir) in tx.ancestry(dir_obj)?.iter().rev() {
        let mut used = dir.used;
        let mut quota = if dir.quota == 0 { u64::MAX } else { dir.quota };
        if dir.parent == 0 {
            quota = quota.min(tx.usable.unwrap_or(u64::MAX));
        } else {
            available = available.saturating_add(dir.reserved.saturating_sub(used));
        }
        if let Some((_, less)) = as_if.filter(|(at, _)| at == object) {
            used = used.saturating_sub(less);
            available = available.saturating_add(less);
        }
        available = available.min(quota.saturating_sub(used));
    }
    Ok(available)
}

/// Whether so many bytes can move from the directory `from` to `to` (`dsl_dir_transfer_possible`).
///
/// Errors: `NoSpace`.
pub(super) fn check_transfer(tx: &mut Tx<'_>, from: u64, to: u64, bytes: u64) -> Result<()> {
    let (old, new) = (tx.ancestry(from)?, tx.ancestry(to)?);
    // How much less the first directory that both are in would use if they were gone.
    let mut less = (bytes as i64).wrapping_neg();
    let mut common = None;
    for (object, dir) in &old {
        if new.iter().any(|(other, _)| other == object) {
            common = Some((*object, less.unsigned_abs()));
            break;
        }
        less = charged(dir.used, less, dir.reserved);
    }
    if available_to_dir(tx, to, common)? < bytes { Err(DslWriteError::NoSpace) } else { Ok(()) }
}

/// The refreservation of a head.
pub(super) fn refreservation(tx: &mut Tx<'_>, ds: &DslDatasetPhys) -> Result<u64> {
    Ok(stored::local_number(tx, ds.dir, "refreservation")?.unwrap_or(0))
}

/// Sets the quota of a directory, in bytes; 0: no quota (`dsl_dir_set_quota`).
/// Errors: `NoSpace` if it is less than what is used or reserved.
pub fn set_quota(tx: &mut Tx<'_>, dir_obj: u64, quota: u64) -> Result<()> {
    let mut dir = tx.dir(dir_obj)?;
    if quota != 0 && (quota < dir.reserved || quota < dir.used) {
        return Err(DslWriteError::NoSpace);
    }
    stored::store(tx, Target::Dir(dir_obj), "quota", &NewValue::Number(quota))?;
    dir.quota = quota;
    tx.set_dir(dir_obj, &dir)
}

/// Sets the reservation of a directory, in bytes (`dsl_dir_set_reservation`). Errors: `NoSpace` if there is less left.
pub fn set_reservation(tx: &mut Tx<'_>, dir_obj: u64, bytes: u64) -> Result<()> {
    let dir = tx.dir(dir_obj)?;
    let more = dir.used.max(bytes).saturating_sub(dir.used.max(dir.reserved));
    if more > 0 {
        let left = match (dir.parent, tx.usable) {
            (0, None) => u64::MAX,
            (0, Some(usable)) => usable.saturating_sub(dir.used),
            (parent, _) => available_to_dir(tx, parent, None)?,
        };
        if more > left || (dir.quota > 0 && bytes > dir.quota) {
            return Err(DslWriteError::NoSpace);
        }
    }
    stored::store(tx, Target::Dir(dir_obj), "reservation", &NewValue::Number(bytes))?;
    reserve(tx, dir_obj, bytes)
}

/// Changes a reservation without checks, and without the property.
pub(super) fn reserve(tx: &mut Tx<'_>, dir_obj: u64, bytes: u64) -> Result<()> {
    let mut dir = tx.dir(dir_obj)?;
    let more = dir.used.max(bytes).wrapping_sub(dir.used.max(dir.reserved)) as i64;
    dir.reserved = bytes;
    tx.set_dir(dir_obj, &dir)?;
    match dir.parent {
        0 => Ok(()),
        parent => charge(tx, parent, Part::ChildReservations, Delta::used(more)),
    }
}

/// Sets the refquota of a head, in bytes; 0: no refquota (`dsl_dataset_set_refquota`). Errors: `NoSpace` if it is less
/// than what is referenced or reserved.
pub fn set_refquota(tx: &mut Tx<'_>, ds_obj: u64, quota: u64) -> Result<()> {
    let ds = tx.head(ds_obj)?;
    if quota != 0 && (quota < ds.referenced || quota < refreservation(tx, &ds)?) {
        return Err(DslWriteError::NoSpace);
    }
    stored::store(tx, Target::Dir(ds.dir), "refquota", &NewValue::Number(quota))
}

/// Sets the refreservation of a head, in bytes (`dsl_dataset_set_refreservation`). Errors: `NoSpace`.
pub fn set_refreservation(tx: &mut Tx<'_>, ds_obj: u64, bytes: u64) -> Result<()> {
    let ds = tx.head(ds_obj)?;
    let old = refreservation(tx, &ds)?;
    let more = ds.unique.max(bytes).saturating_sub(ds.unique.max(old));
    if more > 0 {
        let quota = stored::local_number(tx, ds.dir, "refquota")?.unwrap_or(0);
        if more > available_to_dir(tx, ds.dir, None)? || (quota > 0 && bytes > quota) {
            return Err(DslWriteError::NoSpace);
        }
    }
    stored::store(tx, Target::Dir(ds.dir), "refreservation", &NewValue::Number(bytes))?;
    let delta = bytes.saturating_sub(ds.unique).wrapping_sub(old.saturating_sub(ds.unique));
    charge(tx, ds.dir, Part::RefReservation, Delta::used(delta as i64))
}

/// Bytes that may be written to the head `ds_obj` now; without [`Tx::usable`] as far as quotas
/// tell.
pub fn available(tx: &mut Tx<'_>, ds_obj: u64) -> Result<u64> {
    let ds = tx.head(ds_obj)?;
    let reserved = refreservation(tx, &ds)?.saturating_sub(ds.unique);
    let available = available_to_dir(tx, ds.dir, None)?.saturating_add(reserved);
    Ok(match stored::local_number(tx, ds.dir, "refquota")?.unwrap_or(0) {
        0 => available,
        quota => available.min(quota.saturating_sub(ds.referenced)),
    })
}
