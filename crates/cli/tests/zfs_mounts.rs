//! Where file systems are mounted and where they are not, and what is said and left behind when they
//! cannot be. OpenZFS's own `zdb` judges what is left.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use common::tank::Tank;
use common::{Done, can_mount, mounts_below, must, used_by_this};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

#[test]
fn nothing_is_mounted_at_a_file() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let file = tank.path("file.txt");
    fs::write(&file, "x").unwrap();
    tank.zfs("create tank/onfile");
    // The property is set, so it is no failure.
    assert_eq!(
        tank.session.run("zfs set mountpoint=/file.txt tank/onfile").fails(0),
        "cannot mount 'tank/onfile': Not a directory\n\
         property may be set but unable to remount filesystem"
    );
    assert_eq!(tank.get("mounted", "tank/onfile"), "no");
    assert_eq!(fs::read_to_string(&file).unwrap(), "x");
    assert_eq!(tank.refused("mount tank/onfile"), "cannot mount 'tank/onfile': Not a directory");
    // In the way of a directory it is in the way as well.
    let below = tank.path("file.txt/below");
    assert_eq!(
        tank.refused("create -o mountpoint=/file.txt/below tank/below"),
        format!(
            "cannot mount '{}': failed to create mountpoint: Not a directory\n\
             filesystem successfully created, but not mounted",
            below.display()
        )
    );
    // A link to a directory leads there.
    fs::create_dir(tank.path("dir")).unwrap();
    std::os::unix::fs::symlink("dir", tank.path("link")).unwrap();
    tank.zfs("set mountpoint=/link tank/onfile");
    assert!(mounts_below(&tank.path("dir")).len() == 1);
    tank.finish();
}

#[test]
fn what_is_mounted_by_name_is_unmounted_by_name() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    tank.zfs("create -u -o canmount=noauto -o mountpoint=/elsewhere tank/b");
    tank.zfs("mount tank/b");
    tank.zfs("unmount -a");
    assert_eq!(tank.zfs("get -Ho value mounted tank tank/a tank/b"), "no\nno\nyes\n");
    tank.zfs("mount -a");
    tank.zfs("unmount tank/b");
    assert_eq!(tank.zfs("get -Ho value mounted tank tank/a tank/b"), "yes\nyes\nno\n");
    tank.finish();
}

/// A number in a file below `/proc/PID`.
fn in_proc(process: i32, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// What listing properties costs goes with the number of mounts, not with its square; idle mounts cost no thread and
/// little memory. Costs are counted in bytes that the daemon reads, so that no clock has a say.
#[test]
fn many_mounts_cost_little_each() {
    const FEW: usize = 20;
    const MANY: usize = 80;
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let daemon = tank.session.daemon().unwrap();
    let threads = || in_proc(daemon, "status", "Threads:");
    let resident = || in_proc(daemon, "status", "VmRSS:");
    let read_by = |line: &str| {
        tank.zfs(line);
        let before = in_proc(daemon, "io", "rchar:");
        let lines = tank.zfs(line).lines().count() as u64;
        (in_proc(daemon, "io", "rchar:") - before, lines)
    };
    let mount = |range: std::ops::Range<usize>| {
        for i in range {
            tank.zfs(&format!("create tank/f{i}"));
        }
    };
    mount(0..FEW);
    let (few, few_lines) = read_by("get -rH all tank");
    let (threads_before, resident_before) = (threads(), resident());
    mount(FEW..MANY);
    let (many, many_lines) = read_by("get -rH all tank");
    assert!(many_lines > 3 * few_lines, "{few_lines} lines, {many_lines} lines");
    // Four times the mounts: four times the cost, where the square is sixteen times.
    assert!(many < 7 * few.max(64 << 10), "{few} and {many} bytes read");
    assert!(threads() <= threads_before + 20, "{threads_before} threads, {}", threads());
    let each = resident().saturating_sub(resident_before) / (MANY - FEW) as u64;
    assert!(each < 1500, "{each} KiB for each mount");
    println!("{few} and {many} bytes read, {each} KiB for each mount, {} threads", threads());
    tank.finish();
}

#[test]
fn a_file_system_that_cannot_be_mounted_is_created_and_the_exit_code_says_so() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -o readonly=on tank/ro");
    let kid = tank.path("tank/ro/kid");
    assert_eq!(
        tank.refused("create tank/ro/kid"),
        format!(
            "cannot mount '{}': failed to create mountpoint: Read-only file system\n\
             filesystem successfully created, but not mounted",
            kid.display()
        )
    );
    assert_eq!(tank.get("mounted", "tank/ro/kid"), "no");
    // What is not meant to be mounted is no failure.
    for options in ["-u", "-o canmount=off", "-o canmount=noauto", "-o mountpoint=legacy"] {
        tank.zfs(&format!("create {options} tank/ro/other"));
        tank.zfs("destroy tank/ro/other");
    }
    tank.finish();
}

