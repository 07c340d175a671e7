//! Freeing what was destroyed: what is below metadata that cannot be read is leaked, counted and said, and all
//! else goes on; metadata is read in batches.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::tunables::FREE_LEAK_ON_EIO;
use cenote_engine::change::{Changes, Kind, NewDataset};
use cenote_engine::create::Redundancy;
use cenote_engine::{Engine, SyncContext};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_pool::brt;
use cenote_torture::live::damage::Damage;
use cenote_torture::live::disk::{Disk, Image};
use cenote_torture::live::lab::{Lab, POOL, Plain, Shape, disks, judge, lab};
use cenote_vdev::{Device, ReadReq, WriteReq};
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHAPE: Shape =
    Shape { redundancy: Redundancy::Single, disks: 1, ashift: 12, size: 128 << 20 };
/// A test that sets `zfs_free_leak_on_eio`, or needs that it is not set, holds this.
static LEAKS: Mutex<()> = Mutex::new(());
/// Bytes of a file with an indirect block, which do not compress.
const SIZE: usize = 1 << 20;

fn open(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let dataset = engine.pool().dsl().find(&format!("{POOL}/{name}")).unwrap().unwrap();
    FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), Settings::default()).unwrap()
}

/// The same, for files with records of 4 KiB.
fn open_small(engine: &Engine, name: &str) -> Arc<FileSystem> {
    let dataset = engine.pool().dsl().find(&format!("{POOL}/{name}")).unwrap().unwrap();
    let settings = Settings { record_size: 4096, ..Settings::default() };
    FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), settings).unwrap()
}

fn create_file(fs: &FileSystem, name: &str, size: usize) -> u64 {
    let (kind, mode, umask) = (NodeKind::File, 0o644, 0);
    let new = NewNode { kind, mode, umask, uid: 0, gid: 0, keep_setgid: true };
    let ino = fs.create(fs.root(), name.as_bytes(), &new).unwrap().ino;
    let mut state = 1u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    });
    let data: Vec<u8> = noise.take(size).collect();
    fs.write(ino, 0, &data, false).unwrap();
    ino
}

/// The indirect blocks of a file.
fn indirect(engine: &Engine, name: &str, ino: u64) -> Vec<BlockPointer> {
    let pool = engine.pool();
    let dataset = pool.dsl().find(&format!("{POOL}/{name}")).unwrap().unwrap();
    let set = pool.dsl().open_objset(&dataset).unwrap();
    let mut found = Vec::new();
    let mut add = |level: i64, _: u64, bp: &BlockPointer| {
        found.extend((level > 0).then_some(*bp));
        Ok(())
    };
    set.object(ino).unwrap().walk(&mut add).unwrap();
    found
}

fn property(engine: &Engine, name: &str) -> u64 {
    engine.pool().get(name).unwrap().exact.parse().unwrap()
}

/// A pool with two file systems, in one of which a file's indirect block cannot be read.
fn damaged() -> (Arc<Disk>, Lab, Damage) {
    let disk = disks(&[Image::new(SHAPE.size)], None).remove(0);
    let lab = lab(std::slice::from_ref(&disk));
    let engine = lab.create(&SHAPE).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    for name in ["bad", "good"] {
        let name = format!("{POOL}/{name}");
        changes.create(&NewDataset { name, kind: Kind::Filesystem, props: Vec::new() }).unwrap();
    }
    let fs = open(&engine, "bad");
    let ino = create_file(&fs, "file", SIZE);
    create_file(&fs, "other", SIZE);
    engine.sync().unwrap();
    let blocks = indirect(&engine, "bad", ino);
    assert_eq!(blocks.len(), 1);
    drop((fs, changes));
    engine.export(false).unwrap();
    let mut damage = Damage::default();
    damage.add(&disk, &blocks[0]);
    (disk, lab, damage)
}

/// A disk that counts batches of reads.
struct Counted {
    disk: Arc<Disk>,
    batches: AtomicU64,
}

