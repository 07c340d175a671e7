//! Another state of a file system in the place of the one that is mounted and in use (`zfs_suspend_fs`,
//! `zfs_resume_fs`, `zfs_rezget`).
//!
//! # Idea
//!
//! A rollback or a receive gives a dataset other contents while programs have files of it open. The mount
//! stays, and what it serves is exchanged ([`Tree::exchange`]):
//!
//! 1. What the names in directories lead to is listed, of all that the kernel knows, while requests go on. Those that
//!    change a directory note it ([`Tree::changed_names`]).
//! 2. Requests that come wait for a lock ([`Tree::admit`], `z_teardown_lock`); those that are being served are
//!    ended first. It stops all file systems of the mount, so that little is done meanwhile: of each inode number it is noted
//!    which file it is, and directories that were changed or came to be known since are listed again. After the
//!    change all are listed as they are then.
//! 3. The caller makes the change, and opens the file system anew.
//! 4. A number keeps its file, and programs that have it open go on, if the object has the same generation as
//!    before and a name. Any other number is *stale*: reading and writing what is
//!    open gives `EIO`, and all else `ESTALE`, until the kernel is told the number again for another file.
//!    A program that appends does so at the new end, although the kernel sends the end of before.
//! 5. Requests go on. The kernel is made to forget attributes and contents, and the names that lead elsewhere.
//!
//! # Invariants
//!
//! - No thread has the old file system after the exchange, but one that does something to a single file in the
//!   background; what that would change is refused, as its object set is closed.
//! - The kernel is told nothing while requests wait ([`kernel`](crate::kernel)).
//! - Names that lead where they led stay in the kernel: what is mounted below them stays mounted.

use crate::branch::Branch;
use crate::kernel::Held;
use crate::session::{Forgetting, INodeNo};
use crate::tree::{Node, Tree, generation, slot_of};
use cenote_vdev::waiting;
use cenote_zpl::FileSystem;
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How often it is looked whether a pool is suspended.
const LOOK: Duration = Duration::from_millis(100);
/// Entries read from a directory at a time.
const BATCH: usize = 128;

/// What the names in directories lead to, by the directory's inode number: object numbers.
type Names = HashMap<u64, BTreeMap<Vec<u8>, u64>>;

/// Files by inode number: the generation, whether it has a name, and whether it is a directory.
type Files = HashMap<u64, (u64, bool, bool)>;

/// Directories that requests have changed while somebody lists directories.
#[derive(Default)]
pub(crate) struct Changing {
    /// How many list.
    listing: AtomicUsize,
    directories: Mutex<HashSet<u64>>,
}

/// While it lasts, directories that change are noted.
struct Listing<'a>(&'a Changing);

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let mut directories = self.0.directories.lock();
        if self.0.listing.fetch_sub(1, Ordering::SeqCst) == 1 {
            directories.clear();
        }
    }
}

impl Changing {
    fn listing(&self) -> Listing<'_> {
        self.listing.fetch_add(1, Ordering::SeqCst);
        Listing(self)
    }

    fn has(&self, dir: u64) -> bool {
        self.directories.lock().contains(&dir)
    }
}

/// What the names in a directory lead to, as far as it can be read.
fn names(fs: &FileSystem, dir: u64) -> BTreeMap<Vec<u8>, u64> {
    let (mut all, mut cookie) = (BTreeMap::new(), 0);
    while let Ok(batch) = fs.readdir(dir, cookie, BATCH)
        && let Some(last) = batch.last()
    {
        cookie = last.cookie;
        all.extend(batch.into_iter().map(|e| (e.name.to_vec(), e.ino)));
    }
    all
}

