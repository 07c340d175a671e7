//! Which datasets' keys are loaded (`spa_keystore_t`'s key mappings).
//!
//! A block of an encrypted dataset is decrypted with the key of the dataset through which it is read: the object set of
//! its [`Bookmark`](crate::Bookmark). A dataset, its snapshots and its clones have mappings of their own, to one key.
//!
//! Invariants:
//!
//! - A loaded key has a number that no other has had before, so that what was decrypted is never taken for what a key
//!   that was loaded later decrypts.
//! - A salt serves no more blocks than [`SALT_USES`].
//! - A pool without loaded keys pays one relaxed load for each block.

use arc_swap::ArcSwap;
use cenote_format::crypt::{BlockParams, CryptError, DatasetKey, IV_LEN, Salt};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::pipeline::Store;

/// Which key a reader of a block has: the number of the loaded key ([`LoadedKey::id`]); [`PLAIN`] without one. What was
/// decrypted or authenticated with a key is found in the caches by readers with this key alone.
pub(crate) type View = u64;

/// The view of a reader without a key.
pub(crate) const PLAIN: View = 0;

/// The key of a dataset that is loaded (`dsl_key_mapping_t`).
#[derive(Debug)]
pub struct LoadedKey {
    id: u64,
    /// Object of the directory that is the encryption root.
    root: AtomicU64,
    key: DatasetKey,
    /// The salt of what is written, and how many blocks it served.
    salt: Mutex<Option<(Salt, u64)>>,
}

/// Blocks that are encrypted with one salt (`ZFS_CURRENT_MAX_SALT_USES_DEFAULT`).
const SALT_USES: u64 = 400_000_000;

impl LoadedKey {
    /// A key that the encryption root `root` unwrapped.
    pub fn new(root: u64, key: DatasetKey) -> Arc<LoadedKey> {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = AtomicU64::new(root);
        Arc::new(LoadedKey { id, root, key, salt: Mutex::default() })
    }

    /// Object of the directory that is its encryption root.
    pub fn root(&self) -> u64 {
        self.root.load(Ordering::Acquire)
    }

    /// It has another encryption root from now on.
    pub fn set_root(&self, root: u64) {
        self.root.store(root, Ordering::Release);
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

/// Where random numbers come from.
pub type Random = Arc<dyn Fn() -> io::Result<u64> + Send + Sync>;

type Mappings = HashMap<u64, Arc<LoadedKey>>;

/// The loaded keys of a pool, by object set.
#[derive(Default)]
pub struct Keys {
    any: AtomicBool,
    mappings: ArcSwap<Mappings>,
    /// Object sets that are received raw.
    raw: ArcSwap<HashSet<u64>>,
    changes: Mutex<()>,
    random: OnceLock<Random>,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Keys {
    /// From now on salts and initialization vectors come from `random`, as long as none came from elsewhere.
    pub fn set_random(&self, random: Random) {
        self.random.get_or_init(|| random);
    }

    fn random(&self) -> Result<u64, CryptError> {
        match self.random.get() {
            Some(random) => random().map_err(|e| CryptError::Random(e.to_string())),
            None => Err(CryptError::Random("the pool was not opened for writing".into())),
        }
    }

    /// What the next block that `key` encrypts gets: the salt that is in use, and an initialization vector of its own
    /// (`zio_crypt_key_get_salt`, `zio_crypt_generate_iv`).
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn params(&self, key: &LoadedKey) -> Result<BlockParams, CryptError> {
        let mut iv = [0; IV_LEN];
        let words = [self.random()?, self.random()?];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        iv.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        let mut current = key.salt.lock();
        let (salt, uses) = match current.filter(|(_, uses)| *uses < SALT_USES) {
            Some(current) => current,
            None => (self.random()?.to_le_bytes(), 0),
        };
        *current = Some((salt, uses + 1));
        Ok(BlockParams { salt, iv })
    }

    /// The key with which blocks of `objset` are read, if it is loaded (`spa_keystore_lookup_key`).
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

    /// Whether `objset` is being received raw: what leads on in it is read as it is on disk, and no key is used.
    pub fn is_raw(&self, objset: u64) -> bool {
        self.raw.load().contains(&objset)
    }

    /// From now on `objset` is being received raw, or is no longer.
    pub fn set_raw(&self, objset: u64, raw: bool) {
        let _changes = self.changes.lock();
        let mut all = HashSet::clone(&self.raw.load());
        match raw {
            true => all.insert(objset),
            false => all.remove(&objset),
        };
        self.raw.store(Arc::new(all));
    }

    /// Takes the mapping of `objset` away. Returns its key's number if nothing else is read with that.
    fn unmap(&self, objset: u64) -> Option<u64> {
        self.of(objset)?;
        let _changes = self.changes.lock();
        let mut mappings = Mappings::clone(&self.mappings.load());
        let gone = mappings.remove(&objset)?;
        let is_left = mappings.values().any(|key| key.id == gone.id);
        self.mappings.store(Arc::new(mappings));
        (!is_left).then_some(gone.id)
    }

    /// The numbers of the keys that object sets are read with.
    pub(crate) fn ids(&self) -> BTreeSet<u64> {
        match self.any.load(Ordering::Acquire) {
            true => self.mappings.load().values().map(|key| key.id).collect(),
            false => BTreeSet::new(),
        }
    }

    /// Takes the mappings of an encryption root away. Returns their keys' numbers.
    fn unmap_root(&self, root: u64) -> Vec<u64> {
        let _changes = self.changes.lock();
        let (gone, left): (Mappings, Mappings) = Mappings::clone(&self.mappings.load())
            .into_iter()
            .partition(|(_, loaded)| loaded.root() == root);
        self.any.store(!left.is_empty(), Ordering::Release);
        self.mappings.store(Arc::new(left));
        gone.into_values().map(|loaded| loaded.id).collect()
    }
}

impl Store {
    /// Blocks of datasets below the encryption root `root` are not decrypted any more, and what was decrypted of them
    /// leaves the caches (`spa_keystore_remove_mapping`), and so does what the keys `more` have decrypted.
    pub fn forget_keys(&self, root: u64, more: &[u64]) {
        let gone = [self.keys().unmap_root(root).as_slice(), more].concat();
        if !gone.is_empty() {
            self.forget_decrypted(&gone);
        }
    }

    /// Blocks of `objset` are not read with a key any more: its number belongs to another dataset now. What was decrypted
    /// leaves the caches with the last object set of its key.
    pub fn forget_key_of(&self, objset: u64) {
        if let Some(gone) = self.keys().unmap(objset) {
            self.forget_decrypted(&[gone]);
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
        keys.map(13, &b);
        assert_eq!((keys.unmap(12), keys.unmap(13)), (None, Some(b.id())));
        assert!(keys.of(12).is_none());
    }
}
