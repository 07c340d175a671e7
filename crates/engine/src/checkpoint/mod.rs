//! The pool's checkpoint (`spa_checkpoint`): the pool as one transaction group left it, kept until it is discarded.
//!
//! # Idea
//!
//! ```text
//!   group N: uberblock ──────────────┐ kept in the object directory of all groups after N
//!                                     v
//!   blocks born up to N ── freed ──> checkpoint's space maps      (`space_write::checkpoint`)
//!   blocks born after N ── freed ──> free, two groups later
//! ```
//!
//! Taking one writes the uberblock of the last group into the object directory. From then on blocks that it leads to are
//! not freed but kept ([`Allocator::free_born`](cenote_store::alloc::Allocator::free_born)). So its whole tree stays readable, with the
//! space maps as they were. To go back to it is to write its uberblock as the newest ([`write_rewound`]), after
//! all that could refuse the import was read, and before anything else is written: what came after it is in no space map then.
//!
//! To discard it is to forget the uberblock at once, and to free what is in its space maps then, a
//! piece in each group ([`Core::discard_checkpoint`]), also after another import. Only then can there be the next one.
//!
//! The task that takes or discards one runs first in its group (`dsl_early_sync_task`): the same rule holds for all that the
//! group frees. So the checkpoint has everything that was written before, and nothing of it is freed beside it.
//!
//! While there is one, devices neither join a vdev nor leave one, and the pool keeps its guid: the config that
//! the checkpoint has must still find its devices. A vdev that was added is not the pool's any more after going back.
//! What only the checkpoint refers to is not walked by scans, so a resilver leaves dirty time logs as they are.
//!
//! # Invariants
//!
//! - The feature `zpool_checkpoint` is active from taking a checkpoint until it is discarded in full.
//! - Its space maps have what is allocated, and is in no other free list; their sum is what the allocator has as kept.

use super::error::EngineError;
use super::features::count_feature;
use super::space::pool_space;
use super::sync_core::Core;
use super::task::{SpaceCheck, Turn};
use super::{Disk, Engine, Shared, SyncContext, tunables};
use crate::space_write::map::feature_uses;
use cenote_dmu::write::zap::ZapMut;
use cenote_dmu::write::{OpenObjectSet, WriteError};
use cenote_dsl::deadlist::Sizes;
use cenote_dsl::write::{DslWriteError, Result, Tx, features};
use cenote_format::blkptr::{BlockPointer, Dva};
use cenote_format::encode::zap::{Key, Value};
use cenote_format::invariant;
use cenote_pool::checkpoint::{ENTRY, FEATURE};
use cenote_pool::{Pool, history};
use cenote_vdev::LabelUpdate;
use std::result::Result as StdResult;

/// Object number of the object directory.
const DIRECTORY: u64 = 1;
/// Blocks of the MOS that taking a checkpoint changes, about.
const CHANGED_BLOCKS: u64 = 8;

fn invalid<T>(why: &str) -> Result<T> {
    Err(DslWriteError::Invalid(why.into()))
}

impl Engine {
    /// Takes a checkpoint of the pool as it is now (`spa_checkpoint`, `zfs_ioc_pool_checkpoint`, `lzc_pool_checkpoint`).
    ///
    /// # Errors
    /// There is one, or one is being discarded; a vdev is being removed; the feature is disabled; there is no room; the
    /// pool is suspended.
    pub fn checkpoint(&self) -> StdResult<(), EngineError> {
        // What waits is part of it.
        self.sync()?;
        let shared = self.shared.clone();
        let take = move |context: &mut SyncContext<'_>| context.take_checkpoint(&shared.view());
        self.shared.queue.run_at(Turn::First, &self.shared.tx_state, take, |()| true)
    }

    /// Begins to discard the pool's checkpoint (`spa_checkpoint_discard`). It cannot be gone back to any more; what it
    /// kept is freed in the groups that follow.
    ///
    /// # Errors
    /// There is no checkpoint, or it is being discarded already; the pool is suspended.
    pub fn discard_checkpoint(&self) -> StdResult<(), EngineError> {
        let discard = |context: &mut SyncContext<'_>| context.forget_checkpoint();
        self.shared.queue.run_at(Turn::First, &self.shared.tx_state, discard, |()| true)
    }

