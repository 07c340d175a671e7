//! Checksums of a 128 KiB record: fletcher4 above all, in one piece and scattered.

use std::hint::black_box;

use cenote_format::ByteOrder;
use cenote_format::abd::{Abd, AbdMut};
use cenote_format::checksum::{Checksum, Salt, compute};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const RECORD: usize = 128 << 10;

fn fletcher4(c: &mut Criterion) {
    let salt = Salt::new([7; 32]);
    let bytes: Vec<u8> = (0..RECORD).map(|i| ((i * i) >> 7) as u8).collect();
    let mut scatter = AbdMut::scatter(RECORD);
    let _ = scatter.copy_from(0, &bytes);
    let (linear, scatter) = (Abd::from_vec(bytes), scatter.freeze());
    let mut group = c.benchmark_group("checksum");
    group.throughput(Throughput::Bytes(RECORD as u64));
    for (name, data, order) in [
        ("fletcher4", &linear, ByteOrder::Little),
        ("fletcher4 scattered", &scatter, ByteOrder::Little),
        ("fletcher4 byteswapped", &linear, ByteOrder::Big),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| compute(Checksum::Fletcher4, black_box(data), order, &salt));
        });
    }
    use Checksum::*;
    for kind in [Fletcher2, Sha256, Sha512, Skein, Edonr, Blake3] {
        group.bench_function(kind.name(), |b| {
            b.iter(|| compute(kind, black_box(&linear), ByteOrder::Little, &salt));
        });
    }
    group.finish();
}

criterion_group!(benches, fletcher4);
criterion_main!(benches);
