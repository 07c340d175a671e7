//! Bytes in memory between threads of a stream. The thread that makes them waits until there is room.
//!
//! Rule: a thread that takes a share has no other share itself meanwhile. All shares that are taken are with threads that go on
//! without it, so that each is given back. A thread that kept one would wait for itself where the next one does not fit
//! beside it.

use cenote_format::invariant::said;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// How many bytes there may be, and are.
pub struct Budget {
    most: u64,
    taken: Mutex<u64>,
    given_back: Condvar,
}

/// Some bytes of a budget, until it is dropped.
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// An unused budget of `most` bytes.
    pub fn new(most: u64) -> Arc<Budget> {
        Arc::new(Budget { most, taken: Mutex::default(), given_back: Condvar::new() })
    }

    /// Waits until there is room for so many bytes (`bqueue_enqueue`). If they are more than the whole budget, it waits until
    /// nothing else is taken.
    pub fn take(self: &Arc<Budget>, bytes: u64) -> Share {
        let mut taken = self.taken.lock();
        while *taken > 0 && taken.saturating_add(bytes) > self.most {
            self.given_back.wait(&mut taken);
        }
        *taken += bytes;
        Share { budget: self.clone(), bytes }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.budget.taken.lock();
        match taken.checked_sub(self.bytes) {
            Some(left) => *taken = left,
            None => {
                let why = format_args!("{} bytes are given back, and {taken} taken", self.bytes);
                tracing::error!("{}", said(why));
                *taken = 0;
            }
        }
        self.budget.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_bounded() {
        let budget = Budget::new(100);
        // More than there is to give, and nothing else meanwhile.
        let large = budget.take(101);
        let waiting = std::thread::spawn({
            let budget = budget.clone();
            move || [budget.take(50), budget.take(50)]
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(large);
        let halves = waiting.join().unwrap();
        assert_eq!(*budget.taken.lock(), 100);
        drop(halves);
        assert_eq!(*budget.taken.lock(), 0);
    }
}
