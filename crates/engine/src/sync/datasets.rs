//! The datasets of a transaction group, written side by side (`dsl_pool_sync`, `dmu_objset_sync`).
//!
//! # Idea
//!
//! ```text
//!  prepare ───> write ───────> account ──────────> write ───────> account
//!  asks the     object sets,   tells the MOS,       what owners    tells the MOS
//!  MOS          side by side   counts for owners    use
//! ```
//!
//! The MOS belongs to the sync thread, which asks it and tells it of one dataset after the other. To write an object set
//! takes nothing of the MOS. So several threads write the object sets of a group, while nothing else happens. A large one
//! keeps all processors busy by itself, and its blocks should lie side by side: it is written alone.
//!
//! # Invariants
//!
//! - The MOS is told of datasets in the order of their numbers, whatever thread was done first.
//! - Nothing is left in an object set once its group has it.
//! - Once it was counted what owners use, nothing else is written.

use super::super::accounting::{self, Counted};
use super::super::datasets::Datasets;
use super::super::policy::{Abilities, Policy};
use super::super::sink::Sink;
use super::super::zil::{self, Early};
use super::super::{Disk, Shared, space};
use super::{Core, Quiesced};
use cenote_dmu::live::LiveObjectSet;
use cenote_dmu::write::{Synced, SyncingSet, WriteError, WrittenSet};
use cenote_dsl::write::{Result, Tx, receive};
use cenote_dsl::zil::parallel;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::ObjsetType;
use cenote_format::invariant;
use cenote_format::invariant::caught;
use cenote_pool::Pool;
use cenote_store::Store;
use parking_lot::Mutex;
use std::sync::Arc;

/// Most threads that write object sets. One that reads from a device leaves the processor to another.
const THREADS: usize = 8;
/// Dirty bytes of an object set that is written alone.
const LARGE: u64 = 1 << 20;

/// The datasets of a group, with what was written of them; of a dataset that is gone nothing was.
pub(super) type Written = Vec<(Arc<LiveObjectSet>, Option<WrittenSet>)>;

/// A dataset of the group.
struct Part {
    live: Arc<LiveObjectSet>,
    set: SyncingSet,
    policy: Policy,
    early: Option<Arc<Early>>,
    counted: Counted,
    /// What writing it came to, until the MOS is told.
    wrote: Option<cenote_dmu::write::Result<Synced>>,
    /// It has something to write.
    waits: bool,
}

impl Part {
    fn write(&mut self, disk: &Disk, txg: u64, abilities: Abilities) {
        let tree = disk.tree();
        let (writer, tree, policy) = (&disk.writer, &**tree, &self.policy);
        let (pass, log, dedup, born) = (1, None, None, None);
        let early = self.early.as_deref();
        let sink = Sink { writer, tree, policy, abilities, pass, log, dedup, born, early };
        let (set, counted) = (&mut self.set, self.counted);
        let (id, told) = (self.live.id(), self.wrote.is_none());
        let write = || {
            invariant!(
                told,
                "dataset {id} is written again, and the MOS is not told of the first time"
            );
            Store::vouch(|| accounting::write(set, txg, &sink, counted))
        };
        // The sync thread is told, whatever thread this is.
        let broken = |why: String| Err(WriteError::Sink(why.into()));
        self.wrote = Some(caught(write).unwrap_or_else(broken));
        self.waits = false;
    }
}

/// Writes those that have something to write.
fn write(disk: &Disk, txg: u64, abilities: Abilities, parts: &mut [Part]) {
    let waiting = parts.iter_mut().filter(|part| part.waits);
    let (large, small): (Vec<_>, Vec<_>) =
        waiting.partition(|part| part.set.dirty_bytes() >= LARGE);
    large.into_iter().for_each(|part| part.write(disk, txg, abilities));
    let small: Vec<_> = small.into_iter().map(Mutex::new).collect();
    let threads = if disk.allocator.works_in_background() { THREADS } else { 1 };
    parallel::each(threads, &small, |part| part.lock().write(disk, txg, abilities));
}

