//! A model of how commits wait for the one that writes the log: the code itself, with a lock, atomics and threads by which a
//! scheduler (`shuttle`) lets threads run in many orders. It finds threads that wait for ever.
//!
//! The source is taken in by its path, so that `super::waiting` is what is here. All threads see memory in one order in this model.

#![allow(dead_code, missing_docs, unused_imports)] // Of what is taken in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod waiting {
    use shuttle::sync as shuttled;
    pub(super) use shuttle::sync::atomic::{AtomicU8, Ordering};
    pub(super) use shuttle::thread::Thread;

    /// Threads; the unit tests of what is taken in, which are not run here, have those of the system.
    pub(super) mod thread {
        /// No time is ever over.
        pub use shuttle::thread::{current, park, park_timeout, yield_now};
        pub use std::thread::{scope, sleep};
    }

    /// `parking_lot`'s.
    #[derive(Default)]
    pub(super) struct Mutex<T>(shuttled::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(of: T) -> Mutex<T> {
            Mutex(shuttled::Mutex::new(of))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }

        pub(super) fn into_inner(self) -> T {
            self.0.into_inner().unwrap()
        }
    }

    /// Empty only while a [`Condvar`] has it.
    pub(super) struct MutexGuard<'a, T>(Option<shuttled::MutexGuard<'a, T>>);

    impl<T> std::ops::Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_deref().unwrap()
        }
    }

    impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().unwrap()
        }
    }

    /// `parking_lot`'s.
    pub(super) struct Condvar(shuttled::Condvar);

    impl Default for Condvar {
        fn default() -> Condvar {
            Condvar(shuttled::Condvar::new())
        }
    }

    impl Condvar {
        fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = guard.0.take().map(|held| self.0.wait(held).unwrap());
        }

        /// All time is over at once.
        pub(super) fn wait_for<T>(&self, _: &mut MutexGuard<'_, T>, _: std::time::Duration) {}

        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[path = "../src/zil/issuer.rs"]
mod issuer;

use issuer::Issuer;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use shuttle::thread;

/// Of what a commit takes, for which it waits for others.
const PERCENT: u32 = 10;

/// A log whose queue and whose stable part are numbers.
#[derive(Default)]
struct Log {
    issuer: Issuer,
    queued: AtomicU64,
    stable: AtomicU64,
    is_writing: AtomicBool,
}

impl Log {
    /// Commits a change; the write fails if `fails`.
    fn commit(&self, fails: bool) {
        let wanted = self.queued.fetch_add(1, SeqCst) + 1;
        let Some(mut issuing) = self.issuer.wait_for(wanted) else {
            assert!(self.stable.load(SeqCst) >= wanted, "told too early");
            return;
        };
        assert!(!self.is_writing.swap(true, SeqCst), "two write at once");
        issuing.gather(PERCENT);
        let end = self.queued.load(SeqCst);
        issuing.check(end);
        self.is_writing.store(false, SeqCst);
        if !fails {
            self.stable.fetch_max(end, SeqCst);
            issuing.has_written(end);
        }
    }

    /// Keeps all out, gives that up, or tries to.
    fn keep_out(&self) {
        let out = self.issuer.keep_out(&|| false).unwrap();
        assert!(!self.is_writing.load(SeqCst), "somebody writes");
        drop(out);
        if let Some(_out) = self.issuer.keep_out(&|| true) {
            assert!(!self.is_writing.load(SeqCst), "somebody writes");
        }
        drop(self.issuer.try_keep_out());
    }
}

fn commits() {
    let log = Arc::new(Log::default());
    let threads: Vec<_> = (0..4)
        .map(|of| {
            let log = log.clone();
            thread::spawn(move || match of {
                0 => log.keep_out(),
                _ => (0..2).for_each(|n| log.commit(of == 1 && n == 1)),
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(log.issuer.try_keep_out().is_some(), "somebody is left");
}

/// A model that says yes to everything would be of no use: one that writes, and never says that it is done.
fn one_that_does_not_end() {
    let log = Arc::new(Log::default());
    std::mem::forget(log.issuer.wait_for(1));
    let other = log.clone();
    thread::spawn(move || other.commit(false)).join().unwrap();
}

fn main() {
    const TIMES: usize = 20_000;
    shuttle::check_random(commits, TIMES);
    shuttle::check_pct(commits, TIMES, 3);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let found = std::panic::catch_unwind(|| shuttle::check_random(one_that_does_not_end, 1));
    std::panic::set_hook(quiet);
    assert!(found.is_err(), "the model finds nothing");
    println!("model of the issuer of a log: {} orders", 2 * TIMES);
}