impl Tree {
    /// Lets a request be served (`zfs_enter`): until what is returned is dropped nothing is exchanged.
    pub(crate) fn admit(&self) -> RwLockReadGuard<'_, ()> {
        self.teardown.try_read().unwrap_or_else(|| {
            waiting::begins();
            self.teardown.read()
        })
    }

    /// Whether the file system of a branch has submounts.
    pub(crate) fn is_host(&self, branch: &Branch) -> bool {
        self.table().within(branch).1
    }

    /// Has `change` make the file system of a branch another one, and serves what it returns from then on.
    /// With `None` programs that use the branch get errors.
    ///
    /// `None`: nothing was done, as requests that are being served wait for a suspended pool.
    pub(crate) fn exchange<T>(
        &self,
        branch: &Arc<Branch>,
        change: impl FnOnce() -> (T, Option<Arc<FileSystem>>),
    ) -> Option<T> {
        let inside = |ino: u64| slot_of(ino) == branch.slot;
        let numbers = || {
            let mut numbers = self.inodes.known(inside);
            numbers.push(branch.root().ino());
            numbers
        };
        let listing = self.changing.listing();
        let earlier = numbers();
        let mut names = self.names(&self.files(&earlier));
        let closed = self.close_to_requests()?;
        let numbers = numbers();
        let before = self.files(&numbers);
        names.retain(|ino, _| !self.changing.has(*ino));
        let unlisted = before.iter().filter(|(ino, _)| !names.contains_key(ino));
        let unlisted: Files = unlisted.map(|(ino, file)| (*ino, *file)).collect();
        names.extend(self.names(&unlisted));
        drop(listing);
        // Files without names are the old file system's; what becomes of them there is decided.
        drop(self.inodes.take_orphans(inside));
        let (done, renewed) = change();
        let Some(fs) = renewed else {
            branch.set_gone();
            return Some(done);
        };
        branch.set_fs(fs);
        let after = self.files(&numbers);
        // What requests do to names from now on the kernel knows from their answers, so it is not to be listed.
        let now = self.names(&after);
        // What has lost its last name in the meantime may have it again; what has none is about to go.
        let stays = |ino: &u64| match (before.get(ino), after.get(ino)) {
            (Some((before, ..)), Some((after, named, _))) => before == after && *named,
            _ => false,
        };
        let stale: HashSet<u64> = numbers.iter().copied().filter(|ino| !stays(ino)).collect();
        self.inodes.set_stale(&stale);
        self.handles.renew(|handle| match &handle.node {
            Node::File { slot, object, .. } if *slot == branch.slot => {
                let lost = stale.contains(&handle.node.ino());
                Some(handle.moved(branch.file(*object), branch.fs(), lost))
            }
            _ => None,
        });
        drop(closed);
        // First what decides where a program writes: the kernel keeps sizes until it is told.
        let contents = numbers.iter().map(|ino| self.contents(*ino, 0, 0)).collect();
        let contents = self.forget(contents);
        let names = self.forget_changed(branch, &numbers, (&names, &now), &stale);
        Forgetting::wait_for([contents, names]);
        Some(done)
    }

    /// Lets no request be served until what is returned is dropped. `None`: one that is being served waits for a suspended
    /// pool, maybe for hours, and others would wait behind this.
    fn close_to_requests(&self) -> Option<Held<RwLockWriteGuard<'_, ()>>> {
        let is_suspended = || self.branches().iter().any(|branch| branch.fs().is_suspended());
        let close = || loop {
            if let Some(closed) = self.teardown.try_write_for(LOOK) {
                return Some(closed);
            }
            if is_suspended() {
                return None;
            }
        };
        Held::try_new(close)
    }

    /// The names in a directory change, or may have changed. To be called after that.
    pub(crate) fn changed_names(&self, dir: &Node) {
        if self.changing.listing.load(Ordering::SeqCst) > 0 {
            self.changing.directories.lock().insert(dir.ino());
        }
    }

    /// What inode numbers stand for at the moment.
    fn files(&self, numbers: &[u64]) -> Files {
        let file = |ino: &u64| {
            let Ok(Node::File { fs, object, .. }) = self.node(INodeNo(*ino)) else { return None };
            let attr = fs.attr(object).ok()?;
            Some((*ino, (generation(&attr), attr.nlink > 0, attr.is_dir())))
        };
        numbers.iter().filter_map(file).collect()
    }

    /// What the names in those of the files that are directories lead to.
    fn names(&self, files: &Files) -> Names {
        let directories = files.iter().filter(|(_, (_, _, is_dir))| *is_dir);
        let listed = |ino: &u64| match self.node(INodeNo(*ino)) {
            Ok(Node::File { fs, object, .. }) => Some((*ino, names(&fs, object))),
            _ => None,
        };
        directories.filter_map(|(ino, _)| listed(ino)).collect()
    }

    /// Makes the kernel forget names that lead elsewhere now.
    fn forget_changed(
        &self,
        branch: &Arc<Branch>,
        numbers: &[u64],
        (before, after): (&Names, &Names),
        stale: &HashSet<u64>,
    ) -> Forgetting {
        let mut names = Vec::new();
        let none = BTreeMap::new();
        let leads = |object: &u64| crate::tree::ino(&branch.fs(), branch.slot, *object);
        for ino in numbers {
            let old = before.get(ino).unwrap_or(&none);
            let new = after.get(ino).unwrap_or(&none);
            let stays = |name: &Vec<u8>, to: &u64| {
                old.get(name) == Some(to)
                    && new.get(name) == Some(to)
                    && !stale.contains(&leads(to))
            };
            let changed = |(name, to): &(&Vec<u8>, &u64)| !stays(name, to);
            let gone: HashSet<&Vec<u8>> =
                old.iter().chain(new).filter(changed).map(|(name, _)| name).collect();
            names.extend(gone.into_iter().map(|name| self.name(*ino, name)));
        }
        self.forget(names)
    }
}
