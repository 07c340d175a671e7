//! Which metaslabs of a vdev are for metadata, and which for data.
//!
//! # Idea
//!
//! Metadata is short-lived: random writes of data write the same few indirect blocks again and again.
//! Where metadata is by itself, what one transaction group wrote in a row is free as a whole some
//! groups later, and the next ones write in long runs, too. Where data is among it, only holes come
//! free, which then cost a write each.
//!
//! So a metaslab has an *affinity* to data or to everything else. A kind of blocks takes those that have
//! no affinity as it needs them. When they are used up, metadata could only go where data has been, and its
//! long runs would be gone for good. So after each transaction group metadata *claims* further
//! metaslabs, the emptiest, as long as it has less free space than it should have, and gives back what
//! is too much:
//!
//! ```text
//!   free space of metadata's metaslabs = SPARE times what is allocated there,
//!                                        but at most 1/SHARE of the vdev's free space
//! ```
//!
//! What it claims is spread over the vdev, since copies of a block keep a distance.
//!
//! An affinity is a preference only: any metaslab serves any block before one fails. Nothing of this is
//! on disk; in a pool that was just opened no metaslab has an affinity.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Metadata's metaslabs have so many times the free space that is allocated there.
const SPARE: u64 = 2;
/// Metadata's metaslabs have at most this fraction of the free space of the vdev.
const SHARE: u64 = 8;
/// Metaslabs that have less than this fraction of their space free are not claimed.
const CLAIM_FRACTION: u64 = 3;
/// Metaslabs that are claimed, or let go of, after one transaction group at most.
const MOVES: usize = 8;
/// Parts of the vdev that the claimed metaslabs are spread over.
const REGIONS: usize = 4;

/// What blocks, and the metaslabs that they go to, are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Affinity {
    /// Data of files and volumes.
    Data,
    /// Everything else.
    Metadata,
}

impl Affinity {
    /// That of an allocator's blocks: the first one is for data.
    pub(super) fn of(allocator: usize) -> Affinity {
        if allocator == 0 { Affinity::Data } else { Affinity::Metadata }
    }
}

/// The affinities of the metaslabs of one vdev.
#[derive(Debug, Default)]
pub(super) struct Affinities(BTreeMap<usize, Affinity>);

impl Affinities {
    /// The affinity of metaslab `i`, if it has one.
    pub(super) fn of(&self, i: usize) -> Option<Affinity> {
        self.0.get(&i).copied()
    }

    /// Metaslab `i` gets an affinity unless it has one.
    pub(super) fn settle(&mut self, i: usize, affinity: Affinity) {
        self.0.entry(i).or_insert(affinity);
    }

    /// Claims metaslabs for metadata, or lets go of some. `used` has the bytes that are not free in
    /// each metaslab, of `size` bytes; metaslabs that are `busy` stay whose they are.
    pub(super) fn balance(&mut self, used: &[u64], size: u64, busy: impl Fn(usize) -> bool) {
        let free = |i: usize| used.get(i).map_or(0, |used| size.saturating_sub(*used));
        let region = |i: usize| i * REGIONS / used.len().max(1);
        let mut of_region = [0u64; REGIONS];
        let (mut has, mut uses) = (0u64, 0u64);
        for (i, used) in used.iter().enumerate().filter(|(i, _)| self.is_metadata(*i)) {
            of_region[region(i)] += free(i);
            (has, uses) = (has + free(i), uses + used);
        }
        let all: u64 = (0..used.len()).map(free).sum();
        let wanted = (all / SHARE).min(uses.saturating_mul(SPARE));
        for _ in 0..MOVES {
            let can = |i: &usize| {
                !self.is_metadata(*i) && !busy(*i) && free(*i) >= (size / CLAIM_FRACTION).max(1)
            };
            let best = (0..used.len()).filter(can);
            let best = best.max_by_key(|i| (Reverse(of_region[region(*i)]), free(*i)));
            let Some(i) = best.filter(|i| has + free(*i) / 2 <= wanted) else { break };
            has += free(i);
            of_region[region(i)] += free(i);
            self.0.insert(i, Affinity::Metadata);
        }
        for _ in 0..MOVES {
            let can = |i: &usize| self.is_metadata(*i) && !busy(*i) && free(*i) > 0;
            let best = (0..used.len()).filter(can);
            let best = best.max_by_key(|i| (of_region[region(*i)], free(*i)));
            // Not what would be claimed again.
            let enough = wanted + wanted / 8;
            let Some(i) = best.filter(|i| has >= enough.saturating_add(free(*i))) else { break };
            has -= free(i);
            of_region[region(i)] -= free(i);
            self.0.remove(&i);
        }
    }

    fn is_metadata(&self, i: usize) -> bool {
        self.of(i) == Some(Affinity::Metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1000;

    fn of_metadata(affinities: &Affinities) -> Vec<usize> {
        affinities
            .0
            .iter()
            .filter(|(_, affinity)| **affinity == Affinity::Metadata)
            .map(|(i, _)| *i)
            .collect()
    }

    #[test]
    fn metadata_has_room_in_proportion_all_over_the_vdev() {
        let mut affinities = Affinities::default();
        (0..40).for_each(|i| {
            affinities.settle(i, if i == 5 { Affinity::Metadata } else { Affinity::Data })
        });
        affinities.settle(5, Affinity::Data);
        assert_eq!(of_metadata(&affinities), [5], "the first to settle stays");
        let mut used = vec![500; 40];
        used[7] = 900;
        (10..40).step_by(10).for_each(|i| used[i + 1] = 400);
        used[5] = 900;
        affinities.balance(&used, SIZE, |i| i == 11);
        // 1800 bytes are wanted, 100 are there.
        assert_eq!(of_metadata(&affinities).len(), 4);
        assert!(
            [21, 31].iter().all(|i| affinities.of(*i) == Some(Affinity::Metadata)),
            "the emptiest"
        );
        assert_eq!(affinities.of(11), Some(Affinity::Data), "busy");
        assert!(of_metadata(&affinities).iter().any(|i| (10..20).contains(i)), "in all regions");
        let before = of_metadata(&affinities);
        affinities.balance(&used, SIZE, |_| false);
        let after = of_metadata(&affinities);
        assert!(before.iter().all(|i| after.contains(i)), "none of them is given up");
    }

    #[test]
    fn metadata_leaves_most_free_space_to_data() {
        let mut affinities = Affinities::default();
        (0..40).for_each(|i| affinities.settle(i, Affinity::Metadata));
        let used = vec![500; 40];
        for _ in 0..10 {
            affinities.balance(&used, SIZE, |_| false);
        }
        // An eighth of 20,000 bytes, and not so much more that one could go.
        assert_eq!(of_metadata(&affinities).len(), 6);
        let full = vec![SIZE; 40];
        affinities.balance(&full, SIZE, |_| false);
        assert_eq!(of_metadata(&affinities).len(), 6, "nothing to be had");
        affinities.balance(&[], SIZE, |_| false);
    }
}
