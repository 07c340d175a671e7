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
//! A log is an object of records: a word (type, length), the key, the physical part. Later records
//! replace earlier ones of the same key; those up to the key in the log's header (its checkpoint)
//! are in the ZAPs already.
//!
//! Invariants: the flushing log's entries give way to the active log's; both give way to
//! nothing; a decoded entry always has [`Entry::phys`] of 4 (version 0) or 1 variants. A log is no
//! longer than the devices have room for, and has no more entries than they have blocks, since each
//! entry is about a block.

use crate::directory::Directory;
use crate::spacemap::max_length;
use cenote_dmu::zap::{Zap, ZapEntry};
use cenote_dmu::{Error, ObjectSet, Result};
use cenote_dsl::bounds;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Checksum;
use cenote_format::compress::{self, Compression};
use cenote_format::{ByteOrder, Bytes};
use std::collections::HashMap;
use std::sync::Arc;

/// Entries have one extensible variant (`DDT_FLAG_FLAT`).
pub const FLAG_FLAT: u64 = 1;
/// The table has logs (`DDT_FLAG_LOG`).
pub const FLAG_LOG: u64 = 2;
/// The log is being flushed to the ZAPs (`DDL_FLAG_FLUSHING`).
pub const LOG_FLUSHING: u8 = 1;
/// The log's header has a checkpoint (`DDL_FLAG_CHECKPOINT`).
pub const LOG_CHECKPOINT: u8 = 2;

const TRADITIONAL_SIZE: usize = 256;
const FLAT_SIZE: usize = 72;
const KEY_SIZE: usize = 40;
/// Bytes of a log that are believed.
const MAX_LOG: u64 = 4 << 30;
/// Entries of a log that are believed however small the pool is.
const FEW_ENTRIES: u64 = 1 << 16;

/// What names a block: its checksum, and `lsize(16) | psize(16) | compression(7) | crypt(1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u64; 5]);

impl Key {
    /// The key under which `bp` would be found.
    pub fn of(bp: &BlockPointer) -> Key {
        let c = bp.checksum();
        let prop =
            (bp.0[6] & 0xffff_ffff) | (bp.0[6] & (0x7f << 32)) | (u64::from(bp.uses_crypt()) << 39);
        Key([c[0], c[1], c[2], c[3], prop])
    }

    /// Logical bytes of the block.
    pub fn lsize(&self) -> u64 {
        ((self.0[4] & 0xffff) + 1) << 9
    }

    /// Physical bytes of the block.
    pub fn psize(&self) -> u64 {
        ((self.0[4] >> 16 & 0xffff) + 1) << 9
    }

    /// Whether the block is encrypted (its third DVA is no address).
    pub fn is_encrypted(&self) -> bool {
        self.0[4] >> 39 & 1 == 1
    }
}

/// Where one variant of a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Phys {
    /// The DVAs' six words, as in a block pointer.
    pub dvas: [u64; 6],
    /// Block pointers that refer to it.
    pub refcount: u64,
    /// Transaction group that wrote it; 0 if the variant is unused.
    pub birth: u64,
}

impl Phys {
    /// `bp` with this variant's DVAs: an entry may have got more copies since `bp` was written.
    pub fn fill(&self, bp: &BlockPointer) -> BlockPointer {
        let mut full = *bp;
        full.0[..6].copy_from_slice(&self.dvas);
        full
    }

    /// The DVAs in use.
    pub fn copies(&self, encrypted: bool) -> Vec<Dva> {
        let mut bp = BlockPointer::HOLE;
        bp.0[..6].copy_from_slice(&self.dvas);
        bp.dvas().take(if encrypted { 2 } else { 3 }).collect()
    }
}

/// An entry of a table.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub key: Key,
    /// Its variants.
    pub phys: Vec<Phys>,
}

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

const CHECKSUMS: [Checksum; 5] =
    [Checksum::Sha256, Checksum::Sha512, Checksum::Skein, Checksum::Edonr, Checksum::Blake3];