#[test]
fn what_is_in_use_keeps_its_properties() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    tank.zfs("create tank/a/b");
    fs::write(tank.path("tank/a/b/file"), "x").unwrap();
    let place = tank.path("tank/a/b").display().to_string();
    let busy = format!("cannot unmount '{place}': pool or dataset is busy{}", used_by_this());
    let held = fs::File::open(tank.path("tank/a/b/file")).unwrap();
    for (property, old) in [("canmount=off", "on"), ("zoned=on", "off"), ("mountpoint=none", "")] {
        let name = property.split('=').next().unwrap();
        for dataset in ["tank/a", "tank/a/b"] {
            assert_eq!(tank.refused(&format!("set {property} {dataset}")), busy, "{property}");
            assert_eq!(tank.get("mounted", "tank/a"), "yes");
            assert_eq!(tank.get("mounted", "tank/a/b"), "yes");
            let now = tank.get(name, "tank/a/b");
            assert!(now == old || now == place, "{property}: {now}");
        }
    }
    drop(held);
    // Those below that inherit the mountpoint stay mounted.
    tank.zfs("set canmount=off tank/a");
    assert_eq!(tank.get("mounted", "tank/a"), "no");
    assert_eq!(fs::read_to_string(tank.path("tank/a/b/file")).unwrap(), "x");
    tank.zfs("set canmount=on tank/a");
    assert_eq!(tank.get("mounted", "tank/a"), "no", "it is mounted when it is asked for");
    tank.zfs("set -u canmount=off tank/a/b");
    assert_eq!(tank.get("mounted", "tank/a/b"), "yes");
    tank.finish();
}

#[test]
fn what_is_in_use_keeps_nothing_else_mounted() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    for name in ["a", "b", "b/kid", "c"] {
        tank.zfs(&format!("create tank/{name}"));
    }
    let place = |name: &str| tank.path(&format!("tank/{name}")).display().to_string();
    fs::write(tank.path("tank/b/kid/file"), "x").unwrap();
    fs::write(tank.path("tank/c/file"), "x").unwrap();
    let held = ["tank/b/kid/file", "tank/c/file"].map(|f| fs::File::open(tank.path(f)).unwrap());
    let said = tank.refused("unmount -a");
    let busy = |name: &str| {
        let by = used_by_this();
        format!("cannot unmount '{}': pool or dataset is busy{by}", place(name))
    };
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], [busy("c"), busy("b/kid")], "{said}");
    // What is around them stays as well.
    let around = |line: &str, at: &str| line.starts_with(&format!("cannot unmount '{at}': "));
    assert!(lines.len() == 4 && around(lines[2], &place("b")), "{said}");
    assert_eq!(
        tank.zfs("get -Ho name,value mounted tank/a tank/b tank/b/kid tank/c"),
        "tank/a\tno\ntank/b\tyes\ntank/b/kid\tyes\ntank/c\tyes\n"
    );
    // An export takes all of the pool or nothing.
    assert_eq!(tank.session.run("zpool export tank").fails(1), busy("c"));
    drop(held);
    tank.zfs("unmount -a");
    assert_eq!(tank.zfs("mount"), "");
    tank.finish();
}

