//! References to cloned blocks: adding them (`brt_pending_apply`, `brt_sync_table`), and freeing what was
//! cloned (`zio_brt_free`, `brt_entry_decref`).
//!
//! A block that several files or datasets have by cloning is in the block reference table of its vdev, with
//! the number of references beyond the first. A clone adds one. Freeing the block takes one of them; it is
//! free when it is freed once more after the last.
//!
//! ```text
//! object directory: com.fudosecurity:brt:vdev:ID
//!     bonus   entries ranges order count range_size used saved      (brt_vdev_phys_t)
//!     data    16 bits for each range of the vdev: entries in it
//! entries ── ZAP: offset of the block's first copy -> references beyond the first
//! ```
//!
//! Most blocks are told apart by their range, which has no entry. The first clone on a vdev makes its table,
//! with a use of the feature. A table without entries goes, and its use with it. The sums are `bcloneused` and
//! `bclonesaved`.
//!
//! A number of references or entries that would become less than nothing, or that overflows, is an error of the table
//! on disk. The sums `bcloneused` and `bclonesaved` are only shown: a wrong one stays at the end of the numbers.
//!
//! Invariant: in each transaction group the references of all clones are added before any reference is taken
//! that the same group frees. So a block that is cloned and freed in one group stays.
//!
//! A pool with a table of a big-endian machine is imported read-only: such a table's counts stand in another order and place. One
//! that is met later (it could not be read at the import) is as unreadable as a damaged one.
//!
//! Where a table cannot be read, it is not known which blocks are free: those that are freed and cannot be looked up
//! are leaked. Of the counts only the blocks that are asked for are read, so that a change costs what it clones
//! or frees, however large the vdev is.

use super::mos::{SMALL_BLOCK, WORDS_METADATA, ZAP_METADATA, corrupt};
use super::{DslWriteError, Result, Sizes, Tx, directory, features, special};
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, ZapMut};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant::broken;
use cenote_format::zap::{FLAG_HASH64, FLAG_UINT64_KEY};
use cenote_format::{ByteOrder, Bytes};
use std::collections::BTreeMap;

const CLONING: &str = "com.fudosecurity:block_cloning";
/// The entries' counts are whole numbers, not their bytes.
const ENDIAN: &str = "com.truenas:block_cloning_endian";
/// Words of `brt_vdev_phys_t`.
const WORDS: usize = 7;
/// Order of tables that a big-endian machine made (`BRT_BIG_ENDIAN`).
const BIG_ENDIAN: u64 = 1;
/// Bytes of a count of entries in a range.
const COUNT: u64 = 2;
/// Bytes of a range in new tables (`BRT_RANGESIZE`).
const RANGE: u64 = 16 << 20;
/// Bytes of a block of counts (`BRT_BLOCKSIZE`).
const COUNTS_BLOCK: u64 = 32 << 10;
/// log2 of the bytes of a block of entries, and of pointers to such blocks (`brt_zap_default_bs`).
const ENTRIES_SHIFT: u8 = 13;
/// Most bytes of all such counts of a vdev.
const MAX_COUNTS: u64 = 1 << 30;
/// Blocks that are looked up in vain before a table is taken for unreadable.
const MOST_FAILURES: u32 = 16;
/// What happens where a table cannot be read.
const LEAKED: &str = "blocks that may be cloned are leaked";

/// The table of one vdev (`brt_vdev_t`).
#[derive(Default)]
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
    /// Entries in each range: the blocks of counts that were looked at, by their numbers.
    counts: BTreeMap<u64, Vec<u8>>,
    changed: bool,
    /// A shown sum did not add up, and that was said.
    is_doubtful: bool,
}

