//! Every file of every sample pool, through real mounts: with all devices, and without as many as
//! the redundancy allows.
//!
//! Left out: `crypt` (refused by name), and the crash images whose manifests show what is
//! there after their intent logs were replayed, which a read-only import does not do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use cenote_manifest_check::{Checks, FsTree, check_tree, datasets_with_files};
use common::{Session, can_mount, mounts_below};
use serde_json::Value;

const LEFT_OUT: [&str; 3] = ["crypt", "zilmain", "zilslog"];

/// Where a dataset is seen: a snapshot below its file system's `.zfs`.
fn place(s: &Session, dataset: &str) -> PathBuf {
    let (fs, snapshot) = match dataset.split_once('@') {
        Some((fs, snapshot)) => (fs, Some(snapshot)),
        None => (dataset, None),
    };
    let at = s.run(&format!("zfs get -H -o value mountpoint {fs}")).ok();
    let at = Path::new(at.trim_end());
    snapshot.map_or(at.into(), |name| at.join(".zfs/snapshot").join(name))
}

/// Imports a pool from `dir`, compares all of it, exports it. File systems are mounted one at a
/// time: a manifest has the empty directories that other file systems are mounted on.
fn check_pool(dir: &Path, name: &str, manifest: &Value) -> usize {
    let s = Session::new();
    let root = s.root();
    s.run(&format!("zpool import -f -N -o readonly=on -R {root} -d {} {name}", dir.display())).ok();
    let (mut files, mut mounted) = (0, None);
    for dataset in datasets_with_files(manifest) {
        let name = dataset["name"].as_str().unwrap();
        let fs = name.split('@').next().unwrap();
        if place(&s, fs) == Path::new("none") {
            continue; // It cannot be mounted; the tests of the file system layer read it.
        }
        if mounted != Some(fs) {
            mounted.map(|old| s.run(&format!("zfs unmount {old}")).ok());
            s.run(&format!("zfs mount {fs}")).ok();
            mounted = Some(fs);
        }
        // Snapshots share a mount with their file system: their inode numbers carry a slot.
        let checks = Checks { ino: !name.contains('@'), ..Checks::EXACT };
        let done = check_tree(dataset, &FsTree::new(place(&s, name)), &checks);
        files += done.unwrap_or_else(|e| panic!("{name}: {e}")).files;
    }
    s.run(&format!("zpool export {name}")).ok();
    assert_eq!(mounts_below(&s.path("root")), [""; 0], "{name}");
    files
}

/// One test, not two side by side: a process that another thread starts holds this one's open
/// files for a moment, and unmounting would find them busy.
#[test]
fn every_file_of_every_pool() {
    if can_mount() {
        all_devices();
        devices_missing();
    }
}

fn all_devices() {
    let mut files = 0;
    for name in cenote_testpools::names().iter().filter(|n| !LEFT_OUT.contains(&n.as_str())) {
        let pool = cenote_testpools::pool(name);
        files += check_pool(&pool.dir, name, &pool.manifest());
    }
    assert!(files > 15_000, "only {files} files seen");
}

fn devices_missing() {
    let losses: [(&str, &[usize]); 9] = [
        ("mir3", &[0, 2]),
        ("rz1", &[1]),
        ("rz2", &[0, 3]),
        ("rz3", &[1, 2, 5]),
        ("dr1", &[0]),
        ("dr1", &[3]),
        ("degr", &[0, 3]),
        ("hole", &[1, 4]),
        ("special", &[1]),
    ];
    for (name, lost) in losses {
        let temp = cenote_testpools::copy(name);
        lost.iter().for_each(|i| fs::remove_file(&temp.pool.files[*i]).unwrap());
        check_pool(&temp.pool.dir, name, &temp.pool.manifest());
    }
}