#[test]
fn what_belongs_to_a_zone_is_not_mounted() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    tank.zfs("create -o mountpoint=/b tank/a/b");
    tank.zfs("create -o zoned=off -o mountpoint=/c tank/a/c");
    tank.zfs("set zoned=on tank/a");
    assert_eq!(
        tank.zfs("get -rHo name,value mounted tank"),
        "tank\tyes\ntank/a\tno\ntank/a/b\tno\ntank/a/c\tyes\n"
    );
    let why = tank.refused("mount tank/a");
    assert_eq!(why, "cannot mount 'tank/a': dataset is exported to a local zone");
    tank.zfs("inherit zoned tank/a/c");
    assert_eq!(tank.get("mounted", "tank/a/c"), "no");
    tank.zfs("inherit zoned tank/a");
    tank.zfs("mount -a");
    assert_eq!(tank.zfs("mount").lines().count(), 4);
    tank.finish();
}

#[test]
fn each_file_system_that_cannot_be_mounted_is_told_once() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/dup");
    tank.zfs("create tank/dup/kid");
    fs::write(tank.path("file"), "").unwrap();
    let set =
        |place: &str| tank.session.run(&format!("zfs set mountpoint={place} tank/dup")).fails(0);
    let why = set("/file/zz");
    let said: Vec<&str> = why.lines().collect();
    let place = tank.path("file/zz");
    let line = |below: &str| {
        let place = place.join(below);
        let place = place.display().to_string();
        let place = place.trim_end_matches('/');
        format!("cannot mount '{place}': failed to create mountpoint: Not a directory")
    };
    let last = "property may be set but unable to remount filesystem";
    assert_eq!(said, [&line(""), &line("kid"), last]);
    // Those that were not mounted before are tried as well.
    let why = set("/file/yy");
    assert_eq!(why.lines().count(), 3, "{why}");
    tank.zfs("inherit mountpoint tank/dup");
    assert_eq!(tank.get("mounted", "tank/dup/kid"), "yes");
    tank.finish();
}

#[test]
fn options_of_mount() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -u tank/a");
    tank.zfs("mount -f tank/a");
    tank.zfs("unmount tank/a");
    tank.zfs("mount -flv -o ro tank/a");
    assert!(fs::write(tank.path("tank/a/file"), "x").is_err());
    tank.zfs("unmount tank/a");
    tank.zfs("mount -alf");
    assert_eq!(tank.get("mounted", "tank/a"), "yes");
    let usage = tank.session.run("zfs mount -q").fails(2);
    assert!(usage.contains("\tmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>"), "{usage}");
    tank.finish();
}

