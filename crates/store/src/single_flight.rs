//! Single-flight: two readers of one block, or a reader and its own read-ahead, cost one read.
//!
//! A thread that finds no read of a key in flight gets a [`Guard`] and reads; dropping the guard ends the read.
//! Others wait for that, and then look at the cache, or read for themselves if the read failed.
//! Invariant: a thread that has a guard does not wait for the read of another ([`crate::pipeline`] drops its own
//! guards first), so there is no cycle of waiting.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use cenote_vdev::waiting;
use parking_lot::{Condvar, Mutex};

use crate::arc::Key;

/// A read that is under way.
#[derive(Default)]
pub(crate) struct Read {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Read {
    /// Waits until it has ended, for `patience` at most.
    pub(crate) fn wait(&self, patience: Option<Duration>) {
        waiting::begins();
        let mut done = self.done.lock();
        match patience {
            Some(patience) => {
                self.changed.wait_while_for(&mut done, |done| !*done, patience);
            }
            None => self.changed.wait_while(&mut done, |done| !*done),
        }
    }
}

/// The reads that are under way.
#[derive(Default)]
pub(crate) struct SingleFlight {
    reads: Mutex<HashMap<Key, Arc<Read>, RandomState>>,
}

/// Which thread reads a block.
pub(crate) enum Flight<'a> {
    /// The one that asked.
    Own(Guard<'a>),
    /// Another one does already.
    Other(Arc<Read>),
}

/// A read of one's own. It ends when this is dropped.
pub(crate) struct Guard<'a> {
    all: &'a SingleFlight,
    key: Key,
}

impl SingleFlight {
    /// Begins a read, unless there is one.
    pub(crate) fn begin(&self, key: Key) -> Flight<'_> {
        let mut reads = self.reads.lock();
        if let Some(read) = reads.get(&key) {
            return Flight::Other(read.clone());
        }
        reads.insert(key, Arc::default());
        Flight::Own(Guard { all: self, key })
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(read) = self.all.reads.lock().remove(&self.key) {
            *read.done.lock() = true;
            read.changed.notify_all();
        }
    }
}
