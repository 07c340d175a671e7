//! Freeing what lies on removed vdevs (`metaslab_free_impl`, `vdev_indirect_mark_obsolete`).
//!
//! A removed vdev has no space of its own. A block on it is freed where the mapping says that its pieces
//! are now, each as a block of its own, and the part of the mapping that led there is *obsolete*: no pointer
//! refers to it any more. If it led to a vdev that was removed later, part of that one's mapping is obsolete
//! as well. What is obsolete is kept here until the sync [takes](Writer::take_obsolete) it, to write it down.
//!
//! Invariant: nothing becomes obsolete twice in a txg.

use std::collections::BTreeMap;

use cenote_format::blkptr::Dva;
use cenote_vdev::{Remap, VdevError};
use parking_lot::Mutex;

use super::{WriteError, Writer};
use crate::alloc::AllocError;
use crate::rangetree::RangeTree;
use cenote_format::encode::blkptr::OLD_GANG_HEADER;

/// What became obsolete, by removed vdev (`vdev_obsolete_segments`).
#[derive(Default)]
pub(super) struct Obsolete(Mutex<BTreeMap<u64, RangeTree>>);

impl Obsolete {
    /// Nothing of a vdev is obsolete.
    pub(super) fn forget(&self, vdev: u64) {
        self.0.lock().remove(&vdev);
    }
}

impl Writer {
    /// Frees one copy of a block that was allocated in the txg `birth`, wherever it is.
    pub(super) fn free_dva(&self, txg: u64, dva: &Dva, birth: u64) -> Result<(), WriteError> {
        match self.allocator.free_born(txg, dva, birth) {
            Err(AllocError::NoVdev(_)) => self.free_removed(txg, dva, birth),
            done => {
                done?;
                self.free_copied(txg, dva, birth)
            }
        }
    }

    /// Errors: what cannot be freed; the other pieces are freed all the same.
    fn free_removed(&self, txg: u64, dva: &Dva, birth: u64) -> Result<(), WriteError> {
        let (vdev, tree) = (u64::from(dva.vdev), self.store.vdevs());
        let size = match dva.gang {
            true => tree.top(vdev).map_or(0, |top| top.psize_to_asize(OLD_GANG_HEADER as u64, 0)),
            false => dva.asize,
        };
        let found = tree.remapped(vdev, dva.offset, size)?;
        let marked = found.removed.iter().map(|place| self.make_obsolete(place));
        let mut result = marked.fold(Ok(()), Result::and);
        for piece in &found.pieces {
            let vdev = u32::try_from(piece.vdev).map_err(|_| VdevError::NoVdev(piece.vdev))?;
            let dva = Dva { vdev, offset: piece.offset, asize: piece.size, gang: false };
            let freed = self.allocator.free_born(txg, &dva, birth).map_err(WriteError::from);
            // The vdev that it was copied to may be about to leave as well.
            result = result.and(freed.and_then(|()| self.free_copied(txg, &dva, birth)));
        }
        result
    }

    pub(super) fn make_obsolete(&self, place: &Remap) -> Result<(), WriteError> {
        let end = place.offset.saturating_add(place.size);
        let mut vdevs = self.obsolete.0.lock();
        let added = vdevs.entry(place.vdev).or_default().add(place.offset, end);
        added.map_err(|source| AllocError::Range { vdev: place.vdev, source }.into())
    }

    /// No pointer refers to a part of a removed vdev any more, though the block that was there is not free
    /// (`spa_vdev_indirect_mark_obsolete`).
    ///
    /// Errors: the vdev was not removed, or has no such part; it is obsolete already.
    pub fn mark_obsolete(&self, dva: &Dva) -> Result<(), WriteError> {
        let vdev = u64::from(dva.vdev);
        let found = self.store.vdevs().remapped(vdev, dva.offset, dva.asize)?;
        let first = found.removed.first().ok_or(VdevError::NoVdev(vdev))?;
        self.make_obsolete(first)
    }

    /// What became obsolete since the last call: removed vdevs, with their parts in order.
    pub fn take_obsolete(&self) -> Vec<(u64, Vec<(u64, u64)>)> {
        let vdevs = std::mem::take(&mut *self.obsolete.0.lock());
        vdevs.into_iter().map(|(vdev, tree)| (vdev, tree.iter().collect())).collect()
    }
}
