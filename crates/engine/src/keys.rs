//! Unloading keys of a pool that is written to (`spa_keystore_unload_wkey`).

use super::{Engine, EngineError};
use cenote_dsl::Dataset;
use cenote_dsl::crypt::KeyError;

/// Why a key was not unloaded.
#[derive(Debug, thiserror::Error)]
pub enum UnloadError {
    /// A dataset that it opens is in use.
    #[error("'{0}' is busy.")]
    Busy(String),
    /// It is not loaded, or not the dataset's own.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// What was changed could not be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Engine {
    /// Unloads the key of the encryption root `d`, once all that was changed of datasets with this key is on disk. One that is
    /// being opened meanwhile is in use.
    ///
    /// # Errors
    /// See [`UnloadError`].
    pub fn unload_key(&self, d: &Dataset) -> Result<(), UnloadError> {
        let view = self.pool();
        let dsl = view.dsl();
        for ds_obj in self.shared.datasets.open_heads() {
            let Some(open) = dsl.by_object(ds_obj).map_err(EngineError::from)? else { continue };
            let key = dsl.crypto_key(&open).map_err(EngineError::from)?;
            if key.is_none_or(|key| key.root != d.dir_obj) {
                continue;
            }
            if self.shared.datasets.is_used(ds_obj) {
                return Err(UnloadError::Busy(d.name.clone()));
            }
            self.close(ds_obj)?;
        }
        // A group that is being written may still have something of them.
        self.sync()?;
        let view = self.pool();
        let (dsl, root) = (view.dsl(), view.dsl().key_root(d)?);
        let unload = || dsl.unload_root(root);
        match self.shared.datasets.unless_open(view.store(), root, unload) {
            None => Err(UnloadError::Busy(d.name.clone())),
            Some(true) => Ok(()),
            Some(false) => Err(KeyError::Unloaded(d.name.clone()).into()),
        }
    }
}
