//! The records of a stream (`do_dump`, `dmu_dump_write`): what was found becomes records, with what was read behind
//! them.
//!
//! Free ranges that touch each other become one record, in the way in which OpenZFS joins them, so that the same
//! snapshot gives the same bytes. END, and so every record before it, is written only if all was.

use super::walk::{Data, Item, OLD_MAX_BLOCK};
use super::{Params, Progress, Result, SendError};
use cenote_dmu::Error;
use cenote_dmu::object::SPILL_BLKID;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::crypt::Seal;
use cenote_format::dmu::DmuType;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_format::stream::{
    Begin, CHECKSUM_DEDUP, EmbeddedRecord, Encoder, RECORD_SIZE, Record, SPILL_UNMODIFIED,
    SpillRecord, TO_END, WriteRecord, feature,
};
use cenote_format::{ByteOrder, turn};
use cenote_store::{Block, BlockError};
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

/// What was read of an item.
pub(super) enum Read {
    /// Nothing.
    Nothing,
    /// A block, unpacked.
    Plain(std::result::Result<Block, BlockError>),
    /// A block as it is on disk, compressed; in a raw stream encrypted as well.
    Packed(std::result::Result<Abd, BlockError>),
}

/// Number of the first compression function that is a feature (`ZIO_COMPRESS_LEGACY_FUNCTIONS`): lz4.
const FIRST_FEATURE: u8 = 15;
/// Number of zstd.
const ZSTD: u8 = 16;
/// Number of the checksum function "off".
const CHECKSUM_OFF: u8 = 2;
/// Number of the compression function "off".
const COMPRESS_OFF: u8 = 2;
/// Embedded type of data (`BP_EMBEDDED_TYPE_DATA`).
const EMBEDDED_DATA: u8 = 0;

/// How to read the bytes of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// They are in the block pointer.
    Pointer,
    /// As they are on disk.
    Packed,
    /// Encrypted, or with a MAC, as they are on disk.
    Raw,
    /// Unpacked.
    Plain,
}

/// How the data of an item is read.
pub(super) fn how(item: &Item, features: u64) -> How {
    let Item::Data(data) = item else { return How::Pointer };
    let (bp, has) = (&data.bp, |bit: u64| features & bit != 0);
    if has(feature::RAW) {
        return How::Raw;
    }
    let compression = bp.compression();
    // The receiver may not take it whole.
    let split = bp.lsize() > OLD_MAX_BLOCK && !has(feature::LARGE_BLOCKS);
    if bp.is_embedded() {
        let known = compression < FIRST_FEATURE || has(feature::LZ4);
        let known = known && (compression != ZSTD || has(feature::ZSTD));
        let sent = known
            && !split
            && data.blkid != SPILL_BLKID
            && is_native(bp)
            && bp.checksum_type() == EMBEDDED_DATA
            && has(feature::EMBED_DATA);
        return if sent { How::Pointer } else { How::Plain };
    }
    let packed = has(feature::COMPRESSED)
        && !split
        && is_native(bp)
        && compression != COMPRESS_OFF
        && !DmuType(bp.object_type()).is_metadata();
    if packed { How::Packed } else { How::Plain }
}

/// Whether what is in the block is as this machine would have written it.
fn is_native(bp: &BlockPointer) -> bool {
    bp.byte_order() == ByteOrder::Little || turn::has_no_order(DmuType(bp.object_type()))
}

/// What is written behind a record.
#[derive(Clone, Copy)]
enum Payload<'a> {
    Nothing,
    Bytes(&'a [u8]),
    /// A block, or a part of one.
    Data(&'a Abd),
    /// So many bytes that are counted only.
    Length(u64),
}

impl Payload<'_> {
    fn len(&self) -> u64 {
        match self {
            Payload::Nothing => 0,
            Payload::Bytes(bytes) => bytes.len() as u64,
            Payload::Data(data) => data.len() as u64,
            Payload::Length(length) => *length,
        }
    }
}

