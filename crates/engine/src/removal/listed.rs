//! Spares and cache devices that leave a pool (`spa_vdev_remove_aux`).
//!
//! The group that takes one off the list of the MOS is the end of it: nothing else leads to it. A cache device loses its labels
//! after that. A spare keeps them, since other pools may have it as well.

use super::RemoveError;
use crate::{Engine, EngineError};
use cenote_dsl::write::DslWriteError;
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::config_write::{aux, sync_aux};
use cenote_pool::events::Sysevent;
use cenote_pool::history;
use cenote_vdev::clear_labels_of;

impl Engine {
    /// Takes a device off the list `which`.
    pub(super) fn remove_listed(
        &self,
        which: &'static str,
        kind: &str,
        device: &NvList,
    ) -> Result<(), RemoveError> {
        let (pool, guid) = (self.pool(), config::number(device, "guid"));
        let path = config::path(device).map_or_else(|| "-".into(), |p| p.display().to_string());
        let message = format!("{} vdev ({kind}) {path}", pool.name());
        let removed = self.sync_task_beside_logs(
            move |context| {
                // A spare may have stepped in.
                if context.disk.tree().find(guid).is_some() {
                    return Err(DslWriteError::Busy);
                }
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
        );
        removed.map_err(|e| match e {
            EngineError::Dsl(DslWriteError::Busy) => RemoveError::Busy,
            e => RemoveError::Engine(e),
        })?;
        self.use_caches();
        if kind == "cache"
            && let Some(device) = pool.devices().open(guid)
            && let Err(e) = clear_labels_of(&*device, guid)
        {
            tracing::warn!(path, "the labels of a removed device stay: {e}");
        }
        pool.devices().set_aside(guid, None);
        pool.devices().forget(guid);
        Sysevent::of_pool("vdev_remove_aux").post(pool.store());
        Ok(())
    }
}
