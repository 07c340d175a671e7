//! Remap deadlists: what OpenZFS noted of blocks on removed vdevs whose pointers it rewrote
//! (`ds_remap_deadlist`).
//!
//! When OpenZFS writes an indirect block it makes the pointers in it that lead to a removed vdev lead to where
//! the blocks are now. Snapshots keep the old pointers. So the old place of such a block goes on a deadlist beside
//! the dataset's own, with the same keys, and moves with it: to a new snapshot, to the next one of a
//! destroyed snapshot. What only the destroyed snapshot referred to goes to the pool's list `obsolete_bpobj`, and
//! from there becomes obsolete in the removed vdev's mapping. No space is freed by that: the block goes by its new
//! pointer, as any other. Nothing is rewritten here, so a dataset gets such a list only when one moves.
//!
//! Each list is a use of the feature `obsolete_counts`, and so is the pool's.

use super::mos::corrupt;
use super::{Result, Tx, bpobj, deadlist, directory, features};
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::less;

/// Field of a dataset (`DS_FIELD_REMAP_DEADLIST`).
const FIELD: &str = "com.delphix:remap_deadlist";
const FEATURE: &str = "com.delphix:obsolete_counts";
/// Entry of the object directory (`DMU_POOL_OBSOLETE_BPOBJ`).
const OBSOLETE: &str = "com.delphix:obsolete_bpobj";

fn set(tx: &mut Tx<'_>, ds_obj: u64, list: Option<u64>) -> Result<()> {
    match list {
        Some(list) => {
            tx.zapify(ds_obj)?;
            tx.zap_set(ds_obj, FIELD, list)
        }
        None => tx.zap_remove(ds_obj, FIELD).map(drop),
    }
}

/// Two datasets swap their lists (`dsl_dataset_swap_remap_deadlists`); so a new snapshot gets that of its head.
pub(super) fn swap(tx: &mut Tx<'_>, one: u64, other: u64) -> Result<()> {
    let (ours, theirs) = (tx.field_number(one, FIELD)?, tx.field_number(other, FIELD)?);
    for (ds_obj, had, gets) in [(one, ours, theirs), (other, theirs, ours)] {
        if had != gets {
            set(tx, ds_obj, gets)?;
        }
    }
    Ok(())
}

/// Takes away a dataset's list: all in it is referred to by a snapshot that stays, or is in another list
/// (`dsl_dataset_destroy_remap_deadlist`).
pub(super) fn destroy(tx: &mut Tx<'_>, ds_obj: u64) -> Result<()> {
    let Some(list) = tx.field_number(ds_obj, FIELD)? else { return Ok(()) };
    deadlist::free(tx, list)?;
    forget(tx, ds_obj)
}

/// A dataset's list is gone.
fn forget(tx: &mut Tx<'_>, ds_obj: u64) -> Result<()> {
    set(tx, ds_obj, None)?;
    features::decrement(tx, FEATURE)
}

/// The list of a dataset, made if it is missing (`dsl_dataset_create_remap_deadlist`).
fn of_dataset(tx: &mut Tx<'_>, ds_obj: u64) -> Result<u64> {
    if let Some(list) = tx.field_number(ds_obj, FIELD)? {
        return Ok(list);
    }
    let ds = tx.dataset(ds_obj)?;
    let list = deadlist::clone(tx, ds.deadlist, u64::MAX, ds.prev_snap)?;
    set(tx, ds_obj, Some(list))?;
    features::increment(tx, FEATURE)?;
    Ok(list)
}

/// A snapshot is destroyed, and its deadlist is part of that of the dataset `next` already
/// (`dsl_destroy_snapshot_handle_remaps`).
pub(super) fn snapshot_destroyed(
    tx: &mut Tx<'_>,
    (snap_obj, snap): (u64, &DslDatasetPhys),
    next: u64,
) -> Result<()> {
    if let Some(list) = tx.field_number(next, FIELD)? {
        let obsolete = match directory::entry(tx, OBSOLETE)? {
            Some(obsolete) => obsolete,
            None => {
                let obsolete = bpobj::create(tx, bpobj::BLOCK)?;
                directory::set_entry(tx, OBSOLETE, obsolete)?;
                features::increment(tx, FEATURE)?;
                obsolete
            }
        };
        deadlist::move_from(tx, list, snap.prev_snap_txg, obsolete)?;
    }
    if let Some(list) = tx.field_number(snap_obj, FIELD)? {
        let into = of_dataset(tx, next)?;
        deadlist::merge(tx, into, list)?;
        forget(tx, snap_obj)?;
    }
    Ok(())
}

/// Removes the key of a destroyed snapshot, if a dataset's list has it.
pub(super) fn remove_key(tx: &mut Tx<'_>, ds_obj: u64, key: u64) -> Result<()> {
    let Some(list) = tx.field_number(ds_obj, FIELD)? else { return Ok(()) };
    if deadlist::lists(tx, list)?.contains_key(&key) {
        deadlist::remove_key(tx, list, key)?;
    }
    Ok(())
}

/// Makes up to `left` of what is on the pool's list obsolete, and takes away the list if it is empty
/// (`dsl_scan_obsolete_block_cb`). True if there is more.
pub(super) fn step(tx: &mut Tx<'_>, left: &mut u64) -> Result<bool> {
    let Some(list) = directory::entry(tx, OBSOLETE)? else { return Ok(false) };
    let blocks = bpobj::take(tx, list, *left)?;
    *left = less!(*left, blocks.len() as u64, "blocks that the group may free");
    for bp in blocks {
        let dva = bp.dva(0).ok_or_else(|| corrupt(list, "an obsolete block that is nowhere"))?;
        tx.obsolete.push(dva);
    }
    if !bpobj::is_empty(tx, list)? {
        return Ok(true);
    }
    bpobj::free(tx, list)?;
    directory::remove_entry(tx, OBSOLETE)?;
    features::decrement(tx, FEATURE)?;
    Ok(false)
}
