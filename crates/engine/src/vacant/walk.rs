//! The thread of an activity of a leaf (`vdev_trim_thread`, `vdev_initialize_thread`).
//!
//! # Algorithm
//!
//! The thread goes through the metaslabs of the leaf's top-level vdev, in order. Of each it disables some free ranges, so that nothing
//! is allocated there, works on them, and enables the metaslab again. It stops early where an allocation waits for the metaslab. Free
//! ranges are cut into pieces of whole sectors: one request each, which tells the device what is free or writes the pattern.
//!
//! - Before it begins it waits until some groups are on disk since the import.
//! - With a rate it sleeps after each batch.
//! - How far it is it notes every few seconds, and when it ends. The next thread goes on there.
//! - A piece that fails is passed over. Then the offset that is noted stays before the first one, and at the end the activity is
//!   suspended, not complete.
//! - A leaf that takes no writes any more, or is about to leave, is waited for a moment. The thread ends if that lasts. A device that
//!   does not know how ends the activity as canceled.
//!
//! # Invariants
//!
//! - Nothing is allocated in a range while the device is told that it is free, or the pattern is written there.
//! - Offsets only grow: all that is free before the offset was done, or failed; all before the noted one was done.

use super::state::{ActivityState, Note, noted, write};
use super::{Key, Running, tell};
use crate::Shared;
use crate::tunables::{
    INITIALIZE_CHUNK_SIZE, INITIALIZE_VALUE, TRIM_EXTENT_BYTES_MAX, TRIM_EXTENT_BYTES_MIN,
};
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_pool::vdev_props::Activity;
use cenote_store::alloc::{Disabled, Room};
use cenote_vdev::Vdev;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How much of a metaslab a device is told at a time.
pub(super) const ROOM: Room = Room { ranges: 256, bytes: 1 << 30 };
/// How much is written at a time.
const ROOM_TO_WRITE: u64 = 64 << 20;
/// How often it is written down how far a thread is.
const NOTE: Duration = Duration::from_secs(5);
/// How long a thread waits for a leaf that may be about to leave.
const AWAY: Duration = Duration::from_millis(50);

/// A leaf, and its top-level vdev.
pub(super) struct Place {
    pub leaf: Arc<Vdev>,
    top: Arc<Vdev>,
}

/// Where a leaf is in the tree that is in use.
pub(super) fn place(shared: &Shared, leaf: u64) -> Option<Place> {
    let tree = shared.disk.tree();
    let found = tree.find(leaf).filter(|found| found.is_leaf())?;
    Some(Place { leaf: found, top: tree.top_of(leaf)?.clone() })
}

impl Place {
    /// Bytes of the leaf's allocatable space, in ascending order: more than one piece where a distributed spare has what is between.
    fn on_leaf(&self, of_top: Range<u64>) -> Vec<Range<u64>> {
        self.top.ranges_on(self.leaf.guid(), of_top)
    }

    /// Where on the leaf what comes before this byte of the vdev ends.
    fn end_on_leaf(&self, of_top: u64) -> u64 {
        self.top.end_on(self.leaf.guid(), of_top)
    }
}