    /// Whether a checkpoint is being discarded. It is not if its space maps cannot be read.
    pub fn discards(&self) -> bool {
        self.core.try_lock().is_none_or(|core| core.discarding)
    }

    /// Whether what was destroyed is not freed, since a checkpoint leaves no room for that.
    pub fn waits_to_free(&self) -> bool {
        self.core.try_lock().is_some_and(|core| core.waits_to_free)
    }
}

impl Shared {
    /// Whether the pool has a checkpoint, or is discarding one, as far as groups show it.
    pub(super) fn has_checkpoint(&self) -> bool {
        let view = self.view();
        self.disk.allocator.checkpoint().is_some() || view.features().is_active("zpool_checkpoint")
    }
}

impl SyncContext<'_> {
    /// Whether the pool has a checkpoint, or is discarding one.
    pub(super) fn has_checkpoint(&mut self) -> Result<bool> {
        Ok(feature_uses(self.tx.mos, FEATURE)?.is_some_and(|uses| uses > 0))
    }

    /// Refuses what the pool's config must not change by while there is a checkpoint: devices that leave or join a vdev, vdevs
    /// that are removed, another guid.
    ///
    /// # Errors
    /// There is one, or one is being discarded: with OpenZFS's words.
    pub(super) fn refuse_with_checkpoint(&mut self) -> Result<()> {
        match (self.has_checkpoint()?, self.disk.allocator.checkpoint()) {
            (false, _) => Ok(()),
            (true, Some(_)) => invalid("checkpoint exists"),
            (true, None) => invalid("currently discarding checkpoint"),
        }
    }

    /// See [`Engine::checkpoint`]. `before` is the pool as the last group left it.
    fn take_checkpoint(&mut self, before: &Pool) -> Result<()> {
        if feature_uses(self.tx.mos, FEATURE)?.is_none() {
            return invalid("operation not supported on this type of pool");
        }
        if !self.maps.can_keep() {
            return invalid("device exceeds supported size");
        }
        if self.maps.evacuation().is_some() {
            return invalid("device removal in progress");
        }
        if self.disk.tree().expanding().is_some() {
            return invalid("raidz expansion in progress");
        }
        if self.disk.allocator.has_growing() {
            return invalid("what is freed in an object store is not kept for a checkpoint");
        }
        self.refuse_with_checkpoint()?;
        if !self.has_room(SpaceCheck::Normal, CHANGED_BLOCKS)? {
            return Err(DslWriteError::NoSpace);
        }
        let words = before.checkpoint_words();
        let (key, value) = (Key::Name(ENTRY.as_bytes()), Value::U64(&words));
        ZapMut::open(self.tx.mos, DIRECTORY).add(&key, &value)?;
        features::increment(&mut self.tx, FEATURE)?;
        let txg = before.uberblock().txg;
        self.record("spa checkpoint", &format!("checkpointed uberblock txg={txg}"))?;
        // Nothing that comes after can fail.
        self.tx.mos.check_change()?;
        let now = self.tx.txg;
        invariant!(txg < now, "group {now} takes a checkpoint of group {txg}");
        self.disk.allocator.set_checkpoint(Some(txg));
        Ok(())
    }

    /// See [`Engine::discard_checkpoint`].
    fn forget_checkpoint(&mut self) -> Result<()> {
        if !self.has_checkpoint()? {
            return invalid("checkpoint does not exist");
        }
        if self.disk.allocator.checkpoint().is_none() {
            return invalid("currently discarding checkpoint");
        }
        ZapMut::open(self.tx.mos, DIRECTORY).remove(&Key::Name(ENTRY.as_bytes()))?;
        let message = "started discarding checkpointed state from the pool";
        self.record("spa discard checkpoint", message)?;
        self.tx.mos.check_change()?;
        self.disk.allocator.set_checkpoint(None);
        Ok(())
    }
}

