//! Keeping processors from falling asleep between requests.
//!
//! A processor with nothing to do is put to sleep, and waking it can take many times as long as a
//! small request does: 50 us and more in a virtual machine, where the host has a part in it. Worse, it
//! is where the kernel moves a program to whenever that wakes up, so a caller that is followed to
//! its processor ([`placement`](super::placement)) runs away to the one that is asleep.
//!
//! So while one thread alone sends small requests, all processors but the one that requests are
//! answered on are kept busy doing nothing: by threads of the lowest priority, which ask again and again
//! whether there is something else to do there. They stop as soon as there was no request for [`PATIENCE`].
//! Where there are more than [`MOST`] processors nothing is kept awake: it would cost more than it is worth.
//!
//! The scheduler now takes all processors for equally busy, and would leave a thread that writes a
//! transaction group beside the caller: so such threads are kept off its processor meanwhile
//! ([`turn`](super::turn)), and these here as well.
//!
//! ```text
//!   request ──> counted ──> threads asleep? ──yes──> woken
//!                  ^                                   │
//!                  └── looked at by ── spinning <──────┘
//!                                         │ the count stood still for PATIENCE
//!                                         v
//!                                       asleep
//! ```

use cenote_vdev::worker;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Processors of which all are kept awake.
pub(super) const MOST: u32 = 4;
/// How long processors are kept awake after a request.
const PATIENCE: Duration = Duration::from_millis(1);
/// Turns of a loop between two looks at the clock.
const TURNS: u32 = 64;
/// The lowest priority that an ordinary thread has.
const LOWEST: i32 = 19;

/// Threads that keep processors awake. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Awake {
    /// How many there are to be.
    wanted: u32,
    threads: OnceLock<()>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Requests so far.
    requests: AtomicU64,
    /// Whether the threads sleep, or are about to.
    asleep: AtomicBool,
    /// Whether they are to end.
    ended: Mutex<bool>,
    wake: Condvar,
}

impl Awake {
    /// For requests that are answered on one of so many processors.
    pub(super) fn new(processors: u32) -> Awake {
        let wanted = if processors > MOST { 0 } else { processors.saturating_sub(1) };
        Awake { wanted, threads: OnceLock::new(), shared: Arc::default() }
    }

    /// There was a request, and more of its kind are to be expected at once.
    pub(super) fn expect_more(&self) {
        if self.wanted == 0 {
            return;
        }
        self.threads.get_or_init(|| self.start());
        self.shared.requests.fetch_add(1, Relaxed);
        if self.shared.asleep.load(Relaxed) {
            // Whoever is about to sleep holds the lock until it does.
            let _ended = self.shared.lock();
            self.shared.asleep.store(false, Relaxed);
            self.shared.wake.notify_all();
        }
    }

    /// Where there can be no threads requests take longer, that is all.
    fn start(&self) {
        for n in 0..self.wanted {
            let shared = self.shared.clone();
            if let Err(e) = worker(format!("fuse-awake-{n}"), move || shared.run()) {
                tracing::debug!(%e, "processors are not kept awake");
            }
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        *self.shared.lock() = true;
        self.shared.wake.notify_all();
        // Those that spin see no further request.
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        if let Err(e) = rustix::process::setpriority_process(None, LOWEST) {
            // It would take its share of a processor from others.
            tracing::debug!(%e, "processors are not kept awake");
            return;
        }
        loop {
            self.spin();
            let mut ended = self.lock();
            let seen = self.requests.load(Relaxed);
            self.asleep.store(true, Relaxed);
            while !*ended && seen == self.requests.load(Relaxed) {
                ended = self.wake.wait(ended).unwrap_or_else(PoisonError::into_inner);
            }
            if *ended {
                return;
            }
        }
    }

    /// Returns when there was no request for [`PATIENCE`].
    fn spin(&self) {
        let (mut seen, mut since) = (self.requests.load(Relaxed), Instant::now());
        while since.elapsed() < PATIENCE {
            (0..TURNS).for_each(|_| std::hint::spin_loop());
            std::thread::yield_now();
            let now = self.requests.load(Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Whether something becomes true before long.
    pub(in crate::session) fn soon(what: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while !what() && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        what()
    }

    #[test]
    fn threads_sleep_between_rows_of_requests_and_end_with_the_mount() {
        let awake = Awake::new(2);
        let shared = Arc::downgrade(&awake.shared);
        assert_eq!(shared.strong_count(), 1);
        for _ in 0..3 {
            awake.expect_more();
            assert_eq!(shared.strong_count(), 2);
            assert!(soon(|| awake.shared.asleep.load(Relaxed)));
        }
        awake.expect_more();
        drop(awake);
        assert!(soon(|| shared.strong_count() == 0));
    }

    #[test]
    fn one_processor_is_not_kept_from_itself_nor_many_awake() {
        for processors in [0, 1, MOST + 1] {
            let awake = Awake::new(processors);
            awake.expect_more();
            assert_eq!(Arc::strong_count(&awake.shared), 1);
        }
        assert_eq!(Awake::new(MOST).wanted, MOST - 1);
    }
}
