//! Submitting writes to leaves: aggregation (`vdev_queue_aggregate`), one batch per device, devices in parallel.
//!
//! As for reads (`crate::submit`), with these differences: only writes that follow one another
//! without a gap become one, which takes no copy, since the pieces of both are handed to the
//! kernel as they are; large ones join too; and each device gets one batch, which is done one write
//! after the other, since writes to one file exclude each other in the kernel anyway.
//!
//! Invariant: the writes of a batch do not overlap, but for repairs.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use cenote_format::abd::Abd;
use cenote_format::invariant;
use cenote_format::invariant::broken;
use cenote_format::label::{LABEL_END, LABEL_SIZE};

use crate::device::WriteReq;
use crate::dtl::only;
use crate::events::{self, Happening, Operation};
use crate::injection::IoKind;
use crate::queue::{self, LeafWork, Priority};
use crate::submit::on_device;
use crate::threads::Work;
use crate::traffic::{Content, Meter};
use crate::tunables;
use crate::vdev::{Kind, Vdev};
use crate::write::Writer;

/// One write to a leaf.
pub(crate) struct LeafWrite {
    pub leaf: Arc<Vdev>,
    /// Byte offset in the leaf's allocatable space.
    pub offset: u64,
    pub data: Abd,
    pub txg: u64,
    pub content: Content,
}

/// Performs `writes`; the results are in their order. Counts operations, latencies and write
/// errors at the leaves.
pub(crate) fn write_leaves(
    writer: &Writer,
    priority: Priority,
    writes: &[LeafWrite],
) -> Vec<io::Result<()>> {
    if priority != Priority::Rebuild {
        for repair in writes.iter().filter(|w| w.content == Content::Repair) {
            // In the boot area, which is behind all other bytes (`on_device`), nothing is copied.
            let end = repair.offset.saturating_add(repair.data.len() as u64);
            writer.copying.spoil(repair.leaf.guid(), &(repair.offset..end));
        }
    }
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_by_key(|i| (Arc::as_ptr(&writes[*i].leaf), on_device(writes[*i].offset)));
    let failures = |w: &LeafWrite| w.leaf.written().flush_failures();
    let failures_before: Vec<u64> = writes.iter().map(failures).collect();
    let mut results: Vec<io::Result<()>> =
        writes.iter().map(|_| Err(io::Error::other("not written"))).collect();
    let runs = aggregate(writes, &order);
    let covered: usize = runs.iter().map(ExactSizeIterator::len).sum();
    invariant!(covered == writes.len(), "{covered} of {} writes go to devices", writes.len());
    let failed = perform(writer, priority, writes, &order, runs, &mut results);
    if !failed.is_empty() {
        // One bad sector shall not cost its neighbours: each is written for itself.
        let mut failed: Vec<usize> = failed.into_iter().flatten().collect();
        failed.sort_unstable();
        let runs = failed.into_iter().map(|at| at..at + 1).collect();
        perform(writer, priority, writes, &order, runs, &mut results);
    }
    if results.iter().any(Result::is_err) {
        writer.pool.set_failure();
    }
    for (write, result) in writes.iter().zip(&results) {
        if result.is_err() {
            write.leaf.written().write_failed();
        }
    }
    // Last, when all is marked that other leaves lack.
    for ((write, result), before) in writes.iter().zip(&mut results).zip(failures_before) {
        if result.is_ok() && failures(write) != before {
            *result = Err(io::Error::other("a flush failed meanwhile"));
            write.leaf.written().write_failed();
        }
    }
    results
}

