//! The threads that wait for requests: a leader, a deputy, and others in line.
//!
//! # Idea
//!
//! One thread waits for the requests of all mounts: the *leader*. It serves what it reads itself, so that no second thread is
//! woken for a request, and then waits again. No thread waits meanwhile, which is right as long as it takes a few
//! microseconds. Where it takes longer another thread leads:
//!
//! 1. What may block says so before it does ([`cenote_vdev::waiting`]): reads of devices, waits for a transaction group, for
//!    the throttle, for another thread. The leader then hands on to the *deputy* ([`Lead::hand_on`]), unless it waits for a commit that is likely
//!    to take a moment ([`brief`](super::brief)).
//! 2. What takes long for another reason, or what blocks unforeseen, is seen by the deputy, which looks every
//!    `fuse_watchdog_ns` whether the leader is in the same turn as before, and leads itself then.
//! 3. A thread that is done with what it handed on leads again if the leader is serving at that moment: it has nothing
//!    else to do. Otherwise it becomes the deputy, if no thread is, or stands in line.
//!
//! ```text
//!            begin                      ended
//!   waiting ───────> serving(turn) ───────────> waiting(turn + 1), the same thread
//!      ^                   │
//!      │                   │ handed on, or overtaken: a compare-and-swap of `serving(turn)`
//!      └───────────────────┴──────────────────> waiting(turn + 1), another thread
//! ```
//!
//! A turn is one request. All of it is one word: twice the number of the turn, and 1 while it is served.
//!
//! The deputy sleeps while the leader does: it looks a few times more, and then must be woken by the next turn
//! ([`Lead::begin`]). So neither wakes up while there are no requests.
//!
//! # Invariants
//!
//! - One thread leads, from when the first thread is started: the one that has the [`Turn`]. Only the leader changes the
//!   word from waiting; from serving it is changed once, and the thread that does that leads.
//! - While a turn is served there is a deputy that looks, if the system lets threads be started: where there is no deputy, one
//!   is started when the turn begins, and again when it may block. So no request waits longer than twice the bound for
//!   another one's sake.
//! - A thread that panics while it leads goes on leading ([`Lead::go_on`]), unless another one was quicker.
//! - A thread in line is no deputy, and a deputy is not in line; the leader and those that serve are neither.
//!
//! # Order of locks
//!
//! `seats` comes after all others: what blocks says so with locks held. Nothing is taken with it, no thread is started, and
//! nothing is logged.

use cenote_format::invariant::broken;
use cenote_vdev::tunables;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Looks of the deputy that find nothing new before it sleeps.
const QUIET: u32 = 3;
/// How long a thread waits for something to do before it lets go of what it has, or ends.
pub(super) const REST: Duration = Duration::from_secs(10);
/// Threads that there are always: one that leads, and the deputy.
const LEAST: usize = 2;

/// What the deputy does: no deputy looks.
const ABSENT: u8 = 0;
/// It sleeps until it is woken.
const SLEEPS: u8 = 1;
/// It looks at the leader again and again.
const LOOKS: u8 = 2;

/// The right to wait for requests. The number of the next request.
#[derive(Debug)]
pub(super) struct Turn(u64);

impl Turn {
    fn waiting(&self) -> u64 {
        2 * self.0
    }

    fn serving(&self) -> u64 {
        2 * self.0 + 1
    }

    fn next(self) -> Turn {
        Turn(self.0 + 1)
    }
}

/// The turn that is served, by the word.
fn served(word: u64) -> Option<Turn> {
    (word % 2 == 1).then_some(Turn(word / 2))
}

/// What a thread does that has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Idle {
    /// It looks at the leader.
    Looks,
    /// It has had nothing to do for [`REST`].
    Rests,
}

/// A thread.
pub(super) struct Seat {
    thread: Thread,
    /// The turn that it was given; 0: none.
    given: AtomicU64,
}

impl Seat {
    /// Of this thread.
    pub(super) fn new() -> Arc<Seat> {
        Arc::new(Seat { thread: thread::current(), given: AtomicU64::new(0) })
    }

    fn give(&self, turn: Turn) {
        self.given.store(turn.0, SeqCst);
        self.thread.unpark();
    }

    fn take(&self) -> Option<Turn> {
        Some(self.given.swap(0, SeqCst)).filter(|turn| *turn > 0).map(Turn)
    }
}

/// The threads that do not lead and serve nothing.
#[derive(Default)]
struct Seats {
    deputy: Option<Arc<Seat>>,
    line: Vec<Arc<Seat>>,
    /// All threads, those that lead or serve too.
    threads: usize,
    /// Threads that were started and have no seat yet.
    coming: usize,
}

