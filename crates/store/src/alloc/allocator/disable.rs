//! Disabled metaslabs, and those that want to allocate meanwhile (`metaslab_disable`, `metaslab_enable`).
//!
//! One metaslab after the other is out of use for the time in which something is done to some of its free ranges on
//! devices: they are told of them, or a pattern is written there ([`Disabled`]). An allocation goes elsewhere, also to
//! the classes that its own falls back to. If these have nothing either, it goes through all of them once more: it waits
//! until no metaslab of the class is disabled, and keeps out those that disable them. Those that work in a disabled
//! metaslab end after the request that is under way then ([`Disabled::is_in_the_way`]). So their work never makes a
//! pool look full, and an allocation waits for one request at most for each metaslab that is disabled. The writer of an
//! intent log does not wait at all: what it cannot write is waited for with the transaction group.

use std::sync::Arc;

use cenote_vdev::Alarm;

use super::Allocator;
use crate::alloc::class::Class;
use crate::alloc::group::Group;
use crate::alloc::metaslab::{Metaslab, Room};

/// What an allocation does about disabled metaslabs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// It leaves them out.
    No,
    /// It waits until none is disabled.
    UntilEnabled,
}

/// How often metaslabs of some classes were disabled.
pub(super) struct Disables {
    pub begun: u64,
    /// Those that are enabled again.
    pub ended: u64,
}

/// Free ranges of a metaslab in which nothing is allocated while this lives.
pub struct Disabled {
    alarm: Arc<Alarm>,
    group: Arc<Group>,
    metaslab: usize,
    /// The ranges `(start, end)`, bytes of the top-level vdev, in order.
    pub ranges: Vec<(u64, u64)>,
}

impl Disabled {
    fn metaslab(&self) -> Option<&Metaslab> {
        self.group.metaslabs().get(self.metaslab)
    }

    /// Whether an allocation waits for this.
    pub fn is_in_the_way(&self) -> bool {
        self.group.disable_gate.is_wanted()
    }

    /// Ranges that were freed, and of which devices were not told after all, count as freed once more.
    pub fn remember(&self, ranges: &[(u64, u64)]) {
        if let Some(metaslab) = self.metaslab() {
            metaslab.remember_freed(ranges);
        }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        // This may be the end of a panic.
        self.alarm.guard("trim", || self.metaslab().inspect(|metaslab| metaslab.enable()));
        self.alarm.guard("trim", || self.group.disable_gate.leave());
    }
}

impl Allocator {
    /// So often metaslabs of these classes were disabled so far. Counted in this order: one that is disabled
    /// meanwhile is not among those that ended.
    pub(super) fn disables(&self, classes: &[Class]) -> Disables {
        let layout = self.layout();
        let found = || classes.iter().filter_map(|class| layout.classes.get(class));
        let ended = found().map(|class| class.disables_ended()).sum();
        Disables { ended, begun: found().map(|class| class.disables_begun()).sum() }
    }

    /// Disables a metaslab, which is loaded for that; with its free ranges from byte `from` of its vdev on, for which
    /// there is `room`: none at its end. `None`: it does not exist, or cannot be loaded.
    pub fn disable_free(
        self: &Arc<Self>,
        vdev: u64,
        metaslab: u64,
        from: u64,
        room: Room,
    ) -> Option<Disabled> {
        // It may be unloaded again before it is looked at.
        const TRIES: usize = 4;
        (0..TRIES).find_map(|_| {
            let loaded = self.load(vdev, metaslab);
            loaded.then(|| self.disable(vdev, metaslab, |found| found.free_from(from, room)))?
        })
    }

    /// Disables a metaslab; with ranges that were freed since devices were last told, which are forgotten.
    pub fn disable_freed(
        self: &Arc<Self>,
        vdev: u64,
        metaslab: u64,
        room: Room,
    ) -> Option<Disabled> {
        self.disable(vdev, metaslab, |found| Some(found.take_freed(room)))
    }

    fn disable(
        self: &Arc<Self>,
        vdev: u64,
        metaslab: u64,
        ranges: impl FnOnce(&Metaslab) -> Option<Vec<(u64, u64)>>,
    ) -> Option<Disabled> {
        let metaslab = usize::try_from(metaslab).ok()?;
        let group = self.layout().group_with(vdev, metaslab)?.clone();
        let found = group.metaslabs().get(metaslab)?;
        group.disable_gate.enter();
        found.disable();
        let (alarm, group) = (self.alarm().clone(), group.clone());
        let mut disabled = Disabled { alarm, group, metaslab, ranges: Vec::new() };
        disabled.ranges = ranges(found)?;
        Some(disabled)
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
