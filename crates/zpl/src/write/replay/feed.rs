//! Feeding a replay: the log is walked, and what its records touch is read, by a thread that is a batch ahead
//! of the one that applies them.
//!
//! Invariants: batches come in the order of the log; every record of a batch lies before what the feed ended
//! with. At most three batches are in memory: one that is filled, one that waits, one that is applied.

use super::prime::Batch;
use cenote_dmu::ObjectSet;
use cenote_dsl::tunables::{PRIME_MEMORY, PRIME_REPLAY};
use cenote_dsl::zil::{End, Item, Kept, Locked, walk_kept};
use cenote_format::ByteOrder;
use cenote_format::invariant::broken;
use cenote_format::zil::{RawRecord, Record};
use cenote_store::Priority;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// Batches that are in memory at once.
const BATCHES: u64 = 3;
/// Bytes of the records of a batch for which nothing is read ahead.
const UNPRIMED: u64 = 1 << 20;

/// A record that waits to be applied.
pub(super) struct Owned {
    pub bytes: Vec<u8>,
    pub order: ByteOrder,
}

/// Records to be applied, in order.
pub(super) struct Ready {
    pub records: Vec<Owned>,
    /// What they touch was read.
    pub primed: bool,
}

/// The records of a log, on their way to the thread that applies them.
pub(super) struct Feed<'a> {
    base: &'a Arc<ObjectSet>,
    send: SyncSender<Ready>,
    primed: bool,
    records: Vec<Owned>,
    bytes: u64,
    batch: Batch,
}

impl<'a> Feed<'a> {
    pub fn new(base: &'a Arc<ObjectSet>, send: SyncSender<Ready>) -> Feed<'a> {
        let primed = PRIME_REPLAY.is_on();
        Feed { base, send, primed, records: Vec::new(), bytes: 0, batch: Batch::default() }
    }

    /// Walks the log and hands over what to apply. Returns where the walk ended; `Stopped` if
    /// the taker has gone.
    pub fn run(mut self, kept: &Kept) -> End {
        let header = self.base.phys().zil;
        let end =
            walk_kept(self.base.store(), &header, (kept, Locked::Fail), &mut |item| match item {
                Item::Record(raw) if raw.txg >= header.claim_txg && raw.seq > header.replay_seq => {
                    self.take(&raw)
                }
                Item::Record(_) | Item::Block(_) => true,
            });
        if matches!(end, End::Stopped) || !self.hand_over() { End::Stopped } else { end }
    }

    /// Takes in one more record; false if the taker has gone.
    fn take(&mut self, raw: &RawRecord<'_>) -> bool {
        // One that cannot be decoded is refused where it would be applied.
        if self.primed
            && let Ok(record) = Record::decode(raw)
        {
            self.batch.add(&record);
        }
        let bytes = match raw.data.slice(0, raw.data.len()) {
            Ok(bytes) => bytes.to_vec(),
            Err(e) => broken(format_args!("record {} of a log is not whole: {e}", raw.seq)),
        };
        self.records.push(Owned { bytes, order: raw.data.order() });
        self.bytes += raw.len;
        let most = if self.primed { PRIME_MEMORY.get() / BATCHES } else { UNPRIMED };
        self.bytes + self.batch.bytes() < most || self.hand_over()
    }

    /// Reads what the records touch, and hands them over.
    fn hand_over(&mut self) -> bool {
        let (records, mut batch) = (std::mem::take(&mut self.records), self.batch.next());
        self.bytes = 0;
        if records.is_empty() {
            return true;
        }
        Priority::Replay.for_reads(|| batch.read(self.base));
        self.batch.learn(&batch);
        self.send.send(Ready { records, primed: self.primed }).is_ok()
    }
}
