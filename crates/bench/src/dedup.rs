//! `cenote-bench dedup`: writes of blocks that are all different, deduplicated, beside OpenZFS's own engine.
//!
//! Every such block has its table looked up in vain, and an entry added: what deduplication costs where it saves nothing. The cache is
//! small, so that in the end the table is about ten times as large. Blocks are written up to a tenth, up to a third and to the end,
//! each until it is on disk, so that a cost that grows with the table shows; then the last tenth is freed.
//!
//! The peer has the tables that it knows, those of the first kind (`peer/dedup.c`); here both kinds are measured. Either has the same bytes
//! of cache and of changes that wait, and here the logs of a table may take a quarter of the cache beside it. Reads are those of the
//! device file, which the page cache of the host may have. `zdb` of OpenZFS judges the pool with a table of the first kind
//! (`--judge`).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use cenote_dsl::write::props::{self, NewValue, Target};
use cenote_engine::{Engine, EngineOptions};
use cenote_format::checksum::Checksum;
use cenote_format::compress::Compression;
use cenote_pool::ddt_stats;
use cenote_zpl::{FileSystem, NodeKind};
use serde::{Deserialize, Serialize};

use crate::measure::measure;
use crate::noise::Noise;
use crate::write::{create_on, node, open};
use cenote_engine::create::{Redundancy, VdevSpec};

/// Bytes of one write.
const WRITE: u64 = 128 << 10;
/// What a block takes on the device besides its bytes, at most: of the tables as they are rewritten, of indirect blocks.
const BESIDE: u64 = 1500;

/// What `dedup` runs on.
#[derive(clap::Args)]
pub struct DedupArgs {
    /// Directory for the device files, one at a time.
    #[arg(long, default_value = "/var/tmp/cenote-bench")]
    dir: PathBuf,
    /// Number of blocks.
    #[arg(long, default_value_t = 10_000_000)]
    blocks: u64,
    /// Bytes of a block: a power of two.
    #[arg(long, default_value_t = 4096)]
    block_size: u64,
    /// MiB of each engine's cache: 64 at least, as the peer takes no less. The default is about a tenth of what the table takes.
    #[arg(long)]
    cache: Option<u64>,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Has `zdb -bcc` judge the pool whose table is of the first kind.
    #[arg(long)]
    judge: bool,
}

/// A part of a run; also what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Phase {
    row: String,
    blocks: u64,
    seconds: f64,
    cpu_seconds: f64,
    reads: u64,
    entries: u64,
    table_bytes: u64,
}

impl DedupArgs {
    /// MiB of the cache. An entry takes about 200 bytes in the table.
    fn cache(&self) -> u64 {
        self.cache.unwrap_or(((self.blocks * 20) >> 20).max(64))
    }

    /// MiB of changes that wait.
    fn dirty(&self) -> u64 {
        (self.cache() / 2).max(32)
    }

    /// A device file, of which nothing is there yet.
    fn image(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(name);
        let bytes = self.blocks * (self.block_size * 5 / 4 + BESIDE) + (1 << 30);
        File::create(&path)?.set_len(bytes)?;
        Ok(path)
    }
}

/// Runs all and prints the table.
pub fn run(args: &DedupArgs) -> anyhow::Result<()> {
    ensure!(args.block_size.is_power_of_two() && args.block_size >= 512, "--block-size");
    ensure!(args.blocks >= 30 && args.cache() >= 64, "--blocks, --cache");
    fs::create_dir_all(&args.dir)?;
    println!(
        "{} blocks of {} bytes, {} MiB of cache, {} MiB of changes",
        args.blocks,
        args.block_size,
        args.cache(),
        args.dirty()
    );
    println!(
        "{:<20} {:<18} {:>10} {:>11} {:>9} {:>12} {:>8} {:>10}",
        "engine", "row", "blocks", "blocks/s", "cpu us", "reads/block", "entry B", "table MiB"
    );
    let theirs = args.peer.as_ref().map(|program| peer(args, program)).transpose()?;
    print("libzpool", theirs.iter().flatten(), None);
    for (name, fast) in [("cenote, first kind", false), ("cenote, fast", true)] {
        print(name, ours(args, fast)?.iter(), theirs.as_deref());
    }
    Ok(())
}

fn print<'a>(name: &str, phases: impl Iterator<Item = &'a Phase>, beside: Option<&[Phase]>) {
    for phase in phases {
        let rate = |phase: &Phase| phase.blocks as f64 / phase.seconds;
        let other = beside.and_then(|all| all.iter().find(|other| other.row == phase.row));
        let times = other.map(|o| format!("  {:.2} times", rate(phase) / rate(o)));
        println!(
            "{name:<20} {:<18} {:>10} {:>11.0} {:>9.2} {:>12.3} {:>8} {:>10}{}",
            phase.row,
            phase.blocks,
            rate(phase),
            phase.cpu_seconds * 1e6 / phase.blocks as f64,
            phase.reads as f64 / phase.blocks as f64,
            phase.table_bytes / phase.entries.max(1),
            phase.table_bytes >> 20,
            times.unwrap_or_default()
        );
    }
}

