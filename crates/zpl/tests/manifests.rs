//! Every file of every sample pool, compared with what OpenZFS showed.

#![allow(clippy::unwrap_used, clippy::panic)]

use cenote_manifest_check::{
    Checks, ZplTree, check_tree, check_volume, datasets_with_files, datasets_with_volume, import,
    import_with_keys,
};
use cenote_pool::Pool;
use cenote_zpl::{FileSystem, Visibility, Volume};
use serde_json::Value;
use std::sync::Arc;

fn property(dataset: &Value, name: &str) -> Option<String> {
    dataset["props"][name][0].as_str().map(String::from)
}

fn open(pool: &Pool, dataset: &Value) -> Arc<FileSystem> {
    let name = dataset["name"].as_str().unwrap();
    let found = pool.dsl().find(name).unwrap().unwrap_or_else(|| panic!("no dataset {name}"));
    let visibility = Visibility {
        xattr: property(dataset, "xattr").as_deref() != Some("off"),
        posix_acl: property(dataset, "acltype").is_some_and(|v| v.starts_with("posix")),
        nfs4_acl: false,
    };
    FileSystem::open_with(pool.dsl().open_objset(&found).unwrap(), visibility).unwrap()
}

/// Compares all datasets; returns how many files were compared.
fn check(name: &str) -> usize {
    let (pool, manifest) = (import_with_keys(name), cenote_testpools::pool(name).manifest());
    let mut files = 0;
    let mut failures = Vec::new();
    for dataset in datasets_with_files(&manifest) {
        let fs = open(&pool, dataset);
        match check_tree(dataset, &ZplTree::new(fs), &Checks::EXACT) {
            Ok(done) => files += done.files,
            Err(e) => failures.push(e),
        }
    }
    for dataset in datasets_with_volume(&manifest) {
        let found = pool.dsl().find(dataset["name"].as_str().unwrap()).unwrap().unwrap();
        let volume = Volume::open(pool.dsl().open_objset(&found).unwrap()).unwrap();
        let read = |at, buf: &mut [u8]| volume.read(at, buf).map_err(|e| e.to_string());
        if let Err(e) = check_volume(dataset, volume.size(), read) {
            failures.push(e);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(files > 0);
    files
}

macro_rules! pools {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            check(stringify!($name));
        }
    )* };
}

pools! {
    basic bclone clones compat21 crypt dedup deduplog dedupold degr degrz dr1 fragcrash fraglogsm
    fragnolog hole ldnode legacyd mir3 removal rz1 rz2 rz3 special streams
}

/// Crash images whose intent logs were never replayed: what was synced is there.
fn reads_without_its_log(name: &str) {
    let (pool, manifest) = (import(name), cenote_testpools::pool(name).manifest());
    for dataset in datasets_with_files(&manifest) {
        let fs = open(&pool, dataset);
        let mut dirs = vec![fs.root()];
        let mut buf = vec![0; 1 << 20];
        while let Some(dir) = dirs.pop() {
            for entry in fs.readdir(dir, 0, usize::MAX).unwrap() {
                let attr = fs.attr(entry.ino).unwrap();
                assert_eq!(u32::from(entry.kind), attr.mode >> 12);
                if attr.is_dir() {
                    dirs.push(entry.ino);
                } else if attr.is_file() {
                    let mut at = 0;
                    while at < attr.size {
                        at += fs.read(entry.ino, at, &mut buf).unwrap() as u64;
                    }
                }
                for name in fs.listxattr(entry.ino).unwrap() {
                    assert!(fs.getxattr(entry.ino, &name).unwrap().is_some());
                }
            }
        }
    }
}

#[test]
fn zilmain_reads_without_its_log() {
    reads_without_its_log("zilmain");
}

#[test]
fn zilslog_reads_without_its_log() {
    reads_without_its_log("zilslog");
}
