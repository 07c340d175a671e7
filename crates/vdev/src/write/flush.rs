//! The flush of one device: what it was asked after, and what came of it. [`VdevTree::flush_all`](crate::VdevTree::flush_all) makes
//! one for each leaf that was written to, runs them at once, and takes note of their outcomes in order.

use crate::VdevTree;
use crate::device::Device;
use crate::threads::Work;
use crate::vdev::Vdev;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// How many flushes of each leaf of a tree have failed, by its guid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushFailures(Vec<(u64, u64)>);

impl VdevTree {
    /// How many flushes have failed. What was written before one that failed since a look at this may be lost, also where the vdevs
    /// have all of it on other leaves.
    pub fn flush_failures(&self) -> FlushFailures {
        let of = |leaf: Arc<Vdev>| (leaf.guid(), leaf.written().flush_failures());
        FlushFailures(self.leaves().into_iter().map(of).collect())
    }
}

/// A flush of one device (`zio_flush`).
pub(super) struct Flush {
    pub(super) leaf: Arc<Vdev>,
    /// The write that the leaf had got to: see [`Written::dirty`].
    pub(super) seen: u64,
    pub(super) result: io::Result<()>,
    /// What was flushed.
    pub(super) device: Option<Arc<dyn Device>>,
    /// The groups of blocks that may be lost on the leaf.
    pub(super) lost: Range<u64>,
}

impl Flush {
    pub(super) fn new(leaf: Arc<Vdev>, seen: u64, result: io::Result<()>) -> Flush {
        Flush { leaf, seen, result, device: None, lost: 0..0 }
    }

    /// Counts an error.
    pub(super) fn count(&self) {
        if let Err(error) = &self.result {
            self.leaf.stats.writes.error();
            self.leaf.stats.write_failed(error);
        }
    }

    /// Whether a device failed that is not the leaf's any more.
    pub(super) fn is_of_another_device(&self) -> bool {
        let now = self.leaf.device();
        let same = self.device.as_ref().zip(now.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        self.result.is_err() && !same && self.device.is_some()
    }

    /// Takes note of the outcome. If blocks may be lost on the leaf: why.
    pub(super) fn finish(&mut self) -> Option<String> {
        let Err(error) = &self.result else {
            self.leaf.written().flushed(self.seen);
            return None;
        };
        tracing::warn!(leaf = ?self.leaf, %error, "flush failed");
        let (why, mut written) = (error.to_string(), self.leaf.written());
        self.lost = written.flush_failed()?;
        let repairs = written.take_repairs();
        drop(written);
        // A resilver may have written blocks of old groups.
        self.leaf.lags(repairs);
        Some(why)
    }
}

impl Work for Flush {
    fn run(&mut self) {
        let gone = || Err(io::ErrorKind::NotFound.into());
        let _busy = self.leaf.stats.activity.begin();
        self.device = self.leaf.device();
        self.result = self.device.as_ref().map_or_else(gone, |d| self.leaf.flush_to(&**d));
    }
}
