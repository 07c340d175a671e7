//! Removals of vdevs that hold data, held back by tunables: these are the process's, so that one test runs at a time.

use cenote_engine::{Engine, tunables};
use cenote_pool::scan::{RemovalStatus, ScanState};
use parking_lot::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

static ALONE: Mutex<()> = Mutex::new(());

/// Removals copy pieces of this size at most, so that blocks are divided among several, and no other test runs.
pub fn alone(segment: u64) -> MutexGuard<'static, ()> {
    let alone = ALONE.lock();
    tunables::find("zfs_remove_max_segment").unwrap().set(segment).unwrap();
    stand_still(false);
    alone
}

/// Whether removals copy nothing.
pub fn stand_still(still: bool) {
    tunables::find("zfs_removal_suspend_progress").unwrap().set(still.into()).unwrap();
}

/// The guid of a top-level vdev.
pub fn guid(engine: &Engine, id: u64) -> u64 {
    engine.pool().store().vdevs().top(id).unwrap().guid()
}

/// The last removal.
#[track_caller]
pub fn removal(engine: &Engine) -> RemovalStatus {
    engine.pool().status().unwrap().removal.unwrap()
}

#[track_caller]
pub fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until the removal has ended.
#[track_caller]
pub fn ended(engine: &Engine) {
    until("the removal does not end", || removal(engine).state != ScanState::Scanning);
    assert_eq!(removal(engine).state, ScanState::Finished);
}
