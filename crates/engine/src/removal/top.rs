//! A vdev that holds data begins to leave the pool (`spa_vdev_remove_top`), or stays after all (`spa_vdev_remove_cancel`).
//!
//! To begin, the vdev is made passive, so that nothing more is allocated on it; then all logs end, and a sync task makes the
//! evacuation's mapping and births, names them in the directory, and publishes the new tree. If groups that are not yet written
//! still have something allocated on the vdev, the sync task refuses, and a few more groups are tried. To cancel, what was copied
//! and is still allocated is freed through the mapping, the mapping is freed, and the vdev becomes active again.
//!
//! Invariant: one vdev leaves at a time, by the MOS and in memory.

use super::{Passive, RemoveError};
use crate::features::count_feature;
use crate::space::pool_space;
use crate::space_write::{Evacuation, config_of};
use crate::tunables::REMOVE_MAX_SEGMENT;
use crate::{Engine, SyncContext};
use cenote_dmu::write::{OpenObjectSet, WriteError, ZapMut};
use cenote_dsl::write::{DslWriteError, Result as DslResult};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant;
use cenote_format::nvlist::NvValue;
use cenote_pool::config;
use cenote_pool::config_write::DIRECTORY;
use cenote_pool::indirect::Mapping;
use cenote_pool::indirect::removing::{CANCELED, Removing};
use cenote_pool::rebuild::RebuildPhys;
use cenote_store::alloc::{Allocator, Class, Extent, Metaslab};
use cenote_store::write::Copied;
use cenote_vdev::{IndirectMap, Vdev, VdevTree};
use std::sync::Arc;

/// What the config of a vdev has while it is being removed.
const OF_REMOVAL: [&str; 4] =
    ["removing", "non_allocating", "com.delphix:indirect_object", "com.delphix:indirect_births"];
/// Groups in each of which a vdev may come to rest.
const TRIES: usize = 5;

/// Whether a removal began.
#[derive(Debug, PartialEq)]
enum Begun {
    Yes,
    /// Another one is under way, or the vdev is allocated from; a device below it lacks something, or is being rebuilt.
    Busy,
    /// The others have no room.
    NoSpace,
}

/// Refuses a vdev that OpenZFS does not remove (`spa_vdev_remove_top_check`).
fn check(engine: &Engine, tree: &VdevTree, top: &Vdev) -> Result<(), RemoveError> {
    let (pool, allocator) = (engine.pool(), &engine.shared.disk.allocator);
    if !matches!(top.kind(), "file" | "disk" | "mirror" | "raidz" | "replacing" | "spare")
        || !pool.features().is_enabled("device_removal")
    {
        return Err(RemoveError::NoTop);
    }
    if config::flag(top.config(), "removing") {
        return Err(RemoveError::Already);
    }
    let class = allocator.class_of(top.id());
    if matches!(class, Some(Class::Special | Class::Dedup)) {
        // Normal vdevs take what no other one of its class does.
        let of_group = |id| allocator.group(id).map_or(0, |group| group.allocated());
        let normal = allocator.groups_of(Class::Normal).into_iter();
        let free = normal.filter(|group| !group.is_passive()).fold(0u64, |free, group| {
            free.saturating_add(group.space().saturating_sub(group.allocated()))
        });
        if free < of_group(top.id()) {
            return Err(RemoveError::NoSpace);
        }
    } else if class != Some(Class::Normal) {
        return Err(RemoveError::NoTop);
    }
    let removal = Removing::load(pool.directory()).map_err(crate::EngineError::from)?;
    if removal.is_some_and(|removal| removal.is_running()) {
        return Err(RemoveError::Busy);
    }
    let mut leaves = Vec::new();
    tree.top(top.id()).into_iter().for_each(|top| top.collect_leaves(&mut leaves));
    let rebuilds = RebuildPhys::all(&pool);
    let is_rebuilt = rebuilds.iter().any(|(id, phys)| *id == top.id() && phys.is_running());
    if is_rebuilt || leaves.iter().any(|leaf| leaf.is_behind()) {
        return Err(RemoveError::Busy);
    }
    if !top.state().readable() {
        return Err(RemoveError::Unreadable);
    }
    if !can_be_copied(allocator, tree, top) {
        return Err(RemoveError::Config);
    }
    let waiting = engine.shared.unreplayed.lock().heads();
    for ds_obj in &waiting {
        let dataset = pool.dsl().by_object(*ds_obj).map_err(crate::EngineError::from)?;
        let loaded = dataset.map(|d| pool.dsl().is_key_loaded(&d)).transpose();
        if loaded.map_err(crate::EngineError::from)?.flatten() == Some(false) {
            return Err(RemoveError::LogsWait);
        }
    }
    if waiting.is_empty() { Ok(()) } else { Err(RemoveError::Busy) }
}

