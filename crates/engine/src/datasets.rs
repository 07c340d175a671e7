//! Datasets that are open for writing (`dp_dirty_datasets`), and what is left for each to write.
//!
//! A change reserves room for what it writes, enters the open group, and only then looks whether its dataset is closed: it
//! is told so before the group is charged. When the group is quiesced, the sync takes over what its datasets have collected,
//! in the order of their numbers. A dataset is in use while it has references beyond the table's own, the sync's and those
//! that are lent to the engine.
//!
//! Invariants: a group takes over what it writes once, and has it until it is on disk. No long hold is on a dataset that it has destroyed.

#[cfg(test)]
mod held_tests;
mod opening;
mod pending;

use super::capable::{self, Purpose};
use super::error::EngineError;
use super::long_hold::Holder;
use super::policy::{Abilities, Policy};
use super::room;
use super::txg::EXPORTED;
use super::zil::{self, Early, Log, Scope, Suspended, Suspension};
use super::{Shared, space};
use ahash::HashMap;
use cenote_dmu::ObjectSet;
use cenote_dmu::live::{Assigned, Cost, LiveObjectSet, TxAssign};
use cenote_dmu::write::intent::Intent;
use cenote_dmu::write::{OpenObjectSet, SyncingSet, WriteError};
use cenote_dsl::Dataset;
use cenote_dsl::write::dataset::check_synced;
use cenote_dsl::write::{DslWriteError, Tx, references};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::invariant;
use cenote_format::invariant::{caught, said};
use cenote_pool::Pool;
use cenote_pool::version;
use cenote_store::Store;
use cenote_store::alloc::ReadEpochs;
use cenote_vdev::waiting;
use parking_lot::{Condvar, Mutex};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use opening::{Entered, Opening};
use pending::{ASSIGNING, Charged, Left, OBJECT_BYTES, estimate};

/// The feature of pools that count references to cloned blocks.
const CLONING: &str = "block_cloning";

/// How long a thread waits for datasets that are being opened before it looks whether it may wait on.
const LOOK: Duration = Duration::from_millis(100);

/// Datasets that are open for writing.
#[derive(Default)]
pub(crate) struct Datasets {
    /// Held for moments: the hand-over of a group needs it, and a change that has no room.
    open: Mutex<Open>,
    /// A dataset that was being opened is open, or could not be; or one that was being closed is.
    opened: Condvar,
    /// Held for moments: every change needs it.
    left: Mutex<Left>,
    /// How the blocks of each are written, as far as its properties could be read.
    policies: Mutex<HashMap<u64, Policy>>,
    /// What the pool's features allowed the last group.
    abilities: Mutex<Option<Abilities>>,
    logs: Suspended,
    /// Groups, not on disk yet, in which blocks of logs were allocated.
    log_groups: Mutex<BTreeSet<u64>>,
    #[cfg(feature = "planted")]
    pub planted: crate::planted::Later,
}

/// See [`Datasets`].
#[derive(Default)]
struct Open {
    sets: HashMap<u64, (Arc<LiveObjectSet>, Arc<DatasetTx>)>,
    /// Datasets that a thread is opening, which reads devices, and may replay an intent log.
    opening: HashSet<u64>,
    /// Datasets without a user that are being closed, and were open: threads that want to open them wait.
    closing: HashSet<u64>,
    /// The ones among those that are being opened whose intent logs are being replayed.
    replaying: HashSet<u64>,
    /// Those whose changes are being written.
    quiesced: HashSet<u64>,
    /// Those that are destroyed in the group that is being written: the view still has them.
    retired: HashSet<u64>,
    /// Those with long holds, and what each of these is for; no list is empty.
    held: HashMap<u64, Vec<Arc<Holder>>>,
    /// Redaction lists that are being made. Each has one maker, and a long hold.
    making: HashSet<u64>,
    /// Snapshots whose keys are in use beside the heads', and how often ([`KeyUse`](crate::keys::KeyUse)); no count is 0.
    keyed: HashMap<u64, usize>,
}

