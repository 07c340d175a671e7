//! Metaslabs that are disabled for a while (`ms_disabled`), and what was freed in them since devices were last told
//! (`ms_trim`).
//!
//! What is free in memory is allocatable: no block that any group on disk needs is there, nor one that somebody may
//! still read. As long as a metaslab is disabled nothing is allocated in it. Its free space stays where it is, so that
//! nothing else takes notice.

use super::{Attempt, Metaslab};
use crate::rangetree::RangeTree;
use cenote_format::less;

/// Most ranges that a metaslab remembers to tell devices of; what is freed beyond is not told.
const MOST_FREED: usize = 8192;

/// How much is worked on in one go.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Most ranges.
    pub ranges: usize,
    /// Most bytes, but a sector at least.
    pub bytes: u64,
}

impl Room {
    /// The first of `ranges` for which there is room, the last of them cut off at a sector of `1 << shift` bytes.
    fn fill(self, shift: u32, ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
        let (mut left, mut taken) = ((self.bytes >> shift).max(1) << shift, Vec::new());
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

/// What a metaslab knows of work in its free space.
#[derive(Default)]
pub(super) struct Disable {
    /// So many threads have it disabled.
    count: u32,
    /// What became allocatable since devices were last told; `None`: that is not noted.
    freed: Option<RangeTree>,
}

impl Disable {
    /// Whether nothing may be allocated.
    pub(super) fn is_disabled(&self) -> bool {
        self.count > 0
    }

    /// Why an attempt to allocate fails now, if it does.
    pub(super) fn refuses(&self) -> Option<Attempt> {
        self.is_disabled().then_some(Attempt::TooSmall)
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
    /// Nothing is allocated here until [`Metaslab::enable`].
    pub(in crate::alloc) fn disable(&self) {
        self.state.lock().disable.count += 1;
    }

    /// One of those that disabled it is done.
    pub(in crate::alloc) fn enable(&self) {
        let mut state = self.state.lock();
        let count = &mut state.disable.count;
        *count = less!(*count, 1, "threads that have a metaslab disabled");
    }

    /// Free ranges from byte `from` of the vdev on, for which there is room; `None`: it is not loaded.
    pub(in crate::alloc) fn free_from(&self, from: u64, room: Room) -> Option<Vec<(u64, u64)>> {
        let state = self.state.lock();
        let free = state.free.as_ref()?;
        Some(room.fill(self.extent.shift, free.iter_from(from)))
    }

    /// Ranges that were freed since devices were last told, which are forgotten.
    pub(in crate::alloc) fn take_freed(&self, room: Room) -> Vec<(u64, u64)> {
        let mut state = self.state.lock();
        let Some(freed) = &mut state.disable.freed else { return Vec::new() };
        let taken = room.fill(self.extent.shift, freed.iter());
        for (start, end) in &taken {
            freed.clear(*start, *end);
        }
        taken
    }

    /// Free ranges of a metaslab that is disabled count as freed since devices were last told.
    pub(in crate::alloc) fn remember_freed(&self, ranges: &[(u64, u64)]) {
        let mut state = self.state.lock();
        ranges.iter().for_each(|(start, end)| state.disable.came_back(*start, *end));
    }

    /// Whether what is freed is noted from now on, to tell devices of it; the bytes of which they were not told yet.
    pub(in crate::alloc) fn note_freed(&self, note: bool) -> u64 {
        let mut state = self.state.lock();
        match (note, &state.disable.freed) {
            (true, Some(freed)) => return freed.space(),
            (true, None) => state.disable.freed = Some(RangeTree::new()),
            (false, _) => state.disable.freed = None,
        }
        0
    }
}
