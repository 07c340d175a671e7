//! A deterministic source of damaged inputs: the same seeds give the same inputs in every run.

/// splitmix64: small, fast, and good enough to choose where to damage.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A sequence that depends on `seed` only.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.word()) * n as u128) >> 64) as usize
    }
}

/// Numbers at the edges of what fields hold.
const EDGES: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// Damages `data` in one to eight places; `other` is another input, to take pieces from.
pub fn mutate(random: &mut Random, data: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=random.below(8) {
        let at = random.below(data.len());
        match random.below(32) {
            0..8 => flip_bit(random, data, at),
            8..16 => set_byte(random, data, at),
            16..24 => set_number(random, data, at),
            24 => data.truncate(at),
            25..29 => splice(random, data, at, other),
            _ => double(random, data, at),
        }
    }
}

fn flip_bit(random: &mut Random, data: &mut [u8], at: usize) {
    if let Some(byte) = data.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

fn set_byte(random: &mut Random, data: &mut [u8], at: usize) {
    if let Some(byte) = data.get_mut(at) {
        *byte = random.word() as u8;
    }
}

/// An aligned number of 2, 4 or 8 bytes becomes an edge, or goes one up or down.
fn set_number(random: &mut Random, data: &mut [u8], at: usize) {
    let size = 2 << random.below(3);
    let at = at - at % size;
    let Some(bytes) = data.get_mut(at..at + size) else { return };
    let mut word = [0; 8];
    word[..size].copy_from_slice(bytes);
    let old = u64::from_le_bytes(word);
    let new = match random.below(4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        _ => EDGES[random.below(EDGES.len())],
    };
    let mut word = new.to_le_bytes();
    if random.below(2) == 0 {
        word[..size].reverse();
    }
    bytes.copy_from_slice(&word[..size]);
}

/// A piece of `other` replaces what is at `at`.
fn splice(random: &mut Random, data: &mut [u8], at: usize, other: &[u8]) {
    let from = random.below(other.len());
    let piece = &other[from..];
    let len = random.below(piece.len().min(data.len() - at) + 1);
    data[at..at + len].copy_from_slice(&piece[..len]);
}

/// A piece of the input is repeated at its end.
fn double(random: &mut Random, data: &mut Vec<u8>, at: usize) {
    let len = random.below((data.len() - at).min(4096) + 1);
    data.extend_from_within(at..at + len);
}
