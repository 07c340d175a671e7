//! Destroying snapshots and datasets.
//!
//! *A snapshot.* What only it has are those blocks on the deadlist of the next snapshot (or head)
//! that were born after the previous one: their lists become part of the pool's `free_bpobj` whole.
//! What was on its own deadlist goes to the next one's. The key of its txg goes from the deadlists of
//! the head and of all clones of later snapshots. Its neighbours' unique space grows.
//!
//! *A dataset.* It has no snapshots of its own any more; what it has beyond its origin is all that
//! was born after it. Its root block goes on the queue `bptree_obj`, and the tree is walked in the
//! txgs to come, see [`free`](super::free). Of a clone with a [`livelist`] that takes less
//! to read, the list is queued instead. A pool without the feature `async_destroy` has no such
//! queue: there the tree is walked before anything is changed, and all of it is freed in the txg that
//! destroys the dataset.

use super::deadlist::Keys;
use super::free::{below_root, queue_tree, walk_reads_less};
use super::mos::{DIRECTORY, corrupt};
use super::space::{self, Delta, Part};
use super::{
    DslWriteError, Move, Result, Sizes, Tx, bookmarks, clones, crypt, deadlist, directory, errlog,
    features, limits, livelist, names, props, remaps, snapshot, special,
};
use cenote_dmu::ObjectSet;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::{DS_FLAG_DEFER_DESTROY, DslDatasetPhys};
use cenote_format::invariant;

pub(super) const ASYNC_DESTROY: &str = "com.delphix:async_destroy";
/// Pointers in an indirect block of the usual size: blocks that one read of a walk finds at most.
const POINTERS: u64 = 1 << 10;
/// What a walk reads besides: the root block, and dnodes.
const LEAST_READS: u64 = 2;

fn holds(tx: &mut Tx<'_>, ds: &DslDatasetPhys) -> Result<usize> {
    Ok(tx.zap_entries(ds.userrefs)?.len())
}

/// Destroys snapshots, which are known by these short names, as [`destroy_snapshot`] does; returns for each whether
/// it is gone. What they have in common is read once.
///
/// Errors: those of [`destroy_snapshot`].
pub fn destroy_snapshots(
    tx: &mut Tx<'_>,
    snapshots: &[(u64, &str)],
    defer: bool,
) -> Result<Vec<bool>> {
    keeping_keys(tx, |tx| {
        let destroy = |(object, name): &(u64, &str)| destroy_named(tx, *object, Some(name), defer);
        snapshots.iter().map(destroy).collect()
    })
}

/// Destroys a snapshot (`dsl_destroy_snapshot_sync`). With `defer`, one that is held or has clones is marked instead, to go
/// with the last of them; returns whether it is gone.
///
/// Errors: `Held`, `HasClones`, `Unsupported`.
pub fn destroy_snapshot(tx: &mut Tx<'_>, snap_obj: u64, defer: bool) -> Result<bool> {
    destroy_named(tx, snap_obj, None, defer)
}

fn destroy_named(tx: &mut Tx<'_>, snap_obj: u64, name: Option<&str>, defer: bool) -> Result<bool> {
    let snap = tx.snapshot(snap_obj)?;
    let (held, has_clones) = (holds(tx, &snap)? > 0, snap.num_children > 1);
    if defer && (held || has_clones) {
        tx.edit_dataset(snap_obj, |ds| ds.flags |= DS_FLAG_DEFER_DESTROY)?;
        return Ok(false);
    }
    if held {
        return Err(DslWriteError::Held);
    }
    if has_clones {
        return Err(DslWriteError::HasClones);
    }
    check_snapshot(tx, snap_obj)?;
    let head_obj = tx.dir(snap.dir)?.head_dataset;
    remove_snapshot(tx, (snap_obj, name), &snap, head_obj)?;
    Ok(true)
}

/// Whether a snapshot is one that this software can destroy (`dsl_destroy_snapshot_check_impl`). It may be in use.
///
/// Errors: `Unsupported`.
pub fn check_snapshot(tx: &mut Tx<'_>, snap_obj: u64) -> Result<()> {
    tx.snapshot(snap_obj).map(drop)
}

