//! What is to be logged, in the order of the changes (`itxg_t`, `itx_t`).
//!
//! Itxs are kept until their transaction group is on disk or they are taken to be written. More than
//! [`MAX_BYTES`] are not kept: the changes count as unlogged then.

use ahash::HashMap;
use cenote_dmu::Error;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::WriteError;
use cenote_dmu::write::intent::{Intent, Itx};
use cenote_format::blkptr::BlockPointer;
use cenote_format::zil::{Body, Record, Write};
use std::collections::VecDeque;

/// Most bytes of itxs that are kept.
const MAX_BYTES: u64 = 16 << 20;
/// What an itx takes besides its record.
const ITX: u64 = 96;
/// Most data of one record: it fits into the largest block.
const PIECE: u64 = 64 << 10;

/// An itx that waits.
pub(super) struct Queued {
    txg: u64,
    /// Number of the change.
    change: u64,
    itx: Itx,
}

/// Changes of a dataset that are not on disk.
#[derive(Default)]
pub(super) struct Itxs {
    waiting: VecDeque<Queued>,
    bytes: u64,
    /// Number of the next change.
    next: u64,
    /// Youngest group with an unlogged change.
    unlogged: u64,
    /// Objects that were created in groups that are not on disk: group and number of the change.
    created: HashMap<u64, (u64, u64)>,
}

/// What is written at once.
pub(super) struct Batch {
    pub itxs: Vec<Queued>,
    /// Some change is not among them, or was taken before and not written.
    pub unlogged: bool,
    /// Bytes of all records.
    pub bytes: u64,
    /// Number of the first change that is not among them.
    pub next: u64,
}

fn size(itx: &Itx) -> u64 {
    match itx {
        Itx::Record { bytes, .. } => ITX.saturating_add(bytes.len() as u64),
        Itx::Write { .. } => ITX,
    }
}

impl Itxs {
    /// Number of the next change.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// A change was made in group `txg`.
    pub fn note(&mut self, txg: u64, intent: Intent) {
        let Some(itxs) = intent else {
            self.next += 1;
            self.unlogged = self.unlogged.max(txg);
            return;
        };
        if itxs.is_empty() {
            return;
        }
        let change = self.next;
        self.next += 1;
        for itx in itxs {
            if let Itx::Record { creates: Some(object), .. } = &itx {
                self.created.insert(*object, (txg, change));
            }
            self.bytes = self.bytes.saturating_add(size(&itx));
            self.waiting.push_back(Queued { txg, change, itx });
        }
        if self.bytes > MAX_BYTES {
            self.waiting.clear();
            (self.bytes, self.unlogged) = (0, self.unlogged.max(txg));
        }
    }

    /// Group `txg` is on disk (`zil_itxg_clean`).
    pub fn forget(&mut self, txg: u64) {
        while let Some(first) = self.waiting.front().filter(|first| first.txg <= txg) {
            self.bytes = self.bytes.saturating_sub(size(&first.itx));
            self.waiting.pop_front();
        }
        self.created.retain(|_, (of, _)| *of > txg);
    }

    /// Takes all that waits; `synced` is the last group on disk.
    pub fn take(&mut self, synced: u64) -> Batch {
        self.bytes = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let itxs: Vec<Queued> = waiting.into_iter().filter(|q| q.txg > synced).collect();
        let data = |queued: &Queued| match &queued.itx {
            Itx::Record { bytes, .. } => bytes.len() as u64,
            Itx::Write { length, .. } => *length,
        };
        let bytes = itxs.iter().map(data).fold(0, u64::saturating_add);
        Batch { itxs, unlogged: self.unlogged > synced, bytes, next: self.next }
    }

    /// Whether there is an unlogged change that is not on disk; `synced` is the last group that is.
    pub fn has_unlogged(&self, synced: u64) -> bool {
        self.unlogged > synced
    }

    /// Whether `object` was created after change number `change`: its number was another's then.
    pub fn is_reused(&self, object: u64, change: u64) -> bool {
        self.created.get(&object).is_some_and(|(_, created)| *created > change)
    }
}

