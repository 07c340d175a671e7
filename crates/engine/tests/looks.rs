//! Looking at a pool waits for no device that hangs: what a device says of itself is known from before, or left out,
//! and the blocks come from devices that answer. OpenZFS's `zdb` finds nothing wrong afterwards; where it is not
//! installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::{Engine, EngineOptions};
use cenote_pool::Pool;
use cenote_pool::vdev_figures::VdevFigures;
use cenote_vdev::patience::impatiently;
use rig::{Faulty, Rig, check, fill, open};
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
