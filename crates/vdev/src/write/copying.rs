//! Ranges of top-level vdevs that are being copied as they are (`crate::rebuild`), and writes that get in between.
//!
//! What is copied is read, and written to another leaf a moment later. A block that is written to the same place meanwhile is newer
//! than the copy. So a range is claimed before it is read, at a moment in which nothing is written (`Writer::healing`). A
//! write that comes later *spoils* the claim, and the range is read once more. Once the copy itself is written such a write waits
//! for it.
//!
//! Invariant: a claim is being written only if nothing was written to its range since it was made.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::waiting;

struct Claimed {
    end: u64,
    spoiled: bool,
    /// The copy is being written.
    written: bool,
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
    /// Claims pieces of a top-level vdev, each (byte, bytes). Nothing may be written at this moment.
    pub fn claim(&self, vdev: u64, pieces: &[(u64, u64)]) -> Claim<'_> {
        let mut claims = self.claims.lock();
        for (start, size) in pieces {
            let end = start.saturating_add(*size);
            claims.insert((vdev, *start), Claimed { end, spoiled: false, written: false });
        }
        self.count.store(claims.len(), SeqCst);
        Claim { copying: self, places: pieces.iter().map(|(start, _)| (vdev, *start)).collect() }
    }

    /// Something is about to be written to this range of a top-level vdev.
    pub fn make_way(&self, vdev: u64, range: Range<u64>) {
        if self.count.load(SeqCst) == 0 {
            return;
        }
        let mut claims = self.claims.lock();
        while met(&mut claims, vdev, range.clone()).any(|claimed| claimed.written) {
            waiting::begins();
            self.ended.wait(&mut claims);
        }
        met(&mut claims, vdev, range).for_each(|claimed| claimed.spoiled = true);
    }

    /// Leaves are repaired: what was read before may be what was wrong. No copy may be written at this moment.
    pub fn spoil_all(&self) {
        if self.count.load(SeqCst) > 0 {
            self.claims.lock().values_mut().for_each(|claimed| claimed.spoiled = true);
        }
    }
}

impl Claim<'_> {
    /// The copies are going to be written, but for those that are spoiled: of each piece whether it is.
    pub fn begin_write(&self) -> Vec<bool> {
        let mut claims = self.copying.claims.lock();
        let begin = |place: &(u64, u64)| {
            claims.get_mut(place).is_some_and(|mine| {
                mine.written = !mine.spoiled;
                mine.written
            })
        };
        self.places.iter().map(begin).collect()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut claims = self.copying.claims.lock();
        claims.retain(|place, _| !self.places.contains(place));
        self.copying.count.store(claims.len(), SeqCst);
        drop(claims);
        self.copying.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn a_write_spoils_what_it_meets() {
        let copying = Copying::default();
        let claim = copying.claim(0, &[(10, 10), (20, 10), (40, 5)]);
        let other = copying.claim(1, &[(10, 10)]);
        copying.make_way(0, 19..20);
        copying.make_way(0, 30..40);
        copying.make_way(0, 44..60);
        assert_eq!(
            (claim.begin_write(), other.begin_write()),
            (vec![false, true, false], vec![true])
        );
        drop((claim, other));
        let again = copying.claim(0, &[(10, 10)]);
        copying.spoil_all();
        assert_eq!(again.begin_write(), [false]);
    }

    #[test]
    fn a_write_waits_for_a_copy_that_is_being_written() {
        let (copying, written) = (Copying::default(), AtomicBool::new(false));
        let claim = copying.claim(0, &[(10, 10)]);
        assert_eq!(claim.begin_write(), [true]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                copying.make_way(0, 5..11);
                written.store(true, SeqCst);
            });
            // Beside it nothing waits.
            copying.make_way(0, 20..30);
            std::thread::sleep(Duration::from_millis(50));
            assert!(!written.load(SeqCst));
            drop(claim);
        });
        assert!(written.load(SeqCst));
    }
}
