//! Names and paths: how they compare, and back from objects to paths; the use of projects.

#![allow(clippy::unwrap_used, clippy::panic)]

use cenote_manifest_check::{datasets_with_files, file_path, import};
use cenote_pool::Pool;
use cenote_zpl::{CaseSensitivity, Error, FileSystem};
use serde_json::Value;
use std::sync::Arc;

fn sample() -> (Arc<Pool>, Value) {
    (import("basic"), cenote_testpools::pool("basic").manifest())
}

fn open(pool: &Pool, name: &str) -> Arc<FileSystem> {
    let dataset = pool.dsl().find(name).unwrap().unwrap();
    FileSystem::open(pool.dsl().open_objset(&dataset).unwrap()).unwrap()
}

#[test]
fn every_file_has_its_path() {
    let (pool, manifest) = sample();
    for dataset in datasets_with_files(&manifest) {
        let fs = open(&pool, dataset["name"].as_str().unwrap());
        // A search of a directory takes its time: in a large one, every fiftieth.
        let files = dataset["files"].as_array().unwrap();
        for file in files.iter().step_by(files.len() / 100 + 1) {
            let path = file_path(file).unwrap();
            let found = fs.path_of(file["ino"].as_u64().unwrap()).unwrap();
            let want = if path == b"." { b"/".to_vec() } else { [b"/", &path[..]].concat() };
            if file["nlink"] == 1 || file["type"] == "d" {
                assert_eq!(found, want);
            }
            assert_eq!(fs.resolve(&found).unwrap(), fs.resolve(&path).unwrap());
        }
    }
}

#[test]
fn case_and_normalization_do_not_count_where_they_should_not() {
    let (pool, manifest) = sample();
    let fs = open(&pool, "basic/ci");
    assert_eq!(fs.case_sensitivity(), CaseSensitivity::Insensitive);
    assert!(fs.normalizes() && fs.utf8_only());
    let file = fs.resolve(b"Dir/Sub/File0").unwrap();
    for path in ["dir/sub/file0", "DIR/SUB/FILE0", "dIR/./sUB/../sub//File0", "/dir/sub/FILE0"] {
        assert_eq!(fs.resolve(path.as_bytes()).unwrap(), file, "{path}");
    }
    assert!(matches!(fs.resolve(b"dir/sub/file\xff"), Err(Error::IllegalName(_))));
    let dataset =
        datasets_with_files(&manifest).into_iter().find(|d| d["name"] == "basic/ci").unwrap();
    for file in dataset["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let ino = fs.resolve(path.as_bytes()).unwrap();
        assert_eq!(fs.resolve(upper_case(path).as_bytes()).ok(), Some(ino), "{path}");
        assert_eq!(fs.resolve(decompose(path).as_bytes()).unwrap(), ino, "{path}");
    }
    let exact = open(&pool, "basic");
    assert!(exact.resolve(b"ACL/f").is_err() && exact.resolve(b"acl/f").is_ok());
}

/// Upper case as file systems know it: one character for one.
fn upper_case(path: &str) -> String {
    let one = |c: char| {
        let mut upper = c.to_uppercase();
        upper.next().filter(|_| upper.next().is_none()).unwrap_or(c)
    };
    path.chars().map(one).collect()
}

/// The accented letters of the sample, taken apart.
fn decompose(path: &str) -> String {
    path.replace('\u{f6}', "o\u{308}").replace('\u{ef}', "i\u{308}")
}

#[test]
fn paths_follow_links_but_not_the_last() {
    let (pool, manifest) = sample();
    let fs = open(&pool, "basic");
    let files = manifest["datasets"][0]["files"].as_array().unwrap();
    let link = files.iter().find(|f| f["type"] == "l").unwrap();
    let path = file_path(link).unwrap();
    assert_eq!(fs.resolve(&path).unwrap(), link["ino"].as_u64().unwrap());
    assert!(matches!(fs.resolve(b"acl/f/below"), Err(Error::NotDir(_))));
    assert!(matches!(fs.resolve(b"acl/f/"), Err(Error::NotDir(_))));
    assert!(matches!(fs.resolve(b"acl/nosuch"), Err(Error::NotFound(_))));
    assert_eq!(fs.resolve(b"../../acl/../acl").unwrap(), fs.resolve(b"/acl").unwrap());
    assert_eq!(fs.resolve(b"").unwrap(), fs.root());
    // What is no file is not there.
    assert_eq!(fs.attr(1).unwrap_err().errno(), 2);
    assert_eq!(fs.attr(u64::MAX).unwrap_err().errno(), 2);
    assert_eq!(fs.attr(1 << 40).unwrap_err().errno(), 2);
}

#[test]
fn projects_are_accounted() {
    let (pool, manifest) = sample();
    let fs = open(&pool, "basic");
    let space = fs.project_space(0).unwrap().unwrap();
    let dataset = &datasets_with_files(&manifest)[0];
    let referenced: u64 = dataset["props"]["referenced"][0].as_str().unwrap().parse().unwrap();
    assert!(space.used.abs_diff(referenced) < referenced / 4, "{space:?}, referenced {referenced}");
    assert!(space.objects >= 5300, "{space:?}");
    assert_eq!((space.quota, space.object_quota), (None, None));
    assert_eq!(fs.project_space(77).unwrap().unwrap().used, 0);
    assert_eq!(fs.bounding_project(fs.root()).unwrap(), None);
}
