//! Devices in use that are not theirs any more (`vdev_reopen` of a leaf that works): they have lost their labels, were put to another
//! use, or something else is in their place.
//!
//! Such a device goes out of use where its vdev can do without it, once a command has it looked at ([`VdevTree::reopen`],
//! [`VdevTree::doubtful`]). Where its vdev cannot, it stays in use; if it is a file without any labels, which is still at its path,
//! it gets them anew.
//!
//! Invariant: what a device is, its labels say, read from it anew. What its config said when the tree was built, and was taken back
//! since, does not count.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::labels::read_labels;
use crate::probe::{StateOf, StateWith, required};
use crate::vdev::Vdev;
use crate::{VdevTree, assemble};

impl VdevTree {
    /// The leaves in use whose devices turn out within `limit` not to be theirs any more: they have lost their labels, or something
    /// else is in their place. A device that hangs is not waited for; what it has is not known.
    pub fn doubtful(self: &Arc<Self>, limit: Duration) -> Vec<u64> {
        let (tell, told) = mpsc::channel();
        let mut left = 0;
        for leaf in self.leaves() {
            if !leaf.state().readable() || leaf.device().is_none() || leaf.stats.activity.hangs() {
                continue;
            }
            let (tree, tell) = (self.clone(), tell.clone());
            let ask = move || {
                let busy = leaf.stats.activity.begin();
                let is_well = tree.is_still(&leaf);
                drop(busy);
                // Where no thread waits any more it is not told.
                let _late = tell.send((leaf.guid(), is_well));
            };
            // Without a thread to ask, it is left alone.
            left += usize::from(thread::Builder::new().name("vdev-look".into()).spawn(ask).is_ok());
        }
        let (end, mut doubtful) = (Instant::now() + limit, Vec::new());
        while left > 0 {
            let rest = end.saturating_duration_since(Instant::now());
            let Ok((guid, is_well)) = told.recv_timeout(rest) else { break };
            left -= 1;
            if !is_well {
                doubtful.push(guid);
            }
        }
        doubtful
    }

    /// Whether the device of a leaf in use is still the leaf's.
    fn is_still(&self, asked: &Vdev) -> bool {
        let mut is_still = true;
        let look = &mut |leaf: &Vdev, state_with: StateWith<'_>| {
            if leaf.guid() == asked.guid() {
                let config = leaf.config_in_use();
                is_still = is_well(leaf, &|device| state_with(&config, device));
            }
        };
        // A config that does not fit says nothing of devices.
        assemble::for_each_leaf(self.root(), look).is_err() || is_still
    }
}

/// Whether the device of a leaf in use is still the leaf's.
pub(crate) fn is_well(leaf: &Vdev, state_with: StateOf<'_>) -> bool {
    leaf.device().is_some_and(|device| {
        device.forget_cached();
        device.is_there() && state_with(Some(&*device)).readable()
    })
}

/// Whether a leaf's device was deleted, has lost its labels, or something else was put in its place, while its vdev cannot do
/// without it: nothing that could be opened instead has what it holds.
pub(crate) fn is_last_hope(top: &Arc<Vdev>, leaf: &Vdev, state_with: StateOf<'_>) -> bool {
    let in_use = leaf.state().readable() && leaf.device().is_some();
    in_use && required(top, leaf) && !is_well(leaf, state_with)
}

/// Whether a leaf's device is the very file that it was, and nothing but labels is lost: it has none, not those of something else.
pub(crate) fn has_only_lost_labels(leaf: &Vdev) -> bool {
    leaf.device().is_some_and(|device| {
        device.is_current() && read_labels(&*device).is_ok_and(|labels| labels.is_none())
    })
}
