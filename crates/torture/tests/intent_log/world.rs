//! A file system that is changed at random, with a model of what is in it.
//!
//! Files have several names, directories are nested, and files are used without names. What counts as large is
//! small here ([`shrink`]), so that files and extended attributes that are removed are often freed in the background.

use crate::history::{Found, History, Id, Names, Seen, Tree};
use cenote_engine::Engine;
use cenote_torture::live::disk::Journal;
use cenote_zpl::{
    Allocate, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, SetXattr, Settings, Visibility,
    flags,
};
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether extended attributes are system attributes, and POSIX ACLs are on.
pub fn settings(xattr_sa: bool) -> Settings {
    let usual = Settings::default();
    let visibility = Visibility { posix_acl: true, ..usual.visibility };
    Settings { xattr_sa, visibility, record_size: 16 << 10, ..usual }
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

/// A file system that is worked with.
pub struct World {
    pub rng: SmallRng,
    pub engine: Arc<Engine>,
    pub fs: Arc<FileSystem>,
    pub journal: Arc<Journal>,
    pub sync: Sync,
    pub history: History,
    names: Names,
    nodes: BTreeMap<Id, Seen>,
    inos: BTreeMap<Id, u64>,
    next: Id,
    /// Files without a name that are in use.
    nameless: Vec<u64>,
    /// Whom the present change renamed, and what it was about.
    renamed: Vec<Id>,
    touched: Vec<Id>,
}

impl World {
    pub fn new(
        rng: SmallRng,
        engine: Arc<Engine>,
        fs: Arc<FileSystem>,
        journal: Arc<Journal>,
    ) -> World {
        let (names, nodes, inos, nameless, renamed, touched) = Default::default();
        let mut history = History::default();
        history.set(&names, &nodes);
        let (sync, next) = (Sync::Standard, 0);
        World {
            rng,
            engine,
            fs,
            journal,
            sync,
            history,
            names,
            nodes,
            inos,
            next,
            nameless,
            renamed,
            touched,
        }
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
        let is_dir = |id: &Id| self.nodes[id].content.is_none();
        let dirs = self.names.iter().filter(|(_, id)| is_dir(id)).map(|(name, _)| name.clone());
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
        self.inos[&self.names[path]]
    }

    fn seen(&mut self, path: &[u8]) -> &mut Seen {
        self.nodes.get_mut(&self.names[path]).unwrap()
    }

    fn add(&mut self, path: Vec<u8>, ino: u64, seen: Seen) {
        let id = self.next;
        self.next += 1;
        self.names.insert(path, id);
        self.nodes.insert(id, seen);
        self.inos.insert(id, ino);
        self.touched.push(id);
    }

    /// Forgets nodes without names.
    fn sweep(&mut self) {
        let names = &self.names;
        self.nodes.retain(|id, _| names.values().any(|named| named == id));
        let nodes = &self.nodes;
        self.inos.retain(|id, _| nodes.contains_key(id));
    }

    fn write(&mut self, path: &[u8], most: usize) {
        let offset = self.rng.random_range(0..6000);
        let len = self.rng.random_range(1..=most);
        let data: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
        self.fs.write(self.ino(path), offset as u64, &data, false).unwrap();
        let Some(content) = &mut self.seen(path).content else { return };
        content.resize(content.len().max(offset + len), 0);
        content[offset..offset + len].copy_from_slice(&data);
    }

    /// Copies a file to another one, which clones whole blocks.
    fn copy(&mut self, path: &[u8]) {
        let to = self.path();
        let Some(id) = self.names.get(&to).copied() else { return };
        if id == self.names[path] || self.nodes[&id].link {
            return;
        }
        let content = self.seen(path).content.clone().unwrap();
        let Some(other) = &mut self.seen(&to).content else { return };
        other.resize(other.len().max(content.len()), 0);
        other[..content.len()].copy_from_slice(&content);
        let done = self.fs.copy_range(self.ino(path), 0, self.ino(&to), 0, u64::MAX).unwrap();
        assert_eq!(done, content.len() as u64);
        self.touched.push(id);
    }

    fn create(&mut self, path: Vec<u8>) {
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
        let ino = self.fs.create(dir, &name, &node).unwrap().ino;
        let content = match what {
            0..2 => None,
            2 => Some(target),
            _ => Some(Vec::new()),
        };
        let (link, flags, xattrs) = (what == 2, 0, BTreeMap::new());
        self.add(path, ino, Seen { content, link, mode, owner: uid, flags, xattrs });
    }

    /// One more name of what is no directory.
    fn link(&mut self, path: &[u8]) {
        let to = self.path();
        if self.names.contains_key(&to) {
            return;
        }
        let (dir, name) = self.place(&to);
        self.fs.link(self.ino(path), dir, &name).unwrap();
        self.names.insert(to, self.names[path]);
    }

    /// Whether `path` is below the directory `dir`, or is that.
    fn is_within(path: &[u8], dir: &[u8]) -> bool {
        path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    }

    fn is_empty(&self, dir: &[u8]) -> bool {
        !self.names.keys().any(|other| other != dir && World::is_within(other, dir))
    }

    /// Gives all below `from` names below `to`.
    fn moved(names: &mut Names, from: &[u8], to: &[u8]) {
        let all: Vec<_> = names.keys().filter(|p| World::is_within(p, from)).cloned().collect();
        for path in all {
            let id = names.remove(&path).unwrap();
            names.insert([to, &path[from.len()..]].concat(), id);
        }
    }

    fn rename(&mut self, path: &[u8]) {
        let to = self.path();
        if World::is_within(&to, path) || World::is_within(path, &to) {
            return;
        }
        let (from_dir, from_name) = self.place(path);
        let (to_dir, to_name) = self.place(&to);
        let there = self.names.get(&to).copied();
        let is_dir = |id: &Id| self.nodes[id].content.is_none();
        let id = self.names[path];
        let exchange = there.is_some() && self.rng.random_bool(0.3);
        let fits = there.is_none_or(|there| {
            exchange || is_dir(&there) == is_dir(&id) && (!is_dir(&id) || self.is_empty(&to))
        });
        if !fits || there == Some(id) {
            return;
        }
        let in_use = !exchange
            && self.rng.random_bool(0.3)
            && there
                .is_some_and(|id| self.names.values().filter(|other| **other == id).count() == 1);
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        let used = |_| in_use;
        self.fs.rename(from_dir, &from_name, to_dir, &to_name, flags, &used).unwrap();
        if let Some(there) = there.filter(|_| in_use) {
            self.nameless.push(self.inos[&there]);
        }
        self.renamed.push(id);
        if exchange {
            self.renamed.extend(there);
            World::moved(&mut self.names, &to, b"\0");
            World::moved(&mut self.names, path, &to);
            World::moved(&mut self.names, b"\0", path);
        } else {
            self.names.remove(&to);
            World::moved(&mut self.names, path, &to);
        }
        self.sweep();
    }

    /// Changes attributes.
    fn set(&mut self, path: &[u8]) {
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
        self.fs.setattr(ino, &set).unwrap();
    }

    /// Changes extended attributes and lists.
    fn xattr(&mut self, path: &[u8]) {
        let ino = self.ino(path);
        if self.rng.random_bool(0.3) {
            let list = acl(self.seen(path).mode);
            self.fs.set_xattr(ino, ACCESS, &list, SetXattr::default()).unwrap();
            self.seen(path).xattrs.insert(ACCESS.to_vec(), list);
            return;
        }
        let key = format!("user.{}", self.rng.random_range(0..3)).into_bytes();
        if self.seen(path).xattrs.contains_key(&key) && self.rng.random_bool(0.4) {
            self.fs.remove_xattr(ino, &key).unwrap();
            self.seen(path).xattrs.remove(&key);
            return;
        }
        // The larger ones do not fit among the system attributes.
        let most = if self.rng.random_bool(0.2) { 60_000 } else { 300 };
        let least = if self.one_in(8) { 0 } else { 1 };
        let value = vec![self.rng.random(); self.rng.random_range(least..most)];
        self.fs.set_xattr(ino, &key, &value, SetXattr::default()).unwrap();
        self.seen(path).xattrs.insert(key, value);
    }

    fn allocate(&mut self, path: &[u8]) {
        let most = self.seen(path).content.as_ref().map_or(0, Vec::len).max(6000) as u64;
        let (offset, len) = (self.rng.random_range(0..6000), self.rng.random_range(1..most));
        let all = [Allocate::Extend, Allocate::Zero, Allocate::ZeroKeepSize, Allocate::PunchHole];
        let what = all[self.rng.random_range(0..all.len())];
        self.fs.allocate(self.ino(path), offset, len, what).unwrap();
        let content = self.seen(path).content.as_mut().unwrap();
        let end = (offset + len) as usize;
        if matches!(what, Allocate::Extend | Allocate::Zero) {
            content.resize(content.len().max(end), 0);
        }
        if what != Allocate::Extend {
            let end = end.min(content.len());
            content[end.min(offset as usize)..end].fill(0);
        }
    }

    /// A file without a name, which gets one or not.
    fn nameless(&mut self, path: Vec<u8>) {
        let (mode, umask, uid, gid) = (0o600, 0, 3, 2);
        let node = NewNode { kind: NodeKind::File, mode, umask, uid, gid, keep_setgid: true };
        let (dir, name) = self.place(&path);
        let ino = self.fs.tmpfile(dir, &node).unwrap().ino;
        self.fs.write(ino, 0, b"nameless", false).unwrap();
        if self.rng.random_bool(0.5) {
            self.nameless.push(ino);
            return;
        }
        self.fs.link(ino, dir, &name).unwrap();
        let content = Some(b"nameless".to_vec());
        let (link, flags, xattrs) = (false, 0, BTreeMap::new());
        self.add(path, ino, Seen { content, link, mode, owner: uid, flags, xattrs });
    }

    /// Takes a name away. What was the last one of a file or directory that may stay in use.
    fn remove(&mut self, path: &[u8]) {
        let (dir, name) = self.place(path);
        let id = self.names[path];
        let (ino, used) = (self.inos[&id], self.rng.random_bool(0.4));
        let used = used && self.names.values().filter(|other| **other == id).count() == 1;
        if self.nodes[&id].content.is_some() {
            self.fs.unlink(dir, &name, &|_| used).unwrap();
        } else if self.is_empty(path) {
            self.fs.rmdir(dir, &name, &|_| used).unwrap();
        } else {
            return;
        }
        if used {
            self.nameless.push(ino);
        }
        self.names.remove(path);
        self.sweep();
    }

    /// Ends the use of all files without a name.
    pub fn release_all(&mut self) {
        for ino in self.nameless.drain(..) {
            self.fs.release(ino).unwrap();
        }
    }

    /// Changes a file without a name, or ends its use.
    fn change_nameless(&mut self) {
        if self.nameless.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..self.nameless.len());
        let ino = self.nameless[at];
        let is_file = self.fs.attr(ino).unwrap().mode & 0o170_000 == 0o100_000;
        match self.rng.random_range(0..6) {
            0 if is_file => {
                let most = if self.one_in(2) { 9000 } else { 90_000 };
                let length = self.rng.random_range(1..most);
                self.fs.write(ino, 0, &vec![1; length], false).unwrap();
            }
            1 => {
                let key = format!("user.{}", self.rng.random_range(0..3)).into_bytes();
                let value = vec![2; [10, 60_000][self.rng.random_range(0..2)]];
                if !is_file || self.fs.set_xattr(ino, &key, &value, SetXattr::default()).is_err() {
                    return;
                }
                if self.rng.random_bool(0.5) {
                    self.fs.remove_xattr(ino, &key).unwrap();
                }
            }
            2 => {
                let uid = Some(self.rng.random_range(1..5));
                self.fs.setattr(ino, &SetAttr { uid, ..SetAttr::default() }).unwrap();
            }
            3 => {
                self.nameless.swap_remove(at);
                self.fs.release(ino).unwrap();
            }
            _ => {}
        }
    }

    /// Makes a change.
    fn change(&mut self, large: bool) {
        let path = self.path();
        let what = self.rng.random_range(0..20);
        let Some(id) = self.names.get(&path).copied() else {
            return if what == 0 { self.nameless(path) } else { self.create(path) };
        };
        self.touched.push(id);
        let is_dir = self.nodes[&id].content.is_none();
        match what {
            0 | 1 if !self.nodes[&id].link => self.set(&path),
            2 | 3 if !self.nodes[&id].link => self.xattr(&path),
            4 | 5 => self.remove(&path),
            6 | 7 => self.rename(&path),
            8 if !is_dir => self.link(&path),
            9 | 10 if !is_dir && !self.nodes[&id].link => self.allocate(&path),
            11 | 12 if !is_dir && !self.nodes[&id].link => self.copy(&path),
            _ if !is_dir && !self.nodes[&id].link => {
                self.write(&path, if large { 150_000 } else { 2000 });
            }
            _ => self.remove(&path),
        }
    }

    /// Makes a change and notes it.
    fn noted(&mut self, large: bool) {
        let begun = self.journal.len();
        self.change(large);
        let renamed = std::mem::take(&mut self.renamed);
        self.history.note(begun, &self.names, &self.nodes, &renamed);
    }

    fn commit_all(&mut self) {
        self.engine.commit(self.fs.objset().id()).unwrap();
        self.history.committed(self.journal.len(), None);
    }

    /// Has some nodes stable, and all names: `fsync` of files and of directories.
    fn commit(&mut self, mut ids: Vec<Id>) {
        ids.retain(|id| self.inos.contains_key(id));
        let inos: Vec<u64> = match ids.is_empty() {
            true => vec![self.fs.root()],
            false => ids.iter().map(|id| self.inos[id]).collect(),
        };
        self.engine.commit_objects(self.fs.objset().id(), &inos).unwrap();
        self.history.committed(self.journal.len(), Some(ids));
    }

    /// Has what was changed stable, as somebody asks for it.
    fn ask(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        if self.sync == Sync::Disabled {
            return;
        }
        match self.rng.random_range(0..8) {
            0 => {}
            1..3 => self.commit_all(),
            3..6 => self.commit(touched),
            6 => {
                let all = self.nodes.keys().copied().collect();
                let some = self.one_of(all).into_iter().collect();
                self.commit(some);
            }
            _ => self.commit(Vec::new()),
        }
    }

    /// Makes some changes, and has them stable or not.
    pub fn step(&mut self) {
        self.change_nameless();
        let large = self.one_in(8);
        for _ in 0..if large { 1 } else { self.rng.random_range(1..=3) } {
            self.noted(large);
            if self.sync == Sync::Always {
                self.commit_all();
            }
        }
        self.ask();
    }
}

