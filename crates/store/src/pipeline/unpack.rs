//! What a block pointer says of its block without reading it, and the block that its physical bytes stand for.

use super::Block;
use crate::error::{BlockError, Bookmark};
use cenote_format::DecodeError;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::compress::{Compression, decompress};
use cenote_format::dmu::DmuType;
use cenote_vdev::VdevError;

/// Embedded type of plain data (`BP_EMBEDDED_TYPE_DATA`).
const EMBEDDED_DATA: u8 = 0;

/// Whether the pointer makes sense: its sizes, its checksum and its compression.
pub(crate) fn check(bp: &BlockPointer, at: Bookmark) -> Result<(), BlockError> {
    let known = || {
        bp.check()?;
        if !bp.is_hole() && !bp.is_embedded() {
            Checksum::from_u8(bp.checksum_type())?;
        }
        if !bp.is_hole() {
            Compression::from_u8(bp.compression())?;
        }
        Ok(())
    };
    known().map_err(|source| BlockError::Decode { at, bp: Box::new(*bp), source })
}

pub(crate) fn no_copy(bp: &BlockPointer, at: Bookmark) -> BlockError {
    BlockError::Decode {
        at,
        bp: Box::new(*bp),
        source: DecodeError::invalid("block pointer", "no copy to read"),
    }
}

pub(crate) fn vdev_error(bp: &BlockPointer, at: Bookmark, source: VdevError) -> BlockError {
    match source {
        VdevError::Checksum { .. } => BlockError::Checksum { at, bp: Box::new(*bp) },
        source => BlockError::Vdev { at, bp: Box::new(*bp), source },
    }
}

/// Metadata that was compressed is kept unpacked; what was not is in the ARC as it is.
pub(super) fn keeps_decoded(bp: &BlockPointer) -> bool {
    is_packed(bp) && is_metadata(bp)
}

/// Whether a block is not one of level 0 of a file or volume.
pub(super) fn is_metadata(bp: &BlockPointer) -> bool {
    bp.level() > 0 || DmuType(bp.object_type()).is_metadata()
}

/// Whether there is work in unpacking a block that was read.
pub(super) fn is_packed(bp: &BlockPointer) -> bool {
    bp.compression() != Compression::Off as u8 && !bp.is_embedded() && !bp.is_hole()
}

/// The logical bytes of a block that was read (`zio_decompress`, `zio_decompress_data`).
pub(crate) fn unpack(bp: &BlockPointer, physical: &Abd) -> cenote_format::Result<Abd> {
    let kind = Compression::from_u8(bp.compression())?;
    let lsize = bp.lsize() as usize;
    if kind == Compression::Off {
        let why = || DecodeError::invalid("block pointer", "logical size above the physical");
        return physical.slice(0, lsize).ok_or_else(why);
    }
    let mut data = vec![0; lsize];
    decompress(kind, &physical.bytes(), &mut data)?;
    Ok(Abd::from_vec(data))
}

/// The block in an embedded pointer, padded with zeros to its logical size (`decode_embedded_bp`).
pub(super) fn embedded(bp: &BlockPointer) -> cenote_format::Result<Block> {
    if bp.checksum_type() != EMBEDDED_DATA {
        let name = match bp.is_redacted() {
            true => "data that was left out (redacted)".into(),
            false => format!("embedded type {}", bp.checksum_type()),
        };
        return Err(DecodeError::Unsupported { what: "block pointer", name });
    }
    let payload = bp.embedded_payload()?;
    let mut data = vec![0; bp.lsize() as usize];
    match Compression::from_u8(bp.compression())? {
        Compression::Off => {
            let n = payload.len().min(data.len());
            data[..n].copy_from_slice(&payload[..n]);
        }
        kind => decompress(kind, &payload, &mut data)?,
    }
    Ok(Block { data: Abd::from_vec(data), order: bp.byte_order() })
}
