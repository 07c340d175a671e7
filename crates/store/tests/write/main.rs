//! Blocks that the write pipeline wrote, read back through the read pipeline.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod encrypted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::checksum::Checksum;
use cenote_format::compress::{Compression, LEVEL_DEFAULT, compress};
use cenote_format::dmu::DmuType;
use cenote_store::alloc::{
    AllocError, AllocatedSize, Allocator, Class, Extent, LoadMetaslab, Loaded, Loading,
    MetaslabInfo, Options, Request, TXG_DEFER_SIZE, VdevInfo,
};
use cenote_store::rangetree::RangeTree;
use cenote_store::write::{
    BlockDevices, Packed, Payload, WriteError, WriteProps, WriteRequest, Writer,
};
use cenote_vdev::{BlockWrite, VdevError};
use common::{BIRTH, Pool, SIZE, at, pattern};
use proptest::prelude::*;

const DATA: DmuType = DmuType(19);

struct Empty;

impl LoadMetaslab for Empty {
    fn load(&self, _: u64, _: u64, extent: Extent) -> Result<Loaded, String> {
        let free = Loading::new(extent, true).map_err(|e| e.to_string())?;
        Ok(Loaded { free, txg: 0 })
    }
}

/// The devices of a pool; counts writes, and fails them on demand.
struct Disks {
    pool: Arc<Pool>,
    writes: AtomicU64,
    batches: AtomicU64,
    broken: AtomicBool,
}

impl AllocatedSize for Disks {
    fn psize_to_asize(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64> {
        self.pool.store.vdevs().psize_to_asize(vdev, psize, txg)
    }
}

impl AllocatedSize for Pool {
    fn psize_to_asize(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64> {
        self.store.vdevs().psize_to_asize(vdev, psize, txg)
    }
}

impl BlockDevices for Disks {
    fn write_many(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        let write = |w: &BlockWrite| {
            if self.broken.load(Ordering::Relaxed) {
                return Err(VdevError::Unsupported("writing".into()));
            }
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.pool.write(w.vdev as usize, w.offset, &w.data.bytes());
            Ok(())
        };
        writes.iter().map(write).collect()
    }
}

struct Rig {
    pool: Arc<Pool>,
    disks: Arc<Disks>,
    writer: Writer,
}

impl Rig {
    fn new(ashifts: &[u64], arc_bytes: u64) -> Rig {
        Rig::of_classes(ashifts, |_| Class::Normal, arc_bytes)
    }

    fn of_classes(ashifts: &[u64], class: impl Fn(u64) -> Class, arc_bytes: u64) -> Rig {
        let pool = Arc::new(Pool::new(ashifts, arc_bytes));
        let (writes, batches, broken) = Default::default();
        let disks = Arc::new(Disks { pool: pool.clone(), writes, batches, broken });
        let info = |(id, ashift): (u64, &u64)| {
            let metaslabs = vec![MetaslabInfo::default(); (SIZE >> 18) as usize];
            let (ashift, embedded_log) = (*ashift as u32, None);
            (
                class(id),
                VdevInfo {
                    id,
                    ashift,
                    width: 1,
                    ms_shift: 18,
                    line: 1,
                    metaslabs,
                    embedded_log,
                    growing: None,
                },
            )
        };
        let vdevs: Vec<_> = (0u64..).zip(ashifts).map(info).collect();
        let options = Options { background: false, ..Options::default() };
        let allocator = Allocator::new(&vdevs, pool.clone(), Arc::new(Empty), options).unwrap();
        let writer = Writer::new(pool.store.clone(), allocator, disks.clone());
        Rig { pool, disks, writer }
    }

    fn write(&self, txg: u64, request: WriteRequest) -> Result<BlockPointer, WriteError> {
        self.writer.write_many(txg, &[request]).pop().unwrap()
    }

