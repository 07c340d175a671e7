//! Looking at a pool waits for no device that hangs: what a device says of itself is known from before, or left out,
//! and the blocks come from devices that answer. A look that takes longer than its view is good for blames no device. OpenZFS's `zdb` finds nothing wrong afterwards; where it is not
//! installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions};
use cenote_pool::Pool;
use cenote_pool::vdev_figures::VdevFigures;
use cenote_vdev::patience::impatiently;
use rig::{Faulty, Rig, changes, check, errors, fill, open};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const LEN: usize = 300_000;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// What the commands show of a pool, read from its devices.
fn look(pool: &Pool) {
    pool.store().drop_caches();
    let status = pool.status().unwrap();
    let devices = &status.tree.root.children[0].children;
    assert!(devices.iter().all(|line| !line.gone && line.state == "ONLINE"));
    assert_eq!(pool.expandable(), 0);
    for leaf in pool.store().vdevs().leaves() {
        assert_ne!(VdevFigures::of_vdev(pool, leaf.guid()).unwrap().device, 0);
    }
    assert!(!pool.get_all().is_empty() && !pool.history().unwrap().is_empty());
    let root = pool.dsl().root().unwrap();
    assert!(pool.dsl().open_objset(&root).unwrap().next_object(1).unwrap().is_some());
}

/// Looks at the pool from another thread; whether that ends in time.
fn looked(pool: Arc<Pool>) -> bool {
    let (done, finished) = channel();
    thread::spawn(move || {
        impatiently(|| look(&pool));
        done.send(()).unwrap();
    });
    finished.recv_timeout(LONG).is_ok()
}

/// Files are there, and then the device `b` hangs: first nothing waits for it, then a transaction group does.
fn hanging(line: &str) {
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine: Arc<Engine> = rig.create_on(line, 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..8, LEN);
    engine.sync().unwrap();
    let device = devices.device(&rig, "b");
    device.set_hung(true);
    let quiet = looked(engine.pool());
    let (busy, waits) = thread::scope(|scope| {
        fill(&open(&engine), 8..9, LEN);
        let syncing = scope.spawn(|| engine.sync());
        let end = Instant::now() + LONG;
        while device.waiting() == 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        let (busy, waits) = (looked(engine.pool()), !syncing.is_finished());
        device.set_hung(false);
        syncing.join().unwrap().unwrap();
        (busy, waits)
    });
    assert!(quiet && busy && waits, "{line}: {quiet} {busy} {waits}");
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..9, LEN);
    assert_eq!(engine.pool().health(), "ONLINE");
    engine.export(false).unwrap();
    drop((engine, devices, device));
    rig.judge_blocks();
}

#[test]
fn one_side_of_a_mirror_hangs() {
    hanging("mirror a b");
}

#[test]
fn one_device_of_raidz_hangs() {
    hanging("raidz1 a b c");
}

/// How many of these objects of the view's MOS can be read from devices.
fn sound(view: &Pool, objects: &[u64]) -> usize {
    view.store().drop_caches();
    let reads = |number: &&u64| {
        let Ok(object) = view.mos().object(**number) else { return false };
        (0..=object.dnode().max_block).all(|blkid| object.block(blkid).is_ok())
    };
    objects.iter().filter(reads).count()
}

/// What a view reaches is freed, and its place written to for another block, while it is in use.
#[test]
fn a_view_that_is_out_of_date_blames_no_device() {
    let rig = Rig::new(64 << 20);
    let (deterministic, txg_timeout) = (true, Some(rig::TIMEOUT));
    let options = EngineOptions { deterministic, txg_timeout, ..EngineOptions::default() };
    let engine = rig.create_with("mirror a b", 12, options);
    fill(&open(&engine), 0..2, LEN);
    engine.sync().unwrap();
    let view = engine.pool();
    let next = |after: u64| view.mos().next_object(after).unwrap();
    let objects: Vec<u64> = std::iter::successors(next(1), |n| next(n + 1)).collect();
    let whole = sound(&view, &objects);
    assert!(whole > 10, "{whole} objects can be read");
    let mut turns = 0;
    while sound(&view, &objects) == whole {
        turns += 1;
        assert!(turns < 3000, "no place was given out again");
        let list = [("for:test".to_string(), turns.to_string())];
        assert!(changes(&engine).set("tank", &list).unwrap().is_empty());
        engine.sync().unwrap();
    }
    // Whatever they come to.
    let _ = (view.status().is_ok(), view.history().is_ok(), view.dsl().find("tank/none").is_ok());
    assert_eq!(errors(&engine), (0, 0, 0));
    assert_eq!(engine.pool().store().errors(), []);
    assert!(!engine.pool().store().has_wrong());
    drop(view);
    check(&open(&engine), 0..2, LEN);
    assert_eq!(engine.pool().health(), "ONLINE");
    engine.export(false).unwrap();
    drop(engine);
    rig.judge_blocks();
}
