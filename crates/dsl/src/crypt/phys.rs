//! The key of a dataset as it lies in the MOS (`DSL_CRYPTO_KEY`).

use crate::Dsl;
use cenote_dmu::Result;
use cenote_format::crypt::{KEY_VERSION, Suite, WrappedKey};

/// Field of a zapified directory: its key (`DD_FIELD_CRYPTO_KEY_OBJ`).
pub(crate) const CRYPTO_KEY: &str = "com.datto:crypto_key_obj";
/// Entries of the ZAP of a key (`DSL_CRYPTO_KEY_*`).
pub(crate) const SUITE: &[u8] = b"DSL_CRYPTO_SUITE";
pub(crate) const GUID: &[u8] = b"DSL_CRYPTO_GUID";
pub(crate) const ROOT: &[u8] = b"DSL_CRYPTO_ROOT_DDOBJ";
/// How many directories have the key.
pub(crate) const REFERENCES: &[u8] = b"DSL_CRYPTO_REFCOUNT";
pub(crate) const IV: &[u8] = b"DSL_CRYPTO_IV";
pub(crate) const MAC: &[u8] = b"DSL_CRYPTO_MAC";
pub(crate) const MASTER_KEY: &[u8] = b"DSL_CRYPTO_MASTER_KEY_1";
pub(crate) const HMAC_KEY: &[u8] = b"DSL_CRYPTO_HMAC_KEY_1";
pub(crate) const VERSION: &[u8] = b"DSL_CRYPTO_VERSION";
pub(crate) const FORMAT: &[u8] = b"keyformat";
pub(crate) const SALT: &[u8] = b"pbkdf2salt";
pub(crate) const ITERATIONS: &[u8] = b"pbkdf2iters";

/// What a user's key looks like (`zfs_keyformat_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// A passphrase.
    Passphrase,
}

/// The key of a dataset, wrapped.
#[derive(Debug, Clone)]
pub struct CryptoKey {
    /// Its object in the MOS.
    pub object: u64,
    /// Object of the directory that is its encryption root.
    pub root: u64,
    /// The keys, wrapped with the key of the encryption root.
    pub wrapped: WrappedKey,
    /// What the user's key looks like.
    pub format: KeyFormat,
    /// Salt and iterations of a passphrase.
    pub salt: u64,
    /// Iterations of a passphrase.
    pub iterations: u64,
}

impl Dsl {
    /// The key of a directory; `None` if it is not encrypted.
    pub(crate) fn key_of_dir(&self, dir: u64) -> Result<Option<CryptoKey>> {
        match self.field_u64(dir, CRYPTO_KEY)? {
            Some(object) => self.read_key(object).map(Some),
            None => Ok(None),
        }
    }

    fn read_key(&self, object: u64) -> Result<CryptoKey> {
        let zap = self.zap(object)?;
        let get = |name: &[u8]| Ok(zap.lookup(name)?.map(|entry| entry.value));
        CryptoKey::decode(object, get, |why| self.corrupt(object, why))
    }
}

impl KeyFormat {
    /// The number on disk.
    pub fn number(self) -> u64 {
        match self {
            KeyFormat::Raw => 1,
            KeyFormat::Hex => 2,
            KeyFormat::Passphrase => 3,
        }
    }
}

impl CryptoKey {
    /// The key in a ZAP, whose entries `get` gives. `bad` is the error of one that makes no sense.
    pub(crate) fn decode<E>(
        object: u64,
        mut get: impl FnMut(&[u8]) -> std::result::Result<Option<Vec<u64>>, E>,
        bad: impl Fn(String) -> E,
    ) -> std::result::Result<CryptoKey, E> {
        let missing = |what: &[u8]| bad(format!("a key without {}", String::from_utf8_lossy(what)));
        let mut number = |name: &[u8]| match get(name)?.as_deref() {
            Some([number]) => Ok(Some(*number)),
            _ => Ok(None),
        };
        let mut needed = |name: &[u8]| number(name)?.ok_or_else(|| missing(name));
        let suite = Suite::from_u64(needed(SUITE)?).map_err(|e| bad(e.to_string()))?;
        let (guid, root, format) = (needed(GUID)?, needed(ROOT)?, needed(FORMAT)?);
        let format = match format {
            1 => KeyFormat::Raw,
            2 => KeyFormat::Hex,
            3 => KeyFormat::Passphrase,
            n => return Err(bad(format!("a key of format {n}"))),
        };
        // Keys of the first version do not tell it.
        let version = number(VERSION)?.unwrap_or(0);
        if version > KEY_VERSION {
            return Err(bad(format!("a key of version {version}")));
        }
        let (salt, iterations) = (number(SALT)?.unwrap_or(0), number(ITERATIONS)?.unwrap_or(0));
        let wrapped = WrappedKey {
            suite,
            guid,
            version,
            iv: bytes(get(IV)?).ok_or_else(|| missing(IV))?,
            mac: bytes(get(MAC)?).ok_or_else(|| missing(MAC))?,
            master: bytes(get(MASTER_KEY)?).ok_or_else(|| missing(MASTER_KEY))?,
            hmac: bytes(get(HMAC_KEY)?).ok_or_else(|| missing(HMAC_KEY))?,
        };
        Ok(CryptoKey { object, root, wrapped, format, salt, iterations })
    }
}

/// An entry of `N` bytes.
fn bytes<const N: usize>(entry: Option<Vec<u64>>) -> Option<[u8; N]> {
    let bytes: Vec<u8> = entry?.into_iter().map(|value| value as u8).collect();
    bytes.try_into().ok()
}