/// Pieces of a range of a leaf or a top-level vdev: whole sectors of the latter, `most` bytes at most but one sector at least.
pub(super) fn pieces(
    range: Range<u64>,
    ashift: u32,
    most: u64,
) -> impl Iterator<Item = Range<u64>> {
    let step = (most >> ashift).max(1) << ashift;
    let mut at = range.start;
    std::iter::from_fn(move || {
        let piece = at..range.end.min(at.saturating_add(step));
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The range, if it is worth it to tell a device of it.
pub(super) fn worth_trimming(range: Range<u64>) -> Option<Range<u64>> {
    let least = TRIM_EXTENT_BYTES_MIN.get().max(1);
    (range.end.saturating_sub(range.start) >= least).then_some(range)
}

/// How a thread ends.
enum End {
    /// All was looked at.
    All,
    /// It was told to end, or the leaf is out of use or about to leave.
    Stopped,
    /// The device does not know how.
    Unsupported,
}

/// What came of some ranges of a metaslab: the bytes that were done, and where to go on in bytes of the top-level vdev.
enum Batch {
    Done(u64, u64),
    /// The leaf cannot be written to, or is leaving.
    Away,
    Unsupported,
}

/// Works on one leaf, and writes down when all is done.
pub(super) fn run(shared: &Arc<Shared>, key: Key, own: &Running) {
    let (activity, leaf) = key;
    let noted = match noted(shared, key) {
        Ok(noted) => noted,
        Err(e) => return tracing::warn!(leaf, ?activity, "it does not go on: {e}"),
    };
    if noted.state != Some(ActivityState::Active) || !is_settled(shared, key, own) {
        return;
    }
    let (pattern, chunk) = match activity {
        Activity::Initialize => pattern(noted.value.unwrap_or_else(|| INITIALIZE_VALUE.get())),
        Activity::Trim => (None, TRIM_EXTENT_BYTES_MAX.get()),
    };
    let now = Instant::now();
    let (rate, offset) = (noted.rate, noted.offset);
    let mut walk =
        Walk { shared, key, own, rate, pattern, chunk, offset, failed: None, noted: now };
    let end = walk.all();
    let offset = Some(walk.safe_offset());
    let (state, event) = match end {
        End::Stopped => (None, ""),
        End::Unsupported => (Some(ActivityState::Canceled), "cancel"),
        End::All if walk.failed.is_some() => {
            tracing::warn!(leaf, ?activity, "something failed, from byte {offset:?} on");
            (Some(ActivityState::Suspended), "suspend")
        }
        End::All => (Some(ActivityState::Complete), "finish"),
    };
    // A pool that is suspended, or whose export did not wait, goes on with what is noted.
    let written = write(shared, key, Note { state, offset, ..Note::default() });
    if let (Ok(()), Some(_), Some(place)) = (written, state, place(shared, leaf)) {
        tell(shared, activity, event, &place.leaf);
    }
}

/// Waits until enough groups are on disk since the import. `false`: it is to end before.
fn is_settled(shared: &Arc<Shared>, key: Key, own: &Running) -> bool {
    while shared.vacant.unsettled.load(Ordering::Acquire) > 0 {
        let stopped = own.stop.load(Ordering::Acquire);
        // Nothing else may ask for a group.
        if stopped || write(shared, key, Note::default()).is_err() {
            return false;
        }
    }
    true
}

/// What is written to free space, and the bytes of a request.
fn pattern(value: u64) -> (Option<Abd>, u64) {
    /// Bytes of the largest sector: a request has one at least.
    const SECTOR: u64 = 1 << 16;
    let chunk = INITIALIZE_CHUNK_SIZE.get();
    let words = chunk.max(SECTOR).div_ceil(8);
    let bytes: Vec<u8> = (0..words).flat_map(|_| value.to_ne_bytes()).collect();
    (Some(Abd::from(bytes)), chunk)
}

/// What the thread of an activity does.
struct Walk<'a> {
    shared: &'a Arc<Shared>,
    key: Key,
    own: &'a Running,
    rate: u64,
    /// What is written; `None`: the device is told.
    pattern: Option<Abd>,
    /// Most bytes of a request.
    chunk: u64,
    /// Bytes of the leaf's allocatable space before this were done, or failed.
    offset: u64,
    /// The first byte that failed.
    failed: Option<u64>,
    noted: Instant,
}

impl Walk<'_> {
    fn is_stopped(&self) -> bool {
        self.own.stop.load(Ordering::Acquire)
            || self.shared.tx_state.failure().is_some()
            || self.shared.is_removing(self.key.1)
    }

    /// All before was done.
    fn safe_offset(&self) -> u64 {
        let (done, failed) = (self.offset, self.failed.unwrap_or(self.offset));
        invariant!(
            failed <= done,
            "{:?} of leaf {}: byte {failed:#x} failed, and {done:#x} are done",
            self.key.0,
            self.key.1
        );
        failed
    }

    /// All metaslabs.
    fn all(&mut self) -> End {
        for next in 0.. {
            let Some(place) = place(self.shared, self.key.1) else { return End::Stopped };
            let Some(group) = self.shared.disk.allocator.group(place.top.id()) else {
                // Nothing says what is free there.
                return End::Stopped;
            };
            let Some(extent) = group.metaslabs().get(next).map(|metaslab| metaslab.extent()) else {
                return End::All;
            };
            let last = place.end_on_leaf(extent.start + extent.size);
            let end = place.end_on_leaf(place.top.asize());
            self.own.left.store(end.saturating_sub(self.offset), Ordering::Relaxed);
            if last > self.offset
                && let Some(end) = self.metaslab(next, extent.start)
            {
                return end;
            }
            self.offset = self.offset.max(last);
        }
        End::All
    }

    /// What is free in a metaslab, which begins at byte `from` of its vdev; how the thread ends, if it does.
    fn metaslab(&mut self, metaslab: usize, mut from: u64) -> Option<End> {
        let most = if self.pattern.is_some() { ROOM_TO_WRITE } else { ROOM.bytes };
        let bytes = if self.rate > 0 { self.rate.clamp(1 << 20, most) } else { most };
        loop {
            let found = place(self.shared, self.key.1).filter(|place| place.leaf.writable());
            let Some(place) = found.filter(|_| !self.is_stopped()) else {
                return Some(End::Stopped);
            };
            let (allocator, room) = (&self.shared.disk.allocator, Room { bytes, ..ROOM });
            let vdev = place.top.id();
            let Some(disabled) = allocator.disable_free(vdev, metaslab as u64, from, room) else {
                // It cannot be loaded.
                self.failed.get_or_insert(self.offset);
                return None;
            };
            if disabled.ranges.is_empty() {
                return None;
            }
            let begun = Instant::now();
            let batch = self.batch(&place, &disabled);
            drop(disabled);
            match batch {
                Batch::Done(bytes, next) => {
                    invariant!(
                        next >= from,
                        "vdev {vdev} metaslab {metaslab}: free space from {from:#x} goes on at {next:#x}"
                    );
                    from = next;
                    let took = bytes as f64 / self.rate as f64;
                    if self.rate > 0 {
                        self.wait_until(begun + Duration::from_secs_f64(took));
                    }
                }
                Batch::Away => self.wait_until(Instant::now() + AWAY),
                Batch::Unsupported => return Some(End::Unsupported),
            }
            self.write_down();
        }
    }

    /// Does the ranges of a metaslab that is disabled, or some of them if an allocation waits.
    fn batch(&mut self, place: &Place, disabled: &Disabled) -> Batch {
        let (mut bytes, mut next) = (0, 0);
        for (start, end) in &disabled.ranges {
            invariant!(
                next <= *start && start < end,
                "vdev {}: free space {start:#x}-{end:#x} after {next:#x}",
                place.top.id()
            );
            for range in place.on_leaf(*start..*end) {
                let range = range.start.max(self.offset)..range.end;
                match self.range(place, (disabled, range), &mut bytes) {
                    Ok(true) => {}
                    Ok(false) => return Batch::Done(bytes, *start),
                    Err(batch) => return batch,
                }
            }
            next = *end;
        }
        Batch::Done(bytes, next)
    }

    /// Does a range of a leaf, unless an allocation waits (`false`), or the leaf takes nothing.
    fn range(
        &mut self,
        place: &Place,
        (disabled, range): (&Disabled, Range<u64>),
        bytes: &mut u64,
    ) -> Result<bool, Batch> {
        let whole = match self.pattern {
            Some(_) => Some(range.clone()),
            None => worth_trimming(range.clone()),
        };
        let ashift = place.top.ashift();
        for piece in whole.into_iter().flat_map(|whole| pieces(whole, ashift, self.chunk)) {
            if *bytes > 0 && (disabled.is_in_the_way() || self.is_stopped()) {
                return Ok(false);
            }
            let (at, len, done) = (piece.start, piece.end - piece.start, self.offset);
            invariant!(
                at >= done,
                "{:?}: byte {at:#x} of leaf {} comes after {done:#x}",
                self.key.0,
                self.key.1
            );
            match self.piece(&place.leaf, piece) {
                Ok(()) => {}
                Err(ErrorKind::Unsupported) => return Err(Batch::Unsupported),
                Err(_) if !place.leaf.writable() || place.leaf.is_leaving() => {
                    return Err(Batch::Away);
                }
                Err(_) => {
                    self.failed.get_or_insert(at);
                }
            }
            *bytes += len;
            self.offset = at + len;
        }
        self.offset = self.offset.max(range.end);
        Ok(true)
    }

    /// One request.
    fn piece(&self, leaf: &Arc<Vdev>, piece: Range<u64>) -> Result<(), ErrorKind> {
        let tree = self.shared.disk.tree();
        let done = match &self.pattern {
            None => tree.trim(leaf, piece.clone()),
            Some(pattern) => {
                let len = usize::try_from(piece.end - piece.start).unwrap_or(usize::MAX);
                let data = pattern.slice(0, len).ok_or(ErrorKind::InvalidInput)?;
                tree.initialize(leaf, piece.start, data)
            }
        };
        done.map_err(|e| {
            tracing::debug!(?leaf, ?piece, "{:?}: {e}", self.key.0);
            e.kind()
        })
    }

    /// Waits, unless it is to stop or the leaf has left.
    fn wait_until(&self, until: Instant) {
        let mut running = self.shared.vacant.running.lock();
        while !self.is_stopped() && Instant::now() < until {
            let rang = !self.shared.vacant.changed.wait_until(&mut running, until).timed_out();
            if rang && place(self.shared, self.key.1).is_none() {
                return;
            }
        }
    }

    fn write_down(&mut self) {
        if self.noted.elapsed() >= NOTE {
            let offset = Some(self.safe_offset());
            // A suspended pool ends the thread.
            let _suspended = write(self.shared, self.key, Note { offset, ..Note::default() });
            self.noted = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_sectors() {
        let all = |range, ashift, most| pieces(range, ashift, most).collect::<Vec<_>>();
        assert_eq!(all(4096..20480, 12, 10_000), [4096..12288, 12288..20480]);
        assert_eq!(all(4096..12288, 12, 5), [4096..8192, 8192..12288]);
        assert_eq!(all(4096..4096, 12, 5), []);
    }
}
