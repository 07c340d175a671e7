//! The allocator: classes of vdevs, copies, and the changes of each txg (`metaslab_class_t`, `metaslab_alloc`,
//! `metaslab_free`).
//!
//! [`Allocator`] is the face of [`crate::alloc`]. Its `Layout` has the groups of each class. A layout never
//! changes: a vdev that joins or grows makes the next one, and threads that work with the old one keep it until
//! they are done.
//!
//! An allocation goes through the class and those that it falls back to. It looks for one copy after another
//! (`metaslab_alloc_dva`), from the rotor's group on, and gets less choosy from round to round: loaded metaslabs
//! first, then loads that are sure to help, then metaslabs whose histograms say no but may be out of date.
//!
//! Freed space waits. [`Allocator::free`] notes it, [`Allocator::take_changes`] hands it out for the space maps,
//! and [`Allocator::sync_done`] returns it two groups later (`metaslab_sync_done`), unless a hold or a reader keeps
//! it.
//!
//! Invariants: all copies of a block are allocated, or no copy is. What is free is never freed again
//! ([`AllocError::FreedTwice`]). Groups end in the order of their numbers.

mod disable;
mod figures;
mod kept;
mod live;
mod loads;

pub use disable::Disabled;
pub use figures::SpaceFigures;
pub use kept::Kept;
pub use live::Dead;

use disable::Wait;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use cenote_format::blkptr::Dva;
use cenote_format::invariant;
use cenote_format::invariant::said;
use cenote_vdev::Alarm;
use cenote_vdev::stats::Latencies;
use parking_lot::Mutex;
use rayon::prelude::*;

use super::class::{Class, ClassGroups, Request};
use super::deferred::{DeferThread, DeferredFrees, Work};
use super::error::AllocError;
use super::group::{Addresses, Choice, Group, Outcome, ToLoad, VdevInfo, Want};
use super::hold::{Hold, Holds};
use super::layout::Layout;
use super::loader::{Background, LoadMetaslab};
use super::metaslab::{Changes, Metaslab, TXG_DEFER_SIZE};
use super::read_epochs::ReadEpochs;
use crate::Current;
use crate::rangetree::{RangeError, RangeTree};
use crate::tunables;
use cenote_format::encode::blkptr::OLD_GANG_HEADER;

/// Metaslabs whose changes are worth another thread.
const METASLABS_PER_THREAD: usize = 16;
/// Most copies of a block (`SPA_DVAS_PER_BP`).
pub const MAX_COPIES: usize = 3;

/// Says how many bytes a block takes on a vdev.
pub trait AllocatedSize: Send + Sync {
    /// Bytes allocated on top-level vdev `vdev` for `psize` bytes in `txg`, with parity and padding; `None`
    /// if there is no such vdev. Later groups take no more.
    fn psize_to_asize(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64>;

    /// Whether top-level vdev `vdev`, if it is one for intent logs, takes blocks now and keeps them (`vdev_allocatable`). A log
    /// does without one that does not.
    fn takes_logs(&self, _vdev: u64) -> bool {
        true
    }
}

/// How an [`Allocator`] works.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of allocators (`spa_num_allocators`).
    pub allocators: usize,
    /// Whether metaslabs are loaded ahead by a thread. If not, allocations wait for all loads and
    /// [`Allocator::preload`] loads them itself, and everything happens in the calling threads in a fixed order.
    pub background: bool,
    /// Txgs without use after which a metaslab is unloaded; `None`: as tunables say, by the clock too.
    pub unload_after: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            allocators: tunables::NUM_ALLOCATORS.count(),
            background: true,
            unload_after: None,
        }
    }
}

/// How far an attempt goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Metaslabs that are loaded; others that would do are loaded ahead.
    Loaded,
    /// As well as those that are sure to do when they are loaded.
    Loads,
    /// Metaslabs whose histograms say no, but are not exact.
    LastResort,
}

/// Space of one pool; see the documentation of [`crate::alloc`].
pub struct Allocator {
    layout: ArcSwap<Layout>,
    /// Held by the thread that makes the next layout from the present one.
    replacing: Mutex<()>,
    sizes: Arc<dyn AllocatedSize>,
    loader: Arc<dyn LoadMetaslab>,
    options: Options,
    background: OnceLock<Background>,
    deferred: OnceLock<DeferThread>,
    holds: Holds,
    readers: Arc<ReadEpochs>,
    /// The last txg that is known to be on disk.
    synced: AtomicU64,
    /// What is freed after this txg is never used again.
    frozen: AtomicU64,
    checkpoint: kept::Checkpoint,
    allocations: Latencies,
    loads: Latencies,
    waits: AtomicU64,
    in_vain: AtomicU64,
    alarm: Arc<Alarm>,
}

