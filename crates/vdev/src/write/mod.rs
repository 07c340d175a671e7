//! Writing blocks, and making durable what was written.
//!
//! A block is laid out as *columns*. On a leaf or mirror it is one column, which goes to every
//! leaf below; on RAID-Z it is the columns of `crate::raidz::map` and on dRAID those of `crate::draid`, in one or two
//! *stripes*, parity first, each of which goes
//! to one child (and to all leaves below that, where the child is being replaced). The writes of a
//! whole batch are then submitted together. A column is written if at least one leaf took it; a
//! block is written if its vdev can make up for the columns that are not: that is no column, or as many of a stripe as
//! it has parity. Skipped sectors of a RAID-Z allocation are not written.
//!
//! # What happens to errors
//!
//! No error is dropped. A leaf that failed a write counts a write error; a leaf that failed or was not
//! there to be written *missed* the block's transaction group: from then on reads trust it less
//! with blocks of that group, and [`VdevTree::take_missed`] hands the group to the owner of
//! the dirty time log. A block that too little was written of fails for its caller.
//!
//! # Durability
//!
//! What was written is durable after [`VdevTree::flush_all`]. A flush that fails may have lost
//! any write since the last one (the kernel drops pages that it cannot write, and says so once),
//! so that leaf missed every transaction group written to it since, unless that is written again. Blocks that were reported
//! as written may then have lost more columns than their vdev can make up for, which is not
//! known by block: if it *may* have happened (see `lossy`), the top-level vdev has *lost* data,
//! and no flush of it succeeds before all that was written since the last one is written again
//! ([`VdevTree::recover`]; it is kept in `unflushed`). The next flush may come from another caller than the one
//! that wrote the block, so it must not report success.
//!
//! Between a write and its flush another flush may come and fail. So that no block slips through:
//!
//! - A write fails if a flush of its leaf was found to have failed since the batch began. That is
//!   looked up last, when every failed write of the batch has been marked at its leaf.
//! - So if a flush of a leaf that took the block is found to have failed later, the other leaves
//!   carry the marks of what they lack, which are looked at after that. Marks are taken off only by
//!   a flush of the whole top-level vdev that began after they were made.
//! - Flushes of a top-level vdev run one at a time.
//! - Before a leaf of a suspended pool gets another device its top-level vdev counts as having lost data. So a flush that
//!   finds nothing to be flushed there, or ends on the device before, drops nothing that must be written again.
//!
//! Invariants: nothing is written outside a leaf's allocatable space; blocks start at a sector of
//! their vdev and are filled up with zeros to a whole one. Blocks of one batch do not overlap.

pub(crate) mod copying;
mod flush;
mod leaf;
mod logs;
mod parity;
mod removing;
mod sides;
pub(crate) mod submit;
mod sums;
#[cfg(test)]
mod tests;
mod unflushed;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use cenote_format::MAX_BLOCK;
use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_format::label::Uberblock;

use crate::dtl::{merged, only};
use crate::events::{self, Happening, Operation};
use crate::queue::Priority;
use crate::raidz::reflow::Widths;
use crate::raidz::watch::Watch;
use crate::threads::{IoPool, Work};
use crate::traffic::{Content, Meter, Traffic};
use crate::tree::{self, VdevTree};
use crate::vdev::{Kind, Vdev};
use crate::{Alarm, Suspension, VdevError, assemble, mirror};

use copying::Copying;
use flush::Flush;
pub use flush::FlushFailures;
pub(crate) use leaf::Written;
use parity::Columns;
pub(crate) use removing::{NotRepaired, Removing};
pub use removing::{PlacedCopy, RepairMark};
pub use sides::Asking;
pub(crate) use submit::submit;
pub(crate) use submit::{LeafWrite, write_leaves};
pub(crate) use submit::{request as write_request, submit as submit_writes};
pub(crate) use unflushed::Unflushed;

/// One block of a batch.
#[derive(Clone, Debug)]
pub struct BlockWrite {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Byte offset on it, as in the DVA: a multiple of its sector size.
    pub offset: u64,
    /// The block: psize bytes. It is filled up with zeros to a whole sector.
    pub data: Abd,
    /// Transaction group of its birth, which leaves that cannot be written miss. 0: no group.
    pub txg: u64,
    /// What it is counted as.
    pub content: Content,
    /// What the leaves of a mirror get in turn, where that is not the same for all; `data` is the first of it. Else
    /// nothing.
    pub sides: Vec<Abd>,
}

