//! The changes of one object in a transaction group (`dnode_t`: `dnode_setdirty`, `dbuf_dirty`,
//! `dnode_free_range`).
//!
//! An [`OpenObject`] is the dnode as it will be, and an [`Overlay`] of dirty blocks and freed ranges. The overlay
//! stands on what is quiesced of the object, if anything is, and that stands on what is on disk: a read looks in
//! this order. Nothing is allocated here and no pointer is made. The sync does that (`work`, `run`).
//!
//! Invariants: pointers, levels and space used of the dnode stay those on disk until the sync has written it. What
//! a change replaces is noted in the journal first, so that all of the change can be taken back (`undo`).

use super::journal::Journal;
use super::levels::grown_levels;
use super::{
    Chunk, MAX_INDIRECT_SHIFT, MAX_POINTERS, MIN_INDIRECT_SHIFT, NewObject, Result, WriteError,
};
use crate::dnode::Dnode;
use crate::object::SPILL_BLKID;
use crate::overlay::{Overlay, Pending, pending_pointer};
use crate::tree::{Node, Tree, turned};
use crate::{Object, ObjectSet};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::{
    DNODE_CORE, DNODE_FLAG_SPILL, DNODE_FLAG_USED_BYTES, DNODE_SLOT, DmuType, DnodePhys,
};
use cenote_format::invariant::broken;
use cenote_format::{MAX_BLOCK, SECTOR, invariant};
use cenote_store::write::{Packed, Payload};
use cenote_store::{Bookmark, Store};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Largest spill block (`SPA_OLD_MAXBLOCKSIZE`).
const MAX_SPILL: usize = 128 << 10;
/// Bytes that a dnode, or an indirect block, counts for at least when it is to be written: those around
/// it are written with it.
const LEAST_BYTES: u64 = 4096;
/// Objects end before this byte.
const MAX_OFFSET: u64 = 1 << 63;

/// Where an object is.
pub(super) struct Place<'a> {
    pub(super) store: &'a Arc<Store>,
    pub(super) objset: u64,
    pub(super) object: u64,
    /// The object set is received raw.
    pub(super) raw: bool,
    /// Bytes of the largest block that can be written.
    pub(super) most: u64,
}

impl Place<'_> {
    pub(super) fn invalid<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(WriteError::Invalid { object: self.object, why: why.into() })
    }

    /// A block cannot be on disk as it is packed.
    fn unwritable<T>(&self, packed: &Packed) -> Result<T> {
        let (len, function) = (packed.data.len(), packed.compression);
        self.invalid(format!("{} bytes in {len}, by {function:?}", packed.lsize))
    }
}

/// An object and its changes. Cheap to clone: what is large is shared.
#[derive(Debug, Clone)]
pub(super) struct OpenObject {
    /// The dnode as it will be. Pointers, levels and space used are those on disk.
    dnode: Arc<Dnode>,
    /// The changes, and what they stand on.
    pub(super) pending: Overlay,
    /// Levels that what is quiesced of it gets when it is written; 0 if nothing is.
    quiesced_levels: u8,
    /// Levels that its tree has at least when it is written.
    least_levels: u8,
    /// Whether anything was changed.
    pub(super) changed: bool,
    /// What it was before the change that is being made.
    pub(super) journal: Journal,
    /// Indirect blocks of level 1 on disk that were read since it stands on what is on disk, with all above
    /// them.
    read_above: BTreeSet<u64>,
}

/// Bytes of bonus buffer that a dnode has room for; `None` if its pointers do not fit.
pub(super) fn bonus_room(slots: usize, pointers: usize, spill: bool) -> Option<usize> {
    let taken = DNODE_CORE + pointers * BLKPTR_SIZE + if spill { BLKPTR_SIZE } else { 0 };
    (slots * DNODE_SLOT).checked_sub(taken)
}

fn sizes_fit(block_size: u64, indirect_shift: u8) -> bool {
    (SECTOR..=MAX_BLOCK).contains(&block_size)
        && block_size.is_multiple_of(SECTOR)
        && (MIN_INDIRECT_SHIFT..=MAX_INDIRECT_SHIFT).contains(&indirect_shift)
}

