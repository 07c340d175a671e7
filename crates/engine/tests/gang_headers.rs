//! Headers of gang blocks that fill the smallest allocation: when the feature becomes active, how many pointers they hold, and
//! that they are freed whole. A `zdb` of OpenZFS 2.4 judges the pools where there is one (`CENOTE_NEWER_ZDB`), as 2.1 does not
//! know the feature; the engine's own traversal accounts for every block always.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::Engine;
use cenote_engine::tunables::{self, Tunable};

use cenote_format::blkptr::BlockPointer;
use cenote_inspect::traverse::{self, Event, Options, Subject, Verify};
use cenote_pool::metaslab::PoolSpace;
use parking_lot::Mutex;
use rig::{NODE, Rig, account, bytes, open};
use std::collections::BTreeMap;
use std::sync::Arc;

const FEATURE: &str = "com.klarasystems:dynamic_gang_header";
const LEN: usize = 128 << 10;

/// How many non-hole pointers each gang block of files has in its header, by object.
fn pointers(engine: &Engine) -> BTreeMap<u64, Vec<usize>> {
    let pool = engine.pool();
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::Nothing, leaks: false, workers: 1 };
    let found = Mutex::new(BTreeMap::<u64, Vec<usize>>::new());
    let see = |event: Event<'_>| {
        let Event::Block(block) = event else { return };
        let (bp, at) = (&block.bp, block.at);
        if at.objset == 0 || at.level != 0 || !bp.is_gang() || bp.object_type() != 19 {
            return;
        }
        let children = pool.store().gang_children(bp, at).unwrap();
        let some = children.iter().filter(|child| !BlockPointer::is_hole(child)).count();
        found.lock().entry(at.object).or_default().push(some);
    };
    traverse::run(&subject, &space, &options, &see, &|| false).unwrap();
    found.into_inner()
}

/// Makes a file of one block; its number.
fn write(engine: &Arc<Engine>, file: u64) -> u64 {
    let fs = open(engine);
    let node = fs.create(fs.root(), format!("f{file}").as_bytes(), &NODE).unwrap();
    fs.write(node.ino, 0, &bytes(file, LEN), false).unwrap();
    drop(fs);
    engine.sync().unwrap();
    node.ino
}

/// Parts that a block of [`LEN`] bytes is divided into, each as large as its share.
fn parts(most: usize, ashift: u32) -> usize {
    let (mut left, mut parts) = (LEN, 0);
    while left > 0 {
        left -= left.div_ceil(most - parts).next_multiple_of(1 << ashift).min(left);
        parts += 1;
    }
    parts
}

fn uses(engine: &Engine) -> Option<u64> {
    engine.pool().features().get(FEATURE).map(|feature| feature.uses)
}

fn judged(rig: &Rig) {
    cenote_testpools::try_judge_newer(rig.path(), "tank").unwrap();
}

#[test]
fn headers_grow_once_three_pointers_are_too_few() {
    // Of the whole process: this file has one test.
    let force = tunables::find("metaslab_force_ganging").unwrap();
    tunables::find("metaslab_force_ganging_pct").unwrap().set(100).unwrap();
    for (layout, ashift, most) in [
        ("a", 12, 31),
        ("mirror a b", 12, 31),
        ("raidz1 a b c", 12, 31),
        ("raidz2 a b c d", 13, 63),
        ("draid1:2d:4c:1s a b c d", 12, 63),
        ("draid1:2d:4c:1s a b c d", 9, 7),
    ] {
        let rig = Rig::new(256 << 20);
        let engine = rig.create(layout, ashift);
        assert_eq!(uses(&engine), Some(0), "{layout}");
        force.set(64 << 10).unwrap();
        let first = write(&engine, 1);
        assert_eq!(uses(&engine), Some(0), "{layout}: three parts are enough");
        // A third of such a block is still too large.
        force.set(16 << 10).unwrap();
        let second = write(&engine, 2);
        assert_eq!(uses(&engine), Some(1), "{layout}");
        let third = write(&engine, 3);
        let counts = pointers(&engine);
        assert_eq!((counts[&first][0], counts[&second][0]), (3, 3), "{layout}");
        let parts = parts(most, ashift as u32);
        assert_eq!(counts[&third][0], parts, "{layout}: {counts:?}");
        engine.export(false).unwrap();
        drop(engine);
        judged(&rig);

        let engine = rig.import();
        account(&engine.pool());
        let fourth = write(&engine, 4);
        assert_eq!(pointers(&engine)[&fourth][0], parts, "{layout}: at once after an import");
        let fs = open(&engine);
        for (file, ino) in [(1, first), (2, second), (3, third), (4, fourth)] {
            let mut data = vec![0; LEN];
            assert_eq!(fs.read(ino, 0, &mut data).unwrap(), LEN);
            assert!(data == bytes(file, LEN), "f{file} on {layout}");
        }
        for file in 1..4 {
            fs.unlink(fs.root(), format!("f{file}").as_bytes(), &|_| false).unwrap();
        }
        drop(fs);
        engine.sync().unwrap();
        engine.scrub().unwrap();
        while engine.pool().status().unwrap().scan.unwrap().is_running() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(engine.pool().status().unwrap().scan.unwrap().errors, 0);
        account(&engine.pool());
        assert_eq!(uses(&engine), Some(1), "{layout}: for good");
        engine.export(false).unwrap();
        drop(engine);
        judged(&rig);
    }
    sectors_of_512_bytes_and_pools_without_the_feature(force);
}

/// Nothing becomes active where no header would be larger, or the feature is not enabled.
fn sectors_of_512_bytes_and_pools_without_the_feature(force: &Tunable) {
    force.set(16 << 10).unwrap();
    let rig = Rig::new(256 << 20);
    let engine = rig.create("a", 9);
    let file = write(&engine, 1);
    assert_eq!((uses(&engine), pointers(&engine)[&file][0]), (Some(0), 3));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();

    let rig = Rig::new(256 << 20);
    let engine = rig.create_choosing("a", 12, &[("dynamic_gang_header".into(), false)]);
    write(&engine, 1);
    let file = write(&engine, 2);
    assert_eq!((uses(&engine), pointers(&engine)[&file][0]), (None, 3));
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
