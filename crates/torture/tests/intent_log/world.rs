//! A file system that is changed at random, with a model of what is in it.

use cenote_engine::Engine;
use cenote_zpl::{
    Allocate, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, SetXattr, Settings, Visibility,
    flags,
};
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a file or directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// What a file holds; `None`: a directory.
    pub content: Option<Vec<u8>>,
    pub mode: u32,
    pub owner: u32,
    pub flags: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// By names.
pub type Tree = BTreeMap<Vec<u8>, Seen>;

/// Whether extended attributes are system attributes, and POSIX ACLs are on.
pub fn settings(xattr_sa: bool) -> Settings {
    let usual = Settings::default();
    Settings { xattr_sa, visibility: Visibility { posix_acl: true, ..usual.visibility }, ..usual }
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

/// A pool that is worked with.
pub struct World {
    pub rng: SmallRng,
    pub engine: Arc<Engine>,
    pub fs: Arc<FileSystem>,
    pub tree: Tree,
    /// Files without a name that are in use.
    pub nameless: Vec<u64>,
}

impl World {
    fn name(&mut self) -> Vec<u8> {
        format!("f{}", self.rng.random_range(0..12)).into_bytes()
    }

    fn ino(&self, name: &[u8]) -> u64 {
        self.fs.lookup(self.fs.root(), name).unwrap()
    }

    fn seen(&mut self, name: &[u8]) -> &mut Seen {
        self.tree.get_mut(name).unwrap()
    }

    fn write(&mut self, name: &[u8], most: usize) {
        let offset = self.rng.random_range(0..6000);
        let len = self.rng.random_range(1..=most);
        let data: Vec<u8> = (0..len).map(|_| self.rng.random()).collect();
        self.fs.write(self.ino(name), offset as u64, &data, false).unwrap();
        let Some(content) = &mut self.seen(name).content else { return };
        content.resize(content.len().max(offset + len), 0);
        content[offset..offset + len].copy_from_slice(&data);
    }

    /// Copies a file to another one, which clones whole blocks.
    fn copy(&mut self, name: &[u8]) {
        let to = self.name();
        let other = self.tree.get(&to).and_then(|seen| seen.content.clone());
        let (Some(mut other), true) = (other, to != name) else { return };
        let content = self.seen(name).content.clone().unwrap();
        let done = self.fs.copy_range(self.ino(name), 0, self.ino(&to), 0, u64::MAX).unwrap();
        assert_eq!(done, content.len() as u64);
        other.resize(other.len().max(content.len()), 0);
        other[..content.len()].copy_from_slice(&content);
        self.seen(&to).content = Some(other);
    }

    fn create(&mut self, name: Vec<u8>) {
        let is_dir = self.rng.random_bool(0.2);
        let kind = if is_dir { NodeKind::Dir } else { NodeKind::File };
        let (mode, umask, uid, gid) = (0o644, 0, 1, 2);
        let node = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
        self.fs.create(self.fs.root(), &name, &node).unwrap();
        let content = if is_dir { None } else { Some(Vec::new()) };
        let (flags, xattrs) = (0, BTreeMap::new());
        self.tree.insert(name, Seen { content, mode, owner: uid, flags, xattrs });
    }

    fn rename(&mut self, name: &[u8]) {
        let (root, to) = (self.fs.root(), self.name());
        if to != name && self.tree.get(&to).is_none_or(|there| there.content.is_some()) {
            let flags = RenameFlags::default();
            self.fs.rename(root, name, root, &to, flags, &|_| false).unwrap();
            let seen = self.tree.remove(name).unwrap();
            self.tree.insert(to, seen);
        }
    }

    /// Changes attributes.
    fn set(&mut self, name: &[u8]) {
        let ino = self.ino(name);
        let mut set = SetAttr::default();
        match self.rng.random_range(0..4) {
            0 if self.seen(name).content.is_some() => {
                let size = self.rng.random_range(0..9000);
                set.size = Some(size);
                self.seen(name).content.as_mut().unwrap().resize(size as usize, 0);
            }
            1 => {
                let flags = [0, flags::NO_DUMP][self.rng.random_range(0..2)];
                set.flags = Some(flags);
                self.seen(name).flags = flags;
            }
            2 => {
                let owner = self.rng.random_range(1..5);
                set.uid = Some(owner);
                self.seen(name).owner = owner;
            }
            _ => {
                let mode = 0o600 | self.rng.random_range(0..0o100);
                set.mode = Some(mode);
                let seen = self.seen(name);
                seen.mode = mode;
                if seen.xattrs.contains_key(ACCESS) {
                    seen.xattrs.insert(ACCESS.to_vec(), acl(mode));
                }
            }
        }
        self.fs.setattr(ino, &set).unwrap();
    }

    /// Changes extended attributes and lists.
    fn xattr(&mut self, name: &[u8]) {
        let ino = self.ino(name);
        if self.rng.random_bool(0.3) {
            let list = acl(self.seen(name).mode);
            self.fs.set_xattr(ino, ACCESS, &list, SetXattr::default()).unwrap();
            self.seen(name).xattrs.insert(ACCESS.to_vec(), list);
            return;
        }
        let key = format!("user.{}", self.rng.random_range(0..3)).into_bytes();
        if self.seen(name).xattrs.contains_key(&key) && self.rng.random_bool(0.4) {
            self.fs.remove_xattr(ino, &key).unwrap();
            self.seen(name).xattrs.remove(&key);
            return;
        }
        // The larger ones do not fit among the system attributes.
        let most = if self.rng.random_bool(0.2) { 60_000 } else { 300 };
        let value = vec![self.rng.random(); self.rng.random_range(1..most)];
        self.fs.set_xattr(ino, &key, &value, SetXattr::default()).unwrap();
        self.seen(name).xattrs.insert(key, value);
    }

    fn allocate(&mut self, name: &[u8]) {
        let (offset, len) = (self.rng.random_range(0..6000), self.rng.random_range(1..6000));
        let all = [Allocate::Extend, Allocate::Zero, Allocate::ZeroKeepSize, Allocate::PunchHole];
        let what = all[self.rng.random_range(0..all.len())];
        self.fs.allocate(self.ino(name), offset, len, what).unwrap();
        let content = self.seen(name).content.as_mut().unwrap();
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
    fn nameless(&mut self, name: Vec<u8>) {
        let (mode, umask, uid, gid) = (0o600, 0, 3, 2);
        let node = NewNode { kind: NodeKind::File, mode, umask, uid, gid, keep_setgid: true };
        let root = self.fs.root();
        let ino = self.fs.tmpfile(root, &node).unwrap().ino;
        self.fs.write(ino, 0, b"nameless", false).unwrap();
        self.nameless.push(ino);
        if self.rng.random_bool(0.5) {
            self.nameless.pop();
            self.fs.link(ino, root, &name).unwrap();
            let content = Some(b"nameless".to_vec());
            let (flags, xattrs) = (0, BTreeMap::new());
            self.tree.insert(name, Seen { content, mode, owner: uid, flags, xattrs });
        }
    }

    /// Takes the name of a file away, which stays in use or not.
    fn unlink(&mut self, name: &[u8]) {
        let (ino, used) = (self.ino(name), self.rng.random_bool(0.5));
        self.fs.unlink(self.fs.root(), name, &|_| used).unwrap();
        self.tree.remove(name);
        if used {
            self.nameless.push(ino);
        }
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
        match self.rng.random_range(0..5) {
            0 => {
                let length = self.rng.random_range(1..9000);
                self.fs.write(ino, 0, &vec![1; length], false).unwrap();
            }
            1 => {
                let key = format!("user.{}", self.rng.random_range(0..3)).into_bytes();
                let value = vec![2; [10, 60_000][self.rng.random_range(0..2)]];
                self.fs.set_xattr(ino, &key, &value, SetXattr::default()).unwrap();
                if self.rng.random_bool(0.5) {
                    self.fs.remove_xattr(ino, &key).unwrap();
                }
            }
            2 => {
                self.nameless.swap_remove(at);
                self.fs.release(ino).unwrap();
            }
            _ => {}
        }
    }

    /// Makes a change.
    fn change(&mut self, large: bool) {
        let (root, name) = (self.fs.root(), self.name());
        let what = self.rng.random_range(0..16);
        match self.tree.get(&name).map(|seen| seen.content.is_some()) {
            None if what == 0 => self.nameless(name),
            None => self.create(name),
            Some(_) if what < 2 => self.set(&name),
            Some(_) if what < 4 => self.xattr(&name),
            Some(false) => {
                self.fs.rmdir(root, &name, &|_| false).unwrap();
                self.tree.remove(&name);
            }
            Some(true) => match what {
                4 => self.unlink(&name),
                5 | 6 => self.rename(&name),
                7 | 8 => self.allocate(&name),
                9 | 10 => self.copy(&name),
                _ => self.write(&name, if large { 150_000 } else { 2000 }),
            },
        }
    }

    /// Makes some changes, and has them stable. Returns what there was after each.
    pub fn step(&mut self) -> Vec<Tree> {
        match self.rng.random_range(0..20) {
            0 => self.engine.sync().unwrap(),
            1 => self.engine.sync_task(|_| Ok(())).unwrap(),
            _ => {}
        }
        self.change_nameless();
        let large = self.rng.random_bool(0.1);
        let mut trees = Vec::new();
        for _ in 0..if large { 1 } else { self.rng.random_range(1..=3) } {
            self.change(large);
            trees.push(self.tree.clone());
        }
        self.engine.commit(self.fs.objset().id()).unwrap();
        trees
    }
}

/// What is in the root directory.
pub fn look(fs: &FileSystem) -> Tree {
    let mut tree = Tree::new();
    for entry in fs.readdir(fs.root(), 0, 1000).unwrap() {
        if entry.name.starts_with(b".") {
            continue;
        }
        let attr = fs.attr(entry.ino).unwrap();
        let is_dir = attr.mode & 0o170_000 == 0o040_000;
        let content = (!is_dir).then(|| {
            let mut data = vec![0; attr.size as usize];
            assert_eq!(fs.read(entry.ino, 0, &mut data).unwrap(), data.len());
            data
        });
        let names = fs.listxattr(entry.ino).unwrap().into_iter();
        let value = |name: &[u8]| fs.getxattr(entry.ino, name).unwrap().unwrap();
        let xattrs = names.map(|name| (name.clone(), value(&name))).collect();
        let (mode, owner, flags) = (attr.mode & 0o7777, attr.uid, attr.flags & flags::NO_DUMP);
        tree.insert(entry.name.clone(), Seen { content, mode, owner, flags, xattrs });
    }
    tree
}

/// The file system of the root dataset.
pub fn root(engine: &Engine, xattr_sa: bool) -> Arc<FileSystem> {
    let dataset = engine.pool().dsl().root().unwrap();
    FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), settings(xattr_sa)).unwrap()
}

