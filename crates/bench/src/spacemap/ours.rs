//! This software's side, and OpenZFS's `zdb` that judges the pool it leaves.
//!
//! The pool is made with about 256 metaslabs (at least half as many), filled with 16 objects of 8 KiB blocks, and aged
//! by random overwrites in groups of 128 MiB. Then each amount is measured: a few groups to warm up, then the groups
//! that count, each of which is waited for. No group is closed by time or by size, so that a group has what was asked
//! for.
//!
//! Figures come from the engine (time of each pass, blocks by kind), from the devices (operations and bytes
//! written), and from the system (processor time, memory at most). In the end the pool is exported, and `zdb` has
//! to account for every block.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cenote_dmu::live::{Cost, LiveObjectSet};
use cenote_dmu::write::{NewObject, WriteError};
use cenote_engine::tunables;
use cenote_engine::{Engine, EngineOptions};
use cenote_format::compress::Compression;
use cenote_format::dmu::DmuType;
use cenote_vdev::traffic::{Amount, Content, Traffic};
use nix::sys::resource::{UsageWho, getrusage};

use super::{Blocks, Io, Measured, Work};
use crate::measure::measure;
use crate::noise::Noise;
use crate::write::create;

/// Bytes of a block, and of a write that fills.
const BLOCK: u64 = 8 << 10;
const FILL_BLOCK: u64 = 128 << 10;
/// Objects that the data is in.
const OBJECTS: u64 = 16;
/// Bytes that are overwritten in each group of the ageing.
const AGE_BYTES: u64 = 128 << 20;
/// Groups before those that are measured.
const WARM: u64 = 3;
/// Metaslabs of the pool, at least half of it.
const METASLABS: u64 = 256;
/// Where the numbers start.
const SEED: u64 = 1;

struct Ager {
    engine: Arc<Engine>,
    set: Arc<LiveObjectSet>,
    objects: Vec<u64>,
    /// Of each object.
    blocks: u64,
    numbers: Noise,
    block: Vec<u8>,
    /// Blocks that are written, and that will be.
    done: u64,
    in_all: u64,
}

/// Does the work and exports the pool.
pub fn rows(work: &Work, image: &Path, logs: bool) -> anyhow::Result<Vec<Measured>> {
    tunables::VDEV_DEFAULT_MS_COUNT.set(2 * METASLABS)?;
    let shift = u64::from(((work.size << 20) / METASLABS).ilog2());
    tunables::VDEV_DEFAULT_MS_SHIFT.set(shift.max(tunables::VDEV_DEFAULT_MS_SHIFT.range.0))?;
    tunables::TXG_HISTORY.set(work.txgs + WARM)?;
    // Groups are as large as is asked for.
    tunables::DIRTY_DATA_SYNC.set(0)?;
    let options =
        EngineOptions { txg_timeout: Some(Duration::from_secs(3600)), ..EngineOptions::default() };
    let features = [("log_spacemap".to_string(), logs)];
    let image = image.to_path_buf();
    let engine = create(image, Compression::Off, work.cache << 20, &features, options)?;
    let set = engine.live(engine.pool().dsl().root()?.ds_obj)?;
    let new = NewObject::new(DmuType::PLAIN_FILE_CONTENTS, BLOCK);
    let objects: Result<_, WriteError> = set
        .transact(Cost { objects: OBJECTS, ..Cost::default() }, |set, _| {
            (0..OBJECTS).map(|_| set.allocate(&new)).collect()
        });
    let mut numbers = Noise(SEED);
    let mut block = vec![0; FILL_BLOCK as usize];
    numbers.fill(&mut block);
    let measured: u64 = work.dirty.iter().map(|mib| (mib << 20) / BLOCK * (work.txgs + WARM)).sum();
    let (objects, done, in_all) = (objects?, 0, measured);
    let mut ager = Ager { engine, set, objects, blocks: 0, numbers, block, done, in_all };
    ager.fill_and_age((work.size << 20) / 100 * work.fill, work.age)?;
    let mut rows = Vec::new();
    for dirty in &work.dirty {
        rows.push(ager.measure(logs, dirty << 20, work.txgs)?);
    }
    let Ager { engine, set, .. } = ager;
    drop(set);
    engine.export(false)?;
    Ok(rows)
}

impl Ager {
    fn write(&self, object: u64, at: u64, len: u64) -> anyhow::Result<()> {
        let data = self.block.get(..len as usize).context("a block too long")?;
        let cost = Cost { write: len, ..Cost::default() };
        let done: Result<(), WriteError> =
            self.set.transact(cost, |set, _| set.write(object, at, data));
        Ok(done?)
    }

    fn overwrite(&mut self, count: u64) -> anyhow::Result<()> {
        for _ in 0..count {
            let value = self.numbers.next();
            let at = self.numbers.next() % self.blocks * BLOCK;
            self.stamp(value);
            let object = self.objects.get((value % OBJECTS) as usize).copied();
            self.write(object.context("no such object")?, at, BLOCK)?;
        }
        self.engine.sync()?;
        self.progress(count);
        Ok(())
    }

    fn progress(&mut self, more: u64) {
        self.done += more;
        println!("at {} {}", self.done, self.in_all);
    }

