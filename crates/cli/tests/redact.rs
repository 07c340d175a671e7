//! `zfs redact`, `zfs send --redact` and what becomes of redacted datasets, through the real binary; OpenZFS's `zdb`
//! judges the pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use cenote_format::stream::token::Token;
use common::keys::fed;
use common::tank::Tank;
use common::{Session, can_mount, skip};
use std::fs;

/// The stream that `zfs send` writes.
#[track_caller]
fn sent(session: &Session, line: &str) -> Vec<u8> {
    let words: Vec<&str> = ["zfs", "send"].into_iter().chain(line.split_whitespace()).collect();
    let output = cenote_testpools::output(session.command().args(words));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A pool with a file system of two files, and a clone of its snapshot `full` that lacks one of them.
fn with_secret() -> Tank {
    let tank = Tank::new("-O mountpoint=/tank");
    tank.zfs("create tank/data");
    let file = |name: &str| tank.path(&format!("tank/{name}"));
    for (name, byte) in [("data/secret", b's'), ("data/public", b'p')] {
        fs::write(file(name), vec![byte; 700_000]).unwrap();
    }
    tank.zfs("snapshot tank/data@full");
    tank.zfs("clone tank/data@full tank/clean");
    fs::write(file("clean/secret"), vec![b'x'; 700_000]).unwrap();
    tank.zfs("snapshot tank/clean@x");
    tank
}

#[test]
fn what_is_secret_stays() {
    if !can_mount() {
        return skip("mounting");
    }
    let tank = with_secret();
    let s = &tank.session;
    tank.zfs("redact tank/data@full public tank/clean@x");
    let guid = tank.get("guid", "tank/clean@x");
    assert_eq!(tank.get("redact_snaps", "tank/data#public"), guid);
    assert_eq!(tank.zfs("list -Ho name -t bookmark"), "tank/data#public\n");
    let stream = sent(s, "--redact public tank/data@full");
    assert!(!stream.windows(64).any(|bytes| bytes == [b's'; 64]), "the secret is in the stream");
    assert!(stream.windows(64).any(|bytes| bytes == [b'p'; 64]));
    // The estimate is the length.
    let said = tank.zfs("send -nP --redact tank/data#public tank/data@full");
    assert_eq!(said, format!("full\ttank/data@full\t{0}\nsize\t{0}\n", stream.len()));
    let dumped = fed(s, "zstream dump -v", &stream).ok();
    assert!(dumped.contains("REDACT object = "), "{dumped}");
    assert!(dumped.contains("redact_snaps"), "{dumped}");

    fed(s, "zfs receive tank/copy", &stream).ok();
    for name in ["tank/copy", "tank/copy@full"] {
        assert_eq!(tank.get("redacted", name), "1", "{name}");
        assert_eq!(tank.get("redact_snaps", name), guid, "{name}");
    }
    assert_eq!(tank.get("mounted", "tank/copy"), "no");
    let why = "cannot mount 'tank/copy': Dataset is not complete, was created by receiving a redacted zfs send stream.";
    assert_eq!(tank.refused("mount tank/copy"), why);
    tank.zfs("mount -f -o ro tank/copy");
    let read = |name: &str| fs::read(tank.path(&format!("tank/{name}"))).unwrap();
    assert_eq!(read("copy/public"), vec![b'p'; 700_000]);
    let secret = read("copy/secret");
    assert!(secret.len() == 700_000 && !secret.contains(&b's'));
    tank.zfs("unmount tank/copy");

    // What it was redacted by comes on top, and so does what begins at the bookmark.
    let clean = sent(s, "-i tank/data@full tank/clean@x");
    fed(s, "zfs receive -o origin=tank/copy@full tank/copy-clean", &clean).ok();
    assert_eq!(tank.get("redacted", "tank/copy-clean"), "0");
    assert_eq!(read("copy-clean/secret"), vec![b'x'; 700_000]);
    tank.zfs("snapshot tank/data@later");
    let plain = sent(s, "-i @full tank/data@later");
    let refused = fed(s, "zfs receive tank/copy", &plain).fails(1);
    assert!(refused.contains("the destination is redacted by other snapshots"), "{refused}");
    let whole = sent(s, "-i #public tank/data@later");
    fed(s, "zfs receive tank/copy", &whole).ok();
    assert_eq!(
        (tank.get("redacted", "tank/copy"), tank.get("redacted", "tank/copy@full")),
        ("0".into(), "1".into())
    );
    tank.zfs("mount tank/copy");
    assert_eq!(read("copy/secret"), vec![b's'; 700_000]);

    // One that is mounted, and is to lack data, is unmounted.
    fed(s, "zfs receive tank/again", &sent(s, "tank/data@full")).ok();
    assert_eq!(tank.get("mounted", "tank/again"), "yes");
    tank.zfs("clone tank/data@later tank/other");
    fs::write(tank.path("tank/other/public"), vec![b'y'; 700_000]).unwrap();
    tank.zfs("snapshot tank/other@y");
    tank.zfs("redact tank/data@later now tank/other@y");
    let hidden = sent(s, "--redact now -i @full tank/data@later");
    fed(s, "zfs receive tank/again", &hidden).ok();
    assert_eq!(
        (tank.get("redacted", "tank/again"), tank.get("mounted", "tank/again")),
        ("1".into(), "no".into())
    );

    // So is one that receives a stream of what is redacted itself, which is not marked as redacted.
    fed(s, "zfs receive tank/mirror", &sent(s, "tank/data@full")).ok();
    let unmarked = sent(s, "-i @full tank/again@later");
    assert_eq!(tank.get("mounted", "tank/mirror"), "yes");
    fed(s, "zfs receive tank/mirror", &unmarked).ok();
    assert_eq!(
        (tank.get("redacted", "tank/mirror"), tank.get("mounted", "tank/mirror")),
        ("1".into(), "no".into())
    );
    tank.finish();
}

#[test]
fn what_cannot_be_is_refused() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    tank.zfs("create tank/b");
    tank.zfs("snapshot tank/a@one");
    tank.zfs("clone tank/a@one tank/c");
    for name in ["tank/a@two", "tank/b@x", "tank/c@x"] {
        tank.zfs(&format!("snapshot {name}"));
    }
    tank.zfs("bookmark tank/a@one tank/a#plain");
    tank.zfs("redact tank/a@one good tank/c@x tank/a@two");
    let refused = |line: &str, code| tank.session.run(&format!("zfs {line}")).fails(code);
    for (line, code, why) in [
        ("redact tank/a@one", 2, "too few arguments"),
        ("redact tank/a@one x", 2, "too few arguments"),
        (
            "redact tank/a@one good tank/c@x tank/a@two",
            17,
            "specified redaction bookmark (good) provided already exists",
        ),
        (
            "redact tank/a@one good tank/c@x",
            3,
            "attempted to resume redaction  with a mismatched redaction list",
        ),
        (
            "redact tank/a@one plain tank/c@x",
            17,
            "specified redaction bookmark (plain) provided already exists",
        ),
        (
            "redact tank/a@one x tank/b@x",
            22,
            "redaction snapshot must be descendent of snapshot being redacted",
        ),
        (
            "redact tank/a@two x tank/a@one",
            22,
            "redaction snapshot must be descendent of snapshot being redacted",
        ),
        ("redact tank/a@one a#x tank/c@x", 22, "redaction bookmark name must not contain '#'"),
        ("redact tank/a@one x tank/c@none", 2, "provided snapshot tank/c@none does not exist"),
        (
            "redact tank/a@one x pool/c@x",
            18,
            "potentially invalid redaction snapshot; full dataset names required",
        ),
        ("send -w --redact good tank/a@one", 1, "Error: raw sends may not be redacted."),
        (
            "send -R --redact good tank/a@one",
            1,
            "Error: multiple snapshots cannot be sent redacted.",
        ),
        (
            "send -d plain tank/a@one",
            1,
            "warning: cannot send 'tank/a@one': not a redaction bookmark",
        ),
        (
            "send -d good tank/a",
            1,
            "warning: cannot send 'tank/a': cannot do a redacted send to a filesystem",
        ),
        (
            "send -d good tank/a@two",
            1,
            "warning: cannot send 'tank/a@two': the redaction bookmark is of another snapshot",
        ),
        (
            "send -d tank/b#good tank/a@one",
            1,
            "warning: cannot send 'tank/a@one': the redaction bookmark is of another snapshot",
        ),
        ("send -S -d good tank/a", 2, "incompatible flags combined with saved send flag"),
        ("send -t 1-2-3-4 -d good", 2, "invalid flags combined with -t"),
    ] {
        let said = refused(line, code);
        assert!(said.starts_with(why), "zfs {line}: {said}");
    }
    assert_eq!(tank.zfs("list -Ho name -t bookmark"), "tank/a#good\ntank/a#plain\n");
    tank.finish();
}

