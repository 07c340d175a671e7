//! `cenote-bench write`: see [`mod@write`] (through the library) and [`mounted`] (through mounts).
//!
//! `cenote-bench alloc`: see [`mod@alloc`].
//!
//! `cenote-bench clone`: see [`mod@clone`].
//!
//! `cenote-bench list`: see [`mod@list`].
//!
//! `cenote-bench spacemap`: see [`spacemap`].
//!
//! `cenote-bench groups`: see [`groups`].
//!
//! `cenote-bench zil`: see [`zil`]; `cenote-bench replay`: see [`replay`].
//!
//! `cenote-bench scrub`: see [`scrub`].
//!
//! `cenote-bench send`: see [`send`] and [`receive`].
//!
//! `cenote-bench dedup`: see [`dedup`].
//!
//! `cenote-bench object`: see [`objects`].
//!
//! `cenote-bench read`: reads through the library, beside the raw device file and beside OpenZFS's
//! own engine, in one run.
//!
//! The peer (`peer/libzpool.c`, built by `make bench` against Debian's libzpool) makes the pool and
//! reads it first; then the same objects are read here. Each row is run several times on a fresh
//! import; the median counts. "Cold" means that neither the engine nor the host's page cache has
//! the data (where the directory is in memory, tmpfs, the page cache *is* the device). The raw row
//! of the same kind reads the device file with the same request size and order.
//!
//! `read` ends with reads of small compressed records that are cached: see [`cached`].

/// Large buffers come and go with every transaction group: an allocator that keeps pages for a while.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod alloc;
mod cached;
mod clone;
mod dedup;
mod groups;
mod line;
mod list;
mod measure;
mod mounted;
mod noise;
mod objects;
mod read;
mod receive;
mod replay;
mod report;
mod scrub;
mod send;
mod spacemap;
mod write;
mod zil;

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cenote-bench", about = "Benchmarks of cenote, with their peers in the same run")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Sequential and random reads, cold and warm, and metadata walks.
    Read(ReadArgs),
    /// Sequential writes, random overwrites and small files, through the library and through mounts.
    Write(WriteArgs),
    /// Spoiled metaslabs: loading their space maps, and allocations meanwhile.
    Alloc(alloc::AllocArgs),
    /// What transaction groups cost in a pool that has aged, with log space maps and without.
    Spacemap(spacemap::SpaceMapArgs),
    /// Destroying clones, by livelist and by walking.
    Clone(clone::CloneArgs),
    /// Listing many file systems, snapshots and clones.
    List(list::ListArgs),
    /// Small transaction groups on a device that answers late, and one of many datasets.
    Groups(groups::GroupsArgs),
    /// Synchronous writes: the intent log beside the device's file system.
    Zil(zil::ZilArgs),
    /// Importing a pool with a long intent log, on devices that answer late.
    Replay(replay::ReplayArgs),
    /// Scrubs and resilvers.
    Scrub(scrub::ScrubArgs),
    /// Send streams, full and incremental.
    Send(send::SendArgs),
    /// Blocks that are all different, deduplicated, with tables ten times as large as the cache.
    Dedup(dedup::DedupArgs),
    /// A pool in an object store that takes its time, beside the store itself.
    Object(objects::ObjectArgs),
    /// The part of `spacemap` that measures this software once.
    #[command(hide = true)]
    SpacemapOurs(spacemap::OursArgs),
    /// The part of `write` that mounts things; `write` runs it in namespaces of its own.
    #[command(hide = true)]
    Mounted(mounted::InsideArgs),
    /// A program that works in a mount, for `mounted`.
    #[command(hide = true)]
    MountedJob(mounted::JobArgs),
}

/// What `write` runs on.
#[derive(clap::Args)]
pub struct WriteArgs {
    /// Directory for the device files of the rows through the library: twice --size, and a little.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// MiB of the sequential rows; a quarter of it is overwritten at random.
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Number of random overwrites of 8 KiB.
    #[arg(long, default_value_t = 100_000)]
    overwrites: u64,
    /// Number of small files.
    #[arg(long, default_value_t = 100_000)]
    files: usize,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The peer's program.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Only the rows through the library, or only those through mounts.
    #[arg(long)]
    only: Option<Only>,
    #[command(flatten)]
    mount: MountArgs,
}

/// A part of the rows of `write`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    Library,
    Mount,
}

/// How an earlier program is named among the file systems.
const BEFORE: &str = "before";

