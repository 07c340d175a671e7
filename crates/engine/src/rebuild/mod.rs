//! Sequential rebuild: a device that joined a mirror or dRAID is given all that is allocated there, in the order of offsets and
//! without block pointers (`vdev_rebuild`, `vdev_rebuild_thread`).
//!
//! # Idea
//!
//! ```text
//! sync task: the device joins, the rebuild is noted         its groups are on disk
//!                                                                   │
//! what is allocated beyond the offset ── copy ── flush ── sync task: the offset      again and again
//!                                                                   │ nothing is left
//! sync task: the dirty time log is empty, a scrub begins <──────────┘
//! ```
//!
//! A thread does it, for all top-level vdevs by turns. `cenote_vdev`'s `rebuild` copies, and sees to it that what is written
//! meanwhile is not overwritten. What a leaf lacks when it joins was written in groups that are all on disk before the thread
//! begins. So it is in the space maps; what is allocated later is written to the leaf as to the others. Space that is freed
//! meanwhile is copied in vain at worst.
//!
//! Nothing that is copied is verified: it has no checksums. The scrub that follows proves it ([`REBUILD_SCRUB_ENABLED`]). It is owed
//! until a full one has ended (`SyncContext::owes_scrub`): if a resilver comes first, or another scan, the thread of the scans
//! begins it afterwards. Until the rebuild is over the leaf lacks what it lacked when it joined, and reads do not trust it.
//!
//! # A rebuild that cannot go on
//!
//! A rebuild keeps resilvers, scrubs and spares of the whole pool waiting. So it always ends. It ends at once, with an error,
//! where no leaf that it is for takes writes, where no source is left, where intent logs could not be claimed, and where its state makes no
//! sense. It ends so after a while ([`SCAN_CHECKPOINT_INTVAL`]) without any progress on disk, where a device that is needed does not
//! answer, or where something fails again and again. A resilver follows then, for what leaves lack and once they take writes.
//!
//! # On disk
//!
//! The state is OpenZFS's ([`RebuildPhys`]): either of the two goes on where the other stopped. The offset is noted once what lies
//! before it is durable on all leaves that are rebuilt. A leaf that goes away meanwhile, or fails, has the state count an error; so does
//! each piece that cannot be read. Then no leaf counts as whole at the end, and a resilver follows, which knows what it reads. A leaf that
//! was away when the rebuild began is left to a resilver. While one is leaving nothing is copied: it has left in a moment, or stays.
//! A top-level vdev that holds data does not begin to leave while it is rebuilt. With one for logs that leaves its rebuild ends.
//!
//! # Invariants
//!
//! - Without errors in the state, all leaves that it is for have what is allocated before the offset on disk, and was born in the
//!   groups that they lack.
//! - The feature counts the rebuilds that the ZAPs of vdevs say are under way that are allocated from: one that is counted and
//!   that no vdev has would never end.
//! - No resilver and no scrub goes on beside a rebuild, and no scrub of errors.
//! - No lock is held while a device is waited for.
//!
//! [`REBUILD_SCRUB_ENABLED`]: crate::tunables::REBUILD_SCRUB_ENABLED

mod state;

pub(crate) use state::Begun;

