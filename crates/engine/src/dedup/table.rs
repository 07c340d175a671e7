//! The table of one checksum function: entries that the group touches, logs, histograms.
//!
//! # Structures
//!
//! A [`Table`] is made of how it is on disk: its version and flags, the ZAP of each class with a histogram, and two logs whose entries
//! are all in memory. Beside that it has the entries that the group touches (`live`). An entry becomes live when it is first asked for:
//! from a log (`revive`), or by its lookup in the ZAPs (`insert`). A live entry remembers where it came from, and whether it has changed.
//!
//! # Invariants
//!
//! - An entry that comes from a ZAP leaves the ZAP's histogram while it is live, and is counted again where it ends. Entries of logs are
//!   counted in `logged`.
//! - Histograms start from numbers of the disk and are only shown: one that does not add up is said in the log, and is no error.
//! - An entry that is live already stays as it is: another thread may have looked it up first, and changed it.

use super::pace::Pace;
use cenote_dmu::Result;
use cenote_dmu::zap::Zap;
use cenote_format::abd::Abd;
use cenote_format::checksum::Checksum;
use cenote_format::invariant::broken;
use cenote_pool::ddt::layout::{CLASSES, LogHeader};
use cenote_pool::ddt::{self, Entry, FLAG_FLAT, FLAG_LOG, Key, LOG_FLUSHING, Stored, Variants};
use cenote_pool::ddt_stats::Histogram;
use cenote_vdev::VdevTree;
use std::collections::BTreeMap;

/// Where an entry was before it became live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// Nowhere.
    New,
    /// In a ZAP only.
    Zap,
    /// In the active log.
    Active,
    /// In the log that is being flushed.
    Flushing,
}

/// Where an entry is that is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// Live already.
    Live,
    /// In the active log.
    Active,
    /// In the log that is being flushed.
    Flushing,
    /// In a ZAP, or nowhere.
    Elsewhere,
}

/// An entry of the group that is being written (`ddt_entry_t`, `ddt_alloc`).
#[derive(Debug)]
pub(super) struct Live {
    pub entry: Entry,
    pub from: From,
    /// Its references as it was looked up.
    pub before: u128,
    /// It is not what it was.
    pub changed: bool,
    /// Copies were allocated in this group.
    pub fresh: bool,
    /// The bytes of what was allocated in this group, if blocks are compared with it.
    pub data: Option<Abd>,
}

/// The references of an entry, of its obsolete variant as well.
pub(super) fn all_references(entry: &Entry) -> u128 {
    entry.phys.iter().map(|phys| u128::from(phys.refcount)).sum()
}

impl Live {
    fn of(entry: Entry, from: From) -> Live {
        let before = all_references(&entry);
        Live { entry, from, before, changed: false, fresh: false, data: None }
    }

    /// Whether it was nowhere before.
    pub fn is_new(&self) -> bool {
        self.from == From::New
    }
}

/// A log of a table (`ddt_log_t`).
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The object; 0: it is not made yet.
    pub object: u64,
    /// Its number, which is in its name.
    pub number: usize,
    /// Bytes in it.
    pub length: u64,
    /// Group in which it became active.
    pub first_txg: u64,
    /// Entries up to this one are in the ZAPs.
    pub checkpoint: Option<Key>,
    pub entries: BTreeMap<Key, Entry>,
}

impl Log {
    fn of(number: usize, log: ddt::Log) -> Log {
        let ddt::Log { object, length, first_txg, checkpoint, entries, .. } = log;
        let entries = entries.into_iter().collect();
        Log { object, number, length, first_txg, checkpoint, entries }
    }

    pub fn header(&self, flags: u8) -> LogHeader {
        let (length, first_txg, checkpoint) = (self.length, self.first_txg, self.checkpoint);
        LogHeader { flags, length, first_txg, checkpoint }
    }
}

/// How a table is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// 0, or 1: fast dedup.
    pub version: u64,
    /// `FLAG_*`.
    pub flags: u64,
    /// The directory of its objects; `None`: it is not made yet.
    pub directory: Option<u64>,
}

