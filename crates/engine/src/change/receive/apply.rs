//! Records put into the object set that is being received (`receive_process_record`).
//!
//! Records come in the order of objects, and what is of one object in the order of its bytes. Each becomes a change of
//! the open transaction group; data of one object that comes in a row is written together ([`BATCH`]). The gate bounds
//! what is in memory.
//!
//! An object that is there already, from the snapshot that the stream starts from, stays with its contents if it can be
//! the same one. It is made anew if its number was given to another object at the sender meanwhile: then all of it is
//! in the stream.
//!
//! Invariant: each change notes the last record that it has, so that a receive that is resumed goes on behind it.

use super::error::{ReceiveError, Result};
use crate::receives::Receives;
use cenote_dmu::Error;
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::write::{NewObject, OpenObjectSet, WriteError};
use cenote_dsl::write::receive::Point;
use cenote_format::ByteOrder;
use cenote_format::abd::Abd;
use cenote_format::compress::{Compression, decompress};
use cenote_format::dmu::{DNODE_CORE, DNODE_SLOT, DmuType, DnodePhys};
use cenote_format::sa;
use cenote_format::stream::{
    EmbeddedRecord, OBJECT_SPILL, ObjectRecord, Record, SPILL_UNMODIFIED, SpillRecord, TO_END,
    WriteRecord,
};

use std::sync::Arc;

/// Bytes of an object that are written in one change (`zfs_recv_write_batch_size`).
const BATCH: u64 = 1 << 20;
/// Objects that are freed in one change.
const FREED: usize = 64;
/// Pointers that are freed in one change.
const POINTERS: u64 = 1 << 14;
/// Bytes of a block pointer.
const POINTER: usize = cenote_format::blkptr::BLKPTR_SIZE;

/// What is known of the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// It starts from nothing.
    pub(super) full: bool,
    /// Spill blocks that did not change are in it as well.
    pub(super) spills: bool,
}

/// A stream that is being put into an object set.
pub(super) struct Apply<'a> {
    live: Arc<LiveObjectSet>,
    receives: &'a Receives,
    kind: Kind,
    /// Data that is not written yet: the object and its blocks.
    batch: (u64, Vec<(u64, Abd)>),
    /// Where the last data was.
    last: (u64, u64),
    /// The largest number that the stream named.
    max_object: u64,
    /// Bytes of the stream with the last record.
    bytes: u64,
}

