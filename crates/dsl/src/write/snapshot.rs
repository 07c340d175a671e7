//! Taking and renaming snapshots (`dsl_dataset_snapshot_sync_impl`, `dsl_dataset_rename_snapshot`).
//!
//! A snapshot takes over the head's root block, its deadlist and its place in the chain. The head
//! gets a new, empty deadlist, with a key more, and nothing is unique to it any more: what was
//! unique could only be freed by destroying the snapshot, too. A refreservation is then charged
//! anew.

use super::space::{self, Delta, Part};
use super::{
    DslWriteError, Move, Result, Tx, bookmarks, crypt, dataset, deadlist, dir, features, limits,
    names, remaps,
};
use crate::name_of;
use cenote_dmu::ObjectSet;
use cenote_dmu::zap::{Match, Zap};
use cenote_format::dmu::ZilHeader;
use cenote_format::dsl::{
    DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT, DS_FLAG_UNIQUE_ACCURATE, DslDatasetPhys,
};
use cenote_format::encode::zap::Value;
use cenote_format::invariant;

/// Field of a directory: when the list of its snapshots changed, in seconds and nanoseconds.
const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";

/// Takes a snapshot of the head `ds_obj` as its last sync left it, and returns its object
/// (`dsl_dataset_snapshot_sync`). The head's contents must have been synced in this txg before, if they were changed.
///
/// A log that was claimed but not replayed stays with the head: the snapshot has the state before it. Where some of it was replayed
/// there is no snapshot before the rest is.
///
/// Errors: `Exists`, `TooLong`, `Invalid` name, `Again` if one was taken in this txg, `Busy` if the
/// contents are incomplete or there is an intent log that is not claimed, `NoSpace` if a refreservation could not
/// be honoured, `Unsupported`.
pub fn snapshot(tx: &mut Tx<'_>, ds_obj: u64, name: &str) -> Result<u64> {
    names::check(name)?;
    let ds = tx.head(ds_obj)?;
    if ds.prev_snap_txg >= tx.txg {
        return Err(DslWriteError::Again);
    }
    if find(tx, &ds, name)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    // Software from before version 27 takes every log that a snapshot names for one that is to be replayed. What is
    // replayed in part is a state that was never acknowledged.
    let none_at_all = !features::has_flags(tx)?;
    let is_live = |zil: ZilHeader| {
        !zil.log.is_hole() && (zil.claim_txg == 0 || zil.replay_seq != 0 || none_at_all)
    };
    if ds.flags & DS_FLAG_INCONSISTENT != 0 || log_header(tx, ds_obj, &ds)?.is_some_and(is_live) {
        return Err(DslWriteError::Busy);
    }
    let (len, _) = names::length(tx, ds.dir)?;
    names::fits(len, name.len())?;
    let reserved = space::refreservation(tx, &ds)?.min(ds.unique);
    if reserved > space::available_to_dir(tx, ds.dir, None)? {
        return Err(DslWriteError::NoSpace);
    }
    take(tx, ds_obj, name)
}

/// The header of a head's intent log; `None`: its root block is of this group.
fn log_header(tx: &Tx<'_>, ds_obj: u64, ds: &DslDatasetPhys) -> Result<Option<ZilHeader>> {
    if ds.bp.logical_birth() >= tx.txg {
        return Ok(None);
    }
    let set = ObjectSet::open(tx.mos.synced().store().clone(), ds_obj, ds.bp)?;
    Ok(Some(set.phys().zil))
}

/// Whether a head has an intent log. A head that is written to has no log.
///
/// # Errors
/// `Unreadable`: the root block, which would say so, cannot be read.
pub fn has_log(tx: &mut Tx<'_>, ds_obj: u64) -> Result<bool> {
    let ds = tx.head(ds_obj)?;
    Ok(log_header(tx, ds_obj, &ds)?.is_some_and(|zil| !zil.log.is_hole()))
}

