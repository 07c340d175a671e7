//! Quotas of users, groups and projects are set, kept to and listed. OpenZFS's own `zdb` says the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{can_mount, must};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::chown;
use std::path::Path;

/// Writes, a transaction group for each chunk, until the file system refuses; how much it took.
fn fill(tank: &Tank, file: &mut File) -> u64 {
    let chunk = vec![7; 256 << 10];
    for n in 0..64u64 {
        // The kernel writes when the file is synced, or before.
        match file.write_all(&chunk).and_then(|()| file.sync_all()) {
            Ok(()) => drop(tank.session.run("zpool sync").ok()),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::QuotaExceeded, "{e}");
                return n * (256 << 10);
            }
        }
    }
    panic!("no quota");
}

fn owned(path: &Path, uid: u32, gid: u32) -> File {
    let file = File::create(path).unwrap();
    chown(path, Some(uid), Some(gid)).unwrap();
    file
}

#[test]
fn quotas_are_set_kept_to_and_listed() {
    if !can_mount() {
        return common::skip("cannot mount");
    }
    let tank = Tank::new("");
    tank.zfs("create -o compression=off -o userobjquota@4001=3 tank/a");
    let (a, b) = (tank.path("tank/a/a"), tank.path("tank/a/b"));
    let (mut first, mut second) = (owned(&a, 4000, 5000), owned(&b, 4001, 5000));
    tank.zfs("set userquota@4000=1M groupobjquota@5000=10 tank/a");
    assert_eq!(tank.get("userquota@4000,groupobjquota@5000", "tank/a"), "1048576\n10");
    assert!((1 << 20..2 << 20).contains(&fill(&tank, &mut first)));
    second.write_all(&[1; 4096]).unwrap();
    // Objects: user 4001 may have three files.
    for name in ["c", "d"] {
        owned(&tank.path(&format!("tank/a/{name}")), 4001, 5000);
        tank.session.run("zpool sync").ok();
    }
    let more = tank.path("tank/a/e");
    File::create(&more).unwrap();
    let refused = chown(&more, Some(4001), None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    // A larger quota holds at once, also with the file open; so does `none`.
    tank.zfs("set userquota@4000=2M tank/a");
    assert!(fill(&tank, &mut first) > 0);
    tank.zfs("set userquota@4000=none userobjquota@4001=none tank/a");
    first.write_all(&[7; 1 << 20]).unwrap();
    chown(&more, Some(4001), None).unwrap();
    // Users without a quota of their own go by the default.
    tank.zfs("set defaultuserquota=1M tank/a");
    assert_eq!(tank.get("defaultuserquota", "tank/a"), "1048576");
    assert!((1 << 20..2 << 20).contains(&(fill(&tank, &mut second) + 4096)));
    tank.zfs("set userquota@4001=3M tank/a");
    assert!(fill(&tank, &mut second) >= 1 << 20);
    tank.zfs("set defaultuserquota=none tank/a");
    assert_eq!(tank.get("defaultuserquota", "tank/a"), "0");
    drop((first, second));
    listed(&tank);
    tank.finish();
}

/// What `zfs userspace` and its kin print, in each form.
fn listed(tank: &Tank) {
    tank.session.run("zpool sync").ok();
    let [used, other, objects] =
        ["userused@4000", "userused@4001", "userobjused@4001"].map(|p| tank.get(p, "tank/a"));
    let lines = tank.zfs("userspace -Hp tank/a");
    let lines: Vec<&str> = lines.lines().filter(|l| !l.contains("root")).collect();
    assert_eq!(
        lines,
        [
            format!("POSIX User\t4000\t{used}\t0\t1\t0"),
            format!("POSIX User\t4001\t{other}\t{}\t{objects}\t0", 3 << 20),
        ]
    );
    assert_eq!(tank.zfs("userspace -Hn -o name -s used tank/a"), "0\n4000\n4001\n");
    assert_eq!(tank.zfs("userspace -Hn -o name -S quota tank/a"), "4001\n0\n4000\n");
    assert_eq!(tank.zfs("userspace -H -t smbuser tank/a"), "");
    let text = tank.zfs("groupspace -o name,objused,objquota tank/a");
    assert_eq!(text.lines().next(), Some("NAME  OBJUSED  OBJQUOTA"));
    assert!(text.lines().any(|l| l.split_whitespace().eq(["5000", "4", "10"])), "{text}");
    let mounted = tank.path("tank/a").display().to_string();
    assert_eq!(tank.zfs(&format!("groupspace -o name,objused,objquota {mounted}")), text);
    tank.zfs("snapshot tank/a@s");
    assert_eq!(tank.zfs("groupspace -o name,objused,objquota tank/a@s"), text);
    assert_eq!(tank.zfs("projectspace -Hp -o type,name,objquota tank/a"), "Project\t0\t0\n");
}

#[test]
fn files_are_put_into_projects() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let top = tank.path("tank/a/top");
    fs::create_dir_all(top.join("inner")).unwrap();
    for name in ["one", "inner/two"] {
        fs::write(top.join(name), [3; 100_000]).unwrap();
    }
    std::os::unix::fs::symlink("/etc/hostname", top.join("link")).unwrap();
    let dir = top.display().to_string();
    let project = |line: &str| tank.zfs(&format!("project {line}"));
    assert_eq!(project(&format!("-d {dir}")), format!("    0 - {dir}\n"));
    project(&format!("-p 7 -s {dir}"));
    fs::write(top.join("new"), "new").unwrap();
    let listed =
        format!("    7 P {dir}\n    0 - {dir}/inner\n    7 P {dir}/new\n    0 - {dir}/one\n");
    assert_eq!(project(&dir), listed);
    let said = project(&format!("-c -p 7 {dir}/one"));
    assert_eq!(
        said,
        format!(
            "{dir}/one - project ID is not set properly (0/7)\n{dir}/one - project inherit flag is \
             not set\n"
        )
    );
    assert_eq!(project(&format!("-c -0 -d -p 9 {dir}")), format!("{dir}\0"));
    project(&format!("-p 7 -r {dir}"));
    tank.session.run("zpool sync").ok();
    let used = tank.zfs("projectspace -Hpo name,objused tank/a");
    assert!(used.lines().any(|line| line == "7\t5"), "{used}");
    project(&format!("-C -k -r {dir}"));
    assert_eq!(project(&format!("-d {dir}")), format!("    7 - {dir}\n"));
    project(&format!("-C -r {dir}"));
    assert_eq!(project(&format!("-r {dir}/inner")).matches("    0 - ").count(), 2);
    for (line, why) in [
        ("-C -s x", "cannot specify '-C' '-c' '-s' together"),
        ("-k x", "'-k' is only valid together with '-C'"),
        ("-p 4294967295 x", "invalid project ID"),
        ("-d", "missing file or directory target(s)"),
    ] {
        let said = tank.session.run(&format!("zfs project {line}")).fails(2);
        assert!(said.starts_with(why), "{said}");
    }
    let said = tank.refused(&format!("project -r {dir}/one"));
    assert_eq!(said, format!("'-r' option on non-dir target {dir}/one"));
    let said = tank.refused("project /proc/version");
    assert!(said.starts_with("failed to get xattr for /proc/version: "), "{said}");
    tank.finish();
}

