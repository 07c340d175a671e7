//! What is going to be sent, in order; data is read in batches just before it is written out.

use super::{QUEUE_BYTES, QUEUE_LENGTH, Result, SendError, has_no_order, max_objects};
use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::{Error, Object, ObjectSet};
use cenote_format::ByteOrder;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::dmu::DmuType;
use cenote_format::stream::{
    Begin, CHECKSUM_DEDUP, EmbeddedRecord, Encoder, OBJECT_SPILL, ObjectRecord, Record,
    SPILL_UNMODIFIED, SpillRecord, TO_END, WriteRecord, feature,
};
use cenote_store::{Block, BlockError, Bookmark};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

/// Largest block that every receiver takes (`SPA_OLD_MAXBLOCKSIZE`).
const OLD_MAX_BLOCK: u64 = 128 << 10;
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

/// A block of data.
#[derive(Debug)]
pub(super) struct Data {
    pub object: u64,
    pub kind: DmuType,
    pub blkid: u64,
    /// Byte in the object.
    pub offset: u64,
    pub bp: BlockPointer,
}

/// What is going to be sent.
#[derive(Debug)]
pub(super) enum Item {
    /// An object with its bonus buffer.
    Object(ObjectRecord, Vec<u8>),
    /// Objects that are not there.
    FreeObjects { first: u64, count: u64 },
    /// A hole.
    Free { object: u64, offset: u64, length: u64 },
    /// Data.
    Data(Data),
}

/// How the bytes of a block are to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// They are in the block pointer.
    Pointer,
    /// As they are on disk.
    Packed,
    /// Unpacked.
    Plain,
}

/// The queue with the stream behind it.
pub(super) struct Queue<'a> {
    objset: Arc<ObjectSet>,
    features: u64,
    from_txg: u64,
    /// FREE and FREEOBJECTS that may still grow.
    pending: Option<Record>,
    items: Vec<Item>,
    bytes: u64,
    encoder: Encoder,
    out: &'a mut dyn Write,
}

