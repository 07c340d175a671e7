//! What is left in the pool, and whether changes fit into it (`dsl_pool_unreserved_space`,
//! `spa_get_worst_case_asize`).
//!
//! A change takes its dirty blocks: each a multiple of the smallest block ([`least_block`]), times
//! [`Room::padding`] for parity and padding of small blocks, times the copies that its dataset has. So
//! much is *expected*, and must be left. What indirect blocks, dnodes and the MOS take besides, and
//! whatever is more than expected, may come to [`Room::inflation`] times the bytes at worst
//! (`spa_asize_inflation`): that has to fit into what is left and half of what is kept back beyond it.
//!
//! A change that comes while nothing is pending is let in as long as anything is left, as OpenZFS does
//! it: it may be one that overwrites, and needs no more in the end. All of what is kept back for changes
//! that free is there for what it takes at worst.
//!
//! What is reserved is not among what is left. Where there is too little, bytes are taken out of what is
//! reserved for their dataset:
//!
//! ```text
//!   dataset ──> its refreservation ──> its directory's reservation ──> ... ──> what is left
//!                                             ^
//!   dataset below ────────────────────────────┘
//! ```
//!
//! Each takes what it can, in this order, so that datasets that share a reservation take it once.

use super::Shared;
use super::space::pool_space;
use ahash::HashMap;
use cenote_dmu::write::WriteError;
use cenote_format::SECTOR;
use cenote_pool::Pool;
use cenote_store::alloc::{Class, MAX_COPIES};
use cenote_vdev::VdevTree;
use std::sync::Arc;

/// Small blocks: how much more than their size these take is what matters when there is little space.
const SMALL_BLOCK: u64 = 4096;

/// What is reserved and not used, for one dataset: the object that has the reservation and the bytes
/// that are left of it, from its own up.
pub(super) type Reserved = Arc<[(u64, u64)]>;

/// How often each byte of a dataset counts that has so many copies.
type Times<'a> = &'a dyn Fn(u64) -> u64;

/// What changes may take; if that is nothing, how much is lacking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    left: u64,
    lacking: u64,
}

impl Limit {
    fn new(has: u64, taken: u64) -> Limit {
        Limit { left: has.saturating_sub(taken), lacking: taken.saturating_sub(has) }
    }
}

/// Bytes that the pool has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// For changes.
    normal: Limit,
    /// For changes that free.
    emptying: Limit,
    /// For what is on its way when changes are refused already.
    beyond: u64,
    /// Bytes that come back by themselves.
    pub(super) deferred: u64,
    /// How many times its size a block takes with padding, and may take at worst.
    padding: u64,
    inflation: u64,
}

impl Room {
    /// What the last group on disk left.
    pub(super) fn of(shared: &Shared, view: &Pool) -> Result<Room, WriteError> {
        let (disk, dsl) = (&shared.disk, view.dsl());
        let usable = dsl.usable_space()?.unwrap_or(u64::MAX);
        let kept = pool_space(disk).slop() / 2;
        let deferred = disk.allocator.figures(Class::Normal).deferred;
        let taken = dsl.root()?.dir.used.saturating_add(deferred);
        let normal = Limit::new(usable, taken);
        let emptying = Limit::new(usable.saturating_add(kept), taken);
        let padding = padding(&disk.tree());
        Ok(Room {
            normal,
            emptying,
            beyond: emptying.left - normal.left,
            deferred,
            padding,
            inflation: inflation(padding),
        })
    }

    fn limit(&self, frees: bool) -> Limit {
        if frees { self.emptying } else { self.normal }
    }

    /// Whether what is written fits. The first of `writes` is the dataset that asks. `alone`: no other dataset writes,
    /// and nothing is pending of the dataset that asks.
    pub(super) fn fits(&self, frees: bool, writes: &[Write], alone: bool) -> bool {
        let limit = self.limit(frees);
        let all = |times: Times<'_>| {
            let each = writes.iter().map(|w| w.bytes.saturating_mul(times(w.copies)));
            each.fold(0, u64::saturating_add)
        };
        self.takes(limit.left, alone, all)
            || self.takes(limit.left, alone, |times| outside(writes, limit.lacking, times))
    }

    /// `bytes` says what to take out of what is left, where each byte of a dataset with so many
    /// copies counts so many times.
    fn takes(&self, left: u64, alone: bool, bytes: impl Fn(Times<'_>) -> u64) -> bool {
        let expected = |copies: u64| copies.saturating_mul(self.padding);
        let worst = |copies: u64| copies.saturating_add(2).saturating_mul(self.padding);
        bytes(&expected) <= left
            && bytes(&|_| self.inflation) <= left.saturating_add(self.beyond / 2)
            || alone
                && (left > 0 || bytes(&|_| 1) == 0)
                && bytes(&worst) <= left.saturating_add(self.beyond)
    }
}

/// What a dataset writes.
#[derive(Clone, Debug)]
pub(super) struct Write {
    /// Bytes of one copy, as long as they are not compressed.
    pub bytes: u64,
    /// Copies of its data.
    pub copies: u64,
    /// What is reserved for it.
    pub reserved: Reserved,
}

