//! Devices that join and leave a vdev while the tree is in use (`spa_vdev_attach`, `spa_vdev_detach`), and which of them
//! their vdev cannot do without (`vdev_dtl_required`).
//!
//! What a vdev lacks follows from what its leaves missed (`vdev_dtl_reassess`, `DTL_OUTAGE`): a transaction group is
//! missing from a mirror if all its children miss it, from RAID-Z or dRAID if more children miss it than there is parity. A
//! leaf that is out of use misses all.
//!
//! A tree with the changed vdev takes the place of the old one ([`VdevTree::altered`]), and both are in use for a while. A
//! leaf that left is in the old one alone: it is *retired*, takes no more writes and is not read. A leaf that joined is in
//! the new one alone, and misses what is written by way of the old one, as it misses everything that was written before.
//!
//! Invariant: what was written by way of the old tree is also on a leaf that stays. So a leaf is marked as leaving before it is
//! asked whether its vdev can do without it: writes that end later do not count it, and what those that ended before did not
//! bring to the others is in their lists of what they miss.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_format::less;
use cenote_format::nvlist::NvList;

use crate::assemble::{self, Was};
use crate::vdev::{Kind, Opened, Vdev};
use crate::{Device, FindDevice, VdevError, VdevState, VdevTree};

/// A device that can leave: its guid, and that of the vdev above it.
pub type Replaced = (u64, u64);

/// A leaf at or below `vdev` that is not needed any more (`spa_vdev_resilver_done_hunt`).
fn replaced(vdev: &Arc<Vdev>, top: &Arc<Vdev>) -> Option<Replaced> {
    if let Some(below) = vdev.children().iter().find_map(|child| replaced(child, top)) {
        return Some(below);
    }
    let (first, last) = (vdev.children().first()?, vdev.children().last()?);
    let unspared = |v: &Vdev| v.config().u64("unspare").is_some_and(|n| n != 0);
    let is_spare = |v: &Vdev| v.config().u64("is_spare").is_some_and(|n| n != 0);
    let (old, new) = match vdev.vdev_kind() {
        Kind::Replacing => (first, last),
        Kind::Spare if unspared(last) => (first, last),
        Kind::Spare if unspared(first) => (last, first),
        // Of several spares all but the last one go.
        Kind::Spare if vdev.children().len() > 2 => {
            let second =
                vdev.children().get(1).filter(|second| is_spare(second) && is_spare(last))?;
            (second, last)
        }
        _ => return None,
    };
    let complete = outage(new, None).is_empty();
    let spared = old.is_leaf() && outage(top, Some(old)).is_empty();
    (complete && spared).then(|| (old.guid(), vdev.guid()))
}

/// The transaction groups that at least `most` of the lists have, which are sorted and do not overlap.
fn in_at_least(most: usize, lists: &[Vec<Range<u64>>]) -> Vec<Range<u64>> {
    let mut ends: Vec<(u64, bool)> =
        lists.iter().flatten().flat_map(|r| [(r.start, true), (r.end, false)]).collect();
    // Where one ends and another begins, the beginning counts first: the ranges touch.
    ends.sort_unstable_by_key(|(at, begins)| (*at, !begins));
    let (mut depth, mut begin, mut found) = (0usize, None, Vec::new());
    for (at, begins) in ends {
        // Each range of a list begins before it ends.
        depth = if begins { depth + 1 } else { less!(depth, 1, "ranges that a vdev lacks") };
        if depth >= most {
            begin = begin.or(Some(at));
        } else if let Some(begin) = begin.take()
            && begin < at
        {
            found.push(begin..at);
        }
    }
    found
}

/// The transaction groups that `vdev` would lack if the leaf `without` were out of use.
pub(crate) fn outage(vdev: &Vdev, without: Option<&Vdev>) -> Vec<Range<u64>> {
    let in_use = |leaf: &Vdev| leaf.state().readable() && without.is_none_or(|w| !w.is_same(leaf));
    outage_of(vdev, &in_use)
}

/// The transaction groups that `vdev` would lack if the leaf `leaf` were in use, or were not, with those others that answer.
pub(crate) fn outage_as(vdev: &Vdev, leaf: &Vdev, is_used: bool) -> Vec<Range<u64>> {
    let answers = |other: &Vdev| other.opened_state() == VdevState::Healthy;
    outage_of(vdev, &|other| if other.is_same(leaf) { is_used } else { answers(other) })
}

