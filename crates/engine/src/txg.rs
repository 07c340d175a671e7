//! The transaction groups of a pool (`tx_state_t`): how a change is assigned to the open one
//! (`dmu_tx_assign`, `txg_hold_open`), how fast (`dmu_tx_delay`, `dsl_pool_need_dirty_delay`), and how groups are
//! quiesced (`txg_quiesce`).
//!
//! ```text
//!   open ────────────────> quiescing ────────────> syncing ─────────> synced
//!   changes are assigned   changes that hold it    the sync thread
//!   to it                  end, no other starts    writes it
//! ```
//!
//! One transaction group is *open*. A change holds it ([`TxgHandle`]) while it is made. The sync thread
//! quiesces it: changes that hold the group end, and changes that begin wait. Every open dataset then hands
//! its changes over, and the next group is open while this one is written.
//!
//! The [throttle](super::throttle) decides how fast changes are assigned, and when a group is quiesced for
//! what it has.
//!
//! Invariants: the number of the open group only grows, and groups are on disk one after the other; a group is written
//! only when no change holds it, and is not written at all once the pool has failed;
//! a change that waits here has no other lock. No group is written before [`TxState::begin`]: the first one of an import
//! claims intent logs, before anything is allocated.

#[cfg(test)]
mod planted;
#[cfg(test)]
mod tests;

use super::throttle::{LEAST, Throttle};
use crate::{kstat, tunables};
use cenote_dmu::live::Hold;
use cenote_dmu::outside::Timer;
use cenote_dmu::write::WriteError;
use cenote_format::blkptr::BLKPTR_SIZE;
use cenote_format::invariant;
use cenote_vdev::waiting;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Why no change is assigned in a pool that is not in use any more.
pub(super) const EXPORTED: &str = "the pool is exported";
/// While changes wait for their time, it is looked at again after this long: it may have become shorter.
const LOOK: Duration = Duration::from_millis(500);

/// A moment at which a group is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedAt {
    pub at: Instant,
    pub time: SystemTime,
    pub uptime: Duration,
}

impl OpenedAt {
    /// Now.
    pub fn now() -> OpenedAt {
        let uptime = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
        OpenedAt { at: Instant::now(), time: SystemTime::now(), uptime }
    }
}

/// What is known of the groups.
#[derive(Debug)]
struct State {
    /// Groups are written. Before, an import reads intent logs, whose blocks are in no space map.
    begun: bool,
    open: u64,
    birth: OpenedAt,
    /// Changes that hold the open group (`tc_count`).
    holds: usize,
    quiescing: bool,
    synced: u64,
    throttle: Throttle,
    /// Highest group that someone waits for.
    wanted: u64,
    /// Since when there has been something to write in the open group.
    work: Option<Duration>,
    /// No change is assigned any more, and the sync thread is to end.
    ending: bool,
    /// The sync thread has ended.
    ended: bool,
    /// Why nothing can be written any more.
    failed: Option<String>,
    /// The group that is being written waits for devices.
    held: Option<Held>,
}

/// Why a pool is suspended that goes on once its devices are back.
#[derive(Clone, Debug)]
struct Held {
    why: String,
    /// Changes fail meanwhile, rather than wait (`failmode=continue`).
    refuses: bool,
}

/// What a thread that waits for a group does in a suspended pool.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WhileHeld {
    /// Waits until the pool goes on.
    Waits,
    /// Waits, unless changes fail meanwhile.
    WaitsUnlessRefused,
    /// As a change that is to be assigned: also ends if it is interrupted.
    WaitsAsChange,
    /// Fails.
    Fails,
}

/// How often a change that waits for a suspended pool looks whether it was interrupted.
const INTERRUPTED: Duration = Duration::from_millis(100);

impl State {
    /// Before anything was assigned to the group after `synced`.
    fn new(synced: u64) -> State {
        State {
            begun: false,
            open: synced + 1,
            birth: OpenedAt::now(),
            holds: 0,
            quiescing: false,
            synced,
            throttle: Throttle::default(),
            wanted: 0,
            work: None,
            ending: false,
            ended: false,
            failed: None,
            held: None,
        }
    }

    /// The last group that has something.
    fn last(&self) -> u64 {
        if self.work.is_some() || self.quiescing { self.open } else { self.open - 1 }
    }

    /// Why nothing will be written any more.
    fn failure(&self) -> Option<WriteError> {
        let ended = || self.ended.then(|| EXPORTED.to_string());
        self.failed.clone().or_else(ended).map(WriteError::Suspended)
    }
}