/// All tables of the pool. Logs are read, ZAPs are not.
pub fn load(mos: &Arc<ObjectSet>) -> Result<Vec<Table>> {
    let root = Directory::open(mos)?;
    if root.u64("DDT-statistics")?.is_none() {
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

fn load_table(mos: &Arc<ObjectSet>, root: &Directory, checksum: Checksum) -> Result<Option<Table>> {
    let name = checksum.name();
    let own = root.u64(&format!("DDT-{name}"))?;
    let (directory, version, flags) = match own {
        None => (1, 0, 0),
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
    for (class, suffix) in ["ditto", "duplicate", "unique"].into_iter().enumerate() {
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
    fn phys_size(&self) -> usize {
        if self.flags & FLAG_FLAT != 0 { FLAT_SIZE } else { TRADITIONAL_SIZE }
    }

    /// What is in both logs counts as the active log has it.
    fn prefer_active_log(&mut self) {
        if let [a, b] = &mut self.logs[..] {
            let (active, flushing) = if a.flags & LOG_FLUSHING != 0 { (b, a) } else { (a, b) };
            flushing.entries.retain(|key, _| !active.entries.contains_key(key));
        }
    }

    fn decode_phys(&self, b: &Bytes<'_>) -> cenote_format::Result<Vec<Phys>> {
        let one = |at: usize| -> cenote_format::Result<Phys> {
            let w: [u64; 8] = b.u64s(at)?;
            Ok(Phys { dvas: [w[0], w[1], w[2], w[3], w[4], w[5]], refcount: w[6], birth: w[7] })
        };
        if self.flags & FLAG_FLAT != 0 {
            Ok(vec![one(0)?])
        } else {
            (0..4).map(|i| one(i * 64)).collect()
        }
    }

    fn load_log(&self, mos: &Arc<ObjectSet>, number: u64) -> Result<Log> {
        let bad = |why: String| corrupt(mos, number, format!("log: {why}"));
        let object = mos.object(number)?;
        let [info, length, first_txg, key @ ..] =
            object.bonus().u64s::<8>(0).map_err(|e| bad(e.to_string()))?;
        let flags = (info >> 8 & 0xff) as u8;
        if info & 0xff != 1 || length > MAX_LOG.min(max_length(mos)) {
            return Err(bad(format!("version {}, {length} bytes", info & 0xff)));
        }
        let checkpoint = (flags & LOG_CHECKPOINT != 0).then_some(Key(key));
        let mut log =
            Log { object: number, flags, length, first_txg, checkpoint, entries: HashMap::new() };
        let most = bounds::max_blocks(mos).max(FEW_ENTRIES);
        for blkid in 0..length.div_ceil(object.dnode().block_size) {
            let Some(block) = object.block(blkid)? else {
                return Err(bad(format!("block {blkid} is a hole")));
            };
            let data = block.data.bytes();
            self.load_log_block(&mut log, &Bytes::new(&data, block.order, "dedup log"))
                .map_err(|e| bad(e.to_string()))?;
            if log.entries.len() as u64 > most {
                return Err(bad(format!("more than {most} entries")));
            }
        }
        Ok(log)
    }

    fn load_log_block(&self, log: &mut Log, b: &Bytes<'_>) -> cenote_format::Result<()> {
        let mut at = 0;
        while at + 8 <= b.len() {
            let info = b.u64(at)?;
            let len = (info >> 8 & 0xffff) as usize;
            match info & 0xff {
                0 => break,
                1 if len >= 8 + KEY_SIZE + self.phys_size() => {}
                kind => {
                    let why = format!("record of type {kind}, {len} bytes");
                    return Err(cenote_format::DecodeError::invalid("dedup log", why));
                }
            }
            let key = Key(b.u64s(at + 8)?);
            if log.checkpoint.is_none_or(|c| key > c) {
                let phys = b.sub(at + 8 + KEY_SIZE, self.phys_size(), "dedup log entry")?;
                log.entries.insert(key, Entry { key, phys: self.decode_phys(&phys)? });
            }
            at += len;
        }
        Ok(())
    }

    /// Decodes the value of a ZAP entry.
    fn decode_stored(&self, value: &ZapEntry) -> cenote_format::Result<Vec<Phys>> {
        let invalid = |why: &str| cenote_format::DecodeError::invalid("dedup table entry", why);
        let packed = value.bytes();
        let (first, body) = packed.split_first().ok_or_else(|| invalid("empty"))?;
        let mut data = vec![0; self.phys_size()];
        match Compression::from_u8(first & 0x7f)? {
            Compression::Off | Compression::Inherit => {
                let body = body.get(..data.len()).ok_or_else(|| invalid("truncated"))?;
                data.copy_from_slice(body);
            }
            kind => compress::decompress(kind, body, &mut data)?,
        }
        let order = if first & 0x80 != 0 { ByteOrder::Little } else { ByteOrder::Big };
        self.decode_phys(&Bytes::new(&data, order, "dedup table entry"))
    }

    /// The entry named `key`, from the logs or the ZAPs.
    pub fn lookup(&self, mos: &Arc<ObjectSet>, key: &Key) -> Result<Option<Entry>> {
        if let Some(entry) = self.logs.iter().find_map(|log| log.entries.get(key)) {
            return Ok(Some(entry.clone()));
        }
        for stored in &self.stored {
            let zap = Zap::open(&mos.object(stored.object)?)?;
            if let Some(value) = zap.lookup_words(&key.0)? {
                let phys = self.decode_stored(&value);
                let phys = phys.map_err(|e| corrupt(mos, stored.object, e.to_string()))?;
                return Ok(Some(Entry { key: *key, phys }));
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
                let phys = self.decode_stored(value).map_err(|e| bad(e.to_string()))?;
                f(&Entry { key, phys })?;
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
        let mut words = vec![1 | 120 << 8, key, 0, 0, 0, 0];
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
