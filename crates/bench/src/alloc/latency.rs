//! What allocations take while other metaslabs are loaded.
//!
//! In each round an allocator begins with nothing loaded. One metaslab is brought in by the first
//! allocation, which is timed apart; then several threads allocate blocks of all sizes that can be
//! served, for as long as the thread in the background loads the others. Each keeps its last
//! [`KEPT`] blocks and gives back what is older, so that space never runs out. Another round does
//! the same when everything is loaded already: what the machine itself does to latencies.
//!
//! On a busy machine a slow allocation may say nothing about the allocator: the kernel took the
//! processor from the thread, or from one that held a lock. So each allocation's own CPU time
//! stands beside, and how often and how long locks were waited for.
//!
//! A last round does what a transaction group's sync does to such metaslabs (see [`super::txgs`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cenote_format::blkptr::Dva;
use cenote_store::alloc::{
    AllocError, Allocator, Class, LockWaits, MetaslabInfo, Request, VdevInfo,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::Spoiled;
use super::txgs::Txgs;

/// Blocks that a thread keeps.
const KEPT: usize = 64;
/// Sizes in KiB that can be served.
const SIZES: [u64; 6] = [4, 8, 16, 64, 128, 168];
/// Sizes that cannot: no histogram leaves hope for the first; the second is of the largest power
/// of two that there are segments of.
const TOO_LARGE: [u64; 2] = [256, 200];
/// Allocations between two looks at whether it is enough.
const LOOK: u64 = 128;
/// How long a round without loads takes.
const QUIET: Duration = Duration::from_millis(300);
/// Allocations of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Short name.
    pub key: String,
    /// What was done.
    pub name: String,
    /// Number of allocations.
    pub count: u64,
    /// Percentiles and maximum of all, in microseconds: 50, 99, 99.9, 99.99, 100.
    pub micros: [f64; 5],
    /// The same of the CPU time that the allocating thread spent.
    pub cpu_micros: [f64; 5],
    /// Times that a lock was not free, all of these waits, and the longest, in microseconds.
    pub lock_waits: (u64, f64, f64),
    /// Metaslabs that were loaded meanwhile.
    pub loads: u64,
    /// Allocations that waited for a load, and those that did so in vain.
    pub waits: (u64, u64),
    /// Allocations that were refused, as they had to be.
    pub refused: u64,
}

/// Allocations of OpenZFS's own engine: what the peer prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerRow {
    /// [`Row::key`] of the row that does the same.
    pub name: String,
    /// Number of allocations.
    pub count: u64,
    /// As [`Row::micros`].
    pub micros: [f64; 5],
    /// Allocations that were refused.
    pub refused: u64,
}

