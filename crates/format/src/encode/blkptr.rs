//! Block pointers (`blkptr_t`) from their properties, embedded blocks (`encode_embedded_bp_compressed`), and gang
//! headers (`zio_gbh_phys_t`).
//!
//! ```text
//! word 0-5    three DVAs: asize(24) grid(8) vdev(24) | offset(63) gang(1)
//! word 6      lsize(16) psize(16) compression(7) E(1) checksum(8) type(8) level(5) X(1) D(1) B(1)
//! word 7      rewritten(1)
//! word 8      nothing
//! word 9-11   physical birth, logical birth, fill
//! word 12-15  checksum
//! ```
//!
//! An embedded block takes all words but 6 and 10. Sizes in word 6 are in sectors less one; sizes of an embedded
//! block are in bytes, in fields of other widths.
//!
//! Invariants: a pointer that is made here passes the checks of the decoder; a field that does not fit is an error,
//! never cut off. Pointers are little-endian.

use super::{EncodeError, Result, embedded, field, push_words};
use crate::blkptr::{BLKPTR_SIZE, BlockPointer, Dva, EMBEDDED_PAYLOAD, REWRITTEN};
use crate::checksum::{Checksum, EMBEDDED_SIZE};
use crate::compress::Compression;
use crate::crypt::{BlockParams, Mac};
use crate::dmu::DmuType;
use crate::{MAX_BLOCK, SECTOR, SECTOR_SHIFT};

const WHAT: &str = "block pointer";
/// The `B` bit: the block is little-endian.
const LITTLE: u64 = 1 << 63;
/// The `X` bit: the block is encrypted or authenticated.
const CRYPT: u64 = 1 << 61;
/// The `E` bit: the payload is in the pointer.
const EMBEDDED: u64 = 1 << 39;

/// What a block pointer to a block on disk says. See [`BlockPointer::new`].
#[derive(Debug, Clone, Copy)]
pub struct BlockProps<'a> {
    /// Type of the object.
    pub kind: DmuType,
    /// Level in the tree of indirect blocks; 0 is data.
    pub level: u8,
    /// Checksum function.
    pub checksum: Checksum,
    /// Compression function, [`Compression::Off`] if the block is not compressed.
    pub compression: Compression,
    /// Logical bytes, a multiple of 512.
    pub lsize: u64,
    /// Physical bytes, a multiple of 512.
    pub psize: u64,
    /// Whether the block is in the deduplication table.
    pub dedup: bool,
    /// One to three copies, the first one first.
    pub dvas: &'a [Dva],
    /// Transaction group that wrote the contents.
    pub logical_birth: u64,
    /// Transaction group that allocated the copies; 0 means the same.
    pub physical_birth: u64,
    /// Blocks (dnodes, for blocks of dnodes) below.
    pub fill: u64,
    /// The checksum of the physical bytes.
    pub sum: [u64; 4],
}

fn bad<T>(why: String) -> Result<T> {
    Err(EncodeError::unrepresentable(WHAT, why))
}

/// Type and level as they are in word 6.
fn place(kind: DmuType, level: u8) -> Result<u64> {
    if !kind.is_valid() {
        return bad(format!("object type {}", kind.0));
    }
    Ok(u64::from(kind.0) << 48 | field(WHAT, "level", level.into(), 56, 5)?)
}

/// A size in sectors less one, as word 6 holds it.
fn sectors(name: &str, bytes: u64, low: u32) -> Result<u64> {
    if bytes == 0 || !bytes.is_multiple_of(SECTOR) || bytes > MAX_BLOCK {
        return bad(format!("{name} {bytes:#x}"));
    }
    field(WHAT, name, (bytes >> SECTOR_SHIFT) - 1, low, 16)
}

/// The two words of a copy's address.
///
/// Errors: sizes that are no multiples of 512, fields that do not fit.
pub fn dva_words(d: &Dva) -> Result<[u64; 2]> {
    if d.asize == 0 || !d.asize.is_multiple_of(SECTOR) || !d.offset.is_multiple_of(SECTOR) {
        return bad(format!("{d:?}"));
    }
    Ok([
        field(WHAT, "asize", d.asize >> SECTOR_SHIFT, 0, 24)?
            | field(WHAT, "vdev", d.vdev.into(), 32, 24)?,
        d.offset >> SECTOR_SHIFT | u64::from(d.gang) << 63,
    ])
}