impl Core {
    pub(super) fn sync_datasets(
        &mut self,
        shared: &Shared,
        txg: u64,
        abilities: Abilities,
        quiesced: Quiesced,
    ) -> Result<Written> {
        let (view, datasets) = (shared.view(), &shared.datasets);
        let (mut parts, mut gone) = (Vec::with_capacity(quiesced.len()), Vec::new());
        let mut last = None;
        for (live, set) in quiesced {
            let (before, id) = (last.replace(live.id()), live.id());
            invariant!(before < Some(id), "dataset {id} is written after dataset {before:?}");
            match self.prepare(shared, &view, txg, live, set)? {
                Ok(part) => parts.push(part),
                Err(live) => gone.push((live, None)),
            }
        }
        write(&shared.disk, txg, abilities, &mut parts);
        for part in &mut parts {
            let Some(synced) = self.account(shared, &view, txg, part)? else { continue };
            part.waits = self.with_tx(shared, &view, txg, |tx| {
                accounting::count_owners(tx, &mut part.set, part.live.id(), &synced, part.counted)
            })?;
        }
        write(&shared.disk, txg, abilities, &mut parts);
        for part in &mut parts {
            let again = self.account(shared, &view, txg, part)?;
            again.iter().for_each(|synced| accounting::check_counted(part.live.id(), synced));
            self.save_point(shared, &view, txg, part.live.id())?;
            self.frees.extend(part.early.iter().flat_map(|early| early.left(txg)));
        }
        datasets.check_logs(txg)?;
        datasets.set_abilities(abilities);
        let written = parts.into_iter().map(|part| (part.live, Some(part.set.finish())));
        Ok(written.chain(gone).collect())
    }

    /// Finds how a dataset is written. A dataset that is gone is given back. The sync holds one reference to a dataset at any time, since
    /// [`Datasets::is_used`] takes a second one for a user.
    fn prepare(
        &mut self,
        shared: &Shared,
        view: &Pool,
        txg: u64,
        live: Arc<LiveObjectSet>,
        mut set: SyncingSet,
    ) -> Result<std::result::Result<Part, Arc<LiveObjectSet>>> {
        let id = live.id();
        let datasets: &Datasets = &shared.datasets;
        let early = datasets.early(id);
        let log = datasets.sync_log(id, txg);
        let Some(dataset) = view.dsl().by_object(id)? else {
            // It was destroyed while someone held on to it.
            tracing::warn!("changes of dataset {id}, which is gone, are dropped");
            self.frees.extend(early.iter().flat_map(|early| early.left(txg)));
            self.frees.extend(log.into_iter().flat_map(|(_, freed)| freed));
            return Ok(Err(live));
        };
        if let Some((header, freed)) = log {
            set.set_zil_header(header);
            self.frees.extend(freed);
        }
        let policy = datasets.policy(view, &dataset)?;
        let is_files = set.synced().phys().kind == ObjsetType::Zfs;
        let lacks = is_files && datasets.lacks_sa_xattrs(id);
        let counted = self.with_tx(shared, view, txg, |tx| {
            if lacks && zil::activate_sa_xattrs(tx, id)? {
                datasets.activates_sa_xattrs(id, txg);
            }
            Counted::of(tx, &set, id)
        })?;
        Ok(Ok(Part { live, set, policy, early, counted, wrote: None, waits: true }))
    }

    /// Tells the MOS what was written of a dataset, if it was.
    fn account(
        &mut self,
        shared: &Shared,
        view: &Pool,
        txg: u64,
        part: &mut Part,
    ) -> Result<Option<Synced>> {
        let Some(written) = part.wrote.take() else { return Ok(None) };
        let (mut synced, tree) = (written?, shared.disk.tree());
        // What no deduplication table counts is for the block reference tables.
        synced.cloned = shared.disk.dedup.add_references(&synced.cloned);
        #[cfg(feature = "planted")]
        shared.datasets.planted.spoil(&mut synced);
        let charge = |tx: &mut Tx<'_>| accounting::charge(tx, part.live.id(), &synced, &tree);
        self.with_tx(shared, view, txg, charge)?;
        shared.scanner.written(&mut self.mos, (txg, part.live.id()), &synced.born);
        Ok(Some(synced))
    }

    /// Notes how far a dataset that is being received is.
    fn save_point(&mut self, shared: &Shared, view: &Pool, txg: u64, id: u64) -> Result<()> {
        let Some(point) = shared.receives.take(id, txg) else { return Ok(()) };
        self.with_tx(shared, view, txg, |tx| receive::save_point(tx, id, point))
    }

    fn with_tx<T>(
        &mut self,
        shared: &Shared,
        view: &Pool,
        txg: u64,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T>,
    ) -> Result<T> {
        let sizes = |bp: &BlockPointer| space::sizes(&shared.disk.tree(), bp);
        let mut tx = Tx {
            pool: view.name(),
            frees: std::mem::take(&mut self.frees),
            deadlists: Some(&mut self.deadlists),
            ..Tx::new(&mut self.mos, txg, &shared.disk.outside, &sizes)
        };
        let done = change(&mut tx);
        self.frees = tx.frees;
        done
    }
}
