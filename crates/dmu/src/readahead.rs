//! When to read ahead of a reader, and how far (`dmu_zfetch`).
//!
//! An open file keeps a [`ReadAhead`]. Reads that follow each other (nearly: several threads of a
//! mount may swap neighbours) open a window that doubles from 512 KiB to 16 MiB
//! ([`tunables`]); the blocks in it are read in the background. A jump elsewhere closes the window, so that random
//! readers cause no reads but their own.
//!
//! Where the blocks come from far away (an object store) the window goes to what latency times bandwidth needs
//! ([`Store::read_ahead`](cenote_store::pipeline::Store::read_ahead)) and in larger steps, each of which costs a latency; and it is asked for in
//! smaller parts of it, so that some are under way while others are read. It is no more than a multiple of what the reader has read by then, and
//! what other readers leave of the ARC's share: they would push out what each other waits for.

use crate::{Object, tunables};
use cenote_store::Access;
use cenote_store::prefetch::AheadShare;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reads that went on where one before ended (`zfetchstat_hits`).
static HITS: AtomicU64 = AtomicU64::new(0);
/// Reads elsewhere (`zfetchstat_misses`).
static MISSES: AtomicU64 = AtomicU64::new(0);
/// Ranges that were read ahead (`zfetchstat_io_issued`).
static ISSUED: AtomicU64 = AtomicU64::new(0);

/// What all readers of the process did so far: reads that went on where one before ended, reads elsewhere, and
/// ranges that were read ahead.
pub fn counts() -> (u64, u64, u64) {
    (HITS.load(Relaxed), MISSES.load(Relaxed), ISSUED.load(Relaxed))
}

/// State of one sequential reader (`zfetch_t`).
#[derive(Debug, Default)]
pub struct ReadAhead {
    state: Mutex<State>,
    /// Of a reader far away.
    share: Mutex<Option<AheadShare>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct State {
    /// Where a sequential reader began, and where its next read starts.
    began: u64,
    expected: u64,
    /// Bytes to be kept ahead of the reader; 0: not sequential.
    window: u64,
    /// End of what was asked for already.
    ahead: u64,
    /// What is to be under way of a file that comes from far away; 0: it does not, or nothing was read ahead yet.
    far: u64,
}

/// What a reader far away grows its window by.
const FAR_STEP: u64 = 8;
/// Parts of a window that are asked for one by one: of devices, and of what is far away.
const PARTS: u64 = 2;
const FAR_PARTS: u64 = 4;
/// How many times of what a reader has read is asked for far ahead of it.
const FAR_TIMES: u64 = 16;

impl ReadAhead {
    /// A reader about which nothing is known.
    pub fn new() -> ReadAhead {
        ReadAhead::default()
    }

    /// Call before reading `len` bytes at `offset`: starts background reads of the range (offset and length in
    /// bytes) that is likely to be read next, by a reader that `keeps` what it has read or does not. `object`
    /// gives the object, good for that range at least; it is asked only if something will be read ahead.
    pub fn before_read(
        &self,
        offset: u64,
        len: u64,
        keeps: bool,
        object: impl FnOnce(u64, u64) -> Option<Object>,
    ) {
        if tunables::PREFETCH_DISABLE.is_on() {
            return;
        }
        let access = if keeps { Access::Once } else { Access::Ahead };
        let Some((from, len)) = self.advance(offset, len) else { return };
        let Some(object) = object(from, len) else { return };
        match object.objset().store().read_ahead() {
            Some(most) => self.far(&object, most, from..from + len, access),
            None => drop(object.prefetch_for(from, len, access)),
        }
    }

    /// Asks for a range of what is far away, of which all readers have `most` bytes under way, in parts. What finds no room is asked for
    /// again.
    fn far(&self, object: &Object, most: u64, range: Range<u64>, access: Access) {
        object.prefetch_pointers(range.end);
        let part = part_of(most, object.dnode().block_size.max(1));
        let mut at = range.start;
        while at < range.end {
            // Each block is in one part.
            let end = (at / part).saturating_add(1).saturating_mul(part).min(range.end);
            if !object.prefetch_for(at, end - at, access) {
                break;
            }
            at = end;
        }
        let mut state = self.state.lock();
        if at < range.end {
            state.ahead = state.ahead.min(at);
        }
        let mut share = self.share.lock();
        let share = share.get_or_insert_with(|| object.objset().store().ahead_share());
        share.set(state.ahead.min(object.blocks_end()).saturating_sub(state.expected));
        state.far = share.left_of(most).max(most.min(tunables::MAX_DISTANCE.get()));
    }

    /// It has come to byte `end`: what lies before that waits in the ARC no longer.
    fn has_come(&self, before: u64, end: u64) {
        if let Some(share) = &mut *self.share.lock() {
            share.less(end - before);
        }
    }

