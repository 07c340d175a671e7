//! OpenZFS's words and values that scripts rely on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{Session, can_mount};
use std::fs;
use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Duration;

#[test]
fn no_encryption_can_be_asked_for() {
    let tank = Tank::new("-O encryption=off -O canmount=off -O mountpoint=none");
    tank.zfs("create -o encryption=off tank/a");
    tank.zfs("create -o encryption=off -o keylocation=none -V 1M tank/v");
    tank.zfs("snapshot tank/a@s");
    let why = "cannot create 'tank/c': Encryption properties must inherit from origin dataset.";
    assert_eq!(tank.refused("clone -o encryption=off tank/a@s tank/c"), why);
    assert_eq!(tank.zfs("get -Ho value,source encryption tank/a"), "off\tdefault\n");
    let why = "cannot create 'tank/y': Keyformat required for new encryption root.";
    assert_eq!(tank.refused("create -o encryption=aes-256-gcm tank/y"), why);
    tank.finish();
}

#[test]
fn an_export_by_hard_force_leaves_a_pool_in_use() {
    let tank = Tank::unmounted();
    tank.zfs("create tank/a");
    let s = &tank.session;
    s.run("zpool export -F tank").ok();
    assert_eq!(s.run("zpool list -Ho name").out, "");
    let dir = s.dir.path().display().to_string();
    let state =
        cenote_testpools::output(s.command().args(["zdb", "-l", s.path("disk").to_str().unwrap()]));
    let state = String::from_utf8_lossy(&state.stdout).into_owned();
    assert!(state.contains("    state: 0\n"), "{state}");
    s.run(&format!("zpool import -f -N -d {dir} tank")).ok();
    assert_eq!(tank.names(), ["tank", "tank/a"]);
    tank.finish();
}

#[test]
fn what_lies_too_deep_is_renamed_at_its_level() {
    let tank = Tank::unmounted();
    let (s, deep) = (&tank.session, format!("tank{}", "/a".repeat(9)));
    tank.zfs(&format!("create -p {deep}/x"));
    s.run("tunables set zfs_max_dataset_nesting=5").ok();
    tank.zfs(&format!("rename {deep}/x {deep}/y"));
    tank.zfs(&format!("rename {deep}/y tank/a/a/a/a/a/y"));
    let why = tank.refused(&format!("rename tank/a/a/a/a/a/y {deep}/y"));
    assert!(why.ends_with("maximum name nesting depth exceeded"), "{why}");
    tank.finish();
}

#[test]
fn values_that_openzfs_takes() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    tank.zfs("create -o canmount=off tank/a");
    tank.zfs("create -o compression=zle tank/b");
    tank.zfs("create -o compression=lz4 tank/c");
    tank.zfs("snapshot tank/a@s");
    s.run("zpool set bootfs=tank/a@s tank").ok();
    assert_eq!(s.run("zpool get -Ho value bootfs tank").ok(), "tank/a@s\n");
    tank.zfs("create -V 1M tank/v");
    tank.zfs("snapshot tank/v@s");
    s.run("zpool set bootfs=tank/v@s tank").fails(1);

    // Words sort as such.
    assert_eq!(
        tank.zfs("list -Ho name -t fs -s compression tank/a tank/b tank/c"),
        "tank/c\ntank/a\ntank/b\n"
    );
    assert_eq!(
        tank.zfs("list -Ho name -t fs -S compression tank/a tank/b tank/c"),
        "tank/b\ntank/a\ntank/c\n"
    );

    let told = s.run("zfs set special_small_blocks=3000 tank/b");
    assert!(told.code == 0 && told.err.contains("before OpenZFS 2.4"), "{told:?}");
    assert_eq!(tank.get("special_small_blocks", "tank/b"), "3000");
    tank.zfs("set special_small_blocks=0 tank/b");

    let long = format!("/x/{}", "y".repeat(256));
    assert_eq!(
        tank.refused(&format!("set mountpoint={long} tank/b")),
        "cannot set property for 'tank/b': component of 'mountpoint' is too long"
    );
    for line in ["zfs set tank/b atime=off", "zfs set atime=off tank/b exec=off"] {
        let why = s.run(line).fails(2);
        assert!(why.starts_with("invalid argument order\n"), "{line}: {why}");
    }
    assert_eq!(tank.get("atime", "tank/b"), "on");
    tank.finish();
}

