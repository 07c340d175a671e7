//! Commands and options that tools use: accepted and acted on, or kept and shown.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{Session, can_mount};
use serde_json::Value;
use std::fs;

fn pool_value(tank: &Tank, property: &str) -> String {
    let line = format!("zpool get -Hpo value {property} tank");
    tank.session.run(&line).ok().trim_end().to_string()
}

/// Runs a command that says that something is kept and has no effect here.
#[track_caller]
fn kept(tank: &Tank, line: &str, why: &str) {
    let told = tank.session.run(line);
    assert_eq!(told.code, 0, "{line}: {told:?}");
    let said = told.err.starts_with("warning: property '") && told.err.contains("has no effect");
    assert!(said && told.err.contains(why) && told.err.lines().count() == 1, "{line}: {told:?}");
}

#[test]
fn what_has_no_effect_here_is_kept_and_said() {
    let tank = Tank::unmounted();
    let disk = tank.session.path("disk").display().to_string();
    let of_vdev = format!("zpool set failfast=off tank {disk}");
    tank.zfs("create -o secondarycache=metadata tank/a");
    for (line, why) in [
        ("zfs create -V 1M -o volmode=dev tank/v", "not served as block devices"),
        ("zfs set snapdev=visible tank/v", "not served as block devices"),
        ("zfs set volthreading=off tank/v", "not served as block devices"),
        ("zfs set prefetch=none tank tank/a", "files are read ahead all the same"),
        ("zfs set vscan=on tank", "viruses"),
        ("zfs set nbmand=on tank", "mandatory locks"),
        (of_vdev.as_str(), "errors of devices"),
    ] {
        kept(&tank, line, why);
    }
    for setting in
        ["secondarycache=none", "aclmode=discard", "sharenfs=off", "volmode=none", "direct=always"]
    {
        tank.zfs(&format!("set {setting} tank"));
    }
    for failmode in ["continue", "panic", "wait"] {
        tank.session.run(&format!("zpool set failmode={failmode} tank")).ok();
    }
    tank.session.run(&format!("zpool set comment=x tank {disk}")).ok();
    tank.finish();
}

/// Cache devices have counts and space of their own, and what is on them.
#[test]
fn cache_devices_are_used_and_show_it() {
    let tank = Tank::unmounted();
    for name in ["c", "d", "other"] {
        std::fs::File::create(tank.session.path(name)).unwrap().set_len(128 << 20).unwrap();
    }
    let [c, d, other] =
        ["c", "d", "other"].map(|name| tank.session.path(name).display().to_string());
    let run = |line: &str| tank.session.run(line).ok();
    run(&format!("zpool add -n tank cache {c}"));
    run(&format!("zpool add tank cache {c}"));
    run(&format!("zpool create -m none other {other} cache {d}"));
    run("zfs create -V 4M tank/v");
    run("zpool sync tank");
    let begun = std::time::Instant::now();
    let alloc = || {
        let text = run(&format!("zpool get -Hpo value allocated,write_ops tank {c}"));
        let values: Vec<&str> = text.split_whitespace().collect();
        (values[0].parse::<u64>().unwrap(), values[1].parse::<u64>().unwrap())
    };
    while !matches!(alloc(), (1.., 1..)) {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", alloc());
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let list = run("zpool iostat -HpvP tank");
    let line = list.lines().find(|line| line.trim_start().starts_with(&c)).unwrap_or_default();
    let words: Vec<u64> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    assert!(words.len() == 6 && words[0] > 0 && words[1] > 100 << 20, "{list}");
    run(&format!("zpool offline tank {c}"));
    assert!(run("zpool status tank").contains("OFFLINE"));
    run(&format!("zpool online tank {c}"));
    run("zpool clear tank");
    let refused = tank.session.run(&format!("zpool replace tank {c} {other}"));
    assert_ne!(refused.code, 0, "{refused:?}");
    run(&format!("zpool remove tank {c}"));
    assert!(!run("zpool status tank").contains("cache"));
    run("zpool export other");
    tank.finish();
}

#[test]
fn permissions_are_not_silently_without_effect() {
    let tank = Tank::unmounted();
    let done = tank.session.run("zfs allow -u 1000 load-key,change-key,snapshot tank");
    let keys = "is kept, but has no effect: keys are loaded, unloaded and changed by the daemon's user and root alone";
    let lines =
        ["load-key", "change-key"].map(|name| format!("warning: permission '{name}' {keys}\n"));
    assert_eq!((done.code, done.err), (0, lines.concat()));
    let done = tank.session.run("zfs allow -u 1000 share,mount tank");
    let share = "warning: permission 'share' is kept, but has no effect: nothing is shared\n";
    assert_eq!((done.code, done.err.as_str()), (0, share));
    tank.zfs("unallow -u 1000 load-key,change-key,snapshot,share,mount tank");
    tank.finish();
}

#[test]
fn mount_options_are_not_silently_without_effect() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -u tank/a");
    for option in ["mand", "nbmand", "noacl", "iversion"] {
        let done = tank.session.run(&format!("zfs mount -o {option},noatime tank/a"));
        let said = format!("warning: mount option '{option}' has no effect: ");
        assert!(done.code == 0 && done.err.starts_with(&said), "{done:?}");
        assert_eq!(done.err.lines().count(), 1, "{done:?}");
        tank.zfs("unmount tank/a");
    }
    for option in ["nomand", "nonbmand", "acl", "noiversion", "async", "relatime"] {
        tank.session.run(&format!("zfs mount -o {option} tank/a")).ok();
        tank.zfs("unmount tank/a");
    }
    tank.finish();
}

