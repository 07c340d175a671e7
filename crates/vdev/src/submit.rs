//! Submitting reads to leaves: aggregation, one batch per device, devices in parallel.
//!
//! The reads of all blocks of a batch come together here. They are sorted by leaf and offset;
//! small reads next to each other become one (their bytes are then handed out as slices of one
//! buffer), large ones stay alone so that each gets a buffer of its own and nothing is copied.
//! Each leaf's reads are submitted in a few batches, and those of all leaves run in parallel on
//! the threads of a [`IoPool`]; the caller runs one of them itself, so that a single read
//! costs no hand-over.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::Instant;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;

use crate::device::ReadReq;
use crate::tunables;
use crate::vdev::Vdev;

/// Reads of at least this many bytes are not aggregated.
const LARGE: usize = 64 << 10;
/// Threads of a pool.
const THREADS: usize = 8;

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

/// Performs `reads`; the results are in their order. Counts operations, latencies and read errors
/// at the leaves.
pub(crate) fn read_leaves(pool: &IoPool, reads: &[LeafRead]) -> Vec<io::Result<Piece>> {
    let mut order: Vec<usize> = (0..reads.len()).collect();
    order.sort_by_key(|i| (Arc::as_ptr(&reads[*i].leaf), reads[*i].offset));
    let mut results: Vec<io::Result<Piece>> =
        reads.iter().map(|_| Err(io::Error::other("not read"))).collect();
    let runs = aggregate(reads, &order);
    let failed = perform(pool, reads, &order, runs, &mut results);
    if !failed.is_empty() {
        // One bad sector shall not cost its neighbours: each is read for itself.
        let alone = |at: usize| {
            let read = &reads[order[at]];
            Run { members: at..at + 1, offset: read.offset, len: read.len as u64 }
        };
        let runs = failed.into_iter().flatten().map(alone).collect();
        perform(pool, reads, &order, runs, &mut results);
    }
    if results.iter().any(Result::is_err) {
        pool.set_failure();
    }
    results
}

/// Performs `runs`. Returns the members of those with several that failed, in ascending order.
fn perform(
    pool: &IoPool,
    reads: &[LeafRead],
    order: &[usize],
    runs: Vec<Run>,
    results: &mut [io::Result<Piece>],
) -> Vec<Range<usize>> {
    let mut failed = Vec::new();
    for done in pool.run(split(reads, order, runs)) {
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
    offset: u64,
    len: u64,
}

/// Joins neighbouring small reads.
fn aggregate(reads: &[LeafRead], order: &[usize]) -> Vec<Run> {
    let (most, widest) = (tunables::AGGREGATION_LIMIT.get(), tunables::READ_GAP_LIMIT.get());
    let mut runs: Vec<Run> = Vec::new();
    for (at, i) in order.iter().enumerate() {
        let (read, len) = (&reads[*i], reads[*i].len as u64);
        if let Some(run) = runs.last_mut()
            && let Some(previous) = order.get(run.members.start)
            && Arc::ptr_eq(&reads[*previous].leaf, &read.leaf)
            && reads[*previous].len < LARGE
            && read.len < LARGE
        {
            let run_end = run.offset.saturating_add(run.len);
            let end = read.offset.saturating_add(len).max(run_end);
            let gap = read.offset.saturating_sub(run_end);
            if gap <= widest && end - run.offset <= most {
                run.len = end - run.offset;
                run.members.end = at + 1;
                continue;
            }
        }
        runs.push(Run { members: at..at + 1, offset: read.offset, len });
    }
    runs
}

/// Reads for one device that are submitted together.
struct Batch {
    leaf: Arc<Vdev>,
    runs: Vec<Run>,
    reqs: Vec<ReadReq>,
}

/// Makes one batch for each leaf, or several where its device gains from that.
fn split(reads: &[LeafRead], order: &[usize], runs: Vec<Run>) -> Vec<Batch> {
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
        let pieces = leaf.device().map_or(1, |d| d.concurrency(mine.len(), bytes));
        let pieces = pieces.clamp(1, mine.len());
        let per_batch = mine.len().div_ceil(pieces);
        while !mine.is_empty() {
            let rest = mine.split_off(per_batch.min(mine.len()));
            let reqs = mine.iter().map(|r| request(&leaf, r)).collect();
            batches.push(Batch { leaf: leaf.clone(), runs: mine, reqs });
            mine = rest;
        }
    }
    batches
}

