//! Space maps, written: where each transaction group's allocations and frees go on disk
//! (`metaslab_sync`).
//!
//! # Idea
//!
//! [`cenote_store::alloc`] knows what was allocated and freed; the [`SpaceMaps`] of a pool append
//! that to the space map objects in the MOS in every pass of a sync: to one for all metaslabs, the
//! log of the txg, and later to each metaslab's own, or to these at once in a pool without the
//! feature `log_spacemap`:
//!
//! ```text
//! Allocator ── take_changes ──> SpaceMaps::sync_changes ──> space map objects, metaslab arrays
//!     ^                                                                  │ MOS synced
//!     └──── LoadMetaslab: Loader <── advance(synced MOS, txg) ───────────┘
//! ```
//!
//! Writing the MOS allocates space again, which the next pass appends. That ends: a block of a
//! space map that was born in this txg is rewritten in place, so that there comes a pass that
//! allocates nothing.
//!
//! | module | what |
//! |---|---|
//! | `map` | one space map object: creating, appending, rewriting it |
//! | [`loader`] | free space for the allocator, out of the last synced MOS |
//! | [`mod@plan`] | sizes of new vdevs and of their metaslabs |
//! | `vdev` | what a top-level vdev has in the MOS: ZAPs, metaslab array |
//! | `obsolete` | obsolete parts of removed vdevs |
//! | `checkpoint` | what only the pool's checkpoint refers to |
//! | `evacuation` | the mapping of a vdev that is being removed |
//! | `log` | log space maps: what all metaslabs change in a txg |
//! | `unflushed` | what each metaslab has unflushed, in memory |
//! | `flushing` | how many metaslabs a txg flushes |
//! | [`write_dtls`] | dirty time logs |
//!
//! # Structures
//!
//! On disk see [`cenote_pool::metaslab`] and [`cenote_pool::spacemap`]. In memory there are only the numbers of
//! the space map objects; their headers are read from the pending MOS, which is the only truth. With
//! logs there is what each metaslab has unflushed as well, which is what the logs say.
//!
//! # Condensing
//!
//! A space map is a log, so it grows. In the first pass of a sync a map that is more than twice as
//! long as it need be, and longer than [`CONDENSE_BLOCKS`] blocks, is written anew: what is
//! allocated after this pass, and nothing else. Only maps of loaded metaslabs are condensed, since
//! their free space is in memory. With logs a map is condensed when it is flushed, and then says
//! what was allocated before this txg, the changes of which are in its log. A map of a form that is out of date (too
//! small a header, blocks of another size) becomes another object then.
//!
//! # Invariants
//!
//! - A header's bytes allocated are what the entries add up to.
//! - A header's histogram counts all free segments, deferred ones included, which are not joined
//!   with others. It is exact for loaded metaslabs; for others frees are added to what is there.
//!   With logs that is so when the metaslab is flushed, and until then it never promises more than
//!   there is.
//! - `spacemap_histogram` counts the space map objects that have a histogram.
//! - With logs, what is in a metaslab's own map is what it was before its unflushed txg.

mod checkpoint;
mod dtl;
mod evacuation;
mod flushing;
pub mod loader;
mod log;
pub(crate) mod map;
pub mod mappings;
mod obsolete;
pub mod plan;
#[cfg(test)]
mod tests;
mod unflushed;
mod vdev;

pub use checkpoint::Discard;
pub use dtl::{rewrite_dtls, write_dtls};
pub(crate) use evacuation::{Evacuation, More};
pub use loader::Loader;
pub(crate) use mappings::config_of;
pub use plan::{VdevPlan, plan, top_level_asize};
pub(crate) use vdev::{free_foreign_log, write_detached};

use cenote_dmu::ObjectSet;
use cenote_dmu::outside::Chance;
use cenote_dmu::write::{OpenObjectSet, Result, WriteError};
use cenote_format::nvlist::NvList;
use cenote_format::spacemap::Change;
use cenote_format::{invariant, less};
use cenote_pool::config;
use cenote_pool::metaslab::{AllocClass, PoolSpace, Unflushed, VdevSpace};
use cenote_store::alloc::{
    Addresses, Allocator, Changes, Class, Group, Metaslab, MetaslabInfo, VdevInfo, embedded_log,
};
use cenote_store::histogram::Histogram;
use cenote_store::rangetree::RangeTree;
use cenote_vdev::{VdevTree, draid};
use flushing::Limits;
use log::{LogSpace, LoggedPass};
use map::{Covered, Free, Maps};
use obsolete::Removed;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;
use unflushed::UnflushedSpace;