#[test]
fn settings_for_others_are_kept() {
    let tank = Tank::unmounted();
    assert_eq!(pool_value(&tank, "autoexpand"), "off");
    tank.session.run("zpool set autoexpand=on tank").ok();
    assert_eq!(pool_value(&tank, "autoexpand"), "on");
    tank.session.run("zpool set autotrim=on tank").ok();
    assert_eq!(pool_value(&tank, "autotrim"), "on");
    tank.session.run("zpool set autotrim=off tank").ok();
    tank.zfs("create tank/a");
    tank.zfs("share -a");
    tank.zfs("unshare -a");
    let said = tank.refused("share tank/a");
    assert!(said.starts_with("cannot share 'tank/a': legacy share\nuse exports(5)"), "{said}");
    for (name, value) in [("sharenfs", "ON"), ("sharenfs", ""), ("sharesmb", "rw")] {
        let why =
            format!("cannot set property for 'tank': '{name}' cannot be set to invalid options");
        assert_eq!(tank.refused(&format!("set {name}={value} tank")), why);
    }
    for (name, value) in [("sharenfs", "rw=@10.0.0.0/8"), ("sharesmb", "on")] {
        kept(&tank, &format!("zfs set {name}={value} tank"), "nothing is shared by");
        assert_eq!(tank.get(name, "tank/a"), value);
        assert_eq!(tank.zfs(&format!("get -Ho source {name} tank/a")), "inherited from tank\n");
    }
    let why = "cannot share 'tank/a': sharing by 'sharenfs' is not supported";
    assert_eq!(tank.refused("share tank/a"), why);
    assert_eq!(tank.refused("unshare tank/a"), "cannot unshare 'tank/a': not currently shared");
    tank.zfs("share -a");
    tank.zfs("create -u -o mountpoint=/nowhere tank/b");
    assert_eq!(tank.refused("share -a nfs"), why.replace("tank/a", "tank/b"));
    tank.finish();
}

