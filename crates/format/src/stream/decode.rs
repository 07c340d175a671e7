//! Decoding records (`dmu_replay_record_t`), in either byte order.
//!
//! A [`Decoder`] is fed one stream: heads of records by [`Decoder::record`], payloads by [`Decoder::payload`], in
//! order. It keeps the running checksum (`fletcher_4_incremental_native`, `fletcher_4_incremental_byteswap`), and
//! finds the byte order out from the magic number of BEGIN. Each head is compared with the sum of what came before
//! it, and END with the sum of all.
//!
//! Streams are not trusted. A length that memory will be allocated by is checked here: blocks, bonus buffers,
//! embedded payloads, compressed sizes, the list of BEGIN.
//!
//! Invariants: BEGIN comes first and once, no record comes after END, and all records name the snapshot that BEGIN
//! names. Deduplicated records are refused by name.

use super::check::check;
use super::{
    Begin, CHECKSUM_AT, EmbeddedRecord, MAGIC, MAX_NVLIST, NAME_SIZE, ObjectRecord, RECORD_SIZE,
    RangeRecord, RawObject, Record, SpillRecord, WriteRecord,
};
use crate::blkptr::EMBEDDED_PAYLOAD;
use crate::checksum::Fletcher4;
use crate::crypt::{BlockParams, IV_LEN, MAC_LEN, SALT_LEN, Seal};
use crate::dmu::DmuType;
use crate::{ByteOrder, Bytes, DecodeError, MAX_BLOCK, Result};

pub(super) const WHAT: &str = "send stream";
/// Most slots of a dnode.
const MAX_SLOTS: u8 = 32;
/// Number of the record that is not decoded, and its name.
const REFUSED: (u32, &str) = (6, "WRITE_BYREF (a deduplicated stream)");

/// Reads the records of one stream and verifies its checksums.
pub struct Decoder {
    sum: Fletcher4,
    order: ByteOrder,
    /// What BEGIN said that records depend on.
    head: Option<Head>,
    ended: bool,
}

/// What BEGIN says of the records behind it.
#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) to_guid: u64,
    pub(super) features: u64,
    pub(super) flags: u32,
}

pub(super) fn invalid<T>(why: impl Into<String>) -> Result<T> {
    Err(DecodeError::invalid(WHAT, why))
}

impl Decoder {
    /// For a stream that begins with this record. It is decoded with [`Decoder::record`] like the others.
    ///
    /// # Errors
    /// It is no stream.
    pub fn new(first: &[u8; RECORD_SIZE]) -> Result<Decoder> {
        let is = |order| Bytes::new(first, order, WHAT).u64(8).is_ok_and(|magic| magic == MAGIC);
        let order = match [ByteOrder::Little, ByteOrder::Big].into_iter().find(|order| is(*order)) {
            Some(order) => order,
            None => return invalid("bad magic number"),
        };
        Ok(Decoder { sum: Fletcher4::new(order), order, head: None, ended: false })
    }

    /// Byte order of the sender, and of every payload.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// Whether END was read.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// The record in these bytes. [`Record::payload_len`] bytes follow, which go through
    /// [`Decoder::payload`] before the next record.
    ///
    /// The END behind the list of a package has no checksum of its own, and records of old senders have
    /// no checksum: it is 0 then.
    ///
    /// # Errors
    /// The checksum is wrong ([`DecodeError::Checksum`]), or the record makes no sense where it is.
    pub fn record(&mut self, bytes: &[u8; RECORD_SIZE]) -> Result<Record> {
        let b = Bytes::new(bytes, self.order, WHAT);
        let before = self.sum.finish();
        self.sum.update(&bytes[..CHECKSUM_AT]);
        let kind = b.u32(0)?;
        if self.ended {
            return invalid("a record after END");
        }
        let sum = b.u64s::<4>(CHECKSUM_AT)?;
        if kind != 0 && sum != [0; 4] && sum != self.sum.finish() {
            return Err(DecodeError::Checksum { what: WHAT });
        }
        self.sum.update(&bytes[CHECKSUM_AT..]);
        let (record, guid) = decode(kind, &b.sub(8, RECORD_SIZE - 8, WHAT)?, b.u32(4)?)?;
        match (&record, self.head) {
            (Record::Begin(begin), None) => {
                let (features, flags) = (begin.features, begin.flags);
                self.head = Some(Head { to_guid: guid, features, flags });
            }
            (Record::Begin(_), Some(_)) => return invalid("a second BEGIN"),
            (_, Some(head)) if head.to_guid == guid => check(&record, head)?,
            (_, None) => return invalid(format!("{} before BEGIN", record.name())),
            (..) => return invalid(format!("{} of another stream", record.name())),
        }
        if let Record::End { checksum } = record {
            if checksum != before {
                return Err(DecodeError::Checksum { what: WHAT });
            }
            self.ended = true;
        }
        Ok(record)
    }

