//! Random operations.

use crate::world::{World, time};
use cenote_dmu::ObjectSet;
use cenote_testfiles::errno::{EEXIST, ENODATA};
use cenote_testfiles::{Body, Done, Files, Node};
use cenote_zpl::{
    Allocate, CreateProps, Error, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, SetTime,
    SetXattr, Settings, Time,
};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Clone)]
enum Op {
    Create { dir: Index, name: u8, kind: u8, mode: u32, target: usize },
    Tmpfile { dir: Index, name: Option<u8> },
    Link { node: Index, dir: Index, name: u8 },
    Remove { dir: Index, name: u8, is_dir: bool },
    Rename { from: (Index, u8), to: (Index, u8), no_replace: bool, exchange: bool },
    Write { node: Index, at: u64, len: usize, byte: u8 },
    Append { node: Index, len: usize, byte: u8 },
    Resize { node: Index, size: u64 },
    Allocate { node: Index, at: u64, len: u64, what: u8 },
    Copy { from: Index, to: Index, at: (u64, u64), len: u64 },
    Chmod { node: Index, mode: u32 },
    Chown { node: Index, uid: u32, gid: u32 },
    Mtime { node: Index, time: i64 },
    SetXattr { node: Index, name: u8, len: usize, byte: u8, how: u8 },
    RemoveXattr { node: Index, name: u8 },
    Open { node: Index },
    Release { node: Index },
    Settings { record: u8, dnode: u8, sa: bool },
    Sync { during: bool },
    Reopen,
}

fn place() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0u64..2000, 3 => 0u64..300_000, 1 => 0u64..2_000_000, 1 => (0u64..40).prop_map(|n| n * 4096)]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1usize..1500, 2 => 1usize..70_000, 1 => 1usize..300_000, 1 => Just(131_072)]
}

fn op() -> impl Strategy<Value = Op> {
    use any as a;
    let name = || 0u8..12;
    prop_oneof![
        12 => (a::<Index>(), name(), 0u8..9, 0u32..0o10000, prop_oneof![1usize..60, 1usize..4096])
            .prop_map(|(dir, name, kind, mode, target)| Op::Create { dir, name, kind, mode, target }),
        1 => (a::<Index>(), prop::option::of(name())).prop_map(|(dir, name)| Op::Tmpfile { dir, name }),
        3 => (a::<Index>(), a::<Index>(), name()).prop_map(|(node, dir, name)| Op::Link { node, dir, name }),
        4 => (a::<Index>(), name(), a::<bool>()).prop_map(|(dir, name, is_dir)| Op::Remove { dir, name, is_dir }),
        8 => (a::<Index>(), name(), a::<Index>(), name(), 0u8..6).prop_map(|(d, n, td, tn, f)|
            Op::Rename { from: (d, n), to: (td, tn), no_replace: f == 0, exchange: f == 1 || f == 2 }),
        8 => (a::<Index>(), place(), len(), 0u8..4).prop_map(|(node, at, len, byte)| Op::Write { node, at, len, byte }),
        2 => (a::<Index>(), len(), 0u8..4).prop_map(|(node, len, byte)| Op::Append { node, len, byte }),
        3 => (a::<Index>(), place()).prop_map(|(node, size)| Op::Resize { node, size }),
        3 => (a::<Index>(), place(), 1u64..200_000, 0u8..5).prop_map(|(node, at, len, what)| Op::Allocate { node, at, len, what }),
        1 => (a::<Index>(), a::<Index>(), (place(), place()), 1u64..100_000)
            .prop_map(|(from, to, at, len)| Op::Copy { from, to, at, len }),
        2 => (a::<Index>(), 0u32..0o10000).prop_map(|(node, mode)| Op::Chmod { node, mode }),
        2 => (a::<Index>(), 0u32..5, 0u32..5).prop_map(|(node, uid, gid)| Op::Chown { node, uid, gid }),
        1 => (a::<Index>(), -5i64..1 << 40).prop_map(|(node, time)| Op::Mtime { node, time }),
        6 => (a::<Index>(), 0u8..5, prop_oneof![6 => 0usize..100, 2 => 0usize..3000, 1 => 0usize..65537], a::<u8>(), 0u8..5)
            .prop_map(|(node, name, len, byte, how)| Op::SetXattr { node, name, len, byte, how }),
        3 => (a::<Index>(), 0u8..5).prop_map(|(node, name)| Op::RemoveXattr { node, name }),
        2 => a::<Index>().prop_map(|node| Op::Open { node }),
        3 => a::<Index>().prop_map(|node| Op::Release { node }),
        1 => (0u8..4, 0u8..3, a::<bool>()).prop_map(|(record, dnode, sa)| Op::Settings { record, dnode, sa }),
        2 => a::<bool>().prop_map(|during| Op::Sync { during }),
        1 => Just(Op::Reopen),
    ]
}

