//! Devices of an imported pool go out of use and come back, by the real binary, and OpenZFS's `zdb`
//! judges. Where `zdb` is not installed these tests fail.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::Session;
use common::loops::Loop;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

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

/// Cache devices go offline and come back; spares do not.
#[test]
fn cache_devices_go_offline() {
    let s = Session::new();
    for name in ["a", "cache", "spare"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let path = |name: &str| s.path(name).display().to_string();
    let (a, cache, spare) = (path("a"), path("cache"), path("spare"));
    s.run(&format!("zpool create -m none tank {a} cache {cache} spare {spare}")).ok();
    // Spares have no counts of errors, so that the lines are not those of `shown`.
    let state = || {
        let text = s.run("zpool status tank").ok();
        let line = text.lines().find(|line| line.trim_start().starts_with(&cache)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_string()
    };
    let again = || {
        s.run("zpool export tank").ok();
        s.run(&format!("zpool import -d {} tank", s.dir.path().display())).ok();
    };
    assert_eq!(state(), "ONLINE");
    s.run(&format!("zpool offline tank {cache}")).ok();
    assert_eq!(state(), "OFFLINE");
    again();
    assert_eq!(state(), "OFFLINE");
    s.run(&format!("zpool online tank {cache}")).ok();
    assert_eq!(state(), "ONLINE");
    s.run(&format!("zpool offline -t tank {cache}")).ok();
    assert_eq!(state(), "OFFLINE");
    again();
    assert_eq!(state(), "ONLINE");
    s.run(&format!("zpool offline -f tank {cache}")).ok();
    assert_eq!(state(), "FAULTED");
    s.run(&format!("zpool clear tank {cache}")).ok();
    assert_eq!(state(), "ONLINE");
    let refused = s.run(&format!("zpool offline tank {spare}")).fails(1);
    assert_eq!(refused, format!("cannot offline {spare}: device is reserved as a hot spare"));
    judge(&s);
}

/// The same, once devices that came back have what they missed.
fn resilvered(s: &Session) -> Vec<String> {
    s.run("zpool wait -t resilver tank").ok();
    let status = s.run("zpool status tank").ok();
    assert!(
        status.contains("scan: resilvered ") && status.contains(" with 0 errors on "),
        "{status}"
    );
    shown(s)
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
const OFFLINE: [&str; 4] = ["tank DEGRADED", "mirror-0 DEGRADED", "a ONLINE", "b OFFLINE"];

#[test]
fn offline_and_online() {
    let s = Session::mirror();
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
    assert_eq!(resilvered(&s), WELL);
    s.run("zfs create tank/three").ok();
    judge(&s);
    import(&s);
    assert_eq!(resilvered(&s), WELL);
    // What is offline for the time being is online after an import.
    s.run(&format!("zpool offline -t tank {b}")).ok();
    s.run("zfs create tank/four").ok();
    judge(&s);
    import(&s);
    assert_eq!(resilvered(&s), WELL);
    let history = s.run("zpool history tank").ok();
    for line in ["zpool offline tank", "zpool online tank", "zpool clear tank"] {
        assert!(history.contains(line), "{history}");
    }
    judge(&s);
}

#[test]
fn a_device_that_was_faulted_stays_so_until_it_is_cleared() {
    const FAULTED: [&str; 4] =
        ["tank DEGRADED", "mirror-0 DEGRADED", "a ONLINE", "b FAULTED external device fault"];
    let s = Session::mirror();
    let (a, b) = (s.path("a").display().to_string(), s.path("b").display().to_string());
    s.run(&format!("zpool offline -f tank {b}")).ok();
    assert_eq!(shown(&s), FAULTED);
    let refused = s.run(&format!("zpool offline -f tank {a}")).fails(1);
    assert_eq!(refused, format!("cannot offline {a}: no valid replicas"));
    s.run("zfs create tank/one").ok();
    // Neither its device nor an import brings it back.
    let warned = s.run(&format!("zpool online tank {b}")).ok();
    assert!(warned.contains("use 'zpool clear' to restore a faulted device"), "{warned}");
    s.run("zpool reopen tank").ok();
    assert_eq!(shown(&s), FAULTED);
    judge(&s);
    import(&s);
    assert_eq!(shown(&s), FAULTED);
    s.run("zfs create tank/two").ok();
    s.run("zpool clear tank").ok();
    assert_eq!(resilvered(&s), WELL);
    s.run("zfs create tank/three").ok();
    judge(&s);
    import(&s);
    assert_eq!(resilvered(&s), WELL);
    // For the time being: until it is cleared, or the next import.
    s.run(&format!("zpool offline -ft tank {b}")).ok();
    s.run("zpool reopen tank").ok();
    assert_eq!(shown(&s), FAULTED);
    judge(&s);
    import(&s);
    assert_eq!(resilvered(&s), WELL);
    judge(&s);
}

#[test]
fn a_device_that_was_missing_comes_back() {
    let s = Session::mirror();
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
    assert_eq!(resilvered(&s), WELL);
    s.run("zfs create tank/two").ok();
    judge(&s);
    // Another file in its place is not taken for it.
    fs::copy(s.path("a"), s.path("b")).unwrap();
    import(&s);
    assert!(shown(&s)[3].contains("UNAVAIL") || shown(&s)[3].contains("FAULTED"));
    s.run("zpool clear tank").ok();
    assert!(shown(&s)[3].contains("UNAVAIL") || shown(&s)[3].contains("FAULTED"));
}

/// The bytes of a file.
fn sum(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().into()
}

/// Overwrites what a file holds, which stays the same file.
fn overwrite(path: &Path, with: &Path) {
    let mut to = File::options().write(true).truncate(true).open(path).unwrap();
    std::io::copy(&mut File::open(with).unwrap(), &mut to).unwrap();
}

/// Changes the pool, and waits until it is on disk.
fn change(s: &Session, name: &str) {
    s.run(&format!("zfs create tank/{name}")).ok();
    s.run("zpool sync tank").ok();
}

/// What is behind a name that answers again may be of another pool, or blank.
#[test]
fn a_device_that_answers_again_is_looked_at_before_it_is_written_to() {
    let s = Session::new();
    for name in ["a", "b", "other"] {
        File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let Some(disk) = Loop::over(&s.path("b")) else { return };
    s.run(&format!("zpool create -m none other {}", s.path("other").display())).ok();
    s.run("zfs create other/one").ok();
    s.run("zpool export other").ok();
    let (a, b) = (s.path("a"), s.path("b"));
    s.run(&format!("zpool create -f -m none tank mirror {} {}", a.display(), disk.name())).ok();
    change(&s, "one");
    fs::copy(&b, s.path("kept")).unwrap();
    let now = |state: &str| {
        let lines = shown(&s);
        assert_eq!(lines[..3], ["tank DEGRADED", "mirror-0 DEGRADED", "a ONLINE"]);
        assert!(lines[3].ends_with(&state.replace("DISK", &disk.name())), "{lines:?}");
    };
    // Gone.
    File::options().write(true).open(&b).unwrap().set_len(0).unwrap();
    disk.resize();
    change(&s, "two");
    now(" FAULTED too many errors");
    // There again, as another pool's.
    overwrite(&b, &s.path("other"));
    disk.resize();
    let before = sum(&b);
    for (name, command) in [
        ("two1", "clear tank"),
        ("two2", "reopen tank"),
        ("two3", &format!("online tank {}", disk.name())),
    ] {
        s.run(&format!("zpool {command}"));
        change(&s, name);
        now("FAULTED was DISK");
        assert_eq!(sum(&b), before, "{command}");
    }
    // Others can have it, and it is blank after that.
    s.run(&format!("zpool import -N -d {} other", disk.name())).ok();
    s.run("zpool export other").ok();
    File::options().write(true).truncate(true).open(&b).unwrap().set_len(128 << 20).unwrap();
    disk.resize();
    let before = sum(&b);
    s.run("zpool clear tank").ok();
    change(&s, "blank");
    now("UNAVAIL was DISK");
    assert_eq!(sum(&b), before);
    // And then it is its own again, as it was before all of this.
    overwrite(&b, &s.path("kept"));
    fs::remove_file(s.path("kept")).unwrap();
    disk.resize();
    s.run("zpool clear tank").ok();
    change(&s, "three");
    s.run("zpool wait -t resilver tank").ok();
    let well = format!("{} ONLINE", disk.path.file_name().unwrap().display());
    assert_eq!(shown(&s), ["tank ONLINE", "mirror-0 ONLINE", "a ONLINE", &well]);
    s.run("zpool export tank").ok();
    drop(disk);
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn the_label_of_a_device_that_is_offline_can_be_cleared() {
    let s = Session::mirror();
    change(&s, "one");
    let (a, b) = (s.path("a").display().to_string(), s.path("b").display().to_string());
    s.run(&format!("zpool offline tank {b}")).ok();
    let refused = s.run(&format!("zpool labelclear {b}")).fails(1);
    assert_eq!(refused, format!("{b} is a member (ACTIVE) of pool \"tank\""));
    let refused = s.run(&format!("zpool labelclear -f {a}")).fails(1);
    assert!(refused.ends_with("Offline the disk first to clear its label."), "{refused}");
    s.run(&format!("zpool labelclear -f {b}")).ok();
    let cleared = s.run(&format!("zpool labelclear {b}")).fails(255);
    assert_eq!(cleared, format!("failed to clear label for {b}"));
    // It is not the pool's device any more.
    s.run(&format!("zpool online tank {b}"));
    assert!(shown(&s)[3].ends_with(" UNAVAIL was b"), "{:?}", shown(&s));
    change(&s, "two");
    judge(&s);
}

/// A device is found missing something although nothing failed: what is there is its older state.
#[test]
fn what_a_device_of_old_missed_is_on_record() {
    let s = Session::mirror();
    change(&s, "one");
    fs::copy(s.path("b"), s.path("old")).unwrap();
    (0..5).for_each(|i| change(&s, &format!("more{i}")));
    s.run(&format!("zpool offline tank {}", s.path("b").display())).ok();
    overwrite(&s.path("b"), &s.path("old"));
    s.run(&format!("zpool online tank {}", s.path("b").display())).ok();
    assert_eq!(resilvered(&s), WELL);
    fs::remove_file(s.path("old")).unwrap();
    // Nothing of that is read from it.
    s.run("zpool export tank").ok();
    import(&s);
    s.run("zfs list -r -o all tank").ok();
    assert_eq!(resilvered(&s), WELL);
    assert!(s.run("zpool status tank").ok().contains("No known data errors"));
    judge(&s);
}

#[test]
fn the_right_device_comes_back_after_a_wrong_one() {
    let s = Session::mirror();
    s.run("zpool export tank").ok();
    fs::rename(s.path("b"), s.path("keep")).unwrap();
    fs::create_dir(s.path("far")).unwrap();
    fs::rename(s.path("keep"), s.path("far/keep")).unwrap();
    import(&s);
    let b = s.path("b").display().to_string();
    let missing = || assert!(shown(&s)[3].contains("UNAVAIL"), "{:?}", shown(&s));
    for command in [format!("online tank {b}"), "clear tank".into(), "reopen tank".into()] {
        File::create(s.path("b")).unwrap().set_len(128 << 20).unwrap();
        let before = sum(&s.path("b"));
        for wrong in [format!("online tank {b}"), "clear tank".into(), "reopen tank".into()] {
            s.run(&format!("zpool {wrong}"));
            missing();
        }
        change(&s, &format!("{}1", &command[..5]));
        assert_eq!(sum(&s.path("b")), before);
        fs::rename(s.path("far/keep"), s.path("b")).unwrap();
        s.run(&format!("zpool {command}")).ok();
        assert_eq!(resilvered(&s), WELL, "{command}");
        change(&s, &format!("{}2", &command[..5]));
        judge(&s);
        fs::rename(s.path("b"), s.path("far/keep")).unwrap();
        import(&s);
        missing();
    }
    judge(&s);
}

#[test]
fn a_suspended_pool_knows_no_list_of_errors() {
    let s = Session::new();
    let a = s.path("a");
    File::create(&a).unwrap().set_len(128 << 20).unwrap();
    let Some(disk) = Loop::over(&a) else { return };
    s.run(&format!("zpool create -m none tank {}", disk.name())).ok();
    change(&s, "one");
    let own = s.path("own");
    fs::copy(&a, &own).unwrap();
    File::options().write(true).open(&a).unwrap().set_len(0).unwrap();
    disk.resize();
    std::thread::scope(|scope| {
        // It is made in the group that is held, and waits for that until the pool is given up.
        scope.spawn(|| s.run("zfs create tank/two").fails(1));
        let mut text = String::new();
        for _ in 0..3000 {
            text = s.run("zpool status tank").ok();
            if text.contains("state: SUSPENDED") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        s.run("zpool export -f tank");
        // What follows says why.
        let last =
            "\n\nerrors: List of errors unavailable: pool I/O is currently suspended\n        ";
        assert!(text.contains("state: SUSPENDED") && text.contains(last), "{text}");
    });
    drop(disk);
    overwrite(&a, &own);
    fs::remove_file(own).unwrap();
    import(&s);
    assert!(s.run("zpool status tank").ok().ends_with("\n\nerrors: No known data errors\n"));
    judge(&s);
}

#[test]
fn refusals() {
    let s = Session::mirror();
    for (line, code, message) in [
        ("zpool clear", 2, "missing pool name"),
        ("zpool clear -F tank", 2, "invalid option 'F'"),
        ("zpool clear tank c", 1, "cannot clear errors for c: no such device in pool"),
        ("zpool clear none", 1, "cannot open 'none': no such pool"),
        ("zpool online tank", 2, "missing device name"),
        ("zpool online tank c", 1, "cannot online c: no such device in pool"),
        ("zpool offline tank", 2, "missing device name"),
        ("zpool online -e tank c", 1, "cannot online c: no such device in pool"),
        (
            "zpool offline tank mirror-0",
            1,
            "cannot offline mirror-0: operation not supported on this type of vdev",
        ),
    ] {
        let said = s.run(line).fails(code);
        assert_eq!(said.lines().next(), Some(message), "{line}");
    }
    judge(&s);
}
