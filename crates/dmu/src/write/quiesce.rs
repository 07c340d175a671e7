//! What is pending in an object set: looking at it, quiescing it, standing on what was written.
//!
//! ```text
//!   open set     changes of the open txg  ─┐ reads look here first,
//!                what is quiesced, shared  <─┤ then here,
//!                base                    <─┘ then on disk
//!   syncing set   the same changes, and the same base, until it is synced
//! ```
//!
//! [`OpenObjectSet::quiesce`] hands all changes, by sharing them, to a second set. That one is synced,
//! several times if need be, and [`OpenObjectSet::sync_done`] then makes its result the base of the open
//! set. What the open set changed in the meantime stays, but its dnodes get the pointers, levels
//! and space used that were written. Of an object that was freed in the open set while it was being
//! written, the dnode that has to be freed is known only then.
//!
//! # Invariants
//!
//! - A number that is doomed and not among the objects of the same layer is not there, whatever is
//!   below.
//! - Only the open set allocates and frees, so that numbers are given once, and none that was freed in
//!   the same group.
//! - Without changes in between, the open set shows the same before and after `sync_done`.

use super::object::OpenObject;
use super::slots::PER_BLOCK;
use super::undo::Change;
use super::zap::{AtHand, at_hand};
use super::{Doomed, OpenObjectSet, Quiesced};
use crate::objset::{META_DNODE, PROJECT_USED};
use crate::{Error, Object, ObjectSet, Result};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::{DmuType, ObjsetPhys};
use cenote_format::invariant;
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
        let quiesced = self.quiesced.as_ref().or(self.inherited.as_ref());
        Below::new(&self.base, &self.doomed, quiesced)
    }

    fn seen(&self, number: u64) -> Seen<'_> {
        match self.objects.get(&number) {
            Some(object) => Seen::Pending(object),
            None => self.below().seen(number),
        }
    }

    /// The object as it is now, pending changes included; also an accounting object or the meta
    /// dnode. It stays as it is however the object set is changed further.
    pub fn view(&mut self, number: u64) -> Result<Object> {
        match self.seen(number) {
            Seen::Pending(object) => Ok(object.view(&self.base)),
            Seen::Gone => Err(Error::NoObject { objset: self.id(), object: number }),
            Seen::Clean => on_disk(&self.base, number),
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
                Ok(Some(object.view_of(&self.base, offset, len)))
            }
            (Seen::Pending(object), None) => Ok(Some(object.view(&self.base))),
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
        match self.objects.get(&number) {
            Some(object) if object.phys().kind == kind => at_hand(object, name),
            _ => AtHand::Nothing,
        }
    }

    /// The number of the first object at or after `from`, pending changes included.
    pub fn next_object(&mut self, from: u64) -> Result<Option<u64>> {
        let mut on_disk = self.base.next_object(from)?;
        while let Some(number) = on_disk.filter(|number| self.is_gone(*number)) {
            on_disk = self.base.next_object(number.saturating_add(1))?;
        }
        Ok(on_disk.into_iter().chain(self.next_pending(from)).min())
    }

    /// Whether an object will be freed, which is on disk perhaps.
    pub(crate) fn is_gone(&self, number: u64) -> bool {
        matches!(self.seen(number), Seen::Gone)
    }

    /// The number of the first object at or after `from` of which something is pending.
    pub(crate) fn next_pending(&self, from: u64) -> Option<u64> {
        let open = self.objects.range(from..PROJECT_USED).next().map(|(number, _)| *number);
        let quiesced = self.quiesced.as_ref().or(self.inherited.as_ref()).and_then(|f| {
            let mut numbers = f.objects.range(from..PROJECT_USED).map(|(number, _)| *number);
            numbers.find(|number| !self.is_gone(*number))
        });
        open.into_iter().chain(quiesced).min()
    }

    /// Number of objects: what the root block says, and pending changes.
    pub fn object_count(&self) -> u64 {
        self.base.root_bp().fill().saturating_add_signed(self.more)
    }

    /// Whether a sync would write anything.
    pub fn is_dirty(&self) -> bool {
        // What was poisoned must not be taken for written.
        self.failed
            || self.changed
            || self.dirty > 0
            || !self.doomed.is_empty()
            || self.inherited.is_some()
    }

    /// Bytes of dirty blocks and dnodes, and of the pointers that lead to them, what is quiesced left
    /// out. A block counts for what the smallest takes on the devices at least.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty
    }

    /// Moves all pending changes into an object set of their own, which is to be synced (several
    /// times, if accounting objects have to be changed after the first) and then given to
    /// [`OpenObjectSet::sync_done`]. This one goes on collecting changes, and shows them on top of what is
    /// quiesced. Objects cannot be allocated or freed in the syncing set.
    ///
    /// There can only be one syncing set at a time: with a second one both are of no use.
    pub fn quiesce(&mut self) -> OpenObjectSet {
        self.check_no_change();
        let mut syncing = Self::around(self.base.clone());
        syncing.syncing = true;
        self.failed |= self.quiesced.is_some();
        syncing.failed = self.failed;
        syncing.change = Change::after(&self.change);
        syncing.phys = self.phys.clone();
        (syncing.key, syncing.received) = (self.key.clone(), self.received);
        syncing.seals = std::mem::take(&mut self.seals);
        (syncing.accounted, syncing.least) = (self.accounted, self.least);
        syncing.dirty = std::mem::take(&mut self.dirty);
        syncing.changed = std::mem::take(&mut self.changed);
        syncing.uses = std::mem::take(&mut self.uses);
        (self.flags, self.zil) = (None, None);
        self.slots.next_group();
        let quiesced = Quiesced {
            objects: Arc::new(std::mem::take(&mut self.objects)),
            doomed: Arc::new(std::mem::take(&mut self.doomed)),
        };
        if syncing.is_dirty() || !quiesced.doomed.is_empty() {
            syncing.inherited = Some(quiesced.clone());
        }
        self.quiesced = Some(quiesced);
        syncing
    }

    /// Stands on what was synced of the syncing set from now on. If that failed, this object set is
    /// of no use either.
    pub fn sync_done(&mut self, synced: &OpenObjectSet) {
        let base = synced.as_base_after(&self.base);
        drop(self.stand_on(base, synced));
    }

    /// What this set, which was synced, left on disk, as what stood on `before` is to see it.
    pub(crate) fn as_base_after(&self, before: &ObjectSet) -> Arc<ObjectSet> {
        before.succeeded_by(&self.base, &self.written)
    }

    /// As [`OpenObjectSet::sync_done`], on what [`OpenObjectSet::as_base_after`] made of the synced set.
    /// Returns what is of no use any more: dropping it takes a while.
    pub(crate) fn stand_on(
        &mut self,
        base: Arc<ObjectSet>,
        synced: &OpenObjectSet,
    ) -> impl Sized + use<> {
        let quiesced = self.quiesced.take();
        self.failed |= synced.failed || synced.is_dirty();
        let (objset, other) = (self.id(), synced.id());
        invariant!(objset == other, "objset {objset} goes on from what was written of {other}");
        let birth = |set: &ObjectSet| set.root_bp().logical_birth();
        let (before, after) = (birth(&self.base), birth(&base));
        invariant!(before <= after, "objset {objset}: goes on from group {after} after {before}");
        let fails = self.failed;
        let check = |number: u64, is_there: bool| {
            invariant!(
                fails || is_there,
                "objset {objset} object {number}: what was quiesced of it was not written"
            );
        };
        self.base = base;
        self.phys = synced.phys.clone();
        self.phys.flags = self.flags.unwrap_or(self.phys.flags);
        self.phys.zil = self.zil.unwrap_or(self.phys.zil);
        // What did not change is as well on disk now.
        self.objects.retain(|_, object| object.changed);
        for (number, object) in &mut self.objects {
            if !object.stands_on_quiesced() {
                continue;
            }
            let written = synced.written.get(number).and_then(Option::as_ref);
            check(*number, written.is_some());
            if let Some(dnode) = written {
                Arc::make_mut(object).stand_on(dnode);
            }
        }
        for (number, dnode) in self.doomed.iter_mut().filter(|(_, dnode)| dnode.is_none()) {
            *dnode = synced.written.get(number).cloned().flatten();
            check(*number, dnode.is_some());
        }
        self.more = self.doomed.len() as i64;
        self.more = self.objects.range(..PROJECT_USED).filter(|(_, o)| o.disk().is_none()).count()
            as i64
            - self.more;
        quiesced
    }

    /// Goes on from the root block that was just written.
    pub(super) fn go_on_from(&mut self, root: BlockPointer, phys: ObjsetPhys) {
        let synced = self.base.synced(root, phys.clone());
        self.phys = phys;
        self.changed = false;
        (self.dirty, self.more) = (0, 0);
        if self.syncing {
            // The set that this was quiesced from takes care of the cache.
            self.base = synced;
        } else {
            self.base = self.base.succeeded_by(&synced, &std::mem::take(&mut self.written));
            (self.flags, self.zil) = (None, None);
            self.slots.next_group();
        }
    }
}

/// The object as it is on disk, accounting objects and the meta dnode included.
pub(crate) fn on_disk(base: &Arc<ObjectSet>, number: u64) -> Result<Object> {
    match number {
        PROJECT_USED.. | META_DNODE => base.special(number),
        _ => base.object(number),
    }
}
