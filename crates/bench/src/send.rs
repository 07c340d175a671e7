//! `cenote-bench send`: send streams of a snapshot, and receiving them, beside the raw device file and OpenZFS's own
//! engine.
//!
//! A pool is made here: one file of `--size` MiB whose blocks of 128 KiB compress to a half (lz4), a snapshot, then
//! one block in a hundred overwritten at random, and another snapshot, then `--files` files of 4 KiB, and a third one.
//! Full streams and those between the snapshots
//! are written to `/dev/null`, compressed as on disk (`-c`) and not. Each row begins with a fresh import and nothing of
//! the device in the page cache (where the directory is in memory, tmpfs, the page cache *is* the device).
//!
//! The raw row reads as many bytes of the device file as the compressed stream has, 1 MiB at a time, and writes them to
//! `/dev/null`. The peer makes the same streams of the same pool (`dmu_send_obj`), and only counts their bytes.
//!
//! Then the streams are received: see [`crate::receive`].

use crate::measure::{Run, forget, measure, medians};
use crate::mounted::make_image;
use crate::noise::Noise;
use crate::{read, receive, write};
use anyhow::{Context, bail};
use cenote_dsl::Dataset;
use cenote_dsl::send::SendOptions;
use cenote_dsl::write::snapshot::snapshot;
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_pool::Pool;
use cenote_zpl::{FileSystem, NodeKind};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BLOCK: usize = 128 << 10;
pub const ARC: u64 = 256 << 20;
/// One block in so many is overwritten between the snapshots.
const CHANGED: u64 = 100;
/// Bytes of a small file.
const SMALL: usize = 4 << 10;
/// Small files in a directory.
const PER_DIRECTORY: usize = 1000;
pub const POOL: &str = "benchwrite";
const RAW: &str = "raw read";

/// What `send` runs on.
#[derive(clap::Args)]
pub struct SendArgs {
    /// Directory for the device files and the streams: seven times --size, and a little.
    #[arg(long, default_value = "/var/tmp/cenote-bench")]
    pub dir: PathBuf,
    /// MiB of the file that is sent.
    #[arg(long, default_value_t = 1024)]
    pub size: u64,
    /// Number of small files that are sent.
    #[arg(long, default_value_t = 20_000)]
    pub files: usize,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 3)]
    pub runs: usize,
    /// The peer's program.
    #[arg(long)]
    pub peer: Option<PathBuf>,
}

impl SendArgs {
    /// Bytes that a device file needs.
    pub fn image_bytes(&self) -> u64 {
        (self.size << 20) * 3 / 2 + (512 << 20) + self.files as u64 * (16 << 10)
    }
}

/// A stream.
#[derive(Clone, Copy)]
pub struct Stream {
    /// Name of its row.
    pub row: &'static str,
    from: Option<&'static str>,
    to: &'static str,
    pub compressed: bool,
}

impl Stream {
    const fn new(
        row: &'static str,
        (from, to): (Option<&'static str>, &'static str),
        compressed: bool,
    ) -> Stream {
        Stream { row, from, to, compressed }
    }

    /// The file that keeps it.
    pub fn file(&self, args: &SendArgs) -> PathBuf {
        args.dir.join(format!("{}.stream", self.row.replace(' ', "-")))
    }

    /// Writes it.
    fn write(&self, pool: &Pool, out: &mut dyn Write) -> anyhow::Result<()> {
        let to = find(pool, self.to)?;
        let from = self.from.map(|from| find(pool, from)).transpose()?;
        let options = SendOptions {
            large_blocks: true,
            embedded: true,
            compressed: self.compressed,
            pool_embeds: pool.features().is_active("embedded_data"),
            pool_has_lz4: true,
            ..SendOptions::default()
        };
        Ok(pool.dsl().send(&to, from.as_ref(), options, out)?)
    }
}

