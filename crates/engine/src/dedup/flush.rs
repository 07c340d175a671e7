//! How a log gets into the ZAPs (`ddt_sync_flush_log`, `ddt_log_swap`).
//!
//! The active log is appended to. When it is large or old it becomes the one that is flushed, and the other, which is empty then,
//! becomes active. In each group the first entries by key are flushed: as many as come in, at least a hundredth of
//! all, within a time. The key of the last one is the log's checkpoint. Keys are in the order of the ZAP's hashes, so that entries of
//! one leaf are flushed together. An entry that cannot be stored now, since its ZAP cannot be read, goes to the active log
//! again: it holds up no other one.

use super::sync::Context;
use super::table::Table;
use crate::tunables as t;
use cenote_dsl::write::Result;
use cenote_format::invariant;
use cenote_pool::ddt::{Entry, Key, LOG_FLUSHING};
use std::time::Duration;

/// The pressure without a cap on the log, in tenths.
const NO_PRESSURE: u64 = 10;

/// How fast entries come and go.
#[derive(Debug)]
pub(super) struct Pace {
    /// Entries that are logged, and flushed, in a group: moving averages.
    pub ingest_rate: u64,
    pub flush_rate: u64,
    /// In tenths (`ddt_log_flush_pressure`).
    pressure: u64,
    backlog: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { ingest_rate: 0, flush_rate: 0, pressure: NO_PRESSURE, backlog: 0 }
    }
}

/// An exponentially weighted moving average.
fn average(new: u64, old: u64) -> u64 {
    let weight = t::DEDUP_LOG_FLUSH_FLOW_RATE_TXGS.get().max(1);
    if new >= old { old + (new - old) / weight } else { old - (old - new) / weight }
}

/// Entries that a group flushes.
#[derive(Debug, PartialEq, Eq)]
struct Share {
    least: u64,
    most: u64,
}

impl Pace {
    pub fn ingested(&mut self, count: u64) {
        self.ingest_rate = average(count, self.ingest_rate);
    }

    /// What a group flushes of so many entries in both logs.
    fn share(&mut self, backlog: u64) -> Share {
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

impl Table {
    /// Flushes some of the log, and swaps the logs when it is time.
    pub(super) fn flush(&mut self, context: &mut Context<'_, '_>) -> Result<()> {
        let backlog = (self.flushing.entries.len() + self.active.entries.len()) as u64;
        let mut flushed = 0;
        if !self.flushing.entries.is_empty() {
            let share = self.pace.share(backlog);
            let last = self.flush_entries(&share, &mut flushed, context)?;
            if self.flushing.entries.is_empty() {
                self.truncate(context.tx)?;
            } else if let Some(last) = last {
                self.flushing.checkpoint = Some(last);
                self.write_header(LOG_FLUSHING, context.tx)?;
            }
            self.update_statistics(context)?;
        }
        if self.flushing.entries.is_empty() && !self.active.entries.is_empty() {
            self.swap(context)?;
        }
        self.pace.backlog = backlog;
        self.pace.flush_rate = average(flushed, self.pace.flush_rate);
        Ok(())
    }

    /// Flushes the first entries; returns the last key.
    fn flush_entries(
        &mut self,
        share: &Share,
        flushed: &mut u64,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Key>> {
        let begun = context.clock.now();
        let target = Duration::from_millis(t::DEDUP_LOG_FLUSH_MIN_TIME_MS.get())
            .min(Duration::from_secs(t::TXG_TIMEOUT.get()) / 2);
        let few = t::DEDUP_LOG_FLUSH_ENTRIES_MIN.get();
        let (mut last, mut waiting) = (None, Vec::new());
        while *flushed < share.most {
            let Some((key, entry)) = self.flushing.entries.pop_first() else { break };
            // What comes before the checkpoint is in the ZAPs, and would be counted twice.
            let (log, before) = (self.flushing.object, last.max(self.flushing.checkpoint));
            invariant!(
                before < Some(key) && key == entry.key,
                "deduplication log {log}: {key:?} is flushed after {before:?}, as {:?}",
                entry.key
            );
            self.logged.take_entry(&entry, context.vdevs);
            if self.can_store(&entry, context.tx) {
                self.store(entry, context)?;
            } else {
                waiting.push(entry);
            }
            last = Some(key);
            *flushed += 1;
            let taken = context.clock.since(begun);
            let is_late = taken >= target && *flushed > share.least;
            if is_late || taken >= target * 2 && *flushed > few {
                break;
            }
        }
        if !waiting.is_empty() {
            self.log(waiting, context)?;
        }
        Ok(last)
    }

    /// Begins to flush the active log, if it is time (`ddt_log_swap`).
    fn swap(&mut self, context: &mut Context<'_, '_>) -> Result<()> {
        if self.flushing.length > 0 {
            // Its last entries went to the active log.
            self.truncate(context.tx)?;
        }
        let bytes = (self.active.entries.len() as u64)
            .saturating_mul((size_of::<Key>() + size_of::<Entry>()) as u64);
        let txg = context.tx.txg;
        let age = txg.saturating_sub(self.active.first_txg);
        if bytes < t::dedup_log_mem_max() / 2 && age < t::DEDUP_LOG_TXG_MAX.get().max(1) {
            return Ok(());
        }
        let (log, left) = (self.flushing.object, self.flushing.entries.len());
        invariant!(left == 0, "deduplication log {log} becomes active with {left} entries");
        std::mem::swap(&mut self.active, &mut self.flushing);
        self.active.first_txg = txg;
        self.active.checkpoint = None;
        self.write_header(0, context.tx)?;
        self.write_header(LOG_FLUSHING, context.tx)
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