/// Maps of fewer blocks are never condensed (`zfs_metaslab_condense_block_threshold`).
pub const CONDENSE_BLOCKS: u64 = 4;
/// Bytes of a block of a metaslab's space map (`zfs_metaslab_sm_blksz_no_log`).
const MAP_BLOCK: u64 = 16 << 10;

/// Adds 1 or -1 to the refcount of a feature, given by its guid, in the pending MOS.
pub type CountFeature<'a> = &'a mut dyn FnMut(&mut OpenObjectSet, &str, i64) -> Result<()>;

/// Why the space of a pool cannot be written to.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A top-level vdev takes no allocations.
    #[error("vdev {0} is non-allocating, writing to such pools is not supported yet")]
    NonAllocating(u64),
    /// The MOS cannot be read.
    #[error(transparent)]
    Read(#[from] cenote_dmu::Error),
}

/// What a sync of space maps did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Space maps written to.
    pub maps: u64,
    /// Bytes of entries written.
    pub bytes: u64,
    /// Space maps written anew.
    pub condensed: u64,
    /// Space map objects created, logs too.
    pub created: u64,
    /// Metaslabs whose changes were brought from logs to their own maps.
    pub flushed: u64,
    /// Logs destroyed.
    pub destroyed: u64,
    /// Headers of maps written anew though nothing was appended to the maps.
    pub headers: u64,
}

impl Stats {
    /// Whether anything was written, so that the MOS is dirty.
    pub fn wrote(&self) -> bool {
        *self != Stats::default()
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Stats) {
        self.maps += other.maps;
        self.bytes += other.bytes;
        self.condensed += other.condensed;
        self.created += other.created;
        self.flushed += other.flushed;
        self.destroyed += other.destroyed;
        self.headers += other.headers;
    }
}

/// The space map objects of a top-level vdev.
#[derive(Debug)]
struct VdevMaps {
    class: Class,
    ashift: u32,
    ms_shift: u32,
    /// See [`VdevInfo::line`].
    line: u64,
    /// The metaslab array.
    array: u64,
    /// What it holds.
    maps: Vec<u64>,
    /// The vdev's top ZAP; 0 without one.
    top_zap: u64,
    /// The array of unflushed txgs; 0 without one.
    unflushed: u64,
    /// The space map of what only the checkpoint refers to; 0 without one.
    checkpoint: u64,
}

impl VdevMaps {
    /// What the map of metaslab `ms` covers.
    fn covered(&self, ms: u64) -> Option<Covered> {
        let (start, size) = draid::metaslab(ms, self.ms_shift, self.line)?;
        Some(Covered { start, size, shift: self.ashift })
    }
}

/// The space maps of a pool that is written to; see the module's documentation.
///
/// After a call that failed it is of no use: it must be opened anew, as the MOS.
#[derive(Debug)]
pub struct SpaceMaps {
    vdevs: BTreeMap<u64, VdevMaps>,
    /// Those that were removed, and the one that is being removed.
    removed: BTreeMap<u64, Removed>,
    evacuation: Option<Evacuation>,
    /// More of removed vdevs is obsolete than when their mappings were last looked at.
    obsolete_grew: bool,
    log: LogSpace,
    unflushed: Arc<UnflushedSpace>,
    limits: fn() -> Limits,
    /// The last txg, and whether its changes are logged.
    decided: (u64, bool),
    loader: Arc<Loader>,
    chance: Chance,
}

/// An error about an object of the MOS.
fn invalid<T>(object: u64, why: impl Into<String>) -> Result<T> {
    Err(WriteError::Invalid { object, why: why.into() })
}

impl SpaceMaps {
    /// The space maps of a pool that is being created, which has no vdevs yet.
    pub fn create() -> SpaceMaps {
        SpaceMaps::new(None, 0, UnflushedSpace::default())
    }

