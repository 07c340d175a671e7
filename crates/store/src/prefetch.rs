//! Read-ahead in the background (`dbuf_prefetch`, `arc_read` with `ARC_FLAG_PREFETCH`): a few threads that read blocks
//! into the ARC.
//!
//! Requests that do not fit the queue are dropped: read-ahead is a hint, and a queue that grows
//! would only serve blocks that the reader has passed already. The threads hold a weak reference,
//! so a store that is dropped ends them.

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

    pub(crate) fn push(
        &self,
        store: &Arc<Store>,
        batch: Vec<(BlockPointer, Bookmark)>,
        access: Access,
    ) {
        // A full queue or no thread: the reader will read for itself.
        let _ = self.queue.try_send((Arc::downgrade(store), batch, access));
    }
}
