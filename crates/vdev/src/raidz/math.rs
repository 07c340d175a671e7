//! The arithmetic of RAID-Z parity (`vdev_raidz_math_generate`): the field GF(2^8) with the polynomial 0x11d.
//!
//! For data columns D0 to Dn-1 (shorter ones as if filled up with zeros) the parities are, byte
//! by byte,
//!
//! ```text
//! P = D0 + D1 + ... + Dn-1                     addition is xor
//! Q = 2^(n-1) D0 + ... + 2 Dn-2 + Dn-1
//! R = 4^(n-1) D0 + ... + 4 Dn-2 + Dn-1
//! ```
//!
//! so parity `k` is the sum of `g^(n-1-i) Di` with the generator `g` = 1, 2 or 4. With `m` data
//! columns lost, `m` of the parities minus what the known columns contribute (the *syndromes*)
//! are `m` linear equations in each byte of the lost ones; their matrix can be inverted
//! whichever parities are used, since the factors differ between columns.
//!
//! Sums are taken by Horner's rule, eight bytes at a time in a way that compilers turn into
//! vector instructions; only the last step multiplies by arbitrary factors, through a table.

/// Most parity columns.
pub(crate) const MAX_PARITY: usize = 3;

const fn tables() -> ([u8; 510], [u8; 256]) {
    let (mut exp, mut log) = ([0u8; 510], [0u8; 256]);
    let (mut i, mut x) = (0, 1u8);
    while i < 255 {
        exp[i] = x;
        exp[i + 255] = x;
        log[x as usize] = i as u8;
        x = (x << 1) ^ (if x & 0x80 != 0 { 0x1d } else { 0 });
        i += 1;
    }
    (exp, log)
}

/// Powers of 2 (twice over, so that sums of two logarithms need no reduction) and logarithms.
static TABLES: ([u8; 510], [u8; 256]) = tables();

/// The product of two field elements.
pub(crate) fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    let (exp, log) = &TABLES;
    exp[log[a as usize] as usize + log[b as usize] as usize]
}

/// The inverse of a field element; 0 for 0.
fn inverse(a: u8) -> u8 {
    let (exp, log) = &TABLES;
    if a == 0 { 0 } else { exp[255 - log[a as usize] as usize] }
}

/// The factor of data column `i` of `n` in parity `k`: `(2^k)^(n-1-i)`.
fn factor(k: usize, i: usize, n: usize) -> u8 {
    TABLES.0[k * (n - 1 - i) % 255]
}

/// Each of the eight bytes times 2.
fn double(x: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let high = x & HIGH;
    // 0xff in each byte whose high bit is shifted out.
    let mask = (high << 1).wrapping_sub(high >> 7);
    ((x << 1) & !(HIGH >> 7)) ^ (mask & 0x1d1d_1d1d_1d1d_1d1d)
}

/// `acc = f(acc) + src`, `src` filled up with zeros to the length of `acc`.
fn step(acc: &mut [u8], src: &[u8], f: impl Fn(u64) -> u64) {
    let both = src.len().min(acc.len());
    let (head, tail) = acc.split_at_mut(both);
    let mut to = head.chunks_exact_mut(8);
    let mut from = src[..both].chunks_exact(8);
    for (a, s) in (&mut to).zip(&mut from) {
        let word = |b: &[u8]| b.try_into().map_or(0, u64::from_ne_bytes);
        a.copy_from_slice(&(f(word(a)) ^ word(s)).to_ne_bytes());
    }
    let byte = |x: u8| f(u64::from(x)) as u8;
    for (a, s) in to.into_remainder().iter_mut().zip(from.remainder()) {
        *a = byte(*a) ^ s;
    }
    let mut to = tail.chunks_exact_mut(8);
    for a in &mut to {
        let word = (&*a).try_into().map_or(0, u64::from_ne_bytes);
        a.copy_from_slice(&f(word).to_ne_bytes());
    }
    to.into_remainder().iter_mut().for_each(|a| *a = byte(*a));
}

/// `dst += src`, over the shorter of the two.
pub(crate) fn xor(dst: &mut [u8], src: &[u8]) {
    let both = src.len().min(dst.len());
    step(&mut dst[..both], &src[..both], |x| x);
}

/// `dst += c * src`, over the shorter of the two.
fn mul_add(dst: &mut [u8], src: &[u8], c: u8) {
    match c {
        0 => {}
        1 => xor(dst, src),
        _ => {
            let mut table = [0u8; 256];
            for (x, t) in table.iter_mut().enumerate() {
                *t = mul(x as u8, c);
            }
            for (d, s) in dst.iter_mut().zip(src) {
                *d ^= table[*s as usize];
            }
        }
    }
}

/// Parity `k` (0 for P, 1 for Q, 2 for R) of the data columns, into `parity`, which has the length of
/// the longest of them (`vdev_raidz_generate_parity_row`).
pub(crate) fn parity_of<'a>(
    k: usize,
    columns: impl IntoIterator<Item = &'a [u8]>,
    parity: &mut [u8],
) {
    parity.fill(0);
    for column in columns {
        match k {
            0 => step(parity, column, |x| x),
            1 => step(parity, column, double),
            _ => step(parity, column, |x| double(double(x))),
        }
    }
}

