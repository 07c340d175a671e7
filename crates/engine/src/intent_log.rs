//! Intent logs that a crash left.
//!
//! After a clean export the header of an object set still names the block that the next record would
//! have gone to. After a crash it names a chain of blocks; if all their records are in the dataset
//! already, nothing is to be replayed. Such a log goes when the pool is imported, as it does when
//! OpenZFS mounts the dataset: a snapshot must not have one, for its clones would have the same.
//!
//! Blocks of a log are written in a group that is still open, so those of the group that a crash took
//! are in no space map. The first group after the import claims them ([`cenote_dsl::zil::claim`]), before
//! it allocates anything else. Whatever is in a claimed log is allocated, records' data included, until
//! it is replayed ([`Engine::replay_logs`]), and what it clones has a reference more. Its dataset is opened for the replay
//! alone, and once all is on disk the log is destroyed. Until then no snapshot is taken of the dataset, and nobody else writes to it.
//!
//! All logs are read before the first group, several at once, which also tells how much there is to be
//! replayed ([`progress`]); several are replayed at once. What was read is kept, within a bound
//! ([`Kept`]), so that a block of a log is read once.
//!
//! A log that cannot be replayed stays: one that has a record which cannot be applied, or that cannot be
//! read in full. Its dataset is not written to until the log is cleared by the dataset's name
//! ([`Engine::clear_intent_log`]). A log that was not claimed ends where bytes are wrong, but not where a
//! device fails: such a pool is not imported for writing.

use super::accounting;
use super::capable::{Left, Purpose};
use super::policy::{Policy, Sink};
use super::{Engine, EngineError, SyncContext};
use cenote_dmu::ObjectSet;
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::tunables::REPLAY_THREADS;
use cenote_dsl::write::{DslWriteError, Result, references};
use cenote_dsl::zil::{self, Claim, Item, Kept, NO_LOG, parallel};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::dsl::DslDatasetPhys;
use cenote_format::{ByteOrder, Bytes};
use cenote_pool::status::{ReplayStage, ReplayStatus};
use cenote_store::Store;
use parking_lot::Mutex;

use std::collections::HashSet;
use std::sync::Arc;

pub mod progress;

