//! Header and pointer table of a fat ZAP (`zap_phys_t`, `zap_table_grow`): how they are written and how they grow.
//!
//! While a ZAP is small its pointer table is the second half of the header block. Once a leaf that
//! has a single pointer must be split, the table doubles: first into a block of its own
//! ([`FatHeader::leave_embedded`]), later into twice as many blocks. That later growth happens a
//! block at a time ([`FatHeader::grow_step`]), so that no single insertion pays for all of it;
//! meanwhile pointers that change are written to both tables ([`FatHeader::pointer_writes`]).
//!
//! When a leaf with a prefix of `n` bits is split, it keeps the lower half of its pointers and the
//! new leaf gets the upper half: [`FatHeader::split_pointers`].

use std::ops::Range;

use super::super::{EncodeError, Result, put, words};
use crate::zap::fat::{FatHeader, MAGIC, PointerAt, PointerTable};
use crate::zap::{BLOCK_HEADER, hash, norm};
use crate::{DecodeError, MAX_BLOCK};

const WHAT: &str = "fat ZAP header";
/// Bytes of the header's fields.
pub const HEADER_SIZE: usize = 104;

/// What one step of growing the pointer table asks for. See [`FatHeader::grow_step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrowStep {
    /// Block of the old table to be copied.
    pub source: u64,
    /// The two blocks that get its pointers, each of them twice ([`double_pointers`]).
    pub targets: [u64; 2],
    /// Blocks of the old table, which are free once this step was done; empty before the last.
    pub freed: Range<u64>,
}

/// Makes `block` the header of an empty fat ZAP, whose block 1 will be an empty leaf
/// ([`LeafMut::format`](super::leaf::LeafMut::format)), and returns the header.
/// Errors: a block size that is no power of two from 512 bytes up, impossible flags.
pub fn format(block: &mut [u8], salt: u64, norm_flags: u64, flags: u64) -> Result<FatHeader> {
    let len = block.len();
    if !len.is_power_of_two() || !(512..=MAX_BLOCK as usize).contains(&len) {
        return Err(EncodeError::unrepresentable(WHAT, format!("block of {len} bytes")));
    }
    if !norm::flags_valid(norm_flags) || flags > 7 {
        let why = format!("normalization {norm_flags:#x}, flags {flags:#x}");
        return Err(EncodeError::unrepresentable(WHAT, why));
    }
    let block_shift = len.trailing_zeros();
    let table = PointerTable {
        block: 0,
        blocks: 0,
        shift: block_shift - 4,
        next_block: 0,
        blocks_copied: 0,
    };
    let header = FatHeader {
        block_shift,
        block_type: BLOCK_HEADER,
        magic: MAGIC,
        table,
        free_block: 2,
        leafs: 1,
        entries: 0,
        salt,
        norm_flags,
        flags,
    };
    block.fill(0);
    header.encode(block)?;
    let (_, pointers) = block.split_at_mut(len / 2);
    pointers.as_chunks_mut::<8>().0.fill(1u64.to_le_bytes());
    Ok(header)
}

/// Writes each of the pointers in `src` twice, in order: how a pointer table doubles. `dst` is
/// twice as long as `src`. Errors: it is not.
pub fn double_pointers(src: &[u8], dst: &mut [u8]) -> Result<()> {
    if !src.len().is_multiple_of(8) || src.len().checked_mul(2) != Some(dst.len()) {
        let why = format!("{} bytes of pointers doubled into {}", src.len(), dst.len());
        return Err(EncodeError::unrepresentable("pointer table", why));
    }
    for (pair, pointer) in dst.chunks_exact_mut(16).zip(src.chunks_exact(8)) {
        pair[..8].copy_from_slice(pointer);
        pair[8..].copy_from_slice(pointer);
    }
    Ok(())
}

/// Writes pointer number `leaf` at byte `offset` of a block of the table (or of the header).
pub fn set_pointer(block: &mut [u8], offset: usize, leaf: u64) -> Result<()> {
    put(block, offset, &leaf.to_le_bytes(), "pointer table")
}

impl FatHeader {
    /// Writes the header's fields into its block; the embedded pointer table is left as it is.
    /// Errors: the block is not of the header's size.
    pub fn encode(&self, block: &mut [u8]) -> Result<()> {
        if Some(block.len() as u64) != 1u64.checked_shl(self.block_shift) {
            let why = format!("block of {} bytes, shift {}", block.len(), self.block_shift);
            return Err(EncodeError::unrepresentable(WHAT, why));
        }
        let t = &self.table;
        let fields = [
            BLOCK_HEADER,
            MAGIC,
            t.block,
            t.blocks,
            t.shift.into(),
            t.next_block,
            t.blocks_copied,
            self.free_block,
            self.leafs,
            self.entries,
            self.salt,
            self.norm_flags,
            self.flags,
        ];
        put(block, 0, &words(&fields, HEADER_SIZE), WHAT)
    }

