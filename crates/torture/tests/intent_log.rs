//! The intent log and the loss of power: what was committed is there after the import, whatever the crash
//! left of the writes since the last flush.
//!
//! Transaction groups are written only when they are asked for, so that most of what a crash leaves is in the
//! log. Changes are committed one to three at a time, which is one log block. So what is there after a crash
//! is what there was at the last commit before it, or, if the crash came during a commit, at that one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dsl::write::props::{self, NewValue, Target};
use cenote_dsl::zil::{Item, walk};
use cenote_engine::Engine;
use cenote_engine::create::Redundancy;
use cenote_format::zil::{Body, Record};
use cenote_pool::{ImportOptions, Pool};
use cenote_torture::live::disk::{Image, Journal, Replay};
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Logs, Shape, disks, judge, lab};
use cenote_torture::live::side_by_side;
use cenote_torture::long;
use cenote_zpl::{
    Allocate, FileSystem, NewNode, NodeKind, RenameFlags, SetAttr, SetXattr, Settings, Visibility,
    flags,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const SHAPES: [Shape; 3] = [
    Shape { redundancy: Redundancy::Single, disks: 2, ashift: 9, size: 96 << 20 },
    Shape { redundancy: Redundancy::Mirror, disks: 2, ashift: 12, size: 96 << 20 },
    Shape { redundancy: Redundancy::RaidZ(1), disks: 3, ashift: 12, size: 64 << 20 },
];

/// What a file or directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// What a file holds; `None`: a directory.
    content: Option<Vec<u8>>,
    mode: u32,
    owner: u32,
    flags: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// By names.
type Tree = BTreeMap<Vec<u8>, Seen>;

/// Whether extended attributes are system attributes, and POSIX ACLs are on.
fn settings(xattr_sa: bool) -> Settings {
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
struct World {
    rng: SmallRng,
    engine: Arc<Engine>,
    fs: Arc<FileSystem>,
    tree: Tree,
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
        if self.rng.random_bool(0.5) {
            self.fs.link(ino, root, &name).unwrap();
            let content = Some(b"nameless".to_vec());
            let (flags, xattrs) = (0, BTreeMap::new());
            self.tree.insert(name, Seen { content, mode, owner: uid, flags, xattrs });
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
                4 => {
                    self.fs.unlink(root, &name, &|_| false).unwrap();
                    self.tree.remove(&name);
                }
                5 | 6 => self.rename(&name),
                7 | 8 => self.allocate(&name),
                _ => self.write(&name, if large { 150_000 } else { 2000 }),
            },
        }
    }

    /// Makes some changes, and has them stable.
    fn step(&mut self) {
        match self.rng.random_range(0..20) {
            0 => self.engine.sync().unwrap(),
            1 => self.engine.sync_task(|_| Ok(())).unwrap(),
            _ => {}
        }
        let large = self.rng.random_bool(0.1);
        for _ in 0..if large { 1 } else { self.rng.random_range(1..=3) } {
            self.change(large);
        }
        self.engine.commit(self.fs.objset().id()).unwrap();
    }
}

