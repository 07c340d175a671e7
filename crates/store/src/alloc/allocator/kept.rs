//! Space that a checkpoint of the pool keeps (`spa_checkpoint_txg`, `spa_checkpoint_info`).
//!
//! A checkpoint is the pool as it was after some txg. Blocks that were born in this txg or before are the checkpoint's as well,
//! and may not be allocated again as long as it exists. So [`Allocator::free_born`] *keeps* them: to the metaslab they
//! stay allocated, and the pool notes them in the space map of the checkpoint ([`Allocator::take_kept`]). When the checkpoint is
//! discarded they are freed in earnest ([`Allocator::free_kept`]).
//!
//! What is kept is not free to anybody: it is in no free space, and among no deferred frees. So whatever tells
//! devices about free space, or about what was freed, never tells them about it.
//!
//! Invariant: `bytes` is the sum of what was kept and not freed since.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_format::blkptr::Dva;
use cenote_format::invariant;

use super::{AllocError, Allocator};

/// The pool's checkpoint, as far as it matters to space.
#[derive(Default)]
pub(super) struct Checkpoint {
    /// Its txg; 0 without one.
    txg: AtomicU64,
    /// Bytes that only a checkpoint keeps, be it one that is being discarded.
    bytes: AtomicU64,
}

/// What a checkpoint keeps from now on, of one metaslab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Ranges `(start, end)` in bytes of the vdev, in order.
    pub ranges: Vec<(u64, u64)>,
}

impl Allocator {
    /// The txg of the pool's checkpoint; `None` without one, or if it is being discarded.
    pub fn checkpoint(&self) -> Option<u64> {
        Some(self.checkpoint.txg.load(Ordering::Relaxed)).filter(|txg| *txg != 0)
    }

    /// From now on the pool has a checkpoint of this txg, which is on disk; `None`: it has none.
    pub fn set_checkpoint(&self, txg: Option<u64>) {
        self.checkpoint.txg.store(txg.unwrap_or(0), Ordering::Relaxed);
    }

    /// Bytes that only a checkpoint keeps.
    pub fn kept(&self) -> u64 {
        self.checkpoint.bytes.load(Ordering::Relaxed)
    }

    /// So many bytes were kept when the pool was opened.
    pub fn begin_with_kept(&self, bytes: u64) {
        self.checkpoint.bytes.store(bytes, Ordering::Relaxed);
    }

    /// As [`Allocator::free`], a DVA of a block that was allocated in the txg `birth`: if that is part of the checkpoint,
    /// it is kept.
    ///
    /// Errors: as for [`Allocator::free`].
    pub fn free_born(&self, txg: u64, dva: &Dva, birth: u64) -> Result<(), AllocError> {
        let is_kept = self.checkpoint().is_some_and(|checkpoint| birth <= checkpoint);
        self.free_or_keep(txg, dva, is_kept)
    }

    /// What is kept since the last call, of each metaslab of which something is.
    pub fn take_kept(&self, txg: u64) -> Vec<Kept> {
        let layout = self.layout();
        let mut all = Vec::new();
        for group in layout.all_groups() {
            for metaslab in group.members() {
                let ranges = metaslab.take_kept(txg);
                if !ranges.is_empty() {
                    all.push(Kept { vdev: group.vdev(), ranges });
                }
            }
        }
        all.sort_by_key(|kept| (kept.vdev, kept.ranges.first().copied()));
        let bytes = all.iter().flat_map(|kept| &kept.ranges).map(|(start, end)| end - start).sum();
        self.checkpoint.bytes.fetch_add(bytes, Ordering::Relaxed);
        all
    }

    /// Frees in `txg` what was kept: the checkpoint is being discarded. It is a range of one metaslab. It is not kept any more,
    /// also if it cannot be freed.
    ///
    /// Errors: as for [`Allocator::free`].
    pub fn free_kept(&self, txg: u64, dva: &Dva) -> Result<(), AllocError> {
        let freed = self.free(txg, dva);
        let before = self.checkpoint.bytes.fetch_sub(dva.asize, Ordering::Relaxed);
        invariant!(before >= dva.asize, "{} bytes of {before} that are kept are freed", dva.asize);
        freed
    }
}