    /// Takes `count` new blocks at the end of the object; returns the first.
    pub fn allocate(&mut self, count: u64) -> Result<u64> {
        let first = self.free_block;
        match first.checked_add(count).filter(|end| end >> (63 - self.block_shift.min(63)) == 0) {
            Some(end) if first > 0 => {
                self.free_block = end;
                Ok(first)
            }
            _ => Err(DecodeError::invalid(WHAT, format!("next free block {first:#x}")).into()),
        }
    }

    /// Takes a block for a new leaf and counts it.
    pub fn allocate_leaf(&mut self) -> Result<u64> {
        let Some(leafs) = self.leafs.checked_add(1) else {
            return Err(DecodeError::invalid(WHAT, format!("{} leafs", self.leafs)).into());
        };
        let block = self.allocate(1)?;
        self.leafs = leafs;
        Ok(block)
    }

    /// Whether the pointer table may double: two bits of the hash are left unused.
    pub fn may_grow(&self) -> bool {
        self.table.shift < hash::hash_bits(self.flags) - 2
    }

    /// Whether the table is being copied to one of twice the size.
    pub fn is_growing(&self) -> bool {
        self.table.next_block != 0
    }

    /// Whether an insertion into a leaf with a prefix of `prefix_len` bits and `free_chunks` free
    /// ones should take a step of growing the table, to be ready before the leaf is full.
    pub fn wants_growth(&self, prefix_len: u32, free_chunks: u16) -> bool {
        /// `ZAP_LEAF_LOW_WATER`: more than most entries take.
        const LOW_WATER: u16 = 20;
        self.is_growing() || (prefix_len == self.table.shift && free_chunks < LOW_WATER)
    }

    /// Moves the pointer table out of the header block, into one of its own and twice as large.
    /// Returns its number; the caller fills it with [`double_pointers`] of the second half of the
    /// header block. Errors: [`EncodeError::Full`] if the table [may not grow](Self::may_grow).
    pub fn leave_embedded(&mut self) -> Result<u64> {
        if !self.may_grow() {
            return Err(EncodeError::Full { what: "pointer table" });
        }
        if self.table.blocks != 0 || self.table.shift != self.block_shift - 4 {
            return Err(DecodeError::invalid(WHAT, "no whole embedded pointer table").into());
        }
        let block = self.allocate(1)?;
        self.table.block = block;
        self.table.blocks = 1;
        self.table.shift += 1;
        Ok(block)
    }

    /// Plans one step of doubling a pointer table that has its own blocks, and takes note of it:
    /// the caller copies as the step says. After the last of them the larger table is the table.
    /// Errors: [`EncodeError::Full`] if the table [may not grow](Self::may_grow).
    pub fn grow_step(&mut self) -> Result<GrowStep> {
        if !self.may_grow() {
            return Err(EncodeError::Full { what: "pointer table" });
        }
        let bad = || DecodeError::invalid(WHAT, "impossible pointer table");
        let doubled = self.table.blocks.checked_mul(2).filter(|n| *n > 0).ok_or_else(bad)?;
        if !self.is_growing() {
            self.table.next_block = self.allocate(doubled)?;
            self.table.blocks_copied = 0;
        }
        let t = &mut self.table;
        let copied = t.blocks_copied;
        let end = t.block.checked_add(t.blocks).ok_or_else(bad)?;
        let target = copied.checked_mul(2).and_then(|n| t.next_block.checked_add(n));
        let target = target.filter(|_| copied < t.blocks).ok_or_else(bad)?;
        let second = target.checked_add(1).ok_or_else(bad)?;
        let mut step =
            GrowStep { source: t.block + copied, targets: [target, second], freed: end..end };
        t.blocks_copied = copied + 1;
        if t.blocks_copied == t.blocks {
            step.freed = t.block..end;
            *t = PointerTable {
                block: t.next_block,
                blocks: doubled,
                shift: t.shift + 1,
                next_block: 0,
                blocks_copied: 0,
            };
        }
        Ok(step)
    }

    /// Every place where pointer `index` must be written: in the table, and twice in the larger one
    /// while that is being made.
    pub fn pointer_writes(&self, index: u64) -> impl Iterator<Item = PointerAt> + use<> {
        let per_block = self.block_shift - 3;
        let (next, growing) = (self.table.next_block, self.is_growing());
        let copies = (0..2u64).filter(move |_| growing).map(move |copy| {
            let index = index * 2 + copy;
            PointerAt {
                block: next + (index >> per_block),
                offset: (index & ((1 << per_block) - 1)) as usize * 8,
            }
        });
        std::iter::once(self.pointer_at(index)).chain(copies)
    }