/// What a tree has for writing.
pub(crate) struct Writer {
    /// Apart from the readers', so that reads do not wait behind flushes.
    pub pool: IoPool,
    /// Writes of devices that succeeded. One that carries several kinds of content counts as the
    /// first of them, so that only those count as metadata that there would not be without it; its
    /// bytes count as what they are.
    pub writes: Meter,
    /// Flushes of devices that succeeded.
    flushes: AtomicU64,
    /// Held during a flush, and while the outcome of one is taken back; one of devices that give out their addresses themselves, which upload then,
    /// and one of all others, which do not wait for that.
    flushing: Mutex<()>,
    storing: Mutex<()>,
    /// The top-level vdevs that lost data. Not held while a device is waited for.
    lost: Mutex<Losses>,
    /// What was written since the last flush.
    pub unflushed: Unflushed,
    /// What waits for devices to come back.
    suspension: Arc<Suspension>,
    /// The uberblock that is being written, or was last.
    pub committing: Mutex<Option<Uberblock>>,
    /// Held while devices are probed.
    pub probing: Mutex<()>,
    /// See [`VdevTree::take_awaited`].
    pub awaited: AtomicBool,
    /// Held by writes of blocks side by side, and alone while wrong bytes are replaced (`crate::fault`).
    pub healing: RwLock<()>,
    /// What is being copied as it is.
    pub copying: Copying,
    /// What a top-level vdev that is being removed has been copied to.
    pub removing: Removing,
    /// What is written to a RAID-Z vdev whose sectors move.
    pub watch: Watch,
    /// How much of what may be dirty in the pool is.
    pub dirty_percent: AtomicU64,
}

impl Writer {
    pub(crate) fn new(alarm: Arc<Alarm>) -> Writer {
        Writer {
            copying: Copying::new(alarm.clone()),
            pool: IoPool::new(alarm),
            writes: Meter::default(),
            flushes: AtomicU64::new(0),
            flushing: Mutex::default(),
            storing: Mutex::default(),
            lost: Mutex::default(),
            unflushed: Unflushed::default(),
            suspension: Arc::default(),
            committing: Mutex::default(),
            probing: Mutex::default(),
            awaited: AtomicBool::new(false),
            healing: RwLock::default(),
            removing: Removing::default(),
            watch: Watch::default(),
            dirty_percent: AtomicU64::new(0),
        }
    }
}

/// Why a top-level vdev may have lost data of which a leaf has another device than when it was written.
const ANOTHER: &str = "another device";

/// A top-level vdev lost data.
#[derive(Clone, Debug, Default)]
struct Lost {
    why: String,
    /// How often that was found.
    times: u64,
}

/// The top-level vdevs that lost data, by their ids.
#[derive(Debug, Default)]
struct Losses {
    now: HashMap<u64, Lost>,
    /// How often any did so far.
    ever: u64,
}

/// A block under way: for each stripe and column the positions of its writes in the batch.
struct Plan<'a> {
    vdev: &'a Arc<Vdev>,
    stripes: Vec<Vec<Range<usize>>>,
    /// Leaves that take no writes.
    absent: Vec<Arc<Vdev>>,
    /// How many columns of a stripe may fail.
    tolerance: usize,
}

impl VdevTree {
    /// Writes a batch of blocks: the writes of all of them are aggregated and submitted together,
    /// writes of each device in parallel to the others. Results are in the order of `blocks`.
    ///
    /// `Ok` means that the block can be read back; it is durable after [`VdevTree::flush_all`].
    pub fn write_many(&self, blocks: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        self.write_many_as(Priority::AsyncWrite, blocks)
    }

    /// As [`VdevTree::write_many`], in another class than that of a transaction group's blocks.
    pub fn write_many_as(
        &self,
        priority: Priority,
        blocks: &[BlockWrite],
    ) -> Vec<Result<(), VdevError>> {
        let kept = self.writer.unflushed.begin(blocks, |block| self.asize_of(block));
        let beside = self.beside_copies(blocks);
        let batch = self.note_blocks(blocks);
        let laid_out = self.lay_out(blocks);
        let mut writes = Vec::with_capacity(blocks.len());
        let plans: Vec<Result<Plan<'_>, VdevError>> = blocks
            .iter()
            .zip(laid_out)
            .map(|(block, columns)| self.plan_write(block, columns?, &mut writes))
            .collect();
        let results = write_leaves(&self.writer, priority, &writes);
        let (asked, done) = (writes.len(), results.len());
        invariant!(asked == done, "{asked} writes of leaves came to {done} results");
        let finish = |(block, plan): (&BlockWrite, Result<Plan<'_>, VdevError>)| {
            plan.and_then(|plan| plan.finish(block, &writes, &results))
        };
        let done = blocks.iter().zip(plans).map(finish).collect();
        // What copies a leaf then (`crate::rebuild`) knows what it misses.
        drop((batch, beside));
        self.writer.unflushed.end(blocks, kept);
        self.look_after();
        done
    }