fn name(n: u8) -> Vec<u8> {
    match n {
        // One that no micro ZAP can hold, and the longest.
        10 => vec![b'l'; 80],
        11 => vec![b'x'; 255],
        n => vec![b'a' + n],
    }
}

fn xattr_name(n: u8) -> Vec<u8> {
    match n {
        4 => b"trusted.t".to_vec(),
        n => format!("user.{}", n).into_bytes(),
    }
}

fn errno<T>(done: Result<T, Error>) -> Done<T> {
    done.map_err(|e| e.errno())
}

struct Test {
    world: World,
    model: Files,
    now: Time,
    steps: u64,
}

impl Test {
    fn new() -> Test {
        let props = CreateProps { time: (0, 0), ..CreateProps::default() };
        let world = World::new(&props, Settings { record_size: 16 << 10, ..Settings::default() });
        let model = Files::new(world.fs.root());
        Test { world, model, now: (0, 0), steps: 0 }
    }

    fn pick(&self, index: &Index, f: impl Fn(&Node) -> bool) -> Option<u64> {
        let all = self.model.list(f);
        (!all.is_empty()).then(|| *index.get(&all))
    }

    fn dir(&self, index: &Index) -> u64 {
        self.pick(index, Node::is_dir).unwrap()
    }

    fn file(&self, index: &Index) -> Option<u64> {
        self.pick(index, |n| matches!(n.body, Body::File(_)))
    }

    fn any(&self, index: &Index) -> u64 {
        self.pick(index, |_| true).unwrap()
    }

    fn node(&self, dir: u64, body: Body, mode: u32) -> Node {
        let now = self.now;
        let parent = &self.model.nodes[&dir];
        let is_dir = matches!(body, Body::Dir(_));
        let mut mode = if matches!(body, Body::Symlink(_)) { 0o777 } else { mode & !0o022 };
        if is_dir && parent.mode & 0o2000 != 0 {
            mode |= 0o2000;
        }
        Node {
            body,
            mode,
            uid: 1000,
            gid: if parent.mode & 0o2000 != 0 { parent.gid } else { 100 },
            nlink: if is_dir { 2 } else { 1 },
            parent: dir,
            mtime: now,
            ctime: now,
            xattrs: BTreeMap::new(),
            open: false,
        }
    }

    fn create(&mut self, dir: u64, name: &[u8], kind: u8, mode: u32, target: usize) {
        let (kind, body) = match kind {
            0..3 => (NodeKind::File, Body::File(Arc::default())),
            3..6 => (NodeKind::Dir, Body::Dir(BTreeMap::new())),
            6 => {
                let target = vec![b'/'; target.min(4095)];
                (NodeKind::Symlink(target.clone()), Body::Symlink(target))
            }
            7 => (NodeKind::CharDevice(1, 70_000), Body::Special(0o020_000, (1, 70_000))),
            _ => (NodeKind::Fifo, Body::Special(0o010_000, (0, 0))),
        };
        let new = NewNode { kind, mode, umask: 0o022, uid: 1000, gid: 100, keep_setgid: true };
        let expected = self.model.can_create(dir, name);
        let done = errno(self.world.fs.create(dir, name, &new));
        assert_eq!(done.as_ref().map(drop), expected.as_ref().map(drop));
        if let Ok(attr) = done {
            let node = self.node(dir, body, mode);
            self.model.create(dir, name, attr.ino, node);
        }
    }