#[test]
fn redacted_streams_are_resumed() {
    if !can_mount() {
        return skip("mounting");
    }
    let tank = with_secret();
    let s = &tank.session;
    tank.zfs("redact tank/data@full public tank/clean@x");
    let stream = sent(s, "--redact public tank/data@full");
    let half = &stream[..stream.len() * 2 / 3];
    fed(s, "zfs receive -s tank/copy", half).fails(1);
    let token = tank.get("receive_resume_token", "tank/copy");
    let guid: u64 = tank.get("guid", "tank/clean@x").parse().unwrap();
    assert_eq!(Token::decode(&token).unwrap().redact_snaps, Some(vec![guid]));
    // Its bookmark is needed.
    let rest = sent(s, &format!("-t {token}"));
    tank.zfs("rename tank/clean tank/other");
    fed(s, "zfs receive -s tank/copy", &rest).ok();
    assert_eq!(tank.get("redacted", "tank/copy"), "1");
    tank.zfs("destroy tank/data#public");
    let refused = tank.refused(&format!("send -t {token}"));
    assert_eq!(refused, "cannot resume send: no appropriate redaction bookmark exists");
    tank.finish();
}

/// What `zdb -dddddd` says of the bookmarks of `tank/data`.
fn bookmarks(said: &str) -> String {
    let from = said.find("\t#").unwrap();
    let to = said[from..].find("    Object  lvl").unwrap();
    said[from..from + to].to_string()
}

