//! Intent logs that a crash left.
//!
//! After a clean export the header of an object set still names the block that the next record would
//! have gone to. After a crash it names a chain of blocks; if all their records are in the dataset
//! already, there is nothing to replay. Such a log goes when the pool is imported, as it does when
//! OpenZFS mounts the dataset: a snapshot must not have one, for its clones would have the same.
//!
//! Blocks of a log are written in a group that is still open, so the blocks of the group that a crash took
//! are in no space map. The first group after the import claims them ([`cenote_dsl::zil::claim`]), before
//! it allocates anything else. Whatever is in a claimed log is allocated, records' data included, until
//! it is replayed, and what it clones has a reference more.
//!
//! A claimed log waits until its dataset is opened ([`Engine::live`]), also in further imports. The first thread that opens the dataset
//! replays the log: the dataset is opened for that alone, and once all is on disk the log is destroyed. Other threads that open the
//! dataset wait meanwhile ([`Opening`]), and no snapshot is taken of it. Logs of datasets that are about to be
//! opened are replayed several at once ([`Engine::replay_these_logs`]).
//!
//! A snapshot of a dataset whose log waits is of the state before it; where a part of the log was replayed no snapshot is taken. Its root block names the
//! log, which belongs to the head alone: no code looks for a log in a snapshot, and a clone of a snapshot gets no log ([`SyncContext::zero_intent_log`]).
//!
//! All logs are read before the first group, several at once, which also tells how much there is to
//! replay ([`progress`]). What was read is kept for the replay, within a bound ([`Kept`]), so that a block of a log
//! is read once; where nothing is opened it is let go.
//!
//! A log that cannot be replayed stays: one that has a record which cannot be applied, or that cannot be
//! read or claimed in full. Its dataset is not written to until the log is cleared by the dataset's name
//! ([`Engine::clear_intent_log`]). A log that was not claimed ends where bytes are wrong, but not where a
//! device fails: such a pool is not imported for writing.

use super::accounting;
use super::capable::{Left, Logs, Purpose};
use super::datasets::{Entered, Opening};
use super::policy::Policy;
use super::sink::Sink;
use super::{Engine, EngineError, SyncContext};
use cenote_dmu::ObjectSet;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{SyncingSet, WriteError};
use cenote_dsl::tunables::REPLAY_THREADS;
use cenote_dsl::write::{DslWriteError, Move, Result, references};
use cenote_dsl::zil::{self, Claim, Claimed, Item, Kept, NO_LOG, parallel};
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::dmu::ZilHeader;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::less;
use cenote_format::{ByteOrder, Bytes};
use cenote_pool::Pool;
use cenote_pool::status::{ReplayStage, ReplayStatus};
use cenote_store::alloc::{AllocError, Class, Extent};
use cenote_store::rangetree::RangeTree;
use cenote_store::{Bookmark, Store};
use parking_lot::Mutex;

use progress::LogProgress;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub mod progress;

/// So long what was read of logs at an import is kept for their replay, up to the next group then.
const KEEP_FOR: Duration = Duration::from_secs(60);