    /// Takes note of payload, or a part of it.
    pub fn payload(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
    }
}

/// The record and the guid in it. `payload` is the second word of the head.
fn decode(kind: u32, b: &Bytes<'_>, payload: u32) -> Result<(Record, u64)> {
    Ok(match kind {
        0 => begin(b, payload)?,
        1 => (Record::Object(object(b)?), b.u64(32)?),
        2 => {
            let [first, count, guid] = b.u64s(0)?;
            (Record::FreeObjects { first, count }, guid)
        }
        3 => (Record::Write(write(b)?), b.u64(32)?),
        4 => {
            let [object, offset, length, guid] = b.u64s(0)?;
            (Record::Free { object, offset, length }, guid)
        }
        5 => (Record::End { checksum: b.u64s(0)? }, b.u64(32)?),
        7 => (Record::Spill(spill(b)?), b.u64(16)?),
        8 => (Record::WriteEmbedded(embedded(b)?), b.u64(24)?),
        9 => (Record::ObjectRange(range(b)?), b.u64(16)?),
        10 => {
            let [object, offset, length, guid] = b.u64s(0)?;
            (Record::Redact { object, offset, length }, guid)
        }
        other if other == REFUSED.0 => {
            return Err(DecodeError::Unsupported { what: WHAT, name: REFUSED.1.into() });
        }
        other => return invalid(format!("record type {other}")),
    })
}

fn begin(b: &Bytes<'_>, payload: u32) -> Result<(Record, u64)> {
    let [_, version, creation_time] = b.u64s(0)?;
    let [to_guid, from_guid] = b.u64s(32)?;
    let name = b.slice(48, NAME_SIZE)?;
    let Some(end) = name.iter().position(|c| *c == 0) else {
        return invalid("a name without end");
    };
    if u64::from(payload) > MAX_NVLIST {
        return invalid(format!("{payload} bytes of properties"));
    }
    let begin = Begin {
        header_type: (version & 3) as u8,
        features: version >> 2,
        creation_time,
        kind: b.u32(24)?,
        flags: b.u32(28)?,
        to_guid,
        from_guid,
        to_name: name[..end].to_vec(),
        payload,
    };
    Ok((Record::Begin(begin), to_guid))
}

fn dmu_type(number: u32) -> Result<DmuType> {
    match u8::try_from(number) {
        Ok(number) => Ok(DmuType(number)),
        Err(_) => invalid(format!("object type {number}")),
    }
}

/// A size of a block, which a payload may be allocated by.
fn block(size: u64) -> Result<u64> {
    match (1..=MAX_BLOCK).contains(&size) {
        true => Ok(size),
        false => invalid(format!("a block of {size} bytes")),
    }
}

/// The size of a compressed payload, if `compression` says that it is one.
fn packed(compression: u8, size: u64) -> Result<u64> {
    if compression != 0 && (block(size)? % 8 != 0) {
        return invalid(format!("a payload of {size} bytes"));
    }
    Ok(size)
}

/// Salt, initialization vector and MAC.
fn seal(b: &Bytes<'_>, at: usize) -> Result<Seal> {
    let (mut params, mut mac) =
        (BlockParams { salt: [0; SALT_LEN], iv: [0; IV_LEN] }, [0; MAC_LEN]);
    params.salt.copy_from_slice(b.slice(at, SALT_LEN)?);
    params.iv.copy_from_slice(b.slice(at + SALT_LEN, IV_LEN)?);
    mac.copy_from_slice(b.slice(at + SALT_LEN + IV_LEN, MAC_LEN)?);
    Ok(Seal { params, mac })
}

