//! Vdevs of every class, spares and cache devices join a pool that is written to, and OpenZFS's
//! `zdb` judges the result. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dmu::outside::Chance;
use cenote_engine::create::{CreateError, CreateSpec, FIRST_TXG, SystemDevices, parse, prepare};
use cenote_engine::{Engine, EngineError};
use rig::{Rig, check, fill, open};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// `zpool add tank LINE`; single letters are files.
fn add(rig: &Rig, engine: &Engine, line: &str) -> Result<(), EngineError> {
    engine.add(prepared(rig, engine, line).unwrap())
}

fn prepared(
    rig: &Rig,
    engine: &Engine,
    line: &str,
) -> Result<cenote_engine::create::Prepared, CreateError> {
    let args: Vec<String> = line.split_whitespace().map(|w| rig.word(w)).collect();
    let pool = engine.pool();
    prepare(&CreateSpec {
        name: "tank",
        layout: &parse(&args).unwrap(),
        ashift: 0,
        force: true.into(),
        pool: Some(pool.config()),
        txg: FIRST_TXG,
        imported: &[],
        devices: &SystemDevices,
        chance: &Chance::default(),
    })
}

fn allocated(engine: &Engine) -> Vec<u64> {
    let pool = engine.pool();
    let space = pool.space().unwrap();
    let of = |v: &cenote_pool::metaslab::VdevSpace| {
        v.metaslabs.iter().map(|ms| v.alloc_of(ms)).sum::<u64>()
    };
    space.vdevs.iter().map(of).collect()
}

#[test]
fn vdevs_of_every_class_join_a_pool_in_use() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 9);
    let fs = open(&engine);
    let mut files = 0;
    fill(&fs, files..files + 8, 700_000);
    files += 8;
    // What is written while vdevs join goes to the ones that are there.
    let lines = ["b", "mirror c d", "log e", "special mirror f g", "raidz2 h i j k", "dedup l"];
    for line in lines {
        fill(&fs, files..files + 4, 700_000);
        files += 4;
        add(&rig, &engine, line).unwrap();
        fill(&fs, files..files + 4, 700_000);
        files += 4;
    }
    add(&rig, &engine, "spare m n cache o").unwrap();
    add(&rig, &engine, "spare p").unwrap();
    fill(&fs, files..files + 4, 700_000);
    files += 4;
    engine.sync().unwrap();
    check(&fs, 0..files, 700_000);
    let used = allocated(&engine);
    // All but the log and the vdev for deduplication tables.
    for id in [0, 1, 2, 4, 5] {
        assert!(used[id] > 0, "vdev {id}: {used:?}");
    }
    let pool = engine.pool();
    assert_eq!((pool.spares().len(), pool.caches().len()), (3, 1));
    drop((fs, pool));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();

    let engine = rig.import();
    let pool = engine.pool();
    let kinds: Vec<_> =
        pool.store().vdevs().root().children().iter().map(|t| t.kind().to_string()).collect();
    assert_eq!(kinds, ["file", "file", "mirror", "file", "mirror", "raidz", "file"]);
    assert_eq!((pool.spares().len(), pool.caches().len()), (3, 1));
    let fs = open(&engine);
    check(&fs, 0..files, 700_000);
    fill(&fs, files..files + 8, 700_000);
    add(&rig, &engine, "q").unwrap();
    fill(&fs, files + 8..files + 16, 700_000);
    drop((fs, pool));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
    let engine = rig.import();
    check(&open(&engine), 0..files + 16, 700_000);
}

/// Blocks of intent logs would go to a device that the next import does not know.
#[test]
fn a_frozen_pool_takes_no_vdevs() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let fs = open(&engine);
    fill(&fs, 0..2, 100_000);
    engine.sync().unwrap();
    let ready = prepared(&rig, &engine, "b").unwrap();
    engine.freeze().unwrap();
    let refused = engine.add(ready).unwrap_err().to_string();
    assert!(refused.contains("the pool is frozen"), "{refused}");
    let device = std::fs::read(rig.file("b")).unwrap();
    assert!(device.iter().all(|byte| *byte == 0), "a device that did not join has a label");
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    let engine = rig.import();
    assert_eq!(engine.pool().store().vdevs().root().children().len(), 1);
    check(&open(&engine), 0..2, 100_000);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge();
}

/// Vdevs join one after another while files are read and written: trees that were replaced are let go.
#[test]
fn trees_that_were_replaced_are_let_go() {
    const FILES: u64 = 12;
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let fs = open(&engine);
    fill(&fs, 0..4, 300_000);
    engine.sync().unwrap();
    let stop = AtomicBool::new(false);
    let old: Vec<_> = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    engine.pool().store().drop_caches();
                    check(&fs, 0..4, 300_000);
                }
            });
        }
        let joins = ["b", "c", "log d", "e", "mirror f g", "h", "i", "special j"];
        let old = (4..).zip(joins).map(|(file, line)| {
            let old = Arc::downgrade(&engine.pool().store().vdevs());
            fill(&fs, file..file + 1, 300_000);
            add(&rig, &engine, line).unwrap();
            old
        });
        let old = old.collect();
        stop.store(true, Ordering::Relaxed);
        old
    });
    // What was read ahead may still be on its way.
    let end = Instant::now() + Duration::from_secs(60);
    while old.iter().any(|tree| tree.strong_count() > 0) {
        assert!(
            Instant::now() < end,
            "{:?}",
            old.iter().map(Weak::strong_count).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(engine.pool().store().vdevs().root().children().len(), 1 + old.len());
    check(&fs, 0..FILES, 300_000);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    check(&open(&rig.import()), 0..FILES, 300_000);
}

#[test]
fn what_was_prepared_for_other_vdevs_is_refused() {
    let rig = Rig::new(64 << 20);
    let engine = rig.create("a", 12);
    let late = prepared(&rig, &engine, "c").unwrap();
    add(&rig, &engine, "b").unwrap();
    assert!(matches!(engine.add(late), Err(EngineError::Dsl(_))));
    assert_eq!(engine.pool().store().vdevs().root().children().len(), 2);
    // And the pool goes on; the refused device can be had after all.
    let fs = open(&engine);
    fill(&fs, 0..4, 500_000);
    add(&rig, &engine, "c").unwrap();
    fill(&fs, 4..8, 500_000);
    drop(fs);
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
    check(&open(&rig.import()), 0..8, 500_000);
}
