//! A pool of one device in memory, for tests of what writes object sets: a sink that never uses space
//! twice, and a store that reads what it took.
//!
//! It places blocks one after the other, and metadata twice. Blocks of other kinds than file
//! contents are compressed, since lists are mostly empty space: so the device can be small.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::write::{BlockSink, NewBlock, OpenObjectSet, Result, Synced, WriteError};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::{self, Checksum, Salt};
use cenote_format::compress::{Compression, compress};
use cenote_format::dmu::DmuType;
use cenote_format::encode::blkptr::BlockProps;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_format::{ByteOrder, LABEL_START, SECTOR};
use cenote_store::Store;
use cenote_vdev::inject::{FaultyDevice, MemDevice};
use cenote_vdev::{Device, VdevTree};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// First byte of file contents that become an embedded block, where that is wanted.
pub const EMBEDDED: u8 = 0xee;
/// Bytes of such a block that are kept.
const PAYLOAD: usize = 100;
/// Bytes of the store's cache.
const CACHE: u64 = 8 << 20;

/// The sink, with the store over the same device.
pub struct MemSink {
    /// Reads what was written.
    pub store: Arc<Store>,
    memory: Arc<MemDevice>,
    /// The device that the store reads.
    pub faults: Arc<FaultyDevice>,
    /// Offset of the first byte that was never used.
    next: Mutex<u64>,
    /// What is referred to, and how often, as far as it was [followed](MemSink::follow).
    live: Mutex<HashMap<BlockPointer, u64>>,
    embeds: bool,
    batches: AtomicUsize,
    fails: AtomicBool,
}

fn list(pairs: &[(&str, NvValue)]) -> NvList {
    NvList { pairs: pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect() }
}

/// A store that reads a device in memory, and what makes faults below it.
fn store_over(memory: &Arc<MemDevice>) -> (Arc<Store>, Arc<FaultyDevice>) {
    let size = memory.size() - LABEL_START;
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
    let faults = FaultyDevice::new(memory.clone());
    let device = faults.clone();
    let mut open = |_: u64, _: &NvList| Some(device.clone() as Arc<dyn Device>);
    (Store::new(VdevTree::build(&root, &mut open).unwrap(), CACHE), faults)
}

impl MemSink {
    /// An empty device of `size` bytes.
    pub fn new(size: u64) -> MemSink {
        let memory = MemDevice::new("memory", vec![0; (LABEL_START + size) as usize]);
        let (store, faults) = store_over(&memory);
        MemSink {
            store,
            memory,
            faults,
            next: Mutex::new(SECTOR),
            live: Mutex::default(),
            embeds: false,
            batches: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
        }
    }

    /// Another store over the same device, with nothing in its cache and faults of its own.
    pub fn another_store(&self) -> (Arc<Store>, Arc<FaultyDevice>) {
        store_over(&self.memory)
    }

    /// Writes an object set that was only made, and opens what was written.
    pub fn write_new(&self, set: OpenObjectSet, txg: u64) -> (Synced, OpenObjectSet) {
        let mut syncing = set.into_syncing();
        let synced = syncing.sync(txg, self).unwrap();
        (synced, OpenObjectSet::open(syncing.finish().base().clone()).unwrap())
    }

    /// Makes embedded blocks of file contents that start with [`EMBEDDED`]; what comes after the first
    /// bytes of them is lost.
    pub fn embedding(self) -> MemSink {
        MemSink { embeds: true, ..self }
    }

    fn place(&self, data: &[u8]) -> Dva {
        let mut next = self.next.lock();
        let offset = *next;
        *next += data.len() as u64;
        let at = (LABEL_START + offset) as usize;
        self.memory.bytes().get_mut(at..at + data.len()).expect("space").copy_from_slice(data);
        Dva { vdev: 0, offset, asize: data.len() as u64, gang: false }
    }

    fn write(&self, txg: u64, block: &NewBlock) -> Result<BlockPointer> {
        let data = block.data.unpacked()?.to_vec();
        let lsize = data.len() as u64;
        if data.iter().all(|b| *b == 0) {
            return match block.previous.logical_birth() {
                0 => Ok(BlockPointer::HOLE),
                _ => Ok(BlockPointer::hole(block.kind, block.level, lsize, txg)?),
            };
        }
        let contents = block.kind == DmuType::PLAIN_FILE_CONTENTS;
        if self.embeds && contents && block.level == 0 && data.first() == Some(&EMBEDDED) {
            let payload = data.get(..PAYLOAD).unwrap_or(&data);
            return Ok(BlockPointer::embedded(block.kind, Compression::Lz4, lsize, payload, txg)?);
        }
        let (compression, data) = match contents {
            true => (Compression::Off, data),
            false => squeezed(data),
        };
        let copies = if block.level > 0 || block.kind.is_metadata() { 2 } else { 1 };
        let dvas: Vec<Dva> = (0..copies).map(|_| self.place(&data)).collect();
        let psize = data.len() as u64;
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

    /// Loses all that was written.
    pub fn forget(&self) {
        self.memory.bytes().get_mut(LABEL_START as usize..).expect("space").fill(0);
    }

    /// Has all copies of a block be unreadable, until the device is repaired.
    pub fn lose(&self, bp: &BlockPointer) {
        for dva in bp.dvas() {
            let at = LABEL_START + dva.offset;
            self.faults.fail(at..at + dva.asize);
        }
    }

    /// Follows what a sync did: nothing is born twice, nothing is killed that is not there.
    pub fn follow(&self, synced: &Synced) {
        let mut live = self.live.lock();
        for bp in &synced.killed {
            let references = live.get_mut(bp).unwrap_or_else(|| panic!("{bp:?} was not there"));
            *references -= 1;
            if *references == 0 {
                live.remove(bp);
            }
        }
        for bp in &synced.born {
            let references = live.entry(*bp).or_insert(0);
            *references += 1;
            // Clones that one group makes of one block are alike.
            let alike = bp.is_embedded() || synced.cloned.contains(bp);
            assert!(*references == 1 || alike, "{bp:?} was there");
        }
    }

    /// The blocks that should be there, as far as syncs were followed.
    pub fn live(&self) -> HashSet<BlockPointer> {
        self.live.lock().keys().copied().collect()
    }

    /// Batches of blocks that were to be written so far.
    pub fn batches(&self) -> usize {
        self.batches.load(Ordering::Relaxed)
    }

    /// From now on writing fails, or no longer.
    pub fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }
}

/// Compressed, in whole sectors; as it is if that does not help.
fn squeezed(data: Vec<u8>) -> (Compression, Vec<u8>) {
    match compress(Compression::Zle, 0, &data, data.len()) {
        Some(mut less) if less.len().next_multiple_of(SECTOR as usize) < data.len() => {
            less.resize(less.len().next_multiple_of(SECTOR as usize), 0);
            (Compression::Zle, less)
        }
        _ => (Compression::Off, data),
    }
}

impl BlockSink for MemSink {
    fn write_blocks(&self, txg: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return blocks.iter().map(|_| Err(WriteError::Sink("no space".into()))).collect();
        }
        let levels = blocks.iter().zip(blocks.iter().skip(1));
        assert!(levels.into_iter().all(|(a, b)| a.level == b.level), "one level at a time");
        blocks.iter().map(|block| self.write(txg, block)).collect()
    }
}
