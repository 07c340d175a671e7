//! Freeing what was destroyed, some in each txg.

use super::{Result, Tx};

/// Frees up to `budget` blocks of what is waiting (`free_bpobj` and `bptree_obj` of the object
/// directory); true if there is more. Progress is in the MOS.
pub fn destroy_step(tx: &mut Tx<'_>, budget: u64) -> Result<bool> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Bytes that are waiting to be freed (pool property `freeing`).
pub fn freeing(tx: &mut Tx<'_>) -> Result<u64> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
