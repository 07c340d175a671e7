//! Writing a pool: transaction groups, from the changes that enter them to the uberblock that makes
//! them durable.
//!
//! # Idea
//!
//! ```text
//!  LiveObjectSet ── assign ── open group        sync task ── queue
//!        │                                          │
//!        │  close: every open dataset hands over    │
//!        ▼  what it collected (quiesce)              ▼
//!  ┌──────────────────────── one sync ────────────────────────────┐
//!  │ pass 1   datasets ── accounting ── sync tasks ── destroying  │
//!  │ passes   frees ── space maps ── config ── MOS   until nothing │
//!  │                                                  is changed   │
//!  │ write    all that was collected                              │
//!  │ commit   labels ── flush ── uberblock ── labels               │
//!  └───────────────────────────────────────────────────────────────┘
//!        ▼
//!  a new view (Pool) ── datasets go on from what was written (sync_done) ── waiters wake up
//! ```
//!
//! An [`Engine`] owns a pool that is imported for writing. One thread writes transaction groups, one
//! after another; while it writes one, changes enter the next. What changes the MOS (creating a
//! dataset, a snapshot, a property) is a *sync task*: a function that runs in that thread, in the
//! first pass, on the pending MOS, and has the whole pool to itself.
//!
//! | room | what |
//! |---|---|
//! | `txg` | the open group, and how it is quiesced |
//! | `throttle` | how fast changes enter groups |
//! | `datasets` | datasets that are open for writing; how much each may write |
//! | `room` | what is left in the pool, and what of it is reserved for whom |
//! | `quota` | whether quotas let a change in |
//! | [`task`] | sync tasks |
//! | `expand` | vdevs that grow into devices that have grown |
//! | `reguid` | another guid for the pool |
//! | `background` | a thread that works while there is something to do: scans, removals |
//! | `reflow` | a device joins a RAID-Z vdev, whose sectors move |
//! | `removal` | vdevs, spares and cache devices that leave the pool |
//! | `outage` | devices that go out of use and come back |
//! | `autoreplace` | devices that come to the places of those that are away |
//! | `suspend` | what no device takes is held until the devices are back |
//! | `sync`, `sync_core` | one transaction group: its passes; what its thread owns |
//! | `diagnose` | devices that have had too many errors |
//! | `errlog` | what could not be read, into the pool's error logs |
//! | `commit` | config, uberblock, labels |
//! | `condense` | livelists, condensed in the background |
//! | `scan` | scrub and resilver |
//! | `accounting` | what users, groups and projects use |
//! | `dedup` | the tables of deduplicated blocks |
//! | `sink`, `policy` | what writes blocks; how they are written |
//! | [`open`], `adopt` | importing for writing; what pools of older software lack |
//! | `create_pool` | a new pool (`spa_create`) |
//! | [`create`] | devices made into a pool's, or added to one |
//! | [`change`] | datasets and their properties, changed |
//! | [`space_write`] | space maps, written |
//! | `add` | vdevs, spares and cache devices that join the pool |
//! | `checkpoint` | the pool's checkpoint: taken, discarded, gone back to |
//! | `capable` | what this software can write to |
//! | `error`, `features`, `space` | why nothing was done; uses of features; what blocks take |
//! | `freeze` | pools that are frozen for tests of intent logs |
//! | `intent_log` | logs that a crash left |
//! | [`figures`] | what each transaction group did |
//! | `receives` | datasets that are being received: which are in use, how far they are |
//! | `zil` | the intent logs of open datasets |
//! | `verify` | figures that are known from two sides, compared before a group gets on disk |
//!
//! # Why it ends, and what a crash leaves
//!
//! Writing the MOS allocates, which changes space maps, which are in the MOS. From the second pass
//! on blocks written in this group are rewritten in place if their size did not change, and frees
//! are put on a list for the next group (`sync_bplist`) instead of into space maps, unless all go
//! to one log ([`crate::space_write`]); from the eighth pass on blocks that were born in this group are
//! not compressed when they are written again, so that their sizes do not change. So there comes a pass that
//! changes nothing ([`MAX_PASSES`] bounds it).
//!
//! Nothing that the last uberblock reaches is overwritten: space freed in a group is allocated
//! again two groups later. So a crash at any write leaves the last committed group.
//!
//! Blocks are collected while the sync thread goes on with those that lead to them, and go to the devices in few waves, a small
//! group in one ([`Writer::write_behind`]). When no pass changes anything any more the sync thread waits for all of them, and
//! looks at what devices missed, which may take one pass more. Only then the group is committed.
//!
//! # Failure
//!
//! What a change needs and cannot be read fails that change, and nothing else: a sync task takes back what
//! it did ([`task`]), a dataset is not opened for writing unless all that its sync needs can be read
//! (`datasets`), blocks below an indirect block that cannot be read are leaked when they are freed, and
//! what was destroyed and cannot be found waits ([`cenote_dsl::write::free`]).
//!
//! If the group itself cannot be written, what it has in memory is worth nothing: the pool is *suspended*. It is so as
//! well where the program finds its own state wrong, in whatever thread ([`cenote_format::invariant`](mod@cenote_format::invariant)).
//! Nothing enters it any more, waiting changes fail, and the pool goes on when it is imported again. Where it is devices that
//! do not take a group, it is *held* instead (`suspend`): the pool is suspended until they are back, or it is given up. What
//! fails after the uberblock is on disk suspends the pool too, but the threads that waited for the group are told that
//! it is done.
//!
//! # Invariants
//!
//! - The MOS is changed by the sync thread only.
//! - A [`Pool`] view is of a group that is on disk.
//! - Locks are taken in the order of the table "Locks" in ARCHITECTURE.md: the core's lock is the sync thread's and the
//!   first; then come a place in the open group, a dataset's object set, its log, and last `TxState` and the queue of waiters.