impl<'a> Queue<'a> {
    /// Writes BEGIN.
    pub(super) fn new(
        objset: Arc<ObjectSet>,
        begin: Begin,
        from_txg: u64,
        out: &'a mut dyn Write,
    ) -> Result<Queue<'a>> {
        let mut queue = Queue {
            objset,
            features: begin.features,
            from_txg,
            pending: None,
            items: Vec::new(),
            bytes: 0,
            encoder: Encoder::new(begin.to_guid),
            out,
        };
        queue.write(&Record::Begin(begin), &[])?;
        Ok(queue)
    }

    /// Queues an object: its record, what is free behind its last block, and its spill block if that did
    /// not change (`dump_dnode`).
    pub(super) fn object(&mut self, object: &Object) -> Result<()> {
        let dnode = object.dnode();
        if object.order() == ByteOrder::Big {
            let why = format!("object {} was written in big-endian byte order", object.number());
            return Err(SendError::Refused(why));
        }
        let number = object.number();
        let large = self.features & feature::LARGE_BLOCKS != 0;
        let block_size = if large { dnode.block_size } else { dnode.block_size.min(OLD_MAX_BLOCK) };
        let bonus_len = dnode.bonus.len() as u32;
        let record = ObjectRecord {
            object: number,
            kind: dnode.kind,
            bonus_kind: dnode.bonus_kind,
            block_size: block_size as u32,
            bonus_len,
            checksum: dnode.checksum,
            compress: dnode.compress,
            slots: dnode.extra_slots.saturating_add(1),
            flags: if dnode.spill.is_some() { OBJECT_SPILL } else { 0 },
        };
        let mut bonus = dnode.bonus.clone();
        bonus.resize(bonus.len().next_multiple_of(8), 0);
        self.push(Item::Object(record, bonus))?;
        let offset = dnode.max_block.saturating_add(1).saturating_mul(dnode.block_size);
        self.push(Item::Free { object: number, offset, length: TO_END })?;
        match dnode.spill {
            Some(bp) if !bp.is_hole() && bp.logical_birth() <= self.from_txg => {
                self.spill(number, bp)
            }
            _ => Ok(()),
        }
    }

    /// Queues a spill block.
    pub(super) fn spill(&mut self, object: u64, bp: BlockPointer) -> Result<()> {
        let kind = DmuType::SA;
        self.push(Item::Data(Data { object, kind, blkid: SPILL_BLKID, offset: 0, bp }))
    }

    /// Queues an item.
    pub(super) fn push(&mut self, item: Item) -> Result<()> {
        if let Item::Data(data) = &item {
            self.bytes = self.bytes.saturating_add(data.bp.lsize());
        }
        self.items.push(item);
        match self.bytes >= QUEUE_BYTES || self.items.len() >= QUEUE_LENGTH {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes what is queued, and END.
    pub(super) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.settle()?;
        let end = self.encoder.end()?;
        self.out.write_all(&end)?;
        Ok(self.out.flush()?)
    }

    fn how(&self, data: &Data) -> How {
        let (bp, has) = (&data.bp, |bit: u64| self.features & bit != 0);
        let compression = bp.compression();
        if bp.is_embedded() {
            let known = compression < FIRST_FEATURE || has(feature::LZ4);
            let known = known && (compression != ZSTD || has(feature::ZSTD));
            let sent = known
                && data.blkid != SPILL_BLKID
                && bp.checksum_type() == EMBEDDED_DATA
                && has(feature::EMBED_DATA);
            return if sent { How::Pointer } else { How::Plain };
        }
        let split = bp.lsize() > OLD_MAX_BLOCK && !has(feature::LARGE_BLOCKS);
        let packed = has(feature::COMPRESSED)
            && !split
            && bp.byte_order() == ByteOrder::Little
            && compression != COMPRESS_OFF
            && !DmuType(bp.object_type()).is_metadata();
        if packed { How::Packed } else { How::Plain }
    }

    /// Reads the data of all items as two batches, and writes all records.
    fn flush(&mut self) -> Result<()> {
        let items = std::mem::take(&mut self.items);
        self.bytes = 0;
        let (mut plain, mut packed) = (Vec::new(), Vec::new());
        for item in &items {
            if let Item::Data(data) = item {
                let (objset, object, blkid) = (self.objset.id(), data.object, data.blkid);
                let request = (data.bp, Bookmark { objset, object, level: 0, blkid });
                match self.how(data) {
                    How::Plain => plain.push(request),
                    How::Packed => packed.push(request),
                    How::Pointer => {}
                }
            }
        }
        let store = self.objset.store().clone();
        let mut plain: VecDeque<_> = store.read_many(&plain).into();
        let mut packed: VecDeque<_> = store.read_many_physical(&packed).into();
        for item in items {
            match item {
                Item::Object(record, bonus) => self.record(&Record::Object(record), &bonus)?,
                Item::FreeObjects { first, count } => self.free_objects(first, count)?,
                Item::Free { object, offset, length } => self.free(object, offset, length)?,
                Item::Data(data) => match self.how(&data) {
                    How::Pointer => self.embedded(&data)?,
                    How::Plain => self.plain(&data, take(&mut plain, &data)?)?,
                    How::Packed => self.packed(&data, take(&mut packed, &data)?)?,
                },
            }
        }
        Ok(())
    }

    fn plain(&mut self, data: &Data, block: Block) -> Result<()> {
        if block.order == ByteOrder::Big && !has_no_order(data.kind) {
            let why = format!("object {} was written in big-endian byte order", data.object);
            return Err(SendError::Refused(why));
        }
        let bytes = block.data.bytes();
        if data.blkid == SPILL_BLKID {
            let unmodified = data.bp.logical_birth() <= self.from_txg;
            let record = SpillRecord {
                object: data.object,
                length: bytes.len() as u64,
                flags: if unmodified { SPILL_UNMODIFIED } else { 0 },
                compression: 0,
                compressed_size: 0,
            };
            return self.record(&Record::Spill(record), &bytes);
        }
        let whole =
            self.features & feature::LARGE_BLOCKS != 0 || bytes.len() as u64 <= OLD_MAX_BLOCK;
        if whole {
            return self.record(&Record::Write(write_record(data, false)), &bytes);
        }
        let mut offset = data.offset;
        for part in bytes.chunks(OLD_MAX_BLOCK as usize) {
            let record = WriteRecord {
                offset,
                logical_size: part.len() as u64,
                checksum: CHECKSUM_OFF,
                flags: 0,
                key: [0; 5],
                ..write_record(data, false)
            };
            self.record(&Record::Write(record), part)?;
            offset = offset.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    fn packed(&mut self, data: &Data, physical: Abd) -> Result<()> {
        self.record(&Record::Write(write_record(data, true)), &physical.bytes())
    }

    fn embedded(&mut self, data: &Data) -> Result<()> {
        let decode =
            |source| Error::Decode { objset: self.objset.id(), object: data.object, source };
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
        self.record(&Record::WriteEmbedded(record), &payload)
    }

    /// A FREE record, or more of the one before (`dump_free`).
    fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length);
        if let Some(Record::Free { object: same, offset: from, length: before }) = &mut self.pending
            && *same == object
            && from.checked_add(*before) == Some(offset)
        {
            *before = match end {
                Some(_) => before.saturating_add(length),
                None => TO_END,
            };
            return Ok(());
        }
        self.settle()?;
        let to_end = length == TO_END;
        let length = if end.is_some() { length } else { TO_END };
        let record = Record::Free { object, offset, length };
        if to_end {
            return self.write(&record, &[]);
        }
        self.pending = Some(record);
        Ok(())
    }

    /// A FREEOBJECTS record, or more of the one before (`dump_freeobjects`). Numbers that the meta dnode has no
    /// room for are not said to be free.
    fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        let max = max_objects(&self.objset);
        if first >= max {
            return Ok(());
        }
        let count = count.min(max - first);
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
            Some(record) => self.write(&record, &[]),
            None => Ok(()),
        }
    }

    /// Writes a record behind what is pending.
    fn record(&mut self, record: &Record, payload: &[u8]) -> Result<()> {
        self.settle()?;
        self.write(record, payload)
    }

    fn write(&mut self, record: &Record, payload: &[u8]) -> Result<()> {
        self.out.write_all(&self.encoder.record(record)?)?;
        self.encoder.payload(payload);
        Ok(self.out.write_all(payload)?)
    }
}

/// The next of what was read.
fn take<T>(read: &mut VecDeque<std::result::Result<T, BlockError>>, data: &Data) -> Result<T> {
    match read.pop_front() {
        Some(result) => Ok(result.map_err(Error::from)?),
        None => Err(SendError::Refused(format!("object {}: a block was not read", data.object))),
    }
}

/// The record of a whole block (`dmu_dump_write`).
fn write_record(data: &Data, packed: bool) -> WriteRecord {
    let bp = &data.bp;
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
    };
    if !bp.is_embedded() {
        record.checksum = bp.checksum_type();
        if Checksum::from_u8(record.checksum).is_ok_and(Checksum::is_dedup) {
            record.flags |= CHECKSUM_DEDUP;
        }
        let sectors = |bytes: u64| (bytes >> cenote_format::SECTOR_SHIFT).saturating_sub(1);
        let properties =
            sectors(bp.lsize()) | sectors(bp.psize()) << 16 | u64::from(bp.compression()) << 32;
        let [a, b, c, d] = bp.checksum();
        record.key = [a, b, c, d, properties];
    }
    record
}
