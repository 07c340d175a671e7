//! `cenote-bench alloc`: spoiled metaslabs, and allocations while their space maps are loaded.
//!
//! A pool is made whose metaslabs of 16 GiB are spoiled ([`spoil`]) or full, but for the few that
//! its own blocks are in. It is exported, judged by OpenZFS's `zdb`, and imported read-only; what
//! is measured runs on an allocator over its space maps, which writes nothing.
//!
//! By default one thread less allocates than there are processors, at least one: loading has a thread
//! of its own. With more threads than processors it is the kernel's scheduler that decides how long the
//! slowest allocations take.

mod judge;
mod latency;
mod load;
mod report;
mod spoil;
mod txgs;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, thread};

use anyhow::Context;
use cenote_engine::EngineOptions;
use cenote_engine::space_write::{Loader, SpaceMaps};
use cenote_format::compress::Compression;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_store::alloc::{Allocator, Class, Options, VdevInfo};

use crate::write::create;
use report::Report;

/// Name of the pool.
const POOL: &str = "benchwrite";
/// Bytes of the cache.
const ARC: u64 = 1 << 30;
/// Bytes of its device, nearly all of which are holes: 100 metaslabs of 16 GiB.
const DEVICE: u64 = 1605 << 30;

/// What `alloc` runs on.
#[derive(clap::Args)]
pub struct AllocArgs {
    /// Directory for the pool's device file, which is sparse and takes 100 MiB per spoiled metaslab.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// Number of spoiled metaslabs.
    #[arg(long, default_value_t = 8)]
    spoiled: usize,
    /// Threads that allocate: by default one less than there are processors, which the thread that
    /// loads has, but at least one.
    #[arg(long, default_value_t = (processors() - 1).max(1), value_parser = at_least_one)]
    threads: usize,
    /// Rounds in which they do.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// What the free segments are made from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// OpenZFS's zdb, which judges the pool.
    #[arg(long, default_value = "/usr/sbin/zdb")]
    zdb: PathBuf,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Processors that this program may run on; 1 if that is not known.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse::<NonZeroUsize>().map(NonZeroUsize::get).map_err(|e| e.to_string())
}

/// The pool, imported read-only.
struct Spoiled {
    pool: Arc<Pool>,
    loader: Arc<Loader>,
    vdevs: Vec<(Class, VdevInfo)>,
    /// Numbers of the spoiled metaslabs.
    metaslabs: Vec<u64>,
}

/// Runs everything and prints the report.
pub fn run(args: &AllocArgs) -> anyhow::Result<()> {
    let dir = args.dir.join("alloc");
    fs::create_dir_all(&dir)?;
    let image = dir.join("pool.img");
    let measured = measure(args, &dir, &image);
    let _ = fs::remove_file(&image);
    let _ = fs::remove_dir(&dir);
    report::print(&measured?, args.json)
}

fn measure(args: &AllocArgs, dir: &Path, image: &Path) -> anyhow::Result<Report> {
    eprintln!("making a pool with {} spoiled metaslabs ...", args.spoiled);
    let metaslabs = make(image, args)?;
    eprintln!("zdb judges it ...");
    let expected = spoil::Map::spoiled(args.seed.wrapping_add(metaslabs[0]))?;
    judge::judge(&args.zdb, dir, &metaslabs, &expected)?;
    let spoiled = import(dir, metaslabs)?;
    eprintln!("loading ...");
    let loads = load::loads(&spoiled, image, args.seed)?;
    eprintln!("allocating ...");
    let allocations = latency::rows(&spoiled, args.threads, args.rounds)?;
    let (mut peer, mut peer_allocations) = (Vec::new(), Vec::new());
    if let Some(program) = &args.peer {
        eprintln!("libzpool ...");
        peer = load::peer(program, dir, &["alloc"])?;
        // This one writes to the pool, so it is the last.
        let threads = args.threads.to_string();
        let blocks = load::peer(program, dir, &["alloc-blocks", &threads]);
        peer_allocations = blocks.unwrap_or_else(|e| {
            eprintln!("libzpool's allocations are not there: {e}");
            Vec::new()
        });
    }
    let (records, segments) = (expected.records, expected.segments());
    Ok(Report {
        records,
        segments,
        loads,
        peer,
        threads: args.threads,
        processors: processors(),
        allocations,
        peer_allocations,
    })
}

/// Makes the pool, and exports it; the numbers of the spoiled metaslabs.
fn make(image: &Path, args: &AllocArgs) -> anyhow::Result<Vec<u64>> {
    let file = fs::File::create(image)?;
    file.set_len(DEVICE).with_context(|| format!("{}: {DEVICE} bytes", image.display()))?;
    // One allocator, so that the pool's own blocks are in few metaslabs.
    let options = EngineOptions { deterministic: true, ..EngineOptions::default() };
    let engine = create(image.to_path_buf(), Compression::Off, ARC, &[], options)?;
    engine.sync()?;
    let metaslabs = spoil::spoil(&engine, args.spoiled, args.seed)?;
    engine.export(false)?;
    Ok(metaslabs)
}

fn import(dir: &Path, metaslabs: Vec<u64>) -> anyhow::Result<Spoiled> {
    let found = discover(&[dir.to_path_buf()]);
    let candidate = found.iter().find(|c| c.name == POOL).context("the pool is not there")?;
    let options = ImportOptions {
        readonly: true,
        force: true,
        arc_bytes: Some(ARC),
        ..ImportOptions::default()
    };
    let pool = Pool::import(candidate, &options)?;
    let space = pool.space().context("no space maps")?;
    let maps = SpaceMaps::open(space, pool.config(), pool.mos(), pool.uberblock().txg)?;
    let vdevs = maps.allocator_vdevs(Some(space), &pool.store().vdevs());
    Ok(Spoiled { loader: maps.loader(), vdevs, metaslabs, pool })
}

impl Spoiled {
    /// An allocator that has nothing loaded.
    fn allocator(&self, vdevs: &[(Class, VdevInfo)]) -> anyhow::Result<Arc<Allocator>> {
        let sizes = self.pool.store().clone();
        Ok(Allocator::new(vdevs, sizes, self.loader.clone(), Options::default())?)
    }
}
