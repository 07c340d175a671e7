//! A vdev for intent logs leaves the pool (`spa_vdev_remove_log`).
//!
//! ```text
//! passive ── no log gets another block there
//!    │       every open log ends, in one group, and begins anew elsewhere
//!    ▼
//!  empty  ── a sync task: what the MOS has of it is freed, a hole takes its place in the config
//!    │       the uberblock of that group makes it so
//!    ▼
//!   gone  ── its devices get the labels of such as are of no pool
//! ```
//!
//! Logs that wait for their replay keep their blocks; then the vdev stays, and is used again. No device of it is read or
//! written for all that, so it may be broken or absent. A crash before the uberblock leaves the pool with the vdev, and one
//! after it without, its devices with the labels of a group that is past. Where the group is held in a suspended pool, the
//! command waits until the pool goes on.
//!
//! A sequential rebuild of the vdev ends with it, in the same group: also one that waits for a device that does not answer.
//!
//! Invariant: nothing of the vdev is allocated when the task runs, and since it is passive, nothing is from then on. What is
//! freed and deferred is never given out again.

use super::{Gone, Passive, RemoveError, leaves_left};
use crate::features::count_feature;
use crate::{Engine, SyncContext};
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{DslWriteError, Result as DslResult};
use cenote_format::invariant;
use cenote_pool::config::{self, children};
use cenote_pool::surgery;
use cenote_vdev::Vdev;
use std::sync::Arc;

/// Groups in each of which all logs are ended, so that a vdev may get empty.
const TRIES: usize = 3;

/// What came of the task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The vdev has left.
    Whole,
    /// The same, and with it a rebuild that was under way ended.
    Rebuilt,
    /// Something of it is allocated.
    Stays,
}

impl Engine {
    /// Removes a log vdev.
    pub(super) fn remove_log(&self, vdev: &Arc<Vdev>) -> Result<(), RemoveError> {
        let (id, guid) = (vdev.id(), vdev.guid());
        let passive = Passive::new(&self.shared.disk.allocator, id);
        self.empty_log(id)?;
        self.give_up_activities(vdev);
        let change = move |context: &mut SyncContext<'_>| {
            let left = context.remove_log(id, guid)?;
            if left != Left::Stays {
                passive.leaves();
            }
            Ok(left)
        };
        let left = self.sync_task_beside_logs(change, |left| *left != Left::Stays)?;
        if left == Left::Stays {
            return Err(RemoveError::LogsWait);
        }
        self.shared.settle_gone();
        if left == Left::Rebuilt {
            self.shared.after_rebuild(false);
        }
        Ok(())
    }

    /// Has logs leave a log vdev that is passive (`spa_reset_logs`).
    fn empty_log(&self, id: u64) -> Result<(), RemoveError> {
        for _ in 0..TRIES {
            if self.shared.disk.allocator.is_empty(id) {
                return Ok(());
            }
            // All logs end in the group of a task that wants no dataset to have one.
            self.sync_task(|_| Ok(()))?;
        }
        match self.shared.disk.allocator.is_empty(id) {
            true => Ok(()),
            false => Err(RemoveError::LogsWait),
        }
    }
}

impl SyncContext<'_> {
    /// Takes a log vdev out of the pool.
    fn remove_log(&mut self, id: u64, guid: u64) -> DslResult<Left> {
        self.refuse_with_checkpoint()?;
        if self.disk.frozen.leaves_out(self.tx.txg) {
            let why = "the pool is frozen: export and import it first";
            return Err(DslWriteError::Invalid(why.into()));
        }
        if !self.disk.allocator.is_empty(id) {
            return Ok(Left::Stays);
        }
        let tree = self.disk.tree();
        let top = tree.top(id).filter(|top| top.guid() == guid).ok_or(DslWriteError::NotFound)?;
        let mut root = self.config.vdev_tree.clone();
        let at = usize::try_from(id).unwrap_or(usize::MAX);
        let mut config = children(&root).get(at).cloned().ok_or(DslWriteError::NotFound)?;
        let leaves = leaves_left(self.config, top, &config);
        surgery::make_hole(&mut root, id).ok_or(DslWriteError::NotFound)?;
        let now = self.altered_tree(&root, id, &mut |_, _| None, &|guid| guid)?;
        let path =
            config::path(top.config()).map_or_else(|| "-".into(), |p| p.display().to_string());
        self.record("vdev remove", &format!("{} vdev (log) {path}", self.tx.pool))?;
        let rebuilt = self.end_rebuild_of_left(id)?;
        let (txg, outside) = (self.tx.txg, &self.disk.outside);
        let mut count = |mos: &mut OpenObjectSet, guid: &str, delta: i64| {
            count_feature(mos, txg, outside, guid, delta)
        };
        self.maps.free_vdev(self.tx.mos, txg, (id, &mut config, false), &mut count)?;
        // What comes after that is not undone.
        let is_empty = self.disk.allocator.is_empty(id);
        invariant!(is_empty, "log vdev {id} leaves, and something of it is allocated");
        self.replace_tree(now, root)?;
        self.maps.forget_vdev(id);
        let (top, tree, mapping) = (top.clone(), None, 0);
        self.disk.removed.lock().push(Gone { top, leaves, tree, mapping });
        Ok(if rebuilt { Left::Rebuilt } else { Left::Whole })
    }
}