    /// The range to be read ahead.
    fn advance(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        let far = state.far;
        let (least, most) = (tunables::MIN_DISTANCE.get(), tunables::MAX_DISTANCE.get().max(far));
        let (step, parts) = if far > 0 { (FAR_STEP, FAR_PARTS) } else { (2, PARTS) };
        let end = offset.saturating_add(len);
        let slack = len.saturating_mul(8).min(most);
        let starts = offset == 0 && state.window == 0;
        if !starts && offset.abs_diff(state.expected) > slack {
            *state = State { began: offset, expected: end, window: 0, ahead: end, far };
            MISSES.fetch_add(1, Relaxed);
            if let Some(share) = &mut *self.share.lock() {
                share.set(0);
            }
            return None;
        }
        HITS.fetch_add(1, Relaxed);
        let before = state.expected;
        state.expected = state.expected.max(end);
        if far > 0 {
            self.has_come(before, state.expected);
        }
        let read = state.expected - state.began;
        let most = if far > 0 { most.min(read.saturating_mul(FAR_TIMES).max(least)) } else { most };
        state.window = state.window.saturating_mul(step).max(least).min(most);
        let from = state.ahead.max(state.expected);
        let to = state.expected.saturating_add(state.window);
        // Asking in parts keeps the batches large.
        if to.saturating_sub(from) < state.window / parts {
            return None;
        }
        state.ahead = to;
        ISSUED.fetch_add(1, Relaxed);
        Some((from, to - from))
    }
}

/// Bytes of one part of `most` far away, in blocks of `block` bytes: whole blocks, not too small, and no more than is asked for at once.
fn part_of(most: u64, block: u64) -> u64 {
    let (least, at_once) = (tunables::MIN_DISTANCE.get(), tunables::DMU_PREFETCH_MAX.get());
    let part = (most / FAR_PARTS).max(least).min(at_once);
    (part / block).max(1) * block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_is_always_ahead_and_asks_for_nothing_twice() {
        let r = ReadAhead::new();
        let (mut asked_to, mut calls) = (0, 0);
        for i in 0..1000u64 {
            let offset = i * (128 << 10);
            if let Some((from, len)) = r.advance(offset, 128 << 10) {
                assert!(from >= asked_to && len <= tunables::MAX_DISTANCE.default);
                (asked_to, calls) = (from + len, calls + 1);
            }
            assert!(asked_to >= offset + (256 << 10), "{i}");
        }
        assert!(calls < 40, "{calls}");
    }

    #[test]
    fn far_away_more_is_under_way_after_few_reads() {
        const FAR: u64 = 128 << 20;
        let r = ReadAhead::new();
        r.state.lock().far = FAR;
        let mut asked_to = 0;
        for i in 0..4000u64 {
            let offset = i * (128 << 10);
            if let Some((from, len)) = r.advance(offset, 128 << 10) {
                assert!(from >= asked_to && len <= FAR);
                asked_to = from + len;
            }
            // What was asked for last is a part of the window at least, which is some times what was read.
            let window = FAR.min((offset + (128 << 10)) * FAR_TIMES);
            assert!(i < 4 || asked_to - offset > window - window / FAR_PARTS, "{i}: {asked_to}");
            assert!(asked_to <= offset + (128 << 10) + window.max(512 << 10), "{i}: {asked_to}");
        }
        // Elsewhere it begins anew, and is still far away.
        assert_eq!(r.advance(1 << 40, 4096), None);
        assert_eq!(
            *r.state.lock(),
            State {
                began: 1 << 40,
                expected: (1 << 40) + 4096,
                window: 0,
                ahead: (1 << 40) + 4096,
                far: FAR
            }
        );
    }

    #[test]
    fn parts_are_whole_blocks_and_neither_tiny_nor_cut() {
        for most in [0, 1, 64 << 10, 16 << 20, 1 << 30, u64::MAX] {
            for block in [512, 128 << 10, 1 << 20, 16 << 20, 1 << 30] {
                let part = part_of(most, block);
                assert!(part.is_multiple_of(block) && part >= block, "{most} {block}: {part}");
                let at_once = tunables::DMU_PREFETCH_MAX.default.max(block);
                assert!(part <= at_once && part + block > 512 << 10, "{most} {block}: {part}");
            }
        }
    }

    #[test]
    fn large_reads_that_several_threads_answer_are_sequential() {
        let r = ReadAhead::new();
        const LEN: u64 = 1 << 20;
        // The kernel has four of them under way.
        for four in 0..100 {
            for i in [2, 0, 3, 1] {
                r.advance((four * 4 + i) * LEN, LEN);
                assert!(four < 2 || r.state.lock().window == tunables::MAX_DISTANCE.default);
            }
        }
        assert_eq!(r.advance(1000 * LEN, LEN), None);
    }

    #[test]
    fn swapped_neighbours_are_sequential_and_jumps_are_not() {
        let r = ReadAhead::new();
        assert!(r.advance(0, 4096).is_some());
        assert!(r.advance(8192, 4096).is_some() || r.state.lock().window > 0);
        r.advance(4096, 4096);
        assert!(r.state.lock().window > 0);
        assert_eq!(r.advance(1 << 40, 4096), None);
        assert_eq!(r.advance(1 << 30, 4096), None);
        assert_eq!(r.advance(u64::MAX, u64::MAX), None);
    }
}
