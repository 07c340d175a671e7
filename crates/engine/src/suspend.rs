//! Pools whose devices do not take what a transaction group writes (`zio_suspend`, `zio_resume`).
//!
//! # Idea
//!
//! The sync thread is the only one that has to write: what a commit cannot put into a log waits for its group. So where a
//! top-level vdev takes nothing any more the sync thread is held with the writes that failed (`cenote_vdev`'s
//! `suspend`), and with it all threads that wait for its group. The pool is *suspended*:
//!
//! - Changes wait before they are assigned to a group, and can be interrupted; with `failmode=continue` they fail.
//! - Commands that look see the last group on disk. Those that would change something are refused; a change that is made
//!   already, in the group that is held, is waited for.
//! - What a change needs of others before it is made, as that intent logs end, and that threads of the background do, is
//!   not waited for: the change is refused, and what it holds is free ([`WhileHeld::Fails`](super::txg::WhileHeld)).
//! - [`Engine::resume`] opens the devices anew, and has what is held written again. What a device has lost that was written
//!   since its last flush is written again as well. So nothing is lost that was acknowledged, or is going to be.
//!   Then resilvers begin of what devices missed, scans go on, and spares step in (`SPA_ASYNC_RESILVER`).
//! - [`Engine::abandon`] gives the group up: the pool stays as the last group on disk left it, with what its intent logs have.
//!
//! With `failmode=panic` nothing is held, as a process that has the pools of others does not end for one of them: the group
//! fails, and the pool is suspended until it is imported again. The same holds for what is wrong in memory.
//!
//! What is only unreadable suspends no pool.

use super::sync_core::Core;
use super::{Engine, EngineError, MOMENT, Shared};
use cenote_dmu::write::WriteError;
use cenote_pool::Pool;
use cenote_pool::diagnosis;
use cenote_pool::events::{self, PoolFailure};
use cenote_pool::reopen::Restore;
use cenote_store::alloc::Allocator;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a command that waits for a group looks whether the pool is suspended.
const LOOK: Duration = Duration::from_millis(100);

impl Shared {
    /// No device takes a write of the group. Returns whether it is held until the devices are back.
    pub(super) fn hold(&self, why: &str) -> bool {
        let store = &self.disk.store;
        let failmode = events::failmode(store);
        tracing::error!(
            failmode,
            "the pool has encountered an uncorrectable I/O failure and has been suspended: {why}"
        );
        if failmode == "panic" {
            return false;
        }
        let refuses = failmode == "continue";
        self.tx_state.hold(why, refuses, || PoolFailure::Suspended.post(store));
        true
    }

    /// Ends what works in the background and waits for groups.
    ///
    /// # Errors
    /// The pool is suspended: some of it may still wait.
    pub(super) fn stop_background(&self) -> Result<(), WriteError> {
        self.returns.background.try_stop(&self.tx_state)?;
        self.spares.try_stop(&self.tx_state)?;
        self.scanner.background.try_stop(&self.tx_state)?;
        self.rebuilder.background.try_stop(&self.tx_state)?;
        self.mender.try_stop(&self.tx_state)?;
        self.evacuator.try_stop(&self.tx_state)?;
        self.reflower.try_stop(&self.tx_state)?;
        self.reclaimer.try_stop(&self.tx_state)?;
        self.condenser.stop();
        Ok(())
    }

    /// The pool goes on: does what could not be done meanwhile. What fails because it is suspended again is done when it
    /// goes on once more.
    pub(super) fn goes_on(self: &Arc<Self>) -> Result<(), EngineError> {
        // The group that was held may have ended a scan.
        self.tx_state.try_synced()?;
        let scans = self.scan_goes_on();
        self.call_spares();
        self.wake_evacuation();
        self.wake_reflow();
        self.wake_rebuild();
        scans
    }
}

impl Engine {
    /// Whether the pool is suspended, and may go on ([`Engine::resume`]).
    pub fn waits_for_devices(&self) -> bool {
        self.shared.tx_state.failure().is_none() && self.shared.tx_state.held().is_some()
    }

