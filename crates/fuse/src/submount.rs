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
//!   `gone` is set under the table's lock, and users are counted under it, so none is overlooked.
//! - Nobody waits for the kernel while holding the table's lock: the kernel may be waiting for an
//!   answer that needs it.
//!
//! A submount is part of its mount in the kernel's eyes: `nosuid` and `nodev` hold anyway for ordinary
//! users, and a mount that allows no programs to be run allows none in its submounts.

mod handle;

pub use handle::Submount;

use crate::inodes;
use crate::session::{INodeNo, Notifier};
use crate::snapshot::Snapshot;
use crate::syncer::{SyncHook, SyncPolicy};
use crate::tree::{CONTROL, FUSE_ROOT, Node, Tree, not_found, slot_of};
use crate::{Force, MountSpec, SnapDir, SnapshotEntry, Snapshots, Space, SpaceHook};
use ahash::HashMap;
use cenote_zpl::{Clock, Error, FileSystem, Time};
use parking_lot::{RwLock, RwLockWriteGuard};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Slots of submounts and made directories; those from here on are of snapshots.
const MAX_SLOTS: usize = FIRST_SNAPSHOT as usize - 1;
/// First slot of snapshots.
const FIRST_SNAPSHOT: u16 = 1 << 15;
/// How late the kernel may tell of a file or directory that was closed.
pub(crate) const LATE_CLOSE: Duration = Duration::from_millis(200);
/// How long what was changed in mappings may take to be written, where somebody does not want to wait.
const MAPPED: Duration = Duration::from_secs(2);

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

/// Where a submount or a made directory appears.
pub(crate) struct Place {
    /// The branch that the place is in.
    pub(crate) branch: Arc<Branch>,
    /// Inode number of the directory around it.
    pub(crate) dir: u64,
    /// Name in that directory.
    name: Vec<u8>,
    /// Inode number of what is covered; otherwise the entry is added.
    covered: Option<u64>,
}

/// A directory that leads to a submount.
pub(crate) struct Made {
    pub(crate) slot: u16,
    pub(crate) place: Place,
    pub(crate) since: Time,
}

/// What has a slot.
#[derive(Clone)]
pub(crate) enum Slot {
    Snapshot(Arc<Snapshot>),
    Submount(Arc<Branch>),
    Made(Arc<Made>),
    Gone,
}

/// Slots and where they lead to each other.
#[derive(Default)]
pub(crate) struct Table {
    /// Slots from 1 on, of submounts and made directories.
    slots: Vec<Slot>,
    /// Slots of snapshots.
    pub(crate) of_snapshots: BTreeMap<u16, Slot>,
    /// Slots of snapshots by the slot of their file system and their name.
    pub(crate) snapshots: HashMap<(u16, String), u16>,
    /// Snapshots, named like that, that nothing leads to for the moment.
    pub(crate) closed: HashSet<(u16, String)>,
    /// Submounts by the inode numbers of the directories that they cover.
    covers: HashMap<u64, Arc<Branch>>,
    /// Added entries, slot and name, by the inode number of the directory.
    added: HashMap<u64, BTreeMap<u16, Vec<u8>>>,
}

/// The slot that a snapshot of this name is to have: by its hash (FNV-1a).
fn preferred_slot(branch: u16, name: &str) -> u16 {
    let bytes = branch.to_le_bytes().into_iter().chain(name.bytes());
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    FIRST_SNAPSHOT | (hash ^ hash >> 16) as u16
}

impl Table {
    pub(crate) fn slot(&self, slot: u16) -> Option<&Slot> {
        if slot >= FIRST_SNAPSHOT {
            return self.of_snapshots.get(&slot);
        }
        usize::from(slot).checked_sub(1).and_then(|i| self.slots.get(i))
    }

    /// Whether nothing leads to a snapshot for the moment, since it may be about to go.
    pub(crate) fn is_closed(&self, key: &(u16, String)) -> bool {
        !self.closed.is_empty() && self.closed.contains(key)
    }

