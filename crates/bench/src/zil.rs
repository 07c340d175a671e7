//! `cenote-bench zil`: synchronous writes of 4 KiB, by 1, 4 and 16 threads.
//!
//! Each thread overwrites blocks of a file of its own, at random, and waits after each write until it is
//! stable. Through the library that is a commit of the intent log. The raw row has each thread write to a
//! file of its own in the same directory, and `fdatasync` it: on a file system in memory that costs next to
//! nothing, on a disk it is what the device and the host's file system take. With `--at NAME=DIR` the same is
//! done in other directories, such as file systems that are mounted there (`scripts/bench-zil.sh` mounts
//! cenote, ext4 and btrfs on files of the same storage).
//!
//! With `--peer` OpenZFS's own engine makes a pool on a file in the same directory and does the same
//! (`peer/zil.c`). It is the packaged one, with its assertions, so the known figures of a newer one
//! without them are printed beside it ([`KNOWN`]).

use crate::mounted::make_image;
use crate::noise::Noise;
use crate::write;
use anyhow::{Context, ensure};
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_zpl::{FileSystem, NodeKind};
use serde::Deserialize;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of a write.
const WRITE: usize = 4 << 10;
/// Bytes of the device file.
const DEVICE: u64 = 1 << 30;
const ARC: u64 = 256 << 20;
/// What libzpool 2.4.4 without assertions took on another machine, the pool on a tmpfs: threads, median in
/// microseconds, writes a second.
const KNOWN: [(usize, f64, f64); 2] = [(1, 74.0, 11_900.0), (4, f64::NAN, 16_900.0)];

/// What `zil` runs on.
#[derive(clap::Args)]
pub struct ZilArgs {
    /// Directory for the device file.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
    threads: Vec<usize>,
    /// Seconds of each row.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// MiB of each thread's file.
    #[arg(long, default_value_t = 4)]
    size: u64,
    /// Further directories in which files are written and synced, as NAME=DIR.
    #[arg(long)]
    at: Vec<String>,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
}

/// A row that the peer prints.
#[derive(Deserialize)]
struct PeerRow {
    p50: f64,
    p99: f64,
    rate: f64,
}

/// What a row took.
struct Row {
    /// Each write, in ascending order.
    latencies: Vec<Duration>,
    seconds: f64,
}

impl Row {
    fn percentile(&self, percent: usize) -> f64 {
        let at = self.latencies.len() * percent / 100;
        self.latencies.get(at).map_or(0.0, |t| t.as_secs_f64() * 1e6)
    }
}

