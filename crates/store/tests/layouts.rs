//! Blocks written through the allocator and the write pipeline to every layout of devices, and
//! read back whole, with as many devices lost or silently wrong as the layout stands.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use cenote_format::LABEL_START;
use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_store::alloc::{
    Allocator, Class, Extent, LoadMetaslab, Loaded, Loading, MetaslabInfo, Options, VdevInfo,
};
use cenote_store::write::{WriteProps, WriteRequest, Writer};
use cenote_store::{Bookmark, Store};
use cenote_vdev::inject::{FaultyDevice, MemDevice};
use cenote_vdev::{Device, VdevTree, init_labels};

/// Bytes of each device after its front labels.
const SIZE: u64 = 64 << 20;
const MS_SHIFT: u32 = 24;
const TXG: u64 = 5;
const POOL_GUID: u64 = 1;

/// A top-level vdev: its type, parity and number of devices.
struct Layout {
    kind: &'static str,
    parity: u64,
    disks: usize,
}

const LAYOUTS: [Layout; 7] = [
    Layout { kind: "mirror", parity: 0, disks: 2 },
    Layout { kind: "mirror", parity: 0, disks: 3 },
    Layout { kind: "raidz", parity: 1, disks: 3 },
    Layout { kind: "raidz", parity: 1, disks: 4 },
    Layout { kind: "raidz", parity: 2, disks: 5 },
    Layout { kind: "raidz", parity: 3, disks: 6 },
    Layout { kind: "raidz", parity: 3, disks: 9 },
];

impl Layout {
    /// Devices that may be lost.
    fn tolerance(&self) -> usize {
        if self.kind == "mirror" { self.disks - 1 } else { self.parity as usize }
    }

    /// Allocatable bytes of the vdev, whole metaslabs.
    fn asize(&self) -> u64 {
        if self.kind == "mirror" { SIZE } else { SIZE * self.disks as u64 }
    }

    fn config(&self, ashift: u64) -> NvList {
        let leaf = |id: usize| {
            list(vec![
                ("type", NvValue::String("file".into())),
                ("id", NvValue::Uint64(id as u64)),
                ("guid", NvValue::Uint64(100 + id as u64)),
            ])
        };
        let top = list(vec![
            ("type", NvValue::String(self.kind.into())),
            ("id", NvValue::Uint64(0)),
            ("guid", NvValue::Uint64(2)),
            ("nparity", NvValue::Uint64(self.parity)),
            ("ashift", NvValue::Uint64(ashift)),
            ("asize", NvValue::Uint64(self.asize())),
            ("children", NvValue::NvListArray((0..self.disks).map(leaf).collect())),
        ]);
        list(vec![
            ("type", NvValue::String("root".into())),
            ("guid", NvValue::Uint64(POOL_GUID)),
            ("children", NvValue::NvListArray(vec![top])),
        ])
    }

    /// What the labels of device `i` say.
    fn label(&self, ashift: u64, i: usize) -> NvList {
        let tops = self.config(ashift).lists("children").unwrap().to_vec();
        list(vec![
            ("name", NvValue::String("layout".into())),
            ("state", NvValue::Uint64(0)),
            ("txg", NvValue::Uint64(0)),
            ("pool_guid", NvValue::Uint64(POOL_GUID)),
            ("top_guid", NvValue::Uint64(2)),
            ("guid", NvValue::Uint64(100 + i as u64)),
            ("create_txg", NvValue::Uint64(4)),
            ("vdev_tree", NvValue::NvList(tops[0].clone())),
        ])
    }
}

fn list(pairs: Vec<(&str, NvValue)>) -> NvList {
    NvList { pairs: pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect() }
}

struct Empty;

impl LoadMetaslab for Empty {
    fn load(&self, _: u64, _: u64, extent: Extent) -> Result<Loaded, String> {
        let free = Loading::new(extent, true).map_err(|e| e.to_string())?;
        Ok(Loaded { free, txg: 0 })
    }
}

struct Rig {
    disks: Vec<Arc<FaultyDevice>>,
    store: Arc<Store>,
    writer: Writer,
}

