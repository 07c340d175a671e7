//! Random changes to a pool and its model, all from one seed.
//!
//! The driver notes for each transaction group that was committed what the pool should hold at it.
//! Engines here write a group only when they are asked to, or when there is no room for a change
//! before. So a group has what was done until then; only of a change to datasets it is not known in
//! which of its groups it is, if it takes several: then both states are good. And while a destroyed
//! dataset is being freed one group follows the other beside what is done: each may have any of the
//! states since that began.

mod datasets;
mod files;
mod pools;
mod volumes;

use super::lab::{Lab, POOL, Plain};
use super::model::Model;
use super::{Stopped, dedup, demand};
use cenote_engine::Engine;
use cenote_engine::change::Changes;
use cenote_pool::Pool;
use cenote_testfiles::{Files, errno};
use cenote_zpl::{Clock, FileSystem, Settings, Time};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a pool may hold at each transaction group.
pub type Committed = BTreeMap<u64, Vec<Model>>;

/// Says what it takes to do it again when a test fails.
pub struct Seed(pub String);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with {}", self.0);
        }
    }
}

/// Changes a pool and its model.
pub struct Driver {
    rng: SmallRng,
    /// Where its disks are, and those that may join it.
    lab: Lab,
    engine: Arc<Engine>,
    changes: Changes,
    /// What the pool should hold now.
    pub model: Model,
    /// What it may hold at each transaction group.
    pub committed: Committed,
    last: u64,
    /// While something is being freed: the states since that began.
    meanwhile: Vec<Model>,
    /// File systems that are open, by name.
    open: BTreeMap<String, Arc<FileSystem>>,
    ticks: Arc<AtomicU64>,
    /// Of a hundred changes of files, how many more copy than usual.
    pub copies: u32,
    /// Most bytes of one write, but for a few if they may be large.
    pub largest: usize,
    /// Changes that were refused for want of space.
    pub refused: u64,
    /// Properties that are chosen.
    pub how: How,
    /// Of how many looks at the pool one compares the free space of its metaslabs.
    pub sample: u64,
    /// Looks at the pool.
    looks: u64,
    /// Metaslabs whose free space was compared.
    pub compared: usize,
}

/// Properties to be chosen from.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// `compression`.
    pub compressions: &'static [&'static str],
    /// `checksum`.
    pub checksums: &'static [&'static str],
    /// `dedup`; none: nothing is deduplicated. The root file system has the first one in the beginning.
    pub dedup: &'static [&'static str],
}

/// All that there are.
pub const ALL: How = How {
    compressions: &[
        "on",
        "off",
        "lzjb",
        "gzip",
        "gzip-1",
        "gzip-9",
        "zle",
        "lz4",
        "zstd",
        "zstd-1",
        "zstd-12",
        "zstd-fast",
        "zstd-fast-10",
    ],
    checksums: &["on", "off", "fletcher2", "fletcher4", "sha256", "sha512", "skein", "edonr"],
    dedup: &[],
};

/// All that there are, and deduplication by every function that OpenZFS 2.1 knows.
pub const DEDUPLICATED: How = How {
    dedup: &[
        "on",
        "off",
        "verify",
        "sha256",
        "sha512",
        "sha512,verify",
        "skein",
        "skein,verify",
        "edonr,verify",
    ],
    ..ALL
};

/// Most bytes of most writes where they may be large.
const LARGE: usize = 100_000;

/// Whether what was destroyed is still being freed.
fn is_freeing(pool: &Pool) -> bool {
    pool.get("freeing").is_none_or(|v| v.exact != "0")
}

/// The time after so many ticks.
pub(super) fn time(ticks: u64) -> Time {
    (1_700_000_000 + ticks as i64, (ticks % 1000) as u32)
}

impl Driver {
    /// For a pool of the lab that holds what `model` says.
    pub fn new(seed: u64, lab: &Lab, engine: Arc<Engine>, model: Model, how: How) -> Driver {
        let changes = Changes::new(engine.clone(), Arc::new(Plain), None);
        let txg = engine.pool().uberblock().txg;
        let mut driver = Driver {
            rng: SmallRng::seed_from_u64(seed),
            lab: lab.clone(),
            changes,
            committed: BTreeMap::from([(txg, vec![model.clone()])]),
            last: txg,
            meanwhile: Vec::new(),
            model,
            engine,
            open: BTreeMap::new(),
            // Later than everything in the model.
            ticks: Arc::new(AtomicU64::new(0)),
            copies: 0,
            largest: LARGE,
            refused: 0,
            how,
            sample: if crate::long() { 1 } else { 5 },
            looks: 0,
            compared: 0,
        };
        driver.start_clock();
        driver.settle();
        driver
    }