/// What is in the root directory.
fn look(fs: &FileSystem) -> Tree {
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
fn root(engine: &Engine, xattr_sa: bool) -> Arc<FileSystem> {
    let dataset = engine.pool().dsl().root().unwrap();
    FileSystem::open_live(engine.live(dataset.ds_obj).unwrap(), settings(xattr_sa)).unwrap()
}

/// Sets the property `logbias` of the root dataset.
fn log_for_throughput(engine: &Engine, throughput: bool) {
    let dir = engine.pool().dsl().root().unwrap().ds.dir;
    engine
        .sync_task(move |context| {
            let value = NewValue::Number(throughput.into());
            props::set(&mut context.tx, Target::Dir(dir), "logbias", &value)
        })
        .unwrap();
}

/// What was done, and what there was at each commit, with the number of operations until then.
struct Story {
    first: Vec<Image>,
    journal: Arc<Journal>,
    begun: usize,
    end: usize,
    states: Vec<(usize, Tree)>,
}

fn tell(seed: u64, shape: &Shape, steps: usize) -> Story {
    let journal = Arc::new(Journal::default());
    let first = vec![Image::new(shape.size); shape.disks];
    let lab = lab(&disks(&first, Some(&journal)));
    let engine = lab.create_with(shape, Logs::On).unwrap();
    engine.sync().unwrap();
    log_for_throughput(&engine, seed % 3 == 1);
    engine.sync().unwrap();
    let (rng, tree) = (SmallRng::seed_from_u64(seed), Tree::new());
    let mut world = World { rng, fs: root(&engine, seed.is_multiple_of(2)), engine, tree };
    let begun = journal.len();
    let mut states = vec![(begun, Tree::new())];
    for _ in 0..steps {
        world.step();
        states.push((journal.len(), world.tree.clone()));
    }
    let end = journal.len();
    Story { first, journal, begun, end, states }
}

/// A crash.
struct Point {
    at: usize,
    images: Vec<Image>,
    judged: bool,
}

fn survive(story: &Story, shape: &Shape, point: &Point) -> usize {
    let last = story.states.iter().rposition(|(at, _)| *at <= point.at).unwrap();
    let disks = disks(&point.images, None);
    if point.judged {
        judge(&point.images).unwrap();
    }
    let lab = lab(&disks);
    let engine = lab.import(&lab.find().unwrap()).unwrap();
    let records = std::sync::atomic::AtomicUsize::new(0);
    let count = |_: &str, done: &cenote_zpl::Replayed| {
        records.store(done.records as usize, std::sync::atomic::Ordering::Relaxed);
        true
    };
    let failed = cenote::contents::replay_logs(&engine, &count).unwrap();
    assert_eq!(failed, [], "{shape:?}");
    let tree = look(&root(&engine, true));
    let states = story.states.iter().skip(last).take(2);
    let names = |tree: &Tree| -> Vec<(String, Option<usize>)> {
        let name = |n: &[u8]| String::from_utf8_lossy(n).into_owned();
        tree.iter().map(|(n, c)| (name(n), c.content.as_ref().map(Vec::len))).collect()
    };
    let good: Vec<_> = states.clone().map(|(_, tree)| names(tree)).collect();
    assert!(
        states.clone().any(|(_, state)| *state == tree),
        "crash at {} of {}: {:?}, but after commits {last} and the next {good:?}",
        point.at,
        story.end,
        names(&tree)
    );
    engine.export(false).unwrap();
    if point.judged {
        judge(&disks.iter().map(|disk| disk.image()).collect::<Vec<_>>()).unwrap();
    }
    records.into_inner()
}

fn crash(seed: u64, shape: &Shape, steps: usize, points: usize, every: usize) {
    let _seed = Seed(format!("seed {seed}, {shape:?}"));
    let story = tell(seed, shape, steps);
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x11);
    let mut at: Vec<usize> =
        (0..points).map(|_| rng.random_range(story.begun..=story.end)).collect();
    at.sort_unstable();
    let mut replay = Replay::new(story.first.clone(), &story.journal);
    let points = at.into_iter().enumerate().map(|(i, at)| {
        replay.advance(at);
        Point { at, images: replay.crash(rng.random()), judged: i % every == every / 2 }
    });
    let replayed = std::sync::atomic::AtomicUsize::new(0);
    side_by_side(points, |point| {
        let _seed = Seed(format!("seed {seed}, {shape:?}"));
        let records = survive(&story, shape, &point);
        replayed.fetch_add(records.min(1), std::sync::atomic::Ordering::Relaxed);
    });
    assert!(replayed.into_inner() > 0, "no crash left a log");
}

#[test]
fn what_was_committed_is_there_after_any_crash() {
    let (rounds, steps, points, every) = if long() { (20, 150, 1000, 50) } else { (3, 60, 40, 20) };
    for seed in 0..rounds {
        crash(seed, &SHAPES[seed as usize % SHAPES.len()], steps, points, every);
    }
}

/// Each operation is one record, of the type that OpenZFS has for it, and says what it did.
#[test]
fn openzfs_reads_the_records() {
    let shape = &SHAPES[0];
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let engine = lab(&disks).create_with(shape, Logs::On).unwrap();
    let fs = root(&engine, true);
    let (root, id) = (fs.root(), fs.objset().id());
    let node = |kind| NewNode { kind, mode: 0o640, umask: 0, uid: 5, gid: 6, keep_setgid: true };
    let create = |name: &[u8], kind| fs.create(root, name, &node(kind)).unwrap().ino;
    create(b"first", NodeKind::File);
    // The log starts with this.
    engine.commit(id).unwrap();
    let file = create(b"file", NodeKind::File);
    create(b"dir", NodeKind::Dir);
    create(b"link", NodeKind::Symlink(b"target".to_vec()));
    fs.write(file, 1000, b"some bytes", false).unwrap();
    fs.link(file, root, b"hard").unwrap();
    fs.rename(root, b"hard", root, b"renamed", RenameFlags::default(), &|_| false).unwrap();
    let set = SetAttr { size: Some(500), uid: Some(77), ..SetAttr::default() };
    fs.setattr(file, &set).unwrap();
    fs.allocate(file, 100, 50, cenote_zpl::Allocate::PunchHole).unwrap();
    fs.unlink(root, b"first", &|_| false).unwrap();
    fs.rmdir(root, b"dir", &|_| false).unwrap();
    engine.commit(id).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (i, disk) in disks.iter().enumerate() {
        disk.image().save(&dir.path().join(format!("d{i}")));
    }
    let said = cenote_testpools::zdb(dir.path(), "tank", &["-iiii"]);
    let records = [
        "TX_CREATE",
        "TX_MKDIR",
        "TX_SYMLINK",
        "TX_WRITE",
        "TX_LINK",
        "TX_RENAME",
        "TX_SETATTR",
        "TX_TRUNCATE",
        "TX_REMOVE",
        "TX_RMDIR",
    ];
    for record in records {
        let all = said.lines().filter(|l| l.contains(&format!("{record} "))).count();
        assert!(all >= 1, "{record}: {said}");
    }
    for detail in ["file", "renamed", "target"] {
        assert!(said.contains(detail), "{detail}: {said}");
    }
    engine.export(false).unwrap();
}

