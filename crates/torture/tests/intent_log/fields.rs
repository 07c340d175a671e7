//! Each field of a record is applied by its mask, and what a record lacks is left alone.

use crate::records::{begun, images, new};
use crate::{recover, world};
use cenote_dmu::live::Cost;
use cenote_dmu::write::WriteError;
use cenote_engine::Engine;
use cenote_format::zil::{self, Body};
use cenote_torture::live::disk::Disk;
use cenote_torture::live::lab::{disks, judge};
use cenote_zpl::{Allocate, Attr, FileSystem, NodeKind, SetAttr, SetTime};
use std::sync::Arc;

const THEN: (i64, u32) = (1_000_000_000, 5);

/// A file of 5000 bytes that is on disk with all its attributes, and a log that is begun.
fn file() -> (Vec<Arc<Disk>>, Arc<Engine>, Arc<FileSystem>, u64) {
    let (disks, engine, fs) = begun(world::settings(true));
    let ino = fs.create(fs.root(), b"file", &new(NodeKind::File)).unwrap().ino;
    fs.write(ino, 0, &[7; 5000], false).unwrap();
    let time = Some(SetTime::To(THEN));
    fs.setattr(ino, &SetAttr { atime: time, mtime: time, ..SetAttr::default() }).unwrap();
    engine.sync().unwrap();
    (disks, engine, fs, ino)
}

fn put(engine: &Engine, fs: &FileSystem, body: &Body<'_>) {
    let live = engine.live(fs.objset().id()).unwrap();
    live.transact::<_, WriteError>(Cost::default(), |os, _| os.log(body.clone())).unwrap();
}

/// What the replay makes of the file after a crash.
fn replayed(engine: &Engine, fs: &FileSystem, all: &[Arc<Disk>], ino: u64) -> Attr {
    let txg = engine.pool().uberblock().txg;
    engine.commit(fs.objset().id()).unwrap();
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    let left = disks(&images(all), None);
    let (again, _) = recover(&left, 1);
    let attr = world::root(&again, true).attr(ino).unwrap();
    again.export(false).unwrap();
    judge(&images(&left)).unwrap();
    attr
}

#[test]
fn a_truncated_file_has_the_time_of_that() {
    let (disks, engine, fs, ino) = file();
    let now = fs.setattr(ino, &SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
    assert!(now.mtime > THEN);
    let found = replayed(&engine, &fs, &disks, ino);
    assert_eq!((found.size, found.mtime, found.atime), (100, now.mtime, THEN));
    engine.export(false).unwrap();
}

#[test]
fn attributes_are_set_by_the_mask() {
    use zil::SetAttr as Mask;
    let masks =
        [Mask::MODE, Mask::UID, Mask::GID, Mask::SIZE, Mask::ATIME, Mask::MTIME, Mask::CTIME];
    // Times that a record of a size has, and such as other systems leave there.
    for mtime in [[1_700_000_000, 9], [0, 0], [u64::MAX, u64::MAX], [1_700_000_000, u64::MAX]] {
        let differs = |mask: &u64| mtime == [1_700_000_000, 9] || *mask == Mask::SIZE;
        for mask in masks.into_iter().filter(differs) {
            let (disks, engine, fs, ino) = file();
            let before = fs.attr(ino).unwrap();
            let record = Mask {
                object: ino,
                // The bit of the time of change says that the mask is one of Linux.
                mask: mask | Mask::CTIME,
                mode: 0o100_711,
                uid: 71,
                gid: 72,
                size: 77,
                atime: [1_600_000_000, 8],
                mtime: if mask == Mask::MTIME { [1_700_000_000, 9] } else { mtime },
                attrs: None,
                domains: Vec::new(),
            };
            put(&engine, &fs, &Body::SetAttr(record));
            let found = replayed(&engine, &fs, &disks, ino);
            let has = |bit| mask == bit;
            let say = format!("mask {mask:#x}, {mtime:?}");
            assert_eq!(found.mode, if has(Mask::MODE) { 0o100_711 } else { before.mode }, "{say}");
            assert_eq!(found.uid, if has(Mask::UID) { 71 } else { before.uid }, "{say}");
            assert_eq!(found.gid, if has(Mask::GID) { 72 } else { before.gid }, "{say}");
            assert_eq!(found.size, if has(Mask::SIZE) { 77 } else { before.size }, "{say}");
            let atime = if has(Mask::ATIME) { (1_600_000_000, 8) } else { THEN };
            assert_eq!(found.atime, atime, "{say}");
            match (has(Mask::MTIME), has(Mask::SIZE), mtime) {
                (true, ..) | (_, true, [1_700_000_000, 9]) => {
                    assert_eq!(found.mtime, (1_700_000_000, 9), "{say}");
                }
                // The time of the replay.
                (_, true, _) => assert!(found.mtime >= before.ctime, "{say}: {:?}", found.mtime),
                _ => assert_eq!(found.mtime, THEN, "{say}"),
            }
            assert!(found.ctime >= before.ctime, "{say}");
            engine.export(false).unwrap();
        }
    }
}

/// A hole past the end of a file is no part of it: no record makes the file longer, here or in OpenZFS.
#[test]
fn a_hole_past_the_end_leaves_the_length() {
    for (offset, len) in [(6000, 1000), (4000, 9000)] {
        for what in [Allocate::PunchHole, Allocate::ZeroKeepSize] {
            let (disks, engine, fs, ino) = file();
            fs.create(fs.root(), b"begin", &new(NodeKind::File)).unwrap();
            engine.commit(fs.objset().id()).unwrap();
            fs.allocate(ino, offset, len, what).unwrap();
            assert_eq!(replayed(&engine, &fs, &disks, ino).size, 5000, "{what:?} at {offset}");
            engine.export(false).unwrap();
        }
    }
    // One that another system has logged makes it longer, as there.
    let (disks, engine, fs, ino) = file();
    put(&engine, &fs, &Body::Truncate { object: ino, offset: 6000, length: 1000 });
    assert_eq!(replayed(&engine, &fs, &disks, ino).size, 7000);
    engine.export(false).unwrap();
}
