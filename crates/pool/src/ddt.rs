//! The deduplication table (`ddt_phys_t`): which blocks are shared, and by how many block pointers.
//!
//! One table per checksum function. On disk it is up to three ZAPs, by class: `ditto` (obsolete),
//! `duplicate` (more than one reference), `unique`; keys are five words (the checksum; sizes and
//! compression), values the *physical* part, compressed with ZLE behind a byte that names the
//! function and the byte order. Tables of version 0 hang off the MOS's object directory
//! (`DDT-sha256-zap-unique`) and have four variants per entry, by number of copies. Version 1
//! (fast dedup) has a directory per checksum (`DDT-sha256`), one *flat* variant that can grow
//! copies, and two logs whose entries are newer than the ZAPs'.
//!
//! A log is an object of records ([`layout`]). Later records replace earlier ones of the same key; those up
//! to the key in the log's header (its checkpoint) are in the ZAPs already.
//!
//! Invariants: the flushing log's entries give way to the active log's; both give way to
//! nothing; a decoded entry always has [`Entry::phys`] of 4 (version 0) or 1 variants. A log is no
//! longer than the devices have room for, and has no more entries than they have blocks, since each
//! entry is about a block.

pub mod layout;

use crate::directory::Directory;
use crate::spacemap::max_length;
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_format::checksum::Checksum;
use cenote_format::{ByteOrder, Bytes};
use layout::{CLASSES, LogHeader, decode_record, decode_value};
pub use layout::{Entry, FLAG_FLAT, FLAG_LOG, Key, LOG_CHECKPOINT, LOG_FLUSHING, Phys, Variants};
use std::collections::HashMap;
use std::sync::Arc;

/// The object directory, which has what is in no directory of a table.
pub const DIRECTORY: u64 = 1;
/// The entry of the object directory that leads to the histograms of all tables (`DMU_POOL_DDT_STATS`).
pub const STATISTICS: &str = "DDT-statistics";

/// A log of a table of version 1.
#[derive(Debug, Clone)]
pub struct Log {
    /// The object.
    pub object: u64,
    /// `LOG_*`.
    pub flags: u8,
    /// Bytes in it.
    pub length: u64,
    /// Transaction group in which it became active.
    pub first_txg: u64,
    /// Entries up to this one are in the ZAPs already.
    pub checkpoint: Option<Key>,
    /// Its entries.
    pub entries: HashMap<Key, Entry>,
}

/// One of a table's ZAPs.
#[derive(Clone)]
pub struct Stored {
    /// 0 ditto, 1 duplicate, 2 unique.
    pub class: usize,
    /// Name of the ZAP in its directory.
    pub name: String,
    /// The object.
    pub object: u64,
}

/// The table of one checksum function.
#[derive(Clone)]
pub struct Table {
    /// The function.
    pub checksum: Checksum,
    /// 0 or 1.
    pub version: u64,
    /// `FLAG_*`.
    pub flags: u64,
    /// The directory that lists its objects.
    pub directory: u64,
    /// Its ZAPs.
    pub stored: Vec<Stored>,
    /// Its logs, by number.
    pub logs: Vec<Log>,
}

fn corrupt(mos: &ObjectSet, object: u64, why: String) -> Error {
    Error::Corrupt { objset: mos.id(), object, why: format!("dedup table: {why}") }
}

/// The functions that have tables.
pub const CHECKSUMS: [Checksum; 5] =
    [Checksum::Sha256, Checksum::Sha512, Checksum::Skein, Checksum::Edonr, Checksum::Blake3];

/// All tables of the pool. Logs are read, ZAPs are not.
pub fn load(mos: &Arc<ObjectSet>) -> Result<Vec<Table>> {
    let root = Directory::open(mos)?;
    if root.u64(STATISTICS)?.is_none() {
        return Ok(Vec::new());
    }
    let mut tables = Vec::new();
    for checksum in CHECKSUMS {
        if let Some(table) = load_table(mos, &root, checksum)? {
            tables.push(table);
        }
    }
    Ok(tables)
}

