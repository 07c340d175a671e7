//! Destroying snapshots and datasets.

use super::{Result, Tx};

/// Destroys a snapshot. With `defer`, one that is held or has clones is marked instead, to go with
/// the last of them; returns whether it is gone.
///
/// Errors: `Held`, `HasClones`.
pub fn destroy_snapshot(tx: &mut Tx<'_>, snap_obj: u64, defer: bool) -> Result<bool> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Destroys a file system or volume, with its directory. Its blocks are freed by
/// [`destroy_step`](super::free::destroy_step).
///
/// Errors: `HasChildren`, `HasSnapshots`, `Unsupported` without the feature `async_destroy`.
pub fn destroy_head(tx: &mut Tx<'_>, ds_obj: u64) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
