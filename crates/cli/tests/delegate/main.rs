//! Other users at root's daemon: every user may look, and may do what is delegated, and no more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

#[path = "../common/mod.rs"]
mod common;
mod connections;

use common::keys::key_file;
use common::tank::Tank;
use common::{Done, can_mount, skip};
use connections::{answer, as_alice, greeted, request};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

const ALICE: u32 = 54_321;
const BOB: u32 = 54_322;
const GROUP: u32 = 54_400;
const HEX: &str = "df226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";
const DENIED: &str = "permission denied";

/// A pool of root's, whose daemon others reach.
fn tank(options: &str) -> Option<Tank> {
    if !rustix::process::geteuid().is_root() {
        skip("not root");
        return None;
    }
    let tank = Tank::new(options);
    fs::set_permissions(tank.session.dir.path(), Permissions::from_mode(0o755)).unwrap();
    Some(tank)
}

fn unmounted() -> Option<Tank> {
    tank("-O canmount=off -O mountpoint=none")
}

/// A command of another user, in these groups besides the one of the user's number.
fn command_of(tank: &Tank, user: u32, groups: &[u32]) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    match groups {
        [] => command.arg("--clear-groups"),
        groups => {
            let list: Vec<String> = groups.iter().map(u32::to_string).collect();
            command.arg(format!("--groups={}", list.join(",")))
        }
    };
    command
        .arg(env!("CARGO_BIN_EXE_cenote"))
        .env("CENOTE_SOCKET", tank.session.path("socket"))
        .env("TZ", "UTC")
        .stdin(Stdio::null())
        .current_dir("/");
    command
}

fn by(tank: &Tank, user: u32, groups: &[u32], line: &str) -> Done {
    let mut command = command_of(tank, user, groups);
    let output = cenote_testpools::output(command.args(line.split_whitespace()));
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn alice(tank: &Tank, line: &str) -> Done {
    by(tank, ALICE, &[], line)
}

#[track_caller]
fn is_denied(done: Done, line: &str) {
    assert!(done.code != 0 && done.err.contains(DENIED), "{line}: {done:?}");
}

#[test]
fn everybody_looks_and_changes_nothing() {
    let Some(tank) = unmounted() else { return };
    tank.zfs("create tank/a");
    tank.zfs("snapshot tank/a@1");
    tank.zfs("hold keep tank/a@1");
    let before = tank.zfs("get -rHp all tank");
    for line in [
        "zpool list",
        "zpool status -v",
        "zpool get all tank",
        "zpool iostat -v",
        "zpool wait tank",
        "zpool sync tank",
        "zpool upgrade",
        "zpool upgrade tank",
        "zpool upgrade -a",
        "zpool upgrade -V 5000 tank",
        "zfs list -t all",
        "zfs get -rHp all tank",
        "zfs holds tank/a@1",
        "zfs mount",
        "zfs allow tank/a",
        "zfs upgrade",
        "zfs send -nv tank/a@1",
        "tunables -H",
        "txgs",
        "complete -- zfs list tank",
        "complete -- zfs destroy tank/a@",
    ] {
        let (ours, theirs) = (tank.session.run(line), alice(&tank, line));
        assert_eq!((theirs.code, theirs.err.as_str()), (ours.code, ours.err.as_str()), "{line}");
    }
    assert_eq!(alice(&tank, "zfs list -Ho name").ok(), tank.zfs("list -Ho name"));
    let secret = tank.session.path("secret");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o700)).unwrap();
    let (secret, disk) = (secret.display(), tank.session.path("disk"));
    for line in [
        "zpool destroy tank",
        "zpool export tank",
        "zpool history tank",
        "zpool events",
        "zpool set comment=x tank",
        "zpool clear tank",
        "zpool scrub -a",
        "zpool reguid tank",
        &format!("zpool add tank {}", disk.display()),
        "zfs create tank/b",
        "zfs create -V 1M -s tank/b",
        "zfs clone tank/a@1 tank/b",
        "zfs promote tank/a",
        "zfs destroy tank/a@1",
        "zfs destroy -r tank/a",
        "zfs snapshot tank/a@2",
        "zfs bookmark tank/a@1 tank/a#1",
        "zfs hold other tank/a@1",
        "zfs release keep tank/a@1",
        "zfs rename tank/a tank/b",
        "zfs rename tank/a@1 tank/a@2",
        "zfs rollback tank/a@1",
        "zfs set compression=off tank/a",
        "zfs set user:prop=1 tank/a",
        "zfs set userquota@7=1M tank/a",
        "zfs inherit compression tank/a",
        "zfs allow everyone create tank",
        "zfs unallow everyone tank",
        "zfs send tank/a@1",
        "zfs userspace tank/a",
        "zfs share tank/a",
        "ls tank/a:/",
        "cat tank/a:/x",
        "map tank",
        "tunables set zfs_txg_timeout=1",
        &format!("tunables mount {secret}"),
        "daemon stop",
        "daemon status",
    ] {
        let done = alice(&tank, line);
        match line {
            // There is nothing to promote.
            "zfs promote tank/a" => assert_eq!(done.code, 1),
            _ => is_denied(done, line),
        }
    }
    assert_eq!(tank.zfs("get -rHp all tank"), before);
    // The debugger works with the rights that the user has to the devices.
    assert_ne!(alice(&tank, "zdb -d tank").code, 0);
    tank.zfs("release keep tank/a@1");
    tank.finish();
}

