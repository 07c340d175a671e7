//! Attaching to the kernel: a `/dev/fuse` descriptor that is mounted somewhere.
//!
//! What is here looks up paths, so a process that serves mounts does not call it: it has an
//! [agent](crate::agent) do it.
//!
//! Root mounts by the system call. Others ask `fusermount3`, which is set-user-id root: it mounts and
//! hands the descriptor back over a socket, whose number it finds in `_FUSE_COMMFD` (here its
//! standard input). Root in a container that may not mount takes the same way.
//!
//! A descriptor that is mounted already can be mounted once more, in any place and namespace: the kernel
//! then shows the same file system there (one superblock), with one cache for all its mounts.

use crate::detach::clear_dead;
use crate::error::{MountError, all_as_bytes, as_bytes, number};
use crate::mountinfo::{TABLE, Table};
use crate::place;
use crate::privilege::{DEVICE, HELPER, is_root};
use cenote_zpl::{Atime, FileSystem};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What to mount, where and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountRequest {
    /// The directory.
    #[serde(with = "as_bytes")]
    pub mountpoint: PathBuf,
    /// The mount's source (`SOURCE` of `findmnt`).
    pub source: String,
    /// What comes after `fuse.` in its type.
    pub subtype: String,
    /// Flags of mount(2), as a number.
    pub flags: u32,
    /// Whether others than its user may use it.
    pub other_users: bool,
    /// The directory that it must not lead out of; `/`: it may be anywhere.
    #[serde(with = "as_bytes")]
    pub root: PathBuf,
    /// Whether missing directories are made.
    pub make: bool,
    /// Whether the directory need not be empty.
    pub overlay: bool,
}

impl MountRequest {
    pub(crate) fn flags(&self) -> MountFlags {
        MountFlags::from_bits_retain(self.flags)
    }
}

/// What was mounted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mounted {
    /// Where: without symbolic links.
    #[serde(with = "as_bytes")]
    pub mountpoint: PathBuf,
    /// Directories that were made, outermost first.
    #[serde(with = "all_as_bytes")]
    pub made: Vec<PathBuf>,
    /// What identifies the connection: `MAJOR:MINOR TYPE SOURCE`.
    pub id: String,
}

/// What the kernel lets be done in a mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowed {
    pub(crate) writable: bool,
    pub(crate) setuid: bool,
    pub(crate) devices: bool,
    pub(crate) exec: bool,
}

impl Allowed {
    /// As the system call takes it, with further flags.
    pub(crate) fn flags(self, mut flags: MountFlags) -> MountFlags {
        for (allowed, flag) in [
            (self.writable, MountFlags::RDONLY),
            (self.setuid, MountFlags::NOSUID),
            (self.devices, MountFlags::NODEV),
            (self.exec, MountFlags::NOEXEC),
        ] {
            if !allowed {
                flags |= flag;
            }
        }
        flags
    }
}

/// The `atime` property as the kernel shows it. The server does what it says.
pub(crate) fn access_times(fs: &FileSystem) -> MountFlags {
    match fs.settings().atime {
        _ if !fs.is_writable() => MountFlags::empty(),
        Atime::Off => MountFlags::NOATIME,
        Atime::Relative => MountFlags::RELATIME,
        Atime::On => MountFlags::STRICTATIME,
    }
}

/// Mounts (`zfs_domount`): a new descriptor, or once more what `device` is mounted as. Returns the descriptor through
/// which the kernel talks. If it fails, directories that were made are removed.
pub(crate) fn mount(
    request: &MountRequest,
    device: Option<OwnedFd>,
    wanted: &dyn Fn() -> bool,
) -> Result<(Mounted, OwnedFd), MountError> {
    let mountpoint = place::find(&request.mountpoint, &request.root)?;
    let request = &MountRequest { mountpoint, ..request.clone() };
    clear_dead(&request.mountpoint)?;
    let made = match request.make {
        true => place::make(&request.mountpoint)
            .map_err(|errno| MountError::Make(request.mountpoint.clone(), errno))?,
        false => Vec::new(),
    };
    let mounted = mount_at(request, device, wanted);
    if mounted.is_err() {
        place::remove(&made);
    }
    let (mountpoint, id, device) = mounted?;
    Ok((Mounted { mountpoint, id, made }, device))
}

