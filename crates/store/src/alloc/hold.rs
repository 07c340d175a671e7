//! Holds, for reading the pool as some transaction group left it, for longer than frees are deferred
//! anyway. What is freed after that group is not allocated as long as the hold
//! lasts, so everything that the group leads to can be read.
//!
//! A hold must not fill the pool: when more is deferred on a vdev than can be allocated there, all
//! holds are let go; the owner of one can ask ([`Hold::is_broken`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

#[derive(Debug)]
struct Held {
    txg: u64,
    broken: AtomicBool,
}

/// What a transaction group leads to is not overwritten until this is dropped.
#[derive(Debug)]
pub struct Hold(Arc<Held>);

impl Hold {
    /// The transaction group.
    pub fn txg(&self) -> u64 {
        self.0.txg
    }

    /// Whether it was let go because space was short: what the group led to may be gone.
    pub fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::Acquire)
    }
}

/// All that there are.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<Vec<Weak<Held>>>);

impl Holds {
    pub fn take(&self, txg: u64) -> Hold {
        let held = Arc::new(Held { txg, broken: AtomicBool::new(false) });
        self.0.lock().push(Arc::downgrade(&held));
        Hold(held)
    }

    /// The oldest group that is held.
    pub fn oldest(&self) -> Option<u64> {
        let mut holds = self.0.lock();
        holds.retain(|held| held.strong_count() > 0);
        holds.iter().filter_map(|held| Some(held.upgrade()?.txg)).min()
    }

    /// Lets all of them go.
    pub fn let_go(&self) {
        for held in self.0.lock().drain(..).filter_map(|held| held.upgrade()) {
            held.broken.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_counts_until_it_is_dropped() {
        let holds = Holds::default();
        assert_eq!(holds.oldest(), None);
        let (newer, older) = (holds.take(9), holds.take(7));
        assert_eq!((holds.oldest(), older.txg()), (Some(7), 7));
        drop(older);
        assert_eq!(holds.oldest(), Some(9));
        assert!(!newer.is_broken());
        holds.let_go();
        assert!(newer.is_broken());
        assert_eq!(holds.oldest(), None);
    }
}
