//! A submount as its owner holds it: what can be told to it, and how it is taken away.

use super::{Branch, LATE_CLOSE};
use crate::node::slot_of;
use crate::syncer::SyncPolicy;
use crate::tree::Tree;
use crate::{Force, Forgetting, MountError, MountHandle, MountSpec, Renewed, SnapDir};
use cenote_zpl::FileSystem;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A file system that is served inside another one's mount. Dropping it takes it away by force.
pub struct Submount {
    dataset: String,
    mountpoint: PathBuf,
    /// The tree that it is in, while that is served.
    tree: Weak<Tree>,
    branch: Arc<Branch>,
}

impl Submount {
    pub(crate) fn new(host: &MountHandle, spec: &MountSpec) -> Result<Submount, MountError> {
        let failed = |why: String| MountError::Submount(spec.mountpoint.clone(), why);
        let path = spec.mountpoint.strip_prefix(host.mountpoint());
        let path = path.map_err(|_| failed("not inside the mount".into()))?;
        let tree = host.tree.upgrade().ok_or_else(|| failed("not mounted".into()))?;
        let branch = tree.add_submount(spec, path).map_err(failed)?;
        Ok(Submount {
            dataset: spec.dataset.clone(),
            mountpoint: spec.mountpoint.clone(),
            tree: host.tree.clone(),
            branch,
        })
    }

    /// Name of the dataset.
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// Where it is served.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether it is still being served.
    pub fn is_mounted(&self) -> bool {
        self.tree.strong_count() > 0 && !self.branch.is_gone()
    }

    /// The `sync` property has changed.
    pub fn set_sync_policy(&self, policy: SyncPolicy) {
        self.branch.set_sync_policy(policy);
    }

    /// As [`MountHandle::snapshot_changed`].
    pub fn snapshot_changed(&self, name: &str) -> Forgetting {
        let changed = |tree: Arc<Tree>| tree.snapshot_changed(&self.branch, name);
        self.tree.upgrade().map(changed).unwrap_or_default()
    }

    /// As [`MountHandle::close_snapshot`].
    pub fn close_snapshot(&self, name: &str) -> bool {
        self.tree.upgrade().is_none_or(|tree| tree.close_snapshot(&self.branch, name))
    }

    /// As [`MountHandle::open_snapshot`].
    pub fn open_snapshot(&self, name: &str) {
        if let Some(tree) = self.tree.upgrade() {
            tree.open_snapshot(&self.branch, name);
        }
    }

    /// As [`MountHandle::set_snapdir`].
    pub fn set_snapdir(&self, snapdir: SnapDir) -> Forgetting {
        let set = |tree: Arc<Tree>| tree.set_snapdir(&self.branch, snapdir);
        self.tree.upgrade().map(set).unwrap_or_default()
    }

    /// As [`MountHandle::acls_changed`].
    pub fn acls_changed(&self) -> Forgetting {
        let changed = |tree: Arc<Tree>| tree.acls_changed(&self.branch);
        self.tree.upgrade().map(changed).unwrap_or_default()
    }

    /// As [`MountHandle::has_users`].
    pub fn has_users(&self) -> bool {
        self.branch.has_users()
    }

    /// As [`MountHandle::has_submounts`].
    pub fn has_submounts(&self) -> bool {
        self.tree.upgrade().is_some_and(|tree| tree.is_host(&self.branch))
    }

    /// As [`MountHandle::exchange`]; requests of the whole mount wait.
    pub fn exchange<T>(
        &self,
        coming: Option<Arc<FileSystem>>,
        change: impl FnOnce() -> (T, Renewed),
    ) -> Option<T> {
        match self.tree.upgrade() {
            Some(tree) => tree.exchange(&self.branch, coming, change),
            None => Some(change().0),
        }
    }

    /// As [`MountHandle::write_mapped`].
    pub fn write_mapped(&self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.write_mapped(|ino| slot_of(ino) == self.branch.slot);
        }
    }

    /// Takes it away. Without force, [`MountError::Busy`] says that files or directories in it are
    /// open, that a process works in one, or that there are submounts in it, and it stays; with force
    /// it goes away with what is in it, and processes with open files get errors.
    pub fn unmount(&mut self, force: Force) -> Result<(), MountError> {
        let Some(tree) = self.tree.upgrade() else { return Ok(()) };
        let busy = || MountError::Busy(self.mountpoint.clone());
        if force == Force::Yes {
            self.write_mapped();
        }
        if force == Force::No && !self.branch.is_gone() && someone_works_below(&self.mountpoint) {
            return Err(busy());
        }
        // The kernel tells of a closed file or directory some time after the program was told.
        let until = Instant::now() + LATE_CLOSE;
        while !tree.remove(&self.branch, force) {
            if Instant::now() >= until {
                return Err(busy());
            }
            std::thread::sleep(LATE_CLOSE / 20);
        }
        Ok(())
    }
}

impl Drop for Submount {
    fn drop(&mut self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.remove(&self.branch, Force::Yes);
        }
    }
}

/// Whether a process has its working directory in `path`. The kernel tells a FUSE server nothing of
/// that; those processes of others that cannot be looked at cannot get into the mount, either.
fn someone_works_below(path: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let works = |process: fs::DirEntry| fs::read_link(process.path().join("cwd"));
    processes.flatten().flat_map(works).any(|cwd| cwd.starts_with(path))
}
