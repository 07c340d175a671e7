//! Intent logs that OpenZFS left.
//!
//! After a clean export the header of an object set still names the block that the next record would
//! have gone to. That block, and those of a chain whose records are all in the dataset already, are
//! allocated; they go when the dataset does.

use super::SyncContext;
use super::accounting;
use super::policy::{Policy, Sink};
use crate::traverse::zil::{self, Item};
use cenote_dmu::ObjectSet;
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::Result;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::{ByteOrder, Bytes};

/// The header of an object set without a log.
const NO_LOG: ZilHeader = ZilHeader {
    claim_txg: 0,
    replay_seq: 0,
    log: BlockPointer::HOLE,
    claim_blk_seq: 0,
    flags: 0,
    claim_lr_seq: 0,
};

impl SyncContext<'_> {
    /// Frees the intent log of a head that is not open, if it has one (`zil_destroy_sync`). There
    /// must be nothing in it that is to be replayed.
    ///
    /// # Errors
    /// The object set cannot be read; a device failed.
    pub fn destroy_intent_log(&mut self, ds_obj: u64) -> Result<()> {
        let bonus = self.tx.mos.dnode(ds_obj)?.bonus.clone();
        let ds = DslDatasetPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL dataset"))?;
        let store = self.tx.mos.synced().store().clone();
        let base = ObjectSet::open(store.clone(), ds_obj, ds.bp)?;
        let header = base.phys().zil;
        if header.log.is_hole() {
            return Ok(());
        }
        let on_disk = self.tx.txg.saturating_sub(1);
        let frees = &mut self.tx.frees;
        zil::walk(&store, &header, &mut |item| {
            // A block that is younger than the last group is in no space map.
            frees.extend(match item {
                Item::Block(bp) if bp.logical_birth() <= on_disk => Some(*bp),
                _ => None,
            });
            true
        });
        let mut set = OpenObjectSet::open(base)?;
        set.set_zil_header(NO_LOG);
        let policy = Policy::of_new(1);
        let sink = Sink {
            writer: &self.disk.writer,
            tree: self.disk.tree(),
            policy: &policy,
            abilities: self.abilities,
            pass: 1,
            log: None,
        };
        accounting::sync_dataset(&mut self.tx, &mut set, ds_obj, &sink)
    }
}
