//! Which metaslabs are loaded, and for how long (`metaslab_preload`, `metaslab_load`, `metaslab_unload`). The head of
//! [`loader`](super::super::loader) says when an allocation waits for a load.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Allocator;
use crate::alloc::deferred::DeferThread;
use crate::alloc::loader::{Background, LoadAhead};
use crate::alloc::metaslab::NotLoaded;
use crate::memory::usable_memory;
use crate::tunables;

impl LoadAhead for Allocator {
    fn load_ahead(&self, vdev: u64, metaslab: u64) {
        // One that cannot be loaded is given up, which is logged.
        self.load(vdev, metaslab);
    }
}

impl Allocator {
    /// Loads the best metaslabs of each vdev, in the background if there is one.
    pub fn preload(self: &Arc<Self>) {
        if !tunables::PRELOAD_ENABLED.is_on() {
            return;
        }
        let layout = self.layout();
        let groups = layout.all_groups().filter(|group| !group.is_passive());
        let worth = groups.flat_map(|group| {
            let best = group.worth_loading(tunables::PRELOAD_LIMIT.count());
            best.into_iter().map(move |metaslab| (group.vdev(), metaslab))
        });
        let worth: Vec<(u64, u64)> = worth.collect();
        // What is loaded beyond the limit would only push out what is in use. All metaslabs are
        // asked for their memory only if there is something to load.
        if worth.is_empty() || self.memory() > memory_limit() {
            return;
        }
        for (vdev, metaslab) in worth {
            if self.options.background {
                self.request_load(vdev, metaslab);
            } else {
                self.load(vdev, metaslab);
            }
        }
    }

    /// Loads all metaslabs, if `metaslab_debug_load` says so.
    pub fn load_all_if_told(&self) {
        if !tunables::DEBUG_LOAD.is_on() {
            return;
        }
        for group in self.layout().all_groups() {
            for metaslab in group.members() {
                // One that cannot be loaded is given up, which is logged.
                self.load(group.vdev(), metaslab.id());
            }
        }
    }

    /// Whether other threads work for those that call ([`Options::background`](super::Options::background)).
    pub fn works_in_background(&self) -> bool {
        self.options.background
    }

    /// Whether no metaslab is being loaded, or will be soon, by the thread that loads ahead, and all
    /// space that has waited long enough is in circulation.
    pub fn is_settled(&self) -> bool {
        self.background.get().is_none_or(Background::is_idle)
            && !self.deferred.get().is_some_and(DeferThread::is_busy)
    }

    pub(super) fn request_load(self: &Arc<Self>, vdev: u64, metaslab: u64) {
        if self.options.background {
            let background = self.background.get_or_init(|| Background::start(&self.alarm));
            let this: Weak<Allocator> = Arc::downgrade(self);
            background.request(this, vdev, metaslab);
        }
    }

    /// Loads a metaslab in this thread; whether it is loaded now.
    pub fn load(&self, vdev: u64, metaslab: u64) -> bool {
        let layout = self.layout();
        let Some(group) = layout.group_with(vdev, metaslab as usize) else { return false };
        let Some(found) = group.metaslabs().get(metaslab as usize) else { return false };
        self.make_room(memory_limit());
        match found.load(self.synced.load(Ordering::Relaxed), &*self.loader, &self.loads) {
            Ok(view) => {
                // Added modulo 2^64.
                group.allocated.fetch_add(found.take_found() as u64, Ordering::Relaxed);
                group.note(metaslab as usize, view);
                true
            }
            Err(NotLoaded::Wrong(why)) => {
                group.give_up(metaslab as usize);
                self.alarm.sound(format!("vdev {vdev} metaslab {metaslab}: {why}"));
                false
            }
            Err(NotLoaded::Unreadable(why)) => {
                tracing::warn!("vdev {vdev} metaslab {metaslab} cannot be loaded: {why}");
                // Nothing can be allocated there.
                group.give_up(metaslab as usize);
                false
            }
        }
    }

    /// Bytes of memory of the metaslabs that are loaded.
    pub fn memory(&self) -> u64 {
        self.layout().loaded_metaslabs().map(|(memory, ..)| memory).sum()
    }

    /// Unloads metaslabs, those first that were not used for longest, as long as all that are
    /// loaded take more than `limit` bytes. Active ones stay, and those with allocations that are
    /// not on disk.
    pub(in crate::alloc) fn make_room(&self, limit: u64) {
        let layout = self.layout();
        let mut all: Vec<_> = layout.loaded_metaslabs().collect();
        let mut memory: u64 = all.iter().map(|(memory, ..)| memory).sum();
        if memory <= limit {
            return;
        }
        all.sort_unstable_by_key(|(_, used, ..)| *used);
        let synced = self.synced.load(Ordering::Relaxed);
        for (bytes, _, group, metaslab) in all {
            let i = metaslab.id() as usize;
            if memory <= limit || group.is_active(i) {
                continue;
            }
            if let Some(view) = metaslab.evict(synced) {
                group.note(i, view);
                memory -= bytes;
            }
        }
    }
}

/// Bytes of memory that loaded metaslabs may take.
fn memory_limit() -> u64 {
    let share = |memory: u64| (memory / 100).saturating_mul(tunables::MEM_LIMIT.get());
    usable_memory().map_or(u64::MAX, share)
}