/// Joins neighbouring writes: ranges of positions in `order`.
fn aggregate(writes: &[LeafWrite], order: &[usize]) -> Vec<Range<usize>> {
    let limit = tunables::AGGREGATION_LIMIT.get();
    let mut runs: Vec<Range<usize>> = Vec::new();
    // Where the last run ends, and its bytes.
    let (mut end, mut bytes) = (0u64, 0u64);
    for (at, i) in order.iter().enumerate() {
        let (write, len) = (&writes[*i], writes[*i].data.len() as u64);
        let first = runs.last().and_then(|run| order.get(run.start));
        let same_leaf = first.is_some_and(|first| Arc::ptr_eq(&writes[*first].leaf, &write.leaf));
        // Two threads that found the same wrong bytes mend them twice.
        let (leaf, offset) = (&write.leaf, on_device(write.offset));
        let beside = !same_leaf || offset >= end || write.content == Content::Repair;
        invariant!(beside, "{leaf:?}: a write at {offset:#x} of a batch with one up to {end:#x}");
        // What an object store keeps as one is one block.
        let follows = same_leaf && offset == end && leaf.vdev_kind() != Kind::Object;
        match runs.last_mut() {
            Some(run) if follows && bytes + len <= limit => {
                run.end = at + 1;
                bytes += len;
            }
            _ => {
                runs.push(at..at + 1);
                bytes = len;
            }
        }
        end = offset + len;
    }
    runs
}

/// Performs `runs`. Returns those with several members that failed.
fn perform(
    writer: &Writer,
    priority: Priority,
    writes: &[LeafWrite],
    order: &[usize],
    runs: Vec<Range<usize>>,
    results: &mut [io::Result<()>],
) -> Vec<Range<usize>> {
    let mut failed = Vec::new();
    let asked = runs.len();
    let batches = batches(priority, writes, order, runs);
    let sent: usize = batches.iter().map(|batch| batch.reqs.len()).sum();
    invariant!(asked == sent, "{sent} of {asked} requests of a batch go to devices");
    let dirty = writer.dirty_percent.load(Relaxed);
    batches.iter().for_each(|batch| batch.leaf.queue.set_dirty_percent(dirty));
    for done in queue::run(&writer.pool, priority, batches) {
        for (run, req) in done.runs.into_iter().zip(done.reqs) {
            match req.take() {
                Err(_) if run.len() > 1 => failed.push(run),
                outcome => {
                    if outcome.is_ok() {
                        count(&writer.writes, writes, members_of(order, &run));
                    }
                    for i in members_of(order, &run) {
                        results[*i] = match &outcome {
                            Ok(()) => Ok(()),
                            Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
                        };
                    }
                }
            }
        }
    }
    failed
}

/// The writes that one request of a device is made of.
fn members_of<'o>(order: &'o [usize], run: &Range<usize>) -> &'o [usize] {
    match order.get(run.clone()) {
        Some(members) => members,
        None => broken(format_args!("the writes {run:?} of a batch of {}", order.len())),
    }
}

/// Counts one operation of a device, made of the writes at `members`.
fn count(meter: &Meter, writes: &[LeafWrite], members: &[usize]) {
    let contents = members.iter().map(|i| writes[*i].content);
    if let Some(first) = contents.min() {
        meter.add(first, 1, 0);
    }
    for write in members.iter().map(|i| &writes[*i]) {
        meter.add(write.content, 0, write.data.len() as u64);
    }
}

/// Writes for one device that are submitted together.
struct Batch {
    leaf: Arc<Vdev>,
    runs: Vec<Range<usize>>,
    reqs: Vec<WriteReq>,
    txgs: Range<u64>,
    /// The groups of repairs.
    repairs: Range<u64>,
    class: Priority,
}

/// Makes one batch for each leaf.
fn batches(
    class: Priority,
    writes: &[LeafWrite],
    order: &[usize],
    runs: Vec<Range<usize>>,
) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for run in runs {
        let members = members_of(order, &run);
        let Some(first) = members.first().map(|i| &writes[*i]) else {
            broken(format_args!("a request of a batch without writes"))
        };
        let (mut txgs, mut repairs) = (0..0, 0..0);
        for write in members.iter().map(|i| &writes[*i]).filter(|write| write.txg != 0) {
            let to = if write.content == Content::Repair { &mut repairs } else { &mut txgs };
            *to = join(to.clone(), only(write.txg));
        }
        let data = match members {
            [_] => first.data.clone(),
            _ => Abd::gang(members.iter().map(|i| writes[*i].data.clone()).collect()),
        };
        let mut req = request(&first.leaf, first.offset, data);
        // Blocks of files are written once in a group.
        req.held = first.content != Content::Data;
        match batches.last_mut() {
            Some(batch) if Arc::ptr_eq(&batch.leaf, &first.leaf) => {
                batch.txgs = join(batch.txgs.clone(), txgs);
                batch.repairs = join(batch.repairs.clone(), repairs);
                batch.runs.push(run);
                batch.reqs.push(req);
            }
            _ => {
                let leaf = first.leaf.clone();
                let (runs, reqs) = (vec![run], vec![req]);
                batches.push(Batch { leaf, runs, reqs, txgs, repairs, class });
            }
        }
    }
    batches
}

