//! `cenote-bench clone`: what destroying clones takes, by livelist and by walking, beside OpenZFS's own engine.
//!
//! A pool has an object of 8 KiB blocks and a snapshot of it. Of that a clone is made, blocks of it are
//! overwritten in one transaction group, the pool is exported and imported, so that nothing is cached, and the
//! clone is destroyed. The time counts until all of it is freed, and so do the reads of the device. The peer
//! does the same with livelists and without; here the engine chooses. Every pool is judged by OpenZFS's `zdb`.
//!
//! The rows: (1) snapshots of several sizes with as many overwrites; (2) a snapshot with more and more
//! overwrites, scattered and in one piece; (3) what a transaction group of overwrites takes in a clone, by the
//! number of sub-lists that the overwritten blocks lie in, beside a clone of the same pool without a livelist, in
//! turns; (4) many
//! snapshots at once; (5) rows of the first kind again, with a device that answers late.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::{NewObject, WriteError};
use cenote_dsl::tunables::{
    LIVELIST_CONDENSE_ZTHR_PAUSE, LIVELIST_MAX_ENTRIES, LIVELIST_MIN_PERCENT_SHARED,
};
use cenote_dsl::write::{dataset, destroy, snapshot};
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_pool::{ImportOptions, discover};
use cenote_vdev::tunables::SIMULATED_LATENCY;
use serde::{Deserialize, Serialize};

use crate::measure::{self, medians_by};
use crate::mounted::make_image;
use crate::noise::Noise;
use crate::write::create;

/// Bytes of a block, and of a write that fills.
const BLOCK: u64 = 8 << 10;
const FILL: u64 = 1 << 20;
/// MiB of each engine's cache.
const CACHE: u64 = 1024;
/// The clone that is destroyed.
const CLONE: &str = "clone";
/// Overwrites of the third kind of rows, and how often each is measured.
const WRITES: u64 = 4000;
const ROUNDS: usize = 15;
/// Sub-lists of the third kind of rows.
const SUB_LISTS: [u64; 3] = [1, 10, 50];

/// What `clone` runs on.
#[derive(clap::Args)]
pub struct CloneArgs {
    /// Directory for the device file: three times the largest size, and a GiB.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// MiB of the snapshots of the first kind of rows, each with 1,000 scattered overwrites.
    #[arg(long, value_delimiter = ',', default_values_t = [256, 1024])]
    sizes: Vec<u64>,
    /// Numbers of overwrites of the second kind of rows, in the largest snapshot.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 10_000])]
    overwrites: Vec<u64>,
    /// Snapshots that are destroyed at once.
    #[arg(long, default_value_t = 1000)]
    snapshots: u64,
    /// Microseconds that a device takes more for each operation in the rows of the fifth kind.
    #[arg(long, default_value_t = 10_000)]
    latency: u64,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only the third kind of rows.
    #[arg(long)]
    only_writes: bool,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
}

/// What destroying something took; also what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    /// What the peer is told to keep.
    livelists: bool,
    /// How blocks were overwritten, and how many.
    pattern: String,
    count: u64,
    mib: u64,
    seconds: f64,
    reads: u64,
    txgs: u64,
    /// Microseconds of the device.
    #[serde(default)]
    latency: u64,
}

impl Row {
    /// Which row it is.
    fn key(&self) -> (u64, &str, u64, u64, bool) {
        (self.mib, &self.pattern, self.count, self.latency, self.livelists)
    }
}

/// The patterns of one size, as the peer takes them.
struct Job {
    mib: u64,
    latency: u64,
    patterns: Vec<(String, u64)>,
}

/// Runs everything and prints the tables.
pub fn run(args: &CloneArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    let largest = args.sizes.iter().copied().max().context("no size")?;
    let one = |pattern: &str, count| (pattern.to_string(), count);
    let mut jobs = Vec::new();
    for mib in args.sizes.iter().copied() {
        let mut patterns = vec![one("sparse", 1000), one("contiguous", 1000)];
        if mib == largest {
            for count in &args.overwrites {
                patterns.extend([one("sparse", *count), one("contiguous", *count)]);
            }
            patterns.push(one("snapshots", args.snapshots));
        }
        jobs.push(Job { mib, latency: 0, patterns });
        let late = vec![one("sparse", 1000), one("contiguous", 1000)];
        jobs.push(Job { mib, latency: args.latency, patterns: late });
    }
    let (mut ours, mut theirs, mut writes) = (Vec::new(), Vec::new(), Vec::new());
    for run in 1..=args.runs {
        writes.extend(cost_of_writes(args)?);
        for job in jobs.iter().filter(|_| !args.only_writes) {
            eprintln!("run {run} of {}: {} MiB, {} us ...", args.runs, job.mib, job.latency);
            ours.extend(our_rows(args, job)?);
            for livelists in [true, false] {
                theirs.extend(their_rows(args, job, livelists)?);
            }
        }
    }
    print(
        &medians_by(&ours, Row::key, |r| r.seconds),
        &medians_by(&theirs, Row::key, |r| r.seconds),
    );
    print_writes(&writes);
    Ok(())
}

