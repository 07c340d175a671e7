//! Decompression of a 128 KiB record of text-like data.

use std::hint::black_box;

use cenote_format::compress::{Compression, decompress};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const RECORD: usize = 128 << 10;

/// Words from a small vocabulary, in an order that repeats by chance only.
fn text() -> Vec<u8> {
    let mut state = 1u64;
    let mut out = Vec::with_capacity(RECORD + 16);
    while out.len() < RECORD {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let word = (state >> 33) % 997;
        out.extend(format!("{:x} ", word * word * 31).bytes());
    }
    out.truncate(RECORD);
    out
}

fn lz4(c: &mut Criterion) {
    let text = text();
    let Ok(packed) = lz4::block::compress(&text, None, false) else { return };
    let mut record = (packed.len() as u32).to_be_bytes().to_vec();
    record.extend(packed);
    let mut gzip = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
    let mut zlib = vec![0; gzip.zlib_compress_bound(RECORD)];
    let Ok(n) = gzip.zlib_compress(&text, &mut zlib) else { return };
    zlib.truncate(n);
    let mut out = vec![0; RECORD];
    let mut group = c.benchmark_group("decompress");
    group.throughput(Throughput::Bytes(RECORD as u64));
    for (kind, record) in [(Compression::Lz4, &record), (Compression::Gzip6, &zlib)] {
        group.bench_function(kind.name(), |b| {
            b.iter(|| decompress(kind, black_box(record), &mut out));
        });
    }
    group.finish();
}

criterion_group!(benches, lz4);
criterion_main!(benches);
