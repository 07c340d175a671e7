//! Which thread writes to the log of a dataset, which waits, and in which order commits become stable (`zil_commit_writer`,
//! `zil_lwb_flush_vdevs_done`).
//!
//! # Idea
//!
//! One commit puts records into the chain at a time: the *issuer*. Commits that come meanwhile wait. When its blocks are
//! written the issuer is *in flight* ([`Flight`]): it makes them durable, while the next issuer writes the changes of
//! all threads that wait.
//!
//! ```text
//!  issuer 1   take, encode, write | flush ........... | stable
//!  issuer 2                         take, write |       flush ........... | stable
//!  issuer 3                                       take, write               | stable
//! ```
//!
//! The devices of a pool are flushed by one flush at a time (`vdev::write`), which makes durable all that was written
//! before it: the one of issuer 2 is that of issuer 3 as well.
//!
//! A thread that is done tells all threads whose changes are stable now, and only those. The commit that has waited longest
//! is the next issuer. A commit whose changes are all in flight waits for these.
//!
//! # Invariants
//!
//! - `stable` does not get less.
//! - While somebody waits there is an issuer, or a flight that covers him.
//! - No thread waits for what is stable.
//! - A flight is stable once it and all before it are durable: a log is read up to the first block that is missing,
//!   so what is behind that was never there.
//! - Where a flight fails, it and those after it are *lost*, also those whose blocks were written by then. A lost flight
//!   waits for the transaction group, and covers its changes until then.
//! - [`MOST`] flights are under way at most.

use super::waiting::{AtomicU8, Condvar, Mutex, MutexGuard, Ordering, Thread, thread};
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_vdev::waiting;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Most commits that make their blocks durable at once. With more of them each has fewer changes.
const MOST: usize = 4;
/// How often a thread that may give up looks whether it is to.
const LOOK: Duration = Duration::from_millis(100);

/// What a waiter was told.
const NOTHING: u8 = 0;
const IS_STABLE: u8 = 1;
const IS_ISSUER: u8 = 2;
const IS_LOST: u8 = 3;

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

/// What is known of the blocks of a flight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocks {
    Written,
    Durable,
    /// They, or some before them, could not be made durable.
    Lost,
}

/// A commit whose blocks are written, and being made durable.
struct Flying {
    number: u64,
    /// How far the queue of itxs is written with it.
    end: u64,
    blocks: Blocks,
    /// Its thread, which waits for those before it.
    waiter: Option<Waiter>,
}

#[derive(Default)]
struct State {
    /// How far the queue of itxs is known to be stable.
    stable: u64,
    has_issuer: bool,
    waiters: VecDeque<Waiter>,
    /// In the order in which they were written.
    flights: VecDeque<Flying>,
    /// Number of the last flight.
    number: u64,
    /// How many flights failed.
    failures: u64,
}

impl State {
    /// How far the queue is written once all flights are stable.
    fn covered(&self) -> u64 {
        self.flights.back().map_or(self.stable, |last| last.end.max(self.stable))
    }

    fn may_issue(&self) -> bool {
        !self.has_issuer && self.flights.len() < MOST
    }

    /// The queue is stable up to `end`.
    fn settle(&mut self, end: u64) {
        self.stable = self.stable.max(end);
    }

    /// Lets the flights go that are stable, in order.
    fn land(&mut self) -> Vec<Waiter> {
        let mut landed = Vec::new();
        while let Some(flight) = self.flights.pop_front_if(|f| f.blocks == Blocks::Durable) {
            self.settle(flight.end);
            landed.extend(flight.waiter);
        }
        landed
    }

    /// A flight failed: those after it are behind a hole in the chain.
    fn lose(&mut self, number: u64) -> Vec<Waiter> {
        self.failures += 1;
        let mut lost = Vec::new();
        for flight in self.flights.iter_mut().filter(|flight| flight.number >= number) {
            flight.blocks = Blocks::Lost;
            lost.extend(flight.waiter.take());
        }
        lost
    }

    /// A lost flight ends.
    fn remove(&mut self, number: u64) -> Vec<Waiter> {
        self.flights.retain(|flight| flight.number != number);
        self.land()
    }

