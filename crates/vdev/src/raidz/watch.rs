//! What is written to a RAID-Z vdev beside the thread that moves its sectors.
//!
//! Only that thread waits, and it holds no lock then. While a vdev is expanded each *batch* of writes, and of repairs, says what it
//! is going to write, before it looks where that is, and when it has ended. So the thread knows
//!
//! - which batches may have found sectors where they were before: it has [`Watch::bound`] after it has changed that, and waits for
//!   those before it ([`Watch::wait_for_all`]);
//! - what was, or may have been, written of the sectors that it has just copied ([`Watch::begin_piece`], [`Piece::end`]).
//!
//! Invariant: it begins and ends that a vdev is expanded (`on`, `off`) while no batch is under way.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use cenote_format::invariant;
use cenote_format::invariant::broken;
use parking_lot::{Condvar, Mutex};

/// The id of no vdev.
const NONE: u64 = u64::MAX;
/// How long between two looks whether waiting is to end.
const LOOK: Duration = Duration::from_millis(20);
/// Most ranges that are kept apart.
const MOST_RANGES: usize = 4096;

/// See the head of the module.
pub(crate) struct Watch {
    /// The vdev that is being expanded.
    vdev: AtomicU64,
    now: Mutex<Now>,
    ended: Condvar,
}

/// See [`Watch`].
#[derive(Default)]
struct Now {
    /// The number of the next batch.
    next: u64,
    /// Batches under way: the sectors that they write.
    batches: BTreeMap<u64, Vec<Range<u64>>>,
    /// The sectors between which all is that is being copied, and what was written of them since.
    piece: Option<(Range<u64>, Vec<Range<u64>>)>,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { vdev: AtomicU64::new(NONE), now: Mutex::default(), ended: Condvar::new() }
    }
}

/// Ranges in order, of which no two touch.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Adds ranges to what was written between the ends of `within`. What grows too long is all of it.
fn add(within: &Range<u64>, written: &mut Vec<Range<u64>>, ranges: &[Range<u64>]) {
    let meets = |range: &&Range<u64>| range.start < within.end && within.start < range.end;
    written.extend(ranges.iter().filter(meets).cloned());
    if written.len() > MOST_RANGES {
        *written = joined(std::mem::take(written));
        if written.len() > MOST_RANGES / 2 {
            *written = vec![within.clone()];
        }
    }
}

impl Watch {
    /// The vdev with this id is expanded from now on. No batch is under way.
    pub fn on(&self, vdev: u64) {
        self.check_idle();
        self.vdev.store(vdev, SeqCst);
    }

    /// No vdev is expanded any more. No batch is under way.
    pub fn off(&self) {
        self.check_idle();
        self.vdev.store(NONE, SeqCst);
    }

    fn check_idle(&self) {
        let left = self.now.lock().batches.len();
        invariant!(left == 0, "{left} batches of writes have not ended, and no other may begin");
    }

    /// The vdev that is being expanded.
    pub fn vdev(&self) -> Option<u64> {
        Some(self.vdev.load(SeqCst)).filter(|vdev| *vdev != NONE)
    }

