//! Metaslabs: the pieces of a top-level vdev in which space is allocated.
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
//! What was freed in a txg is kept back until two more are on disk ([`TXG_DEFER_SIZE`]), so that
//! the pool can be opened as it was a few txgs ago, and so that a block's address and birth txg
//! name one content for good. A block that is allocated and freed between two calls of
//! `take_changes` is not handed out at all, but kept back all the same.
//!
//! Blocks are placed one after the other, and when the segment is used up, in the largest that there
//! is: so the blocks of a batch are neighbours, and their writes join. In a pool two thirds full,
//! overwritten at random for long, a batch of blocks of 8 KiB makes 0.33 writes a block then, against 0.42
//! to 0.51 where the first segment that fits after the last is taken.
//! When little is free, large segments are spared.
//!
//! A metaslab is *loaded* while its free space is in memory. Loading reads the space map as it was
//! after some txg; the metaslab's lock is not held meanwhile. Frees that came back into circulation
//! during the load, but after the map was written, are noted and added when the load is done, and
//! frees that the map has but that are still kept back are taken out.
//!
//! Invariants:
//! - free space, allocs, frees, freed and defer are disjoint but for this: frees of a block whose
//!   allocation was not taken yet are in allocs as well;
//! - `allocated` counts all bytes but the free ones, whether loaded or not;
//! - an unloaded metaslab has no allocs.

use std::collections::BTreeMap;
use std::time::Instant;

use cenote_vdev::stats::Latencies;
use parking_lot::{Condvar, Mutex};

use super::loader::{LoadMetaslab, Loaded};
use super::space::{Extent, FreeSpace};
use super::weight::Weight;
use crate::histogram::Histogram;
use crate::rangetree::{RangeError, RangeTree};
use crate::tunables;

/// Txgs that must be on disk after that of a free before the space is used again.
pub const TXG_DEFER_SIZE: u64 = 2;

/// What a pool knows of a metaslab before it is loaded.
#[derive(Clone, Debug, Default)]
pub struct MetaslabInfo {
    /// Bytes allocated.
    pub allocated: u64,
    /// Free segments by size, from the header of the space map; `None` if it has none.
    pub histogram: Option<Histogram>,
}

/// The changes of a metaslab that are to be written to its space map.
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
}

impl View {
    pub(super) fn may_hold(&self, size: u64) -> bool {
        self.largest.map_or_else(|| self.weight.may_hold(size), |largest| size <= largest)
    }

    pub(super) fn surely_holds(&self) -> u64 {
        self.largest.unwrap_or_else(|| self.weight.surely_holds())
    }
}

#[derive(Default)]
struct State {
    free: Option<FreeSpace>,
    /// While a load is under way: frees `(txg, start, end)` that are allocatable since.
    loading: Option<Vec<(u64, u64, u64)>>,
    allocs: BTreeMap<u64, RangeTree>,
    frees: BTreeMap<u64, RangeTree>,
    freed: BTreeMap<u64, RangeTree>,
    defer: BTreeMap<u64, RangeTree>,
    allocated: u64,
    /// While not loaded: free segments that may be allocated, and the largest of them.
    histogram: Histogram,
    largest: Option<u64>,
    /// Where the last allocation ended.
    cursor: u64,
    /// Last txg in which this metaslab was allocated from or loaded for.
    used: u64,
}

/// A metaslab; see the module's documentation.
pub struct Metaslab {
    vdev: u64,
    id: u64,
    extent: Extent,
    state: Mutex<State>,
    loaded: Condvar,
}

/// How much space came and went, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Deferred {
    pub came: u64,
    pub went: u64,
}

