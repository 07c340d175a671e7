//! Ranges of top-level vdevs that are being copied as they are (`crate::rebuild`), and writes that get in between.
//!
//! What is copied is read, and written to another leaf a moment later. A block that is written to the same place meanwhile is newer
//! than the copy. So a range is claimed before it is read, at a moment in which nothing is written (`Writer::healing`). A
//! write that comes later *spoils* the claim, and the range is read once more. Once the copy itself is written such a write waits
//! for it. A claim may be *reserved* from the start: then such a write waits for the read as well. A repair of a leaf
//! spoils the claims that have something of that place of the leaf, since what was read may be what was wrong.
//!
//! Invariants: a copy is written only if nothing was written to its range, or repaired there, since the claim was made. A write that
//! waits holds no lock.

use cenote_format::invariant;
use cenote_format::invariant::{broken, said};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::{Alarm, waiting};

/// A piece of a top-level vdev that is claimed.
pub(crate) struct Place {
    pub range: Range<u64>,
    /// Where it is on leaves, by their guids: bytes of their allocatable space.
    pub on_leaves: Vec<(u64, Range<u64>)>,
}

struct Claimed {
    end: u64,
    on_leaves: Vec<(u64, Range<u64>)>,
    spoiled: bool,
    /// Writes wait: the copy is being written, or the claim is reserved.
    kept: bool,
}

/// By top-level vdev and the byte at which the range begins. Ranges do not overlap: one thread copies a vdev.
type Claims = BTreeMap<(u64, u64), Claimed>;

/// See the head of the module.
#[derive(Default)]
pub(crate) struct Copying {
    claims: Mutex<Claims>,
    ended: Condvar,
    /// How many claims there are: in most cases none.
    count: AtomicUsize,
    /// The pool's.
    alarm: Arc<Alarm>,
}

/// Claims on ranges, until this is dropped.
pub(crate) struct Claim<'a> {
    copying: &'a Copying,
    places: Vec<(u64, u64)>,
}

/// The claims that a range of a top-level vdev meets.
fn met(claims: &mut Claims, vdev: u64, range: Range<u64>) -> impl Iterator<Item = &mut Claimed> {
    let before = claims.range_mut((vdev, 0)..(vdev, range.end)).rev();
    before.map(|(_, claimed)| claimed).take_while(move |claimed| claimed.end > range.start)
}

impl Copying {
    pub fn new(alarm: Arc<Alarm>) -> Copying {
        Copying { alarm, ..Copying::default() }
    }

    /// Claims pieces of a top-level vdev. Nothing may be written at this moment.
    pub fn claim(&self, vdev: u64, pieces: Vec<Place>, reserved: bool) -> Claim<'_> {
        let mut claims = self.claims.lock();
        let mut places = Vec::with_capacity(pieces.len());
        for Place { range: Range { start, end }, on_leaves } in pieces {
            let beside = met(&mut claims, vdev, start..end).next().is_none();
            invariant!(beside, "vdev {vdev}: bytes {start:#x}-{end:#x} are claimed twice");
            places.push((vdev, start));
            claims
                .insert((vdev, start), Claimed { end, on_leaves, spoiled: false, kept: reserved });
        }
        self.count.store(claims.len(), SeqCst);
        Claim { copying: self, places }
    }

    /// Whether nothing is copied. It stays so for a thread that keeps claims from being made.
    pub fn is_idle(&self) -> bool {
        self.count.load(SeqCst) == 0
    }

    /// Blocks are about to be written to these ranges of top-level vdevs, by a thread that keeps claims from being made. `false`: it is to
    /// let go of that, wait ([`Copying::wait`]), and ask again.
    #[must_use]
    pub fn make_way(&self, ranges: &[(u64, Range<u64>)]) -> bool {
        let mut claims = self.claims.lock();
        let mut free = true;
        for (vdev, range) in ranges {
            free &= !met(&mut claims, *vdev, range.clone()).any(|claimed| claimed.kept);
        }
        if free {
            for (vdev, range) in ranges {
                met(&mut claims, *vdev, range.clone()).for_each(|claimed| claimed.spoiled = true);
            }
        }
        free
    }

    /// Waits until writes to these ranges need not.
    pub fn wait(&self, ranges: &[(u64, Range<u64>)]) {
        let mut claims = self.claims.lock();
        let kept = |claims: &mut Claims| {
            let mut each = ranges.iter();
            each.any(|(vdev, range)| met(claims, *vdev, range.clone()).any(|claimed| claimed.kept))
        };
        while kept(&mut claims) {
            waiting::begins();
            self.ended.wait(&mut claims);
        }
    }

    /// Something is repaired on a leaf: what was read before of it may be what was wrong. No copy may be written at this moment.
    pub fn spoil(&self, leaf: u64, range: &Range<u64>) {
        if self.is_idle() {
            return;
        }
        let meets = |(of, on_leaf): &(u64, Range<u64>)| {
            *of == leaf && on_leaf.start < range.end && range.start < on_leaf.end
        };
        for claimed in self.claims.lock().values_mut() {
            claimed.spoiled |= claimed.on_leaves.iter().any(meets);
        }
    }
}

