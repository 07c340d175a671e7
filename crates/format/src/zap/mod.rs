//! The ZFS Attribute Processor's structures: name to value tables on disk.
//!
//! A ZAP is an object that maps names (or arrays of 64-bit words) to arrays of integers.
//! Directories, properties, the object directory of a pool and the dedup tables are ZAPs. The
//! first word of the first block says which of two kinds it is:
//!
//! *Micro* ([`micro`]): a single block. A header of 64 bytes and entries of 64 bytes, each a name
//! of up to 49 bytes and one 64-bit value.
//!
//! *Fat* ([`fat`], [`leaf`]): a hash table that grows. The header block says where the pointer
//! table is: in the second half of the header block, or in a run of blocks of its own. The top
//! `zt_shift` bits of a key's hash index the pointer table, which gives the number of the leaf
//! block; several neighbouring pointers lead to one leaf, which carries their common prefix. A
//! leaf is a hash table of chains again, over chunks of 24 bytes.
//!
//! ```text
//! hash   | zt_shift bits: pointer table | the rest
//!        | lh_prefix_len bits: leaf | next bits: bucket of the leaf | the rest
//! ```
//!
//! The hash ([`hash`]) is a CRC-64 that starts from the ZAP's salt, of the key or, in a ZAP with
//! normalization flags ([`norm`]), of the normalized key. Only its top 28 bits (48 with
//! [`FLAG_HASH64`]) are kept; equal hashes are told apart by a *collision differentiator*, so
//! that (hash, differentiator) orders all entries and can serve as a directory cookie.
//!
//! Invariants: every chunk number, size and shift is checked before use; the walk of a chain ends
//! after as many steps as the block has chunks.

pub mod fat;
pub mod hash;
pub mod leaf;
pub mod micro;
pub mod norm;

use crate::{Bytes, Result};

/// `ZBT_LEAF`: first word of a leaf block.
pub const BLOCK_LEAF: u64 = 1 << 63;
/// `ZBT_HEADER`: first word of the header block of a fat ZAP.
pub const BLOCK_HEADER: u64 = (1 << 63) + 1;
/// `ZBT_MICRO`: first word of a micro ZAP.
pub const BLOCK_MICRO: u64 = (1 << 63) + 3;
/// `ZAP_FLAG_HASH64`: 48 bits of the hash are kept, not 28.
pub const FLAG_HASH64: u64 = 1;
/// `ZAP_FLAG_UINT64_KEY`: keys are arrays of 64-bit words, not strings.
pub const FLAG_UINT64_KEY: u64 = 2;
/// `ZAP_FLAG_PRE_HASHED_KEY`: the first word of the key is its hash.
pub const FLAG_PRE_HASHED_KEY: u64 = 4;

/// What a ZAP's first block is, by its first word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// A micro ZAP.
    Micro,
    /// The header of a fat ZAP.
    Header,
    /// A leaf of a fat ZAP.
    Leaf,
    /// Anything else, which in a fat ZAP is a block of the pointer table.
    Other(u64),
}

/// Which kind of ZAP block this is.
pub fn block_kind(b: &Bytes<'_>) -> Result<BlockKind> {
    Ok(match b.u64(0)? {
        BLOCK_MICRO => BlockKind::Micro,
        BLOCK_HEADER => BlockKind::Header,
        BLOCK_LEAF => BlockKind::Leaf,
        other => BlockKind::Other(other),
    })
}