impl Device for Counted {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn path(&self) -> &Path {
        self.disk.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.disk.read_batch(reqs);
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        self.disk.write_batch(reqs);
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
}

#[test]
fn what_was_destroyed_is_read_in_batches() {
    const FILES: u64 = 300;
    let disk = disks(&[Image::new(SHAPE.size)], None).remove(0);
    let counted = Arc::new(Counted { disk: disk.clone(), batches: AtomicU64::new(0) });
    let lab = Lab::new(vec![counted.clone()]);
    let engine = lab.create(&SHAPE).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    let full = format!("{POOL}/many");
    let props = vec![("recordsize".into(), "4K".into())];
    changes.create(&NewDataset { name: full.clone(), kind: Kind::Filesystem, props }).unwrap();
    let dataset = engine.pool().dsl().find(&full).unwrap().unwrap();
    let settings = Settings { record_size: 4096, ..Settings::default() };
    let fs = FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), settings).unwrap();
    for i in 0..FILES {
        create_file(&fs, &format!("f{i}"), 20_000);
    }
    drop((fs, changes));
    engine.export(false).unwrap();
    drop(engine);

    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    let before = counted.batches.load(Ordering::Relaxed);
    changes.destroy(&full).unwrap();
    for _ in 0..1000 {
        if property(&engine, "freeing") == 0 {
            break;
        }
        engine.sync().unwrap();
    }
    assert_eq!(property(&engine, "freeing"), 0);
    // Each file has an indirect block of its own.
    let batches = counted.batches.load(Ordering::Relaxed) - before;
    assert!(batches < FILES / 3, "{batches} batches");
    engine.export(false).unwrap();
    judge(&[disk.image()]).unwrap();
}

/// What zdb finds once the damage is gone: space that is leaked, and nothing else.
fn only_leaks(disk: &Disk, damage: Damage) {
    damage.mend(disk);
    let said = judge(&[disk.image()]).unwrap_err();
    assert!(said.contains("leaked space"), "{said}");
    assert!(!said.contains("double alloc") && !said.contains("rror counts"), "{said}");
}

#[test]
fn a_file_with_a_damaged_indirect_block_is_removed_and_what_is_below_it_leaked() {
    let (disk, lab, damage) = damaged();
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let fs = open(&engine, "bad");
    fs.unlink(fs.root(), b"file", &|_| false).unwrap();
    engine.sync().unwrap();
    create_file(&open(&engine, "good"), "more", SIZE);
    engine.sync().unwrap();
    assert_eq!(engine.suspended(), None);
    let leaked = property(&engine, "leaked");
    assert!((SIZE as u64..SIZE as u64 + (64 << 10)).contains(&leaked), "{leaked}");
    assert!(!engine.pool().store().errors().is_empty(), "the damage is listed");
    drop(fs);
    engine.export(false).unwrap();
    only_leaks(&disk, damage);
}

#[test]
fn a_destroyed_dataset_waits_or_is_leaked_as_the_tunable_says() {
    let _leaks = LEAKS.lock();
    let (disk, lab, damage) = damaged();
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    changes.destroy(&format!("{POOL}/bad")).unwrap();
    (0..4).for_each(|_| engine.sync().unwrap());
    let waiting = property(&engine, "freeing");
    assert!(waiting >= SIZE as u64, "{waiting}");
    assert_eq!(property(&engine, "leaked"), 0);
    FREE_LEAK_ON_EIO.set(1).unwrap();
    for _ in 0..4 {
        create_file(&open(&engine, "good"), "more", SIZE);
        let fs = open(&engine, "good");
        fs.unlink(fs.root(), b"more", &|_| false).unwrap();
        engine.sync().unwrap();
    }
    assert_eq!(property(&engine, "freeing"), 0);
    let leaked = property(&engine, "leaked");
    assert!((SIZE as u64..SIZE as u64 + (64 << 10)).contains(&leaked), "{leaked}");
    FREE_LEAK_ON_EIO.set(0).unwrap();
    assert_eq!(engine.suspended(), None);
    engine.export(false).unwrap();
    only_leaks(&disk, damage);
}

