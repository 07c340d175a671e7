//! A thread says that it may wait now.
//!
//! Some threads do for others what only one thread does at a time: the thread that waits for the requests of all mounts
//! also serves them. Before such a thread waits for a device, a transaction group or another thread it hands that on.
//! It says how, once ([`hand_on_by`]). What may wait calls [`begins`] first. Other threads lose a look at a variable by that.
//!
//! What waits for a suspended pool may wait for hours: it calls [`park`], so that another thread is not missed where few
//! may serve a mount, and looks whether it was interrupted ([`Park`]).

use std::cell::OnceCell;

/// What a thread does before it waits.
type HandOn = Box<dyn Fn()>;

thread_local! {
    static HAND_ON: OnceCell<HandOn> = const { OnceCell::new() };
}

/// This thread calls `hand_on` before it waits, from now on. A second one is not taken.
pub fn hand_on_by(hand_on: impl Fn() + 'static) {
    HAND_ON.with(|own| {
        let _second = own.set(Box::new(hand_on));
    });
}

/// This thread may wait from now on.
pub fn begins() {
    // A thread that ends hands nothing on.
    let _ended = HAND_ON.try_with(|own| own.get().inspect(|hand_on| hand_on()).is_some());
}

/// A thread that waits for as long as a suspended pool does, until this is dropped.
pub struct Parked {
    _own_thread: std::marker::PhantomData<*const ()>,
}

/// What serves others, and can do without a thread that waits for a suspended pool.
pub trait Park {
    /// The thread waits from now on.
    fn begin(&self);
    /// It goes on.
    fn end(&self);
    /// Whether whoever asked for what the thread does wants it no longer.
    fn is_interrupted(&self) -> bool;
}

thread_local! {
    static PARK: OnceCell<Box<dyn Park>> = const { OnceCell::new() };
}

/// This thread tells `park` when it waits for a suspended pool, from now on. A second one is not taken.
pub fn park_by(park: impl Park + 'static) {
    PARK.with(|own| {
        let _second = own.set(Box::new(park));
    });
}

/// This thread is going to wait for a suspended pool.
pub fn park() -> Parked {
    begins();
    let _ended = PARK.try_with(|own| own.get().inspect(|park| park.begin()).is_some());
    Parked { _own_thread: std::marker::PhantomData }
}

impl Parked {
    /// Whether it should not wait any longer.
    pub fn is_interrupted(&self) -> bool {
        let asked = PARK.try_with(|own| own.get().is_some_and(|park| park.is_interrupted()));
        asked.unwrap_or(false)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        let _ended = PARK.try_with(|own| own.get().inspect(|park| park.end()).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn only_the_thread_that_said_so_hands_on() {
        let handed = Arc::new(AtomicU32::new(0));
        let own = handed.clone();
        let run = move || {
            begins();
            hand_on_by(move || {
                own.fetch_add(1, Ordering::SeqCst);
            });
            begins();
            begins();
        };
        std::thread::spawn(run).join().unwrap();
        begins();
        assert_eq!(handed.load(Ordering::SeqCst), 2);
    }
}
