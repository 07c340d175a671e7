//! `cenote-bench replay`: importing a pool that a crash left with a long intent log, on devices that answer
//! late.
//!
//! One image is made for each kind of record:
//!
//! | kind | each record | what replay reads for it |
//! |---|---|---|
//! | `write` | 4 KiB that are not aligned, in a block of 128 KiB of its own | that block |
//! | `link` | a further name of another file, in one large directory | a block of dnodes that has this file alone (`dnodesize=16k`); leaves of the directory |
//! | `link-near` | the same, in the order of the files | a block of 32 dnodes, for 32 records; leaves |
//!
//! Of a block of 128 KiB 4 KiB are noise, and the rest compresses to nothing. The records are put into the log without
//! the changes that they describe, so the size of a log is not bounded by memory. The image is copied then: that
//! is the crash. Each row imports a copy, replays the log, and says how long that took from the search
//! for the pool on, and how many reads the device had. The device and the log are in one file; with the latency each
//! read, write and flush takes so much longer.
//!
//! Without reading ahead a replay is ended after `--seconds`: one read after another, each with its latency, would take
//! hours. How many records a row applied, and the reads for them, are printed. The column `all s` says what the whole
//! log takes. Of a replay that was ended that is an estimate, marked with `~`: the further reads are those that the row
//! with reading ahead made beyond it, each with the time that one took so far. The last column compares `all s` of the
//! two rows. Where a latency is 0 reads say nothing, and the rest is taken to go as fast as what was done.
//!
//! All of it ends after `--minutes`, which the kinds of a length share: a row with reading ahead that takes longer is
//! ended, and estimated as well, and the rows that no time is left for are named at the end ([`Budget`]).

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
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

const ARC: u64 = 1 << 30;
const BLOCK: u64 = 128 << 10;
/// Bytes of a dnode that fills a block of dnodes.
const WIDE_DNODE: usize = 16 << 10;
/// Type of a file system in memory (`statfs(2)`).
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Records that are committed together.
const COMMIT: u64 = 512;

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
    /// Records of each log. Of 1,000,000 writes the image and its copy take 20 GiB: there are no rows where there is no
    /// room.
    #[arg(long, value_delimiter = ',', default_values_t = [100_000, 1_000_000])]
    records: Vec<u64>,
    /// Most seconds that a replay without reading ahead takes; one that is not done then is ended.
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Minutes that all rows take together.
    #[arg(long, default_value_t = 6)]
    minutes: u64,
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
            links(&engine, &fs, records, false)?;
        }
        Kind::LinkNear => links(&engine, &fs, records, true)?,
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
    let mut at = 0;
    while let Some(data) = next_data(&from, at)? {
        let length = (size - data).min(piece.len() as u64) as usize;
        let piece = &mut piece[..length];
        from.read_exact_at(piece, data)?;
        for (i, page) in piece.chunks(4096).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                to.write_all_at(page, data + i as u64 * 4096)?;
            }
        }
        at = data + length as u64;
    }
    Ok(())
}

/// Where a file has data, from `at` on.
fn next_data(file: &File, at: u64) -> anyhow::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Has records in the log on disk, and the group that has it never.
fn log(
    engine: &Engine,
    fs: &FileSystem,
    records: u64,
    mut record: impl FnMut(u64, &LiveObjectSet) -> Result<(), WriteError>,
) -> anyhow::Result<()> {
    let id = fs.objset().id();
    // More than the log keeps in memory may wait so far: then a commit waits for its group and starts no log.
    engine.sync()?;
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

fn links(engine: &Engine, fs: &FileSystem, records: u64, in_order: bool) -> anyhow::Result<()> {
    let mut inos = Vec::new();
    for n in 0..records {
        let name = format!("file{n}");
        inos.push(fs.create(fs.root(), name.as_bytes(), &write::node(NodeKind::File))?.ino);
    }
    let dir = fs.root();
    log(engine, fs, records, |record, live| {
        let at = if in_order { record } else { scattered(record, records) };
        let object = inos[at as usize];
        note(live, &Body::Link { dir, object, name: format!("link{record}").as_bytes() })
    })
}

/// Processor time of this process.
fn cpu_seconds() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let both = [usage.user_time(), usage.system_time()];
    Ok(both.iter().map(|time| time.num_microseconds() as f64 / 1e6).sum())
}

