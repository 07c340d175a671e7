//! Loading metaslabs: asked of the floor above, in the background where that will do.
//!
//! Space maps are objects, so only the pool can read them: it implements [`LoadMetaslab`]. Metaslabs
//! that will be needed soon are loaded by a thread ahead of need; an allocation waits for a load
//! only if nothing that is loaded can serve it. Requests that do not fit the queue are dropped.

use std::sync::{Arc, Weak};

use crossbeam_channel::{Sender, bounded};

use super::allocator::Allocator;
use super::space::{Extent, Loading};

/// Loads that may wait.
const QUEUE: usize = 256;

/// Free space as a space map has it.
pub struct Loaded {
    /// What is free.
    pub free: Loading,
    /// Last txg whose changes are in it; all of them are.
    pub txg: u64,
}

/// Reads space maps.
pub trait LoadMetaslab: Send + Sync {
    /// The free space of a metaslab as it was on disk after some complete txg, not older than the
    /// last one for which `sync_done` had been called when this call began.
    ///
    /// Errors: why it cannot be read.
    fn load(&self, vdev: u64, metaslab: u64, extent: Extent) -> Result<Loaded, String>;
}

/// The thread that loads ahead.
pub(super) struct Background {
    queue: Sender<(Weak<Allocator>, u64, u64)>,
}

impl Background {
    pub(super) fn start() -> Background {
        let (queue, requests) = bounded::<(Weak<Allocator>, u64, u64)>(QUEUE);
        let work = move || {
            for (allocator, vdev, metaslab) in requests {
                if let Some(allocator) = allocator.upgrade() {
                    allocator.load(vdev, metaslab);
                }
            }
        };
        let thread = std::thread::Builder::new().name("metaslab-load".into());
        if let Err(e) = thread.spawn(work) {
            tracing::warn!("no thread to load metaslabs ahead: {e}");
        }
        Background { queue }
    }

    pub(super) fn request(&self, allocator: &Arc<Allocator>, vdev: u64, metaslab: u64) {
        // A full queue or no thread: whoever needs the metaslab loads it.
        let _ = self.queue.try_send((Arc::downgrade(allocator), vdev, metaslab));
    }
}
