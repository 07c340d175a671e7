//! Devices of an imported pool go out of use and come back, by the real binary, and OpenZFS's `zdb`
//! judges. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use std::fs::{self, File};

/// A pool `tank` of a mirror of files `a` and `b`.
fn mirror() -> Session {
    let s = Session::new();
    for name in ["a", "b"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let (a, b) = (s.path("a"), s.path("b"));
    s.run(&format!("zpool create -m none tank mirror {} {}", a.display(), b.display())).ok();
    s
}

/// The lines of `zpool status` about the pool and its vdevs: names, states, what is behind.
fn shown(s: &Session) -> Vec<String> {
    let text = s.run("zpool status tank").ok();
    let lines = text.lines().skip_while(|l| !l.starts_with("\tNAME")).skip(1);
    let line = |l: &str| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let (name, state, note) = (words[0], words[1], words[5..].join(" "));
        let dir = format!("{}/", s.dir.path().display());
        format!("{name} {state} {note}").trim_end().replace(&dir, "")
    };
    lines.take_while(|l| !l.is_empty()).map(line).collect()
}

/// Exports the pool and has `zdb` judge it.
fn judge(s: &Session) {
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

fn import(s: &Session) {
    s.run(&format!("zpool import -N -d {} tank", s.dir.path().display())).ok();
}

const WELL: [&str; 4] = ["tank ONLINE", "mirror-0 ONLINE", "a ONLINE", "b ONLINE"];
const BEHIND: [&str; 4] =
    ["tank ONLINE", "mirror-0 ONLINE", "a ONLINE", "b ONLINE (awaiting resilver)"];
const OFFLINE: [&str; 4] = ["tank DEGRADED", "mirror-0 DEGRADED", "a ONLINE", "b OFFLINE"];

#[test]
fn offline_and_online() {
    let s = mirror();
    assert_eq!(shown(&s), WELL);
    let (a, b) = (s.path("a").display().to_string(), s.path("b").display().to_string());
    s.run(&format!("zpool offline tank {b}")).ok();
    assert_eq!(shown(&s), OFFLINE);
    assert!(s.run("zpool status tank").ok().contains("Online the device using 'zpool online'"));
    let refused = s.run(&format!("zpool offline tank {a}")).fails(1);
    assert_eq!(refused, format!("cannot offline {a}: no valid replicas"));
    // It stays offline, also for `zpool clear`, and after an import.
    s.run("zfs create tank/one").ok();
    s.run("zpool clear tank").ok();
    assert_eq!(shown(&s), OFFLINE);
    judge(&s);
    import(&s);
    assert_eq!(shown(&s), OFFLINE);
    s.run("zfs create tank/two").ok();
    s.run(&format!("zpool online tank {b}")).ok();
    assert_eq!(shown(&s), BEHIND);
    s.run("zfs create tank/three").ok();
    judge(&s);
    import(&s);
    assert_eq!(shown(&s), BEHIND);
    // What is offline for the time being is online after an import.
    s.run(&format!("zpool offline -t tank {b}")).ok();
    s.run("zfs create tank/four").ok();
    judge(&s);
    import(&s);
    assert_eq!(shown(&s), BEHIND);
    let history = s.run("zpool history tank").ok();
    for line in ["zpool offline tank", "zpool online tank", "zpool clear tank"] {
        assert!(history.contains(line), "{history}");
    }
    judge(&s);
}

#[test]
fn a_device_that_was_missing_comes_back() {
    let s = mirror();
    s.run("zpool export tank").ok();
    fs::rename(s.path("b"), s.path("away")).unwrap();
    fs::create_dir(s.path("far")).unwrap();
    fs::rename(s.path("away"), s.path("far/b")).unwrap();
    import(&s);
    let missing = shown(&s);
    assert!(missing[3].ends_with("UNAVAIL was b"), "{missing:?}");
    s.run("zfs create tank/one").ok();
    let b = s.path("b").display().to_string();
    let warned = s.run(&format!("zpool online tank {b}"));
    assert!(warned.out.contains("onlined, but remains in faulted state"), "{warned:?}");
    fs::rename(s.path("far/b"), s.path("b")).unwrap();
    s.run("zpool reopen tank").ok();
    assert_eq!(shown(&s), BEHIND);
    s.run("zfs create tank/two").ok();
    judge(&s);
    // Another file in its place is not taken for it.
    fs::copy(s.path("a"), s.path("b")).unwrap();
    import(&s);
    assert!(shown(&s)[3].contains("UNAVAIL") || shown(&s)[3].contains("FAULTED"));
    s.run("zpool clear tank").ok();
    assert!(shown(&s)[3].contains("UNAVAIL") || shown(&s)[3].contains("FAULTED"));
}

#[test]
fn refusals() {
    let s = mirror();
    for (line, code, message) in [
        ("zpool clear", 2, "missing pool name"),
        ("zpool clear tank c", 1, "cannot clear errors for c: no such device in pool"),
        ("zpool clear none", 1, "cannot open 'none': no such pool"),
        ("zpool online tank", 2, "missing device name"),
        ("zpool online tank c", 1, "cannot online c: no such device in pool"),
        ("zpool offline tank", 2, "missing device name"),
        ("zpool offline -f tank b", 2, "unsupported option: -f"),
        ("zpool online -e tank b", 2, "unsupported option: -e"),
        (
            "zpool offline tank mirror-0",
            1,
            "cannot offline mirror-0: operation not supported on this type of vdev",
        ),
    ] {
        let said = s.run(line).fails(code);
        assert_eq!(said.lines().next(), Some(message), "{line}");
    }
}