/// Whether the blocks of a vdev can lie on the others as they are.
fn can_be_copied(allocator: &Allocator, tree: &VdevTree, top: &Vdev) -> bool {
    let tops = tree.root().children().iter().filter(|v| allocator.has_vdev(v.id()));
    let others = tops.clone().filter(|v| v.id() != top.id() && v.state().readable());
    let mut others = others.filter(|v| allocator.class_of(v.id()) == Some(Class::Normal));
    let simple = |v: &Vdev| match v.kind() {
        "mirror" => v.children().iter().all(|child| child.is_leaf()),
        _ => v.nparity() == 0,
    };
    let fits = |v: &&Arc<Vdev>| v.is_log() || v.ashift() == top.ashift();
    let plain = top.is_leaf() || top.kind() == "mirror";
    others.next().is_some() && plain && tops.clone().all(|v| simple(v) && fits(&v))
}

impl Engine {
    /// Begins to remove a vdev that holds data (`spa_vdev_remove_top`): threads copy what is on it to others.
    pub(super) fn remove_top(&self, top: &Arc<Vdev>) -> Result<(), RemoveError> {
        let id = top.id();
        check(self, &self.shared.disk.tree(), top)?;
        // Asked before the pool gets smaller for everyone.
        if !self.sync_task_beside_logs(move |context| context.fits_without(id), |_| true)? {
            return Err(RemoveError::NoSpace);
        }
        let passive = Passive::new(&self.shared.disk.allocator, id);
        if let Err(why) = self.begin_removal(id, passive) {
            // From the next group on datasets can have its space again. Or it has begun, in a pool that was suspended.
            self.sync_task_beside_logs(|_| Ok(()), |()| true)?;
            self.shared.wake_evacuation();
            return Err(why);
        }
        self.shared.wake_evacuation();
        self.shared.wake_activities();
        Ok(())
    }

    /// About how many bytes of memory the mapping of a top-level vdev takes if that is removed; `None`: it would leave no
    /// mapping.
    pub fn mapping_size(&self, guid: u64) -> Option<u64> {
        let tree = self.shared.disk.tree();
        let top = tree.root().children().iter().find(|top| top.guid() == guid)?;
        let group = self.shared.disk.allocator.group(top.id()).filter(|_| !top.is_log())?;
        let free =
            group.members().map(|metaslab| metaslab.histogram().counts().iter().sum::<u64>());
        // There are about as many allocated segments as free ones.
        let pieces: u64 = free.sum();
        let most = group.allocated() / REMOVE_MAX_SEGMENT.get().max(1);
        Some((pieces + most) * Mapping::ENTRY_SIZE)
    }

