//! Sync tasks (`dsl_sync_task`): functions that change the MOS, run by the sync thread in the first pass.
//!
//! A task checks and changes in one go, on the pending MOS, after the datasets of its transaction
//! group were written. So it sees everything that happened before, and nothing can come between
//! its checks and its changes.
//!
//! A task is done whole or not at all. If it refuses, or what it needs cannot be read, all that it
//! changed is taken back ([`OpenObjectSet::undo_change`]), blocks that it wrote are freed, and the group
//! goes on without it. What is changed in memory besides waits until the change is kept ([`SyncContext::when_kept`]). Only if something cannot be written ([`DslWriteError::Fatal`]) the group fails.
//!
//! Invariant: a task adds to what tasks before it leave to the group (blocks to be freed, blocks that were written, moves), and takes nothing
//! of that away.

use super::datasets::Datasets;
use super::error::EngineError;
use super::policy::{Abilities, Policy};
use super::sink::Sink;
use super::space::pool_space;
use super::txg::TxState;
use super::{Disk, accounting};
use crate::space_write::SpaceMaps;
use cenote_dmu::write::{OpenObjectSet, RawRoot, WriteError};
use cenote_dsl::write::{DslWriteError, Tx};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_format::invariant;
use cenote_pool::config_write::PoolConfig;
use cenote_pool::version;
use cenote_store::Store;
use cenote_store::alloc::{Allocator, Class};
use cenote_store::keys::LoadedKey;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How often a caller whose task has not run looks whether the pool is suspended.
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);

/// What a sync task works on.
pub struct SyncContext<'a> {
    /// The pending MOS.
    pub tx: Tx<'a>,
    /// The pool's config. A task that changes it sets [`SyncContext::config_changed`].
    pub config: &'a mut PoolConfig,
    /// The config and all labels are to be written.
    pub config_changed: bool,
    pub(super) maps: &'a mut SpaceMaps,
    pub(super) disk: &'a Disk,
    /// Datasets that are open for writing; none while a pool is created.
    pub(super) datasets: Option<&'a Datasets>,
    pub(super) abilities: Abilities,
    /// Blocks that tasks wrote for datasets.
    pub(super) born: Mutex<Vec<BlockPointer>>,
    /// What the change that is being made does once it is kept.
    pub(super) when_kept: Vec<WhenKept>,
}

/// What is done besides the MOS and the config, neither of which undoes it.
pub(super) type WhenKept = Box<dyn FnOnce() + Send>;

/// How much of the space that is kept back (`spa_get_slop_space`) a change may use
/// (`zfs_space_check_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceCheck {
    /// None: the change adds something, such as a dataset.
    Normal,
    /// Half of it: the change alters what is there.
    Reserved,
    /// All: the change frees space. Beside a checkpoint three quarters (`ZFS_SPACE_CHECK_DESTROY`): it gives nothing
    /// back then, and to discard the checkpoint takes the rest.
    Nothing,
}

/// Bytes that a changed block of the MOS is reckoned at (`DST_AVG_BLKSHIFT`), three times over.
const BYTES_PER_BLOCK: u64 = 3 * (16 << 10);

