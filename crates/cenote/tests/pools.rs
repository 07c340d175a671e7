//! The face of the library on pools made by OpenZFS, and the examples.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A failure fails the test.

use cenote::{DatasetKind, Error, ErrorKind, Key, Pool};
use sha2::{Digest, Sha256};
use std::io::{Read, Seek, SeekFrom};
use std::process::Command;

fn open(name: &str) -> (cenote_testpools::TestPool, Pool) {
    let files = cenote_testpools::pool(name);
    let pool = Pool::open([&files.dir], name).unwrap();
    (files, pool)
}

#[test]
fn pools_are_found_and_opened() {
    let files = cenote_testpools::pool("degr");
    let found = Pool::find([&files.dir]);
    assert_eq!(found.iter().map(|f| f.name()).collect::<Vec<_>>(), ["degr"]);
    assert_eq!(found[0].devices().count(), 4);
    let pool = found[0].open().unwrap();
    let manifest = files.manifest();
    assert_eq!(pool.guid().to_string(), manifest["guid"].as_str().unwrap());
    assert_eq!(pool.health(), "DEGRADED");
    assert_eq!(pool.property("size").as_deref(), manifest["pool_props"]["size"].as_str());
    assert_eq!(pool.property("no such property"), None);
    assert!(pool.properties().iter().any(|(n, _)| n == "feature@lz4_compress"));
    // By guid, too.
    assert!(Pool::open([&files.dir], &pool.guid().to_string()).is_ok());
    assert!(matches!(Pool::open([&files.dir], "tank"), Err(Error::Import(_))));
}