mod accounting;
mod add;
mod adopt;
mod autoreplace;
mod background;
mod capable;
pub mod change;
mod checkpoint;
mod commit;
mod condense;
pub mod create;
mod create_pool;
mod datasets;
mod dedup;
mod diagnose;
mod errlog;
mod error;
mod expand;
mod features;
pub mod figures;
mod freeze;
mod gang_headers;
mod intent_log;
pub mod keys;
pub mod kstat;
mod long_hold;
mod mmp;
pub mod open;
mod outage;
#[cfg(feature = "planted")]
pub mod planted;
mod policy;
mod quota;
mod rebuild;
mod receives;
mod reclaim;
mod reflow;
mod reguid;
mod removal;
mod room;
mod scan;
mod sink;
mod space;
pub mod space_write;
mod surgery;
mod suspend;
mod sync;
mod sync_core;
pub mod task;
mod throttle;
pub mod tunables;
mod txg;
mod vacant;
mod vdev_props;
mod verify;
mod zil;

pub use capable::unreplayed;
pub use create_pool::CreateRequest;
pub use dedup::Prune;
pub use error::EngineError;
pub use figures::TxgFigures;
use intent_log::Unreplayed;
pub use intent_log::progress::LogProgress;
pub use intent_log::{NotReplayed, ReplayLog, Replayer};
pub use long_hold::{Holder, LongHold};
pub use outage::{OfflineError, TakeOut};
pub use removal::RemoveError;
pub use scan::ScanError;
pub use surgery::{Attach, Split, SplitOff};
pub use task::{SpaceCheck, SyncContext};
pub use vacant::{ActivityError, ActivityRequest, ActivityState};

use crate::space_write::Loader;
use autoreplace::Returns;
use background::Background;
use capable::Purpose;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::outside::{Clock, Outside};
use cenote_dmu::write::RawRoot;
use cenote_dsl::write::DslWriteError;
use cenote_format::invariant::caught;
use cenote_pool::Pool;
use cenote_pool::config::{STATE_DESTROYED, STATE_EXPORTED};
use cenote_pool::devices::Opener;
use cenote_pool::events::{self, PoolFailure, Sysevent};
use cenote_pool::props::{self, PropChange};
use cenote_store::alloc::{Allocator, Class, VdevInfo};
use cenote_store::write::Writer;
use cenote_store::{Current, Store};
use cenote_vdev::stats::Latencies;
use cenote_vdev::{Alarm, VdevTree};
use condense::Condenser;
use datasets::{Datasets, Entered};
use dedup::Dedup;
use figures::{Figure, History};
use freeze::Frozen;
use mmp::Mmp;
use parking_lot::{Mutex, RwLock};
use rebuild::Rebuilder;
use receives::Receives;
use reflow::Reflowed;
use removal::Gone;
use scan::Scanner;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use surgery::SpareCaller;
use sync::lacks_root_zap;
use sync_core::Core;
use task::Queue;
use txg::{TxState, Work};
use vacant::Vacant;
use zil::Scope;