fn mount_at(
    request: &MountRequest,
    device: Option<OwnedFd>,
    wanted: &dyn Fn() -> bool,
) -> Result<(PathBuf, String, OwnedFd), MountError> {
    let mountpoint = request.mountpoint.clone();
    if !request.overlay && !place::is_empty(&mountpoint) {
        return Err(MountError::NotEmpty(mountpoint));
    }
    let place = place::open(&mountpoint)?;
    // What is mounted here by now may be a living server's.
    if !wanted() {
        return Err(MountError::Agent("the server has ended".into()));
    }
    let device = attach(request, &place, device)?;
    let id = Table::read().and_then(|table| {
        let unseen = || MountError::Session(format!("{TABLE} does not show the mount"));
        table.top(&mountpoint).map(|mount| mount.id.clone()).ok_or_else(unseen)
    });
    match id {
        Ok(id) => Ok((mountpoint, id, device)),
        // The connection ends with its descriptor, and its mount is dead then.
        Err(e) => {
            drop(device);
            let _ = clear_dead(&mountpoint);
            Err(e)
        }
    }
}

/// Mounts at an open directory.
fn attach(
    request: &MountRequest,
    place: &OwnedFd,
    device: Option<OwnedFd>,
) -> Result<OwnedFd, MountError> {
    let mountpoint = &request.mountpoint;
    let again = device.is_some();
    if is_root() {
        match mount_directly(request, place, device) {
            Err(MountError::Mount(_, Errno::PERM)) if !again => {}
            result => return result,
        }
    }
    match again {
        // The helper cannot mount what is mounted already.
        true => Err(MountError::Mount(mountpoint.to_owned(), Errno::PERM)),
        false => match mount_by_helper(request, mountpoint) {
            // What root lacks is not the helper.
            Err(MountError::NoHelper(_)) if is_root() => {
                Err(MountError::Mount(mountpoint.to_owned(), Errno::PERM))
            }
            mounted => mounted,
        },
    }
}

fn mount_directly(
    request: &MountRequest,
    place: &OwnedFd,
    device: Option<OwnedFd>,
) -> Result<OwnedFd, MountError> {
    let device = match device {
        Some(device) => device,
        None => rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(MountError::Device)?,
    };
    let failed = |e| MountError::Mount(request.mountpoint.clone(), e);
    let unusable = |e| MountError::Mountpoint(request.mountpoint.clone(), e);
    let mode = rustix::fs::fstat(place).map_err(unusable)?.st_mode;
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if request.other_users {
        data.push_str(",allow_other");
    }
    let flags = request.flags();
    let data = CString::new(data).map_err(|_| failed(Errno::INVAL))?;
    let fstype = format!("fuse.{}", request.subtype);
    // The directory itself, wherever its path leads by now.
    let place = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::mount::mount(request.source.as_str(), place, fstype, flags, Some(data.as_c_str()))
        .map_err(failed)?;
    Ok(device)
}

fn mount_by_helper(request: &MountRequest, mountpoint: &Path) -> Result<OwnedFd, MountError> {
    // A comma in an option is escaped; other characters of dataset names need nothing.
    let name = request.source.replace('\\', "\\\\").replace(',', "\\,");
    let flags = request.flags();
    let access = if flags.contains(MountFlags::RDONLY) { "ro" } else { "rw" };
    let mut options = format!(
        "{access},nosuid,nodev,default_permissions,subtype={},fsname={name}",
        request.subtype
    );
    if request.other_users {
        options.push_str(",allow_other");
    }
    if flags.contains(MountFlags::NOEXEC) {
        options.push_str(",noexec");
    }
    let helper = |e: io::Error| MountError::NoHelper(number(&e));
    let (ours, theirs) = UnixStream::pair().map_err(helper)?;
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(helper)?;
    let received = receive_descriptor(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(helper)?;
    received.ok_or_else(|| {
        MountError::Helper(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    })
}

/// The descriptor that comes with the first byte on `socket`.
fn receive_descriptor(socket: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
    })
    .ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_pass_from_process_to_process() {
        for error in [
            MountError::Mountpoint("/a\u{e4}".into(), Errno::NOTDIR),
            MountError::NoHelper(Errno::NOENT),
            MountError::Covered("/b".into()),
        ] {
            let text = serde_json::to_string(&error).unwrap();
            let again: MountError = serde_json::from_str(&text).unwrap();
            assert_eq!(again.to_string(), error.to_string());
        }
        let odd = r#"{"Device":0}"#;
        let Ok(MountError::Device(errno)) = serde_json::from_str(odd) else { panic!("{odd}") };
        assert_eq!(errno, Errno::IO);
    }
}
