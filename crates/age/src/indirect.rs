//! A model of the metadata that refers to data blocks: indirect blocks.
//!
//! Rewriting a block rewrites its indirect block, and that one's, up to the dnode, once in each
//! transaction group however many blocks below were rewritten. Indirect blocks are as large as the
//! engine makes them ([`cenote_dmu::write::indirect_shift`]) unless another size is asked for, are
//! compressed and written twice. How far they compress depends on what is in the pointers:
//! [`Indirect::size`] is an estimate.

use crate::space::{Place, Space, Stop};
use crate::spec::Spec;
use cenote_dmu::write::{MAX_INDIRECT_SHIFT, indirect_shift};
use cenote_format::blkptr::BLKPTR_SIZE;

/// Bytes that a pointer takes when compressed with LZ4: its checksum, which nothing can compress,
/// and what differs from its neighbours.
const PER_POINTER: u64 = 54;
/// Bytes that an indirect block takes without any pointer, for each KiB that it has.
const BARE_PER_KIB: u64 = 4;
/// Bytes that it takes besides.
const BARE: u64 = 48;

/// The indirect blocks of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Indirect {
    shift: u8,
    sector: u64,
}

impl Indirect {
    /// The indirect blocks of files.
    pub fn of_files(spec: &Spec) -> Indirect {
        let shift = spec.indirect.map_or_else(|| indirect_shift(spec.block), |n| n.ilog2() as u8);
        Indirect { shift, sector: spec.sector() }
    }

    /// The indirect blocks of the object that holds dnodes.
    pub fn of_dnodes(spec: &Spec) -> Indirect {
        Indirect { shift: MAX_INDIRECT_SHIFT, sector: spec.sector() }
    }

    /// Pointers in one.
    pub fn pointers(self) -> u64 {
        (1 << self.shift) / BLKPTR_SIZE as u64
    }

    /// Bytes that one with `used` pointers takes, in sectors.
    pub fn size(self, used: u64) -> u64 {
        let logical = 1u64 << self.shift;
        let packed = BARE + (logical >> 10) * BARE_PER_KIB + used * PER_POINTER;
        packed.next_multiple_of(self.sector).min(logical)
    }

    /// Levels of them above `blocks` blocks.
    pub fn levels(self, blocks: u64) -> usize {
        let (mut levels, mut below) = (0, blocks);
        while below > 1 {
            below = below.div_ceil(self.pointers());
            levels += 1;
        }
        levels
    }
}

/// A block of metadata: both copies, and bytes of one. No bytes: it is not written yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta {
    at: [Place; 2],
    size: u32,
}

impl Meta {
    /// One that is there already.
    pub fn new(at: [Place; 2], size: u64) -> Meta {
        Meta { at, size: size as u32 }
    }

    /// Writes it anew with this size.
    pub fn rewrite(&mut self, size: u64, space: &mut Space<'_>) -> Result<(), Stop> {
        let at = space.metadata(size)?;
        let old = std::mem::replace(self, Meta::new(at, size));
        if old.size > 0 {
            for place in old.at {
                space.free(place, old.size.into());
            }
        }
        Ok(())
    }
}

/// The indirect blocks above so many blocks.
#[derive(Debug)]
pub(crate) struct Tree {
    indirect: Indirect,
    /// From level 1 up.
    levels: Vec<Vec<Meta>>,
    blocks: u64,
}

impl Tree {
    /// Over `blocks` blocks, which are not written yet.
    pub fn new(blocks: u64, indirect: Indirect) -> Tree {
        let (mut levels, mut below) = (Vec::new(), blocks);
        while below > 1 {
            below = below.div_ceil(indirect.pointers());
            levels.push(vec![Meta::default(); below as usize]);
        }
        Tree { indirect, levels, blocks }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        self.levels.iter().map(|level| size_of_val(&level[..]) as u64).sum()
    }

    /// Number of indirect blocks at level 1.
    pub fn lowest(&self) -> u64 {
        self.levels.first().map_or(0, |level| level.len() as u64)
    }