impl Table {
    fn open(tx: &mut Tx<'_>, vdev: u64) -> Result<Option<Table>> {
        let name = format!("com.fudosecurity:brt:vdev:{vdev}");
        let Some(object) = directory::entry(tx, &name)? else { return Ok(None) };
        let bonus = tx.mos.dnode(object)?.bonus.clone();
        let words =
            Bytes::new(&bonus, ByteOrder::Little, "block reference table").u64s::<WORDS>(0)?;
        let [entries, ranges, order, count, range_size, used, saved] = words;
        let bytes = ranges.saturating_mul(COUNT);
        if order == BIG_ENDIAN {
            let what = "a block reference table of a big-endian system, which is not written";
            return Err(corrupt(object, what));
        }
        if order != 0 || range_size == 0 || bytes > MAX_COUNTS || entries == 0 {
            return Err(corrupt(object, "bad block reference table"));
        }
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
            counts: BTreeMap::new(),
            changed: false,
            is_doubtful: false,
        }))
    }

    /// Makes the table of a vdev (`brt_vdev_create`).
    fn create(tx: &mut Tx<'_>, vdev: u64) -> Result<Table> {
        let new = NewObject {
            indirect_shift: ENTRIES_SHIFT,
            ..NewObject::new(ZAP_METADATA, SMALL_BLOCK)
        };
        let format = ZapFormat {
            flags: FLAG_HASH64 | FLAG_UINT64_KEY,
            block_shift: ENTRIES_SHIFT.into(),
            ..tx.zap_format()?
        };
        let entries = ZapMut::create(tx.mos, &new, format)?;
        let object = tx.mos.allocate(&NewObject {
            bonus_kind: WORDS_METADATA,
            bonus: vec![0; WORDS * 8],
            ..NewObject::new(WORDS_METADATA, COUNTS_BLOCK)
        })?;
        let name = format!("com.fudosecurity:brt:vdev:{vdev}");
        directory::set_entry(tx, &name, object)?;
        let first = !features::is_active(tx, CLONING)?;
        if features::is_enabled(tx, ENDIAN)? && (first || features::is_active(tx, ENDIAN)?) {
            features::increment(tx, ENDIAN)?;
        }
        features::increment(tx, CLONING)?;
        let (range_size, changed) = (RANGE, true);
        Ok(Table { name, object, entries, range_size, changed, ..Table::default() })
    }

    /// References of a block beyond the first, and whether they are stored as bytes; `None` if it has no
    /// entry.
    fn references(&mut self, tx: &mut Tx<'_>, offset: u64) -> Result<Option<(u64, bool)>> {
        if self.entries_near(tx, offset)? == 0 {
            return Ok(None);
        }
        let found = ZapMut::open(tx.mos, self.entries).lookup(&Key::Words(&[offset]))?;
        match found {
            None => Ok(None),
            Some((8, words)) if let [count] = words[..] => Ok(Some((count, false))),
            Some((1, bytes)) if bytes.len() == 8 => {
                Ok(Some((bytes.iter().rev().fold(0, |n, b| n << 8 | (b & 0xff)), true)))
            }
            Some(_) => Err(corrupt(self.entries, "bad block reference")),
        }
    }

    /// Says how many references a block has beyond the first.
    fn set_references(&self, tx: &mut Tx<'_>, offset: u64, (n, bytes): (u64, bool)) -> Result<()> {
        let (key, words, in_bytes) = ([offset], [n], n.to_le_bytes());
        let value = if bytes { Value::U8(&in_bytes) } else { Value::U64(&words) };
        Ok(ZapMut::open(tx.mos, self.entries).update(&Key::Words(&key), &value)?)
    }

    /// Changes the number of entries in the range of a block.
    fn count_near(&mut self, tx: &mut Tx<'_>, offset: u64, near: u16) -> Result<()> {
        let (at, range) = (self.at(offset), offset / self.range_size);
        if range >= self.ranges {
            // Part of the vdev had no counts yet (`brt_vdev_realloc`).
            let bytes = range.saturating_add(1).saturating_mul(COUNT);
            if bytes > MAX_COUNTS {
                return Err(corrupt(self.object, "a block past all counts of references"));
            }
            self.ranges = range + 1;
        }
        // The stored counts are known: the code that changes a count has looked at it.
        let counts = self.counts.entry(at / COUNTS_BLOCK).or_insert_with(no_counts);
        let within = (at % COUNTS_BLOCK) as usize;
        match counts.get_mut(within..).and_then(<[u8]>::first_chunk_mut) {
            Some(count) => *count = near.to_le_bytes(),
            None => broken(format_args!("no count of range {range}, at byte {within} of a block")),
        }
        Ok(tx.mos.write(self.object, at, &near.to_le_bytes())?)
    }

    /// Adds references to a block of `size` bytes (`brt_vdev_addref`).
    fn add(&mut self, tx: &mut Tx<'_>, offset: u64, size: u64, more: u64) -> Result<()> {
        let known = self.references(tx, offset)?;
        let bytes = match known {
            Some((_, bytes)) => bytes,
            None => !features::is_active(tx, ENDIAN)?,
        };
        let before = known.map_or(0, |(n, _)| n);
        self.changed = true;
        self.set_references(tx, offset, (self.sum(before.checked_add(more))?, bytes))?;
        let saved = size.checked_mul(more).and_then(|more| self.saved.checked_add(more));
        self.saved = self.shown(saved, u64::MAX);
        if known.is_some() {
            return Ok(());
        }
        self.used = self.shown(self.used.checked_add(size), u64::MAX);
        self.count = self.sum(self.count.checked_add(1))?;
        let near = self.entries_near(tx, offset)?.checked_add(1);
        let near = near.ok_or_else(|| corrupt(self.object, "too many references in a range"))?;
        self.count_near(tx, offset, near)
    }

    /// A sum that is only shown. Where it does not add up it is `end`, and the log says so once.
    fn shown(&mut self, sum: Option<u64>, end: u64) -> u64 {
        if sum.is_none() && !std::mem::replace(&mut self.is_doubtful, true) {
            tracing::warn!("bcloneused and bclonesaved are wrong: {}", self.bad_sum());
        }
        sum.unwrap_or(end)
    }

    /// A number of references or entries. They are from the disk: one that does not add up makes the table unreadable.
    fn sum(&self, sum: Option<u64>) -> Result<u64> {
        sum.ok_or_else(|| self.bad_sum())
    }

    fn bad_sum(&self) -> DslWriteError {
        corrupt(self.object, "sums of a block reference table that do not add up")
    }

    /// Where the count of a block's range is.
    fn at(&self, offset: u64) -> u64 {
        // Sizes of ranges are from the disk: what is past all numbers is past all counts, too.
        (offset / self.range_size).saturating_mul(COUNT)
    }

    /// Entries in the range of a block (`brt_maybe_exists`).
    fn entries_near(&mut self, tx: &mut Tx<'_>, offset: u64) -> Result<u16> {
        let at = self.at(offset);
        let (block, within) = (at / COUNTS_BLOCK, (at % COUNTS_BLOCK) as usize);
        if !self.counts.contains_key(&block) {
            let begin = block * COUNTS_BLOCK;
            let stored = self.ranges.saturating_mul(COUNT).saturating_sub(begin).min(COUNTS_BLOCK);
            if stored == 0 {
                return Ok(0);
            }
            let mut counts = no_counts();
            counts.truncate(stored as usize);
            tx.mos.read(self.object, begin, &mut counts)?;
            counts.resize(COUNTS_BLOCK as usize, 0);
            self.counts.insert(block, counts);
        }
        let count = self.counts.get(&block).and_then(|counts| counts.get(within..)?.first_chunk());
        Ok(count.copied().map_or(0, u16::from_le_bytes))
    }

    /// Takes one reference away from a block. False: only the first reference is left (`brt_entry_decref`).
    fn release(&mut self, tx: &mut Tx<'_>, offset: u64, size: u64) -> Result<bool> {
        let Some((count, bytes)) = self.references(tx, offset)? else { return Ok(false) };
        self.changed = true;
        self.saved = self.shown(self.saved.checked_sub(size), 0);
        if count > 1 {
            self.set_references(tx, offset, (count - 1, bytes))?;
            return Ok(true);
        }
        ZapMut::open(tx.mos, self.entries).remove(&Key::Words(&[offset]))?;
        self.used = self.shown(self.used.checked_sub(size), 0);
        self.count = self.sum(self.count.checked_sub(1))?;
        let near = self.entries_near(tx, offset)?.checked_sub(1);
        let near = near.ok_or_else(|| self.bad_sum())?;
        self.count_near(tx, offset, near)?;
        // An entry without references beyond the first is not kept.
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
        directory::remove_entry(tx, &self.name)?;
        features::decrement(tx, CLONING)?;
        if features::is_active(tx, ENDIAN)? {
            features::decrement(tx, ENDIAN)?;
        }
        Ok(())
    }
}

