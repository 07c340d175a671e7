//! A whole pool with its throttle in simulated time: changes are delayed and wait, groups are written when
//! their time is over, and nobody sleeps. OpenZFS's zdb judges the pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::outside::Timer;
use cenote_engine::create::Redundancy;
use cenote_torture::live::disk::Image;
use cenote_torture::live::lab::{Shape, Throttle, disks, judge, lab};
use cenote_zpl::{FileSystem, NewNode, NodeKind, Settings};
use std::time::{Duration, Instant};

const NODE: NewNode = NewNode {
    kind: NodeKind::File,
    mode: 0o644,
    umask: 0o022,
    uid: 1000,
    gid: 100,
    keep_setgid: true,
};
const DIRTY: u64 = 4 << 20;
const PIECE: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(3600);

#[test]
fn a_pool_is_throttled_in_simulated_time() {
    let shape = Shape { redundancy: Redundancy::Single, disks: 1, ashift: 12, size: 256 << 20 };
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let timer = Timer::simulated();
    let throttle = Throttle { dirty_max: DIRTY, txg_timeout: TIMEOUT, timer: timer.clone() };
    let lab = lab(&disks).throttled(throttle);
    let began = Instant::now();
    let engine = lab.create(&shape).unwrap();
    let root = engine.pool().dsl().root().unwrap();
    let live = engine.live(root.ds_obj).unwrap();
    let fs = FileSystem::open_live(live, Settings::default()).unwrap();
    let ino = fs.create(fs.root(), b"file", &NODE).unwrap().ino;
    let data: Vec<u8> = (0..PIECE).map(|i| ((i * 7919) >> 3) as u8).collect();
    for i in 0..800u64 {
        fs.write(ino, i * PIECE as u64, &data, false).unwrap();
        let dirty = engine.dirty();
        assert!(dirty <= DIRTY + 4 * PIECE as u64, "{dirty} bytes are dirty");
    }
    engine.sync().unwrap();
    let delayed = timer.now();
    println!("delayed by {delayed:?} in {:?}", began.elapsed());
    assert!(delayed > Duration::ZERO && delayed < TIMEOUT, "{delayed:?}");
    assert_eq!(engine.dirty(), 0);
    // What waits for its time is written when that has passed, and not before.
    let txg = engine.pool().uberblock().txg;
    fs.write(ino, 0, b"later", false).unwrap();
    timer.sleep(TIMEOUT - Duration::from_secs(1));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((engine.pool().uberblock().txg, engine.dirty() > 0), (txg, true));
    timer.sleep(Duration::from_secs(1));
    let started = Instant::now();
    while engine.pool().uberblock().txg == txg {
        assert!(started.elapsed() < Duration::from_secs(60), "the group is not written");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(fs);
    engine.export(false).unwrap();
    let images: Vec<Image> = disks.iter().map(|d| d.image()).collect();
    judge(&images).unwrap();
}
