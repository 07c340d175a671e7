//! `cenote-bench write`: see [`write`].
//!
//! `cenote-bench read`: reads through the library, beside the raw device file and beside OpenZFS's
//! own engine, in one run.
//!
//! The peer (`peer/libzpool.c`, built by `make bench` against Debian's libzpool) makes the pool and
//! reads it first; then the same objects are read here. Each row is run several times on a fresh
//! import; the median counts. "Cold" means that neither the engine nor the host's page cache has
//! the data (where the directory is in memory, tmpfs, the page cache *is* the device). The raw row
//! of the same kind reads the device file with the same request size and order.

/// Large buffers come and go with every transaction group: an allocator that keeps pages for a while.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod measure;
mod read;
mod report;
mod write;

use std::path::PathBuf;

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
    /// Sequential writes, random overwrites and small files, through the library.
    Write(WriteArgs),
}

/// What `write` runs on.
#[derive(clap::Args)]
pub struct WriteArgs {
    /// Directory for the pools' device files: twice --size each, and a little.
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
        What::Write(args) => write::run(&args),
    }
}
