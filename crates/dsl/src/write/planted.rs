//! Faults planted in what is kept in memory beside the MOS, and in what a sync says: each is found before the MOS is
//! written.

#![allow(clippy::unwrap_used)]

use super::deadlist::{self, Keys, Lists};
use super::pool::create_pool_dirs;
use super::*;
use cenote_dmu::write::{MetaObjectSet, Synced, Uses};
use cenote_format::invariant::{caught, is_broken};
use cenote_testsink::MemSink;

/// What a block counts for.
const SIZE: u64 = 512;

fn born(txg: u64, n: u64) -> BlockPointer {
    let mut bp = BlockPointer::HOLE;
    (bp.0[0], bp.0[1], bp.0[10]) = (1, n, txg);
    bp
}

/// A pool, and its root file system.
fn with_head(f: impl FnOnce(&mut Tx<'_>, u64)) {
    let (sink, outside) = (MemSink::new(64 << 20), Outside::default());
    let mut mos = MetaObjectSet::create(sink.store.clone()).unwrap();
    let sizes = |_: &BlockPointer| Sizes { used: SIZE, compressed: SIZE, uncompressed: SIZE };
    let mut keys = Keys::default();
    let mut tx = Tx::new(&mut mos, 4, &outside, &sizes);
    let head = create_pool_dirs(&mut tx).unwrap().root_ds;
    tx.deadlists = Some(&mut keys);
    f(&mut tx, head);
}

/// A sync of a head in group `txg`.
fn sync(tx: &mut Tx<'_>, head: u64, txg: u64, born: &[BlockPointer], killed: &[BlockPointer]) {
    tx.txg = txg;
    let (phys, root) = (tx.mos.synced().phys().clone(), self::born(txg, 1 << 20));
    let (cloned, changed) = Default::default();
    let (born, killed) = (born.to_vec(), killed.to_vec());
    let (leaked, uses) = (0, Uses::default());
    let synced = Synced { root, phys, born, killed, cloned, changed, leaked, uses };
    dataset::synced(tx, head, &synced).unwrap();
}

fn broken<T>(f: impl FnOnce() -> T) -> String {
    let why = caught(f).map(drop).unwrap_err();
    assert!(is_broken(&why), "{why}");
    why
}

#[test]
fn a_head_that_kills_a_block_twice_is_found() {
    with_head(|tx, head| {
        sync(tx, head, 5, &[], &[]);
        sync(tx, head, 6, &[born(6, 1), born(6, 2)], &[]);
        sync(tx, head, 7, &[], &[born(6, 1)]);
        let why = broken(|| sync(tx, head, 8, &[], &[born(6, 1)]));
        let what = format!("dataset {head}: pointers to");
        assert!(why.contains(&what) && why.ends_with("born in 6: 1 are taken of 0"), "{why}");
    });
}

#[test]
fn a_block_dies_as_often_as_it_was_born() {
    with_head(|tx, head| {
        sync(tx, head, 5, &[], &[]);
        // As deduplication has it, and in two passes of a group.
        sync(tx, head, 6, &[born(6, 1), born(6, 1), born(6, 2)], &[]);
        sync(tx, head, 6, &[born(6, 3)], &[born(6, 2)]);
        sync(tx, head, 7, &[], &[born(6, 1)]);
        sync(tx, head, 8, &[], &[born(6, 1), born(6, 3)]);
        broken(|| sync(tx, head, 9, &[], &[born(6, 1)]));
    });
}

/// A pointer of the disk may have any birth: in a group to come, in one of this import that has blocks of ours, in one that
/// has none.
#[test]
fn births_that_the_disk_makes_up_are_no_fault() {
    with_head(|tx, head| {
        sync(tx, head, 5, &[], &[]);
        sync(tx, head, 6, &[born(6, 1)], &[]);
        let made_up = [born(1_000_000, 7), born(6, 8), born(7, 9), born(8, 10)];
        for txg in 7..10 {
            sync(tx, head, txg, &[], &made_up);
        }
        // Blocks of ours are told from them.
        sync(tx, head, 10, &[], &[born(6, 1)]);
        broken(|| sync(tx, head, 11, &[], &[born(6, 1)]));
    });
}

/// What a book lists is bounded: of what it let go of nothing is known.
#[test]
fn a_book_lets_go_of_old_groups() {
    with_head(|tx, head| {
        sync(tx, head, 5, &[], &[]);
        let many: Vec<BlockPointer> = (1..8000).map(|n| born(7, n)).collect();
        sync(tx, head, 6, &[born(6, 1), born(6, 2)], &[]);
        sync(tx, head, 7, &many, &[]);
        sync(tx, head, 8, &[], &[born(7, 1), born(6, 1)]);
        let others: Vec<BlockPointer> = (8001..8301).map(|n| born(9, n)).collect();
        sync(tx, head, 9, &others, &[]);
        // Groups 6 and 7 are let go of.
        sync(tx, head, 10, &[], &[born(7, 1), born(6, 1), born(9, 8001)]);
        broken(|| sync(tx, head, 11, &[], &[born(9, 8001)]));
    });
}

/// What was on disk when the pool was opened may be counted wrong: another system may have done that.
#[test]
fn blocks_that_were_there_before_are_no_fault() {
    with_head(|tx, head| {
        sync(tx, head, 5, &[], &[]);
        for txg in 6..9 {
            sync(tx, head, txg, &[], &[born(3, 1), born(5, 2)]);
        }
        // The numbers of the disk are below zero: they go on as they are.
        assert!(tx.dataset(head).unwrap().referenced > i64::MAX as u64);
        // A task begins the books anew.
        sync(tx, head, 9, &[born(9, 3)], &[]);
        tx.deadlists.as_deref_mut().unwrap().forget();
        sync(tx, head, 10, &[], &[born(9, 3)]);
        sync(tx, head, 11, &[], &[born(9, 3)]);
    });
}

#[test]
fn a_block_of_another_group_is_found() {
    with_head(|tx, head| {
        let why = broken(|| sync(tx, head, 6, &[born(6, 1), born(5, 2)], &[]));
        assert!(why.contains(&format!("dataset {head}: not written in group 6")), "{why}");
    });
}

#[test]
fn keys_that_are_given_back_twice_are_found() {
    let mut keys = Keys::default();
    keys.keep(7, Lists::from([(0, 1), (4, 2)]));
    let taken = keys.take(7).unwrap();
    keys.keep(7, taken.clone());
    let why = broken(|| keys.keep(7, taken));
    assert!(why.ends_with("deadlist 7: its keys are given back, and were not taken"), "{why}");
}

#[test]
fn a_key_without_a_list_is_found() {
    let why = broken(|| deadlist::list_of(7, &Lists::from([(0, 1)]), 4));
    assert!(why.ends_with("deadlist 7: no list for key 4, which it has"), "{why}");
}

#[test]
fn a_snapshot_behind_a_later_one_is_found() {
    with_head(|tx, head| {
        tx.txg = 9;
        snapshot::snapshot(tx, head, "a").unwrap();
        tx.txg = 8;
        let why = broken(|| snapshot::take(tx, head, "b"));
        let what = format!("dataset {head}: a snapshot in group 8 behind one of 9");
        assert!(why.ends_with(&what), "{why}");
    });
}
