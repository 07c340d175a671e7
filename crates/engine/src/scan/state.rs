//! Changes of a scan's state, in syncing context (`dsl_scan_setup_sync`, `dsl_scan_sync_state`, `dsl_scan_done`).
//!
//! # Structures
//!
//! The state is one entry of the MOS (`ScanPhys`): what is scanned for, of which groups, since when, what was examined, repaired and not
//! readable, and the position. In memory the `Scanner` has what only its thread knows: what a resilver gives to leaves, what could not
//! be seen, the number of orders.
//!
//! # Algorithm
//!
//! Each change is a sync task. What it changes in memory, besides the MOS, it puts off until the task is kept (`when_kept`), since the
//! rest of the task may fail. Callers then do what follows once the group is on disk: events, the counters of devices, the thread.
//!
//! - A scan begins (`set_up`) with an empty position, and the error log of scans is begun anew. An error scrub is forgotten then.
//! - The thread hands over each round (`note_round`): the sums grow, and the position follows what groups have moved meanwhile.
//! - A scan ends (`scan_done`) as finished or cancelled. A complete resilver first takes the groups that leaves were given off their
//!   logs (`excise`), unless there is a checkpoint. A complete scrub that has seen all notes up to which group.
//!
//! # Invariants
//!
//! - A scan of the groups up to `max_txg` begins in that group or later.
//! - A round counts only if no order came since it began, and the scan is neither over nor paused.
//! - What follows the end of a scan is done once.

use super::position::{self, Position};
use super::{Ended, Extent, ScanError};
use crate::error::EngineError;
use crate::tunables::REBUILD_SCRUB_ENABLED;
use crate::{Shared, SyncContext};
use cenote_dsl::write::{Result, Tx};
use cenote_format::{invariant, less};
use cenote_pool::config_write::{entry, set_entry};
use cenote_pool::diagnosis;
use cenote_pool::events::Sysevent;
use cenote_pool::history;
use cenote_pool::rebuild::RebuildPhys;
use cenote_pool::scan::{LAST_SCRUBBED, Pass, ScanPhys};
use cenote_store::{Rotation, ScrubStage};
use cenote_vdev::VdevState;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

const SCRUB: u64 = 1;
const RESILVER: u64 = 2;
const SCANNING: u64 = 1;
const FINISHED: u64 = 2;
const CANCELED: u64 = 3;

/// What came of an order: it was carried out or refused, unless the pool cannot be changed.
pub(super) type Changed<T> = std::result::Result<std::result::Result<T, ScanError>, EngineError>;