/// A block of counts of ranges without entries.
fn no_counts() -> Vec<u8> {
    vec![0; COUNTS_BLOCK as usize]
}

/// Adds a reference to each of these blocks, which were cloned.
///
/// # Errors
/// `Unsupported`: the pool has not the feature. Others are fatal where what refers to the clones is written
/// already.
pub fn add(tx: &mut Tx<'_>, blocks: &[BlockPointer]) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    if !features::is_enabled(tx, CLONING)? {
        let what = "cloned blocks in a pool without the feature 'block_cloning'";
        return Err(DslWriteError::Unsupported(what.into()));
    }
    let mut sorted: BTreeMap<u64, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    for bp in blocks {
        let dva = bp.dva(0).ok_or_else(|| corrupt(0, "a cloned block that is nowhere"))?;
        let size = (tx.space)(bp).used;
        let of_vdev = sorted.entry(dva.vdev.into()).or_default();
        of_vdev.entry(dva.offset).or_insert((size, 0)).1 += 1;
    }
    for (vdev, blocks) in sorted {
        let mut table = match Table::open(tx, vdev)? {
            Some(table) => table,
            None => Table::create(tx, vdev)?,
        };
        for (offset, (size, more)) in blocks {
            table.add(tx, offset, size, more)?;
        }
        table.close(tx)?;
    }
    Ok(())
}

