//! A model of a file system, for tests: what it should hold, and what operations should say.
//!
//! Everything is counted by object numbers, which the file system itself gives out.

#![allow(clippy::unwrap_used, clippy::panic)]

use cenote_zpl::{FileSystem, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Linux's error numbers.
pub mod errno {
    #![allow(missing_docs)]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EEXIST: i32 = 17;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const ENOTEMPTY: i32 = 39;
    pub const ENODATA: i32 = 61;
    pub const EDQUOT: i32 = 122;
}
use errno::*;

/// Why something is not as it should be.
pub type Verdict = Result<(), String>;

/// Refuses with a message unless something holds.
#[macro_export]
macro_rules! demand {
    ($holds:expr, $($why:tt)*) => {
        if !$holds {
            return Err(format!($($why)*));
        }
    };
}

/// What an operation says.
pub type Done<T> = Result<T, i32>;

/// What is in a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Bytes.
    File(Arc<Vec<u8>>),
    /// Names.
    Dir(BTreeMap<Vec<u8>, u64>),
    /// A target.
    Symlink(Vec<u8>),
    /// A device, or a pipe: the type's bits of the mode, and the device's numbers.
    Special(u32, (u32, u32)),
}

/// A node.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Node {
    pub body: Body,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u64,
    pub parent: u64,
    pub mtime: Time,
    pub ctime: Time,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// In use: it stays when its last name goes.
    pub open: bool,
}

impl Node {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }

    fn entries(&self) -> &BTreeMap<Vec<u8>, u64> {
        match &self.body {
            Body::Dir(entries) => entries,
            body => panic!("no directory: {body:?}"),
        }
    }

    fn kind(&self) -> u32 {
        match &self.body {
            Body::File(_) => 0o100_000,
            Body::Dir(_) => 0o040_000,
            Body::Symlink(_) => 0o120_000,
            Body::Special(kind, _) => *kind,
        }
    }
}

/// A file system.
#[derive(Clone, Debug)]
pub struct Files {
    /// The root directory.
    pub root: u64,
    /// All nodes.
    pub nodes: BTreeMap<u64, Arc<Node>>,
}

impl Files {
    /// A new one.
    pub fn new(root: u64) -> Files {
        let node = Node {
            body: Body::Dir(BTreeMap::new()),
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            parent: root,
            mtime: (0, 0),
            ctime: (0, 0),
            xattrs: BTreeMap::new(),
            open: true,
        };
        Files { root, nodes: BTreeMap::from([(root, Arc::new(node))]) }
    }

