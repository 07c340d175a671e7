//! Random changes to files.
//!
//! # Algorithm
//!
//! Each change picks what it works on from the model of the file system, and then does three things: it asks the model what the call
//! should come to, it makes the call, and it compares. If both succeeded, the model gets the change as well. A call that fails for want of
//! space changes neither, and is no error.
//!
//! | about so many of 100 | change |
//! |---|---|
//! | 30 | nodes are created and removed |
//! | 12 | links and renames, also over other files |
//! | 15 | writes |
//! | 16 | blocks rewritten, sizes set, ranges allocated or freed, ranges copied (or cloned) |
//! | 19 | attributes and extended attributes |
//! | 8 | files opened, so that they outlive their names, and released |
//!
//! Names are few, so that they collide. Now and then a name is too long for a micro ZAP, or as long as names may be. Sizes lie on both sides
//! of a sector, a record and several records.

use super::{Driver, LARGE, bytes, crowded, overwrite};
use cenote_testfiles::errno::*;
use cenote_testfiles::{Body, Done, Files, Node};
use cenote_zpl::{
    Allocate, FileSystem, NewNode, NodeKind, RenameFlags, Rewrite, SetAttr, SetTime, SetXattr,
};
use rand::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where files are written to at most.
const LONGEST: u64 = 700_000;
/// Most bytes of any write.
const LARGEST: usize = 3 << 20;

fn errno<T>(done: Result<T, cenote_zpl::Error>) -> Done<T> {
    done.map_err(|e| e.errno())
}

impl Driver {
    fn files(&mut self, name: &str) -> &mut Files {
        self.model.entry(name).files_mut().unwrap()
    }

    fn some(&mut self, ds: &str, f: impl Fn(&Node) -> bool) -> Option<u64> {
        let all = self.files(ds).list(f);
        self.pick(&all)
    }

