//! `cenote-bench replay`: importing a pool that a crash left with a long intent log, on devices that answer
//! late.
//!
//! One image is made for each kind of record:
//!
//! | kind | each record | what replay reads for it |
//! |---|---|---|
//! | `write` | 4 KiB that are not aligned, in a block of 128 KiB of its own | that block |
//! | `link` | a further name of another file, in one large directory | a block of dnodes that has this file alone (`dnodesize=16k`); leaves of the directory |
//! | `link-near` | the same | a block of 32 dnodes, which are wanted one after another or not; leaves |
//!
//! Of a block of 128 KiB 4 KiB are noise, and the rest compresses to nothing. The records are put into the log without
//! the changes that they describe, so the size of a log is not bounded by memory. The image is copied then: that
//! is the crash. Each row imports a copy, replays the log, and says how long that took from the search
//! for the pool on, and how many reads the device had. The device and the log are in one file; with the latency each
//! read, write and flush takes so much longer.
//!
//! Without reading ahead the rows may be given fewer records, for they take a latency for each. The last column
//! compares the records a second of a row with reading ahead and the row without it.

use crate::noise::Noise;
use crate::write;
use anyhow::{Context, ensure};
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::WriteError;
use cenote_engine::{Engine, EngineOptions, tunables};
use cenote_format::blkptr::BlockPointer;
use cenote_format::compress::Compression;
use cenote_format::zil::{Body, Write};
use cenote_pool::{ImportOptions, discover};
use cenote_zpl::{FileSystem, NodeKind, Settings};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ARC: u64 = 1 << 30;
const BLOCK: u64 = 128 << 10;
/// Bytes of a dnode that fills a block of dnodes.
const WIDE_DNODE: usize = 16 << 10;
/// Records that are committed together.
const COMMIT: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Kind {
    Write,
    Link,
    LinkNear,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Write => "write",
            Kind::Link => "link",
            Kind::LinkNear => "link-near",
        }
    }
}

/// What `replay` runs on.
#[derive(clap::Args)]
pub struct ReplayArgs {
    /// Directory for the device files.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// Records of each log. Of 1,000,000 writes the images take 20 GiB.
    #[arg(long, default_value_t = 100_000)]
    records: u64,
    /// Records of the logs of rows without reading ahead, where the device has a latency.
    #[arg(long, default_value_t = 2000)]
    serial_records: u64,
    /// Latencies in milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 10, 50])]
    latencies: Vec<u64>,
    /// Kinds of records.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Write, Kind::Link, Kind::LinkNear])]
    kinds: Vec<Kind>,
}

fn set(name: &str, value: u64) -> anyhow::Result<()> {
    let tunable = tunables::find(name).with_context(|| format!("no tunable {name}"))?;
    Ok(tunable.set(value)?)
}

/// Makes an image with `records` records in the log of its root dataset.
fn image(dir: &Path, kind: Kind, records: u64) -> anyhow::Result<PathBuf> {
    let (path, image) = (dir.join("replay"), dir.join(format!("image-{}-{records}", kind.name())));
    File::create(&path)?.set_len((4 << 30) + records * (256 << 10)).context("device file")?;
    let txg_timeout = Some(Duration::from_secs(86_400));
    let options = EngineOptions { txg_timeout, ..EngineOptions::default() };
    let engine = write::create(path.clone(), Compression::Lz4, ARC, &[], options)?;
    let fs = write::open(&engine, BLOCK)?;
    match kind {
        Kind::Write => writes(&engine, &fs, records)?,
        Kind::Link => {
            fs.set_settings(Settings { dnode_size: WIDE_DNODE, ..(*fs.settings()).clone() });
            links(&engine, &fs, records)?;
        }
        Kind::LinkNear => links(&engine, &fs, records)?,
    }
    copy(&path, &image)?;
    drop(fs);
    engine.export(false)?;
    fs::remove_file(&path)?;
    Ok(image)
}

/// Copies a file and leaves out what is zero.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let (from, to) = (File::open(from)?, File::create(to)?);
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut piece = vec![0; 1 << 20];
    for at in (0..size).step_by(piece.len()) {
        let length = (size - at).min(piece.len() as u64) as usize;
        let piece = &mut piece[..length];
        from.read_exact_at(piece, at)?;
        for (i, page) in piece.chunks(4096).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                to.write_all_at(page, at + i as u64 * 4096)?;
            }
        }
    }
    Ok(())
}

