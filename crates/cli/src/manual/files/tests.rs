//! The table is compared with the names that the sources have.

#![allow(clippy::unwrap_used)] // A failure fails the test.

use super::*;
use crate::manual::tests::sources;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where files lie that somebody else than the program writes, or reads.
const PLACES: [&str; 4] = ["/etc/", "/usr/share/", "/var/", "/run/"];

/// The names that sources have, each with a file that has it.
fn named() -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    for source in sources().into_iter().filter(|s| !s.path.ends_with("manual/files.rs")) {
        for place in PLACES {
            for (at, _) in source.text.match_indices(&format!("\"{place}")) {
                let name = source.text[at + 1..].split('"').next().unwrap();
                all.insert(name.to_string(), source.path.clone());
            }
        }
    }
    all
}

#[test]
fn every_file_that_is_read_is_explained_and_no_other() {
    let named = named();
    assert!(named.len() > 5, "{named:?}");
    for (name, source) in &named {
        assert!(FILES.iter().any(|file| file.name == name), "{name}: {source:?}");
    }
    for file in FILES.iter().filter(|file| !file.name.starts_with('~')) {
        assert!(named.contains_key(file.name), "{}", file.name);
    }
}

#[test]
fn each_stands_in_the_pages_of_those_that_read_it() {
    let names = |tool, command| {
        of_command(tool, command).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert!(names("zpool", "status").contains(&"/etc/zfs/zpool.d"));
    assert!(names("zpool", "upgrade").contains(&"/etc/zfs/compatibility.d"));
    assert!(names("zpool", "").contains(&"/etc/hostid"));
    assert!(names("zfs", "mount").contains(&"/etc/fuse.conf"));
    assert!(!names("zfs", "list").contains(&"/etc/hostid"));
    for reader in FILES.iter().flat_map(|file| file.readers) {
        let (tool, command) = reader.split_once(' ').unwrap_or((reader, ""));
        let known = ["", "cenote"].contains(&tool) || crate::manual::page(tool, command).is_some();
        assert!(known, "{reader}");
    }
}
