//! Devices that leave a pool by command (`spa_vdev_remove`).
//!
//! | room | what |
//! |---|---|
//! | `listed` | spares and cache devices |
//! | `log` | vdevs for intent logs |
//! | `top` | vdevs that hold data: how that begins, and is cancelled |
//! | `evacuate` | how what they hold goes elsewhere, and they leave |

mod evacuate;
mod listed;
mod log;
mod top;

pub(crate) use top::allocated;

pub(crate) use top::{copied, note_spared};

use super::error::EngineError;
use super::surgery::label_of_left;
use super::vacant::{ActivityError, ActivityRequest};
use super::{Disk, Engine, Shared};
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::config_write::PoolConfig;
use cenote_pool::devices::DeviceSet;
use cenote_pool::events::Sysevent;
use cenote_pool::vdev_props::Activity;
use cenote_pool::{Pool, version};
use cenote_store::alloc::Allocator;
use cenote_vdev::{Vdev, VdevTree, init_labels};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Why a device was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The pool has no such device.
    #[error("no such device in pool")]
    NoDevice,
    /// A spare stands in for another device.
    #[error("Pool busy; removal may already be in progress")]
    Busy,
    /// A log has blocks on it that wait to be replayed.
    #[error("Mount encrypted datasets to replay logs.")]
    LogsWait,
    /// The vdev is being removed.
    #[error("removal for this vdev is already in progress.")]
    Already,
    /// The other vdevs have no room for what it holds.
    #[error("out of space")]
    NoSpace,
    /// It cannot be read.
    #[error("I/O error")]
    Unreadable,
    /// The vdevs of the pool are not of a kind that can take what it holds.
    #[error("invalid config; all top-level vdevs must have the same sector size and not be raidz.")]
    Config,
    /// No vdev is being removed.
    #[error("operation is not in progress")]
    NotActive,
    /// A distributed spare stays with its vdev.
    #[error("dRAID spares cannot be removed")]
    DistributedSpare,
    /// It is no top-level vdev.
    #[error("operation not supported on this type of pool")]
    NoTop,
    /// It holds blocks of the pool.
    #[error("removing {0} is not supported")]
    Unsupported(&'static str),
    /// Log devices leave no pool of a version before [`version::HOLES`].
    #[error("pool must be upgraded to support log removal")]
    PoolTooOld,
    /// The change could not be written.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Engine {
    /// Removes the spare, cache device or top-level vdev with this guid (`zfs_ioc_vdev_remove`). Of a vdev that holds data it
    /// begins to copy that to others. Beside a checkpoint top-level vdevs stay: the state that it has is on them.
    ///
    /// # Errors
    /// See [`RemoveError`].
    pub fn remove(&self, guid: u64) -> Result<(), RemoveError> {
        // A vdev that one thread removes, another one could put back into use.
        let _alone = self.shared.removing.lock();
        let pool = self.pool();
        let find = |list: &[NvList]| {
            list.iter().find(|device| config::number(device, "guid") == guid).cloned()
        };
        match (find(pool.spares()), find(pool.caches())) {
            (Some(spare), _) if spare.str("type") == Some("dspare") => {
                return Err(RemoveError::DistributedSpare);
            }
            (Some(spare), _) => return self.remove_listed("spares", "spare", &spare),
            (None, Some(cache)) => return self.remove_listed("l2cache", "cache", &cache),
            (None, None) => {}
        }
        let tree = self.shared.disk.tree();
        let Some(vdev) = tree.find(guid) else { return Err(RemoveError::NoDevice) };
        if self.shared.has_checkpoint() {
            self.sync_task_beside_logs(|context| context.refuse_with_checkpoint(), |()| true)?;
        }
        match tree.root().children().iter().find(|top| top.guid() == guid) {
            None => Err(RemoveError::NoTop),
            Some(_) if vdev.is_log() && pool.version() < version::HOLES => {
                Err(RemoveError::PoolTooOld)
            }
            Some(_) if vdev.is_log() => self.remove_log(&vdev),
            Some(_) => self.remove_top(&vdev),
        }
    }

    /// What is done to the free space of a log vdev that leaves is given up (`vdev_initialize_stop_all`, `vdev_trim_stop_all`).
    fn give_up_activities(&self, vdev: &Vdev) {
        if !vdev.is_leaf() {
            return vdev.children().iter().for_each(|child| self.give_up_activities(child));
        }
        for activity in Activity::ALL {
            match self.activity(activity, vdev.guid(), ActivityRequest::Cancel) {
                Ok(()) | Err(ActivityError::Nothing(_) | ActivityError::NoZap) => {}
                Err(e) => tracing::warn!(leaf = vdev.guid(), "{activity:?} goes on: {e}"),
            }
        }
    }
}

