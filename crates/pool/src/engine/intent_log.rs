//! Intent logs that OpenZFS left.
//!
//! After a clean export the header of an object set still names the block that the next record would
//! have gone to. After a crash it names a chain of blocks; if all their records are in the dataset
//! already, nothing is to be replayed. Such a log goes when the pool is imported, as it does when
//! OpenZFS mounts the dataset: a snapshot must not have one, for its clones would have the same.
//!
//! Blocks of a log are written in a group that is still open, so those of the group that a crash took
//! are in no space map. An import of OpenZFS *claims* them. Whatever is in a claimed log is allocated,
//! records' data included, until it is replayed, which is not done here: such a log stays as long as
//! its dataset, and goes with it. So does a claimed log that cannot be read in full; its dataset is not
//! written to until the log is cleared by the dataset's name ([`Engine::clear_intent_log`]), and no
//! snapshot is taken of it. A log that was not claimed ends where bytes are wrong, but not where a device
//! fails: such a pool is not imported for writing.

use super::accounting;
use super::policy::{Policy, Sink};
use super::{Engine, EngineError, SyncContext};
use cenote_dsl::zil::{self, Item, NO_LOG};
use cenote_dmu::ObjectSet;
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{DslWriteError, Result};
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

impl Engine {
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
