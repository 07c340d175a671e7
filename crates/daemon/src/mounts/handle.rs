//! The thing that keeps a file system mounted: a mount of its own, or a submount in another one's.
//!
//! Both answer the same questions, and the rest of the daemon asks them through [`Handle`]. A mount is an entry in
//! the kernel's table of mounts with a connection behind it. It can be mounted in several places, can be detached
//! from one of them, and may linger without any while files are open. A submount is a directory in the tree of
//! another mount, in one place, without a connection of its own: it is unmounted or it is not, and the kernel
//! cannot be told other mount options for it.
//!
//! Actions at paths (`detach`, `give_up`, `end`) are done by an agent, never by the daemon itself: a path may lead
//! into its own mounts.

use super::settings::Kernels;
use cenote_fuse::{
    Agent, Force, Forgetting, MountError, MountHandle, Renewed, SnapDir, Submount, SyncPolicy,
};
use cenote_zpl::FileSystem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// What keeps a file system mounted.
pub(super) enum Handle {
    Mount(MountHandle),
    Submount(Submount),
}

impl Handle {
    pub(super) fn mountpoint(&self) -> &Path {
        match self {
            Handle::Mount(mount) => mount.mountpoint(),
            Handle::Submount(submount) => submount.mountpoint(),
        }
    }

    pub(super) fn as_mount(&self) -> Option<&MountHandle> {
        match self {
            Handle::Mount(mount) => Some(mount),
            Handle::Submount(_) => None,
        }
    }

    /// Takes note of what others have mounted and unmounted.
    pub(super) fn revise(&mut self) {
        if let Handle::Mount(mount) = self {
            mount.revise();
        }
    }

    /// Whether it was mounted when [`Handle::revise`] looked last.
    pub(super) fn is_placed(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.is_placed(),
            Handle::Submount(submount) => submount.is_mounted(),
        }
    }

    /// Whether no process uses it any more.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.is_finished(),
            Handle::Submount(submount) => !submount.is_mounted(),
        }
    }

    /// Where this process has it mounted in its mount namespace.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        match self {
            Handle::Mount(mount) => mount.places_in(cenote_fuse::namespace()),
            Handle::Submount(submount) => vec![submount.mountpoint().to_owned()],
        }
    }

    /// Whether files in it are open, as far as the kernel has told.
    pub(super) fn has_users(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.has_users(),
            Handle::Submount(submount) => submount.has_users(),
        }
    }

    /// Has `by` unmount it, at `at` or wherever this process has it mounted.
    pub(super) fn detach(
        &mut self,
        force: Force,
        at: Option<&Path>,
        by: &dyn Agent,
    ) -> Result<(), MountError> {
        match self {
            Handle::Mount(mount) => mount.detach(force, at, by),
            Handle::Submount(submount) => submount.unmount(force),
        }
    }

    /// Has it unmounted wherever this process has it mounted.
    pub(super) fn give_up(&mut self, force: Force, by: &dyn Agent) -> Result<(), MountError> {
        match self {
            Handle::Mount(mount) => mount.give_up(force, by),
            Handle::Submount(submount) => submount.unmount(force),
        }
    }

    /// Ends the connection of an unused mount, wherever it is mounted.
    pub(super) fn end(&mut self, by: &dyn Agent) {
        if let Handle::Mount(mount) = self {
            mount.end(by);
        }
    }

    /// Waits until no process uses it. False: a process still does.
    pub(super) fn wait(&mut self, deadline: Instant) -> bool {
        match self {
            Handle::Mount(mount) => mount.wait(deadline),
            Handle::Submount(submount) => !submount.is_mounted(),
        }
    }

    /// Its users get errors.
    pub(super) fn abort(&self) {
        if let Handle::Mount(mount) = self {
            mount.abort();
        }
    }

    /// Whether it has submounts.
    pub(super) fn has_submounts(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.has_submounts(),
            Handle::Submount(submount) => submount.has_submounts(),
        }
    }

    /// Has `change` give the file system other contents: see [`MountHandle::exchange`].
    pub(super) fn exchange<T>(
        &self,
        coming: Option<Arc<FileSystem>>,
        change: impl FnOnce() -> (T, Renewed),
    ) -> Option<T> {
        match self {
            Handle::Mount(mount) => mount.exchange(coming, change),
            Handle::Submount(submount) => submount.exchange(coming, change),
        }
    }

    pub(super) fn close_snapshot(&self, name: &str) -> bool {
        match self {
            Handle::Mount(mount) => mount.close_snapshot(name),
            Handle::Submount(submount) => submount.close_snapshot(name),
        }
    }

    pub(super) fn open_snapshot(&self, name: &str) {
        match self {
            Handle::Mount(mount) => mount.open_snapshot(name),
            Handle::Submount(submount) => submount.open_snapshot(name),
        }
    }

    pub(super) fn snapshot_changed(&self, name: &str) -> Forgetting {
        match self {
            Handle::Mount(mount) => mount.snapshot_changed(name),
            Handle::Submount(submount) => submount.snapshot_changed(name),
        }
    }

    /// Tells the kernel; false: it cannot be told.
    pub(super) fn remount(&self, to: &Kernels) -> Result<bool, MountError> {
        match self {
            Handle::Mount(mount) => mount.remount(to.setuid, to.devices, to.exec, to.flags),
            Handle::Submount(_) => Ok(false),
        }
    }

    pub(super) fn set_snapdir(&self, snapdir: SnapDir) -> Forgetting {
        match self {
            Handle::Mount(mount) => mount.set_snapdir(snapdir),
            Handle::Submount(submount) => submount.set_snapdir(snapdir),
        }
    }

    pub(super) fn write_mapped(&self) {
        match self {
            Handle::Mount(mount) => mount.write_mapped(),
            Handle::Submount(submount) => submount.write_mapped(),
        }
    }

    /// What the kernel keeps of submounts goes with what it keeps of the mount around them.
    pub(super) fn forget_pages(&self) {
        match self {
            Handle::Mount(mount) => mount.forget_pages(),
            Handle::Submount(_) => {}
        }
    }

    pub(super) fn acls_changed(&self) -> Forgetting {
        match self {
            Handle::Mount(mount) => mount.acls_changed(),
            Handle::Submount(submount) => submount.acls_changed(),
        }
    }

    pub(super) fn set_sync_policy(&self, policy: SyncPolicy) {
        match self {
            Handle::Mount(mount) => mount.set_sync_policy(policy),
            Handle::Submount(submount) => submount.set_sync_policy(policy),
        }
    }
}