    /// The indirect blocks of level 1, to note where they are.
    pub fn lowest_mut(&mut self) -> impl Iterator<Item = &mut Meta> {
        self.levels.first_mut().into_iter().flatten()
    }

    /// Bytes that an indirect block at level 1 takes if its pointers are used.
    pub fn size(&self) -> u64 {
        self.indirect.size(self.indirect.pointers())
    }

    /// Blocks below an indirect block of level 1.
    pub fn pointers(&self) -> u64 {
        self.indirect.pointers()
    }

    /// Writes the indirect blocks `from..to` of level 1 for the first time, one after the other.
    pub fn write(&mut self, from: u64, to: u64, space: &mut Space<'_>) -> Result<(), Stop> {
        let (size, blocks, pointers) = (self.size(), self.blocks, self.pointers());
        let level = self.levels.first_mut().map_or(&mut [][..], |level| &mut level[..]);
        let range = level.get_mut(from as usize..to as usize).unwrap_or_default();
        // The last one of all may have fewer pointers.
        let whole = range.len().min((blocks / pointers).saturating_sub(from) as usize);
        let (whole, rest) = range.split_at_mut(whole);
        for run in whole.chunks_mut(space.run(size)) {
            match space.metadata_run(size, run.len() as u64)? {
                Some(at) => (0u64..).zip(run).for_each(|(i, meta)| {
                    *meta = Meta::new(at.map(|place| place.after(i * size)), size);
                }),
                None => run.iter_mut().try_for_each(|meta| meta.rewrite(size, space))?,
            }
        }
        let left = self.indirect.size(blocks % pointers);
        rest.iter_mut().try_for_each(|meta| meta.rewrite(left, space))
    }

    /// Rewrites what is above the indirect blocks `lowest` of level 1, and these.
    pub fn rewrite(&mut self, lowest: Vec<u64>, space: &mut Space<'_>) -> Result<(), Stop> {
        self.rewrite_from(0, lowest, space)
    }

    /// Rewrites what is above the indirect blocks `lowest` of level 1, but not these.
    pub fn rewrite_above(&mut self, lowest: Vec<u64>, space: &mut Space<'_>) -> Result<(), Stop> {
        let pointers = self.pointers();
        self.rewrite_from(1, lowest.into_iter().map(|at| at / pointers).collect(), space)
    }

    fn rewrite_from(
        &mut self,
        first: usize,
        mut which: Vec<u64>,
        space: &mut Space<'_>,
    ) -> Result<(), Stop> {
        let Tree { indirect, levels, blocks } = self;
        let mut below = match first.checked_sub(1).and_then(|i| levels.get(i)) {
            Some(level) => level.len() as u64,
            None => *blocks,
        };
        for level in levels.iter_mut().skip(first) {
            which.sort_unstable();
            which.dedup();
            for at in &mut which {
                let used = below.saturating_sub(*at * indirect.pointers()).min(indirect.pointers());
                if let Some(meta) = level.get_mut(*at as usize) {
                    meta.rewrite(indirect.size(used), space)?;
                }
                *at /= indirect.pointers();
            }
            below = level.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirect_blocks_are_as_the_engine_makes_them() {
        let spec = Spec::default();
        let of = |indirect: Indirect| (indirect.pointers(), indirect.levels(1 << 20));
        assert_eq!(of(Indirect::of_files(&spec)), (1 << (indirect_shift(8 << 10) - 7), 4));
        assert_eq!(of(Indirect::of_dnodes(&spec)), (1024, 2));
        let asked = Spec { indirect: Some(128 << 10), ..spec };
        assert_eq!(Indirect::of_files(&asked), Indirect::of_dnodes(&asked));
        let files = Indirect::of_files(&Spec::default());
        assert_eq!([1, 2, 64, 65].map(|n| files.levels(n)), [0, 1, 1, 2]);
        assert!(files.size(1) == 4096 && files.size(128) <= 16 << 10);
    }
}
