//! Random overwrite: blocks of one large file or volume are rewritten in no order.
//!
//! Up to [`TABLE_BLOCKS`] blocks there is a table of where each one is. A larger file has a
//! [`BlockMap`]: a block is then chosen by its place, and its indirect block at random, because it
//! is not known which one it is. As any block is as likely as any other, that makes no difference
//! but for two blocks of one group with the same place in the file.
//!
//! In a pool that is there already, everything that is allocated is taken to be the file: blocks,
//! and between them the indirect blocks of level 1, where those are no larger than blocks.

use super::blockmap::BlockMap;
use super::{FILL_BATCH, Layout, Portions, Workload};
use crate::indirect::{Indirect, Meta, Tree};
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

impl Blocks {
    /// Adds the blocks of `block` bytes that fill `bytes` from `place` on.
    fn add(&mut self, place: Place, bytes: u64, block: u64) {
        match self {
            Blocks::Map(map) => map.add(place, bytes),
            Blocks::Table(table) => {
                table.extend((0..bytes / block).map(|i| place.after(i * block)));
            }
        }
    }
}

/// What was taken over.
#[derive(Default)]
struct Adopted {
    /// Blocks since the last indirect block.
    blocks: u64,
    /// The first copy of the next indirect block.
    copy: Option<Place>,
    indirect: Vec<Meta>,
}

/// The workload.
pub(super) struct Overwrite {
    rng: SmallRng,
    /// Bytes of a block.
    block: u64,
    /// Blocks per second, times the bytes of a block as the user has it.
    rate: (u64, u64),
    portions: Portions,
    /// Blocks of the file.
    count: u64,
    /// Blocks that were filled.
    filled: u64,
    blocks: Blocks,
    indirect: Indirect,
    tree: Tree,
    /// Bytes of a block on each vdev.
    asizes: Vec<u64>,
    adopted: Option<Adopted>,
}

impl Overwrite {
    pub fn new(spec: &Spec, rate: u64, layout: &Layout) -> Overwrite {
        let block = spec.allocated_block();
        let indirect = Indirect::of_files(spec);
        // Indirect blocks take a part of the target.
        let pointers = indirect.pointers();
        let above = 2 * indirect.size(pointers);
        let count = (layout.target / (block * pointers + above) * pointers).max(1);
        let blocks = match count <= TABLE_BLOCKS {
            true => Blocks::Table(Vec::new()),
            false => Blocks::Map(BlockMap::new(layout)),
        };
        Overwrite {
            rng: SmallRng::seed_from_u64(spec.seed),
            block,
            rate: (rate, spec.block),
            portions: layout.portions(block),
            count,
            filled: 0,
            blocks,
            indirect,
            tree: Tree::new(if spec.like.is_some() { 0 } else { count }, indirect),
            asizes: layout.vdevs.iter().map(|v| v.block).collect(),
            adopted: None,
        }
    }

    /// Rewrites `wanted` blocks of the table, in the order of the file.
    fn rewrite_known(&mut self, wanted: u64, space: &mut Space<'_>) -> Result<Vec<u64>, Stop> {
        let (count, pointers, block) = (self.count, self.indirect.pointers(), self.block);
        let Blocks::Table(table) = &mut self.blocks else { return Ok(Vec::new()) };
        let rng = &mut self.rng;
        let mut chosen: Vec<u64> = (0..wanted).map(|_| rng.random_range(0..count)).collect();
        chosen.sort_unstable();
        chosen.dedup();
        for at in &mut chosen {
            let new = space.data(block)?;
            if let Some(place) = table.get_mut(*at as usize) {
                space.free(std::mem::replace(place, new), block);
            }
            *at /= pointers;
        }
        Ok(chosen)
    }

