//! What deduplication and block cloning save.
//!
//! *Deduplication tables* are ZAPs by checksum, type and class. How many blocks they hold with how
//! many references is kept apart as histograms of 64 buckets by number of references, in the ZAP
//! `DDT-statistics`: words blocks, lsize, psize, dsize and the same four multiplied by references.
//!
//! ```text
//! object directory ─┬─ DDT-statistics ── "DDT-sha256-zap-unique" -> 64 x 8 words
//!                   ├─ DDT-sha256-zap-unique            (tables before fast dedup)
//!                   └─ DDT-sha256 ─┬─ version, flags    (fast dedup)
//!                                  ├─ DDT-sha256-zap-unique
//!                                  └─ DDT-log-sha256-0, -1
//! ```
//!
//! With fast dedup, new entries go to a log first and are in no histogram until they are moved to
//! the table. A log is an object of records: a word (type, length), the block's key (checksum,
//! sizes), three DVAs, the number of references, birth and time. There are two logs; one is being
//! moved, up to the key in its header, and where both have a key the other is right.
//!
//! *Block cloning* keeps a table for each vdev; the bonus buffer of its MOS entry
//! `com.fudosecurity:brt:vdev:N` has the totals.

use crate::directory::Directory;
use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, Object, ObjectSet, Result};
use cenote_format::{Bytes, SECTOR};
use cenote_vdev::VdevTree;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is saved. Bytes; with RAID-Z parity taken off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Savings {
    /// Bytes that deduplicated blocks take.
    pub dedup_stored: u64,
    /// Bytes that they would take without deduplication.
    pub dedup_referenced: u64,
    /// Bytes that the tables themselves take.
    pub dedup_tables: u64,
    /// Bytes that cloned blocks take.
    pub clone_stored: u64,
    /// Bytes saved by cloning.
    pub clone_saved: u64,
}

impl Savings {
    /// Bytes saved by deduplication.
    pub fn dedup_saved(&self) -> u64 {
        self.dedup_referenced.saturating_sub(self.dedup_stored)
    }

    /// Hundredths of the property `dedupratio`.
    pub fn dedup_ratio(&self) -> u64 {
        ratio(self.dedup_referenced, self.dedup_stored)
    }

    /// Hundredths of the property `bcloneratio`.
    pub fn clone_ratio(&self) -> u64 {
        ratio(self.clone_stored.saturating_add(self.clone_saved), self.clone_stored)
    }

    pub(crate) fn load(
        mos: &Arc<ObjectSet>,
        directory: &Directory,
        vdevs: &VdevTree,
    ) -> Result<Savings> {
        let mut s = Savings::default();
        for entry in directory.entries()? {
            let (Ok(name), Some(object)) = (std::str::from_utf8(&entry.name), entry.u64()) else {
                continue;
            };
            if name.starts_with("com.fudosecurity:brt:vdev:") {
                s.add_clones(&mos.object(object)?)?;
            } else if name == "DDT-statistics" {
                s.add_histograms(&Zap::open(&mos.object(object)?)?)?;
            } else if let Some(rest) = name.strip_prefix("DDT-") {
                match rest.contains('-') {
                    true => s.add_table(&mos.object(object)?),
                    false => s.add_directory(mos, &Zap::open(&mos.object(object)?)?, vdevs)?,
                }
            }
        }
        Ok(s)
    }

    fn add_clones(&mut self, object: &Object) -> Result<()> {
        // brt_vdev_phys_t: entries, size, byte order, count, range size, used, saved.
        let words = object.bonus().u64s::<7>(0).map_err(|e| decode(object, e))?;
        self.clone_stored = self.clone_stored.saturating_add(words[5]);
        self.clone_saved = self.clone_saved.saturating_add(words[6]);
        Ok(())
    }

    fn add_histograms(&mut self, zap: &Zap) -> Result<()> {
        for entry in zap.entries()? {
            for bucket in entry.value.chunks_exact(8) {
                if let [_, _, _, dsize, _, _, _, ref_dsize] = *bucket {
                    self.dedup_stored = self.dedup_stored.saturating_add(dsize);
                    self.dedup_referenced = self.dedup_referenced.saturating_add(ref_dsize);
                }
            }
        }
        Ok(())
    }

    fn add_table(&mut self, object: &Object) {
        let sectors = object.dnode().used.saturating_add(SECTOR / 2) / SECTOR;
        self.dedup_tables = self.dedup_tables.saturating_add(sectors.saturating_mul(SECTOR));
    }

    fn add_directory(&mut self, mos: &Arc<ObjectSet>, zap: &Zap, vdevs: &VdevTree) -> Result<()> {
        let (mut active, mut flushing) = (Log::new(), Log::new());
        for entry in zap.entries()? {
            let (Ok(name), Some(number)) = (std::str::from_utf8(&entry.name), entry.u64()) else {
                continue;
            };
            if !name.starts_with("DDT-") {
                continue;
            }
            let object = mos.object(number)?;
            self.add_table(&object);
            if name.starts_with("DDT-log-") {
                let (is_flushing, log) = read_log(&object)?;
                (if is_flushing { &mut flushing } else { &mut active }).extend(log);
            }
        }
        flushing.extend(active);
        for (key, entry) in &flushing {
            let stored = entry.dvas(key).fold(0u64, |sum, (vdev, asize)| {
                let top = vdevs.root().children().get(vdev as usize);
                sum.saturating_add(top.map_or(0, |v| v.deflate(asize)))
            });
            self.dedup_stored = self.dedup_stored.saturating_add(stored);
            let referenced = stored.saturating_mul(entry.references);
            self.dedup_referenced = self.dedup_referenced.saturating_add(referenced);
        }
        Ok(())
    }
}

