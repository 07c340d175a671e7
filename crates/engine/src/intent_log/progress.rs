//! How far the replay of a pool's intent logs is.
//!
//! First all logs are read, which tells how much must be replayed; they are replayed as datasets are opened.
//! Any thread may ask meanwhile.

use cenote_format::invariant::said;
use cenote_pool::status::{ReplayStage, ReplayStatus};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct LogProgress {
    stage: Mutex<Stage>,
    datasets: AtomicU64,
    datasets_done: AtomicU64,
    records: AtomicU64,
    records_done: AtomicU64,
    bytes: AtomicU64,
    bytes_done: AtomicU64,
}

#[derive(Debug, Default)]
struct Stage {
    now: ReplayStage,
    since: Option<Instant>,
    /// Replays that are under way. They are shown together.
    replays: usize,
}

/// Logs are being replayed as long as this lives.
pub(super) struct Replaying<'a>(&'a LogProgress);

impl Drop for Replaying<'_> {
    fn drop(&mut self) {
        let mut stage = self.0.stage.lock();
        match stage.replays.checked_sub(1) {
            Some(left) => stage.replays = left,
            None => tracing::error!("{}", said(format_args!("a replay ends, and none is known"))),
        }
        if stage.replays == 0 {
            self.0.begin(&mut stage, ReplayStage::Idle);
        }
    }
}

impl LogProgress {
    /// How far it is now.
    pub fn figures(&self) -> ReplayStatus {
        let stage = self.stage.lock();
        ReplayStatus {
            stage: stage.now,
            datasets: self.datasets.load(Relaxed),
            datasets_done: self.datasets_done.load(Relaxed),
            records: self.records.load(Relaxed),
            records_done: self.records_done.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            bytes_done: self.bytes_done.load(Relaxed),
            elapsed: stage.since.map_or(Duration::ZERO, |since| since.elapsed()),
        }
    }

    fn begin(&self, stage: &mut Stage, now: ReplayStage) {
        let (totals, done) = (
            [&self.datasets, &self.records, &self.bytes],
            [&self.datasets_done, &self.records_done, &self.bytes_done],
        );
        totals.into_iter().chain(done).for_each(|figure| figure.store(0, Relaxed));
        (stage.now, stage.since) = (now, (now != ReplayStage::Idle).then(Instant::now));
    }

    /// Logs are read from now on.
    pub(super) fn read(&self) {
        self.begin(&mut self.stage.lock(), ReplayStage::Reading);
    }

    /// They are read.
    pub(super) fn has_read(&self) {
        self.begin(&mut self.stage.lock(), ReplayStage::Idle);
    }

    /// Logs with so many records and bytes are replayed from now on.
    pub(super) fn replay(&self, logs: impl Iterator<Item = (u64, u64)>) -> Replaying<'_> {
        let mut stage = self.stage.lock();
        if stage.replays == 0 {
            self.begin(&mut stage, ReplayStage::Replaying);
        }
        stage.replays += 1;
        drop(stage);
        logs.for_each(|(records, bytes)| self.found(records, bytes));
        Replaying(self)
    }

    /// A log was read that has so much to be replayed.
    pub(super) fn found(&self, records: u64, bytes: u64) {
        self.datasets.fetch_add(1, Relaxed);
        self.records.fetch_add(records, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// So much more was replayed.
    pub(super) fn replayed(&self, records: u64, bytes: u64) {
        self.records_done.fetch_add(records, Relaxed);
        self.bytes_done.fetch_add(bytes, Relaxed);
    }

    pub(super) fn dataset_done(&self) {
        self.datasets_done.fetch_add(1, Relaxed);
    }
}
