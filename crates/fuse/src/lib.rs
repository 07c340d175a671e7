//! File systems as Linux programs see them: FUSE mounts.
//!
//! [`mount`] attaches one file system at a directory and serves it from several threads until it is
//! unmounted. A mount can be written to if its file system can (a live one that is not `readonly`);
//! snapshots in it cannot. As root the kernel's `mount` is called directly; other users go through
//! the set-user-id helper `fusermount3`.
//!
//! | module | what lives there |
//! |---|---|
//! | `attach` | getting a mounted `/dev/fuse`, taking mounts away again |
//! | `mountinfo` | what the kernel says is mounted |
//! | [`watcher`] | a process that takes mounts away when the one that serves them dies |
//! | `session` | the protocol: requests in, answers out |
//! | `server` | answering the kernel's requests |
//! | `syncer` | waiting until changes are on disk |
//! | `inodes` | what the kernel knows, and files without names |
//! | `caller` | groups and capabilities of whoever sent a request |
//! | `flags` | file flags and project ids |
//! | `rewrite` | having files written anew as they are |
//! | `tree` | inode numbers, the snapshots under `.zfs`, attributes |
//! | `graft` | file systems that are served inside another one's mount |
//! | `snapshot` | snapshots in `.zfs/snapshot`, and which of them are in use |
//! | [`pseudo`] | a mount of small files that are made up when they are read |
//!
//! # Inode numbers
//!
//! The kernel's node numbers are the inode numbers that `stat` shows. In the file system itself they
//! are object numbers, as under OpenZFS. Snapshots and grafts are part of the same mount, so their
//! files have the number of the snapshot or graft (in order of first use) in the upper 16 bits. The control directories
//! have the numbers that OpenZFS gives them.
//!
//! # Caching
//!
//! Whatever changes below a mount changes through it, so the kernel may keep names (also that there is
//! none), attributes, directory listings, link targets and file contents as long as it likes: it
//! knows itself what its requests change, and every answer carries the new attributes. What changes
//! without a request (grafts that come and go, bits that a write takes away, access times of files
//! that the kernel has in memory) it is told. Two things it may keep for a moment only: how much
//! space a file takes is not known before it is on disk, and in a file system in which a name can be
//! written in several ways a change under one of them is a change under all.
//!
//! Writes go through at once, in pieces of up to 1 MiB; the kernel keeps the pages to read from, but
//! those of new files that are opened to be written to only (`server::direct`). It could collect
//! writes (`FUSE_WRITEBACK_CACHE`), but then what `write` promises under OpenZFS would not hold: that
//! a full pool or a quota is reported by the `write` that meets it, that a snapshot has all that was
//! written before it, that under `sync=always` it is on disk, and that only the end of an append-only
//! file is written. It also costs small files two more requests each.

mod attach;
mod caller;
mod flags;
mod graft;
mod inodes;
mod mountinfo;
pub mod pseudo;
mod rewrite;
mod server;
mod session;
mod snapshot;
mod syncer;
mod tree;
pub mod watcher;

pub use attach::{Force, MountError, allows_other_users, can_nest, clear_dead};
pub use graft::{Graft, resolve};
pub use rewrite::{RewriteRange, file_system_of, is_control_directory, rewrite};
pub use session::is_request;
pub use syncer::{SyncHook, SyncPolicy};
pub use tree::{SnapDir, SnapshotEntry, Snapshots};
pub use watcher::Watcher;

use attach::{Kind, Served};
use cenote_zpl::FileSystem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tree::Tree;

/// What to mount, where and how.
pub struct MountSpec {
    /// Name of the dataset: the mount's source (`SOURCE` of `findmnt`).
    pub dataset: String,
    /// An existing directory.
    pub mountpoint: PathBuf,
    /// The file system. If it [can be changed](FileSystem::is_writable) so can the mount, and what is
    /// grafted into it; [`MountHandle::remount`] tells the kernel when that is another. Its unlinked
    /// set should have been [drained](FileSystem::drain_unlinked) before it can be changed.
    pub fs: Arc<FileSystem>,
    /// Its snapshots, for `.zfs/snapshot`; `None` if the file system is a snapshot itself.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// The `snapdir` property.
    pub snapdir: SnapDir,
    /// Figures for `statfs`, as they are when it is called.
    pub space: SpaceHook,
    /// Waits until all changes so far are on disk. Called for `fsync` and the like, from a thread of
    /// its own, once for all who wait.
    pub sync: SyncHook,
    /// The `sync` property.
    pub sync_policy: SyncPolicy,
    /// The `setuid` property: honour set-user-id bits. Only root gets this.
    pub setuid: bool,
    /// The `devices` property: device nodes work. Only root gets this.
    pub devices: bool,
    /// The `exec` property: programs can be run.
    pub exec: bool,
    /// Takes the mount away if this process dies.
    pub watcher: Option<Arc<Watcher>>,
}

/// Tells the figures for `statfs`.
pub type SpaceHook = Arc<dyn Fn() -> Space + Send + Sync>;

/// Figures for `statfs`, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Space {
    /// The `referenced` property.
    pub referenced: u64,
    /// The `available` property.
    pub available: u64,
    /// The `recordsize` property: the unit in which space is shown.
    pub record_size: u64,
}

