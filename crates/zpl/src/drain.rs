//! What the unlinked drain of a file system has to do (`zfs_unlinked_drain`): files without names that it frees, objects that it counts.
//! [`write::unlinked`](crate::write) is the thread.

use cenote_dmu::live::Freeing;
use cenote_dmu::tunables::UNLINK_SUSPEND_PROGRESS;
use cenote_format::{invariant, less};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// Files without names to be freed, and the thread that does it.
#[derive(Default)]
pub(crate) struct UnlinkedDrain {
    /// A tunable cannot suspend it.
    unsuspended: AtomicBool,
    queue: Mutex<Queue>,
    /// Told when the thread has ended.
    pub(crate) idle: Condvar,
}

/// What waits.
#[derive(Default)]
pub(crate) struct Queue {
    /// Files, in order.
    pub(crate) waiting: VecDeque<u64>,
    /// Objects from here on must be counted, and then the object set gets these flags.
    pub(crate) counting: Option<Counting>,
    /// There is a thread.
    pub(crate) running: bool,
    /// The thread must not free any more.
    pub(crate) stopped: bool,
    /// A change that finds no space waits for what is freed: from the moment that a file waits, before there is a thread,
    /// until none does or the tunable suspends the drain.
    pub(crate) freeing: Option<Freeing>,
}

/// What the thread does next.
pub(crate) enum Work {
    /// It frees some of a file.
    Free(u64),
    /// It has some objects counted.
    Count(Counting),
}

impl UnlinkedDrain {
    /// What waits.
    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// What to do next; `None`: the thread has to end. `begin` tells that files are being freed from now on.
    pub(crate) fn next(&self, begin: impl FnOnce() -> Option<Freeing>) -> Option<Work> {
        let mut queue = self.queue();
        let first = queue.waiting.front().copied().filter(|_| !self.is_suspended());
        let free = first.map(Work::Free);
        let next = free.or(queue.counting.map(Work::Count)).filter(|_| !queue.stopped);
        let (running, file) = (queue.running, queue.waiting.front());
        invariant!(
            running || next.is_none(),
            "no thread frees files, and one goes on with object {file:?}"
        );
        match next {
            // The tunable may have suspended it until now.
            Some(Work::Free(_)) if queue.freeing.is_none() => queue.freeing = begin(),
            Some(Work::Free(_)) => {}
            _ => queue.freeing = None,
        }
        if next.is_none() {
            queue.running = false;
            self.idle.notify_all();
        }
        next
    }

    /// A file waits no more: it is freed, or cannot be.
    pub(crate) fn gone(&self, ino: u64) {
        let mut queue = self.queue();
        let before = queue.waiting.len();
        queue.waiting.retain(|other| *other != ino);
        let times = less!(before, queue.waiting.len(), "files that wait to be freed");
        invariant!(times == 1, "object {ino} waited {times} times to be freed");
    }

    /// Whether files without names are kept for now (`zfs_unlink_suspend_progress`). A later mount frees them.
    pub(crate) fn is_suspended(&self) -> bool {
        UNLINK_SUSPEND_PROGRESS.get() != 0 && !self.unsuspended.load(Ordering::Relaxed)
    }

    /// Has files freed whatever the tunable says: a replay needs their numbers.
    pub(crate) fn never_suspend(&self) {
        self.unsuspended.store(true, Ordering::Relaxed);
    }

    /// Nothing is freed in the background any more.
    pub(crate) fn give_up(&self) {
        let mut queue = self.queue();
        (queue.running, queue.stopped, queue.freeing) = (false, true, None);
        self.idle.notify_all();
    }
}

/// How far objects were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counting {
    /// The number of the first object that was not looked at.
    pub(crate) from: u64,
    /// Flags that the object set gets in the end.
    pub(crate) flags: u64,
}
