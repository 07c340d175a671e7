//! What differs between two states of a file system (`dmu_diff`, `zfs_show_diffs`, `zfs_ioc_diff`).
//!
//! The blocks of dnodes that changed since the earlier state are walked; no data is read. Every object in
//! such a block is looked at in both states. A dnode that did not change lies beside one that did: it is told
//! apart by its time of change. A path follows from an object's parent, and a search of the directory for the
//! object: of a file with several links, one of them.
//!
//! A file names as its parent the directory of its newest link, also once that link was removed. Where its parent has
//! no name for it, the path that it has in the other state is tried, then the directory that is its parent there. What
//! is still *lost* is looked for in the end, in all directories at once.
//!
//! Directories that were searched are kept as maps from objects to names, of each state up to [`MAX_NAMES`]
//! names, so that a directory with many changes is read once.

use super::dir::DirEntry;
use super::sa::ZplAttr;
use super::{Error, FileSystem, Result};
use cenote_dmu::{ObjectSet, Tree};
use cenote_dsl::traverse::{self, DNODES, Place, Traversal, Visitor};
use cenote_format::ByteOrder;
use cenote_format::blkptr::BlockPointer;
use cenote_store::Bookmark;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Names of searched directories that are kept.
const MAX_NAMES: usize = 1 << 18;
/// Entries of a directory that are read at once.
const BATCH: usize = 1024;
/// Where OpenZFS says that files are which were unlinked and are still open.
const UNLINKED: &[u8] = b"(on_delete_queue)";
/// Type of a file in its mode.
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
/// Types of a directory entry: it does not say, and a directory.
const DT_UNKNOWN: u8 = 0;
const DT_DIR: u8 = 4;

/// What happened to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It was changed.
    Modified,
    /// It has another path now: this one.
    Renamed(Vec<u8>),
    /// It has so many links more, or less.
    Links(i64),
}

/// A file that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What happened to it.
    pub change: Change,
    /// Its path from the root directory; for a renamed one the old path.
    pub path: Vec<u8>,
    /// Type and permissions.
    pub mode: u32,
    /// When it was changed last, in seconds and nanoseconds: for what is gone, before that.
    pub ctime: (i64, u32),
}

/// What is known of an object in one state.
#[derive(Debug, Clone)]
struct Seen {
    /// `None`: there is no name where its parent should have one.
    path: Option<Vec<u8>>,
    parent: u64,
    gen_: u64,
    mode: u32,
    links: u64,
    ctime: (i64, u32),
}

impl Seen {
    fn is_dir(&self) -> bool {
        self.mode & S_IFMT == S_IFDIR
    }

    /// Whether it has a name that is not where its parent says.
    fn is_lost(&self) -> bool {
        self.path.is_none() && !self.is_dir() && self.links > 0
    }

    /// Whether it is the same file as `other`.
    fn is_same(&self, other: &Seen) -> bool {
        self.gen_ == other.gen_ && self.mode & S_IFMT == other.mode & S_IFMT
    }

    /// How many links more there are; of directories, and of nodes without links, they do not count.
    fn more_links(old: &Seen, new: &Seen) -> i64 {
        let counted = !old.is_dir() && !new.is_dir() && old.links != 0 && new.links != 0;
        if counted { (new.links as i64).wrapping_sub(old.links as i64) } else { 0 }
    }

    /// A difference at `path`, with this state's type and time.
    fn differs(&self, change: Change, path: Vec<u8>) -> Difference {
        Difference { change, path, mode: self.mode, ctime: self.ctime }
    }
}

/// One state, and names of directories that were searched.
struct State {
    fs: Arc<FileSystem>,
    names: HashMap<u64, HashMap<u64, Vec<u8>>>,
    kept: usize,
    /// Paths of files that were lost.
    found: HashMap<u64, Vec<u8>>,
}

impl State {
    fn open(objset: Arc<ObjectSet>) -> Result<State> {
        let (names, found) = (HashMap::new(), HashMap::new());
        Ok(State { fs: FileSystem::open(objset)?, names, kept: 0, found })
    }