#[test]
fn dates_are_in_the_callers_time_zone() {
    let tank = Tank::unmounted();
    let hours = |line: &str| {
        ["UTC", "IST-5:30"].map(|zone| {
            let words: Vec<&str> = line.split(' ').collect();
            let output =
                cenote_testpools::output(tank.session.command().env("TZ", zone).args(words));
            let text = String::from_utf8(output.stdout).unwrap();
            let (hour, minute) = text.split_once(':').unwrap();
            let hour: i64 = hour[hour.len() - 2..].trim().parse().unwrap();
            hour * 60 + minute[..2].parse::<i64>().unwrap()
        })
    };
    tank.zfs("snapshot tank@s");
    for line in [
        "zfs get -Ho value creation tank",
        "zfs list -Ho creation tank",
        "zfs get -Ho value snapshots_changed tank",
    ] {
        let [utc, there] = hours(line);
        assert_eq!((there - utc).rem_euclid(24 * 60), 5 * 60 + 30, "{line}");
    }
    tank.finish();
}

#[test]
fn what_history_and_events_call_changes() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    tank.zfs("create tank/a");
    tank.zfs("snapshot tank/a@s");
    tank.zfs("rollback tank/a@s");
    let history = s.run("zpool history -i tank").ok();
    let swapped = |l: &str| l.contains("clone swap tank/a/%rollback (") && l.ends_with(" parent=a");
    assert!(history.lines().any(swapped), "{history}");
    // What was in the head goes as a clone does.
    let gone = |l: &str| l.contains("destroy tank/a/%rollback (") && l.contains(", mintxg=");
    assert!(history.lines().any(gone), "{history}");
    let sent = |from: &str, to: &str| {
        s.on_terminal(&format!("cenote zfs send {from} | cenote zfs receive -u {to}"))
    };
    assert_eq!(sent("tank/a@s", "tank/b"), "");
    tank.zfs("snapshot tank/a@t");
    assert_eq!(sent("-i tank/a@s tank/a@t", "tank/b"), "");
    let history = s.run("zpool history -i tank").ok();
    let swapped = |l: &&str| l.contains("clone swap tank/b/%recv (") && l.ends_with(" parent=b");
    assert_eq!(history.lines().filter(swapped).count(), 1, "{history}");
    let gone = |l: &&str| l.contains("destroy tank/b/%recv (") && l.contains(", mintxg=");
    assert_eq!(history.lines().filter(gone).count(), 1, "{history}");
    s.run("zpool events -c").ok();
    s.run("zpool clear tank").ok();
    let events = s.run("zpool events -H").ok();
    assert!(events.contains("sysevent.fs.zfs.config_sync\n"), "{events}");
    tank.finish();
}

/// As OpenZFS's zdb has them.
#[test]
fn bookmarks_in_the_order_in_which_they_are_stored() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    tank.zfs("create tank/a");
    tank.zfs("snapshot tank/a@s");
    (0..9).for_each(|n| drop(tank.zfs(&format!("bookmark tank/a@s tank/a#mark{n}"))));
    s.run("zpool export tank").ok();
    let names = |text: &str| -> Vec<String> {
        let names = text.lines().filter_map(|line| line.trim_start().strip_prefix("#mark"));
        names.map(|line| line[..1].to_string()).collect()
    };
    let dir = s.dir.path();
    let theirs = names(&cenote_testpools::zdb(dir, "tank", &["-dddd"]));
    let ours = s.run(&format!("zdb -e -p {} -dddd tank", dir.display())).ok();
    assert_eq!((names(&ours), theirs.len()), (theirs, 9));
}