    fn begin_removal(&self, id: u64, passive: Arc<Passive>) -> Result<(), RemoveError> {
        for _ in 0..TRIES {
            // All logs end, lest a block be written that was allocated before.
            self.sync_task(|_| Ok(()))?;
            let passive = passive.clone();
            let change = move |context: &mut SyncContext<'_>| {
                let begun = context.begin_removal(id)?;
                if begun == Begun::Yes {
                    passive.leaves();
                }
                Ok(begun)
            };
            match self.sync_task_beside_logs(change, |begun| *begun == Begun::Yes)? {
                Begun::Yes => return Ok(()),
                Begun::NoSpace => return Err(RemoveError::NoSpace),
                Begun::Busy => {}
            }
        }
        Err(RemoveError::Busy)
    }

    /// What the removal of a vdev that is under way waits for, if it does.
    pub fn removal_waits(&self) -> Option<String> {
        self.shared.removal_waits.lock().clone()
    }

    /// Cancels the removal that is under way: the vdev stays, and what was copied is freed (`spa_vdev_remove_cancel`).
    ///
    /// # Errors
    /// No vdev is being removed; the pool is suspended.
    pub fn cancel_removal(&self) -> Result<(), RemoveError> {
        let _alone = self.shared.removing.lock();
        let leaves = self.shared.disk.tree().leaves();
        let leaving = leaves.iter().map(|leaf| leaf.guid());
        let leaving: Vec<u64> = leaving.filter(|leaf| self.shared.is_removing(*leaf)).collect();
        let change = |context: &mut SyncContext<'_>| context.cancel_removal();
        if !self.sync_task_beside_logs(change, |done| *done)? {
            return Err(RemoveError::NotActive);
        }
        self.shared.resume_activities(|leaf| leaving.contains(&leaf));
        Ok(())
    }
}

