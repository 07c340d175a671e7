//! Header block of a fat ZAP (`zap_phys_t`) and the pointer table.
//!
//! ```text
//! 0    block type (ZBT_HEADER)
//! 8    magic
//! 16   pointer table: first block, blocks, shift, first block of a larger copy, blocks copied
//! 56   next free block
//! 64   leaf blocks
//! 72   entries
//! 80   salt
//! 88   normalization flags
//! 96   flags
//! half of the block: embedded pointer table, used while the table has no blocks of its own
//! ```
//!
//! A pointer is the 64-bit number of a leaf block within the object.

use super::{BlockKind, block_kind};
use crate::{Bytes, DecodeError, Result};

/// `ZAP_MAGIC`.
pub const MAGIC: u64 = 0x2_F52A_B2AB;
/// Largest accepted `zt_shift`. With 48 bits of hash there is nothing to gain from more.
pub const MAX_SHIFT: u64 = 48;
const WHAT: &str = "fat ZAP header";

/// A decoded `zap_phys_t`, checked: offsets that follow from it are in bounds.
#[derive(Debug, Clone)]
pub struct FatHeader {
    /// log2 of the bytes of every block of the ZAP.
    pub block_shift: u32,
    /// First word of the block.
    pub block_type: u64,
    /// Second word of the block, [`MAGIC`].
    pub magic: u64,
    /// Where the pointer table is.
    pub table: PointerTable,
    /// `zap_freeblk`: number of the next block to be used.
    pub free_block: u64,
    /// Number of leaf blocks.
    pub leafs: u64,
    /// Number of entries.
    pub entries: u64,
    /// Start value of the hash.
    pub salt: u64,
    /// Normalization flags, see [`super::norm`].
    pub norm_flags: u64,
    /// `ZAP_FLAG_*`.
    pub flags: u64,
}

/// `zap_table_phys_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerTable {
    /// Number of the first block.
    pub block: u64,
    /// Blocks; 0: the table is the embedded one.
    pub blocks: u64,
    /// log2 of the number of pointers.
    pub shift: u32,
    /// First block of the copy of twice the size that is being made.
    pub next_block: u64,
    /// Blocks of this table that were copied there.
    pub blocks_copied: u64,
}

/// Where a pointer of the table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerAt {
    /// Number of the block in the object; 0 is the header block.
    pub block: u64,
    /// Byte offset in that block.
    pub offset: usize,
}

impl FatHeader {
    /// Decodes and checks the header block; the block must be the whole first block.
    pub fn decode(b: &Bytes<'_>) -> Result<FatHeader> {
        let bad = |why: String| Err(DecodeError::invalid(WHAT, why));
        if !b.len().is_power_of_two() || b.len() < 512 {
            return bad(format!("block of {} bytes", b.len()));
        }
        let block_shift = b.len().trailing_zeros();
        if block_kind(b)? != BlockKind::Header || b.u64(8)? != MAGIC {
            return bad(format!("block type {:#x}, magic {:#x}", b.u64(0)?, b.u64(8)?));
        }
        let [block, blocks, shift, next_block, blocks_copied] = b.u64s::<5>(16)?;
        if shift > MAX_SHIFT {
            return bad(format!("pointer table of 2^{shift}"));
        }
        let room = match blocks {
            0 => Some(1u64 << (block_shift - 4)),
            n => n.checked_mul(1 << (block_shift - 3)),
        };
        // So that each pointer has a block, in the table that is being made too, which is twice as large.
        let end = block.checked_add(blocks);
        let next_end = blocks.max(1).checked_mul(2).and_then(|n| next_block.checked_add(n));
        if room.is_none_or(|room| 1u64 << shift > room)
            || end.is_none()
            || next_end.is_none()
            || (blocks > 0 && block == 0)
        {
            return bad(format!("pointer table of 2^{shift} in {blocks} blocks from {block}"));
        }
        let [free_block, leafs, entries, salt, norm_flags, flags] = b.u64s::<6>(56)?;
        let table = PointerTable { block, blocks, shift: shift as u32, next_block, blocks_copied };
        Ok(FatHeader {
            block_shift,
            block_type: b.u64(0)?,
            magic: MAGIC,
            table,
            free_block,
            leafs,
            entries,
            salt,
            norm_flags,
            flags,
        })
    }

    /// Number of pointers in the table.
    pub fn pointers(&self) -> u64 {
        1 << self.table.shift
    }

    /// Index into the pointer table of keys with this hash.
    pub fn index(&self, hash: u64) -> u64 {
        hash.checked_shr(64 - self.table.shift).unwrap_or(0)
    }

    /// Where pointer `index` (below [`FatHeader::pointers`]) is stored.
    pub fn pointer_at(&self, index: u64) -> PointerAt {
        if self.table.blocks == 0 {
            let half = 1usize << (self.block_shift - 1);
            let within = (index & ((1 << (self.block_shift - 4)) - 1)) as usize;
            return PointerAt { block: 0, offset: half + within * 8 };
        }
        let per_block = self.block_shift - 3;
        let within = (index & ((1 << per_block) - 1)) as usize;
        PointerAt { block: self.table.block + (index >> per_block), offset: within * 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;

    fn header(words: &[(usize, u64)]) -> Vec<u8> {
        let mut b = vec![0u8; 1024];
        let base = [(0, super::super::BLOCK_HEADER), (1, MAGIC), (4, 6), (9, 3), (10, 99)];
        for (i, v) in base.iter().chain(words) {
            b[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes());
        }
        b
    }

    fn decode(words: &[(usize, u64)]) -> Result<FatHeader> {
        FatHeader::decode(&Bytes::new(&header(words), ByteOrder::Little, "zap"))
    }

    #[test]
    fn embedded_and_external_tables() {
        let h = decode(&[]).unwrap();
        assert_eq!((h.pointers(), h.entries, h.salt), (64, 3, 99));
        assert_eq!(h.index(u64::MAX), 63);
        assert_eq!(h.pointer_at(63), PointerAt { block: 0, offset: 1024 - 8 });
        let h = decode(&[(2, 5), (3, 4), (4, 9)]).unwrap();
        assert_eq!(h.pointer_at(130), PointerAt { block: 6, offset: 16 });
        assert_eq!(h.index(1 << 55), 1);
        assert_eq!(decode(&[(4, 0)]).unwrap().index(u64::MAX), 0);
    }

    #[test]
    fn impossible_tables_are_refused() {
        for words in [
            &[(4usize, 7u64)][..],
            &[(4, 64)],
            &[(4, u64::MAX)],
            &[(2, 5), (3, 1), (4, 8)],
            &[(2, u64::MAX), (3, 4), (4, 8)],
            &[(2, 0), (3, 4), (4, 8)],
            &[(3, 1 << 60), (2, 5), (4, 8)],
            &[(5, u64::MAX)],
            &[(2, 5), (3, 4), (4, 9), (5, u64::MAX - 7)],
            &[(1, 5)],
        ] {
            assert!(decode(words).is_err(), "{words:?}");
        }
    }
}
