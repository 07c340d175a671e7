//! Whose turn it is to read requests.
//!
//! The kernel gives a request to the thread that has waited longest. So when a program sends one
//! request after the other each is answered by another thread, whose memory has left the caches
//! meanwhile. Worse, what is sent while the thread that answered last is on its way back to reading
//! wakes yet another one, for nothing: the first has read it by then.
//!
//! While one thread alone sends small requests ([`placement`](super::placement)) one thread is enough,
//! so it alone reads them; the others wait here, where the kernel does not see them. Each of them may
//! answer one request more, which it was waiting for when the turn was taken.
//!
//! A request can take long: it waits for a disk, or for something that is only done when another
//! request has been answered. So the turn is watched, and ends when there was no request for
//! [`PATIENCE`], be it that the one that reads is busy or that nothing is to be done.
//!
//! While there are requests the watcher also has workers run elsewhere than on the processor that these
//! are answered on ([`keep_off`]), where the other ones look busy to the scheduler because they are kept
//! awake ([`awake`](super::awake)). It is one of them itself, of ordinary priority: a program that is busy
//! where it runs holds it up for some milliseconds, a real-time program for as long as the system lets it.
//! Who waits for a transaction group waits for neither ([`cenote_vdev::hurry`]).
//!
//! ```text
//!   everyone reads ── taken ──> one reads, the others wait, the watcher looks
//!         ^                         │ other callers, large requests,
//!         └─────────────────────────┘ or no request since the watcher's last look
//! ```

use cenote_vdev::{KeptOff, keep_off, worker};
use rustix::thread::Pid;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Time between two looks at the one that reads: about as long as others have to wait for a request
/// that is slow anyway, and a hundred times what a quick one takes.
const PATIENCE: Duration = Duration::from_millis(1);
/// No thread: everyone reads.
const EVERYONE: i32 = 0;

/// The turn to read. Its watcher ends when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Whether there is somebody who watches, once there is to be.
    watched: OnceLock<bool>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The thread that alone reads, or [`EVERYONE`]. Changed under the lock.
    reader: AtomicI32,
    /// Requests so far.
    requests: AtomicU64,
    /// Whether workers are kept off the processor that they are answered on.
    keeps_off: bool,
    /// This processor.
    on: AtomicUsize,
    /// Whether the watcher is to end.
    ended: Mutex<bool>,
    /// The turn was taken.
    taken: Condvar,
    /// The turn has ended.
    over: Condvar,
}

impl Turn {
    /// `keeps_off`: while it is taken workers are kept off the processor that requests are answered on.
    pub(super) fn new(keeps_off: bool) -> Turn {
        let shared = Arc::new(Shared { keeps_off, ..Shared::default() });
        Turn { watched: OnceLock::new(), shared }
    }

    /// From now on requests are answered on this processor.
    pub(super) fn answer_on(&self, cpu: usize) {
        self.shared.on.store(cpu, Relaxed);
    }

