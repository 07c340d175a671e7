//! `zpool attach -s` and `zpool replace -s` by the real binary: they are refused by name and change nothing, and OpenZFS's `zdb` judges.
//! Where `zdb` is not installed this test fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use std::fs::File;

/// A new empty device; its path.
fn blank(s: &Session, name: &str) -> String {
    File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    s.path(name).display().to_string()
}

#[test]
fn a_sequential_rebuild_is_refused() {
    let s = Session::new();
    let (a, b, c) = (blank(&s, "a"), blank(&s, "b"), blank(&s, "c"));
    s.run(&format!("zpool create -m none tank mirror {a} {b}")).ok();
    let why = "sequential rebuild is not supported yet";
    assert_eq!(
        s.run(&format!("zpool attach -s tank {a} {c}")).fails(1),
        format!("cannot attach {c} to {a}: {why}")
    );
    assert_eq!(
        s.run(&format!("zpool replace -s -w tank {a} {c}")).fails(1),
        format!("cannot replace {a} with {c}: {why}")
    );
    let status = s.run("zpool status tank").ok();
    assert!(!status.contains(&c) && !status.contains("resilver"), "{status}");
    // Without it the same device joins.
    s.run(&format!("zpool attach -w tank {a} {c}")).ok();
    let status = s.run("zpool status tank").ok();
    assert!(status.contains(&c) && status.contains("  scan: resilvered "), "{status}");
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}
