//! Finding and moving directories (`dsl_dir_rename`).

use super::space::{self, Delta, Part};
use super::{DslWriteError, Result, Tx, crypt, limits, names};

/// Moves the directory `dir_obj` into `new_parent` as `name`.
///
/// Errors: `Exists`, `TooLong` (of any descendant or snapshot), `Invalid` name, or a place that is
/// below itself, `NoSpace` if the new parents have no room, `Quota` if a limit would be exceeded.
pub fn rename(tx: &mut Tx<'_>, dir_obj: u64, new_parent: u64, name: &str) -> Result<()> {
    names::check(name)?;
    let mut dir = tx.dir(dir_obj)?;
    let (parent, target) = (dir.parent, tx.dir(new_parent)?);
    if parent == 0 || dir.head_dataset == 0 || target.head_dataset == 0 {
        return Err(DslWriteError::Invalid("cannot be renamed".into()));
    }
    crypt::check_move(tx, dir_obj, new_parent)?;
    if tx.zap_number(target.children, name)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    check_lengths(tx, dir_obj, new_parent, name)?;
    if new_parent != parent {
        check_room(tx, dir_obj, new_parent)?;
        move_counts(tx, dir_obj, parent, new_parent)?;
        for (at, sign) in [(parent, -1), (new_parent, 1)] {
            let delta = Delta {
                used: (dir.used as i64).wrapping_mul(sign),
                compressed: (dir.compressed as i64).wrapping_mul(sign),
                uncompressed: (dir.uncompressed as i64).wrapping_mul(sign),
            };
            space::charge(tx, at, Part::Children, delta)?;
            let unused = dir.reserved.saturating_sub(dir.used) as i64;
            space::charge(tx, at, Part::ChildReservations, Delta::used(unused.wrapping_mul(sign)))?;
        }
    }
    let old_names = tx.dir(parent)?.children;
    let old = names::name_in(tx, old_names, dir_obj)?;
    tx.zap_remove(old_names, &old)?;
    dir = tx.dir(dir_obj)?;
    dir.parent = new_parent;
    tx.set_dir(dir_obj, &dir)?;
    tx.zap_add(target.children, name, dir_obj)
}

fn check_lengths(tx: &mut Tx<'_>, dir_obj: u64, new_parent: u64, name: &str) -> Result<()> {
    let (_, old_depth) = names::length(tx, dir_obj)?;
    let (len, depth) = names::length(tx, new_parent)?;
    let (longest, deepest) = names::longest_below(tx, dir_obj)?;
    names::fits(len, name.len() + longest)?;
    if depth >= old_depth && depth + deepest >= names::max_nesting() {
        return Err(DslWriteError::TooLong);
    }
    Ok(())
}

/// Whether there is room for a directory elsewhere.
fn check_room(tx: &mut Tx<'_>, dir_obj: u64, new_parent: u64) -> Result<()> {
    let from = tx.ancestry(dir_obj)?;
    let to = tx.ancestry(new_parent)?;
    if to.iter().any(|(object, _)| *object == dir_obj) {
        let why = "New dataset name cannot be a descendant of current dataset name";
        return Err(DslWriteError::Invalid(why.into()));
    }
    let none = || super::mos::corrupt(dir_obj, "no directory to be moved");
    let (_, dir) = from.first().ok_or_else(none)?;
    space::check_transfer(tx, dir.parent, new_parent, dir.used.max(dir.reserved))
}

fn move_counts(tx: &mut Tx<'_>, dir_obj: u64, parent: u64, new_parent: u64) -> Result<()> {
    let (filesystems, snapshots) = limits::moved(tx, dir_obj)?;
    limits::check_move(tx, (parent, new_parent), filesystems, snapshots)?;
    for (at, sign) in [(parent, -1), (new_parent, 1)] {
        limits::adjust(tx, at, limits::FILESYSTEMS, (filesystems as i64).wrapping_mul(sign))?;
        limits::adjust(tx, at, limits::SNAPSHOTS, (snapshots as i64).wrapping_mul(sign))?;
    }
    Ok(())
}

/// The directory of a full name `pool/a/b`, whose first component is not looked at.
pub fn find_dir(tx: &mut Tx<'_>, name: &str) -> Result<Option<u64>> {
    names::dir_of(tx, name)
}

/// The head of a directory. Errors: `NotFound` without a head.
pub fn head_of(tx: &mut Tx<'_>, dir_obj: u64) -> Result<u64> {
    match tx.dir(dir_obj)?.head_dataset {
        0 => Err(DslWriteError::NotFound),
        head => Ok(head),
    }
}
