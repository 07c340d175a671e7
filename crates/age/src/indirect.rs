//! A model of the metadata that refers to data blocks: indirect blocks.
//!
//! Rewriting a block rewrites its indirect block, and that one's, up to the dnode, once in each
//! transaction group however many blocks below were rewritten. Indirect blocks have 128 KiB, 1,024
//! pointers, are compressed and written twice: so OpenZFS makes them. (The engine's own are smaller for
//! files with small blocks.) How far they compress depends on what is in the pointers:
//! [`indirect_size`] is an estimate.

use crate::space::{Place, Space, Stop};

/// Pointers in an indirect block of 128 KiB.
pub(crate) const POINTERS: u64 = 1024;
/// Bytes of an indirect block.
const LOGICAL: u64 = 128 << 10;
/// Bytes that a pointer takes when compressed with LZ4: its checksum, which nothing can compress,
/// and what differs from its neighbours.
const PER_POINTER: u64 = 54;
/// Bytes that an indirect block takes without any pointer.
const BARE: u64 = 560;

/// Bytes that an indirect block with `used` pointers takes, in sectors of `sector` bytes.
pub(crate) fn indirect_size(used: u64, sector: u64) -> u64 {
    (BARE + used * PER_POINTER).next_multiple_of(sector).min(LOGICAL)
}

/// A block of metadata: both copies, and bytes of one. No bytes: there is none yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meta {
    at: [Place; 2],
    size: u32,
}

impl Meta {
    /// Writes it anew with this size.
    pub fn rewrite(&mut self, size: u64, space: &mut Space<'_>) -> Result<(), Stop> {
        let at = space.metadata(size)?;
        let old = std::mem::replace(self, Meta { at, size: size as u32 });
        if old.size > 0 {
            for place in old.at {
                space.free(place, old.size.into())?;
            }
        }
        Ok(())
    }
}

/// The indirect blocks above so many blocks.
#[derive(Debug)]
pub(crate) struct Tree {
    /// From level 1 up.
    levels: Vec<Vec<Meta>>,
    blocks: u64,
}

impl Tree {
    /// Over `blocks` blocks; none is written yet.
    pub fn new(blocks: u64) -> Tree {
        let (mut levels, mut below) = (Vec::new(), blocks);
        while below > 1 {
            below = below.div_ceil(POINTERS);
            levels.push(vec![Meta::default(); below as usize]);
        }
        Tree { levels, blocks }
    }

    /// Number of indirect blocks at level 1.
    pub fn lowest(&self) -> u64 {
        self.levels.first().map_or(0, |level| level.len() as u64)
    }

    /// Rewrites what is above the indirect blocks `lowest` of level 1, and these.
    pub fn rewrite(&mut self, mut lowest: Vec<u64>, space: &mut Space<'_>) -> Result<(), Stop> {
        let mut below = self.blocks;
        for level in &mut self.levels {
            lowest.sort_unstable();
            lowest.dedup();
            for at in &mut lowest {
                let used = below.saturating_sub(*at * POINTERS).min(POINTERS);
                if let Some(meta) = level.get_mut(*at as usize) {
                    meta.rewrite(indirect_size(used, space.sector), space)?;
                }
                *at /= POINTERS;
            }
            below = level.len() as u64;
        }
        Ok(())
    }
}
