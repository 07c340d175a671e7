//! Gang blocks, sound and hostile.
#![allow(clippy::unwrap_used)]

mod common;

use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_store::BlockError;
use common::{BIRTH, Bp, LZ4, Pool, at, pattern};

const HOLE: BlockPointer = BlockPointer::HOLE;

fn why(pool: &Pool, bp: &BlockPointer) -> String {
    pool.read(bp).unwrap_err().to_string()
}

/// Writes `data` in pieces of these lengths, one after the other from `offset`.
fn pieces(pool: &Pool, offset: u64, data: &[u8], lengths: &[usize]) -> Vec<BlockPointer> {
    let mut start = 0;
    let piece = |len: &usize| {
        let bp = pool.block(0, offset + start as u64, &data[start..start + len]);
        start += len;
        bp
    };
    lengths.iter().map(piece).collect()
}

#[test]
fn constituents_follow_one_another_and_holes_count_nothing() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pattern(1, 4096);
    let parts = pieces(&pool, 8192, &data, &[1024, 3072]);
    pool.header(&[(0, 512)], 512, &[parts[0], HOLE, parts[1]]);
    let bp = Bp::of(&data).gang(0, 512).make();
    assert_eq!(pool.read(&bp).unwrap(), data);
    assert_eq!(pool.store.gang_children(&bp, at(0)).unwrap(), [parts[0], HOLE, parts[1]]);
    assert!(pool.store.verify_all_copies(&bp, at(0)).iter().all(Result::is_ok));
    let before = pool.reads();
    assert_eq!(pool.read(&bp).unwrap(), data);
    assert_eq!(pool.reads(), before, "cached");
}

#[test]
fn compressed_gang_blocks_within_gang_blocks() {
    let pool = Pool::new(&[12], 1 << 20);
    let mut whole = pattern(2, 300);
    whole.resize(32 << 10, 0);
    let packed = lz4(&whole, 12 << 10);
    let parts = pieces(&pool, 64 << 10, &packed, &[4096, 4096, 4096]);
    // Old headers on a vdev of larger sectors, with old bytes after them.
    for offset in [0, 4096] {
        pool.write(0, offset, &[0xee; 4096]);
    }
    pool.header(&[(0, 4096)], 512, &[parts[1], parts[2]]);
    let inner = Bp::of(&packed[4096..]).gang(0, 4096).make();
    pool.header(&[(0, 0)], 512, &[parts[0], inner]);
    let bp = Bp::of(&packed).compressed(LZ4, 32 << 10).gang(0, 0).make();
    assert_eq!(pool.read(&bp).unwrap(), whole);
    let many = pool.store.read_many(&[(parts[1], at(1)), (bp, at(0))]);
    assert_eq!(many[1].as_ref().unwrap().data.to_vec(), whole);
}

/// An lz4 block of literals and one long match of zeros, padded to `len` bytes.
fn lz4(data: &[u8], len: usize) -> Vec<u8> {
    let packed = lz4::block::compress(data, None, false).unwrap();
    let mut out = (packed.len() as u32).to_be_bytes().to_vec();
    out.extend(packed);
    out.resize(len, 0);
    out
}

#[test]
fn headers_as_large_as_the_smallest_allocation() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let pool = Pool::new(&[12, 12, 9], 1 << 20);
        let data = pattern(3, 31 * 4096);
        let parts = pieces(&pool, 256 << 10, &data, &[4096; 31]);
        pool.header_in(order, &[(0, 4096)], 4096, &parts);
        let bp = Bp::of(&data).gang(0, 4096).make();
        assert_eq!(pool.read(&bp).unwrap(), data);
        assert_eq!(pool.store.gang_children(&bp, at(0)).unwrap(), parts);
        // A copy on a vdev of smaller sectors makes all of them small.
        let small = &data[..2 * 4096];
        pool.header_in(order, &[(1, 8192), (2, 512)], 512, &parts[..2]);
        let bp = Bp::of(small).gang(1, 8192).gang(2, 512).make();
        assert_eq!(pool.read(&bp).unwrap(), small);
    }
}

