//! Range trees: sets of bytes as sorted segments (`zfs_range_tree_t`).
//!
//! A [`RangeTree`] is what a metaslab's free (or allocated) space looks like in memory: segments
//! `start..end` that neither overlap nor touch, so that each maximal run of bytes is one segment.
//!
//! Invariants: every segment is non-empty; for neighbours `a`, `b`: `a.end < b.start`; `space` is
//! the sum of the lengths. [`RangeTree::add`] and [`RangeTree::remove`] either do exactly what was
//! asked or change nothing and say which segment stands in the way, because a range that is
//! already there (or not there) means that the space maps it came from are wrong.

use cenote_format::invariant::broken;
use cenote_format::less;

use crate::histogram::Histogram;
use crate::segments::Segments;

/// Why a range could not be added or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The range to be added overlaps this segment.
    #[error("range {start:#x}-{end:#x} overlaps segment {seg_start:#x}-{seg_end:#x}")]
    Overlap {
        /// Start of the range.
        start: u64,
        /// End of the range.
        end: u64,
        /// Start of the segment in the way.
        seg_start: u64,
        /// Its end.
        seg_end: u64,
    },
    /// The range to be removed is not (wholly) in the tree.
    #[error("range {start:#x}-{end:#x} is not in the tree")]
    Absent {
        /// Start of the range.
        start: u64,
        /// End of the range.
        end: u64,
    },
    /// The range ends before it starts.
    #[error("range {start:#x}-{end:#x} is not a range")]
    Empty {
        /// Start of the range.
        start: u64,
        /// End of the range.
        end: u64,
    },
}

/// A set of bytes; see the module's documentation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeTree {
    segments: Segments,
    space: u64,
}

impl RangeTree {
    /// An empty tree (`zfs_range_tree_create`).
    pub fn new() -> RangeTree {
        RangeTree::default()
    }

    /// Bytes in the tree (`zfs_range_tree_space`).
    pub fn space(&self) -> u64 {
        self.space
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether there are no segments.
    pub fn is_empty(&self) -> bool {
        self.segments.len() == 0
    }

    /// Segments `(start, end)` in order (`zfs_range_tree_walk`).
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.segments.iter()
    }

    /// Segments that start at `from` or later, in order.
    pub fn iter_from(&self, from: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.segments.iter_from(from)
    }

    /// The tree of segments that are in order, not empty, and neither overlap nor touch.
    pub(crate) fn of_segments(segments: impl Iterator<Item = (u64, u64)>) -> RangeTree {
        let mut space = 0;
        let segments = Segments::of(segments.inspect(|(s, e)| space += e - s));
        RangeTree { segments, space }
    }

    /// Bytes of the largest segment; 0 if the tree is empty.
    pub fn largest(&self) -> u64 {
        self.iter().map(|(s, e)| e - s).max().unwrap_or(0)
    }

    /// Segments by size.
    pub fn histogram(&self) -> Histogram {
        let mut h = Histogram::default();
        self.iter().for_each(|(s, e)| h.add(e - s));
        h
    }

