//! Figures that are known from two sides are compared before the uberblock of a transaction group is written. If they
//! do not agree, the group fails: see [`cenote_format::invariant`].
//!
//! | figure | other side | where |
//! |---|---|---|
//! | what a dataset refers to | blocks born less blocks killed | [`grew`] |
//! | blocks that a head kills | blocks of the same place and birth that it was given here | `cenote_dsl::write::own` |
//! | what is used by a directory | its parts | [`Core::verify`] |
//! | the same | its head; the deadlists of its snapshots | [`by_walk`] |
//! | allocated bytes of a metaslab | its space map and the logs | [`crate::space_write`] |
//! | dirty bytes | nothing, when all groups are on disk | [`crate::txg`] |
//!
//! Only builds with debug assertions walk snapshots.
//!
//! # Numbers of other systems
//!
//! What did not agree on disk before is no invariant: another system may have left it, and the pool works. What is
//! compared is the difference that a sync of a head makes to what the head refers to, and the blocks that it was given
//! while there was a book of it: that fails the group.
//!
//! A number that was read and falls below zero wraps, as OpenZFS's does. The log says so, with both numbers, for what a head
//! refers to and has alone, and for what the directory of a head uses, where a sync of the head did it ([`below_zero`]). It
//! cannot be told whether the number was wrong on disk or a block was counted twice here before a book of the head began.
//! Not looked at are sums of compressed and uncompressed bytes, of snapshots, of directories above, and what tasks
//! (destroy, promote, a swap) make of all of them.

use super::Shared;
use super::error::EngineError;
use super::sync_core::Core;
use cenote_dmu::write::Synced;
use cenote_dsl::Dsl;
use cenote_dsl::write::Tx;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dsl::{DD_FLAG_USED_BREAKDOWN, DslDatasetPhys, DslDirPhys};
use cenote_format::invariant;
use cenote_format::{ByteOrder, Bytes};
use cenote_vdev::VdevTree;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most snapshots of a dataset whose deadlists are looked at.
const MOST_SNAPSHOTS: usize = 32;

/// What a dataset refers to, and what it has alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    referenced: u64,
    unique: u64,
}

