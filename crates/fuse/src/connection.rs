//! Which connection to the kernel: by its number, and by what tells it from one that has the number later.
//!
//! The kernel gives the device number of a connection again as soon as its last mount is gone, and a file system that
//! is mounted again may get it: then the new connection is named as the old one was. What ends connections or takes
//! mounts away for a process that is dead must take nothing of a living one. So a connection is also known by its
//! *birth*: the inode number of its directory of control files (`fusectl`), which the kernel counts up and gives to no
//! other. An open descriptor of a mount keeps its number from being given again, so what was found out while it is held
//! stays true.

use crate::mountinfo::{self, Table};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where the kernel's control files of connections usually are.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// A connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// `MAJOR:MINOR TYPE` (see [`mountinfo`]).
    pub(crate) id: String,
    /// What tells it from a later one of that number; `None` if this process may not know.
    birth: Option<u64>,
}

impl Connection {
    /// The one that has the number now.
    pub(crate) fn of(id: &str) -> Connection {
        let birth = control(id).ok().and_then(|dir| inode(&dir));
        Connection { id: id.to_owned(), birth }
    }

    /// Whether it is there still, and its number no other one's. What cannot be known is taken to be so.
    pub(crate) fn lives(&self) -> bool {
        let Some(birth) = self.birth else { return true };
        match control(&self.id) {
            Ok(dir) => inode(&dir) == Some(birth),
            Err(e) => e != Errno::NOENT,
        }
    }

    /// Ends it: its users get errors instead of waiting. An ordinary user can do that only where
    /// `fusectl` is mounted; elsewhere a connection that was unmounted by force ends with its last user.
    pub(crate) fn abort(&self) {
        let Ok(dir) = control(&self.id) else { return };
        // The directory that is open is of one connection only, whatever happens meanwhile.
        if self.birth.is_some_and(|birth| inode(&dir) != Some(birth)) {
            return;
        }
        let write = |file| rustix::io::write(file, b"1").map(drop);
        let file = openat(&dir, "abort", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        if let Err(e) = file.and_then(write)
            && e != Errno::NOENT
        {
            tracing::warn!("cannot end the connection of {}: {e}", self.id);
        }
    }

    /// As a line of text.
    pub(crate) fn to_line(&self) -> String {
        format!("{} {}", self.birth.unwrap_or(0), self.id)
    }

    /// The opposite of [`Connection::to_line`].
    pub(crate) fn from_line(line: &str) -> Option<Connection> {
        let (birth, id) = line.split_once(' ')?;
        let birth = birth.parse().ok().filter(|birth| *birth != 0);
        Some(Connection { id: id.to_owned(), birth })
    }
}

/// The directory of control files of the connection that has this number now.
///
/// # Errors
/// `ENOENT`: there is no connection.
fn control(id: &str) -> Result<OwnedFd, Errno> {
    let (_, minor) = mountinfo::device(id).split_once(':').ok_or(Errno::INVAL)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Something mounts it at its usual place while this looks, perhaps.
    let usual = openat(CWD, CONTROL, flags, Mode::empty()).ok().filter(is_fusectl);
    match usual {
        Some(root) => openat(root, minor, flags, Mode::empty()),
        None => {
            // There is one `fusectl`, wherever it is mounted, if at all.
            static FUSECTL: OnceLock<Result<OwnedFd, Errno>> = OnceLock::new();
            let root = FUSECTL.get_or_init(fusectl).as_ref().map_err(|_| Errno::ACCESS)?;
            openat(root, minor, flags, Mode::empty())
        }
    }
}

/// Whether control files are in a directory, and not only the place for them.
fn is_fusectl(dir: &OwnedFd) -> bool {
    const FUSE_CTL_SUPER_MAGIC: u32 = 0x6573_5543;
    rustix::fs::fstatfs(dir).is_ok_and(|s| s.f_type as u32 == FUSE_CTL_SUPER_MAGIC)
}

/// The file system of control files, mounted nowhere.
fn fusectl() -> Result<OwnedFd, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn inode(dir: &OwnedFd) -> Option<u64> {
    rustix::fs::fstat(dir).ok().map(|stat| stat.st_ino)
}

/// A mount that is held: whatever happens at its place, it stays the same one.
pub(crate) struct Pinned(OwnedFd);

impl Pinned {
    /// What is mounted on top at a path, or else the directory there. No server of a file system that is
    /// mounted there is asked for anything, but file systems around it may be.
    ///
    /// # Errors
    /// The path leads nowhere.
    pub(crate) fn new(path: &Path) -> Result<Pinned, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty()).map(Pinned)
    }

    /// The connection that it is a mount of; `None`: it is no mount of FUSE, or that cannot be told.
    pub(crate) fn connection(&self) -> Option<String> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.0.as_raw_fd())).ok()?;
        let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let mount = line.trim().parse().ok()?;
        Table::read().ok()?.by_mount(mount).map(|mount| mount.id.clone())
    }

    /// Whether no process serves it any more.
    pub(crate) fn is_dead(&self) -> bool {
        // Attributes of a dead mount may still be known; figures are asked for each time.
        rustix::fs::fstatfs(&self.0).err() == Some(Errno::NOTCONN)
    }

    /// A path that leads to it.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_which_connection() {
        for birth in [None, Some(7)] {
            let connection = Connection { id: "0:57 fuse.zfs".into(), birth };
            assert_eq!(Connection::from_line(&connection.to_line()), Some(connection));
        }
        assert_eq!(Connection::from_line("x"), None);
    }

    #[test]
    fn a_connection_that_nobody_has_is_not_there() {
        // A number that the kernel gives to no mount without a device.
        let unknown = Connection { id: "0:1048575 fuse.zfs".into(), birth: Some(1) };
        assert!(!unknown.lives() || control("0:1048575").err() == Some(Errno::ACCESS));
        unknown.abort();
        let root = Pinned::new(Path::new("/")).unwrap();
        assert!(!root.is_dead() && root.path().exists());
        assert_eq!(Pinned::new(Path::new("/no/such/place")).err(), Some(Errno::NOENT));
    }
}