    /// Takes those whose changes are stable, and the next issuer, if there is to be one.
    fn next(&mut self) -> (VecDeque<Waiter>, Option<Waiter>) {
        let stable = self.stable;
        let (done, left) = self.waiters.drain(..).partition(|waiter| waiter.wanted <= stable);
        self.waiters = left;
        let covered = self.covered();
        let uncovered = self.waiters.iter().position(|waiter| waiter.wanted > covered);
        let next = uncovered.filter(|_| self.may_issue()).and_then(|at| self.waiters.remove(at));
        self.has_issuer |= next.is_some();
        (done, next)
    }
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Issuer {
    state: Mutex<State>,
    /// No commit is in flight any more.
    landed: Condvar,
}

/// The right to write, until it is dropped.
pub(super) struct Issuing<'a> {
    issuer: &'a Issuer,
    stable: u64,
    /// [`State::failures`] when it began.
    failures: u64,
}

/// A commit that is in flight. Dropped before it is stable, it has failed.
pub(super) struct Flight<'a> {
    issuer: &'a Issuer,
    number: u64,
    end: u64,
    /// It is among [`State::flights`].
    flying: bool,
}

impl Issuer {
    /// Waits until the queue of itxs is stable up to `wanted` (`zil_commit_waiter`): then `None`. Or it is for the caller to make it so.
    pub fn wait_for(&self, wanted: u64) -> Option<Issuing<'_>> {
        let mut state = self.state.lock();
        if state.stable >= wanted {
            return None;
        }
        if state.may_issue() && wanted > state.covered() {
            return Some(self.issuing(&mut state));
        }
        let is_served = state.has_issuer || !state.flights.is_empty();
        invariant!(is_served, "a commit up to {wanted} waits, and no commit writes");
        let waiter = Waiter::new(wanted);
        let mine = waiter.told.clone();
        state.waiters.push_back(waiter);
        drop(state);
        waiting::begins();
        match told(&mine) {
            IS_STABLE => None,
            _ => {
                let failures = self.state.lock().failures;
                Some(Issuing { issuer: self, stable: 0, failures })
            }
        }
    }

    /// Waits until no thread writes and nothing is in flight, and keeps all threads from writing. `None`: `gives_up`,
    /// which is asked now and then, said so before.
    pub fn keep_out(&self, gives_up: &dyn Fn() -> bool) -> Option<Issuing<'_>> {
        let issuing = self.issue_unless(gives_up)?;
        let mut state = self.state.lock();
        while !state.flights.is_empty() {
            // Asked without the lock: what it looks at has one of its own.
            drop(state);
            if gives_up() {
                return None;
            }
            state = self.state.lock();
            if !state.flights.is_empty() {
                self.landed.wait_for(&mut state, LOOK);
            }
        }
        drop(state);
        Some(issuing)
    }

    /// Waits until it is for the caller to write, unless it gives up.
    fn issue_unless(&self, gives_up: &dyn Fn() -> bool) -> Option<Issuing<'_>> {
        let mut state = self.state.lock();
        if state.may_issue() {
            return Some(self.issuing(&mut state));
        }
        // No queue is stable that far: it is told only that it is the issuer.
        let waiter = Waiter::new(u64::MAX);
        let mine = waiter.told.clone();
        state.waiters.push_back(waiter);
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
        let failures = self.state.lock().failures;
        Some(Issuing { issuer: self, stable: 0, failures })
    }

    /// As [`Issuer::keep_out`], if no thread writes now and nothing is in flight.
    pub fn try_keep_out(&self) -> Option<Issuing<'_>> {
        let mut state = self.state.lock();
        let is_idle = !state.has_issuer && state.flights.is_empty();
        is_idle.then(|| self.issuing(&mut state))
    }

    fn issuing(&self, state: &mut State) -> Issuing<'_> {
        state.has_issuer = true;
        Issuing { issuer: self, stable: 0, failures: state.failures }
    }

    /// Tells the threads that wait, without the lock, what is known now. `told`: the threads that are told more.
    fn tell(&self, mut state: MutexGuard<'_, State>, others: &[Waiter], what: u8) {
        let (done, next) = state.next();
        if state.flights.is_empty() {
            self.landed.notify_all();
        }
        drop(state);
        next.iter().for_each(|waiter| waiter.tell(IS_ISSUER));
        others.iter().for_each(|waiter| waiter.tell(what));
        done.iter().for_each(|waiter| waiter.tell(IS_STABLE));
    }
}

