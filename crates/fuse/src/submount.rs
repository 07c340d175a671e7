//! Submounts: file systems that are served inside another one's mount, without a mount of their own. (The
//! kernel has submounts of its own, `FUSE_ATTR_SUBMOUNT`, for `virtiofs` only.)
//!
//! An ordinary user can mount at a directory of theirs, but not inside that mount: the directories in
//! it belong to whom the pool says, and nothing in it can be written, so `fusermount3` refuses. A
//! file system that belongs there becomes a submount instead. The mount's tree then has several *branches*:
//! the file system that is mounted, in slot 0, and one for each submount.
//!
//! ```text
//!   mount ─ slot 0: tank        covers: tank's inode of `home`  → branch in slot 1
//!             home/   ────────▶ slot 1: tank/home
//!             var/              added:  tank's inode of `var`   → `lib`, a made directory, slot 2
//!               lib/  ────────▶ slot 2  added:  slot 2's inode  → `db`, branch in slot 3
//!                 db/ ────────▶ slot 3: tank/db
//! ```
//!
//! Where the mountpoint is a directory of the tree, the submount *covers* it: a name or a
//! listing that leads to the directory leads to the root directory of the submount. Where it is
//! missing, an entry is *added* to the directory around it; the tree makes directories on the way
//! there, if they are missing too.
//!
//! The kernel keeps what it was told about names and directories. So after each change it is told to
//! forget the changed entry and the listing around it.
//!
//! Invariants:
//! - What is covered, and the directory that an entry is added to, is older (has a smaller slot)
//!   than what covers it or is added. So following covers ends.
//! - A branch that is gone has nothing in the table, neither have its snapshots or what was in it.
//!
//! A submount is part of its mount in the kernel's eyes: `nosuid` and `nodev` hold anyway for ordinary
//! users, and a mount that allows no programs to be run does not allow them in its submounts.

mod handle;

pub use handle::Submount;

use crate::branch::{Branch, Made, Place};
use crate::node::{Node, slot_of};
use crate::slots::{MAX_SLOTS, Slot, Table};
use crate::tree::Tree;
use crate::{Force, MountSpec};
use cenote_zpl::{Clock, Error};
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

/// How late the kernel may tell of a file or directory that was closed.
pub(crate) const LATE_CLOSE: Duration = Duration::from_millis(200);

/// Where a path in the tree ends: the last directory that is there, and names that are missing.
struct Walk<'a> {
    /// The directory around `end`.
    dir: Node,
    end: Node,
    /// Name of `end` in `dir`.
    name: Vec<u8>,
    missing: Vec<&'a OsStr>,
}

impl Tree {
    /// Whether names in the tree lead elsewhere than in the file systems that they are in.
    pub(crate) fn leads_elsewhere(&self) -> bool {
        let table = self.table();
        !table.covers.is_empty() || !table.added.is_empty()
    }

    /// Whether something is mounted at this directory, so that it has to keep its name.
    pub(crate) fn is_covered(&self, node: &Node) -> bool {
        let table = self.table();
        !table.covers.is_empty() && table.covers.contains_key(&node.ino())
    }

    /// All file systems in the tree.
    pub(crate) fn branches(&self) -> Vec<Arc<Branch>> {
        let submount = |slot: &Slot| match slot {
            Slot::Submount(branch) => Some(branch.clone()),
            _ => None,
        };
        let table = self.table();
        std::iter::once(self.root.clone()).chain(table.slots.iter().filter_map(submount)).collect()
    }

    /// Whether the file system that is mounted has submounts.
    pub(crate) fn has_submounts(&self) -> bool {
        self.table().within(&self.root).1
    }

