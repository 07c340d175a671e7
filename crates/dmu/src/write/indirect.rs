//! An indirect block that is being changed (a `dmu_buf_impl_t` of a level above 0).
//!
//! It is kept as it will be on disk. Of the pointers in it few are changed, and often one: so they
//! are looked at and put in one by one, and the others are never decoded.

use super::Result;
use crate::tree::Tree;
use cenote_format::blkptr::{BLKPTR_SIZE, BlockPointer};
use cenote_format::{ByteOrder, Bytes};
use cenote_store::Block;

/// An indirect block; see the module's documentation.
#[derive(Debug)]
pub(super) struct Indirect {
    /// Little-endian.
    bytes: Vec<u8>,
    pub changed: bool,
}

/// The pointer in some bytes.
fn decode(bytes: &[u8; BLKPTR_SIZE]) -> BlockPointer {
    let mut words = [0; BLKPTR_SIZE / 8];
    let (all, _) = bytes.as_chunks();
    words.iter_mut().zip(all).for_each(|(to, from)| *to = u64::from_le_bytes(*from));
    BlockPointer(words)
}

impl Indirect {
    /// One of `count` pointers, which are all `bp`.
    pub fn of(bp: &BlockPointer, count: usize) -> Indirect {
        Indirect { bytes: bp.encode().repeat(count), changed: false }
    }

    /// What was read.
    ///
    /// Errors: the block is too short.
    pub fn read(tree: &Tree<'_>, block: &Block) -> Result<Indirect> {
        let all = block.data.bytes();
        let len = (tree.fan_out() as usize).saturating_mul(BLKPTR_SIZE);
        let checked = Bytes::new(&all, block.order, "indirect block").slice(0, len);
        let mut bytes = checked.map_err(|e| tree.decode_error(e))?.to_vec();
        if block.order == ByteOrder::Big {
            bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse());
        }
        Ok(Indirect { bytes, changed: false })
    }

    /// Pointer `index`; a hole if there is no such pointer.
    pub fn get(&self, index: usize) -> BlockPointer {
        let (all, _) = self.bytes.as_chunks();
        all.get(index).map_or(BlockPointer::HOLE, decode)
    }

    /// Puts a pointer in.
    pub fn set(&mut self, index: usize, bp: &BlockPointer) {
        self.changed = true;
        if let Some(slot) = self.bytes.as_chunks_mut().0.get_mut(index) {
            *slot = bp.encode();
        }
    }

    /// All pointers.
    pub fn pointers(&self) -> impl Iterator<Item = BlockPointer> + '_ {
        self.bytes.as_chunks().0.iter().map(decode)
    }

    /// The block to be written, and its fill count. A block of holes becomes zeros, so that
    /// it becomes a hole.
    pub fn into_block(mut self) -> (Vec<u8>, u64) {
        let (mut fill, mut stored) = (0u64, false);
        for bp in self.pointers().filter(|bp| !bp.is_hole()) {
            (fill, stored) = (fill.saturating_add(bp.fill()), true);
        }
        if !stored {
            self.bytes.fill(0);
        }
        (self.bytes, fill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::dmu::DmuType;

    #[test]
    fn pointers_come_back_and_holes_become_zeros() {
        let hole = BlockPointer::hole(DmuType::PLAIN_FILE_CONTENTS, 0, 512, 7).unwrap();
        let mut block = Indirect::of(&hole, 8);
        assert!(!block.changed);
        assert!(block.pointers().all(|bp| bp == hole));
        let stored = BlockPointer(std::array::from_fn(|i| if i == 6 { 0 } else { i as u64 + 1 }));
        block.set(5, &stored);
        block.set(8, &stored);
        assert!(block.changed);
        assert_eq!((block.get(5), block.get(4), block.get(8)), (stored, hole, BlockPointer::HOLE));
        let (bytes, fill) = block.into_block();
        assert_eq!((bytes.len(), fill), (8 * BLKPTR_SIZE, stored.fill()));
        assert_eq!(bytes[5 * BLKPTR_SIZE..][..BLKPTR_SIZE], stored.encode());
        let (bytes, fill) = Indirect::of(&hole, 8).into_block();
        assert_eq!((bytes, fill), (vec![0; 8 * BLKPTR_SIZE], 0));
    }
}