impl Open {
    /// Whether a dataset is open for writing, or is being opened.
    fn in_use(&self, ds_obj: u64) -> bool {
        // One reference is ours, one that of the sync which writes it.
        let ours = 1 + usize::from(self.quiesced.contains(&ds_obj));
        self.opening.contains(&ds_obj)
            || self.sets.get(&ds_obj).is_some_and(|(live, handle)| {
                let lent = handle.lent.load(Ordering::SeqCst);
                Arc::strong_count(live) > ours + lent
            })
    }

    fn lend<'a>(&self, datasets: &'a Datasets, ds_obj: u64) -> Option<Lent<'a>> {
        let (live, handle) = self.sets.get(&ds_obj)?;
        handle.lent.fetch_add(1, Ordering::SeqCst);
        Some(Lent { datasets, live: Some(live.clone()), handle: handle.clone() })
    }
}

/// An open dataset that the engine itself has to do with for a while: it is no user, in whose way nothing may be done.
struct Lent<'a> {
    datasets: &'a Datasets,
    /// Until this is dropped.
    live: Option<Arc<LiveObjectSet>>,
    handle: Arc<DatasetTx>,
}

impl Lent<'_> {
    /// Does `work` with its log.
    fn with<T>(&self, work: impl FnOnce(&Arc<LiveObjectSet>, &Log) -> T) -> Option<T> {
        self.live.as_ref().map(|live| work(live, &self.handle.log))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let (open, mut lost) = (self.datasets.open.lock(), false);
        let lent = self.handle.lent.load(Ordering::SeqCst);
        // In one step, for those that count.
        match lent.checked_sub(1) {
            Some(left) => self.handle.lent.store(left, Ordering::SeqCst),
            None => lost = true,
        }
        let last = self.live.take().and_then(Arc::into_inner);
        drop(open);
        drop(last);
        if lost {
            self.handle.panicked(&said(format_args!("a dataset comes back that was not lent")));
        }
    }
}

/// What a dataset asks before it is changed.
struct DatasetTx {
    shared: Weak<Shared>,
    readers: Arc<ReadEpochs>,
    /// Bytes that the smallest block takes.
    least_block: u64,
    /// The dataset was closed: its users cannot change it any more.
    closed: AtomicBool,
    /// How many references to it are the engine's own ([`Lent`]); changed with the table's lock held.
    lent: AtomicUsize,
    log: Log,
}

impl TxAssign for DatasetTx {
    fn changed(&self, txg: u64, intent: Intent) {
        self.log.note(txg, intent);
    }

    fn readers(&self) -> Arc<ReadEpochs> {
        self.readers.clone()
    }

    fn assign(&self, objset: u64, cost: &Cost, dirty: &AtomicU64) -> Result<Assigned, WriteError> {
        let ended = || WriteError::Suspended(EXPORTED.into());
        let shared = self.shared.upgrade().ok_or_else(ended)?;
        let bytes = estimate(cost);
        shared.datasets.reserve(&shared, objset, (cost, bytes), dirty)?;
        let most = cost.write.saturating_add(cost.objects.saturating_mul(OBJECT_BYTES));
        let assigned = shared.tx_state.assign(most, cost.frees).and_then(|held| {
            // Checked after the group is held: closing a dataset waits for changes that hold a group, and not for
            // those that wait for one.
            match self.closed.load(Ordering::SeqCst) {
                true => Err(WriteError::Suspended("the dataset was closed".into())),
                false => Ok(held),
            }
        });
        let tx_hold = match assigned {
            Ok(tx_hold) => tx_hold,
            Err(e) => {
                shared.datasets.give_back(&shared, (ASSIGNING, objset), bytes);
                return Err(e);
            }
        };
        let txg = tx_hold.txg;
        shared.datasets.charge(&shared, (txg, objset), bytes);
        let least = cost.objects.saturating_mul(OBJECT_BYTES);
        Ok(Assigned::settling(txg, Charged::new(tx_hold, shared, objset, least, bytes)))
    }

