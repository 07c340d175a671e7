//! Unpacked metadata blocks.
//!
//! The ARC holds blocks as they are on disk. An indirect block of 128 KiB is asked for one pointer
//! at a time, so unpacking it each time would cost far more than the read it serves. This small
//! cache keeps unpacked metadata (indirect blocks, dnodes, ZAPs) under a byte budget of its own.

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::arc::Key;
use crate::pipeline::Block;

/// Bytes of a usual block, by which the cache sizes its tables.
const USUAL: u64 = 16 << 10;

#[derive(Clone)]
pub(crate) struct InBytes;

impl Weighter<Key, Block> for InBytes {
    fn weight(&self, _: &Key, block: &Block) -> u64 {
        block.data.len() as u64
    }
}

pub(crate) type DecodedCache = Cache<Key, Block, InBytes>;

/// A cache that may hold `budget` bytes.
pub(crate) fn cache(budget: u64) -> DecodedCache {
    Cache::with_weighter((budget / USUAL) as usize, budget, InBytes)
}
