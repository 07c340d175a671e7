//! What handling a 128 KiB buffer costs: allocating it, slicing it, copying out of it.

use std::hint::black_box;

use cenote_format::abd::{Abd, AbdMut, copies};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const RECORD: usize = 128 << 10;

fn abd(c: &mut Criterion) {
    let linear = Abd::from_vec(vec![1; RECORD]);
    let mut scatter = AbdMut::scatter(RECORD);
    scatter.chunks_mut().for_each(|chunk| chunk.fill(1));
    let scatter = scatter.freeze();
    let gang = Abd::gang(vec![linear.clone(), scatter.clone()]);
    let mut group = c.benchmark_group("abd");
    group.bench_function("allocate linear", |b| b.iter(|| AbdMut::linear(RECORD).freeze()));
    group.bench_function("allocate scatter", |b| b.iter(|| AbdMut::scatter(RECORD).freeze()));
    let before = copies();
    for (name, abd) in [("linear", &linear), ("scatter", &scatter), ("gang", &gang)] {
        group.bench_function(format!("slice {name}"), |b| {
            b.iter(|| black_box(abd).slice(5000, 100_000));
        });
    }
    assert_eq!(copies(), before, "slicing copies nothing");
    let mut out = vec![0; RECORD];
    group.throughput(Throughput::Bytes(RECORD as u64));
    for (name, abd) in [("linear", &linear), ("scatter", &scatter), ("gang", &gang)] {
        group.bench_function(format!("copy from {name}"), |b| {
            b.iter(|| black_box(abd).copy_to(0, &mut out));
        });
    }
    group.finish();
}

criterion_group!(benches, abd);
criterion_main!(benches);