/// Passes after which a sync has failed.
pub const MAX_PASSES: u32 = 64;

/// How an engine works. What is `None` is as its tunable says at the moment.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Longest time that changes wait in the open transaction group ([`tunables::TXG_TIMEOUT`]).
    pub txg_timeout: Option<Duration>,
    /// Most dirty bytes ([`tunables::DIRTY_DATA_MAX`]).
    pub dirty_max: Option<u64>,
    /// Blocks of destroyed datasets that are freed in one transaction group
    /// ([`tunables::ASYNC_BLOCK_MAX_BLOCKS`]).
    pub free_budget: Option<u64>,
    /// Allocators, which have metaslabs of their own ([`cenote_store::tunables::NUM_ALLOCATORS`]; one
    /// if `deterministic`). The first is for data, the second for metadata.
    pub allocators: Option<usize>,
    /// Transaction groups without use after which a metaslab is unloaded, for engines whose groups are
    /// not as far apart as time has it; `None`: as tunables say.
    pub unload_after: Option<u64>,
    /// Everything in the calling threads, in a fixed order: for tests that run from a seed.
    pub deterministic: bool,
    /// Where times, guids and salts come from.
    pub outside: Outside,
    /// How devices are opened that come back.
    pub opener: Opener,
    /// Told how far the replay of intent logs is, from the import on.
    pub logs: Arc<LogProgress>,
    /// Replays the intent log of a dataset that is opened.
    pub replay: Replayer,
}

impl EngineOptions {
    fn txg_timeout(&self) -> Duration {
        self.txg_timeout.unwrap_or_else(|| Duration::from_secs(tunables::TXG_TIMEOUT.get()))
    }

    fn free_budget(&self) -> u64 {
        self.free_budget.unwrap_or_else(|| tunables::ASYNC_BLOCK_MAX_BLOCKS.get())
    }
}

/// Where blocks go.
pub(crate) struct Disk {
    pub store: Arc<Store>,
    pub allocator: Arc<Allocator>,
    pub loader: Arc<Loader>,
    pub writer: Writer,
    /// Tables of deduplicated blocks.
    pub dedup: Arc<Dedup>,
    pub outside: Outside,
    /// Vdevs that the group that is being written adds.
    pub added: Mutex<Vec<(Class, VdevInfo)>>,
    /// Vdevs that grow with it, and by how many metaslabs.
    pub grown: Mutex<Vec<(u64, usize)>>,
    /// Vdevs that it removes.
    pub removed: Mutex<Vec<Gone>>,
    /// What it does of the expansion of a RAID-Z vdev.
    pub reflowed: Mutex<Option<Reflowed>>,
    /// Whether groups get on disk.
    pub frozen: Frozen,
    /// Heartbeats for other hosts.
    pub mmp: Arc<Mmp>,
}