impl SyncContext<'_> {
    /// What the pending MOS says of the last removal (`spa_removal_get_stats`).
    pub(super) fn removal(&mut self) -> DslResult<Option<Removing>> {
        Ok(removal_of(self.tx.mos)?)
    }

    pub(super) fn set_removal(&mut self, removal: &Removing) -> DslResult<()> {
        Ok(set_removal(self.tx.mos, removal)?)
    }

    /// See [`allocated`]: as of the group that is being written.
    pub(super) fn allocated_of(
        &self,
        vdev: u64,
        from: u64,
        enough: &mut dyn FnMut((u64, u64)) -> bool,
    ) -> DslResult<()> {
        allocated(&self.disk.allocator, self.tx.txg, (vdev, from), enough)
    }

    /// Whether what the pool holds fits into it without this vdev.
    fn fits_without(&mut self, id: u64) -> DslResult<bool> {
        let mut space = pool_space(self.disk);
        let allocator = &self.disk.allocator;
        if let Some(group) = allocator.group(id)
            && let Some(top) = self.disk.tree().top(id)
        {
            match allocator.class_of(id) {
                Some(Class::Normal) if group.is_passive() => {}
                Some(Class::Normal) => {
                    space.nonallocating += top.deflate(group.space());
                }
                // What it holds was not counted against the space of normal vdevs.
                _ => {
                    let less = top.deflate(group.allocated());
                    // Other threads allocate between the two sums.
                    space.special_allocated = space.special_allocated.saturating_sub(less);
                }
            }
        }
        let deferred = self.disk.allocator.figures(Class::Normal).deferred;
        Ok(cenote_dsl::write::pool::used(&mut self.tx)? <= space.usable(deferred))
    }

    /// See [`Engine::remove_top`].
    fn begin_removal(&mut self, id: u64) -> DslResult<Begun> {
        self.refuse_with_checkpoint()?;
        self.maps.check_leaving(id)?;
        if self.disk.frozen.leaves_out(self.tx.txg) {
            let why = "the pool is frozen: export and import it first";
            return Err(DslWriteError::Invalid(why.into()));
        }
        // The pool's directory and the vdev's config say both that one is under way: either of the two is enough.
        let is_copied = self.maps.evacuation().is_some();
        let running = is_copied || self.removal()?.filter(Removing::is_running).is_some();
        if running || self.disk.allocator.is_being_allocated(id) {
            return Ok(Begun::Busy);
        }
        let tree = self.disk.tree();
        // A vdev may have joined since.
        if !tree.top(id).is_some_and(|top| can_be_copied(&self.disk.allocator, &tree, top)) {
            return Err(DslWriteError::Invalid("the pool's configuration has changed".into()));
        }
        let mut leaves = Vec::new();
        tree.top(id).into_iter().for_each(|top| top.collect_leaves(&mut leaves));
        if leaves.iter().any(|leaf| leaf.is_behind()) || self.is_rebuilt(id)? {
            return Ok(Begun::Busy);
        }
        if !self.fits_without(id)? {
            return Ok(Begun::NoSpace);
        }
        let top_zap = self.maps.top_zap(id);
        if top_zap == 0 {
            return Err(DslWriteError::Unsupported("removing a device without a ZAP".into()));
        }
        // No metaslab is loaded for that: a group begins this, and a vdev may have many.
        let group = self.disk.allocator.group(id).ok_or(DslWriteError::NotFound)?;
        let allocated = |metaslab: &Metaslab| metaslab.allocated_after(self.tx.txg);
        let to_copy: Option<u64> = group.metaslabs().iter().map(allocated).sum();
        let senseless =
            || DslWriteError::Invalid(format!("vdev {id}: what is allocated is not known"));
        let to_copy = to_copy.ok_or_else(senseless)?;
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        let evacuation = Evacuation::begin(self.tx.mos, (id, top_zap), &mut count)?;
        let prev = self.removal()?.map_or(u64::MAX, |removal| removal.prev);
        self.set_removal(&Removing::begin(id, prev, self.tx.now, to_copy))?;
        rewrite_directory(self.tx.mos)?;
        let mut root = self.config.vdev_tree.clone();
        let top = config_of(&mut root, id).ok_or(DslWriteError::NotFound)?;
        let (object, births) = evacuation.objects();
        for (name, value) in OF_REMOVAL.into_iter().zip([1, 1, object, births]) {
            top.set(name, NvValue::Uint64(value));
        }
        let path = config::path(top).map_or_else(|| "-".into(), |p| p.display().to_string());
        self.record("vdev remove started", &format!("{} vdev {id} {path}", self.tx.pool))?;
        let now = self.altered_tree(&root, id, &mut |_, _| None, &|guid| guid)?;
        let under_way = self.maps.evacuation().map(|evacuation| evacuation.vdev);
        invariant!(under_way.is_none(), "vdev {id} begins to be removed, and {under_way:?} is");
        self.replace_tree(now, root)?;
        self.publish(evacuation);
        Ok(Begun::Yes)
    }

    /// A vdev was copied so far.
    pub(super) fn publish(&mut self, evacuation: Evacuation) {
        self.disk.writer.set_removing(Some(copied(&evacuation)));
        self.maps.begin_evacuation(evacuation);
    }

    /// See [`Engine::cancel_removal`].
    fn cancel_removal(&mut self) -> DslResult<bool> {
        let Some(evacuation) = self.maps.evacuation().cloned() else { return Ok(false) };
        if self.disk.frozen.leaves_out(self.tx.txg) {
            let why = "the pool is frozen: export and import it first";
            return Err(DslWriteError::Invalid(why.into()));
        }
        let (id, txg, outside) = (evacuation.vdev, self.tx.txg, &self.disk.outside);
        let end = evacuation.mapping.end();
        let mut ranges = Vec::new();
        self.allocated_of(id, 0, &mut |(start, to)| {
            ranges.push((start, to.min(end)));
            to >= end
        })?;
        ranges.retain(|(start, to)| start < to);
        let mapped =
            |(start, to): &(u64, u64)| evacuation.mapping.remap(*start, to - start).is_some();
        if !ranges.iter().all(mapped) {
            return Err(DslWriteError::Invalid("what was copied is not in the mapping".into()));
        }
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        evacuation.free(self.tx.mos, (txg, self.maps.top_zap(id)), &mut count)?;
        let known = self.removal()?.ok_or(DslWriteError::NotFound)?;
        self.set_removal(&Removing { state: CANCELED, end: self.tx.now, ..known })?;
        let mut root = self.config.vdev_tree.clone();
        let top = config_of(&mut root, id).ok_or(DslWriteError::NotFound)?;
        top.pairs.retain(|(name, _)| !OF_REMOVAL.contains(&name.as_str()));
        let path = config::path(top).map_or_else(|| "-".into(), |p| p.display().to_string());
        self.record("vdev remove canceled", &format!("{} vdev {id} {path}", self.tx.pool))?;
        let now = self.altered_tree(&root, id, &mut |_, _| None, &|guid| guid)?;
        self.replace_tree(now, root)?;
        let (writer, copied) = (&self.disk.writer, copied(&evacuation));
        for range in ranges {
            // No checkpoint has the copies: there was none since the removal began.
            let freed = writer.free_mapped((txg, txg), &copied, range);
            freed.map_err(|e| WriteError::Sink(Box::new(e)))?;
        }
        writer.set_removing(None);
        writer.forget_obsolete(id);
        writer.take_spared();
        self.maps.end_evacuation(false);
        self.disk.allocator.activate(id);
        Ok(true)
    }
}

