//! Writing that waits for devices to come back (`zio_suspend`, `zio_resume`).
//!
//! # Idea
//!
//! What a transaction group has to write and no device takes is *held*: the thread that writes it waits ([`Suspension::persist`]),
//! and the pool is suspended. Once somebody says that the devices may be back ([`Suspension::resume`]), all that is held is tried
//! again; what fails once more is held again. A pool that is given up ([`Suspension::abandon`]) holds nothing any more: what was
//! held fails for its callers.
//!
//! Nothing is held before the pool's owner has said that it wants that ([`Suspension::arm`]), and what does not fail for a
//! device ([`VdevError::is_of_device`](crate::VdevError::is_of_device)) never is.
//!
//! # Invariants
//!
//! - A thread that is held has no lock that other threads need but the locks of the transaction group that is being written.
//! - `held` and `retrying` count threads; while one of them is not 0 its thread is in [`Suspension::persist`].

use cenote_format::less;
use parking_lot::{Condvar, Mutex};
use std::sync::OnceLock;

/// Told that the pool is suspended, and why; whether it holds what cannot be written.
type Listener = Box<dyn Fn(&str) -> bool + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    /// Why the pool is suspended.
    why: Option<String>,
    /// Nothing is held any more.
    over: bool,
    /// How often it was resumed.
    round: u64,
    /// Threads that wait.
    held: usize,
    /// Threads that try again.
    retrying: usize,
}

/// What of a pool waits for devices. Trees that are made of one another share it.
#[derive(Default)]
pub struct Suspension {
    state: Mutex<State>,
    changed: Condvar,
    listener: OnceLock<Listener>,
}

impl std::fmt::Debug for Suspension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.lock().fmt(f)
    }
}

impl Suspension {
    /// From now on what cannot be written is held. `listener` is told when the pool is suspended; where it says no,
    /// nothing is held.
    pub fn arm(&self, listener: impl Fn(&str) -> bool + Send + Sync + 'static) {
        let _ = self.listener.set(Box::new(listener));
    }

    /// Why the pool is suspended, if it is.
    pub fn why(&self) -> Option<String> {
        self.state.lock().why.clone()
    }

    /// Does something until it succeeds: where `attempt` fails for a device the thread waits until the pool is resumed.
    ///
    /// # Errors
    /// Those of `attempt` that are of no device, or where nothing is held.
    pub fn persist<T, E: std::fmt::Display>(
        &self,
        is_of_device: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut again = false;
        loop {
            let done = attempt();
            match &done {
                Err(e) if is_of_device(e) => {
                    if !self.hold(&e.to_string(), again) {
                        return done;
                    }
                    again = true;
                }
                _ => {
                    if again {
                        self.retried();
                    }
                    return done;
                }
            }
        }
    }

    /// Waits until the pool is resumed; false: nothing is held, and nothing must be tried any more. `again`: this was
    /// tried again.
    fn hold(&self, why: &str, again: bool) -> bool {
        let Some(listener) = self.listener.get() else { return false };
        let mut state = self.state.lock();
        if again {
            state.retrying = less!(state.retrying, 1, "threads that try again");
            self.changed.notify_all();
        }
        if state.over {
            return false;
        }
        let new = state.why.is_none();
        state.why.get_or_insert_with(|| why.to_owned());
        state.held += 1;
        let round = state.round;
        if new {
            drop(state);
            let holds = listener(why);
            state = self.state.lock();
            state.over |= !holds;
        }
        crate::waiting::begins();
        while state.round == round && !state.over {
            self.changed.wait(&mut state);
        }
        if !state.over {
            return true;
        }
        let counted = if state.round == round { &mut state.held } else { &mut state.retrying };
        *counted = less!(*counted, 1, "threads that are held");
        self.changed.notify_all();
        false
    }

    /// What was tried again has not failed for a device.
    fn retried(&self) {
        let mut state = self.state.lock();
        state.retrying = less!(state.retrying, 1, "threads that try again");
        self.changed.notify_all();
    }

    /// The devices may be back: has all that is held tried again, and waits for that.
    ///
    /// # Errors
    /// Why the pool is still suspended, or that it was given up.
    pub fn resume(&self) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.over {
            return Err("nothing can be written any more".into());
        }
        state.why = None;
        state.round += 1;
        state.retrying += std::mem::take(&mut state.held);
        self.changed.notify_all();
        while state.retrying > 0 && !state.over {
            self.changed.wait(&mut state);
        }
        if state.over {
            return Err("nothing can be written any more".into());
        }
        state.why.clone().map_or(Ok(()), Err)
    }

    /// Nothing is held any more.
    pub fn abandon(&self) {
        self.state.lock().over = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// A device that takes writes or not, and threads that write to it.
    #[derive(Default)]
    struct World {
        suspension: Suspension,
        well: AtomicBool,
        told: AtomicUsize,
    }

    impl World {
        fn write(&self) -> Result<(), &'static str> {
            let attempt = || if self.well.load(SeqCst) { Ok(()) } else { Err("no device") };
            self.suspension.persist(|_| true, attempt)
        }

        fn held(&self) -> usize {
            self.suspension.state.lock().held
        }
    }

    fn world(holds: bool) -> Arc<World> {
        let world = Arc::new(World::default());
        let other = Arc::downgrade(&world);
        world.suspension.arm(move |why| {
            assert_eq!(why, "no device");
            other.upgrade().is_some_and(|world| world.told.fetch_add(1, SeqCst) < usize::MAX)
                && holds
        });
        world
    }

    fn until(done: impl Fn() -> bool) {
        while !done() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_held_is_tried_again() {
        let world = world(true);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3).map(|_| scope.spawn(|| world.write())).collect();
            until(|| world.held() == 3);
            assert_eq!(world.suspension.why().as_deref(), Some("no device"));
            assert_eq!(world.suspension.resume(), Err("no device".into()));
            assert_eq!((world.held(), world.told.load(SeqCst)), (3, 2));
            world.well.store(true, SeqCst);
            assert_eq!(world.suspension.resume(), Ok(()));
            writers.into_iter().for_each(|writer| assert_eq!(writer.join().unwrap(), Ok(())));
        });
        assert_eq!((world.suspension.why(), world.held()), (None, 0));
    }

    #[test]
    fn what_is_given_up_fails() {
        let world = world(true);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| world.write());
            until(|| world.held() == 1);
            world.suspension.abandon();
            assert_eq!(writer.join().unwrap(), Err("no device"));
        });
        assert_eq!(world.write(), Err("no device"));
        assert!(world.suspension.resume().is_err());
    }

    #[test]
    fn nothing_is_held_where_it_is_not_wanted() {
        assert_eq!(World::default().write(), Err("no device"));
        let world = world(false);
        assert_eq!(world.write(), Err("no device"));
        assert_eq!(world.told.load(SeqCst), 1);
    }
}
