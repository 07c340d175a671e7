//! Devices grow, and the vdevs of a pool in use with them; OpenZFS's `zdb` judges the result, and its engine goes on with
//! it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::Engine;
use cenote_pool::{Pool, config, discover, expandable, props::PropChange};
use rig::{Rig, account, check, fill, open};
use std::fs::File;
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;

fn resize(rig: &Rig, names: &str, size: u64) {
    for name in names.split(' ') {
        File::options().write(true).open(rig.file(name)).unwrap().set_len(size).unwrap();
    }
}

fn size(pool: &Pool) -> u64 {
    pool.space().unwrap().pool().size
}

/// Bytes that are allocated behind the first ones of a vdev.
fn used_behind(engine: &Engine, vdev: u64, first: u64) -> u64 {
    let pool = engine.pool();
    let v = pool.space().unwrap().vdev_space(vdev).unwrap();
    v.metaslabs.iter().filter(|ms| ms.start >= first).map(|ms| v.alloc_of(ms)).sum()
}

fn expand(engine: &Engine, top: u64) -> bool {
    engine.expand(&[top]).unwrap()
}

/// The pool after an export and an import; `zdb` and our own accounting find nothing wrong.
fn again(rig: &Rig, engine: std::sync::Arc<Engine>, files: u64) -> std::sync::Arc<Engine> {
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    let engine = rig.import();
    account(&engine.pool());
    check(&open(&engine), 0..files, 700_000);
    engine
}

#[test]
fn vdevs_grow_while_they_are_in_use() {
    let rig = Rig::new(64 * MIB);
    let engine = rig.create("a mirror b c", 12);
    let fs = open(&engine);
    fill(&fs, 0..20, 700_000);
    let before = size(&engine.pool());
    assert!(!expand(&engine, 0) && !expand(&engine, 7), "nothing has grown");
    resize(&rig, "a", 160 * MIB);
    // One side of a mirror is not enough.
    resize(&rig, "b", 300 * MIB);
    assert!(expand(&engine, 0) && !expand(&engine, 0) && !expand(&engine, 1));
    let one = size(&engine.pool());
    assert!(one > before + 80 * MIB, "{before} {one}");
    fill(&fs, 20..40, 700_000);
    resize(&rig, "c", 128 * MIB);
    assert!(engine.expand(&[1, 0]).unwrap());
    let all = size(&engine.pool());
    assert!(all >= one + 48 * MIB, "{one} {all}");
    // More than there was room for.
    fill(&fs, 40..180, 700_000);
    engine.sync().unwrap();
    assert!((0..2).any(|vdev| used_behind(&engine, vdev, 64 * MIB) > 0));
    drop(fs);
    let engine = again(&rig, engine, 180);
    assert_eq!(size(&engine.pool()), all);
    // The metaslab array had no room for as many as these.
    resize(&rig, "a", 5000 * MIB);
    assert!(expand(&engine, 0));
    assert!(size(&engine.pool()) > all + 4500 * MIB);
    assert_eq!(expandable(engine.pool().store().vdevs().top(0).unwrap()), 0);
    fill(&open(&engine), 180..190, 700_000);
    engine.export(false).unwrap();
    let theirs = "import\ndataset tank/theirs\nwrite tank/theirs 10 131072 10000000 7\nexport\n";
    cenote_testpools::openzfs(rig.path(), "tank", theirs);
    rig.judge();
}

#[test]
fn a_pool_grows_by_itself_if_it_is_told_to() {
    let rig = Rig::new(64 * MIB);
    let engine = rig.create("raidz a b c", 12);
    fill(&open(&engine), 0..10, 700_000);
    engine.export(false).unwrap();
    drop(engine);
    resize(&rig, "a b c", 128 * MIB);
    let engine = rig.import();
    let small = size(&engine.pool());
    let room = expandable(engine.pool().store().vdevs().top(0).unwrap());
    assert!(room >= 3 * 60 * MIB && !engine.expand_if_wanted().unwrap());
    engine.set_properties(vec![PropChange::Number("autoexpand", 1)]).unwrap();
    assert!(engine.expand_if_wanted().unwrap());
    assert_eq!(size(&engine.pool()), small + room);
    engine.export(false).unwrap();
    drop(engine);
    resize(&rig, "a b c", 192 * MIB);
    let engine = rig.import();
    assert!(size(&engine.pool()) >= small + room + 3 * 60 * MIB);
    again(&rig, engine, 10).export(false).unwrap();
}