    fn tmpfile(&mut self, dir: u64, new_name: Option<Vec<u8>>) {
        let (kind, mode) = (NodeKind::File, 0o600);
        let new = NewNode { kind, mode, umask: 0, uid: 1000, gid: 100, keep_setgid: true };
        let ino = self.world.fs.tmpfile(dir, &new).unwrap().ino;
        let mut node = self.node(dir, Body::File(Arc::default()), mode);
        (node.open, node.nlink) = (true, 0);
        assert!(self.model.nodes.insert(ino, Arc::new(node)).is_none());
        if let Some(name) = new_name {
            let expected = self.model.link(ino, dir, &name, self.now);
            assert_eq!(errno(self.world.fs.link(ino, dir, &name)).map(drop), expected);
        }
    }

    fn copy(&mut self, from: u64, to: u64, (at, to_at): (u64, u64), len: u64) {
        let Body::File(data) = self.model.nodes[&from].body.clone() else { return };
        let end = (data.len() as u64).min(at + len);
        let part = data.get(at as usize..end as usize).unwrap_or_default().to_vec();
        let done = self.world.fs.copy_range(from, at, to, to_at, len);
        if from == to && at.abs_diff(to_at) < part.len() as u64 {
            assert!(done.is_err());
            return;
        }
        assert_eq!(done.unwrap(), part.len() as u64);
        if !part.is_empty() {
            self.model.modify(to, self.now, |data| overwrite(data, to_at, &part));
        }
    }

    fn set_xattr(&mut self, ino: u64, name: &[u8], value: Vec<u8>, how: u8) {
        let how = SetXattr { create: how == 0, replace: how == 1, ..SetXattr::default() };
        let there = self.model.node(ino).xattrs.contains_key(name);
        let expected = match there {
            true if how.create => Err(EEXIST),
            false if how.replace => Err(ENODATA),
            _ => Ok(()),
        };
        assert_eq!(errno(self.world.fs.set_xattr(ino, name, &value, how)), expected);
        if expected.is_ok() {
            let now = self.now;
            let node = self.model.node(ino);
            node.xattrs.insert(name.to_vec(), value);
            node.ctime = now;
        }
    }

    fn allocate(&mut self, ino: u64, at: u64, len: u64, what: u8) {
        let all = [
            Allocate::Extend,
            Allocate::KeepSize,
            Allocate::PunchHole,
            Allocate::Zero,
            Allocate::ZeroKeepSize,
        ];
        let what = all[usize::from(what)];
        self.world.fs.allocate(ino, at, len, what).unwrap();
        let Body::File(data) = &self.model.nodes[&ino].body else { return };
        let longer = at + len > data.len() as u64;
        if what == Allocate::KeepSize || what == Allocate::Extend && !longer {
            return;
        }
        self.model.modify(ino, self.now, |data| {
            if longer && matches!(what, Allocate::Extend | Allocate::Zero) {
                data.resize((at + len) as usize, 0);
            }
            if what != Allocate::Extend {
                let end = (at + len).min(data.len() as u64);
                data.get_mut(at as usize..end as usize).unwrap_or_default().fill(0);
            }
        });
    }

    fn attrs(&mut self, ino: u64, set: &SetAttr) {
        let attr = self.world.fs.setattr(ino, set).unwrap();
        let now = self.now;
        let node = self.model.node(ino);
        node.mode = set.mode.unwrap_or(node.mode);
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(SetTime::To(time)) = set.mtime {
            node.mtime = time;
        }
        node.ctime = now;
        assert_eq!((attr.uid, attr.mode & 0o7777), (node.uid, node.mode));
    }

