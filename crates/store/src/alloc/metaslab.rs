//! Metaslabs: the pieces of a top-level vdev in which space is allocated (`metaslab_t`,
//! `metaslab_load_impl`, `metaslab_sync_done`).
//!
//! A metaslab's space passes through these hands:
//!
//! ```text
//!           alloc(txg)                    take_changes(txg)
//!   free ───────────────> allocs[txg] ────────────────────────> allocated, on disk
//!    ^                                                              │ free(txg)
//!    │ sync_done(txg + 2)                                           v
//!  defer[txg] <────────── freed[txg] <──────────────────────── frees[txg]
//!             sync_done(txg)          take_changes(txg)
//! ```
//!
//! What was freed in a txg is deferred until two more are on disk ([`TXG_DEFER_SIZE`]), so that
//! the pool can be opened as it was a few txgs ago, and so that a block's address and birth txg
//! name one content for good; for longer, while someone holds a txg ([`Hold`](super::Hold)). A block that is allocated
//! and freed between two calls of `take_changes` is not handed out at all, but deferred all the same.
//!
//! What a checkpoint refers to is *kept* instead of freed: it stays allocated here, and is handed out by
//! [`Metaslab::take_kept`] for the checkpoint's space map (`ms_checkpointing`). Once the checkpoint is
//! discarded it is freed as anything else.
//!
//! Blocks are placed one after the other, and when the segment is used up, in the largest that there
//! is: so the blocks of a batch are neighbours, and their writes join. (In a pool two thirds full,
//! overwritten at random for long, there were 0.33 writes a block of 8 KiB so, and 0.42 to 0.51 where the
//! first segment that fits after the last was taken.)
//! When little is free, large segments are spared.
//!
//! A metaslab is *loaded* while its free space is in memory. Loading reads the space map as it was
//! after some txg; the metaslab's lock is not held meanwhile. Frees that came back into circulation
//! during the load, but after the map was written, are noted and added when the load is done, and
//! frees that the map has but that are still deferred are taken out.
//!
//! Allocations need the lock, so whatever takes time in proportion to a txg's frees or to the free
//! segments is done without it, or in pieces of [`BATCH`] segments between which the lock is handed
//! to a thread that waits. The frees of a txg are handed on as whole sets (see [`DeferSets`]); what looks at
//! all free space looks at a copy of the bitmap.
//!
//! A metaslab that was not allocated from for `metaslab_unload_delay` txgs and
//! `metaslab_unload_delay_ms` is unloaded. What is freed in an unloaded one is counted in its
//! histogram as segments of their own, though they may join with neighbours: how large such a
//! segment can be at most is known too ([`View::hope`]), so that the metaslab is loaded to look when
//! nothing else is left.
//!
//! Invariants:
//! - free space, allocs, frees, kept, freed and defer are disjoint but for this: frees of a block whose
//!   allocation was not taken yet are in allocs as well;
//! - `allocated` counts all bytes but the free ones: exactly if loaded, else as far as the header of the space map
//!   tells the truth;
//! - an unloaded metaslab has no allocs.
//!
//! What is freed while the metaslab is not loaded is compared with its space map when it is: what was freed in groups
//! that are in the map is free there, and what was freed later is not. If that does not hold, something was freed
//! twice, or the map is wrong: either way nothing more may be written to the pool ([`NotLoaded::Wrong`]).

mod disable;
mod load;
#[cfg(test)]
mod planted;

pub use disable::Room;
use load::Noted;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_format::{invariant, less};
use cenote_vdev::Growing;
use parking_lot::{Condvar, MutexGuard};

use super::defer::{DeferSets, Set};
use super::space::{Extent, FreeSpace, Loading};
use super::watched::{LockWaits, Watched};
use super::weight::Weight;
use crate::histogram::Histogram;
use crate::rangetree::{RangeError, RangeTree};
use crate::tunables;

/// Txgs that must be on disk after that of a free before the space is used again.
pub const TXG_DEFER_SIZE: u64 = 2;

/// Segments that are dealt with in one go with the lock held.
const BATCH: usize = 32;

/// What a pool knows of a metaslab before it is loaded.
#[derive(Clone, Debug, Default)]
pub struct MetaslabInfo {
    /// Bytes allocated.
    pub allocated: u64,
    /// So many of them are beyond what the header of the space map counts, which cannot be right.
    pub off: i64,
    /// Free segments by size, from the header of the space map; `None` without a histogram.
    pub histogram: Option<Histogram>,
}