/// The receiver of a stream, and the counters of its progress.
pub(super) struct Output<'a> {
    pub to: &'a mut dyn Write,
    pub progress: &'a Progress,
}

/// Writes records, or only counts their bytes.
pub(super) struct Emitter<'a> {
    objset: u64,
    params: &'a Params,
    /// FREE, REDACT and FREEOBJECTS that may still grow.
    pending: Option<Record>,
    encoder: Encoder,
    /// `None`: nothing is written.
    out: Option<Output<'a>>,
    /// Bytes written or counted.
    bytes: u64,
    /// The last object of which there is a record.
    last: u64,
}

impl<'a> Emitter<'a> {
    /// Writes BEGIN, with a packed list behind it.
    pub(super) fn new(
        objset: u64,
        params: &'a Params,
        (begin, list): (Begin, &[u8]),
        out: Option<Output<'a>>,
    ) -> Result<Emitter<'a>> {
        let encoder = Encoder::new(begin.to_guid);
        let mut emitter =
            Emitter { objset, params, pending: None, encoder, out, bytes: 0, last: 0 };
        emitter.write(&Record::Begin(begin), Payload::Bytes(list))?;
        Ok(emitter)
    }

    /// Writes END, if the stream is `whole`. Returns the bytes of all of it.
    pub(super) fn finish(mut self, whole: bool) -> Result<u64> {
        self.settle()?;
        let end = self.encoder.end()?;
        let end = if whole { &end[..] } else { &[] };
        self.bytes += end.len() as u64;
        if let Some(out) = self.out {
            out.to.write_all(end)?;
            out.to.flush()?;
        }
        Ok(self.bytes)
    }

    /// Writes the records of an item (`do_dump`).
    pub(super) fn item(&mut self, item: Item, read: Read) -> Result<()> {
        if let Some(out) = &self.out {
            out.progress.blocks.fetch_add(1, Relaxed);
        }
        let how = how(&item, self.params.features);
        let data = match item {
            Item::Object(record, bonus) => {
                // Batches are read side by side, and come in their order.
                let (last, object) = (self.last, record.object);
                invariant!(last < object, "object {object} is sent after object {last}");
                self.last = object;
                return self.record(&Record::Object(record), Payload::Bytes(&bonus));
            }
            Item::FreeObjects { first, count } => return self.free_objects(first, count),
            Item::Free { object, offset, length } => return self.free(object, offset, length),
            Item::Redact { object, offset, length } => {
                return self.redact(object, offset, length);
            }
            Item::ObjectRange(range) => {
                return self.record(&Record::ObjectRange(range), Payload::Nothing);
            }
            Item::Data(data) => data,
        };
        match (how, read) {
            (How::Pointer, _) => self.embedded(&data),
            (How::Raw, Read::Packed(physical)) => {
                let physical = physical.map_err(Error::from)?;
                self.raw(&data, Payload::Data(&physical))
            }
            (How::Raw, _) => self.raw(&data, Payload::Length(data.bp.psize())),
            (_, Read::Plain(block)) => {
                let block = block.map_err(Error::from)?;
                let kind = DmuType(data.bp.object_type());
                if block.order == ByteOrder::Little || turn::has_no_order(kind) {
                    return self.plain(&data, Payload::Data(&block.data));
                }
                let mut turned = block.data.to_vec();
                turn::from_big_endian(kind, &mut turned);
                self.plain(&data, Payload::Data(&Abd::from_vec(turned)))
            }
            (_, Read::Packed(physical)) => {
                let physical = physical.map_err(Error::from)?;
                self.packed(&data, Payload::Data(&physical))
            }
            (How::Plain, Read::Nothing) => self.plain(&data, Payload::Length(data.bp.lsize())),
            (How::Packed, Read::Nothing) => self.packed(&data, Payload::Length(data.bp.psize())),
        }
    }

    /// A block that is sent unpacked, in pieces if the receiver may not take it whole.
    fn plain(&mut self, data: &Data, payload: Payload<'_>) -> Result<()> {
        let length = payload.len();
        if data.blkid == SPILL_BLKID {
            let unmodified = data.bp.logical_birth() <= self.params.from_txg;
            let record = SpillRecord {
                object: data.object,
                length,
                flags: if unmodified { SPILL_UNMODIFIED } else { 0 },
                compression: 0,
                compressed_size: 0,
                seal: None,
            };
            return self.record(&Record::Spill(record), payload);
        }
        if self.params.features & feature::LARGE_BLOCKS != 0 || length <= OLD_MAX_BLOCK {
            return self.record(&Record::Write(write_record(data, None)), payload);
        }
        let mut at = 0;
        while at < length {
            let part = OLD_MAX_BLOCK.min(length - at);
            let record = WriteRecord {
                offset: data.offset.saturating_add(at),
                logical_size: part,
                checksum: CHECKSUM_OFF,
                flags: 0,
                key: [0; 5],
                ..write_record(data, None)
            };
            let piece = match payload {
                Payload::Data(block) => match block.slice(at as usize, part as usize) {
                    None => broken(format_args!("{part} bytes at {at} of a block of {length}")),
                    piece => piece,
                },
                _ => None,
            };
            let payload = piece.as_ref().map_or(Payload::Length(part), Payload::Data);
            self.record(&Record::Write(record), payload)?;
            at += part;
        }
        Ok(())
    }

    fn packed(&mut self, data: &Data, payload: Payload<'_>) -> Result<()> {
        self.record(&Record::Write(write_record(data, Some(How::Packed))), payload)
    }

    /// A block as it is on disk, with its protection.
    fn raw(&mut self, data: &Data, payload: Payload<'_>) -> Result<()> {
        let bp = &data.bp;
        if bp.byte_order() == ByteOrder::Big || !bp.uses_crypt() || bp.is_embedded() {
            let object = data.object;
            let why = format!("object {object} has a block that raw streams do not have");
            return Err(SendError::Refused(why));
        }
        let seal = Some(Seal::of(bp));
        if data.blkid == SPILL_BLKID {
            let unmodified = bp.logical_birth() <= self.params.from_txg;
            let record = SpillRecord {
                object: data.object,
                length: bp.lsize(),
                flags: if unmodified { SPILL_UNMODIFIED } else { 0 },
                compression: bp.compression(),
                compressed_size: bp.psize(),
                seal,
            };
            return self.record(&Record::Spill(record), payload);
        }
        let mut record = WriteRecord { seal, ..write_record(data, Some(How::Raw)) };
        // `DDK_SET_CRYPT`.
        record.key[4] |= 1 << 39;
        self.record(&Record::Write(record), payload)
    }

    /// A block that lies in its pointer (`dump_write_embedded`).
    fn embedded(&mut self, data: &Data) -> Result<()> {
        let decode = |source| Error::Decode { objset: self.objset, object: data.object, source };
        let mut payload = data.bp.embedded_payload().map_err(decode)?;
        let record = EmbeddedRecord {
            object: data.object,
            offset: data.offset,
            length: data.bp.lsize(),
            compression: data.bp.compression(),
            etype: data.bp.checksum_type(),
            lsize: data.bp.lsize() as u32,
            psize: data.bp.psize() as u32,
        };
        payload.resize(payload.len().next_multiple_of(8), 0);
        self.record(&Record::WriteEmbedded(record), Payload::Bytes(&payload))
    }

    /// A FREE record, or more of the one before (`dump_free`).
    fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length);
        if let Some(Record::Free { object: same, offset: from, length: before }) = &mut self.pending
            && *same == object
            && from.checked_add(*before) == Some(offset)
        {
            *before = match end {
                Some(_) => *before + length,
                None => TO_END,
            };
            return Ok(());
        }
        self.settle()?;
        let to_end = length == TO_END;
        let length = if end.is_some() { length } else { TO_END };
        let record = Record::Free { object, offset, length };
        if to_end {
            return self.write(&record, Payload::Nothing);
        }
        self.pending = Some(record);
        Ok(())
    }

    /// A REDACT record, or more of the one before (`dump_redact`).
    fn redact(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        if let Some(Record::Redact { object: same, offset: from, length: before }) =
            &mut self.pending
            && *same == object
            && from.checked_add(*before) == Some(offset)
        {
            *before = before.saturating_add(length);
            return Ok(());
        }
        self.settle()?;
        self.pending = Some(Record::Redact { object, offset, length });
        Ok(())
    }

    /// A FREEOBJECTS record, or more of the one before (`dump_freeobjects`).
    fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        if let Some(Record::FreeObjects { first: from, count: before }) = &mut self.pending
            && from.checked_add(*before) == Some(first)
        {
            *before = before.saturating_add(count);
            return Ok(());
        }
        self.settle()?;
        self.pending = Some(Record::FreeObjects { first, count });
        Ok(())
    }

    /// Writes what may have grown.
    fn settle(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(record) => self.write(&record, Payload::Nothing),
            None => Ok(()),
        }
    }

    /// Writes a record behind what is pending.
    fn record(&mut self, record: &Record, payload: Payload<'_>) -> Result<()> {
        self.settle()?;
        self.write(record, payload)
    }

    fn write(&mut self, record: &Record, payload: Payload<'_>) -> Result<()> {
        let (told, has) = (record.payload_len(), payload.len());
        // The receiver would take what follows for the next record. A pointer on disk may name a compression that no block has.
        if told != has {
            let why = format!("{has} bytes go with a record that tells {told}: {record:?}");
            return Err(SendError::Refused(why));
        }
        let length = RECORD_SIZE as u64 + payload.len();
        self.bytes += length;
        let Some(out) = &mut self.out else { return Ok(()) };
        out.to.write_all(&self.encoder.record(record)?)?;
        let encoder = &mut self.encoder;
        let mut put = |bytes: &[u8]| {
            encoder.payload(bytes);
            out.to.write_all(bytes)
        };
        match payload {
            Payload::Bytes(bytes) => put(bytes)?,
            Payload::Data(data) => data.chunks().try_for_each(&mut put)?,
            Payload::Nothing => {}
            Payload::Length(length) => {
                broken(format_args!("{length} bytes are told of and not sent: {record:?}"))
            }
        }
        out.progress.bytes.fetch_add(length, Relaxed);
        Ok(())
    }
}