/// What the rows through mounts run with.
#[derive(clap::Args)]
pub struct MountArgs {
    /// Directory for the device files of what is mounted. On a disk, as the known figures were: in
    /// memory the copy through FUSE is most of what is measured.
    #[arg(long, default_value = "/var/tmp/cenote-bench")]
    mount_dir: PathBuf,
    /// MiB of the sequential rows through mounts; a quarter of it is written to at random. The device
    /// files are three times as large and 2 GiB more.
    #[arg(long, default_value_t = 512)]
    mount_size: u64,
    /// Number of random writes of 8 KiB through mounts.
    #[arg(long, default_value_t = 20_000)]
    mount_overwrites: u64,
    /// Numbers of small files that are created through mounts.
    #[arg(long, value_delimiter = ',', default_values_t = [20_000, 100_000])]
    mount_files: Vec<usize>,
    /// Number of files in the archive that is unpacked through mounts.
    #[arg(long, default_value_t = 10_000)]
    tree: usize,
    /// The program `cenote`; by default the one beside this program.
    #[arg(long)]
    cenote: Option<PathBuf>,
    /// Another program `cenote`, an earlier one, which is measured by turns with the first.
    #[arg(long)]
    before: Option<PathBuf>,
    /// Measure cenote only, not the other file systems.
    #[arg(long)]
    only_cenote: bool,
    /// Only the rows of several programs at once.
    #[arg(long)]
    only_programs: bool,
    /// Where the package zfs-fuse, with libraries that the system lacks, was unpacked.
    #[arg(long, default_value = "target/zfs-fuse")]
    zfs_fuse: PathBuf,
}

impl MountArgs {
    /// The file systems that are measured.
    fn systems(&self) -> Vec<String> {
        let others = ["btrfs", "zfs-fuse"].into_iter().filter(|_| !self.only_cenote);
        let before = self.before.iter().map(|_| BEFORE);
        others.chain(before).chain(["cenote"]).map(String::from).collect()
    }

    /// The program `cenote`, or the earlier one.
    fn program(&self, system: &str) -> anyhow::Result<PathBuf> {
        let program = if system == BEFORE { &self.before } else { &self.cenote };
        match program {
            Some(program) => Ok(program.clone()),
            None => Ok(std::env::current_exe()?.with_file_name("cenote")),
        }
    }

    /// The same arguments, for another process.
    fn forwarded(&self) -> Vec<OsString> {
        let files: Vec<String> = self.mount_files.iter().map(usize::to_string).collect();
        let mut all: Vec<OsString> = Vec::new();
        for (name, value) in [
            ("--mount-size", self.mount_size.to_string().into()),
            ("--mount-overwrites", self.mount_overwrites.to_string().into()),
            ("--mount-files", files.join(",").into()),
            ("--tree", self.tree.to_string().into()),
            ("--zfs-fuse", self.zfs_fuse.clone().into_os_string()),
        ] {
            all.extend([name.into(), value]);
        }
        for (name, program) in [("--cenote", &self.cenote), ("--before", &self.before)] {
            if let Some(program) = program {
                all.extend([name.into(), program.into()]);
            }
        }
        let flags = [("--only-cenote", self.only_cenote), ("--only-programs", self.only_programs)];
        all.extend(flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name.into()));
        all
    }
}

/// What `read` runs on.
#[derive(clap::Args)]
pub struct ReadArgs {
    /// Directory for the pool's device file: four times --size, and a little.
    #[arg(long, default_value = "/dev/shm/cenote-bench")]
    dir: PathBuf,
    /// MiB of each of the three objects that are read.
    #[arg(long, default_value_t = 512)]
    size: u64,
    /// MiB of each engine's cache.
    #[arg(long, default_value_t = 2048)]
    cache: u64,
    /// Reads of each thread in the rows of cached records.
    #[arg(long, default_value_t = 300_000)]
    cached_reads: u64,
    /// Only the rows of cached records.
    #[arg(long)]
    only_cached: bool,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The peer's program, which also makes the pool.
    #[arg(long)]
    peer: PathBuf,
}

fn main() -> anyhow::Result<()> {
    match Args::parse().what {
        What::Read(args) => read::run(&args),
        What::Write(args) => write_rows(&args),
        What::Alloc(args) => alloc::run(&args),
        What::Replay(args) => replay::run(&args),
        What::Clone(args) => clone::run(&args),
        What::List(args) => list::run(&args),
        What::Groups(args) => groups::run(&args),
        What::Zil(args) => zil::run(&args),
        What::Scrub(args) => scrub::run(&args),
        What::Send(args) => send::run(&args),
        What::Dedup(args) => dedup::run(&args),
        What::Object(args) => objects::run(&args),
        What::Spacemap(args) => spacemap::run(&args),
        What::SpacemapOurs(args) => spacemap::run_ours(&args),
        What::Mounted(args) => mounted::inside(&args),
        What::MountedJob(args) => mounted::job(&args),
    }
}

fn write_rows(args: &WriteArgs) -> anyhow::Result<()> {
    if args.only != Some(Only::Mount) {
        write::run(args)?;
    }
    if args.only != Some(Only::Library) {
        std::fs::create_dir_all(&args.mount.mount_dir)?;
        let dir = args.mount.mount_dir.canonicalize()?;
        let rows = mounted::run(&args.mount, &dir, args.runs).context("rows through mounts")?;
        report::print_mounted(&rows);
        report::print_before(&rows, BEFORE);
    }
    Ok(())
}
