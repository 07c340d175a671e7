//! Which datasets' keys are loaded (`spa_keystore_t`'s key mappings).
//!
//! A block of an encrypted dataset is decrypted with the key of the dataset through which it is read: the object set of
//! its [`Bookmark`](crate::Bookmark). A dataset, its snapshots and its clones have mappings of their own, to one key.
//!
//! Invariants:
//!
//! - A loaded key has a number that no other has had before, so that what was decrypted is never taken for what a key
//!   that was loaded later decrypts.
//! - A pool without loaded keys pays one relaxed load for each block.

use arc_swap::ArcSwap;
use cenote_format::crypt::DatasetKey;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::pipeline::Store;

/// The key of a dataset that is loaded (`dsl_key_mapping_t`).
#[derive(Debug)]
pub struct LoadedKey {
    id: u64,
    /// Object of the directory that is the encryption root.
    root: u64,
    key: DatasetKey,
}

impl LoadedKey {
    /// A key that the encryption root `root` unwrapped.
    pub fn new(root: u64, key: DatasetKey) -> Arc<LoadedKey> {
        Arc::new(LoadedKey { id: NEXT.fetch_add(1, Ordering::Relaxed), root, key })
    }

    /// Object of the directory that is its encryption root.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Its number; never 0.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The key.
    pub fn key(&self) -> &DatasetKey {
        &self.key
    }
}

type Mappings = HashMap<u64, Arc<LoadedKey>>;

/// The loaded keys of a pool, by object set.
#[derive(Default)]
pub struct Keys {
    any: AtomicBool,
    mappings: ArcSwap<Mappings>,
    changes: Mutex<()>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Keys {
    /// The key with which blocks of `objset` are read, if it is loaded.
    pub fn of(&self, objset: u64) -> Option<Arc<LoadedKey>> {
        match self.any.load(Ordering::Acquire) {
            true => self.mappings.load().get(&objset).cloned(),
            false => None,
        }
    }

    /// From now on blocks of `objset` are read with `key` (`spa_keystore_create_mapping`).
    pub fn map(&self, objset: u64, key: &Arc<LoadedKey>) {
        if self.of(objset).is_some_and(|mapped| mapped.id == key.id) {
            return;
        }
        let _changes = self.changes.lock();
        let mut mappings = Mappings::clone(&self.mappings.load());
        mappings.insert(objset, key.clone());
        self.mappings.store(Arc::new(mappings));
        self.any.store(true, Ordering::Release);
    }

    /// Blocks of `objset` are not read with a key any more: its number belongs to another dataset now.
    pub fn unmap(&self, objset: u64) {
        if self.of(objset).is_some() {
            let _changes = self.changes.lock();
            let mut mappings = Mappings::clone(&self.mappings.load());
            mappings.remove(&objset);
            self.mappings.store(Arc::new(mappings));
        }
    }

    /// Takes the mappings of an encryption root away. Returns their keys' numbers.
    fn unmap_root(&self, root: u64) -> Vec<u64> {
        let _changes = self.changes.lock();
        let (gone, left): (Mappings, Mappings) = Mappings::clone(&self.mappings.load())
            .into_iter()
            .partition(|(_, loaded)| loaded.root == root);
        self.any.store(!left.is_empty(), Ordering::Release);
        self.mappings.store(Arc::new(left));
        gone.into_values().map(|loaded| loaded.id).collect()
    }
}

impl Store {
    /// Blocks of datasets below the encryption root `root` are not decrypted any more, and what was decrypted of them
    /// leaves the caches (`spa_keystore_remove_mapping`).
    pub fn forget_keys(&self, root: u64) {
        let gone = self.keys().unmap_root(root);
        if !gone.is_empty() {
            self.forget_decrypted(&gone);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A failure fails the test.

    use super::*;
    use cenote_format::crypt::{HMAC_KEY_LEN, Secret, Suite};

    fn key(root: u64) -> Arc<LoadedKey> {
        let secret = Secret::zeros(32 + HMAC_KEY_LEN).unwrap();
        LoadedKey::new(root, DatasetKey::of_random(Suite::Aes256Gcm, 1, secret).unwrap())
    }

    #[test]
    fn mappings_go_with_their_encryption_root() {
        let (keys, a, b) = (Keys::default(), key(1), key(2));
        assert!(keys.of(10).is_none() && a.id() != b.id());
        keys.map(10, &a);
        keys.map(11, &a);
        keys.map(12, &b);
        assert_eq!(keys.of(11).unwrap().id(), a.id());
        let mut gone = keys.unmap_root(1);
        gone.dedup();
        assert_eq!(gone, [a.id()]);
        assert!(keys.of(10).is_none() && keys.of(11).is_none() && keys.of(12).is_some());
        keys.unmap(12);
        assert!(keys.of(12).is_none());
    }
}