/// Takes a snapshot without checks (`dsl_dataset_snapshot_sync_impl`).
pub(super) fn take(tx: &mut Tx<'_>, ds_obj: u64, name: &str) -> Result<u64> {
    let mut ds = tx.head(ds_obj)?;
    limits::adjust(tx, ds.dir, limits::SNAPSHOTS, 1)?;
    // That of $ORIGIN must be older than any dataset.
    let txg = if name == dir::ORIGIN { 1 } else { tx.txg };
    let before = ds.prev_snap_txg;
    invariant!(before < txg, "dataset {ds_obj}: a snapshot in group {txg} behind one of {before}");
    let snap = DslDatasetPhys {
        next_snap: ds_obj,
        snap_names: 0,
        num_children: 1,
        creation_time: tx.now,
        creation_txg: txg,
        unique: 0,
        fsid_guid: tx.random_fsid()?,
        guid: tx.random()?,
        next_clones: 0,
        props: 0,
        userrefs: 0,
        ..ds.clone()
    };
    let snap_obj = dataset::allocate(tx)?;
    tx.moves.push(Move::Snapshotted { head: ds_obj, snap: snap_obj });
    tx.set_dataset(snap_obj, &snap)?;
    features::inherit(tx, ds_obj, snap_obj)?;
    crypt::name_vectors(tx, ds.dir, snap_obj)?;
    put_before(tx, ds_obj, ds.prev_snap, snap_obj)?;

    let again = space::refreservation(tx, &ds)?.min(ds.unique);
    space::charge(tx, ds.dir, Part::RefReservation, Delta::used(again as i64))?;

    let new = deadlist::clone(tx, ds.deadlist, u64::MAX, ds.prev_snap)?;
    deadlist::add_key(tx, new, ds.prev_snap_txg)?;
    for key in bookmarks::keys(tx, (ds_obj, &ds))? {
        deadlist::add_key(tx, new, key)?;
    }
    remaps::swap(tx, ds_obj, snap_obj)?;
    let old = std::mem::replace(&mut ds.deadlist, new);
    invariant!(old != new, "dataset {ds_obj} and its snapshot {snap_obj} have the deadlist {new}");
    ds.prev_snap = snap_obj;
    ds.prev_snap_txg = txg;
    ds.unique = 0;
    ds.flags |= DS_FLAG_UNIQUE_ACCURATE;
    tx.set_dataset(ds_obj, &ds)?;
    tx.zap_add(ds.snap_names, name, snap_obj)?;
    changed(tx, ds.dir)?;
    let (head, snap) = (tx.dataset(ds_obj)?, tx.dataset(snap_obj)?);
    let (is, before) = ((snap_obj, snap.creation_txg), (head.prev_snap, head.prev_snap_txg));
    invariant!(
        is == before && snap.deadlist == old && head.deadlist == new,
        "dataset {ds_obj} comes after {before:?}, not after its new snapshot {is:?}"
    );
    Ok(snap_obj)
}

/// Puts the new snapshot `snap` between a head and its previous snapshot.
fn put_before(tx: &mut Tx<'_>, head: u64, prev_obj: u64, snap: u64) -> Result<()> {
    if prev_obj == 0 {
        return Ok(());
    }
    let mut prev = tx.dataset(prev_obj)?;
    if prev.next_snap == head {
        prev.next_snap = snap;
        return tx.set_dataset(prev_obj, &prev);
    }
    // The head is a clone that had no snapshot yet.
    if prev.next_clones != 0 {
        tx.zap_remove(prev.next_clones, &format!("{head:x}"))?;
        tx.zap_set(prev.next_clones, &format!("{snap:x}"), snap)?;
    }
    Ok(())
}

/// Notes that the list of snapshots of a directory changed (`dsl_dir_snap_cmtime_update`).
pub(super) fn changed(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    if !features::is_enabled(tx, features::EXTENSIBLE)? {
        return Ok(());
    }
    tx.zapify(dir_obj)?;
    let now = tx.now;
    tx.zap_put(dir_obj, SNAPSHOTS_CHANGED, &Value::U64(&[now, 0]))
}

/// The stored name and the object of a snapshot. In a dataset with `casesensitivity=insensitive` case
/// does not count in names of snapshots either.
pub(super) fn find(
    tx: &mut Tx<'_>,
    head: &DslDatasetPhys,
    name: &str,
) -> Result<Option<(String, u64)>> {
    let names = Zap::open(&tx.view(head.snap_names)?)?;
    let entry = if head.flags & DS_FLAG_CI_DATASET != 0 {
        names.lookup_norm(name.as_bytes(), Match { fold_case: true })?
    } else {
        names.lookup(name.as_bytes())?
    };
    Ok(entry.and_then(|e| e.u64().map(|object| (name_of(&e), object))))
}

/// Renames a snapshot of the head `ds_obj` (`dsl_dataset_rename_snapshot_sync_impl`).
///
/// Errors: `NotFound`, `Exists`, `TooLong`, `Invalid` name.
pub fn rename_snapshot(tx: &mut Tx<'_>, ds_obj: u64, from: &str, to: &str) -> Result<()> {
    names::check(to)?;
    let ds = tx.head(ds_obj)?;
    let (old, object) = find(tx, &ds, from)?.ok_or(DslWriteError::NotFound)?;
    if find(tx, &ds, to)?.is_some() {
        return Err(DslWriteError::Exists);
    }
    let (len, _) = names::length(tx, ds.dir)?;
    names::fits(len, to.len())?;
    tx.zap_remove(ds.snap_names, &old)?;
    tx.zap_add(ds.snap_names, to, object)?;
    changed(tx, ds.dir)
}

/// The object of the snapshot `name` of the head `ds_obj`.
pub fn find_snapshot(tx: &mut Tx<'_>, ds_obj: u64, name: &str) -> Result<Option<u64>> {
    let ds = tx.head(ds_obj)?;
    Ok(find(tx, &ds, name)?.map(|(_, object)| object))
}
