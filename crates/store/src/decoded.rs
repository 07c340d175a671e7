//! Unpacked metadata blocks.
//!
//! The ARC holds blocks as they are on disk. An indirect block of 128 KiB is asked for one pointer
//! at a time, so unpacking it each time would cost far more than the read it serves. This small
//! cache keeps unpacked metadata (indirect blocks, dnodes, ZAPs) in least-recently-used order,
//! under a byte budget of its own.
//!
//! Structure: a map from key to (block, last use) and a map from last use to key, both exact;
//! evicting takes the smallest last use.

use std::collections::{BTreeMap, HashMap};

use crate::arc::Key;
use crate::pipeline::Block;

pub(crate) struct DecodedCache {
    budget: u64,
    bytes: u64,
    clock: u64,
    blocks: HashMap<Key, (Block, u64)>,
    by_use: BTreeMap<u64, Key>,
}

impl DecodedCache {
    pub(crate) fn new(budget: u64) -> DecodedCache {
        DecodedCache { budget, bytes: 0, clock: 0, blocks: HashMap::new(), by_use: BTreeMap::new() }
    }

    pub(crate) fn get(&mut self, key: &Key) -> Option<Block> {
        let (block, used) = self.blocks.get_mut(key)?;
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, *key);
        Some(block.clone())
    }

    pub(crate) fn insert(&mut self, key: Key, block: Block) {
        let size = block.data.len() as u64;
        if size > self.budget / 4 || self.blocks.contains_key(&key) {
            return;
        }
        while self.bytes + size > self.budget {
            let Some((_, old)) = self.by_use.pop_first() else { break };
            if let Some((block, _)) = self.blocks.remove(&old) {
                self.bytes -= block.data.len() as u64;
            }
        }
        self.clock += 1;
        self.bytes += size;
        self.by_use.insert(self.clock, key);
        self.blocks.insert(key, (block, self.clock));
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.by_use.clear();
        self.bytes = 0;
    }
}