    /// Opens the devices of a suspended pool anew, and writes what is held again, for which this waits. Those that are out of use by
    /// order, or as the config says, stay so.
    ///
    /// # Errors
    /// The pool is still suspended.
    pub fn resume(&self) -> Result<(), EngineError> {
        if let Some(why) = self.shared.tx_state.failure() {
            return Err(EngineError::Suspended(why));
        }
        let alone = self.resuming.lock();
        if !self.waits_for_devices() {
            return Ok(());
        }
        self.shared.disk.mmp.check().map_err(|why| {
            self.shared.suspend(&why);
            EngineError::Suspended(why)
        })?;
        let (pool, tree) = (self.pool(), self.shared.disk.tree());
        let mut leaves: Vec<u64> = tree.leaves().iter().map(|leaf| leaf.guid()).collect();
        // The pool can do without these: [`Engine::restore`] brings them back, and no log begins there before that is noted.
        let out = pool.noted_out();
        leaves.retain(|leaf| !out.contains(leaf));
        let restored = pool.restore(&leaves, Restore::Failure);
        restored.map_err(|e| EngineError::Unsupported(e.to_string()))?;
        *self.shared.resumed_at.lock() = Some(Instant::now());
        leaves.into_iter().for_each(diagnosis::reset);
        let suspension = tree.suspension();
        tracing::warn!(
            pool = pool.name(),
            "was suspended and is being resumed: failed I/O is tried again"
        );
        let resumed = suspension.resume();
        self.shared.tx_state.resumed(|| suspension.why().is_none());
        drop(alone);
        resumed.map_err(EngineError::Suspended)?;
        if let Err(e) = self.shared.goes_on() {
            tracing::warn!(pool = pool.name(), "what was put off is not done: {e}");
        }
        Ok(())
    }

    /// Gives up what a suspended pool holds: it stays as its last group on disk left it. Nothing happens to one that is not
    /// suspended.
    pub fn abandon(&self) {
        if let Some(why) = self.shared.tx_state.held() {
            self.shared.suspend(&why);
        }
    }

    /// Holds nothing from now on, whatever devices do: the pool is about to end, and waits for none.
    pub fn hold_no_more(&self) {
        self.abandon();
        self.shared.disk.tree().suspension().abandon();
    }

    /// Calls `f` with the pool and its allocator while no transaction group is being written: what
    /// the allocator knows then is what is on disk.
    ///
    /// # Errors
    /// The group that is being written waits for devices.
    pub fn at_rest<T>(&self, f: impl FnOnce(&Pool, &Allocator) -> T) -> Result<T, EngineError> {
        let _core = self.core()?;
        Ok(f(&self.pool(), &self.shared.disk.allocator))
    }

    /// As [`Engine::at_rest`], if the group that is being written, or a command that changes the pool's devices, is done in a moment: a
    /// command that looks does without while a device hangs. `None`: it is not.
    ///
    /// # Errors
    /// The group that is being written waits for devices.
    pub fn at_rest_soon<T>(
        &self,
        f: impl FnOnce(&Pool, &Allocator) -> T,
    ) -> Result<Option<T>, EngineError> {
        let core = self.core_within(Some(MOMENT))?;
        Ok(core.map(|_core| f(&self.pool(), &self.shared.disk.allocator)))
    }

    /// What the sync thread owns, once that writes nothing.
    ///
    /// # Errors
    /// The group that is being written waits for devices.
    pub(super) fn core(&self) -> Result<MutexGuard<'_, Core>, EngineError> {
        loop {
            if let Some(core) = self.core_within(None)? {
                return Ok(core);
            }
        }
    }

    /// As [`Engine::core`], for as long as `limit` says, if it does. `None`: the sync thread was still writing.
    ///
    /// # Errors
    /// The group that is being written waits for devices.
    pub(super) fn core_within(
        &self,
        limit: Option<Duration>,
    ) -> Result<Option<MutexGuard<'_, Core>>, EngineError> {
        let begun = Instant::now();
        loop {
            if let Some(core) = self.core.try_lock_for(LOOK) {
                return Ok(Some(core));
            }
            if let Some(why) = self.shared.tx_state.held() {
                return Err(EngineError::Suspended(why));
            }
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                return Ok(None);
            }
        }
    }
}
