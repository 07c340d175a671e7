//! The intent log of an open dataset, writing side (`zilog_t`).
//!
//! # Idea
//!
//! Every change leaves *itxs* ([`itxs`]). They are not written, unless
//! somebody asks for what was changed to be stable ([`Log::commit`], `zil_commit`): then the itxs of the
//! objects that are asked for, and all those about names, become records in log blocks, if their transaction
//! groups are not on disk. One commit
//! writes at a time ([`issuer`]). Commits that come meanwhile queue their itxs and wait. The next one writes
//! the changes of all of them. So any number of threads share few writes and flushes.
//!
//! # The chain ([`chain`])
//!
//! ```text
//! header ──> block ──> block ──> block ──> next, allocated and not written yet
//! zh_log     written   written   written   its checksum does not fit: the chain ends here
//! ```
//!
//! A block names the next one, which is allocated before (`zio_alloc_zil`). When group `txg` is written, all
//! blocks whose records are of it or of older groups are freed, and the header names the first one that
//! remains (`zil_sync`). Blocks are allocated in the open group. If that group does not get on disk they are
//! in no space map, and the next import claims them. If it does, the chain on disk has to lead to them: the group is held
//! until the block that names them is written, or, for the first block, until the group writes its header
//! (`zil_create`, `zil_lwb_flush_wait_all`).
//!
//! # The order that makes it safe
//!
//! 1. The header that leads to the first block is on disk before any block is written.
//! 2. All blocks of a commit are written, to log vdevs if there are any, and those that records point to
//!    ([`early`]). The first one comes last where the records of one change are in several blocks.
//! 3. The vdevs that they are on are flushed, unless `zil_nocacheflush` is set. Only then the next commit writes: after a
//!    crash a replay ends at the first block that is missing.
//! 4. The caller is told.
//!
//! A flush that fails may have lost its blocks: their commit waits for its transaction group, and the chain ends.
//!
//! # When the log cannot be used
//!
//! Then the commit waits for the open transaction group, which has the same effect: some change was
//! unlogged, there is no space for a block, a device failed, the chain must be started, or logs are suspended. After a block could not be
//! written the chain ends before it; a new one is started once all its records are on disk.
//!
//! While a sync task that may make an object set the base of another waits for its turn, logs are suspended
//! (`zil_suspend`): the object sets that it finds have empty headers. A snapshot must not have a log, for its
//! clones would have the same. Logs that were ended so begin again in the group after the task
//! ([`Log::restart`]), before anybody asks. Other tasks leave logs alone.
//!
//! # Invariants
//!
//! - A change is in the log with all its records, or not at all ([`itxs`], [`chain`]).
//! - Records about names are in the chain in the order of the changes, and so are the records of one object. Whatever
//!   is in the log, all earlier changes of names and of the same object are in it, too, or on disk.
//! - A header leads to every block that is in a space map on disk ([`Log::check`]).
//! - A block is freed in the group in which it was allocated at the earliest.
//! - A thread that holds `chain`, or a place in the open group, waits for no transaction group. The sync thread takes `chain` and
//!   `itxs` only.

mod chain;
mod early;
mod encoder;
mod issuer;
mod itxs;
#[cfg(test)]
mod planted;
mod waiting;

use super::Shared;
use super::freeze::Frozen;
use super::policy::{Abilities, Policy};
use super::txg::WhileHeld;
use crate::{kstat, tunables};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::WriteError;
use cenote_dmu::write::intent::Intent;
use cenote_dsl::Dataset;
use cenote_dsl::write::{Tx, features};
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ZilHeader;
use cenote_format::invariant::caught;
use cenote_pool::Pool;
use cenote_store::keys::LoadedKey;
use cenote_vdev::Priority;
use chain::Chain;
pub(crate) use early::Early;
use encoder::{Encoder, Found, Indirect, Unit, WriteBlock, length};
use issuer::{Issuer, Issuing};
pub(crate) use itxs::Scope;
use itxs::{Batch, Itxs};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of records that are in memory at once.
const AT_ONCE: u64 = 4 << 20;
/// The feature of datasets whose logs may have `TX_SETSAXATTR`.
const SA_XATTRS: &str = "org.openzfs:zilsaxattr";

/// Sync tasks that want no dataset to have a log, by pool.
#[derive(Default, Clone)]
pub(crate) struct Suspended(Arc<AtomicU64>);

