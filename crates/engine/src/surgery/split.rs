//! Sides of mirrors become the devices of another pool (`spa_vdev_split_mirror`).
//!
//! ```text
//! all logs end ── a group in which no log has a block: what the new pool is to hold
//!      │
//!  a sync task ── labels of the sides: the new pool, at that group; the sides leave the old pool's config
//!      │          the uberblock of the task's group has them left
//!   they left ── the new pool is imported: its first group frees what its MOS has of the other pool's devices
//! ```
//!
//! Both pools hold together at each write. Before the last config is written there is no new pool: it lacks top-level vdevs.
//! From then on there is one, whether the old pool's group gets on disk or not: if it does not, the old pool takes the sides
//! for devices of another pool, as their labels say, and its next import lets go of them. If some sides only have such labels, they
//! are shown as split off and stay until they are detached. What the new pool holds was written by the groups before
//! the task's, and no space of it is written to again while the task's group is under way. Nothing else is under way to a side when
//! its labels are written: neither a heartbeat nor a request where nothing is allocated.
//!
//! The new pool's MOS is the old one's, with its config; [`cenote_pool::split`] has how it is opened.

use super::{invalid, path_of};
use crate::create;
use crate::error::EngineError;
use crate::features::count_feature;
use crate::space_write::free_foreign_log;
use crate::{Engine, Shared, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{DslWriteError, Result};
use cenote_format::label::Uberblock;
use cenote_format::nvlist::{NvList, NvValue};
use cenote_pool::config::{self, STATE_EXPORTED, children, number};
use cenote_pool::config_write::{PoolConfig, nvlist_of, sync_aux};
use cenote_pool::discover;
use cenote_pool::split::{self, SPLIT_GUID};
use cenote_pool::surgery;
use cenote_vdev::{Aux, Device, SavedLabels, Vdev, VdevState, VdevTree, rewrite_labels};
use std::path::PathBuf;
use std::result::Result as StdResult;
use std::sync::Arc;
use std::time::Duration;

/// How long a group waits for what is under way to the sides.
const PATIENCE: Duration = Duration::from_secs(2);
/// Groups in each of which a pool's config may be left alone by others.
const TRIES: usize = 5;

/// What is to be split off.
#[derive(Clone)]
pub struct Split {
    /// Name of the new pool.
    pub name: String,
    /// Guids of leaves: one of each top-level mirror that is not for logs.
    pub sides: Vec<u64>,
}

/// A new pool, which no engine has imported.
#[derive(Debug)]
pub struct SplitOff {
    /// Its guid.
    pub guid: u64,
    /// Its devices.
    pub paths: Vec<PathBuf>,
}

/// A side that left.
struct Left {
    leaf: Arc<Vdev>,
    /// The guid that the other side had, and the one that it has now.
    renamed: Option<(u64, u64)>,
}

/// The labels of a side: its device, its `ashift`, and what they say from now on.
struct Labels {
    device: Arc<dyn Device>,
    ashift: u32,
    new: NvList,
}

impl Engine {
    /// Has sides of mirrors become a pool of their own, in the state that this one has now (`zfs_ioc_vdev_split`). Its labels
    /// say that it is exported.
    ///
    /// # Errors
    /// A vdev is not a mirror, or a side is not whole or not one of it; a side is needed; logs wait for their replay; labels
    /// cannot be written; the pool is suspended.
    pub fn split(&self, asked: &Split) -> StdResult<SplitOff, EngineError> {
        if !self.shared.unreplayed.lock().heads().is_empty() {
            return Ok(invalid("pool is busy")?);
        }
        let chance = self.shared.disk.outside.chance.number();
        let guid = chance.map_err(|e| DslWriteError::Invalid(e.to_string()))? | 1;
        // No log begins between the group that ends them and the one that has the sides leave.
        let suspension = self.shared.datasets.suspend_logs(&self.shared)?;
        let left = self.shared.split_off(asked, guid);
        drop(suspension);
        self.shared.datasets.begin_logs(&self.shared, false);
        if matches!(left, Err(EngineError::Dsl(_))) {
            self.sides_stay(asked);
        }
        let left = left?;
        let paths = left.iter().filter_map(|left| config::path(left.leaf.config())).collect();
        self.shared.let_sides_go(left);
        Ok(SplitOff { guid, paths })
    }

    /// A split was refused.
    fn sides_stay(&self, asked: &Split) {
        if self.waits_for_devices()
            && let Err(why) = self.resume()
        {
            // A block that only the sides took may be held, as they were about to leave.
            tracing::info!("the pool stays suspended: {why}");
        }
        // Labels that could not be put back are written anew, lest the next import take a side for another pool's.
        if let Err(why) = self.write_config() {
            tracing::warn!("labels are not written anew after a split that failed: {why}");
        }
        self.shared.resume_activities(|leaf| asked.sides.contains(&leaf));
    }

    /// Lets go of sides whose labels say that they were split off, in a group that did not get on disk, where they are another
    /// pool as a whole (`spa_try_repair`). Else they stay as they are, until a user detaches them.
    pub(crate) fn let_sides_of_before_go(&self) {
        let split = VdevState::CantOpen(Aux::SplitPool);
        let mut sides = self.shared.disk.tree().leaves();
        sides.retain(|leaf| leaf.state() == split);
        if sides.is_empty() || !self.are_a_pool(&sides) {
            sides.iter().for_each(|side| {
                tracing::warn!(leaf = side.guid(), "its labels say that it was split off");
            });
            return;
        }
        for side in sides {
            if let Err(why) = self.detach(side.guid(), None) {
                tracing::warn!(leaf = side.guid(), "a device that was split off stays: {why}");
            }
        }
    }
}

impl Engine {
    /// Whether these leaves are all devices of a pool that was split off this one, and that pool has all that it needs.
    fn are_a_pool(&self, sides: &[Arc<Vdev>]) -> bool {
        let paths: Vec<PathBuf> = sides.iter().filter_map(|l| config::path(l.config())).collect();
        if paths.len() != sides.len() {
            return false;
        }
        let own = self.pool().guid();
        discover::search(&paths).candidates.iter().any(|found| {
            let is_of = |side: &Arc<Vdev>| {
                let mut labels = found.devices.iter().map(|device| &device.config);
                labels.any(|label| {
                    number(label, "guid") == side.guid() && number(label, SPLIT_GUID) == own
                })
            };
            let tops = config::tops(&found.config);
            let is_whole = tops.iter().all(|top| top.str("type") != Some("missing"));
            is_whole && !tops.is_empty() && sides.iter().all(is_of)
        })
    }
}

impl Shared {
    fn split_off(self: &Arc<Self>, asked: &Split, guid: u64) -> StdResult<Vec<Left>, EngineError> {
        for _ in 0..TRIES {
            self.queue.run(&self.tx_state, |_| Ok(()), |()| true)?;
            let (asked, shared) = (asked.clone(), Arc::downgrade(self));
            let change = move |context: &mut SyncContext<'_>| {
                let shared = shared.upgrade().ok_or(DslWriteError::NotFound)?;
                let last = shared.view().uberblock().clone();
                // What the last group has is not the config any more.
                match context.config_changed {
                    true => Ok(None),
                    false => context.split(&asked, guid, &last).map(Some),
                }
            };
            let done = self.queue.run(&self.tx_state, change, Option::is_some)?;
            if let Some(left) = done {
                return Ok(left);
            }
        }
        Ok(invalid("pool is busy")?)
    }

    /// Lets go of the devices of sides that left, in a group that is on disk.
    fn let_sides_go(self: &Arc<Self>, left: Vec<Left>) {
        let pool = self.view();
        for Left { leaf, renamed } in left {
            self.is_let_go(&leaf);
            leaf.retire();
            pool.devices().forget(leaf.guid());
            if let Some((had, has)) = renamed {
                pool.devices().rename(had, has);
                self.resume_activities(|leaf| leaf == has);
            }
        }
        if let Err(error) = self.expand_if_wanted() {
            tracing::warn!(%error, "no vdev grows");
        }
    }
}

