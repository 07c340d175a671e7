//! An ordinary user imports pools and sees all file systems in them, though the kernel lets them
//! mount only the outermost: the others are served inside that mount.
//!
//! Only that user gets into the mount, so what looks into it is this program, run again as the user
//! (see [`child`]).

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use cenote_manifest_check::{Checks, FsTree, check_tree, datasets_with_files};
use cenote_testpools::TestPool;
use common::{Done, Session, can_mount, mounts_below, skip};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An ordinary user that every system has: `fusermount3` asks for the name.
const NOBODY: u32 = 65534;
/// What an ordinary user sees of the file systems inside the outermost one: inode numbers have a
/// slot in front, and attributes for the superuser are not shown.
const SEEN: Checks = Checks { ino: false, xattrs: false, ..Checks::EXACT };

/// A daemon of `nobody`.
struct Nobody {
    session: Session,
    root: PathBuf,
}

impl Nobody {
    /// `None`, and why, where the user cannot mount or not read the samples.
    fn new(pool: &TestPool) -> Option<Nobody> {
        let everyone = can_mount() && fs::metadata("/dev/fuse").unwrap().mode() & 0o6 == 0o6;
        let helper = Command::new("fusermount3").arg("-V").stdout(Stdio::null()).status();
        if !everyone || !helper.is_ok_and(|s| s.success()) {
            skip("needs root, fusermount3 and a /dev/fuse that is open to everyone");
            return None;
        }
        let session = Session::new();
        fs::set_permissions(session.dir.path(), Permissions::from_mode(0o755)).unwrap();
        let own = session.path("own");
        fs::create_dir(&own).unwrap();
        chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
        let nobody = Nobody { session, root: own.join("root") };
        let probe = nobody.run(&format!("ls -d {} {}", pool.dir.display(), pool.name));
        if probe.code != 0 {
            eprintln!("skipped: the sample pools cannot be read by others: {probe:?}");
            return None;
        }
        Some(nobody)
    }

    fn run(&self, line: &str) -> Done {
        let mut command = self.session.command();
        command.env("CENOTE_SOCKET", self.session.path("own/socket")).current_dir("/");
        command.uid(NOBODY).gid(NOBODY).args(line.split_whitespace());
        let output = command.output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn import(&self, pool: &TestPool) {
        let (root, from) = (self.root.display(), pool.dir.display());
        let name = &pool.name;
        self.run(&format!("zpool import -f -o readonly=on -R {root} -d {from} {name}")).ok();
        assert_eq!(mounts_below(&self.root), [self.root.join(name).to_str().unwrap()]);
    }

    /// Compares the file system `dataset` with the manifest of `pool`.
    #[track_caller]
    fn check(&self, pool: &TestPool, dataset: &str) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .env("CENOTE_TEST_POOL", &pool.name)
            .env("CENOTE_TEST_DATASET", dataset)
            .env("CENOTE_TEST_ROOT", &self.root);
        let output = command.uid(NOBODY).gid(NOBODY).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{dataset}: {said}");
    }

