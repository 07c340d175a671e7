//! Blocks that a change holds (`dmu_tx_hold_*`).
//!
//! # Idea
//!
//! A change of an object set runs under a lock, and a thread that holds that lock must not wait for a
//! device. So a change runs [with its holds](Holds::during): on that thread [`Store::read`] takes
//! blocks from the holds and from the caches, and goes to no device. A block that is in neither is
//! *missed*, and so is data that the ARC has compressed: the read fails with [`BlockError::NotHeld`], and the
//! block is noted. The thread that runs the change takes back what it did, lets go of the lock,
//! [reads](Holds::fetch) what was missed and runs the change again.
//!
//! OpenZFS lists in advance what a change will touch. Here the change itself finds out, so the list
//! cannot be incomplete.
//!
//! # Invariants
//!
//! - What is held is found by the identity of the block on disk ([`Key`]): it is never out of date.
//! - A block that could not be read is held as its error: the next run sees that error.
//! - While a thread runs with holds it neither reads from a device nor waits for one. It decompresses
//!   metadata only, which is kept so.

use crate::arc::Key;
use crate::{Block, BlockError, Bookmark, Store};
use cenote_format::blkptr::BlockPointer;
use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local! {
    static CURRENT: RefCell<Option<Holds>> = const { RefCell::new(None) };
}

/// The blocks that one change holds; see the [module](self).
#[derive(Debug, Default)]
pub struct Holds {
    blocks: BTreeMap<Key, Result<Block, BlockError>>,
    missed: Vec<(BlockPointer, Bookmark)>,
}

/// Puts the holds back when a run ends, also by a panic.
struct Run<'a> {
    holds: &'a mut Holds,
    outer: Option<Holds>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let used = CURRENT.replace(self.outer.take());
        *self.holds = used.unwrap_or_default();
    }
}

impl Holds {
    /// Runs `f` with these holds on this thread.
    pub fn during<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let outer = CURRENT.replace(Some(std::mem::take(self)));
        let _run = Run { holds: self, outer };
        f()
    }

    /// Whether a run missed a block: what it did and returned is worth nothing then.
    pub fn has_missed(&self) -> bool {
        !self.missed.is_empty()
    }

    /// Reads what was missed from the devices, to be [kept](Holds::keep).
    pub fn fetch(&self, store: &Store) -> Vec<Result<Block, BlockError>> {
        store.read_many(&self.missed)
    }

    /// Holds what [`Holds::fetch`] read of what was missed. Errors count only if nothing was
    /// overwritten meanwhile (`safe`); else those blocks are missed again, if they are still wanted.
    pub fn keep(&mut self, read: Vec<Result<Block, BlockError>>, safe: bool) {
        let missed = std::mem::take(&mut self.missed).into_iter().zip(read);
        for ((bp, _), block) in missed.filter(|(_, block)| safe || block.is_ok()) {
            self.blocks.extend(Key::of(&bp).map(|key| (key, block)));
        }
    }
}

/// Whether this thread runs with holds and has missed a block.
pub fn has_missed() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(Holds::has_missed))
}

/// Whether this thread runs with holds, and so must not go to a device.
pub(crate) fn is_active() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// The block as it is held by the change that this thread runs.
pub(crate) fn get(key: &Key) -> Option<Result<Block, BlockError>> {
    CURRENT.with_borrow(|current| current.as_ref()?.blocks.get(key).cloned())
}

/// Notes that the change that this thread runs misses a block.
pub(crate) fn miss(bp: &BlockPointer, at: Bookmark) -> BlockError {
    CURRENT.with_borrow_mut(|current| {
        if let Some(holds) = current {
            holds.missed.push((*bp, at));
        }
    });
    BlockError::NotHeld { at }
}
