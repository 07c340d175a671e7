//! What is written synchronously as it is on disk already is not written anew.

use crate::records::{begun, images, new};
use crate::{recover, set_property, world};
use cenote_engine::Engine;
use cenote_format::blkptr::BlockPointer;
use cenote_format::checksum::Checksum;
use cenote_torture::live::damage::Damage;
use cenote_torture::live::disk::Disk;
use cenote_torture::live::lab::{disks, judge, lab};
use cenote_zpl::{FileSystem, NodeKind, SetAttr, Settings};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

const RECORD: usize = 128 << 10;
const RECORDS: usize = 6;

/// The pointers of the blocks of a file, as they are on disk.
fn pointers(engine: &Engine, ino: u64) -> Vec<BlockPointer> {
    let pool = engine.pool();
    let set = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
    let object = set.object(ino).unwrap();
    (0..RECORDS as u64).map(|blkid| object.block_pointer(0, blkid).unwrap()).collect()
}

/// A pool in which equal blocks are found, with a file of random data on disk and a log that is begun.
struct Written {
    all: Vec<Arc<Disk>>,
    engine: Arc<Engine>,
    fs: Arc<FileSystem>,
    /// The object set.
    id: u64,
    ino: u64,
    data: Vec<u8>,
}

fn written(seed: u64) -> Written {
    let settings = Settings { record_size: RECORD as u64, ..world::settings(true) };
    let (all, engine, fs) = begun(settings);
    set_property(&engine, "tank", "checksum", Checksum::Sha256 as u64);
    let id = fs.objset().id();
    let ino = fs.create(fs.root(), b"file", &new(NodeKind::File)).unwrap().ino;
    let mut rng = SmallRng::seed_from_u64(seed);
    let data: Vec<u8> = (0..RECORD * RECORDS).map(|_| rng.random()).collect();
    fs.write(ino, 0, &data, false).unwrap();
    engine.sync().unwrap();
    fs.create(fs.root(), b"begin", &new(NodeKind::File)).unwrap();
    engine.commit(id).unwrap();
    Written { all, engine, fs, id, ino, data }
}

#[test]
fn a_synchronous_write_of_the_same_takes_no_space() {
    let Written { all, engine, fs, id, ino, data } = written(3);
    let before = pointers(&engine, ino);
    let txg = engine.pool().uberblock().txg;
    // Two as they were, one that is another one first, one that changes after that, one that is another one.
    let of = |n: usize| &data[n * RECORD..(n + 1) * RECORD];
    let write = |n: usize, bytes: &[u8]| {
        fs.write(ino, (n * RECORD) as u64, bytes, false).unwrap();
        engine.commit_objects(id, &[ino]).unwrap();
    };
    write(0, of(0));
    write(1, of(1));
    write(2, of(5));
    write(2, of(2));
    write(3, of(3));
    write(3, of(5));
    write(4, of(5));
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    let mut want = data.clone();
    [3, 4].iter().for_each(|n| want[n * RECORD..(n + 1) * RECORD].copy_from_slice(of(5)));
    // What the records point to is there after a crash.
    judge(&images(&all)).unwrap();
    let left = disks(&images(&all), None);
    let (again, records) = recover(&left, 1);
    assert!(records >= 7, "{records}");
    let mut found = vec![0; want.len()];
    world::root(&again, true).read(ino, 0, &mut found).unwrap();
    assert!(found == want, "after replay");
    again.export(false).unwrap();
    judge(&images(&left)).unwrap();
    engine.sync().unwrap();
    let after = pointers(&engine, ino);
    let same: Vec<bool> = before.iter().zip(&after).map(|(old, new)| old == new).collect();
    assert_eq!(same, [true, true, true, false, false, true]);
    // In the next group too, while the last one may still be written.
    write(3, of(5));
    engine.sync().unwrap();
    assert_eq!(pointers(&engine, ino), after);
    engine.export(false).unwrap();
    judge(&images(&all)).unwrap();
}

/// A record frees what is on disk, and a later one of the same group has the same data again: it does not lead to what is
/// free by then, and may be overwritten.
#[test]
fn what_is_changed_and_changed_back_is_replayed() {
    for truncated in [false, true] {
        let Written { all, engine, fs, id, ino, data } = written(4);
        let before = pointers(&engine, ino);
        let txg = engine.pool().uberblock().txg;
        if truncated {
            fs.setattr(ino, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        } else {
            fs.write(ino, 0, &data[RECORD..2 * RECORD], false).unwrap();
        }
        engine.commit_objects(id, &[ino]).unwrap();
        fs.write(ino, 0, &data, false).unwrap();
        engine.commit_objects(id, &[ino]).unwrap();
        assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
        // The file `begin` and the first change are replayed, and there is one more crash. What is free then is overwritten.
        let left = disks(&images(&all), None);
        let crashed = lab(&left);
        let stopped = crashed.import(&crashed.find().unwrap()).unwrap();
        let go_on = |_: &str, done: &cenote_zpl::Replayed| done.records < 2;
        assert_eq!(cenote::contents::replay_logs(&stopped, &go_on).unwrap().len(), 1);
        stopped.sync().unwrap();
        assert!(pointers(&stopped, ino)[0] != before[0], "nothing was freed");
        drop(stopped);
        let (mut damage, freed) = (Damage::default(), if truncated { RECORDS } else { 1 });
        for bp in &before[..freed] {
            damage.add(&left[bp.dva(0).unwrap().vdev as usize], bp);
        }
        let (again, records) = recover(&left, 1);
        assert!(records > 0);
        let mut found = vec![0; data.len()];
        world::root(&again, true).read(ino, 0, &mut found).unwrap();
        assert!(found == data, "after replay");
        again.export(false).unwrap();
        judge(&images(&left)).unwrap();
        engine.sync().unwrap();
        assert!(truncated || pointers(&engine, ino) == before, "written anew");
        engine.export(false).unwrap();
        judge(&images(&all)).unwrap();
    }
}
