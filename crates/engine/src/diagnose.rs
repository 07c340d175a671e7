//! What is done with devices that have had too many errors (OpenZFS's agent `zfs-retire`).
//!
//! A leaf that should be faulted, but that its vdev needs, is degraded instead. Both states last until the errors are cleared, or the pool
//! is imported again: what was found on one system need not hold on another. Spares step in for both.
//!
//! A device that is not at its path any more when the verdict is carried out has not had too many errors: it was taken away.
//!
//! Errors of a suspended pool, or before it went on, say nothing of a device that is back: what they came to is dropped, and its
//! errors are counted anew.

use super::removal::Passive;
use super::sync_core::Core;
use super::{Engine, EngineError};
use cenote_pool::diagnosis::{self, Verdict};
use cenote_pool::events;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::Instant;

impl Engine {
    /// Degrades or faults a leaf as if it had had too many errors (`ZFS_IOC_VDEV_SET_STATE`). A leaf that its vdev needs is
    /// degraded in place of faulted (`vdev_fault`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn condemn(&self, guid: u64, verdict: Verdict) -> Result<(), EngineError> {
        let _core = self.core_for(guid, verdict)?;
        self.carry_out(guid, verdict);
        Ok(())
    }

    /// From now on acts by what is found of the pool's devices, and takes in what comes to the places of those that are away
    /// (`autoreplace`). What was found when the pool was last imported counts no more.
    pub fn act_on_errors(self: &Arc<Self>) {
        let leaves = self.pool().store().vdevs().leaves();
        leaves.iter().for_each(|leaf| diagnosis::reset(leaf.guid()));
        let engine = Arc::downgrade(self);
        let act = move |guid, verdict| {
            let (engine, found) = (engine.clone(), Instant::now());
            let act = move || {
                if let Some(engine) = engine.upgrade()
                    && !engine.act(guid, verdict, found)
                {
                    diagnosis::reset(guid);
                }
            };
            // Whoever finds it has just failed a request, and may be the thread that writes groups.
            if let Err(e) = std::thread::Builder::new().name("diagnosis".into()).spawn(act) {
                tracing::warn!("a device with too many errors stays in use: {e}");
            }
        };
        events::act_by(self.pool().store(), Arc::new(act));
        self.take_in_what_comes();
    }

    /// Does with the leaf of this guid what was found then. False: it is no longer so.
    fn act(&self, guid: u64, verdict: Verdict, found: Instant) -> bool {
        // It was taken away: the probe finds that, and it is taken back when it is there again.
        let leaf = self.pool().store().vdevs().find(guid);
        let is_gone = leaf.and_then(|leaf| leaf.device()).is_some_and(|device| !device.is_there());
        if verdict == Verdict::Fault && is_gone {
            return false;
        }
        let core = self.core_for(guid, verdict);
        // The core is waited for while a group is written: meanwhile it may have gone. With the core no device is waited for.
        let leaf = self.pool().store().vdevs().find(guid);
        let has_gone = leaf.and_then(|leaf| leaf.seen()).is_some_and(|seen| !seen.there);
        if verdict == Verdict::Fault && has_gone {
            return false;
        }
        if core.is_err() || self.shared.resumed_at.lock().is_some_and(|resumed| found <= resumed) {
            return false;
        }
        self.carry_out(guid, verdict);
        true
    }

    /// The core, to carry out a verdict. A log vdev that is to take no blocks any more is empty then.
    fn core_for(
        &self,
        guid: u64,
        verdict: Verdict,
    ) -> Result<(MutexGuard<'_, Core>, Option<Arc<Passive>>), EngineError> {
        match verdict {
            Verdict::Fault => self.core_without_logs(guid),
            _ => Ok((self.core()?, None)),
        }
    }

    /// To be called with the core.
    fn carry_out(&self, guid: u64, verdict: Verdict) {
        let pool = self.pool();
        let tree = pool.store().vdevs();
        let device = tree.find(guid).and_then(|leaf| leaf.device()?.identity());
        if verdict == Verdict::Fault && tree.fault(guid) {
            pool.devices().forget(guid);
            device.into_iter().for_each(|device| self.shared.returns.has_failed(guid, device));
        } else if let Some(leaf) = tree.find(guid) {
            leaf.degrade();
        }
        drop(tree);
        self.shared.call_spares();
    }
}
