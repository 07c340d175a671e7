//! `cenote-bench groups`: what a small transaction group takes on a device that answers late, and one of many datasets.
//!
//! On a device that takes `--latency` for each batch of operations, a group takes as many *waves* as there are batches
//! that wait for the one before. Each change below is made alone and waited for. Its row has the median of what it took,
//! that in latencies of the device, the passes of its group, and the flushes and reads of the device. Once a clone
//! is destroyed with all in memory, and once in the first group after an import.
//!
//! The last row has no latency: each of `--datasets` file systems gets a block, and all are written in one group.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::{NewObject, WriteError};
use cenote_dsl::write::{dataset, destroy, snapshot};
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_format::dmu::{DmuType, ObjsetType};
use cenote_pool::{ImportOptions, discover};
use cenote_vdev::tunables::SIMULATED_LATENCY;
use cenote_zpl::{CreateProps, format};

use crate::measure::cpu_seconds;
use crate::mounted::make_image;
use crate::noise::Noise;
use crate::write::create;

/// Bytes of a block.
const BLOCK: u64 = 8 << 10;
const CACHE: u64 = 256 << 20;

/// What `groups` runs on.
#[derive(clap::Args)]
pub struct GroupsArgs {
    /// Directory for the device file of 1 GiB.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// Microseconds that the device takes for each batch of operations.
    #[arg(long, default_value_t = 10_000)]
    latency: u64,
    /// Datasets that are written in one group.
    #[arg(long, default_value_t = 500)]
    datasets: usize,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

/// What a change took.
#[derive(Clone, Copy)]
struct Row {
    seconds: f64,
    passes: usize,
    flushes: u64,
    reads: u64,
}

fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(Duration::from_secs(3600)), ..EngineOptions::default() }
}

fn new_object(set: &LiveObjectSet) -> anyhow::Result<u64> {
    let new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, BLOCK);
    let cost = Cost { objects: 1, ..Cost::default() };
    let made: Result<u64, WriteError> = set.transact(cost, |set, _| set.allocate(&new));
    Ok(made?)
}

fn write(set: &LiveObjectSet, object: u64, data: &[u8]) -> anyhow::Result<()> {
    let cost = Cost { write: data.len() as u64, ..Cost::default() };
    let done: Result<(), WriteError> = set.transact(cost, |set, _| set.write(object, 0, data));
    Ok(done?)
}

/// A pool, and what is in it.
struct Bench {
    dir: PathBuf,
    /// `None` only while the pool is exported.
    open: Option<Arc<Engine>>,
    noise: Noise,
}

impl Bench {
    fn new(dir: PathBuf) -> anyhow::Result<Bench> {
        let image = dir.join("groups.img");
        make_image(&image, 1 << 30)?;
        let open = Some(create(image, Compression::Off, CACHE, &[], options())?);
        Ok(Bench { dir, open, noise: Noise(1) })
    }

    fn engine(&self) -> anyhow::Result<&Arc<Engine>> {
        self.open.as_ref().context("the pool is exported")
    }

    fn import(&mut self) -> anyhow::Result<()> {
        if let Some(engine) = self.open.take() {
            engine.export(false)?;
        }
        let found = discover(std::slice::from_ref(&self.dir));
        let pool = found.first().context("the pool is gone")?;
        let import = ImportOptions { force: true, ..ImportOptions::default() };
        let engine = Engine::import(pool, &import, options())?;
        engine.sync()?;
        self.open = Some(engine);
        Ok(())
    }

    fn root(&self) -> anyhow::Result<Arc<LiveObjectSet>> {
        let engine = self.engine()?;
        Ok(engine.live(engine.pool().dsl().root()?.ds_obj)?)
    }

    fn block(&mut self) -> Vec<u8> {
        let mut block = vec![0; BLOCK as usize];
        self.noise.fill(&mut block);
        block
    }

    fn reads(&self) -> anyhow::Result<u64> {
        let pool = self.engine()?.pool();
        Ok(pool.store().vdevs().leaves().iter().map(|leaf| leaf.io_stats().0).sum())
    }

