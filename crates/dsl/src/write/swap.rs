//! Swapping the contents of a head and a clone of its newest snapshot (`dsl_dataset_clone_swap_sync_impl`).
//!
//! A receive writes into a hidden clone. Once all has come, the head gets the clone's root block,
//! deadlist, sizes and features, and the clone gets the head's. Both deadlists have the same keys, because
//! both datasets come after the same snapshot.
//!
//! *Space.* A head counts as used what it refers to and what is on its deadlist. The difference of the two sums
//! moves from the clone's directory to the head's. What snapshots use differs by what is on the two deadlists and is
//! younger than the head's origin. What is unique to the newest snapshot is counted anew, by the deadlist that is the
//! head's from now on.

use super::space::{self, Delta, Part};
use super::{
    DslWriteError, Move, Result, Tx, bookmarks, deadlist, dir, features, livelist, remaps,
};
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::invariant;

/// Bytes by which a head that is received may pass its refquota. A change is let in as long as the quota is not full,
/// so one that is full has passed it by what the last change wrote: no more than a largest block. It can be replicated
/// so. For quotas of a few such blocks it is an eighth: changes are small there. (OpenZFS allows what a transaction may
/// take at worst, 1.5 GiB.)
fn slack(quota: u64) -> u64 {
    cenote_format::MAX_BLOCK.min(quota / 8)
}

/// Whether `clone_obj` can be swapped with the head `head_obj`, of which it is a child
/// (`dsl_dataset_clone_swap_check_impl`).
///
/// Errors: `Invalid` if they do not come after the same snapshot, `NoSpace` if the head's refreservation has no
/// room, `Quota` if the clone is larger than the head's refquota.
pub fn check_swap(tx: &mut Tx<'_>, clone_obj: u64, head_obj: u64) -> Result<()> {
    let (clone, head) = (tx.head(clone_obj)?, tx.head(head_obj)?);
    let apart =
        || DslWriteError::Invalid("the datasets do not come after the same snapshot".into());
    if clone.prev_snap != head.prev_snap || clone.prev_snap == 0 {
        return Err(apart());
    }
    if tx.dir(clone.dir)?.parent != head.dir {
        return Err(apart());
    }
    let more = unused_reservation(tx, &clone, &head)?;
    if more > 0 && more as u64 > space::available_to_dir(tx, head.dir, None)? {
        return Err(DslWriteError::NoSpace);
    }
    match super::props::local_number(tx, head.dir, "refquota")?.unwrap_or(0) {
        0 => Ok(()),
        quota if clone.referenced <= quota.saturating_add(slack(quota)) => Ok(()),
        _ => Err(DslWriteError::Quota),
    }
}

/// Bytes more that the head's refreservation keeps after the swap.
fn unused_reservation(
    tx: &mut Tx<'_>,
    clone: &DslDatasetPhys,
    head: &DslDatasetPhys,
) -> Result<i64> {
    let reserved = space::refreservation(tx, head)?;
    Ok(reserved.min(head.unique).wrapping_sub(reserved.min(clone.unique)) as i64)
}

