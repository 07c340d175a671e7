//! File systems some of whose blocks cannot be read: each operation is done as a whole or not at all.

use crate::random::{check_disk, overwrite};
use crate::world::{World, time};
use cenote_testfiles::errno::ENODATA;
use cenote_testfiles::{Body, Done, Files, Node};
use cenote_zpl::Time;
use cenote_zpl::{
    Allocate, CreateProps, Error, NewNode, NodeKind, RenameFlags, SetAttr, SetXattr, Settings,
};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const EIO: i32 = 5;
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

#[derive(Debug, Clone)]
enum Op {
    Create { dir: Index, name: u8, kind: u8 },
    Remove { dir: Index, name: u8, is_dir: bool },
    Rename { from: (Index, u8), to: (Index, u8), exchange: bool },
    Link { node: Index, dir: Index, name: u8 },
    Write { node: Index, at: u64, len: usize },
    Append { node: Index, len: usize },
    Truncate { node: Index, size: u64 },
    Punch { node: Index, at: u64, len: u64 },
    Chmod { node: Index, mode: u32 },
    Chown { node: Index, uid: u32 },
    Xattr { node: Index, name: u8, len: usize },
    RemoveXattr { node: Index, name: u8 },
    DefaultAcl { dir: Index },
}

fn op() -> impl Strategy<Value = Op> {
    use any as a;
    let name = || 0u8..14;
    let at = || prop_oneof![0u64..3000, 0u64..60_000];
    prop_oneof![
        8 => (a::<Index>(), name(), 0u8..4).prop_map(|(dir, name, kind)| Op::Create { dir, name, kind }),
        8 => (a::<Index>(), name(), a::<bool>()).prop_map(|(dir, name, is_dir)| Op::Remove { dir, name, is_dir }),
        8 => (a::<Index>(), name(), a::<Index>(), name(), a::<bool>())
            .prop_map(|(d, n, to, tn, exchange)| Op::Rename { from: (d, n), to: (to, tn), exchange }),
        3 => (a::<Index>(), a::<Index>(), name()).prop_map(|(node, dir, name)| Op::Link { node, dir, name }),
        6 => (a::<Index>(), at(), 1usize..20_000).prop_map(|(node, at, len)| Op::Write { node, at, len }),
        2 => (a::<Index>(), 1usize..20_000).prop_map(|(node, len)| Op::Append { node, len }),
        3 => (a::<Index>(), at()).prop_map(|(node, size)| Op::Truncate { node, size }),
        3 => (a::<Index>(), at(), 1u64..20_000).prop_map(|(node, at, len)| Op::Punch { node, at, len }),
        2 => (a::<Index>(), 0u32..0o1000).prop_map(|(node, mode)| Op::Chmod { node, mode }),
        3 => (a::<Index>(), 0u32..5).prop_map(|(node, uid)| Op::Chown { node, uid }),
        8 => (a::<Index>(), 0u8..4, prop_oneof![0usize..100, 0usize..3000])
            .prop_map(|(node, name, len)| Op::Xattr { node, name, len }),
        3 => (a::<Index>(), 0u8..4).prop_map(|(node, name)| Op::RemoveXattr { node, name }),
        1 => a::<Index>().prop_map(|dir| Op::DefaultAcl { dir }),
    ]
}

/// A list that says the same as mode 0755.
fn list() -> Vec<u8> {
    let entries = [(1u16, 7u16), (4, 5), (32, 5)];
    let entry = |(tag, perm): (u16, u16)| {
        [tag.to_le_bytes(), perm.to_le_bytes()].concat().into_iter().chain([0xff; 4])
    };
    2u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(entry)).collect()
}

fn name(n: u8) -> Vec<u8> {
    match n {
        // A directory with such a name is no micro ZAP any more.
        12.. => vec![b'a' + n; 80],
        n => vec![b'a' + n],
    }
}

fn xattr(n: u8) -> Vec<u8> {
    format!("user.{n}").into_bytes()
}

struct Test {
    world: World,
    model: Files,
    now: Time,
    /// Operations that failed.
    failed: u32,
}