/// What is in a file system.
pub fn look(fs: &FileSystem) -> Tree {
    let mut tree = Tree::new();
    look_below(fs, fs.root(), b"", &mut tree);
    tree
}

fn look_below(fs: &FileSystem, dir: u64, path: &[u8], tree: &mut Tree) {
    for entry in fs.readdir(dir, 0, 1000).unwrap() {
        if entry.name.starts_with(b".") {
            continue;
        }
        let name = [path, &entry.name].concat();
        let attr = fs.attr(entry.ino).unwrap();
        let kind = attr.mode & 0o170_000;
        let content = match kind {
            0o040_000 => None,
            0o120_000 => Some(fs.readlink(entry.ino).unwrap()),
            _ => {
                let mut data = vec![0; attr.size as usize];
                assert_eq!(fs.read(entry.ino, 0, &mut data).unwrap(), data.len());
                Some(data)
            }
        };
        let names = fs.listxattr(entry.ino).unwrap().into_iter();
        let value = |name: &[u8]| fs.getxattr(entry.ino, name).unwrap().unwrap();
        let xattrs = names.map(|name| (name.clone(), value(&name))).collect();
        let (mode, owner, flags) = (attr.mode & 0o7777, attr.uid, attr.flags & flags::NO_DUMP);
        let links = if content.is_some() { attr.nlink } else { 0 };
        let seen = Seen { content, link: kind == 0o120_000, mode, owner, flags, xattrs };
        tree.insert(name.clone(), Found { seen, ino: entry.ino, links });
        if kind == 0o040_000 {
            look_below(fs, entry.ino, &[&name[..], b"/"].concat(), tree);
        }
    }
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