    /// Has copies make way for blocks that are going to be written. No leaf comes back between the moment in which a block is laid out and
    /// that in which it is written: for as long as what is returned lives.
    fn beside_copies(&self, blocks: &[BlockWrite]) -> RwLockReadGuard<'_, ()> {
        let range = |block: &BlockWrite| {
            // One that is past all numbers is refused when it is laid out.
            let end = block.offset.saturating_add(self.asize_of(block));
            (block.vdev, block.offset..end)
        };
        let mut ranges = None;
        loop {
            let beside = self.writer.healing.read();
            if self.writer.copying.is_idle() {
                return beside;
            }
            let ranges = ranges.get_or_insert_with(|| blocks.iter().map(range).collect::<Vec<_>>());
            if self.writer.copying.make_way(ranges) {
                return beside;
            }
            // Others are not kept waiting by that.
            drop(beside);
            self.writer.copying.wait(ranges);
        }
    }

    /// What a block takes of its vdev.
    pub(crate) fn asize_of(&self, block: &BlockWrite) -> u64 {
        let size = block.data.len() as u64;
        self.top(block.vdev).map_or(size, |top| top.psize_to_asize(size, block.txg))
    }

    /// The columns of each block, stripe by stripe.
    fn lay_out(&self, blocks: &[BlockWrite]) -> Vec<Result<Vec<Columns>, VdevError>> {
        let lay_out = |b: &BlockWrite| {
            let vdev = self.check(b)?;
            parity::lay_out(vdev, &vdev.widths(), b)
        };
        let mut stripes: Vec<Result<Vec<Columns>, VdevError>> =
            blocks.iter().map(lay_out).collect();
        parity::generate(&self.writer.pool, stripes.iter_mut().flatten().flatten().collect());
        stripes
    }

    /// What each child of a top-level vdev holds of the block `data`, born in `txg`, at `offset`: (child, byte offset on
    /// it, bytes), filled up to whole sectors. `None`: it cannot be there.
    #[cfg(test)]
    pub(crate) fn columns_of(
        &self,
        (vdev, offset, txg): (u64, u64, u64),
        data: &Abd,
    ) -> Option<Vec<(Arc<Vdev>, u64, Abd)>> {
        let top = self.top(vdev)?;
        self.laid_out(top, &top.widths(), (offset, txg), data)
    }

    /// As [`VdevTree::columns_of`], on a vdev with these widths.
    pub(crate) fn laid_out(
        &self,
        vdev: &Arc<Vdev>,
        widths: &Widths,
        (offset, txg): (u64, u64),
        data: &Abd,
    ) -> Option<Vec<(Arc<Vdev>, u64, Abd)>> {
        let stripes = self.stripes_of(vdev, widths, (offset, txg), data)?;
        Some(stripes.into_iter().flat_map(|stripe| stripe.into_parts().0).collect())
    }

    /// As [`VdevTree::laid_out`], with the copies that a block has while its vdev is being expanded, last.
    pub(crate) fn laid_out_with_copies(
        &self,
        vdev: &Arc<Vdev>,
        widths: &Widths,
        (offset, txg): (u64, u64),
        data: &Abd,
    ) -> Option<Vec<(Arc<Vdev>, u64, Abd)>> {
        let (columns, copies): (Vec<_>, Vec<_>) = self
            .stripes_of(vdev, widths, (offset, txg), data)?
            .into_iter()
            .map(Columns::into_parts)
            .unzip();
        let copies = copies.into_iter().flatten();
        Some(columns.into_iter().chain(copies).flatten().collect())
    }

    /// The stripes of a block, with their parity.
    fn stripes_of(
        &self,
        vdev: &Arc<Vdev>,
        widths: &Widths,
        (offset, txg): (u64, u64),
        data: &Abd,
    ) -> Option<Vec<Columns>> {
        let (vdev_id, data, content) = (vdev.id(), data.clone(), Content::Repair);
        let block = BlockWrite { vdev: vdev_id, offset, data, txg, content, sides: Vec::new() };
        let mut stripes = parity::lay_out(self.check(&block).ok()?, widths, &block).ok()?;
        parity::generate(&self.writer.pool, stripes.iter_mut().collect());
        Some(stripes)
    }

    /// The vdev that a block goes to, if the block is one that can be there.
    fn check(&self, block: &BlockWrite) -> Result<&Arc<Vdev>, VdevError> {
        let vdev = tree::top(self.root().children(), block.vdev)?;
        let (size, asize) = (block.data.len() as u64, vdev.asize());
        let end = block.offset.checked_add(vdev.psize_to_asize(size, block.txg));
        if matches!(vdev.vdev_kind(), Kind::Hole | Kind::Missing | Kind::Indirect | Kind::Root) {
            return Err(error(block, format!("a {} vdev takes no data", vdev.kind())));
        }
        if size == 0 || size > MAX_BLOCK {
            return Err(error(block, format!("a block of {size} bytes")));
        }
        if !block.offset.is_multiple_of(1 << vdev.ashift().min(63)) {
            return Err(error(block, "not at a sector"));
        }
        match end {
            Some(end) if asize == 0 || end <= asize => Ok(vdev),
            _ => Err(error(block, "beyond the end of the vdev")),
        }
    }

    /// Appends the writes of a block.
    fn plan_write(
        &self,
        block: &BlockWrite,
        stripes: Vec<Columns>,
        writes: &mut Vec<LeafWrite>,
    ) -> Result<Plan<'_>, VdevError> {
        let vdev = tree::top(self.root().children(), block.vdev)?;
        let tolerance = stripes.first().map_or(0, |stripe| stripe.tolerance);
        let mut plan = Plan { vdev, stripes: Vec::new(), absent: Vec::new(), tolerance };
        // Each set of copies of a stripe is one of its own: as many of them may fail.
        let stripes = stripes.into_iter().flat_map(|stripe| {
            let (columns, copies) = stripe.into_parts();
            std::iter::once(columns).chain(copies)
        });
        let stripes = stripes.filter(|parts| !parts.is_empty()).enumerate();
        let parts = stripes.flat_map(|(n, parts)| parts.into_iter().map(move |part| (n, part)));
        for (n, (child, offset, data)) in parts {
            let start = writes.len();
            let mut leaves = Vec::new();
            mirror::copies(&child, &mut leaves);
            let mut sides = block.sides.iter().cycle();
            for leaf in leaves {
                let data = sides.next().unwrap_or(&data);
                let (takes, absent) = mirror::takers(&leaf, offset);
                plan.absent.extend(absent);
                if takes {
                    let (data, txg, content) = (data.clone(), block.txg, block.content);
                    writes.push(LeafWrite { leaf, offset, data, txg, content });
                }
            }
            plan.stripes.resize_with(n + 1, Vec::new);
            plan.stripes[n].push(start..writes.len());
        }
        Ok(plan)
    }

    /// Makes durable every block that [`VdevTree::write_many`] reported as written before this
    /// call. Devices that nothing was written to since they were last flushed are left alone.
    ///
    /// Errors: [`VdevError::Flush`] if some of these blocks, or of those written before, may be
    /// lost (others may be durable). It stays so: see the module's comment.
    pub fn flush_all(&self) -> Result<(), VdevError> {
        self.flush(self.root().children().iter().collect())
    }

    /// As [`VdevTree::flush_all`], for the blocks of some top-level vdevs, given by id.
    pub fn flush_tops(&self, tops: &[u64]) -> Result<(), VdevError> {
        let all = self.root().children();
        self.flush(tops.iter().map(|id| tree::top(all, *id)).collect::<Result<_, _>>()?)
    }

    fn flush(&self, tops: Vec<&Arc<Vdev>>) -> Result<(), VdevError> {
        let (mut done, mut stored) = (Vec::new(), Vec::new());
        let (stores, others): (Vec<_>, Vec<_>) =
            tops.into_iter().partition(|top| top.growing().is_some());
        let mut result = self.flush_leaves(&self.writer.flushing, others, &mut done);
        if !stores.is_empty() {
            // A device that was opened anew has not been told of it.
            let devices = stores.iter().filter_map(|top| top.growing());
            devices.for_each(|device| device.sound_on_broken(self.alarm()));
            result = result.and(self.flush_leaves(&self.writer.storing, stores, &mut stored));
        }
        for flush in done.iter().chain(&stored) {
            if let Err(why) = &flush.result {
                let what =
                    Happening::Failed { offset: 0, size: 0, operation: Operation::Flush, why };
                events::tell(&flush.leaf, &what);
            }
        }
        self.look_after();
        result
    }

    /// What keeps flushes of a top-level vdev apart.
    fn turn_of(&self, top: &Vdev) -> &Mutex<()> {
        if top.growing().is_some() { &self.writer.storing } else { &self.writer.flushing }
    }

    /// Flushes the leaves below `tops`, which have `turn` for that; each flush is added to `done`.
    fn flush_leaves(
        &self,
        turn: &Mutex<()>,
        tops: Vec<&Arc<Vdev>>,
        done: &mut Vec<Flush>,
    ) -> Result<(), VdevError> {
        let _alone = turn.lock();
        let then = self.writer.unflushed.now();
        let mut leaves = Vec::new();
        tops.iter().for_each(|t| t.collect_leaves(&mut leaves));
        // The marks before the counts: a write marks its leaf last.
        let marked = |l: &Arc<Vdev>| l.written().take_failed().then(|| l.guid());
        let marked: Vec<u64> = leaves.iter().filter_map(marked).collect();
        let job = |leaf: Arc<Vdev>| {
            let seen = leaf.written().dirty()?;
            Some(Flush::new(leaf, seen, Ok(())))
        };
        let jobs: Vec<Flush> = leaves.into_iter().filter_map(job).collect();
        let submitted: Vec<Arc<Vdev>> = jobs.iter().map(|j| j.leaf.clone()).collect();
        *done = self.writer.pool.run(jobs);
        // One that panicked did not come back.
        for leaf in submitted {
            if !done.iter().any(|d| Arc::ptr_eq(&d.leaf, &leaf)) {
                let result = Err(io::Error::other("the flush did not end"));
                done.push(Flush::new(leaf, 0, result));
            }
        }
        fail_spares(&tops, done);
        let (mut lacking, mut replaced) = (HashMap::<u64, String>::new(), Vec::new());
        for flush in done.iter_mut() {
            self.writer.flushes.fetch_add(u64::from(flush.result.is_ok()), Relaxed);
            if flush.result.is_err() {
                flush.leaf.suspected();
                self.writer.pool.set_failure();
            }
            flush.count();
            let failed = flush.result.as_ref().err().map(|e| e.to_string());
            if let Some(why) = flush.finish() {
                lacking.insert(flush.leaf.guid(), why);
            } else if let Some(why) = failed.filter(|_| holds_of_spares(&tops, &flush.leaf)) {
                // It may have lost what a distributed spare has there.
                lacking.insert(flush.leaf.guid(), why);
            }
            // What the device before did not keep, the one that took its place in a suspended pool does not have.
            if self.suspension().why().is_some() && flush.is_of_another_device() {
                let guid = flush.leaf.guid();
                replaced.push(guid);
                lacking.entry(guid).or_insert_with(|| ANOTHER.into());
            }
        }
        let mut lost = self.writer.lost.lock();
        for top in &tops {
            let mut below = Vec::new();
            top.collect_leaves(&mut below);
            let Some(why) = below.iter().find_map(|l| lacking.get(&l.guid())) else { continue };
            let is_below = |leaf: &Arc<Vdev>| below.iter().any(|l| Arc::ptr_eq(l, leaf));
            // What a distributed spare may have lost by a flush is on another child, which counts: no stripe has two columns there.
            let flushed_badly = |l: &Vdev| !l.is_distributed() && lacking.contains_key(&l.guid());
            let lacks = |l: &Vdev| flushed_badly(l) || marked.contains(&l.guid());
            let recovers = match below.iter().any(|leaf| replaced.contains(&leaf.guid())) {
                true => {
                    note(&mut lost, top.id(), ANOTHER);
                    true
                }
                false => note_lost(top, &lacks, why, &mut lost),
            };
            for flush in done.iter().filter(|flush| !recovers && is_below(&flush.leaf)) {
                flush.leaf.lags(flush.lost.clone());
            }
            // A leaf that went out of use meanwhile was not asked for what these lack by now.
            if !recovers {
                note_lost(top, &lacks, why, &mut lost);
            }
        }
        for top in tops.iter().filter(|top| !lost.now.contains_key(&top.id())) {
            self.writer.unflushed.flushed(top.id(), then);
        }
        match tops.iter().find_map(|t| Some((t.id(), lost.now.get(&t.id())?.why.clone()))) {
            Some((vdev, why)) => Err(VdevError::Flush { vdev, why }),
            None => Ok(()),
        }
    }

    /// Writes again what top-level vdevs have lost, as far as it is not durable. Their next flush may succeed then.
    ///
    /// # Errors
    /// It could not be written: they still lack it.
    pub fn recover(&self) -> Result<(), VdevError> {
        // A flush that is under way may find more.
        let alone = (self.writer.flushing.lock(), self.writer.storing.lock());
        let lost = self.writer.lost.lock().now.clone();
        drop(alone);
        for (id, known) in lost {
            let has_left = |top: &Arc<Vdev>| matches!(top.kind(), "hole" | "missing" | "indirect");
            if self.top(id).is_none_or(has_left) {
                self.writer.lost.lock().now.remove(&id);
                continue;
            }
            let blocks = self.writer.unflushed.of(id);
            let written = self.write_many_as(Priority::AsyncWrite, &blocks);
            match written.into_iter().collect::<Result<(), VdevError>>() {
                // A pool does without its log devices.
                Err(_) if self.top(id).is_some_and(|top| top.is_log()) => continue,
                written => written?,
            }
            tracing::info!(
                vdev = id,
                blocks = blocks.len(),
                "what may have been lost is written again"
            );
            // A flush that began before that does not make it durable.
            let _alone = (self.writer.flushing.lock(), self.writer.storing.lock());
            let mut lost = self.writer.lost.lock();
            // Another flush that failed meanwhile may have lost some of that.
            if lost.now.get(&id).is_some_and(|now| now.times == known.times) {
                lost.now.remove(&id);
            }
        }
        Ok(())
    }

    /// A leaf of `top` is about to have another device than before: what it is not known to keep is written again, and no flush
    /// that ends before that succeeds. Waits for no flush that is under way.
    pub(crate) fn lost_with_device(&self, top: &Vdev) {
        note(&mut self.writer.lost.lock(), top.id(), ANOTHER);
    }

    /// What of the pool waits for devices.
    pub fn suspension(&self) -> &Arc<Suspension> {
        &self.writer.suspension
    }

    /// Makes durable what was written to one leaf below `top`: whether a device that takes writes keeps them, only
    /// this tells. What it may have lost is noted as by [`VdevTree::flush_all`]. Returns whether the device failed,
    /// which it did not if its file system is full; while another flush runs this one is left to it, and so soon after
    /// one that succeeded no flush is made. As what a probe asks, this counts as no error of its own.
    pub(crate) fn fails_to_flush(&self, top: &Arc<Vdev>, leaf: &Arc<Vdev>) -> bool {
        if leaf.is_distributed() {
            // The leaves that its places are on are flushed: what it has is not durable before that.
            return false;
        }
        let Some(_alone) = self.turn_of(top).try_lock() else { return false };
        if leaf.written().kept_lately() {
            return false;
        }
        let Some(seen) = leaf.written().dirty() else { return false };
        let mut flush = Flush::new(leaf.clone(), seen, Ok(()));
        flush.run();
        if flush.result.is_err() {
            // The others were not flushed: the next flush of all counts this one's blocks as missing here.
            leaf.written().write_failed();
        }
        if let Some(why) = flush.finish() {
            let lacks = |l: &Vdev| l.guid() == leaf.guid();
            if !note_lost(top, &lacks, &why, &mut self.writer.lost.lock()) {
                leaf.lags(flush.lost.clone());
            }
        }
        match flush.result {
            Ok(()) => leaf.written().kept(),
            Err(e) => {
                lose_of_spares(top, leaf, false);
                return e.kind() != io::ErrorKind::StorageFull;
            }
        }
        false
    }

    /// Writes of devices, after aggregation, that succeeded since the pool was opened; labels and
    /// uberblocks too. A write that carries both counts as data, though its bytes are told apart.
    pub fn written(&self) -> Traffic {
        self.writer.writes.now()
    }

    /// Tells how much of what may be dirty in the pool is, in hundredths: the more, the more
    /// asynchronous writes its devices get at once.
    pub fn set_dirty_percent(&self, percent: u64) {
        self.writer.dirty_percent.store(percent, Relaxed);
    }

    /// Flushes of devices that succeeded since the pool was opened.
    pub fn flushes(&self) -> u64 {
        self.writer.flushes.load(Relaxed)
    }

    /// Takes the transaction groups (half-open ranges) that each leaf, given by guid, missed since
    /// this was last called: because it failed a write or a flush, or was not there. They belong
    /// into the leaf's dirty time log (`DTL_MISSING`) in the same transaction group.
    pub fn take_missed(&self) -> Vec<(u64, Vec<Range<u64>>)> {
        let missed = |l: Arc<Vdev>| (l.guid(), merged(l.written().take_missed()));
        self.leaves().into_iter().map(missed).filter(|(_, m)| !m.is_empty()).collect()
    }
}

