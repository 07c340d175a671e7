//! Submitting reads to leaves: aggregation (`zio_vdev_io_start`, `vdev_queue_aggregate`), one batch per device, devices
//! in parallel.
//!
//! The reads of all blocks of a batch come together here. They are sorted by leaf and offset;
//! small reads next to each other become one (their bytes are then handed out as slices of one
//! buffer), large ones stay alone so that each gets a buffer of its own and nothing is copied.
//! Each leaf's reads come in a few batches, which pass the leaf's queue ([`crate::queue`]) and run in
//! parallel to requests of other leaves; the caller runs one of them itself, so that a single read costs no
//! hand-over.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use cenote_format::abd::Abd;
use cenote_format::{LABEL_START, invariant, less};

use crate::device::ReadReq;
use crate::events::{self, Happening, Operation};
use crate::injection::IoKind;
use crate::patience::{self, GaveUp, Patience};
use crate::queue::{self, LeafWork, Priority};
use crate::raidz::reflow::SCRATCH;
use crate::threads::{IoPool, Work};
use crate::tunables;
use crate::vdev::{Kind, Vdev};

/// Reads of at least this many bytes are not aggregated.
const LARGE: usize = 64 << 10;

/// What reads are submitted with.
#[derive(Clone, Copy)]
pub(crate) struct Submit<'a> {
    pub pool: &'a IoPool,
    pub priority: Priority,
    /// How long devices are waited for; `None`: until they answer.
    pub patience: Option<Patience<'a>>,
    /// What fails counts as no error of its device: it was counted before.
    pub quiet: bool,
}

impl<'a> Submit<'a> {
    /// For the calling thread.
    pub(crate) fn new(pool: &'a IoPool, priority: Priority) -> Submit<'a> {
        let patience = patience::of_thread().map(Patience::Most);
        Submit { pool, priority, patience, quiet: false }
    }

    /// The same, with all the time that devices take.
    pub(crate) fn patient(self) -> Submit<'a> {
        Submit { patience: None, ..self }
    }
}

/// One read of a leaf.
pub(crate) struct LeafRead {
    pub leaf: Arc<Vdev>,
    /// Byte offset in the leaf's allocatable space.
    pub offset: u64,
    pub len: usize,
}

/// The bytes of a read.
pub(crate) struct Piece {
    pub bytes: Abd,
    /// They are part of a larger buffer, which they keep from being freed.
    shared: bool,
}

impl Piece {
    /// The bytes in a buffer of their own.
    pub(crate) fn into_own(self) -> Abd {
        if self.shared { Abd::from_vec(self.bytes.bytes().into_owned()) } else { self.bytes }
    }
}

/// Performs `reads`; the results are in their order ([`GaveUp`]: the device took longer than it is waited for). Counts
/// operations, latencies and read errors at the leaves.
pub(crate) fn read_leaves(submit: Submit<'_>, reads: &[LeafRead]) -> Vec<io::Result<Piece>> {
    let mut order: Vec<usize> = (0..reads.len()).collect();
    order.sort_by_key(|i| (Arc::as_ptr(&reads[*i].leaf), on_device(reads[*i].offset)));
    let mut results: Vec<io::Result<Piece>> = reads.iter().map(|_| Err(unread(submit))).collect();
    let runs = aggregate(reads, &order);
    let covered: usize = runs.iter().map(|run| run.members.len()).sum();
    invariant!(covered == reads.len(), "{covered} of {} reads go to devices", reads.len());
    let failed = perform(submit, reads, &order, runs, &mut results);
    if !failed.is_empty() {
        // One bad sector shall not cost its neighbours: each is read for itself.
        let alone = |at: usize| {
            let read = &reads[order[at]];
            Run { members: at..at + 1, offset: on_device(read.offset), len: read.len as u64 }
        };
        let runs = failed.into_iter().flatten().map(alone).collect();
        perform(submit, reads, &order, runs, &mut results);
    }
    if results.iter().any(|read| read.as_ref().is_err_and(|e| !GaveUp::is(e))) {
        submit.pool.set_failure();
    }
    results
}

/// What a read comes to that did not come back.
fn unread(submit: Submit<'_>) -> io::Error {
    match submit.patience {
        Some(_) => GaveUp::error(),
        None => io::Error::other("not read"),
    }
}

