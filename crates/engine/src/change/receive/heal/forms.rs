//! The physical bytes that a block may have had, made of what a stream has of it.
//!
//! A pointer tells which function a block was compressed with, and not at which level, nor by which version of a library. So what
//! came compressed is tried as it came, and then what this program makes of it, at each level. Of an encrypted block the
//! pointer has salt, initialization vector and MAC: with the key, the same bytes become the same block again. A raw stream has
//! the block as it is on disk.

use cenote_format::SECTOR;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::compress::{Compression, LEVEL_DEFAULT, compress, max_compressed_size};
use cenote_format::crypt::{BlockParams, Seal, bp_mac};
use cenote_format::dmu::DmuType;
use cenote_store::keys::LoadedKey;
use cenote_store::write::{Packed, Payload};

/// Levels of zstd, the usual ones first.
const ZSTD_LEVELS: [std::ops::RangeInclusive<u8>; 2] = [1..=19, 103..=123];

/// Hands the forms to `take` until it has what it looks for. `key` is that of the dataset, if the stream is not raw.
pub(super) fn each(
    bp: &BlockPointer,
    data: &Payload,
    key: Option<&LoadedKey>,
    take: &mut dyn FnMut(Abd) -> bool,
) {
    if let Payload::Packed(Packed { data, compression, lsize, seal: Some(seal) }) = data {
        let same = *compression as u8 == bp.compression() && *lsize as u64 == bp.lsize();
        if same && *seal == Seal::of(bp) {
            take(data.clone());
        }
        return;
    }
    if data.len() as u64 != bp.lsize() {
        return;
    }
    compressed(bp, data, &mut |bytes| match protected(bp, bytes, key) {
        Some(bytes) => take(bytes),
        None => false,
    });
}

/// The forms before encryption.
fn compressed(bp: &BlockPointer, data: &Payload, take: &mut dyn FnMut(Vec<u8>) -> bool) {
    let Ok(function) = Compression::from_u8(bp.compression()) else { return };
    let psize = bp.psize() as usize;
    let padded = |mut bytes: Vec<u8>| {
        bytes.resize(psize.max(bytes.len()), 0);
        bytes
    };
    if let Payload::Packed(Packed { data, compression, .. }) = data
        && *compression == function
        && take(padded(data.to_vec()))
    {
        return;
    }
    let Ok(plain) = data.unpacked() else { return };
    if function == Compression::Off {
        take(plain.to_vec());
        return;
    }
    let bytes = plain.bytes();
    let unit = SECTOR as usize;
    let limit = max_compressed_size(function, bytes.len(), unit, unit);
    let levels = ZSTD_LEVELS.into_iter().flatten().filter(|_| function == Compression::Zstd);
    for level in std::iter::once(LEVEL_DEFAULT).chain(levels) {
        let made = compress(function, level, &bytes, limit);
        if made.is_some_and(|made| take(padded(made))) {
            return;
        }
    }
}

/// The same as the dataset's key makes it; `None`: the key makes another MAC of it than the pointer has.
fn protected(bp: &BlockPointer, mut bytes: Vec<u8>, key: Option<&LoadedKey>) -> Option<Abd> {
    if !bp.uses_crypt() {
        return Some(Abd::from_vec(bytes));
    }
    let key = key?.key();
    if !bp.is_encrypted() {
        let data = Abd::from_vec(bytes);
        return key.authenticate(bp, &data).is_ok().then_some(data);
    }
    if bytes.len() as u64 != bp.psize() {
        return None;
    }
    let mac = key.encrypt(DmuType(bp.object_type()), &BlockParams::of(bp), &mut bytes).ok()?;
    (mac == bp_mac(bp)).then(|| Abd::from_vec(bytes))
}