    /// Reads from the ARC, and then from the devices.
    fn read(&self, bp: &BlockPointer) -> Vec<u8> {
        let cached = self.pool.read(bp).unwrap();
        self.pool.store.drop_caches();
        assert_eq!(self.pool.read(bp).unwrap(), cached);
        cached
    }

    fn used(&self) -> u64 {
        self.writer.allocator().figures(Class::Normal).allocated
    }

    fn sync(&self, txg: u64) {
        self.writer.allocator().take_changes(txg);
        self.writer.allocator().sync_done(txg);
    }
}

fn props() -> WriteProps {
    WriteProps { object_type: DATA, ..WriteProps::default() }
}

fn request(data: Vec<u8>, props: WriteProps) -> WriteRequest {
    let (data, previous) = (Abd::from_vec(data).into(), BlockPointer::HOLE);
    WriteRequest { data, at: at(0), props, previous, pass: 1 }
}

#[test]
fn every_compression_checksum_and_number_of_copies() {
    let compressions = [
        Compression::Off,
        Compression::Lzjb,
        Compression::Gzip6,
        Compression::Zle,
        Compression::Lz4,
        Compression::Zstd,
    ];
    let checksums = [
        Checksum::Off,
        Checksum::Fletcher2,
        Checksum::Fletcher4,
        Checksum::Sha256,
        Checksum::Sha512,
        Checksum::Skein,
        Checksum::Edonr,
        Checksum::Blake3,
    ];
    let rig = Rig::new(&[9, 9, 9], 4 << 20);
    let mut batch = Vec::new();
    for (i, compression) in compressions.into_iter().enumerate() {
        for (j, checksum) in checksums.into_iter().enumerate() {
            let mut data = pattern((i * 8 + j) as u64, 3000);
            data.resize(8192, 0);
            let copies = 1 + (i + j) % 3;
            batch.push(request(data, WriteProps { compression, checksum, copies, ..props() }));
        }
    }
    let before = rig.pool.reads();
    let pointers = rig.writer.write_many(5, &batch);
    for (request, bp) in batch.iter().zip(&pointers) {
        let bp = bp.as_ref().unwrap();
        let packed = request.props.compression != Compression::Off;
        assert_eq!(bp.psize() < bp.lsize(), packed, "{:?}", request.props.compression);
        assert_eq!(bp.dvas().count(), request.props.copies);
        assert_eq!((bp.logical_birth(), bp.fill(), bp.object_type()), (5, 1, 19));
        assert_eq!(rig.pool.read(bp).unwrap(), request.data.unpacked().unwrap().to_vec());
    }
    assert_eq!(rig.pool.reads(), before, "written blocks are in the ARC");
    rig.pool.store.drop_caches();
    for (request, bp) in batch.iter().zip(&pointers) {
        assert_eq!(
            rig.pool.read(bp.as_ref().unwrap()).unwrap(),
            request.data.unpacked().unwrap().to_vec()
        );
        let copies = rig.pool.store.verify_all_copies(bp.as_ref().unwrap(), at(0));
        assert!(copies.len() == request.props.copies && copies.iter().all(Result::is_ok));
    }
}

#[test]
fn what_came_compressed_is_written_as_it_came() {
    let rig = Rig::new(&[12], 4 << 20);
    // The dataset says otherwise.
    let gzip = WriteProps { compression: Compression::Gzip6, embed: true, ..props() };
    for (compression, bytes, lsize) in [
        (Compression::Lz4, 3000, 32 << 10),
        (Compression::Zstd, 5000, 32 << 10),
        (Compression::Zle, 5000, 8192),
        (Compression::Lz4, 3000, 3584),
    ] {
        let mut plain = pattern(7, bytes);
        plain.resize(lsize, 0);
        let data = Abd::from_vec(compress(compression, LEVEL_DEFAULT, &plain, lsize).unwrap());
        let psize = (data.len() as u64).next_multiple_of(4096).min(lsize as u64);
        let packed = Packed { data, compression, lsize, seal: None };
        let request =
            WriteRequest { data: Payload::Packed(packed), ..request(Vec::new(), gzip.clone()) };
        let bp = rig.write(5, request).unwrap();
        assert_eq!(
            (bp.compression(), bp.psize(), bp.lsize()),
            (compression as u8, psize, lsize as u64)
        );
        assert_eq!(rig.read(&bp), plain);
    }
    // What fits into a pointer lies there.
    let plain = vec![7; 4096];
    let data = Abd::from_vec(compress(Compression::Lz4, LEVEL_DEFAULT, &plain, 4096).unwrap());
    let packed = Packed { data, compression: Compression::Lz4, lsize: 4096, seal: None };
    let request = |props| WriteRequest {
        data: Payload::Packed(packed.clone()),
        ..request(Vec::new(), props)
    };
    let bp = rig.write(5, request(gzip.clone())).unwrap();
    assert!(bp.is_embedded() && bp.compression() == Compression::Lz4 as u8);
    assert_eq!(rig.pool.read(&bp).unwrap(), plain);
    let bp = rig.write(5, request(WriteProps { embed: false, ..gzip })).unwrap();
    assert_eq!((bp.is_embedded(), bp.psize()), (false, 4096));
    assert_eq!(rig.read(&bp), plain);
}

#[test]
fn zeros_become_holes_if_the_block_may_be_compressed() {
    let rig = Rig::new(&[9], 1 << 20);
    let on = WriteProps { compression: Compression::Lz4, ..props() };
    let fresh = rig.write(5, request(vec![0; 4096], on.clone())).unwrap();
    assert_eq!(fresh, BlockPointer::HOLE);
    let off = rig.write(5, request(vec![0; 4096], props())).unwrap();
    assert_eq!(off.psize(), 4096);
    let over = WriteRequest { previous: off, ..request(vec![0; 4096], on.clone()) };
    let hole = rig.write(6, over.clone()).unwrap();
    assert!(hole.is_hole());
    assert_eq!((hole.logical_birth(), hole.lsize(), hole.object_type()), (6, 4096, 19));
    let no_birth = WriteProps { hole_birth: false, ..on };
    let hole = rig.write(6, WriteRequest { props: no_birth, ..over }).unwrap();
    assert_eq!(hole, BlockPointer::HOLE);
    assert_eq!(rig.used(), 4096);
}

#[test]
fn tiny_results_are_embedded() {
    let rig = Rig::new(&[12], 1 << 20);
    let mut data = vec![0; 16 << 10];
    data[77] = 7;
    let tiny = WriteProps { compression: Compression::Lz4, embed: true, ..props() };
    let bp = rig.write(5, request(data.clone(), tiny.clone())).unwrap();
    assert!(bp.is_embedded());
    assert_eq!(rig.read(&bp), data);
    assert_eq!((rig.used(), rig.disks.writes.load(Ordering::Relaxed)), (0, 0));
    rig.writer.free(5, &bp, at(0)).unwrap();
    for props in [
        WriteProps { embed: false, ..tiny.clone() },
        WriteProps { object_type: DmuType::DNODE, ..tiny.clone() },
        WriteProps { level: 1, ..tiny },
    ] {
        let bp = rig.write(5, request(data.clone(), props)).unwrap();
        assert!(!bp.is_embedded() && bp.psize() == 4096);
        assert_eq!(rig.read(&bp), data);
    }
}

#[test]
fn what_does_not_save_an_eighth_is_not_compressed() {
    let rig = Rig::new(&[12], 1 << 20);
    let lz4 = WriteProps { compression: Compression::Lz4, ..props() };
    let mut state = 1u64;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let mut data: Vec<u8> = (0..32 << 10).map(|_| noise()).collect();
    data[30 << 10..].fill(0);
    let bp = rig.write(5, request(data.clone(), lz4.clone())).unwrap();
    assert_eq!((bp.psize(), bp.compression()), (32 << 10, Compression::Off as u8));
    data[24 << 10..].fill(0);
    let bp = rig.write(5, request(data.clone(), lz4)).unwrap();
    assert_eq!((bp.psize(), bp.compression()), (28 << 10, Compression::Lz4 as u8));
    assert_eq!(rig.read(&bp), data);
}

#[test]
fn the_same_block_again_is_not_written() {
    let rig = Rig::new(&[9], 1 << 20);
    let strong = WriteProps {
        compression: Compression::Lz4,
        checksum: Checksum::Sha256,
        nopwrite: true,
        ..props()
    };
    let data = pattern(1, 4096);
    let bp = rig.write(5, request(data.clone(), strong.clone())).unwrap();
    let writes = rig.disks.writes.load(Ordering::Relaxed);
    let again = |props: &WriteProps| {
        let again = WriteRequest { previous: bp, ..request(data.clone(), props.clone()) };
        rig.write(6, again).unwrap()
    };
    assert_eq!(again(&strong), bp);
    assert_eq!(rig.disks.writes.load(Ordering::Relaxed), writes);
    for props in [
        WriteProps { nopwrite: false, ..strong.clone() },
        WriteProps { checksum: Checksum::Fletcher4, ..strong.clone() },
        WriteProps { copies: 2, ..strong.clone() },
        WriteProps { compression: Compression::Off, ..strong.clone() },
        WriteProps { compression: Compression::Lzjb, ..strong },
    ] {
        assert_ne!(again(&props), bp);
    }
}

#[test]
fn late_passes_write_in_place_and_do_not_compress() {
    let rig = Rig::new(&[9], 1 << 20);
    let lz4 = WriteProps { compression: Compression::Lz4, ..props() };
    let data = |seed| {
        let mut data = pattern(seed, 2000);
        data.resize(16 << 10, 0);
        data
    };
    let next = |seed, previous, pass| {
        let r = request(data(seed), lz4.clone());
        let bp = rig.write(5, WriteRequest { previous, pass, ..r }).unwrap();
        assert_eq!(rig.read(&bp), data(seed));
        bp
    };
    let first = next(1, BlockPointer::HOLE, 1);
    let moved = next(2, first, 1);
    assert_ne!(first.dva(0), moved.dva(0));
    let in_place = next(3, moved, 2);
    assert_eq!(moved.dva(0), in_place.dva(0));
    let plain = next(4, in_place, 8);
    assert_eq!(plain.psize(), 16 << 10);
    let last = next(5, plain, 9);
    assert_eq!(plain.dva(0), last.dva(0));
    // What another txg wrote is never written over.
    let r = WriteRequest { previous: last, pass: 9, ..request(data(6), lz4) };
    assert_ne!(rig.write(6, r).unwrap().dva(0), last.dva(0));
}

/// Fills a pool and frees every second piece of `piece` bytes, so that it is in shreds.
fn shred(rig: &Rig, piece: usize, keep: usize) -> u64 {
    let mut blocks = Vec::new();
    while let Ok(bp) = rig.write(1, request(pattern(blocks.len() as u64, piece), props())) {
        blocks.push(bp);
    }
    blocks.sort_by_key(|bp| (bp.dva(0).unwrap().vdev, bp.dva(0).unwrap().offset));
    for bp in blocks.iter().enumerate().filter(|(i, _)| i % keep != 0).map(|(_, bp)| bp) {
        rig.writer.free(1, bp, at(0)).unwrap();
    }
    for txg in 1..=1 + TXG_DEFER_SIZE {
        rig.sync(txg);
    }
    2 + TXG_DEFER_SIZE
}

#[test]
fn blocks_without_a_segment_are_divided() {
    for (ashift, piece, size, copies) in [
        (9, 4096, 8192, 1),
        (9, 4096, 128 << 10, 1),
        (12, 8192, 64 << 10, 1),
        (9, 2048, 24 << 10, 2),
    ] {
        let rig = Rig::new(&[ashift], 4 << 20);
        let txg = shred(&rig, piece, 2);
        let used = rig.used();
        let three = WriteProps { copies, gang_copies: 3, ..props() };
        let data = pattern(9, size);
        let bp = rig.write(txg, request(data.clone(), three.clone())).unwrap();
        assert!(bp.is_gang() && bp.dvas().count() == 3);
        // Each copy counts its parts, too; there are more copies of headers than of data.
        let own = bp.dvas().map(|dva| dva.asize).collect::<Vec<_>>();
        let least = |i| if i < copies { size as u64 } else { 0 };
        assert!(own.iter().enumerate().all(|(i, asize)| *asize > least(i)), "{own:?}");
        assert!(own[2] >= 1 << ashift && own[2] < own[0], "{own:?}");
        assert_eq!(rig.read(&bp), data);
        let copies = rig.pool.store.verify_all_copies(&bp, at(0));
        assert!(copies.iter().all(Result::is_ok), "{copies:?}");
        assert!(rig.used() > used + size as u64);

        // In place, with new contents.
        let other = pattern(10, size);
        let again = WriteRequest { previous: bp, pass: 2, ..request(other.clone(), three) };
        let new = rig.write(txg, again).unwrap();
        assert_eq!(new.dvas().collect::<Vec<_>>(), bp.dvas().collect::<Vec<_>>());
        assert_eq!(rig.read(&new), other);

        rig.writer.free(txg, &new, at(0)).unwrap();
        (txg..=txg + TXG_DEFER_SIZE).for_each(|txg| rig.sync(txg));
        assert_eq!(rig.used(), used, "all of it is freed");
    }
}

#[test]
fn a_block_that_fails_gives_everything_back() {
    let rig = Rig::new(&[9], 1 << 20);
    let txg = shred(&rig, 4096, 8);
    let free = SIZE - rig.used();
    // Some parts fit, but not all of them.
    let mut parts = Vec::new();
    while SIZE - rig.used() > free / 8 {
        parts.push(rig.write(txg, request(pattern(1, 16 << 10), props())).unwrap());
    }
    let used = rig.used();
    for size in [1 << 20, 512 << 10] {
        let error = rig.write(txg, request(pattern(1, size), props())).unwrap_err();
        assert!(matches!(error, WriteError::Alloc(AllocError::NoSpace)), "{error}");
        assert_eq!(rig.used(), used);
    }
    rig.disks.broken.store(true, Ordering::Relaxed);
    let error = rig.write(txg, request(pattern(1, 512), props())).unwrap_err();
    assert!(matches!(error, WriteError::Vdev(_)));
    for txg in txg..=txg + TXG_DEFER_SIZE {
        rig.sync(txg);
    }
    assert_eq!(rig.used(), used);
}

#[test]
fn requests_that_cannot_be() {
    let rig = Rig::new(&[9], 1 << 20);
    let odd = request(vec![1; 700], props());
    let none = request(vec![], props());
    let large = request(vec![1; (16 << 20) + 512], props());
    let copies = request(vec![1; 512], WriteProps { copies: 4, ..props() });
    let on = request(vec![1; 512], WriteProps { checksum: Checksum::On, ..props() });
    let kind = request(vec![1; 512], WriteProps { object_type: DmuType(100), ..props() });
    let level = request(vec![1; 512], WriteProps { level: 40, ..props() });
    let good = request(vec![1; 512], props());
    let batch = [odd, none, large, copies, on, kind, level, good];
    let results = rig.writer.write_many(3, &batch);
    let (last, bad) = results.split_last().unwrap();
    assert!(last.is_ok() && bad.iter().all(Result::is_err));
    assert_eq!(rig.used(), 512);
    let elsewhere = Dva { vdev: 7, offset: 0, asize: 512, gang: false };
    let mut bp = *last.as_ref().unwrap();
    bp.0[0] = u64::from(elsewhere.vdev) << 32 | 1;
    assert!(rig.writer.free(3, &bp, at(0)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    /// Random batches, overwritten and freed over many txgs: everything that lives reads back, and
    /// no two blocks overlap.
    #[test]
    fn a_life_of_writing(
        seed in any::<u64>(),
        steps in prop::collection::vec((0..24u64, 1..40usize, 0..5u8, 0..4u8, 1..3usize), 1..120),
    ) {
        let rig = Rig::new(&[9, 12], 1 << 20);
        let mut blocks: BTreeMap<u64, (BlockPointer, Vec<u8>)> = BTreeMap::new();
        let (mut txg, mut n) = (4, 0);
        for (slot, sectors, shape, how, copies) in steps {
            n += 1;
            let mut data = pattern(seed.wrapping_add(n) % 1000, sectors * 1024);
            match shape {
                0 => data.fill(0),
                1 => data[sectors * 300..].fill(0),
                2 => data[20..].fill(0),
                _ => {}
            }
            let (compression, checksum) = match how {
                0 => (Compression::Off, Checksum::Fletcher4),
                1 => (Compression::Lz4, Checksum::Fletcher4),
                2 => (Compression::Zstd, Checksum::Sha256),
                _ => (Compression::Lzjb, Checksum::Blake3),
            };
            let nopwrite = how > 1;
            let props = WriteProps { compression, checksum, copies, nopwrite, embed: true, ..props() };
            let old = blocks.get(&slot).map_or(BlockPointer::HOLE, |(bp, _)| *bp);
            let r = WriteRequest { previous: old, pass: 1 + (n % 3) as u32, ..request(data.clone(), props) };
            match rig.write(txg, r) {
                Ok(bp) => {
                    let same_place = bp.dva(0) == old.dva(0);
                    if !same_place {
                        rig.writer.free(txg, &old, at(0)).unwrap();
                    }
                    blocks.insert(slot, (bp, data));
                }
                Err(e) => prop_assert!(matches!(e, WriteError::Alloc(_)), "{}", e),
            }
            if n % 5 == 0 {
                rig.sync(txg);
                txg += 1;
            }
        }
        let mut used = BTreeMap::<u32, RangeTree>::new();
        rig.pool.store.drop_caches();
        for (bp, data) in blocks.values() {
            if !bp.is_hole() || bp.lsize() == data.len() as u64 {
                prop_assert_eq!(&rig.pool.read(bp).unwrap(), data);
            }
            for d in bp.dvas().filter(|d| !d.gang) {
                used.entry(d.vdev).or_default().add(d.offset, d.offset + d.asize).unwrap();
            }
        }
        for (bp, _) in blocks.values() {
            rig.writer.free(txg, bp, at(0)).unwrap();
        }
        (txg..=txg + TXG_DEFER_SIZE).for_each(|txg| rig.sync(txg));
        prop_assert_eq!(rig.used(), 0);
    }
}

/// What counts is the size after compression, and a quarter is left for metadata.
#[test]
fn small_blocks_go_to_the_special_class_while_there_is_room() {
    let class = |id| if id == 0 { Class::Normal } else { Class::Special };
    let rig = Rig::of_classes(&[9, 9], class, 1 << 20);
    let vdev = |data: Vec<u8>, props: WriteProps| {
        let bp = rig.write(BIRTH, request(data, props)).unwrap();
        bp.dva(0).unwrap().vdev
    };
    let noise = |len: u64| (0..len).map(|i| ((i * i * i) >> 3) as u8).collect::<Vec<_>>();
    let small = WriteProps { small: 4096, ..props() };
    assert_eq!(vdev(noise(4096), small.clone()), 1);
    assert_eq!(vdev(noise(4608), small.clone()), 0);
    let packed = WriteProps { compression: Compression::Lz4, ..small.clone() };
    let mut mostly_zeros = vec![0; 65536];
    mostly_zeros[..2048].copy_from_slice(&noise(2048));
    assert_eq!(vdev(mostly_zeros, packed), 1);
    assert_eq!(vdev(noise(4096), props()), 0);
    // Vdevs of this size have 8 metaslabs of 256 KiB.
    let mut there = 0;
    for _ in 0..600 {
        there += u64::from(vdev(noise(4096), small.clone()));
    }
    let special = rig.writer.allocator().figures(Class::Special);
    assert!(there < 600 && special.allocated * 100 / special.space == 75, "{there} {special:?}");
    let metadata = WriteProps { class: Class::Special, ..props() };
    assert_eq!(vdev(noise(4096), metadata), 1);
}

/// A vdev that joins is allocated from, and those that were there go on as they were.
#[test]
fn a_vdev_joins() {
    let rig = Rig::new(&[9, 12], 1 << 20);
    let info = |id, ashift| VdevInfo {
        id,
        ashift,
        width: 1,
        ms_shift: 18,
        line: 1,
        metaslabs: vec![MetaslabInfo::default(); 8],
        embedded_log: None,
        growing: None,
    };
    let options = Options { background: false, ..Options::default() };
    let first = [(Class::Normal, info(0, 9))];
    let allocator = Allocator::new(&first, rig.pool.clone(), Arc::new(Empty), options).unwrap();
    let two = Request {
        psize: 64 << 10,
        copies: 2,
        class: Class::Normal,
        allocator: 0,
        gang: false,
        near: None,
        among: None,
    };
    let (_, before) = allocator.allocate(BIRTH, &two).unwrap();
    assert!(before.iter().all(|dva| dva.vdev == 0));
    assert!(allocator.add_vdev(Class::Special, &info(0, 9)).is_err());
    allocator.add_vdev(Class::Normal, &info(1, 12)).unwrap();
    assert_eq!((allocator.class_of(1), allocator.class_of(2)), (Some(Class::Normal), None));
    assert_eq!(allocator.figures(Class::Normal).space, 16 << 18);
    before.iter().for_each(|dva| allocator.free(BIRTH, dva).unwrap());
    let (_, dvas) = allocator.allocate(BIRTH, &two).unwrap();
    let mut vdevs: Vec<u32> = dvas.iter().map(|dva| dva.vdev).collect();
    vdevs.sort_unstable();
    assert_eq!(vdevs, [0, 1]);
    assert!(allocator.take_changes(BIRTH).iter().any(|changes| changes.vdev == 1));
}

/// A request of several batches: results are in order, each is right, failures stay where they are.
#[test]
fn large_requests_are_written_in_batches() {
    let rig = Rig::new(&[9], 1 << 20);
    let lz4 = WriteProps { compression: Compression::Lz4, ..props() };
    let contents = |i: u64| {
        let mut data = vec![0; 1 << 20];
        data[..700].copy_from_slice(&pattern(i, 700));
        data
    };
    let mut requests: Vec<_> = (0..45).map(|i| request(contents(i), lz4.clone())).collect();
    requests[20].data = Abd::from_vec(vec![1; 77]).into();
    let written = rig.writer.write_many(BIRTH, &requests);
    assert_eq!(written.len(), 45);
    for (i, bp) in written.into_iter().enumerate() {
        match bp {
            Ok(bp) => assert_eq!(rig.read(&bp), contents(i as u64), "{i}"),
            Err(_) => assert_eq!(i, 20),
        }
    }
    assert!(rig.writer.write_many(BIRTH, &[]).is_empty());
}

/// A block of metadata that is compressed and one of data that is not, with two copies.
fn of_both_kinds(seed: u64) -> [WriteRequest; 2] {
    let mut packed = pattern(seed, 3000);
    packed.resize(16 << 10, 0);
    let metadata =
        WriteProps { object_type: DmuType::DNODE, compression: Compression::Lz4, ..props() };
    let data = WriteProps { copies: 2, ..props() };
    [request(packed, metadata), request(pattern(seed + 1, 8192), data)]
}

#[test]
fn what_is_collected_goes_out_in_one_wave() {
    let rig = Rig::new(&[9, 9], 4 << 20);
    let (mut pointers, mut contents) = (Vec::new(), Vec::new());
    for n in 0..20 {
        let requests = of_both_kinds(n);
        contents.extend(requests.iter().map(|r| r.data.unpacked().unwrap().to_vec()));
        let written = rig.writer.write_behind(5, &requests);
        pointers.extend(written.into_iter().map(Result::unwrap));
    }
    let count =
        || (rig.disks.batches.load(Ordering::Relaxed), rig.disks.writes.load(Ordering::Relaxed));
    assert_eq!(count(), (0, 0));
    let reads = rig.pool.reads();
    let check = || {
        for (bp, contents) in pointers.iter().zip(&contents) {
            assert_eq!(&rig.pool.read(bp).unwrap(), contents);
        }
    };
    check();
    // No cache has them.
    rig.pool.store.drop_caches();
    check();
    assert_eq!((count(), rig.pool.reads()), ((0, 0), reads));
    rig.writer.drain().unwrap();
    assert_eq!(count(), (1, 60));
    check();
    assert_eq!(rig.pool.reads(), reads, "written blocks are in the ARC");
    rig.pool.store.drop_caches();
    check();
    assert!(rig.pool.reads() > reads);
    rig.writer.drain().unwrap();
    assert_eq!(count(), (1, 60));
}

#[test]
fn of_a_place_that_is_written_again_the_last_contents_stay() {
    let rig = Rig::new(&[9, 9], 4 << 20);
    let [first, _] = of_both_kinds(1);
    let mut bp = rig.writer.write_behind(5, std::slice::from_ref(&first)).pop().unwrap().unwrap();
    let place: Vec<Dva> = bp.dvas().collect();
    for (n, drains) in [(2, false), (3, true), (4, false), (5, false)] {
        if drains {
            rig.writer.drain().unwrap();
        }
        let [again, _] = of_both_kinds(n);
        let again = WriteRequest { previous: bp, pass: 3, ..again };
        let again = WriteRequest {
            props: WriteProps { compression: Compression::Off, ..again.props },
            ..again
        };
        let contents = again.data.unpacked().unwrap().to_vec();
        bp = rig.writer.write_behind(5, &[again]).pop().unwrap().unwrap();
        assert_eq!(rig.pool.read(&bp).unwrap(), contents);
        if n > 2 {
            assert_ne!(bp.dvas().collect::<Vec<_>>(), place);
        }
    }
    let contents = of_both_kinds(5)[0].data.unpacked().unwrap().to_vec();
    rig.writer.drain().unwrap();
    assert_eq!(rig.read(&bp), contents);
    // The first one; that of another size, the last time before it was drained and the last time after.
    assert_eq!(rig.disks.writes.load(Ordering::Relaxed), 3);
}

#[test]
fn a_batch_that_is_large_enough_does_not_wait() {
    let rig = Rig::new(&[9], 16 << 20);
    let large = |n| request(pattern(n, 128 << 10), props());
    for n in 0..7 {
        rig.writer.write_behind(5, &[large(n)]).pop().unwrap().unwrap();
    }
    assert_eq!(rig.disks.writes.load(Ordering::Relaxed), 0);
    rig.writer.write_behind(5, &[large(7)]).pop().unwrap().unwrap();
    assert_eq!(rig.disks.writes.load(Ordering::Relaxed), 8);
    rig.writer.drain().unwrap();
}

#[test]
fn what_cannot_be_written_behind_is_told() {
    let rig = Rig::new(&[9], 4 << 20);
    rig.disks.broken.store(true, Ordering::Relaxed);
    let bp = rig.writer.write_behind(5, &of_both_kinds(1)[..1]).pop().unwrap().unwrap();
    assert!(rig.pool.read(&bp).is_ok());
    assert!(rig.writer.drain().is_err());
    rig.disks.broken.store(false, Ordering::Relaxed);
    // No cache has what is not on the devices, and the group is lost for good.
    assert!(rig.pool.read(&bp).is_err() && rig.writer.drain().is_err());
}
