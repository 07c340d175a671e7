//! Bytes that cannot be compressed.

/// A generator of such bytes (xorshift); the state must not be 0.
pub struct Noise(pub u64);

impl Noise {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills a buffer of whole words.
    pub fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
    }
}
