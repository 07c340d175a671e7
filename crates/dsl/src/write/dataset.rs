//! File systems and volumes.

use super::props::NewValue;
use super::{Result, Tx};
use cenote_dmu::write::Synced;

/// A new dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Created {
    /// The directory.
    pub dir_obj: u64,
    /// The head. Its object set is still to be written (of a clone: is that of the origin).
    pub ds_obj: u64,
}

/// Creates the directory `name` (one component) in `parent_dir`, with a head and its properties.
/// With the snapshot object `origin` it is a clone.
///
/// Errors: `Exists`, `TooLong`, `Invalid` name or property, `Limit`, `NoSpace` for a reservation.
pub fn create(
    tx: &mut Tx<'_>,
    parent_dir: u64,
    name: &str,
    props: &[(&str, NewValue)],
    origin: Option<u64>,
) -> Result<Created> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Accounts for a sync of a head's object set: its new root block, the blocks born, the blocks
/// killed. To be called once for every sync (every pass) of it.
pub fn synced(tx: &mut Tx<'_>, ds_obj: u64, synced: &Synced) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