/// Whether indirect blocks are of a size that the format has; with one level nothing else checks it.
pub(super) fn sound_shift(dnode: &DnodePhys) -> bool {
    (10..=24).contains(&dnode.indirect_shift)
}

/// The dnode of a new object. Errors: sizes that the format does not have.
pub(super) fn new_dnode(new: &NewObject) -> Result<DnodePhys> {
    let bad = |why: String| Err(WriteError::Invalid { object: 0, why });
    let slots = new.dnode_size / DNODE_SLOT;
    if !new.dnode_size.is_multiple_of(DNODE_SLOT) || !(1..=32).contains(&slots) {
        return bad(format!("dnode of {} bytes", new.dnode_size));
    }
    if !sizes_fit(new.block_size, new.indirect_shift) {
        let (size, shift) = (new.block_size, new.indirect_shift);
        return bad(format!("blocks of {size} bytes, indirect block shift {shift}"));
    }
    let room = bonus_room(slots, 1, new.spills);
    let Some(spare) = room.and_then(|room| room.checked_sub(new.bonus.len())) else {
        return bad(format!("bonus of {} bytes", new.bonus.len()));
    };
    let pointers = match new.bonus_kind {
        DmuType::SA => 1,
        _ if new.spills => 1,
        _ => (1 + spare / BLKPTR_SIZE).min(MAX_POINTERS),
    };
    let phys = DnodePhys {
        kind: new.kind,
        indirect_shift: new.indirect_shift,
        levels: 1,
        bonus_kind: new.bonus_kind,
        checksum: new.checksum,
        compress: new.compress,
        flags: DNODE_FLAG_USED_BYTES,
        block_size: new.block_size,
        extra_slots: (slots - 1) as u8,
        max_block: 0,
        used: 0,
        pointers: vec![BlockPointer::HOLE; pointers],
        bonus: new.bonus.clone(),
        rest: Vec::new(),
        spill: None,
    };
    // What the format has no place for is refused now, not when the group is synced.
    phys.check()?;
    Ok(phys)
}

/// What new objects stand on: a dnode with no blocks, of a size that no real dnode has.
fn without_blocks() -> Arc<Dnode> {
    static DNODE: LazyLock<Arc<Dnode>> = LazyLock::new(|| {
        let phys = DnodePhys {
            kind: DmuType::NONE,
            indirect_shift: MAX_INDIRECT_SHIFT,
            levels: 1,
            bonus_kind: DmuType::NONE,
            checksum: 0,
            compress: 0,
            flags: 0,
            block_size: 0,
            extra_slots: 0,
            max_block: 0,
            used: 0,
            pointers: Vec::new(),
            bonus: Vec::new(),
            rest: Vec::new(),
            spill: None,
        };
        Arc::new(Dnode { number: 0, phys })
    });
    DNODE.clone()
}

impl OpenObject {
    fn around(dnode: Arc<Dnode>, on_disk: bool) -> OpenObject {
        let (top, under, micro, read_above) = Default::default();
        let disk = if on_disk { dnode.clone() } else { without_blocks() };
        let pending = Overlay { top, under, disk, on_disk, micro };
        let journal = Journal::default();
        let (quiesced_levels, least_levels, changed) = (0, 0, !on_disk);
        OpenObject { dnode, pending, quiesced_levels, least_levels, changed, journal, read_above }
    }

    /// A new object.
    pub(super) fn new(number: u64, phys: DnodePhys) -> OpenObject {
        let dnode = Dnode { number, phys };
        OpenObject::around(Arc::new(dnode), false)
    }

    /// The object on top of what is quiesced of it.
    pub(super) fn above(quiesced: &OpenObject) -> OpenObject {
        let mut this = quiesced.clone();
        this.read_above.clear();
        if this.changed {
            this.pending.under = Some(Box::new(std::mem::take(&mut this.pending.top)));
            this.quiesced_levels = grown_levels(this.phys()).max(this.least_levels);
            this.changed = false;
        }
        this
    }

    /// Stands on `disk`, which is what was quiesced of it and was then written.
    pub(super) fn stand_on(&mut self, disk: &Arc<Dnode>) {
        let (number, other) = (self.dnode.number, disk.number);
        invariant!(number == other, "object {number} goes on from what was written of {other}");
        let dnode = &mut Arc::make_mut(&mut self.dnode).phys;
        let DnodePhys { levels, used, flags, pointers, spill, .. } = disk.phys.clone();
        (dnode.levels, dnode.used, dnode.flags) = (levels, used, flags);
        (dnode.pointers, dnode.spill) = (pointers, spill);
        self.pending.disk = disk.clone();
        self.read_above.clear();
        self.pending.on_disk = true;
        self.pending.under = None;
        self.quiesced_levels = 0;
    }