/// Recovers the data columns (`vdev_raidz_reconstruct`, `vdev_raidz_math_reconstruct`) `lost` (ascending, at most three, as
/// many as `parities`) of `columns` from parities `(k, bytes)`. The lost columns' buffers have their final length. Their
/// contents are overwritten; `None` if the parities are fewer or cannot tell them apart.
pub(crate) fn reconstruct(
    columns: &mut [&mut [u8]],
    lost: &[usize],
    parities: &[(usize, &[u8])],
) -> Option<()> {
    let (n, m) = (columns.len(), lost.len());
    if m == 0 {
        return Some(());
    }
    if m > MAX_PARITY || lost.iter().any(|l| *l >= n) {
        return None;
    }
    let parities = parities.get(..m)?;
    let mut matrix = [[0u8; MAX_PARITY]; MAX_PARITY];
    for (row, (k, _)) in matrix.iter_mut().zip(parities) {
        for (cell, l) in row.iter_mut().zip(lost) {
            *cell = factor(*k, *l, n);
        }
    }
    let inverse = invert(matrix, m)?;
    for l in lost {
        columns[*l].fill(0);
    }
    let syndromes: Vec<Vec<u8>> = parities
        .iter()
        .map(|(k, bytes)| {
            let mut sum = vec![0; bytes.len()];
            parity_of(*k, columns.iter().map(|c| &**c), &mut sum);
            xor(&mut sum, bytes);
            sum
        })
        .collect();
    for (l, row) in lost.iter().zip(&inverse) {
        for (syndrome, c) in syndromes.iter().zip(row) {
            mul_add(columns[*l], syndrome, *c);
        }
    }
    Some(())
}

/// Inverts the upper left `m` by `m` part of a matrix, by Gauss-Jordan elimination (`vdev_raidz_matrix_invert`).
fn invert(
    mut a: [[u8; MAX_PARITY]; MAX_PARITY],
    m: usize,
) -> Option<[[u8; MAX_PARITY]; MAX_PARITY]> {
    let mut inv = [[0u8; MAX_PARITY]; MAX_PARITY];
    for (i, row) in inv.iter_mut().enumerate() {
        row[i] = 1;
    }
    for col in 0..m {
        let pivot = (col..m).find(|r| a[*r][col] != 0)?;
        a.swap(col, pivot);
        inv.swap(col, pivot);
        let scale = inverse(a[col][col]);
        for x in a[col].iter_mut().chain(&mut inv[col]) {
            *x = mul(*x, scale);
        }
        for r in (0..m).filter(|r| *r != col) {
            let c = a[r][col];
            for i in 0..m {
                a[r][i] ^= mul(c, a[col][i]);
                inv[r][i] ^= mul(c, inv[col][i]);
            }
        }
    }
    Some(inv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Multiplication by shifting and adding, as the reference.
    fn slow_mul(mut a: u8, mut b: u8) -> u8 {
        let mut out = 0;
        while b != 0 {
            if b & 1 != 0 {
                out ^= a;
            }
            let carry = a & 0x80 != 0;
            a <<= 1;
            if carry {
                a ^= 0x1d;
            }
            b >>= 1;
        }
        out
    }

    #[test]
    fn the_field_is_right() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), slow_mul(a, b));
            }
            if a != 0 {
                assert_eq!(mul(a, inverse(a)), 1);
            }
            assert_eq!(double(u64::from_ne_bytes([a; 8])).to_ne_bytes(), [slow_mul(a, 2); 8]);
        }
    }

    /// Every way to lose up to three of 255 columns can be undone, from any parities.
    #[test]
    fn every_matrix_is_regular() {
        let n = 255;
        let pairs = [[0, 1], [0, 2], [1, 2]];
        for i in 0..n {
            for j in i + 1..n {
                for ks in pairs {
                    let mut a = [[0; 3]; 3];
                    for (row, k) in a.iter_mut().zip(ks) {
                        row[0] = factor(k, i, n);
                        row[1] = factor(k, j, n);
                    }
                    assert!(invert(a, 2).is_some(), "{i} {j} {ks:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn lost_columns_come_back(
            data in proptest::collection::vec(any::<u8>(), 3..400),
            n in 1usize..9, lost: u8, kept: u8,
        ) {
            let len = data.len().div_ceil(n);
            let columns: Vec<Vec<u8>> = data.chunks(len).map(<[u8]>::to_vec).collect();
            let n = columns.len();
            let parity = |k| {
                let mut p = vec![0; len];
                parity_of(k, columns.iter().map(|c| &c[..]), &mut p);
                // The definition, for comparison.
                for (at, got) in p.iter().enumerate() {
                    let mut want = 0;
                    for (i, c) in columns.iter().enumerate() {
                        let g = (0..n - 1 - i).fold(1, |f, _| slow_mul(f, 1 << k));
                        want ^= slow_mul(g, c.get(at).copied().unwrap_or(0));
                    }
                    assert_eq!(*got, want);
                }
                p
            };
            let all: Vec<Vec<u8>> = (0..3).map(parity).collect();
            let parities: Vec<(usize, &[u8])> =
                (0..3).filter(|k| kept >> k & 1 == 1).map(|k| (k, &all[k][..])).collect();
            let lost: Vec<usize> = (0..n).filter(|i| lost >> (i % 8) & 1 == 1).collect();
            let mut damaged = columns.clone();
            for l in &lost {
                damaged[*l].fill(0xa5);
            }
            let mut slices: Vec<&mut [u8]> = damaged.iter_mut().map(|c| &mut c[..]).collect();
            let done = reconstruct(&mut slices, &lost, &parities);
            prop_assert_eq!(done.is_some(), lost.len() <= parities.len());
            if done.is_some() {
                prop_assert_eq!(damaged, columns);
            }
        }
    }
}