/// What mount(8) runs.
fn helper(tank: &Tank, line: &str) -> Done {
    let mut command = tank.session.command();
    let output = command.arg0("mount.zfs").args(line.split_whitespace()).output().unwrap();
    Done {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn mount_mounts_what_is_legacy() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -o mountpoint=legacy tank/leg");
    tank.zfs("create tank/leg/kid");
    let (dir, other) = (tank.session.path("dir"), tank.session.path("other"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    assert_eq!(
        tank.refused("mount tank/leg"),
        "cannot mount 'tank/leg': legacy mountpoint\nuse mount(8) to mount this filesystem"
    );
    helper(&tank, "tank/leg dir -o rw,noexec,_netdev,x-systemd.automount").ok();
    fs::write(dir.join("file"), "legacy").unwrap();
    let listed = format!("{:<30}  {}\n", "tank/leg", dir.display());
    assert!(tank.zfs("mount").contains(&listed));
    assert_eq!(tank.get("mounted,mountpoint,exec", "tank/leg"), "yes\nlegacy\noff");
    let said = helper(&tank, "tank/leg dir -o rw").fails(128);
    assert_eq!(said, "filesystem 'tank/leg' is already mounted");
    // It stays there when others move, and when it gets another name.
    tank.zfs("rename tank/leg tank/old");
    tank.zfs("set mountpoint=/tank2 tank");
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "legacy");
    helper(&tank, "-o remount,ro tank/old dir").ok();
    assert!(fs::write(dir.join("file"), "x").is_err());
    helper(&tank, "-o remount,rw tank/old dir").ok();
    fs::write(dir.join("file"), "written").unwrap();
    // umount(8) takes it away, and leaves the directory.
    let done = std::process::Command::new("umount").arg(&dir).status().unwrap();
    assert!(done.success());
    assert_eq!(tank.get("mounted", "tank/old"), "no");
    tank.zfs("set mountpoint=legacy tank/old/kid");
    helper(&tank, "-n tank/old/kid other").ok();
    for line in ["unmount tank/old/kid", "unmount -f tank/old/kid"] {
        let why = "cannot unmount 'tank/old/kid': legacy mountpoint\n\
                   use umount(8) to unmount this filesystem";
        assert_eq!(tank.refused(line), why);
    }
    must("umount", &[other.to_str().unwrap()]);
    assert!(other.exists() && mounts_below(&other).is_empty());
    helper(&tank, "tank/old/kid other").ok();
    tank.zfs("destroy tank/old/kid");
    assert!(other.exists(), "nobody made it for the mount");
    // mount(8) says `rw` to everything.
    tank.zfs("set readonly=on tank/old");
    helper(&tank, "tank/old dir -o rw").ok();
    assert!(fs::write(dir.join("file"), "x").is_err());
    tank.zfs("set canmount=off tank/old");
    assert_eq!(tank.get("mounted", "tank/old"), "no");
    helper(&tank, "tank/old dir").ok();
    tank.zfs("set canmount=on mountpoint=/own tank/old");
    assert_eq!(fs::read_to_string(tank.path("own/file")).unwrap(), "written");
    assert!(mounts_below(&dir).is_empty());
    // A snapshot does not become writable.
    tank.zfs("snapshot tank/old@s");
    helper(&tank, "tank/old@s other -o rw").ok();
    helper(&tank, "-o remount,ro tank/old@s other").ok();
    let said = helper(&tank, "-o remount,rw tank/old@s other").fails(1);
    assert_eq!(said, "filesystem 'tank/old@s' can not be mounted: Read-only file system");
    // Exporting the pool takes away what is left.
    tank.zfs("set mountpoint=legacy tank/old");
    helper(&tank, "tank/old dir").ok();
    assert_eq!(mounts_below(&dir).len(), 1);
    tank.finish();
}

#[test]
fn a_snapshot_that_is_mounted_elsewhere_is_not_destroyed() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/fs");
    fs::write(tank.path("tank/fs/file"), "kept").unwrap();
    tank.zfs("snapshot tank/fs@s");
    tank.zfs("snapshot tank/fs@t");
    let (other, third) = (tank.session.path("other"), tank.session.path("third"));
    fs::create_dir(&other).unwrap();
    fs::create_dir(&third).unwrap();
    helper(&tank, "tank/fs@s other").ok();
    helper(&tank, "tank/fs@t third").ok();
    tank.session.run("tunables set zfs_admin_snapshot=1").ok();
    let remove = || fs::remove_dir(tank.path("tank/fs/.zfs/snapshot/s"));
    assert_eq!(remove().unwrap_err().raw_os_error(), Some(16));
    let why = "cannot destroy snapshot tank/fs@s: dataset is busy: it is mounted at";
    assert_eq!(tank.refused("destroy tank/fs@s"), format!("{why} '{}'", other.display()));
    assert_eq!(fs::read_to_string(other.join("file")).unwrap(), "kept");
    must("umount", &[other.to_str().unwrap()]);
    remove().unwrap();
    assert!(!tank.names().contains(&"tank/fs@s".to_string()));
    // The other mount does not keep the pool from being exported.
    tank.finish();
}

#[test]
fn a_snapshot_with_open_files_is_not_destroyed() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -o checksum=off -o compression=off tank/fs");
    let file = tank.path("tank/fs/file");
    fs::write(&file, [1; 1 << 20]).unwrap();
    tank.zfs("snapshot tank/fs@old");
    fs::remove_file(&file).unwrap();
    let old = tank.path("tank/fs/.zfs/snapshot/old/file");
    let open = fs::File::open(&old).unwrap();
    for line in ["destroy tank/fs@old", "destroy -d tank/fs@old", "destroy -r tank/fs"] {
        let why = "cannot destroy snapshot tank/fs@old: dataset is busy";
        assert_eq!(tank.refused(line), format!("{why}{}", used_by_this()), "{line}");
    }
    // It is there as before, also for a reader that has not seen it yet.
    let mut bytes = vec![0; 1 << 20];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|b| *b == 1));
    assert_eq!(fs::read(&old).unwrap(), bytes);
    assert!(tank.names().contains(&"tank/fs@old".to_string()));
    // The kernel may tell late that it was closed.
    drop(open);
    tank.zfs("destroy tank/fs@old");
    assert!(!old.exists() && !tank.names().contains(&"tank/fs@old".to_string()));
    tank.finish();
}