impl Allocator {
    /// An allocator over the vdevs of each class.
    ///
    /// Errors: [`AllocError::BadVdev`].
    pub fn new(
        vdevs: &[(Class, VdevInfo)],
        sizes: Arc<dyn AllocatedSize>,
        loader: Arc<dyn LoadMetaslab>,
        options: Options,
    ) -> Result<Arc<Allocator>, AllocError> {
        let options = Options { allocators: options.allocators.max(1), ..options };
        let layout = vdevs.iter().try_fold(Layout::default(), |layout, (class, info)| {
            layout.with(*class, info, options.allocators)
        })?;
        let alarm = Arc::default();
        Ok(Arc::new(Allocator {
            layout: ArcSwap::from_pointee(layout),
            replacing: Mutex::default(),
            sizes,
            loader,
            options,
            background: OnceLock::new(),
            deferred: OnceLock::new(),
            holds: Holds::default(),
            readers: Arc::new(ReadEpochs::new(&alarm)),
            synced: AtomicU64::new(0),
            frozen: AtomicU64::new(u64::MAX),
            checkpoint: kept::Checkpoint::default(),
            allocations: Latencies::default(),
            loads: Latencies::default(),
            waits: AtomicU64::new(0),
            in_vain: AtomicU64::new(0),
            alarm,
        }))
    }

    /// What its threads sound if they find that the space is not what it must be.
    pub fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// From now on there is one more vdev. It must be in the pool that is on disk: what the last
    /// uberblock leads to may be allocated there at once.
    ///
    /// Errors: [`AllocError::BadVdev`].
    pub fn add_vdev(self: &Arc<Self>, class: Class, info: &VdevInfo) -> Result<(), AllocError> {
        let replacing = self.replacing.lock();
        self.layout.store(Arc::new(self.layout().with(class, info, self.options.allocators)?));
        drop(replacing);
        self.preload();
        Ok(())
    }

    /// From now on a vdev has `count` metaslabs more, all of them empty, which the pool that is on disk has to have
    /// (`vdev_metaslab_init`).
    ///
    /// Errors: [`AllocError::BadVdev`].
    pub fn grow_vdev(self: &Arc<Self>, vdev: u64, count: usize) -> Result<(), AllocError> {
        let replacing = self.replacing.lock();
        self.layout.store(Arc::new(self.layout().grown(vdev, count, self.options.allocators)?));
        drop(replacing);
        self.preload();
        Ok(())
    }

    /// From now on nothing is allocated from a vdev that is about to leave (`metaslab_group_passivate`), until
    /// [`Allocator::activate`] was called as often as this. Threads that allocate at this moment may still do so, in the
    /// groups that are open now.
    pub fn passivate(&self, vdev: u64) {
        self.set_passive(vdev, true);
    }

    /// A vdev stays: it is allocated from again (`metaslab_group_activate`), unless another caller wants it passive.
    pub fn activate(&self, vdev: u64) {
        self.set_passive(vdev, false);
    }

    fn set_passive(&self, vdev: u64, passive: bool) {
        let layout = self.layout();
        let groups = layout.all_groups().filter(|group| group.vdev() == vdev);
        // A destructor calls this, too.
        if !groups.fold(true, |counted, group| group.set_passive(passive) & counted) {
            self.alarm.sound(said(format_args!("vdev {vdev} is activated, and was not passive")));
        }
    }

    /// Whether nothing of a vdev is allocated, neither on disk nor in groups that are not written yet. Once that is so
    /// of one that is passive, it stays so.
    pub fn is_empty(&self, vdev: u64) -> bool {
        let layout = self.layout();
        let mut groups = layout.all_groups().filter(|group| group.vdev() == vdev);
        groups.all(|group| group.is_empty())
    }

    /// Whether something of a vdev was allocated in a group that is not written yet.
    pub fn is_being_allocated(&self, vdev: u64) -> bool {
        let layout = self.layout();
        let mut groups = layout.all_groups().filter(|group| group.vdev() == vdev);
        groups.any(|group| group.members().any(Metaslab::is_being_allocated))
    }

    /// From now on there is one vdev less: nothing of it is allocated, or what is lies elsewhere.
    pub fn remove_vdev(&self, vdev: u64) {
        let _replacing = self.replacing.lock();
        self.layout.store(Arc::new(self.layout().without(vdev)));
    }

