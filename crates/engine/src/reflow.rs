//! A device joins a RAID-Z vdev, whose sectors move over all devices that there are then (`spa_raidz_expand_thread`).
//!
//! ```text
//! sync task: the device joins, nothing has moved
//! thread: the first sectors are copied to the scratch area ── sync task: the uberblock says so
//! thread: from there to their places                       ── sync task: the same
//! thread: others are copied to their new places            ── sync task: the uberblock says how far     again and again
//!                                                                        │ all have moved
//! sync task: blocks are wider from then on, the vdev grows, a scrub begins <┘
//! ```
//!
//! [`cenote_vdev`] copies sectors beside what is read and written, and says where that is meanwhile. So a device that hangs
//! holds up this thread alone. What the step before has left behind is overwritten only
//! when the uberblock of its group, or a later one, is durable on all devices of the vdev. Where one failed, the next step waits for
//! that: it does not copy again what an uberblock says has moved.
//!
//! What may be allocated is not copied. All else is: also what groups have allocated that are open still, as intent logs do, and
//! what was freed and may be read yet. What is allocated and written later is written to both places, so it is all the same
//! whether it was copied.
//!
//! While a device is away, lacks something or is being replaced, nothing moves. A device that cannot be read or written
//! somewhere is tried again after a minute, or when devices are cleared; only the first read in a row that fails counts as an
//! error, and each write. A crash leaves what the last group had moved.
//! The scrub in the end is for sectors that are copied without being verified.
//!
//! Invariant: a step copies what lies within it, and is noted once that before it is on disk.

use crate::create;
use crate::space_write::config_of;
use crate::space_write::map::{feature_uses, zap_u64};
use crate::surgery::{invalid, path_of, set_zap, without_place};
use crate::tunables::{
    RAIDZ_EXPAND_MAX_COPY_BYTES, RAIDZ_EXPAND_MAX_REFLOW_BYTES, SCRUB_AFTER_EXPAND,
};
use crate::{Attach, Disk, Engine, EngineError, Shared, SyncContext};
use cenote_dmu::write::ZapMut;
use cenote_dsl::write::{DslWriteError, Result, features};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant;
use cenote_format::label::{BOOT_AREA, Uberblock};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::expansion::{
    BYTES_COPIED, END_TIME, FEATURE, FINISHED, SCANNING, START_TIME, STATE,
};
use cenote_store::alloc::Extent;
use cenote_vdev::{Copying, Moved, NotMoved, Progress, Vdev};
use std::ops::Range;
use std::result::Result as StdResult;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Why nothing moves that may be copied in part only.
pub(crate) const UNCLAIMED: &str = "not all intent logs were claimed";
/// Why nothing is copied while the group of the last step is not on disk.
const UNDER_WAY: &str = "another step is under way";
/// The name of the thread.
const NAME: &str = "raidz_expand";
/// Groups after the one that ends an expansion from which on blocks are wider (`TXG_CONCURRENT_STATES`).
const CONCURRENT: u64 = 3;
/// How long the thread waits after a step that came to nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// Most such pauses in a row.
const MOST_PAUSES: u32 = 20;
/// Pauses after a step that a device failed: a minute. It may only have one bad sector.
const AFTER_FAILURE: u32 = 1200;
/// Steps in a row that come to nothing, where everything happens in the calling threads.
const TRIES: u32 = 8;

/// What a group has done of an expansion.
pub(crate) struct Reflowed {
    vdev: Arc<Vdev>,
    what: Done,
}

/// See [`Reflowed`].
enum Done {
    /// So far sectors have moved.
    Moved(Progress),
    /// All have moved; blocks of this group and later ones are wider.
    Finished(u64),
}

impl Reflowed {
    /// The uberblock of the group, which says so.
    pub(crate) fn note_in(&self, uberblock: Uberblock) -> Uberblock {
        match self.what {
            Done::Moved((state, offset)) => uberblock.with_reflow(state, offset),
            Done::Finished(_) => uberblock.with_reflow(0, 0),
        }
    }
}

impl Disk {
    /// Group `txg` is on disk: what it has done of an expansion holds.
    pub(crate) fn reflow_committed(&self, txg: u64) {
        // No step may begin until memory knows: it would find this field empty.
        let mut reflowed = self.reflowed.lock();
        let Some(Reflowed { vdev, what }) = reflowed.take() else { return };
        let tree = self.tree();
        match what {
            Done::Moved(progress) => tree.reflow_committed(&vdev, progress, txg),
            Done::Finished(from) => tree.end_reflow(&vdev, from),
        }
    }
}

