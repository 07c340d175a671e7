//! Hot spares: as devices that join a vdev, and how they step in for devices that fail.
//!
//! After each transaction group, and after an import, spares are *called* ([`Shared::call_spares`]): if a device is out of
//! use, and not because someone took it offline, or is degraded for its errors, a spare that is not in use takes its place,
//! as OpenZFS's zfs-retire agent has it (`replace_with_spare`). A thread of its own does that, since it waits for groups. A spare that does not fit a device, or was taken away from
//! it, is not tried there again before the device has worked again, or the pool is imported again. One that cannot be had, as another
//! pool has it in use, is tried again after a while ([`REST`]).
//!
//! A distributed spare stands in for devices of its own dRAID vdev alone, for which it comes first (`spare_is_preferred`).
//!
//! What a device was out of use for may be over: then the spare goes back to the others when it is detached, or stays for
//! good when the device that it stands in for is.

use super::{Attach, is_distributed};
use crate::background::join_unless_held;
use crate::create::{NewDevice, SystemDevices, spare_label};
use crate::txg::TxState;
use crate::{Engine, EngineError, Shared};
use cenote_dmu::outside::Time;
use cenote_dmu::write::WriteError;
use cenote_dsl::write::DslWriteError;
use cenote_format::nvlist::NvList;
use cenote_pool::config;
use cenote_pool::devices::patiently;
use cenote_vdev::{Aux, Device, Vdev, VdevState, VdevTree, init_labels, read_labels};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of the thread.
const NAME: &str = "spares";

/// How long a spare is left alone that could not be had.
const REST: Duration = Duration::from_secs(10);

/// What has spares step in.
#[derive(Default)]
pub(crate) struct SpareCaller {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// No spare steps in any more.
    stopped: AtomicBool,
    /// Devices and the spares that do not fit them, by guids.
    refused: Mutex<HashSet<(u64, u64)>>,
    /// Spares that could not be had, by guid, and when they were last asked for.
    resting: Mutex<HashMap<u64, Time>>,
}

impl SpareCaller {
    /// Threads may begin again.
    pub fn allow(&self) {
        self.stopped.store(false, SeqCst);
    }

    /// As [`SpareCaller::stop`], where the pool may be suspended meanwhile.
    ///
    /// # Errors
    /// It is: the thread has not ended.
    pub fn try_stop(&self, tx: &TxState) -> Result<(), WriteError> {
        self.stopped.store(true, SeqCst);
        let Some(thread) = self.thread.lock().take() else { return Ok(()) };
        join_unless_held(thread, tx).map_err(|(thread, e)| {
            *self.thread.lock() = Some(thread);
            e
        })
    }

