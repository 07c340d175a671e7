//! Freeing what livelists of destroyed clones have, some in each transaction group.
//!
//! The object directory's entry `com.delphix:deleted_clones` is a ZAP of the livelists that wait. `$FREE` is
//! charged for what is in them. Sub-lists are gone through from the oldest, each from its end to its start,
//! so that a FREE is met before its ALLOC: what is left is freed, sorted by where it lies.
//!
//! A sub-list that has more than one group may free is replaced by one of what is left of it. That has ALLOC
//! entries only, so that further groups take it from the end bit by bit. So what is on disk between two groups
//! is a right livelist. After a crash, the next import goes on with it.
//!
//! A sub-list that cannot be read stays, with all of its livelist; with `zfs_free_leak_on_eio` what it has is
//! leaked instead.

use super::{FEATURE, bpobj, deadlist, free_sub_list};
use crate::deadlist::{Freed, LIVELIST};
use crate::tunables;
use crate::write::budget::Budget;
use crate::write::mos::ZAP_METADATA;
use crate::write::space::Delta;
use crate::write::{DslWriteError, Result, Sizes, Tx, features};
use crate::write::{directory, special};
use bpobj::Mark;
use cenote_format::blkptr::BlockPointer;
use cenote_format::{invariant, less};

/// Entries of sub-lists that are read ahead: 32 MiB before compression.
const READ_AHEAD: u64 = 1 << 18;
/// Entry of the object directory (`DMU_POOL_DELETED_CLONES`).
const DELETED: &str = "com.delphix:deleted_clones";

/// Takes the livelist of a directory that is about to be destroyed, and queues it
/// (`dsl_async_clone_destroy`). What is in it.
pub(in crate::write) fn queue(tx: &mut Tx<'_>, dir_obj: u64, livelist: u64) -> Result<Sizes> {
    let queue = match directory::entry(tx, DELETED)? {
        Some(queue) => queue,
        None => {
            let queue = tx.plain_zap(ZAP_METADATA)?;
            directory::set_entry(tx, DELETED, queue)?;
            queue
        }
    };
    tx.zap_add(queue, &format!("{livelist:x}"), livelist)?;
    tx.zap_remove(dir_obj, LIVELIST)?;
    let sum = deadlist::total(tx, livelist)?;
    special::charge_free(tx, Delta::more(sum))?;
    Ok(sum)
}

/// Whether livelists of destroyed clones wait.
pub(in crate::write) fn is_waiting(tx: &mut Tx<'_>) -> Result<bool> {
    Ok(directory::entry(tx, DELETED)?.is_some())
}

/// Frees some of what waits (`spa_livelist_delete_cb`), `left` blocks at most; true if there is more that can
/// be freed.
pub(in crate::write) fn step(tx: &mut Tx<'_>, left: &mut u64, budget: Budget<'_>) -> Result<bool> {
    let Some(queue) = directory::entry(tx, DELETED)? else { return Ok(false) };
    let mut waiting = tx.zap_numbers(queue)?;
    waiting.sort_unstable();
    let (mut freed, mut paused, mut stuck) = (Vec::new(), false, 0);
    for livelist in waiting {
        let went = free_some(tx, livelist, left, budget, &mut freed);
        match went {
            Ok(true) => {
                deadlist::free(tx, livelist)?;
                features::decrement(tx, FEATURE)?;
                tx.zap_remove(queue, &format!("{livelist:x}"))?;
            }
            Ok(false) => {
                paused = true;
                break;
            }
            Err(DslWriteError::Unreadable(why)) => {
                tracing::warn!("livelist {livelist} of a destroyed clone cannot be freed: {why}");
                stuck += 1;
            }
            Err(e) => return Err(e),
        }
    }
    freed.sort_unstable_by_key(|bp: &BlockPointer| (bp.0[0] >> 32, bp.0[1]));
    tx.frees.reserve(freed.len());
    freed.iter().for_each(|bp| tx.free(bp));
    if !paused && stuck == 0 {
        directory::remove_entry(tx, DELETED)?;
        tx.mos.free(queue)?;
    }
    Ok(paused)
}

