//! `cenote-bench send`: send streams of a snapshot, beside the raw device file and OpenZFS's own engine.
//!
//! A pool is made here: one file of `--size` MiB whose blocks of 128 KiB compress to a half (lz4), a snapshot, then
//! one block in a hundred overwritten at random, and another snapshot. Full streams and the one between the snapshots
//! are written to `/dev/null`, compressed as on disk (`-c`) and not. Each row begins with a fresh import and nothing of
//! the device in the page cache (where the directory is in memory, tmpfs, the page cache *is* the device).
//!
//! The raw row reads as many bytes of the device file as the compressed stream has, 1 MiB at a time, and writes them to
//! `/dev/null`. The peer makes the same streams of the same pool (`dmu_send_obj`), and only counts their bytes.

use crate::measure::{Run, forget, measure, medians};
use crate::mounted::make_image;
use crate::noise::Noise;
use crate::{read, write};
use anyhow::{Context, bail};
use cenote_dsl::Dataset;
use cenote_dsl::send::SendOptions;
use cenote_dsl::write::snapshot::snapshot;
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_pool::Pool;
use cenote_zpl::NodeKind;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BLOCK: usize = 128 << 10;
const ARC: u64 = 256 << 20;
/// One block in so many is overwritten between the snapshots.
const CHANGED: u64 = 100;
const POOL: &str = "benchwrite";
const RAW: &str = "raw read";

/// What `send` runs on.
#[derive(clap::Args)]
pub struct SendArgs {
    /// Directory for the pool's device file: --size, and a little.
    #[arg(long, default_value = "/var/tmp/cenote-bench")]
    dir: PathBuf,
    /// MiB of the file that is sent.
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
}

/// A stream: name of its row, whether it starts from the first snapshot, whether it is compressed.
const STREAMS: [(&str, bool, bool); 4] = [
    ("full", false, false),
    ("full, compressed", false, true),
    ("1% changed", true, false),
    ("1% changed, compressed", true, true),
];

/// Runs everything and prints the table.
pub fn run(args: &SendArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    let image = args.dir.join("send.img");
    make_image(&image, (args.size << 20) * 3 / 2 + (512 << 20))?;
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
    fs::remove_file(&image)?;
    print(&medians(&ours), &medians(&theirs));
    Ok(())
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
    let file = fs.create(fs.root(), b"file", &write::node(NodeKind::File))?;
    let (mut noise, mut block) = (Noise(1), vec![0; BLOCK]);
    noise.fill(&mut block[..BLOCK / 2]);
    let blocks = (args.size << 20) / BLOCK as u64;
    for i in 0..blocks {
        block[..8].copy_from_slice(&(i + 1).to_le_bytes());
        fs.write(file.ino, i * BLOCK as u64, &block, false)?;
    }
    engine.sync()?;
    take(&engine, "one")?;
    for _ in 0..blocks / CHANGED {
        block[..8].copy_from_slice(&noise.next().to_le_bytes());
        fs.write(file.ino, noise.next() % blocks * BLOCK as u64, &block, false)?;
    }
    engine.sync()?;
    take(&engine, "two")?;
    drop(fs);
    Ok(engine.export(false)?)
}

fn find(pool: &Pool, short: &str) -> anyhow::Result<Dataset> {
    let name = format!("{POOL}@{short}");
    pool.dsl().find(&name)?.with_context(|| format!("no {name}"))
}

fn our_rows(args: &SendArgs, image: &Path) -> anyhow::Result<Vec<Run>> {
    STREAMS
        .iter()
        .map(|(row, incremental, compressed)| {
            let pool = read::import(&args.dir, POOL, ARC)?;
            let (one, two) = (find(&pool, "one")?, find(&pool, "two")?);
            let options = SendOptions {
                large_blocks: true,
                embedded: true,
                compressed: *compressed,
                pool_embeds: pool.features().is_active("embedded_data"),
                pool_has_lz4: true,
                ..SendOptions::default()
            };
            forget(image)?;
            let mut out = Counted(File::options().write(true).open("/dev/null")?, 0);
            measure(row, || {
                let from = incremental.then_some(&one);
                pool.dsl().send(&two, from, options, &mut out)?;
                Ok((out.1, 1))
            })
        })
        .collect()
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
    let (one, two) = (find(&pool, "one")?.ds_obj, find(&pool, "two")?.ds_obj);
    let mut command = Command::new(program);
    command.arg("send").arg(&args.dir).arg(POOL);
    for (row, incremental, compressed) in STREAMS {
        let from = if incremental { one } else { 0 };
        command.args([two.to_string(), from.to_string(), u8::from(compressed).to_string()]);
        command.arg(row);
    }
    let out = command.output().with_context(|| format!("running {}", program.display()))?;
    if !out.status.success() {
        bail!("{} failed: {}", program.display(), String::from_utf8_lossy(&out.stderr));
    }
    let lines = String::from_utf8(out.stdout)?;
    let rows = lines.lines().filter(|line| line.starts_with('{'));
    rows.map(|l| serde_json::from_str(l).with_context(|| format!("peer's line {l:?}"))).collect()
}