impl SyncContext<'_> {
    /// Has `then` done once the change that is being made is kept, which may still fail when all else of it is done. So
    /// what cannot be undone belongs there.
    pub(super) fn when_kept(&mut self, then: impl FnOnce() + Send + 'static) {
        self.when_kept.push(Box::new(then));
    }

    /// Whether there is room for a change of `blocks` blocks of the MOS.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub fn has_room(&mut self, check: SpaceCheck, blocks: u64) -> cenote_dsl::write::Result<bool> {
        let Some(usable) = self.tx.usable else { return Ok(true) };
        let slop = pool_space(self.disk).slop();
        let kept = match check {
            SpaceCheck::Normal => 0,
            SpaceCheck::Reserved => slop / 2,
            SpaceCheck::Nothing if self.disk.allocator.checkpoint().is_none() => return Ok(true),
            SpaceCheck::Nothing => slop - slop / 4,
        };
        let deferred = self.disk.allocator.figures(Class::Normal).deferred;
        let used = cenote_dsl::write::pool::used(&mut self.tx)?;
        let needed = used.saturating_add(blocks.saturating_mul(BYTES_PER_BLOCK));
        Ok(needed <= usable.saturating_add(kept).saturating_sub(deferred))
    }

    /// Where space comes from. For simulations of how a pool ages: extents that a task allocates
    /// there in [`Tx::txg`] and frees again go to the space maps as those of blocks do, but no block
    /// pointer refers to them.
    pub fn allocator(&self) -> &Arc<Allocator> {
        &self.disk.allocator
    }

    /// Makes sure that the dataset `ds_obj`, which is to be destroyed, is not in use any more: it is not held or
    /// open for writing, and cannot be held or opened.
    ///
    /// # Errors
    /// `Busy`: somebody has.
    pub fn retire(&mut self, ds_obj: u64) -> cenote_dsl::write::Result<()> {
        match self.datasets.is_none_or(|datasets| datasets.retire(ds_obj)) {
            true => Ok(()),
            false => Err(DslWriteError::Busy),
        }
    }

    /// Makes the object set of the new head `ds_obj`: `fill` puts into it what every object set of
    /// its kind has, which is written as metadata of a dataset with so many `copies` is, and protected by `key` if there is
    /// one.
    ///
    /// # Errors
    /// Those of `fill`; a device failed.
    pub fn create_objset(
        &mut self,
        ds_obj: u64,
        kind: ObjsetType,
        copies: usize,
        key: Option<Arc<LoadedKey>>,
        fill: impl FnOnce(&mut OpenObjectSet) -> Result<(), WriteError>,
    ) -> cenote_dsl::write::Result<()> {
        let store = self.tx.mos.synced().store().clone();
        let os = OpenObjectSet::create(store.clone(), ds_obj, kind)?;
        let os = os.with_small_root(self.config.version < version::OWNERS);
        // Only while it is made: it is opened with its key like others.
        let mapped = key.as_ref().map(|key| Mapped::new(&store, ds_obj, key));
        let mut os = os.protected_by(key.clone());
        fill(&mut os)?;
        let counted = kind == ObjsetType::Zfs && self.config.version >= version::OWNERS;
        let written = self.write_objset((ds_obj, os), copies, counted);
        drop(mapped);
        written
    }

    /// Makes the object set of the new head `ds_obj` as a raw stream says.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn create_raw_objset(
        &mut self,
        ds_obj: u64,
        kind: ObjsetType,
        copies: usize,
        root: RawRoot,
    ) -> cenote_dsl::write::Result<()> {
        let store = self.tx.mos.synced().store().clone();
        let os = OpenObjectSet::create(store, ds_obj, kind)?.created_raw(root);
        self.write_objset((ds_obj, os), copies, false)
    }

    /// Writes the object set of a new head. What owners use is `counted` from the start.
    fn write_objset(
        &mut self,
        (ds_obj, os): (u64, OpenObjectSet),
        copies: usize,
        counted: bool,
    ) -> cenote_dsl::write::Result<()> {
        let policy = Policy::of_new(copies);
        let tree = self.disk.tree();
        let sink = Sink {
            writer: &self.disk.writer,
            tree: &tree,
            policy: &policy,
            abilities: self.abilities,
            pass: 1,
            log: None,
            dedup: None,
            born: Some(&self.born),
            early: None,
        };
        let mut os = os.into_syncing();
        match counted {
            true => accounting::sync_new(&mut self.tx, &mut os, ds_obj, &sink),
            false => accounting::sync_dataset(&mut self.tx, &mut os, ds_obj, &sink),
        }
    }
}

/// The mapping of an object set that is being made to its key.
struct Mapped<'a>(&'a Store, u64);

impl<'a> Mapped<'a> {
    fn new(store: &'a Store, ds_obj: u64, key: &Arc<LoadedKey>) -> Mapped<'a> {
        store.keys().map(ds_obj, key);
        Mapped(store, ds_obj)
    }
}

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        self.0.forget_key_of(self.1);
    }
}