/// What allocations took, in nanoseconds: by the clock, and of the thread's CPU time.
#[derive(Default)]
struct Samples {
    all: Vec<(u32, u32)>,
    refused: u64,
    waits: LockWaits,
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

fn percentiles(mut all: Vec<u32>) -> [f64; 5] {
    all.sort_unstable();
    let last = all.len().saturating_sub(1);
    [0.5, 0.99, 0.999, 0.9999, 1.0].map(|part| {
        let i = ((last as f64) * part).ceil() as usize;
        all.get(i).map_or(0.0, |nanos| f64::from(*nanos) / 1e3)
    })
}

impl Row {
    fn of((key, name): (&str, &str), samples: &Samples, allocator: &Allocator, loads: u64) -> Row {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let waits = samples.waits;
        Row {
            key: key.into(),
            name: name.into(),
            count: samples.all.len() as u64,
            micros: percentiles(samples.all.iter().map(|(wall, _)| *wall).collect()),
            cpu_micros: percentiles(samples.all.iter().map(|(_, cpu)| *cpu).collect()),
            lock_waits: (waits.count, micros(waits.total), micros(waits.longest)),
            loads,
            waits: allocator.waits(),
            refused: samples.refused,
        }
    }
}

/// A thread's work until `done`.
fn work(
    allocator: &Arc<Allocator>,
    txgs: &Txgs,
    number: usize,
    sizes: &[u64],
    done: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Samples> {
    let (mut samples, mut kept) = (Samples::default(), VecDeque::<(u64, Dva)>::new());
    for i in 0u64.. {
        if i % LOOK == 0 && done() {
            break;
        }
        let kib = sizes[(i as usize + number) % sizes.len()];
        let request = Request {
            psize: kib << 10,
            copies: 1,
            class: Class::Normal,
            allocator: number,
            gang: false,
            near: None,
            among: None,
        };
        let txg = txgs.hold();
        let (before, start) = (cpu_time(), Instant::now());
        let found = allocator.allocate(*txg, &request);
        let (wall, cpu) = (start.elapsed(), cpu_time().saturating_sub(before));
        samples.all.push((nanos(wall), nanos(cpu)));
        match found {
            Ok((_, dvas)) => kept.extend(dvas.into_iter().map(|dva| (*txg, dva))),
            Err(AllocError::NoSegment { .. }) => samples.refused += 1,
            Err(e) => return Err(e.into()),
        }
        while kept.len() > KEPT {
            let oldest = kept.pop_front().context("no block")?;
            give_back(allocator, *txg, oldest)?;
        }
    }
    let txg = txgs.hold();
    kept.into_iter().try_for_each(|block| give_back(allocator, *txg, block))?;
    Ok(samples)
}

fn give_back(allocator: &Allocator, txg: u64, (birth, dva): (u64, Dva)) -> anyhow::Result<()> {
    match birth == txg {
        true => Ok(allocator.unallocate(txg, &dva)?),
        false => Ok(allocator.free(txg, &dva)?),
    }
}

fn threads(
    allocator: &Arc<Allocator>,
    txgs: &Txgs,
    count: usize,
    sizes: &[u64],
    done: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Samples> {
    let failed = AtomicBool::new(false);
    let stop = || failed.load(Ordering::Relaxed) || done();
    allocator.take_lock_waits();
    let all: Vec<anyhow::Result<Samples>> = std::thread::scope(|scope| {
        let one = |n| {
            let (stop, failed) = (&stop, &failed);
            scope.spawn(move || {
                let samples = work(allocator, txgs, n, sizes, stop);
                failed.fetch_or(samples.is_err(), Ordering::Relaxed);
                samples
            })
        };
        let running: Vec<_> = (0..count).map(one).collect();
        let joined = running.into_iter().map(|t| t.join());
        joined.map(|r| r.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))).collect()
    });
    let mut sum = Samples::default();
    for samples in all {
        let samples = samples?;
        sum.all.extend(samples.all);
        sum.refused += samples.refused;
    }
    sum.waits = allocator.take_lock_waits();
    Ok(sum)
}

/// The vdev with everything full but the spoiled metaslabs: those with the pool's own blocks are
/// taken for full too.
fn only_spoiled(spoiled: &Spoiled) -> Vec<(Class, VdevInfo)> {
    let mut vdevs = spoiled.vdevs.clone();
    for (_, vdev) in &mut vdevs {
        let size = 1 << vdev.ms_shift;
        for (id, metaslab) in (0u64..).zip(&mut vdev.metaslabs) {
            if !spoiled.metaslabs.contains(&id) {
                *metaslab = MetaslabInfo { allocated: size, histogram: None, off: 0 };
            }
        }
    }
    vdevs
}

impl Samples {
    fn add(&mut self, other: Samples) {
        self.all.extend(other.all);
        self.refused += other.refused;
        self.waits = self.waits.and(other.waits);
    }
}

/// All rows; each of `rounds` rounds adds to the first ones.
pub fn rows(spoiled: &Spoiled, count: usize, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let vdevs = only_spoiled(spoiled);
    let (mut first, mut busy, mut quiet) = <(Samples, Samples, Samples)>::default();
    let mut synced = Samples::default();
    let mut last = spoiled.allocator(&vdevs)?;
    let mut loads = 0;
    for _ in 0..rounds {
        spoiled.pool.store().drop_caches();
        let allocator = spoiled.allocator(&vdevs)?;
        let once = AtomicBool::new(false);
        let done = || once.swap(true, Ordering::Relaxed);
        let txgs = Txgs::default();
        let one = work(&allocator, &txgs, 0, &[4], &done)?;
        first.all.extend(one.all.first());
        let before = allocator.load_latency().count();
        allocator.preload();
        let settled = || allocator.is_settled();
        let samples = threads(&allocator, &txgs, count, &SIZES, &settled)?;
        ensure!(samples.refused == 0, "{} allocations were refused", samples.refused);
        busy.add(samples);
        loads += allocator.load_latency().count() - before;
        let start = Instant::now();
        let quiet_for = || start.elapsed() > QUIET;
        quiet.add(threads(&allocator, &txgs, count, &SIZES, &quiet_for)?);
        let work = |done: &(dyn Fn() -> bool + Sync)| {
            threads(&allocator, &txgs, count, &SIZES, done).map(|samples| synced.add(samples))
        };
        txgs.sync_beside(&allocator, &spoiled.metaslabs, work)?;
        last = allocator;
    }
    let mut rows = vec![
        Row::of(("first", "the first one, which waits for a load"), &first, &last, rounds as u64),
        Row::of(("loading", "while metaslabs are loaded"), &busy, &last, loads),
        Row::of(("loaded", "when all are loaded"), &quiet, &last, 0),
        Row::of(("synced", "while txgs with 100000 frees are synced"), &synced, &last, 0),
    ];
    for kib in TOO_LARGE {
        let allocator = spoiled.allocator(&vdevs)?;
        let start = Instant::now();
        let done = || start.elapsed() > QUIET && allocator.is_settled();
        let samples = threads(&allocator, &Txgs::default(), count, &[kib], &done)?;
        ensure!(samples.refused == samples.all.len() as u64, "{kib} KiB were allocated");
        let loads = allocator.load_latency().count();
        rows.push(Row::of(
            (&kib.to_string(), &format!("{kib} KiB, which nothing can serve")),
            &samples,
            &allocator,
            loads,
        ));
    }
    Ok(rows)
}