#[test]
fn zdb_shows_lists_as_openzfs_does() {
    if !can_mount() {
        return skip("mounting");
    }
    let tank = with_secret();
    let s = &tank.session;
    tank.zfs("snapshot tank/data@later");
    tank.zfs("redact tank/data@full public tank/clean@x");
    tank.zfs("redact tank/data@full nothing tank/clean@x tank/data@later");
    s.run("zpool export tank").ok();
    let dir = s.dir.path().display().to_string();
    for level in ["-dddd", "-ddddd", "-dddddd"] {
        let words = ["-e", "-p", &dir, level, "tank/data"];
        let ours = s.run(&format!("zdb {}", words.join(" "))).ok();
        let theirs = std::process::Command::new("zdb").args(words).output().unwrap();
        let theirs = String::from_utf8_lossy(&theirs.stdout).into_owned();
        assert_eq!(bookmarks(&ours), bookmarks(&theirs), "{level}");
    }
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// Bookmarks of an earlier snapshot by the same one lack what is secret in the later one.
#[test]
fn a_redacted_stream_goes_on_by_the_list_of_its_snapshot() {
    if !can_mount() {
        return skip("mounting");
    }
    let tank = Tank::new("-O mountpoint=/tank");
    let s = &tank.session;
    tank.zfs("create tank/data");
    tank.zfs("snapshot tank/data@early");
    for (name, byte) in [("public", b'p'), ("secret", b's')] {
        fs::write(tank.path(&format!("tank/data/{name}")), vec![byte; 700_000]).unwrap();
    }
    tank.zfs("snapshot tank/data@full");
    tank.zfs("clone tank/data@full tank/clean");
    fs::remove_file(tank.path("tank/clean/secret")).unwrap();
    tank.zfs("snapshot tank/clean@x");
    for mark in ["a", "b", "y", "z"] {
        tank.zfs(&format!("redact tank/data@early {mark} tank/clean@x"));
    }
    tank.zfs("redact tank/data@full m tank/clean@x");
    let whole = sent(s, "--redact m tank/data@full");
    fed(s, "zfs receive -s tank/copy", &whole[..whole.len() / 2]).fails(1);
    let token = tank.get("receive_resume_token", "tank/copy");
    let rest = sent(s, &format!("-t {token}"));
    assert!(!rest.windows(64).any(|bytes| bytes == [b's'; 64]), "the secret is in the stream");
    fed(s, "zfs receive -s tank/copy", &rest).ok();
    tank.zfs("mount -f -o ro tank/copy");
    let read = |name: &str| fs::read(tank.path(&format!("tank/copy/{name}"))).unwrap();
    assert_eq!((read("public"), read("secret")), (vec![b'p'; 700_000], vec![0; 700_000]));
    tank.zfs("unmount tank/copy");
    tank.zfs("destroy tank/data#m");
    let refused = tank.refused(&format!("send -t {token}"));
    assert_eq!(refused, "cannot resume send: no appropriate redaction bookmark exists");
    tank.finish();
}