#[test]
fn colours_where_they_are_asked_for() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    let told = |setting: &str, line: &str| s.on_terminal(&format!("{setting} cenote zpool {line}"));
    let painted = told("ZFS_COLOR=1 TERM=xterm", "status tank");
    for bold in ["pool:", "state:", "config:\r\n\r\n\tNAME "] {
        assert!(painted.contains(&format!("\x1b[1m{bold}")), "{painted:?}");
    }
    let plain = told("TERM=xterm", "status tank");
    assert_eq!(plain, s.run("zpool status tank").ok().replace('\n', "\r\n"));
    assert_eq!(plain, painted.replace("\x1b[1m", "").replace("\x1b[0m", ""));
    s.run("zpool export tank").ok();
    let other = s.path("other");
    fs::File::create(&other).unwrap().set_len(128 << 20).unwrap();
    let other = other.display().to_string();
    let two = format!("mirror {} {other}", s.path("disk").display());
    s.run(&format!("zpool create -f -O canmount=off -O mountpoint=none tank {two}")).ok();
    s.run(&format!("zpool offline -f tank {other}")).ok();
    let painted = told("ZFS_COLOR=1 TERM=xterm", "status tank");
    assert!(painted.contains(" \x1b[0;33mDEGRADED\x1b[0m\r\n"), "{painted:?}");
    assert!(painted.contains("\x1b[1mstatus: \x1b[0m\x1b[0;33mOne or more"), "{painted:?}");
    assert!(painted.contains(&format!("\x1b[0;31m\t    {other}")), "{painted:?}");
    assert!(painted.contains("  \x1b[0;31mexternal device fault\x1b[0m"), "{painted:?}");
    let painted = told("ZFS_COLOR=1 TERM=xterm", "iostat tank");
    assert!(painted.starts_with("\x1b[1m "), "{painted:?}");
    assert!(painted.contains("\x1b[0;33mM\x1b[0m"), "{painted:?}");
    for setting in ["ZFS_COLOR=1 TERM=dumb", "ZFS_COLOR=1 NO_COLOR=1 TERM=xterm"] {
        assert!(!told(setting, "iostat tank").contains('\x1b'), "{setting}");
    }
    tank.finish();
}

#[test]
fn the_root_vdev_has_properties() {
    let s = Session::new();
    let disk = s.path("disk");
    fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let options = "-O canmount=off -O mountpoint=none";
    s.run(&format!("zpool create {options} tank {}", disk.display())).ok();
    let why = s.run("zpool set user:one=1 tank root").fails(1);
    assert!(why.ends_with("this vdev has no place for properties"), "{why}");
    s.run("zpool set feature@vdev_zaps_v2=enabled tank").ok();
    assert_eq!(s.run("zpool get -Ho value feature@vdev_zaps_v2 tank").ok(), "active\n");
    s.run("zpool set user:one=1 tank root").ok();
    s.run("zpool set comment=two tank root-0").ok();
    let shown =
        |vdev: &str| s.run(&format!("zpool get -Ho value user:one,comment tank {vdev}")).ok();
    assert_eq!((shown("root"), shown("root-0")), ("1\ntwo\n".into(), "1\ntwo\n".into()));
    s.run("zpool export tank").ok();
    let dir = s.dir.path().display().to_string();
    // OpenZFS 2.1 does not know the feature.
    let checked = s.run(&format!("zdb -e -p {dir} -bccd tank"));
    assert!(checked.code == 0 && checked.out.contains("No leaks"), "{checked:?}");
    assert!(!checked.out.contains("MOS object"), "{checked:?}");
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    assert_eq!(shown("root-0"), "1\ntwo\n");
    s.run("zpool export tank").ok();
}

#[test]
fn a_pool_is_frozen() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    assert!(s.run("zpool freeze").fails(2).contains("missing pool name"));
    s.run("zpool freeze nowhere").fails(1);
    tank.zfs("create tank/a");
    s.run("zpool freeze tank").ok();
    tank.zfs("create tank/b");
    assert_eq!(tank.names(), ["tank", "tank/a", "tank/b"]);
    s.run("zpool export tank").ok();
    let dir = s.dir.path().display().to_string();
    s.run(&format!("zpool import -f -N -d {dir} tank")).ok();
    assert_eq!(tank.names(), ["tank", "tank/a"]);
    tank.finish();
}

#[test]
fn programs_dump_core_where_that_is_asked_for() {
    let s = Session::new();
    for (tool, words) in [("zpool", "list"), ("zfs", "list")] {
        let mut command = s.command();
        command.args([tool, words]).env("ZFS_ABORT", "1");
        let output = cenote_testpools::output(&mut command);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6));
        assert!(String::from_utf8_lossy(&output.stdout).ends_with("dumping core by request\n"));
    }
}

