//! Where a mount goes: the path of a mountpoint without symbolic links, and a hold on the directory there.
//!
//! Root mounts at paths that lead through directories of others, and that a pool of another user names. Two
//! things are refused. A symbolic link that others than root can make would have root mount wherever they like. And a
//! pool that is imported below an alternate root mounts nothing outside of it, by `..` in a mountpoint or by a link
//! that lies in one of its file systems. The directory is opened without following links, and what is open is mounted
//! at: no other process can put a link in its way after it was looked at. Directories that are missing are made, and
//! removed later, in the same way.

use crate::error::{MountError, number};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Symbolic links that are followed in one path, as many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Users beside the owner may write.
const OTHERS_WRITE: u32 = 0o022;
/// Only their owners take files of a directory away.
const STICKY: u32 = 0o1000;

/// The path of a mountpoint without symbolic links and `..`: resolved as far as it exists, with the rest as it is.
///
/// # Errors
/// It leads out of the directory `root`, or through a link that others can make.
pub(crate) fn find(path: &Path, root: &Path) -> Result<PathBuf, MountError> {
    let real = follow(path)?;
    match real.starts_with(resolve(root)) {
        true => Ok(real),
        false => Err(MountError::Outside(path.to_owned(), root.to_owned())),
    }
}

fn follow(path: &Path) -> Result<PathBuf, MountError> {
    let failed = |errno| MountError::Mountpoint(path.to_owned(), errno);
    let mut real = PathBuf::from("/");
    let mut todo = components(path);
    let mut links = 0;
    while let Some(name) = todo.pop() {
        if name == ".." {
            real.pop();
            continue;
        }
        let next = real.join(&name);
        let found = match fs::symlink_metadata(&next) {
            Ok(found) => found,
            Err(e) => {
                if todo.iter().any(|name| name == "..") {
                    return Err(failed(number(&e)));
                }
                // What is missing is made, and what cannot be looked at the mount stumbles over.
                return Ok(todo.iter().rev().fold(next, |path, name| path.join(name)));
            }
        };
        if !found.is_symlink() {
            real = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(failed(Errno::LOOP));
        }
        let around = fs::metadata(&real).map_err(|e| failed(number(&e)))?;
        if !is_trusted(&found, &around) {
            return Err(MountError::Link(path.to_owned(), next));
        }
        let target = fs::read_link(&next).map_err(|e| failed(number(&e)))?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        todo.extend(components(&target));
    }
    Ok(real)
}

/// The names in a path, last first.
fn components(path: &Path) -> Vec<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        _ => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// Whether only root, and the user of this process, can have made a link in the directory around it.
fn is_trusted(link: &Metadata, around: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let trusted = |uid: u32| uid == 0 || uid == own;
    let others_write = around.mode() & OTHERS_WRITE != 0 && around.mode() & STICKY == 0;
    trusted(link.uid()) && trusted(around.uid()) && !others_write
}

/// Opens the directory at a path without symbolic links. It is a directory: the kernel would also mount at a file, and
/// then find a directory there.
///
/// # Errors
/// It is not a directory, or there is a link in the path by now.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, MountError> {
    directory(path).map_err(|errno| MountError::Mountpoint(path.to_owned(), errno))
}

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    match openat2(CWD, path, DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Before Linux 5.6, and where a container does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => openat(CWD, path, DIRECTORY, Mode::empty()),
        opened => opened,
    }
}

/// Makes the directory at a path without symbolic links, and its parents; returns those that were missing, outermost
/// first.
///
/// # Errors
/// Errors of the system calls: there is a link in the path by now, or something else. Nothing is left of what was made.
pub(crate) fn make(path: &Path) -> rustix::io::Result<Vec<PathBuf>> {
    let (mut missing, mut there) = (Vec::new(), Path::new("/"));
    for dir in path.ancestors() {
        match fs::symlink_metadata(dir) {
            Ok(_) => {
                there = dir;
                break;
            }
            Err(e) if number(&e) == Errno::NOENT => missing.push(dir),
            Err(e) => return Err(number(&e)),
        }
    }
    let mut made = Vec::new();
    make_in(there, &missing, &mut made).inspect_err(|_| remove(&made))?;
    Ok(made)
}

/// Makes directories inside one another, innermost first in the list, and notes them in `made`.
fn make_in(there: &Path, missing: &[&Path], made: &mut Vec<PathBuf>) -> rustix::io::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let mut at = directory(there)?;
    for dir in missing.iter().rev() {
        let name = dir.file_name().ok_or(Errno::INVAL)?;
        mkdirat(&at, name, Mode::from_raw_mode(0o755))?;
        made.push(dir.to_path_buf());
        at = openat(&at, name, DIRECTORY, Mode::empty())?;
    }
    Ok(())
}

/// Removes directories that were made for a mountpoint, outermost first in the list, as far as they are empty and their
/// paths lead there without symbolic links still.
pub(crate) fn remove(made: &[PathBuf]) {
    for dir in made.iter().rev() {
        let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return };
        let removed = directory(parent).and_then(|at| unlinkat(&at, name, AtFlags::REMOVEDIR));
        if removed.is_err() {
            return;
        }
    }
}

