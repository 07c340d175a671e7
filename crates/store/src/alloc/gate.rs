//! The gate of a group of metaslabs: threads that disable metaslabs, and threads that need all free space, pass it by turns.
//!
//! Each thread that disables a metaslab enters and leaves. One that needs all free space keeps others from entering, and waits until
//! all have left. Counts of both ways let an allocation know whether something was disabled while it looked.
//!
//! Invariant: while a [`KeptOut`] lives nothing of the group is disabled.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_format::invariant::said;
use cenote_format::less;
use cenote_vdev::waiting;
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Turns {
    working: u64,
    waiting: u64,
}

/// Keeps those that disable metaslabs of a group and those that need all of its free space apart.
#[derive(Default)]
pub(super) struct DisableGate {
    turns: Mutex<Turns>,
    changed: Condvar,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl DisableGate {
    /// A thread begins to disable a metaslab. It waits while another one needs all free space.
    pub(super) fn enter(&self) {
        let mut turns = self.turns.lock();
        while turns.waiting > 0 {
            self.changed.wait(&mut turns);
        }
        turns.working += 1;
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// The metaslab is enabled again.
    pub(super) fn leave(&self) {
        let mut turns = self.turns.lock();
        turns.working = less!(turns.working, 1, "threads that disable metaslabs");
        self.ended.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Whether a thread waits for all free space.
    pub(super) fn is_wanted(&self) -> bool {
        self.turns.lock().waiting > 0
    }

    /// So often metaslabs were disabled, and are no longer.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// So often metaslabs were disabled.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Waits until no metaslab is disabled; none is while what is returned lives.
    pub(super) fn keep_out(&self) -> KeptOut<'_> {
        waiting::begins();
        let mut turns = self.turns.lock();
        turns.waiting += 1;
        while turns.working > 0 {
            self.changed.wait(&mut turns);
        }
        KeptOut(self)
    }
}

/// See [`DisableGate::keep_out`].
pub(super) struct KeptOut<'a>(&'a DisableGate);

impl Drop for KeptOut<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.turns.lock();
        match turns.waiting.checked_sub(1) {
            Some(left) => turns.waiting = left,
            None => {
                tracing::error!("{}", said(format_args!("a thread lets in what it kept not out")))
            }
        }
        self.0.changed.notify_all();
    }
}