/// Reads all blocks of the tables' ZAPs, so that they are in the cache (`ddt_prefetch_all`).
///
/// # Errors
/// They cannot be read.
pub fn warm(mos: &Arc<ObjectSet>) -> Result<()> {
    for stored in load(mos)?.iter().flat_map(|table| &table.stored) {
        warm_object(mos, stored.object)?;
    }
    Ok(())
}

/// Reads all blocks of an object.
pub(crate) fn warm_object(mos: &Arc<ObjectSet>, number: u64) -> Result<()> {
    const AT_ONCE: u64 = 256;
    let object = mos.object(number)?;
    for first in (0..=object.dnode().max_block).step_by(AT_ONCE as usize) {
        object.blocks(first, AT_ONCE.min(object.dnode().max_block - first + 1))?;
    }
    Ok(())
}

fn load_table(mos: &Arc<ObjectSet>, root: &Directory, checksum: Checksum) -> Result<Option<Table>> {
    let name = checksum.name();
    let own = root.u64(&format!("DDT-{name}"))?;
    let (directory, version, flags) = match own {
        None => (DIRECTORY, 0, 0),
        Some(object) => {
            let zap = Zap::open(&mos.object(object)?)?;
            let number = |key: &str| -> Result<u64> {
                let value = zap.u64(key.as_bytes())?;
                value.ok_or_else(|| corrupt(mos, object, format!("no {key}")))
            };
            (object, number("version")?, number("flags")?)
        }
    };
    if own.is_some() && (version != 1 || flags & !(FLAG_FLAT | FLAG_LOG) != 0) {
        return Err(corrupt(mos, directory, format!("version {version}, flags {flags:#x}")));
    }
    let zap = Zap::open(&mos.object(directory)?)?;
    let mut stored = Vec::new();
    for (class, suffix) in CLASSES.into_iter().enumerate() {
        let name = format!("DDT-{name}-zap-{suffix}");
        if let Some(object) = zap.u64(name.as_bytes())? {
            stored.push(Stored { class, name, object });
        }
    }
    if own.is_none() && stored.is_empty() {
        return Ok(None);
    }
    let mut table = Table { checksum, version, flags, directory, stored, logs: Vec::new() };
    if flags & FLAG_LOG != 0 {
        for n in 0..2 {
            if let Some(object) = zap.u64(format!("DDT-log-{name}-{n}").as_bytes())? {
                let log = table.load_log(mos, object)?;
                table.logs.push(log);
            }
        }
    }
    table.prefer_active_log();
    Ok(Some(table))
}

impl Table {
    /// What is in both logs counts as the active log has it.
    fn prefer_active_log(&mut self) {
        if let [a, b] = &mut self.logs[..] {
            let (active, flushing) = if a.flags & LOG_FLUSHING != 0 { (b, a) } else { (a, b) };
            flushing.entries.retain(|key, _| !active.entries.contains_key(key));
        }
    }

    /// Reads a log (`ddt_log_load`).
    fn load_log(&self, mos: &Arc<ObjectSet>, number: u64) -> Result<Log> {
        let bad = |why: String| corrupt(mos, number, format!("log: {why}"));
        let object = mos.object(number)?;
        let header = LogHeader::decode(&object.bonus()).map_err(|e| bad(e.to_string()))?;
        let LogHeader { flags, length, first_txg, checkpoint } = header;
        // Each block of it has to be there, so that no number alone takes memory.
        if length > max_length(mos) {
            return Err(bad(format!("{length} bytes")));
        }
        let mut log =
            Log { object: number, flags, length, first_txg, checkpoint, entries: HashMap::new() };
        for blkid in 0..length.div_ceil(object.dnode().block_size) {
            let Some(block) = object.block(blkid)? else {
                return Err(bad(format!("block {blkid} is a hole")));
            };
            let data = block.data.bytes();
            self.load_log_block(&mut log, &Bytes::new(&data, block.order, "dedup log"))
                .map_err(|e| bad(e.to_string()))?;
        }
        Ok(log)
    }