    /// The first segment that shares a byte with `start..end` (`zfs_range_tree_find_in`).
    pub fn overlap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        if start >= end {
            return None;
        }
        let before = self.segments.at_or_before(start);
        let segment = |at| self.segments.get(at);
        before
            .and_then(segment)
            .filter(|(_, e)| *e > start)
            .or_else(|| self.segments.after(before).and_then(segment).filter(|(s, _)| *s < end))
    }

    /// Whether every byte of `start..end` is in the tree (`zfs_range_tree_contains`).
    pub fn contains(&self, start: u64, end: u64) -> bool {
        let before = self.segments.at_or_before(start).and_then(|at| self.segments.get(at));
        start < end && before.is_some_and(|(_, e)| e >= end)
    }

    /// Adds `start..end`, which must not overlap the tree (`zfs_range_tree_add`, `range_tree_add`). Joins neighbours.
    pub fn add(&mut self, start: u64, end: u64) -> Result<(), RangeError> {
        if start >= end {
            return Err(RangeError::Empty { start, end });
        }
        let at = self.segments.at_or_before(start);
        let next = self.segments.after(at);
        let (before, after) =
            (at.and_then(|at| self.segments.get(at)), next.and_then(|at| self.segments.get(at)));
        let clash = before.filter(|(_, e)| *e > start).or(after.filter(|(s, _)| *s < end));
        if let Some((seg_start, seg_end)) = clash {
            return Err(RangeError::Overlap { start, end, seg_start, seg_end });
        }
        let before = at.zip(before).filter(|(_, (_, e))| *e == start);
        let after = next.zip(after).filter(|(_, (s, _))| *s == end);
        match (before, after) {
            (Some((at, (from, _))), Some((next, (_, to)))) => {
                self.segments.set(at, (from, to));
                self.segments.remove(next);
            }
            (Some((at, (from, _))), None) => self.segments.set(at, (from, end)),
            (None, Some((next, (_, to)))) => self.segments.set(next, (start, to)),
            (None, None) => self.segments.insert_after(at, (start, end)),
        }
        self.space += end - start;
        Ok(())
    }

    /// Removes `start..end`, all of which must be in the tree (`zfs_range_tree_remove`). May split a segment.
    pub fn remove(&mut self, start: u64, end: u64) -> Result<(), RangeError> {
        if start >= end {
            return Err(RangeError::Empty { start, end });
        }
        if !self.contains(start, end) {
            return Err(RangeError::Absent { start, end });
        }
        self.cut(start, end);
        Ok(())
    }

    /// Removes whatever the tree has of `start..end`; the bytes removed (`zfs_range_tree_clear`).
    pub fn clear(&mut self, start: u64, end: u64) -> u64 {
        let before = self.space;
        while let Some((s, e)) = self.overlap(start, end) {
            self.cut(s.max(start), e.min(end));
        }
        before - self.space
    }

    /// Removes `start..end`, known to lie within one segment.
    fn cut(&mut self, start: u64, end: u64) {
        let found =
            self.segments.at_or_before(start).and_then(|at| Some((at, self.segments.get(at)?)));
        let Some((at, (s, e))) = found.filter(|(_, (_, e))| end <= *e) else {
            broken(format_args!("{start:#x}-{end:#x} is cut out of no segment"));
        };
        match (s < start, end < e) {
            (true, true) => {
                self.segments.set(at, (s, start));
                self.segments.insert_after(Some(at), (end, e));
            }
            (true, false) => self.segments.set(at, (s, start)),
            (false, true) => self.segments.set(at, (end, e)),
            (false, false) => self.segments.remove(at),
        }
        self.space = less!(self.space, end - start, "bytes of a range tree");
    }

    /// Takes `start..end` out of `self` where it is there, and adds the rest of it to `other`
    /// (`zfs_range_tree_remove_xor_add`): how an allocation meets a free that has not been
    /// written out yet. An error if `other` has some of that rest already.
    pub fn remove_xor_add(
        &mut self,
        other: &mut RangeTree,
        start: u64,
        end: u64,
    ) -> Result<(), RangeError> {
        if start >= end {
            return Err(RangeError::Empty { start, end });
        }
        let mut at = start;
        while at < end {
            let (s, e) = match self.overlap(at, end) {
                Some((s, e)) => (s.max(at), e.min(end)),
                None => (end, end),
            };
            if at < s {
                other.add(at, s)?;
            }
            if s < e {
                self.cut(s, e);
            }
            at = e;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BITS: u64 = 96;

    /// The model: one bool per byte.
    fn tree_of(bitmap: &[bool]) -> RangeTree {
        let mut t = RangeTree::new();
        for (i, _) in bitmap.iter().enumerate().filter(|(_, b)| **b) {
            t.add(i as u64, i as u64 + 1).unwrap();
        }
        t
    }

    fn check(t: &RangeTree, bitmap: &[bool]) {
        let mut got = vec![false; bitmap.len()];
        let mut last = None;
        for (s, e) in t.iter() {
            assert!(s < e && last.is_none_or(|l| l < s), "segments touch or are empty");
            last = Some(e);
            (s..e).for_each(|i| got[i as usize] = true);
        }
        assert_eq!(got, bitmap);
        assert_eq!(t.space(), bitmap.iter().filter(|b| **b).count() as u64);
        assert_eq!(t.histogram().counts().iter().sum::<u64>(), t.len() as u64);
        assert_eq!(t.largest(), t.iter().map(|(s, e)| e - s).max().unwrap_or(0));
        assert_eq!(&RangeTree::of_segments(t.iter()), t);
    }

    proptest! {
        #[test]
        fn behaves_like_a_bitmap(ops in prop::collection::vec((0..4u8, 0..BITS, 0..BITS), 1..80)) {
            let mut bitmap = vec![false; BITS as usize];
            let mut t = RangeTree::new();
            for (op, start, end) in ops {
                let range = start as usize..(end as usize).max(start as usize);
                let (any, all) = (
                    bitmap[range.clone()].iter().any(|b| *b),
                    start < end && bitmap[range.clone()].iter().all(|b| *b),
                );
                prop_assert_eq!(t.overlap(start, end).is_some(), any);
                prop_assert_eq!(t.contains(start, end), all);
                let later: Vec<_> = t.iter().filter(|(s, _)| *s >= start).collect();
                prop_assert_eq!(t.iter_from(start).collect::<Vec<_>>(), later);
                match op {
                    0 | 1 => {
                        let ok = t.add(start, end).is_ok();
                        prop_assert_eq!(ok, start < end && !any);
                        if ok { bitmap[range].fill(true) }
                    }
                    2 => {
                        let ok = t.remove(start, end).is_ok();
                        prop_assert_eq!(ok, all);
                        if ok { bitmap[range].fill(false) }
                    }
                    _ => {
                        let had = bitmap[range.clone()].iter().filter(|b| **b).count() as u64;
                        prop_assert_eq!(t.clear(start, end), had);
                        bitmap[range].fill(false);
                    }
                }
                check(&t, &bitmap);
            }
        }

        #[test]
        fn xor_moves_what_is_not_there(
            a in prop::collection::vec(any::<bool>(), BITS as usize),
            start in 0..BITS, len in 1..BITS,
        ) {
            let end = (start + len).min(BITS);
            prop_assume!(start < end);
            let mut from = tree_of(&a);
            let mut to = RangeTree::new();
            from.remove_xor_add(&mut to, start, end).unwrap();
            let within = |i: usize| (i as u64) >= start && (i as u64) < end;
            let left: Vec<bool> = a.iter().enumerate().map(|(i, b)| *b && !within(i)).collect();
            let added: Vec<bool> = a.iter().enumerate().map(|(i, b)| !*b && within(i)).collect();
            check(&from, &left);
            check(&to, &added);
        }
    }

    #[test]
    fn the_ends_of_the_number_line() {
        let mut t = RangeTree::new();
        t.add(0, u64::MAX).unwrap();
        assert_eq!(t.space(), u64::MAX);
        t.remove(5, u64::MAX - 5).unwrap();
        assert_eq!(t.len(), 2);
        assert_eq!(t.clear(0, u64::MAX), 10);
        assert!(t.add(7, 7).is_err() && t.remove(9, 3).is_err());
    }
}
