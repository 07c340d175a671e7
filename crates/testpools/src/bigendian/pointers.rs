//! Turns a block and gives back what points at it then.

use super::contents::Context;
use super::read::{GANG_HEADER, little, unpack};
use super::{Now, Turner, place, seal_at_end, swap};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer, EMBEDDED_PAYLOAD};
use cenote_format::checksum::{Checksum, EMBEDDED_SIZE, compute};
use cenote_format::compress::{Compression, LEVEL_DEFAULT, compress};
use cenote_format::dmu::DmuType;
use cenote_format::encode::blkptr::gang_pointers;
use cenote_format::{ByteOrder, SECTOR};
use std::os::unix::fs::FileExt;

/// The bit of a pointer's properties that says that the block is little-endian.
const LITTLE: u64 = 1 << 63;

/// What the block that a pointer leads to is known by.
pub(super) fn key(bp: &BlockPointer) -> Option<(u32, u64, u64)> {
    let dva = bp.dva(0)?;
    Some((dva.vdev, dva.offset, bp.physical_birth()))
}

/// The pointer with another function of compression.
fn packed_by(bp: &BlockPointer, kind: Compression) -> BlockPointer {
    let mut bp = *bp;
    bp.0[6] = bp.0[6] & !(0x7f << 32) | (kind as u64) << 32;
    bp
}

impl Turner {
    /// The pointer as it is once the block was turned, which this does unless it was done.
    pub(super) fn pointer(&mut self, bp: &BlockPointer, cx: &mut Context) -> BlockPointer {
        let order = bp.byte_order();
        if bp.is_hole() || bp.uses_crypt() || bp.is_redacted() || order == ByteOrder::Big {
            return *bp;
        }
        if bp.is_embedded() {
            return self.embedded(bp, cx);
        }
        if let Some(now) = self.known(bp) {
            return now;
        }
        if bp.is_dedup() {
            *self.turned.little.entry(bp.object_type()).or_default() += 1;
            return *bp;
        }
        let packed = self.physical(bp);
        assert!(self.is_right(bp, &packed), "wrong bytes: {bp:?}");
        let (new, packed) = self.turned(bp, packed, cx);
        let new = self.put(&new, &packed);
        let count = match new.byte_order() {
            ByteOrder::Big => &mut self.turned.big,
            ByteOrder::Little => &mut self.turned.little,
        };
        *count.entry(bp.object_type()).or_default() += 1;
        let now = Now { props: new.0[6], checksum: new.checksum() };
        self.done.insert(key(bp).unwrap(), now);
        new
    }

    /// As [`Turner::pointer`], where the block may be something else by now (of records in an intent log).
    pub(super) fn pointer_if_right(&mut self, bp: &BlockPointer) -> BlockPointer {
        let is_stored = !bp.is_hole() && !bp.is_embedded();
        if is_stored && self.known(bp).is_none() && !self.is_right(bp, &self.physical(bp)) {
            return *bp;
        }
        self.pointer(bp, &mut Context::default())
    }

    /// The pointer of a block that was turned.
    pub(super) fn known(&self, bp: &BlockPointer) -> Option<BlockPointer> {
        let now = self.done.get(&key(bp)?)?;
        let mut new = *bp;
        new.0[6] = now.props;
        new.0[12..].copy_from_slice(&now.checksum);
        Some(new)
    }

    /// The contents of a block as they are to be stored, and the properties of its pointer.
    fn turned(
        &mut self,
        bp: &BlockPointer,
        packed: Vec<u8>,
        cx: &mut Context,
    ) -> (BlockPointer, Vec<u8>) {
        let mut big = *bp;
        big.0[6] &= !LITTLE;
        let before = unpack(bp, &packed);
        let mut data = before.clone();
        self.convert_pointers(bp, &mut data, cx);
        let converted = data.clone();
        self.turn(bp, &mut data, cx);
        if data == before {
            return (big, packed);
        }
        self.before.insert(key(bp).unwrap(), before);
        let kind = Compression::from_u8(bp.compression()).unwrap();
        if kind == Compression::Off {
            return (big, data);
        }
        let limit = bp.psize() as usize;
        let tries = [(big, kind, &data), (big, Compression::Gzip9, &data)];
        let kept = [(*bp, kind, &converted), (*bp, Compression::Gzip9, &converted)];
        for (bp, kind, data) in tries.into_iter().chain(kept) {
            if let Some(mut packed) = compress(kind, LEVEL_DEFAULT, data, limit) {
                packed.resize(limit, 0);
                return (packed_by(&bp, kind), packed);
            }
        }
        // Lists of blocks may keep their pointers in the former order: no reader follows these.
        assert!(bp.level() == 0 && DmuType(bp.object_type()) == DmuType::BPOBJ, "no room: {bp:?}");
        (*bp, packed)
    }

