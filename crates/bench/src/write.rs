//! The rows of `cenote-bench write`: writing through the library, beside OpenZFS's own engine.
//!
//! Each side makes a pool on its own file in the same directory, writes the same amounts in the same
//! order, and waits at the end of each row until all of it is on disk.

use cenote_dmu::outside::Chance;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail};
use cenote_dmu::write::WriteError;
use cenote_dsl::write::props::NewValue;
use cenote_engine::create::{CreateSpec, FIRST_TXG, Layout, Redundancy, SystemDevices, VdevSpec};
use cenote_engine::{CreateRequest, Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_pool::features::{FeatureChoice, choose_features};
use cenote_zpl::{CreateProps, FileSystem, NewNode, NodeKind, Settings};

use crate::WriteArgs;
use crate::measure::{Run, measure, medians};
use crate::mounted::make_image;
use crate::noise::Noise;
use crate::report;

/// Bytes of the cache.
const ARC: u64 = 256 << 20;
/// Bytes of a small file.
const SMALL: usize = 1024;
/// Small files in a directory.
const PER_DIRECTORY: usize = 1000;

/// Runs everything and prints the table.
pub fn run(args: &WriteArgs) -> anyhow::Result<()> {
    fs::create_dir_all(&args.dir)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for i in 0..args.runs {
        eprintln!("run {} of {}: libzpool ...", i + 1, args.runs);
        if let Some(program) = &args.peer {
            theirs.extend(peer(program, args)?);
        }
        eprintln!("run {} of {}: cenote ...", i + 1, args.runs);
        ours.extend(our_rows(args)?);
    }
    report::print_write(&medians(&ours), &medians(&theirs));
    Ok(())
}

fn peer(program: &Path, args: &WriteArgs) -> anyhow::Result<Vec<Run>> {
    let image = args.dir.join("peer.img");
    let out = Command::new(program)
        .arg("write")
        .arg(&image)
        .args([args.size.to_string(), args.overwrites.to_string()])
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    let _ = fs::remove_file(&image);
    if !out.status.success() {
        bail!("{} failed: {}", program.display(), String::from_utf8_lossy(&out.stderr));
    }
    let lines = String::from_utf8(out.stdout)?;
    let rows = lines.lines().filter(|l| l.starts_with('{'));
    rows.map(|l| serde_json::from_str(l).with_context(|| format!("peer's line {l:?}"))).collect()
}

/// A pool on `path`; `features` are those that are (true) or are not to be enabled, of all.
pub fn create(
    path: PathBuf,
    compression: Compression,
    arc_bytes: u64,
    features: &[(String, bool)],
    options: EngineOptions,
) -> anyhow::Result<Arc<Engine>> {
    let spec = VdevSpec::new(Redundancy::Single, vec![path]);
    create_on(spec, compression, arc_bytes, features, options)
}

/// The same on a top-level vdev of files.
pub fn create_on(
    spec: VdevSpec,
    compression: Compression,
    arc_bytes: u64,
    features: &[(String, bool)],
    options: EngineOptions,
) -> anyhow::Result<Arc<Engine>> {
    let layout = Layout { tops: vec![spec], ..Layout::default() };
    let choice = FeatureChoice { none: false, compatibility: None, named: features };
    let (features, _) = choose_features(&choice).map_err(anyhow::Error::msg)?;
    let compression = NewValue::Number(compression as u64);
    let request = CreateRequest {
        temporary_name: None,
        spec: CreateSpec {
            name: "benchwrite",
            layout: &layout,
            ashift: 12,
            force: true.into(),
            pool: None,
            txg: FIRST_TXG,
            imported: &[],
            devices: &SystemDevices,
            chance: &Chance::default(),
        },
        features: &features,
        props: &[],
        root_props: &[("compression".into(), compression)],
        encryption: None,
        altroot: None,
        arc_bytes: Some(arc_bytes),
    };
    Ok(Engine::create(&request, options, |os| {
        cenote_zpl::format(os, &CreateProps::default(), FIRST_TXG)
            .map_err(|e| WriteError::Sink(Box::new(e)))
    })?)
}

pub fn open(engine: &Engine, record_size: u64) -> anyhow::Result<Arc<FileSystem>> {
    let live = engine.live(engine.pool().dsl().root()?.ds_obj)?;
    Ok(FileSystem::open_live(live, Settings { record_size, ..Settings::default() })?)
}

pub fn node(kind: NodeKind) -> NewNode {
    NewNode { kind, mode: 0o755, umask: 0, uid: 0, gid: 0, keep_setgid: true }
}

fn our_rows(args: &WriteArgs) -> anyhow::Result<Vec<Run>> {
    let path = args.dir.join("cenote.img");
    let bytes = args.size << 20;
    let mut rows = Vec::new();
    for (row, noise, compression) in [
        ("sequential 128K", 128 << 10, Compression::Off),
        ("sequential 128K lz4", 64 << 10, Compression::Lz4),
    ] {
        make_image(&path, 2 * bytes + (256 << 20))?;
        let engine = create(path.clone(), compression, ARC, &[], EngineOptions::default())?;
        rows.push(sequential(row, &engine, bytes, noise)?);
        finish(engine)?;
    }
    make_image(&path, 2 * bytes + (256 << 20))?;
    let engine = create(path.clone(), Compression::Off, ARC, &[], EngineOptions::default())?;
    rows.push(overwrites("random 8K overwrites", &engine, bytes / 4, args.overwrites)?);
    rows.extend(small_files(&engine, args.files)?);
    finish(engine)?;
    fs::remove_file(&path)?;
    Ok(rows)
}

fn finish(engine: Arc<Engine>) -> anyhow::Result<()> {
    for txg in engine.figures() {
        tracing::debug!("{txg:?}");
    }
    Ok(engine.export(false)?)
}

fn sequential(row: &str, engine: &Engine, bytes: u64, noise: usize) -> anyhow::Result<Run> {
    let fs = open(engine, 128 << 10)?;
    let file = fs.create(fs.root(), b"file", &node(NodeKind::File))?;
    let mut block = vec![0; 128 << 10];
    Noise(1).fill(&mut block[..noise]);
    measure(row, || {
        for at in (0..bytes).step_by(block.len()) {
            // A block unlike all others, at the cost of eight bytes.
            block[..8].copy_from_slice(&(at + 1).to_le_bytes());
            fs.write(file.ino, at, &block, false)?;
        }
        engine.sync()?;
        Ok((bytes, bytes / block.len() as u64))
    })
}

fn overwrites(row: &str, engine: &Engine, bytes: u64, count: u64) -> anyhow::Result<Run> {
    let fs = open(engine, 8 << 10)?;
    let file = fs.create(fs.root(), b"records", &node(NodeKind::File))?;
    let (mut block, mut noise) = (vec![0; 8 << 10], Noise(7));
    noise.fill(&mut block);
    for at in (0..bytes).step_by(block.len()) {
        fs.write(file.ino, at, &block, false)?;
    }
    engine.sync()?;
    measure(row, || {
        for _ in 0..count {
            let at = noise.next() % (bytes / 8192) * 8192;
            block[..8].copy_from_slice(&noise.next().to_le_bytes());
            fs.write(file.ino, at, &block, false)?;
        }
        engine.sync()?;
        Ok((count * 8192, count))
    })
}

fn small_files(engine: &Engine, count: usize) -> anyhow::Result<[Run; 2]> {
    let fs = open(engine, 128 << 10)?;
    let mut data = vec![0; SMALL];
    Noise(3).fill(&mut data);
    let directories: Vec<u64> = (0..count.div_ceil(PER_DIRECTORY))
        .map(|i| Ok(fs.create(fs.root(), format!("d{i}").as_bytes(), &node(NodeKind::Dir))?.ino))
        .collect::<anyhow::Result<_>>()?;
    let created = measure("create small files", || {
        for i in 0..count {
            let name = format!("f{i}");
            let dir = directories[i / PER_DIRECTORY];
            let file = fs.create(dir, name.as_bytes(), &node(NodeKind::File))?;
            fs.write(file.ino, 0, &data, false)?;
        }
        engine.sync()?;
        Ok((0, count as u64))
    })?;
    let deleted = measure("delete small files", || {
        for i in 0..count {
            fs.unlink(directories[i / PER_DIRECTORY], format!("f{i}").as_bytes(), &|_| false)?;
        }
        engine.sync()?;
        Ok((0, count as u64))
    })?;
    Ok([created, deleted])
}
