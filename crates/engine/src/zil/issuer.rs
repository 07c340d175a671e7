//! Which thread writes to the log of a dataset, and the commits that wait for it (`zl_issuer_lock`, `zil_commit_waiter_t`).
//!
//! # Idea
//!
//! One commit at a time puts records into the chain and makes them durable: the *issuer*. Commits that come meanwhile wait.
//! When the issuer is done it tells all threads whose changes are stable now, and only those. The commit that has waited
//! longest is the next issuer.
//!
//! Threads that were served together come again together, a moment apart. Their next issuer is the first of them, and would
//! write for itself alone, with a flush that all others wait for. So it lets them join ([`Issuing::gather`]): as many as
//! there were when the last commit ended, for a tenth of what a commit takes at most (`zil_commit_waiter_timeout`).
//!
//! ```text
//!  thread 1   gather, take, encode, write, flush | stable
//!  thread 2        joins                         | stable
//!  thread 3          joins                       | stable
//! ```
//!
//! A second block that is written while the first one is flushed gains nothing, since the devices of a pool are flushed by
//! one flush at a time (`vdev::write`): the threads then go in two rounds, with a flush each.
//!
//! # Invariants
//!
//! - `stable` does not get less.
//! - While a thread waits there is an issuer.
//! - No thread waits for what is stable.
//! - An issuer that gathers goes on by itself, whether others come or not.

use super::waiting::{AtomicU8, Condvar, Mutex, MutexGuard, Ordering, Thread, thread};
use cenote_format::invariant;
use cenote_vdev::waiting;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a thread that may give up looks whether it is to.
const LOOK: Duration = Duration::from_millis(100);
/// How often an issuer that gathers gives up its processor before it sleeps: others need that little to come.
const YIELDS: usize = 32;
/// What a commit counts for at most that a device held up.
const LONG: Duration = Duration::from_millis(100);

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
    /// The calling thread.
    fn new(wanted: u64) -> Waiter {
        Waiter { wanted, thread: thread::current(), told: Arc::new(AtomicU8::new(NOTHING)) }
    }

    fn tell(&self, what: u8) {
        self.told.store(what, Ordering::Release);
        self.thread.unpark();
    }
}

/// Waits until the calling thread is told something.
fn told(told: &AtomicU8) -> u8 {
    loop {
        match told.load(Ordering::Acquire) {
            NOTHING => thread::park(),
            what => return what,
        }
    }
}

#[derive(Default)]
struct State {
    /// How far the queue of itxs is known to be stable.
    stable: u64,
    has_issuer: bool,
    waiters: VecDeque<Waiter>,
    /// How many threads there were when the last commit ended: its own, those that it served, and those that came meanwhile.
    round: usize,
    /// What a commit takes, over the last ones.
    takes: Duration,
    /// The issuer sleeps until so many threads wait.
    gathers: Option<usize>,
}

impl State {
    fn add(&mut self, waiter: Waiter, joined: &Condvar) {
        self.waiters.push_back(waiter);
        if self.gathers.is_some_and(|others| self.waiters.len() >= others) {
            joined.notify_all();
        }
    }

    /// Takes those whose changes are stable, and the next issuer, if there is to be one.
    fn next(&mut self) -> (VecDeque<Waiter>, Option<Waiter>) {
        let stable = self.stable;
        let (done, left) = self.waiters.drain(..).partition(|waiter| waiter.wanted <= stable);
        self.waiters = left;
        let next = self.waiters.pop_front();
        self.has_issuer = next.is_some();
        (done, next)
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Issuer {
    state: Mutex<State>,
    /// As many threads wait as the issuer gathers.
    joined: Condvar,
}

/// The right to write, until it is dropped.
pub(super) struct Issuing<'a> {
    issuer: &'a Issuer,
    stable: u64,
    /// When it began to write, if it is to be learned from how long that takes.
    since: Option<Instant>,
}

impl Issuer {
    /// Waits until the queue of itxs is stable up to `wanted` (`None`), or it is for the caller to make it so.
    pub fn wait_for(&self, wanted: u64) -> Option<Issuing<'_>> {
        let mut state = self.state.lock();
        if state.stable >= wanted {
            return None;
        }
        if !state.has_issuer {
            return Some(self.issuing(&mut state));
        }
        let waiter = Waiter::new(wanted);
        let mine = waiter.told.clone();
        state.add(waiter, &self.joined);
        drop(state);
        waiting::begins();
        match told(&mine) {
            IS_STABLE => None,
            _ => Some(Issuing { issuer: self, stable: 0, since: None }),
        }
    }

    /// Waits until no thread writes, and keeps all threads from writing. `None`: `gives_up`, which is asked now and then,
    /// said so before.
    pub fn keep_out(&self, gives_up: &dyn Fn() -> bool) -> Option<Issuing<'_>> {
        let mut state = self.state.lock();
        if !state.has_issuer {
            return Some(self.issuing(&mut state));
        }
        // No queue is stable that far: it is told only that it is the issuer.
        let waiter = Waiter::new(u64::MAX);
        let mine = waiter.told.clone();
        state.add(waiter, &self.joined);
        drop(state);
        waiting::begins();
        while mine.load(Ordering::Acquire) == NOTHING {
            if gives_up() {
                let mut state = self.state.lock();
                let left = state.waiters.len();
                state.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.told, &mine));
                if state.waiters.len() < left {
                    return None;
                }
                // It is the issuer already: the next one is told when that is dropped.
                break;
            }
            thread::park_timeout(LOOK);
        }
        Some(Issuing { issuer: self, stable: 0, since: None })
    }

    /// As [`Issuer::keep_out`], if no thread writes now.
    pub fn try_keep_out(&self) -> Option<Issuing<'_>> {
        let mut state = self.state.lock();
        (!state.has_issuer).then(|| self.issuing(&mut state))
    }

    fn issuing(&self, state: &mut State) -> Issuing<'_> {
        let waiting = state.waiters.len();
        invariant!(waiting == 0, "{waiting} commits wait, and no commit writes");
        state.has_issuer = true;
        Issuing { issuer: self, stable: 0, since: None }
    }
}