/// The sides in `tree`, in the order of their vdevs.
fn sides(tree: &VdevTree, asked: &Split) -> Result<Vec<Arc<Vdev>>> {
    let mut found = Vec::new();
    for top in tree.root().children() {
        if top.is_log() || matches!(top.kind(), "hole" | "indirect") {
            continue;
        }
        let mut own = top.children().iter().filter(|side| asked.sides.contains(&side.guid()));
        match (own.next(), own.next()) {
            (Some(side), None) if top.kind() == "mirror" && side.is_leaf() => {
                found.push(side.clone())
            }
            _ => return invalid("Invalid argument"),
        }
    }
    match found.len() == asked.sides.len() && !found.is_empty() {
        true => Ok(found),
        false => invalid("Invalid argument"),
    }
}

impl SyncContext<'_> {
    /// See [`Engine::split`]. `guid` is the new pool's; `last` is the uberblock that leads to what it holds.
    fn split(&mut self, asked: &Split, guid: u64, last: &Uberblock) -> Result<Vec<Left>> {
        self.refuse_with_checkpoint()?;
        if self.disk.frozen.leaves_out(self.tx.txg) {
            return invalid("the pool is frozen: export and import it first");
        }
        if self.maps.evacuation().is_some() {
            return invalid("pool is busy");
        }
        let tree = self.disk.tree();
        let sides = sides(&tree, asked)?;
        let usable = |side: &Arc<Vdev>| side.state() == VdevState::Healthy && side.writable();
        if !sides.iter().all(usable) {
            return invalid("Invalid argument");
        }
        // Blocks that are being written now must not be on these leaves alone.
        sides.iter().for_each(|side| side.set_leaving(true));
        let left = self.leave(asked, (&tree, &sides), guid, last);
        if left.is_err() {
            sides.iter().for_each(|side| side.set_leaving(false));
        }
        left
    }

    /// Has sides leave that are marked as leaving.
    fn leave(
        &mut self,
        asked: &Split,
        (tree, sides): (&VdevTree, &[Arc<Vdev>]),
        guid: u64,
        last: &Uberblock,
    ) -> Result<Vec<Left>> {
        if sides.iter().any(|side| side.is_behind() || tree.is_required(side.guid())) {
            return invalid("pool is busy");
        }
        let guids: Vec<u64> = sides.iter().map(|side| side.guid()).collect();
        let is_idle = |side: &Arc<Vdev>| side.is_vacant_idle_within(PATIENCE);
        if !self.disk.mmp.is_quiet_within(&guids, PATIENCE) || !sides.iter().all(is_idle) {
            return invalid("pool is busy");
        }
        let new = self.new_pool(asked, guid)?;
        let labels = self.labels(&new, (tree, sides), last)?;
        let mut root = self.config.vdev_tree.clone();
        let (mut now, mut left) = (None::<Arc<VdevTree>>, Vec::new());
        for side in sides {
            let changed = surgery::detach(&mut root, side.guid()).ok_or(DslWriteError::NotFound)?;
            self.free_leaf(&changed.leaf)?;
            self.record("detach", &format!("vdev={}", path_of(&changed.leaf)))?;
            let renamed = changed.renamed;
            let was =
                |guid: u64| renamed.filter(|(_, has)| *has == guid).map_or(guid, |(had, _)| had);
            let so_far = now.as_deref().unwrap_or(tree);
            let altered = so_far.altered(&root, changed.top, &mut |_, _| None, &was);
            now = Some(altered.map_err(|e| DslWriteError::Invalid(e.to_string()))?);
            left.push(Left { leaf: side.clone(), renamed });
        }
        let now = now.ok_or(DslWriteError::NotFound)?;
        // Nothing that comes after the labels may fail.
        self.tx.mos.check_change()?;
        let sum = config::guid_sum(&new.vdev_tree);
        // No heartbeat of before is above it.
        let timestamp = last.timestamp.max(self.tx.now).saturating_add(1);
        let first = Uberblock { guid_sum: sum, timestamp, ..last.clone() };
        write_all(&labels, &first)?;
        // The sides are another pool's by now.
        self.replace_tree(now, root).map_err(DslWriteError::into_fatal)?;
        Ok(left)
    }

    /// The config of the new pool.
    fn new_pool(&self, asked: &Split, guid: u64) -> Result<PoolConfig> {
        let tops = children(&self.config.vdev_tree);
        let side = |id: u64| {
            let top = tops.get(usize::try_from(id).ok()?)?;
            let mut own = children(top).iter().map(|side| number(side, "guid"));
            own.find(|side| asked.sides.contains(side))
        };
        let root = split::root_of(&self.config.vdev_tree, guid, &side);
        let mut new = self.config.clone();
        new.vdev_tree = root.ok_or(DslWriteError::NotFound)?;
        (new.guid, new.name, new.state) = (guid, asked.name.clone(), STATE_EXPORTED);
        Ok(new)
    }

    /// The labels of the sides.
    fn labels(
        &self,
        new: &PoolConfig,
        (tree, sides): (&VdevTree, &[Arc<Vdev>]),
        last: &Uberblock,
    ) -> Result<Vec<Labels>> {
        let label = |top: u64, leaf: u64| {
            let mut label = create::leaf_label(new, top, leaf, 0)?;
            label.set("txg", NvValue::Uint64(last.txg));
            label.pairs.retain(|(name, _)| name != "create_txg");
            Some(label)
        };
        let labels = |side: &Arc<Vdev>| {
            let top = tree.top_of(side.guid())?;
            let mut of_new = label(top.id(), side.guid())?;
            of_new.set(SPLIT_GUID, NvValue::Uint64(self.config.guid));
            let (device, ashift) = (side.device()?, top.ashift());
            Some(Labels { device, ashift, new: of_new })
        };
        sides.iter().map(labels).collect::<Option<_>>().ok_or(DslWriteError::NotFound)
    }

    /// Of a pool that was split off and has not written a group yet: frees what the MOS has of the devices that stayed with the
    /// other pool.
    pub(crate) fn finish_split(&mut self) -> Result<()> {
        let Some(before) = nvlist_of(self.tx.mos, "config")? else { return Ok(()) };
        if number(&before, "pool_guid") == self.config.guid {
            return Ok(());
        }
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let tops = config::tops(&before);
        for (had, has) in tops.iter().zip(children(&self.config.vdev_tree).to_vec()) {
            let mut others = Vec::new();
            let kept = number(&has, "guid");
            config::for_each_leaf(had, &mut |leaf| others.push(leaf.clone()));
            others.retain(|leaf| number(leaf, "guid") != kept);
            others.iter().try_for_each(|leaf| self.free_leaf(leaf))?;
            if config::flag(had, "is_log") {
                let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
                    count_feature(mos, txg, outside, guid, delta)
                };
                free_foreign_log(self.tx.mos, txg, had, &mut count)?;
            }
        }
        for which in ["spares", "l2cache"] {
            sync_aux(self.tx.mos, which, &[])?;
        }
        self.record("split", &format!("from pool {}", before.str("name").unwrap_or_default()))
    }
}

/// Writes labels with the `first` uberblock of the new pool. Where that fails they become again what they were.
fn write_all(labels: &[Labels], first: &Uberblock) -> Result<()> {
    let failed = |side: &Labels, what: &str, why: std::io::Error| {
        invalid(format!("labels of {} cannot be {what}: {why}", side.device.path().display()))
    };
    let mut saved = Vec::new();
    for side in labels {
        match SavedLabels::read(side.device.as_ref()) {
            Ok(before) => saved.push(before),
            Err(why) => return failed(side, "read", why),
        }
    }
    for (n, side) in labels.iter().enumerate() {
        let Err(why) = rewrite_labels(side.device.as_ref(), &side.new, first, side.ashift) else {
            continue;
        };
        // In the reverse order: the new pool is the less whole the longer.
        for (side, before) in labels.iter().zip(&saved).take(n + 1).rev() {
            if let Err(error) = before.put_back(side.device.as_ref()) {
                let path = side.device.path();
                tracing::warn!(path = %path.display(), %error, "its labels say that it left");
            }
        }
        return failed(side, "written", why);
    }
    Ok(())
}
