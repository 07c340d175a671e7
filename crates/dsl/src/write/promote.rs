//! Promoting a clone (`dsl_dataset_promote_sync`): it and its origin's file system change places.
//!
//! The snapshots up to the clone's origin (the *shared* ones) move to the clone's directory, names,
//! bookmarks and clones included. Deadlists stay with their snapshots. Then the old head is a clone of the
//! origin, and the promoted one of whatever the old head was a clone of.
//!
//! *Space.* What moves is all that the shared snapshots have beyond the older origin: what the origin
//! refers to, and what is on the deadlists of the shared snapshots. How much of it each side counts as
//! used by snapshots is counted anew from deadlists: what is on them that is younger than the side's origin.

use super::crypt::MovedRoot;
use super::space::{self, Delta, Part};
use super::{
    DslWriteError, Result, Sizes, Tx, bookmarks, clones, crypt, deadlist, dir, errlog, limits,
    livelist, names, snapshot,
};
use crate::name_of;
use cenote_format::dsl::{DD_FLAG_USED_BREAKDOWN, DslDatasetPhys, DslDirPhys};
use cenote_format::invariant;
use cenote_format::invariant::broken;
use std::collections::HashMap;

/// Most snapshots of a dataset that are followed from one to the one before.
const MAX_SNAPSHOTS: usize = 1 << 24;

/// A dataset object and what is in it.
type Entry = (u64, DslDatasetPhys);

/// What a promotion works on (`dsl_dataset_promote_arg_t`).
struct Promotion {
    /// The clone's head and directory.
    head: Entry,
    dir: DslDirPhys,
    origin: Entry,
    /// The origin's directory and head.
    old_dir_obj: u64,
    old_dir: DslDirPhys,
    old_head: Entry,
    /// Snapshots that move with their names, newest first; the first one is the origin.
    shared: Vec<(Entry, String)>,
    /// The clone's head and snapshots, newest first.
    own: Vec<Entry>,
    /// The old head and its snapshots after the origin, newest first.
    later: Vec<Entry>,
}

/// The datasets from `from` back to the one after `until` (`snaplist_make`).
fn chain(tx: &mut Tx<'_>, from: u64, until: u64) -> Result<Vec<Entry>> {
    let (mut found, mut at) = (Vec::new(), from);
    while at != until && at != 0 {
        if found.len() >= MAX_SNAPSHOTS {
            return Err(super::mos::corrupt(from, "snapshots before each other"));
        }
        let ds = tx.dataset(at)?;
        let prev = ds.prev_snap;
        found.push((at, ds));
        at = prev;
    }
    Ok(found)
}

/// Sums over the blocks on deadlists that were born after `after` (`snaplist_space`).
fn dead_after<'a>(
    tx: &mut Tx<'_>,
    datasets: impl IntoIterator<Item = &'a Entry>,
    after: u64,
) -> Result<u64> {
    let mut bytes = 0u64;
    for (_, ds) in datasets {
        bytes = bytes.wrapping_add(deadlist::range(tx, ds.deadlist, after, u64::MAX)?.used);
    }
    Ok(bytes)
}

