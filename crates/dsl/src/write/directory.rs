//! The object directory of the MOS (`DMU_POOL_DIRECTORY_OBJECT`): object 1, a ZAP that leads to all others by name.

use super::mos::DIRECTORY;
use super::{DslWriteError, Result, Tx};

/// Entries of the object directory.
pub(super) const ROOT: &str = "root_dataset";
/// The list of blocks that are waiting to be freed (`DMU_POOL_FREE_BPOBJ`).
pub(super) const FREE_BPOBJ: &str = "free_bpobj";

/// A number in the object directory.
pub fn entry(tx: &mut Tx<'_>, name: &str) -> Result<Option<u64>> {
    tx.zap_number(DIRECTORY, name)
}

/// Sets a number in the object directory.
pub fn set_entry(tx: &mut Tx<'_>, name: &str, value: u64) -> Result<()> {
    tx.zap_set(DIRECTORY, name, value)
}

/// Removes an entry of the object directory.
pub fn remove_entry(tx: &mut Tx<'_>, name: &str) -> Result<()> {
    tx.zap_remove(DIRECTORY, name).map(drop)
}

/// The root directory.
pub(super) fn root_dir(tx: &mut Tx<'_>) -> Result<u64> {
    entry(tx, ROOT)?.ok_or(DslWriteError::NotFound)
}
