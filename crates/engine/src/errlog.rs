//! The pool's error logs in syncing context (`spa_errlog_sync`): what could not be read since the last group goes into
//! them.
//!
//! `cenote_store` lists what cannot be read; each transaction group writes what is new, after its sync tasks: the log of a
//! scan that ends in a group becomes the last one by that group. A new error has a group written when its
//! time comes.

use super::sync_core::Core;
use super::{Shared, space};
use cenote_dsl::write::{Result, Tx, errlog};
use cenote_format::blkptr::BlockPointer;
use cenote_store::TakenErrors;
use std::sync::Arc;

impl Core {
    /// Writes what is new into the error logs. It is forgotten by `Store::errors_written` once the group is on disk.
    pub(super) fn log_errors(&mut self, shared: &Shared, txg: u64) -> Result<Option<TakenErrors>> {
        let Some(errors) = shared.disk.store.take_errors() else { return Ok(None) };
        let sizes = |bp: &BlockPointer| space::sizes(&shared.disk.tree(), bp);
        let mut tx = Tx::new(&mut self.mos, txg, &shared.disk.outside, &sizes);
        let log = |tx: &mut Tx<'_>| errlog::sync(tx, &errors);
        if tx.unless_unreadable("the error logs are begun anew", log)?.is_none() {
            let anew = |tx: &mut Tx<'_>| {
                errlog::begin_anew(tx)?;
                errlog::sync(tx, &errors)
            };
            // What is in no log stays in memory.
            let what = "what could not be read is not in the error log";
            if tx.unless_unreadable(what, anew)?.is_some() {
                shared.disk.store.log_errors_again();
            }
        }
        Ok(Some(errors))
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