/// Makes a change that meets the same deadlists and bookmarks again and again: they are read once, and bookmarks
/// are written at its end.
pub(super) fn keeping_keys<T>(
    tx: &mut Tx<'_>,
    change: impl FnOnce(&mut Tx<'_>) -> Result<T>,
) -> Result<T> {
    let mut keys = Keys::of_one_change();
    let before = tx.frees.len();
    let (frees, obsolete) = (std::mem::take(&mut tx.frees), std::mem::take(&mut tx.obsolete));
    let moves = std::mem::take(&mut tx.moves);
    let Tx { txg, now, chance, space, usable, pool, .. } = *tx;
    let (mos, who, deadlists) = (&mut *tx.mos, tx.who.clone(), Some(&mut keys));
    let mut inner =
        Tx { mos, txg, now, chance, space, usable, pool, who, frees, obsolete, moves, deadlists };
    let done = change(&mut inner);
    let done = done.and_then(|done| bookmarks::write_kept(&mut inner).map(|()| done));
    (tx.frees, tx.obsolete, tx.moves) = (inner.frees, inner.obsolete, inner.moves);
    let after = tx.frees.len();
    invariant!(before <= after, "of {before} blocks that are freed a change has kept {after}");
    let unwritten = keys.kept_bookmarks().map_or(0, |kept| kept.heads.len());
    invariant!(
        done.is_err() || unwritten == 0,
        "a change ends, and bookmarks of {unwritten} heads are not written"
    );
    if let Some(outer) = tx.deadlists.as_deref_mut() {
        outer.follow(&keys);
    }
    done
}

/// Destroys a snapshot without checks (`dsl_destroy_snapshot_sync_impl`).
fn remove_snapshot(
    tx: &mut Tx<'_>,
    (snap_obj, name): (u64, Option<&str>),
    snap: &DslDatasetPhys,
    head_obj: u64,
) -> Result<()> {
    let clones = snap.num_children;
    invariant!(
        clones == 1,
        "snapshot {snap_obj} is destroyed, and is the origin of clones: {clones}"
    );
    let next = tx.dataset(snap.next_snap)?;
    if next.prev_snap != snap_obj {
        return Err(corrupt(snap_obj, "the next snapshot has another one before it"));
    }
    let keep_keys = bookmarks::snapshot_destroyed(tx, head_obj, snap, next.deadlist)?;
    features::deactivate_all(tx, snap_obj)?;
    let linear = unlink(tx, snap_obj, snap)?;
    tx.edit_dataset(snap.next_snap, |next| {
        next.prev_snap = snap.prev_snap;
        next.prev_snap_txg = snap.prev_snap_txg;
    })?;
    move_blocks(tx, snap, next.deadlist, linear)?;
    remaps::snapshot_destroyed(tx, (snap_obj, snap), snap.next_snap)?;
    if !keep_keys {
        clones::remove_clones_key(tx, snap.dir, snap.creation_txg)?;
    }
    if next.num_children > 0 {
        let after = tx.dataset(next.next_snap)?.deadlist;
        let shared = deadlist::range(tx, after, snap.prev_snap_txg, snap.creation_txg)?;
        tx.edit_dataset(snap.next_snap, |next| {
            next.unique = next.unique.wrapping_add(shared.used);
        })?;
        if !keep_keys {
            let head = tx.dataset(head_obj)?.deadlist;
            deadlist::remove_key(tx, head, snap.creation_txg)?;
        }
        remaps::remove_key(tx, head_obj, snap.creation_txg)?;
    } else {
        recount_head(tx, snap.next_snap)?;
    }
    let head = tx.dataset(head_obj)?;
    remove_name(tx, head.snap_names, snap_obj, name)?;
    snapshot::changed(tx, snap.dir)?;
    limits::adjust(tx, snap.dir, limits::SNAPSHOTS, -1)?;
    props::clear_bootfs(tx, snap_obj)?;
    let now = tx.dataset(snap.next_snap)?;
    let (is, was) = ((now.prev_snap, now.prev_snap_txg), (snap.prev_snap, snap.prev_snap_txg));
    invariant!(is == was, "what came after snapshot {snap_obj} comes after {is:?}, not {was:?}");
    for zap in [snap.next_clones, snap.props, snap.userrefs] {
        if zap != 0 {
            tx.mos.free(zap)?;
        }
    }
    tx.moves.push(Move::Gone { ds: snap_obj, next: snap.next_snap });
    tx.free_zapified(snap_obj)
}

/// Removes a snapshot from `names` (`dsl_dataset_snap_remove`). By its name, if it is known; all of them are gone through
/// else.
fn remove_name(tx: &mut Tx<'_>, names: u64, snap_obj: u64, known: Option<&str>) -> Result<()> {
    if let Some(name) = known
        && tx.zap_number(names, name)? == Some(snap_obj)
    {
        return tx.zap_remove(names, name).map(drop);
    }
    let name = names::name_in(tx, names, snap_obj)?;
    tx.zap_remove(names, &name).map(drop)
}

/// Takes a snapshot out of what its previous one says comes after it (`dsl_dataset_remove_from_next_clones`); whether that is
/// of the same dataset.
fn unlink(tx: &mut Tx<'_>, snap_obj: u64, snap: &DslDatasetPhys) -> Result<bool> {
    if snap.prev_snap == 0 {
        return Ok(false);
    }
    let mut prev = tx.dataset(snap.prev_snap)?;
    if prev.next_snap == snap_obj {
        prev.next_snap = snap.next_snap;
        tx.set_dataset(snap.prev_snap, &prev)?;
        return Ok(true);
    }
    if prev.next_clones != 0 {
        tx.zap_remove(prev.next_clones, &format!("{snap_obj:x}"))?;
        tx.zap_set(prev.next_clones, &format!("{:x}", snap.next_snap), snap.next_snap)?;
    }
    Ok(false)
}

/// Moves what only the snapshot has to the pool's list of blocks to be freed, and its deadlist to
/// `next`'s. `linear`: the previous snapshot is of the same dataset.
fn move_blocks(tx: &mut Tx<'_>, snap: &DslDatasetPhys, next: u64, linear: bool) -> Result<()> {
    if linear {
        let before = tx.dataset(snap.prev_snap)?.prev_snap_txg;
        let shared = deadlist::range(tx, next, before, snap.prev_snap_txg)?;
        tx.edit_dataset(snap.prev_snap, |prev| {
            prev.unique = prev.unique.wrapping_add(shared.used);
        })?;
    }
    if deadlist::is_plain(tx, next)? {
        return free_plain(tx, snap, next);
    }
    let freed = deadlist::range(tx, next, snap.prev_snap_txg, u64::MAX)?;
    space::charge(tx, snap.dir, Part::Snapshots, Delta::less(freed))?;
    let Some(free) = directory::entry(tx, directory::FREE_BPOBJ)? else {
        return Err(corrupt(DIRECTORY, "no free_bpobj"));
    };
    deadlist::move_from(tx, next, snap.prev_snap_txg, free)?;
    special::charge_free(tx, Delta::more(freed))?;
    deadlist::merge(tx, next, snap.deadlist)
}

/// The same where both deadlists are plain, and nothing is freed later than at once (`process_old_deadlist`): what the
/// previous snapshot has as well goes on the snapshot's own deadlist, which then is the one that `next` keeps.
fn free_plain(tx: &mut Tx<'_>, snap: &DslDatasetPhys, next: u64) -> Result<()> {
    let (mut shared, mut freed) = (Vec::new(), Sizes::default());
    for bp in deadlist::entries_of_plain(tx, next)? {
        if bp.birth() <= snap.prev_snap_txg {
            shared.push(bp);
        } else {
            freed.add((tx.space)(&bp));
            tx.free(&bp);
        }
    }
    space::charge(tx, snap.dir, Part::Snapshots, Delta::less(freed))?;
    deadlist::insert(tx, snap.deadlist, &shared)?;
    tx.edit_dataset(snap.next_snap, |ds| ds.deadlist = snap.deadlist)?;
    deadlist::free(tx, next)
}

/// Computes anew what is unique to a head whose previous snapshot changed, and what its
/// refreservation keeps (`dsl_dataset_recalc_head_uniq`).
fn recount_head(tx: &mut Tx<'_>, head_obj: u64) -> Result<()> {
    let mut head = tx.dataset(head_obj)?;
    let shared = match head.prev_snap {
        0 => 0,
        prev => tx.dataset(prev)?.referenced,
    };
    let dead = deadlist::total(tx, head.deadlist)?.used;
    let old = head.unique;
    head.unique = head.referenced.wrapping_sub(shared.wrapping_sub(dead));
    tx.set_dataset(head_obj, &head)?;
    let reserved = space::refreservation(tx, &head)?;
    let less = head.unique.saturating_sub(old).min(reserved.saturating_sub(old)) as i64;
    space::charge(tx, head.dir, Part::RefReservation, Delta::used(less.wrapping_neg()))
}

/// How what a head has of its own is freed.
#[derive(Debug)]
pub enum Way {
    /// At once: what is below its root block. In pools without the feature `async_destroy`.
    AtOnce(Vec<BlockPointer>),
    /// Bit by bit, by walking its tree.
    Tree,
    /// Bit by bit, as its livelist says.
    Livelist(livelist::Usable),
}

impl Way {
    /// The way for a head's tree, beyond its newest snapshot.
    pub(super) fn through_tree(tx: &mut Tx<'_>, ds: &DslDatasetPhys) -> Result<Way> {
        match features::is_enabled(tx, ASYNC_DESTROY)? {
            true => Ok(Way::Tree),
            false => Ok(Way::AtOnce(below_root(tx, &ds.bp, ds.prev_snap_txg)?)),
        }
    }

    /// The way for a head that is destroyed: the one that reads less. A livelist's length is known. It has
    /// an entry for each block that a walk would find, so that it is shorter unless much of it cancels out;
    /// then the walk's reads are counted ahead, level by level, until there are more than the livelist's.
    fn of(tx: &mut Tx<'_>, ds: &DslDatasetPhys) -> Result<Way> {
        let way = Way::through_tree(tx, ds)?;
        if !matches!(way, Way::Tree) {
            return Ok(way);
        }
        let Some(list) = livelist::usable(tx, ds)? else { return Ok(way) };
        let least = list.live.div_ceil(POINTERS).saturating_add(LEAST_READS);
        if list.reads > least && walk_reads_less(tx, &ds.bp, ds.prev_snap_txg, list.reads) {
            return Ok(way);
        }
        Ok(Way::Livelist(list))
    }

    /// How the history calls it, with the transaction group that all of it is younger than.
    pub fn describe(&self, since: u64) -> String {
        match self {
            Way::AtOnce(_) => format!("(synchronous, mintxg={since})"),
            Way::Tree => format!("(bptree, mintxg={since})"),
            Way::Livelist(list) => format!("(livelist, mintxg={})", list.since),
        }
    }
}

/// Whether a file system or volume can be destroyed, once it has no intent log (`dsl_destroy_head_check_impl`).
///
/// Errors: `HasSnapshots`, `HasChildren`, `Invalid` for the pool itself, and for a dataset that cannot
/// be read in full in a pool that frees all of it at once; `Unsupported`.
pub fn check_head(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Way> {
    let ds = tx.head(ds_obj)?;
    let dir = tx.dir(ds.dir)?;
    if dir.parent == 0 || dir.head_dataset != ds_obj {
        return Err(DslWriteError::Invalid("is no dataset that can be destroyed".into()));
    }
    if ds.prev_snap != 0 && tx.dataset(ds.prev_snap)?.next_snap == ds_obj {
        return Err(DslWriteError::HasSnapshots);
    }
    if !tx.zap_is_empty(dir.children)? {
        return Err(DslWriteError::HasChildren);
    }
    Way::of(tx, &ds)
}

/// Destroys a file system or volume, with its directory. Its blocks are freed by
/// [`destroy_step`](super::free::destroy_step). If it is the last that a snapshot marked for
/// destruction was kept for, that goes, too.
///
/// Errors: those of [`check_head`]; `Busy` if there is an intent log, which has to be destroyed before.
pub fn destroy_head(tx: &mut Tx<'_>, ds_obj: u64) -> Result<()> {
    let way = check_head(tx, ds_obj)?;
    destroy_checked(tx, ds_obj, way)
}

/// As [`destroy_head`], of a head that was checked and has not changed since, but for its intent log.
///
/// Errors: `Busy` if there is an intent log.
pub fn destroy_checked(tx: &mut Tx<'_>, ds_obj: u64, way: Way) -> Result<()> {
    let ds = tx.head(ds_obj)?;
    let contents = ObjectSet::open(tx.mos.synced().store().clone(), ds_obj, ds.bp)?;
    if !contents.phys().zil.log.is_hole() {
        return Err(DslWriteError::Busy);
    }
    let origin = goes_along(tx, ds_obj)?;
    remove_head(tx, ds_obj, way)?;
    if let Some(origin) = origin {
        destroy_snapshot(tx, origin, false)?;
    }
    Ok(())
}

/// The origin of a clone that goes with it: one that is marked for destruction, and kept by nothing else.
///
/// Errors: the MOS cannot be read.
pub fn goes_along(tx: &mut Tx<'_>, ds_obj: u64) -> Result<Option<u64>> {
    let origin = tx.head(ds_obj)?.prev_snap;
    if origin == 0 {
        return Ok(None);
    }
    let snapshot = tx.dataset(origin)?;
    let marked = snapshot.flags & DS_FLAG_DEFER_DESTROY != 0 && snapshot.num_children == 2;
    Ok((marked && holds(tx, &snapshot)? == 0).then_some(origin))
}

/// Destroys a head without checks (`dsl_destroy_head_sync_impl`).
fn remove_head(tx: &mut Tx<'_>, ds_obj: u64, way: Way) -> Result<()> {
    let ds = tx.head(ds_obj)?;
    if !matches!(way, Way::Livelist(_)) {
        livelist::remove(tx, ds.dir)?;
    }
    if space::refreservation(tx, &ds)? != 0 {
        space::set_refreservation(tx, ds_obj, 0)?;
    }
    features::deactivate_all(tx, ds_obj)?;
    leave_origin(tx, ds_obj, &ds)?;
    // A clone's deadlist holds what its origin still has.
    deadlist::free(tx, ds.deadlist)?;
    remaps::destroy(tx, ds_obj)?;
    let dir = tx.dir(ds.dir)?;
    let all = Sizes { used: dir.used, compressed: dir.compressed, uncompressed: dir.uncompressed };
    space::charge(tx, ds.dir, Part::Head, Delta::less(all))?;
    let dir = tx.dir(ds.dir)?;
    let left = [dir.used, dir.compressed, dir.uncompressed];
    invariant!(left == [0; 3], "dataset {ds_obj} is destroyed, and is charged {left:?} of {all:?}");
    match way {
        Way::Livelist(list) => drop(livelist::delete::queue(tx, ds.dir, list.object)?),
        way => free_tree(tx, way, (&ds.bp, ds.prev_snap_txg), all)?,
    }
    tx.edit_dir(ds.dir, |dir| dir.head_dataset = 0)?;
    tx.mos.free(ds.snap_names)?;
    bookmarks::free(tx, ds_obj)?;
    props::clear_bootfs(tx, ds_obj)?;
    tx.moves.push(Move::Gone { ds: ds_obj, next: 0 });
    tx.free_zapified(ds_obj)?;
    remove_dir(tx, ds.dir)?;
    errlog::forget(tx, ds_obj)
}

/// Frees a head's tree: the blocks born after `since`, which are `all` in size.
pub(super) fn free_tree(
    tx: &mut Tx<'_>,
    way: Way,
    (root, since): (&BlockPointer, u64),
    all: Sizes,
) -> Result<()> {
    match way {
        Way::AtOnce(below) => {
            let root = (root.birth() > since).then_some(root);
            below.iter().chain(root).for_each(|bp| tx.free(bp));
            Ok(())
        }
        Way::Tree | Way::Livelist(_) => {
            queue_tree(tx, root, since, all)?;
            special::charge_free(tx, Delta::more(all))
        }
    }
}

/// The head is no clone of its origin any more.
fn leave_origin(tx: &mut Tx<'_>, ds_obj: u64, ds: &DslDatasetPhys) -> Result<()> {
    if ds.prev_snap == 0 {
        return Ok(());
    }
    let name = format!("{ds_obj:x}");
    let mut origin = tx.dataset(ds.prev_snap)?;
    if origin.next_clones != 0 {
        tx.zap_remove(origin.next_clones, &name)?;
    }
    let fewer = origin.num_children.checked_sub(1);
    origin.num_children =
        fewer.ok_or_else(|| corrupt(ds.prev_snap, "fewer clones than there are"))?;
    tx.set_dataset(ds.prev_snap, &origin)?;
    let clones = tx.dir(origin.dir)?.clones;
    if clones != 0 {
        tx.zap_remove(clones, &name)?;
    }
    Ok(())
}

/// Destroys a directory without head and children (`dsl_dir_destroy_sync`).
fn remove_dir(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    crypt::release(tx, dir_obj)?;
    space::reserve(tx, dir_obj, 0)?;
    let dir = tx.dir(dir_obj)?;
    let head = dir.head_dataset;
    invariant!(head == 0, "directory {dir_obj} is destroyed, and has the head {head}");
    let siblings = tx.dir(dir.parent)?.children;
    let name = names::name_in(tx, siblings, dir_obj)?;
    limits::adjust(tx, dir.parent, limits::FILESYSTEMS, -1)?;
    tx.zap_remove(siblings, &name)?;
    for permissions in tx.zap_numbers(dir.deleg)? {
        tx.mos.free(permissions)?;
    }
    for zap in [dir.children, dir.props, dir.clones, dir.deleg] {
        if zap != 0 {
            tx.mos.free(zap)?;
        }
    }
    tx.free_zapified(dir_obj)
}