#[test]
fn datasets_are_those_of_the_manifest() {
    let (files, pool) = open("clones");
    let manifest = files.manifest();
    let mut names = Vec::new();
    for dataset in pool.datasets() {
        let dataset = dataset.unwrap();
        names.push(dataset.name().to_string());
        names.extend(dataset.snapshots().unwrap().iter().map(|d| d.name().to_string()));
        names.extend(dataset.bookmarks().unwrap().iter().map(|d| d.name().to_string()));
    }
    names.sort();
    let mut expected: Vec<&str> = manifest["datasets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["name"].as_str().unwrap())
        .collect();
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert!(matches!(pool.dataset("clones/none"), Err(Error::NoDataset(_))));
    let volume = pool.dataset("clones/vol").unwrap();
    assert_eq!(volume.kind(), DatasetKind::Volume);
    assert!(matches!(volume.filesystem(), Err(Error::Kind { .. })));
    assert!(matches!(pool.dataset("clones/gen#bm1").unwrap().volume(), Err(Error::Kind { .. })));
}

#[test]
fn files_and_volumes_read_as_streams() {
    let (files, pool) = open("clones");
    let manifest = files.manifest();
    let mut read = 0;
    for dataset in manifest["datasets"].as_array().unwrap() {
        let name = dataset["name"].as_str().unwrap();
        if let Some(expected) = dataset["volume"]["sha256"].as_str() {
            let mut volume = pool.dataset(name).unwrap().volume().unwrap();
            assert_eq!(sha256(&mut volume), expected, "{name}");
            volume.seek(SeekFrom::End(0)).unwrap();
            assert_eq!(volume.read(&mut [0; 16]).unwrap(), 0);
        }
        let files = dataset["files"].as_array().map(Vec::as_slice).unwrap_or_default();
        for file in files.iter().filter(|f| f["sha256"].is_string() && f["path"].is_string()) {
            let fs = pool.dataset(name).unwrap().filesystem().unwrap();
            let path = file["path"].as_str().unwrap();
            let expected = file["sha256"].as_str().unwrap();
            assert_eq!(sha256(&mut fs.open(path).unwrap()), expected, "{name}:{path}");
            read += 1;
        }
    }
    assert!(read > 100, "{read} files");
}

fn sha256(from: &mut impl Read) -> String {
    let mut data = Vec::new();
    from.read_to_end(&mut data).unwrap();
    Sha256::digest(&data).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn directories_links_and_attributes() {
    let (files, pool) = open("basic");
    let fs = pool.root().unwrap().filesystem().unwrap();
    let manifest = files.manifest();
    let listed = manifest["datasets"][0]["files"].as_array().unwrap();
    let many = listed
        .iter()
        .filter(|f| {
            f["path"].as_str().is_some_and(|p| p.contains("many/") && p.matches('/').count() <= 2)
        })
        .count();
    let entries = fs.read_dir("many").unwrap().count();
    assert!(entries >= 5000 && entries >= many.min(5000), "{entries}, {many}");
    for link in listed.iter().filter(|f| f["type"] == "l" && f["path"].is_string()).take(50) {
        let target = fs.read_link(link["path"].as_str().unwrap()).unwrap();
        if let Some(expected) = link["target"].as_str() {
            assert_eq!(target.to_str().unwrap(), expected);
        }
    }
    let e = fs.open("no/such/file").map(|_| ()).unwrap_err();
    assert_eq!(std::io::Error::from(e).kind(), std::io::ErrorKind::NotFound);
    assert!(fs.metadata("/").unwrap().is_dir());
}

/// Runs an example that cargo has built beside this test.
fn example(name: &str, args: &[&str]) -> Option<String> {
    let test = std::env::current_exe().unwrap();
    let program = test.parent()?.parent()?.join("examples").join(name);
    if !program.exists() {
        eprintln!("skipped: {} was not built", program.display());
        return None;
    }
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn examples_run() {
    let files = cenote_testpools::pool("bclone");
    let dir = files.dir.to_str().unwrap();
    if let Some(text) = example("list", &[dir]) {
        assert!(text.starts_with("bclone: ONLINE, "), "{text}");
    }
    if let Some(text) = example("verify", &[dir, "bclone"]) {
        assert!(text.ends_with(" 0 errors\n"), "{text}");
    }
    let pool = Pool::open([dir], "bclone").unwrap();
    let fs = pool.root().unwrap().filesystem().unwrap();
    let file =
        fs.read_dir("/").unwrap().map(|e| e.unwrap()).find(|e| e.metadata().unwrap().is_file());
    if let Some(file) = file {
        let path = format!("/{}", file.name().display());
        if let Some(text) = example("cat", &[dir, "bclone", &path]) {
            assert_eq!(text.len(), fs.read(&path).unwrap().len());
        }
    }
}

#[test]
fn encrypted_datasets_are_read_with_their_keys() {
    let (files, pool) = open("crypt");
    let manifest = files.manifest();
    let keys = &manifest["keys"];
    let phrase = pool.dataset("crypt/phrase").unwrap();
    let child = pool.dataset("crypt/phrase/child@enc").unwrap();
    assert!(child.filesystem().is_err());
    let kind = |key| phrase.load_key(key).unwrap_err().kind();
    assert_eq!(kind(Key::Passphrase("another phrase")), ErrorKind::Denied);
    assert_eq!(kind(Key::Raw(&[0; 32])), ErrorKind::Invalid);
    phrase.load_key(Key::Passphrase(keys["crypt/phrase"]["passphrase"].as_str().unwrap())).unwrap();
    assert_eq!(kind(Key::Passphrase("another phrase")), ErrorKind::Denied);
    assert_eq!(phrase.property("keystatus").unwrap().as_deref(), Some("available"));
    assert!(child.filesystem().unwrap().read_dir("/").unwrap().count() > 2);
    let hexa = pool.dataset("crypt/hexa").unwrap();
    hexa.load_key(Key::Hex(keys["crypt/hexa"]["hex"].as_str().unwrap())).unwrap();
    let disk = pool.dataset("crypt/hexa/disk").unwrap().volume().unwrap();
    let mut bytes = vec![0; disk.size() as usize];
    disk.read_at(0, &mut bytes).unwrap();
    let datasets = manifest["datasets"].as_array().unwrap();
    let listed = datasets.iter().find(|d| d["name"] == "crypt/hexa/disk").unwrap();
    let sum: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(Some(sum.as_str()), listed["volume"]["sha256"].as_str());
    phrase.unload_key().unwrap();
    assert_eq!(phrase.unload_key().unwrap_err().kind(), ErrorKind::NotFound);
    assert!(child.filesystem().is_err());
    assert_eq!(child.unload_key().unwrap_err().kind(), ErrorKind::Invalid);
}