    fn new(mos: Option<Arc<ObjectSet>>, txg: u64, unflushed: UnflushedSpace) -> SpaceMaps {
        let unflushed = Arc::new(unflushed);
        let loader = Arc::new(Loader::new(mos, txg, unflushed.clone()));
        SpaceMaps {
            vdevs: BTreeMap::new(),
            removed: BTreeMap::new(),
            evacuation: None,
            obsolete_grew: true,
            log: LogSpace::default(),
            unflushed,
            limits: Limits::now,
            decided: (0, false),
            loader,
            chance: Chance::default(),
        }
    }

    /// The same, with salts of new ZAPs from there.
    pub fn by(self, chance: &Chance) -> SpaceMaps {
        SpaceMaps { chance: chance.clone(), ..self }
    }

    /// The space maps of an imported pool. `config` is the pool's config and `space` what was read
    /// by it; `mos` is the MOS of the last txg on disk, `txg`.
    ///
    /// Errors: what cannot be written to, by name; the MOS cannot be read.
    pub fn open(
        space: &PoolSpace,
        config: &NvList,
        mos: &Arc<ObjectSet>,
        txg: u64,
    ) -> std::result::Result<SpaceMaps, OpenError> {
        check(space, config)?;
        let active = space.log_feature.is_some_and(|uses| uses > 0);
        let found = if active { unflushed_of(space) } else { Vec::new() };
        let unflushed = UnflushedSpace::open(txg, active, found);
        let mut maps = SpaceMaps::new(Some(mos.clone()), txg, unflushed);
        for v in space.vdevs.iter().filter(|v| v.concrete && v.metaslab_array != 0) {
            maps.loader.add_vdev(v.id, v.metaslab_array, 0);
            let objects = v.metaslabs.iter().map(|ms| ms.space_map).collect();
            let of_vdev = VdevMaps {
                class: class_of(v),
                ashift: v.ashift,
                ms_shift: v.metaslab_shift,
                line: v.line,
                array: v.metaslab_array,
                maps: objects,
                top_zap: v.top_zap,
                unflushed: v.unflushed_object,
                checkpoint: v.checkpoint_map,
            };
            maps.vdevs.insert(v.id, of_vdev);
        }
        for v in space.vdevs.iter().filter(|v| v.kind == "indirect") {
            maps.removed.insert(v.id, Removed { asize: v.asize, top_zap: v.top_zap });
        }
        let tops = config::tops(config);
        for (id, top) in (0u64..).zip(tops).filter(|(_, top)| config::flag(top, "removing")) {
            maps.begin_evacuation(Evacuation::load(mos, id, top)?);
        }
        if active {
            maps.log = logs_of(space, mos, txg)?;
            maps.log.begin_with(maps.unflushed.memory().1);
        }
        Ok(maps)
    }

    /// A vdev that is being removed, and how far it was copied.
    pub(crate) fn evacuation(&self) -> Option<&Evacuation> {
        self.evacuation.as_ref()
    }

    /// From now on a vdev is being removed, or was copied further.
    pub(crate) fn begin_evacuation(&mut self, evacuation: Evacuation) {
        let vdev = evacuation.vdev;
        if let Some(v) = self.vdevs.get(&vdev) {
            let asize = (v.maps.len() as u64).checked_shl(v.ms_shift).unwrap_or(u64::MAX);
            self.removed.insert(vdev, Removed { asize, top_zap: v.top_zap });
        }
        self.evacuation = Some(evacuation);
    }

    /// No vdev is being removed any more: it was, or it stays.
    pub(crate) fn end_evacuation(&mut self, removed: bool) {
        if let Some(ended) = self.evacuation.take().filter(|_| !removed) {
            self.removed.remove(&ended.vdev);
        }
    }

    /// The ZAP of a top-level vdev; 0 without one.
    pub(crate) fn top_zap(&self, vdev: u64) -> u64 {
        self.vdevs.get(&vdev).map_or(0, |v| v.top_zap)
    }

    /// Whether the changes of a txg are logged, rather than appended to each metaslab's map. That
    /// is so from the first txg after the feature is enabled.
    ///
    /// It is put off while space maps have no histograms: OpenZFS's `zdb` takes it that every log
    /// has one, and finds fault with the count of them otherwise.
    pub fn logs_changes(&mut self, mos: &mut OpenObjectSet, txg: u64) -> Result<bool> {
        if self.decided.0 != txg {
            let before = self.decided.0;
            invariant!(before < txg, "space maps: group {txg} comes after group {before}");
            let zaps = self.vdevs.values().all(|v| v.top_zap != 0);
            let logged = match map::feature_uses(mos, log::FEATURE)? {
                None => false,
                Some(0) => {
                    let two_words = map::feature_uses(mos, map::TWO_WORDS)?;
                    let histograms = map::feature_uses(mos, map::HISTOGRAM)?;
                    zaps && two_words.is_some_and(|n| n > 0) && histograms.is_some()
                }
                Some(_) => true,
            };
            self.decided = (txg, logged);
            self.unflushed.log(logged);
        }
        Ok(self.decided.1)
    }

