//! Listings beside datasets that come and go leave out what is gone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long each listing is tried.
const TRIED: Duration = Duration::from_secs(3);

#[test]
fn listings_leave_out_what_is_gone() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    tank.zfs("snapshot tank/a@s");
    // Much to list, so that what comes last in a listing is gone before it is looked at.
    for number in 0..120 {
        tank.zfs(&format!("create tank/f{number}"));
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for turn in 0..2 {
            let (tank, done) = (&tank, &done);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    tank.zfs(&format!("clone -o org.example:x=y tank/a@s tank/z{turn}"));
                    tank.zfs(&format!("snapshot tank/z{turn}@t"));
                    tank.zfs(&format!("hold tag tank/z{turn}@t"));
                    tank.zfs(&format!("bookmark tank/z{turn}@t tank/z{turn}#b"));
                    tank.zfs(&format!("release tag tank/z{turn}@t"));
                    tank.zfs(&format!("destroy -r tank/z{turn}"));
                }
            });
        }
        let listings = [
            "get -r all tank",
            "get -rHpo name,property,value,received,source -t all type,origin,clones,used tank",
            "list -r -t all -o name,origin,used,refer,mountpoint,creation,org.example:x tank",
            "list -t all -s origin -o all",
            "get -rj all tank",
            "list -rjt all tank",
            "holds -r tank@t",
            "upgrade",
        ];
        // The others end, however this ends.
        let failed = listings.iter().find_map(|line| {
            let begun = Instant::now();
            while begun.elapsed() < TRIED {
                let told = tank.session.run(&format!("zfs {line}"));
                let empty = line.starts_with("holds") && told.err == "no datasets available\n";
                if told.code != 0 || !(told.err.is_empty() || empty) {
                    return Some(format!("{line}: {told:?}"));
                }
            }
            None
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(failed, None);
    });
    let left: Vec<String> =
        tank.names().into_iter().filter(|name| !name.starts_with("tank/f")).collect();
    assert_eq!(left, ["tank", "tank/a", "tank/a@s"]);
    tank.finish();
}
