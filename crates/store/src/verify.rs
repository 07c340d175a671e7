//! Which bytes satisfy a block pointer (`zio_checksum_verify`, `zio_checksum_error`).
//!
//! A block's checksum is in its pointer, computed over the physical bytes in the byte order of the
//! writer. Two exceptions: gang headers and intent log blocks carry their checksum in themselves
//! (`zio_eck_t`), seeded with where they are, and blocks of encrypted datasets keep only half of
//! the checksum, in the pointer or in themselves, the other half being their MAC. Their gang headers do the same, without a MAC.

use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::compress::{Compression, ZSTD_HEADER_SIZE};
use cenote_format::dmu::DmuType;
use cenote_format::{Bytes, Result};

use cenote_format::encode::blkptr::OLD_GANG_HEADER;

/// Bytes before what lz4 made: its length, as zstd's header begins with it (`lz4_compress_zfs`).
const LZ4_HEADER: usize = 4;

/// Whether `data` (the `psize` physical bytes) is the block that `bp` names.
///
/// Errors: the pointer's checksum function is unknown or cannot check a data block.
pub fn matches(bp: &BlockPointer, data: &Abd, salt: &Salt) -> Result<bool> {
    let kind = Checksum::from_u8(bp.checksum_type())?;
    match kind {
        Checksum::Off | Checksum::NoParity => return Ok(true),
        Checksum::Zilog | Checksum::Zilog2 | Checksum::Label | Checksum::GangHeader => {
            let verify = match is_half(bp) {
                true => checksum::verify_embedded_mac,
                false => checksum::verify_embedded,
            };
            return Ok(verify(kind, &data.bytes(), bp.checksum())?.is_some());
        }
        _ => {}
    }
    let mut actual = checksum::compute(kind, data, bp.byte_order(), salt)?;
    let mut expected = bp.checksum();
    if is_half(bp) {
        // Words 2 and 3 of the pointer are the MAC. Weak functions fold theirs into 0 and 1.
        if !kind.is_dedup() {
            actual[0] ^= actual[2];
            actual[1] ^= actual[3];
        }
        actual[2..].fill(0);
        expected[2..].fill(0);
    }
    Ok(actual == expected)
}

/// Whether `bp` has a checksum of its block in itself, by which wrong bytes are known. There is none with `checksum=off`, nor where the
/// block carries its own.
pub(crate) fn has_checksum(bp: &BlockPointer) -> bool {
    Checksum::from_u8(bp.checksum_type()).is_ok_and(|kind| {
        !kind.is_embedded() && !matches!(kind, Checksum::Off | Checksum::NoParity)
    })
}

/// Whether the half of a checksum that `bp` has may be satisfied by bytes that are wrong, as its function is not made to
/// withstand that. Of fletcher4 both halves are sums that begin with the same word: one flipped bit in the last four bytes of a block
/// changes either by the same amount, and what is left of both, folded together, is as it was in one of eight cases.
pub(crate) fn is_weak(bp: &BlockPointer) -> bool {
    is_half(bp) && Checksum::from_u8(bp.checksum_type()).is_ok_and(|kind| !kind.is_dedup())
}

/// Whether only zeros are behind what was compressed, as far as it says how long it is: the MAC of an indirect block leaves that
/// out. Writers of blocks put them there (`zio_write_compress`); readers do not depend on it.
pub(crate) fn is_padded(bp: &BlockPointer, data: &Abd) -> bool {
    let header = match Compression::from_u8(bp.compression()) {
        Ok(Compression::Lz4) => LZ4_HEADER,
        Ok(Compression::Zstd) => ZSTD_HEADER_SIZE,
        _ => return true,
    };
    let bytes = data.bytes();
    let len = bytes.first_chunk().map_or(0, |len| u32::from_be_bytes(*len) as usize);
    bytes.get(len.saturating_add(header)..).is_none_or(|tail| tail.iter().all(|byte| *byte == 0))
}

/// Whether what carries its own checksum, and is named by `bp`, has half of it, as its MAC has the place of the other half.
fn is_half(bp: &BlockPointer) -> bool {
    bp.uses_crypt() && DmuType(bp.object_type()) != DmuType::OBJSET
}

/// The gang header of `bp` that `data` starts with, in the byte order in which it was written;
/// `None` without one. A header as large as `data` is looked for first, then an old one.
///
/// That of a protected block has half a checksum, and zeros for a MAC. Cenote once wrote a whole one, which is taken, too.
pub fn gang_header<'d>(bp: &BlockPointer, data: &'d [u8]) -> Option<Bytes<'d>> {
    let first = bp.dva(0)?;
    let verifier = [first.vdev.into(), first.offset, bp.physical_birth(), 0];
    let kind = Checksum::GangHeader;
    let sized = |header: &'d [u8]| {
        let whole = || checksum::verify_embedded(kind, header, verifier).ok()?;
        let half = || checksum::verify_embedded_mac(kind, header, verifier).ok()?;
        let order = if is_half(bp) { half().or_else(whole)? } else { whole()? };
        Some(Bytes::new(header, order, "gang header"))
    };
    sized(data).or_else(|| sized(data.get(..OLD_GANG_HEADER)?))
}
