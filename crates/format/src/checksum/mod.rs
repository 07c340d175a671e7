//! Checksums of blocks (`zio_checksum_table`), in block pointers and embedded in blocks.
//!
//! A checksum is four 64-bit words. Most blocks have theirs in the block pointer that points at
//! them; labels, gang headers and intent log blocks, which nothing checksummed points at, carry
//! their own (see [`verify_embedded`]).
//!
//! How the words come about, for a block whose writer used byte order *o*:
//!
//! | function | words | from |
//! |---|---|---|
//! | off, noparity | zero | |
//! | fletcher2 | sums over pairs of 64-bit words | data read in *o* |
//! | fletcher4 | sums over 32-bit words | data read in *o* |
//! | sha256 | the digest read as big-endian words, whatever *o* is | bytes |
//! | sha512 | the digest of SHA-512/256 read in *o* | bytes |
//! | skein, edonr, blake3 | 256 bits of the digest read in *o*, keyed with the pool's salt | bytes |
//!
//! The salt makes collisions specific to a pool: Skein takes it as a MAC key, BLAKE3 as its key, and
//! Edon-R, which has no key, is first fed a block that is derived from it. [`Salt`] does that work
//! once.
//!
//! Invariant: the checksum of a buffer does not depend on how the buffer is divided into chunks.

mod edonr;
mod embedded;
mod fletcher;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod simd;
mod skein;
#[cfg(test)]
mod tests;

use sha2::Digest;

use crate::{ByteOrder, DecodeError, Result, abd::Abd};

pub use embedded::{EMBEDDED_MAGIC, EMBEDDED_SIZE, verify_embedded, verify_embedded_mac};

use edonr::EdonR512;
use fletcher::Fletcher2;
pub use fletcher::Fletcher4;
use skein::Skein512;

/// `enum zio_checksum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Checksum {
    /// Property value: as the parent dataset. Not in block pointers.
    Inherit = 0,
    /// Property value: the default (fletcher4). Not in block pointers.
    On = 1,
    /// No checksum.
    Off = 2,
    /// SHA-256 embedded in a label or uberblock.
    Label = 3,
    /// SHA-256 embedded in a gang header.
    GangHeader = 4,
    /// Fletcher2 embedded at the end of an intent log block (the old form).
    Zilog = 5,
    /// Fletcher's sums over 64-bit words.
    Fletcher2 = 6,
    /// Fletcher's sums over 32-bit words.
    Fletcher4 = 7,
    /// SHA-256.
    Sha256 = 8,
    /// Fletcher4 embedded in the header of an intent log block.
    Zilog2 = 9,
    /// Off; in old pools, off for data that RAID-Z needs no parity for.
    NoParity = 10,
    /// SHA-512/256.
    Sha512 = 11,
    /// Skein-512-256, keyed with the pool's salt.
    Skein = 12,
    /// Edon-R 512, cut to 256 bits, salted.
    Edonr = 13,
    /// BLAKE3, keyed with the pool's salt.
    Blake3 = 14,
}

impl Checksum {
    const ALL: [Checksum; 15] = [
        Checksum::Inherit,
        Checksum::On,
        Checksum::Off,
        Checksum::Label,
        Checksum::GangHeader,
        Checksum::Zilog,
        Checksum::Fletcher2,
        Checksum::Fletcher4,
        Checksum::Sha256,
        Checksum::Zilog2,
        Checksum::NoParity,
        Checksum::Sha512,
        Checksum::Skein,
        Checksum::Edonr,
        Checksum::Blake3,
    ];

    /// From the number in a block pointer or property. An unknown number is an error.
    pub fn from_u8(n: u8) -> Result<Checksum> {
        match Checksum::ALL.get(usize::from(n)) {
            Some(kind) => Ok(*kind),
            None => Err(DecodeError::Unsupported {
                what: "checksum function",
                name: format!("number {n}"),
            }),
        }
    }

    /// Whether a dnode may ask for it: it checks blocks from outside, or stands for one that does. The others are embedded in
    /// the blocks that they check.
    pub fn is_of_dnodes(self) -> bool {
        use Checksum::{GangHeader, Label, Zilog, Zilog2};
        !matches!(self, Label | GangHeader | Zilog | Zilog2)
    }

