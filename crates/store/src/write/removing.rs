//! Freeing what lies on a vdev that is being removed (`free_from_removing_vdev`).
//!
//! Its space is copied to other vdevs in the order of offsets, and has its space maps until all is copied. A block on it is
//! freed there. What of it was copied is freed in the new place as well, and that part of the mapping is obsolete.
//! What was not copied yet needs no copying any more, which counts as done.
//!
//! A group copies before it frees, in the same thread. So a block is either copied or not.

use super::{WriteError, Writer};
use crate::alloc::AllocError;
use cenote_format::blkptr::Dva;
use cenote_format::encode::blkptr::OLD_GANG_HEADER;
use cenote_vdev::{IndirectMap, Remap, Vdev, VdevError};
use parking_lot::Mutex;
use std::sync::Arc;

/// How far a vdev was copied that is being removed.
#[derive(Clone)]
pub struct Copied {
    /// The vdev.
    pub vdev: u64,
    /// What is allocated below this offset is mapped.
    pub end: u64,
    /// Where it is.
    pub mapping: Arc<dyn IndirectMap>,
}

/// See the head of the module.
#[derive(Default)]
pub(super) struct Removing(Mutex<State>);

#[derive(Default)]
struct State {
    copied: Option<Copied>,
    /// Bytes that were freed before they were copied, since they were last taken.
    spared: u64,
}

impl Writer {
    /// From now on a vdev is being removed, and copied so far; `None`: no vdev is.
    pub fn set_removing(&self, copied: Option<Copied>) {
        // Repairs go to what was copied as well.
        let of = copied.as_ref().map(|copied| (copied.vdev, copied.end, copied.mapping.clone()));
        self.store.vdevs().set_removing(of);
        self.removing.0.lock().copied = copied;
    }

    /// The vdev that was being removed has left, and these leaves with it.
    pub fn end_removing(&self, leaves: &[Arc<Vdev>]) {
        self.store.vdevs().end_removing(leaves);
        self.removing.0.lock().copied = None;
    }

    /// The vdev that is being removed, and how far it was copied.
    pub fn copied(&self) -> Option<Copied> {
        self.removing.0.lock().copied.clone()
    }

    /// Whether a vdev is being removed.
    pub fn is_removing(&self) -> bool {
        self.removing.0.lock().copied.is_some()
    }

    /// Bytes of the vdev that is being removed that were freed before they were copied, since they were last taken.
    pub fn spared(&self) -> u64 {
        self.removing.0.lock().spared
    }

    /// The same; they count from here again.
    pub fn take_spared(&self) -> u64 {
        std::mem::take(&mut self.removing.0.lock().spared)
    }

    /// What was freed, if it is on a vdev that is being removed, is freed where it was copied to.
    pub(super) fn free_copied(&self, txg: u64, dva: &Dva, birth: u64) -> Result<(), WriteError> {
        let vdev = u64::from(dva.vdev);
        let copied = {
            let mut state = self.removing.0.lock();
            let Some(copied) = state.copied.clone().filter(|c| c.vdev == vdev) else {
                return Ok(());
            };
            let size = match dva.gang {
                true => {
                    let tree = self.store.vdevs();
                    tree.top(vdev).map_or(0, |top| top.psize_to_asize(OLD_GANG_HEADER as u64, 0))
                }
                false => dva.asize,
            };
            let end = dva.offset.saturating_add(size);
            let here = copied.end.min(end).max(dva.offset);
            state.spared = state.spared.saturating_add(end - here);
            (copied, here)
        };
        self.free_mapped((txg, birth), &copied.0, (dva.offset, copied.1))
    }

    /// Frees where it was copied to what of a vdev lies in a range and was allocated in the txg `birth`, and notes that this
    /// is obsolete.
    ///
    /// Errors: it was not copied, or is free there.
    pub fn free_mapped(
        &self,
        (txg, birth): (u64, u64),
        copied: &Copied,
        (start, end): (u64, u64),
    ) -> Result<(), WriteError> {
        let vdev = copied.vdev;
        let Some(size) = end.checked_sub(start).filter(|size| *size > 0) else { return Ok(()) };
        let why = || "what is freed of a removed vdev is not in its mapping".into();
        let pieces = copied.mapping.remap(start, size);
        let pieces = pieces.ok_or_else(|| VdevError::Io { vdev, offset: start, why: why() })?;
        self.make_obsolete(&Remap { vdev, offset: start, size })?;
        for piece in pieces {
            let vdev = u32::try_from(piece.vdev).map_err(|_| AllocError::NoVdev(piece.vdev))?;
            let dva = Dva { vdev, offset: piece.offset, asize: piece.size, gang: false };
            self.allocator.free_born(txg, &dva, birth)?;
        }
        Ok(())
    }

    /// Nothing of a vdev is noted as obsolete any more: its removal is cancelled.
    pub fn forget_obsolete(&self, vdev: u64) {
        self.obsolete.forget(vdev);
    }
}
