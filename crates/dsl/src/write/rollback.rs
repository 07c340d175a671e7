//! Rolling a head back to its newest snapshot.
//!
//! The head takes over the snapshot's root block, sizes and features. What it killed since is on its
//! deadlist and is in use again, so the list is replaced by an empty one of the same keys. What was born in
//! it since is freed as the tree of a destroyed dataset is. A refreservation is then charged in full, since
//! nothing is unique to the head any more.
//!
//! OpenZFS does the same in three steps: it clones the snapshot, swaps clone and head, and destroys the
//! clone (`dsl_dataset_rollback_sync`).

use super::destroy::Way;
use super::space::{self, Delta, Part};
use super::{
    DslWriteError, Result, Sizes, Tx, bookmarks, deadlist, destroy, dir, features, livelist, props,
    remaps, snapshot,
};
use cenote_format::dsl::{DS_FLAG_UNIQUE_ACCURATE, DslDatasetPhys};
use cenote_format::invariant;

fn less(a: Sizes, b: Sizes) -> Sizes {
    Sizes {
        used: a.used.wrapping_sub(b.used),
        compressed: a.compressed.wrapping_sub(b.compressed),
        uncompressed: a.uncompressed.wrapping_sub(b.uncompressed),
    }
}

fn referenced(ds: &DslDatasetPhys) -> Sizes {
    Sizes { used: ds.referenced, compressed: ds.compressed, uncompressed: ds.uncompressed }
}

/// Whether the head `ds_obj` can be rolled back to its newest snapshot, once it has no intent log
/// (`dsl_dataset_rollback_check`).
///
/// Errors: `NotFound` if it has no snapshot, `Again` if that was taken in this txg, `Exists` if there are
/// later bookmarks, `NoSpace` if there is no room for the refreservation, `Quota` if the snapshot has more than
/// the refquota, `Unsupported`.
pub fn check_rollback(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Way> {
    let ds = tx.head(ds_obj)?;
    if ds.prev_snap == 0 || tx.dataset(ds.prev_snap)?.next_snap != ds_obj {
        return Err(DslWriteError::NotFound);
    }
    if ds.prev_snap_txg >= tx.txg {
        return Err(DslWriteError::Again);
    }
    if bookmarks::latest_txg(tx, ds_obj)? > ds.prev_snap_txg {
        return Err(DslWriteError::Exists);
    }
    let quota = props::local_number(tx, ds.dir, "refquota")?.unwrap_or(0);
    if quota != 0 && tx.dataset(ds.prev_snap)?.referenced > quota {
        return Err(DslWriteError::Quota);
    }
    let reserved = space::refreservation(tx, &ds)?.min(ds.unique);
    if reserved > space::available_to_dir(tx, ds.dir, None)? {
        return Err(DslWriteError::NoSpace);
    }
    Way::through_tree(tx, &ds)
}

/// Whether a snapshot is the newest one of the head `ds_obj`.
///
/// Errors: `Invalid` for a snapshot in place of the head.
pub fn is_newest(tx: &mut Tx<'_>, ds_obj: u64, snap_obj: u64) -> Result<bool> {
    Ok(tx.head(ds_obj)?.prev_snap == snap_obj)
}

/// Rolls a head back that was [checked](check_rollback) and has not changed since, but for its intent log.
///
/// Errors: `Busy` if there is an intent log, which has to be destroyed before.
pub fn rollback(tx: &mut Tx<'_>, ds_obj: u64, way: Way) -> Result<()> {
    let mut ds = tx.head(ds_obj)?;
    if snapshot::has_log(tx, ds_obj)? {
        return Err(DslWriteError::Busy);
    }
    let snap = tx.snapshot(ds.prev_snap)?;
    livelist::remove(tx, ds.dir)?;

    let dead = deadlist::total(tx, ds.deadlist)?;
    let mut born = referenced(&ds);
    born.add(dead);
    let born = less(born, referenced(&snap));
    destroy::free_tree(tx, way, (&ds.bp, ds.prev_snap_txg), born)?;
    space::charge(tx, ds.dir, Part::Head, Delta::less(born))?;
    let dir = tx.dir(ds.dir)?;
    let origin_txg = dir::origin_txg(tx, &dir)?;
    let revived = deadlist::range(tx, ds.deadlist, origin_txg, u64::MAX)?;
    space::shift(tx, ds.dir, revived.used, Part::Snapshots, Part::Head)?;
    let again = space::refreservation(tx, &ds)?.min(ds.unique);
    space::charge(tx, ds.dir, Part::RefReservation, Delta::used(again as i64))?;

    let empty = deadlist::clone(tx, ds.deadlist, u64::MAX, ds.prev_snap)?;
    let old = ds.deadlist;
    invariant!(old != empty, "dataset {ds_obj} is rolled back, and keeps the deadlist {old}");
    deadlist::free(tx, old)?;
    // The snapshot still refers to what it lists.
    remaps::destroy(tx, ds_obj)?;
    features::deactivate_all(tx, ds_obj)?;
    features::inherit(tx, ds.prev_snap, ds_obj)?;
    ds.deadlist = empty;
    ds.bp = snap.bp;
    ds.referenced = snap.referenced;
    ds.compressed = snap.compressed;
    ds.uncompressed = snap.uncompressed;
    ds.unique = 0;
    ds.flags |= DS_FLAG_UNIQUE_ACCURATE;
    tx.set_dataset(ds_obj, &ds)?;
    tx.edit_dataset(ds.prev_snap, |snap| snap.unique = 0)?;
    let (now, before) = (tx.head(ds_obj)?, tx.snapshot(ds.prev_snap)?);
    invariant!(
        now.bp == before.bp && now.referenced == before.referenced,
        "dataset {ds_obj} is rolled back, and is not what snapshot {} is",
        ds.prev_snap
    );
    bookmarks::next_changed(tx, ds_obj, ds.prev_snap)
}