impl SyncContext<'_> {
    pub(crate) fn scan_state(&mut self) -> Result<ScanPhys> {
        Ok(position::read(self.tx.mos)?.unwrap_or_default())
    }

    pub(super) fn scan_history(&mut self, what: &str, message: &str) -> Result<()> {
        let record = history::internal(what, message, None, self.tx.txg, self.tx.now);
        let append = |tx: &mut Tx<'_>| Ok(history::append(tx.mos, &record)?);
        self.tx.unless_unreadable("the pool's history is not written", append)?;
        Ok(())
    }

    /// Of so many blocks there are several copies that may be right. A scrub with the keys tells.
    pub(super) fn note_disputes(&mut self, blocks: usize) -> Result<()> {
        match blocks {
            0 => Ok(()),
            _ => self.scan_history("scan without keys", &format!("disputed={blocks}")),
        }
    }

    /// A scan begins (`dsl_scan_setup_sync`).
    pub(crate) fn set_up(&mut self, func: u64, (min_txg, max_txg): (u64, u64)) -> Result<()> {
        let txg = self.tx.txg;
        invariant!(
            max_txg <= txg && (func != RESILVER || min_txg <= max_txg),
            "scan {func} of the groups after {min_txg} up to {max_txg} begins in group {txg}"
        );
        let mut before = self.scan_state()?;
        position::drop_queue(self.tx.mos, &mut before)?;
        let allocated = self.disk.allocator.groups().map(|group| group.allocated());
        let phys = ScanPhys {
            func,
            state: SCANNING,
            min_txg,
            max_txg,
            start: self.tx.now,
            to_examine: allocated.sum(),
            ..ScanPhys::default()
        };
        self.forget_error_scrub()?;
        match phys.is_resilver() {
            true => self.forget_rebuilds()?,
            false => self.bound_rebuilds()?,
        }
        let format = self.tx.zap_format()?;
        Position::Mos(None).store(self.tx.mos, phys, format)?;
        let message = format!("func={func} mintxg={min_txg} maxtxg={max_txg}");
        self.scan_history("scan setup", &message)?;
        self.rotate_errors(ScrubStage::Begins);
        Ok(())
    }

    /// A scrub that is under way, or one of errors, ends for a rebuild that begins: what is told of that.
    pub(crate) fn abort_scrub(&mut self, shared: &Arc<Shared>) -> Result<Option<&'static str>> {
        let phys = self.scan_state()?;
        let told = if phys.is_running() && phys.is_scrub() {
            // It was not given up by order: what it was to prove of earlier rebuilds is owed still (`RebuildPhys::is_owed`).
            self.scan_done(ScanPhys { max_txg: 0, ..phys }, false, false)?;
            "scrub_abort"
        } else if self.cancel_error_scrub()? {
            "errorscrub_abort"
        } else {
            return Ok(None);
        };
        let shared = shared.clone();
        self.when_kept(move || shared.scanner.ordered());
        Ok(Some(told))
    }

    /// A scrub of all begins, unless another scan or a rebuild is under way. Whether it did. [`Shared::scrub_has_begun`] is called then.
    pub(crate) fn scrub_if_idle(&mut self, shared: &Arc<Shared>) -> Result<bool> {
        let scans = self.scan_state()?.is_running() || self.error_scrub()?.is_running();
        if scans || self.is_rebuilding()? {
            return Ok(false);
        }
        self.begin_scrub(shared, (0, self.tx.txg))?;
        Ok(true)
    }

    /// A scrub of these groups begins.
    fn begin_scrub(&mut self, shared: &Arc<Shared>, range: (u64, u64)) -> Result<()> {
        self.set_up(SCRUB, range)?;
        let shared = shared.clone();
        self.when_kept(move || {
            shared.scanner.given.lock().forget_walk();
            shared.scanner.active.store(true, SeqCst);
            shared.scanner.ordered();
        });
        Ok(())
    }

    pub(super) fn rotate_errors(&mut self, stage: ScrubStage) {
        let store = self.disk.store.clone();
        self.when_kept(move || store.rotate_errors(stage));
    }

    /// Begins a resilver of what leaves lack; `None`: they lack nothing. Whether a scrub ends for it.
    pub(super) fn begin_resilver(&mut self, shared: &Arc<Shared>) -> Result<Option<bool>> {
        // What leaves lack then is given to them when that is over.
        if self.is_rebuilding()? {
            return Ok(None);
        }
        let Some((given, range)) = shared.to_give(self.tx.txg) else { return Ok(None) };
        let phys = self.scan_state()?;
        let deferred = self.end_deferring()?;
        if phys.is_running() {
            self.scan_done(phys, false, false)?;
        }
        self.tell_deferred(deferred, phys.errors)?;
        self.set_up(RESILVER, range)?;
        let shared = shared.clone();
        // If this one does not begin after all, that which goes on gives what it gave.
        self.when_kept(move || {
            *shared.scanner.given.lock() = given;
            shared.scanner.active.store(true, SeqCst);
            shared.scanner.ordered();
        });
        Ok(Some(phys.is_running() && phys.is_scrub()))
    }

    /// Leaves that were deferred have another resilver begin.
    fn tell_deferred(&mut self, deferred: bool, errors: u64) -> Result<()> {
        match deferred {
            true => self.scan_history("starting deferred resilver", &format!("errors={errors}")),
            false => Ok(()),
        }
    }

    /// A scan ends (`dsl_scan_done`), which has seen all if it is `complete` and nothing is `unseen`.
    fn scan_done(&mut self, mut phys: ScanPhys, complete: bool, unseen: bool) -> Result<()> {
        position::drop_queue(self.tx.mos, &mut phys)?;
        (phys.state, phys.end) = (if complete { FINISHED } else { CANCELED }, self.tx.now);
        position::write(self.tx.mos, &phys.pausing(false))?;
        let last = entry(self.tx.mos, LAST_SCRUBBED)?.unwrap_or(0);
        // One of a part that begins later says nothing of what lies between.
        let is_seen = complete && phys.is_scrub() && !unseen;
        if is_seen && phys.min_txg <= last.max(1) && phys.max_txg > last {
            set_entry(self.tx.mos, LAST_SCRUBBED, phys.max_txg)?;
        }
        let what = if complete { "scan done" } else { "scan cancelled" };
        self.scan_history(what, &format!("errors={}", phys.errors))?;
        // A resilver looks only at what leaves lack, whatever the group is that it goes back to.
        let is_all = is_seen && phys.min_txg == 0;
        let rotation = if is_all { Rotation::Replaces } else { Rotation::Joins };
        self.rotate_errors(ScrubStage::Ends(rotation));
        Ok(())
    }
}