    /// Follows a path as far as it leads.
    fn walk<'a>(&self, path: &'a Path) -> Result<Walk<'a>, String> {
        let root = self.root.root();
        let mut walk = Walk { dir: root.clone(), end: root, name: Vec::new(), missing: Vec::new() };
        for component in path.components() {
            let Component::Normal(name) = component else {
                return Err("not a plain path".into());
            };
            if !walk.missing.is_empty() {
                walk.missing.push(name);
                continue;
            }
            match self.lookup(&walk.end, name.as_bytes()) {
                Ok(node) => {
                    self.check(&node)?;
                    walk.dir = std::mem::replace(&mut walk.end, node);
                    walk.name = name.as_bytes().to_vec();
                }
                Err(Error::NotFound(_)) => walk.missing.push(name),
                Err(e) => return Err(e.to_string()),
            }
        }
        if walk.end.ino() == self.root.root().ino() && walk.missing.is_empty() {
            return Err("another file system is mounted there".into());
        }
        Ok(walk)
    }

    /// Whether a node is a directory that submounts can be at or in.
    fn check(&self, node: &Node) -> Result<(), String> {
        match node {
            Node::Made(_) => Ok(()),
            Node::File { branch, slot, .. } if *slot == branch.slot => match self.attr(node) {
                Ok((attr, _)) if attr.kind == FileType::Directory => Ok(()),
                Ok(_) => Err("Not a directory".into()),
                Err(e) => Err(e.to_string()),
            },
            _ => Err("a control directory or snapshot is in the way".into()),
        }
    }

    /// Makes a file system a submount at a path below the root directory.
    fn add_submount(&self, spec: &MountSpec, path: &Path) -> Result<Arc<Branch>, String> {
        let _change = self.change.lock();
        let walk = self.walk(path)?;
        // The entry that changes in the file system: the kernel may know it by its own name, too.
        let mut changed = vec![match walk.missing.first() {
            Some(name) => (walk.end.ino(), name.as_bytes().to_vec()),
            None => (walk.dir.ino(), walk.name.clone()),
        }];
        if let (Node::File { fs, object, .. }, true, true) =
            (&walk.end, walk.missing.is_empty(), walk.dir.folds_names())
            && let Ok(path) = fs.path_of(*object)
        {
            let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
            changed.push((walk.dir.ino(), name.to_vec()));
        }
        let branch = self.attach(spec, &walk).ok_or("too many file systems were mounted here")?;
        self.announce(changed.iter().map(|(dir, name)| (*dir, name.as_slice()))).wait();
        Ok(branch)
    }

    /// Enters a submount into the table. `None`: there are no more slots.
    fn attach(&self, spec: &MountSpec, walk: &Walk<'_>) -> Option<Arc<Branch>> {
        let mut table = self.table_mut();
        let around = walk.end.branch().clone();
        let submount = |table: &mut Table, place| {
            let mut new = None;
            table.push(|slot| {
                let branch = Arc::new(Branch::new(spec, slot, Some(place)));
                new = Some(branch.clone());
                Slot::Submount(branch)
            })?;
            new
        };
        let Some((last, missing)) = walk.missing.split_last() else {
            let (dir, name, ino) = (walk.dir.ino(), walk.name.clone(), walk.end.ino());
            let place = Place { branch: around, dir, name, covered: Some(ino) };
            let branch = submount(&mut table, place)?;
            table.covers.insert(ino, branch.clone());
            return Some(branch);
        };
        if MAX_SLOTS.saturating_sub(table.slots.len()) < walk.missing.len() {
            return None;
        }
        let mut dir = walk.end.ino();
        let place = |dir, name: &OsStr| {
            let name = name.as_bytes().to_vec();
            Place { branch: around.clone(), dir, name, covered: None }
        };
        for name in missing {
            let (place, since) = (place(dir, name), Clock::default().now());
            let slot = table.push(|slot| Slot::Made(Arc::new(Made { slot, place, since })))?;
            table.added.entry(dir).or_default().insert(slot, name.as_bytes().to_vec());
            if let Some(Slot::Made(made)) = table.slot(slot) {
                dir = Node::Made(made.clone()).ino();
            }
        }
        let branch = submount(&mut table, place(dir, last))?;
        table.added.entry(dir).or_default().insert(branch.slot, last.as_bytes().to_vec());
        Some(branch)
    }

    /// Takes a submount away; with force, those in it as well. False: it is in use, and stays.
    fn remove(&self, branch: &Branch, force: Force) -> bool {
        let _change = self.change.lock();
        let Some(place) = &branch.place else { return false };
        let mut table = self.table_mut();
        if branch.is_gone() {
            return true;
        }
        let (slots, submounts) = table.within(branch);
        let used = submounts || branch.has_users();
        if used && force == Force::No {
            return false;
        }
        table.forget(&slots);
        let made = table.made();
        let outermost = table.tidy(place, &made);
        drop(table);
        self.release_orphans(|ino| slots.contains(&slot_of(ino)));
        self.announce([(outermost.dir, outermost.name.as_slice())]).wait();
        true
    }

    /// Takes all submounts away, from a mount that is gone.
    pub(crate) fn remove_all(&self) {
        let mut table = self.table_mut();
        let (mut slots, _) = table.within(&self.root);
        slots.remove(&0);
        table.forget(&slots);
        drop(table);
        self.root.set_gone();
        self.release_orphans(|_| true);
    }
}
