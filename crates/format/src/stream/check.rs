//! Whether a record can be in its stream (`recv_check_drr_object`, `recv_check_drr_write` and so on).
//!
//! What a record says is checked before anybody acts on it: numbers of objects, sizes, ranges that would pass the
//! end of what can be counted, unknown types and functions, and features that BEGIN does not name.

use super::decode::{Head, invalid};
use super::{
    EmbeddedRecord, FLAG_SPILL_BLOCK, OBJECT_SPILL, ObjectRecord, RAW_BYTESWAP, RangeRecord,
    RawObject, Record, SpillRecord, TO_END, WriteRecord, feature,
};
use crate::checksum::Checksum;
use crate::compress::Compression;
use crate::dmu::{DNODE_CORE, DNODE_SLOT, DmuType};
use crate::{DecodeError, Result, SECTOR};

/// Numbers of objects are below (`DN_MAX_OBJECT`).
const MAX_OBJECT: u64 = 1 << 48;
/// Largest block without the feature `LARGE_BLOCKS`, and largest spill block (`SPA_OLD_MAXBLOCKSIZE`).
const OLD_MAX_BLOCK: u64 = 128 << 10;
/// log2 of the bytes of indirect blocks, and levels of trees, that there may be (`DN_MIN_INDBLKSHIFT`,
/// `DN_MAX_INDBLKSHIFT`, `DN_MAX_LEVELS`).
const MIN_INDIRECT_SHIFT: u8 = 12;
const MAX_INDIRECT_SHIFT: u8 = 17;
const MAX_LEVELS: u8 = 13;
/// Slots of a block of dnodes (`DNODES_PER_BLOCK`).
const DNODES: u64 = crate::dmu::DNODE_BLOCK / DNODE_SLOT as u64;
/// Bytes of a block pointer.
const POINTER: usize = crate::blkptr::BLKPTR_SIZE;

/// Checks a record that comes behind BEGIN.
pub(super) fn check(record: &Record, head: Head) -> Result<()> {
    match record {
        Record::Begin(_) | Record::End { .. } => Ok(()),
        Record::Object(object) => check_object(object, head),
        Record::FreeObjects { first, count } => match first.checked_add(*count) {
            Some(_) => Ok(()),
            None => invalid(format!("FREEOBJECTS of {count} objects from {first}")),
        },
        Record::Write(write) => check_write(write, head),
        Record::Free { object, offset, length } | Record::Redact { object, offset, length } => {
            check_number(*object)?;
            match offset.checked_add(*length) {
                None if *length != TO_END => {
                    let name = record.name();
                    invalid(format!("object {object}: {name} of {length} bytes at {offset}"))
                }
                _ => Ok(()),
            }
        }
        Record::Spill(spill) => check_spill(spill, head),
        Record::WriteEmbedded(embedded) => check_embedded(embedded, head),
        Record::ObjectRange(range) => check_range(range, head),
    }
}

/// A block of dnodes (`receive_object_range`).
fn check_range(range: &RangeRecord, head: Head) -> Result<()> {
    let RangeRecord { first, count, flags, .. } = *range;
    let whole = count == DNODES && first.is_multiple_of(DNODES) && first < MAX_OBJECT;
    match has(head, feature::RAW) && whole && flags & !RAW_BYTESWAP == 0 {
        true => same_order(flags),
        false => invalid(format!("OBJECT_RANGE of {count} objects from {first}")),
    }
}

/// Blocks of a raw stream are in the byte order of the stream, which is little-endian.
fn same_order(flags: u8) -> Result<()> {
    match flags & RAW_BYTESWAP {
        0 => Ok(()),
        _ => Err(DecodeError::Unsupported {
            what: super::decode::WHAT,
            name: "a block in big-endian byte order in a raw stream".into(),
        }),
    }
}

/// Whether a record has what raw streams have, and no others.
fn check_raw(object: u64, is_raw: bool, flags: u8, head: Head) -> Result<()> {
    match is_raw == has(head, feature::RAW) {
        true if is_raw => same_order(flags),
        true => Ok(()),
        false if is_raw => invalid(format!("object {object}: encrypted data in a plain stream")),
        false => invalid(format!("object {object}: plain data in a raw stream")),
    }
}

fn check_number(object: u64) -> Result<()> {
    match (1..MAX_OBJECT).contains(&object) {
        true => Ok(()),
        false => invalid(format!("object {object}")),
    }
}

fn has(head: Head, features: u64) -> bool {
    head.features & features == features
}

/// A block of so many bytes can be in the stream.
fn check_size(object: u64, size: u64, head: Head) -> Result<()> {
    let large = size > OLD_MAX_BLOCK && !has(head, feature::LARGE_BLOCKS);
    match large || !size.is_multiple_of(SECTOR) {
        true => invalid(format!("object {object}: a block of {size} bytes")),
        false => Ok(()),
    }
}

/// A block of a raw stream is as it was on disk: whole sectors, of a function that a block can have.
fn check_sealed(object: u64, function: u8, (size, logical): (u64, u64)) -> Result<()> {
    let fits = match Compression::from_u8(function) {
        Ok(Compression::Off) => size > 0 && size == logical,
        Ok(Compression::Inherit | Compression::On | Compression::Empty) | Err(_) => false,
        Ok(_) => (SECTOR..=logical).contains(&size) && size.is_multiple_of(SECTOR),
    };
    match fits {
        true => Ok(()),
        false => invalid(format!(
            "object {object}: {size} encrypted bytes of {logical}, compressed with function {function}"
        )),
    }
}