impl Seats {
    fn is_deputy(&self, seat: &Arc<Seat>) -> bool {
        self.deputy.as_ref().is_some_and(|deputy| Arc::ptr_eq(deputy, seat))
    }
}

/// See the [module](self).
pub(super) struct Lead {
    /// Twice the number of the turn, and 1 while it is served.
    word: AtomicU64,
    /// What the deputy does.
    deputy: AtomicU8,
    seats: Mutex<Seats>,
}

impl Lead {
    pub(super) fn new() -> Lead {
        Lead { word: AtomicU64::new(2), deputy: AtomicU8::new(ABSENT), seats: Mutex::default() }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock()
    }

    /// The turn, and whether it is served.
    #[cfg(test)]
    pub(super) fn word(&self) -> u64 {
        self.word.load(SeqCst)
    }

    /// Threads that there are.
    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.seats().threads
    }

    /// Has `start` start the first thread, which leads.
    ///
    /// # Errors
    /// Those of `start`.
    pub(super) fn start_first(
        &self,
        start: impl FnOnce(Option<Turn>) -> io::Result<()>,
    ) -> io::Result<()> {
        if std::mem::replace(&mut self.seats().threads, 1) > 0 {
            return Ok(());
        }
        start(served(self.word.load(SeqCst) + 1)).inspect_err(|_| self.seats().threads = 0)
    }

    /// A request was read, and is about to be served. From now on the deputy looks; without a deputy, `start` starts a
    /// thread.
    ///
    /// # Errors
    /// Those of `start`: the request is served without a deputy.
    pub(super) fn begin(
        &self,
        turn: &Turn,
        start: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let (waiting, serving) = (turn.waiting(), turn.serving());
        if let Err(is) = self.word.compare_exchange(waiting, serving, SeqCst, SeqCst) {
            // The word stays another thread's.
            broken(format_args!("the leader waits for turn {waiting}, and it is {is}"));
        }
        // The deputy says that it sleeps before it looks at the word for the last time.
        if self.deputy.load(SeqCst) == LOOKS { Ok(()) } else { self.wake_deputy(start) }
    }

    #[cold]
    fn wake_deputy(&self, start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut seats = self.seats();
        if seats.deputy.is_none() {
            seats.deputy = seats.line.pop();
        }
        if let Some(deputy) = &seats.deputy {
            self.deputy.store(LOOKS, SeqCst);
            deputy.thread.unpark();
            return Ok(());
        }
        self.start_one(seats, start)
    }

    /// Has `start` start a thread, unless one was started that has no seat yet.
    fn start_one(
        &self,
        mut seats: MutexGuard<'_, Seats>,
        start: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if seats.coming > 0 {
            return Ok(());
        }
        (seats.threads, seats.coming) = (seats.threads + 1, 1);
        drop(seats);
        start().inspect_err(|_| {
            let mut seats = self.seats();
            (seats.threads, seats.coming) = (seats.threads - 1, 0);
        })
    }

    /// The request was served: the thread waits for the next one. `None`: another thread does.
    pub(super) fn ended(&self, turn: Turn) -> Option<Turn> {
        self.change(turn)
    }

    /// A thread that led, waiting or serving, in this turn has panicked. The turn that it goes on with; `None`: another thread
    /// leads.
    pub(super) fn go_on(&self, turn: Turn) -> Option<Turn> {
        match self.word.load(SeqCst) == turn.waiting() {
            true => Some(turn),
            false => self.change(turn),
        }
    }

    /// From serving a turn to waiting for the next one.
    fn change(&self, turn: Turn) -> Option<Turn> {
        let (serving, next) = (turn.serving(), turn.next());
        self.word.compare_exchange(serving, next.waiting(), SeqCst, SeqCst).ok().map(|_| next)
    }

    /// The leader may block from now on: the deputy leads. Gives the turn back if there is no deputy: then `start` starts a
    /// thread, which leads when it comes. It may take no locks.
    pub(super) fn hand_on(
        &self,
        turn: Turn,
        start: impl FnOnce() -> io::Result<()>,
    ) -> Option<Turn> {
        let mut seats = self.seats();
        let Some(deputy) = seats.deputy.take() else {
            if self.word.load(SeqCst) != turn.serving() {
                return None;
            }
            // What blocks may hold locks: the error is not logged here. It is when a turn begins.
            let _failed = self.start_one(seats, start);
            return Some(turn);
        };
        match self.change(turn) {
            Some(next) => {
                self.deputy.store(ABSENT, SeqCst);
                deputy.give(next);
            }
            // Another thread leads already.
            None => seats.deputy = Some(deputy),
        }
        None
    }

    /// A thread that has nothing to do: returns when it leads. `None`: it is not needed any more, as there are more than
    /// `kept`. `idle` is told what the thread does meanwhile.
    pub(super) fn follow(
        &self,
        seat: &Arc<Seat>,
        kept: usize,
        idle: &mut dyn FnMut(Idle),
    ) -> Option<Turn> {
        let mut seats = self.seats();
        if let Some(turn) = served(self.word.load(SeqCst)).and_then(|turn| self.change(turn)) {
            return Some(turn);
        }
        if seats.deputy.is_none() {
            seats.deputy = Some(seat.clone());
            self.deputy.store(LOOKS, SeqCst);
            drop(seats);
            return Some(self.look(seat, idle));
        }
        seats.line.push(seat.clone());
        drop(seats);
        self.stand_in_line(seat, kept, idle)
    }

    /// As [`Lead::follow`], for a thread that [`Lead::begin`] had started.
    pub(super) fn arrive(
        &self,
        seat: &Arc<Seat>,
        kept: usize,
        idle: &mut dyn FnMut(Idle),
    ) -> Option<Turn> {
        self.seats().coming = 0;
        self.follow(seat, kept, idle)
    }

    fn stand_in_line(
        &self,
        seat: &Arc<Seat>,
        kept: usize,
        idle: &mut dyn FnMut(Idle),
    ) -> Option<Turn> {
        let (since, mut rested) = (Instant::now(), false);
        loop {
            if let Some(turn) = seat.take() {
                return Some(turn);
            }
            match rested {
                true => thread::park(),
                false => thread::park_timeout(REST.saturating_sub(since.elapsed())),
            }
            let mut seats = self.seats();
            if seats.is_deputy(seat) {
                drop(seats);
                return Some(self.look(seat, idle));
            }
            let at = seats.line.iter().position(|other| Arc::ptr_eq(other, seat));
            let (Some(at), false) = (at, rested || since.elapsed() < REST) else { continue };
            if seats.threads > kept.max(LEAST) {
                seats.line.remove(at);
                seats.threads -= 1;
                return None;
            }
            drop(seats);
            idle(Idle::Rests);
            rested = true;
        }
    }

    /// What the deputy does: looks at the leader until this thread leads.
    fn look(&self, seat: &Arc<Seat>, idle: &mut dyn FnMut(Idle)) -> Turn {
        let (mut seen, mut quiet) = (0, 0);
        loop {
            if let Some(turn) = seat.take() {
                return turn;
            }
            let word = self.word.load(SeqCst);
            idle(Idle::Looks);
            quiet = if word == seen { quiet + 1 } else { 0 };
            if let Some(turn) = served(word).filter(|_| word == seen)
                && let Some(turn) = self.overtake(seat, turn)
            {
                return turn;
            }
            seen = word;
            if quiet < QUIET || served(word).is_some() {
                thread::park_timeout(Duration::from_nanos(tunables::FUSE_WATCHDOG.get()));
                continue;
            }
            self.sleep(seat, word, idle);
            (seen, quiet) = (0, 0);
        }
    }

    /// The deputy leads, as the leader has served this turn for too long.
    fn overtake(&self, seat: &Arc<Seat>, turn: Turn) -> Option<Turn> {
        let mut seats = self.seats();
        let next = if seats.is_deputy(seat) { self.change(turn) } else { None };
        if next.is_some() {
            seats.deputy = None;
            self.deputy.store(ABSENT, SeqCst);
        }
        next
    }

    /// The deputy sleeps until the leader is in another turn than `word`'s.
    fn sleep(&self, seat: &Arc<Seat>, word: u64, idle: &mut dyn FnMut(Idle)) {
        let says = |from: u8, to: u8| {
            let seats = self.seats();
            let is = seats.is_deputy(seat) && self.deputy.load(SeqCst) == from;
            if is {
                self.deputy.store(to, SeqCst);
            }
            is
        };
        if !says(LOOKS, SLEEPS) {
            return;
        }
        let sleeps = || {
            let same = self.word.load(SeqCst) == word;
            same && self.deputy.load(SeqCst) == SLEEPS && seat.given.load(SeqCst) == 0
        };
        let since = Instant::now();
        while sleeps() && since.elapsed() < REST {
            thread::park_timeout(REST.saturating_sub(since.elapsed()));
        }
        if sleeps() {
            idle(Idle::Rests);
        }
        while sleeps() {
            thread::park();
        }
        says(SLEEPS, LOOKS);
    }
}

#[cfg(test)]
mod tests;
