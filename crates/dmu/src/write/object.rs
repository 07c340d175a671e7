//! The changes of one object in a transaction group.

use super::ranges::Ranges;
use super::{MAX_INDIRECT_SHIFT, MAX_POINTERS, MIN_INDIRECT_SHIFT, NewObject, Result, WriteError};
use crate::Object;
use crate::object::SPILL_BLKID;
use crate::tree::Tree;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::dmu::{DNODE_CORE, DNODE_FLAG_USED_BYTES, DNODE_SLOT, DmuType, DnodePhys};
use cenote_format::encode::zap::micro::MicroIndex;
use cenote_format::encode::zap::to_little_endian;
use cenote_format::{ByteOrder, MAX_BLOCK, SECTOR};
use cenote_store::{Block, Bookmark, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Largest spill block (`SPA_OLD_MAXBLOCKSIZE`).
const MAX_SPILL: usize = 128 << 10;
/// Objects end before this byte.
const MAX_OFFSET: u64 = 1 << 63;

/// Where an object is.
pub(super) struct Place {
    pub(super) store: Arc<Store>,
    pub(super) objset: u64,
    pub(super) object: u64,
}

impl Place {
    fn invalid<T>(&self, why: impl Into<String>) -> Result<T> {
        Err(WriteError::Invalid { object: self.object, why: why.into() })
    }
}

/// An object and its changes.
#[derive(Debug)]
pub(super) struct OpenObject {
    /// The dnode on disk; of a new object, one without blocks.
    pub(super) disk: DnodePhys,
    /// Whether there is one on disk.
    pub(super) on_disk: bool,
    /// The dnode as it will be. Pointers, levels and space used are those of `disk`.
    pub(super) phys: DnodePhys,
    /// Dirty blocks, whole ones, of the size that `phys` says.
    pub(super) dirty: BTreeMap<u64, Vec<u8>>,
    /// Blocks that are to be freed before the dirty ones are written.
    pub(super) freed: Ranges,
    /// What the spill block is to be.
    pub(super) spill: Option<Option<Vec<u8>>>,
    /// Whether anything was changed.
    pub(super) changed: bool,
    /// The index of a micro ZAP, as long as block 0 is changed by no one else.
    pub(super) micro: Option<MicroIndex>,
}

/// Bytes of bonus buffer that a dnode has room for; `None` if there is none for the pointers.
fn bonus_room(slots: usize, pointers: usize, spill: bool) -> Option<usize> {
    let taken = DNODE_CORE + pointers * BLKPTR_SIZE + if spill { BLKPTR_SIZE } else { 0 };
    (slots * DNODE_SLOT).checked_sub(taken)
}

fn sizes_fit(block_size: u64, indirect_shift: u8) -> bool {
    (SECTOR..=MAX_BLOCK).contains(&block_size)
        && block_size.is_multiple_of(SECTOR)
        && (MIN_INDIRECT_SHIFT..=MAX_INDIRECT_SHIFT).contains(&indirect_shift)
}

/// Whether indirect blocks are of a size that the format has; with one level nobody else asks.
pub(super) fn sound_shift(dnode: &DnodePhys) -> bool {
    (10..=24).contains(&dnode.indirect_shift)
}

impl OpenObject {
    fn around(disk: DnodePhys, on_disk: bool) -> OpenObject {
        let (dirty, freed, spill, micro) = Default::default();
        let (phys, changed) = (disk.clone(), !on_disk);
        OpenObject { disk, on_disk, phys, dirty, freed, spill, changed, micro }
    }

    pub(super) fn create(new: &NewObject) -> Result<OpenObject> {
        let bad = |why: String| Err(WriteError::Invalid { object: 0, why });
        let slots = new.dnode_size / DNODE_SLOT;
        if !new.dnode_size.is_multiple_of(DNODE_SLOT) || !(1..=32).contains(&slots) {
            return bad(format!("dnode of {} bytes", new.dnode_size));
        }
        if !sizes_fit(new.block_size, new.indirect_shift) {
            let (size, shift) = (new.block_size, new.indirect_shift);
            return bad(format!("blocks of {size} bytes, indirect block shift {shift}"));
        }
        let room = bonus_room(slots, 1, false);
        let Some(spare) = room.and_then(|room| room.checked_sub(new.bonus.len())) else {
            return bad(format!("bonus of {} bytes", new.bonus.len()));
        };
        let pointers = match new.bonus_kind {
            DmuType::SA => 1,
            _ => (1 + spare / BLKPTR_SIZE).min(MAX_POINTERS),
        };
        let disk = DnodePhys {
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
            spill: None,
        };
        disk.encode()?;
        Ok(OpenObject::around(disk, false))
    }

    /// Errors: the dnode is in the other byte order, or could not grow.
    pub(super) fn open(object: &Object) -> Result<OpenObject> {
        if !sound_shift(object.dnode()) {
            let why = format!("indirect block shift {}", object.dnode().indirect_shift);
            return Err(WriteError::Invalid { object: object.number(), why });
        }
        if object.order() != ByteOrder::Little {
            return Err(WriteError::ByteOrder(object.number()));
        }
        Ok(OpenObject::around(object.dnode().clone(), true))
    }

    fn tree<'t>(&'t self, place: &'t Place) -> Tree<'t> {
        let (objset, object) = (place.objset, place.object);
        Tree { store: &place.store, objset, object, dnode: &self.disk }
    }

    pub(super) fn set_bonus(&mut self, place: &Place, kind: DmuType, bonus: &[u8]) -> Result<()> {
        if !self.has_room(bonus.len(), self.has_spill()) || !kind.is_valid() {
            return place.invalid(format!("bonus of {} bytes, type {}", bonus.len(), kind.0));
        }
        self.phys.bonus = bonus.to_vec();
        self.phys.bonus_kind = kind;
        self.changed = true;
        Ok(())
    }

    pub(super) fn set_block_size(&mut self, place: &Place, size: u64, shift: u8) -> Result<()> {
        if !sizes_fit(size, shift) {
            return place.invalid(format!("blocks of {size} bytes, indirect block shift {shift}"));
        }
        if self.phys.max_block != 0 {
            return place.invalid("has more than one block");
        }
        if shift != self.phys.indirect_shift && self.phys.levels != 1 {
            return place.invalid("has indirect blocks");
        }
        if size != self.phys.block_size {
            if let Some(mut data) = self.block(place, 0)? {
                data.resize(size as usize, 0);
                self.dirty.insert(0, data);
            }
            self.phys.block_size = size;
        }
        self.phys.indirect_shift = shift;
        self.changed = true;
        Ok(())
    }

    /// Whether the dnode has room for a bonus buffer of `bonus` bytes.
    fn has_room(&self, bonus: usize, spill: bool) -> bool {
        let slots = usize::from(self.phys.extra_slots) + 1;
        bonus_room(slots, self.phys.pointers.len(), spill).is_some_and(|room| bonus <= room)
    }

    fn has_spill(&self) -> bool {
        match &self.spill {
            Some(pending) => pending.is_some(),
            None => self.disk.spill.is_some(),
        }
    }

    pub(super) fn spill(&self, place: &Place) -> Result<Option<Vec<u8>>> {
        if let Some(pending) = &self.spill {
            return Ok(pending.clone());
        }
        let Some(bp) = self.disk.spill.filter(|bp| !bp.is_hole()) else { return Ok(None) };
        let (objset, object) = (place.objset, place.object);
        let at = Bookmark { objset, object, level: 0, blkid: SPILL_BLKID };
        Ok(Some(place.store.read(&bp, at)?.data.to_vec()))
    }

    pub(super) fn set_spill(&mut self, place: &Place, data: Option<Vec<u8>>) -> Result<()> {
        if let Some(data) = &data {
            let len = data.len();
            if len == 0 || !len.is_multiple_of(SECTOR as usize) || len > MAX_SPILL {
                return place.invalid(format!("spill block of {len} bytes"));
            }
            if !self.has_room(self.phys.bonus.len(), true) {
                return place.invalid("no room for a spill pointer");
            }
        }
        self.spill = Some(data);
        self.changed = true;
        Ok(())
    }

    /// The bytes of a block read from disk, little-endian.
    fn turn(&self, place: &Place, block: &Block) -> Result<Vec<u8>> {
        let mut data = block.data.to_vec();
        let kind = self.phys.kind;
        if block.order == ByteOrder::Big {
            if kind.is_zap() {
                to_little_endian(&mut data, ByteOrder::Big)?;
            } else if !matches!(kind, DmuType::PLAIN_FILE_CONTENTS | DmuType::ZVOL) {
                return Err(WriteError::ByteOrder(place.object));
            }
        }
        Ok(data)
    }

    /// Block `blkid` as it is now; `None` for a hole.
    pub(super) fn block(&self, place: &Place, blkid: u64) -> Result<Option<Vec<u8>>> {
        if let Some(data) = self.dirty.get(&blkid) {
            return Ok(Some(data.clone()));
        }
        if self.freed.contains(blkid) {
            return Ok(None);
        }
        let read = self.tree(place).block(blkid)?;
        read.map(|block| self.turn(place, &block)).transpose()
    }

    /// Block `blkid`, which is to be changed.
    pub(super) fn block_mut(&mut self, place: &Place, blkid: u64) -> Result<&mut Vec<u8>> {
        let size = self.phys.block_size;
        let end = blkid.checked_add(1).and_then(|end| end.checked_mul(size));
        if end.is_none_or(|end| end > MAX_OFFSET) {
            return place.invalid(format!("block {blkid} is too far"));
        }
        let loaded = if self.dirty.contains_key(&blkid) {
            None
        } else {
            Some(self.block(place, blkid)?.unwrap_or_else(|| vec![0; size as usize]))
        };
        self.phys.max_block = self.phys.max_block.max(blkid);
        self.changed = true;
        Ok(self.dirty.entry(blkid).or_insert_with(|| loaded.unwrap_or_default()))
    }

    pub(super) fn read(&self, place: &Place, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let size = self.phys.block_size;
            let (blkid, skip) = (at / size, (at % size) as usize);
            let len = rest.len().min(size as usize - skip);
            let (now, later) = rest.split_at_mut(len);
            match self.block(place, blkid)? {
                Some(data) => match data.get(skip..skip + len) {
                    Some(src) => now.copy_from_slice(src),
                    None => return place.invalid(format!("block {blkid} is short")),
                },
                None => now.fill(0),
            }
            at = at.saturating_add(len as u64);
            rest = later;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, place: &Place, offset: u64, data: &[u8]) -> Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > MAX_OFFSET) {
            return place.invalid(format!("{} bytes at {offset}", data.len()));
        }
        self.micro = None;
        let (size, mut at, mut rest) = (self.phys.block_size, offset, data);
        while !rest.is_empty() {
            let (blkid, skip) = (at / size, (at % size) as usize);
            let (now, later) = rest.split_at(rest.len().min(size as usize - skip));
            if now.len() as u64 == size {
                self.phys.max_block = self.phys.max_block.max(blkid);
                self.changed = true;
                self.dirty.insert(blkid, now.to_vec());
            } else if let Some(dst) = self.block_mut(place, blkid)?.get_mut(skip..skip + now.len())
            {
                dst.copy_from_slice(now);
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    pub(super) fn free_range(&mut self, place: &Place, offset: u64, len: u64) -> Result<()> {
        let size = self.phys.block_size;
        let past = self.phys.max_block.saturating_add(1).saturating_mul(size);
        let end = offset.saturating_add(len).min(past);
        if offset >= end {
            return Ok(());
        }
        self.micro = None;
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
        self.free_blocks(first, last);
        Ok(())
    }

    /// Frees the blocks from `first` to before `end`.
    pub(super) fn free_blocks(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let mut inside = self.dirty.split_off(&first);
        self.dirty.append(&mut inside.split_off(&end));
        let mut range = first..end;
        if end > self.phys.max_block {
            // So that whatever is on disk past the end goes too.
            range.end = u64::MAX;
            self.phys.max_block = first.saturating_sub(1);
        }
        self.freed.insert(range);
        self.changed = true;
    }

    /// Zeroes a part of a block, unless it is a hole.
    fn zero(&mut self, place: &Place, blkid: u64, from: usize, to: usize) -> Result<()> {
        if !self.dirty.contains_key(&blkid) && self.block(place, blkid)?.is_none() {
            return Ok(());
        }
        if let Some(part) = self.block_mut(place, blkid)?.get_mut(from..to) {
            part.fill(0);
        }
        Ok(())
    }
}