    /// Makes the block unlike all others, at the cost of eight bytes.
    fn stamp(&mut self, value: u64) {
        if let Some(start) = self.block.first_chunk_mut() {
            *start = value.to_le_bytes();
        }
    }

    fn fill_and_age(&mut self, bytes: u64, percent: u64) -> anyhow::Result<()> {
        let each = bytes / OBJECTS / FILL_BLOCK * FILL_BLOCK;
        self.blocks = each / BLOCK;
        let mut left = self.blocks * OBJECTS * percent / 100;
        self.in_all += self.blocks * OBJECTS + left;
        for at in (0..each).step_by(FILL_BLOCK as usize) {
            self.stamp(at);
            for object in self.objects.clone() {
                self.write(object, at, FILL_BLOCK)?;
            }
            if at % (FILL_BLOCK * 64) == 0 {
                self.progress((each - at).min(FILL_BLOCK * 64) / BLOCK * OBJECTS);
            }
        }
        self.engine.sync()?;
        while left > 0 {
            let now = left.min(AGE_BYTES / BLOCK);
            self.overwrite(now)?;
            left -= now;
        }
        Ok(())
    }

    /// Operations and bytes that were written to the device.
    fn written(&self) -> (u64, u64) {
        let pool = self.engine.pool();
        let leaves = pool.store().vdevs().leaves();
        leaves.iter().map(|leaf| leaf.io_stats()).fold((0, 0), |(ops, bytes), io| {
            let (_, writes, _, written) = io;
            (ops + writes, bytes + written)
        })
    }

    fn measure(&mut self, logs: bool, dirty: u64, txgs: u64) -> anyhow::Result<Measured> {
        for _ in 0..WARM {
            self.overwrite(dirty / BLOCK)?;
        }
        let (before, first) = (self.written(), self.engine.pool().uberblock().txg + 1);
        let begun = Instant::now();
        let run = measure("spacemap", || {
            for _ in 0..txgs {
                self.overwrite(dirty / BLOCK)?;
            }
            Ok((0, dirty / BLOCK * txgs))
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let after = self.written();
        let groups = self.engine.figures();
        let groups: Vec<_> = groups.iter().filter(|group| group.txg >= first).collect();
        let sync: Duration = groups.iter().map(|group| group.total).sum();
        let first_passes = groups.iter().filter_map(|group| group.passes.first());
        let first_pass: Duration = first_passes.map(|pass| pass.time).sum();
        let compared: Duration = groups.iter().map(|group| group.compared).sum();
        let passes_time: Duration = groups.iter().map(|group| group.all_passes()).sum();
        let (mut blocks, mut writes) = (Traffic::default(), Traffic::default());
        groups.iter().for_each(|group| blocks += group.blocks);
        groups.iter().for_each(|group| writes += group.writes);
        let io = |amount: Amount| Io { ios: amount.count, bytes: amount.bytes };
        let passes = groups.iter().map(|group| group.passes.len() as u64).sum();
        let pool = self.engine.pool();
        let space = pool.space().context("free space is not known")?;
        let metaslabs = || space.vdevs.iter().flat_map(|v| v.metaslabs.iter().map(move |m| (v, m)));
        let count = metaslabs().count() as u64;
        let all: u64 = metaslabs().map(|(_, m)| m.size).sum();
        let allocated: u64 = metaslabs().map(|(v, m)| v.alloc_of(m)).sum();
        let memory = u64::try_from(getrusage(UsageWho::RUSAGE_SELF)?.max_rss())? << 10;
        Ok(Measured {
            logs,
            dirty,
            txgs: groups.len() as u64,
            overwrites: run.ops,
            seconds,
            cpu_seconds: run.cpu_seconds,
            sync_seconds: sync.as_secs_f64(),
            first_pass_seconds: first_pass.as_secs_f64(),
            passes_seconds: passes_time.as_secs_f64(),
            compared_seconds: Some(compared.as_secs_f64()),
            passes,
            blocks: Blocks {
                data: io(blocks.data()),
                indirect: None,
                space_map: io(blocks.space_maps()),
                other: io(blocks.of(Content::Metadata)),
            },
            device_writes: after.0 - before.0,
            device_bytes: after.1 - before.1,
            data_writes: Some(writes.data().count),
            memory,
            metaslabs: count,
            touched: metaslabs().filter(|(_, m)| m.space_map != 0).count() as u64,
            full: allocated as f64 / all.max(1) as f64,
        })
    }
}

/// Has OpenZFS's `zdb` read the pool in `dir` and account for every block of it.
pub fn check(dir: &Path) -> anyhow::Result<()> {
    eprintln!("  zdb -bcc ...");
    let mut zdb = Command::new("/sbin/zdb");
    let args = ["-o", "zfs_arc_min_prescient_prefetch_ms=1", "-bcc", "-e", "-p"];
    let out = zdb.args(args).arg(dir).arg("benchwrite").output().context("zdb")?;
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    let clean = text.contains("No leaks (block sum matches space maps exactly)");
    ensure!(out.status.success() && clean, "zdb finds fault with the pool:\n{text}");
    Ok(())
}
