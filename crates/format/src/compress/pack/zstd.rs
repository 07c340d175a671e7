//! zstd with OpenZFS's header, see [`ZstdHeader`](super::super::ZstdHeader) (`zfs_zstd_compress`).
//!
//! High levels are slow, and slowest on data that does not compress. So a large block is first
//! tried with lz4; if that saves too little, with zstd's level 1; and only if one of them succeeds
//! at the level that was asked for.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, FrameFormat};

use super::super::ZSTD_HEADER_SIZE;
use super::LEVEL_DEFAULT;

/// The level of "zstd" without a number.
pub const ZSTD_DEFAULT_LEVEL: u8 = 3;
/// From this level of zstd on, and from this size on, blocks are tried first.
const ABORT_LEVEL: i32 = 3;
const ABORT_SIZE: usize = 128 << 10;

/// zstd's own number of a level of `enum zio_zstd_levels`.
fn native_level(level: u8) -> Option<i32> {
    let n = i32::from(level);
    match level {
        1..=19 => Some(n),
        103..=112 => Some(102 - n),
        113..=121 => Some((111 - n) * 10),
        122 => Some(-500),
        123 => Some(-1000),
        _ => None,
    }
}

/// Length of what was written to `dst`; `None` if that is too short, or there is no such level.
pub(super) fn compress(src: &[u8], dst: &mut [u8], level: u8) -> Option<usize> {
    let level = if level == LEVEL_DEFAULT { ZSTD_DEFAULT_LEVEL } else { level };
    let native = native_level(level)?;
    if native >= ABORT_LEVEL && src.len() >= ABORT_SIZE {
        // As in OpenZFS, a result that takes all of the room does not count for lz4.
        let promising = super::lz4(src, dst).is_some_and(|len| len < dst.len());
        if !promising {
            frame(src, dst, 1, 1)?;
        }
    }
    frame(src, dst, level, native)
}

/// Header and frame.
fn frame(src: &[u8], dst: &mut [u8], level: u8, native: i32) -> Option<usize> {
    thread_local! {
        /// A context is large, so each thread keeps one.
        static CONTEXT: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    }
    let (head, body) = dst.split_at_mut_checked(ZSTD_HEADER_SIZE)?;
    let len = CONTEXT.with_borrow_mut(|slot| {
        if slot.is_none() {
            let mut context = CCtx::try_create()?;
            // OpenZFS has checksums and sizes of its own.
            context.set_parameter(CParameter::Format(FrameFormat::Magicless)).ok()?;
            context.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
            context.set_parameter(CParameter::ContentSizeFlag(false)).ok()?;
            *slot = Some(context);
        }
        let context = slot.as_mut()?;
        context.set_parameter(CParameter::CompressionLevel(native)).ok()?;
        context.compress2(body, src).ok()
    })?;
    let [_, major, minor, patch] = zstd_safe::version_number().to_be_bytes();
    head[..4].copy_from_slice(&u32::try_from(len).ok()?.to_be_bytes());
    head[4..].copy_from_slice(&[level, major, minor, patch]);
    Some(ZSTD_HEADER_SIZE + len)
}
