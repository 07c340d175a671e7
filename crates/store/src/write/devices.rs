//! What the write pipeline needs of devices.

use cenote_vdev::{BlockWrite, VdevError, VdevTree};

use crate::alloc::AllocatedSize;
use crate::pipeline::Store;

/// Devices that take blocks.
pub trait BlockDevices: AllocatedSize {
    /// Writes a batch of blocks; results in the order of `writes`.
    fn write_many(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>>;
}

impl AllocatedSize for VdevTree {
    fn psize_to_asize(&self, vdev: u64, psize: u64) -> Option<u64> {
        self.top(vdev).map(|top| top.psize_to_asize(psize))
    }
}

impl BlockDevices for VdevTree {
    fn write_many(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        VdevTree::write_many(self, writes)
    }
}

/// The devices that a store reads, as they are at the time.
impl AllocatedSize for Store {
    fn psize_to_asize(&self, vdev: u64, psize: u64) -> Option<u64> {
        AllocatedSize::psize_to_asize(&**self.vdevs(), vdev, psize)
    }
}

impl BlockDevices for Store {
    fn write_many(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        VdevTree::write_many(&self.vdevs(), writes)
    }
}
