//! Mounts in several places and mount namespaces: whose they are, what keeps them busy, and what goes when
//! the daemon is killed. OpenZFS's own `zdb` judges what is left.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{Done, can_mount, mounts_below};
use parking_lot::RwLock;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Runs a program that has to succeed.
#[track_caller]
fn must(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What mount(8) runs.
fn helper(tank: &Tank, args: &[&str]) -> Done {
    let output = tank.session.command().arg0("mount.zfs").args(args).output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A process in a mount namespace of its own, which ends with this.
struct Namespace(Child);

impl Namespace {
    /// Runs a shell's script there, and waits until it has said something.
    fn with(script: &str) -> Namespace {
        let mut child = Command::new("unshare")
            .args(["-m", "sh", "-c", &format!("{script}; echo ready; exec sleep 60")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        Namespace(child)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something is so.
#[track_caller]
fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "it never was so");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A new mount namespace has copies of all mounts, those of other tests too: who makes one is alone.
static NAMESPACES: RwLock<()> = RwLock::new(());

#[test]
fn a_bind_mount_is_left_alone_and_makes_its_file_system_busy() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    fs::write(tank.path("tank/a/f"), "data").unwrap();
    let bound = tank.session.path("bound");
    fs::create_dir(&bound).unwrap();
    must("mount", &["--bind", text(&tank.path("tank/a")), text(&bound)]);
    let place = tank.path("tank/a").display().to_string();
    let busy = format!(
        "cannot unmount '{place}': pool or dataset is busy: it is also mounted at '{}'",
        bound.display()
    );
    for line in ["unmount tank/a", "rename tank/a tank/b", "destroy tank/a", "unmount -a"] {
        let why = tank.session.run(&format!("zfs {line}")).fails(1);
        assert_eq!(why.lines().next(), Some(busy.as_str()), "{line}");
        assert_eq!(fs::read_to_string(bound.join("f")).unwrap(), "data", "{line}");
        assert_eq!(tank.get("mounted", "tank/a"), "yes", "{line}");
    }
    assert_eq!(tank.session.run("zpool export tank").fails(1), busy);
    assert_eq!(fs::read_to_string(bound.join("f")).unwrap(), "data");
    // By force its users get errors, and the directory below is not laid bare to them.
    tank.zfs("unmount -f tank/a");
    assert!(fs::write(bound.join("f"), "lost").is_err());
    must("umount", &[text(&bound)]);
    assert!(!bound.join("f").exists());
    tank.zfs("mount -a");
    // Who takes away the mount itself leaves the other one, which `zfs unmount` takes then.
    must("mount", &["--bind", text(&tank.path("tank/a")), text(&bound)]);
    must("umount", &[&place]);
    assert!(tank.zfs("mount").contains(text(&bound)));
    tank.zfs("unmount tank/a");
    assert!(mounts_below(&bound).is_empty());
    tank.finish();
}

#[test]
fn other_namespaces_keep_a_pool_from_being_exported() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.write();
    let tank = Tank::new("");
    (1..=12).for_each(|n| drop(tank.zfs(&format!("create tank/f{n}"))));
    let file = tank.path("tank/f1/x");
    fs::write(&file, "data").unwrap();
    let bound = tank.session.path("bound");
    fs::create_dir(&bound).unwrap();
    let bind = format!("mount --bind {} {}", tank.path("tank/f1").display(), bound.display());
    for (script, used) in [
        (format!("exec 7<{}", file.display()), true),
        (format!("cd {}", tank.path("tank/f1").display()), true),
        (bind, true),
        ("true".to_string(), false),
    ] {
        let namespace = Namespace::with(&script);
        let start = Instant::now();
        let done = tank.session.run("zpool export tank");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        if used {
            let why = done.fails(1);
            let holder = format!("process {} (sleep)", namespace.0.id());
            assert!(why.contains("pool or dataset is busy") && why.contains(&holder), "{why}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "data", "nothing was unmounted");
            // An unmount here is none there.
            tank.zfs("unmount tank/f1");
            assert_eq!(tank.get("mounted", "tank/f1"), "no");
            let why = tank.refused("destroy tank/f1");
            assert_eq!(why, "cannot destroy 'tank/f1': dataset is busy");
            tank.zfs("mount tank/f1");
            assert_eq!(fs::read_to_string(&file).unwrap(), "data");
            // By force the devices are let go.
            tank.session.run("zpool export -f tank").ok();
        } else {
            // A copy that nobody uses is nothing to wait for.
            done.ok();
        }
        let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
        tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "data");
        drop(namespace);
    }
    tank.finish();
}

#[test]
fn copies_that_follow_do_not_keep_a_pool_from_being_exported() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.write();
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    // As services of systemd have it: what is mounted and unmounted outside is inside as well.
    let dir = tank.session.path("");
    tank.zfs("unmount -a");
    must("mount", &["--bind", text(&dir), text(&dir)]);
    must("mount", &["--make-shared", text(&dir)]);
    tank.zfs("mount -a");
    let follows = Command::new("unshare")
        .args(["-m", "--propagation", "slave", "sleep", "60"])
        .spawn()
        .map(Namespace)
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    tank.session.run("zpool export tank").ok();
    drop(follows);
    let (root, from) = (tank.session.root(), dir.display());
    tank.session.run(&format!("zpool import -d {from} -R {root} tank")).ok();
    tank.session.run("zpool export tank").ok();
    must("umount", &["-l", text(&dir)]);
    cenote_testpools::judge(tank.session.dir.path(), "tank");
}

#[test]
fn what_was_exported_can_be_imported_at_once() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    for n in 1..=4 {
        tank.zfs(&format!("create tank/d{n}"));
        for k in 0..50 {
            fs::write(tank.path(&format!("tank/d{n}/f{k}")), "x").unwrap();
        }
        tank.zfs(&format!("snapshot tank/d{n}@s"));
    }
    let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
    for _ in 0..6 {
        for n in 1..=4 {
            for below in [format!("tank/d{n}"), format!("tank/d{n}/.zfs/snapshot/s")] {
                let files = fs::read_dir(tank.path(&below)).unwrap();
                files.for_each(|f| drop(fs::read(f.unwrap().path()).unwrap()));
            }
        }
        // A program that another test has just started has our files open until it runs.
        wait_until(|| tank.session.run("zpool export tank").code == 0);
        tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
    }
    tank.finish();
}

#[test]
fn commands_act_in_the_mount_namespace_of_their_caller() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.write();
    let tank = Tank::new("");
    tank.zfs("create -o mountpoint=legacy tank/l");
    tank.zfs("create -u tank/own");
    let there = tank.session.path("there");
    fs::create_dir(&there).unwrap();
    let program = env!("CARGO_BIN_EXE_cenote");
    let mount_zfs = tank.session.path("mount.zfs");
    std::os::unix::fs::symlink(program, &mount_zfs).unwrap();
    let script = format!(
        "set -e
        {helper} tank/l {there}
        grep -q ' {there} ' /proc/self/mounts
        echo inside > {there}/file
        {program} zfs mount | grep -q '^tank/l .*{there}'
        {program} zfs unmount tank/l
        ! grep -q ' {there} ' /proc/self/mounts
        {program} zfs mount tank/own
        echo inside > {own}/file
        {program} zfs unmount {own}
        if {program} zfs unmount tank/own; then exit 1; fi
        mkdir {there}/only && mount -t tmpfs none {there} && mkdir {there}/inside
        {helper} tank/l {there}/inside
        cat {there}/inside/file",
        helper = mount_zfs.display(),
        there = there.display(),
        own = tank.path("tank/own").display(),
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .env("CENOTE_SOCKET", tank.session.path("socket"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "inside\n");
    assert_eq!(said.trim_end(), "cannot unmount 'tank/own': not currently mounted");
    assert!(mounts_below(&there).is_empty());
    // With the namespace its mounts have ended.
    wait_until(|| tank.get("mounted", "tank/l") == "no");
    tank.zfs("mount tank/own");
    assert_eq!(fs::read_to_string(tank.path("tank/own/file")).unwrap(), "inside\n");
    tank.finish();
}

#[test]
fn a_file_system_and_its_snapshots_are_mounted_in_several_places() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create -o mountpoint=legacy tank/l");
    let dirs = ["one", "two", "snap"].map(|name| tank.session.path(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let [one, two, snap] = &dirs;
    helper(&tank, &["tank/l", text(one)]).ok();
    fs::write(one.join("file"), "old").unwrap();
    tank.zfs("snapshot tank/l@s");
    helper(&tank, &["tank/l", text(two), "-o", "ro"]).ok();
    assert_eq!(helper(&tank, &["tank/l", text(two)]).code, 128);
    // What is changed in one place is seen in the other at once.
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "old");
    fs::write(one.join("file"), "new").unwrap();
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "new");
    assert!(fs::write(two.join("file"), "x").is_err(), "read-only in this place");
    helper(&tank, &["tank/l@s", text(snap)]).ok();
    assert_eq!(fs::read_to_string(snap.join("file")).unwrap(), "old");
    assert!(fs::write(snap.join("file"), "x").is_err());
    let busy = "cannot destroy snapshot tank/l@s: dataset is busy";
    assert_eq!(tank.refused("destroy tank/l@s"), busy);
    tank.zfs("rename tank/l@s tank/l@t");
    assert_eq!(tank.refused("destroy tank/l@t"), busy.replace("@s", "@t"));
    must("umount", &[text(one)]);
    assert_eq!(tank.get("mounted", "tank/l"), "yes");
    must("umount", &[text(snap)]);
    tank.zfs("destroy tank/l@t");
    tank.zfs("unmount tank/l");
    assert!(mounts_below(two).is_empty());
    helper(&tank, &["tank/l", text(two)]).ok();
    tank.finish();
}

#[test]
fn mount_takes_every_option_of_openzfs() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create -o mountpoint=legacy tank/l");
    let dir = tank.session.path("dir");
    fs::create_dir(&dir).unwrap();
    let shown = |option: &str| {
        helper(&tank, &["tank/l", text(&dir), "-o", option]).ok();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|l| l.split(' ').nth(4) == dir.to_str()).unwrap().to_owned();
        must("umount", &[text(&dir)]);
        line
    };
    for option in [
        "acl",
        "atime",
        "caseinsensitive",
        "casemixed",
        "casesensitive",
        "comment",
        "defaults",
        "dev",
        "devices",
        "diratime",
        "exec",
        "group",
        "iversion",
        "nbmand",
        "noacl",
        "noauto",
        "nofail",
        "nonbmand",
        "norelatime",
        "nostrictatime",
        "nosub",
        "owner",
        "posixacl",
        "quiet",
        "rw",
        "suid",
        "user",
        "users",
        "xattr",
        "noxattr",
        "_netdev",
    ] {
        shown(option);
    }
    for (option, kernels) in [
        ("ro", "ro"),
        ("noatime", "noatime"),
        ("relatime", "relatime"),
        ("nodiratime", "nodiratime"),
        ("noexec", "noexec"),
        ("nosuid", "nosuid"),
        ("nodev", "nodev"),
        ("nodevices", "nodev"),
        ("sync", "sync"),
        ("dirsync", "dirsync"),
        ("lazytime", "lazytime"),
        ("users", "noexec"),
        ("owner", "nosuid"),
    ] {
        let line = shown(option);
        let has = line.split([' ', ',']).any(|o| o == kernels);
        assert!(has, "{option}: {line}");
    }
    assert!(!shown("strictatime").contains("relatime"));
    tank.finish();
}

