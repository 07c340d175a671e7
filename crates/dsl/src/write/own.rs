//! Books of what this program itself has made of a head: a second side for sums that were read from the disk.
//!
//! # Idea
//!
//! What a dataset refers to and uses is on the disk, where another system may have left a wrong number; it goes on
//! from there, and a sum that falls below zero for that is told in the log, as the pool itself is sound. A fault of this
//! program looks the same in the sums. So a *book* for each head counts only blocks that were born while the pool
//! was in use here: their bytes are added when they are born, and taken when they are killed. Nothing on the disk
//! goes into it. A head that kills more than was born in it has killed a block twice, or one that is not
//! its own, and the group fails.
//!
//! # Invariants
//!
//! - A book has no less than what the head refers to of blocks born after its first group. (Blocks that were leaked
//!   stay in it.)
//! - A book is begun anew when the head comes after another snapshot, and when a change other than a sync may have
//!   exchanged its blocks: [`Keys::forget`](super::deadlist::Keys::forget).

use super::{Sizes, Tx, deadlist};
use cenote_dmu::write::Synced;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::{invariant, less};

/// What a head refers to of blocks that were born after a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Book {
    /// The snapshot before the head.
    prev_snap: u64,
    /// Only blocks that were born after this group count.
    since: u64,
    used: u64,
}

/// Bytes of the blocks that were born after group `since`.
fn young(space: &dyn Fn(&BlockPointer) -> Sizes, blocks: &[BlockPointer], since: u64) -> u64 {
    let young = blocks.iter().filter(|bp| bp.birth() > since && deadlist::counts(bp));
    young.map(|bp| space(bp).used).sum()
}

/// Enters a sync of a head into its book, if books are kept.
pub(super) fn enter(tx: &mut Tx<'_>, (ds_obj, ds): (u64, &DslDatasetPhys), synced: &Synced) {
    let (space, txg) = (tx.space, tx.txg);
    let Some(keys) = tx.deadlists.as_deref_mut() else { return };
    let anew = Book { prev_snap: ds.prev_snap, since: txg, used: 0 };
    let known = keys.books.get(&ds_obj).copied();
    let book = known.filter(|book| book.prev_snap == ds.prev_snap).unwrap_or(anew);
    let since = book.since;
    invariant!(since <= txg, "dataset {ds_obj}: a book since group {since}, in group {txg}");
    let all = book.used + young(space, &synced.born, since);
    let killed = young(space, &synced.killed, since);
    let used = less!(all, killed, "dataset {ds_obj}: bytes of blocks born after group {since}");
    keys.books.insert(ds_obj, Book { used, ..book });
}
