//! Where the blocks of a huge file are, all of one size: a bit for each sector in which one begins.
//!
//! It says where blocks are but not which: enough to choose one at random. A table with 8 bytes for
//! each block of 65 TB would take 64 GiB; this takes 3 GiB.

use super::Layout;
use crate::space::Place;
use rand::Rng;
use rand::rngs::SmallRng;

const WORD: u64 = 64;

/// The set of blocks.
pub(super) struct BlockMap {
    shift: u32,
    /// Sectors of a block.
    block: u64,
    /// Words of each vdev.
    words: Vec<Vec<u64>>,
    sectors: u64,
    count: u64,
}

impl BlockMap {
    /// No blocks, of `block` bytes each, in sectors of `1 << shift`.
    pub fn new(layout: &Layout, shift: u32, block: u64) -> BlockMap {
        let sectors = (layout.metaslabs << layout.ms_shift) >> shift;
        let words = (0..layout.vdevs).map(|_| vec![0; sectors.div_ceil(WORD) as usize]).collect();
        BlockMap { shift, block: block >> shift, words, sectors, count: 0 }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        self.words.iter().map(|words| words.len() as u64 * 8).sum()
    }

    fn word(&mut self, vdev: u64, sector: u64) -> Option<&mut u64> {
        self.words.get_mut(vdev as usize)?.get_mut((sector / WORD) as usize)
    }

    /// Adds the blocks that fill `bytes` from `place` on.
    pub fn add(&mut self, place: Place, bytes: u64) {
        let first = place.offset() >> self.shift;
        for i in 0..(bytes >> self.shift) / self.block {
            let sector = first + i * self.block;
            if let Some(word) = self.word(place.vdev(), sector) {
                *word |= 1 << (sector % WORD);
                self.count += 1;
            }
        }
    }

    /// Takes any block out, all with the same probability; `None` if there is none.
    pub fn take(&mut self, rng: &mut SmallRng) -> Option<Place> {
        while self.count > 0 {
            let vdev = rng.random_range(0..self.words.len() as u64);
            let sector = rng.random_range(0..self.sectors);
            let bit = 1 << (sector % WORD);
            if let Some(word) = self.word(vdev, sector)
                && *word & bit != 0
            {
                *word &= !bit;
                self.count -= 1;
                return Some(Place::new(vdev, sector << self.shift));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::BTreeSet;

    #[test]
    fn takes_every_block_once() {
        let layout = Layout { vdevs: 3, ms_shift: 24, metaslabs: 2, target: 0 };
        let mut map = BlockMap::new(&layout, 12, 12 << 10);
        let mut all = BTreeSet::new();
        for (vdev, offset) in [(0, 0), (2, 20 << 20), (1, 4096)] {
            map.add(Place::new(vdev, offset), 120 << 10);
            all.extend((0..10).map(|i| Place::new(vdev, offset + i * (12 << 10))));
        }
        let mut rng = SmallRng::seed_from_u64(7);
        let taken: BTreeSet<Place> = std::iter::from_fn(|| map.take(&mut rng)).collect();
        assert_eq!((taken, map.count), (all, 0));
    }
}