    /// Runs a program of the system.
    fn system(&self, program: &str, arg: &Path) -> Done {
        let output = Command::new(program).arg(arg).uid(NOBODY).gid(NOBODY).output().unwrap();
        Done {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Someone with a working directory there.
    fn sit(&self, at: &Path) -> Child {
        let mut cat = Command::new("cat");
        cat.current_dir(at).stdin(Stdio::piped()).stdout(Stdio::null());
        // The parent, root, cannot go there itself: the child does, as the user.
        cat.uid(NOBODY).gid(NOBODY).spawn().unwrap()
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        let _ = self.run("daemon stop");
    }
}

/// Not a test: what this program does when a test runs it again.
#[test]
fn child() {
    let Ok(name) = std::env::var("CENOTE_TEST_POOL") else { return };
    let dataset = std::env::var("CENOTE_TEST_DATASET").unwrap();
    let root = PathBuf::from(std::env::var("CENOTE_TEST_ROOT").unwrap());
    let manifest = TestPool { name, dir: PathBuf::new(), files: Vec::new() }.manifest();
    let all = datasets_with_files(&manifest);
    let found = all.iter().find(|d| d["name"] == *dataset).unwrap();
    let compared = check_tree(found, &FsTree::new(root.join(dataset)), &SEEN).unwrap();
    assert!(compared.files > 0);
}

#[test]
fn every_file_system_is_seen() {
    let pool = cenote_testpools::pool("rz2");
    let Some(nobody) = Nobody::new(&pool) else { return };
    nobody.import(&pool);
    let manifest = pool.manifest();
    let mut mounted = 1;
    for dataset in datasets_with_files(&manifest) {
        let name = dataset["name"].as_str().unwrap();
        if name.contains('/') && !name.contains('@') {
            nobody.check(&pool, name);
            assert_eq!(nobody.run(&format!("zfs get -Ho value mounted {name}")).ok(), "yes\n");
            mounted += 1;
        }
    }
    let listed = nobody.run("zfs mount").ok();
    assert_eq!(listed.lines().count(), mounted);
    let line = format!("{:<30}  {}\n", "rz2/bs4k-lz4", nobody.path("rz2/bs4k-lz4").display());
    assert!(listed.contains(&line), "{listed}");
    nobody.run("zpool export rz2").ok();
    assert!(mounts_below(&nobody.root).is_empty());
    assert!(!nobody.root.exists(), "directories made for the mount are removed");
}

#[test]
fn file_systems_come_and_go() {
    let pool = cenote_testpools::pool("basic");
    let Some(nobody) = Nobody::new(&pool) else { return };
    nobody.import(&pool);
    let ci = nobody.path("basic/ci");
    let listed = || nobody.system("ls", &ci).ok();
    nobody.check(&pool, "basic/ci");
    nobody.run("zfs unmount basic/ci").ok();
    assert_eq!(listed(), "");
    assert_eq!(nobody.run("zfs get -Ho value mounted basic/ci").ok(), "no\n");
    nobody.run("zfs mount basic/ci").ok();
    nobody.check(&pool, "basic/ci");
    let again = nobody.run("zfs mount basic/ci").fails(1);
    assert_eq!(again, "cannot mount 'basic/ci': filesystem already mounted");

    // By path, and only if no process is in there.
    let mut sitting = nobody.sit(&ci);
    let busy = format!("cannot unmount '{}': pool or dataset is busy", ci.display());
    assert_eq!(nobody.run(&format!("zfs unmount {}", ci.display())).fails(1), busy);
    assert!(listed().contains("README"));
    assert_eq!(nobody.run("zpool export basic").fails(1), busy);
    nobody.run("zfs unmount -f basic/ci").ok();
    assert_eq!(listed(), "");
    drop(sitting.stdin.take());
    sitting.wait().unwrap();

    // What is in a file system is unmounted with it.
    nobody.run("zfs mount -a").ok();
    assert!(listed().contains("README"));
    nobody.run("zfs unmount basic").ok();
    assert!(mounts_below(&nobody.root).is_empty());
    assert_eq!(nobody.run("zfs mount").ok(), "");
    nobody.run("zfs mount -a").ok();
    assert_eq!(nobody.run("zfs mount").ok().lines().count(), 4);
    nobody.check(&pool, "basic/ci");
    nobody.run("zpool export basic").ok();
    assert!(mounts_below(&nobody.root).is_empty());
}

/// An ordinary user's file systems need directories as well, in another's mount or out of it.
#[test]
fn nothing_is_mounted_at_a_file() {
    let pool = cenote_testpools::pool("basic");
    let Some(nobody) = Nobody::new(&pool) else { return };
    let disk = nobody.session.path("own/disk");
    fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    chown(&disk, Some(NOBODY), Some(NOBODY)).unwrap();
    let (root, shown) = (nobody.root.display(), disk.display());
    nobody.run(&format!("zpool create -R {root} tank {shown}")).ok();
    nobody.run("zfs create tank/a").ok();
    fs::write(nobody.path("outside"), "").unwrap();
    let mut sh = Command::new("sh");
    sh.args(["-c", &format!("echo x > {}", nobody.path("tank/inside").display())]);
    assert!(sh.current_dir("/").uid(NOBODY).gid(NOBODY).status().unwrap().success());
    for place in ["/tank/inside", "/tank/inside/below", "/outside"] {
        // The property is set; only the mounting fails.
        let said = nobody.run(&format!("zfs set mountpoint={place} tank/a")).fails(0);
        let why = "cannot mount 'tank/a': Not a directory\n";
        assert!(said.starts_with(why), "{place}: {said}");
        assert_eq!(nobody.run("zfs get -Ho value mounted tank/a").ok(), "no\n");
    }
    assert_eq!(nobody.system("cat", &nobody.path("tank/inside")).ok(), "x\n");
    nobody.run("zfs inherit mountpoint tank/a").ok();
    assert_eq!(nobody.run("zfs get -Ho value mounted tank/a").ok(), "yes\n");
    nobody.run("zpool export tank").ok();
    cenote_testpools::judge(&nobody.session.path("own"), "tank");
}

/// A pool that is imported below an alternate root covers nothing in the mount of another one.
#[test]
fn nothing_is_served_outside_of_the_alternate_root() {
    let Some(nobody) = Nobody::new(&cenote_testpools::pool("basic")) else { return };
    let make = |dir: &str| {
        let dir = nobody.session.path("own").join(dir);
        fs::create_dir(&dir).unwrap();
        let disk = dir.join("disk");
        fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
        for path in [&dir, &disk] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        disk.display().to_string()
    };
    let (mine, theirs) = (make("mine"), make("theirs"));
    let (root, alt) = (nobody.root.display(), nobody.session.path("own/alt"));
    fs::create_dir(&alt).unwrap();
    chown(&alt, Some(NOBODY), Some(NOBODY)).unwrap();
    nobody.run(&format!("zpool create -R {root} mine {mine}")).ok();
    let docs = nobody.path("mine/docs");
    assert_eq!(nobody.system("mkdir", &docs).code, 0);
    nobody.run(&format!("zpool create -R {} strange {theirs}", alt.display())).ok();
    let up = "/..".repeat(alt.components().count());
    nobody.run(&format!("zfs create -u -o mountpoint={up}{} strange/dots", docs.display())).ok();
    nobody.run("zfs create -u strange/good").ok();
    nobody.run("zpool export strange").ok();
    let from = nobody.session.path("own/theirs");
    let line = format!("zpool import -R {} -d {} strange", alt.display(), from.display());
    let why = nobody.run(&line).fails(1);
    assert_eq!(why.matches("leads out of the alternate root").count(), 1, "{why}");
    let mounted = |name: &str| nobody.run(&format!("zfs get -Ho value mounted {name}")).ok();
    assert_eq!(
        (mounted("strange/dots").as_str(), mounted("strange/good").as_str()),
        ("no\n", "yes\n")
    );
    for (pool, dir) in [("mine", "own/mine"), ("strange", "own/theirs")] {
        nobody.run(&format!("zpool export {pool}")).ok();
        cenote_testpools::judge(&nobody.session.path(dir), pool);
    }
}

/// `rewrite -x` leaves file systems alone that are served inside another's mount: the kernel takes them
/// to be of the same device.
#[test]
fn a_rewrite_stays_in_its_file_system() {
    let pool = cenote_testpools::pool("basic");
    let Some(nobody) = Nobody::new(&pool) else { return };
    let disk = nobody.session.path("own/disk");
    fs::File::create(&disk).unwrap().set_len(128 << 20).unwrap();
    chown(&disk, Some(NOBODY), Some(NOBODY)).unwrap();
    let (root, shown) = (nobody.root.display(), disk.display());
    nobody.run(&format!("zpool create -R {root} tank {shown}")).ok();
    nobody.run("zfs create tank/inner").ok();
    nobody.run("zfs create tank/inner/most").ok();
    let tank = nobody.path("tank");
    assert_eq!(mounts_below(&nobody.root), [tank.to_str().unwrap()]);
    let write = "mkdir dir && for f in a dir/b inner/c inner/most/d; do echo $f > $f; done";
    let mut sh = Command::new("sh");
    // The directory is one that only this user may enter.
    sh.args(["-c", &format!("cd {} && {write}", tank.display())]);
    assert!(sh.current_dir("/").uid(NOBODY).gid(NOBODY).status().unwrap().success());
    nobody.run("zpool sync tank").ok();
    let tank = tank.display();
    let rewritten = |line: &str| {
        let done = nobody.run(line);
        assert_eq!(done.code, 0, "{done:?}");
        let below = |l: &str| l.strip_prefix(&format!("{tank}/")).map(String::from);
        let mut names: Vec<String> = done.out.lines().filter_map(below).collect();
        names.sort();
        names
    };
    assert_eq!(rewritten(&format!("zfs rewrite -rvx {tank}")), ["a", "dir/b"]);
    assert_eq!(rewritten(&format!("zfs rewrite -rvx {tank}/inner")), ["inner/c"]);
    assert_eq!(rewritten(&format!("zfs rewrite -rvx {tank}/inner/most")), ["inner/most/d"]);
    let all = ["a", "dir/b", "inner/c", "inner/most/d"];
    assert_eq!(rewritten(&format!("zfs rewrite -rv {tank}")), all);
    nobody.run("zpool export tank").ok();
    cenote_testpools::judge(&nobody.session.path("own"), "tank");
}
