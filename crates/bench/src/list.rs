//! `cenote-bench list`: what listing many datasets takes, beside what reading their metadata costs.
//!
//! A pool has file systems with snapshots each, and snapshots of one file system with clones each. Each list is made
//! twice: after an import, when nothing is cached, and once more. The rows through the library ask for what
//! `zfs list` shows by default. The rows of the commands are `zfs list` itself, with a daemon of its own. The row
//! beside them reads every block of the pool's metadata that has datasets, once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::write::{dataset, snapshot};
use cenote_dsl::{Dataset, Dsl};
use cenote_engine::EngineOptions;
use cenote_engine::change::{Changes, Contents, Format, NewSnapshot};
use cenote_format::compress::Compression;
use cenote_format::dmu::ObjsetType;
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_zpl::{CreateProps, format};

use crate::mounted::make_image;
use crate::write::create;

/// The pool that [`create`] makes.
const POOL: &str = "benchwrite";
/// Datasets that are made in one transaction group.
const AT_ONCE: u64 = 100;
/// MiB of the cache.
const CACHE: u64 = 512;
/// What `zfs list` shows of each dataset.
const SHOWN: [&str; 5] = ["name", "used", "available", "referenced", "mountpoint"];

/// What `list` runs on.
#[derive(clap::Args)]
pub struct ListArgs {
    /// Directory for the device file, of 2 GiB.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// File systems, and snapshots of each.
    #[arg(long, default_value_t = 1000)]
    filesystems: u64,
    #[arg(long, default_value_t = 10)]
    snapshots: u64,
    /// Clones of each snapshot of one file system.
    #[arg(long, default_value_t = 100)]
    clones: u64,
    /// The program `cenote`; by default the one beside this program.
    #[arg(long)]
    cenote: Option<PathBuf>,
}

/// What is made is empty file systems.
struct Empty;

impl Contents for Empty {
    fn fill(&self, _: &mut OpenObjectSet, _: &Format, _: u64) -> Result<(), WriteError> {
        Ok(())
    }

    fn resize(&self, _: Arc<LiveObjectSet>, _: u64) -> Result<(), WriteError> {
        Ok(())
    }
}

fn options() -> EngineOptions {
    EngineOptions { txg_timeout: Some(Duration::from_secs(3600)), ..EngineOptions::default() }
}

/// Runs everything and prints the table.
pub fn run(args: &ListArgs) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let image = args.dir.join("list.img");
    make_image(&image, 2 << 30)?;
    make(&image, args)?;
    println!("{:<48} {:>9} {:>10} {:>8}", "", "rows", "seconds", "reads");
    metadata(&args.dir)?;
    through_library(&args.dir)?;
    by_command(args)?;
    std::fs::remove_file(&image)?;
    Ok(())
}

fn print(what: &str, rows: usize, begun: Instant, reads: Option<u64>) {
    let reads = reads.map_or("-".into(), |n| n.to_string());
    println!("{what:<48} {rows:>9} {:>10.3} {reads:>8}", begun.elapsed().as_secs_f64());
}

/// Makes the pool.
fn make(image: &Path, args: &ListArgs) -> anyhow::Result<()> {
    let engine = create(image.into(), Compression::Off, CACHE << 20, &[], options())?;
    let root = engine.pool().dsl().root()?.dir_obj;
    let mut origin = 0;
    for first in (0..args.filesystems).step_by(AT_ONCE as usize) {
        let last = (first + AT_ONCE).min(args.filesystems);
        origin = engine.sync_task(move |context| {
            let mut head = 0;
            for i in first..last {
                let tx = &mut context.tx;
                let (name, txg) = (format!("fs{i:05}"), tx.txg);
                head = dataset::create(tx, root, &name, &[], None)?.ds_obj;
                context.create_objset(head, ObjsetType::Zfs, 1, None, |os| {
                    let done = format(os, &CreateProps::default(), txg);
                    done.map_err(|e| WriteError::Sink(Box::new(e)))
                })?;
            }
            Ok(head)
        })?;
    }
    let changes = Changes::new(engine.clone(), Arc::new(Empty), None);
    for at in 0..args.snapshots {
        let name = |i: u64| format!("{POOL}/fs{i:05}@snapshot-{at:04}");
        let names = (0..args.filesystems).map(name).collect();
        let taken = changes.snapshot(&NewSnapshot { names, props: Vec::new() });
        taken.map_err(|(name, e)| anyhow::anyhow!("snapshot {name:?}: {e}"))?;
    }
    for at in 0..args.snapshots {
        let clones = args.clones;
        engine.sync_task(move |context| {
            let tx = &mut context.tx;
            let short = format!("snapshot-{at:04}");
            let Some(snapshot) = snapshot::find_snapshot(tx, origin, &short)? else {
                return Ok(());
            };
            for i in 0..clones {
                let name = format!("clone{at:04}-{i:05}");
                dataset::create(tx, root, &name, &[], Some(snapshot))?;
            }
            Ok(())
        })?;
    }
    Ok(engine.export(false)?)
}