#[test]
fn devices_that_have_grown_are_grown_into() {
    let tank = Tank::unmounted();
    let disk = tank.session.path("disk");
    let grow = |size: u64| {
        fs::File::options().write(true).open(&disk).unwrap().set_len(size << 20).unwrap();
    };
    let size = || pool_value(&tank, "size").parse::<u64>().unwrap();
    let small = size();
    let online = format!("zpool online -e tank {}", disk.display());
    tank.session.run(&online).ok();
    assert_eq!(size(), small);
    grow(512);
    tank.session.run(&online.replace("-e ", "")).ok();
    assert_eq!(size(), small);
    let room = pool_value(&tank, "expandsize");
    assert_eq!(room.parse::<u64>().unwrap(), 256 << 20);
    tank.session.run(&online).ok();
    assert_eq!(pool_value(&tank, "expandsize"), "-");
    let larger = size();
    assert!(larger > small + (200 << 20), "{small} {larger}");
    grow(768);
    tank.session.run("zpool set autoexpand=on tank").ok();
    assert!(size() > larger + (200 << 20));
    grow(1024);
    tank.session.run("zpool reopen tank").ok();
    assert!(size() > larger + (450 << 20));
    tank.finish();
}

#[test]
fn figures_of_later_releases_are_there_by_name() {
    let tank = Tank::unmounted();
    let number = |name: &str| pool_value(&tank, name).parse::<u64>().unwrap();
    assert_eq!(number("usable"), number("size"));
    assert_eq!(number("used"), number("allocated"));
    assert_eq!(number("available"), number("usable") - number("used"));
    assert_eq!((number("dedupused"), number("dedupsaved")), (0, 0));
    let all = tank.session.run("zpool get -Ho property all tank").ok();
    assert!(all.lines().all(|name| !["usable", "used", "available"].contains(&name)));

    assert_eq!(tank.get("snapshots_changed_nsecs", "tank"), "-");
    tank.zfs("snapshot tank@s");
    let seconds: u64 = tank.get("snapshots_changed", "tank").parse().unwrap();
    let nanoseconds: u64 = tank.get("snapshots_changed_nsecs", "tank").parse().unwrap();
    assert_eq!(nanoseconds / 1_000_000_000, seconds);
    assert!(!tank.zfs("get -Ho property all tank").contains("snapshots_changed_nsecs"));
    tank.finish();
}