    /// What has a slot, unless it is closed.
    pub(crate) fn open(&self, slot: u16) -> Option<Slot> {
        let found = self.slot(slot)?;
        match found {
            Slot::Snapshot(s) if self.is_closed(&(s.branch.slot, s.name.clone())) => None,
            found => Some(found.clone()),
        }
    }

    /// Fills a new slot; `None` if there are no more.
    pub(crate) fn push(&mut self, new: impl FnOnce(u16) -> Slot) -> Option<u16> {
        let number = self.slots.len().checked_add(1).filter(|n| *n <= MAX_SLOTS)?;
        let number = u16::try_from(number).ok()?;
        self.slots.push(new(number));
        Some(number)
    }

    /// Gives a snapshot the slot that follows from its name, or the next one that is free; `None` if there
    /// is none.
    pub(crate) fn push_snapshot(&mut self, snapshot: Snapshot) -> Option<u16> {
        let first = preferred_slot(snapshot.branch.slot, &snapshot.name);
        let all = (first..=u16::MAX).chain(FIRST_SNAPSHOT..first);
        let slot = all.into_iter().find(|slot| !self.of_snapshots.contains_key(slot))?;
        self.of_snapshots.insert(slot, Slot::Snapshot(Arc::new(snapshot)));
        Some(slot)
    }

    /// All slots with their numbers. What is in something comes later.
    fn numbered(&self) -> impl Iterator<Item = (u16, &Slot)> {
        (1..).zip(&self.slots).chain(self.of_snapshots.iter().map(|(slot, what)| (*slot, what)))
    }

    /// Entries that are added to a directory.
    pub(crate) fn added_to(&self, dir: &Node) -> u64 {
        if self.added.is_empty() {
            return 0;
        }
        self.added.get(&dir.ino()).map_or(0, |entries| entries.len() as u64)
    }

    /// The slots of a branch and of all that is in it, and whether submounts are among these.
    pub(crate) fn within(&self, branch: &Branch) -> (HashSet<u16>, bool) {
        let mut slots = HashSet::from([branch.slot]);
        let mut submounts = false;
        for (number, slot) in self.numbered() {
            let around = match slot {
                Slot::Snapshot(s) => Some(&s.branch),
                Slot::Submount(b) => b.place.as_ref().map(|p| &p.branch),
                Slot::Made(m) => Some(&m.place.branch),
                Slot::Gone => None,
            };
            if around.is_some_and(|b| slots.contains(&b.slot)) {
                submounts |= matches!(slot, Slot::Submount(_));
                slots.insert(number);
            }
        }
        (slots, submounts)
    }

    /// Forgets slots and what leads there. Users of submounts among them get errors from now on.
    pub(crate) fn forget(&mut self, slots: &HashSet<u16>) {
        let snapshots = self.of_snapshots.iter_mut().map(|(slot, what)| (*slot, what));
        for (number, slot) in (1..).zip(&mut self.slots).chain(snapshots) {
            if slots.contains(&number)
                && let Slot::Submount(branch) = std::mem::replace(slot, Slot::Gone)
            {
                branch.set_gone();
            }
        }
        self.snapshots.retain(|_, slot| !slots.contains(slot));
        self.covers.retain(|_, branch| !slots.contains(&branch.slot));
        self.added.retain(|ino, entries| {
            entries.retain(|slot, _| !slots.contains(slot));
            !entries.is_empty() && !slots.contains(&slot_of(*ino))
        });
    }

    /// Takes away directories that were made for a submount that is gone from `place`, as far as they
    /// lead nowhere. Returns the outermost entry that is gone, as directory and name.
    fn tidy<'a>(&mut self, mut place: &'a Place, made: &'a [Arc<Made>]) -> &'a Place {
        loop {
            let ino = place.covered.unwrap_or(place.dir);
            let inside = made.iter().find(|m| m.slot == slot_of(ino));
            let Some(m) = inside else { return place };
            if self.added.contains_key(&ino) || self.covers.contains_key(&ino) {
                return place;
            }
            self.forget(&HashSet::from([m.slot]));
            place = &m.place;
        }
    }

