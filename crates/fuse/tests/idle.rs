//! Threads that serve mounts do not wake up while there is nothing to do. A program of its own: other tests would have them
//! served.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[allow(dead_code)]
#[path = "live/world.rs"]
mod world;

use std::fs;
use std::time::Duration;
use world::World;

/// Times that threads which serve requests went to sleep so far, and how many threads there are.
fn sleeps() -> (u64, usize) {
    let mut all = (0, 0);
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let read = |file| fs::read_to_string(task.join(file)).unwrap_or_default();
        if read("comm").starts_with("fuse-") {
            let status = read("status");
            let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
            all = (all.0 + line.map_or(0, |n| n.trim().parse().unwrap()), all.1 + 1);
        }
    }
    all
}

fn wait(milliseconds: u64) -> (u64, usize) {
    std::thread::sleep(Duration::from_millis(milliseconds));
    sleeps()
}

#[test]
fn a_mount_without_requests_wakes_nobody_up() {
    let worlds = [World::new(), World::new()];
    for i in 0..200 {
        for w in &worlds {
            fs::write(w.path(&format!("f{i}")), "text").unwrap();
        }
    }
    let busy = sleeps();
    assert!(busy.1 >= 2, "{busy:?}");
    // The deputy looks a few times more.
    let quiet = wait(1000);
    assert_eq!(wait(3000), quiet, "soon after the last request");
    // Threads let go of what they have, or end, once.
    wait(7500);
    let rested = wait(500);
    assert!(rested.1 <= busy.1.max(2), "{busy:?}, {rested:?}");
    assert_eq!(wait(3000), rested, "long after the last request");
    // And are there for the next one.
    fs::write(worlds[0].path("again"), "text").unwrap();
    assert!(sleeps().0 > rested.0);
    worlds.into_iter().for_each(|w| drop(w.unmount()));
}
