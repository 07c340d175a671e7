//! The key of a dataset as it lies in the MOS (`DSL_CRYPTO_KEY`).

use crate::Dsl;
use cenote_dmu::zap::Zap;
use cenote_dmu::{Error, Result};
use cenote_format::crypt::{KEY_VERSION, Suite, WrappedKey};

/// Field of a zapified directory: its key (`DD_FIELD_CRYPTO_KEY_OBJ`).
pub(crate) const CRYPTO_KEY: &str = "com.datto:crypto_key_obj";
/// Entries of the ZAP of a key (`DSL_CRYPTO_KEY_*`).
pub(crate) const SUITE: &[u8] = b"DSL_CRYPTO_SUITE";
pub(crate) const GUID: &[u8] = b"DSL_CRYPTO_GUID";
pub(crate) const ROOT: &[u8] = b"DSL_CRYPTO_ROOT_DDOBJ";
const IV: &[u8] = b"DSL_CRYPTO_IV";
const MAC: &[u8] = b"DSL_CRYPTO_MAC";
const MASTER_KEY: &[u8] = b"DSL_CRYPTO_MASTER_KEY_1";
const HMAC_KEY: &[u8] = b"DSL_CRYPTO_HMAC_KEY_1";
const VERSION: &[u8] = b"DSL_CRYPTO_VERSION";
const FORMAT: &[u8] = b"keyformat";
const SALT: &[u8] = b"pbkdf2salt";
const ITERATIONS: &[u8] = b"pbkdf2iters";

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
        let missing = |what: &[u8]| {
            self.corrupt(object, format!("a key without {}", String::from_utf8_lossy(what)))
        };
        let number = |name: &[u8]| zap.u64(name)?.ok_or_else(|| missing(name));
        let suite = Suite::from_u64(number(SUITE)?).map_err(|e| self.undecodable(object, e))?;
        // Keys of the first version do not tell it.
        let version = zap.u64(VERSION)?.unwrap_or(0);
        if version > KEY_VERSION {
            return Err(self.corrupt(object, format!("a key of version {version}")));
        }
        let format = match number(FORMAT)? {
            1 => KeyFormat::Raw,
            2 => KeyFormat::Hex,
            3 => KeyFormat::Passphrase,
            n => return Err(self.corrupt(object, format!("a key of format {n}"))),
        };
        Ok(CryptoKey {
            object,
            root: number(ROOT)?,
            wrapped: WrappedKey {
                suite,
                guid: number(GUID)?,
                version,
                iv: bytes(&zap, IV, missing)?,
                mac: bytes(&zap, MAC, missing)?,
                master: bytes(&zap, MASTER_KEY, missing)?,
                hmac: bytes(&zap, HMAC_KEY, missing)?,
            },
            format,
            salt: zap.u64(SALT)?.unwrap_or(0),
            iterations: zap.u64(ITERATIONS)?.unwrap_or(0),
        })
    }
}

/// An entry of `N` bytes.
fn bytes<const N: usize>(
    zap: &Zap,
    name: &[u8],
    missing: impl Fn(&[u8]) -> Error,
) -> Result<[u8; N]> {
    let entry = zap.lookup(name)?.ok_or_else(|| missing(name))?;
    entry.bytes().try_into().map_err(|_| missing(name))
}