#[test]
fn vdevs_have_properties() {
    let s = Session::new();
    let disk = |name: &str| {
        fs::File::create(s.path(name)).unwrap().set_len(128 << 20).unwrap();
        s.path(name).display().to_string()
    };
    let (a, b, c) = (disk("a"), disk("b"), disk("c"));
    let root = "-O canmount=off -O mountpoint=none";
    s.run(&format!("zpool create {root} tank raidz {a} {b} {c}")).ok();
    let get = |property: &str, vdev: &str| {
        s.run(&format!("zpool get -Hpo value {property} tank {vdev}")).ok().trim_end().to_string()
    };
    assert_eq!(
        (get("parity", "raidz1-0"), get("numchildren", "raidz1-0")),
        ("1".into(), "3".into())
    );
    assert_eq!(get("children", "raidz1-0"), format!("{a},{b},{c}"));
    assert_eq!(
        (get("parent", &a), get("parent", "raidz1-0")),
        ("raidz1-0".into(), "root-0".into())
    );
    assert_eq!((get("path", &a), get("state", &a)), (a.clone(), "7".into()));
    assert_eq!(get("psize", &a), (128u64 << 20).to_string());
    assert_eq!(get("asize", &a), ((128u64 << 20) - (9 << 19)).to_string());
    assert_eq!((get("allocating", "raidz1-0"), get("allocating", &a)), ("on".into(), "-".into()));
    assert_eq!(get("checksum_n,failfast", &a), "-\non");
    let [size, free, used] =
        ["size", "free", "allocated"].map(|p| get(p, "raidz1-0").parse::<u64>().unwrap());
    assert_eq!(size - used, free);
    let writes: u64 = get("write_ops", "raidz1-0").parse().unwrap();
    let below: u64 = [&a, &b, &c].iter().map(|v| get("write_ops", v).parse::<u64>().unwrap()).sum();
    assert!(writes > 0 && writes <= below);

    let all = s.run(&format!("zpool get all tank {a}")).ok();
    assert!(all.starts_with("NAME"), "{all}");
    assert!(all.lines().any(|l| l.split_whitespace().eq([a.as_str(), "state", "ONLINE", "-"])));
    let every = s.run("zpool get -Ho name guid tank all-vdevs").ok();
    assert_eq!(every.lines().collect::<Vec<_>>(), ["root-0", "raidz1-0", &a, &b, &c]);
    assert_eq!(s.run("zpool get -Ho name guid tank root").ok(), "root-0\n");
    let named = s.run("zpool get -Ho name,value name tank all-vdevs").ok();
    let own = |name: &str, value: &str| format!("{name}\t{value}\n");
    let leaves: String = [&a, &b, &c].iter().map(|leaf| own(leaf, leaf)).collect();
    assert_eq!(named, own("root-0", "tank") + &own("raidz1-0", "raidz-0") + &leaves);
    assert!(!all.contains(" name "), "{all}");
    let json: Value =
        serde_json::from_str(&s.run("zpool get -j state,guid tank raidz1-0").ok()).unwrap();
    let vdev = &json["vdevs"]["raidz1-0"];
    assert_eq!(
        (&vdev["type"], &vdev["vdev_type"], &vdev["properties"]["state"]["value"]),
        (&"VDEV".into(), &"raidz".into(), &"ONLINE".into())
    );
    assert_eq!(vdev["properties"]["guid"]["value"], vdev["guid"]);
    assert_eq!(json["pool"]["name"], "tank");
    let why = s.run("zpool get nosuch tank raidz1-0").fails(2);
    assert!(why.starts_with("bad property list: invalid property 'nosuch'\n"), "{why}");
    let why = s.run("zpool get all tank raidz1-0 nosuch").fails(2);
    assert!(
        why.starts_with(
            "Expected a list of vdevs in \"tank\", but got:\n\traidz1-0 (vdev in this pool)\n\
             \tnosuch (unknown)\n"
        ),
        "{why}"
    );
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// Spares and cache devices come behind the root (`for_each_vdev_cb`), and have properties though they are in no tree.
#[test]
fn spares_and_cache_devices_have_properties() {
    let s = Session::new();
    let [a, b, spare, cache] = ["a", "b", "spare", "cache"].map(|name| {
        let path = s.path(name);
        fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
        path.display().to_string()
    });
    let create =
        s.run(&format!("zpool create -m none tank mirror {a} {b} spare {spare} cache {cache}"));
    assert_eq!((create.code, create.err.as_str()), (0, ""));
    let every = || {
        let names = s.run("zpool get -Ho name guid tank all-vdevs").ok();
        names.lines().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(every(), ["root-0", &spare, &cache, "mirror-0", &a, &b]);
    let get = |property: &str, vdev: &str| {
        let line = format!("zpool get -Hpo value,source {property} tank {vdev}");
        s.run(&line).ok().trim_end().to_string()
    };
    for (vdev, size) in [(&spare, 0), (&cache, (128 << 20) - (9 << 19))] {
        assert_eq!(get("state,path", vdev), format!("7\t-\n{vdev}\t-"));
        assert_eq!(get("psize,size", vdev), format!("{}\t-\n{size}\t-", 128 << 20));
        assert_eq!(get("failfast,comment,io_n", vdev), "on\tdefault\n-\tdefault\n-\tdefault");
        assert_eq!(get("parent,numchildren", vdev), "-\tdefault\n0\t-");
        let all = s.run(&format!("zpool get all tank {vdev}")).ok();
        assert!(all.lines().any(|l| l.split_whitespace().eq([vdev, "state", "ONLINE", "-"])));
        assert!(!all.contains("autosit"), "{all}");
        let refused = s.run(&format!("zpool set comment=x tank {vdev}")).fails(1);
        assert!(refused.ends_with("operation not supported on this type of vdev"), "{refused}");
    }
    let json: Value =
        serde_json::from_str(&s.run("zpool get -j guid tank all-vdevs").ok()).unwrap();
    assert_eq!(json["vdevs"][&spare]["class"], "spare");
    assert_eq!(json["vdevs"][&cache]["class"], "l2cache");
    assert_ne!(json["vdevs"][&cache]["guid"], json["vdevs"][&spare]["guid"]);
    // One that stands in for a device is the leaf, twice.
    s.run(&format!("zpool replace tank {a} {spare}")).ok();
    s.run("zpool wait -t resilver tank").ok();
    assert_eq!(every(), ["root-0", &spare, &cache, "mirror-0", "spare-0", &a, &spare, &b]);
    assert_eq!(get("parent", &spare), "spare-0\t-");
    s.run(&format!("zpool set comment=stands-in tank {spare}")).ok();
    assert_eq!(get("comment", &spare), "stands-in\tlocal");
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn properties_of_vdevs_are_set() {
    let tank = Tank::unmounted();
    let disk = tank.session.path("disk").display().to_string();
    let s = &tank.session;
    let get = |property: &str| {
        let line = format!("zpool get -Hpo value,source {property} tank {disk}");
        s.run(&line).ok().trim_end().to_string()
    };
    for (property, value) in [
        ("comment", "slot-7"),
        ("com.example:slot", "7"),
        ("checksum_n", "20"),
        ("failfast", "off"),
    ] {
        assert_eq!(s.run(&format!("zpool set {property}={value} tank {disk}")).code, 0);
        assert_eq!(get(property), format!("{value}\tlocal"));
    }
    s.run(&format!("zpool set com.example:slot= tank {disk}")).ok();
    assert_eq!(get("com.example:slot"), "-\tdefault");
    assert_eq!(s.run(&format!("zpool set checksum_n=none tank {disk}")).code, 0);
    assert_eq!(get("checksum_n"), "-\tdefault");
    for (setting, why) in [
        ("guid=1", "'guid' is readonly"),
        ("failfast=maybe", "'failfast' must be one of 'on | off'"),
        ("io_n=many", "bad numeric value 'many'"),
        ("allocating=off", "to set 'allocating' is not supported yet"),
        ("nosuch=1", "invalid property 'nosuch'"),
    ] {
        let property = setting.split('=').next().unwrap();
        let said = s.run(&format!("zpool set {setting} tank {disk}")).fails(1);
        assert_eq!(said, format!("cannot set property {property} for {disk} on tank: {why}"));
    }
    let history = s.run("zpool history -i tank").ok();
    assert!(history.contains(": com.example:slot=7"), "{history}");
    s.run("zpool export tank").ok();
    let dir = s.dir.path().display().to_string();
    s.run(&format!("zpool import -N -d {dir} tank")).ok();
    assert_eq!(get("comment"), "slot-7\tlocal");
    tank.finish();
}

#[test]
fn programs_add_columns_for_each_device() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    let dir = s.path("programs");
    fs::create_dir(&dir).unwrap();
    let program = |name: &str, text: &str| {
        fs::write(dir.join(name), format!("#!/bin/sh\n{text}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(dir.join(name), mode).unwrap();
    };
    program("place", "echo bay=7; echo \"home=${HOME:-none}\"; echo \"$(basename $VDEV_PATH)\"");
    program("fails", "echo broken=1; exit 1");
    let (slow, once) = (dir.join("pid"), dir.join("once"));
    program("slow", &format!("echo $$ > {}.new; mv {0}.new {0}; exec sleep 600", slow.display()));
    // In its second report.
    let later = format!("if mkdir {}; then exit; fi; exec {}/slow", once.display(), dir.display());
    program("later", &later);
    let run = |args: &[&str], root: &str| {
        let mut command = s.command();
        command.env("ZPOOL_SCRIPTS_PATH", &dir).env("ZPOOL_SCRIPTS_AS_ROOT", root).args(args);
        let output = cenote_testpools::output(&mut command);
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text.into_owned())
    };
    let (code, text) = run(&["zpool", "status", "-c", "fails,place,none,../place", "tank"], "yes");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.lines().any(|l| l.ends_with("CKSUM  bay  home")), "{text}");
    assert!(text.lines().any(|l| l.ends_with("0     0     0    7  none  disk")), "{text}");
    let of_pool = |l: &str| l.starts_with("\ttank ") && l.ends_with("ONLINE       0     0     0");
    assert!(text.lines().any(of_pool), "{text}");
    let (code, text) = run(&["zpool", "iostat", "-vc", "place", "tank"], "1");
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with("write  bay  home") && lines[2].ends_with("  ---  ----"), "{text}");
    assert!(lines[4].ends_with("    7  none  disk"), "{text}");
    let (code, text) = run(&["zpool", "status", "-c"], "");
    assert_eq!(
        (code, text.as_str()),
        (Some(0), "Available 'zpool status -c' commands:\n  fails\n  later\n  place\n  slow\n")
    );
    let twice = run(&["zpool", "status", "-c", "place", "-c", "place"], "1");
    assert_eq!(twice, (Some(1), "Can't set -c flag twice\n".into()));
    if rustix::process::geteuid().is_root() {
        let why = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.\n";
        assert_eq!(run(&["zpool", "status", "-c", "place"], "no"), (Some(1), why.into()));
    }
    // An interrupt ends what runs.
    let mut command = s.interruptible();
    command.env("ZPOOL_SCRIPTS_PATH", &dir).env("ZPOOL_SCRIPTS_AS_ROOT", "1");
    let mut child = command.args(["zpool", "status", "-c", "later", "tank", "1"]).spawn().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let wait_for = |what: &dyn Fn() -> bool| {
        while !what() {
            assert!(std::time::Instant::now() < until, "{:?}", s.run("daemon status"));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    wait_for(&|| slow.exists());
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let ended = cenote_testpools::wait(&mut child);
    let by = std::os::unix::process::ExitStatusExt::signal(&ended);
    assert_eq!(by, Some(rustix::process::Signal::INT.as_raw()));
    wait_for(&|| s.run("daemon status").out.lines().all(|l| !l.contains("running:")));
    let program = fs::read_to_string(&slow).unwrap();
    let program = program.trim().parse().ok().and_then(rustix::process::Pid::from_raw).unwrap();
    assert!(rustix::process::test_kill_process(program).is_err(), "it was killed");
    tank.finish();
}

#[test]
fn status_shows_what_is_asked_for() {
    let tank = Tank::unmounted();
    let disk = tank.session.path("disk").display().to_string();
    let text = tank.session.run("zpool status -tid").ok();
    let line = text.lines().find(|l| l.contains(&disk)).unwrap();
    assert!(line.ends_with("0     0  (uninitialized)  (untrimmed)"), "{line}");
    assert!(text.lines().any(|l| l.ends_with("CKSUM   DIO")), "{text}");
    let json: Value = serde_json::from_str(&tank.session.run("zpool status -jit").ok()).unwrap();
    let leaf = &json["pools"]["tank"]["vdevs"]["tank"]["vdevs"][&disk];
    assert_eq!((&leaf["init_state"], &leaf["trim_notsup"]), (&"UNINITIALIZED".into(), &"0".into()));
    tank.finish();
}

#[test]
fn pools_have_temporary_names() {
    let s = Session::new();
    fs::File::create(s.path("disk")).unwrap().set_len(128 << 20).unwrap();
    let disk = s.path("disk").display().to_string();
    let dir = s.dir.path().display().to_string();
    let root = "-O canmount=off -O mountpoint=none";
    s.run(&format!("zpool create -t other {root} tank {disk}")).ok();
    assert_eq!(s.run("zpool list -Ho name").ok(), "other\n");
    assert_eq!(s.run("zfs list -Ho name").ok(), "other\n");
    s.run("zfs create other/a").ok();
    assert_eq!(s.run("zpool get -Ho value cachefile other").ok(), "none\n");
    s.run("zpool export other").ok();
    s.run(&format!("zpool import -d {dir} -t tank third")).ok();
    s.run("zfs snapshot third/a@s").ok();
    assert_eq!(s.run("zfs list -Ho name -t all").ok(), "third\nthird/a\nthird/a@s\n");
    s.run("zpool export third").ok();
    s.run(&format!("zpool import -d {dir} tank")).ok();
    assert_eq!(s.run("zfs list -Ho name -t snapshot").ok(), "tank/a@s\n");
    s.run("zpool export tank").ok();
    fs::File::create(s.path("new")).unwrap().set_len(128 << 20).unwrap();
    let new = s.path("new").display().to_string();
    let why = s.run(&format!("zpool create -t 1bad tank {new}")).fails(1);
    assert_eq!(why, "cannot create 'tank': name must begin with a letter");
    cenote_testpools::judge(s.dir.path(), "tank");
}

#[test]
fn waiting_ends_when_all_is_done() {
    let tank = Tank::unmounted();
    let s = &tank.session;
    s.run("zpool wait tank").ok();
    s.run("zpool wait -t scrub,free tank").ok();
    let rows = s.run("zpool wait -Hp -t free,trim tank 1").ok();
    assert_eq!(rows, "0\t0\n");
    let rows = s.run("zpool wait -t free tank 1").ok();
    assert_eq!(rows, "    FREE\n       0\n");
    assert!(s.run("zpool wait -t x tank").fails(2).starts_with("invalid activity 'x'\n"));
    assert!(s.run("zpool wait").fails(2).starts_with("missing 'pool' argument\n"));
    assert!(s.run("zpool wait tank 1 2").fails(2).starts_with("too many arguments\n"));
    assert_eq!(s.run("zpool wait nosuch").fails(1), "cannot open 'nosuch': no such pool");

    tank.zfs("create tank/a");
    tank.zfs("wait tank/a");
    tank.zfs("wait -t deleteq tank/a");
    assert!(s.run("zfs wait -t x tank/a").fails(2).starts_with("invalid activity 'x'\n"));
    assert!(s.run("zfs wait").fails(2).starts_with("missing 'filesystem' argument\n"));
    assert_eq!(s.run("zfs wait tank/b").fails(1), "cannot open 'tank/b': dataset does not exist");
    tank.finish();
}

#[test]
fn versions_of_file_systems_are_listed() {
    let tank = Tank::unmounted();
    assert_eq!(
        tank.zfs("upgrade"),
        "This system is currently running ZFS filesystem version 5.\n\n\
         All filesystems are formatted with the current version.\n"
    );
    assert!(tank.zfs("upgrade -v").contains(" 5   System attributes\n"));
    assert_eq!(
        tank.zfs("upgrade -a"),
        "0 filesystems upgraded\n1 filesystems already at this version\n"
    );
    let why = tank.session.run("zfs upgrade -V 4 tank");
    assert_eq!(
        (why.code, why.out.as_str()),
        (1, "tank: can not be downgraded; it is already at version 5\n0 filesystems upgraded\n")
    );
    tank.session.run("zfs upgrade -v -a").fails(2);
    tank.finish();
}

#[test]
fn tunables_say_what_new_devices_and_names_may_be() {
    let s = Session::new();
    fs::File::create(s.path("disk")).unwrap().set_len(128 << 20).unwrap();
    let disk = s.path("disk").display().to_string();
    let root = "-O canmount=off -O mountpoint=none";
    // What is set in a daemon without pools counts as long as it runs.
    s.run("tunables set vdev_file_physical_ashift=12 zfs_max_dataset_nesting=2").ok();
    s.run(&format!("zpool create {root} tank {disk}")).ok();
    assert_eq!(s.run(&format!("zpool get -Ho value ashift tank {disk}")).ok(), "12\n");
    s.run("zfs create tank/a").ok();
    let why = s.run("zfs create tank/a/b").fails(1);
    assert!(why.ends_with("maximum name nesting depth exceeded"), "{why}");
    s.run("tunables reset zfs_max_dataset_nesting vdev_file_physical_ashift").ok();
    s.run("zfs create tank/a/b").ok();
    let deep = format!("zfs create -p tank{}", "/a".repeat(52));
    let why = s.run(&deep).fails(1);
    assert!(why.ends_with("maximum name nesting depth exceeded"), "{why}");
    s.run("tunables set zfs_max_dataset_nesting=60").ok();
    s.run(&deep).ok();
    s.run("zpool export tank").ok();
    cenote_testpools::judge(s.dir.path(), "tank");
}

/// Under either of their names on disk, attributes have one name for programs.
#[test]
fn extended_attributes_have_the_names_of_other_systems_if_told_to() {
    if !can_mount() {
        return;
    }
    use rustix::fs::XattrFlags;
    let tank = Tank::new("-O xattr=sa");
    let s = &tank.session;
    let file = tank.path("tank/f");
    fs::write(&file, "x").unwrap();
    let set = |name: &str, value: &str, flags| {
        rustix::fs::setxattr(&file, format!("user.{name}"), value.as_bytes(), flags)
    };
    let get = |name: &str| {
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(&file, format!("user.{name}"), &mut value).unwrap();
        String::from_utf8_lossy(&value[..length]).into_owned()
    };
    set("kept", "one", XattrFlags::CREATE).unwrap();
    set("changed", "one", XattrFlags::CREATE).unwrap();
    set("gone", "one", XattrFlags::CREATE).unwrap();
    s.run("tunables set zfs_xattr_compat=1").ok();
    assert!(set("changed", "two", XattrFlags::CREATE).is_err());
    set("changed", "two", XattrFlags::REPLACE).unwrap();
    set("new", "two", XattrFlags::CREATE).unwrap();
    rustix::fs::removexattr(&file, "user.gone").unwrap();
    assert_eq!(["kept", "changed", "new"].map(get), ["one", "two", "two"]);
    let mut names = vec![0; 256];
    let length = rustix::fs::listxattr(&file, &mut names).unwrap();
    let mut names: Vec<&[u8]> = names[..length].split(|b| *b == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b""[..], b"user.changed", b"user.kept", b"user.new"]);
    let root = s.root();
    s.run("zpool export tank").ok();
    let text = cenote_testpools::zdb(s.dir.path(), "tank", &["-dddd"]);
    for line in ["\t\tuser.kept = one\n", "\t\tchanged = two\n", "\t\tnew = two\n"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("user.changed") && !text.contains("gone ="), "{text}");
    s.run("tunables reset zfs_xattr_compat").ok();
    s.run(&format!("zpool import -R {root} -d {} tank", s.dir.path().display())).ok();
    set("changed", "three", XattrFlags::REPLACE).unwrap();
    rustix::fs::removexattr(&file, "user.new").unwrap();
    s.run("zpool export tank").ok();
    let text = cenote_testpools::zdb(s.dir.path(), "tank", &["-dddd"]);
    assert!(text.contains("\t\tuser.changed = three\n"), "{text}");
    assert!(!text.contains("\t\tchanged =") && !text.contains("\t\tnew ="), "{text}");
    s.run(&format!("zpool import -N -d {} tank", s.dir.path().display())).ok();
    tank.finish();
}

#[test]
fn status_shows_deduplication_as_zdb_does() {
    let s = Session::new();
    for pool in ["dedupold", "deduplog"] {
        s.import(pool);
        let text = s.run(&format!("zpool status -D {pool}")).ok();
        let (head, table) = text.split_once("\n dedup: DDT entries ").unwrap();
        assert!(head.contains("errors: "), "{text}");
        let zdb = s.run(&format!("zdb -DD {pool}")).ok();
        let start = zdb.find("DDT histogram (aggregated over all DDTs):\n").unwrap();
        let (_, table) = table.split_once('\n').unwrap();
        assert!(zdb[start..].contains(table.trim_end()), "{table}\n{zdb}");
        let json: Value =
            serde_json::from_str(&s.run(&format!("zpool status -jD --json-int {pool}")).ok())
                .unwrap();
        let stats = &json["pools"][pool]["dedup_stats"];
        assert!(stats["obj_count"].as_u64().unwrap() > 0 && stats["dspace"].is_u64());
        let total = &stats["ddt_stats"]["total"];
        let buckets = stats["ddt_stats"]["histogram"].as_object().unwrap();
        let sum: u64 = buckets.values().map(|b| b["ref_blocks"].as_u64().unwrap()).sum();
        assert_eq!(total["ref_blocks"].as_u64(), Some(sum));
        s.run(&format!("zpool export {pool}")).ok();
    }
    s.import("basic");
    assert!(s.run("zpool status -D basic").ok().ends_with("\n dedup: no DDT entries\n"));
}
