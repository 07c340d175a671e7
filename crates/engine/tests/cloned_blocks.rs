//! Blocks of files cloned within a file system and between file systems of a pool. What is cloned reads as what it
//! was cloned from did; every reference is counted, as a walk of everything finds; a block without references is
//! free.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_dsl::Dataset;
use cenote_dsl::crypt::KeyFormat;
use cenote_dsl::write::crypt::RootKey;
use cenote_engine::change::{Kind, NewClone, NewDataset, NewEncryption, NewSnapshot};
use cenote_engine::{Engine, EngineOptions, SyncContext};
use cenote_format::crypt::{Suite, WrappingKey};
use cenote_format::dmu::DmuType;
use cenote_pool::{ImportOptions, Pool, brt, discover};
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, SetAttr, Settings};
use rig::{Rig, account, changes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const SIZE: u64 = 192 << 20;
const K: u64 = 1 << 10;

fn find(pool: &Pool, name: &str) -> Dataset {
    pool.dsl().find(name).unwrap().unwrap()
}

fn open(engine: &Engine, name: &str, record_size: u64) -> Arc<FileSystem> {
    let live = engine.live(find(&engine.pool(), name).ds_obj).unwrap();
    FileSystem::open_live(live, Settings { record_size, ..Settings::default() }).unwrap()
}

fn create(engine: &Arc<Engine>, name: &str) {
    let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props: vec![] };
    changes(engine).create(&new).unwrap();
}

/// Every dataset and snapshot.
fn all(pool: &Pool) -> Vec<Dataset> {
    let dsl = pool.dsl();
    let (mut found, mut todo) = (Vec::new(), vec![dsl.root().unwrap()]);
    while let Some(dataset) = todo.pop() {
        todo.extend(dsl.children(&dataset).unwrap());
        found.extend(dsl.snapshots(&dataset).unwrap());
        found.push(dataset);
    }
    found
}

/// The directory whose blocks those are that a dataset has and that were born in `birth`: its own, or one that it
/// is a clone of.
fn owner(pool: &Pool, dataset: &Dataset, birth: u64) -> u64 {
    let mut dir = (dataset.dir_obj, dataset.dir.origin);
    while let Some(origin) = pool.dsl().by_object(dir.1).unwrap().filter(|_| dir.1 != 0) {
        if birth > origin.ds.creation_txg {
            break;
        }
        dir = (origin.dir_obj, origin.dir.origin);
    }
    dir.0
}

/// Whose a block is: directory, object, number and birth.
type Place = (u64, u64, u64, u64);

/// Bytes of blocks that more than one pointer leads to, and bytes that this saves, as a walk finds them.
fn shared(pool: &Pool) -> (u64, u64) {
    let mut references: BTreeMap<(u32, u64), (u64, BTreeSet<Place>)> = BTreeMap::new();
    for dataset in all(pool) {
        let os = pool.dsl().open_objset(&dataset).unwrap();
        let fs = FileSystem::open(os).unwrap();
        for entry in fs.readdir(fs.root(), 0, 1000).unwrap() {
            let object = fs.object(entry.ino).unwrap();
            for blkid in 0..=object.dnode().max_block {
                let bp = object.block_pointer(0, blkid).unwrap();
                let Some(dva) = bp.dva(0).filter(|_| !bp.is_hole() && !bp.is_embedded()) else {
                    continue;
                };
                let birth = bp.logical_birth();
                let whose = (owner(pool, &dataset, birth), entry.ino, blkid, birth);
                let known = references.entry((dva.vdev, dva.offset));
                known.or_insert_with(|| (dva.asize, BTreeSet::new())).1.insert(whose);
            }
        }
    }
    let more = references.values().filter(|(_, whose)| whose.len() > 1);
    more.fold((0, 0), |(used, saved), (size, whose)| {
        (used + size, saved + size * (whose.len() as u64 - 1))
    })
}

/// The pool's tables count what a walk finds, and every block is accounted for.
fn check_references(engine: &Engine) {
    for _ in 0..4 {
        engine.sync().unwrap();
    }
    let pool = engine.pool();
    let savings = pool.savings().unwrap();
    assert_eq!((savings.clone_stored, savings.clone_saved), shared(&pool));
    let uses = pool.features().is_active("block_cloning");
    assert_eq!(uses, savings.clone_stored > 0, "the feature");
    account(&pool);
}

fn new_file(fs: &FileSystem, name: &str) -> u64 {
    fs.create(fs.root(), name.as_bytes(), &rig::NODE).unwrap().ino
}

