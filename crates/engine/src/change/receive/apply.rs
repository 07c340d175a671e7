//! Records put into the object set that is being received (`receive_process_record`).
//!
//! Records come in the order of objects, and what is of one object in the order of its bytes. They are gathered into
//! changes of the open transaction group (`batch`). Their assignment bounds what is in memory. Data that comes
//! compressed stays so.
//!
//! Invariant: each change notes the last record that it has, so that a receive that is resumed goes on behind it.

use super::batch::{Batch, Op};
use super::error::{ReceiveError, Result};
use super::kind::{Kind, sealed};
use super::object;
use crate::receives::Receives;
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dmu::{DeleteChunk, Error};
use cenote_dsl::write::receive::Point;
use cenote_format::abd::Abd;
use cenote_format::crypt::Seal;
use cenote_format::stream::{
    EmbeddedRecord, ObjectRecord, RangeRecord, Record, SPILL_UNMODIFIED, SpillRecord, TO_END,
    WriteRecord,
};
use cenote_store::write::Payload;
use std::ops::Range;
use std::sync::Arc;

/// Objects that are freed in one change.
const FREED: usize = 64;
/// Pointers that are freed in one change.
const POINTERS: u64 = 1 << 14;

/// A stream that is being put into an object set.
pub(super) struct Apply<'a> {
    live: Arc<LiveObjectSet>,
    receives: &'a Receives,
    kind: Kind,
    batch: Batch,
    /// Where the last data was.
    last: (u64, u64),
    /// The object of the last record, and the bytes that its blocks may have.
    current: (u64, [u64; 2]),
    /// The object of the last data, and the bytes below the indirect block that was read for it.
    loaded: (u64, Range<u64>),
    /// The block of dnodes that the stream named last.
    range: Option<RangeRecord>,
    /// The largest number that the stream named.
    max_object: u64,
    /// Bytes of the stream with the last record.
    bytes: u64,
}

impl<'a> Apply<'a> {
    pub(super) fn new(live: Arc<LiveObjectSet>, receives: &'a Receives, kind: Kind) -> Apply<'a> {
        let (batch, last, max_object, bytes) = Default::default();
        let (current, loaded) = ((0, [0; 2]), (0, 0..0));
        let range = None;
        Apply { live, receives, kind, batch, last, current, loaded, range, max_object, bytes }
    }

    /// Takes a record. `bytes`: length of the stream up to its end.
    ///
    /// # Errors
    /// The record does not fit to what is there; it cannot be written.
    pub(super) fn record(&mut self, record: Record, payload: Abd, bytes: u64) -> Result<()> {
        self.bytes = bytes;
        match record {
            Record::Begin(_) | Record::End { .. } => Ok(()),
            Record::Object(object) => self.object(object, &payload),
            Record::FreeObjects { first, count } => {
                self.free_objects(first.max(1), first.saturating_add(count))
            }
            Record::Write(write) => self.write(&write, payload),
            // OpenZFS frees what is left out as well (`receive_redact`).
            Record::Free { object, offset, length } | Record::Redact { object, offset, length } => {
                self.free(object, offset, length)
            }
            Record::Spill(spill) => self.spill(&spill, &payload),
            Record::WriteEmbedded(embedded) => self.embedded(&embedded, &payload),
            Record::ObjectRange(range) => {
                self.max_object = self.max_object.max(range.first);
                self.range = Some(range);
                Ok(())
            }
        }
    }

    /// Writes what is left. With `all`, what the stream did not name is not in the snapshot: so it is where a full
    /// stream was received on an origin.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn finish(mut self, all: bool) -> Result<()> {
        self.flush()?;
        match all {
            true => self.free_objects(self.max_object.saturating_add(1), u64::MAX),
            false => Ok(()),
        }
    }

