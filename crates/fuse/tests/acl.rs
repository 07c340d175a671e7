//! The kernel checks permissions by POSIX ACLs.
//!
//! No sample has an ACL that says otherwise than the mode bits, so one is changed as it is read. That
//! concerns the whole process, hence a test program of its own.

#![allow(clippy::unwrap_used)]

use cenote_fuse::{Local, MountFlags, MountSpec, SnapDir, Space, SyncPolicy, mount};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_store::tamper;
use cenote_zpl::FileSystem;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// A user whom the ACL of `acl/f` names.
const NAMED: u32 = 1234;
/// One whom it does not.
const OTHER: u32 = 65534;

fn open() -> (Arc<Pool>, Arc<FileSystem>) {
    let sample = cenote_testpools::pool("basic");
    let candidates = discover(std::slice::from_ref(&sample.dir));
    let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    let pool = Pool::import(&candidates[0], &options).unwrap();
    let dataset = pool.dsl().find("basic").unwrap().unwrap();
    let fs = FileSystem::open(pool.dsl().open_objset(&dataset).unwrap()).unwrap();
    (pool, fs)
}

/// Whether users can read `acl/f` through a mount.
fn readable(users: [u32; 2]) -> [bool; 2] {
    let (_pool, fs) = open();
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let _mount = mount(MountSpec {
        dataset: "basic".into(),
        mountpoint: dir.path().to_owned(),
        fs,
        snapshots: None,
        snapdir: SnapDir::Hidden,
        space: Arc::new(Space::default),
        sync: Arc::new(|_| Ok(())),
        sync_policy: SyncPolicy::Standard,
        setuid: false,
        devices: false,
        exec: false,
        watcher: None,
        root: "/".into(),
        make: false,
        overlay: true,
        flags: MountFlags::empty(),
        agent: Arc::new(Local),
    })
    .unwrap();
    let reads = |path: &Path, uid| {
        let mut cat = Command::new("cat");
        cat.arg(path).uid(uid).gid(uid).stdout(Stdio::null()).stderr(Stdio::null());
        cat.status().unwrap().success()
    };
    users.map(|uid| reads(&dir.path().join("acl/f"), uid))
}

#[test]
fn permissions_follow_acls() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: needs root to play several users");
        return;
    }
    assert_eq!(readable([NAMED, OTHER]), [true, true]);
    let acl = {
        let (_pool, fs) = open();
        let file = fs.resolve(b"acl/f").unwrap();
        fs.getxattr(file, b"system.posix_acl_access").unwrap().unwrap()
    };
    // The last entry is that of all others: tag, permissions, no id.
    let at = acl.len() - 8;
    assert_eq!(acl[at..at + 4], [0x20, 0, 4, 0]);
    tamper::install(Some(Box::new(move |_, block| {
        let found: Vec<usize> =
            (0..block.len()).filter(|i| block[*i..].starts_with(&acl)).collect();
        found.iter().for_each(|i| block[i + at + 2] = 0);
        !found.is_empty()
    })));
    assert_eq!(readable([NAMED, OTHER]), [true, false]);
    tamper::install(None);
}
