//! What is going to be sent (`send_cb`, `send_traverse_thread`): a [walk](traverse) over the objects that changed,
//! and the blocks of each.
//!
//! The walk goes down only where blocks were born after the transaction group that the stream starts from. For each
//! object that it meets comes its record, the range behind its last block as free, and its spill block if that did
//! not change (`dump_dnode`); then its changed blocks and holes. Free dnodes become free objects.
//! What a redaction list names comes in between, or in the place of what changed ([`Lists`]).
//!
//! Data is not read here: an item has the block pointer, and the pipeline reads it. Items go out in batches, which
//! are bounded in number and in bytes of data.
//!
//! Invariants: an indirect block that is linked twice ends the walk as damage, so a hostile pool cannot make it
//! endless. No object behind the last one to be sent, and no number that the meta dnode has no room for, is
//! named. What a big-endian machine wrote is turned, but in raw streams, where it is refused.

use super::redact::{At, Fate, Lists, Piece};
use super::{Params, Result, SendError, max_objects, raw};
use crate::traverse::{self, DNODES, Mark, Place, Stopped, Traversal, Visitor};
use cenote_dmu::object::SPILL_BLKID;
use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Error, ObjectSet, Tree};
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::crypt::Seal;
use cenote_format::dmu::DmuType;
use cenote_format::stream::{OBJECT_SPILL, ObjectRecord, RangeRecord, TO_END, feature};
use cenote_format::{ByteOrder, turn};
use cenote_store::Bookmark;
use std::collections::HashSet;
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
    /// Data that is left out.
    Redact { object: u64, offset: u64, length: u64 },
    /// Data.
    Data(Data),
    /// A block of dnodes of a raw stream.
    ObjectRange(RangeRecord),
}

