//! What a file system should hold.

use crate::world::time;
use cenote_zpl::{FileSystem, Time};
use std::collections::{BTreeMap, BTreeSet};

pub const ENOENT: i32 = 2;
pub const EPERM: i32 = 1;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const ENOTEMPTY: i32 = 39;
pub const ENODATA: i32 = 61;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, u64>),
    Symlink(Vec<u8>),
    /// Of which type and number.
    Special(u32, (u32, u32)),
}

#[derive(Clone, Debug)]
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
    pub open: bool,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    pub fn entries(&self) -> &BTreeMap<Vec<u8>, u64> {
        match &self.body {
            Body::Dir(entries) => entries,
            body => unreachable!("no directory: {body:?}"),
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

#[derive(Clone, Debug)]
pub struct Model {
    pub root: u64,
    pub nodes: BTreeMap<u64, Node>,
    pub now: Time,
}

pub type Done<T> = std::result::Result<T, i32>;

impl Model {
    pub fn new(root: u64) -> Model {
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
        Model { root, nodes: BTreeMap::from([(root, node)]), now: (0, 0) }
    }

    pub fn tick(&mut self, ticks: u64) {
        self.now = time(ticks);
    }

    pub fn node(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    fn entries(&mut self, dir: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        match &mut self.node(dir).body {
            Body::Dir(entries) => entries,
            body => unreachable!("no directory: {body:?}"),
        }
    }

    fn dir_changed(&mut self, dir: u64, dirs: i64) {
        let now = self.now;
        let node = self.node(dir);
        node.nlink = node.nlink.checked_add_signed(dirs).unwrap();
        (node.mtime, node.ctime) = (now, now);
    }

    pub fn lookup(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.nodes[&dir].entries().get(name).copied()
    }

    /// The nodes that have a name and are what `f` wants.
    pub fn list(&self, f: impl Fn(&Node) -> bool) -> Vec<u64> {
        self.nodes.iter().filter(|(_, n)| n.nlink > 0 && f(n)).map(|(i, _)| *i).collect()
    }

    pub fn can_create(&self, dir: u64, name: &[u8]) -> Done<()> {
        if self.lookup(dir, name).is_some() { Err(EEXIST) } else { Ok(()) }
    }

    pub fn create(&mut self, dir: u64, name: &[u8], ino: u64, node: Node) {
        let dirs = i64::from(node.is_dir());
        assert!(self.nodes.insert(ino, node).is_none(), "object {ino} is in use");
        self.entries(dir).insert(name.to_vec(), ino);
        self.dir_changed(dir, dirs);
    }

    pub fn link(&mut self, ino: u64, dir: u64, name: &[u8]) -> Done<()> {
        if self.node(ino).is_dir() {
            return Err(EPERM);
        }
        self.can_create(dir, name)?;
        let now = self.now;
        self.entries(dir).insert(name.to_vec(), ino);
        self.dir_changed(dir, 0);
        let node = self.node(ino);
        node.nlink += 1;
        node.parent = dir;
        node.ctime = now;
        Ok(())
    }

    fn drop_link(&mut self, ino: u64) {
        let now = self.now;
        let node = self.node(ino);
        node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
        node.ctime = now;
        if node.nlink == 0 && !node.open {
            self.nodes.remove(&ino);
        }
    }

    pub fn remove(&mut self, dir: u64, name: &[u8], is_dir: bool) -> Done<()> {
        let ino = self.lookup(dir, name).ok_or(ENOENT)?;
        let node = self.node(ino);
        match (node.is_dir(), is_dir) {
            (true, false) => return Err(EISDIR),
            (false, true) => return Err(ENOTDIR),
            (true, true) if !node.entries().is_empty() => return Err(ENOTEMPTY),
            _ => {}
        }
        self.entries(dir).remove(name);
        self.dir_changed(dir, -i64::from(is_dir));
        self.drop_link(ino);
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

    pub fn rename(
        &mut self,
        (dir, name): (u64, &[u8]),
        (to, new): (u64, &[u8]),
        no_replace: bool,
        exchange: bool,
    ) -> Done<()> {
        let ino = self.lookup(dir, name).ok_or(ENOENT)?;
        if (dir, name) == (to, new) {
            return Ok(());
        }
        let is_dir = self.node(ino).is_dir();
        if is_dir && dir != to && self.inside(to, ino) {
            return Err(EINVAL);
        }
        let there = self.lookup(to, new);
        let mut dirs = i64::from(is_dir);
        if let Some(old) = there {
            if no_replace {
                return Err(EEXIST);
            }
            if old == ino {
                return Ok(());
            }
            let old_node = self.node(old).clone();
            if exchange {
                if old_node.is_dir() && dir != to && self.inside(dir, old) {
                    return Err(EINVAL);
                }
                dirs -= i64::from(old_node.is_dir());
                self.entries(dir).insert(name.to_vec(), old);
                self.entries(to).insert(new.to_vec(), ino);
                self.dir_changed(dir, -dirs);
                self.dir_changed(to, dirs);
                self.moved(ino, to);
                self.moved(old, dir);
                return Ok(());
            }
            match (is_dir, old_node.is_dir()) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                (true, true) if !old_node.entries().is_empty() => return Err(ENOTEMPTY),
                _ => {}
            }
            self.entries(to).remove(new);
            self.dir_changed(to, -i64::from(old_node.is_dir()));
            self.drop_link(old);
        } else if exchange {
            return Err(ENOENT);
        }
        self.entries(dir).remove(name);
        self.entries(to).insert(new.to_vec(), ino);
        self.dir_changed(dir, -dirs);
        self.dir_changed(to, dirs);
        self.moved(ino, to);
        Ok(())
    }

    fn moved(&mut self, ino: u64, dir: u64) {
        let now = self.now;
        let node = self.node(ino);
        node.parent = dir;
        node.ctime = now;
    }

    /// Changes the contents of a file.
    pub fn modify(&mut self, ino: u64, f: impl FnOnce(&mut Vec<u8>)) {
        let now = self.now;
        let node = self.node(ino);
        let Body::File(data) = &mut node.body else { unreachable!("no file") };
        f(data);
        (node.mtime, node.ctime) = (now, now);
    }

    pub fn release(&mut self, ino: u64) {
        let node = self.node(ino);
        node.open = false;
        if node.nlink == 0 {
            self.nodes.remove(&ino);
        }
    }

    /// Compares everything, orphans too if `orphans`. Returns the objects that it has seen, those of
    /// hidden directories included.
    pub fn compare(&self, fs: &FileSystem, orphans: bool) -> BTreeSet<u64> {
        let mut seen = BTreeSet::new();
        let mut todo = vec![self.root];
        while let Some(ino) = todo.pop() {
            if !seen.insert(ino) {
                continue;
            }
            self.compare_node(fs, ino, &mut seen);
            if let Body::Dir(entries) = &self.nodes[&ino].body {
                todo.extend(entries.values());
            }
        }
        for (ino, node) in &self.nodes {
            assert!(seen.contains(ino) || node.nlink == 0, "object {ino} cannot be reached");
            if node.nlink == 0 && orphans {
                seen.insert(*ino);
                self.compare_node(fs, *ino, &mut seen);
            }
        }
        seen
    }

    fn compare_node(&self, fs: &FileSystem, ino: u64, seen: &mut BTreeSet<u64>) {
        let node = &self.nodes[&ino];
        let attr = fs.attr(ino).unwrap();
        let what = format!("object {ino}: {attr:?}");
        assert_eq!(attr.mode, node.kind() | node.mode, "{what}");
        assert_eq!((attr.uid, attr.gid, attr.nlink), (node.uid, node.gid, node.nlink), "{what}");
        assert_eq!((attr.mtime, attr.ctime), (node.mtime, node.ctime), "{what}");
        match &node.body {
            Body::File(data) => {
                assert_eq!(attr.size, data.len() as u64, "{what}");
                let mut read = vec![1; data.len() + 10];
                assert_eq!(fs.read(ino, 0, &mut read).unwrap(), data.len());
                assert!(read[..data.len()] == data[..], "contents of {what}");
            }
            Body::Dir(entries) => {
                assert_eq!((attr.size, attr.parent), (entries.len() as u64 + 2, node.parent));
                let listed = fs.readdir(ino, 0, 1 << 20).unwrap();
                assert_eq!(listed.len(), entries.len(), "{what}: {listed:?}");
                for e in listed {
                    assert_eq!(entries.get(&e.name), Some(&e.ino), "{what}");
                    assert_eq!(u32::from(e.kind), self.nodes[&e.ino].kind() >> 12);
                    assert_eq!(fs.lookup(ino, &e.name).unwrap(), e.ino);
                }
            }
            Body::Symlink(target) => {
                assert_eq!(attr.size, target.len() as u64, "{what}");
                assert_eq!(&fs.readlink(ino).unwrap(), target);
            }
            Body::Special(_, rdev) => assert_eq!(attr.rdev, *rdev, "{what}"),
        }
        let names: BTreeSet<Vec<u8>> = fs.listxattr(ino).unwrap().into_iter().collect();
        assert_eq!(names, node.xattrs.keys().cloned().collect(), "{what}");
        for (name, value) in &node.xattrs {
            assert!(fs.getxattr(ino, name).unwrap().as_ref() == Some(value), "{name:?} of {what}");
        }
        if attr.xattr != 0 {
            seen.insert(attr.xattr);
            let hidden = fs.readdir(attr.xattr, 0, 1 << 20).unwrap();
            assert_eq!(fs.attr(attr.xattr).unwrap().size, hidden.len() as u64 + 2);
            hidden.iter().for_each(|e| assert!(seen.insert(e.ino)));
        }
    }
}
