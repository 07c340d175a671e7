//! Bytes that are to be written, copied before a lock is taken.
//!
//! A write copies what it is given once, into the blocks that become dirty. A [`Chunk`] does that for
//! all blocks that are written as a whole, before the change that writes them has the object set's
//! lock: the change only puts them in their places. The first and the last block, if they are written
//! in part, are copied into under the lock.
//!
//! How large an object's blocks are is known for certain under the lock only. If they turn out to be of
//! another size than the chunk was cut for, all is copied there.

use cenote_format::abd::Abd;

/// See the [module](self).
pub struct Chunk<'d> {
    offset: u64,
    data: &'d [u8],
    block_size: u64,
    /// The first block that is written as a whole, and all that are.
    first: u64,
    whole: Vec<Abd>,
}

impl<'d> Chunk<'d> {
    /// `data`, to be written at byte `offset` of an object with blocks of `block_size` bytes.
    pub fn new(offset: u64, data: &'d [u8], block_size: u64) -> Chunk<'d> {
        let size = usize::try_from(block_size).unwrap_or(usize::MAX).max(1);
        let first = offset.div_ceil(size as u64);
        let skip = first.saturating_mul(size as u64).saturating_sub(offset);
        let inside = usize::try_from(skip).ok().and_then(|skip| data.get(skip..));
        let whole = inside.unwrap_or_default().chunks_exact(size).map(Abd::copy_of).collect();
        Chunk { offset, data, block_size, first, whole }
    }

    /// `data`, to be written wherever the change finds: all of it is copied there.
    pub fn uncut(data: &'d [u8]) -> Chunk<'d> {
        Chunk { offset: 0, data, block_size: 0, first: 0, whole: Vec::new() }
    }

    /// The bytes.
    pub fn data(&self) -> &'d [u8] {
        self.data
    }

    /// Block `blkid`, if the chunk is written at `offset` in blocks of `block_size` bytes and was cut
    /// for that.
    pub(super) fn block(&self, offset: u64, block_size: u64, blkid: u64) -> Option<Abd> {
        if (offset, block_size) != (self.offset, self.block_size) {
            return None;
        }
        let index = usize::try_from(blkid.checked_sub(self.first)?).ok()?;
        self.whole.get(index).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whole_blocks_are_cut(offset in 0u64..5000, len in 0usize..5000, size in 1u64..900) {
            let data: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let chunk = Chunk::new(offset, &data, size);
            for blkid in 0..12_000 / size {
                let start = blkid * size;
                let inside = start >= offset && start + size <= offset + len as u64;
                let wanted = inside.then(|| {
                    let at = (start - offset) as usize;
                    data[at..at + size as usize].to_vec()
                });
                let found = chunk.block(offset, size, blkid).map(|block| block.to_vec());
                prop_assert_eq!(found, wanted);
                prop_assert!(chunk.block(offset + 1, size, blkid).is_none());
                prop_assert!(chunk.block(offset, size + 1, blkid).is_none());
            }
            prop_assert!(Chunk::uncut(&data).block(0, size, 0).is_none());
        }
    }
}
