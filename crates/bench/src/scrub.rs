//! `cenote-bench scrub`: scrubs and resilvers, beside the devices themselves, and with `--peer` beside OpenZFS's own engine.
//!
//! Scrubs: a pool on one file, which is *fresh* (written once, in order) or has *aged* (smaller records, most of which were
//! overwritten at random). The same pool is scrubbed here and by the peer, and as many bytes as are allocated are read from the
//! file in order, a MiB at a time. Then records are read at random, by one thread, first by themselves and then in front of another
//! scrub: 99 of 100 reads take no longer than is shown.
//!
//! Resilvers: a mirror of two files, one of which has missed that 1% of the data were overwritten. Each side imports a copy of it,
//! and the time counts until that device has everything; so do the bytes that were written to it.
//!
//! Nothing is cached as an import begins. Of several runs the median counts.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cenote_engine::create::{Redundancy, VdevSpec};
use cenote_engine::{Engine, EngineOptions, TakeOut};
use cenote_format::compress::Compression;
use cenote_pool::scan::ScanPhys;
use cenote_pool::{ImportOptions, discover};
use cenote_zpl::{FileSystem, NodeKind};
use serde::{Deserialize, Serialize};

use crate::measure::{cpu_seconds, forget, medians_by, rest};
use crate::mounted::make_image;
use crate::noise::Noise;
use crate::write::{create_on, node, open};

/// The pool that [`create_on`] makes.
const POOL: &str = "benchwrite";
/// Bytes of a record of a fresh pool, of one that has aged, and of a raw read.
const LARGE: u64 = 128 << 10;
const SMALL: u64 = 16 << 10;
const RAW: u64 = 1 << 20;
/// Percent of the records of a pool that are overwritten as it ages.
const AGE: u64 = 60;
/// Parts in which they are, each in a transaction group.
const PARTS: u64 = 20;
/// How often it is looked whether something is over.
const LOOK: Duration = Duration::from_micros(200);

/// What `scrub` runs on.
#[derive(clap::Args)]
pub struct ScrubArgs {
    /// Directory for the device files: twice --size, or five times the largest of --resilvers.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// MiB of the data that are scrubbed.
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// MiB of the data of the pools that are resilvered.
    #[arg(long, value_delimiter = ',', default_values_t = [256, 512, 1024])]
    resilvers: Vec<u64>,
    /// MiB of each engine's cache.
    #[arg(long, default_value_t = 128)]
    cache: u64,
    /// Reads that are timed without a scrub.
    #[arg(long, default_value_t = 5000)]
    reads: u64,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
}

/// What scrubs took; also what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Scrub {
    /// Which pool, and who scrubs.
    #[serde(default)]
    row: (String, String),
    bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// 99 of 100 reads take no more microseconds, without a scrub and in front of one.
    quiet_us: f64,
    busy_us: f64,
    /// What the scrub takes that is read in front of.
    busy_seconds: f64,
}

/// What a resilver took; also what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Resilver {
    #[serde(default)]
    row: (u64, String),
    seconds: f64,
    bytes: u64,
}

/// Runs everything and prints the tables.
pub fn run(args: &ScrubArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    let (mut scrubs, mut resilvers) = (Vec::new(), Vec::new());
    for run in 1..=args.runs {
        for (kind, record) in [("fresh", LARGE), ("aged", SMALL)] {
            eprintln!("run {run} of {}: scrub of a pool that is {kind} ...", args.runs);
            scrubs.extend(scrub_rows(args, kind, record)?);
        }
        for mib in args.resilvers.iter().copied() {
            eprintln!("run {run} of {}: resilver of {mib} MiB ...", args.runs);
            resilvers.extend(resilver_rows(args, mib)?);
        }
    }
    print(
        &medians_by(&scrubs, |row| row.row.clone(), |row| row.seconds),
        &medians_by(&resilvers, |row| row.row.clone(), |row| row.seconds),
    );
    Ok(())
}

fn print(scrubs: &[Scrub], resilvers: &[Resilver]) {
    println!(
        "{:<8} {:<10} {:>8} {:>7} {:>7} {:>10} {:>11} {:>11} {:>9}",
        "pool", "", "MB/s", "/ raw", "CPU s", "MB/s busy", "p99 us", "p99 us busy", "/ quiet"
    );
    let rate = |row: &Scrub, seconds: f64| row.bytes as f64 / 1e6 / seconds;
    for row in scrubs {
        let is_raw = |other: &&Scrub| other.row == (row.row.0.clone(), "raw".to_string());
        let raw = scrubs.iter().find(is_raw).map_or(f64::NAN, |raw| rate(raw, raw.seconds));
        let (kind, side, own) = (&row.row.0, &row.row.1, rate(row, row.seconds));
        print!("{kind:<8} {side:<10} {own:>8.0} {:>7.2} {:>7.2}", own / raw, row.cpu_seconds);
        match side.as_str() {
            "raw" => println!(),
            _ => println!(
                " {:>10.0} {:>11.0} {:>11.0} {:>9.1}",
                rate(row, row.busy_seconds),
                row.quiet_us,
                row.busy_us,
                row.busy_us / row.quiet_us
            ),
        }
    }
    println!("\n{:<14} {:<10} {:>9} {:>12}", "resilver of 1%", "", "seconds", "MB written");
    for Resilver { row: (mib, side), seconds, bytes } in resilvers {
        println!(
            "{:<14} {side:<10} {seconds:>9.3} {:>12.1}",
            format!("{mib} MiB"),
            *bytes as f64 / 1e6
        );
    }
}