const FULL: (Option<&str>, &str) = (None, "one");
const CHANGES: (Option<&str>, &str) = (Some("one"), "two");
const FILES: (Option<&str>, &str) = (Some("two"), "three");
pub const STREAMS: [Stream; 6] = [
    Stream::new("full", FULL, false),
    Stream::new("full, compressed", FULL, true),
    Stream::new("1% changed", CHANGES, false),
    Stream::new("1% changed, compressed", CHANGES, true),
    Stream::new("small files", FILES, false),
    Stream::new("small files, compressed", FILES, true),
];

/// Runs everything and prints the tables.
pub fn run(args: &SendArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    let image = args.dir.join("send.img");
    make_image(&image, args.image_bytes())?;
    eprintln!("a pool with {} MiB ...", args.size);
    make(args, &image)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for i in 0..args.runs {
        eprintln!("run {} of {} ...", i + 1, args.runs);
        let rows = our_rows(args, &image)?;
        let packed = rows.iter().find(|run| run.row == "full, compressed").map_or(0, |r| r.bytes);
        ours.push(raw(&image, packed)?);
        ours.extend(rows);
        if let Some(program) = &args.peer {
            theirs.extend(peer(program, args)?);
        }
    }
    println!("send");
    print(&medians(&ours), &medians(&theirs));
    keep(args)?;
    fs::remove_file(&image)?;
    let (ours, theirs) = receive::run(args)?;
    println!("\nreceive");
    print(&medians(&ours), &medians(&theirs));
    Ok(())
}

/// Writes each stream to its file.
fn keep(args: &SendArgs) -> anyhow::Result<()> {
    let pool = read::import(&args.dir, POOL, ARC)?;
    STREAMS.iter().try_for_each(|s| s.write(&pool, &mut File::create(s.file(args))?))
}

fn print(ours: &[Run], theirs: &[Run]) {
    println!(
        "{:<24} {:>9} {:>9} {:>9} {:>10} {:>12} {:>10}",
        "row", "MiB", "seconds", "MiB/s", "cpu s", "libzpool s", "its cpu s"
    );
    for run in ours {
        let mib = run.bytes as f64 / f64::from(1 << 20);
        let peer = theirs.iter().find(|their| their.row == run.row);
        let of = |value: Option<f64>| value.map_or("-".into(), |v| format!("{v:.3}"));
        println!(
            "{:<24} {mib:>9.1} {:>9.3} {:>9.0} {:>10.3} {:>12} {:>10}",
            run.row,
            run.seconds,
            mib / run.seconds.max(1e-9),
            run.cpu_seconds,
            of(peer.map(|p| p.seconds)),
            of(peer.map(|p| p.cpu_seconds)),
        );
    }
}

fn take(engine: &Engine, name: &'static str) -> anyhow::Result<()> {
    let head = engine.pool().dsl().root()?.ds_obj;
    engine.sync_task(move |context| snapshot(&mut context.tx, head, name).map(|_| ()))?;
    Ok(())
}

fn make(args: &SendArgs, image: &Path) -> anyhow::Result<()> {
    let engine = write::create(image.into(), Compression::Lz4, ARC, &[], EngineOptions::default())?;
    let fs = write::open(&engine, BLOCK as u64)?;
    let mut contents = Contents::new(args);
    let ino = fs.create(fs.root(), b"file", &write::node(NodeKind::File))?.ino;
    contents.file(|at, block| Ok(fs.write(ino, at, block, false).map(|_| ())?))?;
    engine.sync()?;
    take(&engine, "one")?;
    contents.changes(&fs, ino)?;
    engine.sync()?;
    take(&engine, "two")?;
    contents.small_files(&fs)?;
    engine.sync()?;
    take(&engine, "three")?;
    drop(fs);
    Ok(engine.export(false)?)
}

/// What is in the snapshots, one after another.
pub struct Contents {
    noise: Noise,
    block: Vec<u8>,
    /// Blocks of the large file.
    blocks: u64,
    files: usize,
}

impl Contents {
    pub fn new(args: &SendArgs) -> Contents {
        let (mut noise, mut block) = (Noise(1), vec![0; BLOCK]);
        noise.fill(&mut block[..BLOCK / 2]);
        Contents { noise, block, blocks: (args.size << 20) / BLOCK as u64, files: args.files }
    }

