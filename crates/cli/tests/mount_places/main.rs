//! Mounts in several places and mount namespaces: whose they are, what keeps them busy, and what goes when
//! the daemon is killed. OpenZFS's own `zdb` judges what is left.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

#[path = "../common/mod.rs"]
mod common;
mod killed;

use common::tank::Tank;
use common::{Done, can_mount, mounts_below, must};
use parking_lot::RwLock;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// A new mount namespace has copies of all mounts, also of other tests' mounts: a test that makes one runs alone.
static NAMESPACES: RwLock<()> = RwLock::new(());

/// A process with a file open, which ends with this.
fn holder(file: &Path) -> Namespace {
    let script = format!("exec 7<{}; exec sleep 60", file.display());
    let child = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    wait_until(|| Path::new(&format!("/proc/{}/fd/7", child.id())).exists());
    Namespace(child)
}

#[test]
fn a_bind_mount_that_nobody_uses_stands_in_no_ones_way() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    let bound = tank.session.path("bound");
    let file = bound.join("f");
    let read = || fs::read_to_string(&file).unwrap();
    fs::create_dir(&bound).unwrap();
    fs::write(tank.path("tank/a/f"), "data").unwrap();
    must("mount", &["--bind", text(&tank.path("tank/a")), text(&bound)]);
    // It stays what it is while its file system is unmounted, mounted and renamed.
    tank.zfs("unmount tank/a");
    assert_eq!((tank.get("mounted", "tank/a"), read()), ("no".into(), "data".into()));
    let why = "cannot unmount 'tank/a': not currently mounted";
    assert_eq!(tank.refused("unmount tank/a"), why);
    tank.zfs("mount tank/a");
    tank.zfs("rename tank/a tank/b");
    assert_eq!(fs::read_to_string(tank.path("tank/b/f")).unwrap(), "data");
    fs::write(tank.path("tank/b/f"), "later").unwrap();
    assert_eq!((tank.get("mounted", "tank/b"), read()), ("yes".into(), "later".into()));
    // Contents are exchanged below it.
    tank.zfs("snapshot tank/b@s");
    fs::write(&file, "more").unwrap();
    tank.zfs("rollback tank/b@s");
    assert_eq!(read(), "later");
    // What is open is named.
    let process = holder(&file);
    let by = format!("process {} (sleep) uses it", process.0.id());
    for line in ["zpool export tank", "zfs destroy -r tank/b"] {
        let why = tank.session.run(line).fails(1);
        assert!(why.contains("is busy: ") && why.contains(&by), "{line}: {why}");
        assert_eq!((tank.get("mounted", "tank/b"), read()), ("yes".into(), "later".into()));
    }
    drop(process);
    tank.session.run("zpool export tank").ok();
    assert!(mounts_below(&bound).is_empty(), "nothing dead is left");
    let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
    tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
    must("mount", &["--bind", text(&tank.path("tank/b")), text(&bound)]);
    tank.zfs("destroy -r tank/b");
    assert!(mounts_below(&bound).is_empty() && !file.exists());
    // If the mount itself is taken away the bind mount stays, and `zfs unmount` takes it then.
    tank.zfs("create tank/c");
    must("mount", &["--bind", text(&tank.path("tank/c")), text(&bound)]);
    must("umount", &[text(&tank.path("tank/c"))]);
    assert!(tank.zfs("mount").contains(text(&bound)));
    tank.zfs("unmount tank/c");
    assert!(mounts_below(&bound).is_empty());
    tank.finish();
}

#[test]
fn other_namespaces_keep_a_pool_only_while_they_use_it() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.write();
    let tank = Tank::new("");
    (1..=12).for_each(|n| drop(tank.zfs(&format!("create tank/f{n}"))));
    let file = tank.path("tank/f1/x");
    fs::write(&file, "data").unwrap();
    let (bound, newroot) = (tank.session.path("bound"), tank.session.path("newroot"));
    [&bound, &newroot].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let bind = format!("mount --bind {} {}", tank.path("tank/f1").display(), bound.display());
    // In the new root directory the mounts below the old one are not visible.
    let jail = format!(
        "mount --bind / {root} && exec chroot {root} sh -c 'echo ready; exec sleep 60'",
        root = newroot.display()
    );
    for (script, used) in [
        (format!("exec 7<{}", file.display()), true),
        (format!("cd {}", tank.path("tank/f1").display()), true),
        (bind, false),
        (jail, false),
        ("true".to_string(), false),
    ] {
        let namespace = Namespace::with(&script);
        let start = Instant::now();
        let done = tank.session.run("zpool export tank");
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        if used {
            let why = done.fails(1);
            let holder = format!("process {} (sleep) uses it", namespace.0.id());
            assert!(why.contains("pool or dataset is busy") && why.contains(&holder), "{why}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "data", "nothing was unmounted");
            // An unmount here does not unmount there.
            tank.zfs("unmount tank/f1");
            assert_eq!(tank.get("mounted", "tank/f1"), "no");
            let why = tank.refused("destroy tank/f1");
            assert_eq!(why, format!("cannot destroy 'tank/f1': dataset is busy: {holder}"));
            tank.zfs("mount tank/f1");
            assert_eq!(fs::read_to_string(&file).unwrap(), "data");
            // By force the devices are let go.
            tank.session.run("zpool export -f tank").ok();
        } else {
            // No command waits for a copy that no process uses.
            done.ok();
        }
        let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
        tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).ok();
        assert_eq!(fs::read_to_string(&file).unwrap(), "data");
        drop(namespace);
    }
    tank.finish();
}

