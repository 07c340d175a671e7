//! Devices that leave a pool by command (`spa_vdev_remove`).
//!
//! | room | what |
//! |---|---|
//! | `listed` | spares and cache devices |
//! | `log` | vdevs for intent logs |

mod listed;
mod log;

use super::Engine;
use super::task::EngineError;
use cenote_format::nvlist::NvList;
use cenote_pool::config;

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
    /// Removes the spare, cache device or log vdev with this guid.
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
            Some(_) => Err(RemoveError::Unsupported("a device that holds data")),
        }
    }
}