/// Frees sub-lists of a livelist; true if nothing of it is left.
fn free_some(
    tx: &mut Tx<'_>,
    livelist: u64,
    left: &mut u64,
    budget: Budget<'_>,
    freed: &mut Vec<BlockPointer>,
) -> Result<bool> {
    let lists = deadlist::lists(tx, livelist)?;
    let ahead = first_lists(tx, lists.values().copied(), *left)?;
    if ahead.len() > 1 {
        bpobj::read_ahead(tx, &ahead);
    }
    for (key, list) in lists {
        if *left == 0 || (budget.is_late)() && !freed.is_empty() {
            return Ok(false);
        }
        let leaks = tunables::FREE_LEAK_ON_EIO.get() != 0;
        let taken = match tx.whole(|tx| take(tx, (livelist, key, list), *left)) {
            Err(DslWriteError::Unreadable(why)) if leaks => {
                tracing::warn!("blocks of a destroyed clone are leaked: {why}");
                leak(tx, livelist, (key, list))?;
                continue;
            }
            taken => taken?,
        };
        *left = less!(*left, taken.blocks.len() as u64, "blocks that the group may free");
        match freed.is_empty() {
            true => *freed = taken.blocks,
            false => freed.extend(taken.blocks),
        }
        if !taken.is_all {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Those sub-lists from the first on that have so many entries together, and that can be read.
fn first_lists(tx: &mut Tx<'_>, lists: impl Iterator<Item = u64>, most: u64) -> Result<Vec<u64>> {
    let (empty, mut entries, mut first) = (bpobj::shared_empty(tx)?, 0u64, Vec::new());
    for list in lists.filter(|list| Some(*list) != empty) {
        if entries >= most.min(READ_AHEAD) {
            break;
        }
        if let Ok(counts) = bpobj::counts(tx, list) {
            entries = entries.saturating_add(counts.entries);
            first.push(list);
        }
    }
    Ok(first)
}

/// What was taken out of a sub-list, and whether that was all.
struct Taken {
    blocks: Vec<BlockPointer>,
    is_all: bool,
}

/// Takes up to `most` live blocks out of the sub-list of a key, which goes once it is empty.
fn take(tx: &mut Tx<'_>, (livelist, key, list): (u64, u64, u64), most: u64) -> Result<Taken> {
    let counts = bpobj::counts(tx, list)?;
    let before = bpobj::space(tx, list)?;
    // Without frees nothing before the end has to be known.
    let from = if counts.freed == 0 { counts.entries.saturating_sub(most) } else { 0 };
    let mut freed = Freed::default();
    let entries = bpobj::entries(tx, list, from..counts.entries)?;
    let mut blocks = Vec::with_capacity(entries.len());
    for (bp, mark) in entries.iter().rev() {
        match mark {
            Mark::Free => freed.free(bp),
            Mark::Alloc if freed.is_live(bp) => blocks.push(*bp),
            Mark::Alloc => {}
        }
    }
    let is_all = from == 0 && blocks.len() as u64 <= most;
    let live = blocks.len() as u64;
    let rest = blocks.split_off(blocks.len().min(usize::try_from(most).unwrap_or(usize::MAX)));
    // Those that are before `from` are not known yet, so all that are known go.
    let kept = rest.len();
    invariant!(
        from == 0 || kept == 0,
        "sub-list {list}: {kept} of {live} live blocks would be lost with its end from {from} on"
    );
    let mut gone = Sizes::default();
    blocks.iter().for_each(|bp| gone.add((tx.space)(bp)));
    if is_all {
        tx.zap_remove(livelist, &deadlist::name(key))?;
        free_sub_list(tx, list)?;
        lose(tx, before, gone)?;
        gone = before;
    } else if from > 0 {
        bpobj::cut(tx, list, from, gone)?;
    } else {
        let new = bpobj::create(tx, bpobj::BLOCK)?;
        bpobj::enqueue(tx, new, &rest)?;
        let mut all = bpobj::space(tx, new)?;
        all.add(gone);
        lose(tx, before, all)?;
        tx.zap_set(livelist, &deadlist::name(key), new)?;
        free_sub_list(tx, list)?;
        gone.add(before);
        gone.take(all);
    }
    let mut sum = deadlist::total(tx, livelist)?;
    sum.take(gone);
    deadlist::set_total(tx, livelist, sum)?;
    special::charge_free(tx, Delta::less(gone))?;
    Ok(Taken { blocks, is_all })
}

/// What the sums of a sub-list have and its blocks have not is charged to `$LEAK`.
fn lose(tx: &mut Tx<'_>, sums: Sizes, blocks: Sizes) -> Result<()> {
    let mut lost = sums;
    lost.take(blocks);
    // Less than nothing: it is no sum.
    if lost == Sizes::default() || lost.used > i64::MAX as u64 {
        return Ok(());
    }
    special::charge_leak(tx, lost)
}

/// Gives up on a sub-list that cannot be read.
fn leak(tx: &mut Tx<'_>, livelist: u64, (key, list): (u64, u64)) -> Result<()> {
    let what = format!("sub-list {list} of a livelist is not freed");
    let sizes = tx.unless_unreadable(&what, |tx| {
        let sizes = bpobj::space(tx, list)?;
        free_sub_list(tx, list)?;
        Ok(sizes)
    })?;
    let sizes = sizes.unwrap_or_default();
    tx.zap_remove(livelist, &deadlist::name(key))?;
    let mut sum = deadlist::total(tx, livelist)?;
    sum.take(sizes);
    deadlist::set_total(tx, livelist, sum)?;
    special::charge_free(tx, Delta::less(sizes))?;
    special::charge_leak(tx, sizes)
}
