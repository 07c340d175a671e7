//! A pool that gets another guid (`spa_change_guid`), so that a copy of its devices can be imported beside it.
//!
//! A sync task does all of it: config and vdev tree have the new guid from then on, and the group that ends with it
//! writes it into all labels. In labels that a crash cuts short there are both guids, the new one in those that are
//! newer than any uberblock. A search for pools takes devices that have either guid for devices of one pool
//! (`cenote_pool::discover`), and the uberblock says which of the two it has.

use super::error::EngineError;
use super::{Engine, SyncContext};
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::nvlist::NvValue;
use cenote_pool::{config, history};
use cenote_vdev::VdevState;

impl Engine {
    /// Gives the pool another guid (`zfs_ioc_pool_reguid`, `zpool_reguid`); `None`: a random one.
    ///
    /// # Errors
    /// A device is not there: it could not be told. The guid is 0 or that of a vdev. The pool is suspended.
    pub fn reguid(&self, guid: Option<u64>) -> std::result::Result<(), EngineError> {
        self.sync_task(move |context| context.reguid(guid))?;
        self.tell("pool_reguid", config::STATE_ACTIVE);
        Ok(())
    }
}

impl SyncContext<'_> {
    /// See [`Engine::reguid`].
    fn reguid(&mut self, guid: Option<u64>) -> Result<()> {
        self.refuse_with_checkpoint()?;
        let invalid = |why: &str| Err(DslWriteError::Invalid(why.into()));
        let tree = self.disk.tree();
        if tree.leaves().iter().any(|leaf| leaf.state() != VdevState::Healthy) {
            return invalid("one or more devices is currently unavailable");
        }
        let chance = || self.disk.outside.chance.number();
        let guid =
            guid.map_or_else(chance, Ok).map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        if guid == 0 {
            return invalid("Invalid argument");
        }
        if config::find(&self.config.vdev_tree, guid).is_some() {
            return invalid("pool already exists");
        }
        let old = std::mem::replace(&mut self.config.guid, guid);
        self.config.vdev_tree.set("guid", NvValue::Uint64(guid));
        let same = tree.extended(&self.config.vdev_tree, &mut |_, _| None);
        let same = same.map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        let (message, txg, now) = (format!("old={old} new={guid}"), self.tx.txg, self.tx.now);
        let record = history::internal("guid change", &message, None, txg, now);
        let append = |tx: &mut cenote_dsl::write::Tx<'_>| Ok(history::append(tx.mos, &record)?);
        self.tx.unless_unreadable("the pool's history is not written", append)?;
        // Nothing that comes after can fail: the tree would not be put back.
        self.tx.mos.check_change()?;
        self.disk.store.replace_vdevs(same);
        self.config_changed = true;
        Ok(())
    }
}
