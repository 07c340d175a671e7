//! Opening a dataset: one thread opens it and replays its intent log first if need be; others wait.

use super::{Datasets, Open, load};
use crate::Shared;
use crate::capable::Purpose;
use crate::error::EngineError;
use cenote_dmu::live::LiveObjectSet;
use cenote_dsl::write::DslWriteError;
use cenote_format::invariant;
use cenote_vdev::waiting;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A thread is opening a dataset, as long as this lives; others wait.
pub(crate) struct Opening<'a> {
    datasets: &'a Datasets,
    ds_obj: u64,
}

impl<'a> Opening<'a> {
    fn begin(datasets: &'a Datasets, open: &mut Open, ds_obj: u64) -> Opening<'a> {
        let alone = open.opening.insert(ds_obj);
        invariant!(alone, "two threads open dataset {ds_obj}");
        Opening { datasets, ds_obj }
    }
}

impl Opening<'_> {
    /// The dataset.
    pub fn ds_obj(&self) -> u64 {
        self.ds_obj
    }

    /// Opens it. Other threads find it open only once its log is replayed.
    pub fn load(
        &self,
        shared: &Arc<Shared>,
        purpose: Purpose,
    ) -> Result<Arc<LiveObjectSet>, EngineError> {
        let (live, handle) = load(shared, self.ds_obj, purpose)?;
        let mut open = self.datasets.open.lock();
        let (ds_obj, replayed) = (self.ds_obj, open.replaying.contains(&self.ds_obj));
        let is_ours = open.opening.contains(&ds_obj);
        invariant!(is_ours, "dataset {ds_obj} is opened by a thread that does not open it");
        // The changes of the one before would be lost.
        let is_open = open.sets.contains_key(&ds_obj);
        invariant!(!is_open || replayed, "dataset {ds_obj} is opened, and is open");
        match purpose {
            Purpose::Replay => open.replaying.insert(self.ds_obj),
            // What was replayed is on disk.
            Purpose::Use | Purpose::Receive(_) => open.replaying.remove(&self.ds_obj),
        };
        open.sets.insert(ds_obj, (live.clone(), handle));
        Ok(live)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut open = self.datasets.open.lock();
        open.opening.remove(&self.ds_obj);
        let replayed = open.replaying.remove(&self.ds_obj);
        // It is closed after a replay. A dataset that a panic left in the middle of its replay has no user.
        if let Some((_, handle)) = open.sets.get(&self.ds_obj).filter(|_| replayed) {
            handle.closed.store(true, Ordering::SeqCst);
        }
        drop(open);
        self.datasets.opened.notify_all();
    }
}

/// A dataset without a user is being closed, as long as this lives; threads that want to open it wait.
pub(crate) struct Closing<'a> {
    datasets: &'a Datasets,
    ds_obj: u64,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.datasets.open.lock().closing.remove(&self.ds_obj);
        self.datasets.opened.notify_all();
    }
}

/// What a thread that wants a dataset finds.
pub(crate) enum Entered<'a> {
    /// It is open.
    Open(Arc<LiveObjectSet>),
    /// It is not open: the thread opens it.
    Opening(Opening<'a>),
}

impl Datasets {
    /// Begins to close a dataset that has no user (no hold either): from here on it gets none before it is closed.
    pub fn closing(&self, ds_obj: u64) -> Option<Closing<'_>> {
        let mut open = self.open.lock();
        let is_used = open.in_use(ds_obj) || open.held.contains_key(&ds_obj);
        let is_first = !is_used && open.closing.insert(ds_obj);
        is_first.then(|| Closing { datasets: self, ds_obj })
    }

    /// Finds a dataset open, or becomes the thread that opens it. Waits for another thread that is opening or closing it.
    pub fn enter(&self, ds_obj: u64) -> Result<Entered<'_>, EngineError> {
        let mut open = self.open.lock();
        while open.opening.contains(&ds_obj) || open.closing.contains(&ds_obj) {
            waiting::begins();
            self.opened.wait(&mut open);
        }
        if open.held.contains_key(&ds_obj) {
            return Err(DslWriteError::Busy.into());
        }
        if let Some((live, handle)) = open.sets.get(&ds_obj) {
            return match handle.closed.load(Ordering::SeqCst) {
                true => Err(DslWriteError::Busy.into()),
                false => Ok(Entered::Open(live.clone())),
            };
        }
        if open.retired.contains(&ds_obj) {
            return Err(DslWriteError::NotFound.into());
        }
        Ok(Entered::Opening(Opening::begin(self, &mut open, ds_obj)))
    }

    /// As [`Datasets::enter`], if no thread has it open, opens it or keeps it from being opened.
    pub fn enter_alone(&self, ds_obj: u64) -> Option<Opening<'_>> {
        let mut open = self.open.lock();
        let free = !open.in_use(ds_obj)
            && !open.closing.contains(&ds_obj)
            && !open.sets.contains_key(&ds_obj)
            && !open.held.contains_key(&ds_obj)
            && !open.retired.contains(&ds_obj);
        if !free {
            return None;
        }
        Some(Opening::begin(self, &mut open, ds_obj))
    }

    /// Opens a dataset for writing, or finds it open.
    pub fn open(
        &self,
        shared: &Arc<Shared>,
        ds_obj: u64,
        purpose: Purpose,
    ) -> Result<Arc<LiveObjectSet>, EngineError> {
        match self.enter(ds_obj)? {
            Entered::Open(live) => Ok(live),
            Entered::Opening(opening) => opening.load(shared, purpose),
        }
    }

    /// Whether the intent log of a dataset is being replayed.
    pub fn is_replaying(&self, ds_obj: u64) -> bool {
        self.open.lock().replaying.contains(&ds_obj)
    }
}