/// A pool with files of two file systems that share their blocks, and one that shares none.
fn with_clones() -> (Arc<Disk>, Lab, Arc<Engine>) {
    let disk = disks(&[Image::new(SHAPE.size)], None).remove(0);
    let lab = lab(std::slice::from_ref(&disk));
    let engine = lab.create(&SHAPE).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    for name in ["one", "two"] {
        let name = format!("{POOL}/{name}");
        changes.create(&NewDataset { name, kind: Kind::Filesystem, props: Vec::new() }).unwrap();
    }
    let (one, two) = (open(&engine, "one"), open(&engine, "two"));
    let file = create_file(&one, "file", SIZE);
    create_file(&one, "other", SIZE);
    let copy = create_file(&two, "copy", 0);
    assert_eq!(two.copy_range_from(&one, (file, 0), (copy, 0), SIZE as u64).unwrap(), SIZE as u64);
    engine.sync().unwrap();
    drop((one, two, changes));
    (disk, lab, engine)
}

/// The same. Nothing can be read of an object of the block reference table: the one with entries, or the one with counts.
fn damaged_references(entries: bool) -> (Arc<Disk>, Lab, u64) {
    let (disk, lab, engine) = with_clones();
    let (pool, mut blocks) = (engine.pool(), Vec::new());
    let table = brt::load(pool.mos(), 1).unwrap()[0];
    assert_eq!(table.count, 8);
    let object = if entries { table.entries } else { table.object };
    let mut add = |_: i64, _: u64, bp: &BlockPointer| {
        blocks.push(*bp);
        Ok(())
    };
    pool.mos().object(object).unwrap().walk(&mut add).unwrap();
    drop(pool);
    engine.export(false).unwrap();
    let mut damage = Damage::default();
    blocks.iter().for_each(|bp| damage.add(&disk, bp));
    (disk, lab, object)
}

/// What a file holds.
fn contents(fs: &FileSystem, name: &str) -> Vec<u8> {
    let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap();
    let mut data = vec![0; fs.attr(ino).unwrap().size as usize];
    fs.read(ino, 0, &mut data).unwrap();
    data
}

#[test]
fn a_damaged_block_reference_table_fails_clones_and_leaks_what_may_be_cloned() {
    for entries in [false, true] {
        let (_disk, lab, object) = damaged_references(entries);
        let engine = lab.import(&lab.find().unwrap()).unwrap();
        let (one, two) = (open(&engine, "one"), open(&engine, "two"));
        let data = contents(&one, "other");
        let other = one.lookup(one.root(), b"other").unwrap();
        let new = create_file(&two, "new", 0);
        let refused = two.copy_range_from(&one, (other, 0), (new, 0), SIZE as u64).unwrap_err();
        let said = refused.to_string();
        assert!(refused.errno() == 5 && said.contains(&format!("object {object} ")), "{said}");
        assert!(contents(&two, "new").is_empty());
        engine.sync().unwrap();
        // Data is still copied.
        assert_eq!(
            two.copy_data_from(&one.open_file(other).unwrap(), 0, (new, 0), SIZE as u64).unwrap(),
            SIZE as u64
        );
        engine.sync().unwrap();
        assert_eq!((engine.suspended(), property(&engine, "leaked")), (None, 0));

        two.unlink(two.root(), b"copy", &|_| false).unwrap();
        engine.sync().unwrap();
        let leaked = property(&engine, "leaked");
        assert!((SIZE as u64..SIZE as u64 + (64 << 10)).contains(&leaked), "{leaked}");
        assert!(contents(&one, "file") == data && contents(&two, "new") == data);
        assert_eq!(engine.suspended(), None);
        drop((one, two));
        engine.export(false).unwrap();
        // What is left can be read.
        let engine = lab.import(&lab.find().unwrap()).unwrap();
        assert!(contents(&open(&engine, "one"), "file") == data);
        engine.export(false).unwrap();
    }
}

