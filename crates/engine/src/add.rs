//! Vdevs, spares and cache devices that join a pool while it is in use (`spa_vdev_add`).
//!
//! A sync task does all of it, so that nothing can come in between: the new devices get labels that
//! say whose they are but not that the pool has them yet; a new tree, which shares the vdevs of the
//! old one, takes its place; the MOS gets the objects of the vdevs, and the config names them. The
//! uberblock of that group makes them part of the pool, and only from then on blocks go to them: a
//! crash before it leaves devices that belong to no pool.

use super::error::EngineError;
use super::features::count_feature;
use super::{Disk, Engine, SyncContext};
use crate::create::{self, Prepared};
use crate::space_write::map::feature_uses;
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::Pool;
use cenote_pool::config::{self, children};
use cenote_pool::config_write::{aux, sync_aux};
use cenote_pool::events::Sysevent;
use cenote_pool::version;

/// Without this feature there are no special and no deduplication vdevs.
const CLASSES: &str = "org.zfsonlinux:allocation_classes";
/// Without this one there is no dRAID.
const DRAID: &str = "org.openzfs:draid";

impl Engine {
    /// Adds devices to the pool (`zpool add`, `spa_vdev_add`, `zfs_ioc_vdev_add`): top-level vdevs, spares, cache devices.
    /// They are prepared with the pool's config ([`create::CreateSpec::pool`]).
    ///
    /// # Errors
    /// The pool's vdevs are not those any more that the devices were prepared for; a device cannot
    /// be written; a feature is needed that is not enabled; the pool is suspended.
    pub fn add(&self, prepared: Prepared) -> std::result::Result<(), EngineError> {
        let devices: Vec<_> = prepared.devices().collect();
        let tops = prepared.new_tops.clone();
        self.sync_task(move |ctx| ctx.add(prepared))?;
        let pool = self.pool();
        pool.devices().insert(devices);
        self.use_caches();
        for top in tops.iter().filter_map(|id| pool.store().vdevs().top(*id).cloned()) {
            let added = Sysevent { vdev: Some(&top), ..Sysevent::of_pool("vdev_add") };
            added.post(pool.store());
        }
        Ok(())
    }
}