/// What came of a step.
enum Step {
    /// Sectors have moved.
    Moved,
    /// It is to be tried again.
    Again(String),
    /// A device failed: it is to be tried again later.
    Failed(String),
    /// All sectors of the vdev have moved, and a scrub begins or not.
    Finished { scrubs: bool },
    /// No vdev is being expanded.
    Nothing,
}

impl From<NotMoved> for Step {
    fn from(why: NotMoved) -> Step {
        match why {
            NotMoved::Again(why) => Step::Again(why),
            NotMoved::Failed(why) => Step::Failed(why),
        }
    }
}

impl Shared {
    /// Has a thread go on with the expansion of a vdev, if there is one.
    pub(crate) fn wake_reflow(self: &Arc<Self>) {
        let is_barred = self.reflow_barred.load(SeqCst);
        if !is_barred && self.disk.tree().expanding().is_some() {
            self.reflower.wake(self, NAME, |shared| shared.reflow());
        }
    }

    /// What is in intent logs that were not claimed is in no space map, so it would not be copied: nothing moves until the
    /// pool is imported and all are claimed.
    pub(crate) fn bar_reflow(&self) {
        self.reflow_barred.store(true, SeqCst);
        self.note_reflow_waits(Some(UNCLAIMED.into()));
    }

    /// What the expansion that is under way waits for, if it does.
    fn note_reflow_waits(&self, why: Option<String>) {
        *self.reflow_waits.lock() = why;
    }

