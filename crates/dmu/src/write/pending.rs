//! What is pending in an object set that is open, looked at.
//!
//! ```text
//!   open set      changes of the open txg    reads look here first,
//!                 what is quiesced, shared   then here,
//!                 base                       then on disk
//! ```
//!
//! Invariant: a number that is doomed and not among the objects of the same layer is not there, whatever is below.

use super::object::OpenObject;
use super::slots::PER_BLOCK;
use super::zap::{AtHand, at_hand};
use super::{Doomed, OpenObjectSet, Quiesced};
use crate::objset::{META_DNODE, PROJECT_USED};
use crate::{Error, Object, ObjectSet, Result};
use cenote_format::dmu::DmuType;
use std::sync::Arc;

/// What an object that is not open stands on.
pub(super) enum Found<'a> {
    /// What is quiesced of it.
    Quiesced(&'a OpenObject),
    /// What is on disk: nothing is pending.
    OnDisk(Object),
}

/// Whether changes of an object are pending.
enum Seen<'a> {
    Pending(&'a OpenObject),
    Gone,
    Clean,
}

/// What is below the open objects.
pub(super) struct Below<'a> {
    base: &'a Arc<ObjectSet>,
    doomed: &'a Doomed,
    quiesced: Option<&'a Quiesced>,
}

impl<'a> Below<'a> {
    pub(super) fn new(
        base: &'a Arc<ObjectSet>,
        doomed: &'a Doomed,
        quiesced: Option<&'a Quiesced>,
    ) -> Below<'a> {
        Below { base, doomed, quiesced }
    }

    fn seen(&self, number: u64) -> Seen<'a> {
        if self.doomed.contains_key(&number) {
            return Seen::Gone;
        }
        match self.quiesced {
            Some(f) => match f.objects.get(&number) {
                Some(object) => Seen::Pending(object),
                None if f.doomed.contains_key(&number) => Seen::Gone,
                None => Seen::Clean,
            },
            None => Seen::Clean,
        }
    }

    /// Reads the block that has the dnode of an object on disk.
    pub(super) fn read_dnode_block(&self, number: u64) -> Result<()> {
        match number {
            PROJECT_USED.. | META_DNODE => Ok(()),
            _ => self.base.meta().block(number / PER_BLOCK).map(drop),
        }
    }

    /// Finds an object that is not open.
    pub(super) fn find(&self, number: u64) -> Result<Found<'a>> {
        match self.seen(number) {
            Seen::Pending(object) => Ok(Found::Quiesced(object)),
            Seen::Gone => Err(Error::NoObject { objset: self.base.id(), object: number }),
            Seen::Clean => on_disk(self.base, number).map(Found::OnDisk),
        }
    }
}

impl OpenObjectSet {
    fn below(&self) -> Below<'_> {
        Below::new(&self.unwritten.base, &self.unwritten.doomed, self.quiesced.as_ref())
    }

    fn seen(&self, number: u64) -> Seen<'_> {
        match self.unwritten.objects.get(&number) {
            Some(object) => Seen::Pending(object),
            None => self.below().seen(number),
        }
    }

    /// The object as it is now, pending changes included; also an accounting object or the meta
    /// dnode. It stays as it is however the object set is changed further.
    pub fn view(&mut self, number: u64) -> Result<Object> {
        match self.seen(number) {
            Seen::Pending(object) => Ok(object.view(&self.unwritten.base)),
            Seen::Gone => Err(Error::NoObject { objset: self.id(), object: number }),
            Seen::Clean => on_disk(&self.unwritten.base, number),
        }
    }

    /// The object if anything of it is pending, good for reading a range (offset and length in
    /// bytes) if there is one.
    pub(crate) fn pending_view(
        &self,
        number: u64,
        range: Option<(u64, u64)>,
    ) -> Result<Option<Object>> {
        match (self.seen(number), range) {
            (Seen::Pending(object), Some((offset, len))) => {
                Ok(Some(object.view_of(&self.unwritten.base, offset, len)))
            }
            (Seen::Pending(object), None) => Ok(Some(object.view(&self.unwritten.base))),
            (Seen::Gone, _) => Err(Error::NoObject { objset: self.id(), object: number }),
            (Seen::Clean, _) => Ok(None),
        }
    }

    /// The size of the blocks of object `number` and the number of its last one, if it is pending.
    pub(crate) fn pending_shape(&self, number: u64) -> Option<(u64, u64)> {
        match self.seen(number) {
            Seen::Pending(object) => Some((object.phys().block_size, object.phys().max_block)),
            Seen::Gone | Seen::Clean => None,
        }
    }

    /// What can be told of the entry of ZAP `number`, a `kind`, that is called exactly `name`.
    pub(crate) fn entry_at_hand(&self, number: u64, kind: DmuType, name: &[u8]) -> AtHand {
        match self.unwritten.objects.get(&number) {
            Some(object) if object.phys().kind == kind => at_hand(object, name),
            _ => AtHand::Nothing,
        }
    }

    /// The number of the first object at or after `from`, pending changes included.
    pub fn next_object(&mut self, from: u64) -> Result<Option<u64>> {
        let mut on_disk = self.unwritten.base.next_object(from)?;
        while let Some(number) = on_disk.filter(|number| self.is_gone(*number)) {
            on_disk = self.unwritten.base.next_object(number.saturating_add(1))?;
        }
        Ok(on_disk.into_iter().chain(self.next_pending(from)).min())
    }

    /// Whether an object will be freed, which is on disk perhaps.
    pub(crate) fn is_gone(&self, number: u64) -> bool {
        matches!(self.seen(number), Seen::Gone)
    }

    /// The number of the first object at or after `from` of which something is pending.
    pub(crate) fn next_pending(&self, from: u64) -> Option<u64> {
        let open =
            self.unwritten.objects.range(from..PROJECT_USED).next().map(|(number, _)| *number);
        let quiesced = self.quiesced.as_ref().and_then(|f| {
            let mut numbers = f.objects.range(from..PROJECT_USED).map(|(number, _)| *number);
            numbers.find(|number| !self.is_gone(*number))
        });
        open.into_iter().chain(quiesced).min()
    }

    /// Number of objects: what the root block says, and pending changes.
    pub fn object_count(&self) -> u64 {
        self.unwritten.base.root_bp().fill().saturating_add_signed(self.more)
    }

    /// Whether a sync would write anything.
    pub fn is_dirty(&self) -> bool {
        self.unwritten.is_dirty()
    }

    /// Bytes of dirty blocks and dnodes, and of the pointers that lead to them, what is quiesced left
    /// out. A block counts for what the smallest takes on the devices at least.
    pub fn dirty_bytes(&self) -> u64 {
        self.unwritten.dirty
    }
}

/// The object as it is on disk, accounting objects and the meta dnode included.
pub(crate) fn on_disk(base: &Arc<ObjectSet>, number: u64) -> Result<Object> {
    match number {
        PROJECT_USED.. | META_DNODE => base.special(number),
        _ => base.object(number),
    }
}