/// Performs `runs`. Returns the members of those with several that failed, in ascending order.
fn perform(
    submit: Submit<'_>,
    reads: &[LeafRead],
    order: &[usize],
    runs: Vec<Run>,
    results: &mut [io::Result<Piece>],
) -> Vec<Range<usize>> {
    let mut failed = Vec::new();
    let asked = runs.len();
    let mut batches = split(reads, order, runs, submit.priority);
    let sent: usize = batches.iter().map(|batch| batch.reqs.len()).sum();
    invariant!(asked == sent, "{sent} of {asked} reads of a batch go to devices");
    batches.iter_mut().for_each(|batch| batch.quiet = submit.quiet);
    for done in queue::run_for(submit.pool, submit.priority, batches, submit.patience) {
        for (run, req) in done.runs.into_iter().zip(done.reqs) {
            match req.take() {
                Err(_) if run.members.len() > 1 => failed.push(run.members),
                outcome => hand_out(reads, &order[run.members.clone()], &run, outcome, results),
            }
        }
    }
    failed.sort_by_key(|members| members.start);
    failed
}

/// A physical read: the requests that it answers are `order[members]`.
struct Run {
    members: Range<usize>,
    /// Byte of the device: those of the boot area are before the others there, and end where these begin.
    offset: u64,
    len: u64,
}

impl Run {
    /// Where it ends. One past all numbers ends where these do, and fails: there is no such device.
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// Joins neighbouring small reads.
fn aggregate(reads: &[LeafRead], order: &[usize]) -> Vec<Run> {
    let (most, widest) = (tunables::AGGREGATION_LIMIT.get(), tunables::READ_GAP_LIMIT.get());
    let mut runs: Vec<Run> = Vec::new();
    for (at, i) in order.iter().enumerate() {
        let (read, len) = (&reads[*i], reads[*i].len as u64);
        let offset = on_device(read.offset);
        if let Some(run) = runs.last_mut()
            && let Some(previous) = order.get(run.members.start)
            && Arc::ptr_eq(&reads[*previous].leaf, &read.leaf)
            && read.leaf.vdev_kind() != Kind::Object
            && reads[*previous].len < LARGE
            && read.len < LARGE
        {
            let own = Run { members: at..at + 1, offset, len };
            let end = own.end().max(run.end());
            // None, where they overlap.
            let gap = offset.saturating_sub(run.end());
            if gap <= widest && end - run.offset <= most {
                run.len = end - run.offset;
                run.members.end = at + 1;
                continue;
            }
        }
        runs.push(Run { members: at..at + 1, offset, len });
    }
    runs
}

/// Reads for one device that are submitted together.
struct Batch {
    leaf: Arc<Vdev>,
    runs: Vec<Run>,
    reqs: Vec<ReadReq>,
    /// How many of them the device has at once, as the queue counts.
    active: usize,
    class: Priority,
    /// See [`Submit::quiet`].
    quiet: bool,
}

/// Makes one batch for each leaf, or several where its device gains from that, or the class has a smaller
/// share of it.
fn split(reads: &[LeafRead], order: &[usize], runs: Vec<Run>, priority: Priority) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    let mut iter = runs.into_iter().peekable();
    while let Some(first) = iter.next() {
        let leaf = reads[order[first.members.start]].leaf.clone();
        let mut mine = vec![first];
        while let Some(run) =
            iter.next_if(|r| Arc::ptr_eq(&reads[order[r.members.start]].leaf, &leaf))
        {
            mine.push(run);
        }
        let bytes: u64 = mine.iter().map(|r| r.len).sum();
        let (device, requests) = (leaf.device(), mine.len());
        let depth = device.as_ref().map_or(1, |d| d.depth(requests, bytes));
        let pieces = match depth {
            // One read after the other: in parallel by several threads.
            ..=1 => in_parts(mine, device.map_or(1, |d| d.concurrency(requests, bytes))),
            _ => in_shares(mine, depth, priority.most()),
        };
        for (runs, active) in pieces {
            let reqs = runs.iter().map(|r| request(&leaf, r)).collect();
            let (leaf, class, quiet) = (leaf.clone(), priority, false);
            batches.push(Batch { leaf, runs, reqs, active, class, quiet });
        }
    }
    batches
}

/// Cuts up what is read one after the other; each piece counts as one request.
fn in_parts(mut runs: Vec<Run>, parts: usize) -> Vec<(Vec<Run>, usize)> {
    let each = runs.len().div_ceil(parts.clamp(1, runs.len().max(1)));
    let mut pieces = Vec::new();
    while !runs.is_empty() {
        let rest = runs.split_off(each.min(runs.len()));
        pieces.push((std::mem::replace(&mut runs, rest), 1));
    }
    pieces
}

