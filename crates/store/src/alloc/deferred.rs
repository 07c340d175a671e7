//! Deferred frees come back into circulation beside the next transaction group (`ms_defer`,
//! `metaslab_sync_done`).
//!
//! When a txg is on disk, all that was freed in another one, two before, may be allocated again. In a
//! pool that is overwritten at random these are as many segments as the txg had blocks, all over the
//! pool, and each has to be joined with its neighbours: three to six hundredths of what the whole sync
//! took. The space is not needed at once, so a thread of its own does it while the next txg goes on:
//!
//! ```text
//!   sync ───── sync_done(txg) ── waiters are told ────────── sync_done(txg + 1) ──>
//!                how much comes back is │ counted             ^ waits for the thread
//!                                       v                     │
//!   thread                 Work: each metaslab's frees begin to wait or come back; affinities are balanced
//! ```
//!
//! The thread begins when the sync drops what `sync_done` gave it ([`DeferredFrees`]): one that is woken
//! may run before the one that wakes it goes on, and no thread may wait for that.
//!
//! To accounts the space is free from `sync_done` on. An allocation that finds no room waits for the
//! thread and looks again ([`DeferThread::wait`]), so that no allocation is refused for what is on its way. One for a
//! log block does not wait: the writer of a log holds what the sync needs before the thread begins.
//!
//! Invariants: work of one txg at a time; what comes back is what was counted as free; work holds no part of the pool
//! but its metaslabs, so that a pool that is exported meanwhile lets go of its devices.

use std::sync::Arc;

use cenote_format::invariant;
use cenote_vdev::Alarm;
use crossbeam_channel::{Sender, bounded};
use parking_lot::{Condvar, Mutex};

use super::group::Group;
use crate::tunables;

/// The name of the thread.
const NAME: &str = "metaslab-defer";

/// What to do after a txg.
pub(super) struct Work {
    /// With the bytes that become allocatable in each.
    pub groups: Vec<(Arc<Group>, u64)>,
    /// The txg that is on disk.
    pub txg: u64,
    /// What was freed in this txg and before may be allocated again.
    pub due: Option<u64>,
    /// See [`Options::unload_after`](super::Options::unload_after).
    pub unload_after: Option<u64>,
}

impl Work {
    pub(super) fn run(&self) {
        for (group, due) in &self.groups {
            let mut back = 0;
            let best = group.best(tunables::PRELOAD_LIMIT.count());
            for metaslab in group.members() {
                let i = metaslab.id() as usize;
                let keep = best.contains(&i) || group.is_active(i);
                let done = metaslab.sync_done(self.txg, self.due, keep, self.unload_after);
                group.note(i, done.0);
                back += done.1;
            }
            // What was counted as free is what came back.
            let (vdev, txg) = (group.vdev(), self.txg);
            invariant!(back == *due, "vdev {vdev}: {back} bytes of {due} are free after {txg}");
            group.settle();
        }
    }
}

#[derive(Default)]
struct Shared {
    alarm: Arc<Alarm>,
    /// Whether there is work that is not done.
    busy: Mutex<bool>,
    done: Condvar,
}

/// Says that work is done, whatever becomes of it.
struct Done(Arc<Shared>);

impl Drop for Done {
    fn drop(&mut self) {
        *self.0.busy.lock() = false;
        self.0.done.notify_all();
    }
}

type Job = (Work, Done);

/// Deferred frees that come back after a txg. The work begins when this is dropped; until then it counts
/// as under way.
pub struct DeferredFrees(Option<(Sender<Job>, Job)>);

impl DeferredFrees {
    /// Nothing is on its way any more.
    pub(super) fn over() -> DeferredFrees {
        DeferredFrees(None)
    }
}

impl Drop for DeferredFrees {
    fn drop(&mut self) {
        let Some((queue, job)) = self.0.take() else { return };
        // Without a thread it is done here.
        if let Err(refused) = queue.try_send(job) {
            let (work, done) = refused.into_inner();
            done.0.alarm.guard(NAME, || work.run());
        }
    }
}

/// The thread; see the module's documentation. It ends when this is dropped.
pub(super) struct DeferThread {
    queue: Sender<Job>,
    shared: Arc<Shared>,
}

impl DeferThread {
    /// Starts it; it tells `alarm` of its panics.
    pub(super) fn start(alarm: &Arc<Alarm>) -> DeferThread {
        let (queue, all) = bounded::<Job>(1);
        let shared = Arc::new(Shared { alarm: alarm.clone(), ..Shared::default() });
        // Those that wait are told that it is done after the alarm was sounded.
        let run = move || {
            for (work, done) in all {
                done.0.alarm.guard(NAME, || work.run());
                drop(done);
            }
        };
        if let Err(e) = std::thread::Builder::new().name(NAME.into()).spawn(run) {
            tracing::warn!("no thread to give back space: {e}");
        }
        DeferThread { queue, shared }
    }

    /// Has `work` done, after what is under way.
    pub(super) fn give(&self, work: Work) -> DeferredFrees {
        self.wait();
        *self.shared.busy.lock() = true;
        DeferredFrees(Some((self.queue.clone(), (work, Done(self.shared.clone())))))
    }

    /// Whether something is under way.
    pub(super) fn is_busy(&self) -> bool {
        *self.shared.busy.lock()
    }

    /// Waits until nothing is under way.
    pub(super) fn wait(&self) {
        let mut busy = self.shared.busy.lock();
        while *busy {
            self.shared.done.wait(&mut busy);
        }
    }
}
