//! A lock that says how long it was waited for.
//!
//! Allocations must not wait behind long work. What shows whether they are is the time that they
//! wait for locks: a lock that is free costs no look at the clock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// How often and how long locks were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// Times that a lock was not free at once.
    pub count: u64,
    /// All the waiting.
    pub total: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl LockWaits {
    /// These, and others.
    pub fn and(self, other: LockWaits) -> LockWaits {
        LockWaits {
            count: self.count + other.count,
            total: self.total + other.total,
            longest: self.longest.max(other.longest),
        }
    }
}

/// A mutex; see the module's documentation.
#[derive(Default)]
pub(super) struct Watched<T> {
    inner: Mutex<T>,
    count: AtomicU64,
    nanos: AtomicU64,
    longest: AtomicU64,
}

impl<T> Watched<T> {
    pub(super) fn new(inner: T) -> Watched<T> {
        let [count, nanos, longest] = [const { AtomicU64::new(0) }; 3];
        Watched { inner: Mutex::new(inner), count, nanos, longest }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.inner.try_lock().unwrap_or_else(|| {
            let started = Instant::now();
            let guard = self.inner.lock();
            let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.count.fetch_add(1, Relaxed);
            self.nanos.fetch_add(nanos, Relaxed);
            self.longest.fetch_max(nanos, Relaxed);
            guard
        })
    }

    /// The waits since the last call.
    pub(super) fn take_waits(&self) -> LockWaits {
        let take = |n: &AtomicU64| n.swap(0, Relaxed);
        LockWaits {
            count: take(&self.count),
            total: Duration::from_nanos(take(&self.nanos)),
            longest: Duration::from_nanos(take(&self.longest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_once() {
        let lock = Watched::new(0);
        *lock.lock() += 1;
        assert_eq!(lock.take_waits(), LockWaits::default());
        let held = lock.lock();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| *lock.lock() += 1);
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
            waiting.join().unwrap();
        });
        let waits = lock.take_waits();
        // The thread may have come late.
        assert!(waits.count <= 1 && waits.total == waits.longest);
        assert_eq!((lock.take_waits(), *lock.lock()), (LockWaits::default(), 2));
    }
}
