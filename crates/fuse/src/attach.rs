//! Attaching to the kernel: a `/dev/fuse` descriptor that is mounted somewhere, and taking mounts
//! away.
//!
//! Root mounts by the system call. Others ask `fusermount3`, which is set-user-id root: it mounts and
//! hands the descriptor back over a socket, whose number it finds in `_FUSE_COMMFD` (here its
//! standard input). Root in a container that may not mount takes the same way.

use crate::session::{Filesystem, Notifier, Session, Users};
use crate::watcher::Watcher;
use crate::{MountSpec, mountinfo};
use cenote_zpl::{Atime, FileSystem};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The helper for users other than root.
const HELPER: &str = "fusermount3";
/// What ordinary users may do with FUSE.
const CONFIG: &str = "/etc/fuse.conf";
/// How long an unmounted file system may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// Why mounting or unmounting failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MountError {
    /// The directory cannot be used.
    #[error("cannot mount at '{path}': {why}", path = .0.display(), why = .1)]
    Mountpoint(PathBuf, Errno),
    /// The kernel has no FUSE, or access to it is denied.
    #[error("/dev/fuse: {0}: FUSE is needed for mounts (try 'modprobe fuse')")]
    Device(Errno),
    /// The system call failed.
    #[error("cannot mount at '{path}': {why}", path = .0.display(), why = .1)]
    Mount(PathBuf, Errno),
    /// The helper is not installed.
    #[error(
        "cannot run fusermount3: {0}: it is needed to mount as an ordinary user (package fuse3)"
    )]
    NoHelper(std::io::ErrorKind),
    /// The helper's message.
    #[error("{0}")]
    Helper(String),
    /// A file system cannot be served inside another one's mount.
    #[error("cannot mount at '{path}': {why}", path = .0.display(), why = .1)]
    Graft(PathBuf, String),
    /// The kernel did not agree with the server.
    #[error("FUSE session: {0}")]
    Session(String),
    /// Files in the mount are in use.
    #[error("'{path}': device is busy", path = .0.display())]
    Busy(PathBuf),
    /// The system call failed.
    #[error("cannot unmount '{path}': {why}", path = .0.display(), why = .1)]
    Unmount(PathBuf, Errno),
    /// Something else is mounted over it, which has to go first.
    #[error("'{path}': another mount covers it", path = .0.display())]
    Covered(PathBuf),
}

/// Whether to unmount what is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Fail if it is in use.
    No,
    /// Take it away at once.
    Yes,
}

/// A mount as the kernel sees it.
pub(crate) struct Kind {
    /// The mount's source (`SOURCE` of `findmnt`).
    pub source: String,
    /// What comes after `fuse.` in its type.
    pub subtype: &'static str,
    pub writable: bool,
    pub setuid: bool,
    pub devices: bool,
    pub exec: bool,
    /// Flags about access times.
    pub times: MountFlags,
}

impl Kind {
    /// The mount of a file system.
    pub(crate) fn of(spec: &MountSpec) -> Kind {
        Kind {
            source: spec.dataset.clone(),
            subtype: "zfs",
            writable: spec.fs.is_writable(),
            setuid: spec.setuid,
            devices: spec.devices,
            exec: spec.exec,
            times: access_times(&spec.fs),
        }
    }

