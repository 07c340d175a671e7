//! What pools take from outside, besides devices: the time, how it passes, and random numbers. They are
//! handed in, so that a simulated pool, given its own, comes out the same each time, and waits for
//! nothing.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A time: seconds since 1970, nanoseconds.
pub type Time = (i64, u32);

/// Where times come from.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Time + Send + Sync>);

impl Clock {
    /// A clock that asks `now`.
    pub fn new(now: impl Fn() -> Time + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// What time it is.
    pub fn now(&self) -> Time {
        (self.0)()
    }

    /// How long it has been since a time that it told.
    pub fn since(&self, then: Time) -> Duration {
        let nanoseconds = |t: Time| i128::from(t.0) * 1_000_000_000 + i128::from(t.1);
        let passed = nanoseconds(self.now()) - nanoseconds(then);
        Duration::from_nanos(u64::try_from(passed.max(0)).unwrap_or(u64::MAX))
    }

    /// What time it is, in seconds since 1970; 0 before.
    pub fn seconds(&self) -> u64 {
        u64::try_from(self.now().0).unwrap_or(0)
    }
}

impl Default for Clock {
    /// The system's clock.
    fn default() -> Clock {
        Clock::new(|| match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(t) => (i64::try_from(t.as_secs()).unwrap_or(i64::MAX), t.subsec_nanos()),
            Err(_) => (0, 0),
        })
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// Where random numbers come from: guids, salts.
#[derive(Clone)]
pub struct Chance(Arc<dyn Fn() -> io::Result<u64> + Send + Sync>);

impl Chance {
    /// Numbers that `next` gives.
    pub fn new(next: impl Fn() -> io::Result<u64> + Send + Sync + 'static) -> Chance {
        Chance(Arc::new(next))
    }

    /// A random number that is not 0, as guids and salts must not be.
    ///
    /// # Errors
    /// The source gives no number.
    pub fn number(&self) -> io::Result<u64> {
        (self.0)().map(|n| n.max(1))
    }
}

impl Default for Chance {
    /// The system's random numbers.
    fn default() -> Chance {
        Chance::new(|| Ok(getrandom::u64()?))
    }
}

impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chance")
    }
}

/// How long threads that wait in simulated time wait at once, in real time.
const LOOK: Duration = Duration::from_millis(1);

/// How time passes. It is told from some moment on, and never goes back.
#[derive(Clone, Debug)]
pub struct Timer(Arc<Passing>);

#[derive(Debug)]
enum Passing {
    Real(Instant),
    Simulated(Mutex<Duration>),
}

impl Timer {
    /// Time that stands still unless a thread sleeps: a sleeping thread makes it pass, and goes on at once.
    pub fn simulated() -> Timer {
        Timer(Arc::new(Passing::Simulated(Mutex::default())))
    }

    /// How much time has passed.
    pub fn now(&self) -> Duration {
        match &*self.0 {
            Passing::Real(began) => began.elapsed(),
            Passing::Simulated(now) => *now.lock(),
        }
    }

    /// Sleeps for so long.
    pub fn sleep(&self, time: Duration) {
        match &*self.0 {
            Passing::Real(_) => std::thread::sleep(time),
            Passing::Simulated(now) => {
                let mut now = now.lock();
                *now = now.saturating_add(time);
            }
        }
    }

    /// Waits until `changed` is notified, for so long at most; it may be shorter, as with every condition.
    pub fn wait<T>(&self, changed: &Condvar, guard: &mut MutexGuard<'_, T>, time: Duration) {
        let time = match &*self.0 {
            Passing::Real(_) => time,
            // Threads that make time pass notify no waiter.
            Passing::Simulated(_) => time.min(LOOK),
        };
        changed.wait_for(guard, time);
    }
}

impl Default for Timer {
    /// The system's.
    fn default() -> Timer {
        Timer(Arc::new(Passing::Real(Instant::now())))
    }
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    /// Where times come from.
    pub clock: Clock,
    /// How time passes.
    pub timer: Timer,
    /// Where random numbers come from.
    pub chance: Chance,
}
