//! Vdevs that grow into devices that have grown (`vdev_expand`).
//!
//! A sync task does all of it: the devices have their new sizes from then on, the config says how large the vdev is,
//! and the metaslab array has room for more metaslabs. The group that ends with it writes the labels at the new ends of
//! the devices; its uberblock makes the space part of the pool, and only from then on blocks go there. A crash before
//! that leaves the pool as it was, by the labels at the beginnings of the devices: what is at their old ends is not
//! looked for any more once they have grown.
//!
//! A device in an object store grows without being asked, in the group after which half of its addresses are given out
//! ([`Shared::stores_that_grow`]). Until it has its last size the rest is a reserve that no group can use up; from then on what was given out counts as used
//! ([`cenote_store::alloc::Group::dead`]), so that changes are refused before the addresses end.

use super::error::EngineError;
use super::task::Task;
use super::{Engine, Shared, SyncContext};
use crate::space_write::top_level_asize;
use cenote_dsl::write::Result;
use cenote_format::nvlist::NvValue;
use cenote_pool::config;
use cenote_vdev::{Device, Vdev, VdevState};
use std::sync::Arc;

impl Engine {
    /// Lets the top-level vdevs with these ids grow as far as their devices allow. Returns whether any did.
    ///
    /// # Errors
    /// The pool is suspended, or cannot be written.
    pub fn expand(&self, tops: &[u64]) -> std::result::Result<bool, EngineError> {
        self.shared.expand(tops)
    }

    /// As [`Engine::expand`], of all vdevs, if the pool is to grow by itself (`autoexpand`).
    ///
    /// # Errors
    /// Errors of [`Engine::expand`].
    pub fn expand_if_wanted(&self) -> std::result::Result<bool, EngineError> {
        self.shared.expand_if_wanted()
    }
}

impl Shared {
    pub(crate) fn expand(&self, tops: &[u64]) -> std::result::Result<bool, EngineError> {
        let tree = self.disk.tree();
        let can = |id: &u64| {
            tree.top(*id).is_some_and(|top| top.reflow().is_none() && room(top).is_some())
        };
        let tops: Vec<u64> = tops.iter().copied().filter(can).collect();
        if tops.is_empty() {
            return Ok(false);
        }
        // That one has grown is not undone if another one fails to: each has a task of its own.
        tops.into_iter().try_fold(false, |any, id| {
            let change = move |context: &mut SyncContext<'_>| context.grow(id);
            Ok(self.queue.run(&self.tx_state, change, |_| true)? || any)
        })
    }

    /// Has devices grow whose addresses are never used twice, once half of them are given out: nothing is bought by waiting, and what is
    /// given out does not come back.
    pub(crate) fn stores_that_grow(&self) -> Option<Task> {
        let growing = self.disk.allocator.growing();
        let tree = self.disk.tree();
        let id = growing
            .iter()
            .map(|(id, _)| *id)
            .find(|id| tree.top(*id).is_some_and(|top| room(top).is_some()))?;
        Some(Box::new(move |context| context.grow(id).map(|_| ())))
    }

    /// See [`Engine::expand_if_wanted`].
    pub(crate) fn expand_if_wanted(&self) -> std::result::Result<bool, EngineError> {
        if self.view().get("autoexpand").is_none_or(|set| set.exact != "on") {
            return Ok(false);
        }
        let tops: Vec<u64> = self.disk.tree().root().children().iter().map(|t| t.id()).collect();
        self.expand(&tops)
    }
}

/// A size that a vdev can have by now, with the sizes of its devices.
struct Room {
    asize: u64,
    devices: Vec<(Arc<dyn Device>, u64)>,
}

/// The size that a vdev can have by now, if it has whole metaslabs more then.
fn room(top: &Vdev) -> Option<Room> {
    let leaves: Vec<&Vdev> = match top.is_leaf() {
        true => vec![top],
        false => top.children().iter().map(|child| &**child).collect(),
    };
    let device = |leaf: &&Vdev| {
        let device = leaf.device().filter(|_| leaf.state() == VdevState::Healthy)?;
        let size = device.size_by_now();
        Some((device, size))
    };
    let devices: Vec<_> = leaves.iter().map(device).collect::<Option<_>>()?;
    let sizes: Vec<u64> = devices.iter().map(|(_, size)| *size).collect();
    let shift = config::number(top.config(), "metaslab_shift").min(63);
    let asize = top_level_asize(top.kind(), top.draid(), &sizes);
    let grows = shift > 0 && asize >> shift > top.asize() >> shift;
    grows.then_some(Room { asize, devices })
}

impl SyncContext<'_> {
    /// See [`Engine::expand`].
    fn grow(&mut self, id: u64) -> Result<bool> {
        // While sectors move, what joins has nothing yet.
        let moves = self.disk.tree().top(id).is_some_and(|top| top.reflow().is_some());
        if moves { Ok(false) } else { self.grow_expanded(id) }
    }

    /// As [`SyncContext::grow`], of a vdev of which all sectors have moved: the device that joined has its share of them.
    pub(crate) fn grow_expanded(&mut self, id: u64) -> Result<bool> {
        if self.disk.frozen.leaves_out(self.tx.txg) {
            // Blocks of intent logs would go to space that the next import does not know.
            return Ok(false);
        }
        let tree = self.disk.tree();
        let found = tree.top(id).and_then(|top| Some((top, room(top)?)));
        let Some((top, Room { asize, devices })) = found else { return Ok(false) };
        let tops = self.config.vdev_tree.pairs.iter_mut().find(|(name, _)| name == "children");
        let Some((_, NvValue::NvListArray(tops))) = tops else { return Ok(false) };
        let Some(of_top) = tops.iter_mut().find(|c| config::number(c, "id") == id) else {
            return Ok(false);
        };
        of_top.set("asize", NvValue::Uint64(asize));
        // What follows is not undone.
        let more = self.maps.grow_vdev(self.tx.mos, id, asize)?;
        devices.iter().for_each(|(device, size)| device.grow(*size));
        top.grow(asize);
        self.disk.grown.lock().push((id, more));
        self.config_changed = true;
        Ok(true)
    }
}
