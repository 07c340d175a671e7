//! What a vdev holds that is being removed goes to other vdevs, and the vdev becomes an indirect one
//! (`spa_vdev_remove_thread`, `vdev_remove_complete`).
//!
//! ```text
//! sync task: read what is allocated ── allocate elsewhere ── write ── add to the mapping      group after group
//!                                                                        │ nothing is left
//! sync task: space maps go, an indirect vdev takes the vdev's place  <───┘
//! ```
//!
//! A thread asks for one sync task after the other. Each copies some of what is allocated beyond what is copied already, in
//! the order of offsets, within its group: so nothing that is copied can change meanwhile. A block that is freed is either
//! copied or not, and is freed in both places then (`cenote_store::write`, `removing`). Pieces are what is allocated in a
//! row, whatever blocks that are, up to [`REMOVE_MAX_SEGMENT`] bytes.
//!
//! Until the end all is read where it always was. What fails to be copied is given back, and the task begins anew after
//! a moment: what is mapped is on all devices of its new vdev. A crash leaves what the last group had copied.
//!
//! A reader that began before the last group was on disk may follow a pointer to what was freed before it was copied. So the
//! vdev is not given up while one is active.

use super::{Gone, leaves_left};
use crate::space_write::config_of;
use crate::sync::count_feature;
use crate::tunables::{REMOVAL_SUSPEND_PROGRESS, REMOVE_MAX_SEGMENT};
use crate::{EngineError, Shared, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{DslWriteError, Result as DslResult};
use cenote_format::blkptr::Dva;
use cenote_format::invariant;
use cenote_pool::indirect::Segment;
use cenote_pool::indirect::removing::{FINISHED, Removing};
use cenote_store::alloc::{AllocError, Class, Request};
use cenote_vdev::BlockWrite;
use cenote_vdev::traffic::Content;
use std::sync::Arc;
use std::time::Duration;

/// The name of the thread.
const NAME: &str = "remove";
/// Bytes that a group copies.
const AT_ONCE: u64 = 32 << 20;
/// How long the thread waits after a task that came to nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// Most such pauses in a row.
const MOST_PAUSES: u32 = 100;
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

impl Shared {
    /// Has a thread go on with the removal of a vdev, if there is one.
    pub(crate) fn wake_evacuation(self: &Arc<Self>) {
        self.evacuator.wake(self, NAME, |shared| shared.evacuate());
    }

    /// Waits the longer the more tasks in a row came to nothing, but not once the thread is to end.
    fn rest_from_evacuation(&self, in_vain: u32) {
        for _ in 0..in_vain.min(MOST_PAUSES) {
            if self.evacuator.is_stopped() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Copies until the vdev has left, or its removal is cancelled.
    fn evacuate(&self) {
        let mut in_vain = 0;
        loop {
            if self.evacuator.is_stopped() || self.tx_state.closed().is_some() {
                return self.evacuator.ends();
            }
            // Without a vdev to copy no group is written for it.
            if !self.disk.writer.is_removing() {
                if self.evacuator.is_over() {
                    return;
                }
                continue;
            }
            if REMOVAL_SUSPEND_PROGRESS.is_on() {
                if self.options.deterministic {
                    return self.evacuator.ends();
                }
                self.rest_from_evacuation(1);
                continue;
            }
            match self.step() {
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
            self.rest_from_evacuation(in_vain);
        }
    }

    fn step(&self) -> Result<Step, EngineError> {
        let change = |context: &mut SyncContext<'_>| match context.evacuate()? {
            Step::Nothing if context.maps.evacuation().is_some() => context.finish_removal(),
            step => Ok(step),
        };
        self.queue.run(&self.tx_state, change, |step| matches!(step, Step::Copied | Step::Left))
    }
}

impl SyncContext<'_> {
    /// Copies some of the vdev that is being removed. [`Step::Nothing`]: nothing is left to be copied.
    fn evacuate(&mut self) -> DslResult<Step> {
        let Some(evacuation) = self.maps.evacuation().cloned() else { return Ok(Step::Nothing) };
        // The pool on disk keeps the vdev.
        if self.disk.frozen.leaves_out(self.tx.txg) {
            return Ok(Step::Again);
        }
        let (id, from) = (evacuation.vdev, evacuation.mapping.max_offset);
        let (mut ranges, mut bytes) = (Vec::new(), 0u64);
        self.allocated_of(id, from, &mut |(start, end)| {
            let end = end.min(start.saturating_add(AT_ONCE - bytes));
            ranges.push((start, end));
            bytes += end - start;
            bytes >= AT_ONCE
        })?;
        if ranges.is_empty() {
            return Ok(Step::Nothing);
        }
        let mut segments = Vec::new();
        let copied = ranges.into_iter().try_for_each(|range| self.copy(id, range, &mut segments));
        let noted = copied.and_then(|()| {
            let new = evacuation.with(self.tx.mos, self.tx.txg, &segments)?;
            let removal = self.removal()?.ok_or(DslWriteError::NotFound)?;
            let copied = removal.copied.saturating_add(bytes);
            self.set_removal(&Removing { copied, ..removal })?;
            self.tx.mos.check_change()?;
            Ok(new)
        });
        match noted {
            Ok(new) => {
                self.publish(new);
                Ok(Step::Copied)
            }
            Err(e) => {
                for segment in segments {
                    let Segment { vdev, offset, size: asize, .. } = segment;
                    let dva = Dva { vdev, offset, asize, gang: false };
                    let back = self.disk.allocator.unallocate(self.tx.txg, &dva);
                    invariant!(back.is_ok(), "{dva:?} cannot be given back: {back:?}");
                }
                Err(e)
            }
        }
    }

    /// Copies a range. `segments` gets what was allocated for it, also if the copying fails.
    fn copy(
        &self,
        id: u64,
        (mut at, end): (u64, u64),
        segments: &mut Vec<Segment>,
    ) -> DslResult<()> {
        let tree = self.disk.tree();
        let failed = |why: String| DslWriteError::Invalid(format!("vdev {id}: {why}"));
        let sector = 1u64 << tree.top(id).map_or(9, |top| top.ashift().min(16));
        let most = REMOVE_MAX_SEGMENT.get().next_multiple_of(sector);
        while at < end {
            let (vdev, offset, size) =
                self.allocate((end - at).min(most), sector).map_err(|e| failed(e.to_string()))?;
            segments.push(Segment { source: at, size, vdev, offset });
            let sides = tree.read_sides(id, at, size).map_err(|e| failed(e.to_string()))?;
            let data = sides.first().cloned().ok_or(DslWriteError::NotFound)?;
            let (txg, content) = (self.tx.txg, Content::Data);
            let block = BlockWrite { vdev: vdev.into(), offset, data, txg, content };
            tree.write_sides(&block, &sides).map_err(|e| failed(e.to_string()))?;
            at = at.saturating_add(size);
        }
        Ok(())
    }

    /// Allocates so many bytes in a row, or as many as there are: vdev, offset, size.
    fn allocate(&self, size: u64, sector: u64) -> Result<(u32, u64, u64), AllocError> {
        let (allocator, mut psize) = (&self.disk.allocator, size);
        loop {
            let (copies, allocator_of, gang, near) = (1, 0, false, None);
            let class = Class::Normal;
            let request = Request { psize, copies, class, allocator: allocator_of, gang, near };
            match allocator.allocate(self.tx.txg, &request) {
                Ok((_, dvas)) => match dvas.first() {
                    Some(dva) if dva.asize == psize => return Ok((dva.vdev, dva.offset, psize)),
                    Some(dva) => {
                        let back = allocator.unallocate(self.tx.txg, dva);
                        invariant!(back.is_ok(), "{dva:?} cannot be given back: {back:?}");
                        return Err(AllocError::NoSpace);
                    }
                    None => return Err(AllocError::NoSpace),
                },
                Err(_) if psize > sector => psize = (psize / 2).next_multiple_of(sector),
                Err(e) => return Err(e),
            }
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
        let outside = &self.disk.outside;
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        self.maps.free_vdev(self.tx.mos, txg, (id, of_top, true), &mut count)?;
        let known = self.removal()?.ok_or(DslWriteError::NotFound)?;
        let spared = self.disk.writer.take_spared();
        let copied = known.copied.saturating_add(spared);
        let (state, end) = (FINISHED, self.tx.now);
        self.set_removal(&Removing { state, end, copied, prev: id, ..known })?;
        let guid = outside.chance.number().map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        cenote_pool::surgery::make_indirect(&mut root, (id, guid), known.prev)
            .ok_or(DslWriteError::NotFound)?;
        self.record("vdev remove completed", &format!("{} vdev {id}", self.tx.pool))?;
        let now = self.altered_tree(&root, id, &mut |_, _| None, &|guid| guid)?;
        self.tx.mos.check_change()?;
        let mapping = evacuation.mapping;
        let bytes = mapping.memory();
        let set = now.set_indirect(id, Box::new(mapping));
        set.map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        self.replace_tree(now, root)?;
        self.disk.writer.set_removing(None);
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
