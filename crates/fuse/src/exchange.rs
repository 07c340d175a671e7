//! Another state of a file system in the place of the one that is mounted and in use (`zfs_suspend_fs`,
//! `zfs_resume_fs`, `zfs_rezget`).
//!
//! # Idea
//!
//! A rollback or a receive gives a dataset other contents while programs have files of it open. The mount
//! stays, and what it serves is exchanged ([`Tree::exchange`]):
//!
//! 1. Requests go on while what is coming is compared with what is there ([`Tree::foresee`]). The caller hands the coming
//!    contents in, opened: they do not change any more. What the names in directories lead to is listed in both, of all
//!    directories that the kernel knows, and each inode number is looked up. From now on the kernel
//!    keeps no name that it is told ([`Tree::name_kept`]), and names that requests change are noted
//!    ([`Tree::changed_name`]).
//! 2. Requests that come wait for a lock ([`Tree::admit`], `z_teardown_lock`); those that are being served are
//!    ended first. The lock stops all file systems of the mount, and no directory and no file is read with it.
//! 3. The caller makes the change, and opens the file system anew.
//! 4. A number keeps its file, and programs that have it open go on, if the object has the same generation as
//!    before and a name. Any other number is *stale*: reading and writing what is
//!    open gives `EIO`, and all else `ESTALE`, until the kernel is told the number again for another file. A number that
//!    the kernel came to know last, or that could not be read, is *in doubt*: the next request
//!    that names it finds out ([`Tree::settle`]).
//!    A program that appends does so at the new end, although the kernel sends the end of before.
//! 5. Requests go on. The kernel is made to forget attributes and contents, and the names that lead elsewhere or were noted.
//!
//! Where the coming contents could not be opened, all numbers are in doubt and all names are forgotten.
//!
//! # Invariants
//!
//! - No thread has the old file system after the exchange, but one that does something to a single file in the
//!   background; what that would change is refused, as its object set is closed.
//! - The kernel is told nothing while requests wait ([`kernel`](crate::kernel)).
//! - Names that lead where they led stay in the kernel: what is mounted below them stays mounted. A name stays only if both
//!   listings are whole and agree about it.
//! - A number stands for the file that the kernel was told it for, or for no file: its generation is kept from the moment at which the
//!   kernel was told ([`inodes`](crate::inodes)), and compared before the number is used again.

use crate::branch::Branch;
use crate::changing::Names;
use crate::fate::{Fate, is_absent};
use crate::inodes::Standing;
use crate::kernel::Held;
use crate::node::{self, Node, object_of, slot_of};
use crate::session::{Forgetting, Notice};
use crate::tree::Tree;
use cenote_vdev::waiting;
use cenote_zpl::FileSystem;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether a pool is suspended.
const LOOK: Duration = Duration::from_millis(100);
/// Entries read from a directory at a time.
const BATCH: usize = 128;
/// How often it is looked for numbers that the kernel has come to know meanwhile.
const ROUNDS: usize = 4;

/// What a mount serves after [`MountHandle::exchange`](crate::MountHandle::exchange).
pub enum Renewed {
    /// The contents that were announced.
    Other(Arc<FileSystem>),
    /// What was there before: the change was not made.
    Same(Arc<FileSystem>),
    /// Nothing. Programs that use it get errors.
    Nothing,
}

/// What the names in a directory lead to: inode numbers.
#[derive(Default)]
struct Entries {
    all: BTreeMap<Vec<u8>, u64>,
    /// All of it could be read.
    whole: bool,
}

impl Entries {
    /// Those of a directory, as far as it can be read.
    fn of(fs: &FileSystem, slot: u16, dir: u64) -> Entries {
        let (mut entries, mut cookie) = (Entries::default(), 0);
        while let Ok(batch) = fs.readdir(dir, cookie, BATCH) {
            let Some(last) = batch.last() else {
                entries.whole = true;
                break;
            };
            cookie = last.cookie;
            let found = batch.into_iter().map(|e| (e.name.to_vec(), node::ino(fs, slot, e.ino)));
            entries.all.extend(found);
        }
        entries
    }

    /// Whether a name leads to the same in both, or to nothing, and that is known.
    fn agree(&self, other: &Entries, name: &[u8]) -> bool {
        self.whole && other.whole && self.all.get(name) == other.all.get(name)
    }
}

/// What is known before an exchange.
struct Foreseen {
    /// The inode number of the root directory, which the kernel always knows.
    root: u64,
    /// Directories as they are, and as they come.
    directories: HashMap<u64, (Entries, Entries)>,
    /// Numbers as they come, as far as they could be looked up.
    files: HashMap<u64, Option<Fate>>,
}

impl Foreseen {
    /// What becomes of a number that the kernel was told for a file of a generation.
    fn standing(&self, ino: u64, told: u64) -> Standing {
        match self.files.get(&ino).copied().flatten() {
            Some(Fate::Named(generation)) if generation == told => Standing::Sure,
            Some(_) => Standing::Stale,
            None => Standing::Doubtful,
        }
    }
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