impl Suspended {
    fn is_now(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// Logs are suspended as long as this lives (`zil_suspend`, `zil_resume`).
pub(crate) struct Suspension(Suspended);

impl Suspension {
    pub fn new(suspended: &Suspended) -> Suspension {
        suspended.0.fetch_add(1, Ordering::SeqCst);
        Suspension(suspended.clone())
    }
}

impl Drop for Suspension {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// By what a batch became stable.
enum Stable {
    InLog,
    /// With its transaction group; or there was nothing in it.
    OnDisk,
}

/// The intent log of an open dataset.
pub(super) struct Log {
    ds_obj: u64,
    itxs: Mutex<Itxs>,
    chain: Mutex<Chain>,
    issuer: Issuer,
    early: Arc<Early>,
    suspended: Suspended,
    closed: AtomicBool,
    /// Records of extended attributes among the system attributes may be in it: the dataset has the feature
    /// `zilsaxattr` on disk.
    sa_xattrs: AtomicBool,
    /// The group whose end brings that; 0: none.
    sa_xattrs_from: AtomicU64,
    /// The chain ended because logs were suspended.
    interrupted: AtomicBool,
    /// Something is in the header that is not of this log: it is left alone.
    foreign: bool,
    frozen: Frozen,
}

impl Log {
    /// The log of a dataset whose header is `header`, encrypted with `key` if there is one (`zil_open`). `sa_xattrs`: the
    /// dataset has the feature `zilsaxattr`; `slim`: its blocks begin with their headers, as since version 23.
    pub fn new(
        ds_obj: u64,
        header: &ZilHeader,
        (suspended, frozen): (Suspended, Frozen),
        (sa_xattrs, slim): (bool, bool),
        key: Option<Arc<LoadedKey>>,
    ) -> Log {
        let foreign = !header.log.is_hole();
        let (itxs, issuer, closed, sa_xattrs_from, interrupted) = Default::default();
        let chain = Mutex::new(Chain::of(key, slim));
        let sa_xattrs = AtomicBool::new(sa_xattrs);
        Log {
            ds_obj,
            itxs,
            chain,
            issuer,
            early: Arc::default(),
            suspended,
            closed,
            sa_xattrs,
            sa_xattrs_from,
            interrupted,
            foreign,
            frozen,
        }
    }

    /// A change was made.
    pub fn note(&self, txg: u64, intent: Intent) {
        let sa_xattrs = self.sa_xattrs.load(Ordering::SeqCst);
        self.itxs.lock().note(txg, intent, sa_xattrs);
    }

    /// Whether a header that leads to a chain is written, and the dataset lacks the feature `zilsaxattr`.
    pub fn lacks_sa_xattrs(&self) -> bool {
        !self.sa_xattrs.load(Ordering::SeqCst) && self.chain.lock().is_there()
    }

    /// When group `txg` is on disk the dataset has the feature.
    pub fn activates_sa_xattrs(&self, txg: u64) {
        self.sa_xattrs_from.store(txg, Ordering::SeqCst);
    }

    /// Group `txg` is on disk, unless the pool is frozen (`zil_clean`).
    pub fn synced(&self, txg: u64) {
        if self.frozen.leaves_out(txg) {
            return;
        }
        self.itxs.lock().forget(txg);
        self.chain.lock().synced(txg);
        let from = self.sa_xattrs_from.load(Ordering::SeqCst);
        if from != 0 && from <= txg {
            self.sa_xattrs.store(true, Ordering::SeqCst);
        }
    }

    /// Waits until the changes of `scope` that were made so far are stable (`zil_commit`, `zil_commit_impl`).
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn commit(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        scope: Scope<'_>,
    ) -> Result<(), WriteError> {
        kstat::ZIL_COMMITS.add(1);
        let wanted = self.itxs.lock().want(scope);
        let Some(mut issuing) = self.issuer.wait_for(wanted) else { return Ok(()) };
        issuing.gather(tunables::COMMIT_TIMEOUT_PCT.small());
        let batch = self.itxs.lock().take(shared.tx_state.synced_txg(), self.frozen.last());
        let (end, youngest) = (batch.end, batch.youngest());
        kstat::ZIL_WRITERS.add(1);
        kstat::ZIL_ITXS.add(batch.itxs().count() as u64);
        let write = || {
            issuing.check(end);
            self.write(shared, live, batch)
        };
        match caught(write).unwrap_or_else(|why| self.broken(shared, &why)) {
            Ok(Stable::InLog) => issuing.has_written(end),
            Ok(Stable::OnDisk) => issuing.has_waited(end),
            Err(e) => {
                // The next commit finds nothing of the batch: it must not take it for written. So this is noted before the
                // next one has its turn.
                self.itxs.lock().lose(youngest);
                return Err(e);
            }
        }
        Ok(())
    }

    /// A commit panicked: the pool is suspended.
    fn broken<T>(&self, shared: &Shared, why: &str) -> Result<T, WriteError> {
        let why = format!("intent log of dataset {}: {why}", self.ds_obj);
        tracing::error!("{why}");
        shared.suspend(&why);
        Err(WriteError::Suspended(why))
    }

    /// Writes a batch to the log and makes it durable, or, if that cannot be, waits until it is on disk.
    fn write(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        batch: Batch,
    ) -> Result<Stable, WriteError> {
        let nothing = batch.changes.is_empty() && !batch.unlogged;
        if let Some(tops) = self.write_blocks(shared, live, batch)? {
            if nothing {
                return shared.has_pool().map(|()| Stable::OnDisk);
            }
            let flushed = chain::flush(&shared.disk, &tops);
            // While it was written another host may have taken the pool: no thread is told that it is stable.
            let ours = shared.has_pool();
            match (flushed, ours) {
                (Ok(()), Ok(())) => return Ok(Stable::InLog),
                (Err(why), _) => {
                    tracing::warn!("intent log of dataset {}: {why}", self.ds_obj);
                    self.chain.lock().fail();
                    self.touch(shared, live, WhileHeld::WaitsAsChange)?;
                }
                (Ok(()), Err(e)) => {
                    self.chain.lock().fail();
                    return Err(e);
                }
            }
        }
        shared.tx_state.wait_synced().map(|()| Stable::OnDisk)
    }

    /// Writes a batch to the log (`zil_process_commit_list`). Returns the vdevs that it is on, which are to be flushed.
    /// `None`: it has to be waited for.
    fn write_blocks(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        batch: Batch,
    ) -> Result<Option<BTreeSet<u64>>, WriteError> {
        if batch.unlogged {
            return Ok(None);
        }
        if batch.changes.is_empty() {
            return Ok(Some(BTreeSet::new()));
        }
        let unusable = self.suspended.is_now() || self.closed.load(Ordering::SeqCst);
        if self.foreign || unusable {
            return Ok(None);
        }
        if !self.chain.lock().is_started() {
            self.prepare(shared, live, WhileHeld::WaitsAsChange)?;
            return Ok(None);
        }
        let is_reused = |object, seq| self.itxs.lock().is_reused(object, seq);
        let tops = Cell::new(BTreeSet::new());
        let indirect = Indirect::of(shared, self.ds_obj, live);
        let written = indirect.as_ref().map(|(how, policy, abilities)| {
            let write = |object, offset| {
                let bp = self.write_early(shared, live, (policy, *abilities), (object, offset))?;
                let mut all = tops.take();
                match bp.is_gang() {
                    false => all.extend(bp.dvas().map(|dva| u64::from(dva.vdev))),
                    // Its parts may be anywhere.
                    true => all.extend(shared.disk.tree().root().children().iter().map(|v| v.id())),
                }
                tops.set(all);
                Some(bp)
            };
            (how, write)
        });
        let written = written.as_ref().map(|(how, write)| (*how, write as &WriteBlock<'_>));
        let encoder = Encoder { live, is_reused: &is_reused, indirect: written };
        let (mut units, mut bytes, mut done) = (Vec::new(), 0, 0_u64);
        let last = batch.changes.len();
        for (n, queued) in batch.changes.iter().enumerate() {
            // What cannot be read now may be read when its group is written.
            let Ok(Found { unit, gone }) = encoder.records(queued) else { return Ok(None) };
            if gone && self.itxs.lock().has_names() {
                // It may have been removed after this batch was taken: the log would have its name and not what it held.
                return Ok(None);
            }
            bytes += length(&unit) as u64;
            units.extend(Some(unit).filter(|unit| !unit.is_empty()));
            if bytes < AT_ONCE && n + 1 < last {
                continue;
            }
            done += bytes;
            let urgent = done <= tunables::ZIL_SLOG_BULK.get();
            let priority = if urgent { Priority::SyncWrite } else { Priority::AsyncWrite };
            let mut all = tops.take();
            let placed =
                self.put(shared, live, (priority, std::mem::take(&mut units)), &mut all)?;
            tops.set(all);
            if !placed {
                return Ok(None);
            }
            bytes = 0;
        }
        Ok(Some(tops.take()))
    }

    /// Puts the records of changes into the chain; adds the vdevs that have to be flushed to `tops`. False: they have to be
    /// waited for.
    fn put(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        (priority, units): (Priority, Vec<Unit>),
        tops: &mut BTreeSet<u64>,
    ) -> Result<bool, WriteError> {
        if self.itxs.lock().has_unlogged(shared.tx_state.synced_txg().min(self.frozen.last())) {
            // What was read may be of an object that it made under a number that was another's.
            return Ok(false);
        }
        if units.is_empty() {
            return Ok(true);
        }
        // Held until the blocks are written: what they lead to is in the group's space maps.
        let inside = shared.tx_state.assign(0, true)?;
        let placed = self.chain.lock().place(&shared.disk, inside.txg, units);
        shared.datasets.allocated_for_logs(inside.txg);
        let Ok(placed) = placed else { return Ok(false) };
        kstat::log_blocks(&shared.disk, placed.all());
        tops.extend(placed.all().map(|write| write.vdev));
        if let Err(why) = placed.write(&shared.disk, priority, tops) {
            tracing::warn!("intent log of dataset {}: {why}", self.ds_obj);
            self.chain.lock().fail();
            // All records are of this group or older ones, so that it ends the chain.
            live.touch()?;
            return Ok(false);
        }
        drop(inside);
        Ok(true)
    }

    /// Writes a block for good that the open group is going to write.
    fn write_early(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        (policy, abilities): (&Policy, Abilities),
        at: (u64, u64),
    ) -> Option<BlockPointer> {
        let beneath = early::beneath(live, policy, at);
        // The group stays open until the block is written, for it may not be closed with a block that is
        // neither written nor to be written.
        let inside = shared.tx_state.assign(0, true).ok()?;
        let how = early::How { writer: &shared.disk.writer, policy, abilities };
        let bp = self.early.write(how, live, inside.txg, (at, beneath));
        shared.datasets.allocated_for_logs(inside.txg);
        bp
    }

    /// What was written early of the dataset.
    pub fn early(&self) -> &Arc<Early> {
        &self.early
    }

    /// Has the open group write a header that leads to a new chain (`zil_create`); whether it will.
    fn prepare(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        held: WhileHeld,
    ) -> Result<bool, WriteError> {
        // Held until the header is to be written in the group that allocates.
        let inside = shared.tx_state.assign_while(held, (0, true))?;
        live.touch()?;
        if self.frozen.leaves_out(inside.txg) {
            return Ok(false);
        }
        let started = self.chain.lock().start(&shared.disk, (self.ds_obj, inside.txg));
        shared.datasets.allocated_for_logs(inside.txg);
        drop(inside);
        Ok(started.is_ok())
    }

    /// Has the open group write the header.
    fn touch(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        held: WhileHeld,
    ) -> Result<(), WriteError> {
        let inside = shared.tx_state.assign_while(held, (0, true))?;
        live.touch()?;
        drop(inside);
        Ok(())
    }

    /// Has a chain that ended because logs were suspended begin again; whether the open group writes it. With `any`, every chain
    /// begins: what is committed just now is waited for.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn begin(
        &self,
        shared: &Shared,
        live: &LiveObjectSet,
        any: bool,
    ) -> Result<bool, WriteError> {
        if self.foreign || !any && !self.interrupted.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let issuing = match any {
            true => Some(self.keep_out(shared)?),
            // A thread that commits now starts the chain.
            false => self.issuer.try_keep_out(),
        };
        let Some(_issuing) = issuing else { return Ok(false) };
        // From here on no other thread can close the log.
        if self.suspended.is_now() || self.closed.load(Ordering::SeqCst) {
            return Ok(false);
        }
        self.interrupted.store(false, Ordering::SeqCst);
        self.prepare(shared, live, WhileHeld::Fails)
    }

    /// Waits until no thread commits and none is going to.
    ///
    /// # Errors
    /// The pool is suspended: the thread that commits waits for it.
    fn keep_out(&self, shared: &Shared) -> Result<Issuing<'_>, WriteError> {
        let why = || shared.tx_state.closed().or_else(|| shared.tx_state.held());
        let issuing = self.issuer.keep_out(&|| why().is_some());
        issuing.ok_or_else(|| WriteError::Suspended(why().unwrap_or_default()))
    }

    /// Whether there is anything of it on disk, or may soon be.
    pub fn is_in_use(&self) -> bool {
        self.issuer.try_keep_out().is_none() || self.chain.lock().is_there()
    }

    /// Waits for the thread that commits; no thread writes to the log then, as long as logs are suspended. It is empty when
    /// all is on disk that was changed so far.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn empty(&self, shared: &Shared, live: &LiveObjectSet) -> Result<(), WriteError> {
        let _issuing = self.keep_out(shared)?;
        let ends_already = self.closed.load(Ordering::SeqCst) || !self.chain.lock().is_there();
        if ends_already { Ok(()) } else { self.touch(shared, live, WhileHeld::Fails) }
    }

    /// The dataset is going to be closed: as [`Log::empty`], and nothing is written to the log any more
    /// (`zil_close`). In a frozen pool all that waits is written before.
    ///
    /// # Errors
    /// The pool is suspended.
    pub fn close(&self, shared: &Shared, live: &LiveObjectSet) -> Result<(), WriteError> {
        if self.frozen.leaves_out(shared.tx_state.synced_txg() + 1) {
            if let Some(why) = shared.tx_state.held() {
                return Err(WriteError::Suspended(why));
            }
            self.commit(shared, live, Scope::All)?;
        }
        let _issuing = self.keep_out(shared)?;
        self.closed.store(true, Ordering::SeqCst);
        let is_there = self.chain.lock().is_there();
        if is_there { self.touch(shared, live, WhileHeld::Fails) } else { Ok(()) }
    }

    /// The dataset that was going to be closed stays open: its log begins again with the next commit.
    pub fn reopen(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// The dataset is destroyed, while logs are suspended: a thread that found it before does not start its log again.
    pub fn retire(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Whether group `txg`, which is being written, is whole as far as the log goes ([`Chain::check`]).
    ///
    /// # Errors
    /// It would leave a block that nothing leads to, and have commits acknowledged that no header leads to.
    pub fn check(&self, txg: u64) -> Result<(), WriteError> {
        if self.frozen.leaves_out(txg) {
            return Ok(());
        }
        let invalid = |why| WriteError::Invalid { object: self.ds_obj, why };
        self.chain.lock().check(txg).map_err(invalid)
    }

    /// The header for group `txg`, which is being written, and the blocks that are freed in it (`zil_sync`).
    /// `None`: the header stays.
    pub fn sync(&self, txg: u64) -> Option<(ZilHeader, Vec<BlockPointer>)> {
        if self.foreign || self.frozen.leaves_out(txg) {
            return None;
        }
        let (suspended, closed) = (self.suspended.is_now(), self.closed.load(Ordering::SeqCst));
        let mut chain = self.chain.lock();
        if suspended && !closed && chain.is_there() {
            self.interrupted.store(true, Ordering::SeqCst);
        }
        chain.sync(txg, suspended || closed)
    }
}

/// Whether the log of a dataset may have records of extended attributes among the system attributes.
///
/// # Errors
/// The dataset's features cannot be read.
pub(super) fn may_have_sa_xattrs(pool: &Pool, dataset: &Dataset) -> cenote_dmu::Result<bool> {
    Ok(pool.dsl().features(dataset)?.iter().any(|(guid, _)| guid == SA_XATTRS))
}

/// Notes that a dataset may have such records (`zil_commit_activate_saxattr_feature`); false if the pool lacks
/// the feature.
///
/// # Errors
/// The MOS cannot be read.
pub(super) fn activate_sa_xattrs(tx: &mut Tx<'_>, ds_obj: u64) -> cenote_dsl::write::Result<bool> {
    let enabled = features::is_enabled(tx, SA_XATTRS)?;
    if enabled {
        features::activate_dataset_feature(tx, ds_obj, SA_XATTRS)?;
    }
    Ok(enabled)
}
