//! Blocks that come compressed: read, changed, grown, moved and taken back before they are written.

use crate::live::{COST, Live};
use cenote_dmu::write::{Births, NewObject, OpenObjectSet, Result, WriteError};
use cenote_format::abd::Abd;
use cenote_format::compress::{Compression, LEVEL_DEFAULT, compress};
use cenote_format::dmu::DmuType;
use cenote_store::write::{Packed, Payload};

const SIZE: usize = 4096;

/// A block of `byte` and zeros, as it is and packed.
fn block(byte: u8) -> (Vec<u8>, Payload) {
    let mut plain = vec![byte; SIZE / 3];
    plain.resize(SIZE, 0);
    let data = compress(Compression::Lz4, LEVEL_DEFAULT, &plain, SIZE).unwrap();
    let (data, compression) = (Abd::from_vec(data), Compression::Lz4);
    (plain, Payload::Packed(Packed { data, compression, lsize: SIZE, seal: None }))
}

fn read(live: &Live, number: u64, len: usize) -> Vec<u8> {
    live.set.object(number).unwrap().read_abd(0, len).unwrap().to_vec()
}

fn change<T>(live: &Live, f: impl FnMut(&mut OpenObjectSet) -> Result<T>) -> Result<T> {
    let mut f = f;
    live.set.transact(COST, |os, _| f(os))
}

#[test]
fn blocks_that_come_compressed() {
    let live = Live::new();
    let new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, SIZE as u64);
    let number = change(&live, |os| os.allocate(&new)).unwrap();
    let (mut plain, packed) = block(3);
    change(&live, |os| os.write_payload(number, 0, &packed)).unwrap();
    assert_eq!(read(&live, number, SIZE), plain);
    // A change that is taken back leaves it; one that is kept changes its bytes.
    let failed: Result<()> = change(&live, |os| {
        os.write(number, 100, b"lost")?;
        os.write_payload(number, 0, &block(9).1)?;
        Err(WriteError::NoSpace)
    });
    assert!(failed.is_err());
    assert_eq!(read(&live, number, SIZE), plain);
    change(&live, |os| os.write(number, 100, b"kept")).unwrap();
    plain[100..104].copy_from_slice(b"kept");
    assert_eq!(read(&live, number, SIZE), plain);
    // One that is compressed grows, and one that was not written by the last group yet is changed in the next.
    let (second, packed) = block(5);
    change(&live, |os| os.write_payload(number, 0, &packed)).unwrap();
    change(&live, |os| {
        let shift = os.dnode(number)?.indirect_shift;
        os.set_block_size(number, 2 * SIZE as u64, shift)
    })
    .unwrap();
    let mut grown = second;
    grown.resize(2 * SIZE, 0);
    assert_eq!(read(&live, number, 2 * SIZE), grown);
    // What is no whole block is unpacked.
    change(&live, |os| os.write_payload(number, SIZE as u64, &packed)).unwrap();
    let expected: Vec<u8> = [&grown[..SIZE], &block(5).0].concat();
    assert_eq!(read(&live, number, 2 * SIZE), expected);
    live.sync();
    assert_eq!(read(&live, number, 2 * SIZE), expected);
    // Whole blocks stay packed to the sync, and can be rewritten before.
    let other = change(&live, |os| os.allocate(&new)).unwrap();
    change(&live, |os| {
        (0..4).try_for_each(|i| os.write_payload(other, i * SIZE as u64, &block(i as u8).1))
    })
    .unwrap();
    change(&live, |os| {
        let found = os.view(other)?.gather(0, 2 * SIZE as u64, &|_| false)?;
        os.rewrite(other, &found, Births::New).map(drop)
    })
    .unwrap();
    change(&live, |os| os.free_range(other, SIZE as u64 + 10, 20)).unwrap();
    let mut all: Vec<u8> = (0..4).flat_map(|i| block(i).0).collect();
    all[SIZE + 10..SIZE + 30].fill(0);
    assert_eq!(read(&live, other, 4 * SIZE), all);
    live.sync();
    assert_eq!(read(&live, other, 4 * SIZE), all);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let live = Live::new();
    let new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, SIZE as u64);
    let number = change(&live, |os| os.allocate(&new)).unwrap();
    let packed = |compression, len| {
        Payload::Packed(Packed {
            data: Abd::from_vec(vec![255; len]),
            compression,
            lsize: SIZE,
            seal: None,
        })
    };
    for bad in [
        packed(Compression::Off, 512),
        packed(Compression::Lz4, 0),
        packed(Compression::Lz4, SIZE + 1),
    ] {
        let done = change(&live, |os| os.write_payload(number, 0, &bad));
        assert!(matches!(done, Err(WriteError::Invalid { .. })), "{done:?}");
    }
    // It is written as it is, and reading it is an error.
    change(&live, |os| os.write_payload(number, 0, &packed(Compression::Lz4, 512))).unwrap();
    assert!(live.set.object(number).unwrap().read_abd(0, SIZE).is_err());
    assert!(change(&live, |os| os.write(number, 7, b"x")).is_err());
    change(&live, |os| os.write(number, 0, &[1; SIZE])).unwrap();
    assert_eq!(read(&live, number, SIZE), [1; SIZE]);
}