    /// Moves sectors until all have moved.
    fn reflow(self: &Arc<Self>) {
        let (mut in_vain, mut has_failed) = (0, false);
        loop {
            self.reflower.take_call();
            if self.reflower.is_stopped() || self.tx_state.closed().is_some() {
                return self.reflower.ends();
            }
            let step = self.reflow_step(has_failed);
            has_failed = matches!(step, Ok(Step::Failed(_)));
            match step {
                Ok(Step::Nothing) => {
                    self.note_reflow_waits(None);
                    if self.reflower.is_over() {
                        return;
                    }
                    continue;
                }
                Ok(Step::Moved) => {
                    self.note_reflow_waits(None);
                    in_vain = 0;
                }
                Ok(Step::Finished { scrubs }) => {
                    self.note_reflow_waits(None);
                    self.resume_activities(|_| true);
                    if scrubs {
                        self.scrub_has_begun();
                    }
                    self.wake_scan();
                    in_vain = 0;
                }
                Ok(Step::Again(why) | Step::Failed(why)) => {
                    self.note_reflow_waits(Some(why));
                    in_vain += 1;
                }
                Err(why) => {
                    tracing::warn!("the expansion of a vdev does not go on: {why}");
                    self.note_reflow_waits(Some(why.to_string()));
                    in_vain += 1;
                }
            }
            if self.options.deterministic {
                if in_vain > TRIES {
                    return self.reflower.ends();
                }
                continue;
            }
            let pauses = if has_failed { AFTER_FAILURE } else { in_vain.min(MOST_PAUSES) };
            for _ in 0..pauses {
                let stopped = self.reflower.is_stopped() || self.tx_state.closed().is_some();
                if stopped || self.reflower.is_called() {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Copies sectors, and has a group say so, if nothing speaks against it. `quiet`: errors of devices were counted.
    fn reflow_step(self: &Arc<Self>, quiet: bool) -> StdResult<Step, EngineError> {
        let tree = Arc::clone(&self.disk.tree());
        let Some(top) = tree.expanding() else { return Ok(Step::Nothing) };
        if let Some(why) = top.reflow_waits() {
            return Ok(Step::Again(why));
        }
        if let Some(why) = self.tx_state.held() {
            return Ok(Step::Again(why));
        }
        let most = RAIDZ_EXPAND_MAX_REFLOW_BYTES.get();
        if most > 0 && top.reflow().is_some_and(|reflow| reflow.synced >= most) {
            return Ok(Step::Again("raidz_expand_max_reflow_bytes is reached".into()));
        }
        if self.disk.reflowed.lock().is_some() {
            // Some device may have the uberblock of its group.
            return Ok(Step::Again(UNDER_WAY.into()));
        }
        if tree.reflow_is_known(top).is_err() {
            self.queue.run(&self.tx_state, |_| Ok(()), |()| true)?;
            if let Err(why) = tree.reflow_is_known(top) {
                return Ok(why.into());
            }
        }
        let ends = || self.reflower.is_stopped() || self.tx_state.closed().is_some();
        if let Err(why) = tree.wait_for_others(top, &ends) {
            return Ok(why.into());
        }
        let end = self.end_of(top);
        let Some(range) = tree.reflow_range(top, end) else { return Ok(Step::Nothing) };
        if range.is_empty() {
            if end == 0 || range.start < end {
                return Ok(Step::Again("what is left to move cannot be told".into()));
            }
            let shared = self.clone();
            let finish = move |context: &mut SyncContext<'_>| context.finish_reflow(&shared);
            let is_done = |step: &Step| matches!(step, Step::Finished { .. });
            return self.queue.run(&self.tx_state, finish, is_done);
        }
        if let Err(why) = tree.reflow_shadow(top, range.end, &ends) {
            return Ok(why.into());
        }
        // What the scratch area takes is copied at once.
        let begins = tree.reflow_begins(top);
        let most = if begins { u64::MAX } else { RAIDZ_EXPAND_MAX_COPY_BYTES.get() };
        let start = range.start;
        let (ranges, to, bytes) = match self.what_to_copy(top, range, most) {
            Ok(what) => what,
            Err(why) => return Ok(Step::Again(why)),
        };
        let is_within = |part: &Range<u64>| start <= part.start && part.end <= to;
        invariant!(
            start < to && ranges.iter().all(is_within),
            "vdev {}: from {start:#x} to {to:#x} {ranges:x?} are copied",
            top.id()
        );
        let copied = tree.reflow_copy(top, (&ranges, start..to), Copying { quiet, ends: &ends });
        let moved = match copied {
            Ok(moved) => moved,
            Err(why) if top.reflow_waits().is_some() || ends() => {
                return Ok(Step::Again(why.to_string()));
            }
            Err(why) => return Ok(why.into()),
        };
        let bytes = if begins { 0 } else { bytes };
        let shared = self.clone();
        let change =
            move |context: &mut SyncContext<'_>| context.note_moved(&shared, &moved, bytes);
        self.queue.run(&self.tx_state, change, |step| matches!(step, Step::Moved))
    }

    /// Where what can be allocated of a vdev ends.
    fn end_of(&self, top: &Vdev) -> u64 {
        let group = self.disk.allocator.group(top.id());
        let last = group.and_then(|group| Some(group.metaslabs().iter().last()?.extent()));
        last.map_or(0, |extent| extent.start + extent.size)
    }

    /// What may be read of a range of a vdev: `most` bytes of it, where that ends, and its bytes. That is
    /// all that cannot be allocated now, as [`VdevTree::reflow_shadow`](cenote_vdev::VdevTree::reflow_shadow) was called
    /// before: what is allocated later is written to both places.
    ///
    /// Errors: why that is not known.
    fn what_to_copy(
        &self,
        top: &Vdev,
        range: Range<u64>,
        most: u64,
    ) -> StdResult<(Vec<Range<u64>>, u64, u64), String> {
        let most = most.max(1 << top.ashift()) >> top.ashift() << top.ashift();
        let (allocator, id) = (&self.disk.allocator, top.id());
        let group = allocator.group(id).ok_or("it is not known what is free")?;
        let (mut ranges, mut bytes) = (Vec::new(), 0u64);
        for metaslab in group.metaslabs().iter() {
            let Extent { start, size, .. } = metaslab.extent();
            let (mut at, end) = (start.max(range.start), (start + size).min(range.end));
            if at >= end {
                continue;
            }
            let loaded = allocator.load(id, metaslab.id());
            let free = metaslab.allocatable().filter(|_| loaded);
            let free = free.ok_or_else(|| format!("vdev {id}: a space map cannot be read"))?;
            for (free_start, free_end) in free.iter().chain([(end, end)]) {
                let stop = free_start.min(end);
                let stop = stop.min(at.saturating_add(most - bytes));
                if at < stop {
                    ranges.push(at..stop);
                    bytes += stop - at;
                    if bytes >= most {
                        return Ok((ranges, stop, bytes));
                    }
                }
                at = at.max(free_end);
                if at >= end {
                    break;
                }
            }
        }
        Ok((ranges, range.end, bytes))
    }
}

impl Engine {
    /// What the expansion of a RAID-Z vdev that is under way waits for, if it does.
    pub fn expansion_waits(&self) -> Option<String> {
        self.shared.reflow_waits.lock().clone()
    }
}

impl SyncContext<'_> {
    /// Refuses what OpenZFS refuses, and has the device join the RAID-Z vdev `old` (`vdev_raidz_attach_check`).
    pub(crate) fn expand_raidz(
        &mut self,
        attach: &Attach,
        old: &Arc<Vdev>,
        no_scratch: Option<String>,
    ) -> Result<()> {
        let tree = self.disk.tree();
        if feature_uses(self.tx.mos, FEATURE)?.is_none() {
            return invalid(format!(
                "raidz_expansion feature must be enabled in order to attach a device to raidz; \
                 'zpool set feature@raidz_expansion=enabled {}' enables it",
                self.tx.pool
            ));
        }
        if tree.expanding().is_some() {
            return invalid("raidz expansion in progress");
        }
        let path = config::path(&attach.new.leaf).unwrap_or_default();
        let path = path.display();
        if self.maps.evacuation().is_some() {
            return invalid(format!("{path} is busy, or device removal is in progress"));
        }
        if self.disk.frozen.leaves_out(self.tx.txg) {
            return invalid("the pool is frozen: export and import it first");
        }
        let first = old.children().first().map_or(0, |child| child.guid());
        if attach.new.size() < tree.least_size(first).unwrap_or(0) {
            return invalid("device is too small");
        }
        if attach.new.ashift > u64::from(old.ashift()) {
            return invalid(
                "The new device cannot have a higher alignment requirement than the top-level vdev.",
            );
        }
        let children = old.children().len() as u64 + 1;
        if children > 255 || children << old.ashift() > BOOT_AREA {
            return invalid("can only attach to mirrors and top-level disks");
        }
        // One that is to be resilvered first may be.
        let is_there = |child: &Arc<Vdev>| child.is_leaf() && child.writable();
        if !old.children().iter().all(is_there) {
            // In OpenZFS's words.
            return invalid("raidz vdev has devices that are are offline or being replaced");
        }
        if let Some(why) = no_scratch {
            return invalid(why);
        }
        let guid = config::number(&attach.new.leaf, "guid");
        if tree.find(guid).is_some() {
            return invalid("one or more vdevs refer to the same device");
        }
        if self.maps.top_zap(old.id()) == 0 {
            return Err(DslWriteError::Unsupported("expanding a vdev without a ZAP".into()));
        }
        self.join_raidz(attach, old)
    }

    /// The device joins the RAID-Z vdev `old`, of which nothing has moved yet (`vdev_raidz_attach_sync`).
    fn join_raidz(&mut self, attach: &Attach, old: &Arc<Vdev>) -> Result<()> {
        let id = old.id();
        let mut joined = self.config.clone();
        let top = config_of(&mut joined.vdev_tree, id).ok_or(DslWriteError::NotFound)?;
        let mut new = without_place(&attach.new.leaf);
        let (guid, new_path) = (config::number(&new, "guid"), path_of(&new));
        let Some((_, NvValue::NvListArray(children))) =
            top.pairs.iter_mut().find(|(name, _)| name == "children")
        else {
            return Err(DslWriteError::NotFound);
        };
        new.set("id", NvValue::Uint64(children.len() as u64));
        if let Some(txg) = children.first().and_then(|child| child.u64("create_txg")) {
            new.set("create_txg", NvValue::Uint64(txg));
        }
        children.push(new);
        let width = children.len();
        top.set("raidz_expanding", NvValue::Boolean);
        let zap = self.maps.linked_zap(self.tx.mos)?;
        set_zap(&mut joined.vdev_tree, guid, zap);
        let top_zap = self.maps.top_zap(id);
        self.set_top(top_zap, STATE, SCANNING)?;
        self.set_top(top_zap, START_TIME, self.tx.now)?;
        self.unset_top(top_zap, END_TIME)?;
        self.unset_top(top_zap, BYTES_COPIED)?;
        features::increment(&mut self.tx, FEATURE)?;
        let message = format!("{} vdev {id} new width {width}", self.tx.pool);
        self.record("raidz vdev expansion started", &message)?;
        let to = format!("raidz{}-{id}", old.nparity());
        self.record("vdev attach", &format!("attach vdev={new_path} to vdev={to}"))?;
        create::write_label(&attach.new, &joined, id)
            .map_err(|e| DslWriteError::Invalid(format!("labels cannot be written: {e}")))?;
        let device = attach.new.device.clone();
        let open = &mut |g: u64, _: &NvList| (g == guid).then(|| device.clone());
        let tree = self.altered_tree(&joined.vdev_tree, id, open, &|guid| guid)?;
        if !tree.find(guid).is_some_and(|leaf| leaf.state().readable()) {
            return invalid("one or more devices is currently unavailable");
        }
        self.replace_tree(tree.clone(), joined.vdev_tree)?;
        tree.top(id).into_iter().for_each(|top| tree.begin_reflow(top));
        Ok(())
    }

    fn set_top(&mut self, zap: u64, name: &str, value: u64) -> Result<()> {
        let (key, value) = (Key::Name(name.as_bytes()), [value]);
        Ok(ZapMut::open(self.tx.mos, zap).update(&key, &Value::U64(&value))?)
    }

    fn unset_top(&mut self, zap: u64, name: &str) -> Result<()> {
        if zap_u64(self.tx.mos, zap, name)?.is_some() {
            ZapMut::open(self.tx.mos, zap).remove(&Key::Name(name.as_bytes()))?;
        }
        Ok(())
    }

    /// Has the group's uberblock say what was copied, which are so many bytes (`raidz_reflow_sync`).
    fn note_moved(&mut self, shared: &Arc<Shared>, moved: &Moved, bytes: u64) -> Result<Step> {
        let tree = self.disk.tree();
        let Some(top) = tree.expanding().cloned() else { return Ok(Step::Nothing) };
        if self.disk.frozen.leaves_out(self.tx.txg) {
            return Ok(Step::Again("the pool is frozen".into()));
        }
        if let Err(why) = tree.reflow_holds(&top, moved) {
            return Ok(Step::Again(why.to_string()));
        }
        if self.disk.reflowed.lock().is_some() {
            return Ok(Step::Again(UNDER_WAY.into()));
        }
        let zap = self.maps.top_zap(top.id());
        let before = zap_u64(self.tx.mos, zap, BYTES_COPIED)?.unwrap_or(0);
        self.set_top(zap, BYTES_COPIED, before.saturating_add(bytes))?;
        self.uberblock_says(shared, Reflowed { vdev: top, what: Done::Moved(moved.progress) });
        Ok(Step::Moved)
    }

    /// All sectors have moved: blocks are wider soon, the vdev grows, and a scrub begins (`raidz_reflow_complete_sync`).
    fn finish_reflow(&mut self, shared: &Arc<Shared>) -> Result<Step> {
        let tree = self.disk.tree();
        let Some(top) = tree.expanding().cloned() else { return Ok(Step::Nothing) };
        if self.disk.frozen.leaves_out(self.tx.txg) {
            return Ok(Step::Again("the pool is frozen".into()));
        }
        let (id, from) = (top.id(), self.tx.txg + CONCURRENT);
        let zap = self.maps.top_zap(id);
        self.set_top(zap, STATE, FINISHED)?;
        self.set_top(zap, END_TIME, self.tx.now)?;
        let width = top.children().len();
        let message = format!("{} vdev {id} new width {width}", self.tx.pool);
        self.record("raidz vdev expansion completed", &message)?;
        let scrubs = SCRUB_AFTER_EXPAND.is_on() && self.scrub_if_idle(shared)?;
        // What follows is not undone.
        if !self.grow_expanded(id)? {
            tracing::warn!(vdev = id, "a device is not healthy: the vdev does not grow by itself");
        }
        self.widen(id, from).map_err(DslWriteError::into_fatal)?;
        self.uberblock_says(shared, Reflowed { vdev: top, what: Done::Finished(from) });
        Ok(Step::Finished { scrubs })
    }

    /// The group's uberblock says this, if the change is kept that is under way.
    fn uberblock_says(&mut self, shared: &Arc<Shared>, reflowed: Reflowed) {
        let shared = shared.clone();
        self.when_kept(move || {
            let id = reflowed.vdev.id();
            let before = shared.disk.reflowed.lock().replace(reflowed);
            invariant!(
                before.is_none(),
                "vdev {id}: a step of its expansion is noted before the last one is on disk"
            );
        });
    }

    /// Blocks of a vdev that are born from group `from` on have the width that it has now.
    fn widen(&mut self, id: u64, from: u64) -> Result<()> {
        let mut root = self.config.vdev_tree.clone();
        let of_top = config_of(&mut root, id).ok_or(DslWriteError::NotFound)?;
        let mut grown = match of_top.get("raidz_expand_txgs") {
            Some(NvValue::Uint64Array(txgs)) => txgs.clone(),
            _ => Vec::new(),
        };
        grown.push(from);
        of_top.set("raidz_expand_txgs", NvValue::Uint64Array(grown));
        of_top.pairs.retain(|(name, _)| name != "raidz_expanding");
        let altered = self.altered_tree(&root, id, &mut |_, _| None, &|guid| guid)?;
        self.replace_tree(altered, root)
    }
}