/// A payload is compressed by a function that there is. The head need not say so: `zstream recompress` of
/// OpenZFS 2.4 leaves the head as it was, and a receiver of OpenZFS does not ask.
fn check_packed(object: u64, function: u8) -> Result<()> {
    match Compression::from_u8(function) {
        Ok(_) => Ok(()),
        Err(_) => invalid(format!("object {object}: data compressed with function {function}")),
    }
}

fn check_object(o: &ObjectRecord, head: Head) -> Result<()> {
    let bad = |what: String| invalid(format!("object {}: {what}", o.object));
    check_number(o.object)?;
    check_size(o.object, o.block_size.into(), head)?;
    let slots = usize::from(o.slots.max(1));
    if o.kind == DmuType::NONE || !o.kind.is_valid() || !o.bonus_kind.is_valid() {
        return bad(format!("type {}, bonus of type {}", o.kind.0, o.bonus_kind.0));
    }
    let room = slots * DNODE_SLOT - (DNODE_CORE + POINTER);
    let spill = o.flags & OBJECT_SPILL != 0;
    if o.bonus_len as usize > room || o.bonus_kind == DmuType::NONE && o.bonus_len != 0 {
        return bad(format!("{} bytes of bonus in {slots} slots", o.bonus_len));
    }
    if slots > 1 && !has(head, feature::LARGE_DNODE) {
        return bad(format!("{slots} slots"));
    }
    if o.object.checked_add(slots as u64).is_none_or(|end| end > MAX_OBJECT) {
        return bad(format!("{slots} slots"));
    }
    check_raw(o.object, o.raw.is_some(), o.flags, head)?;
    if let Some(raw) = &o.raw {
        check_raw_object(o, raw)?;
    }
    if o.flags & !(OBJECT_SPILL | RAW_BYTESWAP) != 0 || spill && head.flags & FLAG_SPILL_BLOCK == 0
    {
        return bad(format!("flags {:#x}", o.flags));
    }
    if !Checksum::from_u8(o.checksum)?.is_of_dnodes() {
        return bad(format!("checksum function {}", o.checksum));
    }
    // 0 is what the dataset goes by.
    if o.compress != 0 {
        Compression::from_u8(o.compress)?;
    }
    Ok(())
}

/// Whether the dnode can be as a raw stream says (`receive_object`).
fn check_raw_object(o: &ObjectRecord, raw: &RawObject) -> Result<()> {
    let slots = usize::from(o.slots.max(1));
    let taken = DNODE_CORE + POINTER * usize::from(raw.pointers);
    let spill = if o.flags & OBJECT_SPILL != 0 { POINTER } else { 0 };
    let room = (slots * DNODE_SLOT).checked_sub(taken + spill);
    let fits = match room {
        Some(room) if o.bonus_len == 0 => raw.bonus_len == 0 && room > 0,
        Some(room) => raw.bonus_len as usize == room && o.bonus_len <= raw.bonus_len,
        None => false,
    };
    let sound = (1..=3).contains(&raw.pointers)
        && (MIN_INDIRECT_SHIFT..=MAX_INDIRECT_SHIFT).contains(&raw.indirect_shift)
        && (1..=MAX_LEVELS).contains(&raw.levels);
    match fits && sound {
        true => Ok(()),
        false => invalid(format!("object {}: {raw:?}", o.object)),
    }
}

fn check_write(w: &WriteRecord, head: Head) -> Result<()> {
    let bad = |what: String| invalid(format!("object {}: {what}", w.object));
    check_number(w.object)?;
    check_size(w.object, w.logical_size, head)?;
    if w.offset.checked_add(w.logical_size).is_none() || !w.kind.is_valid() {
        return bad(format!("{} bytes at {}", w.logical_size, w.offset));
    }
    check_raw(w.object, w.seal.is_some(), w.flags, head)?;
    match w.compression {
        function if w.seal.is_some() => {
            check_sealed(w.object, function, (w.compressed_size, w.logical_size))
        }
        0 if w.compressed_size != 0 => bad("a compressed size of what is not compressed".into()),
        0 => Ok(()),
        function => {
            check_packed(w.object, function)?;
            match w.compressed_size <= w.logical_size {
                true => Ok(()),
                false => bad(format!("{} bytes in {}", w.logical_size, w.compressed_size)),
            }
        }
    }
}

fn check_spill(s: &SpillRecord, head: Head) -> Result<()> {
    check_number(s.object)?;
    check_size(s.object, s.length, head)?;
    check_raw(s.object, s.seal.is_some(), s.flags, head)?;
    let fits = match s.seal {
        None => s.compression == 0 && s.compressed_size == 0,
        Some(_) => {
            check_sealed(s.object, s.compression, (s.compressed_size, s.length))?;
            true
        }
    };
    match s.length <= OLD_MAX_BLOCK && fits {
        true => Ok(()),
        false => invalid(format!("object {}: a spill block of {} bytes", s.object, s.length)),
    }
}

fn check_embedded(e: &EmbeddedRecord, head: Head) -> Result<()> {
    let bad = |what: String| invalid(format!("object {}: {what}", e.object));
    check_number(e.object)?;
    check_size(e.object, e.length, head)?;
    if !has(head, feature::EMBED_DATA) || has(head, feature::RAW) || e.etype != 0 {
        return bad(format!("embedded data of type {}", e.etype));
    }
    if u64::from(e.lsize) != e.length {
        return bad(format!("an embedded block of {} bytes in one of {}", e.lsize, e.length));
    }
    let room = match e.is_spill() {
        true => e.length <= OLD_MAX_BLOCK,
        false => e.offset.checked_add(e.length).is_some(),
    };
    if !room {
        return bad(format!("{} bytes at {}", e.length, e.offset));
    }
    check_packed(e.object, e.compression)
}