/// Swaps a clone and a head that were [checked](check_swap). Both must be closed, and neither may
/// have an intent log.
pub fn swap(tx: &mut Tx<'_>, clone_obj: u64, head_obj: u64) -> Result<()> {
    tx.moves.push(Move::Swapped(clone_obj, head_obj));
    swap_features(tx, clone_obj, head_obj)?;
    let (mut clone, mut head) = (tx.head(clone_obj)?, tx.head(head_obj)?);
    let before = (clone.prev_snap, head.prev_snap);
    invariant!(
        before.0 == before.1 && before.0 != 0,
        "datasets {clone_obj} and {head_obj} are swapped, and come after the snapshots {before:?}"
    );
    let had = [clone.deadlist, head.deadlist];
    livelist::remove(tx, clone.dir)?;
    livelist::remove(tx, head.dir)?;
    let reservation = unused_reservation(tx, &clone, &head)?;
    let since = tx.dataset(head.prev_snap)?.prev_snap_txg;
    let unique = deadlist::range(tx, clone.deadlist, since, u64::MAX)?.used;
    tx.edit_dataset(head.prev_snap, |snap| snap.unique = unique)?;

    let (theirs, ours) = (total(tx, &clone)?, total(tx, &head)?);
    let delta = Delta {
        used: theirs[0].wrapping_sub(ours[0]) as i64,
        compressed: theirs[1].wrapping_sub(ours[1]) as i64,
        uncompressed: theirs[2].wrapping_sub(ours[2]) as i64,
    };
    let less = Delta {
        used: delta.used.wrapping_neg(),
        compressed: delta.compressed.wrapping_neg(),
        uncompressed: delta.uncompressed.wrapping_neg(),
    };
    space::charge(tx, head.dir, Part::Head, delta)?;
    space::charge(tx, clone.dir, Part::Head, less)?;
    let dir = tx.dir(head.dir)?;
    let origin = dir::origin_txg(tx, &dir)?;
    let theirs = deadlist::range(tx, clone.deadlist, origin, u64::MAX)?.used;
    let ours = deadlist::range(tx, head.deadlist, origin, u64::MAX)?.used;
    space::shift(tx, head.dir, theirs.wrapping_sub(ours), Part::Head, Part::Snapshots)?;
    space::charge(tx, head.dir, Part::RefReservation, Delta::used(reservation))?;

    std::mem::swap(&mut clone.bp, &mut head.bp);
    std::mem::swap(&mut clone.deadlist, &mut head.deadlist);
    std::mem::swap(&mut clone.referenced, &mut head.referenced);
    std::mem::swap(&mut clone.compressed, &mut head.compressed);
    std::mem::swap(&mut clone.uncompressed, &mut head.uncompressed);
    std::mem::swap(&mut clone.unique, &mut head.unique);
    tx.set_dataset(clone_obj, &clone)?;
    tx.set_dataset(head_obj, &head)?;
    remaps::swap(tx, clone_obj, head_obj)?;
    let now = [tx.head(clone_obj)?.deadlist, tx.head(head_obj)?.deadlist];
    invariant!(
        now == [had[1], had[0]],
        "datasets {clone_obj} and {head_obj} had the deadlists {had:?} and are swapped: {now:?}"
    );
    bookmarks::next_changed(tx, head_obj, head.prev_snap)
}

/// What a head refers to and what is on its deadlist: bytes used, compressed, uncompressed.
fn total(tx: &mut Tx<'_>, ds: &DslDatasetPhys) -> Result<[u64; 3]> {
    let dead = deadlist::total(tx, ds.deadlist)?;
    Ok([
        ds.referenced.wrapping_add(dead.used),
        ds.compressed.wrapping_add(dead.compressed),
        ds.uncompressed.wrapping_add(dead.uncompressed),
    ])
}

fn swap_features(tx: &mut Tx<'_>, clone_obj: u64, head_obj: u64) -> Result<()> {
    let theirs = features::of_dataset(tx, clone_obj)?;
    let ours = features::of_dataset(tx, head_obj)?;
    features::deactivate_all(tx, clone_obj)?;
    features::deactivate_all(tx, head_obj)?;
    features::give(tx, head_obj, &theirs)?;
    features::give(tx, clone_obj, &ours)
}

/// Whether a head was changed since the snapshot `snap_obj` of the same dataset
/// (`dsl_dataset_modified_since_snap`).
///
/// Errors: the snapshot or the head cannot be read.
pub fn is_modified_since(tx: &mut Tx<'_>, head_obj: u64, snap_obj: u64) -> Result<bool> {
    let (head, snap) = (tx.head(head_obj)?, tx.snapshot(snap_obj)?);
    if head.bp.logical_birth() <= snap.creation_txg {
        return Ok(false);
    }
    // A head that was only mounted may have another root block, with another header of its intent log.
    let store = tx.mos.synced().store().clone();
    let read = |object, bp| cenote_dmu::ObjectSet::open(store.clone(), object, bp);
    let (now, then) = (read(head_obj, head.bp)?, read(snap_obj, snap.bp)?);
    Ok(now.phys().meta_dnode.encode()? != then.phys().meta_dnode.encode()?)
}