/// What a distributed spare has is on the leaves of its vdev: if the flush of one failed, so did the spare's.
fn fail_spares(tops: &[&Arc<Vdev>], done: &mut [Flush]) {
    for top in tops.iter().filter(|top| top.draid().is_some()) {
        let child = |leaf: &Vdev| {
            top.children().iter().position(|c| assemble::below(c, leaf.guid()).is_some())
        };
        let failed = done.iter().filter(|flush| flush.result.is_err());
        let failed: Vec<usize> = failed.filter_map(|flush| child(&flush.leaf)).collect();
        for flush in done.iter_mut().filter(|flush| flush.leaf.is_distributed()) {
            // It has no place on those that it stands in for.
            let own = child(&flush.leaf);
            if own.is_some() && failed.iter().any(|child| Some(*child) != own) {
                flush.result = Err(io::Error::other("a device of it failed"));
            }
        }
    }
}

/// Whether a leaf is below one of `tops` that has distributed spares in use: what is written to it may be theirs.
fn holds_of_spares(tops: &[&Arc<Vdev>], leaf: &Vdev) -> bool {
    let below = |top: &Arc<Vdev>| {
        let mut leaves = Vec::new();
        top.collect_leaves(&mut leaves);
        leaves.iter().any(|l| l.is_same(leaf)) && leaves.iter().any(|l| l.is_distributed())
    };
    tops.iter().any(|top| top.draid().is_some() && below(top))
}

