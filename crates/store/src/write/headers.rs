//! How large the headers of gang blocks may be (feature `dynamic_gang_header`).
//!
//! Headers of 512 bytes are written until a block comes that more pointers would have served better: a part of it found no
//! segment, and there is a vdev whose smallest allocation holds a larger header. The writer notes that here. The engine
//! makes the feature active then, and allows large headers once that is on disk: no uberblock without the
//! feature ever leads to one, nor does an intent log that is replayed on top of such an uberblock. They stay allowed
//! for good, as the feature is never inactive again (`zio_write_gang_block`).

use std::sync::atomic::{AtomicBool, Ordering};

/// What is known of a pool's gang headers.
#[derive(Debug, Default)]
pub struct GangHeaders {
    wanted: AtomicBool,
    allowed: AtomicBool,
}

impl GangHeaders {
    /// Whether a block was divided by three that would have been divided better.
    pub fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The feature is active on disk: headers are as large as there is room for.
    pub fn allow(&self) {
        self.allowed.store(true, Ordering::SeqCst);
    }

    /// Whether large headers are written.
    pub fn are_allowed(&self) -> bool {
        self.allowed.load(Ordering::SeqCst)
    }

    pub(super) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }
}
