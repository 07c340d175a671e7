//! `cenote-bench spacemap`: what transaction groups cost in a pool that has aged, with log space maps
//! and without, beside OpenZFS's own engine doing the same.
//!
//! Each of the four (ours and libzpool's, on and off) is a process of its own with a pool of its own
//! on a file in the same directory. It fills the pool with objects of 8 KiB blocks, overwrites most of
//! them at random, so that free space is scattered over all metaslabs, and then overwrites so many
//! MiB at random in each of some transaction groups, waiting for each. The numbers drawn are the same
//! everywhere, and so is the order of the work. It prints one line of JSON ([`Measured`]) per
//! amount, and lines `at DONE OF` (blocks written) from which the [`progress`] is shown. OpenZFS's
//! `zdb` judges our pools in the end. All of that is done a few times by turns, since machines are now
//! faster and now slower; of each row the run with the median time is shown.
//!
//! The time of a sync begins when the group is closed (`spa_sync` is called) and ends when it is on
//! disk and all is seen to. The first pass ends where the second begins: at its call of
//! `dsl_pool_sync`, or at the end of our first pass over the MOS. The last pass ends where labels and
//! uberblocks begin. So there are two shares of the first pass, in the passes and in the whole.

mod ours;
mod progress;
mod report;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
pub use ours::check;
use progress::Progress;
use serde::{Deserialize, Serialize};

use crate::measure::medians_by;
use crate::mounted::make_image;

/// What `spacemap` runs on.
#[derive(clap::Args)]
pub struct SpaceMapArgs {
    #[command(flatten)]
    work: Work,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Do not have `zdb` judge the pools.
    #[arg(long)]
    no_check: bool,
    /// Only with log space maps.
    #[arg(long)]
    only_logs: bool,
    /// Times that everything is done, by turns.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// What `spacemap-ours` runs on.
#[derive(clap::Args)]
pub struct OursArgs {
    #[command(flatten)]
    work: Work,
    /// Whether the pool has log space maps.
    #[arg(long)]
    logs: bool,
}

/// The work of each process.
#[derive(clap::Args, Clone)]
struct Work {
    /// Directory for the pools' device files; there is one at a time.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// MiB of the pool, which is cut into about 256 metaslabs, of 16 MiB at least.
    #[arg(long, default_value_t = 8192)]
    size: u64,
    /// Percent of the pool that is filled with data.
    #[arg(long, default_value_t = 65)]
    fill: u64,
    /// Percent of the data that is overwritten before anything is measured.
    #[arg(long, default_value_t = 60)]
    age: u64,
    /// Transaction groups that are measured.
    #[arg(long, default_value_t = 30)]
    txgs: u64,
    /// MiB of each engine's cache.
    #[arg(long, default_value_t = 1024)]
    cache: u64,
    /// MiB that are overwritten in a transaction group.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 32])]
    dirty: Vec<u64>,
}

/// Blocks that go to the devices, before aggregation, and their bytes in all copies. The peer counts a
/// block once for each copy.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Io {
    ios: u64,
    bytes: u64,
}

/// Written blocks by kind.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Blocks {
    data: Io,
    /// What is known apart from the others.
    indirect: Option<Io>,
    space_map: Io,
    other: Io,
}

/// What one process measured with one amount of dirty data; also what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measured {
    /// With log space maps.
    logs: bool,
    /// Bytes overwritten in a transaction group.
    dirty: u64,
    txgs: u64,
    overwrites: u64,
    seconds: f64,
    /// User and system time of all threads.
    cpu_seconds: f64,
    /// Time in which groups were written, and in which their first passes were.
    sync_seconds: f64,
    first_pass_seconds: f64,
    /// Time in which all passes of the groups were.
    passes_seconds: f64,
    /// Of the time in which groups were written: comparing figures that are known from two sides before the uberblock. Not known of libzpool.
    #[serde(default)]
    compared_seconds: Option<f64>,
    passes: u64,
    blocks: Blocks,
    /// After aggregation.
    device_writes: u64,
    device_bytes: u64,
    /// Of the device writes those that carry data.
    data_writes: Option<u64>,
    /// Most memory that the process ever had, in bytes.
    memory: u64,
    metaslabs: u64,
    /// Metaslabs that have a space map.
    touched: u64,
    /// Share of the space that is allocated.
    full: f64,
}

