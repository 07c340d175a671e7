//! Taking mounts away, and ending connections.
//!
//! An unmount names a path, and the kernel looks it up; so a process that serves mounts has an
//! [agent](crate::agent) do it. Ending a connection (`abort`) needs no path below a mount: processes that wait
//! for an answer get an error then, in whatever namespace, and the mounts that are left are dead.

use crate::connection::{Connection, Pinned};
use crate::error::{MountError, number};
use crate::mountinfo::{self, FuseMount, Table};
use crate::privilege::{HELPER, is_root};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Whether to unmount what is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Force {
    /// Fail if it is in use.
    No,
    /// Take it away at once.
    Yes,
}

/// Unmounts the mounts of a connection at `places`, last mounted first; others stay (`zfs_umount`). Where it is not at
/// any of them any more, since another process moved it, its last mount counts. Nothing to do is success.
///
/// # Errors
/// Without force: [`MountError::Busy`], [`MountError::Covered`]. By force a mount that another one covers stays: its
/// path leads to what covers it. If the number is another connection's by now, there is nothing to do.
pub(crate) fn unmount(
    connection: &Connection,
    places: &[PathBuf],
    force: Force,
) -> Result<(), MountError> {
    let (table, id) = (Table::read()?, connection.id.as_str());
    if !connection.lives() {
        return Ok(());
    }
    let mut ours: Vec<&FuseMount> =
        table.of(id).filter(|m| places.contains(&m.mountpoint)).collect();
    if ours.is_empty() {
        ours.extend(table.of(id).rfind(|m| m.whole));
    }
    for mount in ours.iter().rev() {
        match force {
            Force::No if table.is_covered(mount) => {
                return Err(MountError::Covered(mount.mountpoint.clone()));
            }
            Force::Yes if table.is_covered(mount) => {}
            Force::Yes => take(connection, &mount.mountpoint)?,
            Force::No => unmount_at(&mount.mountpoint)?,
        }
    }
    // A mount around the place may cover it: then its path leads to something else, or nowhere.
    let left = Table::read()?;
    for place in ours.iter().map(|m| &m.mountpoint) {
        // The agent of a daemon that was killed may have mounted there last of all.
        if left.top(place).is_some_and(|m| mountinfo::is_zfs(&m.id)) {
            let _ = clear_dead(place);
        }
    }
    match ours.iter().find(|m| force == Force::No && left.of(id).any(|l| l == **m)) {
        Some(mount) => Err(MountError::Covered(mount.mountpoint.clone())),
        None => Ok(()),
    }
}

/// Takes away what is mounted on top at a path, if it is unused.
fn unmount_at(mountpoint: &Path) -> Result<(), MountError> {
    if !is_root() {
        return unmount_by_helper(mountpoint, Force::No);
    }
    match rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.to_owned())),
        Err(Errno::PERM) => unmount_by_helper(mountpoint, Force::No),
        Err(e) => Err(MountError::Unmount(mountpoint.to_owned(), e)),
    }
}

/// Takes a connection's mount at a path away, in use or not. What else may be on top there by now stays.
fn take(connection: &Connection, mountpoint: &Path) -> Result<(), MountError> {
    let pinned = match Pinned::new(mountpoint) {
        Ok(pinned) => pinned,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(MountError::Unmount(mountpoint.to_owned(), e)),
    };
    // As long as it is held its number is no other one's, so that the connection is looked for afterwards.
    match pinned.connection() {
        Some(id) if id == connection.id && connection.lives() => take_pinned(&pinned, mountpoint),
        _ => Ok(()),
    }
}

/// Takes away a mount that is at this path.
fn take_pinned(pinned: &Pinned, mountpoint: &Path) -> Result<(), MountError> {
    if !is_root() {
        return unmount_by_helper(mountpoint, Force::Yes);
    }
    // Its users get errors: the server is not to wait for them to end.
    let flags = UnmountFlags::DETACH | UnmountFlags::FORCE;
    match rustix::mount::unmount(pinned.path(), flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => unmount_by_helper(mountpoint, Force::Yes),
        Err(e) => Err(MountError::Unmount(mountpoint.to_owned(), e)),
    }
}

fn unmount_by_helper(mountpoint: &Path, force: Force) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if force == Force::Yes {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mountpoint).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.map_err(|e| MountError::NoHelper(number(&e)))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        Err(MountError::Busy(mountpoint.to_owned()))
    } else {
        Err(MountError::Helper(message))
    }
}

/// Makes a mount another kind where it is, in use or not. False: it cannot be told, since this process is
/// not root or the mount is covered.
///
/// # Errors
/// [`MountError::Busy`]: files are open for writing, so it cannot become read-only.
pub(crate) fn remount(
    id: &str,
    mountpoint: &Path,
    flags: rustix::mount::MountFlags,
) -> Result<bool, MountError> {
    if !is_root() || Table::read()?.top(mountpoint).is_none_or(|m| m.id != id) {
        return Ok(false);
    }
    match rustix::mount::mount_remount(mountpoint, flags, c"") {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => Ok(false),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.to_owned())),
        Err(e) => Err(MountError::Mount(mountpoint.to_owned(), e)),
    }
}

/// Takes away the mounts of file systems at `path`, a path without symbolic links, that no process serves any
/// more, with all that is below them. They stay where a daemon dies together with the process that
/// would have taken its mounts away.
pub(crate) fn clear_dead(path: &Path) -> Result<(), MountError> {
    loop {
        let Ok(pinned) = Pinned::new(path) else { return Ok(()) };
        let id = pinned.connection().filter(|id| mountinfo::is_zfs(id));
        let Some(id) = id.filter(|_| pinned.is_dead()) else { return Ok(()) };
        take_pinned(&pinned, path)?;
        drop(pinned);
        if Pinned::new(path).is_ok_and(|p| p.is_dead() && p.connection() == Some(id)) {
            return Err(MountError::Busy(path.to_owned()));
        }
    }
}

/// Ends connections, and takes all their mounts in this namespace away. They are in the order of mounting; what has
/// their numbers by now stays.
pub(crate) fn take_away(all: &[Connection]) {
    // First of all no process waits any more: not even the server, which may not be able to end before.
    all.iter().for_each(Connection::abort);
    let places = |table: &Table, id: &str| -> Vec<PathBuf> {
        table.of(id).map(|m| m.mountpoint.clone()).collect()
    };
    // Innermost first. What is inside a dead mount may be out of reach: then it goes with the outermost.
    for connection in all.iter().rev().chain(all) {
        let done = Table::read()
            .and_then(|table| unmount(connection, &places(&table, &connection.id), Force::Yes));
        if let Err(e) = done {
            tracing::debug!("mounts of connection {}: {e}", connection.id);
        }
    }
}

/// Lets the kernel read ahead by 4 MiB instead of 128 KiB, in pieces of 1 MiB: what it asks for next is on
/// its way while a reader takes what came. Needs root; without it files are read in smaller pieces.
pub(crate) fn allow_large_readahead(id: &str) {
    if is_root() {
        let device = mountinfo::device(id);
        let _ = std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), "4096");
    }
}