/// What is known of the space that a metaslab has allocated on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDisk {
    /// Bytes allocated. Less than 0, if more was freed since than the header of the space map counts.
    pub allocated: i128,
    /// So many of them are known to be beyond what the header counts.
    pub off: i64,
    /// Whether they are known from what is free.
    pub loaded: bool,
}

/// The changes of a metaslab to be written to its space map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Number of the metaslab.
    pub metaslab: u64,
    /// Allocated ranges `(start, end)` in bytes of the vdev, in order; they come first.
    pub allocs: Vec<(u64, u64)>,
    /// Freed ranges, in order.
    pub frees: Vec<(u64, u64)>,
}

/// What came of an attempt to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Got(u64),
    TooSmall,
    Unloaded,
}

/// What an outsider sees of a metaslab without its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub weight: Weight,
    /// Bytes of the largest free segment if it is known.
    pub largest: Option<u64>,
    pub loaded: bool,
    /// Bytes that a segment may have at most that joined since the metaslab was unloaded; 0 if no segment
    /// can have.
    pub hope: u64,
    /// The later of two views of a metaslab has the higher number.
    pub number: u64,
}

impl View {
    /// Whether there may be so large a segment, as far as the segments are known.
    pub(super) fn may_hold(&self, size: u64) -> bool {
        self.largest.map_or_else(|| self.weight.may_hold(size), |largest| size <= largest)
    }

    pub(super) fn surely_holds(&self) -> u64 {
        self.largest.unwrap_or_else(|| self.weight.surely_holds())
    }
}

/// Why a metaslab is not loaded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotLoaded {
    /// Its space map cannot be read.
    Unreadable(String),
    /// Its space map is not what it must be after all that was freed.
    Wrong(String),
}

#[derive(Default)]
struct State {
    free: Option<FreeSpace>,
    /// While a load is under way.
    loading: Option<Noted>,
    allocs: BTreeMap<u64, RangeTree>,
    frees: BTreeMap<u64, RangeTree>,
    /// What would have been freed if a checkpoint did not refer to it.
    kept: BTreeMap<u64, RangeTree>,
    freed: DeferSets,
    defer: DeferSets,
    /// Bytes of the metaslab.
    size: u64,
    allocated: u64,
    /// While not loaded: free segments that may be allocated, and the largest of them.
    histogram: Histogram,
    /// Bytes that the histogram counts as one segment until a load tells how they lie; 0: no bytes.
    guessed: u64,
    largest: Option<u64>,
    /// Segments that came back since it was unloaded: how many, and their bytes.
    came_back: (u64, u64),
    /// Bytes that the largest of the other segments has at most.
    others: u64,
    /// Where the last allocation ended.
    cursor: u64,
    /// Views that were taken.
    views: u64,
    /// Bytes that a load found allocated beyond those that were known.
    found: i64,
    /// So far off the header of the space map is, as far as it is known.
    off: i64,
    /// Last txg in which this metaslab was allocated from or loaded for.
    used: u64,
    /// The same as the last sync saw it, and when it saw it first.
    seen: Option<(u64, Instant)>,
    disable: disable::Disable,
}

/// A metaslab (`metaslab_t`); see the module's documentation.
pub struct Metaslab {
    vdev: u64,
    id: u64,
    extent: Extent,
    state: Watched<State>,
    loaded: Condvar,
    /// Whether there may be changes that were not taken: a pass asks all metaslabs, and a lock each
    /// would be most of what a pass with few changes costs.
    changed: AtomicBool,
}

impl Metaslab {
    /// A metaslab, as the pool knows it (`metaslab_init`).
    pub(super) fn new(vdev: u64, id: u64, extent: Extent, info: MetaslabInfo) -> Metaslab {
        let allocated = info.allocated.min(extent.size);
        let mut state = State { size: extent.size, allocated, off: info.off, ..State::default() };
        let known = info.histogram.filter(|_| allocated > 0);
        state.guessed = match (&known, allocated) {
            // All that is free is one segment, which is no guess.
            (Some(_), _) | (None, 0) => 0,
            // All that is known is how much there is in all.
            (None, _) => extent.size - allocated,
        };
        state.histogram = known.unwrap_or_else(|| {
            let mut histogram = Histogram::default();
            histogram.add(extent.size - allocated);
            histogram
        });
        if state.allocated == extent.size {
            state.histogram = Histogram::default();
        }
        let top = state.histogram.counts().iter().rposition(|count| *count > 0);
        let bound = top.map_or(0, |log| u64::MAX >> (63 - log.min(63)));
        state.others = bound.min(extent.size - state.allocated);
        let (state, loaded, changed) =
            (Watched::new(state), Condvar::new(), AtomicBool::new(false));
        Metaslab { vdev, id, extent, state, loaded, changed }
    }

