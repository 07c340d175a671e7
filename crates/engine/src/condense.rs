//! Condensing livelists in the background (`spa_livelist_condense_zthr`).
//!
//! The sync thread finds sub-lists that can become one ([`cenote_dsl::write::livelist`]). A thread reads
//! them from the group on disk and leaves what came of it to a sync task, which looks whether they are still
//! the ones that were read. There is one such thread at a time, and only while there is something to condense.
//! Nothing waits for it but an export, which tells it to stop.

use super::Shared;
use crate::sync_core::Core;
use cenote_dsl::tunables::{
    LIVELIST_CONDENSE_SYNC_PAUSE, LIVELIST_CONDENSE_ZTHR_CANCEL, LIVELIST_CONDENSE_ZTHR_PAUSE,
};
use cenote_dsl::write::livelist::{Condensed, Pair, condense};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of the thread.
const NAME: &str = "livelist-condense";
/// How often a paused thread looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(50);

/// What condenses livelists.
#[derive(Default)]
pub(crate) struct Condenser {
    thread: Mutex<Option<JoinHandle<Option<()>>>>,
    stopped: AtomicBool,
    /// Rings when it is stopped.
    stop: (Mutex<()>, Condvar),
    /// A pair that could not be read is left alone.
    failed: Mutex<Option<Pair>>,
}

impl Core {
    /// Has livelists condensed, if there is something to condense and nothing is being condensed.
    pub(super) fn condense_livelists(&mut self, shared: &Arc<Shared>) {
        let condenser = &shared.condenser;
        let mut thread = condenser.thread.lock();
        if condenser.is_stopped() || thread.as_ref().is_some_and(|t| !t.is_finished()) {
            return;
        }
        let Some(pair) = self.deadlists.take_condensable() else { return };
        if *condenser.failed.lock() == Some(pair) {
            return;
        }
        if shared.options.deterministic {
            return run(shared, pair);
        }
        let theirs = shared.clone();
        let spawned = std::thread::Builder::new()
            .name(NAME.into())
            .spawn(move || theirs.disk.store.alarm().guard(NAME, || run(&theirs, pair)));
        // Without a thread it is found again in a later group.
        *thread = spawned.inspect_err(|e| tracing::warn!("livelists stay as they are: {e}")).ok();
    }
}

impl Condenser {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Threads may begin again.
    pub fn allow(&self) {
        self.stopped.store(false, Ordering::Release);
    }

    /// Ends the thread, and lets no other begin.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        {
            let _waiting = self.stop.0.lock();
            self.stop.1.notify_all();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Waits while a tunable says so.
    fn pause(&self, while_set: impl Fn() -> bool) {
        let mut waiting = self.stop.0.lock();
        while while_set() && !self.is_stopped() {
            self.stop.1.wait_for(&mut waiting, PAUSE);
        }
    }
}

/// Reads a pair, and leaves the rest to a sync task.
fn run(shared: &Arc<Shared>, pair: Pair) {
    let condenser = &shared.condenser;
    condenser.pause(|| LIVELIST_CONDENSE_ZTHR_PAUSE.is_on());
    let Some(condensed) = read(shared, pair) else { return };
    condenser.pause(|| LIVELIST_CONDENSE_SYNC_PAUSE.is_on());
    if condenser.is_stopped() {
        return LIVELIST_CONDENSE_ZTHR_CANCEL.happened();
    }
    let apply = move |context: &mut crate::SyncContext<'_>| {
        let done = condense::apply(&mut context.tx, condensed)?;
        tracing::debug!(txg = context.tx.txg, done, "condensed a livelist");
        Ok(())
    };
    // A suspended pool takes no changes.
    let _ = shared.queue.later(&shared.tx_state, apply);
}

fn read(shared: &Shared, pair: Pair) -> Option<Condensed> {
    let condenser = &shared.condenser;
    let reading = shared.disk.allocator.readers().begin();
    let view = shared.view();
    match condense::read(view.mos(), pair, &|| condenser.is_stopped()) {
        // Space that was needed may have been written to meanwhile.
        Ok(Some(_)) if !reading.is_safe() => None,
        Ok(Some(condensed)) => Some(condensed),
        Ok(None) => {
            LIVELIST_CONDENSE_ZTHR_CANCEL.happened();
            None
        }
        Err(e) => {
            // It may also have been destroyed.
            tracing::debug!("a livelist stays as it is: {e}");
            *condenser.failed.lock() = Some(pair);
            None
        }
    }
}