    /// Levels that its tree has at least when it is written.
    pub(super) fn least_levels(&self) -> u8 {
        self.least_levels
    }

    /// Has its tree so many levels at least. That is not taken back with a change: it is what the change after says as well.
    pub(super) fn set_least_levels(&mut self, levels: u8) {
        self.least_levels = levels;
    }

    /// The dnode as it will be.
    pub(super) fn phys(&self) -> &DnodePhys {
        &self.dnode.phys
    }

    /// The dnode as it will be, to be changed.
    pub(super) fn phys_mut(&mut self) -> &mut DnodePhys {
        self.note_dnode();
        self.changed = true;
        &mut Arc::make_mut(&mut self.dnode).phys
    }

    /// The dnode as it will be, and whether anything was changed, to be [restored](Self::restore).
    pub(super) fn before(&self) -> (Arc<Dnode>, bool) {
        (self.dnode.clone(), self.changed)
    }

    /// Makes the dnode again what it was.
    pub(super) fn restore(&mut self, dnode: Arc<Dnode>, changed: bool) {
        (self.dnode, self.changed) = (dnode, changed);
    }

    /// The dnode on disk.
    pub(super) fn disk(&self) -> Option<&Arc<Dnode>> {
        Some(&self.pending.disk).filter(|_| self.pending.on_disk)
    }

    /// Whether part of it is quiesced.
    pub(super) fn stands_on_quiesced(&self) -> bool {
        self.pending.under.is_some()
    }

    /// Bytes to be written for it, its dnode and indirect blocks included, where a block
    /// counts for `least` bytes at least.
    pub(super) fn bytes(&self, least: u64) -> u64 {
        match self.changed {
            true => {
                let dnode = (self.phys().slots() * DNODE_SLOT as u64).max(LEAST_BYTES);
                self.pending.top.bytes(least) + dnode
            }
            false => 0,
        }
    }

    /// Bytes that pointers take in the indirect blocks which become dirty with block `blkid`: those that
    /// lead to no other dirty block.
    fn leads_to(&self, blkid: u64) -> u64 {
        let phys = self.phys();
        let fan = u32::from(phys.indirect_shift).saturating_sub(7);
        let mut bytes = 0u64;
        for level in 1..u32::from(grown_levels(phys)) {
            let span = 1u64.checked_shl(level * fan).unwrap_or(0);
            if span == 0 {
                break;
            }
            let first = blkid - blkid % span;
            let (end, after) = (first.saturating_add(span), blkid.saturating_add(1));
            let top = &self.pending.top;
            if top.has_dirty(first, blkid) || (after < end && top.has_dirty(after, end)) {
                break;
            }
            let below = span >> fan;
            let pointers = (phys.max_block.max(blkid) - first).min(span - 1) / below + 1;
            bytes += (pointers * BLKPTR_SIZE as u64).max(LEAST_BYTES);
        }
        bytes
    }

    /// The object as it is now, for readers.
    pub(super) fn view(&self, base: &Arc<ObjectSet>) -> Object {
        self.shown(base, || self.pending.clone())
    }

    /// As [`OpenObject::view`], good for reading some bytes only.
    pub(super) fn view_of(&self, base: &Arc<ObjectSet>, offset: u64, len: u64) -> Object {
        let size = self.phys().block_size.max(1);
        let blocks = offset / size..=offset.saturating_add(len) / size;
        self.shown(base, || self.pending.within(&blocks))
    }

    fn shown(&self, base: &Arc<ObjectSet>, pending: impl FnOnce() -> Overlay) -> Object {
        if !self.changed && !self.stands_on_quiesced() {
            return Object::new(base.clone(), self.dnode.clone());
        }
        let mut dnode = self.dnode.clone();
        if let Some(spill) = self.pending.spill() {
            let kind = dnode.phys.bonus_kind;
            let spill = spill.as_ref().map(|data| pending_pointer(kind, data.len()));
            let mut phys = dnode.phys.clone();
            phys.flags &= !DNODE_FLAG_SPILL;
            phys.flags |= if spill.is_some() { DNODE_FLAG_SPILL } else { 0 };
            let number = dnode.number;
            dnode = Arc::new(Dnode { number, phys: DnodePhys { spill, ..phys } });
        }
        Object::pending(base.clone(), dnode, Arc::new(pending()))
    }

