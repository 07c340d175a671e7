//! Edon-R 512, with the tweak of its second round in the SHA-3 competition (`abd_checksum_edonr_native`).
//!
//! Edon-R is built on a quasigroup: an operation `x * y` on vectors of eight 64-bit words that is
//! invertible in each argument. It mixes `x` and `y` each on its own (every result is a sum of five
//! of the eight words, rotated; the two arguments use orthogonal choices of five), then adds
//! XORs of three results from each side.
//!
//! A state of two vectors is updated with a message block of two vectors by four rows of two such
//! operations; the tweak then XORs the old state and the swapped message halves into the result.
//! Padding: a one bit, zeros, and the length in bits as a 64-bit little-endian number. The digest
//! is the second vector of the state.

const BLOCK: usize = 128;
/// The length in bits, at the end of the padding.
const LENGTH: usize = 8;

type Vector = [u64; 8];

/// Which five words make up each sum of the left argument, and its rotation.
const LEFT: [([usize; 5], u32); 8] = [
    ([0, 1, 2, 4, 7], 0),
    ([0, 1, 3, 4, 7], 5),
    ([0, 1, 4, 6, 7], 15),
    ([2, 3, 5, 6, 7], 22),
    ([1, 2, 3, 5, 6], 31),
    ([0, 2, 3, 4, 5], 40),
    ([0, 1, 5, 6, 7], 50),
    ([2, 3, 4, 5, 6], 59),
];

/// The same for the right argument.
const RIGHT: [([usize; 5], u32); 8] = [
    ([0, 1, 2, 5, 7], 0),
    ([0, 1, 3, 4, 6], 10),
    ([0, 1, 2, 3, 5], 19),
    ([2, 3, 4, 6, 7], 29),
    ([0, 1, 3, 4, 5], 36),
    ([2, 4, 5, 6, 7], 44),
    ([1, 2, 5, 6, 7], 48),
    ([0, 3, 4, 6, 7], 55),
];

/// Added to the first sum of the left argument; its complement to the first of the right.
const CONSTANT: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Which three results of the left and of the right argument make up each word of the product.
const PRODUCT: [([usize; 3], [usize; 3]); 8] = [
    ([0, 1, 4], [0, 1, 5]),
    ([0, 4, 7], [2, 6, 7]),
    ([1, 6, 7], [0, 1, 3]),
    ([2, 3, 4], [0, 3, 4]),
    ([0, 1, 7], [1, 2, 5]),
    ([3, 5, 6], [3, 4, 6]),
    ([2, 5, 6], [2, 5, 7]),
    ([2, 3, 5], [4, 6, 7]),
];

#[inline(always)]
fn sums(v: &Vector, table: &[([usize; 5], u32); 8], constant: u64) -> Vector {
    let mut out = [0; 8];
    for i in 0..8 {
        let (words, rotation) = table[i];
        let sum = words.into_iter().fold(0u64, |sum, w| sum.wrapping_add(v[w]));
        out[i] = if i == 0 { sum.wrapping_add(constant) } else { sum.rotate_left(rotation) };
    }
    out
}

/// The quasigroup operation.
#[inline]
fn product(x: &Vector, y: &Vector) -> Vector {
    let left = sums(x, &LEFT, CONSTANT);
    let right = sums(y, &RIGHT, !CONSTANT);
    let mut out = [0; 8];
    for i in 0..8 {
        let ([a, b, c], [d, e, f]) = PRODUCT[i];
        out[i] = (left[a] ^ left[b] ^ left[c]).wrapping_add(right[d] ^ right[e] ^ right[f]);
    }
    out
}

fn reversed(mut v: Vector) -> Vector {
    v.reverse();
    v
}

/// Edon-R 512 in progress.
#[derive(Clone)]
pub(super) struct EdonR512 {
    state: [Vector; 2],
    /// Bytes compressed.
    done: u64,
    held: [u8; BLOCK],
    len: usize,
}

impl EdonR512 {
    pub(super) fn new() -> EdonR512 {
        // The bytes 0x80, 0x81, … as big-endian words.
        let mut state = [[0; 8]; 2];
        for (i, word) in state.iter_mut().flatten().enumerate() {
            *word = 0x8081_8283_8485_8687 + i as u64 * 0x0808_0808_0808_0808;
        }
        EdonR512 { state, done: 0, held: [0; BLOCK], len: 0 }
    }

    /// Edon-R has no key. OpenZFS feeds it one block first: the digest of the salt, and the digest
    /// of that digest.
    pub(super) fn salted(salt: &[u8]) -> EdonR512 {
        let digest = |bytes: &[u8]| {
            let mut hash = EdonR512::new();
            hash.update(bytes);
            hash.finish()
        };
        let first = digest(salt);
        let second = digest(&first);
        let mut hash = EdonR512::new();
        hash.update(&first);
        hash.update(&second);
        hash
    }

    pub(super) fn update(&mut self, mut data: &[u8]) {
        if self.len > 0 {
            let take = data.len().min(BLOCK - self.len);
            self.held[self.len..self.len + take].copy_from_slice(&data[..take]);
            self.len += take;
            data = &data[take..];
            if self.len < BLOCK {
                return;
            }
            let block = self.held;
            self.compress(&block);
        }
        let (blocks, rest) = data.as_chunks::<BLOCK>();
        blocks.iter().for_each(|block| self.compress(block));
        self.held[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
    }

    pub(super) fn finish(mut self) -> [u8; 64] {
        let bits = self.done.wrapping_add(self.len as u64).wrapping_mul(8);
        let mut pad = [0; BLOCK + LENGTH];
        pad[0] = 0x80;
        // A one bit takes a byte here; the length must end a block.
        let zeros = (2 * BLOCK - self.len - 1 - LENGTH) % BLOCK;
        pad[1 + zeros..1 + zeros + LENGTH].copy_from_slice(&bits.to_le_bytes());
        self.update(&pad[..1 + zeros + LENGTH]);
        let mut digest = [0; 64];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(self.state[1]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    fn compress(&mut self, block: &[u8; BLOCK]) {
        self.done = self.done.wrapping_add(BLOCK as u64);
        let mut message = [[0; 8]; 2];
        for (word, bytes) in message.iter_mut().flatten().zip(block.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [m0, m1] = message;
        let [s0, s1] = self.state;
        let a = product(&reversed(m1), &m0);
        let b = product(&a, &m1);
        let a = product(&s1, &a);
        let b = product(&a, &b);
        let a = product(&a, &s0);
        let b = product(&b, &a);
        let a = product(&reversed(m0), &a);
        let b = product(&a, &b);
        for i in 0..8 {
            self.state[0][i] = s0[i] ^ m1[i] ^ a[i];
            self.state[1][i] = s1[i] ^ m0[i] ^ b[i];
        }
    }
}
