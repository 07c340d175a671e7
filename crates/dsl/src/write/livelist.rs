//! Livelists: what a clone has of its own, so that destroying it costs what was written to it.
//!
//! # Idea
//!
//! To destroy a clone by walking its tree takes a read of each indirect block that differs from the origin,
//! to find the few blocks in it that are the clone's. The livelist records these blocks while they are
//! written and freed. Destroying the clone then reads the list, and no tree.
//!
//! # Structures
//!
//! ```text
//! directory of the clone ── field com.delphix:livelist ── deadlist (ZAP, sums in its bonus buffer)
//!     key k: the sub-list of blocks born after k, up to the next key ── bpobj
//!         ALLOC a   ALLOC b   FREE a   ALLOC c …      in the order in which it happened
//! ```
//!
//! An entry is a block pointer; the lowest bit of its fill count says that it is a FREE. Sums count ALLOC
//! entries less FREE ones. The feature `livelist` has one use for each livelist, livelists of destroyed clones
//! included.
//!
//! # Invariants
//!
//! - A livelist exists from the creation of its clone, or not at all: it has every block that the clone's
//!   head has and its origin has not, but for embedded ones, which need no freeing.
//! - Both entries of a block are in the same sub-list, the FREE after the ALLOC: sub-lists are told apart by
//!   births, and a key is added only for a group that has no blocks in the list yet.
//! - With no snapshots of its own, the clone's directory uses as much as the sums of its livelist say.
//!
//! # Algorithm
//!
//! Each sync of the head appends what was born and what was killed ([`synced`]). Entries of a batch are
//! sorted, so that they compress. The newest sub-list ends when it has more than `zfs_livelist_max_entries`
//! allocations. Each group that overwrites scattered blocks adds FREEs to most sub-lists, and writes the last
//! block of each anew: so all but the first sub-list, which is all of a short livelist, have small blocks.
//! Neighbours that have become small are made into one in the background ([`condense`]). When
//! the clone has little in common with its origin any more (`zfs_livelist_min_percent_shared`), or becomes
//! the clone of another snapshot, its list is removed, and it is destroyed by walking. What becomes of the
//! list of a destroyed clone is in [`delete`].
//!
//! A list that cannot be read is given up on: its clone goes on without.

pub mod condense;
pub(super) mod delete;

use super::bpobj::{self, Counts, Mark};
pub use super::deadlist::Pair;
use super::deadlist::{self, Lists};
use super::{DslWriteError, Result, Tx, dir, features};
use crate::deadlist::LIVELIST;
use crate::tunables;
use cenote_dmu::write::Synced;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::invariant::broken;
use cenote_format::{invariant, less};
pub use condense::Condensed;

/// The feature; each livelist is a use.
const FEATURE: &str = "com.delphix:livelist";

/// Starts the livelist of a new clone, if the pool has the feature.
pub(super) fn start(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    if !features::is_enabled(tx, FEATURE)? {
        return Ok(());
    }
    features::increment(tx, FEATURE)?;
    tx.zapify(dir_obj)?;
    let livelist = deadlist::create(tx)?;
    tx.zap_set(dir_obj, LIVELIST, livelist)
}

/// The livelist of a directory's head, if it has one.
fn of_dir(tx: &mut Tx<'_>, dir_obj: u64) -> Result<Option<u64>> {
    tx.field_number(dir_obj, LIVELIST)
}

/// Removes the livelist of a directory's head, if it has one (`dsl_dir_remove_livelist`): from now on it
/// would be wrong, or is not worth its keep.
pub(super) fn remove(tx: &mut Tx<'_>, dir_obj: u64) -> Result<()> {
    let Some(livelist) = of_dir(tx, dir_obj)? else { return Ok(()) };
    tx.zap_remove(dir_obj, LIVELIST)?;
    let what = format!("livelist {livelist} is not freed");
    tx.unless_unreadable(&what, |tx| deadlist::free(tx, livelist))?;
    features::decrement(tx, FEATURE)
}

