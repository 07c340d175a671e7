//! Pools on sparse files, with a file system that is written to.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod caches;
pub mod joining;
pub mod orders;
pub mod removing;

use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::outside::Chance;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_engine::change::{Changes, Command, Contents, Format};
use cenote_engine::create::{
    CreateError, CreateSpec, FIRST_TXG, Layout, OpenDevices, Opened, SystemDevices, parse,
};
use cenote_engine::{CreateRequest, Engine, EngineOptions, Replayer};
use cenote_inspect::traverse::{self, Options, Subject, Verify};
use cenote_pool::Pool;
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_pool::metaslab::PoolSpace;
use cenote_pool::props::PropChange;
use cenote_pool::{ImportOptions, discover};
use cenote_vdev::Device;
use cenote_vdev::inject::FaultyDevice;
use cenote_zpl::{CreateProps, FileSystem, NewNode, NodeKind, Replayed, Settings, Supervisor};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any test: no transaction group is written because of the time.
pub const TIMEOUT: Duration = Duration::from_secs(3600);

/// A directory of sparse files; a pool of some of them.
pub struct Rig {
    dir: tempfile::TempDir,
    size: u64,
}

impl Rig {
    /// A rig whose files have this size.
    pub fn new(size: u64) -> Rig {
        Rig { dir: tempfile::tempdir().unwrap(), size }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A word of a command line: single letters become files.
    pub fn word(&self, word: &str) -> String {
        if word.len() > 1 {
            return word.to_string();
        }
        let path = self.file(word);
        if !path.exists() {
            File::create(&path).unwrap().set_len(self.size).unwrap();
        }
        path.display().to_string()
    }

    pub fn create(&self, line: &str, ashift: u64) -> Arc<Engine> {
        self.create_with(line, ashift, EngineOptions::default())
    }

    pub fn create_with(&self, line: &str, ashift: u64, options: EngineOptions) -> Arc<Engine> {
        self.create_on(line, ashift, options, &SystemDevices)
    }

    pub fn create_on(
        &self,
        line: &str,
        ashift: u64,
        options: EngineOptions,
        devices: &dyn OpenDevices,
    ) -> Arc<Engine> {
        self.create_as(&self.layout(line), ashift, options, devices, &[])
    }

    /// With metaslabs of `1 << shift` bytes.
    pub fn create_cut(&self, line: &str, ashift: u64, shift: u32) -> Arc<Engine> {
        let mut layout = self.layout(line);
        layout.tops.iter_mut().for_each(|top| top.metaslab_shift = Some(shift));
        let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
        self.create_as(&layout, ashift, options, &SystemDevices, &[])
    }

    fn layout(&self, line: &str) -> Layout {
        let args: Vec<String> = line.split_whitespace().map(|w| self.word(w)).collect();
        parse(&args).unwrap()
    }

    /// With some features more, or less.
    pub fn create_choosing(
        &self,
        line: &str,
        ashift: u64,
        named: &[(String, bool)],
    ) -> Arc<Engine> {
        self.create_as(&self.layout(line), ashift, EngineOptions::default(), &SystemDevices, named)
    }

    fn create_as(
        &self,
        layout: &Layout,
        ashift: u64,
        options: EngineOptions,
        devices: &dyn OpenDevices,
        named: &[(String, bool)],
    ) -> Arc<Engine> {
        self.try_create_as(layout, ashift, options, devices, named, &[]).unwrap()
    }

    /// With properties; it may be refused.
    pub fn try_create(&self, line: &str, props: &[PropChange]) -> Result<Arc<Engine>, CreateError> {
        let options = EngineOptions { txg_timeout: Some(TIMEOUT), ..EngineOptions::default() };
        self.try_create_as(&self.layout(line), 0, options, &SystemDevices, &[], props)
    }

    fn try_create_as(
        &self,
        layout: &Layout,
        ashift: u64,
        options: EngineOptions,
        devices: &dyn OpenDevices,
        named: &[(String, bool)],
        props: &[PropChange],
    ) -> Result<Arc<Engine>, CreateError> {
        let choice = FeatureChoice { none: false, compatibility: None, named };
        let (features, _) = choose_features(&choice).unwrap();
        let request = CreateRequest {
            temporary_name: None,
            spec: CreateSpec {
                name: "tank",
                layout,
                ashift,
                force: true.into(),
                pool: None,
                txg: FIRST_TXG,
                imported: &[],
                devices,
                chance: &Chance::default(),
            },
            features: &features,
            props,
            root_props: &[],
            encryption: None,
            altroot: None,
            arc_bytes: None,
        };
        Engine::create(&request, options, format)
    }

    pub fn import(&self) -> Arc<Engine> {
        self.import_with(EngineOptions::default())
    }

    pub fn import_with(&self, options: EngineOptions) -> Arc<Engine> {
        self.import_as(ImportOptions::default(), options)
    }

    pub fn import_as(&self, options: ImportOptions, engine: EngineOptions) -> Arc<Engine> {
        let found = discover(&[self.path().to_path_buf()]);
        let options = ImportOptions { force: true, ..options };
        Engine::import(&found[0], &options, engine).unwrap()
    }

    /// A copy of all files.
    pub fn copy(&self) -> Rig {
        let copy = Rig::new(self.size);
        for file in std::fs::read_dir(self.path()).unwrap() {
            let file = file.unwrap();
            sparse_copy(&file.path(), &copy.path().join(file.file_name()));
        }
        copy
    }

    /// OpenZFS finds nothing wrong.
    pub fn judge(&self) {
        self.judge_blocks();
        for list in ["-d", "-mm", "-C"] {
            cenote_testpools::zdb(self.path(), "tank", &[list]);
        }
    }

    /// OpenZFS finds nothing wrong with the blocks.
    pub fn judge_blocks(&self) {
        cenote_testpools::judge(self.path(), "tank");
    }
}

/// A copy of a file, with holes where it has zeros.
fn sparse_copy(from: &Path, to: &Path) {
    const PIECE: usize = 1 << 20;
    let (from, to) = (File::open(from).unwrap(), File::create(to).unwrap());
    let len = from.metadata().unwrap().len();
    to.set_len(len).unwrap();
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    while at < len {
        let read = from.read_at(&mut piece, at).unwrap();
        if piece[..read].iter().any(|byte| *byte != 0) {
            to.write_all_at(&piece[..read], at).unwrap();
        }
        at += read as u64;
    }
}

/// Replays go on.
struct Watch<'a>(&'a Engine);