/// The state before a task, besides the MOS.
struct Before {
    config: PoolConfig,
    config_changed: bool,
    frees: usize,
    born: usize,
    moves: usize,
}

impl SyncContext<'_> {
    /// Makes a change whole or not at all: it is kept if `is_done` says so.
    fn whole<T>(
        &mut self,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T>,
        is_done: impl Fn(&T) -> bool,
    ) -> cenote_dsl::write::Result<T> {
        let left = self.when_kept.len();
        invariant!(left == 0, "a task begins, and {left} others have not done what follows them");
        let before = Before {
            config: self.config.clone(),
            config_changed: self.config_changed,
            frees: self.tx.frees.len(),
            born: self.born.lock().len(),
            moves: self.tx.moves.len(),
        };
        self.tx.mos.begin_change();
        let done = change(self).and_then(|done| {
            if is_done(&done) {
                self.tx.mos.check_change()?;
            }
            Ok(done)
        });
        match &done {
            Ok(done) if is_done(done) => {
                self.tx.mos.keep_change();
                self.when_kept.drain(..).for_each(|then| then());
            }
            _ => self.undo(before),
        }
        done
    }

    fn undo(&mut self, before: Before) {
        self.when_kept.clear();
        self.tx.mos.undo_change();
        *self.config = before.config;
        self.config_changed = before.config_changed;
        let (frees, then) = (self.tx.frees.len(), before.frees);
        invariant!(frees >= then, "{frees} blocks are to be freed after a task, {then} before it");
        self.tx.frees.truncate(then);
        let (moves, then) = (self.tx.moves.len(), before.moves);
        invariant!(
            moves >= then,
            "{moves} moves are to be followed after a task, {then} before it"
        );
        self.tx.moves.truncate(then);
        let mut born = self.born.lock();
        let (written, then) = (born.len(), before.born);
        invariant!(written >= then, "tasks wrote {written} blocks, and {then} before the last one");
        let born = born.split_off(then);
        self.tx.frees.extend(born.into_iter().filter(|bp| !bp.is_hole() && !bp.is_embedded()));
    }
}

/// A task that waits for its turn. Returns whether the group may go on.
pub(super) type Task = Box<dyn FnOnce(&mut SyncContext<'_>) -> Result<(), DslWriteError> + Send>;

/// Whether the group may go on after what came of a task.
fn fatal<T>(done: &cenote_dsl::write::Result<T>) -> Result<(), DslWriteError> {
    match done {
        Err(DslWriteError::Fatal(e)) => Err(WriteError::Suspended(e.to_string()).into()),
        _ => Ok(()),
    }
}

/// When in its group a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Before anything else of the group (`dsl_early_sync_task`).
    First,
    /// After the datasets were written.
    Usual,
}

/// Refuses a change of a pool to which nothing is written, for now or any more.
fn refuse_unless_open(tx: &TxState) -> Result<(), EngineError> {
    let why = tx.closed().or_else(|| tx.held()).or_else(|| tx.not_begun());
    why.map_or(Ok(()), |why| Err(EngineError::Suspended(why)))
}

/// A task that was put into a queue, as its caller has it.
struct Put<T> {
    /// The first one to set it decides: the sync thread begins the task, or the caller gives it up.
    decided: Arc<AtomicBool>,
    /// Told the task's group and outcome.
    told: mpsc::Receiver<(u64, cenote_dsl::write::Result<T>)>,
}

impl<T> Put<T> {
    /// Waits for the task's group to be on disk. See [`Queue::run`].
    fn wait(self, tx: &TxState) -> Result<T, EngineError> {
        let why = || tx.closed().or_else(|| tx.held());
        let suspended = || EngineError::Suspended(why().unwrap_or_default());
        let (txg, done) = loop {
            match self.told.recv_timeout(LOOK_TIMEOUT) {
                Ok(told) => break told,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(why) = why()
                        && !self.decided.swap(true, Ordering::SeqCst)
                    {
                        return Err(EngineError::Suspended(why));
                    }
                }
                // The task was dropped, in a group that failed: the sync thread is about to say why.
                Err(RecvTimeoutError::Disconnected) => {
                    tx.wait_closed();
                    return Err(suspended());
                }
            }
        };
        let done = done?;
        tx.wait_for(txg)?;
        Ok(done)
    }
}

