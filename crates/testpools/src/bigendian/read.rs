//! Reads what is not turned yet: object sets, objects, ZAPs.

use super::pointers::key;
use super::{Turner, place, swap};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::checksum::{Checksum, compute};
use cenote_format::compress::{Compression, decompress};
use cenote_format::dmu::{DNODE_SLOT, DmuType, DnodePhys, ObjsetPhys};
use cenote_format::encode::blkptr::gang_pointers;
use cenote_format::zap::{BLOCK_LEAF, BLOCK_MICRO, fat::FatHeader, leaf::Leaf, micro::Micro};
use cenote_format::{ByteOrder, Bytes, turn};

/// Bytes of a gang header.
pub(super) const GANG_HEADER: usize = 512;

pub(super) fn little<'a>(data: &'a [u8]) -> Bytes<'a> {
    Bytes::new(data, ByteOrder::Little, "block")
}

impl Turner {
    /// The physical bytes at a place.
    pub(super) fn sectors(&self, vdev: u32, offset: u64, len: usize) -> Vec<u8> {
        let device = self.devices.iter().find(|d| d.top == vdev);
        device.unwrap_or_else(|| panic!("no vdev {vdev}")).read(place(offset), len)
    }

    /// The physical bytes of a block, put together where it is divided.
    pub(super) fn physical(&self, bp: &BlockPointer) -> Vec<u8> {
        let dva = bp.dva(0).expect("a place");
        if !dva.gang {
            return self.sectors(dva.vdev, dva.offset, bp.psize() as usize);
        }
        let header = self.sectors(dva.vdev, dva.offset, GANG_HEADER);
        let mut data = Vec::new();
        for i in 0..gang_pointers(GANG_HEADER) {
            let part = BlockPointer::decode(&little(&header), i * BLKPTR_SIZE).unwrap();
            if !part.is_hole() {
                data.extend(self.physical(&part));
            }
        }
        data.truncate(bp.psize() as usize);
        data
    }

    /// Whether the bytes are those that the pointer says.
    pub(super) fn is_right(&self, bp: &BlockPointer, data: &[u8]) -> bool {
        let kind = Checksum::from_u8(bp.checksum_type()).unwrap();
        let sum = compute(kind, &Abd::copy_of(data), bp.byte_order(), &self.salt).unwrap();
        kind == Checksum::Off || sum == bp.checksum()
    }

    /// What is in a block, or in its pointer, little-endian: the pool may have been turned before, and used since.
    pub(super) fn logical(&self, bp: &BlockPointer) -> Vec<u8> {
        if let Some(before) = key(bp).and_then(|key| self.before.get(&key)) {
            return before.clone();
        }
        let packed = match bp.is_embedded() {
            true => bp.embedded_payload().unwrap(),
            false => self.physical(bp),
        };
        // The salt is not known before the object directory is read.
        let mut data = unpack(bp, &packed);
        match bp.byte_order() {
            ByteOrder::Little => {}
            ByteOrder::Big if bp.level() > 0 => swap(&mut data, 8),
            ByteOrder::Big => turn::from_big_endian(DmuType(bp.object_type()), &mut data),
        }
        data
    }

    pub(super) fn object_set(&self, bp: &BlockPointer) -> ObjsetPhys {
        ObjsetPhys::decode(&little(&self.logical(bp))).unwrap()
    }

    /// Block `blkid` of an object; `None` for a hole.
    pub(super) fn block_of(&self, dnode: &DnodePhys, blkid: u64) -> Option<Vec<u8>> {
        let fan = u32::from(dnode.indirect_shift).saturating_sub(7);
        let above = |level: u32| blkid >> (fan * level);
        let top = u32::from(dnode.levels) - 1;
        let mut bp = *dnode.pointers.get(above(top) as usize)?;
        for level in (0..top).rev() {
            if bp.is_hole() {
                return None;
            }
            let index = (above(level) & ((1 << fan) - 1)) as usize;
            bp = BlockPointer::decode(&little(&self.logical(&bp)), index * BLKPTR_SIZE).unwrap();
        }
        (!bp.is_hole()).then(|| self.logical(&bp))
    }

    /// All dnodes of an object set.
    pub(super) fn dnodes(&self, objset: &ObjsetPhys) -> Vec<DnodePhys> {
        let mut all = Vec::new();
        for blkid in 0..=objset.meta_dnode.max_block {
            let Some(block) = self.block_of(&objset.meta_dnode, blkid) else { continue };
            let mut at = 0;
            while at < block.len() {
                let dnode = DnodePhys::decode(&little(&block), at).unwrap();
                at += dnode.as_ref().map_or(1, DnodePhys::slots) as usize * DNODE_SLOT;
                all.extend(dnode);
            }
        }
        all
    }

    pub(super) fn dnode(&self, objset: &ObjsetPhys, number: u64) -> Option<DnodePhys> {
        let each = objset.meta_dnode.block_size / DNODE_SLOT as u64;
        let block = self.block_of(&objset.meta_dnode, number / each)?;
        DnodePhys::decode(&little(&block), (number % each) as usize * DNODE_SLOT).unwrap()
    }

    /// The entries of a ZAP whose keys are names.
    pub(super) fn zap(&self, dnode: &DnodePhys) -> Vec<(Vec<u8>, Vec<u64>)> {
        let head = self.block_of(dnode, 0).expect("a ZAP");
        if little(&head).u64(0).unwrap() == BLOCK_MICRO {
            let micro = Micro::decode(little(&head)).unwrap();
            let entries = micro.entries().map(|e| e.unwrap().1);
            return entries.map(|e| (e.name.to_vec(), vec![e.value])).collect();
        }
        let flags = FatHeader::decode(&little(&head)).unwrap().flags;
        let mut found = Vec::new();
        for blkid in 1..=dnode.max_block {
            let Some(block) = self.block_of(dnode, blkid) else { continue };
            if little(&block).u64(0).unwrap() != BLOCK_LEAF {
                continue;
            }
            let leaf = Leaf::decode(little(&block)).unwrap();
            for entry in leaf.entries(flags).unwrap() {
                found.push((leaf.name(&entry).unwrap(), leaf.value(&entry).unwrap()));
            }
        }
        found
    }
}

/// Unpacks a block.
pub(super) fn unpack(bp: &BlockPointer, packed: &[u8]) -> Vec<u8> {
    let mut data = vec![0; bp.lsize() as usize];
    let kind = Compression::from_u8(bp.compression()).unwrap();
    decompress(kind, packed, &mut data).unwrap_or_else(|e| panic!("{bp:?}: {e}"));
    data
}