#[test]
fn files_without_names_are_kept_while_that_is_suspended() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let s = &tank.session;
    tank.zfs("create -o compression=off tank/a");
    let at = |name: &str| tank.path("tank/a").join(name);
    for name in ["first", "second"] {
        fs::write(at(name), vec![7; 1 << 20]).unwrap();
    }
    let used = || {
        s.run("zpool sync").ok();
        tank.get("referenced", "tank/a").parse::<u64>().unwrap()
    };
    assert!(used() > 2 << 20);
    s.run("tunables set zfs_unlink_suspend_progress=1").ok();
    fs::remove_file(at("first")).unwrap();
    assert!(!at("first").exists() && used() > 2 << 20);
    tank.zfs("unmount tank/a");
    tank.zfs("mount tank/a");
    assert!(used() > 2 << 20);
    s.run("tunables reset zfs_unlink_suspend_progress").ok();
    fs::remove_file(at("second")).unwrap();
    tank.zfs("unmount tank/a");
    tank.zfs("mount tank/a");
    let begun = std::time::Instant::now();
    while used() > 1 << 20 {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    tank.finish();
}

#[test]
fn a_device_stands_for_the_file_system_of_its_pool() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("-O mountpoint=legacy");
    let (disk, at) = (tank.session.path("disk"), tank.session.path("root"));
    fs::create_dir_all(&at).unwrap();
    let mut helper = tank.session.command();
    helper.arg0("mount.zfs").args([&disk, &at]);
    let output = cenote_testpools::output(&mut helper);
    assert!(output.status.success(), "{output:?}");
    fs::write(at.join("file"), "x").unwrap();
    let unmounted = std::process::Command::new("umount").arg(&at).status().unwrap();
    assert!(unmounted.success());
    tank.finish();
}

#[test]
fn other_pools_get_a_header_of_their_own() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    let second = s.path("second");
    fs::File::create(&second).unwrap().set_len(128 << 20).unwrap();
    let headers = |text: &str| text.lines().filter(|l| l.starts_with("pool ")).count();
    thread::scope(|scope| {
        let shows = scope.spawn(|| s.run("zpool iostat 1 20").ok());
        thread::sleep(Duration::from_secs(2));
        let root = "-O canmount=off -O mountpoint=none";
        s.run(&format!("zpool create {root} second {}", second.display())).ok();
        let text = shows.join().unwrap();
        assert_eq!(headers(&text), 2, "{text}");
        // A pool that is named goes and comes back. Where it is not there no time is told.
        let shows = scope.spawn(|| s.run("zpool iostat -T u second 1 14"));
        thread::sleep(Duration::from_secs(2));
        s.run("zpool export second").ok();
        thread::sleep(Duration::from_secs(4));
        s.run(&format!("zpool import -d {} second", second.display())).ok();
        let done = shows.join().unwrap();
        assert_eq!((done.code, headers(&done.out)), (0, 2), "{done:?}");
        assert!(done.err.lines().count() > 1, "{done:?}");
        assert!(done.err.lines().all(|line| line == "no pools available"), "{done:?}");
        let of = |which: &dyn Fn(&str) -> bool| done.out.lines().filter(|line| which(line)).count();
        let times = of(&|line| line.parse::<u64>().is_ok());
        assert_eq!(times, of(&|line| line.starts_with("second")), "{done:?}");
    });
    s.run("zpool destroy second").ok();
    tank.finish();
}

#[test]
fn numbers_of_files_lead_to_their_paths() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let dir = tank.path("tank/a/dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "x").unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.join("file")).unwrap());
    let (objset, object) = (tank.get("objsetid", "tank/a"), inode.to_string());
    let told = |args: &[&str]| {
        let mut command = tank.session.command();
        let output = cenote_testpools::output(command.arg0("zfs_ids_to_path").args(args));
        let text =
            String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap(), text.lines().next().unwrap_or_default().to_string())
    };
    let (path, named) = (dir.join("file").display().to_string(), "tank/a:/dir/file".to_string());
    assert_eq!(told(&["tank", &objset, &object]), (0, path));
    assert_eq!(told(&["-v", "tank", &objset, &object]), (0, named.clone()));
    tank.zfs("unmount tank/a");
    assert_eq!(told(&["tank", &objset, &object]), (0, named));
    assert_eq!(told(&["tank", &objset, "999"]), (0, "tank/a:<0x3e7>".into()));
    assert_eq!(told(&["tank", "1"]), (1, "Incorrect number of arguments: 2".into()));
    assert_eq!(told(&["tank", "x", "1"]), (2, "Invalid objset id: x".into()));
    assert_eq!(told(&["tank", "1", "x"]), (3, "Invalid object id: x".into()));
    assert_eq!(told(&["none", "1", "1"]), (5, "Could not open pool none".into()));
    tank.finish();
}
