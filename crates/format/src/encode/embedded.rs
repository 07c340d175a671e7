//! Sealing blocks that carry their own checksum: the inverse of
//! [`verify_embedded`](crate::checksum::verify_embedded).

use super::{EncodeError, Result, put};
use crate::abd::Abd;
use crate::checksum::{self, Checksum, EMBEDDED_MAGIC, EMBEDDED_SIZE, Salt};
use crate::crypt::Mac;
use crate::{ByteOrder, Bytes};

const WHAT: &str = "embedded checksum";
/// In a `zil_chain_t`: bytes used, and the embedded checksum.
const ZILOG2_USED: usize = 136;
const ZILOG2_TRAILER: usize = 144;
/// Bytes of a `zil_chain_t`.
const ZILOG2_HEADER: u64 = 184;
/// `ZIL_MIN_BLKSZ`: what the checked part of an intent log block is rounded up to.
const ZILOG2_UNIT: u64 = 4096;

/// Writes the magic and the checksum of `block` where blocks of `kind` have them. `verifier` is
/// what ties the block to its place:
///
/// - label: `[byte offset on the device, 0, 0, 0]`
/// - gang header: `[vdev, byte offset, physical birth, 0]` of its first DVA
/// - zilog, zilog2: the checksum words of the block pointer that will point at it; for zilog2 the
///   bytes used must be in the block already
///
/// Errors: `kind` is not embedded, or the block is too short or of a length that the function
/// does not take.
pub fn seal(kind: Checksum, block: &mut [u8], verifier: [u64; 4]) -> Result<()> {
    seal_by(kind, block, verifier, None)
}

/// As [`seal`], of a block of an encrypted dataset (`zio_checksum_handle_crypt`): words 2 and 3 are its MAC, and the words
/// of the checksum are folded into the first two.
///
/// # Errors
/// Errors of [`seal`].
pub fn seal_with_mac(
    kind: Checksum,
    block: &mut [u8],
    verifier: [u64; 4],
    mac: &Mac,
) -> Result<()> {
    seal_by(kind, block, verifier, Some(mac))
}

fn seal_by(kind: Checksum, block: &mut [u8], verifier: [u64; 4], mac: Option<&Mac>) -> Result<()> {
    let (at, function, checked) = match kind {
        Checksum::Label | Checksum::GangHeader => {
            (block.len().checked_sub(EMBEDDED_SIZE), Checksum::Sha256, block.len())
        }
        Checksum::Zilog => {
            (block.len().checked_sub(EMBEDDED_SIZE), Checksum::Fletcher2, block.len())
        }
        Checksum::Zilog2 => (Some(ZILOG2_TRAILER), Checksum::Fletcher4, used_part(block)?),
        _ => {
            let why = format!("{} is not embedded", kind.name());
            return Err(EncodeError::unrepresentable(WHAT, why));
        }
    };
    let Some(at) = at else {
        let why = format!("a block of {} bytes has no room for it", block.len());
        return Err(EncodeError::unrepresentable(WHAT, why));
    };
    let mut head = EMBEDDED_MAGIC.to_le_bytes().to_vec();
    super::push_words(&mut head, &verifier);
    put(block, at, &head, WHAT)?;
    let Some(covered) = block.get(..checked) else {
        let why = format!("a checksum over {checked} bytes of {}", block.len());
        return Err(EncodeError::unrepresentable(WHAT, why));
    };
    let data = Abd::copy_of(covered);
    let unsalted = Salt::new([0; 32]);
    let sum = checksum::compute(function, &data, ByteOrder::Little, &unsalted)?;
    let sum = match mac {
        None => sum,
        Some(mac) => {
            let words = u128::from_le_bytes(*mac);
            [sum[0] ^ sum[2], sum[1] ^ sum[3], words as u64, (words >> 64) as u64]
        }
    };
    put(block, at + 8, &super::words(&sum, 32), WHAT)
}

/// Bytes of an intent log block that its checksum covers.
fn used_part(block: &[u8]) -> Result<usize> {
    let used = Bytes::new(block, ByteOrder::Little, WHAT).u64(ZILOG2_USED)?;
    let size = used.checked_next_multiple_of(ZILOG2_UNIT).filter(|_| used >= ZILOG2_HEADER);
    match size.and_then(|s| usize::try_from(s).ok()).filter(|s| *s <= block.len()) {
        Some(size) => Ok(size),
        None => Err(EncodeError::unrepresentable(
            WHAT,
            format!("{used:#x} bytes used of an intent log block of {:#x}", block.len()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::verify_embedded;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sealed_blocks_verify(
            mut block in proptest::collection::vec(any::<u8>(), 4096..=4096),
            verifier: [u64; 4], used in 192u64..4096, at in 0usize..4096, bit in 0u32..8,
        ) {
            block[136..144].copy_from_slice(&used.to_le_bytes());
            for kind in [Checksum::Label, Checksum::GangHeader, Checksum::Zilog, Checksum::Zilog2] {
                let mut sealed = block.clone();
                seal(kind, &mut sealed, verifier).unwrap();
                let order = verify_embedded(kind, &sealed, verifier).unwrap();
                prop_assert_eq!(order, Some(ByteOrder::Little), "{}", kind.name());
                let mut other = verifier;
                other[0] ^= 1;
                prop_assert_eq!(verify_embedded(kind, &sealed, other).unwrap(), None);
                sealed[at] ^= 1 << bit;
                prop_assert_eq!(verify_embedded(kind, &sealed, verifier).unwrap_or(None), None);
            }
        }
    }

    #[test]
    fn what_has_no_room_is_refused() {
        assert!(seal(Checksum::Sha256, &mut [0; 512], [0; 4]).is_err());
        assert!(seal(Checksum::Label, &mut [0; 39], [0; 4]).is_err());
        assert!(seal(Checksum::Zilog2, &mut [0; 4096], [0; 4]).is_err());
        let mut short = [0; 512];
        short[136] = 200;
        assert!(seal(Checksum::Zilog2, &mut short, [0; 4]).is_err());
    }
}