    /// The vdevs as they are now; code that works with them keeps this as long.
    fn layout(&self) -> Current<Layout> {
        self.layout.load()
    }

    /// The layout, to see whether it is let go.
    #[cfg(test)]
    pub(super) fn layout_in_use(&self) -> std::sync::Weak<impl Sized + use<>> {
        Arc::downgrade(&self.layout())
    }

    /// Allocates `request.copies` DVAs (`metaslab_alloc_dva`) in `txg`, on different vdevs if there are so many, else
    /// far apart.
    ///
    /// Errors: nothing is allocated if not all copies can be.
    pub fn allocate(
        self: &Arc<Self>,
        txg: u64,
        request: &Request<'_>,
    ) -> Result<(Class, Vec<Dva>), AllocError> {
        let Request { psize, copies, class, .. } = *request;
        if psize == 0 || copies == 0 || copies > MAX_COPIES {
            return Err(AllocError::BadRequest { psize, copies });
        }
        self.allocations.time(|| self.allocate_in(class, txg, request))
    }

    /// As [`Allocator::allocate`], for a request that makes sense: in `class` or a fallback of it.
    fn allocate_in(
        self: &Arc<Self>,
        class: Class,
        txg: u64,
        request: &Request<'_>,
    ) -> Result<(Class, Vec<Dva>), AllocError> {
        for classes in [class.fallbacks(), Class::LAST_RESORT] {
            let before = self.disables(classes).ended;
            let found = |wait| {
                let of = |class: &Class| Some((*class, self.in_class(*class, txg, request, wait)?));
                classes.iter().find_map(of)
            };
            if let Some(found) = found(Wait::No) {
                return Ok(found);
            }
            // A metaslab of theirs was disabled at some time since then. The writer of a log does not wait for a device
            // that is told something: the next group has what it has not written.
            if !request.is_of_log()
                && self.disables(classes).begun > before
                && let Some(found) = found(Wait::UntilEnabled)
            {
                return Ok(found);
            }
            let largest = classes.iter().map(|c| self.largest(*c, request.psize)).max();
            let Some(largest) = largest.filter(|largest| *largest > 0) else { continue };
            // There is a sector, but not one for each copy: to divide the block does not help.
            if request.psize > self.smallest() {
                return Err(AllocError::NoSegment { largest });
            }
        }
        Err(AllocError::NoSpace)
    }

    /// Allocates all copies in one class. With [`Wait::UntilEnabled`] none of its metaslabs is disabled meanwhile.
    fn in_class(
        self: &Arc<Self>,
        class: Class,
        txg: u64,
        request: &Request<'_>,
        wait: Wait,
    ) -> Option<Vec<Dva>> {
        let layout = self.layout();
        let class = layout.classes.get(&class)?;
        // The writer of a log holds what the end of a group needs before freed space is given out.
        let waits = !request.is_of_log();
        let mut dvas = Vec::with_capacity(request.copies);
        let _alone = (wait == Wait::UntilEnabled).then(|| class.keep_enabled());
        while dvas.len() < request.copies {
            let on_its_way = self.deferred.get().is_some_and(DeferThread::is_busy);
            match self.one(class, txg, request, &dvas) {
                Some(dva) => dvas.push(dva),
                None if on_its_way && waits => self.wait_deferred(),
                None => {
                    for dva in &dvas {
                        let back = self.unallocate(txg, dva);
                        invariant!(back.is_ok(), "{dva:?} cannot be given back: {back:?}");
                    }
                    return None;
                }
            }
        }
        Some(dvas)
    }

