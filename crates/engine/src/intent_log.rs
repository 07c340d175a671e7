//! Intent logs that a crash left.
//!
//! After a clean export the header of an object set still names the block that the next record would
//! have gone to. After a crash it names a chain of blocks; if all their records are in the dataset
//! already, nothing is to be replayed. Such a log goes when the pool is imported, as it does when
//! OpenZFS mounts the dataset: a snapshot must not have one, for its clones would have the same.
//!
//! Blocks of a log are written in a group that is still open, so those of the group that a crash took
//! are in no space map. The first group after the import claims them ([`cenote_dsl::zil::claim`]), before
//! it allocates anything else. Whatever is in a claimed log is allocated, records' data included, until
//! it is replayed ([`Engine::replay_logs`]): its dataset is opened for that alone, and once all is on disk
//! the log is destroyed. Until then no snapshot is taken of the dataset, and nobody else writes to it.
//!
//! A log that cannot be replayed stays: one that has a record which cannot be applied, or that cannot be
//! read in full. Its dataset is not written to until the log is cleared by the dataset's name
//! ([`Engine::clear_intent_log`]). A log that was not claimed ends where bytes are wrong, but not where a
//! device fails: such a pool is not imported for writing.

use super::accounting;
use super::policy::{Policy, Sink};
use super::{Engine, EngineError, SyncContext};
use cenote_dmu::ObjectSet;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::write::{DslWriteError, Result};
use cenote_dsl::zil::{self, Item, NO_LOG};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::{ByteOrder, Bytes};
use cenote_store::Store;
use std::collections::HashSet;
use std::sync::Arc;

/// The blocks of a log that are in space maps. Of one that is not claimed, `last` is the last group
/// that was on disk when it was left.
fn allocated(store: &Arc<Store>, header: &ZilHeader, last: u64) -> Vec<BlockPointer> {
    let claimed = header.claim_txg != 0;
    let (mut blocks, mut seen) = (Vec::new(), HashSet::new());
    zil::walk(store, header, &mut |item| {
        let found = match item {
            Item::Block(bp) => Some(*bp).filter(|bp| claimed || bp.logical_birth() <= last),
            // What was on disk before is the dataset's.
            Item::Record(record) => {
                record.write_block().filter(|bp| claimed && bp.logical_birth() >= header.claim_txg)
            }
        };
        // Records may refer to one block several times.
        let first = |bp: &BlockPointer| bp.dva(0).is_some_and(|dva| seen.insert(dva));
        blocks.extend(found.filter(first));
        true
    });
    blocks
}

