//! How far the replay of a pool's intent logs is.

use cenote_dsl::human::{nicebytes, nicenum};
use std::time::Duration;

/// What goes on with intent logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplayStage {
    /// Nothing.
    #[default]
    Idle,
    /// The logs are read: the totals grow.
    Reading,
    /// The logs are replayed: the totals stand.
    Replaying,
}

impl ReplayStage {
    /// A word for programs.
    pub fn name(self) -> &'static str {
        match self {
            ReplayStage::Idle => "idle",
            ReplayStage::Reading => "reading",
            ReplayStage::Replaying => "replaying",
        }
    }
}

/// How far the replay of intent logs is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayStatus {
    /// What goes on.
    pub stage: ReplayStage,
    /// Datasets with logs to be replayed.
    pub datasets: u64,
    /// Those that are done.
    pub datasets_done: u64,
    /// Records to be replayed.
    pub records: u64,
    /// Those that are replayed.
    pub records_done: u64,
    /// Bytes of the records to be replayed.
    pub bytes: u64,
    /// Bytes of those that are replayed.
    pub bytes_done: u64,
    /// How long the stage has taken.
    pub elapsed: Duration,
}

impl ReplayStatus {
    fn per_second(&self, amount: u64) -> u64 {
        (amount as f64 / self.elapsed.as_secs_f64().max(1e-3)) as u64
    }

    /// Bytes a second.
    pub fn rate(&self) -> u64 {
        match self.stage {
            ReplayStage::Replaying => self.per_second(self.bytes_done),
            ReplayStage::Idle | ReplayStage::Reading => self.per_second(self.bytes),
        }
    }

    /// How long the rest takes at the same rate; `None` if nothing is replayed yet.
    pub fn left(&self) -> Option<Duration> {
        let (done, all) = (self.records_done, self.records);
        let rest = all.saturating_sub(done) as f64;
        (done > 0).then(|| Duration::from_secs_f64(self.elapsed.as_secs_f64() * rest / done as f64))
    }

    /// A line for people, without a newline.
    pub fn text(&self) -> String {
        let rate = nicebytes(self.rate());
        let (all, bytes) = (nicenum(self.records), nicebytes(self.bytes));
        if self.stage != ReplayStage::Replaying {
            return format!(
                "intent logs: reading, {} datasets, {all} records, {bytes} so far, {rate}/s",
                self.datasets
            );
        }
        let left = match self.left() {
            Some(left) => {
                let s = left.as_secs();
                format!("{:02}:{:02}:{:02} to go", s / 3600, s / 60 % 60, s % 60)
            }
            None => "no estimated completion time".into(),
        };
        format!(
            "intent logs: replaying, {} of {} datasets, {} of {all} records, {} of {bytes}, {rate}/s, {left}",
            self.datasets_done,
            self.datasets,
            nicenum(self.records_done),
            nicebytes(self.bytes_done),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was_done() {
        let half = ReplayStatus {
            stage: ReplayStage::Replaying,
            datasets: 3,
            datasets_done: 1,
            records: 4000,
            records_done: 1000,
            bytes: 4 << 20,
            bytes_done: 1 << 20,
            elapsed: Duration::from_secs(1000),
        };
        assert_eq!((half.rate(), half.left()), (1048, Some(Duration::from_secs(3000))));
        assert_eq!(
            half.text(),
            "intent logs: replaying, 1 of 3 datasets, 1000 of 3.91K records, 1M of 4M, 1.02K/s, 00:50:00 to go"
        );
        let begun = ReplayStatus { records_done: 0, bytes_done: 0, ..half };
        assert!(
            begun.left().is_none() && begun.text().ends_with("0B/s, no estimated completion time")
        );
        let read = ReplayStatus { stage: ReplayStage::Reading, ..begun };
        assert_eq!(
            read.text(),
            "intent logs: reading, 3 datasets, 3.91K records, 4M so far, 4.10K/s"
        );
    }
}