/// A crash before the group that grows a vdev leaves the pool as it was, one after it leaves the pool grown; in between,
/// labels at either end of the device may be missing.
#[test]
fn a_crash_leaves_the_pool_as_it_was_or_grown() {
    let rig = Rig::new(64 * MIB);
    let engine = rig.create("a", 12);
    fill(&open(&engine), 0..10, 700_000);
    engine.sync().unwrap();
    resize(&rig, "a", 160 * MIB);
    let small = size(&engine.pool());
    let crashed = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(rig.file("a")).unwrap();
        change(&mut bytes);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), bytes).unwrap();
        cenote_testpools::judge(dir.path(), "tank");
        let options = cenote_pool::ImportOptions { force: true, ..Default::default() };
        let found = discover(&[dir.path().to_path_buf()]);
        let engine = Engine::import(&found[0], &options, Default::default());
        let engine = engine.unwrap_or_else(|e| panic!("{name}: {e}"));
        account(&engine.pool());
        check(&open(&engine), 0..10, 700_000);
        let size = size(&engine.pool());
        engine.export(false).unwrap();
        drop(engine);
        cenote_testpools::judge(dir.path(), "tank");
        size
    };
    const LABEL: usize = 256 << 10;
    let end = 160 << 20;
    let before = std::fs::read(rig.file("a")).unwrap();
    assert_eq!(crashed("before", &|_| ()), small);
    assert!(expand(&engine, 0));
    let grown = size(&engine.pool());
    assert_eq!(crashed("after", &|_| ()), grown);
    // Labels that the group writes first, and nothing that it writes later.
    let even = |bytes: &mut Vec<u8>| {
        let config = 16 << 10..128 << 10;
        let first = bytes[config.clone()].to_vec();
        let third = bytes[end - 2 * LABEL..end - LABEL].to_vec();
        bytes[..LABEL].copy_from_slice(&before[..LABEL]);
        bytes[config].copy_from_slice(&first);
        bytes[LABEL..2 * LABEL].copy_from_slice(&before[LABEL..2 * LABEL]);
        bytes[end - 2 * LABEL..].copy_from_slice(&before[end - 2 * LABEL..]);
        bytes[end - 2 * LABEL + (16 << 10)..end - 2 * LABEL + (128 << 10)]
            .copy_from_slice(&third[16 << 10..128 << 10]);
    };
    assert_eq!(crashed("even labels", &even), small);
    // All but those at the new end.
    assert_eq!(crashed("first labels", &|bytes| bytes[end - 2 * LABEL..].fill(0)), grown);
    assert_eq!(crashed("last labels", &|bytes| bytes[..2 * LABEL].fill(0)), grown);
    engine.export(false).unwrap();
}

/// Metadata that cannot be read, as it is first read when all else is changed: nothing grows, and nothing goes to space that the config
/// on disk does not have.
#[test]
fn a_vdev_whose_array_cannot_be_read_does_not_grow() {
    let rig = Rig::new(64 * MIB);
    // A dnode leads to all blocks of the array for so few metaslabs, and then not any more.
    let engine = rig.create_cut("a", 12, 20);
    resize(&rig, "a", 300 * MIB);
    assert!(expand(&engine, 0));
    fill(&open(&engine), 0..110, 700_000);
    // Logs of space are flushed.
    let engine = again(&rig, engine, 110);
    let (leads, before) = {
        let pool = engine.pool();
        let tops = pool.config().list("vdev_tree").map(config::children).unwrap();
        let array = pool.mos().object(config::number(&tops[0], "metaslab_array")).unwrap();
        (array.block_pointer(1, 0).unwrap(), size(&pool))
    };
    let file = File::options().read(true).write(true).open(rig.file("a")).unwrap();
    let places: Vec<u64> = leads.dvas().map(|dva| 4 * MIB + dva.offset).collect();
    assert!(!places.is_empty(), "{leads:?}");
    let mut good = vec![vec![0; 4096]; places.len()];
    for (place, good) in places.iter().zip(&mut good) {
        file.read_exact_at(good, *place).unwrap();
        file.write_all_at(&[0x5a; 4096], *place).unwrap();
    }
    engine.pool().store().drop_caches();
    resize(&rig, "a", 5000 * MIB);
    let metaslabs = || engine.allocator().group(0).unwrap().metaslabs().len();
    let count = metaslabs();
    let refused = engine.expand(&[0]);
    assert!(refused.is_err(), "{refused:?}");
    for (place, good) in places.iter().zip(&good) {
        file.write_all_at(good, *place).unwrap();
    }
    fill(&open(&engine), 110..120, 700_000);
    engine.sync().unwrap();
    assert_eq!((metaslabs(), size(&engine.pool())), (count, before));
    // It does when that can be read again.
    assert!(expand(&engine, 0) && metaslabs() > count);
    let engine = again(&rig, engine, 120);
    assert!(size(&engine.pool()) > before + 4500 * MIB);
    engine.export(false).unwrap();
}
