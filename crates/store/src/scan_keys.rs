//! Keys of the datasets that a scan looks at, as the scan's view of the pool has them.
//!
//! The number of an object set may be given to another dataset while a scan walks a view, which lasts. So a scan goes by no mapping that
//! readers go by ([`keys`](crate::keys)), and makes none: it has keys of its own, by the object sets of its view, and drops them with that.
//! With these it looks at MACs, and decrypts nothing for anyone.
//!
//! Invariant: when a key is unloaded, it leaves these as well (`cenote_dsl`'s `Keystore`).

use crate::keys::LoadedKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ScanKeys(Mutex<HashMap<u64, Arc<LoadedKey>>>);

impl ScanKeys {
    /// The key of an object set of the view.
    pub fn of(&self, objset: u64) -> Option<Arc<LoadedKey>> {
        self.0.lock().get(&objset).cloned()
    }

    /// `key` is that of `objset`.
    pub fn add(&self, objset: u64, key: &Arc<LoadedKey>) {
        self.0.lock().insert(objset, key.clone());
    }

    /// The keys that the encryption root `root` has unwrapped are unloaded.
    pub fn forget(&self, root: u64) {
        self.0.lock().retain(|_, key| key.root() != root);
    }
}
