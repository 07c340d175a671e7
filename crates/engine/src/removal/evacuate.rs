//! What a vdev holds that is being removed goes to other vdevs, and the vdev becomes an indirect one
//! (`spa_vdev_remove_thread`, `vdev_remove_complete`).
//!
//! ```text
//! sync task: read what is allocated ── allocate elsewhere ── write ── add to the mapping      group after group
//!                                                                        │ nothing is left
//! sync task: space maps go, an indirect vdev takes the vdev's place  <───┘
//! ```
//!
//! A thread reads what is allocated beyond what is copied already, in the order of offsets, and has a sync task write it
//! elsewhere within its group; and so on. Nothing is allocated on the vdev any more, and nothing is written to what is. So
//! what was read before the group is the same in it, as far as it is still allocated. A block that is freed is either
//! copied or not, and is freed in both places then (`cenote_store::write`, `removing`). Pieces are what is allocated in a
//! row, whatever blocks that are, up to [`REMOVE_MAX_SEGMENT`] bytes. A group is held neither by a device that cannot be read nor
//! by one that does not answer, and copies no longer than it frees ([`FREE_MIN_TIME_MS`]). The thread waits for such a device as
//! long as it takes, unless its removal is over or it is to end. Meanwhile another removal may begin, also of the same vdev:
//! what was read is copied for the removal that it was read for, or not at all.
//!
//! What is wrong on the vdev is wrong in what is copied of it. A repair of the vdev therefore goes to what was copied, too; a piece that is repaired
//! between its reading and its writing is read once more (`cenote_vdev`'s `write::removing`).
//!
//! Until the end all is read where it always was. What fails to be copied is freed, and begins anew after
//! a moment: what is mapped is on all devices of its new vdev. A vdev that did not take it is passed over for a while, as long
//! as there is another one. What cannot be read is read again at growing distance, and counts as an error once. Meanwhile `zpool status` says what the removal waits for. A crash leaves what the last group had copied.
//!
//! A reader that began before the last group was on disk may follow a pointer to what was freed before it was copied. So the
//! vdev is not given up while one is active.

