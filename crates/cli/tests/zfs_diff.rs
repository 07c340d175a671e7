//! `zfs diff` says what differs, in OpenZFS's words and columns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::can_mount;
use common::tank::Tank;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

/// The lines of what `zfs diff` printed, in no order, with the place of the pool left out.
fn lines(tank: &Tank, line: &str) -> Vec<String> {
    let root = format!("{}/tank/a", tank.session.root());
    let text = tank.zfs(&format!("diff {line}"));
    let mut lines: Vec<String> = text.lines().map(|l| l.replace(&root, "")).collect();
    lines.sort();
    lines
}

#[test]
fn files_are_told_by_what_happened_to_them() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let at = |path: &str| tank.path("tank/a").join(path);
    fs::create_dir_all(at("dir/below")).unwrap();
    for name in ["same", "changed", "gone", "old", "one", "two", "dir/below/deep", "again"] {
        fs::write(at(name), name).unwrap();
    }
    fs::hard_link(at("two"), at("dir/second")).unwrap();
    symlink("nowhere", at("link")).unwrap();
    tank.zfs("snapshot tank/a@one");
    assert_eq!(lines(&tank, "tank/a@one"), [""; 0]);

    fs::write(at("changed"), "new").unwrap();
    fs::remove_file(at("gone")).unwrap();
    fs::rename(at("old"), at("dir/new")).unwrap();
    fs::hard_link(at("one"), at("another")).unwrap();
    fs::remove_file(at("dir/second")).unwrap();
    fs::write(at("made"), "made").unwrap();
    fs::write(at("with \\ space and é"), "").unwrap();
    fs::rename(at("dir/below"), at("moved")).unwrap();
    fs::remove_file(at("again")).unwrap();
    fs::create_dir(at("again")).unwrap();
    tank.zfs("snapshot tank/a@two");
    let told = |setting: &str| {
        tank.session.on_terminal(&format!("{setting} cenote zfs diff tank/a@one tank/a@two"))
    };
    let painted = told("ZFS_COLOR=1 TERM=xterm");
    for (colour, letter) in [("0;32", '+'), ("0;31", '-'), ("0;33", 'M'), ("1;34", 'R')] {
        assert!(painted.contains(&format!("\x1b[{colour}m{letter}\t")), "{painted:?}");
    }
    for setting in ["TERM=xterm", "ZFS_COLOR=1 TERM=dumb", "ZFS_COLOR=1 NO_COLOR=1 TERM=xterm"] {
        assert!(!told(setting).contains('\x1b'), "{setting}");
    }
    fs::remove_file(at("link")).unwrap();

    let mut expected = vec![
        "M\t/".to_string(),
        "M\t/changed".into(),
        "-\t/gone".into(),
        "R\t/old -> /dir/new".into(),
        "M\t/dir".into(),
        "R\t/dir/below -> /moved".into(),
        "+\t/made".into(),
        "M\t/one\t(+1)".into(),
        // The link that its parent attribute was of is the one that is gone.
        "M\t/dir/second\t(-1)".into(),
        "+\t/with\\0040\\0134\\0040space\\0040and\\0040\\0303\\0251".into(),
        "-\t/again".into(),
        "+\t/again".into(),
    ];
    expected.sort();
    // An object number may be used again, which makes no difference to what is told.
    assert_eq!(lines(&tank, "tank/a@one tank/a@two"), expected);
    assert_eq!(lines(&tank, "tank/a@one @two"), expected);
    assert_eq!(lines(&tank, "@one tank/a@two"), expected);
    let now = lines(&tank, "tank/a@one tank/a");
    assert!(now.contains(&"-\t/link".to_string()) && now.len() == expected.len() + 1, "{now:?}");
    assert_eq!(lines(&tank, "tank/a@one"), now);
    assert_eq!(lines(&tank, "-F tank/a@two"), ["-\t@\t/link", "M\t/\t/"]);
    assert!(lines(&tank, "-H tank/a@one @two").contains(&"R\t/old\t/dir/new".to_string()));
    let raw = lines(&tank, "-hF tank/a@one @two");
    assert!(raw.contains(&"+\tF\t/with \\ space and é".to_string()), "{raw:?}");
    assert!(raw.contains(&"+\t/\t/again".to_string()) && raw.contains(&"-\tF\t/again".to_string()));
    let timed = tank.zfs("diff -t tank/a@two");
    let (seconds, rest) = timed.split_once('.').unwrap();
    assert!(seconds.len() == 10 && rest.as_bytes()[9] == b'\t', "{timed}");
    // No snapshot stays.
    assert_eq!(tank.zfs("list -Ho name -t snapshot"), "tank/a@one\ntank/a@two\n");
    tank.finish();
}