/// Records what a sync of the head `ds` wrote and killed (`dsl_flush_pending_livelist`), and removes the
/// list if it is not worth its keep any more.
pub(super) fn synced(
    tx: &mut Tx<'_>,
    (ds_obj, ds): (u64, &DslDatasetPhys),
    synced: &Synced,
) -> Result<()> {
    let Some(livelist) = of_dir(tx, ds.dir)? else { return Ok(()) };
    let dir = tx.dir(ds.dir)?;
    let origin_txg = dir::origin_txg(tx, &dir)?;
    let (allocs, frees) = (own(&synced.born, origin_txg), own(&synced.killed, origin_txg));
    if allocs.is_empty() && frees.is_empty() {
        return Ok(());
    }
    let what = format!("dataset {ds_obj:#x} goes on without its livelist");
    let added = tx.unless_unreadable(&what, |tx| add(tx, (ds.dir, livelist), allocs, frees))?;
    if added.is_none() || !is_worth_it(ds.referenced, dir.used_breakdown[0]) {
        return remove(tx, ds.dir);
    }
    Ok(())
}

/// The blocks among these that a livelist records, sorted so that they compress: of each level and kind, in
/// the order in which they lie on the devices.
fn own(blocks: &[BlockPointer], origin_txg: u64) -> Vec<&BlockPointer> {
    let is_own =
        |bp: &&BlockPointer| deadlist::counts(bp) && !bp.is_embedded() && bp.birth() > origin_txg;
    let mut own: Vec<_> = blocks.iter().filter(is_own).collect();
    own.sort_unstable_by_key(|bp| (bp.0[6], bp.0[0] >> 32, bp.0[1]));
    own
}

/// Whether a clone shares enough with its origin (`dsl_livelist_should_disable`): `used` of `referenced`
/// bytes are its own.
fn is_worth_it(referenced: u64, used: u64) -> bool {
    let shared = u128::from(referenced.saturating_sub(used)) * 100;
    match shared.checked_div(referenced.into()) {
        Some(percent) => percent > tunables::LIVELIST_MIN_PERCENT_SHARED.get().into(),
        None => true,
    }
}

/// Adds entries, and looks for neighbours that can be condensed.
fn add(
    tx: &mut Tx<'_>,
    (dir_obj, livelist): (u64, u64),
    allocs: Vec<&BlockPointer>,
    frees: Vec<&BlockPointer>,
) -> Result<()> {
    let known = tx.deadlists.as_deref_mut().and_then(|keys| keys.take(livelist));
    let is_new_here = known.is_none();
    let mut lists = match known {
        Some(known) => known,
        None => deadlist::lists(tx, livelist)?,
    };
    let started = start_sub_list(tx, livelist, &mut lists)?;
    let (mut freed_from, mut sum) = (Vec::new(), deadlist::total(tx, livelist)?);
    for (blocks, mark) in [(allocs, Mark::Alloc), (frees, Mark::Free)] {
        let mut by_key = Vec::with_capacity(blocks.len());
        for bp in blocks {
            let Some((key, _)) = lists.range(..bp.birth()).next_back() else {
                let why = format!("livelist without a key for {bp:?}");
                return Err(super::mos::corrupt(livelist, why));
            };
            let sizes = (tx.space)(bp);
            match mark {
                Mark::Alloc => sum.add(sizes),
                Mark::Free => sum.take(sizes),
            }
            by_key.push((*key, bp));
        }
        // In a sub-list they stay in their order.
        by_key.sort_by_key(|(key, _)| *key);
        for of_key in by_key.chunk_by(|(a, _), (b, _)| a == b) {
            let Some((key, _)) = of_key.first() else {
                broken(format_args!("livelist {livelist}: blocks of no key"))
            };
            let list = own_list(tx, livelist, *key, &mut lists)?;
            bpobj::enqueue_as(tx, list, of_key.iter().map(|(_, bp)| *bp), mark)?;
            if mark == Mark::Free {
                freed_from.push(*key);
            }
        }
    }
    deadlist::set_total(tx, livelist, sum)?;
    let changed = |key: &u64| is_new_here || started || freed_from.contains(key);
    let pair = condense::find(tx, (dir_obj, livelist), &lists, changed)?;
    if let Some(keys) = tx.deadlists.as_deref_mut() {
        keys.condensable = keys.condensable.or(pair);
        keys.keep(livelist, lists);
    }
    Ok(())
}

