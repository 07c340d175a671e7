//! The end of a transaction group (`spa_sync_rewrite_vdev_config`, `vdev_config_sync`, `uberblock_update`): labels, flush,
//! uberblock; then the view of it.
//!
//! Invariants: the uberblock leads to all that the group changed. A view is of a group that is on disk.

use super::error::EngineError;
use super::mmp;
use super::space::pool_space;
use super::sync_core::Core;
use super::{Disk, Shared};
use crate::tunables;
use cenote_dmu::write::WriteError;
use cenote_dsl::write::DslWriteError;
use cenote_dsl::{Dsl, PoolSpace};
use cenote_format::label::{MMP_MAGIC, Uberblock};
use cenote_format::{ByteOrder, invariant, less, nvlist::NvValue};
use cenote_pool::Pool;
use cenote_pool::config::{self, STATE_DESTROYED, STATE_EXPORTED};
use cenote_pool::directory::Directory;
use cenote_pool::events::{self, Sysevent};
use cenote_pool::features::PoolFeatures;
use cenote_pool::import::Loaded;
use cenote_pool::version;
use cenote_store::alloc::DeferredFrees;
use cenote_vdev::{LabelUpdate, VdevError};
use std::sync::Arc;

fn device(e: VdevError) -> DslWriteError {
    WriteError::Sink(Box::new(e)).into()
}

/// The leaves of a pool, by guid.
fn leaves(pool: &Pool) -> Vec<u64> {
    let mut found = Vec::new();
    if let Some(root) = pool.config().list("vdev_tree") {
        config::for_each_leaf(root, &mut |leaf| found.push(config::number(leaf, "guid")));
    }
    found
}

impl Core {
    /// Shows group `txg`, which is on disk. Freed space comes back when what is returned is dropped.
    pub(super) fn show(&mut self, shared: &Shared, txg: u64) -> Result<DeferredFrees, EngineError> {
        let on_disk = self.uberblock.txg;
        invariant!(on_disk == txg, "group {txg} is shown, and {on_disk} is on disk");
        shared.disk.join_added()?;
        let (gone, more) = shared.disk.let_removed_go();
        shared.gone.lock().extend(gone);
        let before = shared.view();
        let dsl = before.dsl().after(self.mos.synced().clone())?;
        dsl.set_pool_space(pool_space(&shared.disk));
        let (mapped, less) = (before.mapping_bytes(), self.mapping_less);
        let left = less!(mapped, less, "bytes of mappings after group {txg}");
        let mapping_bytes = left + more;
        self.mapping_less = 0;
        let loaded = self.loaded(mapping_bytes, dsl, before.features())?;
        let view = before.after(loaded, shared.disk.allocator.embedded_logs());
        tell_savings(&view, &shared.disk);
        shared.disk.loader.advance(view.mos().clone(), txg);
        *shared.view.write() = Arc::new(view);
        if self.config_written && leaves(&before) != leaves(&shared.view()) {
            // Errors of a device that joined count as well.
            events::learn(&shared.view());
        }
        let deferred = shared.disk.allocator.sync_done(txg);
        shared.datasets.synced(txg);
        self.tell_events(shared, &before);
        Ok(deferred)
    }

    /// Lists what the group has done to the pool, of which `before` is the view before it.
    fn tell_events(&mut self, shared: &Shared, before: &Pool) {
        let store = &shared.disk.store;
        if std::mem::take(&mut self.config_written) {
            Sysevent::of_pool("config_sync").post(store);
        }
        let place = self.history_end.map_or_else(|| Ok(before.history_since(None)?.1), Ok);
        let told = place.and_then(|place| shared.view().history_since(Some(place)));
        match told {
            Ok((records, end)) => {
                events::recorded(store, &records);
                self.history_end = Some(end);
            }
            Err(e) => tracing::debug!("the pool's history cannot be read: {e}"),
        }
    }

    fn next_uberblock(&self, disk: &Disk, txg: u64) -> Uberblock {
        let vdevs = &self.config.vdev_tree;
        let (mmp_delay, mmp_config) = disk.mmp.fields();
        let uberblock = Uberblock {
            order: ByteOrder::Little,
            version: self.config.version,
            txg,
            guid_sum: config::guid_sum(vdevs),
            timestamp: disk.outside.clock.seconds(),
            rootbp: *self.mos.synced().root_bp(),
            software_version: version::FEATURES,
            mmp_magic: MMP_MAGIC,
            mmp_delay,
            mmp_config,
            checkpoint_txg: 0,
            ..self.uberblock.clone()
        };
        match &*disk.reflowed.lock() {
            Some(reflowed) => reflowed.note_in(uberblock),
            None => uberblock,
        }
    }