    /// The name under which an object is in a directory.
    fn name_of(&mut self, dir: u64, ino: u64) -> Result<Vec<u8>> {
        if !self.names.contains_key(&dir) {
            let names = match names(&self.fs, dir) {
                // The number of a directory that was removed was used again.
                Err(Error::NotDir(_)) => HashMap::new(),
                names => names?,
            };
            if self.kept + names.len() > MAX_NAMES {
                self.names.clear();
                self.kept = 0;
            }
            self.kept += names.len();
            self.names.insert(dir, names);
        }
        let found = self.names.get(&dir).and_then(|names| names.get(&ino));
        found.cloned().ok_or_else(|| Error::NotFound(format!("object {ino} in directory {dir}")))
    }

    /// What is known of an object (`zfs_obj_to_stats`); `None` if it is no file here, or cannot be found.
    fn look(&mut self, ino: u64) -> Result<Option<Seen>> {
        if self.fs.shares() == Some(ino) {
            return Ok(None);
        }
        match self.seen(ino) {
            Err(e) if e.is_absence() => Ok(None),
            seen => seen.map(Some),
        }
    }

    fn seen(&mut self, ino: u64) -> Result<Seen> {
        let fs = self.fs.clone();
        let attr = fs.attr(ino)?;
        let path = match fs.is_unlinked(ino)? {
            true => Some(UNLINKED.to_vec()),
            false => match fs.path_by(ino, &mut |dir, ino| self.name_of(dir, ino)) {
                Err(e) if e.is_absence() => self.found.get(&ino).cloned(),
                path => Some(path?),
            },
        };
        let parent = fs.znode(ino)?.required(ZplAttr::Parent)?;
        let (gen_, mode, links, ctime) = (attr.gen_, attr.mode, attr.nlink, attr.ctime);
        Ok(Seen { path, parent, gen_, mode, links, ctime })
    }

    /// The path of a lost file that is `other` in the other state: the same as there, or in the same directory.
    fn path_like(&mut self, ino: u64, other: &Seen) -> Result<Option<Vec<u8>>> {
        let absent = |found: Result<Vec<u8>>| match found {
            Err(e) if e.is_absence() => Ok(None),
            found => found.map(Some),
        };
        let fs = self.fs.clone();
        if let Some(path) = &other.path {
            let mut parts = path.split(|b| *b == b'/').filter(|part| !part.is_empty());
            match parts.try_fold(fs.root(), |dir, name| fs.lookup(dir, name)) {
                Ok(there) if there == ino => return Ok(Some(path.clone())),
                Ok(_) | Err(Error::NotDir(_) | Error::NameTooLong(_)) => {}
                Err(e) if e.is_absence() => {}
                Err(e) => return Err(e),
            }
        }
        let Some(name) = absent(self.name_of(other.parent, ino))? else { return Ok(None) };
        let dir = absent(fs.path_by(other.parent, &mut |dir, ino| self.name_of(dir, ino)))?;
        Ok(dir.map(|dir| below(&dir, &name)))
    }