/// The blocks of a log that are in space maps, and those that it has references to. Of one that is not claimed,
/// `last` is the last group that was on disk when it was left.
fn allocated(store: &Arc<Store>, header: &ZilHeader, last: u64, kept: &Kept) -> Vec<BlockPointer> {
    let claimed = header.claim_txg != 0;
    let (mut blocks, mut cloned, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    zil::walk_kept(store, header, (kept, zil::Locked::Follow), &mut |item| {
        let found = match item {
            Item::Block(bp) => Some(*bp).filter(|bp| claimed || bp.logical_birth() <= last),
            // What was on disk before is the dataset's.
            Item::Record(record) => {
                if claimed {
                    // The claim added a reference to each.
                    cloned.extend(record.cloned_blocks());
                }
                record.write_block().filter(|bp| claimed && bp.logical_birth() >= header.claim_txg)
            }
        };
        // Records may refer to one block several times.
        let first = |bp: &BlockPointer| bp.dva(0).is_some_and(|dva| seen.insert(dva));
        blocks.extend(found.filter(first));
        true
    });
    blocks.extend(cloned);
    blocks
}

impl SyncContext<'_> {
    /// Claims these logs of heads that are not open; nothing may have been allocated in this group. Returns
    /// the youngest birth of a block that was claimed.
    ///
    /// # Errors
    /// A device failed; a block of a log is where something else is. What was claimed is not taken back.
    pub(super) fn claim_intent_logs(&mut self, claims: Vec<(u64, Claim)>) -> Result<u64> {
        let mut newest = 0;
        let referring = |(ds_obj, claim)| Ok((ds_obj, self.refer_to_clones(ds_obj, claim)?));
        let claims = claims.into_iter().map(referring).collect::<Result<Vec<(u64, Claim)>>>()?;
        for Claimed { bp, members } in claims.iter().flat_map(|(_, claim)| &claim.blocks) {
            for dva in members.iter().chain([bp]).flat_map(BlockPointer::dvas) {
                let claimed = self.disk.allocator.claim_dva(self.tx.txg, &dva);
                claimed.map_err(|e| WriteError::Sink(Box::new(e)))?;
            }
            newest = newest.max(bp.logical_birth());
        }
        for (ds_obj, claim) in claims {
            self.set_intent_log(ds_obj, claim.header)?;
        }
        Ok(newest)
    }

    /// Adds a reference to each block that a log clones. Where their counts are damaged only what comes before is
    /// claimed: somebody else's blocks may be freed before the rest could be replayed.
    ///
    /// Errors: a device failed: it may come back with the counts.
    fn refer_to_clones(&mut self, ds_obj: u64, claim: Claim) -> Result<Claim> {
        let why = match self.tx.whole(|tx| references::add(tx, &claim.cloned)) {
            Ok(()) => {
                if !claim.cloned.is_empty() {
                    let after = less!(self.tx.txg, 1, "group in which logs are claimed");
                    self.tx.moves.push(Move::Gained { ds: ds_obj, after });
                }
                return Ok(claim);
            }
            Err(DslWriteError::Unreadable(why)) if !why.is_of_device() => why.to_string(),
            Err(why @ DslWriteError::Unsupported(_)) => why.to_string(),
            Err(e) => return Err(e),
        };
        tracing::warn!("dataset {ds_obj}: clones in its intent log are not claimed: {why}");
        Ok(claim.without_clones())
    }

    fn head_objset(&mut self, ds_obj: u64) -> Result<Arc<ObjectSet>> {
        let bonus = self.tx.mos.dnode(ds_obj)?.bonus.clone();
        let ds = DslDatasetPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL dataset"))?;
        Ok(ObjectSet::open(self.tx.mos.synced().store().clone(), ds_obj, ds.bp)?)
    }

    /// Whether the intent log of a head that is not open can be destroyed.
    ///
    /// # Errors
    /// `Unreadable`: the object set.
    pub fn check_intent_log(&mut self, ds_obj: u64) -> Result<()> {
        self.head_objset(ds_obj).map(drop)
    }

    /// Frees the intent log of a head that is not open, if it has one (`zil_destroy_sync`); what is
    /// in it is lost. `last` is the last group that was on disk when the pool was imported. 0: what is
    /// not claimed is not freed.
    ///
    /// # Errors
    /// The object set cannot be read; a device failed.
    pub fn destroy_intent_log(&mut self, ds_obj: u64, last: u64) -> Result<()> {
        let base = self.head_objset(ds_obj)?;
        let header = base.phys().zil;
        if header.log.is_hole() {
            return Ok(());
        }
        // What cannot be read of a log that is given up is no damage that anybody would want to hear of.
        let found = || allocated(base.store(), &header, last, &Kept::nothing());
        let (blocks, notes) = Store::attempt(found);
        drop(notes);
        self.tx.frees.extend(blocks);
        self.set_intent_log(ds_obj, NO_LOG)
    }

    /// No dataset has an intent log any more: frees what log vdevs have allocated all the same. A log that was given up
    /// because a log vdev was missing, or damaged, ends, for the code that frees it, where it cannot be read. Nothing but
    /// blocks of logs is allocated on log vdevs ([`cenote_store::alloc::Class::fallbacks`], `zio_alloc_zil`).
    ///
    /// # Errors
    /// What is free according to the space maps is freed again.
    pub(super) fn free_lost_log_blocks(&mut self) -> Result<()> {
        let (allocator, txg) = (&self.disk.allocator, self.tx.txg);
        let going = self.tx.frees.iter().flat_map(BlockPointer::dvas);
        let going: Vec<Dva> = going.collect();
        let mut lost_bytes = 0;
        for group in allocator.groups_of(Class::Log) {
            let Ok(vdev) = u32::try_from(group.vdev()) else { continue };
            for metaslab in group.members().filter(|metaslab| metaslab.allocated() > 0) {
                // What cannot be loaded now can be freed after another import.
                let loaded = allocator.load(group.vdev(), metaslab.id());
                let Some(free) = metaslab.free_after(txg).filter(|_| loaded) else { continue };
                let Extent { start, size, .. } = metaslab.extent();
                let mut lost = RangeTree::new();
                let invalid = |e| {
                    WriteError::Sink(Box::new(AllocError::Range { vdev: vdev.into(), source: e }))
                };
                lost.add(start, start + size).map_err(invalid)?;
                let here = going.iter().filter(|dva| dva.vdev == vdev);
                let here = here.map(|dva| (dva.offset, dva.offset + dva.asize));
                for (from, to) in free.iter().chain(here) {
                    lost.clear(from, to);
                }
                for (from, to) in lost.iter() {
                    let dva = Dva { vdev, offset: from, asize: to - from, gang: false };
                    let freed = allocator.free(txg, &dva);
                    freed.map_err(|e| WriteError::Sink(Box::new(e)))?;
                }
                lost_bytes += lost.space();
            }
        }
        if lost_bytes > 0 {
            tracing::info!("{lost_bytes} bytes that lost intent logs had on log vdevs are free");
        }
        Ok(())
    }

    /// As [`SyncContext::destroy_intent_log`], of a claimed log that was replayed and read before.
    fn destroy_replayed(&mut self, ds_obj: u64, kept: &Kept) -> Result<()> {
        let base = self.head_objset(ds_obj)?;
        self.tx.frees.extend(allocated(base.store(), &base.phys().zil, 0, kept));
        self.set_intent_log(ds_obj, NO_LOG)
    }

    /// Gives a head that was made of a snapshot no log: the snapshot's root block may name that of the dataset
    /// that it was taken of (`dsl_dataset_zero_zil`).
    ///
    /// # Errors
    /// The object set cannot be read; a device failed.
    pub(super) fn zero_intent_log(&mut self, ds_obj: u64) -> Result<()> {
        match self.head_objset(ds_obj)?.phys().zil.log.is_hole() {
            true => Ok(()),
            false => self.set_intent_log(ds_obj, NO_LOG),
        }
    }

    /// Writes the header of a head that is not open.
    fn set_intent_log(&mut self, ds_obj: u64, header: ZilHeader) -> Result<()> {
        let mut set = SyncingSet::of_log(self.head_objset(ds_obj)?, header)?;
        let policy = Policy::of_new(1);
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
        accounting::sync_dataset(&mut self.tx, &mut set, ds_obj, &sink)
    }
}

