//! What changes may write that no figure on disk has yet, and whether there is room for another change.
//!
//! # Idea
//!
//! A change says what it will make dirty (`dmu_tx_hold_*`). What was made dirty since the last committed
//! group is in no figure on disk yet, so it is counted here as *pending* (`dd_tempreserved`), as if
//! nothing compressed: at most so much while the change is being made, and what it really made dirty from
//! then on, pointers in indirect blocks and neighbours of dnodes included. What it will take in the
//! end depends on copies, parity and padding, so pending bytes count several times against the pool's
//! space ([`crate::room`]). Where that does not fit any more, changes wait for the open group to be
//! committed, which turns estimates into figures; so groups get smaller as a pool fills up. A change is
//! refused if there is no room for it while nothing is pending.
//!
//! ```text
//!  pool:  ├──── used ────┼─ deferred ─┼─ pending ──── x inflation ──>    ┊ slop ... half ...┤
//!                                                                       ^ changes          ^ frees
//! ```
//!
//! Space that was freed counts as used as long as it is deferred
//! ([`cenote_store::alloc::TXG_DEFER_SIZE`]); before a change is refused for that, groups are
//! committed until it is not. Changes that free may go beyond that, into half of the slop, so that a
//! full pool can be emptied.
//!
//! What is reserved counts as used for all but those for whom it is reserved. Where the rest does not
//! do, pending bytes are taken out of the unused reservations of their dataset first, from its own up to
//! the reservations of the directories above it, and only what is beyond them counts against the rest
//! ([`crate::room`]).
//!
//! Quotas are about figures, not about space that must be there: see [`crate::quota`].

use super::Datasets;
use crate::Shared;
use crate::quota::{self, Answer};
use crate::room::{Reserved, Room, Write};
use crate::txg::TxgHandle;
use ahash::HashMap;
use cenote_dmu::live::{Cost, Hold};
use cenote_dmu::write::WriteError;
use cenote_dsl::{Dsl, Quotas};
use cenote_format::invariant::broken;
use cenote_pool::Pool;
use cenote_store::alloc::{MAX_COPIES, TXG_DEFER_SIZE};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a new object is taken to need: its dnode and an entry in a directory, with copies.
pub(super) const OBJECT_BYTES: u64 = 4096;
/// In place of a group, for changes that have room but are not assigned to a group yet.
pub(super) const ASSIGNING: u64 = u64::MAX;
/// Groups that are committed for the sake of one change, so that freed space comes back.
const DEFERRED_RETRIES: u64 = TXG_DEFER_SIZE + 1;

/// Space that is left.
#[derive(Default)]
pub(super) struct Left {
    /// Group that the figures are of.
    txg: u64,
    /// How often figures were forgotten: what was read before that is of no use.
    forgotten: u64,
    /// Bytes that the pool has.
    pool: Option<Room>,
    /// What is known of each dataset.
    datasets: HashMap<u64, Arc<Known>>,
    /// Bytes that were assigned since, by group and dataset; changes that are being assigned are in [`ASSIGNING`].
    pub(super) pending: BTreeMap<u64, HashMap<u64, u64>>,
}

/// What bounds what a dataset may write, as the last group left it.
#[derive(Default)]
struct Known {
    /// Copies of its data.
    copies: u64,
    quotas: Quotas,
    reserved: Reserved,
}

impl Known {
    fn of(dsl: &Dsl, dataset: u64) -> Result<Known, WriteError> {
        let Some(dataset) = dsl.by_object(dataset)? else {
            return Ok(Known { copies: 1, ..Known::default() });
        };
        let copies = dsl.get(&dataset, "copies")?.and_then(|v| v.exact.parse().ok());
        Ok(Known {
            copies: copies.unwrap_or(1).clamp(1, MAX_COPIES as u64),
            quotas: dsl.quotas(&dataset)?,
            reserved: dsl.unused_reservations(&dataset)?.into(),
        })
    }

    fn write(&self, bytes: u64) -> Write {
        Write { bytes, copies: self.copies, reserved: self.reserved.clone() }
    }

    /// Bytes of all copies.
    fn copied(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.copies)
    }

    /// Whether it is in directory `dir` or below.
    fn is_below(&self, dir: u64) -> bool {
        self.quotas.dirs.iter().any(|(object, ..)| *object == dir)
    }
}

impl Left {
    fn pending_of(&self, dataset: u64) -> u64 {
        self.pending.values().filter_map(|group| group.get(&dataset)).sum()
    }

    /// The bytes that are pending of each dataset (`dsl_dir_space_towrite`). The first one is `dataset`, of which they are
    /// `own`.
    fn pending(&self, dataset: u64, own: u64) -> Vec<(u64, u64)> {
        let mut bytes = vec![(dataset, own)];
        let others = self.pending.values().flatten().filter(|(other, _)| **other != dataset);
        for (other, pending) in others {
            match bytes.iter_mut().find(|(known, _)| known == other) {
                Some((_, sum)) => *sum = sum.saturating_add(*pending),
                None => bytes.push((*other, *pending)),
            }
        }
        bytes
    }

