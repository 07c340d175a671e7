//! The sums of parity, a step of Horner's rule for each data column, compiled for AVX2 as well: with
//! that double and triple parity take about 0.6 of the time.
//!
//! The only unsafe code of this file are calls of functions that are compiled for instructions which
//! not every processor has. Each is made directly under the run-time test for exactly that; this is
//! all that such a call demands. The functions themselves are safe code.
#![allow(unsafe_code)]

/// Times 2 in the field of [`crate::raidz::math`].
#[inline(always)]
pub(super) fn double(x: u8) -> u8 {
    (x << 1) ^ ((x.cast_signed() >> 7).cast_unsigned() & 0x1d)
}

/// `P += D`
pub(super) fn add_p(p: &mut [u8], d: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::add_p(p, d) };
    }
    plain::add_p(p, d);
}

/// `P += D`, `Q = 2 Q + D`
pub(super) fn add_pq(p: &mut [u8], q: &mut [u8], d: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::add_pq(p, q, d) };
    }
    plain::add_pq(p, q, d);
}

/// `P += D`, `Q = 2 Q + D`, `R = 4 R + D`
pub(super) fn add_pqr(p: &mut [u8], q: &mut [u8], r: &mut [u8], d: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { avx2::add_pqr(p, q, r, d) };
    }
    plain::add_pqr(p, q, r, d);
}

/// For any processor; compilers turn the loops into the vector instructions that all have.
mod plain {
    use super::double;

    #[inline(always)]
    pub fn add_p(p: &mut [u8], d: &[u8]) {
        for (p, d) in p.iter_mut().zip(d) {
            *p ^= d;
        }
    }

    #[inline(always)]
    pub fn add_pq(p: &mut [u8], q: &mut [u8], d: &[u8]) {
        for ((p, q), d) in p.iter_mut().zip(q).zip(d) {
            *p ^= d;
            *q = double(*q) ^ d;
        }
    }

    #[inline(always)]
    pub fn add_pqr(p: &mut [u8], q: &mut [u8], r: &mut [u8], d: &[u8]) {
        for (((p, q), r), d) in p.iter_mut().zip(q).zip(r).zip(d) {
            *p ^= d;
            *q = double(*q) ^ d;
            *r = double(double(*r)) ^ d;
        }
    }
}

/// The same, with 32 bytes to an instruction.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::plain;

    #[target_feature(enable = "avx2")]
    pub fn add_p(p: &mut [u8], d: &[u8]) {
        plain::add_p(p, d);
    }

    #[target_feature(enable = "avx2")]
    pub fn add_pq(p: &mut [u8], q: &mut [u8], d: &[u8]) {
        plain::add_pq(p, q, d);
    }

    #[target_feature(enable = "avx2")]
    pub fn add_pqr(p: &mut [u8], q: &mut [u8], r: &mut [u8], d: &[u8]) {
        plain::add_pqr(p, q, r, d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What this processor does is what any would.
        #[test]
        fn all_processors_agree(
            [p, q, r, d] in proptest::array::uniform4(proptest::collection::vec(any::<u8>(), 200)),
            len in 0usize..200,
        ) {
            let mine = [&p, &q, &r].map(|x| x[..len].to_vec());
            let (mut a, mut b) = (mine.clone(), mine);
            let [p, q, r] = &mut a;
            add_p(p, &d[..len]);
            add_pq(p, q, &d[..len]);
            add_pqr(p, q, r, &d[..len]);
            let [p, q, r] = &mut b;
            plain::add_p(p, &d[..len]);
            plain::add_pq(p, q, &d[..len]);
            plain::add_pqr(p, q, r, &d[..len]);
            prop_assert_eq!(a, b);
        }
    }
}