#[test]
fn what_changes_nothing_is_told_to_everybody() {
    let Some(tank) = unmounted() else { return };
    let s = &tank.session;
    let [a, b] = ["a", "b"].map(|name| {
        let path = s.path(name);
        fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.display().to_string()
    });
    s.run(&format!("zpool create -d -m none second mirror {a} {b}")).ok();
    for line in [
        "zpool upgrade",
        "zpool destroy",
        "zpool destroy -q tank",
        "zpool destroy nosuch",
        "zpool export -a tank",
        "zpool add tank",
        "zpool add nosuch mirror",
        "zpool set comment=x",
        "zpool scrub",
        "zpool scrub -s -p tank",
        "zpool history -q tank",
        "zpool history nosuch",
        "zpool clear",
        "zpool offline tank",
        "zpool remove",
        "zpool remove tank",
        "zpool split second",
        "zpool split -o -n second third",
        "zpool remove -n second mirror-0",
        "zpool remove -np second mirror-0",
        "zpool split -n second third",
        &format!("zpool split -n second third {a}"),
        &format!("zpool split -n second third {a} {b}"),
        "zfs share",
        "zfs load-key",
        "zfs load-key nosuch/x",
        "zinject -h",
        "zinject -b",
    ] {
        let (ours, theirs) = (s.run(line), alice(&tank, line));
        let of = |done: &Done| (done.code, done.out.clone(), done.err.clone());
        assert_eq!(of(&theirs), of(&ours), "{line}");
    }
    let cannot = "cannot set property for 'second': permission denied";
    assert_eq!(alice(&tank, "zpool upgrade second").fails(1), cannot);
    for line in [
        "zpool remove second mirror-0",
        "zpool remove -s second",
        "zpool split second third",
        "zpool split -n -R /x second third",
        "zpool split -n -o comment=x second third",
        "zpool upgrade -a",
        "zinject",
    ] {
        is_denied(alice(&tank, line), line);
    }
    assert!(s.run("zpool upgrade").ok().contains("second\n"), "nothing was enabled");
    s.run("zpool export second").ok();
    cenote_testpools::judge(s.dir.path(), "second");
    tank.finish();
}