/// A leaf of `top` was flushed alone, and failed, or lets go of its device: what distributed spares have there and is not known to be
/// durable may be lost. `again`: blocks are written again.
pub(crate) fn lose_of_spares(top: &Arc<Vdev>, leaf: &Vdev, again: bool) {
    if top.draid().is_none() || leaf.is_distributed() {
        return;
    }
    // A spare has no place on those that it stands in for.
    let others = top.children().iter().filter(|c| assemble::below(c, leaf.guid()).is_none());
    let mut leaves = Vec::new();
    others.for_each(|child| child.collect_leaves(&mut leaves));
    for spare in leaves.iter().filter(|leaf| leaf.is_distributed()) {
        spare.lose_unflushed(again);
    }
}

/// Whether blocks reported as written to `vdev` since the last flush may be lost, given which
/// leaves lack some of them because a flush or write failed. Those may be others than what a leaf
/// lacks that is not written at all; taking all of them together errs on the safe side. A leaf that is leaving keeps nothing.
fn lossy(vdev: &Vdev, lacks: &dyn Fn(&Vdev) -> bool) -> bool {
    if vdev.is_leaf() {
        let leaving = vdev.leaving.load(SeqCst);
        return !vdev.writable() || leaving || lacks(vdev) || vdev.written().failed_writes();
    }
    let lossy_children = vdev.children().iter().filter(|c| lossy(c, lacks)).count();
    match vdev.vdev_kind() {
        Kind::RaidZ | Kind::Draid => lossy_children as u64 > vdev.nparity(),
        _ => lossy_children == vdev.children().len(),
    }
}

