//! Skein-512 (version 1.3), keyed as a MAC, without its tree mode (`abd_checksum_skein_native`).
//!
//! Threefish-512 encrypts a message block under a key (the chaining value) and a tweak (bytes so
//! far, and what kind of block it is); the chaining value becomes the ciphertext XOR the message
//! block (UBI). A hash is a chain of such: the key, if any, then a configuration block that names
//! the output length, the message, and an output block with a counter.

const BLOCK: usize = 64;

/// Block kinds, in bits 120 to 125 of the tweak; here in its upper word.
const KEY: u64 = 0;
const CONFIG: u64 = 4 << 56;
const MESSAGE: u64 = 48 << 56;
const OUTPUT: u64 = 63 << 56;
/// First and last block of a kind.
const FIRST: u64 = 1 << 62;
const LAST: u64 = 1 << 63;

/// "SHA3", version 1.
const SCHEMA: u64 = 0x0000_0001_3341_4853;
/// The constant that completes the parity of the key words.
const PARITY: u64 = 0x1bd1_1bda_a9fc_1a22;

/// Rotations of the four mixes in each of eight rounds.
const ROTATIONS: [[u32; 4]; 8] = [
    [46, 36, 19, 37],
    [33, 27, 14, 42],
    [17, 49, 36, 39],
    [44, 9, 54, 56],
    [39, 30, 34, 24],
    [13, 50, 10, 17],
    [25, 29, 39, 43],
    [8, 35, 56, 22],
];

/// Skein-512 in progress.
#[derive(Clone)]
pub(super) struct Skein512 {
    chain: [u64; 8],
    /// Bytes compressed.
    done: u64,
    flags: u64,
    /// The last bytes, not yet compressed: the last block of a kind is treated differently, so a
    /// full one waits until more comes.
    held: [u8; BLOCK],
    len: usize,
}

impl Skein512 {
    /// A hash of `output_bits` (up to 512) under `key`, which may be empty.
    pub(super) fn new(key: &[u8], output_bits: u64) -> Skein512 {
        let mut chain = [0; 8];
        if !key.is_empty() {
            let mut keyed = Skein512::start(chain, KEY);
            keyed.update(key);
            chain = keyed.last_block();
        }
        let mut config = [0; 32];
        config[..8].copy_from_slice(&SCHEMA.to_le_bytes());
        config[8..16].copy_from_slice(&output_bits.to_le_bytes());
        let mut configured = Skein512::start(chain, CONFIG);
        configured.update(&config);
        Skein512::start(configured.last_block(), MESSAGE)
    }

    fn start(chain: [u64; 8], kind: u64) -> Skein512 {
        Skein512 { chain, done: 0, flags: kind | FIRST, held: [0; BLOCK], len: 0 }
    }

    pub(super) fn update(&mut self, mut data: &[u8]) {
        if self.len > 0 || data.len() <= BLOCK {
            let take = data.len().min(BLOCK - self.len);
            self.held[self.len..self.len + take].copy_from_slice(&data[..take]);
            self.len += take;
            data = &data[take..];
            if data.is_empty() {
                return;
            }
            let block = self.held;
            self.compress(&block, BLOCK as u64);
        }
        // At least one byte stays behind.
        let whole = (data.len() - 1) / BLOCK * BLOCK;
        let (blocks, rest) = data.split_at(whole);
        for block in blocks.as_chunks::<BLOCK>().0 {
            self.compress(block, BLOCK as u64);
        }
        self.held[..rest.len()].copy_from_slice(rest);
        self.len = rest.len();
    }

    /// Compresses what is held, padded with zeros, as the last block; the chaining value.
    fn last_block(mut self) -> [u64; 8] {
        self.held[self.len..].fill(0);
        self.flags |= LAST;
        let (block, len) = (self.held, self.len as u64);
        self.compress(&block, len);
        self.chain
    }

