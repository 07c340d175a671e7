//! Entries on their way to disk (`ddt_sync_table`, `ddt_sync_flush_entry`, `ddt_log_entry`).
//!
//! # Algorithm
//!
//! `Dedup::sync` takes the tables and writes one after the other, in the first pass of a group:
//!
//! 1. Live entries that did not change go back to where they were. Of the others the variants without references are let go: their
//!    blocks are free. An entry that came and went in the group leaves nothing.
//! 2. A table without logs (version 0) stores each changed entry in its ZAP. A table with logs appends them to its active log, and then
//!    flushes some of what is logged (`flush`).
//! 3. An entry is stored by its references: in the ZAP of entries with several, or in that of entries with one. It is removed from the
//!    ZAP where it was before. Without references it is in no ZAP.
//! 4. Histograms are written. When all ZAPs are empty they are destroyed, and once the logs are empty the table's directory as well.
//!
//! Objects are made when they are first needed: the directory (with the feature `fast_dedup` counted), the logs, the ZAPs.
//!
//! # On disk
//!
//! The object of statistics has the histogram of each ZAP by the ZAP's name. The directory of a table (`DDT-` and the checksum's name)
//! has version, flags, ZAPs and logs. A log is a row of blocks of records, with its length and checkpoint in the bonus buffer.
//!
//! # Invariants
//!
//! - No table comes up while the tables are written.
//! - An entry is in one log: what comes into the active log leaves the other one.
//! - A block of records is no longer than a block of the log.

use super::table::{From, Layout, Live, Table, all_references};
use super::{Dedup, FAST};
use cenote_dmu::outside::Clock;
use cenote_dmu::write::zap::ZapFormat;
use cenote_dmu::write::{NewObject, WriteError, ZapMut};
use cenote_dmu::zap::Zap;
use cenote_dsl::write::{Result, Tx, features, pool};
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::dmu::DmuType;
use cenote_format::encode::zap::{Key as ZapKey, Value};
use cenote_format::invariant;
use cenote_format::zap::{FLAG_HASH64, FLAG_PRE_HASHED_KEY, FLAG_UINT64_KEY};
use cenote_pool::ddt::layout::{CLASSES, HEADER_SIZE, encode_record, encode_value};
use cenote_pool::ddt::{self, Entry, Key, LOG_CHECKPOINT, LOG_FLUSHING, Phys};
use cenote_pool::ddt_stats::Histogram;
use cenote_vdev::VdevTree;

/// The feature of tables of version 1.
pub(crate) const FAST_DEDUP: &str = "com.klarasystems:fast_dedup";
/// Classes of entries with several references, and with one.
const DUPLICATE: usize = 1;
const UNIQUE: usize = 2;
/// log2 of the bytes of a block of a ZAP of entries, and of pointers to such blocks (`ddt_zap_default_bs`,
/// `ddt_zap_default_ibs`).
const ZAP_SHIFT: u8 = 15;
/// Bytes of a block of a log (`SPA_OLD_MAXBLOCKSIZE`).
const LOG_BLOCK: u64 = 128 << 10;
/// `DMU_OT_DDT_STATS`, `DMU_OTN_ZAP_METADATA`, `DMU_OTN_UINT64_METADATA`, `DMU_OT_DEDUP`.
const STATISTICS: DmuType = DmuType(43);
const DIRECTORY: DmuType = DmuType(0xc4);
const WORDS: DmuType = DmuType(0xc3);
const BLOCK: u64 = 49;
/// Bytes of the first block of a new ZAP.
const SMALL_BLOCK: u64 = 512;

/// What a table is written with.
pub(super) struct Context<'a, 't> {
    pub tx: &'a mut Tx<'t>,
    pub vdevs: &'a VdevTree,
    pub clock: &'a Clock,
    /// The object of all histograms.
    pub statistics: Option<u64>,
    /// Blocks without references.
    pub freed: Vec<BlockPointer>,
}