    fn least_block(&self) -> u64 {
        self.least_block
    }

    fn panicked(&self, why: &str) {
        tracing::error!("{why}");
        if let Some(shared) = self.shared.upgrade() {
            shared.suspend(why);
        }
    }

    fn wrote(&self, time: Duration) {
        if let Some(shared) = self.shared.upgrade() {
            shared.write_calls.add(time);
        }
    }

    fn counts_references(&self) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| shared.view().features().is_enabled(CLONING))
    }

    fn check_references(&self, blocks: &[BlockPointer]) -> Result<(), WriteError> {
        let ended = || WriteError::Suspended(EXPORTED.into());
        let shared = self.shared.upgrade().ok_or_else(ended)?;
        let view = shared.view();
        // Holes and embedded blocks have none.
        let counted = blocks.iter().filter(|bp| bp.dva(0).is_some()).copied();
        let counted: Vec<BlockPointer> = counted.collect();
        let tried = try_on(&shared, &view, |tx| tx.whole(|tx| references::add(tx, &counted)));
        tried.map_err(WriteError::from)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn wait_before_assign(&self) -> Result<(), WriteError> {
        let shared = self.shared.upgrade();
        let shared = shared.ok_or_else(|| WriteError::Suspended(EXPORTED.into()))?;
        shared.tx_state.wait_before_assign()
    }
}