fn peer(args: &DedupArgs, program: &Path) -> anyhow::Result<Vec<Phase>> {
    let image = args.image("peer.img")?;
    let mut command = Command::new(program);
    command.arg("dedup").arg(&image);
    let numbers = [args.blocks, args.block_size, args.cache(), args.dirty()];
    let out = command.args(numbers.map(|n| n.to_string())).output();
    let out = out.with_context(|| program.display().to_string())?;
    fs::remove_file(&image)?;
    ensure!(
        out.status.success(),
        "{}: {}",
        program.display(),
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout)?;
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).with_context(|| line.to_string())).collect()
}

/// A pool that deduplicates.
fn pool(args: &DedupArgs, image: &Path, fast: bool) -> anyhow::Result<Arc<Engine>> {
    let (cache, dirty) = (args.cache() << 20, args.dirty() << 20);
    let tunable = cenote_engine::tunables::find("zfs_dedup_log_mem_max").context("no tunable")?;
    tunable.set(cache / 4)?;
    let timeout = Some(Duration::from_secs(5));
    let options =
        EngineOptions { dirty_max: Some(dirty), txg_timeout: timeout, ..EngineOptions::default() };
    let features = [("fast_dedup".to_string(), fast)];
    let spec = VdevSpec::new(Redundancy::Single, vec![image.to_path_buf()]);
    let engine = create_on(spec, Compression::Off, cache, &features, options)?;
    let dir = engine.pool().dsl().root()?.dir_obj;
    let value = NewValue::Number(Checksum::Sha256 as u64);
    engine.sync_task(move |context| {
        props::set(&mut context.tx, Target::Dir(dir), "dedup", &value)?;
        Ok(())
    })?;
    Ok(engine)
}

fn reads(engine: &Engine) -> u64 {
    let pool = engine.pool();
    pool.store().vdevs().leaves().iter().map(|leaf| leaf.io_stats().0).sum()
}

fn phase(
    engine: &Engine,
    row: &str,
    blocks: u64,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Phase> {
    let before = reads(engine);
    let run = measure(row, || work().map(|()| (0, blocks)))?;
    let reads = reads(engine) - before;
    let table = ddt_stats::all(&engine.pool())?.0;
    Ok(Phase {
        row: row.into(),
        blocks,
        seconds: run.seconds,
        cpu_seconds: run.cpu_seconds,
        reads,
        entries: table.entries,
        table_bytes: table.on_disk,
    })
}

fn write(fs: &FileSystem, ino: u64, (first, end): (u64, u64), size: u64) -> anyhow::Result<()> {
    let at_once = (WRITE / size).max(1);
    let mut data = vec![0; (at_once * size) as usize];
    Noise(1).fill(&mut data);
    let mut at = first;
    while at < end {
        let count = at_once.min(end - at);
        let part = &mut data[..(count * size) as usize];
        for (block, number) in part.chunks_exact_mut(size as usize).zip(at + 1..) {
            block[..8].copy_from_slice(&number.to_le_bytes());
        }
        fs.write(ino, at * size, part, false)?;
        at += count;
    }
    Ok(())
}

fn ours(args: &DedupArgs, fast: bool) -> anyhow::Result<Vec<Phase>> {
    let image = args.image("dedup.img")?;
    let engine = pool(args, &image, fast)?;
    let fs = open(&engine, args.block_size)?;
    let ino = fs.create(fs.root(), b"blocks", &node(NodeKind::File))?.ino;
    engine.sync()?;
    let (blocks, size) = (args.blocks, args.block_size);
    let (mut phases, mut first) = (Vec::new(), 0);
    for (row, end) in [("to a tenth", blocks / 10), ("to a third", blocks / 3), ("to all", blocks)]
    {
        phases.push(phase(&engine, row, end - first, || {
            write(&fs, ino, (first, end), size)?;
            Ok(engine.sync()?)
        })?);
        first = end;
    }
    let kept = blocks - blocks / 10;
    phases.push(phase(&engine, "frees of a tenth", blocks - kept, || {
        let size = Some(kept * size);
        fs.setattr(ino, &cenote_zpl::SetAttr { size, ..Default::default() })?;
        fs.finish_freeing();
        for _ in 0..3 {
            engine.sync()?;
        }
        Ok(())
    })?);
    drop(fs);
    engine.export(false)?;
    drop(engine);
    if args.judge && !fast {
        let mut zdb = Command::new("zdb");
        zdb.args(["-e", "-p"]).arg(&args.dir).args(["-bcc", "benchwrite"]);
        let out = zdb.output().context("zdb")?;
        ensure!(out.status.success(), "zdb: {}", String::from_utf8_lossy(&out.stdout));
    }
    fs::remove_file(&image)?;
    Ok(phases)
}
