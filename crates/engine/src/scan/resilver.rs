//! What a resilver gives to which leaf (`vdev_resilver_needed`, `vdev_dtl_should_excise`), and leaves that it gives less than they
//! lack (`vdev_resilver_deferred`).
//!
//! A leaf that lacks more than the resilver under way gives to it is *deferred*: it joined or came back later, it lost something
//! since, something could not be written to it, or it is away. The config says so ([`DEFERRED`]), and the feature of that name is in
//! use meanwhile. Then OpenZFS, if it goes on with the resilver, leaves the dirty time log of the leaf as it is. In a pool
//! without that feature the state has an error instead, for which OpenZFS begins the resilver anew when it imports the pool. The end of
//! the scan takes the marks off; another resilver begins if a leaf that takes writes lacks something that the first one
//! was not to give to it.

use super::position;
use crate::space_write::map::feature_uses;
use crate::space_write::rewrite_dtls;
use crate::sync::count_feature;
use crate::tunables::{RESILVER_DEFER_PERCENT, RESILVER_DISABLE_DEFER};
use crate::{Shared, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::Result;
use cenote_format::nvlist::NvValue;
use cenote_pool::config::{self, DEFERRED};
use cenote_pool::scan::ScanPhys;
use cenote_vdev::{Vdev, VdevTree};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// What a leaf lacked when a resilver began.
pub(super) struct Lack {
    /// The groups that it lacked.
    missing: Vec<Range<u64>>,
    /// [`Vdev::dtl_changes`] then.
    changes: u64,
    /// It lacks later groups as well.
    more: bool,
}

/// What leaves are given by a resilver.
#[derive(Default)]
pub(super) struct Given {
    /// By the leaf's guid.
    lacks: HashMap<u64, Lack>,
    /// Leaves, by guid, and groups of which they were not given a block.
    pub left: BTreeSet<(u64, u64)>,
    /// A part of the pool could not be walked, and may be readable later.
    pub unseen: bool,
    /// One of the errors in the state stands for leaves that are not given all.
    pub counted: bool,
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
            let (changes, all) = (leaf.dtl_changes(), leaf.missing());
            let more = all.last().is_some_and(|last| last.end > end && last.end != u64::MAX);
            let cut = |range: Range<u64>| range.start..range.end.min(end);
            let missing = all.into_iter().map(cut).filter(|r| !r.is_empty()).collect();
            (leaf.guid(), Lack { missing, changes, more })
        };
        let lacks = lagging(tree).map(lack);
        Given { lacks: lacks.collect(), ..Given::default() }
    }

    /// Another scan begins, which walks the pool anew and counts its own errors.
    pub(super) fn forget_walk(&mut self) {
        (self.unseen, self.counted) = (false, false);
    }

    /// The groups that leaves lack: all are later than the first, and none than the second.
    fn range(&self) -> Option<(u64, u64)> {
        let ranges = || self.lacks.values().flat_map(|lack| &lack.missing);
        let first = ranges().map(|range| range.start).min()?;
        let end = ranges().map(|range| range.end).max()?;
        Some((first.saturating_sub(1), end.saturating_sub(1)))
    }

    /// What a leaf is to be given, if nothing has come out since that it lacks besides.
    fn lack_of(&self, leaf: &Vdev) -> Option<&Lack> {
        self.lacks.get(&leaf.guid()).filter(|lack| lack.changes == leaf.dtl_changes())
    }

    /// The groups of which a leaf was not given a block.
    fn left_of(&self, leaf: u64) -> impl Iterator<Item = Range<u64>> {
        let left = self.left.range((leaf, 0)..=(leaf, u64::MAX));
        left.map(|(_, txg)| *txg..txg.saturating_add(1))
    }

    /// Whether a leaf is given all that it lacked when the resilver began, as far as is known.
    fn gives_all(&self, leaf: &Vdev) -> bool {
        self.lack_of(leaf).is_some() && self.left_of(leaf.guid()).next().is_none()
    }
}

impl Shared {
    /// Whether a leaf that takes writes lacks something.
    pub(super) fn needs_resilver(&self) -> bool {
        lagging(&self.disk.tree()).next().is_some()
    }

    /// What leaves lack, for a resilver that begins in group `txg`, and the groups that it is about; `None`: they lack
    /// nothing.
    pub(super) fn to_give(&self, txg: u64) -> Option<(Given, (u64, u64))> {
        let given = Given::now(&self.disk.tree(), txg);
        let range = given.range()?;
        Some((given, range))
    }

    /// Whether a leaf lacks something that the resilver under way is not to give to it.
    pub(super) fn needs_another(&self) -> bool {
        let given = self.scanner.given.lock();
        // What could not be written to it since is none of it.
        let is_later = |leaf: &Vdev, lack: &Lack| {
            let end = lack.missing.last().map_or(0, |last| last.end);
            leaf.missing().last().is_some_and(|last| last.end > end)
        };
        let is_given = |leaf: &Vdev| {
            given.lack_of(leaf).is_some_and(|lack| !lack.more && !is_later(leaf, lack))
        };
        lagging(&self.disk.tree()).any(|leaf| !is_given(&leaf))
    }

