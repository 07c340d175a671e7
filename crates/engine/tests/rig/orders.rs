//! Changes of a pool in a random order: writes, snapshots, clones, and what undoes them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::changes;
use cenote_dsl::{Dataset, DatasetKind};
use cenote_engine::Engine;
use cenote_engine::change::{ChangeError, Changes, NewClone, NewSnapshot};
use cenote_pool::Pool;
use cenote_testpools::Random;
use cenote_zpl::{FileSystem, Settings};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Kinds of changes.
pub const KINDS: usize = 7;
/// Steps of an order.
const STEPS: usize = 60;

/// A sum of the contents of each file of a root directory.
type Files = BTreeMap<Vec<u8>, u64>;

/// A number that tells contents apart.
fn sum(data: &[u8]) -> u64 {
    data.iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, b| (sum ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

fn files(pool: &Pool, dataset: &Dataset) -> Option<Files> {
    let fs = FileSystem::open(pool.dsl().open_objset(dataset).unwrap()).ok()?;
    let mut files = Files::new();
    for entry in fs.readdir(fs.root(), 0, 1000).unwrap() {
        let attr = fs.attr(entry.ino).unwrap();
        if attr.mode & 0o170_000 != 0o100_000 || attr.size > 32 << 20 {
            continue;
        }
        let mut data = vec![0; attr.size as usize];
        fs.read(entry.ino, 0, &mut data).unwrap();
        files.insert(entry.name, sum(&data));
    }
    Some(files)
}

/// Every dataset of the pool.
fn all(pool: &Pool) -> Vec<Dataset> {
    let dsl = pool.dsl();
    let (mut found, mut todo) = (Vec::new(), vec![dsl.root().unwrap()]);
    while let Some(dataset) = todo.pop() {
        todo.extend(dsl.children(&dataset).unwrap());
        found.extend(dsl.snapshots(&dataset).unwrap());
        found.push(dataset);
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Changes of a pool in an order that follows from a seed.
pub struct Order {
    engine: Arc<Engine>,
    changes: Changes,
    random: Random,
    /// What each snapshot holds, by guid, as it was when it was first seen.
    held: BTreeMap<u64, Files>,
    done: BTreeMap<&'static str, usize>,
    names: usize,
}

impl Order {
    /// Takes [`STEPS`] steps on a pool, and exports it. `done` counts what was done, by kinds.
    pub fn run(engine: Arc<Engine>, seed: u64, done: &mut BTreeMap<&'static str, usize>) {
        let changes = changes(&engine);
        let (held, random, done_before) = (BTreeMap::new(), Random(seed), std::mem::take(done));
        let mut order = Order { engine, changes, random, held, done: done_before, names: 0 };
        order.check();
        for step in 0..STEPS {
            order.step();
            if step % 10 == 9 {
                order.check();
            }
        }
        order.check();
        order.engine.export(false).unwrap();
        *done = order.done;
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("new{}", self.names)
    }

    fn of(&self, is: impl Fn(&Dataset) -> bool) -> Vec<Dataset> {
        all(&self.engine.pool()).into_iter().filter(is).collect()
    }

    fn heads(&self) -> Vec<Dataset> {
        self.of(|d| d.kind == DatasetKind::Filesystem)
    }

    fn snapshots(&self) -> Vec<Dataset> {
        self.of(|d| d.kind == DatasetKind::Snapshot)
    }

    fn write(&mut self) -> Result<(), ChangeError> {
        let heads = self.heads();
        let Some(head) = self.random.pick(&heads) else { return Ok(()) };
        let live = self.engine.live(head.ds_obj).unwrap();
        let fs = FileSystem::open_live(live, Settings::default()).unwrap();
        let first = 9000 + self.random.below(1000);
        let entries = fs.readdir(fs.root(), 0, 1000).unwrap();
        if let Some(entry) = self.random.pick(&entries) {
            let attr = fs.attr(entry.ino).unwrap();
            if attr.mode & 0o170_000 == 0o100_000 && attr.size > 0 && attr.flags == 0 {
                fs.write(entry.ino, attr.size / 2, &super::bytes(first, 10_000), false).unwrap();
            }
        }
        let name = format!("file {first}");
        if fs.lookup(fs.root(), name.as_bytes()).is_err() {
            // A quota may refuse it.
            if let Ok(file) = fs.create(fs.root(), name.as_bytes(), &super::NODE) {
                let _ = fs.write(file.ino, 0, &super::bytes(first, 60_000), false);
            }
        }
        drop(fs);
        self.engine.close(head.ds_obj).unwrap();
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), ChangeError> {
        let (heads, name) = (self.heads(), self.name());
        let Some(head) = self.random.pick(&heads) else { return Ok(()) };
        let names = vec![format!("{}@{name}", head.name)];
        self.changes.snapshot(&NewSnapshot { names, props: vec![] }).map_err(|(_, e)| e)
    }

    fn clone_one(&mut self) -> Result<(), ChangeError> {
        let (snapshots, name) = (self.snapshots(), self.name());
        let Some(origin) = self.random.pick(&snapshots) else { return Ok(()) };
        let name = format!("{}/{name}", self.engine.pool().name());
        let new = NewClone { origin: origin.name.clone(), name, props: vec![] };
        self.changes.clone_snapshot(&new)
    }

    fn promote(&mut self) -> Result<(), ChangeError> {
        let clones = self.of(|d| d.is_head() && d.dir.origin != 0);
        let Some(clone) = self.random.pick(&clones) else { return Ok(()) };
        self.changes.promote(&clone.name).map_err(|(_, e)| e)
    }

    fn drop_snapshot(&mut self) -> Result<(), ChangeError> {
        let snapshots = self.snapshots();
        let Some(one) = self.random.pick(&snapshots) else { return Ok(()) };
        let gone = self.changes.destroy_snapshots(std::slice::from_ref(&one.name), false);
        gone.map_err(|mut refused| refused.remove(0).1)
    }

    fn roll_back(&mut self) -> Result<(), ChangeError> {
        let heads = self.of(|d| d.is_head() && d.ds.prev_snap != 0);
        let Some(head) = self.random.pick(&heads) else { return Ok(()) };
        let to = self.of(|d| d.ds_obj == head.ds.prev_snap);
        self.engine.close(head.ds_obj).unwrap();
        to.first().map_or(Ok(()), |to| self.changes.rollback(&to.name))
    }

    fn drop_head(&mut self) -> Result<(), ChangeError> {
        let heads = self.of(|d| d.is_head() && d.name.contains('/'));
        let Some(head) = self.random.pick(&heads) else { return Ok(()) };
        self.engine.close(head.ds_obj).unwrap();
        self.changes.destroy(&head.name)
    }

    fn step(&mut self) {
        let (what, done) = match self.random.below(13) {
            0..4 => ("write", self.write()),
            4 | 5 => ("snapshot", self.snapshot()),
            6 | 7 => ("clone", self.clone_one()),
            8 => ("promote", self.promote()),
            9 => ("drop snapshot", self.drop_snapshot()),
            10 => ("roll back", self.roll_back()),
            _ => ("drop head", self.drop_head()),
        };
        // What is in the way is refused: clones, holds, snapshots.
        *self.done.entry(what).or_default() += usize::from(done.is_ok());
        self.engine.sync().unwrap();
    }

    /// Snapshots read as they did, and livelists add up.
    fn check(&mut self) {
        let pool = self.engine.pool();
        for dataset in all(&pool) {
            if dataset.kind == DatasetKind::Snapshot {
                let Some(now) = files(&pool, &dataset) else { continue };
                let before = self.held.entry(dataset.ds.guid).or_insert_with(|| now.clone());
                assert_eq!(*before, now, "{}", dataset.name);
            }
            let Some(list) = pool.dsl().livelist(&dataset).unwrap() else { continue };
            let origin = pool.dsl().by_object(dataset.dir.origin).unwrap().unwrap();
            let own = pool.dsl().sizes_since(&dataset, &origin).unwrap().unwrap();
            let sums = (list.total.used, list.total.compressed);
            assert_eq!((own.used, own.compressed), sums, "{}", dataset.name);
        }
    }
}