impl<'a> Issuing<'a> {
    /// Checks that what is stable does not get less when the queue of itxs is written up to `end`.
    pub fn check(&self, end: u64) {
        let state = self.issuer.state.lock();
        let (stable, covered) = (state.stable, state.covered());
        invariant!(stable <= end, "{end} itxs are written, and {stable} were stable before");
        invariant!(covered <= end, "{end} itxs are written, and {covered} are being written");
    }

    /// The queue of itxs is stable up to `end`: it is on disk.
    pub fn has_written(mut self, end: u64) {
        self.stable = end;
    }

    /// All blocks of the queue of itxs up to `end` are written, though not durable (`zil_lwb_write_done`). The next commit may
    /// write.
    pub fn launch(self, end: u64) -> Flight<'a> {
        let issuer = self.issuer;
        let mut state = issuer.state.lock();
        state.number += 1;
        let (number, waiter) = (state.number, None);
        // A flight that failed since this one began to write left a hole before it.
        let is_behind = state.failures != self.failures;
        let blocks = if is_behind { Blocks::Lost } else { Blocks::Written };
        state.flights.push_back(Flying { number, end, blocks, waiter });
        let flights = state.flights.len();
        invariant!(flights <= MOST, "{flights} commits are in flight");
        drop(state);
        Flight { issuer, number, end, flying: true }
    }
}

impl Drop for Issuing<'_> {
    fn drop(&mut self) {
        let mut state = self.issuer.state.lock();
        state.settle(self.stable);
        state.has_issuer = false;
        self.issuer.tell(state, &[], IS_STABLE);
    }
}

