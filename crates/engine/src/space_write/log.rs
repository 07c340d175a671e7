//! Log space maps: one object for what all metaslabs change in a transaction group
//! (`spa_generate_syncing_log_sm`, `metaslab_flush`, `spa_log_sm_t`).
//!
//! # Idea
//!
//! Writing the changes of a txg to the space map of each metaslab costs a few blocks for each of
//! them, three copies of each, however little changed. So they go to one object, the *log* of the
//! txg, and are kept in memory as well ([`super::unflushed`]). In each txg a few metaslabs are
//! *flushed*: what they have unflushed goes to their own maps at once, see [`super::flushing`] for
//! how many these are. A log without unflushed metaslabs is destroyed.
//!
//! # Structures
//!
//! On disk see [`cenote_pool::logsm`]. In memory a [`LogSpace`] has the logs by txg, and a mark for each
//! metaslab: the txg since which its changes are in logs only, and whether there are any.
//!
//! # Invariants
//!
//! - A metaslab is flushed, or condensed, before its changes of the txg are logged, and then has
//!   that txg as its unflushed txg: entries of logs from that txg on, and no others, are
//!   unflushed. That happens in the first pass.
//! - There is a log of each metaslab's unflushed txg. (OpenZFS refuses a pool without.) So a
//!   metaslab without changes moves on when it holds a log back.
//! - All logs older than the oldest unflushed txg are destroyed in the first pass of the txg in
//!   which they become so.
//! - A metaslab that was ever logged has a space map of its own.
//! - When a txg is on disk, what the header of a map counts as free can be cut out of what is free.
//! - Once logging, always logging: the feature stays active, the list of logs and the arrays stay.
//!
//! # Headers
//!
//! The header of a metaslab's own map counts its free segments (`smp_histogram`). OpenZFS writes it
//! in each txg that changes the metaslab. That is a block of dnodes for each few metaslabs, so here
//! it is written when the metaslab is flushed, and before that only
//!
//! - when allocations made the header promise more than there is: OpenZFS weighs a metaslab by its
//!   header until it is loaded, and holds that the true weight is no less (`metaslab_load_impl`).
//!   Frees cannot bring that about, so the metaslabs that count are those that were allocated from;
//! - when a segment became free that is larger than any the header has, lest software that opens
//!   the pool after a crash takes the metaslab to be full.
//!
//! The allocations of later passes count too, so each pass looks at the metaslabs that it changed.

use super::flushing::{self, Growth, Limits, Rates, Row};
use super::map::{Covered, DIRECTORY_OBJECT, Free, Maps, counted, feature_uses, zap_u64};
use super::unflushed::Place;
use super::vdev::{UNFLUSHED_TXGS, new_zap};
use super::{SpaceMaps, Stats, VdevMaps, invalid};
use cenote_dmu::write::{NewObject, OpenObjectSet, Result, WriteError, ZapMut};
use cenote_format::dmu::DmuType;
use cenote_format::encode::spacemap::EntryWriter;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant::broken;
use cenote_format::spacemap::Change;
use cenote_format::{SECTOR_SHIFT, invariant, less};
use cenote_store::alloc::{Allocator, Changes, Metaslab};
use cenote_store::histogram::Histogram;
use cenote_store::rangetree::RangeTree;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

pub(super) const LOGS: &str = "com.delphix:log_spacemap_zap";
pub(super) const FEATURE: &str = "com.delphix:log_spacemap";
/// Bytes of a block of a log (`zfs_log_sm_blksz`), and of a metaslab's own map where there are logs
/// (`zfs_metaslab_sm_blksz_with_log`).
pub(super) const LOG_BLOCK: u64 = 128 << 10;
/// `DMU_OTN_UINT64_METADATA`: 64-bit integers of no type of their own.
const INTEGERS: DmuType = DmuType(0xc3);
/// Largest block of an array of unflushed txgs.
const MAX_ARRAY_BLOCK: u64 = 16 << 10;
/// What a log's entries are about: every byte of every vdev.
const COVERED: Covered = Covered { start: 0, size: u64::MAX, shift: SECTOR_SHIFT };
/// Bytes of an entry of a log.
const ENTRY: u64 = 16;

/// A log.
#[derive(Debug, Clone, Copy, Default)]
struct Log {
    /// Its object; 0 if it is missing though a metaslab names it.
    object: u64,
    blocks: u64,
}