/// Takes one reference away from each of these freed blocks (`zio_brt_free`). Returns the blocks that lost their last
/// one.
///
/// # Errors
/// Fatal ones.
pub fn release(tx: &mut Tx<'_>, blocks: Vec<BlockPointer>) -> Result<Vec<BlockPointer>> {
    if blocks.is_empty() || !features::is_active(tx, CLONING)? {
        return Ok(blocks);
    }
    if let Some(left) = tx.unless_unreadable(LEAKED, |tx| release_all(tx, &blocks))? {
        return Ok(left);
    }
    let mut tables = BTreeMap::new();
    let (mut leaked, mut rest) = (Vec::new(), Vec::with_capacity(blocks.len()));
    for bp in blocks {
        let readable = is_readable(tx, &mut tables, &bp);
        if readable { rest.push(bp) } else { leaked.push(bp) }
    }
    // One table after another: what is wrong with one costs only the blocks that have entries in it.
    let mut of_vdevs: BTreeMap<Option<u32>, Vec<BlockPointer>> = BTreeMap::new();
    for bp in rest {
        let vdev = bp.dva(0).filter(|_| may_be_cloned(&bp)).map(|dva| dva.vdev);
        of_vdevs.entry(vdev).or_default().push(bp);
    }
    let mut left = Vec::new();
    for blocks in of_vdevs.into_values() {
        if let Some(free) = tx.unless_unreadable(LEAKED, |tx| release_all(tx, &blocks))? {
            left.extend(free);
            continue;
        }
        for bp in blocks {
            let has_entry = has_entry(tx, &mut tables, &bp);
            if has_entry { leaked.push(bp) } else { left.push(bp) }
        }
    }
    let mut sum = Sizes::default();
    leaked.iter().for_each(|bp| sum.add((tx.space)(bp)));
    special::charge_leak(tx, sum)?;
    Ok(left)
}

/// A table that may be unreadable, or a part of it.
struct Doubtful {
    /// `None`: nothing is cloned on its vdev, or the table cannot be opened.
    table: Option<Table>,
    /// Blocks that could not be looked up.
    failures: u32,
}

/// Whether it can be read how many references a block has. Tables that were opened are kept. One in which too many
/// blocks could not be looked up is asked no more: each of them waits for the devices.
fn is_readable(tx: &mut Tx<'_>, tables: &mut BTreeMap<u64, Doubtful>, bp: &BlockPointer) -> bool {
    let Some(dva) = bp.dva(0).filter(|_| may_be_cloned(bp)) else { return true };
    let vdev = u64::from(dva.vdev);
    let doubtful = tables.entry(vdev).or_insert_with(|| match Table::open(tx, vdev) {
        Ok(table) => Doubtful { table, failures: 0 },
        Err(_) => Doubtful { table: None, failures: MOST_FAILURES },
    });
    if doubtful.failures >= MOST_FAILURES {
        return false;
    }
    let readable = doubtful.table.as_mut().is_none_or(|t| t.references(tx, dva.offset).is_ok());
    doubtful.failures += u32::from(!readable);
    readable
}

/// Whether a block has references beyond the first, or that cannot be read. Its table is among the tables of
/// [`is_readable`], and was not changed since.
fn has_entry(tx: &mut Tx<'_>, tables: &mut BTreeMap<u64, Doubtful>, bp: &BlockPointer) -> bool {
    let Some(dva) = bp.dva(0).filter(|_| may_be_cloned(bp)) else { return false };
    let table = tables.get_mut(&dva.vdev.into()).and_then(|doubtful| doubtful.table.as_mut());
    table.is_some_and(|table| !matches!(table.references(tx, dva.offset), Ok(None)))
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
