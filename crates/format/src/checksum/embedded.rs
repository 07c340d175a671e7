//! Checksums that are in the block they check (`zio_eck_t`).
//!
//! ```text
//! zio_eck_t, 40 bytes:   magic 0x210da7ab10c7a11 (8)   checksum (32)
//!
//! label, gang header, zilog:   it is the end of the block
//! zilog2 (zil_chain_t):        pad (8)  next block (128)  bytes used (8)  zio_eck_t (40)  records…
//!                              and only the used bytes, rounded up to 4 KiB, are checked
//! ```
//!
//! The checksum covers itself: while it is computed, the checksum field holds the *verifier*, which
//! ties the block to its place so that a block that was written elsewhere does not pass. The magic
//! tells the byte order of the whole block, verifier and checksum included.

use sha2::Digest;

use super::fletcher::{self, Fletcher2, Fletcher4};
use super::{Checksum, whole_words, words};
use crate::{ByteOrder, Bytes, DecodeError, Result};

const WHAT: &str = "block with embedded checksum";

/// What an embedded checksum starts with (`ZEC_MAGIC`).
pub const EMBEDDED_MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Bytes of an embedded checksum.
pub const EMBEDDED_SIZE: usize = 40;

/// In a `zil_chain_t`: bytes used, and the embedded checksum.
const ZILOG2_USED: usize = 136;
const ZILOG2_TRAILER: usize = 144;
/// Bytes of a `zil_chain_t`.
const ZILOG2_HEADER: u64 = 184;
/// `ZIL_MIN_BLKSZ`
const ZILOG2_UNIT: u64 = 4096;

/// Checks a block that carries its checksum. `verifier` is what the checksum field held while the
/// checksum was computed:
///
/// - label: `[offset on the device, 0, 0, 0]`
/// - gang header: `[vdev, offset, physical birth, 0]` of the first DVA that points at it
/// - zilog, zilog2: the checksum words of the block pointer that points at it
///
/// Returns the byte order of the block if it is whole, `None` if it is not.
/// Errors: `kind` is not embedded, or the block is too short (or too odd) to hold one.
pub fn verify_embedded(
    kind: Checksum,
    data: &[u8],
    verifier: [u64; 4],
) -> Result<Option<ByteOrder>> {
    verify(kind, data, verifier, false)
}

/// As [`verify_embedded`], of a block of an encrypted dataset (`zio_checksum_handle_crypt`): words 2 and 3 of what it
/// carries are its MAC, and the words of the checksum are folded into the first two.
///
/// # Errors
/// Errors of [`verify_embedded`].
pub fn verify_embedded_mac(
    kind: Checksum,
    data: &[u8],
    verifier: [u64; 4],
) -> Result<Option<ByteOrder>> {
    verify(kind, data, verifier, true)
}

fn verify(
    kind: Checksum,
    data: &[u8],
    verifier: [u64; 4],
    with_mac: bool,
) -> Result<Option<ByteOrder>> {
    let (trailer, block) = match kind {
        Checksum::Label | Checksum::GangHeader | Checksum::Zilog => {
            let (need, have) = (EMBEDDED_SIZE, data.len());
            let truncated = DecodeError::Truncated { what: WHAT, need, have };
            (have.checked_sub(need).ok_or(truncated)?, data)
        }
        Checksum::Zilog2 => (ZILOG2_TRAILER, data),
        _ => {
            return Err(DecodeError::invalid(
                "embedded checksum",
                format!("{} is not embedded", kind.name()),
            ));
        }
    };
    let little = Bytes::new(block, ByteOrder::Little, WHAT);
    little.slice(trailer, EMBEDDED_SIZE)?;
    let order = match little.u64(trailer)? {
        EMBEDDED_MAGIC => ByteOrder::Little,
        m if m.swap_bytes() == EMBEDDED_MAGIC => ByteOrder::Big,
        _ => return Ok(None),
    };
    let fields = Bytes::new(block, order, WHAT);
    let mut expected = fields.u64s::<4>(trailer + 8)?;
    let block = if kind == Checksum::Zilog2 {
        match used_part(block, fields.u64(ZILOG2_USED)?) {
            Some(used) => used,
            None => return Ok(None),
        }
    } else {
        block
    };
    let mut actual = with_verifier(kind, block, trailer + 8, &verifier, order)?;
    if with_mac {
        actual = [actual[0] ^ actual[2], actual[1] ^ actual[3], 0, 0];
        expected[2..].fill(0);
    }
    Ok((actual == expected).then_some(order))
}

/// The part of an intent log block that is checked.
fn used_part(block: &[u8], used: u64) -> Option<&[u8]> {
    if used < ZILOG2_HEADER {
        return None;
    }
    let size = used.checked_next_multiple_of(ZILOG2_UNIT)?;
    block.get(..usize::try_from(size).ok()?)
}

/// The checksum of `block` with `verifier` in place of the 32 bytes at `at`.
fn with_verifier(
    kind: Checksum,
    block: &[u8],
    at: usize,
    verifier: &[u64; 4],
    order: ByteOrder,
) -> Result<[u64; 4]> {
    let encoded: Vec<u8> = verifier
        .iter()
        .flat_map(|w| match order {
            ByteOrder::Little => w.to_le_bytes(),
            ByteOrder::Big => w.to_be_bytes(),
        })
        .collect();
    let fields = Bytes::new(block, order, WHAT);
    let head = fields.slice(0, at)?;
    let tail = fields.rest(at + 32)?;
    let parts = [head, &encoded, tail];
    match kind {
        Checksum::Zilog => {
            whole_words(kind, block.len(), fletcher::PAIR)?;
            let mut sums = Fletcher2::new(order);
            parts.iter().for_each(|p| sums.update(p));
            Ok(sums.finish())
        }
        Checksum::Zilog2 => {
            let mut sums = Fletcher4::new(order);
            parts.iter().for_each(|p| sums.update(p));
            Ok(sums.finish())
        }
        _ => {
            let mut hash = sha2::Sha256::new();
            parts.iter().for_each(|p| hash.update(p));
            Ok(words(&hash.finalize(), ByteOrder::Big))
        }
    }
}