impl Claim<'_> {
    /// The copies are going to be written, but for those that are spoiled: of each piece whether it is.
    pub fn begin_write(&self) -> Vec<bool> {
        let mut claims = self.copying.claims.lock();
        let begin = |place: &(u64, u64)| {
            let Some(mine) = claims.get_mut(place) else {
                broken(format_args!("the claim on {place:x?} is gone before it ends"))
            };
            mine.kept = !mine.spoiled;
            mine.kept
        };
        let all = self.places.iter().map(begin).collect();
        drop(claims);
        // Writes to what was reserved, and is spoiled, wait no longer.
        self.copying.ended.notify_all();
        all
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut claims = self.copying.claims.lock();
        let gone = |place: &&(u64, u64)| claims.remove(*place).is_none();
        let gone: Vec<&(u64, u64)> = self.places.iter().filter(gone).collect();
        self.copying.count.store(claims.len(), SeqCst);
        drop(claims);
        self.copying.ended.notify_all();
        if !gone.is_empty() {
            self.copying.alarm.sound(said(format_args!("claims on {gone:x?} end twice")));
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use cenote_format::invariant::{caught, is_broken};
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    /// Pieces, each (byte, bytes), that are at the same place of leaf 7.
    fn pieces(all: &[(u64, u64)]) -> Vec<Place> {
        let place = |(start, size): &(u64, u64)| {
            let range = *start..start + size;
            Place { on_leaves: vec![(7, range.clone())], range }
        };
        all.iter().map(place).collect()
    }

    #[test]
    fn a_write_spoils_what_it_meets() {
        let copying = Copying::default();
        let claim = copying.claim(0, pieces(&[(10, 10), (20, 10), (40, 5)]), false);
        let other = copying.claim(1, pieces(&[(10, 10)]), false);
        assert!(copying.make_way(&[(0, 19..20), (0, 30..40), (0, 44..60)]));
        assert_eq!(
            (claim.begin_write(), other.begin_write()),
            (vec![false, true, false], vec![true])
        );
        drop((claim, other));
        let again = copying.claim(0, pieces(&[(10, 10), (20, 10)]), false);
        copying.spoil(8, &(0..100));
        copying.spoil(7, &(29..40));
        assert_eq!(again.begin_write(), [true, false]);
    }

    #[test]
    fn a_claim_that_is_gone_sounds_the_alarm_and_ends_no_process() {
        let copying = Copying::default();
        let claim = copying.claim(0, pieces(&[(10, 10), (30, 10)]), false);
        copying.claims.lock().clear();
        // The claim is dropped while this panics.
        let why = caught(move || claim.begin_write()).unwrap_err();
        assert!(is_broken(&why) && why.contains("gone before it ends"), "{why}");
        let why = copying.alarm.why().unwrap();
        assert!(is_broken(why) && why.contains("end twice"), "{why}");
    }

    #[test]
    fn a_write_waits_for_a_copy_that_is_being_written() {
        for reserved in [false, true] {
            let (copying, written) = (Copying::default(), AtomicBool::new(false));
            let claim = copying.claim(0, pieces(&[(10, 10), (30, 10)]), reserved);
            if !reserved {
                assert_eq!(claim.begin_write(), [true, true]);
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let ranges = [(0, 100..110), (0, 5..11)];
                    assert!(!copying.make_way(&ranges));
                    copying.wait(&ranges);
                    written.store(true, SeqCst);
                });
                // Beside it nothing waits.
                assert!(copying.make_way(&[(0, 20..30)]));
                std::thread::sleep(Duration::from_millis(50));
                assert!(!written.load(SeqCst));
                // What is repaired meanwhile is not copied.
                copying.spoil(7, &(35..36));
                if reserved {
                    assert_eq!(claim.begin_write(), [true, false]);
                }
                drop(claim);
            });
            assert!(written.load(SeqCst));
        }
    }
}