    /// The blocks of the large file.
    pub fn file(
        &mut self,
        mut put: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for i in 0..self.blocks {
            self.block[..8].copy_from_slice(&(i + 1).to_le_bytes());
            put(i * BLOCK as u64, &self.block)?;
        }
        Ok(())
    }

    /// Overwrites one block in [`CHANGED`]; returns how many.
    pub fn changes(&mut self, fs: &FileSystem, ino: u64) -> anyhow::Result<u64> {
        for _ in 0..self.blocks / CHANGED {
            self.block[..8].copy_from_slice(&self.noise.next().to_le_bytes());
            let at = self.noise.next() % self.blocks * BLOCK as u64;
            fs.write(ino, at, &self.block, false)?;
        }
        Ok(self.blocks / CHANGED)
    }

    /// Makes the small files; returns how many.
    pub fn small_files(&mut self, fs: &FileSystem) -> anyhow::Result<u64> {
        let mut dir = fs.root();
        for i in 0..self.files {
            if i % PER_DIRECTORY == 0 {
                let name = format!("d{}", i / PER_DIRECTORY);
                dir = fs.create(fs.root(), name.as_bytes(), &write::node(NodeKind::Dir))?.ino;
            }
            let name = format!("f{i}");
            let file = fs.create(dir, name.as_bytes(), &write::node(NodeKind::File))?;
            self.block[..8].copy_from_slice(&(i as u64).to_le_bytes());
            fs.write(file.ino, 0, &self.block[..SMALL], false)?;
        }
        Ok(self.files as u64)
    }
}

fn find(pool: &Pool, short: &str) -> anyhow::Result<Dataset> {
    let name = format!("{POOL}@{short}");
    pool.dsl().find(&name)?.with_context(|| format!("no {name}"))
}

fn our_rows(args: &SendArgs, image: &Path) -> anyhow::Result<Vec<Run>> {
    let row = |stream: &Stream| {
        let pool = read::import(&args.dir, POOL, ARC)?;
        // Both are known, as their numbers are to the peer.
        stream.from.map_or(Ok(()), |from| find(&pool, from).map(drop))?;
        find(&pool, stream.to)?;
        forget(image)?;
        let mut out = Counted(File::options().write(true).open("/dev/null")?, 0);
        measure(stream.row, || {
            stream.write(&pool, &mut out)?;
            Ok((out.1, 1))
        })
    };
    STREAMS.iter().map(row).collect()
}

/// Counts what is written.
struct Counted(File, u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.0.write(bytes)?;
        self.1 += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

fn raw(image: &Path, bytes: u64) -> anyhow::Result<Run> {
    forget(image)?;
    let (file, mut out) = (File::open(image)?, File::options().write(true).open("/dev/null")?);
    let mut buf = vec![0; 1 << 20];
    measure(RAW, || {
        let mut at = 0;
        while at < bytes {
            file.read_exact_at(&mut buf, at + (4 << 20))?;
            out.write_all(&buf)?;
            at += buf.len() as u64;
        }
        Ok((at, 1))
    })
}

fn peer(program: &Path, args: &SendArgs) -> anyhow::Result<Vec<Run>> {
    let pool = read::import(&args.dir, POOL, ARC)?;
    let mut command = Command::new(program);
    command.arg("send").arg(&args.dir).arg(POOL);
    for stream in STREAMS {
        let to = find(&pool, stream.to)?.ds_obj;
        let from = stream.from.map_or(Ok(0), |from| find(&pool, from).map(|d| d.ds_obj))?;
        command.args([to.to_string(), from.to_string(), u8::from(stream.compressed).to_string()]);
        command.arg(stream.row);
    }
    peer_rows(command)
}

/// Runs the peer, which prints a line for each row.
pub fn peer_rows(mut command: Command) -> anyhow::Result<Vec<Run>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command.output().with_context(|| format!("running {program}"))?;
    if !out.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let lines = String::from_utf8(out.stdout)?;
    let rows = lines.lines().filter(|line| line.starts_with('{'));
    rows.map(|l| serde_json::from_str(l).with_context(|| format!("peer's line {l:?}"))).collect()
}
