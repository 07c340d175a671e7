//! File systems that are served inside another one's mount.
//!
//! These tests mount: they need `/dev/fuse`, and root or `fusermount3`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use cenote_fuse::{Force, MountError, MountHandle, SnapDir, Submount};
use cenote_manifest_check::{Checks, FsTree, check_tree, datasets_with_files};
use cenote_pool::Pool;
use common::{Mounted, is_mounted, names, sample, spec};
use rustix::fs::statvfs;
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Checks of what submounts show: inode numbers have the slot in front.
const SUBMOUNTED: Checks = Checks { ino: false, ..Checks::EXACT };

fn submount(pool: &Pool, m: &Mounted, dataset: &str, at: &str) -> Result<Submount, MountError> {
    let place = m.handle.mountpoint().join(at);
    m.handle.add_submount(&spec(pool, dataset, &place))
}

fn name_of(dataset: &Value) -> &str {
    dataset["name"].as_str().unwrap()
}

#[track_caller]
fn is_busy(result: Result<(), MountError>) {
    assert!(matches!(result, Err(MountError::Busy(_))), "{result:?}");
}

/// A listing shows the inode numbers and types that `stat` shows.
#[track_caller]
fn listing_agrees(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = fs::symlink_metadata(entry.path()).unwrap();
        assert_eq!(entry.ino(), meta.ino(), "{entry:?}");
        assert_eq!(entry.file_type().unwrap(), meta.file_type(), "{entry:?}");
    }
}

/// All file systems of a pool as submounts of its root file system, and their snapshots.
fn compare(pool_name: &str) {
    let (pool, manifest) = sample(pool_name);
    let all = datasets_with_files(&manifest);
    let mut m = Mounted::new(&pool, pool_name, |_| {});
    let mut failures = Vec::new();
    let mut check = |dataset: &Value, at: &Path, checks: Checks| {
        if let Err(e) = check_tree(dataset, &FsTree::new(at), &checks) {
            failures.push(e);
        }
    };
    // The kernel learns the entries that the mounts will cover, so that it has something to forget.
    check(all[0], m.dir.path(), Checks::EXACT);
    let before = names(m.dir.path());
    let mut submounts = Vec::new();
    for dataset in all.iter().filter(|d| d["type"] == "filesystem") {
        let Some((_, at)) = name_of(dataset).split_once('/') else { continue };
        submounts.push(submount(&pool, &m, name_of(dataset), at).unwrap());
        assert!(fs::read_dir(m.path(at)).unwrap().count() > 0, "{at}");
    }
    for dataset in &all[1..] {
        let (fs, snapshot) = match name_of(dataset).split_once('@') {
            Some((fs, snapshot)) => (fs, Some(snapshot)),
            None => (name_of(dataset), None),
        };
        if fs != pool_name && !submounts.iter().any(|g| g.dataset() == fs) {
            continue;
        }
        let at = m.path(fs.split_once('/').map_or("", |(_, at)| at));
        match snapshot {
            Some(snapshot) => check(dataset, &at.join(".zfs/snapshot").join(snapshot), SUBMOUNTED),
            None => check(dataset, &at, SUBMOUNTED),
        }
    }
    listing_agrees(m.dir.path());
    is_busy(m.handle.unmount(Force::No));
    while let Some(mut submount) = submounts.pop() {
        submount.unmount(Force::No).unwrap();
        assert!(!submount.is_mounted());
    }
    assert_eq!(names(m.dir.path()), before);
    check(all[0], m.dir.path(), Checks::EXACT);
    m.handle.unmount(Force::No).unwrap();
    assert!(!is_mounted(m.dir.path()));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn basic_as_submounts() {
    compare("basic");
}

/// One of them belongs in a directory that does not exist.
#[test]
fn clones_as_submounts() {
    compare("clones");
}

#[test]
fn covered_directories_come_back() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let at = m.path("rec8k");
    let covered = fs::metadata(&at).unwrap();
    assert_eq!(names(&at), [""; 0]);
    let links = fs::metadata(m.dir.path()).unwrap().nlink();
    for round in 0..3 {
        let mut submount = submount(&pool, &m, "basic/rec8k", "rec8k").unwrap();
        assert_eq!(submount.mountpoint(), at.canonicalize().unwrap());
        assert!(names(&at).contains(&"f12m".to_owned()), "round {round}");
        let shown = fs::metadata(&at).unwrap();
        assert_eq!(shown.ino() & 0xffff_ffff_ffff, 0);
        assert_ne!(shown.ino(), covered.ino());
        listing_agrees(m.dir.path());
        let parent = fs::metadata(m.dir.path()).unwrap();
        assert_eq!(fs::metadata(at.join("..")).unwrap().ino(), parent.ino());
        assert_eq!(parent.nlink(), links);
        submount.unmount(Force::No).unwrap();
        assert_eq!(names(&at), [""; 0]);
        assert_eq!(fs::metadata(&at).unwrap().ino(), covered.ino());
        listing_agrees(m.dir.path());
    }
}

