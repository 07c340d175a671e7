//! A small transaction group takes few waves of its device: blocks, a flush, uberblocks, a flush, however many levels, object
//! sets and passes its blocks are of.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod rig;

use cenote_engine::change::NewSnapshot;
use cenote_engine::create::{OpenDevices, Opened, SystemDevices};
use cenote_engine::{Engine, EngineOptions};
use cenote_vdev::{Device, ReadReq, WriteReq};
use parking_lot::Mutex;
use rig::Rig;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Operations of one device. Those that overlap are one wave.
#[derive(Default)]
struct Counts {
    under_way: usize,
    waves: usize,
    flushes: usize,
}

#[derive(Clone, Default)]
struct Waves(Arc<Mutex<Counts>>);

impl Waves {
    fn during<T>(&self, operation: impl FnOnce() -> T) -> T {
        let mut counts = self.0.lock();
        counts.waves += usize::from(counts.under_way == 0);
        counts.under_way += 1;
        drop(counts);
        let done = operation();
        self.0.lock().under_way -= 1;
        done
    }

    /// Waves of a change, and the flushes among them.
    fn of(&self, change: impl FnOnce()) -> (usize, usize) {
        let now = || {
            let counts = self.0.lock();
            (counts.waves, counts.flushes)
        };
        let before = now();
        change();
        let after = now();
        (after.0 - before.0, after.1 - before.1)
    }
}

struct Counted(Arc<dyn Device>, Waves);

impl Device for Counted {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn read_batch(&self, reqs: &mut [ReadReq]) {
        self.1.during(|| self.0.read_batch(reqs));
    }

    fn writable(&self) -> bool {
        true
    }

    fn write_batch(&self, reqs: &mut [WriteReq]) {
        self.1.during(|| self.0.write_batch(reqs));
    }

    fn flush(&self) -> io::Result<()> {
        self.1.0.lock().flushes += 1;
        self.1.during(|| self.0.flush())
    }
}

impl OpenDevices for Waves {
    fn find(&self, name: &Path) -> io::Result<(PathBuf, Opened)> {
        SystemDevices.find(name)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        SystemDevices.open(path)
    }

    fn open_rw(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        Ok(Arc::new(Counted(SystemDevices.open_rw(path)?, self.clone())))
    }
}

/// Nothing is written but what is asked for.
fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(Duration::from_secs(3600)), ..EngineOptions::default() }
}

fn snapshot(engine: &Arc<Engine>, name: &str) {
    let new = NewSnapshot { names: vec![name.into()], props: vec![] };
    rig::changes(engine).snapshot(&new).unwrap();
}

#[test]
fn a_small_group_takes_few_waves() {
    let (rig, waves) = (Rig::new(192 << 20), Waves::default());
    let engine = rig.create_on("a", 12, options(), &waves);
    let fs = rig::open(&engine);
    // What is read once is in memory then.
    rig::fill(&fs, 0..20, 10_000);
    engine.sync().unwrap();
    snapshot(&engine, "tank@first");
    engine.sync().unwrap();
    let mut all = Vec::new();
    for round in 1..5 {
        let files = 20 * round..20 * (round + 1);
        all.push(waves.of(|| {
            rig::fill(&fs, files, 10_000);
            engine.sync().unwrap();
        }));
        all.push(waves.of(|| snapshot(&engine, &format!("tank@{round}"))));
        engine.sync().unwrap();
    }
    // Blocks of each of the levels, of each object set and of each pass alone would be more than ten.
    for (waves, flushes) in &all {
        assert!((4..=6).contains(waves) && *flushes == 2, "{all:?}");
    }
    drop(fs);
    engine.export(false).unwrap();
    rig.judge();
}
