//! Facts about a ZAP, as `zdb -dddd` prints them (`zap_stats_t`).

use super::fat::FatZap;
use crate::Object;
use cenote_format::Bytes;
use cenote_format::zap::fat::PointerTable;
use cenote_format::zap::leaf::{ARRAY_BYTES, Leaf};

/// Columns of a histogram; the last one counts everything from there on.
pub const HISTOGRAM: usize = 10;
/// Bad pointers after which the statistics of a damaged table are cut short.
const MAX_BAD: u32 = 4096;

/// Facts about a ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Describe {
    /// Bytes of a block; the whole of a micro ZAP.
    pub block_size: u64,
    /// Entries.
    pub entries: u64,
    /// Start value of the hash.
    pub salt: u64,
    /// Normalization flags.
    pub norm_flags: u64,
    /// `ZAP_FLAG_*`.
    pub flags: u64,
    /// What only a fat ZAP has; `None` for a micro ZAP.
    pub fat: Option<FatStats>,
}

impl Describe {
    /// Whether the ZAP is a micro ZAP.
    pub fn is_micro(&self) -> bool {
        self.fat.is_none()
    }
}

/// Figures of a fat ZAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatStats {
    /// Pointers in the pointer table.
    pub pointers: u64,
    /// Where the pointer table is.
    pub table: PointerTable,
    /// Leaf blocks, as the header says.
    pub leafs: u64,
    /// Blocks: the next free block number.
    pub blocks: u64,
    /// First word of the header.
    pub block_type: u64,
    /// Second word of the header.
    pub magic: u64,
    /// Leafs by log2 of the number of pointers to them.
    pub leafs_with_2n_pointers: [u64; HISTOGRAM],
    /// Leafs by a fifth of the number of their entries.
    pub blocks_with_n5_entries: [u64; HISTOGRAM],
    /// Leafs by how many tenths of them are full.
    pub blocks_n_tenths_full: [u64; HISTOGRAM],
    /// Entries by number of chunks.
    pub entries_using_n_chunks: [u64; HISTOGRAM],
    /// Buckets by number of entries.
    pub buckets_with_n_entries: [u64; HISTOGRAM],
}

fn count(histogram: &mut [u64; HISTOGRAM], n: usize) {
    if let Some(column) = histogram.get_mut(n.min(HISTOGRAM - 1)) {
        *column += 1;
    }
}

impl FatStats {
    fn add_leaf(&mut self, leaf: &Leaf<'_>, block_size: u64) {
        let pointers = self.table.shift.saturating_sub(leaf.prefix_len);
        count(&mut self.leafs_with_2n_pointers, pointers as usize);
        count(&mut self.blocks_with_n5_entries, usize::from(leaf.entries) / 5);
        let free = u64::from(leaf.free_chunks) * (ARRAY_BYTES as u64 + 1);
        let full = block_size.saturating_sub(free) * 10 / block_size.max(1);
        count(&mut self.blocks_n_tenths_full, full as usize);
        for bucket in 0..leaf.buckets() {
            let mut entries = 0;
            for entry in leaf.bucket_entries(bucket) {
                count(&mut self.entries_using_n_chunks, entry.counted_chunks());
                entries += 1;
            }
            count(&mut self.buckets_with_n_entries, entries);
        }
    }
}

impl FatZap {
    /// Goes through the pointer table and all leafs. A leaf is counted where its pointers begin and
    /// once more for each further block of the pointer table that they fill.
    pub(crate) fn stats(&self, object: &Object) -> FatStats {
        let h = &self.header;
        let mut stats = FatStats {
            pointers: h.pointers(),
            table: h.table,
            leafs: h.leafs,
            blocks: h.free_block,
            block_type: h.block_type,
            magic: h.magic,
            leafs_with_2n_pointers: [0; HISTOGRAM],
            blocks_with_n5_entries: [0; HISTOGRAM],
            blocks_n_tenths_full: [0; HISTOGRAM],
            entries_using_n_chunks: [0; HISTOGRAM],
            buckets_with_n_entries: [0; HISTOGRAM],
        };
        let per_block = if h.table.blocks == 0 { h.pointers() } else { 1 << (h.block_shift - 3) };
        let (mut index, mut bad) = (0, 0);
        while index < h.pointers() && bad < MAX_BAD {
            let Ok(blkid) = self.pointer(object, index) else { break };
            match self.add_leaf_block(object, index, blkid, &mut stats) {
                Some(next) => index = next.min((index / per_block + 1) * per_block),
                None => (index, bad) = (index + 1, bad + 1),
            }
        }
        stats
    }

    /// Counts leaf block `blkid` and returns the first index past its pointers.
    fn add_leaf_block(
        &self,
        object: &Object,
        index: u64,
        blkid: u64,
        stats: &mut FatStats,
    ) -> Option<u64> {
        let block = self.leaf_block(object, blkid).ok()?;
        let data = block.data.bytes();
        let leaf = Leaf::decode(Bytes::new(&data, block.order, "ZAP leaf")).ok()?;
        let width = self.header.table.shift.checked_sub(leaf.prefix_len)?;
        if index.checked_shr(width)? != leaf.prefix {
            return None;
        }
        stats.add_leaf(&leaf, 1 << self.header.block_shift);
        Some((leaf.prefix + 1) << width)
    }
}
