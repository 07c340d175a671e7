//! Where the blocks of a huge file are, all of one size: a bit for each sector in which one begins.
//!
//! It says where blocks are but not which: enough to choose one at random. A table with 8 bytes for
//! each block of 65 TB would take 64 GiB; this takes 3 GiB.

use super::{Cut, Layout};
use crate::space::Place;
use rand::Rng;
use rand::rngs::SmallRng;

const WORD: u64 = 64;

/// The blocks of a vdev.
struct Bits {
    shift: u32,
    /// Sectors of a block.
    block: u64,
    words: Vec<u64>,
    sectors: u64,
}

/// The set of blocks.
pub(super) struct BlockMap {
    vdevs: Vec<Bits>,
    /// Sectors of all vdevs.
    sectors: u64,
    count: u64,
}

impl BlockMap {
    /// No blocks.
    pub fn new(layout: &Layout) -> BlockMap {
        let bits = |v: &Cut| {
            let sectors = (v.metaslabs << v.ms_shift) >> v.ashift;
            let words = vec![0; sectors.div_ceil(WORD) as usize];
            Bits { shift: v.ashift, block: (v.block >> v.ashift).max(1), words, sectors }
        };
        let vdevs: Vec<Bits> = layout.vdevs.iter().map(bits).collect();
        let sectors = vdevs.iter().map(|v| v.sectors).sum();
        BlockMap { vdevs, sectors, count: 0 }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        self.vdevs.iter().map(|v| size_of_val(&v.words[..]) as u64).sum()
    }

    /// Adds the blocks that fill `bytes` from `place` on.
    pub fn add(&mut self, place: Place, bytes: u64) {
        let Some(bits) = self.vdevs.get_mut(place.vdev() as usize) else { return };
        let first = place.offset() >> bits.shift;
        for i in 0..(bytes >> bits.shift) / bits.block {
            let sector = first + i * bits.block;
            if let Some(word) = bits.words.get_mut((sector / WORD) as usize) {
                *word |= 1 << (sector % WORD);
                self.count += 1;
            }
        }
    }

    /// Takes any block out, all with the same probability; `None` if the map is empty.
    pub fn take(&mut self, rng: &mut SmallRng) -> Option<Place> {
        while self.count > 0 {
            let mut sector = rng.random_range(0..self.sectors);
            for (vdev, bits) in (0u64..).zip(&mut self.vdevs) {
                if sector >= bits.sectors {
                    sector -= bits.sectors;
                    continue;
                }
                let bit = 1 << (sector % WORD);
                if let Some(word) = bits.words.get_mut((sector / WORD) as usize)
                    && *word & bit != 0
                {
                    *word &= !bit;
                    self.count -= 1;
                    return Some(Place::new(vdev, sector << bits.shift));
                }
                break;
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
        let cut = |ashift, metaslabs| Cut { ashift, ms_shift: 24, metaslabs, block: 12 << 10 };
        let vdevs = vec![cut(12, 2), cut(9, 1), cut(12, 3)];
        let layout = Layout { vdevs, target: 0 };
        let mut map = BlockMap::new(&layout);
        let mut all = BTreeSet::new();
        for (vdev, offset) in [(0, 0), (2, 40 << 20), (1, 512)] {
            map.add(Place::new(vdev, offset), 120 << 10);
            all.extend((0..10).map(|i| Place::new(vdev, offset + i * (12 << 10))));
        }
        let mut rng = SmallRng::seed_from_u64(7);
        let taken: BTreeSet<Place> = std::iter::from_fn(|| map.take(&mut rng)).collect();
        assert_eq!((taken, map.count), (all, 0));
    }
}