impl Test {
    fn new(xattr_sa: bool) -> Test {
        let props = CreateProps { time: (0, 0), ..CreateProps::default() };
        let settings = Settings { record_size: 4096, xattr_sa, ..Settings::default() };
        let world = World::new(&props, settings);
        let model = Files::new(world.fs.root());
        Test { world, model, now: (0, 0), failed: 0 }
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

    fn tick(&mut self) {
        self.now = time(self.world.tick());
    }

    /// What an operation did is what the model does, unless it could not be done, and did nothing.
    fn judge<T>(
        &mut self,
        done: Result<T, Error>,
        model: impl FnOnce(&mut Files, Option<T>) -> Done<()>,
    ) {
        match done {
            Err(e) if e.errno() == EIO => self.failed += 1,
            Err(e) => assert_eq!(model(&mut self.model, None), Err(e.errno()), "{e}"),
            Ok(done) => assert_eq!(model(&mut self.model, Some(done)), Ok(())),
        }
    }

    fn create(&mut self, dir: u64, name: &[u8], kind: u8) {
        let (kind, body) = match kind {
            0 => (NodeKind::Dir, Body::Dir(BTreeMap::new())),
            1 => (NodeKind::Symlink(vec![b'/'; 700]), Body::Symlink(vec![b'/'; 700])),
            _ => (NodeKind::File, Body::File(Arc::default())),
        };
        let mode = if kind == NodeKind::Dir { 0o755 } else { 0o644 };
        let new = NewNode { kind, mode, umask: 0o022, uid: 7, gid: 8, keep_setgid: true };
        let (done, now) = (self.world.fs.create(dir, name, &new), self.now);
        self.judge(done, |model, attr| {
            model.can_create(dir, name)?;
            let is_dir = matches!(body, Body::Dir(_));
            let mode = if matches!(body, Body::Symlink(_)) { 0o777 } else { mode };
            let inherited = model.node(dir).xattrs.get(DEFAULT_ACL).cloned();
            let inherited = inherited.filter(|_| is_dir);
            let xattrs = inherited.into_iter().map(|list| (DEFAULT_ACL.to_vec(), list)).collect();
            let (mtime, ctime) = (now, now);
            let nlink = if is_dir { 2 } else { 1 };
            let (uid, gid, parent, open) = (7, 8, dir, false);
            let node = Node { body, mode, uid, gid, nlink, parent, mtime, ctime, xattrs, open };
            model.create(dir, name, attr.unwrap().ino, node);
            Ok(())
        });
    }

    fn set(&mut self, ino: u64, set: &SetAttr) {
        let (done, now) = (self.world.fs.setattr(ino, set), self.now);
        self.judge(done, |model, _| {
            let node = model.node(ino);
            node.mode = set.mode.unwrap_or(node.mode);
            node.uid = set.uid.unwrap_or(node.uid);
            node.ctime = now;
            Ok(())
        });
    }

    fn set_xattr(&mut self, ino: u64, name: Vec<u8>, value: Vec<u8>) {
        let done = self.world.fs.set_xattr(ino, &name, &value, SetXattr::default());
        let now = self.now;
        self.judge(done, |model, _| {
            let node = model.node(ino);
            node.xattrs.insert(name, value);
            node.ctime = now;
            Ok(())
        });
    }

    fn apply(&mut self, op: &Op) {
        self.tick();
        let (fs, now) = (self.world.fs.clone(), self.now);
        match op {
            Op::Create { dir, name: n, kind } => self.create(self.dir(dir), &name(*n), *kind),
            Op::Remove { dir, name: n, is_dir } => {
                let (dir, name) = (self.dir(dir), name(*n));
                let done = match is_dir {
                    true => fs.rmdir(dir, &name, &|_| false),
                    false => fs.unlink(dir, &name, &|_| false),
                };
                self.judge(done, |model, _| model.remove(dir, &name, *is_dir, now));
            }
            Op::Rename { from, to, exchange } => {
                let (from, to) = ((self.dir(&from.0), name(from.1)), (self.dir(&to.0), name(to.1)));
                let flags = RenameFlags { exchange: *exchange, ..RenameFlags::default() };
                let done = fs.rename(from.0, &from.1, to.0, &to.1, flags, &|_| false);
                self.judge(done, |model, _| {
                    model.rename((from.0, &from.1), (to.0, &to.1), (false, *exchange), now)
                });
            }
            Op::Link { node, dir, name: n } => {
                let (ino, dir) = (self.pick(node, |_| true).unwrap(), self.dir(dir));
                let done = fs.link(ino, dir, &name(*n));
                self.judge(done, |model, _| model.link(ino, dir, &name(*n), now));
            }
            Op::Chmod { node, mode } => {
                if let Some(ino) = self.pick(node, |n| !matches!(n.body, Body::Symlink(_))) {
                    self.set(ino, &SetAttr { mode: Some(*mode), ..SetAttr::default() });
                }
            }
            Op::Chown { node, uid } => {
                let ino = self.pick(node, |_| true).unwrap();
                self.set(ino, &SetAttr { uid: Some(*uid), ..SetAttr::default() });
            }
            Op::Xattr { node, name, len } => {
                let ino = self.pick(node, |_| true).unwrap();
                self.set_xattr(ino, xattr(*name), vec![*len as u8; *len]);
            }
            Op::DefaultAcl { dir } => self.set_xattr(self.dir(dir), DEFAULT_ACL.to_vec(), list()),
            Op::RemoveXattr { node, name } => {
                let (ino, name) = (self.pick(node, |_| true).unwrap(), xattr(*name));
                let done = fs.remove_xattr(ino, &name);
                self.judge(done, |model, _| {
                    let node = model.node(ino);
                    node.xattrs.remove(&name).ok_or(ENODATA)?;
                    node.ctime = now;
                    Ok(())
                });
            }
            Op::Write { node, .. }
            | Op::Append { node, .. }
            | Op::Truncate { node, .. }
            | Op::Punch { node, .. } => {
                if let Some(ino) = self.file(node) {
                    self.change_contents(op, ino);
                }
            }
        }
    }

    fn change_contents(&mut self, op: &Op, ino: u64) {
        let (fs, now) = (self.world.fs.clone(), self.now);
        match *op {
            Op::Write { at, len, .. } => {
                let done = fs.write(ino, at, &vec![len as u8; len], false);
                self.judge(done, |model, _| {
                    model.modify(ino, now, |old| overwrite(old, at, &vec![len as u8; len]));
                    Ok(())
                });
            }
            Op::Append { len, .. } => {
                let done = fs.append(ino, &vec![len as u8; len], false);
                self.judge(done, |model, at| {
                    model
                        .modify(ino, now, |old| overwrite(old, at.unwrap(), &vec![len as u8; len]));
                    Ok(())
                });
            }
            Op::Truncate { size, .. } => {
                let done = fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() });
                self.judge(done, |model, _| {
                    model.modify(ino, now, |old| old.resize(size as usize, 0));
                    Ok(())
                });
            }
            Op::Punch { at, len, .. } => {
                let done = fs.allocate(ino, at, len, Allocate::PunchHole);
                self.judge(done, |model, _| {
                    model.modify(ino, now, |old| {
                        let end = (at + len).min(old.len() as u64) as usize;
                        old.get_mut(at as usize..end).unwrap_or_default().fill(0);
                    });
                    Ok(())
                });
            }
            _ => unreachable!(),
        }
    }

    /// Has one block in so many not be readable, another choice each time.
    fn lose(&self, seed: u64, one_in: u64) {
        self.world.sink.store.drop_caches();
        for bp in self.world.sink.live() {
            let place = bp.dva(0).map_or(0, |dva| dva.offset);
            if (place ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
                <= u64::from(u32::MAX) / one_in
            {
                self.world.sink.lose(&bp);
            }
        }
    }

    /// Writes what is pending, and forgets all that was read.
    fn begin_anew(&mut self) {
        self.world.reopen();
        self.world.sink.store.drop_caches();
    }

    fn finish(mut self) -> u32 {
        // Files that lost their names, and could not be freed.
        self.begin_anew();
        self.world.fs.drain_unlinked().unwrap();
        let synced = self.world.sync(|| {});
        check_disk(&self.model, synced);
        self.failed
    }
}