/// Whether `now` is what a crash may leave of a change from `before` to `after` that takes several records: of
/// a file that has the same name before and after, some bytes, attributes and extended attributes are
/// those before, the others those after. Names are changed as a whole.
pub fn is_between(now: &Tree, before: &Tree, after: &Tree) -> bool {
    if !before.keys().eq(after.keys()) {
        return now == before || now == after;
    }
    now.keys().eq(before.keys())
        && now.iter().all(|(name, seen)| mixed(seen, &before[name], &after[name]))
}

fn mixed(now: &Seen, before: &Seen, after: &Seen) -> bool {
    let content = match (&now.content, &before.content, &after.content) {
        (Some(now), Some(before), Some(after)) => {
            let lengths = before.len().min(after.len())..=before.len().max(after.len());
            let byte = |content: &[u8], i: usize| content.get(i).copied().unwrap_or(0);
            let known = |(i, b): (usize, &u8)| *b == byte(before, i) || *b == byte(after, i);
            lengths.contains(&now.len()) && now.iter().enumerate().all(known)
        }
        (now, before, after) => now == before && now == after,
    };
    let xattr = |(name, value): (&Vec<u8>, &Vec<u8>)| {
        let (before, after) = (before.xattrs.get(name), after.xattrs.get(name));
        Some(value) == before || Some(value) == after || before != after && value.is_empty()
    };
    // What is neither new nor gone is there.
    let stays = |(name, value): (&Vec<u8>, &Vec<u8>)| {
        after.xattrs.get(name) != Some(value) || now.xattrs.contains_key(name)
    };
    content
        && [before.mode, after.mode].contains(&now.mode)
        && [before.owner, after.owner].contains(&now.owner)
        && [before.flags, after.flags].contains(&now.flags)
        && now.xattrs.iter().all(xattr)
        && before.xattrs.iter().all(stays)
}