/// The transaction groups of a pool (`tx_state_t`).
#[derive(Debug)]
pub(crate) struct TxState {
    state: Mutex<State>,
    changed: Condvar,
    /// Most dirty bytes; `None`: as [`tunables::DIRTY_DATA_MAX`] says.
    limit: Option<u64>,
    timer: Timer,
}

/// A group that was quiesced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuiescedTxg {
    /// Its number.
    pub txg: u64,
    /// When it was opened.
    pub birth: OpenedAt,
    /// Its dirty bytes.
    pub dirty: u64,
    /// How long changes were assigned to it.
    pub open: Duration,
    /// How long it took until no change held it, and what it has was handed over.
    pub quiescing: Duration,
    /// When that was done.
    pub at: Instant,
}

impl QuiescedTxg {
    /// The first group of a new pool, to which nothing is assigned.
    pub fn at_once(txg: u64, birth: OpenedAt) -> QuiescedTxg {
        let at = Instant::now();
        let open = at.saturating_duration_since(birth.at);
        QuiescedTxg { txg, birth, dirty: 0, open, quiescing: Duration::ZERO, at }
    }
}

/// What the sync thread is to do (`txg_sync_thread`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Quiesce the open group and write it.
    Sync,
    /// Nothing is to be written, for some time already.
    Look,
    /// End.
    End,
}

/// A hold on the open group (`txg_handle_t`, `txg_rele_to_sync`).
pub(crate) struct TxgHandle {
    tx: Arc<TxState>,
    /// The group.
    pub txg: u64,
    /// Bytes that it was assigned with and that turned out not to be written.
    spare: u64,
    bytes: u64,
    /// Bytes that it made dirty.
    made: u64,
    /// Bytes of pointers that it freed.
    freed: u64,
}

impl Hold for TxgHandle {
    fn settle(&mut self, bytes: u64, freed: u64) {
        self.spare = self.bytes.saturating_sub(bytes.max(LEAST));
        self.made = bytes;
        self.freed = freed.saturating_mul(BLKPTR_SIZE as u64);
    }

    fn undone(&mut self) {
        (self.spare, self.made, self.freed) = (self.bytes, 0, 0);
    }
}

impl Drop for TxgHandle {
    fn drop(&mut self) {
        let mut state = self.tx.state.lock();
        let left = state.holds.checked_sub(1);
        let counted = state.throttle.leave(self.txg, self.spare, self.made, self.freed);
        if left.is_none() || !counted {
            // A change may be in a group that is being written: that one must not get on disk.
            let why = format!("a change of group {} ends that does not hold it", self.txg);
            tracing::error!("{why}");
            state.failed.get_or_insert(why);
            self.tx.changed.notify_all();
        }
        state.holds = left.unwrap_or(0);
        // Only the sync thread waits for this, to quiesce the group; no other thread needs to wake.
        if state.holds == 0 && state.quiescing {
            self.tx.changed.notify_all();
        }
    }
}

impl TxState {
    /// Groups of which the first open one follows `synced`, the last one on disk (`txg_init`). None is written before
    /// [`TxState::begin`]. Delays and the time of a group go by `timer`.
    pub fn new(synced: u64, limit: Option<u64>, timer: Timer) -> Arc<TxState> {
        let state = Mutex::new(State::new(synced));
        Arc::new(TxState { state, changed: Condvar::new(), limit, timer })
    }

    /// From now on groups are written (`txg_sync_start`).
    pub fn begin(&self) {
        self.state.lock().begun = true;
        self.changed.notify_all();
    }

    /// Why no change may be made yet.
    pub fn not_begun(&self) -> Option<String> {
        let begun = self.state.lock().begun;
        (!begun).then(|| "the pool is being imported".to_owned())
    }

    /// Most dirty bytes at the moment.
    fn limit(&self) -> u64 {
        self.limit.unwrap_or_else(tunables::dirty_data_max).max(1)
    }

    /// There is something to write in the open group. The sync thread is woken if it did not know.
    fn work(&self, state: &mut State) {
        if state.work.is_none() {
            state.work = Some(self.timer.now());
            self.changed.notify_all();
        }
    }

    /// Assigns a change to the open group (`dmu_tx_assign`, `txg_hold_open`), with `bytes` to be written; `frees`: to
    /// free something.
    ///
    /// # Errors
    /// The pool is suspended or exported.
    pub fn assign(self: &Arc<Self>, bytes: u64, frees: bool) -> Result<TxgHandle, WriteError> {
        self.assign_while(WhileHeld::WaitsAsChange, (bytes, frees))
    }

