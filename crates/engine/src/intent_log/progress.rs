//! How far the replay of a pool's intent logs is.
//!
//! First all logs are read, which tells how much there is to be replayed; then they are replayed. Any thread
//! may ask meanwhile.

use cenote_pool::status::{ReplayStage, ReplayStatus};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct LogProgress {
    stage: Mutex<(ReplayStage, Option<Instant>)>,
    datasets: AtomicU64,
    datasets_done: AtomicU64,
    records: AtomicU64,
    records_done: AtomicU64,
    bytes: AtomicU64,
    bytes_done: AtomicU64,
}

impl LogProgress {
    /// How far it is now.
    pub fn figures(&self) -> ReplayStatus {
        let (stage, since) = *self.stage.lock();
        ReplayStatus {
            stage,
            datasets: self.datasets.load(Relaxed),
            datasets_done: self.datasets_done.load(Relaxed),
            records: self.records.load(Relaxed),
            records_done: self.records_done.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_done: self.bytes_done.load(Relaxed),
            elapsed: since.map_or(Duration::ZERO, |since| since.elapsed()),
        }
    }

    pub(super) fn begin(&self, stage: ReplayStage) {
        let now = (stage != ReplayStage::Idle).then(Instant::now);
        *self.stage.lock() = (stage, now);
    }

    /// A log was read that has so much to be replayed.
    pub(super) fn found(&self, records: u64, bytes: u64) {
        self.datasets.fetch_add(1, Relaxed);
        self.records.fetch_add(records, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// So much more was replayed.
    pub fn replayed(&self, records: u64, bytes: u64) {
        self.records_done.fetch_add(records, Relaxed);
        self.bytes_done.fetch_add(bytes, Relaxed);
    }

    pub(super) fn dataset_done(&self) {
        self.datasets_done.fetch_add(1, Relaxed);
    }
}