impl Rig {
    fn new(layout: &Layout, ashift: u64) -> Rig {
        let bytes = (LABEL_START + SIZE + (512 << 10)) as usize;
        let disk = |i: usize| {
            let memory = MemDevice::new("memory", vec![0; bytes]);
            init_labels(&*memory, &layout.label(ashift, i)).unwrap();
            FaultyDevice::new(memory)
        };
        let disks: Vec<_> = (0..layout.disks).map(disk).collect();
        let mut open =
            |guid: u64, _: &NvList| Some(disks[guid as usize - 100].clone() as Arc<dyn Device>);
        let tree = VdevTree::build(&layout.config(ashift), &mut open).unwrap();
        let store = Store::new(tree.clone(), 16 << 20);
        let info = VdevInfo {
            id: 0,
            ashift: ashift as u32,
            width: layout.disks as u64 - layout.parity,
            ms_shift: MS_SHIFT,
            line: 1,
            metaslabs: vec![MetaslabInfo::default(); (layout.asize() >> MS_SHIFT) as usize],
            embedded_log: None,
            growing: None,
        };
        let options = Options { background: false, ..Options::default() };
        let vdevs = [(Class::Normal, info)];
        let allocator = Allocator::new(&vdevs, tree.clone(), Arc::new(Empty), options).unwrap();
        let writer = Writer::new(store.clone(), allocator, tree);
        Rig { disks, store, writer }
    }

    /// Blocks of many sizes, compressed and not, in one and two copies.
    fn write(&self) -> Vec<(BlockPointer, Vec<u8>)> {
        let mut seed = 1u64;
        let request = |i: usize| {
            let sectors = [1, 2, 3, 7, 8, 16, 31, 64, 256, 700][i % 10];
            let mut data = vec![0; sectors * 512];
            for word in data.chunks_mut(8).step_by(1 + i % 3) {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                word.copy_from_slice(&(seed >> 11).to_le_bytes());
            }
            let props = WriteProps {
                object_type: DmuType::PLAIN_FILE_CONTENTS,
                checksum: Checksum::Fletcher4,
                compression: if i.is_multiple_of(2) { Compression::Off } else { Compression::Lz4 },
                copies: 1 + i % 2,
                ..WriteProps::default()
            };
            let (at, previous) = (place(i), BlockPointer::HOLE);
            WriteRequest { data: Abd::from_vec(data).into(), at, props, previous, pass: 1 }
        };
        let requests: Vec<WriteRequest> = (0..60).map(request).collect();
        let written = self.writer.write_many(TXG, &requests);
        let pairs = written.into_iter().zip(&requests);
        pairs.map(|(bp, r)| (bp.unwrap(), r.data.unpacked().unwrap().to_vec())).collect()
    }

    fn check(&self, blocks: &[(BlockPointer, Vec<u8>)], what: &str) {
        self.store.drop_caches();
        for (i, (bp, data)) in blocks.iter().enumerate() {
            let block = self.store.read(bp, place(i)).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(*block.data.bytes() == **data, "{what}: block {i} is not what was written");
        }
    }
}

fn place(i: usize) -> Bookmark {
    Bookmark { objset: 1, object: 2, level: 0, blkid: i as u64 }
}

#[test]
fn every_layout_reads_back_within_its_redundancy() {
    for layout in &LAYOUTS {
        for ashift in [9, 12] {
            let rig = Rig::new(layout, ashift);
            let name =
                format!("{}{} of {}, ashift {ashift}", layout.kind, layout.parity, layout.disks);
            let blocks = rig.write();
            rig.check(&blocks, &name);
            for first in 0..layout.disks {
                let lost = |i| (first + i * 2) % layout.disks;
                let lost: Vec<usize> = (0..layout.tolerance()).map(lost).collect();
                lost.iter().for_each(|i| rig.disks[*i].fail(0..u64::MAX));
                rig.check(&blocks, &format!("{name}, {lost:?} unreadable"));
                lost.iter().for_each(|i| rig.disks[*i].repair());
                lost.iter().for_each(|i| rig.disks[*i].corrupt(LABEL_START..u64::MAX, 0x5a));
                rig.check(&blocks, &format!("{name}, {lost:?} wrong"));
                lost.iter().for_each(|i| rig.disks[*i].repair());
            }
        }
    }
}