    /// Has `change` make the file system of a branch another one, and serves what it returns from then on. `coming` has the
    /// contents that it makes, and is dropped before.
    ///
    /// `None`: nothing was done, as requests that are being served wait for a suspended pool.
    pub(crate) fn exchange<T>(
        &self,
        branch: &Arc<Branch>,
        coming: Option<Arc<FileSystem>>,
        change: impl FnOnce() -> (T, Renewed),
    ) -> Option<T> {
        let inside = |ino: u64| slot_of(ino) == branch.slot;
        let listing = self.changing.listing();
        let foreseen = self.foresee(branch, coming.as_deref());
        drop(coming);
        let closed = self.close_to_requests()?;
        let noted = self.changing.noted(inside);
        drop(listing);
        // Files without names are the old file system's; what becomes of them there is decided.
        let (before, orphans) = (branch.fs(), self.inodes.take_orphans(inside));
        let (done, renewed) = change();
        let (fs, is_other) = match renewed {
            Renewed::Other(fs) => (fs, true),
            Renewed::Same(fs) => (fs, false),
            Renewed::Nothing => {
                branch.set_gone();
                return Some(done);
            }
        };
        if !is_other && Arc::ptr_eq(&fs, &before) {
            let number = |object| node::ino(&fs, branch.slot, object);
            orphans.into_iter().for_each(|orphan| self.inodes.put_back(number(orphan.1), orphan));
            return Some(done);
        }
        drop(orphans);
        branch.set_fs(fs);
        let numbers = self.inodes.judge(inside, |ino, told| match is_other {
            true => foreseen.standing(ino, told),
            false => Standing::Doubtful,
        });
        self.handles.renew(|handle| match &handle.node {
            Node::File { slot, object, .. } if *slot == branch.slot => {
                let standing = self.inodes.standing(handle.node.ino());
                Some(handle.moved(branch.file(*object), branch.fs(), standing))
            }
            _ => None,
        });
        drop(closed);
        // First what decides where a program writes: the kernel keeps sizes until it is told.
        let all = numbers.iter().copied().chain([branch.root().ino()]);
        let contents = self.forget(all.map(|ino| self.contents(ino, 0, 0)).collect());
        let names = match is_other {
            true => self.forget_changed(branch, &foreseen, noted),
            false => Default::default(),
        };
        Forgetting::wait_for(names.into_iter().chain([contents]));
        Some(done)
    }

    /// Compares what is there with what is coming, as far as that can be read. Requests go on meanwhile.
    fn foresee(&self, branch: &Arc<Branch>, coming: Option<&FileSystem>) -> Foreseen {
        let (fs, slot, root) = (branch.fs(), branch.slot, branch.root().ino());
        let known = || {
            let mut known = self.inodes.known(|ino| slot_of(ino) == slot);
            known.push(root);
            known
        };
        let object =
            |fs: &FileSystem, ino| if ino == root { fs.root() } else { object_of(fs, ino) };
        let (mut directories, mut files) = (HashMap::new(), HashMap::new());
        for ino in known() {
            let here = object(&fs, ino);
            let is_directory = match fs.attr(here) {
                Ok(attr) => attr.is_dir(),
                // It may be one.
                Err(e) => !is_absent(&e),
            };
            if is_directory {
                let there = coming.map(|coming| Entries::of(coming, slot, object(coming, ino)));
                directories.insert(ino, (Entries::of(&fs, slot, here), there.unwrap_or_default()));
            }
        }
        let Some(coming) = coming else { return Foreseen { root, directories, files } };
        for _ in 0..ROUNDS {
            let new: Vec<u64> =
                known().into_iter().filter(|ino| !files.contains_key(ino)).collect();
            if new.is_empty() {
                break;
            }
            files.extend(
                new.into_iter().map(|ino| (ino, Fate::of(coming, object(coming, ino)).ok())),
            );
        }
        Foreseen { root, directories, files }
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

    /// A name in a directory changes, or may have changed. To be called after that.
    pub(crate) fn changed_name(&self, dir: &Node, name: &[u8]) {
        if self.changing.goes_on() {
            self.changing.note(dir.ino(), name);
        }
    }

    /// How long the kernel may keep what a name leads to, or that it leads to nothing, where it may for `longest`.
    pub(crate) fn name_kept(&self, longest: Duration) -> Duration {
        if self.changing.goes_on() { Duration::ZERO } else { longest }
    }

    /// Makes the kernel forget names that lead elsewhere now, or may.
    fn forget_changed(
        &self,
        branch: &Arc<Branch>,
        foreseen: &Foreseen,
        noted: Names,
    ) -> [Forgetting; 2] {
        let mut gone = noted;
        let is_whole = |ino| foreseen.directories.get(ino).is_none_or(|(old, _)| old.whole);
        for (dir, (old, new)) in &foreseen.directories {
            let stays = |name: &[u8]| {
                let leads = old.all.get(name);
                old.agree(new, name)
                    && leads.is_none_or(|to| is_whole(to) && !self.inodes.is_stale(*to))
            };
            let names = old.all.keys().chain(new.all.keys()).filter(|name| !stays(name));
            gone.entry(*dir).or_default().extend(names.cloned());
        }
        let kernels = |dir: u64| if dir == foreseen.root { branch.root().ino() } else { dir };
        let notices = |gone: Names| -> Vec<Notice> {
            let of = |(dir, names): (u64, BTreeSet<Vec<u8>>)| {
                names.into_iter().map(move |name| self.name(kernels(dir), &name))
            };
            gone.into_iter().flat_map(of).collect()
        };
        let forgetting = self.forget(notices(gone));
        // The kernel may know of names that there is nothing, which there is now.
        let unread = foreseen.directories.iter().filter(|(_, (_, new))| !new.whole);
        let now = |(dir, (old, _)): (&u64, &(Entries, Entries))| {
            let fs = branch.fs();
            let object = if *dir == foreseen.root { fs.root() } else { object_of(&fs, *dir) };
            let new = Entries::of(&fs, branch.slot, object).all.into_keys();
            (*dir, new.filter(|name| !old.all.contains_key(name)).collect())
        };
        let late: Names = unread.map(now).collect();
        [forgetting, self.forget(notices(late))]
    }
}