    /// A batch begins that writes these sectors of the vdev.
    pub fn begin(&self, sectors: Vec<Range<u64>>) -> Batch<'_> {
        let mut now = self.now.lock();
        let Now { next, batches, piece } = &mut *now;
        let number = *next;
        *next += 1;
        if let Some((within, written)) = piece {
            add(within, written, &sectors);
        }
        batches.insert(number, sectors);
        Batch(Some((self, number)))
    }

    /// Batches that have begun have numbers below this one.
    pub fn bound(&self) -> u64 {
        self.now.lock().next
    }

    /// Waits until all batches below this number have ended that write sectors between these, or until it `ends`. Whether they
    /// have.
    pub fn wait(
        &self,
        (bound, within): (u64, Range<u64>),
        ends: &dyn Fn() -> bool,
        patience: Duration,
    ) -> bool {
        let meets = |range: &Range<u64>| range.start < within.end && within.start < range.end;
        self.wait_until(ends, patience, &|now| {
            !now.batches.range(..bound).any(|(_, sectors)| sectors.iter().any(meets))
        })
    }

    /// As [`Watch::wait`], for all of them.
    pub fn wait_for_all(&self, bound: u64, ends: &dyn Fn() -> bool, patience: Duration) -> bool {
        self.wait_until(ends, patience, &|now| now.batches.range(..bound).next().is_none())
    }

    fn wait_until(
        &self,
        ends: &dyn Fn() -> bool,
        patience: Duration,
        is_so: &dyn Fn(&Now) -> bool,
    ) -> bool {
        let begun = Instant::now();
        let mut now = self.now.lock();
        while !is_so(&now) {
            if ends() || begun.elapsed() > patience {
                return false;
            }
            self.ended.wait_for(&mut now, LOOK);
        }
        true
    }

    /// Sectors between these are being copied from now on, until what is returned is dropped. What batches write of them that
    /// are under way may come before or after the copy.
    pub fn begin_piece(&self, within: Range<u64>) -> Piece<'_> {
        let mut now = self.now.lock();
        let other = now.piece.as_ref().map(|(within, _)| within);
        invariant!(other.is_none(), "sectors {within:?} are copied, and {other:?} are already");
        let mut written = Vec::new();
        now.batches.values().for_each(|sectors| add(&within, &mut written, sectors));
        now.piece = Some((within, written));
        Piece(self)
    }
}

/// A piece is being copied; no longer once this is dropped.
pub(crate) struct Piece<'a>(&'a Watch);

impl Piece<'_> {
    /// What was, or may have been, written of it, and the number below which those batches are that did. It is watched no more.
    pub fn end(self) -> (Vec<Range<u64>>, u64) {
        let mut now = self.0.now.lock();
        match now.piece.take() {
            Some((_, written)) => (joined(written), now.next),
            // What was written meanwhile is not known.
            None => broken(format_args!("sectors were copied unwatched")),
        }
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        self.0.now.lock().piece = None;
    }
}

/// A batch of writes; it has ended once this is dropped.
#[derive(Default)]
pub(crate) struct Batch<'a>(Option<(&'a Watch, u64)>);

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Some((watch, number)) = self.0.take() {
            watch.now.lock().batches.remove(&number);
            watch.ended.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn what_meets_a_piece_is_told_and_waited_for() {
        let watch = Watch::default();
        assert_eq!(watch.vdev(), None);
        watch.on(3);
        let (before, beside) = (watch.begin(vec![0..12, 40..50]), watch.begin(vec![90..99]));
        let bound = watch.bound();
        let piece = watch.begin_piece(10..50);
        // One that begins later, and ends before the piece.
        drop(watch.begin(vec![11..14, 60..70]));
        let late = watch.begin(vec![49..51]);
        let (written, end) = piece.end();
        assert_eq!(written, [0..14, 40..51]);
        let all = |bound| watch.wait_for_all(bound, &|| false, NOW);
        let meeting = |bound| watch.wait((bound, 10..50), &|| false, NOW);
        assert!(!all(bound) && !meeting(bound) && !watch.wait_for_all(bound, &|| true, LOOK));
        drop(before);
        assert!(!all(bound) && meeting(bound) && !meeting(end));
        drop(beside);
        assert!(all(bound) && !all(end));
        drop(late);
        assert!(all(end) && meeting(end));
        let piece = watch.begin_piece(10..50);
        drop(watch.begin(vec![50..60]));
        assert_eq!(piece.end().0, []);
        watch.off();
    }

    #[test]
    fn what_is_written_again_and_again_takes_no_memory() {
        let watch = Watch::default();
        watch.on(0);
        let piece = watch.begin_piece(0..1 << 20);
        (0..3 * MOST_RANGES as u64).for_each(|n| drop(watch.begin(vec![n % 7..n % 7 + 2])));
        assert_eq!(piece.end().0, [0..8]);
        let piece = watch.begin_piece(0..1 << 20);
        (0..2 * MOST_RANGES as u64).for_each(|n| drop(watch.begin(vec![4 * n..4 * n + 1])));
        assert!(watch.now.lock().piece.as_ref().unwrap().1.len() <= MOST_RANGES);
        assert_eq!(piece.end().0, [0..1 << 20]);
    }
}