    /// The first 512 bits of output; a hash of fewer bits is a prefix of them.
    pub(super) fn finish(self) -> [u8; 64] {
        let mut output = Skein512::start(self.last_block(), OUTPUT);
        output.update(&0u64.to_le_bytes());
        let mut digest = [0; 64];
        for (bytes, word) in digest.chunks_exact_mut(8).zip(output.last_block()) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }

    fn compress(&mut self, block: &[u8; BLOCK], bytes: u64) {
        self.done = self.done.wrapping_add(bytes);
        let mut message = [0; 8];
        for (word, bytes) in message.iter_mut().zip(block.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let cipher = threefish(&self.chain, [self.done, self.flags], message);
        for i in 0..8 {
            self.chain[i] = cipher[i] ^ message[i];
        }
        self.flags &= !FIRST;
    }
}

/// Threefish-512: 72 rounds, a subkey before every fourth and after the last.
fn threefish(key: &[u64; 8], tweak: [u64; 2], mut x: [u64; 8]) -> [u64; 8] {
    // The schedule walks round nine key words and three tweak words; laid out here to the end, so
    // that subkey `s` is a slice.
    let mut k = [0; 27];
    k[..8].copy_from_slice(key);
    k[8] = key.iter().fold(PARITY, |p, w| p ^ w);
    k.copy_within(..9, 9);
    k.copy_within(..9, 18);
    let mut t = [0; 21];
    t[..3].copy_from_slice(&[tweak[0], tweak[1], tweak[0] ^ tweak[1]]);
    for i in 3..21 {
        t[i] = t[i - 3];
    }
    inject(&mut x, &k, &t, 0);
    for s in (0..18).step_by(2) {
        four_rounds::<0>(&mut x);
        inject(&mut x, &k, &t, s + 1);
        four_rounds::<4>(&mut x);
        inject(&mut x, &k, &t, s + 2);
    }
    x
}

#[inline(always)]
fn inject(x: &mut [u64; 8], k: &[u64; 27], t: &[u64; 21], s: usize) {
    for i in 0..8 {
        x[i] = x[i].wrapping_add(k[s + i]);
    }
    x[5] = x[5].wrapping_add(t[s]);
    x[6] = x[6].wrapping_add(t[s + 1]);
    x[7] = x[7].wrapping_add(s as u64);
}

/// Rounds `FIRST` to `FIRST + 3`. Which words are mixed follows the permutation between rounds,
/// instead of moving them; after four rounds they are back in their places.
#[inline(always)]
fn four_rounds<const FIRST: usize>(x: &mut [u64; 8]) {
    round::<0, 1, 2, 3, 4, 5, 6, 7>(x, &ROTATIONS[FIRST]);
    round::<2, 1, 4, 7, 6, 5, 0, 3>(x, &ROTATIONS[FIRST + 1]);
    round::<4, 1, 6, 3, 0, 5, 2, 7>(x, &ROTATIONS[FIRST + 2]);
    round::<6, 1, 0, 7, 2, 5, 4, 3>(x, &ROTATIONS[FIRST + 3]);
}

/// Four mixes: of words `A` and `B`, `C` and `D`, …
#[inline(always)]
fn round<
    const A: usize,
    const B: usize,
    const C: usize,
    const D: usize,
    const E: usize,
    const F: usize,
    const G: usize,
    const H: usize,
>(
    x: &mut [u64; 8],
    rotations: &[u32; 4],
) {
    x[A] = x[A].wrapping_add(x[B]);
    x[C] = x[C].wrapping_add(x[D]);
    x[E] = x[E].wrapping_add(x[F]);
    x[G] = x[G].wrapping_add(x[H]);
    x[B] = x[B].rotate_left(rotations[0]) ^ x[A];
    x[D] = x[D].rotate_left(rotations[1]) ^ x[C];
    x[F] = x[F].rotate_left(rotations[2]) ^ x[E];
    x[H] = x[H].rotate_left(rotations[3]) ^ x[G];
}
