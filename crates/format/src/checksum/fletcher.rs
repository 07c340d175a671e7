//! Fletcher's checksums: running sums, and sums of those sums.
//!
//! *fletcher4* over 32-bit words `w`: for each word `a += w; b += a; c += b; d += c`, modulo 2⁶⁴.
//! *fletcher2* over 64-bit words: two independent streams, one of the even and one of the odd words,
//! each with `a += w; b += a`; the checksum is `[a_even, a_odd, b_even, b_odd]`.
//!
//! Fletcher4 is on the path of nearly every block read, so it is worth vector instructions. The sums
//! are linear in the words, which allows to split them: lane `l` of [`LANES`] sums the words `l`,
//! `l + 8`, `l + 16`, … alone, and [`Lanes::join`] puts the lanes together. After the last word, a
//! word that is the `m`-th from the end (counting from 1) has been added to
//!
//! ```text
//! a: 1 time    b: m times    c: m(m+1)/2 times    d: m(m+1)(m+2)/6 times
//! ```
//!
//! and a word that is the `u`-th from the end of lane `l` is the `m = 8u - l`-th of all. Writing
//! the binomials of `m` in those of `u` gives the coefficients in `join`. In the same way a run that
//! was summed from zero is appended to earlier sums ([`append`]).
//!
//! Invariant: the checksum does not depend on how the data is divided into updates.

use crate::ByteOrder;

/// Bytes fletcher4 takes at a time.
pub(super) const WORD: usize = 4;
/// Bytes fletcher2 takes at a time.
pub(super) const PAIR: usize = 16;

/// Streams that the vector implementations sum apart.
pub(super) const LANES: usize = 8;

/// Bytes the vector implementations take at a time.
pub(super) const STRIDE: usize = LANES * WORD;

/// Shorter runs are left to the simple loop: joining the lanes costs about as much.
const WORTH_IT: usize = 8 * STRIDE;

/// Longest run summed at once, so that the coefficients of [`append`] fit in 128 bits.
const RUN: usize = 16 << 20;

/// Collects bytes into units of `N` that may straddle two updates.
struct Units<const N: usize> {
    held: [u8; N],
    len: usize,
}

impl<const N: usize> Units<N> {
    fn new() -> Self {
        Units { held: [0; N], len: 0 }
    }

    /// Calls `f` with whole units: first the one begun earlier, then all that `data` holds.
    fn feed(&mut self, mut data: &[u8], mut f: impl FnMut(&[u8])) {
        if self.len > 0 {
            let take = data.len().min(N - self.len);
            self.held[self.len..self.len + take].copy_from_slice(&data[..take]);
            self.len += take;
            data = &data[take..];
            if self.len < N {
                return;
            }
            self.len = 0;
            f(&self.held);
        }
        let (whole, rest) = data.split_at(data.len() - data.len() % N);
        f(whole);
        self.held[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
    }
}

/// Fletcher2 in progress.
pub(super) struct Fletcher2 {
    order: ByteOrder,
    units: Units<PAIR>,
    sums: [u64; 4],
}

impl Fletcher2 {
    pub(super) fn new(order: ByteOrder) -> Self {
        Fletcher2 { order, units: Units::new(), sums: [0; 4] }
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        let (sums, order) = (&mut self.sums, self.order);
        self.units.feed(data, |pairs| match order {
            ByteOrder::Little => sum_pairs(sums, pairs, u64::from_le_bytes),
            ByteOrder::Big => sum_pairs(sums, pairs, u64::from_be_bytes),
        });
    }

    /// The sums over the whole pairs of words so far.
    pub(super) fn finish(&self) -> [u64; 4] {
        self.sums
    }
}

fn sum_pairs(sums: &mut [u64; 4], data: &[u8], word: impl Fn([u8; 8]) -> u64) {
    let [mut a0, mut a1, mut b0, mut b1] = *sums;
    for pair in data.as_chunks::<8>().0.as_chunks::<2>().0 {
        a0 = a0.wrapping_add(word(pair[0]));
        a1 = a1.wrapping_add(word(pair[1]));
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    }
    *sums = [a0, a1, b0, b1];
}

/// Fletcher4 in progress.
pub(super) struct Fletcher4 {
    order: ByteOrder,
    units: Units<WORD>,
    sums: [u64; 4],
}

impl Fletcher4 {
    pub(super) fn new(order: ByteOrder) -> Self {
        Fletcher4 { order, units: Units::new(), sums: [0; 4] }
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        let (sums, order) = (&mut self.sums, self.order);
        self.units.feed(data, |words| {
            for run in words.chunks(RUN) {
                sum_run(sums, run, order);
            }
        });
    }

    /// The sums over the whole words so far.
    pub(super) fn finish(&self) -> [u64; 4] {
        self.sums
    }
}

/// Sums whole words in the fastest way this processor knows.
fn sum_run(sums: &mut [u64; 4], data: &[u8], order: ByteOrder) {
    let mut rest = data;
    #[cfg(target_arch = "x86_64")]
    if data.len() >= WORTH_IT {
        let (body, tail) = data.split_at(data.len() - data.len() % STRIDE);
        if let Some(lanes) = super::simd::sum_lanes(body, order) {
            append(sums, &lanes.join(), (body.len() / WORD) as u64);
            rest = tail;
        }
    }
    match order {
        ByteOrder::Little => sum_words(sums, rest, u32::from_le_bytes),
        ByteOrder::Big => sum_words(sums, rest, u32::from_be_bytes),
    }
}

/// The simple loop.
pub(super) fn sum_words(sums: &mut [u64; 4], data: &[u8], word: impl Fn([u8; 4]) -> u32) {
    let [mut a, mut b, mut c, mut d] = *sums;
    for bytes in data.as_chunks::<4>().0 {
        a = a.wrapping_add(u64::from(word(*bytes)));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    *sums = [a, b, c, d];
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