    /// A node, to be changed.
    pub fn node(&mut self, ino: u64) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&ino).unwrap())
    }

    fn entries(&mut self, dir: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.node(dir).body {
            Body::Dir(entries) => entries,
            body => panic!("no directory: {body:?}"),
        }
    }

    fn dir_changed(&mut self, dir: u64, dirs: i64, now: Time) {
        let node = self.node(dir);
        node.nlink = node.nlink.checked_add_signed(dirs).unwrap();
        (node.mtime, node.ctime) = (now, now);
    }

    /// What a name leads to.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.nodes[&dir].entries().get(name).copied()
    }

    /// The nodes that have a name and are what `f` wants.
    pub fn list(&self, f: impl Fn(&Node) -> bool) -> Vec<u64> {
        self.nodes.iter().filter(|(_, n)| n.nlink > 0 && f(n)).map(|(i, _)| *i).collect()
    }

    /// The names in a directory.
    pub fn names(&self, dir: u64) -> Vec<Vec<u8>> {
        self.nodes[&dir].entries().keys().cloned().collect()
    }

    /// The nodes without a name.
    pub fn orphans(&self) -> usize {
        self.nodes.values().filter(|n| n.nlink == 0).count()
    }

    /// Nothing is in use any more.
    pub fn close_all(&mut self) {
        let open: Vec<u64> = self.nodes.iter().filter(|(_, n)| n.open).map(|(i, _)| *i).collect();
        let root = self.root;
        open.into_iter().filter(|i| *i != root).for_each(|i| self.node(i).open = false);
    }

    /// Orphans that a crash or an export left are gone.
    pub fn drain(&mut self) {
        self.nodes.retain(|_, n| n.nlink > 0);
    }

    /// Whether a name is free.
    pub fn can_create(&self, dir: u64, name: &[u8]) -> Done<()> {
        if self.lookup(dir, name).is_some() { Err(EEXIST) } else { Ok(()) }
    }

    /// A new node.
    pub fn create(&mut self, dir: u64, name: &[u8], ino: u64, node: Node) {
        let (dirs, now) = (i64::from(node.is_dir()), node.ctime);
        assert!(self.nodes.insert(ino, Arc::new(node)).is_none(), "object {ino} is in use");
        self.entries(dir).insert(name.to_vec(), ino);
        self.dir_changed(dir, dirs, now);
    }

    /// One name more.
    pub fn link(&mut self, ino: u64, dir: u64, name: &[u8], now: Time) -> Done<()> {
        if self.node(ino).is_dir() {
            return Err(EPERM);
        }
        self.can_create(dir, name)?;
        self.entries(dir).insert(name.to_vec(), ino);
        self.dir_changed(dir, 0, now);
        let node = self.node(ino);
        node.nlink += 1;
        node.parent = dir;
        node.ctime = now;
        Ok(())
    }

    fn drop_link(&mut self, ino: u64, now: Time) {
        let node = self.node(ino);
        node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
        node.ctime = now;
        if node.nlink == 0 && !node.open {
            self.nodes.remove(&ino);
        }
    }

    /// `unlink` and `rmdir`.
    pub fn remove(&mut self, dir: u64, name: &[u8], is_dir: bool, now: Time) -> Done<()> {
        let ino = self.lookup(dir, name).ok_or(ENOENT)?;
        let node = &self.nodes[&ino];
        match (node.is_dir(), is_dir) {
            (true, false) => return Err(EISDIR),
            (false, true) => return Err(ENOTDIR),
            (true, true) if !node.entries().is_empty() => return Err(ENOTEMPTY),
            _ => {}
        }
        self.entries(dir).remove(name);
        self.dir_changed(dir, -i64::from(is_dir), now);
        self.drop_link(ino, now);
        Ok(())
    }

    fn inside(&self, mut dir: u64, below: u64) -> bool {
        loop {
            if dir == below {
                return true;
            }
            if dir == self.root {
                return false;
            }
            dir = self.nodes[&dir].parent;
        }
    }

    /// `renameat2`.
    pub fn rename(
        &mut self,
        (dir, name): (u64, &[u8]),
        (to, new): (u64, &[u8]),
        (no_replace, exchange): (bool, bool),
        now: Time,
    ) -> Done<()> {
        let ino = self.lookup(dir, name).ok_or(ENOENT)?;
        if (dir, name) == (to, new) {
            return Ok(());
        }
        let is_dir = self.nodes[&ino].is_dir();
        if is_dir && dir != to && self.inside(to, ino) {
            return Err(EINVAL);
        }
        let mut dirs = i64::from(is_dir);
        match self.lookup(to, new) {
            None if exchange => return Err(ENOENT),
            None => {}
            Some(_) if no_replace => return Err(EEXIST),
            Some(old) if old == ino => return Ok(()),
            Some(old) if exchange => {
                let old_is_dir = self.nodes[&old].is_dir();
                if old_is_dir && dir != to && self.inside(dir, old) {
                    return Err(EINVAL);
                }
                dirs -= i64::from(old_is_dir);
                self.entries(dir).insert(name.to_vec(), old);
                self.entries(to).insert(new.to_vec(), ino);
                self.moved(dir, to, dirs, now);
                self.settled(ino, to, now);
                self.settled(old, dir, now);
                return Ok(());
            }
            Some(old) => {
                let there = &self.nodes[&old];
                let there_is_dir = there.is_dir();
                match (is_dir, there_is_dir) {
                    (true, false) => return Err(ENOTDIR),
                    (false, true) => return Err(EISDIR),
                    (true, true) if !there.entries().is_empty() => return Err(ENOTEMPTY),
                    _ => {}
                }
                self.entries(to).remove(new);
                self.dir_changed(to, -i64::from(there_is_dir), now);
                self.drop_link(old, now);
            }
        }
        self.entries(dir).remove(name);
        self.entries(to).insert(new.to_vec(), ino);
        self.moved(dir, to, dirs, now);
        self.settled(ino, to, now);
        Ok(())
    }

    fn moved(&mut self, dir: u64, to: u64, dirs: i64, now: Time) {
        self.dir_changed(dir, -dirs, now);
        self.dir_changed(to, dirs, now);
    }

    fn settled(&mut self, ino: u64, dir: u64, now: Time) {
        let node = self.node(ino);
        (node.parent, node.ctime) = (dir, now);
    }

    /// Changes the contents of a file.
    pub fn modify(&mut self, ino: u64, now: Time, f: impl FnOnce(&mut Vec<u8>)) {
        let node = self.node(ino);
        let Body::File(data) = &mut node.body else { panic!("no file") };
        f(Arc::make_mut(data));
        (node.mtime, node.ctime) = (now, now);
    }

    /// A file is not in use any more.
    pub fn release(&mut self, ino: u64) {
        let node = self.node(ino);
        node.open = false;
        if node.nlink == 0 {
            self.nodes.remove(&ino);
        }
    }

    /// Whether a file system is as this one. Returns the objects of its nodes, those of hidden
    /// directories included.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn compare(&self, fs: &FileSystem) -> Result<BTreeSet<u64>, String> {
        let mut seen = BTreeSet::new();
        for (ino, node) in &self.nodes {
            seen.insert(*ino);
            self.compare_node(fs, *ino, node, &mut seen)
                .map_err(|e| format!("object {ino}: {e}"))?;
        }
        Ok(seen)
    }

    fn compare_node(
        &self,
        fs: &FileSystem,
        ino: u64,
        node: &Node,
        seen: &mut BTreeSet<u64>,
    ) -> Verdict {
        fn failed(e: cenote_zpl::Error) -> String {
            e.to_string()
        }
        let attr = fs.attr(ino).map_err(failed)?;
        let is = (attr.mode, attr.uid, attr.gid, attr.nlink, attr.mtime, attr.ctime);
        let mode = node.kind() | node.mode;
        let want = (mode, node.uid, node.gid, node.nlink, node.mtime, node.ctime);
        demand!(is == want, "{is:?}, not {want:?}");
        match &node.body {
            Body::File(data) => {
                demand!(attr.size == data.len() as u64, "{} of {} bytes", attr.size, data.len());
                let mut read = vec![1; data.len() + 10];
                let n = fs.read(ino, 0, &mut read).map_err(failed)?;
                let first = data.iter().zip(&read).position(|(a, b)| a != b);
                demand!(n == data.len(), "{n} bytes read, not {}", data.len());
                demand!(first.is_none(), "contents of {n} bytes differ from byte {first:?}");
            }
            Body::Dir(entries) => {
                let is = (attr.size, attr.parent);
                let want = (entries.len() as u64 + 2, node.parent);
                demand!(is == want, "{is:?}, not {want:?}");
                let listed = fs.readdir(ino, 0, 1 << 20).map_err(failed)?;
                let is: BTreeMap<Vec<u8>, u64> =
                    listed.iter().map(|e| (e.name.clone(), e.ino)).collect();
                demand!(is == *entries && listed.len() == is.len(), "{is:?}, not {entries:?}");
                for e in listed {
                    let kind = self.nodes[&e.ino].kind() >> 12;
                    demand!(u32::from(e.kind) == kind, "type of {:?}", e.name);
                    let found = fs.lookup(ino, &e.name).map_err(failed)?;
                    demand!(found == e.ino, "{:?} is {found}", e.name);
                }
            }
            Body::Symlink(target) => {
                let is = fs.readlink(ino).map_err(failed)?;
                demand!(is == *target, "leads to {is:?}");
                demand!(attr.size == target.len() as u64, "{} bytes of {is:?}", attr.size);
            }
            Body::Special(_, rdev) => demand!(attr.rdev == *rdev, "{:?}, not {rdev:?}", attr.rdev),
        }
        let names: BTreeSet<Vec<u8>> = fs.listxattr(ino).map_err(failed)?.into_iter().collect();
        let want: BTreeSet<Vec<u8>> = node.xattrs.keys().cloned().collect();
        demand!(names == want, "attributes {names:?}, not {want:?}");
        for (name, value) in &node.xattrs {
            let is = fs.getxattr(ino, name).map_err(failed)?;
            demand!(is.as_ref() == Some(value), "value of {name:?}");
        }
        if attr.xattr != 0 {
            seen.insert(attr.xattr);
            let hidden = fs.readdir(attr.xattr, 0, 1 << 20).map_err(failed)?;
            let size = fs.attr(attr.xattr).map_err(failed)?.size;
            demand!(size == hidden.len() as u64 + 2, "{size} hidden files, not {}", hidden.len());
            for e in hidden {
                demand!(seen.insert(e.ino), "hidden file {:?} is another object too", e.name);
            }
        }
        Ok(())
    }
}
