//! What every pool has: its directories and lists.

use super::{Result, Tx};

/// Objects of a new pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolDirs {
    /// The root directory.
    pub root_dir: u64,
    /// The head of the root directory, whose object set is still to be written.
    pub root_ds: u64,
    /// The list of blocks to be freed.
    pub free_bpobj: u64,
    /// The snapshot `$ORIGIN@$ORIGIN`.
    pub origin_snap: u64,
}

/// Makes the object directory (object 1), the ZAPs of features, and the directories of a new pool
/// in an empty MOS.
pub fn create_pool_dirs(tx: &mut Tx<'_>) -> Result<PoolDirs> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// A number in the object directory.
pub fn entry(tx: &mut Tx<'_>, name: &str) -> Result<Option<u64>> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Sets a number in the object directory.
pub fn set_entry(tx: &mut Tx<'_>, name: &str, value: u64) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Charges the pool's own directory `$MOS` for what an earlier sync of the MOS itself wrote and
/// freed: in the next pass, or in the next txg if that was the last pass.
pub fn charge_mos(tx: &mut Tx<'_>, synced: &cenote_dmu::write::Synced) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