    /// Nothing is pending of the groups up to `txg`: each is on disk, or had nothing.
    pub(super) fn done(&mut self, txg: u64) {
        self.pending.retain(|of, _| *of > txg);
    }

    /// From now on figures are of group `txg`.
    pub(super) fn forget(&mut self, txg: u64) {
        (self.txg, self.pool) = (txg, None);
        self.datasets.clear();
        self.forgotten += 1;
    }

    /// Takes in what was read, if it is not out of date.
    fn learn(&mut self, figures: Figures) {
        if self.forgotten == figures.missing.forgotten {
            self.pool = self.pool.or(figures.pool);
            self.datasets.extend(figures.datasets);
        }
    }

    fn add(&mut self, txg: u64, dataset: u64, bytes: u64) {
        *self.pending.entry(txg).or_default().entry(dataset).or_default() += bytes;
    }

    /// Takes bytes away that were added; false if they were not.
    fn take(&mut self, txg: u64, dataset: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let known = self.pending.get_mut(&txg).and_then(|group| group.get_mut(&dataset));
        let Some(known) = known else { return false };
        match known.checked_sub(bytes) {
            Some(left) => *known = left,
            None => return false,
        }
        true
    }

    /// Whether there is room for a change (`dsl_dir_tempreserve_space`). `dirty`: bytes that the dataset has to be
    /// written.
    ///
    /// Errors: what has to be read first.
    fn verdict(
        &self,
        objset: u64,
        (frees, bytes): (bool, u64),
        dirty: u64,
    ) -> Result<Verdict, Missing> {
        let own = self.pending_of(objset).max(dirty);
        let (mut all, mut datasets) = (Vec::new(), Vec::new());
        for (dataset, pending) in self.pending(objset, own) {
            match self.datasets.get(&dataset) {
                Some(known) => all.push((known.clone(), pending)),
                None => datasets.push(dataset),
            }
        }
        let Some(room) = self.pool.filter(|_| datasets.is_empty()) else {
            let (pool, forgotten) = (self.pool.is_none(), self.forgotten);
            return Err(Missing { pool, datasets, forgotten });
        };
        let idle = all.iter().all(|(_, pending)| *pending == 0);
        let mut writes: Vec<Write> =
            all.iter().map(|(known, pending)| known.write(*pending)).collect();
        match writes.first_mut() {
            Some(first) => first.bytes = first.bytes.saturating_add(bytes),
            None => broken(format_args!("dataset {objset}: {bytes} bytes count for no dataset")),
        }
        if !room.fits(frees, &writes, idle) {
            return Ok(match idle {
                true if room.deferred > 0 => Verdict::Deferred(WriteError::NoSpace),
                true => Verdict::No(WriteError::NoSpace),
                false => Verdict::Later,
            });
        }
        let Some((known, _)) = all.first().filter(|_| !frees) else { return Ok(Verdict::Room) };
        let below = |dir: u64| {
            let inside = all.iter().filter(|(known, _)| known.is_below(dir));
            inside.map(|(known, pending)| known.copied(*pending)).fold(0, u64::saturating_add)
        };
        Ok(match quota::ask(&known.quotas, known.copied(own), below) {
            Answer::Fits => Verdict::Room,
            Answer::Later => Verdict::Later,
            Answer::Full => Verdict::No(WriteError::Quota),
        })
    }
}

/// What is not known yet of a group.
struct Missing {
    /// What the pool has.
    pool: bool,
    datasets: Vec<u64>,
    /// [`Left::forgotten`] at the time.
    forgotten: u64,
}

/// What was read of the MOS, which takes as long as devices take.
struct Figures {
    missing: Missing,
    pool: Option<Room>,
    datasets: Vec<(u64, Arc<Known>)>,
}

impl Figures {
    fn read(shared: &Shared, view: &Pool, missing: Missing) -> Result<Figures, WriteError> {
        let pool = missing.pool.then(|| Room::of(shared, view)).transpose()?;
        let known = |dataset: &u64| Ok((*dataset, Arc::new(Known::of(view.dsl(), *dataset)?)));
        let datasets = missing.datasets.iter().map(known).collect::<Result<_, WriteError>>()?;
        Ok(Figures { missing, pool, datasets })
    }
}

/// A change that is being made: in the end it is charged with what it made dirty.
pub(super) struct Charged {
    tx_hold: TxgHandle,
    shared: Arc<Shared>,
    objset: u64,
    /// What it counts for at least, and what it was charged with.
    least: u64,
    bytes: u64,
    /// What it will be charged with.
    now: u64,
}

