//! Looking at the blocks that a round found, in the order of devices (`scan_io_queues_run`).
//!
//! Blocks are sorted by top-level vdev and offset. Workers take the next of all vdevs together, so that all devices
//! have something to do, and neighbours become large reads.
//!
//! Where there are fewer processors than threads that want one, workers give way ([`NICE`]): a program's read in front of a scrub does not
//! wait until a worker has used up its time slice.

use super::find::Progress;
use crate::Shared;
use crate::tunables::SCAN_VDEV_LIMIT;
use cenote_format::invariant;
use cenote_store::alloc::ReadEpoch;
use cenote_store::notes::Places;
use cenote_store::{ScanBlock, ScanFunc, ScanKeys, Scanned};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Threads that read and check by turns: while one checks, the devices work for the other.
const WORKERS: usize = 2;

/// How much nicer than others workers are (nice(2)): enough to give way, and not so much that one which holds a lock has to wait for long
/// where all processors are busy.
const NICE: i32 = 5;

/// What is left to be looked at, by vdev.
struct Queues(Vec<std::vec::IntoIter<ScanBlock>>);

fn dva(block: &ScanBlock) -> (u32, u64, u64) {
    block.bp.dva(block.copy).map_or((0, 0, 0), |dva| (dva.vdev, dva.offset, dva.asize))
}

impl Queues {
    fn new(mut blocks: Vec<ScanBlock>) -> Queues {
        let all = blocks.len();
        blocks.sort_unstable_by_key(|block| {
            let (vdev, offset, _) = dva(block);
            (vdev, offset)
        });
        let mut queues = Vec::new();
        while let Some(last) = blocks.last() {
            let vdev = dva(last).0;
            let at = blocks.partition_point(|block| dva(block).0 < vdev);
            queues.push(blocks.split_off(at).into_iter());
        }
        let queues = Queues(queues);
        let queued = queues.left();
        invariant!(queued == all, "scan: {queued} of {all} blocks are in queues");
        queues
    }

    /// Blocks that are left to be looked at.
    fn left(&self) -> usize {
        self.0.iter().map(|queue| queue.len()).sum()
    }

    /// The next blocks of all vdevs, and their bytes.
    fn take(&mut self) -> (Vec<ScanBlock>, u64) {
        let (mut batch, mut bytes) = (Vec::new(), 0u64);
        for queue in &mut self.0 {
            let (mut mine, mut last) = (0u64, None);
            while mine < SCAN_VDEV_LIMIT.get()
                && let Some(block) = queue.next()
            {
                let (vdev, offset, asize) = dva(&block);
                invariant!(
                    last <= Some((vdev, offset)),
                    "scan: vdev {vdev} offset {offset:#x} comes after {last:?}"
                );
                last = Some((vdev, offset));
                mine += asize;
                batch.push(block);
            }
            bytes += mine;
        }
        (batch, bytes)
    }
}

/// What came of looking at blocks.
pub(super) enum Issued {
    /// All were looked at.
    All(Scanned),
    /// The epoch was let go, or it was to end: nothing that was seen since counts.
    LetGo,
    /// A device that is needed did not answer: nothing counts.
    Silent,
}

/// What is looked at, and how: for what; the blocks; the keys of their data sets; where wrong bytes were met on the way to them.
pub(super) type What<'a> = (ScanFunc, Vec<ScanBlock>, &'a ScanKeys, &'a Places);

/// Looks at blocks. If it is to be `patient`, a device that is needed and does not answer ends it.
pub(super) fn issue(
    shared: &Shared,
    (func, blocks, keys, met): What<'_>,
    reading: &ReadEpoch<'_>,
    (patient, ends): (bool, &(dyn Fn() -> bool + Sync)),
    progress: Progress<'_>,
) -> Issued {
    let queues = Mutex::new(Queues::new(blocks));
    let (total, gone) = (Mutex::new(Scanned::default()), AtomicBool::new(false));
    let silent = AtomicBool::new(false);
    let work = || {
        while !gone.load(SeqCst) && !ends() {
            let (batch, bytes) = queues.lock().take();
            if batch.is_empty() {
                return;
            }
            let (store, by, is_safe) = (&shared.disk.store, (keys, met), || reading.is_safe());
            let Some(done) = store.scan_many(func, &batch, by, &is_safe) else {
                return gone.store(true, SeqCst);
            };
            if patient && done.errors > 0 && shared.disk.tree().has_outage() {
                silent.store(true, SeqCst);
                return gone.store(true, SeqCst);
            }
            progress(&|pass| {
                pass.issued = pass.issued.saturating_add(bytes);
                for (ahead, more) in
                    pass.ahead[1..].iter_mut().zip([bytes, done.repaired, done.errors])
                {
                    *ahead = ahead.saturating_add(more);
                }
            });
            let mut total = total.lock();
            total.repaired += done.repaired;
            total.errors += done.errors;
            total.disputed.extend(done.disputed);
            total.left.extend(done.left);
            total.met.extend(done.met);
        }
    };
    let alarm = shared.disk.store.alarm();
    match shared.options.deterministic {
        true => work(),
        false => std::thread::scope(|scope| {
            let worker = || {
                // Of this thread alone. Without it reads take longer.
                let _ = rustix::process::setpriority_process(None, NICE);
                alarm.guard("scan-issue", work).is_none()
            };
            let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
            let failed = workers.into_iter().any(|worker| worker.join().unwrap_or(true));
            if failed {
                gone.store(true, SeqCst);
            }
        }),
    }
    // A pool that was held for a moment ends the workers, and goes on by now.
    let left = queues.into_inner().left();
    match silent.load(SeqCst) {
        _ if ends() => Issued::LetGo,
        true => Issued::Silent,
        false if left > 0 || gone.load(SeqCst) => Issued::LetGo,
        false => Issued::All(total.into_inner()),
    }
}
