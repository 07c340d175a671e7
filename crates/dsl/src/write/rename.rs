//! Moving directories.

use super::{Result, Tx};

/// Moves the directory `dir_obj` into `new_parent` as `name`.
///
/// Errors: `Exists`, `TooLong` (of any descendant or snapshot), `Invalid` (below itself),
/// `NoSpace`/`Quota` (the new parents have no room), `Limit`.
pub fn rename(tx: &mut Tx<'_>, dir_obj: u64, new_parent: u64, name: &str) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// The child `name` of a directory.
pub fn find_child(tx: &mut Tx<'_>, dir_obj: u64, name: &str) -> Result<Option<u64>> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// The directory of a full name `pool/a/b`, whose first component is not looked at.
pub fn find_dir(tx: &mut Tx<'_>, name: &str) -> Result<Option<u64>> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// The head of a directory.
pub fn head_of(tx: &mut Tx<'_>, dir_obj: u64) -> Result<u64> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
