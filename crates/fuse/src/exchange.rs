//! Another state of a file system in the place of the one that is mounted and in use (`zfs_suspend_fs`,
//! `zfs_resume_fs`, `zfs_rezget`).
//!
//! # Idea
//!
//! A rollback or a receive gives a dataset other contents while programs have files of it open. The mount
//! stays, and what it serves is exchanged ([`Tree::exchange`]):
//!
//! 1. Requests that come wait for a lock ([`Tree::admit`], `z_teardown_lock`); those that are being served are
//!    ended first.
//! 2. What the kernel knows is noted: of each inode number which file it is, of each directory what its
//!    names lead to.
//! 3. The caller makes the change, and opens the file system anew.
//! 4. A number keeps its file, and programs that have it open go on, if the object has the same generation as
//!    before and a name. Any other number is *stale*: reading and writing what is
//!    open gives `EIO`, and all else `ESTALE`, until the kernel is told the number again for another file.
//! 5. Requests go on. The kernel is made to forget attributes, contents, and the names that lead
//!    elsewhere now.
//!
//! # Invariants
//!
//! - Nobody has the old file system after the exchange but who does something to a single file in the
//!   background; what that would change is refused, as its object set is closed.
//! - The kernel is told nothing while requests wait ([`kernel`](crate::kernel)).
//! - Names that lead where they led stay in the kernel: what is mounted below them stays mounted.

use crate::branch::Branch;
use crate::kernel::Held;
use crate::session::{Forgetting, INodeNo};
use crate::tree::{Node, Tree, generation, slot_of};
use cenote_vdev::waiting;
use cenote_zpl::FileSystem;
use parking_lot::RwLockReadGuard;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Entries read from a directory at a time.
const BATCH: usize = 128;

/// What the kernel may know of a file system, by inode number.
struct Known {
    /// Which file it is, and whether it has a name.
    files: HashMap<u64, (u64, bool)>,
    /// What the names in directories lead to, by object number.
    names: HashMap<u64, BTreeMap<Vec<u8>, u64>>,
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
    pub(crate) fn exchange<T>(
        &self,
        branch: &Arc<Branch>,
        change: impl FnOnce() -> (T, Option<Arc<FileSystem>>),
    ) -> T {
        let closed = Held::new(|| self.teardown.write());
        let inside = |ino: u64| slot_of(ino) == branch.slot;
        let mut numbers = self.inodes.known(inside);
        numbers.push(branch.root().ino());
        let before = self.known(numbers.iter().copied());
        // Files without names are the old file system's; what becomes of them there is decided.
        drop(self.inodes.take_orphans(inside));
        let (done, renewed) = change();
        let Some(fs) = renewed else {
            branch.set_gone();
            return done;
        };
        branch.set_fs(fs);
        let after = self.known(numbers.iter().copied());
        // What has lost its last name in the meantime may have it again; what has none is about to go.
        let stays = |ino: &u64| match (before.files.get(ino), after.files.get(ino)) {
            (Some((before, _)), Some((after, named))) => before == after && *named,
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
        self.forget_changed(branch, &numbers, (&before, &after), &stale);
        done
    }

    /// What inode numbers stand for at the moment.
    fn known(&self, numbers: impl Iterator<Item = u64>) -> Known {
        let mut known = Known { files: HashMap::new(), names: HashMap::new() };
        for ino in numbers {
            let Ok(Node::File { fs, object, .. }) = self.node(INodeNo(ino)) else { continue };
            let Ok(attr) = fs.attr(object) else { continue };
            if attr.is_dir() {
                known.names.insert(ino, names(&fs, object));
            }
            known.files.insert(ino, (generation(&attr), attr.nlink > 0));
        }
        known
    }

    /// Makes the kernel forget what is different now.
    fn forget_changed(
        &self,
        branch: &Arc<Branch>,
        numbers: &[u64],
        (before, after): (&Known, &Known),
        stale: &HashSet<u64>,
    ) {
        let (mut names, mut contents) = (Vec::new(), Vec::new());
        let none = BTreeMap::new();
        let leads = |object: &u64| crate::tree::ino(&branch.fs(), branch.slot, *object);
        for ino in numbers {
            let old = before.names.get(ino).unwrap_or(&none);
            let new = after.names.get(ino).unwrap_or(&none);
            let stays = |name: &Vec<u8>, to: &u64| {
                old.get(name) == Some(to)
                    && new.get(name) == Some(to)
                    && !stale.contains(&leads(to))
            };
            let changed = |(name, to): &(&Vec<u8>, &u64)| !stays(name, to);
            let gone: HashSet<&Vec<u8>> =
                old.iter().chain(new).filter(changed).map(|(name, _)| name).collect();
            names.extend(gone.into_iter().map(|name| self.name(*ino, name)));
            contents.push(self.contents(*ino, 0, 0));
        }
        Forgetting::wait_for([self.forget(names), self.forget(contents)]);
    }
}
