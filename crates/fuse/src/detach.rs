//! Taking mounts away, and ending connections.
//!
//! An unmount names a path, and the kernel looks it up; so a process that serves mounts has an
//! [agent](crate::agent) do it. Ending a connection (`abort`) needs no path below a mount: processes that wait
//! for an answer get an error then, in whatever namespace, and the mounts that are left are dead.

use crate::attach::{Force, HELPER, MountError, is_root, number};
use crate::mountinfo::{self, FuseMount, Table};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags, fsconfig_create, fsmount, fsopen,
};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where the kernel's control files of connections usually are.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// Unmounts the mounts of a connection at `places`, last mounted first. Where it is at none of them
/// any more, since somebody moved it, its last mount counts. Nothing to do is success.
///
/// # Errors
/// Without force: [`MountError::Shown`] if it is mounted elsewhere in this namespace, not in `others`:
/// somebody else has done that; [`MountError::Busy`], [`MountError::Covered`]. By force a mount that another one covers stays: its
/// path leads to what covers it.
pub(crate) fn unmount(
    id: &str,
    places: &[PathBuf],
    others: &[PathBuf],
    force: Force,
) -> Result<(), MountError> {
    let table = Table::read();
    let all: Vec<&FuseMount> = table.of(id).collect();
    let mut ours: Vec<&FuseMount> =
        all.iter().copied().filter(|m| places.contains(&m.mountpoint)).collect();
    if ours.is_empty() {
        ours.extend(all.iter().rfind(|m| m.whole));
    }
    let stays = |m: &&&FuseMount| {
        !ours.contains(*m)
            && !others.contains(&m.mountpoint)
            && !ours.iter().any(|own| table.goes_with(own, m, &table))
    };
    if force == Force::No
        && let Some(other) = all.iter().find(stays)
    {
        return Err(MountError::Shown(other.mountpoint.clone()));
    }
    for mount in ours.iter().rev() {
        match force {
            Force::No if table.is_covered(mount) => {
                return Err(MountError::Covered(mount.mountpoint.clone()));
            }
            Force::Yes if table.is_covered(mount) => {}
            _ => unmount_at(&mount.mountpoint, force)?,
        }
    }
    // A mount around the place may cover it: then its path leads to something else, or nowhere.
    let left = Table::read();
    match ours.iter().find(|m| force == Force::No && left.of(id).any(|l| l == **m)) {
        Some(mount) => Err(MountError::Covered(mount.mountpoint.clone())),
        None => Ok(()),
    }
}

/// Takes away what is mounted on top at a path.
fn unmount_at(mountpoint: &Path, force: Force) -> Result<(), MountError> {
    if !is_root() {
        return unmount_by_helper(mountpoint, force);
    }
    let flags = match force {
        // Its users get errors: the server is not to wait for them to end.
        Force::Yes => UnmountFlags::DETACH | UnmountFlags::FORCE,
        Force::No => UnmountFlags::empty(),
    };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.to_owned())),
        Err(Errno::PERM) => unmount_by_helper(mountpoint, force),
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
    if !is_root() || Table::read().top(mountpoint).is_none_or(|m| m.id != id) {
        return Ok(false);
    }
    match rustix::mount::mount_remount(mountpoint, flags, c"") {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => Ok(false),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.to_owned())),
        Err(e) => Err(MountError::Mount(mountpoint.to_owned(), e)),
    }
}

/// Takes away the mounts of file systems at `path`, a path without symbolic links, that nobody serves any
/// more, with all that is below them. They stay where a daemon dies together with the process that
/// would have taken its mounts away.
pub(crate) fn clear_dead(path: &Path) -> Result<(), MountError> {
    loop {
        let table = Table::read();
        let Some(mount) = table.top(path).filter(|m| mountinfo::is_zfs(&m.id)) else {
            return Ok(());
        };
        // Attributes of a dead mount may still be known; figures are asked for each time.
        if rustix::fs::statfs(path).err() != Some(Errno::NOTCONN) {
            return Ok(());
        }
        unmount_at(path, Force::Yes)?;
        if Table::read().top(path) == Some(mount) {
            return Err(MountError::Busy(path.to_owned()));
        }
    }
}

/// Ends connections whose server is dead, and takes their mounts in this namespace away. `ids` are in the
/// order of mounting.
pub(crate) fn take_away(ids: &[String]) {
    // One that is not mounted any more may have left its number to a stranger's.
    let table = Table::read();
    let elsewhere = mountinfo::elsewhere(&ids.iter().map(String::as_str).collect());
    let there = |id: &&String| table.of(id).next().is_some() || elsewhere.contains_key(*id);
    // First of all nobody waits any more: not even the server, which may not be able to end before.
    ids.iter().filter(there).for_each(|id| abort(id));
    let places = |table: &Table, id: &str| -> Vec<PathBuf> {
        table.of(id).map(|m| m.mountpoint.clone()).collect()
    };
    // Innermost first. What is inside a dead mount may be out of reach: then it goes with the outermost.
    for id in ids.iter().rev().chain(ids) {
        let _ = unmount(id, &places(&Table::read(), id), &[], Force::Yes);
    }
}

/// Ends a connection: its users get errors instead of waiting. An ordinary user can do that only where
/// `fusectl` is mounted; elsewhere a connection that was unmounted by force ends with its last user.
pub(crate) fn abort(id: &str) {
    let Some((_, minor)) = mountinfo::device(id).split_once(':') else { return };
    let name = format!("{minor}/abort");
    if write_to(CWD, &format!("{CONTROL}/{name}")).is_ok() {
        return;
    }
    // There is one `fusectl`, wherever it is mounted, if at all.
    static FUSECTL: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let Some(control) = FUSECTL.get_or_init(|| fusectl().ok()) else { return };
    if let Err(e) = write_to(control, &name)
        && e != Errno::NOENT
    {
        tracing::warn!("cannot end the connection of {id}: {e}");
    }
}

/// The file system of control files, mounted nowhere.
fn fusectl() -> Result<OwnedFd, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn write_to(dir: impl std::os::fd::AsFd, path: &str) -> Result<(), Errno> {
    let file = openat(dir, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, b"1").map(drop)
}

/// Lets the kernel read ahead by 4 MiB instead of 128 KiB, in pieces of 1 MiB: what it asks for next is on
/// its way while a reader takes what came. Needs root; without it files are read in smaller pieces.
pub(crate) fn allow_large_readahead(id: &str) {
    if is_root() {
        let device = mountinfo::device(id);
        let _ = std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), "4096");
    }
}
