//! The block reference table: blocks that are shared by cloning.
//!
//! For each top-level vdev that has any, the MOS's object directory has an object
//! `com.fudosecurity:brt:vdev:ID` with `brt_vdev_phys_t` in its bonus; its data are 16-bit counts
//! of entries per range of the vdev (to answer "no" without a lookup), and the bonus names a ZAP
//! from a block's offset (one word) to the number of references *beyond the first*.

use crate::ddt::warm_object;
use crate::directory::Directory;
use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use std::sync::Arc;

/// The table of one vdev (`brt_vdev_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// The object in the directory.
    pub object: u64,
    /// ZAP of the entries.
    pub entries: u64,
    /// Number of ranges.
    pub ranges: u64,
    /// Number of entries.
    pub count: u64,
    /// Bytes of a range.
    pub range_size: u64,
    /// Bytes of the blocks in the table.
    pub used: u64,
    /// Bytes that sharing them saves.
    pub saved: u64,
    /// Byte order of its counts (`bvp_byteorder`): 0 is little-endian, 1 big-endian.
    pub order: u64,
}

/// Order of the counts of big-endian machines (`BRT_BIG_ENDIAN`).
pub const BIG_ENDIAN: u64 = 1;

/// The tables of vdevs 0 to `vdevs - 1` (`brt_load`).
///
/// # Errors
/// One of them cannot be read.
pub fn load(mos: &Arc<ObjectSet>, vdevs: u64) -> Result<Vec<Table>> {
    let directory = Directory::open(mos)?;
    let found = (0..vdevs).filter_map(|vdev| Table::open(mos, &directory, vdev).transpose());
    found.collect()
}

/// Whether a big-endian machine made one of those tables. A table that cannot be read does not count as one.
pub fn is_big_endian(mos: &Arc<ObjectSet>, vdevs: u64) -> bool {
    let Ok(directory) = Directory::open(mos) else { return false };
    let mut tables = (0..vdevs).filter_map(|vdev| Table::open(mos, &directory, vdev).ok()?);
    tables.any(|table| table.order == BIG_ENDIAN)
}

/// The error of tables that together save, or have, more bytes than there are numbers.
pub(crate) fn uncountable(mos: &ObjectSet) -> Error {
    let why = "block reference tables: more bytes than can be counted".into();
    Error::Corrupt { objset: mos.id(), object: 0, why }
}

/// Whether other pointers lead to a block as well, by the tables of all vdevs.
///
/// # Errors
/// A table cannot be read.
pub fn is_cloned(mos: &Arc<ObjectSet>, tables: &[Table], bp: &BlockPointer) -> Result<bool> {
    let Some(first) = bp.dva(0) else { return Ok(false) };
    match tables.iter().find(|table| table.vdev == u64::from(first.vdev)) {
        Some(table) => Ok(table.lookup(mos, first.offset)?.is_some_and(|more| more > 0)),
        None => Ok(false),
    }
}

/// Reads all blocks of the tables of vdevs 0 to `vdevs - 1`, so that they are in the cache (`brt_prefetch_all`).
///
/// # Errors
/// They cannot be read.
pub fn warm(mos: &Arc<ObjectSet>, vdevs: u64) -> Result<()> {
    for table in load(mos, vdevs)? {
        warm_object(mos, table.object)?;
        if table.entries != 0 {
            warm_object(mos, table.entries)?;
        }
    }
    Ok(())
}

impl Table {
    /// The table of a vdev; `None` if nothing on it is cloned.
    fn open(mos: &Arc<ObjectSet>, directory: &Directory, vdev: u64) -> Result<Option<Table>> {
        let name = format!("com.fudosecurity:brt:vdev:{vdev}");
        let Some(object) = directory.u64(&name)? else { return Ok(None) };
        let found = mos.object(object)?;
        let words = found.bonus().u64s::<7>(0).map_err(|e| Error::Corrupt {
            objset: mos.id(),
            object,
            why: format!("block reference table: {e}"),
        })?;
        let [entries, ranges, order, count, range_size, used, saved] = words;
        Ok(Some(Table { vdev, object, entries, ranges, count, range_size, used, saved, order }))
    }

    /// References to the block at `offset` beyond the first; `None` if it is not shared.
    pub fn lookup(&self, mos: &Arc<ObjectSet>, offset: u64) -> Result<Option<u64>> {
        if self.entries == 0 {
            return Ok(None);
        }
        let zap = Zap::open(&mos.object(self.entries)?)?;
        Ok(zap.lookup_words(&[offset])?.and_then(|e| self.refcount(e.int_size, &e.value)))
    }

    /// Calls `f(offset, references beyond the first)` with every entry.
    pub fn for_each(
        &self,
        mos: &Arc<ObjectSet>,
        f: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        if self.entries == 0 {
            return Ok(());
        }
        let zap = Zap::open(&mos.object(self.entries)?)?;
        let mut cursor = 0;
        loop {
            let batch = zap.entries_from(cursor, 1000)?;
            let Some(last) = batch.last() else { return Ok(()) };
            cursor = last.cursor;
            for entry in &batch {
                let offset = entry.name.first_chunk::<8>().map(|b| u64::from_be_bytes(*b));
                if let (Some(offset), Some(n)) =
                    (offset, self.refcount(entry.int_size, &entry.value))
                {
                    f(offset, n)?;
                }
            }
        }
    }

    /// The value of an entry: one integer, or, as the first releases wrote it, its eight bytes in the order of the machine.
    fn refcount(&self, int_size: u8, value: &[u64]) -> Option<u64> {
        let of = |n: u64, byte: &u64| n << 8 | (byte & 0xff);
        match (int_size, value) {
            (8, [n]) => Some(*n),
            (1, bytes) if bytes.len() == 8 && self.order == BIG_ENDIAN => {
                Some(bytes.iter().fold(0, of))
            }
            (1, bytes) if bytes.len() == 8 => Some(bytes.iter().rev().fold(0, of)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BIG_ENDIAN, Table};

    #[test]
    fn all_forms_of_a_count() {
        let table = |order| Table {
            vdev: 0,
            object: 1,
            entries: 2,
            ranges: 1,
            count: 1,
            range_size: 1,
            used: 1,
            saved: 1,
            order,
        };
        let (little, big) = (table(0), table(BIG_ENDIAN));
        assert_eq!((little.refcount(8, &[7]), big.refcount(8, &[7])), (Some(7), Some(7)));
        assert_eq!(little.refcount(1, &[1, 2, 0, 0, 0, 0, 0, 0]), Some(0x201));
        assert_eq!(big.refcount(1, &[0, 0, 0, 0, 0, 0, 2, 1]), Some(0x201));
        assert_eq!(little.refcount(1, &[1]), None);
    }
}