impl SyncContext<'_> {
    /// Claims the logs of these heads, which are not open; nothing may have been allocated in this group.
    /// `last` is the last group that was on disk when the pool was imported. Returns the youngest birth
    /// of a block that was claimed.
    ///
    /// # Errors
    /// `Unreadable`: a device failed; `Unsupported`: a gang block in a log; `Damaged`: a block of a log where
    /// something else is.
    pub(super) fn claim_intent_logs(&mut self, heads: &[u64], last: u64) -> Result<u64> {
        let (mut claims, mut newest) = (Vec::new(), 0);
        for ds_obj in heads {
            let set = self.head_objset(*ds_obj)?;
            let zil = &set.phys().zil;
            let claim = zil::claim(set.store(), *ds_obj, zil, last.saturating_add(1));
            claims.push((*ds_obj, claim.map_err(cenote_dmu::Error::from)?));
        }
        for bp in claims.iter().flat_map(|(_, claim)| &claim.blocks) {
            if bp.is_gang() {
                return Err(DslWriteError::Unsupported("a gang block in an intent log".into()));
            }
            for dva in bp.dvas() {
                let claimed = self.disk.allocator.claim_dva(self.tx.txg, &dva);
                claimed.map_err(|e| WriteError::Sink(Box::new(e)))?;
            }
            newest = newest.max(bp.logical_birth());
        }
        for (ds_obj, claim) in claims {
            self.set_intent_log(ds_obj, claim.header)?;
        }
        Ok(newest)
    }

    fn head_objset(&mut self, ds_obj: u64) -> Result<Arc<ObjectSet>> {
        let bonus = self.tx.mos.dnode(ds_obj)?.bonus.clone();
        let ds = DslDatasetPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL dataset"))?;
        Ok(ObjectSet::open(self.tx.mos.synced().store().clone(), ds_obj, ds.bp)?)
    }

    /// Whether the intent log of a head that is not open can be destroyed.
    ///
    /// # Errors
    /// `Unreadable`: the object set; `Unsupported`: the log is encrypted.
    pub fn check_intent_log(&mut self, ds_obj: u64) -> Result<()> {
        if self.head_objset(ds_obj)?.phys().zil.log.uses_crypt() {
            let what = "destroying an encrypted intent log that was not replayed";
            return Err(DslWriteError::Unsupported(what.into()));
        }
        Ok(())
    }

    /// Frees the intent log of a head that is not open, if it has one (`zil_destroy_sync`); what is
    /// in it is lost. `last` is the last group that was on disk when the pool was imported. 0: what is
    /// not claimed is not freed.
    ///
    /// # Errors
    /// The object set cannot be read; a device failed.
    pub fn destroy_intent_log(&mut self, ds_obj: u64, last: u64) -> Result<()> {
        let base = self.head_objset(ds_obj)?;
        let header = base.phys().zil;
        if header.log.is_hole() {
            return Ok(());
        }
        self.tx.frees.extend(allocated(base.store(), &header, last));
        self.set_intent_log(ds_obj, NO_LOG)
    }

    /// Writes the header of a head that is not open.
    fn set_intent_log(&mut self, ds_obj: u64, header: ZilHeader) -> Result<()> {
        let mut set = OpenObjectSet::open(self.head_objset(ds_obj)?)?;
        set.set_zil_header(header);
        let policy = Policy::of_new(1);
        let sink = Sink {
            writer: &self.disk.writer,
            tree: self.disk.tree(),
            policy: &policy,
            abilities: self.abilities,
            pass: 1,
            log: None,
            born: Some(&self.born),
        };
        accounting::sync_dataset(&mut self.tx, &mut set, ds_obj, &sink)
    }
}

/// A dataset whose intent log was not replayed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReplayed {
    /// Name of the dataset.
    pub name: String,
    /// What is in the way.
    pub why: String,
}

impl Engine {
    /// Has `replay` replay the intent logs that the import found, one after another, and destroys those that
    /// it replayed (`zil_replay`). `replay` makes the changes and notes in the header how far it came, in the
    /// same transaction. What it does not replay it can be asked for again.
    ///
    /// Returns the datasets whose logs could not be replayed: they stay as they are, and are not written to.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn replay_logs(
        &self,
        replay: impl Fn(&Arc<LiveObjectSet>) -> std::result::Result<(), String>,
    ) -> std::result::Result<Vec<NotReplayed>, EngineError> {
        let mut failed = Vec::new();
        let waiting = std::mem::take(&mut *self.unreplayed.lock());
        // What replay frees may be what a later record still has to copy.
        let hold = self.shared.disk.allocator.hold(self.pool().uberblock().txg);
        for (ds_obj, name) in waiting {
            let live = self.shared.datasets.open(&self.shared, ds_obj, true);
            let done = live.map_err(|e| e.to_string());
            let done = done.and_then(|live| replay(&live));
            self.close(ds_obj)?;
            match done {
                Ok(()) => {
                    self.sync_task(move |context| context.destroy_intent_log(ds_obj, 0))?;
                }
                Err(why) => {
                    self.unreplayed.lock().push((ds_obj, name.clone()));
                    failed.push(NotReplayed { name, why });
                }
            }
        }
        drop(hold);
        Ok(failed)
    }

    /// Destroys the intent log of a head that is not open, because it cannot be read or replayed. What is in
    /// it is lost.
    ///
    /// # Errors
    /// `Busy`: the head is open for writing, and so has no log; those of
    /// [`SyncContext::check_intent_log`]; the pool is suspended.
    pub fn clear_intent_log(&self, ds_obj: u64) -> std::result::Result<(), EngineError> {
        self.sync_task(move |context| {
            if context.datasets.is_some_and(|datasets| datasets.is_open(ds_obj)) {
                return Err(DslWriteError::Busy);
            }
            context.check_intent_log(ds_obj)?;
            context.destroy_intent_log(ds_obj, 0)
        })
    }
}

#[cfg(test)]
mod tests;
