//! A file system in the tree of a mount: the one that is mounted, or a [submount](crate::submount); and where a submount is.
//!
//! Invariant: `gone` is set under the lock of the table of slots, and users are counted under it, so no user is
//! overlooked.

use crate::control::{SnapDir, SnapshotEntry, Snapshots};
use crate::syncer::{SyncHook, SyncPolicy};
use crate::{MountSpec, Space, SpaceHook};
use cenote_zpl::{Clock, FileSystem, Spare, Time};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// Where a submount or a made directory appears.
pub(crate) struct Place {
    /// The branch that the place is in.
    pub(crate) branch: Arc<Branch>,
    /// Inode number of the directory around it.
    pub(crate) dir: u64,
    /// Name in that directory.
    pub(crate) name: Vec<u8>,
    /// Inode number of what is covered; otherwise the entry is added.
    pub(crate) covered: Option<u64>,
}

/// A directory that leads to a submount.
pub(crate) struct Made {
    pub(crate) slot: u16,
    pub(crate) place: Place,
    pub(crate) since: Time,
}

/// A file system in the tree: the one that is mounted, or a submount.
pub(crate) struct Branch {
    pub(crate) slot: u16,
    /// Name of the dataset, for messages.
    pub(crate) dataset: String,
    /// Changes when it is exchanged ([`exchange`](crate::exchange)).
    fs: RwLock<Arc<FileSystem>>,
    pub(crate) snapshots: Option<Arc<dyn Snapshots>>,
    snapdir: AtomicU8,
    space: SpaceHook,
    sync: SyncHook,
    policy: AtomicU8,
    /// Whether programs may be run.
    pub(crate) exec: bool,
    /// When it was mounted, by itself or as a submount.
    pub(crate) since: Time,
    /// Where a submount is.
    pub(crate) place: Option<Place>,
    /// Open files, and open directories of submounts.
    users: AtomicUsize,
    gone: AtomicBool,
}

impl Branch {
    pub(crate) fn new(spec: &MountSpec, slot: u16, place: Option<Place>) -> Branch {
        Branch {
            slot,
            dataset: spec.dataset.clone(),
            fs: RwLock::new(spec.fs.clone()),
            snapshots: spec.snapshots.clone(),
            snapdir: AtomicU8::new(spec.snapdir as u8),
            space: spec.space.clone(),
            sync: spec.sync.clone(),
            policy: AtomicU8::new(spec.sync_policy as u8),
            exec: spec.exec,
            since: Clock::default().now(),
            place,
            users: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
        }
    }

    /// What it serves.
    pub(crate) fn fs(&self) -> Arc<FileSystem> {
        self.fs.read().clone()
    }

    /// Serves another file system from now on.
    pub(crate) fn set_fs(&self, fs: Arc<FileSystem>) {
        *self.fs.write() = fs;
    }

    /// Whether there is a `.zfs`.
    pub(crate) fn has_control(&self) -> bool {
        self.snapshots.is_some() && self.snapdir.load(Ordering::Relaxed) != SnapDir::Disabled as u8
    }

    /// Whether `.zfs` is listed in the root directory.
    pub(crate) fn shows_control(&self) -> bool {
        self.snapshots.is_some() && self.snapdir.load(Ordering::Relaxed) == SnapDir::Visible as u8
    }

    /// Changes the `snapdir` property; whether it was another.
    pub(crate) fn set_snapdir(&self, snapdir: SnapDir) -> bool {
        self.snapdir.swap(snapdir as u8, Ordering::Relaxed) != snapdir as u8
    }

    /// The txg of the newest snapshot; 0 without snapshots.
    pub(crate) fn newest_snapshot(&self) -> u64 {
        self.snapshots.as_ref().map_or(0, |s| s.newest())
    }

    /// Tells which blocks clones share; `None` if the mount does not know its pool.
    pub(crate) fn cloned(&self) -> Option<Box<Spare<'static>>> {
        self.snapshots.as_ref().map(|s| s.cloned())
    }

    /// Whether blocks can be rewritten with their births kept.
    pub(crate) fn may_keep_births(&self) -> bool {
        self.snapshots.as_ref().is_some_and(|s| s.may_keep_births())
    }

    pub(crate) fn list_snapshots(&self) -> Vec<SnapshotEntry> {
        self.snapshots.as_ref().map(|s| s.list()).unwrap_or_default()
    }

    pub(crate) fn snapshots_changed(&self) -> Option<(i64, u32)> {
        self.snapshots.as_ref().and_then(|s| s.changed())
    }

    /// Whether it was taken away.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// One more open file or directory of it.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        self.users.fetch_add(1, Ordering::SeqCst);
        InUse(self.clone())
    }

    /// Whether files in it are open.
    pub(crate) fn has_users(&self) -> bool {
        self.users.load(Ordering::SeqCst) > 0
    }

    /// Its users get errors from now on.
    pub(crate) fn set_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
    }

    /// Figures for `statfs`.
    pub(crate) fn space(&self) -> Space {
        (self.space)()
    }

    /// What waits until changes are on disk.
    pub(crate) fn sync_hook(&self) -> &SyncHook {
        &self.sync
    }

    /// The `sync` property.
    pub(crate) fn sync_policy(&self) -> SyncPolicy {
        let is = |policy: SyncPolicy| self.policy.load(Ordering::Relaxed) == policy as u8;
        [SyncPolicy::Always, SyncPolicy::Disabled].into_iter().find(|p| is(*p)).unwrap_or_default()
    }

    /// Changes the `sync` property.
    pub(crate) fn set_sync_policy(&self, policy: SyncPolicy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }
}

/// An open file or directory of a branch.
pub(crate) struct InUse(Arc<Branch>);

impl InUse {
    /// Whether the branch was taken away meanwhile.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.is_gone()
    }

    /// One more of the same.
    pub(crate) fn again(&self) -> InUse {
        self.0.in_use()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}
