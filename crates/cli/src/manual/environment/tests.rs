//! The table is compared with what the sources read.

#![allow(clippy::unwrap_used, clippy::panic)] // A failure fails the test.

use super::*;
use crate::manual::tests::sources;
use cenote_command::caller::ENVIRONMENT;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Crates whose commands take variables from the process that called them, and what stands before those that do not.
const OF_CALLERS: &[&str] = &["admin", "cli", "command", "zdb", "zstream"];
const OF_PROCESS: &str = "env::";

/// The names that a text asks for, and whether each is the process's own.
fn asked(text: &str) -> Vec<(String, bool)> {
    let mut names = Vec::new();
    for call in ["var(\"", "var_os(\"", "is_set(\""] {
        for (at, _) in text.match_indices(call) {
            let name = text[at + call.len()..].split('"').next().unwrap();
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_name), "{name}");
            names.push((name.to_string(), text[..at].ends_with(OF_PROCESS)));
        }
    }
    names
}

/// The variables that sources read, each with a file that reads it.
fn read() -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    for source in sources() {
        for (variable, of_process) in asked(&source.text) {
            // What the caller's process does not hand on is never there.
            if OF_CALLERS.contains(&source.of.as_str()) && !of_process {
                assert!(ENVIRONMENT.contains(&variable.as_str()), "{variable}: {:?}", source.path);
            }
            all.insert(variable, source.path.clone());
        }
    }
    all
}

#[test]
fn every_variable_that_is_read_is_explained_and_no_other() {
    let read = read();
    for (variable, file) in &read {
        assert!(VARIABLES.iter().any(|v| v.name == variable), "{variable}: {file:?}");
    }
    for variable in VARIABLES {
        assert!(read.contains_key(variable.name), "{}", variable.name);
    }
    for name in ENVIRONMENT {
        assert!(read.contains_key(*name), "{name}");
    }
    for (_, name, _) in NOT_READ {
        assert!(!read.contains_key(*name), "{name}");
    }
}

#[test]
fn each_stands_in_the_pages_of_those_that_heed_it() {
    let own = ["cenote daemon", "cenote map", "cenote ls", "cenote cat", "cenote cp"];
    for variable in VARIABLES {
        for reader in variable.readers {
            let (tool, command) = reader.split_once(' ').unwrap_or((reader, ""));
            let known = match tool {
                "" => true,
                "cenote" => own.contains(reader),
                tool => super::super::pages(tool)
                    .iter()
                    .any(|p| command.is_empty() || p.command == command),
            };
            assert!(known, "{reader}");
            if !tool.is_empty() {
                let text = of_command(tool, command);
                assert!(text.iter().any(|(name, _)| *name == variable.name), "{reader}");
            }
        }
    }
    let names = |tool, command| {
        of_command(tool, command).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert!(names("zpool", "").contains(&"ZPOOL_IMPORT_PATH"));
    assert!(names("zpool", "").contains(&"ZFS_MODULE_TIMEOUT"));
    assert!(!names("zpool", "get").contains(&"ZPOOL_IMPORT_PATH"));
    assert!(names("zpool", "status").contains(&"VDEV_UPATH"));
    assert!(names("zfs", "get").contains(&"ZFS_ABORT"));
    assert!(!names("zdb", "").contains(&"ZFS_ABORT"));
}

/// What programs of `-c` are given is what the manual says.
#[test]
fn what_scripts_find_is_explained() {
    let text = include_str!("../../zpool/programs.rs");
    let given: Vec<&str> =
        text.split(".env(\"").skip(1).map(|t| t.split('"').next().unwrap()).collect();
    let mut told: Vec<&str> = OF_SCRIPTS.iter().map(|(name, _)| *name).collect();
    told.sort_unstable();
    let mut given = given;
    given.sort_unstable();
    assert_eq!(given, told);
}
