//! Reading a stretch of a device in which blocks lie side by side.
//!
//! What is read so is a hint: it is not verified before a block is taken from it, and no leaf is blamed
//! for what cannot be read.

use crate::error::Bookmark;
use crate::pipeline::{Block, Store};
use cenote_format::abd::Abd;
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_vdev::Stretch;

impl Store {
    /// What the devices hold from `dva` on, `size` bytes, not verified. `None` where blocks do not lie side by side (a
    /// removed vdev), past the end of the vdev, or where no device has them.
    pub fn read_stretch(&self, dva: Dva, size: u64) -> Option<Stretch> {
        self.vdevs().read_stretch(dva.vdev.into(), dva.offset, size)
    }

    /// The block of `bp`, of which `physical` may be the bytes. `None` if they are not, or cannot be decrypted.
    pub fn block_of(&self, bp: &BlockPointer, at: Bookmark, physical: &Abd) -> Option<Block> {
        let reader = self.reader(bp, at).ok()?;
        let opened = || self.opened(bp, at, &reader, physical).ok();
        let data = self.is_right(bp, physical).then(opened)??;
        Some(Block { data, order: bp.byte_order() })
    }
}