impl<'a> Apply<'a> {
    pub(super) fn new(live: Arc<LiveObjectSet>, receives: &'a Receives, kind: Kind) -> Apply<'a> {
        let (batch, last, max_object, bytes) = Default::default();
        Apply { live, receives, kind, batch, last, max_object, bytes }
    }

    /// Takes a record. `bytes`: those of the stream with it.
    ///
    /// # Errors
    /// The record does not fit to what is there; it cannot be written.
    pub(super) fn record(&mut self, record: Record, payload: Abd, bytes: u64) -> Result<()> {
        if !matches!(record, Record::Write(_)) {
            self.flush()?;
        }
        self.bytes = bytes;
        match record {
            Record::Begin(_) | Record::End { .. } => Ok(()),
            Record::Object(object) => self.object(&object, &payload),
            Record::FreeObjects { first, count } => {
                self.free_objects(first.max(1), first.saturating_add(count))
            }
            Record::Write(write) => self.write(&write, payload),
            Record::Free { object, offset, length } => self.free(object, offset, length),
            Record::Spill(spill) => self.spill(&spill, &payload),
            Record::WriteEmbedded(embedded) => self.embedded(&embedded, &payload),
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

    /// Makes a change, and notes that it has all up to `at` if that can be resumed from.
    fn change<T>(
        &self,
        cost: Cost,
        at: Option<(u64, u64)>,
        mut f: impl FnMut(&mut OpenObjectSet) -> std::result::Result<T, WriteError>,
    ) -> Result<T> {
        let point = at.map(|(object, offset)| Point { object, offset, bytes: self.bytes });
        let noted = |(txg, done): (u64, T)| {
            if let Some(point) = point {
                self.receives.note(self.live.id(), txg, point);
            }
            done
        };
        Ok(self.live.transact_then(cost, |os, txg| Ok::<_, WriteError>((txg, f(os)?)), noted)?)
    }

    fn object(&mut self, record: &ObjectRecord, payload: &Abd) -> Result<()> {
        self.max_object = self.max_object.max(record.object);
        let bytes = payload.bytes();
        let bonus = bytes.get(..record.bonus_len as usize).unwrap_or_default();
        let cost = Cost { write: 0, objects: 2, frees: false };
        let kind = self.kind;
        self.change(cost, Some((record.object, 0)), |os| put_object(os, record, bonus, kind))
    }

    /// Frees the objects from `first` to before `end`.
    fn free_objects(&mut self, first: u64, end: u64) -> Result<()> {
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
                // One that is large goes in pieces.
                if self.live.last_delete_chunk(*number, 0, u64::MAX, POINTERS)?.start > 0 {
                    self.free_range(*number, 0, u64::MAX)?;
                }
            }
            let cost = Cost { write: 0, objects: numbers.len() as u64, frees: true };
            self.change(cost, None, |os| numbers.iter().try_for_each(|n| os.free(*n)))?;
        }
    }

    fn write(&mut self, record: &WriteRecord, payload: Abd) -> Result<()> {
        let data = match record.compression {
            0 => payload,
            function => unpack(function, &payload.bytes(), record.logical_size)?,
        };
        let at = (record.object, record.offset);
        if at < self.last {
            let why = format!("object {}: data at {} is out of order", at.0, at.1);
            return Err(ReceiveError::Stream(why));
        }
        let full = |first: &(u64, Abd)| record.offset >= first.0.saturating_add(BATCH);
        if self.batch.0 != record.object || self.batch.1.first().is_some_and(full) {
            self.flush()?;
        }
        self.last = at;
        self.max_object = self.max_object.max(record.object);
        self.batch.0 = record.object;
        self.batch.1.push((record.offset, data));
        Ok(())
    }

    /// Writes what was collected of an object (`flush_write_batch`).
    fn flush(&mut self) -> Result<()> {
        let (object, blocks) = std::mem::take(&mut self.batch);
        let (Some((first, _)), Some((last, data))) = (blocks.first(), blocks.last()) else {
            return Ok(());
        };
        let size = self.live.attributes(object).map_err(|e| no_object(object, e))?;
        let size = size.dnode().block_size;
        let len = (last - first).saturating_add(data.len() as u64);
        let write = self.live.cost_of_blocks(*first, len, size);
        let cost = Cost { write, objects: 1, frees: false };
        self.change(cost, Some((object, *last)), |os| {
            blocks.iter().try_for_each(|(offset, data)| os.write_abd(object, *offset, data))
        })
    }

    fn embedded(&mut self, record: &EmbeddedRecord, payload: &Abd) -> Result<()> {
        let bytes = payload.bytes();
        let packed = bytes.get(..record.psize as usize).unwrap_or_default();
        let data = unpack(record.compression, packed, record.length)?;
        self.max_object = self.max_object.max(record.object);
        let object = record.object;
        let known = self.live.attributes(object).map_err(|e| no_object(object, e))?;
        if record.offset == SPILL_BLKID.wrapping_mul(known.dnode().block_size) {
            // So OpenZFS sends a spill block that lies in its pointer.
            return self.put_spill(object, data.to_vec());
        }
        let write = self.live.cost_of_blocks(record.offset, record.length, record.length);
        let cost = Cost { write, objects: 1, frees: false };
        let at = Some((object, record.offset));
        self.change(cost, at, |os| os.write_abd(object, record.offset, &data))
    }

    fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        self.max_object = self.max_object.max(object);
        let end = if length == TO_END { u64::MAX } else { offset.saturating_add(length) };
        self.free_range(object, offset, end)
    }