    /// Whether another resilver is to wait for the end of the one that is under way (`dsl_scan_sync`, `restart_early`).
    pub(super) fn defers(&self, phys: &ScanPhys) -> bool {
        let view = self.view();
        let mut ahead = 0;
        view.note_scan(|pass| ahead = pass.as_ref().map_or(0, |pass| pass.ahead[1]));
        let done = phys.examined.saturating_sub(phys.skipped).saturating_add(ahead);
        let all = phys.to_examine.saturating_sub(phys.skipped);
        let least = all / 100 * RESILVER_DEFER_PERCENT.get();
        view.features().is_enabled("resilver_defer")
            && !RESILVER_DISABLE_DEFER.is_on()
            && done >= least
    }
}

impl SyncContext<'_> {
    /// Marks the leaves that lack something and are not given all of it by the resilver under way (`vdev_defer_resilver`).
    pub(super) fn defer_leaves(&mut self, shared: &Shared) -> Result<()> {
        let tree = self.disk.tree();
        let mut deferred: Vec<u64> = {
            let given = shared.scanner.given.lock();
            let leaves = tree.leaves().into_iter();
            let leaves = leaves.filter(|leaf| leaf.is_behind() && !given.gives_all(leaf));
            leaves.map(|leaf| leaf.guid()).collect()
        };
        config::for_each_leaf(&self.config.vdev_tree, &mut |leaf| {
            if leaf.contains(DEFERRED) {
                deferred.retain(|guid| *guid != config::number(leaf, "guid"));
            }
        });
        if deferred.is_empty() {
            return Ok(());
        }
        let phys = position::read(self.tx.mos)?;
        let running = phys.filter(|phys| phys.is_running() && phys.is_resilver());
        let Some(phys) = running else { return Ok(()) };
        match feature_uses(self.tx.mos, DEFERRED)? {
            None if phys.errors > 0 => return Ok(()),
            None => {
                position::write(self.tx.mos, &ScanPhys { errors: 1, ..phys })?;
                shared.scanner.given.lock().counted = true;
                return Ok(());
            }
            Some(0) => count_feature(self.tx.mos, self.tx.txg, &self.disk.outside, DEFERRED, 1)?,
            Some(_) => {}
        }
        config::for_each_leaf_mut(&mut self.config.vdev_tree, &mut |leaf| {
            if deferred.contains(&config::number(leaf, "guid")) {
                leaf.set(DEFERRED, NvValue::Boolean);
            }
        });
        self.config_changed = true;
        Ok(())
    }

    /// Takes off the marks of leaves that are deferred, as the scan ends (`vdev_clear_resilver_deferred`). Returns whether there were
    /// any.
    pub(super) fn end_deferring(&mut self) -> Result<bool> {
        if feature_uses(self.tx.mos, DEFERRED)?.is_some_and(|uses| uses > 0) {
            count_feature(self.tx.mos, self.tx.txg, &self.disk.outside, DEFERRED, -1)?;
        }
        let mut any = false;
        config::for_each_leaf_mut(&mut self.config.vdev_tree, &mut |leaf| {
            any |= leaf.contains(DEFERRED);
            leaf.pairs.retain(|(name, _)| name != DEFERRED);
        });
        self.config_changed |= any;
        Ok(any)
    }

    /// Puts the state of a scan right at the end of the tasks of a group (`dsl_scan_sync`). `tasked`: there were tasks.
    pub(crate) fn keep_scan(&mut self, shared: &Shared, tasked: bool) -> Result<()> {
        if !shared.scanner.active.load(SeqCst) {
            return Ok(());
        }
        if tasked {
            self.settle_scan(shared)?;
        }
        self.tx.mos.begin_change();
        let done = self.defer_leaves(shared).and_then(|()| Ok(self.tx.mos.check_change()?));
        match done {
            Ok(()) => self.tx.mos.keep_change(),
            Err(cenote_dsl::write::DslWriteError::Unreadable(why)) => {
                self.tx.mos.undo_change();
                tracing::warn!(
                    "leaves that a resilver does not bring up to date are not marked: {why}"
                );
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }
}

impl SyncContext<'_> {
    /// Takes off the dirty time logs what a resilver that is done has given to leaves.
    pub(super) fn excise(&mut self, shared: &Shared) -> Result<()> {
        let given = shared.scanner.given.lock();
        if given.unseen {
            // It is not known what leaves were not given.
            return Ok(());
        }
        let tree = self.disk.tree();
        let mut now = Vec::new();
        for leaf in tree.leaves() {
            let Some(lack) = given.lack_of(&leaf) else { continue };
            let left: Vec<Range<u64>> = given.left_of(leaf.guid()).collect();
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
