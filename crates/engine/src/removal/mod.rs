//! Devices that leave a pool by command (`spa_vdev_remove`).
//!
//! | room | what |
//! |---|---|
//! | `listed` | spares and cache devices |
//! | `log` | vdevs for intent logs |
//! | `top` | vdevs that hold data: how that begins, and is cancelled |
//! | `evacuate` | how what they hold goes elsewhere, and they leave |

mod evacuate;
mod listed;
mod log;
mod top;

pub(crate) use evacuate::Evacuator;
pub(crate) use top::{copied, note_spared};

use super::task::EngineError;
use super::{Disk, Engine, Shared};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_vdev::{Vdev, init_labels};
use std::sync::Arc;

/// Why a device was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The pool has no such device.
    #[error("no such device in pool")]
    NoDevice,
    /// A spare stands in for another device.
    #[error("Pool busy; removal may already be in progress")]
    Busy,
    /// A log has blocks on it that wait to be replayed.
    #[error("Mount encrypted datasets to replay logs.")]
    LogsWait,
    /// The vdev is being removed.
    #[error("removal for this vdev is already in progress.")]
    Already,
    /// The other vdevs have no room for what it holds.
    #[error("out of space")]
    NoSpace,
    /// It cannot be read.
    #[error("I/O error")]
    Unreadable,
    /// The vdevs of the pool are not of a kind that can take what it holds.
    #[error("invalid config; all top-level vdevs must have the same sector size and not be raidz.")]
    Config,
    /// No vdev is being removed.
    #[error("operation is not in progress")]
    NotActive,
    /// It is no top-level vdev.
    #[error("operation not supported on this type of pool")]
    NoTop,
    /// It holds blocks of the pool.
    #[error("removing {0} is not supported")]
    Unsupported(&'static str),
    /// The change could not be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Engine {
    /// Removes the spare, cache device or top-level vdev with this guid. Of a vdev that holds data it begins to copy that to
    /// others.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove(&self, guid: u64) -> Result<(), RemoveError> {
        // A vdev that one thread removes, another one could put back into use.
        let _alone = self.shared.removing.lock();
        let pool = self.pool();
        let find = |list: &[NvList]| {
            list.iter().find(|device| config::number(device, "guid") == guid).cloned()
        };
        match (find(pool.spares()), find(pool.caches())) {
            (Some(spare), _) => return self.remove_listed("spares", "spare", &spare),
            (None, Some(cache)) => return self.remove_listed("l2cache", "cache", &cache),
            (None, None) => {}
        }
        let tree = self.shared.disk.tree();
        let Some(vdev) = tree.find(guid) else { return Err(RemoveError::NoDevice) };
        match tree.root().children().iter().find(|top| top.guid() == guid) {
            None => Err(RemoveError::NoTop),
            Some(_) if vdev.is_log() => self.remove_log(&vdev),
            Some(_) => self.remove_top(&vdev),
        }
    }
}

/// A leaf of a vdev that left, and what its labels say from then on.
struct Left {
    leaf: Arc<Vdev>,
    label: Option<NvList>,
}

impl Shared {
    /// Lets go of devices that have left, in a group that is on disk. Their labels say so.
    fn let_go(&self, left: Vec<Left>) {
        let devices = self.view().devices().clone();
        for Left { leaf, label } in left {
            // A device that is out of use may be another pool's by now, or hang.
            let device = leaf.device().filter(|_| leaf.writable());
            if let (Some(device), Some(label)) = (device, &label)
                && let Err(error) = init_labels(device.as_ref(), label)
            {
                tracing::warn!(path = %device.path().display(), %error, "the labels stay");
            }
            leaf.retire();
            devices.forget(leaf.guid());
            if config::flag(leaf.config(), "is_spare")
                && let Some(path) = config::path(leaf.config())
            {
                devices.share(leaf.guid(), path);
            }
        }
    }
}

impl Disk {
    /// The vdevs that are allocated from in the pool that is on disk once the group that is being written is.
    pub(crate) fn tops(&self) -> Vec<u64> {
        let removed = self.removed.lock();
        let tops = self.allocator.groups().map(|group| group.vdev());
        tops.filter(|top| removed.iter().all(|(id, _)| id != top)).collect()
    }

    /// The group that removes vdevs is on disk: nothing looks for space there any more. Returns the bytes that their mappings
    /// take.
    pub(crate) fn let_removed_go(&self) -> u64 {
        let mut mappings = 0u64;
        for (vdev, bytes) in self.removed.lock().drain(..) {
            self.allocator.remove_vdev(vdev);
            self.loader.remove_vdev(vdev);
            mappings = mappings.saturating_add(bytes);
        }
        mappings
    }
}