#[test]
fn programs_of_other_users_run_with_their_rights() {
    let Some(tank) = unmounted() else { return };
    let home = tank.session.path("home");
    let dir = home.join(".zpool.d");
    fs::create_dir_all(&dir).unwrap();
    for path in [&home, &dir] {
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let program = dir.join("who");
    let text = "#!/bin/sh\necho \"user=$(id -u)\"; echo \"group=$(id -g)\"; echo \"dir=$(pwd)\"\n";
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let by = |line: &str, enabled: Option<&str>| {
        let mut command = command_of(&tank, ALICE, &[]);
        command.env("HOME", &home).current_dir(&home).args(line.split(' '));
        if let Some(enabled) = enabled {
            command.env("ZPOOL_SCRIPTS_ENABLED", enabled);
        }
        let output = cenote_testpools::output(&mut command);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    for (line, enabled) in [
        ("zpool status -c who tank", None),
        ("zpool iostat -vc who tank", Some("1")),
        ("zpool iostat -v -c who -y tank 1 2", None),
    ] {
        let (code, said) = by(line, enabled);
        assert_eq!(code, Some(0), "{line}: {said}");
        let told = said.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().rev().take(3).collect();
            <[&str; 3]>::try_from(words).ok().filter(|words| words[1] != "group")
        });
        let told: Vec<_> = told.filter(|words| words[0].ends_with("/home")).collect();
        let (user, home) = (ALICE.to_string(), home.display().to_string());
        assert!(!told.is_empty(), "{line}: {said}");
        assert!(told.iter().all(|words| *words == [&home, &user, &user]), "{line}: {said}");
    }
    // The system may have others.
    let (code, listed) = by("zpool status -c", None);
    assert!(listed.starts_with("Available 'zpool status -c' commands:\n"), "{listed}");
    assert!(code == Some(0) && listed.lines().any(|line| line == "  who"), "{listed}");
    let disabled = "Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.\n";
    assert_eq!(by("zpool status -c who", Some("0")), (Some(1), disabled.into()));
    // A program that the user may not run does not count.
    fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
    let (code, said) = by("zpool status -c who", None);
    assert!(code == Some(0) && !said.contains("group"), "{said}");
    tank.finish();
}

/// What an operation needs, each of it; then it is done.
#[track_caller]
fn needs(tank: &Tank, permissions: &[(&str, &str)], line: &str) {
    for missing in 0..permissions.len() {
        for (at, (permission, dataset)) in permissions.iter().enumerate() {
            let what = if at == missing { "unallow" } else { "allow" };
            tank.zfs(&format!("{what} -u {ALICE} {permission} {dataset}"));
        }
        is_denied(alice(tank, line), &format!("{line} without {:?}", permissions[missing]));
    }
    for (permission, dataset) in permissions {
        tank.zfs(&format!("allow -u {ALICE} {permission} {dataset}"));
    }
    let done = alice(tank, line);
    let made = "filesystem successfully created, but it may only be mounted by root\n";
    assert!(done.code == 0 && done.err.is_empty() || done.err == made, "{line}: {done:?}");
    for (permission, dataset) in permissions {
        // It may be gone, or called something else.
        tank.session.run(&format!("zfs unallow -u {ALICE} {permission} {dataset}"));
    }
}

