//! Datasets that are being received: which are in use, and how far they are in each transaction group.
//!
//! A receiver enters the dataset in the sync task that makes it, or that finds it again, and takes it out when it
//! ends. It cannot be opened otherwise meanwhile.
//!
//! Each change that a receiver makes leaves the last record that it has, under the transaction group that it is in.
//! The group that is synced takes the last one that it has, and writes it into the dataset
//! ([`cenote_dsl::write::receive::save_point`]).

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
        self.open.lock().remove(&ds_obj);
    }

    /// Whether a dataset is being received.
    pub(crate) fn has(&self, ds_obj: u64) -> bool {
        self.open.lock().contains_key(&ds_obj)
    }

    /// Group `txg`, which is open, has all up to this record.
    pub(crate) fn note(&self, ds_obj: u64, txg: u64, point: Point) {
        if let Some(points) = self.open.lock().get_mut(&ds_obj) {
            let last = points.last_key_value().map(|(last, _)| *last);
            invariant!(
                last <= Some(txg),
                "dataset {ds_obj}: a record is received in group {txg} after {last:?}"
            );
            points.insert(txg, point);
        }
    }

    /// The last record that group `txg`, which is being synced, has.
    pub(crate) fn take(&self, ds_obj: u64, txg: u64) -> Option<Point> {
        let mut open = self.open.lock();
        let points = open.get_mut(&ds_obj)?;
        let later = points.split_off(&txg.saturating_add(1));
        std::mem::replace(points, later).pop_last().map(|(_, point)| point)
    }
}
