//! Read-ahead in the background (`dbuf_prefetch`, `arc_read` with `ARC_FLAG_PREFETCH`): a few threads that read blocks
//! into the ARC.
//!
//! Batches that do not fit the queue are refused: read-ahead is a hint, and a queue that grows
//! would only serve blocks that the reader has passed already. The threads hold a weak reference,
//! so a store that is dropped ends them.
//!
//! A batch of what is far away may have 32 MiB, which take long on a slow line, and a reader of one of its blocks waits until
//! the thread that reads it is done. So threads take such a batch in parts of [`PART`] bytes, about an object each, in order, and several
//! threads read the parts of one batch at once. What no thread has taken yet is on its way for no one: its reader reads it itself.
//!
//! Readers of what is far away ask for so much that a few of them could push out of the ARC what others have asked for. Each knows by its
//! [`AheadShare`] what the others wait for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use cenote_format::blkptr::BlockPointer;
use parking_lot::{Condvar, Mutex};

use crate::arc::Access;
use crate::error::Bookmark;
use crate::pipeline::Store;

/// Batches that may wait.
const QUEUE: usize = 64;
/// Threads that read from devices.
const THREADS: usize = 2;
/// Threads that read from a store far away: as many as the queue of its device lets read ahead at once, so that no thread that has
/// taken a part waits there.
const FAR_THREADS: usize = 24;
/// Bytes that a thread takes of a batch of what is far away: one block at least, and no more blocks once it has as much.
const PART: u64 = 4 << 20;

/// Blocks to be read, and where they are kept track of.
type Request = (BlockPointer, Bookmark);

/// Blocks that were asked for together, of which no thread has taken these yet.
struct Batch {
    store: Weak<Store>,
    left: VecDeque<Request>,
    access: Access,
}

impl Batch {
    /// Takes the first blocks.
    fn take(&mut self, most: u64) -> Vec<Request> {
        let mut bytes = 0;
        let full = |(bp, _): &Request| {
            bytes += bp.psize();
            bytes >= most
        };
        let count = self.left.iter().position(full).map_or(self.left.len(), |last| last + 1);
        self.left.drain(..count).collect()
    }
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Shared {
    /// Waits for the next part to be read; `None`: there will be no more.
    fn next(&self, most: u64) -> Option<(Weak<Store>, Vec<Request>, Access)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(batch) = queue.batches.front_mut() {
                let part = (batch.store.clone(), batch.take(most), batch.access);
                if batch.left.is_empty() {
                    queue.batches.pop_front();
                }
                if !queue.batches.is_empty() {
                    self.more.notify_one();
                }
                return Some(part);
            }
            self.more.wait(&mut queue);
        }
    }
}

pub(crate) struct Prefetcher {
    shared: Arc<Shared>,
}

impl Prefetcher {
    /// `far`: what is read comes from an object store.
    pub(crate) fn start(far: bool) -> Prefetcher {
        let shared = Arc::<Shared>::default();
        let (threads, most) = if far { (FAR_THREADS, PART) } else { (THREADS, u64::MAX) };
        for i in 0..threads {
            let (shared, name) = (shared.clone(), format!("prefetch-{i}"));
            let own = name.clone();
            let work = move || {
                while let Some((store, part, access)) = shared.next(most) {
                    if let Some(store) = store.upgrade() {
                        store.alarm().guard(&own, || store.load(&part, access));
                    }
                }
            };
            if let Err(e) = std::thread::Builder::new().name(name).spawn(work) {
                tracing::warn!("no read-ahead thread: {e}");
            }
        }
        Prefetcher { shared }
    }

    /// Has a batch read (`zio_issue_async`); false if there is no room for it, and the reader has to read for itself.
    pub(crate) fn push(&self, store: &Arc<Store>, batch: Vec<Request>, access: Access) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.batches.len() >= QUEUE {
            return false;
        }
        queue.batches.push_back(Batch { store: Arc::downgrade(store), left: batch.into(), access });
        drop(queue);
        self.shared.more.notify_one();
        true
    }
}

impl Drop for Prefetcher {
    /// What waits is not read.
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.more.notify_all();
    }
}

/// The bytes that one reader has asked for and not come to, beside those of all readers of the pool.
#[derive(Debug, Default)]
pub struct AheadShare {
    all: Arc<AtomicU64>,
    own: u64,
}

impl AheadShare {
    pub(crate) fn of(all: &Arc<AtomicU64>) -> AheadShare {
        AheadShare { all: all.clone(), own: 0 }
    }

    /// It waits for so many bytes now.
    pub fn set(&mut self, bytes: u64) {
        self.all.fetch_add(bytes, Relaxed);
        self.all.fetch_sub(std::mem::replace(&mut self.own, bytes), Relaxed);
    }

    /// It waits for so many bytes less, as far as it waits for any.
    pub fn less(&mut self, bytes: u64) {
        self.set(self.own.saturating_sub(bytes));
    }

    /// Of `most` bytes, what others leave of them. It says how far to read ahead, which no fault of these books is to stop.
    pub fn left_of(&self, most: u64) -> u64 {
        let others = self.all.load(Relaxed).saturating_sub(self.own);
        most.saturating_sub(others)
    }
}

impl Drop for AheadShare {
    fn drop(&mut self) {
        self.set(0);
    }
}
