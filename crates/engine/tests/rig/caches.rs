//! Pools with cache devices.

use super::{Rig, check, fill, open};
use cenote_engine::Engine;
use cenote_store::l2arc::L2Figures;
use cenote_store::tunables as t;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

pub const LEN: usize = 700_000;
pub const FILES: u64 = 24;

/// Caches as these tests want them: small devices have log blocks too, and what is read ahead is written and read.
pub fn tune() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        t::L2ARC_REBUILD_LEAST.set(0).unwrap();
        t::L2ARC_NOPREFETCH.set(0).unwrap();
        t::L2ARC_HEADROOM.set(0).unwrap();
        t::L2ARC_FEED_MIN_MS.set(20).unwrap();
    });
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn figures(engine: &Engine) -> L2Figures {
    engine.pool().store().l2arc().figures()
}

/// Waits until most blocks are on cache devices, and none is on the way there.
#[track_caller]
pub fn written(engine: &Engine) {
    until("blocks on cache devices", || {
        let L2Figures { counts, sums, .. } = figures(engine);
        sums.asize >= FILES * LEN as u64 && counts.writes_done == counts.writes_sent
    });
}

pub fn guid_of_cache(engine: &Engine) -> u64 {
    engine.pool().caches()[0].u64("guid").unwrap()
}

/// A pool with a cache device, and files of which most blocks are there.
pub fn filled(rig: &Rig, line: &str, ashift: u64) -> Arc<Engine> {
    tune();
    let engine = rig.create(line, ashift);
    let fs = open(&engine);
    fill(&fs, 0..FILES, LEN);
    engine.sync().unwrap();
    written(&engine);
    engine
}

/// Reads all files from what is not the ARC; how many blocks cache devices had.
#[track_caller]
pub fn hits(engine: &Engine) -> u64 {
    let before = figures(engine).counts;
    engine.pool().store().drop_caches();
    check(&open(engine), 0..FILES, LEN);
    let after = figures(engine).counts;
    after.hits - before.hits
}