impl SyncContext<'_> {
    /// Has a scrub that is under way begin again: software that knew nothing of it may have destroyed what it was at
    /// (`dsl_scan_init`).
    pub(crate) fn restart_scrub(&mut self) -> Result<()> {
        let phys = self.scan_state()?;
        match phys.is_running() && phys.is_scrub() {
            true => self.set_up(SCRUB, (phys.min_txg, self.tx.txg)),
            false => Ok(()),
        }
    }
}

impl Shared {
    pub(super) fn scan_task<T: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&Arc<Shared>, &mut SyncContext<'_>) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, EngineError> {
        let shared = self.clone();
        self.queue.run(&self.tx_state, move |context| change(&shared, context), |_| true)
    }

    pub(super) fn scan_event(&self, name: &str) {
        Sysevent::of_pool(name).post(&self.disk.store);
    }

    /// What is known of a scan that begins, or goes on, now.
    fn begin_pass(&self) {
        let start = self.disk.outside.clock.seconds();
        self.view().note_scan(|pass| *pass = Some(Pass { start, ..Pass::default() }));
    }

    pub(crate) fn begin_scrub(self: &Arc<Self>, extent: Extent) -> Changed<()> {
        let begun = self.scan_task(move |shared, context| {
            let phys = context.scan_state()?;
            let refused = match phys {
                phys if !phys.is_running() && context.error_scrub()?.is_running() => {
                    Some(ScanError::ErrorScrubbing)
                }
                phys if phys.is_paused() => {
                    position::write(context.tx.mos, &phys.pausing(false))?;
                    shared.scanner.ordered();
                    return Ok(Ok(true));
                }
                phys if !phys.is_running() => {
                    context.is_rebuilding()?.then_some(ScanError::Resilvering)
                }
                phys if phys.is_resilver() => Some(ScanError::Resilvering),
                _ => Some(ScanError::Scrubbing),
            };
            if let Some(why) = refused {
                return Ok(Err(why));
            }
            let txg = context.tx.txg;
            let (from, to) = match extent {
                Extent::All => (0, txg),
                Extent::SinceLast => (entry(context.tx.mos, LAST_SCRUBBED)?.unwrap_or(0), txg),
                // One that ends earlier is no scrub of all: no block was born in group 1.
                // What the pool's disks say of times may lie ahead.
                Extent::Groups(from, Some(to)) => (from.max(1), to.min(txg)),
                Extent::Groups(from, None) => (from, txg),
            };
            context.begin_scrub(shared, (from, to))?;
            Ok(Ok(false))
        })?;
        self.scanner.ordered();
        Ok(begun.map(|resumed| {
            if resumed {
                let now = self.disk.outside.clock.seconds();
                self.view().note_scan(|pass| {
                    if let Some(pass) = pass {
                        let since = now.saturating_sub(std::mem::take(&mut pass.paused));
                        pass.spent_paused = pass.spent_paused.saturating_add(since);
                    }
                });
                return self.scan_event("scrub_resume");
            }
            self.scrub_begins();
        }))
    }

    /// What follows the beginning of a scrub that is on disk.
    fn scrub_begins(&self) {
        self.disk.tree().root().begin_scan();
        self.begin_pass();
        self.scan_event("scrub_start");
    }

    /// A group has begun a scrub ([`SyncContext::scrub_if_idle`]).
    pub(crate) fn scrub_has_begun(self: &Arc<Self>) {
        self.scanner.ordered();
        self.scrub_begins();
        self.wake_scan();
    }

    /// A scrub ended for something else ([`SyncContext::abort_scrub`]).
    pub(crate) fn scrub_has_ended(&self, told: &'static str) {
        self.scanner.ordered();
        self.view().note_scan(|pass| *pass = None);
        self.scan_event(told);
    }

    /// Begins the scrub that is to prove what rebuilds copied, if that is owed still and nothing comes before it. Whether it did.
    pub(super) fn begin_owed_scrub(
        self: &Arc<Self>,
        view: &cenote_pool::Pool,
    ) -> std::result::Result<bool, EngineError> {
        let scan = ScanPhys::load(view.directory())?.unwrap_or_default();
        let last = view.directory().u64(LAST_SCRUBBED)?.unwrap_or(0);
        let owed = REBUILD_SCRUB_ENABLED.is_on()
            && RebuildPhys::all(view).iter().any(|(_, phys)| phys.is_owed(&scan, last));
        // No group is written in vain. A leaf that goes on lacking something, as no resilver can give it that, holds nothing up.
        if !owed || self.is_resilver_due() || self.is_rebuilding() {
            return Ok(false);
        }
        let begun = self.scan_task(|shared, context| {
            Ok(context.owes_scrub()? && context.scrub_if_idle(shared)?)
        })?;
        if begun {
            self.scanner.ordered();
            self.scrub_begins();
        }
        Ok(begun)
    }

    pub(super) fn pause_scrub(self: &Arc<Self>) -> Changed<()> {
        let paused = self.scan_task(|shared, context| {
            let phys = context.scan_state()?;
            let refused = match phys {
                phys if !phys.is_running() => {
                    return context.pause_error_scrub(shared);
                }
                phys if phys.is_resilver() => ScanError::Resilvering,
                phys if phys.is_paused() => ScanError::Paused,
                phys => {
                    position::write(context.tx.mos, &phys.pausing(true))?;
                    shared.scanner.ordered();
                    return Ok(Ok(false));
                }
            };
            Ok(Err(refused))
        })?;
        self.scanner.ordered();
        Ok(paused.map(|of_errors| {
            if of_errors {
                return self.scan_event("errorscrub_paused");
            }
            let now = self.disk.outside.clock.seconds();
            self.view().note_scan(|pass| pass.iter_mut().for_each(|pass| pass.paused = now));
            self.scan_event("scrub_paused");
        }))
    }

    pub(super) fn stop_scrub(self: &Arc<Self>) -> Changed<()> {
        let stopped = self.scan_task(|shared, context| {
            let phys = context.scan_state()?;
            if !phys.is_running() {
                return context.stop_error_scrub(shared);
            }
            if phys.is_resilver() {
                return Ok(Err(ScanError::Resilvering));
            }
            context.scan_done(phys, false, false)?;
            shared.scanner.ordered();
            Ok(Ok(false))
        })?;
        self.scanner.ordered();
        Ok(stopped.map(|of_errors| {
            if of_errors {
                return self.scan_event("errorscrub_abort");
            }
            self.view().note_scan(|pass| *pass = None);
            self.scan_event("scrub_abort");
        }))
    }

    pub(super) fn begin_resilver(self: &Arc<Self>) -> std::result::Result<bool, EngineError> {
        let begun = self.scan_task(|shared, context| context.begin_resilver(shared))?;
        self.scanner.ordered();
        let Some(aborted) = begun else { return Ok(false) };
        if aborted {
            self.scan_event("scrub_abort");
        }
        self.disk.tree().root().begin_scan();
        self.begin_pass();
        self.scan_event("resilver_start");
        Ok(true)
    }

    /// Notes what a round came to. False: the scan is another one by now.
    pub(super) fn note_round(
        self: &Arc<Self>,
        ended: Ended,
        from: ScanPhys,
    ) -> std::result::Result<bool, EngineError> {
        let all = ended.all;
        if all {
            // Set before the scan is over: a program that waits for resilvers waits for the next one as well.
            self.scanner.due.store(true, SeqCst);
            *self.scanner.ending.lock() = Some(from);
        }
        let astray = self.scanner.astray.load(SeqCst);
        let noted = self.scan_task(move |shared, context| context.note_round(shared, ended));
        if noted.is_err() && astray {
            // The position that was not put right is still on disk.
            self.scanner.astray.store(true, SeqCst);
        }
        if !noted? {
            *self.scanner.ending.lock() = None;
            return Ok(false);
        }
        self.view().note_scan(|pass| pass.iter_mut().for_each(|pass| pass.ahead = [0; 4]));
        if all {
            self.end_scan();
        }
        Ok(true)
    }

    /// As [`Shared::end_scan`], if the scan that the last group has is the one whose end was handed to the sync thread, and has ended so:
    /// its group may have failed, and it was stopped then, which has told so.
    pub(super) fn end_scan_if_over(self: &Arc<Self>, now: Option<&ScanPhys>) {
        let is_it = |from: &ScanPhys| {
            now.is_some_and(|now| {
                now.is_finished() && (now.func, now.start) == (from.func, from.start)
            })
        };
        self.scanner.ending.lock().take_if(|from| !is_it(from));
        self.end_scan();
    }

    /// Does what follows the end of a scan that is on disk, once.
    pub(super) fn end_scan(self: &Arc<Self>) {
        let Some(from) = self.scanner.ending.lock().take() else { return };
        self.scanner.active.store(false, SeqCst);
        self.view().note_scan(|pass| *pass = None);
        self.scan_event(if from.is_scrub() { "scrub_finish" } else { "resilver_finish" });
        if from.is_resilver() {
            self.let_go_of_replaced();
            // One that was needed has only been degraded for its errors. It may be faulted for further ones by now.
            let mut leaves = self.disk.tree().leaves();
            leaves.retain(|leaf| leaf.state() == VdevState::Degraded);
            leaves.iter().for_each(|leaf| diagnosis::reset(leaf.guid()));
        }
    }

    /// Takes out what was replaced ([`Shared::resilver_done`]); what fails is tried again after the next resilver.
    pub(crate) fn let_go_of_replaced(self: &Arc<Self>) {
        if let Err(error) = self.resilver_done() {
            tracing::warn!(%error, "what was replaced stays");
        }
    }
}