impl BlockPointer {
    /// A pointer to a little-endian, unencrypted block on disk. The physical birth is recorded
    /// only where it differs from the logical one, as OpenZFS does.
    ///
    /// Errors: a size that is no multiple of 512 or beyond 16 MiB, more physical than logical
    /// bytes (or other than logical bytes without compression), no copies or more than three, a
    /// field that does not fit, no birth, a function that is not one on disk.
    pub fn new(p: &BlockProps<'_>) -> Result<BlockPointer> {
        if p.psize > p.lsize || (p.compression == Compression::Off && p.psize != p.lsize) {
            return bad(format!("lsize {:#x} psize {:#x}", p.lsize, p.psize));
        }
        if matches!(p.compression, Compression::Inherit | Compression::On)
            || matches!(p.checksum, Checksum::Inherit | Checksum::On)
        {
            let (compression, checksum) = (p.compression.name(), p.checksum.name());
            return bad(format!("compression {compression}, checksum {checksum}"));
        }
        if !(1..=3).contains(&p.dvas.len()) || p.logical_birth == 0 {
            return bad(format!("{} copies, birth {}", p.dvas.len(), p.logical_birth));
        }
        let mut w = [0; 16];
        for (pair, d) in w.chunks_exact_mut(2).zip(p.dvas) {
            pair.copy_from_slice(&dva_words(d)?);
        }
        w[6] = LITTLE
            | u64::from(p.dedup) << 62
            | place(p.kind, p.level)?
            | (p.checksum as u64) << 40
            | (p.compression as u64) << 32
            | sectors("psize", p.psize, 16)?
            | sectors("lsize", p.lsize, 0)?;
        w[9] = if p.physical_birth == p.logical_birth { 0 } else { p.physical_birth };
        w[10] = p.logical_birth;
        w[11] = p.fill;
        w[12..].copy_from_slice(&p.sum);
        Ok(BlockPointer(w))
    }

    /// A pointer that carries its block (`BP_EMBEDDED_TYPE_DATA`): `payload` is what `compression`
    /// made of `lsize` bytes.
    ///
    /// Errors: a payload of no or more than 112 bytes; `lsize` beyond 16 MiB, or other than the
    /// payload's length without compression; a level other than 0; dnodes and object sets, whose
    /// fill count the pointer has no room for; no birth.
    pub fn embedded(
        kind: DmuType,
        compression: Compression,
        lsize: u64,
        payload: &[u8],
        birth: u64,
    ) -> Result<BlockPointer> {
        let psize = payload.len() as u64;
        if payload.is_empty() || payload.len() > EMBEDDED_PAYLOAD || lsize > MAX_BLOCK {
            return bad(format!("embedded block of {lsize:#x} bytes in {psize:#x}"));
        }
        let function_fits = match compression {
            Compression::Inherit | Compression::On | Compression::Empty => false,
            Compression::Off => lsize == psize,
            _ => lsize > 0,
        };
        if !function_fits {
            let name = compression.name();
            return bad(format!("embedded block of {lsize:#x} bytes in {psize:#x}, {name}"));
        }
        if matches!(kind, DmuType::DNODE | DmuType::OBJSET) || birth == 0 {
            return bad(format!("embedded block of type {kind:?}, birth {birth}"));
        }
        let mut bytes = [0; EMBEDDED_PAYLOAD];
        bytes[..payload.len()].copy_from_slice(payload);
        let mut w = [0; 16];
        let free_words = (0..16).filter(|w| *w != 6 && *w != 10);
        for (i, bytes) in free_words.zip(bytes.as_chunks::<8>().0) {
            w[i] = u64::from_le_bytes(*bytes);
        }
        w[6] = LITTLE
            | EMBEDDED
            | place(kind, 0)?
            | (compression as u64) << 32
            | (psize - 1) << 25
            | (lsize - 1);
        w[10] = birth;
        Ok(BlockPointer(w))
    }

    /// The pointer of `lsize` bytes that became a hole in transaction group `birth` (feature
    /// `hole_birth`); without a birth use [`BlockPointer::HOLE`].
    pub fn hole(kind: DmuType, level: u8, lsize: u64, birth: u64) -> Result<BlockPointer> {
        let mut w = [0; 16];
        w[6] = place(kind, level)? | sectors("lsize", lsize, 0)?;
        w[10] = birth;
        Ok(BlockPointer(w))
    }

