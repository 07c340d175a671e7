//! Freeing blocks that were cloned (`zio_brt_free`, `brt_entry_decref`).
//!
//! A block that several files or datasets have by cloning is in the block reference table of its vdev, with
//! the number of references beyond the first. Freeing it takes one of them; it is free when it is freed once
//! more after the last. Tables are made by OpenZFS only: nothing is cloned here.
//!
//! ```text
//! object directory: com.fudosecurity:brt:vdev:ID
//!     bonus   entries ranges order count range_size used saved      (brt_vdev_phys_t)
//!     data    16 bits for each range of the vdev: entries in it
//! entries ── ZAP: offset of the block's first copy -> references beyond the first
//! ```
//!
//! Most blocks are told apart by their range, which has no entry. A table without entries goes, and with it a
//! use of the feature. The sums are `bcloneused` and `bclonesaved`.
//!
//! If a table cannot be read, nobody knows which blocks are free: those in ranges that may have entries are
//! leaked, as many as are freed in the group.

use super::mos::{WORDS_METADATA, corrupt};
use super::{Result, Sizes, Tx, features, pool};
use cenote_dmu::write::ZapMut;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::{ByteOrder, Bytes};
use std::collections::BTreeMap;

const CLONING: &str = "com.fudosecurity:block_cloning";
/// The entries' counts are whole numbers, not their bytes.
const ENDIAN: &str = "com.truenas:block_cloning_endian";
/// Bytes of a count of entries in a range.
const COUNT: u64 = 2;
/// Most bytes of all such counts of a vdev.
const MAX_COUNTS: u64 = 1 << 30;

/// The table of one vdev (`brt_vdev_t`).
struct Table {
    name: String,
    object: u64,
    entries: u64,
    ranges: u64,
    order: u64,
    count: u64,
    range_size: u64,
    used: u64,
    saved: u64,
    /// Entries in each range.
    counts: Vec<u8>,
    changed: bool,
}

impl Table {
    fn open(tx: &mut Tx<'_>, vdev: u64) -> Result<Option<Table>> {
        let name = format!("com.fudosecurity:brt:vdev:{vdev}");
        let Some(object) = pool::entry(tx, &name)? else { return Ok(None) };
        let bonus = tx.mos.dnode(object)?.bonus.clone();
        let words = Bytes::new(&bonus, ByteOrder::Little, "block reference table").u64s::<7>(0)?;
        let [entries, ranges, order, count, range_size, used, saved] = words;
        let bytes = ranges.saturating_mul(COUNT);
        if order != 0 || range_size == 0 || bytes > MAX_COUNTS || entries == 0 {
            return Err(corrupt(object, "bad block reference table"));
        }
        let mut counts = vec![0; bytes as usize];
        tx.mos.read(object, 0, &mut counts)?;
        Ok(Some(Table {
            name,
            object,
            entries,
            ranges,
            order,
            count,
            range_size,
            used,
            saved,
            counts,
            changed: false,
        }))
    }

    /// Where the count of a block's range is.
    fn at(&self, offset: u64) -> usize {
        // Sizes of ranges are from the disk: what is past all numbers is past all counts, too.
        let at = (offset / self.range_size).saturating_mul(COUNT);
        usize::try_from(at).unwrap_or(usize::MAX)
    }

    fn entries_near(&self, offset: u64) -> u16 {
        let at = self.at(offset);
        let count = self.counts.get(at..).and_then(<[u8]>::first_chunk);
        count.copied().map_or(0, u16::from_le_bytes)
    }