    /// Returns when a thread may read.
    pub(super) fn wait(&self, thread: Pid) {
        let may = || [EVERYONE, number(thread)].contains(&self.shared.reader.load(Relaxed));
        if may() {
            return;
        }
        let mut lock = self.shared.lock();
        while !may() {
            lock = self.shared.over.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// From now on a thread reads alone, if no other one does. Where nobody can watch it everyone
    /// reads on, which takes longer, that is all.
    pub(super) fn take(&self, thread: Pid) {
        if self.is_taken() {
            return;
        }
        if *self.watched.get_or_init(|| self.watch()) {
            let _lock = self.shared.lock();
            self.shared.reader.store(number(thread), Relaxed);
            self.shared.taken.notify_one();
        }
    }

    /// A request was received.
    pub(super) fn received(&self) {
        self.shared.requests.fetch_add(1, Relaxed);
    }

    /// Whether a thread reads alone.
    pub(super) fn is_taken(&self) -> bool {
        self.shared.reader.load(Relaxed) != EVERYONE
    }

    /// Everyone reads.
    pub(super) fn end(&self) {
        if self.is_taken() {
            self.shared.end(&self.shared.lock());
        }
    }

    fn watch(&self) -> bool {
        let shared = self.shared.clone();
        let started = worker("fuse-watch", move || shared.watch());
        started.inspect_err(|e| tracing::debug!(%e, "several threads read requests")).is_ok()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *self.shared.lock() = true;
        self.shared.taken.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, _lock: &MutexGuard<'_, bool>) {
        self.reader.store(EVERYONE, Relaxed);
        self.over.notify_all();
    }

    fn watch(&self) {
        let mut kept = None;
        let mut ended = self.lock();
        while !*ended {
            if self.reader.load(Relaxed) != EVERYONE {
                drop(ended);
                let idle = self.rest(&mut kept);
                ended = self.lock();
                if idle {
                    self.end(&ended);
                }
            } else if kept.is_some() {
                drop(ended);
                kept = None;
                ended = self.lock();
            } else {
                ended = self.taken.wait(ended).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Sleeps for [`PATIENCE`]. Returns whether there was no request meanwhile; where there was one
    /// workers are kept off from then on.
    fn rest(&self, kept: &mut Option<KeptOff>) -> bool {
        let seen = self.requests.load(Relaxed);
        std::thread::sleep(PATIENCE);
        let idle = seen == self.requests.load(Relaxed);
        let cpu = self.on.load(Relaxed);
        if self.keeps_off && !idle && kept.as_ref().is_none_or(|kept| kept.cpu() != cpu) {
            *kept = Some(keep_off(cpu));
        }
        idle
    }
}

fn number(thread: Pid) -> i32 {
    thread.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::awake::tests::soon;
    use rustix::thread::{CpuSet, gettid, sched_getaffinity};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    #[test]
    fn one_reads_while_requests_come_and_then_everyone() {
        let (turn, me) = (Turn::default(), gettid());
        turn.wait(me);
        for _ in 0..3 {
            let others = AtomicBool::new(false);
            std::thread::scope(|scope| {
                turn.take(me);
                scope.spawn(|| {
                    turn.take(gettid());
                    turn.wait(gettid());
                    others.store(true, Relaxed);
                });
                let start = Instant::now();
                while start.elapsed() < 20 * PATIENCE
                    && turn.shared.reader.load(Relaxed) != EVERYONE
                {
                    turn.received();
                    turn.wait(me);
                }
                // Nothing comes any more.
                assert!(soon(|| others.load(Relaxed)));
            });
        }
    }

    #[test]
    fn workers_are_kept_off_the_processor_while_requests_come() {
        let all = sched_getaffinity(None).unwrap();
        let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).take(4).collect();
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        let works = cenote_vdev::worker("works", move || {
            tell.send(gettid()).unwrap();
            let _ = ended.recv();
        });
        let thread = told.recv().unwrap();
        let may = |cpu: usize| sched_getaffinity(Some(thread)).unwrap().is_set(cpu);
        let turn = Turn::new(true);
        for cpu in &cpus {
            turn.answer_on(*cpu);
            let kept_off = || {
                turn.take(gettid());
                turn.received();
                !may(*cpu)
            };
            // On a single processor there is nowhere else.
            assert!(cpus.len() == 1 || soon(kept_off));
        }
        assert!(soon(|| cpus.iter().all(|cpu| may(*cpu))));
        drop(end);
        works.unwrap().join().unwrap();
    }

    #[test]
    fn everyone_reads_when_the_turn_is_ended_and_the_watcher_ends_with_the_mount() {
        let turn = Turn::default();
        let shared = Arc::downgrade(&turn.shared);
        assert_eq!(shared.strong_count(), 1);
        turn.end();
        turn.take(gettid());
        assert_eq!(shared.strong_count(), 2);
        turn.end();
        std::thread::scope(|scope| {
            scope.spawn(|| turn.wait(gettid()));
        });
        turn.take(gettid());
        drop(turn);
        assert!(soon(|| shared.strong_count() == 0));
    }
}
