//! Records of volumes (`zvol_replay_write`, `zvol_replay_truncate`).

use super::{Replay, data_in, last_of, miss_together, note};
use crate::volume::{DATA, Volume};
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::write::OpenObjectSet;
use cenote_format::zil::{Body, Record, Write};

impl Replay<'_> {
    pub(super) fn to_volume(&self, volume: &Volume, record: &Record<'_>) -> Result<u64> {
        let seq = record.seq;
        match &record.body {
            Body::Write(write) => {
                let (at, data) = self.data_of(write)?;
                self.put(volume, seq, at, &data)
            }
            Body::CloneRange { object, offset, length, blocks, .. } => {
                let data = self.cloned(*object, *length, blocks)?;
                self.put(volume, seq, *offset, &data)
            }
            Body::Truncate { offset, length, .. } => {
                let cost = Cost { write: 2 * volume.block_size(), objects: 0, frees: true };
                self.change(seq, cost, |os| Ok(os.free_range(DATA, *offset, *length)?))
            }
            // The block that it is about was written whole by the record before it.
            Body::Write2(_) => self.change(seq, Cost::default(), |_| Ok(())),
            body => {
                Err(Error::Unsupported(format!("a record of type {} of a volume", body.kind())))
            }
        }
    }

    pub(super) fn cost_of_put(&self, volume: &Volume, at: u64, len: u64) -> Cost {
        let write = self.live.cost_of_blocks(at, len, volume.block_size());
        Cost { write, objects: 0, frees: false }
    }

    fn put(&self, volume: &Volume, seq: u64, at: u64, data: &[u8]) -> Result<u64> {
        let data = inside(volume, at, data);
        let cost = self.cost_of_put(volume, at, data.len() as u64);
        self.change(seq, cost, |os| Ok(os.write(DATA, at, data)?))?;
        Ok(data.len() as u64)
    }

    /// Several writes as one change; the numbers of the records are beside them.
    pub(super) fn puts(
        &self,
        volume: &Volume,
        cost: Cost,
        writes: &[(u64, Write<'_>)],
    ) -> Result<()> {
        let last = last_of(writes);
        let write = |os: &mut OpenObjectSet| {
            miss_together(writes, |(_, write)| {
                let data = inside(volume, write.offset, data_in(write));
                Ok(os.write(DATA, write.offset, data)?)
            })
        };
        self.change(last, cost, write).map(drop)
    }

    fn change(
        &self,
        seq: u64,
        cost: Cost,
        mut f: impl FnMut(&mut OpenObjectSet) -> Result<()>,
    ) -> Result<u64> {
        self.live.transact(cost, |os, _| {
            note(os, seq);
            f(os).map(|()| 0)
        })
    }
}

/// What of `data` at byte `at` is within the volume: a block may reach beyond its end.
fn inside<'d>(volume: &Volume, at: u64, data: &'d [u8]) -> &'d [u8] {
    let room = usize::try_from(volume.size().saturating_sub(at)).unwrap_or(usize::MAX);
    data.get(..room.min(data.len())).unwrap_or_default()
}
