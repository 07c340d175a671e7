//! `zpool attach` of a device to a RAID-Z vdev by the real binary: what is refused, what is shown meanwhile and after it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use std::fs::{self, File};

/// Largest that a device is.
const SIZE: u64 = 128 << 20;

fn device(s: &Session, name: &str, size: u64) -> String {
    File::create(s.path(name)).unwrap().set_len(size).unwrap();
    s.path(name).display().to_string()
}

/// A pool `tank` of a RAID-Z vdev of three devices with a file in it.
fn pool(options: &str) -> Session {
    let s = Session::new();
    let devices = ["a", "b", "c"].map(|name| device(&s, name, SIZE)).join(" ");
    s.run(&format!("zpool create {options} -m none tank raidz {devices}")).ok();
    s
}

fn import(s: &Session) {
    s.run(&format!("zpool import -N -d {} tank", s.dir.path().display())).ok();
}

#[test]
fn a_device_joins_raidz() {
    let s = pool("-o feature@raidz_expansion=enabled");
    let (x, y) = (device(&s, "x", SIZE), device(&s, "y", SIZE));
    let size = || s.run("zpool list -Hp -o size tank").ok().trim().parse::<u64>().unwrap();
    let before = size();
    s.run("zfs create -V 20M tank/vol").ok();
    // It stays where the scratch area ends.
    s.run("tunables set raidz_expand_max_reflow_bytes=1").ok();
    s.run(&format!("zpool attach tank raidz1-0 {x}")).ok();
    let text = s.run("zpool status tank").ok();
    assert!(text.contains("expand: expansion of raidz1-0 in progress since "), "{text}");
    assert!(text.contains(" copied at ") && text.contains("% done"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&s.run("zpool status -j tank").ok()).unwrap();
    let stats = &json["pools"]["tank"]["raidz_expand_stats"];
    assert_eq!((&stats["name"], &stats["state"]), (&"raidz1-0".into(), &"SCANNING".into()));
    let expanding = s.run("zpool get -Hp -o value raidz_expanding tank raidz1-0").ok();
    assert_eq!(expanding.trim(), "on");
    let to = |new: &str| format!("zpool attach tank raidz1-0 {new}");
    let cannot = |new: &str, why: &str| format!("cannot attach {new} to raidz1-0: {why}");
    assert_eq!(s.run(&to(&y)).fails(1), cannot(&y, "raidz expansion in progress"));
    assert!(s.run("zpool checkpoint tank").fails(1).contains("raidz expansion in progress"));
    // Half an expansion is imported, goes on, and ends.
    s.run("zpool export tank").ok();
    import(&s);
    s.run("tunables set raidz_expand_max_reflow_bytes=0").ok();
    s.run("zpool wait -t raidz_expand tank").ok();
    s.run("zpool wait -t scrub tank").ok();
    let text = s.run("zpool status tank").ok();
    assert!(text.contains("expand: expanded raidz1-0 copied ") && text.contains(", on "), "{text}");
    assert!(text.contains("scan: scrub repaired 0B in "), "{text}");
    assert!(text.contains("errors: No known data errors"), "{text}");
    let grown = size();
    assert!(grown > before + before / 5, "{before} {grown}");
    let history = s.run("zpool history -i tank").ok();
    let lines = [
        "raidz vdev expansion started tank vdev 0 new width 4".to_string(),
        format!("vdev attach attach vdev={x} to vdev=raidz1-0"),
        "raidz vdev expansion completed tank vdev 0 new width 4".into(),
        format!("zpool attach tank raidz1-0 {x}"),
    ];
    lines.iter().for_each(|line| assert!(history.contains(line), "{line}: {history}"));
    // Another one, which the command waits for.
    s.run(&format!("zpool attach -w tank raidz1-0 {y}")).ok();
    assert!(size() > grown);
    let text = s.run("zpool status tank").ok();
    assert!(text.contains("expand: expanded raidz1-0 copied "), "{text}");
    s.run("zpool export tank").ok();
    // Whichever device is away.
    fs::remove_file(s.path("b")).unwrap();
    import(&s);
    let text = s.run("zpool status tank").ok();
    assert!(text.contains("state: DEGRADED"), "{text}");
}

#[test]
fn what_openzfs_refuses_is_refused_in_its_words() {
    let s = pool("-o feature@raidz_expansion=disabled");
    let (x, small) = (device(&s, "x", SIZE), device(&s, "small", SIZE - (16 << 20)));
    let to = |new: &str| format!("zpool attach tank raidz1-0 {new}");
    let cannot = |new: &str, why: &str| format!("cannot attach {new} to raidz1-0: {why}");
    let why = s.run(&to(&x)).fails(1);
    let words = "raidz_expansion feature must be enabled in order to attach a device to raidz";
    assert!(why.starts_with(&cannot(&x, words)), "{why}");
    // It says how.
    s.run("zpool set feature@raidz_expansion=enabled tank").ok();
    assert!(why.contains("'zpool set feature@raidz_expansion=enabled tank'"), "{why}");
    assert_eq!(s.run(&to(&small)).fails(1), cannot(&small, "device is too small"));
    let a = s.path("a").display().to_string();
    assert_eq!(
        s.run(&format!("zpool attach tank {a} {x}")).fails(1),
        format!("cannot attach {x} to {a}: can only attach to mirrors and top-level disks")
    );
    assert_eq!(
        s.run(&format!("zpool attach -o ashift=14 tank raidz1-0 {x}")).fails(1),
        cannot(
            &x,
            "The new device cannot have a higher alignment requirement than the top-level vdev."
        )
    );
    s.run(&format!("zpool offline tank {a}")).ok();
    assert_eq!(
        s.run(&to(&x)).fails(1),
        cannot(&x, "raidz vdev has devices that are are offline or being replaced")
    );
    s.run(&format!("zpool online tank {a}")).ok();
    s.run("zpool wait -t resilver tank").ok();
    s.run("zpool checkpoint tank").ok();
    assert!(s.run(&to(&x)).fails(1).contains("checkpoint"));
    s.run("zpool checkpoint -d -w tank").ok();
    s.run(&to(&x)).ok();
    s.run("zpool wait -t raidz_expand tank").ok();
}