    /// The pointer to the same block that a clone made in group `txg` has: born in `txg` as the tree of
    /// blocks sees it, written when it was (`BP_SET_BIRTH` in `dmu_brt_clone`). An embedded block has its
    /// contents with it, and so one birth.
    pub fn cloned(&self, txg: u64) -> BlockPointer {
        let mut new = *self;
        if !self.is_embedded() {
            let written = self.physical_birth();
            new.0[9] = if written == txg { 0 } else { written };
            new.0[7] &= !REWRITTEN;
        }
        new.0[10] = txg;
        new
    }

    /// The pointer of a block that takes the place of one with the same contents that was born in
    /// `logical`, and keeps that birth (`zio_dva_allocate` with `zp_rewrite`). Embedded blocks and holes have one
    /// birth only, and stay as they are.
    pub fn rewritten(&self, logical: u64) -> BlockPointer {
        let mut new = *self;
        if !self.is_embedded() && !self.is_hole() {
            let written = self.physical_birth();
            new.0[9] = if written == logical { 0 } else { written };
            new.0[10] = logical;
            new.0[7] |= REWRITTEN;
        }
        new
    }

    /// The pointer to the same block of an encrypted dataset (`BP_SET_CRYPT`, `zio_crypt_encode_params_bp`). `params` are
    /// those of an encrypted block; words 2 and 3 of the checksum are the MAC already.
    ///
    /// # Errors
    /// An encrypted block with three copies, or a fill count of more than 32 bits.
    pub fn protected(mut self, params: Option<&BlockParams>) -> Result<BlockPointer> {
        self.0[6] |= CRYPT;
        let Some(BlockParams { salt, iv }) = params else { return Ok(self) };
        if self.0[4..6] != [0; 2] {
            return bad("an encrypted block with three copies".into());
        }
        let fill = field(WHAT, "fill", self.0[11], 0, 32)?;
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *iv;
        self.0[4] = u64::from_le_bytes(*salt);
        self.0[5] = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        self.0[11] = fill | u64::from(u32::from_le_bytes([i, j, k, l])) << 32;
        Ok(self)
    }

    /// The 128 bytes on disk.
    pub fn encode(&self) -> [u8; BLKPTR_SIZE] {
        let mut out = [0; BLKPTR_SIZE];
        for (bytes, word) in out.chunks_exact_mut(8).zip(self.0) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }
}

/// An indirect block, or a block of a bpobj: `pointers` one after the other, then holes up to
/// `len` bytes. Errors: more pointers than there is room for.
pub fn encode_pointers(pointers: &[BlockPointer], len: usize) -> Result<Vec<u8>> {
    if pointers.len() > len / BLKPTR_SIZE {
        return bad(format!("{} of them in {len} bytes", pointers.len()));
    }
    let mut out = Vec::with_capacity(len);
    pointers.iter().for_each(|bp| push_words(&mut out, &bp.0));
    out.resize(len, 0);
    Ok(out)
}

/// Bytes of a gang header of before `dynamic_gang_header` (`SPA_OLD_GANGBLOCKSIZE`).
pub const OLD_GANG_HEADER: usize = SECTOR as usize;

/// Block pointers that a gang header of `size` bytes holds: 3 in 512 bytes, none in fewer than its checksum takes.
pub fn gang_pointers(size: usize) -> usize {
    size.saturating_sub(EMBEDDED_SIZE) / BLKPTR_SIZE
}