fn ratio(whole: u64, part: u64) -> u64 {
    let hundredths = u128::from(whole) * 100;
    hundredths.checked_div(part.into()).map_or(100, |r| u64::try_from(r).unwrap_or(u64::MAX))
}

fn decode(object: &Object, source: cenote_format::DecodeError) -> Error {
    Error::Decode { objset: object.objset().id(), object: object.number(), source }
}

/// `ddt_key_t`: checksum and sizes.
type Key = [u64; 5];

/// The entries of a log by key; later records replace earlier ones.
type Log = BTreeMap<Key, Entry>;

/// `ddp_flat`: where the block is, and how many references it has.
struct Entry {
    dvas: [u64; 6],
    references: u64,
}

impl Entry {
    /// Vdev and allocated bytes of each copy. The third DVA of an encrypted block is none.
    fn dvas(&self, key: &Key) -> impl Iterator<Item = (u64, u64)> {
        let encrypted = key[4] >> 39 & 1 == 1;
        let pairs = self.dvas.chunks_exact(2).take(if encrypted { 2 } else { 3 });
        let sizes = pairs.filter_map(|d| match *d {
            [w0, _] => Some((w0 >> 32 & 0xff_ffff, (w0 & 0xff_ffff) * SECTOR)),
            _ => None,
        });
        sizes.filter(|(_, asize)| *asize != 0)
    }
}

/// Words of a record that holds an entry: head, key, DVAs, references, birth, time.
const RECORD_WORDS: usize = 15;

/// Logs longer than this are not read.
const MAX_LOG: u64 = 4 << 30;

/// Reads a log: whether it is the one being moved, and its entries that still count.
fn read_log(object: &Object) -> Result<(bool, Log)> {
    let [info, length, _] = object.bonus().u64s::<3>(0).map_err(|e| decode(object, e))?;
    let corrupt = |why: String| {
        let (objset, object) = (object.objset().id(), object.number());
        Error::Corrupt { objset, object, why: format!("dedup log: {why}") }
    };
    let (version, flags) = (info & 0xff, info >> 8 & 0xff);
    if version != 1 || length > MAX_LOG {
        return Err(corrupt(format!("version {version}, length {length:#x}")));
    }
    let checkpoint = match flags & 2 {
        0 => None,
        _ => Some(object.bonus().u64s::<5>(24).map_err(|e| decode(object, e))?),
    };
    let mut log = Log::new();
    for blkid in 0..length.div_ceil(object.dnode().block_size) {
        let Some(block) = object.block(blkid)? else {
            return Err(corrupt(format!("block {blkid} is a hole")));
        };
        let data = block.data.bytes();
        read_records(&Bytes::new(&data, block.order, "dedup log"), &mut log).map_err(corrupt)?;
    }
    if let Some(done) = checkpoint {
        log.retain(|key, _| *key > done);
    }
    Ok((flags & 1 != 0, log))
}

/// Reads the records of a block; a record of type 0 ends it.
fn read_records(block: &Bytes<'_>, log: &mut Log) -> std::result::Result<(), String> {
    let mut at = 0;
    while at + 8 <= block.len() {
        let head = block.u64(at).map_err(|e| e.to_string())?;
        let (kind, len) = (head & 0xff, (head >> 8 & 0xffff) as usize);
        match kind {
            0 => return Ok(()),
            1 if len >= RECORD_WORDS * 8 => (),
            _ => return Err(format!("record of type {kind} with {len} bytes")),
        }
        let words = block.u64s::<14>(at + 8).map_err(|e| e.to_string())?;
        let [k0, k1, k2, k3, k4, d0, d1, d2, d3, d4, d5, references, ..] = words;
        let entry = Entry { dvas: [d0, d1, d2, d3, d4, d5], references };
        log.insert([k0, k1, k2, k3, k4], entry);
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::ByteOrder;

    fn record(key: u64, references: u64) -> Vec<u8> {
        let mut words = vec![1 | 120 << 8, key, 0, 0, 0, 0];
        words.extend([1 << 32 | 8, 0, 0, 0, 0, 0, references, 7, 0]);
        words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect()
    }

    #[test]
    fn later_records_replace_earlier_ones() {
        let mut data = [record(1, 5), record(2, 1), record(1, 6)].concat();
        data.resize(4096, 0);
        let mut log = Log::new();
        read_records(&Bytes::new(&data, ByteOrder::Little, "test"), &mut log).unwrap();
        let found: Vec<_> = log.iter().map(|(k, e)| (k[0], e.references)).collect();
        assert_eq!(found, [(1, 6), (2, 1)]);
        let dvas: Vec<_> = log[&[1, 0, 0, 0, 0]].dvas(&[0; 5]).collect();
        assert_eq!(dvas, [(1, 4096)]);
    }

    #[test]
    fn records_that_do_not_advance_are_refused() {
        let mut log = Log::new();
        let data = 1u64.to_le_bytes();
        assert!(read_records(&Bytes::new(&data, ByteOrder::Little, "test"), &mut log).is_err());
    }

    #[test]
    fn ratios() {
        assert_eq!(Savings::default().dedup_ratio(), 100);
        assert_eq!(ratio(330, 100), 330);
        assert_eq!(ratio(u64::MAX, 1), u64::MAX);
    }
}
