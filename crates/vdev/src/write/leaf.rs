//! What of a leaf's writes is not known to be durable, and what it missed (`vdev_dtl_dirty`).

use std::ops::Range;
use std::time::{Duration, Instant};

use cenote_format::invariant;

/// So long after a probe's flush that succeeded another probe flushes nothing.
const BETWEEN_PROBES: Duration = Duration::from_secs(1);

/// The writes of a leaf since its last flush.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Counts up with every beginning and end of a batch of writes.
    now: u64,
    /// The count when everything until then was known to be durable.
    durable: u64,
    /// The transaction groups of the blocks written since; `None` if there were no blocks.
    blocks: Option<Range<u64>>,
    /// The groups of blocks that were written anew where they were wrong or lacking.
    repairs: Range<u64>,
    /// Whether the leaf lacks a block, since a write failed.
    failed: bool,
    flush_failures: u64,
    /// When the flush of a probe succeeded last; `None` if a flush has failed since.
    kept: Option<Instant>,
    /// Transaction groups missed, not handed out yet.
    missed: Vec<Range<u64>>,
}

impl Written {
    /// Writes of blocks of the transaction groups `txgs` (no groups if empty) begin or end.
    ///
    /// They are counted when they begin, since a flush that fails meanwhile may lose them, and
    /// when they end, since a flush that succeeded meanwhile need not have seen them.
    pub(crate) fn mark_blocks(&mut self, txgs: Range<u64>) {
        self.now += 1;
        self.blocks = Some(match self.blocks.take() {
            Some(all) if txgs.is_empty() => all,
            Some(all) if !all.is_empty() => all.start.min(txgs.start)..all.end.max(txgs.end),
            _ => txgs,
        });
    }

    /// Repairs of blocks of these groups begin or end.
    pub(crate) fn mark_repairs(&mut self, txgs: Range<u64>) {
        self.repairs = super::submit::join(self.repairs.clone(), txgs);
    }

    /// Writes of something else begin or end.
    pub(crate) fn mark(&mut self) {
        self.now += 1;
    }

    /// A write of a block failed.
    pub(crate) fn write_failed(&mut self) {
        self.failed = true;
    }

    /// Whether blocks were written that are not known to be durable.
    pub(crate) fn has_blocks(&self) -> bool {
        self.blocks.is_some()
    }

    /// Whether a write of a block failed since this was last taken.
    pub(crate) fn failed_writes(&self) -> bool {
        self.failed
    }

    pub(crate) fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }

    /// If something is not durable: the count to hand to [`Written::flushed`].
    pub(crate) fn dirty(&self) -> Option<u64> {
        (self.durable < self.now).then_some(self.now)
    }

    /// A flush that began after [`Written::dirty`] returned `seen` succeeded.
    pub(crate) fn flushed(&mut self, seen: u64) {
        let now = self.now;
        invariant!(seen <= now, "a flush has seen write {seen} of {now}");
        self.durable = seen;
        if self.durable == self.now {
            self.blocks = None;
            self.repairs = 0..0;
        }
    }

    /// A flush failed: the transaction groups of the blocks that may be lost, if there are any.
    pub(crate) fn flush_failed(&mut self) -> Option<Range<u64>> {
        self.flush_failures += 1;
        self.kept = None;
        self.durable = self.now;
        self.blocks.take()
    }

    /// A flush failed: the groups of repairs that may be lost, which no other device is written with.
    pub(crate) fn take_repairs(&mut self) -> Range<u64> {
        std::mem::take(&mut self.repairs)
    }

    /// The flush of a probe succeeded.
    pub(crate) fn kept(&mut self) {
        self.kept = Some(Instant::now());
    }

    /// Whether the flush of a probe succeeded a moment ago, and no flush failed since.
    pub(crate) fn kept_lately(&self) -> bool {
        self.kept.is_some_and(|when| when.elapsed() < BETWEEN_PROBES)
    }

    /// How many flushes failed.
    pub(crate) fn flush_failures(&self) -> u64 {
        self.flush_failures
    }

    pub(crate) fn add_missed(&mut self, txgs: Range<u64>) {
        let known = self.missed.iter_mut().find(|r| r.start <= txgs.start && txgs.start <= r.end);
        match known {
            Some(r) => r.end = r.end.max(txgs.end),
            None => self.missed.push(txgs),
        }
    }

    pub(crate) fn missed(&self) -> &[Range<u64>] {
        &self.missed
    }

    pub(crate) fn take_missed(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_during_a_flush_are_not_durable() {
        let mut w = Written::default();
        assert_eq!(w.dirty(), None);
        w.mark_blocks(5..6);
        w.mark_blocks(5..6);
        let seen = w.dirty().unwrap();
        w.mark_blocks(0..0);
        w.mark_blocks(6..7);
        w.flushed(seen);
        assert!(w.dirty().is_some());
        assert_eq!(w.flush_failed(), Some(5..7));
        assert_eq!((w.dirty(), w.flush_failures()), (None, 1));
        w.mark();
        let seen = w.dirty().unwrap();
        w.flushed(seen);
        assert_eq!((w.dirty(), w.flush_failed()), (None, None));
        w.mark_blocks(0..0);
        assert_eq!(w.flush_failed(), Some(0..0));
    }
}
