//! What is done with devices that have had too many errors (OpenZFS's agent `zfs-retire`).
//!
//! A leaf that is to be faulted and that its vdev needs is degraded instead. Both last until the errors are cleared, or the pool
//! is imported again: what was found on one system need not hold on another. Spares step in for those that
//! are faulted.

use super::Engine;
use cenote_pool::diagnosis::Verdict;
use cenote_pool::events;
use std::sync::Arc;

impl Engine {
    /// From now on acts by what is found of the pool's devices.
    pub fn act_on_errors(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        let act = move |guid, verdict| {
            let engine = engine.clone();
            let act = move || {
                if let Some(engine) = engine.upgrade() {
                    engine.act(guid, verdict);
                }
            };
            // Whoever finds it has just failed a request, and may be the thread that writes groups.
            if let Err(e) = std::thread::Builder::new().name("diagnosis".into()).spawn(act) {
                tracing::warn!("a device with too many errors stays in use: {e}");
            }
        };
        events::act_by(self.pool().store(), Arc::new(act));
    }

    /// Does with the leaf of this guid what was found.
    fn act(&self, guid: u64, verdict: Verdict) {
        if verdict == Verdict::Fault {
            let Ok(_core) = self.core() else { return };
            let pool = self.pool();
            if pool.store().vdevs().fault(guid) {
                pool.devices().forget(guid);
                self.shared.call_spares();
                return;
            }
        }
        if let Some(leaf) = self.pool().store().vdevs().find(guid) {
            leaf.degrade();
        }
    }
}
