//! The keys of a pool that are loaded (`spa_keystore_t`).
//!
//! Here are the wrapping keys of encryption roots, and the keys of datasets that they have unwrapped. Which object sets
//! are read with them is known where blocks are read (`cenote_store`'s `keys`).
//!
//! Invariants:
//!
//! - A mapping is made while its wrapping key is held in place, and unloading waits for that: no mapping outlives its
//!   wrapping key.
//! - The wrapping keys change with those on disk, in syncing context. Until the group is shown both open what they wrapped.
//! - An unwrapped key serves only the datasets whose key on disk has its guid: the object of a destroyed one's key may
//!   be given to another.
//! - A scan maps no object sets, as its view may be old: it has keys for itself, which go with their wrapping keys as well.
//! - An object set that was opened before a key was loaded or unloaded is opened anew after ([`Keystore::generation`]).

use super::CryptoKey;
use crate::Dsl;
use cenote_dmu::Result;
use cenote_format::crypt::WrappingKey;
use cenote_store::keys::LoadedKey;
use cenote_store::{ScanKeys, Store};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Keystore {
    /// By objects of directories.
    wrapping: RwLock<BTreeMap<u64, Arc<WrappingKey>>>,
    /// Encryption roots that were made, or have got another key, in a group that is not shown yet; with the former one.
    former: Mutex<BTreeMap<u64, Option<Arc<WrappingKey>>>>,
    /// What they have unwrapped, by objects of keys.
    unwrapped: Mutex<BTreeMap<u64, Arc<LoadedKey>>>,
    /// What scans have of them.
    scans: Mutex<Vec<Weak<ScanKeys>>>,
    generation: AtomicU64,
}

/// What a key is unwrapped for.
#[derive(Clone, Copy)]
enum Uses<'a> {
    /// Blocks are read with it from now on.
    Readers,
    /// A scan looks at MACs with it. Its encryption root is that of the scan's view, and may be another one by now.
    Scan(&'a ScanKeys),
}

impl Keystore {
    /// Whether the key of an encryption root is loaded.
    pub fn has(&self, root: u64) -> bool {
        self.wrapping.read().contains_key(&root)
    }

    /// The key of an encryption root, if it is loaded (`spa_keystore_wkey_hold_dd`).
    pub fn wrapping(&self, root: u64) -> Option<Arc<WrappingKey>> {
        self.wrapping.read().get(&root).cloned()
    }

