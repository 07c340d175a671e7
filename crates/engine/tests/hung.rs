//! A device that does not answer stops its own pool and no other one. OpenZFS's `zdb` finds nothing wrong
//! with either afterwards; where it is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::EngineOptions;
use rig::{Faulty, Rig, check, fill, open};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const LEN: usize = 300_000;
const FILES: u64 = 8;
/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn another_pool_reads_and_writes() {
    // All pools share these threads. With a single one, no thread can wait for a device unnoticed.
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    let (rig, devices) = (Rig::new(64 << 20), Faulty::default());
    let engine = rig.create_on("a", 12, EngineOptions::default(), &devices);
    fill(&open(&engine), 0..FILES, LEN);
    let device = devices.device(&rig, "a");
    device.set_hung(true);
    thread::scope(|scope| {
        let syncing = scope.spawn(|| engine.sync());
        let end = Instant::now() + LONG;
        while device.waiting() == 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        assert_ne!(device.waiting(), 0);
        // It gets as far as it can without the device.
        thread::sleep(Duration::from_millis(200));
        let (done, finished) = channel();
        scope.spawn(move || {
            let rig = Rig::new(64 << 20);
            let engine = rig.create("mirror a b", 12);
            let fs = open(&engine);
            fill(&fs, 0..FILES, LEN);
            engine.sync().unwrap();
            engine.pool().store().drop_caches();
            check(&fs, 0..FILES, LEN);
            drop(fs);
            engine.export(false).unwrap();
            done.send(rig).unwrap();
        });
        let other = finished.recv_timeout(LONG);
        assert!(!syncing.is_finished() && device.waiting() > 0);
        device.set_hung(false);
        syncing.join().unwrap().unwrap();
        other.expect("the other pool waits for the device that hangs").judge_blocks();
    });
    engine.pool().store().drop_caches();
    check(&open(&engine), 0..FILES, LEN);
    engine.export(false).unwrap();
    drop((engine, devices, device));
    rig.judge_blocks();
}
