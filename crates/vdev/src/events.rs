//! What happens to vdevs, told to the list of events (`zfs_ereport_post`, `zfs_post_state_change`).
//!
//! Nothing is known here of pools: there is one listener for the whole process, which finds out whose vdev it is.

use crate::VdevState;
use crate::vdev::Vdev;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

/// What a device is asked to do (`zio_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// Make durable what was written.
    Flush,
}

/// Something that happened to a vdev.
#[derive(Debug)]
pub enum Happening<'a> {
    /// It gave wrong bytes at this byte of its device.
    Mismatch {
        /// Where on the device.
        offset: u64,
        /// How many; 0 if that is not known.
        size: u64,
    },
    /// A request failed.
    Failed {
        /// Where on the device.
        offset: u64,
        /// How many bytes.
        size: u64,
        /// What it was to do; a flush has neither place nor size.
        operation: Operation,
        /// Why.
        why: &'a io::Error,
    },
    /// A read or write took `zio_slow_io_ms` or longer.
    Slow {
        /// Where on the device.
        offset: u64,
        /// How many bytes.
        size: u64,
        /// Whether it was a write.
        write: bool,
        /// What it took, without waiting in the queue.
        took: Duration,
    },
    /// It did not answer when it was probed.
    ProbeFailed,
    /// It is in another state than this one, which it was in before.
    State(VdevState),
}

/// A function that is told of events. It is called with no lock held, and must not wait for devices.
pub type Listener = fn(&Vdev, &Happening<'_>);

static LISTENER: OnceLock<Listener> = OnceLock::new();

/// From now on `listener` is told what happens, unless there is another one.
pub fn listen(listener: Listener) {
    let _ = LISTENER.set(listener);
}

/// Tells the listener, if there is one.
pub(crate) fn tell(vdev: &Vdev, what: &Happening<'_>) {
    if let Some(listener) = LISTENER.get() {
        listener(vdev, what);
    }
}