    fn load_log_block(&self, log: &mut Log, b: &Bytes<'_>) -> cenote_format::Result<()> {
        let mut at = 0;
        while at + 8 <= b.len() {
            let Some((entry, len)) = decode_record(self.flags, b, at)? else { break };
            if log.checkpoint.is_none_or(|c| entry.key > c) {
                log.entries.insert(entry.key, entry);
            }
            at += len;
        }
        Ok(())
    }

    /// An entry of one of the table's ZAPs.
    ///
    /// # Errors
    /// Its value is not one.
    pub fn entry(&self, key: Key, class: usize, value: &ZapEntry) -> cenote_format::Result<Entry> {
        decode_value(self.flags, key, class, &value.bytes())
    }

    /// The entry named `key`, from the logs or the ZAPs (`ddt_log_find_key`).
    pub fn lookup(&self, mos: &Arc<ObjectSet>, key: &Key) -> Result<Option<Entry>> {
        if let Some(entry) = self.logs.iter().find_map(|log| log.entries.get(key)) {
            return Ok(Some(entry.clone()));
        }
        for stored in &self.stored {
            let zap = Zap::open(&mos.object(stored.object)?)?;
            if let Some(value) = zap.lookup_words(&key.0)? {
                let entry = self.entry(*key, stored.class, &value);
                return entry.map(Some).map_err(|e| corrupt(mos, stored.object, e.to_string()));
            }
        }
        Ok(None)
    }

    /// Calls `f` with every entry of one of the table's ZAPs, in hash order.
    pub fn for_each_stored(
        &self,
        mos: &Arc<ObjectSet>,
        stored: &Stored,
        f: &mut dyn FnMut(&Entry) -> Result<()>,
    ) -> Result<()> {
        let zap = Zap::open(&mos.object(stored.object)?)?;
        let bad = |why: String| corrupt(mos, stored.object, why);
        let mut cursor = 0;
        loop {
            let batch = zap.entries_from(cursor, 1000)?;
            let Some(last) = batch.last() else { return Ok(()) };
            cursor = last.cursor;
            for value in &batch {
                let name = Bytes::new(&value.name, ByteOrder::Big, "dedup table key");
                let key = Key(name.u64s(0).map_err(|e| bad(e.to_string()))?);
                let entry = self.entry(key, stored.class, value);
                f(&entry.map_err(|e| bad(e.to_string()))?)?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_and_log() -> (Table, Log) {
        let table = Table {
            checksum: Checksum::Sha256,
            version: 1,
            flags: FLAG_FLAT | FLAG_LOG,
            directory: 1,
            stored: Vec::new(),
            logs: Vec::new(),
        };
        let (entries, checkpoint) = (HashMap::new(), None);
        (table, Log { object: 2, flags: 0, length: 0, first_txg: 0, checkpoint, entries })
    }

    fn record(key: u64, references: u64) -> Vec<u8> {
        let mut words = vec![1 | 120 << 8 | 1 << 48 | 3 << 56, key, 0, 0, 0, 0];
        words.extend([1 << 32 | 8, 0, 0, 0, 0, 0, references, 7, 0]);
        words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect()
    }

    fn read(data: &[u8]) -> cenote_format::Result<Log> {
        let (table, mut log) = table_and_log();
        table.load_log_block(&mut log, &Bytes::new(data, ByteOrder::Little, "test"))?;
        Ok(log)
    }

    #[test]
    fn later_records_replace_earlier_ones() {
        let mut data = [record(1, 5), record(2, 1), record(1, 6)].concat();
        data.resize(4096, 0);
        let log = read(&data).unwrap();
        let references = |key| log.entries[&Key([key, 0, 0, 0, 0])].phys[0].refcount;
        assert_eq!((log.entries.len(), references(1), references(2)), (2, 6, 1));
        let dva = log.entries[&Key([1, 0, 0, 0, 0])].phys[0].copies(false)[0];
        assert_eq!((dva.vdev, dva.asize), (1, 4096));
    }

    #[test]
    fn records_that_do_not_advance_are_refused() {
        assert!(read(&1u64.to_le_bytes()).is_err());
        assert!(read(&record(1, 1)[..100]).is_err());
    }
}