    /// Its number within the vdev.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What part of the vdev it covers.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Whether its free space is in memory.
    pub fn is_loaded(&self) -> bool {
        self.state.lock().free.is_some()
    }

    /// Bytes that are not allocatable: allocated ones, and freed ones that are deferred.
    pub fn allocated(&self) -> u64 {
        self.state.lock().allocated
    }

    /// What is allocated on disk once all changes that were taken are: what is deferred is free
    /// there, and so is what was allocated in groups that are open still, for log blocks.
    pub fn on_disk(&self) -> OnDisk {
        let state = self.state.lock();
        let later: u64 = state.allocs.values().map(RangeTree::space).sum();
        let kept = state.freed.bytes() + state.defer.bytes();
        let allocated = i128::from(state.allocated) - i128::from(kept) - i128::from(later);
        OnDisk { allocated, off: state.off, loaded: state.free.is_some() }
    }

    /// Whether nothing of it is allocated, neither on disk once all changes that were taken are, nor in a group the
    /// changes of which were not taken.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        let kept = state.freed.bytes() + state.defer.bytes();
        let open =
            |changes: &BTreeMap<u64, RangeTree>| changes.values().any(|tree| !tree.is_empty());
        state.allocated == kept && !open(&state.allocs) && !open(&state.frees)
    }

    /// Whether something of it was allocated in a group the changes of which were not taken.
    pub(super) fn is_being_allocated(&self) -> bool {
        self.state.lock().allocs.values().any(|tree| !tree.is_empty())
    }

    /// Free segments that may be allocated, by size: exact if loaded.
    pub fn histogram(&self) -> Histogram {
        self.state.lock().histogram()
    }

    /// Bytes of memory of the free space; 0 if not loaded.
    pub fn memory(&self) -> u64 {
        self.state.lock().free.as_ref().map_or(0, FreeSpace::memory)
    }

    /// Waits for its lock since the last call.
    pub(super) fn take_lock_waits(&self) -> LockWaits {
        self.state.take_waits()
    }

    pub(super) fn view(&self) -> View {
        self.state.lock().view()
    }

    /// All free segments by size, those that are deferred included, which count apart from what
    /// they border on; `None` if not loaded.
    pub fn free_histogram(&self) -> Option<Histogram> {
        let state = self.state.lock();
        let free = state.free.as_ref()?.histogram();
        Some(with_deferred(free, state))
    }

    /// Free segments by size that are surely there: as [`free_histogram`] if loaded, else as they
    /// were when it was unloaded, or opened, and what was freed since.
    ///
    /// [`free_histogram`]: Metaslab::free_histogram
    pub fn known_histogram(&self) -> Histogram {
        let state = self.state.lock();
        let mut free = state.histogram();
        if state.free.is_none() {
            free.remove(state.guessed);
        }
        with_deferred(free, state)
    }

    /// What is free once `txg` is on disk, for writing the space map anew; `None` if not loaded.
    pub fn free_after(&self, txg: u64) -> Option<RangeTree> {
        // The copy's memory is touched here rather than with the lock held.
        let mut copy = Loading::new(self.extent, true).ok()?;
        let (own, kept) = {
            let state = self.state.lock();
            state.free.as_ref()?.copy_to(&mut copy);
            // What is not synced yet: mostly of the open group, and there are few allocations since
            // it was opened.
            let frees = state.frees.range(..=txg).flat_map(|(_, tree)| tree.iter());
            let later = state.allocs.range(txg + 1..).flat_map(|(_, tree)| tree.iter());
            let own: Vec<(u64, u64)> = frees.chain(later).collect();
            (own, state.freed.sets(txg).chain(state.defer.sets(txg)).collect::<Vec<Set>>())
        };
        let kept = kept.iter().flat_map(Set::iter);
        own.into_iter().chain(kept).for_each(|(start, end)| copy.fill(start, end, true));
        Some(copy.segments())
    }

    /// Bytes that are allocated once `txg` is on disk, whether it is loaded or not: all but what [`Metaslab::free_after`] has. `None`:
    /// the disk says that less is allocated than was freed since.
    pub fn allocated_after(&self, txg: u64) -> Option<u64> {
        let (allocated, own, kept) = {
            let state = self.state.lock();
            let frees = state.frees.range(..=txg).map(|(_, tree)| tree.space());
            let later = state.allocs.range(txg + 1..).map(|(_, tree)| tree.space());
            let own: u64 = frees.chain(later).sum();
            let kept: Vec<Set> = state.freed.sets(txg).chain(state.defer.sets(txg)).collect();
            (state.allocated, own, kept)
        };
        let kept: u64 = kept.iter().flat_map(Set::iter).map(|(start, end)| end - start).sum();
        allocated.checked_sub(own)?.checked_sub(kept)
    }

    /// What may be allocated now (`ms_allocatable`); `None` if not loaded. All else may be read: blocks of groups that are
    /// open still, and what was freed and is held.
    pub fn allocatable(&self) -> Option<RangeTree> {
        let mut copy = Loading::new(self.extent, true).ok()?;
        self.state.lock().free.as_ref()?.copy_to(&mut copy);
        Some(copy.segments())
    }

    /// Allocates `size` bytes in `txg` (`metaslab_block_alloc`).
    pub(super) fn alloc(&self, txg: u64, size: u64) -> (Attempt, View) {
        let mut state = self.state.lock();
        state.used = state.used.max(txg);
        let attempt = match (&state.free, state.disable.refuses()) {
            (None, _) => Attempt::Unloaded,
            (Some(_), Some(refused)) => refused,
            (Some(_), None) => {
                state.take(self.extent, txg, size).map_or(Attempt::TooSmall, Attempt::Got)
            }
        };
        if let Attempt::Got(_) = attempt {
            self.changed.store(true, Ordering::Relaxed);
        }
        (attempt, state.view())
    }

    /// Allocates in `txg` the next `size` addresses that `growing` gives out, which are in this metaslab.
    pub(super) fn append(&self, txg: u64, size: u64, growing: &dyn Growing) -> (Attempt, View) {
        let mut state = self.state.lock();
        state.used = state.used.max(txg);
        let attempt = match (&state.free, state.disable.refuses()) {
            (None, _) => Attempt::Unloaded,
            (Some(_), Some(refused)) => refused,
            (Some(free), None) => match growing.allocate(size) {
                Err(error) => {
                    tracing::debug!(%error, vdev = self.vdev, "no address is given out");
                    Attempt::TooSmall
                }
                Ok(start) if !free.contains(start, start + size) => {
                    let (vdev, id) = (self.vdev, self.id);
                    tracing::error!(
                        "vdev {vdev} metaslab {id}: {start:#x} was never given out, and the space map has it allocated"
                    );
                    Attempt::TooSmall
                }
                Ok(start) => {
                    let extent = self.extent;
                    let within =
                        start >= extent.start && start + size <= extent.start + extent.size;
                    let (vdev, id) = (self.vdev, self.id);
                    invariant!(
                        within,
                        "vdev {vdev} metaslab {id}: address {start:#x} is not there"
                    );
                    state.take_at(txg, start, start + size);
                    Attempt::Got(start)
                }
            },
        };
        if let Attempt::Got(_) = attempt {
            self.changed.store(true, Ordering::Relaxed);
        }
        (attempt, state.view())
    }

    /// Allocates in `txg` whatever is free of `wanted`, disjoint ranges in order (`metaslab_claim`);
    /// the bytes. Ranges elsewhere are passed over. `None`: it is disabled, and nothing was claimed.
    ///
    /// Errors: the metaslab is not loaded.
    pub(super) fn claim(
        &self,
        txg: u64,
        wanted: &mut impl Iterator<Item = (u64, u64)>,
    ) -> Result<Option<(u64, View)>, RangeError> {
        let mut state = self.state.lock();
        if state.disable.is_disabled() {
            return Ok(None);
        }
        state.used = state.used.max(txg);
        let State { free, allocs, allocated, disable, .. } = &mut *state;
        let (start, end) = (self.extent.start, self.extent.start + self.extent.size);
        let free = free.as_mut().ok_or(RangeError::Absent { start, end })?;
        let mut segments: VecDeque<(u64, u64)> = free.iter().collect();
        let mut claimed = 0;
        self.changed.store(true, Ordering::Relaxed);
        for (start, end) in wanted {
            while let Some((from, to)) = segments.pop_front() {
                if to <= start {
                    continue;
                }
                if from >= end {
                    segments.push_front((from, to));
                    break;
                }
                let (first, last) = (from.max(start), to.min(end));
                free.remove(first, last)?;
                disable.taken(first, last);
                let added = allocs.entry(txg).or_default().add(first, last);
                let (vdev, id) = (self.vdev, self.id);
                invariant!(
                    added.is_ok(),
                    "vdev {vdev} metaslab {id}: free and allocated: {added:?}"
                );
                (claimed, *allocated) = (claimed + last - first, *allocated + last - first);
                if to > end {
                    segments.push_front((end, to));
                    break;
                }
            }
        }
        Ok(Some((claimed, state.view())))
    }

    /// Takes back an allocation of `txg` that nothing was written to.
    pub(super) fn unalloc(&self, txg: u64, start: u64, end: u64) -> Result<View, RangeError> {
        let mut state = self.state.lock();
        let State { allocs, free, allocated, .. } = &mut *state;
        let allocs = allocs.get_mut(&txg).ok_or(RangeError::Absent { start, end })?;
        allocs.remove(start, end)?;
        let (vdev, id) = (self.vdev, self.id);
        let added = free.as_mut().map(|free| free.add(start, end));
        invariant!(
            added == Some(Ok(())),
            "vdev {vdev} metaslab {id}: allocated and free: {added:?}"
        );
        *allocated = less!(*allocated, end - start, "vdev {vdev} metaslab {id}: allocated bytes");
        Ok(state.view())
    }

    /// Frees `start..end` in `txg` (`metaslab_free_concrete`), or keeps it for the checkpoint that refers to it.
    ///
    /// Errors: some of it is free, freed or kept already, as far as can be known without loading, or is
    /// not in this metaslab; nothing is freed then.
    pub(super) fn free(
        &self,
        txg: u64,
        (start, end): (u64, u64),
        is_kept: bool,
    ) -> Result<(), RangeError> {
        let within = self.extent.start <= start && end <= self.extent.start + self.extent.size;
        let unit = 1u64 << self.extent.shift;
        if !within || !start.is_multiple_of(unit) || !end.is_multiple_of(unit) {
            return Err(RangeError::Absent { start, end });
        }
        let mut state = self.state.lock();
        let pending = state.frees.values().chain(state.kept.values());
        let clash = pending.filter_map(|tree| tree.overlap(start, end)).next();
        let clash = clash.or_else(|| state.freed.overlap(start, end));
        let clash = clash.or_else(|| state.defer.overlap(start, end));
        let free = state.free.as_ref().is_some_and(|free| free.overlaps(start, end));
        if let Some((seg_start, seg_end)) = clash.or(free.then_some((start, end))) {
            return Err(RangeError::Overlap { start, end, seg_start, seg_end });
        }
        self.changed.store(true, Ordering::Relaxed);
        if is_kept {
            return state.kept.entry(txg).or_default().add(start, end);
        }
        if let Some(noted) = &mut state.loading {
            noted.freed.push((start, end));
        }
        state.frees.entry(txg).or_default().add(start, end)
    }

    /// Whether there are changes of `txg` since the last [`Metaslab::take_changes`] and [`Metaslab::take_kept`].
    pub(super) fn has_changes(&self, txg: u64) -> bool {
        if !self.changed.load(Ordering::Relaxed) {
            return false;
        }
        let state = self.state.lock();
        let State { allocs, frees, kept, .. } = &*state;
        [allocs, frees, kept].iter().any(|trees| trees.contains_key(&txg))
    }

    /// What is kept for a checkpoint since the last call, in order.
    pub(super) fn take_kept(&self, txg: u64) -> Vec<(u64, u64)> {
        if !self.changed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let kept = state.kept.remove(&txg).unwrap_or_default();
        self.changed.store(state.is_changed(), Ordering::Relaxed);
        drop(state);
        kept.iter().collect()
    }

    /// The changes of `txg` since the last call, and what was freed, which is deferred from now on: also what was allocated
    /// since then.
    pub(super) fn take_changes(&self, txg: u64) -> (Changes, Arc<RangeTree>) {
        let (mut allocs, freed) = {
            let mut state = self.state.lock();
            let allocs = state.allocs.remove(&txg).unwrap_or_default();
            let freed = Arc::new(state.frees.remove(&txg).unwrap_or_default());
            if !freed.is_empty() {
                state.freed.push(txg, freed.clone());
            }
            self.changed.store(state.is_changed(), Ordering::Relaxed);
            (allocs, freed)
        };
        let mut frees = RangeTree::new();
        for (start, end) in freed.iter() {
            // Both trees are sets.
            let moved = allocs.remove_xor_add(&mut frees, start, end);
            let (vdev, id) = (self.vdev, self.id);
            invariant!(moved.is_ok(), "vdev {vdev} metaslab {id}: freed twice: {moved:?}");
        }
        let (vdev, metaslab) = (self.vdev, self.id);
        let (allocs, frees) = (allocs.iter().collect(), frees.iter().collect());
        (Changes { vdev, metaslab, allocs, frees }, freed)
    }

    /// `txg` is on disk: its frees begin to wait, and frees of `due` and before become allocatable. If
    /// the metaslab was not used for `unload_after` txgs, or for as long as tunables say, it is
    /// unloaded unless it must be kept. Returns how many bytes became allocatable, too.
    pub(super) fn sync_done(
        &self,
        txg: u64,
        due: Option<u64>,
        keep: bool,
        unload_after: Option<u64>,
    ) -> (View, u64) {
        let (mut guard, mut back) = (self.state.lock(), 0);
        let state = &mut *guard;
        state.freed.hand_over(txg, &mut state.defer);
        while let Some((freed_in, segments)) = due.and_then(|due| guard.defer.pop(due, BATCH)) {
            back += guard.end_defer((self.vdev, self.id), freed_in, &segments);
            MutexGuard::bump(&mut guard);
        }
        guard.check(self.vdev, self.id);
        let idle = guard.is_idle(txg, unload_after);
        let unloaded = if idle && !keep { guard.unload() } else { None };
        let view = guard.view();
        drop(guard);
        // Memory is given back without the lock.
        drop(unloaded);
        (view, back)
    }

    /// Unloads the metaslab if nothing was allocated there since `txg`, which is on disk; its view
    /// then.
    pub(super) fn evict(&self, txg: u64) -> Option<View> {
        let mut state = self.state.lock();
        let unloaded = if state.used <= txg { state.unload()? } else { return None };
        let view = state.view();
        drop(state);
        drop(unloaded);
        Some(view)
    }

    /// Bytes that loads found allocated, since the last call, beyond those that were known.
    pub(super) fn take_found(&self) -> i64 {
        std::mem::take(&mut self.state.lock().found)
    }

    /// Last txg in which it was used, and bytes of memory that it takes; `None` if not loaded.
    pub(super) fn loaded_since(&self) -> Option<(u64, u64)> {
        let state = self.state.lock();
        Some((state.used, state.free.as_ref()?.memory()))
    }
}

