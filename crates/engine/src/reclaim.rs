//! Objects of a store that few live blocks are left in are written anew, beside everything else.
//!
//! After each group a thread has the device look for such objects ([`cenote_vdev::Growing::reclaim`]) and tells it what is allocated on disk. The next
//! group puts the new objects in the place of the old ones; block pointers stay as they are. As long as much was copied the thread asks for
//! that group, so that a pool without writers is reclaimed as well. The thread ends within a moment after it is told to end.

use super::{Engine, Shared};
use cenote_store::alloc::{Addresses, Dead};
use std::ops::Range;
use std::sync::Arc;

/// The name of the thread.
const NAME: &str = "object-reclaim";
/// Bytes that are copied after a group, about.
const PORTION: u64 = 64 << 20;
/// Bytes that were copied for which a group is asked for. What groups leave behind themselves is less: else each would lead to the next.
const WORTH: u64 = 4 << 20;

impl Engine {
    /// Deletes all that a pool which was exported as destroyed has in object stores.
    ///
    /// # Errors
    /// Not everything is deleted, and why.
    pub fn erase_objects(&self) -> Result<(), String> {
        self.shared.reclaimer.stop();
        for (_, Addresses(growing)) in self.shared.disk.allocator.growing() {
            growing.erase().map_err(|why| why.to_string())?;
        }
        Ok(())
    }
}

impl Shared {
    /// A group is on disk: has objects written anew that are worth it.
    pub(crate) fn wake_reclaim(self: &Arc<Self>) {
        if self.disk.allocator.has_growing() {
            self.reclaimer.wake(self, NAME, |shared| shared.reclaim());
        }
    }

    fn reclaim(self: &Arc<Self>) {
        loop {
            self.reclaimer.take_call();
            for (vdev, Addresses(growing)) in self.disk.allocator.growing() {
                if self.reclaimer.is_stopped() || self.tx_state.closed().is_some() {
                    return self.reclaimer.ends();
                }
                let mut dead = Dead::default();
                let mut live = |range: Range<u64>| self.disk.allocator.live(vdev, range, &mut dead);
                let stops = || self.reclaimer.is_stopped() || self.tx_state.closed().is_some();
                match growing.reclaim(&mut live, PORTION, &stops) {
                    // There may be more; and what was copied is stored twice until a group ends.
                    Ok(WORTH..) => self.tx_state.ask_for_more(),
                    Ok(_) => {}
                    Err(why) => {
                        tracing::info!("vdev {vdev}: not all objects are reclaimed: {why}");
                    }
                }
            }
            if self.reclaimer.is_over() {
                return;
            }
        }
    }
}
