//! Requests to a leaf's device where nothing is allocated: it is told that something is free, or a pattern is written
//! there. Copies of a rebuild to the leaf count as such.
//!
//! They are not waited for by whoever has a block written, so they have a count of their own. A leaf that leaves its
//! vdev, or goes out of use, may become another pool's as soon as its labels allow it. What is under way until then is
//! waited for ([`Vdev::is_vacant_idle_within`]), and nothing begins on a leaf that is leaving.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use cenote_format::LABEL_START;
use cenote_format::invariant::said;
use cenote_format::label::{LABEL_END, LABEL_SIZE};
use parking_lot::{Condvar, Mutex};

use crate::device::Device;
use crate::vdev::Vdev;

/// How many such requests the device has.
#[derive(Default)]
pub(crate) struct Vacant {
    under_way: Mutex<usize>,
    changed: Condvar,
}

/// One of them.
pub(crate) struct UnderWay<'a>(&'a Vacant);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut under_way = self.0.under_way.lock();
        match under_way.checked_sub(1) {
            Some(left) => *under_way = left,
            None => tracing::error!("{}", said(format_args!("a request ends that did not begin"))),
        }
        self.0.changed.notify_all();
    }
}

impl Vacant {
    /// One begins, and is under way until what is returned is dropped.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        *self.under_way.lock() += 1;
        UnderWay(self)
    }
}

/// Does something to `range`, bytes of the leaf's allocatable space, on its device.
///
/// Errors: those of `work`; the leaf is leaving, sectors of its vdev are moving, its pool is suspended for good, or it has no device (`NotFound`); the range is not all of its space.
pub(crate) fn on_device(
    leaf: &Vdev,
    range: &Range<u64>,
    work: impl FnOnce(&dyn Device, Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    // Counted before the leaf is looked at: it is marked as leaving, or loses its device, before the count is looked at.
    let _under_way = leaf.vacant.begin();
    if leaf.leaving.load(SeqCst) || leaf.is_fenced() || leaf.moving.load(SeqCst) {
        return Err(ErrorKind::NotFound.into());
    }
    let device = leaf.device().ok_or(ErrorKind::NotFound)?;
    let data_end = (device.size() / LABEL_SIZE * LABEL_SIZE).saturating_sub(LABEL_END);
    let behind = |at: u64| at.checked_add(LABEL_START).ok_or(ErrorKind::InvalidInput);
    let (start, end) = (behind(range.start)?, behind(range.end)?);
    match start < end && end <= data_end {
        true => work(device.as_ref(), start..end),
        false => Err(ErrorKind::InvalidInput.into()),
    }
}

/// Whether a request failed of itself, not since the leaf is out of use or leaves (`vdev_initialize_cb`, `vdev_trim_cb`).
pub(crate) fn has_failed(done: &io::Result<()>) -> bool {
    done.as_ref().is_err_and(|why| why.kind() != ErrorKind::NotFound)
}

impl Vdev {
    /// Waits until the device of this leaf, which is leaving or out of use, has no request any more where nothing is
    /// allocated; `most` at most. Whether that is so.
    pub fn is_vacant_idle_within(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let mut under_way = self.vacant.under_way.lock();
        while *under_way > 0 {
            if self.vacant.changed.wait_until(&mut under_way, until).timed_out() {
                return *under_way == 0;
            }
        }
        true
    }
}