    /// Makes a change and waits for it.
    fn measure(
        &mut self,
        change: impl FnOnce(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<Row> {
        let (reads, begun) = (self.reads()?, Instant::now());
        change(self)?;
        let seconds = begun.elapsed().as_secs_f64();
        let reads = self.reads()? - reads;
        // Its figures are there once the group is over, which may be a moment later.
        self.engine()?.at_rest(|_, _| ())?;
        let groups = self.engine()?.figures();
        let last = groups.last().context("no group was written")?;
        Ok(Row { seconds, passes: last.passes.len(), flushes: last.flushes, reads })
    }

    fn create_filesystems(&self, names: Vec<String>) -> anyhow::Result<Vec<u64>> {
        let root = self.engine()?.pool().dsl().root()?.dir_obj;
        Ok(self.engine()?.sync_task(move |context| {
            let mut heads = Vec::new();
            for name in names {
                let txg = context.tx.txg;
                let head = dataset::create(&mut context.tx, root, &name, &[], None)?.ds_obj;
                context.create_objset(head, ObjsetType::Zfs, 1, None, |os| {
                    let done = format(os, &CreateProps::default(), txg);
                    done.map_err(|e| WriteError::Sink(Box::new(e)))
                })?;
                heads.push(head);
            }
            Ok(heads)
        })?)
    }

    fn snapshot(&self, name: &str) -> anyhow::Result<u64> {
        let (head, name) = (self.engine()?.pool().dsl().root()?.ds_obj, name.to_string());
        Ok(self.engine()?.sync_task(move |c| snapshot::snapshot(&mut c.tx, head, &name))?)
    }

    fn clone_it(&self, origin: u64) -> anyhow::Result<u64> {
        let root = self.engine()?.pool().dsl().root()?.dir_obj;
        let new = self
            .engine()?
            .sync_task(move |c| dataset::create(&mut c.tx, root, "clone", &[], Some(origin)))?;
        Ok(new.ds_obj)
    }

    fn destroy(&self, head: u64) -> anyhow::Result<()> {
        self.engine()?.close(head)?;
        Ok(self.engine()?.sync_task(move |c| destroy::destroy_head(&mut c.tx, head))?)
    }
}

/// The median of what is measured.
fn median(rows: &mut [Row]) -> anyhow::Result<Row> {
    rows.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    rows.get(rows.len() / 2).copied().context("no runs")
}

const KINDS: [&str; 6] = [
    "a block is written",
    "a file system is made",
    "a snapshot is taken",
    "a clone is made",
    "a clone is destroyed",
    "the same after an import",
];

/// One run of each row with latency.
fn changes(bench: &mut Bench, run: usize) -> anyhow::Result<Vec<Row>> {
    let set = bench.root()?;
    let (object, block) = (new_object(&set)?, bench.block());
    bench.engine()?.sync()?;
    let mut rows = Vec::new();
    rows.push(bench.measure(|bench| {
        write(&set, object, &block)?;
        Ok(bench.engine()?.sync()?)
    })?);
    rows.push(bench.measure(|bench| bench.create_filesystems(vec![format!("fs{run}")]).map(drop))?);
    let mut origin = 0;
    rows.push(bench.measure(|bench| {
        origin = bench.snapshot(&format!("s{run}"))?;
        Ok(())
    })?);
    drop(set);
    for again in [false, true] {
        let mut clone = 0;
        let made = bench.measure(|bench| {
            clone = bench.clone_it(origin)?;
            Ok(())
        })?;
        let set = bench.engine()?.live(clone)?;
        let other = bench.block();
        write(&set, object, &other)?;
        bench.engine()?.sync()?;
        drop(set);
        if again {
            bench.import()?;
        } else {
            rows.push(made);
        }
        rows.push(bench.measure(|bench| bench.destroy(clone))?);
        bench.engine()?.sync()?;
    }
    Ok(rows)
}

/// Seconds and processor seconds of a group that writes a block of each of many datasets.
fn many(bench: &mut Bench, datasets: usize, runs: usize) -> anyhow::Result<(f64, f64)> {
    let mut sets = Vec::new();
    let names = (0..datasets).map(|n| format!("many{n}")).collect();
    for head in bench.create_filesystems(names)? {
        let set = bench.engine()?.live(head)?;
        let object = new_object(&set)?;
        sets.push((set, object));
    }
    bench.engine()?.sync()?;
    let mut took = Vec::new();
    for _ in 0..runs {
        for (set, object) in &sets {
            let block = bench.block();
            write(set, *object, &block)?;
        }
        let (begun, before) = (Instant::now(), cpu_seconds()?);
        bench.engine()?.sync()?;
        took.push((begun.elapsed().as_secs_f64(), cpu_seconds()? - before));
    }
    took.sort_by(|a, b| a.0.total_cmp(&b.0));
    took.get(took.len() / 2).copied().context("no runs")
}

/// Runs all rows.
pub fn run(args: &GroupsArgs) -> anyhow::Result<()> {
    let dir = args.dir.join(format!("groups.{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let done = rows(args, &dir);
    fs::remove_dir_all(&dir)?;
    done
}

fn rows(args: &GroupsArgs, dir: &std::path::Path) -> anyhow::Result<()> {
    ensure!(args.runs > 0, "no runs");
    SIMULATED_LATENCY.set(args.latency * 1000)?;
    let mut bench = Bench::new(dir.to_path_buf())?;
    // The device is slow from when it is opened again.
    bench.import()?;
    let mut all: Vec<Vec<Row>> = KINDS.iter().map(|_| Vec::new()).collect();
    for run in 0..args.runs {
        let rows = changes(&mut bench, run)?;
        all.iter_mut().zip(rows).for_each(|(all, row)| all.push(row));
    }
    SIMULATED_LATENCY.reset();
    let latency = args.latency as f64 / 1e6;
    println!(
        "{:<26} {:>8} {:>7} {:>7} {:>8} {:>6}",
        "change", "ms", "waves", "passes", "flushes", "reads"
    );
    for (kind, rows) in KINDS.iter().zip(&mut all) {
        let Row { seconds, passes, flushes, reads } = median(rows)?;
        let (ms, waves) = (seconds * 1e3, seconds / latency);
        println!("{kind:<26} {ms:>8.1} {waves:>7.1} {passes:>7} {flushes:>8} {reads:>6}");
    }
    bench.import()?;
    let (seconds, processor) = many(&mut bench, args.datasets, args.runs)?;
    println!(
        "{} datasets in one group: {:.1} ms, {:.1} ms of the processors",
        args.datasets,
        seconds * 1e3,
        processor * 1e3
    );
    bench.engine()?.export(false)?;
    crate::spacemap::check(dir)
}