/// The pool, to be read, with nothing of it cached.
fn open(dir: &Path) -> anyhow::Result<Arc<Pool>> {
    let found = discover(&[dir.to_path_buf()]);
    let found = found.first().context("the pool is gone")?;
    let options = ImportOptions {
        readonly: true,
        force: true,
        arc_bytes: Some(CACHE << 20),
        ..ImportOptions::default()
    };
    Ok(Pool::import(found, &options)?)
}

fn reads(pool: &Pool) -> u64 {
    pool.store().vdevs().leaves().iter().map(|leaf| leaf.io_stats().0).sum()
}

/// Reads each object of the MOS, and nothing else.
fn metadata(dir: &Path) -> anyhow::Result<()> {
    let pool = open(dir)?;
    let (before, begun) = (reads(&pool), Instant::now());
    let (mut from, mut objects) = (1, 0);
    while let Some(number) = pool.mos().next_object(from)? {
        pool.mos().object(number)?;
        (from, objects) = (number + 1, objects + 1);
    }
    print("objects of the MOS, one after the other", objects, begun, Some(reads(&pool) - before));
    Ok(())
}

/// All datasets, and the snapshots if they are wanted.
fn all(dsl: &Dsl, snapshots: bool) -> anyhow::Result<Vec<Dataset>> {
    let (mut todo, mut found) = (vec![dsl.root()?], Vec::new());
    while let Some(dataset) = todo.pop() {
        todo.extend(dsl.children(&dataset)?);
        if snapshots {
            found.extend(dsl.snapshots(&dataset)?);
        } else {
            found.push(dataset);
        }
    }
    Ok(found)
}

fn through_library(dir: &Path) -> anyhow::Result<()> {
    for (what, snapshots) in [("snapshots", true), ("file systems and clones", false)] {
        let pool = open(dir)?;
        for state in ["cold", "warm"] {
            let (before, begun) = (reads(&pool), Instant::now());
            let found = all(pool.dsl(), snapshots)?;
            for dataset in &found {
                for property in SHOWN {
                    pool.dsl().get(dataset, property)?;
                }
            }
            let what = format!("{what}, through the library, {state}");
            print(&what, found.len(), begun, Some(reads(&pool) - before));
        }
    }
    Ok(())
}

/// The command, with a daemon of its own.
struct Commands {
    program: PathBuf,
    socket: PathBuf,
}

impl Commands {
    fn run(&self, line: &str) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.env("CENOTE_SOCKET", &self.socket).args(line.split(' '));
        let out = command.output().with_context(|| self.program.display().to_string())?;
        ensure!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        let _ = self.run("daemon stop");
    }
}

fn by_command(args: &ListArgs) -> anyhow::Result<()> {
    let program = match &args.cenote {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("cenote"),
    };
    let commands = Commands { program, socket: args.dir.join("list.socket") };
    for line in
        ["zfs list -t snapshot", "zfs list", "zfs list -t all -o name,origin,clones,used,written"]
    {
        commands.run(&format!("zpool import -N -f -d {} {POOL}", args.dir.display()))?;
        for state in ["cold", "warm"] {
            let begun = Instant::now();
            let rows = commands.run(line)?.lines().count().saturating_sub(1);
            print(&format!("{line}, {state}"), rows, begun, None);
        }
        commands.run(&format!("zpool export {POOL}"))?;
    }
    Ok(())
}
