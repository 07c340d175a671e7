//! Records of volumes (`zvol_replay_write`, `zvol_replay_truncate`).

use super::{Replay, note};
use crate::volume::{DATA, Volume};
use crate::{Error, Result};
use cenote_dmu::live::Cost;
use cenote_dmu::write::OpenObjectSet;
use cenote_format::zil::{Body, Record};

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

    fn put(&self, volume: &Volume, seq: u64, at: u64, data: &[u8]) -> Result<u64> {
        // A block may reach beyond the end of the volume.
        let room = usize::try_from(volume.size().saturating_sub(at)).unwrap_or(usize::MAX);
        let data = data.get(..room.min(data.len())).unwrap_or_default();
        let write = self.live.cost_of_blocks(at, data.len() as u64, volume.block_size());
        let cost = Cost { write, objects: 0, frees: false };
        self.change(seq, cost, |os| Ok(os.write(DATA, at, data)?))?;
        Ok(data.len() as u64)
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