    /// Makes everything durable, then the uberblock that leads to it: the pool opens at group `txg` then, unless it is
    /// frozen.
    /// The inner result is what failed after that.
    pub(super) fn write_labels(
        &mut self,
        disk: &Disk,
        txg: u64,
    ) -> Result<Result<(), EngineError>, EngineError> {
        // What was written behind the passes' backs is flushed, too.
        drain(disk)?;
        disk.is_sound()?;
        let before = self.uberblock.txg;
        invariant!(before < txg, "the uberblock of group {txg} comes after that of {before}");
        let (is_dirty, born) = (self.mos.is_dirty(), self.mos.synced().root_bp().logical_birth());
        invariant!(!is_dirty, "the uberblock of group {txg} does not have all changes of the MOS");
        invariant!(born <= txg, "the uberblock of group {txg} leads to a MOS of group {born}");
        let is_lost = disk.allocator.has_changes(txg);
        invariant!(!is_lost, "space that changes hands in group {txg} is in no space map");
        let uberblock = self.next_uberblock(disk, txg);
        if disk.frozen.leaves_out(txg) {
            (self.uberblock, self.config_dirty) = (uberblock, false);
            return Ok(Ok(()));
        }
        disk.mmp.check().map_err(EngineError::Suspended)?;
        let begun = mmp::now();
        let labels = match self.config_dirty {
            true => self.config.all_labels(txg),
            false => Vec::new(),
        };
        let tops = disk.tops();
        let (uberblock_on, labels) = (tops.as_slice(), labels.as_slice());
        let update = LabelUpdate {
            uberblock: &uberblock,
            uberblock_on,
            labels,
            multihost: disk.mmp.is_on(),
        };
        let after = match sync_labels(disk, &update) {
            Err(e @ VdevError::Committed(_)) => Err(device(e).into()),
            done => Ok(done.map_err(device)?),
        };
        self.config_written |= std::mem::take(&mut self.config_dirty);
        // While it was written another host may have taken the pool.
        disk.mmp.check().map_err(EngineError::Suspended)?;
        disk.mmp.committed(&uberblock, begun, &disk.tree());
        self.uberblock = uberblock;
        disk.reflow_committed(txg);
        self.allow_gang_headers(disk);
        Ok(after)
    }

    /// The pool as the last group left it; `features` are those of the group before.
    pub(super) fn loaded(
        &self,
        mapping_bytes: u64,
        dsl: Arc<Dsl>,
        features: &Arc<PoolFeatures>,
    ) -> Result<Loaded, EngineError> {
        let mos = self.mos.synced().clone();
        let directory = Directory::open(&mos)?;
        let mut config = self.config.mos(self.uberblock.txg);
        config::set(&mut config, "vdev_tree", NvValue::NvList(self.config.vdev_tree.clone()));
        Ok(Loaded {
            config,
            store: mos.store().clone(),
            features: features.after(&directory)?,
            directory,
            dsl,
            mos,
            uberblock: self.uberblock.clone(),
            mapping_bytes,
        })
    }

    /// Marks the pool as exported or destroyed. The sync thread has ended.
    pub(super) fn mark_exported(
        &mut self,
        shared: &Arc<Shared>,
        destroyed: bool,
    ) -> Result<(), EngineError> {
        self.config.state = if destroyed { STATE_DESTROYED } else { STATE_EXPORTED };
        self.config_dirty = true;
        if tunables::KEEP_LOGS_AT_EXPORT.get() == 0 {
            self.maps.flush_all();
        }
        self.sync(shared)
    }
}

/// Commits a group. What a device lost that failed a flush is written again once; what no device takes is held until they
/// are back. Each time the same is written to the same places.
fn sync_labels(disk: &Disk, update: &LabelUpdate<'_>) -> Result<(), VdevError> {
    let commit = || {
        let tree = disk.tree();
        tree.sync_labels(update).or_else(|e| match e {
            VdevError::Flush { .. } => {
                tree.recover()?;
                tree.sync_labels(update)
            }
            e => Err(e),
        })
    };
    let suspension = disk.tree().suspension().clone();
    suspension.persist(VdevError::is_of_device, commit)
}

/// Tells datasets what cloned blocks save, if there are some.
pub(super) fn tell_savings(view: &Pool, disk: &Disk) {
    if view.features().is_active("block_cloning")
        && let Some(clone_saved) = view.clone_saved()
    {
        view.dsl().set_pool_space(PoolSpace { clone_saved, ..pool_space(disk) });
    }
}

/// Waits for all blocks that are being written.
pub(super) fn drain(disk: &Disk) -> cenote_dsl::write::Result<()> {
    Ok(disk.writer.drain().map_err(|e| WriteError::Sink(Box::new(e)))?)
}
