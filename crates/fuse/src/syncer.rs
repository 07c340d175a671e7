//! Waiting until changes are on disk (`zfs_fsync`), without keeping the threads that answer requests.
//!
//! A request that has to wait (`fsync`, any change under `sync=always`) leaves its answer in a queue.
//! One thread takes all that are queued, calls the file system's [`SyncHook`] once for all of them,
//! and lets them go: whatever came before the call is covered by it. So any number of waiting
//! programs cost one wait, and reads go on meanwhile.

use cenote_dmu::write::WriteError;
use cenote_format::invariant::caught;
use cenote_zpl::Error;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

/// Waits until the changes of a file system so far are on disk: changes of these objects with all names, or, with
/// `None`, all.
pub type SyncHook = Arc<dyn Fn(Option<&[u64]>) -> Result<(), Error> + Send + Sync>;

/// The `sync` property.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SyncPolicy {
    /// Programs say what has to be on disk.
    #[default]
    Standard,
    /// Every change has to be on disk before it is answered.
    Always,
    /// Nothing has to.
    Disabled,
}

/// How long the thread waits for something to do before it ends.
const REST: Duration = Duration::from_secs(10);

/// What to do when changes are on disk, or could not be written.
type Answer = Box<dyn FnOnce(&Result<(), Error>) + Send>;

/// A request that waits.
struct Waiter {
    hook: SyncHook,
    /// The object that it waits for; `None`: all.
    object: Option<u64>,
    answer: Answer,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiter>,
    running: bool,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// The queue and its thread, which is started when it is needed.
#[derive(Default)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
}

impl Syncer {
    /// Calls `answer`, from another thread, once everything that changed before is on disk; with `object`,
    /// everything of that object, and all names.
    pub(crate) fn wait(
        &self,
        hook: &SyncHook,
        object: Option<u64>,
        answer: impl FnOnce(&Result<(), Error>) + Send + 'static,
    ) {
        let mut queue = self.shared.lock();
        if !queue.running {
            let shared = self.shared.clone();
            let run = move || shared.run();
            match std::thread::Builder::new().name("fuse-sync".into()).spawn(run) {
                Ok(_) => queue.running = true,
                Err(e) => {
                    drop(queue);
                    tracing::warn!("no thread to wait for syncs: {e}");
                    return answer(&hook(object.as_ref().map(std::slice::from_ref)));
                }
            }
        }
        queue.waiting.push(Waiter { hook: hook.clone(), object, answer: Box::new(answer) });
        self.shared.more.notify_one();
    }
}

impl Drop for Syncer {
    /// The thread ends when all have their answers.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.more.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    fn run(&self) {
        while let Some(mut batch) = self.next() {
            // The file systems of one mount wait one after another.
            while let Some(Waiter { hook, .. }) = batch.first() {
                let hook = hook.clone();
                let (same, others): (Vec<_>, Vec<_>) =
                    batch.into_iter().partition(|waiter| Arc::ptr_eq(&waiter.hook, &hook));
                let objects: Option<Vec<u64>> = same.iter().map(|waiter| waiter.object).collect();
                // A thread outlives a panic: others wait for it.
                let result = caught(|| hook(objects.as_deref())).unwrap_or_else(|why| {
                    tracing::error!("thread fuse-sync: {why}");
                    Err(WriteError::Suspended(why).into())
                });
                same.into_iter().for_each(|waiter| (waiter.answer)(&result));
                batch = others;
            }
        }
    }

    /// All that wait; `None` when there will be no more, or nothing waited for [`REST`].
    fn next(&self) -> Option<Vec<Waiter>> {
        let mut queue = self.lock();
        while queue.waiting.is_empty() {
            if queue.closed {
                return None;
            }
            let waited = self.more.wait_for(&mut queue, REST);
            if waited.timed_out() && queue.waiting.is_empty() {
                queue.running = false;
                return None;
            }
        }
        Some(std::mem::take(&mut queue.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    #[test]
    fn those_who_wait_together_cost_one_sync() {
        let syncs = Arc::new(AtomicUsize::new(0));
        let counted = syncs.clone();
        let slow: SyncHook = Arc::new(move |objects| {
            let objects = objects.unwrap();
            assert!(objects.iter().all(|object| *object < 20));
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            Ok(())
        });
        let failing: SyncHook = Arc::new(|_| Err(Error::Invalid("no".into())));
        let syncer = Syncer::default();
        let (tx, rx) = mpsc::channel();
        for i in 0..21 {
            let tx = tx.clone();
            let hook = if i == 20 { &failing } else { &slow };
            syncer.wait(hook, Some(i), move |r| tx.send((i, r.is_ok())).unwrap());
        }
        drop((tx, syncer));
        let mut answers: Vec<_> = rx.iter().collect();
        answers.sort_unstable();
        let want: Vec<(u64, bool)> = (0..21).map(|i| (i, i != 20)).collect();
        assert_eq!(answers, want);
        assert!(syncs.load(Ordering::SeqCst) <= 2);
    }
}
