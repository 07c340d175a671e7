//! The rows of `cenote-bench read`.
//!
//! Three kinds of reads, each cold and warm: sequential of 128 KiB, the same of lz4 blocks, random of 8 KiB. The
//! peer makes the pool and reads it first; then the same objects are read from the raw file and by this engine, on
//! a fresh import each time, and the median of several runs counts. A walk over the files of a sample pool follows,
//! and then cached reads ([`cached`]).
//!
//! *Cold* means that the page cache and the ARC have nothing of it. Offsets are the same on all sides: every block
//! once in order, or as many drawn from a fixed seed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use cenote_dmu::{Object, zap::Zap};
use cenote_pool::{ImportOptions, Pool, discover};
use cenote_zpl::FileSystem;

use crate::ReadArgs;
use crate::cached;
use crate::measure::{Run, forget, measure, medians};
use crate::report;

/// A kind of read: object, request size in bytes, order, names of its cold and warm rows.
struct Kind {
    object: &'static str,
    request: usize,
    random: bool,
    cold: &'static str,
    warm: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        object: "raw",
        request: 128 << 10,
        random: false,
        cold: "sequential 128K cold",
        warm: "sequential 128K warm",
    },
    Kind {
        object: "lz4",
        request: 128 << 10,
        random: false,
        cold: "sequential 128K lz4 cold",
        warm: "sequential 128K lz4 warm",
    },
    Kind {
        object: "small",
        request: 8 << 10,
        random: true,
        cold: "random 8K cold",
        warm: "random 8K warm",
    },
];

/// Runs everything and prints the table.
pub fn run(args: &ReadArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    if !args.only_cached {
        large_and_cold(args)?;
    }
    cached::run(args)
}

fn large_and_cold(args: &ReadArgs) -> anyhow::Result<()> {
    let image = args.dir.join("bench.img");
    eprintln!("libzpool makes a pool of 3 x {} MiB and reads it ...", args.size);
    let peer = peer(args, &image)?;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for i in 0..args.runs {
        eprintln!("run {} of {} ...", i + 1, args.runs);
        for kind in &KINDS {
            raw.extend(raw_rows(kind, &image, args.size << 20)?);
            ours.extend(our_rows(kind, &image, args)?);
        }
        ours.extend(walk_rows()?);
    }
    fs::remove_file(&image)?;
    report::print(&medians(&ours), &medians(&raw), &peer);
    Ok(())
}

/// Runs the peer, which makes the pool, and returns its rows.
fn peer(args: &ReadArgs, image: &Path) -> anyhow::Result<Vec<Run>> {
    rows_of(
        Command::new(&args.peer)
            .arg("read")
            .arg(image)
            .args([args.size.to_string(), args.cache.to_string()]),
    )
}

/// Runs the peer, which prints a line for each row.
pub fn rows_of(peer: &mut Command) -> anyhow::Result<Vec<Run>> {
    let program = peer.get_program().to_string_lossy().into_owned();
    let out = peer.output().with_context(|| format!("running {program}"))?;
    if !out.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&out.stderr));
    }
    let lines = String::from_utf8(out.stdout)?;
    let rows = lines.lines().filter(|l| l.starts_with('{'));
    rows.map(|l| serde_json::from_str(l).with_context(|| format!("peer's line {l:?}"))).collect()
}

/// Offsets of the requests of one row: every block once in order, or as many at random.
fn offsets(kind: &Kind, bytes: u64) -> impl Iterator<Item = u64> {
    let (request, random) = (kind.request as u64, kind.random);
    let mut state = 1u64;
    (0..bytes / request).map(move |i| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (if random { state % (bytes / request) } else { i }) * request
    })
}

fn read_all(
    row: &str,
    kind: &Kind,
    bytes: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> anyhow::Result<()>,
) -> anyhow::Result<Run> {
    let mut buf = vec![0; kind.request];
    measure(row, || {
        let mut ops = 0;
        for at in offsets(kind, bytes) {
            read(at, &mut buf)?;
            ops += 1;
        }
        Ok((ops * kind.request as u64, ops))
    })
}

fn raw_rows(kind: &Kind, image: &Path, bytes: u64) -> anyhow::Result<[Run; 2]> {
    forget(image)?;
    let file = File::open(image)?;
    let row =
        |name| read_all(name, kind, bytes, |at, buf| Ok(file.read_exact_at(buf, at + (4 << 20))?));
    Ok([row(kind.cold)?, row(kind.warm)?])
}

/// A pool of the directory, imported read-only.
pub fn import(dir: &Path, name: &str, cache: u64) -> anyhow::Result<Arc<Pool>> {
    let found = discover(&[dir.to_path_buf()]);
    let candidate = found.iter().find(|c| c.name == name);
    let candidate = candidate.with_context(|| format!("no pool {name} in {}", dir.display()))?;
    let options =
        ImportOptions { readonly: true, force: true, arc_bytes: Some(cache), ..Default::default() };
    Ok(Pool::import(candidate, &options)?)
}

fn our_rows(kind: &Kind, image: &Path, args: &ReadArgs) -> anyhow::Result<[Run; 2]> {
    forget(image)?;
    let pool = import(&args.dir, "bench", args.cache << 20)?;
    let object = open(&pool, kind.object)?;
    forget(image)?;
    let row = |name| read_object(name, kind, &object, args.size << 20);
    Ok([row(kind.cold)?, row(kind.warm)?])
}

/// An object that the peer made.
pub fn open(pool: &Pool, name: &str) -> anyhow::Result<Object> {
    let dataset = pool.dsl().find("bench/data")?.context("no dataset bench/data")?;
    let objset = pool.dsl().open_objset(&dataset)?;
    let names = Zap::open(&objset.object(1)?)?;
    let number = names.u64(name.as_bytes())?.context("object is not in the directory")?;
    Ok(objset.object(number)?)
}

fn read_object(row: &str, kind: &Kind, object: &Object, bytes: u64) -> anyhow::Result<Run> {
    let ahead = if kind.random { 0 } else { 8 * kind.request as u64 };
    read_all(row, kind, bytes, |at, buf| {
        if ahead > 0 && at % ahead == 0 {
            object.prefetch(at + ahead, ahead);
        }
        Ok(object.read(at, buf)?)
    })
}

/// Walks a file system of 5,400 files: list every directory, stat every file.
fn walk_rows() -> anyhow::Result<[Run; 2]> {
    let sample = cenote_testpools::pool("basic");
    let pool = import(&sample.dir, "basic", 256 << 20)?;
    let dataset = pool.dsl().find("basic")?.context("no dataset basic")?;
    let fs = FileSystem::open(pool.dsl().open_objset(&dataset)?)?;
    let row = |name| measure(name, || Ok((0, walk(&fs)?)));
    Ok([row("metadata walk cold")?, row("metadata walk warm")?])
}

fn walk(fs: &FileSystem) -> anyhow::Result<u64> {
    let (mut files, mut dirs) = (0, vec![fs.root()]);
    while let Some(dir) = dirs.pop() {
        let mut cookie = 0;
        loop {
            let entries = fs.readdir(dir, cookie, 1000)?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            for entry in &entries {
                let attr = fs.attr(entry.ino)?;
                files += 1;
                if attr.mode & 0o170000 == 0o040000 {
                    dirs.push(entry.ino);
                }
            }
        }
    }
    ensure!(files > 5000, "only {files} files seen");
    Ok(files)
}
