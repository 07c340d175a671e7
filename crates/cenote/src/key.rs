//! Keys of encrypted datasets.

use crate::{Dataset, Error, ErrorKind, Result};
use cenote_dsl::crypt::{KeyError, KeyFormat};
use cenote_engine::keys::UnloadError;
use cenote_format::crypt::WrappingKey;

/// A key, as a user has it. It is not shown by `Debug`; the program that has it wipes it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Key<'a> {
    /// A passphrase.
    Passphrase(&'a str),
    /// 64 hexadecimal digits.
    Hex(&'a str),
    /// 32 bytes.
    Raw(&'a [u8]),
}

impl std::fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

pub(crate) fn kind(e: &KeyError) -> ErrorKind {
    match e {
        KeyError::Incorrect(_) => ErrorKind::Denied,
        KeyError::Loaded(_) => ErrorKind::Exists,
        KeyError::Unloaded(_) => ErrorKind::NotFound,
        KeyError::NotEncrypted(_) | KeyError::NotRoot { .. } => ErrorKind::Invalid,
        KeyError::Read(_) => ErrorKind::Pool,
    }
}

impl Dataset {
    /// Loads the key of an encryption root: what is encrypted with it can be read then, in all of the pool. A passphrase
    /// takes its time, by the property `pbkdf2iters`.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`]: it is not the key; [`ErrorKind::Exists`]: it is loaded; [`ErrorKind::Invalid`]: the dataset is
    /// not encrypted or no encryption root, or the key has not the form that it is to have.
    pub fn load_key(&self, key: Key<'_>) -> Result<()> {
        let view = self.pool().view();
        let now = self.now(&view)?;
        let Some(wrapped) = view.dsl().crypto_key(&now)? else {
            return Err(KeyError::NotEncrypted(now.name).into());
        };
        let wrapping = match (key, wrapped.format) {
            (Key::Passphrase(phrase), KeyFormat::Passphrase) => {
                WrappingKey::from_passphrase(phrase.as_bytes(), wrapped.salt, wrapped.iterations)
            }
            (Key::Hex(digits), KeyFormat::Hex) => WrappingKey::from_hex(digits.as_bytes()),
            (Key::Raw(bytes), KeyFormat::Raw) => WrappingKey::from_raw(bytes),
            _ => {
                return Err(Error::Kind {
                    name: now.name,
                    wanted: "dataset with a key of this form",
                });
            }
        };
        let wrapping = wrapping.map_err(|_| Error::Kind {
            name: now.name.clone(),
            wanted: "dataset with such a key",
        })?;
        Ok(view.dsl().load_key(&now, wrapping)?)
    }

    /// Unloads the key of an encryption root and wipes it. What is open of its datasets for reading cannot be read any more; no
    /// other thread may open one for writing meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]: a dataset that it opens is open for writing;
    /// [`ErrorKind::NotFound`]: it is not loaded; [`ErrorKind::Invalid`]: the dataset is not encrypted, or no encryption
    /// root.
    pub fn unload_key(&self) -> Result<()> {
        let view = self.pool().view();
        let now = self.now(&view)?;
        let Ok(engine) = self.pool().engine() else { return Ok(view.dsl().unload_key(&now)?) };
        engine.unload_key(&now).map_err(|e| match e {
            UnloadError::Busy(name) => Error::Busy(name),
            UnloadError::Key(e) => e.into(),
            UnloadError::Engine(e) => e.into(),
        })
    }
}
