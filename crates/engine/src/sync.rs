//! One transaction group: its passes (`spa_sync`, `spa_sync_iterate_to_convergence`).
//!
//! [`Core`] is what the sync thread owns: the pending MOS, the space maps, the config, what waits to be freed. The head
//! of the [module](super) draws the passes and says why they end.
//!
//! Invariants: only the sync thread changes the MOS. What fails before the uberblock is on disk suspends the pool and
//! fails the group; what fails afterwards suspends the pool, but the group is done.

mod datasets;

use super::checkpoint::must_wait;
use super::commit::drain;
use super::dedup::{FAST_DEDUP, Group};
use super::error::EngineError;
use super::features::count_feature;
use super::figures::Recorder;
use super::policy::{Abilities, Policy};
use super::removal::note_spared;
use super::sink::Sink;
use super::sync_core::Core;
use super::task::Task;
use super::{Disk, MAX_PASSES, Shared, SyncContext, space, verify};
use crate::space_write::map::feature_uses;
use crate::space_write::mappings::Shorter;
use crate::space_write::write_dtls;
use crate::tunables;
use cenote_dmu::ObjectSet;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{BlockSink, OpenObjectSet, SyncingSet, WriteError, WrittenSet, ZapMut};
use cenote_dsl::bpobj;
use cenote_dsl::tunables::FREE_MIN_TIME_MS;
use cenote_dsl::write::free::{Budget, destroy_step};
use cenote_dsl::write::{DslWriteError, Result, Sizes, Tx, pool, references};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::BpobjPhys;
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant;
use cenote_format::invariant::caught;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::config_write;
use cenote_pool::indirect::Mapping;
use cenote_pool::txg_times::{self, TxgTimes};
use cenote_store::Bookmark;
use cenote_store::alloc::Class;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Entry of the object directory: blocks that the next group frees (`DMU_POOL_SYNC_BPOBJ`).
const DEFERRED: &str = "sync_bplist";
/// The MOS's object set number.
const MOS: u64 = 0;

/// The number that errors of the MOS are reported under.
fn mos_bookmark() -> Bookmark {
    Bookmark { objset: MOS, object: 0, level: 0, blkid: 0 }
}

/// The feature of pools whose root vdev has a ZAP, and where its number is (`ZPOOL_CONFIG_VDEV_ROOT_ZAP`).
const ROOT_ZAPS: &str = "com.klarasystems:vdev_zaps_v2";
const ROOT_ZAP: &str = "com.klarasystems:vdev_zap_root";

/// The datasets of a transaction group, with what they handed over.
type Quiesced = Vec<(Arc<LiveObjectSet>, SyncingSet)>;