/// Whether nothing is in a directory, as far as can be seen.
pub(crate) fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

/// A path without symbolic links as far as it exists; the rest as it is.
pub(crate) fn resolve(path: &Path) -> PathBuf {
    let found = path.ancestors().find_map(|a| Some((a.canonicalize().ok()?, a)));
    let Some((real, prefix)) = found else { return path.to_owned() };
    match path.strip_prefix(prefix) {
        Ok(rest) if rest.as_os_str().is_empty() => real,
        Ok(rest) => real.join(rest),
        Err(_) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn real(dir: &tempfile::TempDir) -> PathBuf {
        dir.path().canonicalize().unwrap()
    }

    #[test]
    fn links_of_the_user_are_followed_and_what_is_missing_is_kept() {
        let tmp = tempfile::tempdir().unwrap();
        let top = real(&tmp);
        fs::create_dir_all(top.join("dir/in")).unwrap();
        symlink("dir", top.join("link")).unwrap();
        symlink(top.join("link"), top.join("far")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        let find = |path: &str| find(&top.join(path), Path::new("/"));
        assert_eq!(find("far/in/a/b").unwrap(), top.join("dir/in/a/b"));
        assert_eq!(find("far/../dir/./in").unwrap(), top.join("dir/in"));
        for (path, errno) in [("loop/x", Errno::LOOP), ("none/../dir", Errno::NOENT)] {
            let Err(MountError::Mountpoint(_, e)) = find(path) else { panic!("{path}") };
            assert_eq!(e, errno, "{path}");
        }
        open(&top.join("dir")).unwrap();
        assert!(open(&top.join("link/in")).is_err() && open(&top.join("none")).is_err());
    }

    #[test]
    fn links_that_others_can_make_are_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let top = real(&tmp);
        let shared = top.join("shared");
        fs::create_dir_all(top.join("dir")).unwrap();
        fs::create_dir(&shared).unwrap();
        symlink(top.join("dir"), shared.join("link")).unwrap();
        for (mode, good) in [(0o755, true), (0o775, false), (0o777, false), (0o1777, true)] {
            fs::set_permissions(&shared, Permissions::from_mode(mode)).unwrap();
            let found = find(&shared.join("link/x"), Path::new("/"));
            assert_eq!(found.is_ok(), good, "{mode:o}: {found:?}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(shared.join("link"), Some(7), None).unwrap();
            let refused = find(&shared.join("link/x"), Path::new("/"));
            assert!(matches!(refused, Err(MountError::Link(..))), "{refused:?}");
        }
    }

    #[test]
    fn nothing_leads_out_of_the_root() {
        let tmp = tempfile::tempdir().unwrap();
        let top = real(&tmp);
        let root = top.join("root");
        fs::create_dir_all(root.join("in")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        symlink("in", root.join("own")).unwrap();
        let find = |path: &str| find(&root.join(path), &root);
        assert_eq!(find("own/x").unwrap(), root.join("in/x"));
        for path in ["..", "../x", "in/../../x", "etc/x"] {
            assert!(matches!(find(path), Err(MountError::Outside(..))), "{path}");
        }
    }

    #[test]
    fn made_directories_are_removed_again() {
        let tmp = tempfile::tempdir().unwrap();
        let top = real(&tmp);
        let deep = top.join("a/b/c");
        let made = make(&deep).unwrap();
        assert_eq!(made, [top.join("a"), top.join("a/b"), deep.clone()]);
        assert!(make(&deep).unwrap().is_empty());
        fs::write(top.join("a/file"), "x").unwrap();
        assert_eq!(make(&top.join("a/file/b")), Err(Errno::NOTDIR));
        remove(&made);
        assert!(top.join("a").exists() && !top.join("a/b").exists());
    }

    #[test]
    fn directories_are_neither_made_nor_removed_through_links() {
        let tmp = tempfile::tempdir().unwrap();
        let top = real(&tmp);
        let made = make(&top.join("dir/in")).unwrap();
        fs::create_dir_all(top.join("other/in")).unwrap();
        // Another process has put a link in the place of what was there.
        fs::rename(top.join("dir"), top.join("away")).unwrap();
        symlink("other", top.join("dir")).unwrap();
        remove(&made);
        assert!(top.join("other/in").exists() && top.join("away/in").exists());
        assert!(make(&top.join("dir/new/in")).is_err() && !top.join("other/new").exists());
    }

    #[test]
    fn paths_resolve_as_far_as_they_exist() {
        let tmp = tempfile::tempdir().unwrap();
        let real = tmp.path().canonicalize().unwrap();
        fs::create_dir(real.join("dir")).unwrap();
        std::os::unix::fs::symlink("dir", real.join("link")).unwrap();
        assert_eq!(resolve(&real.join("link")), real.join("dir"));
        assert_eq!(resolve(&real.join("link/a/b")), real.join("dir/a/b"));
    }
}
