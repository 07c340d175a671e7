//! How long one space map takes to load, and how much memory what was loaded takes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::spoil::{Map, SHIFT};
use super::{POOL, Spoiled};
use crate::measure::{forget, measure};

/// One load; also what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Number of the metaslab.
    pub metaslab: u64,
    /// Whether the engine's cache was empty.
    pub cold: bool,
    /// Wall time.
    pub seconds: f64,
    /// CPU time of all threads.
    pub cpu_seconds: f64,
    /// Free segments.
    pub segments: u64,
    /// Bytes of memory of the loaded form.
    pub memory: u64,
    /// Bits of that for each sector of the metaslab.
    pub bits_per_sector: f64,
}

/// Loads every spoiled metaslab twice, each time into an allocator that has nothing loaded.
pub fn loads(spoiled: &Spoiled, image: &Path, seed: u64) -> anyhow::Result<Vec<Load>> {
    let mut all = Vec::new();
    for ms in &spoiled.metaslabs {
        let expected = Map::spoiled(seed.wrapping_add(*ms))?;
        spoiled.pool.store().drop_caches();
        forget(image)?;
        for cold in [true, false] {
            all.push(load(spoiled, *ms, cold, &expected)?);
        }
    }
    Ok(all)
}

fn load(spoiled: &Spoiled, ms: u64, cold: bool, expected: &Map) -> anyhow::Result<Load> {
    let allocator = spoiled.allocator(&spoiled.vdevs)?;
    let run = measure("load", || {
        ensure!(allocator.load(0, ms), "metaslab {ms} cannot be loaded");
        Ok((0, 1))
    })?;
    let group = allocator.groups().next().context("no vdev")?;
    let metaslab = group.metaslabs().get(ms as usize).context("no such metaslab")?;
    let free = metaslab.extent().size - metaslab.allocated();
    ensure!(
        metaslab.histogram() == expected.histogram && free == expected.free,
        "metaslab {ms} is loaded with {free} bytes free instead of {}",
        expected.free
    );
    let sectors = metaslab.extent().size >> SHIFT;
    let memory = metaslab.memory();
    Ok(Load {
        metaslab: ms,
        cold,
        seconds: run.seconds,
        cpu_seconds: run.cpu_seconds,
        segments: metaslab.histogram().counts().iter().sum(),
        memory,
        bits_per_sector: memory as f64 * 8.0 / sectors as f64,
    })
}

/// What OpenZFS's own engine says of the pool: `alloc` loads its metaslabs, `alloc-blocks` allocates
/// from them with so many threads.
pub fn peer<T: DeserializeOwned>(
    program: &Path,
    dir: &Path,
    mode: &[&str],
) -> anyhow::Result<Vec<T>> {
    let (name, more) = mode.split_first().context("no mode")?;
    let out = Command::new(program)
        .arg(name)
        .arg(dir)
        .arg(POOL)
        .args(more)
        .output()
        .with_context(|| format!("running {}", program.display()))?;
    if !out.status.success() {
        bail!("{} failed: {}", program.display(), String::from_utf8_lossy(&out.stderr));
    }
    let lines = String::from_utf8(out.stdout)?;
    let rows = lines.lines().filter(|l| l.starts_with('{'));
    rows.map(|l| serde_json::from_str(l).with_context(|| format!("peer's line {l:?}"))).collect()
}