/// Where a metaslab's changes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// Changes of this and later txgs are in logs only.
    txg: u64,
    /// Whether there are any.
    dirty: bool,
}

/// The logs of a pool; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct LogSpace {
    logs: BTreeMap<u64, Log>,
    marks: HashMap<Place, Mark>,
    order: BTreeSet<(u64, Place)>,
    /// Memory of what is unflushed after the flushes of the last txg, and what was added to it by
    /// the last few txgs.
    memory: u64,
    grown: VecDeque<u64>,
    /// Blocks that the log of this txg, and that of the last one, got after the first pass.
    late: u64,
    late_before: u64,
    /// Flush everything in the next txg.
    pub(super) all: bool,
}

impl LogSpace {
    /// The logs `(txg, object, bytes)` that there are, and for each metaslab that has one its
    /// unflushed txg, and whether it has unflushed changes (`spa_ld_log_sm_metadata`).
    pub(super) fn open(
        logs: impl IntoIterator<Item = (u64, u64, u64)>,
        marks: impl IntoIterator<Item = (Place, u64, bool)>,
    ) -> LogSpace {
        let mut space = LogSpace::default();
        for (txg, object, bytes) in logs {
            space.logs.insert(txg, Log { object, blocks: bytes.div_ceil(LOG_BLOCK) });
        }
        for (place, txg, dirty) in marks {
            space.logs.entry(txg).or_default();
            space.order.insert((txg, place));
            space.marks.insert(place, Mark { txg, dirty });
        }
        space
    }

    /// The object of the log of `txg`.
    pub(super) fn object(&self, txg: u64) -> Option<u64> {
        self.logs.get(&txg).map(|log| log.object).filter(|object| *object != 0)
    }

    /// Logs, and blocks of all of them.
    pub(super) fn size(&self) -> (u64, u64) {
        let logs = self.logs.values().filter(|log| log.object != 0);
        logs.fold((0, 0), |(count, blocks), log| (count + 1, blocks + log.blocks))
    }

    fn mark(&mut self, place: Place, txg: u64, dirty: bool) {
        if let Some(before) = self.marks.insert(place, Mark { txg, dirty }) {
            let ((vdev, ms), last) = (place, before.txg);
            invariant!(
                last <= txg,
                "vdev {vdev} metaslab {ms}: flushed in group {txg} after {last}"
            );
            let was = self.order.remove(&(before.txg, place));
            invariant!(was, "vdev {} metaslab {} is not in the order of flushes", place.0, place.1);
        }
        self.order.insert((txg, place));
    }

    /// A vdev has left: its metaslabs hold no log back.
    pub(super) fn forget(&mut self, vdev: u64) {
        self.marks.retain(|place, _| place.0 != vdev);
        self.order.retain(|(_, place)| place.0 != vdev);
    }

    fn is_dirty(&self, place: Place) -> bool {
        self.marks.get(&place).is_some_and(|mark| mark.dirty)
    }

    /// Metaslabs with unflushed changes of txgs before `txg`, in the order in which to flush them
    /// (`metaslab_sort_by_flushed`).
    fn due(&self, txg: u64) -> Vec<Place> {
        let before = self.order.range(..(txg, Place::default())).map(|(_, place)| *place);
        before.filter(|place| self.is_dirty(*place)).collect()
    }

    /// Oldest unflushed txg of those metaslabs that have unflushed changes.
    fn oldest_dirty(&self) -> Option<u64> {
        self.order.iter().find(|(_, place)| self.is_dirty(*place)).map(|(txg, _)| *txg)
    }

    /// The logs before `txg`, as the decision what to flush sees them.
    fn rows(&self, txg: u64, memory: &BTreeMap<Place, u64>) -> Vec<Row> {
        let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
        for (at, log) in self.logs.range(..txg) {
            let logs = u64::from(log.object != 0);
            rows.insert(*at, Row { logs, blocks: log.blocks, ..Row::default() });
        }
        for (at, place) in self.order.range(..(txg, Place::default())) {
            if !self.is_dirty(*place) {
                continue;
            }
            let Some(row) = rows.get_mut(at) else {
                let (vdev, ms) = place;
                broken(format_args!("vdev {vdev} metaslab {ms}: no log of group {at}"))
            };
            row.metaslabs += 1;
            // Changes that undo each other take none.
            row.memory += memory.get(place).copied().unwrap_or(0);
        }
        rows.into_values().collect()
    }

