//! Leaves that lack groups of which their dirty time logs do not know.
//!
//! What a leaf is found to lack in the commit of a group is noted by the next one, as the group itself is closed by then. If a
//! crash comes between, the labels know: such a leaf gets no uberblock of that group ([`VdevTree::sync_labels`]). So an
//! import compares the newest uberblocks of all leaves. A leaf with an older one lacks the groups between,
//! also where it went away a moment before all power did.
//!
//! The uberblock of a group is on all leaves that took writes in it. OpenZFS writes that of a group which changes no config to
//! [`UBERBLOCK_TOPS`] top-level vdevs only, and not to log vdevs (`vdev_config_sync`). So in a pool of more top-level vdevs a leaf is
//! compared with the leaves of its own top-level vdev alone.
//!
//! Heartbeats of multihost protection, and claims of an import, are uberblocks of the last group as well ([`newest_group`]). They say
//! nothing of what a leaf has: OpenZFS, and an import before its first group, write them to leaves that were not given that one.

use crate::dtl::behind;
use crate::label_sync::concrete;
use crate::vdev::Vdev;
use crate::{VdevTree, read_labels};
use cenote_format::label::Uberblock;

/// Top-level vdevs that OpenZFS writes an uberblock to, as long as the config is the same (`SPA_SYNC_MIN_VDEVS`).
const UBERBLOCK_TOPS: usize = 3;

/// The group of the newest uberblock by which a group was ended: it is on devices that have all of that group. Heartbeats and claims
/// have a sequence number, and others none, or 0 (`MMP_SEQ`).
pub fn newest_group<'a>(uberblocks: impl Iterator<Item = &'a Uberblock>) -> Option<u64> {
    let ended = uberblocks.filter(|uberblock| uberblock.mmp_sequence().is_none_or(|n| n == 0));
    ended.map(|uberblock| uberblock.txg).max()
}

impl VdevTree {
    /// Counts leaves as lacking the groups between their newest uberblock and `txg`, in which the pool is opened. `newest` knows the
    /// groups of the newest uberblocks of leaves; those of others are read.
    pub fn lag_behind(&self, txg: u64, newest: &dyn Fn(&Vdev) -> Option<u64>) {
        let of = |leaf: &Vdev| {
            let device = leaf.device().filter(|_| leaf.state().readable())?;
            let read = || {
                let labels = read_labels(&*device).ok()??;
                newest_group(labels.uberblocks.iter().map(|(.., uberblock)| uberblock))
            };
            newest(leaf).or_else(read)
        };
        let tops = self.root().children().iter().filter(|top| concrete(top));
        let found = tops.map(|top| {
            let mut leaves = Vec::new();
            top.collect_leaves(&mut leaves);
            let found = leaves.into_iter().filter_map(|leaf| Some((of(&leaf)?, leaf)));
            (top, found.collect::<Vec<_>>())
        });
        let found: Vec<_> = found.collect();
        let normal = found.iter().filter(|(top, _)| !top.is_log()).count();
        // A pool that goes back to its checkpoint is opened in a group that is on no device yet.
        let all = found.iter().flat_map(|(_, leaves)| leaves).map(|(last, _)| *last).max();
        for (top, leaves) in &found {
            let beside = leaves.iter().map(|(last, _)| *last).max();
            let is_on_all = normal <= UBERBLOCK_TOPS && !top.is_log();
            let Some(newest) = (if is_on_all { all } else { beside }) else { continue };
            let end = behind(newest.min(txg));
            for (last, leaf) in leaves.iter().filter(|(last, _)| *last < end - 1) {
                tracing::warn!(?leaf, last, txg, "the device lacks the last transaction groups");
                leaf.lags(last + 1..end);
            }
        }
    }

    /// Counts the leaves that are not in use, or lack group `last`, as lacking the groups behind it up to `newest` as well: those of
    /// intent logs that were written then.
    pub fn lag_on(&self, last: u64, newest: u64) {
        for leaf in self.leaves() {
            if !leaf.writable() || leaf.lacks(last) {
                leaf.lags(behind(last)..behind(newest));
            }
        }
    }