/// Runs the peer, which prints a line.
fn theirs<T: for<'a> Deserialize<'a>>(peer: &Path, args: &[String]) -> anyhow::Result<T> {
    let out = Command::new(peer).args(args).output()?;
    if !out.status.success() {
        bail!("the peer failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let text = String::from_utf8(out.stdout)?;
    let line = text.lines().find(|line| line.starts_with('{')).context("the peer says nothing")?;
    Ok(serde_json::from_str(line)?)
}

/// A pool with a file of `mib` MiB in records of this size. Returns the file's number.
fn fill(engine: &Engine, mib: u64, record: u64) -> anyhow::Result<u64> {
    let fs = open(engine, record)?;
    let file = fs.create(fs.root(), b"data", &node(NodeKind::File))?.ino;
    let (mut noise, mut block) = (Noise(1), vec![0; RAW as usize]);
    for at in (0..mib << 20).step_by(RAW as usize) {
        noise.fill(&mut block);
        fs.write(file, at, &block, false)?;
    }
    engine.sync()?;
    Ok(file)
}

/// Overwrites `count` records at random.
fn overwrite(
    engine: &Engine,
    file: u64,
    (bytes, record): (u64, u64),
    count: u64,
    seed: u64,
) -> anyhow::Result<()> {
    let fs = open(engine, record)?;
    let (mut noise, mut block) = (Noise(seed), vec![0; record as usize]);
    for _ in 0..count {
        noise.fill(&mut block);
        fs.write(file, noise.next() % (bytes / record) * record, &block, false)?;
    }
    Ok(engine.sync()?)
}

fn import(dir: &Path, cache: u64) -> anyhow::Result<Arc<Engine>> {
    let found = discover(&[dir.to_path_buf()]);
    let found = found.first().context("the pool is gone")?;
    let options =
        ImportOptions { force: true, arc_bytes: Some(cache << 20), ..ImportOptions::default() };
    Ok(Engine::import(found, &options, EngineOptions::default())?)
}

fn scrub_rows(args: &ScrubArgs, kind: &str, record: u64) -> anyhow::Result<Vec<Scrub>> {
    let (dir, bytes) = (args.dir.join("scrub"), args.size << 20);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    let image = dir.join("scrub.img");
    make_image(&image, bytes + bytes / 2 + (256 << 20))?;
    let spec = VdevSpec::new(Redundancy::Single, vec![image.clone()]);
    let arc = args.cache << 20;
    let engine = create_on(spec, Compression::Off, arc, &[], EngineOptions::default())?;
    let file = fill(&engine, args.size, record)?;
    if record == SMALL {
        for part in 1..=PARTS {
            let count = bytes / record * AGE / 100 / PARTS;
            overwrite(&engine, file, (bytes, record), count, part)?;
        }
    }
    engine.export(false)?;
    drop(engine);
    let row = |side: &str, scrub: Scrub| Scrub { row: (kind.into(), side.into()), ..scrub };
    rest();
    forget(&image)?;
    let ours = row("cenote", our_scrub(args, &dir, file, record)?);
    forget(&image)?;
    let raw = row("raw", raw_read(&image, ours.bytes)?);
    let mut rows = vec![raw, ours];
    if let Some(peer) = &args.peer {
        forget(&image)?;
        let numbers = [args.cache, file, bytes, record, args.reads].map(|n| n.to_string());
        let words = ["scrub".to_string(), dir.display().to_string(), POOL.to_string()];
        rows.push(row("libzpool", theirs(peer, &[words.as_slice(), &numbers].concat())?));
    }
    fs::remove_dir_all(&dir)?;
    Ok(rows)
}

fn raw_read(image: &Path, bytes: u64) -> anyhow::Result<Scrub> {
    let file = File::open(image)?;
    let size = file.metadata()?.len();
    let mut buf = vec![0; RAW as usize];
    let (begun, cpu) = (Instant::now(), cpu_seconds()?);
    let bytes = bytes.min(size - (4 << 20)) / RAW * RAW;
    for at in (0..bytes).step_by(RAW as usize) {
        file.read_exact_at(&mut buf, at + (4 << 20))?;
    }
    let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let row = Default::default();
    Ok(Scrub { row, bytes, seconds, cpu_seconds, quiet_us: 0.0, busy_us: 0.0, busy_seconds: 0.0 })
}

fn until_scanned(engine: &Engine) {
    while engine.is_scanning() || engine.awaits_resilver() {
        std::thread::sleep(LOOK);
    }
}

fn our_scrub(args: &ScrubArgs, dir: &Path, file: u64, record: u64) -> anyhow::Result<Scrub> {
    let engine = import(dir, args.cache)?;
    let (begun, cpu) = (Instant::now(), cpu_seconds()?);
    engine.scrub()?;
    until_scanned(&engine);
    let (seconds, cpu_seconds) = (begun.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let phys = ScanPhys::load(engine.pool().directory())?.context("no scrub")?;
    ensure!(phys.errors == 0, "the scrub found {} errors", phys.errors);
    let (fs, bytes) = (open(&engine, record)?, args.size << 20);
    let mut left = args.reads;
    let quiet_us = p99(&fs, file, bytes, record, || {
        left = left.saturating_sub(1);
        left > 0
    })?;
    let begun = Instant::now();
    engine.scrub()?;
    let busy_us = p99(&fs, file, bytes, record, || engine.is_scanning())?;
    let busy_seconds = begun.elapsed().as_secs_f64();
    drop(fs);
    engine.export(false)?;
    let (row, bytes) = (Default::default(), phys.examined);
    Ok(Scrub { row, bytes, seconds, cpu_seconds, quiet_us, busy_us, busy_seconds })
}

/// Microseconds that 99 of 100 reads take at most.
fn p99(
    fs: &FileSystem,
    file: u64,
    bytes: u64,
    record: u64,
    mut goes_on: impl FnMut() -> bool,
) -> anyhow::Result<f64> {
    let (mut buf, mut places) = (vec![0; record as usize], Noise(1));
    let mut took = Vec::new();
    while goes_on() {
        let begun = Instant::now();
        fs.read(file, places.next() % (bytes / record) * record, &mut buf)?;
        took.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    took.sort_by(f64::total_cmp);
    Ok(took.get(took.len() * 99 / 100).copied().unwrap_or(0.0))
}

fn resilver_rows(args: &ScrubArgs, mib: u64) -> anyhow::Result<Vec<Resilver>> {
    let (dir, bytes, arc) = (args.dir.join("resilver"), mib << 20, args.cache << 20);
    let copy = args.dir.join("resilver-copy");
    for dir in [&dir, &copy] {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir)?;
    }
    let names = ["a.img", "b.img"];
    for name in names {
        // Beside what is kept back of each pool, and what waits to be free.
        make_image(&dir.join(name), bytes + bytes / 8 + (512 << 20))?;
    }
    let paths = names.iter().map(|name| dir.join(name)).collect();
    let spec = VdevSpec::new(Redundancy::Mirror, paths);
    let engine = create_on(spec, Compression::Off, arc, &[], EngineOptions::default())?;
    let file = fill(&engine, mib, LARGE)?;
    let lacking = engine.pool().store().vdevs().leaves()[1].guid();
    engine.take_out(lacking, TakeOut::OfflineForNow)?;
    overwrite(&engine, file, (bytes, LARGE), (bytes / LARGE / 100).max(1), 1)?;
    engine.export(false)?;
    drop(engine);
    for name in names {
        fs::copy(dir.join(name), copy.join(name))?;
    }
    rest();
    let forget_all = |dir: &Path| names.iter().try_for_each(|name| forget(&dir.join(name)));
    forget_all(&dir)?;
    let begun = Instant::now();
    let engine = import(&dir, args.cache)?;
    let leaves = engine.pool().store().vdevs().leaves();
    while leaves.iter().any(|leaf| leaf.is_behind()) {
        std::thread::sleep(LOOK);
    }
    until_scanned(&engine);
    let seconds = begun.elapsed().as_secs_f64();
    let phys = ScanPhys::load(engine.pool().directory())?.context("no resilver")?;
    engine.export(false)?;
    drop((engine, leaves));
    let mut rows = vec![Resilver { row: (mib, "cenote".into()), seconds, bytes: phys.processed }];
    if let Some(peer) = &args.peer {
        fs::remove_dir_all(&dir)?;
        forget_all(&copy)?;
        let words = ["resilver", &copy.display().to_string(), POOL, &args.cache.to_string()];
        let theirs: Resilver = theirs(peer, &words.map(String::from))?;
        rows.push(Resilver { row: (mib, "libzpool".into()), ..theirs });
    }
    let _ = fs::remove_dir_all(&dir);
    fs::remove_dir_all(&copy)?;
    Ok(rows)
}