    fn embedded(&mut self, bp: &BlockPointer, cx: &mut Context) -> BlockPointer {
        let mut data = self.logical(bp);
        assert_eq!(bp.level(), 0, "an embedded block of pointers");
        self.turn(bp, &mut data, cx);
        let kind = Compression::from_u8(bp.compression()).unwrap();
        let packed = match kind {
            Compression::Off => Some(data),
            kind => compress(kind, LEVEL_DEFAULT, &data, EMBEDDED_PAYLOAD),
        };
        let Some(mut packed) = packed else { return *bp };
        let mut new = *bp;
        new.0[6] = new.0[6] & !LITTLE & !(0x7f << 25) | (packed.len() as u64 - 1) << 25;
        packed.resize(EMBEDDED_PAYLOAD, 0);
        let mut words = packed.as_chunks::<8>().0.iter();
        for at in (0..16).filter(|w| *w != 6 && *w != 10) {
            new.0[at] = u64::from_le_bytes(*words.next().unwrap());
        }
        new
    }

    /// Stores the physical bytes of a block in all its places; gives the pointer its checksum.
    fn put(&mut self, bp: &BlockPointer, packed: &[u8]) -> BlockPointer {
        let mut new = *bp;
        for dva in bp.dvas() {
            match dva.gang {
                false => self.store(dva.vdev, dva.offset, packed),
                true => {
                    let header = self.sectors(dva.vdev, dva.offset, GANG_HEADER);
                    let birth = bp.physical_birth();
                    let first = bp.dva(0).unwrap();
                    let verifier = [u64::from(first.vdev), first.offset, birth, 0];
                    let header = self.gang(header, packed, verifier);
                    self.store(dva.vdev, dva.offset, &header);
                }
            }
        }
        let kind = Checksum::from_u8(bp.checksum_type()).unwrap();
        let order = new.byte_order();
        let sum = compute(kind, &Abd::copy_of(packed), order, &self.salt).unwrap();
        new.0[12..].copy_from_slice(&sum);
        new
    }

    /// Stores the parts of a divided block; gives back its header.
    fn gang(&mut self, mut header: Vec<u8>, packed: &[u8], verifier: [u64; 4]) -> Vec<u8> {
        let mut rest = packed;
        for i in 0..gang_pointers(GANG_HEADER) {
            let at = i * BLKPTR_SIZE;
            let mut part = BlockPointer::decode(&little(&header), at).unwrap();
            if part.is_hole() {
                continue;
            }
            let len = (part.psize() as usize).min(rest.len());
            let (data, after) = rest.split_at(len);
            rest = after;
            let mut data = data.to_vec();
            data.resize(part.psize() as usize, 0);
            part.0[6] &= !LITTLE;
            part = self.put(&part, &data);
            header[at..at + BLKPTR_SIZE].copy_from_slice(&part.encode());
        }
        swap(&mut header[..GANG_HEADER - EMBEDDED_SIZE], 8);
        seal_at_end(Checksum::GangHeader, &mut header, verifier);
        header
    }

    /// Writes sectors of all sides of a top-level vdev.
    pub(super) fn store(&self, vdev: u32, offset: u64, data: &[u8]) {
        assert!((data.len() as u64).is_multiple_of(SECTOR));
        for device in self.devices.iter().filter(|d| d.top == vdev) {
            device.file.write_all_at(data, place(offset)).unwrap();
        }
    }
}
