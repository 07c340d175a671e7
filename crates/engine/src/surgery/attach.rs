//! A device joins a vdev: as another side of a mirror, to replace a device, or as a spare for one (`spa_vdev_attach`).
//!
//! # Algorithm
//!
//! 1. Before the sync task: devices that may not answer are asked (the scratch area of a RAID-Z vdev that is expanded), so that no group
//!    waits for them.
//! 2. In the sync task what cannot be attached is refused, in OpenZFS's words: beside a checkpoint, a removal that copies, another
//!    kind of resilver; a device that is too small, has larger sectors, or is in the pool already.
//! 3. A RAID-Z vdev that gets a device is expanded (`reflow`). Otherwise a vdev of the type mirror, replacing or spare is put above both
//!    leaves, unless there is one.
//! 4. The new leaf gets a ZAP and its labels, and is opened. It counts as lacking all groups up to those under way. The tree with it
//!    takes the place of the pool's.
//! 5. Once the group is on disk: events, then a rebuild, an expansion or a resilver begins. An import begins the resilver at the latest.
//!
//! # Invariants
//!
//! - A device whose labels cannot be written, or that is not of use then, does not join: the task fails as a whole.
//! - A resilver and a sequential rebuild are not under way together.

use super::{
    Attach, CONCURRENT, before_joining, invalid, is_distributed, path_of, set_zap, spare,
    without_place,
};
use crate::create;
use crate::error::EngineError;
use crate::rebuild::Begun;
use crate::reflow::UNCLAIMED;
use crate::space_write::map::feature_uses;
use crate::{Engine, Shared, SyncContext};
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config;
use cenote_pool::config_write::{PoolConfig, aux};
use cenote_pool::events::Sysevent;
use cenote_pool::rebuild::{FEATURE, JOINED};
use cenote_pool::surgery;
use cenote_vdev::{Vdev, VdevTree};
use std::result::Result as StdResult;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// What is said of a vdev that cannot be rebuilt by place.
const NO_REBUILD: &str = "only mirror and dRAID vdevs support sequential reconstruction";

/// What is said of a distributed spare that is to stand in below another vdev than its own.
const NOT_ITS_SPARE: &str =
    "dRAID spares can only replace child devices in their parent's dRAID vdev";

/// What joining makes of the vdev above the new device.
struct Plan {
    /// Type of the vdev that both are below.
    kind: &'static str,
    /// The word in the history, and the one between the two paths.
    words: (&'static str, &'static str),
}

impl Engine {
    /// Has a device join a vdev (`zpool attach`, `zpool replace`, `spa_vdev_attach`, `zfs_ioc_vdev_attach`). When this returns
    /// it is part of the pool, and a resilver gives it what was written before; one that was under way begins anew.
    ///
    /// # Errors
    /// The vdev is not one that can be attached to, or the device does not fit, with OpenZFS's words; it cannot be written;
    /// the pool is suspended.
    pub fn attach(&self, attach: Attach) -> StdResult<(), EngineError> {
        self.shared.attach(attach, |_, _| true, false)
    }

    /// The same; the device is given what was written before in the order of offsets, not block by block, and a scrub follows
    /// (`zpool attach -s`, `zpool replace -s`).
    ///
    /// # Errors
    /// Errors of [`Engine::attach`]; the vdev cannot be rebuilt so, or a resilver is under way.
    pub fn attach_sequentially(&self, attach: Attach) -> StdResult<(), EngineError> {
        self.shared.attach(attach, |_, _| true, true)
    }
}

