//! Read-ahead in the background (`dbuf_prefetch`, `arc_read` with `ARC_FLAG_PREFETCH`): a few threads that read blocks
//! into the ARC.
//!
//! Requests that do not fit the queue are refused: read-ahead is a hint, and a queue that grows
//! would only serve blocks that the reader has passed already. The threads hold a weak reference,
//! so a store that is dropped ends them.
//!
//! Readers of what is far away ask for so much that a few of them could push out of the ARC what others have asked for. Each knows by its
//! [`AheadShare`] what the others wait for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use cenote_format::blkptr::BlockPointer;
use crossbeam_channel::{Sender, bounded};

use crate::arc::Access;
use crate::error::Bookmark;
use crate::pipeline::Store;

/// Batches that may wait.
const QUEUE: usize = 64;
/// Threads that read from devices.
const THREADS: usize = 2;
/// Threads that read from a store far away: each waits for one batch, and the batches of one reader come from several at once.
const FAR_THREADS: usize = 8;

type Batch = (Weak<Store>, Vec<(BlockPointer, Bookmark)>, Access);

pub(crate) struct Prefetcher {
    queue: Sender<Batch>,
}

impl Prefetcher {
    /// `far`: what is read comes from an object store.
    pub(crate) fn start(far: bool) -> Prefetcher {
        let (queue, batches) = bounded::<Batch>(QUEUE);
        for i in 0..if far { FAR_THREADS } else { THREADS } {
            let batches = batches.clone();
            let name = format!("prefetch-{i}");
            let own = name.clone();
            let work = move || {
                for (store, batch, access) in batches {
                    if let Some(store) = store.upgrade() {
                        store.alarm().guard(&own, || store.load(&batch, access));
                    }
                }
            };
            if let Err(e) = std::thread::Builder::new().name(name).spawn(work) {
                tracing::warn!("no read-ahead thread: {e}");
            }
        }
        Prefetcher { queue }
    }

    /// Has a batch read (`zio_issue_async`); false if there is no room for it, and the reader has to read for itself.
    pub(crate) fn push(
        &self,
        store: &Arc<Store>,
        batch: Vec<(BlockPointer, Bookmark)>,
        access: Access,
    ) -> bool {
        self.queue.try_send((Arc::downgrade(store), batch, access)).is_ok()
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