    /// As [`TxState::assign`]; of a suspended pool it does what `held` says.
    ///
    /// # Errors
    /// The pool is suspended or exported.
    pub fn assign_while(
        self: &Arc<Self>,
        held: WhileHeld,
        (bytes, frees): (u64, bool),
    ) -> Result<TxgHandle, WriteError> {
        let mut state = self.delay(bytes);
        let mut waited = false;
        loop {
            if let Some(e) = state.failure() {
                return Err(e);
            }
            if state.ending {
                return Err(WriteError::Suspended(EXPORTED.into()));
            }
            if let Some(why) = &state.held {
                if held == WhileHeld::Fails {
                    return Err(WriteError::Suspended(why.why.clone()));
                }
                self.wait_while_held(&mut state)?;
                continue;
            }
            let full = state.throttle.is_full(bytes, frees, self.limit());
            if !state.quiescing && !full {
                break;
            }
            if full {
                if !std::mem::replace(&mut waited, true) {
                    kstat::TX_DIRTY_OVER_MAX.add(1);
                }
                state.wanted = state.wanted.max(state.open);
                self.changed.notify_all();
            }
            waiting::begins();
            self.changed.wait(&mut state);
        }
        let txg = state.open;
        kstat::TX_ASSIGNED.add(1);
        state.holds += 1;
        state.throttle.enter(txg, bytes);
        self.work(&mut state);
        let enough = tunables::dirty_data_sync(self.limit());
        if state.throttle.bytes_of(txg) >= enough && state.wanted < txg {
            state.wanted = txg;
            self.changed.notify_all();
        }
        Ok(TxgHandle { tx: self.clone(), txg, spare: 0, bytes, made: 0, freed: 0 })
    }

    /// Waits until the pool is not suspended any more.
    ///
    /// # Errors
    /// Changes fail meanwhile; the thread was interrupted; the pool has failed.
    fn wait_while_held(&self, state: &mut MutexGuard<'_, State>) -> Result<(), WriteError> {
        // What serves others goes on without this thread, which does so without the lock.
        let parked = MutexGuard::unlocked(state, waiting::park);
        let waited = loop {
            if let Some(e) = state.failure() {
                break Err(e);
            }
            match &state.held {
                None => break Ok(()),
                Some(held) if held.refuses => break Err(WriteError::Suspended(held.why.clone())),
                Some(_) => {}
            }
            if MutexGuard::unlocked(state, || parked.is_interrupted()) {
                break Err(WriteError::Interrupted);
            }
            if state.held.is_some() {
                self.changed.wait_for(state, INTERRUPTED);
            }
        };
        MutexGuard::unlocked(state, || drop(parked));
        waited
    }