/// Has records in the log on disk, and the group that has it never.
fn log(
    engine: &Engine,
    fs: &FileSystem,
    records: u64,
    mut record: impl FnMut(u64, &LiveObjectSet) -> Result<(), WriteError>,
) -> anyhow::Result<()> {
    let id = fs.objset().id();
    // The first commit starts the log, and has all on disk.
    fs.create(fs.root(), b"start", &write::node(NodeKind::File))?;
    engine.commit(id)?;
    let txg = engine.pool().uberblock().txg;
    let live = engine.live(id)?;
    for at in 0..records {
        record(at, &live)?;
        if at % COMMIT == COMMIT - 1 || at + 1 == records {
            engine.commit(id)?;
        }
    }
    ensure!(engine.pool().uberblock().txg == txg, "the log did not stay in one group");
    Ok(())
}

/// A change that is nothing but its record.
fn note(live: &LiveObjectSet, body: &Body<'_>) -> Result<(), WriteError> {
    live.transact(Cost::default(), |os, _| os.log(body.clone()))
}

/// All numbers below `records`, in no order that reading ahead could guess.
fn scattered(at: u64, records: u64) -> u64 {
    let step = (records / 2 + 1..).find(|n| gcd(*n, records) == 1).unwrap_or(1);
    (u128::from(at) * u128::from(step) % u128::from(records)) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn writes(engine: &Engine, fs: &FileSystem, records: u64) -> anyhow::Result<()> {
    let mut noise = Noise(7);
    let object = fs.create(fs.root(), b"file", &write::node(NodeKind::File))?.ino;
    let mut block = vec![0; BLOCK as usize];
    for at in 0..records {
        noise.fill(&mut block[..4096]);
        fs.write(object, at * BLOCK, &block, false)?;
    }
    let mut data = [0; 4096];
    log(engine, fs, records, |record, live| {
        noise.fill(&mut data);
        let offset = scattered(record, records) * BLOCK + 512 * (1 + noise.next() % 200);
        let (length, block_offset, block) = (data.len() as u64, 0, BlockPointer::HOLE);
        let data = Some(&data[..]);
        note(live, &Body::Write(Write { object, offset, length, block_offset, block, data }))
    })
}

fn links(engine: &Engine, fs: &FileSystem, records: u64) -> anyhow::Result<()> {
    let mut inos = Vec::new();
    for n in 0..records {
        let name = format!("file{n}");
        inos.push(fs.create(fs.root(), name.as_bytes(), &write::node(NodeKind::File))?.ino);
    }
    let dir = fs.root();
    log(engine, fs, records, |record, live| {
        let object = inos[scattered(record, records) as usize];
        note(live, &Body::Link { dir, object, name: format!("link{record}").as_bytes() })
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
    self::copy(image, &copy)?;
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

impl Row {
    fn rate(&self) -> f64 {
        self.records as f64 / (self.import + self.replay)
    }
}

/// Runs all rows.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    println!(
        "{:<9} {:>8} {:>6} {:>8} {:>9} {:>9} {:>8} {:>10} {:>6}",
        "kind",
        "latency",
        "ahead",
        "records",
        "import s",
        "replay s",
        "reads",
        "records/s",
        "times"
    );
    for kind in &args.kinds {
        let long = image(&args.dir, *kind, args.records)?;
        let short = image(&args.dir, *kind, args.serial_records)?;
        for latency in &args.latencies {
            let mut serial = None;
            for prime in [false, true] {
                let image = if prime || *latency == 0 { &long } else { &short };
                let row = row(&args.dir, image, *latency, prime)?;
                let serial = *serial.get_or_insert(row.rate());
                println!(
                    "{:<9} {latency:>5} ms {:>6} {:>8} {:>9.2} {:>9.2} {:>8} {:>10.0} {:>6.1}",
                    kind.name(),
                    if prime { "yes" } else { "no" },
                    row.records,
                    row.import,
                    row.replay,
                    row.reads,
                    row.rate(),
                    row.rate() / serial
                );
            }
        }
        fs::remove_file(&long)?;
        fs::remove_file(&short)?;
    }
    Ok(())
}
