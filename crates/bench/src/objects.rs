//! `cenote-bench object`: a pool in an object store that takes its time, beside the store itself.
//!
//! The store is in memory, each request takes `--latency` more, and its bytes go over a line of `--line` megabytes a second (0: as fast as memory is): a row for each. It
//! has:
//!
//! - a file that is written in order, and read in order after an import (nothing is in memory then), with reads ahead as a mount has them. The peer is the client of the store
//!   (`object_store`), which puts and gets the same bytes, in objects of the same size and with as many requests at once as the pool has
//!   for uploads at most;
//! - a part of it read with nothing ahead, in blocks of a mebibyte, as a mount hands them over: each takes a latency;
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
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, path};

use crate::line::Line;
use crate::noise::Noise;
use crate::write::{create, node, open};

const CACHE: u64 = 256 << 20;
/// Bytes of a block that is overwritten, and of a block that is written in order.
const RECORD: usize = 8 << 10;
const BLOCK: usize = 128 << 10;
/// Bytes that are read with nothing ahead, and of each read of them.
const PLAIN: u64 = 64 << 20;
const LARGE: usize = 1 << 20;
/// What is to be reached: bytes sent for each byte of random overwrites, and bytes for which there is a PUT.
const MOST_SENT: f64 = 1.1;
const EACH_PUT: f64 = 3.0 * (1 << 20) as f64;

/// What `object` runs on.
#[derive(clap::Args)]
pub struct ObjectArgs {
    /// Milliseconds that each request takes more.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 10, 30])]
    latency: Vec<u64>,
    /// Megabytes a second that a line carries to the store, and another one from it; 0: there is no line.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1250])]
    line: Vec<u64>,
    /// MiB of the file that is written in order; a quarter of it is overwritten at random.
    #[arg(long, default_value_t = 512)]
    size: u64,
    /// Number of random overwrites of 8 KiB, each of another block; fewer if there are no more.
    #[arg(long, default_value_t = 16_000)]
    overwrites: u64,
    /// Most MiB that are read ahead of a reader because the store is far away; 0: as much as of devices.
    #[arg(long, default_value_t = Tunables::default().ahead_max >> 20)]
    ahead: u64,
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
    /// Megabytes a second that are read with nothing ahead.
    plain: f64,
    put: f64,
    get: f64,
    /// Overwrites a second.
    overwrite: f64,
    /// Bytes sent for each byte of them, and bytes of them for each PUT.
    sent: f64,
    each_put: f64,
}

/// How slow a store is.
#[derive(Clone, Copy)]
struct Slow {
    latency: u64,
    line: u64,
}

fn store(slow: Slow) -> Arc<dyn ObjectStore> {
    let latency = Duration::from_millis(slow.latency);
    let config = ThrottleConfig {
        wait_delete_per_call: latency,
        wait_get_per_call: latency,
        wait_list_per_call: latency,
        wait_put_per_call: latency,
        ..ThrottleConfig::default()
    };
    let store = Arc::new(ThrottledStore::new(InMemory::new(), config));
    match slow.line {
        0 => store,
        line => Line::new(store, line * 1_000_000),
    }
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
            // The pool has a copy of what it is given as well, block by block: a store in memory joins them.
            let blocks = noise.chunks(BLOCK).map(Bytes::copy_from_slice);
            store.put(&name, blocks.collect::<PutPayload>()).await.map(drop)
        });
        Ok(runtime.block_on(put)?)
    })?;
    let get = seconds(|| {
        let got = all().map(async |name| store.get(&name).await?.bytes().await);
        // A reader gets a copy, as from the pool.
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

/// Seconds of writing and reading, and megabytes a second with nothing read ahead.
fn in_order(name: &Path, bytes: u64) -> anyhow::Result<(f64, f64, f64)> {
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
    drop(engine);
    let engine = import(name)?;
    let fs = open(&engine, BLOCK as u64)?;
    let file = fs.open_file(fs.lookup(fs.root(), b"file")?)?;
    let (part, mut large) = (bytes.min(PLAIN), vec![0; LARGE]);
    let plain = seconds(|| {
        for at in (0..part).step_by(LARGE) {
            anyhow::ensure!(file.read(at, &mut large)? == LARGE, "the file ends at {at}");
        }
        Ok(())
    })?;
    drop((file, fs));
    engine.export(false)?;
    Ok((write, read, part as f64 / 1e6 / plain))
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

fn measure(args: &ObjectArgs, slow: Slow, run: usize) -> anyhow::Result<Figures> {
    let bytes = args.size << 20;
    let usual = Tunables { ahead_max: args.ahead << 20, ..Tunables::default() };
    let provided = |what: &str, tunables: Tunables| {
        let name = PathBuf::from(format!("bench://{what}-{}-{}-{run}", slow.latency, slow.line));
        object::provide(&name, store(slow), tunables);
        name
    };
    let (put, get) = raw(&store(slow), bytes, &usual)?;
    let name = provided("order", usual.clone());
    let (write, read, plain) = in_order(&name, bytes)?;
    // Its bytes are kept no longer.
    object::provide(&name, store(slow), usual.clone());
    // Nothing is written anew because of dead blocks.
    let name = provided("random", Tunables { live_percent: 0, ..usual.clone() });
    let (overwrite, sent, each_put) = overwrites(&name, bytes / 4, args.overwrites)?;
    object::provide(&name, store(slow), usual);
    Ok(Figures { write, read, plain, put, get, overwrite, sent, each_put })
}

/// Runs the rows and prints them.
///
/// # Errors
/// A row fails.
pub fn run(args: &ObjectArgs) -> anyhow::Result<()> {
    let megabytes = (args.size << 20) as f64 / 1e6;
    println!(
        "{:>8} {:>6} {:>10} {:>10} {:>6} {:>10} {:>10} {:>6} {:>10} {:>12} {:>8} {:>10}",
        "latency",
        "line",
        "write",
        "PUT",
        "ratio",
        "read",
        "GET",
        "ratio",
        "not ahead",
        "overwrites",
        "sent",
        "each PUT"
    );
    println!(
        "{:>8} {:>6} {:>10} {:>10} {:>6} {:>10} {:>10} {:>6} {:>10} {:>12} {:>8} {:>10}",
        "ms", "MB/s", "MB/s", "MB/s", "", "MB/s", "MB/s", "", "MB/s", "ops/s", "/byte", "KiB"
    );
    let all = args
        .latency
        .iter()
        .flat_map(|latency| args.line.iter().map(|line| Slow { latency: *latency, line: *line }));
    for slow in all {
        let Slow { latency, line } = slow;
        let runs = (0..args.runs.max(1)).map(|run| measure(args, slow, run));
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
        let (operations, plain) = (median(|f| f.overwrite), median(|f| f.plain));
        println!(
            "{latency:>8} {line:>6} {write:>10.0} {put:>10.0} {:>6.2} {read:>10.0} {get:>10.0} {:>6.2} {plain:>10.0} {operations:>12.0} {sent:>8.3} {:>10.0}",
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
