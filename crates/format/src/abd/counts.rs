//! How many buffers there are that own their bytes (`abd_stats_t`), in the whole process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buffers of one shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShapeCount {
    /// How many there are.
    pub buffers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What their memory holds beyond these.
    pub waste: u64,
}

/// Buffers that own their bytes. Slices of one buffer are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbdCounts {
    /// Those in one piece.
    pub linear: ShapeCount,
    /// Counts of chunks.
    pub scatter: ShapeCount,
}

/// How many there are now.
pub fn counts() -> AbdCounts {
    AbdCounts { linear: LINEAR.now(), scatter: SCATTER.now() }
}

/// Counts the buffers of one shape as they come and go.
pub(super) struct Meter([AtomicU64; 3]);

pub(super) static LINEAR: Meter = Meter::new();
pub(super) static SCATTER: Meter = Meter::new();

impl Meter {
    const fn new() -> Meter {
        Meter([const { AtomicU64::new(0) }; 3])
    }

    /// There is one more, of so many bytes.
    pub(super) fn came(&self, bytes: usize, waste: usize) {
        let [buffers, all, wasted] = &self.0;
        buffers.fetch_add(1, Relaxed);
        all.fetch_add(bytes as u64, Relaxed);
        wasted.fetch_add(waste as u64, Relaxed);
    }

    /// There is one less.
    pub(super) fn went(&self, bytes: usize, waste: usize) {
        let [buffers, all, wasted] = &self.0;
        buffers.fetch_sub(1, Relaxed);
        all.fetch_sub(bytes as u64, Relaxed);
        wasted.fetch_sub(waste as u64, Relaxed);
    }

    fn now(&self) -> ShapeCount {
        let [buffers, bytes, waste] = self.0.each_ref().map(|n| n.load(Relaxed));
        ShapeCount { buffers, bytes, waste }
    }
}