impl Shared {
    /// See [`Engine::attach`]. It is refused unless the leaf beside which the device is put is `wanted` to have one.
    pub(crate) fn attach(
        self: &Arc<Self>,
        attach: Attach,
        wanted: fn(&VdevTree, &Vdev) -> bool,
        rebuild: bool,
    ) -> StdResult<(), EngineError> {
        let guid = config::number(&attach.new.leaf, "guid");
        let (path, device) = (attach.new.device.path().to_path_buf(), attach.new.device.clone());
        let distributed = is_distributed(&attach.new.leaf);
        let is_spare = config::flag(&attach.new.leaf, "is_spare");
        if rebuild && self.is_rebuild_barred() {
            return Err(DslWriteError::Invalid(UNCLAIMED.into()).into());
        }
        let expands = self.disk.tree().find(attach.beside).is_some_and(|v| v.kind() == "raidz");
        if expands && self.reflow_barred.load(SeqCst) {
            return Err(DslWriteError::Invalid(UNCLAIMED.into()).into());
        }
        if expands && self.is_worked_on(attach.beside) {
            // OpenZFS stops that itself.
            let why = "a device of it is being initialized or trimmed: suspend that first";
            return Err(DslWriteError::Invalid(why.into()).into());
        }
        // A device that does not answer keeps no group waiting.
        let tree = self.disk.tree();
        let beside = tree.find(attach.beside).filter(|_| expands && !attach.replaces);
        let no_scratch = beside.and_then(|top| no_scratch_area(&tree, &top));
        drop(tree);
        let target = attach.beside;
        let shared = self.clone();
        let change = move |context: &mut SyncContext<'_>| {
            let tree = context.disk.tree();
            match tree.find(attach.beside).is_none_or(|beside| wanted(&tree, &beside)) {
                true => context.attach(&attach, rebuild.then_some(&shared), no_scratch),
                false => invalid("the device works again"),
            }
        };
        let begun = self.queue.run(&self.tx_state, change, |_| true)?;
        let pool = self.view();
        // It may have left again: then others may have it.
        if !distributed && self.disk.tree().find(guid).is_some() {
            pool.devices().insert([(guid, path, device)]);
        }
        let tree = pool.store().vdevs();
        let joined = tree.find(guid);
        let names: &[&str] =
            if is_spare { &["vdev_spare", "vdev_attach"] } else { &["vdev_attach"] };
        for name in names {
            let vdev = joined.as_deref();
            Sysevent { vdev, ..Sysevent::of_pool(name) }.post(pool.store());
        }
        let expands = tree.expanding().is_some();
        let top = tree.top_of(target).map(|top| top.id());
        drop((tree, joined, pool));
        if rebuild {
            begun.aborted.into_iter().for_each(|told| self.scrub_has_ended(told));
            self.disk.tree().root().begin_scan();
            top.into_iter().for_each(|top| self.tell_rebuild("resilver_start", top));
            self.wake_rebuild();
            return Ok(());
        }
        if expands {
            self.wake_reflow();
        }
        // It has joined, whatever becomes of the resilver: one begins at the next import at the latest.
        if let Err(error) = self.resilver_what_joined() {
            tracing::warn!(%error, "no resilver begins");
        }
        Ok(())
    }

    /// Begins a resilver for a device that joined, once what it lacks of groups that were under way is on disk.
    fn resilver_what_joined(self: &Arc<Self>) -> StdResult<(), EngineError> {
        for _ in 1..CONCURRENT {
            self.queue.run(&self.tx_state, |_| Ok(()), |()| true)?;
        }
        self.assess_resilver()
    }
}

/// A rebuild begins of a top-level vdev: those below it that an earlier one was for, and that take no writes now, get nothing of it. They
/// are left to a resilver, so that they are no errors of this one.
fn leave_to_resilver(root: &mut NvList, tree: &VdevTree, top: u64, txg: u64) {
    let mut leaves = Vec::new();
    tree.top(top).into_iter().for_each(|top| top.collect_leaves(&mut leaves));
    config::for_each_leaf_mut(root, &mut |leaf| {
        let guid = config::number(leaf, "guid");
        let is_away = leaves.iter().any(|l| l.guid() == guid && !l.writable());
        if is_away && config::number(leaf, JOINED) != 0 {
            leaf.pairs.retain(|(name, _)| name != JOINED);
            leaf.set("resilver_txg", NvValue::Uint64(txg));
        }
    });
}

/// Why the scratch area of a RAID-Z vdev that is to be expanded cannot be used, if so (`vdev_check_boot_reserve`).
fn no_scratch_area(tree: &VdevTree, top: &Vdev) -> Option<String> {
    let used =
        "the reserved boot area needed for the expansion is already being used by a boot loader";
    match tree.has_boot_loader(top) {
        Ok(boots) => boots.then(|| used.into()),
        Err(e) => {
            Some(format!("the reserved boot area needed for the expansion cannot be read: {e}"))
        }
    }
}

