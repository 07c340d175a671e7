//! Books of what this program itself has made of a head: a second side for sums that were read from the disk.
//!
//! # Idea
//!
//! What a dataset refers to and uses is on the disk, where another system may have left a wrong number; it goes on
//! from there, and a sum that falls below zero for that is told in the log, as the pool itself is sound. A fault of this
//! program looks the same in the sums. So a *book* for each head lists the blocks that were born in it here: where each is,
//! and how many pointers to it the head has. A head that kills a block of its book once more than it was born has killed
//! it twice, and the group fails.
//!
//! Pointers of the disk are not trusted: one may have a birth in groups to come, or in one of this import. Such a
//! block is in no book. It is freed like all that were there before, and the log says so once.
//!
//! # What a book does not see
//!
//! Blocks of its first group, and of groups that it let go of: a book lists [`MOST`] blocks at most. A change other than a
//! sync ends all books, as it may have exchanged blocks of heads: [`Keys::forget`](super::deadlist::Keys::forget).
//! So while a task is made in each group there are no books.
//!
//! # Invariants
//!
//! - A book has all pointers that its head has to blocks that were born here after `since`, and no block that was not born
//!   here. (Blocks that were leaked stay in it, and so do those that were killed, with no pointers.)
//! - A book is begun anew when the head comes after another snapshot.

use super::Tx;
use crate::deadlist;
use cenote_dmu::write::Synced;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::{invariant, less};
use std::collections::{BTreeMap, HashMap};

/// Blocks that a book lists at most.
const MOST: usize = 8192;
/// Blocks that all books list at most.
const MOST_OF_ALL: usize = 1 << 18;

/// The blocks of a head that were born in it after a group.
#[derive(Debug)]
struct Book {
    /// The snapshot before the head.
    prev_snap: u64,
    /// Only blocks that were born after this group are listed.
    since: u64,
    /// By birth and first place: how many pointers to a block the head has.
    born: BTreeMap<u64, HashMap<Dva, u64>>,
    /// How many blocks are listed.
    len: usize,
    /// Whether the log was told of a birth that cannot be.
    told: bool,
}

/// The books of all heads.
#[derive(Debug, Default)]
pub(super) struct Books {
    of: HashMap<u64, Book>,
    /// How many blocks they list.
    len: usize,
}

impl Books {
    pub(super) fn clear(&mut self) {
        *self = Books::default();
    }

    fn take(&mut self, ds_obj: u64) -> Option<Book> {
        let book = self.of.remove(&ds_obj)?;
        self.len = less!(self.len, book.len, "blocks in books");
        let (books, left) = (self.of.len(), self.len);
        invariant!(books > 0 || left == 0, "no books are left, and {left} blocks in them");
        Some(book)
    }

    fn keep(&mut self, ds_obj: u64, book: Book) {
        if self.len + book.len > MOST_OF_ALL {
            self.clear();
        }
        self.len += book.len;
        self.of.insert(ds_obj, book);
    }
}

/// The birth of a block and where it is; `None` if it takes no space.
fn key(bp: &BlockPointer) -> Option<(u64, Dva)> {
    let place = bp.dva(0).filter(|_| deadlist::counts(bp))?;
    Some((bp.birth(), place))
}

impl Book {
    fn begin(prev_snap: u64, since: u64) -> Book {
        Book { prev_snap, since, born: BTreeMap::new(), len: 0, told: false }
    }

    /// Blocks are born.
    fn add(&mut self, blocks: &[BlockPointer]) {
        for (birth, place) in blocks.iter().filter_map(key).filter(|(b, _)| *b > self.since) {
            let group = self.born.entry(birth).or_default();
            let before = group.len();
            // Deduplication and clones make more than one pointer of a block.
            *group.entry(place).or_default() += 1;
            self.len += group.len() - before;
        }
    }

    /// Blocks are killed.
    fn take(&mut self, ds_obj: u64, blocks: &[BlockPointer]) {
        for (birth, place) in blocks.iter().filter_map(key).filter(|(b, _)| *b > self.since) {
            let listed = self.born.get_mut(&birth).and_then(|group| group.get_mut(&place));
            if let Some(pointers) = listed {
                *pointers =
                    less!(*pointers, 1, "dataset {ds_obj}: pointers to {place:?}, born in {birth}");
            } else if !std::mem::replace(&mut self.told, true) {
                // Only the disk says so.
                tracing::warn!(
                    "dataset {ds_obj}: a block at {place:?} is freed that says it was born in {birth}"
                );
            }
        }
    }

    /// Lets go of the oldest groups while there are more blocks than a book may list.
    fn shorten(&mut self) {
        while self.len > MOST
            && let Some((txg, group)) = self.born.pop_first()
        {
            self.len = less!(self.len, group.len(), "blocks in a book");
            self.since = txg;
        }
        let len = self.len;
        invariant!(len <= MOST, "a book lists {len} blocks, and has no group more");
    }
}

/// Enters a sync of a head into its book, if books are kept.
pub(super) fn enter(tx: &mut Tx<'_>, (ds_obj, ds): (u64, &DslDatasetPhys), synced: &Synced) {
    let txg = tx.txg;
    let Some(keys) = tx.deadlists.as_deref_mut() else { return };
    let known = keys.books.take(ds_obj).filter(|book| book.prev_snap == ds.prev_snap);
    // More than a book may list would only be listed to be let go of.
    let known = known.filter(|_| synced.born.len() <= MOST);
    let mut book = known.unwrap_or_else(|| Book::begin(ds.prev_snap, txg));
    let since = book.since;
    invariant!(since <= txg, "dataset {ds_obj}: a book since group {since}, in group {txg}");
    book.add(&synced.born);
    book.take(ds_obj, &synced.killed);
    book.shorten();
    keys.books.keep(ds_obj, book);
}
