//! Sample pools seen through mounts, compared with what OpenZFS showed.
//!
//! These tests mount: they need `/dev/fuse`, and root or `fusermount3`. Parts that play another user
//! or another process run this test program again (see `child`).

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use cenote_format::LABEL_START;
use cenote_fuse::{Force, Local, MountError, SnapDir, Space, Watcher, mount};
use cenote_manifest_check::{Checks, FsTree, check_tree, datasets_with_files};
use common::{Mounted, import, is_mounted, names, open_fs, sample, spec};
use rustix::fs::{IFlags, OFlags, SeekFrom, ioctl_getflags, seek, statvfs};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Unmounts a file system that no process uses. Another test of this process that is starting a program has its open
/// files twice for a moment.
fn unmount(m: &mut Mounted) {
    let start = Instant::now();
    while let Err(e) = m.handle.unmount(Force::No) {
        assert!(
            matches!(e, MountError::Busy(_)) && start.elapsed() < Duration::from_secs(30),
            "{e}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every dataset of a pool, through a mount, its snapshots below `.zfs`.
fn compare(pool_name: &str) {
    let (pool, manifest) = sample(pool_name);
    let all = datasets_with_files(&manifest);
    let mut failures = Vec::new();
    for dataset in all.iter().filter(|d| d["type"] == "filesystem") {
        let name = dataset["name"].as_str().unwrap();
        let mut m = Mounted::new(&pool, name, |_| {});
        let mut check = |dataset: &Value, at: PathBuf, checks: Checks| {
            if let Err(e) = check_tree(dataset, &FsTree::new(at), &checks) {
                failures.push(e);
            }
        };
        check(dataset, m.dir.path().to_owned(), Checks::EXACT);
        for snapshot in all
            .iter()
            .filter(|d| d["name"].as_str().unwrap().split_once('@').is_some_and(|(n, _)| n == name))
        {
            let short = snapshot["name"].as_str().unwrap().split_once('@').unwrap().1;
            // Inode numbers of a snapshot have its number in front.
            check(
                snapshot,
                m.path(".zfs/snapshot").join(short),
                Checks { ino: false, ..Checks::EXACT },
            );
        }
        unmount(&mut m);
        assert!(!is_mounted(m.dir.path()));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn basic_through_a_mount() {
    compare("basic");
}

#[test]
fn clones_through_a_mount() {
    compare("clones");
}

#[test]
fn large_dnodes_through_a_mount() {
    compare("ldnode");
}

#[test]
fn mirror_through_a_mount() {
    compare("mir3");
}

#[test]
fn the_control_directory() {
    let (pool, _) = sample("clones");
    let m = Mounted::new(&pool, "clones/gen", |_| {});
    assert!(!names(m.path("")).contains(&".zfs".to_owned()));
    let links = fs::metadata(m.path("")).unwrap().nlink();
    assert_eq!(names(m.path(".zfs")), ["shares", "snapshot"]);
    assert_eq!(names(m.path(".zfs/snapshot")), ["gen0", "gen3", "gen4", "gen5", "rsnap"]);
    assert_eq!(fs::metadata(m.path(".zfs/snapshot")).unwrap().nlink(), 2 + 5);
    assert_eq!(names(m.path(".zfs/shares")), [""; 0]);
    assert_eq!(fs::metadata(m.path(".zfs")).unwrap().ino(), 0xffff_ffff_ffff);
    for dir in [".zfs", ".zfs/snapshot", ".zfs/shares"] {
        assert_eq!(fs::metadata(m.path(dir)).unwrap().permissions().mode() & 0o7777, 0o777);
    }
    assert!(!m.path(".zfs/snapshot/nosuch").exists());
    assert!(!m.path(".zfs/nosuch").exists());
    // A snapshot has no control directory of its own.
    assert!(!m.path(".zfs/snapshot/gen0/.zfs").exists());
    let up = fs::metadata(m.path(".zfs/snapshot/gen0/../..")).unwrap().ino();
    assert_eq!(up, 0xffff_ffff_ffff);

    let visible = Mounted::new(&pool, "clones/gen", |s| s.snapdir = SnapDir::Visible);
    assert!(names(visible.path("")).contains(&".zfs".to_owned()));
    assert_eq!(fs::metadata(visible.path(".zfs")).unwrap().permissions().mode() & 0o7777, 0o777);
    assert_eq!(fs::metadata(visible.path("")).unwrap().nlink(), links + 1);
    let disabled = Mounted::new(&pool, "clones/gen", |s| s.snapdir = SnapDir::Disabled);
    assert!(!disabled.path(".zfs").exists());
}

#[test]
fn numbers_below_the_control_directory_are_the_same_in_each_mount() {
    let all = ["gen0", "gen3", "gen4", "gen5", "rsnap"];
    let numbers = |order: &mut dyn Iterator<Item = &&str>| {
        let (pool, _) = sample("clones");
        let m = Mounted::new(&pool, "clones/gen", |_| {});
        let number = |path: PathBuf| fs::metadata(path).unwrap().ino();
        let mut found: Vec<_> = order
            .map(|name| (name.to_string(), number(m.path(".zfs/snapshot").join(name))))
            .collect();
        found.sort();
        found
    };
    let first = numbers(&mut all.iter());
    assert_eq!(first, numbers(&mut all.iter().rev()));
    assert_eq!(first.iter().map(|(_, ino)| ino).collect::<std::collections::HashSet<_>>().len(), 5);
}

#[test]
fn data_and_holes() {
    let (pool, manifest) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let files = manifest["datasets"][0]["files"].as_array().unwrap();
    let sparse = files.iter().find(|f| f["path"] == "sparse/tera").unwrap();
    let file = File::open(m.path("sparse/tera")).unwrap();
    let mut at = 0;
    for extent in sparse["extents"].as_array().unwrap() {
        let (start, len) = (extent[0].as_u64().unwrap(), extent[1].as_u64().unwrap());
        assert_eq!(seek(&file, SeekFrom::Data(at)).unwrap(), start);
        assert_eq!(seek(&file, SeekFrom::Data(start + 1)).unwrap(), start + 1);
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        assert_eq!(at, start + len);
    }
    assert_eq!(at, file.metadata().unwrap().len());
    assert_eq!(seek(&file, SeekFrom::Hole(at)), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::Data(at)), Err(rustix::io::Errno::NXIO));
}

#[test]
fn nothing_can_be_changed() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let read_only =
        |r: std::io::Result<()>| assert_eq!(r.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    read_only(fs::write(m.path("new"), "x"));
    read_only(fs::write(m.path("acl/f"), "x"));
    read_only(fs::create_dir(m.path("newdir")));
    read_only(fs::remove_file(m.path("acl/f")));
    read_only(fs::rename(m.path("acl/f"), m.path("acl/g")));
    read_only(fs::set_permissions(m.path("acl/f"), fs::Permissions::from_mode(0o600)));
    read_only(xattr::set(m.path("acl/f"), "user.new", b"x"));
}

#[test]
fn files_have_flags() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    for name in ["acl", "acl/f"] {
        assert_eq!(ioctl_getflags(File::open(m.path(name)).unwrap()), Ok(IFlags::empty()));
    }
}

#[test]
fn space_is_shown_as_openzfs_does() {
    let (pool, manifest) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let s = statvfs(m.dir.path()).unwrap();
    let prop = |name: &str| -> u64 {
        manifest["datasets"][0]["props"][name][0].as_str().unwrap().parse().unwrap()
    };
    let unit = 128 << 10;
    assert_eq!((s.f_bsize, s.f_frsize, s.f_namemax), (unit, unit, 255));
    assert_eq!(s.f_bavail, s.f_bfree);
    assert_eq!(s.f_blocks - s.f_bfree, prop("referenced").div_ceil(unit));
    assert!(s.f_files - s.f_ffree > 5000);
}

#[test]
fn mounts_in_use_are_busy() {
    let (pool, _) = sample("basic");
    let mut m = Mounted::new(&pool, "basic", |_| {});
    let mut file = File::open(m.path("big/mix3m")).unwrap();
    assert!(matches!(m.handle.unmount(Force::No), Err(MountError::Busy(_))));
    assert!(m.handle.is_mounted());
    let mut start = [0; 10];
    file.read_exact(&mut start).unwrap();
    m.handle.unmount(Force::Yes).unwrap();
    assert!(!is_mounted(m.dir.path()));
    drop(file);
    // Unmounted behind its back.
    let m = Mounted::new(&pool, "basic", |_| {});
    assert!(Command::new("umount").arg(m.dir.path()).status().unwrap().success());
    let deadline = Instant::now() + Duration::from_secs(5);
    while m.handle.is_mounted() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!m.handle.is_mounted());
}

/// A block that is damaged beyond repair is an error, and the only one in its file.
#[test]
fn only_bad_blocks_are_errors() {
    let damaged = cenote_testpools::copy("basic");
    let (block_size, bad, bp) = {
        let pool = import(&damaged.pool.dir, "basic");
        let fs = open_fs(pool.dsl(), &pool.dsl().find("basic/rec8k").unwrap().unwrap()).unwrap();
        let file = fs.open_file(fs.resolve(b"f12m").unwrap()).unwrap();
        (file.block_size(), 700, file.object().unwrap().block_pointer(0, 700).unwrap())
    };
    for dva in bp.dvas() {
        let image = File::options().write(true).open(&damaged.pool.files[0]).unwrap();
        image.write_all_at(&vec![0x5a; dva.asize as usize], dva.offset + LABEL_START).unwrap();
    }
    let pool = import(&damaged.pool.dir, "basic");
    let m = Mounted::new(&pool, "basic/rec8k", |_| {});
    let file = File::open(m.path("f12m")).unwrap();
    let blocks = file.metadata().unwrap().len() / block_size;
    let mut buf = vec![0; block_size as usize];
    let failing: Vec<u64> =
        (0..blocks).filter(|b| file.read_exact_at(&mut buf, b * block_size).is_err()).collect();
    assert_eq!(failing, [bad]);
    let error = file.read_at(&mut buf, bad * block_size).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    // A large direct read ends before the block.
    let direct = File::options()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(m.path("f12m"))
        .unwrap();
    let start = (bad - 20) * block_size;
    assert_eq!(direct.read_at(&mut vec![0; 1 << 20], start).unwrap() as u64, 20 * block_size);
}

/// An ordinary user that every system has: `fusermount3` asks for the name.
const NOBODY: u32 = 65534;

/// Runs this program again as `role`; see [`child`].
fn child_command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env("CENOTE_TEST_ROLE", role);
    command
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Not a test: what this program does when a test runs it again.
#[test]
fn child() {
    let Ok(role) = std::env::var("CENOTE_TEST_ROLE") else { return };
    if role == "watcher" {
        cenote_fuse::watcher::watch().unwrap();
        return;
    }
    let dir = PathBuf::from(role);
    let pool_dir = PathBuf::from(std::env::var("CENOTE_TEST_POOL").unwrap());
    let pool = import(&pool_dir, "bclone");
    let watcher = Arc::new(Watcher::start(child_command("watcher")).unwrap());
    let mount_at = |sub: &str, dataset| {
        let mut spec = spec(&pool, dataset, &dir.join(sub));
        spec.watcher = Some(watcher.clone());
        mount(spec).unwrap()
    };
    let mut spec = spec(&pool, "bclone", &dir.join("one"));
    spec.watcher = Some(watcher.clone());
    if std::env::var_os("CENOTE_TEST_STUCK").is_some() {
        spec.space = Arc::new(|| {
            std::thread::sleep(Duration::from_secs(60));
            Space::default()
        });
    }
    let _one = mount(spec).unwrap();
    let _two = mount_at("two", "bclone/second");
    if std::env::var_os("CENOTE_TEST_STUCK").is_some() {
        let one = dir.join("one");
        std::thread::spawn(move || statvfs(&one));
        // The request is being answered by then, so the thread that waits for it cannot be killed.
        std::thread::sleep(Duration::from_millis(300));
    }
    fs::write(dir.join("ready"), "").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Two mounts by a process with this user id; `end` ends it.
fn serve_and_end(uid: Option<u32>, end: &str, stuck: bool) {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["one", "two"] {
        fs::create_dir(dir.path().join(sub)).unwrap();
        chown(dir.path().join(sub), uid, uid).unwrap();
    }
    chown(dir.path(), uid, uid).unwrap();
    let sample = cenote_testpools::pool("bclone");
    let mut command = child_command(dir.path().to_str().unwrap());
    command.env("CENOTE_TEST_POOL", &sample.dir).stdout(Stdio::null());
    if stuck {
        command.env("CENOTE_TEST_STUCK", "1");
    }
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let mut server = command.spawn().unwrap();
    wait_until("the child mounts", || {
        assert!(server.try_wait().unwrap().is_none(), "the child ended");
        dir.path().join("ready").exists()
    });
    let mounts = || ["one", "two"].map(|s| is_mounted(&dir.path().join(s)));
    assert_eq!(mounts(), [true, true]);
    if uid.is_none() {
        assert!(fs::read_dir(dir.path().join("one")).unwrap().count() > 3);
    }
    let _open = File::open(dir.path().join("two"));
    assert!(Command::new("kill").args([end, &server.id().to_string()]).status().unwrap().success());
    wait_until("the server is gone", || server.try_wait().unwrap().is_some());
    wait_until("the mounts are gone", || mounts() == [false, false]);
}

#[test]
fn mounts_go_with_their_server() {
    serve_and_end(None, "-KILL", false);
    serve_and_end(None, "-TERM", false);
}

/// A thread that waits for an answer of its own process cannot be killed, and would keep all that the
/// process had open.
#[test]
fn a_server_that_waits_for_itself_can_be_killed() {
    serve_and_end(None, "-KILL", true);
}

/// The same file system in a further place, and again while a process has a file of it open.
#[test]
fn what_is_mounted_can_be_mounted_again() {
    let (pool, _) = sample("basic");
    let mut m = Mounted::new(&pool, "basic", |_| {});
    let (second, third) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let number = |dir: &std::path::Path| fs::metadata(dir).unwrap().dev();
    m.handle.mount_again(&spec(&pool, "basic", second.path()), &Local).unwrap();
    assert_eq!(number(m.dir.path()), number(second.path()));
    let file = File::open(second.path().join("big/mix3m")).unwrap();
    m.handle.detach(Force::No, Some(m.dir.path()), &Local).unwrap();
    assert!(m.handle.is_mounted() && !is_mounted(m.dir.path()));
    assert_eq!(m.handle.mountpoint(), second.path());
    assert!(matches!(m.handle.detach(Force::No, None, &Local), Err(MountError::Busy(_))));
    assert!(Command::new("umount").arg("-l").arg(second.path()).status().unwrap().success());
    m.handle.revise();
    assert!(!m.handle.is_mounted() && !m.handle.is_finished());
    assert!(!m.handle.wait(Instant::now()), "the file is open");
    m.handle.mount_again(&spec(&pool, "basic", third.path()), &Local).unwrap();
    file.read_exact_at(&mut [0; 100], 1 << 20).unwrap();
    assert!(m.handle.is_mounted() && third.path().join("big").exists());
    drop(file);
    m.handle.unmount(Force::No).unwrap();
    assert!(m.handle.is_finished() && !is_mounted(third.path()));
}

/// A bind mount belongs to the user who made it, and stays until the connection ends.
#[test]
fn a_bind_mount_stands_in_no_ones_way() {
    let (pool, _) = sample("basic");
    let mut m = Mounted::new(&pool, "basic", |_| {});
    let bound = tempfile::tempdir().unwrap();
    let done = Command::new("mount").arg("--bind").args([m.dir.path(), bound.path()]).status();
    assert!(done.unwrap().success());
    m.handle.detach(Force::No, None, &Local).unwrap();
    assert!(!is_mounted(m.dir.path()) && bound.path().join("big").exists());
    assert!(!m.handle.wait(Instant::now()), "it is mounted there");
    m.handle.end(&Local);
    assert!(m.handle.wait(Instant::now() + Duration::from_secs(20)));
    assert!(!is_mounted(bound.path()));
}

/// Another mount over the same place does not keep one from being given up.
#[test]
fn what_is_covered_goes_by_force() {
    let (pool, _) = sample("basic");
    let mut m = Mounted::new(&pool, "basic", |_| {});
    let cover = ["-t", "tmpfs", "none"];
    let done = Command::new("mount").args(cover).arg(m.dir.path()).status();
    assert!(done.unwrap().success());
    assert!(matches!(m.handle.unmount(Force::No), Err(MountError::Covered(_))));
    m.handle.unmount(Force::Yes).unwrap();
    assert!(m.handle.is_finished());
    let unmount = || Command::new("umount").arg(m.dir.path()).status().unwrap().success();
    assert!(unmount() && unmount(), "the cover, and the dead mount below it");
}

/// The same for an ordinary user, who mounts by `fusermount3`.
#[test]
fn ordinary_users_can_mount() {
    let everyone = fs::metadata("/dev/fuse").unwrap().mode() & 0o6 == 0o6;
    if rustix::process::geteuid().is_root() && everyone {
        serve_and_end(Some(NOBODY), "-KILL", false);
    } else {
        eprintln!("not tested: needs root, and a /dev/fuse that is open to everyone");
    }
}

/// How many descriptors of this process belong to a connection; `None` if the kernel does not tell.
fn descriptors(m: &Mounted) -> Option<usize> {
    let minor = m.handle.id().split([':', ' ']).nth(1).unwrap().to_owned();
    let infos = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts: Vec<_> = infos.filter_map(|info| fs::read_to_string(info.path()).ok()).collect();
    let of = |text: &String| {
        let line = text.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
        line.map(|line| line.trim() == minor)
    };
    let told: Vec<bool> = texts.iter().filter_map(of).collect();
    (!told.is_empty()).then(|| told.into_iter().filter(|own| *own).count())
}

#[test]
fn threads_answer_through_descriptors_of_their_own_and_let_go_of_them() {
    let (pool, _) = sample("bclone");
    let mut m = Mounted::new(&pool, "bclone", |_| {});
    let other = Mounted::new(&pool, "bclone/second", |_| {});
    assert!(!names(m.path("")).is_empty());
    if descriptors(&m).is_none() {
        return eprintln!("not tested: the kernel does not tell whose descriptors are");
    }
    let comes_true = |used: &Mounted, condition: &dyn Fn() -> bool| {
        let start = Instant::now();
        // Threads get them and let go of them when they have something to do.
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(25));
            statvfs(used.dir.path()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    // Other tests may have as many as the process gets.
    comes_true(&m, &|| descriptors(&m) > Some(1));
    unmount(&mut m);
    comes_true(&other, &|| descriptors(&m) == Some(0));
}
