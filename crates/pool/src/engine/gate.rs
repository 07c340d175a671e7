//! The gate through which changes enter a transaction group, and how fast.
//!
//! ```text
//!   enter ── open ──────> quiescing ─────> syncing ─────> synced
//!            changes      no new ones,     written by
//!            enter        those inside     the sync
//!                         leave            thread
//! ```
//!
//! One transaction group is *open*. The sync thread *closes* it: whoever is inside may finish, who
//! comes later waits for the moment in which every open dataset hands its changes over, and then
//! enters the next group, while the closed one is written.
//!
//! # The throttle
//!
//! Dirty bytes are those that entered groups that are not on disk yet: at most so many while a change
//! is being made, and what it really made dirty from then on. From [`DELAY_FROM`] percent
//! of the limit on, each change is delayed by `SCALE * (dirty - from) / (limit - dirty)`, which grows
//! smoothly, so that changes come as fast as the devices take them and no one waits for a whole
//! group. At the limit changes wait. From [`SYNC_FROM`] percent on the open group is closed
//! without waiting for its time.
//!
//! Invariants: the number of the open group only grows; a group is closed only when no one is
//! inside; what waits here holds no other lock.

use super::figures::Birth;
use cenote_dmu::live::Hold;
use cenote_dmu::write::WriteError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Percent of the limit from which changes are delayed (`zfs_delay_min_dirty_percent`).
const DELAY_FROM: u64 = 60;
/// Percent of the limit from which the open group is closed (`zfs_dirty_data_sync_percent`).
const SYNC_FROM: u64 = 20;
/// Delay of a change half way between the start of the delays and the limit (`zfs_delay_scale`).
const SCALE: Duration = Duration::from_micros(500);
/// Why nothing enters a pool that is not in use any more.
pub(super) const EXPORTED: &str = "the pool is exported";
/// Bytes that a change counts for at least: so much memory an object may take that is being changed,
/// or one that was freed and has to be remembered.
const LEAST: u64 = 4096;
/// Longest delay of one change.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// What is known of the groups.
#[derive(Debug)]
struct State {
    open: u64,
    birth: Birth,
    inside: usize,
    closing: bool,
    synced: u64,
    /// Bytes that entered each group that is not on disk.
    dirty: BTreeMap<u64, u64>,
    /// Highest group that someone waits for.
    wanted: u64,
    /// There is something to write in the open group.
    work: bool,
    /// Nothing may enter any more, and the sync thread is to end.
    ending: bool,
    /// The sync thread has ended.
    ended: bool,
    /// Why nothing can be written any more.
    failed: Option<String>,
}

impl State {
    /// Before anything has entered the group after `synced`.
    fn new(synced: u64) -> State {
        State {
            open: synced + 1,
            birth: Birth::now(),
            inside: 0,
            closing: false,
            synced,
            dirty: BTreeMap::new(),
            wanted: 0,
            work: false,
            ending: false,
            ended: false,
            failed: None,
        }
    }

    fn dirty(&self) -> u64 {
        self.dirty.values().sum()
    }

    /// Why nothing will be written any more.
    fn failure(&self) -> Option<WriteError> {
        let ended = || self.ended.then(|| EXPORTED.to_string());
        self.failed.clone().or_else(ended).map(WriteError::Suspended)
    }
}

/// The gate of a pool.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    /// Most dirty bytes.
    limit: u64,
}

/// A group that was closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    /// Its number.
    pub txg: u64,
    /// When it was opened.
    pub birth: Birth,
    /// Its dirty bytes.
    pub dirty: u64,
    /// How long changes could enter it.
    pub open: Duration,
    /// How long those that were inside took to leave, and its changes to be handed over.
    pub quiescing: Duration,
}

/// What the sync thread is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Close the open group and write it.
    Sync,
    /// End.
    End,
}

/// Someone inside the open group.
pub(crate) struct Inside {
    gate: Arc<Gate>,
    /// The group.
    pub txg: u64,
    /// Bytes that it entered with and that turned out not to be written.
    spare: u64,
    bytes: u64,
}

impl Hold for Inside {
    fn settle(&mut self, bytes: u64) {
        self.spare = self.bytes.saturating_sub(bytes.max(LEAST));
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        state.inside -= 1;
        if let Some(dirty) = state.dirty.get_mut(&self.txg) {
            *dirty = dirty.saturating_sub(self.spare);
        }
        // Only who closes the group waits for this; everyone else is not to be woken.
        if state.inside == 0 && state.closing {
            self.gate.changed.notify_all();
        }
    }
}