impl Supervisor for Watch<'_> {
    fn sync(&self) -> bool {
        self.0.sync().is_ok()
    }

    fn go_on(&self, _: &Replayed) -> bool {
        true
    }
}

/// Options of engines that replay intent logs when their datasets are opened.
pub fn replaying() -> EngineOptions {
    let replay = Replayer::new(|engine, live, kept| {
        let done = cenote_zpl::replay(live, Settings::default(), &Watch(engine), kept);
        done.map(drop).map_err(|e| e.to_string())
    });
    EngineOptions { replay, ..EngineOptions::default() }
}

/// What is created is a file system, whatever it was to be.
struct FileSystems;

impl Contents for FileSystems {
    fn fill(&self, os: &mut OpenObjectSet, what: &Format, txg: u64) -> Result<(), WriteError> {
        let formatted = match *what {
            Format::Volume { size, block_size } => cenote_zpl::format_volume(os, size, block_size),
            Format::Filesystem { .. } => cenote_zpl::format(os, &CreateProps::default(), txg),
        };
        formatted.map_err(|e| WriteError::Sink(Box::new(e)))
    }

    fn resize(&self, _: Arc<LiveObjectSet>, _: u64) -> Result<(), WriteError> {
        Ok(())
    }
}

/// Changes of the pool's datasets, of which no command is recorded.
pub fn changes(engine: &Arc<Engine>) -> Changes {
    Changes::new(engine.clone(), Arc::new(FileSystems), None)
}

