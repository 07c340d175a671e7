//! Writing lists of block pointers.

use super::{Result, Tx};
use cenote_format::blkptr::BlockPointer;

/// Allocates an empty list with blocks of `block_size` bytes (`bpobj_alloc`).
pub fn create(tx: &mut Tx<'_>, block_size: u64) -> Result<u64> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Adds block pointers to a list (`bpobj_enqueue`).
pub fn enqueue(tx: &mut Tx<'_>, object: u64, blocks: &[BlockPointer]) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
/// Frees a list with its sub-lists, not the blocks in it (`bpobj_free`).
pub fn free(tx: &mut Tx<'_>, object: u64) -> Result<()> {
    Err(super::DslWriteError::Unsupported("this".into()))
}