impl Metaslab {
    pub(super) fn new(vdev: u64, id: u64, extent: Extent, info: MetaslabInfo) -> Metaslab {
        let mut state = State { allocated: info.allocated.min(extent.size), ..State::default() };
        state.histogram = info.histogram.unwrap_or_else(|| {
            // All that is known is how much there is in all.
            let mut histogram = Histogram::default();
            histogram.add(extent.size - state.allocated);
            histogram
        });
        if state.allocated == extent.size {
            state.histogram = Histogram::default();
        }
        Metaslab { vdev, id, extent, state: Mutex::new(state), loaded: Condvar::new() }
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

    /// Bytes that are not allocatable: allocated ones, and freed ones that are kept back.
    pub fn allocated(&self) -> u64 {
        self.state.lock().allocated
    }

    /// Free segments that may be allocated, by size: exact if loaded.
    pub fn histogram(&self) -> Histogram {
        self.state.lock().histogram()
    }

    /// Bytes of memory of the free space; 0 if not loaded.
    pub fn memory(&self) -> u64 {
        self.state.lock().free.as_ref().map_or(0, FreeSpace::memory)
    }

    pub(super) fn view(&self) -> View {
        self.state.lock().view()
    }

    /// All free segments by size, those that are kept back included, which count apart from what
    /// they border on; `None` if not loaded.
    pub fn free_histogram(&self) -> Option<Histogram> {
        let state = self.state.lock();
        let mut sum = state.free.as_ref()?.histogram();
        let kept = state.freed.values().chain(state.defer.values());
        kept.for_each(|tree| sum.merge(&tree.histogram()));
        Some(sum)
    }

    /// All free segments by size, as far as they are known: as [`free_histogram`] if loaded, else
    /// as they were when it was unloaded, and what was freed since.
    ///
    /// [`free_histogram`]: Metaslab::free_histogram
    pub fn known_histogram(&self) -> Histogram {
        let state = self.state.lock();
        let mut sum = state.histogram();
        let kept = state.freed.values().chain(state.defer.values());
        kept.for_each(|tree| sum.merge(&tree.histogram()));
        sum
    }

    /// What is free once `txg` is on disk, for writing the space map anew; `None` if not loaded.
    pub fn free_after(&self, txg: u64) -> Option<RangeTree> {
        let state = self.state.lock();
        let mut tree = RangeTree::new();
        let pending = [&state.frees, &state.freed, &state.defer].into_iter();
        let of_txg = |trees: &BTreeMap<u64, RangeTree>| {
            let upto = trees.range(..=txg);
            upto.flat_map(|(_, t)| t.iter().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let later = state.allocs.range(txg + 1..).flat_map(|(_, t)| t.iter());
        let free = state.free.as_ref()?.iter();
        for (start, end) in free.chain(pending.flat_map(of_txg)) {
            tree.clear(start, end);
            tree.add(start, end).ok()?;
        }
        for (start, end) in later {
            tree.clear(start, end);
            tree.add(start, end).ok()?;
        }
        Some(tree)
    }

    /// Allocates `size` bytes in `txg`.
    pub(super) fn alloc(&self, txg: u64, size: u64) -> (Attempt, View) {
        let mut state = self.state.lock();
        state.used = state.used.max(txg);
        let attempt = match &state.free {
            None => Attempt::Unloaded,
            Some(_) => state.take(self.extent, txg, size).map_or(Attempt::TooSmall, Attempt::Got),
        };
        (attempt, state.view())
    }

    /// Takes back an allocation of `txg` that nothing was written to.
    pub(super) fn unalloc(&self, txg: u64, start: u64, end: u64) -> Result<View, RangeError> {
        let mut state = self.state.lock();
        let allocs = state.allocs.get_mut(&txg).ok_or(RangeError::Absent { start, end })?;
        allocs.remove(start, end)?;
        if let Some(free) = &mut state.free {
            free.add(start, end)?;
        }
        state.allocated = state.allocated.saturating_sub(end - start);
        Ok(state.view())
    }

    /// Frees `start..end` in `txg`.
    ///
    /// Errors: some of it is free or freed already, as far as can be known without loading, or is
    /// not in this metaslab; nothing is freed then.
    pub(super) fn free(&self, txg: u64, start: u64, end: u64) -> Result<(), RangeError> {
        let within = self.extent.start <= start && end <= self.extent.start + self.extent.size;
        let unit = 1u64 << self.extent.shift;
        if !within || !start.is_multiple_of(unit) || !end.is_multiple_of(unit) {
            return Err(RangeError::Absent { start, end });
        }
        let mut state = self.state.lock();
        let trees = [&state.frees, &state.freed, &state.defer];
        let pending = trees.into_iter().flat_map(|trees| trees.values());
        let clash = pending.filter_map(|tree| tree.overlap(start, end)).next();
        let free = state.free.as_ref().is_some_and(|free| free.overlaps(start, end));
        if let Some((seg_start, seg_end)) = clash.or(free.then_some((start, end))) {
            return Err(RangeError::Overlap { start, end, seg_start, seg_end });
        }
        state.frees.entry(txg).or_default().add(start, end)
    }

    /// The changes of `txg` since the last call.
    pub(super) fn take_changes(&self, txg: u64) -> Option<Changes> {
        let mut state = self.state.lock();
        let mut allocs = state.allocs.remove(&txg).unwrap_or_default();
        let freed = state.frees.remove(&txg).unwrap_or_default();
        if allocs.is_empty() && freed.is_empty() {
            return None;
        }
        let mut frees = RangeTree::new();
        let kept = state.freed.entry(txg).or_default();
        for (start, end) in freed.iter() {
            // Both trees are sets and `freed` is disjoint from what was freed before.
            let _ = kept.add(start, end);
            let _ = allocs.remove_xor_add(&mut frees, start, end);
        }
        let (vdev, metaslab) = (self.vdev, self.id);
        let (allocs, frees) = (allocs.iter().collect(), frees.iter().collect());
        Some(Changes { vdev, metaslab, allocs, frees })
    }

    /// `txg` is on disk: its frees begin to wait, and those that have waited long enough become
    /// allocatable. A metaslab that was not used for long is unloaded.
    pub(super) fn sync_done(&self, txg: u64, keep: bool) -> (Deferred, View) {
        let mut state = self.state.lock();
        let mut deferred = Deferred::default();
        if let Some(freed) = state.freed.remove(&txg).filter(|freed| !freed.is_empty()) {
            deferred.came = freed.space();
            state.defer.insert(txg, freed);
        }
        while let Some(first) = state.defer.first_entry() {
            let (freed_in, waited) = (*first.key(), *first.key() + TXG_DEFER_SIZE <= txg);
            if !waited {
                break;
            }
            let tree = first.remove();
            deferred.went += tree.space();
            state.mature(freed_in, &tree);
        }
        let idle = state.used.saturating_add(tunables::UNLOAD_DELAY.get()) < txg;
        if !keep && idle && state.allocs.is_empty() && state.free.is_some() {
            state.unload();
        }
        (deferred, state.view())
    }

    /// Brings the free space into memory, or waits for whoever does so. A load is counted in
    /// `loads`.
    ///
    /// Errors: the loader's.
    pub(super) fn load(
        &self,
        txg: u64,
        loader: &dyn LoadMetaslab,
        loads: &Latencies,
    ) -> Result<View, String> {
        let mut state = self.state.lock();
        state.used = state.used.max(txg);
        while state.loading.is_some() {
            self.loaded.wait(&mut state);
        }
        if state.free.is_some() {
            return Ok(state.view());
        }
        state.loading = Some(Vec::new());
        drop(state);
        // The loader is the pool's code: if it panics, nobody must wait for it for ever.
        let mut landing = Landing { metaslab: self, result: Err("the loader panicked".into()) };
        let started = Instant::now();
        let loaded = loader.load(self.vdev, self.id, self.extent);
        // Summing up takes long where there are many segments: not with the lock held.
        landing.result = loaded.map(|Loaded { free, txg }| (free.finish(), txg));
        if landing.result.is_ok() {
            loads.add(started.elapsed());
        }
        let failed = landing.result.as_ref().err().cloned();
        drop(landing);
        match failed {
            Some(why) => Err(why),
            None => Ok(self.view()),
        }
    }

    fn finish_load(&self, result: Result<(FreeSpace, u64), String>) {
        let mut state = self.state.lock();
        let matured = state.loading.take().unwrap_or_default();
        if let Ok((mut free, txg)) = result {
            for (_, start, end) in matured.into_iter().filter(|(freed_in, ..)| *freed_in > txg) {
                free.clear(start, end);
                let _ = free.add(start, end);
            }
            let held = [&state.freed, &state.defer, &state.frees, &state.allocs];
            for (start, end) in held.into_iter().flat_map(|t| t.values()).flat_map(|t| t.iter()) {
                free.clear(start, end);
            }
            state.allocated = self.extent.size - free.space();
            state.free = Some(free);
        }
        drop(state);
        self.loaded.notify_all();
    }
}

/// Ends a load whatever happens.
struct Landing<'a> {
    metaslab: &'a Metaslab,
    /// Free space as it was after a txg.
    result: Result<(FreeSpace, u64), String>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Err(String::new()));
        self.metaslab.finish_load(result);
    }
}

