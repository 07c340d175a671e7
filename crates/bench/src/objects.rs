//! `cenote-bench object`: a pool in an object store that takes its time, beside the store itself.
//!
//! The store is in memory, and each request takes `--latency` more: a table for each. Its rows:
//!
//! - a file is written in order, and read in order after an import (nothing is in memory then), with reads ahead as a mount has them. The peer is the client of the store
//!   (`object_store`), which puts and gets the same bytes, in objects of the same size and with as many requests at once as the pool has
//!   for uploads at most;
//! - blocks of 8 KiB are overwritten at random, while no object is written anew for the dead blocks in it. What counts is what is
//!   sent to the store: bytes for each byte that was written, and requests.
//!
//! What is sent: at most 1.1 times the bytes of random overwrites, and one PUT for each 3 MiB.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use cenote_dmu::readahead::ReadAhead;
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_objects::Tunables;
use cenote_pool::{ImportOptions, discover};
use cenote_vdev::{GrowingFigures, object};
use cenote_zpl::NodeKind;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt, path};

use crate::noise::Noise;
use crate::write::{create, node, open};

const CACHE: u64 = 256 << 20;
/// Bytes of a block that is overwritten, and of a block that is written in order.
const RECORD: usize = 8 << 10;
const BLOCK: usize = 128 << 10;
/// What is to be reached: bytes sent for each byte of random overwrites, and bytes for which there is a PUT.
const MOST_SENT: f64 = 1.1;
const EACH_PUT: f64 = 3.0 * (1 << 20) as f64;

/// What `object` runs on.
#[derive(clap::Args)]
pub struct ObjectArgs {
    /// Milliseconds that each request takes more.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 10, 30])]
    latency: Vec<u64>,
    /// MiB of the file that is written in order; a quarter of it is overwritten at random.
    #[arg(long, default_value_t = 512)]
    size: u64,
    /// Number of random overwrites of 8 KiB, each of another block; fewer if there are no more.
    #[arg(long, default_value_t = 16_000)]
    overwrites: u64,
    /// Runs of each row; the median counts.
    #[arg(long, default_value_t = 3)]
    runs: usize,
}

/// What a run measured.
#[derive(Clone, Copy)]
struct Figures {
    /// Seconds: written and read in order, by the pool and by the client of the store.
    write: f64,
    read: f64,
    put: f64,
    get: f64,
    /// Overwrites a second.
    overwrite: f64,
    /// Bytes sent for each byte of them, and bytes of them for each PUT.
    sent: f64,
    each_put: f64,
}

fn store(latency: Duration) -> Arc<dyn ObjectStore> {
    let config = ThrottleConfig {
        wait_delete_per_call: latency,
        wait_get_per_call: latency,
        wait_list_per_call: latency,
        wait_put_per_call: latency,
        ..ThrottleConfig::default()
    };
    Arc::new(ThrottledStore::new(InMemory::new(), config))
}

fn seconds(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// The same bytes by the client of the store: seconds until they are put, and until they were got.
fn raw(
    store: &Arc<dyn ObjectStore>,
    bytes: u64,
    tunables: &Tunables,
) -> anyhow::Result<(f64, f64)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build()?;
    let mut noise = vec![0; tunables.object_bytes as usize];
    Noise(3).fill(&mut noise);
    let names: Vec<path::Path> =
        (0..bytes / tunables.object_bytes).map(|n| path::Path::from(format!("raw/{n}"))).collect();
    let all = || stream::iter(names.clone());
    let put = seconds(|| {
        let each = all().map(Ok::<_, object_store::Error>);
        let put = each.try_for_each_concurrent(tunables.uploads, async |name| {
            // The pool has a copy of what it is given as well.
            store.put(&name, Bytes::from(noise.clone()).into()).await.map(drop)
        });
        Ok(runtime.block_on(put)?)
    })?;
    let get = seconds(|| {
        let got = all().map(async |name| store.get(&name).await?.bytes().await);
        // Who reads gets a copy, as from the pool.
        let mut copy = vec![0; noise.len()];
        let copied = got.buffered(tunables.uploads).try_fold(0, |sum, bytes| {
            copy[..bytes.len()].copy_from_slice(&bytes);
            std::future::ready(Ok(sum + bytes.len() as u64))
        });
        let sum = runtime.block_on(copied)?;
        anyhow::ensure!(
            sum == bytes / tunables.object_bytes * tunables.object_bytes,
            "{sum} bytes"
        );
        Ok(())
    })?;
    Ok((put, get))
}

fn import(name: &Path) -> anyhow::Result<Arc<Engine>> {
    let found = discover(&[name.to_path_buf()]);
    let pool = found.first().context("the pool is gone")?;
    let how = ImportOptions { force: true, arc_bytes: Some(CACHE), ..ImportOptions::default() };
    Ok(Engine::import(pool, &how, EngineOptions::default())?)
}

fn figures(engine: &Engine) -> anyhow::Result<GrowingFigures> {
    let pool = engine.pool();
    let tree = pool.store().vdevs().clone();
    let top = tree.top(0).context("the store is gone")?;
    Ok(top.growing().context("no device in a store")?.figures())
}