/// The read of a run on the device. Beyond what a device can hold there is nothing to read:
/// an offset that overflows becomes one that is out of range.
fn request(leaf: &Vdev, run: &Run) -> ReadReq {
    let offset = run.offset.saturating_add(LABEL_START);
    let size = leaf.device().map_or(0, |d| d.size());
    let inside = offset.checked_add(run.len).is_some_and(|end| end <= size);
    let mut req = ReadReq::new(offset, run.len as usize);
    if !inside {
        let why = format!("{} bytes at {offset:#x} are beyond the device's end", run.len);
        req.result = Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, why)));
    }
    req
}

impl Work for Batch {
    fn run(&mut self) {
        let Some(device) = self.leaf.device() else { return };
        self.leaf.stats.reads.begin(self.reqs.len());
        let started = Instant::now();
        if self.reqs.iter().all(|r| r.result.is_none()) {
            device.read_batch(&mut self.reqs);
        } else {
            // Some are refused beforehand: the device does not get to see those.
            for req in self.reqs.iter_mut().filter(|r| r.result.is_none()) {
                device.read_batch(std::slice::from_mut(req));
            }
        }
        let elapsed = started.elapsed();
        for (req, run) in self.reqs.iter_mut().zip(&self.runs) {
            match &req.result {
                Some(Ok(data)) if data.len() == req.len => {
                    self.leaf.stats.reads.completed(req.len, elapsed);
                    continue;
                }
                Some(Ok(_)) => req.result = Some(Err(io::ErrorKind::UnexpectedEof.into())),
                _ => {}
            }
            self.leaf.suspected();
            // The members of an aggregated read are going to be read again.
            self.leaf.stats.reads.failed(run.members.len() == 1);
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
        let at = (read.offset - run.offset) as usize;
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

type Job = Box<dyn FnOnce() + Send>;

/// Something to do on a thread of a pool.
pub(crate) trait Work: Send + 'static {
    /// Does it; the results are kept within.
    fn run(&mut self);
}

/// Threads that run batches of reads or writes. They start when they are first needed and end with the pool.
pub(crate) struct IoPool {
    jobs: OnceLock<Option<Mutex<Sender<Job>>>>,
    /// Whether requests failed since this was last asked.
    failed: AtomicBool,
}

impl IoPool {
    pub(crate) fn new() -> IoPool {
        IoPool { jobs: OnceLock::new(), failed: AtomicBool::new(false) }
    }

    /// A request failed.
    pub(crate) fn set_failure(&self) {
        self.failed.store(true, Relaxed);
    }

    /// Whether a request failed since this was last called.
    pub(crate) fn take_failure(&self) -> bool {
        self.failed.load(Relaxed) && self.failed.swap(false, Relaxed)
    }

    /// Runs all batches, one of them on the calling thread, and gives them back in any order.
    pub(crate) fn run<W: Work>(&self, mut batches: Vec<W>) -> Vec<W> {
        let Some(mut own) = batches.pop() else { return Vec::new() };
        let (done, finished) = channel();
        for mut batch in batches {
            let done = done.clone();
            self.submit(Box::new(move || {
                batch.run();
                // The receiver waits for all senders: it is still there.
                let _ = done.send(batch);
            }));
        }
        drop(done);
        own.run();
        std::iter::once(own).chain(finished).collect()
    }

    /// Hands a job to a thread, or runs it here if there are none.
    fn submit(&self, job: Job) {
        let Some(sender) = self.jobs.get_or_init(start_threads) else { return job() };
        let sent = sender.lock().unwrap_or_else(PoisonError::into_inner).send(job);
        if let Err(refused) = sent {
            (refused.0)();
        }
    }
}

/// `None` if no thread can be started.
fn start_threads() -> Option<Mutex<Sender<Job>>> {
    let (sender, receiver) = channel::<Job>();
    let receiver = Arc::new(Mutex::new(receiver));
    let mut started = 0;
    for i in 0..THREADS {
        let receiver = receiver.clone();
        let thread = Builder::new().name(format!("vdev-io-{i}")).spawn(move || work(&receiver));
        started += usize::from(thread.is_ok());
    }
    (started > 0).then(|| Mutex::new(sender))
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held only while a job is taken.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            // A thread outlives a panic: others wait for it.
            Ok(job) => drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job))),
            Err(_) => return,
        }
    }
}