impl SyncContext<'_> {
    /// See [`Engine::add`].
    fn add(&mut self, mut prepared: Prepared) -> Result<()> {
        self.check(&prepared)?;
        prepared.set_txg(self.tx.txg);
        let mut joined = self.config.clone();
        let (old, all) = (children(&joined.vdev_tree), children(&prepared.root));
        let new = all.iter().skip(old.len());
        let (had, tops) = (old.len(), old.iter().chain(new).cloned().collect());
        joined.vdev_tree.set("children", NvValue::NvListArray(tops));
        create::write_labels(&prepared, &joined)
            .map_err(|e| DslWriteError::Invalid(format!("labels cannot be written: {e}")))?;
        let tree = self.disk.tree().extended(&joined.vdev_tree, &mut |g, _| prepared.device(g));
        let tree = tree.map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        let healthy = |id: &u64| tree.top(*id).is_some_and(|top| top.state().readable());
        if !prepared.new_tops.iter().all(healthy) {
            return Err(DslWriteError::Invalid("one or more devices are unavailable".into()));
        }
        self.list_aux("spares", &prepared.spares)?;
        self.list_aux("l2cache", &prepared.caches)?;
        if prepared.new_tops.is_empty() {
            return Ok(());
        }
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        let tops = joined.vdev_tree.pairs.iter_mut().find(|(name, _)| name == "children");
        if let Some((_, NvValue::NvListArray(tops))) = tops {
            for top in tops.iter_mut().skip(had) {
                // What is known of space is not undone: what fails here takes the group with it.
                let done = self.maps.init_vdev(self.tx.mos, txg, top, &mut count);
                done.map_err(|e| DslWriteError::from(e).into_fatal())?;
            }
        }
        // Nor is what follows.
        self.tx.mos.check_change().map_err(|e| DslWriteError::from(e).into_fatal())?;
        let mut infos = self.maps.allocator_vdevs(None, &tree);
        infos.retain(|(_, info)| prepared.new_tops.contains(&info.id));
        self.disk.added.lock().extend(infos);
        self.disk.store.replace_vdevs(tree);
        *self.config = joined;
        self.config_changed = true;
        Ok(())
    }

    /// Whether what was prepared still fits the pool.
    fn check(&mut self, prepared: &Prepared) -> Result<()> {
        let invalid = |why: &str| Err(DslWriteError::Invalid(why.into()));
        if self.disk.frozen.leaves_out(self.tx.txg) {
            // Blocks of intent logs would go to devices that the next import does not know.
            return invalid("the pool is frozen: export and import it first");
        }
        let count = children(&self.config.vdev_tree).len() as u64;
        let in_order = prepared.new_tops.iter().zip(count..).all(|(id, next)| *id == next);
        if prepared.pool_guid != self.config.guid || !in_order {
            return invalid("the pool's configuration has changed");
        }
        let classes = |top: &NvList| matches!(top.str("alloc_bias"), Some("special" | "dedup"));
        let draid = |top: &NvList| top.str("type") == Some("draid");
        let new = children(&prepared.root).iter().skip(count as usize);
        self.check_beside_removal(new.clone())?;
        let parity = |n: u64| new.clone().any(|top| top.u64("nparity").unwrap_or(0) >= n);
        let logs = new.clone().any(|top| cenote_pool::config::flag(top, "is_log"));
        let (spares, caches) = (!prepared.spares.is_empty(), !prepared.caches.is_empty());
        for (needs, since) in [
            (parity(3), version::TRIPLE_PARITY),
            (parity(2) || spares, version::SPARES),
            (logs, version::LOG_DEVICES),
            (caches, version::CACHE_DEVICES),
        ] {
            if needs && self.config.version < since {
                return invalid("pool must be upgraded to add these vdevs");
            }
        }
        for (needs, feature) in
            [(new.clone().any(classes), CLASSES), (new.clone().any(draid), DRAID)]
        {
            if needs && feature_uses(self.tx.mos, feature)?.is_none() {
                return invalid("pool must be upgraded to add these vdevs");
            }
        }
        Ok(())
    }

    /// Refuses what the blocks of a vdev that is being removed cannot be copied to as they are.
    fn check_beside_removal<'a>(&self, mut new: impl Iterator<Item = &'a NvList>) -> Result<()> {
        let Some(evacuation) = self.maps.evacuation() else { return Ok(()) };
        let ashift = self.disk.tree().top(evacuation.vdev).map(|top| u64::from(top.ashift()));
        let differs = |top: &NvList| {
            let is_log = cenote_pool::config::flag(top, "is_log");
            let is_plain = matches!(top.str("type"), Some("file" | "disk" | "mirror"));
            !is_plain || (!is_log && top.u64("ashift") != ashift)
        };
        match new.any(differs) {
            true => Err(DslWriteError::Invalid(
                "a device is being removed: only disks and mirrors with its sector size can be added".into(),
            )),
            false => Ok(()),
        }
    }

    /// Writes the lists of spares and cache devices anew if some were found in other places than they say
    /// (`spa_load_spares`, `spa_load_l2cache` at an import).
    pub(super) fn note_moved_aux(&mut self, pool: &Pool) -> Result<()> {
        for (which, now) in [("spares", pool.spares()), ("l2cache", pool.caches())] {
            let paths = |list: &[NvList]| -> Vec<_> { list.iter().map(config::path).collect() };
            if paths(&aux(self.tx.mos, which)?) != paths(now) {
                sync_aux(self.tx.mos, which, now)?;
            }
        }
        Ok(())
    }

    /// Adds to the list of spares or cache devices.
    fn list_aux(&mut self, which: &str, new: &[NvList]) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let mut all = aux(self.tx.mos, which)?;
        all.extend_from_slice(new);
        Ok(sync_aux(self.tx.mos, which, &all)?)
    }
}

impl Disk {
    /// The group that adds vdevs, and space to vdevs, is on disk: it is allocated from.
    pub(super) fn join_added(&self) -> std::result::Result<(), EngineError> {
        for (class, info) in self.added.lock().drain(..) {
            self.allocator
                .add_vdev(class, &info)
                .map_err(|e| EngineError::Unsupported(e.to_string()))?;
        }
        for (vdev, count) in self.grown.lock().drain(..) {
            self.allocator
                .grow_vdev(vdev, count)
                .map_err(|e| EngineError::Unsupported(e.to_string()))?;
        }
        Ok(())
    }
}
