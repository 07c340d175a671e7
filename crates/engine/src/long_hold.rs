//! Long holds (`dsl_dataset_long_hold`): datasets that are read for longer than a transaction group.
//!
//! A snapshot with a long hold is not destroyed. A head with one is owned (`dsl_dataset_own`): it cannot be opened for
//! writing, rolls it back or destroys it. An attempt gets `Busy`. Holds live in memory: they
//! end with the process, and a pool that was imported again has no holds. Each knows what it is for ([`Holder`]), so that
//! what it stands in the way of can say so.
//!
//! Invariant: a hold and the destruction of its dataset never both succeed. The hold is noted first and the dataset
//! sought in the newest view then; a sync task that destroys marks the dataset under the same lock, and the mark stays
//! until a view without the dataset is there.

use super::{Engine, EngineError, Shared};
use cenote_dsl::Dataset;
use cenote_dsl::write::DslWriteError;
use cenote_format::redaction::RedactionList;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// What a long hold is for. Its text tells a user what a busy dataset is used by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A snapshot is mounted at this place.
    Mount(PathBuf),
    /// This process (`process 12 (zfs send)`) reads the dataset.
    Reader(String),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Mount(place) => write!(f, "it is mounted at '{}'", place.display()),
            Holder::Reader(process) => write!(f, "{process} uses it"),
        }
    }
}

/// Keeps a dataset as it is until it is dropped (`dsl_dataset_long_rele`).
pub struct LongHold {
    shared: Arc<Shared>,
    ds_obj: u64,
    holder: Arc<Holder>,
}

impl Drop for LongHold {
    fn drop(&mut self) {
        if !self.shared.datasets.release(self.ds_obj, &self.holder) {
            let why = format!("dataset {}: a hold ends that there was not", self.ds_obj);
            tracing::error!("{why}");
            self.shared.suspend(&why);
        }
    }
}

/// Says that a redaction list is being made until it is dropped.
pub(crate) struct Making {
    hold: LongHold,
}

impl Drop for Making {
    fn drop(&mut self) {
        let LongHold { shared, ds_obj, .. } = &self.hold;
        if !shared.datasets.made(*ds_obj) {
            let why = format!("redaction list {ds_obj}: it is made, and was not being made");
            tracing::error!("{why}");
            shared.suspend(&why);
        }
    }
}

impl Engine {
    /// Holds a snapshot, or owns a head that is not open. Returns the dataset as it is on disk then.
    ///
    /// # Errors
    /// `Busy`: the head is open, or the dataset is being destroyed; `NotFound`: it is not there any more; the pool
    /// is suspended, with changes of the head that are not on disk.
    pub fn hold(
        &self,
        dataset: &Dataset,
        holder: Holder,
    ) -> Result<(LongHold, Dataset), EngineError> {
        let (ds_obj, holder) = (dataset.ds_obj, Arc::new(holder));
        if !self.shared.datasets.hold(ds_obj, Arc::clone(&holder)) {
            return Err(DslWriteError::Busy.into());
        }
        let hold = LongHold { shared: self.shared.clone(), ds_obj, holder };
        if dataset.is_head() {
            self.sync()?;
        }
        let found = self.pool().dsl().by_object(dataset.ds_obj)?;
        match found.filter(|found| found.ds.guid == dataset.ds.guid) {
            Some(found) => Ok((hold, found)),
            None => Err(DslWriteError::NotFound.into()),
        }
    }

    /// Holds the redaction list in object `list` of the MOS, so that its bookmark is not destroyed
    /// (`dsl_redaction_list_long_hold`). Returns what it says of itself then.
    ///
    /// # Errors
    /// `Busy`: it is being destroyed; `NotFound`: it is gone; it cannot be read.
    pub fn hold_list(
        &self,
        list: u64,
        holder: Holder,
    ) -> Result<(LongHold, RedactionList), EngineError> {
        let holder = Arc::new(holder);
        if !self.shared.datasets.hold(list, Arc::clone(&holder)) {
            return Err(DslWriteError::Busy.into());
        }
        let hold = LongHold { shared: self.shared.clone(), ds_obj: list, holder };
        match self.pool().dsl().redaction_list(list) {
            Ok(known) => Ok((hold, known)),
            Err(cenote_dmu::Error::NoObject { .. }) => Err(DslWriteError::NotFound.into()),
            Err(e) => Err(e.into()),
        }
    }

    /// As [`Engine::hold_list`], for its maker: a list has one at a time.
    ///
    /// # Errors
    /// `Busy`: it is being made already; those of [`Engine::hold_list`].
    pub(crate) fn make_list(
        &self,
        list: u64,
        holder: Holder,
    ) -> Result<(Making, RedactionList), EngineError> {
        let (hold, _) = self.hold_list(list, holder)?;
        if !self.shared.datasets.make(list) {
            return Err(DslWriteError::Busy.into());
        }
        let making = Making { hold };
        // What the maker before wrote last is on disk since it ended.
        let known = self.pool().dsl().redaction_list(list)?;
        Ok((making, known))
    }

    /// Whether a dataset has a long hold (`dsl_dataset_long_held`).
    pub fn is_held(&self, ds_obj: u64) -> bool {
        self.shared.datasets.is_held(ds_obj)
    }

    /// What a dataset is used by, in words that follow "dataset is busy: "; `None`: nothing that is known here.
    pub fn use_of(&self, ds_obj: u64) -> Option<String> {
        if self.shared.receives.has(ds_obj) {
            return Some("a stream is received into it".into());
        }
        let holders = self.shared.datasets.holders(ds_obj);
        // A mount is easily found; a reader is not.
        let of = |wanted: fn(&Holder) -> bool| holders.iter().find(|h| wanted(h));
        let told = of(|h| matches!(h, Holder::Reader(_))).or(holders.first());
        told.map(ToString::to_string)
    }

    /// A long hold in the pool that does not end with a mount, in the words of [`Holder`].
    pub fn reader(&self) -> Option<String> {
        let all = self.shared.datasets.all_holders();
        let reader = all.iter().find(|h| matches!(***h, Holder::Reader(_)));
        reader.map(ToString::to_string)
    }
}