    /// How the logs and the memory grow, when the first pass of a txg makes so many changes.
    fn rates(&self, txg: u64, changes: u64, limits: &Limits) -> Rates {
        // Introductions and padding come on top, and what later passes change.
        let bytes = changes * ENTRY;
        let late = self.late_before.max(1);
        let first = (bytes + bytes / 64).div_ceil(LOG_BLOCK) + late;
        let walk = usize::try_from(limits.walk).unwrap_or(usize::MAX);
        let last = self.logs.range(..txg).rev().take(walk).map(|(_, log)| log.blocks);
        let (sum, count) = last.fold((0u64, 0u64), |(s, n), b| (s.saturating_add(b), n + 1));
        let later = if count == 0 { first } else { sum.div_ceil(count) };
        let mean = self.grown.iter().sum::<u64>() / (self.grown.len() as u64).max(1);
        // A range divides one segment and becomes another, at most.
        let most = changes * 2 * super::unflushed::SEGMENT_BYTES;
        Rates {
            blocks: Growth { first, later },
            memory: Growth { first: most, later: if self.grown.is_empty() { most } else { mean } },
        }
    }

    /// Takes note of what was unflushed when the pool was opened.
    pub(super) fn begin_with(&mut self, memory: u64) {
        self.memory = memory;
    }

    /// Notes how much memory there is before the flushes of a txg.
    fn note_growth(&mut self, memory: u64, limits: &Limits) {
        self.grown.push_back(memory.saturating_sub(self.memory));
        while self.grown.len() as u64 > limits.walk.max(1) {
            self.grown.pop_front();
        }
    }
}

impl VdevMaps {
    /// Notes on disk since when the changes of a metaslab are in logs only.
    fn set_unflushed(&mut self, mos: &mut OpenObjectSet, ms: u64, txg: u64) -> Result<()> {
        if self.unflushed == 0 {
            let bytes = self.maps.len() as u64 * 8;
            let block = bytes.next_power_of_two().clamp(cenote_format::SECTOR, MAX_ARRAY_BLOCK);
            let array = mos.allocate(&NewObject::new(INTEGERS, block))?;
            let name = Key::Name(UNFLUSHED_TXGS.as_bytes());
            ZapMut::open(mos, self.top_zap).add(&name, &Value::U64(&[array]))?;
            self.unflushed = array;
        }
        mos.write(self.unflushed, ms * 8, &txg.to_le_bytes())
    }
}

/// A pass of a sync whose changes are logged.
pub(super) struct LoggedPass<'a, 'b> {
    pub maps: Maps<'a>,
    pub space: &'b mut SpaceMaps,
    pub allocator: &'b Allocator,
    pub stats: Stats,
}

impl LoggedPass<'_, '_> {
    /// Flushes the metaslabs that are due, logs the changes, and destroys what is not needed any more.
    pub fn run(&mut self, pass: u32, changes: &[Changes]) -> Result<()> {
        let txg = self.maps.txg();
        let object = self.log(txg)?;
        let first = pass == 1;
        if first {
            self.space.log.late_before = std::mem::take(&mut self.space.log.late);
            self.flush(changes)?;
        }
        for changes in changes {
            self.change(changes, first)?;
        }
        let before = self.space.log.logs.get(&txg).map_or(0, |log| log.blocks);
        self.stats.bytes += append(&mut self.maps, object, changes)?;
        let blocks = self.maps.header(object)?.length.div_ceil(LOG_BLOCK);
        self.space.log.logs.insert(txg, Log { object, blocks });
        if first {
            self.tidy()?;
        } else {
            let grown = less!(blocks, before, "blocks of the log of group {txg}");
            self.space.log.late += grown;
        }
        Ok(())
    }

