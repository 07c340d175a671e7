//! Pools of versions from before feature flags, made by zfs-fuse (`scripts/old-pools.sh`), in `tests/pools/old`.

use crate::{TempPool, TestPool, packed_dir, target_dir, unpack_image};
use std::fs;

/// The versions that there are pools of.
pub const OLD: [u64; 7] = [1, 3, 8, 11, 15, 19, 23];

/// The pool of a version, in a copy of its own, and the manifest of all that is in it.
pub fn old(version: u64) -> (TempPool, serde_json::Value) {
    let base = target_dir().join("test-pools");
    fs::create_dir_all(&base).unwrap();
    let name = format!("v{version}");
    let dir = tempfile::Builder::new().prefix("pool-old-").tempdir_in(base).unwrap();
    let packed = packed_dir().join("old");
    let listed = dir.path().join("manifest");
    unpack_image(&packed.join(format!("{name}.manifest.json.zst")), &listed).unwrap();
    let manifest = serde_json::from_slice(&fs::read(&listed).unwrap()).unwrap();
    fs::remove_file(listed).unwrap();
    let image = dir.path().join(format!("{name}.img"));
    unpack_image(&packed.join(format!("{name}.img.zst")), &image).unwrap();
    let pool = TestPool { name, dir: dir.path().into(), files: vec![image] };
    (TempPool { pool, _dir: dir }, manifest)
}