impl Flight<'_> {
    /// Its blocks are durable. Waits for those before it; whether all are, and what it has written is stable.
    /// If not it has to wait for its group.
    pub fn is_stable(&mut self) -> bool {
        let (number, mut state) = (self.number, self.issuer.state.lock());
        let Some(at) = state.flights.iter().position(|flight| flight.number == number) else {
            broken(format_args!("flight {number} is not in flight"));
        };
        let flight = &mut state.flights[at];
        if flight.blocks == Blocks::Lost {
            return false;
        }
        flight.blocks = Blocks::Durable;
        let is_stable = match at {
            0 => {
                let landed = state.land();
                self.issuer.tell(state, &landed, IS_STABLE);
                true
            }
            _ => {
                let waiter = Waiter::new(self.end);
                let mine = waiter.told.clone();
                flight.waiter = Some(waiter);
                drop(state);
                told(&mine) == IS_STABLE
            }
        };
        self.flying = !is_stable;
        is_stable
    }

    /// Its blocks are not durable: no flight after it becomes stable by being durable.
    pub fn fail(&mut self) {
        let mut state = self.issuer.state.lock();
        let lost = state.lose(self.number);
        self.issuer.tell(state, &lost, IS_LOST);
    }

    /// The queue of itxs is stable up to its end: it is on disk.
    pub fn has_written(mut self) {
        self.flying = false;
        let mut state = self.issuer.state.lock();
        state.settle(self.end);
        let landed = state.remove(self.number);
        self.issuer.tell(state, &landed, IS_STABLE);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.flying {
            let mut state = self.issuer.state.lock();
            let lost = state.lose(self.number);
            // Those behind it are lost as well, so none lands.
            drop(state.remove(self.number));
            self.issuer.tell(state, &lost, IS_LOST);
        }
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

    /// A log whose blocks are durable in any order, or never.
    #[derive(Default)]
    struct Chain {
        issuer: Issuer,
        queued: AtomicU64,
        on_disk: AtomicU64,
        /// How far the queue is written with each block, and whether it is durable.
        blocks: Mutex<Vec<(u64, bool)>>,
        most: AtomicU64,
    }

    impl Chain {
        /// Whether a change is there after a crash: on disk, or in a chain without a hole.
        fn has(&self, change: u64) -> bool {
            let on_disk = self.on_disk.load(Ordering::SeqCst);
            let blocks = self.blocks.lock();
            let mut left = blocks.iter().skip_while(|(end, _)| *end <= on_disk);
            let whole = left.by_ref().take_while(|(_, durable)| *durable);
            on_disk >= change || whole.map(|(end, _)| *end).any(|end| end >= change)
        }

        fn sync(&self) {
            self.on_disk.fetch_max(self.queued.load(Ordering::SeqCst), Ordering::SeqCst);
        }

        fn commit(&self, fails: bool) {
            let wanted = self.queued.fetch_add(1, Ordering::SeqCst) + 1;
            let Some(issuing) = self.issuer.wait_for(wanted) else {
                return assert!(self.has(wanted), "told too early");
            };
            let end = self.queued.load(Ordering::SeqCst);
            issuing.check(end);
            let block = {
                let mut blocks = self.blocks.lock();
                blocks.push((end, false));
                blocks.len() - 1
            };
            let mut flight = issuing.launch(end);
            let flying = self.issuer.state.lock().flights.len() as u64;
            self.most.fetch_max(flying, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(wanted * 7 % 5 * 40));
            if fails {
                flight.fail();
            } else {
                self.blocks.lock()[block].1 = true;
                if flight.is_stable() {
                    return assert!(self.has(wanted), "stable too early");
                }
            }
            thread::sleep(Duration::from_micros(100));
            self.sync();
            flight.has_written();
        }
    }

    #[test]
    fn flights_are_stable_in_order() {
        let chain = Chain::default();
        thread::scope(|scope| {
            for of in 0..8_u64 {
                let chain = &chain;
                scope.spawn(move || {
                    for n in 0..300_u64 {
                        match (of, n % 11) {
                            (0, 3) => {
                                let _out = chain.issuer.keep_out(&|| false);
                                assert!(chain.issuer.state.lock().flights.is_empty());
                            }
                            (1 | 2, 5) => chain.commit(true),
                            _ => chain.commit(false),
                        }
                    }
                });
            }
        });
        assert!(chain.most.load(Ordering::SeqCst) > 1, "nothing was in flight side by side");
        assert!(chain.issuer.try_keep_out().is_some(), "somebody is left");
    }

    #[test]
    fn whatever_order_they_become_durable_in() {
        for order in 0..MOST.pow(MOST as u32) {
            let order: Vec<usize> = (0..MOST).map(|n| order / MOST.pow(n as u32) % MOST).collect();
            if (0..MOST).any(|n| !order.contains(&n)) {
                continue;
            }
            for fails in 0..=MOST {
                land_in(&order, fails);
            }
        }
    }

    /// Flights land in an order, of which flight `fails` fails.
    fn land_in(order: &[usize], fails: usize) {
        let issuer = Issuer::default();
        let fly = |n: usize| Some(issuer.wait_for(n as u64 + 1).unwrap().launch(n as u64 + 1));
        let mut flights: Vec<Option<Flight<'_>>> = (0..MOST).map(fly).collect();
        let stable = AtomicU64::new(0);
        let lost = AtomicU64::new(0);
        thread::scope(|scope| {
            let mut durable = [false; MOST];
            for n in order {
                let mut flight = flights[*n].take().unwrap();
                let (issuer, stable, lost) = (&issuer, &stable, &lost);
                durable[*n] = *n != fails;
                scope.spawn(move || {
                    let landed = if *n == fails {
                        flight.fail();
                        false
                    } else {
                        flight.is_stable()
                    };
                    let which = if landed { stable } else { lost };
                    which.fetch_add(1, Ordering::SeqCst);
                });
                let whole = durable.iter().take_while(|durable| **durable).count();
                while stable.load(Ordering::SeqCst) < whole as u64 {
                    thread::yield_now();
                }
                assert_eq!(issuer.state.lock().stable, whole as u64);
            }
        });
        let stays = fails.min(MOST) as u64;
        assert_eq!(stable.into_inner(), stays, "{order:?}, {fails} fails");
        assert_eq!(lost.into_inner(), MOST as u64 - stays);
        assert!(issuer.try_keep_out().is_some());
    }
}
