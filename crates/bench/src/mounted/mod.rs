//! The rows of `cenote-bench write` that go through a mount: cenote's own, a btrfs on a loop device
//! and zfs-fuse, each on a file in the same directory.
//!
//! # Leaving nothing behind
//!
//! Mounts, daemons and loop devices are the business of a process of its own, which is the first in
//! new process and mount namespaces (`unshare` of util-linux makes them, as root). However that
//! process ends, the kernel kills whatever it has started, the mounts go with the last of them, and
//! a loop device goes with its mount. It ends when the process outside does. `/run` and `/var/lib/zfs`, where zfs-fuse keeps its socket and
//! its cache, are private to it. The device files are in a directory that the process outside
//! removes.

mod jobs;
mod rows;
mod systems;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};

use crate::MountArgs;
use crate::measure::{Run, medians};
pub use jobs::{JobArgs, job};
use systems::{Btrfs, Cenote, System, ZfsFuse};

/// A directory in memory in which whatever is mounted is mounted, and the daemons' sockets are.
const RUN: &str = "/run";
/// Exit status after a signal.
const INTERRUPTED: i32 = 130;

/// What the process inside prints, one line each.
#[derive(Serialize, Deserialize)]
struct Line {
    system: String,
    run: Run,
}

/// The medians of one file system.
pub struct Rows {
    /// Its name.
    pub system: String,
    /// Its rows.
    pub rows: Vec<Run>,
}

/// Runs the process inside, and returns the medians of each file system.
pub fn run(args: &MountArgs, dir: &Path, runs: usize) -> anyhow::Result<Vec<Rows>> {
    ensure!(rustix::process::geteuid().is_root(), "mounts are measured as root only");
    let work = dir.join("mounted");
    end_on_signals(work.clone())?;
    // `unshare` heeds no signals while it waits, but it ends with this process.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]);
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(std::env::current_exe()?).arg("mounted").args(["--runs", &runs.to_string()]);
    command.arg("--work").arg(&work).args(args.forwarded());
    let out = command.stderr(Stdio::inherit()).output().context("running unshare");
    let _ = fs::remove_dir_all(&work);
    let out = out?;
    if !out.status.success() {
        bail!("the process that measures mounts: {}", out.status);
    }
    let mut all: Vec<Rows> = Vec::new();
    for line in String::from_utf8(out.stdout)?.lines() {
        let Line { system, run } = serde_json::from_str(line)?;
        match all.iter_mut().find(|rows| rows.system == system) {
            Some(rows) => rows.rows.push(run),
            None => all.push(Rows { system, rows: vec![run] }),
        }
    }
    all.iter_mut().for_each(|rows| rows.rows = medians(&rows.rows));
    Ok(all)
}

/// What the process inside runs with.
#[derive(clap::Args)]
pub struct InsideArgs {
    /// Directory for the device files, which is made and removed.
    #[arg(long)]
    work: PathBuf,
    /// Runs of each row.
    #[arg(long)]
    runs: usize,
    #[command(flatten)]
    mount: MountArgs,
}

/// The process inside: measures, and prints a line for each row of each run.
pub fn inside(args: &InsideArgs) -> anyhow::Result<()> {
    ensure!(std::process::id() == 1, "not to be called by hand");
    end_on_signals(args.work.clone())?;
    for private in [RUN, "/var/lib/zfs"] {
        fs::create_dir_all(private)?;
        systems::succeed(Command::new("mount").args(["-t", "tmpfs", "cenote-bench", private]))?;
    }
    let _ = fs::remove_dir_all(&args.work);
    fs::create_dir_all(&args.work)?;
    let archive = args.work.join("tree.tar");
    rows::make_archive(&args.work.join("tree"), &archive, args.mount.tree)?;
    for i in 0..args.runs {
        for name in args.mount.systems() {
            eprintln!("run {} of {}: mounted {name} ...", i + 1, args.runs);
            // One that cannot be run here has no rows, or only those up to where it failed.
            if let Err(e) = measure_one(&name, args, &archive) {
                eprintln!("{name}: {e:#}");
            }
        }
    }
    fs::remove_dir_all(&args.work)?;
    Ok(())
}

fn measure_one(name: &str, args: &InsideArgs, archive: &Path) -> anyhow::Result<()> {
    let image = args.work.join("device.img");
    let mount = Path::new(RUN).join(name);
    fs::create_dir_all(&mount)?;
    make_image(&image, 3 * (args.mount.mount_size << 20) + (2 << 30))?;
    let mut system: Box<dyn System> = match name {
        "btrfs" => Box::new(Btrfs::create(&image, &mount)?),
        "zfs-fuse" => Box::new(ZfsFuse::create(&args.mount.zfs_fuse, &image, &mount)?),
        name => Box::new(Cenote::create(&args.mount.program(name)?, &image, &mount)?),
    };
    let print = |run: Run| {
        let stolen = run.stolen() * 100.0;
        eprintln!("  {:<24} {:8.2} s {stolen:4.0}% stolen", run.row, run.seconds);
        println!("{}", serde_json::to_string(&Line { system: name.into(), run })?);
        Ok(())
    };
    if !args.mount.only_programs {
        rows::run(&mut *system, &args.mount, archive, &print)?;
    }
    jobs::run(&mut *system, &args.mount, &print)?;
    system.finish()?;
    fs::remove_file(&image)?;
    Ok(())
}

/// A device file whose blocks are there already: no one is to measure how the host allocates.
pub fn make_image(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let zeros = vec![0u8; 1 << 20];
    let mut file = fs::File::create(path)?;
    for _ in 0..bytes >> 20 {
        std::io::Write::write_all(&mut file, &zeros)?;
    }
    file.sync_data()?;
    Ok(())
}

/// Removes the device files on a signal, and ends. (The first process of a namespace gets no signal
/// that it does not wait for.)
fn end_on_signals(work: PathBuf) -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    std::thread::spawn(move || {
        let _ = signals.wait();
        let _ = fs::remove_dir_all(&work);
        std::process::exit(INTERRUPTED);
    });
    Ok(())
}
