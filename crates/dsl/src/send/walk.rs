//! What is going to be sent, found by walking the dnodes that changed, and the blocks of each.

use super::{DNODES, FIRST_DNODE, Params, Result, SendError, max_objects};
use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::{Changed, Error, Object, ObjectSet};
use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::stream::{OBJECT_SPILL, ObjectRecord, TO_END, feature};
use std::sync::Arc;

/// Logical bytes of data in a batch, but for its last block.
const BATCH_BYTES: u64 = 2 << 20;
/// Most items of a batch.
const BATCH_LENGTH: usize = 1024;
/// Largest block that every receiver takes (`SPA_OLD_MAXBLOCKSIZE`).
pub(super) const OLD_MAX_BLOCK: u64 = 128 << 10;

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

/// Collects items into batches. `put` takes a batch that is full, with the logical bytes of its data; its error ends the
/// walk.
pub(super) struct Walk<'a> {
    objset: &'a Arc<ObjectSet>,
    params: &'a Params,
    put: &'a mut dyn FnMut(Vec<Item>, u64) -> Result<()>,
    items: Vec<Item>,
    bytes: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        objset: &'a Arc<ObjectSet>,
        params: &'a Params,
        put: &'a mut dyn FnMut(Vec<Item>, u64) -> Result<()>,
    ) -> Walk<'a> {
        Walk { objset, params, put, items: Vec::new(), bytes: 0 }
    }

    /// Walks the blocks of dnodes that changed, and every object in them (`send_traverse_thread`). What lies before
    /// the point that a stream is resumed at is left out.
    pub(super) fn objects(mut self) -> Result<()> {
        let meta = self.objset.special(cenote_dmu::objset::META_DNODE)?;
        let resumed = self.params.resume.map_or(0, |at| at.object);
        meta.walk_changed(self.params.from_txg, &mut |changed: Changed| {
            let first = changed.first.saturating_mul(DNODES);
            let count = changed.span.saturating_mul(DNODES);
            if first.saturating_add(count) <= resumed {
                return Ok(());
            }
            if changed.bp.is_hole() {
                return self.push(Item::FreeObjects { first, count });
            }
            let mut number = first.max(FIRST_DNODE);
            while number < first.saturating_add(DNODES) {
                match self.objset.object(number) {
                    Ok(object) => {
                        if number >= resumed {
                            self.object(&object)?;
                        }
                        number += 1 + u64::from(object.dnode().extra_slots);
                    }
                    Err(Error::NoObject { .. }) => {
                        if number >= resumed {
                            self.push(Item::FreeObjects { first: number, count: 1 })?;
                        }
                        number += 1;
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(())
        })?;
        self.flush()
    }

    /// An object: its record, what is free behind its last block, its spill block if that did not change, then the
    /// blocks that did (`dump_dnode`).
    fn object(&mut self, object: &Object) -> Result<()> {
        let dnode = object.dnode();
        let number = object.number();
        if object.order() == ByteOrder::Big {
            let why = format!("object {number} was written in big-endian byte order");
            return Err(SendError::Refused(why));
        }
        let large = self.params.features & feature::LARGE_BLOCKS != 0;
        let block_size = if large { dnode.block_size } else { dnode.block_size.min(OLD_MAX_BLOCK) };
        let record = ObjectRecord {
            object: number,
            kind: dnode.kind,
            bonus_kind: dnode.bonus_kind,
            block_size: block_size as u32,
            bonus_len: dnode.bonus.len() as u32,
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
        let spill = dnode.spill.filter(|bp| !bp.is_hole());
        let (old, new) = match spill {
            Some(bp) if bp.logical_birth() <= self.params.from_txg => (Some(bp), None),
            other => (None, other),
        };
        old.map_or(Ok(()), |bp| self.spill(number, bp))?;
        self.blocks(object)?;
        new.map_or(Ok(()), |bp| self.spill(number, bp))
    }

    /// The changed blocks of an object.
    fn blocks(&mut self, object: &Object) -> Result<()> {
        let dnode = object.dnode();
        let (number, block_size, kind) = (object.number(), dnode.block_size, dnode.kind);
        let resume = self.params.resume.filter(|at| at.object == number);
        let resumed = resume.map_or(0, |at| at.offset / block_size.max(1));
        object.walk_changed(self.params.from_txg, &mut |changed: Changed| {
            // Holes behind the end are sent of metadata only.
            if !kind.is_metadata() && changed.first > dnode.max_block {
                return Ok(());
            }
            if changed.first.saturating_add(changed.span) <= resumed {
                return Ok(());
            }
            let Some(offset) = changed.first.checked_mul(block_size) else { return Ok(()) };
            if changed.bp.is_hole() {
                let end = changed.first.checked_add(changed.span);
                let end = end.and_then(|end| end.checked_mul(block_size)).unwrap_or(u64::MAX);
                let length = end.saturating_sub(offset);
                return self.push(Item::Free { object: number, offset, length });
            }
            let (blkid, bp) = (changed.first, changed.bp);
            self.push(Item::Data(Data { object: number, kind, blkid, offset, bp }))
        })
    }

    fn spill(&mut self, object: u64, bp: BlockPointer) -> Result<()> {
        let kind = DmuType::SA;
        self.push(Item::Data(Data { object, kind, blkid: SPILL_BLKID, offset: 0, bp }))
    }

    /// Numbers that the meta dnode has no room for are not said to be free.
    fn push(&mut self, item: Item) -> Result<()> {
        let item = match item {
            Item::FreeObjects { first, count } => {
                let max = max_objects(self.objset);
                if first >= max {
                    return Ok(());
                }
                Item::FreeObjects { first, count: count.min(max - first) }
            }
            item => item,
        };
        if let Item::Data(data) = &item {
            self.bytes = self.bytes.saturating_add(data.bp.lsize());
        }
        self.items.push(item);
        match self.bytes >= BATCH_BYTES || self.items.len() >= BATCH_LENGTH {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        match std::mem::take(&mut self.items) {
            items if items.is_empty() => Ok(()),
            items => (self.put)(items, bytes),
        }
    }
}
