//! Whether the leader hands on before it waits until changes are on disk.
//!
//! To hand on wakes another thread, and the next request wakes that once more: two wake-ups, which take longer than a commit to a fast
//! device. One program that writes and calls `fsync` in turn sends nothing meanwhile. So the leader leads on while it waits, and then looks for the
//! next request as after any answer ([`poll`](super::poll)), as long as
//!
//! - such a wait takes a moment, which is a quarter of what the deputy lets a request take: each of the last [`LONG`] waits of requests of
//!   the same connection took no longer. One connection may be of a pool on a fast device, another one of a pool on a slow one, and a commit
//!   that has nothing to write says little of the next one;
//! - no other requests come: none waited when this one was read, and none had come when the last such waits were over. Where one had, or
//!   where the leader was overtaken meanwhile, it hands on the next [`CROWD`] times. So programs that commit side by side share commits.
//!
//! It is a guess, which the deputy puts right: it leads itself when the wait takes longer than a request may
//! ([`lead`](super::lead)). No request waits longer for it than for any other.

use cenote_vdev::tunables;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// How often the leader hands on after others had to wait for it.
const CROWD: u32 = 32;
/// How many waits have to take a moment, after one that took longer, before the next one is likely to.
const LONG: u32 = 8;
/// What part of the deputy's patience a wait may take that is a moment.
const PART: u64 = 4;

/// What is known of the waits of one connection's requests.
pub(super) struct Waits {
    /// So many further ones have to take a moment.
    doubts: AtomicU32,
}

impl Default for Waits {
    /// Nothing is known: the first wait is handed on.
    fn default() -> Waits {
        Waits { doubts: AtomicU32::new(1) }
    }
}

impl Waits {
    /// A wait took so long.
    pub(super) fn took(&self, time: Duration) {
        let less = |doubts: u32| doubts.checked_sub(1);
        match time.as_nanos() <= u128::from(tunables::FUSE_WATCHDOG.get() / PART) {
            true => drop(self.doubts.fetch_update(Relaxed, Relaxed, less)),
            false => self.doubts.store(LONG, Relaxed),
        }
    }

    /// Whether the next one is likely to take a moment.
    pub(super) fn are_brief(&self) -> bool {
        self.doubts.load(Relaxed) == 0
    }
}

/// What is known of the requests of the process that come while the leader waits.
#[derive(Default)]
pub(super) struct Brief {
    /// So many of the next waits are handed on.
    crowd: AtomicU32,
}

impl Brief {
    /// Whether the next wait of a request is likely to be over soon, by those of its connection, and no request to come meanwhile. `waited`: the
    /// request had to wait itself.
    pub(super) fn is_likely(&self, waits: &Waits, waited: bool) -> bool {
        if waited {
            self.crowd.store(CROWD, Relaxed);
            return false;
        }
        let less = |crowd: u32| crowd.checked_sub(1);
        let is_crowd = self.crowd.fetch_update(Relaxed, Relaxed, less).is_ok();
        !is_crowd && waits.are_brief()
    }

    /// Whether others had to wait for the leader lately.
    #[cfg(test)]
    pub(super) fn is_crowd(&self) -> bool {
        self.crowd.load(Relaxed) > 0
    }

    /// The leader has led on while it waited, and looks for requests again, or another thread leads: `came` says whether one has waited.
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
        let (brief, waits) = (Brief::default(), Waits::default());
        let moment = Duration::from_nanos(tunables::FUSE_WATCHDOG.get() / PART);
        assert!(!brief.is_likely(&waits, false), "nothing is known yet");
        waits.took(moment);
        assert!(brief.is_likely(&waits, false) && brief.is_likely(&waits, false));
        // Another connection is of another pool.
        assert!(!brief.is_likely(&Waits::default(), false));
        // One that takes long makes the next ones doubtful, also where each other one has nothing to write.
        for _ in 0..4 {
            waits.took(moment + Duration::from_nanos(1));
            assert!(!brief.is_likely(&waits, false));
            waits.took(Duration::ZERO);
            assert!(!brief.is_likely(&waits, false));
        }
        (1..LONG).for_each(|_| waits.took(moment));
        // A request that had to wait, and one that came meanwhile.
        for waited in [true, false] {
            assert!(brief.is_likely(&waits, false));
            brief.ended(false);
            assert!(brief.is_likely(&waits, false));
            match waited {
                true => assert!(!brief.is_likely(&waits, true)),
                false => brief.ended(true),
            }
            assert!((0..CROWD).all(|_| !brief.is_likely(&waits, false)));
            assert!(brief.is_likely(&waits, false));
        }
    }
}