#[test]
fn every_copy_of_a_header_and_of_a_part_is_tried() {
    let pool = Pool::new(&[9, 12], 1 << 20);
    let data = pattern(4, 2048);
    let good = pool.block(1, 4096, &data);
    let part = Bp::of(&data).at(0, 4096).at(1, 4096).make();
    assert_eq!(good.checksum(), part.checksum());
    pool.header(&[(0, 512), (1, 8192)], 512, &[part]);
    let bp = Bp::of(&data).gang(0, 512).gang(1, 8192).make();
    pool.write(0, 512, &[1; 512]);
    assert_eq!(pool.read(&bp).unwrap(), data);
    assert_eq!(pool.store.gang_children(&bp, at(0)).unwrap(), [part, HOLE, HOLE]);
    let copies = pool.store.verify_all_copies(&bp, at(0));
    assert!(matches!(copies[..], [Err(BlockError::Checksum { .. }), Ok(())]), "{copies:?}");
    assert!(pool.store.errors().is_empty());
}

#[test]
fn damaged_headers() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pattern(5, 1024);
    let part = pool.block(0, 8192, &data);
    let bp = Bp::of(&data).gang(0, 512).make();
    assert!(matches!(pool.read(&bp), Err(BlockError::Checksum { .. })), "never written");
    pool.header(&[(0, 1024)], 512, &[part]);
    let elsewhere = Bp::of(&data).gang(0, 1024).make();
    assert_eq!(pool.read(&elsewhere).unwrap(), data);
    let mut late = elsewhere;
    late.0[10] = BIRTH + 1;
    assert!(matches!(pool.read(&late), Err(BlockError::Checksum { .. })), "of another time");
    pool.disks[0].corrupt((4 << 20) + 1030..(4 << 20) + 1031, 4);
    pool.store.drop_caches();
    assert!(matches!(pool.read(&elsewhere), Err(BlockError::Checksum { .. })));
    assert!(pool.store.gang_children(&elsewhere, at(0)).is_err());
    let beyond = Bp::of(&data).gang(0, 1 << 40).make();
    assert!(matches!(pool.read(&beyond), Err(BlockError::Vdev { .. })));
    let nowhere = Bp::of(&data).gang(9, 512).make();
    assert!(matches!(pool.read(&nowhere), Err(BlockError::Vdev { .. })));
    assert_eq!(pool.store.errors(), [at(0)]);
}

#[test]
fn parts_that_do_not_make_the_whole() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pattern(6, 4096);
    let parts = pieces(&pool, 8192, &data, &[1024, 3072]);
    let bp = |offset| Bp::of(&data).gang(0, offset).make();
    pool.header(&[(0, 0)], 512, &[parts[0], parts[1], parts[0]]);
    assert!(why(&pool, &bp(0)).contains("larger than the whole"));
    pool.header(&[(0, 512)], 512, &[parts[1]]);
    assert!(why(&pool, &bp(512)).contains("smaller than the whole"));
    pool.header(&[(0, 1024)], 512, &[]);
    assert!(why(&pool, &bp(1024)).contains("smaller than the whole"));
    let mut embedded = parts[0];
    embedded.0[6] |= 1 << 39;
    pool.header(&[(0, 1536)], 512, &[embedded]);
    assert!(pool.read(&bp(1536)).is_err());
    // Sound parts in the wrong order.
    pool.header(&[(0, 2048)], 512, &[parts[1], parts[0]]);
    assert!(matches!(pool.read(&bp(2048)), Err(BlockError::Checksum { .. })));
}

#[test]
fn headers_that_lead_to_themselves_or_too_deep() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pattern(7, 64 << 9);
    let itself = Bp::of(&data).gang(0, 0).make();
    pool.header(&[(0, 0)], 512, &[itself]);
    assert!(why(&pool, &itself).contains("larger than the whole"));
    // Each header leads to a smaller gang block and a sector.
    let sized = |n: u64, offset| Bp::of(&data[..(n as usize) << 9]).gang(0, offset).make();
    let sector = Bp::of(&data[..512]).at(0, 64 << 9).make();
    for n in 2..64u64 {
        pool.header(&[(0, n << 9)], 512, &[sized(n - 1, (n - 1) << 9), sector]);
    }
    assert!(why(&pool, &sized(63, 63 << 9)).contains("too deep"));
}