#[test]
fn clones_are_compared_with_snapshots_that_they_come_from() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    fs::write(tank.path("tank/a/kept"), "old").unwrap();
    tank.zfs("snapshot tank/a@one");
    fs::write(tank.path("tank/a/kept"), "new").unwrap();
    tank.zfs("snapshot tank/a@two");
    tank.zfs("clone tank/a@one tank/c");
    fs::write(tank.path("tank/c/kept"), "cloned").unwrap();
    fs::write(tank.path("tank/c/mine"), "cloned").unwrap();
    let told = tank.zfs("diff tank/a@one tank/c");
    let root = tank.path("tank/c");
    let root = String::from_utf8_lossy(root.as_os_str().as_bytes()).into_owned();
    for line in [format!("M\t{root}/kept\n"), format!("+\t{root}/mine\n")] {
        assert!(told.contains(&line), "{told}");
    }
    for (line, why) in [
        (
            "diff tank/a",
            "Badly formed snapshot name tank/a: missing '@' delimiter in snapshot name",
        ),
        ("diff tank/a tank/a@one", "Unable to determine which snapshots to compare: invalid name"),
        (
            "diff tank/a@two tank/a@one",
            "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs",
        ),
        (
            "diff tank/a@two tank/c",
            "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs",
        ),
        ("diff tank/a@nine tank/a", "Unable to obtain diffs: No such file or directory"),
        ("diff tank/z@one tank/z", "cannot open 'tank/z': dataset does not exist"),
    ] {
        assert_eq!(tank.refused(line), why, "{line}");
    }
    tank.zfs("unmount tank/a");
    assert_eq!(
        tank.refused("diff tank/a@one"),
        "Cannot diff an unmounted snapshot: operation not applicable to datasets of this type"
    );
    assert_eq!(tank.zfs("list -Ho name -t snapshot"), "tank/a@one\ntank/a@two\n");
    tank.finish();
}

#[test]
fn files_whose_newest_link_is_gone_are_found() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let at = |path: &str| tank.path("tank/a").join(path);
    let link_and_unlink = |path: &str| {
        fs::hard_link(at(path), at("two/other")).unwrap();
        fs::remove_file(at("two/other")).unwrap();
    };
    fs::create_dir_all(at("one/deep")).unwrap();
    fs::create_dir(at("two")).unwrap();
    for name in ["one/touched", "one/moved", "one/away", "one/written", "one/gone", "one/same"] {
        fs::write(at(name), name).unwrap();
    }
    for name in ["one/written", "one/gone", "one/same", "one/away"] {
        link_and_unlink(name);
    }
    tank.zfs("snapshot tank/a@one");
    link_and_unlink("one/touched");
    fs::rename(at("one/moved"), at("one/new")).unwrap();
    link_and_unlink("one/new");
    fs::rename(at("one/away"), at("one/deep/away")).unwrap();
    link_and_unlink("one/deep/away");
    fs::write(at("one/written"), "again").unwrap();
    fs::remove_file(at("one/gone")).unwrap();
    tank.zfs("snapshot tank/a@two");
    assert_eq!(
        lines(&tank, "tank/a@one tank/a@two"),
        [
            "-\t/one/gone",
            "M\t/one",
            "M\t/one/deep",
            "M\t/one/touched",
            "M\t/one/written",
            "M\t/two",
            "R\t/one/away -> /one/deep/away",
            "R\t/one/moved -> /one/new",
        ]
    );
    tank.finish();
}