/// Does all of `build`, then each of `ops` while other blocks are lost.
fn run(build: &[Op], ops: &[(Op, u64, bool)], one_in: u64, xattr_sa: bool) -> u32 {
    let mut test = Test::new(xattr_sa);
    build.iter().for_each(|op| test.apply(op));
    assert_eq!(test.failed, 0);
    test.begin_anew();
    for (op, seed, alone) in ops {
        if *alone {
            test.begin_anew();
        }
        test.lose(*seed, one_in);
        test.apply(op);
        if *alone {
            // What was changed can be written, whatever else is lost.
            test.world.write_group(|| {});
        }
        test.world.sink.faults.repair();
        test.model.compare(&test.world.fs).unwrap();
    }
    test.finish()
}

#[test]
fn what_cannot_be_read_leaves_nothing_half_done() {
    let build = prop::collection::vec(op(), 20..60);
    let ops = prop::collection::vec((op(), any::<u64>(), prop::bool::weighted(0.3)), 1..30);
    let (failed, done) = (AtomicU32::new(0), AtomicU32::new(0));
    let config = ProptestConfig { cases: 60, ..ProptestConfig::default() };
    proptest!(config, |(build in build, ops in ops, one_in in 3u64..12, xattr_sa: bool)| {
        failed.fetch_add(run(&build, &ops, one_in, xattr_sa), Ordering::Relaxed);
        done.fetch_add(ops.len() as u32, Ordering::Relaxed);
    });
    let (failed, done) = (failed.into_inner(), done.into_inner());
    // Both happen a good deal.
    assert!(failed > done / 20 && failed < done - done / 20, "{failed} of {done}");
}

#[test]
fn a_file_whose_attributes_are_lost_can_be_removed() {
    let mut test = Test::new(false);
    let root = test.model.root;
    test.tick();
    test.create(root, b"f", 2);
    let ino = test.model.lookup(root, b"f").unwrap();
    test.set_xattr(ino, xattr(1), vec![1; 100]);
    test.begin_anew();
    let hidden = test.world.fs.attr(ino).unwrap().xattr;
    let entries = test.world.fs.object(hidden).unwrap().block_pointer(0, 0).unwrap();
    test.world.sink.store.drop_caches();
    test.world.sink.lose(&entries);
    test.tick();
    test.world.fs.unlink(root, b"f", &|_| false).unwrap();
    test.model.remove(root, b"f", false, test.now).unwrap();
    test.model.compare(&test.world.fs).unwrap();
    // It waits in the list of unlinked files to be freed.
    assert_eq!(test.world.fs.attr(ino).unwrap().nlink, 0);
    test.world.sink.faults.repair();
    assert_eq!(test.finish(), 0);
}