#[test]
fn each_operation_needs_its_permissions() {
    let Some(tank) = unmounted() else { return };
    tank.zfs("create tank/a");
    tank.zfs("create tank/b");
    tank.zfs("snapshot tank/a@1");
    let (create, mount) = (("create", "tank/b"), ("mount", "tank/b"));
    needs(&tank, &[create, mount], "zfs create tank/b/0");
    tank.zfs("destroy tank/b/0");
    needs(&tank, &[create, mount, ("canmount", "tank/b")], "zfs create -o canmount=off tank/b/1");
    needs(&tank, &[create, mount, ("refreservation", "tank/b")], "zfs create -V 1M tank/b/v");
    needs(&tank, &[("clone", "tank/a"), create, mount], "zfs clone tank/a@1 tank/b/2");
    needs(&tank, &[("promote,mount", "tank/b/2"), ("promote", "tank/a")], "zfs promote tank/b/2");
    tank.zfs("promote tank/a");
    needs(&tank, &[("mount", "tank/b/2"), ("destroy", "tank/b/2")], "zfs destroy tank/b/2");
    needs(
        &tank,
        &[("rename", "tank/b/1"), ("mount", "tank/b/1"), ("create", "tank/a"), ("mount", "tank/a")],
        "zfs rename tank/b/1 tank/a/1",
    );
    let a = |permission: &'static str| (permission, "tank/a");
    needs(&tank, &[a("snapshot")], "zfs snapshot tank/a@2");
    needs(&tank, &[a("rollback")], "zfs rollback tank/a@2");
    needs(&tank, &[a("bookmark")], "zfs bookmark tank/a@2 tank/a#2");
    needs(&tank, &[a("destroy")], "zfs destroy tank/a#2");
    needs(&tank, &[a("hold")], "zfs hold keep tank/a@2");
    needs(&tank, &[a("release")], "zfs release keep tank/a@2");
    needs(&tank, &[a("rename"), a("mount"), a("create")], "zfs rename tank/a@2 tank/a@3");
    needs(&tank, &[a("mount"), a("destroy")], "zfs destroy tank/a@3");
    needs(&tank, &[a("send")], "zfs send tank/a@1");
    needs(&tank, &[a("send:raw")], "zfs send -w tank/a@1");
    tank.zfs(&format!("allow -u {ALICE} send:raw tank/a"));
    is_denied(alice(&tank, "zfs send tank/a@1"), "send:raw allows raw sends alone");
    tank.zfs(&format!("unallow -u {ALICE} send:raw tank/a"));
    tank.zfs(&format!("allow -u {ALICE} send:encrypted tank/a"));
    is_denied(alice(&tank, "zfs send -w tank/a@1"), "send:encrypted, and it is not encrypted");
    let key = key_file(&tank, "key", "a passphrase");
    let encrypted = format!("-o encryption=on -o keyformat=passphrase -o keylocation={key}");
    tank.zfs(&format!("create {encrypted} tank/a/e"));
    tank.zfs("snapshot tank/a/e@1");
    is_denied(alice(&tank, "zfs send tank/a/e@1"), "send:encrypted allows raw sends alone");
    alice(&tank, "zfs send -w tank/a/e@1").ok();
    tank.zfs("destroy -r tank/a/e");
    tank.zfs(&format!("unallow -u {ALICE} send:encrypted tank/a"));
    needs(&tank, &[a("compression")], "zfs set compression=off tank/a");
    needs(&tank, &[a("compression")], "zfs inherit compression tank/a");
    needs(&tank, &[a("userprop")], "zfs set a:b=c tank/a");
    needs(&tank, &[a("userquota")], "zfs set userquota@7=1M tank/a");
    needs(&tank, &[a("quota"), a("readonly")], "zfs set quota=64M readonly=on tank/a");
    let all = ["userused", "userquota", "userobjused", "userobjquota"].map(a);
    needs(&tank, &all, "zfs userspace tank/a");
    needs(&tank, &[a("groupused")], "zfs groupspace -o name,used tank/a");
    tank.finish();
}

/// `zfs receive` of a stream: exit code and messages.
fn receive(tank: &Tank, stream: &[u8], words: &str) -> (Option<i32>, String) {
    let mut command = command_of(tank, ALICE, &[]);
    command.args(["zfs", "receive"]).args(words.split(' '));
    command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    // One that is refused does not read it.
    let _ = child.stdin.take().unwrap().write_all(stream);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

/// A server that gives this key to everybody; its address.
fn key_server(key: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/key", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", key.len());
            let _ = stream.write_all((head + key).as_bytes());
        }
    });
    address
}

/// A process that sends its input to the daemon is asked for no key meanwhile: the answer would lie behind the stream that waits for it.
#[test]
fn keys_at_addresses_are_fetched_for_whoever_sends_no_input() {
    let Some(tank) = unmounted() else { return };
    let place = key_server(HEX);
    tank.zfs("create tank/a");
    tank.zfs(&format!("allow -u {ALICE} create,receive,mount tank/a"));
    let key = format!("-o encryption=on -o keyformat=hex -o keylocation={place}");
    alice(&tank, &format!("zfs create -u {key} tank/a/e")).ok();
    assert_eq!(tank.get("keylocation,keystatus", "tank/a/e"), format!("{place}\navailable"));
    tank.zfs("create -s -V 8M tank/v");
    tank.zfs("snapshot tank/v@1");
    let mut stream = tank.session.command();
    let mut stream = cenote_testpools::output(stream.args(["zfs", "send", "tank/v@1"])).stdout;
    // Behind it there is more than all buffers on the way take.
    stream.resize(4 << 20, 0);
    let (code, said) = receive(&tank, &stream, &format!("{key} tank/a/r"));
    let why = format!("cannot receive: the key at {place} cannot be fetched: ");
    assert!(code == Some(1) && said.contains(&why) && said.contains("standard input"), "{said}");
    assert!(!said.contains(HEX) && tank.zfs("list -Ho name -r tank/a").lines().count() == 2);
    tank.finish();
}

