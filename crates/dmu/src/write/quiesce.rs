//! Object sets in use: quiescing what is pending, standing on what was written.
//!
//! ```text
//!   open set      changes of the open txg
//!                 what is quiesced, shared <─┐ the same changes,
//!                 base                     <─┤ and the same base, until it is synced
//!   syncing set                              ┘
//! ```
//!
//! [`HeadObjectSet::quiesce`] hands all changes, by sharing them, to a [`SyncingSet`]. That one is synced,
//! several times if need be, and becomes a [`WrittenSet`], which [`HeadObjectSet::sync_done`] makes the base of the open
//! set. What the open set changed in the meantime stays, but its dnodes get the pointers, levels
//! and space used that were written. Of an object that was freed in the open set while it was being
//! written, the dnode that must be freed is known only then.
//!
//! # Invariants
//!
//! - Only the open set allocates and frees, so that numbers are given once, and none that was freed in
//!   the same group.
//! - Without changes in between, the open set shows the same before and after `sync_done`.
//! - An open set goes on from what was written of itself, of the group that was quiesced.

use super::{OpenObjectSet, Quiesced, SyncingSet, WrittenSet};
use crate::ObjectSet;
use crate::objset::PROJECT_USED;
use cenote_format::invariant;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// An object set in use, the head of a data set: it is changed while what was changed before is written.
pub struct HeadObjectSet(OpenObjectSet);

impl Deref for HeadObjectSet {
    type Target = OpenObjectSet;

    fn deref(&self) -> &OpenObjectSet {
        &self.0
    }
}

impl DerefMut for HeadObjectSet {
    fn deref_mut(&mut self) -> &mut OpenObjectSet {
        &mut self.0
    }
}

impl HeadObjectSet {
    /// Puts `set` to use.
    pub fn new(set: OpenObjectSet) -> HeadObjectSet {
        HeadObjectSet(set)
    }

    /// Moves all pending changes into a set of their own, which is to be synced (several
    /// times, if accounting objects have to be changed after the first) and then given to
    /// [`HeadObjectSet::sync_done`]. This one goes on collecting changes, and shows them on top of what is
    /// quiesced.
    ///
    /// There can only be one syncing set at a time: with a second one both are of no use.
    pub fn quiesce(&mut self) -> SyncingSet {
        let set = &mut self.0;
        set.unwritten.failed |= set.quiesced.is_some();
        let mut changes = set.hand_over();
        let quiesced = Quiesced {
            objects: Arc::new(std::mem::take(&mut changes.objects)),
            doomed: Arc::new(std::mem::take(&mut changes.doomed)),
        };
        set.quiesced = Some(quiesced.clone());
        SyncingSet::inheriting(changes, quiesced)
    }

    /// Stands on what was written from now on.
    pub fn sync_done(&mut self, written: WrittenSet) {
        let base = written.as_base_after(self.synced());
        drop(self.stand_on(base, written));
    }

    /// As [`HeadObjectSet::sync_done`], on what [`WrittenSet::as_base_after`] made of what was written.
    /// Returns what is of no use any more: dropping it takes a while.
    pub(crate) fn stand_on(
        &mut self,
        base: Arc<ObjectSet>,
        written: WrittenSet,
    ) -> impl Sized + use<> {
        let (objset, quiesced) = (self.id(), self.0.quiesced.take());
        invariant!(quiesced.is_some(), "objset {objset}: what was never quiesced was written");
        (self.0.stand_on(base, &written), quiesced, written)
    }

    /// What was quiesced is not going to be written: the object set is of no use any more.
    pub fn give_up(&mut self) {
        self.0.unwritten.failed = true;
    }
}

impl OpenObjectSet {
    /// Stands on `base`, which is what `synced` left.
    pub(super) fn stand_on(&mut self, base: Arc<ObjectSet>, synced: &WrittenSet) {
        let (objset, other) = (self.id(), base.id());
        invariant!(objset == other, "objset {objset} goes on from what was written of {other}");
        let birth = |set: &ObjectSet| set.root_bp().logical_birth();
        let (before, after) = (birth(self.synced()), birth(&base));
        invariant!(before <= after, "objset {objset}: goes on from group {after} after {before}");
        let here = &mut self.unwritten;
        let fails = here.failed;
        let check = |number: u64, is_there: bool| {
            invariant!(
                fails || is_there,
                "objset {objset} object {number}: what was quiesced of it was not written"
            );
        };
        here.base = base;
        here.root.phys = synced.phys().clone();
        here.root.phys.flags = self.over.flags.unwrap_or(here.root.phys.flags);
        here.root.phys.zil = self.over.zil.unwrap_or(here.root.phys.zil);
        // What did not change is as well on disk now.
        here.objects.retain(|_, object| object.changed);
        for (number, object) in &mut here.objects {
            if !object.stands_on_quiesced() {
                continue;
            }
            let written = synced.dnode(*number);
            check(*number, written.is_some());
            if let Some(dnode) = written {
                Arc::make_mut(object).stand_on(dnode);
            }
        }
        for (number, dnode) in here.doomed.iter_mut().filter(|(_, dnode)| dnode.is_none()) {
            *dnode = synced.dnode(*number).cloned();
            check(*number, dnode.is_some());
        }
        let new = here.objects.range(..PROJECT_USED).filter(|(_, o)| o.disk().is_none()).count();
        self.more = new as i64 - here.doomed.len() as i64;
    }
}
