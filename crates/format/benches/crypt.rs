//! Blocks of encrypted datasets: what decrypting and encrypting takes, beside the ciphers alone.

#![allow(clippy::unwrap_used, missing_docs)] // A failure ends the measurement.

use std::hint::black_box;

use cenote_format::abd::Abd;
use cenote_format::blkptr::BlockPointer;
use cenote_format::crypt::{BlockParams, Cipher, DatasetKey, HMAC_KEY_LEN, Secret, Suite};
use cenote_format::dmu::DmuType;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const PARAMS: BlockParams = BlockParams { salt: [0; 8], iv: [0; 12] };
const KIND: DmuType = DmuType::PLAIN_FILE_CONTENTS;

fn blocks(c: &mut Criterion) {
    for suite in [Suite::Aes256Gcm, Suite::Aes256Ccm] {
        let mut group = c.benchmark_group(format!("{suite:?}"));
        for size in [4096usize, 128 << 10] {
            group.throughput(Throughput::Bytes(size as u64));
            let keys = Secret::zeros(suite.key_len() + HMAC_KEY_LEN).unwrap();
            let key = DatasetKey::of_random(suite, 1, keys).unwrap();
            let mut data = vec![7; size];
            let mac = key.encrypt(KIND, &PARAMS, &mut data).unwrap();
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let mut bp = BlockPointer([0; 16]);
            bp.0[6] = 1 << 63 | 1 << 61 | u64::from(KIND.0) << 48;
            (bp.0[14], bp.0[15]) = (word(&mac[..8]), word(&mac[8..]));
            let block = Abd::from_vec(data.clone());
            group.bench_function(format!("decrypt {size}"), |b| {
                b.iter(|| key.decrypt(&bp, black_box(&block)).unwrap());
            });
            let cipher: std::sync::Arc<Cipher> = key.cipher(&PARAMS.salt).unwrap();
            group.bench_function(format!("cipher alone {size}"), |b| {
                b.iter(|| cipher.seal(&PARAMS.iv, &[], black_box(&mut data)).unwrap());
            });
        }
    }
}

criterion_group!(benches, blocks);
criterion_main!(benches);
