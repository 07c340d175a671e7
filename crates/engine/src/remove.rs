//! Spares and cache devices that leave a pool (`spa_vdev_remove`, `spa_vdev_remove_aux`).
//!
//! The group that takes one off the list of the MOS is the end of it: nothing else leads to it. A cache device loses its labels
//! after that. A spare keeps them, since other pools may have it as well.

use super::Engine;
use super::task::EngineError;
use cenote_dsl::write::DslWriteError;
use cenote_pool::config;
use cenote_pool::config_write::{aux, sync_aux};
use cenote_pool::events::Sysevent;
use cenote_pool::history;
use cenote_vdev::clear_labels;

/// Why a device was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The pool has no such device.
    #[error("no such device in pool")]
    NoDevice,
    /// A spare stands in for another device.
    #[error("Pool busy; removal may already be in progress")]
    Busy,
    /// It holds blocks of the pool.
    #[error("removing {0} is not supported")]
    Unsupported(&'static str),
    /// The change could not be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Engine {
    /// Removes the spare or cache device with this guid.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove(&self, guid: u64) -> Result<(), RemoveError> {
        let pool = self.pool();
        let is_it = |list: &[cenote_format::nvlist::NvList]| {
            list.iter().find(|device| config::number(device, "guid") == guid).cloned()
        };
        let (which, kind, device) = match (is_it(pool.spares()), is_it(pool.caches())) {
            (Some(device), _) => ("spares", "spare", device),
            (None, Some(device)) => ("l2cache", "cache", device),
            (None, None) => return Err(self.refuse(guid)),
        };
        let in_use = pool.store().vdevs().find(guid).is_some();
        if in_use {
            return Err(RemoveError::Busy);
        }
        let path = config::path(&device).map_or_else(|| "-".into(), |p| p.display().to_string());
        let message = format!("{} vdev ({kind}) {path}", pool.name());
        self.sync_task_beside_logs(
            move |context| {
                let mut all = aux(context.tx.mos, which)?;
                let before = all.len();
                all.retain(|device| config::number(device, "guid") != guid);
                if all.len() == before {
                    return Err(DslWriteError::NotFound);
                }
                sync_aux(context.tx.mos, which, &all)?;
                let (txg, now) = (context.tx.txg, context.tx.now);
                let record = history::internal("vdev remove", &message, None, txg, now);
                Ok(history::append(context.tx.mos, &record)?)
            },
            |()| true,
        )?;
        if kind == "cache"
            && let Some(device) = pool.devices().open(guid)
            && let Err(e) = clear_labels(&*device)
        {
            tracing::warn!(path, "the labels of a removed device stay: {e}");
        }
        pool.devices().set_aside(guid, None);
        pool.devices().forget(guid);
        Sysevent::of_pool("vdev_remove_aux").post(pool.store());
        Ok(())
    }

    /// Why a device that is neither spare nor cache is not removed.
    fn refuse(&self, guid: u64) -> RemoveError {
        let tree = self.shared.disk.tree();
        let Some(vdev) = tree.find(guid) else { return RemoveError::NoDevice };
        let top = tree.top(vdev.id()).filter(|top| top.guid() == guid);
        match top {
            Some(top) if top.is_log() => RemoveError::Unsupported("a log device"),
            _ => RemoveError::Unsupported("a device that holds data"),
        }
    }
}