#[test]
fn mount_is_refused_in_openzfs_words() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/fs");
    tank.zfs("create -o mountpoint=legacy tank/leg");
    fs::create_dir(tank.session.path("dir")).unwrap();
    fs::write(tank.session.path("file"), "").unwrap();
    let (dir, see) = (tank.session.path("dir"), "See zfs(8) for more information.");
    let dir = dir.display();
    let nowhere = tank.session.path("nowhere");
    for (line, code, why) in [
        (
            "tank/fs dir -o rw",
            1,
            format!(
                "filesystem 'tank/fs' cannot be mounted using 'mount'.\n\
                 Use 'zfs set mountpoint=legacy' or 'zfs mount tank/fs'.\n{see}"
            ),
        ),
        (
            "tank/leg dir -o zfsutil",
            1,
            format!(
                "filesystem 'tank/leg' cannot be mounted using 'zfs mount'.\n\
                 Use 'zfs set mountpoint={dir}' or 'mount -t zfs tank/leg {dir}'.\n{see}"
            ),
        ),
        (
            "tank/leg dir -o nosuch",
            1,
            "filesystem 'tank/leg' cannot be mounted due to invalid option 'nosuch'.\n\
             Use the '-s' option to ignore the bad mount option."
                .into(),
        ),
        (
            "tank/leg nowhere",
            2,
            format!(
                "filesystem 'tank/leg' cannot be mounted at '{}' due to canonicalization error: \
                 No such file or directory",
                nowhere.display()
            ),
        ),
        ("tank/leg file", 2, "cannot mount 'tank/leg': Not a directory".into()),
        (
            "tank/none dir",
            1,
            "filesystem 'tank/none' cannot be mounted, unable to open the dataset".into(),
        ),
    ] {
        assert_eq!(helper(&tank, line).fails(code), why, "{line}");
    }
    for line in ["", "tank/leg", "tank/leg dir more", "-q tank/leg dir", "-h"] {
        let said = helper(&tank, line).fails(1);
        assert!(said.contains("Usage: mount.zfs [-sfnvh] [-o options] <dataset>"), "{said}");
    }
    // What is not done is no failure.
    helper(&tank, "-f tank/leg dir").ok();
    assert_eq!(tank.get("mounted", "tank/leg"), "no");
    helper(&tank, "-s tank/leg dir -o nosuch").ok();
    must("umount", &[tank.session.path("dir").to_str().unwrap()]);
    // A ramdisk mounts the root file system where it will be.
    tank.zfs("unmount tank/fs");
    helper(&tank, "tank/fs dir -o zfsutil").ok();
    assert_eq!(mounts_below(&tank.session.path("dir")).len(), 1);
    tank.finish();
}

/// What a program stored in a mapping is in the pool, whatever makes the file system read-only.
#[test]
fn what_is_mapped_when_it_becomes_read_only_is_written() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let script = "
import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b'x' * 8192)
m = mmap.mmap(fd, 8192)
m[:6] = b'before'
print(flush=True)
sys.stdin.readline()
try:
    os.pwrite(fd, b'written', 10)
    sys.exit('it is read-only')
