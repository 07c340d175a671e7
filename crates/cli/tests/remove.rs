//! Devices that leave a pool by command, and those that count as degraded for their errors; OpenZFS's `zdb` judges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Session, can_mount};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

#[test]
fn spares_and_cache_devices_are_removed() {
    let s = Session::new();
    for name in ["a", "cache", "spare"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let path = |name: &str| s.path(name).display().to_string();
    let (a, cache, spare) = (path("a"), path("cache"), path("spare"));
    s.run(&format!("zpool create -m none tank {a} cache {cache} spare {spare}")).ok();
    for (line, code, message) in [
        ("zpool remove".to_string(), 2, "missing pool name argument".to_string()),
        ("zpool remove tank".into(), 2, "missing device".into()),
        ("zpool remove -s tank x".into(), 2, "too many arguments".into()),
        (
            "zpool remove -s tank".into(),
            1,
            "cannot cancel removal: operation is not in progress".into(),
        ),
        ("zpool remove tank x".into(), 1, "cannot remove x: no such device in pool".into()),
        (
            format!("zpool remove tank {a}"),
            1,
            format!("cannot remove {a}: removing a device that holds data is not supported"),
        ),
    ] {
        assert_eq!(s.run(&line).fails(code).lines().next(), Some(message.as_str()), "{line}");
    }
    let said = s.run(&format!("zpool remove -np tank {cache}")).ok();
    assert_eq!(said, format!("{cache} 0\n"));
    s.run(&format!("zpool remove tank {cache} {spare}")).ok();
    let status = s.run("zpool status tank").ok();
    assert!(!status.contains("cache") && !status.contains("spare"), "{status}");
    assert!(s.run("zpool history -i tank").ok().contains("vdev remove tank vdev (cache)"));
    // They are free for another pool.
    s.run(&format!("zpool create -m none other {cache}")).ok();
    s.run("zpool export -a").ok();
    cenote_testpools::judge(&s.path(""), "tank");
    s.run(&format!("zpool import -d {} tank", s.path("").display())).ok();
    assert!(!s.run("zpool status tank").ok().contains("spares"));
    s.run("zpool export tank").ok();
}

/// Turns bytes of a file around where `piece` stands; how often it does.
fn spoil(disk: &Path, piece: &[u8]) -> usize {
    let mut bytes = fs::read(disk).unwrap();
    let mut found = 0;
    for at in (4 << 20..bytes.len() - piece.len()).step_by(512) {
        if &bytes[at..at + piece.len()] == piece {
            bytes[at..at + piece.len()].iter_mut().for_each(|b| *b = !*b);
            found += 1;
        }
    }
    fs::write(disk, bytes).unwrap();
    found
}

#[test]
fn a_device_with_too_many_errors_is_degraded() {
    let s = Session::new();
    for name in ["a", "b"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let (a, b) = (s.path("a"), s.path("b"));
    let (root, names) = (s.root(), format!("{} {}", a.display(), b.display()));
    if !can_mount() {
        return;
    }
    let options = format!("-O compression=off -O recordsize=4K -R {root}");
    s.run(&format!("zpool create {options} tank mirror {names}")).ok();
    s.run(&format!("zpool set checksum_n=3 tank {}", a.display())).ok();
    let sector: Vec<u8> = (0..512u32).map(|i| (i * 11 + 5) as u8).collect();
    fs::write(Path::new(&root).join("tank/f"), sector.repeat(8 * 40)).unwrap();
    s.run("zpool export tank").ok();
    assert_eq!(spoil(&a, &sector), 320);
    let import = format!("zpool import -N -d {} tank", s.path("").display());
    s.run(&import).ok();
    let state = || s.run("zpool status tank").ok();
    assert!(!state().contains("too many errors"));
    s.run("cat tank:/f").ok();
    let end = Instant::now() + LONG;
    while !state().contains("too many errors") {
        std::thread::sleep(Duration::from_millis(50));
        assert!(Instant::now() < end, "{}", state());
    }
    let text = state();
    let line = text.lines().find(|l| l.contains(&a.display().to_string())).unwrap();
    assert!(line.contains("DEGRADED") && line.ends_with("too many errors"), "{text}");
    s.run("zpool clear tank").ok();
    assert!(!state().contains("too many errors"), "{}", state());
    s.run("zpool export tank").ok();
}