impl Core {
    /// Writes the open transaction group (`spa_sync`).
    ///
    /// # Errors
    /// The pool has to be suspended.
    pub fn sync(&mut self, shared: &Arc<Shared>) -> std::result::Result<(), EngineError> {
        let (group, quiesced, (first, mut tasks)) =
            shared.tx_state.quiesce(|txg| shared.datasets.quiesce(txg), || shared.queue.take());
        let txg = group.txg;
        // Freed space comes back when further groups are on disk.
        let deferred = shared.disk.allocator.deferred() > 0;
        let logs = shared.datasets.has_log_blocks(txg);
        let errors = shared.disk.store.has_pending_errors();
        let missed = shared.disk.tree().has_missed();
        let asked = !quiesced.is_empty() || !first.is_empty() || !tasks.is_empty();
        let goes_on = self.config_dirty || self.destroying || self.discarding;
        if !asked && !deferred && !logs && !errors && !missed && !goes_on {
            shared.disk.is_sound()?;
            shared.heed_devices();
            shared.datasets.had_nothing(txg);
            shared.tx_state.synced(txg);
            shared.call_spares();
            return Ok(());
        }
        let (frees, uncharged) = (self.frees.len(), self.uncharged.is_some());
        invariant!(
            frees == 0 && !uncharged || shared.tx_state.failure().is_some(),
            "group {txg} begins with {frees} blocks of one before, not charged: {uncharged}"
        );
        self.missed.clear();
        let checked = shared.disk.tree().recheck();
        checked.map_err(|e| EngineError::Unsupported(e.to_string()))?;
        // With this group at the latest: addresses come back in no other way, and a group takes a small part of what is left.
        tasks.extend(shared.stores_that_grow());
        shared.disk.tree().set_dirty_percent(shared.tx_state.dirty_percent());
        let mut recorder = Recorder::begin(&shared.disk, txg);
        // That of a group that failed.
        verify::took();
        recorder.quiesced(&group);
        shared.history.writing(recorder.so_far());
        let abilities = self.pending_features()?;
        self.begin_dedup(shared, txg)?;
        if !first.is_empty() {
            // One may begin, or end, what is kept of all that the group frees.
            let usable = shared.view().dsl().usable_space()?;
            self.run_tasks(shared, (txg, usable), abilities, first)?;
            self.discarding = true;
        }
        self.free_deferred(&shared.disk, txg)?;
        self.condense_mapping(&shared.disk, txg)?;
        let begun = Instant::now();
        let written = self.sync_datasets(shared, txg, abilities, quiesced)?;
        recorder.datasets(begun.elapsed());
        let usable = shared.view().dsl().usable_space()?;
        self.run_tasks(shared, (txg, usable), abilities, tasks)?;
        self.free_destroyed(shared, (txg, usable))?;
        let discarded = self.discard_checkpoint(&shared.disk, txg)?;
        let errors = self.log_errors(shared, txg)?;
        self.note_time(shared, txg)?;
        self.passes(&shared.disk, txg, abilities, usable, &mut recorder)?;
        self.verify(shared, written.iter().map(|(live, _)| live.id()))?;
        recorder.compared(verify::took());
        // A pool that was suspended meanwhile has something wrong in memory.
        shared.tx_state.failure().map_or(Ok(()), |why| Err(EngineError::Suspended(why)))?;
        let begun = Instant::now();
        // What fails from here on does not undo the group: it is on disk.
        let after = self.write_labels(&shared.disk, txg)?;
        let panicked = |why: String| Err(EngineError::Suspended(why));
        let shown = after.and_then(|()| caught(|| self.show(shared, txg)).unwrap_or_else(panicked));
        let figures = recorder.end(&shared.disk, &self.maps, begun.elapsed());
        tracing::debug!(txg, passes = figures.passes.len(), self.destroying, "synced");
        shared.history.add(figures, &shared.disk.allocator.load_latency());
        errors.iter().for_each(|errors| shared.disk.store.errors_written(errors));
        let on = |(live, written): (Arc<LiveObjectSet>, Option<WrittenSet>)| {
            match written {
                Some(written) => live.sync_done(written),
                None => live.give_up(),
            }
            live
        };
        shared.datasets.done_with(written.into_iter().map(on).collect());
        shared.disk.store.group_on_disk(txg);
        shared.disk.allocator.readers().group_done(txg);
        self.condense_livelists(shared);
        shared.call_spares();
        if discarded {
            shared.owe_resilver();
        }
        shared.heed_devices();
        // Asked before waiters are told: one that then waits for everything waits for that too.
        // A checkpoint that cannot be read while devices are away is discarded further with the next change.
        if self.destroying || self.discarding && !shared.disk.tree().has_outage() {
            shared.tx_state.ask_for_more();
        }
        shared.note_missed();
        shared.settle_later();
        shared.tx_state.synced(txg);
        // From here on what was freed comes back.
        drop(shown?);
        shared.vacant.group_done(shared);
        shared.wake_reclaim();
        shared.disk.writer.forget_freed();
        Ok(())
    }

    /// Runs sync tasks.
    fn run_tasks(
        &mut self,
        shared: &Shared,
        (txg, usable): (u64, Option<u64>),
        abilities: Abilities,
        tasks: VecDeque<Task>,
    ) -> Result<()> {
        let view = shared.view();
        let sizes = |bp: &BlockPointer| space::sizes(&shared.disk.tree(), bp);
        let mut context = SyncContext {
            tx: Tx {
                usable,
                pool: view.name(),
                frees: std::mem::take(&mut self.frees),
                ..Tx::new(&mut self.mos, txg, &shared.disk.outside, &sizes)
            },
            config: &mut self.config,
            config_changed: self.config_dirty,
            maps: &mut self.maps,
            disk: &shared.disk,
            datasets: Some(&shared.datasets),
            abilities,
            born: Mutex::default(),
            when_kept: Vec::new(),
        };
        if !tasks.is_empty() {
            // Whatever they do to deadlists.
            self.deadlists.forget();
        }
        for task in tasks {
            task(&mut context)?;
        }
        context.keep_scan(shared)?;
        mark_obsolete(&shared.disk, &context.tx)?;
        self.config_dirty = context.config_changed;
        self.frees = context.tx.frees;
        Ok(())
    }

