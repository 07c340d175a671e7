//! Encoders: the inverse of the decoders, as pure functions.
//!
//! Whatever a decoder takes apart is put together here: `decode(encode(x)) == x`, and for bytes
//! that OpenZFS wrote, `encode(decode(bytes)) == bytes`. Everything is written little-endian,
//! whatever the byte order of the structure that it replaces; a block pointer's `B` bit says so.
//!
//! | module | what it writes |
//! |---|---|
//! | [`blkptr`] | block pointers from their properties, embedded blocks, gang headers |
//! | [`dmu`] | dnodes, object sets |
//! | [`dsl`] | directories, datasets, deadlists, bpobjs, bookmarks |
//! | [`embedded`] | checksums that blocks carry themselves |
//! | [`l2arc`] | headers and log blocks of cache devices |
//! | [`label`] | uberblocks, configs, whole labels |
//! | [`sa`] | buffers of system attributes, packed extended attributes |
//! | [`spacemap`] | headers, histograms and entries of space maps |
//! | [`zap`] | micro ZAPs, headers, pointer tables and leaves of fat ZAPs, changed in place |
//! | [`zil`] | records and blocks of the intent log |
//!
//! Compressors are beside the decompressors, in [`crate::compress`].
//!
//! Invariants: an encoder refuses ([`EncodeError::Unrepresentable`]) what the decoder would refuse
//! or read back differently, so that nothing unreadable is ever written; a function that changes a
//! block in place takes the block for hostile: it neither panics nor runs without end on any bytes.

pub mod blkptr;
pub mod dmu;
pub mod dsl;
pub mod embedded;
pub mod l2arc;
pub mod label;
pub mod sa;
pub mod spacemap;
pub mod zap;
pub mod zil;

use crate::DecodeError;

/// Why something could not be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The format has no way to write this value.
    #[error("{what}: {why}")]
    Unrepresentable {
        /// Name of the structure.
        what: &'static str,
        /// What does not fit, with the value.
        why: String,
    },
    /// The block is full; nothing was changed.
    #[error("{what} is full")]
    Full {
        /// Name of the structure.
        what: &'static str,
    },
    /// The block that was to be changed is damaged; its contents must be given up.
    #[error(transparent)]
    Damaged(#[from] DecodeError),
}

impl EncodeError {
    /// An [`EncodeError::Unrepresentable`] for `what`.
    pub fn unrepresentable(what: &'static str, why: impl Into<String>) -> Self {
        EncodeError::Unrepresentable { what, why: why.into() }
    }
}

/// Result of an encoder.
pub type Result<T> = std::result::Result<T, EncodeError>;

/// Appends 64-bit words.
fn push_words(out: &mut Vec<u8>, words: &[u64]) {
    out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
}

/// Words as bytes, padded with zeros to `len`, which is not less than they take.
fn words(words: &[u64], len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    push_words(&mut out, words);
    out.resize(len, 0);
    out
}

/// `value` as the `len` bits of a word from bit `low`; an error where it does not fit.
fn field(what: &'static str, name: &str, value: u64, low: u32, len: u32) -> Result<u64> {
    if value > u64::MAX >> (64 - len) {
        return Err(EncodeError::unrepresentable(what, format!("{name} {value:#x}")));
    }
    Ok(value << low)
}

/// Writes `bytes` at `at`; an error if they reach beyond the block.
fn put(block: &mut [u8], at: usize, bytes: &[u8], what: &'static str) -> Result<()> {
    let have = block.len();
    match at.checked_add(bytes.len()).and_then(|end| block.get_mut(at..end)) {
        Some(dst) => dst.copy_from_slice(bytes),
        None => {
            let why = format!("{} bytes at byte {at} of {have}", bytes.len());
            return Err(EncodeError::unrepresentable(what, why));
        }
    }
    Ok(())
}
