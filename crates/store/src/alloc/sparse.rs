//! Free space as sorted segments: what a metaslab with few free segments looks like (`ms_allocatable`).
//!
//! Two maps hold the same segments: by start, and by length and start. Both are exact.

use cenote_format::invariant::broken;
use std::collections::{BTreeMap, BTreeSet};

/// A set of sectors; see the module's documentation.
#[derive(Default)]
pub(super) struct Sparse {
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
}

impl Sparse {
    pub(super) fn contains(&self, from: usize, to: usize) -> bool {
        self.at_or_before(from).is_some_and(|(_, end)| to <= end)
    }

    pub(super) fn is_absent(&self, from: usize, to: usize) -> bool {
        let before = self.at_or_before(from).is_none_or(|(_, end)| end <= from);
        before && self.by_start.range(from as u32..to as u32).next().is_none()
    }

    /// Adds a range that is absent.
    pub(super) fn insert(&mut self, from: usize, to: usize) {
        let (start, end) = (self.run_start(from), self.run_end(to));
        self.drop_segment(start);
        self.drop_segment(to);
        self.put(start, end);
    }

    /// Removes a range that is there.
    pub(super) fn remove(&mut self, from: usize, to: usize) {
        let Some((start, end)) = self.at_or_before(from).filter(|(_, end)| to <= *end) else {
            broken(format_args!("sectors {from}-{to} are taken of no free segment"));
        };
        self.drop_segment(start);
        self.put(start, from);
        self.put(to, end);
    }

    /// Length of the longest run.
    pub(super) fn longest(&self) -> usize {
        self.by_len.last().map_or(0, |(len, _)| *len as usize)
    }

    /// Runs in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.by_start.iter().map(|(s, e)| (*s as usize, *e as usize))
    }

    /// The end of the run that holds sector `at`; `at` if it is not free.
    pub(super) fn run_end(&self, at: usize) -> usize {
        self.at_or_before(at).map_or(at, |(_, end)| end.max(at))
    }

    /// The start of the run that ends at `at` or goes on there; `at` if the sector before is not
    /// free.
    pub(super) fn run_start(&self, at: usize) -> usize {
        let before = self.by_start.range(..at as u32).next_back();
        before.filter(|(_, end)| **end as usize >= at).map_or(at, |(start, _)| *start as usize)
    }

    /// The first position from `from` on, but not after `last`, where `len` sectors are free.
    pub(super) fn first_fit(&self, from: usize, len: usize, last: usize) -> Option<usize> {
        if self.longest() < len {
            return None;
        }
        let end = self.run_end(from);
        if end - from >= len {
            return Some(from);
        }
        let after = self.by_start.range(from as u32..).map(|(s, e)| (*s as usize, *e as usize));
        let mut near = after.take_while(|(start, _)| *start <= last);
        near.find(|(start, end)| end - start >= len).map(|(start, _)| start)
    }

    /// The shortest run of at least `len` sectors, the first of its length.
    pub(super) fn best_fit(&self, len: usize) -> Option<(usize, usize)> {
        let (len, start) = *self.by_len.range((len as u32, 0)..).next()?;
        Some((start as usize, start as usize + len as usize))
    }

    fn at_or_before(&self, at: usize) -> Option<(usize, usize)> {
        let found = self.by_start.range(..=at as u32).next_back();
        found.map(|(s, e)| (*s as usize, *e as usize))
    }

    fn put(&mut self, start: usize, end: usize) {
        if start < end {
            self.by_start.insert(start as u32, end as u32);
            self.by_len.insert(((end - start) as u32, start as u32));
        }
    }

    fn drop_segment(&mut self, start: usize) {
        if let Some(end) = self.by_start.remove(&(start as u32)) {
            self.by_len.remove(&(end - start as u32, start as u32));
        }
    }
}
