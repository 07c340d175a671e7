//! `zpool attach -s` and `zpool replace -s` by the real binary, and OpenZFS's `zdb` judges. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use std::fs::{self, File};
use std::time::Duration;

/// A new empty device where that of this name was; its path.
fn blank(s: &Session, name: &str) -> String {
    let _ = fs::remove_file(s.path(name));
    File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    s.path(name).display().to_string()
}

/// A session with a pool `tank` of the files that the line names; other words are those of `zpool create`.
fn pool(line: &str) -> Session {
    let s = Session::new();
    let word = |w: &str| if w.len() == 1 { blank(&s, w) } else { w.to_string() };
    let words: Vec<String> = line.split_whitespace().map(word).collect();
    s.run(&format!("zpool create -m none tank {}", words.join(" "))).ok();
    s
}

fn hold(s: &Session, hold: bool) {
    s.run(&format!("tunables set zfs_scan_suspend_progress={}", u8::from(hold))).ok();
}

fn judge(s: &Session) {
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn a_device_is_replaced_by_a_sequential_rebuild() {
    let s = pool("mirror a b");
    let (a, b) = (s.path("a").display().to_string(), s.path("b").display().to_string());
    let (c, d) = (blank(&s, "c"), blank(&s, "d"));
    hold(&s, true);
    s.run(&format!("zpool replace -s tank {a} {c}")).ok();
    let status = s.run("zpool status tank").ok();
    assert!(
        status.contains("status: One or more devices is currently being resilvered."),
        "{status}"
    );
    assert!(status.contains("  scan: resilver (mirror-0) in progress since "), "{status}");
    assert!(status.contains(" resilvered, 0.00% done, no estimated completion time\n"), "{status}");
    assert!(status.contains("replacing-0"), "{status}");
    let cannot = format!("cannot attach {d} to {b}:");
    assert_eq!(
        s.run(&format!("zpool attach tank {b} {d}")).fails(1),
        format!("{cannot} currently sequentially resilvering")
    );
    assert_eq!(s.run("zpool scrub tank").fails(1), "cannot scrub tank: currently resilvering");
    let json: serde_json::Value =
        serde_json::from_str(&s.run("zpool status -j tank").ok()).unwrap();
    let rebuild = &json["pools"]["tank"]["scan_stats"]["rebuild_stats"]["mirror-0"];
    assert_eq!((&rebuild["state"], &rebuild["errors"]), (&"ACTIVE".into(), &"0".into()), "{json}");
    hold(&s, false);
    s.run("zpool wait -t resilver,replace tank").ok();
    s.run("zpool wait -t scrub tank").ok();
    let status = s.run("zpool status tank").ok();
    assert!(status.contains("  scan: scrub repaired 0B in "), "{status}");
    assert!(status.contains("  scan: resilvered (mirror-0) "), "{status}");
    assert!(!status.contains("replacing") && !status.contains("status:"), "{status}");
    let events = s.run("zpool events -H").ok();
    for event in ["resilver_start", "resilver_finish", "scrub_start"] {
        assert!(events.contains(&format!("sysevent.fs.zfs.{event}")), "{events}");
    }
    // Without a scrub one is recommended.
    s.run("tunables set zfs_rebuild_scrub_enabled=0").ok();
    std::thread::sleep(Duration::from_millis(1100));
    s.run(&format!("zpool attach -s -w tank {b} {d}")).ok();
    let status = s.run("zpool status tank").ok();
    assert!(
        status.contains("One or more devices have been sequentially resilvered, scrubbing"),
        "{status}"
    );
    assert!(status.contains("action: Use 'zpool scrub' to verify all data checksums."), "{status}");
    s.run("zpool scrub -w tank").ok();
    judge(&s);
    let raidz = pool("raidz1 e f g");
    let (e, h) = (raidz.path("e").display().to_string(), blank(&raidz, "h"));
    assert_eq!(
        raidz.run(&format!("zpool replace -s tank {e} {h}")).fails(1),
        format!(
            "cannot replace {e} with {h}: only mirror and dRAID vdevs support sequential reconstruction"
        )
    );
}
