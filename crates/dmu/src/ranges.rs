//! Sets of block numbers, as disjoint ranges (`dn_free_ranges`). Clones share their memory until one is changed, and
//! the empty set, which most are, takes no memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

static EMPTY: BTreeMap<u64, u64> = BTreeMap::new();

/// Disjoint, non-adjacent ranges: start to end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges(Option<Arc<BTreeMap<u64, u64>>>);

impl Ranges {
    fn map(&self) -> &BTreeMap<u64, u64> {
        self.0.as_deref().unwrap_or(&EMPTY)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    /// Adds a range, which joins those that it touches.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        let map = Arc::make_mut(self.0.get_or_insert_default());
        while let Some((&s, &e)) = map.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            map.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        map.insert(start, end);
    }

    /// Takes one block out.
    pub(crate) fn remove(&mut self, block: u64) {
        let Some(Range { start, end }) = self.before(block).filter(|r| r.contains(&block)) else {
            return;
        };
        let map = Arc::make_mut(self.0.get_or_insert_default());
        map.remove(&start);
        map.extend([(start, block), (block + 1, end)].into_iter().filter(|(s, e)| s < e));
    }

    /// The range that starts last at or before `block`.
    fn before(&self, block: u64) -> Option<Range<u64>> {
        self.map().range(..=block).next_back().map(|(s, e)| *s..*e)
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.before(block).is_some_and(|r| r.contains(&block))
    }

    /// The end of the range that `block` is in.
    pub(crate) fn end_of(&self, block: u64) -> Option<u64> {
        self.before(block).filter(|r| r.contains(&block)).map(|r| r.end)
    }

    /// Where the next range begins after `block`.
    pub(crate) fn next_start(&self, block: u64) -> Option<u64> {
        self.map().range(block.checked_add(1)?..).next().map(|(start, _)| *start)
    }

    /// The first and the last number of each range.
    pub(crate) fn edges(&self) -> impl Iterator<Item = u64> + '_ {
        self.map().iter().flat_map(|(start, end)| [*start, *end - 1])
    }

    /// Whether all of `range` is in the set.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        self.before(range.start).is_some_and(|r| r.end >= range.end)
    }

    /// Whether some of `range` is in the set.
    pub(crate) fn touches(&self, range: &Range<u64>) -> bool {
        let last = self.map().range(..range.end).next_back();
        last.is_some_and(|(_, end)| *end > range.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join() {
        let mut set = Ranges::default();
        for r in [10..20, 30..40, 50..60, 20..25, 5..5, 35..52] {
            set.insert(r);
        }
        assert_eq!(set.map().clone().into_iter().collect::<Vec<_>>(), [(10, 25), (30, 60)]);
    }

    #[test]
    fn single_blocks_are_taken_out() {
        let mut set = Ranges::default();
        set.insert(10..20);
        set.insert(30..31);
        let shared = set.clone();
        for block in [9, 10, 15, 19, 20, 30] {
            set.remove(block);
        }
        let left: Vec<u64> = (0..40).filter(|block| set.contains(*block)).collect();
        assert_eq!(left, [11, 12, 13, 14, 16, 17, 18]);
        assert!(shared.covers(&(10..20)) && shared.contains(30));
    }

    #[test]
    fn what_is_inside() {
        let mut set = Ranges::default();
        set.insert(10..20);
        set.insert(30..u64::MAX);
        assert!(set.contains(10) && set.contains(19) && !set.contains(20) && !set.contains(9));
        assert!(set.covers(&(12..20)) && !set.covers(&(12..21)) && set.covers(&(30..31)));
        assert!(set.touches(&(0..11)) && !set.touches(&(0..10)) && !set.touches(&(20..30)));
        assert!(set.touches(&(19..30)));
        assert_eq!((set.end_of(10), set.end_of(20), set.end_of(9)), (Some(20), None, None));
        assert_eq!(
            (set.next_start(9), set.next_start(10), set.next_start(30)),
            (Some(10), Some(30), None)
        );
    }
}