/// Access times of directories stay under `nodiratime`, others do not.
#[test]
fn directories_keep_their_access_times_if_asked_for() {
    use std::os::unix::fs::MetadataExt;
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create -o mountpoint=legacy tank/l");
    let dir = tank.session.path("dir");
    fs::create_dir(&dir).unwrap();
    for (options, moves) in [("atime,nodiratime", false), ("atime", true)] {
        helper(&tank, &["tank/l", text(&dir), "-o", options]).ok();
        let of = |path: &Path| fs::metadata(path).map(|m| (m.atime(), m.atime_nsec())).unwrap();
        let file = dir.join("file");
        fs::write(&file, "x").unwrap();
        let before = (of(&dir), of(&file));
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::read(&file).unwrap();
        wait_until(|| of(&file) != before.1);
        assert_eq!(of(&dir) != before.0, moves, "{options}");
        must("umount", &[text(&dir)]);
    }
    tank.finish();
}

#[test]
fn files_that_are_open_outlive_a_lazy_unmount_and_the_next_mount() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let place = tank.path("tank/a");
    let mut file = fs::File::create(place.join("file")).unwrap();
    file.write_all(b"before ").unwrap();
    must("umount", &["-l", text(&place)]);
    assert_eq!(tank.get("mounted", "tank/a"), "no");
    file.write_all(b"between ").unwrap();
    let why = tank.refused("destroy tank/a");
    assert_eq!(why, "cannot destroy 'tank/a': dataset is busy");
    let why = tank.session.run("zpool export tank").fails(1);
    assert!(why.contains("files of it are open still"), "{why}");
    tank.zfs("mount -a");
    file.write_all(b"after").unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "before between after");
    drop(file);
    tank.finish();
}