    /// Makes the bytes from `offset` to before `end` a hole, in pieces from the end (`dmu_free_long_range`).
    fn free_range(&mut self, object: u64, offset: u64, end: u64) -> Result<()> {
        let known = self.live.attributes(object).map_err(|e| no_object(object, e))?;
        // Parts of blocks at both ends are written.
        let cost = Cost { write: 2 * known.dnode().block_size, objects: 1, frees: true };
        let mut end = end;
        loop {
            let piece = self.live.last_delete_chunk(object, offset, end, POINTERS)?;
            let (start, pointers) = (piece.start.max(offset), piece.pointers);
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

    /// A spill block. One that did not change is there already, unless the object was made anew.
    fn spill(&mut self, record: &SpillRecord, payload: &Abd) -> Result<()> {
        let unmodified = self.kind.spills && record.flags & SPILL_UNMODIFIED != 0;
        let object = record.object;
        self.max_object = self.max_object.max(object);
        let known = self.live.attributes(object).map_err(|e| no_object(object, e))?;
        if unmodified && known.dnode().spill.is_some() {
            return Ok(());
        }
        self.put_spill(object, payload.to_vec())
    }

    fn put_spill(&mut self, object: u64, data: Vec<u8>) -> Result<()> {
        self.exists(object)?;
        let cost = Cost { write: data.len() as u64, objects: 1, frees: false };
        self.change(cost, None, |os| os.set_spill(object, Some(data.clone())))
    }

    fn exists(&self, object: u64) -> Result<()> {
        self.live.attributes(object).map(drop).map_err(|e| no_object(object, e))
    }
}

/// An object that a record is about is not there: the stream is wrong.
fn no_object(object: u64, e: Error) -> ReceiveError {
    match e {
        Error::NoObject { .. } => ReceiveError::Stream(format!("there is no object {object}")),
        e => e.into(),
    }
}

/// A block that is compressed in the stream.
fn unpack(function: u8, packed: &[u8], size: u64) -> Result<Abd> {
    let mut data = vec![0; size as usize];
    match Compression::from_u8(function)? {
        Compression::Off => match packed.get(..data.len()) {
            Some(plain) => data.copy_from_slice(plain),
            None => return Err(ReceiveError::Stream(format!("{size} bytes are missing"))),
        },
        known => decompress(known, packed, &mut data)?,
    }
    Ok(Abd::from_vec(data))
}

/// Pointers that the dnode of a new object has (`deduce_nblkptr`).
fn pointers(record: &ObjectRecord) -> usize {
    let slots = usize::from(record.slots.max(1));
    let room = (slots * DNODE_SLOT).saturating_sub(DNODE_CORE + POINTER);
    match record.bonus_kind {
        DmuType::SA => 1,
        _ => (1 + room.saturating_sub(record.bonus_len as usize) / POINTER).min(3),
    }
}

/// What is to become of an object that is there.
enum Fate {
    /// It goes, and another one takes its number.
    Anew,
    /// It stays.
    Same,
}

/// Whether the object in the record is the one that is there (`receive_handle_existing_object`).
fn fate(
    record: &ObjectRecord,
    bonus: &[u8],
    there: &DnodePhys,
    kind: Kind,
) -> std::result::Result<Fate, WriteError> {
    let slots = u64::from(record.slots.max(1));
    let other = record.kind != there.kind
        || record.bonus_kind != there.bonus_kind
        || pointers(record) < there.pointers.len()
        || slots != there.slots();
    if other {
        return Ok(Fate::Anew);
    }
    let generation = |bonus: &[u8]| {
        sa::file_info(record.bonus_kind, bonus, ByteOrder::Little).map(|info| info.generation)
    };
    let (now, then) = (generation(bonus), generation(&there.bonus));
    if now != then {
        return Ok(Fate::Anew);
    }
    let size = u64::from(record.block_size);
    if size == there.block_size {
        return Ok(Fate::Same);
    }
    let small = kind.full || record.kind != DmuType::PLAIN_FILE_CONTENTS || there.max_block == 0;
    if small || now.is_none() {
        return Ok(Fate::Anew);
    }
    // The same file, which was sent in smaller blocks before: it keeps those.
    match size > there.block_size {
        true => Ok(Fate::Same),
        false => {
            let why = format!("blocks of {size} bytes, where there are larger ones");
            Err(WriteError::Invalid { object: record.object, why })
        }
    }
}

/// Puts an object where the record says (`receive_object`).
fn put_object(
    os: &mut OpenObjectSet,
    record: &ObjectRecord,
    bonus: &[u8],
    kind: Kind,
) -> std::result::Result<(), WriteError> {
    let number = record.object;
    let there = match os.dnode(number) {
        Ok(dnode) => Some(dnode.clone()),
        Err(WriteError::Read(Error::NoObject { .. })) => None,
        Err(e) => return Err(e),
    };
    let fate = there.as_ref().map(|there| fate(record, bonus, there, kind)).transpose()?;
    if let (Some(there), Some(Fate::Same)) = (&there, fate) {
        // Old senders do not say whether there is a spill block: they send it where the bonus buffer changes.
        let keeps_spill = match kind.spills {
            true => record.flags & OBJECT_SPILL != 0,
            false => bonus.len() == there.bonus.len(),
        };
        // First, because it takes room of the bonus buffer.
        if os.dnode_with_spill(number)?.1 && !keeps_spill {
            os.set_spill(number, None)?;
        }
        os.set_bonus(number, record.bonus_kind, bonus)?;
        return os.set_functions(number, record.checksum, record.compress);
    }
    if there.is_some() {
        os.free(number)?;
    }
    let slots = u64::from(record.slots.max(1));
    for slot in number.saturating_add(1)..number.saturating_add(slots) {
        match os.dnode(slot) {
            Ok(_) => os.free(slot)?,
            Err(WriteError::Read(Error::NoObject { .. })) => {}
            Err(e) => return Err(e),
        }
    }
    os.claim(
        number,
        &NewObject {
            bonus_kind: record.bonus_kind,
            bonus: bonus.to_vec(),
            dnode_size: slots as usize * DNODE_SLOT,
            checksum: record.checksum,
            compress: record.compress,
            ..NewObject::new(record.kind, record.block_size.into())
        },
    )
}
