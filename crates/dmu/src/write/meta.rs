//! The meta object set (`dp_meta_objset`), whose changes are written at once.
//!
//! The thread that writes transaction groups alone changes it, and writes it several times in each of them. So nothing of it is
//! ever quiesced: what was changed is handed over to a [`SyncingSet`](super::SyncingSet) and written, and then it is changed
//! further.
//!
//! Invariants: nothing stands between the changes and what is on disk. After a sync that failed it is of no use.

use super::sink::BlockSink;
use super::{OpenObjectSet, Result, Synced, SyncingSet};
use crate::ObjectSet;
use cenote_format::dmu::ObjsetType;
use cenote_format::invariant;
use cenote_store::Store;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// See the [module](self).
pub struct MetaObjectSet(OpenObjectSet);

impl Deref for MetaObjectSet {
    type Target = OpenObjectSet;

    fn deref(&self) -> &OpenObjectSet {
        &self.0
    }
}

impl DerefMut for MetaObjectSet {
    fn deref_mut(&mut self) -> &mut OpenObjectSet {
        &mut self.0
    }
}

impl MetaObjectSet {
    /// That of a new pool.
    ///
    /// # Errors
    /// No error is expected.
    pub fn create(store: Arc<Store>) -> Result<MetaObjectSet> {
        Ok(MetaObjectSet(OpenObjectSet::create(store, 0, ObjsetType::Meta)?))
    }

    /// That of a pool that is there.
    ///
    /// # Errors
    /// As of [`OpenObjectSet::open`].
    pub fn open(base: Arc<ObjectSet>) -> Result<MetaObjectSet> {
        Ok(MetaObjectSet(OpenObjectSet::open(base)?))
    }

    /// Writes all changes as transaction group `txg` and goes on from there (`dmu_objset_sync`). Nothing is written if
    /// there are no changes.
    ///
    /// # Errors
    /// As of [`SyncingSet::sync`]. It is of no use then.
    pub fn sync(&mut self, txg: u64, sink: &dyn BlockSink) -> Result<Synced> {
        self.0.usable()?;
        let (objset, quiesced) = (self.id(), self.0.quiesced.is_some());
        invariant!(!quiesced, "objset {objset}: part of the meta object set is quiesced");
        let mut syncing = SyncingSet::of(self.0.hand_over());
        self.0.unwritten.failed = true;
        let synced = syncing.sync(txg, sink)?;
        self.0.unwritten.failed = false;
        let written = syncing.finish();
        let base = written.as_base_after(self.synced());
        self.0.stand_on(base, &written);
        Ok(synced)
    }
}