impl Context<'_, '_> {
    fn statistics(&mut self) -> Result<u64> {
        if let Some(object) = self.statistics {
            return Ok(object);
        }
        let new = NewObject::new(STATISTICS, SMALL_BLOCK);
        let format = self.tx.zap_format()?;
        let object = ZapMut::create(self.tx.mos, &new, format)?;
        pool::set_entry(self.tx, ddt::STATISTICS, object)?;
        self.statistics = Some(object);
        Ok(object)
    }
}

impl Dedup {
    /// Writes what the group changed, in its first pass (`ddt_sync`). Returns blocks that are free.
    ///
    /// # Errors
    /// Fatal ones.
    pub fn sync(&self, tx: &mut Tx<'_>, clock: &Clock) -> Result<Vec<BlockPointer>> {
        let (mut tables, statistics) = {
            let mut state = self.state.lock();
            state.sealed = true;
            (std::mem::take(&mut state.tables), state.statistics)
        };
        let vdevs = self.store.vdevs();
        let mut context = Context { tx, vdevs: &vdevs, clock, statistics, freed: Vec::new() };
        let written = tables.values_mut().try_for_each(|table| table.sync(&mut context));
        let Context { statistics, freed, .. } = context;
        let mut state = self.state.lock();
        let others = state.tables.len();
        invariant!(others == 0, "{others} deduplication tables came up while they were written");
        for table in tables.values() {
            state.figures(table.checksum).left(table);
        }
        (state.tables, state.statistics) = (tables, statistics);
        written.map(|()| freed)
    }
}

/// Lets go of variants without references, and of those that are obsolete (`ddt_phys_free`).
fn free_unreferenced(entry: &mut Entry, checksum: Checksum, freed: &mut Vec<BlockPointer>) {
    let four = entry.phys.len() > 1;
    let key = entry.key;
    for (variant, phys) in entry.phys.iter_mut().enumerate() {
        let obsolete = four && variant == 0;
        if phys.birth != 0 && (phys.refcount == 0 || obsolete) {
            freed.push(pointer(checksum, &key, phys));
            *phys = Phys::default();
        }
    }
}

/// A pointer to a variant, without the dedup bit (`ddt_bp_create`).
fn pointer(checksum: Checksum, key: &Key, phys: &Phys) -> BlockPointer {
    const LITTLE: u64 = 1 << 63;
    const SIZES_AND_COMPRESSION: u64 = 0x7f_ffff_ffff;
    let crypt = u64::from(key.is_encrypted()) << 61;
    let mut bp = BlockPointer::HOLE;
    bp.0[..6].copy_from_slice(&phys.dvas);
    bp.0[6] = key.0[4] & SIZES_AND_COMPRESSION
        | u64::from(checksum as u8) << 40
        | BLOCK << 48
        | crypt
        | LITTLE;
    bp.0[10] = phys.birth;
    bp.0[11] = 1;
    bp.0[12..].copy_from_slice(&key.0[..4]);
    bp
}

impl Table {
    pub(super) fn sync(&mut self, context: &mut Context<'_, '_>) -> Result<()> {
        let (known, there) = (self.in_logs, self.logged_entries());
        let checksum = self.checksum.name();
        invariant!(known == there, "the logs of {checksum} had {known} entries, and have {there}");
        let changed = self.take_changed(context);
        if changed.is_empty() && !self.is_anything() {
            self.layout = None;
            return Ok(());
        }
        if !self.has_logs() {
            if changed.is_empty() {
                return Ok(());
            }
            let now = context.clock.seconds();
            for mut live in changed {
                live.entry.class_start = now;
                self.store(live.entry, context)?;
            }
            return self.update_statistics(context);
        }
        let count = changed.len() as u64;
        // What was in a log already is there once.
        let more = changed.iter().filter(|live| matches!(live.from, From::New | From::Zap)).count();
        if count > 0 {
            self.log(changed.into_iter().map(|live| live.entry).collect(), context)?;
        }
        self.pace.ingested(count);
        let stored = self.flush(context)?;
        let (had, has) = (known + more, self.logged_entries());
        invariant!(
            has + stored == had,
            "the logs of {checksum} have {has} entries of {had}, {stored} of which were stored"
        );
        self.in_logs = has;
        Ok(())
    }

