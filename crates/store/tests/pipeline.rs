//! The read pipeline over devices in memory.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_store::{Access, BlockError, Bookmark, PrimaryCache};
use common::{Bp, LZ4, OFF, Pool, at, pattern};

const LABEL: u64 = 4 << 20;

/// An embedded pointer with this payload.
fn embedded(payload: &[u8], compression: u8, lsize: u64, kind: u64) -> BlockPointer {
    let mut bytes = payload.to_vec();
    bytes.resize(112, 0);
    let mut words = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
    let mut out = [0; 16];
    for (i, word) in out.iter_mut().enumerate() {
        if i != 6 && i != 10 {
            *word = words.next().unwrap();
        }
    }
    let sizes = (payload.len() as u64 - 1) << 25 | (lsize - 1);
    out[6] = 1 << 63 | 19 << 48 | kind << 40 | 1 << 39 | u64::from(compression) << 32 | sizes;
    out[10] = 7;
    BlockPointer(out)
}

#[test]
fn the_next_copy_is_read_when_one_fails_or_lies() {
    let pool = Pool::new(&[9, 9, 9], 1 << 20);
    let data = pattern(1, 8192);
    (0..3).for_each(|vdev| pool.write(vdev, 4096, &data));
    let bp = Bp::of(&data).at(0, 4096).at(1, 4096).at(2, 4096).make();
    pool.disks[0].set_missing(true);
    assert_eq!(pool.read(&bp).unwrap(), data);
    pool.store.drop_caches();
    pool.disks[1].corrupt(LABEL + 5000..LABEL + 5001, 1);
    let many = pool.store.read_many(&[(bp, at(0))]);
    assert_eq!(many[0].as_ref().unwrap().data.to_vec(), data);
    let copies = pool.store.verify_all_copies(&bp, at(0));
    assert!(
        matches!(
            copies[..],
            [Err(BlockError::Vdev { .. }), Err(BlockError::Checksum { .. }), Ok(())]
        ),
        "{copies:?}"
    );
    assert!(pool.store.errors().is_empty());
}

#[test]
fn lost_blocks_are_remembered_until_forgotten() {
    let pool = Pool::new(&[9], 1 << 20);
    let bps: Vec<_> = (0..3).map(|i| pool.block(0, i << 12, &pattern(i, 4096))).collect();
    pool.disks[0].fail(LABEL..LABEL + 4096);
    pool.disks[0].corrupt(LABEL + 4096..LABEL + 4097, 1);
    for _ in 0..2 {
        assert!(matches!(pool.store.read(&bps[0], at(0)), Err(BlockError::Vdev { .. })));
    }
    let many: Vec<_> = bps.iter().zip(0..).map(|(bp, i)| (*bp, at(i))).collect();
    let read = pool.store.read_many(&many);
    assert!(matches!(read[1], Err(BlockError::Checksum { .. })));
    assert!(read[2].is_ok());
    assert_eq!(pool.store.errors(), [at(0), at(1)]);
    pool.store.forget_errors(|_| true);
    assert!(pool.store.errors().is_empty());
    pool.disks[0].repair();
    assert!(pool.store.read_many(&many).iter().all(Result::is_ok), "errors are not cached");
}

#[test]
fn holes_and_embedded_blocks_need_no_device() {
    let pool = Pool::new(&[9], 1 << 20);
    let before = pool.reads();
    let mut hole = BlockPointer::HOLE;
    assert_eq!(pool.read(&hole).unwrap(), [0; 512]);
    hole.0[6] = 255;
    assert_eq!(pool.read(&hole).unwrap(), vec![0; 128 << 10]);
    hole.0[6] = 0xffff;
    assert!(pool.read(&hole).is_err(), "32 MiB");
    let data = pattern(2, 100);
    let mut padded = data.clone();
    padded.resize(512, 0);
    assert_eq!(pool.read(&embedded(&data, OFF, 512, 0)).unwrap(), padded);
    assert_eq!(pool.read(&embedded(&data, OFF, 50, 0)).unwrap(), data[..50]);
    // lz4: length, then one literal byte and a match that repeats it, and five literals.
    let mut packed = vec![0, 0, 0, 10, 0x1f, b'x', 1, 0, 10, 0x50];
    packed.extend(b"abcde");
    packed[3] = packed.len() as u8 - 4;
    let mut text = vec![b'x'; 1 + 15 + 4 + 10];
    text.extend(b"abcde");
    assert_eq!(pool.read(&embedded(&packed, LZ4, text.len() as u64, 0)).unwrap(), text);
    assert!(pool.read(&embedded(&packed, LZ4, 512, 0)).is_err(), "another length");
    assert!(pool.read(&embedded(&data, OFF, 512, 1)).unwrap_err().to_string().contains("type 1"));
    assert!(pool.read(&embedded(&[0; 128], OFF, 512, 0)).is_err(), "more than there is room for");
    assert_eq!(pool.reads(), before);
    assert!(pool.store.verify_all_copies(&embedded(&data, OFF, 512, 0), at(0)).is_empty());
}

