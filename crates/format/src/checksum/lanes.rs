//! Fletcher4 with vector instructions.
//!
//! The sums are linear in the words, which allows to split them: lane `l` of [`LANES`] sums the words
//! `l`, `l + 8`, `l + 16`, … alone, and [`Lanes::join`] puts the lanes together. After the last word,
//! a word that is the `m`-th from the end (counting from 1) has been added to
//!
//! ```text
//! a: 1 time    b: m times    c: m(m+1)/2 times    d: m(m+1)(m+2)/6 times
//! ```
//!
//! and a word that is the `u`-th from the end of lane `l` is the `m = 8u - l`-th of all. Writing
//! the binomials of `m` in the binomials of `u` gives the coefficients in `join`. In the same way a run that
//! was summed from zero is appended to earlier sums ([`append`]).

use super::fletcher::WORD;
use super::simd::sum_lanes;
use crate::ByteOrder;

/// Streams that are summed apart.
pub(super) const LANES: usize = 8;

/// Bytes taken at a time: a word for each lane.
pub(super) const STRIDE: usize = LANES * WORD;

/// Shorter runs are left to the simple loop: joining the lanes costs about as much.
const WORTH_IT: usize = 8 * STRIDE;

/// Longest run summed at once, so that the coefficients of [`append`] fit in 128 bits.
const RUN: usize = 16 << 20;

/// Adds as much of `data` as fills the lanes to `sums`; returns the rest, which is all of it if
/// this processor has no instructions for it.
pub(super) fn sum_strides<'a>(
    sums: &mut [u64; 4],
    mut data: &'a [u8],
    order: ByteOrder,
) -> &'a [u8] {
    while data.len() >= WORTH_IT {
        let whole = data.len() - data.len() % STRIDE;
        let (run, rest) = data.split_at(whole.min(RUN));
        let Some(lanes) = sum_lanes(run, order) else { return data };
        append(sums, &lanes.join(), (run.len() / WORD) as u64);
        data = rest;
    }
    data
}

/// Continues `sums` with a run of `n` words whose own sums, from zero, are `run`.
fn append(sums: &mut [u64; 4], run: &[u64; 4], n: u64) {
    let n = u128::from(n);
    let (one, two, three) =
        (n as u64, (n * (n + 1) / 2) as u64, (n * (n + 1) * (n + 2) / 6) as u64);
    let [a, b, c, d] = *sums;
    let mul = u64::wrapping_mul;
    *sums = [
        a.wrapping_add(run[0]),
        b.wrapping_add(mul(one, a)).wrapping_add(run[1]),
        c.wrapping_add(mul(one, b)).wrapping_add(mul(two, a)).wrapping_add(run[2]),
        d.wrapping_add(mul(one, c))
            .wrapping_add(mul(two, b))
            .wrapping_add(mul(three, a))
            .wrapping_add(run[3]),
    ];
}

/// The sums of each lane, each from zero.
pub(super) struct Lanes {
    pub(super) a: [u64; LANES],
    pub(super) b: [u64; LANES],
    pub(super) c: [u64; LANES],
    pub(super) d: [u64; LANES],
}

impl Lanes {
    /// The sums over all words in their order.
    fn join(&self) -> [u64; 4] {
        let mut out = [0i64; 4];
        let mul = i64::wrapping_mul;
        for l in 0..LANES {
            let [a, b, c, d] = [self.a[l], self.b[l], self.c[l], self.d[l]].map(|x| x as i64);
            let l = l as i64;
            let b_part = mul(8, b).wrapping_sub(mul(l, a));
            let c_part = mul(64, c).wrapping_sub(mul(28 + 8 * l, b));
            let c_part = c_part.wrapping_add(mul(l * (l - 1) / 2, a));
            let d_part = mul(512, d).wrapping_sub(mul(448 + 64 * l, c));
            let d_part = d_part.wrapping_add(mul(56 + 24 * l + 4 * l * l, b));
            let d_part = d_part.wrapping_sub(mul(l * (l - 1) * (l - 2) / 6, a));
            for (sum, part) in out.iter_mut().zip([a, b_part, c_part, d_part]) {
                *sum = sum.wrapping_add(part);
            }
        }
        out.map(|x| x as u64)
    }
}
