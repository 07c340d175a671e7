//! File systems as Linux programs see them: FUSE mounts.
//!
//! [`mount`] attaches one file system at a directory and serves it from several threads until it is
//! unmounted. A mount can be written to if its file system can (a live one that is not `readonly`);
//! snapshots in it cannot. As root the kernel's `mount` is called directly; other users go through
//! the set-user-id helper `fusermount3`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`agent`] | processes that do what must be done at paths |
//! | `attach` | getting a mounted `/dev/fuse` |
//! | `connection` | which connection, also once the kernel has given its number to another |
//! | `place` | where a mount goes, and where it must not |
//! | `privilege` | what this process may do about mounts |
//! | `descriptors` | descriptors that are left for others |
//! | `detach` | taking mounts away, ending connections |
//! | `error` | why mounting failed |
//! | `mountinfo` | what the kernel says is mounted |
//! | `served` | a connection, its mounts and the threads that serve it |
//! | [`watcher`] | a process that takes mounts away when the one that serves them dies |
//! | `session` | the protocol: requests in, answers out |
//! | `server` | answering the kernel's requests |
//! | `syncer` | waiting until changes are on disk |
//! | `inodes` | what the kernel knows, and files without names |
//! | `caller` | groups and capabilities of the process that sent a request |
//! | `flags` | file flags and project ids |
//! | `rewrite` | having files written anew as they are |
//! | `tree`, `node` | inode numbers and what they stand for, attributes |
//! | `control` | what `.zfs` shows of the pool |
//! | `branch`, `submount` | the file systems of a mount; those that are served inside another one's mount |
//! | `slots` | which number leads to which submount or snapshot |
//! | `invalidate` | what the kernel is to forget |
//! | [`kernel`] | the rule for threads that wait for the kernel |
//! | `exchange`, `changing`, `fate` | other contents of a file system in use |
//! | `users` | which processes use a mount |
//! | `snapshot`, `closing` | snapshots in `.zfs/snapshot`, and those that are about to go |
//! | [`pseudo`] | a mount of small files that are made up when they are read |
//!
//! # Inode numbers
//!
//! The kernel's node numbers are the inode numbers that `stat` shows. In the file system itself they
//! are object numbers, as under OpenZFS. Snapshots and submounts are part of the same mount, so their
//! files have the number of the snapshot or submount (in order of first use) in the upper 16 bits. The control
//! directories have the numbers that OpenZFS gives them.
//!
//! # Caching
//!
//! Whatever changes below a mount changes through it, so the kernel may keep names (also that one does
//! not exist), attributes, directory listings, link targets and file contents as long as it likes: it
//! knows itself what its requests change, and every answer carries the new attributes. What changes
//! without a request (submounts that come and go, other contents after a rollback, bits that a write takes
//! away, access times of files that the kernel has in memory) it is told. Two things it may keep for a moment only: how
//! much space a file takes is not known before it is on disk, and in a file system in which a name can be written in
//! several ways a change under one of them is a change under all.
//!
//! Writes go through at once, in pieces of up to 1 MiB; the kernel keeps the pages to read from, but
//! not of new files that are opened for writing only (`server::direct`). It could collect
//! writes (`FUSE_WRITEBACK_CACHE`), but then what `write` promises under OpenZFS would not hold: that
//! a full pool or a quota is reported by the `write` that meets it, that a snapshot has all that was
//! written before it, that under `sync=always` it is on disk, and that only the end of an append-only
//! file is written. It also costs small files two more requests each.

pub mod agent;
mod attach;
mod branch;
mod caller;
mod changing;
mod closing;
mod connection;
mod control;
mod descriptors;
mod detach;
mod error;
mod exchange;
mod fate;
mod flags;
mod inodes;
mod invalidate;
pub mod kernel;
mod mountinfo;
mod node;
mod place;
mod privilege;
mod project;
pub mod pseudo;
mod rewrite;
mod served;
mod server;
mod session;
mod slots;
mod snapshot;
mod submount;
mod syncer;
mod tree;
mod users;
pub mod watcher;

