//! What the write pipeline needs of devices.

use cenote_vdev::{BlockWrite, VdevError, VdevTree};

use crate::alloc::AllocatedSize;
use crate::pipeline::Store;

/// Devices that take blocks.
pub trait BlockDevices: AllocatedSize {
    /// Writes a batch of blocks; results in the order of `writes`.
    fn write_many(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>>;

    /// As [`BlockDevices::write_many`], of a transaction group: what no device takes is held until the devices are back
    /// ([`cenote_vdev::Suspension`]).
    fn write_group(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        self.write_many(writes)
    }
}

impl AllocatedSize for VdevTree {
    fn psize_to_asize(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64> {
        self.top(vdev).map(|top| top.psize_to_asize(psize, txg))
    }

    fn takes_logs(&self, vdev: u64) -> bool {
        VdevTree::takes_logs(self, vdev)
    }
}

impl BlockDevices for VdevTree {
    fn write_many(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        VdevTree::write_many(self, writes)
    }
}

/// The devices that a store reads, as they are at the time.
impl AllocatedSize for Store {
    fn psize_to_asize(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64> {
        AllocatedSize::psize_to_asize(&**self.vdevs(), vdev, psize, txg)
    }

    fn takes_logs(&self, vdev: u64) -> bool {
        self.vdevs().takes_logs(vdev)
    }
}

impl BlockDevices for Store {
    fn write_many(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        VdevTree::write_many(&self.vdevs(), writes)
    }

    fn write_group(&self, writes: &[BlockWrite]) -> Vec<Result<(), VdevError>> {
        let mut results: Vec<Option<Result<(), VdevError>>> = writes.iter().map(|_| None).collect();
        let suspension = self.vdevs().suspension().clone();
        let is_of_device = |e: &VdevError| e.is_of_device();
        // Those that are written are not written again. The caller finds in the results what fails for good.
        let _failed = suspension.persist(is_of_device, || {
            let is_left = |at: &usize| !matches!(results.get(*at), Some(Some(Ok(()))));
            let left: Vec<usize> = (0..writes.len()).filter(is_left).collect();
            let batch: Vec<BlockWrite> = left.iter().map(|at| writes[*at].clone()).collect();
            let mut failed = Ok(());
            for (at, result) in left.into_iter().zip(BlockDevices::write_many(self, &batch)) {
                // What is of no device comes first: it ends this.
                match &result {
                    Err(e) if failed.is_ok() || !e.is_of_device() => failed = Err(e.clone()),
                    _ => {}
                }
                results[at] = Some(result);
            }
            failed
        });
        let unwritten = || Err(VdevError::Broken("a block was not written".into()));
        results.into_iter().map(|result| result.unwrap_or_else(unwritten)).collect()
    }
}
