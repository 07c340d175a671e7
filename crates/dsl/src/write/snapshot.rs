//! Taking and renaming snapshots.

use super::{Result, Tx};

/// Takes a snapshot of the head `ds_obj` as its last sync left it, and returns its object. The
/// head's contents must have been synced in this txg before, if they were changed.
///
/// Errors: `Exists`, `TooLong`, `Invalid` name, `Limit`, `NoSpace` (a refreservation that what is
/// left could not honour), `Quota`.
pub fn snapshot(tx: &mut Tx<'_>, ds_obj: u64, name: &str) -> Result<u64> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Renames a snapshot of the head `ds_obj`.
pub fn rename_snapshot(tx: &mut Tx<'_>, ds_obj: u64, from: &str, to: &str) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// The object of the snapshot `name` of the head `ds_obj`.
pub fn find_snapshot(tx: &mut Tx<'_>, ds_obj: u64, name: &str) -> Result<Option<u64>> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