#[test]
fn missing_directories_are_made_and_go_again() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let before = names(m.dir.path());
    let links = fs::metadata(m.dir.path()).unwrap().nlink();
    assert!(!m.path("no/such").exists());
    let mut deep = submount(&pool, &m, "basic/rec8k", "no/such/place").unwrap();
    assert!(m.path("no/such/place/f12m").exists());
    let mut beside = submount(&pool, &m, "basic/xdir", "no/other").unwrap();
    assert_eq!(names(m.path("no")), ["other", "such"]);
    assert_eq!(fs::metadata(m.path("no")).unwrap().nlink(), 4);
    assert_eq!(fs::metadata(m.dir.path()).unwrap().nlink(), links + 1);
    for dir in ["", "no", "no/such"] {
        listing_agrees(&m.path(dir));
    }
    let mut now = before.clone();
    now.push("no".into());
    now.sort();
    assert_eq!(names(m.dir.path()), now);
    let up = fs::metadata(m.path("no/such/place/..")).unwrap().ino();
    assert_eq!(up, fs::metadata(m.path("no/such")).unwrap().ino());
    assert!(fs::write(m.path("no/file"), "x").is_err());

    // Over a made directory, which stays for what is in it.
    let mut over = submount(&pool, &m, "basic/ci", "no").unwrap();
    assert!(m.path("no/Dir").exists() && !m.path("no/such").exists());
    beside.unmount(Force::No).unwrap();
    over.unmount(Force::No).unwrap();
    assert_eq!(names(m.path("no")), ["such"]);
    deep.unmount(Force::No).unwrap();
    assert_eq!(names(m.dir.path()), before);
    assert!(!m.path("no").exists());

    for bad in ["", "acl/f", ".zfs/x", "../x"] {
        assert!(
            matches!(submount(&pool, &m, "basic/ci", bad), Err(MountError::Submount(..))),
            "{bad}"
        );
    }
}

#[test]
fn submounts_nest() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let mut ci = submount(&pool, &m, "basic/ci", "ci").unwrap();
    // Names in this file system fold case, so there are many of the covered directory.
    for name in ["ci/Dir/Sub", "ci/dir/SUB", "ci/DIR/sub"] {
        assert!(m.path(name).join("File0").exists());
    }
    names(m.path("ci/Dir"));
    let mut sub = submount(&pool, &m, "basic/xdir", "ci/dir/sub").unwrap();
    let other = Mounted::new(&pool, "basic/xdir", |_| {});
    for name in ["ci/Dir/Sub", "ci/dir/SUB", "ci/DIR/sub", "ci/dir/sub"] {
        assert_eq!(names(m.path(name)), names(other.dir.path()), "{name}");
    }
    listing_agrees(&m.path("ci/Dir"));
    let mut top = submount(&pool, &m, "basic/rec8k", "ci/Dir/Sub").unwrap();
    assert!(m.path("ci/dir/sub/f12m").exists());
    is_busy(ci.unmount(Force::No));
    is_busy(sub.unmount(Force::No));
    top.unmount(Force::No).unwrap();
    assert_eq!(names(m.path("ci/DIR/SUB")), names(other.dir.path()));
    sub.unmount(Force::No).unwrap();
    assert!(m.path("ci/DIR/sub/File0").exists());
    let sub = submount(&pool, &m, "basic/xdir", "ci/dir/sub").unwrap();
    ci.unmount(Force::Yes).unwrap();
    assert!(!sub.is_mounted() && !ci.is_mounted());
    assert_eq!(names(m.path("ci")), [""; 0]);
}

#[test]
fn submounts_in_use_are_busy() {
    let (pool, _) = sample("basic");
    let mut m = Mounted::new(&pool, "basic", |_| {});
    let mut g = submount(&pool, &m, "basic/rec8k", "rec8k").unwrap();
    let eventually = |g: &mut Submount| {
        // The kernel says a little later that something is closed.
        let free = (0..500).any(|_| {
            let done = g.unmount(Force::No).is_ok();
            if !done {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            done
        });
        assert!(free);
    };
    let file = File::open(m.path("rec8k/f12m")).unwrap();
    is_busy(g.unmount(Force::No));
    assert!(g.is_mounted());
    drop(file);
    eventually(&mut g);

    let mut g = submount(&pool, &m, "basic/rec8k", "rec8k").unwrap();
    let dir = fs::read_dir(m.path("rec8k")).unwrap();
    is_busy(g.unmount(Force::No));
    drop(dir);
    let mut sleeper = Command::new("cat");
    let mut sleeper = sleeper.current_dir(m.path("rec8k")).stdin(Stdio::piped()).spawn().unwrap();
    is_busy(g.unmount(Force::No));
    drop(sleeper.stdin.take());
    sleeper.wait().unwrap();
    eventually(&mut g);

    // By force; open files give errors for what the kernel does not have in its cache.
    let mut g = submount(&pool, &m, "basic/rec8k", "rec8k").unwrap();
    let mut file = File::open(m.path("rec8k/f12m")).unwrap();
    file.read_exact(&mut [0; 10]).unwrap();
    g.unmount(Force::Yes).unwrap();
    assert_eq!(file.read_at(&mut [0; 10], 10 << 20).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(names(m.path("rec8k")), [""; 0]);

    // The whole mount by force.
    let mut g = submount(&pool, &m, "basic/rec8k", "rec8k").unwrap();
    drop(file);
    m.handle.unmount(Force::Yes).unwrap();
    assert!(!g.is_mounted());
    g.unmount(Force::No).unwrap();
}

/// A user unmounts the mount that the submount is in.
#[test]
fn submounts_go_with_their_mount() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let g = submount(&pool, &m, "basic/rec8k", "rec8k").unwrap();
    assert!(Command::new("umount").arg(m.dir.path()).status().unwrap().success());
    assert!((0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        !g.is_mounted()
    }));
    assert!(!m.handle.is_mounted());
}

