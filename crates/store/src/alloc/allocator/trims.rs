//! Free space of which devices are told, and those that want to allocate meanwhile.
//!
//! One metaslab after the other is out of use for the time in which devices are told of some of its free ranges
//! ([`Trimming`]). An allocation goes elsewhere. If there is nothing elsewhere it waits until nothing is told, keeps out
//! those that tell, and tries once more. So telling never makes a pool look full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_format::less;
use cenote_vdev::waiting;
use parking_lot::{Condvar, Mutex};

use super::Allocator;
use crate::alloc::group::Group;
use crate::alloc::metaslab::{Metaslab, TrimRoom};

#[derive(Default)]
struct Turns {
    telling: u64,
    waiting: u64,
}

/// Keeps those that tell devices and those that need all free space apart.
#[derive(Default)]
pub(super) struct TrimGate {
    turns: Mutex<Turns>,
    changed: Condvar,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl TrimGate {
    /// Waits while somebody needs all free space.
    fn enter(&self) {
        let mut turns = self.turns.lock();
        while turns.waiting > 0 {
            self.changed.wait(&mut turns);
        }
        turns.telling += 1;
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        let mut turns = self.turns.lock();
        turns.telling = less!(turns.telling, 1, "threads that tell devices what is free");
        self.ended.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// So often devices were told.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Whether devices were being told at any time since [`TrimGate::ended`] was `ended`.
    pub(super) fn ran_since(&self, ended: u64) -> bool {
        self.begun.load(Ordering::SeqCst) > ended
    }

    /// Waits until no device is told of anything; none is while what is returned lives.
    pub(super) fn keep_out(&self) -> KeptOut<'_> {
        waiting::begins();
        let mut turns = self.turns.lock();
        turns.waiting += 1;
        while turns.telling > 0 {
            self.changed.wait(&mut turns);
        }
        KeptOut(self)
    }
}

/// See [`TrimGate::keep_out`].
pub(super) struct KeptOut<'a>(&'a TrimGate);

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.turns.lock();
        turns.waiting = less!(turns.waiting, 1, "threads that keep others from telling devices");
        self.0.changed.notify_all();
    }
}

/// Free ranges of a metaslab in which nothing is allocated while this lives.
pub struct Trimming {
    allocator: Arc<Allocator>,
    group: Arc<Group>,
    metaslab: usize,
    /// The ranges `(start, end)`, bytes of the top-level vdev, in order.
    pub ranges: Vec<(u64, u64)>,
}

impl Drop for Trimming {
    fn drop(&mut self) {
        if let Some(metaslab) = self.group.metaslabs().get(self.metaslab) {
            metaslab.end_trim();
        }
        self.allocator.trims.leave();
    }
}

impl Allocator {
    /// Free ranges of a metaslab from byte `from` of its vdev on, for which there is `room`; empty ones at its end.
    /// The metaslab is loaded for that. `None`: it does not exist, or cannot be loaded.
    pub fn trim_free(
        self: &Arc<Self>,
        vdev: u64,
        metaslab: u64,
        from: u64,
        room: TrimRoom,
    ) -> Option<Trimming> {
        // It may be unloaded again before it is looked at.
        const TRIES: usize = 4;
        (0..TRIES).find_map(|_| {
            let loaded = self.load(vdev, metaslab);
            loaded.then(|| self.trim(vdev, metaslab, |found| found.begin_trim(from, room)))?
        })
    }

    /// Ranges of a metaslab that were freed since devices were last told. They are not told a second time.
    pub fn trim_freed(
        self: &Arc<Self>,
        vdev: u64,
        metaslab: u64,
        room: TrimRoom,
    ) -> Option<Trimming> {
        self.trim(vdev, metaslab, |found| Some(found.begin_trim_freed(room)))
    }

    fn trim(
        self: &Arc<Self>,
        vdev: u64,
        metaslab: u64,
        begin: impl FnOnce(&Metaslab) -> Option<Vec<(u64, u64)>>,
    ) -> Option<Trimming> {
        let metaslab = usize::try_from(metaslab).ok()?;
        let group = self.layout().group_with(vdev, metaslab)?.clone();
        let found = group.metaslabs().get(metaslab)?;
        self.trims.enter();
        let Some(ranges) = begin(found) else {
            self.trims.leave();
            return None;
        };
        Some(Trimming { allocator: self.clone(), group, metaslab, ranges })
    }

    /// Whether what is freed is noted from now on, to tell devices of it. Returns (vdev, metaslab, bytes of which they
    /// were not told yet, bytes of the metaslab) where there are any.
    pub fn note_freed(&self, note: bool) -> Vec<(u64, u64, u64, u64)> {
        let layout = self.layout();
        let all = layout.all_groups().flat_map(|group| {
            let of = |metaslab: &Metaslab| {
                let bytes = metaslab.note_freed(note);
                (group.vdev(), metaslab.id(), bytes, metaslab.extent().size)
            };
            group.members().map(of).collect::<Vec<_>>()
        });
        all.filter(|(_, _, bytes, _)| *bytes > 0).collect()
    }
}