/// The list of a key; starts one if the key has none.
fn own_list(tx: &mut Tx<'_>, livelist: u64, key: u64, lists: &mut Lists) -> Result<u64> {
    let list = deadlist::list_of(livelist, lists, key);
    if bpobj::shared_empty(tx)? != Some(list) {
        return Ok(list);
    }
    // Of a list with few parts little is read; of one with many each group adds to most.
    let is_first = lists.first_key_value().is_some_and(|(first, _)| *first == key);
    let block_size = if is_first { bpobj::BLOCK } else { bpobj::SMALL };
    let list = deadlist::start_list(tx, livelist, key, block_size)?;
    lists.insert(key, list);
    Ok(list)
}

/// Starts a new sub-list for this group if the livelist is empty, or the newest has enough allocations. Not
/// once the group has blocks in the list: all of them are in one sub-list. A head is synced twice in a group
/// in which accounting adds to it.
fn start_sub_list(tx: &mut Tx<'_>, livelist: u64, lists: &mut Lists) -> Result<bool> {
    let key = less!(tx.txg, 1, "groups, at a key of livelist {livelist}");
    let (txg, keys) = (tx.txg, tx.deadlists.as_deref_mut());
    let is_first = keys.is_none_or(|keys| keys.begin(txg, livelist));
    if let Some((newest, list)) = lists.last_key_value() {
        let Counts { entries, freed } = bpobj::counts(tx, *list)?;
        let is_enough = entries - freed > tunables::LIVELIST_MAX_ENTRIES.get();
        if !is_first || *newest >= key || !is_enough {
            return Ok(false);
        }
    }
    let list = deadlist::add_key(tx, livelist, key)?;
    let before = lists.insert(key, list);
    invariant!(before.is_none(), "livelist {livelist}: key {key} is there already");
    Ok(true)
}

/// Gives back a sub-list that is no part of a livelist any more.
fn free_sub_list(tx: &mut Tx<'_>, list: u64) -> Result<()> {
    match bpobj::shared_empty(tx)? == Some(list) {
        true => bpobj::release_empty(tx),
        false => bpobj::free(tx, list),
    }
}

/// How a destroyed clone's livelist is read: what it is, and where it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usable {
    /// The livelist.
    pub(super) object: u64,
    /// Its first key: no block of it is older.
    pub(super) since: u64,
    /// What is read of it, in blocks of 128 KiB: smaller ones lie one after the other.
    pub(super) reads: u64,
    /// Blocks of the clone that are in it.
    pub(super) live: u64,
}

/// The livelist of a head to be destroyed, and what it takes to read it. `None` without a livelist, or
/// it cannot be read, or it does not add up to what the clone uses (`dsl_clone_destroy_assert`): the tree is
/// right then.
pub(super) fn usable(tx: &mut Tx<'_>, ds: &DslDatasetPhys) -> Result<Option<Usable>> {
    match look(tx, ds) {
        Err(DslWriteError::Unreadable(why)) => {
            tracing::warn!("a clone is destroyed without its livelist: {why}");
            Ok(None)
        }
        found => found,
    }
}

fn look(tx: &mut Tx<'_>, ds: &DslDatasetPhys) -> Result<Option<Usable>> {
    let Some(object) = of_dir(tx, ds.dir)? else { return Ok(None) };
    let (dir, sum) = (tx.dir(ds.dir)?, deadlist::total(tx, object)?);
    // Embedded blocks count in the directory, with their logical size.
    if (dir.used, dir.compressed) != (sum.used, sum.compressed)
        || dir.uncompressed < sum.uncompressed
    {
        tracing::warn!("livelist {object} does not add up to what its clone uses: it is not used");
        return Ok(None);
    }
    let lists = deadlist::lists(tx, object)?;
    let since = lists.first_key_value().map_or(0, |(key, _)| *key);
    let (mut reads, mut live) = (0u64, 0u64);
    for list in lists.into_values() {
        let Counts { entries, freed } = bpobj::counts(tx, list)?;
        if bpobj::space(tx, list)?.used > i64::MAX as u64 {
            tracing::warn!(
                "livelist {object}: sub-list {list} has less than nothing: it is not used"
            );
            return Ok(None);
        }
        reads = reads.saturating_add(entries.div_ceil(bpobj::BATCH));
        live = live.saturating_add(entries.saturating_sub(freed.saturating_mul(2)));
    }
    Ok(Some(Usable { object, since, reads, live }))
}