/// A namespace mounts, exports and destroys what is its own; the daemon lives in another one.
#[test]
fn a_pool_is_let_go_where_it_was_mounted() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.write();
    let tank = Tank::new("");
    let (dir, disk) = (tank.session.path("own"), tank.session.path("more"));
    let shown = tank.session.path("shown");
    fs::create_dir(&disk).unwrap();
    fs::create_dir(&shown).unwrap();
    fs::File::create(disk.join("img")).unwrap().set_len(256 << 20).unwrap();
    let script = format!(
        "set -e
        {program} zpool create -R {dir} own {disk}/img
        {program} zpool export own
        {program} zpool import -d {disk} -R {dir} own
        {program} zfs create own/x
        echo inside > {dir}/own/x/f
        {program} zfs destroy own/x
        {program} zpool destroy own
        {program} zpool create -R {dir} own {disk}/img
        {program} tunables mount {shown}
        test -d {shown}/parameters
        {program} tunables unmount {shown}
        {program} tunables mount {shown}",
        program = env!("CARGO_BIN_EXE_cenote"),
        dir = dir.display(),
        disk = disk.display(),
        shown = shown.display(),
    );
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", &script])
        .env("CENOTE_SOCKET", tank.session.path("socket"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(mounts_below(&dir).is_empty() && mounts_below(&shown).is_empty());
    tank.session.run("zpool export own").ok();
    cenote_testpools::judge(&disk, "own");
    tank.finish();
}

/// What comes by a receive is there in all mounts, in use or not.
#[test]
fn a_receive_exchanges_contents_below_all_mounts() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.write();
    let tank = Tank::new("");
    let (bound, stream) = (tank.session.path("bound"), tank.session.path("stream"));
    fs::create_dir(&bound).unwrap();
    tank.zfs("create -o atime=off tank/src");
    let program = env!("CARGO_BIN_EXE_cenote");
    let shell = |script: String| {
        let mut sh = Command::new("sh");
        sh.args(["-ec", &script]).env("CENOTE_SOCKET", tank.session.path("socket"));
        let output = sh.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    };
    fs::write(tank.path("tank/src/f"), "0").unwrap();
    tank.zfs("snapshot tank/src@0");
    shell(format!("{program} zfs send tank/src@0 | {program} zfs receive -o atime=off tank/dst"));
    must("mount", &["--bind", text(&tank.path("tank/dst")), text(&bound)]);
    let _copy = Namespace::with("true");
    for n in 1..=3 {
        fs::write(tank.path("tank/src/f"), n.to_string()).unwrap();
        tank.zfs(&format!("snapshot tank/src@{n}"));
        let last = n - 1;
        let stream = stream.display();
        shell(format!("{program} zfs send -i @{last} tank/src@{n} > {stream}"));
        let held = (n == 2).then(|| fs::File::open(bound.join("f")).unwrap());
        if n == 3 {
            tank.zfs("unmount tank/dst");
        }
        shell(format!("{program} zfs receive tank/dst < {stream}"));
        assert_eq!(fs::read_to_string(bound.join("f")).unwrap(), n.to_string());
        drop(held);
    }
    tank.zfs("mount tank/dst");
    assert_eq!(fs::read_to_string(tank.path("tank/dst/f")).unwrap(), "3");
    tank.finish();
}