/// Tasks that wait.
#[derive(Default)]
pub(crate) struct Queue {
    first: Mutex<VecDeque<Task>>,
    waiting: Mutex<VecDeque<Task>>,
}

impl Queue {
    /// See [`super::Engine::sync_task`].
    ///
    /// Of a suspended pool a task that has not begun is given up, and never made. One that has run gets on disk when the
    /// pool goes on: this waits for that, or until the pool is given up. So the caller always does what follows it.
    pub fn run<T: Send + 'static>(
        &self,
        tx: &TxState,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T> + Send + 'static,
        is_done: fn(&T) -> bool,
    ) -> Result<T, EngineError> {
        self.run_at(Turn::Usual, tx, change, is_done)
    }

    /// As [`Queue::run`], at this turn of its group.
    pub fn run_at<T: Send + 'static>(
        &self,
        turn: Turn,
        tx: &TxState,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T> + Send + 'static,
        is_done: fn(&T) -> bool,
    ) -> Result<T, EngineError> {
        refuse_unless_open(tx)?;
        let put = self.put(turn, change, is_done);
        tx.ask();
        put.wait(tx)
    }

    /// As [`Queue::run`], of the change that an imported pool begins with: no group is written before it is in the queue,
    /// so it comes before all else of the first one.
    pub fn begin_with<T: Send + 'static>(
        &self,
        tx: &TxState,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T> + Send + 'static,
    ) -> Result<T, EngineError> {
        if let Some(why) = tx.closed() {
            return Err(EngineError::Suspended(why));
        }
        let put = self.put(Turn::Usual, change, |_| true);
        tx.begin();
        tx.ask();
        put.wait(tx)
    }

    /// Puts a task into its queue.
    fn put<T: Send + 'static>(
        &self,
        turn: Turn,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<T> + Send + 'static,
        is_done: fn(&T) -> bool,
    ) -> Put<T> {
        let (tell, told) = mpsc::sync_channel(1);
        let decided = Arc::new(AtomicBool::new(false));
        let begins = decided.clone();
        let task: Task = Box::new(move |context| {
            if begins.swap(true, Ordering::SeqCst) {
                return Ok(());
            }
            let done = context.whole(change, is_done);
            // The caller learns why it failed from the group, which fails as a whole.
            let fatal = fatal(&done);
            let _ = tell.send((context.tx.txg, done));
            fatal
        });
        let queue = if turn == Turn::First { &self.first } else { &self.waiting };
        queue.lock().push_back(task);
        Put { decided, told }
    }

    /// See [`super::Engine::sync_task_later`].
    pub fn later(
        &self,
        tx: &TxState,
        change: impl FnOnce(&mut SyncContext<'_>) -> cenote_dsl::write::Result<()> + Send + 'static,
    ) -> Result<(), EngineError> {
        refuse_unless_open(tx)?;
        self.waiting.lock().push_back(Box::new(move |context| {
            let done = context.whole(change, |()| true);
            if let Err(e) = &done {
                tracing::warn!("a change that nobody waits for was not made: {e}");
            }
            fatal(&done)
        }));
        tx.note();
        Ok(())
    }

    /// The tasks that wait, for one transaction group: those that come first, and the others.
    pub fn take(&self) -> (VecDeque<Task>, VecDeque<Task>) {
        (std::mem::take(&mut self.first.lock()), std::mem::take(&mut self.waiting.lock()))
    }

    /// Nothing will be run any more: waiters are told.
    pub fn fail_all(&self, why: &str) {
        let (first, others) = self.take();
        let dropped = first.len() + others.len();
        if dropped > 0 {
            tracing::warn!("{dropped} changes are lost: {why}");
        }
    }
}
