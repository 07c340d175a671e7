//! What an object set asks of the floor below: to write a batch of blocks.

use crate::write::Result;
use cenote_format::blkptr::BlockPointer;
use cenote_format::dmu::DmuType;
use cenote_store::Bookmark;
use cenote_store::keys::LoadedKey;
use cenote_store::write::Payload;
use std::sync::Arc;

/// A block to be written. Copies, class of vdevs and the like follow from what it is and
/// from the properties of the data set, which the sink knows.
#[derive(Debug, Clone)]
pub struct NewBlock {
    /// The block, little-endian; compressed if it came so.
    pub data: Payload,
    /// The block in its owner's eyes. Level -1 is the root block of the object set.
    pub at: Bookmark,
    /// Type of the object.
    pub kind: DmuType,
    /// Level in the tree of indirect blocks; 0 is data, and the root block of the object set.
    pub level: u8,
    /// `dn_checksum`: the object's own checksum function; 0: that of the data set.
    pub checksum: u8,
    /// `dn_compress`: the object's own compression function; 0: that of the data set.
    pub compress: u8,
    /// Fill count of the pointer, if it is neither a hole nor embedded.
    pub fill: u64,
    /// The pointer that the new one replaces.
    pub previous: BlockPointer,
    /// Whether the block has to get a new place even if its contents are what they were.
    pub forced: bool,
    /// Whether it takes the logical birth of the previous block with it (`dr_rewrite`).
    pub keeps_birth: bool,
    /// The key that protects it, in an encrypted data set.
    pub key: Option<Arc<LoadedKey>>,
    /// It is of an encrypted data set, and comes with its MACs: no key protects it.
    pub raw: bool,
}

/// Writes the blocks of a sync.
pub trait BlockSink {
    /// Writes a batch in `txg`; the pointers in the order of `blocks`.
    ///
    /// A block of zeros becomes a hole, with a birth if the previous pointer has one (feature
    /// `hole_birth`). Only level 0 may be embedded, and neither dnodes nor object sets. What was
    /// there before is not freed.
    fn write_blocks(&self, txg: u64, blocks: Vec<NewBlock>) -> Vec<Result<BlockPointer>>;

    /// Bytes that a block counts for in `dn_used` (`bp_get_dsize_sync`): what its copies take, on
    /// RAID-Z less the share of parity that a block of 128 KiB has. As long as a pool's vdevs are
    /// what they are, the same for the same pointer.
    fn space(&self, bp: &BlockPointer) -> u64 {
        bp.dvas().map(|dva| dva.asize).sum()
    }

    /// Whether holes have a birth (feature `hole_birth`).
    fn hole_birth(&self) -> bool {
        true
    }
}