    /// Sleeps as long as the throttle says (`dmu_tx_delay`).
    fn delay(&self, bytes: u64) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let Some(until) = state.throttle.delay(bytes, self.limit(), self.timer.now()) else {
            return state;
        };
        drop(state);
        kstat::TX_DIRTY_DELAY.add(1);
        waiting::begins();
        self.timer.sleep(until.saturating_sub(self.timer.now()));
        self.state.lock()
    }

    /// The last group on disk (`spa_last_synced_txg`).
    pub fn synced_txg(&self) -> u64 {
        self.state.lock().synced
    }

    /// The open group, and when it was opened.
    pub fn open_group(&self) -> (u64, OpenedAt) {
        let state = self.state.lock();
        (state.open, state.birth)
    }

    /// Bytes that are not on disk yet.
    pub fn dirty(&self) -> u64 {
        self.state.lock().throttle.bytes()
    }

    /// The same in hundredths of what may be.
    pub fn dirty_percent(&self) -> u64 {
        let (dirty, limit) = (u128::from(self.dirty()), u128::from(self.limit()));
        u64::try_from(dirty * 100 / limit).unwrap_or(u64::MAX)
    }

    /// There is something to write in the open group, which can wait for its time.
    pub fn note(&self) {
        self.work(&mut self.state.lock());
    }

    /// Asks for the open group to be written (`txg_kick`).
    pub fn ask(&self) {
        let mut state = self.state.lock();
        self.work(&mut state);
        state.wanted = state.wanted.max(state.open);
        self.changed.notify_all();
    }

    /// Asks for one group more, for what is done bit by bit, unless the sync thread is to end: what is
    /// left is then done after the next import.
    pub fn ask_for_more(&self) {
        if !self.state.lock().ending {
            self.ask();
        }
    }

    /// Waits until all changes so far are on disk (`txg_wait_synced`); without changes, nothing is written. Of a
    /// suspended pool it waits until that goes on.
    ///
    /// # Errors
    /// The pool has failed, or is suspended and changes fail meanwhile.
    pub fn wait_synced(&self) -> Result<(), WriteError> {
        self.wait_all(WhileHeld::WaitsUnlessRefused)
    }

    /// The same for a change that is not assigned yet, as it needs what the groups so far give back (`dmu_tx_wait`).
    ///
    /// # Errors
    /// Those of [`TxState::assign`].
    pub fn wait_before_assign(&self) -> Result<(), WriteError> {
        self.wait_all(WhileHeld::WaitsAsChange)
    }

    /// As [`TxState::wait_synced`], but for a suspended pool (`TXG_WAIT_SUSPEND`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn try_synced(&self) -> Result<(), WriteError> {
        self.wait_all(WhileHeld::Fails)
    }

    /// As [`TxState::try_synced`], for at most `limit`. Returns whether the changes are on disk.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn synced_within(&self, limit: Duration) -> Result<bool, WriteError> {
        let (mut state, end) = (self.state.lock(), Instant::now() + limit);
        let last = state.last();
        state.wanted = state.wanted.max(last);
        self.changed.notify_all();
        while state.synced < last {
            if let Some(e) = state.failure() {
                return Err(e);
            }
            if let Some(Held { why, .. }) = &state.held {
                return Err(WriteError::Suspended(why.clone()));
            }
            waiting::begins();
            if self.changed.wait_until(&mut state, end).timed_out() {
                return Ok(state.synced >= last);
            }
        }
        Ok(true)
    }

    fn wait_all(&self, held: WhileHeld) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        let last = state.last();
        self.wait_in(&mut state, last, held)
    }

    /// Waits until group `txg` is on disk, however long the pool is suspended meanwhile.
    ///
    /// # Errors
    /// The pool has failed.
    pub fn wait_for(&self, txg: u64) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        self.wait_in(&mut state, txg, WhileHeld::Waits)
    }

    fn wait_in(
        &self,
        state: &mut MutexGuard<'_, State>,
        txg: u64,
        held: WhileHeld,
    ) -> Result<(), WriteError> {
        state.wanted = state.wanted.max(txg);
        self.changed.notify_all();
        while state.synced < txg {
            if let Some(e) = state.failure() {
                return Err(e);
            }
            if let Some(Held { why, refuses }) = &state.held {
                match held {
                    WhileHeld::Waits => {}
                    WhileHeld::WaitsUnlessRefused if !refuses => {}
                    WhileHeld::WaitsAsChange => {
                        self.wait_while_held(state)?;
                        continue;
                    }
                    WhileHeld::WaitsUnlessRefused | WhileHeld::Fails => {
                        return Err(WriteError::Suspended(why.clone()));
                    }
                }
            }
            waiting::begins();
            self.changed.wait(state);
        }
        Ok(())
    }

    /// Waits until there is something to do: the open group is wanted, or has had something to
    /// write for as long as `interval` says, which is asked again and again; or nothing was to be written for as long as
    /// `looks` says. Before [`TxState::begin`] there is nothing to do.
    pub fn next_work(&self, interval: &dyn Fn() -> Duration, looks: Option<Duration>) -> Work {
        let mut state = self.state.lock();
        let begun = self.timer.now();
        loop {
            if state.failed.is_some() {
                if state.ending {
                    return Work::End;
                }
                self.changed.wait(&mut state);
                continue;
            }
            if !state.begun {
                if state.ending {
                    return Work::End;
                }
                self.changed.wait(&mut state);
                continue;
            }
            if state.wanted >= state.open {
                return Work::Sync;
            }
            if state.ending {
                return if state.work.is_some() { Work::Sync } else { Work::End };
            }
            let Some(since) = state.work else {
                let Some(looks) = looks else {
                    self.changed.wait(&mut state);
                    continue;
                };
                let rested = self.timer.now().saturating_sub(begun);
                if rested >= looks {
                    return Work::Look;
                }
                self.timer.wait(&self.changed, &mut state, looks.saturating_sub(rested));
                continue;
            };
            let elapsed = self.timer.now().saturating_sub(since);
            let left = interval().saturating_sub(elapsed);
            if left.is_zero() {
                return Work::Sync;
            }
            self.timer.wait(&self.changed, &mut state, left.min(LOOK));
        }
    }

    /// Quiesces the open group (`txg_quiesce`, `txg_quiesce_thread`): waits until no change holds it. `hand_over` then takes
    /// what it has, and the next group opens. At that moment `tasks` takes the sync tasks of the quiesced group: those that
    /// were queued before cannot have seen anything of the next group, and later ones are for that. Returns the quiesced
    /// group.
    pub fn quiesce<T, Q>(
        &self,
        hand_over: impl FnOnce(u64) -> T,
        tasks: impl FnOnce() -> Q,
    ) -> (QuiescedTxg, T, Q) {
        let mut state = self.state.lock();
        let begun = Instant::now();
        state.quiescing = true;
        while state.holds > 0 {
            self.changed.wait(&mut state);
        }
        let txg = state.open;
        // Nothing is assigned meanwhile: the state need not be held.
        drop(state);
        let taken = hand_over(txg);
        let mut state = self.state.lock();
        let tasks = tasks();
        state.throttle.quiesced();
        let birth = std::mem::replace(&mut state.birth, OpenedAt::now());
        let quiesced = QuiescedTxg {
            txg,
            birth,
            dirty: state.throttle.bytes_of(txg),
            open: begun.saturating_duration_since(birth.at),
            quiescing: state.birth.at.saturating_duration_since(begun),
            at: state.birth.at,
        };
        let (holds, open) = (state.holds, state.open);
        invariant!(
            holds == 0 && state.quiescing && open == txg,
            "group {txg} is quiesced, with {holds} changes in it, and {open} is open"
        );
        let synced = state.synced;
        invariant!(
            synced + 1 == txg || state.failed.is_some(),
            "group {txg} is quiesced to be written, and {synced} is the last one on disk"
        );
        state.open += 1;
        state.quiescing = false;
        state.work = None;
        self.changed.notify_all();
        (quiesced, taken, tasks)
    }

    /// Group `txg` is on disk.
    pub fn synced(&self, txg: u64) {
        let mut state = self.state.lock();
        let (before, open) = (state.synced, state.open);
        invariant!(
            before + 1 == txg && txg < open,
            "group {txg} is on disk after {before}, and {open} is open"
        );
        state.synced = txg;
        state.throttle.synced(txg);
        let left = state.throttle.bytes();
        invariant!(
            state.work.is_some() || state.holds > 0 || left == 0,
            "all groups up to {txg} are on disk, and {left} bytes are dirty"
        );
        self.changed.notify_all();
    }

    /// Why nothing will be written any more: the pool is suspended, or exported.
    pub fn closed(&self) -> Option<String> {
        match self.state.lock().failure() {
            Some(WriteError::Suspended(why)) => Some(why),
            _ => None,
        }
    }

    /// Waits until nothing can be written any more, where that is known to come.
    pub fn wait_closed(&self) {
        let mut state = self.state.lock();
        while state.failure().is_none() {
            self.changed.wait(&mut state);
        }
    }

    /// The sync thread has ended: what still waits is not written.
    pub fn ended(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Nothing can be written any more. The first failure calls `tell`, then wakes all that wait. `tell` must not take
    /// part in transaction groups: their lock is held.
    pub fn fail(&self, why: String, tell: impl FnOnce()) {
        let mut state = self.state.lock();
        if state.failed.is_none() {
            tell();
            state.failed = Some(why);
        }
        self.changed.notify_all();
    }

    /// The group that is being written waits for devices, and changes with it; where they are `refused` they fail
    /// instead. `tell` is called if that is new; as that of [`TxState::fail`] it must not take part in groups.
    pub fn hold(&self, why: &str, refuses: bool, tell: impl FnOnce()) {
        let mut state = self.state.lock();
        if state.held.replace(Held { why: why.into(), refuses }).is_none() {
            tell();
        }
        self.changed.notify_all();
    }

    /// Changes go on if the devices are back, which `is_well` says.
    pub fn resumed(&self, is_well: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        if is_well() {
            state.held = None;
        }
        self.changed.notify_all();
    }

    /// Why the pool is suspended, if it may go on.
    pub fn held(&self) -> Option<String> {
        self.state.lock().held.as_ref().map(|held| held.why.clone())
    }

    /// Why nothing can be written any more.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }

    /// Assigns no change any more, and has the sync thread end once all is written.
    pub fn end(&self) {
        self.state.lock().ending = true;
        self.changed.notify_all();
    }
}