    /// Looks for lost files in all directories.
    fn search(&mut self, lost: &HashSet<u64>) -> Result<()> {
        let fs = self.fs.clone();
        let mut seen = HashSet::from([fs.root()]);
        let mut todo = vec![(fs.root(), b"/".to_vec())];
        while let Some((dir, path)) = todo.pop() {
            let mut cookie = 0;
            loop {
                let batch = fs.readdir(dir, cookie, BATCH)?;
                let Some(last) = batch.last() else { break };
                cookie = last.cookie;
                for entry in batch {
                    if lost.contains(&entry.ino) {
                        let path = || below(&path, &entry.name);
                        self.found.entry(entry.ino).or_insert_with(path);
                    }
                    let is_dir = match entry.kind {
                        DT_UNKNOWN => fs.attr(entry.ino)?.is_dir(),
                        kind => kind == DT_DIR,
                    };
                    if is_dir && seen.insert(entry.ino) {
                        todo.push((entry.ino, below(&path, &entry.name)));
                    }
                }
                if self.found.len() == lost.len() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The path of what is called `name` in the directory at `dir`.
fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    [dir, b"/", name].concat()
}

/// The names in a directory, by object: of several that lead to one, the first.
fn names(fs: &FileSystem, dir: u64) -> Result<HashMap<u64, Vec<u8>>> {
    let (mut names, mut cookie) = (HashMap::new(), 0);
    loop {
        let batch: Vec<DirEntry> = fs.readdir(dir, cookie, BATCH)?;
        let Some(last) = batch.last() else { return Ok(names) };
        cookie = last.cookie;
        for entry in batch {
            names.entry(entry.ino).or_insert(entry.name);
        }
    }
}

/// Why differences could not be told to the end.
#[derive(Debug)]
pub enum Stop<E> {
    /// The file system cannot be read.
    Read(Error),
    /// The receiver of the differences failed.
    Told(E),
}

impl<E> From<cenote_dmu::Error> for Stop<E> {
    fn from(e: cenote_dmu::Error) -> Stop<E> {
        Stop::Read(e.into())
    }
}

impl<E> From<Error> for Stop<E> {
    fn from(e: Error) -> Stop<E> {
        Stop::Read(e)
    }
}

/// Tells what differs between the object set `from`, of transaction group `after`, and the later `to`, in the
/// order of objects; lost files come last. An object that cannot be read in full is told to `unknown`, and left out.
///
/// # Errors
/// No file system; dnodes cannot be read; errors of `tell` and `unknown`.
pub fn differences<E>(
    (from, after): (Arc<ObjectSet>, u64),
    to: Arc<ObjectSet>,
    tell: &mut dyn FnMut(Difference) -> std::result::Result<(), E>,
    unknown: &mut dyn FnMut(u64, Error) -> std::result::Result<(), E>,
) -> std::result::Result<(), Stop<E>> {
    let states = Differ { from: State::open(from.clone())?, to: State::open(to.clone())? };
    let mut walk = Walk { from, after, states, lost: Some(Vec::new()), tell, unknown };
    let walked = Traversal::new(to.store(), to.id(), None, &mut walk).objects(to.phys());
    walked.map_err(|stopped| stopped.why)?;
    walk.look_at_lost()
}

/// The walk over the dnodes that changed.
struct Walk<'w, E> {
    from: Arc<ObjectSet>,
    after: u64,
    states: Differ,
    /// Lost files, and whether the later state has them; `None` once they were looked for.
    lost: Option<Vec<(u64, bool)>>,
    tell: &'w mut dyn FnMut(Difference) -> std::result::Result<(), E>,
    unknown: &'w mut dyn FnMut(u64, Error) -> std::result::Result<(), E>,
}

impl<E> Walk<'_, E> {
    fn look(&mut self, number: u64, is_there: bool) -> std::result::Result<(), Stop<E>> {
        match self.states.look(number, is_there, self.lost.is_none()) {
            Ok(Some(differences)) => {
                differences.into_iter().try_for_each(&mut self.tell).map_err(Stop::Told)
            }
            Ok(None) => {
                self.lost.iter_mut().for_each(|lost| lost.push((number, is_there)));
                Ok(())
            }
            Err(e) => (self.unknown)(number, e).map_err(Stop::Told),
        }
    }

    fn look_at_lost(&mut self) -> std::result::Result<(), Stop<E>> {
        let lost = self.lost.take().unwrap_or_default();
        if lost.is_empty() {
            return Ok(());
        }
        let numbers = lost.iter().map(|(number, _)| *number).collect();
        self.states.from.search(&numbers)?;
        self.states.to.search(&numbers)?;
        lost.into_iter().try_for_each(|(number, is_there)| self.look(number, is_there))
    }
}

impl<E> Visitor for Walk<'_, E> {
    type Stop = Stop<E>;

    fn wants(&self, bp: &BlockPointer) -> bool {
        traverse::is_changed(bp, self.after)
    }

    fn free_slot(&mut self, number: u64) -> std::result::Result<(), Stop<E>> {
        self.look(number, false)
    }

    /// Its blocks do not matter.
    fn object(&mut self, tree: &Tree<'_>, _: ByteOrder) -> std::result::Result<bool, Stop<E>> {
        self.look(tree.object, true).map(|()| false)
    }

    /// In a hole, what was there before is gone.
    fn pre(&mut self, place: &Place<'_>) -> std::result::Result<bool, Stop<E>> {
        if place.node.bp.is_hole() {
            let (first, end) = place.span();
            let (mut number, end) =
                (first.saturating_mul(DNODES).max(1), end.saturating_mul(DNODES));
            while let Some(gone) = self.from.next_object(number)?.filter(|next| *next < end) {
                self.look(gone, false)?;
                number = gone.saturating_add(1);
            }
        }
        Ok(true)
    }