/// How many records of a claimed log are still to be replayed, and their bytes.
fn left_to_replay(store: &Arc<Store>, header: &ZilHeader, kept: &Kept) -> (u64, u64) {
    let (mut records, mut bytes) = (0, 0_u64);
    zil::walk_kept(store, header, (kept, zil::Locked::Follow), &mut |item| {
        if let Item::Record(record) = item
            && record.txg >= header.claim_txg
            && record.seq > header.replay_seq
        {
            (records, bytes) = (records + 1, bytes + record.len);
        }
        true
    });
    (records, bytes)
}

/// Whether a dataset that had an intent log has it still; true if that cannot be read.
fn may_have_log(pool: &Pool, ds_obj: u64) -> bool {
    let dsl = pool.dsl();
    match dsl.by_object(ds_obj) {
        Ok(None) => false,
        Ok(Some(dataset)) => {
            !dsl.open_objset(&dataset).is_ok_and(|set| set.phys().zil.log.is_hole())
        }
        Err(_) => true,
    }
}

/// Whether a dataset can be opened as far as keys go.
fn has_key(pool: &Pool, ds_obj: u64) -> bool {
    let dsl = pool.dsl();
    let loaded = |dataset| dsl.is_key_loaded(&dataset).ok().flatten();
    !matches!(dsl.by_object(ds_obj).ok().flatten().and_then(loaded), Some(false))
}