    /// The name that `zfs` and `zdb` print, which deduplication tables use too.
    pub fn name(self) -> &'static str {
        match self {
            Checksum::Inherit => "inherit",
            Checksum::On => "on",
            Checksum::Off => "off",
            Checksum::Label => "label",
            Checksum::GangHeader => "gang_header",
            Checksum::Zilog => "zilog",
            Checksum::Fletcher2 => "fletcher2",
            Checksum::Fletcher4 => "fletcher4",
            Checksum::Sha256 => "sha256",
            Checksum::Zilog2 => "zilog2",
            Checksum::NoParity => "noparity",
            Checksum::Sha512 => "sha512",
            Checksum::Skein => "skein",
            Checksum::Edonr => "edonr",
            Checksum::Blake3 => "blake3",
        }
    }

    /// Whether the checksum is in the block itself ([`verify_embedded`]).
    pub fn is_embedded(self) -> bool {
        use Checksum::*;
        matches!(self, Label | GangHeader | Zilog | Zilog2)
    }

    /// Whether collisions are so unlikely that deduplication may trust it
    /// (`ZCHECKSUM_FLAG_DEDUP`). Blocks of encrypted datasets keep the first half of such a
    /// checksum, and both halves of any other folded together.
    pub fn is_dedup(self) -> bool {
        use Checksum::*;
        matches!(self, Sha256 | Sha512 | Skein | Blake3)
    }
}

/// The pool's salt (32 bytes) and what the salted functions derive from it.
#[derive(Clone)]
pub struct Salt {
    key: [u8; 32],
    skein: Skein512,
    edonr: EdonR512,
}

impl Salt {
    /// From the 32 bytes in the MOS (`org.illumos:checksum_salt`); zeros if absent.
    pub fn new(bytes: [u8; 32]) -> Salt {
        Salt { key: bytes, skein: Skein512::new(&bytes, 256), edonr: EdonR512::salted(&bytes) }
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salt")
    }
}

/// Checksum of `data`, written in `order`, as it is in a block pointer (`zio_checksum_compute`).
///
/// Errors: a kind that is no function over a whole block (`inherit`, `on`, the embedded ones), or a
/// Fletcher sum over a fraction of a word.
pub fn compute(kind: Checksum, data: &Abd, order: ByteOrder, salt: &Salt) -> Result<[u64; 4]> {
    match kind {
        Checksum::Off | Checksum::NoParity => Ok([0; 4]),
        Checksum::Fletcher2 => {
            whole_words(kind, data.len(), fletcher::PAIR)?;
            let mut sums = Fletcher2::new(order);
            data.chunks().for_each(|c| sums.update(c));
            Ok(sums.finish())
        }
        Checksum::Fletcher4 => {
            whole_words(kind, data.len(), fletcher::WORD)?;
            let mut sums = Fletcher4::new(order);
            data.chunks().for_each(|c| sums.update(c));
            Ok(sums.finish())
        }
        Checksum::Sha256 => {
            let mut hash = sha2::Sha256::new();
            data.chunks().for_each(|c| hash.update(c));
            Ok(words(&hash.finalize(), ByteOrder::Big))
        }
        Checksum::Sha512 => {
            let mut hash = sha2::Sha512_256::new();
            data.chunks().for_each(|c| hash.update(c));
            Ok(words(&hash.finalize(), order))
        }
        Checksum::Skein => {
            let mut hash = salt.skein.clone();
            data.chunks().for_each(|c| hash.update(c));
            Ok(words(&hash.finish(), order))
        }
        Checksum::Edonr => {
            let mut hash = salt.edonr.clone();
            data.chunks().for_each(|c| hash.update(c));
            Ok(words(&hash.finish(), order))
        }
        Checksum::Blake3 => {
            let mut hash = blake3::Hasher::new_keyed(&salt.key);
            data.chunks().for_each(|c| {
                hash.update(c);
            });
            Ok(words(hash.finalize().as_bytes(), order))
        }
        Checksum::Inherit
        | Checksum::On
        | Checksum::Label
        | Checksum::GangHeader
        | Checksum::Zilog
        | Checksum::Zilog2 => Err(DecodeError::invalid(
            "checksum function",
            format!("{} does not check a block from outside", kind.name()),
        )),
    }
}

/// The first four words of a digest.
fn words(digest: &[u8], order: ByteOrder) -> [u64; 4] {
    let mut out = [0; 4];
    for (word, bytes) in out.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = match order {
            ByteOrder::Little => u64::from_le_bytes(*bytes),
            ByteOrder::Big => u64::from_be_bytes(*bytes),
        };
    }
    out
}

fn whole_words(kind: Checksum, len: usize, word: usize) -> Result<()> {
    if len.is_multiple_of(word) {
        return Ok(());
    }
    Err(DecodeError::invalid(
        "checksummed block",
        format!("{} of {len} bytes, not a multiple of {word}", kind.name()),
    ))
}
