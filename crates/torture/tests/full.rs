//! Pools that are filled up again and again, of random layouts, with random sizes of records, copies and
//! pieces in which they are filled: changes are refused for want of space or by a quota, but no pool is
//! suspended, what was accepted is there, and what is emptied can be filled again. OpenZFS's zdb judges
//! each pool.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_engine::Engine;
use cenote_engine::change::{Changes, Kind, NewDataset, NewSnapshot};
use cenote_engine::create::Redundancy;
use cenote_torture::live::disk::Image;
use cenote_torture::live::driver::Seed;
use cenote_torture::live::lab::{Plain, Shape, disks, judge, keep, lab};
use cenote_torture::live::side_by_side;
use cenote_torture::{Progress, long};
use cenote_zpl::{FileSystem, NewNode, NodeKind, SetAttr, Settings};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

const NODE: NewNode = NewNode {
    kind: NodeKind::File,
    mode: 0o644,
    umask: 0o022,
    uid: 1000,
    gid: 100,
    keep_setgid: true,
};
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// A layout.
fn shape(rng: &mut SmallRng) -> Shape {
    let ashift = [9, 9, 12, 12, 12, 13][rng.random_range(0..6)];
    let (redundancy, disks) = match rng.random_range(0..6) {
        0 | 1 => (Redundancy::Single, rng.random_range(1..=2)),
        2 => (Redundancy::Mirror, 2),
        3 => (Redundancy::RaidZ(1), rng.random_range(3..=5)),
        4 => (Redundancy::RaidZ(2), rng.random_range(4..=6)),
        _ => (Redundancy::RaidZ(3), rng.random_range(5..=6)),
    };
    let size = match disks {
        1 | 2 => [64, 100, 200, 300][rng.random_range(0..4)],
        _ => [64, 96][rng.random_range(0..2)],
    };
    Shape { redundancy, disks, ashift, size: size << 20 }
}

/// A file system that is filled: its files, with what was accepted of each.
struct Filled {
    fs: Arc<FileSystem>,
    files: BTreeMap<u64, Vec<u8>>,
    next: u64,
    refused: u64,
}

impl Filled {
    fn new(engine: &Arc<Engine>, name: &str, record_size: u64) -> Filled {
        let found = engine.pool().dsl().find(name).unwrap().unwrap();
        let settings = Settings { record_size, ..Settings::default() };
        let fs = FileSystem::open_live(engine.live(found.ds_obj).unwrap(), settings).unwrap();
        Filled { fs, files: BTreeMap::new(), next: 0, refused: 0 }
    }

    /// Notes a refusal; whether it was one.
    fn refused<T>(&mut self, done: Result<T, cenote_zpl::Error>) -> Option<T> {
        match done {
            Ok(done) => Some(done),
            Err(e) => {
                assert!([ENOSPC, EDQUOT].contains(&e.errno()), "{e}");
                self.refused += 1;
                None
            }
        }
    }

    fn any(&self, rng: &mut SmallRng) -> Option<u64> {
        let at = rng.random_range(0..self.files.len().max(1));
        self.files.keys().nth(at).copied()
    }

    fn create(&mut self) -> Option<u64> {
        self.next += 1;
        let name = format!("file {}", self.next);
        let made = self.fs.create(self.fs.root(), name.as_bytes(), &NODE);
        let ino = self.refused(made)?.ino;
        self.files.insert(ino, Vec::new());
        Some(ino)
    }

    fn write(&mut self, ino: u64, at: usize, data: &[u8]) {
        let done = self.fs.write(ino, at as u64, data, false);
        if self.refused(done).is_some() {
            let file = self.files.get_mut(&ino).unwrap();
            let end = (at + data.len()).max(file.len());
            file.resize(end, 0);
            file[at..at + data.len()].copy_from_slice(data);
        }
    }

    /// Does something that takes space.
    fn step(&mut self, rng: &mut SmallRng, piece: usize) {
        let mut data = vec![0; rng.random_range(1..=piece)];
        rng.fill_bytes(&mut data);
        let Some(ino) = self.any(rng) else {
            self.create();
            return;
        };
        let len = self.files[&ino].len();
        match rng.random_range(0..10) {
            0 => {
                if let Some(ino) = self.create() {
                    self.write(ino, 0, &data);
                }
            }
            1 | 2 if len > 0 => {
                // A few bytes anywhere.
                data.truncate(700);
                self.write(ino, rng.random_range(0..len), &data);
            }
            3 => {
                let set = SetAttr { mode: Some(rng.random_range(0..0o1000)), ..SetAttr::default() };
                let done = self.fs.setattr(ino, &set);
                self.refused(done);
            }
            _ => self.write(ino, len, &data),
        }
    }

