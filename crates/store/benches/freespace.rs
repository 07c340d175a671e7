//! A spoiled metaslab: 16 GiB of 4 KiB sectors with 1.3 million free segments, none above 168 KiB.
//!
//! `cargo bench -p cenote-store --bench freespace`
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use cenote_store::alloc::{Extent, FreeSpace, Loading};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

const EXTENT: Extent = Extent { start: 0, size: 16 << 30, shift: 12 };
const SECTORS: u64 = EXTENT.size >> EXTENT.shift;
const SEGMENTS: u64 = 1_300_000;
const LARGEST: u64 = 42;
/// Records of the space map, most of them of ranges that were allocated and freed again.
const RECORDS: usize = 4_000_000;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Free segments: mostly of one or two sectors, a few larger ones.
fn spoiled() -> Vec<(u64, u64)> {
    let (mut random, mut at, mut segments) = (Random(7), 0, Vec::new());
    while (segments.len() as u64) < SEGMENTS && at < SECTORS {
        let len = match random.below(1000) {
            0 => 1 + random.below(LARGEST),
            1..200 => 2,
            _ => 1,
        };
        let end = (at + len).min(SECTORS);
        segments.push((at << EXTENT.shift, end << EXTENT.shift));
        at = end + 1 + random.below(3);
    }
    segments
}

/// A space map that leaves these segments free: `(allocated, start, end)`.
fn records(segments: &[(u64, u64)]) -> Vec<(bool, u64, u64)> {
    let mut random = Random(11);
    let mut out: Vec<_> = vec![(true, 0, EXTENT.size)];
    out.extend(segments.iter().map(|(s, e)| (false, *s, *e)));
    while out.len() < RECORDS {
        let (s, e) = segments[random.below(segments.len() as u64) as usize];
        out.extend([(true, s, e), (false, s, e)]);
    }
    out
}

fn replay(records: &[(bool, u64, u64)]) -> FreeSpace {
    let mut loading = Loading::new(EXTENT, true).unwrap();
    for (alloc, start, end) in records {
        let changed = match alloc {
            true => loading.alloc(*start, *end),
            false => loading.free(*start, *end),
        };
        changed.unwrap();
    }
    loading.finish()
}

/// What it costs to take 8 KiB and give another 8 KiB back, as a histogram has it.
fn latencies(space: &mut FreeSpace) {
    let mut random = Random(3);
    let mut held = Vec::new();
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..1_000_000 {
        let before = Instant::now();
        let taken = space.best_fit(8192).map(|(start, _)| {
            space.remove(start, start + 8192).unwrap();
            start
        });
        times.push(before.elapsed());
        held.extend(taken);
        if held.len() > 100_000 {
            let start = held.swap_remove(random.below(held.len() as u64) as usize);
            space.add(start, start + 8192).unwrap();
        }
    }
    times.sort_unstable();
    let at = |part: f64| times[(times.len() as f64 * part) as usize];
    println!("allocating 8 KiB: p50 {:?}, p99 {:?}, p99.99 {:?}", at(0.5), at(0.99), at(0.9999));
}

fn bench(c: &mut Criterion) {
    let segments = spoiled();
    let records = records(&segments);
    let mut space = replay(&records);
    let bits = space.memory() as f64 * 8.0 / SECTORS as f64;
    println!(
        "{} segments, the largest {} KiB, {} bytes: {bits:.3} bits per sector",
        space.segments(),
        space.largest() >> 10,
        space.memory(),
    );
    latencies(&mut space);
    let space = replay(&records);

    c.bench_function("load 4 million records", |b| b.iter(|| replay(black_box(&records))));
    c.bench_function("a size that cannot be served", |b| {
        b.iter(|| space.best_fit(black_box(256 << 10)));
    });
    let mut cursor = 0;
    for sectors in [1u64, 2, 8, 32] {
        c.bench_function(&format!("first fit of {sectors} sectors from a cursor"), |b| {
            b.iter(|| {
                let found = space.first_fit(cursor, sectors << 12, 1, u64::MAX);
                cursor = found.map_or(0, |at| at + (sectors << 12));
                found
            });
        });
        c.bench_function(&format!("best fit of {sectors} sectors"), |b| {
            b.iter(|| space.best_fit(black_box(sectors << 12)));
        });
    }
    c.bench_function("allocate and free 8 KiB", |b| {
        b.iter_batched_ref(
            || replay(&records),
            |space| {
                for _ in 0..1000 {
                    let (start, _) = space.best_fit(8192).unwrap();
                    space.remove(start, start + 8192).unwrap();
                    space.add(start, start + 8192).unwrap();
                }
            },
            BatchSize::LargeInput,
        );
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(2));
    targets = bench
}
criterion_main!(benches);
