//! The alarm of a pool: a background thread found out that the pool's state in memory is not what it must be.
//!
//! Most code of a pool runs in threads that are waited for: their panics are caught there
//! ([`cenote_format::invariant`](mod@cenote_format::invariant)). A thread that works beside them (it gives back freed
//! space, loads metaslabs, reads ahead, does a batch for a device) has no caller to tell. Such a thread sounds the
//! alarm. The engine listens, and suspends the pool at once; and it looks at the alarm before it writes an uberblock.
//!
//! Invariant: the first reason stays.

use cenote_format::invariant::caught;
use std::fmt;
use std::sync::OnceLock;

type Listener = Box<dyn Fn(&str) + Send + Sync>;

/// See the [module](self).
#[derive(Default)]
pub struct Alarm {
    why: OnceLock<String>,
    listener: OnceLock<Listener>,
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("why", &self.why).finish_non_exhaustive()
    }
}

impl Alarm {
    /// Calls `listener` with the first reason, now or when there is one. It may be called by any thread, with any lock
    /// held. The first listener stays.
    pub fn listen(&self, listener: impl Fn(&str) + Send + Sync + 'static) {
        let first = self.listener.set(Box::new(listener)).is_ok();
        if let (true, Some(why), Some(listener)) = (first, self.why(), self.listener.get()) {
            listener(why);
        }
    }

    /// Sounds it.
    pub fn sound(&self, why: String) {
        tracing::error!("{why}");
        let first = self.why.set(why).is_ok();
        if let (true, Some(why), Some(listener)) = (first, self.why(), self.listener.get()) {
            listener(why);
        }
    }

    /// Why it was sounded.
    pub fn why(&self) -> Option<&str> {
        self.why.get().map(String::as_str)
    }

    /// Does some `work` of the thread called `thread`, and sounds the alarm if it panics.
    pub fn guard<T>(&self, thread: &str, work: impl FnOnce() -> T) -> Option<T> {
        caught(work).inspect_err(|why| self.sound(format!("thread {thread}: {why}"))).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_listener_is_told_the_first_reason_once() {
        for early in [true, false] {
            let (alarm, told) = (Alarm::default(), Arc::new(AtomicUsize::new(0)));
            let heard = told.clone();
            let listener = move |why: &str| {
                assert!(why.contains("for the test"), "{why}");
                heard.fetch_add(1, Ordering::SeqCst);
            };
            if early {
                alarm.listen(listener.clone());
            }
            assert_eq!(alarm.guard("one", || 5), Some(5));
            assert_eq!(alarm.why(), None);
            assert_eq!(alarm.guard("two", || panic!("for the test")), None::<()>);
            alarm.sound("again".into());
            if !early {
                alarm.listen(listener);
            }
            assert_eq!(alarm.why(), Some("thread two: panicked: for the test"));
            assert_eq!(told.load(Ordering::SeqCst), 1);
        }
    }
}
