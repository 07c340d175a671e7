//! Freezing a pool (`spa_freeze`), for tests of intent logs.
//!
//! After the group in which a pool was frozen no uberblock and no label is written, whatever is changed. Groups go on in
//! memory, and into space that the last uberblock does not lead to: what is freed is not used again
//! ([`Allocator::freeze`](cenote_store::alloc::Allocator::freeze)). Commits go to the intent logs that lead on from the
//! last headers, which keep all their blocks. So the next import finds the pool as it was frozen, with logs of all that was
//! committed since.
//!
//! A change that has no record is lost then, and so is all of a dataset whose log had not begun.

use super::{Engine, EngineError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The last group that gets on disk (`spa_freeze_txg`).
#[derive(Clone, Debug)]
pub(crate) struct Frozen(Arc<AtomicU64>);

impl Default for Frozen {
    fn default() -> Frozen {
        Frozen(Arc::new(AtomicU64::new(u64::MAX)))
    }
}

impl Frozen {
    /// Whether group `txg` does not get on disk.
    pub fn leaves_out(&self, txg: u64) -> bool {
        txg > self.last()
    }

    /// The last group that does.
    pub fn last(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Engine {
    /// Freezes the pool, until it is imported again; see the [module](self).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn freeze(&self) -> Result<(), EngineError> {
        if self.shared.disk.frozen.last() != u64::MAX {
            return Ok(());
        }
        // What is committed from now on is found from the headers of this group.
        self.shared.datasets.begin_logs(&self.shared, true);
        self.sync_task_beside_logs(
            |context| {
                let (frozen, txg) = (&context.disk.frozen, context.tx.txg);
                if !frozen.leaves_out(txg) {
                    frozen.0.store(txg, Ordering::SeqCst);
                    context.disk.allocator.freeze(txg);
                }
                Ok(())
            },
            |()| true,
        )
    }
}