fn contents(fs: &FileSystem, ino: u64) -> Vec<u8> {
    let mut data = vec![0; fs.attr(ino).unwrap().size as usize];
    fs.read(ino, 0, &mut data).unwrap();
    data
}

#[test]
fn a_copy_takes_no_space_of_its_own_and_lives_on_alone() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    create(&engine, "tank/other");
    let (fs, other) = (open(&engine, "tank", 128 * K), open(&engine, "tank/other", 128 * K));
    let (from, data) = (new_file(&fs, "one"), rig::bytes(1, (1 << 20) + 5000));
    fs.write(from, 0, &data, false).unwrap();
    let size = data.len() as u64;
    // What is not on disk yet is waited for.
    let same = new_file(&fs, "two");
    assert_eq!(fs.copy_range(from, 0, same, 0, u64::MAX).unwrap(), size);
    // Pending clones are read, and cloned, too.
    assert!(contents(&fs, same) == data);
    let far = new_file(&other, "three");
    assert_eq!(other.copy_range_from(&fs, (same, 0), (far, 0), size).unwrap(), size);
    assert!(contents(&other, far) == data);
    check_references(&engine);
    let stored = fs.objset().object(from).unwrap().dnode().used;
    let savings = *engine.pool().savings().unwrap();
    // All blocks but the indirect ones.
    assert!(savings.clone_stored > 1 << 20 && savings.clone_stored <= stored);
    assert_eq!(savings.clone_saved, 2 * savings.clone_stored);
    assert_eq!(savings.clone_ratio(), 300);

    // A change of one file does not change the others, and takes one reference.
    fs.write(same, 10, b"changed", false).unwrap();
    check_references(&engine);
    assert!(contents(&other, far) == data && contents(&fs, from) == data);
    fs.unlink(fs.root(), b"one", &|_| false).unwrap();
    check_references(&engine);
    assert!(contents(&other, far) == data);
    fs.unlink(fs.root(), b"two", &|_| false).unwrap();
    check_references(&engine);
    assert_eq!(engine.pool().savings().unwrap().clone_stored, 0);
    assert!(contents(&other, far) == data);
    drop((fs, other));
    engine.export(false).unwrap();
    // No block is cloned any more: every OpenZFS can judge.
    rig.judge();
}

/// The counts of a big-endian machine's table are read, and not written.
#[test]
fn clones_of_big_endian_machines_are_only_read() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    let fs = open(&engine, "tank", 128 * K);
    let (from, data) = (new_file(&fs, "one"), rig::bytes(1, 1 << 20));
    fs.write(from, 0, &data, false).unwrap();
    let to = new_file(&fs, "two");
    assert_eq!(fs.copy_range(from, 0, to, 0, u64::MAX).unwrap(), 1 << 20);
    drop(fs);
    check_references(&engine);
    let brt::Table { object, entries, ranges, count, range_size, used, saved, .. } =
        brt::load(engine.pool().mos(), 1).unwrap()[0];
    let words = [entries, ranges, brt::BIG_ENDIAN, count, range_size, used, saved];
    let bonus: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let set = move |context: &mut SyncContext<'_>| {
        Ok(context.tx.mos.set_bonus(object, DmuType(0xc3), &bonus)?)
    };
    engine.sync_task(set).unwrap();
    engine.export(false).unwrap();
    drop(engine);

    let found = discover(&[rig.path().to_path_buf()]);
    let (how, mut said) = (ImportOptions::default(), String::new());
    // Programs that other tests start have its devices open for a moment.
    for _ in 0..100 {
        said = Engine::import(&found[0], &how, EngineOptions::default()).err().unwrap().to_string();
        if !said.contains("already in use") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(
        said,
        concat!(
            "cannot import 'tank': a block reference table (cloned blocks) of a big-endian system ",
            "is not supported for writing; use -o readonly=on"
        )
    );
    let options = ImportOptions { readonly: true, ..ImportOptions::default() };
    let pool = Pool::import(&found[0], &options).unwrap();
    let dataset = find(&pool, "tank");
    let fs = FileSystem::open(pool.dsl().open_objset(&dataset).unwrap()).unwrap();
    assert!(contents(&fs, from) == data && contents(&fs, to) == data);
    assert_eq!(pool.clone_saved(), Some(saved));
}

