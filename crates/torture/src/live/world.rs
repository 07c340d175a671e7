//! A file system that is changed at random, with a model of what is in it.
//!
//! A change that fails is in the model all the same: where the power goes in the midst of it, it may be on disk. The
//! world stops then, and is compared with its [`History`].
//!
//! Files have several names, directories are nested, and files are used without names. What counts as large is
//! small here ([`shrink`]), so that files and extended attributes that are removed are often freed in the background.

use super::history::{Found, History, Id, Names, Seen, Tree};
use super::{Moment, Stopped, dedup, demand};
use cenote_engine::Engine;
use cenote_zpl::{
    Allocate, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, SetXattr, Settings, Visibility,
    flags,
};
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a record.
const RECORD: usize = 16 << 10;

/// Whether extended attributes are system attributes, and POSIX ACLs are on.
pub fn settings(xattr_sa: bool) -> Settings {
    let usual = Settings::default();
    let visibility = Visibility { posix_acl: true, ..usual.visibility };
    Settings { xattr_sa, visibility, record_size: RECORD as u64, ..usual }
}

/// Has files of more than a few blocks count as large.
pub fn shrink() {
    cenote_dmu::tunables::DELETE_BLOCKS.set(4).unwrap();
}

/// A list that gives user 7 something, besides what the mode says.
fn acl(mode: u32) -> Vec<u8> {
    let entries = [
        (1, mode >> 6 & 7, u32::MAX),
        (2, 5, 7),
        (4, 4, u32::MAX),
        (0x10, mode >> 3 & 7, u32::MAX),
        (0x20, mode & 7, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        list.extend((tag as u16).to_le_bytes());
        list.extend((perm as u16).to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

const ACCESS: &[u8] = b"system.posix_acl_access";

/// How something ended.
pub type Done = Result<(), Stopped>;

fn ended<T>(done: Result<T, cenote_zpl::Error>) -> Done {
    Ok(done.map(drop)?)
}

/// When changes are made stable: the property `sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// When it is asked for.
    Standard,
    /// Each before the next one.
    Always,
    /// Only by their transaction groups.
    Disabled,
}

/// What is in a file system.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Names below the root directory.
    pub names: Names,
    /// What has them.
    pub nodes: BTreeMap<Id, Seen>,
    /// The numbers of their objects.
    pub inos: BTreeMap<Id, u64>,
}

impl State {
    /// What was found. New ids are given from `next` on.
    pub fn of(tree: &Tree, next: &mut Id) -> State {
        let (mut state, mut ids) = (State::default(), BTreeMap::new());
        for (name, found) in tree {
            let id = *ids.entry(found.ino).or_insert_with(|| {
                *next += 1;
                *next
            });
            state.names.insert(name.clone(), id);
            state.nodes.insert(id, found.seen.clone());
            state.inos.insert(id, found.ino);
        }
        state
    }

    /// Whether this is all that was found.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self, tree: &Tree) -> super::Verdict {
        let show = |names: Vec<&Vec<u8>>| {
            names.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect::<Vec<_>>()
        };
        let missing: Vec<_> = self.names.keys().filter(|n| !tree.contains_key(*n)).collect();
        let more: Vec<_> = tree.keys().filter(|n| !self.names.contains_key(*n)).collect();
        demand!(
            missing.is_empty() && more.is_empty(),
            "{:?} are missing, {:?} too many",
            show(missing),
            show(more)
        );
        for (name, id) in &self.names {
            let (found, want, ino) = (&tree[name], &self.nodes[id], self.inos[id]);
            let name = String::from_utf8_lossy(name);
            demand!(found.ino == ino, "{name} is object {}, not {ino}", found.ino);
            let links = self.names.values().filter(|other| *other == id).count() as u64;
            demand!(
                want.content.is_none() || found.links == links,
                "{name} has {} links, not {links}",
                found.links
            );
            if let (Some(is), Some(want)) = (&found.seen.content, &want.content) {
                let at = is.iter().zip(want).position(|(is, want)| is != want);
                demand!(is.len() == want.len(), "{name}: {} bytes, not {}", is.len(), want.len());
                demand!(at.is_none(), "{name}: byte {at:?} of {} is another one", is.len());
            }
            let plain = |seen: &Seen| Seen {
                content: seen.content.as_ref().map(|_| vec![]),
                ..seen.clone()
            };
            let (is, want) = (plain(&found.seen), plain(want));
            demand!(is == want, "{name}: {is:?}, not {want:?}");
        }
        Ok(())
    }
}

/// A file system that is worked with.
pub struct World {
    /// What it does comes from here.
    pub rng: SmallRng,
    /// The pool.
    pub engine: Arc<Engine>,
    /// The file system.
    pub fs: Arc<FileSystem>,
    /// How many operations the pool's disks have done.
    pub at: Moment,
    /// When changes are made stable.
    pub sync: Sync,
    /// What is written comes again often: there is something to deduplicate.
    pub repeats: bool,
    /// What it may hold after a crash.
    pub history: History,
    state: State,
    next: Id,
    /// Files without a name that are in use.
    nameless: Vec<u64>,
    /// Whom the present change renamed, and what it was about.
    renamed: Vec<Id>,
    touched: Vec<Id>,
}

impl World {
    /// A file system that holds what `state` says, all of which is stable.
    pub fn new(
        rng: SmallRng,
        engine: Arc<Engine>,
        fs: Arc<FileSystem>,
        at: Moment,
        state: State,
    ) -> World {
        let (mut history, sync) = (History::default(), Sync::Standard);
        history.set(&state.names, &state.nodes);
        let next = state.nodes.keys().next_back().map_or(0, |id| id + 1);
        let (nameless, renamed, touched) = Default::default();
        let repeats = false;
        World {
            rng,
            engine,
            fs,
            at,
            sync,
            repeats,
            history,
            state,
            next,
            nameless,
            renamed,
            touched,
        }
    }

    /// What is in it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether the file system is as the model says.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self) -> Result<(), Stopped> {
        self.state.compare(&look_at(&self.fs)?).map_err(Stopped)
    }

    /// One in `n`.
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_ratio(1, n)
    }

    fn one_of<T>(&mut self, all: Vec<T>) -> Option<T> {
        let at = self.rng.random_range(0..all.len().max(1));
        all.into_iter().nth(at)
    }

    /// A directory, most often that of the root, as the beginning of a path.
    fn dir(&mut self) -> Vec<u8> {
        let is_dir = |id: &Id| self.state.nodes[id].content.is_none();
        let dirs =
            self.state.names.iter().filter(|(_, id)| is_dir(id)).map(|(name, _)| name.clone());
        let dirs: Vec<_> =
            dirs.filter(|name| name.iter().filter(|c| **c == b'/').count() < 2).collect();
        match self.rng.random_bool(0.5) {
            true => self.one_of(dirs).map(|dir| [&dir[..], b"/"].concat()).unwrap_or_default(),
            false => Vec::new(),
        }
    }

    /// A path that something may have.
    fn path(&mut self) -> Vec<u8> {
        let dir = self.dir();
        let most = if dir.is_empty() { 10 } else { 3 };
        [dir, format!("f{}", self.rng.random_range(0..most)).into_bytes()].concat()
    }

    /// The directory and the name in it.
    fn place(&self, path: &[u8]) -> (u64, Vec<u8>) {
        match path.iter().rposition(|c| *c == b'/') {
            Some(at) => (self.ino(&path[..at]), path[at + 1..].to_vec()),
            None => (self.fs.root(), path.to_vec()),
        }
    }

    fn ino(&self, path: &[u8]) -> u64 {
        self.state.inos[&self.state.names[path]]
    }

    fn seen(&mut self, path: &[u8]) -> &mut Seen {
        self.state.nodes.get_mut(&self.state.names[path]).unwrap()
    }

    fn add(&mut self, path: Vec<u8>, ino: u64, seen: Seen) {
        let id = self.next;
        self.next += 1;
        self.state.names.insert(path, id);
        self.state.nodes.insert(id, seen);
        self.state.inos.insert(id, ino);
        self.touched.push(id);
    }

    /// Forgets nodes without names.
    fn sweep(&mut self) {
        let names = &self.state.names;
        self.state.nodes.retain(|id, _| names.values().any(|named| named == id));
        let nodes = &self.state.nodes;
        self.state.inos.retain(|id, _| nodes.contains_key(id));
    }

    fn write(&mut self, path: &[u8], most: usize) -> Done {
        let (offset, data) = if self.repeats && self.one_in(2) {
            // Whole records, or nearly.
            let offset = self.rng.random_range(0..2) * RECORD + self.rng.random_range(0..2) * 10;
            let len = self.rng.random_range(1..=3) * RECORD;
            (offset, dedup::again(&mut self.rng, offset, len))
        } else {
            let offset = self.rng.random_range(0..6000);
            let len = self.rng.random_range(1..=most);
            (offset, (0..len).map(|_| self.rng.random()).collect())
        };
        let len = data.len();
        let done = self.fs.write(self.ino(path), offset as u64, &data, false);
        if let Some(content) = &mut self.seen(path).content {
            content.resize(content.len().max(offset + len), 0);
            content[offset..offset + len].copy_from_slice(&data);
        }
        ended(done)
    }

    /// Copies a file to another one, which clones whole blocks.
    fn copy(&mut self, path: &[u8]) -> Done {
        let to = self.path();
        let Some(id) = self.state.names.get(&to).copied() else { return Ok(()) };
        if id == self.state.names[path] || self.state.nodes[&id].link {
            return Ok(());
        }
        let content = self.seen(path).content.clone().unwrap();
        let Some(other) = &mut self.seen(&to).content else { return Ok(()) };
        other.resize(other.len().max(content.len()), 0);
        other[..content.len()].copy_from_slice(&content);
        self.touched.push(id);
        let done = self.fs.copy_range(self.ino(path), 0, self.ino(&to), 0, u64::MAX)?;
        match done == content.len() as u64 {
            true => Ok(()),
            false => Err(Stopped(format!("{done} bytes of {} were copied", content.len()))),
        }
    }

    fn create(&mut self, path: Vec<u8>) -> Done {
        let (dir, name) = self.place(&path);
        let what = self.rng.random_range(0..10);
        let target = format!("to{}", self.next).into_bytes();
        let kind = match what {
            0..2 => NodeKind::Dir,
            2 => NodeKind::Symlink(target.clone()),
            _ => NodeKind::File,
        };
        let (mode, umask, uid, gid) = (if what == 2 { 0o777 } else { 0o644 }, 0, 1, 2);
        let dnode_size = [512, 512, 1024, 2048][self.rng.random_range(0..4)];
        let usual = (*self.fs.settings()).clone();
        self.fs.set_settings(Settings { dnode_size, ..usual });
        let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
        let done = self.fs.create(dir, &name, &node);
        let ino = done.as_ref().map_or(0, |attr| attr.ino);
        let content = match what {
            0..2 => None,
            2 => Some(target),
            _ => Some(Vec::new()),
        };
        let (link, flags, xattrs) = (what == 2, 0, BTreeMap::new());
        self.add(path, ino, Seen { content, link, mode, owner: uid, flags, xattrs });
        ended(done)
    }

    /// One more name of what is no directory.
    fn link(&mut self, path: &[u8]) -> Done {
        let to = self.path();
        if self.state.names.contains_key(&to) {
            return Ok(());
        }
        let (dir, name) = self.place(&to);
        let done = self.fs.link(self.ino(path), dir, &name);
        self.state.names.insert(to, self.state.names[path]);
        ended(done)
    }

    /// Whether `path` is below the directory `dir`, or is that.
    fn is_within(path: &[u8], dir: &[u8]) -> bool {
        path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    fn is_empty(&self, dir: &[u8]) -> bool {
        !self.state.names.keys().any(|other| other != dir && World::is_within(other, dir))
    }

    /// Gives all below `from` names below `to`.
    fn moved(names: &mut Names, from: &[u8], to: &[u8]) {
        let all: Vec<_> = names.keys().filter(|p| World::is_within(p, from)).cloned().collect();
        for path in all {
            let id = names.remove(&path).unwrap();
            names.insert([to, &path[from.len()..]].concat(), id);
        }
    }

    fn rename(&mut self, path: &[u8]) -> Done {
        let to = self.path();
        if World::is_within(&to, path) || World::is_within(path, &to) {
            return Ok(());
        }
        let (from_dir, from_name) = self.place(path);
        let (to_dir, to_name) = self.place(&to);
        let there = self.state.names.get(&to).copied();
        let is_dir = |id: &Id| self.state.nodes[id].content.is_none();
        let id = self.state.names[path];
        let exchange = there.is_some() && self.rng.random_bool(0.3);
        let fits = there.is_none_or(|there| {
            exchange || is_dir(&there) == is_dir(&id) && (!is_dir(&id) || self.is_empty(&to))
        });
        if !fits || there == Some(id) {
            return Ok(());
        }
        let in_use = !exchange
            && self.rng.random_bool(0.3)
            && there.is_some_and(|id| {
                self.state.names.values().filter(|other| **other == id).count() == 1
            });
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        let used = |_| in_use;
        let done = self.fs.rename(from_dir, &from_name, to_dir, &to_name, flags, &used);
        if let Some(there) = there.filter(|_| in_use) {
            self.nameless.push(self.state.inos[&there]);
        }
        self.renamed.push(id);
        if exchange {
            self.renamed.extend(there);
            World::moved(&mut self.state.names, &to, b"\0");
            World::moved(&mut self.state.names, path, &to);
            World::moved(&mut self.state.names, b"\0", path);
        } else {
            self.state.names.remove(&to);
            World::moved(&mut self.state.names, path, &to);
        }
        self.sweep();
        ended(done)
    }

    /// Changes attributes.
    fn set(&mut self, path: &[u8]) -> Done {
        let ino = self.ino(path);
        let mut set = SetAttr::default();
        match self.rng.random_range(0..4) {
            0 if self.seen(path).content.is_some() => {
                let size = self.rng.random_range(0..9000);
                set.size = Some(size);
                self.seen(path).content.as_mut().unwrap().resize(size as usize, 0);
            }
            1 => {
                let flags = [0, flags::NO_DUMP][self.rng.random_range(0..2)];
                set.flags = Some(flags);
                self.seen(path).flags = flags;
            }
            2 => {
                let owner = self.rng.random_range(1..5);
                set.uid = Some(owner);
                self.seen(path).owner = owner;
            }
            _ => {
                let mode = 0o600 | self.rng.random_range(0..0o100);
                set.mode = Some(mode);
                let seen = self.seen(path);
                seen.mode = mode;
                if seen.xattrs.contains_key(ACCESS) {
                    seen.xattrs.insert(ACCESS.to_vec(), acl(mode));
                }
            }
        }
        ended(self.fs.setattr(ino, &set))
    }

    /// Changes extended attributes and lists.
    fn xattr(&mut self, path: &[u8]) -> Done {
        let ino = self.ino(path);
        if self.rng.random_bool(0.3) {
            let list = acl(self.seen(path).mode);
            let done = self.fs.set_xattr(ino, ACCESS, &list, SetXattr::default());
            self.seen(path).xattrs.insert(ACCESS.to_vec(), list);
            return ended(done);
        }
        let key = format!("user.{}", self.rng.random_range(0..3)).into_bytes();
        if self.seen(path).xattrs.contains_key(&key) && self.rng.random_bool(0.4) {
            let done = self.fs.remove_xattr(ino, &key);
            self.seen(path).xattrs.remove(&key);
            return ended(done);
        }
        // The larger ones do not fit among the system attributes.
        let most = if self.rng.random_bool(0.2) { 60_000 } else { 300 };
        let least = if self.one_in(8) { 0 } else { 1 };
        let value = vec![self.rng.random(); self.rng.random_range(least..most)];
        let done = self.fs.set_xattr(ino, &key, &value, SetXattr::default());
        self.seen(path).xattrs.insert(key, value);
        ended(done)
    }

    fn allocate(&mut self, path: &[u8]) -> Done {
        let most = self.seen(path).content.as_ref().map_or(0, Vec::len).max(6000) as u64;
        let (offset, len) = (self.rng.random_range(0..6000), self.rng.random_range(1..most));
        let all = [Allocate::Extend, Allocate::Zero, Allocate::ZeroKeepSize, Allocate::PunchHole];
        let what = all[self.rng.random_range(0..all.len())];
        let done = self.fs.allocate(self.ino(path), offset, len, what);
        let content = self.seen(path).content.as_mut().unwrap();
        let end = (offset + len) as usize;
        if matches!(what, Allocate::Extend | Allocate::Zero) {
            content.resize(content.len().max(end), 0);
        }
        if what != Allocate::Extend {
            let end = end.min(content.len());
            content[end.min(offset as usize)..end].fill(0);
        }
        ended(done)
    }

    /// A file without a name, which gets one or not.
    fn nameless(&mut self, path: Vec<u8>) -> Done {
        let (mode, umask, uid, gid) = (0o600, 0, 3, 2);
        let node = NewNode { kind: NodeKind::File, mode, umask, uid, gid, keep_setgid: true };
        let (dir, name) = self.place(&path);
        let ino = self.fs.tmpfile(dir, &node)?.ino;
        self.fs.write(ino, 0, b"nameless", false)?;
        if self.rng.random_bool(0.5) {
            self.nameless.push(ino);
            return Ok(());
        }
        let done = self.fs.link(ino, dir, &name);
        let content = Some(b"nameless".to_vec());
        let (link, flags, xattrs) = (false, 0, BTreeMap::new());
        self.add(path, ino, Seen { content, link, mode, owner: uid, flags, xattrs });
        ended(done)
    }

    /// Takes a name away. What was the last one of a file or directory that may stay in use.
    fn remove(&mut self, path: &[u8]) -> Done {
        let (dir, name) = self.place(path);
        let id = self.state.names[path];
        let (ino, used) = (self.state.inos[&id], self.rng.random_bool(0.4));
        let used = used && self.state.names.values().filter(|other| **other == id).count() == 1;
        let done = match self.state.nodes[&id].content.is_some() {
            true => ended(self.fs.unlink(dir, &name, &|_| used)),
            false if self.is_empty(path) => ended(self.fs.rmdir(dir, &name, &|_| used)),
            false => return Ok(()),
        };
        if used {
            self.nameless.push(ino);
        }
        self.state.names.remove(path);
        self.sweep();
        done
    }

    /// Ends the use of all files without a name.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn release_all(&mut self) -> Done {
        for ino in self.nameless.drain(..) {
            self.fs.release(ino)?;
        }
        Ok(())
    }

    /// Changes a file without a name, or ends its use.
    fn change_nameless(&mut self) -> Done {
        if self.nameless.is_empty() {
            return Ok(());
        }
        let at = self.rng.random_range(0..self.nameless.len());
        let ino = self.nameless[at];
        let is_file = self.fs.attr(ino)?.mode & 0o170_000 == 0o100_000;
        match self.rng.random_range(0..6) {
            0 if is_file => {
                let most = if self.one_in(2) { 9000 } else { 90_000 };
                let length = self.rng.random_range(1..most);
                self.fs.write(ino, 0, &vec![1; length], false)?;
            }
            1 => {
                let key = format!("user.{}", self.rng.random_range(0..3)).into_bytes();
                let value = vec![2; [10, 60_000][self.rng.random_range(0..2)]];
                if !is_file || self.fs.set_xattr(ino, &key, &value, SetXattr::default()).is_err() {
                    return Ok(());
                }
                if self.rng.random_bool(0.5) {
                    self.fs.remove_xattr(ino, &key)?;
                }
            }
            2 => {
                let uid = Some(self.rng.random_range(1..5));
                self.fs.setattr(ino, &SetAttr { uid, ..SetAttr::default() })?;
            }
            3 => {
                self.nameless.swap_remove(at);
                self.fs.release(ino)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes a change.
    fn change(&mut self, large: bool) -> Done {
        let path = self.path();
        let what = self.rng.random_range(0..20);
        let Some(id) = self.state.names.get(&path).copied() else {
            return if what == 0 { self.nameless(path) } else { self.create(path) };
        };
        self.touched.push(id);
        let is_dir = self.state.nodes[&id].content.is_none();
        match what {
            0 | 1 if !self.state.nodes[&id].link => self.set(&path),
            2 | 3 if !self.state.nodes[&id].link => self.xattr(&path),
            4 | 5 => self.remove(&path),
            6 | 7 => self.rename(&path),
            8 if !is_dir => self.link(&path),
            9 | 10 if !is_dir && !self.state.nodes[&id].link => self.allocate(&path),
            11 | 12 if !is_dir && !self.state.nodes[&id].link => self.copy(&path),
            _ if !is_dir && !self.state.nodes[&id].link => {
                self.write(&path, if large { 150_000 } else { 2000 })
            }
            _ => self.remove(&path),
        }
    }

    /// Makes a change and notes it.
    fn noted(&mut self, large: bool) -> Done {
        let begun = (self.at)();
        let done = self.change(large);
        let renamed = std::mem::take(&mut self.renamed);
        self.history.note(begun, &self.state.names, &self.state.nodes, &renamed);
        done
    }

    fn commit_all(&mut self) -> Done {
        self.engine.commit(self.fs.objset().id())?;
        self.is_stable();
        Ok(())
    }

    /// All that was changed so far is stable.
    pub fn is_stable(&mut self) {
        self.history.committed((self.at)(), None);
    }

    /// Has some nodes stable, and all names: `fsync` of files and of directories.
    fn commit(&mut self, mut ids: Vec<Id>) -> Done {
        ids.retain(|id| self.state.inos.contains_key(id));
        let inos: Vec<u64> = match ids.is_empty() {
            true => vec![self.fs.root()],
            false => ids.iter().map(|id| self.state.inos[id]).collect(),
        };
        self.engine.commit_objects(self.fs.objset().id(), &inos)?;
        self.history.committed((self.at)(), Some(ids));
        Ok(())
    }

    /// Has what was changed stable, as somebody asks for it.
    fn ask(&mut self) -> Done {
        let touched = std::mem::take(&mut self.touched);
        if self.sync == Sync::Disabled {
            return Ok(());
        }
        match self.rng.random_range(0..8) {
            0 => Ok(()),
            1..3 => self.commit_all(),
            3..6 => self.commit(touched),
            6 => {
                let all = self.state.nodes.keys().copied().collect();
                let some = self.one_of(all).into_iter().collect();
                self.commit(some)
            }
            _ => self.commit(Vec::new()),
        }
    }

    /// Makes some changes, and has them stable or not.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn step(&mut self) -> Done {
        self.change_nameless()?;
        let large = self.one_in(8);
        for _ in 0..if large { 1 } else { self.rng.random_range(1..=3) } {
            self.noted(large)?;
            if self.sync == Sync::Always {
                self.commit_all()?;
            }
        }
        self.ask()
    }
}

/// What is in a file system.
pub fn look(fs: &FileSystem) -> Tree {
    look_at(fs).unwrap()
}

/// What is in a file system.
///
/// # Errors
/// It cannot be read.
pub fn look_at(fs: &FileSystem) -> Result<Tree, Stopped> {
    let mut tree = Tree::new();
    look_below(fs, fs.root(), b"", &mut tree)?;
    Ok(tree)
}

fn look_below(fs: &FileSystem, dir: u64, path: &[u8], tree: &mut Tree) -> Done {
    for entry in fs.readdir(dir, 0, 1000)? {
        if entry.name.starts_with(b".") {
            continue;
        }
        let name = [path, &entry.name].concat();
        let attr = fs.attr(entry.ino)?;
        let kind = attr.mode & 0o170_000;
        let content = match kind {
            0o040_000 => None,
            0o120_000 => Some(fs.readlink(entry.ino)?),
            _ => {
                let mut data = vec![0; attr.size as usize];
                let n = fs.read(entry.ino, 0, &mut data)?;
                data.truncate(n);
                Some(data)
            }
        };
        let mut xattrs = BTreeMap::new();
        for name in fs.listxattr(entry.ino)? {
            let value = fs.getxattr(entry.ino, &name)?.unwrap_or_default();
            xattrs.insert(name, value);
        }
        let (mode, owner, flags) = (attr.mode & 0o7777, attr.uid, attr.flags & flags::NO_DUMP);
        let links = if content.is_some() { attr.nlink } else { 0 };
        let seen = Seen { content, link: kind == 0o120_000, mode, owner, flags, xattrs };
        tree.insert(name.clone(), Found { seen, ino: entry.ino, links });
        if kind == 0o040_000 {
            look_below(fs, entry.ino, &[&name[..], b"/"].concat(), tree)?;
        }
    }
    Ok(())
}

/// The file system of a dataset, by its name.
pub fn open(engine: &Engine, name: &str, xattr_sa: bool) -> Arc<FileSystem> {
    let dataset = engine.pool().dsl().find(name).unwrap().unwrap();
    FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), settings(xattr_sa)).unwrap()
}

/// The file system of the root dataset.
pub fn root(engine: &Engine, xattr_sa: bool) -> Arc<FileSystem> {
    open(engine, engine.pool().name(), xattr_sa)
}