    /// An encryption root was made, or has another key: that is loaded. The keys in `objects`, if they are, are those of
    /// datasets whose encryption root is `root` now. This is said in syncing context; until the group is shown
    /// ([`Keystore::settled`]) keys open with the former key as well.
    pub fn changed(&self, root: u64, key: &Arc<WrappingKey>, objects: &[u64]) {
        let mut wrapping = self.wrapping.write();
        let former = wrapping.insert(root, key.clone());
        self.former.lock().insert(root, former);
        let unwrapped = self.unwrapped.lock();
        objects
            .iter()
            .filter_map(|object| unwrapped.get(object))
            .for_each(|key| key.set_root(root));
        self.tell_scans(|scan| scan.rooted(objects, root));
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The directory `to` has taken the place of the encryption root `from`, whose key is its own now if that is loaded. The
    /// one of `from` stays until the group is shown ([`crate::Dsl::forget_root`]).
    pub fn moved(&self, from: u64, to: u64, objects: &[u64]) {
        match self.wrapping(from) {
            Some(key) => self.changed(to, &key, objects),
            None => {
                // The number may have been another encryption root's.
                self.forget(to);
                self.rooted(to, objects);
            }
        }
    }

    /// The group is shown in which an encryption root has got another key: the former one opens nothing any more.
    pub fn settled(&self, root: u64) {
        if self.former.lock().remove(&root).is_some() {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The keys in `objects`, if they are unwrapped, are those of datasets whose encryption root is `root` now, be its key
    /// loaded or not: what is open stays so. This is said in syncing context.
    pub fn rooted(&self, root: u64, objects: &[u64]) {
        let _wrapping = self.wrapping.write();
        let unwrapped = self.unwrapped.lock();
        let theirs = objects.iter().filter_map(|object| unwrapped.get(object));
        theirs.for_each(|key| key.set_root(root));
        self.tell_scans(|scan| scan.rooted(objects, root));
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The encryption roots whose keys are loaded, or keys that they have unwrapped; but for those of a group that is not
    /// shown yet.
    pub fn roots(&self) -> BTreeSet<u64> {
        let (wrapping, former) = (self.wrapping.read(), self.former.lock());
        let mut roots: BTreeSet<u64> = wrapping.keys().copied().collect();
        roots.extend(self.unwrapped.lock().values().map(|key| key.root()));
        roots.retain(|root| !former.contains_key(root));
        roots
    }

    /// The key of an encryption root is not loaded any more, for the root has another one, or is another directory. What it has
    /// unwrapped stays until that is not in use ([`crate::Dsl::forget_root`]).
    pub fn forget(&self, root: u64) {
        self.wrapping.write().remove(&root);
        self.former.lock().remove(&root);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Keys for a scan; none yet ([`Dsl::lend_key`]). What is unloaded leaves them.
    pub fn keys_for_scan(&self) -> Arc<ScanKeys> {
        let keys = Arc::new(ScanKeys::default());
        let mut scans = self.scans.lock();
        scans.retain(|scan| scan.strong_count() > 0);
        scans.push(Arc::downgrade(&keys));
        keys
    }

    /// A number that changes when a key is loaded or unloaded.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether it was loaded: it was not there before.
    pub(super) fn load(&self, root: u64, key: WrappingKey) -> bool {
        let mut wrapping = self.wrapping.write();
        let new = !wrapping.contains_key(&root);
        if new {
            wrapping.insert(root, Arc::new(key));
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        new
    }

    /// Whether it was unloaded: it was there before.
    pub(super) fn unload(&self, root: u64, store: &Store) -> bool {
        let mut wrapping = self.wrapping.write();
        let was_there = wrapping.remove(&root).is_some();
        if was_there {
            self.former.lock().remove(&root);
        }
        self.forget_unwrapped(root, store);
        was_there
    }

    /// As [`Keystore::unload`], but a key that is loaded stays loaded, with what it has unwrapped, unless it is `gone`.
    pub(super) fn tidy(&self, root: u64, gone: bool, store: &Store) {
        let mut wrapping = self.wrapping.write();
        if gone && wrapping.remove(&root).is_some() {
            self.former.lock().remove(&root);
        }
        if !wrapping.contains_key(&root) {
            self.forget_unwrapped(root, store);
        }
    }

    fn tell_scans(&self, tell: impl Fn(&ScanKeys)) {
        self.scans.lock().iter().filter_map(Weak::upgrade).for_each(|scan| tell(&scan));
    }

    /// Wipes the keys that the encryption root has unwrapped. The caller keeps others from unwrapping one.
    fn forget_unwrapped(&self, root: u64, store: &Store) {
        let mut gone = Vec::new();
        self.unwrapped.lock().retain(|_, key| {
            let stays = key.root() != root;
            gone.extend((!stays).then_some(key.id()));
            stays
        });
        store.forget_keys(root, &gone);
        self.tell_scans(|scan| scan.forget(root));
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

impl Dsl {
    /// Has blocks of the object set `ds_obj`, whose directory is `dir`, read with its key, if that is loaded
    /// (`spa_keystore_create_mapping`).
    ///
    /// # Errors
    /// The key cannot be read, or not be unwrapped.
    pub fn map_key(&self, ds_obj: u64, dir: u64) -> Result<()> {
        if self.keys.wrapping.read().is_empty() {
            return Ok(());
        }
        let store = self.mos.store();
        match self.key_of_dir(dir)? {
            None => store.forget_key_of(ds_obj),
            Some(key) => self.loaded(&key, Uses::Readers, &|key| store.keys().map(ds_obj, key))?,
        }
        Ok(())
    }

    /// Has `keys` ([`Keystore::keys_for_scan`]) hold the key of the object set `ds_obj`, whose directory is `dir`, if that is loaded. Nothing is
    /// read with it: this may be an old view of the pool, in which numbers are those of other datasets.
    ///
    /// # Errors
    /// The key cannot be read, or not be unwrapped.
    pub fn lend_key(&self, ds_obj: u64, dir: u64, keys: &ScanKeys) -> Result<()> {
        if self.keys.wrapping.read().is_empty() {
            return Ok(());
        }
        match self.key_of_dir(dir)? {
            None => Ok(()),
            Some(key) => {
                let add = |loaded: &Arc<LoadedKey>| keys.add(ds_obj, key.object, loaded);
                self.loaded(&key, Uses::Scan(keys), &add)
            }
        }
    }

    /// Hands over what a key on disk is unwrapped, while its wrapping key is held in place (`spa_keystore_dsl_key_hold_dd`);
    /// nothing, if that is not loaded.
    fn loaded(
        &self,
        key: &CryptoKey,
        uses: Uses<'_>,
        take: &dyn Fn(&Arc<LoadedKey>),
    ) -> Result<()> {
        // Nothing is read with the lock: a device that hangs keeps no command about keys waiting.
        let wrapping = self.keys.wrapping.read();
        let Some(with) = wrapping.get(&key.root) else { return Ok(()) };
        let mut unwrapped = self.keys.unwrapped.lock();
        let (object, guid) = (key.object, key.wrapped.guid);
        let kept = unwrapped.get(&object).filter(|kept| kept.key().guid() == guid).cloned();
        let kept = match uses {
            Uses::Readers => kept,
            Uses::Scan(keys) => kept.or_else(|| keys.known(object, guid)),
        };
        let loaded = match kept {
            Some(loaded) => loaded,
            None => {
                let why = |e| self.corrupt(key.object, format!("it cannot be unwrapped: {e}"));
                let former = self.keys.former.lock().get(&key.root).cloned().flatten();
                let opened = with.unwrap(&key.wrapped).or_else(|e| match former {
                    Some(former) => former.unwrap(&key.wrapped),
                    None => Err(e),
                });
                let loaded = LoadedKey::new(key.root, opened.map_err(why)?);
                if matches!(uses, Uses::Readers) {
                    unwrapped.insert(object, loaded.clone());
                }
                loaded
            }
        };
        take(&loaded);
        Ok(())
    }
}
