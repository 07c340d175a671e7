//! What allocations take while other metaslabs are loaded.
//!
//! In each round an allocator begins with nothing loaded. One metaslab is brought in by the first
//! allocation, which is timed apart; then several threads allocate blocks of all sizes that can be
//! served, for as long as the thread in the background loads the others. Each keeps its last
//! [`KEPT`] blocks and gives back what is older, so that space never runs out. Another round does
//! the same when everything is loaded already: what the machine itself does to latencies.
//!
//! A slow allocation in whose neighbourhood the kernel took the processor from the thread says
//! nothing about the allocator; such ones are counted apart.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cenote_store::alloc::{AllocError, Allocator, Class, MetaslabInfo, Request, VdevInfo};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use super::Spoiled;

/// Blocks that a thread keeps.
const KEPT: usize = 64;
/// Sizes in KiB that can be served.
const SIZES: [u64; 6] = [4, 8, 16, 64, 128, 168];
/// Sizes that cannot: no histogram leaves hope for the first; the second is of the largest power
/// of two that there are segments of.
const TOO_LARGE: [u64; 2] = [256, 200];
/// Allocations between two looks at how often the thread was put aside.
const LOOK: u64 = 128;
/// How long a round without loads takes.
const QUIET: Duration = Duration::from_millis(300);
/// Latencies above this are looked at.
const SLOW: u32 = 50_000;

/// Allocations of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// What was done.
    pub name: String,
    /// Number of allocations.
    pub count: u64,
    /// Percentiles and maximum of all, in microseconds: 50, 99, 99.9, 99.99, 100.
    pub micros: [f64; 5],
    /// The same of those during which the thread was not put aside.
    pub on_cpu_micros: [f64; 5],
    /// Metaslabs that were loaded meanwhile.
    pub loads: u64,
    /// Allocations that waited for a load, and those that did so in vain.
    pub waits: (u64, u64),
    /// Allocations that were refused, as they had to be.
    pub refused: u64,
}

/// Latencies in nanoseconds, and whether the thread was put aside.
#[derive(Default)]
struct Samples {
    all: Vec<(u32, bool)>,
    refused: u64,
}

fn put_aside() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
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
    fn of(name: &str, samples: &Samples, allocator: &Allocator, loads: u64) -> Row {
        let all = samples.all.iter().map(|(nanos, _)| *nanos).collect();
        let undisturbed = samples.all.iter().filter(|(_, aside)| !aside);
        Row {
            name: name.into(),
            count: samples.all.len() as u64,
            micros: percentiles(all),
            on_cpu_micros: percentiles(undisturbed.map(|(nanos, _)| *nanos).collect()),
            loads,
            waits: allocator.waits(),
            refused: samples.refused,
        }
    }
}

/// A thread's work until `done`.
fn work(
    allocator: &Arc<Allocator>,
    number: usize,
    sizes: &[u64],
    done: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Samples> {
    let (mut samples, mut kept) = (Samples::default(), VecDeque::new());
    let mut aside = put_aside();
    for i in 0u64.. {
        if i % LOOK == 0 {
            if done() {
                break;
            }
            aside = put_aside();
        }
        let kib = sizes[(i as usize + number) % sizes.len()];
        let request = Request {
            psize: kib << 10,
            copies: 1,
            class: Class::Normal,
            allocator: number,
            gang: false,
            near: None,
        };
        let start = Instant::now();
        let found = allocator.allocate(1, &request);
        let nanos = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
        samples.all.push((nanos, nanos > SLOW && put_aside() != aside));
        match found {
            Ok((_, dvas)) => kept.extend(dvas),
            Err(AllocError::NoSegment { .. }) => samples.refused += 1,
            Err(e) => return Err(e.into()),
        }
        while kept.len() > KEPT {
            let oldest = kept.pop_front().context("no block")?;
            allocator.unallocate(1, &oldest)?;
        }
    }
    kept.iter().try_for_each(|dva| allocator.unallocate(1, dva))?;
    Ok(samples)
}

fn threads(
    allocator: &Arc<Allocator>,
    count: usize,
    sizes: &[u64],
    done: &(dyn Fn() -> bool + Sync),
) -> anyhow::Result<Samples> {
    let failed = AtomicBool::new(false);
    let stop = || failed.load(Ordering::Relaxed) || done();
    let all: Vec<anyhow::Result<Samples>> = std::thread::scope(|scope| {
        let one = |n| {
            let (stop, failed) = (&stop, &failed);
            scope.spawn(move || {
                let samples = work(allocator, n, sizes, stop);
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
                *metaslab = MetaslabInfo { allocated: size, histogram: None };
            }
        }
    }
    vdevs
}

/// All rows; each of `rounds` rounds adds to the first ones.
pub fn rows(spoiled: &Spoiled, count: usize, rounds: usize) -> anyhow::Result<Vec<Row>> {
    let vdevs = only_spoiled(spoiled);
    let (mut first, mut busy, mut quiet) = <(Samples, Samples, Samples)>::default();
    let mut last = spoiled.allocator(&vdevs)?;
    let mut loads = 0;
    for _ in 0..rounds {
        spoiled.pool.store().drop_caches();
        let allocator = spoiled.allocator(&vdevs)?;
        let once = AtomicBool::new(false);
        let done = || once.swap(true, Ordering::Relaxed);
        let one = work(&allocator, 0, &[4], &done)?;
        first.all.extend(one.all.first());
        let before = allocator.load_latency().count();
        allocator.preload();
        let settled = || allocator.is_settled();
        let samples = threads(&allocator, count, &SIZES, &settled)?;
        ensure!(samples.refused == 0, "{} allocations were refused", samples.refused);
        busy.all.extend(samples.all);
        loads += allocator.load_latency().count() - before;
        let start = Instant::now();
        let quiet_for = || start.elapsed() > QUIET;
        quiet.all.extend(threads(&allocator, count, &SIZES, &quiet_for)?.all);
        last = allocator;
    }
    let mut rows = vec![
        Row::of("the first one, which waits for a load", &first, &last, rounds as u64),
        Row::of("while metaslabs are loaded", &busy, &last, loads),
        Row::of("when all are loaded", &quiet, &last, 0),
    ];
    for kib in TOO_LARGE {
        let allocator = spoiled.allocator(&vdevs)?;
        let start = Instant::now();
        let done = || start.elapsed() > QUIET && allocator.is_settled();
        let samples = threads(&allocator, count, &[kib], &done)?;
        ensure!(samples.refused == samples.all.len() as u64, "{kib} KiB were allocated");
        let loads = allocator.load_latency().count();
        rows.push(Row::of(
            &format!("{kib} KiB, which nothing can serve"),
            &samples,
            &allocator,
            loads,
        ));
    }
    Ok(rows)
}