#[test]
fn what_does_not_suit_is_copied() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    let fs = open(&engine, "tank", 16 * K);
    let (from, data) = (new_file(&fs, "one"), rig::bytes(2, 100_000));
    fs.write(from, 0, &data, false).unwrap();
    engine.sync().unwrap();
    for (n, (at, to, len)) in [(1, 0, 99_999), (0, 1, 100_000), (0, 0, 40_000)].iter().enumerate() {
        let ino = new_file(&fs, &format!("to {n}"));
        assert_eq!(fs.copy_range(from, *at, ino, *to, *len).unwrap(), *len);
        let (at, to, len) = (*at as usize, *to as usize, *len as usize);
        assert!(contents(&fs, ino)[to..] == data[at..at + len]);
    }
    // Whole blocks of the third one.
    check_references(&engine);
    assert_eq!(engine.pool().savings().unwrap().clone_saved, 2 * 16 * K);
    // Holes stay holes, embedded blocks go with their pointers.
    let sparse = new_file(&fs, "sparse");
    fs.write(sparse, 160 * K, &[7; 16 << 10], false).unwrap();
    fs.write(sparse, 320 * K, &rig::bytes(3, 16 << 10), false).unwrap();
    let copy = new_file(&fs, "copy of sparse");
    fs.copy_range(sparse, 0, copy, 0, u64::MAX).unwrap();
    check_references(&engine);
    assert!(contents(&fs, copy) == contents(&fs, sparse));
    let used = |ino| fs.objset().object(ino).unwrap().dnode().used;
    assert_eq!(used(copy), used(sparse));
    // Over what there was.
    fs.copy_range(sparse, 0, from, 0, u64::MAX).unwrap();
    assert!(contents(&fs, from) == contents(&fs, sparse));
    check_references(&engine);
    drop(fs);
    engine.export(false).unwrap();
}

/// Encrypted blocks are cloned between a file system and its clones, which have one key, and copied between others.
#[test]
fn encrypted_blocks_are_cloned_within_one_key() {
    let rig = Rig::new(SIZE);
    let engine = rig.create("a", 12);
    let encrypted = |name: &str, how: &NewEncryption| {
        let new = NewDataset { name: name.into(), kind: Kind::Filesystem, props: vec![] };
        changes(&engine).create_encrypted(&new, how).unwrap();
    };
    let wrapping = Arc::new(WrappingKey::from_raw(&[5; 32]).unwrap());
    let key = RootKey { format: KeyFormat::Raw, salt: 0, iterations: 0, wrapping };
    encrypted("tank/e", &NewEncryption::Root(key, Suite::Aes256Gcm, "prompt".into()));
    // Of one encryption root, with a key of its own.
    encrypted("tank/e/child", &NewEncryption::Inherit(None));
    let fs = open(&engine, "tank/e", 128 * K);
    let (from, data) = (new_file(&fs, "one"), rig::bytes(1, 512 << 10));
    fs.write(from, 0, &data, false).unwrap();
    let new = NewSnapshot { names: vec!["tank/e@s".into()], props: vec![] };
    changes(&engine).snapshot(&new).unwrap();
    let (origin, name) = ("tank/e@s".into(), "tank/e/clone".into());
    changes(&engine).clone_snapshot(&NewClone { origin, name, props: vec![] }).unwrap();
    let copied = |name: &str, file: &str| {
        let to = open(&engine, name, 128 * K);
        let ino = new_file(&to, file);
        let len = data.len() as u64;
        assert_eq!(to.copy_range_from(&fs, (from, 0), (ino, 0), len).unwrap(), len);
        assert!(contents(&to, ino) == data, "{name}");
        check_references(&engine);
        engine.pool().savings().unwrap().clone_saved
    };
    let size = data.len() as u64;
    assert_eq!(copied("tank/e/child", "other key"), 0);
    assert_eq!(copied("tank", "plain"), 0);
    assert_eq!(copied("tank/e", "same"), size);
    assert_eq!(copied("tank/e/clone", "of the clone"), 2 * size);
    // Plain blocks go into an encrypted one as copies.
    let plain = open(&engine, "tank", 128 * K);
    let source = new_file(&plain, "source");
    plain.write(source, 0, &data, false).unwrap();
    let into = new_file(&fs, "from plain");
    assert_eq!(fs.copy_range_from(&plain, (source, 0), (into, 0), size).unwrap(), size);
    check_references(&engine);
    assert_eq!(engine.pool().savings().unwrap().clone_saved, 2 * size);
    drop((fs, plain));
    engine.export(false).unwrap();
}

/// The files of a file system, by number.
type Files = BTreeMap<u64, Vec<u8>>;