#[test]
fn zdb_sees_the_quotas_and_what_is_used() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    tank.zfs("set userquota@70000=1G groupquota@0=2G projectobjquota@9=30 tank/a");
    tank.zfs("set defaultprojectquota=4G groupquota@0=none tank/a");
    assert_eq!(tank.zfs("userspace -Hpn -o name,quota tank/a"), "0\t0\n70000\t1073741824\n");
    let mut used = BTreeMap::new();
    for (object, command) in
        [("-1", "userspace -n"), ("-2", "groupspace -n"), ("-3", "projectspace")]
    {
        used.insert(object, tank.zfs(&format!("{command} -Hp -o name,used,objused tank/a")));
    }
    tank.session.run("zpool export tank").ok();
    let dir = tank.session.dir.path().to_path_buf();
    cenote_testpools::judge(&dir, "tank");
    let master = cenote_testpools::zdb_command(&[
        "-e",
        "-p",
        dir.to_str().unwrap(),
        "-ddddd",
        "tank/a",
        "1",
    ]);
    let (_, text) = cenote_testpools::zdb_output(master);
    assert!(text.contains(&format!("defaultprojectquota = {}", 4u64 << 30)), "{text}");
    for (entry, key, value) in [
        ("userquota@", "11170", Some(1 << 30)),
        ("projectobjquota@", "9", Some(30)),
        ("groupquota@", "0", None),
    ] {
        let line = text.lines().find_map(|l| l.trim().strip_prefix(&format!("{entry} = ")));
        let table = line.unwrap().trim().to_string();
        let dir = dir.to_str().unwrap();
        let command = cenote_testpools::zdb_command(&["-e", "-p", dir, "-ddddd", "tank/a", &table]);
        let (_, text) = cenote_testpools::zdb_output(command);
        assert!(text.contains("ZFS user/group/project quota"), "{text}");
        let found = text.lines().find_map(|l| l.trim().strip_prefix(&format!("{key} = ")));
        assert_eq!(found.map(|v| v.trim().parse::<u64>().unwrap()), value, "{text}");
    }
    let dir = dir.to_str().unwrap();
    let command = cenote_testpools::zdb_command(&["-e", "-p", dir, "-ddddd", "tank/a"]);
    let (_, text) = cenote_testpools::zdb_output(command);
    for (object, lines) in used {
        let begins = |l: &&str| l.split_whitespace().next() == Some(object);
        let section: Vec<&str> = text.lines().skip_while(|l| !begins(l)).take(8).collect();
        let root = lines.lines().find(|l| l.starts_with("0\t")).unwrap();
        let values: Vec<&str> = root.split('\t').collect();
        for (key, value) in [("0", values[1]), ("obj-0", values[2])] {
            let entry = format!("{key} = {value}");
            assert!(section.iter().any(|l| l.trim() == entry), "{section:?}\n{lines}");
        }
    }
}

