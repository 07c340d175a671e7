//! Compression of blocks, and the rules by which a block is kept compressed.
//!
//! A compressor gets a limit and gives up as soon as it is clear that the result would be longer.
//! The limit ([`max_compressed_size`]) is what makes compression worth its price: an eighth of the
//! block must be saved, and whole units of allocation. A block of zeros ([`is_zero`]) is not
//! compressed at all but becomes a hole.
//!
//! The results are those that OpenZFS reads; they are not bit for bit those that it writes, which
//! depend on the versions of the libraries too.
//!
//! Invariants: a result is never longer than the limit, and decompresses to the source.

mod lzjb;
#[cfg(test)]
mod tests;
mod zle;
mod zstd;

use std::cell::RefCell;

use super::Compression;

pub use zstd::ZSTD_DEFAULT_LEVEL;

/// `ZIO_COMPLEVEL_DEFAULT`: the compressor's own default level.
pub const LEVEL_DEFAULT: u8 = 255;

/// Compresses `src` into at most `limit` bytes; `None` if it does not fit, or if `kind` is no
/// compressor (`zio_compress_data`). `level` is that of zstd as `enum zio_zstd_levels` numbers it (1 to 19, 103 to 123
/// for the fast ones, [`LEVEL_DEFAULT`]); the other functions have no level, or have it in `kind`.
///
/// The result is not padded: the writer fills the last sector with zeros.
pub fn compress(kind: Compression, level: u8, src: &[u8], limit: usize) -> Option<Vec<u8>> {
    use Compression::*;
    let limit = limit.min(src.len());
    match kind {
        Inherit | On | Off | Empty => None,
        Lzjb => packed(limit, |dst| lzjb::compress(src, dst)),
        Zle => packed(limit, |dst| zle::compress(src, dst)),
        Lz4 => packed(limit, |dst| lz4(src, dst)),
        Zstd => packed(limit, |dst| zstd::compress(src, dst, level)),
        Gzip1 | Gzip2 | Gzip3 | Gzip4 | Gzip5 | Gzip6 | Gzip7 | Gzip8 | Gzip9 => {
            let level = kind as u8 - Gzip1 as u8 + 1;
            packed(limit, |dst| gzip(src, dst, level))
        }
    }
}

/// Bytes that a compressed block may have, to be worth it (`zio_get_compression_max_size`): an
/// eighth of `lsize` is saved, in whole units of `unit` bytes (the greatest common divisor of what
/// the vdevs allocate). Less than `least`, the smallest allocation, is worth it only if the block
/// can be embedded in its pointer: then the limit is 112 bytes.
pub fn max_compressed_size(kind: Compression, lsize: usize, unit: usize, least: usize) -> usize {
    let most = lsize - (lsize >> 3);
    if kind == Compression::Zle {
        // zle needs more room while it works than its result takes.
        return most;
    }
    match most - most.checked_rem(unit).unwrap_or(0) {
        whole if whole < least => crate::blkptr::EMBEDDED_PAYLOAD,
        whole => whole,
    }
}

/// Whether there are nothing but zeros.
pub fn is_zero(data: &[u8]) -> bool {
    // A block that starts and ends like data is told from zeros at once.
    let ends = [data.first(), data.last()];
    if ends.into_iter().flatten().any(|b| *b != 0) {
        return false;
    }
    // Sixteen words at a time are combined without a branch, which the compiler turns into vectors.
    let (blocks, rest) = data.as_chunks::<128>();
    let any = |block: &[u8; 128]| {
        block.as_chunks::<8>().0.iter().fold(0, |all, w| all | u64::from_ne_bytes(*w))
    };
    blocks.iter().all(|b| any(b) == 0) && rest.iter().all(|b| *b == 0)
}

/// What `pack` wrote at the start of a buffer of `limit` bytes.
fn packed(limit: usize, pack: impl FnOnce(&mut [u8]) -> Option<usize>) -> Option<Vec<u8>> {
    thread_local! {
        /// Compressors need room for the longest result before they know how long it is. One buffer
        /// for each thread spares clearing a new one for each block.
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < limit {
            scratch.resize(limit, 0);
        }
        let dst = scratch.get_mut(..limit)?;
        let len = pack(dst)?;
        dst.get(..len).map(<[u8]>::to_vec)
    })
}

/// Length (4 bytes, big-endian) and an lz4 block (`zfs_lz4_compress`).
fn lz4(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (head, body) = dst.split_at_mut_checked(4)?;
    if src.is_empty() || body.is_empty() {
        return None;
    }
    let len = lz4::block::compress_to_buffer(src, None, false, body).ok().filter(|n| *n > 0)?;
    head.copy_from_slice(&u32::try_from(len).ok()?.to_be_bytes());
    Some(len + 4)
}

/// A zlib stream.
fn gzip(src: &[u8], dst: &mut [u8], level: u8) -> Option<usize> {
    thread_local! {
        /// The last compressor that this thread used, and its level: it is expensive to make.
        static DEFLATE: RefCell<Option<(u8, libdeflater::Compressor)>> = const { RefCell::new(None) };
    }
    DEFLATE.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
            let lvl = libdeflater::CompressionLvl::new(level.into()).ok()?;
            *slot = Some((level, libdeflater::Compressor::new(lvl)));
        }
        let (_, compressor) = slot.as_mut()?;
        compressor.zlib_compress(src, dst).ok()
    })
}