/// A dataset whose intent log was not replayed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReplayed {
    /// Object of the dataset.
    pub ds_obj: u64,
    /// Its name when the pool was imported.
    pub name: String,
    /// What is in the way.
    pub why: String,
}

/// An intent log that waits for its dataset to be opened.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    ds_obj: u64,
    name: String,
    /// What is still to be replayed.
    records: u64,
    bytes: u64,
}

/// Intent logs that wait to be replayed.
#[derive(Debug, Default)]
pub(crate) struct Unreplayed {
    waiting: Vec<Waiting>,
    /// What was read of them, and when.
    kept: Arc<Kept>,
    read: Option<Instant>,
}

impl Unreplayed {
    /// Nothing is left to be replayed of this log, or it is gone.
    fn done(&mut self, ds_obj: u64) {
        self.waiting.retain(|log| log.ds_obj != ds_obj);
        if self.waiting.is_empty() {
            self.kept = Arc::default();
        }
    }

    /// Lets go of what was read of logs whose datasets were not opened in time.
    pub fn let_go_in_time(&mut self) {
        if self.read.take_if(|read| read.elapsed() >= KEEP_FOR).is_some() {
            self.kept = Arc::default();
        }
    }

    /// The datasets whose logs wait.
    pub fn heads(&self) -> Vec<u64> {
        self.waiting.iter().map(|log| log.ds_obj).collect()
    }

    fn find(&self, ds_obj: u64) -> Option<Waiting> {
        self.waiting.iter().find(|log| log.ds_obj == ds_obj).cloned()
    }
}

/// Replays the log of a dataset that no other thread uses; blocks of the log that were read already are in what
/// it is given. It makes the changes and notes in the header how far it came, in the same transaction.
pub type ReplayLog<'a> =
    dyn Fn(&Arc<LiveObjectSet>, &Kept) -> std::result::Result<(), String> + Sync + 'a;

/// What was replayed of a dataset.
enum Found {
    Log,
    /// There is no log any more.
    Nothing,
}

type Replays =
    dyn Fn(&Engine, &Arc<LiveObjectSet>, &Kept) -> std::result::Result<(), String> + Send + Sync;

/// What replays the intent log of a dataset that is opened. Without it such a dataset is not opened.
#[derive(Clone, Default)]
pub struct Replayer(Option<Arc<Replays>>);

impl Replayer {
    /// One that does it so ([`ReplayLog`]).
    pub fn new(
        replay: impl Fn(&Engine, &Arc<LiveObjectSet>, &Kept) -> std::result::Result<(), String>
        + Send
        + Sync
        + 'static,
    ) -> Replayer {
        Replayer(Some(Arc::new(replay)))
    }
}

impl fmt::Debug for Replayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Replayer").field(&self.0.is_some()).finish()
    }
}

/// The intent logs of a pool that is imported.
pub(super) struct ReadLogs {
    /// Nothing is left to be replayed of these heads' logs.
    pub(super) finished: Vec<u64>,
    /// What must be claimed, by heads.
    pub(super) claims: Vec<(u64, Claim)>,
    /// There are logs besides those that are finished.
    pub(super) others: bool,
}