#[test]
fn pointers_that_make_no_sense() {
    let pool = Pool::new(&[9], 1 << 20);
    let good = pool.block(0, 0, &pattern(3, 4096));
    let with = |shift: u32, len: u32, value: u64| {
        let mut bp = good;
        bp.0[6] = bp.0[6] & !(((1 << len) - 1) << shift) | value << shift;
        bp
    };
    for (what, bp) in [
        ("unknown checksum", with(40, 8, 99)),
        ("unknown compression", with(32, 7, 99)),
        ("no compression of a block", with(32, 7, 1)),
        ("32 MiB", with(16, 16, 0xffff)),
        ("larger than its bytes", with(0, 16, 8)),
        ("inherited checksum", with(40, 8, 0)),
        ("a label's checksum", with(40, 8, 3)),
    ] {
        assert!(pool.read(&bp).is_err(), "{what}");
        assert!(pool.store.read_many(&[(bp, at(0)), (good, at(1))])[1].is_ok(), "{what}");
        pool.store.drop_caches();
    }
    let encrypted = {
        let mut bp = Bp::of(&pattern(3, 4096)).kind(20).at(0, 0).make();
        bp.0[6] |= 1 << 61;
        bp
    };
    assert!(matches!(pool.read(&encrypted), Err(BlockError::Encrypted { .. })));
}

#[test]
fn blocks_of_machines_of_the_other_byte_order() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pattern(4, 4096);
    pool.write(0, 512, &data);
    let bp = Bp::of(&data).big_endian().at(0, 512).make();
    let block = pool.store.read(&bp, at(0)).unwrap();
    assert_eq!((block.order, block.data.to_vec()), (ByteOrder::Big, data.clone()));
    let mut little = bp;
    little.0[6] |= 1 << 63;
    pool.store.drop_caches();
    assert!(matches!(pool.read(&little), Err(BlockError::Checksum { .. })));
}

#[test]
fn readers_of_one_block_share_one_read() {
    for arc in [1 << 20, 4096] {
        let pool = Pool::new(&[9], arc);
        let data = pattern(5, 4096);
        let bp = pool.block(0, 4096, &data);
        let other = pool.block(0, 16384, &data);
        pool.disks[0].set_delay(Duration::from_millis(100));
        let before = pool.reads();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (pool, data) = (&pool, &data);
                scope.spawn(move || {
                    if i % 2 == 0 {
                        assert_eq!(pool.read(&bp).unwrap(), *data);
                    } else {
                        // Batches that overlap, in both orders, with duplicates.
                        let mut batch = [(bp, at(0)), (other, at(1)), (bp, at(0))];
                        batch.rotate_left(i / 2 % 3);
                        for block in pool.store.read_many(&batch) {
                            assert_eq!(block.unwrap().data.to_vec(), *data);
                        }
                    }
                });
            }
        });
        // What does not fit the cache is read by each for itself. A batch that is first reads both
        // blocks at once.
        if arc > 4096 {
            assert!((1..=2).contains(&(pool.reads() - before)));
        }
    }
}