    /// Allocates one copy, less and less choosy.
    fn one(
        self: &Arc<Self>,
        class: &ClassGroups,
        txg: u64,
        request: &Request<'_>,
        copies: &[Dva],
    ) -> Option<Dva> {
        use Choice::{Any, Apart, Far};
        use Round::{LastResort, Loaded, Loads};
        // A load is waited for only when nothing loaded will do; but rather than having two
        // copies close to each other.
        let order: &[(Choice, Round)] = match copies {
            [] => &[(Far, Loaded), (Any, Loaded), (Far, Loads), (Any, Loads), (Any, LastResort)],
            _ => &[
                (Far, Loaded),
                (Far, Loads),
                (Apart, Loaded),
                (Apart, Loads),
                (Any, Loaded),
                (Any, Loads),
                (Any, LastResort),
            ],
        };
        let first = class.start(request, copies)?;
        let count = class.groups.len();
        for (choice, load) in order {
            for i in (first..first + count).map(|i| i % count) {
                let group = class.groups.get(i)?;
                if group.is_passive() || !request.allows(group.vdev()) {
                    continue;
                }
                // What a group on disk does not lead to is deleted there after a crash.
                let refuses = || group.is_growing() || !self.sizes.takes_logs(group.vdev());
                if request.is_of_log() && refuses() {
                    continue;
                }
                let size = self.sizes.psize_to_asize(group.vdev(), request.psize, txg)?;
                let here = copies.iter().filter(|dva| u64::from(dva.vdev) == group.vdev());
                let here: Vec<u64> = here.map(|dva| dva.offset).collect();
                // Few metaslabs are not divided among allocators.
                let allocator = request.allocator % self.options.allocators;
                let enough = allocator < group.count() / 3;
                let allocator = if enough { allocator } else { 0 };
                let want = Want { txg, size, allocator, copies: &here, choice: *choice };
                let found = match load {
                    Round::Loaded | Round::Loads => {
                        self.in_group(group, &want, *load == Round::Loads)
                    }
                    Round::LastResort => self.after_last_resort(group, &want),
                };
                if let Some(offset) = found {
                    class.rotate(request, copies, i, size);
                    let vdev = u32::try_from(group.vdev()).ok()?;
                    return Some(Dva { vdev, offset, asize: size, gang: request.gang });
                }
            }
        }
        None
    }

    /// Loads what may have room for all that its histogram says, which each load makes exact.
    fn after_last_resort(self: &Arc<Self>, group: &Group, want: &Want<'_>) -> Option<u64> {
        while let Some(metaslab) = group.last_resort(want.size) {
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.load(group.vdev(), metaslab);
            match group.alloc(want, |_| {}) {
                Outcome::Got(offset) => return Some(offset),
                _ => self.in_vain.fetch_add(1, Ordering::Relaxed),
            };
        }
        None
    }

    fn in_group(self: &Arc<Self>, group: &Group, want: &Want<'_>, load: bool) -> Option<u64> {
        let mut waited = false;
        // Each load tells the weight of one more metaslab, so this ends.
        for _ in 0..=group.count() {
            let ahead = |metaslab| {
                if !load {
                    self.request_load(group.vdev(), metaslab);
                }
            };
            let outcome = group.alloc(want, ahead);
            if waited && !matches!(outcome, Outcome::Got(_)) {
                self.in_vain.fetch_add(1, Ordering::Relaxed);
            }
            match outcome {
                Outcome::Got(offset) => return Some(offset),
                Outcome::Load(ToLoad { id, sure })
                    if load && (sure || !self.options.background) =>
                {
                    self.waits.fetch_add(1, Ordering::Relaxed);
                    waited = true;
                    if !self.load(group.vdev(), id) {
                        return None;
                    }
                }
                Outcome::Load(_) | Outcome::Nothing => return None,
            }
        }
        None
    }

    /// The most physical bytes below `psize` that are sure to fit in a segment of the class (`metaslab_largest_allocatable`).
    fn largest(&self, class: Class, psize: u64) -> u64 {
        let layout = self.layout();
        let groups = layout.classes.get(&class).map_or(&[][..], |class| &class.groups);
        let fit = |group: &Arc<Group>| {
            let room = group.largest();
            let fits = |sectors: u64| {
                let bytes = sectors << cenote_format::SECTOR_SHIFT;
                let asize = self.sizes.psize_to_asize(group.vdev(), bytes, 0);
                asize.is_some_and(|asize| asize <= room)
            };
            let (mut low, mut high) = (0, psize >> cenote_format::SECTOR_SHIFT);
            while low < high {
                let middle = (low + high).div_ceil(2);
                if fits(middle) { low = middle } else { high = middle - 1 }
            }
            low << cenote_format::SECTOR_SHIFT
        };
        groups.iter().filter(|group| !group.is_passive()).map(fit).max().unwrap_or(0)
    }