#[test]
fn what_is_received_as_a_clone_takes_permission_on_its_origin() {
    let Some(tank) = unmounted() else { return };
    tank.zfs("create tank/secret");
    tank.zfs("create tank/b");
    tank.zfs("snapshot tank/secret@1");
    tank.zfs("clone tank/secret@1 tank/c");
    tank.zfs("snapshot tank/secret@2");
    tank.zfs("snapshot tank/c@2");
    let sent = |words: &str| {
        let mut send = tank.session.command();
        let sent = cenote_testpools::output(send.args(["zfs", "send"]).args(words.split(' ')));
        assert!(sent.status.success(), "{sent:?}");
        sent.stdout
    };
    let (full, next) = (sent("tank/secret@1"), sent("-i @1 tank/secret@2"));
    // As a clone by its own word (FLAG_CLONE), whose origin is found by its guid.
    let clone = sent("-i tank/secret@1 tank/c@2");
    tank.zfs(&format!("allow -u {ALICE} receive,create,mount tank/b"));
    let ways = [
        (&full, "-u -o origin=tank/secret@1 tank/b/x"),
        (&full, "-uF -o origin=tank/secret@1 tank/b/x"),
        (&full, "-us -o origin=tank/secret@1 tank/b/x"),
        (&next, "-u -o origin=tank/secret@1 tank/b/x"),
        (&clone, "-u -o origin=tank/secret@1 tank/b/x"),
        (&clone, "-u tank/b/x"),
    ];
    for (stream, words) in ways {
        let (code, said) = receive(&tank, stream, words);
        assert!(code == Some(1) && said.contains(DENIED), "{words}: {said}");
        assert_eq!(tank.zfs("list -rHo name tank/b"), "tank/b\n", "{words}");
    }
    tank.zfs(&format!("allow -u {ALICE} clone tank/secret"));
    for (stream, words) in ways {
        let (code, said) = receive(&tank, stream, words);
        assert_eq!((code, said.as_str()), (Some(0), ""), "{words}");
        assert_eq!(tank.get("origin", "tank/b/x"), "tank/secret@1", "{words}");
        tank.zfs("destroy -r tank/b/x");
    }
    tank.finish();
}

#[test]
fn streams_are_sent_and_received_with_what_that_needs() {
    let Some(tank) = unmounted() else { return };
    tank.zfs("create tank/a");
    tank.zfs("create tank/b");
    tank.zfs("set a:b=c tank/a");
    tank.zfs("snapshot tank/a@1");
    tank.zfs(&format!("allow -u {ALICE} send tank/a"));
    let sent = command_of(&tank, ALICE, &[]).args(["zfs", "send", "-p", "tank/a@1"]).output();
    let stream = sent.unwrap().stdout;
    assert!(stream.len() > 1000);
    let receive = |words: &str| receive(&tank, &stream, words);
    for granted in ["", "receive,mount", "receive,create", "create,mount"] {
        if !granted.is_empty() {
            tank.zfs(&format!("allow -u {ALICE} {granted} tank/b"));
        }
        let (code, said) = receive("-u tank/b/c");
        assert!(code == Some(1) && said.contains(DENIED), "{granted}: {said}");
        assert_eq!(tank.zfs("list -rHo name tank/b"), "tank/b\n");
        if !granted.is_empty() {
            tank.zfs(&format!("unallow -u {ALICE} {granted} tank/b"));
        }
    }
    // Properties that are not the user's to set are left out, and that is said.
    tank.zfs(&format!("allow -u {ALICE} receive:append,create,mount tank/b"));
    let (code, said) = receive("-u tank/b/c");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("cannot receive a:b property on tank/b/c: permission denied"), "{said}");
    assert_eq!(tank.get("a:b", "tank/b/c"), "-");
    // By force takes the whole permission.
    tank.zfs("destroy -r tank/b/c");
    tank.zfs("create tank/b/c");
    let (code, said) = receive("-uF tank/b/c");
    assert!(code == Some(1) && said.contains(DENIED), "{said}");
    tank.zfs(&format!("allow -u {ALICE} receive,userprop tank/b"));
    let (code, said) = receive("-uF tank/b/c");
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(tank.get("a:b", "tank/b/c"), "c");
    tank.finish();
}

