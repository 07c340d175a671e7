//! Pools that the engine writes, judged by OpenZFS's zdb.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use cenote_dmu::outside::Chance;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_engine::create::{CreateSpec, FIRST_TXG, Layout, Redundancy, SystemDevices, VdevSpec};
use cenote_engine::{CreateRequest, Engine, EngineOptions};
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_pool::{ImportOptions, discover};
use cenote_testpools::{judge, zdb};
use cenote_zpl::{CreateProps, FileSystem, NewNode, NodeKind, SetAttr, Settings};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory with sparse files to make a pool of.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(files: usize, size: u64) -> Place {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..files {
            std::fs::File::create(dir.path().join(format!("d{i}"))).unwrap().set_len(size).unwrap();
        }
        Place { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(self.path()).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }

    fn create(&self, redundancy: Redundancy, ashift: u64) -> Arc<Engine> {
        let tops = match redundancy {
            Redundancy::Single => {
                let one = |f: PathBuf| VdevSpec::new(redundancy, vec![f]);
                self.files().into_iter().map(one).collect()
            }
            _ => vec![VdevSpec::new(redundancy, self.files())],
        };
        let layout = Layout { tops, ..Layout::default() };
        let choice = FeatureChoice { none: false, compatibility: None, named: &[] };
        let (features, _) = choose_features(&choice).unwrap();
        let request = CreateRequest {
            temporary_name: None,
            spec: CreateSpec {
                name: "tank",
                layout: &layout,
                ashift,
                force: false.into(),
                pool: None,
                txg: FIRST_TXG,
                imported: &[],
                devices: &SystemDevices,
                chance: &Chance::default(),
            },
            features: &features,
            props: &[],
            root_props: &[],
            encryption: None,
            altroot: None,
            arc_bytes: None,
        };
        Engine::create(&request, EngineOptions::default(), format).unwrap()
    }

    fn import(&self) -> Arc<Engine> {
        let found = discover(&[self.path().to_path_buf()]);
        let options = ImportOptions::default();
        Engine::import(&found[0], &options, EngineOptions::default()).unwrap()
    }

    /// OpenZFS finds nothing wrong.
    fn judge(&self) {
        judge(self.path(), "tank");
        for list in ["-d", "-mm"] {
            zdb(self.path(), "tank", &[list]);
        }
    }
}

/// A file system with nothing in it.
fn format(os: &mut OpenObjectSet) -> Result<(), WriteError> {
    let formatted = cenote_zpl::format(os, &CreateProps::default(), FIRST_TXG);
    formatted.map_err(|e| WriteError::Sink(Box::new(e)))
}

fn open(engine: &Engine) -> Arc<FileSystem> {
    let root = engine.pool().dsl().root().unwrap();
    FileSystem::open_live(engine.live(root.ds_obj).unwrap(), Settings::default()).unwrap()
}

fn bytes(round: u64, len: u64) -> Vec<u8> {
    (0..len).map(|i| ((i * i * (round + 3)) >> 5) as u8).collect()
}

fn fill(engine: &Engine, rounds: u64) {
    let fs = open(engine);
    for round in 0..rounds {
        let node = NewNode {
            kind: NodeKind::File,
            mode: 0o644,
            umask: 0o022,
            uid: 1000,
            gid: 100,
            keep_setgid: true,
        };
        let file = fs.create(fs.root(), format!("file {round}").as_bytes(), &node).unwrap();
        fs.write(file.ino, 0, &bytes(round, 300_000), false).unwrap();
        if round % 3 == 2 {
            let size = Some(131_072);
            fs.setattr(file.ino, &SetAttr { size, ..SetAttr::default() }).unwrap();
        }
        if round % 4 == 3 {
            engine.sync().unwrap();
        }
    }
    engine.sync().unwrap();
}

fn check(engine: &Engine, rounds: u64) {
    let fs = open(engine);
    for round in 0..rounds {
        let ino = fs.lookup(fs.root(), format!("file {round}").as_bytes()).unwrap();
        let len = if round % 3 == 2 { 131_072 } else { 300_000 };
        let mut data = vec![0; 400_000];
        let n = fs.read(ino, 0, &mut data).unwrap();
        assert_eq!(n as u64, len);
        assert!(data[..n] == bytes(round, len), "round {round}");
    }
}

fn life(redundancy: Redundancy, files: usize, ashift: u64) {
    let place = Place::new(files, 256 << 20);
    let engine = place.create(redundancy, ashift);
    place.judge();
    fill(&engine, 10);
    check(&engine, 10);
    engine.export(false).unwrap();
    drop(engine);
    place.judge();
    let engine = place.import();
    check(&engine, 10);
    engine.export(false).unwrap();
    place.judge();
}

#[test]
fn a_single_device() {
    life(Redundancy::Single, 1, 12);
}

#[test]
fn stripes_of_small_sectors() {
    life(Redundancy::Single, 3, 9);
}

#[test]
fn mirrors() {
    life(Redundancy::Mirror, 2, 12);
}

#[test]
fn raidz() {
    for parity in 1..=3 {
        life(Redundancy::RaidZ(parity), usize::from(parity) + 3, 12);
    }
}
