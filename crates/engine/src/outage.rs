//! Devices that go out of use and come back (`vdev_clear`, `vdev_online`, `vdev_offline`, `zfs_ioc_clear`,
//! `zfs_ioc_vdev_set_state`).
//!
//! A device that does not answer goes out of use by itself (`cenote_vdev`'s `probe`). It comes back
//! when a command says so, between two transaction groups. What it missed meanwhile is in its dirty
//! time log and is not read from it.
//!
//! A log vdev that is about to take no blocks any more gets no block from then on, and all logs end, in one group
//! (`spa_reset_logs`), before its last device goes: what was acknowledged is on disk then, and no header leads there. Logs begin
//! again elsewhere. Commits that are under way come first. A log that waits for its replay keeps its device in use, unless it is
//! to be faulted.

use super::adopt::is_back;
use super::removal::Passive;
use super::sync_core::Core;
use super::{Engine, EngineError, SyncContext};
use cenote_dsl::write::DslWriteError;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::config_write::{aux, sync_aux};
use cenote_pool::diagnosis;
use cenote_pool::reopen::Restore;
use cenote_vdev::{Vdev, VdevState};
use parking_lot::MutexGuard;
use std::sync::Arc;

/// The list of cache devices in the MOS.
const CACHES: &str = "l2cache";

/// Why a device was not taken out of use.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// Something that only it has would be missing.
    #[error("no valid replicas")]
    Required,
    /// A log that waits for its replay is on it.
    #[error("log device has unplayed intent logs")]
    LogsWait,
    /// The change could not be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// How an administrator takes a device out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOut {
    /// Offline until the pool is imported again (`zpool offline -t`).
    OfflineForNow,
    /// Offline until it is brought online.
    Offline,
    /// Faulted until the pool is imported again, or that is cleared (`zpool offline -ft`).
    FaultForNow,
    /// Faulted until that is cleared (`zpool offline -f`, `vdev_fault`).
    Fault,
}

impl TakeOut {
    fn state(self) -> VdevState {
        match self {
            TakeOut::OfflineForNow | TakeOut::Offline => VdevState::Offline,
            TakeOut::FaultForNow | TakeOut::Fault => VdevState::Faulted,
        }
    }
}

/// Takes the pairs off the configs of the leaves below `vdev`. Returns whether there were any.
fn strip(vdev: &mut NvList, leaves: &[u64], pairs: &[&str]) -> bool {
    let mut changed = false;
    config::for_each_leaf_mut(vdev, &mut |leaf| {
        if leaves.contains(&config::number(leaf, "guid")) {
            let before = leaf.pairs.len();
            leaf.pairs.retain(|(name, _)| !pairs.contains(&name.as_str()));
            changed |= leaf.pairs.len() != before;
        }
    });
    changed
}

