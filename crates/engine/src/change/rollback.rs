//! Rolling a file system or volume back to its newest snapshot.

use super::policy::Operation;
use super::{ChangeError, Changes, Result, destroy, find_snapshot, record};
use crate::SpaceCheck;
use cenote_dsl::Dataset;
use cenote_dsl::write::{DslWriteError, rollback};

/// Times that it is tried again, when the snapshot is from the same transaction group.
const TRIES: usize = 16;

/// What is later than a snapshot of the same dataset, and so in the way of a rollback.
#[derive(Clone, Debug, Default)]
pub struct Later {
    /// Snapshots, in order of creation.
    pub snapshots: Vec<Dataset>,
    /// Bookmarks.
    pub bookmarks: Vec<Dataset>,
}

impl Changes {
    /// What is later than a snapshot.
    ///
    /// # Errors
    /// There is no such snapshot; the pool's metadata cannot be read.
    pub fn later_than(&self, snapshot: &str) -> Result<Later> {
        let view = self.engine.pool();
        let dsl = view.dsl();
        let since = dsl.find(snapshot)?.ok_or(ChangeError::NotFound)?;
        let head = dsl.find(since.head_name())?.ok_or(ChangeError::NotFound)?;
        let txg = since.ds.creation_txg;
        let mut later =
            Later { snapshots: dsl.snapshots(&head)?, bookmarks: dsl.bookmarks(&head)? };
        later.snapshots.retain(|s| s.ds.creation_txg > txg);
        later.bookmarks.retain(|b| b.bookmark.is_some_and(|phys| phys.creation_txg > txg));
        Ok(later)
    }

    /// Rolls a closed file system or volume back to `snapshot`, its newest one
    /// (`dsl_dataset_rollback`, `zfs_ioc_rollback`, `lzc_rollback_to`). What was written since is freed in the background.
    ///
    /// # Errors
    /// There is no such snapshot, or it is not the newest; the dataset is open; there is no room
    /// for its refreservation.
    pub fn rollback(&self, snapshot: &str) -> Result<()> {
        let permit = self.permit(&Operation::Rollback { snapshot })?;
        for _ in 0..TRIES {
            let snapshot = snapshot.to_string();
            let done = self.task(permit, (SpaceCheck::Reserved, 1), move |context| {
                let tx = &mut context.tx;
                let (head, object) = find_snapshot(tx, &snapshot)?;
                let name = snapshot.split('@').next().unwrap_or_default();
                if !rollback::is_newest(tx, head, object)? {
                    return Ok(Err(ChangeError::Exists));
                }
                let way = match rollback::check_rollback(tx, head) {
                    Err(DslWriteError::Again) => return Ok(Ok(false)),
                    checked => checked?,
                };
                context.check_intent_log(head)?;
                context.retire(head)?;
                context.destroy_intent_log(head, 0)?;
                let tx = &mut context.tx;
                let how = way.describe(destroy::phys(tx, head)?.prev_snap_txg);
                rollback::rollback(tx, head, way)?;
                // As a clone of the snapshot would take the place of the head, and go with what the head had.
                let leaf = name.rsplit('/').next().unwrap_or_default();
                let clone = format!("{name}/%rollback");
                record(tx, "clone swap", &format!("parent={leaf}"), (&clone, head))?;
                record(tx, "destroy", &how, (&clone, head))?;
                context.zero_intent_log(head)?;
                Ok(Ok(true))
            });
            if done? {
                return Ok(());
            }
        }
        Err(ChangeError::Busy)
    }
}
