//! A log that clones blocks whose references cannot be counted is not claimed in full where their counts are damaged. That
//! costs what follows in the log, and its dataset until the log is given up; the pool and other datasets go on. Where a
//! device fails nothing is claimed: it may come back.

use cenote_dsl::zil::{self, Item};
use cenote_engine::Engine;
use cenote_engine::change::{Changes, Kind, NewDataset};
use cenote_format::blkptr::BlockPointer;
use cenote_pool::{Pool, brt};
use cenote_torture::live::damage::Damage;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::lab::{Lab, Logs, Plain, Shape, disks, judge, lab};
use cenote_torture::live::world::{self, look};
use cenote_vdev::Device;
use cenote_vdev::inject::FaultyDevice;
use cenote_zpl::{FileSystem, NewNode, NodeKind};
use std::sync::Arc;

const SHAPE: Shape = Shape { disks: 1, ..crate::SHAPES[0] };
const CLONED: &str = "tank/cloned";
/// Bytes that are cloned: some records of 16 KiB.
const LEN: usize = 256 << 10;

fn create(fs: &FileSystem, name: &str, len: usize) -> u64 {
    let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
    let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
    let ino = fs.create(fs.root(), name.as_bytes(), &node).unwrap().ino;
    let noise = (1u64..).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8);
    fs.write(ino, 0, &noise.take(len).collect::<Vec<u8>>(), false).unwrap();
    ino
}

fn ds_obj(engine: &Engine) -> u64 {
    engine.pool().dsl().find(CLONED).unwrap().unwrap().ds_obj
}