impl Engine {
    /// Brings back the leaves with these guids as far as their devices answer and are theirs (`vdev_online`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn restore(&self, leaves: &[u64], what: Restore) -> Result<(), EngineError> {
        let restored = self.try_restore(leaves, what);
        if restored.is_err() {
            // What is in use again nevertheless may lack something.
            self.shared.owe_resilver();
        }
        restored
    }

    fn try_restore(&self, leaves: &[u64], what: Restore) -> Result<(), EngineError> {
        let _passive = self.log_vdevs_noted_out(leaves);
        let (pool, any) = {
            // No block is laid out meanwhile, nor after the group that the pool is of.
            let _core = self.core()?;
            let pool = self.pool();
            let any = pool.restore(leaves, what);
            (pool, any.map_err(|e| EngineError::Unsupported(e.to_string()))?)
        };
        #[cfg(feature = "planted")]
        self.shared.reach(crate::planted::Moment::Restored);
        if what == Restore::Failure {
            leaves.iter().copied().for_each(diagnosis::reset);
        }
        self.shared.call_spares();
        let tree = self.shared.disk.tree();
        let noted = |leaf: &NvList| {
            leaves.contains(&config::number(leaf, "guid"))
                && leaf.pairs.iter().any(|(name, _)| what.pairs().contains(&name.as_str()))
                || is_back(&tree, leaf)
        };
        let mut changed = any;
        if let Some(root) = pool.config().list("vdev_tree") {
            config::for_each_leaf(root, &mut |leaf| changed |= noted(leaf));
        }
        self.shared.resume_activities(|leaf| leaves.contains(&leaf));
        if changed {
            let leaves = leaves.to_vec();
            self.sync_task(move |context| {
                let tree = &mut context.config.vdev_tree;
                // Labels of those that came back are out of date.
                context.config_changed |= strip(tree, &leaves, what.pairs()) || any;
                context.note_devices_back();
                Ok(())
            })?;
        }
        self.use_lost_logs()?;
        // A removal may wait for what came back.
        if self.shared.disk.writer.copied().is_some() {
            self.shared.wake_evacuation();
        }
        self.shared.wake_reflow();
        self.shared.wake_rebuild();
        if what == Restore::Removal && !changed {
            // What came by itself is of no use: a resilver that has left something does not begin anew for that.
            return Ok(());
        }
        // A leaf that stayed in use may lack what could not be written to it. It also wakes a scan whose thread ended as
        // devices did not answer.
        self.assess_resilver()
    }

    /// Log vdevs of which the config on disk says that one of these leaves is out of use: an import would read no log there, so
    /// none is to begin before a group has taken that back.
    fn log_vdevs_noted_out(&self, leaves: &[u64]) -> Vec<Arc<Passive>> {
        let pool = self.pool();
        let mut noted = pool.noted_as(&["offline", "faulted", "removed"]);
        noted.retain(|guid| leaves.contains(guid));
        let has_one = |top: &&Arc<Vdev>| {
            let mut below = Vec::new();
            top.collect_leaves(&mut below);
            top.is_log() && below.iter().any(|leaf| noted.contains(&leaf.guid()))
        };
        let tree = pool.store().vdevs();
        let logs = tree.root().children().iter().filter(has_one);
        logs.map(|top| Passive::new(&self.shared.disk.allocator, top.id())).collect()
    }

    /// Takes a leaf out of use (`vdev_offline`).
    ///
    /// # Errors
    /// The pool could not do without it; a log there waits for its replay; the pool is suspended.
    pub fn take_out(&self, leaf: u64, how: TakeOut) -> Result<(), OfflineError> {
        let taken = {
            let (_core, emptied) = self.core_without_logs(leaf)?;
            if let Some(log) = &emptied
                && how.state() == VdevState::Offline
                && self.logs_wait_on(log.vdev())
            {
                return Err(OfflineError::LogsWait);
            }
            #[cfg(feature = "planted")]
            self.shared.reach(crate::planted::Moment::LogEmptied);
            let pool = self.pool();
            let tree = pool.store().vdevs();
            let taken = tree.take_out(leaf, how.state());
            if taken {
                pool.devices().forget(leaf);
            }
            taken.then(|| tree.find(leaf))
        };
        let Some(taken) = taken else { return Err(OfflineError::Required) };
        // The device may be put to another use from now on.
        taken.map(|vdev| self.shared.is_let_go(&vdev));
        self.shared.call_spares();
        if matches!(how, TakeOut::OfflineForNow | TakeOut::FaultForNow) {
            return Ok(());
        }
        Ok(self.sync_task(move |context| note(context, leaf, how))?)
    }

    /// The core, to take a leaf out of use. If a log vdev takes no blocks without the leaf, no log is there, and none begins
    /// there as long as what is returned with it lives.
    ///
    /// # Errors
    /// The pool is suspended, or frozen: logs cannot end.
    pub(super) fn core_without_logs(
        &self,
        leaf: u64,
    ) -> Result<(MutexGuard<'_, Core>, Option<Arc<Passive>>), EngineError> {
        let mut emptied: Option<Arc<Passive>> = None;
        loop {
            let core = self.core()?;
            let log = self.pool().store().vdevs().last_of_log(leaf);
            let is_empty = |id| emptied.as_ref().is_some_and(|log| log.vdev() == id);
            let Some(id) = log.filter(|id| !is_empty(*id)) else { return Ok((core, emptied)) };
            drop(core);
            if self.shared.disk.frozen.leaves_out(u64::MAX) {
                let why = "the pool is frozen: export and import it first";
                return Err(DslWriteError::Invalid(why.into()).into());
            }
            emptied = Some(Passive::new(&self.shared.disk.allocator, id));
            // All logs end in the group of a task that wants no dataset to have one.
            self.sync_task(|_| Ok(()))?;
            #[cfg(feature = "planted")]
            self.shared.reach(crate::planted::Moment::LogsEnded);
        }
    }

    /// Whether logs that wait for their replay have blocks on a log vdev that has no blocks of other logs.
    fn logs_wait_on(&self, vdev: u64) -> bool {
        let any = !self.shared.unreplayed.lock().heads().is_empty();
        any && !self.shared.disk.allocator.is_empty(vdev)
    }

    /// Log vdevs that may have lost blocks are used again: a device of theirs is back (`vdev_clear`).
    fn use_lost_logs(&self) -> Result<(), EngineError> {
        let tree = self.pool().store().vdevs();
        if !tree.root().children().iter().any(|top| top.is_log() && tree.has_lost(top.id())) {
            return Ok(());
        }
        // No thread commits, and the logs that there are end in the group of this.
        self.sync_task(|context| {
            context.disk.tree().forget_lost_logs();
            Ok(())
        })
    }
}