/// The transaction groups that `vdev` lacks if those leaves are in use.
fn outage_of(vdev: &Vdev, in_use: &dyn Fn(&Vdev) -> bool) -> Vec<Range<u64>> {
    if vdev.is_leaf() {
        let all = || std::iter::once(0..u64::MAX).collect();
        return if in_use(vdev) { vdev.missing() } else { all() };
    }
    let below: Vec<_> = vdev.children().iter().map(|c| outage_of(c, in_use)).collect();
    let most = match vdev.vdev_kind() {
        Kind::RaidZ | Kind::Draid => vdev.nparity() as usize + 1,
        _ => below.len(),
    };
    in_at_least(most, &below)
}

impl VdevTree {
    /// A tree in which the top-level vdev `top` has other vdevs below it, or is another one: as `config` has it, the
    /// config of the whole new root. All other vdevs, and those that it keeps, are shared with this tree. `open` finds the
    /// devices of new leaves; `was` tells the guid that a vdev has in this tree by the one that it has in `config`.
    ///
    /// Errors: as for [`VdevTree::build`]; the config has more or fewer top-level vdevs.
    pub fn altered(
        &self,
        config: &NvList,
        top: u64,
        open: FindDevice<'_>,
        was: Was<'_>,
    ) -> Result<Arc<VdevTree>, VdevError> {
        let id = usize::try_from(top).map_err(|_| VdevError::NoVdev(top))?;
        let root = assemble::altered(&self.root, config, id, open, was)?;
        let (maps, pool) = (self.maps.clone(), self.pool.clone());
        Ok(Arc::new(VdevTree { root, maps, pool, writer: self.writer.clone() }))
    }

    /// The top-level vdev that the vdev with this guid is, or is below.
    pub fn top_of(&self, guid: u64) -> Option<&Arc<Vdev>> {
        self.root().children().iter().find(|top| assemble::below(top, guid).is_some())
    }

    /// The vdev right above the one with this guid; of a top-level vdev the root.
    pub fn parent_of(&self, guid: u64) -> Option<Arc<Vdev>> {
        fn above(vdev: &Arc<Vdev>, guid: u64) -> Option<Arc<Vdev>> {
            match vdev.children().iter().any(|c| c.guid() == guid) {
                true => Some(vdev.clone()),
                false => vdev.children().iter().find_map(|c| above(c, guid)),
            }
        }
        above(self.root(), guid)
    }

    /// The device of a distributed spare that is not in use, given how the pool lists it. `None`: no vdev of this tree has it.
    pub fn distributed_spare(&self, config: &NvList) -> Option<Arc<dyn Device>> {
        assemble::idle_spare(self.root(), config)
    }

    /// Whether something that the leaf with this guid has is nowhere else (`vdev_dtl_required`). False if there is no such
    /// leaf.
    pub fn is_required(&self, leaf: u64) -> bool {
        let found = self.top_of(leaf).and_then(|top| Some((top, assemble::below(top, leaf)?)));
        found.is_some_and(|(top, leaf)| !outage(top, Some(&leaf)).is_empty())
    }

    /// A device that can leave, since another one that replaces it has all that it has.
    pub fn replaced(&self) -> Option<Replaced> {
        self.root().children().iter().find_map(|top| replaced(top, top))
    }

    /// Bytes that a device must have to stand in for the leaf with this guid (`vdev_get_min_asize`), with its labels.
    pub fn least_size(&self, leaf: u64) -> Option<u64> {
        assemble::least_size(self.root(), leaf)
    }
}

impl Vdev {
    /// Whether the leaf is about to leave its vdev. To be said before [`VdevTree::is_required`] is asked.
    pub fn set_leaving(&self, leaves: bool) {
        self.leaving.store(leaves, Ordering::SeqCst);
    }