/// Has `threads` threads write until the time is over. `write` is given the thread, the offset and the block.
fn row(
    args: &ZilArgs,
    threads: usize,
    write: impl Fn(usize, u64, &[u8]) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Row> {
    let began = Instant::now();
    let end = began + Duration::from_secs(args.seconds);
    let one = |thread: usize| -> anyhow::Result<Vec<Duration>> {
        let (mut noise, mut block) = (Noise(thread as u64 + 1), vec![0; WRITE]);
        noise.fill(&mut block);
        let mut latencies = Vec::new();
        while Instant::now() < end {
            let at = noise.next() % ((args.size << 20) / WRITE as u64) * WRITE as u64;
            block[..8].copy_from_slice(&noise.next().to_le_bytes());
            let begun = Instant::now();
            write(thread, at, &block)?;
            latencies.push(begun.elapsed());
        }
        Ok(latencies)
    };
    let mut latencies = std::thread::scope(|scope| {
        let one = &one;
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        let mut latencies = Vec::new();
        for thread in all {
            latencies.extend(thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??);
        }
        anyhow::Ok(latencies)
    })?;
    latencies.sort_unstable();
    Ok(Row { latencies, seconds: began.elapsed().as_secs_f64() })
}

fn print(name: &str, threads: usize, row: &Row) {
    let rate = row.latencies.len() as f64 / row.seconds;
    print_figures(name, threads, [row.percentile(50), row.percentile(99), rate]);
}

fn print_figures(name: &str, threads: usize, [p50, p99, rate]: [f64; 3]) {
    let cell = |figure: f64| if figure.is_nan() { "-".into() } else { format!("{figure:.0}") };
    let [p50, p99, rate] = [p50, p99, rate].map(cell);
    println!("{name:<22} {threads:>7} {p50:>9} {p99:>9} {rate:>12}");
}

/// What OpenZFS's own engine takes.
fn peer(args: &ZilArgs, peer: &Path, threads: usize) -> anyhow::Result<()> {
    let image = args.dir.join("peer");
    let mut command = Command::new(peer);
    command.arg("zil").arg(&image);
    command.args([args.seconds, args.size, threads as u64].map(|n| n.to_string()));
    let out = command.output().with_context(|| peer.display().to_string())?;
    fs::remove_file(&image).or_else(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    })?;
    ensure!(out.status.success(), "{}: {}", peer.display(), String::from_utf8_lossy(&out.stderr));
    let row: PeerRow = serde_json::from_slice(&out.stdout)?;
    print_figures("libzpool (packaged)", threads, [row.p50, row.p99, row.rate]);
    for (_, p50, rate) in KNOWN.iter().filter(|(known, ..)| *known == threads) {
        print_figures("known of 2.4.4, tmpfs", threads, [*p50, f64::NAN, *rate]);
    }
    Ok(())
}

fn library(args: &ZilArgs, engine: &Engine, threads: usize) -> anyhow::Result<Row> {
    let fs: &FileSystem = &*write::open(engine, 128 << 10)?;
    let whole = vec![1; 1 << 20];
    let mut files = Vec::new();
    for thread in 0..threads {
        let name = format!("{threads}.{thread}");
        let ino = fs.create(fs.root(), name.as_bytes(), &write::node(NodeKind::File))?.ino;
        for at in 0..args.size {
            fs.write(ino, at << 20, &whole, false)?;
        }
        files.push(ino);
    }
    engine.sync()?;
    let id = fs.objset().id();
    row(args, threads, |thread, at, block| {
        fs.write(files[thread], at, block, false)?;
        Ok(engine.commit(id)?)
    })
}

fn raw(args: &ZilArgs, dir: &Path, threads: usize) -> anyhow::Result<Row> {
    let path = |thread: usize| dir.join(format!("raw{thread}"));
    let mut files = Vec::new();
    for thread in 0..threads {
        let file = File::create(path(thread))?;
        for at in 0..args.size {
            file.write_all_at(&vec![1; 1 << 20], at << 20)?;
        }
        file.sync_all()?;
        files.push(file);
    }
    let done = row(args, threads, |thread, at, block| {
        files[thread].write_all_at(block, at)?;
        Ok(files[thread].sync_data()?)
    });
    for thread in 0..threads {
        fs::remove_file(path(thread))?;
    }
    done
}

/// Runs all rows.
pub fn run(args: &ZilArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    println!("{:<22} {:>7} {:>9} {:>9} {:>12}", "row", "threads", "p50 us", "p99 us", "writes/s");
    for threads in &args.threads {
        print("file, fdatasync", *threads, &raw(args, &args.dir, *threads)?);
        for at in &args.at {
            let (name, dir) = at.split_once('=').context("--at is NAME=DIR")?;
            print(&format!("{name}, mounted"), *threads, &raw(args, Path::new(dir), *threads)?);
        }
        let path = args.dir.join("zil");
        make_image(&path, DEVICE)?;
        let options = EngineOptions::default();
        let engine = write::create(path.clone(), Compression::Off, ARC, &[], options)?;
        print("cenote, library", *threads, &library(args, &engine, *threads)?);
        engine.export(false)?;
        fs::remove_file(&path)?;
        match &args.peer {
            Some(program) => peer(args, program, *threads)?,
            None => println!("libzpool: no --peer, no row"),
        }
    }
    Ok(())
}