/// Refuses what cannot be attached to, in OpenZFS's words.
fn plan(tree: &VdevTree, old: &Vdev, attach: &Attach) -> Result<Plan> {
    let parent = tree.parent_of(old.guid());
    let above = parent.as_deref().map_or("root", |parent| parent.kind());
    let is_spare = config::flag(&attach.new.leaf, "is_spare");
    let was_spare = config::flag(old.config(), "is_spare");
    let is_log = tree.top_of(old.guid()).is_some_and(|top| top.is_log());
    if !attach.replaces {
        return match above {
            "mirror" | "root" => Ok(Plan { kind: "mirror", words: ("attach", "to") }),
            _ => invalid("can only attach to mirrors and top-level disks"),
        };
    }
    if is_log && is_spare {
        return invalid("cannot replace a log with a spare");
    }
    let doubled = is_spare && (above == "replacing" || below_spare(tree, old));
    if above == "spare" && is_spare != was_spare || doubled && above != "spare" {
        return invalid(
            "already in replacing/spare config; wait for completion or use 'zpool detach'",
        );
    }
    Ok(match is_spare {
        true => Plan { kind: "spare", words: ("spare in", "for") },
        false => Plan { kind: "replacing", words: ("replace", "for") },
    })
}

/// Whether there is a spare vdev anywhere above a leaf.
fn below_spare(tree: &VdevTree, leaf: &Vdev) -> bool {
    let mut above = tree.parent_of(leaf.guid());
    while let Some(vdev) = above {
        if vdev.kind() == "spare" {
            return true;
        }
        above = tree.parent_of(vdev.guid()).filter(|_| vdev.kind() != "root");
    }
    false
}

