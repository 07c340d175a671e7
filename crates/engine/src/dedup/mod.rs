//! Deduplication: the tables of a pool while it is written (`ddt_t`, `ddt_lookup`, `ddt_sync`).
//!
//! # Idea
//!
//! A block with the dedup bit is in the table of its checksum function, with the number of pointers to it. What a
//! table is on disk says [`cenote_pool::ddt`]. In memory a table has the entries that the group touches, and its logs:
//!
//! ```text
//!  writes of a batch ── load ──┐  live entries of this group     logs (fast_dedup)        ZAPs, by class
//!  frees of the group ─ load ──┤  ┌───────────────────────┐  ┌────────────────────┐  ┌─────────────────────┐
//!                              └─>│ key -> places, counts │<─│ active │ flushing  │<─│ duplicate │ unique  │
//!                                 └───────────────────────┘  └────────────────────┘  └─────────────────────┘
//!  pass 1 of the sync ─────────── append to the active log ──────^    some of it ── flush ─────^
//!                      without logs (version 0) ──────────────────────────────────────────────┘
//! ```
//!
//! The ZAPs are read through the MOS as the last group left it, many keys together ([`Dedup::load`]). They change only in
//! the first pass, after which nothing is looked up any more. `table` has the entries, `sync` writes them, `flush`
//! takes them from the logs, as fast as `pace` says.
//!
//! A block whose last reference goes is freed in that group, also in a table with logs: its entry is logged without a
//! place, as one that is pruned. OpenZFS keeps it until its entry is flushed; either reads what the other wrote.
//!
//! # Failure
//!
//! An entry that cannot be read is in no use: blocks of its name are written without the bit, and what is freed of them is leaked
//! and charged so. All ZAPs of a table are looked at for each key, so that a sync finds what it changes readable.
//!
//! # Invariants
//!
//! - Counts of references never go below zero: a reference that is not there is said in the log, and frees nothing.
//! - The references of what a group changed are those from before and what it took, less what it let go: nothing else counts them.
//! - Logs have the entries that they had, and what a group adds, less what it flushes.
//! - Live entries are empty between groups. An entry is in one place: live, in one log, or in one ZAP; logs are newer than ZAPs.
//! - A histogram on disk counts what is in its ZAP and not in a log.
//! - The lock of the tables is held while space is allocated, and never while something is read or written.

mod figures;
mod flush;
mod pace;
mod prune;
mod sync;
mod table;