/// Collects items into batches. `put` takes a batch that is full, with the logical bytes of its data; its error ends
/// the walk.
pub(super) struct Walk<'a> {
    objset: &'a Arc<ObjectSet>,
    params: &'a Params,
    put: &'a mut dyn FnMut(Vec<Item>, u64) -> Result<()>,
    items: Vec<Item>,
    bytes: u64,
    lists: Lists,
    /// Indirect blocks that were met: of the meta dnode, and of the object.
    seen: [HashSet<Dva>; 2],
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        objset: &'a Arc<ObjectSet>,
        params: &'a Params,
        lists: Lists,
        put: &'a mut dyn FnMut(Vec<Item>, u64) -> Result<()>,
    ) -> Walk<'a> {
        Walk { objset, params, put, items: Vec::new(), bytes: 0, lists, seen: Default::default() }
    }

    /// Walks every object in the blocks of dnodes that changed (`send_traverse_thread`), from the point on that a
    /// stream is resumed at.
    pub(super) fn objects(mut self) -> Result<()> {
        let objset = self.objset;
        let mark = |at: super::Resume| -> Result<Mark> {
            let block_size = objset.object(at.object)?.dnode().block_size.max(1);
            Ok(Mark { object: at.object, blkid: at.offset / block_size })
        };
        let resume = self.params.resume.map(mark).transpose()?;
        let walked =
            Traversal::new(objset.store(), objset.id(), resume, &mut self).objects(objset.phys());
        walked.map_err(|stopped| stopped.why)?;
        self.lists_before((u64::MAX, u64::MAX))?;
        self.flush()
    }

    /// What the lists have that comes before a place of the walk.
    fn lists_before(&mut self, at: At) -> Result<()> {
        while let Some(piece) = self.lists.before(at)? {
            let Piece { object, first, end, left_out } = piece;
            match left_out {
                Some(size) => self.left_out(object, (first, end), size)?,
                None => self.again(object, (first, end))?,
            }
        }
        Ok(())
    }

    /// Blocks that are left out.
    fn left_out(&mut self, object: u64, (first, end): (u64, u64), size: u64) -> Result<()> {
        let (Some(offset), Some(end)) = (first.checked_mul(size), end.checked_mul(size)) else {
            let why = format!("object {object} has no block {first} of {size} bytes to leave out");
            return Err(SendError::Refused(why));
        };
        self.push(Item::Redact { object, offset, length: end - offset })
    }

    /// Blocks that the start of the stream left out, as they are now (`send_reader_thread`).
    fn again(&mut self, number: u64, (first, end): (u64, u64)) -> Result<()> {
        if self.is_behind(number) {
            return Ok(());
        }
        let object = match self.objset.object(number) {
            Err(Error::NoObject { .. }) => return Ok(()),
            found => found?,
        };
        let objset = self.objset;
        let end = end.min(object.dnode().max_block.saturating_add(1));
        let resume = Some(Mark { object: number, blkid: first });
        let mut again = Again { walk: self, first, end, seen: HashSet::new() };
        let walk = Traversal::new(objset.store(), objset.id(), resume, &mut again);
        // Entries are short: little is read ahead.
        match walk.one_of(traverse::AHEAD_BLOCKS).dnode(number, object.dnode()) {
            Err(Stopped { why: Some(why), .. }) => Err(why),
            Ok(()) | Err(Stopped { why: None, .. }) => Ok(()),
        }
    }

    /// A hole, or a block of data.
    fn block(&mut self, place: &Place<'_>) -> Result<()> {
        let Place { tree, node } = place;
        let (object, dnode, (first, end)) = (tree.object, tree.dnode, place.span());
        let (kind, block_size) = (dnode.kind, dnode.block_size);
        // Holes behind the end are sent of metadata only.
        if !kind.is_metadata() && first > dnode.max_block {
            return Ok(());
        }
        if !node.bp.is_hole() {
            tree.check_node(node)?;
        }
        self.lists_before((object, first))?;
        let mut at = first;
        while at < end {
            let (fate, to) = self.lists.at(object, at, end)?;
            match fate {
                Fate::Unsaid => {}
                Fate::LeftOut(size) => self.left_out(object, (at, to), size)?,
                Fate::Sent => {
                    let Some(offset) = at.checked_mul(block_size) else { return Ok(()) };
                    let length = to.saturating_mul(block_size).saturating_sub(offset);
                    self.push(match &node.bp {
                        bp if bp.is_hole() => Item::Free { object, offset, length },
                        bp if bp.is_redacted() => Item::Redact { object, offset, length },
                        bp => Item::Data(Data { object, kind, blkid: at, offset, bp: *bp }),
                    })?;
                }
            }
            at = to;
        }
        Ok(())
    }

    fn spill(&mut self, object: u64, bp: BlockPointer) -> Result<()> {
        let kind = DmuType::SA;
        self.push(Item::Data(Data { object, kind, blkid: SPILL_BLKID, offset: 0, bp }))
    }

    /// Blocks are sent encrypted as they are.
    fn is_raw(&self) -> bool {
        self.params.features & feature::RAW != 0
    }

    /// Whether an object comes after the last one that is sent.
    fn is_behind(&self, object: u64) -> bool {
        self.params.last.is_some_and(|last| object > last)
    }

    /// Numbers that the meta dnode has no room for are not said to be free.
    fn push(&mut self, item: Item) -> Result<()> {
        let item = match item {
            Item::FreeObjects { first, count } => {
                let end = self.params.last.map_or(u64::MAX, |last| last.saturating_add(1));
                let max = max_objects(self.objset).min(end);
                if first >= max {
                    return Ok(());
                }
                Item::FreeObjects { first, count: count.min(max - first) }
            }
            item => item,
        };
        if let Item::Data(data) = &item {
            self.bytes += data.bp.lsize();
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

impl Visitor for Walk<'_> {
    type Stop = SendError;

    fn wants(&self, bp: &BlockPointer) -> bool {
        traverse::is_changed(bp, self.params.from_txg)
    }

    fn free_slot(&mut self, number: u64) -> Result<()> {
        self.lists_before((number, 0))?;
        self.push(Item::FreeObjects { first: number, count: 1 })
    }

    /// An object: its record, what is free behind its last block, its spill block if that did not change; then come
    /// the blocks that did (`dump_dnode`).
    fn object(&mut self, tree: &Tree<'_>, order: ByteOrder) -> Result<bool> {
        let (number, dnode) = (tree.object, tree.dnode);
        // What comes behind it in the same block of dnodes is as it was before the receive.
        if self.is_behind(number) {
            return Ok(false);
        }
        self.lists_before((number, 0))?;
        let large = self.params.features & feature::LARGE_BLOCKS != 0;
        let block_size = if large { dnode.block_size } else { dnode.block_size.min(OLD_MAX_BLOCK) };
        let is_raw = self.is_raw();
        let mut bonus = dnode.bonus.clone();
        bonus.resize(bonus.len().next_multiple_of(8), 0);
        if order == ByteOrder::Big && !is_raw {
            turn::from_big_endian(dnode.bonus_kind, &mut bonus);
        }
        let (raw, bonus) = match is_raw {
            true => {
                let (raw, bonus) = raw::object(dnode);
                (Some(raw), bonus)
            }
            false => (None, bonus),
        };
        let record = ObjectRecord {
            object: number,
            kind: dnode.kind,
            bonus_kind: dnode.bonus_kind,
            block_size: block_size as u32,
            bonus_len: dnode.bonus.len() as u32,
            checksum: dnode.checksum,
            compress: dnode.compress,
            slots: dnode.extra_slots + 1,
            flags: if dnode.spill.is_some() { OBJECT_SPILL } else { 0 },
            raw,
        };
        self.push(Item::Object(record, bonus))?;
        let offset = dnode.max_block.saturating_add(1).saturating_mul(dnode.block_size);
        self.push(Item::Free { object: number, offset, length: TO_END })?;
        if let Some(bp) = dnode.spill.filter(|bp| !bp.is_hole() && !self.wants(bp)) {
            self.spill(number, bp)?;
        }
        self.seen[1].clear();
        Ok(true)
    }

    fn pre(&mut self, place: &Place<'_>) -> Result<bool> {
        let Place { tree, node } = place;
        let is_meta = tree.object == META_DNODE;
        if is_meta && node.level == 0 && self.is_raw() && !node.bp.is_hole() && !place.is_spill() {
            let (first, seal) = (node.blkid.saturating_mul(DNODES), Seal::of(&node.bp));
            if node.bp.byte_order() == ByteOrder::Big {
                let why = format!("object {first} was written in big-endian byte order");
                return Err(SendError::Refused(why));
            }
            self.lists_before((first, 0))?;
            self.push(Item::ObjectRange(RangeRecord { first, count: DNODES, flags: 0, seal }))?;
        }
        if place.leads_on() {
            let twice = |dva| !self.seen[usize::from(!is_meta)].insert(dva);
            if node.level > 0 && node.bp.dva(0).is_some_and(twice) {
                return Err(place.linked_twice().into());
            }
        } else if place.is_spill() {
            if !node.bp.is_hole() && !is_meta {
                self.lists_before((tree.object, SPILL_BLKID))?;
                self.spill(tree.object, node.bp)?;
            }
        } else if is_meta {
            let (first, end) = place.span();
            let (first, end) = (first.saturating_mul(DNODES), end.saturating_mul(DNODES));
            self.lists_before((first, 0))?;
            self.push(Item::FreeObjects { first, count: end.saturating_sub(first) })?;
        } else {
            self.block(place)?;
        }
        Ok(true)
    }

    fn damaged(&mut self, _: Bookmark, _: &BlockPointer, why: Error) -> Result<()> {
        Err(why.into())
    }
}

/// Sends some blocks of an object, changed or not.
struct Again<'w, 'a> {
    walk: &'w mut Walk<'a>,
    first: u64,
    /// The block behind the last one.
    end: u64,
    /// Indirect blocks that were met.
    seen: HashSet<Dva>,
}

impl Again<'_, '_> {
    /// Holes and data: as much of them as will be sent.
    fn block(&mut self, place: &Place<'_>) -> Result<()> {
        let Place { tree, node } = place;
        let (object, dnode, (first, end)) = (tree.object, tree.dnode, place.span());
        let (first, end) = (first.max(self.first), end.min(self.end));
        let Some(offset) = first.checked_mul(dnode.block_size) else { return Ok(()) };
        let length = end.saturating_sub(first).saturating_mul(dnode.block_size);
        if length == 0 {
            return Ok(());
        }
        if !node.bp.is_hole() {
            tree.check_node(node)?;
        }
        self.walk.push(match &node.bp {
            bp if bp.is_hole() => Item::Free { object, offset, length },
            bp if bp.is_redacted() => Item::Redact { object, offset, length },
            bp => Item::Data(Data { object, kind: dnode.kind, blkid: first, offset, bp: *bp }),
        })
    }
}

impl Visitor for Again<'_, '_> {
    /// Nothing: all was sent.
    type Stop = Option<SendError>;

    fn wants(&self, _: &BlockPointer) -> bool {
        true
    }

    fn pre(&mut self, place: &Place<'_>) -> std::result::Result<bool, Self::Stop> {
        if place.is_spill() {
            return Ok(false);
        }
        if place.span().0 >= self.end {
            return Err(None);
        }
        if !place.leads_on() {
            return self.block(place).map(|()| true).map_err(Some);
        }
        match place.node.bp.dva(0).is_none_or(|dva| self.seen.insert(dva)) {
            true => Ok(true),
            false => Err(Some(place.linked_twice().into())),
        }
    }

    fn damaged(
        &mut self,
        _: Bookmark,
        _: &BlockPointer,
        why: Error,
    ) -> std::result::Result<(), Self::Stop> {
        Err(Some(why.into()))
    }
}