thread_local! {
    /// What comparing took of this thread's time.
    static TOOK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Compares something; the time that it takes is part of the [`took`].
fn compare<T>(work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    TOOK.set(TOOK.get() + begun.elapsed());
    done
}

/// How long this thread has compared since it was last asked: of a sync thread, for the group that it writes. Books of heads, which are kept
/// by the threads that write blocks, are not in it.
pub(super) fn took() -> Duration {
    TOOK.take()
}

/// Sums of dataset `ds_obj` in the pending MOS, in bytes.
pub(super) fn sums(tx: &mut Tx<'_>, ds_obj: u64) -> Option<Sums> {
    compare(|| read_sums(tx, ds_obj))
}

fn read_sums(tx: &mut Tx<'_>, ds_obj: u64) -> Option<Sums> {
    let bonus = &tx.mos.dnode(ds_obj).ok()?.bonus;
    let ds = DslDatasetPhys::decode(&Bytes::new(bonus, ByteOrder::Little, "dataset")).ok()?;
    Some(Sums { referenced: ds.referenced, unique: ds.unique })
}

/// Blocks were born and killed in a dataset that had the sums `old`: it refers to the difference more.
pub(super) fn grew(tx: &mut Tx<'_>, ds_obj: u64, old: Sums, synced: &Synced, tree: &VdevTree) {
    compare(|| compare_sums(tx, ds_obj, old, synced, tree));
}

fn compare_sums(tx: &mut Tx<'_>, ds_obj: u64, old: Sums, synced: &Synced, tree: &VdevTree) {
    let sum = |blocks: &[BlockPointer]| {
        let real = blocks.iter().filter(|bp| !bp.is_hole());
        real.fold(0u64, |sum, bp| sum.wrapping_add(super::space::deflated(tree, bp)))
    };
    let before = old.referenced;
    let after = before.wrapping_add(sum(&synced.born)).wrapping_sub(sum(&synced.killed));
    let now = read_sums(tx, ds_obj);
    if let Some(now) = now {
        below_zero((ds_obj, "refers to"), before, now.referenced);
        below_zero((ds_obj, "alone has"), old.unique, now.unique);
    }
    let is = now.map(|now| now.referenced);
    if synced.leaked > 0 && is.is_some_and(|is| is < after) {
        // It does not refer any more to what is leaked.
        return;
    }
    invariant!(
        is == Some(after),
        "dataset {ds_obj} refers to {is:?} bytes, and to {after} by the blocks of this group; before to {before}"
    );
}

/// How many bytes more the parts of what a directory uses are than all of it.
fn parts_beyond(dir: &DslDirPhys) -> u64 {
    let sum = dir.used_breakdown.iter().fold(0u64, |sum, part| sum.wrapping_add(*part));
    match dir.flags & DD_FLAG_USED_BREAKDOWN {
        0 => 0,
        _ => sum.wrapping_sub(dir.used),
    }
}

/// Sums are two's complement: a dataset of half of all numbers of bytes there is not.
fn is_below_zero(sum: u64) -> bool {
    sum > i64::MAX as u64
}

/// Tells the log of a sum of a dataset that falls below zero in the group: see the [module](self).
fn below_zero((ds_obj, what): (u64, &str), before: u64, now: u64) {
    if is_below_zero(now) && !is_below_zero(before) {
        let now = now as i64;
        tracing::warn!(
            "dataset {ds_obj} {what} {now} bytes by what the group freed, and before {before}: one of these numbers is wrong"
        );
    }
}

impl Core {
    /// Compares what is used by the directories of datasets that the group changed, which is about to get on disk.
    ///
    /// # Errors
    /// The MOS cannot be read.
    pub(super) fn verify(
        &mut self,
        shared: &Shared,
        changed: impl Iterator<Item = u64> + Clone,
    ) -> Result<(), EngineError> {
        compare(|| self.compare_parts(shared, changed))
    }

    fn compare_parts(
        &mut self,
        shared: &Shared,
        changed: impl Iterator<Item = u64> + Clone,
    ) -> Result<(), EngineError> {
        for ds_obj in changed.clone() {
            // Some are destroyed in the group.
            let Some(dir) = self.pending_dir(ds_obj) else { continue };
            let beyond = parts_beyond(&dir);
            if beyond == 0 && !is_below_zero(dir.used) {
                continue;
            }
            let before = shared.view().dsl().by_object(ds_obj)?.map(|before| before.dir);
            let used = before.as_ref().map_or(0, |before| before.used);
            below_zero((ds_obj, "uses in its directory"), used, dir.used);
            let before = before.as_deref().map_or(0, parts_beyond);
            let (used, parts) = (dir.used, dir.used_breakdown);
            invariant!(
                beyond == before,
                "dataset {ds_obj}: its directory uses {used} bytes, and its parts are {parts:?}"
            );
            if beyond == 0 {
                continue;
            }
            tracing::warn!("dataset {ds_obj}: {parts:?} are not the {used} bytes that it uses");
        }
        if cfg!(debug_assertions) {
            by_walk(&shared.view().dsl().after(self.mos.synced().clone())?, changed);
        }
        Ok(())
    }

    /// The directory of a dataset in the pending MOS, if both are there.
    fn pending_dir(&mut self, ds_obj: u64) -> Option<DslDirPhys> {
        let bonus = &self.mos.dnode(ds_obj).ok()?.bonus;
        let ds = DslDatasetPhys::decode(&Bytes::new(bonus, ByteOrder::Little, "dataset")).ok()?;
        let bonus = &self.mos.dnode(ds.dir).ok()?.bonus;
        DslDirPhys::decode(&Bytes::new(bonus, ByteOrder::Little, "directory")).ok()
    }
}

/// What is used by the directories of datasets that a group changed. `dsl` is of that group.
fn by_walk(dsl: &Arc<Dsl>, changed: impl Iterator<Item = u64>) {
    for ds_obj in changed {
        // Datasets go, and what cannot be read is no matter of sums.
        let Ok(Some(head)) = dsl.by_object(ds_obj) else { continue };
        let breakdown = head.dir.used_breakdown;
        if head.dir.flags & DD_FLAG_USED_BREAKDOWN == 0 {
            continue;
        }
        let sum = breakdown.iter().fold(0u64, |sum, part| sum.wrapping_add(*part));
        assert_eq!(sum, head.dir.used, "parts of what {} uses: {breakdown:?}", head.name);
        let Ok(snapshots) = dsl.snapshots(&head) else { continue };
        let cloned = snapshots.iter().any(|s| s.ds.num_children > 1);
        if cloned
            || snapshots.len() > MOST_SNAPSHOTS
            || matches!(dsl.origin(&head), Ok(Some(_)) | Err(_))
        {
            continue;
        }
        let [by_head, by_snapshots, ..] = breakdown;
        assert_eq!(by_head, head.ds.referenced, "used by the head of {}", head.name);
        let dead = snapshots.iter().chain([&head]).map(|d| Some(dsl.deadlist(d).ok()?.total.used));
        let Some(dead) = dead.sum::<Option<u64>>() else { continue };
        assert_eq!(dead, by_snapshots, "deadlists of {}", head.name);
    }
}
