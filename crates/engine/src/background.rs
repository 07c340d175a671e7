//! A thread that works in the background while there is something to do (`zthr_t`).
//!
//! There is at most one such thread. It is woken when there may be something to do, and ends when it finds nothing. A call that wakes it
//! while it runs has it look once more before it ends, so that no call is lost. Where all work is done in the calling threads, the thread
//! that makes the call does the work itself.
//!
//! Invariants: `again` is set only while a thread works, and a thread gives its place up once.

use super::Shared;
use super::txg::TxState;
use cenote_dmu::write::WriteError;
use cenote_format::invariant;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// Whether the thread runs, and is to look again before it ends.
#[derive(Default)]
struct Running {
    now: bool,
    again: bool,
    thread: Option<JoinHandle<()>>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Background {
    running: Mutex<Running>,
    stopped: AtomicBool,
}

impl Background {
    /// Has `work` done by a thread of this name, unless one does it. Without a thread it is left, with a warning.
    pub fn wake(&self, shared: &Arc<Shared>, name: &'static str, work: fn(&Arc<Shared>)) {
        let mut running = self.running.lock();
        if self.is_stopped() {
            return;
        }
        if running.now {
            running.again = true;
            return;
        }
        let again = running.again;
        invariant!(!again, "thread {name} is to look again, and there is none");
        running.now = true;
        if shared.options.deterministic {
            drop(running);
            return work(shared);
        }
        let theirs = shared.clone();
        let guarded = move || {
            theirs.disk.store.alarm().guard(name, || work(&theirs));
        };
        match std::thread::Builder::new().name(name.into()).spawn(guarded) {
            Ok(thread) => running.thread = Some(thread),
            Err(e) => {
                running.now = false;
                tracing::warn!("no thread '{name}': {e}");
            }
        }
    }

    /// Whether the thread works.
    pub fn is_working(&self) -> bool {
        self.running.lock().now
    }

    /// The thread has found nothing to do: whether it ends, as it was not woken meanwhile.
    pub fn is_over(&self) -> bool {
        let mut running = self.running.lock();
        let has_place = running.now;
        invariant!(has_place, "a thread ends that has given its place up");
        running.now = std::mem::take(&mut running.again);
        !running.now
    }

    /// The thread ends, whether it was woken meanwhile or not.
    pub fn ends(&self) {
        let mut running = self.running.lock();
        let has_place = running.now;
        invariant!(has_place, "a thread ends that has given its place up");
        (running.now, running.again) = (false, false);
    }

    /// Whether the thread was woken since it looked.
    pub fn is_called(&self) -> bool {
        self.running.lock().again
    }

    /// The same; the call counts as heard.
    pub fn take_call(&self) -> bool {
        std::mem::take(&mut self.running.lock().again)
    }

    /// Whether the thread is to end, and none may begin.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    /// Threads may begin again, once they are woken.
    pub fn allow(&self) {
        self.stopped.store(false, SeqCst);
    }

    /// As [`Background::stop`], of a thread that may wait for a transaction group.
    ///
    /// # Errors
    /// The pool is suspended: the thread has not ended.
    pub fn try_stop(&self, tx: &TxState) -> Result<(), WriteError> {
        self.stopped.store(true, SeqCst);
        let Some(thread) = self.running.lock().thread.take() else { return Ok(()) };
        join_unless_held(thread, tx).map_err(|(thread, e)| {
            self.running.lock().thread = Some(thread);
            e
        })
    }

    /// Ends the thread, and lets no other begin.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        let thread = self.running.lock().thread.take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Longest time between two looks at a thread that is to end.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until a thread has ended that may wait for a transaction group. It must not be the calling one.
///
/// # Errors
/// The pool is suspended; with the thread, which has not ended.
pub(crate) fn join_unless_held(
    thread: JoinHandle<()>,
    tx: &TxState,
) -> Result<(), (JoinHandle<()>, WriteError)> {
    let mut pause = Duration::from_micros(50);
    while !thread.is_finished() {
        if let Some(why) = tx.held() {
            return Err((thread, WriteError::Suspended(why)));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK);
    }
    // What a panic said was told by the thread.
    let _ = thread.join();
    Ok(())
}