/// A vdev that is about to leave, or to be taken out of use: nothing is allocated from it. When the last copy of this is dropped it is allocated from
/// again, unless it has left. The sync task that has it leave has a copy: whether that was done is known for sure once
/// the task is gone, however the thread that asked for it fared.
pub(crate) struct Passive {
    allocator: Arc<Allocator>,
    vdev: u64,
    leaves: AtomicBool,
}

impl Passive {
    pub(crate) fn new(allocator: &Arc<Allocator>, vdev: u64) -> Arc<Passive> {
        allocator.passivate(vdev);
        let (allocator, leaves) = (allocator.clone(), AtomicBool::new(false));
        Arc::new(Passive { allocator, vdev, leaves })
    }

    pub(crate) fn vdev(&self) -> u64 {
        self.vdev
    }

    /// The group that is being written has the vdev leave, or begin to.
    fn leaves(&self) {
        self.leaves.store(true, SeqCst);
    }
}

impl Drop for Passive {
    fn drop(&mut self) {
        if !self.leaves.load(SeqCst) {
            self.allocator.activate(self.vdev);
        }
    }
}

/// A leaf of a vdev that left, and what its labels say from then on.
struct Left {
    leaf: Arc<Vdev>,
    label: Option<NvList>,
}

/// The leaves of a top-level vdev that leaves the pool `before`; `config` is the vdev's.
fn leaves_left(before: &PoolConfig, top: &Arc<Vdev>, config: &NvList) -> Vec<Left> {
    let mut leaves = Vec::new();
    top.collect_leaves(&mut leaves);
    let left = leaves.into_iter().map(|leaf| {
        let of_leaf = config::find(config, leaf.guid());
        let label = of_leaf.and_then(|of_leaf| label_of_left(before, top.id(), of_leaf));
        Left { leaf, label }
    });
    left.collect()
}

/// A vdev that the group that is being written removes.
pub(crate) struct Gone {
    top: Arc<Vdev>,
    leaves: Vec<Left>,
    /// The tree that it was in, if it was read by way of that until now.
    tree: Option<Weak<VdevTree>>,
    /// Bytes that the mapping takes that it leaves.
    mapping: u64,
}

/// How often, and how long each time, readers of a vdev that has left are waited for.
const MOST_WAITS: u32 = 600;
const WAIT: Duration = Duration::from_millis(50);
/// How long devices that have left are waited for until they have their labels.
const PATIENCE: Duration = Duration::from_secs(30);

impl Shared {
    /// Has what is left to be done about vdevs that have left done by a thread. The group is on disk.
    pub(crate) fn settle_later(self: &Arc<Self>) {
        if self.gone.lock().is_empty() {
            return;
        }
        if self.options.deterministic {
            return self.settle_gone();
        }
        let theirs = self.clone();
        let settle = move || theirs.disk.store.alarm().guard("removed", || theirs.settle_gone());
        let spawned = std::thread::Builder::new().name("removed".into()).spawn(settle);
        if let Err(e) = spawned {
            tracing::warn!("no thread to let go of devices: {e}");
        }
    }