except OSError as e:
    assert e.errno == errno.EROFS
m[4096:4101] = b'after'
";
    let mut want = [b'x'; 8192];
    want[..6].copy_from_slice(b"before");
    want[4096..4101].copy_from_slice(b"after");
    tank.zfs("create tank/a");
    tank.zfs("create tank/a/b");
    for (before, line, back) in [
        (vec![], "set readonly=on tank/a/b", "inherit readonly tank/a/b"),
        (vec![], "set readonly=on tank/a", "inherit readonly tank/a"),
        (
            vec!["set readonly=off tank/a/b", "set readonly=on tank/a"],
            "inherit readonly tank/a/b",
            "inherit readonly tank/a",
        ),
        (vec![], "mount -o remount,ro tank/a/b", "mount -o remount,rw tank/a/b"),
    ] {
        before.iter().for_each(|line| drop(tank.zfs(line)));
        let file = tank.path("tank/a/b/file");
        let mut program = std::process::Command::new("python3");
        program.args(["-c", script]).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = program.spawn().expect("python3");
        let mut said = String::new();
        BufReader::new(program.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        // It is open for writing, so the kernel is not told.
        let why = tank.refused(line);
        assert!(why.contains("cannot remount '") && why.contains("busy"), "{line}: {why}");
        writeln!(program.stdin.as_mut().unwrap()).unwrap();
        assert!(program.wait().unwrap().success(), "{line}");
        assert!(fs::write(&file, "x").is_err(), "{line}");
        tank.zfs(back);
        tank.zfs("unmount tank/a/b");
        tank.zfs("mount tank/a/b");
        assert!(fs::read(&file).unwrap() == want, "{line}");
        fs::remove_file(&file).unwrap();
    }
    tank.finish();
}

#[test]
fn an_unmount_takes_descendants_wherever_they_are() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create tank/a");
    tank.zfs("create tank/a/b");
    tank.zfs("create -o mountpoint=/elsewhere tank/a/b/c");
    tank.zfs("create -o mountpoint=/elsewhere/in tank/d");
    tank.zfs("create -o mountpoint=legacy tank/a/l");
    let (dir, other) = (tank.session.path("dir"), tank.path("elsewhere"));
    fs::create_dir(&dir).unwrap();
    helper(&tank, "tank/a/l dir").ok();
    // Another one's mount inside one of them keeps it.
    let why = tank.refused("unmount tank/a");
    assert!(why.starts_with(&format!("cannot unmount '{}': ", other.display())), "{why}");
    tank.zfs("unmount tank/d");
    let mounted = |name: &str| tank.get("mounted", name);
    // What was unmounted before one that is in use is mounted again, as it was.
    tank.zfs("unmount tank/a/b");
    tank.zfs("mount -o ro tank/a/b");
    tank.zfs("mount tank/a/b/c");
    let open = fs::File::open(tank.path("tank/a")).unwrap();
    let why = tank.refused("unmount tank/a");
    assert!(why.ends_with(&used_by_this()), "{why}");
    assert_eq!(["tank/a", "tank/a/b", "tank/a/b/c"].map(mounted), ["yes", "yes", "yes"]);
    assert!(fs::write(tank.path("tank/a/b/f"), "").is_err(), "mounted to be read only");
    drop(open);
    tank.zfs("unmount tank/a");
    assert_eq!(["tank/a", "tank/a/b", "tank/a/b/c"].map(mounted), ["no", "no", "no"]);
    assert_eq!(mounted("tank/a/l"), "yes", "it is left to umount(8)");
    must("umount", &[dir.to_str().unwrap()]);
    tank.finish();
}