/// Reads the logs that wait, many at once. Nothing is written. Returns what must be claimed, and what must be replayed.
///
/// # Errors
/// A device failed to read a log that is not claimed.
pub(super) fn read_logs(
    store: &Arc<Store>,
    progress: &LogProgress,
    logs: Logs,
    last: u64,
) -> std::result::Result<(ReadLogs, Unreplayed), EngineError> {
    let Logs { finished, waiting: logs, kept, all } = logs;
    if logs.is_empty() {
        return Ok((
            ReadLogs { finished, claims: Vec::new(), others: !all },
            Unreplayed::default(),
        ));
    }
    progress.read();
    let (claims, waiting) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    parallel::each(REPLAY_THREADS.count(), &logs, |Left { ds_obj, name, header }| {
        let (records, bytes) = if header.claim_txg == 0 {
            let claim = zil::claim(store, *ds_obj, header, last.saturating_add(1), &kept);
            let found = claim.as_ref().map_or((0, 0), |claim| (claim.records, claim.bytes));
            claims.lock().push((*ds_obj, claim));
            found
        } else {
            left_to_replay(store, header, &kept)
        };
        progress.found(records, bytes);
        waiting.lock().push(Waiting { ds_obj: *ds_obj, name: name.clone(), records, bytes });
    });
    progress.has_read();
    let mut waiting = waiting.into_inner();
    waiting.sort_by(|a, b| a.name.cmp(&b.name));
    let claims = claims.into_inner().into_iter().map(|(ds_obj, claim)| {
        let claim = claim.map_err(|e| DslWriteError::from(cenote_dmu::Error::from(e)))?;
        Ok::<_, EngineError>((ds_obj, claim))
    });
    let claims = claims.collect::<std::result::Result<_, _>>()?;
    let unreplayed = Unreplayed { waiting, kept, read: Some(Instant::now()) };
    Ok((ReadLogs { finished, claims, others: true }, unreplayed))
}

impl Engine {
    /// Keeps nothing in memory any more of what was read of logs at the import.
    pub fn let_logs_go(&self) {
        self.shared.unreplayed.lock().kept = Arc::default();
    }

    /// Objects of the datasets whose intent logs wait for them to be opened, and can be replayed: those of encrypted datasets
    /// wait for their keys. Logs that went with their datasets, or were
    /// given up in a rollback or a receive, are not waited for any more.
    pub fn waiting_logs(&self) -> Vec<u64> {
        let pool = self.pool();
        let waiting = self.shared.unreplayed.lock().waiting.clone();
        let all = waiting.iter().map(|log| log.ds_obj);
        let (there, gone): (Vec<u64>, _) = all.partition(|ds_obj| may_have_log(&pool, *ds_obj));
        let there = there.into_iter().filter(|ds_obj| has_key(&pool, *ds_obj)).collect();
        let mut unreplayed = self.shared.unreplayed.lock();
        gone.into_iter().for_each(|ds_obj| unreplayed.done(ds_obj));
        there
    }

    /// Has `replay` replay all intent logs that wait, as [`Engine::replay_these_logs`].
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn replay_logs(
        &self,
        replay: &ReplayLog<'_>,
    ) -> std::result::Result<Vec<NotReplayed>, EngineError> {
        self.replay_these_logs(&self.waiting_logs(), replay)
    }

