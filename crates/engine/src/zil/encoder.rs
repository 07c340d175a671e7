//! Records of itxs (`zil_lwb_assign`, `zfs_get_data`, `zvol_get_data`).
//!
//! Data of writes is read as it is now: that of later changes, which are logged after it, may be in it. Small
//! writes have their data in the record (`WR_NEED_COPY`). Large ones, and all with `logbias=throughput`, point
//! to the block, which is written for good first (`WR_INDIRECT`, [`super::early`]); a record of that kind
//! is about one block.
//!
//! The records of one change stay together, as one [`Unit`].

use super::itxs::Queued;
use crate::policy::{Abilities, Policy};
use crate::{Shared, kstat, tunables};
use cenote_dmu::Error;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::WriteError;
use cenote_dmu::write::intent::Itx;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_format::invariant;
use cenote_format::zil::{Body, Record, Write};
use cenote_store::alloc::Class;

/// Most data of one record: it fits into the largest block.
const PIECE: u64 = 64 << 10;

/// A record that is to be written: its sequence number is filled in there.
pub(super) struct Encoded {
    pub txg: u64,
    /// Number of the change.
    pub change: u64,
    pub bytes: Vec<u8>,
}

/// The records of one change, which are all in the log, or none of them.
pub(super) type Unit = Vec<Encoded>;

/// Bytes of the records of a change.
pub(super) fn length(unit: &[Encoded]) -> usize {
    unit.iter().map(|record| record.bytes.len()).sum()
}

/// What became of a change.
pub(super) struct Found {
    /// Its records, none where there is nothing left of it.
    pub unit: Unit,
    /// It wrote to an object that is gone, or is another one by now.
    pub gone: bool,
}

/// Writes the block of an object with some byte for good, if the open group is going to write it.
pub(super) type WriteBlock<'a> = dyn Fn(u64, u64) -> Option<BlockPointer> + 'a;

/// Which writes point to their blocks (`zil_write_state`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Indirect {
    /// All.
    always: bool,
    /// Those of at least so many bytes that are half of their block.
    from: u64,
}

impl Indirect {
    /// What holds for a dataset, with how its blocks are written; `None`: no write does.
    pub fn of(
        shared: &Shared,
        ds_obj: u64,
        live: &LiveObjectSet,
    ) -> Option<(Indirect, Policy, Abilities)> {
        let (policy, abilities) = shared.datasets.last_policy(ds_obj)?;
        let from = match live.base().phys().kind {
            ObjsetType::Zvol => tunables::ZVOL_IMMEDIATE_WRITE_SZ.get(),
            _ => tunables::IMMEDIATE_WRITE_SZ.get(),
        };
        let log_vdevs = shared.disk.allocator.figures(Class::Log).space > 0;
        let always = policy.throughput;
        // A block that is written early is in no deduplication table.
        let early = policy.dedup.is_none() && (always || !log_vdevs);
        early.then_some((Indirect { always, from }, policy, abilities))
    }

    /// Whether a write of so many bytes to a block of this size does. One that is a small part of its block
    /// would have all of it written, and the next one again.
    fn is_for(&self, bytes: u64, block_size: u64) -> bool {
        self.always || bytes >= self.from && bytes >= block_size / 2
    }
}

/// Makes records.
pub(super) struct Encoder<'a> {
    pub live: &'a LiveObjectSet,
    /// Whether an object is another one than it was when a change was made.
    pub is_reused: &'a dyn Fn(u64, u64) -> bool,
    pub indirect: Option<(&'a Indirect, &'a WriteBlock<'a>)>,
}

impl Encoder<'_> {
    /// The records of a change.
    ///
    /// # Errors
    /// Data cannot be read.
    pub fn records(&self, queued: &Queued) -> Result<Found, WriteError> {
        let Queued { txg, change, itxs } = queued;
        let mut found = Found { unit: Vec::with_capacity(itxs.len()), gone: false };
        for itx in itxs {
            match itx {
                Itx::Record { bytes, .. } => {
                    let (txg, change) = (*txg, *change);
                    found.unit.push(Encoded { txg, change, bytes: bytes.clone() });
                }
                Itx::Write { object, offset, length } => {
                    let before = found.unit.len();
                    let range = (*offset, offset.saturating_add(*length));
                    if !self.write((*txg, *change), *object, range, &mut found.unit)? {
                        found.unit.truncate(before);
                        found.gone = true;
                    }
                }
                Itx::Created(_) | Itx::WithNames(_) | Itx::Unlogged => {}
            }
        }
        Ok(found)
    }

    /// Appends the records of a write; false if the object is gone.
    fn write(
        &self,
        of: (u64, u64),
        object: u64,
        (mut at, end): (u64, u64),
        out: &mut Unit,
    ) -> Result<bool, WriteError> {
        while at < end {
            let Some((record, bytes)) = self.piece(of, object, at, end - at)? else {
                return Ok(false);
            };
            let left = end - at;
            invariant!(
                bytes > 0 && bytes <= left,
                "object {object}: {bytes} of {left} bytes at {at} are logged"
            );
            out.push(record);
            at += bytes;
        }
        Ok(true)
    }

    /// The record of the first bytes of a write, and how many; `None`: the object is gone.
    fn piece(
        &self,
        of: (u64, u64),
        object: u64,
        offset: u64,
        length: u64,
    ) -> Result<Option<(Encoded, u64)>, WriteError> {
        if let Some((indirect, write)) = self.indirect
            && let Ok(found) = self.live.attributes(object)
        {
            let size = found.dnode().block_size.max(1);
            // The only block of a small file may be of any size.
            let part = size - (offset % size).min(size - 1);
            let length = length.min(part);
            if indirect.is_for(length, size)
                && !(self.is_reused)(object, of.1)
                && let Some(bp) = write(object, offset)
                && bp.lsize() == size
            {
                return Ok(Some((record(of, (object, offset, length), bp, None)?, length)));
            }
        }
        let most = PIECE.min(tunables::ZIL_MAXBLOCKSIZE.get() / 2);
        let length = length.min(most);
        let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
        match self.live.read(object, offset, &mut data) {
            Ok(()) => {}
            Err(Error::NoObject { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        if (self.is_reused)(object, of.1) {
            return Ok(None);
        }
        let record = record(of, (object, offset, length), BlockPointer::HOLE, Some(&data))?;
        Ok(Some((record, length)))
    }
}

fn record(
    (txg, change): (u64, u64),
    (object, offset, length): (u64, u64, u64),
    block: BlockPointer,
    data: Option<&[u8]>,
) -> Result<Encoded, WriteError> {
    let [writes, sum] = if data.is_some() { &kstat::ZIL_COPIED } else { &kstat::ZIL_INDIRECT };
    writes.add(1);
    sum.add(length);
    let body = Body::Write(Write { object, offset, length, block_offset: 0, block, data });
    let bytes = Record { txg: 0, seq: 0, ignore_case: false, body }.encode()?;
    Ok(Encoded { txg, change, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_writes_point_to_their_blocks() {
        let usual = Indirect { always: false, from: 32 << 10 };
        assert!(usual.is_for(32 << 10, 64 << 10) && usual.is_for(128 << 10, 128 << 10));
        assert!(!usual.is_for(32 << 10, 128 << 10) && !usual.is_for(16 << 10, 16 << 10));
        assert!(Indirect { always: true, ..usual }.is_for(1, 128 << 10));
    }
}