/// The rows of one engine.
struct Side {
    name: &'static str,
    rows: Vec<Measured>,
}

/// Runs everything and prints the table.
pub fn run(args: &SpaceMapArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.work.dir)?;
    let mut sides = vec![Side { name: "cenote", rows: Vec::new() }];
    if args.peer.is_some() {
        sides.push(Side { name: "libzpool", rows: Vec::new() });
    }
    ensure!(args.runs > 0, "--runs 0: there is nothing to be done");
    for n in 1..=args.runs {
        run_once(args, &mut sides, &format!("run {n} of {}", args.runs))?;
    }
    for side in &mut sides {
        side.rows = medians_by(&side.rows, |row| (row.dirty, row.logs), |row| row.seconds);
    }
    report::print(&sides, args.runs);
    Ok(())
}

/// Runs everything once and adds the rows.
fn run_once(args: &SpaceMapArgs, sides: &mut [Side], which: &str) -> anyhow::Result<()> {
    let image = args.work.dir.join("spacemap.img");
    for logs in [true, false].into_iter().filter(|logs| *logs || !args.only_logs) {
        for side in &mut *sides {
            let state = if logs { "on" } else { "off" };
            let name = format!("{which}: {}, log space maps {state}", side.name);
            let command = match &args.peer {
                Some(peer) if side.name == "libzpool" => theirs(&args.work, peer, &image, logs),
                _ => ours_command(&args.work, logs)?,
            };
            let rows = measured(command, name);
            let judged = match side.name {
                "cenote" if rows.is_ok() && !args.no_check => ours::check(&args.work.dir),
                _ => Ok(()),
            };
            let _ = fs::remove_file(&image);
            side.rows.extend(rows?);
            judged?;
        }
    }
    Ok(())
}

/// The process that measures this software.
pub fn run_ours(args: &OursArgs) -> anyhow::Result<()> {
    let image = args.work.dir.join("spacemap.img");
    make_image(&image, args.work.size << 20)?;
    for row in ours::rows(&args.work, &image, args.logs)? {
        println!("{}", serde_json::to_string(&row)?);
    }
    Ok(())
}

fn ours_command(work: &Work, logs: bool) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("spacemap-ours").arg("--dir").arg(&work.dir);
    for (name, value) in [
        ("--size", work.size),
        ("--fill", work.fill),
        ("--age", work.age),
        ("--txgs", work.txgs),
        ("--cache", work.cache),
    ] {
        command.args([name, &value.to_string()]);
    }
    let dirty: Vec<String> = work.dirty.iter().map(u64::to_string).collect();
    command.args(["--dirty", &dirty.join(",")]);
    command.args(logs.then_some("--logs"));
    Ok(command)
}

fn theirs(work: &Work, peer: &PathBuf, image: &PathBuf, logs: bool) -> Command {
    let mut command = Command::new(peer);
    command.arg("spacemap").arg(image);
    let numbers = [work.size, work.fill, work.age, work.txgs, logs.into(), work.cache];
    command.args(numbers.iter().chain(&work.dirty).map(u64::to_string));
    command
}

/// Runs one process, whose progress is shown as that of `name`.
fn measured(mut command: Command, name: String) -> anyhow::Result<Vec<Measured>> {
    let program = command.get_program().display().to_string();
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| program.clone())?;
    let out = child.stdout.take().context("no output")?;
    let (mut rows, mut progress) = (Vec::new(), Progress::new(name));
    for line in BufReader::new(out).lines() {
        let line = line?;
        if line.starts_with('{') {
            let row: Measured = serde_json::from_str(&line).with_context(|| line.clone())?;
            rows.push(row);
        } else {
            progress.line(&line);
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{program}: {status}");
    ensure!(!rows.is_empty(), "{program} measured nothing");
    Ok(rows)
}