fn names(fs: &FileSystem) -> Vec<String> {
    look(fs).keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// The files of the dataset that are on disk.
fn on_disk(pool: &Pool) -> Vec<String> {
    let dataset = pool.dsl().find(CLONED).unwrap().unwrap();
    let set = pool.dsl().open_objset(&dataset).unwrap();
    names(&FileSystem::open_as(set, world::settings(true)).unwrap())
}

/// Blocks that the records of the dataset's log clone.
fn clones_in_log(pool: &Pool) -> usize {
    let dataset = pool.dsl().find(CLONED).unwrap().unwrap();
    let header = pool.dsl().open_objset(&dataset).unwrap().phys().zil;
    let mut found = 0;
    zil::walk(pool.store(), &header, &mut |item| {
        if let Item::Record(record) = item {
            found += record.cloned_blocks().len();
        }
        true
    });
    found
}

/// What a crash left of two file systems with logs. In one of these a file is created, one is cloned and one more is
/// created. Returns the blocks with the entries of the block reference table as well.
fn crashed() -> (Arc<Disk>, Vec<BlockPointer>) {
    let disk = disks(&[Image::new(SHAPE.size)], None).remove(0);
    let engine = lab(std::slice::from_ref(&disk)).create_with(&SHAPE, Logs::On).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    let new = NewDataset { name: CLONED.into(), kind: Kind::Filesystem, props: Vec::new() };
    changes.create(&new).unwrap();
    let (root, fs) = (world::root(&engine, true), world::open(&engine, CLONED, true));
    let clone = |from: u64, name: &str| {
        let to = create(&fs, name, 0);
        assert_eq!(fs.copy_range(from, 0, to, 0, LEN as u64).unwrap(), LEN as u64);
    };
    let source = create(&fs, "a source", LEN);
    engine.sync().unwrap();
    // The logs begin in groups that are waited for, and the table is on disk.
    clone(source, "b first clone");
    engine.commit(fs.objset().id()).unwrap();
    create(&root, "a synced", 5000);
    engine.commit(root.objset().id()).unwrap();
    let before = engine.pool().uberblock().txg;
    create(&root, "logged", 5000);
    engine.commit(root.objset().id()).unwrap();
    create(&fs, "c before", 5000);
    engine.commit(fs.objset().id()).unwrap();
    clone(source, "d second clone");
    engine.commit(fs.objset().id()).unwrap();
    create(&fs, "e after", 5000);
    engine.commit(fs.objset().id()).unwrap();
    assert_eq!(engine.pool().uberblock().txg, before, "a commit waited for its group");
    let left = disks(&[disk.image()], None).remove(0);
    let pool = lab(std::slice::from_ref(&left)).look().unwrap();
    assert_eq!(clones_in_log(&pool), LEN / (16 << 10));
    let entries = pool.mos().object(brt::load(pool.mos(), 1).unwrap()[0].entries).unwrap();
    let mut blocks = Vec::new();
    let mut add = |_: i64, _: u64, bp: &BlockPointer| {
        blocks.push(*bp);
        Ok(())
    };
    entries.walk(&mut add).unwrap();
    (left, blocks)
}

#[test]
fn clones_that_cannot_be_counted_cost_their_dataset_only() {
    let ((disk, entries), mut damage) = (crashed(), Damage::default());
    entries.iter().for_each(|bp| damage.add(&disk, bp));
    let lab = lab(std::slice::from_ref(&disk));
    let import = || lab.import(&lab.find().unwrap()).unwrap();
    let before = ["a source", "b first clone"];
    let with_prefix = ["a source", "b first clone", "c before", "d second clone"];
    let engine = import();
    assert_eq!(on_disk(&engine.pool()), before);
    assert_eq!(names(&world::root(&engine, true)), ["a synced", "logged"]);
    let refused = engine.live(ds_obj(&engine)).err().unwrap().to_string();
    for part in [CLONED, "could not be claimed", "zpool clear"] {
        assert!(refused.contains(part), "{refused}");
    }
    // What comes before is there: the file that was to be the clone is empty.
    assert_eq!(on_disk(&engine.pool()), with_prefix);
    engine.export(false).unwrap();
    // It is so in further imports, to OpenZFS as well, though the table can be read again.
    damage.mend(&disk);
    judge(&[disk.image()]).unwrap();
    let engine = import();
    let refused = engine.live(ds_obj(&engine)).err().unwrap().to_string();
    assert!(refused.contains(CLONED) && refused.contains("zpool clear"), "{refused}");
    assert_eq!(engine.waiting_logs(), [0; 0]);
    engine.clear_intent_log(ds_obj(&engine)).unwrap();
    let fs = world::open(&engine, CLONED, true);
    assert_eq!(names(&fs), with_prefix);
    // What has its blocks still goes without taking others' with it.
    fs.unlink(fs.root(), b"b first clone", &|_| false).unwrap();
    create(&fs, "f again", 5000);
    engine.commit(fs.objset().id()).unwrap();
    let source = fs.lookup(fs.root(), b"a source").unwrap();
    drop(fs);
    engine.export(false).unwrap();
    judge(&[disk.image()]).unwrap();
    let engine = import();
    let fs = world::open(&engine, CLONED, true);
    let mut data = vec![0; LEN];
    assert_eq!(fs.read(source, 0, &mut data).unwrap(), LEN);
    drop(fs);
    engine.export(false).unwrap();
}

#[test]
fn a_device_that_fails_keeps_logs_with_clones() {
    let (disk, entries) = crashed();
    let device = FaultyDevice::new(disk.clone());
    let lab = Lab::new(vec![device.clone() as Arc<dyn Device>]);
    for dva in entries.iter().flat_map(BlockPointer::dvas) {
        let offset = dva.offset + cenote_format::LABEL_START;
        device.fail(offset..offset + dva.asize);
    }
    let refused = lab.import(&lab.find().unwrap()).err().unwrap();
    let said = refused.notes().unwrap_or_default();
    assert!(said.contains("cannot be read"), "{refused}: {said}");
    device.repair();
    judge(&[disk.image()]).unwrap();
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let fs = world::open(&engine, CLONED, true);
    let all = ["a source", "b first clone", "c before", "d second clone", "e after"];
    assert_eq!(names(&fs), all);
    let cloned = fs.lookup(fs.root(), b"d second clone").unwrap();
    let mut data = vec![0; LEN];
    assert_eq!(fs.read(cloned, 0, &mut data).unwrap(), LEN);
    assert_eq!(names(&world::root(&engine, true)), ["a synced", "logged"]);
    drop(fs);
    engine.export(false).unwrap();
    judge(&[disk.image()]).unwrap();
}