#[test]
fn readers_of_one_lost_block_all_learn_it() {
    let pool = Pool::new(&[9], 1 << 20);
    let bp = pool.block(0, 0, &pattern(6, 4096));
    pool.disks[0].set_missing(true);
    pool.disks[0].set_delay(Duration::from_millis(20));
    std::thread::scope(|scope| {
        for i in 0..4 {
            let pool = &pool;
            scope.spawn(move || assert!(pool.store.read(&bp, at(i)).is_err()));
        }
    });
    assert_eq!(pool.store.errors().len(), 4);
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn reading_ahead_fills_the_cache_and_blames_nobody() {
    let pool = Pool::new(&[9], 1 << 20);
    let bps: Vec<_> = (0..4).map(|i| pool.block(0, i << 14, &pattern(i, 4096))).collect();
    pool.disks[0].fail(LABEL + (3 << 14)..LABEL + (4 << 14));
    let batch: Vec<(BlockPointer, Bookmark)> =
        bps.iter().zip(0..).map(|(bp, i)| (*bp, at(i))).collect();
    let before = pool.reads();
    pool.store.prefetch(batch.clone(), Access::Ahead);
    wait_for(|| pool.store.stats().arc.size == 3 * 4096);
    wait_for(|| pool.reads() - before >= 4);
    let read = pool.reads();
    for (i, bp) in (0..3).zip(&bps) {
        assert_eq!(pool.read(bp).unwrap(), pattern(i, 4096));
    }
    assert_eq!(pool.reads(), read, "all were there");
    let stats = pool.store.stats().arc;
    assert_eq!((stats.mru_size, stats.mfu_size), (3 * 4096, 0), "seen once");
    assert!(pool.store.errors().is_empty());
    assert!(pool.store.read(&bps[3], at(3)).is_err());
    assert_eq!(pool.store.errors(), [at(3)]);
    // What is cached is not read again, nor are pointers that make no sense.
    let mut senseless = bps[0];
    senseless.0[6] |= 0xff << 40;
    let after = pool.reads();
    pool.store.prefetch(batch[..3].to_vec(), Access::Ahead);
    pool.store.prefetch(vec![(BlockPointer::HOLE, at(0)), (senseless, at(0))], Access::Ahead);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(pool.reads(), after);
}

#[test]
fn what_a_dataset_does_not_keep_is_read_again() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = pool.block(0, 0, &pattern(1, 4096));
    let metadata = pattern(2, 4096);
    pool.write(0, 8192, &metadata);
    let directory = Bp::of(&metadata).kind(20).at(0, 8192).make();
    for (what, kept) in
        [(PrimaryCache::Metadata, 4096), (PrimaryCache::None, 0), (PrimaryCache::All, 8192)]
    {
        pool.store.drop_caches();
        pool.store.set_caching(5, what);
        pool.store.prefetch(vec![(data, at(0)), (directory, at(1))], Access::Ahead);
        for _ in 0..2 {
            assert_eq!(pool.read(&data).unwrap(), pattern(1, 4096));
            assert_eq!(pool.read(&directory).unwrap(), metadata);
            let many = pool.store.read_many(&[(data, at(0)), (directory, at(1))]);
            assert!(many.iter().all(Result::is_ok));
        }
        assert_eq!(pool.store.stats().arc.size, kept, "{what:?}");
    }
    // Of other datasets everything is kept.
    pool.store.drop_caches();
    pool.store.set_caching(5, PrimaryCache::None);
    pool.store.read(&data, Bookmark { objset: 6, ..at(0) }).unwrap();
    assert_eq!(pool.store.stats().arc.size, 4096);
}

#[test]
fn batches_of_everything_keep_their_order() {
    let pool = Pool::new(&[9, 12], 1 << 20);
    let small = pattern(7, 4096);
    let large = pattern(8, 256 << 10);
    let hit = pool.block(0, 0, &small);
    let miss = pool.block(1, 0, &large);
    let lost = Bp::of(&pattern(9, 4096)).at(0, 1 << 20).make();
    let nowhere = Bp::of(&small).at(7, 0).make();
    let mut senseless = hit;
    senseless.0[6] |= 0xff << 40;
    pool.read(&hit).unwrap();
    let inline = embedded(b"inline", OFF, 6, 0);
    let order = [hit, lost, BlockPointer::HOLE, miss, nowhere, inline, senseless, miss, hit];
    let batch: Vec<_> = order.iter().zip(0..).map(|(bp, i)| (*bp, at(i))).collect();
    let read = pool.store.read_many(&batch);
    let text = |i: usize| read[i].as_ref().map(|b| b.data.to_vec()).ok();
    assert_eq!((text(0), text(8)), (Some(small.clone()), Some(small)));
    assert_eq!((text(3), text(7)), (Some(large.clone()), Some(large)));
    assert_eq!((text(2), text(5)), (Some(vec![0; 512]), Some(b"inline".to_vec())));
    assert!(matches!(read[1], Err(BlockError::Checksum { .. })));
    assert!(matches!(read[4], Err(BlockError::Vdev { .. })));
    assert!(matches!(read[6], Err(BlockError::Decode { .. })));
    let marks: Vec<_> =
        [1, 4, 6].iter().map(|i| read[*i].as_ref().unwrap_err().bookmark()).collect();
    assert_eq!(marks, [at(1), at(4), at(6)]);
    assert!(pool.store.read_many(&[]).is_empty());
}

#[test]
fn unpacked_metadata_is_kept() {
    let pool = Pool::new(&[9], 1 << 20);
    let data = vec![0; 16 << 10];
    // zle: runs of 192 zeros.
    let mut packed = vec![255; data.len() / 192];
    packed.push(63 + (data.len() % 192) as u8);
    packed.resize(512, 0);
    pool.write(0, 0, &packed);
    let bp = Bp::of(&packed).compressed(14, data.len()).kind(10).at(0, 0).make();
    assert_eq!(pool.read(&bp).unwrap(), data);
    assert_eq!(pool.store.stats().arc.unpacked.bytes, data.len() as u64);
    assert_eq!(pool.read(&bp).unwrap(), data);
    assert_eq!(pool.store.stats().arc.hits, 0, "found unpacked");
    pool.store.drop_caches();
    assert_eq!(pool.store.stats().arc.taken(), 0);
}