fn their_rows(args: &CloneArgs, job: &Job, livelists: bool) -> anyhow::Result<Vec<Row>> {
    let Some(peer) = &args.peer else { return Ok(Vec::new()) };
    let image = args.dir.join("clone.img");
    let mut command = Command::new(peer);
    command.arg("clone").arg(&image);
    for number in [job.mib, CACHE, livelists.into(), job.latency] {
        command.arg(number.to_string());
    }
    command.args(job.patterns.iter().map(|(pattern, count)| format!("{pattern}:{count}")));
    let out = command.output().with_context(|| peer.display().to_string())?;
    let _ = fs::remove_file(&image);
    ensure!(out.status.success(), "{}: {}", peer.display(), String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let rows = text.lines().map(|line| {
        let row: Row = serde_json::from_str(line).with_context(|| line.to_string())?;
        Ok(Row { latency: job.latency, ..row })
    });
    rows.collect()
}

/// A pool with an object, and a snapshot of it.
struct Bench {
    image: PathBuf,
    /// `None` only while the pool is exported.
    open: Option<Arc<Engine>>,
    object: u64,
    blocks: u64,
    noise: Noise,
    block: Vec<u8>,
    origin: u64,
}

fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(Duration::from_secs(3600)), ..EngineOptions::default() }
}

