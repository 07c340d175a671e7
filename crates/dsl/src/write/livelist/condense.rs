//! Condensing: two neighbouring sub-lists become one, without what cancels out.
//!
//! A pair is chosen while a group is synced ([`find`]): both are complete, for neither is the newest, and
//! together they have fewer live blocks than a sub-list may have. It is read from the group on disk
//! ([`read`]), by a background thread, and replaced in a later group ([`apply`]). Entries that were
//! added meanwhile follow what was kept. Whatever happens to the livelist between the two makes [`apply`]
//! find other sub-lists than were read, and leave everything as it is: a destroyed or promoted clone, a list
//! that is not worth its keep. An export ends the thread, and nothing is lost but its work.

use super::{Lists, Mark, Pair, bpobj, deadlist, free_sub_list, of_dir};
use crate::deadlist::Freed;
use crate::tunables::{self, LIVELIST_MAX_ENTRIES};
use crate::write::{DslWriteError, Result, Tx};
use cenote_dmu::{ObjectSet, Result as ReadResult};
use cenote_format::blkptr::BlockPointer;
use cenote_format::invariant;
use std::sync::Arc;

/// A pair that was read.
#[derive(Debug)]
pub struct Condensed {
    pair: Pair,
    /// The blocks that are live.
    keep: Vec<BlockPointer>,
    /// How many entries each had.
    seen: [u64; 2],
}

/// Finds the first pair that can be condensed (`dsl_livelist_try_condense`), among those with a sub-list
/// that `changed`. The newest sub-list is left alone: it goes on growing.
pub(super) fn find(
    tx: &mut Tx<'_>,
    (dir_obj, livelist): (u64, u64),
    lists: &Lists,
    changed: impl Fn(&u64) -> bool,
) -> Result<Option<Pair>> {
    let complete = lists.len().saturating_sub(1);
    let pairs = lists.iter().zip(lists.iter().skip(1)).take(complete.saturating_sub(1));
    for ((key, list), (next_key, next)) in pairs {
        if !changed(key) && !changed(next_key) {
            continue;
        }
        let (a, b) = (bpobj::counts(tx, *list)?, bpobj::counts(tx, *next)?);
        let cancelled = a.freed.saturating_add(b.freed).saturating_mul(2);
        let live = a.entries.saturating_add(b.entries).saturating_sub(cancelled);
        if live < LIVELIST_MAX_ENTRIES.get() {
            let (first, next) = ((*key, *list), (*next_key, *next));
            return Ok(Some(Pair { dir_obj, livelist, first, next }));
        }
    }
    Ok(None)
}

/// Reads a pair from the group on disk (`spa_livelist_condense_cb`). `None` if `is_cancelled` said so.
///
/// # Errors
/// It cannot be read, or is not there any more.
pub fn read(
    mos: &Arc<ObjectSet>,
    pair: Pair,
    is_cancelled: &dyn Fn() -> bool,
) -> ReadResult<Option<Condensed>> {
    let (mut keep, mut seen) = (Vec::new(), [0; 2]);
    for ((_, list), seen) in [pair.first, pair.next].into_iter().zip(&mut seen) {
        let (mut freed, mut cancelled) = (Freed::default(), false);
        let done = crate::bpobj::iterate(mos, list, &mut |entry| {
            *seen += 1;
            if entry.freed {
                freed.free(&entry.bp);
            } else if freed.is_live(&entry.bp) {
                keep.push(entry.bp);
            }
            cancelled = is_cancelled();
            // What ends the walk early.
            if cancelled { Err(crate::corrupt(mos, list, "cancelled")) } else { Ok(()) }
        });
        if cancelled {
            return Ok(None);
        }
        done?;
        if freed.unmatched() > 0 {
            return Err(crate::corrupt(mos, list, "frees of blocks that it does not have"));
        }
    }
    keep.sort_unstable_by_key(|bp| (bp.0[6], bp.0[0] >> 32, bp.0[1]));
    Ok(Some(Condensed { pair, keep, seen }))
}

/// Puts one sub-list in the place of a pair that was read (`spa_livelist_condense_sync`). Whether it did:
/// not if the livelist is another one by now.
///
/// # Errors
/// What is needed cannot be read.
pub fn apply(tx: &mut Tx<'_>, condensed: Condensed) -> Result<bool> {
    let Condensed { pair, mut keep, seen } = condensed;
    let lists = match still_there(tx, pair) {
        // The directory is another object by now, or gone.
        Err(DslWriteError::Unreadable(_)) => None,
        lists => lists?,
    };
    let Some(counts) = lists else {
        tunables::LIVELIST_CONDENSE_SYNC_CANCEL.happened();
        return Ok(false);
    };
    let mut frees = Vec::new();
    for (((_, list), seen), now) in [pair.first, pair.next].into_iter().zip(seen).zip(counts) {
        if now < seen {
            tunables::LIVELIST_CONDENSE_SYNC_CANCEL.happened();
            return Ok(false);
        }
        for (bp, mark) in bpobj::entries(tx, list, seen..now)? {
            tunables::LIVELIST_CONDENSE_NEW_ALLOC.happened();
            match mark {
                Mark::Alloc => keep.push(bp),
                Mark::Free => frees.push(bp),
            }
        }
    }
    let block_size = tx.mos.dnode(pair.first.1)?.block_size;
    let new = bpobj::create(tx, block_size)?;
    bpobj::enqueue_as(tx, new, &keep, Mark::Alloc)?;
    bpobj::enqueue_as(tx, new, &frees, Mark::Free)?;
    let (list, wanted) = (bpobj::counts(tx, new)?.entries, keep.len() + frees.len());
    invariant!(list == wanted as u64, "sub-list {new}: {list} entries for {wanted} that are kept");
    tx.zap_set(pair.livelist, &deadlist::name(pair.first.0), new)?;
    tx.zap_remove(pair.livelist, &deadlist::name(pair.next.0))?;
    free_sub_list(tx, pair.first.1)?;
    free_sub_list(tx, pair.next.1)?;
    if let Some(keys) = tx.deadlists.as_deref_mut() {
        keys.forget();
    }
    Ok(true)
}

/// The numbers of entries of a pair that is still in the livelist that it was in.
fn still_there(tx: &mut Tx<'_>, pair: Pair) -> Result<Option<[u64; 2]>> {
    if of_dir(tx, pair.dir_obj)? != Some(pair.livelist) {
        return Ok(None);
    }
    let lists = deadlist::lists(tx, pair.livelist)?;
    let found: Vec<_> = lists.range(pair.first.0..=pair.next.0).map(|(k, l)| (*k, *l)).collect();
    if found != [pair.first, pair.next] {
        return Ok(None);
    }
    let counts = [bpobj::counts(tx, pair.first.1)?, bpobj::counts(tx, pair.next.1)?];
    Ok(Some(counts.map(|c| c.entries)))
}
