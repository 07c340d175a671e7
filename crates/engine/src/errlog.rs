//! The pool's error logs in syncing context (`spa_errlog_sync`): what could not be read since the last group goes into
//! them.
//!
//! `cenote_store` lists what cannot be read; each transaction group writes what is new, after its sync tasks, so that a
//! scrub that ends in a group finds its log become the last one by that group. A new error has a group written when its
//! time comes.

use super::sync::Core;
use super::{Engine, EngineError, Shared, space};
use cenote_dsl::write::{Result, Tx, errlog};
use cenote_format::blkptr::BlockPointer;
use cenote_store::{ScrubStage, Store, TakenErrors};
use std::sync::Arc;

/// A scrub begins or goes on after an import: what is found from now on is in the log of the scrub. Or it ends, complete
/// or not: its log becomes the last one, and what was in that is forgotten (`spa_scrub_active`, `spa_errlog_rotate`).
/// The group that is being written does it, if its error logs were not written yet; else the next one.
pub fn rotate(store: &Store, stage: ScrubStage) {
    store.rotate_errors(stage);
}

impl Core {
    /// Writes what is new into the error logs. It is forgotten by `Store::errors_written` once the group is on disk.
    pub(super) fn log_errors(&mut self, shared: &Shared, txg: u64) -> Result<Option<TakenErrors>> {
        let Some(errors) = shared.disk.store.take_errors() else { return Ok(None) };
        let sizes = |bp: &BlockPointer| space::sizes(&shared.disk.tree(), bp);
        let mut tx = Tx::new(&mut self.mos, txg, &shared.disk.outside, &sizes);
        let log = |tx: &mut Tx<'_>| errlog::sync(tx, &errors);
        let logged = tx.unless_unreadable("what could not be read is not in the error log", log)?;
        Ok(logged.map(|()| errors))
    }
}

impl Shared {
    /// Has errors that are new wait for a group.
    pub(super) fn listen_for_errors(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        self.disk.store.listen_for_errors(move || {
            if let Some(shared) = shared.upgrade() {
                shared.tx_state.note();
            }
        });
    }
}

impl Engine {
    /// Forgets all data errors, and empties the error logs.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn clear_errors(&self) -> std::result::Result<(), EngineError> {
        self.shared.disk.store.clear_errors();
        self.sync()
    }
}
