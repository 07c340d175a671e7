//! The schedule: which thread of the process runs, and what time it is, decided by a seed.
//!
//! # Idea
//!
//! The simulator runs the threads that the engine runs in production: nothing in the engine is switched off or written
//! anew for it. A thread that blocks, in whatever lock, condition, channel or join, asks the C library for it (`futex`,
//! `pthread_join`), and so does one that sleeps, yields, starts another one, or asks for the time or a random number.
//! The simulator's binary has functions of these names itself ([`calls`]), so that all of them come here.
//!
//! One thread at a time has the *baton* and runs. Where it blocks, it hands the baton to one of the threads that
//! could go on, which the seed picks. It does that as well, now and then, where it could go on itself: when it wakes
//! others, starts a thread, yields, or gives a device something to do ([`point`]). So every order of the threads that
//! blocking and devices allow may come up, and a seed always leads to the same one.
//!
//! ```text
//!   txg-sync    ──write──┐               ┌──futex_wait ┐
//!   write-behind         └─write─┐  ┌────┘             └ ...
//!   worker                       └──┘  (futex_wake)
//! ```
//!
//! # Time
//!
//! Time stands still but for a microsecond at each hand-over, and for what threads wait: when all of them wait, it
//! jumps to the first moment at which one goes on. A group of five seconds takes no time.
//!
//! # Addresses
//!
//! Some things go by addresses: `parking_lot` chooses by them when a lock is handed over fairly, hashers take them for
//! chance. So [`settle`] has the kernel put everything at the same place each time, and a thread that was started or
//! goes on after another one has ended waits until the kernel knows no more of that one: then its memory has been given back.
//!
//! # What it finds besides what the engine says
//!
//! All threads wait and no thread has a time at which it goes on: that is a deadlock. The threads hand the baton around
//! without end: that is a livelock ([`MOST`]). Both end the process, with a list of the threads.
//!
//! # What it does not do
//!
//! A thread is not stopped between two instructions that ask the C library for nothing, and all threads see memory in
//! one order. Races of atomics are for the models of the few structures that have them (`loom`).
//!
//! # Invariants
//!
//! - The thread that has the baton is the only one that runs, of those that were started since [`run`].
//! - Only that one looks at the state here; handing over is a `futex` of the kernel, which orders memory.
//! - What is here takes no lock and allocates nothing that another thread may be in the midst of.

mod calls;

use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;

pub use calls::{point, run, settle};

/// Hand-overs after which a history is said to have no end.
const MOST: u64 = 40_000_000;
/// What one takes, in nanoseconds.
const TICK: u64 = 1000;
/// Seconds since 1970 when a history begins.
const EPOCH: u64 = 1_700_000_000;
const SECOND: u64 = 1_000_000_000;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, or could.
    Ready,
    /// It waits at an address, until a moment at most.
    Waits { at: usize, bits: u32, until: Option<u64> },
    /// It sleeps until a moment.
    Sleeps { until: u64 },
    /// It waits for the end of another one.
    Joins(usize),
    /// It has ended.
    Done,
}

impl State {
    fn until(self) -> Option<u64> {
        match self {
            State::Waits { until, .. } => until,
            State::Sleeps { until } => Some(until),
            _ => None,
        }
    }
}

/// A thread.
struct Thread {
    /// 1: it has the baton. In a box of its own, since threads wait at it.
    go: Box<AtomicU32>,
    state: State,
    /// Its time was over before somebody woke it.
    timed_out: bool,
    /// What the C library calls it.
    handle: u64,
    /// Its name, once it has ended.
    name: [u8; 16],
}

/// Random numbers (splitmix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// Why a history cannot go on.
#[derive(Debug)]
enum Stuck {
    Deadlock,
    Livelock,
}

/// See the [module](self).
struct Schedule {
    threads: Vec<Thread>,
    current: usize,
    /// Nanoseconds since the beginning.
    now: u64,
    picks: Chance,
    /// Random numbers for code that asks the system.
    numbers: Chance,
    /// A thread that could go on hands the baton over one time in so many.
    stays: u64,
    switches: u64,
    /// Changes with all that was decided.
    digest: u64,
    /// The last threads that ran, for a report.
    last: VecDeque<usize>,
    /// A thread that has handed the baton over for good: the kernel's number of it.
    gone: Option<i32>,
    /// Every decision is told: where two runs of a seed differ, this says from when on.
    traces: bool,
}

