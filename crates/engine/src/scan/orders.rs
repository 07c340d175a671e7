//! What commands ask of scrubs and resilvers (`dsl_scan`, `spa_scan`), and what an import does for them.

use super::{Extent, PATIENCE, ScanError};
use crate::Engine;
use crate::error::EngineError;
use cenote_format::invariant::caught;
use cenote_pool::reopen::Restore;
use cenote_pool::scan::{ErrorScrubPhys, Pass, ScanPhys};
use cenote_pool::txg_times::TxgTimes;
use cenote_store::ScrubStage;
use std::sync::atomic::Ordering::SeqCst;

impl Engine {
    /// Begins a scrub, or goes on with one that is paused (`spa_scan`, `zfs_ioc_pool_scrub`).
    ///
    /// # Errors
    /// A scrub or resilver is under way; the pool is suspended.
    pub fn scrub(&self) -> Result<(), ScanError> {
        self.scrub_of(Extent::All)
    }

    /// The same, of blocks that were born since the last scrub that was complete began (`zpool scrub -C`).
    ///
    /// # Errors
    /// As for [`Engine::scrub`].
    pub fn scrub_since_last(&self) -> Result<(), ScanError> {
        self.scrub_of(Extent::SinceLast)
    }

    /// The same, of blocks that were written between two times, in seconds since 1970, as far as it was noted when groups
    /// were: rather more than less. `None` is the pool's beginning, and now (`zpool scrub -S -E`).
    ///
    /// # Errors
    /// As for [`Engine::scrub`].
    pub fn scrub_between(&self, from: Option<u64>, to: Option<u64>) -> Result<(), ScanError> {
        let times = TxgTimes::load(self.pool().directory()).map_err(EngineError::from)?;
        let (from, to) =
            (from.map(|at| times.group_before(at)), to.map(|at| times.group_after(at)));
        let extent = Extent::Groups(from.unwrap_or(0), to.filter(|to| *to != 0));
        self.scrub_of(extent)
    }

    /// Before a scrub begins: a device in use that has lost its labels goes out of use, as far as its vdev can do without it
    /// (`vdev_reopen` in `dsl_scan`). What does not answer is left alone.
    fn look_at_devices(&self) -> Result<(), EngineError> {
        let scan = self.pool().status().ok().and_then(|status| status.scan);
        if scan.is_some_and(|scan| scan.is_running()) {
            // None begins: it is refused, or goes on.
            return Ok(());
        }
        let doubtful = self.shared.disk.tree().doubtful(PATIENCE);
        match doubtful.is_empty() || self.shared.tx_state.held().is_some() {
            true => Ok(()),
            false => self.restore(&doubtful, Restore::Nothing),
        }
    }

    fn scrub_of(&self, extent: Extent) -> Result<(), ScanError> {
        self.look_at_devices()?;
        let begun = self.shared.begin_scrub(extent);
        self.shared.wake_scan();
        begun?
    }

    /// Begins a scrub of the blocks that the error log has, or goes on with one that is paused (`zpool scrub -e`). Nothing is done
    /// where the log is empty.
    ///
    /// # Errors
    /// A scrub or resilver is under way; the log does not tell when blocks were born; the pool is suspended.
    pub fn scrub_errors(&self) -> Result<(), ScanError> {
        self.look_at_devices()?;
        let begun = self.shared.begin_error_scrub();
        self.shared.wake_scan();
        begun?
    }

    /// Pauses a scrub (`spa_scrub_pause_resume`).
    ///
    /// # Errors
    /// No scrub is under way, or it is paused; the pool is suspended.
    pub fn pause_scrub(&self) -> Result<(), ScanError> {
        self.shared.pause_scrub()?
    }

    /// Gives up a scrub (`spa_scan_stop`, `dsl_scan_cancel`).
    ///
    /// # Errors
    /// No scrub is under way, or a resilver is; the pool is suspended.
    pub fn stop_scrub(&self) -> Result<(), ScanError> {
        self.shared.stop_scrub()?
    }