impl Gate {
    /// A gate whose first open group follows `synced`, the last one on disk.
    pub fn new(synced: u64, limit: u64) -> Arc<Gate> {
        Arc::new(Gate {
            state: Mutex::new(State::new(synced)),
            changed: Condvar::new(),
            limit: limit.max(1),
        })
    }

    /// Enters the open group with `bytes` to be written.
    ///
    /// # Errors
    /// The pool is suspended or exported.
    pub fn enter(self: &Arc<Self>, bytes: u64) -> Result<Inside, WriteError> {
        let mut state = self.delay(bytes);
        loop {
            if let Some(e) = state.failure() {
                return Err(e);
            }
            if state.ending {
                return Err(WriteError::Suspended(EXPORTED.into()));
            }
            let full = bytes > 0 && state.dirty() >= self.limit;
            if !state.closing && !full {
                break;
            }
            if full {
                state.wanted = state.wanted.max(state.open);
                self.changed.notify_all();
            }
            self.changed.wait(&mut state);
        }
        let txg = state.open;
        state.inside += 1;
        *state.dirty.entry(txg).or_default() += bytes;
        state.work = true;
        if state.dirty.get(&txg).copied().unwrap_or(0) >= self.limit / 100 * SYNC_FROM
            && state.wanted < txg
        {
            state.wanted = txg;
            self.changed.notify_all();
        }
        Ok(Inside { gate: self.clone(), txg, spare: 0, bytes })
    }

