//! Random overwrite: blocks of one large file or volume are rewritten in no order.
//!
//! Up to [`TABLE_BLOCKS`] blocks there is a table of where each one is. A larger file has a
//! [`BlockMap`]: a block is then chosen by its place, and its indirect block at random, because it
//! is not known which one it is. As any block is as likely as any other, that makes no difference
//! but for two blocks of one group with the same place in the file.

use super::blockmap::BlockMap;
use super::{FILL_BATCH, Layout, Workload};
use crate::indirect::{POINTERS, Tree};
use crate::space::{Place, Space, Stop};
use crate::spec::Spec;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// Most blocks that are in a table, which then takes 1 GiB.
const TABLE_BLOCKS: u64 = 128 << 20;

enum Blocks {
    Table(Vec<Place>),
    Map(BlockMap),
}

/// The workload.
pub(super) struct Overwrite {
    rng: SmallRng,
    /// Bytes of a block.
    block: u64,
    /// Bytes per second.
    rate: u64,
    extent: u64,
    /// Blocks of the file.
    count: u64,
    /// Blocks that were filled.
    filled: u64,
    blocks: Blocks,
    tree: Tree,
}

impl Overwrite {
    pub fn new(spec: &Spec, rate: u64, layout: &Layout) -> Overwrite {
        let block = spec.allocated_block();
        // Indirect blocks take a part of the target.
        let above = 2 * crate::indirect::indirect_size(POINTERS, spec.sector());
        let count = (layout.target / (block * POINTERS + above) * POINTERS).max(1);
        let blocks = match count <= TABLE_BLOCKS {
            true => Blocks::Table(Vec::with_capacity(count as usize)),
            false => Blocks::Map(BlockMap::new(layout, spec.ashift, block)),
        };
        Overwrite {
            rng: SmallRng::seed_from_u64(spec.seed),
            block,
            rate: rate * block / spec.block,
            extent: layout.fill_extent(block),
            count,
            filled: 0,
            blocks,
            tree: Tree::new(count),
        }
    }

    /// Rewrites `wanted` blocks of the table, in the order of the file.
    fn rewrite_known(
        table: &mut [Place],
        wanted: u64,
        rng: &mut SmallRng,
        block: u64,
        space: &mut Space<'_>,
    ) -> Result<Vec<u64>, Stop> {
        let count = table.len() as u64;
        let mut chosen: Vec<u64> = (0..wanted).map(|_| rng.random_range(0..count)).collect();
        chosen.sort_unstable();
        chosen.dedup();
        for at in &mut chosen {
            let new = space.data(block)?;
            if let Some(place) = table.get_mut(*at as usize) {
                space.free(std::mem::replace(place, new), block)?;
            }
            *at /= POINTERS;
        }
        Ok(chosen)
    }
}

impl Workload for Overwrite {
    fn fill(&mut self, _room: u64, space: &mut Space<'_>) -> Result<bool, Stop> {
        for _ in 0..FILL_BATCH {
            let left = self.count - self.filled;
            if left == 0 {
                return Ok(true);
            }
            let bytes = self.extent.min(left * self.block);
            let place = space.data(bytes)?;
            let number = bytes / self.block;
            match &mut self.blocks {
                Blocks::Map(map) => map.add(place, bytes),
                Blocks::Table(table) => {
                    table.extend((0..number).map(|i| place.after(i * self.block)));
                }
            }
            let from = self.filled / POINTERS;
            self.filled += number;
            // Those that are full by now; the last one has what is left over.
            let to = match self.filled == self.count {
                true => self.tree.lowest(),
                false => self.filled / POINTERS,
            };
            self.tree.rewrite((from..to).collect(), space)?;
        }
        Ok(false)
    }

    fn group(&mut self, from: Duration, to: Duration, space: &mut Space<'_>) -> Result<(), Stop> {
        let done = |at: Duration| {
            at.as_nanos() * u128::from(self.rate) / 1_000_000_000 / u128::from(self.block)
        };
        let wanted = u64::try_from(done(to) - done(from)).unwrap_or(u64::MAX).min(self.count);
        let lowest = match &mut self.blocks {
            Blocks::Table(table) => {
                Self::rewrite_known(table, wanted, &mut self.rng, self.block, space)?
            }
            Blocks::Map(map) => {
                let mut lowest = Vec::with_capacity(wanted as usize);
                let mut new = Vec::with_capacity(wanted as usize);
                for _ in 0..wanted {
                    let Some(old) = map.take(&mut self.rng) else { break };
                    new.push(space.data(self.block)?);
                    space.free(old, self.block)?;
                    lowest.push(self.rng.random_range(0..self.tree.lowest()));
                }
                new.into_iter().for_each(|place| map.add(place, self.block));
                lowest
            }
        };
        self.tree.rewrite(lowest, space)
    }

    fn memory(&self) -> u64 {
        let blocks = match &self.blocks {
            Blocks::Table(table) => table.len() as u64 * 8,
            Blocks::Map(map) => map.memory(),
        };
        blocks + self.tree.lowest() * 24
    }
}
