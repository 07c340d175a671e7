//! The figures of a pool's space: its vdevs and classes, bytes, latencies
//! (`metaslab_class_get_alloc`, `metaslab_class_get_space`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_vdev::stats::LatencyFigures;

use super::Allocator;
use crate::alloc::class::Class;
use crate::alloc::group::Group;
use crate::alloc::layout::Vdev;
use crate::alloc::metaslab::Metaslab;
use crate::alloc::watched::LockWaits;

/// Bytes of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceFigures {
    /// In all its metaslabs.
    pub space: u64,
    /// Not allocatable: allocated, or freed and deferred.
    pub allocated: u64,
    /// Of these, freed by txgs that are on disk, and deferred.
    pub deferred: u64,
}

impl Allocator {
    /// Whether space is allocated from the vdev.
    pub fn has_vdev(&self, vdev: u64) -> bool {
        self.layout().vdevs.contains_key(&vdev)
    }

    /// Bytes of the smallest sector of all vdevs.
    pub fn smallest(&self) -> u64 {
        let shifts = self.groups().map(|group| group.ashift());
        1 << shifts.min().unwrap_or(cenote_format::SECTOR_SHIFT)
    }

    /// The vdevs that are allocated from.
    pub fn groups(&self) -> impl Iterator<Item = Arc<Group>> + use<> {
        let layout = self.layout();
        let groups: Vec<Arc<Group>> = layout.vdevs.values().map(|v| v.group.clone()).collect();
        groups.into_iter()
    }

    /// The groups of a class.
    pub fn groups_of(&self, class: Class) -> Vec<Arc<Group>> {
        self.layout().classes.get(&class).map_or_else(Vec::new, |class| class.groups.clone())
    }

    /// For each vdev the metaslab that is kept for intent logs.
    pub fn embedded_logs(&self) -> BTreeMap<u64, Option<u64>> {
        let kept = |group: &Arc<Group>| group.members().next().map(Metaslab::id);
        let of = |(id, v): (&u64, &Vdev)| (*id, v.embedded.as_ref().and_then(kept));
        self.layout().vdevs.iter().map(of).collect()
    }

    /// The vdev `vdev`; `None` if it is not allocated from.
    pub fn group(&self, vdev: u64) -> Option<Arc<Group>> {
        self.layout().group(vdev).cloned()
    }

    /// What a vdev is for; `None` if it is not allocated from.
    pub fn class_of(&self, vdev: u64) -> Option<Class> {
        self.layout().vdevs.get(&vdev).map(|v| v.class)
    }

    /// Whether a reader is active that began while group `txg`, or an earlier one, was the last on disk.
    pub fn is_held_since(&self, txg: u64) -> bool {
        let held = self.holds.oldest().into_iter().chain(self.readers.oldest()).min();
        held.is_some_and(|held| held <= txg)
    }

    /// Bytes that were freed by txgs that are on disk, and are deferred (`metaslab_class_get_deferred`).
    pub fn deferred(&self) -> u64 {
        self.layout().all_groups().map(|group| group.deferred.load(Ordering::Relaxed)).sum()
    }

    /// What allocations took that made sense, waiting for metaslabs to be loaded included.
    pub fn allocation_latency(&self) -> LatencyFigures {
        self.allocations.now()
    }

    /// What loads of metaslabs took that succeeded.
    pub fn load_latency(&self) -> LatencyFigures {
        self.loads.now()
    }

    /// How often an allocation waited for a load, and how often it had done so in vain: nothing
    /// could serve it even then.
    pub fn waits(&self) -> (u64, u64) {
        (self.waits.load(Ordering::Relaxed), self.in_vain.load(Ordering::Relaxed))
    }

    /// Waits for the locks that allocations need, since the last call.
    pub fn take_lock_waits(&self) -> LockWaits {
        self.layout()
            .all_groups()
            .map(|group| group.take_lock_waits())
            .fold(LockWaits::default(), LockWaits::and)
    }

    /// Metaslabs that are loaded now.
    pub fn loaded(&self) -> u64 {
        self.layout().all_groups().map(|group| group.loaded()).sum()
    }

    /// Bytes of a class.
    pub fn figures(&self, class: Class) -> SpaceFigures {
        let mut sum = SpaceFigures::default();
        for group in self.groups_of(class) {
            sum.space += group.space();
            sum.allocated += group.allocated();
            sum.deferred += group.deferred.load(Ordering::Relaxed);
        }
        sum
    }
}