#[test]
fn each_submount_has_its_own_settings() {
    let (pool, manifest) = sample("clones");
    let m = Mounted::new(&pool, "clones", |_| {});
    let place = m.handle.mountpoint().join("gen");
    let mut visible = spec(&pool, "clones/gen", &place);
    visible.snapdir = SnapDir::Visible;
    visible.exec = false;
    let _gen = m.handle.add_submount(&visible).unwrap();
    let _live = submount(&pool, &m, "clones/live", "live").unwrap();
    assert!(names(m.path("gen")).contains(&".zfs".to_owned()));
    assert!(!names(m.path("live")).contains(&".zfs".to_owned()));
    assert_eq!(names(m.path("gen/.zfs/snapshot")), ["gen0", "gen3", "gen4", "gen5", "rsnap"]);
    assert_eq!(names(m.path("live/.zfs/snapshot")), ["inclone", "rsnap"]);
    assert_eq!(names(m.path(".zfs/snapshot")), ["rsnap"]);
    let inos = ["gen/.zfs", "live/.zfs", ".zfs"].map(|p| fs::metadata(m.path(p)).unwrap().ino());
    assert_eq!(inos.map(|i| i & 0xffff_ffff_ffff), [0xffff_ffff_ffff; 3]);
    assert!(inos[0] != inos[1] && inos[1] != inos[2]);
    let up = fs::metadata(m.path("gen/.zfs/snapshot/gen0/../..")).unwrap().ino();
    assert_eq!(up, inos[0]);

    // Every file system shows its own space.
    let used: HashMap<&str, u64> = datasets_with_files(&manifest)
        .into_iter()
        .filter_map(|d| Some((name_of(d), d["props"]["referenced"][0].as_str()?.parse().ok()?)))
        .collect();
    for (path, dataset) in [("", "clones"), ("gen", "clones/gen"), ("live", "clones/live")] {
        let s = statvfs(m.path(path)).unwrap();
        let unit = s.f_frsize;
        assert_eq!(s.f_blocks - s.f_bfree, used[dataset].div_ceil(unit), "{dataset}");
    }
}

#[test]
fn programs_run_where_they_may() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic/ci", |_| {});
    let mut at = spec(&pool, "basic", &m.handle.mountpoint().join("Dir"));
    let run = || {
        let program = m.path("Dir/many/entry-00001-6");
        let result = Command::new("sh").arg("-c").arg(program).stderr(Stdio::null()).status();
        result.unwrap().code()
    };
    for (exec, forbidden) in [(true, false), (false, true)] {
        at.exec = exec;
        let _submount = m.handle.add_submount(&at).unwrap();
        // The shell says 126: permission denied.
        assert_eq!(run() == Some(126), forbidden);
    }
}

/// Reads and listings go on while file systems come and go.
#[test]
fn coming_and_going_under_load() {
    let (pool, _) = sample("basic");
    let m = Mounted::new(&pool, "basic", |_| {});
    let root = names(m.dir.path());
    let handle: &MountHandle = &m.handle;
    let full: Vec<OsString> = {
        let _g = submount(&pool, &m, "basic/rec8k", "rec8k").unwrap();
        names(m.path("rec8k")).into_iter().map(OsString::from).collect()
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let at = m.path("rec8k");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(names(m.dir.path()), root);
                    // Taken away by force in the middle of a listing, it may end early.
                    for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
                        assert!(full.contains(&entry.file_name()));
                        let _ = fs::metadata(entry.path());
                    }
                }
            });
        }
        for _ in 0..50 {
            let mut g = handle.add_submount(&spec(
                &pool,
                "basic/rec8k",
                &handle.mountpoint().join("rec8k"),
            ));
            assert!(m.path("rec8k/f12m").exists());
            g.as_mut().unwrap().unmount(Force::Yes).unwrap();
            assert!(!m.path("rec8k/f12m").exists());
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