/// Cuts up what a device has at once, `depth` reads at most, if that is more than `most` requests: then
/// into pieces of half as many, so that the device is not idle between two. Large reads that follow one
/// another count as the one that OpenZFS would join them to.
fn in_shares(runs: Vec<Run>, depth: usize, most: usize) -> Vec<(Vec<Run>, usize)> {
    let (limit, widest) = (tunables::AGGREGATION_LIMIT.get(), tunables::READ_GAP_LIMIT.get());
    // The requests that it counts as: each a range of `runs`.
    let mut requests: Vec<Vec<Run>> = Vec::new();
    for run in runs {
        match requests.last_mut() {
            Some(joined)
                if let (Some(first), Some(last)) = (joined.first(), joined.last())
                    && run.offset.saturating_sub(last.end()) <= widest
                    && less!(run.end(), first.offset, "bytes of reads in order") <= limit =>
            {
                joined.push(run);
            }
            _ => requests.push(vec![run]),
        }
    }
    let each = if requests.len() <= most { most } else { (most / 2).max(1) };
    let mut pieces: Vec<(Vec<Run>, usize)> = Vec::new();
    for request in requests {
        match pieces.last_mut() {
            Some((runs, count)) if *count < each => {
                runs.extend(request);
                *count += 1;
            }
            _ => pieces.push((request, 1)),
        }
    }
    pieces.iter_mut().for_each(|(_, count)| *count = (*count).min(depth));
    pieces
}

/// The byte of the device that is byte `offset` of the leaf: of its allocatable space, or of the boot area before it
/// ([`SCRATCH`]).
pub(crate) fn on_device(offset: u64) -> u64 {
    if offset >= SCRATCH {
        offset.wrapping_add(LABEL_START)
    } else {
        offset.saturating_add(LABEL_START)
    }
}

/// The read of a run on the device. Beyond what a device can hold there is nothing to read:
/// an offset that overflows becomes one that is out of range.
fn request(leaf: &Vdev, run: &Run) -> ReadReq {
    let offset = run.offset;
    let size = leaf.device().map_or(0, |d| d.size());
    let inside = offset.checked_add(run.len).is_some_and(|end| end <= size);
    let mut req = ReadReq::new(offset, run.len as usize);
    if !inside {
        let why = format!("{} bytes at {offset:#x} are beyond the device's end", run.len);
        req.result = Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, why)));
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

    fn active(&self) -> usize {
        self.active
    }
}

impl Work for Batch {
    fn run(&mut self) {
        let Some(device) = self.leaf.device() else { return };
        self.leaf.stats.reads.begin(self.reqs.len());
        let _busy = self.leaf.stats.activity.begin();
        let started = Instant::now();
        let class = self.class;
        class.for_reads(|| self.leaf.read_from(&*device, IoKind::Read, &mut self.reqs));
        let elapsed = started.elapsed();
        for (req, run) in self.reqs.iter_mut().zip(&self.runs) {
            match &req.result {
                Some(Ok(data)) if data.len() == req.len => {
                    if self.leaf.stats.reads.completed(req.len, elapsed) {
                        let (offset, size, took) = (req.offset, req.len as u64, elapsed);
                        let what = Happening::Slow { offset, size, write: false, took };
                        events::tell(&self.leaf, &what);
                    }
                    self.leaf.sizes.count(self.class, run.members.len() > 1, req.len);
                    continue;
                }
                Some(Ok(_)) => req.result = Some(Err(io::ErrorKind::UnexpectedEof.into())),
                _ => {}
            }
            self.leaf.suspected();
            // The members of an aggregated read are going to be read again.
            let counts = run.members.len() == 1 && !self.quiet;
            self.leaf.stats.reads.failed(counts);
            if let (true, Some(Err(why))) = (counts, &req.result) {
                let (offset, size) = (req.offset, req.len as u64);
                let what = Happening::Failed { offset, size, operation: Operation::Read, why };
                events::tell(&self.leaf, &what);
            }
        }
    }
}

/// Gives each member of a run its bytes.
fn hand_out(
    reads: &[LeafRead],
    members: &[usize],
    run: &Run,
    outcome: io::Result<Abd>,
    results: &mut [io::Result<Piece>],
) {
    for i in members {
        let read = &reads[*i];
        let offset = on_device(read.offset);
        let (start, end) = (run.offset, run.end());
        invariant!(
            start <= offset && offset.saturating_add(read.len as u64) <= end,
            "{:?}: {} bytes at {:#x} are of a read of {start:#x}-{end:#x}",
            read.leaf,
            read.len,
            offset
        );
        let at = (offset - run.offset) as usize;
        results[*i] = match &outcome {
            Ok(all) if members.len() == 1 => Ok(Piece { bytes: all.clone(), shared: false }),
            Ok(all) => match all.slice(at, read.len) {
                Some(bytes) => Ok(Piece { bytes, shared: true }),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            },
            Err(e) => Err(io::Error::new(e.kind(), e.to_string())),
        };
    }
}