    /// Whether the leaf is about to leave its vdev, or has left it.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Lets go of the device of a leaf that is in no tree any more but in such as were replaced (`vdev_close`).
    pub fn retire(&self) {
        self.set_opened(Opened { device: None, state: VdevState::Closed });
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_a_vdev_lacks_follows_from_its_leaves() {
        let leaves = testing::leaves(3, 1 << 20);
        let missing = |tree: &VdevTree, lists: &[&[Range<u64>]]| {
            for (leaf, list) in tree.leaves().iter().zip(lists) {
                tree.set_dtl(leaf.guid(), list.to_vec()).unwrap();
            }
        };
        let mirror = testing::mirror_like(Kind::Mirror, 0, testing::files(&leaves));
        let tree = testing::tree(vec![mirror]);
        let required = |tree: &VdevTree| {
            let leaves = tree.leaves();
            leaves.iter().map(|l| tree.is_required(l.guid())).collect::<Vec<bool>>()
        };
        missing(&tree, &[&[], &[5..7], &[8..9]]);
        assert_eq!(required(&tree), vec![false; 3]);
        missing(&tree, &[&[], &[5..7], &[6..9]]);
        assert_eq!(required(&tree), vec![true, false, false]);
        let raidz = testing::raidz(1, 9, testing::files(&leaves));
        let tree = testing::tree(vec![raidz]);
        missing(&tree, &[&[], &[], &[6..9]]);
        assert_eq!(required(&tree), vec![true, true, false]);
        assert_eq!(in_at_least(2, &[vec![1..5, 7..9], vec![3..8]]), [3..5, 7..8]);
        assert_eq!(in_at_least(1, &[vec![1..5], vec![5..8]]), vec![1..8]);
    }

    #[test]
    fn what_was_replaced_can_leave_when_the_new_device_has_it_all() {
        let leaves = testing::leaves(2, 1 << 20);
        let files = testing::files(&leaves);
        let guids: Vec<u64> = files.iter().map(|f| f.guid()).collect();
        let replacing = testing::mirror_like(Kind::Replacing, 0, files);
        let above = replacing.guid();
        let tree = testing::tree(vec![replacing]);
        let missed = 4..9;
        tree.miss(guids[1], missed).unwrap();
        assert_eq!(tree.replaced(), None);
        tree.set_dtl(guids[1], vec![]).unwrap();
        // What was missed and not noted on disk yet stays missing.
        assert_eq!(tree.replaced(), None);
        tree.take_missed();
        tree.set_dtl(guids[1], vec![]).unwrap();
        assert_eq!(tree.replaced(), Some((guids[0], above)));
        // The old one has what the new one lacks.
        let missed = 12..13;
        tree.miss(guids[1], missed).unwrap();
        assert_eq!(tree.replaced(), None);
    }

    #[test]
    fn a_spare_stays_until_its_successor_has_it_all() {
        let leaves = testing::leaves(3, 1 << 20);
        let files: Vec<_> = testing::files(&leaves).into_iter().enumerate().collect();
        let as_spare = |(i, mut file): (usize, Arc<Vdev>)| {
            if i > 0 {
                let config = &mut Arc::get_mut(&mut file).unwrap().config;
                config.set("is_spare", cenote_format::nvlist::NvValue::Uint64(1));
            }
            file
        };
        let files: Vec<_> = files.into_iter().map(as_spare).collect();
        let guids: Vec<u64> = files.iter().map(|f| f.guid()).collect();
        let spare = testing::mirror_like(Kind::Spare, 0, files);
        let above = spare.guid();
        let tree = testing::tree(vec![spare]);
        tree.set_dtl(guids[2], vec![4..9]).unwrap();
        assert_eq!(tree.replaced(), None);
        tree.set_dtl(guids[1], vec![4..9]).unwrap();
        tree.set_dtl(guids[2], vec![]).unwrap();
        assert_eq!(tree.replaced(), Some((guids[1], above)));
    }

    #[test]
    fn what_only_a_leaf_has_that_is_leaving_is_not_written() {
        let leaves = testing::leaves(2, 1 << 20);
        let mirror = testing::mirror_like(Kind::Mirror, 0, testing::files(&leaves));
        let tree = testing::tree(vec![mirror]);
        let write = |offset| {
            let data = cenote_format::abd::Abd::from(vec![7; 512]);
            let content = crate::traffic::Content::Data;
            let block = crate::write::BlockWrite {
                vdev: 0,
                offset,
                data,
                txg: 9,
                content,
                sides: Vec::new(),
            };
            tree.write_many(&[block]).remove(0)
        };
        leaves[1].faults.fail_writes(0..u64::MAX);
        write(0).unwrap();
        // What the other one lacks is known now, and this one stays.
        assert!(tree.is_required(tree.leaves()[0].guid()));
        let tree_leaf = tree.leaves()[0].clone();
        tree_leaf.set_leaving(true);
        write(512).unwrap_err();
        tree_leaf.set_leaving(false);
        write(1024).unwrap();
    }

    #[test]
    fn a_leaf_that_left_is_not_used_by_those_who_have_the_old_tree() {
        let leaves = testing::leaves(2, 1 << 20);
        let mirror = testing::mirror_like(Kind::Mirror, 0, testing::files(&leaves));
        let tree = testing::tree(vec![mirror]);
        leaves.iter().for_each(|l| l.write(0, &[3; 512]));
        tree.leaves()[0].retire();
        testing::read(&tree, 0, &[3; 512]).unwrap();
        assert_eq!(leaves[0].faults.reads(), 0);
    }
}