    /// Begins a resilver from the start, in place of any scan under way, if a leaf that takes writes lacks something.
    /// Returns whether one does (`dsl_scan_restart_resilver`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn start_resilver(&self) -> Result<bool, EngineError> {
        let begun = self.shared.begin_resilver();
        self.shared.wake_scan();
        begun
    }

    /// Begins a resilver if a leaf that takes writes lacks something that none under way gives to it
    /// (`dsl_scan_assess_vdev`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn assess_resilver(&self) -> Result<(), EngineError> {
        self.shared.assess_resilver()
    }

    /// Whether a resilver is under way, or about to begin now that another one is over.
    pub fn awaits_resilver(&self) -> bool {
        let running = || {
            let phys = ScanPhys::load(self.pool().directory());
            // One that cannot be read may be under way.
            phys.map_or(true, |phys| phys.is_some_and(|p| p.is_running() && p.is_resilver()))
        };
        if self.shared.is_rebuild_awaited() || self.shared.returns.is_busy() {
            return true;
        }
        // One that is due when the first has ended may have begun by then.
        running() || self.shared.scanner.due.load(SeqCst) || running()
    }

    /// Whether a scan is under way that is not paused.
    pub fn is_scanning(&self) -> bool {
        let pool = self.pool();
        let phys = ScanPhys::load(pool.directory());
        let errors = ErrorScrubPhys::load(pool.directory());
        phys.map_or(true, |phys| phys.is_some_and(|p| p.is_running() && !p.is_paused()))
            || errors.map_or(true, |phys| phys.is_some_and(|p| p.is_running() && !p.is_paused()))
    }

    /// Why the last round of the scan that is under way failed, if it did: it is made again.
    pub fn scan_waits(&self) -> Option<String> {
        self.shared.scanner.waits.lock().clone()
    }

    /// From now on groups put the state of a scrub right that was under way when the pool was last in use. One that cannot be read
    /// is said by [`Engine::resume_scan`].
    pub(crate) fn keep_scrub_right(&self) {
        let phys = ScanPhys::load(self.pool().directory()).ok().flatten();
        if phys.is_some_and(|phys| phys.is_running() && !phys.is_resilver()) {
            self.shared.scanner.active.store(true, SeqCst);
        }
    }

    /// Has what was under way when the pool was last in use go on once the thread is woken ([`wake_scan`](crate::Shared::wake_scan)), and a resilver
    /// begin if leaves lack something.
    pub(crate) fn resume_scan(&self) {
        let go_on = || -> Result<(), EngineError> {
            self.shared.let_go_of_replaced();
            let pool = self.pool();
            let phys = ScanPhys::load(pool.directory())?.filter(ScanPhys::is_running);
            if let Some(phys) = phys {
                pool.store().rotate_errors(ScrubStage::Begins);
                // One of them may stand for a part that could not be walked.
                self.shared.scanner.given.lock().unseen |= phys.errors > 0;
                let start = self.shared.disk.outside.clock.seconds();
                let paused = if phys.is_paused() { start } else { 0 };
                pool.note_scan(|pass| *pass = Some(Pass { start, paused, ..Pass::default() }));
                self.shared.scanner.active.store(true, SeqCst);
            }
            let errors = ErrorScrubPhys::load(pool.directory())?;
            if errors.is_some_and(|errors| errors.is_running()) {
                pool.store().rotate_errors(ScrubStage::Begins);
            }
            let due = phys.is_some_and(|phys| phys.is_resilver()) || self.shared.needs_resilver();
            if due && !self.shared.is_rebuilding() {
                self.shared.begin_resilver()?;
            }
            Ok(())
        };
        if let Err(e) = caught(go_on).unwrap_or_else(|why| Err(EngineError::Suspended(why))) {
            tracing::warn!("no resilver begins: {e}");
            self.shared.scanner.due.store(true, SeqCst);
        }
    }
}