/// A gang header (`zio_gbh_phys_t`) of `size` bytes (512, or with the feature
/// `dynamic_gang_header` what the vdev allocates at least). `first` is the first copy of the
/// header itself and `birth` the transaction group that allocates it; they are what its checksum
/// is tied to. `is_half`: the header is that of a block whose pointer has half a checksum, as it is protected, and so has the
/// header, with no MAC (`zio_checksum_handle_crypt`). Errors: more pointers than fit, a size that is no multiple of 512.
pub fn encode_gang_header(
    pointers: &[BlockPointer],
    size: usize,
    (first, birth): (&Dva, u64),
    is_half: bool,
) -> Result<Vec<u8>> {
    if size == 0 || !size.is_multiple_of(SECTOR as usize) || pointers.len() > gang_pointers(size) {
        let why = format!("{} pointers in {size} bytes", pointers.len());
        return Err(EncodeError::unrepresentable("gang header", why));
    }
    let mut out = encode_pointers(pointers, size)?;
    let (kind, verifier) = (Checksum::GangHeader, [first.vdev.into(), first.offset, birth, 0]);
    match is_half {
        false => embedded::seal(kind, &mut out, verifier)?,
        true => embedded::seal_with_mac(kind, &mut out, verifier, &Mac::default())?,
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::verify_embedded;
    use crate::{ByteOrder, Bytes};
    use proptest::prelude::*;

    fn any_dva() -> impl Strategy<Value = Dva> {
        (0u32..1 << 24, 0u64..1 << 54, 1u64..1 << 24, any::<bool>()).prop_map(
            |(vdev, offset, asize, gang)| Dva {
                vdev,
                offset: offset << 9,
                asize: asize << 9,
                gang,
            },
        )
    }

    proptest! {
        #[test]
        fn properties_come_back(
            dvas in proptest::collection::vec(any_dva(), 1..4),
            level in 0u8..32, kind in 1u8..54, checksum in 2u8..15, compression in 3u8..17,
            p in 1u64..32768, more in 0u64..32768, dedup: bool, sum: [u64; 4],
            births in (1u64.., any::<u64>()), fill: u64,
        ) {
            let props = BlockProps {
                kind: DmuType(kind),
                level,
                checksum: Checksum::from_u8(checksum).unwrap(),
                compression: Compression::from_u8(compression).unwrap(),
                lsize: ((p + more).min(32768)) << 9,
                psize: p << 9,
                dedup,
                dvas: &dvas,
                logical_birth: births.0,
                physical_birth: births.1,
                fill,
                sum,
            };
            let bp = BlockPointer::new(&props).unwrap();
            let bytes = bp.encode();
            let back = BlockPointer::decode(&Bytes::new(&bytes, ByteOrder::Little, "t"), 0).unwrap();
            prop_assert_eq!(back, bp);
            prop_assert!(bp.check().is_ok() && !bp.is_hole() && !bp.is_embedded());
            prop_assert_eq!(bp.dvas().collect::<Vec<_>>(), dvas.clone());
            prop_assert_eq!(bp.is_gang(), dvas[0].gang);
            prop_assert_eq!((bp.level(), bp.object_type()), (level, kind));
            prop_assert_eq!((bp.checksum_type(), bp.compression()), (checksum, compression));
            prop_assert_eq!((bp.lsize(), bp.psize()), (props.lsize, props.psize));
            prop_assert_eq!((bp.is_dedup(), bp.fill(), bp.checksum()), (dedup, fill, sum));
            prop_assert_eq!(bp.logical_birth(), births.0);
            let physical = if births.1 == 0 { births.0 } else { births.1 };
            prop_assert_eq!(bp.physical_birth(), physical);
            prop_assert_eq!((bp.byte_order(), bp.uses_crypt()), (ByteOrder::Little, false));
        }

        #[test]
        fn embedded_payloads_come_back(
            payload in proptest::collection::vec(any::<u8>(), 1..=112),
            lsize in 1u64..=MAX_BLOCK, birth in 1u64..,
        ) {
            let kind = DmuType::PLAIN_FILE_CONTENTS;
            let bp = BlockPointer::embedded(kind, Compression::Lz4, lsize, &payload, birth).unwrap();
            prop_assert!(bp.is_embedded() && bp.check().is_ok());
            prop_assert_eq!(bp.embedded_payload().unwrap(), payload.clone());
            prop_assert_eq!((bp.lsize(), bp.psize()), (lsize, payload.len() as u64));
            prop_assert_eq!((bp.logical_birth(), bp.compression()), (birth, 15));
            prop_assert_eq!((bp.checksum_type(), bp.object_type()), (0, kind.0));
            let plain = BlockPointer::embedded(kind, Compression::Off, lsize, &payload, birth);
            prop_assert_eq!(plain.is_ok(), lsize == payload.len() as u64);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let d = Dva { vdev: 1, offset: 512, asize: 512, gang: false };
        let good = BlockProps {
            kind: DmuType::PLAIN_FILE_CONTENTS,
            level: 0,
            checksum: Checksum::Fletcher4,
            compression: Compression::Off,
            lsize: 512,
            psize: 512,
            dedup: false,
            dvas: &[d],
            logical_birth: 1,
            physical_birth: 1,
            fill: 1,
            sum: [0; 4],
        };
        assert!(BlockPointer::new(&good).is_ok());
        let lz4 = Compression::Lz4;
        for bad in [
            BlockProps { lsize: 513, psize: 513, ..good },
            BlockProps { lsize: 0, psize: 0, ..good },
            BlockProps { lsize: 1024, ..good },
            BlockProps { compression: lz4, psize: 1024, ..good },
            BlockProps { compression: lz4, lsize: 32 << 20, ..good },
            BlockProps { compression: Compression::On, ..good },
            BlockProps { checksum: Checksum::Inherit, ..good },
            BlockProps { level: 32, ..good },
            BlockProps { kind: DmuType(60), ..good },
            BlockProps { dvas: &[], ..good },
            BlockProps { dvas: &[d; 4], ..good },
            BlockProps { dvas: &[Dva { vdev: 1 << 24, ..d }], ..good },
            BlockProps { dvas: &[Dva { asize: 0, ..d }], ..good },
            BlockProps { dvas: &[Dva { asize: 1 << 33, ..d }], ..good },
            BlockProps { dvas: &[Dva { offset: 1, ..d }], ..good },
            BlockProps { logical_birth: 0, ..good },
        ] {
            assert!(BlockPointer::new(&bad).is_err(), "{bad:?}");
        }
        let kind = DmuType::PLAIN_FILE_CONTENTS;
        assert!(BlockPointer::embedded(kind, lz4, 512, &[1; 113], 1).is_err());
        assert!(BlockPointer::embedded(kind, lz4, 512, &[], 1).is_err());
        assert!(BlockPointer::embedded(kind, lz4, MAX_BLOCK + 1, &[1], 1).is_err());
        assert!(BlockPointer::embedded(kind, lz4, 0, &[1], 1).is_err());
        assert!(BlockPointer::embedded(DmuType::DNODE, lz4, 512, &[1], 1).is_err());
        assert!(BlockPointer::hole(kind, 1, 100, 1).is_err());
        let hole = BlockPointer::hole(kind, 1, 4096, 9).unwrap();
        assert!(hole.is_hole() && hole.lsize() == 4096 && hole.logical_birth() == 9);
    }

    #[test]
    fn gang_headers_verify() {
        let d = Dva { vdev: 3, offset: 1 << 20, asize: 512, gang: true };
        let hole = BlockPointer::HOLE;
        assert_eq!((gang_pointers(512), gang_pointers(4096)), (3, 31));
        for size in [512, 4096] {
            let header = encode_gang_header(&[hole; 3], size, (&d, 77), false).unwrap();
            let verifier = [3, 1 << 20, 77, 0];
            let order = verify_embedded(Checksum::GangHeader, &header, verifier).unwrap();
            assert_eq!((order, header.len()), (Some(ByteOrder::Little), size));
        }
        assert!(encode_gang_header(&[hole; 4], 512, (&d, 77), false).is_err());
        assert!(encode_pointers(&[hole; 4], 511).is_err());
    }

    /// The one that OpenZFS 2.4 wrote for an encrypted block: the words of its checksum are folded into two.
    #[test]
    fn the_gang_header_of_an_encrypted_block() {
        let part = Dva { vdev: 0, offset: 0x7368_9c00, asize: 0x15800, gang: false };
        let part = BlockPointer::new(&BlockProps {
            kind: DmuType::NONE,
            level: 0,
            checksum: Checksum::Fletcher4,
            compression: Compression::Off,
            lsize: 64 << 10,
            psize: 64 << 10,
            dedup: false,
            dvas: &[part],
            logical_birth: 34,
            physical_birth: 0,
            fill: 0,
            sum: [
                0x0000_1fdb_3050_6c88,
                0x03fa_0c53_7cc0_56bc,
                0xc105_2f73_4467_7cae,
                0xfc07_a0f8_7bc4_bfce,
            ],
        });
        let first = Dva { vdev: 0, offset: 0x7368_9800, asize: 0x15c00, gang: true };
        let header = encode_gang_header(&[part.unwrap()], 512, (&first, 34), true).unwrap();
        let words = Bytes::new(&header, ByteOrder::Little, "gang header").u64s::<5>(472).unwrap();
        let sum = [0x2657_cb29_b950_295b, 0xb0bd_feef_24f7_6d54];
        assert_eq!(words, [0x0210_da7a_b10c_7a11, sum[0], sum[1], 0, 0]);
    }
}
