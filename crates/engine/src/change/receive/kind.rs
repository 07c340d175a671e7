//! What is known of a stream from its beginning, and how its blocks are taken over.
//!
//! Invariant: a block stays as it came only if the pool may have it so on disk.

use cenote_format::abd::Abd;
use cenote_format::compress::Compression;
use cenote_format::crypt::Seal;
use cenote_store::write::{Packed, Payload};

/// What is known of the stream, and of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// It starts from nothing.
    pub(super) full: bool,
    /// Spill blocks that did not change are in it as well.
    pub(super) spills: bool,
    /// Its blocks are encrypted, and stay as they are.
    pub(super) raw: bool,
    /// How blocks of the pool may be compressed.
    pub(super) packings: Packings,
}

/// A block of a raw stream, as it came.
///
/// # Errors
/// There is no such compression function.
pub(super) fn sealed(
    function: u8,
    data: Abd,
    lsize: u64,
    seal: Option<Seal>,
) -> cenote_format::Result<Payload> {
    let compression = Compression::from_u8(function)?;
    Ok(Payload::Packed(Packed { data, compression, lsize: lsize as usize, seal }))
}

/// Functions that a pool has to allow. (`zstream recompress` of OpenZFS 2.4 uses them without the stream saying so.)
#[derive(Clone, Copy, Debug)]
pub(super) struct Packings {
    pub(super) lz4: bool,
    pub(super) zstd: bool,
}

impl Packings {
    /// A block as it came: it stays compressed if it can be on disk so.
    ///
    /// # Errors
    /// There is no such function; the block has to be unpacked, and cannot be.
    pub(super) fn payload(
        self,
        function: u8,
        data: Abd,
        lsize: u64,
    ) -> cenote_format::Result<Payload> {
        let (compression, lsize) = (Compression::from_u8(function)?, lsize as usize);
        let packed = Packed { data, compression, lsize, seal: None };
        match compression {
            Compression::Inherit | Compression::On => Err(cenote_format::DecodeError::invalid(
                "stream",
                format!("data compressed with function {function}"),
            )),
            Compression::Off if packed.data.len() == lsize => Ok(packed.data.into()),
            Compression::Off | Compression::Empty => Ok(packed.unpack()?.into()),
            Compression::Lz4 if !self.lz4 => Ok(packed.unpack()?.into()),
            Compression::Zstd if !self.zstd => Ok(packed.unpack()?.into()),
            _ => Ok(Payload::Packed(packed)),
        }
    }
}
