//! What is left in the pool, and whether changes fit into it.
//!
//! Pending bytes count several times: [`Room::padding`] times against what changes may take,
//! [`Room::inflation`] times against half of what is kept back besides. What is reserved is not among
//! what is left. Where there is too little, bytes are taken out of what is reserved for their dataset:
//!
//! ```text
//!   dataset ──> its refreservation ──> its directory's reservation ──> ... ──> what is left
//!                                             ^
//!   dataset below ────────────────────────────┘
//! ```
//!
//! Each takes what it can, in this order, so that datasets that share a reservation take it once.

use super::Shared;
use super::commit::pool_space;
use crate::Pool;
use ahash::HashMap;
use cenote_dmu::write::WriteError;
use cenote_store::alloc::{Class, MAX_COPIES};
use cenote_vdev::VdevTree;
use std::sync::Arc;

/// Small blocks: how much more than their size these take is what matters when there is little space.
const SMALL_BLOCK: u64 = 4096;

/// What is reserved and not used, for one dataset: the object that has the reservation and the bytes
/// that are left of it, from its own up.
pub(super) type Reserved = Arc<[(u64, u64)]>;

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
        let padding = padding(disk.tree());
        Ok(Room {
            normal,
            emptying,
            beyond: emptying.left - normal.left,
            deferred,
            padding,
            inflation: inflation(padding),
        })
    }

    /// What changes may take that nobody has reserved.
    pub(super) fn left(&self) -> u64 {
        self.normal.left
    }

    fn limit(&self, frees: bool) -> Limit {
        if frees { self.emptying } else { self.normal }
    }

    /// Whether `bytes` fit, whoever writes them. `alone`: they are those of a single change, which is let
    /// in if it fits as it is, if only there is space for it in the end.
    pub(super) fn fits(&self, frees: bool, bytes: u64, alone: bool) -> bool {
        self.takes(self.limit(frees).left, alone, |times| bytes.saturating_mul(times))
    }

    /// As [`Room::fits`], with what is reserved: the bytes that each dataset writes. The first one is who
    /// asks.
    pub(super) fn fits_reserved(
        &self,
        frees: bool,
        writes: &[(u64, Reserved)],
        alone: bool,
    ) -> bool {
        let limit = self.limit(frees);
        self.takes(limit.left, alone, |times| outside(writes, limit.lacking, times))
    }

    fn takes(&self, left: u64, alone: bool, bytes: impl Fn(u64) -> u64) -> bool {
        bytes(self.padding) <= left && bytes(self.inflation) <= left.saturating_add(self.beyond / 2)
            || alone
                && bytes(1) <= left
                && bytes(self.inflation / 2) <= left.saturating_add(self.beyond)
    }
}

/// What of the bytes that datasets write, each taken `times`, is in no reservation. Who asks makes up for
/// what is lacking.
fn outside(writes: &[(u64, Reserved)], lacking: u64, times: u64) -> u64 {
    let mut taken: HashMap<u64, u64> = HashMap::default();
    let mut outside = 0u64;
    for (n, (bytes, reserved)) in writes.iter().enumerate() {
        let mut bytes = bytes.saturating_mul(times);
        if n == 0 {
            bytes = bytes.saturating_add(lacking);
        }
        for (object, has) in reserved.iter() {
            let taken = taken.entry(*object).or_default();
            let more = bytes.min(has.saturating_sub(*taken));
            *taken += more;
            bytes -= more;
        }
        outside = outside.saturating_add(bytes);
    }
    outside
}

/// How many times its size one copy of a block takes, compared with the pool's deflated size: parity
/// and padding of small blocks.
fn padding(tree: &VdevTree) -> u64 {
    let of = |top: &Arc<cenote_vdev::Vdev>| {
        top.deflate(top.psize_to_asize(SMALL_BLOCK)).div_ceil(SMALL_BLOCK)
    };
    tree.root().children().iter().map(of).max().unwrap_or(1).max(1)
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

    fn of(reserved: &[(u64, u64)]) -> Reserved {
        reserved.into()
    }

    #[test]
    fn what_is_reserved_is_taken_once() {
        // Two datasets, one with a refreservation, below a directory with a reservation.
        let (a, b) = (of(&[(1, 100), (9, 50)]), of(&[(9, 50)]));
        assert_eq!(outside(&[(100, a.clone())], 0, 1), 0);
        assert_eq!(outside(&[(150, a.clone()), (1, b.clone())], 0, 1), 1);
        assert_eq!(outside(&[(1, b.clone()), (150, a.clone())], 0, 1), 1);
        assert_eq!(outside(&[(60, a.clone()), (40, b.clone())], 0, 2), 50);
        // Others' changes do not make up for what is lacking.
        assert_eq!(outside(&[(10, b), (100, a.clone())], 30, 1), 0);
        assert_eq!(outside(&[(10, of(&[])), (1, a)], 30, 1), 40);
    }

    #[test]
    fn who_has_reserved_space_may_use_it() {
        let full = room(0, 0);
        assert!(!full.fits(false, 1, true) && full.fits(false, 0, false));
        let reserved = of(&[(1, 3000)]);
        let fits = |room: &Room, bytes, alone| {
            room.fits_reserved(false, &[(bytes, reserved.clone())], alone)
        };
        // Six times as much, and half of what is kept back besides; a single change three times.
        assert!(fits(&full, 583, false) && !fits(&full, 584, false));
        assert!(fits(&full, 1333, true) && !fits(&full, 1334, true));
        assert!(!full.fits_reserved(false, &[(1, of(&[])), (1, reserved.clone())], false));
        // Where too much is taken already, only as much as is there all the same.
        let over = room(0, 2000);
        assert!(fits(&over, 666, true) && !fits(&over, 667, true));
        assert!(!over.fits_reserved(false, &[(1, of(&[]))], true));
    }
}
