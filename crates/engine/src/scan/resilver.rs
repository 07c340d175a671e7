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
use crate::features::count_feature;
use crate::space_write::map::feature_uses;
use crate::space_write::rewrite_dtls;
use crate::tunables::{RESILVER_DEFER_PERCENT, RESILVER_DISABLE_DEFER};
use crate::{Shared, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::Result;
use cenote_format::less;
use cenote_format::nvlist::NvValue;
use cenote_pool::config::{self, DEFERRED};
use cenote_pool::rebuild::JOINED;
use cenote_pool::scan::ScanPhys;
use cenote_vdev::{Vdev, VdevTree};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Transaction groups that may have blocks when one is written: it, the one that is quiesced and the open one.
const UNDER_WAY: u64 = 3;

/// Resilvers that begin by themselves behind one another, as leaves lose something in each.
const MOST_AGAIN: u64 = 8;

/// What a leaf lacked when a resilver began.
pub(super) struct Lack {
    /// The groups that it lacked.
    missing: Vec<Range<u64>>,
    /// [`Vdev::dtl_changes`] then.
    changes: u64,
    /// It lacks later groups as well.
    more: bool,
}

impl Lack {
    /// Whether the leaf lacks nothing else by now.
    fn is_all_of(&self, leaf: &Vdev) -> bool {
        let covers = |range: &Range<u64>| {
            self.missing.iter().any(|known| known.start <= range.start && range.end <= known.end)
        };
        !self.more && leaf.missing().iter().all(covers)
    }
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
        let end = txg + 1;
        let lack = |leaf: Arc<Vdev>| {
            let (changes, all) = (leaf.dtl_changes(), leaf.missing());
            let more = all.last().is_some_and(|last| last.end > end);
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
        // None of these ranges is empty.
        let last = less!(end, 1, "groups that leaves lack");
        Some((first.saturating_sub(1), last))
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
    pub(super) fn gives_all(&self, leaf: &Vdev) -> bool {
        self.lack_of(leaf).is_some() && self.left_of(leaf.guid()).next().is_none()
    }
}

impl Shared {
    /// Whether a leaf that takes writes lacks something.
    pub(crate) fn needs_resilver(&self) -> bool {
        lagging(&self.disk.tree()).next().is_some()
    }

    /// What leaves lack, for a resilver that begins in group `txg`, and the groups that it is about; `None`: they lack
    /// nothing.
    pub(super) fn to_give(&self, txg: u64) -> Option<(Given, (u64, u64))> {
        let tree = self.disk.tree();
        // What such a leaf misses from now on is told apart.
        tree.leaves().iter().for_each(|leaf| leaf.count_unread(txg + UNDER_WAY));
        let given = Given::now(&tree, txg);
        let range = given.range()?;
        Some((given, range))
    }

    /// Whether a leaf lacks something that the resilver under way is not to give to it. It may have lost that since.
    pub(super) fn needs_another(&self) -> bool {
        let given = self.scanner.given.lock();
        let is_given = |leaf: &Vdev| given.lack_of(leaf).is_some_and(|lack| lack.is_all_of(leaf));
        lagging(&self.disk.tree()).any(|leaf| !is_given(&leaf))
    }

    /// Whether another resilver is to begin behind one that has ended, or in the place of the one that `runs`. It may be in vain: a leaf that fails a write in each of
    /// them is given what it lost by the next one that is asked for.
    pub(super) fn begins_another(&self, runs: bool) -> bool {
        let begun = &self.scanner.begun_again;
        // What one that is under way has left so far is looked at when it has ended.
        if !self.needs_another() && (runs || !self.left_something()) {
            begun.store(0, SeqCst);
            return false;
        }
        let begins = begun.fetch_add(1, SeqCst) < MOST_AGAIN;
        if !begins {
            tracing::warn!("devices go on losing what is written: no resilver begins by itself");
        }
        begins
    }

    /// Whether the resilver that has ended left something that another one may give, as what could not be read may be readable by
    /// now. Where that left no less than the one before, it is the same, and is given by the next one that is asked for.
    fn left_something(&self) -> bool {
        let tree = self.disk.tree();
        if tree.has_outage() {
            // One begins when the device is back.
            return false;
        }
        let given = self.scanner.given.lock();
        let lacks = |leaf: Arc<Vdev>| given.unseen || given.left_of(leaf.guid()).next().is_some();
        if !lagging(&tree).any(lacks) {
            *self.scanner.left_before.lock() = None;
            return false;
        }
        let left = (given.unseen, given.left.len());
        let before = self.scanner.left_before.lock().replace(left);
        before.is_none_or(|before| left < before)
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

impl Shared {
    /// Whether a resilver is about to begin (`dsl_scan_resilver_scheduled`).
    pub(crate) fn is_resilver_due(&self) -> bool {
        self.scanner.due.load(SeqCst) && self.needs_resilver()
    }
}

impl SyncContext<'_> {
    /// Whether a resilver is under way (`dsl_scan_resilvering`).
    pub(crate) fn is_resilvering(&mut self) -> Result<bool> {
        let phys = position::read(self.tx.mos)?;
        Ok(phys.is_some_and(|phys| phys.is_running() && phys.is_resilver()))
    }

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

    /// Puts the state of a scan right at the end of the tasks of a group (`dsl_scan_sync`).
    pub(crate) fn keep_scan(&mut self, shared: &Shared) -> Result<()> {
        self.settle_scan(shared)?;
        if !shared.scanner.active.load(SeqCst) {
            return Ok(());
        }
        let counted = shared.scanner.given.lock().counted;
        self.tx.mos.begin_change();
        let done = self.defer_leaves(shared).and_then(|()| Ok(self.tx.mos.check_change()?));
        match done {
            Ok(()) => self.tx.mos.keep_change(),
            Err(cenote_dsl::write::DslWriteError::Unreadable(why)) => {
                self.tx.mos.undo_change();
                shared.scanner.given.lock().counted = counted;
                tracing::warn!(
                    "leaves that a resilver does not bring up to date are not marked: {why}"
                );
            }
            Err(why) => return Err(why),
        }
        Ok(())
    }
}

/// A leaf, the groups that it was given, and those of them that it still lacks.
type Taken = (Arc<Vdev>, Vec<Range<u64>>, Vec<Range<u64>>);

impl SyncContext<'_> {
    /// Takes off the dirty time logs what a resilver that is done has given to leaves.
    pub(super) fn excise(&mut self, shared: &Shared) -> Result<()> {
        let given = shared.scanner.given.lock();
        if given.unseen {
            // It is not known what leaves were not given.
            return Ok(());
        }
        let mut taken = Vec::new();
        for leaf in self.disk.tree().leaves() {
            let Some(lack) = given.lack_of(&leaf) else { continue };
            let left: Vec<Range<u64>> = given.left_of(leaf.guid()).collect();
            taken.push((leaf, lack.missing.clone(), left));
        }
        drop(given);
        self.given(taken)
    }

    /// Leaves were given groups that they lacked, but for others: these go off their dirty time logs (`vdev_dtl_reassess`).
    pub(crate) fn given(&mut self, taken: Vec<Taken>) -> Result<()> {
        let tree = self.disk.tree();
        let after = |(leaf, given, left): &Taken| (leaf.guid(), leaf.lacks_after(given, left));
        let now: Vec<(u64, Vec<Range<u64>>)> = taken.iter().map(after).collect();
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        let vdevs = &mut self.config.vdev_tree;
        self.config_changed |= rewrite_dtls(self.tx.mos, txg, vdevs, &now, &mut count)?;
        // What lacks nothing waits for no resilver (`vdev_resilver_txg`, `vdev_rebuild_txg`).
        let lacks = |guid| match now.iter().find(|(of, _)| *of == guid) {
            Some((_, lacks)) => !lacks.is_empty(),
            None => tree.find(guid).is_none_or(|leaf| leaf.is_behind()),
        };
        let mut changed = false;
        config::for_each_leaf_mut(vdevs, &mut |leaf| {
            let waits = |name: &str| name == "resilver_txg" || name == JOINED;
            let any = leaf.pairs.iter().any(|(name, _)| waits(name));
            if any && !lacks(config::number(leaf, "guid")) {
                leaf.pairs.retain(|(name, _)| !waits(name));
                changed = true;
            }
        });
        self.config_changed |= changed;
        self.when_kept(move || {
            for (leaf, given, left) in taken {
                leaf.excise(&given, &left);
            }
        });
        Ok(())
    }
}