    fn name(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..40) {
            // One that no micro ZAP can hold, and the longest.
            0 => vec![b'l'; 80],
            1 => vec![b'x'; 255],
            n => format!("n{n}").into_bytes(),
        }
    }

    /// A name that is in the directory, mostly.
    fn name_in(&mut self, ds: &str, dir: u64) -> Vec<u8> {
        let names = self.files(ds).names(dir);
        match self.pick(&names) {
            Some(name) if self.chance(85) => name,
            _ => self.name(),
        }
    }

    fn place(&mut self) -> u64 {
        match self.rng.random_range(0..8) {
            0..3 => self.rng.random_range(0..3000),
            3..6 => self.rng.random_range(0..150_000),
            6 => self.rng.random_range(0..40) * 4096,
            _ => self.rng.random_range(0..LONGEST),
        }
    }

    fn len(&mut self) -> usize {
        let most = self.largest;
        match self.rng.random_range(0..8) {
            0..4 => self.rng.random_range(1..1500),
            4..6 => self.rng.random_range(1..most.min(40_000)),
            // More than most records.
            6 if most >= LARGE && self.chance(30) => self.rng.random_range(1..LARGEST),
            6 => self.rng.random_range(1..most),
            _ => 131_072.min(most),
        }
    }

    /// Changes something in a file system.
    pub(super) fn change_files(&mut self, ds: &str, fs: &FileSystem) {
        let full = crowded(self.files(ds));
        if self.copies > 0 && self.chance(self.copies) {
            return self.copy(ds, fs);
        }
        match self.rng.random_range(0..100) {
            0..22 if !full => self.create(ds, fs),
            0..30 => self.remove(ds, fs),
            30..33 => self.link(ds, fs),
            33..42 => self.rename(ds, fs),
            42..57 => self.write(ds, fs),
            57..60 => self.rewrite(ds, fs),
            60..65 => self.resize(ds, fs),
            65..70 => self.allocate(ds, fs),
            70..73 => self.copy(ds, fs),
            73..80 => self.attrs(ds, fs),
            80..92 => self.xattr(ds, fs),
            92..96 => {
                let Some(ino) = self.some(ds, Node::is_file) else { return };
                self.files(ds).node(ino).open = true;
            }
            _ => self.release(ds, fs),
        }
    }

    /// Makes some files.
    pub(super) fn fill(&mut self, ds: &str, fs: &FileSystem) {
        (0..10).for_each(|_| self.create(ds, fs));
        (0..15).for_each(|_| self.write(ds, fs));
    }

    fn create(&mut self, ds: &str, fs: &FileSystem) {
        let dir = self.some(ds, Node::is_dir).unwrap();
        let (name, mode, now) = (self.name(), self.rng.random_range(0..0o10000), self.now());
        let (kind, body) = match self.rng.random_range(0..10) {
            0..6 => (NodeKind::File, Body::File(Arc::default())),
            6..9 => (NodeKind::Dir, Body::Dir(BTreeMap::new())),
            _ => {
                let target = vec![b'/'; self.rng.random_range(1..300)];
                (NodeKind::Symlink(target.clone()), Body::Symlink(target))
            }
        };
        let uid = self.rng.random_range(0..4);
        let new = NewNode { kind, mode, umask: 0o022, uid, gid: 100, keep_setgid: true };
        let expected = self.files(ds).can_create(dir, &name);
        let made = fs.create(dir, &name, &new);
        if self.no_space(&made) {
            return;
        }
        let made = errno(made);
        assert_eq!(made.as_ref().map(drop), expected.as_ref().map(drop), "create {name:?}");
        let Ok(attr) = made else { return };
        let files = self.files(ds);
        let (is_dir, parent) = (matches!(body, Body::Dir(_)), files.nodes[&dir].clone());
        let sets_gid = parent.mode & 0o2000 != 0;
        let mut mode = if matches!(body, Body::Symlink(_)) { 0o777 } else { mode & !0o022 };
        if is_dir && sets_gid {
            mode |= 0o2000;
        }
        let node = Node {
            body,
            mode,
            uid,
            gid: if sets_gid { parent.gid } else { 100 },
            nlink: if is_dir { 2 } else { 1 },
            parent: dir,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            open: false,
        };
        files.create(dir, &name, attr.ino, node);
    }

    fn remove(&mut self, ds: &str, fs: &FileSystem) {
        let dir = self.some(ds, Node::is_dir).unwrap();
        let name = self.name_in(ds, dir);
        let is_dir = match self.files(ds).lookup(dir, &name) {
            Some(ino) => self.files(ds).nodes[&ino].is_dir() != self.chance(5),
            None => self.chance(50),
        };
        let now = self.now();
        let nodes = self.files(ds).nodes.clone();
        let in_use = |ino| nodes[&ino].open;
        let done = match is_dir {
            true => fs.rmdir(dir, &name, &in_use),
            false => fs.unlink(dir, &name, &in_use),
        };
        if !self.no_space(&done) {
            assert_eq!(errno(done).map(drop), self.files(ds).remove(dir, &name, is_dir, now));
        }
    }

    fn link(&mut self, ds: &str, fs: &FileSystem) {
        let (ino, dir) = (self.some(ds, |_| true).unwrap(), self.some(ds, Node::is_dir).unwrap());
        let (name, now) = (self.name(), self.now());
        let done = fs.link(ino, dir, &name);
        if !self.no_space(&done) {
            assert_eq!(errno(done).map(drop), self.files(ds).link(ino, dir, &name, now));
        }
    }

    fn rename(&mut self, ds: &str, fs: &FileSystem) {
        let (dir, to) =
            (self.some(ds, Node::is_dir).unwrap(), self.some(ds, Node::is_dir).unwrap());
        let name = self.name_in(ds, dir);
        let new = if self.chance(40) { self.name_in(ds, to) } else { self.name() };
        let (no_replace, exchange) = match self.rng.random_range(0..6) {
            0 => (true, false),
            1 | 2 => (false, true),
            _ => (false, false),
        };
        let flags = RenameFlags { no_replace, exchange, whiteout: None };
        let (now, nodes) = (self.now(), self.files(ds).nodes.clone());
        let in_use = |ino| nodes[&ino].open;
        let done = fs.rename(dir, &name, to, &new, flags, &in_use);
        if !self.no_space(&done) {
            let how = (no_replace, exchange);
            let expected = self.files(ds).rename((dir, &name), (to, &new), how, now);
            assert_eq!(errno(done).map(drop), expected, "{flags:?} {name:?} to {new:?}");
        }
    }

    fn write(&mut self, ds: &str, fs: &FileSystem) {
        let Some(ino) = self.some(ds, Node::is_file) else { return };
        let (at, len, now) = (self.place(), self.len(), self.now());
        let data = self.bytes(at, len);
        if self.chance(25) {
            let done = fs.append(ino, &data, false);
            if !self.no_space(&done) {
                let at = done.unwrap();
                self.files(ds).modify(ino, now, |old| {
                    assert_eq!(at, old.len() as u64);
                    overwrite(old, at as usize, &data);
                });
            }
            return;
        }
        let done = fs.write(ino, at, &data, false);
        if !self.no_space(&done) {
            assert_eq!(done.unwrap(), len);
            self.files(ds).modify(ino, now, |old| overwrite(old, at as usize, &data));
        }
    }

    /// Changes nothing that can be seen.
    fn rewrite(&mut self, ds: &str, fs: &FileSystem) {
        let Some(ino) = self.some(ds, Node::is_file) else { return };
        let length = if self.chance(50) { 0 } else { self.len() as u64 };
        // Births are not kept: OpenZFS 2.1, which judges what is left, knows no such blocks.
        let what = Rewrite { offset: self.place(), length, ..Rewrite::default() };
        let done = fs.rewrite(ino, what, || true);
        if !self.no_space(&done) {
            done.unwrap();
        }
    }

    fn resize(&mut self, ds: &str, fs: &FileSystem) {
        let Some(ino) = self.some(ds, Node::is_file) else { return };
        let (size, now) = (if self.chance(25) { 0 } else { self.place() }, self.now());
        let done = fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() });
        if !self.no_space(&done) {
            done.unwrap();
            self.files(ds).modify(ino, now, |old| old.resize(size as usize, 0));
        }
    }

    fn allocate(&mut self, ds: &str, fs: &FileSystem) {
        let Some(ino) = self.some(ds, Node::is_file) else { return };
        let (at, len, now) = (self.place(), self.rng.random_range(1..200_000u64), self.now());
        let all = [Allocate::Extend, Allocate::PunchHole, Allocate::Zero, Allocate::ZeroKeepSize];
        let what = self.pick(&all).unwrap();
        let done = fs.allocate(ino, at, len, what);
        if self.no_space(&done) {
            return;
        }
        done.unwrap();
        let Body::File(data) = &self.files(ds).nodes[&ino].body else { return };
        let longer = at + len > data.len() as u64;
        if what == Allocate::Extend && !longer {
            return;
        }
        self.files(ds).modify(ino, now, |data| {
            if longer && matches!(what, Allocate::Extend | Allocate::Zero) {
                data.resize((at + len) as usize, 0);
            }
            if what != Allocate::Extend {
                let end = (at + len).min(data.len() as u64);
                data.get_mut(at as usize..end as usize).unwrap_or_default().fill(0);
            }
        });
    }

    fn copy(&mut self, ds: &str, fs: &FileSystem) {
        // Often of another file system, and mostly all of a file: that can be cloned.
        let of = if self.chance(50) { self.any_filesystem() } else { ds.to_string() };
        let source = self.fs(&of);
        let is_some = |n: &Node| matches!(&n.body, Body::File(data) if !data.is_empty());
        let Some(from) = self.some(&of, is_some) else { return };
        let Some(to) = self.some(ds, Node::is_file) else { return };
        let (at, to_at, len) = match self.chance(60) {
            true => (0, 0, LONGEST),
            false => (self.place(), self.place(), self.rng.random_range(1..150_000u64)),
        };
        let now = self.now();
        let Body::File(data) = self.files(&of).nodes[&from].body.clone() else { return };
        let end = (data.len() as u64).min(at + len);
        let mut part = data.get(at as usize..end as usize).unwrap_or_default().to_vec();
        let done = fs.copy_range_from(&source, (from, at), (to, to_at), len);
        if self.no_space(&done) {
            return;
        }
        if of == ds && from == to && at.abs_diff(to_at) < part.len() as u64 {
            assert_eq!(errno(done), Err(EINVAL));
            return;
        }
        let mut copied = done.unwrap();
        // Where space ends on the way less is copied, and the rest is refused.
        while copied < part.len() as u64 {
            let (from, to) = ((from, at + copied), (to, to_at + copied));
            let rest = fs.copy_range_from(&source, from, to, len - copied);
            if self.no_space(&rest) {
                part.truncate(copied as usize);
                break;
            }
            let rest = rest.unwrap();
            assert!(rest > 0, "{copied} of {} bytes are copied", part.len());
            copied += rest;
        }
        assert_eq!(copied, part.len() as u64);
        if !part.is_empty() {
            self.files(ds).modify(to, now, |data| overwrite(data, to_at as usize, &part));
        }
    }

    fn attrs(&mut self, ds: &str, fs: &FileSystem) {
        let ino = self.some(ds, |n| !matches!(n.body, Body::Symlink(_))).unwrap();
        let mut set = SetAttr::default();
        match self.rng.random_range(0..3) {
            0 => set.mode = Some(self.rng.random_range(0..0o10000)),
            1 => {
                set.uid = Some(self.rng.random_range(0..5));
                set.gid = Some(self.rng.random_range(0..5));
            }
            _ => set.mtime = Some(SetTime::To((self.rng.random_range(-5..1 << 40), 5))),
        }
        let done = fs.setattr(ino, &set);
        if self.no_space(&done) {
            return;
        }
        done.unwrap();
        let now = self.now();
        let node = self.files(ds).node(ino);
        node.mode = set.mode.unwrap_or(node.mode);
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(SetTime::To(time)) = set.mtime {
            node.mtime = time;
        }
        node.ctime = now;
    }

    fn xattr(&mut self, ds: &str, fs: &FileSystem) {
        let (ino, now) = (self.some(ds, |_| true).unwrap(), self.now());
        let name = match self.rng.random_range(0..5) {
            4 => b"trusted.t".to_vec(),
            n => format!("user.{n}").into_bytes(),
        };
        let there = self.files(ds).nodes[&ino].xattrs.contains_key(&name);
        if self.chance(30) {
            let done = fs.remove_xattr(ino, &name);
            if self.no_space(&done) {
                return;
            }
            assert_eq!(errno(done), if there { Ok(()) } else { Err(ENODATA) });
            if there {
                let node = self.files(ds).node(ino);
                node.xattrs.remove(&name);
                node.ctime = now;
            }
            return;
        }
        let len = match self.rng.random_range(0..12) {
            0..9 => self.rng.random_range(0..100),
            9 | 10 => self.rng.random_range(0..3000),
            _ => self.rng.random_range(0..65_537),
        };
        let value = bytes(&mut self.rng, len);
        let how = match self.rng.random_range(0..5) {
            0 => SetXattr { create: true, ..SetXattr::default() },
            1 => SetXattr { replace: true, ..SetXattr::default() },
            _ => SetXattr::default(),
        };
        let expected = match there {
            true if how.create => Err(EEXIST),
            false if how.replace => Err(ENODATA),
            _ => Ok(()),
        };
        let done = fs.set_xattr(ino, &name, &value, how);
        if self.no_space(&done) {
            return;
        }
        assert_eq!(errno(done), expected);
        if expected.is_ok() {
            let node = self.files(ds).node(ino);
            node.xattrs.insert(name, value);
            node.ctime = now;
        }
    }

    fn release(&mut self, ds: &str, fs: &FileSystem) {
        let files = self.files(ds);
        let root = files.root;
        let open = files.nodes.iter().filter(|(i, n)| n.open && **i != root).map(|(i, _)| *i);
        let open: Vec<u64> = open.collect();
        let Some(ino) = self.pick(&open) else { return };
        let done = fs.release(ino);
        // An orphan that cannot be freed now stays until the next mount.
        if self.no_space(&done) {
            self.files(ds).node(ino).open = false;
            return;
        }
        done.unwrap();
        self.files(ds).release(ino);
    }
}