    fn damaged(
        &mut self,
        _: Bookmark,
        _: &BlockPointer,
        why: cenote_dmu::Error,
    ) -> std::result::Result<(), Stop<E>> {
        Err(why.into())
    }
}

/// Both states.
struct Differ {
    from: State,
    to: State,
}

impl Differ {
    /// How an object differs (`write_inuse_diffs_one`, `describe_free`): as two files if its number was used
    /// again. `is_there` says whether the later state has an object of this number. `None`: the file is lost, and
    /// all directories were not `searched` yet.
    fn look(
        &mut self,
        ino: u64,
        is_there: bool,
        searched: bool,
    ) -> Result<Option<Vec<Difference>>> {
        let mut old = self.from.look(ino)?;
        if !is_there {
            if !searched && old.as_ref().is_some_and(Seen::is_lost) {
                return Ok(None);
            }
            let gone = old.and_then(|old| Some((old.path.clone()?, old)));
            let gone = gone.filter(|(path, _)| path != UNLINKED);
            let gone = gone.map(|(path, old)| old.differs(Change::Removed, path));
            return Ok(Some(gone.into_iter().collect()));
        }
        let mut new = self.to.look(ino)?;
        if let (Some(old), Some(new)) = (&mut old, &mut new)
            && old.is_same(new)
        {
            if old.ctime == new.ctime {
                return Ok(Some(Vec::new()));
            }
            // A link that was removed is told at the path that it had.
            if new.is_lost() && old.path.is_some() && old.links == new.links {
                new.path = self.to.path_like(ino, old)?;
            }
            if old.is_lost() && new.path.is_some() && old.links == new.links {
                old.path = self.from.path_like(ino, new)?;
            }
        }
        let lost = |seen: &Option<Seen>| seen.as_ref().is_some_and(Seen::is_lost);
        let removed = matches!((&old, &new), (Some(old), Some(new)) if old.is_same(new)
            && old.links != new.links && (old.path.is_some() || new.path.is_some()));
        if !searched && !removed && (lost(&old) || lost(&new)) {
            return Ok(None);
        }
        Ok(Some(Differ::told(old, new)))
    }

    /// How two states of an object of one number differ.
    fn told(old: Option<Seen>, new: Option<Seen>) -> Vec<Difference> {
        let links = match (&old, &new) {
            (Some(old), Some(new)) => Seen::more_links(old, new),
            _ => 0,
        };
        let path = |seen: &Option<Seen>| seen.as_ref().and_then(|seen| seen.path.clone());
        let (old_path, new_path) = match (path(&old), path(&new), old, new) {
            (Some(old_path), Some(new_path), Some(old), Some(new)) => {
                return Differ::both((old, old_path), (new, new_path), links);
            }
            (Some(path), None, Some(old), _) if links != 0 => {
                return vec![old.differs(Change::Links(links), path)];
            }
            (None, Some(path), _, Some(new)) if links != 0 => {
                return vec![new.differs(Change::Links(links), path)];
            }
            (old_path, new_path, old, new) => (old_path.zip(old), new_path.zip(new)),
        };
        let gone = old_path.map(|(path, old)| old.differs(Change::Removed, path));
        let made = new_path.map(|(path, new)| new.differs(Change::Added, path));
        gone.into_iter().chain(made).collect()
    }

    /// How an object differs that has a path in both states.
    fn both(
        (old, old_path): (Seen, Vec<u8>),
        (new, new_path): (Seen, Vec<u8>),
        links: i64,
    ) -> Vec<Difference> {
        if !old.is_same(&new) {
            let gone = old.differs(Change::Removed, old_path);
            return vec![gone, new.differs(Change::Added, new_path)];
        }
        if old.ctime == new.ctime {
            return vec![];
        }
        let (change, path) = match () {
            // The path that there was when there were fewer links.
            () if links > 0 => (Change::Links(links), old_path),
            () if links < 0 => (Change::Links(links), new_path),
            () if old_path == new_path => (Change::Modified, old_path),
            () => (Change::Renamed(new_path), old_path),
        };
        vec![new.differs(change, path)]
    }
}