use crate::background::Background;
use crate::reflow::UNCLAIMED;
use crate::removal::allocated;
use crate::tunables::{
    REBUILD_MAX_SEGMENT, REBUILD_VDEV_LIMIT, SCAN_CHECKPOINT_INTVAL, SCAN_SUSPEND_PROGRESS,
};
use crate::{Engine, EngineError, Shared};
use cenote_dmu::outside::Time;
use cenote_format::invariant::broken;
use cenote_format::nvlist::NvList;
use cenote_format::{invariant, less};
use cenote_pool::config;
use cenote_pool::events::Sysevent;
use cenote_pool::rebuild::{JOINED, RebuildPass, RebuildPhys, RebuildStatus};
use cenote_vdev::{Rebuilt, Standing, Vdev, VdevTree};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The name of the thread.
const NAME: &str = "vdev_rebuild";
/// How long the thread waits after a step that came to nothing.
const PAUSE: Duration = Duration::from_millis(20);
/// Most such pauses in a row.
const MOST_PAUSES: u32 = 100;
/// How often it is noted how far a rebuild is, at least.
const NOTE: Duration = Duration::from_secs(5);
/// Groups that can be under way at once.
const CONCURRENT: u64 = 3;
/// Most pieces that are copied at once.
const MOST_PIECES: usize = 1024;
/// Bytes of what is allocated that are listed at once.
const LISTED: u64 = 1 << 30;
/// What a rebuild waits for.
const SILENT: &str = "devices do not answer";
const MAY_LACK: &str = "a device may have lost what was written to it";
/// How long it takes at least, and at most, until devices are looked at again that do not answer, and how many times as long as the
/// last look took.
const LOOK: Duration = Duration::from_secs(1);
const LONGEST_LOOK: Duration = Duration::from_secs(20);
const LOOK_SHARE: u32 = 10;
/// Steps in a row that come to nothing, where everything happens in the calling threads.
const TRIES: u32 = 8;

/// What rebuilds.
#[derive(Default)]
pub(crate) struct Rebuilder {
    /// The thread that does it.
    pub background: Background,
    /// What is known of rebuilds that is not on disk yet, by top-level vdev.
    ahead: Mutex<BTreeMap<u64, Ahead>>,
    /// A rebuild ends: what follows is still to be done.
    ending: AtomicBool,
    /// What intent logs have that were not claimed is in no space map: nothing is rebuilt until the next import.
    barred: AtomicBool,
    /// When devices that do not answer were last looked at.
    looked: Mutex<Option<Look>>,
}

/// A look at devices that do not answer.
#[derive(Clone, Copy)]
struct Look {
    took: Duration,
    ended: Time,
}

impl Look {
    /// Whether none is made yet, so long after it ended: a device may take its time, and other vdevs are rebuilt meanwhile.
    fn is_recent(&self, since: Duration) -> bool {
        since < self.took.saturating_mul(LOOK_SHARE).clamp(LOOK, LONGEST_LOOK)
    }
}

/// See [`Rebuilder::ahead`].
#[derive(Clone, Default)]
struct Ahead {
    phys: RebuildPhys,
    pass: RebuildPass,
    waits: Option<String>,
}

/// What the thread knows of a rebuild.
#[derive(Default)]
struct Known {
    course: Option<Course>,
    /// How far it was on disk.
    noted: u64,
    /// Since when it comes no further on disk, as steps come to nothing, and how many did.
    in_vain: Option<(Time, u32)>,
}

/// How a rebuild goes since the thread began with it.
struct Course {
    /// How far it is.
    phys: RebuildPhys,
    pass: RebuildPass,
    begun: Time,
    /// Milliseconds that it took before.
    took_before: u64,
    /// The leaves that are given what they lack, and how they stood when that was last known to be durable.
    leaves: Vec<(Arc<Vdev>, Standing)>,
    /// Pieces that come next, in order.
    pieces: VecDeque<(u64, u64)>,
    /// All before this offset was listed.
    listed: u64,
    noted: Time,
}

/// What came of a step.
enum Step {
    /// It goes on.
    Done,
    /// It is to be tried again, but not for ever: why.
    Again(String),
    /// It waits, as all of the pool does, or as it is told to: why.
    Held(String),
    /// It cannot go on: why.
    Fails(String),
    /// The rebuild is over.
    Ended,
}

/// What came of copying the pieces that come next.
enum Copied {
    /// They are copied.
    Some,
    /// None is left.
    All,
    /// A device did not answer that is needed, and what could not be read says nothing.
    Silent,
    /// A device that is leaving did not get them. If it stays, it is to.
    Leaving,
}

impl Course {
    fn targets(&self) -> Vec<u64> {
        self.leaves.iter().map(|(leaf, _)| leaf.guid()).collect()
    }

    /// Whether what was written to all leaves since it was last known to be durable is so now, after a flush.
    fn stands(&self) -> bool {
        self.leaves.iter().all(|(leaf, standing)| leaf.standing() == *standing)
    }
}

