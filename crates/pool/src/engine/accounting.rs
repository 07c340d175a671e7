//! Writing a dataset, and counting what its users use.
//!
//! A file system keeps, for each user, group and project, the bytes and the number of objects that
//! are theirs, in objects of their own. They are brought up to date by what a sync changed, which
//! is then written by a second sync of the object set in the same transaction group.

use super::policy::Sink;
use cenote_dmu::write::OpenObjectSet;
use cenote_dsl::write::{Result, Tx, dataset};

/// Writes an object set and accounts for it.
pub(super) fn sync_dataset(
    tx: &mut Tx<'_>,
    set: &mut OpenObjectSet,
    ds_obj: u64,
    sink: &Sink<'_>,
) -> Result<()> {
    let synced = set.sync(tx.txg, sink)?;
    dataset::synced(tx, ds_obj, &synced)
}
