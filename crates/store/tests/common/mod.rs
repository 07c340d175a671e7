//! Blocks written by hand to devices in memory, without a pool around them.
#![allow(clippy::unwrap_used, dead_code)]

use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::{self, Checksum, EMBEDDED_MAGIC, EMBEDDED_SIZE, Salt};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::{ByteOrder, LABEL_START};
use cenote_store::{Bookmark, Store};
use cenote_vdev::inject::{FaultyDevice, MemDevice};
use cenote_vdev::{Device, VdevTree};
use std::sync::Arc;

/// Bytes of each device's data.
pub const SIZE: u64 = 2 << 20;
/// The transaction group in which everything is born.
pub const BIRTH: u64 = 7;
pub const OFF: u8 = 2;
pub const LZ4: u8 = 15;

pub struct Pool {
    pub store: Arc<Store>,
    pub disks: Vec<Arc<FaultyDevice>>,
    memory: Vec<Arc<MemDevice>>,
}

fn list(pairs: &[(&str, NvValue)]) -> NvList {
    NvList { pairs: pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() }
}

/// The config of a tree with one top-level vdev, a file with the guid 100 or more, for each ashift.
pub fn config(ashifts: &[u64]) -> NvList {
    let top = |(id, ashift): (usize, &u64)| {
        list(&[
            ("type", NvValue::String("file".into())),
            ("id", NvValue::Uint64(id as u64)),
            ("guid", NvValue::Uint64(100 + id as u64)),
            ("ashift", NvValue::Uint64(*ashift)),
            ("asize", NvValue::Uint64(SIZE)),
        ])
    };
    let children = ashifts.iter().enumerate().map(top).collect();
    list(&[
        ("type", NvValue::String("root".into())),
        ("guid", NvValue::Uint64(1)),
        ("children", NvValue::NvListArray(children)),
    ])
}

impl Pool {
    /// One top-level vdev for each ashift.
    pub fn new(ashifts: &[u64], arc_bytes: u64) -> Pool {
        let memory: Vec<_> = ashifts
            .iter()
            .map(|_| MemDevice::new("memory", vec![0; (LABEL_START + SIZE) as usize]))
            .collect();
        let disks: Vec<_> = memory.iter().map(|m| FaultyDevice::new(m.clone())).collect();
        let root = config(ashifts);
        let mut open =
            |guid: u64, _: &NvList| Some(disks[guid as usize - 100].clone() as Arc<dyn Device>);
        let vdevs = VdevTree::build(&root, &mut open).unwrap();
        // Opening a device reads its labels.
        let store = Store::new(vdevs, arc_bytes);
        Pool { store, disks, memory }
    }

    pub fn write(&self, vdev: usize, offset: u64, bytes: &[u8]) {
        let at = (LABEL_START + offset) as usize;
        self.memory[vdev].bytes()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What is on a device.
    pub fn bytes(&self, vdev: usize, offset: u64, len: usize) -> Vec<u8> {
        let at = (LABEL_START + offset) as usize;
        self.memory[vdev].bytes()[at..at + len].to_vec()
    }

    /// Writes `data` and returns the pointer to it.
    pub fn block(&self, vdev: usize, offset: u64, data: &[u8]) -> BlockPointer {
        self.write(vdev, offset, data);
        Bp::of(data).at(vdev, offset).make()
    }

    /// Writes a gang header of `size` bytes to each of `places`.
    pub fn header(&self, places: &[(usize, u64)], size: usize, children: &[BlockPointer]) {
        self.header_in(ByteOrder::Little, places, size, children);
    }

    pub fn header_in(
        &self,
        order: ByteOrder,
        places: &[(usize, u64)],
        size: usize,
        children: &[BlockPointer],
    ) {
        let encode = |words: &[u64]| -> Vec<u8> {
            let bytes = |w: &u64| match order {
                ByteOrder::Little => w.to_le_bytes(),
                ByteOrder::Big => w.to_be_bytes(),
            };
            words.iter().flat_map(bytes).collect()
        };
        let mut header: Vec<u8> = children.iter().flat_map(|c| encode(&c.0)).collect();
        header.resize(size - EMBEDDED_SIZE, 0);
        header.extend(encode(&[EMBEDDED_MAGIC]));
        let (vdev, offset) = places[0];
        header.extend(encode(&[vdev as u64, offset, BIRTH, 0]));
        let sum = compute(Checksum::Sha256, &header, order);
        header.truncate(size - 32);
        header.extend(encode(&sum));
        for (vdev, offset) in places {
            self.write(*vdev, *offset, &header);
        }
    }

    /// Reads that arrived at the devices so far.
    pub fn reads(&self) -> u64 {
        self.disks.iter().map(|d| d.reads()).sum()
    }

    pub fn read(&self, bp: &BlockPointer) -> Result<Vec<u8>, cenote_store::BlockError> {
        Ok(self.store.read(bp, at(0))?.data.to_vec())
    }
}

pub fn compute(kind: Checksum, data: &[u8], order: ByteOrder) -> [u64; 4] {
    checksum::compute(kind, &Abd::copy_of(data), order, &Salt::new([0; 32])).unwrap()
}

pub fn at(blkid: u64) -> Bookmark {
    Bookmark { objset: 5, object: 6, level: 0, blkid }
}

/// Bytes that differ from block to block.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i * 31 + seed * 7919) >> 3) as u8).collect()
}

/// A block pointer in the making.
pub struct Bp {
    data: Vec<u8>,
    lsize: usize,
    compression: u8,
    order: ByteOrder,
    dvas: Vec<(usize, u64, bool)>,
    kind: u8,
}

impl Bp {
    /// To a block whose physical bytes are `data`, not compressed.
    pub fn of(data: &[u8]) -> Bp {
        let (data, dvas) = (data.to_vec(), Vec::new());
        let (compression, order, kind) = (OFF, ByteOrder::Little, 19);
        Bp { lsize: data.len(), data, compression, order, dvas, kind }
    }

    pub fn compressed(self, compression: u8, lsize: usize) -> Bp {
        Bp { compression, lsize, ..self }
    }

    pub fn big_endian(self) -> Bp {
        Bp { order: ByteOrder::Big, ..self }
    }

    /// Of an object of this type.
    pub fn kind(self, kind: u8) -> Bp {
        Bp { kind, ..self }
    }

    pub fn at(mut self, vdev: usize, offset: u64) -> Bp {
        self.dvas.push((vdev, offset, false));
        self
    }

    pub fn gang(mut self, vdev: usize, offset: u64) -> Bp {
        self.dvas.push((vdev, offset, true));
        self
    }

    pub fn make(&self) -> BlockPointer {
        let mut words = [0u64; 16];
        let asize = self.data.len() as u64 >> 9;
        for (pair, (vdev, offset, gang)) in words.chunks_exact_mut(2).zip(&self.dvas) {
            pair[0] = (*vdev as u64) << 32 | asize;
            pair[1] = u64::from(*gang) << 63 | offset >> 9;
        }
        let little = u64::from(self.order == ByteOrder::Little);
        let sectors = |len: usize| (len as u64 >> 9) - 1;
        words[6] = little << 63
            | u64::from(self.kind) << 48
            | (Checksum::Fletcher4 as u64) << 40
            | u64::from(self.compression) << 32
            | sectors(self.data.len()) << 16
            | sectors(self.lsize);
        words[10] = BIRTH;
        let sum = compute(Checksum::Fletcher4, &self.data, self.order);
        words[12..].copy_from_slice(&sum);
        BlockPointer(words)
    }
}