    /// Whether leaves lack something that no dirty time log has yet ([`VdevTree::take_missed`]).
    pub fn has_missed(&self) -> bool {
        self.leaves().iter().any(|leaf| !leaf.written().missed().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, leaves};
    use crate::vdev::Kind;
    use std::ops::Range;
    use std::sync::Arc;

    /// What the leaves of mirrors of two lack, given the groups of their newest uberblocks.
    fn lacking(newest: &[u64], txg: u64) -> Vec<Vec<Range<u64>>> {
        let all = leaves(newest.len(), 1 << 20);
        let files = testing::files(&all);
        let mirror = |(id, two): (usize, &[Arc<Vdev>])| {
            testing::mirror_like(Kind::Mirror, id as u64, two.to_vec())
        };
        let tree = testing::tree(files.chunks(2).enumerate().map(mirror).collect());
        tree.lag_behind(txg, &|leaf| newest.get(leaf.id() as usize).copied());
        let taken = tree.take_missed();
        assert!(
            taken.iter().map(|(_, missed)| missed).eq(tree
                .leaves()
                .iter()
                .map(|leaf| leaf.missing())
                .filter(|missing| !missing.is_empty())
                .collect::<Vec<_>>()
                .iter())
        );
        tree.leaves().iter().map(|leaf| leaf.missing()).collect()
    }

    #[test]
    fn heartbeats_tell_nothing() {
        let of = |txg: u64, mmp_config: u64| Uberblock {
            order: cenote_format::ByteOrder::Little,
            version: 5000,
            txg,
            guid_sum: 0,
            timestamp: 0,
            rootbp: cenote_format::blkptr::BlockPointer::HOLE,
            software_version: 5000,
            mmp_magic: cenote_format::label::MMP_MAGIC,
            mmp_delay: 0,
            mmp_config,
            checkpoint_txg: 0,
            raidz_reflow: 0,
        };
        // The second bit says that there is a sequence number.
        let (ended, beat) = (of(8, 0x02), of(9, 0x02 | 5 << 32));
        assert_eq!(newest_group([&ended, &beat].into_iter()), Some(8));
        assert_eq!(newest_group([&ended, &of(9, 0x01)].into_iter()), Some(9));
        assert_eq!(newest_group([&beat].into_iter()), None);
    }

    #[test]
    fn the_newest_uberblock_tells_what_a_leaf_lacks() {
        let lacks = |ranges: &[(u64, u64)]| -> Vec<Vec<Range<u64>>> {
            let range = |(from, to): &(u64, u64)| match from < to {
                true => std::iter::once(*from..*to).collect(),
                false => Vec::new(),
            };
            ranges.iter().map(range).collect()
        };
        assert_eq!(lacking(&[9, 9], 9), lacks(&[(0, 0), (0, 0)]));
        assert_eq!(lacking(&[9, 7], 9), lacks(&[(0, 0), (8, 10)]));
        // An older state is opened, and one that is on no device yet.
        assert_eq!(lacking(&[9, 7], 8), lacks(&[(0, 0), (8, 9)]));
        assert_eq!(lacking(&[9, 7], 6), lacks(&[(0, 0), (0, 0)]));
        assert_eq!(lacking(&[9, 7], 10), lacks(&[(0, 0), (8, 10)]));
        // A whole vdev was away; unless there are so many that some got no uberblock.
        assert_eq!(lacking(&[9, 9, 7, 7], 9), lacks(&[(0, 0), (0, 0), (8, 10), (8, 10)]));
        let many = [9, 9, 9, 9, 7, 6, 2, 2];
        let none = (0, 0);
        let wanted = [none, none, none, none, none, (7, 8), none, none];
        assert_eq!(lacking(&many, 9), lacks(&wanted));
    }
}