pub use agent::{Agent, Helper, Local, Remote};
pub use control::{Requester, SnapDir, SnapshotChange, SnapshotEntry, Snapshots};
pub use detach::Force;
pub use error::MountError;
pub use exchange::Renewed;
pub use mountinfo::{generation, namespace};
pub use privilege::{allows_other_users, can_nest, is_missing};
pub use project::{Project, project, set_project};
pub use rewrite::{RewriteRange, file_system_of, is_control_directory, rewrite};
pub use rustix::mount::MountFlags;
pub use session::{Forgetting, is_request};
pub use submount::Submount;
pub use syncer::{SyncHook, SyncPolicy};
pub use users::User;
pub use watcher::Watcher;

use attach::Allowed;
use cenote_zpl::FileSystem;
use served::Served;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tree::Tree;

/// What to mount, where and how.
pub struct MountSpec {
    /// Name of the dataset: the mount's source (`SOURCE` of `findmnt`).
    pub dataset: String,
    /// The directory.
    pub mountpoint: PathBuf,
    /// The directory that the path must not lead out of; `/`: it may lead anywhere.
    pub root: PathBuf,
    /// Whether directories that are missing there are made.
    pub make: bool,
    /// Whether the directory need not be empty.
    pub overlay: bool,
    /// The file system. If it [can be changed](FileSystem::is_writable) so can the mount, and its
    /// submounts; [`MountHandle::remount`] tells the kernel when that is another. Its unlinked
    /// set should have been [drained](FileSystem::drain_unlinked) before it can be changed.
    pub fs: Arc<FileSystem>,
    /// Its snapshots, for `.zfs/snapshot`; `None` if the file system is a snapshot itself.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// The `snapdir` property.
    pub snapdir: SnapDir,
    /// Figures for `statfs`, as they are when it is called.
    pub space: SpaceHook,
    /// Waits until all changes so far are on disk. Called for `fsync` and the like, by the thread of a request that has let go of
    /// it, or by another one, once for several that wait.
    pub sync: SyncHook,
    /// The `sync` property.
    pub sync_policy: SyncPolicy,
    /// The `setuid` property: honour set-user-id bits. Only root gets this.
    pub setuid: bool,
    /// The `devices` property: device nodes work. Only root gets this.
    pub devices: bool,
    /// The `exec` property: programs can be run.
    pub exec: bool,
    /// Further flags of mount(2), which the kernel goes by itself.
    pub flags: MountFlags,
    /// Takes the mount away if this process dies.
    pub watcher: Option<Arc<Watcher>>,
    /// Does what has to be done at paths in this process's mount namespace.
    pub agent: Arc<dyn Agent>,
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
    /// Directories that were made for the mountpoint it was mounted at first, outermost first.
    made: Vec<PathBuf>,
    /// What is served, while it is.
    tree: Weak<Tree>,
}

/// Mounts a file system. Returns when it can be used; requests are answered by threads of this
/// process.
///
/// # Errors
/// See [`MountError`].
pub fn mount(spec: MountSpec) -> Result<MountHandle, MountError> {
    let agent = spec.agent.clone();
    mount_by(spec, &*agent)
}

/// As [`mount`]: `by` mounts, in its mount namespace.
///
/// # Errors
/// See [`MountError`].
pub fn mount_by(spec: MountSpec, by: &dyn Agent) -> Result<MountHandle, MountError> {
    let request = served::request_of(&spec);
    let server = server::Server::new(&spec);
    let tree = Arc::downgrade(server.tree());
    let MountSpec { watcher, agent, dataset, .. } = spec;
    let (served, made) = Served::new(server, request, watcher, by, agent)?;
    if let (Some(tree), Some(notifier)) = (tree.upgrade(), served.notifier()) {
        let _ = tree.notifier.set(notifier);
    }
    detach::allow_large_readahead(served.id());
    Ok(MountHandle { dataset, served, made, tree })
}

/// A process that uses each of these mounts, by [`MountHandle::id`], as far as processes can be looked at: it has
/// something of it open, works there, or has mapped a file. One that was opened is told although the process is not
/// known.
pub fn users<'a>(
    mounts: impl IntoIterator<Item = &'a MountHandle>,
) -> BTreeMap<String, Option<User>> {
    let all: Vec<&MountHandle> = mounts.into_iter().collect();
    fn device(m: &MountHandle) -> &str {
        mountinfo::device(m.served.id())
    }
    let mut known = users::of(&all.iter().map(|m| device(m)).collect());
    let unknown = |m: &&&MountHandle| m.has_users() && !known.contains_key(device(m));
    let unknown: HashSet<&str> = all.iter().filter(unknown).map(|m| device(m)).collect();
    if !unknown.is_empty() {
        let mapping = users::mapping(&unknown);
        known.extend(mapping);
    }
    let of = |m: &&MountHandle| {
        let user = known.get(device(m)).cloned();
        (user.is_some() || m.has_users()).then(|| (m.served.id().to_owned(), user))
    };
    all.iter().filter_map(of).collect()
}

