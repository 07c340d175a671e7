//! The users of a file system: processes that have something of it open, work in it, or have mapped files of it.
//!
//! Where a process sees a mount depends on its mount namespace and its root directory, and some it sees nowhere. So
//! processes are told by the device number of what they use, which is the same everywhere. Nothing is
//! looked up in a mount, and no server is asked: links in `/proc` lead straight to what they stand for, of which only
//! the device is wanted (`AT_STATX_DONT_SYNC`).

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long it may take to find out which processes have mapped something: a process that waits in a mapping keeps
/// others from looking at it.
const MAPPINGS: Duration = Duration::from_secs(1);

/// A process that uses a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub pid: u32,
    /// Its program's name.
    pub command: String,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

/// One process that uses each of the devices (`MAJOR:MINOR`), as far as processes can be looked at.
pub(crate) fn of(devices: &HashSet<&str>) -> BTreeMap<String, User> {
    found(devices, used)
}

/// A process that has something below a path open, or works there. The path is where this process sees it: one
/// that sees it elsewhere is not found.
pub(crate) fn below(path: &Path) -> Option<User> {
    processes().find_map(|(pid, process)| {
        let leads = |link: PathBuf| fs::read_link(link).is_ok_and(|to| to.starts_with(path));
        links(&process).any(leads).then(|| User { pid, command: command(pid) })
    })
}

/// As [`of`], of those that have mapped something.
pub(crate) fn mapping(devices: &HashSet<&str>) -> BTreeMap<String, User> {
    let wanted: Vec<String> = devices.iter().map(|device| (*device).to_owned()).collect();
    let (tell, told) = channel();
    let look = move || {
        let wanted: HashSet<&str> = wanted.iter().map(String::as_str).collect();
        let _ = tell.send(found(&wanted, mapped));
    };
    match std::thread::Builder::new().name("mappings".into()).spawn(look) {
        Ok(_) => told.recv_timeout(MAPPINGS).unwrap_or_default(),
        Err(_) => BTreeMap::new(),
    }
}

fn found(devices: &HashSet<&str>, of_process: fn(&Path) -> Vec<String>) -> BTreeMap<String, User> {
    let mut found = BTreeMap::new();
    for (pid, process) in processes() {
        if found.len() == devices.len() {
            break;
        }
        for device in of_process(&process) {
            if devices.contains(device.as_str()) {
                found.entry(device).or_insert_with(|| User { pid, command: command(pid) });
            }
        }
    }
    found
}

/// All processes, by their numbers and their directories in `/proc`.
fn processes() -> impl Iterator<Item = (u32, PathBuf)> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|e| Some((e.file_name().to_str()?.parse().ok()?, e.path())))
}

/// The links to what a process has open, and to where it works.
fn links(process: &Path) -> impl Iterator<Item = PathBuf> {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|e| e.path());
    let fixed = ["cwd", "root", "exe"].map(|name| process.join(name));
    fixed.into_iter().chain(open)
}

/// The devices of what a process has open and where it works.
fn used(process: &Path) -> Vec<String> {
    links(process).filter_map(device_at).collect()
}

/// The device of what a link leads to.
fn device_at(link: PathBuf) -> Option<String> {
    let stat = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some(format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor))
}

/// The devices of what a process has mapped.
fn mapped(process: &Path) -> Vec<String> {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    maps.lines().filter_map(device_of_mapping).collect()
}

/// The device of a line of `/proc/PID/maps`: `START-END PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`, the numbers of the
/// device in hexadecimal.
fn device_of_mapping(line: &str) -> Option<String> {
    let (major, minor) = line.split(' ').nth(3)?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    Some(format!("{}:{}", number(major)?, number(minor)?))
}

fn command(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_process_is_told_by_the_device_of_what_it_has_open() {
        let file = tempfile::tempfile().unwrap();
        let device = file.metadata().unwrap().dev();
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let own = PathBuf::from(format!("/proc/{}", std::process::id()));
        assert!(used(&own).contains(&device));
        assert_eq!(of(&HashSet::from([device.as_str()])).len(), 1);
        assert!(of(&HashSet::from(["1048575:1"])).is_empty());
    }

    #[test]
    fn mappings_are_told_by_their_device() {
        let line = "7f0c-7f0d r--s 00000000 00:39 12345  /tank/a file";
        assert_eq!(device_of_mapping(line).as_deref(), Some("0:57"));
        assert_eq!(device_of_mapping("7f0c-7f0d r--p"), None);
        assert!(!mapped(Path::new("/proc/self")).is_empty());
        assert!(mapping(&HashSet::from(["1048575:1"])).is_empty());
    }
}
