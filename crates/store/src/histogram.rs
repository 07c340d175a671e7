//! Histograms of sizes by power of two.
//!
//! Bucket `i` counts sizes of `1 << i` bytes up to twice that (`ZFS_RANGE_TREE_HISTOGRAM_SIZE`
//! buckets, one per bit of a size). A space map header holds the same kind of histogram with its
//! buckets shifted down by the unit's size; see [`Histogram::from_shifted`].

use cenote_format::less;

/// Counts of sizes by power of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; 64],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; 64] }
    }
}

impl Histogram {
    /// A histogram whose bucket `i + shift` is `counts[i]`; buckets above 63 are dropped (no size
    /// of 64 bits falls into them).
    pub fn from_shifted(counts: &[u64], shift: u32) -> Histogram {
        let mut h = Histogram::default();
        for (i, count) in counts.iter().enumerate() {
            if let Some(slot) = h.counts.get_mut(i + shift as usize) {
                *slot = *count;
            }
        }
        h
    }

    /// Counts one size in bytes; 0 is not counted.
    pub fn add(&mut self, size: u64) {
        if let Some(bit) = size.checked_ilog2() {
            let slot = &mut self.counts[bit as usize];
            *slot = slot.saturating_add(1);
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Histogram) {
        for (a, b) in self.counts.iter_mut().zip(other.counts) {
            *a = a.saturating_add(b);
        }
    }

    /// Whether free segments that are counted here hold all that `promised` counts: whatever power
    /// of two they are cut into, there are at least as many pieces.
    pub fn holds(&self, promised: &Histogram) -> bool {
        let (mut there, mut asked) = (0u128, 0u128);
        let mut buckets = self.counts.iter().zip(&promised.counts).rev();
        // A segment of a bucket gives two pieces of the one below. 64 doublings of 64 bits fit.
        buckets.all(|(count, wanted)| {
            there = there * 2 + u128::from(*count);
            asked = asked * 2 + u128::from(*wanted);
            asked <= there
        })
    }

    /// Takes one size out that was [added](Histogram::add).
    pub fn remove(&mut self, size: u64) {
        if let Some(bit) = size.checked_ilog2() {
            let slot = &mut self.counts[bit as usize];
            *slot = less!(*slot, 1, "segments of 2^{bit} bytes");
        }
    }

    /// Count per power of two, from 1 byte.
    pub fn counts(&self) -> &[u64; 64] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_their_power_of_two() {
        let mut h = Histogram::default();
        for size in [0, 1, 512, 1023, 1024, u64::MAX] {
            h.add(size);
        }
        assert_eq!((h.counts()[0], h.counts()[9], h.counts()[10], h.counts()[63]), (1, 2, 1, 1));
        let shifted = Histogram::from_shifted(&[1, 0, 3], 62);
        assert_eq!((shifted.counts()[62], shifted.counts().iter().sum::<u64>()), (1, 1));
        h.merge(&shifted);
        assert_eq!(h.counts()[62], 1);
        h.remove(1 << 62);
        assert_eq!(h.counts()[62], 0);
    }

    #[test]
    fn what_is_there_holds_what_can_be_cut_out_of_it() {
        let of = |sizes: &[u64]| {
            let mut h = Histogram::default();
            sizes.iter().for_each(|size| h.add(*size));
            h
        };
        let there = of(&[16 << 10, 4096, 4096]);
        for held in [&[][..], &[16 << 10], &[8 << 10, 8 << 10, 4096], &[4096; 6]] {
            assert!(there.holds(&of(held)), "{held:?}");
        }
        // Two small ones need not be neighbours.
        for more in [&[32 << 10][..], &[16 << 10, 8 << 10], &[16 << 10, 4096, 4096, 512]] {
            assert!(!there.holds(&of(more)), "{more:?}");
        }
        assert!(of(&[u64::MAX]).holds(&of(&[1 << 63])) && !of(&[1 << 62]).holds(&of(&[1 << 63])));
    }
}