/// What the sync thread and everybody else share.
pub(crate) struct Shared {
    pub tx_state: Arc<TxState>,
    pub view: RwLock<Arc<Pool>>,
    pub disk: Disk,
    pub datasets: Datasets,
    pub queue: Queue,
    pub history: History,
    pub receives: Arc<Receives>,
    /// What write calls of files and volumes took.
    pub write_calls: Latencies,
    pub condenser: Condenser,
    pub vacant: Vacant,
    pub scanner: Scanner,
    pub rebuilder: Rebuilder,
    /// The thread that mends what reads through views found wrong.
    pub mender: Background,
    pub spares: SpareCaller,
    /// What looks for devices that come to the places of those that are away.
    pub returns: Returns,
    #[cfg(feature = "planted")]
    pub stops: planted::Stops,
    /// Held by the thread that removes a device.
    pub removing: Mutex<()>,
    /// The thread that copies what a vdev holds that is being removed.
    pub evacuator: Background,
    /// When the pool last went on after it had been suspended.
    pub resumed_at: Mutex<Option<Instant>>,
    /// The thread that moves the sectors of a RAID-Z vdev that is being expanded, and what it waits for.
    pub reflower: Background,
    /// The thread that has objects of a store written anew.
    pub reclaimer: Background,
    pub reflow_waits: Mutex<Option<String>>,
    /// Whether no sectors move as long as the pool is imported.
    pub reflow_barred: AtomicBool,
    /// What the removal that is under way waits for.
    pub removal_waits: Mutex<Option<String>>,
    /// Vdevs that have left and whose devices are to be let go of, and the lock of the thread that does that.
    pub gone: Mutex<Vec<Gone>>,
    pub settling: Mutex<()>,
    pub options: EngineOptions,
    /// Intent logs that are to be replayed.
    pub unreplayed: Mutex<Unreplayed>,
}

impl Shared {
    /// Nothing can be written any more: those that wait are told, and what is in memory is worth nothing.
    pub fn suspend(&self, why: &str) {
        // It is listed once, whether it was held before or not.
        let was_held = self.tx_state.held().is_some();
        let post = || PoolFailure::Suspended.post(&self.disk.store);
        self.tx_state.fail(why.to_owned(), || {
            if !was_held {
                post()
            }
        });
        self.disk.tree().fence();
        self.disk.tree().suspension().abandon();
        self.queue.fail_all(why);
    }

    /// Has threads that no thread waits for suspend the pool if they find that its state is not what it must be.
    fn listen(self: &Arc<Self>) {
        for alarm in self.disk.alarms() {
            let shared = Arc::downgrade(self);
            alarm.listen(move |why| {
                if let Some(shared) = shared.upgrade() {
                    shared.suspend(why);
                }
            });
        }
    }

    /// From now on a group that no device takes is held. Before, it fails, and with it the import or creation that waits for
    /// it.
    fn arm(self: &Arc<Self>) {
        let shared = Arc::downgrade(self);
        let hold = move |why: &str| shared.upgrade().is_some_and(|shared| shared.hold(why));
        self.disk.tree().suspension().arm(hold);
    }

    /// The pool as the last transaction group left it.
    pub fn view(&self) -> Arc<Pool> {
        self.view.read().clone()
    }
}

impl Disk {
    /// The devices.
    pub fn tree(&self) -> Current<VdevTree> {
        self.store.vdevs()
    }

    /// Where threads say that they found the pool's state wrong.
    fn alarms(&self) -> [Arc<Alarm>; 2] {
        [self.store.alarm(), self.allocator.alarm().clone()]
    }

    /// Whether no alarm was sounded.
    ///
    /// # Errors
    /// One was: nothing that is in memory may get on disk.
    pub fn is_sound(&self) -> Result<(), EngineError> {
        let why = self.alarms().iter().find_map(|alarm| alarm.why().map(str::to_owned));
        why.map_or(Ok(()), |why| Err(EngineError::Suspended(why)))
    }
}

/// A pool that is imported for writing.
pub struct Engine {
    shared: Arc<Shared>,
    core: Arc<Mutex<Core>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// A suspended pool is resumed by one thread at a time.
    resuming: Mutex<()>,
}

impl Engine {
    fn start(shared: Arc<Shared>, core: Core) -> Arc<Engine> {
        let core = Arc::new(Mutex::new(core));
        let (theirs, its_core) = (shared.clone(), core.clone());
        let run = move || run(&theirs, &its_core);
        let thread = std::thread::Builder::new()
            .name("txg-sync".into())
            .spawn(run)
            .inspect_err(|e| {
                shared.tx_state.fail(format!("no thread for transaction groups: {e}"), || ());
            })
            .ok();
        Arc::new(Engine { shared, core, thread: Mutex::new(thread), resuming: Mutex::new(()) })
    }

    /// The pool as the last transaction group left it.
    pub fn pool(&self) -> Arc<Pool> {
        self.shared.view()
    }