/// A mounted file system. Dropping it unmounts by force.
pub struct MountHandle {
    dataset: String,
    served: Served,
    /// What is served, while it is.
    tree: Weak<Tree>,
}

/// Mounts a file system. Returns when it can be used; requests are answered by threads of this
/// process.
pub fn mount(spec: MountSpec) -> Result<MountHandle, MountError> {
    let mountpoint = attach::directory(&spec.mountpoint)?;
    let server = server::Server::new(&spec);
    let tree = Arc::downgrade(server.tree());
    let kind = Kind::of(&spec);
    let served = Served::new(server, &kind, &mountpoint, spec.watcher.clone())?;
    if let (Some(tree), Some(notifier)) = (tree.upgrade(), served.notifier()) {
        let _ = tree.notifier.set(notifier);
    }
    if let Some(id) = served.id() {
        attach::allow_large_readahead(id);
    }
    Ok(MountHandle { dataset: spec.dataset.clone(), served, tree })
}

impl MountHandle {
    /// Name of the dataset.
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// Where it is mounted (without symbolic links).
    pub fn mountpoint(&self) -> &Path {
        self.served.mountpoint()
    }

    /// Whether it is still being served: not after someone else unmounted it.
    pub fn is_mounted(&self) -> bool {
        self.served.is_mounted()
    }

    /// Serves another file system inside this mount, without a mount of its own. `spec.mountpoint`
    /// is a path below this mountpoint as [`resolve`] gives it, and need not exist; `setuid`,
    /// `devices` and `watcher` do not matter.
    pub fn graft(&self, spec: &MountSpec) -> Result<Graft, MountError> {
        Graft::new(self, spec)
    }

    /// The `sync` property has changed.
    pub fn set_sync_policy(&self, policy: SyncPolicy) {
        if let Some(tree) = self.tree.upgrade() {
            tree.root.set_sync_policy(policy);
        }
    }

    /// The `snapdir` property has changed.
    pub fn set_snapdir(&self, snapdir: SnapDir) {
        if let Some(tree) = self.tree.upgrade() {
            tree.set_snapdir(&tree.root, snapdir);
        }
    }

    /// The file system has got ACLs or lost them: what the kernel knows of them counts no longer.
    pub fn acls_changed(&self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.acls_changed(&tree.root);
        }
    }

    /// Tells the kernel what it keeps to itself: whether the file system can be changed and what
    /// becomes of access times, which the file system knows, and the properties `setuid`, `devices`
    /// and `exec`. False: only mounting anew does, since this process is not root.
    /// [`MountError::Busy`]: files are open for writing, so the mount cannot become read-only.
    pub fn remount(&self, setuid: bool, devices: bool, exec: bool) -> Result<bool, MountError> {
        let Some(tree) = self.tree.upgrade() else { return Ok(false) };
        let fs = &tree.root.fs;
        let (writable, times) = (fs.is_writable(), attach::access_times(fs));
        let source = self.dataset.clone();
        self.served.remount(&Kind {
            source,
            subtype: "zfs",
            writable,
            setuid,
            devices,
            exec,
            times,
        })
    }

    /// A snapshot of this name is about to be destroyed: until [`MountHandle::snapshot_changed`] says that
    /// it was, or [`MountHandle::open_snapshot`] that it was not, nothing leads to it. False: it is in
    /// use, and has to stay, for what is read of it then may be of others.
    pub fn close_snapshot(&self, name: &str) -> bool {
        self.tree.upgrade().is_none_or(|tree| tree.close_snapshot(&tree.root, name))
    }

    /// A snapshot that was closed stays.
    pub fn open_snapshot(&self, name: &str) {
        if let Some(tree) = self.tree.upgrade() {
            tree.open_snapshot(&tree.root, name);
        }
    }

    /// A snapshot of this name was taken or destroyed, or has got or lost the name.
    pub fn snapshot_changed(&self, name: &str) {
        if let Some(tree) = self.tree.upgrade() {
            tree.snapshot_changed(&tree.root, name);
        }
    }

    /// Makes the kernel forget what it knows of the file system, grafts not included: for changes
    /// that do not come through the mount, such as a rollback. To be called before such a change,
    /// while the old names can be listed, and after it; not while requests are held up.
    pub fn invalidate(&self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.invalidate(&tree.root);
        }
    }

    /// Has the kernel write what was changed in mappings of files, grafts not included: for a file system
    /// that becomes read-only. What is changed in them later is written as well. But writes that are
    /// refused then go into the kernel's pages first, and are written with them if they were changed.
    pub fn write_mapped(&self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.write_mapped(|ino| tree::slot_of(ino) == tree.root.slot);
        }
    }

    /// Unmounts. Without force, [`MountError::Busy`] says that files in it are open or that there
    /// are grafts in it, and the mount stays; with force it goes away at once with its grafts, and
    /// whoever has files open in it gets errors.
    pub fn unmount(&mut self, force: Force) -> Result<(), MountError> {
        let tree = self.tree.upgrade();
        if force == Force::No && tree.as_ref().is_some_and(|t| t.has_grafts()) {
            return Err(MountError::Busy(self.mountpoint().to_owned()));
        }
        if let Some(tree) = tree.as_ref().filter(|_| force == Force::Yes) {
            tree.write_mapped(|_| true);
        }
        self.served.unmount(force)?;
        if let Some(tree) = tree {
            tree.remove_all();
        }
        Ok(())
    }
}
