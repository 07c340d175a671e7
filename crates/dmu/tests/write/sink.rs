//! A pool of one device in memory: a sink that never uses space twice, and a store that reads it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use cenote_dmu::write::{BlockSink, NewBlock, Result, Synced, WriteError};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::compress::Compression;
use cenote_format::encode::blkptr::BlockProps;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::{ByteOrder, LABEL_START};
use cenote_store::Store;
use cenote_vdev::inject::MemDevice;
use cenote_vdev::{Device, VdevTree};

pub struct MemSink {
    pub store: Arc<Store>,
    memory: Arc<MemDevice>,
    next: Mutex<u64>,
    live: Mutex<HashSet<BlockPointer>>,
    /// Number of batches, and whether the next ones fail.
    pub batches: Mutex<(usize, bool)>,
}

fn list(pairs: &[(&str, NvValue)]) -> NvList {
    NvList { pairs: pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() }
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
        let (live, batches) = Default::default();
        MemSink { store, memory, next: Mutex::new(512), live, batches }
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
        // Metadata has two copies.
        let copies = if block.level > 0 || block.kind.is_metadata() { 2 } else { 1 };
        let dvas: Vec<Dva> = (0..copies).map(|_| self.place(&data)).collect();
        let (order, salt) = (ByteOrder::Little, Salt::new([0; 32]));
        let sum = checksum::compute(Checksum::Fletcher4, &Abd::from_vec(data), order, &salt)?;
        Ok(BlockPointer::new(&BlockProps {
            kind: block.kind,
            level: block.level,
            checksum: Checksum::Fletcher4,
            compression: Compression::Off,
            lsize,
            psize: lsize,
            dedup: false,
            dvas: &dvas,
            logical_birth: txg,
            physical_birth: txg,
            fill: block.fill,
            sum,
        })?)
    }

    /// Loses all that was written.
    pub fn forget(&self) {
        self.memory.bytes()[LABEL_START as usize..].fill(0);
    }

    /// Follows what a sync did; returns the blocks that should be there now.
    pub fn follow(&self, synced: &Synced) -> HashSet<BlockPointer> {
        let mut live = self.live.lock().unwrap();
        for bp in &synced.killed {
            assert!(live.remove(bp), "{bp:?} was not there");
        }
        for bp in &synced.born {
            assert!(live.insert(*bp), "{bp:?} was there");
        }
        live.clone()
    }
}

impl BlockSink for MemSink {
    fn write_blocks(&self, txg: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>> {
        let mut batches = self.batches.lock().unwrap();
        batches.0 += 1;
        if batches.1 {
            return blocks.iter().map(|_| Err(WriteError::Sink("no space".into()))).collect();
        }
        assert!(blocks.windows(2).all(|w| w[0].level == w[1].level));
        blocks.iter().map(|block| self.write(txg, block)).collect()
    }
}
