//! Log vdevs: whether they take blocks, and what becomes of commits when a device of theirs goes out of use.
//!
//! A pool does without its log vdevs, so that any device of one may go. What had been written there, and not been flushed, is then
//! nowhere, and the commit that wrote it must not take it for durable. A vdev that holds data does not do without such a device.
//! So the log vdev counts as having lost blocks, and its flushes fail, until no log is there any more.
//!
//! Invariant: while a log vdev may have lost blocks, nothing is allocated there.

use super::lossy;
use crate::surgery::outage;
use crate::tree::VdevTree;
use crate::vdev::Vdev;
use std::sync::Arc;

/// Whether `leaf` may have blocks of `top` that no other leaf has.
fn has_alone(top: &Vdev, leaf: &Vdev) -> bool {
    lossy(top, &|other| other.guid() == leaf.guid()) || !outage(top, Some(leaf)).is_empty()
}

impl VdevTree {
    /// Whether a top-level vdev, if it is one for intent logs, takes blocks and keeps them. One that may have lost some does not
    /// before [`VdevTree::forget_lost_logs`]: no flush of it succeeds, as some block of before may not be there.
    pub fn takes_logs(&self, vdev: u64) -> bool {
        let takes = |top: &Arc<Vdev>| {
            let mut leaves = Vec::new();
            top.collect_leaves(&mut leaves);
            let well = top.state().readable() && leaves.iter().any(|leaf| leaf.writable());
            well && !self.has_lost(top.id())
        };
        self.top(vdev).is_some_and(|top| !top.is_log() || takes(top))
    }

    /// Whether `guid` is a leaf of a log vdev without which that takes no blocks, or lacks some; the id of the vdev.
    pub fn last_of_log(&self, guid: u64) -> Option<u64> {
        let found = |top: &&Arc<Vdev>| {
            let mut leaves = Vec::new();
            top.collect_leaves(&mut leaves);
            let is_it = |leaf: &&Arc<Vdev>| leaf.guid() == guid && leaf.writable();
            leaves.iter().find(is_it).is_some_and(|leaf| has_alone(top, leaf))
        };
        let mut logs = self.root().children().iter().filter(|top| top.is_log());
        logs.find(found).map(|top| top.id())
    }

    /// A leaf is about to let go of its device. If it is of a log vdev of which no other leaf has what is not durable there, a
    /// commit that has written it and not flushed it yet finds that its flush fails. A vdev that holds data does not do without
    /// such a leaf.
    pub(crate) fn lose_log(&self, top: &Arc<Vdev>, leaf: &Vdev) {
        let has_blocks = leaf.written().has_blocks();
        if has_blocks && top.is_log() && has_alone(top, leaf) {
            self.lost_with_device(top);
        }
    }

    /// Whether what was written to a top-level vdev may be lost, and was not written again.
    pub fn has_lost(&self, top: u64) -> bool {
        self.writer.lost.lock().now.contains_key(&top)
    }

    /// Forgets that log vdevs may have lost blocks. To be called when no log is written, and those that there were have ended.
    pub fn forget_lost_logs(&self) {
        let _alone = (self.writer.flushing.lock(), self.writer.storing.lock());
        for top in self.root().children().iter().filter(|top| top.is_log()) {
            if self.writer.lost.lock().now.remove(&top.id()).is_some() {
                self.writer.unflushed.forget(top.id());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VdevState;
    use crate::testing::{self, Leaf};
    use crate::traffic::Content;
    use crate::vdev::Kind;
    use crate::write::BlockWrite;
    use cenote_format::LABEL_START;
    use cenote_format::abd::Abd;
    use cenote_format::label::LABEL_END;
    use cenote_format::nvlist::NvValue;

    const SIZE: usize = (1 << 20) + LABEL_END as usize;

    fn write(tree: &VdevTree, txg: u64) -> bool {
        let (vdev, offset, content) = (0, 512 * txg, Content::Metadata);
        let data = Abd::from_vec(vec![txg as u8; 512]);
        let block = BlockWrite { vdev, offset, data, txg, content, sides: Vec::new() };
        tree.write_many(&[block])[0].is_ok()
    }

    fn states(tree: &VdevTree) -> Vec<VdevState> {
        tree.leaves().iter().map(|l| l.state()).collect()
    }

    /// A tree whose only top-level vdev is a log with this many sides.
    fn log(n: usize) -> (VdevTree, Vec<Leaf>) {
        let leaves = testing::leaves(n, SIZE);
        let mut top = testing::mirror_like(Kind::Mirror, 0, testing::files(&leaves));
        let is_log = ("is_log".into(), NvValue::Uint64(1));
        Arc::get_mut(&mut top).unwrap().config.pairs.push(is_log);
        (testing::tree(vec![top]), leaves)
    }

    /// A commit has written a block, and not flushed it yet.
    #[test]
    fn a_log_that_loses_its_last_device_keeps_nothing_of_a_commit() {
        for state in [VdevState::Offline, VdevState::Faulted] {
            let (tree, _leaves) = log(2);
            let guids: Vec<u64> = tree.leaves().iter().map(|leaf| leaf.guid()).collect();
            assert!(write(&tree, 1) && tree.takes_logs(0));
            assert_eq!(tree.last_of_log(guids[0]), None);
            assert!(tree.take_out(guids[0], state));
            // The other side has it.
            assert!(tree.takes_logs(0) && tree.flush_tops(&[0]).is_ok());
            assert_eq!(tree.last_of_log(guids[1]), Some(0));
            assert!(write(&tree, 2) && tree.take_out(guids[1], state));
            assert!(!tree.takes_logs(0) && tree.flush_tops(&[0]).is_err());
            // What cannot be written again keeps nothing else from being so.
            assert!(tree.recover().is_ok() && tree.has_lost(0));
            tree.forget_lost_logs();
            assert!(!tree.has_lost(0) && tree.flush_tops(&[0]).is_ok());
        }
    }

    #[test]
    fn a_log_without_its_last_side_loses_what_the_other_one_lacks() {
        let (tree, leaves) = log(2);
        let guid = tree.leaves()[0].guid();
        leaves[1].faults.fail_writes(LABEL_START + 512..LABEL_START + 1024);
        assert!(write(&tree, 1) && states(&tree) == [VdevState::Healthy; 2]);
        assert!(tree.take_out(guid, VdevState::Offline));
        assert!(tree.flush_tops(&[0]).is_err() && !tree.takes_logs(0));
    }

    #[test]
    fn a_side_of_a_log_that_has_blocks_alone_is_its_last() {
        let (tree, _leaves) = log(2);
        let guids: Vec<u64> = tree.leaves().iter().map(|leaf| leaf.guid()).collect();
        let missed = 1..2;
        tree.set_dtl(guids[1], vec![missed]).unwrap();
        assert_eq!((tree.last_of_log(guids[0]), tree.last_of_log(guids[1])), (Some(0), None));
    }
}