/// A pool of another system mounts nothing outside of the alternate root, by whatever way it was made to lead there.
#[test]
fn nothing_is_mounted_outside_of_the_alternate_root() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    let outside = ["out1", "out2"].map(|name| tank.session.path(name));
    outside.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    std::os::unix::fs::symlink(&outside[0], tank.path("tank/link")).unwrap();
    tank.zfs("create -u tank/link");
    tank.zfs("create -u tank/link/below");
    let up = "/..".repeat(tank.session.path("root").components().count());
    tank.zfs(&format!("create -u -o mountpoint={up}{} tank/dots", outside[1].display()));
    tank.zfs("create -u tank/good");
    tank.session.run("zpool export tank").ok();
    let (root, dir) = (tank.session.root(), tank.session.dir.path().display());
    fs::create_dir_all(&root).unwrap();
    let why = tank.session.run(&format!("zpool import -d {dir} -R {root} tank")).fails(1);
    assert_eq!(why.matches("leads out of the alternate root").count(), 3, "{why}");
    assert!(why.ends_with("Import was successful, but unable to mount some datasets"), "{why}");
    for dir in &outside {
        assert!(mounts_below(dir).is_empty() && fs::read_dir(dir).unwrap().next().is_none());
    }
    assert_eq!(tank.get("mounted", "tank/good"), "yes");
    // Neither through a link that others can make.
    let shared = tank.path("shared");
    fs::create_dir_all(tank.path("inside")).unwrap();
    fs::create_dir(&shared).unwrap();
    std::os::unix::fs::symlink("../inside", shared.join("link")).unwrap();
    tank.zfs("create -u -o mountpoint=/shared/link tank/via");
    fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let why = tank.refused("mount tank/via");
    let says = "is a symbolic link that others than root can make";
    assert!(why.ends_with(says) && mounts_below(&tank.path("inside")).is_empty(), "{why}");
    fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    tank.zfs("mount tank/via");
    assert_eq!(mounts_below(&tank.path("inside")).len(), 1);
    tank.zfs("destroy -r tank/link");
    tank.zfs("destroy tank/dots");
    tank.finish();
}

/// Names of up to 1023 bytes, while `longname` is on; those that were given stay.
#[test]
fn long_names_are_given_and_kept() {
    if !can_mount() {
        return;
    }
    let tank = Tank::new("");
    tank.zfs("create -o longname=on tank/long");
    let feature = || {
        let said = tank.session.run("zpool get -Ho value feature@longname tank").ok();
        said.trim().to_string()
    };
    let named = |len: usize, letter: &str| tank.path("tank/long").join(letter.repeat(len));
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
    fs::write(named(255, "s"), "short").unwrap();
    tank.session.run("zpool sync").ok();
    assert_eq!(feature(), "enabled");
    fs::write(named(256, "a"), "256").unwrap();
    fs::create_dir(named(1023, "d")).unwrap();
    fs::write(named(1023, "d").join("x".repeat(600)), "below").unwrap();
    fs::rename(named(255, "s"), named(300, "r")).unwrap();
    assert_eq!(errno(fs::write(named(1024, "e"), "")), Some(36));
    tank.session.run("zpool sync").ok();
    assert_eq!(feature(), "active");

    tank.zfs("set longname=off tank/long");
    assert_eq!(errno(fs::write(named(256, "b"), "")), Some(36));
    assert_eq!(errno(fs::rename(named(300, "r"), named(301, "r"))), Some(36));
    let (dir, root) = (tank.session.dir.path().display().to_string(), tank.session.root());
    tank.session.run("zpool export tank").ok();
    tank.session.run(&format!("zpool import -R {root} -d {dir} tank")).ok();
    assert_eq!(fs::read_to_string(named(256, "a")).unwrap(), "256");
    assert_eq!(fs::read_to_string(named(300, "r")).unwrap(), "short");
    assert_eq!(fs::read_to_string(named(1023, "d").join("x".repeat(600))).unwrap(), "below");
    let mut lengths: Vec<_> = fs::read_dir(tank.path("tank/long"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().len())
        .collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [256, 300, 1023]);
    fs::rename(named(300, "r"), named(9, "r")).unwrap();
    fs::remove_file(named(256, "a")).unwrap();
    // OpenZFS 2.1 reads the pool again once the dataset is gone.
    tank.zfs("destroy tank/long");
    assert_eq!(feature(), "enabled");
    tank.finish();
}