#[test]
fn quotas_are_set_as_datasets_are_made() {
    let tank = Tank::new("-O canmount=off -O mountpoint=none -O userquota@7=5M");
    assert_eq!(tank.get("userquota@7", "tank"), "5242880");
    tank.zfs("create -o groupquota@8=6M -o defaultuserobjquota=9 tank/a");
    assert_eq!(tank.get("groupquota@8,defaultuserobjquota", "tank/a"), "6291456\n9");
    tank.zfs("snapshot tank/a@s");
    tank.zfs("clone -o userquota@7=1M tank/a@s tank/b");
    assert_eq!(tank.get("userquota@7,groupquota@8", "tank/b"), "1048576\n6291456");
    assert_eq!(tank.get("userquota@7", "tank/a"), "0");
    tank.zfs("set groupquota@8=none tank/a");
    assert_eq!(tank.get("groupquota@8", "tank/a@s"), "6291456");
    tank.zfs("rollback tank/a@s");
    assert_eq!(tank.get("groupquota@8", "tank/a"), "6291456");
    tank.finish();
}

#[test]
fn refusals_are_in_openzfs_words() {
    let tank = Tank::unmounted();
    tank.zfs("create -V 8M tank/vol");
    tank.zfs("create tank/a");
    tank.zfs("snapshot tank/a@s");
    for (line, why) in [
        (
            "set userquota@nobody-of-this-name=1M tank/a",
            "cannot set property for 'tank/a': 'userquota@nobody-of-this-name' has an invalid user/group name",
        ),
        ("set userused@0=1M tank/a", "cannot set property for 'tank/a': 'userused@0' is readonly"),
        (
            "set userquota@0=lots tank/a",
            "cannot set property for 'tank/a': bad numeric value 'lots'",
        ),
        (
            "set userquota@0=1M tank/a@s",
            "cannot set property for 'tank/a@s': this property can not be modified for snapshots",
        ),
        (
            "set userquota@0=1M tank/vol",
            "cannot set property for 'tank/vol': 'userquota@0' does not apply to datasets of this type",
        ),
        (
            "userspace tank/vol",
            "cannot open 'tank/vol': operation not applicable to datasets of this type",
        ),
    ] {
        assert_eq!(tank.refused(line).trim_end(), why, "{line}");
    }
    for (line, why) in [
        ("userspace", "missing dataset name"),
        ("userspace tank tank/a", "too many arguments"),
        ("userspace -o size tank", "invalid type 'size' for -o option"),
        ("groupspace -s size tank", "invalid field 'size'"),
        ("groupspace -t x tank", "invalid type 'x' for -t option"),
        ("projectspace -n tank", "invalid option 'n'"),
    ] {
        let said = tank.session.run(&format!("zfs {line}")).fails(2);
        assert_eq!(said.lines().next(), Some(why), "{line}");
    }
    tank.finish();
}