    /// Errors: the dnode could not grow.
    pub(super) fn open(object: &Object) -> Result<OpenObject> {
        if !sound_shift(object.dnode()) {
            let why = format!("indirect block shift {}", object.dnode().indirect_shift);
            return Err(WriteError::Invalid { object: object.number(), why });
        }
        Ok(OpenObject::around(object.arc_dnode().clone(), true))
    }

    pub(super) fn tree<'t>(&'t self, place: &'t Place<'_>) -> Tree<'t> {
        let (objset, object) = (place.objset, place.object);
        Tree { store: place.store, objset, object, dnode: &self.pending.disk.phys, as_of: None }
    }

    /// Reads the indirect blocks above the blocks from `first` to `last`, but for those that were read for
    /// other blocks already.
    pub(super) fn read_above(&mut self, place: &Place<'_>, first: u64, last: u64) -> Result<()> {
        let fan = self.tree(place).fan();
        let parents = first >> fan..=last >> fan;
        if !parents.clone().all(|blkid| self.read_above.contains(&blkid)) {
            self.tree(place).read_indirect(first, last)?;
            self.read_above.extend(parents);
        }
        Ok(())
    }

    pub(super) fn set_bonus(
        &mut self,
        place: &Place<'_>,
        kind: DmuType,
        bonus: &[u8],
    ) -> Result<()> {
        if !self.has_room(bonus.len(), self.has_spill()) || !kind.is_valid() {
            return place.invalid(format!("bonus of {} bytes, type {}", bonus.len(), kind.0));
        }
        let phys = self.phys_mut();
        phys.bonus.clear();
        phys.bonus.extend_from_slice(bonus);
        phys.rest.clear();
        phys.bonus_kind = kind;
        Ok(())
    }

    /// Changes the sizes of data blocks and indirect blocks (`dnode_set_blksz`).
    pub(super) fn set_block_size(&mut self, place: &Place<'_>, size: u64, shift: u8) -> Result<()> {
        if !sizes_fit(size, shift) {
            return place.invalid(format!("blocks of {size} bytes, indirect block shift {shift}"));
        }
        if self.phys().max_block != 0 {
            return place.invalid("has more than one block");
        }
        self.check_size(place, size)?;
        // The indirect blocks may be of what is quiesced: they are on disk before this is.
        let indirect = self.phys().levels > 1 || self.quiesced_levels > 1;
        if shift != self.phys().indirect_shift && indirect {
            return place.invalid("has indirect blocks");
        }
        if size != self.phys().block_size {
            if !self.is_open(0)
                && let Some(data) = self.block(place, 0)?
            {
                self.note_block(0);
                self.pending.top.put(0, data.into());
            }
            match self.pending.top.dirty(0) {
                Some(data) if data.len() as u64 > size => self.note_block(0),
                _ => self.note_length(0),
            }
            self.pending.top.resize(0, size as usize);
            self.phys_mut().block_size = size;
        }
        self.phys_mut().indirect_shift = shift;
        Ok(())
    }

    /// Whether the dnode has room for a bonus buffer of `bonus` bytes.
    fn has_room(&self, bonus: usize, spill: bool) -> bool {
        let slots = usize::from(self.phys().extra_slots) + 1;
        bonus_room(slots, self.phys().pointers.len(), spill).is_some_and(|room| bonus <= room)
    }

    /// Bytes that there are behind the bonus buffer.
    fn rest_room(&self, spill: bool) -> usize {
        let phys = self.phys();
        let room = bonus_room(usize::from(phys.extra_slots) + 1, phys.pointers.len(), spill);
        room.unwrap_or(0).saturating_sub(phys.bonus.len())
    }

    pub(super) fn has_spill(&self) -> bool {
        match self.pending.spill() {
            Some(pending) => pending.is_some(),
            None => self.pending.disk.phys.spill.is_some(),
        }
    }

    pub(super) fn spill(&self, place: &Place<'_>) -> Result<Option<Vec<u8>>> {
        if let Some(pending) = self.pending.spill() {
            let unpacked = pending.as_ref().map(Payload::unpacked).transpose()?;
            return Ok(unpacked.map(|data| data.to_vec()));
        }
        let on_disk = self.pending.disk.phys.spill;
        let Some(bp) = on_disk.filter(|bp| !bp.is_hole()) else { return Ok(None) };
        let (objset, object) = (place.objset, place.object);
        let at = Bookmark { objset, object, level: 0, blkid: SPILL_BLKID };
        Ok(Some(turned(&bp, place.store.read(&bp, at)?).data.to_vec()))
    }

    pub(super) fn set_spill(&mut self, place: &Place<'_>, data: Option<Payload>) -> Result<()> {
        if let Some(data) = &data {
            let len = data.len();
            if let Payload::Packed(packed) = data
                && !packed.can_be_written()
            {
                return place.unwritable(packed);
            }
            if data.seal().is_some() != place.raw {
                return place.invalid("a spill block that is not as the data set is");
            }
            if len == 0 || !len.is_multiple_of(SECTOR as usize) || len > MAX_SPILL {
                return place.invalid(format!("spill block of {len} bytes"));
            }
            if !self.has_room(self.phys().bonus.len(), true) {
                return place.invalid("no room for a spill pointer");
            }
        }
        let room = self.rest_room(data.is_some());
        if self.phys().rest.len() > room {
            self.phys_mut().rest.truncate(room);
        }
        self.note_spill();
        self.pending.top.spill = Some(data);
        self.changed = true;
        Ok(())
    }

    /// Block `blkid` as it is now; `None` for a hole.
    pub(super) fn block(&self, place: &Place<'_>, blkid: u64) -> Result<Option<Abd>> {
        match self.pending.block(blkid) {
            Some(Pending::Data(data)) => return Ok(Some(data.unpacked()?)),
            Some(Pending::Clone(bp)) => {
                let Place { store, objset, object, .. } = *place;
                let tree = Tree { store, objset, object, dnode: self.phys(), as_of: None };
                return Ok(Some(tree.read_node(&Node { level: 0, blkid, bp: *bp })?.data));
            }
            Some(Pending::Hole) => return Ok(None),
            None => {}
        }
        let tree = self.tree(place);
        if tree.dnode.block_size != self.phys().block_size {
            return Ok(None);
        }
        Ok(tree.block(blkid)?.map(|block| block.data))
    }

    /// Replaces block `blkid`, which was not too far; the index of a micro ZAP stays.
    pub(super) fn put(&mut self, blkid: u64, data: Payload) {
        let (len, size, number) = (data.len(), self.phys().block_size, self.dnode.number);
        invariant!(len as u64 == size, "object {number}: {len} bytes for block {blkid} of {size}");
        self.note_block(blkid);
        if !self.pending.top.put(blkid, data) {
            let indirect = self.leads_to(blkid);
            self.pending.top.note_indirect(indirect);
        }
        let phys = self.phys_mut();
        phys.max_block = phys.max_block.max(blkid);
    }

    pub(super) fn check_end(&self, place: &Place<'_>, blkid: u64) -> Result<()> {
        let end = blkid.checked_add(1).and_then(|end| end.checked_mul(self.phys().block_size));
        match end {
            Some(end) if end <= MAX_OFFSET => Ok(()),
            _ => place.invalid(format!("block {blkid} is too far")),
        }
    }

    /// Makes blocks from `first` on clones of blocks on disk, holes where those are holes
    /// (`dmu_brt_clone`).
    ///
    /// Errors: one has another size, or is too far.
    pub(super) fn clone_blocks(
        &mut self,
        place: &Place<'_>,
        first: u64,
        pointers: &[BlockPointer],
    ) -> Result<()> {
        let Some(last) = (pointers.len() as u64).checked_sub(1) else { return Ok(()) };
        let last = first.saturating_add(last);
        self.check_end(place, last)?;
        self.tree(place).read_indirect(first, last)?;
        let size = self.phys().block_size;
        if let Some(bp) = pointers.iter().find(|bp| !bp.is_hole() && bp.lsize() != size) {
            return place.invalid(format!("a clone of {} bytes among {size}", bp.lsize()));
        }
        for (blkid, bp) in (first..).zip(pointers) {
            if bp.is_hole() {
                if blkid <= self.phys().max_block {
                    self.free_blocks(place, blkid, blkid + 1);
                }
                continue;
            }
            self.note_block(blkid);
            if !self.pending.top.is_dirty(blkid) {
                let indirect = self.leads_to(blkid);
                self.pending.top.note_indirect(indirect);
            }
            self.pending.top.put_clone(blkid, *bp);
            let phys = self.phys_mut();
            phys.max_block = phys.max_block.max(blkid);
        }
        self.pending.micro = None;
        Ok(())
    }

    /// Makes `data`, which is as long as a block, block `blkid` (`dmu_buf_will_fill`).
    pub(super) fn put_block(&mut self, place: &Place<'_>, blkid: u64, data: Vec<u8>) -> Result<()> {
        self.check_size(place, self.phys().block_size)?;
        self.check_end(place, blkid)?;
        self.tree(place).read_indirect(blkid, blkid)?;
        self.put(blkid, Abd::from_vec(data).into());
        Ok(())
    }

    /// Whether block `blkid` is dirty in the open group, and not compressed.
    fn is_open(&self, blkid: u64) -> bool {
        self.pending.top.dirty(blkid).is_some_and(|data| data.plain().is_some())
    }

    /// Makes block `blkid` dirty as it is (`dmu_buf_will_dirty`, `dbuf_dirty`).
    pub(super) fn make_dirty(&mut self, place: &Place<'_>, blkid: u64) -> Result<()> {
        if !self.is_open(blkid) {
            self.check_size(place, self.phys().block_size)?;
            self.check_end(place, blkid)?;
            let size = self.phys().block_size as usize;
            let loaded = self.block(place, blkid)?;
            self.put(blkid, loaded.unwrap_or_else(|| Abd::from_vec(vec![0; size])).into());
        }
        Ok(())
    }

    /// Block `blkid`, which was just made dirty.
    fn open_block(&mut self, place: &Place<'_>, blkid: u64) -> &mut [u8] {
        let object = place.object;
        match self.pending.top.dirty_mut(blkid) {
            Some(block) => block,
            None => broken(format_args!("object {object}: block {blkid} was not made dirty")),
        }
    }

    /// Block `blkid`, for a change.
    pub(super) fn block_mut(&mut self, place: &Place<'_>, blkid: u64) -> Result<&mut [u8]> {
        self.make_dirty(place, blkid)?;
        self.note_bytes(blkid);
        Ok(self.open_block(place, blkid))
    }

    /// Block `blkid`, for a change of its bytes `range`.
    pub(super) fn block_mut_in(
        &mut self,
        place: &Place<'_>,
        blkid: u64,
        range: Range<usize>,
    ) -> Result<&mut [u8]> {
        self.make_dirty(place, blkid)?;
        self.note_part(blkid, range);
        Ok(self.open_block(place, blkid))
    }

    /// Some bytes of block `blkid`, for a change.
    pub(super) fn part_mut(
        &mut self,
        place: &Place<'_>,
        blkid: u64,
        range: Range<usize>,
    ) -> Result<&mut [u8]> {
        let block = self.block_mut_in(place, blkid, range.clone())?;
        block.get_mut(range).ok_or(WriteError::Failed)
    }

    /// Block `blkid`, for a change of some bytes that the caller
    /// [notes](OpenObject::note_old) afterwards.
    pub(super) fn block_to_note(&mut self, place: &Place<'_>, blkid: u64) -> Result<&mut [u8]> {
        self.make_dirty(place, blkid)?;
        Ok(self.open_block(place, blkid))
    }

    /// Makes `data`, which is as long as a block, the block at byte `offset`, and otherwise writes its bytes there
    /// (`dmu_assign_arcbuf_by_dnode`, `dbuf_assign_arcbuf`, `dmu_assign_arcbuf_by_dbuf`).
    pub(super) fn write_payload(
        &mut self,
        place: &Place<'_>,
        offset: u64,
        data: &Payload,
    ) -> Result<()> {
        let (size, len) = (self.phys().block_size, data.len());
        if len as u64 != size || !offset.is_multiple_of(size) {
            let data = data.unpacked()?;
            let bytes = data.bytes();
            let chunk = Chunk::uncut(&bytes);
            self.prepare_write(place, offset, &chunk)?;
            return self.write(place, offset, &chunk);
        }
        if data.seal().is_some() != place.raw {
            return place.invalid("a block that is not as the data set is");
        }
        if let Payload::Packed(packed) = data {
            self.check_packed(place, packed)?;
        }
        self.check_write(place, offset, len)?;
        self.check_end(place, offset / size)?;
        self.tree(place).read_indirect(offset / size, offset / size)?;
        self.put(offset / size, data.clone());
        Ok(())
    }

    /// Whether a block can be on disk as it is packed.
    fn check_packed(&self, place: &Place<'_>, packed: &Packed) -> Result<()> {
        // Of dnodes it has to be known how many there are.
        match packed.can_be_written() && self.phys().kind != DmuType::DNODE {
            true => Ok(()),
            false => place.unwritable(packed),
        }
    }

    /// Changes the numbers of the checksum and compression functions of its blocks.
    pub(super) fn set_functions(&mut self, checksum: u8, compress: u8) {
        if (self.phys().checksum, self.phys().compress) != (checksum, compress) {
            let phys = self.phys_mut();
            (phys.checksum, phys.compress) = (checksum, compress);
        }
    }

    pub(super) fn check_write(&mut self, place: &Place<'_>, offset: u64, len: usize) -> Result<()> {
        if offset.checked_add(len as u64).is_none_or(|end| end > MAX_OFFSET) {
            return place.invalid(format!("{len} bytes at {offset}"));
        }
        self.pending.micro = None;
        self.check_size(place, self.phys().block_size)
    }

    /// Whether blocks of `size` bytes can be written: blocks of some encryption suites must be smaller than others.
    pub(super) fn check_size(&self, place: &Place<'_>, size: u64) -> Result<()> {
        match size <= place.most {
            true => Ok(()),
            false => place.invalid(format!(
                "blocks of {size} bytes are too long for the encryption of the data set"
            )),
        }
    }

    pub(super) fn free_range(&mut self, place: &Place<'_>, offset: u64, len: u64) -> Result<()> {
        let (size, max_block) = (self.phys().block_size, self.phys().max_block);
        let past = max_block.saturating_add(1).saturating_mul(size);
        let end = offset.saturating_add(len).min(past);
        if offset >= end {
            return Ok(());
        }
        // Whatever is on disk past the end goes too.
        let rest = if end == past { u64::MAX } else { end.div_ceil(size) };
        self.tree(place).read_indirect(offset / size, rest)?;
        self.pending.micro = None;
        let (first, last) = (offset.div_ceil(size), end / size);
        if first > last {
            return self.zero(place, first - 1, (offset % size) as usize, (end % size) as usize);
        }
        if !offset.is_multiple_of(size) {
            self.zero(place, first - 1, (offset % size) as usize, size as usize)?;
        }
        if !end.is_multiple_of(size) {
            self.zero(place, last, 0, (end % size) as usize)?;
        }
        self.free_blocks(place, first, last);
        Ok(())
    }

    /// Frees the blocks from `first` to before `end` (`dnode_free_range`, `dbuf_free_range`).
    pub(super) fn free_blocks(&mut self, place: &Place<'_>, first: u64, end: u64) {
        if first >= end {
            return;
        }
        // Whatever is on disk past the end goes too.
        let rest = end > self.phys().max_block;
        self.note_ranges();
        for blkid in self.pending.top.dirty_in(first, end, rest) {
            self.note_block(blkid);
        }
        self.pending.top.free(first, end, rest);
        let phys = self.phys_mut();
        // A raw stream says which is the last one, and that may be a hole.
        if rest && !place.raw {
            phys.max_block = first.saturating_sub(1);
        }
    }

    /// Zeroes a part of a block, unless it is a hole.
    fn zero(&mut self, place: &Place<'_>, blkid: u64, from: usize, to: usize) -> Result<()> {
        if self.pending.top.dirty(blkid).is_none() && self.block(place, blkid)?.is_none() {
            return Ok(());
        }
        self.part_mut(place, blkid, from..to)?.fill(0);
        Ok(())
    }
}
