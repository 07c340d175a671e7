//! What commands leave in the history of a pool.

use crate::{Bench, zdb};

#[test]
fn commands_go_into_the_history() {
    let b = Bench::new();
    b.run("zpool create -m none tank a").ok();
    b.run("zpool set comment=x tank").ok();
    b.run("zpool set nope=x tank").fails(1);
    b.run("zpool list").ok();
    for line in ["create -p tank/x/y", "inherit -r atime tank", "set atime=off tank tank/x"] {
        b.run(&format!("zfs {line}")).ok();
    }
    for line in ["set reservation=1T tank/x", "set atime=on tank tank/nope"] {
        b.run(&format!("zfs {line}")).fails(1);
    }
    b.run("zpool export tank").ok();
    b.import("tank");
    let history = b.short(&b.run("zpool history tank").ok());
    let lines: Vec<&str> = history
        .lines()
        .map(|l| l.split_once(' ').filter(|_| l.starts_with("20")).map_or(l, |(_, rest)| rest))
        .collect();
    let import = format!("zpool import -d {} -R {} tank", b.devices().display(), b.s.root());
    assert_eq!(
        lines,
        [
            "History for 'tank':",
            "zpool create -m none tank a",
            "zpool set comment=x tank",
            "zfs create -p tank/x/y",
            "zfs inherit -r atime tank",
            "zfs set atime=off tank tank/x",
            "zpool export tank",
            &import,
            "",
        ]
    );
    let long = b.run("zpool history -il tank").ok();
    let me = rustix::process::getuid().as_raw();
    assert!(long.contains(&format!("zpool set comment=x tank [user {me} ")), "{long}");
    assert!(long.contains("create pool version 5000; software version cenote-"), "{long}");
    assert!(long.contains("import pool version 5000; software version cenote-"), "{long}");
    assert!(long.contains("] set comment=x ["), "{long}");
    b.run("zpool export tank").ok();
    let told = zdb(&b.devices(), &["-h"]);
    assert!(told.contains("zpool set comment=x tank"), "{told}");
}

/// What `zpool history -i` says of the requests that commands have made, by their command lines.
fn requests(b: &Bench, pool: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut request, mut open) = (String::new(), false);
    for line in b.run(&format!("zpool history -i {pool}")).ok().lines() {
        if let Some((_, name)) = line.split_once("ms) ioctl ") {
            (request, open) = (format!("{request}{name}\n"), true);
        } else if open {
            request += &format!("{line}\n");
            open = !line.is_empty();
        } else if let Some((_, command)) = line.split_once(' ').filter(|(_, c)| c.starts_with('z'))
        {
            found.push((command.to_string(), std::mem::take(&mut request)));
        }
    }
    found
}

#[test]
fn requests_are_in_the_internal_history_as_openzfs_has_them() {
    let b = Bench::new();
    // By OpenZFS, of the sample.
    b.s.import("clones");
    let theirs = requests(&b, "clones");
    b.run("zpool export clones").ok();
    b.run("zpool create -m none clones a").ok();
    let chosen = |line: &str| {
        ["create clones/gen", "create -V", "create -s -V", "snapshot clones/gen", "destroy"]
            .iter()
            .any(|start| line.starts_with(&format!("zfs {start}")))
    };
    let lines: Vec<_> = theirs.iter().filter(|(line, _)| chosen(line)).collect();
    for (line, _) in &lines {
        assert_eq!(b.run(line).code, 0, "{line}");
    }
    let ours = requests(&b, "clones");
    for (line, request) in &lines {
        let own = ours.iter().rfind(|(own, _)| own == line);
        assert_eq!(own.map(|(_, own)| own), Some(request), "{line}");
    }
    let kinds: Vec<&str> = lines.iter().map(|(_, r)| r.lines().next().unwrap_or("")).collect();
    for kind in ["create", "snapshot", "destroy_snaps"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    // What is refused is not on record.
    b.run("zfs snapshot clones/gen@new").ok();
    b.run("zfs snapshot clones/gen@new").fails(1);
    b.run("zpool reopen -n clones").ok();
    let ours = requests(&b, "clones");
    assert_eq!(ours.iter().filter(|(line, _)| line == "zfs snapshot clones/gen@new").count(), 1);
    let reopen = "reopen\n    input:\n        scrub_restart: false\n\n".to_string();
    assert_eq!(ours.last(), Some(&("zpool reopen -n clones".into(), reopen)));
    b.run("zpool export clones").ok();
    let told = cenote_testpools::zdb(&b.devices(), "clones", &["-hh"]);
    assert!(told.contains("ioctl: 'destroy_snaps'"), "{told}");
    cenote_testpools::judge(&b.devices(), "clones");
}
