//! Wrapping keys, and the keys of datasets as they lie wrapped on disk (`zio_crypt_key_wrap`, `zio_crypt_key_unwrap`,
//! `derive_key`).

#[cfg(doc)]
use super::CryptError;
use super::Result;
use super::cipher::{Cipher, Suite};
use super::key::DatasetKey;
use super::params::{Iv, Mac};
use super::secret::Secret;
use crate::DecodeError;
use hmac::Hmac;
use sha1::Sha1;

/// Bytes of a wrapping key (`WRAPPING_KEY_LEN`).
pub const WRAPPING_LEN: usize = 32;
/// Digits of a wrapping key in hexadecimal.
pub const HEX_LEN: usize = 2 * WRAPPING_LEN;
/// Most bytes of a master key (`MASTER_KEY_MAX_LEN`).
pub const MASTER_KEY_MAX: usize = 32;
/// Bytes of a key of HMACs (`SHA512_HMAC_KEYLEN`).
pub const HMAC_KEY_LEN: usize = 64;
/// The version in which keys are written (`ZIO_CRYPT_KEY_CURRENT_VERSION`).
pub const KEY_VERSION: u64 = 1;
/// Fewest bytes of a passphrase.
pub const PASSPHRASE_MIN: usize = 8;
/// Most bytes of a passphrase.
pub const PASSPHRASE_MAX: usize = 512;

/// The key of a user, which wraps the keys of datasets (`dsl_wrapping_key_t`).
#[derive(Debug)]
pub struct WrappingKey(Secret);

impl WrappingKey {
    /// The key of these bytes.
    ///
    /// # Errors
    /// They are not [`WRAPPING_LEN`] bytes.
    pub fn from_raw(key: &[u8]) -> Result<WrappingKey> {
        match key.len() {
            WRAPPING_LEN => Secret::copy_of(key).map(WrappingKey),
            n => Err(DecodeError::invalid("wrapping key", format!("{n} bytes")).into()),
        }
    }

    /// The key of [`HEX_LEN`] hexadecimal digits.
    ///
    /// # Errors
    /// They are none.
    pub fn from_hex(digits: &[u8]) -> Result<WrappingKey> {
        let bad = || DecodeError::invalid("wrapping key", "not of 64 hexadecimal digits");
        let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
        let mut key = Secret::zeros(WRAPPING_LEN)?;
        if digits.len() != HEX_LEN {
            return Err(bad().into());
        }
        for (to, pair) in key.bytes_mut().iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = *pair else { return Err(bad().into()) };
            *to = digit(high).zip(digit(low)).map(|(h, l)| h << 4 | l).ok_or_else(bad)?;
        }
        Ok(WrappingKey(key))
    }

    /// The key of a passphrase (PBKDF2 with HMAC-SHA1). It takes time by `iterations`.
    ///
    /// # Errors
    /// There are too many or no iterations.
    pub fn from_passphrase(phrase: &[u8], salt: u64, iterations: u64) -> Result<WrappingKey> {
        let rounds = u32::try_from(iterations).ok().filter(|n| *n > 0);
        let why = || DecodeError::invalid("wrapping key", format!("{iterations} iterations"));
        let rounds = rounds.ok_or_else(why)?;
        let mut key = Secret::zeros(WRAPPING_LEN)?;
        pbkdf2::pbkdf2::<Hmac<Sha1>>(phrase, &salt.to_le_bytes(), rounds, key.bytes_mut())
            .map_err(|_| why())?;
        Ok(WrappingKey(key))
    }

    /// Unwraps the key of a dataset.
    ///
    /// # Errors
    /// [`CryptError::Mac`]: it was wrapped with another key.
    pub fn unwrap(&self, wrapped: &WrappedKey) -> Result<DatasetKey> {
        let suite = wrapped.suite;
        let len = suite.key_len();
        let mut keys = Secret::zeros(len + HMAC_KEY_LEN)?;
        let (master, hmac) = keys.bytes_mut().split_at_mut(len);
        master.copy_from_slice(&wrapped.master[..len]);
        hmac.copy_from_slice(&wrapped.hmac);
        let aad = wrapped.aad();
        let cipher = Cipher::new(suite.wrapping(), self.0.bytes())?;
        cipher.open(&wrapped.iv, &aad, keys.bytes_mut(), &wrapped.mac)?;
        Ok(DatasetKey::new(suite, wrapped.version, wrapped.guid, keys))
    }

    /// Wraps the key of a dataset with a new initialization vector.
    ///
    /// # Errors
    /// There is no memory.
    pub fn wrap(&self, key: &DatasetKey, iv: Iv) -> Result<WrappedKey> {
        let mut wrapped = WrappedKey {
            suite: key.suite(),
            guid: key.guid(),
            version: key.version(),
            iv,
            mac: [0; 16],
            master: [0; MASTER_KEY_MAX],
            hmac: [0; HMAC_KEY_LEN],
        };
        let len = wrapped.suite.key_len();
        let mut keys = Secret::zeros(len + HMAC_KEY_LEN)?;
        let (master, hmac) = keys.bytes_mut().split_at_mut(len);
        master.copy_from_slice(key.master());
        hmac.copy_from_slice(key.hmac_key());
        let cipher = Cipher::new(wrapped.suite.wrapping(), self.0.bytes())?;
        wrapped.mac = cipher.seal(&iv, &wrapped.aad(), keys.bytes_mut())?;
        let (master, hmac) = keys.bytes().split_at(len);
        wrapped.master[..len].copy_from_slice(master);
        wrapped.hmac.copy_from_slice(hmac);
        Ok(wrapped)
    }
}

/// The key of a dataset, wrapped (what of `DSL_CRYPTO_KEY` is cryptography). Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// The suite.
    pub suite: Suite,
    /// The guid.
    pub guid: u64,
    /// The version of the format: 0 or [`KEY_VERSION`].
    pub version: u64,
    /// The initialization vector.
    pub iv: Iv,
    /// The MAC.
    pub mac: Mac,
    /// The master key; zeros behind what the suite takes.
    pub master: [u8; MASTER_KEY_MAX],
    /// The key of HMACs.
    pub hmac: [u8; HMAC_KEY_LEN],
}

impl WrappedKey {
    /// What is authenticated with it: the guid; from version 1 on also the suite and the version.
    fn aad(&self) -> Vec<u8> {
        let words = [self.guid, self.suite as u64, self.version];
        let count = if self.version == 0 { 1 } else { words.len() };
        words.iter().take(count).flat_map(|word| word.to_le_bytes()).collect()
    }
}