    /// Rewrites `wanted` blocks of the map.
    fn rewrite_any(&mut self, wanted: u64, space: &mut Space<'_>) -> Result<Vec<u64>, Stop> {
        let Blocks::Map(map) = &mut self.blocks else { return Ok(Vec::new()) };
        let (mut lowest, mut new) = (Vec::new(), Vec::new());
        for _ in 0..wanted {
            let Some(old) = map.take(&mut self.rng) else { break };
            new.push(space.data(self.block)?);
            space.free(old, self.block);
            lowest.push(self.rng.random_range(0..self.tree.lowest().max(1)));
        }
        for place in new {
            let asize = self.asizes.get(place.vdev() as usize);
            map.add(place, asize.copied().unwrap_or(self.block));
        }
        Ok(lowest)
    }

    /// The file is what was taken over.
    fn settle(&mut self, adopted: Adopted) {
        self.count = self.filled;
        self.tree = Tree::new(self.count, self.indirect);
        for (slot, meta) in self.tree.lowest_mut().zip(adopted.indirect) {
            *slot = meta;
        }
    }
}

impl Workload for Overwrite {
    fn adopt(&mut self, vdev: u64, ranges: &mut dyn Iterator<Item = (u64, u64)>) {
        let Some(asize) = self.asizes.get(vdev as usize).copied() else { return };
        let pointers = self.indirect.pointers();
        let size = self.indirect.size(pointers);
        let between = size <= self.block;
        let adopted = self.adopted.get_or_insert_default();
        for (start, end) in ranges {
            for i in 0..(end - start) / asize {
                let place = Place::new(vdev, start + i * asize);
                if !between || adopted.blocks < pointers {
                    self.blocks.add(place, asize, asize);
                    adopted.blocks += 1;
                    self.filled += 1;
                } else if let Some(copy) = adopted.copy.take() {
                    adopted.indirect.push(Meta::new([copy, place], size));
                    adopted.blocks = 0;
                } else {
                    adopted.copy = Some(place);
                }
            }
        }
    }

    fn fill(&mut self, _room: u64, space: &mut Space<'_>) -> Result<bool, Stop> {
        if let Some(adopted) = self.adopted.take() {
            self.settle(adopted);
            return Ok(true);
        }
        let (first, mut bytes) = (self.filled / self.tree.pointers(), 0);
        for _ in 0..FILL_BATCH {
            let left = self.count - self.filled;
            if left == 0 || bytes >= self.portions.group {
                break;
            }
            let wanted = self.portions.extent.min(left * self.block);
            let (place, found) = space.extent(wanted, self.block)?;
            self.blocks.add(place, found, self.block);
            bytes += found;
            let from = self.filled / self.tree.pointers();
            self.filled += found / self.block;
            // Those that are full by now; the last one has what is left over.
            let to = match self.filled == self.count {
                true => self.tree.lowest(),
                false => self.filled / self.tree.pointers(),
            };
            self.tree.write(from, to, space)?;
        }
        let last = self.filled.div_ceil(self.tree.pointers());
        let above = (first..last).step_by(self.tree.pointers() as usize).chain(last.checked_sub(1));
        self.tree.rewrite_above(above.collect(), space)?;
        Ok(self.filled == self.count)
    }

    fn group(&mut self, from: Duration, to: Duration, space: &mut Space<'_>) -> Result<(), Stop> {
        let (rate, size) = self.rate;
        let done =
            |at: Duration| at.as_nanos() * u128::from(rate) / 1_000_000_000 / u128::from(size);
        let wanted = u64::try_from(done(to) - done(from)).unwrap_or(u64::MAX).min(self.count);
        let lowest = match &self.blocks {
            Blocks::Table(_) => self.rewrite_known(wanted, space)?,
            Blocks::Map(_) => self.rewrite_any(wanted, space)?,
        };
        self.tree.rewrite(lowest, space)
    }

    fn memory(&self) -> u64 {
        let blocks = match &self.blocks {
            Blocks::Table(table) => table.len() as u64 * 8,
            Blocks::Map(map) => map.memory(),
        };
        blocks + self.tree.memory()
    }
}
