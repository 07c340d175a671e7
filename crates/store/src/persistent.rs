//! Reads that wait for devices to come back.
//!
//! The thread that writes transaction groups cannot do without what it reads. Where a top-level vdev does not answer any more
//! its reads are held as its writes are ([`cenote_vdev::Suspension`]). A block that cannot be read though its devices answer
//! is unreadable, and holds nothing.

use crate::error::BlockError;
use crate::pipeline::Store;
use std::cell::Cell;

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the reads of this thread are held.
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}

/// Puts back what was before, however the work ends.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        ACTIVE.set(self.0);
    }
}

impl Store {
    /// Does something whose reads are held while their devices do not answer.
    pub fn holding_reads<T>(work: impl FnOnce() -> T) -> T {
        let _restore = Restore(ACTIVE.replace(true));
        work()
    }

    /// Reads until the devices answer. What a read notes that was held counts for nothing.
    pub(crate) fn persist<T>(
        &self,
        mut read: impl FnMut() -> Result<T, BlockError>,
    ) -> Result<T, BlockError> {
        let suspension = self.vdevs().suspension().clone();
        let mut notes = None;
        let done = suspension.persist(
            |e: &BlockError| self.is_of_lost_device(e),
            || {
                let (done, noted) = Store::attempt(&mut read);
                notes = Some(noted);
                done
            },
        );
        if let Some(notes) = notes {
            notes.confirm(self, &|| true);
        }
        done
    }

    /// Whether a block cannot be read since a device that it may be on does not answer.
    pub(crate) fn is_of_lost_device(&self, error: &BlockError) -> bool {
        let BlockError::Vdev { bp, .. } = error else { return false };
        let tree = self.vdevs();
        bp.dvas().any(|dva| tree.top(dva.vdev.into()).is_some_and(|top| !top.answers()))
    }
}
