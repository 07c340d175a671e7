//! Contents and size of volumes (`zvol_write`, `zvol_set_volsize`).
//!
//! The size is what the properties say when a change is made: there may be several [`Volume`]s of one
//! object set, and one that gets smaller while another is written to. What was past an end is freed
//! [chunk by chunk](super::unlinked), after the size was set.
//!
//! Invariant: nothing is written past the end; what is past it is freed before the end moves there.

use super::format::check_volume_size;
use crate::volume::{DATA, PROPERTIES, SIZE, Volume};
use crate::{Error, Result};
use cenote_dmu::DeleteChunk;
use cenote_dmu::live::Cost;
use cenote_dmu::tunables::DELETE_BLOCKS;
use cenote_dmu::write::{OpenObjectSet, ZapMut};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::zil::Body;
use cenote_format::{invariant, less};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Most bytes that are written in one transaction.
const CHUNK: usize = 16 << 20;

fn past_end<T>(offset: u64, len: u64) -> Result<T> {
    Err(Error::Invalid(format!("{len} bytes at {offset} of the volume")))
}

impl Volume {
    fn change<T>(
        &self,
        cost: Cost,
        mut f: impl FnMut(&mut OpenObjectSet) -> Result<T>,
    ) -> Result<T> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        live.transact(cost, |os, _| f(os))
    }

    /// The size that the volume has now.
    fn size_in(&self, os: &mut OpenObjectSet) -> Result<u64> {
        let size = ZapMut::open(os, PROPERTIES).word(&Key::Name(SIZE))?;
        let size =
            size.ok_or_else(|| Error::Corrupt(PROPERTIES, "volume without a size".into()))?;
        self.size.store(size, Ordering::Release);
        Ok(size)
    }

    /// Makes a change of a range, which must be in the volume.
    fn change_within(
        &self,
        cost: Cost,
        range: &Range<u64>,
        mut f: impl FnMut(&mut OpenObjectSet) -> Result<()>,
    ) -> Result<()> {
        self.change(cost, |os| match self.size_in(os)? {
            size if range.end > size => past_end(range.start, range.end - range.start),
            _ => f(os),
        })
    }

    /// Writes at byte `offset`, in transactions of up to 16 MiB (`zvol_write`). Errors: [`Error::Invalid`] past the
    /// end.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.source.write_call(|| self.write_chunks(offset, data))
    }

    fn write_chunks(&self, offset: u64, data: &[u8]) -> Result<()> {
        let len = data.len() as u64;
        let Some(end) = offset.checked_add(len) else { return past_end(offset, len) };
        let mut at = offset;
        for chunk in data.chunks(CHUNK) {
            let live = self.source.live().ok_or(Error::ReadOnly)?;
            let write = live.cost_of_blocks(at, chunk.len() as u64, self.block_size());
            let cost = Cost { write, objects: 0, frees: false };
            let cut = live.chunk(DATA, at, chunk, self.block_size())?;
            self.change_within(cost, &(at..end), |os| {
                os.log_write(DATA, at, chunk.len() as u64);
                Ok(os.write_last(DATA, at, &cut)?)
            })?;
            at += chunk.len() as u64;
        }
        invariant!(at == end, "volume: what is written up to {end} ends at {at}");
        Ok(())
    }

    /// What freeing a chunk costs.
    fn chunk_cost(&self) -> Cost {
        Cost { write: 2 * self.block_size(), objects: 0, frees: true }
    }

    /// The last part of a range that one transaction may free.
    fn last_delete_chunk(&self, range: &Range<u64>) -> Result<DeleteChunk> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        Ok(live.last_delete_chunk(DATA, range.start, range.end, DELETE_BLOCKS.get())?)
    }

    /// Makes zeros of a range; whole blocks are freed (discard, write zeroes), chunk by chunk from its
    /// end (`zvol_discard`, `zvol_log_truncate`). Errors: [`Error::Invalid`] past the end.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let Some(mut end) = offset.checked_add(len) else { return past_end(offset, len) };
        loop {
            let DeleteChunk { start, pointers } = self.last_delete_chunk(&(offset..end))?;
            self.change_within(self.chunk_cost(), &(start..end), |os| {
                os.note_freed(pointers);
                let length = less!(end, start, "the end of a part of a volume that is freed");
                if length > 0 {
                    os.log(Body::Truncate { object: DATA, offset: start, length })?;
                }
                Ok(os.free_range(DATA, start, length)?)
            })?;
            if start <= offset {
                return Ok(());
            }
            end = start;
        }
    }

    /// Frees what is past the end.
    fn free_rest(&self) -> Result<()> {
        let mut end = u64::MAX;
        loop {
            let DeleteChunk { start, pointers } = self.last_delete_chunk(&(self.size()..end))?;
            let more = self.change(self.chunk_cost(), |os| {
                let size = self.size_in(os)?;
                os.note_freed(pointers);
                let from = start.max(size);
                os.free_range(DATA, from, end.saturating_sub(from))?;
                Ok(start > size)
            })?;
            if !more {
                return Ok(());
            }
            end = start;
        }
    }

    /// Changes the size (`zvol_set_volsize`). What is past a smaller size is freed; if that fails, it is done when the
    /// volume gets larger again. Errors: [`Error::Invalid`] if it is 0 or no multiple of the block
    /// size.
    pub fn resize(&self, size: u64) -> Result<()> {
        check_volume_size(size, self.block_size())?;
        let cost = Cost { write: 4096, objects: 0, frees: true };
        loop {
            let clean = self.size();
            if size > clean {
                self.free_rest()?;
            }
            let live = self.source.live().ok_or(Error::ReadOnly)?;
            let change = |os: &mut OpenObjectSet, _| {
                let old = self.size_in(os)?;
                if size > old && old < clean {
                    // It got smaller meanwhile, and what it had there is not all freed.
                    return Ok(None);
                }
                ZapMut::open(os, PROPERTIES).update(&Key::Name(SIZE), &Value::U64(&[size]))?;
                Ok::<_, Error>(Some(old))
            };
            let old = live.transact_then(cost, change, |old| {
                if old.is_some() {
                    self.size.store(size, Ordering::Release);
                }
                old
            })?;
            match old {
                Some(old) if size < old => return self.free_rest(),
                Some(_) => return Ok(()),
                None => {}
            }
        }
    }
}
