//! Reading a stretch of a device in which blocks lie side by side.
//!
//! What is read so is a hint: it is not verified before somebody takes a block from it, and nobody is blamed
//! for what cannot be read.

use crate::pipeline::{Block, Store, unpack};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::BlockRead;

impl Store {
    /// The `size` bytes from `dva` on, not verified. `None` where they are not in one piece (RAID-Z, a removed
    /// vdev), past the end of the vdev, or where no device has them.
    pub fn read_stretch(&self, dva: Dva, size: u64) -> Option<Abd> {
        let vdevs = self.vdevs();
        let top = vdevs.top(dva.vdev.into())?;
        let in_one_piece = top.is_leaf() || top.kind() == "mirror";
        let end = dva.offset.checked_add(size)?;
        if dva.gang || !in_one_piece || end > top.asize() {
            return None;
        }
        let (vdev, offset) = (dva.vdev.into(), dva.offset);
        vdevs.read_one(&BlockRead { vdev, offset, size, txg: 0, verify: &|_| true }).block.ok()
    }

    /// The block of `bp`, of which `physical` may be the bytes. `None` if they are not.
    pub fn block_of(&self, bp: &BlockPointer, physical: &Abd) -> Option<Block> {
        let data = self.is_right(bp, physical).then(|| unpack(bp, physical).ok())??;
        Some(Block { data, order: bp.byte_order() })
    }
}