    /// The clock that it was given.
    pub fn clock(&self) -> Clock {
        self.shared.disk.outside.clock.clone()
    }

    /// Opens the head dataset `ds_obj` for writing, or finds it open. The first one replays its intent log, if it
    /// has one.
    ///
    /// # Errors
    /// It is no head, cannot be read, or is one that this software cannot write; its intent log cannot be
    /// replayed.
    pub fn live(&self, ds_obj: u64) -> Result<Arc<LiveObjectSet>, EngineError> {
        if self.shared.receives.has(ds_obj) {
            return Err(DslWriteError::Busy.into());
        }
        match self.shared.datasets.enter(ds_obj)? {
            Entered::Open(live) => Ok(live),
            Entered::Opening(opening) => {
                self.replay_first(opening)?.load(&self.shared, Purpose::Use)
            }
        }
    }

    /// As [`Engine::live`], to receive into the dataset, which is incomplete.
    /// `raw` is what a raw stream says of its object set.
    pub(crate) fn live_to_receive(
        &self,
        ds_obj: u64,
        raw: Option<RawRoot>,
    ) -> Result<Arc<LiveObjectSet>, EngineError> {
        self.shared.datasets.open(&self.shared, ds_obj, Purpose::Receive(raw))
    }

    /// Forgets an open dataset, once all of it is on disk (`dmu_objset_disown`). Its users cannot change it any more.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn close(&self, ds_obj: u64) -> Result<(), EngineError> {
        // What waits for devices is not forgotten with its dataset.
        if let Some(why) = self.shared.tx_state.held() {
            return Err(EngineError::Suspended(why));
        }
        let log_closed = self.shared.datasets.close_log(&self.shared, ds_obj);
        self.shared.datasets.shut(ds_obj, true);
        if let Err(e) = self.sync() {
            if self.waits_for_devices() {
                self.shared.datasets.shut(ds_obj, false);
                self.shared.datasets.reopen_log(ds_obj);
            }
            return Err(e);
        }
        // It cannot be used any more, whatever became of its log: it must not be in the way of an order that gives the log up.
        self.shared.datasets.close(ds_obj);
        Ok(log_closed?)
    }

    /// Waits until everything that was changed so far is on disk.
    ///
    /// # Errors
    /// The pool is suspended: what was changed waits for its devices.
    pub fn sync(&self) -> Result<(), EngineError> {
        Ok(self.shared.tx_state.try_synced()?)
    }

    /// As [`Engine::sync`], for a moment, which is long enough if all devices answer: a command that looks goes on
    /// without the last changes while one hangs. Returns whether they are on disk.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn sync_for_a_moment(&self) -> Result<bool, EngineError> {
        Ok(self.shared.tx_state.synced_within(MOMENT)?)
    }

    /// Waits until everything that was changed so far in the dataset `ds_obj`, which is open for writing, is
    /// stable: in its intent log, or on disk (`zil_commit`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn commit(&self, ds_obj: u64) -> Result<(), EngineError> {
        Ok(self.shared.datasets.commit(&self.shared, ds_obj, Scope::All)?)
    }

    /// Waits until everything that was changed so far in `objects` of the dataset `ds_obj`, which is open for
    /// writing, is stable, with the names that lead to them.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn commit_objects(&self, ds_obj: u64, objects: &[u64]) -> Result<(), EngineError> {
        Ok(self.shared.datasets.commit(&self.shared, ds_obj, Scope::Objects(objects))?)
    }

    /// Runs `change` in syncing context and waits until its transaction group is on disk.
    ///
    /// # Errors
    /// Those of `change`; the pool is suspended.
    pub fn sync_task<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        self.sync_task_if(change, |_| true)
    }

    /// As [`Engine::sync_task`]; what `is_done` says no to is told, but nothing of it is done.
    ///
    /// # Errors
    /// Those of `change`; the pool is suspended.
    pub fn sync_task_if<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T> + Send + 'static,
        is_done: fn(&T) -> bool,
    ) -> Result<T, EngineError> {
        if let Some(why) = self.suspended() {
            return Err(EngineError::Suspended(why));
        }
        let suspension = self.shared.datasets.suspend_logs(&self.shared)?;
        let done = self.shared.queue.run(&self.shared.tx_state, change, is_done);
        drop(suspension);
        self.shared.datasets.begin_logs(&self.shared, false);
        done
    }

    /// As [`Engine::sync_task_if`], of a change that may find intent logs in object sets: they go on beside
    /// it. A change that makes an object set the base of another needs them to be empty.
    ///
    /// # Errors
    /// Those of `change`; the pool is suspended.
    pub fn sync_task_beside_logs<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T> + Send + 'static,
        is_done: fn(&T) -> bool,
    ) -> Result<T, EngineError> {
        self.shared.queue.run(&self.shared.tx_state, change, is_done)
    }

    /// Runs `change` in syncing context, in a transaction group that is written when there is other
    /// reason to, and does not wait for it (`dsl_sync_task_nowait`). Its outcome is not reported.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn sync_task_later(
        &self,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<()> + Send + 'static,
    ) -> Result<(), EngineError> {
        self.shared.queue.later(&self.shared.tx_state, change)
    }

    /// Sets properties of the pool, and enables features.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn set_properties(&self, changes: Vec<PropChange>) -> Result<(), EngineError> {
        let apply = move |context: &mut SyncContext<'_>| {
            for change in &changes {
                context.config_changed |= props::apply(&mut context.tx, context.config, change)?;
            }
            let lacks = lacks_root_zap(context.tx.mos, &context.config.vdev_tree)?;
            context.config_changed |= lacks.is_some();
            Ok(())
        };
        self.sync_task_beside_logs(apply, |()| true)?;
        events::learn(&self.pool());
        self.follow_autotrim();
        if self.shared.learn_multihost()? {
            // The uberblock of a further group says so as well.
            self.sync_task(|context| {
                context.config_changed = true;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Why nothing can be written, any more or until devices are back; `None`: all is well.
    pub fn suspended(&self) -> Option<String> {
        self.shared.tx_state.failure().or_else(|| self.shared.tx_state.held())
    }

    /// Where space comes from: to look at free space as it is in memory.
    pub fn allocator(&self) -> &Arc<Allocator> {
        &self.shared.disk.allocator
    }

    /// What the last transaction groups did, oldest first.
    pub fn figures(&self) -> Vec<TxgFigures> {
        self.shared.history.all()
    }

    /// The figures of all transaction groups since the pool was imported (or created) together:
    /// sums of what adds up, else those of the last group; zeros before the first group.
    pub fn totals(&self) -> Vec<(&'static Figure, u64)> {
        self.shared.history.totals()
    }

    /// Bytes that are not on disk yet.
    pub fn dirty(&self) -> u64 {
        self.shared.tx_state.dirty()
    }

    /// Writes the configuration anew, to all labels.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn write_config(&self) -> Result<(), EngineError> {
        let change = |context: &mut SyncContext<'_>| {
            context.config_changed = true;
            Ok(())
        };
        self.sync_task_beside_logs(change, |()| true)
    }

    /// Writes everything, marks the pool as exported (or destroyed) in its labels, and ends (`spa_export`, `spa_destroy`,
    /// `zfs_ioc_pool_export`, `spa_unload`, `spa_deactivate`). Nothing may be mounted.
    ///
    /// # Errors
    /// The pool is suspended: it then stays as the last transaction group left it.
    pub fn export(&self, destroyed: bool) -> Result<(), EngineError> {
        self.finish()?;
        let core = || self.core.lock().mark_exported(&self.shared, destroyed);
        let broken = |why: String| {
            self.shared.suspend(&why);
            Err(EngineError::Suspended(why))
        };
        self.shared.disk.store.l2arc().close();
        caught(core).unwrap_or_else(broken)?;
        self.shared.disk.mmp.stop();
        match destroyed {
            true => self.tell("pool_destroy", STATE_DESTROYED),
            false => self.tell("pool_export", STATE_EXPORTED),
        }
        Ok(())
    }

    /// As [`Engine::export`], but the labels stay those of a pool in use (`zpool export -F`).
    ///
    /// # Errors
    /// As for [`Engine::export`].
    pub fn export_as_in_use(&self) -> Result<(), EngineError> {
        self.finish()?;
        self.shared.disk.store.l2arc().close();
        self.shared.disk.mmp.stop();
        self.tell("pool_export", STATE_EXPORTED);
        Ok(())
    }

    /// Writes everything, and ends.
    fn finish(&self) -> Result<(), EngineError> {
        if let Some(why) = self.suspended() {
            return Err(EngineError::Suspended(why));
        }
        // A pool that is suspended by this goes on with all that it has.
        self.sync()?;
        let shared = &self.shared;
        if let Err(e) = shared.stop_background() {
            self.stays();
            return Err(e.into());
        }
        // A device that does not answer a request to trim it may write very well: what was changed does not wait for it.
        let idle = shared.vacant.stop();
        let closed = shared.datasets.close_logs(shared).map_err(EngineError::from);
        let written = self.sync();
        if let Err(e) = written.and(closed).and(idle) {
            self.stays();
            return Err(e);
        }
        shared.tx_state.end();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.shared.settle_gone();
        match self.suspended() {
            Some(why) => Err(EngineError::Suspended(why)),
            None => Ok(()),
        }
    }

    /// The pool cannot end: it goes on, at once or when it is resumed.
    fn stays(&self) {
        let shared = &self.shared;
        shared.spares.allow();
        shared.returns.background.allow();
        shared.scanner.background.allow();
        shared.rebuilder.background.allow();
        shared.mender.allow();
        shared.evacuator.allow();
        shared.reflower.allow();
        shared.reclaimer.allow();
        shared.condenser.allow();
        shared.datasets.reopen_logs();
        self.let_activities_go_on();
        // It may have been resumed since, when there was nothing that could go on.
        if let Err(e) = shared.goes_on() {
            tracing::warn!("what was put off is not done: {e}");
        }
    }

    /// Lists that something was done to the pool, which is in this state now.
    fn tell(&self, name: &str, state: u64) {
        Sysevent { state, ..Sysevent::of_pool(name) }.post(&self.shared.disk.store);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.hold_no_more();
        self.shared.disk.mmp.stop();
        self.shared.returns.background.stop();
        self.shared.spares.stop();
        self.shared.scanner.background.stop();
        self.shared.rebuilder.background.stop();
        self.shared.mender.stop();
        self.shared.evacuator.stop();
        self.shared.reflower.stop();
        self.shared.reclaimer.stop();
        self.shared.condenser.stop();
        if let Err(e) = self.shared.vacant.stop() {
            tracing::warn!("{e}");
        }
        self.shared.tx_state.end();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Shortest time after which a sync thread that has nothing to write looks for devices that failed.
const LEAST_REST: Duration = Duration::from_millis(200);
/// How long a command that looks waits for a transaction group.
const MOMENT: Duration = Duration::from_secs(3);

/// The sync thread.
fn run(shared: &Arc<Shared>, core: &Mutex<Core>) {
    let interval = || shared.options.txg_timeout();
    let looks = || (!shared.options.deterministic).then(|| interval().max(LEAST_REST));
    loop {
        match shared.tx_state.next_work(&interval, looks()) {
            Work::Sync => {}
            // A device may fail while the pool is only read, and may have lost what it is to be given again.
            Work::Look => {
                shared.look_at_devices();
                shared.call_spares();
                shared.mend_what_was_read();
                continue;
            }
            Work::End => break,
        }
        let txg = shared.tx_state.synced_txg();
        // Threads that wait are told, whatever happens.
        let sync = || Store::holding_reads(|| core.lock().sync(shared));
        let synced = caught(|| Store::vouch(sync));
        let why = match synced {
            Ok(Ok(())) => {
                shared.unreplayed.lock().let_go_in_time();
                shared.mend_what_was_read();
                continue;
            }
            Ok(Err(e)) => e.to_string(),
            Err(why) => why,
        };
        match shared.tx_state.synced_txg() > txg {
            true => tracing::error!("transaction group {} is on disk, but then: {why}", txg + 1),
            false => tracing::error!("transaction group {}: {why}", txg + 1),
        }
        shared.suspend(&why);
    }
    shared.tx_state.ended();
}