    /// For a pool of the lab that was just made.
    pub fn of_new(seed: u64, lab: &Lab, engine: Arc<Engine>, how: How) -> Driver {
        let root = engine.pool().dsl().root().unwrap();
        let live = engine.live(root.ds_obj).unwrap();
        let root = FileSystem::open_live(live, Settings::default()).unwrap().root();
        let model = Model::new(&engine.pool(), root);
        let mut driver = Driver::new(seed, lab, engine, model, how);
        if let Some(value) = how.dedup.first() {
            let before = driver.model.clone();
            driver.set_property(POOL, "dedup", value);
            // Most writes have whole blocks then, which can be equal.
            driver.set_property(POOL, "recordsize", "4096");
            driver.note(&before, true);
        }
        driver
    }

    /// Bytes for the place `at` of a file or volume: if blocks are deduplicated often those of others.
    fn bytes(&mut self, at: u64, len: usize) -> Vec<u8> {
        match !self.how.dedup.is_empty() && self.chance(60) {
            true => dedup::again(&mut self.rng, at as usize, len),
            false => bytes(&mut self.rng, len),
        }
    }

    fn start_clock(&mut self) {
        let files = self.model.datasets.values().filter_map(|e| e.files());
        let times = files.flat_map(|f| f.nodes.values()).map(|n| n.ctime.0);
        let latest = times.max().unwrap_or(0).max(1_700_000_000);
        self.ticks.store((latest - 1_700_000_000) as u64 + 1, Ordering::SeqCst);
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn now(&self) -> Time {
        time(self.ticks.load(Ordering::SeqCst))
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.rng.random_range(0..from.len().max(1));
        from.get(at).cloned()
    }

    /// Notes what the groups since `before` hold.
    fn note(&mut self, before: &Model, task: bool) {
        let pool = self.engine.pool();
        let now = pool.uberblock().txg;
        if !self.meanwhile.is_empty() {
            self.meanwhile.push(self.model.clone());
        }
        for txg in self.last + 1..=now {
            let states = match task {
                _ if !self.meanwhile.is_empty() => self.meanwhile.clone(),
                false => vec![before.clone()],
                true if txg == now => vec![self.model.clone()],
                true => vec![before.clone(), self.model.clone()],
            };
            self.committed.insert(txg, states);
        }
        if !is_freeing(&pool) {
            self.meanwhile.clear();
        } else if self.meanwhile.is_empty() {
            self.meanwhile.push(self.model.clone());
        }
        if now > self.last {
            self.compare_space();
        }
        self.last = now;
    }

    /// Free space adds up in every metaslab, on disk and in memory.
    fn compare_space(&mut self) {
        self.looks += 1;
        if self.looks.is_multiple_of(self.sample) {
            match super::space::check_metaslabs(&self.engine) {
                Ok(compared) => self.compared += compared,
                Err(why) => panic!("{why}"),
            }
        }
    }

    /// Enables the feature `log_spacemap`, as `zpool set feature@log_spacemap=enabled` does.
    pub fn enable_logs(&mut self) {
        self.set_pool_property("feature@log_spacemap", "enabled");
        self.note(&self.model.clone(), false);
    }

    /// Writes everything, until there is nothing more to write.
    pub fn settle(&mut self) {
        loop {
            let before = self.engine.pool().uberblock().txg;
            self.engine.sync().unwrap();
            if self.engine.pool().uberblock().txg == before {
                break;
            }
        }
        self.note(&self.model.clone(), false);
    }

    /// A file system, open.
    fn fs(&mut self, name: &str) -> Arc<FileSystem> {
        if let Some(fs) = self.open.get(name) {
            return fs.clone();
        }
        let dataset = self.engine.pool().dsl().find(name).unwrap().unwrap();
        let live = self.engine.live(dataset.ds_obj).unwrap();
        let fs = FileSystem::open_live(live, self.settings(name)).unwrap();
        let files = self.model.entry(name).files_mut().unwrap();
        assert_eq!(fs.drain_unlinked().unwrap(), files.orphans() as u64, "orphans of {name}");
        files.drain();
        self.open.insert(name.to_string(), fs.clone());
        fs
    }

    fn settings(&mut self, name: &str) -> Settings {
        let pool = self.engine.pool();
        let dataset = pool.dsl().find(name).unwrap().unwrap();
        let settings = cenote::contents::settings(&pool, &dataset).unwrap();
        let ticks = self.ticks.clone();
        let clock = Clock::new(move || time(ticks.load(Ordering::SeqCst)));
        let xattr_sa = self.chance(60);
        let dnode_size = 512 << self.rng.random_range(0..3);
        Settings { clock, xattr_sa, dnode_size, ..settings }
    }

    /// Every file system gets the settings that its properties make.
    fn refresh(&mut self) {
        for (name, fs) in self.open.clone() {
            fs.set_settings(self.settings(&name));
        }
    }

    fn any_dataset(&mut self) -> String {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        self.pick(&names).unwrap()
    }

    fn any_filesystem(&mut self) -> String {
        let all = self.model.datasets.iter().filter(|(_, e)| e.files().is_some());
        let names: Vec<String> = all.map(|(name, _)| name.clone()).collect();
        self.pick(&names).unwrap()
    }

    /// Does something.
    pub fn step(&mut self) {
        self.ticks.fetch_add(1, Ordering::SeqCst);
        let before = self.model.clone();
        match self.rng.random_range(0..100) {
            0..82 => {
                let name = self.any_dataset();
                if self.model.entry(&name).files().is_some() {
                    let fs = self.fs(&name);
                    self.change_files(&name, &fs);
                } else {
                    self.change_volume(&name);
                }
                self.note(&before, false);
            }
            82..94 => {
                self.change_datasets();
                self.note(&before, true);
            }
            94..96 => {
                self.change_pool();
                self.note(&before, true);
            }
            _ => {}
        }
        if self.chance(12) {
            self.settle();
        }
    }

    /// Whether an operation was refused because there was no space; then it changed nothing.
    fn no_space<T>(&mut self, done: &Result<T, cenote_zpl::Error>) -> bool {
        let refused = matches!(done, Err(e) if [errno::ENOSPC, errno::EDQUOT].contains(&e.errno()));
        self.refused += u64::from(refused);
        refused
    }

    /// Compares all open file systems, and what is on disk once everything is written.
    pub fn check(&mut self) -> super::Verdict {
        for (name, fs) in &self.open {
            let same = self.model.datasets[name].files().unwrap().compare(fs);
            same.map_err(|e| format!("{name}, as it is open: {e}"))?;
        }
        self.settle();
        let pool = self.engine.pool();
        // What was destroyed is freed, also if a crash came in between.
        demand!(!is_freeing(&pool), "freeing {:?}", pool.get("freeing").map(|v| v.exact));
        if !self.how.dedup.is_empty() {
            dedup::check(&pool).map_err(|Stopped(why)| why)?;
        }
        self.model.compare(&pool)
    }

    /// Exports the pool. Returns what it holds now, and what it held at each group.
    pub fn export(mut self) -> (Model, Committed) {
        self.open.clear();
        self.settle();
        self.engine.export(false).unwrap();
        super::space::check_promises(&self.engine.pool()).unwrap();
        self.note(&self.model.clone(), false);
        self.model.close_all();
        (self.model, self.committed)
    }

    /// Exports the pool and imports it again.
    pub fn reimport(&mut self) {
        self.open.clear();
        self.settle();
        self.engine.export(false).unwrap();
        super::space::check_promises(&self.engine.pool()).unwrap();
        self.note(&self.model.clone(), false);
        self.model.close_all();
        let found = self.lab.find().expect("the pool is gone");
        self.engine = self.lab.import(&found).unwrap();
        self.changes = Changes::new(self.engine.clone(), Arc::new(Plain), None);
        self.settle();
    }
}

/// Bytes of some kind: zeros, what compresses, what does not.
fn bytes(rng: &mut SmallRng, len: usize) -> Vec<u8> {
    match rng.random_range(0..4) {
        0 => vec![0; len],
        1 => {
            let (step, from) = (rng.random_range(1..9), rng.random_range(0..200u64));
            (0..len as u64).map(|i| (i / 16 * step + from) as u8).collect()
        }
        _ => {
            let mut data = vec![0; len];
            rand::RngCore::fill_bytes(rng, &mut data);
            data
        }
    }
}

/// Puts bytes into a file.
fn overwrite(old: &mut Vec<u8>, at: usize, data: &[u8]) {
    if old.len() < at + data.len() {
        old.resize(at + data.len(), 0);
    }
    old[at..at + data.len()].copy_from_slice(data);
}

/// Number of nodes that a file system has at most.
const MOST_NODES: usize = 40;

fn crowded(files: &Files) -> bool {
    files.nodes.len() > MOST_NODES
}
