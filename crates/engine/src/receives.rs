//! Datasets that are being received: which are in use, and how far they are in each transaction group.
//!
//! A receiver enters the dataset in the sync task that makes it, or that finds it again, and takes it out when it
//! ends. It cannot be opened otherwise meanwhile.
//!
//! Each change that a receiver makes leaves the last record that it has, under the transaction group that it is in.
//! The group that is synced takes the last one that it has, and writes it into the dataset
//! ([`cenote_dsl::write::receive::save_point`]).
//!
//! Invariants: a receiver enters once and ends once. Groups and what they have of a stream only grow.

use cenote_dsl::write::receive::Point;
use cenote_format::invariant;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Receives {
    open: Mutex<HashMap<u64, BTreeMap<u64, Point>>>,
}

impl Receives {
    /// Enters a dataset; false if another receiver has it.
    pub(crate) fn enter(&self, ds_obj: u64) -> bool {
        let mut open = self.open.lock();
        match open.contains_key(&ds_obj) {
            true => false,
            false => open.insert(ds_obj, BTreeMap::new()).is_none(),
        }
    }

    /// The receiver of a dataset has ended.
    pub(crate) fn leave(&self, ds_obj: u64) {
        let was_there = self.open.lock().remove(&ds_obj).is_some();
        invariant!(was_there, "dataset {ds_obj}: a receiver ends that has not begun");
    }

    /// Whether a dataset is being received.
    pub(crate) fn has(&self, ds_obj: u64) -> bool {
        self.open.lock().contains_key(&ds_obj)
    }

    /// Group `txg`, which is open, has all up to this record.
    pub(crate) fn note(&self, ds_obj: u64, txg: u64, point: Point) {
        if let Some(points) = self.open.lock().get_mut(&ds_obj) {
            let last = points.last_key_value().map(|(last, point)| (*last, point.bytes));
            let (now, is_later) = (point.bytes, |last: (u64, u64)| last.0 <= txg);
            invariant!(
                last.is_none_or(is_later),
                "dataset {ds_obj}: a record is received in group {txg} after {last:?}"
            );
            invariant!(
                last.is_none_or(|(_, bytes)| bytes <= now),
                "dataset {ds_obj}: {now} bytes of a stream are received after {last:?}"
            );
            points.insert(txg, point);
        }
    }

    /// The last record that group `txg`, which is being synced, has.
    pub(crate) fn take(&self, ds_obj: u64, txg: u64) -> Option<Point> {
        let mut open = self.open.lock();
        let points = open.get_mut(&ds_obj)?;
        let later = points.split_off(&(txg + 1));
        std::mem::replace(points, later).pop_last().map(|(_, point)| point)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cenote_format::invariant::{caught, is_broken};

    fn broken(f: impl FnOnce()) -> String {
        let why = caught(f).unwrap_err();
        assert!(is_broken(&why), "{why}");
        why
    }

    fn point(bytes: u64) -> Point {
        Point { object: 7, offset: 0, bytes }
    }

    #[test]
    fn a_group_takes_the_last_record_that_it_has() {
        let receives = Receives::default();
        assert!(receives.enter(5) && !receives.enter(5));
        for (txg, bytes) in [(10, 100), (10, 200), (11, 300)] {
            receives.note(5, txg, point(bytes));
        }
        assert_eq!(receives.take(5, 10), Some(point(200)));
        assert_eq!((receives.take(5, 11), receives.take(5, 12)), (Some(point(300)), None));
        receives.leave(5);
        assert!(!receives.has(5));
    }

    #[test]
    fn a_stream_that_goes_back_is_found() {
        let receives = Receives::default();
        receives.enter(5);
        receives.note(5, 10, point(200));
        let why = broken(|| receives.note(5, 10, point(199)));
        assert!(why.contains("dataset 5: 199 bytes of a stream are received after"), "{why}");
        let why = broken(|| receives.note(5, 9, point(300)));
        assert!(why.contains("dataset 5: a record is received in group 9 after"), "{why}");
        receives.leave(5);
        let why = broken(|| receives.leave(5));
        assert!(why.ends_with("dataset 5: a receiver ends that has not begun"), "{why}");
    }
}
