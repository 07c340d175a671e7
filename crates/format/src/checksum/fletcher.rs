//! Fletcher's checksums (`fletcher_4_native`): running sums, and sums of those sums.
//!
//! *fletcher4* over 32-bit words `w`: for each word `a += w; b += a; c += b; d += c`, modulo 2⁶⁴.
//! *fletcher2* over 64-bit words: two independent streams, one of the even and one of the odd words,
//! each with `a += w; b += a`; the checksum is `[a_even, a_odd, b_even, b_odd]`.
//!
//! Fletcher4 is on the path of nearly every block read; on x86-64 most of it is done in [`super::lanes`].
//!
//! Invariant: the checksum does not depend on how the data is divided into updates.

use crate::ByteOrder;

/// Bytes fletcher4 takes at a time.
pub(super) const WORD: usize = 4;
/// Bytes fletcher2 takes at a time.
pub(super) const PAIR: usize = 16;

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

/// Fletcher2 in progress (`abd_fletcher_2_native`).
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

/// Fletcher4 in progress (`abd_fletcher_4_native`): bytes go in piece by piece, and the sums can be looked at on the way.
pub struct Fletcher4 {
    order: ByteOrder,
    units: Units<WORD>,
    sums: [u64; 4],
}

impl Fletcher4 {
    /// Nothing was summed yet. Words are in byte order `order`.
    pub fn new(order: ByteOrder) -> Self {
        Fletcher4 { order, units: Units::new(), sums: [0; 4] }
    }

    /// Goes on with `data`.
    pub fn update(&mut self, data: &[u8]) {
        let (sums, order) = (&mut self.sums, self.order);
        self.units.feed(data, |words| {
            #[cfg(target_arch = "x86_64")]
            let words = super::lanes::sum_strides(sums, words, order);
            match order {
                ByteOrder::Little => sum_words(sums, words, u32::from_le_bytes),
                ByteOrder::Big => sum_words(sums, words, u32::from_be_bytes),
            }
        });
    }

    /// The sums over the whole words so far.
    pub fn finish(&self) -> [u64; 4] {
        self.sums
    }
}

/// The simple loop, over whole words.
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