#[test]
fn it_counts_whom_something_is_granted_to_and_where() {
    let Some(tank) = unmounted() else { return };
    for name in ["tank/a", "tank/a/b", "tank/a/b/c"] {
        tank.zfs(&format!("create {name}"));
    }
    let take = |user: u32, groups: &[u32], name: &str| {
        let done = by(&tank, user, groups, &format!("zfs snapshot {name}@x"));
        let taken = done.code == 0;
        match taken {
            true => tank.zfs(&format!("destroy {name}@x")),
            false => String::new(),
        };
        assert!(taken || done.err.contains(DENIED), "{done:?}");
        taken
    };
    let places = |user: u32, groups: &[u32]| {
        ["tank/a", "tank/a/b", "tank/a/b/c"].map(|name| take(user, groups, name))
    };
    tank.zfs(&format!("allow -l -u {ALICE} snapshot tank/a"));
    assert_eq!(places(ALICE, &[]), [true, false, false]);
    assert_eq!(places(BOB, &[]), [false; 3]);
    tank.zfs(&format!("unallow -u {ALICE} tank/a"));
    tank.zfs(&format!("allow -d -u {ALICE} snapshot tank/a"));
    assert_eq!(places(ALICE, &[]), [false, true, true]);
    tank.zfs(&format!("unallow -u {ALICE} tank/a"));
    // The groups of the process count, not the groups of the user's number.
    tank.zfs(&format!("allow -g {GROUP} snapshot tank/a/b"));
    assert_eq!(places(ALICE, &[GROUP]), [false, true, true]);
    assert_eq!(places(ALICE, &[GROUP + 1, GROUP]), [false, true, true]);
    assert_eq!(places(ALICE, &[GROUP + 1]), [false; 3]);
    tank.zfs(&format!("allow -g {BOB} snapshot tank/a/b/c"));
    assert_eq!(places(BOB, &[]), [false, false, true], "the primary group counts");
    tank.zfs(&format!("unallow -g {GROUP},{BOB} tank/a/b"));
    tank.zfs(&format!("unallow -g {BOB} tank/a/b/c"));
    // Sets, everyone, and what is for a zone.
    tank.zfs("allow -s @some snapshot,hold tank");
    tank.zfs("allow -e @some tank/a/b");
    assert_eq!(places(BOB, &[]), [false, true, true]);
    tank.zfs("set zoned=on tank/a/b/c");
    assert_eq!(places(BOB, &[]), [false, true, false]);
    tank.session.run("zpool set delegation=off tank").ok();
    let said = by(&tank, BOB, &[], "zfs snapshot tank/a/b@x").fails(1);
    assert!(said.contains("delegated administration is disabled on pool"), "{said}");
    tank.session.run("zpool set delegation=on tank").ok();
    // A user who creates a dataset gets the permissions of creators.
    tank.zfs("allow -c destroy,mount,compression tank/a");
    tank.zfs(&format!("allow -u {ALICE} create,mount tank/a"));
    alice(&tank, "zfs create -o canmount=off tank/a/no").fails(1);
    let made = alice(&tank, "zfs create -o compression=off tank/a/new");
    assert!(made.err.ends_with("may only be mounted by root\n"), "{made:?}");
    is_denied(by(&tank, BOB, &[], "zfs destroy tank/a/new"), "another user's");
    is_denied(alice(&tank, "zfs destroy -r tank/a/b"), "made by root");
    alice(&tank, "zfs destroy tank/a/new").ok();
    hand_on(&tank);
    tank.finish();
}

/// Users hand on what they have, and take away what is theirs.
fn hand_on(tank: &Tank) {
    tank.zfs(&format!("allow -u {ALICE} allow,send tank/a"));
    alice(tank, &format!("zfs allow -u {BOB} send tank/a")).ok();
    let said = tank.zfs("allow tank/a");
    assert!(said.contains(&format!("user (unknown: {BOB}) send\n")), "{said}");
    for line in [
        format!("zfs allow -u {BOB} allow tank/a"),
        format!("zfs allow -u {BOB} rollback tank/a"),
        format!("zfs allow -u {BOB} send tank"),
        "zfs allow -e @some tank/a".to_string(),
        format!("zfs unallow -u {BOB} send tank/a"),
        "zfs unallow -e tank/a/b".to_string(),
    ] {
        is_denied(alice(tank, &line), &line);
    }
    alice(tank, &format!("zfs unallow -u {ALICE} send tank/a")).ok();
    is_denied(alice(tank, &format!("zfs allow -u {BOB} send tank/a")), "taken away");
}