/// Makes a change of the MOS that is forgotten at once: to see whether all that it needs can be read.
fn try_on(
    shared: &Shared,
    view: &Pool,
    change: impl FnOnce(&mut Tx<'_>) -> Result<(), DslWriteError>,
) -> Result<(), DslWriteError> {
    // Not the one that is being written.
    let mut mos = OpenObjectSet::open(view.mos().clone())?;
    let sizes = |bp: &BlockPointer| space::sizes(&shared.disk.tree(), bp);
    let txg = view.uberblock().txg + 1;
    let tx = Tx::new(&mut mos, txg, &shared.disk.outside, &sizes);
    change(&mut Tx { pool: view.name(), ..tx })
}

/// Reads a dataset that is not open (`dmu_objset_own`).
fn load(
    shared: &Arc<Shared>,
    ds_obj: u64,
    purpose: Purpose,
) -> Result<(Arc<LiveObjectSet>, Arc<DatasetTx>), EngineError> {
    let view = shared.view();
    let dataset = view.dsl().by_object(ds_obj)?;
    let dataset = dataset.filter(|d| d.is_head());
    let dataset = dataset.ok_or(DslWriteError::NotFound)?;
    let raw = match purpose {
        Purpose::Receive(raw) => raw,
        Purpose::Use | Purpose::Replay => None,
    };
    view.store().keys().set_raw(ds_obj, raw.is_some());
    if raw.is_none() {
        view.dsl().map_key(ds_obj, dataset.dir_obj)?;
    }
    let base = ObjectSet::open(view.store().clone(), ds_obj, dataset.ds.bp)?;
    // Before its log is looked at: what is encrypted is not opened without its key.
    let set = match raw {
        Some(root) => OpenObjectSet::open_raw(base.clone(), root)?,
        None => OpenObjectSet::open(base.clone())?,
    };
    capable::check_dataset(&view, &dataset, &base, purpose)?;
    shared.datasets.check_sync(shared, &view, &dataset, &base)?;
    let closed = AtomicBool::new(false);
    let readers = shared.disk.allocator.readers().clone();
    let least_block = room::least_block(&shared.disk.tree());
    let sa_xattrs = zil::may_have_sa_xattrs(&view, &dataset)?;
    let pool = (shared.datasets.logs.clone(), shared.disk.frozen.clone());
    // Software of older versions takes either form of a block only from then on.
    let slim = view.version() >= version::SLIM_LOGS;
    let log = Log::new(ds_obj, &base.phys().zil, pool, (sa_xattrs, slim), set.key().cloned());
    let (shared, lent) = (Arc::downgrade(shared), AtomicUsize::new(0));
    let handle = Arc::new(DatasetTx { shared, readers, least_block, closed, lent, log });
    Ok((LiveObjectSet::new(set, handle.clone()), handle))
}

/// Whether a dataset is read with a key of the encryption root `root`.
fn reads_with(store: &Store, ds_obj: u64, root: u64) -> bool {
    store.keys().of(ds_obj).is_some_and(|key| key.root() == root)
}

impl Datasets {
    /// Whether all that a sync of a dataset needs, besides what is in it, can be read.
    fn check_sync(
        &self,
        shared: &Shared,
        view: &Pool,
        dataset: &Dataset,
        base: &ObjectSet,
    ) -> Result<(), EngineError> {
        let policy = Policy::of(view.dsl(), dataset)?;
        try_on(shared, view, |tx| check_synced(tx, dataset.ds_obj, base.phys()))?;
        self.policies.lock().insert(dataset.ds_obj, policy);
        Ok(())
    }

    /// How the blocks of a dataset that is being synced are written. Should its properties have become
    /// unreadable, they are written as before.
    pub fn policy(&self, view: &Pool, dataset: &Dataset) -> Result<Policy, DslWriteError> {
        let mut policies = self.policies.lock();
        match Policy::of(view.dsl(), dataset) {
            Ok(policy) => {
                policies.insert(dataset.ds_obj, policy.clone());
                Ok(policy)
            }
            Err(why) => {
                tracing::warn!("properties of '{}': {why}", dataset.name);
                policies.get(&dataset.ds_obj).cloned().ok_or_else(|| why.into())
            }
        }
    }

    /// How the blocks of a dataset were written in the last group that wrote it; `None`: not known yet.
    pub fn last_policy(&self, ds_obj: u64) -> Option<(Policy, Abilities)> {
        Some((self.policies.lock().get(&ds_obj)?.clone(), (*self.abilities.lock())?))
    }

    /// Notes what the pool's features allow.
    pub fn set_abilities(&self, abilities: Abilities) {
        *self.abilities.lock() = Some(abilities);
    }

    /// What was written early of an open dataset.
    pub fn early(&self, ds_obj: u64) -> Option<Arc<Early>> {
        self.open.lock().sets.get(&ds_obj).map(|(_, handle)| handle.log.early().clone())
    }

    /// Whether a dataset is open for writing, or being opened.
    pub fn is_open(&self, ds_obj: u64) -> bool {
        let open = self.open.lock();
        open.sets.contains_key(&ds_obj) || open.opening.contains(&ds_obj)
    }

    /// The heads that are open for writing.
    pub fn open_heads(&self) -> Vec<u64> {
        self.open.lock().sets.keys().copied().collect()
    }

    /// Whether an open dataset is used, or held.
    pub fn is_used(&self, ds_obj: u64) -> bool {
        let open = self.open.lock();
        open.in_use(ds_obj) || open.held.contains_key(&ds_obj)
    }

    /// Does `work` while nothing is opened, unless a dataset is open, or being opened, or a snapshot in use, that is read with a key
    /// of the encryption root `root`.
    pub fn unless_open<T>(&self, store: &Store, root: u64, work: impl FnOnce() -> T) -> Option<T> {
        let open = self.open.lock();
        let mut all = open.sets.keys().chain(&open.opening).chain(open.keyed.keys());
        let used = all.any(|id| reads_with(store, *id, root));
        (!used).then(work)
    }

    /// Whether a snapshot whose key is in use is read with a key of the encryption root `root`.
    pub fn is_keyed(&self, store: &Store, root: u64) -> bool {
        self.open.lock().keyed.keys().any(|id| reads_with(store, *id, root))
    }

    /// The key of a snapshot is in use once more.
    pub fn use_key(&self, ds_obj: u64) {
        *self.open.lock().keyed.entry(ds_obj).or_default() += 1;
    }

    /// It is once less; false if it was not in use.
    pub fn let_key_go(&self, ds_obj: u64) -> bool {
        let mut open = self.open.lock();
        let Entry::Occupied(mut uses) = open.keyed.entry(ds_obj) else { return false };
        *uses.get_mut() -= 1;
        if *uses.get() == 0 {
            uses.remove();
        }
        true
    }

    /// Waits for a moment until no dataset is being opened that is read with a key of the encryption root `root`. Returns whether
    /// none is.
    pub fn wait_while_opened(&self, store: &Store, root: u64) -> bool {
        let mut open = self.open.lock();
        let is_opened = |open: &Open| open.opening.iter().any(|id| reads_with(store, *id, root));
        if is_opened(&open) {
            waiting::begins();
            self.opened.wait_for(&mut open, LOOK);
        }
        !is_opened(&open)
    }

    /// Keeps an open dataset from being changed any more; or, if it is not to be `closed`, no longer.
    pub fn shut(&self, ds_obj: u64, closed: bool) {
        if let Some((_, handle)) = self.open.lock().sets.get(&ds_obj) {
            handle.closed.store(closed, Ordering::SeqCst);
        }
    }

    /// Forgets an open dataset.
    pub fn close(&self, ds_obj: u64) {
        self.open.lock().sets.remove(&ds_obj);
        self.policies.lock().remove(&ds_obj);
    }

    /// Forgets a dataset that is destroyed in the group that is being written, unless it is held or has
    /// it open: its number may be another dataset's soon. Returns whether it is forgotten.
    pub fn retire(&self, ds_obj: u64) -> bool {
        let mut open = self.open.lock();
        if open.in_use(ds_obj) || open.held.contains_key(&ds_obj) {
            return false;
        }
        if let Some((_, handle)) = open.sets.remove(&ds_obj) {
            handle.log.retire();
        }
        open.retired.insert(ds_obj);
        true
    }

    /// Gives a dataset one more long hold, unless it is being written to or destroyed (`dsl_dataset_long_hold`).
    pub fn hold(&self, ds_obj: u64, holder: Arc<Holder>) -> bool {
        let mut open = self.open.lock();
        let free = !open.in_use(ds_obj)
            && !open.closing.contains(&ds_obj)
            && !open.retired.contains(&ds_obj);
        if free {
            open.held.entry(ds_obj).or_default().push(holder);
        }
        free
    }

    /// Takes this long hold away; false if the dataset had no such hold.
    pub fn release(&self, ds_obj: u64, holder: &Arc<Holder>) -> bool {
        let mut open = self.open.lock();
        let Entry::Occupied(mut held) = open.held.entry(ds_obj) else { return false };
        let Some(at) = held.get().iter().position(|h| Arc::ptr_eq(h, holder)) else { return false };
        held.get_mut().swap_remove(at);
        if held.get().is_empty() {
            held.remove();
        }
        true
    }

    /// Notes that a redaction list is being made; false: it is already.
    pub fn make(&self, list: u64) -> bool {
        self.open.lock().making.insert(list)
    }

    /// A redaction list is not being made any more; false: it was not.
    pub fn made(&self, list: u64) -> bool {
        self.open.lock().making.remove(&list)
    }

    /// Whether a dataset has a long hold.
    pub fn is_held(&self, ds_obj: u64) -> bool {
        self.open.lock().held.contains_key(&ds_obj)
    }

    /// What the long holds of a dataset are for.
    pub fn holders(&self, ds_obj: u64) -> Vec<Arc<Holder>> {
        self.open.lock().held.get(&ds_obj).cloned().unwrap_or_default()
    }

    /// What all long holds are for.
    pub fn all_holders(&self) -> Vec<Arc<Holder>> {
        self.open.lock().held.values().flatten().cloned().collect()
    }

    /// Takes over what every open dataset collected in group `txg`. No change holds it.
    pub fn quiesce(&self, txg: u64) -> Vec<(Arc<LiveObjectSet>, SyncingSet)> {
        let mut open = self.open.lock();
        let dirty = open.sets.values().map(|(live, _)| live).filter(|live| live.is_dirty());
        let mut quiesced: Vec<_> = dirty.map(|live| (live.clone(), live.quiesce())).collect();
        quiesced.sort_by_key(|(live, _)| live.id());
        let before = std::mem::take(&mut open.quiesced);
        invariant!(
            before.is_empty(),
            "group {txg} takes over datasets, and one before has {before:?}"
        );
        open.quiesced = quiesced.iter().map(|(live, _)| live.id()).collect();
        drop(open);
        let mut left = self.left.lock();
        for (live, set) in &quiesced {
            // A change of a few bytes writes a whole block.
            let known = left.pending.entry(txg).or_default().entry(live.id()).or_default();
            *known = (*known).max(set.dirty_bytes());
        }
        quiesced
    }

    /// The sync is done with what it took over: from here on a dataset that has no user is not in use.
    pub fn done_with(&self, lives: Vec<Arc<LiveObjectSet>>) {
        let mut open = self.open.lock();
        for id in lives.iter().map(|live| live.id()) {
            let was_there = open.quiesced.remove(&id);
            invariant!(was_there, "dataset {id} was written, and no group has taken it over");
        }
        let last: Vec<_> = lives.into_iter().filter_map(Arc::into_inner).collect();
        drop(open);
        drop(last);
    }

    /// Group `txg` is on disk.
    pub fn synced(&self, txg: u64) {
        {
            let mut open = self.open.lock();
            let held = open.retired.iter().find(|retired| open.held.contains_key(*retired));
            invariant!(
                held.is_none(),
                "dataset {held:?} was destroyed in group {txg}, and someone holds it"
            );
            open.retired.clear();
            open.sets.values().for_each(|(_, handle)| handle.log.synced(txg));
        }
        let mut left = self.left.lock();
        left.done(txg);
        // What is freed counts as deferred from now on.
        left.forget(0);
    }

    /// Group `txg` had nothing to be written: what its changes were taken to write is not pending any more.
    pub fn had_nothing(&self, txg: u64) {
        self.left.lock().done(txg);
    }

    /// Waits until what was changed in an open dataset is stable, as far as `scope` goes (`zil_commit`).
    pub fn commit(&self, shared: &Shared, ds_obj: u64, scope: Scope<'_>) -> Result<(), WriteError> {
        let found = self.lend(ds_obj);
        match &found {
            Some(lent) => {
                let commit = || lent.with(|live, log| log.commit(shared, live, scope));
                caught(|| commit().unwrap_or(Ok(()))).unwrap_or_else(|why| {
                    let why = format!("intent log of dataset {ds_obj}: {why}");
                    tracing::error!("{why}");
                    shared.suspend(&why);
                    Err(WriteError::Suspended(why))
                })
            }
            // It was closed, which put all of it on disk.
            None => shared.tx_state.wait_synced(),
        }
    }

    /// Until what is returned is dropped, no log is written to; in the open group those that there are end
    /// (`zil_suspend`).
    pub fn suspend_logs(&self, shared: &Shared) -> Result<Suspension, WriteError> {
        let suspension = Suspension::new(&self.logs);
        let in_use = self.lend_all(|handle| handle.log.is_in_use());
        in_use
            .iter()
            .filter_map(|lent| lent.with(|live, log| log.empty(shared, live)))
            .collect::<Result<(), _>>()?;
        Ok(suspension)
    }

    /// Has the logs that a suspension ended, or `any`, begin in the open group. Does not wait for that.
    pub fn begin_logs(&self, shared: &Shared, any: bool) {
        let mut restarted = false;
        for lent in self.lend_all(|_| true) {
            let began = lent.with(|live, log| {
                // A log that does not begin now begins with the next commit.
                log.begin(shared, live, any).unwrap_or_else(|why| {
                    tracing::debug!("intent log of dataset {}: {why}", live.id());
                    false
                })
            });
            restarted |= began == Some(true);
        }
        if restarted {
            shared.tx_state.ask();
        }
    }

    /// Whether group `txg`, which is being written, leads to every log block that it allocated ([`Log::check`]).
    ///
    /// # Errors
    /// It does not: it may not get on disk.
    pub fn check_logs(&self, txg: u64) -> Result<(), WriteError> {
        self.open.lock().sets.values().try_for_each(|(_, handle)| handle.log.check(txg))
    }

    /// Ends the log of an open dataset in the open group.
    pub fn close_log(&self, shared: &Shared, ds_obj: u64) -> Result<(), WriteError> {
        let found = self.lend(ds_obj);
        found.and_then(|lent| lent.with(|live, log| log.close(shared, live))).unwrap_or(Ok(()))
    }

    /// As [`Datasets::close_log`], of all that are open.
    pub fn close_logs(&self, shared: &Shared) -> Result<(), WriteError> {
        let all = self.lend_all(|_| true);
        all.iter().filter_map(|lent| lent.with(|live, log| log.close(shared, live))).collect()
    }

    /// The log of a dataset that was to be closed, and stays open, may begin again.
    pub fn reopen_log(&self, ds_obj: u64) {
        if let Some((_, handle)) = self.open.lock().sets.get(&ds_obj) {
            handle.log.reopen();
        }
    }

    /// As [`Datasets::reopen_log`], of all that are open.
    pub fn reopen_logs(&self) {
        self.open.lock().sets.values().for_each(|(_, handle)| handle.log.reopen());
    }

    fn lend(&self, ds_obj: u64) -> Option<Lent<'_>> {
        self.open.lock().lend(self, ds_obj)
    }

    fn lend_all(&self, wanted: impl Fn(&DatasetTx) -> bool) -> Vec<Lent<'_>> {
        let open = self.open.lock();
        let wanted = open.sets.iter().filter(|(_, (_, handle))| wanted(handle));
        wanted.filter_map(|(ds_obj, _)| open.lend(self, *ds_obj)).collect()
    }

    /// Whether the log of an open dataset is written from this group on, and may not have extended
    /// attributes yet.
    pub fn lacks_sa_xattrs(&self, ds_obj: u64) -> bool {
        let handle = self.open.lock().sets.get(&ds_obj).map(|(_, handle)| handle.clone());
        handle.is_some_and(|handle| handle.log.lacks_sa_xattrs())
    }

    /// When group `txg` is on disk the log of an open dataset may have extended attributes.
    pub fn activates_sa_xattrs(&self, ds_obj: u64, txg: u64) {
        if let Some((_, handle)) = self.open.lock().sets.get(&ds_obj) {
            handle.log.activates_sa_xattrs(txg);
        }
    }

    /// What group `txg`, which is being written, does to the log of an open dataset ([`Log::sync`]).
    pub fn sync_log(&self, ds_obj: u64, txg: u64) -> Option<(ZilHeader, Vec<BlockPointer>)> {
        let handle = self.open.lock().sets.get(&ds_obj).map(|(_, handle)| handle.clone());
        handle?.log.sync(txg)
    }

    /// Blocks of a log were allocated in group `txg`, which is open.
    pub fn allocated_for_logs(&self, txg: u64) {
        self.log_groups.lock().insert(txg);
    }

    /// Whether blocks of logs were allocated in group `txg`, which is closed.
    pub fn has_log_blocks(&self, txg: u64) -> bool {
        let mut groups = self.log_groups.lock();
        let has = groups.remove(&txg);
        let before = groups.first().filter(|first| **first < txg);
        invariant!(
            before.is_none(),
            "group {txg} is written, and blocks of logs are in {before:?}"
        );
        has
    }
}