    /// Ends the thread, and lets no other begin.
    pub fn stop(&self) {
        self.stopped.store(true, SeqCst);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// Whether a device that is not in use is still the spare with this guid, or would have become a device of this pool.
fn is_free(device: &dyn Device, guid: u64, pool: u64) -> bool {
    let label = read_labels(device).ok().flatten().map(|labels| labels.config);
    label.is_some_and(|label| {
        let idle = config::number(&label, "state") == config::STATE_SPARE;
        config::number(&label, "guid") == guid
            && (idle || config::number(&label, "pool_guid") == pool)
    })
}

/// The labels of a spare say that pools share it, and that it is in use nowhere.
pub(super) fn return_to_others(device: &dyn Device, spare: &NvList) {
    if let Err(error) = init_labels(device, &spare_label(spare)) {
        tracing::warn!(path = %device.path().display(), %error, "the spare seems to be in use");
    }
}

/// Whether a leaf is out of use, and not because someone took it offline, or has had too many errors. One that was split off is
/// another pool's, and is about to leave.
fn has_failed(leaf: &Vdev) -> bool {
    let out = match leaf.state() {
        VdevState::CantOpen(why) => why != Aux::SplitPool,
        state => matches!(state, VdevState::Faulted | VdevState::Removed),
    };
    out || leaf.has_too_many_errors()
}

/// Whether a spare is to step in for a leaf.
fn wants_spare(tree: &VdevTree, leaf: &Vdev) -> bool {
    let parent = tree.parent_of(leaf.guid());
    let taken = parent.is_none_or(|p| matches!(p.kind(), "root" | "spare" | "replacing"));
    let top = tree.top_of(leaf.guid());
    has_failed(leaf) && !taken && top.is_some_and(|top| !top.is_log() && top.state().readable())
}

impl Shared {
    /// A spare that is taken out of a vdev does not step in again at once for the others below it. Returns devices and spares
    /// of which that is new, by guids.
    pub(super) fn let_spare_rest(&self, leaf: u64) -> Vec<(u64, u64)> {
        let tree = self.disk.tree();
        let is_spare = |v: &Arc<Vdev>| config::flag(v.config(), "is_spare");
        if tree.find(leaf).is_some_and(|v| is_spare(&v))
            && let Some(parent) = tree.parent_of(leaf)
        {
            let others = parent.children().iter().map(|other| (other.guid(), leaf));
            let mut refused = self.spares.refused.lock();
            return others.filter(|pair| refused.insert(*pair)).collect();
        }
        Vec::new()
    }

    /// The spare stays after all: what [`Shared::let_spare_rest`] returned is undone.
    pub(super) fn let_spare_work(&self, rests: &[(u64, u64)]) {
        self.spares.refused.lock().retain(|pair| !rests.contains(pair));
    }

    /// Devices and the spares that may step in for them, by guids.
    fn wanted(&self) -> Vec<(u64, u64)> {
        let (pool, tree) = (self.view(), self.disk.tree());
        let (clock, resting) = (&self.disk.outside.clock, self.spares.resting.lock());
        let rests = |spare: u64| resting.get(&spare).is_some_and(|when| clock.since(*when) < REST);
        let is_idle = |spare: &&NvList| {
            let guid = config::number(spare, "guid");
            tree.find(guid).is_none() && !rests(guid)
        };
        let mut idle: Vec<&NvList> = pool.spares().iter().filter(is_idle).collect();
        drop(resting);
        if idle.is_empty() || self.bars_spares() {
            return Vec::new();
        }
        // Those of the vdev itself leave the others for vdevs that have none.
        idle.sort_by_key(|spare| !is_distributed(spare));
        let wanting = tree.leaves().into_iter().filter(|leaf| wants_spare(&tree, leaf));
        let mut refused = self.spares.refused.lock();
        // One that works again may fail again.
        refused.retain(|(leaf, _)| tree.find(*leaf).is_some_and(|leaf| has_failed(&leaf)));
        let mut pairs = Vec::new();
        for leaf in wanting {
            let top = tree.top_of(leaf.guid()).map(|top| top.guid());
            let fits = |spare: &&&NvList| !is_distributed(spare) || spare.u64("top_guid") == top;
            let spares = idle.iter().filter(fits).map(|spare| config::number(spare, "guid"));
            pairs.extend(spares.map(|spare| (leaf.guid(), spare)));
        }
        pairs.retain(|pair| !refused.contains(pair));
        pairs
    }

    /// Whether no device joins a vdev now: beside a checkpoint, a rebuild or a removal. Spares step in once that is over.
    fn bars_spares(&self) -> bool {
        self.has_checkpoint() || self.is_rebuilding() || self.disk.writer.is_removing()
    }

    /// Has a thread put spares in the place of devices that failed, unless one does.
    pub(crate) fn call_spares(self: &Arc<Self>) {
        // Another device may have come for one that failed.
        self.look_for_missing();
        let mut thread = self.spares.thread.lock();
        let busy = thread.as_ref().is_some_and(|thread| !thread.is_finished());
        let stopped = self.spares.stopped.load(SeqCst) || self.options.deterministic;
        if busy || stopped || self.wanted().is_empty() {
            return;
        }
        let theirs = self.clone();
        let run = move || {
            theirs.disk.store.alarm().guard(NAME, || theirs.step_in());
        };
        let spawned = std::thread::Builder::new().name(NAME.into()).spawn(run);
        *thread = spawned.inspect_err(|e| tracing::warn!("no spare steps in: {e}")).ok();
    }

    /// Puts spares in the place of devices that failed.
    fn step_in(self: &Arc<Self>) {
        while let Some((beside, spare)) = self.wanted().first().copied() {
            if self.spares.stopped.load(SeqCst) {
                return;
            }
            let new = match self.spare(spare) {
                Ok(new) => new,
                Err(why) => {
                    let now = self.disk.outside.clock.now();
                    if self.spares.resting.lock().insert(spare, now).is_none() {
                        tracing::warn!(beside, spare, why, "the spare cannot be had for now");
                    }
                    continue;
                }
            };
            self.spares.resting.lock().remove(&spare);
            let put = match self.put_in(beside, spare, new) {
                Err(EngineError::Suspended(why)) => Ok(Some(why)),
                done => done.map(|()| None).map_err(|e| e.to_string()),
            };
            match put {
                Ok(None) => tracing::warn!(beside, spare, "a spare steps in"),
                // That says nothing of the spare: spares are called again when the pool goes on.
                Ok(Some(why)) => {
                    return tracing::warn!(beside, spare, why, "no spare steps in now");
                }
                // It began meanwhile.
                Err(_) if self.bars_spares() => return,
                Err(why) => {
                    tracing::warn!(beside, spare, why, "the spare does not step in");
                    self.spares.refused.lock().insert((beside, spare));
                }
            }
        }
    }
}

impl Shared {
    /// Puts a spare in the place of a device that failed. A distributed one is rebuilt by place, as OpenZFS's zed has it: all devices of
    /// the vdev write what goes into it. Where that is not possible, as a resilver is under way, it is resilvered.
    fn put_in(
        self: &Arc<Self>,
        beside: u64,
        spare: u64,
        new: NewDevice,
    ) -> Result<(), EngineError> {
        let distributed = is_distributed(&new.leaf);
        let put = |new, rebuild| {
            let attach = Attach { beside, new, replaces: true };
            self.attach(attach, |_, leaf| has_failed(leaf), rebuild)
        };
        match put(new, distributed) {
            Err(EngineError::Dsl(DslWriteError::Invalid(_))) if distributed => {
                put(self.spare(spare).map_err(DslWriteError::Invalid)?, false).map(drop)
            }
            done => done.map(drop),
        }
    }
}

impl Engine {
    /// Returns to others the spares that this pool was about to take, or had let go of, when it stopped: their labels say that it has
    /// them in use.
    pub(crate) fn return_spares(&self) {
        let pool = self.pool();
        let tree = pool.store().vdevs();
        let idle = |spare: &&NvList| {
            !is_distributed(spare) && tree.find(config::number(spare, "guid")).is_none()
        };
        for spare in pool.spares().iter().filter(idle) {
            let guid = config::number(spare, "guid");
            let says_ours = |device: &dyn Device| {
                let label = read_labels(device).ok().flatten().map(|labels| labels.config);
                label.is_some_and(|label| {
                    let of_pool = config::number(&label, "pool_guid") == pool.guid();
                    of_pool
                        && config::number(&label, "guid") == guid
                        && config::number(&label, "state") != config::STATE_SPARE
                })
            };
            let Some(path) = config::path(spare) else { continue };
            let opener = &self.shared.options.opener;
            if !opener.open(&path, false).is_ok_and(|device| says_ours(device.as_ref())) {
                continue;
            }
            pool.devices().forget(guid);
            match self.shared.open_spare(&path) {
                // Another pool may have taken it by now.
                Ok(device) if says_ours(device.as_ref()) => {
                    return_to_others(device.as_ref(), spare)
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "the spare seems to be in use")
                }
            }
            pool.devices().share(guid, path);
        }
    }

    /// The device of a spare of the pool that is not in use, given its guid, to join a vdev ([`Engine::attach`]).
    ///
    /// # Errors
    /// In the words of messages: there is no such spare; the pool has it in use; it cannot be opened.
    pub fn spare(&self, guid: u64) -> Result<NewDevice, String> {
        self.shared.spare(guid)
    }
}

impl Shared {
    /// Opens the device of a spare for writing.
    fn open_spare(&self, path: &Path) -> io::Result<Arc<dyn Device>> {
        let busy = |e: &io::Error| e.kind() == io::ErrorKind::ResourceBusy;
        let open = || self.options.opener.open(path, true);
        patiently(open, |opened| opened.as_ref().is_err_and(busy))
    }