    /// Frees some of what was destroyed.
    fn free_destroyed(&mut self, shared: &Shared, (txg, usable): (u64, Option<u64>)) -> Result<()> {
        let view = shared.view();
        let sizes = |bp: &BlockPointer| space::sizes(&shared.disk.tree(), bp);
        let mut tx = Tx {
            usable,
            pool: view.name(),
            frees: std::mem::take(&mut self.frees),
            ..Tx::new(&mut self.mos, txg, &shared.disk.outside, &sizes)
        };
        self.waits_to_free = must_wait(&shared.disk, &mut tx)?;
        self.destroying = !self.waits_to_free && free_destroyed(shared, &mut tx)?;
        mark_obsolete(&shared.disk, &tx)?;
        self.frees = tx.frees;
        Ok(())
    }

    /// Notes when the group was written, from time to time (`spa_sync_time_logger`).
    fn note_time(&mut self, shared: &Shared, txg: u64) -> Result<()> {
        let now = shared.disk.outside.clock.seconds();
        let noted = *self.noted.get_or_insert(now);
        if now.saturating_sub(noted) < tunables::SPA_NOTE_TXG_TIME.get() {
            return Ok(());
        }
        self.noted = Some(now);
        // What is on disk is what this has noted before, or another system.
        let mut times = match TxgTimes::load(shared.view().directory()) {
            Ok(times) => times,
            Err(why) => {
                tracing::warn!("it is not noted when group {txg} was written: {why}");
                return Ok(());
            }
        };
        times.add(now, txg);
        for (name, words) in txg_times::ENTRIES.iter().zip(times.encode()) {
            let key = Key::Name(name.as_bytes());
            ZapMut::open(&mut self.mos, config_write::DIRECTORY)
                .update(&key, &Value::U64(&words))?;
        }
        Ok(())
    }

    /// What the pool's features allow.
    pub(super) fn pending_features(&mut self) -> Result<Abilities> {
        let mut uses = |guid: &str| feature_uses(&mut self.mos, guid);
        Ok(Abilities {
            embed: uses("com.delphix:embedded_data")?.is_some(),
            hole_birth: uses("com.delphix:hole_birth")?.is_some(),
            lz4: uses("org.illumos:lz4_compress")?.is_some_and(|n| n > 0),
        })
    }

    /// Frees what the last group left to this one (`spa_sync_deferred_frees`).
    fn free_deferred(&mut self, disk: &Disk, txg: u64) -> Result<()> {
        let Some(object) = config_write::entry(&mut self.mos, DEFERRED)? else { return Ok(()) };
        let base = self.mos.synced().clone();
        let header = bpobj::header(&base, object)?;
        if header.entries == 0 {
            return Ok(());
        }
        let mut blocks = Vec::new();
        let all = bpobj::iterate(&base, object, &mut |entry| {
            blocks.push(entry.bp);
            Ok(())
        });
        let free = self.release(disk, txg, blocks.clone())?;
        free_now(disk, txg, &free)?;
        if let Err(why) = all {
            tracing::warn!("blocks that the last group left to this one are leaked: {why}");
            let sizes = |bp: &BlockPointer| space::sizes(&disk.tree(), bp);
            let found = blocks.iter().map(|bp| sizes(bp).used).fold(0, u64::saturating_add);
            // The header of a list that is damaged may say less than what was found.
            let used = header.bytes.saturating_sub(found);
            let mut tx = Tx::new(&mut self.mos, txg, &disk.outside, &sizes);
            pool::charge_leak(&mut tx, Sizes { used, ..Sizes::default() })?;
        }
        let (len, kind) = {
            let dnode = self.mos.dnode(object)?;
            (dnode.bonus.len(), dnode.bonus_kind)
        };
        let empty = BpobjPhys {
            entries: 0,
            bytes: 0,
            compressed: 0,
            uncompressed: 0,
            subobjs: 0,
            num_subobjs: 0,
            freed: 0,
        };
        self.mos.truncate(object, 0)?;
        Ok(self.mos.set_bonus(object, kind, &empty.encode(len)?)?)
    }

