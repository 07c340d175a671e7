//! How a log gets into the ZAPs (`ddt_sync_flush_log`, `ddt_log_swap`).
//!
//! The active log is appended to. When it is large or old it becomes the one that is flushed, and the other, which is empty then,
//! becomes active. In each group the first entries by key are flushed: as many as come in, at least a hundredth of
//! all, within a time. The key of the last one is the log's checkpoint. Keys are in the order of the ZAP's hashes, so that entries of
//! one leaf are flushed together. An entry that cannot be stored now, since its ZAP cannot be read, goes to the active log
//! again: it holds up no other one.

use super::pace::Share;
use super::sync::Context;
use super::table::Table;
use crate::tunables as t;
use cenote_dsl::write::Result;
use cenote_format::invariant;
use cenote_pool::ddt::{Entry, Key, LOG_FLUSHING};
use std::time::Duration;

impl Table {
    /// Flushes some of the log, and swaps the logs when it is time (`ddt_sync_flush_log`). Returns how many entries are in no log any
    /// more.
    pub(super) fn flush(&mut self, context: &mut Context<'_, '_>) -> Result<usize> {
        let backlog = (self.flushing.entries.len() + self.active.entries.len()) as u64;
        let begun = context.clock.now();
        let (mut flushed, mut stored) = (0, 0);
        if !self.flushing.entries.is_empty() {
            let share = self.pace.share(backlog);
            let (last, waiting) = self.flush_entries(&share, &mut flushed, context)?;
            stored = flushed as usize - waiting;
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
        self.pace.flushed(flushed, backlog, context.clock.since(begun));
        Ok(stored)
    }

    /// Flushes the first entries; returns the last key, and how many entries wait in the active log.
    fn flush_entries(
        &mut self,
        share: &Share,
        flushed: &mut u64,
        context: &mut Context<'_, '_>,
    ) -> Result<(Option<Key>, usize)> {
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
        let left = waiting.len();
        if !waiting.is_empty() {
            self.log(waiting, context)?;
        }
        Ok((last, left))
    }

    /// Begins to flush the active log, if it is time (`ddt_log_swap`).
    fn swap(&mut self, context: &mut Context<'_, '_>) -> Result<()> {
        if self.flushing.length > 0 {
            // Its last entries went to the active log.
            self.truncate(context.tx)?;
        }
        let each = size_of::<Key>() + size_of::<Entry>();
        let bytes = (self.active.entries.len() * each) as u64;
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