#[test]
fn pools_inside_each_other_are_unmounted_at_once() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    let disk = tank.session.path("other");
    fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    let (root, disk) = (tank.session.root(), disk.display());
    tank.session.run(&format!("zpool create -R {root} -m /tank/in apool {disk}")).ok();
    tank.zfs("create -o mountpoint=/tank/in/deep tank/deep");
    tank.zfs("create -o mountpoint=/tank/in/deep/er apool/er");
    assert_eq!(tank.zfs("unmount -a"), "");
    assert_eq!(tank.zfs("mount"), "");
    assert_eq!(mounts_below(tank.session.dir.path()), [""; 0]);
    tank.session.run("zpool export apool").ok();
    cenote_testpools::judge(tank.session.dir.path(), "apool");
    tank.finish();
}

#[test]
fn an_unmounted_directory_stays_and_an_exported_one_goes() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create -o mountpoint=/place tank/a");
    tank.zfs("create -o mountpoint=legacy tank/l");
    tank.zfs("unmount tank/a");
    assert!(tank.path("place").is_dir());
    let place = tank.path("place");
    helper(&tank, &["tank/l", text(&place)]).ok();
    tank.zfs("unmount tank/l");
    assert!(place.is_dir());
    tank.zfs("mount tank/a");
    let top = tank.path("tank");
    tank.finish();
    assert!(!top.exists(), "belongs to the pool's name");
}

