//! What a crash left of receives.

use crate::{Engine, EngineError};
use cenote_dsl::write::destroy;

impl Engine {
    /// Destroys datasets that were being received when the pool was left, unless they can be resumed
    /// (`dsl_destroy_inconsistent`). What cannot be destroyed stays, and cannot be used.
    ///
    /// # Errors
    /// The datasets cannot be listed; the pool is suspended.
    pub fn destroy_unfinished(&self) -> Result<(), EngineError> {
        for dataset in self.pool().dsl().unfinished()? {
            let ds_obj = dataset.ds_obj;
            let gone = self.sync_task(move |context| {
                context.retire(ds_obj)?;
                context.destroy_intent_log(ds_obj, 0)?;
                destroy::destroy_head(&mut context.tx, ds_obj)
            });
            match gone {
                Ok(()) => tracing::info!("'{}' was not received in full: destroyed", dataset.name),
                Err(e @ EngineError::Suspended(_)) => return Err(e),
                Err(e) => tracing::warn!("'{}' was not received in full: {e}", dataset.name),
            }
        }
        Ok(())
    }
}
