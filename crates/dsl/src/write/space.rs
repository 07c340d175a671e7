//! Accounting of space up the tree, quotas and reservations.

use super::{Result, Tx};

/// Sets the quota of a directory, in bytes; 0: none.
/// Errors: `NoSpace` if it is less than what is used or reserved.
pub fn set_quota(tx: &mut Tx<'_>, dir_obj: u64, quota: u64) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Sets the reservation of a directory, in bytes. Errors: `NoSpace` if there is less left.
pub fn set_reservation(tx: &mut Tx<'_>, dir_obj: u64, bytes: u64) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Sets the refquota of a head, in bytes; 0: none. Errors: `NoSpace` if it is less than what is
/// referenced or reserved.
pub fn set_refquota(tx: &mut Tx<'_>, ds_obj: u64, quota: u64) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Sets the refreservation of a head, in bytes. Errors: `NoSpace`.
pub fn set_refreservation(tx: &mut Tx<'_>, ds_obj: u64, bytes: u64) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Bytes that may be written to the head `ds_obj` now; without [`Tx::usable`] as far as quotas
/// tell.
pub fn available(tx: &mut Tx<'_>, ds_obj: u64) -> Result<u64> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
