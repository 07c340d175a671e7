//! What keeps a file system mounted: a mount of its own, or a graft in another one's.

use super::settings::Kernels;
use cenote_fuse::{Agent, Force, Graft, MountError, MountHandle, SnapDir, SyncPolicy};
use cenote_zpl::FileSystem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// What keeps a file system mounted.
pub(super) enum Handle {
    Mount(MountHandle),
    Graft(Graft),
}

impl Handle {
    pub(super) fn mountpoint(&self) -> &Path {
        match self {
            Handle::Mount(mount) => mount.mountpoint(),
            Handle::Graft(graft) => graft.mountpoint(),
        }
    }

    pub(super) fn as_mount(&self) -> Option<&MountHandle> {
        match self {
            Handle::Mount(mount) => Some(mount),
            Handle::Graft(_) => None,
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
            Handle::Graft(graft) => graft.is_mounted(),
        }
    }

    pub(super) fn is_mounted(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.is_mounted(),
            Handle::Graft(graft) => graft.is_mounted(),
        }
    }

    /// Whether nobody has anything of it any more.
    pub(super) fn is_finished(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.is_finished(),
            Handle::Graft(graft) => !graft.is_mounted(),
        }
    }

    /// Where this process has it mounted in its mount namespace.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        match self {
            Handle::Mount(mount) => mount.places_in(cenote_fuse::namespace()),
            Handle::Graft(graft) => vec![graft.mountpoint().to_owned()],
        }
    }

    /// Whether files in it are open, as far as the kernel has told.
    pub(super) fn has_users(&self) -> bool {
        self.as_mount().is_some_and(MountHandle::has_users)
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
            Handle::Graft(graft) => graft.unmount(force),
        }
    }

    /// Waits until nobody has anything of it. False: somebody has.
    pub(super) fn wait(&mut self, deadline: Instant) -> bool {
        match self {
            Handle::Mount(mount) => mount.wait(deadline),
            Handle::Graft(graft) => !graft.is_mounted(),
        }
    }

    /// Whoever uses it gets errors.
    pub(super) fn abort(&self) {
        if let Handle::Mount(mount) = self {
            mount.abort();
        }
    }

    /// Whether file systems are grafted into it.
    pub(super) fn has_grafts(&self) -> bool {
        match self {
            Handle::Mount(mount) => mount.has_grafts(),
            Handle::Graft(graft) => graft.has_grafts(),
        }
    }

    /// Has `change` give the file system other contents: see [`MountHandle::exchange`].
    pub(super) fn exchange<T>(&self, change: impl FnOnce() -> (T, Option<Arc<FileSystem>>)) -> T {
        match self {
            Handle::Mount(mount) => mount.exchange(change),
            Handle::Graft(graft) => graft.exchange(change),
        }
    }

    pub(super) fn close_snapshot(&self, name: &str) -> bool {
        match self {
            Handle::Mount(mount) => mount.close_snapshot(name),
            Handle::Graft(graft) => graft.close_snapshot(name),
        }
    }

    pub(super) fn open_snapshot(&self, name: &str) {
        match self {
            Handle::Mount(mount) => mount.open_snapshot(name),
            Handle::Graft(graft) => graft.open_snapshot(name),
        }
    }

    pub(super) fn snapshot_changed(&self, name: &str) {
        match self {
            Handle::Mount(mount) => mount.snapshot_changed(name),
            Handle::Graft(graft) => graft.snapshot_changed(name),
        }
    }

    /// Tells the kernel; false: it cannot be told.
    pub(super) fn remount(&self, to: &Kernels) -> Result<bool, MountError> {
        match self {
            Handle::Mount(mount) => mount.remount(to.setuid, to.devices, to.exec, to.flags),
            Handle::Graft(_) => Ok(false),
        }
    }

    pub(super) fn set_snapdir(&self, snapdir: SnapDir) {
        match self {
            Handle::Mount(mount) => mount.set_snapdir(snapdir),
            Handle::Graft(graft) => graft.set_snapdir(snapdir),
        }
    }

    pub(super) fn write_mapped(&self) {
        match self {
            Handle::Mount(mount) => mount.write_mapped(),
            Handle::Graft(graft) => graft.write_mapped(),
        }
    }

    pub(super) fn acls_changed(&self) {
        match self {
            Handle::Mount(mount) => mount.acls_changed(),
            Handle::Graft(graft) => graft.acls_changed(),
        }
    }

    pub(super) fn set_sync_policy(&self, policy: SyncPolicy) {
        match self {
            Handle::Mount(mount) => mount.set_sync_policy(policy),
            Handle::Graft(graft) => graft.set_sync_policy(policy),
        }
    }
}