/// A counter of the state, and more. The number is of the disk, and only shown: one that is wrong there keeps nothing from going on.
fn more(counter: u64, by: u64) -> u64 {
    counter.saturating_add(by)
}

/// The leaves below a top-level vdev that are being rebuilt.
fn rebuilt(tree: &VdevTree, root: &NvList, top: u64) -> Vec<Arc<Vdev>> {
    let mut joined = Vec::new();
    config::for_each_leaf(root, &mut |leaf| {
        if config::number(leaf, JOINED) != 0 {
            joined.push(config::number(leaf, "guid"));
        }
    });
    let mut leaves = Vec::new();
    let top = tree.top(top).filter(|top| top.can_rebuild());
    top.into_iter().for_each(|top| top.collect_leaves(&mut leaves));
    leaves.retain(|leaf| joined.contains(&leaf.guid()) && leaf.is_behind());
    leaves
}

impl Shared {
    /// Has a thread go on with rebuilds, if there are any (`vdev_rebuild_restart`).
    pub(crate) fn wake_rebuild(self: &Arc<Self>) {
        if self.is_rebuilding() {
            self.rebuilder.background.wake(self, NAME, Shared::rebuild);
        }
    }

    /// Whether a rebuild is under way, as the last group left it (`vdev_rebuild_active`).
    pub(crate) fn is_rebuilding(&self) -> bool {
        RebuildPhys::any_runs(&self.view())
    }

    /// The same, or one has ended and what follows it has not begun yet.
    pub(crate) fn is_rebuild_awaited(&self) -> bool {
        self.rebuilder.ending.load(SeqCst) || self.is_rebuilding()
    }

    /// See [`Rebuilder::barred`].
    pub(crate) fn bar_rebuild(&self) {
        self.rebuilder.barred.store(true, SeqCst);
    }

    /// Whether nothing is rebuilt until the next import.
    pub(crate) fn is_rebuild_barred(&self) -> bool {
        self.rebuilder.barred.load(SeqCst)
    }