    /// The log of this txg, which may be new.
    fn log(&mut self, txg: u64) -> Result<u64> {
        if let Some(log) = self.space.log.logs.get(&txg).filter(|log| log.object != 0) {
            return Ok(log.object);
        }
        let list = match zap_u64(self.maps.mos(), DIRECTORY_OBJECT, LOGS)? {
            Some(list) => list,
            None => {
                let list = new_zap(self.maps.mos(), &self.space.chance)?;
                let name = Key::Name(LOGS.as_bytes());
                ZapMut::open(self.maps.mos(), DIRECTORY_OBJECT).add(&name, &Value::U64(&[list]))?;
                if feature_uses(self.maps.mos(), FEATURE)? == Some(0) {
                    self.maps.count(FEATURE, 1)?;
                }
                list
            }
        };
        let object = self.maps.create(LOG_BLOCK)?;
        let name = format!("{txg:x}");
        let mut list = ZapMut::open(self.maps.mos(), list);
        list.add(&Key::Name(name.as_bytes()), &Value::U64(&[object]))?;
        self.space.log.logs.insert(txg, Log { object, blocks: 0 });
        self.stats.created += 1;
        Ok(object)
    }

    /// Flushes as many metaslabs as the limits ask for.
    fn flush(&mut self, changes: &[Changes]) -> Result<()> {
        let txg = self.maps.txg();
        let limits = (self.space.limits)();
        let (each, mut memory) = self.space.unflushed.memory();
        let log = &mut self.space.log;
        log.note_growth(memory, &limits);
        let ranges = changes.iter().map(|c| (c.allocs.len() + c.frees.len()) as u64).sum();
        let rates = log.rates(txg, ranges, &limits);
        let rows = flushing::summary(log.rows(txg, &each), limits.rows);
        let all = std::mem::take(&mut log.all);
        let mut left = if all { u64::MAX } else { flushing::to_flush(&rows, &limits, &rates) };
        let changes: HashMap<Place, &Changes> =
            changes.iter().map(|c| ((c.vdev, c.metaslab), c)).collect();
        for place in log.due(txg) {
            let full = memory + rates.memory.first > limits.memory;
            if left == 0 && !full {
                break;
            }
            if self.space.unflushed.is_loading(place) {
                continue;
            }
            self.flush_metaslab(place, changes.get(&place).copied())?;
            // It had nothing unflushed if it is not among them.
            let mine = each.get(&place).copied().unwrap_or(0);
            let (vdev, ms) = place;
            memory = less!(memory, mine, "unflushed bytes, without vdev {vdev} metaslab {ms}");
            left = left.saturating_sub(1);
        }
        self.space.log.memory = memory;
        Ok(())
    }

    /// What `of` says of the metaslab in memory, if there is one.
    fn metaslab<T>(&self, (vdev, ms): Place, of: impl FnOnce(&Metaslab) -> T) -> Option<T> {
        let group = self.allocator.group(vdev)?;
        group.metaslabs().get(usize::try_from(ms).ok()?).map(of)
    }

    /// Brings what a metaslab has unflushed to its own map. `changes` are the changes of this txg, which
    /// are not among it.
    fn flush_metaslab(&mut self, place: Place, changes: Option<&Changes>) -> Result<()> {
        let (vdev, ms) = place;
        let txg = self.maps.txg();
        let Some((covered, object)) = self.space.map_of(place).filter(|(_, object)| *object != 0)
        else {
            return invalid(0, format!("vdev {vdev}, metaslab {ms}: no space map"));
        };
        let (allocs, frees) = self.space.unflushed.flush(place);
        let known = self.metaslab(place, Metaslab::known_histogram);
        let free = known.as_ref().map_or(Free::Same, Free::Are);
        let bytes = |ranges: &[(u64, u64)]| {
            ranges.iter().map(|(start, end)| i128::from(*end) - i128::from(*start)).sum::<i128>()
        };
        let expected = i128::from(self.maps.header(object)?.alloc) + bytes(&allocs) - bytes(&frees);
        let worth = match &known {
            Some(known) => self.maps.worth_condensing(object, &covered, known)?,
            None => false,
        };
        let after = match worth {
            true => self.metaslab(place, |m| m.free_after(txg)).flatten(),
            false => None,
        };
        let before = after.map(|after| free_before(after, changes));
        let adds_up =
            |free: &RangeTree| i128::from(covered.size) - i128::from(free.space()) == expected;
        if before.as_ref().is_some_and(|free| !adds_up(free)) {
            tracing::warn!(object, "space map does not add up to what the allocator has");
        }
        let all = before.filter(adds_up).map(|free| super::allocated(&covered, &free));
        match all {
            Some(all) => {
                let new = self.maps.rewrite(object, LOG_BLOCK)?;
                let all = [(Change::Alloc, all.as_slice())];
                self.stats.bytes += self.maps.append(new, &covered, &all, free)?;
                self.stats.condensed += 1;
                self.space.set_map(&mut self.maps, place, new)?;
            }
            None => {
                let both = [(Change::Alloc, allocs.as_slice()), (Change::Free, frees.as_slice())];
                self.stats.bytes += self.maps.append(object, &covered, &both, free)?;
            }
        }
        self.stats.maps += 1;
        self.stats.flushed += 1;
        self.move_on(place, false)
    }