impl Bench {
    fn new(dir: &Path, mib: u64) -> anyhow::Result<Bench> {
        let image = dir.join("clone.img");
        make_image(&image, (3 * mib + 1024) << 20)?;
        let engine = create(image.clone(), Compression::Off, CACHE << 20, &[], options())?;
        let set = engine.live(engine.pool().dsl().root()?.ds_obj)?;
        let new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, BLOCK);
        let made: Result<u64, WriteError> =
            set.transact(Cost { objects: 1, ..Cost::default() }, |set, _| set.allocate(&new));
        let (object, mut block) = (made?, vec![0; FILL as usize]);
        let mut noise = Noise(1);
        noise.fill(&mut block);
        for at in (0..mib << 20).step_by(FILL as usize) {
            write(&set, object, at, &block)?;
        }
        engine.sync()?;
        let blocks = (mib << 20) / BLOCK;
        let open = Some(engine);
        let mut bench = Bench { image, open, object, blocks, noise, block, origin: 0 };
        bench.origin = bench.snapshot("origin")?;
        Ok(bench)
    }

    fn engine(&self) -> anyhow::Result<&Arc<Engine>> {
        self.open.as_ref().context("the pool is exported")
    }

    fn snapshot(&self, name: &str) -> anyhow::Result<u64> {
        let (head, name) = (self.engine()?.pool().dsl().root()?.ds_obj, name.to_string());
        Ok(self.engine()?.sync_task(move |c| snapshot::snapshot(&mut c.tx, head, &name))?)
    }

    /// A clone of the snapshot.
    fn clone_it(&self, name: &str) -> anyhow::Result<Arc<LiveObjectSet>> {
        let (root, origin) = (self.engine()?.pool().dsl().root()?.dir_obj, self.origin);
        let name = name.to_string();
        let new = self
            .engine()?
            .sync_task(move |c| dataset::create(&mut c.tx, root, &name, &[], Some(origin)))?;
        Ok(self.engine()?.live(new.ds_obj)?)
    }

    fn overwrite(&mut self, set: &LiveObjectSet, sparse: bool, count: u64) -> anyhow::Result<()> {
        for i in 0..count {
            let number = self.noise.next();
            if let Some(start) = self.block.first_chunk_mut() {
                *start = number.to_le_bytes();
            }
            let at = if sparse { self.noise.next() % self.blocks } else { i % self.blocks };
            let data = self.block.get(..BLOCK as usize).context("a block too short")?;
            write(set, self.object, at * BLOCK, data)?;
        }
        Ok(self.engine()?.sync()?)
    }

    /// Exports and imports, so that nothing is cached.
    fn again(&mut self) -> anyhow::Result<()> {
        let engine = self.open.take().context("the pool is exported")?;
        engine.export(false)?;
        drop(engine);
        let dir = self.image.parent().context("no directory")?.to_path_buf();
        let found = discover(&[dir]);
        let pool = found.first().context("the pool is gone")?;
        let import = ImportOptions { force: true, ..ImportOptions::default() };
        let engine = Engine::import(pool, &import, options())?;
        engine.sync()?;
        self.open = Some(engine);
        Ok(())
    }

    fn reads(&self) -> u64 {
        let Some(engine) = &self.open else { return 0 };
        let pool = engine.pool();
        pool.store().vdevs().leaves().iter().map(|leaf| leaf.io_stats().0).sum()
    }

    fn freeing(&self) -> bool {
        let freeing = self.open.as_ref().and_then(|engine| engine.pool().get("freeing"));
        freeing.is_some_and(|v| v.exact != "0")
    }

    /// What it takes to destroy what a row made.
    fn destroy(&mut self, pattern: &str, count: u64) -> anyhow::Result<(f64, u64, u64)> {
        self.again()?;
        let pool = self.engine()?.pool();
        let found = pool.dsl().find(&format!("{}/{CLONE}", pool.name()))?;
        let mut snapshots = match pattern {
            "snapshots" => pool.dsl().snapshots(&pool.dsl().root()?)?,
            _ => Vec::new(),
        };
        snapshots.retain(|s| s.ds_obj != self.origin);
        ensure!(snapshots.len() as u64 == count || found.is_some(), "nothing to destroy");
        let (reads, txg, begun) = (self.reads(), pool.uberblock().txg, Instant::now());
        self.engine()?.sync_task(move |c| {
            let short = |name| str::rsplit_once(name, '@').map_or("", |(_, short)| short);
            let all: Vec<_> = snapshots.iter().map(|s| (s.ds_obj, short(&s.name))).collect();
            destroy::destroy_snapshots(&mut c.tx, &all, false)?;
            match found {
                Some(clone) => destroy::destroy_head(&mut c.tx, clone.ds_obj),
                None => Ok(()),
            }
        })?;
        while self.freeing() {
            self.engine()?.sync()?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        Ok((seconds, self.reads() - reads, self.engine()?.pool().uberblock().txg - txg))
    }

    /// Exports the pool and has OpenZFS's `zdb` judge it.
    fn end(self) -> anyhow::Result<()> {
        self.engine()?.export(false)?;
        let dir = self.image.parent().context("no directory")?;
        let judged = crate::spacemap::check(dir);
        fs::remove_file(&self.image)?;
        judged
    }
}

fn write(set: &LiveObjectSet, object: u64, at: u64, data: &[u8]) -> anyhow::Result<()> {
    let cost = Cost { write: data.len() as u64, ..Cost::default() };
    let done: Result<(), WriteError> = set.transact(cost, |set, _| set.write(object, at, data));
    Ok(done?)
}

fn our_rows(args: &CloneArgs, job: &Job) -> anyhow::Result<Vec<Row>> {
    let mut bench = Bench::new(&args.dir, job.mib)?;
    let mut rows = Vec::new();
    for (pattern, count) in &job.patterns {
        if pattern == "snapshots" {
            for i in 0..*count {
                let set = bench.engine()?.live(bench.engine()?.pool().dsl().root()?.ds_obj)?;
                bench.overwrite(&set, true, 10)?;
                bench.snapshot(&format!("s{i}"))?;
            }
        } else {
            let set = bench.clone_it(CLONE)?;
            bench.overwrite(&set, pattern == "sparse", *count)?;
        }
        SIMULATED_LATENCY.set(job.latency * 1000)?;
        let done = bench.destroy(pattern, *count);
        SIMULATED_LATENCY.reset();
        let (seconds, reads, txgs) = done?;
        let (pattern, mib, latency) = (pattern.clone(), job.mib, job.latency);
        let (livelists, count) = (true, *count);
        rows.push(Row { livelists, pattern, count, mib, seconds, reads, txgs, latency });
        if latency > 0 {
            bench.again()?;
        }
    }
    bench.end()?;
    Ok(rows)
}

/// What a group of overwrites takes in a clone with so many sub-lists (0: it has no livelist).
#[derive(Clone)]
struct Write {
    lists: u64,
    seconds: f64,
    /// Processor time of all threads.
    cpu_seconds: f64,
}