    /// Rebuilds until there is nothing to be done.
    fn rebuild(self: &Arc<Self>) {
        let background = &self.rebuilder.background;
        let is_over = || background.is_stopped() || self.tx_state.closed().is_some();
        let (mut known, mut in_vain) = (BTreeMap::new(), 0u32);
        loop {
            background.take_call();
            if is_over() {
                return background.ends();
            }
            let running: Vec<(u64, RebuildPhys)> = RebuildPhys::all(&self.view())
                .into_iter()
                .filter(|(_, p)| p.is_running())
                .collect();
            self.forget_left(&running, &mut known);
            if running.is_empty() {
                if background.is_over() {
                    return;
                }
                continue;
            }
            in_vain = match self.turn(&running, &mut known) {
                true => 0,
                false => in_vain.saturating_add(1),
            };
            if self.options.deterministic {
                if in_vain > TRIES {
                    return background.ends();
                }
                continue;
            }
            for _ in 0..in_vain.min(MOST_PAUSES) {
                if is_over() || background.is_called() {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Has each rebuild make a step. Whether any came to something.
    fn turn(
        self: &Arc<Self>,
        running: &[(u64, RebuildPhys)],
        all: &mut BTreeMap<u64, Known>,
    ) -> bool {
        let mut any = false;
        for (top, phys) in running {
            let known = all.entry(*top).or_default();
            known.course = known.course.take().filter(|course| course.phys.is_same(phys));
            if known.noted != phys.last_offset {
                (known.noted, known.in_vain) = (phys.last_offset, None);
            }
            let step = self.rebuild_step(*top, phys, &mut known.course);
            let step = self.judge(*top, phys, known, step);
            // Whatever ended it: what follows has begun.
            self.rebuilder.ending.store(false, SeqCst);
            let (waits, keeps) = match step {
                Step::Done => (None, true),
                Step::Ended => {
                    self.rebuilder.ahead.lock().remove(top);
                    all.remove(top);
                    any = true;
                    continue;
                }
                Step::Again(why) | Step::Held(why) | Step::Fails(why) => (Some(why), false),
            };
            any |= keeps;
            let (phys, pass) = known
                .course
                .as_ref()
                .map_or((*phys, RebuildPass::default()), |course| (course.phys, course.pass));
            let waits = waits.filter(|why| !why.is_empty());
            self.rebuilder.ahead.lock().insert(*top, Ahead { phys, pass, waits });
            if !keeps {
                known.course = None;
            }
        }
        any
    }

    /// Ends a rebuild that cannot go on.
    fn judge(
        self: &Arc<Self>,
        top: u64,
        phys: &RebuildPhys,
        known: &mut Known,
        step: Result<Step, EngineError>,
    ) -> Step {
        let step = step.unwrap_or_else(|why| match self.tx_state.held() {
            Some(held) => Step::Held(held),
            None => Step::Again(why.to_string()),
        });
        let why = match step {
            Step::Fails(why) => why,
            Step::Again(why) => {
                let (clock, most) = (&self.disk.outside.clock, SCAN_CHECKPOINT_INTVAL.get());
                let (since, times) = *known.in_vain.get_or_insert((clock.now(), 0));
                known.in_vain = Some((since, times.saturating_add(1)));
                let late = match self.options.deterministic {
                    true => times >= TRIES,
                    false => clock.since(since) >= Duration::from_secs(most) && times > 0,
                };
                if !late {
                    return Step::Again(why);
                }
                why
            }
            Step::Held(why) => {
                known.in_vain = None;
                return Step::Held(why);
            }
            step => return step,
        };
        tracing::warn!(vdev = top, "a rebuild ends, and a resilver is to follow: {why}");
        let phys = known.course.as_ref().map_or(*phys, |course| course.phys);
        let phys = RebuildPhys { errors: phys.errors.max(1), ..phys };
        match self.end_rebuild(top, phys, Vec::new()) {
            Ok(ended) => ended,
            Err(error) => Step::Held(error.to_string()),
        }
    }

    /// Copies some of a vdev. What is not known to be durable is copied anew if that fails.
    fn rebuild_step(
        self: &Arc<Self>,
        top: u64,
        phys: &RebuildPhys,
        known: &mut Option<Course>,
    ) -> Result<Step, EngineError> {
        if let Some(why) = self.tx_state.held() {
            return Ok(Step::Held(why));
        }
        if SCAN_SUSPEND_PROGRESS.is_on() {
            return Ok(Step::Held(String::new()));
        }
        let (view, tree) = (self.view(), self.disk.tree());
        let Some(root) = view.config().list("vdev_tree") else {
            broken(format_args!("the config of a pool in use has no tree of vdevs"));
        };
        let lacking = rebuilt(&tree, root, top);
        if lacking.is_empty() {
            return self.give_up_rebuild(top, *phys);
        }
        if let Some(why) = self.is_senseless(&tree, top, phys) {
            return Ok(Step::Fails(why.into()));
        }
        if self.tx_state.synced_txg() + 1 < phys.max_txg {
            // What the leaves lack is not all on disk yet.
            self.queue.run(&self.tx_state, |_| Ok(()), |()| true)?;
            return Ok(Step::Done);
        }
        if lacking.iter().any(|leaf| leaf.is_leaving()) {
            // It has left in a moment, or stays, and is to get all.
            return Ok(Step::Held(String::new()));
        }
        let usable: Vec<Arc<Vdev>> = lacking.iter().filter(|l| l.writable()).cloned().collect();
        let guids: Vec<u64> = usable.iter().map(|leaf| leaf.guid()).collect();
        if usable.is_empty() {
            return Ok(Step::Fails("the device that is rebuilt takes no writes".into()));
        }
        if self.is_source_silent(&tree, top) {
            return Ok(Step::Again(SILENT.into()));
        }
        if !tree.has_source(top, &guids) {
            return Ok(Step::Fails("no device has all that is to be copied".into()));
        }
        if known.as_ref().is_some_and(|course| !course.stands()) {
            return Ok(Step::Again(MAY_LACK.into()));
        }
        *known = known.take().filter(|course| course.targets() == guids);
        let missing = lacking.len() > usable.len();
        let course = known.get_or_insert_with(|| self.course(top, *phys, usable));
        if missing {
            course.phys.errors = course.phys.errors.max(1);
        }
        match self.copy(&tree, top, course)? {
            Copied::Some => self.after_copy(&tree, top, course, false),
            Copied::All => self.after_copy(&tree, top, course, true),
            Copied::Silent => Ok(Step::Again(SILENT.into())),
            Copied::Leaving => Ok(Step::Held(String::new())),
        }
    }

    /// Notes how far a rebuild is, if it is time to.
    fn after_copy(
        self: &Arc<Self>,
        tree: &VdevTree,
        top: u64,
        course: &mut Course,
        is_last: bool,
    ) -> Result<Step, EngineError> {
        let now = self.disk.outside.clock.now();
        let took = self.disk.outside.clock.since(course.begun).as_millis();
        course.pass.took_ms = u64::try_from(took).unwrap_or(u64::MAX);
        course.phys.took_ms = more(course.took_before, course.pass.took_ms);
        let due = NOTE.min(Duration::from_secs(SCAN_CHECKPOINT_INTVAL.get()));
        if !is_last && self.disk.outside.clock.since(course.noted) < due {
            return Ok(Step::Done);
        }
        if let Err(why) = tree.flush_tops(&[top]) {
            return Ok(Step::Again(why.to_string()));
        }
        if !course.stands() {
            return Ok(Step::Again(MAY_LACK.into()));
        }
        course.noted = now;
        self.note_or_end(top, course, is_last)
    }

    /// Why the state of a rebuild, which may come from anywhere, is not gone on with.
    fn is_senseless(&self, tree: &VdevTree, top: u64, phys: &RebuildPhys) -> Option<&'static str> {
        if self.is_rebuild_barred() {
            return Some(UNCLAIMED);
        }
        let (asize, sector) =
            tree.top(top).map_or((0, 1), |top| (top.asize(), 1 << top.ashift().min(16)));
        let ahead = phys.max_txg > self.tx_state.synced_txg() + 2 * CONCURRENT;
        let astray = phys.last_offset > asize || !phys.last_offset.is_multiple_of(sector);
        (ahead || astray).then_some("its state makes no sense")
    }

    /// Whether a device of a vdev does not answer that it cannot do without, though it was looked at anew a moment ago.
    fn is_source_silent(&self, tree: &VdevTree, top: u64) -> bool {
        if !tree.is_silent_below(top) {
            return false;
        }
        let clock = &self.disk.outside.clock;
        let mut looked = self.rebuilder.looked.lock();
        let recent = looked.is_some_and(|look| look.is_recent(clock.since(look.ended)));
        if !recent || self.options.deterministic {
            let begun = clock.now();
            if let Err(error) = tree.recheck() {
                tracing::warn!(%error, "devices are not looked at anew");
            }
            *looked = Some(Look { took: clock.since(begun), ended: clock.now() });
        }
        tree.is_silent_below(top)
    }

    fn note_or_end(
        self: &Arc<Self>,
        top: u64,
        course: &Course,
        is_last: bool,
    ) -> Result<Step, EngineError> {
        let phys = course.phys;
        if !is_last {
            let note = move |context: &mut crate::SyncContext<'_>| context.note_rebuild(top, &phys);
            let goes_on = self.queue.run(&self.tx_state, note, |_| true)?;
            return Ok(if goes_on { Step::Done } else { Step::Again(String::new()) });
        }
        self.end_rebuild(top, phys, course.leaves.iter().map(|(leaf, _)| leaf.clone()).collect())
    }

    /// A rebuild is over. Without errors `leaves` are whole as far as it goes.
    fn end_rebuild(
        self: &Arc<Self>,
        top: u64,
        phys: RebuildPhys,
        leaves: Vec<Arc<Vdev>>,
    ) -> Result<Step, EngineError> {
        // Set before it is over: a program that waits for resilvers waits for the one that may follow as well.
        self.rebuilder.ending.store(true, SeqCst);
        let shared = self.clone();
        let end = move |context: &mut crate::SyncContext<'_>| {
            context.end_rebuild(&shared, top, &phys, &leaves)
        };
        let ended = self.queue.run(&self.tx_state, end, |_| true)?;
        let Some(ended) = ended else { return Ok(Step::Again(String::new())) };
        self.tell_rebuild("resilver_finish", top);
        self.after_rebuild(ended.scrubs);
        Ok(Step::Ended)
    }

    /// What is done with a rebuild from here on.
    fn course(&self, top: u64, mut phys: RebuildPhys, leaves: Vec<Arc<Vdev>>) -> Course {
        let now = self.disk.outside.clock.now();
        if phys.last_offset == 0 {
            // Those for intent logs are copied as well.
            let group = self.disk.allocator.group(top);
            let of = |group: &Arc<cenote_store::alloc::Group>| {
                group.metaslabs().iter().map(|metaslab| metaslab.allocated()).sum()
            };
            phys.estimate = group.as_ref().map_or(0, of);
        }
        // If it is not known what a leaf lacks, it is all up to now; what is later than the rebuild is left to a resilver.
        let end = self.tx_state.synced_txg() + 1 + CONCURRENT;
        let standing = |leaf: Arc<Vdev>| {
            leaf.count_unread(end);
            let standing = leaf.standing();
            (leaf, standing)
        };
        Course {
            phys,
            pass: RebuildPass::default(),
            begun: now,
            took_before: phys.took_ms,
            leaves: leaves.into_iter().map(standing).collect(),
            pieces: VecDeque::new(),
            listed: phys.last_offset,
            noted: now,
        }
    }

    /// Copies the pieces that come next.
    fn copy(&self, tree: &VdevTree, top: u64, course: &mut Course) -> Result<Copied, EngineError> {
        let mut is_all = false;
        if course.pieces.is_empty() {
            is_all = self.list(tree, top, course)?;
        }
        let (mut batch, mut bytes) = (Vec::new(), 0u64);
        while bytes < REBUILD_VDEV_LIMIT.get()
            && batch.len() < MOST_PIECES
            && let Some(piece) = course.pieces.pop_front()
        {
            bytes += piece.1;
            batch.push(piece);
        }
        let Some((start, size)) = batch.last().copied() else {
            return Ok(if is_all { Copied::All } else { Copied::Some });
        };
        let silences = tree.silences();
        let done = tree.rebuild_many(top, &batch, &course.targets());
        let Rebuilt { bytes: written, unread, failed, leaving, left } =
            done.map_err(|e| EngineError::Unsupported(e.to_string()))?;
        if leaving {
            return Ok(Copied::Leaving);
        }
        if unread > 0 && (tree.silences() != silences || self.is_source_silent(tree, top)) {
            return Ok(Copied::Silent);
        }
        let first_left = left.first().map(|(start, _)| *start);
        let put_off: u64 = left.iter().map(|(_, size)| size).sum();
        left.into_iter().rev().for_each(|piece| course.pieces.push_front(piece));
        let looked_at = less!(bytes, put_off, "bytes that a rebuild was to copy of vdev {top}");
        let (phys, pass) = (&mut course.phys, &mut course.pass);
        let (before, end) = (phys.last_offset, first_left.unwrap_or(start + size));
        invariant!(before <= end, "vdev {top} is rebuilt up to {before:#x}, and then to {end:#x}");
        phys.last_offset = end;
        for counter in [&mut phys.scanned, &mut phys.issued] {
            *counter = more(*counter, looked_at);
        }
        phys.estimate = phys.estimate.max(phys.scanned);
        phys.rebuilt = more(phys.rebuilt, written);
        phys.errors = more(phys.errors, unread + failed.len() as u64);
        pass.scanned += looked_at;
        pass.issued += looked_at;
        Ok(Copied::Some)
    }

    /// Lists pieces that come next. True: no piece is left.
    fn list(&self, tree: &VdevTree, top: u64, course: &mut Course) -> Result<bool, EngineError> {
        let Some(vdev) = tree.top(top) else { return Ok(true) };
        let (from, segment) = (course.listed, REBUILD_MAX_SEGMENT.get());
        let (mut bytes, mut listed) = (0u64, from);
        let pieces = &mut course.pieces;
        let txg = self.tx_state.synced_txg();
        allocated(&self.disk.allocator, txg, (top, from), &mut |(mut start, end)| {
            while start < end {
                let size = match vdev.rebuild_piece(start, end - start, segment) {
                    // Nothing can be allocated there: it counts as an error.
                    0 => end - start,
                    size => size,
                };
                invariant!(size <= end - start, "vdev {top}: {size} bytes of {start:#x}-{end:#x}");
                pieces.push_back((start, size));
                (start, bytes) = (start + size, bytes + size);
            }
            listed = end;
            bytes >= LISTED
        })?;
        course.listed = listed;
        Ok(pieces.is_empty())
    }

    /// No leaf is there any more that a rebuild is for.
    fn give_up_rebuild(self: &Arc<Self>, top: u64, phys: RebuildPhys) -> Result<Step, EngineError> {
        self.rebuilder.ending.store(true, SeqCst);
        let cancel = move |context: &mut crate::SyncContext<'_>| context.cancel_rebuild(top, &phys);
        if !self.queue.run(&self.tx_state, cancel, |_| true)? {
            // It is another one by now.
            return Ok(Step::Again(String::new()));
        }
        self.tell_rebuild("resilver_finish", top);
        self.after_rebuild(false);
        Ok(Step::Ended)
    }

    /// Forgets rebuilds that ended since, as their vdevs have left, and does what follows.
    fn forget_left(
        self: &Arc<Self>,
        running: &[(u64, RebuildPhys)],
        known: &mut BTreeMap<u64, Known>,
    ) {
        let runs = |top: &u64| running.iter().any(|(running, _)| running == top);
        self.rebuilder.ahead.lock().retain(|top, _| runs(top));
        let left: Vec<u64> = known.keys().copied().filter(|top| !runs(top)).collect();
        for top in &left {
            known.remove(top);
            self.tell_rebuild("resilver_finish", *top);
        }
        if !left.is_empty() {
            self.after_rebuild(false);
        }
    }

    /// Lists that a rebuild of a top-level vdev begins or ends (`vdev_rebuild_log_notify`).
    pub(crate) fn tell_rebuild(&self, name: &str, top: u64) {
        let tree = self.disk.tree();
        let vdev = tree.top(top).map(|top| &**top);
        Sysevent { vdev, ..Sysevent::of_pool(name) }.post(&self.disk.store);
    }

    /// Does what follows the end of a rebuild: devices that were replaced leave, and what waited for it begins.
    pub(crate) fn after_rebuild(self: &Arc<Self>, scrubs: bool) {
        if scrubs {
            self.scrub_has_begun();
        }
        self.let_go_of_replaced();
        self.call_spares();
        // A leaf that was left to it, or came back meanwhile.
        if let Err(error) = self.assess_resilver() {
            tracing::warn!(%error, "no resilver begins");
        }
    }
}

impl Engine {
    /// Fills in what is not on disk yet of rebuilds that are under way.
    pub fn tell_rebuilds(&self, all: &mut [RebuildStatus]) {
        let ahead = self.shared.rebuilder.ahead.lock();
        for status in all.iter_mut().filter(|status| status.phys.is_running()) {
            if let Some(known) = ahead.get(&status.vdev).filter(|k| k.phys.is_same(&status.phys)) {
                (status.phys, status.pass) = (known.phys, known.pass);
                status.waits.clone_from(&known.waits);
            }
        }
    }

    /// Whether a sequential rebuild is under way (`vdev_rebuild_active`).
    pub fn is_rebuilding(&self) -> bool {
        self.shared.is_rebuilding()
    }
}