/// Without descriptors for a further mount it fails, and nothing is left of it.
#[test]
fn what_cannot_be_mounted_for_want_of_descriptors_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    for (limit, fails) in [("-Sn 64", false), ("-n 64", true)] {
        let tank = Tank::unmounted();
        tank.session.run("zpool export tank").ok();
        tank.session.run("daemon stop").ok();
        let script = format!("ulimit {limit} && exec \"$0\" daemon");
        let done = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_cenote")])
            .env("CENOTE_SOCKET", tank.session.path("socket"))
            .status();
        assert!(done.unwrap().success());
        let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
        tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
        let mut failed = false;
        for n in 0..70 {
            let line = format!("zfs create -o canmount=on -o mountpoint=/m{n} tank/m{n}");
            let done = tank.session.run(&line);
            let place = tank.path(&format!("m{n}"));
            if done.code != 0 {
                failed = true;
                let dead = mounts_below(&place);
                assert!(dead.is_empty() && fails, "{done:?}, {dead:?}");
                break;
            }
            fs::write(place.join("file"), "x").unwrap();
        }
        assert_eq!(failed, fails, "{limit}");
        tank.session.run("zpool export tank").ok();
        assert_eq!(mounts_below(tank.session.dir.path()), [""; 0]);
        cenote_testpools::judge(tank.session.dir.path(), "tank");
    }
}

/// However the daemon is killed, it is gone at once, with its mounts, and the pool can be imported.
#[test]
fn a_killed_daemon_is_gone_while_it_mounts() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    let rounds = if std::env::var("CENOTE_TORTURE").is_ok_and(|v| v == "long") { 40 } else { 4 };
    for round in 0..rounds {
        let daemon = tank.session.daemon().unwrap();
        let mut busy: Vec<Child> = (0..3)
            .map(|w| {
                let script = format!(
                    "i=0; while i=$((i+1)); do \"$0\" zfs create tank/r{round}-{w}-$i || break; \
                     \"$0\" zfs destroy tank/r{round}-{w}-$i || break; done"
                );
                let mut shell = Command::new("sh");
                shell.args(["-c", &script, env!("CARGO_BIN_EXE_cenote")]);
                shell.env("CENOTE_SOCKET", tank.session.path("socket"));
                shell.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300 + 170 * (round % 4)));
        must("kill", &["-KILL", &daemon.to_string()]);
        wait_until(|| !Path::new(&format!("/proc/{daemon}")).exists());
        for shell in &mut busy {
            let _ = shell.kill();
            let _ = shell.wait();
        }
        wait_until(|| mounts_below(tank.session.dir.path()).is_empty());
        let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
        let import = format!("zpool import -d {dir} -R {root} tank");
        wait_until(|| tank.session.run(&import).code == 0);
    }
    tank.finish();
}