/// The table of one checksum function (`ddt_t`).
pub(super) struct Table {
    pub checksum: Checksum,
    /// `None`: there is nothing of it (`DDT_VERSION_UNCONFIGURED`).
    pub layout: Option<Layout>,
    /// Its ZAPs, by class.
    pub objects: [Option<u64>; CLASSES.len()],
    /// What is in each of them and not in a log.
    pub histograms: [Histogram; CLASSES.len()],
    pub live: BTreeMap<Key, Live>,
    pub active: Log,
    pub flushing: Log,
    /// What is in logs.
    pub logged: Histogram,
    /// Entries that the last group left in the logs.
    pub in_logs: usize,
    /// References that the group took to blocks of it, and let go.
    pub taken: u64,
    pub let_go: u64,
    pub pace: Pace,
}

impl Table {
    pub fn new(checksum: Checksum) -> Table {
        let (objects, histograms, live, active, logged, pace) = Default::default();
        let flushing = Log { number: 1, ..Log::default() };
        Table {
            checksum,
            layout: None,
            objects,
            histograms,
            live,
            active,
            flushing,
            logged,
            in_logs: 0,
            taken: 0,
            let_go: 0,
            pace,
        }
    }

    /// From how it is on disk. `statistics` has the histograms.
    ///
    /// # Errors
    /// These cannot be read.
    pub fn open(found: ddt::Table, statistics: &Zap, vdevs: &VdevTree) -> Result<Table> {
        let mut table = Table::new(found.checksum);
        let directory = Some(found.directory);
        table.layout = Some(Layout { version: found.version, flags: found.flags, directory });
        for stored in &found.stored {
            table.objects[stored.class] = Some(stored.object);
            if let Some(entry) = statistics.lookup(stored.name.as_bytes())? {
                match Histogram::from_words(&entry.value) {
                    Some(histogram) => table.histograms[stored.class] = histogram,
                    None => table.uncounted(),
                }
            }
        }
        for (number, log) in found.logs.into_iter().enumerate() {
            let flushes = log.flags & LOG_FLUSHING != 0;
            let place = if flushes { &mut table.flushing } else { &mut table.active };
            *place = Log::of(number, log);
        }
        // One log alone keeps its number.
        if table.active.object == 0 && table.flushing.object != 0 {
            table.active.number = 1 - table.flushing.number;
        } else if table.flushing.object == 0 && table.active.object != 0 {
            table.flushing.number = 1 - table.active.number;
        }
        for entry in table.active.entries.values().chain(table.flushing.entries.values()) {
            if !table.logged.put_entry(entry, vdevs) {
                tracing::warn!("the logs of {} count more than can be", found.checksum.name());
            }
        }
        table.in_logs = table.logged_entries();
        Ok(table)
    }

    /// A histogram counts more than there are numbers: what it says is only shown, and is from the disk.
    pub fn uncounted(&self) {
        tracing::warn!("a histogram of {} counts more than can be", self.checksum.name());
    }

    pub fn flags(&self) -> u64 {
        self.layout.map_or(0, |layout| layout.flags)
    }

    pub fn has_logs(&self) -> bool {
        self.flags() & FLAG_LOG != 0
    }

    pub fn is_flat(&self) -> bool {
        self.flags() & FLAG_FLAT != 0
    }

    /// Entries in its logs.
    pub fn logged_entries(&self) -> usize {
        self.active.entries.len() + self.flushing.entries.len()
    }

    pub fn has_log(&self, object: u64) -> bool {
        object != 0 && (self.active.object == object || self.flushing.object == object)
    }

    /// All its objects but the directory.
    pub fn objects(&self) -> impl Iterator<Item = u64> + use<> {
        let logs = [self.active.object, self.flushing.object].into_iter().filter(|n| *n != 0);
        self.objects.into_iter().flatten().chain(logs)
    }