/// The record of a whole block (`dmu_dump_write`). `packed`: how it is sent as it is on disk.
fn write_record(data: &Data, packed: Option<How>) -> WriteRecord {
    let bp = &data.bp;
    let (is_raw, packed) = (packed == Some(How::Raw), packed.is_some());
    let mut record = WriteRecord {
        object: data.object,
        kind: data.kind,
        offset: data.offset,
        logical_size: bp.lsize(),
        checksum: CHECKSUM_OFF,
        flags: 0,
        compression: if packed { bp.compression() } else { 0 },
        compressed_size: if packed { bp.psize() } else { 0 },
        key: [0; 5],
        seal: None,
    };
    // The checksum of what is encrypted says nothing of what is sent decrypted.
    if !bp.is_embedded() && (is_raw || !bp.uses_crypt()) {
        record.checksum = bp.checksum_type();
        if Checksum::from_u8(record.checksum).is_ok_and(Checksum::is_dedup) {
            record.flags |= CHECKSUM_DEDUP;
        }
        let sectors = |bytes: u64| (bytes >> cenote_format::SECTOR_SHIFT) - 1;
        let properties =
            sectors(bp.lsize()) | sectors(bp.psize()) << 16 | u64::from(bp.compression()) << 32;
        let [a, b, c, d] = bp.checksum();
        record.key = [a, b, c, d, properties];
    }
    record
}