/// The smallest range that holds both.
pub(super) fn join(a: Range<u64>, b: Range<u64>) -> Range<u64> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

/// The write on the device. One that would touch the labels is refused.
pub(crate) fn request(leaf: &Vdev, offset: u64, data: Abd) -> WriteReq {
    let size = leaf.device().map_or(0, |d| d.size());
    let data_end = (size / LABEL_SIZE * LABEL_SIZE).saturating_sub(LABEL_END);
    let offset = on_device(offset);
    let end = offset.checked_add(data.len() as u64);
    let inside = end.is_some_and(|end| end <= data_end);
    let mut req = WriteReq::new(offset, data);
    if !inside {
        let why = format!("{} bytes at {offset:#x} are beyond the device's end", req.data.len());
        req.result = Some(Err(io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    req
}

impl LeafWork for Batch {
    fn leaf(&self) -> &Arc<Vdev> {
        &self.leaf
    }

    fn requests(&self) -> usize {
        self.reqs.len()
    }
}

impl Batch {
    fn mark(&self) {
        let mut written = self.leaf.written();
        written.mark_blocks(self.txgs.clone());
        written.mark_repairs(self.repairs.clone());
    }
}

impl Work for Batch {
    fn run(&mut self) {
        self.mark();
        let members = |run: &Range<usize>| run.len();
        let alone = |i: usize| self.runs.get(i).map_or(1, members) == 1;
        submit(&self.leaf, self.class, &mut self.reqs, alone);
        self.mark();
    }
}

/// Has `leaf`'s device perform the requests in `reqs` that have no result yet. Counts them at the leaf. `alone(i)`:
/// request `i` is not aggregated of several. Only then its failure counts as an error, since those are tried again.
pub(crate) fn submit(
    leaf: &Vdev,
    class: Priority,
    reqs: &mut [WriteReq],
    alone: impl Fn(usize) -> bool,
) {
    let Some(device) = leaf.device() else { return };
    if leaf.is_fenced() {
        // Its device is not at fault, and the pool knows that it is suspended.
        let refused = || Some(Err(io::Error::other("the pool is suspended for good")));
        return reqs.iter_mut().for_each(|req| req.result = refused());
    }
    let stats = &leaf.stats.writes;
    stats.begin(reqs.len());
    let _busy = leaf.stats.activity.begin();
    let started = Instant::now();
    leaf.write_to(&*device, IoKind::Write, reqs);
    let elapsed = started.elapsed();
    for (i, req) in reqs.iter().enumerate() {
        match &req.result {
            Some(Ok(())) => {
                if stats.completed(req.data.len(), elapsed) {
                    let (offset, size, took) = (req.offset, req.data.len() as u64, elapsed);
                    events::tell(leaf, &Happening::Slow { offset, size, write: true, took });
                }
                leaf.sizes.count(class, !alone(i), req.data.len());
            }
            failure => {
                stats.failed(alone(i));
                leaf.suspected();
                if let Some(Err(why)) = failure {
                    leaf.stats.write_failed(why);
                    if alone(i) {
                        let (offset, size) = (req.offset, req.data.len() as u64);
                        let operation = Operation::Write;
                        events::tell(leaf, &Happening::Failed { offset, size, operation, why });
                    }
                }
                tracing::debug!(?leaf, offset = req.offset, ?failure, "write failed");
            }
        }
    }
}