/// Changes that the user with the number `who` makes.
pub fn changes_of(engine: &Arc<Engine>, who: u64) -> Changes {
    let command = Command { line: "zfs".into(), who };
    Changes::new(engine.clone(), Arc::new(FileSystems), Some(command))
}

/// Every block is readable, and the space maps have exactly the blocks that a walk finds.
pub fn account(pool: &Pool) {
    let space = PoolSpace::load(pool.mos(), pool.config()).unwrap();
    let subject =
        Subject { mos: pool.mos().clone(), config: pool.config(), uberblock: pool.uberblock() };
    let options = Options { verify: Verify::All, leaks: true, workers: 2 };
    let report = traverse::run(&subject, &space, &options, &|_| {}, &|| false).unwrap();
    assert!(report.is_clean(), "{}: {:?}", pool.name(), report.leaks);
    assert_eq!(report.found(), report.allocated, "{}", pool.name());
}

/// Files that can be made to fail.
#[derive(Default)]
pub struct Faulty {
    made: Mutex<HashMap<PathBuf, Arc<FaultyDevice>>>,
}

impl Faulty {
    pub fn device(&self, rig: &Rig, name: &str) -> Arc<FaultyDevice> {
        self.made.lock()[&rig.file(name)].clone()
    }

    /// Lets go of a file, so that it can be opened anew.
    pub fn close(&self, rig: &Rig, name: &str) {
        self.made.lock().remove(&rig.file(name));
    }
}

impl OpenDevices for Faulty {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        SystemDevices.find(name)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        SystemDevices.open(path)
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        let device = FaultyDevice::new(SystemDevices.open_rw(path)?);
        self.made.lock().insert(path.into(), device.clone());
        Ok(device)
    }
}

/// A file system with nothing in it.
fn format(os: &mut OpenObjectSet) -> Result<(), WriteError> {
    let formatted = cenote_zpl::format(os, &CreateProps::default(), FIRST_TXG);
    formatted.map_err(|e| WriteError::Sink(Box::new(e)))
}

/// The root file system.
pub fn open(engine: &Engine) -> Arc<FileSystem> {
    let root = engine.pool().dsl().root().unwrap();
    FileSystem::open_live(engine.live(root.ds_obj).unwrap(), Settings::default()).unwrap()
}

pub const NODE: NewNode = NewNode {
    kind: NodeKind::File,
    mode: 0o644,
    umask: 0o022,
    uid: 1000,
    gid: 100,
    keep_setgid: true,
};

/// What is in a file: bytes that do not compress.
pub fn bytes(file: u64, len: usize) -> Vec<u8> {
    let mut state = file.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Writes files of these numbers.
pub fn fill(fs: &FileSystem, files: Range<u64>, len: usize) {
    for i in files {
        let file = fs.create(fs.root(), format!("file {i}").as_bytes(), &NODE).unwrap();
        fs.write(file.ino, 0, &bytes(i, len), false).unwrap();
    }
}

/// (read, write, checksum) errors of all devices together.
pub fn errors(engine: &Engine) -> (u64, u64, u64) {
    let leaves = engine.pool().store().vdevs().leaves();
    let sum = |a: (u64, u64, u64), b: (u64, u64, u64)| (a.0 + b.0, a.1 + b.1, a.2 + b.2);
    leaves.iter().map(|l| l.errors()).fold((0, 0, 0), sum)
}

/// Everything is read from devices, and nothing that is read is wrong.
pub fn check_devices(engine: &Engine, files: u64, len: usize) {
    engine.pool().store().drop_caches();
    check(&open(engine), 0..files, len);
    assert_eq!(errors(engine), (0, 0, 0));
    assert!(engine.pool().store().errors().is_empty());
}

/// Reads them back.
pub fn check(fs: &FileSystem, files: Range<u64>, len: usize) {
    for i in files {
        let ino = fs.lookup(fs.root(), format!("file {i}").as_bytes()).unwrap();
        let mut data = vec![0; len + 1];
        let n = fs.read(ino, 0, &mut data).unwrap();
        assert_eq!(n, len, "file {i}");
        assert!(data[..n] == bytes(i, len), "file {i}");
    }
}