    /// Adds to the batch. `at`: the record, if a receive can go on from it.
    fn add(&mut self, op: Op, (write, objects): (u64, u64), at: Option<(u64, u64)>) -> Result<()> {
        self.batch.add(op, write, objects);
        if let Some((object, offset)) = at {
            self.batch.at = Some(Point { object, offset, bytes: self.bytes });
        }
        match self.batch.is_full() {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Makes the change that the batch is, and notes that it has all up to its last record.
    ///
    /// # Errors
    /// A record does not fit to what is there; it cannot be written.
    pub(super) fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        let kind = self.kind;
        self.change(batch.cost(), batch.at, |os| batch.apply(os, kind))
    }

    fn change<T>(
        &self,
        cost: Cost,
        at: Option<Point>,
        mut f: impl FnMut(&mut OpenObjectSet) -> std::result::Result<T, WriteError>,
    ) -> Result<T> {
        let noted = |(txg, done): (u64, T)| {
            if let Some(point) = at {
                self.receives.note(self.live.id(), txg, point);
            }
            done
        };
        Ok(self.live.transact_then(cost, |os, txg| Ok::<_, WriteError>((txg, f(os)?)), noted)?)
    }

    fn object(&mut self, record: ObjectRecord, payload: &Abd) -> Result<()> {
        self.max_object = self.max_object.max(record.object);
        let bytes = payload.bytes();
        let seal = self.seal_of(&record)?;
        let bonus = match seal {
            // To the end of the dnode.
            Some(_) => bytes.to_vec(),
            None => bytes.get(..record.bonus_len as usize).unwrap_or_default().to_vec(),
        };
        // What is there of it is in memory then.
        let there = match self.live.attributes(record.object) {
            Ok(there) => Some(there),
            Err(Error::NoObject { .. }) => None,
            Err(e) => return Err(e.into()),
        };
        let there = there.as_ref().map(|there| there.dnode());
        if let (Some(raw), Some(there)) = (&record.raw, there)
            && there.max_block > raw.max_block
        {
            // It ends before: in parts, for it may be much that goes.
            let end = raw.max_block.saturating_add(1).saturating_mul(there.block_size);
            self.flush()?;
            self.free_range(record.object, end, u64::MAX)?;
        }
        let sizes = match self.kind.raw {
            true => [u64::from(record.block_size); 2],
            false => object::block_sizes(&record, there),
        };
        // A block that grows is written.
        let [_, kept] = sizes;
        let grows = there.filter(|there| there.block_size < kept).map_or(0, |_| kept);
        self.current = (record.object, sizes);
        // No stream goes on from here. One that was received in part and is sent on by OpenZFS (`-S`) names objects
        // behind the last one that came, as they were before.
        self.add(Op::Object { record, bonus, seal }, (grows, 2), None)
    }

    /// How the block of dnodes is protected that an object of a raw stream is in.
    fn seal_of(&self, record: &ObjectRecord) -> Result<Option<Seal>> {
        if !self.kind.raw {
            return Ok(None);
        }
        let holds = |range: &&RangeRecord| {
            let slots = u64::from(record.slots.max(1));
            let end = record.object.checked_sub(range.first).and_then(|at| at.checked_add(slots));
            end.is_some_and(|end| end <= range.count)
        };
        let why = || {
            let object = record.object;
            ReceiveError::Stream(format!("object {object} is in no block of dnodes that came"))
        };
        self.range.as_ref().filter(holds).map(|range| Some(range.seal)).ok_or_else(why)
    }

    /// Frees the objects from `first` to before `end` (`receive_freeobjects`).
    fn free_objects(&mut self, first: u64, end: u64) -> Result<()> {
        if !self.batch.puts_any(first, end)
            && self.live.next_object(first)?.is_none_or(|number| number >= end)
        {
            return Ok(());
        }
        self.flush()?;
        self.current = (0, [0; 2]);
        let mut at = first;
        loop {
            let mut numbers = Vec::new();
            while numbers.len() < FREED
                && let Some(number) = self.live.next_object(at)?.filter(|number| *number < end)
            {
                numbers.push(number);
                at = number.saturating_add(1);
            }
            let Some(last) = numbers.last() else { return Ok(()) };
            at = last.saturating_add(1);
            for number in &numbers {
                // One that is large goes in parts.
                if self.live.last_delete_chunk(*number, 0, u64::MAX, POINTERS)?.start > 0 {
                    self.free_range(*number, 0, u64::MAX)?;
                }
            }
            let cost = Cost { write: 0, objects: numbers.len() as u64, frees: true };
            self.change(cost, None, |os| numbers.iter().try_for_each(|n| os.free(*n)))?;
        }
    }

    /// Bytes that the blocks of an object may have.
    fn block_sizes(&mut self, object: u64) -> Result<[u64; 2]> {
        if self.current.0 != object {
            let known = self.live.attributes(object).map_err(|e| no_object(object, e))?;
            self.current = (object, [known.dnode().block_size; 2]);
        }
        Ok(self.current.1)
    }

    /// Data (`receive_process_write_record`).
    fn write(&mut self, record: &WriteRecord, payload: Abd) -> Result<()> {
        let (lsize, packings) = (record.logical_size, self.kind.packings);
        let data = match record.compression {
            function if self.kind.raw => sealed(function, payload, lsize, record.seal)?,
            0 => payload.into(),
            function => packings.payload(function, payload, lsize)?,
        };
        let at = (record.object, record.offset);
        if at < self.last {
            let why = format!("object {}: data at {} is out of order", at.0, at.1);
            return Err(ReceiveError::Stream(why));
        }
        self.last = at;
        self.put_data(at, data)
    }

    fn put_data(&mut self, at: (u64, u64), data: Payload) -> Result<()> {
        let (object, offset) = at;
        self.max_object = self.max_object.max(object);
        let (sizes, len) = (self.block_sizes(object)?, data.len() as u64);
        self.load_above(object, offset)?;
        let [a, b] = sizes.map(|size| self.live.cost_of_blocks(offset, len, size));
        self.add(Op::Write { object, offset, data }, (a.max(b), 1), Some(at))
    }

    /// Has the indirect block above data read, so that the change need not wait for it and be made again.
    fn load_above(&mut self, object: u64, offset: u64) -> Result<()> {
        if self.loaded.0 == object && self.loaded.1.contains(&offset) {
            return Ok(());
        }
        let known = match self.live.attributes(object) {
            Ok(known) if known.dnode().levels > 1 => known,
            // No indirect block: the object has no more than one level on disk, or the batch makes it.
            Ok(_) | Err(Error::NoObject { .. }) => {
                self.loaded = (object, 0..u64::MAX);
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        };
        let size = known.dnode().block_size.max(1);
        known.block_pointer(0, offset / size)?;
        let span = size.saturating_mul(1 << known.dnode().indirect_shift.saturating_sub(7).min(32));
        let first = offset - offset % span;
        self.loaded = (object, first..first.saturating_add(span));
        Ok(())
    }

    /// A block that comes in its pointer (`receive_write_embedded`).
    fn embedded(&mut self, record: &EmbeddedRecord, payload: &Abd) -> Result<()> {
        let (object, psize) = (record.object, record.psize as usize);
        let missing = || ReceiveError::Stream(format!("{psize} bytes are missing"));
        let packed = payload.slice(0, psize).ok_or_else(missing)?;
        let data = self.kind.packings.payload(record.compression, packed, record.length)?;
        if record.is_spill() {
            self.max_object = self.max_object.max(object);
            return self.put_spill(object, data.unpacked()?.into());
        }
        self.put_data((object, record.offset), data)
    }

    /// A range that becomes a hole (`receive_free`).
    fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        self.max_object = self.max_object.max(object);
        let end = if length == TO_END { u64::MAX } else { offset.saturating_add(length) };
        let sizes = self.block_sizes(object)?;
        let chunk = match self.live.last_delete_chunk(object, offset, end, POINTERS) {
            Ok(chunk) => chunk,
            // It is new.
            Err(Error::NoObject { .. }) => DeleteChunk { start: offset, pointers: 0 },
            Err(e) => return Err(e.into()),
        };
        if chunk.start > offset {
            self.flush()?;
            return self.free_range(object, offset, end);
        }
        let op = Op::Free { object, offset, length, pointers: chunk.pointers };
        // Parts of blocks at both ends are written.
        let parts = |size: u64| {
            let ends = [offset, end].into_iter().filter(|at| *at != u64::MAX);
            ends.filter(|at| !at.is_multiple_of(size.max(1))).count() as u64
        };
        let [a, b] = sizes.map(|size| parts(size).saturating_mul(size));
        self.add(op, (a.max(b), 1), None)
    }

    /// Makes the bytes from `offset` to before `end` a hole, chunk by chunk from the end (`dmu_free_long_range`).
    fn free_range(&mut self, object: u64, offset: u64, end: u64) -> Result<()> {
        let known = self.live.attributes(object).map_err(|e| no_object(object, e))?;
        // Parts of blocks at both ends are written.
        let cost = Cost { write: 2 * known.dnode().block_size, objects: 1, frees: true };
        let mut end = end;
        loop {
            let chunk = self.live.last_delete_chunk(object, offset, end, POINTERS)?;
            let (start, pointers) = (chunk.start.max(offset), chunk.pointers);
            if start >= end {
                return Ok(());
            }
            let length = if end == u64::MAX { end } else { end - start };
            self.change(cost, None, |os| {
                os.note_freed(pointers);
                os.free_range(object, start, length)
            })?;
            if start == offset {
                return Ok(());
            }
            end = start;
        }
    }

    /// A spill block (`receive_spill`). One that did not change is there already, unless the object was made anew.
    fn spill(&mut self, record: &SpillRecord, payload: &Abd) -> Result<()> {
        let unmodified = self.kind.spills && record.flags & SPILL_UNMODIFIED != 0;
        let object = record.object;
        self.max_object = self.max_object.max(object);
        if unmodified {
            self.flush()?;
            let known = self.live.attributes(object).map_err(|e| no_object(object, e))?;
            if known.dnode().spill.is_some() {
                return Ok(());
            }
        }
        let data = match self.kind.raw {
            true => sealed(record.compression, payload.clone(), record.length, record.seal)?,
            false => payload.clone().into(),
        };
        self.put_spill(object, data)
    }

    fn put_spill(&mut self, object: u64, data: Payload) -> Result<()> {
        self.block_sizes(object)?;
        let write = data.len() as u64;
        self.add(Op::Spill { object, data }, (write, 1), None)
    }
}

/// An object that a record is about is not there: the stream is wrong.
fn no_object(object: u64, e: Error) -> ReceiveError {
    match e {
        Error::NoObject { .. } => ReceiveError::Stream(format!("there is no object {object}")),
        e => e.into(),
    }
}
