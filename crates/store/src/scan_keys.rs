//! Keys of the datasets that a scan looks at, as the scan's view of the pool has them.
//!
//! The number of an object set may be given to another dataset while a scan walks a view, which lasts. So a scan goes by no mapping that
//! readers go by ([`keys`](crate::keys)), and makes no mappings: it has keys of its own, by the object sets of its view, and drops them with that.
//! With these it looks at MACs, and decrypts nothing for anyone. Object sets of one directory, a dataset and its snapshots, share a key.
//!
//! Invariant: when a key is unloaded, it leaves these as well, and when its encryption root is another one, that is said here, too
//! (`cenote_dsl`'s `Keystore`).

use crate::keys::LoadedKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ScanKeys(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    /// By object sets.
    of: HashMap<u64, Arc<LoadedKey>>,
    /// By objects of keys. One is found by its guid as well ([`ScanKeys::known`]): the object of a destroyed key may be given to another.
    by_object: HashMap<u64, Arc<LoadedKey>>,
}

impl ScanKeys {
    /// The key of an object set of the view.
    pub fn of(&self, objset: u64) -> Option<Arc<LoadedKey>> {
        self.0.lock().of.get(&objset).cloned()
    }

    /// What was added of the key at this object, if it has the guid.
    pub fn known(&self, object: u64, guid: u64) -> Option<Arc<LoadedKey>> {
        self.0.lock().by_object.get(&object).filter(|key| key.key().guid() == guid).cloned()
    }

    /// `key`, which is at `object`, is that of `objset`.
    pub fn add(&self, objset: u64, object: u64, key: &Arc<LoadedKey>) {
        let mut keys = self.0.lock();
        keys.of.insert(objset, key.clone());
        keys.by_object.insert(object, key.clone());
    }

    /// The keys at `objects` have the encryption root `root` now.
    pub fn rooted(&self, objects: &[u64], root: u64) {
        let keys = self.0.lock();
        objects
            .iter()
            .filter_map(|object| keys.by_object.get(object))
            .for_each(|key| key.set_root(root));
    }

    /// The keys that the encryption root `root` has unwrapped are unloaded.
    pub fn forget(&self, root: u64) {
        let mut keys = self.0.lock();
        keys.of.retain(|_, key| key.root() != root);
        keys.by_object.retain(|_, key| key.root() != root);
    }
}