    /// As the system call takes it.
    fn flags(&self) -> MountFlags {
        let mut flags = self.times;
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

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether mounts of this process can be used by other users: those of root can, those of others
/// if the administrator allows it.
pub fn allows_other_users() -> bool {
    let config = || fs::read_to_string(CONFIG).unwrap_or_default();
    is_root() || config().lines().any(|l| l.trim() == "user_allow_other")
}

/// Whether this process can mount inside its own mounts. An ordinary user may only mount at a
/// directory that is theirs to write, which none in a read-only mount is; there [`Graft`]s do.
///
/// [`Graft`]: crate::Graft
pub fn can_nest() -> bool {
    is_root()
}

/// Mounts, and returns the descriptor through which the kernel talks.
pub(crate) fn attach(
    kind: &Kind,
    mountpoint: &Path,
    other_users: bool,
) -> Result<OwnedFd, MountError> {
    if is_root() {
        match mount_directly(kind, mountpoint, other_users) {
            Err(MountError::Mount(_, Errno::PERM)) => {}
            result => return result,
        }
    }
    mount_by_helper(kind, mountpoint, other_users)
}

fn mount_directly(
    kind: &Kind,
    mountpoint: &Path,
    other_users: bool,
) -> Result<OwnedFd, MountError> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(MountError::Device)?;
    let failed = |e| MountError::Mount(mountpoint.to_owned(), e);
    let unusable = |e| MountError::Mountpoint(mountpoint.to_owned(), number(&e));
    let mode = fs::metadata(mountpoint).map_err(unusable)?.mode();
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if other_users {
        data.push_str(",allow_other");
    }
    let flags = kind.flags();
    let data = CString::new(data).map_err(|_| failed(Errno::INVAL))?;
    let fstype = format!("fuse.{}", kind.subtype);
    rustix::mount::mount(kind.source.as_str(), mountpoint, fstype, flags, Some(data.as_c_str()))
        .map_err(failed)?;
    Ok(device)
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

fn mount_by_helper(
    kind: &Kind,
    mountpoint: &Path,
    other_users: bool,
) -> Result<OwnedFd, MountError> {
    // A comma in an option is escaped; other characters of dataset names need nothing.
    let name = kind.source.replace('\\', "\\\\").replace(',', "\\,");
    let access = if kind.writable { "rw" } else { "ro" };
    let mut options =
        format!("{access},nosuid,nodev,default_permissions,subtype={},fsname={name}", kind.subtype);
    if other_users {
        options.push_str(",allow_other");
    }
    if !kind.exec {
        options.push_str(",noexec");
    }
    let helper = |e: std::io::Error| MountError::NoHelper(e.kind());
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

/// A mount that is served by threads of this process. Dropping it unmounts by force.
pub(crate) struct Served {
    mountpoint: PathBuf,
    /// What identifies the mount (see `mountinfo`), until it is unmounted.
    id: Option<String>,
    session: Option<Session>,
    watcher: Option<Arc<Watcher>>,
}

impl Served {
    /// Mounts at `mountpoint`, which is without symbolic links, and serves it.
    pub(crate) fn new<S: Filesystem>(
        server: S,
        kind: &Kind,
        mountpoint: &Path,
        watcher: Option<Arc<Watcher>>,
    ) -> Result<Served, MountError> {
        let other_users = allows_other_users();
        let device = attach(kind, mountpoint, other_users)?;
        let own = Users::Only(rustix::process::geteuid().as_raw());
        let users = if other_users { Users::All } else { own };
        let id = mountinfo::mount_at(mountpoint).ok_or_else(|| {
            MountError::Session("/proc/self/mountinfo does not show the mount".into())
        })?;
        if let Some(watcher) = &watcher {
            watcher.add(&id);
        }
        // From here on dropping it takes the mount away.
        let mountpoint = mountpoint.to_owned();
        let mut served = Served { mountpoint, id: Some(id), session: None, watcher };
        let session = Session::start(server, device, users);
        served.session = Some(session.map_err(|e| MountError::Session(e.to_string()))?);
        Ok(served)
    }

    /// Where it is mounted.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// What identifies it, until it is unmounted.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Tells the kernel what it does not know.
    pub(crate) fn notifier(&self) -> Option<Notifier> {
        self.session.as_ref().map(Session::notifier)
    }

    /// Whether it is still there: not after someone else unmounted it, which the threads that serve it
    /// learn a moment later.
    pub(crate) fn is_mounted(&self) -> bool {
        let Some(id) = &self.id else { return false };
        self.session.as_ref().is_some_and(|s| !s.is_finished())
            && (leads_to(&self.mountpoint, id) || !mountinfo::mountpoints(id).is_empty())
    }

    /// Makes the mount another kind where it is, in use or not. False: this process cannot, since it
    /// is not root or the mount is covered. [`MountError::Busy`]: files are open for writing, so it
    /// cannot become read-only.
    pub(crate) fn remount(&self, kind: &Kind) -> Result<bool, MountError> {
        let at = &self.mountpoint;
        if !is_root() || self.id.is_none() || mountinfo::mount_at(at) != self.id {
            return Ok(false);
        }
        match rustix::mount::mount_remount(at, kind.flags(), c"") {
            Ok(()) => Ok(true),
            Err(Errno::PERM) => Ok(false),
            Err(Errno::BUSY) => Err(MountError::Busy(at.clone())),
            Err(e) => Err(MountError::Mount(at.clone(), e)),
        }
    }

    /// Unmounts.
    pub(crate) fn unmount(&mut self, force: Force) -> Result<(), MountError> {
        if let Some(id) = &self.id {
            detach(id, force)?;
            if let Some(watcher) = &self.watcher {
                watcher.remove(id);
            }
        }
        self.id = None;
        let Some(session) = self.session.take() else { return Ok(()) };
        // The threads end when the kernel lets go. That takes longer if the mount is also visible
        // in another mount namespace; then they go on serving it there.
        let deadline = Instant::now() + GOODBYE;
        while !session.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !session.is_finished() {
            tracing::info!("'{}' is unmounted, but in use elsewhere", self.mountpoint.display());
        } else if let Err(e) = session.join() {
            tracing::warn!("FUSE session of '{}': {e}", self.mountpoint.display());
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(e) = self.unmount(Force::Yes) {
            tracing::warn!("unmount of '{}': {e}", self.mountpoint.display());
        }
    }
}

/// Takes away the mounts of file systems at `path`, a path without symbolic links, that nobody serves any
/// more, with all that is below them. They stay where a daemon dies together with the process that
/// would have taken its mounts away.
pub fn clear_dead(path: &Path) -> Result<(), MountError> {
    loop {
        let Some(id) = mountinfo::mount_at(path).filter(|id| mountinfo::is_zfs(id)) else {
            return Ok(());
        };
        // Attributes of a dead mount may still be known; figures are asked for each time.
        if rustix::fs::statfs(path).err() != Some(Errno::NOTCONN) {
            return Ok(());
        }
        detach(&id, Force::Yes)?;
        if mountinfo::mount_at(path).as_ref() == Some(&id) {
            return Err(MountError::Busy(path.to_owned()));
        }
    }
}

/// `path` without symbolic links. It is a directory: the kernel would also mount at a file, and then
/// find a directory there.
pub(crate) fn directory(path: &Path) -> Result<PathBuf, MountError> {
    let unusable = |errno| MountError::Mountpoint(path.to_owned(), errno);
    let real = path.canonicalize().map_err(|e| unusable(number(&e)))?;
    match fs::metadata(&real).map_err(|e| unusable(number(&e)))?.is_dir() {
        true => Ok(real),
        false => Err(unusable(Errno::NOTDIR)),
    }
}

/// The system's number of an error.
fn number(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

/// Whether `mountpoint` leads to the mount, and not to one that covers it. A mount that does not answer
/// any more counts as one that it leads to.
fn leads_to(mountpoint: &Path, id: &str) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(CWD, mountpoint, flags, StatxFlags::empty()) {
        Ok(found) => {
            mountinfo::device(id) == format!("{}:{}", found.stx_dev_major, found.stx_dev_minor)
        }
        Err(Errno::NOENT | Errno::NOTDIR) => false,
        Err(_) => true,
    }
}

/// Takes a mount away, everywhere it is visible in this namespace. Nothing to do is success. One that
/// is covered stays, since its path would lead to what covers it; by force it is no longer served.
pub(crate) fn detach(id: &str, force: Force) -> Result<(), MountError> {
    for mountpoint in mountinfo::mountpoints(id).into_iter().rev() {
        if !leads_to(&mountpoint, id) {
            match force {
                Force::Yes => continue,
                Force::No => return Err(MountError::Covered(mountpoint)),
            }
        }
        if is_root() {
            let flags = match force {
                // Whoever uses it gets errors: the server is not to wait for them to end.
                Force::Yes => UnmountFlags::DETACH | UnmountFlags::FORCE,
                Force::No => UnmountFlags::empty(),
            };
            match rustix::mount::unmount(&mountpoint, flags | UnmountFlags::NOFOLLOW) {
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(Errno::BUSY) => return Err(MountError::Busy(mountpoint)),
                Err(Errno::PERM) => unmount_by_helper(mountpoint, force)?,
                Err(e) => return Err(MountError::Unmount(mountpoint, e)),
            }
        } else {
            unmount_by_helper(mountpoint, force)?;
        }
    }
    if force == Force::Yes {
        abort(id);
    }
    Ok(())
}

fn unmount_by_helper(mountpoint: PathBuf, force: Force) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if force == Force::Yes {
        command.arg("-z");
    }
    let output =
        command.arg("--").arg(&mountpoint).env("LC_ALL", "C").stdin(Stdio::null()).output();
    let output = output.map_err(|e| MountError::NoHelper(e.kind()))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        Err(MountError::Busy(mountpoint))
    } else {
        Err(MountError::Helper(message))
    }
}

/// Ends a connection whose mount is gone but still in use, so that its users get errors instead of
/// waiting. The control file belongs to the user who mounted; where `fusectl` is not mounted a connection
/// that root has not ended by unmounting ends with its last user.
fn abort(id: &str) {
    if let Some((_, minor)) = mountinfo::device(id).split_once(':') {
        let _ = fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1");
    }
}

/// Lets the kernel read ahead by 4 MiB instead of 128 KiB, in pieces of 1 MiB: what it asks for next is on
/// its way while a reader takes what came. Needs root; without it files are read in smaller pieces.
pub(crate) fn allow_large_readahead(id: &str) {
    if is_root() {
        let device = mountinfo::device(id);
        let _ = fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), "4096");
    }
}