    /// Allocates in `txg` whatever is free of `wanted`, disjoint ranges of a metaslab in order
    /// (`metaslab_claim`); the bytes. For space of which it is known from elsewhere what it holds.
    ///
    /// Errors: there is no such metaslab, or it cannot be loaded.
    pub fn claim(
        &self,
        txg: u64,
        vdev: u64,
        metaslab: u64,
        mut wanted: impl Iterator<Item = (u64, u64)>,
    ) -> Result<u64, AllocError> {
        let layout = self.layout();
        let group = layout.group_with(vdev, metaslab as usize);
        let group = group.filter(|_| self.load(vdev, metaslab)).ok_or(AllocError::NoVdev(vdev))?;
        let found = group.metaslabs().get(metaslab as usize).ok_or(AllocError::NoVdev(vdev))?;
        let mut alone = None;
        let (bytes, view) = loop {
            let claimed = found.claim(txg, &mut wanted);
            match claimed.map_err(|source| AllocError::Range { vdev, source })? {
                Some(claimed) => break claimed,
                None => alone = Some(group.disable_gate.keep_out()),
            }
        };
        drop(alone);
        group.allocated.fetch_add(bytes, Ordering::Relaxed);
        group.note(metaslab as usize, view);
        Ok(bytes)
    }

    /// Allocates in `txg` a DVA of a block that was written before a crash (`metaslab_claim_dva`).
    ///
    /// Errors: some of it is allocated already; it is not where space is allocated; its metaslab cannot be
    /// loaded.
    pub fn claim_dva(&self, txg: u64, dva: &Dva) -> Result<(), AllocError> {
        let layout = self.layout();
        let (_, metaslab, end) = self.locate(&layout, dva)?;
        let (vdev, range) = (u64::from(dva.vdev), (dva.offset, end));
        let claimed = self.claim(txg, vdev, metaslab.id(), [range].into_iter())?;
        if claimed != end - dva.offset {
            let source = RangeError::Absent { start: dva.offset, end };
            return Err(AllocError::Range { vdev, source });
        }
        Ok(())
    }

    /// Takes back an allocation of `txg` that nothing was written to (`metaslab_unalloc_dva`).
    pub fn unallocate(&self, txg: u64, dva: &Dva) -> Result<(), AllocError> {
        let layout = self.layout();
        let (group, metaslab, end) = self.locate(&layout, dva)?;
        let range = |source| AllocError::Range { vdev: dva.vdev.into(), source };
        let view = metaslab.unalloc(txg, dva.offset, end).map_err(range)?;
        group.lose(dva.asize);
        group.note(metaslab.id() as usize, view);
        Ok(())
    }

    /// Frees a DVA in `txg`; of a gang block, which counts what its parts take as well, the header
    /// only (`metaslab_free_dva`, `metaslab_free_impl`). Its space is used again when `txg` and
    /// [`TXG_DEFER_SIZE`](super::TXG_DEFER_SIZE) more are on disk.
    ///
    /// Errors: the DVA is not where space is allocated, or is free already.
    pub fn free(&self, txg: u64, dva: &Dva) -> Result<(), AllocError> {
        self.free_or_keep(txg, dva, false)
    }

    fn free_or_keep(&self, txg: u64, dva: &Dva, is_kept: bool) -> Result<(), AllocError> {
        let layout = self.layout();
        let (_, metaslab, end) = self.locate(&layout, dva)?;
        let wrong = |source| match source {
            RangeError::Overlap { start, end, seg_start, seg_end } => AllocError::FreedTwice {
                vdev: dva.vdev.into(),
                metaslab: metaslab.id(),
                txg,
                range: (start, end),
                free: (seg_start, seg_end),
            },
            source => AllocError::Range { vdev: dva.vdev.into(), source },
        };
        metaslab.free(txg, (dva.offset, end), is_kept).map_err(wrong)
    }