/// How many `TX_WRITE` of the root dataset's log point to blocks, and how many have their data, in these images.
fn writes_in_log(images: &[Image]) -> (usize, usize) {
    let disks = disks(images, None);
    let candidate = lab(&disks).find().unwrap();
    let options = ImportOptions { readonly: true, force: true, ..ImportOptions::default() };
    let pool = Pool::import(&candidate, &options).unwrap();
    let set = pool.dsl().open_objset(&pool.dsl().root().unwrap()).unwrap();
    let (mut pointing, mut holding) = (0, 0);
    walk(pool.store(), &set.phys().zil, &mut |item| {
        if let Item::Record(raw) = item
            && let Ok(Record { body: Body::Write(write), .. }) = Record::decode(&raw)
        {
            match write.data {
                Some(_) => holding += 1,
                None => pointing += 1,
            }
        }
        true
    });
    (pointing, holding)
}

/// Large writes, and with `logbias=throughput` all, are in blocks that are written for good, once: nothing is
/// leaked when they are changed or freed in the same group.
#[test]
fn records_point_to_blocks_that_are_written_for_good() {
    let shape = &SHAPES[0];
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let engine = lab(&disks).create_with(shape, Logs::On).unwrap();
    let fs = root(&engine, true);
    let id = fs.objset().id();
    let (kind, mode, umask, uid, gid) = (NodeKind::File, 0o644, 0, 1, 2);
    let new = NewNode { kind, mode, umask, uid, gid, keep_setgid: true };
    let create = |name: &[u8]| fs.create(fs.root(), name, &new).unwrap().ino;
    let (a, b, c) = (create(b"a"), create(b"b"), create(b"c"));
    let mut rng = SmallRng::seed_from_u64(5);
    let mut noise = |len| (0..len).map(|_| rng.random()).collect::<Vec<u8>>();
    engine.commit(id).unwrap();
    let images = || disks.iter().map(|disk| disk.image()).collect::<Vec<_>>();
    let txg = engine.pool().uberblock().txg;
    // A small write is in its record, a large one is not, but for its end.
    fs.write(a, 0, &noise(4000), false).unwrap();
    engine.commit_objects(id, &[a]).unwrap();
    assert_eq!(writes_in_log(&images()), (0, 1));
    fs.write(b, 0, &noise((256 << 10) + 100), false).unwrap();
    engine.commit_objects(id, &[b]).unwrap();
    assert_eq!(writes_in_log(&images()), (2, 2));
    // What is changed is written again, what is not is not, and what is removed is nowhere.
    fs.write(b, 0, &noise(128 << 10), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(c, 0, &noise(128 << 10), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(c, 5, b"other", false).unwrap();
    engine.commit(id).unwrap();
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(c, &set).unwrap();
    engine.commit(id).unwrap();
    assert_eq!(writes_in_log(&images()), (4, 3));
    assert_eq!(engine.pool().uberblock().txg, txg, "a commit waited for its group");
    judge(&images()).unwrap();
    let before = look(&fs);
    let crashed = lab(&cenote_torture::live::lab::disks(&images(), None));
    let engine2 = crashed.import(&crashed.find().unwrap()).unwrap();
    assert_eq!(cenote::contents::replay_logs(&engine2, &|_, _| true).unwrap(), []);
    assert!(look(&root(&engine2, true)) == before, "after replay");
    engine2.export(false).unwrap();
    engine.sync().unwrap();
    log_for_throughput(&engine, true);
    fs.write(a, 0, &noise(4000), false).unwrap();
    engine.sync().unwrap();
    fs.write(a, 0, &noise(100), false).unwrap();
    engine.commit(id).unwrap();
    fs.write(a, 0, &noise(100), false).unwrap();
    engine.commit(id).unwrap();
    assert_eq!(writes_in_log(&images()).0, 2);
    engine.export(false).unwrap();
    judge(&images()).unwrap();
}
