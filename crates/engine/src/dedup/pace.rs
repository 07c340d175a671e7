//! How fast logs get into the ZAPs: by how fast entries come in, and how many there are (`ddt_flush_update_rates`,
//! `ddt_flush_pressure`).
//!
//! A group flushes a share of what is logged, and more the longer logs get, so that no log grows without an end.

use crate::tunables as t;
use std::time::Duration;

/// The pressure without a cap on the log, in tenths.
const NO_PRESSURE: u64 = 10;

/// How fast entries come and go.
#[derive(Debug)]
pub(super) struct Pace {
    /// Entries that are logged, and flushed, in a group: moving averages.
    pub ingest_rate: u64,
    pub flush_rate: u64,
    /// Milliseconds that a group takes to flush, as such an average.
    pub flush_time_rate: u64,
    /// In tenths (`ddt_log_flush_pressure`).
    pressure: u64,
    backlog: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            ingest_rate: 0,
            flush_rate: 0,
            flush_time_rate: 0,
            pressure: NO_PRESSURE,
            backlog: 0,
        }
    }
}

/// An exponentially weighted moving average.
fn average(new: u64, old: u64) -> u64 {
    let weight = t::DEDUP_LOG_FLUSH_FLOW_RATE_TXGS.get().max(1);
    if new >= old { old + (new - old) / weight } else { old - (old - new) / weight }
}

/// Entries that a group flushes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub least: u64,
    pub most: u64,
}

impl Pace {
    /// A group has logged so many entries.
    pub fn ingested(&mut self, count: u64) {
        self.ingest_rate = average(count, self.ingest_rate);
    }

    /// A group has flushed so many entries of those that were in both logs, in this time.
    pub fn flushed(&mut self, count: u64, backlog: u64, took: Duration) {
        self.backlog = backlog;
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.flush_time_rate = average(milliseconds, self.flush_time_rate);
        self.flush_rate = average(count, self.flush_rate);
    }

    /// What a group flushes of so many entries in both logs.
    pub fn share(&mut self, backlog: u64) -> Share {
        let cap = t::DEDUP_LOG_CAP.get().max(1);
        let capped = cap < u32::MAX.into();
        let mut least = (backlog / t::DEDUP_LOG_FLUSH_TXGS.get().max(1))
            .max(t::DEDUP_LOG_FLUSH_ENTRIES_MIN.get());
        let tenfold = backlog.saturating_mul(10);
        if capped && backlog > cap && backlog > self.backlog {
            self.pressure = self.pressure.saturating_add(tenfold / cap);
        } else if capped && backlog < cap {
            let less = 11u64.saturating_sub(tenfold.div_ceil(cap));
            self.pressure = self.pressure.saturating_sub(less).max(NO_PRESSURE);
        }
        let pressed = (least.saturating_mul(self.pressure) / 10).min(backlog.saturating_sub(cap));
        let hard = t::DEDUP_LOG_HARD_CAP.is_on();
        if capped && hard {
            least = least.max(pressed);
        }
        let usual = least.saturating_mul(5) / 4;
        let most = if capped && !hard { usual.max(pressed) } else { usual };
        Share { least, most: most.min(t::DEDUP_LOG_FLUSH_ENTRIES_MAX.get()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_flushes_a_hundredth_and_some_more() {
        let mut pace = Pace::default();
        assert_eq!(pace.share(100), Share { least: 200, most: 250 });
        assert_eq!(pace.share(1_000_000), Share { least: 10_000, most: 12_500 });
    }

    #[test]
    fn averages_follow() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.ingested(1000));
        assert!((900..=1000).contains(&pace.ingest_rate), "{}", pace.ingest_rate);
        (0..100).for_each(|_| pace.ingested(0));
        assert!(pace.ingest_rate < 100, "{}", pace.ingest_rate);
    }
}
