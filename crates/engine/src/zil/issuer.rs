//! The right to write a log (`zl_issuer_lock`), and the commits that wait for it (`zil_commit_waiter_t`).
//!
//! # Idea
//!
//! One thread writes at a time, the *issuer*. Commits that come meanwhile wait. When the issuer is done it tells
//! all whose changes are stable now, and only those, and makes the one that has waited longest of the others the
//! issuer, before it goes its own way. So a commit that came later never goes first, and nobody is woken
//! only to wait again.
//!
//! # Invariants
//!
//! - `stable` does not get less.
//! - While somebody waits there is an issuer.
//! - Nobody waits for what is stable.

use super::waiting::{AtomicU8, Mutex, Ordering, Thread, thread};
use cenote_format::invariant;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a waiter was told.
const NOTHING: u8 = 0;
const IS_STABLE: u8 = 1;
const IS_ISSUER: u8 = 2;

/// A thread that waits.
struct Waiter {
    wanted: u64,
    thread: Thread,
    told: Arc<AtomicU8>,
}

impl Waiter {
    fn tell(&self, what: u8) {
        self.told.store(what, Ordering::Release);
        self.thread.unpark();
    }
}

#[derive(Default)]
struct State {
    /// How far the queue of itxs is known to be stable.
    stable: u64,
    has_issuer: bool,
    waiters: VecDeque<Waiter>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Issuer(Mutex<State>);

/// The right to write, until it is dropped.
pub(super) struct Issuing<'a> {
    issuer: &'a Issuer,
    stable: u64,
}

impl Issuer {
    /// Waits until the queue of itxs is stable up to `wanted` (`None`), or it is for the caller to make it so.
    pub fn wait_for(&self, wanted: u64) -> Option<Issuing<'_>> {
        let mut state = self.0.lock();
        if state.stable >= wanted {
            return None;
        }
        if !state.has_issuer {
            return Some(self.issuing(&mut state));
        }
        let told = Arc::new(AtomicU8::new(NOTHING));
        state.waiters.push_back(Waiter { wanted, thread: thread::current(), told: told.clone() });
        drop(state);
        loop {
            match told.load(Ordering::Acquire) {
                NOTHING => thread::park(),
                IS_STABLE => return None,
                _ => return Some(Issuing { issuer: self, stable: 0 }),
            }
        }
    }

    /// Waits until nobody writes, and keeps everybody from it.
    pub fn keep_out(&self) -> Issuing<'_> {
        loop {
            // No queue is stable that far.
            if let Some(issuing) = self.wait_for(u64::MAX) {
                return issuing;
            }
        }
    }

    /// As [`Issuer::keep_out`], if nobody writes now.
    pub fn try_keep_out(&self) -> Option<Issuing<'_>> {
        let mut state = self.0.lock();
        (!state.has_issuer).then(|| self.issuing(&mut state))
    }

    fn issuing(&self, state: &mut State) -> Issuing<'_> {
        state.has_issuer = true;
        Issuing { issuer: self, stable: 0 }
    }
}

impl Issuing<'_> {
    /// Checks that what is stable does not get less when the queue of itxs is written up to `end`.
    pub fn check(&self, end: u64) {
        let stable = self.issuer.0.lock().stable;
        invariant!(stable <= end, "{end} itxs are written, and {stable} were stable before");
    }

    /// The queue of itxs is stable up to `end`.
    pub fn has_written(mut self, end: u64) {
        self.stable = end;
    }
}

impl Drop for Issuing<'_> {
    fn drop(&mut self) {
        let mut state = self.issuer.0.lock();
        state.stable = state.stable.max(self.stable);
        let stable = state.stable;
        let (done, left) = state.waiters.drain(..).partition(|waiter| waiter.wanted <= stable);
        state.waiters = left;
        let next = state.waiters.pop_front();
        state.has_issuer = next.is_some();
        drop(state);
        let done: VecDeque<Waiter> = done;
        next.iter().for_each(|waiter| waiter.tell(IS_ISSUER));
        done.iter().for_each(|waiter| waiter.tell(IS_STABLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::time::Duration;

    /// A log whose queue and whose stable part are numbers.
    #[derive(Default)]
    struct Model {
        issuer: Issuer,
        queued: AtomicU64,
        stable: AtomicU64,
        writes: AtomicU64,
        is_writing: AtomicBool,
    }

    impl Model {
        /// Commits one change; the write fails if `fails`. Whether it is stable.
        fn commit(&self, fails: bool) -> bool {
            let wanted = self.queued.fetch_add(1, Ordering::SeqCst) + 1;
            let Some(issuing) = self.issuer.wait_for(wanted) else {
                assert!(self.stable.load(Ordering::SeqCst) >= wanted, "told too early");
                return true;
            };
            assert!(!self.is_writing.swap(true, Ordering::SeqCst), "two write at once");
            let end = self.queued.load(Ordering::SeqCst);
            self.writes.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(wanted % 5 * 50));
            self.is_writing.store(false, Ordering::SeqCst);
            if fails {
                return false;
            }
            self.stable.fetch_max(end, Ordering::SeqCst);
            issuing.has_written(end);
            true
        }
    }

    #[test]
    fn all_are_told_and_one_writes_at_a_time() {
        let model = Model::default();
        thread::scope(|scope| {
            for of in 0..8_u64 {
                let model = &model;
                scope.spawn(move || {
                    for n in 0..300_u64 {
                        match (of, n % 7) {
                            (0, 3) => {
                                let _out = model.issuer.keep_out();
                                assert!(!model.is_writing.load(Ordering::SeqCst));
                            }
                            (1, 3) => drop(model.issuer.try_keep_out()),
                            (2, 5) => {
                                model.commit(true);
                            }
                            _ => assert!(model.commit(false)),
                        }
                    }
                });
            }
        });
        let commits = model.queued.load(Ordering::SeqCst);
        let writes = model.writes.load(Ordering::SeqCst);
        assert!(writes < commits, "{writes} writes of {commits} commits: none was shared");
        assert!(model.issuer.try_keep_out().is_some(), "somebody is left");
    }

    #[test]
    fn who_has_waited_longest_is_next() {
        let issuer = Issuer::default();
        let order = Mutex::new(Vec::new());
        let first = issuer.wait_for(1).unwrap();
        assert!(issuer.try_keep_out().is_none());
        thread::scope(|scope| {
            for of in 0..4_u64 {
                let (issuer, order) = (&issuer, &order);
                scope.spawn(move || {
                    // What 0 and 2 want is written by the first one, 1 and 3 write themselves.
                    let issuing = issuer.wait_for(if of % 2 == 0 { 1 } else { 10 + of });
                    order.lock().push((of, issuing.is_some()));
                });
                while issuer.0.lock().waiters.len() <= of as usize {
                    thread::yield_now();
                }
            }
            first.has_written(1);
        });
        let mut order = order.into_inner();
        let wrote: Vec<u64> = order.iter().filter(|(_, wrote)| *wrote).map(|(of, _)| *of).collect();
        assert_eq!(wrote, [1, 3]);
        order.sort_unstable();
        assert_eq!(order, [(0, false), (1, true), (2, false), (3, true)]);
    }
}
