//! Threads that wait for devices (and compute parity), of one tree of vdevs.
//!
//! A thread is started when there is work and no thread is idle, and ends after being idle for [`IDLE`]. So
//! devices that do not answer keep their threads, and no others: there is one for each batch that a
//! device has, and the queues of the leaves ([`crate::queue`]) limit how many those are. A batch is many
//! requests, which io_uring completes on the one thread that submitted them.
//!
//! Invariant: a job that was handed over runs, if need be in the thread that brings it. One that panics sounds the
//! pool's [`Alarm`], and the batch that it was of fails.

use crate::Alarm;
use crate::waiting;
use cenote_format::{invariant, less};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;

/// How long a thread without work waits for some.
const IDLE: Duration = Duration::from_secs(10);
/// The name of a thread.
const NAME: &str = "vdev-io";
/// Most threads of a tree: a bound for what can go wrong, not a share.
const MOST: usize = 512;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Something to do on a thread of a pool.
pub(crate) trait Work: Send + 'static {
    /// Does it; the results are kept within.
    fn run(&mut self);
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job; some may have been woken for those in `jobs`.
    idle: usize,
    closed: bool,
}

/// The threads themselves.
#[derive(Default)]
pub(crate) struct Threads {
    state: Mutex<State>,
    work: Condvar,
    pub(crate) alarm: Arc<Alarm>,
}

impl Threads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Hands a job to a thread, or runs it here if no thread can be had.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) {
        let mut state = self.state();
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle {
            drop(state);
            self.work.notify_one();
            return;
        }
        if state.threads >= MOST {
            return;
        }
        let this = self.clone();
        let started = Builder::new().name(NAME.into()).spawn(move || this.work());
        match started {
            Ok(_) => state.threads += 1,
            // Those that there are come to it.
            Err(_) if state.threads > 0 => {}
            Err(e) => {
                tracing::warn!("no thread for a device: {e}");
                let job = state.jobs.pop_back();
                drop(state);
                if let Some(job) = job {
                    job();
                }
            }
        }
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A thread outlives a panic: others wait for it.
                self.alarm.guard(NAME, job);
                state = self.state();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let waited = self.work.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.threads = less!(state.threads, 1, "threads of devices");
        // One more was started for each job that no idle one could take.
        let (left, idle) = (state.threads, state.idle);
        invariant!(idle <= left, "{idle} of {left} threads of devices are idle");
    }
}

/// The threads of a tree. They end with it.
pub(crate) struct IoPool {
    threads: Arc<Threads>,
    /// Whether requests failed since this was last asked.
    failed: AtomicBool,
}

impl IoPool {
    /// Threads that tell `alarm` of their panics.
    pub(crate) fn new(alarm: Arc<Alarm>) -> IoPool {
        let threads = Arc::new(Threads { alarm, ..Threads::default() });
        IoPool { threads, failed: AtomicBool::new(false) }
    }

    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    /// A request failed.
    pub(crate) fn set_failure(&self) {
        self.failed.store(true, Relaxed);
    }

    /// Whether a request failed since this was last called.
    pub(crate) fn take_failure(&self) -> bool {
        self.failed.load(Relaxed) && self.failed.swap(false, Relaxed)
    }

    /// Runs all jobs, one of them on the calling thread, and gives them back in any order. One that
    /// panicked does not come back.
    pub(crate) fn run<W: Work>(&self, mut jobs: Vec<W>) -> Vec<W> {
        let Some(mut own) = jobs.pop() else { return Vec::new() };
        let (done, finished) = channel();
        for mut job in jobs {
            let done = done.clone();
            self.threads.submit(Box::new(move || {
                job.run();
                // The receiver waits for all senders: it is still there.
                let _ = done.send(job);
            }));
        }
        drop(done);
        waiting::begins();
        own.run();
        std::iter::once(own).chain(finished).collect()
    }
}

impl Drop for IoPool {
    fn drop(&mut self) {
        self.threads.state().closed = true;
        self.threads.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    struct Wait(Arc<Barrier>);

    impl Work for Wait {
        fn run(&mut self) {
            self.0.wait();
        }
    }

    #[test]
    fn jobs_that_wait_keep_no_others_waiting() {
        let pool = IoPool::new(Arc::default());
        // Forty that wait for each other: they all run at once.
        let barrier = Arc::new(Barrier::new(40));
        let done = pool.run((0..40).map(|_| Wait(barrier.clone())).collect());
        assert_eq!(done.len(), 40);
        // The threads are there for what comes next.
        let threads = pool.threads.state().threads;
        assert!((1..40).contains(&threads), "{threads}");
        let barrier = Arc::new(Barrier::new(20));
        assert_eq!(pool.run((0..20).map(|_| Wait(barrier.clone())).collect()).len(), 20);
        let threads = pool.threads.clone();
        drop(pool);
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while threads.state().threads > 0 && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(threads.state().threads, 0);
    }
}
