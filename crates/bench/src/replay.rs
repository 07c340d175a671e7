//! `cenote-bench replay`: importing a pool that a crash left with a long intent log, on devices that answer
//! late.
//!
//! One image is made for each kind of record. `write`: each record is 4 KiB that are not aligned, in a block
//! of 128 KiB of its own, of which 4 KiB are noise and the rest compresses to nothing. `link`: each record is
//! a further name of another file, in one large directory. Nothing of it is in the dataset, all of it in the
//! log, when the image is copied: that is the crash. Each row imports a copy, replays the log, and says how
//! long that took from the search for the pool on, and how many reads the device had. The device and the log
//! are in one file; with the latency each read, write and flush takes so much longer.
//!
//! Without reading ahead the rows may be given fewer records, for they take a latency for each.

use crate::noise::Noise;
use crate::write;
use anyhow::{Context, ensure};
use cenote_engine::{Engine, EngineOptions, tunables};
use cenote_format::compress::Compression;
use cenote_pool::{ImportOptions, discover};
use cenote_zpl::{FileSystem, NodeKind};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ARC: u64 = 1 << 30;
/// Most dirty bytes: all that is logged stays in one transaction group.
const DIRTY: u64 = 64 << 30;
const BLOCK: u64 = 128 << 10;
/// Records that are committed together.
const COMMIT: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    Write,
    Link,
}

/// What `replay` runs on.
#[derive(clap::Args)]
pub struct ReplayArgs {
    /// Directory for the device files.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// Records of each log. Each `write` takes 128 KiB of memory while the image is made.
    #[arg(long, default_value_t = 20_000)]
    records: u64,
    /// Records of the logs of rows without reading ahead, where the device has a latency.
    #[arg(long, default_value_t = 2000)]
    serial_records: u64,
    /// Latencies in milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 10, 50])]
    latencies: Vec<u64>,
    /// Kinds of records.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Write, Kind::Link])]
    kinds: Vec<Kind>,
}

fn set(name: &str, value: u64) -> anyhow::Result<()> {
    let tunable = tunables::find(name).with_context(|| format!("no tunable {name}"))?;
    Ok(tunable.set(value)?)
}

/// Makes an image with `records` records in the log of its root dataset.
fn image(dir: &Path, kind: Kind, records: u64) -> anyhow::Result<PathBuf> {
    let (path, image) = (dir.join("replay"), dir.join(format!("image-{kind:?}-{records}")));
    File::create(&path)?.set_len((4 << 30) + records * (64 << 10)).context("device file")?;
    let (txg_timeout, dirty_max) = (Some(Duration::from_secs(86_400)), Some(DIRTY));
    let options = EngineOptions { txg_timeout, dirty_max, ..EngineOptions::default() };
    let engine = write::create(path.clone(), Compression::Lz4, ARC, &[], options)?;
    let fs = write::open(&engine, BLOCK)?;
    let mut noise = Noise(7);
    match kind {
        Kind::Write => writes(&engine, &fs, records, &mut noise)?,
        Kind::Link => links(&engine, &fs, records)?,
    }
    fs::copy(&path, &image)?;
    drop(fs);
    engine.export(false)?;
    fs::remove_file(&path)?;
    Ok(image)
}

/// Has the log on disk, and the group that has it never.
fn log(
    engine: &Engine,
    fs: &FileSystem,
    records: u64,
    mut change: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    engine.sync()?;
    set("zfs_dirty_data_sync", DIRTY)?;
    set("zfs_dirty_data_sync_percent", 100)?;
    let id = fs.objset().id();
    // The first commit starts the log.
    fs.create(fs.root(), b"start", &write::node(NodeKind::File))?;
    engine.commit(id)?;
    let txg = engine.pool().uberblock().txg;
    for record in 0..records {
        change(record)?;
        if record % COMMIT == COMMIT - 1 || record + 1 == records {
            engine.commit(id)?;
        }
    }
    ensure!(engine.pool().uberblock().txg == txg, "the log did not stay in one group");
    for name in ["zfs_dirty_data_sync", "zfs_dirty_data_sync_percent"] {
        tunables::find(name).with_context(|| name)?.reset();
    }
    Ok(())
}