    /// The next txg flushes everything that there is in logs.
    pub fn flush_all(&mut self) {
        self.log.all = true;
    }

    /// The object of the log of a txg; `None` without a log.
    pub fn log_of(&self, txg: u64) -> Option<u64> {
        self.log.object(txg)
    }

    /// How many logs there are, and how many blocks they have together.
    pub fn logs(&self) -> (u64, u64) {
        self.log.size()
    }

    /// Bytes of memory that unflushed changes take, as of the last txg on disk (`spa_log_sm_memused`).
    pub fn unflushed_bytes(&self) -> u64 {
        self.unflushed.memory().1
    }

    /// What the map of a metaslab covers, and its object.
    fn map_of(&self, (vdev, ms): (u64, u64)) -> Option<(Covered, u64)> {
        let v = self.vdevs.get(&vdev)?;
        Some((v.covered(ms)?, *v.maps.get(usize::try_from(ms).ok()?)?))
    }

    /// Makes an object the map of a metaslab.
    fn set_map(&mut self, maps: &mut Maps<'_>, (vdev, ms): (u64, u64), object: u64) -> Result<()> {
        let v = self.vdevs.get_mut(&vdev);
        let array = v.as_ref().map_or(0, |v| v.array);
        let slot = v.and_then(|v| v.maps.get_mut(usize::try_from(ms).ok()?));
        match slot {
            Some(slot) if *slot == object => Ok(()),
            Some(slot) => {
                *slot = object;
                maps.set_array(array, ms, object)
            }
            None => invalid(array, format!("no metaslab {ms}")),
        }
    }

    /// Reads metaslabs for an [`Allocator`]; see [`Loader::advance`].
    pub fn loader(&self) -> Arc<Loader> {
        self.loader.clone()
    }

    /// What [`Allocator::new`] wants to know. `space` is what this was opened with; vdevs that are
    /// not in it are empty.
    pub fn allocator_vdevs(
        &self,
        space: Option<&PoolSpace>,
        tree: &VdevTree,
    ) -> Vec<(Class, VdevInfo)> {
        let info = |(id, v): (&u64, &VdevMaps)| {
            let known = space.and_then(|s| s.vdev_space(*id)).filter(|s| !s.metaslabs.is_empty());
            let (metaslabs, embedded_log) = match known {
                Some(known) => {
                    (metaslab_infos(known), known.metaslabs.iter().position(|ms| ms.embedded_log))
                }
                None => {
                    let kept = embedded_log(v.maps.len(), []).filter(|_| v.class == Class::Normal);
                    (vec![MetaslabInfo::default(); v.maps.len()], kept)
                }
            };
            let width = tree.top(*id).map_or(1, |top| match (top.kind(), top.draid()) {
                ("raidz", _) => (top.children().len() as u64).saturating_sub(top.nparity()),
                (_, Some(shape)) => shape.ndisks().saturating_sub(shape.nparity),
                _ => 1,
            });
            let (id, ashift, ms_shift, line) = (*id, v.ashift, v.ms_shift, v.line);
            let width = width.max(1);
            let growing = tree.top(id).and_then(|top| top.growing()).map(Addresses);
            let embedded_log = embedded_log.filter(|_| growing.is_none());
            let info =
                VdevInfo { id, ashift, width, ms_shift, line, metaslabs, embedded_log, growing };
            (v.class, info)
        };
        self.vdevs.iter().map(info).collect()
    }

