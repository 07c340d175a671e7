//! Reading ahead of sequential readers.
//!
//! Each open file remembers where the last read ended. While reads follow each other the window that
//! is read in advance doubles, up to [`MAX_WINDOW`]; a jump starts over. The kernel asks for several
//! pieces at once and not always in order, so a small step back still counts as sequential.

use std::sync::{Mutex, PoisonError};

/// Window after the second read in sequence, in bytes.
const FIRST_WINDOW: u64 = 512 << 10;
/// Largest window, in bytes.
const MAX_WINDOW: u64 = 16 << 20;
/// How far from the expected place a read may be, in bytes.
const SLACK: u64 = 2 << 20;

#[derive(Debug, Default)]
struct State {
    /// Where the last read ended.
    next: u64,
    /// Up to where data was asked for.
    ahead: u64,
    /// Bytes to be ahead of the reader; 0 before the second read.
    window: u64,
}

/// The read-ahead state of an open file.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead(Mutex<State>);

impl ReadAhead {
    /// Notes a read; returns the range (offset, length) to read in advance now.
    pub(crate) fn note(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = offset.saturating_add(len);
        if offset.abs_diff(s.next) > SLACK {
            *s = State { next: end, ahead: end, window: 0 };
            return None;
        }
        s.next = s.next.max(end);
        s.ahead = s.ahead.max(end);
        s.window = s.window.saturating_mul(2).clamp(FIRST_WINDOW, MAX_WINDOW);
        let target = s.next.saturating_add(s.window);
        // Ask for half a window at a time, not for every read.
        if target.saturating_sub(s.ahead) < s.window / 2 {
            return None;
        }
        let from = s.ahead;
        s.ahead = target;
        Some((from, target.saturating_sub(from)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_is_kept_ahead_of() {
        let r = ReadAhead::default();
        let (mut asked, mut at) = (0, 0);
        while at < 256 << 20 {
            if let Some((from, len)) = r.note(at, 128 << 10) {
                assert!(from >= asked, "asks for the same twice");
                asked = from + len;
            }
            at += 128 << 10;
            if at > 1 << 20 {
                assert!(asked > at && asked <= at + MAX_WINDOW);
            }
        }
    }

    #[test]
    fn jumps_are_not_followed() {
        let r = ReadAhead::default();
        for i in 1..100u64 {
            assert_eq!(r.note(i * (1 << 30) % 77_000_000_000, 4096), None);
        }
    }
}
