//! The weight of a metaslab: how good a place it is for the next allocation
//! (`metaslab_segment_weight`).
//!
//! The segment-based weight of OpenZFS: the largest power of two of which the metaslab has free
//! segments, and how many of them (there are no larger ones). It can be computed
//! from the histogram in a space map's header, so metaslabs are chosen, and found to be of no use,
//! without being loaded.

use crate::histogram::Histogram;

/// A metaslab's weight; the greater, the better (`metaslab_weight`, `metaslab_segment_weight`). The default is that of
/// a full metaslab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight {
    /// One more than log2 of the largest segments' bytes; 0 without free segments.
    bucket: u32,
    /// How many segments are in that bucket.
    count: u64,
}

impl Weight {
    /// The weight of `count` segments of `1 << log` bytes up to twice that, without larger ones.
    pub(super) fn new(log: u32, count: u64) -> Weight {
        Weight { bucket: log + 1, count }
    }

    /// The weight of free segments that are counted so.
    pub fn of(histogram: &Histogram) -> Weight {
        let counts = histogram.counts();
        let used = counts.iter().rposition(|count| *count > 0);
        used.map_or_else(Weight::default, |log| Weight::new(log as u32, counts[log]))
    }

    /// Whether a segment of `size` bytes may be there.
    pub fn may_hold(&self, size: u64) -> bool {
        size.checked_ilog2().is_some_and(|log| log < self.bucket)
    }

    /// Bytes of a segment that is surely there.
    pub fn surely_holds(&self) -> u64 {
        self.bucket.checked_sub(1).map_or(0, |log| 1 << log)
    }

    /// How many powers of two the largest segments have become smaller since `before`.
    pub fn steps_below(&self, before: Weight) -> u32 {
        before.bucket.saturating_sub(self.bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_may_fit() {
        let mut h = Histogram::default();
        assert_eq!((Weight::of(&h), Weight::of(&h).surely_holds()), (Weight::default(), 0));
        assert!(!Weight::of(&h).may_hold(1));
        h.add(5000);
        h.add(4096);
        let w = Weight::of(&h);
        assert!(w.may_hold(8191) && !w.may_hold(8192));
        assert_eq!(w.surely_holds(), 4096);
        h.add(9000);
        assert!(Weight::of(&h) > w);
        assert_eq!(w.steps_below(Weight::of(&h)), 1);
    }
}
