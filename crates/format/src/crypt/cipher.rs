//! The suites: AES with CCM or GCM (`zio_crypt_table`).

use super::params::{Iv, MAC_LEN, Mac};
use super::{CryptError, Result};
use crate::DecodeError;
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadCore, AeadInOut, KeyInit};
use ccm::Ccm;

type CcmOf<Aes> = Ccm<Aes, U16, U12>;
type GcmOf<Aes> = AesGcm<Aes, U12>;

/// A suite, by its number on disk (`enum zio_encrypt`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // Their names say it.
#[repr(u64)]
pub enum Suite {
    Aes128Ccm = 3,
    Aes192Ccm = 4,
    Aes256Ccm = 5,
    Aes128Gcm = 6,
    Aes192Gcm = 7,
    Aes256Gcm = 8,
}

impl Suite {
    /// All of them.
    pub const ALL: [Suite; 6] = [
        Suite::Aes128Ccm,
        Suite::Aes192Ccm,
        Suite::Aes256Ccm,
        Suite::Aes128Gcm,
        Suite::Aes192Gcm,
        Suite::Aes256Gcm,
    ];

    /// The suite with a number.
    ///
    /// # Errors
    /// No suite has this number.
    pub fn from_u64(n: u64) -> crate::Result<Suite> {
        let found = Suite::ALL.into_iter().find(|suite| *suite as u64 == n);
        found.ok_or_else(|| DecodeError::invalid("encryption key", format!("suite {n}")))
    }

    /// Bytes of a master key, and of a block's key.
    pub fn key_len(self) -> usize {
        match self {
            Suite::Aes128Ccm | Suite::Aes128Gcm => 16,
            Suite::Aes192Ccm | Suite::Aes192Gcm => 24,
            Suite::Aes256Ccm | Suite::Aes256Gcm => 32,
        }
    }

    /// Bytes of the largest block that it can encrypt. CCM counts them in 24 bits, as its nonce has 12 bytes.
    pub fn max_block(self) -> u64 {
        match self {
            Suite::Aes128Ccm | Suite::Aes192Ccm | Suite::Aes256Ccm => crate::MAX_BLOCK / 2,
            Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm => crate::MAX_BLOCK,
        }
    }

    /// The suite of the same mode whose key has 32 bytes, as a wrapping key has.
    pub(super) fn wrapping(self) -> Suite {
        match self {
            Suite::Aes128Ccm | Suite::Aes192Ccm | Suite::Aes256Ccm => Suite::Aes256Ccm,
            Suite::Aes128Gcm | Suite::Aes192Gcm | Suite::Aes256Gcm => Suite::Aes256Gcm,
        }
    }
}

impl std::fmt::Display for Suite {
    /// Its name as the property `encryption` has it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Suite::Aes128Ccm => "aes-128-ccm",
            Suite::Aes192Ccm => "aes-192-ccm",
            Suite::Aes256Ccm => "aes-256-ccm",
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes192Gcm => "aes-192-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
        })
    }
}

enum Keyed {
    Ccm128(CcmOf<Aes128>),
    Ccm192(CcmOf<Aes192>),
    Ccm256(CcmOf<Aes256>),
    Gcm128(GcmOf<Aes128>),
    Gcm192(GcmOf<Aes192>),
    Gcm256(GcmOf<Aes256>),
}

/// A suite with a key. Its key schedule is wiped when it is dropped.
pub struct Cipher(Box<Keyed>);

macro_rules! with {
    ($self:expr, $cipher:ident => $what:expr) => {
        match &*$self.0 {
            Keyed::Ccm128($cipher) => $what,
            Keyed::Ccm192($cipher) => $what,
            Keyed::Ccm256($cipher) => $what,
            Keyed::Gcm128($cipher) => $what,
            Keyed::Gcm192($cipher) => $what,
            Keyed::Gcm256($cipher) => $what,
        }
    };
}

fn seal<A>(cipher: &A, iv: &Iv, aad: &[u8], data: &mut [u8]) -> Result<Mac>
where
    A: AeadInOut + AeadCore<NonceSize = U12, TagSize = U16>,
{
    let len = data.len();
    let tag = cipher.encrypt_inout_detached(&(*iv).into(), aad, InOutBuf::from(data));
    tag.map(Into::into).map_err(|_| CryptError::TooLong(len))
}

fn open<A>(cipher: &A, iv: &Iv, aad: &[u8], data: &mut [u8], mac: &Mac) -> Result<()>
where
    A: AeadInOut + AeadCore<NonceSize = U12, TagSize = U16>,
{
    let opened =
        cipher.decrypt_inout_detached(&(*iv).into(), aad, InOutBuf::from(data), &(*mac).into());
    opened.map_err(|_| CryptError::Mac)
}

impl Cipher {
    /// The suite with a key of [`Suite::key_len`] bytes.
    ///
    /// # Errors
    /// The key has another length.
    pub fn new(suite: Suite, key: &[u8]) -> Result<Cipher> {
        let keyed = match suite {
            Suite::Aes128Ccm => KeyInit::new_from_slice(key).map(Keyed::Ccm128),
            Suite::Aes192Ccm => KeyInit::new_from_slice(key).map(Keyed::Ccm192),
            Suite::Aes256Ccm => KeyInit::new_from_slice(key).map(Keyed::Ccm256),
            Suite::Aes128Gcm => KeyInit::new_from_slice(key).map(Keyed::Gcm128),
            Suite::Aes192Gcm => KeyInit::new_from_slice(key).map(Keyed::Gcm192),
            Suite::Aes256Gcm => KeyInit::new_from_slice(key).map(Keyed::Gcm256),
        };
        let why = |_| DecodeError::invalid("encryption key", format!("{} bytes", key.len()));
        Ok(Cipher(Box::new(keyed.map_err(why)?)))
    }

    /// Encrypts `data` in place and authenticates it with `aad` (`zio_do_crypt_uio`).
    ///
    /// # Errors
    /// [`CryptError::TooLong`]: the suite takes fewer bytes (with CCM, less than 16 MiB).
    pub fn seal(&self, iv: &Iv, aad: &[u8], data: &mut [u8]) -> Result<Mac> {
        with!(self, cipher => seal(cipher, iv, aad, data))
    }

    /// Decrypts `data` in place. After an error what is in it means nothing.
    ///
    /// # Errors
    /// `data` and `aad` are not what `mac` was made of with this key and `iv`.
    pub fn open(&self, iv: &Iv, aad: &[u8], data: &mut [u8], mac: &Mac) -> Result<()> {
        const { assert!(MAC_LEN == 16) };
        with!(self, cipher => open(cipher, iv, aad, data, mac))
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cipher")
    }
}