/// A process that has something below a path open, or works there; `None`: none that sees the path where this process does.
pub fn user_below(path: &Path) -> Option<User> {
    users::below(path)
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

    /// What identifies the connection in lists of mounts: `MAJOR:MINOR TYPE`.
    pub fn id(&self) -> &str {
        self.served.id()
    }

    /// Where it was mounted in a mount namespace by this process.
    pub fn places_in(&self, namespace: u64) -> Vec<PathBuf> {
        self.served.places_in(namespace)
    }

    /// Directories that were made for the mountpoint that it was mounted at first, outermost first.
    pub fn made(&self) -> &[PathBuf] {
        &self.made
    }

    /// Whether it is mounted: not after someone else unmounted it.
    pub fn is_mounted(&self) -> bool {
        self.served.is_mounted()
    }

    /// Whether it was mounted when [`MountHandle::revise`] looked last. It does not look at the kernel's
    /// table of mounts.
    pub fn is_placed(&self) -> bool {
        self.served.is_placed()
    }

    /// Whether it is unused: it is mounted nowhere and no file in it is open.
    pub fn is_finished(&self) -> bool {
        self.served.is_finished()
    }

    /// Whether files in it are open, as far as the kernel has told.
    pub fn has_users(&self) -> bool {
        self.tree.upgrade().is_some_and(|tree| tree.root.has_users())
    }

    /// Takes note of what others have mounted and unmounted.
    pub fn revise(&mut self) {
        self.served.revise(&mountinfo::current());
    }

    /// Has `by` mount the same file system in a further place, or again after it was unmounted while files
    /// in it stayed open. Of `spec` the place and what the kernel goes by itself matter.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn mount_again(&mut self, spec: &MountSpec, by: &dyn Agent) -> Result<(), MountError> {
        let mounted = self.served.mount_again(served::request_of(spec), by)?;
        self.made = mounted.made;
        Ok(())
    }

    /// Serves another file system inside this mount, without a mount of its own. `spec.mountpoint`
    /// is a path below this mountpoint without symbolic links, and need not exist; `setuid`,
    /// `devices` and `watcher` do not matter.
    pub fn add_submount(&self, spec: &MountSpec) -> Result<Submount, MountError> {
        Submount::new(self, spec)
    }

    /// The `sync` property has changed.
    pub fn set_sync_policy(&self, policy: SyncPolicy) {
        if let Some(tree) = self.tree.upgrade() {
            tree.root.set_sync_policy(policy);
        }
    }

    /// The `snapdir` property has changed.
    pub fn set_snapdir(&self, snapdir: SnapDir) -> Forgetting {
        let set = |tree: Arc<Tree>| tree.set_snapdir(&tree.root, snapdir);
        self.tree.upgrade().map(set).unwrap_or_default()
    }

    /// The file system has got ACLs or lost them: what the kernel knows of them counts no longer.
    pub fn acls_changed(&self) -> Forgetting {
        let changed = |tree: Arc<Tree>| tree.acls_changed(&tree.root);
        self.tree.upgrade().map(changed).unwrap_or_default()
    }

    /// Tells the kernel what it keeps to itself: whether the file system can be changed and what
    /// becomes of access times, which the file system knows, the properties `setuid`, `devices`
    /// and `exec`, and further flags. False: only mounting anew does, since this process is not root.
    ///
    /// # Errors
    /// [`MountError::Busy`]: files are open for writing, so the mount cannot become read-only.
    pub fn remount(
        &self,
        setuid: bool,
        devices: bool,
        exec: bool,
        flags: MountFlags,
    ) -> Result<bool, MountError> {
        let Some(tree) = self.tree.upgrade() else { return Ok(false) };
        let fs = tree.root.fs();
        let (writable, times) = (fs.is_writable(), attach::access_times(&fs));
        let allowed = Allowed { writable, setuid, devices, exec };
        self.served.remount(allowed.flags(times | flags))
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
    pub fn snapshot_changed(&self, name: &str) -> Forgetting {
        let changed = |tree: Arc<Tree>| tree.snapshot_changed(&tree.root, name);
        self.tree.upgrade().map(changed).unwrap_or_default()
    }

    /// Whether the file system that is mounted has submounts: then it cannot be
    /// [exchanged](MountHandle::exchange).
    pub fn has_submounts(&self) -> bool {
        self.tree.upgrade().is_some_and(|tree| tree.is_host(&tree.root))
    }

    /// Has `change` give the file system other contents while it is in use. `coming` has these contents already, opened to be read:
    /// what they change for the kernel is found out while requests go on, as long as that takes. Then requests wait until
    /// `change` is done. What it returns is served from then on; open files that are in it as well go on, others give
    /// errors. Without `coming` the kernel forgets all names.
    ///
    /// `None`: nothing was done, as requests wait for a pool that is suspended.
    pub fn exchange<T>(
        &self,
        coming: Option<Arc<FileSystem>>,
        change: impl FnOnce() -> (T, Renewed),
    ) -> Option<T> {
        match self.tree.upgrade() {
            Some(tree) => tree.exchange(&tree.root, coming, change),
            None => Some(change().0),
        }
    }

    /// Has the kernel write what was changed in mappings of files, submounts not included: for a file system
    /// that becomes read-only. What is changed in them later is written as well. But writes that are
    /// refused then go into the kernel's pages first, and are written with them if they were changed.
    pub fn write_mapped(&self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.write_mapped(|ino| node::slot_of(ino) == tree.root.slot);
        }
    }

    /// Has the kernel forget what it keeps of files, submounts included, so that they are read anew.
    pub fn forget_pages(&self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.forget_pages(|_| true);
        }
    }

    /// Unmounts in this process's mount namespace, and waits a moment until the kernel has let go.
    ///
    /// # Errors
    /// As of [`MountHandle::detach`].
    pub fn unmount(&mut self, force: Force) -> Result<(), MountError> {
        self.prepare(force)?;
        self.served.unmount(force)?;
        self.remove_tree();
        Ok(())
    }

    /// Has `by` unmount it in its mount namespace: at `at`, or everywhere that this process has mounted it.
    /// By force processes with open files get errors, and its submounts go. Whether the kernel has let go of
    /// it is another matter: see [`MountHandle::wait`].
    ///
    /// # Errors
    /// Without force: [`MountError::Busy`] where files in it are open or there are submounts in it; then it stays.
    pub fn detach(
        &mut self,
        force: Force,
        at: Option<&Path>,
        by: &dyn Agent,
    ) -> Result<(), MountError> {
        self.prepare(force)?;
        self.served.detach(force, at, by)
    }

    /// As [`MountHandle::detach`], in this process's mount namespace as well, and no place of it counts any more.
    ///
    /// # Errors
    /// As of [`MountHandle::detach`].
    pub fn give_up(&mut self, force: Force, by: &dyn Agent) -> Result<(), MountError> {
        self.prepare(force)?;
        self.served.give_up(force, by)
    }

    /// Ends the connection of an unused mount, with all its mounts in the namespace of `by` and in this one; copies
    /// in others are dead then.
    pub fn end(&mut self, by: &dyn Agent) {
        self.served.end(by);
    }

    /// Ends the connection, wherever it is mounted: its users get errors.
    pub fn abort(&self) {
        self.served.abort();
    }

    /// Waits until the kernel has let go of it, no longer than `deadline`. False: it is mounted elsewhere
    /// or files in it are open.
    pub fn wait(&mut self, deadline: Instant) -> bool {
        let finished = self.served.wait(deadline);
        if finished {
            self.remove_tree();
        }
        finished
    }

    fn prepare(&self, force: Force) -> Result<(), MountError> {
        let Some(tree) = self.tree.upgrade() else { return Ok(()) };
        match force {
            Force::No if tree.has_submounts() => {
                Err(MountError::Busy(self.mountpoint().to_owned()))
            }
            Force::No => Ok(()),
            Force::Yes => {
                tree.write_mapped(|_| true);
                Ok(())
            }
        }
    }

    fn remove_tree(&self) {
        if let Some(tree) = self.tree.upgrade() {
            tree.remove_all();
        }
    }
}
