//! Keys of encrypted datasets (`dsl_crypt.c`).
//!
//! A directory that is encrypted names its key (`com.datto:crypto_key_obj`): a ZAP with the dataset's keys, wrapped
//! (`DSL_CRYPTO_KEY`), and with the directory that is its *encryption root*. The key of an encryption root opens all
//! datasets below it that have the same root. A clone has the key of its origin.
//!
//! | module | what |
//! |---|---|
//! | [`keydata`] | what a raw stream says of keys |
//! | [`phys`] | the key as it lies in the MOS |
//! | [`store`] | keys that are loaded, of one pool (`spa_keystore_t`) |
//!
//! A dataset gets its mapping to a key when its object set is opened ([`Dsl::open_objset`]).

pub mod keydata;
pub mod phys;
pub mod store;

use crate::{Dataset, Dsl};
use cenote_dmu::Error;
use cenote_format::crypt::{CryptError, WrappingKey};
pub use phys::{CryptoKey, KeyFormat};
use std::sync::Arc;
pub use store::Keystore;

/// Why a key is not loaded or unloaded.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The dataset is not encrypted.
    #[error("'{0}' is not encrypted.")]
    NotEncrypted(String),
    /// The key is that of another directory: the encryption root.
    #[error("the encryption root of '{dataset}' is '{root}'")]
    NotRoot {
        /// The dataset.
        dataset: String,
        /// Its encryption root.
        root: String,
    },
    /// It is loaded.
    #[error("Key already loaded for '{0}'.")]
    Loaded(String),
    /// It is not loaded.
    #[error("Key already unloaded for '{0}'.")]
    Unloaded(String),
    /// It is another one.
    #[error("Incorrect key provided for '{0}'.")]
    Incorrect(String),
    /// The wrapped key cannot be read.
    #[error(transparent)]
    Read(#[from] Error),
}

impl Dsl {
    /// The keys of this pool that are loaded.
    pub fn keystore(&self) -> &Arc<Keystore> {
        &self.keys
    }

    /// The key of a dataset; `None` if it is not encrypted.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn crypto_key(&self, d: &Dataset) -> cenote_dmu::Result<Option<CryptoKey>> {
        self.key_of_dir(d.dir_obj)
    }

    /// The encryption root of a dataset (`dsl_dir_get_encryption_root_ddobj`); `None` if it is not encrypted.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn encryption_root(&self, d: &Dataset) -> cenote_dmu::Result<Option<String>> {
        let Some(key) = self.crypto_key(d)? else { return Ok(None) };
        Ok(Some(self.dir(key.root)?.name.clone()))
    }

    /// Whether the key of a dataset is loaded; `None` if it is not encrypted.
    ///
    /// # Errors
    /// The key cannot be read.
    pub fn is_key_loaded(&self, d: &Dataset) -> cenote_dmu::Result<Option<bool>> {
        Ok(self.crypto_key(d)?.map(|key| self.keys.has(key.root)))
    }

    /// The key of an encryption root.
    fn root_key(&self, d: &Dataset) -> Result<CryptoKey, KeyError> {
        let Some(key) = self.crypto_key(d)? else {
            return Err(KeyError::NotEncrypted(d.name.clone()));
        };
        match key.root == d.dir_obj {
            true => Ok(key),
            false => {
                let root = self.dir(key.root)?.name.clone();
                Err(KeyError::NotRoot { dataset: d.name.clone(), root })
            }
        }
    }

    /// Whether `with` is the key of the encryption root `d`.
    ///
    /// # Errors
    /// `Incorrect`: it is not; others as of [`Dsl::load_key`].
    pub fn verify_key(&self, d: &Dataset, with: &WrappingKey) -> Result<(), KeyError> {
        let key = self.root_key(d)?;
        match with.unwrap(&key.wrapped) {
            Ok(_) => Ok(()),
            Err(CryptError::Mac) => Err(KeyError::Incorrect(d.name.clone())),
            Err(e) => Err(self.corrupt(key.object, e.to_string()).into()),
        }
    }

    /// Loads the key of the encryption root `d` (`spa_keystore_load_wkey`, `zfs_ioc_load_key`, `lzc_load_key`).
    ///
    /// # Errors
    /// It is not encrypted, or not an encryption root; the key is another one, or loaded already.
    pub fn load_key(&self, d: &Dataset, with: WrappingKey) -> Result<(), KeyError> {
        self.verify_key(d, &with)?;
        match self.keys.load(d.dir_obj, with) {
            true => Ok(()),
            false => Err(KeyError::Loaded(d.name.clone())),
        }
    }

    /// Unloads the key of the encryption root `d` (`spa_keystore_unload_wkey`): it and the keys of datasets that it
    /// unwrapped are wiped. The caller sees to it that these datasets are not in use.
    ///
    /// # Errors
    /// It is not encrypted, or not an encryption root; its key is not loaded.
    pub fn unload_key(&self, d: &Dataset) -> Result<(), KeyError> {
        match self.unload_root(self.key_root(d)?) {
            true => Ok(()),
            false => Err(KeyError::Unloaded(d.name.clone())),
        }
    }

    /// The directory of the encryption root `d`.
    ///
    /// # Errors
    /// It is not encrypted, or not an encryption root.
    pub fn key_root(&self, d: &Dataset) -> Result<u64, KeyError> {
        Ok(self.root_key(d)?.root)
    }

    /// Unloads the key of an encryption root; nothing is read. Returns whether it was loaded.
    pub fn unload_root(&self, root: u64) -> bool {
        let unloaded = self.keys.unload(root, self.mos.store());
        // Object sets keep what they have decoded.
        self.objsets.clear();
        unloaded
    }

    /// Whether a directory is no encryption root: it was destroyed, or has its parent's key.
    pub fn is_root_gone(&self, root: u64) -> bool {
        match self.key_of_dir(root) {
            Ok(key) => key.is_none_or(|key| key.root != root),
            Err(Error::NoObject { .. }) => true,
            Err(_) => false,
        }
    }

    /// Wipes what an encryption root has unwrapped whose key is not loaded; and its key, if the root is `gone`. The caller sees
    /// to it that these datasets are not in use.
    pub fn forget_root(&self, root: u64, gone: bool) {
        self.keys.tidy(root, gone, self.mos.store());
        self.objsets.clear();
    }
}