/// Notes that a top-level vdev lost data, if it may have: see [`lossy`]. Returns whether it did. What was written is
/// written to all its leaves again then ([`VdevTree::recover`]), and marks what leaves lack that do not take it.
fn note_lost(top: &Vdev, lacks: &dyn Fn(&Vdev) -> bool, why: &str, lost: &mut Losses) -> bool {
    let is_lossy = lossy(top, lacks);
    if is_lossy {
        top.stats.writes.error();
        tracing::error!(vdev = ?top, why, "written data may be lost");
        note(lost, top.id(), why);
    }
    is_lossy
}

/// Notes that the top-level vdev with this id lost data.
fn note(lost: &mut Losses, top: u64, why: &str) {
    let known = lost.now.entry(top).or_default();
    known.why = why.into();
    known.times += 1;
    lost.ever += 1;
}

fn error(block: &BlockWrite, why: impl Into<String>) -> VdevError {
    VdevError::Io { vdev: block.vdev, offset: block.offset, why: why.into() }
}

/// `leaf` does not have what was written in `txg`.
fn missed(leaf: &Vdev, txg: u64) {
    if txg != 0 {
        leaf.add_missing(only(txg));
    }
}

/// What a batch has for the leaves of a column.
fn of_column<'a, T>(all: &'a [T], column: &Range<usize>) -> &'a [T] {
    match all.get(column.clone()) {
        Some(mine) => mine,
        None => broken(format_args!("the writes {column:?} of a batch of {}", all.len())),
    }
}

