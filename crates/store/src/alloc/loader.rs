//! Loading metaslabs: asked of the floor above, in the background where that will do.
//!
//! Space maps are objects, so only the pool can read them: it implements [`LoadMetaslab`]. Metaslabs
//! that will be needed soon are loaded by a thread ahead of need. An allocation waits for a load only
//! if nothing that is loaded can serve it, and the metaslab is sure to:
//!
//! | what is known of an unloaded metaslab | an allocation that nothing else serves |
//! |---|---|
//! | a segment of the size is there | waits for the load |
//! | segments of the same power of two are there | is refused at once; the thread loads it |
//! | no segment, but what was freed since may have joined to one | waits for the load, the last of all |
//! | no segment | is refused at once |
//!
//! So no map is read in vain while an allocation waits, but for the third case, and there once: then
//! the segments are known. A block that is refused is divided. A metaslab is in the queue once;
//! requests that do not fit are dropped. Without a thread the second case is as the first.
//!
//! What is loaded is bounded by `zfs_metaslab_mem_limit`: before a load the metaslabs that were used
//! longest ago are unloaded.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use cenote_vdev::Alarm;
use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;

use super::space::{Extent, Loading};

/// The name of the thread.
const NAME: &str = "metaslab-load";
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

/// Whose metaslabs the thread loads: the allocator.
pub(super) trait LoadAhead: Send + Sync {
    /// Loads a metaslab of a vdev, if it is there and can be read.
    fn load_ahead(&self, vdev: u64, metaslab: u64);
}

/// Vdev and number of a metaslab.
type Place = (u64, u64);

/// The thread that loads ahead.
pub(super) struct Background {
    queue: Sender<(Weak<dyn LoadAhead>, Place)>,
    /// What is in the queue, or being loaded by the thread.
    asked: Arc<Mutex<BTreeSet<Place>>>,
}

impl Background {
    /// Starts it; it tells `alarm` of its panics.
    pub(super) fn start(alarm: &Arc<Alarm>) -> Background {
        let (queue, requests) = bounded::<(Weak<dyn LoadAhead>, Place)>(QUEUE);
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let (done, alarm) = (asked.clone(), alarm.clone());
        let work = move || {
            for (loads, place) in requests {
                if let Some(loads) = loads.upgrade() {
                    alarm.guard(NAME, || loads.load_ahead(place.0, place.1));
                }
                done.lock().remove(&place);
            }
        };
        if let Err(e) = std::thread::Builder::new().name(NAME.into()).spawn(work) {
            tracing::warn!("no thread to load metaslabs ahead: {e}");
        }
        Background { queue, asked }
    }

    pub(super) fn request(&self, of: Weak<dyn LoadAhead>, vdev: u64, metaslab: u64) {
        let place = (vdev, metaslab);
        if !self.asked.lock().insert(place) {
            return;
        }
        // A full queue or no thread: the first allocation that needs the metaslab loads it.
        if self.queue.try_send((of, place)).is_err() {
            self.asked.lock().remove(&place);
        }
    }

    /// Whether nothing is in the queue or being loaded.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.lock().is_empty()
    }
}