fn open(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Promotion> {
    let head = tx.head(ds_obj)?;
    let dir = tx.dir(head.dir)?;
    if dir.origin == 0 || Some(dir.origin) == dir::origin_snap(tx)? {
        return Err(DslWriteError::Invalid("not a cloned filesystem".into()));
    }
    let origin = tx.snapshot(dir.origin)?;
    let (old_dir_obj, old_dir) = (origin.dir, tx.dir(origin.dir)?);
    let old_head = tx.dataset(old_dir.head_dataset)?;
    let entries = tx.zap_entries(old_head.snap_names)?;
    let mut named: HashMap<u64, String> =
        entries.iter().filter_map(|e| e.u64().map(|object| (object, name_of(e)))).collect();
    let mut shared = Vec::new();
    for entry in chain(tx, dir.origin, old_dir.origin)? {
        let Some(name) = named.remove(&entry.0) else {
            return Err(super::mos::corrupt(entry.0, "has no name"));
        };
        shared.push((entry, name));
    }
    Ok(Promotion {
        own: chain(tx, ds_obj, dir.origin)?,
        later: chain(tx, old_dir.head_dataset, dir.origin)?,
        origin: (dir.origin, origin),
        old_head: (old_dir.head_dataset, old_head),
        head: (ds_obj, head),
        dir,
        old_dir_obj,
        old_dir,
        shared,
    })
}

/// The snapshots and bookmarks that would move and whose names the clone has already.
///
/// Errors: `Invalid` if the head is no clone, `Unsupported`.
pub fn conflicts(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Vec<String>> {
    let p = open(tx, ds_obj)?;
    let mut taken = Vec::new();
    for (_, name) in &p.shared {
        if snapshot::find(tx, &p.head.1, name)?.is_some() {
            taken.push(name.clone());
        }
    }
    taken.extend(bookmarks::taken(tx, p.old_head.0, &p.head, p.origin.1.creation_txg)?);
    Ok(taken)
}

/// Promotes the clone `ds_obj` (`dsl_dataset_promote_check`, `dsl_dataset_promote_sync`). Returns the encryption root that it
/// has become in its origin's place.
///
/// Errors: `Invalid` if it is no clone, `Exists` if there are [`conflicts`], `TooLong` for the name of a
/// snapshot, `NoSpace` if the clone's directory has no room for what moves, `Quota` if `snapshot_limit` would be
/// exceeded, `Unsupported`.
pub fn promote(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Option<MovedRoot>> {
    if !conflicts(tx, ds_obj)?.is_empty() {
        return Err(DslWriteError::Exists);
    }
    let p = open(tx, ds_obj)?;
    let (len, _) = names::length(tx, p.head.1.dir)?;
    for (_, name) in &p.shared {
        names::fits(len, name.len())?;
    }
    crypt::check_promotion(tx, p.head.1.dir, p.old_dir_obj)?;
    let moved = moved_space(tx, &p)?;
    space::check_transfer(tx, p.old_dir_obj, p.head.1.dir, moved.used)?;
    limits::check_move(tx, (p.old_dir_obj, p.head.1.dir), 0, p.shared.len() as u64)?;
    let unique = match p.own.last() {
        Some((_, oldest)) => {
            deadlist::range(tx, oldest.deadlist, p.origin.1.prev_snap_txg, u64::MAX)?.used
        }
        None => 0,
    };
    let (clone_part, old_part) = snapshot_parts(tx, &p)?;

    let root = crypt::promoted(tx, p.head.1.dir, p.old_dir_obj)?;
    livelist::remove(tx, p.head.1.dir)?;
    livelist::remove(tx, p.old_dir_obj)?;
    swap_origins(tx, &p, unique)?;
    for (entry, name) in &p.shared {
        move_snapshot(tx, &p, entry, name)?;
    }
    snapshot::changed(tx, p.old_dir_obj)?;
    snapshot::changed(tx, p.head.1.dir)?;
    bookmarks::promoted(tx, p.old_head.0, p.head.0, p.origin.0)?;
    errlog::promoted(tx, p.head.0, p.old_head.0, p.origin.1.creation_txg)?;

    let more = clone_part.wrapping_sub(p.dir.used_breakdown[Part::Snapshots as usize]);
    let delta = Delta::more(Sizes { used: moved.used.wrapping_sub(more), ..moved });
    space::charge(tx, p.head.1.dir, Part::Snapshots, Delta::used(more as i64))?;
    space::charge(tx, p.head.1.dir, Part::Head, delta)?;
    let more = old_part.wrapping_sub(p.old_dir.used_breakdown[Part::Snapshots as usize]);
    let delta = Delta::less(Sizes { used: moved.used.wrapping_add(more), ..moved });
    space::charge(tx, p.old_dir_obj, Part::Snapshots, Delta::used(more as i64))?;
    space::charge(tx, p.old_dir_obj, Part::Head, delta)?;
    let origins = (tx.dir(p.head.1.dir)?.origin, tx.dir(p.old_dir_obj)?.origin);
    invariant!(
        origins == (p.old_dir.origin, p.origin.0),
        "dataset {} is promoted, and the origins are {origins:?}",
        p.head.0
    );
    Ok(root)
}

/// What the shared snapshots have beyond the origin of the old head.
fn moved_space(tx: &mut Tx<'_>, p: &Promotion) -> Result<Sizes> {
    let refers = |ds: &DslDatasetPhys| Sizes {
        used: ds.referenced,
        compressed: ds.compressed,
        uncompressed: ds.uncompressed,
    };
    let mut moved = refers(&p.origin.1);
    for ((_, ds), _) in p.shared.iter().filter(|((_, ds), _)| ds.prev_snap != 0) {
        moved.add(deadlist::total(tx, ds.deadlist)?);
    }
    if p.old_dir.origin != 0 {
        let before = refers(&tx.dataset(p.old_dir.origin)?);
        moved.used = moved.used.wrapping_sub(before.used);
        moved.compressed = moved.compressed.wrapping_sub(before.compressed);
        moved.uncompressed = moved.uncompressed.wrapping_sub(before.uncompressed);
    }
    Ok(moved)
}

/// What snapshots use on both sides afterwards, by deadlists; the clone's side first. 0 where directories
/// are not broken down into parts.
fn snapshot_parts(tx: &mut Tx<'_>, p: &Promotion) -> Result<(u64, u64)> {
    let (mut of_clone, mut of_old) = (0, 0);
    if p.dir.flags & DD_FLAG_USED_BREAKDOWN != 0 {
        let since = dir::origin_txg(tx, &p.old_dir)?;
        let shared = p.shared.iter().map(|(entry, _)| entry);
        of_clone = dead_after(tx, shared.chain(&p.own), since)?;
    }
    if p.old_dir.flags & DD_FLAG_USED_BREAKDOWN != 0 {
        of_old = dead_after(tx, &p.later, p.origin.1.creation_txg)?;
    }
    Ok((of_clone, of_old))
}

/// The old head is a clone of the origin, and the clone of the old head's origin.
fn swap_origins(tx: &mut Tx<'_>, p: &Promotion, unique: u64) -> Result<()> {
    let (origin_obj, origin) = &p.origin;
    let Some((oldest, _)) = p.own.last() else {
        broken(format_args!("dataset {} is promoted, and nothing comes after its origin", p.head.0))
    };
    let old_next = origin.next_snap;
    tx.edit_dataset(*origin_obj, |origin| {
        origin.next_snap = *oldest;
        origin.unique = unique;
    })?;
    if origin.next_clones != 0 {
        tx.zap_remove(origin.next_clones, &format!("{oldest:x}"))?;
        tx.zap_set(origin.next_clones, &format!("{old_next:x}"), old_next)?;
    }
    tx.edit_dir(p.head.1.dir, |dir| dir.origin = p.old_dir.origin)?;
    tx.edit_dir(p.old_dir_obj, |dir| dir.origin = *origin_obj)?;
    if p.old_dir.clones == 0 {
        return Ok(());
    }
    move_clone(tx, (p.old_dir_obj, p.head.0), None)?;
    if p.old_dir.origin != 0 {
        let before = tx.dataset(p.old_dir.origin)?.dir;
        move_clone(tx, (before, p.old_head.0), Some((before, p.head.0)))?;
    }
    move_clone(tx, (0, 0), Some((p.head.1.dir, p.old_head.0)))
}

/// Takes a head out of the clones of one directory, and puts one into the clones of another (`dd_clones`).
/// Directory 0 stands for no directory.
fn move_clone(tx: &mut Tx<'_>, (from, gone): (u64, u64), to: Option<(u64, u64)>) -> Result<()> {
    let clones = if from == 0 { 0 } else { tx.dir(from)?.clones };
    if clones != 0 {
        tx.zap_remove(clones, &format!("{gone:x}"))?;
    }
    let Some((to, new)) = to else { return Ok(()) };
    let clones = clones::clones_of(tx, to)?;
    tx.zap_set(clones, &format!("{new:x}"), new)
}

/// Moves a snapshot, its name and its clones to the promoted clone's directory.
fn move_snapshot(tx: &mut Tx<'_>, p: &Promotion, (object, _): &Entry, name: &str) -> Result<()> {
    if !tx.zap_remove(p.old_head.1.snap_names, name)? {
        return Err(super::mos::corrupt(*object, format!("is not named {name}")));
    }
    tx.zap_add(p.head.1.snap_names, name, *object)?;
    limits::adjust(tx, p.old_dir_obj, limits::SNAPSHOTS, -1)?;
    limits::adjust(tx, p.head.1.dir, limits::SNAPSHOTS, 1)?;
    tx.edit_dataset(*object, |snap| snap.dir = p.head.1.dir)?;
    let next_clones = tx.dataset(*object)?.next_clones;
    if p.old_dir.clones == 0 {
        return Ok(());
    }
    for next in tx.zap_numbers(next_clones)? {
        let clone_dir = tx.dataset(next)?.dir;
        // The old head is there already.
        if clone_dir != p.old_dir_obj {
            let head = tx.dir(clone_dir)?.head_dataset;
            move_clone(tx, (p.old_dir_obj, head), Some((p.head.1.dir, head)))?;
        }
    }
    Ok(())
}