    fn apply(&mut self, op: &Op) {
        self.now = time(self.world.tick());
        let fs = self.world.fs.clone();
        match op {
            Op::Create { dir, name: n, kind, mode, target } => {
                self.create(self.dir(dir), &name(*n), *kind, *mode, *target);
            }
            Op::Tmpfile { dir, name: n } => self.tmpfile(self.dir(dir), n.map(name)),
            Op::Link { node, dir, name: n } => {
                let (ino, dir) = (self.any(node), self.dir(dir));
                let expected = self.model.link(ino, dir, &name(*n), self.now);
                assert_eq!(errno(fs.link(ino, dir, &name(*n))).map(drop), expected);
            }
            Op::Remove { dir, name: n, is_dir } => {
                let dir = self.dir(dir);
                let open = self.model.clone();
                let in_use = |ino| open.nodes[&ino].open;
                let done = match is_dir {
                    true => fs.rmdir(dir, &name(*n), &in_use),
                    false => fs.unlink(dir, &name(*n), &in_use),
                };
                assert_eq!(
                    errno(done).map(drop),
                    self.model.remove(dir, &name(*n), *is_dir, self.now)
                );
            }
            Op::Rename { from, to, no_replace, exchange } => {
                let (from, to) = ((self.dir(&from.0), name(from.1)), (self.dir(&to.0), name(to.1)));
                let flags =
                    RenameFlags { no_replace: *no_replace, exchange: *exchange, whiteout: None };
                let open = self.model.clone();
                let in_use = |ino| open.nodes[&ino].open;
                let done = fs.rename(from.0, &from.1, to.0, &to.1, flags, &in_use);
                let expected = self.model.rename(
                    (from.0, &from.1),
                    (to.0, &to.1),
                    (*no_replace, *exchange),
                    self.now,
                );
                assert_eq!(errno(done).map(drop), expected);
            }
            Op::Write { node, at, len, byte } => {
                let Some(ino) = self.file(node) else { return };
                let data = bytes(*byte, *len, self.steps);
                assert_eq!(fs.write(ino, *at, &data, false).unwrap(), *len);
                self.model.modify(ino, self.now, |old| overwrite(old, *at, &data));
            }
            Op::Append { node, len, byte } => {
                let Some(ino) = self.file(node) else { return };
                let data = bytes(*byte, *len, self.steps);
                let at = fs.append(ino, &data, false).unwrap();
                self.model.modify(ino, self.now, |old| {
                    assert_eq!(at, old.len() as u64);
                    overwrite(old, at, &data);
                });
            }
            Op::Resize { node, size } => {
                let Some(ino) = self.file(node) else { return };
                fs.setattr(ino, &SetAttr { size: Some(*size), ..SetAttr::default() }).unwrap();
                self.model.modify(ino, self.now, |old| old.resize(*size as usize, 0));
            }
            Op::Allocate { node, at, len, what } => {
                if let Some(ino) = self.file(node) {
                    self.allocate(ino, *at, *len, *what);
                }
            }
            Op::Copy { from, to, at, len } => {
                if let (Some(from), Some(to)) = (self.file(from), self.file(to)) {
                    self.copy(from, to, *at, *len);
                }
            }
            _ => self.apply_more(op, &fs),
        }
    }

    fn apply_more(&mut self, op: &Op, fs: &FileSystem) {
        match op {
            Op::Chmod { node, mode } => {
                let Some(ino) = self.pick(node, |n| !matches!(n.body, Body::Symlink(_))) else {
                    return;
                };
                self.attrs(ino, &SetAttr { mode: Some(*mode), ..SetAttr::default() });
            }
            Op::Chown { node, uid, gid } => {
                let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
                self.attrs(self.any(node), &set);
            }
            Op::Mtime { node, time } => {
                let mtime = Some(SetTime::To((*time, 5)));
                self.attrs(self.any(node), &SetAttr { mtime, ..SetAttr::default() });
            }
            Op::SetXattr { node, name, len, byte, how } => {
                let value = vec![*byte; *len];
                self.set_xattr(self.any(node), &xattr_name(*name), value, *how);
            }
            Op::RemoveXattr { node, name } => {
                let (ino, name) = (self.any(node), xattr_name(*name));
                let there = self.model.node(ino).xattrs.remove(&name).is_some();
                let expected = if there { Ok(()) } else { Err(ENODATA) };
                assert_eq!(errno(fs.remove_xattr(ino, &name)), expected);
                if there {
                    self.model.node(ino).ctime = self.now;
                }
            }
            Op::Open { node } => {
                let ino = self.any(node);
                self.model.node(ino).open = true;
            }
            Op::Release { node } => {
                let open =
                    self.model.nodes.iter().filter(|(i, n)| n.open && **i != self.model.root);
                let open: Vec<u64> = open.map(|(i, _)| *i).collect();
                if !open.is_empty() {
                    let ino = *node.get(&open);
                    self.model.release(ino);
                    fs.release(ino).unwrap();
                }
            }
            Op::Settings { record, dnode, sa } => {
                let settings = &mut self.world.settings;
                settings.record_size = 4096 << (2 * record);
                settings.dnode_size = 512 << dnode;
                settings.xattr_sa = *sa;
                fs.set_settings(settings.clone());
            }
            Op::Sync { during } => self.sync(*during),
            Op::Reopen => self.reopen(),
            _ => {}
        }
    }

