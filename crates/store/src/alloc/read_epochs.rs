//! Epochs of reads. A read of a dataset in use counts for the transaction group that was the last on disk
//! when it began: its *epoch*. What is freed after that group is not allocated as long as the read
//! lasts, however long a device takes for it. So no block is overwritten while it is read.
//!
//! Groups share a few counters: group `txg` has number `txg % SLOTS`. A counter keeps the group since
//! which it was never zero, and all its reads count for that group. A read that outlasts `SLOTS` groups
//! makes others look older that begin in the same slot.
//!
//! Reads must not fill the pool: when space is short they are let go, as [holds](super::hold) are.
//! Then what they read may have been overwritten, and they can ask ([`ReadEpoch::is_safe`]).
//!
//! Invariant: a read that begins while group `txg` is the last on disk, or while the next one ends,
//! needs nothing that was freed up to `txg`. Nothing younger is given out before two more groups are
//! on disk. So it does no harm if a read is counted a moment after it was looked for.

// Its path, for `tests/models.rs` takes this file in.
#[cfg(test)]
#[path = "read_epochs/planted.rs"]
mod planted;

use std::sync::Arc;

use cenote_format::invariant;
use cenote_format::invariant::said;
use cenote_vdev::Alarm;

use crate::sync::{AtomicU64, AtomicUsize, SeqCst};

/// Counters.
const SLOTS: usize = 8;

#[derive(Debug, Default)]
struct Slot {
    readers: AtomicUsize,
    since: AtomicU64,
}

/// The reads of one pool.
#[derive(Debug, Default)]
pub struct ReadEpochs {
    /// The last group on disk.
    last: AtomicU64,
    slots: [Slot; SLOTS],
    /// Reads that began up to this group were let go; the number is one more.
    let_go: AtomicU64,
    alarm: Arc<Alarm>,
}

/// A read, until this is dropped.
#[derive(Debug)]
pub struct ReadEpoch<'a> {
    epochs: &'a ReadEpochs,
    txg: u64,
}

impl ReadEpochs {
    /// Those of a pool with this alarm.
    pub(super) fn new(alarm: &Arc<Alarm>) -> ReadEpochs {
        ReadEpochs { alarm: alarm.clone(), ..ReadEpochs::default() }
    }

    fn slot(&self, txg: u64) -> &Slot {
        &self.slots[txg as usize % SLOTS]
    }

    /// Begins to read.
    pub fn begin(&self) -> ReadEpoch<'_> {
        loop {
            let txg = self.last.load(SeqCst);
            self.slot(txg).readers.fetch_add(1, SeqCst);
            let epoch = ReadEpoch { epochs: self, txg };
            if self.last.load(SeqCst) == txg {
                return epoch;
            }
        }
    }

    /// Group `txg` is on disk. Reads that begin from now on see it.
    pub fn group_done(&self, txg: u64) {
        let last = self.last.load(SeqCst);
        invariant!(last <= txg, "group {txg} ends after group {last}");
        let slot = self.slot(txg);
        if slot.readers.load(SeqCst) == 0 {
            slot.since.store(txg, SeqCst);
        }
        self.last.store(txg, SeqCst);
    }

    /// The group after which nothing that was freed may be given out; `None`: there are no reads.
    pub(super) fn oldest(&self) -> Option<u64> {
        let let_go = self.let_go.load(SeqCst);
        let busy = self.slots.iter().filter(|slot| slot.readers.load(SeqCst) > 0);
        busy.map(|slot| slot.since.load(SeqCst)).filter(|since| *since >= let_go).min()
    }

    /// Space is short: reads that have begun are not waited for.
    pub(super) fn let_go(&self) {
        self.let_go.store(self.last.load(SeqCst).saturating_add(1), SeqCst);
    }
}

impl ReadEpoch<'_> {
    /// Whether what was read cannot have been overwritten meanwhile.
    pub fn is_safe(&self) -> bool {
        let since = self.epochs.slot(self.txg).since.load(SeqCst);
        let held = since >= self.epochs.let_go.load(SeqCst);
        // What is freed in one group is not overwritten in it, nor in the next.
        held || self.epochs.last.load(SeqCst) <= self.txg.saturating_add(1)
    }
}

impl Drop for ReadEpoch<'_> {
    fn drop(&mut self) {
        let (txg, readers) = (self.txg, &self.epochs.slot(self.txg).readers);
        if readers.fetch_sub(1, SeqCst) == 0 {
            // Not fewer than none: nothing would be given out any more.
            readers.fetch_add(1, SeqCst);
            let why = format_args!("a read of group {txg} ends that did not begin");
            self.epochs.alarm.sound(said(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_reader_counts_until_it_ends() {
        let epochs = ReadEpochs::default();
        (0..30).for_each(|txg| epochs.group_done(txg));
        assert_eq!(epochs.oldest(), None);
        let first = epochs.begin();
        epochs.group_done(30);
        let second = epochs.begin();
        (31..35).for_each(|txg| epochs.group_done(txg));
        assert_eq!(epochs.oldest(), Some(29));
        assert!(first.is_safe() && second.is_safe());
        drop(first);
        assert_eq!(epochs.oldest(), Some(30));
        // It outlasts a round: a read that shares its counter counts as old.
        (35..38).for_each(|txg| epochs.group_done(txg));
        epochs.group_done(38);
        let third = epochs.begin();
        drop(second);
        assert_eq!(epochs.oldest(), Some(30));
        drop(third);
        assert_eq!(epochs.oldest(), None);
        (39..47).for_each(|txg| epochs.group_done(txg));
        let _fourth = epochs.begin();
        assert_eq!(epochs.oldest(), Some(46));
    }

    #[test]
    fn a_read_that_was_let_go_knows() {
        let epochs = ReadEpochs::default();
        epochs.group_done(9);
        let old = epochs.begin();
        epochs.let_go();
        assert_eq!(epochs.oldest(), None);
        epochs.group_done(10);
        assert!(old.is_safe());
        epochs.group_done(11);
        assert!(!old.is_safe());
        let new = epochs.begin();
        (12..16).for_each(|txg| epochs.group_done(txg));
        assert!(new.is_safe());
        assert_eq!(epochs.oldest(), Some(11));
    }

    #[test]
    fn many_begin_and_end_while_groups_pass() {
        let epochs = ReadEpochs::default();
        epochs.group_done(1);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let epoch = epochs.begin();
                        assert!(epochs.oldest().is_some_and(|txg| txg <= epoch.txg));
                    }
                });
            }
            (2..2000).for_each(|txg| epochs.group_done(txg));
        });
        assert_eq!(epochs.oldest(), None);
    }
}