    fn made(&self) -> Vec<Arc<Made>> {
        let made = |slot: &Slot| match slot {
            Slot::Made(m) => Some(m.clone()),
            _ => None,
        };
        self.slots.iter().filter_map(made).collect()
    }
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

    /// An object of it.
    pub(crate) fn file(self: &Arc<Self>, object: u64) -> Node {
        Node::File { branch: self.clone(), fs: self.fs(), slot: self.slot, object }
    }

    /// The root directory.
    pub(crate) fn root(self: &Arc<Self>) -> Node {
        let fs = self.fs();
        let object = fs.root();
        Node::File { branch: self.clone(), fs, slot: self.slot, object }
    }

    /// Whether there is a `.zfs`.
    pub(crate) fn has_control(&self) -> bool {
        self.snapshots.is_some() && self.snapdir.load(Ordering::Relaxed) != SnapDir::Disabled as u8
    }

    /// Whether `.zfs` is listed in the root directory.
    pub(crate) fn shows_control(&self) -> bool {
        self.snapshots.is_some() && self.snapdir.load(Ordering::Relaxed) == SnapDir::Visible as u8
    }

    /// The txg of the newest snapshot; 0 if there is none.
    pub(crate) fn newest_snapshot(&self) -> u64 {
        self.snapshots.as_ref().map_or(0, |s| s.newest())
    }

    pub(crate) fn list_snapshots(&self) -> Vec<SnapshotEntry> {
        self.snapshots.as_ref().map(|s| s.list()).unwrap_or_default()
    }

    pub(crate) fn snapshots_changed(&self) -> Option<(i64, u32)> {
        self.snapshots.as_ref().and_then(|s| s.changed())
    }

    /// The control directory `.zfs/shares`: the file system's own directory if it has one.
    pub(crate) fn shares(self: &Arc<Self>) -> Node {
        match self.fs().shares() {
            Some(object) if object != 0 => self.file(object),
            _ => Node::Shares(self.clone()),
        }
    }

