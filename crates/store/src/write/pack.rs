//! The first stage of a write (`zio_write_compress`): from a block as its owner sees it to physical bytes.
//!
//! Nothing here depends on any other block, so a batch is packed on all cores.

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, EMBEDDED_PAYLOAD};
use cenote_format::checksum::{self, Salt};
use cenote_format::compress::{Compression, compress, is_zero, max_compressed_size};
use cenote_format::crypt::BlockParams;
use cenote_format::dmu::DmuType;
use cenote_format::{ByteOrder, DecodeError, MAX_BLOCK, SECTOR};

use super::protect::{Protected, Protection, keep_protected, protect, with_mac};
use super::{Dedup, Packed, Payload, WriteError, WriteRequest};
use crate::tunables;

/// A block that is ready for DVA allocation, or needs no DVA.
pub(super) enum Ready {
    /// It needs no space: a hole or an embedded block.
    Pointer(BlockPointer),
    /// It does.
    Physical(Physical),
}

/// Physical bytes and what a pointer says of them.
#[derive(Clone)]
pub(super) struct Physical {
    pub data: Abd,
    pub lsize: u64,
    pub compression: Compression,
    pub sum: [u64; 4],
    /// Of a block of an encrypted dataset.
    pub protection: Option<Protection>,
}

impl Physical {
    pub(super) fn psize(&self) -> u64 {
        self.data.len() as u64
    }
}

/// Packs the block of a request, with `params` if it is encrypted (`zio_write_bp_init`). `unit` is the size of the smallest
/// sector of the pool.
pub(super) fn pack(
    request: &WriteRequest,
    params: Option<BlockParams>,
    (txg, unit): (u64, u64),
    salt: &Salt,
) -> Result<Ready, WriteError> {
    let props = &request.props;
    let lsize = request.data.len() as u64;
    if lsize == 0 || lsize > MAX_BLOCK || !lsize.is_multiple_of(SECTOR) {
        let why = format!("a block of {lsize} bytes");
        return Err(DecodeError::invalid("block to be written", why).into());
    }
    let data = match &request.data {
        Payload::Plain(data) => data,
        Payload::Packed(packed) => return keep(request, packed, params, (txg, unit), salt),
    };
    let late = request.rewrites(txg) && request.pass >= tunables::SYNC_PASS_DONT_COMPRESS.small();
    let wanted = if late { Compression::Off } else { props.compression };
    let whole = || physical(request, data.clone(), params, (lsize, Compression::Off), salt);
    // Many references to one block of zeros would cost more than holes.
    if wanted == Compression::Off && props.dedup == Dedup::Off {
        return whole();
    }
    if data.chunks().all(is_zero) {
        return hole(request, txg, lsize).map(Ready::Pointer);
    }
    if wanted == Compression::Off || props.is_left_whole() {
        return whole();
    }
    let bytes = data.bytes();
    let limit = max_compressed_size(wanted, bytes.len(), unit as usize, unit as usize);
    let Some(mut packed) = compress(wanted, props.compression_level, &bytes, limit) else {
        return whole();
    };
    if embeds(request, packed.len()) {
        let bp = BlockPointer::embedded(props.object_type, wanted, lsize, &packed, txg)?;
        return Ok(Ready::Pointer(bp));
    }
    let psize = packed.len().next_multiple_of(unit as usize);
    if psize as u64 >= lsize {
        return whole();
    }
    packed.resize(psize, 0);
    // The ARC keeps it, and counts its length.
    packed.shrink_to_fit();
    physical(request, Abd::from_vec(packed), params, (lsize, wanted), salt)
}

/// Whether a block of so many compressed bytes goes into its pointer.
fn embeds(request: &WriteRequest, len: usize) -> bool {
    let props = &request.props;
    // The pointers of dnodes and object sets have to hold a fill count.
    let fill = matches!(props.object_type, DmuType::DNODE | DmuType::OBJSET);
    len <= EMBEDDED_PAYLOAD && props.embed && props.level == 0 && !fill
}

/// A block that came compressed: as it is, in whole sectors (`zio_write_compress` with `ZIO_FLAG_RAW_COMPRESS`).
fn keep(
    request: &WriteRequest,
    packed: &Packed,
    params: Option<BlockParams>,
    (txg, unit): (u64, u64),
    salt: &Salt,
) -> Result<Ready, WriteError> {
    let (data, compression, lsize) = (&packed.data, packed.compression, packed.lsize as u64);
    if packed.seal.is_some() {
        return physical(request, data.clone(), params, (lsize, compression), salt);
    }
    if embeds(request, data.len()) {
        let kind = request.props.object_type;
        let bp = BlockPointer::embedded(kind, compression, lsize, &data.bytes(), txg)?;
        return Ok(Ready::Pointer(bp));
    }
    let psize = (data.len() as u64).next_multiple_of(unit).min(lsize);
    let mut data = data.clone();
    if data.len() as u64 != psize {
        data.resize(psize as usize);
    }
    physical(request, data, params, (lsize, compression), salt)
}

fn hole(request: &WriteRequest, txg: u64, lsize: u64) -> Result<BlockPointer, WriteError> {
    let props = &request.props;
    // A block that was never written has no birth to be remembered.
    if !props.hole_birth || request.previous.logical_birth() == 0 {
        return Ok(BlockPointer::HOLE);
    }
    Ok(BlockPointer::hole(props.object_type, props.level, lsize, txg)?)
}

/// Protects the bytes as they will be on disk, and makes their checksum (`zio_encrypt`, `zio_checksum_generate`).
fn physical(
    request: &WriteRequest,
    data: Abd,
    params: Option<BlockParams>,
    (lsize, compression): (u64, Compression),
    salt: &Salt,
) -> Result<Ready, WriteError> {
    let kind = request.props.checksum;
    let protected = match &request.props.key {
        Some(key) => protect(request, key, params, data)?,
        None if request.props.raw => keep_protected(request, data)?,
        None => {
            let sum = checksum::compute(kind, &data, ByteOrder::Little, salt)?;
            let protection = None;
            return Ok(Ready::Physical(Physical { data, lsize, compression, sum, protection }));
        }
    };
    let Protected { data, mac, protection } = protected;
    let mut sum = checksum::compute(kind, &data, ByteOrder::Little, salt)?;
    if let Some(mac) = mac {
        sum = with_mac(kind, sum, &mac);
    }
    let protection = Some(protection);
    Ok(Ready::Physical(Physical { data, lsize, compression, sum, protection }))
}
