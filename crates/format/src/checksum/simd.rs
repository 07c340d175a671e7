//! Fletcher4 in eight lanes with AVX-512 or AVX2.
//!
//! The only unsafe code of this crate is here: calls of functions that are compiled for
//! instructions which not every processor has. Each call is made directly under the run-time test
//! for exactly the features its function is compiled for; that is the whole of what such a call
//! demands. The functions themselves are safe code: they load through checked slices, not pointers.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::lanes::{Lanes, STRIDE};
use crate::ByteOrder;

/// The lane sums of `data`, a multiple of [`STRIDE`] bytes; `None` if this processor lacks the
/// instructions.
pub(super) fn sum_lanes(data: &[u8], order: ByteOrder) -> Option<Lanes> {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX-512F and AVX2.
        return Some(unsafe {
            match order {
                ByteOrder::Little => avx512::<false>(data),
                ByteOrder::Big => avx512::<true>(data),
            }
        });
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return Some(unsafe {
            match order {
                ByteOrder::Little => avx2::<false>(data),
                ByteOrder::Big => avx2::<true>(data),
            }
        });
    }
    None
}

/// Eight words, their bytes reversed if `SWAP`.
#[inline]
#[target_feature(enable = "avx2")]
fn load<const SWAP: bool>(bytes: &[u8; STRIDE]) -> __m256i {
    let [q0, q1, q2, q3] = [0, 1, 2, 3].map(|i| {
        let mut q = [0; 8];
        q.copy_from_slice(&bytes[8 * i..8 * i + 8]);
        i64::from_le_bytes(q)
    });
    let words = _mm256_set_epi64x(q3, q2, q1, q0);
    if !SWAP {
        return words;
    }
    let reversed = _mm256_set_epi8(
        12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3, //
        12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3,
    );
    _mm256_shuffle_epi8(words, reversed)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(v: __m256i) -> [u64; 4] {
    [
        _mm256_extract_epi64::<0>(v) as u64,
        _mm256_extract_epi64::<1>(v) as u64,
        _mm256_extract_epi64::<2>(v) as u64,
        _mm256_extract_epi64::<3>(v) as u64,
    ]
}

#[target_feature(enable = "avx2")]
fn avx2<const SWAP: bool>(data: &[u8]) -> Lanes {
    let zero = _mm256_setzero_si256();
    // [sum][half of the lanes]
    let mut s = [[zero; 2]; 4];
    for stride in data.as_chunks::<STRIDE>().0 {
        let words = load::<SWAP>(stride);
        let halves = [
            _mm256_cvtepu32_epi64(_mm256_castsi256_si128(words)),
            _mm256_cvtepu32_epi64(_mm256_extracti128_si256::<1>(words)),
        ];
        for (h, w) in halves.into_iter().enumerate() {
            s[0][h] = _mm256_add_epi64(s[0][h], w);
            s[1][h] = _mm256_add_epi64(s[1][h], s[0][h]);
            s[2][h] = _mm256_add_epi64(s[2][h], s[1][h]);
            s[3][h] = _mm256_add_epi64(s[3][h], s[2][h]);
        }
    }
    let mut out = [[0; 8]; 4];
    for (out, halves) in out.iter_mut().zip(s) {
        out[..4].copy_from_slice(&store(halves[0]));
        out[4..].copy_from_slice(&store(halves[1]));
    }
    let [a, b, c, d] = out;
    Lanes { a, b, c, d }
}

#[target_feature(enable = "avx512f,avx2")]
fn avx512<const SWAP: bool>(data: &[u8]) -> Lanes {
    let mut s = [_mm512_setzero_si512(); 4];
    for stride in data.as_chunks::<STRIDE>().0 {
        let words = _mm512_cvtepu32_epi64(load::<SWAP>(stride));
        s[0] = _mm512_add_epi64(s[0], words);
        s[1] = _mm512_add_epi64(s[1], s[0]);
        s[2] = _mm512_add_epi64(s[2], s[1]);
        s[3] = _mm512_add_epi64(s[3], s[2]);
    }
    let [a, b, c, d] = s.map(|sum| {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&store(_mm512_castsi512_si256(sum)));
        out[4..].copy_from_slice(&store(_mm512_extracti64x4_epi64::<1>(sum)));
        out
    });
    Lanes { a, b, c, d }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every variant this processor has gives the same lanes, so that a test on a new processor
    /// covers the code for the older ones.
    #[test]
    fn variants_agree() {
        let data: Vec<u8> = (0..STRIDE as u32 * 99).map(|i| ((i * i) >> 5) as u8).collect();
        if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx2") {
            return;
        }
        // SAFETY: the processor has AVX-512F and AVX2.
        let pairs = unsafe {
            [
                (avx2::<false>(&data), avx512::<false>(&data)),
                (avx2::<true>(&data), avx512::<true>(&data)),
            ]
        };
        for (x, y) in pairs {
            assert_eq!([x.a, x.b, x.c, x.d], [y.a, y.b, y.c, y.d]);
        }
    }
}