/// A record that is to be written: its sequence number is filled in there.
pub(super) struct Encoded {
    pub txg: u64,
    pub bytes: Vec<u8>,
}

/// The records of a batch. Data of writes is read as it is now (`zfs_get_data`, `zvol_get_data`): that of
/// later changes, which are logged after it, may be in it. `is_reused` tells whether an object is another one
/// than it was when a change was made.
///
/// # Errors
/// Data cannot be read.
pub(super) fn records(
    live: &LiveObjectSet,
    batch: &Batch,
    is_reused: &dyn Fn(u64, u64) -> bool,
) -> Result<Vec<Encoded>, WriteError> {
    let mut all = Vec::with_capacity(batch.itxs.len());
    for Queued { txg, change, itx } in &batch.itxs {
        let (object, offset, length) = match itx {
            Itx::Record { bytes, .. } => {
                all.push(Encoded { txg: *txg, bytes: bytes.clone() });
                continue;
            }
            Itx::Write { object, offset, length } => (*object, *offset, *length),
        };
        let mut done = 0;
        while done < length {
            let size = PIECE.min(length - done);
            let mut data = vec![0; usize::try_from(size).unwrap_or(0)];
            let at = offset.saturating_add(done);
            match live.read(object, at, &mut data) {
                Ok(()) => {}
                // It was removed since; that is logged, too.
                Err(Error::NoObject { .. }) => break,
                Err(e) => return Err(e.into()),
            }
            if is_reused(object, *change) {
                break;
            }
            let (block_offset, block, data) = (0, BlockPointer::HOLE, Some(data.as_slice()));
            let write = Write { object, offset: at, length: size, block_offset, block, data };
            let body = Body::Write(write);
            let record = Record { txg: *txg, seq: 0, ignore_case: false, body };
            all.push(Encoded { txg: *txg, bytes: record.encode()? });
            done += size;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(length: u64) -> Intent {
        Some(vec![Itx::Write { object: 7, offset: 0, length }])
    }

    fn create(object: u64, bytes: usize) -> Intent {
        Some(vec![Itx::Record { bytes: vec![0; bytes], creates: Some(object) }])
    }

    #[test]
    fn what_is_on_disk_is_not_logged() {
        let mut itxs = Itxs::default();
        itxs.note(4, write(10));
        itxs.note(5, write(20));
        itxs.note(5, Some(Vec::new()));
        assert_eq!(itxs.next(), 2);
        itxs.forget(4);
        let batch = itxs.take(4);
        assert_eq!((batch.itxs.len(), batch.bytes, batch.next, batch.unlogged), (1, 20, 2, false));
        assert!(itxs.take(4).itxs.is_empty());
    }

    #[test]
    fn an_unlogged_change_counts_until_its_group_is_on_disk() {
        let mut itxs = Itxs::default();
        itxs.note(4, None);
        itxs.note(5, write(1));
        assert!(itxs.take(3).unlogged);
        // Also for those that follow it.
        itxs.note(5, write(1));
        assert!(itxs.take(3).unlogged && !itxs.take(4).unlogged);
    }

    #[test]
    fn more_than_is_kept_is_unlogged() {
        let mut itxs = Itxs::default();
        itxs.note(4, create(1, usize::try_from(MAX_BYTES).unwrap()));
        let batch = itxs.take(3);
        assert!(batch.itxs.is_empty() && batch.unlogged);
        assert_eq!(batch.next, 1);
    }

    #[test]
    fn a_number_is_reused_from_its_creation_on() {
        let mut itxs = Itxs::default();
        itxs.note(4, write(1));
        itxs.note(5, create(7, 100));
        itxs.note(5, write(1));
        assert!(itxs.is_reused(7, 0) && !itxs.is_reused(7, 1) && !itxs.is_reused(7, 2));
        assert!(!itxs.is_reused(8, 0));
        itxs.forget(5);
        assert!(!itxs.is_reused(7, 0));
    }
}