/// What came of a history, besides what it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Times that the baton was handed over.
    pub switches: u64,
    /// Threads.
    pub threads: usize,
    /// Simulated time that passed, in nanoseconds.
    pub time: u64,
    /// Differs, in all likelihood, from that of any other history.
    pub digest: u64,
}

impl Schedule {
    fn new(seed: u64, traces: bool) -> Schedule {
        let mut picks = Chance(seed);
        let numbers = Chance(picks.next());
        let stays = [1, 2, 4, 16][picks.below(4) as usize];
        let (threads, last) = (Vec::new(), VecDeque::new());
        let (current, now, switches) = (0, 0, 0);
        let (digest, gone) = (seed, None);
        Schedule {
            threads,
            current,
            now,
            picks,
            numbers,
            stays,
            switches,
            digest,
            last,
            gone,
            traces,
        }
    }

    /// A new thread, which could run.
    fn add(&mut self, handle: u64) -> usize {
        let go = Box::new(AtomicU32::new(0));
        let state = State::Ready;
        self.threads.push(Thread { go, state, timed_out: false, handle, name: [0; 16] });
        self.threads.len() - 1
    }

    fn note(&mut self, what: u64) {
        self.digest = (self.digest.rotate_left(5) ^ what).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    /// Those whose time is over could go on.
    fn expire(&mut self) {
        for thread in &mut self.threads {
            if thread.state.until().is_some_and(|until| until <= self.now) {
                thread.timed_out = true;
                thread.state = State::Ready;
            }
        }
    }

    /// Chooses the thread that has the baton next.
    fn pick(&mut self) -> Result<usize, Stuck> {
        self.switches += 1;
        self.now += TICK;
        if self.switches > MOST {
            return Err(Stuck::Livelock);
        }
        loop {
            self.expire();
            let ready = self.threads.iter().filter(|t| t.state == State::Ready).count() as u64;
            if ready > 0 {
                let which = self.picks.below(ready) as usize;
                let all = self.threads.iter().enumerate();
                let mut could = all.filter(|(_, t)| t.state == State::Ready).map(|(i, _)| i);
                let next = could.nth(which).unwrap_or(self.current);
                self.note(next as u64 ^ self.now << 8);
                if self.traces {
                    eprintln!("{} of {ready} after {} at {}", next, self.current, self.now);
                }
                self.last.push_back(next);
                if self.last.len() > 40 {
                    self.last.pop_front();
                }
                return Ok(next);
            }
            let first = self.threads.iter().filter_map(|t| t.state.until()).min();
            self.now = first.ok_or(Stuck::Deadlock)?;
        }
    }

    /// Whether a thread that could go on hands the baton over.
    fn gives_way(&mut self) -> bool {
        self.picks.below(self.stays) == 0
    }

    /// Wakes threads that wait at an address: `most` of them, in an order that the seed gives. Returns how many.
    fn wake(&mut self, at: usize, bits: u32, most: usize) -> usize {
        if self.traces {
            eprintln!("{} wakes {at:x}", self.current);
        }
        let mut woken = 0;
        while woken < most {
            let waits = |t: &Thread| matches!(t.state, State::Waits { at: a, bits: b, .. } if a == at && b & bits != 0);
            let all = self.threads.iter().filter(|t| waits(t)).count() as u64;
            if all == 0 {
                break;
            }
            let which = self.picks.below(all) as usize;
            if let Some(thread) = self.threads.iter_mut().filter(|t| waits(t)).nth(which) {
                thread.timed_out = false;
                thread.state = State::Ready;
            }
            woken += 1;
        }
        woken
    }

    /// A thread of this name has ended.
    fn end(&mut self, which: usize, name: [u8; 16]) {
        for thread in &mut self.threads {
            if thread.state == State::Joins(which) {
                thread.state = State::Ready;
            }
        }
        if let Some(thread) = self.threads.get_mut(which) {
            (thread.state, thread.name) = (State::Done, name);
        }
    }

    /// What a clock says. A thread that asks again and again sees time pass.
    fn time(&mut self, since_1970: bool) -> (u64, u64) {
        self.now += 20;
        if self.traces {
            eprintln!("{} asks for the time: {}", self.current, self.now);
        }
        let seconds = if since_1970 { EPOCH } else { 1000 };
        (seconds + self.now / SECOND, self.now % SECOND)
    }

    fn ran(&self) -> Ran {
        let (switches, threads) = (self.switches, self.threads.len());
        Ran { switches, threads, time: self.now, digest: self.digest }
    }
}