    /// Sleeps as long as the throttle says.
    fn delay(&self, bytes: u64) -> MutexGuard<'_, State> {
        let state = self.state.lock();
        let dirty = state.dirty();
        let from = self.limit / 100 * DELAY_FROM;
        let over = dirty.saturating_sub(from);
        if bytes == 0 || over == 0 {
            return state;
        }
        drop(state);
        let left = self.limit.saturating_sub(dirty).max(1);
        let factor = over as f64 / left as f64;
        let delay = SCALE.mul_f64(factor.min(1e6)).min(MAX_DELAY);
        std::thread::sleep(delay);
        self.state.lock()
    }

    /// The last group on disk.
    pub fn synced_txg(&self) -> u64 {
        self.state.lock().synced
    }

    /// The open group, and when it was opened.
    pub fn open_group(&self) -> (u64, Birth) {
        let state = self.state.lock();
        (state.open, state.birth)
    }

    /// Bytes that are not on disk yet.
    pub fn dirty(&self) -> u64 {
        self.state.lock().dirty()
    }

    /// Asks for the open group to be written.
    pub fn ask(&self) {
        let mut state = self.state.lock();
        state.work = true;
        state.wanted = state.wanted.max(state.open);
        self.changed.notify_all();
    }

    /// Waits until all that has entered so far is on disk; if nothing has, nothing is written.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn wait_synced(&self) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        let last = if state.work || state.closing { state.open } else { state.open - 1 };
        self.wait_in(&mut state, last)
    }

    /// Waits until group `txg` is on disk.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn wait_for(&self, txg: u64) -> Result<(), WriteError> {
        let mut state = self.state.lock();
        self.wait_in(&mut state, txg)
    }

    fn wait_in(&self, state: &mut MutexGuard<'_, State>, txg: u64) -> Result<(), WriteError> {
        state.wanted = state.wanted.max(txg);
        self.changed.notify_all();
        while state.synced < txg {
            if let Some(e) = state.failure() {
                return Err(e);
            }
            self.changed.wait(state);
        }
        Ok(())
    }

    /// Waits until there is something to do: the open group is wanted, or has had something to
    /// write for as long as `interval`.
    pub fn next_turn(&self, interval: Duration) -> Turn {
        let until = Instant::now() + interval;
        let mut state = self.state.lock();
        loop {
            if state.failed.is_some() {
                if state.ending {
                    return Turn::End;
                }
                self.changed.wait(&mut state);
                continue;
            }
            if state.wanted >= state.open {
                return Turn::Sync;
            }
            if state.ending {
                return if state.work { Turn::Sync } else { Turn::End };
            }
            if self.changed.wait_until(&mut state, until).timed_out() {
                if state.work {
                    return Turn::Sync;
                }
                self.changed.wait(&mut state);
            }
        }
    }

    /// Closes the open group and waits until no one is inside; `hand_over` then takes what it
    /// holds, and the next group opens. Returns the closed group.
    pub fn close<T>(&self, hand_over: impl FnOnce(u64) -> T) -> (Closed, T) {
        let mut state = self.state.lock();
        let closing = Instant::now();
        state.closing = true;
        while state.inside > 0 {
            self.changed.wait(&mut state);
        }
        let txg = state.open;
        // Nobody can enter: the state need not be held.
        drop(state);
        let taken = hand_over(txg);
        let mut state = self.state.lock();
        let birth = std::mem::replace(&mut state.birth, Birth::now());
        let closed = Closed {
            txg,
            birth,
            dirty: state.dirty.get(&txg).copied().unwrap_or(0),
            open: closing.saturating_duration_since(birth.at),
            quiescing: state.birth.at.saturating_duration_since(closing),
        };
        state.open += 1;
        state.closing = false;
        state.work = false;
        self.changed.notify_all();
        (closed, taken)
    }

    /// Group `txg` is on disk.
    pub fn synced(&self, txg: u64) {
        let mut state = self.state.lock();
        state.synced = txg;
        state.dirty.retain(|t, _| *t > txg);
        self.changed.notify_all();
    }

    /// Why nothing will be written any more, be it that the pool is exported.
    pub fn closed(&self) -> Option<String> {
        match self.state.lock().failure() {
            Some(WriteError::Suspended(why)) => Some(why),
            _ => None,
        }
    }

    /// The sync thread has ended: what still waits is not written.
    pub fn ended(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    /// Nothing can be written any more.
    pub fn fail(&self, why: String) {
        let mut state = self.state.lock();
        state.failed.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Why nothing can be written any more.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }

    /// Lets nothing in any more, and the sync thread end once all is written.
    pub fn end(&self) {
        self.state.lock().ending = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_a_group_closes_enters_the_next() {
        let gate = Gate::new(9, 1 << 20);
        let first = gate.enter(1).unwrap();
        assert_eq!(first.txg, 10);
        let other = gate.clone();
        let closer = std::thread::spawn(move || other.close(|txg| txg).0.txg);
        while !gate.state.lock().closing {
            std::thread::yield_now();
        }
        let other = gate.clone();
        let late = std::thread::spawn(move || other.enter(1).unwrap().txg);
        drop(first);
        assert_eq!(closer.join().unwrap(), 10);
        assert_eq!(late.join().unwrap(), 11);
        gate.synced(10);
        assert_eq!((gate.synced_txg(), gate.dirty()), (10, 1));
    }

    #[test]
    fn at_the_limit_changes_wait_and_ask_for_a_sync() {
        let gate = Gate::new(0, 1000);
        drop(gate.enter(1000).unwrap());
        assert_eq!(gate.next_turn(Duration::from_secs(60)), Turn::Sync);
        let other = gate.clone();
        let waiting = std::thread::spawn(move || other.enter(10).unwrap().txg);
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        let (closed, ()) = gate.close(|_| ());
        gate.synced(closed.txg);
        assert_eq!(waiting.join().unwrap(), 2);
    }

    #[test]
    fn what_was_not_made_dirty_does_not_count() {
        let gate = Gate::new(0, 1 << 20);
        let mut inside = gate.enter(64 << 10).unwrap();
        assert_eq!(gate.dirty(), 64 << 10);
        inside.settle(30_000);
        drop(inside);
        assert_eq!(gate.dirty(), 30_000);
        // Without an answer the bound counts.
        drop(gate.enter(5000).unwrap());
        assert_eq!(gate.dirty(), 35_000);
        let mut inside = gate.enter(64 << 10).unwrap();
        inside.settle(0);
        drop(inside);
        assert_eq!(gate.dirty(), 35_000 + LEAST);
    }

    #[test]
    fn nobody_waits_for_an_engine_that_has_ended() {
        let gate = Gate::new(5, 1000);
        drop(gate.enter(1).unwrap());
        gate.end();
        assert!(gate.enter(1).is_err());
        assert_eq!(gate.next_turn(Duration::ZERO), Turn::Sync);
        let (closed, ()) = gate.close(|_| ());
        gate.synced(closed.txg);
        assert_eq!(gate.next_turn(Duration::ZERO), Turn::End);
        gate.ended();
        gate.ask();
        assert!(gate.wait_synced().is_err() && gate.wait_for(6).is_ok());
        assert_eq!((gate.failure(), gate.closed().as_deref()), (None, Some(EXPORTED)));
    }

    #[test]
    fn a_failure_reaches_everyone() {
        let gate = Gate::new(0, 1000);
        gate.fail("device is gone".into());
        assert!(gate.enter(1).is_err());
        assert!(gate.wait_for(1).is_err());
    }
}
