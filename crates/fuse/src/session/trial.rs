//! Which of two ways to answer several threads is the faster one: found out by trying.
//!
//! Threads that send small requests at the same time can be answered *apart*, by threads that run
//! anywhere, or *together*, on one processor by one thread. Apart, processors work side by side but spend
//! much time on waking each other; in a virtual machine that can be more than they gain. Which it is
//! cannot be known beforehand, so both are tried for a stretch of requests, one after the other, and
//! the faster one is kept for a while, or until a stretch takes twice as long: requests of another kind
//! came, which may have to wait for a disk. Then again.
//!
//! ```text
//!   try apart ── STRETCH requests ──> try together ── STRETCH requests ──> keep the faster
//!       ^                                                                        │
//!       └────────────────────────── KEPT stretches ──────────────────────────────┘
//! ```

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Requests between two decisions: long compared with what it takes to change over.
const STRETCH: u32 = 2048;
/// Stretches for which the faster way is kept.
const KEPT: u32 = 32;

/// How several threads are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Apart,
    Together,
}

/// What is being done.
#[derive(Debug, Clone, Copy)]
enum Phase {
    TryApart,
    /// Answering apart took so long.
    TryTogether(Duration),
    /// For so many stretches, as long as none takes much longer than it did.
    Keep(Way, u32, Duration),
}

impl Phase {
    fn way(self) -> Way {
        match self {
            Phase::TryApart => Way::Apart,
            Phase::TryTogether(_) => Way::Together,
            Phase::Keep(way, ..) => way,
        }
    }

    /// What comes after a stretch that took so long.
    fn next(self, took: Duration) -> Phase {
        match self {
            Phase::TryApart => Phase::TryTogether(took),
            Phase::TryTogether(apart) if took < apart => Phase::Keep(Way::Together, KEPT, took),
            Phase::TryTogether(apart) => Phase::Keep(Way::Apart, KEPT, apart),
            Phase::Keep(way, left, known) if left > 0 && took < 2 * known => {
                Phase::Keep(way, left - 1, known)
            }
            Phase::Keep(..) => Phase::TryApart,
        }
    }
}

/// A trial that goes on for as long as there are small requests.
#[derive(Debug)]
pub(super) struct Trial {
    /// Requests of this stretch so far.
    requests: AtomicU32,
    /// Whether the phase has threads answered together.
    together: AtomicBool,
    /// The phase, and since when its stretch lasts.
    phase: Mutex<(Phase, Instant)>,
}

impl Trial {
    pub(super) fn new() -> Trial {
        let phase = Mutex::new((Phase::TryApart, Instant::now()));
        Trial { requests: AtomicU32::new(0), together: AtomicBool::new(false), phase }
    }

    /// A small request was received; at the end of a stretch, the way to answer from now on.
    pub(super) fn received(&self) -> Option<Way> {
        // Several threads count, and one of them decides.
        if self.requests.fetch_add(1, Relaxed) + 1 != STRETCH {
            return None;
        }
        self.requests.store(0, Relaxed);
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        *phase = (phase.0.next(now.duration_since(phase.1)), now);
        let way = phase.0.way();
        self.together.store(way == Way::Together, Relaxed);
        Some(way)
    }

    /// Begins anew: something else than small requests came in between.
    pub(super) fn restart(&self) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        *phase = (Phase::TryApart, Instant::now());
        self.requests.store(0, Relaxed);
        self.together.store(false, Relaxed);
    }

    /// How to answer now.
    pub(super) fn way(&self) -> Way {
        if self.together.load(Relaxed) { Way::Together } else { Way::Apart }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// The ways of the stretches that follow each other if each way takes so long.
    fn ways(apart: u64, together: u64, stretches: usize) -> Vec<Way> {
        let mut phase = Phase::TryApart;
        let step = |_| {
            let way = phase.way();
            phase = phase.next(ms(if way == Way::Apart { apart } else { together }));
            way
        };
        (0..stretches).map(step).collect()
    }

    #[test]
    fn both_ways_are_tried_and_the_faster_one_is_kept_until_they_are_tried_again() {
        let round = KEPT as usize + 3;
        for (apart, together, faster) in [(10, 5, Way::Together), (5, 10, Way::Apart)] {
            let ways = ways(apart, together, 2 * round);
            assert_eq!(ways[..2], [Way::Apart, Way::Together]);
            assert!(ways[2..round].iter().all(|way| *way == faster));
            assert_eq!(ways[..round], ways[round..]);
        }
    }

    #[test]
    fn requests_of_another_kind_are_a_reason_to_try_again() {
        let kept = Phase::TryApart.next(ms(10)).next(ms(5));
        assert_eq!(kept.next(ms(9)).way(), Way::Together);
        assert_eq!(kept.next(ms(10)).way(), Way::Apart);
    }

    #[test]
    fn a_decision_ends_each_stretch_and_a_restart_begins_with_apart() {
        let trial = Trial::new();
        let stretch = || (0..STRETCH).filter_map(|_| trial.received()).collect::<Vec<_>>();
        assert_eq!(stretch(), [Way::Together]);
        assert_eq!(trial.way(), Way::Together);
        trial.received();
        trial.restart();
        assert_eq!(trial.way(), Way::Apart);
        assert_eq!(stretch(), [Way::Together]);
        assert_eq!(stretch().len(), 1);
    }
}
