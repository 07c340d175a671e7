//! Whether the leader hands on before it waits until changes are on disk.
//!
//! To hand on wakes another thread, and the next request wakes that once more: two wake-ups, which take longer than a commit to a fast
//! device. One program that writes and calls `fsync` in turn sends nothing meanwhile. So the leader leads on while it waits, and then looks for the
//! next request as after any answer ([`poll`](super::poll)), as long as
//!
//! - such a wait takes a moment: the last one took no longer than a quarter of what the deputy lets a request take;
//! - no other requests come: none waited when this one was read, and none had come when the last such waits were over. Where one had,
//!   the leader hands on the next [`CROWD`] times. So programs that commit side by side share commits.
//!
//! It is a guess, which the deputy puts right: it leads itself when the wait takes longer than a request may
//! ([`lead`](super::lead)). No request waits longer for it than for any other.

use cenote_vdev::tunables;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How often the leader hands on after others had to wait for it.
const CROWD: u32 = 32;
/// What part of the deputy's patience a wait may take that is a moment.
const PART: u64 = 4;

/// What is known of the waits of the process.
pub(super) struct Brief {
    /// What the last one took, in nanoseconds.
    takes: AtomicU64,
    /// So many of the next ones are handed on.
    crowd: AtomicU32,
}

impl Default for Brief {
    /// Nothing is known: the first wait is handed on.
    fn default() -> Brief {
        Brief { takes: AtomicU64::new(u64::MAX), crowd: AtomicU32::new(0) }
    }
}

impl Brief {
    /// Whether the next wait is likely to be over soon, and no request to come meanwhile. `waited`: the request had to wait itself.
    pub(super) fn is_likely(&self, waited: bool) -> bool {
        if waited {
            self.crowd.store(CROWD, Relaxed);
            return false;
        }
        let less = |crowd: u32| crowd.checked_sub(1);
        let is_crowd = self.crowd.fetch_update(Relaxed, Relaxed, less).is_ok();
        !is_crowd && self.takes.load(Relaxed) <= tunables::FUSE_WATCHDOG.get() / PART
    }

    /// A wait took so long.
    pub(super) fn took(&self, time: Duration) {
        self.takes.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The leader has led on while it waited, and looks for requests again: `came` says whether one waits.
    pub(super) fn ended(&self, came: bool) {
        if came {
            self.crowd.store(CROWD, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_leads_on_where_waits_are_short_and_nothing_else_comes() {
        let brief = Brief::default();
        let moment = Duration::from_nanos(tunables::FUSE_WATCHDOG.get() / PART);
        assert!(!brief.is_likely(false), "nothing is known yet");
        brief.took(moment);
        assert!(brief.is_likely(false) && brief.is_likely(false));
        brief.took(moment + Duration::from_nanos(1));
        assert!(!brief.is_likely(false));
        brief.took(moment);
        // A request that had to wait, and one that came meanwhile.
        for waited in [true, false] {
            assert!(brief.is_likely(false));
            brief.ended(false);
            assert!(brief.is_likely(false));
            match waited {
                true => assert!(!brief.is_likely(true)),
                false => brief.ended(true),
            }
            assert!((0..CROWD).all(|_| !brief.is_likely(false)));
            assert!(brief.is_likely(false));
        }
    }
}
