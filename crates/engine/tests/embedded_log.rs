//! The metaslab of a vdev with many that is kept for intent logs: what goes there and what does not, and the space that is
//! left to others. OpenZFS's `zdb` and engine judge the pools. Where they are not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dsl::zil::{self, Item};
use cenote_engine::Engine;
use cenote_pool::metaslab::AllocClass;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_store::alloc::Class;
use cenote_zpl::FileSystem;
use rig::{NODE, Rig, bytes};
use std::sync::Arc;

const SIZE: u64 = 96 << 20;
/// log2 of the bytes of a metaslab: some 180 of them.
const SHIFT: u32 = 19;

/// Writes to a file and waits until that is safe.
fn write(engine: &Engine, fs: &FileSystem, ino: u64, seed: u64, len: usize) {
    fs.write(ino, seed * 512, &bytes(seed, len), false).unwrap();
    engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
}

fn file(fs: &FileSystem, name: &str) -> u64 {
    fs.create(fs.root(), name.as_bytes(), &NODE).unwrap().ino
}

/// Offsets of the blocks of the root file system's log.
fn log_blocks(pool: &Pool) -> Vec<u64> {
    let root = pool.dsl().root().unwrap();
    let header = pool.dsl().open_objset(&root).unwrap().phys().zil;
    let mut found = Vec::new();
    zil::walk(pool.store(), &header, &mut |item| {
        if let Item::Block(bp) = item {
            found.extend(bp.dvas().map(|dva| dva.offset));
        }
        true
    });
    found
}

/// The metaslab of the only vdev that is kept.
fn kept(engine: &Engine) -> u64 {
    engine.allocator().embedded_logs()[&0].unwrap()
}

/// What is allocated in the metaslab that is kept, and in the others.
fn allocated(engine: &Engine) -> (u64, u64) {
    let of = |class| {
        let figures = engine.allocator().figures(class);
        figures.allocated - figures.deferred
    };
    (of(Class::EmbeddedLog), of(Class::Normal))
}

#[test]
fn log_blocks_are_in_the_metaslab_that_is_kept() {
    let rig = Rig::new(SIZE);
    let engine = rig.create_cut("a", 12, SHIFT);
    let fs = rig::open(&engine);
    let ino = file(&fs, "synchronous");
    rig::fill(&fs, 0..40, 1 << 20);
    engine.sync().unwrap();
    assert_eq!(allocated(&engine).0, 0, "no log, no block");
    assert!(allocated(&engine).1 > 40 << 20);
    // The first one waits for its group, which starts the log.
    write(&engine, &fs, ino, 0, 3000);
    let before = engine.pool().uberblock().txg;
    (1..30).for_each(|n| write(&engine, &fs, ino, n, 3000));
    assert_eq!(engine.pool().uberblock().txg, before, "nobody waited for a group");
    let blocks = log_blocks(&engine.pool());
    assert!(blocks.len() > 20, "{}", blocks.len());
    assert!(blocks.iter().all(|at| at >> SHIFT == kept(&engine)), "{blocks:?}");
    // The map shows which one it is, and OpenZFS's `zdb` finds all of it in a copy.
    let copy = Rig::new(SIZE);
    std::fs::copy(rig.file("a"), copy.file("a")).unwrap();
    copy.judge_blocks();
    let space = engine.pool().space().unwrap().clone();
    let marked: Vec<u64> =
        space.vdevs[0].metaslabs.iter().filter(|ms| ms.embedded_log).map(|ms| ms.id).collect();
    assert_eq!(marked, [kept(&engine)]);
    // Once the groups are on disk nothing is left of the log.
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    let engine = rig.import();
    assert_eq!(allocated(&engine).0, 0);
    engine.export(false).unwrap();
}

/// A pool that is as full as can be takes synchronous writes, and removals, for ever.
#[test]
fn a_full_pool_goes_on() {
    let rig = Rig::new(SIZE);
    let engine = rig.create_cut("a", 12, SHIFT);
    let fs = rig::open(&engine);
    let ino = file(&fs, "synchronous");
    write(&engine, &fs, ino, 0, 4096);
    for round in 0..6u64 {
        for n in 0.. {
            let Ok(file) = fs.create(fs.root(), format!("{round} {n}").as_bytes(), &NODE) else {
                break;
            };
            let written = fs.write(file.ino, 0, &bytes(n, 1 << 18), false);
            let committed = engine.commit_objects(fs.objset().id(), &[file.ino]);
            committed.unwrap();
            if written.is_err() {
                break;
            }
        }
        assert_eq!(engine.suspended(), None, "round {round}");
        assert!(allocated(&engine).0 <= 1 << SHIFT);
        for n in (0..).step_by(3) {
            let name = format!("{round} {n}");
            if fs.unlink(fs.root(), name.as_bytes(), &|_| false).is_err() {
                break;
            }
            engine.commit_objects(fs.objset().id(), &[ino]).unwrap();
        }
    }
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    rig::account(&reading(&rig));
}

fn reading(rig: &Rig) -> Arc<Pool> {
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    Pool::import(&discover(&[rig.path().to_path_buf()])[0], &options).unwrap()
}

/// Size of the pool, and what datasets can have of it.
fn space(pool: &Pool) -> (u64, u64) {
    (pool.space().unwrap().pool().size, pool.dsl().usable_space().unwrap().unwrap())
}

/// Size and space of a pool that is written to are those of the same pool when it is read, and those that OpenZFS's engine
/// has of it, which keeps a metaslab of its own choice; with vdevs that are small, of several disks, and
/// with ones that join and grow.
#[test]
fn space_is_what_openzfs_has() {
    for (layout, size) in
        [("a", 20 << 30), ("a", 40 << 30), ("raidz1 a b c", 24 << 30), ("a b", 40 << 30)]
    {
        let rig = Rig::new(size);
        let engine = rig.create(layout, 12);
        let keeps = engine.allocator().figures(Class::EmbeddedLog).space;
        assert_eq!(keeps > 0, size != 20 << 30);
        (0..4).for_each(|_| engine.sync_task(|_| Ok(())).unwrap());
        let (writing, of_log) = (space(&engine.pool()), {
            let space = engine.pool().space().unwrap().class(AllocClass::EmbeddedLog);
            space.size
        });
        assert_eq!(of_log, keeps, "{layout}");
        engine.export(false).unwrap();
        drop(engine);
        assert_eq!(space(&reading(&rig)), writing, "{layout}");
        let script = format!("import\nspace {} {} {}\nexport\n", writing.0, writing.1, 128 << 10);
        cenote_testpools::openzfs(rig.path(), "tank", &script);
        let engine = rig.import();
        assert_eq!(engine.allocator().figures(Class::EmbeddedLog).space, keeps);
        engine.export(false).unwrap();
        drop(engine);
        rig.judge_blocks();
    }
}
