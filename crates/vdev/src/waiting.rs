//! A thread says that it may wait now.
//!
//! Some threads do for others what only one thread does at a time: the thread that waits for the requests of all mounts
//! also serves them. Before such a thread waits for a device, a transaction group or another thread it hands that on.
//! It says how, once ([`hand_on_by`]). What may wait calls [`begins`] first. Other threads lose a look at a variable by that.

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