    /// Tells of vdevs that have left, in groups that are on disk, and lets go of their devices, whose labels say so. When this
    /// returns it is done, whichever thread did it. Readers and devices that do not answer are waited for a while: a thread
    /// that still writes labels then has nothing but its own device, which is no longer of the pool.
    pub(crate) fn settle_gone(&self) {
        let _alone = self.settling.lock();
        let (gone, mut told) = (std::mem::take(&mut *self.gone.lock()), Vec::new());
        for Gone { top, leaves, tree, .. } in gone {
            let view = self.view();
            let removed = Sysevent { vdev: Some(&top), ..Sysevent::of_pool("vdev_remove_dev") };
            removed.post(view.store());
            // Readers that began by way of it end first.
            let read = || tree.as_ref().is_some_and(|tree| tree.strong_count() > 0);
            for _ in 0..MOST_WAITS {
                if !read() {
                    break;
                }
                std::thread::sleep(WAIT);
            }
            for left in leaves {
                left.leaf.set_leaving(true);
                let idle = self.is_let_go(&left.leaf);
                match self.options.deterministic {
                    true => let_go(&Arc::downgrade(view.devices()), left, idle),
                    false => told.push(let_go_apart(&view, left, idle)),
                }
            }
        }
        let begun = Instant::now();
        for done in told {
            let rest = PATIENCE.saturating_sub(begun.elapsed());
            if done.recv_timeout(rest) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("a device that has left the pool does not answer");
            }
        }
    }
}

/// As [`let_go`], by a thread that keeps nothing else of the pool. What this returns hangs up when that is done.
fn let_go_apart(view: &Pool, left: Left, idle: bool) -> Receiver<()> {
    let (done, told) = mpsc::channel::<()>();
    let (devices, alarm) = (Arc::downgrade(view.devices()), view.store().alarm());
    let work = move || {
        alarm.guard("labels", || let_go(&devices, left, idle));
        drop(done);
    };
    if let Err(e) = std::thread::Builder::new().name("labels".into()).spawn(work) {
        tracing::warn!("no thread to let go of a device: {e}");
    }
    told
}

/// Lets go of a device that has left. `idle`: it has no request any more where nothing is allocated; else its labels stay, so that
/// no other pool takes it meanwhile.
fn let_go(devices: &Weak<DeviceSet>, Left { leaf, label }: Left, idle: bool) {
    // A device that is out of use may be another pool's by now, or hang.
    let device = leaf.device().filter(|_| idle && leaf.writable());
    if let (Some(device), Some(label)) = (device, &label)
        && let Err(error) = init_labels(device.as_ref(), label)
    {
        tracing::warn!(path = %device.path().display(), %error, "the labels stay");
    }
    leaf.retire();
    // The pool may be closed by now.
    let Some(devices) = devices.upgrade() else { return };
    devices.forget(leaf.guid());
    if config::flag(leaf.config(), "is_spare")
        && let Some(path) = config::path(leaf.config())
    {
        devices.share(leaf.guid(), path);
    }
}

impl Disk {
    /// The vdevs that are allocated from in the pool that is on disk once the group that is being written is.
    pub(crate) fn tops(&self) -> Vec<u64> {
        let removed = self.removed.lock();
        let tops = self.allocator.groups().map(|group| group.vdev());
        tops.filter(|top| removed.iter().all(|gone| gone.top.id() != *top)).collect()
    }

    /// The group that removes vdevs is on disk: nothing looks for space there any more. Returns them, and the bytes that
    /// their mappings take.
    pub(crate) fn let_removed_go(&self) -> (Vec<Gone>, u64) {
        let gone = std::mem::take(&mut *self.removed.lock());
        for Gone { top, .. } in &gone {
            self.allocator.remove_vdev(top.id());
            self.loader.remove_vdev(top.id());
        }
        let mappings: u64 = gone.iter().map(|gone| gone.mapping).sum();
        (gone, mappings)
    }
}
