//! Compression and decompression of blocks (`zio_compress_table`).
//!
//! A block pointer says how a block is compressed and how long it is before (`psize`, in sectors or
//! bytes) and after (`lsize`) decompression. How long the compressed data really is, is known only
//! to the function:
//!
//! | function | layout |
//! |---|---|
//! | lzjb | groups of a flag byte and eight items, until the output is full |
//! | gzip-1 to gzip-9 | a zlib stream |
//! | zle | runs of zeros and of literal bytes, until the output is full |
//! | lz4 | length (4, big-endian), an lz4 block |
//! | zstd | length (4, big-endian), version and level (4), a zstd frame without its magic |
//!
//! Invariants: the source may be longer than the compressed data (sectors are padded); the output
//! is filled exactly or it is an error; no input makes a decompressor read or write outside its
//! buffers, or take memory or time beyond the size of its output.

mod lzjb;
mod pack;
#[cfg(test)]
mod tests;
mod zle;
mod zstd;

use std::cell::RefCell;

use crate::{ByteOrder, Bytes, DecodeError, Result};

pub use pack::{LEVEL_DEFAULT, ZSTD_DEFAULT_LEVEL, compress, is_zero, max_compressed_size};
pub use zstd::{ZSTD_HEADER_SIZE, ZstdHeader};

/// `enum zio_compress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Compression {
    /// Property value: as the parent dataset. Not in block pointers.
    Inherit = 0,
    /// Property value: the default (lz4). Not in block pointers.
    On = 1,
    /// Not compressed.
    Off = 2,
    /// The first compressor of ZFS.
    Lzjb = 3,
    /// A block of zeros.
    Empty = 4,
    /// zlib at level 1.
    Gzip1 = 5,
    /// zlib at level 2.
    Gzip2 = 6,
    /// zlib at level 3.
    Gzip3 = 7,
    /// zlib at level 4.
    Gzip4 = 8,
    /// zlib at level 5.
    Gzip5 = 9,
    /// zlib at level 6.
    Gzip6 = 10,
    /// zlib at level 7.
    Gzip7 = 11,
    /// zlib at level 8.
    Gzip8 = 12,
    /// zlib at level 9.
    Gzip9 = 13,
    /// Zero-length encoding: only runs of zeros are compressed.
    Zle = 14,
    /// LZ4.
    Lz4 = 15,
    /// Zstandard; the level is in the block.
    Zstd = 16,
}

impl Compression {
    const ALL: [Compression; 17] = [
        Compression::Inherit,
        Compression::On,
        Compression::Off,
        Compression::Lzjb,
        Compression::Empty,
        Compression::Gzip1,
        Compression::Gzip2,
        Compression::Gzip3,
        Compression::Gzip4,
        Compression::Gzip5,
        Compression::Gzip6,
        Compression::Gzip7,
        Compression::Gzip8,
        Compression::Gzip9,
        Compression::Zle,
        Compression::Lz4,
        Compression::Zstd,
    ];

    /// From the number in a block pointer or property. An unknown number is an error.
    pub fn from_u8(n: u8) -> Result<Compression> {
        match Compression::ALL.get(usize::from(n)) {
            Some(kind) => Ok(*kind),
            None => Err(DecodeError::Unsupported {
                what: "compression function",
                name: format!("number {n}"),
            }),
        }
    }

    /// The name that `zfs` and `zdb` print, but for blocks that are not compressed: the property
    /// says "off", `zdb` says "uncompressed" of a block.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Inherit => "inherit",
            Compression::On => "on",
            Compression::Off => "off",
            Compression::Lzjb => "lzjb",
            Compression::Empty => "empty",
            Compression::Gzip1 => "gzip-1",
            Compression::Gzip2 => "gzip-2",
            Compression::Gzip3 => "gzip-3",
            Compression::Gzip4 => "gzip-4",
            Compression::Gzip5 => "gzip-5",
            Compression::Gzip6 => "gzip-6",
            Compression::Gzip7 => "gzip-7",
            Compression::Gzip8 => "gzip-8",
            Compression::Gzip9 => "gzip-9",
            Compression::Zle => "zle",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

/// Decompresses `src` (the physical bytes, maybe padded) into exactly `dst.len()` bytes (`zio_decompress_data`).
///
/// Errors: `src` does not decompress, or not to that length; `dst` is then unspecified.
pub fn decompress(kind: Compression, src: &[u8], dst: &mut [u8]) -> Result<()> {
    match kind {
        Compression::Off => {
            let bytes = Bytes::new(src, ByteOrder::Big, "uncompressed block");
            dst.copy_from_slice(bytes.slice(0, dst.len())?);
            Ok(())
        }
        Compression::Empty => {
            dst.fill(0);
            Ok(())
        }
        Compression::Lzjb => lzjb::decompress(src, dst).ok_or_else(|| corrupt(kind)),
        Compression::Zle => zle::decompress(src, dst).ok_or_else(|| corrupt(kind)),
        Compression::Gzip1
        | Compression::Gzip2
        | Compression::Gzip3
        | Compression::Gzip4
        | Compression::Gzip5
        | Compression::Gzip6
        | Compression::Gzip7
        | Compression::Gzip8
        | Compression::Gzip9 => gunzip(src, dst).ok_or_else(|| corrupt(kind)),
        Compression::Lz4 => {
            let bytes = Bytes::new(src, ByteOrder::Big, "lz4 block");
            let data = bytes.slice(4, bytes.u32(0)? as usize)?;
            unlz4(data, dst).ok_or_else(|| corrupt(kind))
        }
        Compression::Zstd => {
            let (_, data) = ZstdHeader::decode(src)?;
            zstd::decompress(data, dst).ok_or_else(|| corrupt(kind))
        }
        Compression::Inherit | Compression::On => Err(DecodeError::invalid(
            "compression function",
            format!("{} does not compress a block", kind.name()),
        )),
    }
}

fn corrupt(kind: Compression) -> DecodeError {
    DecodeError::invalid(
        "compressed block",
        format!("{} data does not decompress to the block's size", kind.name()),
    )
}

/// A zlib stream, its Adler-32 checked; what follows it is ignored.
fn gunzip(src: &[u8], dst: &mut [u8]) -> Option<()> {
    thread_local! {
        static INFLATE: RefCell<libdeflater::Decompressor> =
            RefCell::new(libdeflater::Decompressor::new());
    }
    let got = INFLATE.with_borrow_mut(|d| d.zlib_decompress(src, dst)).ok()?;
    (got == dst.len()).then_some(())
}

fn unlz4(src: &[u8], dst: &mut [u8]) -> Option<()> {
    // liblz4 takes no empty output; the one valid input for it is an empty sequence.
    if dst.is_empty() {
        return (src == [0]).then_some(());
    }
    let size = i32::try_from(dst.len()).ok()?;
    let got = lz4::block::decompress_to_buffer(src, Some(size), dst).ok()?;
    (got == dst.len()).then_some(())
}
