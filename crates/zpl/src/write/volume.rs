//! Contents and size of volumes.

use super::format::check_volume_size;
use crate::volume::{DATA, PROPERTIES, SIZE, Volume};
use crate::{Error, Result};
use cenote_dmu::Piece;
use cenote_dmu::live::Cost;
use cenote_dmu::tunables::DELETE_BLOCKS;
use cenote_dmu::write::{OpenObjectSet, ZapMut};
use cenote_format::encode::zap::{Key, Value};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Most bytes that are written in one transaction.
const CHUNK: usize = 16 << 20;

impl Volume {
    fn change<T>(&self, cost: Cost, f: impl FnOnce(&mut OpenObjectSet) -> Result<T>) -> Result<T> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        live.transact(cost, |os, _| f(os))
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(Error::Invalid(format!("{len} bytes at {offset} of the volume"))),
        }
    }

    /// Writes at byte `offset`, in transactions of up to 16 MiB. Errors: [`Error::Invalid`] past the
    /// end.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.source.write_call(|| self.write_chunks(offset, data))
    }

    fn write_chunks(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range(offset, data.len() as u64)?;
        let mut at = offset;
        for chunk in data.chunks(CHUNK) {
            let cost = Cost { write: chunk.len() as u64, objects: 0, frees: false };
            self.change(cost, |os| Ok(os.write(DATA, at, chunk)?))?;
            at = at.saturating_add(chunk.len() as u64);
        }
        Ok(())
    }

    /// Makes zeros of a range; whole blocks are freed (discard, write zeroes). Errors:
    /// [`Error::Invalid`] past the end.
    pub fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_range(offset, len)?;
        self.free_pieces(offset..offset.saturating_add(len))
    }

    /// Frees a range piece by piece, from its end: see [`pieces`](super::pieces).
    fn free_pieces(&self, range: Range<u64>) -> Result<()> {
        let live = self.source.live().ok_or(Error::ReadOnly)?;
        let cost = Cost { write: 2 * self.block_size(), objects: 0, frees: true };
        let mut end = range.end;
        loop {
            let Piece { start, pointers } =
                live.last_piece(DATA, range.start, end, DELETE_BLOCKS.get())?;
            self.change(cost, |os| {
                os.note_freed(pointers);
                Ok(os.free_range(DATA, start, end.saturating_sub(start))?)
            })?;
            if start <= range.start {
                return Ok(());
            }
            end = start;
        }
    }

    /// Changes the size. What is past a smaller size is freed. Errors: [`Error::Invalid`] if it is
    /// 0 or no multiple of the block size.
    pub fn resize(&self, size: u64) -> Result<()> {
        check_volume_size(size, self.block_size())?;
        let cost = Cost { write: 4096, objects: 0, frees: true };
        self.change(cost, |os| {
            ZapMut::open(os, PROPERTIES).update(&Key::Name(SIZE), &Value::U64(&[size]))?;
            // No one reads past the new end from here on.
            let old = self.size.swap(size, Ordering::AcqRel);
            if size < old {
                os.truncate(DATA, size)?;
            }
            Ok(())
        })
    }
}
