//! Records that are read ahead of the thread that applies them (`receive_read_record`, `receive_writer_thread`, `bqueue_t`).
//!
//! ```text
//! input ── reader: head, payload, checksum ── queue of at most QUEUE bytes ──> the caller applies
//! ```
//!
//! Invariants:
//! - What is applied was verified. A record's checksum is in the head of the next one, so each is held back until
//!   that has come.
//! - The reader waits for room while it holds nothing back: the head of a record lets the one before it go, and only
//!   then the record takes its share of the queue. Two large records would wait for each other otherwise.
//!
//! The reader waits when the queue is full, so a sender is slowed down to what can be written. It takes the share of a
//! record before it reads what follows the head, as long as that is unpacked where the reader unpacks it to turn it. It stops behind END, at the first error, and when the caller stops
//! taking records. The caller then waits for it: a reader that waits for input ends with what comes next, as OpenZFS's
//! does.

use super::error::{ReceiveError, Result};
use super::source::Source;
use cenote_dsl::budget::{Budget, Share};
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::stream::Record;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Bytes of records that wait to be applied (`zfs_recv_queue_length`).
const QUEUE: u64 = 16 << 20;
/// Records that wait to be applied.
const RECORDS: usize = 4096;

/// A record, what follows it, and the bytes of the stream with both.
pub(super) struct Read {
    pub(super) record: Record,
    pub(super) payload: Abd,
    pub(super) bytes: u64,
    _share: Share,
}

/// Reads a stream in another thread, and hands its records to `apply`, in order. END is the last one.
///
/// # Errors
/// Errors of [`Source::record`], behind the records before it, and errors of `apply`.
pub(super) fn each(
    source: &mut Source<'_>,
    mut apply: impl FnMut(Read) -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (to_caller, records) = sync_channel(RECORDS);
        let reader = std::thread::Builder::new().name("receive-read".into());
        reader
            .spawn_scoped(scope, move || read(source, &to_caller))
            .map_err(ReceiveError::Input)?;
        take(&records, &mut apply)
    })
}

fn read(source: &mut Source<'_>, to_caller: &SyncSender<Result<Read>>) {
    let budget = Budget::new(QUEUE);
    let mut held: Option<Read> = None;
    loop {
        // What is held is let go of if nothing right comes next.
        let (mut record, before) = match source.record() {
            Ok(record) => (record, held.take()),
            Err(e) => {
                let _ = to_caller.send(Err(e));
                return;
            }
        };
        if before.is_some_and(|before| to_caller.send(Ok(before)).is_err()) {
            return;
        }
        invariant!(held.is_none(), "a record waits for room, and another one is held back");
        let _share = budget.take(source.most_payload(&record));
        let read = source.payload_of(&mut record).map(|payload| {
            let bytes = source.bytes();
            Read { record, payload, bytes, _share }
        });
        match read {
            Ok(read) if !matches!(read.record, Record::End { .. }) => held = Some(read),
            last => {
                let _ = to_caller.send(last);
                return;
            }
        }
    }
}

fn take(
    records: &Receiver<Result<Read>>,
    apply: &mut impl FnMut(Read) -> Result<()>,
) -> Result<()> {
    loop {
        let gone = |_| Err(ReceiveError::Input(io::Error::other("internal error")));
        let read = records.recv().unwrap_or_else(gone)?;
        let last = matches!(read.record, Record::End { .. });
        apply(read)?;
        if last {
            return Ok(());
        }
    }
}
