//! Native encryption: the cryptography of the format (`zio_crypt.c`, `hkdf.c`).
//!
//! # Keys
//!
//! ```text
//! passphrase ── PBKDF2 ──┐
//! hex, raw ──────────────┴> wrapping key ── unwraps ──> master key, HMAC key   (of a dataset; DSL_CRYPTO_KEY)
//!                                                           │           └─ HMAC-SHA512: what is authenticated only
//!                                                           └─ HKDF-SHA512 with a block's salt ──> the block's key
//! ```
//!
//! The user's key wraps the keys of datasets ([`WrappingKey`], [`WrappedKey`]). A dataset's key ([`DatasetKey`]) derives
//! the key of each block from the salt in the block's pointer.
//!
//! # What protects a block
//!
//! | block | protected by | where |
//! |---|---|---|
//! | level 0, of an encrypted type | AES-CCM or AES-GCM of all of it | MAC in words 2 and 3 of the pointer's checksum |
//! | level 0, dnodes | the same of bonus buffers; the rest of each dnode is authenticated with them | the same |
//! | intent log | the same of what follows each record's header, but block pointers | MAC in words 2 and 3 of the block's own checksum |
//! | level 0, of another type | HMAC-SHA512 of the physical bytes | as above |
//! | indirect | SHA-512 over the MACs below ([`indirect_mac`]) | as above; needs no key |
//! | object set | HMAC-SHA512, a portable and a local one ([`ObjsetMacs`]) | in the object set |
//!
//! Salt and the first 8 bytes of the initialization vector lie in the third DVA of a pointer, its last 4 bytes in the upper
//! half of the fill count ([`BlockParams`]).
//!
//! # Invariants
//!
//! - Bytes come out only if their MAC is right ([`CryptError::Mac`]).
//! - Keys lie in pages of their own ([`Secret`]): locked in memory, in no core dump, wiped when dropped. What is derived
//!   from them for a block is wiped, but not locked. No type with
//!   key material has a `Debug` that shows it. Comparisons of MACs take the same time wherever they differ.

mod cipher;
mod key;
mod layout;
mod macs;
mod params;
mod secret;
#[cfg(test)]
mod tests;
mod wrap;

pub use cipher::{Cipher, Suite};
pub use key::DatasetKey;
pub use macs::{
    OBJSET_MAC_LEN, ObjsetMacs, check_indirect, check_objset, indirect_mac, put_objset_macs,
    put_portable_mac,
};
pub use params::{BlockParams, IV_LEN, Iv, MAC_LEN, Mac, SALT_LEN, Salt, Seal, bp_mac, zil_mac};
pub use secret::Secret;
pub use wrap::{
    HEX_LEN, HMAC_KEY_LEN, KEY_VERSION, MASTER_KEY_MAX, PASSPHRASE_MAX, PASSPHRASE_MIN,
    WRAPPING_LEN, WrappedKey, WrappingKey,
};

use crate::DecodeError;

/// Why bytes could not be decrypted or authenticated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CryptError {
    /// They are not what was written with this key: they, their MAC, salt or initialization vector were changed, or the
    /// key is another one.
    #[error("authentication failed")]
    Mac,
    /// They are so many bytes, more than the suite can encrypt at once.
    #[error("{0} bytes are too long for one block of this encryption suite")]
    TooLong(usize),
    /// What says which of them are encrypted makes no sense.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// There are no random numbers.
    #[error("no random numbers: {0}")]
    Random(String),
    /// No memory for a key could be had.
    #[error("no memory for a key: {0}")]
    Memory(String),
}

/// Result of what needs a key.
pub type Result<T> = std::result::Result<T, CryptError>;
