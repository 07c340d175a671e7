//! `zfs allow` and `zfs unallow`: what is granted is shown, and is on disk as OpenZFS has it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;

/// The permissions on a dataset and those above it, without the lines of dashes.
fn shown(tank: &Tank, dataset: &str) -> Vec<String> {
    let text = tank.zfs(&format!("allow {dataset}"));
    let lines = text.lines().map(|line| match line.strip_prefix("---- Permissions on ") {
        Some(rest) => rest.trim_end_matches('-').trim_end().to_string(),
        None => line.trim_start().to_string(),
    });
    lines.collect()
}

#[test]
fn permissions_are_granted_shown_and_taken_away() {
    let tank = Tank::unmounted();
    assert_eq!(
        tank.session.run("zfs allow tank/no").fails(1),
        "cannot open 'tank/no': dataset does not exist\nFailed to open dataset: tank/no"
    );
    tank.zfs("create tank/a");
    tank.zfs("create tank/a/b");
    assert_eq!(tank.zfs("allow tank/a"), "");
    tank.zfs("allow -s @backup send,hold,snapshot tank");
    tank.zfs("allow -u root mount,@backup,compression tank/a");
    tank.zfs("allow -l -g 4294967000 create tank/a");
    tank.zfs("allow -d everyone diff,mount tank/a");
    tank.zfs("allow -c destroy,@backup tank/a");
    assert_eq!(
        shown(&tank, "tank/a/b"),
        [
            "tank/a",
            "Create time permissions:",
            "@backup,destroy",
            "Local permissions:",
            "group (unknown: 4294967000) create",
            "Descendent permissions:",
            "everyone diff,mount",
            "Local+Descendent permissions:",
            "user root @backup,compression,mount",
            "tank",
            "Permission sets:",
            "@backup hold,send,snapshot",
        ]
    );
    // A user who makes a dataset gets the permissions of creators.
    tank.zfs("create tank/a/new");
    let new = ["tank/a/new", "Local permissions:", "user root @backup,destroy"];
    assert_eq!(shown(&tank, "tank/a/new")[..3], new);
    refusals(&tank);
    tank.zfs("allow -u root mount tank/a/b");
    tank.zfs("unallow -r -u root mount tank/a");
    assert_eq!(shown(&tank, "tank/a/b")[0], "tank/a");
    tank.zfs("unallow -u root tank/a");
    tank.zfs("unallow -g 4294967000 tank/a");
    tank.zfs("unallow -c tank/a");
    let left = ["tank/a", "Descendent permissions:", "everyone diff,mount"];
    assert_eq!(shown(&tank, "tank/a")[..3], left);
    tank.zfs("unallow -e diff tank/a");
    tank.zfs("unallow -e mount tank/a");
    tank.zfs("unallow -s @backup tank");
    assert_eq!(tank.zfs("allow tank/a"), "");
    let history = tank.session.run("zpool history -i tank").ok();
    for line in ["permission update tank (", "permission remove tank/a (", "zfs unallow -c tank/a"]
    {
        assert!(history.contains(line), "{line}: {history}");
    }
    tank.finish();
}

fn refusals(tank: &Tank) {
    for line in ["allow -u root nothing tank", "allow -e used tank", "allow -s @a/b mount tank"] {
        assert_eq!(tank.refused(line), "cannot set permissions on 'tank': invalid permission");
    }
    let run = |line: &str| tank.session.run(&format!("zfs {line}")).fails(2);
    let wrong = run("allow -u root tank");
    assert!(wrong.starts_with("wrong number of parameters\nusage:\n\tallow <file"), "{wrong}");
    assert!(wrong.contains("\nsnapshot                 subcommand\n"), "{wrong}");
    // Asked for, help is no mistake; with more beside it, it is.
    for (line, text) in [("allow -h", "  -c "), ("unallow -h", "  -r ")] {
        let asked = tank.zfs(line);
        assert!(asked.starts_with("Usage: \t") && asked.contains(text), "{asked}");
        assert!(asked.contains("\nsnapshot                 subcommand\n"), "{asked}");
    }
    for line in ["allow -h tank", "allow -lh", "allow -?", "unallow --help", "list -h"] {
        assert!(run(line).contains("usage:\n"), "{line}");
    }
    assert!(run("allow nobody/here mount tank").starts_with("invalid user/group nobody/here\n"));
}

#[test]
fn zdb_sees_what_is_granted() {
    let tank = Tank::unmounted();
    tank.zfs("allow -s @backup send,hold tank");
    tank.zfs("allow -u root @backup,mount tank");
    let dir = tank.session.path("");
    tank.session.run("zpool export tank").ok();
    // It fails: it does not follow the lists of permissions, and takes them for lost objects.
    let zdb =
        cenote_testpools::zdb_command(&["-e", "-p", &dir.display().to_string(), "-dddd", "tank"]);
    let (_, text) = cenote_testpools::zdb_output(zdb);
    for line in ["s-$@backup = ", "ul$0 = ", "Ud$0 = ", "send = 0", "@backup = 0", "mount = 0"] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    assert_eq!(text.matches("DSL permissions\n").count(), 6, "the grants and five lists: {text}");
    cenote_testpools::judge(&dir, "tank");
    let dir = dir.display();
    tank.session.run(&format!("zpool import -N -d {dir} tank")).ok();
    assert!(tank.zfs("allow tank").contains("\tuser root @backup,mount\n"));
    tank.zfs("unallow -s @backup send tank");
    tank.finish();
}