    /// The group and the metaslab of a DVA, and where it ends.
    fn locate<'a>(
        &self,
        layout: &'a Layout,
        dva: &Dva,
    ) -> Result<(&'a Group, &'a Metaslab, u64), AllocError> {
        let vdev = u64::from(dva.vdev);
        let of_vdev = layout.group(vdev).ok_or(AllocError::NoVdev(vdev))?;
        let size = match dva.gang {
            true => self
                .sizes
                .psize_to_asize(vdev, OLD_GANG_HEADER as u64, 0)
                .ok_or(AllocError::NoVdev(vdev))?,
            false => dva.asize,
        };
        let (start, end) = (dva.offset, dva.offset.saturating_add(size));
        let absent = || AllocError::Range { vdev, source: RangeError::Absent { start, end } };
        let metaslab = of_vdev.metaslab_at(start).ok_or_else(absent)?;
        let group = layout.group_with(vdev, metaslab.id() as usize).ok_or_else(absent)?;
        Ok((group, metaslab, end))
    }

    /// The changes of `txg` since the last call, of each metaslab that has any. A pass of a sync
    /// writes them to space maps, which makes changes for the next pass.
    pub fn take_changes(&self, txg: u64) -> Vec<Changes> {
        let mut all = Vec::new();
        let layout = self.layout();
        for group in layout.all_groups() {
            // In all passes but the first these are few.
            let changed = group.members().filter(|metaslab| metaslab.has_changes(txg));
            let changed: Vec<&Metaslab> = changed.collect();
            let changes: Vec<(Changes, Arc<RangeTree>)> = match self.options.background {
                true => {
                    let changed = changed.par_iter().with_min_len(METASLABS_PER_THREAD);
                    changed.map(|metaslab| metaslab.take_changes(txg)).collect()
                }
                false => changed.iter().map(|metaslab| metaslab.take_changes(txg)).collect(),
            };
            group.defer(txg, changes.iter().map(|(_, deferred)| deferred.space()).sum());
            if let Some(Addresses(growing)) = group.addresses() {
                let freed = changes.iter().flat_map(|(_, freed)| freed.iter());
                freed.for_each(|(start, end)| growing.free(start, end));
            }
            // What was allocated and freed again changes nothing on disk but what is deferred.
            let any = |(c, deferred): &(Changes, Arc<RangeTree>)| {
                !deferred.is_empty() || !c.allocs.is_empty()
            };
            all.extend(changes.into_iter().filter(any).map(|(changes, _)| changes));
        }
        all.sort_by_key(|changes| (changes.vdev, changes.metaslab));
        all
    }

    /// Vdevs whose addresses are never used twice.
    pub fn growing(&self) -> Vec<(u64, Addresses)> {
        let layout = self.layout();
        layout.all_groups().filter_map(|g| Some((g.vdev(), g.addresses()?))).collect()
    }

    /// Whether there is a vdev whose addresses are never used twice: nothing may be allocated there for a log.
    pub fn has_growing(&self) -> bool {
        self.layout().all_groups().any(|group| group.is_growing())
    }

    /// Whether something was allocated or freed in `txg` since its changes were taken.
    pub fn has_changes(&self, txg: u64) -> bool {
        let layout = self.layout();
        layout.all_groups().any(|group| group.members().any(|m| m.has_changes(txg)))
    }

    /// `txg` is on disk, with all its changes, the last of which were taken before. Frees that
    /// have waited long enough count as free, and come back into circulation once what is returned is
    /// dropped (see `deferred`); metaslabs that are worth it are loaded ahead.
    pub fn sync_done(self: &Arc<Self>, txg: u64) -> DeferredFrees {
        self.wait_deferred();
        let before = self.synced.fetch_max(txg, Ordering::Relaxed);
        invariant!(before <= txg, "group {txg} ends after group {before}");
        if self.groups().any(|group| group.is_short()) {
            self.let_go();
        }
        let held = self.holds.oldest().into_iter().chain(self.readers.oldest()).min();
        let due = txg.checked_sub(TXG_DEFER_SIZE).map(|last| held.map_or(last, |h| h.min(last)));
        let due = due.map(|due| due.min(self.frozen.load(Ordering::Relaxed)));
        let layout = self.layout();
        let groups = layout.all_groups();
        let groups = groups.map(|group| (group.clone(), group.account(txg, due))).collect();
        layout.classes.values().for_each(|class| class.balance());
        let work = Work { groups, txg, due, unload_after: self.options.unload_after };
        let deferred = match self.options.background {
            true => self.deferred.get_or_init(|| DeferThread::start(&self.alarm)).give(work),
            false => {
                work.run();
                DeferredFrees::over()
            }
        };
        self.preload();
        deferred
    }

    /// Waits until all space that has waited long enough is in circulation.
    pub fn wait_deferred(&self) {
        if let Some(deferred) = self.deferred.get() {
            deferred.wait();
        }
    }

    /// Keeps what is freed after `txg`, which is the last one on disk, from being allocated, until
    /// the hold is dropped or space is short.
    pub fn hold(&self, txg: u64) -> Hold {
        self.holds.take(txg)
    }

    /// What is freed after `txg` is not used again: nothing that comes after it gets on disk.
    pub fn freeze(&self, txg: u64) {
        self.frozen.fetch_min(txg, Ordering::Relaxed);
    }

    /// The readers of datasets in use.
    pub fn readers(&self) -> &Arc<ReadEpochs> {
        &self.readers
    }

    /// Lets all holds and readers go: space is short.
    pub fn let_go(&self) {
        self.holds.let_go();
        self.readers.let_go();
    }
}