impl Plan<'_> {
    /// Whether enough leaves that have the block are still in use, once it is noted what the others lack. A leaf that goes out of use
    /// asks what they lack when it is going ([`VdevTree::look_after`]): one of the two sees the other.
    fn is_kept(&self, writes: &[LeafWrite], results: &[io::Result<()>]) -> bool {
        let has_it = |(write, done): (&LeafWrite, &io::Result<()>)| {
            done.is_ok() && write.leaf.keeps_at(write.offset) && !write.leaf.is_leaving()
        };
        let is_lost = |column: &&Range<usize>| {
            let (to, done) = (of_column(writes, column), of_column(results, column));
            !to.iter().zip(done).any(has_it)
        };
        let lost = |stripe: &Vec<Range<usize>>| stripe.iter().filter(is_lost).count();
        self.stripes.iter().all(|stripe| lost(stripe) <= self.tolerance)
    }

    /// The outcome of the block, given the writes and the results of the batch. A leaf that is about to leave does not
    /// count. Leaves that do not have the block have missed its transaction group, unless it is written nowhere.
    fn finish(
        self,
        block: &BlockWrite,
        writes: &[LeafWrite],
        results: &[io::Result<()>],
    ) -> Result<(), VdevError> {
        let stays = |write: &LeafWrite| !write.leaf.leaving.load(SeqCst);
        let mut cause = None;
        let mut is_lost = |column: &Range<usize>| {
            let (mine, to) = (of_column(results, column), of_column(writes, column));
            cause = cause.or_else(|| mine.iter().find_map(|r| r.as_ref().err()));
            !to.iter().zip(mine).any(|(to, r)| r.is_ok() && stays(to))
        };
        let mut lost_of = |stripe: &Vec<Range<usize>>| {
            (stripe.iter().filter(|column| is_lost(column)).count(), stripe.len())
        };
        let Some((lost, of)) = self.stripes.iter().map(&mut lost_of).max() else {
            let (vdev, offset) = (block.vdev, block.offset);
            broken(format_args!("vdev {vdev}: the block at {offset:#x} was written in no column"))
        };
        if lost <= self.tolerance {
            let mut everywhere = self.absent.is_empty();
            for at in self.stripes.iter().flatten().cloned().flatten() {
                let Some(write) = writes.get(at) else { continue };
                if results.get(at).is_some_and(Result::is_err) {
                    everywhere = false;
                    missed(&write.leaf, block.txg);
                } else if write.leaf.is_distributed() {
                    // Leaves that its place is on may have gone out since that was asked.
                    let absent = mirror::absent(&write.leaf, write.offset);
                    everywhere &= absent.is_empty();
                    absent.iter().for_each(|leaf| missed(leaf, block.txg));
                }
            }
            self.absent.iter().for_each(|leaf| missed(leaf, block.txg));
            if everywhere || self.is_kept(writes, results) {
                return Ok(());
            }
        }
        if !self.vdev.is_leaf() {
            self.vdev.stats.writes.error();
        }
        let cause = cause.map_or("no device to write to".to_string(), io::Error::to_string);
        let why = match of {
            1 => cause,
            _ => format!("{lost} of {of} columns cannot be written: {cause}"),
        };
        Err(VdevError::Write { vdev: block.vdev, offset: block.offset, why })
    }
}
