//! Sample pools, imported and mounted.

#![allow(dead_code)] // Each test file uses a part of it.

use cenote_dsl::{Dataset, Dsl};
use cenote_fuse::{
    Local, MountFlags, MountHandle, MountSpec, SnapDir, SnapshotEntry, Snapshots, Space,
    SyncPolicy, mount,
};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_zpl::{FileSystem, Visibility};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn import(dir: &Path, name: &str) -> Arc<Pool> {
    let candidates = discover(&[dir.to_owned()]);
    let candidate = candidates.iter().find(|c| c.name == name).unwrap();
    let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    Pool::import(candidate, &options).unwrap()
}

pub fn open_fs(dsl: &Dsl, dataset: &Dataset) -> Result<Arc<FileSystem>, cenote_zpl::Error> {
    let get = |name| dsl.get(dataset, name).unwrap().map(|p| p.exact).unwrap_or_default();
    let visibility = Visibility {
        xattr: get("xattr") != "off",
        posix_acl: get("acltype").starts_with("posix"),
        nfs4_acl: get("acltype") == "nfsv4",
    };
    FileSystem::open_with(dsl.open_objset(dataset)?, visibility)
}

pub struct DslSnapshots {
    dsl: Arc<Dsl>,
    dataset: Dataset,
}

impl Snapshots for DslSnapshots {
    fn list(&self) -> Vec<SnapshotEntry> {
        let all = self.dsl.snapshots(&self.dataset).unwrap();
        let entry = |d: &Dataset| SnapshotEntry {
            name: d.name.split_once('@').unwrap().1.to_owned(),
            created: d.ds.creation_time as i64,
        };
        all.iter().map(entry).collect()
    }

    fn newest(&self) -> u64 {
        self.dataset.ds.prev_snap_txg
    }

    fn open(&self, name: &str) -> Result<Arc<FileSystem>, cenote_zpl::Error> {
        let full = format!("{}@{name}", self.dataset.name);
        let found = self.dsl.find(&full)?.ok_or(cenote_zpl::Error::NotFound(full))?;
        open_fs(&self.dsl, &found)
    }
}

pub fn spec(pool: &Pool, name: &str, mountpoint: &Path) -> MountSpec {
    let dsl = pool.dsl();
    let dataset = dsl.find(name).unwrap().unwrap();
    let number = |prop| dsl.get(&dataset, prop).unwrap().unwrap().exact.parse().unwrap();
    let space = Space {
        referenced: number("referenced"),
        available: number("available"),
        record_size: number("recordsize"),
    };
    MountSpec {
        dataset: name.to_owned(),
        mountpoint: mountpoint.to_owned(),
        fs: open_fs(dsl, &dataset).unwrap(),
        snapshots: Some(Arc::new(DslSnapshots { dsl: dsl.clone(), dataset })),
        snapdir: SnapDir::Hidden,
        space: Arc::new(move || space),
        sync: Arc::new(|_| Ok(())),
        sync_policy: SyncPolicy::Standard,
        setuid: true,
        devices: true,
        exec: true,
        watcher: None,
        root: "/".into(),
        make: false,
        overlay: true,
        flags: MountFlags::empty(),
        agent: Arc::new(Local),
    }
}

/// A mounted dataset of a sample pool, and the directory it is mounted in.
pub struct Mounted {
    pub handle: MountHandle,
    pub dir: tempfile::TempDir,
}

impl Mounted {
    pub fn new(pool: &Pool, name: &str, change: impl FnOnce(&mut MountSpec)) -> Mounted {
        let dir = tempfile::tempdir().unwrap();
        let mut spec = spec(pool, name, dir.path());
        change(&mut spec);
        Mounted { handle: mount(spec).unwrap(), dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

pub fn sample(name: &str) -> (Arc<Pool>, Value) {
    let sample = cenote_testpools::pool(name);
    (import(&sample.dir, name), sample.manifest())
}

pub fn is_mounted(dir: &Path) -> bool {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().any(|l| l.split(' ').nth(4) == dir.to_str())
}

/// The names in a directory, sorted.
pub fn names(dir: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