    /// Writes down the changes that `allocator` has for `txg`; in the first pass flushes metaslabs,
    /// and condenses what is worth it.
    ///
    /// Nothing may be allocated or freed in `txg` meanwhile.
    ///
    /// Errors: a vdev or metaslab that there is not; what is in the MOS makes no sense.
    pub fn sync_changes(
        &mut self,
        mos: &mut OpenObjectSet,
        txg: u64,
        pass: u32,
        allocator: &Allocator,
        count: CountFeature<'_>,
    ) -> Result<Stats> {
        let mut stats = self.sync_kept(mos, (txg, pass), allocator, count)?;
        let changes = allocator.take_changes(txg);
        if self.logs_changes(mos, txg)? {
            // A txg that writes nothing has no log.
            let first = pass == 1 && (mos.is_dirty() || self.log.all);
            if changes.is_empty() && !first {
                return Ok(stats);
            }
            let maps = Maps::open(mos, txg, pass, count)?;
            let mut logged = LoggedPass { maps, space: self, allocator, stats };
            logged.run(pass, &changes)?;
            return Ok(logged.stats);
        }
        if changes.is_empty() {
            return Ok(stats);
        }
        let groups: BTreeMap<u64, Arc<Group>> =
            allocator.groups().map(|group| (group.vdev(), group)).collect();
        let mut maps = Maps::open(mos, txg, pass, count)?;
        for changes in &changes {
            let Some(v) = self.vdevs.get_mut(&changes.vdev) else {
                return invalid(0, format!("vdev {} has no metaslabs", changes.vdev));
            };
            let group = groups.get(&changes.vdev);
            let metaslab = group.and_then(|g| g.metaslabs().get(changes.metaslab as usize));
            stats += sync_metaslab(&mut maps, v, changes, metaslab)?;
        }
        Ok(stats)
    }
}

#[cfg(feature = "planted")]
impl SpaceMaps {
    /// A fault: the metaslab is flushed, whether that is due or not.
    pub(crate) fn plant_flush(&self, place: (u64, u64)) {
        drop(self.unflushed.flush(place));
    }
}

/// Refuses what cannot be written to.
fn check(space: &PoolSpace, config: &NvList) -> std::result::Result<(), OpenError> {
    let tops = config::tops(config);
    let removing = |id: u64| {
        let top = usize::try_from(id).ok().and_then(|id| tops.get(id));
        top.is_some_and(|top| config::flag(top, "removing"))
    };
    let barred = |v: &&VdevSpace| v.concrete && v.non_allocating && !removing(v.id);
    match space.vdevs.iter().find(barred) {
        Some(v) => Err(OpenError::NonAllocating(v.id)),
        None => Ok(()),
    }
}

fn class_of(v: &VdevSpace) -> Class {
    match v.class {
        AllocClass::Normal | AllocClass::EmbeddedLog => Class::Normal,
        AllocClass::Log => Class::Log,
        AllocClass::Special => Class::Special,
        AllocClass::Dedup => Class::Dedup,
    }
}

/// What is known of a vdev's metaslabs without loading them. A header's histogram has unflushed
/// changes in it.
fn metaslab_infos(v: &VdevSpace) -> Vec<MetaslabInfo> {
    let info = |ms: &cenote_pool::metaslab::Metaslab| {
        let header = ms.header.as_ref();
        // One that counts nothing was never written.
        let histogram = header.and_then(|h| h.histogram).filter(|h| h.iter().any(|n| *n != 0));
        let allocated = v.alloc_of(ms);
        let off = i128::from(allocated) - v.counted_of(ms);
        MetaslabInfo {
            allocated,
            off: i64::try_from(off).unwrap_or(if off < 0 { i64::MIN } else { i64::MAX }),
            histogram: histogram.map(|h| Histogram::from_shifted(&h, v.ashift)),
        }
    };
    v.metaslabs.iter().map(info).collect()
}