/// `sum` and deferred frees. The lock is let go of.
fn with_deferred(mut sum: Histogram, state: MutexGuard<'_, State>) -> Histogram {
    let deferred: Vec<Set> = state.freed.sets(u64::MAX).chain(state.defer.sets(u64::MAX)).collect();
    drop(state);
    deferred.iter().flat_map(Set::iter).for_each(|(start, end)| sum.add(end - start));
    sum
}

impl State {
    /// Whether there are changes that were not taken.
    fn is_changed(&self) -> bool {
        [&self.allocs, &self.frees, &self.kept].iter().any(|trees| !trees.is_empty())
    }

    fn histogram(&self) -> Histogram {
        self.free.as_ref().map_or_else(|| self.histogram.clone(), FreeSpace::histogram)
    }

    fn view(&mut self) -> View {
        let weight = match &self.free {
            Some(free) => free.weight(),
            None => Weight::of(&self.histogram),
        };
        let largest = self.free.as_ref().map(FreeSpace::largest).or(self.largest);
        let hope = match self.came_back {
            (0, _) => 0,
            // All of it side by side, with the largest there were between and around.
            (count, bytes) => (count + 1).saturating_mul(self.others).saturating_add(bytes),
        };
        let hope = hope.min(self.size.saturating_sub(self.allocated));
        self.views += 1;
        View { weight, largest, loaded: self.free.is_some(), hope, number: self.views }
    }