impl SyncContext<'_> {
    fn note_round(&mut self, shared: &Shared, ended: Ended) -> Result<bool> {
        let now = self.scan_state()?;
        let Ended { group, mut position, totals: (examined, skipped), done, hides, all, orders } =
            ended;
        if shared.scanner.orders.load(SeqCst) != orders || !now.is_running() || now.is_paused() {
            return Ok(false);
        }
        {
            let mut given = shared.scanner.given.lock();
            if now.is_resilver() {
                given.left.extend(done.left);
            }
            given.unseen |= hides;
        }
        let phys = ScanPhys {
            examined: now.examined.saturating_add(examined),
            skipped: now.skipped.saturating_add(skipped),
            processed: now.processed.saturating_add(done.repaired),
            errors: now.errors.saturating_add(done.errors),
            ..now
        };
        shared.scanner.astray.store(false, SeqCst);
        self.note_disputes(done.disputed.len())?;
        if all {
            // What only the checkpoint refers to was not walked, and leaves may lack it still (`dsl_scan_done`).
            if phys.is_resilver() && !self.has_checkpoint()? {
                self.excise(shared)?;
            }
            let given = shared.scanner.given.lock();
            let (unseen, counted) = (given.unseen, given.counted && phys.is_resilver());
            drop(given);
            // It was noted as an error of the state, to which others may have been added only.
            let counted = u64::from(counted);
            let errors =
                less!(phys.errors, counted, "errors of a scan, without the mark of a leaf");
            let deferred = self.end_deferring()? && shared.needs_another();
            self.scan_done(ScanPhys { errors, ..phys }.with_unseen(unseen), true, unseen)?;
            self.tell_deferred(deferred, errors)?;
            return Ok(true);
        }
        // What this group moves is followed by what is on disk.
        position.follow(&shared.scanner.moves_since(group));
        let format = self.tx.zap_format()?;
        position.store(self.tx.mos, phys, format)?;
        Ok(true)
    }
}