    /// Takes a reference of a block. False: there is none but the first (`brt_entry_decref`).
    fn release(&mut self, tx: &mut Tx<'_>, offset: u64, size: u64) -> Result<bool> {
        if self.entries_near(offset) == 0 {
            return Ok(false);
        }
        let key = [offset];
        let found = ZapMut::open(tx.mos, self.entries).lookup(&Key::Words(&key))?;
        let (count, bytes) = match found {
            None => return Ok(false),
            Some((8, words)) if words.len() == 1 => (words.first().copied().unwrap_or(0), false),
            Some((1, bytes)) if bytes.len() == 8 => {
                (bytes.iter().rev().fold(0, |n, b| n << 8 | (b & 0xff)), true)
            }
            Some(_) => return Err(corrupt(self.entries, "bad block reference")),
        };
        self.changed = true;
        self.saved = self.saved.wrapping_sub(size);
        let mut zap = ZapMut::open(tx.mos, self.entries);
        if count > 1 {
            let left = count - 1;
            match bytes {
                true => zap.update(&Key::Words(&key), &Value::U8(&left.to_le_bytes()))?,
                false => zap.update(&Key::Words(&key), &Value::U64(&[left]))?,
            }
            return Ok(true);
        }
        zap.remove(&Key::Words(&key))?;
        self.used = self.used.wrapping_sub(size);
        self.count = self.count.saturating_sub(1);
        let (at, near) = (self.at(offset), self.entries_near(offset).saturating_sub(1));
        if let Some(stored) = self.counts.get_mut(at..at + COUNT as usize) {
            stored.copy_from_slice(&near.to_le_bytes());
        }
        tx.mos.write(self.object, at as u64, &near.to_le_bytes())?;
        // One without references beyond the first is none.
        Ok(count == 1)
    }

    /// Writes what changed (`brt_vdev_sync`), or takes the table away (`brt_vdev_destroy`).
    fn close(self, tx: &mut Tx<'_>) -> Result<()> {
        if !self.changed {
            return Ok(());
        }
        if self.count > 0 {
            let Table { entries, ranges, order, count, range_size, used, saved, .. } = self;
            let words = [entries, ranges, order, count, range_size, used, saved];
            let bonus: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            return Ok(tx.mos.set_bonus(self.object, WORDS_METADATA, &bonus)?);
        }
        tx.mos.free(self.entries)?;
        tx.mos.free(self.object)?;
        pool::remove_entry(tx, &self.name)?;
        features::decrement(tx, CLONING)?;
        if features::is_active(tx, ENDIAN)? {
            features::decrement(tx, ENDIAN)?;
        }
        Ok(())
    }
}

/// Takes a reference of each of these blocks, which are freed. Those that nobody has any more are left.
///
/// # Errors
/// Fatal ones.
pub fn release(tx: &mut Tx<'_>, blocks: Vec<BlockPointer>) -> Result<Vec<BlockPointer>> {
    if blocks.is_empty() || !features::is_active(tx, CLONING)? {
        return Ok(blocks);
    }
    let what = "blocks that may be cloned are leaked";
    let released = tx.unless_unreadable(what, |tx| release_all(tx, &blocks))?;
    if let Some(left) = released {
        return Ok(left);
    }
    let (leaked, left): (Vec<_>, Vec<_>) = blocks.into_iter().partition(may_be_cloned);
    let mut sum = Sizes::default();
    leaked.iter().for_each(|bp| sum.add((tx.space)(bp)));
    pool::charge_leak(tx, sum)?;
    Ok(left)
}

/// Only data is cloned.
fn may_be_cloned(bp: &BlockPointer) -> bool {
    let metadata = bp.level() > 0 || DmuType(bp.object_type()).is_metadata();
    !metadata && !bp.is_dedup()
}

fn release_all(tx: &mut Tx<'_>, blocks: &[BlockPointer]) -> Result<Vec<BlockPointer>> {
    let (mut tables, mut left) = (BTreeMap::new(), Vec::with_capacity(blocks.len()));
    for bp in blocks {
        let Some(dva) = bp.dva(0).filter(|_| may_be_cloned(bp)) else {
            left.push(*bp);
            continue;
        };
        let vdev = u64::from(dva.vdev);
        let table = match tables.entry(vdev) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => new.insert(Table::open(tx, vdev)?),
        };
        let size = (tx.space)(bp).used;
        let shared = match table {
            Some(table) => table.release(tx, dva.offset, size)?,
            None => false,
        };
        if !shared {
            left.push(*bp);
        }
    }
    tables.into_values().flatten().try_for_each(|table| table.close(tx))?;
    Ok(left)
}
