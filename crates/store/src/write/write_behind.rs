//! Write-behind: batches that a thread writes while their caller goes on.
//!
//! # Idea
//!
//! What a sync needs next of a block is its pointer, which is known as soon as it is packed and has a
//! place. So batches that are worth it are handed to a thread of the pool's own, which writes them and
//! puts them into the caches, while the caller goes on with the blocks that lead to these. It is not one
//! of the threads that pack blocks: all pools share those, and none of them may wait for a device.
//!
//! # Invariants
//!
//! - Batches are written one after the other in the order in which they came: of a block that is
//!   written in place several times the last contents stay.
//! - A small batch that has nothing to wait for is written by the thread that brings it.
//! - Not more than [`BATCH`] bytes wait, unless it is one batch: a thread that brings more waits.
//! - A block that is in flight is in no cache, and may not be on the devices either: a read of one that
//!   may be among them waits until there are none ([`WriteBehind::wait_for`]).
//! - What fails first is told to all who ask from then on ([`WriteBehind::drain`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_format::invariant::caught;
use cenote_format::less;
use cenote_vdev::{VdevError, waiting};
use crossbeam_channel::{Sender, unbounded};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{BATCH, WriteError};

/// Bytes of a batch that is worth another thread.
const SMALL: usize = 128 << 10;

/// Writes a batch.
type Job = Box<dyn FnOnce() -> Result<(), WriteError> + Send>;

#[derive(Default)]
struct State {
    /// Batches that wait, and their bytes.
    jobs: VecDeque<(Job, usize)>,
    bytes: usize,
    /// A thread is at work.
    running: bool,
    failed: Option<WriteError>,
}

/// Batches in flight; see the module's documentation.
#[derive(Default)]
pub(crate) struct WriteBehind {
    state: Mutex<State>,
    /// A batch was taken up, or all are done.
    changed: Condvar,
    /// The oldest txg that blocks in flight may be of; 0 if there are none.
    txg: AtomicU64,
    /// Where the thread gets its work; it starts with the first batch, and ends when this is dropped.
    /// `None`: there is no thread to be had.
    thread: OnceLock<Option<Sender<Arc<WriteBehind>>>>,
}

/// Starts the thread that writes the batches of one pool.
fn start_thread() -> Option<Sender<Arc<WriteBehind>>> {
    let (sender, work) = unbounded::<Arc<WriteBehind>>();
    let run = move || work.into_iter().for_each(|batches| batches.run());
    let started = std::thread::Builder::new().name("write-behind".into()).spawn(run);
    started.inspect_err(|e| tracing::warn!("no thread to write in the background: {e}")).ok()?;
    Some(sender)
}

impl WriteBehind {
    /// Takes over a batch of `bytes` bytes of `txg`.
    pub(super) fn push(self: &Arc<Self>, txg: u64, bytes: usize, job: Job) {
        let mut state = self.state.lock();
        while !state.jobs.is_empty() && state.bytes.saturating_add(bytes) > BATCH {
            self.changed.wait(&mut state);
        }
        if !state.running {
            self.txg.store(txg, Ordering::Release);
        }
        state.jobs.push_back((job, bytes));
        state.bytes = state.bytes.saturating_add(bytes);
        if !std::mem::replace(&mut state.running, true) {
            let this = self.clone();
            drop(state);
            // Waking a thread, and waiting for it, would take as long.
            match bytes < SMALL {
                true => this.run(),
                false => this.hand_over(),
            }
        }
    }

    /// Has the thread write what waits.
    fn hand_over(self: Arc<Self>) {
        let this = self.clone();
        match self.thread.get_or_init(start_thread) {
            None => this.run(),
            Some(thread) => {
                if let Err(refused) = thread.send(this) {
                    refused.into_inner().run();
                }
            }
        }
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while let Some((job, bytes)) = state.jobs.pop_front() {
            let panicked = |why: String| Err(VdevError::Broken(why).into());
            let waiting = state.bytes;
            let left = caught(|| less!(waiting, bytes, "bytes that wait to be written"));
            let done = match left {
                Ok(left) => {
                    state.bytes = left;
                    self.changed.notify_all();
                    let unlocked = || caught(job).unwrap_or_else(panicked);
                    MutexGuard::unlocked(&mut state, unlocked)
                }
                // Others still wait for this thread, and are told.
                Err(why) => panicked(why),
            };
            state.failed = state.failed.take().or(done.err());
        }
        state.running = false;
        self.txg.store(0, Ordering::Release);
        self.changed.notify_all();
    }

    fn wait(&self) -> MutexGuard<'_, State> {
        waiting::begins();
        let mut state = self.state.lock();
        while state.running {
            self.changed.wait(&mut state);
        }
        state
    }

    /// Whether a block that was born in txg `birth` may be in flight.
    pub(crate) fn may_hold(&self, birth: u64) -> bool {
        let txg = self.txg.load(Ordering::Acquire);
        txg != 0 && birth >= txg
    }

    /// Waits until nothing is in flight, if a block that was born in txg `birth` may be; whether it
    /// waited. Not for the threads that pack blocks, which never wait for a device.
    pub(crate) fn wait_for(&self, birth: u64) -> bool {
        let may_be = self.may_hold(birth);
        if may_be {
            drop(self.wait());
        }
        may_be
    }

    /// Waits until nothing is in flight.
    ///
    /// Errors: the first that there was.
    pub(super) fn drain(&self) -> Result<(), WriteError> {
        self.wait().failed.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn batches_are_written_in_order_and_can_be_waited_for() {
        let batches = Arc::new(WriteBehind::default());
        let (go, told) = channel::<()>();
        let (done, order) = channel();
        batches.push(
            7,
            BATCH,
            Box::new(move || {
                told.recv().unwrap();
                Ok(())
            }),
        );
        for i in 0..3 {
            let done = done.clone();
            batches.push(7, 1, Box::new(move || done.send(i).map_or(Ok(()), |()| Ok(()))));
        }
        assert!(batches.may_hold(7) && batches.may_hold(8) && !batches.may_hold(6));
        assert!(!batches.wait_for(6));
        go.send(()).unwrap();
        batches.wait_for(7);
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
        assert!(batches.drain().is_ok() && !batches.may_hold(7));
    }

    #[test]
    fn a_failure_stays() {
        let batches = Arc::new(WriteBehind::default());
        let why = || VdevError::Unsupported("no".into()).into();
        batches.push(7, 1, Box::new(move || Err(why())));
        batches.push(7, 1, Box::new(|| Ok(())));
        assert!(batches.drain().is_err() && batches.drain().is_err());
        let batches = Arc::new(WriteBehind::default());
        batches.push(8, 1, Box::new(|| panic!("for the test")));
        assert!(batches.drain().is_err());
    }
}