impl SyncContext<'_> {
    /// See [`Engine::attach`]. With `rebuild` the device is rebuilt. `no_scratch`: see [`no_scratch_area`].
    fn attach(
        &mut self,
        attach: &Attach,
        rebuild: Option<&Arc<Shared>>,
        no_scratch: Option<String>,
    ) -> Result<Begun> {
        self.refuse_with_checkpoint()?;
        let tree = self.disk.tree();
        self.refuse_beside_others(rebuild, attach.replaces)?;
        let Some(old) = tree.find(attach.beside) else { return invalid("no such device in pool") };
        if old.kind() == "raidz" && !attach.replaces {
            if rebuild.is_some() {
                return invalid(NO_REBUILD);
            }
            return self.expand_raidz(attach, &old, no_scratch).map(|()| Begun::default());
        }
        if old.kind() == "object" {
            return invalid("an object store is not mirrored or replaced");
        }
        if !old.is_leaf() {
            return invalid("can only attach to mirrors and top-level disks");
        }
        let plan = plan(&tree, &old, attach)?;
        let top = tree.top_of(old.guid()).cloned().ok_or(DslWriteError::NotFound)?;
        let distributed = is_distributed(&attach.new.leaf);
        if distributed && config::number(&attach.new.leaf, "top_guid") != top.guid() {
            return invalid(if rebuild.is_some() { NO_REBUILD } else { NOT_ITS_SPARE });
        }
        if self.maps.evacuation().is_some() {
            // A resilver finds nothing of what is copied by pointers.
            let path = config::path(&attach.new.leaf).unwrap_or_default();
            return invalid(format!(
                "{} is busy, or device removal is in progress",
                path.display()
            ));
        }
        let above = tree.parent_of(old.guid());
        let simple = above.is_none_or(|above| above.kind() == "root");
        if rebuild.is_some() && !simple && !matches!(top.kind(), "mirror" | "draid") {
            return match attach.replaces {
                true => invalid(NO_REBUILD),
                false => invalid("can only attach to mirrors and top-level disks"),
            };
        }
        // A distributed spare has as much as any child of its vdev.
        if !distributed && attach.new.size() < tree.least_size(old.guid()).unwrap_or(0) {
            return invalid("device is too small");
        }
        if attach.new.ashift > u64::from(top.ashift()) {
            return invalid(
                "The new device cannot have a higher alignment requirement than the top-level vdev.",
            );
        }
        let guid = config::number(&attach.new.leaf, "guid");
        if tree.find(guid).is_some() {
            return invalid("one or more vdevs refer to the same device");
        }
        self.is_listed(attach)?;
        let begun = match rebuild {
            Some(shared) => {
                self.begin_rebuild(shared, top.id(), before_joining(self.tx.txg).end)?
            }
            None => Begun::default(),
        };
        self.join(attach, &plan, top.id(), rebuild.is_some())?;
        Ok(begun)
    }

    /// Refuses a device that would be rebuilt beside a resilver, and one that would be resilvered beside a rebuild.
    fn refuse_beside_others(
        &mut self,
        rebuild: Option<&Arc<Shared>>,
        replaces: bool,
    ) -> Result<()> {
        let Some(shared) = rebuild else {
            return match self.is_rebuilding()? {
                true => invalid("currently sequentially resilvering"),
                false => Ok(()),
            };
        };
        if feature_uses(self.tx.mos, FEATURE)?.is_none() {
            return match replaces {
                true => invalid(NO_REBUILD),
                false => invalid(
                    "device_rebuild feature must be enabled in order to use sequential reconstruction",
                ),
            };
        }
        match shared.is_resilver_due() || self.is_resilvering()? {
            true => invalid("currently resilvering"),
            false => Ok(()),
        }
    }

    /// Refuses a device that is said to be a spare of the pool and is not.
    fn is_listed(&mut self, attach: &Attach) -> Result<()> {
        if !config::flag(&attach.new.leaf, "is_spare") {
            return Ok(());
        }
        let guid = config::number(&attach.new.leaf, "guid");
        let is_it = |spare: &NvList| config::number(spare, "guid") == guid;
        match aux(self.tx.mos, "spares")?.iter().any(is_it) {
            true => Ok(()),
            false => invalid("can only be replaced by another hot spare"),
        }
    }

    /// Puts the device beside the other one, below top-level vdev `top`.
    fn join(&mut self, attach: &Attach, plan: &Plan, top: u64, rebuild: bool) -> Result<()> {
        let chance = || self.disk.outside.chance.number();
        let above = chance().map_err(|e| DslWriteError::Invalid(e.to_string()))? | 1;
        let mut root = self.config.vdev_tree.clone();
        let mut new = without_place(&attach.new.leaf);
        // A resilver that began before this group is not the one that brings it up to date (`vdev_resilver_txg`).
        let joined = if rebuild { JOINED } else { "resilver_txg" };
        new.set(joined, NvValue::Uint64(self.tx.txg));
        let guid = config::number(&new, "guid");
        if rebuild {
            leave_to_resilver(&mut root, &self.disk.tree(), top, self.tx.txg);
        }
        let new_path = path_of(&new);
        surgery::attach(&mut root, attach.beside, plan.kind, above, new)
            .ok_or(DslWriteError::NotFound)?;
        let old_path = config::find(&root, attach.beside).map(path_of).unwrap_or_default();
        let zap = self.maps.linked_zap(self.tx.mos)?;
        set_zap(&mut root, guid, zap);
        let (word, between) = plan.words;
        let message = format!("{word} vdev={new_path} {between} vdev={old_path}");
        self.record("vdev attach", &message)?;
        let mut joined = self.config.clone();
        joined.vdev_tree = root;
        let done = self.open_joined(attach, joined, (guid, top));
        let is_shared = config::flag(&attach.new.leaf, "is_spare");
        if done.is_err() && is_shared && !is_distributed(&attach.new.leaf) {
            spare::return_to_others(attach.new.device.as_ref(), &attach.new.leaf);
        }
        done
    }

    /// Writes the labels of a device that joins below `top`, and takes it into the tree. `joined`: the config with it.
    fn open_joined(
        &mut self,
        attach: &Attach,
        joined: PoolConfig,
        (guid, top): (u64, u64),
    ) -> Result<()> {
        if !is_distributed(&attach.new.leaf) {
            create::write_label(&attach.new, &joined, top)
                .map_err(|e| DslWriteError::Invalid(format!("labels cannot be written: {e}")))?;
        }
        let device = attach.new.device.clone();
        let open = &mut |g: u64, _: &NvList| (g == guid).then(|| device.clone());
        let tree = self.altered_tree(&joined.vdev_tree, top, open, &|guid| guid)?;
        let usable = tree.find(guid).is_some_and(|leaf| leaf.state().readable());
        if !usable {
            return invalid("one or more devices is currently unavailable");
        }
        let lacks = tree.miss(guid, before_joining(self.tx.txg));
        lacks.map_err(|e| DslWriteError::Invalid(e.to_string()))?;
        self.replace_tree(tree, joined.vdev_tree)
    }
}