/// What a row took.
struct Row {
    /// Records that were applied.
    records: u64,
    import: f64,
    replay: f64,
    /// Reads of the import and of the replay.
    reads: [u64; 2],
    /// Processor time of the import and the replay, which other programs on the machine do not change.
    cpu: f64,
}

/// Imports a copy of the image and replays its log, for `most` at most.
fn row(
    args: &ReplayArgs,
    image: &Path,
    latency: u64,
    (prime, most): (bool, Duration),
) -> anyhow::Result<Row> {
    let copy = args.dir.join("crashed");
    self::copy(image, &copy)?;
    set("vdev_simulated_latency", latency * 1_000_000)?;
    set("zil_replay_prime", u64::from(prime))?;
    let (begun, busy) = (Instant::now(), cpu_seconds()?);
    let candidates = discover::search(std::slice::from_ref(&copy)).candidates;
    let candidate = candidates.first().context("no pool in the copy")?;
    let engine = Engine::import(
        candidate,
        &ImportOptions { arc_bytes: Some(ARC), ..ImportOptions::default() },
        EngineOptions::default(),
    )?;
    let reads = || engine.pool().store().vdevs().root().io_stats().0;
    let (imported, first) = (Instant::now(), reads());
    let (records, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let failed = cenote::contents::replay_logs(&engine, &|_, done| {
        records.store(done.records, Relaxed);
        ended.store(imported.elapsed() >= most, Relaxed);
        !ended.load(Relaxed)
    })?;
    let (replay, cpu) = (imported.elapsed().as_secs_f64(), cpu_seconds()? - busy);
    ensure!(failed.is_empty() || ended.into_inner(), "{failed:?}");
    let reads = [first, reads().saturating_sub(first)];
    set("vdev_simulated_latency", 0)?;
    set("zil_replay_prime", 1)?;
    engine.export(false)?;
    fs::remove_file(&copy)?;
    let import = (imported - begun).as_secs_f64();
    Ok(Row { records: records.into_inner(), import, replay, reads, cpu })
}

impl Row {
    /// What the whole log takes, of so many records; `whole` is the row that had all of it.
    fn all(&self, latency: u64, records: u64, whole: &Row) -> f64 {
        let left = records.saturating_sub(self.records) as f64;
        let rest = match latency {
            _ if left == 0.0 => 0.0,
            _ if latency == 0 || whole.records < records => left / self.records.max(1) as f64,
            _ => whole.reads[1].saturating_sub(self.reads[1]) as f64 / self.reads[1].max(1) as f64,
        };
        self.import + self.replay * (1.0 + rest)
    }
}

/// Bytes of memory that programs can have (`MemAvailable`).
fn memory_available() -> anyhow::Result<u64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes =
        line.and_then(|line| line.trim().split(' ').next()).context("no MemAvailable")?;
    Ok(kilobytes.parse::<u64>()? << 10)
}

/// Whether there is room for the image of so many records and its copy.
fn fits(dir: &Path, kind: Kind, records: u64) -> anyhow::Result<bool> {
    let each = match kind {
        Kind::Write => 20 << 10,
        Kind::Link | Kind::LinkNear => 8 << 10,
    };
    let stat = rustix::fs::statfs(dir)?;
    let mut free = stat.f_bavail * stat.f_bsize as u64;
    if stat.f_type == TMPFS_MAGIC {
        free = free.min(memory_available()?.saturating_sub(4 << 30));
    }
    let fits = free > records * each + (1 << 30);
    if !fits {
        let (name, dir) = (kind.name(), dir.display());
        println!("{name:<9} {records:>8} no room for the images in {dir}: no rows");
    }
    Ok(fits)
}

