//! What each metaslab has unflushed, in memory (`ms_unflushed_allocs`, `ms_unflushed_frees`,
//! `metaslab_unflushed_changes_memused`): changes that are in logs, but not in its own map.
//!
//! # Structures
//!
//! ```text
//!   changes of a pass ──┬──> all ─────────────────── flush ──> the metaslab's own map
//!                       │    until now, those of
//!                       │    the txg that is being
//!                       │    written included
//!                       └──> fresh ── advance(txg) ──> out of date
//!                            those again, as a list
//! ```
//!
//! `all` is a pair of range trees, allocs and frees. An alloc takes away what is in the frees and adds
//! the rest to the allocs, a free the other way round. So the two are always disjoint, and hold each
//! byte at most once however often it changed hands: what they hold is what the map must be told,
//! no more. Each change costs that once. What was unflushed after the last txg on disk, which only
//! loads ask for, is `all` with the `fresh` ones undone, the last first; or, where the txg that is
//! being written flushes the metaslab, what is kept of `all` as it was `before`.
//!
//! # Loading
//!
//! A metaslab's free space is its own map and then what is unflushed. The map is read without a
//! lock, out of the MOS of some txg `v`; the changes are merged under the lock, as they were after
//! the last txg `t` on disk, `t >= v`. The result is right as of `t` exactly if the map was not
//! written to between `v` and `t`: each metaslab remembers the txg in which it was flushed last, and
//! all of them the last txg that had no log. If it was, the load begins anew. A metaslab that is being loaded is not
//! flushed, so that a load begins anew twice at most.
//!
//! # Invariants
//!
//! - `allocs` and `frees` of a pair are disjoint.
//! - Changes fit: no byte is allocated, or freed, twice. What does not fit is refused before it is
//!   written.
//! - `before` is there exactly while the txg that is being written flushes the metaslab.

use cenote_format::invariant;
use cenote_format::spacemap::Change;
use cenote_pool::metaslab::Unflushed;
use cenote_store::alloc::{Changes, Loading};
use cenote_store::rangetree::RangeError;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// A metaslab: the id of its vdev, its number.
pub(super) type Place = (u64, u64);

/// Bytes of memory that a segment is taken for: start and end, in nodes that are two thirds full.
pub(super) const SEGMENT_BYTES: u64 = 32;

#[derive(Debug, Default)]
struct Entry {
    all: Unflushed,
    /// Changes of the txg that was being written when this was the last one on disk.
    fresh: Vec<(Change, u64, u64)>,
    fresh_after: u64,
    before: Option<Unflushed>,
    /// Last txg on disk that flushed.
    flushed: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Whether changes are logged.
    logged: bool,
    /// Last txg on disk whose changes were not, but appended to the metaslabs' own maps.
    appended: u64,
    /// The txg that is being written is one of those.
    appending: bool,
    /// Last txg on disk.
    txg: u64,
    metaslabs: BTreeMap<Place, Entry>,
    /// Metaslabs that the txg that is being written flushes.
    flushing: BTreeSet<Place>,
    /// Loads under way.
    loading: BTreeMap<Place, usize>,
}

/// What all metaslabs have unflushed; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct UnflushedSpace {
    state: Mutex<State>,
}

/// What came of merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merged {
    /// The free space is that after this txg.
    At(u64),
    /// The map that was read is too old.
    Stale,
}

/// Changes to be written to a metaslab's own map.
pub(super) type Ranges = (Vec<(u64, u64)>, Vec<(u64, u64)>);

/// A load under way.
pub(super) struct LoadGuard<'a> {
    space: &'a UnflushedSpace,
    place: Place,
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.space.state.lock();
        if let Some(count) = state.loading.get_mut(&self.place) {
            *count -= 1;
            if *count == 0 {
                state.loading.remove(&self.place);
            }
        }
    }
}

impl Entry {
    /// What is fresh while the txg after `synced` is being written.
    fn fresh(&self, synced: u64) -> &[(Change, u64, u64)] {
        if self.fresh_after == synced { &self.fresh } else { &[] }
    }

    /// The txg after `synced` is about to change it. What is out of date by then is forgotten only
    /// now, so that the end of a txg does not go through all metaslabs.
    fn renew(&mut self, synced: u64) {
        if self.fresh_after != synced {
            self.fresh.clear();
            self.fresh_after = synced;
        }
    }

    /// Adds a range.
    fn change(&mut self, change: Change, start: u64, end: u64) -> Result<(), RangeError> {
        let (from, to) = self.all.both(change);
        from.remove_xor_add(to, start, end)?;
        self.fresh.push((change, start, end));
        Ok(())
    }