    fn spare(&self, guid: u64) -> Result<NewDevice, String> {
        let pool = self.view();
        let is_it = |spare: &&NvList| config::number(spare, "guid") == guid;
        let spare = pool.spares().iter().find(is_it).ok_or("no such device in pool")?;
        let path = config::path(spare).ok_or("no such device in pool")?;
        let tree = pool.store().vdevs();
        if tree.find(guid).is_some() {
            return Err(format!("{} is busy", path.display()));
        }
        let ashift = config::number(spare, "ashift");
        if is_distributed(spare) {
            let device = tree.distributed_spare(spare).ok_or("no such device in pool")?;
            return Ok(NewDevice { leaf: spare.clone(), device, ashift });
        }
        // It is open for reading, as one that pools share.
        pool.devices().forget(guid);
        let device = self.open_spare(&path);
        pool.devices().share(guid, path.clone());
        let device = device.map_err(|e| match e.kind() {
            std::io::ErrorKind::ResourceBusy => format!("{} is busy", path.display()),
            _ => format!("{}: {e}", path.display()),
        })?;
        if !is_free(device.as_ref(), guid, pool.guid()) {
            // Pools share spares: another one has it by now.
            return Err(format!("{} is busy", path.display()));
        }
        let new = NewDevice { leaf: spare.clone(), device, ashift };
        Ok(new.for_sectors(&SystemDevices, 0))
    }
}
