//! Unpacked metadata blocks.
//!
//! The ARC holds blocks as they are on disk. An indirect block of 128 KiB is asked for one pointer
//! at a time, so unpacking it each time would cost far more than the read it serves. This small
//! cache keeps unpacked metadata (indirect blocks, dnodes, ZAPs) under a byte budget of its own.
//!
//! Invariant: what was decrypted or authenticated with a key is found by readers with this key alone ([`View`]).

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::arc::Key;
use crate::pipeline::Block;

/// Bytes of a usual block, by which the cache sizes its tables.
const USUAL: u64 = 16 << 10;

/// Which key a reader of a block has: the number of the loaded key ([`LoadedKey::id`](crate::keys::LoadedKey::id));
/// [`PLAIN`] without one.
pub(crate) type View = u64;

/// The view of a reader without a key.
pub(crate) const PLAIN: View = 0;

#[derive(Clone)]
pub(crate) struct InBytes;

impl Weighter<(Key, View), Block> for InBytes {
    fn weight(&self, _: &(Key, View), block: &Block) -> u64 {
        block.data.len() as u64
    }
}

pub(crate) type DecodedCache = Cache<(Key, View), Block, InBytes>;

/// A cache that may hold `budget` bytes.
pub(crate) fn cache(budget: u64) -> DecodedCache {
    Cache::with_weighter((budget / USUAL) as usize, budget, InBytes)
}