    /// Adds what was unflushed after `synced`, the last txg on disk.
    fn merge(&self, synced: u64, free: &mut Loading) -> Result<(), RangeError> {
        let unflushed = self.before.as_ref().unwrap_or(&self.all);
        unflushed.allocs.iter().try_for_each(|(s, e)| free.alloc(s, e))?;
        unflushed.frees.iter().try_for_each(|(s, e)| free.free(s, e))?;
        let fresh = self.fresh(synced).iter().rev().filter(|_| self.before.is_none());
        for (change, start, end) in fresh {
            match change {
                Change::Alloc => free.free(*start, *end)?,
                Change::Free => free.alloc(*start, *end)?,
            }
        }
        Ok(())
    }
}

impl UnflushedSpace {
    /// What a pool with logs has as of `txg`.
    pub fn open(txg: u64, logged: bool, found: Vec<(Place, Unflushed)>) -> UnflushedSpace {
        let entry = |(place, all)| (place, Entry { all, ..Entry::default() });
        let metaslabs = found.into_iter().map(entry).collect();
        let state = State { logged, txg, metaslabs, ..State::default() };
        UnflushedSpace { state: Mutex::new(state) }
    }

    /// From the txg that is being written on changes are logged, or not yet.
    pub fn log(&self, logged: bool) {
        let mut state = self.state.lock();
        (state.logged, state.appending) = (logged, !logged);
    }

    /// Notes the changes of a pass.
    ///
    /// Errors: they do not fit the space that is there.
    pub fn change(&self, changes: &Changes) -> Result<(), RangeError> {
        let place = (changes.vdev, changes.metaslab);
        let mut state = self.state.lock();
        let synced = state.txg;
        let entry = state.metaslabs.entry(place).or_default();
        entry.renew(synced);
        let all = [(Change::Alloc, &changes.allocs), (Change::Free, &changes.frees)];
        for (change, ranges) in all {
            ranges.iter().try_for_each(|(start, end)| entry.change(change, *start, *end))?;
        }
        Ok(())
    }

    /// What the txg that is being written writes to a metaslab's own map. To be
    /// called before the changes of that txg are noted.
    pub fn flush(&self, place: Place) -> Ranges {
        let mut state = self.state.lock();
        let is_first = state.flushing.insert(place);
        let (vdev, ms) = place;
        let after = state.txg;
        invariant!(is_first, "vdev {vdev} metaslab {ms}: flushed twice after group {after}");
        let entry = state.metaslabs.entry(place).or_default();
        let noted = entry.fresh(after).len();
        invariant!(
            noted == 0 && entry.before.is_none(),
            "vdev {vdev} metaslab {ms}: flushed with {noted} changes of the group after {after}"
        );
        let before = entry.before.insert(std::mem::take(&mut entry.all));
        (before.allocs.iter().collect(), before.frees.iter().collect())
    }

    /// A vdev has left.
    pub fn forget(&self, vdev: u64) {
        self.state.lock().metaslabs.retain(|place, _| place.0 != vdev);
    }

    /// Bytes that a metaslab has allocated beyond what its own map says, the changes noted so far
    /// included.
    pub fn allocated(&self, place: Place) -> i128 {
        let state = self.state.lock();
        state.metaslabs.get(&place).map_or(0, |entry| {
            i128::from(entry.all.allocs.space()) - i128::from(entry.all.frees.space())
        })
    }

    /// Bytes of memory of each metaslab that has something unflushed, and of all of them, the changes
    /// noted so far included.
    pub fn memory(&self) -> (BTreeMap<Place, u64>, u64) {
        let state = self.state.lock();
        let of = |(place, entry): (&Place, &Entry)| {
            let segments = entry.all.segments();
            (segments > 0).then_some((*place, segments * SEGMENT_BYTES))
        };
        let each: BTreeMap<Place, u64> = state.metaslabs.iter().filter_map(of).collect();
        let all = each.values().sum();
        (each, all)
    }

    /// Whether a metaslab is being loaded, and so cannot be flushed.
    pub fn is_loading(&self, place: Place) -> bool {
        self.state.lock().loading.contains_key(&place)
    }

