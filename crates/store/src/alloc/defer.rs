//! Deferred frees: what was freed and is not allocatable yet, per txg (`ms_freed`, `ms_defer`).
//!
//! A txg's frees can be very many. They are sets that do not change any more. So a caller that has
//! to look through all of them takes them along ([`DeferSets::sets`]) and leaves the metaslab's lock.
//! What has waited long enough leaves in parts, from the lowest offset on ([`DeferSets::pop`]).
//!
//! Invariants: all sets are disjoint; `bytes` is the sum of all segments that did not leave yet.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use cenote_format::less;

use crate::rangetree::RangeTree;

/// Segments of one set that did not leave yet.
#[derive(Clone)]
pub(super) struct Set {
    tree: Arc<RangeTree>,
    /// Segments that start before this have left.
    from: u64,
}

impl Set {
    /// Segments in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.tree.iter_from(self.from)
    }
}

/// Sets by txg; see the module's documentation.
#[derive(Default)]
pub(super) struct DeferSets {
    sets: BTreeMap<u64, Vec<Set>>,
    bytes: u64,
}

impl DeferSets {
    /// Keeps what was freed in `txg`, and is disjoint from all that is here.
    pub(super) fn push(&mut self, txg: u64, tree: Arc<RangeTree>) {
        self.bytes += tree.space();
        self.sets.entry(txg).or_default().push(Set { tree, from: 0 });
    }

    /// Bytes of all that is here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first segment that shares a byte with `start..end`.
    pub(super) fn overlap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let sets = self.sets.values().flatten();
        // What has left ends where its set begins now, or before.
        sets.filter_map(|set| set.tree.overlap(start.max(set.from), end)).next()
    }

    /// The sets of `txg` and before.
    pub(super) fn sets(&self, txg: u64) -> impl Iterator<Item = Set> + '_ {
        self.sets.range(..=txg).flat_map(|(_, sets)| sets).cloned()
    }

    /// The sets of groups after `txg`.
    pub(super) fn sets_after(&self, txg: u64) -> impl Iterator<Item = Set> + '_ {
        let after = (Bound::Excluded(txg), Bound::Unbounded);
        self.sets.range(after).flat_map(|(_, sets)| sets).cloned()
    }

    /// Moves the sets of `txg` to `other`.
    pub(super) fn hand_over(&mut self, txg: u64, other: &mut DeferSets) {
        if let Some(sets) = self.sets.remove(&txg) {
            // Nothing leaves before it waits here.
            let bytes: u64 = sets.iter().map(|set| set.tree.space()).sum();
            self.bytes = less!(self.bytes, bytes, "bytes freed in group {txg}");
            other.bytes += bytes;
            other.sets.entry(txg).or_default().extend(sets);
        }
    }

    /// Takes the next segments, at most `count`, of a txg up to `last`, and says of which; `None`
    /// without one.
    pub(super) fn pop(&mut self, last: u64, count: usize) -> Option<(u64, Vec<(u64, u64)>)> {
        loop {
            let mut first = self.sets.first_entry().filter(|first| *first.key() <= last)?;
            let Some(set) = first.get_mut().last_mut() else {
                first.remove();
                continue;
            };
            let segments: Vec<(u64, u64)> = set.iter().take(count).collect();
            match segments.last() {
                Some((_, end)) => {
                    set.from = *end;
                    let txg = *first.key();
                    let bytes: u64 = segments.iter().map(|(start, end)| end - start).sum();
                    self.bytes = less!(self.bytes, bytes, "deferred bytes of group {txg}");
                    return Some((txg, segments));
                }
                None => drop(first.get_mut().pop()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_left_is_not_there(
            cuts in prop::collection::vec(1..9u64, 2..60),
            steps in prop::collection::vec(1..5usize, 0..20),
            (start, len) in (0..300u64, 1..40u64),
        ) {
            // Segments of txgs 1 and 2, in two sets each, by turns.
            let mut trees: [RangeTree; 4] = Default::default();
            let (mut at, mut model) = (0, Vec::new());
            for (i, pair) in cuts.chunks_exact(2).enumerate() {
                let segment = (at + pair[0], at + pair[0] + pair[1]);
                trees[i % 4].add(segment.0, segment.1).unwrap();
                model.push((1 + (i % 4 / 2) as u64, segment));
                at = segment.1;
            }
            let mut before = DeferSets::default();
            let mut kept = DeferSets::default();
            for (i, tree) in trees.into_iter().enumerate() {
                before.push(1 + (i / 2) as u64, Arc::new(tree));
            }
            [1, 2, 3].iter().for_each(|txg| before.hand_over(*txg, &mut kept));
            prop_assert_eq!(before.sets(9).count(), 0);
            for count in steps {
                let popped = kept.pop(1, count);
                prop_assert_eq!(popped.is_some(), model.iter().any(|(txg, _)| *txg == 1));
                for segment in popped.iter().flat_map(|(_, segments)| segments) {
                    let i = model.iter().position(|known| *known == (1, *segment)).unwrap();
                    model.swap_remove(i);
                }
                let found = kept.overlap(start, start + len);
                let hits = |(s, e): &(u64, u64)| *s < start + len && start < *e;
                prop_assert_eq!(found.is_some(), model.iter().any(|(_, segment)| hits(segment)));
                prop_assert!(found.is_none_or(|f| hits(&f) && model.iter().any(|(_, m)| *m == f)));
                for txg in 0..3 {
                    let sets: Vec<Set> = kept.sets(txg).collect();
                    let mut all: Vec<_> = sets.iter().flat_map(Set::iter).collect();
                    all.sort_unstable();
                    let mut expected: Vec<_> =
                        model.iter().filter(|(t, _)| *t <= txg).map(|(_, s)| *s).collect();
                    expected.sort_unstable();
                    prop_assert_eq!(all, expected);
                }
            }
        }
    }
}