fn cost_of_writes(args: &CloneArgs) -> anyhow::Result<Vec<Write>> {
    const MIB: u64 = 1024;
    let mut bench = Bench::new(&args.dir, MIB)?;
    // Sub-lists stay as many as they are.
    LIVELIST_CONDENSE_ZTHR_PAUSE.set(1)?;
    let mut clones = Vec::new();
    for lists in [0].into_iter().chain(SUB_LISTS) {
        LIVELIST_MIN_PERCENT_SHARED.set(if lists == 0 { 100 } else { 0 })?;
        LIVELIST_MAX_ENTRIES.set(if lists > 1 { 1 } else { LIVELIST_MAX_ENTRIES.default })?;
        let set = bench.clone_it(&format!("clone{lists}"))?;
        // As many blocks of the clone's own in each case, in so many groups.
        for _ in 0..lists.max(1) {
            bench.overwrite(&set, true, bench.blocks / 4 / lists.max(1))?;
        }
        clones.push((lists, set));
    }
    LIVELIST_MAX_ENTRIES.reset();
    let mut rows = Vec::new();
    for _ in 0..ROUNDS {
        // In turns, so that what else the machine does spoils all alike.
        for (lists, set) in &clones {
            let (begun, cpu) = (Instant::now(), measure::cpu_seconds()?);
            bench.overwrite(set, true, WRITES)?;
            let (seconds, cpu_seconds) =
                (begun.elapsed().as_secs_f64(), measure::cpu_seconds()? - cpu);
            rows.push(Write { lists: *lists, seconds, cpu_seconds });
        }
    }
    drop(clones);
    bench.end()?;
    LIVELIST_MIN_PERCENT_SHARED.reset();
    LIVELIST_CONDENSE_ZTHR_PAUSE.reset();
    Ok(rows)
}

fn print(ours: &[Row], theirs: &[Row]) {
    println!(
        "{:>6} {:>7} {:<11} {:>8} | {:>9} {:>6} {:>5} | {:>9} {:>6} {:>5} | {:>9} {:>6} {:>5} | {:>6}",
        "MiB",
        "late us",
        "overwrites",
        "",
        "ours ms",
        "reads",
        "txgs",
        "list ms",
        "reads",
        "txgs",
        "walk ms",
        "reads",
        "txgs",
        "times"
    );
    for row in ours {
        let of = |livelists: bool| {
            let same = |r: &&Row| {
                let key = (row.mib, row.pattern.as_str(), row.count, row.latency, livelists);
                r.key() == key
            };
            theirs.iter().find(same)
        };
        let cells = |r: Option<&Row>| match r {
            Some(r) => format!("{:>9.2} {:>6} {:>5}", r.seconds * 1e3, r.reads, r.txgs),
            None => format!("{:>9} {:>6} {:>5}", "", "", ""),
        };
        let best = [of(true), of(false)].into_iter().flatten().map(|r| r.seconds);
        let times = best.min_by(f64::total_cmp).map_or(0.0, |best| best / row.seconds);
        println!(
            "{:>6} {:>7} {:<11} {:>8} | {} | {} | {} | {times:>6.2}",
            row.mib,
            row.latency,
            row.pattern,
            row.count,
            cells(Some(row)),
            cells(of(true)),
            cells(of(false)),
        );
    }
}

fn print_writes(rows: &[Write]) {
    let wall = medians_by(rows, |r| r.lists, |r| r.seconds);
    let cpu = medians_by(rows, |r| r.lists, |r| r.cpu_seconds);
    let base = |rows: &[Write], of: fn(&Write) -> f64| {
        rows.iter().find(|r| r.lists == 0).map_or(f64::NAN, of)
    };
    let (wall_base, cpu_base) = (base(&wall, |r| r.seconds), base(&cpu, |r| r.cpu_seconds));
    println!(
        "\n{:>10} {:>22} {:>6} {:>7} {:>6}",
        "sub-lists", "ms for 4,000 overwrites", "times", "CPU ms", "times"
    );
    for (wall, cpu) in wall.iter().zip(&cpu) {
        println!(
            "{:>10} {:>23.2} {:>6.2} {:>7.2} {:>6.2}",
            wall.lists,
            wall.seconds * 1e3,
            wall.seconds / wall_base,
            cpu.cpu_seconds * 1e3,
            cpu.cpu_seconds / cpu_base
        );
    }
}
