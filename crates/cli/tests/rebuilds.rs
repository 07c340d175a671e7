//! `zpool attach -s` and `zpool replace -s` by the real binary: a device is rebuilt by place, a scrub proves it, and OpenZFS's `zdb`
//! judges. Where `zdb` is not installed this test fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use std::fs::File;
use std::time::{Duration, Instant};

/// A new empty device; its path.
fn blank(s: &Session, name: &str) -> String {
    File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    s.path(name).display().to_string()
}

/// What `zpool status` says once the scrub has ended that follows a rebuild.
fn scrubbed(s: &Session) -> String {
    let begun = Instant::now();
    loop {
        let status = s.run("zpool status tank").ok();
        if status.contains("scrub repaired 0B in ") {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_device_is_rebuilt() {
    let s = Session::new();
    let (a, b, c) = (blank(&s, "a"), blank(&s, "b"), blank(&s, "c"));
    s.run(&format!("zpool create -m none tank {a}")).ok();
    s.run(&format!("zpool attach -s -w tank {a} {b}")).ok();
    let status = scrubbed(&s);
    assert!(status.contains("resilvered (mirror-0) ") && status.contains(&b), "{status}");
    s.run(&format!("zpool replace -s -w tank {a} {c}")).ok();
    let status = scrubbed(&s);
    assert!(!status.contains(&format!("{a} ")) && status.contains(&c), "{status}");
    assert!(
        status.contains(" with 0 errors on ") && status.contains("errors: No known"),
        "{status}"
    );
    let events = s.run("zpool events").ok();
    for event in ["resilver_start", "resilver_finish", "vdev_attach"] {
        assert!(events.contains(&format!("sysevent.fs.zfs.{event}")), "{event}: {events}");
    }
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains("rebuild vdev_id=0 ") && history.contains(" complete"), "{history}");
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn what_cannot_be_rebuilt_is_refused() {
    let s = Session::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| blank(&s, name));
    s.run(&format!("zpool create -m none tank raidz1 {a} {b} {c}")).ok();
    let why = "only mirror and dRAID vdevs support sequential reconstruction";
    assert_eq!(
        s.run(&format!("zpool replace -s tank {a} {d}")).fails(1),
        format!("cannot replace {a} with {d}: {why}")
    );
    let status = s.run("zpool status tank").ok();
    assert!(!status.contains(&d) && !status.contains("resilver"), "{status}");
    // Without it the same device joins.
    s.run(&format!("zpool replace -w tank {a} {d}")).ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// A device that dies while it is rebuilt has `-w` return, and a scrub of errors is refused until then.
#[test]
fn who_waits_for_a_device_that_dies_goes_on() {
    let s = Session::mirror();
    let (a, c) = (s.path("a").display().to_string(), blank(&s, "c"));
    s.run("tunables set zfs_scan_suspend_progress=1").ok();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| s.run(&format!("zpool attach -s -w tank {a} {c}")));
        let until = |what: &dyn Fn(&str) -> bool| {
            let begun = Instant::now();
            loop {
                let status = s.run("zpool status tank").ok();
                if what(&status) {
                    return;
                }
                assert!(begun.elapsed() < Duration::from_secs(120), "{status}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        until(&|status| status.contains("resilver (mirror-0) in progress"));
        let refused = s.run("zpool scrub -e tank").fails(1);
        assert!(refused.starts_with("cannot scrub tank: "), "{refused}");
        std::fs::remove_file(&c).unwrap();
        // It is missed when something is written.
        s.run("zpool set comment=lost tank").ok();
        until(&|status| !status.contains(&format!("{c}  ONLINE")));
        assert!(!waits.is_finished());
        s.run("tunables set zfs_scan_suspend_progress=0").ok();
        let begun = Instant::now();
        while !waits.is_finished() {
            let status = || s.run("zpool status -v tank").ok();
            assert!(begun.elapsed() < Duration::from_secs(120), "{}", status());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(waits.join().unwrap().code, 0);
    });
    s.run("zpool wait -t resilver tank").ok();
    s.run(&format!("zpool detach tank {c}")).ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}