    fn check(&self) {
        for (ino, data) in &self.files {
            let mut read = vec![0; data.len() + 1];
            assert_eq!(self.fs.read(*ino, 0, &mut read).unwrap(), data.len(), "object {ino}");
            assert!(read[..data.len()] == data[..], "object {ino}");
        }
    }

    fn empty(&mut self) {
        for n in 0..=self.next {
            let name = format!("file {n}");
            if self.fs.lookup(self.fs.root(), name.as_bytes()).is_ok() {
                self.fs.unlink(self.fs.root(), name.as_bytes(), &|_| false).unwrap();
            }
        }
        self.fs.finish_freeing();
        self.files.clear();
    }
}

fn run(seed: u64, rounds: u64, refusals: u64) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let shape = shape(&mut rng);
    let record_size = 512u64 << [0, 0, 1, 3, 4, 8, 11][rng.random_range(0..7)];
    let copies = rng.random_range(1..=3);
    let piece = 1usize << rng.random_range(13..21);
    let quota = (rng.random_range(0..4) == 0).then(|| rng.random_range(4..20u64) << 20);
    let said = format!("seed {seed}: {shape:?}, {record_size}, {copies}, {piece}, {quota:?}");
    let _seed = Seed(said.clone());
    let disks = disks(&vec![Image::new(shape.size); shape.disks], None);
    let lab = lab(&disks);
    let engine = lab.create(&shape).unwrap();
    let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
    let mut props = vec![("compression", "off".to_string()), ("copies", copies.to_string())];
    props.push(("redundant_metadata", ["all", "most", "none"][rng.random_range(0..3)].into()));
    props.extend(quota.map(|quota| ("quota", quota.to_string())));
    let props = props.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let new = NewDataset { name: "tank/fs".into(), kind: Kind::Filesystem, props };
    changes.create(&new).unwrap();
    let mut filled = Filled::new(&engine, "tank/fs", record_size);
    for round in 0..rounds {
        let (before, mut steps) = (filled.refused, 0);
        while filled.refused < before + refusals {
            filled.step(&mut rng, piece);
            steps += 1;
            assert!(steps < 200_000, "{said}: nothing is refused");
            assert_eq!(engine.suspended(), None, "{said}: round {round}");
        }
        engine.sync().unwrap_or_else(|e| panic!("{said}: round {round}: {e}"));
        filled.check();
        if rng.random_range(0..3) == 0 {
            // It may be refused as well, and holds what it refers to.
            let names = vec![format!("tank/fs@{round}")];
            let _ = changes.snapshot(&NewSnapshot { names: names.clone(), props: Vec::new() });
            let _ = changes.destroy_snapshots(&names, false);
        }
        filled.empty();
        engine.sync().unwrap_or_else(|e| panic!("{said}: round {round}: {e}"));
        let ino = filled.create().unwrap_or_else(|| panic!("{said}: round {round}: still full"));
        filled.write(ino, 0, b"there is space again");
        filled.check();
    }
    engine.sync().unwrap();
    assert_eq!(engine.suspended(), None, "{said}");
    let refused = filled.refused;
    drop((filled, changes));
    engine.export(false).unwrap();
    let images: Vec<Image> = disks.iter().map(|d| d.image()).collect();
    if let Err(e) = judge(&images) {
        panic!("{said}: {e}; images in {}", keep(&images));
    }
    refused
}

/// `CENOTE_SEED` runs a single seed.
#[test]
fn full_pools_are_not_suspended() {
    if let Ok(seed) = std::env::var("CENOTE_SEED") {
        run(seed.parse().unwrap(), 3, 20);
        return;
    }
    let seeds = if long() { 400 } else { 6 };
    let progress = Progress::of("full pools", seeds as usize);
    side_by_side(0..seeds, |seed| {
        let refused = run(seed, if long() { 3 } else { 2 }, 20);
        assert!(refused >= 40);
        progress.done(format_args!("seed {seed}"));
    });
}