impl Issuing<'_> {
    /// Lets the threads join that were there when the last commit ended, for `percent` of what a commit takes at most.
    pub fn gather(&mut self, percent: u32) {
        let issuer = self.issuer;
        let mut state = issuer.state.lock();
        let others = state.round.max(1) - 1;
        let until = Instant::now() + state.takes * percent / 100;
        let mut looks = 0;
        while state.waiters.len() < others {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            looks += 1;
            if looks > YIELDS + 1 {
                state.gathers = Some(others);
                issuer.joined.wait_for(&mut state, left);
                continue;
            }
            drop(state);
            if looks > YIELDS {
                waiting::begins()
            } else {
                thread::yield_now()
            }
            state = issuer.state.lock();
        }
        state.gathers = None;
        drop(state);
        self.since = Some(Instant::now());
    }

    /// Checks that what is stable does not get less when the queue of itxs is written up to `end`.
    pub fn check(&self, end: u64) {
        let stable = self.issuer.state.lock().stable;
        invariant!(stable <= end, "{end} itxs are written, and {stable} were stable before");
    }

    /// The queue of itxs is stable up to `end`: in the log.
    pub fn has_written(mut self, end: u64) {
        self.stable = end;
    }

    /// The queue of itxs is stable up to `end`: on disk with its group, or nothing was to be written. That says nothing of how
    /// long commits take.
    pub fn has_waited(mut self, end: u64) {
        (self.stable, self.since) = (end, None);
    }
}

impl Drop for Issuing<'_> {
    fn drop(&mut self) {
        let issuer = self.issuer;
        let mut state = issuer.state.lock();
        state.stable = state.stable.max(self.stable);
        let (done, next) = state.next();
        let left = state.waiters.len() + usize::from(next.is_some());
        if let Some(since) = self.since.filter(|_| self.stable > 0) {
            state.round = 1 + done.len() + left;
            state.takes = (state.takes * 3 + since.elapsed().min(LONG)) / 4;
        }
        tell(state, next, done);
    }
}

/// Tells the threads without the lock.
fn tell(state: MutexGuard<'_, State>, next: Option<Waiter>, done: VecDeque<Waiter>) {
    drop(state);
    next.iter().for_each(|waiter| waiter.tell(IS_ISSUER));
    done.iter().for_each(|waiter| waiter.tell(IS_STABLE));
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
                                let _out = model.issuer.keep_out(&|| false);
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
                while issuer.state.lock().waiters.len() <= of as usize {
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

    /// Two threads that commit by turns come to share a flush: a thread that waits when a commit ends comes again.
    #[test]
    fn who_came_meanwhile_is_waited_for() {
        let issuer = Issuer::default();
        let mut first = issuer.wait_for(1).unwrap();
        first.gather(10);
        thread::scope(|scope| {
            let second = scope.spawn(|| issuer.wait_for(2).unwrap());
            while issuer.state.lock().waiters.is_empty() {
                thread::yield_now();
            }
            first.has_written(1);
            drop(second.join().unwrap());
        });
        assert_eq!(issuer.state.lock().round, 2);
    }

    /// Threads that were served together are served together again.
    #[test]
    fn those_that_were_served_together_join() {
        let issuer = Issuer::default();
        let served =
            |state: &mut State| (state.round, state.takes) = (4, Duration::from_secs(1000));
        served(&mut issuer.state.lock());
        let queued = AtomicU64::new(0);
        let wrote = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let wanted = queued.fetch_add(1, Ordering::SeqCst) + 1;
                    let Some(mut issuing) = issuer.wait_for(wanted) else { return };
                    issuing.gather(10);
                    wrote.fetch_add(1, Ordering::SeqCst);
                    issuing.has_written(queued.load(Ordering::SeqCst));
                });
            }
        });
        assert_eq!((wrote.into_inner(), issuer.state.lock().round), (1, 4));
    }

    #[test]
    fn an_issuer_goes_on_by_itself() {
        let issuer = Issuer::default();
        let served = |of, takes| {
            let mut state = issuer.state.lock();
            (state.round, state.takes) = (of, takes);
        };
        let (long, short) = (Duration::from_secs(1000), Duration::from_millis(20));
        served(9, long);
        let mut issuing = issuer.wait_for(1).unwrap();
        issuing.gather(0);
        served(9, short);
        let since = Instant::now();
        issuing.gather(100);
        assert!(since.elapsed() >= short, "others were given no time");
        served(9, long);
        issuing.has_written(1);
        let learned = |state: &State| (state.round, state.takes);
        let (round, takes) = learned(&issuer.state.lock());
        assert!(round == 1 && takes < long, "nothing was learned");
        // What waited for its group says nothing.
        issuer.wait_for(2).unwrap().has_waited(2);
        let state = issuer.state.lock();
        assert_eq!((state.stable, state.takes), (2, takes));
    }
}