    /// The changes of a metaslab are unflushed from this txg on (`metaslab_unflushed_bump`).
    fn move_on(&mut self, place: Place, dirty: bool) -> Result<()> {
        let (vdev, ms) = place;
        let txg = self.maps.txg();
        let before = self.space.log.marks.get(&place).map(|mark| mark.txg);
        self.space.log.mark(place, txg, dirty);
        match self.space.vdevs.get_mut(&vdev) {
            Some(v) if before != Some(txg) => v.set_unflushed(self.maps.mos(), ms, txg),
            Some(_) => Ok(()),
            None => invalid(0, format!("vdev {vdev} has no metaslabs")),
        }
    }

    /// Notes the changes of a metaslab.
    fn change(&mut self, changes: &Changes, first: bool) -> Result<()> {
        let place = (changes.vdev, changes.metaslab);
        let Some((covered, mut object)) = self.space.map_of(place) else {
            let (vdev, ms) = place;
            return invalid(0, format!("there is no metaslab {ms} of vdev {vdev}"));
        };
        let new = object == 0;
        if new {
            object = self.maps.create(LOG_BLOCK)?;
            self.space.set_map(&mut self.maps, place, object)?;
            self.stats.created += 1;
        }
        let allocated = !changes.allocs.is_empty();
        if first || new || allocated {
            self.renew_histogram(place, object, &covered, allocated)?;
        }
        self.space.unflushed.change(changes).map_err(|e| WriteError::Invalid {
            object,
            why: format!("vdev {}, metaslab {}: {e}", changes.vdev, changes.metaslab),
        })?;
        if !self.space.log.is_dirty(place) {
            self.move_on(place, true)?;
        }
        self.verify(place, object)?;
        self.stats.maps += 1;
        Ok(())
    }

    /// What is allocated in a metaslab, as the allocator has it, is what its map and the logs say.
    fn verify(&mut self, place: Place, object: u64) -> Result<()> {
        let said = i128::from(self.maps.header(object)?.alloc);
        let said = said + self.space.unflushed.allocated(place);
        let Some(mut known) = self.metaslab(place, Metaslab::on_disk) else { return Ok(()) };
        let (vdev, ms) = place;
        if known.allocated < 0 && !known.loaded {
            // More was freed than the header counts. Either the one or the other is wrong, and a load tells which.
            if !self.allocator.load(vdev, ms) {
                let why = "more was freed than is allocated by its map and logs";
                return invalid(object, format!("vdev {vdev} metaslab {ms}: {why}"));
            }
            known = self.metaslab(place, Metaslab::on_disk).unwrap_or(known);
            tracing::error!(vdev, ms, off = known.off, "the header of a space map counts wrong");
        }
        // A header that was wrong on disk stays wrong by as much.
        let (is, said) = (known.allocated, said + i128::from(known.off));
        if is < 0 || said != is {
            let is = format!("{is} bytes are allocated, {said} by its map and logs");
            return invalid(object, format!("vdev {vdev} metaslab {ms}: {is}"));
        }
        Ok(())
    }

    /// Writes the header of a map anew if it promises more than there is, which it does only if
    /// something was `allocated`, or if the metaslab has larger segments than it says.
    fn renew_histogram(
        &mut self,
        place: Place,
        object: u64,
        covered: &Covered,
        allocated: bool,
    ) -> Result<()> {
        let Some(known) = self.metaslab(place, Metaslab::known_histogram) else {
            return Ok(());
        };
        let Some(said) = self.maps.header(object)?.histogram else { return Ok(()) };
        let top = |counts: &[u64]| counts.iter().rposition(|n| *n > 0).map_or(0, |i| i + 1);
        let now = top(known.counts()).saturating_sub(covered.shift as usize);
        let promised = || Histogram::from_shifted(&said, covered.shift);
        if top(&said) < now.min(said.len()) || allocated && !known.holds(&promised()) {
            self.stats.headers += 1;
            self.maps.set_histogram(object, covered, &known)?;
        }
        Ok(())
    }

