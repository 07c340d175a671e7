//! Waiting for the kernel, which may be waiting for this process: the rule, and what enforces it.
//!
//! The kernel holds locks of its own while it waits for an answer: a process that looks up a name holds the lock of
//! the directory meanwhile. To make the kernel forget a name takes the same lock, to make it forget contents waits for
//! reads and writes under way, and to mount, unmount or resolve a path looks up names. So a thread that waits for
//! the kernel waits for answers to requests, and cannot know to which.
//!
//! The rule:
//!
//! 1. A thread that answers a request does not wait for the kernel.
//! 2. A thread that waits for the kernel holds nothing that an answer needs.
//! 3. A lock that is held while a thread waits for the kernel is not taken by a thread that answers, nor by one that
//!    holds what an answer needs.
//!
//! A thread on which an answer depends has a [`Needed`]: where it serves a request, and beside each lock that answers
//! take ([`Held`]). What is about to wait for the kernel, and what takes a lock of the third kind, calls [`waits`],
//! which panics where the rule is broken: a command or a request that fails is better than a mount that hangs.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// How many reasons there are that an answer waits for this thread.
    static NEEDED: Cell<usize> = const { Cell::new(0) };
}

/// While it lasts, an answer may be waiting for its thread.
#[derive(Debug)]
pub(crate) struct Needed(PhantomData<*const ()>);

impl Needed {
    pub(crate) fn new() -> Needed {
        NEEDED.set(NEEDED.get() + 1);
        Needed(PhantomData)
    }
}

impl Drop for Needed {
    fn drop(&mut self) {
        NEEDED.set(NEEDED.get() - 1);
    }
}

/// A lock that answers need, as a thread holds it.
#[derive(Debug)]
pub(crate) struct Held<G> {
    guard: G,
    _needed: Needed,
}

impl<G> Held<G> {
    /// `take` takes the lock.
    pub(crate) fn new(take: impl FnOnce() -> G) -> Held<G> {
        let _needed = Needed::new();
        Held { guard: take(), _needed }
    }

    /// As [`Held::new`], of a lock that may not be had.
    pub(crate) fn try_new(take: impl FnOnce() -> Option<G>) -> Option<Held<G>> {
        let _needed = Needed::new();
        Some(Held { guard: take()?, _needed })
    }
}

impl<G: Deref> Deref for Held<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Held<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Whether an answer may be waiting for this thread.
pub fn is_needed() -> bool {
    NEEDED.get() > 0
}

/// This thread is about to wait for the kernel, or takes a lock that is held by threads that wait for it. `what` says
/// for what.
///
/// # Panics
/// An answer may be waiting for this thread, so both could wait for ever.
pub fn waits(what: &str) {
    assert!(!is_needed(), "a thread that an answer depends on waits for the kernel: {what}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::RwLock;

    #[test]
    fn a_thread_waits_only_while_no_answer_depends_on_it() {
        let lock = RwLock::new(1);
        waits("nothing is held");
        let mut held = Held::new(|| lock.write());
        *held += 1;
        let answering = Needed::new();
        let refused = std::panic::catch_unwind(|| waits("a name"));
        assert!(refused.is_err());
        drop(held);
        assert!(is_needed() && *lock.read() == 2);
        drop(answering);
        waits("it has answered");
    }
}