/// What is only shown costs nothing where it is wrong on disk, and a wrong number of entries only what has entries.
#[test]
fn wrong_sums_of_a_block_reference_table_leak_no_more_than_its_blocks() {
    let (count, shown) = (3, [5, 6]);
    for word in shown.into_iter().chain([count]) {
        let (disk, lab, engine) = with_clones();
        let table = brt::load(engine.pool().mos(), 1).unwrap()[0];
        let brt::Table { object, entries, ranges, count: n, range_size, used, saved, .. } = table;
        let mut words = [entries, ranges, 0, n, range_size, used, saved];
        words[word] = 0;
        let bonus: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let set = move |context: &mut SyncContext<'_>| {
            Ok(context.tx.mos.set_bonus(object, DmuType(0xc3), &bonus)?)
        };
        engine.sync_task(set).unwrap();
        let (one, two) = (open(&engine, "one"), open(&engine, "two"));
        let data = contents(&one, "file");
        two.unlink(two.root(), b"copy", &|_| false).unwrap();
        one.unlink(one.root(), b"other", &|_| false).unwrap();
        engine.sync().unwrap();
        let (leaked, size) = (property(&engine, "leaked"), SIZE as u64);
        let most = if word == count { size..size + (64 << 10) } else { 0..1 };
        assert!(most.contains(&leaked), "word {word}: {leaked}");
        assert!(contents(&one, "file") == data);
        assert_eq!(engine.suspended(), None);
        drop((one, two));
        engine.export(false).unwrap();
        if word != count {
            judge(&[disk.image()]).unwrap();
        }
        let engine = lab.import(&lab.find().unwrap()).unwrap();
        assert!(contents(&open(&engine, "one"), "file") == data);
        engine.export(false).unwrap();
    }
}

/// A destroy that paused in the middle of a file reads the file's indirect block again. Where it cannot, it goes on
/// from where it paused once it can.
#[test]
fn what_a_paused_destroy_has_freed_is_not_freed_again() {
    let _leaks = LEAKS.lock();
    let disk = disks(&[Image::new(SHAPE.size)], None).remove(0);
    let lab = lab(std::slice::from_ref(&disk));
    let engine = lab.create(&SHAPE).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    for name in ["bad", "good"] {
        let (name, props) = (format!("{POOL}/{name}"), vec![("recordsize".into(), "4K".into())]);
        changes.create(&NewDataset { name, kind: Kind::Filesystem, props }).unwrap();
    }
    // More than some groups free.
    let ino = create_file(&open_small(&engine, "bad"), "file", 4 * SIZE);
    engine.sync().unwrap();
    let blocks = indirect(&engine, "bad", ino);
    let free = || property(&engine, "freeing");
    changes.destroy(&format!("{POOL}/bad")).unwrap();
    // What is free already has other owners meanwhile.
    let fs = open_small(&engine, "good");
    let half = SIZE / 2;
    // Groups follow one another while there is something to free: the one that damages goes on with the file.
    let (damaged, destroying) = (disk.clone(), engine.clone());
    let damage = move |_: &mut SyncContext<'_>| {
        let left = property(&destroying, "freeing");
        if left >= 4 * SIZE as u64 {
            return Ok(None);
        }
        let mut damage = Damage::default();
        blocks.iter().for_each(|bp| damage.add(&damaged, bp));
        destroying.pool().store().drop_caches();
        Ok(Some((damage, left)))
    };
    let mut groups = std::iter::repeat_with(|| engine.sync_task(damage.clone()).unwrap());
    let (damage, left) = groups.find_map(|damage| damage).unwrap();
    assert!(left > 0);
    for i in 0..4 {
        create_file(&fs, &format!("f{i}"), half);
        engine.sync().unwrap();
        assert_eq!(free(), left, "nothing can be freed");
    }
    damage.mend(&disk);
    engine.pool().store().drop_caches();
    for i in 0..100 {
        // A group without changes frees nothing where nothing could be freed before.
        create_file(&fs, &format!("g{i}"), 1);
        engine.sync().unwrap();
        if free() == 0 {
            break;
        }
    }
    assert_eq!(free(), 0);
    assert!((0..4).all(|i| contents(&fs, &format!("f{i}")).len() == half));
    drop((fs, changes));
    engine.export(false).unwrap();
    judge(&[disk.image()]).unwrap();
}