/// What is allocated of a vdev from an offset on once group `txg` is on disk, metaslab by metaslab, until `enough` says so.
///
/// # Errors
/// A space map cannot be read.
pub(crate) fn allocated(
    allocator: &Arc<Allocator>,
    txg: u64,
    (vdev, from): (u64, u64),
    enough: &mut dyn FnMut((u64, u64)) -> bool,
) -> DslResult<()> {
    let unreadable = |why: &str| DslWriteError::Invalid(format!("vdev {vdev}: {why}"));
    let group = allocator.group(vdev).ok_or(DslWriteError::NotFound)?;
    for metaslab in group.metaslabs().iter() {
        let Extent { start, size, .. } = metaslab.extent();
        let end = start + size;
        if end <= from {
            continue;
        }
        let loaded = allocator.load(vdev, metaslab.id());
        let free = metaslab.free_after(txg).filter(|_| loaded);
        let free = free.ok_or_else(|| unreadable("a space map cannot be read"))?;
        let mut at = start;
        for (free_start, free_end) in free.iter().chain([(end, end)]) {
            invariant!(
                at <= free_start && free_start <= free_end && free_end <= end,
                "vdev {vdev}: {free_start:#x}-{free_end:#x} is free after {at:#x}, up to {end:#x}"
            );
            let range = (at.max(from), free_start);
            if range.0 < range.1 && enough(range) {
                return Ok(());
            }
            at = free_end;
        }
    }
    Ok(())
}

/// How far a vdev was copied, for the code that frees what is on it.
pub(crate) fn copied(evacuation: &Evacuation) -> Copied {
    let mapping = evacuation.mapping.clone();
    Copied { vdev: evacuation.vdev, end: mapping.end(), mapping }
}

fn removal_of(mos: &mut OpenObjectSet) -> Result<Option<Removing>, WriteError> {
    let found = ZapMut::open(mos, DIRECTORY).lookup(&Key::Name(Removing::ENTRY.as_bytes()))?;
    let Some((_, words)) = found else { return Ok(None) };
    let why = || format!("{}: {} words", Removing::ENTRY, words.len());
    let bad = || WriteError::Invalid { object: DIRECTORY, why: why() };
    Removing::of(&words).ok_or_else(bad).map(Some)
}

fn set_removal(mos: &mut OpenObjectSet, removal: &Removing) -> Result<(), WriteError> {
    let (key, words) = (Key::Name(Removing::ENTRY.as_bytes()), removal.words());
    ZapMut::open(mos, DIRECTORY).update(&key, &Value::U64(&words))
}

/// So many bytes of a vdev that is being removed were freed before they were copied: they count as done (`svr_sync`).
pub(crate) fn note_spared(mos: &mut OpenObjectSet, bytes: u64) -> Result<(), WriteError> {
    let Some(removal) = removal_of(mos)?.filter(Removing::is_running) else { return Ok(()) };
    set_removal(mos, &Removing { copied: copied_with(removal.copied, bytes), ..removal })
}

/// What a removal copied, and more. The number is of the disk, and only shown: one that is wrong there keeps nothing from
/// going on.
pub(super) fn copied_with(copied: u64, more: u64) -> u64 {
    copied.checked_add(more).unwrap_or_else(|| {
        tracing::warn!(
            "a removal says that it copied {copied} bytes, and {more} more are: that is wrong"
        );
        u64::MAX
    })
}

/// Writes all blocks of the object directory anew: it is read before mappings are, so no block of it may be on a vdev that was
/// removed.
fn rewrite_directory(mos: &mut OpenObjectSet) -> Result<(), WriteError> {
    let dnode = mos.dnode(DIRECTORY)?;
    let (block, last) = (dnode.block_size, dnode.max_block);
    for n in 0..=last {
        let mut bytes = vec![0; block as usize];
        let at = n * block;
        mos.read(DIRECTORY, at, &mut bytes)?;
        mos.write(DIRECTORY, at, &bytes)?;
    }
    Ok(())
}