use super::top::{allocated, copied_with};
use super::{Gone, leaves_left};
use crate::features::count_feature;
use crate::space_write::{Evacuation, More, config_of};
use crate::tunables::{REMOVAL_SUSPEND_PROGRESS, REMOVE_MAX_SEGMENT};
use crate::{EngineError, Shared, SyncContext};
use cenote_dmu::outside::Time;
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::tunables::FREE_MIN_TIME_MS;
use cenote_dsl::write::{DslWriteError, Result as DslResult};
use cenote_format::abd::Abd;
use cenote_format::blkptr::Dva;
use cenote_format::invariant;
use cenote_pool::indirect::Segment;
use cenote_pool::indirect::removing::{FINISHED, Removing};
use cenote_store::alloc::{AllocError, Class, Request};
use cenote_store::write::Copied;
use cenote_vdev::traffic::Content;
use cenote_vdev::{Asking, BlockWrite, IndirectMap, PlacedCopy, Remap, RepairMark, VdevError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The name of the thread.
const NAME: &str = "remove";
/// Most bytes that a group copies.
const AT_ONCE: u64 = 32 << 20;
/// Least bytes that are read for one, where a device is slow.
const LEAST_AT_ONCE: u64 = 1 << 20;
/// Bytes and pieces after which a batch of reads or writes is full.
const BATCH: (u64, usize) = (4 << 20, 256);
/// How long the thread waits after a task that came to nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// Most such pauses in a row.
const MOST_PAUSES: u32 = 100;
/// Pauses after the first read that failed; twice as many after each further one.
const PAUSES_UNREAD: u32 = 20;
/// How often they are doubled at most.
const MOST_DOUBLED: u32 = 7;
/// How long a vdev is passed over that has not taken what was written.
const PASSED_OVER: Duration = Duration::from_secs(300);
/// Tasks in a row that come to nothing, where everything happens in the calling threads.
const TRIES: u32 = 8;

/// What came of a task.
enum Step {
    /// Something was copied.
    Copied,
    /// It is to be tried again.
    Again,
    /// The vdev has left.
    Left,
    /// No vdev is being removed.
    Nothing,
}

/// A piece of the vdev.
struct Piece {
    start: u64,
    end: u64,
    /// What its sides have, as often as they differ.
    sides: Vec<Abd>,
}

/// How the thread gets on with a removal.
struct Course {
    /// The removal: where what it copies is mapped.
    of: Arc<dyn IndirectMap>,
    /// Most bytes that are read for a task.
    most: u64,
    /// What lies below this offset was read before.
    seen: u64,
    /// Reads in a row that came to nothing.
    unread: u32,
    /// Vdevs that have not taken what was written, and when.
    refused: Vec<(u64, Time)>,
}

impl Course {
    fn new(copied: &Copied) -> Course {
        let (of, refused) = (copied.mapping.clone(), Vec::new());
        Course { of, most: AT_ONCE, seen: 0, unread: 0, refused }
    }
}

/// Whether the removal that has `a` has `b`.
fn is_same(a: &Arc<dyn IndirectMap>, b: &Arc<dyn IndirectMap>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// What a task copies.
struct Ahead {
    /// The removal that it was read for: where what that copies is mapped.
    of: Arc<dyn IndirectMap>,
    /// In order, and beyond what is copied.
    pieces: Vec<Piece>,
    /// Set before they were read.
    mark: RepairMark,
    /// Vdevs that are passed over.
    refused: Vec<u64>,
    /// A vdev that has not taken what was to be written.
    refuses: Mutex<Option<u64>>,
}

/// The vdevs of a class that may take what is copied.
type Takers = (Class, Vec<u64>);

/// A part of a piece that is still allocated.
#[derive(Clone, Copy)]
struct Part<'a> {
    start: u64,
    end: u64,
    piece: &'a Piece,
}

/// Divides what comes in a row into batches.
fn batches<T>(all: &[T], bytes: impl Fn(&T) -> u64) -> Vec<&[T]> {
    let (mut sum, mut count) = (all.first().map_or(0, &bytes), 1);
    let joins = |_: &T, next: &T| {
        (sum, count) = (sum + bytes(next), count + 1);
        let joins = sum < BATCH.0 && count < BATCH.1;
        if !joins {
            (sum, count) = (bytes(next), 1);
        }
        joins
    };
    all.chunk_by(joins).collect()
}

impl Shared {
    /// Has a thread go on with the removal of a vdev, if there is one.
    pub(crate) fn wake_evacuation(self: &Arc<Self>) {
        self.evacuator.wake(self, NAME, |shared| shared.evacuate());
    }

    /// Waits the longer the more tasks or reads in a row came to nothing, but not once the removal is over or the thread is to end. A call
    /// to look again ends that.
    fn rest_from_evacuation(&self, in_vain: u32, course: &Course) {
        let pauses = match course.unread {
            unread if unread > 0 && !self.options.deterministic => {
                PAUSES_UNREAD << (unread - 1).min(MOST_DOUBLED)
            }
            _ => in_vain.min(MOST_PAUSES),
        };
        let pauses = if self.evacuator.take_call() { pauses.min(1) } else { pauses };
        for _ in 0..pauses {
            if self.has_ended(course) || self.evacuator.is_called() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether a removal is over, or the thread is to end.
    fn has_ended(&self, course: &Course) -> bool {
        let stopped = self.evacuator.is_stopped() || self.tx_state.closed().is_some();
        let copied = || self.disk.writer.copied();
        stopped || !copied().is_some_and(|copied| is_same(&copied.mapping, &course.of))
    }

    /// What the removal that is under way waits for, if it does.
    pub(crate) fn note_removal_waits(&self, why: Option<String>) {
        *self.removal_waits.lock() = why;
    }

    /// Copies until the vdev has left, or its removal is cancelled.
    fn evacuate(&self) {
        let mut in_vain = 0;
        let mut known: Option<Course> = None;
        loop {
            if self.evacuator.is_stopped() || self.tx_state.closed().is_some() {
                return self.evacuator.ends();
            }
            // Without a vdev to copy no group is written for it.
            let Some(copied) = self.disk.writer.copied() else {
                self.note_removal_waits(None);
                if self.evacuator.is_over() {
                    return;
                }
                continue;
            };
            known = known.filter(|course| is_same(&course.of, &copied.mapping));
            let course = known.get_or_insert_with(|| Course::new(&copied));
            if REMOVAL_SUSPEND_PROGRESS.is_on() {
                if self.options.deterministic {
                    return self.evacuator.ends();
                }
                std::thread::sleep(PAUSE);
                continue;
            }
            let step = self.step(course, &copied);
            self.note_removal_waits(step.as_ref().err().map(ToString::to_string));
            match step {
                Ok(Step::Nothing) if self.evacuator.is_over() => return,
                Ok(Step::Nothing | Step::Left | Step::Copied) => in_vain = 0,
                Ok(Step::Again) => in_vain += 1,
                Err(why) => {
                    if in_vain % MOST_PAUSES == 0 {
                        tracing::warn!("the removal of a vdev does not go on: {why}");
                    }
                    in_vain += 1;
                }
            }
            if self.options.deterministic && in_vain > TRIES {
                return self.evacuator.ends();
            }
            self.rest_from_evacuation(in_vain, course);
        }
    }

    /// Reads on, and has a group copy what was read.
    fn step(&self, course: &mut Course, copied: &Copied) -> Result<Step, EngineError> {
        let mark = self.disk.tree().mark_repairs();
        let (pieces, failed) = self.read_ahead(course, copied)?;
        #[cfg(feature = "planted")]
        self.reach(crate::planted::Moment::ReadToBeMoved);
        // A slow device has less to do at once.
        let most = if failed.is_some() { course.most / 4 } else { course.most * 2 };
        course.most = most.clamp(LEAST_AT_ONCE, AT_ONCE);
        if let Some(why) = failed.filter(|_| pieces.is_empty()) {
            course.unread = course.unread.saturating_add(1);
            return Err(DslWriteError::Invalid(why.to_string()).into());
        }
        course.unread = 0;
        // No group is written in vain.
        if pieces.is_empty() && self.is_still_read() {
            let why = "all is copied, and who began to read before, as a send does, is waited for";
            return Err(DslWriteError::Invalid(why.into()).into());
        }
        let clock = &self.disk.outside.clock;
        course.refused.retain(|(_, when)| clock.since(*when) < PASSED_OVER);
        let refused = course.refused.iter().map(|(vdev, _)| *vdev).collect();
        let (of, refuses) = (course.of.clone(), Mutex::default());
        let (first, in_order) = (pieces.first(), pieces.is_sorted_by(|a, b| a.end <= b.start));
        invariant!(
            in_order && first.is_none_or(|first| copied.end <= first.start),
            "vdev {}: what was read ahead is not in order, or before {:#x}",
            copied.vdev,
            copied.end
        );
        let ahead = Arc::new(Ahead { of, pieces, mark, refused, refuses });
        let theirs = ahead.clone();
        let change = move |context: &mut SyncContext<'_>| match context.evacuate(&theirs)? {
            Step::Nothing if context.maps.evacuation().is_some() => context.finish_removal(),
            step => Ok(step),
        };
        let is_done = |step: &Step| matches!(step, Step::Copied | Step::Left);
        let done = self.queue.run(&self.tx_state, change, is_done);
        if let Some(refuses) = ahead.refuses.lock().take() {
            course.refused.retain(|(vdev, _)| *vdev != refuses);
            course.refused.push((refuses, clock.now()));
        }
        done
    }

    /// Whether a reader is active that may follow pointers of before the last group, in the group that comes next.
    fn is_still_read(&self) -> bool {
        let next = self.tx_state.synced_txg() + 1;
        self.disk.allocator.is_held_since(next.saturating_sub(2))
    }

    /// Reads what is allocated beyond what is copied, in order: what was read, and why no more was.
    ///
    /// Errors: it is not known what is allocated.
    fn read_ahead(
        &self,
        course: &mut Course,
        copied: &Copied,
    ) -> DslResult<(Vec<Piece>, Option<VdevError>)> {
        let (vdev, most, tree) = (copied.vdev, course.most, self.disk.tree());
        let sector = 1u64 << tree.top(vdev).map_or(9, |top| top.ashift().min(16));
        let largest = REMOVE_MAX_SEGMENT.get().next_multiple_of(sector);
        let (mut wanted, mut bytes) = (Vec::new(), 0u64);
        let txg = self.tx_state.synced_txg();
        let from = (vdev, copied.end);
        allocated(&self.disk.allocator, txg, from, &mut |(mut start, end)| {
            while start < end && bytes < most {
                let size = largest.min(end - start).min(most - bytes);
                wanted.push((start, size));
                (start, bytes) = (start + size, bytes + size);
            }
            bytes >= most
        })?;
        let clock = &self.disk.outside.clock;
        let (begun, time) = (clock.now(), Duration::from_millis(FREE_MIN_TIME_MS.get()));
        let mut pieces = Vec::new();
        // What was read before, and what was not.
        let (old, new) = wanted.split_at(wanted.partition_point(|(start, _)| *start < course.seen));
        let batches = [old, new].map(|part| batches(part, |(_, size)| *size));
        for batch in batches.into_iter().flatten() {
            let (Some(first), Some(last)) = (batch.first(), batch.last()) else { continue };
            let again = first.0 < course.seen;
            course.seen = course.seen.max(last.0 + last.1);
            let course = &*course;
            let watch = |silent: Option<String>| {
                if silent.is_some() {
                    self.note_removal_waits(silent);
                }
                self.has_ended(course)
            };
            let watch: Option<&(dyn Fn(Option<String>) -> bool + Sync)> =
                if self.options.deterministic { None } else { Some(&watch) };
            let asking = Asking { watch, again };
            for (read, (start, size)) in tree.read_sides(vdev, batch, asking).into_iter().zip(batch)
            {
                match read {
                    Ok(sides) => {
                        let (start, end) = (*start, *start + *size);
                        pieces.push(Piece { start, end, sides });
                    }
                    Err(why) => return Ok((pieces, Some(why))),
                }
            }
            if self.has_ended(course) || clock.since(begun) >= time {
                break;
            }
        }
        Ok((pieces, None))
    }
}

impl SyncContext<'_> {
    /// Copies some of the vdev that is being removed. [`Step::Nothing`]: nothing is left to be copied.
    fn evacuate(&mut self, ahead: &Ahead) -> DslResult<Step> {
        let Some(evacuation) = self.maps.evacuation().cloned() else {
            return Ok(Step::Nothing);
        };
        // What was read is of another removal.
        let of: Arc<dyn IndirectMap> = evacuation.mapping.clone();
        if !is_same(&of, &ahead.of) {
            return Ok(Step::Again);
        }
        // The pool on disk keeps the vdev.
        if self.disk.frozen.leaves_out(self.tx.txg) {
            return Ok(Step::Again);
        }
        let (id, from) = (evacuation.vdev, evacuation.mapping.end());
        let until = ahead.pieces.last().map_or(0, |last| last.end);
        let mut ranges = Vec::new();
        self.allocated_of(id, from, &mut |range| {
            ranges.push(range);
            range.1 >= until
        })?;
        if ranges.is_empty() {
            return Ok(Step::Nothing);
        }
        let parts = parts(&ranges, &ahead.pieces);
        let copy = || {
            let (segments, failed) = self.copy(id, &parts, ahead);
            let vdevs = segments.iter().map(|segment| segment.vdev.into()).collect();
            ((segments, failed), vdevs)
        };
        let ((segments, mut failed), flushed) = self.disk.tree().durably_moved(copy);
        if let Err(why) = flushed {
            self.disk.tree().place_copies(Vec::new());
            self.free_written(&segments);
            failed = failed.or(Some(why.to_string()));
        } else if !segments.is_empty() {
            return self.map(evacuation, segments);
        }
        failed.map_or(Ok(Step::Again), |why| Err(DslWriteError::Invalid(why)))
    }

    /// What was copied is mapped.
    fn map(&mut self, mut evacuation: Evacuation, segments: Vec<Segment>) -> DslResult<Step> {
        let bytes = segments.iter().map(|s| s.size).sum();
        match self.note(&evacuation, bytes, segments.clone()) {
            Ok(more) => {
                evacuation.grow(more);
                self.publish(evacuation);
                Ok(Step::Copied)
            }
            Err(e) => {
                self.disk.tree().place_copies(Vec::new());
                self.free_written(&segments);
                Err(e)
            }
        }
    }

    /// Notes in the pending MOS what was copied.
    fn note(&mut self, to: &Evacuation, bytes: u64, segments: Vec<Segment>) -> DslResult<More> {
        let more = to.write(self.tx.mos, self.tx.txg, segments)?;
        let removal = self.removal()?.ok_or(DslWriteError::NotFound)?;
        let copied = copied_with(removal.copied, bytes);
        self.set_removal(&Removing { copied, ..removal })?;
        self.tx.mos.check_change()?;
        Ok(more)
    }

    /// Gives back what was allocated in this group, and not written.
    fn give_back(&self, segments: &[Segment]) {
        for dva in segments.iter().map(place_of) {
            let back = self.disk.allocator.unallocate(self.tx.txg, &dva);
            invariant!(back.is_ok(), "{dva:?} cannot be given back: {back:?}");
        }
    }

    /// Frees what was allocated in this group, and may have been written. It may be written once more after a flush that fails
    /// ([`VdevTree::recover`](cenote_vdev::VdevTree::recover)), so that nothing else is written there before this group is on disk.
    fn free_written(&self, segments: &[Segment]) {
        for dva in segments.iter().map(place_of) {
            let freed = self.disk.allocator.free(self.tx.txg, &dva);
            invariant!(freed.is_ok(), "{dva:?} cannot be freed: {freed:?}");
        }
    }

    /// Copies parts of pieces, as long as there is time: where to, and why no more was.
    fn copy(&self, id: u64, all: &[Part<'_>], ahead: &Ahead) -> (Vec<Segment>, Option<String>) {
        let (clock, tree) = (&self.disk.outside.clock, self.disk.tree());
        let (begun, time) = (clock.now(), Duration::from_millis(FREE_MIN_TIME_MS.get()));
        let sector = 1u64 << tree.top(id).map_or(9, |top| top.ashift().min(16));
        let mut copied = Vec::new();
        for batch in batches(all, |part| part.end - part.start) {
            let (mut segments, mut blocks) = (Vec::new(), Vec::new());
            let placed = batch.iter().try_for_each(|part| {
                let among = self.takers(id, &ahead.refused, part.piece.sides.len())?;
                self.place((part, sector), &among, &mut segments, &mut blocks)
            });
            if let Err(why) = placed {
                self.give_back(&segments);
                return (copied, Some(format!("vdev {id}: {why}")));
            }
            check_placed(id, batch, &segments);
            tree.place_copies(copied.iter().chain(&segments).map(placed_copy).collect());
            if let Err(why) = tree.write_moved(&blocks) {
                tree.place_copies(copied.iter().map(placed_copy).collect());
                if let VdevError::Write { vdev, .. } | VdevError::Io { vdev, .. } = &why {
                    *ahead.refuses.lock() = Some(*vdev);
                }
                self.free_written(&segments);
                return (copied, Some(format!("vdev {id}: {why}")));
            }
            // A repair from now on finds the copy.
            let is_repaired =
                |part: &Part<'_>| tree.is_repaired_since(ahead.mark, &(part.start..part.end));
            if batch.iter().any(is_repaired) {
                tree.place_copies(copied.iter().map(placed_copy).collect());
                self.free_written(&segments);
                return (copied, None);
            }
            copied.append(&mut segments);
            if clock.since(begun) >= time {
                break;
            }
        }
        (copied, None)
    }

    /// Allocates room for a part, maybe in several places.
    fn place(
        &self,
        (part, sector): (&Part<'_>, u64),
        takers: &[Takers],
        segments: &mut Vec<Segment>,
        blocks: &mut Vec<BlockWrite>,
    ) -> Result<(), String> {
        let sides = &part.piece.sides;
        let mut at = part.start;
        while at < part.end {
            let allocated = self.allocate_by_class(part.end - at, sector, takers);
            let (vdev, offset, size) = allocated.map_err(|e| e.to_string())?;
            let left = part.end - at;
            invariant!(
                size <= left,
                "vdev {vdev}: {size} bytes at {offset:#x} for {left} bytes that are moved"
            );
            segments.push(Segment { source: at, size, vdev, offset });
            let slice = |side: &Abd| side.slice((at - part.piece.start) as usize, size as usize);
            let mut sides: Vec<Abd> = sides.iter().filter_map(slice).collect();
            let data = sides.first().cloned().ok_or("a piece was not read")?;
            if sides.iter().all(|side| side.is_same(&data) || side.bytes() == data.bytes()) {
                sides.clear();
            }
            let (txg, content) = (self.tx.txg, Content::Data);
            blocks.push(BlockWrite { vdev: vdev.into(), offset, data, txg, content, sides });
            at += size;
        }
        Ok(())
    }

    /// The vdevs that take a piece of vdev `id` of so many different sides, by the classes that are tried in turn: its own, then
    /// that for data (`spa_vdev_copy_segment`).
    fn takers(&self, id: u64, refused: &[u64], sides: usize) -> Result<Vec<Takers>, String> {
        let own = self.disk.allocator.class_of(id).filter(|class| *class != Class::Normal);
        let of_own =
            own.and_then(|class| Some((class, self.takers_of(class, refused, sides).ok()?)));
        let normal = self.takers_of(Class::Normal, refused, sides);
        match (of_own, normal) {
            (None, normal) => Ok(vec![(Class::Normal, normal?)]),
            (Some(own), Err(_)) => Ok(vec![own]),
            (Some(own), Ok(normal)) => Ok(vec![own, (Class::Normal, normal)]),
        }
    }

    /// The vdevs of a class that take a piece of so many different sides; such as have `refused` one only where there is no other.
    fn takers_of(&self, class: Class, refused: &[u64], sides: usize) -> Result<Vec<u64>, String> {
        let (tree, allocator) = (self.disk.tree(), &self.disk.allocator);
        let groups = allocator.groups().filter(|group| !group.is_passive());
        let vdevs = groups.map(|group| group.vdev());
        let vdevs = vdevs.filter(|vdev| allocator.class_of(*vdev) == Some(class));
        let all: Vec<(u64, usize)> = vdevs.map(|vdev| (vdev, tree.sides_for_moves(vdev))).collect();
        let whole: Vec<u64> =
            all.iter().filter(|(_, n)| *n >= sides).map(|(vdev, _)| *vdev).collect();
        if all.iter().all(|(_, sides)| *sides == 0) {
            return Err("every other vdev has a device that takes no writes".into());
        }
        if whole.is_empty() {
            return Err("its devices differ, and no other vdev has as many: scrub the pool".into());
        }
        let willing: Vec<u64> =
            whole.iter().copied().filter(|vdev| !refused.contains(vdev)).collect();
        Ok(if willing.is_empty() { whole } else { willing })
    }

    /// Allocates so many bytes in a row on one of some vdevs of the first class that has room, or as many as one has: vdev, offset,
    /// size.
    fn allocate_by_class(
        &self,
        size: u64,
        sector: u64,
        takers: &[Takers],
    ) -> Result<(u32, u64, u64), AllocError> {
        let mut psize = size;
        loop {
            let mut done = Err(AllocError::NoSpace);
            for of_class in takers {
                done = done.or_else(|_| self.allocate(psize, of_class));
            }
            match done {
                Err(_) if psize > sector => psize = (psize / 2).next_multiple_of(sector),
                done => return done,
            }
        }
    }

    /// Allocates so many bytes in a row on one of some vdevs of a class: vdev, offset, size.
    fn allocate(&self, psize: u64, (class, among): &Takers) -> Result<(u32, u64, u64), AllocError> {
        let (disk, txg) = (self.disk, self.tx.txg);
        let (copies, allocator, gang, near) = (1, 0, false, None);
        let (class, among) = (*class, Some(among.as_slice()));
        let request = Request { psize, copies, class, allocator, gang, near, among };
        let (_, dvas) = disk.allocator.allocate(txg, &request)?;
        match dvas.first() {
            Some(dva) if dva.asize == psize => Ok((dva.vdev, dva.offset, psize)),
            Some(dva) => {
                let back = disk.allocator.unallocate(txg, dva);
                invariant!(back.is_ok(), "{dva:?} cannot be given back: {back:?}");
                Err(AllocError::NoSpace)
            }
            None => Err(AllocError::NoSpace),
        }
    }

    /// All is copied: the vdev becomes an indirect one.
    fn finish_removal(&mut self) -> DslResult<Step> {
        let txg = self.tx.txg;
        if self.disk.allocator.is_held_since(txg.saturating_sub(2)) {
            return Ok(Step::Again);
        }
        let Some(evacuation) = self.maps.evacuation().cloned() else { return Ok(Step::Nothing) };
        let id = evacuation.vdev;
        let tree = self.disk.tree();
        let top = tree.top(id).cloned().ok_or(DslWriteError::NotFound)?;
        let mut root = self.config.vdev_tree.clone();
        let of_top = config_of(&mut root, id).ok_or(DslWriteError::NotFound)?;
        let leaves = leaves_left(self.config, &top, of_top);
        // One that was under way when the removal began, in a pool that came so.
        self.end_rebuild_of_left(id)?;
        let outside = &self.disk.outside;
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        self.maps.free_vdev(self.tx.mos, txg, (id, of_top, true), &mut count)?;
        let known = self.removal()?.ok_or(DslWriteError::NotFound)?;
        let spared = self.disk.writer.spared();
        let copied = copied_with(known.copied, spared);
        let (state, end) = (FINISHED, self.tx.now);
        self.set_removal(&Removing { state, end, copied, prev: id, ..known })?;
        let guid = outside.chance.number().map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        cenote_pool::surgery::make_indirect(&mut root, (id, guid), known.prev)
            .ok_or(DslWriteError::NotFound)?;
        self.record("vdev remove completed", &format!("{} vdev {id}", self.tx.pool))?;
        let now = self.altered_tree(&root, id, &mut |_, _| None, &|guid| guid)?;
        self.tx.mos.check_change()?;
        let mapping = evacuation.mapping.now();
        let bytes = mapping.memory();
        let set = now.set_indirect(id, Box::new(mapping));
        set.map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        self.replace_tree(now, root)?;
        self.disk.writer.take_spared();
        let mut below = Vec::new();
        top.collect_leaves(&mut below);
        self.disk.writer.end_removing(&below);
        self.maps.forget_vdev(id);
        self.maps.end_evacuation(true);
        // What is freed from now on is freed where the mapping leads.
        self.disk.allocator.remove_vdev(id);
        let tree = Some(Arc::downgrade(&tree));
        self.disk.removed.lock().push(Gone { top, leaves, tree, mapping: bytes });
        if copied != known.to_copy {
            tracing::warn!("{copied} of {} bytes of a removed vdev were copied", known.to_copy);
        }
        Ok(Step::Left)
    }
}

/// Where repairs of a piece go.
fn placed_copy(&Segment { source, vdev, offset, size }: &Segment) -> PlacedCopy {
    PlacedCopy { source, copy: Remap { vdev: vdev.into(), offset, size } }
}

fn place_of(&Segment { vdev, offset, size, .. }: &Segment) -> Dva {
    Dva { vdev, offset, asize: size, gang: false }
}

/// The parts of a vdev that is removed have found a place, each byte one.
fn check_placed(vdev: u64, parts: &[Part<'_>], segments: &[Segment]) {
    let wanted: u64 = parts.iter().map(|part| part.end - part.start).sum();
    let placed: u64 = segments.iter().map(|segment| segment.size).sum();
    invariant!(wanted == placed, "vdev {vdev}: {placed} bytes are to hold {wanted} of it");
    let here = segments.iter().find(|segment| u64::from(segment.vdev) == vdev);
    invariant!(here.is_none(), "vdev {vdev} is removed, and would be copied onto itself: {here:?}");
}

/// The parts of pieces that are in `ranges`, as far as these are covered. Both are in order.
fn parts<'a>(ranges: &[(u64, u64)], pieces: &'a [Piece]) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    let mut pieces = pieces.iter().peekable();
    for (mut start, end) in ranges.iter().copied() {
        while start < end {
            while pieces.next_if(|piece| piece.end <= start).is_some() {}
            let Some(piece) = pieces.peek().filter(|piece| piece.start <= start) else {
                return parts;
            };
            let to = end.min(piece.end);
            invariant!(start < to, "a part {start:#x}-{to:#x} of what is allocated up to {end:#x}");
            parts.push(Part { start, end: to, piece });
            start = to;
        }
    }
    parts
}