/// The time that there is.
struct Budget {
    end: Instant,
    /// Records of an image that are made in a second, by kind.
    pace: [(Kind, f64); 3],
    left_out: Vec<String>,
}

/// Records of an image that are made in a second, as long as no image was made.
const PACE: f64 = 4000.0;
/// A row has so long, whatever was left for it.
const LEAST: Duration = Duration::from_secs(3);

impl Budget {
    fn new(minutes: u64) -> Budget {
        let pace = [Kind::Write, Kind::Link, Kind::LinkNear].map(|kind| (kind, PACE));
        let end = Instant::now() + Duration::from_secs(minutes.saturating_mul(60));
        Budget { end, pace, left_out: Vec::new() }
    }

    fn pace(&mut self, kind: Kind) -> &mut f64 {
        let at = self.pace.iter().position(|(known, _)| *known == kind).unwrap_or(0);
        &mut self.pace[at].1
    }

    fn leave_out(&mut self, kind: Kind, records: u64, what: &str) {
        self.left_out.push(format!("{} {records} {what}", kind.name()));
    }

    fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// Runs the rows of one log, in `share` of the time.
fn rows(
    args: &ReplayArgs,
    kind: Kind,
    records: u64,
    (budget, share): (&mut Budget, Duration),
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let needed = Duration::from_secs_f64(records as f64 / budget.pace(kind).max(1.0));
    if needed >= share {
        budget.leave_out(kind, records, "");
        return Ok(());
    }
    let image = image(&args.dir, kind, records)?;
    *budget.pace(kind) = records as f64 / begun.elapsed().as_secs_f64().max(0.001);
    for latency in &args.latencies {
        let left = share.saturating_sub(begun.elapsed());
        if left.is_zero() {
            budget.leave_out(kind, records, &format!("{latency} ms"));
            continue;
        }
        let serial_takes = Duration::from_secs(args.seconds);
        let ahead = left.saturating_sub(serial_takes).max(LEAST);
        let ahead = row(args, &image, *latency, (true, ahead))?;
        let left = share.saturating_sub(begun.elapsed());
        let serial = row(args, &image, *latency, (false, serial_takes.min(left).max(LEAST)))?;
        let all = |row: &Row| row.all(*latency, records, &ahead);
        for (row, name) in [(&serial, "no"), (&ahead, "yes")] {
            println!(
                "{:<9} {records:>8} {latency:>5} ms {name:>6} {:>8} {:>9.2} {:>9.2} {:>7.2} {:>8} {:>10} {:>6.1}",
                kind.name(),
                row.records,
                row.import,
                row.replay,
                row.cpu,
                row.reads.iter().sum::<u64>(),
                format!("{}{:.1}", if row.records < records { "~" } else { "" }, all(row)),
                all(&serial) / all(row)
            );
        }
    }
    Ok(fs::remove_file(&image)?)
}

/// Runs all rows.
pub fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    println!(
        "{:<9} {:>8} {:>8} {:>6} {:>8} {:>9} {:>9} {:>7} {:>8} {:>10} {:>6}",
        "kind",
        "records",
        "latency",
        "ahead",
        "applied",
        "import s",
        "replay s",
        "cpu s",
        "reads",
        "all s",
        "times"
    );
    let mut budget = Budget::new(args.minutes);
    for records in &args.records {
        for (n, kind) in args.kinds.iter().enumerate() {
            if fits(&args.dir, *kind, *records)? {
                let share = budget.left() / u32::try_from(args.kinds.len() - n).unwrap_or(1);
                rows(args, *kind, *records, (&mut budget, share))?;
            }
        }
    }
    if !budget.left_out.is_empty() {
        let (minutes, all) = (args.minutes, budget.left_out.join(", "));
        println!("left out, for all was to end after {minutes} minutes (--minutes): {all}");
    }
    Ok(())
}