fn writes(engine: &Engine, fs: &FileSystem, records: u64, noise: &mut Noise) -> anyhow::Result<()> {
    let ino = fs.create(fs.root(), b"file", &write::node(NodeKind::File))?.ino;
    let mut block = vec![0; BLOCK as usize];
    for at in 0..records {
        noise.fill(&mut block[..4096]);
        fs.write(ino, at * BLOCK, &block, false)?;
    }
    // In no order.
    let step = (records / 2 + 1..).find(|n| gcd(*n, records) == 1).unwrap_or(1);
    let mut data = [0; 4096];
    log(engine, fs, records, |record| {
        noise.fill(&mut data);
        let at = record * step % records * BLOCK + 512 * (1 + noise.next() % 200);
        Ok(fs.write(ino, at, &data, false).map(drop)?)
    })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn links(engine: &Engine, fs: &FileSystem, records: u64) -> anyhow::Result<()> {
    let mut inos = Vec::new();
    for n in 0..records {
        let name = format!("file{n}");
        inos.push(fs.create(fs.root(), name.as_bytes(), &write::node(NodeKind::File))?.ino);
    }
    let step = (records / 2 + 1..).find(|n| gcd(*n, records) == 1).unwrap_or(1);
    log(engine, fs, records, |record| {
        let ino = inos[(record * step % records) as usize];
        Ok(fs.link(ino, fs.root(), format!("link{record}").as_bytes()).map(drop)?)
    })
}

struct Row {
    records: u64,
    import: f64,
    replay: f64,
    reads: u64,
}

fn row(dir: &Path, image: &Path, latency: u64, prime: bool) -> anyhow::Result<Row> {
    let copy = dir.join("crashed");
    fs::copy(image, &copy)?;
    set("vdev_simulated_latency", latency * 1_000_000)?;
    set("zil_replay_prime", u64::from(prime))?;
    let begun = Instant::now();
    let candidates = discover::search(std::slice::from_ref(&copy)).candidates;
    let candidate = candidates.first().context("no pool in the copy")?;
    let engine = Engine::import(
        candidate,
        &ImportOptions { arc_bytes: Some(ARC), ..ImportOptions::default() },
        EngineOptions::default(),
    )?;
    let import = begun.elapsed().as_secs_f64();
    let records = std::sync::atomic::AtomicU64::new(0);
    let failed = cenote::contents::replay_logs(&engine, &|_, done| {
        records.store(done.records, std::sync::atomic::Ordering::Relaxed);
        true
    })?;
    ensure!(failed.is_empty(), "{failed:?}");
    let replay = begun.elapsed().as_secs_f64() - import;
    let reads = engine.pool().store().vdevs().root().io_stats().0;
    set("vdev_simulated_latency", 0)?;
    set("zil_replay_prime", 1)?;
    engine.export(false)?;
    fs::remove_file(&copy)?;
    Ok(Row { records: records.into_inner(), import, replay, reads })
}

/// Runs all rows.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    println!(
        "{:<6} {:>8} {:>6} {:>8} {:>9} {:>9} {:>8} {:>10}",
        "kind", "latency", "ahead", "records", "import s", "replay s", "reads", "records/s"
    );
    for kind in &args.kinds {
        let long = image(&args.dir, *kind, args.records)?;
        let short = image(&args.dir, *kind, args.serial_records)?;
        for latency in &args.latencies {
            for prime in [true, false] {
                let image = if prime || *latency == 0 { &long } else { &short };
                let row = row(&args.dir, image, *latency, prime)?;
                println!(
                    "{:<6} {:>5} ms {:>6} {:>8} {:>9.2} {:>9.2} {:>8} {:>10.0}",
                    format!("{kind:?}").to_lowercase(),
                    latency,
                    if prime { "yes" } else { "no" },
                    row.records,
                    row.import,
                    row.replay,
                    row.reads,
                    row.records as f64 / (row.import + row.replay)
                );
            }
        }
        fs::remove_file(&long)?;
        fs::remove_file(&short)?;
    }
    Ok(())
}