/// What of the bytes that datasets write is in no reservation. The dataset that asks makes up for what is lacking.
fn outside(writes: &[Write], lacking: u64, times: Times<'_>) -> u64 {
    let mut taken: HashMap<u64, u64> = HashMap::default();
    let mut outside = 0u64;
    for (n, write) in writes.iter().enumerate() {
        let mut bytes = write.bytes.saturating_mul(times(write.copies));
        if n == 0 {
            bytes = bytes.saturating_add(lacking);
        }
        for (object, has) in write.reserved.iter() {
            let taken = taken.entry(*object).or_default();
            // What datasets say of a reservation may have been read at different times.
            let more = bytes.min(has.saturating_sub(*taken));
            *taken += more;
            bytes -= more;
        }
        outside = outside.saturating_add(bytes);
    }
    outside
}

/// Bytes that one copy of a block of so many takes at most, as the pool's space is counted.
fn takes(tree: &VdevTree, bytes: u64) -> u64 {
    let of = |top: &Arc<cenote_vdev::Vdev>| top.deflate(top.psize_to_asize(bytes, 0));
    tree.root().children().iter().map(of).max().unwrap_or(bytes)
}

/// How many times its size one copy of a block takes, compared with the pool's deflated size: parity
/// and padding of small blocks.
fn padding(tree: &VdevTree) -> u64 {
    takes(tree, SMALL_BLOCK).div_ceil(SMALL_BLOCK).max(1)
}

/// Bytes that the smallest block counts for, before padding.
pub(super) fn least_block(tree: &VdevTree) -> u64 {
    takes(tree, SECTOR).div_ceil(padding(tree)).max(SECTOR)
}

/// How many times its size a block may take (`spa_asize_inflation`): as many copies as there can be, and
/// as much again for what leads to it.
fn inflation(padding: u64) -> u64 {
    padding.saturating_mul(2 * MAX_COPIES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(left: u64, lacking: u64) -> Room {
        let limit = Limit { left, lacking };
        let (padding, inflation) = (1, inflation(1));
        Room { normal: limit, emptying: limit, beyond: 1000, deferred: 0, padding, inflation }
    }

    fn write(bytes: u64, reserved: &[(u64, u64)]) -> Write {
        Write { bytes, copies: 1, reserved: reserved.into() }
    }

    #[test]
    fn what_is_reserved_is_taken_once() {
        // Two datasets, one with a refreservation, below a directory with a reservation.
        let a = |bytes| write(bytes, &[(1, 100), (9, 50)]);
        let b = |bytes| write(bytes, &[(9, 50)]);
        let none = |bytes| write(bytes, &[]);
        let outside = |writes: &[Write], lacking, times| outside(writes, lacking, &|_| times);
        assert_eq!(outside(&[a(100)], 0, 1), 0);
        assert_eq!(outside(&[a(150), b(1)], 0, 1), 1);
        assert_eq!(outside(&[b(1), a(150)], 0, 1), 1);
        assert_eq!(outside(&[a(60), b(40)], 0, 2), 50);
        // Others' changes do not make up for what is lacking.
        assert_eq!(outside(&[b(10), a(100)], 30, 1), 0);
        assert_eq!(outside(&[none(10), a(1)], 30, 1), 40);
    }

    #[test]
    fn who_has_reserved_space_may_use_it() {
        let full = room(0, 0);
        let none = |bytes| write(bytes, &[]);
        assert!(!full.fits(false, &[none(1)], true) && full.fits(false, &[none(0)], false));
        let reserved = |bytes| write(bytes, &[(1, 3000)]);
        let fits = |room: &Room, bytes, alone| room.fits(false, &[reserved(bytes)], alone);
        // Six times as much, and half of what is kept back besides.
        assert!(fits(&full, 583, false) && !fits(&full, 584, false));
        // A single change three times, and it is in the reservation as it is.
        assert!(fits(&full, 1333, true) && !fits(&full, 1334, true));
        assert!(!full.fits(false, &[none(1), reserved(1)], false));
        // Where too much is taken already, only as much as is there all the same.
        let over = room(0, 2000);
        assert!(fits(&over, 666, true) && !fits(&over, 667, true));
        assert!(!over.fits(false, &[none(1)], true));
    }

    #[test]
    fn copies_count() {
        let some = room(9000, 0);
        let fits = |copies, bytes, alone| {
            some.fits(false, &[Write { copies, ..write(bytes, &[]) }], alone)
        };
        // What is expected of three copies; at worst every change takes six times its size.
        assert!(fits(1, 1583, false) && !fits(1, 1584, false));
        assert!(fits(3, 1583, false) && !fits(3, 1584, false));
        // Alone a change is let in that would not be expected to fit.
        assert!(fits(1, 3333, true) && !fits(1, 3334, true));
        assert!(fits(3, 2000, true) && !fits(3, 2001, true));
    }
}