struct World {
    engine: Arc<Engine>,
    random: Random,
    heads: BTreeMap<String, (Arc<FileSystem>, Files)>,
    snapshots: BTreeMap<String, Files>,
    names: u64,
}

fn overwrite(file: &mut Vec<u8>, at: usize, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    let end = at + data.len();
    file.resize(file.len().max(end), 0);
    file[at..end].copy_from_slice(data);
}

impl World {
    fn head(&mut self) -> String {
        let names: Vec<String> = self.heads.keys().cloned().collect();
        self.random.pick(&names).cloned().unwrap()
    }

    fn file(&mut self, head: &str) -> Option<u64> {
        let files: Vec<u64> = self.heads[head].1.keys().copied().collect();
        self.random.pick(&files).cloned()
    }

    /// A place in a file: mostly where a block begins.
    fn place(&mut self) -> u64 {
        match self.random.below(5) {
            0 => self.random.below(200 * K),
            _ => self.random.below(24) * 8 * K,
        }
    }

    fn write(&mut self) {
        let (head, at) = (self.head(), self.place());
        let len = [100, 8 * K, 50 * K][self.random.below(3) as usize];
        let data = rig::bytes(self.random.below(1 << 40), len as usize);
        self.names += 1;
        let known = self.file(&head).filter(|_| self.random.below(3) > 0);
        let name = format!("file {}", self.names);
        let (fs, files) = self.heads.get_mut(&head).unwrap();
        let ino = known.unwrap_or_else(|| new_file(fs, &name));
        let at = if known.is_none() { 0 } else { at };
        fs.write(ino, at, &data, false).unwrap();
        overwrite(files.entry(ino).or_default(), at as usize, &data);
    }

    fn copy(&mut self) {
        let (a, b) = (self.head(), self.head());
        let (Some(from), Some(to)) = (self.file(&a), self.file(&b)) else { return };
        let to = if self.random.below(3) == 0 {
            self.names += 1;
            let ino = new_file(&self.heads[&b].0, &format!("file {}", self.names));
            self.heads.get_mut(&b).unwrap().1.insert(ino, Vec::new());
            ino
        } else {
            to
        };
        let (at, to_at) = match self.random.below(3) {
            0 => (0, 0),
            _ => (self.place(), self.place()),
        };
        let len = [u64::MAX, 16 * K, self.random.below(100 * K)][self.random.below(3) as usize];
        let source = &self.heads[&a].1[&from];
        let part = source.get(at as usize..).unwrap_or_default();
        let part = part[..part.len().min(usize::try_from(len).unwrap_or(usize::MAX))].to_vec();
        let from_fs = self.heads[&a].0.clone();
        let (fs, files) = self.heads.get_mut(&b).unwrap();
        let done = fs.copy_range_from(&from_fs, (from, at), (to, to_at), len);
        if a == b && from == to && at.abs_diff(to_at) < part.len() as u64 {
            assert!(done.is_err());
            return;
        }
        assert_eq!(done.unwrap(), part.len() as u64);
        overwrite(files.get_mut(&to).unwrap(), to_at as usize, &part);
    }

    fn truncate(&mut self) {
        let (head, size) = (self.head(), self.place());
        let Some(ino) = self.file(&head) else { return };
        let (fs, files) = self.heads.get_mut(&head).unwrap();
        fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
        files.get_mut(&ino).unwrap().resize(size as usize, 0);
    }

    fn remove(&mut self) {
        let head = self.head();
        let Some(ino) = self.file(&head) else { return };
        let (fs, files) = self.heads.get_mut(&head).unwrap();
        let entries = fs.readdir(fs.root(), 0, 1000).unwrap();
        let name = entries.into_iter().find(|e| e.ino == ino).unwrap().name;
        fs.unlink(fs.root(), &name, &|_| false).unwrap();
        files.remove(&ino);
    }

    fn snapshot(&mut self) {
        let head = self.head();
        self.names += 1;
        let name = format!("{head}@{}", self.names);
        let new = NewSnapshot { names: vec![name.clone()], props: vec![] };
        changes(&self.engine).snapshot(&new).unwrap();
        self.snapshots.insert(name, self.heads[&head].1.clone());
    }

    fn drop_snapshot(&mut self) {
        let names: Vec<String> = self.snapshots.keys().cloned().collect();
        let Some(name) = self.random.pick(&names).cloned() else { return };
        // One with clones stays.
        if changes(&self.engine).destroy_snapshots(std::slice::from_ref(&name), false).is_ok() {
            self.snapshots.remove(&name);
        }
    }