/// The blocks of a log that are in space maps, and those that it has references to. Of one that is not claimed,
/// `last` is the last group that was on disk when it was left.
fn allocated(store: &Arc<Store>, header: &ZilHeader, last: u64, kept: &Kept) -> Vec<BlockPointer> {
    let claimed = header.claim_txg != 0;
    let (mut blocks, mut cloned, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    zil::walk_kept(store, header, kept, &mut |item| {
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
    /// `Unsupported`: a gang block in a log, or cloned blocks that the pool does not count; `Damaged`: a block of a
    /// log where something else is.
    pub(super) fn claim_intent_logs(&mut self, claims: Vec<(u64, Claim)>) -> Result<u64> {
        let mut newest = 0;
        for bp in claims.iter().flat_map(|(_, claim)| &claim.blocks) {
            if bp.is_gang() {
                return Err(DslWriteError::Unsupported("a gang block in an intent log".into()));
            }
            for dva in bp.dvas() {
                let claimed = self.disk.allocator.claim_dva(self.tx.txg, &dva);
                claimed.map_err(|e| WriteError::Sink(Box::new(e)))?;
            }
            newest = newest.max(bp.logical_birth());
        }
        let cloned: Vec<_> = claims.iter().flat_map(|(_, c)| c.cloned.iter().copied()).collect();
        references::add(&mut self.tx, &cloned)?;
        for (ds_obj, claim) in claims {
            self.set_intent_log(ds_obj, claim.header)?;
        }
        Ok(newest)
    }

    fn head_objset(&mut self, ds_obj: u64) -> Result<Arc<ObjectSet>> {
        let bonus = self.tx.mos.dnode(ds_obj)?.bonus.clone();
        let ds = DslDatasetPhys::decode(&Bytes::new(&bonus, ByteOrder::Little, "DSL dataset"))?;
        Ok(ObjectSet::open(self.tx.mos.synced().store().clone(), ds_obj, ds.bp)?)
    }

    /// Whether the intent log of a head that is not open can be destroyed.
    ///
    /// # Errors
    /// `Unreadable`: the object set; `Unsupported`: the log is encrypted.
    pub fn check_intent_log(&mut self, ds_obj: u64) -> Result<()> {
        if self.head_objset(ds_obj)?.phys().zil.log.uses_crypt() {
            let what = "destroying an encrypted intent log that was not replayed";
            return Err(DslWriteError::Unsupported(what.into()));
        }
        Ok(())
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
        self.tx.frees.extend(allocated(base.store(), &header, last, &Kept::nothing()));
        self.set_intent_log(ds_obj, NO_LOG)
    }

    /// As [`SyncContext::destroy_intent_log`], of a claimed log that was replayed and read before.
    fn destroy_replayed(&mut self, ds_obj: u64, kept: &Kept) -> Result<()> {
        let base = self.head_objset(ds_obj)?;
        self.tx.frees.extend(allocated(base.store(), &base.phys().zil, 0, kept));
        self.set_intent_log(ds_obj, NO_LOG)
    }

    /// Writes the header of a head that is not open.
    fn set_intent_log(&mut self, ds_obj: u64, header: ZilHeader) -> Result<()> {
        let mut set = OpenObjectSet::open(self.head_objset(ds_obj)?)?;
        set.set_zil_header(header);
        let policy = Policy::of_new(1);
        let tree = self.disk.tree();
        let sink = Sink {
            writer: &self.disk.writer,
            tree: &tree,
            policy: &policy,
            abilities: self.abilities,
            pass: 1,
            log: None,
            born: Some(&self.born),
            early: None,
        };
        accounting::sync_dataset(&mut self.tx, &mut set, ds_obj, &sink)
    }
}

/// How many records of a claimed log are still to be replayed, and their bytes.
fn left_to_replay(store: &Arc<Store>, header: &ZilHeader, kept: &Kept) -> (u64, u64) {
    let (mut records, mut bytes) = (0, 0_u64);
    zil::walk_kept(store, header, kept, &mut |item| {
        if let Item::Record(record) = item
            && record.txg >= header.claim_txg
            && record.seq > header.replay_seq
        {
            (records, bytes) = (records + 1, bytes.saturating_add(record.len));
        }
        true
    });
    (records, bytes)
}

/// A dataset whose intent log was not replayed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReplayed {
    /// Name of the dataset.
    pub name: String,
    /// What is in the way.
    pub why: String,
}

/// Intent logs that are to be replayed.
#[derive(Debug, Default)]
pub(crate) struct Unreplayed {
    pub waiting: Vec<Left>,
    /// What was read of them.
    pub kept: Arc<Kept>,
}

/// Replays the log of a dataset that nobody else uses; blocks of the log that were read already are in what
/// it is given. It makes the changes and notes in the header how far it came, in the same transaction.
pub type ReplayLog<'a> =
    dyn Fn(&Arc<LiveObjectSet>, &Kept) -> std::result::Result<(), String> + Sync + 'a;

impl Engine {
    /// Reads the logs that wait, many at once. Returns what is to be claimed.
    ///
    /// Errors: a device failed to read a log that is not claimed.
    pub(super) fn read_logs(
        &self,
        waiting: &[Left],
        kept: &Kept,
        last: u64,
    ) -> std::result::Result<Vec<(u64, Claim)>, EngineError> {
        let progress = &self.shared.options.logs;
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        progress.begin(ReplayStage::Reading);
        let store = &self.shared.disk.store;
        let claims = Mutex::new(Vec::new());
        parallel::each(REPLAY_THREADS.count(), waiting, |Left { ds_obj, header, .. }| {
            if header.claim_txg == 0 {
                let claim = zil::claim(store, *ds_obj, header, last.saturating_add(1), kept);
                if let Ok(claim) = &claim {
                    progress.found(claim.records, claim.bytes);
                }
                claims.lock().push((*ds_obj, claim));
            } else {
                let (records, bytes) = left_to_replay(store, header, kept);
                progress.found(records, bytes);
            }
        });
        progress.begin(ReplayStage::Idle);
        let claims = claims.into_inner().into_iter().map(|(ds_obj, claim)| {
            let claim = claim.map_err(|e| DslWriteError::from(cenote_dmu::Error::from(e)))?;
            Ok((ds_obj, claim))
        });
        claims.collect()
    }

    /// Has `replay` replay the intent logs that the import found, several at once, and destroys those that
    /// it replayed (`zil_replay`). What it does not replay it can be asked for again.
    ///
    /// Returns the datasets whose logs could not be replayed: they stay as they are, and are not written to.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn replay_logs(
        &self,
        replay: &ReplayLog<'_>,
    ) -> std::result::Result<Vec<NotReplayed>, EngineError> {
        let Unreplayed { waiting, kept } = std::mem::take(&mut *self.unreplayed.lock());
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let progress = &self.shared.options.logs;
        progress.begin(ReplayStage::Replaying);
        // What replay frees may be what a later record still has to copy.
        let hold = self.shared.disk.allocator.hold(self.pool().uberblock().txg);
        let done = Mutex::new(Vec::new());
        parallel::each(REPLAY_THREADS.count(), &waiting, |left| {
            let outcome = self.replay_one(left.ds_obj, replay, &kept);
            progress.dataset_done();
            done.lock().push((left.clone(), outcome));
        });
        drop(hold);
        progress.begin(ReplayStage::Idle);
        let (mut replayed, mut failed) = (Vec::new(), Vec::new());
        for (left, outcome) in done.into_inner() {
            match outcome? {
                Ok(()) => replayed.push(left.ds_obj),
                Err(why) => failed.push((left, why)),
            }
        }
        let its = Arc::clone(&kept);
        self.sync_task(move |context| {
            replayed.iter().try_for_each(|ds_obj| context.destroy_replayed(*ds_obj, &its))
        })?;
        failed.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let waiting = failed.iter().map(|(left, _)| left.clone()).collect();
        *self.unreplayed.lock() = Unreplayed { waiting, kept };
        let named = |(left, why): (Left, String)| NotReplayed { name: left.name, why };
        Ok(failed.into_iter().map(named).collect())
    }

    /// Replays one log, and returns when that is on disk.
    ///
    /// Errors: the pool is suspended.
    fn replay_one(
        &self,
        ds_obj: u64,
        replay: &ReplayLog<'_>,
        kept: &Kept,
    ) -> std::result::Result<std::result::Result<(), String>, EngineError> {
        let live = self.shared.datasets.open(&self.shared, ds_obj, Purpose::Replay);
        let done = live.map_err(|e| e.to_string());
        let done = done.and_then(|live| replay(&live, kept));
        self.close(ds_obj)?;
        Ok(done)
    }

    /// How far the replay of intent logs is; `None`: none is read or replayed.
    pub fn log_progress(&self) -> Option<ReplayStatus> {
        Some(self.shared.options.logs.figures()).filter(|f| f.stage != ReplayStage::Idle)
    }

    /// Notes that so much more of a log was replayed.
    pub fn note_replayed(&self, records: u64, bytes: u64) {
        self.shared.options.logs.replayed(records, bytes);
    }

    /// Destroys the intent log of a head that is not open, because it cannot be read or replayed. What is in
    /// it is lost.
    ///
    /// # Errors
    /// `Busy`: the head is open for writing, and so has no log; those of
    /// [`SyncContext::check_intent_log`]; the pool is suspended.
    pub fn clear_intent_log(&self, ds_obj: u64) -> std::result::Result<(), EngineError> {
        self.sync_task(move |context| {
            if context.datasets.is_some_and(|datasets| datasets.is_open(ds_obj)) {
                return Err(DslWriteError::Busy);
            }
            context.check_intent_log(ds_obj)?;
            context.destroy_intent_log(ds_obj, 0)
        })
    }
}

#[cfg(test)]
mod tests;