    fn sync(&mut self, during: bool) {
        let before = self.model.clone();
        let world = &self.world;
        let mut late = None;
        let synced = world.sync(|| {
            if during {
                // A file of the next txg.
                let new = NewNode {
                    kind: NodeKind::File,
                    mode: 0o644,
                    umask: 0,
                    uid: 1000,
                    gid: 100,
                    keep_setgid: true,
                };
                let name =
                    format!("late{}", world.txgs.0.load(std::sync::atomic::Ordering::SeqCst));
                let ino = world.fs.create(world.fs.root(), name.as_bytes(), &new).unwrap().ino;
                world.fs.write(ino, 0, name.as_bytes(), false).unwrap();
                late = Some((ino, name));
            }
        });
        check_disk(&before, synced);
        if let Some((ino, name)) = late {
            let root = self.model.root;
            let node = self.node(root, Body::File(Arc::new(name.clone().into_bytes())), 0o644);
            self.model.create(root, name.as_bytes(), ino, node);
        }
        self.model.compare(&self.world.fs).unwrap();
    }

    fn reopen(&mut self) {
        self.world.reopen();
        self.model.close_all();
        let orphans = self.model.orphans();
        self.model.drain();
        assert_eq!(self.world.fs.drain_unlinked().unwrap(), orphans as u64);
        check_disk(&self.model, self.world.sync(|| {}));
    }
}

/// What is on disk is the model, and there is nothing else.
pub fn check_disk(model: &Files, os: Arc<ObjectSet>) {
    let fs = FileSystem::open(os.clone()).unwrap();
    let mut seen = model.compare(&fs).unwrap();
    // Master node, SA master node, unlinked set, registry, layouts.
    seen.extend([1, 2, 3, 4, 5]);
    let mut objects = BTreeSet::new();
    let mut from = 1;
    while let Some(object) = os.next_object(from).unwrap() {
        objects.insert(object);
        from = object + 1;
    }
    assert_eq!(objects, seen);
}

fn bytes(byte: u8, len: usize, step: u64) -> Vec<u8> {
    match byte {
        0 => vec![0; len],
        b => (0..len).map(|i| (i as u64 * u64::from(b) + step) as u8).collect(),
    }
}

pub fn overwrite(old: &mut Vec<u8>, at: u64, data: &[u8]) {
    let (at, end) = (at as usize, at as usize + data.len());
    if old.len() < end {
        old.resize(end, 0);
    }
    old[at..end].copy_from_slice(data);
}

fn run(ops: &[Op]) {
    let mut test = Test::new();
    for op in ops {
        test.steps += 1;
        test.apply(op);
        if test.steps.is_multiple_of(16) {
            test.model.compare(&test.world.fs).unwrap();
        }
    }
    test.sync(false);
    assert_eq!(test.now, time(test.world.ticks.load(std::sync::atomic::Ordering::SeqCst)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn file_systems_hold_what_was_put_in(ops in prop::collection::vec(op(), 1..150)) {
        run(&ops);
    }
}