    /// Makes the mapping of a removed vdev shorter, if that is worth it.
    fn condense_mapping(&mut self, disk: &Disk, txg: u64) -> Result<()> {
        // A reader that began before the last group may still follow a pointer to a removed vdev.
        if disk.allocator.is_held_since(txg.saturating_sub(2)) {
            return Ok(());
        }
        let (outside, sizes) = (&disk.outside, |_: &BlockPointer| Sizes::default());
        let mut tx = Tx::new(&mut self.mos, txg, outside, &sizes);
        let done = self.maps.condense_mapping(&mut tx, outside, &mut self.config.vdev_tree)?;
        let Some(Shorter { vdev, less, mapping }) = done else { return Ok(()) };
        tracing::debug!(txg, vdev, less, "made a mapping shorter");
        let replaced = disk.tree().set_indirect(vdev, Box::new(mapping));
        replaced.map_err(|e| WriteError::Sink(Box::new(e)))?;
        self.mapping_less = less * Mapping::ENTRY_SIZE;
        self.config_dirty = true;
        Ok(())
    }

    /// Space maps, config and MOS, until nothing is changed any more (`spa_sync_iterate_to_convergence`, `dsl_pool_sync_mos`).
    /// Then all blocks of the group are written, though not durable.
    pub(super) fn passes(
        &mut self,
        disk: &Disk,
        txg: u64,
        abilities: Abilities,
        usable: Option<u64>,
        recorder: &mut Recorder,
    ) -> Result<()> {
        let policy = Policy::of_mos();
        let mut written = false;
        for pass in 1..=MAX_PASSES {
            self.charge(disk, txg, usable)?;
            let frees = std::mem::take(&mut self.frees);
            // With logs all that is freed in a pass costs one block, so nothing is put off.
            let at_once = u64::from(pass) < tunables::SYNC_PASS_DEFERRED_FREE.get();
            if at_once || self.maps.logs_changes(&mut self.mos, txg)? {
                let free = self.release(disk, txg, frees)?;
                free_now(disk, txg, &free)?;
            } else {
                self.defer(disk, txg, &frees)?;
            }
            if pass == 1 {
                self.sync_dedup(disk, txg)?;
                self.sync_gang_headers(disk, txg)?;
            }
            let renewed = self.sync_space(disk, txg, pass, recorder)?;
            if renewed || self.config.refresh_features(&mut self.mos)? {
                (self.config_dirty, written) = (true, false);
            }
            if self.config_dirty && !written {
                written = true;
                self.make_root_zap(disk, txg)?;
                config_write::sync_config(&mut self.mos, &self.config.mos(txg))?;
            }
            if !self.mos.is_dirty() && self.finish_writing(disk, txg, pass)? {
                (self.config_dirty, written) = (true, false);
                continue;
            }
            if !self.mos.is_dirty() {
                recorder.drained(disk);
                let (frees, uncharged) = (self.frees.len(), self.uncharged.is_some());
                invariant!(
                    frees == 0 && !uncharged,
                    "group {txg} ends with {frees} blocks that are not freed, not charged: {uncharged}"
                );
                return Ok(());
            }
            let tree = disk.tree();
            let (writer, tree) = (&disk.writer, &**tree);
            let log = self.maps.log_of(txg);
            let born = None;
            let (policy, dedup, early) = (&policy, Some(&*disk.dedup), None);
            let sink = Sink { writer, tree, policy, abilities, pass, log, dedup, born, early };
            let synced = self.mos.sync(txg, &sink as &dyn BlockSink)?;
            self.frees.extend(&synced.killed);
            recorder.pass(disk);
            if !synced.born.is_empty() || !synced.killed.is_empty() {
                self.uncharged = Some(synced);
            }
        }
        let why = format!("no end after {MAX_PASSES} passes");
        Err(WriteError::Invalid { object: 0, why }.into())
    }

    /// Gives the root vdev a ZAP, for its properties, once the pool has the feature for that (`vdev_construct_zaps`).
    fn make_root_zap(&mut self, disk: &Disk, txg: u64) -> Result<()> {
        let Some(uses) = lacks_root_zap(&mut self.mos, &self.config.vdev_tree)? else {
            return Ok(());
        };
        let zap = self.maps.linked_zap(&mut self.mos)?;
        if uses == 0 {
            count_feature(&mut self.mos, txg, &disk.outside, ROOT_ZAPS, 1)?;
        }
        config::set(&mut self.config.vdev_tree, ROOT_ZAP, NvValue::Uint64(zap));
        Ok(())
    }