    /// The pointers that lead to the leaf of `hash` if its prefix has `prefix_len` bits.
    /// Errors: a prefix of more bits than the table has.
    pub fn leaf_pointers(&self, hash: u64, prefix_len: u32) -> Result<Range<u64>> {
        let Some(bits) = self.table.shift.checked_sub(prefix_len) else {
            let why = format!("prefix of {prefix_len} bits, table of {}", self.table.shift);
            return Err(DecodeError::invalid(WHAT, why).into());
        };
        let first = self.index(hash) >> bits << bits;
        Ok(first..first + (1 << bits))
    }

    /// The pointers that must lead to the new leaf when the leaf of `hash`, with a prefix of
    /// `prefix_len` bits, is split: the upper half of its own.
    /// Errors: [`EncodeError::Full`] if the leaf has a single pointer; the table must grow first.
    pub fn split_pointers(&self, hash: u64, prefix_len: u32) -> Result<Range<u64>> {
        let all = self.leaf_pointers(hash, prefix_len)?;
        let half = (all.end - all.start) / 2;
        if half == 0 {
            return Err(EncodeError::Full { what: "pointer table" });
        }
        Ok(all.start + half..all.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteOrder, Bytes};

    #[test]
    fn a_new_header_decodes() {
        let mut block = vec![7; 1024];
        let header = format(&mut block, 77, 0, 1).unwrap();
        let back = FatHeader::decode(&Bytes::new(&block, ByteOrder::Little, "t")).unwrap();
        assert_eq!(format!("{back:?}"), format!("{header:?}"));
        assert_eq!((header.pointers(), header.free_block, header.leafs), (64, 2, 1));
        let at = header.pointer_at(63);
        assert_eq!(block[at.offset..at.offset + 8], 1u64.to_le_bytes());
        assert_eq!(block[104..512], [0; 408]);
        assert!(format(&mut [0; 1000], 0, 0, 0).is_err());
        assert!(format(&mut [0; 1024], 0, 0, 8).is_err());
        assert!(header.encode(&mut [0; 512]).is_err());
    }

    #[test]
    fn the_table_doubles_block_by_block() {
        let mut block = vec![0; 512];
        let mut h = format(&mut block, 1, 0, 0).unwrap();
        assert_eq!((h.table.shift, h.leave_embedded()), (5, Ok(2)));
        assert!(h.leave_embedded().is_err());
        assert_eq!((h.table.shift, h.pointers(), h.free_block), (6, 64, 3));
        let step = h.grow_step().unwrap();
        assert_eq!(step, GrowStep { source: 2, targets: [3, 4], freed: 2..3 });
        assert_eq!((h.table.block, h.table.blocks, h.table.shift), (3, 2, 7));
        let first = h.grow_step().unwrap();
        assert_eq!((first.source, first.targets, first.freed.is_empty()), (3, [5, 6], true));
        assert!(h.is_growing() && h.wants_growth(0, 100) && h.table.shift == 7);
        let writes: Vec<_> = h.pointer_writes(65).map(|p| (p.block, p.offset)).collect();
        assert_eq!(writes, [(4, 8), (7, 16), (7, 24)]);
        let last = h.grow_step().unwrap();
        assert_eq!((last.source, last.targets, last.freed), (4, [7, 8], 3..5));
        assert_eq!((h.table.block, h.table.blocks, h.table.shift), (5, 4, 8));
        assert_eq!(h.pointer_writes(3).count(), 1);
        h.table.shift = 26;
        assert_eq!(h.grow_step(), Err(EncodeError::Full { what: "pointer table" }));
    }

    #[test]
    fn pointers_of_leaves() {
        let h = format(&mut [0; 1024], 1, 0, 0).unwrap();
        let hash = 0b101 << 61;
        assert_eq!(h.leaf_pointers(hash, 0).unwrap(), 0..64);
        assert_eq!(h.leaf_pointers(hash, 3).unwrap(), 40..48);
        assert_eq!(h.split_pointers(hash, 3).unwrap(), 44..48);
        assert_eq!(h.split_pointers(hash, 5).unwrap(), 41..42);
        assert!(matches!(h.split_pointers(hash, 6), Err(EncodeError::Full { .. })));
        assert!(matches!(h.split_pointers(hash, 7), Err(EncodeError::Damaged(_))));
        assert!(h.wants_growth(6, 19) && !h.wants_growth(6, 20) && !h.wants_growth(5, 0));
    }

    #[test]
    fn doubled_pointers() {
        let src: Vec<u8> = [1u64, 2].iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut dst = vec![0; 32];
        double_pointers(&src, &mut dst).unwrap();
        let expected: Vec<u8> = [1u64, 1, 2, 2].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(dst, expected);
        assert!(double_pointers(&src, &mut dst[..24]).is_err());
    }
}