#[test]
fn default_quotas_are_listed_for_who_has_no_own() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let defaults = "-o defaultuserquota=100M -o defaultgroupquota=500M -o defaultuserobjquota=9";
    tank.zfs(&format!("create {defaults} -o userquota@4001=3M tank/a"));
    owned(&tank.path("tank/a/x"), 4000, 5000).write_all(&[7; 4096]).unwrap();
    drop(owned(&tank.path("tank/a/y"), 4001, 5000));
    tank.session.run("zpool sync").ok();
    let listed = |line: &str| tank.zfs(&format!("{line} -Hpo name,quota,objquota tank/a"));
    let users = listed("userspace");
    for line in ["4000\t104857600\t9\n", "4001\t3145728\t9\n"] {
        assert!(users.contains(line), "{users}");
    }
    assert!(listed("groupspace").contains("5000\t524288000\t0\n"));
    assert_eq!(tank.get("userquota@4000", "tank/a"), "0");
    tank.finish();
}

#[test]
fn a_pool_that_is_upgraded_counts_objects_and_projects() {
    upgraded_pool_counts(false);
}

#[test]
fn a_file_system_that_lingers_is_counted_when_it_is_mounted_again() {
    upgraded_pool_counts(true);
}

/// `lingers`: a bind mount keeps the file system open while it is not mounted.
fn upgraded_pool_counts(lingers: bool) {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("-d");
    tank.zfs("create tank/a");
    let at = |name: &str| tank.path(&format!("tank/a/{name}"));
    for n in 0..700 {
        drop(owned(&at(&format!("f{n}")), 4000, 5000));
    }
    fs::write(at("kept"), vec![7; 300_000]).unwrap();
    tank.session.run("zpool sync").ok();
    tank.session.run("zpool upgrade tank").ok();
    assert_eq!(tank.get("userobjused@4000", "tank/a"), "-");
    let bound = tank.session.path("bound");
    if lingers {
        fs::create_dir(&bound).unwrap();
        must("mount", &["--bind", at("").to_str().unwrap(), bound.to_str().unwrap()]);
    }
    // What is changed before everything is counted, counts once.
    tank.zfs("unmount tank/a");
    assert_eq!(bound.join("kept").exists(), lingers);
    tank.zfs("mount tank/a");
    for n in 0..100 {
        fs::remove_file(at(&format!("f{n}"))).unwrap();
    }
    drop(owned(&at("new"), 4000, 5000));
    let begun = std::time::Instant::now();
    while tank.get("userobjused@4000", "tank/a") != "601" {
        let told = tank.zfs("userspace tank/a");
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{told}");
        tank.session.run("zpool sync").ok();
    }
    tank.session.run("zpool sync").ok();
    let number = |property: &str| tank.get(property, "tank/a").parse::<u64>().unwrap();
    assert_eq!(number("groupobjused@5000"), 601);
    // Everything is in no project: the root directory and a file of root's are all that others do not own.
    assert_eq!(number("projectobjused@0"), 601 + number("userobjused@0"));
    let used = number("userused@4000") + number("userused@0");
    assert!(used > 300_000 && number("projectused@0") == used);
    fs::remove_file(at("new")).unwrap();
    tank.zfs("set projectquota@7=100M tank/a");
    tank.session.run("zpool sync").ok();
    assert_eq!(number("userobjused@4000"), 600);
    let features = ["userobj_accounting", "project_quota"].map(|feature| {
        tank.session.run(&format!("zpool get -Ho value feature@{feature} tank")).ok()
    });
    assert_eq!(features, ["active\n", "active\n"]);
    // Nothing begins anew.
    tank.zfs("unmount tank/a");
    tank.zfs("mount tank/a");
    tank.session.run("zpool sync").ok();
    assert_eq!(number("userobjused@4000"), 600);
    if lingers {
        must("umount", &[bound.to_str().unwrap()]);
    }
    tank.finish();
}