impl Engine {
    /// Takes a cache device out of use.
    ///
    /// # Errors
    /// There is no such device; the pool is suspended.
    pub fn take_out_cache(&self, guid: u64, how: TakeOut) -> Result<(), EngineError> {
        if matches!(how, TakeOut::OfflineForNow | TakeOut::FaultForNow) {
            self.pool().devices().set_aside(guid, Some(how.state()));
            self.use_caches();
            return Ok(());
        }
        self.change_cache(guid, move |cache| mark(cache, how))?;
        self.use_caches();
        Ok(())
    }

    /// Brings a cache device back.
    ///
    /// # Errors
    /// There is no such device; the pool is suspended.
    pub fn restore_cache(&self, guid: u64, what: Restore) -> Result<(), EngineError> {
        let pool = self.pool();
        let state = match what {
            Restore::Failure => Some(VdevState::Faulted),
            Restore::Offline => Some(VdevState::Offline),
            Restore::Nothing | Restore::Removal => None,
        };
        if state.is_some() && pool.devices().aside(guid) == state {
            pool.devices().set_aside(guid, None);
        }
        let gone = move |(name, _): &(String, NvValue)| what.pairs().contains(&name.as_str());
        let cache = pool.caches().iter().find(|cache| config::number(cache, "guid") == guid);
        if cache.is_some_and(|cache| cache.pairs.iter().any(gone)) {
            self.change_cache(guid, move |cache| cache.pairs.retain(|pair| !gone(pair)))?;
        }
        if what == Restore::Failure
            && let Some(leaf) = pool.cache_leaf(guid)
        {
            leaf.clear_errors();
        }
        let pool = self.pool();
        pool.look_for_cache(guid);
        let alone = pool.store().l2arc().alone();
        self.pool().reuse_cache(&alone, guid);
        Ok(())
    }

    /// Uses the cache devices that the pool has by then.
    pub(crate) fn use_caches(&self) {
        let store = self.pool().store().clone();
        let alone = store.l2arc().alone();
        // The newest view, whatever another thread has changed while this one waited.
        self.pool().use_caches(&alone);
    }

    /// Changes what the list of cache devices says of one.
    fn change_cache(
        &self,
        guid: u64,
        change: impl FnOnce(&mut NvList) + Send + 'static,
    ) -> Result<(), EngineError> {
        self.sync_task_beside_logs(
            move |context| {
                let mut all = aux(context.tx.mos, CACHES)?;
                let found = all.iter_mut().find(|cache| config::number(cache, "guid") == guid);
                change(found.ok_or(DslWriteError::NotFound)?);
                Ok(sync_aux(context.tx.mos, CACHES, &all)?)
            },
            |()| true,
        )
    }
}

/// Puts down that a leaf is out of use.
fn note(context: &mut SyncContext<'_>, guid: u64, how: TakeOut) -> Result<(), DslWriteError> {
    config::for_each_leaf_mut(&mut context.config.vdev_tree, &mut |leaf| {
        if config::number(leaf, "guid") == guid {
            mark(leaf, how);
            context.config_changed = true;
        }
    });
    Ok(())
}

/// Notes in the config of a device that it is out of use for longer than until the next import.
fn mark(device: &mut NvList, how: TakeOut) {
    match how {
        TakeOut::OfflineForNow | TakeOut::FaultForNow => {}
        TakeOut::Offline => device.set("offline", NvValue::Uint64(1)),
        TakeOut::Fault => {
            device.set("faulted", NvValue::Uint64(1));
            device.set("aux_state", NvValue::String(config::BY_HAND.into()));
        }
    }
}