    /// Finds `size` bytes and takes them.
    fn take(&mut self, extent: Extent, txg: u64, size: u64) -> Option<u64> {
        let free = self.free.as_mut()?;
        let plenty = free.largest() >= tunables::DF_ALLOC_THRESHOLD.get()
            && free.space() / (extent.size / 100).max(1) >= tunables::DF_FREE_PCT.get();
        let search = tunables::DF_MAX_SEARCH.get();
        let near = match self
            .cursor
            .checked_add(size)
            .is_some_and(|end| free.contains(self.cursor, end))
        {
            true => Some(self.cursor),
            false if plenty && search > 0 => free.first_fit(self.cursor, size, 1, search),
            false => None,
        };
        let wanted = if plenty { free.largest().max(size) } else { size };
        let start = near.or_else(|| free.best_fit(wanted).map(|(start, _)| start))?;
        self.take_at(txg, start, start.checked_add(size)?);
        Some(start)
    }

    /// Takes bytes that are free.
    fn take_at(&mut self, txg: u64, start: u64, end: u64) {
        let taken = self.free.as_mut().map(|free| free.remove(start, end));
        let is_free = matches!(taken, Some(Ok(())));
        invariant!(is_free, "{start:#x}-{end:#x} was found free and is not: {taken:?}");
        self.cursor = end;
        self.disable.taken(start, end);
        // What was free is not in any other tree.
        let added = self.allocs.entry(txg).or_default().add(start, end);
        invariant!(added.is_ok(), "free and allocated in group {txg}: {added:?}");
        self.allocated += end - start;
    }