#[test]
fn what_others_own_is_seen_with_permission() {
    let Some(tank) = unmounted() else { return };
    tank.zfs("create tank/a");
    tank.zfs(&format!("set userquota@{ALICE}=1M userquota@{BOB}=2M groupquota@{GROUP}=3M tank/a"));
    let sees = |groups: &[u32], property: String| {
        let line = format!("zfs get -Hpo value {property} tank/a");
        by(&tank, ALICE, groups, &line).ok() != "-\n"
    };
    assert!(sees(&[], format!("userquota@{ALICE}")));
    assert!(!sees(&[], format!("userquota@{BOB}")));
    assert!(
        !sees(&[], format!("groupquota@{GROUP}")) && sees(&[GROUP], format!("groupquota@{GROUP}"))
    );
    tank.zfs(&format!("allow -u {ALICE} userquota tank/a"));
    assert!(sees(&[], format!("userquota@{BOB}")));
    tank.finish();
}

#[test]
fn mounting_is_roots() {
    if !can_mount() {
        return;
    }
    let Some(tank) = tank("") else { return };
    let every = "create,mount,destroy,rename,snapshot,rollback,mountpoint,readonly,diff,send";
    tank.zfs("create tank/a");
    tank.zfs(&format!("allow -u {ALICE} {every} tank"));
    let made = alice(&tank, "zfs create tank/a/new");
    let said = "filesystem successfully created, but it may only be mounted by root\n";
    assert_eq!((made.code, made.err.as_str()), (1, said));
    assert_eq!(tank.get("mounted", "tank/a/new"), "no");
    let said = alice(&tank, "zfs mount tank/a/new").fails(1);
    assert_eq!(said, "cannot mount 'tank/a/new': Insufficient privileges");
    let place = tank.path("tank/a").display().to_string();
    let cannot = format!("cannot unmount '{place}': permission denied");
    for line in [
        "zfs unmount tank/a",
        &format!("zfs unmount {place}"),
        "zfs set mountpoint=/elsewhere tank/a",
        "zfs rename tank/a tank/b",
    ] {
        assert_eq!(alice(&tank, line).fails(1), cannot, "{line}");
    }
    alice(&tank, "zfs destroy tank/a/new").ok();
    assert_eq!(alice(&tank, "zfs destroy tank/a").fails(1), cannot);
    // What needs no mount: contents are put back below the mount, and settings count in it.
    fs::write(tank.path("tank/a/one"), "1").unwrap();
    alice(&tank, "zfs snapshot tank/a@1").ok();
    fs::remove_file(tank.path("tank/a/one")).unwrap();
    let differs = alice(&tank, "zfs diff -H tank/a@1").ok();
    assert!(differs.contains("-\t") && differs.contains("/one"), "{differs}");
    alice(&tank, "zfs rollback tank/a@1").ok();
    assert_eq!(fs::read_to_string(tank.path("tank/a/one")).unwrap(), "1");
    alice(&tank, "zfs set readonly=on tank/a").ok();
    assert!(fs::write(tank.path("tank/a/two"), "2").is_err());
    // By path: the daemon looks up no paths for other users.
    let listed = alice(&tank, &format!("zfs list -Ho name {place}")).ok();
    assert_eq!(listed, "tank/a\n");
    tank.zfs("set readonly=off tank/a");
    tank.finish();
}

