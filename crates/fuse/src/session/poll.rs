//! How long a thread looks for the next request before it sleeps.
//!
//! # Idea
//!
//! A program that works in a mount sends its next request a few microseconds after an answer. A thread that sleeps by then
//! has to be woken, and where its processor sleeps as well that takes 20 to 50 us. So after an answer the thread looks for a
//! moment whether there is a request, as the kernel's halt polling does for virtual processors. The moment is found by
//! what comes:
//!
//! - It *grows*, to [`most`] at most, when a sleep was so short that a longer look would have found the request.
//! - It *shrinks* when a request came much later.
//! - It ends when the thread was preempted: another one needs the processor.
//! - Where the longest look was in vain, or the thread was preempted, it is nothing for a while, each time twice as long
//!   until a look finds something again. What asks may need this very processor.
//!
//! Where the process may use one processor only it is always nothing: what asks cannot run beside a thread that looks.
//!
//! # Invariants
//!
//! - A thread looks only after an answer, and never longer than [`most`]: at most that much processor time is spent for
//!   an answer in vain, and nothing while there are no requests.
//! - Only the thread that waits for requests changes what is here.

use cenote_vdev::tunables;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The first moment that is tried, in nanoseconds.
const FIRST: u64 = 10_000;
/// What it takes to be woken: a sleep this much longer than a look is no longer than that.
const WAKING: u64 = 60_000;
/// Sleeps without a look before, after the first look in vain; and most of them.
const PAUSE: (u64, u64) = (8, 1024);
/// A thread that gets from one look to the next in more time was preempted.
pub(super) const PREEMPTED: Duration = Duration::from_micros(20);

/// The longest look, in nanoseconds.
fn most() -> u64 {
    tunables::FUSE_POLL.get()
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Poll {
    /// Length of the next look, in nanoseconds.
    now: AtomicU64,
    /// Sleeps that are left without one.
    pause: AtomicU64,
    /// Sleeps that the next pause has; 0: as few as can be.
    next: AtomicU64,
}

impl Poll {
    /// How long the thread may look; zero: not at all. `processors`: how many the process may use.
    pub(super) fn moment(&self, processors: usize) -> Duration {
        let allowed = if processors > 1 { most() } else { 0 };
        Duration::from_nanos(self.now.load(Relaxed).min(allowed))
    }

    /// A look found a request.
    pub(super) fn found(&self) {
        self.next.store(0, Relaxed);
    }

    /// The thread was preempted while it looked.
    pub(super) fn preempted(&self) {
        let (least, most) = PAUSE;
        let pause = self.next.load(Relaxed).clamp(least, most);
        self.pause.store(pause, Relaxed);
        self.next.store(pause * 2, Relaxed);
        self.now.store(0, Relaxed);
    }

    /// The thread slept, and a request came so long after the last answer. It had looked for the whole moment.
    pub(super) fn slept(&self, wait: Duration) {
        let pause = self.pause.load(Relaxed);
        if pause > 0 {
            return self.pause.store(pause - 1, Relaxed);
        }
        let (now, most) = (self.now.load(Relaxed), most());
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let next = if wait > most.saturating_add(WAKING) {
            // Looks that are too short to find anything are none.
            Some(now / 2).filter(|half| *half >= FIRST).unwrap_or(0)
        } else if now < most {
            (now * 2).clamp(FIRST.min(most), most)
        } else {
            return self.preempted();
        };
        self.now.store(next, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(40);
    const LATE: Duration = Duration::from_millis(3);

    fn moments(poll: &Poll, wait: Duration, times: usize) -> Vec<u128> {
        let after = |_| {
            poll.slept(wait);
            poll.moment(2).as_micros()
        };
        (0..times).map(after).collect()
    }

    #[test]
    fn it_grows_while_requests_come_soon_and_shrinks_when_they_do_not() {
        let poll = Poll::default();
        assert_eq!(poll.moment(2), Duration::ZERO);
        assert_eq!(moments(&poll, SOON, 4), [10, 20, 40, 50]);
        poll.found();
        assert_eq!(poll.moment(2).as_micros(), 50);
        assert_eq!(moments(&poll, LATE, 4), [25, 12, 0, 0]);
    }

    #[test]
    fn one_processor_is_left_to_those_that_ask() {
        let poll = Poll::default();
        moments(&poll, SOON, 4);
        assert_eq!((poll.moment(1), poll.moment(2)), (Duration::ZERO, Duration::from_micros(50)));
    }

    #[test]
    fn looks_in_vain_and_preemption_make_pauses_that_get_longer() {
        let poll = Poll::default();
        moments(&poll, SOON, 4);
        assert_eq!(moments(&poll, SOON, 11), [0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 20]);
        moments(&poll, SOON, 2);
        assert_eq!(poll.moment(2).as_micros(), 50);
        assert_eq!(moments(&poll, SOON, 18).last(), Some(&10));
        poll.found();
        poll.preempted();
        assert_eq!(moments(&poll, SOON, 9).last(), Some(&10));
    }
}