/// Users look into `.zfs/snapshot` while a file system is received into: no thread waits for ever.
#[test]
fn receives_go_on_beside_lookups_in_snapshots() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.read();
    let tank = Tank::new("");
    tank.zfs("create -o atime=off tank/src");
    let program = env!("CARGO_BIN_EXE_cenote");
    let run = |script: String| {
        let mut sh = Command::new("timeout");
        sh.args(["60", "sh", "-ec", &script]).env("CENOTE_SOCKET", tank.session.path("socket"));
        let output = sh.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    };
    for n in 1..=30 {
        fs::write(tank.path("tank/src/f"), n.to_string()).unwrap();
        tank.zfs(&format!("snapshot tank/src@{n}"));
    }
    run(format!("{program} zfs send -R tank/src@30 | {program} zfs receive tank/dst"));
    let dst = tank.path("tank/dst");
    let look = || {
        let script = format!("ls -l {}/.zfs/snapshot/*", dst.display());
        let mut sh = Command::new("sh");
        sh.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    for n in 31..=35 {
        fs::write(tank.path("tank/src/f"), n.to_string()).unwrap();
        tank.zfs(&format!("snapshot tank/src@{n}"));
        // The kernel knows nothing of the snapshots when it is asked for them.
        tank.zfs("unmount tank/dst");
        tank.zfs("mount tank/dst");
        let mut looking = [look(), look()];
        let last = n - 1;
        run(format!(
            "{program} zfs send -i @{last} tank/src@{n} | {program} zfs receive -F tank/dst"
        ));
        looking.iter_mut().for_each(|child| assert!(child.wait().is_ok()));
        assert!(dst.join(format!(".zfs/snapshot/{n}/f")).exists());
    }
    run(format!("{program} zfs destroy tank/dst@31"));
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
        if {program} zfs unmount tank/l 2> /dev/null; then exit 1; fi
        umount {there}
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
    let busy = "cannot destroy snapshot tank/l@s: dataset is busy: it is mounted at";
    let busy = format!("{busy} '{}'", snap.display());
    assert_eq!(tank.refused("destroy tank/l@s"), busy);
    tank.zfs("rename tank/l@s tank/l@t");
    assert_eq!(tank.refused("destroy tank/l@t"), busy.replace("@s", "@t"));
    must("umount", &[text(one)]);
    assert_eq!(tank.get("mounted", "tank/l"), "yes");
    must("umount", &[text(snap)]);
    tank.zfs("destroy tank/l@t");
    must("umount", &[text(two)]);
    assert_eq!(tank.get("mounted", "tank/l"), "no");
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
    let by = common::used_by_this();
    let why = tank.refused("destroy tank/a");
    assert_eq!(why, format!("cannot destroy 'tank/a': dataset is busy{by}"));
    let why = tank.session.run("zpool export tank").fails(1);
    assert!(why.ends_with(&format!("pool or dataset is busy{by}")), "{why}");
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
    must("umount", &[text(&place)]);
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
    for (limit, fails) in [("-Sn 64", false), ("-n 62", true), ("-n 63", true), ("-n 64", true)] {
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
        // Commands are answered all the same, several at a time.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| tank.session.run("zfs list -Ho name").ok());
            }
        });
        tank.session.run("zpool export tank").ok();
        assert_eq!(mounts_below(tank.session.dir.path()), [""; 0]);
        cenote_testpools::judge(tank.session.dir.path(), "tank");
    }
}

/// What no process uses is in the way of nothing, though the kernel has not let go of it when the unmount was answered: here for
/// a copy of the mount in another namespace. In the background large files are being freed, and threads keep the processors busy.
#[test]
fn what_is_unmounted_is_not_busy() {
    if !can_mount() {
        return;
    }
    let _turn = NAMESPACES.write();
    let tank = Tank::new("");
    let hex = "df226b439a2fd448ea43a3a44512ef7c534ce6ffd1a881a02c9b5306a1e27ad7";
    let place = common::keys::key_file(&tank, "key", hex);
    tank.zfs(&format!("create -o encryption=on -o keyformat=hex -o keylocation={place} tank/e"));
    tank.zfs("snapshot tank/e@empty");
    let busy = Arc::new(());
    std::thread::scope(|scope| {
        // Until the test goes on or fails.
        let ends = busy;
        for _ in 0..4 {
            let until = Arc::downgrade(&ends);
            scope.spawn(move || while until.strong_count() > 0 {});
        }
        for round in 0..12 {
            let large = tank.path(&format!("tank/e/large{round}"));
            fs::write(&large, vec![round; 8 << 20]).unwrap();
            tank.zfs(&format!("snapshot tank/e@n{round}"));
            fs::write(tank.path("tank/e/other"), vec![round; 8 << 20]).unwrap();
            fs::remove_file(tank.path("tank/e/other")).unwrap();
            let copies = (round % 2 == 0).then(|| Namespace::with("true"));
            tank.zfs("unmount tank/e");
            match round % 4 {
                0 | 1 => {
                    tank.zfs("unload-key tank/e");
                    tank.zfs("load-key tank/e");
                }
                2 => tank.zfs("rollback -r tank/e@empty").clear(),
                _ => {
                    tank.zfs("rename tank/e tank/f");
                    tank.zfs("rename tank/f tank/e");
                }
            }
            drop(copies);
            if tank.get("mounted", "tank/e") == "no" {
                tank.zfs("mount tank/e");
            }
        }
        drop(ends);
    });
    let _copies = Namespace::with("true");
    tank.zfs("unmount tank/e");
    tank.zfs("destroy -r tank/e");
    tank.finish();
}