impl Charged {
    /// A change that is charged with `bytes`.
    pub(super) fn new(
        tx_hold: TxgHandle,
        shared: Arc<Shared>,
        objset: u64,
        least: u64,
        bytes: u64,
    ) -> Charged {
        Charged { tx_hold, shared, objset, least, bytes, now: bytes }
    }
}

impl Hold for Charged {
    fn settle(&mut self, bytes: u64, freed: u64) {
        self.now = bytes.max(self.least);
        self.tx_hold.settle(bytes, freed);
    }

    fn undone(&mut self) {
        self.now = 0;
        self.tx_hold.undone();
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        // The group cannot be quiesced before `tx_hold` is dropped, which is after this.
        let (txg, objset, bytes) = (self.tx_hold.txg, self.objset, self.bytes);
        let mut left = self.shared.datasets.left.lock();
        let was_there = left.take(txg, objset, bytes);
        if self.now > 0 {
            left.add(txg, objset, self.now);
        }
        drop(left);
        self.shared.datasets.counted(&self.shared, was_there, (objset, bytes));
    }
}

/// Bytes that a change makes dirty at most.
pub(super) fn estimate(cost: &Cost) -> u64 {
    cost.write.saturating_add(cost.objects.saturating_mul(OBJECT_BYTES))
}

/// Whether there is room for a change.
enum Verdict {
    Room,
    /// Not while so much is pending.
    Later,
    /// Not before freed space comes back.
    Deferred(WriteError),
    No(WriteError),
}

impl Datasets {
    /// Waits until there is room for a change that is taken to write `bytes`, and keeps it for the change,
    /// or refuses it (`dmu_tx_wait`). `dirty`: bytes that the dataset has to be written.
    pub(super) fn reserve(
        &self,
        shared: &Shared,
        objset: u64,
        (cost, bytes): (&Cost, u64),
        dirty: &AtomicU64,
    ) -> Result<(), WriteError> {
        if bytes == 0 {
            return Ok(());
        }
        let mut committed = 0;
        loop {
            match self.verdict(
                shared,
                objset,
                (cost.frees, bytes),
                dirty.load(Ordering::Relaxed),
            )? {
                Verdict::Room => return Ok(()),
                Verdict::Later => {}
                Verdict::Deferred(_) if committed < DEFERRED_RETRIES => {
                    committed += 1;
                    shared.disk.allocator.let_go();
                    shared.tx_state.ask();
                }
                // What was removed a moment ago is room as soon as it is freed.
                Verdict::Deferred(_) | Verdict::No(_) if !cost.frees && self.is_freeing() => {
                    shared.tx_state.ask();
                }
                Verdict::Deferred(refused) | Verdict::No(refused) => return Err(refused),
            }
            shared.tx_state.wait_before_assign()?;
        }
    }

    /// Whether some dataset is freeing what was removed.
    fn is_freeing(&self) -> bool {
        self.open.lock().sets.values().any(|(live, _)| live.is_freeing())
    }

    /// Whether there is room for a change, which is charged with it then.
    fn verdict(
        &self,
        shared: &Shared,
        objset: u64,
        change: (bool, u64),
        dirty: u64,
    ) -> Result<Verdict, WriteError> {
        loop {
            let view = shared.view();
            let missing = {
                let mut left = self.left.lock();
                match view.uberblock().txg {
                    // There is a newer view by now.
                    txg if txg < left.txg => continue,
                    txg if txg > left.txg => left.forget(txg),
                    _ => {}
                }
                match left.verdict(objset, change, dirty) {
                    Ok(verdict) => {
                        if matches!(verdict, Verdict::Room) {
                            left.add(ASSIGNING, objset, change.1);
                        }
                        return Ok(verdict);
                    }
                    Err(missing) => missing,
                }
            };
            // Others go on while it is read.
            let figures = Figures::read(shared, &view, missing)?;
            self.left.lock().learn(figures);
        }
    }

    /// Charges a dataset with what a change may write in a group (`dsl_dir_willuse_space`).
    pub(super) fn charge(&self, shared: &Shared, (txg, objset): (u64, u64), bytes: u64) {
        if bytes > 0 {
            let mut left = self.left.lock();
            let was_there = left.take(ASSIGNING, objset, bytes);
            left.add(txg, objset, bytes);
            drop(left);
            self.counted(shared, was_there, (objset, bytes));
        }
    }

    /// Bytes that a change may write were counted, or the pool is suspended.
    fn counted(&self, shared: &Shared, was_there: bool, (objset, bytes): (u64, u64)) {
        if !was_there {
            let why = format!("dataset {objset}: {bytes} bytes of a change were never counted");
            tracing::error!("{why}");
            shared.suspend(&why);
        }
    }

    pub(super) fn give_back(&self, shared: &Shared, (txg, objset): (u64, u64), bytes: u64) {
        let was_there = self.left.lock().take(txg, objset, bytes);
        self.counted(shared, was_there, (objset, bytes));
    }
}