    /// Space maps, and what devices missed. Returns whether the config changed.
    fn sync_space(
        &mut self,
        disk: &Disk,
        txg: u64,
        pass: u32,
        recorder: &mut Recorder,
    ) -> Result<bool> {
        let renewed = self.sync_missed(disk, txg, pass)?;
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, &disk.outside, guid, delta)
        };
        let spared = disk.writer.take_spared();
        if spared > 0 {
            note_spared(&mut self.mos, spared)?;
        }
        let obsolete = disk.writer.take_obsolete();
        self.maps.sync_obsolete(&mut self.mos, (txg, pass), &obsolete, &mut count)?;
        let stats =
            self.maps.sync_changes(&mut self.mos, txg, pass, &disk.allocator, &mut count)?;
        recorder.space(stats);
        Ok(renewed)
    }

    /// Writes what the passes left to be written. All that devices missed is known then, which may make the MOS dirty
    /// again. Returns whether the config changed for it.
    fn finish_writing(&mut self, disk: &Disk, txg: u64, pass: u32) -> Result<bool> {
        drain(disk)?;
        self.sync_missed(disk, txg, pass)
    }

    /// What devices missed so far. Returns whether the config changed.
    fn sync_missed(&mut self, disk: &Disk, txg: u64, pass: u32) -> Result<bool> {
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, &disk.outside, guid, delta)
        };
        self.missed.extend(disk.tree().take_missed());
        let (mos, vdevs) = (&mut self.mos, &mut self.config.vdev_tree);
        Ok(write_dtls(mos, txg, pass, vdevs, &self.missed, &mut count)?)
    }

    /// Charges the MOS for what the last pass wrote of it (`dsl_pool_mos_diduse_space`).
    fn charge(&mut self, disk: &Disk, txg: u64, usable: Option<u64>) -> Result<()> {
        let Some(synced) = self.uncharged.take() else { return Ok(()) };
        let sizes = |bp: &BlockPointer| space::sizes(&disk.tree(), bp);
        let mut tx = Tx { usable, ..Tx::new(&mut self.mos, txg, &disk.outside, &sizes) };
        pool::charge_mos(&mut tx, &synced)
    }

    /// Tells the deduplication tables which group is written.
    fn begin_dedup(&mut self, shared: &Shared, txg: u64) -> Result<()> {
        let base = self.mos.synced().clone();
        let fast = feature_uses(&mut self.mos, FAST_DEDUP)?.is_some();
        let over_quota = is_over_quota(shared, &base)?;
        shared.disk.dedup.begin(Group { txg, base, over_quota, fast });
        Ok(())
    }

    /// Writes the deduplication tables, and frees the blocks that lost their last reference.
    fn sync_dedup(&mut self, disk: &Disk, txg: u64) -> Result<()> {
        let sizes = |bp: &BlockPointer| space::sizes(&disk.tree(), bp);
        let mut tx = Tx::new(&mut self.mos, txg, &disk.outside, &sizes);
        let freed = disk.dedup.sync(&mut tx, &disk.outside.clock)?;
        let free = references::release(&mut tx, freed)?;
        free_now(disk, txg, &free)
    }

    /// The freed blocks to which no other pointer leads: no deduplication table counts them, and no clone shares them.
    fn release(
        &mut self,
        disk: &Disk,
        txg: u64,
        blocks: Vec<BlockPointer>,
    ) -> Result<Vec<BlockPointer>> {
        let sizes = |bp: &BlockPointer| space::sizes(&disk.tree(), bp);
        let mut tx = Tx::new(&mut self.mos, txg, &disk.outside, &sizes);
        let (blocks, unreadable) = disk.dedup.release(blocks);
        if !unreadable.is_empty() {
            let used = unreadable.iter().map(|bp| sizes(bp).used).fold(0, u64::saturating_add);
            pool::charge_leak(&mut tx, Sizes { used, ..Sizes::default() })?;
        }
        references::release(&mut tx, blocks)
    }

    /// Leaves blocks to the next group.
    fn defer(&mut self, disk: &Disk, txg: u64, blocks: &[BlockPointer]) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let object =
            config_write::entry(&mut self.mos, DEFERRED)?.ok_or(DslWriteError::NotFound)?;
        let sizes = |bp: &BlockPointer| space::sizes(&disk.tree(), bp);
        let mut tx = Tx::new(&mut self.mos, txg, &disk.outside, &sizes);
        cenote_dsl::write::bpobj::enqueue(&mut tx, object, blocks)
    }
}

