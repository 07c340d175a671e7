//! A pool of one device in memory: a sink that never uses space twice, and a store that reads it.

use cenote_dmu::write::{BlockSink, NewBlock, Result};
use cenote_dsl::deadlist::Sizes;
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_format::encode::blkptr::BlockProps;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::{ByteOrder, LABEL_START};
use cenote_store::Store;
use cenote_vdev::inject::MemDevice;
use cenote_vdev::{Device, VdevTree};
use std::sync::{Arc, Mutex};

/// First byte of data that becomes an embedded block.
pub const EMBEDDED: u8 = 0xee;

pub struct MemSink {
    pub store: Arc<Store>,
    memory: Arc<MemDevice>,
    next: Mutex<u64>,
}

fn list(pairs: &[(&str, NvValue)]) -> NvList {
    NvList { pairs: pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() }
}

/// What a block counts for.
pub fn sizes(bp: &BlockPointer) -> Sizes {
    let psize = if bp.is_embedded() { 0 } else { bp.psize() };
    let metadata = bp.level() > 0 || DmuType(bp.object_type()).is_metadata();
    Sizes {
        used: bp.dvas().map(|dva| dva.asize).sum(),
        compressed: psize,
        uncompressed: if metadata { psize } else { bp.lsize() },
    }
}

impl MemSink {
    pub fn new(size: u64) -> MemSink {
        let memory = MemDevice::new("memory", vec![0; (LABEL_START + size) as usize]);
        let top = list(&[
            ("type", NvValue::String("file".into())),
            ("id", NvValue::Uint64(0)),
            ("guid", NvValue::Uint64(100)),
            ("ashift", NvValue::Uint64(9)),
            ("asize", NvValue::Uint64(size)),
        ]);
        let root = list(&[
            ("type", NvValue::String("root".into())),
            ("guid", NvValue::Uint64(1)),
            ("children", NvValue::NvListArray(vec![top])),
        ]);
        let device = memory.clone();
        let mut open = |_: u64, _: &NvList| Some(device.clone() as Arc<dyn Device>);
        let store = Store::new(VdevTree::build(&root, &mut open).unwrap(), 8 << 20);
        MemSink { store, memory, next: Mutex::new(512) }
    }

    fn place(&self, data: &[u8]) -> Dva {
        let mut next = self.next.lock().unwrap();
        let offset = *next;
        *next += data.len() as u64;
        let at = (LABEL_START + offset) as usize;
        self.memory.bytes()[at..at + data.len()].copy_from_slice(data);
        Dva { vdev: 0, offset, asize: data.len() as u64, gang: false }
    }

    fn write(&self, txg: u64, block: &NewBlock) -> Result<BlockPointer> {
        let data = block.data.to_vec();
        let lsize = data.len() as u64;
        if data.iter().all(|b| *b == 0) {
            return match block.previous.logical_birth() {
                0 => Ok(BlockPointer::HOLE),
                _ => Ok(BlockPointer::hole(block.kind, block.level, lsize, txg)?),
            };
        }
        if block.level == 0 && block.kind == DmuType::PLAIN_FILE_CONTENTS && data[0] == EMBEDDED {
            let payload = &data[..100];
            return Ok(BlockPointer::embedded(block.kind, Compression::Lz4, lsize, payload, txg)?);
        }
        // Lists are mostly empty space, which is not kept, so that the device can be small.
        let data = match block.kind {
            DmuType::PLAIN_FILE_CONTENTS => data,
            _ => trimmed(data),
        };
        let psize = data.len() as u64;
        let compression = if psize < lsize { Compression::Zle } else { Compression::Off };
        let copies = if block.level > 0 || block.kind.is_metadata() { 2 } else { 1 };
        let dvas: Vec<Dva> = (0..copies).map(|_| self.place(&data)).collect();
        let (order, salt) = (ByteOrder::Little, Salt::new([0; 32]));
        let sum = checksum::compute(Checksum::Fletcher4, &Abd::from_vec(data), order, &salt)?;
        Ok(BlockPointer::new(&BlockProps {
            kind: block.kind,
            level: block.level,
            checksum: Checksum::Fletcher4,
            compression,
            lsize,
            psize,
            dedup: false,
            dvas: &dvas,
            logical_birth: txg,
            physical_birth: txg,
            fill: block.fill,
            sum,
        })?)
    }
}

/// The data with its zeros run-length encoded (`zle`), or as it is if that does not help.
fn trimmed(data: Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = &data[..];
    while !rest.is_empty() {
        let zeros = rest.iter().take(192).take_while(|b| **b == 0).count();
        if zeros > 0 {
            out.push((63 + zeros) as u8);
            rest = &rest[zeros..];
        } else {
            let len = rest.iter().take(64).take_while(|b| **b != 0).count();
            out.push((len - 1) as u8);
            out.extend(&rest[..len]);
            rest = &rest[len..];
        }
    }
    out.resize(out.len().next_multiple_of(512), 0);
    if out.len() < data.len() { out } else { data }
}

impl BlockSink for MemSink {
    fn write_blocks(&self, txg: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>> {
        blocks.iter().map(|block| self.write(txg, block)).collect()
    }
}
