//! Pools of which whole top-level vdevs are missing are imported read-only where that is asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::Session;
use std::fs;

#[test]
fn what_is_left_of_a_pool_is_imported() {
    let s = Session::new();
    fs::create_dir(s.path("dev")).unwrap();
    let disk = |name: &str| {
        let path = s.path("dev").join(name);
        fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.display().to_string()
    };
    let disks = [disk("a"), disk("b"), disk("c")].join(" ");
    s.run(&format!("zpool create -O canmount=off -O mountpoint=none tank {disks}")).ok();
    s.run("zfs create tank/a").ok();
    s.run("zpool export tank").ok();
    fs::rename(s.path("dev/b"), s.path("b")).unwrap();
    let dir = s.path("dev").display().to_string();
    let import = |options: &str| s.run(&format!("zpool import -N {options} -d {dir} tank"));
    assert_ne!(import("-o readonly=on").code, 0);
    s.run("tunables set zfs_max_missing_tvds=1").ok();
    assert_ne!(import("").code, 0, "nothing can be written to it");
    import("-o readonly=on").ok();
    assert_eq!(s.run("zfs list -Ho name").ok(), "tank\ntank/a\n");
    let status = s.run("zpool status tank").ok();
    assert!(status.contains("UNAVAIL"), "{status}");
    s.run("zpool export tank").ok();
    fs::rename(s.path("dev/c"), s.path("c")).unwrap();
    assert_ne!(import("-o readonly=on").code, 0, "two are missing");
    for name in ["b", "c"] {
        fs::rename(s.path(name), s.path("dev").join(name)).unwrap();
    }
    cenote_testpools::judge(&s.path("dev"), "tank");
}