    /// The name of the ZAP of a class.
    pub fn name_of(&self, class: usize) -> String {
        let Some(class) = CLASSES.get(class) else {
            broken(format_args!(
                "a deduplication table of {} of class {class}",
                self.checksum.name()
            ))
        };
        format!("DDT-{}-zap-{class}", self.checksum.name())
    }

    /// As it is read on disk; without its logs, which are in memory.
    pub fn reader(&self) -> ddt::Table {
        let stored = |(class, object): (usize, &Option<u64>)| {
            object.map(|object| Stored { class, name: self.name_of(class), object })
        };
        ddt::Table {
            checksum: self.checksum,
            version: self.layout.map_or(0, |layout| layout.version),
            flags: self.flags(),
            directory: self.layout.and_then(|layout| layout.directory).unwrap_or(0),
            stored: self.objects.iter().enumerate().filter_map(stored).collect(),
            logs: Vec::new(),
        }
    }

    pub fn live_mut(&mut self, key: &Key) -> Option<&mut Live> {
        self.live.get_mut(key)
    }

    /// Where an entry is. One in a log becomes live. A table without anything gets these flags.
    pub fn revive(&mut self, key: &Key, new_flags: u64) -> Where {
        if self.layout.is_none() {
            let (version, flags) = (u64::from(new_flags != 0), new_flags);
            // Tables of version 0 are in the object directory.
            let directory = (version == 0).then_some(ddt::DIRECTORY);
            self.layout = Some(Layout { version, flags, directory });
        }
        if self.live.contains_key(key) {
            return Where::Live;
        }
        let (entry, from, found) = match self.active.entries.get(key) {
            Some(entry) => (entry, From::Active, Where::Active),
            None => match self.flushing.entries.get(key) {
                Some(entry) => (entry, From::Flushing, Where::Flushing),
                None => return Where::Elsewhere,
            },
        };
        let live = Live::of(entry.clone(), from);
        self.live.insert(*key, live);
        found
    }

    /// Makes an entry live that was looked up in the ZAPs; `None`: it is in none.
    pub fn insert(&mut self, key: Key, entry: Option<Entry>, vdevs: &VdevTree) {
        // Another thread may have looked it up meanwhile, and have changed it.
        if self.live.contains_key(&key) {
            return;
        }
        let (entry, from) = match entry {
            Some(entry) => {
                self.uncount(&entry, vdevs);
                (entry, From::Zap)
            }
            None => {
                let phys = Variants::unused(self.flags());
                (Entry { key, phys, class_start: 0, stored: None }, From::New)
            }
        };
        self.live.insert(key, Live::of(entry, from));
    }

    /// Counts an entry in the histogram of its ZAP.
    pub fn count(&mut self, entry: &Entry, vdevs: &VdevTree) {
        let Some(class) = entry.stored else { return };
        match self.histograms.get_mut(class) {
            Some(histogram) => {
                if !histogram.put_entry(entry, vdevs) {
                    tracing::warn!(
                        "a histogram of {} counts more than can be",
                        self.checksum.name()
                    );
                }
            }
            None => broken(format_args!("an entry is in the deduplication table of class {class}")),
        }
    }

    /// Takes an entry out of the histogram of its ZAP.
    pub fn uncount(&mut self, entry: &Entry, vdevs: &VdevTree) {
        let histogram = entry.stored.and_then(|class| self.histograms.get_mut(class));
        if let Some(histogram) = histogram
            && !histogram.take_entry(entry, vdevs)
        {
            // They are only shown, and what they say of the space is from the disk.
            tracing::warn!("the histogram of {} is wrong", self.checksum.name());
        }
    }

    /// Bytes that it saves, less the share of parity of RAID-Z.
    pub fn saved(&self) -> u64 {
        let saved = |histogram: &Histogram| {
            let [_, _, _, once, _, _, _, all] = histogram.total().0;
            all.saturating_sub(once)
        };
        self.histograms.iter().chain([&self.logged]).map(saved).fold(0, u64::saturating_add)
    }
}
