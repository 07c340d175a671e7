//! A device leaves a vdev (`spa_vdev_detach`).

use super::{invalid, path_of, without_place};
use crate::create;
use crate::error::EngineError;
use crate::features::count_feature;
use crate::space_write::write_detached;
use crate::{Engine, Shared, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::config_write::{PoolConfig, aux, sync_aux};
use cenote_pool::events::Sysevent;
use cenote_pool::surgery::{self, Detached};
use cenote_vdev::{Vdev, VdevTree, init_labels};
use std::result::Result as StdResult;
use std::sync::Arc;

/// A leaf that left, and what has become of the pool.
struct Left {
    leaf: Arc<Vdev>,
    config: NvList,
    changed: Detached,
    /// What its label says from now on.
    label: Option<NvList>,
}

impl Engine {
    /// Takes a device out of a mirror, a replacement, or a spare vdev (`zpool detach`, `spa_vdev_detach`,
    /// `zfs_ioc_vdev_detach`). With `parent` only as long as it is below the vdev with this guid.
    ///
    /// # Errors
    /// It is not below such a vdev; something is on this device alone; the pool is suspended.
    pub fn detach(&self, leaf: u64, parent: Option<u64>) -> StdResult<(), EngineError> {
        let left = self.shared.detach(leaf, parent);
        if matches!(left, Err(EngineError::Dsl(_))) && self.waits_for_devices() {
            // A block that only the leaf took may be held, as it was about to leave. It stays.
            if let Err(why) = self.resume() {
                tracing::info!("the pool stays suspended: {why}");
            }
        }
        if left.is_ok() {
            // Of several spares one may be needed no more.
            self.shared.let_go_of_replaced();
        }
        left
    }
}

impl Shared {
    /// See [`Engine::detach`].
    fn detach(self: &Arc<Self>, leaf: u64, parent: Option<u64>) -> StdResult<(), EngineError> {
        let rests = self.let_spare_rest(leaf);
        let change = move |context: &mut SyncContext<'_>| context.detach(leaf, parent);
        let left = self.queue.run(&self.tx_state, change, |_| true);
        let left = left.inspect_err(|_| self.let_spare_work(&rests))?;
        let pool = self.view();
        Sysevent { vdev: Some(&left.leaf), ..Sysevent::of_pool("vdev_remove") }.post(pool.store());
        // The device may be what is broken. One that is out of use may be another pool's by now, or hang.
        let device = left.leaf.device().filter(|_| left.leaf.writable());
        // Another pool may take it once its labels say so, or once it is a spare again: nothing may be under way to it
        // then.
        let let_go = self.is_let_go(&left.leaf);
        let distributed = left.leaf.is_distributed();
        let device = device.filter(|_| let_go && !distributed);
        if let (Some(device), Some(label)) = (device, &left.label)
            && let Err(error) = init_labels(device.as_ref(), label)
        {
            tracing::warn!(path = %device.path().display(), %error, "the labels stay");
        }
        left.leaf.retire();
        pool.devices().forget(leaf);
        if let_go
            && !distributed
            && config::flag(&left.config, "is_spare")
            && let Some(path) = config::path(&left.config)
        {
            pool.devices().share(leaf, path);
        }
        if let Some((had, has)) = left.changed.renamed {
            pool.devices().rename(had, has);
            self.resume_activities(|leaf| leaf == has);
        }
        // The device has left, whatever becomes of that.
        if let Err(error) = self.expand_if_wanted() {
            tracing::warn!(%error, "the vdev does not grow");
        }
        Ok(())
    }

    /// Takes out the devices that others have replaced, as soon as these have all that they have (`spa_vdev_resilver_done`):
    /// at the end of a resilver, and when the pool is imported.
    ///
    /// # Errors
    /// Errors of [`Engine::detach`].
    pub(crate) fn resilver_done(self: &Arc<Self>) -> StdResult<(), EngineError> {
        loop {
            let tree = self.disk.tree();
            let Some((leaf, parent)) = tree.replaced() else { return Ok(()) };
            // The spare that stood in for what was replaced goes as well.
            let above = tree.parent_of(parent).filter(|v| v.kind() == "spare");
            let stood_in = above.and_then(|spare| match spare.children() {
                [first, second] if first.guid() == parent => Some((second.guid(), spare.guid())),
                _ => None,
            });
            drop(tree);
            for (leaf, above) in [(leaf, parent)].into_iter().chain(stood_in) {
                match self.detach(leaf, Some(above)) {
                    Ok(()) => {}
                    // It may have been taken out meanwhile, or be needed again: it is looked at after the next resilver.
                    Err(EngineError::Dsl(why)) => {
                        tracing::info!("a device that was replaced stays: {why}");
                        return Ok(());
                    }
                    Err(e) => return Err(e),
                }
            }
        }
    }
}

/// What the labels of a device say that left the pool: it is of no pool, or a spare again (`VDEV_LABEL_REMOVE`).
pub(crate) fn label_of_left(pool: &PoolConfig, top: u64, leaf: &NvList) -> Option<NvList> {
    if config::flag(leaf, "is_spare") {
        return Some(create::spare_label(leaf));
    }
    create::leaf_label(pool, top, config::number(leaf, "guid"), 0)
}

impl SyncContext<'_> {
    /// See [`Engine::detach`].
    fn detach(&mut self, guid: u64, parent: Option<u64>) -> Result<Left> {
        self.refuse_with_checkpoint()?;
        let tree = self.disk.tree();
        let Some(leaf) = tree.find(guid) else { return invalid("no such device in pool") };
        let above = tree.parent_of(guid);
        if parent.is_some_and(|parent| above.as_ref().map(|v| v.guid()) != Some(parent)) {
            return invalid("no valid replicas");
        }
        let kind = above.as_deref().map_or("", |v| v.kind());
        if !leaf.is_leaf() || !matches!(kind, "mirror" | "replacing" | "spare") {
            return invalid("only applicable to mirror and replacing vdevs");
        }
        // Blocks that are being written now must not be on this leaf alone.
        leaf.set_leaving(true);
        let left = self.let_go(&tree, &leaf);
        if left.is_err() {
            leaf.set_leaving(false);
        }
        left
    }

    /// Takes a leaf out that is marked as leaving.
    fn let_go(&mut self, tree: &VdevTree, leaf: &Arc<Vdev>) -> Result<Left> {
        let guid = leaf.guid();
        if tree.is_required(guid) {
            return invalid("no valid replicas");
        }
        let before = self.config.clone();
        let mut root = before.vdev_tree.clone();
        let changed = surgery::detach(&mut root, guid).ok_or(DslWriteError::NotFound)?;
        let config = changed.leaf.clone();
        let label = label_of_left(&before, changed.top, &config);
        self.free_leaf(&config)?;
        if let Some(spare) = changed.unspared {
            let mut spares = aux(self.tx.mos, "spares")?;
            spares.retain(|listed| config::number(listed, "guid") != spare);
            sync_aux(self.tx.mos, "spares", &spares)?;
        }
        self.record("detach", &format!("vdev={}", path_of(&config)))?;
        let was = |guid: u64| match changed.renamed {
            Some((had, has)) if has == guid => had,
            _ => guid,
        };
        let now = self.altered_tree(&root, changed.top, &mut |_, _| None, &was)?;
        self.replace_tree(now, root)?;
        Ok(Left { leaf: leaf.clone(), config: without_place(&config), changed, label })
    }

    /// Frees what the MOS has of a leaf that leaves: what it missed, its ZAP (`vdev_dtl_sync`).
    pub(super) fn free_leaf(&mut self, leaf: &NvList) -> Result<()> {
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        Ok(write_detached(self.tx.mos, txg, leaf, &mut count)?)
    }
}