/// A program of another user, in these groups besides the one of the user's number.
fn program(user: u32, groups: &str, line: &str) -> bool {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.arg(format!("--groups={groups}")),
    };
    command.args(line.split_whitespace()).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn directories_of_snapshots_take_what_commands_take() {
    if !can_mount() {
        return;
    }
    let Some(tank) = tank("") else { return };
    tank.zfs("create tank/a");
    tank.session.run("tunables set zfs_admin_snapshot=1").ok();
    let dir = tank.path("tank/a/.zfs/snapshot");
    let dir = dir.display();
    let (make, remove) = (format!("mkdir {dir}/one"), format!("rmdir {dir}/two"));
    let rename = format!("mv {dir}/one {dir}/two");
    let alone = |line: &str| program(ALICE, "", line);
    let with = |line: &str| program(ALICE, &GROUP.to_string(), line);
    let there = || tank.session.run("zfs list -Ho name -t snapshot").out;

    assert!(!alone(&make));
    assert_eq!(there(), "");
    tank.zfs(&format!("allow -g {GROUP} snapshot tank/a"));
    assert!(!alone(&make), "not in the group");
    assert!(with(&make));
    assert_eq!(there(), "tank/a@one\n");
    assert!(!with(&rename));
    // A snapshot becomes a name below its file system by that (`zfs_secpolicy_rename_perms`).
    tank.zfs(&format!("allow -u {ALICE} rename,mount,create tank/a"));
    assert!(alone(&rename));
    assert_eq!(there(), "tank/a@two\n");
    assert!(!alone(&remove));
    tank.zfs(&format!("allow -u {ALICE} destroy tank/a"));
    assert!(!program(BOB, "", &remove));
    assert!(alone(&remove));
    assert_eq!(there(), "");
    tank.session.run("zpool set delegation=off tank").ok();
    assert!(!with(&make));
    assert!(program(0, "", &make), "root may");
    tank.finish();
}

#[test]
fn mounting_with_other_options_is_roots() {
    if !can_mount() {
        return;
    }
    let Some(tank) = tank("") else { return };
    tank.zfs("create -o setuid=off -o devices=off -o exec=off -o readonly=on tank/a");
    tank.zfs(&format!("allow -u {ALICE} mount,readonly,setuid,exec,devices tank"));
    let place = tank.path("tank/a").display().to_string();
    let state = || {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let of: Vec<&str> = mounts.lines().filter(|line| line.contains(&place)).collect();
        assert_eq!(of.len(), 1);
        let properties = tank.zfs("get -Hp setuid,devices,exec,readonly,atime,mounted tank/a");
        format!("{} {properties}", of[0])
    };
    let before = state();
    for line in [
        "mount -o remount tank/a",
        "mount -o remount,suid,dev,exec,rw tank/a",
        "mount -o suid,remount tank/a",
        "mount -o rw -o remount tank/a",
        "mount -oremount,exec tank/a",
        "mount -fOv -o remount,exec tank/a",
        "mount -o remount,junk tank/a",
        "mount -a -o remount,suid,rw",
        "mount -a -o rw,remount",
        "mount -R -o remount,rw tank/a",
    ] {
        for user in [ALICE, BOB] {
            let said = by(&tank, user, &[], &format!("zfs {line}")).fails(1);
            let refused = |said: &str| {
                said.starts_with("cannot mount '") && said.ends_with("': Insufficient privileges")
            };
            assert!(said.lines().count() > 0 && said.lines().all(refused), "{line}: {said}");
            assert_eq!(state(), before, "{line}");
        }
    }
    let refused = [("remount", tank.path("tank/a")), ("remount,rw", tank.path("tank/a"))];
    for (options, dir) in refused {
        let line = ["-o", options, "tank/a", dir.to_str().unwrap()];
        let asked = request("mount.zfs", &line);
        let (code, said) = as_alice(&tank, |connect| answer(greeted(connect), &asked));
        assert!(code == 1 && said.contains(DENIED), "{said}");
        assert_eq!(state(), before);
    }
    // What is mounted is passed over.
    alice(&tank, "zfs mount -a").ok();
    alice(&tank, "zfs mount -a -o rw,suid").ok();
    let said = alice(&tank, "zfs mount -o rw,suid tank/a").fails(1);
    assert_eq!(said, "cannot mount 'tank/a': filesystem already mounted");
    assert_eq!(state(), before);
    // What root mistypes is told, and changes nothing; properties take effect as before.
    for options in ["remount,junk", "remount,rw,exec,junk", "junk,suid,remount"] {
        let said = tank.refused(&format!("mount -o {options} tank/a"));
        assert_eq!(said, "cannot mount 'tank/a': unsupported option: junk");
        assert_eq!(state(), before);
    }
    tank.zfs("set readonly=off tank/a");
    fs::write(tank.path("tank/a/one"), "1").unwrap();
    for _ in 0..3 {
        tank.zfs("mount -o remount,ro,noatime tank/a");
        assert!(fs::write(tank.path("tank/a/one"), "2").is_err());
        tank.zfs("mount -o remount,rw tank/a");
        fs::write(tank.path("tank/a/one"), "3").unwrap();
    }
    tank.finish();
}