    /// Has `replay` replay the intent logs that wait for these datasets, several at once, and destroys those that
    /// it replayed (`zil_replay`). What it does not replay it can be asked for again. Datasets that somebody
    /// opens are left to him.
    ///
    /// Returns the datasets whose logs could not be replayed: they stay as they are, and are not written to.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn replay_these_logs(
        &self,
        datasets: &[u64],
        replay: &ReplayLog<'_>,
    ) -> std::result::Result<Vec<NotReplayed>, EngineError> {
        let waiting = self.shared.unreplayed.lock().waiting.clone();
        let wanted = waiting.into_iter().filter(|log| datasets.contains(&log.ds_obj));
        let alone = |log: Waiting| Some((self.shared.datasets.enter_alone(log.ds_obj)?, log));
        let logs: Vec<(Opening<'_>, Waiting)> = wanted.filter_map(alone).collect();
        self.replay_entered(&logs, replay)
    }

    /// Replays the intent log of a dataset if it waits for that, so that opening it takes no time.
    ///
    /// # Errors
    /// Those of [`Engine::live`].
    pub fn replay_log(&self, ds_obj: u64) -> std::result::Result<(), EngineError> {
        if self.shared.unreplayed.lock().find(ds_obj).is_none() {
            return Ok(());
        }
        match self.shared.datasets.enter(ds_obj)? {
            Entered::Open(_) => Ok(()),
            Entered::Opening(opening) => self.replay_first(opening).map(drop),
        }
    }

    /// Replays the intent log of a dataset that is being opened, if it has one that waits for that.
    ///
    /// Errors: `Unsupported`: it cannot be replayed; the pool is suspended.
    pub(super) fn replay_first<'a>(
        &self,
        opening: Opening<'a>,
    ) -> std::result::Result<Opening<'a>, EngineError> {
        let ds_obj = opening.ds_obj();
        let Some(log) = self.shared.unreplayed.lock().find(ds_obj) else { return Ok(opening) };
        if !has_key(&self.pool(), ds_obj) {
            // It says what is missing.
            return Ok(opening);
        }
        // It may have been renamed.
        let dataset = self.pool().dsl().by_object(ds_obj).ok().flatten();
        let name = dataset.map_or(log.name.clone(), |dataset| dataset.name);
        let failed = match &self.shared.options.replay.0 {
            Some(replay) => {
                let replay = |live: &Arc<LiveObjectSet>, kept: &Kept| replay(self, live, kept);
                let logs = [(opening, log)];
                let failed = self.replay_entered(&logs, &replay)?;
                let [(opening, _)] = logs;
                match failed.into_iter().next() {
                    None => return Ok(opening),
                    Some(failed) => failed.why,
                }
            }
            None => "nothing here replays it".into(),
        };
        Err(EngineError::Unsupported(format!(
            "'{name}': an intent log that was not replayed: {failed} ('zpool clear POOL {name}' gives \
             up what is in it)"
        )))
    }

    /// Replays logs of datasets that no other thread can open.
    ///
    /// Errors: the pool is suspended.
    fn replay_entered(
        &self,
        logs: &[(Opening<'_>, Waiting)],
        replay: &ReplayLog<'_>,
    ) -> std::result::Result<Vec<NotReplayed>, EngineError> {
        if logs.is_empty() {
            return Ok(Vec::new());
        }
        let kept = Arc::clone(&self.shared.unreplayed.lock().kept);
        let running = self.logs().replay(logs.iter().map(|(_, log)| (log.records, log.bytes)));
        // What replay frees may be what a later record still has to copy.
        let hold = self.shared.disk.allocator.hold(self.pool().uberblock().txg);
        let done = Mutex::new(Vec::new());
        parallel::each(REPLAY_THREADS.count(), logs, |(opening, log)| {
            let outcome = self.replay_one(opening, replay, &kept);
            self.logs().dataset_done();
            done.lock().push((log.clone(), outcome));
        });
        drop(hold);
        let (mut gone, mut replayed, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for (log, outcome) in done.into_inner() {
            let Waiting { ds_obj, name, .. } = log;
            match outcome? {
                Ok(Found::Log) => replayed.push(ds_obj),
                Ok(Found::Nothing) => gone.push(ds_obj),
                Err(why) => failed.push(NotReplayed { ds_obj, name, why }),
            }
        }
        let stay = self.destroy_replayed(&replayed, &kept)?;
        drop(running);
        let mut unreplayed = self.shared.unreplayed.lock();
        for ds_obj in replayed.into_iter().chain(gone) {
            match (stay.get(&ds_obj), unreplayed.find(ds_obj)) {
                (None, _) => unreplayed.done(ds_obj),
                (Some(why), log) => {
                    let name = log.map_or_else(String::new, |log| log.name);
                    failed.push(NotReplayed { ds_obj, name, why: why.clone() });
                }
            }
        }
        failed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(failed)
    }

    /// Destroys logs that were replayed. Returns why some of them stay: the others do not wait for what cannot be
    /// read of one.
    ///
    /// Errors: the pool is suspended.
    fn destroy_replayed(
        &self,
        logs: &[u64],
        kept: &Arc<Kept>,
    ) -> std::result::Result<HashMap<u64, String>, EngineError> {
        let destroy = |logs: Vec<u64>| {
            let kept = Arc::clone(kept);
            let destroy = move |context: &mut SyncContext<'_>| {
                logs.iter().try_for_each(|ds_obj| context.destroy_replayed(*ds_obj, &kept))
            };
            match self.sync_task_beside_logs(destroy, |()| true) {
                Ok(()) => Ok(None),
                Err(EngineError::Dsl(DslWriteError::Unreadable(why))) => Ok(Some(why.to_string())),
                Err(e) => Err(e),
            }
        };
        if logs.is_empty() || destroy(logs.to_vec())?.is_none() {
            return Ok(HashMap::new());
        }
        let each = logs.iter().map(|ds_obj| Ok((*ds_obj, destroy(vec![*ds_obj])?)));
        let each = each.collect::<std::result::Result<Vec<_>, EngineError>>()?;
        Ok(each.into_iter().filter_map(|(ds_obj, why)| Some((ds_obj, why?))).collect())
    }

    /// Replays one log, and returns when that is on disk.
    ///
    /// Errors: the pool is suspended.
    fn replay_one(
        &self,
        opening: &Opening<'_>,
        replay: &ReplayLog<'_>,
        kept: &Kept,
    ) -> std::result::Result<std::result::Result<Found, String>, EngineError> {
        let done = match opening.load(&self.shared, Purpose::Replay) {
            // It was given up, rolled back or destroyed.
            Ok(live) if live.base().phys().zil.log.is_hole() => Ok(Found::Nothing),
            Ok(live) => replay(&live, kept).map(|()| Found::Log),
            Err(EngineError::Dsl(DslWriteError::NotFound)) => return Ok(Ok(Found::Nothing)),
            Err(e) => Err(e.to_string()),
        };
        self.close(opening.ds_obj())?;
        Ok(done)
    }

    /// How far logs are.
    pub fn logs(&self) -> &Arc<LogProgress> {
        &self.shared.options.logs
    }

    /// How far the replay of intent logs is; `None`: none is read or replayed.
    pub fn log_progress(&self) -> Option<ReplayStatus> {
        Some(self.logs().figures()).filter(|f| f.stage != ReplayStage::Idle)
    }

    /// Notes that so much more of the log of a dataset was replayed.
    pub fn note_replayed(&self, ds_obj: u64, records: u64, bytes: u64) {
        self.logs().replayed(records, bytes);
        let mut unreplayed = self.shared.unreplayed.lock();
        if let Some(log) = unreplayed.waiting.iter_mut().find(|log| log.ds_obj == ds_obj) {
            log.records = log.records.saturating_sub(records);
            log.bytes = log.bytes.saturating_sub(bytes);
        }
    }

    /// Destroys the intent log of a head that is not open, because it cannot be read or replayed. What is in
    /// it is lost.
    ///
    /// # Errors
    /// `Busy`: the head is open, and has a log that is replayed or written; those of
    /// [`SyncContext::check_intent_log`]; the pool is suspended.
    pub fn clear_intent_log(&self, ds_obj: u64) -> std::result::Result<(), EngineError> {
        self.sync_task(move |context| {
            if context.datasets.is_some_and(|datasets| datasets.is_open(ds_obj)) {
                // The thread that opened it replayed its log, unless it had no log: there is nothing to give up then.
                let gone = context.head_objset(ds_obj)?.phys().zil.log.is_hole();
                return if gone { Ok(()) } else { Err(DslWriteError::Busy) };
            }
            context.check_intent_log(ds_obj)?;
            context.destroy_intent_log(ds_obj, 0)
        })?;
        self.shared.unreplayed.lock().done(ds_obj);
        // What could not be read of it is no damage any more.
        let of_log = |at: &Bookmark| at.objset == ds_obj && at.level == zil::ZIL_LEVEL;
        self.shared.disk.store.forget_errors(of_log);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