/// The same, of a record that has one only in a raw stream.
fn seal_if_any(b: &Bytes<'_>, at: usize) -> Result<Option<Seal>> {
    let found = seal(b, at)?;
    let is_any = b.slice(at, SALT_LEN + IV_LEN + MAC_LEN)?.iter().any(|byte| *byte != 0);
    Ok(is_any.then_some(found))
}

fn range(b: &Bytes<'_>) -> Result<RangeRecord> {
    let [first, count] = b.u64s(0)?;
    Ok(RangeRecord { first, count, flags: b.u8(60)?, seal: seal(b, 24)? })
}

/// What only raw streams say of an object.
fn raw_object(b: &Bytes<'_>) -> Result<Option<RawObject>> {
    let raw = RawObject {
        bonus_len: b.u32(28)?,
        indirect_shift: b.u8(40)?,
        levels: b.u8(41)?,
        pointers: b.u8(42)?,
        max_block: b.u64(48)?,
    };
    let none = RawObject { bonus_len: 0, indirect_shift: 0, levels: 0, pointers: 0, max_block: 0 };
    Ok(Some(raw).filter(|raw| *raw != none))
}

fn object(b: &Bytes<'_>) -> Result<ObjectRecord> {
    let record = ObjectRecord {
        object: b.u64(0)?,
        kind: dmu_type(b.u32(8)?)?,
        bonus_kind: dmu_type(b.u32(12)?)?,
        block_size: b.u32(16)?,
        bonus_len: b.u32(20)?,
        checksum: b.u8(24)?,
        compress: b.u8(25)?,
        slots: b.u8(26)?,
        flags: b.u8(27)?,
        raw: raw_object(b)?,
    };
    block(record.block_size.into())?;
    let room = usize::from(record.slots.max(1)) * crate::dmu::DNODE_SLOT;
    let raw_len = record.raw.map_or(0, |raw| raw.bonus_len);
    if record.slots > MAX_SLOTS || record.bonus_len.max(raw_len) as usize > room {
        return invalid(format!("object {}: {} bytes of bonus", record.object, record.bonus_len));
    }
    Ok(record)
}

fn write(b: &Bytes<'_>) -> Result<WriteRecord> {
    let record = WriteRecord {
        object: b.u64(0)?,
        kind: dmu_type(b.u32(8)?)?,
        offset: b.u64(16)?,
        logical_size: block(b.u64(24)?)?,
        checksum: b.u8(40)?,
        flags: b.u8(41)?,
        compression: b.u8(42)?,
        compressed_size: b.u64(88)?,
        key: b.u64s(48)?,
        seal: seal_if_any(b, 96)?,
    };
    packed(record.compression, record.compressed_size)?;
    Ok(record)
}

fn spill(b: &Bytes<'_>) -> Result<SpillRecord> {
    let record = SpillRecord {
        object: b.u64(0)?,
        length: block(b.u64(8)?)?,
        flags: b.u8(24)?,
        compression: b.u8(25)?,
        compressed_size: b.u64(32)?,
        seal: seal_if_any(b, 40)?,
    };
    packed(record.compression, record.compressed_size)?;
    Ok(record)
}

fn embedded(b: &Bytes<'_>) -> Result<EmbeddedRecord> {
    let record = EmbeddedRecord {
        object: b.u64(0)?,
        offset: b.u64(8)?,
        length: block(b.u64(16)?)?,
        compression: b.u8(32)?,
        etype: b.u8(33)?,
        lsize: b.u32(40)?,
        psize: b.u32(44)?,
    };
    if record.psize as usize > EMBEDDED_PAYLOAD || u64::from(record.lsize) > MAX_BLOCK {
        let (lsize, psize) = (record.lsize, record.psize);
        return invalid(format!("an embedded block of {lsize} bytes in {psize}"));
    }
    Ok(record)
}