    /// Whether it has objects.
    fn is_anything(&self) -> bool {
        let made = self.layout.and_then(|layout| layout.directory.filter(|_| layout.version > 0));
        made.is_some() || self.objects().next().is_some()
    }

    /// The live entries that are not what they were. The others are where they were.
    fn take_changed(&mut self, context: &mut Context<'_, '_>) -> Vec<Live> {
        let mut changed = Vec::new();
        let (mut before, mut after) = (0u128, 0u128);
        for (_, mut live) in std::mem::take(&mut self.live) {
            before += live.before;
            after += all_references(&live.entry);
            if !live.changed {
                if live.from == From::Zap {
                    self.count(&live.entry, context.vdevs);
                }
                continue;
            }
            free_unreferenced(&mut live.entry, self.checksum, &mut context.freed);
            // One that came and went leaves nothing.
            if !(live.is_new() && live.entry.phys.is_unused()) {
                changed.push(live);
            }
        }
        let (taken, let_go) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.let_go));
        invariant!(
            before + u128::from(taken) == after + u128::from(let_go),
            "blocks of {} had {before} references, of which {let_go} went and {taken} came, and have {after}",
            self.checksum.name()
        );
        changed
    }

    /// Makes the directory of a table of version 1 (`ddt_create_dir`).
    fn make_directory(&mut self, tx: &mut Tx<'_>) -> Result<u64> {
        if let Some(directory) = self.layout.and_then(|layout| layout.directory) {
            return Ok(directory);
        }
        let format = tx.zap_format()?;
        let new = NewObject::new(DIRECTORY, SMALL_BLOCK);
        let directory = ZapMut::create(tx.mos, &new, format)?;
        pool::set_entry(tx, &format!("DDT-{}", self.checksum.name()), directory)?;
        let (version, flags) = (1, FAST);
        for (name, number) in [("version", version), ("flags", flags)] {
            add_number(tx, directory, name, number)?;
        }
        features::increment(tx, FAST_DEDUP)?;
        self.layout = Some(Layout { version, flags, directory: Some(directory) });
        Ok(directory)
    }

    /// Puts changed entries into the active log (`ddt_sync_table_log`, `ddt_log_begin`).
    pub(super) fn log(&mut self, changed: Vec<Entry>, context: &mut Context<'_, '_>) -> Result<()> {
        let directory = self.make_directory(context.tx)?;
        if self.active.object == 0 {
            self.make_logs(directory, context.tx)?;
        }
        let (now, vdevs) = (context.clock.seconds(), context.vdevs);
        let object = self.active.object;
        let size = context.tx.mos.dnode(object)?.block_size.max(LOG_BLOCK);
        let mut block: Vec<u8> = Vec::with_capacity(size as usize);
        for mut entry in changed {
            if self.is_flat() {
                entry.class_start = now;
            }
            let record = encode_record(&entry);
            if block.len() + record.len() > size as usize {
                self.append(&mut block, size, context.tx)?;
            }
            block.extend(record);
            let older = self.flushing.entries.remove(&entry.key);
            if !self.logged.put_entry(&entry, vdevs) {
                self.uncounted();
            }
            let replaced = self.active.entries.insert(entry.key, entry);
            // What comes into the active log leaves the other one.
            let twice = older.is_some() && replaced.is_some();
            invariant!(!twice, "deduplication log {object}: an entry was in both logs");
            for old in older.into_iter().chain(replaced) {
                self.logged.take_entry(&old, vdevs);
            }
        }
        self.append(&mut block, size, context.tx)?;
        self.write_header(0, context.tx)?;
        self.write_histograms(context)
    }

    /// Writes a block to the end of the active log.
    fn append(&mut self, block: &mut Vec<u8>, size: u64, tx: &mut Tx<'_>) -> Result<()> {
        let (object, len) = (self.active.object, block.len());
        invariant!(
            len as u64 <= size,
            "deduplication log {object}: {len} bytes of records for a block of {size}"
        );
        block.resize(size as usize, 0);
        tx.mos.write(self.active.object, self.active.length, block)?;
        let end = self.active.length.checked_add(size);
        let why = || WriteError::Invalid { object, why: "a log without end".into() };
        self.active.length = end.ok_or_else(why)?;
        block.clear();
        Ok(())
    }

    /// Makes the two logs of a table (`ddt_log_alloc`).
    fn make_logs(&mut self, directory: u64, tx: &mut Tx<'_>) -> Result<()> {
        for (log, flags) in [(&mut self.active, 0), (&mut self.flushing, LOG_FLUSHING)] {
            (log.length, log.first_txg, log.checkpoint) = (0, tx.txg, None);
            log.object = tx.mos.allocate(&NewObject {
                bonus_kind: WORDS,
                bonus: vec![0; HEADER_SIZE],
                ..NewObject::new(WORDS, LOG_BLOCK)
            })?;
            let name = format!("DDT-log-{}-{}", self.checksum.name(), log.number);
            add_number(tx, directory, &name, log.object)?;
            tx.mos.set_bonus(log.object, WORDS, &log.header(flags).encode())?;
        }
        Ok(())
    }

    /// Writes the header of the active log, or with the flag [`LOG_FLUSHING`] of the other one (`ddt_log_checkpoint`).
    pub(super) fn write_header(&mut self, flags: u8, tx: &mut Tx<'_>) -> Result<()> {
        let log = if flags & LOG_FLUSHING != 0 { &self.flushing } else { &self.active };
        let point = if log.checkpoint.is_some() { LOG_CHECKPOINT } else { 0 };
        Ok(tx.mos.set_bonus(log.object, WORDS, &log.header(flags | point).encode())?)
    }

    /// Empties the log that was flushed (`ddt_log_truncate`).
    pub(super) fn truncate(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        if self.flushing.object == 0 {
            return Ok(());
        }
        tx.mos.truncate(self.flushing.object, 0)?;
        (self.flushing.length, self.flushing.checkpoint) = (0, None);
        self.write_header(LOG_FLUSHING, tx)
    }

    /// Whether what storing an entry needs can be read.
    pub(super) fn can_store(&self, entry: &Entry, tx: &mut Tx<'_>) -> bool {
        let mut zaps = [entry.stored, Some(DUPLICATE), Some(UNIQUE)]
            .into_iter()
            .filter_map(|class| self.objects.get(class?).copied().flatten());
        let key = ZapKey::Words(&entry.key.0);
        zaps.all(|object| match ZapMut::open(tx.mos, object).lookup(&key) {
            Ok(_) => true,
            Err(e) => {
                tracing::warn!("an entry of the table of {} waits: {e}", self.checksum.name());
                false
            }
        })
    }

    /// Puts an entry into the ZAP that it belongs to, or takes it out of all (`ddt_sync_flush_entry`, `ddt_object_update`).
    pub(super) fn store(&mut self, mut entry: Entry, context: &mut Context<'_, '_>) -> Result<()> {
        free_unreferenced(&mut entry, self.checksum, &mut context.freed);
        let references = entry.phys.references();
        let class = if references > 1 { DUPLICATE } else { UNIQUE };
        let key = ZapKey::Words(&entry.key.0);
        if let Some(old) = entry.stored.filter(|old| *old != class || references == 0) {
            let zap = self.objects.get(old).copied().flatten();
            let removed = match zap {
                Some(zap) => ZapMut::open(context.tx.mos, zap).remove(&key),
                None => Err(WriteError::NoEntry(0)),
            };
            match removed {
                Err(WriteError::NoEntry(_)) => {
                    tracing::warn!("an entry is not in {}", self.name_of(old));
                }
                removed => removed?,
            }
        }
        if references == 0 {
            return Ok(());
        }
        let zap = match self.objects.get(class).copied().flatten() {
            Some(zap) => zap,
            None => self.make_zap(class, context)?,
        };
        let value = encode_value(&entry);
        ZapMut::open(context.tx.mos, zap).update(&key, &Value::U8(&value))?;
        entry.stored = Some(class);
        self.count(&entry, context.vdevs);
        Ok(())
    }

    /// Makes the ZAP of a class (`ddt_object_create`).
    fn make_zap(&mut self, class: usize, context: &mut Context<'_, '_>) -> Result<u64> {
        let directory = match self.layout {
            Some(Layout { directory: Some(directory), .. }) => directory,
            _ => self.make_directory(context.tx)?,
        };
        let hashed = if self.checksum.is_dedup() { FLAG_PRE_HASHED_KEY } else { 0 };
        let format = ZapFormat {
            flags: FLAG_HASH64 | FLAG_UINT64_KEY | hashed,
            block_shift: ZAP_SHIFT.into(),
            ..context.tx.zap_format()?
        };
        let new = NewObject {
            indirect_shift: ZAP_SHIFT,
            ..NewObject::new(DmuType::DDT_ZAP, SMALL_BLOCK)
        };
        let zap = ZapMut::create(context.tx.mos, &new, format)?;
        add_number(context.tx, directory, &self.name_of(class), zap)?;
        self.objects[class] = Some(zap);
        Ok(zap)
    }

    /// Writes the histograms of all ZAPs (`ddt_object_sync`).
    fn write_histograms(&self, context: &mut Context<'_, '_>) -> Result<()> {
        let statistics = context.statistics()?;
        for class in 0..CLASSES.len() {
            if self.objects[class].is_some() {
                let name = self.name_of(class);
                let words = self.histograms[class].words();
                let mut zap = ZapMut::open(context.tx.mos, statistics);
                zap.update(&ZapKey::Name(name.as_bytes()), &Value::U64(&words))?;
            }
        }
        Ok(())
    }

    /// Writes the histograms, and takes away what has no entries any more (`ddt_sync_update_stats`).
    pub(super) fn update_statistics(&mut self, context: &mut Context<'_, '_>) -> Result<()> {
        self.write_histograms(context)?;
        for object in self.objects.into_iter().flatten() {
            let zap = context.tx.mos.view(object).and_then(|object| Zap::open(&object));
            // One that cannot be read may have entries.
            if zap.map_or(true, |zap| !zap.is_empty()) {
                return Ok(());
            }
        }
        let (Some(layout), statistics) = (self.layout, context.statistics()?) else {
            return Ok(());
        };
        for class in 0..CLASSES.len() {
            let Some(object) = self.objects[class].take() else { continue };
            let name = self.name_of(class);
            remove(context.tx, layout.directory.unwrap_or(ddt::DIRECTORY), &name)?;
            remove(context.tx, statistics, &name)?;
            context.tx.mos.free(object)?;
            self.histograms[class] = Histogram::default();
        }
        if self.active.entries.is_empty() && self.flushing.entries.is_empty() {
            self.destroy_directory(context.tx)?;
            self.layout = None;
        }
        Ok(())
    }

    /// Takes the directory away, with the logs (`ddt_destroy_dir`).
    fn destroy_directory(&mut self, tx: &mut Tx<'_>) -> Result<()> {
        let made = self.layout.filter(|layout| layout.version > 0);
        let Some(directory) = made.and_then(|layout| layout.directory) else { return Ok(()) };
        for log in [&mut self.active, &mut self.flushing] {
            if log.object != 0 {
                tx.mos.free(log.object)?;
                (log.object, log.length, log.checkpoint) = (0, 0, None);
            }
        }
        pool::remove_entry(tx, &format!("DDT-{}", self.checksum.name()))?;
        tx.mos.free(directory)?;
        features::decrement(tx, FAST_DEDUP)
    }
}

fn add_number(tx: &mut Tx<'_>, zap: u64, name: &str, number: u64) -> Result<()> {
    let key = ZapKey::Name(name.as_bytes());
    Ok(ZapMut::open(tx.mos, zap).add(&key, &Value::U64(&[number]))?)
}

fn remove(tx: &mut Tx<'_>, zap: u64, name: &str) -> Result<()> {
    match ZapMut::open(tx.mos, zap).remove(&ZapKey::Name(name.as_bytes())) {
        Err(WriteError::NoEntry(_)) => Ok(()),
        removed => Ok(removed?),
    }
}
