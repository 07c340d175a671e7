//! Metaslabs of whose free space devices are told (`metaslab_disable`, `ms_trim`).
//!
//! What is told is allocatable: no block that any group on disk needs is there, nor one that somebody may still read. As
//! long as devices are told, nothing is allocated in the metaslab. Its free space stays where it is, so that nothing
//! else takes notice.

use super::{Attempt, Metaslab};
use crate::alloc::space::Loading;
use crate::rangetree::RangeTree;

/// Most ranges that a metaslab remembers to tell devices of; what is freed beyond is not told.
const MOST_FREED: usize = 8192;

/// How much is told in one go.
#[derive(Clone, Copy, Debug)]
pub struct TrimRoom {
    /// Most ranges.
    pub ranges: usize,
    /// Most bytes.
    pub bytes: u64,
}

impl TrimRoom {
    /// The first of `ranges` for which there is room, the last of them cut off.
    fn fill(self, ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let (mut left, mut taken) = (self.bytes.max(1), Vec::new());
        for (start, end) in ranges.take(self.ranges.max(1)) {
            if left == 0 {
                break;
            }
            let end = end.min(start.saturating_add(left));
            left -= end - start;
            taken.push((start, end));
        }
        taken
    }
}

/// What a metaslab knows of telling devices what is free.
#[derive(Default)]
pub(super) struct Told {
    /// So many threads are telling devices of what is free here.
    disabled: u32,
    /// What became allocatable since devices were last told (`ms_trim`); `None`: that is not noted.
    freed: Option<RangeTree>,
}

impl Told {
    /// Whether an attempt to allocate fails since devices are told now.
    pub(super) fn refuses(&self) -> Option<Attempt> {
        (self.disabled > 0).then_some(Attempt::TooSmall)
    }

    /// A range is allocatable from now on.
    pub(super) fn came_back(&mut self, start: u64, end: u64) {
        if let Some(freed) = self.freed.as_mut().filter(|freed| freed.len() < MOST_FREED) {
            freed.clear(start, end);
            // It was just cleared.
            let _ = freed.add(start, end);
        }
    }

    /// A range is allocated.
    pub(super) fn taken(&mut self, start: u64, end: u64) {
        if let Some(freed) = self.freed.as_mut().filter(|freed| !freed.is_empty()) {
            freed.clear(start, end);
        }
    }
}

impl Metaslab {
    /// Nothing is allocated here until [`Metaslab::end_trim`], while devices are told of the free ranges from byte `from`
    /// of the vdev on that are returned. `None`: it is not loaded, and goes on as before.
    pub(in crate::alloc) fn begin_trim(
        &self,
        from: u64,
        room: TrimRoom,
    ) -> Option<Vec<(u64, u64)>> {
        // The copy's memory is touched here rather than with the lock held.
        let mut copy = Loading::new(self.extent, true).ok()?;
        {
            let mut state = self.state.lock();
            state.free.as_ref()?.copy_to(&mut copy);
            state.told.disabled += 1;
        }
        let free = copy.segments();
        let later = free.iter().filter(|(_, end)| *end > from);
        Some(room.fill(later.map(|(start, end)| (start.max(from), end))))
    }

    /// As [`Metaslab::begin_trim`], of what was freed since devices were last told, which is forgotten.
    pub(in crate::alloc) fn begin_trim_freed(&self, room: TrimRoom) -> Vec<(u64, u64)> {
        let mut state = self.state.lock();
        state.told.disabled += 1;
        let Some(freed) = &mut state.told.freed else { return Vec::new() };
        let taken = room.fill(freed.iter());
        for (start, end) in &taken {
            freed.clear(*start, *end);
        }
        taken
    }

    /// Devices were told.
    pub(in crate::alloc) fn end_trim(&self) {
        let mut state = self.state.lock();
        state.told.disabled = state.told.disabled.saturating_sub(1);
    }

    /// Whether what is freed is noted from now on, to tell devices of it; the bytes of which they were not told yet.
    pub(in crate::alloc) fn note_freed(&self, note: bool) -> u64 {
        let mut state = self.state.lock();
        match (note, &state.told.freed) {
            (true, Some(freed)) => return freed.space(),
            (true, None) => state.told.freed = Some(RangeTree::new()),
            (false, _) => state.told.freed = None,
        }
        0
    }
}
