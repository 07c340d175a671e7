//! Sizes of the requests that leaves do, by class (`vsx_ind_histo`, `vsx_agg_histo`).
//!
//! A request is *individual*, or *aggregated* of several neighbours. Only those that succeeded count, so that the
//! sum of all is the number of operations of the leaf.

use crate::queue::{CLASSES, Priority};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of buckets of a histogram (`VDEV_RQ_HISTO_BUCKETS`).
pub const SIZE_BUCKETS: usize = 25;

/// Requests by power of two: bucket `i` counts requests of `2^i` to `2^(i+1) - 1` bytes; the last one, of 16 MiB, also
/// those that are larger.
pub type SizeHistogram = [u64; SIZE_BUCKETS];

/// What was counted, by class in the order of [`Priority::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeFigures {
    /// Requests of one.
    pub individual: [SizeHistogram; CLASSES],
    /// Requests that several were joined to.
    pub aggregated: [SizeHistogram; CLASSES],
}

impl Default for SizeFigures {
    fn default() -> SizeFigures {
        let none = [[0; SIZE_BUCKETS]; CLASSES];
        SizeFigures { individual: none, aggregated: none }
    }
}

/// Counts sizes, without locks.
#[derive(Default)]
pub(crate) struct RequestSizes {
    individual: [Counts; CLASSES],
    aggregated: [Counts; CLASSES],
}

#[derive(Default)]
struct Counts([AtomicU64; SIZE_BUCKETS]);

impl RequestSizes {
    /// Counts a request.
    pub(crate) fn count(&self, class: Priority, aggregated: bool, bytes: usize) {
        let kind = if aggregated { &self.aggregated } else { &self.individual };
        let bucket = (bytes.max(1).ilog2() as usize).min(SIZE_BUCKETS - 1);
        if let Some(counts) = kind.get(class as usize) {
            counts.0[bucket].fetch_add(1, Relaxed);
        }
    }

    /// Adds what was counted.
    pub(crate) fn add_to(&self, sum: &mut SizeFigures) {
        let kinds =
            [(&self.individual, &mut sum.individual), (&self.aggregated, &mut sum.aggregated)];
        for (counts, sums) in kinds {
            for (counts, sums) in counts.iter().zip(sums) {
                sums.iter_mut().zip(&counts.0).for_each(|(sum, n)| *sum += n.load(Relaxed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_powers_of_two() {
        let sizes = RequestSizes::default();
        for bytes in [0, 512, 1023, 1024, 16 << 20, 64 << 20] {
            sizes.count(Priority::AsyncWrite, false, bytes);
        }
        sizes.count(Priority::Trim, true, 4096);
        let mut sum = SizeFigures::default();
        sizes.add_to(&mut sum);
        let writes = sum.individual[Priority::AsyncWrite as usize];
        assert_eq!((writes[0], writes[9], writes[10], writes[24]), (1, 2, 1, 2));
        assert_eq!(sum.aggregated[Priority::Trim as usize][12], 1);
        assert_eq!(sum.individual[Priority::SyncRead as usize], [0; SIZE_BUCKETS]);
    }
}