fn in_order(name: &Path, bytes: u64) -> anyhow::Result<(f64, f64)> {
    let engine =
        create(name.to_path_buf(), Compression::Off, CACHE, &[], EngineOptions::default())?;
    let fs = open(&engine, BLOCK as u64)?;
    let file = fs.create(fs.root(), b"file", &node(NodeKind::File))?.ino;
    let mut block = vec![0; BLOCK];
    Noise(1).fill(&mut block);
    let write = seconds(|| {
        for at in (0..bytes).step_by(BLOCK) {
            block[..8].copy_from_slice(&(at + 1).to_le_bytes());
            fs.write(file, at, &block, false)?;
        }
        Ok(engine.sync()?)
    })?;
    drop(fs);
    engine.export(false)?;
    drop(engine);
    let engine = import(name)?;
    let fs = open(&engine, BLOCK as u64)?;
    let file = fs.open_file(fs.lookup(fs.root(), b"file")?)?;
    let ahead = ReadAhead::new();
    let read = seconds(|| {
        for at in (0..bytes).step_by(BLOCK) {
            ahead.before_read(at, BLOCK as u64, true, |from, len| file.part(from, len).ok());
            anyhow::ensure!(file.read(at, &mut block)? == BLOCK, "the file ends at {at}");
        }
        Ok(())
    })?;
    drop((file, fs));
    engine.export(false)?;
    Ok((write, read))
}

/// Overwrites, and what was sent for them: how many a second, bytes sent for each byte, bytes for each PUT.
fn overwrites(name: &Path, bytes: u64, count: u64) -> anyhow::Result<(f64, f64, f64)> {
    let engine =
        create(name.to_path_buf(), Compression::Off, CACHE, &[], EngineOptions::default())?;
    let fs = open(&engine, RECORD as u64)?;
    let file = fs.create(fs.root(), b"records", &node(NodeKind::File))?.ino;
    let (mut block, mut noise) = (vec![0; RECORD], Noise(7));
    for at in (0..bytes).step_by(RECORD) {
        noise.fill(&mut block);
        fs.write(file, at, &block, false)?;
    }
    engine.sync()?;
    let before = figures(&engine)?;
    // Each at most once: what is overwritten twice in a group is sent once.
    let mut records: Vec<u64> = (0..bytes / RECORD as u64).collect();
    for i in (1..records.len()).rev() {
        records.swap(i, (noise.next() % (i as u64 + 1)) as usize);
    }
    records.truncate(count as usize);
    let count = records.len() as u64;
    let seconds = seconds(|| {
        for record in records {
            block[..8].copy_from_slice(&noise.next().to_le_bytes());
            fs.write(file, record * RECORD as u64, &block, false)?;
        }
        Ok(engine.sync()?)
    })?;
    let after = figures(&engine)?;
    drop(fs);
    engine.export(false)?;
    let written = (count * RECORD as u64) as f64;
    let [sent, puts] = [after.bytes[0] - before.bytes[0], after.requests[0] - before.requests[0]]
        .map(|n| n as f64);
    Ok((count as f64 / seconds, sent / written, written / puts))
}

fn measure(args: &ObjectArgs, latency: u64, run: usize) -> anyhow::Result<Figures> {
    let (bytes, wait) = (args.size << 20, Duration::from_millis(latency));
    let usual = Tunables::default();
    let provided = |what: &str, tunables: Tunables| {
        let name = PathBuf::from(format!("bench://{what}-{latency}-{run}"));
        object::provide(&name, store(wait), tunables);
        name
    };
    let (put, get) = raw(&store(wait), bytes, &usual)?;
    let name = provided("order", usual.clone());
    let (write, read) = in_order(&name, bytes)?;
    // Its bytes are kept no longer.
    object::provide(&name, store(wait), usual.clone());
    // Nothing is written anew because of dead blocks.
    let name = provided("random", Tunables { live_percent: 0, ..usual.clone() });
    let (overwrite, sent, each_put) = overwrites(&name, bytes / 4, args.overwrites)?;
    object::provide(&name, store(wait), usual);
    Ok(Figures { write, read, put, get, overwrite, sent, each_put })
}

/// Runs the rows and prints them.
///
/// # Errors
/// A row fails.
pub fn run(args: &ObjectArgs) -> anyhow::Result<()> {
    let megabytes = (args.size << 20) as f64 / 1e6;
    println!(
        "{:>8} {:>10} {:>10} {:>6} {:>10} {:>10} {:>6} {:>12} {:>8} {:>10}",
        "latency",
        "write",
        "PUT",
        "ratio",
        "read",
        "GET",
        "ratio",
        "overwrites",
        "sent",
        "each PUT"
    );
    println!(
        "{:>8} {:>10} {:>10} {:>6} {:>10} {:>10} {:>6} {:>12} {:>8} {:>10}",
        "ms", "MB/s", "MB/s", "", "MB/s", "MB/s", "", "ops/s", "/byte", "KiB"
    );
    for latency in &args.latency {
        let runs = (0..args.runs.max(1)).map(|run| measure(args, *latency, run));
        let runs: Vec<Figures> = runs.collect::<anyhow::Result<_>>()?;
        let median = |of: fn(&Figures) -> f64| {
            let mut all: Vec<f64> = runs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let [write, put, read, get] =
            [median(|f| f.write), median(|f| f.put), median(|f| f.read), median(|f| f.get)]
                .map(|seconds| megabytes / seconds);
        let (sent, each_put) = (median(|f| f.sent), median(|f| f.each_put));
        let operations = median(|f| f.overwrite);
        println!(
            "{latency:>8} {write:>10.0} {put:>10.0} {:>6.2} {read:>10.0} {get:>10.0} {:>6.2} {operations:>12.0} {sent:>8.3} {:>10.0}",
            write / put,
            read / get,
            each_put / 1024.0
        );
        for (missed, what) in [
            (sent > MOST_SENT, format!("more than {MOST_SENT} bytes were sent for each byte")),
            (each_put < EACH_PUT, "there was more than a PUT for each 3 MiB".to_string()),
        ] {
            if missed {
                println!("{:>8} {what} of random overwrites", "");
            }
        }
    }
    Ok(())
}