    /// Destroys the logs that no metaslab with unflushed changes needs (`spa_cleanup_old_sm_logs`).
    fn tidy(&mut self) -> Result<()> {
        let txg = self.maps.txg();
        let oldest = self.space.log.oldest_dirty().unwrap_or(txg).min(txg);
        let clean: Vec<Place> =
            self.space.log.order.range(..(oldest, Place::default())).map(|(_, p)| *p).collect();
        for place in clean {
            self.move_on(place, false)?;
        }
        let first = self.space.log.order.first().copied();
        invariant!(
            first.is_none_or(|(txg, _)| txg >= oldest),
            "logs before group {oldest} go, and a metaslab is unflushed since then: {first:?}"
        );
        let keep = self.space.log.logs.split_off(&oldest);
        let obsolete = std::mem::replace(&mut self.space.log.logs, keep);
        if obsolete.values().all(|log| log.object == 0) {
            return Ok(());
        }
        let Some(list) = zap_u64(self.maps.mos(), DIRECTORY_OBJECT, LOGS)? else {
            return invalid(DIRECTORY_OBJECT, "no list of log space maps");
        };
        for (txg, log) in obsolete.into_iter().filter(|(_, log)| log.object != 0) {
            self.maps.free(log.object)?;
            let name = format!("{txg:x}");
            ZapMut::open(self.maps.mos(), list).remove(&Key::Name(name.as_bytes()))?;
            self.stats.destroyed += 1;
        }
        Ok(())
    }
}

/// What was free before the changes of this txg, given what is free after them.
fn free_before(mut free: RangeTree, changes: Option<&Changes>) -> RangeTree {
    let (allocs, frees) = changes.map_or((&[][..], &[][..]), |c| (&c.allocs, &c.frees));
    for (start, end) in frees {
        free.clear(*start, *end);
    }
    for (start, end) in allocs {
        free.clear(*start, *end);
        // Was just cleared.
        if let Err(why) = free.add(*start, *end) {
            broken(format_args!("what was free before {start:#x}-{end:#x} was allocated: {why}"))
        }
    }
    free
}

/// Appends the changes of a pass to a log; the bytes of their entries.
fn append(maps: &mut Maps<'_>, object: u64, changes: &[Changes]) -> Result<u64> {
    let block_size = maps.block_size(object)?;
    let mut header = maps.header(object)?;
    let (start, pass, txg) = (header.length, maps.debug_pass(), maps.txg());
    let mut out = Vec::new();
    for of_vdev in changes.chunk_by(|a, b| a.vdev == b.vdev) {
        let Some(vdev) = of_vdev.first().and_then(|c| u32::try_from(c.vdev).ok()) else {
            return invalid(object, "a vdev that no log can name");
        };
        let mut writer = EntryWriter::new(block_size, header.length, Some(vdev), true)?;
        for change in [Change::Alloc, Change::Free] {
            let ranges = of_vdev.iter().flat_map(|c| match change {
                Change::Alloc => &c.allocs,
                Change::Free => &c.frees,
            });
            let mut ranges = ranges.peekable();
            if ranges.peek().is_some() {
                writer.debug(change, pass, txg)?;
            }
            for (start, end) in ranges {
                let (offset, run) = COVERED.units(object, *start, *end)?;
                writer.range(change, offset, run)?;
                header.alloc = counted(object, header.alloc, change, end - start);
            }
        }
        header.length = writer.length();
        out.extend(writer.finish());
    }
    if out.is_empty() {
        return Ok(0);
    }
    header.object = object;
    let (end, len) = (header.length, out.len());
    invariant!(
        end - start == len as u64,
        "log space map {object}: {len} bytes of entries from {start} to {end}"
    );
    maps.mos().write(object, start, &out)?;
    maps.mos().set_bonus(object, DmuType::SPACE_MAP_HEADER, &header.encode()?)?;
    Ok(out.len() as u64)
}
