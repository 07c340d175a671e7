//! Loading: the free space of a metaslab comes into memory (`metaslab_load_impl`).
//!
//! One thread reads the space map, without the metaslab's lock; others wait for it. Until it is done, what comes back into circulation
//! and what is freed is noted, and put right at the end. A load that fails, or whose thread panics, leaves the metaslab as it
//! was.

use cenote_format::invariant::broken;
use std::time::Instant;

use cenote_vdev::stats::Latencies;
use cenote_vdev::waiting;

use super::super::defer::Set;
use super::super::loader::{LoadMetaslab, Loaded};
use super::super::space::{FreeSpace, Loading};
use super::{BATCH, Metaslab, NotLoaded, View};
use crate::rangetree::RangeTree;

/// What happened while a load is under way.
#[derive(Default)]
pub(super) struct Noted {
    /// Frees `(txg, start, end)` that are allocatable since.
    pub back: Vec<(u64, u64, u64)>,
    /// What was freed since.
    pub freed: Vec<(u64, u64)>,
}

impl Noted {
    fn len(&self) -> usize {
        self.back.len() + self.freed.len()
    }
}

impl Metaslab {
    /// Brings the free space into memory, or waits for a thread that does so (`metaslab_load`). A load is counted in
    /// `loads`.
    ///
    /// Errors: the loader's; the space map is not what it must be.
    pub(in super::super) fn load(
        &self,
        txg: u64,
        loader: &dyn LoadMetaslab,
        loads: &Latencies,
    ) -> Result<View, NotLoaded> {
        waiting::begins();
        let mut state = self.state.lock();
        state.used = state.used.max(txg);
        while state.loading.is_some() {
            self.loaded.wait(&mut state);
        }
        if state.free.is_some() {
            return Ok(state.view());
        }
        state.loading = Some(Noted::default());
        drop(state);
        // The loader is the pool's code: if it panics, no thread must wait for it for ever.
        let panicked = NotLoaded::Unreadable("the loader panicked".into());
        let mut guard = LoadGuard { metaslab: self, result: Err(panicked) };
        let started = Instant::now();
        let loaded = loader.load(self.vdev, self.id, self.extent);
        // Summing up takes long where there are many segments: not with the lock held.
        guard.result =
            loaded.map_err(NotLoaded::Unreadable).and_then(|Loaded { mut free, txg }| {
                self.hold_back(&mut free, txg).map_err(NotLoaded::Wrong)?;
                Ok(free.finish())
            });
        if guard.result.is_ok() {
            loads.add(started.elapsed());
        }
        guard.end()?;
        Ok(self.view())
    }

    /// What was allocated and freed while it is being loaded is noted nowhere.
    fn no_notes(&self) -> ! {
        let (vdev, start) = (self.vdev, self.extent.start);
        broken(format_args!("vdev {vdev}, metaslab at {start:#x}: it is loaded without notes"))
    }

    /// Takes deferred frees out of the free space as a map has it that was written in `txg`, and
    /// adds those that are deferred no more, but were when the map was written.
    ///
    /// Errors: what was freed up to `txg` is not free in the map, or what was freed later is.
    fn hold_back(&self, free: &mut Loading, txg: u64) -> Result<(), String> {
        let (back, earlier, later, own) = {
            let mut state = self.state.lock();
            let Some(noted) = state.loading.as_mut().map(std::mem::take) else { self.no_notes() };
            let earlier = state.freed.sets(txg).chain(state.defer.sets(txg));
            let earlier: Vec<Set> = earlier.collect();
            let later = state.freed.sets_after(txg).chain(state.defer.sets_after(txg));
            let later: Vec<Set> = later.collect();
            let own: Vec<_> = state.frees.values().flat_map(RangeTree::iter).collect();
            (noted.back, earlier, later, own)
        };
        let twice = |(start, end): (u64, u64)| {
            format!("{start:#x}-{end:#x} was freed after group {txg}, and was free already")
        };
        for (_, start, end) in back.into_iter().filter(|(freed_in, ..)| *freed_in > txg) {
            free.free(start, end).map_err(|_| twice((start, end)))?;
        }
        let mut after = later.iter().flat_map(Set::iter).chain(own);
        match after.find(|(start, end)| !free.is_allocated(*start, *end)) {
            Some(range) => return Err(twice(range)),
            None => drop(after),
        }
        for (start, end) in earlier.iter().flat_map(Set::iter) {
            let lost = |_| format!("{start:#x}-{end:#x} was freed, and is not free in group {txg}");
            free.alloc(start, end).map_err(lost)?;
        }
        Ok(())
    }

    /// All threads may use the free space now. It lacks all frees that were deferred when
    /// [`Metaslab::hold_back`] looked: those that came back since are added.
    ///
    /// Errors: the metaslab is not loaded; it is as it was.
    fn finish_load(&self, mut result: Result<FreeSpace, NotLoaded>) -> Result<(), NotLoaded> {
        // If this panics, no thread must wait for it for ever.
        let unfinished = Unfinished(self);
        let mut add = |noted: Noted| {
            let Ok(free) = &mut result else { return };
            let twice = noted.freed.into_iter().find(|(start, end)| free.overlaps(*start, *end));
            let mut back = noted.back.into_iter();
            let added = back.try_for_each(|(_, start, end)| free.add(start, end));
            match (added, twice) {
                (Err(e), _) => result = Err(NotLoaded::Wrong(format!("freed, deferred: {e}"))),
                (_, Some((start, end))) => {
                    let why = format!("{start:#x}-{end:#x} is freed, and was free already");
                    result = Err(NotLoaded::Wrong(why));
                }
                (Ok(()), None) => {}
            }
        };
        let mut state = self.state.lock();
        while let Some(noted) = state.loading.take_if(|noted| noted.len() > BATCH) {
            state.loading = Some(Noted::default());
            drop(state);
            add(noted);
            state = self.state.lock();
        }
        let Some(noted) = state.loading.take() else { self.no_notes() };
        add(noted);
        let loaded = result.map(|free| {
            let allocated = self.extent.size - free.space();
            let found = allocated.wrapping_sub(state.allocated) as i64;
            (state.found, state.off) =
                (state.found.saturating_add(found), state.off.saturating_add(found));
            state.allocated = allocated;
            state.free = Some(free);
            (state.came_back, state.others) = ((0, 0), 0);
        });
        drop(state);
        // Another load may have begun.
        std::mem::forget(unfinished);
        self.loaded.notify_all();
        loaded
    }
}

/// The end of a load. If it is dropped, the metaslab is not loaded.
struct Unfinished<'a>(&'a Metaslab);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.state.lock().loading = None;
        self.0.loaded.notify_all();
    }
}

/// Ends a load whatever happens.
struct LoadGuard<'a> {
    metaslab: &'a Metaslab,
    /// Free space less deferred frees.
    result: Result<FreeSpace, NotLoaded>,
}

impl LoadGuard<'_> {
    /// Ends it.
    fn end(mut self) -> Result<(), NotLoaded> {
        let result = self.take();
        let metaslab = self.metaslab;
        std::mem::forget(self);
        metaslab.finish_load(result)
    }

    fn take(&mut self) -> Result<FreeSpace, NotLoaded> {
        std::mem::replace(&mut self.result, Err(NotLoaded::Unreadable(String::new())))
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        // What is not loaded is as it was.
        let result = self.take();
        drop(self.metaslab.finish_load(result));
    }
}