    /// Of a loaded metaslab what is free and what is not are all of it.
    fn check(&self, vdev: u64, id: u64) {
        let Some(free) = self.free.as_ref().map(FreeSpace::space) else { return };
        let (allocated, size) = (self.allocated, self.size);
        invariant!(
            free + allocated == size,
            "vdev {vdev} metaslab {id}: {free} bytes free and {allocated} not, of {size}"
        );
    }

    /// Deferred frees of `freed_in` become allocatable; their bytes.
    fn end_defer(&mut self, (vdev, id): (u64, u64), freed_in: u64, segments: &[(u64, u64)]) -> u64 {
        let mut bytes = 0;
        for (start, end) in segments.iter().copied() {
            bytes += end - start;
            self.disable.came_back(start, end);
            if let Some(free) = &mut self.free {
                let added = free.add(start, end);
                invariant!(
                    added.is_ok(),
                    "vdev {vdev} metaslab {id}: freed in group {freed_in}, and free: {added:?}"
                );
                let of = format_args!("vdev {vdev} metaslab {id}: allocated bytes");
                self.allocated = less!(self.allocated, end - start, "{of}");
                continue;
            }
            // Of one that is not loaded the header of the space map may have said less than there is.
            let beyond = (end - start).saturating_sub(self.allocated);
            self.allocated = self.allocated.saturating_sub(end - start);
            let beyond = i64::try_from(beyond).unwrap_or(i64::MAX);
            (self.found, self.off) =
                (self.found.saturating_add(beyond), self.off.saturating_add(beyond));
            if let Some(noted) = &mut self.loading {
                noted.back.push((freed_in, start, end));
            }
            // It may join with others, so the largest segment is not known any more.
            self.histogram.add(end - start);
            self.largest = None;
            self.came_back.0 += 1;
            self.came_back.1 += end - start;
        }
        bytes
    }

    /// Whether this metaslab was not used for long, now that `txg` is on disk.
    fn is_idle(&mut self, txg: u64, after: Option<u64>) -> bool {
        if let Some(after) = after {
            return self.used.saturating_add(after) < txg;
        }
        let since = match self.seen {
            Some((used, since)) if used == self.used => since,
            _ => Instant::now(),
        };
        self.seen = Some((self.used, since));
        let delay = Duration::from_millis(tunables::UNLOAD_DELAY_MS.get());
        let txgs = self.used.saturating_add(tunables::UNLOAD_DELAY.get()) < txg;
        txgs && since.elapsed() >= delay
    }

    /// Takes the free space out, unless there are allocations that were not handed out yet (`metaslab_unload`).
    fn unload(&mut self) -> Option<FreeSpace> {
        let free = self.free.take_if(|_| self.allocs.is_empty())?;
        (self.histogram, self.guessed) = (free.histogram(), 0);
        (self.largest, self.others) = (Some(free.largest()), free.largest());
        self.came_back = (0, 0);
        Some(free)
    }
}
