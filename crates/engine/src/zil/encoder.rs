//! Records of itxs (`zil_lwb_assign`, `zfs_get_data`, `zvol_get_data`).
//!
//! Data of writes is read as it is now: that of later changes, which are logged after it, may be in it. Small
//! writes have their data in the record (`WR_NEED_COPY`). Large ones, and all with `logbias=throughput`, point
//! to the block, which is written for good first (`WR_INDIRECT`, [`super::early`]); a record of that kind
//! is about one block.

use super::itxs::Queued;
use crate::policy::{Abilities, Policy};
use crate::{Shared, tunables};
use cenote_dmu::Error;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::WriteError;
use cenote_dmu::write::intent::Itx;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_format::zil::{Body, Record, Write};
use cenote_store::alloc::Class;

/// Most data of one record: it fits into the largest block.
const PIECE: u64 = 64 << 10;

/// A record that is to be written: its sequence number is filled in there.
pub(super) struct Encoded {
    pub txg: u64,
    pub bytes: Vec<u8>,
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
        (always || !log_vdevs).then_some((Indirect { always, from }, policy, abilities))
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
    /// Appends the records of an itx; returns their bytes.
    ///
    /// # Errors
    /// Data cannot be read.
    pub fn records(&self, queued: &Queued, out: &mut Vec<Encoded>) -> Result<u64, WriteError> {
        let Queued { txg, change, itx } = queued;
        let before = out.len();
        match itx {
            Itx::Record { bytes, .. } => out.push(Encoded { txg: *txg, bytes: bytes.clone() }),
            Itx::Write { object, offset, length } => {
                let end = offset.saturating_add(*length);
                let mut at = *offset;
                while at < end {
                    match self.write((*txg, *change), *object, at, end - at)? {
                        Some((record, bytes)) => {
                            out.push(record);
                            at = at.saturating_add(bytes);
                        }
                        // It was removed since; that is logged, too.
                        None => break,
                    }
                }
            }
            Itx::Created(_) | Itx::WithNames(_) | Itx::Unlogged => {}
        }
        Ok(out.iter().skip(before).map(|record| record.bytes.len() as u64).sum())
    }

    /// The record of the first bytes of a write, and how many; `None`: the object is gone.
    fn write(
        &self,
        (txg, change): (u64, u64),
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
                && !(self.is_reused)(object, change)
                && let Some(bp) = write(object, offset)
                && bp.lsize() == size
            {
                return Ok(Some((record(txg, (object, offset, length), bp, None)?, length)));
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
        if (self.is_reused)(object, change) {
            return Ok(None);
        }
        let record = record(txg, (object, offset, length), BlockPointer::HOLE, Some(&data))?;
        Ok(Some((record, length)))
    }
}

fn record(
    txg: u64,
    (object, offset, length): (u64, u64, u64),
    block: BlockPointer,
    data: Option<&[u8]>,
) -> Result<Encoded, WriteError> {
    let body = Body::Write(Write { object, offset, length, block_offset: 0, block, data });
    let bytes = Record { txg: 0, seq: 0, ignore_case: false, body }.encode()?;
    Ok(Encoded { txg, bytes })
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