impl State {
    fn histogram(&self) -> Histogram {
        self.free.as_ref().map_or_else(|| self.histogram.clone(), FreeSpace::histogram)
    }

    fn view(&self) -> View {
        let weight = match &self.free {
            Some(free) => free.weight(),
            None => Weight::of(&self.histogram),
        };
        let largest = self.free.as_ref().map(FreeSpace::largest).or(self.largest);
        View { weight, largest, loaded: self.free.is_some() }
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
        let end = start.checked_add(size)?;
        free.remove(start, end).ok()?;
        self.cursor = end;
        // What was free is in none of the other trees.
        let _ = self.allocs.entry(txg).or_default().add(start, end);
        self.allocated += size;
        Some(start)
    }

    /// What was freed in `freed_in` becomes allocatable.
    fn mature(&mut self, freed_in: u64, tree: &RangeTree) {
        self.allocated = self.allocated.saturating_sub(tree.space());
        for (start, end) in tree.iter() {
            if let Some(free) = &mut self.free {
                if let Err(e) = free.add(start, end) {
                    tracing::error!("freed in txg {freed_in}: {e}");
                }
                continue;
            }
            if let Some(noted) = &mut self.loading {
                noted.push((freed_in, start, end));
            }
            // It may join with others, so the largest segment is not known any more.
            self.histogram.add(end - start);
            self.largest = None;
        }
    }

    fn unload(&mut self) {
        if let Some(free) = self.free.take() {
            self.histogram = free.histogram();
            self.largest = Some(free.largest());
        }
    }
}