impl Core {
    /// Frees some of what a checkpoint kept that is being discarded (`spa_checkpoint_discard_thread_sync`). What cannot be
    /// read of its space maps is left until the pool is imported again. Returns whether this was the last piece.
    pub(super) fn discard_checkpoint(&mut self, disk: &Disk, txg: u64) -> Result<bool> {
        let active = feature_uses(&mut self.mos, FEATURE)?.is_some_and(|uses| uses > 0);
        self.discarding &= active && disk.allocator.checkpoint().is_none();
        if !self.discarding {
            return Ok(false);
        }
        let (maps, no_sizes) = (&self.maps, |_: &BlockPointer| Sizes::default());
        let mut tx = Tx::new(&mut self.mos, txg, &disk.outside, &no_sizes);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, &disk.outside, guid, delta)
        };
        let longest = tunables::SPA_DISCARD_MEMORY_LIMIT.get() / 2;
        let piece = tx.unless_unreadable("the checkpoint is not discarded", |tx| {
            let piece = maps.discard(tx.mos, txg, longest, &mut count)?;
            if piece.all {
                features::decrement(tx, FEATURE)?;
                let message = "finished discarding checkpointed state from the pool";
                let record =
                    history::internal("spa discard checkpoint", message, None, txg, tx.now);
                history::append(tx.mos, &record)?;
            }
            Ok(piece)
        })?;
        let Some(piece) = piece else {
            // Devices that are away may come back.
            self.discarding = disk.tree().has_outage();
            return Ok(false);
        };
        self.discarding = !piece.all;
        self.maps.discarded(&piece);
        for (vdev, from, to) in piece.ranges {
            let vdev = u32::try_from(vdev).map_err(|_| DslWriteError::NotFound)?;
            let dva = Dva { vdev, offset: from, asize: to - from, gang: false };
            if let Err(why) = disk.allocator.free_kept(txg, &dva) {
                tracing::warn!("what a checkpoint kept is leaked: {why}");
            }
        }
        Ok(piece.all)
    }
}

/// Whether what was destroyed must not be freed now (`spa_suspend_async_destroy`): to free it takes space, of
/// which a checkpoint gives nothing back, and that which is left is needed to discard the checkpoint.
pub(super) fn must_wait(disk: &Disk, tx: &mut Tx<'_>) -> Result<bool> {
    let (Some(usable), Some(_)) = (tx.usable, disk.allocator.checkpoint()) else {
        return Ok(false);
    };
    let slop = pool_space(disk).slop();
    let used = cenote_dsl::write::pool::used(tx)?;
    Ok(used >= usable.saturating_add(slop - slop / 4))
}

/// Tells the allocator of the checkpoint of a pool that is opened.
///
/// # Errors
/// What the MOS says of it cannot be read.
pub(super) fn begin(pool: &Pool, disk: &Disk) -> StdResult<(), EngineError> {
    disk.allocator.set_checkpoint(pool.checkpoint()?.map(|uberblock| uberblock.checkpoint_txg));
    disk.allocator.begin_with_kept(pool.checkpoint_space()?);
    Ok(())
}

/// Makes the uberblock that `pool` was opened at, its checkpoint's, the newest on its devices (`spa_ld_checkpoint_rewind`). There is
/// no way back from then on. Until then all that came after the checkpoint is as it was.
///
/// # Errors
/// A device in use does not take it: found alone later, it would lead to a state that was overwritten meanwhile.
pub(super) fn write_rewound(pool: &Pool) -> StdResult<(), EngineError> {
    let tree = pool.store().vdevs();
    let concrete = |kind: &str| !matches!(kind, "hole" | "missing" | "indirect");
    let tops = tree.root().children().iter().filter(|top| concrete(top.kind()));
    let tops: Vec<u64> = tops.map(|top| top.id()).collect();
    let (uberblock, labels) = (pool.uberblock(), &[][..]);
    let multihost = pool.get("multihost").is_some_and(|set| set.exact == "on");
    let update = LabelUpdate { uberblock, uberblock_on: &tops, labels, multihost };
    let written = tree.sync_labels_on_all(&update);
    written.map_err(|e| WriteError::Sink(Box::new(e)).into())
}
