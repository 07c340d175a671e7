//! Long holds (`dsl_dataset_long_hold`): datasets that are read for longer than a transaction group.
//!
//! A snapshot with a long hold is not destroyed. A head with one is owned (`dsl_dataset_own`): it cannot be opened for
//! writing, rolls it back or destroys it. An attempt gets `Busy`. Holds live in memory: they
//! end with the process, and a pool that was imported again has no holds.
//!
//! Invariant: a hold and the destruction of its dataset never both succeed. The hold is noted first and the dataset
//! sought in the newest view then; a sync task that destroys marks the dataset under the same lock, and the mark stays
//! until a view without the dataset is there.

use super::{Engine, EngineError, Shared};
use cenote_dsl::Dataset;
use cenote_dsl::write::DslWriteError;
use std::sync::Arc;

/// Keeps a dataset as it is until it is dropped.
pub struct LongHold {
    shared: Arc<Shared>,
    ds_obj: u64,
}

impl Drop for LongHold {
    fn drop(&mut self) {
        if !self.shared.datasets.release(self.ds_obj) {
            let why = format!("dataset {}: a hold ends that there was not", self.ds_obj);
            tracing::error!("{why}");
            self.shared.suspend(&why);
        }
    }
}

impl Engine {
    /// Holds a snapshot, or owns a head that is not open. Returns the dataset as it is on disk then.
    ///
    /// # Errors
    /// `Busy`: the head is open, or the dataset is being destroyed; `NotFound`: it is not there any more; the pool
    /// is suspended, with changes of the head that are not on disk.
    pub fn hold(&self, dataset: &Dataset) -> Result<(LongHold, Dataset), EngineError> {
        if !self.shared.datasets.hold(dataset.ds_obj) {
            return Err(DslWriteError::Busy.into());
        }
        let hold = LongHold { shared: self.shared.clone(), ds_obj: dataset.ds_obj };
        if dataset.is_head() {
            self.sync()?;
        }
        let found = self.pool().dsl().by_object(dataset.ds_obj)?;
        match found.filter(|found| found.ds.guid == dataset.ds.guid) {
            Some(found) => Ok((hold, found)),
            None => Err(DslWriteError::NotFound.into()),
        }
    }

    /// Whether a dataset has a long hold.
    pub fn is_held(&self, ds_obj: u64) -> bool {
        self.shared.datasets.is_held(ds_obj)
    }

    /// How many long holds there are.
    pub fn holds(&self) -> usize {
        self.shared.datasets.holds()
    }
}