    fn clone_snapshot(&mut self) {
        let names: Vec<String> = self.snapshots.keys().cloned().collect();
        let Some(origin) = self.random.pick(&names).cloned().filter(|_| self.heads.len() < 4)
        else {
            return;
        };
        self.names += 1;
        let name = format!("tank/clone{}", self.names);
        let new = NewClone { origin: origin.clone(), name: name.clone(), props: vec![] };
        changes(&self.engine).clone_snapshot(&new).unwrap();
        let fs = open(&self.engine, &name, 8 * K);
        self.heads.insert(name, (fs, self.snapshots[&origin].clone()));
    }

    fn drop_head(&mut self, name: &str) {
        let (fs, _) = self.heads.remove(name).unwrap();
        drop(fs);
        self.engine.close(find(&self.engine.pool(), name).ds_obj).unwrap();
        if changes(&self.engine).destroy(name).is_err() {
            // It has snapshots.
            let fs = open(&self.engine, name, 8 * K);
            let files = fs.readdir(fs.root(), 0, 1000).unwrap();
            let files = files.into_iter().map(|e| (e.ino, contents(&fs, e.ino))).collect();
            self.heads.insert(name.into(), (fs, files));
        }
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..10 => self.write(),
            10..26 => self.copy(),
            26..28 => self.truncate(),
            28 => self.remove(),
            29..32 => self.engine.sync().unwrap(),
            32..35 => self.snapshot(),
            35..37 => self.drop_snapshot(),
            37 => self.clone_snapshot(),
            _ => {
                let name = self.head();
                if name.contains("clone") {
                    self.drop_head(&name);
                }
            }
        }
    }

    fn check(&self) {
        for (name, (fs, files)) in &self.heads {
            for (ino, data) in files {
                assert!(contents(fs, *ino) == *data, "{name}: file {ino}");
            }
        }
        check_references(&self.engine);
        let pool = self.engine.pool();
        for (name, files) in &self.snapshots {
            let fs = FileSystem::open(pool.dsl().open_objset(&find(&pool, name)).unwrap()).unwrap();
            for (ino, data) in files {
                assert!(contents(&fs, *ino) == *data, "{name}: file {ino}");
            }
        }
    }
}

/// Random changes of file systems with clones of each other's blocks.
fn random(seed: u64, steps: usize) {
    let rig = Rig::new(SIZE);
    let options =
        EngineOptions { txg_timeout: Some(Duration::from_secs(60)), ..Default::default() };
    let engine = rig.create_with("a", 9 + seed % 4, options);
    create(&engine, "tank/b");
    let heads = ["tank", "tank/b"].map(|name| {
        let fs = open(&engine, name, 8 * K);
        (name.to_string(), (fs, Files::new()))
    });
    let (random, snapshots, names) = (Random(seed), BTreeMap::new(), 0);
    let mut world = World { engine, random, heads: heads.into(), snapshots, names };
    for step in 0..steps {
        world.step();
        if step % 40 == 39 {
            world.check();
        }
    }
    world.check();

    // When all is gone, no reference is left.
    loop {
        let before = (world.snapshots.len(), world.heads.len());
        let clones: Vec<_> = world.heads.keys().filter(|n| n.contains("clone")).cloned().collect();
        clones.iter().for_each(|name| world.drop_head(name));
        let names: Vec<_> = world.snapshots.keys().cloned().collect();
        for name in names {
            if changes(&world.engine).destroy_snapshots(std::slice::from_ref(&name), false).is_ok()
            {
                world.snapshots.remove(&name);
            }
        }
        if (world.snapshots.len(), world.heads.len()) == before {
            break;
        }
        check_references(&world.engine);
    }
    assert_eq!((world.snapshots.len(), world.heads.len()), (0, 2));
    while world.heads.values().any(|(_, files)| !files.is_empty()) {
        world.remove();
    }
    check_references(&world.engine);
    assert_eq!(world.engine.pool().savings().unwrap().clone_stored, 0);
    let World { engine, heads, .. } = world;
    drop(heads);
    engine.export(false).unwrap();
    rig.judge();
}

#[test]
fn references_are_counted_whatever_happens() {
    let long = std::env::var("CENOTE_TORTURE").is_ok_and(|how| how == "long");
    for seed in 0..if long { 40 } else { 3 } {
        random(seed, if long { 600 } else { 200 });
    }
}
