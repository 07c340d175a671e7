//! The cache devices of a pool: which of those in its list are used, and what is known of them (`spa_load_l2cache`).
//!
//! A cache device is used unless it was taken out of use, or is not there. Its thread opens it, so that no import waits for
//! one; see [`cenote_store::l2arc`].

use crate::Pool;
use crate::config;
use crate::devices::DeviceSet;
use cenote_format::nvlist::NvList;
use cenote_store::l2arc::{Alone, CacheFigures, Imported, OpenCache};
use cenote_vdev::{Aux, Vdev, VdevState};
use std::sync::Arc;

fn guid_of(cache: &NvList) -> u64 {
    config::number(cache, "guid")
}

/// Opens a cache device. A thread whose device hangs, also as it is opened, holds none of the others.
fn opens(devices: &Arc<DeviceSet>, guid: u64) -> OpenCache {
    let devices = Arc::downgrade(devices);
    Box::new(move || {
        let apart = devices.upgrade()?.apart(guid)?;
        let opened = apart.open();
        devices.upgrade()?.note_opened(&apart, opened.as_ref().err().copied());
        opened.ok()
    })
}

impl Pool {
    /// Uses the cache devices that the pool has now, and none that it does not have. This is the newest view of the pool since the caller is `alone`: an older
    /// one would bring back what has left meanwhile. After an export none is used.
    pub fn use_caches(&self, alone: &Alone<'_>) {
        self.use_caches_of(alone, self.uberblock().txg);
    }

    /// The same, where `group` is the last one that may have been written to them: that in which the pool was opened. What an import writes
    /// first may be numbered as what another host wrote in a state that is lost.
    pub fn use_caches_of(&self, _alone: &Alone<'_>, group: u64) {
        let store = self.store();
        let (used, left): (Vec<_>, Vec<_>) =
            self.caches().iter().partition(|cache| self.cache_out(cache).is_none());
        let used_guids: Vec<u64> = used.iter().map(|cache| guid_of(cache)).collect();
        let left = left.into_iter().map(guid_of);
        let gone = store.l2arc().guids().into_iter().filter(|guid| !used_guids.contains(guid));
        gone.chain(left).for_each(|guid| store.detach_cache(guid));
        let how = Imported { writable: !self.readonly, group };
        for cache in used {
            store.attach_cache(cache, opens(self.devices(), guid_of(cache)), how);
        }
    }

    /// Uses a cache device anew that has failed; see [`Pool::use_caches`].
    pub fn reuse_cache(&self, alone: &Alone<'_>, guid: u64) {
        if self.has_failed(guid) {
            self.store().detach_cache(guid);
        }
        self.use_caches(alone);
    }

    fn has_failed(&self, guid: u64) -> bool {
        self.store().cache_state(guid).is_none_or(|state| !state.readable())
    }

    /// Looks for a cache device that has failed: it may be there by now. That may take long.
    pub fn look_for_cache(&self, guid: u64) {
        if self.has_failed(guid) {
            self.devices().look_for_caches(self.directory());
        }
    }

    /// The state in which a cache device was taken out of use; `None`: it was not.
    fn cache_out(&self, cache: &NvList) -> Option<VdevState> {
        let noted = |name: &str, state| config::flag(cache, name).then_some(state);
        let out = self.devices().aside(guid_of(cache));
        let out = out.or_else(|| noted("offline", VdevState::Offline));
        out.or_else(|| noted("faulted", VdevState::Faulted))
    }

    /// The state of a cache device.
    pub fn cache_state(&self, cache: &NvList) -> VdevState {
        let failed = || self.store().cache_state(guid_of(cache)).filter(|state| !state.readable());
        let there = || match self.has_device(cache) {
            true => VdevState::Healthy,
            false => VdevState::CantOpen(Aux::OpenFailed),
        };
        self.cache_out(cache).or_else(failed).unwrap_or_else(there)
    }

    /// What is known of a cache device that is used.
    pub fn cache_figures(&self, guid: u64) -> Option<CacheFigures> {
        self.store().l2arc().of(guid)
    }

    /// The leaf of a cache device that is used: its errors and operations.
    pub fn cache_leaf(&self, guid: u64) -> Option<Arc<Vdev>> {
        self.cache_figures(guid)?.leaf
    }
}