#[test]
fn copies_that_multiply_end() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pattern(8, 64 << 9);
    // Three copies of each header; at the bottom there is nothing.
    let sector = Bp::of(&data[..512]).at(0, 0).make();
    for n in 2..=16u64 {
        let (lower, offset) = (&data[..(n as usize - 1) << 9], (n - 1) << 12);
        let child = (0..3).fold(Bp::of(lower), |bp, i| bp.gang(0, offset + (i << 9))).make();
        for i in 0..3 {
            // Seeded with the place of the first copy.
            let first = n << 12;
            pool.header(&[(0, first), (0, first + (i << 9))], 512, &[child, sector]);
        }
    }
    let top = (0..3).fold(Bp::of(&data[..16 << 9]), |bp, i| bp.gang(0, (16 << 12) + (i << 9)));
    let before = pool.reads();
    assert!(pool.read(&top.make()).is_err());
    assert!(pool.reads() - before < 20_000, "{}", pool.reads() - before);
}

#[test]
fn a_gang_block_consists_of_headers_and_parts() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pattern(9, 4096);
    let parts = pieces(&pool, 16 << 10, &data, &[1024, 2048, 1024]);
    pool.header(&[(0, 512)], 512, &parts[1..]);
    let nested = Bp::of(&data[1024..]).gang(0, 512).make();
    pool.header(&[(0, 0)], 512, &[parts[0], HOLE, nested]);
    let bp = Bp::of(&data).gang(0, 0).make();
    let members = || pool.store.gang_members(&bp, at(0));
    assert_eq!(members().unwrap(), [parts[0], nested, parts[1], parts[2]]);
    // All or nothing: with a header that is wrong the rest is not known.
    pool.write(0, 512, &[1; 512]);
    assert!(matches!(members(), Err(BlockError::Checksum { .. })));
    let itself = Bp::of(&data).gang(0, 1024).make();
    pool.header(&[(0, 1024)], 512, &[itself; 3]);
    let before = pool.reads();
    assert!(pool.store.gang_members(&itself, at(0)).is_err());
    assert_eq!(pool.reads(), before + 1);
}

/// A caller that asks whether a gang block is there learns it of every part, blames no device, and takes no failure of
/// one for bytes that were never written.
#[test]
fn gang_blocks_that_may_not_be_there() {
    let pool = Pool::new(&[9, 9], 1 << 20);
    let data = pattern(10, 4096);
    let part = Bp::of(&data).at(0, 8192).at(1, 8192).make();
    let bp = Bp::of(&data).gang(0, 512).gang(1, 512).make();
    let ask = || pool.store.read_speculative(&bp, at(0)).map(|block| block.data.to_vec());
    let wrong = || matches!(ask(), Err(BlockError::Checksum { .. }));
    let failed = || matches!(ask(), Err(BlockError::Vdev { .. }));
    let place = |offset: u64| (4 << 20) + offset..(4 << 20) + offset + 512;
    assert!(wrong());
    pool.header(&[(0, 512), (1, 512)], 512, &[part]);
    assert!(wrong(), "its part was not written");
    pool.block(1, 8192, &data);
    assert_eq!(ask().unwrap(), data);
    for offset in [8192, 512] {
        // One copy is wrong or was never written; the other may be right.
        pool.disks[1].fail(place(offset));
        pool.disks[0].corrupt(place(offset), 1);
        assert!(failed());
        pool.disks[0].repair();
        pool.disks[1].repair();
        pool.disks[1].corrupt(place(offset), 1);
        pool.disks[0].fail(place(offset));
        assert!(failed());
        pool.disks[0].repair();
        pool.disks[1].repair();
        assert_eq!(ask().unwrap(), data);
    }
    assert_eq!(pool.store.errors(), []);
    let leaves = pool.store.vdevs().leaves();
    assert!(leaves.iter().all(|leaf| leaf.errors().2 == 0));
}