use cenote_dmu::zap::Zap;
use cenote_dmu::{ObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::encode::blkptr::dva_words;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_pool::ddt::{self, CHECKSUMS, Entry, FLAG_FLAT, FLAG_LOG, Key};
use cenote_store::Store;
use cenote_store::write::WriteError;
use cenote_store::write::dedup::{Allocate, Known, Name, Place, Placed, Tables, Wish};
use figures::Figures;
pub(crate) use figures::TABLES;
use parking_lot::Mutex;
pub use prune::Prune;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
pub(crate) use sync::FAST_DEDUP;
use table::{From, Live, Table, Where};

/// Flags of new tables of pools with the feature `fast_dedup`.
const FAST: u64 = FLAG_FLAT | FLAG_LOG;
/// Keys that are looked up together.
const BATCH: usize = 1024;

/// The group that is being written.
pub(crate) struct Group {
    pub txg: u64,
    /// The MOS as the last group left it.
    pub base: Arc<ObjectSet>,
    /// No entries are added (`ddt_over_quota`).
    pub over_quota: bool,
    /// New tables have logs and flat entries (feature `fast_dedup`).
    pub fast: bool,
}

#[derive(Default)]
struct State {
    group: Option<Group>,
    /// The tables are on disk: nothing is looked up in this group any more.
    sealed: bool,
    tables: BTreeMap<u8, Table>,
    /// The object of all histograms.
    statistics: Option<u64>,
    /// Keys whose entries cannot be read in this group.
    unreadable: HashSet<(u8, Key)>,
    /// What is counted, by table.
    figures: BTreeMap<u8, Figures>,
}

/// The tables of a pool.
pub(crate) struct Dedup {
    store: Arc<Store>,
    state: Mutex<State>,
}

/// A key and whose table it is in.
type Wanted = (Checksum, Key);

/// What was found of a key.
type Found = (Wanted, Result<Option<Entry>>);

impl Dedup {
    /// Reads the tables' logs and histograms (`ddt_load`).
    ///
    /// # Errors
    /// They cannot be read.
    pub fn open(store: &Arc<Store>, mos: &Arc<ObjectSet>) -> Result<Dedup> {
        let mut state = State::default();
        let directory = Zap::open(&mos.object(ddt::DIRECTORY)?)?;
        state.statistics = directory.u64(ddt::STATISTICS.as_bytes())?;
        if let Some(statistics) = state.statistics {
            let statistics = Zap::open(&mos.object(statistics)?)?;
            for table in ddt::load(mos)? {
                let checksum = table.checksum as u8;
                let table = Table::open(table, &statistics, &store.vdevs())?;
                state.tables.insert(checksum, table);
            }
        }
        Ok(Dedup { store: store.clone(), state: Mutex::new(state) })
    }

    /// The tables of a pool that is being created.
    pub fn new(store: &Arc<Store>) -> Dedup {
        Dedup { store: store.clone(), state: Mutex::default() }
    }

    /// The sync of a group begins.
    pub fn begin(&self, group: Group) {
        let mut state = self.state.lock();
        let (last, txg) = (state.group.as_ref().map_or(0, |group| group.txg), group.txg);
        invariant!(last < txg, "deduplication: group {txg} begins after group {last}");
        let live: usize = state.tables.values().map(|table| table.live.len()).sum();
        invariant!(live == 0, "deduplication: {live} entries of group {last} are left in {txg}");
        (state.group, state.sealed) = (Some(group), false);
        state.unreadable.clear();
    }

    /// Bytes that deduplication saves (`ddt_get_dedup_dspace`), less the share of parity of RAID-Z.
    pub fn saved(&self) -> u64 {
        let state = self.state.lock();
        state.tables.values().map(Table::saved).fold(0, u64::saturating_add)
    }

    /// Objects of tables, whose blocks have an allocation class of their own.
    pub fn is_log(&self, object: u64) -> bool {
        let state = self.state.lock();
        state.tables.values().any(|table| table.has_log(object))
    }

    /// Bytes that the tables take on disk in group `base` (`ddt_get_ddt_dsize`).
    ///
    /// # Errors
    /// Their dnodes cannot be read.
    pub fn size(&self, base: &Arc<ObjectSet>) -> Result<u64> {
        let objects: Vec<u64> =
            self.state.lock().tables.values().flat_map(Table::objects).collect();
        let mut bytes = 0u64;
        for object in objects {
            bytes = bytes.saturating_add(base.object(object)?.dnode().used);
        }
        Ok(bytes)
    }

    /// Takes one reference away from each of these blocks, of which those without the dedup bit are left alone
    /// (`zio_ddt_free`). Returns the blocks that are no table's concern, without the bit, and those whose entries cannot be read.
    pub fn release(&self, blocks: Vec<BlockPointer>) -> (Vec<BlockPointer>, Vec<BlockPointer>) {
        let (of_tables, mut left): (Vec<_>, Vec<_>) =
            blocks.into_iter().partition(BlockPointer::is_dedup);
        let mut unreadable = Vec::new();
        for blocks in of_tables.chunks(BATCH) {
            self.load_keys(blocks.iter().filter_map(wanted).collect());
            let mut state = self.state.lock();
            for bp in blocks {
                match wanted(bp).map_or(Release::Apart, |wanted| state.release(&wanted, bp)) {
                    Release::Counted => {}
                    Release::Apart => left.push(without_bit(bp)),
                    Release::Unreadable => unreadable.push(*bp),
                }
            }
        }
        (left, unreadable)
    }

    /// Adds a reference to each of these blocks, which were cloned (`ddt_addref`). Returns those that are in no table:
    /// they have no dedup bit, or their entries were pruned.
    pub fn add_references(&self, blocks: &[BlockPointer]) -> Vec<BlockPointer> {
        let (of_tables, mut left): (Vec<_>, Vec<_>) =
            blocks.iter().copied().partition(BlockPointer::is_dedup);
        for blocks in of_tables.chunks(BATCH) {
            self.load_keys(blocks.iter().filter_map(wanted).collect());
            let mut state = self.state.lock();
            for bp in blocks {
                if !wanted(bp).is_some_and(|wanted| state.add_reference(&wanted, bp)) {
                    left.push(*bp);
                }
            }
        }
        left
    }

    /// Makes the entries with these keys live, reading them where they are (`ddt_lookup`).
    fn load_keys(&self, keys: BTreeSet<Wanted>) {
        let (base, missing) = {
            let mut state = self.state.lock();
            let missing: Vec<Wanted> = keys.into_iter().filter(|w| state.is_missing(w)).collect();
            let Some(group) = &state.group else {
                broken(format_args!("dedup outside of a group"))
            };
            if missing.is_empty() {
                return;
            }
            if state.sealed {
                broken(format_args!("an entry is looked up after its table was written"));
            }
            let mut by_table: BTreeMap<Checksum, Vec<Key>> = BTreeMap::new();
            for (checksum, key) in missing {
                by_table.entry(checksum).or_default().push(key);
            }
            let with_table = |(checksum, keys): (Checksum, Vec<Key>)| {
                Some((state.tables.get(&(checksum as u8))?.reader(), keys))
            };
            let missing: Vec<_> = by_table.into_iter().filter_map(with_table).collect();
            (group.base.clone(), missing)
        };
        let found: Vec<Found> =
            missing.into_iter().flat_map(|(table, keys)| look_up(&base, &table, keys)).collect();
        let mut state = self.state.lock();
        for (wanted, entry) in found {
            state.insert(wanted, entry, &self.store);
        }
    }
}

#[cfg(feature = "planted")]
impl Dedup {
    /// Adds a reference to a live entry, and nothing else.
    pub fn plant_reference(&self) {
        let mut state = self.state.lock();
        let mut live = state.tables.values_mut().flat_map(|table| table.live.values_mut());
        let phys = live.next().and_then(|live| live.entry.phys.last_mut());
        phys.into_iter().for_each(|phys| phys.refcount += 1);
    }

    /// Takes an entry out of a log. Returns whether there was one.
    pub fn plant_lost_entry(&self) -> bool {
        let mut state = self.state.lock();
        let mut logs = state.tables.values_mut().map(|table| &mut table.active.entries);
        logs.any(|entries| entries.pop_first().is_some())
    }
}

/// Looks for keys in all ZAPs of a table (`ddt_zap_lookup`).
fn look_up(base: &Arc<ObjectSet>, table: &ddt::Table, keys: Vec<Key>) -> Vec<Found> {
    let mut entries: Vec<Result<Option<Entry>>> = keys.iter().map(|_| Ok(None)).collect();
    for stored in &table.stored {
        let zap = base.object(stored.object).and_then(|object| Zap::open(&object));
        if let Ok(zap) = &zap {
            zap.load_words(keys.iter().map(|key| &key.0[..]));
        }
        for (key, entry) in keys.iter().zip(&mut entries) {
            if entry.is_err() {
                continue;
            }
            let found = zap.as_ref().map_err(Clone::clone).and_then(|zap| zap.lookup_words(&key.0));
            match found {
                Ok(None) => {}
                Ok(Some(value)) => {
                    let bad = |e| zap_error(base, stored.object, e);
                    *entry = table.entry(*key, stored.class, &value).map(Some).map_err(bad);
                }
                Err(e) => *entry = Err(e),
            }
        }
    }
    keys.into_iter().map(|key| (table.checksum, key)).zip(entries).collect()
}

fn zap_error(
    base: &Arc<ObjectSet>,
    object: u64,
    source: cenote_format::DecodeError,
) -> cenote_dmu::Error {
    cenote_dmu::Error::Decode { objset: base.id(), object, source }
}

/// The key of a block pointer, and its table.
fn wanted(bp: &BlockPointer) -> Option<Wanted> {
    let checksum = Checksum::from_u8(bp.checksum_type()).ok()?;
    CHECKSUMS.contains(&checksum).then(|| (checksum, Key::of(bp)))
}

/// The pointer of a block that no table counts.
fn without_bit(bp: &BlockPointer) -> BlockPointer {
    const DEDUP: u64 = 1 << 62;
    let mut plain = *bp;
    plain.0[6] &= !DEDUP;
    plain
}

/// What became of a block that lost a reference.
enum Release {
    /// Its table counts one less.
    Counted,
    /// No table counts it.
    Apart,
    /// It is not known.
    Unreadable,
}

impl State {
    fn table(&mut self, checksum: Checksum) -> &mut Table {
        let new = || Table::new(checksum);
        self.tables.entry(checksum as u8).or_insert_with(new)
    }

    /// Whether an entry must be read. An entry in a log becomes live.
    fn is_missing(&mut self, (checksum, key): &Wanted) -> bool {
        let fast = self.group.as_ref().is_some_and(|group| group.fast);
        if self.unreadable.contains(&(*checksum as u8, *key)) {
            return false;
        }
        let found = self.table(*checksum).revive(key, if fast { FAST } else { 0 });
        self.figures(*checksum).looked(found);
        found == Where::Elsewhere
    }

    fn figures(&mut self, checksum: Checksum) -> &mut Figures {
        self.figures.entry(checksum as u8).or_default()
    }

    fn insert(&mut self, (checksum, key): Wanted, entry: Result<Option<Entry>>, store: &Store) {
        self.figures(checksum).read(entry.as_ref().ok().map(Option::is_some));
        match entry {
            Ok(entry) => self.table(checksum).insert(key, entry, &store.vdevs()),
            Err(e) => {
                let name = checksum.name();
                tracing::warn!("an entry of the deduplication table of {name} is not used: {e}");
                self.unreadable.insert((checksum as u8, key));
            }
        }
    }

    /// Takes a reference away from an entry (`ddt_phys_decref`).
    fn release(&mut self, (checksum, key): &Wanted, bp: &BlockPointer) -> Release {
        if self.unreadable.contains(&(*checksum as u8, *key)) {
            return Release::Unreadable;
        }
        let Some(live) = self.table(*checksum).live_mut(key) else { return Release::Apart };
        let Some(phys) = live.entry.phys.iter_mut().find(|phys| phys.is_of(bp)) else {
            return Release::Apart;
        };
        match phys.refcount.checked_sub(1) {
            Some(left) => {
                phys.refcount = left;
                live.changed = true;
                self.table(*checksum).let_go += 1;
            }
            // All its references are of this group.
            None if live.from == From::New => {
                broken(format_args!("a block is freed once more than it was written: {bp:?}"))
            }
            // The count is of the disk.
            None => tracing::warn!("a block is freed that has no references: {bp:?}"),
        }
        Release::Counted
    }

    /// Adds a reference to an entry (`ddt_phys_addref`).
    fn add_reference(&mut self, (checksum, key): &Wanted, bp: &BlockPointer) -> bool {
        let live = self.table(*checksum).live_mut(key);
        let Some(live) = live else { return false };
        let Some(phys) = live.entry.phys.iter_mut().find(|phys| phys.is_of(bp)) else {
            return false;
        };
        let Some(more) = phys.refcount.checked_add(1) else { return false };
        (phys.refcount, live.changed) = (more, true);
        self.table(*checksum).taken += 1;
        true
    }
}

/// The key of a block that will be written.
fn named(name: &Name) -> Wanted {
    let key = Key::new(name.sum, name.lsize, name.psize, name.compression);
    (name.checksum, if name.encrypted { key.encrypted() } else { key })
}

impl Live {
    /// Where the block is that others are compared with.
    fn place(&self) -> Option<Place> {
        let (key, phys) = (&self.entry.key, &self.entry.phys);
        // The first variant of four is obsolete.
        let used = phys.iter().skip(usize::from(phys.len() > 1)).find(|phys| phys.birth != 0)?;
        Some(Place { dvas: used.copies(key.is_encrypted()), birth: used.birth })
    }
}

impl Tables for Dedup {
    fn load(&self, names: &[Name]) {
        self.load_keys(names.iter().map(named).collect());
    }

    fn known(&self, name: &Name) -> Option<Known> {
        let (checksum, key) = named(name);
        let mut state = self.state.lock();
        let live = state.table(checksum).live_mut(&key)?;
        let place = live.place()?;
        Some(Known { place, fresh: live.fresh, data: live.data.clone() })
    }

    fn place(
        &self,
        txg: u64,
        wish: &Wish<'_>,
        allocate: &mut Allocate<'_>,
    ) -> std::result::Result<Placed, WriteError> {
        let (checksum, key) = named(&wish.name);
        let mut state = self.state.lock();
        let over_quota = match &state.group {
            Some(group) if group.txg == txg => group.over_quota,
            _ => broken(format_args!("a block of group {txg} is placed in another one")),
        };
        // What cannot be read is not live.
        let Some(live) = state.table(checksum).live_mut(&key) else { return Ok(Placed::Apart) };
        if wish.compared.as_ref().is_some_and(|(_, place)| *place != live.place()) {
            return Ok(Placed::Changed);
        }
        if over_quota && live.is_new() && live.entry.phys.is_unused() {
            return Ok(Placed::Apart);
        }
        let variants = live.entry.phys.len();
        let variant = if variants > 1 { wish.copies.min(variants - 1) } else { 0 };
        let Some(phys) = live.entry.phys.get_mut(variant) else { return Ok(Placed::Apart) };
        let there = phys.copies(key.is_encrypted());
        let Some(references) = phys.refcount.checked_add(1) else { return Ok(Placed::Apart) };
        if there.len() < wish.copies {
            if there.iter().any(|dva| dva.gang) {
                return Ok(Placed::Apart);
            }
            let more = allocate(wish.copies - there.len(), there.len())?;
            let Some(more) = more else { return Ok(Placed::Apart) };
            let free = phys.dvas.chunks_exact_mut(2).skip(there.len());
            for (words, dva) in free.zip(&more) {
                words.copy_from_slice(&dva_words(dva)?);
            }
            // In the place of a third copy (`ddt_phys_extend`).
            if let (Some(words), Some(last)) = (&wish.params, phys.dvas.get_mut(4..)) {
                last.copy_from_slice(words);
            }
            if phys.birth == 0 {
                phys.birth = txg;
            }
            live.fresh = true;
            live.data = wish.compared.as_ref().map(|(data, _)| (*data).clone());
        }
        phys.refcount = references;
        live.changed = true;
        let place = Place { dvas: phys.copies(key.is_encrypted()), birth: phys.birth };
        state.table(checksum).taken += 1;
        Ok(Placed::At(place))
    }
}
