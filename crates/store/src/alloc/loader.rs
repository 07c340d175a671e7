//! Loading metaslabs: asked of the floor above, in the background where that will do.
//!
//! Space maps are objects, so only the pool can read them: it implements [`LoadMetaslab`]. Metaslabs
//! that will be needed soon are loaded by a thread ahead of need; an allocation waits for a load
//! only if nothing that is loaded can serve it, and then as long as there is a metaslab whose
//! histogram leaves hope: no block is divided for want of a load. A metaslab is in the queue once;
//! requests that do not fit are dropped.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;

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

/// Vdev and number of a metaslab.
type Place = (u64, u64);

/// The thread that loads ahead.
pub(super) struct Background {
    queue: Sender<(Weak<Allocator>, Place)>,
    /// What is in the queue, or being loaded by the thread.
    asked: Arc<Mutex<BTreeSet<Place>>>,
}

impl Background {
    pub(super) fn start() -> Background {
        let (queue, requests) = bounded::<(Weak<Allocator>, Place)>(QUEUE);
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let done = asked.clone();
        let work = move || {
            for (allocator, place) in requests {
                if let Some(allocator) = allocator.upgrade() {
                    allocator.load(place.0, place.1);
                }
                done.lock().remove(&place);
            }
        };
        let thread = std::thread::Builder::new().name("metaslab-load".into());
        if let Err(e) = thread.spawn(work) {
            tracing::warn!("no thread to load metaslabs ahead: {e}");
        }
        Background { queue, asked }
    }

    pub(super) fn request(&self, allocator: &Arc<Allocator>, vdev: u64, metaslab: u64) {
        let place = (vdev, metaslab);
        if !self.asked.lock().insert(place) {
            return;
        }
        // A full queue or no thread: whoever needs the metaslab loads it.
        if self.queue.try_send((Arc::downgrade(allocator), place)).is_err() {
            self.asked.lock().remove(&place);
        }
    }

    /// Whether nothing is in the queue or being loaded.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.lock().is_empty()
    }
}
