//! How long a thread looks for the next request before it sleeps.
//!
//! # Idea
//!
//! A program that works in a mount sends its next request a few microseconds after an answer. A thread that sleeps by then
//! must be woken, and where its processor sleeps as well that takes 20 to 50 us. So after an answer the thread looks for a
//! moment whether there is a request, as the kernel's halt polling does for virtual processors. The moment is found by
//! what comes:
//!
//! - It is twice as long as looks took that found something, so that one that is in vain costs little. It *grows*, to
//!   [`most`] at most, when one was in vain and a request came soon after.
//! - Looks are worth while as long as they find something: each that does counts for them, one in vain counts against them as
//!   much as [`VAIN`] others. When nothing is left there is a *pause*: threads sleep at once. Then one look is tried. Pauses
//!   get twice as long each time, until many looks in a row were worth while.
//! - A thread that was preempted while it looked makes such a pause at once: another one needs the processor.
//!
//! What asks may need the very processor of the thread that looks. Then every look is in vain and keeps back what it waits for,
//! which is why pauses get long. Where the process may use one processor only there are no looks at all.
//!
//! # Invariants
//!
//! - A thread looks only after an answer, and never longer than [`most`]: at most that much processor time is spent for
//!   an answer in vain, and nothing while there are no requests.
//! - Only the thread that waits for requests changes what is here.

use cenote_vdev::tunables;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The shortest look, in nanoseconds.
const SHORTEST: u64 = 8_000;
/// What it takes to be woken: a sleep this much longer than a look is no longer than that.
const WAKING: u64 = 60_000;
/// How many looks that found something one in vain counts against.
const VAIN: u64 = 4;
/// The most that looks count for.
const WORTH: u64 = 8;
/// Looks that find something after which the next pause is as short as can be.
const PROVEN: u64 = 64;
/// Sleeps of the shortest and of the longest pause.
const PAUSE: (u64, u64) = (8, 1024);
/// A thread that gets from one look to the next in more time was preempted.
pub(super) const PREEMPTED: Duration = Duration::from_micros(20);

/// The longest look, in nanoseconds.
fn most() -> u64 {
    tunables::FUSE_POLL.get()
}

/// See the [module](self).
pub(super) struct Poll {
    /// What looks take that find something, in nanoseconds.
    usual: AtomicU64,
    /// How much looks are worth; at least 1 but in a pause.
    worth: AtomicU64,
    /// Looks that found something since the last pause.
    found: AtomicU64,
    /// Sleeps that are left of a pause.
    pause: AtomicU64,
    /// Sleeps of the next pause; 0: as few as can be.
    next: AtomicU64,
}

impl Default for Poll {
    fn default() -> Poll {
        let [usual, worth, found, pause, next] = [u64::MAX, 1, 0, 0, 0].map(AtomicU64::new);
        Poll { usual, worth, found, pause, next }
    }
}

impl Poll {
    /// How long the thread may look; zero: not at all. `processors`: how many the process may use.
    pub(super) fn moment(&self, processors: usize) -> Duration {
        if processors < 2 || self.pause.load(Relaxed) > 0 {
            return Duration::ZERO;
        }
        let long = self.usual.load(Relaxed).saturating_mul(2).max(SHORTEST);
        Duration::from_nanos(long.min(most()))
    }

    /// A look found a request after so long.
    pub(super) fn found(&self, after: Duration) {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX).min(most());
        let usual = self.usual.load(Relaxed).min(most());
        self.usual.store((3 * usual + after) / 4, Relaxed);
        self.worth.store((self.worth.load(Relaxed) + 1).min(WORTH), Relaxed);
        let found = self.found.load(Relaxed) + 1;
        self.found.store(found % PROVEN, Relaxed);
        if found == PROVEN {
            self.next.store(0, Relaxed);
        }
    }

    /// The thread was preempted while it looked, or looks are not worth while.
    pub(super) fn pause(&self) {
        let (least, most) = PAUSE;
        let pause = self.next.load(Relaxed).clamp(least, most);
        self.pause.store(pause, Relaxed);
        self.next.store(pause * 2, Relaxed);
        self.found.store(0, Relaxed);
        // After it one look is tried, which is long.
        self.usual.store(u64::MAX, Relaxed);
        self.worth.store(1, Relaxed);
    }

    /// The thread slept, and a request came so long after the last answer. If it is no pause it had looked in vain.
    pub(super) fn slept(&self, wait: Duration) {
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            return self.pause.store(pause - 1, Relaxed);
        }
        let worth = self.worth.load(Relaxed);
        if worth <= VAIN {
            return self.pause();
        }
        self.worth.store(worth - VAIN, Relaxed);
        if u64::try_from(wait.as_nanos()).is_ok_and(|wait| wait <= most().saturating_add(WAKING)) {
            let usual = self.usual.load(Relaxed);
            self.usual.store(usual.saturating_mul(2).min(most()), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(70);
    const LATE: Duration = Duration::from_millis(3);

    fn find(poll: &Poll, micros: u64, times: usize) {
        (0..times).for_each(|_| poll.found(Duration::from_micros(micros)));
    }

    /// How many sleeps there are until a look is tried again.
    fn pause(poll: &Poll) -> usize {
        let sleeps = (0..5000).take_while(|_| {
            let none = poll.moment(2).is_zero();
            if none {
                poll.slept(SOON);
            }
            none
        });
        sleeps.count()
    }

    #[test]
    fn a_look_is_as_long_as_it_takes_to_find_something() {
        let poll = Poll::default();
        assert_eq!(poll.moment(2).as_micros(), 50);
        find(&poll, 6, 40);
        let moment = poll.moment(2).as_micros();
        assert!((12..15).contains(&moment), "{moment}");
        // What comes late says nothing of how long a look is to be, what comes soon does.
        poll.slept(LATE);
        assert_eq!(poll.moment(2).as_micros(), moment);
        find(&poll, 6, 40);
        poll.slept(SOON);
        assert!(poll.moment(2).as_micros() > moment);
        find(&poll, 0, 40);
        assert_eq!(poll.moment(2).as_nanos(), SHORTEST.into());
    }

    #[test]
    fn one_processor_is_left_to_those_that_ask() {
        let poll = Poll::default();
        assert_eq!((poll.moment(1), poll.moment(2)), (Duration::ZERO, Duration::from_micros(50)));
    }

    #[test]
    fn looks_in_vain_make_pauses_that_get_longer() {
        let poll = Poll::default();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            poll.slept(SOON);
            pauses.push(pause(&poll));
        }
        assert_eq!(pauses, [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        // A few that find something do not make up for that.
        find(&poll, 6, 3);
        poll.slept(LATE);
        assert_eq!(pause(&poll), 1024);
        find(&poll, 6, PROVEN as usize);
        poll.slept(LATE);
        assert_eq!(pause(&poll), 0, "one of many");
        poll.pause();
        assert_eq!(pause(&poll), 8);
    }
}
