//! zstd (`zfs_zstd_decompress`): OpenZFS's header (`zfs_zstdhdr_t`) and a frame without the four bytes of magic.
//!
//! ```text
//! length of the frame (4, big-endian)   level (1) and version of zstd (3)   frame
//! ```
//!
//! The second word was once a C bit field, so big-endian machines wrote it as `version (3) level
//! (1)`. Versions are below 65536 (1.4.5 is 10405), so one byte of the version is zero, and where
//! that byte is tells the layout.

use std::cell::RefCell;

use zstd_safe::{DCtx, DParameter, FrameFormat};

use crate::{ByteOrder, Bytes, DecodeError, Result};

/// Bytes of the header.
pub const ZSTD_HEADER_SIZE: usize = 8;

/// `zfs_zstdhdr_t`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdHeader {
    /// Bytes of the frame that follows.
    pub size: u32,
    /// The zstd that compressed it: major × 10000 + minor × 100 + patch.
    pub version: u32,
    /// The level as `enum zio_zstd_levels` numbers it: 1 to 19, and 103 to 123 for the fast ones.
    pub level: u8,
}

impl ZstdHeader {
    /// The header of `src`, and the frame. Errors: `src` is too short, or the level does not exist.
    pub fn decode(src: &[u8]) -> Result<(ZstdHeader, &[u8])> {
        let bytes = Bytes::new(src, ByteOrder::Big, "zstd block");
        let size = bytes.u32(0)?;
        let frame = bytes.slice(ZSTD_HEADER_SIZE, size as usize)?;
        let mut raw = [0; 4];
        raw.copy_from_slice(bytes.slice(4, 4)?);
        let [a, b, c, d] = raw;
        // The zero byte nearest the end decides, as in OpenZFS.
        let (level, version) = match raw.iter().rposition(|&byte| byte == 0) {
            Some(3) => (a, [0, d, c, b]),
            Some(2) => (d, [0, c, b, a]),
            Some(1) => (a, [0, b, c, d]),
            Some(_) => (d, [0, a, b, c]),
            None => (0, [0; 4]),
        };
        if !matches!(level, 1..=19 | 103..=123) {
            return Err(DecodeError::invalid("zstd block", format!("level {level}")));
        }
        Ok((ZstdHeader { size, version: u32::from_be_bytes(version), level }, frame))
    }
}

/// Fills `dst` from a magicless frame; `None` if it does not decompress to that length.
pub(super) fn decompress(frame: &[u8], dst: &mut [u8]) -> Option<()> {
    thread_local! {
        /// A context is over 100 KiB, so each thread keeps one.
        static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    }
    CONTEXT.with_borrow_mut(|slot| {
        if slot.is_none() {
            let mut context = DCtx::try_create()?;
            context.set_parameter(DParameter::Format(FrameFormat::Magicless)).ok()?;
            *slot = Some(context);
        }
        let got = slot.as_mut()?.decompress(dst, frame).ok()?;
        (got == dst.len()).then_some(())
    })
}