    /// Whether it was taken away.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
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
        self.0.users.fetch_add(1, Ordering::SeqCst);
        InUse(self.0.clone())
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

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
    pub(crate) fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write()
    }

    /// Registers someone who opens something in a branch.
    pub(crate) fn enter(&self, branch: &Arc<Branch>) -> Result<InUse, Error> {
        let _table = self.table();
        if branch.is_gone() {
            return Err(not_found("the file system was unmounted"));
        }
        branch.users.fetch_add(1, Ordering::SeqCst);
        Ok(InUse(branch.clone()))
    }

    /// What is shown in place of `node`: the root directory of the submount that covers it, or itself.
    pub(crate) fn top(&self, mut node: Node) -> Node {
        let table = self.table();
        if table.covers.is_empty() {
            return node;
        }
        while let Some(branch) = table.covers.get(&node.ino()) {
            node = branch.root();
        }
        node
    }

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

    /// What an added entry leads to.
    pub(crate) fn added(&self, dir: &Node, name: &[u8]) -> Option<Node> {
        self.additions(dir).into_iter().find(|(_, n, _)| n == name).map(|(_, _, node)| node)
    }

    /// The entries that are added to a directory: slot, name and what they lead to.
    pub(crate) fn additions(&self, dir: &Node) -> Vec<(u16, Vec<u8>, Node)> {
        let found: Vec<_> = {
            let table = self.table();
            let entries = table.added.get(&dir.ino());
            let entry = |(slot, name): (&u16, &Vec<u8>)| match table.slot(*slot)? {
                Slot::Submount(branch) => Some((*slot, name.clone(), branch.root())),
                Slot::Made(made) => Some((*slot, name.clone(), Node::Made(made.clone()))),
                _ => None,
            };
            entries.into_iter().flatten().filter_map(entry).collect()
        };
        found.into_iter().map(|(slot, name, node)| (slot, name, self.top(node))).collect()
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
        for (dir, name) in &changed {
            self.announce(*dir, name);
        }
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
        let used = submounts || branch.users.load(Ordering::SeqCst) > 0;
        if used && force == Force::No {
            return false;
        }
        table.forget(&slots);
        let made = table.made();
        let outermost = table.tidy(place, &made);
        drop(table);
        self.release_orphans(|ino| slots.contains(&slot_of(ino)));
        self.announce(outermost.dir, &outermost.name);
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

    /// Lets go of files without names whose numbers the kernel will not forget any more.
    pub(crate) fn release_orphans(&self, of: impl Fn(u64) -> bool) {
        self.inodes.take_orphans(of).into_iter().for_each(inodes::release);
    }

    /// Shows or hides the control directory, and makes the kernel look again.
    pub(crate) fn set_snapdir(&self, branch: &Arc<Branch>, snapdir: SnapDir) {
        if branch.snapdir.swap(snapdir as u8, Ordering::Relaxed) != snapdir as u8 {
            self.announce(branch.root().ino(), CONTROL);
        }
    }

    /// Makes the kernel ask for the ACLs of a file system's files when it needs them next.
    pub(crate) fn acls_changed(&self, branch: &Arc<Branch>) {
        let known = self.inodes.known(|ino| slot_of(ino) == branch.slot);
        known.into_iter().chain([branch.root().ino()]).for_each(|ino| self.attr_changed(ino));
    }

    /// Makes the kernel ask for a file's attributes and ACLs when it needs them next.
    pub(crate) fn attr_changed(&self, ino: u64) {
        self.tell(|notifier| notifier.inval_inode(self.kernels(ino), -1, 0));
    }

    /// Makes the kernel forget `len` bytes of a file's contents.
    pub(crate) fn contents_changed(&self, ino: u64, offset: u64, len: u64) {
        let whole = i64::try_from(offset).ok().zip(i64::try_from(len).ok());
        let (offset, len) = whole.unwrap_or((0, 0));
        self.tell(|notifier| notifier.inval_inode(self.kernels(ino), offset, len));
    }

    /// Has the kernel write what was changed in mappings of files, those that `of` chooses, before it is
    /// told that they are gone. Waits for that, but not for long: those who answer it may be stuck.
    pub(crate) fn write_mapped(self: &Arc<Tree>, of: impl Fn(u64) -> bool) {
        let mapped = self.inodes.mappable(of);
        if mapped.is_empty() {
            return;
        }
        let (tree, (done, wait)) = (self.clone(), channel::<()>());
        let work = move || {
            mapped.iter().for_each(|ino| tree.contents_changed(*ino, 0, 0));
            drop(done);
        };
        match std::thread::Builder::new().name("fuse-forget".into()).spawn(work) {
            Ok(_) => drop(wait.recv_timeout(MAPPED)),
            Err(e) => tracing::warn!("what was changed in mappings is not written: {e}"),
        }
    }

    /// The kernel's own number.
    fn kernels(&self, ino: u64) -> INodeNo {
        INodeNo(if ino == self.root.root().ino() { FUSE_ROOT } else { ino })
    }

    fn tell(&self, what: impl FnOnce(&Notifier) -> Result<(), Errno>) {
        if let Some(notifier) = self.notifier.get()
            && let Err(e) = what(notifier)
        {
            tracing::debug!("the kernel did not forget: {e}");
        }
    }

    /// Makes the kernel forget what a name in a directory leads to.
    pub(crate) fn forget_name(&self, dir: u64, name: &[u8]) {
        self.tell(|notifier| notifier.inval_entry(self.kernels(dir), name));
    }

    /// Makes the kernel forget an entry and the listing of its directory.
    pub(crate) fn announce(&self, dir: u64, name: &[u8]) {
        let dir = self.kernels(dir);
        self.tell(|notifier| {
            notifier.inval_entry(dir, name)?;
            notifier.inval_inode(dir, 0, 0)
        });
    }
}
