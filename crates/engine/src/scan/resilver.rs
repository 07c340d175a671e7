//! What a resilver gives to which leaf (`vdev_resilver_needed`, `vdev_dtl_should_excise`).

use crate::space_write::rewrite_dtls;
use crate::sync::count_feature;
use crate::{Shared, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_pool::config;
use cenote_vdev::{Vdev, VdevTree};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What a leaf lacked when a resilver began.
pub(super) struct Lack {
    /// The groups that it lacked.
    missing: Vec<Range<u64>>,
    /// [`Vdev::dtl_changes`] then.
    changes: u64,
}

/// What leaves are given by a resilver.
#[derive(Default)]
pub(super) struct Given {
    /// By the leaf's guid.
    lacks: HashMap<u64, Lack>,
    /// Leaves, by guid, and groups of which they were not given a block.
    pub left: Vec<(u64, u64)>,
    /// A part of the pool could not be walked.
    pub unseen: bool,
}

/// The leaves that take writes and lack something.
fn lagging(tree: &VdevTree) -> impl Iterator<Item = Arc<Vdev>> + use<> {
    tree.leaves().into_iter().filter(|leaf| leaf.writable() && leaf.is_behind())
}

impl Given {
    /// What leaves lack of the groups up to `txg`.
    fn now(tree: &VdevTree, txg: u64) -> Given {
        let end = txg.saturating_add(1);
        let lack = |leaf: Arc<Vdev>| {
            let changes = leaf.dtl_changes();
            let cut = |range: Range<u64>| range.start..range.end.min(end);
            let missing = leaf.missing().into_iter().map(cut).filter(|r| !r.is_empty()).collect();
            (leaf.guid(), Lack { missing, changes })
        };
        let lacks = lagging(tree).map(lack);
        Given { lacks: lacks.collect(), ..Given::default() }
    }

    /// The groups that leaves lack: all are later than the first, and none than the second.
    fn range(&self) -> Option<(u64, u64)> {
        let ranges = || self.lacks.values().flat_map(|lack| &lack.missing);
        let first = ranges().map(|range| range.start).min()?;
        let end = ranges().map(|range| range.end).max()?;
        Some((first.saturating_sub(1), end.saturating_sub(1)))
    }
}

impl Shared {
    /// Whether a leaf that takes writes lacks something.
    pub(super) fn needs_resilver(&self) -> bool {
        lagging(&self.disk.tree()).next().is_some()
    }

    /// Notes what leaves lack, for a resilver that begins in group `txg`. Returns the groups that it is about, if a leaf
    /// lacks any.
    pub(super) fn begin_giving(&self, txg: u64) -> Option<(u64, u64)> {
        let given = Given::now(&self.disk.tree(), txg);
        let range = given.range()?;
        *self.scanner.given.lock() = given;
        Some(range)
    }

    /// Whether a leaf lacks something that the resilver under way does not give to it.
    pub(super) fn needs_another(&self) -> bool {
        let given = self.scanner.given.lock();
        let is_given = |leaf: &Arc<Vdev>| {
            given.lacks.get(&leaf.guid()).is_some_and(|lack| lack.changes == leaf.dtl_changes())
        };
        lagging(&self.disk.tree()).any(|leaf| !is_given(&leaf))
    }
}

impl SyncContext<'_> {
    /// Takes off the dirty time logs what a resilver that is done has given to leaves.
    pub(super) fn excise(&mut self, shared: &Shared) -> cenote_dsl::write::Result<()> {
        let mut given = shared.scanner.given.lock();
        let left = std::mem::take(&mut given.left);
        if given.unseen {
            // It is not known what leaves were not given.
            return Ok(());
        }
        let tree = self.disk.tree();
        let mut now = Vec::new();
        for leaf in tree.leaves() {
            let Some(lack) = given.lacks.get(&leaf.guid()) else { continue };
            if lack.changes != leaf.dtl_changes() {
                continue;
            }
            let mine = left.iter().filter(|(guid, _)| *guid == leaf.guid());
            let left: Vec<Range<u64>> = mine.map(|(_, txg)| *txg..txg.saturating_add(1)).collect();
            now.push((leaf.guid(), leaf.excise(&lack.missing, &left)));
        }
        drop(given);
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        let vdevs = &mut self.config.vdev_tree;
        self.config_changed |= rewrite_dtls(self.tx.mos, txg, vdevs, &now, &mut count)?;
        // What lacks nothing waits for no resilver (`vdev_resilver_txg`).
        let complete = |guid| tree.find(guid).is_some_and(|leaf| !leaf.is_behind());
        let mut changed = false;
        config::for_each_leaf_mut(vdevs, &mut |leaf| {
            if leaf.u64("resilver_txg").is_some() && complete(config::number(leaf, "guid")) {
                leaf.pairs.retain(|(name, _)| name != "resilver_txg");
                changed = true;
            }
        });
        self.config_changed |= changed;
        Ok(())
    }
}