/// Appends the changes of one metaslab to its map, or condenses it with them.
fn sync_metaslab(
    maps: &mut Maps<'_>,
    v: &mut VdevMaps,
    changes: &Changes,
    metaslab: Option<&Metaslab>,
) -> Result<Stats> {
    let (array, id) = (v.array, changes.metaslab);
    let absent = || WriteError::Invalid { object: array, why: format!("no metaslab {id}") };
    let covered = v.covered(id).ok_or_else(absent)?;
    let slot = v.maps.get_mut(id as usize).ok_or_else(absent)?;
    let mut stats = Stats { maps: 1, ..Stats::default() };
    let before = *slot;
    if *slot == 0 {
        *slot = maps.create(MAP_BLOCK)?;
        stats.created = 1;
    }
    let free = metaslab.and_then(Metaslab::free_histogram);
    let allocated = match (&free, metaslab) {
        (Some(free), Some(metaslab)) => condensed(maps, *slot, &covered, changes, free, metaslab)?,
        _ => None,
    };
    match (allocated, free) {
        (Some(allocated), Some(free)) => {
            *slot = maps.rewrite(*slot, MAP_BLOCK)?;
            let all = [(Change::Alloc, allocated.as_slice())];
            stats.bytes = maps.append(*slot, &covered, &all, Free::Are(&free))?;
            stats.condensed = 1;
        }
        (_, free) => {
            let mut freed = Histogram::default();
            for (start, end) in &changes.frees {
                freed.add(less!(*end, *start, "the end of what is freed"));
            }
            let free = free.as_ref().map_or(Free::More(&freed), Free::Are);
            let all = [
                (Change::Alloc, changes.allocs.as_slice()),
                (Change::Free, changes.frees.as_slice()),
            ];
            stats.bytes = maps.append(*slot, &covered, &all, free)?;
        }
    }
    if *slot != before {
        maps.set_array(array, id, *slot)?;
    }
    Ok(stats)
}

/// What is allocated once `changes` are on disk, if the map should be written anew with that.
fn condensed(
    maps: &mut Maps<'_>,
    object: u64,
    covered: &Covered,
    changes: &Changes,
    free: &Histogram,
    metaslab: &Metaslab,
) -> Result<Option<Vec<(u64, u64)>>> {
    if !maps.worth_condensing(object, covered, free)? {
        return Ok(None);
    }
    let Some(free) = metaslab.free_after(maps.txg()) else { return Ok(None) };
    let bytes = |ranges: &[(u64, u64)]| {
        ranges.iter().map(|(start, end)| i128::from(*end) - i128::from(*start)).sum::<i128>()
    };
    // Were anything allocated or freed in this txg since the changes were taken, it would be here
    // as well as in the changes of the next pass.
    let expected =
        i128::from(maps.header(object)?.alloc) + bytes(&changes.allocs) - bytes(&changes.frees);
    if i128::from(covered.size) - i128::from(free.space()) != expected {
        tracing::warn!(object, "space map does not add up to what the allocator has");
        return Ok(None);
    }
    Ok(Some(allocated(covered, &free)))
}

/// What is not free of what a map covers.
fn allocated(covered: &Covered, free: &RangeTree) -> Vec<(u64, u64)> {
    let (mut allocated, mut at) = (Vec::new(), covered.start);
    for (start, end) in free.iter() {
        invariant!(at <= start, "{start:#x}-{end:#x} is free before {at:#x} of a space map");
        if at < start {
            allocated.push((at, start));
        }
        at = end;
    }
    let end = covered.start + covered.size;
    invariant!(at <= end, "space is free up to {at:#x}, and a space map ends at {end:#x}");
    if at < end {
        allocated.push((at, end));
    }
    allocated
}

/// What metaslabs of a pool with logs have unflushed.
fn unflushed_of(space: &PoolSpace) -> Vec<((u64, u64), Unflushed)> {
    let of = |v: &VdevSpace| {
        let id = v.id;
        v.unflushed.iter().map(move |(ms, u)| ((id, *ms), u.clone())).collect::<Vec<_>>()
    };
    space.vdevs.iter().flat_map(of).collect()
}

/// The logs of a pool.
fn logs_of(
    space: &PoolSpace,
    mos: &Arc<ObjectSet>,
    txg: u64,
) -> std::result::Result<LogSpace, OpenError> {
    let mut marks = Vec::new();
    for v in space.vdevs.iter().filter(|v| v.concrete && v.metaslab_array != 0) {
        for ms in v.metaslabs.iter().filter(|ms| ms.unflushed_txg != 0) {
            if ms.unflushed_txg > txg || ms.space_map == 0 {
                let why = format!("metaslab {}: unflushed since {}", ms.id, ms.unflushed_txg);
                let (objset, object) = (mos.id(), v.unflushed_object);
                return Err(cenote_dmu::Error::Corrupt { objset, object, why }.into());
            }
            let dirty = v.unflushed.get(&ms.id).is_some_and(|u| u.segments() > 0);
            marks.push(((v.id, ms.id), ms.unflushed_txg, dirty));
        }
    }
    let logs = space.logs.iter().map(|log| (log.txg, log.object, log.phys.length));
    Ok(LogSpace::open(logs, marks))
}
