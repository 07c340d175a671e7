//! Unloading keys of a pool that is written to (`spa_keystore_unload_wkey`).

use super::{Engine, EngineError, Shared};
use cenote_dsl::Dataset;
use cenote_dsl::crypt::KeyError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long unloading a key waits for datasets that are being opened, and for their turn.
const PATIENCE: Duration = Duration::from_secs(3);
/// So often what was opened meanwhile is closed again.
const ROUNDS: usize = 16;

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

/// Keeps the key that a snapshot is read with from being unloaded, until it is dropped.
pub(crate) struct KeyUse {
    shared: Arc<Shared>,
    ds_obj: u64,
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        if !self.shared.datasets.let_key_go(self.ds_obj) {
            let why = format!("dataset {}: the use of a key ends that there was not", self.ds_obj);
            tracing::error!("{why}");
            self.shared.suspend(&why);
        }
    }
}

impl Engine {
    /// Keeps the key of a snapshot, from when it is opened on, if it has one that is loaded then.
    pub(crate) fn use_key(&self, ds_obj: u64) -> KeyUse {
        self.shared.datasets.use_key(ds_obj);
        KeyUse { shared: self.shared.clone(), ds_obj }
    }

    /// Wipes the keys of encryption roots that are none any more, and what was unwrapped with keys that are not loaded any more
    /// ([`cenote_dsl::crypt::Keystore::roots`]). What is in use stays until this is done again.
    pub(crate) fn forget_keys_of_gone(&self) {
        let roots = self.pool().dsl().keystore().roots();
        // Not older than the keys: a root that was made meanwhile is in it.
        let view = self.pool();
        for root in roots {
            let (gone, loaded) = (view.dsl().is_root_gone(root), view.dsl().keystore().has(root));
            if gone || !loaded {
                let forget = || view.dsl().forget_root(root, gone);
                self.shared.datasets.unless_open(view.store(), root, forget);
            }
        }
    }

    /// Unloads the key of the encryption root `d`, once all that was changed of datasets with this key is on disk. What has no user is
    /// closed, also if it is opened meanwhile. What is still being opened after a few seconds, or is opened again and again, is
    /// in use.
    ///
    /// # Errors
    /// See [`UnloadError`].
    pub fn unload_key(&self, d: &Dataset) -> Result<(), UnloadError> {
        let end = Instant::now() + PATIENCE;
        for _ in 0..ROUNDS {
            self.close_unused(d)?;
            // A group that is being written may still have something of them.
            self.sync()?;
            let view = self.pool();
            let (dsl, root) = (view.dsl(), view.dsl().key_root(d)?);
            let done =
                self.shared.datasets.unless_open(view.store(), root, || dsl.unload_root(root));
            self.forget_keys_of_gone();
            match done {
                // What was opened meanwhile is looked at again.
                None if self.waited_for_openers(root, end)? => {}
                None => break,
                Some(true) => return Ok(()),
                Some(false) => return Err(KeyError::Unloaded(d.name.clone()).into()),
            }
        }
        Err(UnloadError::Busy(d.name.clone()))
    }

    /// Waits until no dataset is being opened that is read with a key of the encryption root `root`. False: one still is at the `end`.
    ///
    /// # Errors
    /// The pool is suspended: opening one may take for ever.
    fn waited_for_openers(&self, root: u64, end: Instant) -> Result<bool, EngineError> {
        let view = self.pool();
        while !self.shared.datasets.wait_while_opened(view.store(), root) {
            if let Some(why) = self.shared.tx_state.held() {
                return Err(EngineError::Suspended(why));
            }
            if Instant::now() >= end {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a dataset that is read with the key of the encryption root `d` has a user; those `besides` have one that ends when it is asked to.
    ///
    /// # Errors
    /// The datasets cannot be read.
    pub fn uses_key(
        &self,
        d: &Dataset,
        besides: &dyn Fn(&str) -> bool,
    ) -> Result<bool, EngineError> {
        let datasets = &self.shared.datasets;
        let users = |open: &Dataset| match besides(&open.name) {
            true => datasets.is_held(open.ds_obj),
            false => datasets.is_used(open.ds_obj),
        };
        let is_used = self.open_with(d)?.iter().any(users);
        Ok(is_used || datasets.is_keyed(self.pool().store(), d.dir_obj))
    }

    /// What is open and read with the key of the encryption root `d`.
    fn open_with(&self, d: &Dataset) -> Result<Vec<Dataset>, EngineError> {
        let view = self.pool();
        let dsl = view.dsl();
        let mut all = Vec::new();
        for ds_obj in self.shared.datasets.open_heads() {
            let Some(open) = dsl.by_object(ds_obj)? else { continue };
            if dsl.crypto_key(&open)?.is_some_and(|key| key.root == d.dir_obj) {
                all.push(open);
            }
        }
        Ok(all)
    }

    /// Closes what is open and read with the key of the encryption root `d`.
    fn close_unused(&self, d: &Dataset) -> Result<(), UnloadError> {
        for Dataset { ds_obj, .. } in self.open_with(d)? {
            if !self.close_if_unused(ds_obj)? {
                return Err(UnloadError::Busy(d.name.clone()));
            }
        }
        Ok(())
    }

    /// Closes a dataset, unless it has a user. Threads that want to open it meanwhile wait, and open it anew.
    pub(crate) fn close_if_unused(&self, ds_obj: u64) -> Result<bool, EngineError> {
        let Some(_closing) = self.shared.datasets.closing(ds_obj) else { return Ok(false) };
        self.close(ds_obj)?;
        Ok(true)
    }
}
