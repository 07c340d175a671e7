//! What this process may do about mounts: make them by the system call, have the set-user-id helper make them, or not at all.
//!
//! It is asked before anything is mounted or unmounted, and decides which of the two ways is taken.

use crate::caller::may_mount;
use rustix::fs::{Mode, OFlags};
use std::fs;

/// What a server talks to the kernel through.
pub(crate) const DEVICE: &str = "/dev/fuse";
/// The helper for users other than root.
pub(crate) const HELPER: &str = "fusermount3";
/// What ordinary users may do with FUSE.
const CONFIG: &str = "/etc/fuse.conf";

/// Whether this process cannot mount, whatever it is: the kernel has no FUSE, or a container was given neither the
/// device nor, as root, the right to mount.
pub fn is_missing() -> bool {
    let closed = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).is_err();
    closed || is_root() && !may_mount() && !in_path(HELPER)
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether mounts of this process can be used by other users: root's can, mounts of others
/// if the administrator allows it.
pub fn allows_other_users() -> bool {
    let config = || fs::read_to_string(CONFIG).unwrap_or_default();
    is_root() || config().lines().any(|l| l.trim() == "user_allow_other")
}

/// Whether this process can mount inside its own mounts. An ordinary user may only mount at a
/// directory that is theirs to write, which no directory in a read-only mount is; there [`Submount`]s do.
///
/// [`Submount`]: crate::Submount
pub fn can_nest() -> bool {
    is_root()
}