impl Shared {
    /// Looks at devices of a pool that nothing is written to.
    pub(super) fn look_at_devices(self: &Arc<Self>) {
        let tree = self.disk.tree();
        // Those that did not answer may do so by now.
        if tree.has_outage()
            && let Err(error) = tree.recheck()
        {
            tracing::warn!(%error, "devices are not looked at anew");
        }
        self.heed_devices();
        self.note_missed();
    }

    /// Where devices answer again that were waited for, without an order, what waits for them goes on. Groups, scans, rebuilds and looks at an
    /// idle pool all find that; the sync thread, which does one of these at least every few seconds, acts on it.
    fn heed_devices(self: &Arc<Self>) {
        if !self.disk.tree().take_awaited() {
            return;
        }
        // A resilver that is under way goes on: one follows if something is left, and a device that comes and goes has none begin anew.
        let runs = self.is_resilvering().unwrap_or(false);
        if self.needs_resilver() && !runs {
            // What could not be read of them is given now.
            self.owe_resilver();
        }
        if self.options.deterministic {
            // This thread does nothing of that itself.
            return;
        }
        self.wake_scan();
        self.wake_rebuild();
        if self.disk.writer.copied().is_some() {
            self.wake_evacuation();
        }
        // A checkpoint is discarded further, and what waits to be freed is, with the next group.
        self.tx_state.note();
    }

    /// Has a group written, when its time comes, for what leaves lack that no dirty time log has yet.
    pub(super) fn note_missed(&self) {
        if self.disk.tree().has_missed() {
            self.tx_state.note();
        }
    }
}

/// Whether the root vdev is to have a ZAP, and has none: how often the feature for that is used.
pub(super) fn lacks_root_zap(mos: &mut OpenObjectSet, vdev_tree: &NvList) -> Result<Option<u64>> {
    let there = config::number(vdev_tree, ROOT_ZAP) != 0;
    Ok(feature_uses(mos, ROOT_ZAPS)?.filter(|_| !there))
}

/// Parts of removed vdevs that no pointer refers to any more are noted.
fn mark_obsolete(disk: &Disk, tx: &Tx<'_>) -> Result<()> {
    for dva in &tx.obsolete {
        let marked = disk.writer.mark_obsolete(dva);
        marked.map_err(|e| WriteError::Sink(Box::new(e)))?;
    }
    Ok(())
}

/// Frees some of what was destroyed. Returns whether there is more.
fn free_destroyed(shared: &Shared, tx: &mut Tx<'_>) -> Result<bool> {
    let clock = &shared.disk.outside.clock;
    let (begun, most) = (clock.now(), Duration::from_millis(FREE_MIN_TIME_MS.get()));
    let is_late = || clock.since(begun) >= most;
    let budget = Budget { blocks: shared.options.free_budget(), is_late: &is_late };
    let more =
        tx.unless_unreadable("what was destroyed is not freed", |tx| destroy_step(tx, budget))?;
    Ok(more.unwrap_or(false))
}

/// Whether deduplication tables get no more entries (`ddt_over_quota`).
fn is_over_quota(shared: &Shared, base: &Arc<ObjectSet>) -> Result<bool> {
    const AUTO: u64 = u64::MAX;
    let disk = &shared.disk;
    match shared.view().dedup_table_quota() {
        0 => Ok(false),
        AUTO => {
            let full = |class: Class| {
                let figures = disk.allocator.figures(class);
                (figures.space > 0).then(|| is_nearly_full(figures.allocated, figures.space))
            };
            let special = || tunables::DDT_DATA_IS_SPECIAL.is_on().then(|| full(Class::Special));
            Ok(full(Class::Dedup).or_else(|| special().flatten()).unwrap_or(false))
        }
        quota => Ok(disk.dedup.size(base)? > quota),
    }
}

/// Whether vdevs for tables have no room for more (`ddt_special_over_quota`): 85 % are in use, and less than 8 GiB are left.
fn is_nearly_full(allocated: u64, space: u64) -> bool {
    const LEFT: u64 = 8 << 30;
    let limit = (space / 100 * 85).max(space.saturating_sub(LEFT));
    allocated >= limit
}

/// Frees blocks in this group.
fn free_now(disk: &Disk, txg: u64, blocks: &[BlockPointer]) -> Result<()> {
    let freed = disk.writer.free_many(txg, blocks, mos_bookmark());
    Ok(freed.map_err(|e| WriteError::Sink(Box::new(e)))?)
}