    /// A load begins; the map must be read after this.
    pub fn loading(&self, place: Place) -> LoadGuard<'_> {
        *self.state.lock().loading.entry(place).or_default() += 1;
        LoadGuard { space: self, place }
    }

    /// Merges what a metaslab has unflushed into what its map had after txg `read`.
    ///
    /// Errors: the changes do not fit the map.
    pub fn merge(&self, place: Place, read: u64, free: &mut Loading) -> Result<Merged, RangeError> {
        let state = self.state.lock();
        if !state.logged {
            return Ok(Merged::At(read));
        }
        let entry = state.metaslabs.get(&place);
        if state.appended > read || entry.is_some_and(|e| e.flushed > read) {
            return Ok(Merged::Stale);
        }
        let ((vdev, ms), txg) = (place, state.txg);
        invariant!(
            read <= txg,
            "vdev {vdev} metaslab {ms}: its map is of group {read}, after {txg}"
        );
        entry.map_or(Ok(()), |entry| entry.merge(txg, free))?;
        Ok(Merged::At(txg))
    }

    /// `txg` is on disk. `show` makes its MOS the one that is read from now on.
    pub fn advance(&self, txg: u64, show: impl FnOnce()) {
        let mut state = self.state.lock();
        let before = state.txg;
        invariant!(before < txg, "space maps: group {txg} is on disk after group {before}");
        for place in std::mem::take(&mut state.flushing) {
            if let Some(entry) = state.metaslabs.get_mut(&place) {
                (entry.before, entry.flushed) = (None, txg);
            }
        }
        if std::mem::take(&mut state.appending) {
            state.appended = txg;
        }
        state.txg = txg;
        show();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use cenote_store::alloc::Extent;

    fn changes(allocs: &[(u64, u64)], frees: &[(u64, u64)]) -> Changes {
        Changes { vdev: 0, metaslab: 3, allocs: allocs.to_vec(), frees: frees.to_vec() }
    }

    #[test]
    fn each_byte_is_there_once() {
        let space = UnflushedSpace::default();
        space.log(true);
        space.change(&changes(&[(0, 4096)], &[])).unwrap();
        // A block of this txg that a later pass gives up again.
        space.change(&changes(&[], &[(1024, 2048), (8192, 9216)])).unwrap();
        space.advance(1, || {});
        assert_eq!(space.memory().1, 3 * SEGMENT_BYTES);
        space.change(&changes(&[(8192, 9216)], &[(0, 1024)])).unwrap();
        space.advance(2, || {});
        assert_eq!(space.flush((0, 3)), (vec![(2048, 4096)], vec![]));
        space.change(&changes(&[(1024, 2048)], &[(2048, 4096)])).unwrap();
        space.advance(3, || {});
        assert_eq!(space.flush((0, 3)), (vec![(1024, 2048)], vec![(2048, 4096)]));
    }

    #[test]
    fn loads_see_the_last_txg_on_disk() {
        let space = UnflushedSpace::default();
        space.log(true);
        let extent = Extent { start: 0, size: 1 << 20, shift: 9 };
        // The map that was read has the first 16 KiB as allocated.
        let unflushed = |txg| {
            let mut free = Loading::new(extent, true).unwrap();
            free.alloc(0, 16 << 10).unwrap();
            assert_eq!(space.merge((0, 3), txg, &mut free).unwrap(), Merged::At(txg));
            free.finish().iter().collect::<Vec<_>>()
        };
        let rest = (16 << 10, 1 << 20);
        space.change(&changes(&[(16 << 10, 20 << 10)], &[(8 << 10, 12 << 10)])).unwrap();
        assert_eq!(unflushed(0), [rest]);
        // A later pass takes some of it back.
        space.change(&changes(&[(8 << 10, 9 << 10)], &[(16 << 10, 17 << 10)])).unwrap();
        assert_eq!(unflushed(0), [rest]);
        space.advance(1, || {});
        let now = [(9 << 10, 12 << 10), (16 << 10, 17 << 10), (20 << 10, 1 << 20)];
        assert_eq!(unflushed(1), now);
        space.flush((0, 3));
        space.change(&changes(&[(9 << 10, 12 << 10)], &[])).unwrap();
        assert_eq!(unflushed(1), now, "as it was before the flush");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let space = UnflushedSpace::default();
        space.change(&changes(&[(0, 4096)], &[(8192, 9216)])).unwrap();
        assert!(space.change(&changes(&[(512, 1024)], &[])).is_err());
        space.advance(1, || {});
        assert!(space.change(&changes(&[(512, 1024)], &[])).is_err());
        let space = UnflushedSpace::default();
        space.change(&changes(&[], &[(8192, 9216)])).unwrap();
        space.advance(1, || {});
        assert!(space.change(&changes(&[], &[(8192, 8704)])).is_err());
        // What came back and went again in one txg is freed anew.
        let space = UnflushedSpace::default();
        space.change(&changes(&[], &[(8192, 9216)])).unwrap();
        space.advance(1, || {});
        space.change(&changes(&[(8192, 9216)], &[])).unwrap();
        space.change(&changes(&[], &[(8192, 9216)])).unwrap();
        space.advance(2, || {});
        assert_eq!(space.flush((0, 3)), (vec![], vec![(8192, 9216)]));
    }
}
